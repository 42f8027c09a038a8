//! The composition root of `kubesvc-operator`: the only place that puts its parts together.

mod arguments;
mod cli;
mod cluster;
mod copy;
mod lead;
mod peers;
mod readiness;
mod run;

pub use cli::main;
