//! The command-line flags of the operator.

use std::path::PathBuf;

use crate::command_line::UnknownKey;

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
    #[arg(long, value_enum, default_value_t = UnknownKey::Error, value_name = "error|warn")]
    pub(super) config_unknown: UnknownKey,
}

const COPY_EXAMPLES: &str = "\
Stop the operator first.

Examples:
  kubesvc-operator copy-database --from sqlite:///var/lib/kubesvc/kubesvc.db \\
      --to postgres://kubesvc:PASSWORD@db.example:5432/kubesvc

Other users of the machine can see a password on a command line. Set the URLs in the environment instead.";

/// Arguments of `copy-database`.
#[derive(clap::Args)]
#[command(after_help = COPY_EXAMPLES)]
pub(super) struct CopyArguments {
    /// URL of the database to read, in the format of kubesvc.database.url.
    #[arg(long, value_name = "URL", env = "KUBESVC_COPY_FROM", hide_env_values = true)]
    pub(super) from: String,
    /// URL of the database to write. Missing tables are created.
    #[arg(long, value_name = "URL", env = "KUBESVC_COPY_TO", hide_env_values = true)]
    pub(super) to: String,
    /// Replace all accounts of the target. Without this flag, a target with accounts is rejected.
    #[arg(long)]
    pub(super) overwrite: bool,
}

/// Omits the URLs, since they may contain passwords.
impl std::fmt::Debug for CopyArguments {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CopyArguments").field("overwrite", &self.overwrite).finish_non_exhaustive()
    }
}
