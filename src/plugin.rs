//! The composition root of `kubectl-kubesvc`, and its commands.
//!
//! | file | what it does |
//! |---|---|
//! | `cli.rs`, `arguments.rs` | the command line |
//! | `session.rs`, `failure.rs` | the client of the user's API server, and its error messages |
//! | `accounts.rs`, `fleet.rs` | reading accounts and agents: page by page, by name, by selector |
//! | `list.rs`, `describe.rs`, `why.rs`, `agents.rs` | output of the reading commands, and approval of agents |
//! | `desired_state.rs`, `retry.rs` | commands that change accounts |
//! | `wait.rs` | one watch until all accounts have reached a goal |
//! | `completion.rs` | shell completion |

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
