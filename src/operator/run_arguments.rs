//! The flags of a running operator.

use std::path::PathBuf;

use kubesvc_runtime::config::UnknownKeys;

/// Flags of a running operator.
#[derive(Debug, clap::Args)]
pub(super) struct RunArguments {
    /// Settings file in YAML. May be repeated; later files override earlier ones.
    #[arg(long, value_name = "FILE")]
    pub(super) config: Vec<PathBuf>,
    /// Kubeconfig of the operator's own API server. Default: KUBECONFIG, then the pod's service account.
    #[arg(long, value_name = "FILE")]
    pub(super) kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig. Default: its current-context.
    #[arg(long, value_name = "NAME")]
    pub(super) context: Option<String>,
    /// The operator's own namespace. Default: the namespace of the kubeconfig's context or of the service account.
    #[arg(long, value_name = "NS", env = "POD_NAMESPACE")]
    pub(super) namespace: Option<String>,
    /// Print the effective settings with their origins, secrets redacted, and exit.
    #[arg(long)]
    pub(super) print_config: bool,
    /// How to treat an unknown key in a settings file.
    #[arg(long, value_enum, default_value_t = UnknownKeys::Error, value_name = "error|warn")]
    pub(super) config_unknown: UnknownKeys,
}
