//! kubesvc registers and runs many Kubernetes clusters ("accounts") for Spinnaker.
//!
//! The modules by layer, top down. A layer imports only from the layers below it, and siblings never import one
//! another (`tests/it/architecture.rs` enforces this):
//!
//! | layer | modules |
//! |---|---|
//! | composition roots, one per program | [`operator`], [`agent_program`], [`plugin`] |
//! | siblings | [`controller`], [`hub`], [`agent`], [`rest`], [`ui`] |
//! | ports and adapters | [`fleet`], [`peers`], [`leases`], [`objects`], [`store`], [`secrets`], [`wire`], [`config`], [`listen`], [`telemetry`], [`command_line`] |
//! | small parts | [`background_tasks`], [`wake_set`], [`watch_backoff`], [`budget`], [`crash`], [`process`], [`shutdown`] |
//! | pure core: no I/O, no clock | [`account`] |

pub mod account;
pub mod agent;
pub mod agent_program;
pub mod background_tasks;
pub mod budget;
pub mod command_line;
pub mod config;
pub mod controller;
pub mod crash;
pub mod fleet;
pub mod hub;
pub mod leases;
pub mod listen;
pub mod objects;
pub mod operator;
pub mod peers;
pub mod plugin;
pub mod process;
pub mod rest;
pub mod secrets;
pub mod shutdown;
pub mod store;
pub mod telemetry;
pub mod ui;
pub mod wake_set;
pub mod watch_backoff;
pub mod wire;
