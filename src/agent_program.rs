//! The composition root of `kubesvc-agent`.

mod cli;
mod identity;

pub use cli::main;
