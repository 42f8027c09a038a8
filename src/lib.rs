//! The operator of kubesvc, which registers and runs many Kubernetes clusters ("accounts") for Spinnaker. The programs
//! in `src/bin` start it, the agent (`crates/agent`) and the kubectl plugin (`crates/plugin`).
//!
//! The modules by layer, top down. A layer imports only from the layers below it, and siblings never import one
//! another (`tests/it/architecture.rs` enforces this):
//!
//! | layer | modules |
//! |---|---|
//! | composition root | [`operator`] |
//! | siblings | [`controller`], [`gateway`], [`hub`], [`replica_port`], [`rest`] |
//! | services | [`operations`] |
//! | requests | [`request_routing`] |
//! | ports and adapters | [`access`], [`certificates`], [`connected_agents`], [`peers`], [`leases`], [`informers`], [`secrets`] |
//!
//! Below them are the packages in `crates/`, whose manifests say which of them uses which.

pub mod access;
pub mod certificates;
pub mod connected_agents;
pub mod controller;
pub mod gateway;
pub mod hub;
pub mod informers;
pub mod leases;
pub mod operations;
pub mod operator;
pub mod peers;
pub mod replica_port;
pub mod request_routing;
pub mod rest;
pub mod secrets;
