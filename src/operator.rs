//! The composition root of `kubesvc-operator`: the only place that puts its parts together.

mod arguments;
mod cli;
mod copy;
mod database;
mod doors;
mod isolation;
mod join_peers;
mod kube_client;
mod kube_connection;
mod lead;
mod leases;
mod place;
mod readiness;
mod run;
mod settings;

pub use cli::main;
