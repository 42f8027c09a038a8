//! The command-line flags of the operator.

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

const COPY_EXAMPLES: &str = "\
Stop the operator first. Then, for example:
  kubesvc-operator copy-database --from sqlite:///var/lib/kubesvc/kubesvc.db \\
      --to postgres://kubesvc:PASSWORD@db.example:5432/kubesvc
A password on a command line can be seen by others on the machine: the environment can hold the URLs instead.";

/// What is copied where.
#[derive(clap::Args)]
#[command(after_help = COPY_EXAMPLES)]
pub(super) struct CopyArguments {
    /// The database to read, as kubesvc.database.url names it.
    #[arg(long, value_name = "URL", env = "KUBESVC_COPY_FROM", hide_env_values = true)]
    pub(super) from: String,
    /// The database to write. Its tables are made if they are not there.
    #[arg(long, value_name = "URL", env = "KUBESVC_COPY_TO", hide_env_values = true)]
    pub(super) to: String,
    /// Replace the accounts that the target holds; without it a target that holds some is refused.
    #[arg(long)]
    pub(super) overwrite: bool,
}

/// Omits the URLs, since they may contain passwords.
impl std::fmt::Debug for CopyArguments {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CopyArguments").field("overwrite", &self.overwrite).finish_non_exhaustive()
    }
}
