//! The flags of a running operator.

use std::path::PathBuf;

use crate::command_line::UnknownKey;

/// How the operator runs.
#[derive(Debug, clap::Args)]
pub(super) struct RunArguments {
    /// A settings file in YAML; may be given several times, the later wins.
    #[arg(long, value_name = "FILE")]
    pub(super) config: Vec<PathBuf>,
    /// The kubeconfig for the operator's own API server. Default: KUBECONFIG, then the pod's service account.
    #[arg(long, value_name = "FILE")]
    pub(super) kubeconfig: Option<PathBuf>,
    /// The context of that kubeconfig. Default: its current-context.
    #[arg(long, value_name = "NAME")]
    pub(super) context: Option<String>,
    /// The operator's own namespace. Default: POD_NAMESPACE, then the service account's, then the context's.
    #[arg(long, value_name = "NS", env = "POD_NAMESPACE")]
    pub(super) namespace: Option<String>,
    /// Print the settings in force and where each came from, secrets redacted, and exit.
    #[arg(long)]
    pub(super) print_config: bool,
    /// What an unknown key in a settings file is.
    #[arg(long, value_enum, default_value_t = UnknownKey::Error, value_name = "error|warn")]
    pub(super) config_unknown: UnknownKey,
}
