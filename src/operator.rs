//! The composition root of `kubesvc-operator`: the only place that assembles its parts.

mod arguments;
mod cli;
mod copy;
mod database;
mod exposure;
mod isolation;
mod join_peers;
mod kube_client;
mod kube_connection;
mod lead;
mod leases;
mod readiness;
mod run;
mod run_location;
mod settings;

pub use cli::main;
