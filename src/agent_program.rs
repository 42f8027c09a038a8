//! Composition root of `kubesvc-agent`.

mod accounts;
mod cli;
mod identity;
mod reload;

pub use cli::main;
