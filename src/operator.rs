//! The composition root of `kubesvc-operator`: the only place that puts its parts together.

mod arguments;
mod cli;
mod cluster;
mod connection;
mod copy;
mod database;
mod doors;
mod isolation;
mod lead;
mod leases;
mod peers;
mod place;
mod readiness;
mod run;
mod settings;

pub use cli::main;
