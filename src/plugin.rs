//! The composition root of `kubectl-kubesvc`, and its commands.
//!
//! | file | what it does |
//! |---|---|
//! | `cli.rs`, `arguments.rs` | the command line |
//! | `session.rs`, `failure.rs` | the person's API server, and what is said when it cannot be used |
//! | `accounts.rs`, `fleet.rs` | reading: page by page, by name, by selector |
//! | `list.rs`, `describe.rs`, `why.rs`, `agents.rs` | what is shown |
//! | `desire.rs`, `retry.rs` | what is changed |
//! | `wait.rs` | one watch until all are there |
//! | `complete.rs` | completion in shells |

mod accounts;
mod agents;
mod arguments;
mod cli;
mod completion;
mod describe;
mod desired_state;
mod failure;
mod fleet;
mod list;
mod retry;
mod session;
mod wait;
mod why;

pub use cli::main;
