//! The composition root of `kubectl-kubesvc`, and its commands.
//!
//! | file | what it does |
//! |---|---|
//! | `cli.rs` | the command line and its exit codes |
//! | `arguments.rs` | what commands share: flags, selection of accounts, errors |
//! | `api_session.rs` | the client of the user's API server: lists, tokens, and what is said about its errors |
//! | `resources.rs` | reading accounts and agents: page by page, by name, by selector |
//! | `own_kubeconfig.rs` | the caller's own entries of the kubeconfig, to be copied elsewhere |
//! | `account_api.rs` | the API of accounts that the operator adds to the user's API server, for `kubeconfig`, `on`, `operations` |
//! | `account_kubeconfig.rs` | kubeconfigs for it |
//! | `progress.rs` | how far each account is on its way to a goal, for `wait` |
//! | `operator_client.rs` | calls of the operator's REST API, for `cache`, `why` and dry runs of `migrate` alone |
//! | `program_settings.rs` | what `import` knows of the settings of operator and agent |
//! | `commands/` | one file for each command; `change.rs` is `activate`, `deactivate`, `retry` and `adopt` |

mod account_api;
mod account_kubeconfig;
mod api_session;
mod arguments;
mod cli;
/// The commands of `kubectl kubesvc`.
mod commands {
    pub(super) mod agents;
    pub(super) mod cache;
    pub(super) mod change;
    pub(super) mod completion;
    pub(super) mod credential;
    pub(super) mod describe;
    pub(super) mod identity;
    pub(super) mod import;
    pub(super) mod kubeconfig;
    pub(super) mod list;
    pub(super) mod migrate;
    pub(super) mod on;
    pub(super) mod operations;
    pub(super) mod uninstall;
    pub(super) mod wait;
    pub(super) mod why;
}
mod operator_client;
mod own_kubeconfig;
mod program_settings;
mod progress;
mod resources;

pub use cli::main;
pub use commands::import::settings::{ImportedSettings, SettingLine, SettingResult, judged};
pub use program_settings::{AgentFiles, ProgramSettings, StaticAccount};
