//! `kubectl kubesvc kubeconfig`: kubeconfigs for the APIs of accounts, for kubectl, Argo CD, Flux and Clouddriver.

mod credential;
mod formats;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use kube::config::Cluster;
use kubesvc_runtime::terminal::{self, format};

use self::credential::KubeconfigUser;
use crate::account_api;
use crate::account_kubeconfig::{self, Door};
use crate::api_session::ApiSession;
use crate::arguments::{CommandError, ScopeArguments, Targets, duration};
use crate::own_kubeconfig::{self, OwnEntries};

pub(crate) const EXAMPLES: &str = "\
Examples:
  (umask 077; kubectl kubesvc kubeconfig production > production.kubeconfig)
  KUBECONFIG=~/.kube/config:production.kubeconfig kubectl --context production get namespaces
  kubectl kubesvc kubeconfig production -o argocd --service-account argocd/kubesvc --server https://kubernetes.default.svc
  kubectl kubesvc kubeconfig production -o flux --service-account flux-system/kubesvc | kubectl apply -n shop -f -
  kubectl kubesvc kubeconfig --all -o clouddriver --gateway https://kubesvc-operator.kubesvc.svc:6443 --certificate-authority ca.crt --token-file /var/run/secrets/kubesvc/token

It reaches each account through your own API server, as you: RBAC on accounts/proxy (proxy.kubesvc.io) says what you may do.";

/// What is written before a kubeconfig of the aggregated door.
const PROXY_COMMENT: &str = "\
# kubectl proxy drops the path of the server and serves the operator's own cluster, unless it is told to keep it:
#   kubectl proxy --append-server-path
";

/// Arguments of `kubeconfig`.
#[derive(Debug, clap::Args)]
pub(crate) struct KubeconfigArguments {
    #[command(flatten)]
    targets: Targets,
    /// What to print instead of a kubeconfig.
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    output: Option<OutputFormat>,
    /// Text before the name of each context.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    prefix: String,
    #[command(flatten)]
    address: AddressArguments,
    #[command(flatten)]
    credential: CredentialFlags,
}

/// Flags that say where the APIs of accounts are reached.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Address")]
struct AddressArguments {
    /// URL of the operator's API server, if whoever uses the output reaches it at another one than you.
    #[arg(long, value_name = "URL", value_parser = https)]
    server: Option<String>,
    /// URL of the operator's gateway itself, for Clouddriver and others that read much. Its tokens are for the audience
    /// kubesvc.
    #[arg(long, value_name = "URL", value_parser = https, conflicts_with = "server")]
    gateway: Option<String>,
    /// Certificate authority of that URL. Default: your API server's; of a gateway, the system's.
    #[arg(long, value_name = "FILE")]
    certificate_authority: Option<PathBuf>,
}

/// Flags that say whose credential the output has.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Credential (default: your own)")]
struct CredentialFlags {
    /// A new token of this service account in the operator's cluster.
    #[arg(long, value_name = "[NS/]NAME")]
    service_account: Option<String>,
    /// Lifetime of the new token; the API server may give a shorter one.
    #[arg(long, value_name = "TIME", default_value = "8760h", value_parser = duration)]
    duration: Duration,
    /// A file with a token. A kubeconfig and -o clouddriver name it, so that it may change; the others contain what is in it.
    #[arg(long, value_name = "FILE", conflicts_with = "service_account")]
    token_file: Option<PathBuf>,
}

/// What is printed instead of a kubeconfig.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OutputFormat {
    /// A cluster Secret of Argo CD for each account.
    Argocd,
    /// A Secret for `spec.kubeConfig.secretRef` of Flux for each account.
    Flux,
    /// Accounts for the settings of Clouddriver.
    Clouddriver,
}

fn https(text: &str) -> Result<String, InvalidUrl> {
    let url: http::Uri = text.parse().map_err(|_| InvalidUrl)?;
    let is_right = url.scheme_str() == Some("https") && url.host().is_some() && url.query().is_none();
    if is_right { Ok(text.trim_end_matches('/').to_owned()) } else { Err(InvalidUrl) }
}

/// A text that is no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write it as https://HOST:PORT")]
struct InvalidUrl;

/// Runs the command.
pub(crate) async fn run(scope: &ScopeArguments, arguments: &KubeconfigArguments) -> Result<(), CommandError> {
    arguments.check(scope)?;
    let session = ApiSession::open_without_retries(scope).await?;
    let own = own_kubeconfig::read(scope)?;
    let found = session.resolve_all(&arguments.targets).await?;
    if arguments.address.gateway.is_none() {
        account_api::require(&session).await?;
    }
    let credential = arguments.credential(&session).await?;
    let door = arguments.door(own, &credential)?;
    let accounts = account_kubeconfig::named(&found, &arguments.prefix);
    let printed = match arguments.output {
        None => {
            let kubeconfig = format::yaml(&door.kubeconfig(&accounts)?)?;
            commented(arguments.address.gateway.is_none(), kubeconfig)
        }
        Some(output) => {
            let about = formats::About { credential: &credential, address: &arguments.address, door: &door };
            formats::render(output, &about, &accounts, &found)?
        }
    };
    terminal::print(&printed)?;
    if let Some(note) = credential.note() {
        terminal::note(&note);
    }
    Ok(())
}

/// A kubeconfig with what `kubectl proxy` does with it, where `is_aggregated` says that its server has a path of another API
/// server.
fn commented(is_aggregated: bool, kubeconfig: String) -> String {
    // JSON, which some texts need, has no comments.
    if !is_aggregated || kubeconfig.starts_with('{') {
        return kubeconfig;
    }
    format!("{PROXY_COMMENT}{kubeconfig}")
}

impl KubeconfigArguments {
    fn check(&self, scope: &ScopeArguments) -> Result<(), CommandError> {
        self.targets.check(scope)?;
        let usage = |reason: &str| Err(CommandError::Usage(reason.to_owned()));
        let flags = &self.credential;
        if self.address.gateway.is_some() && flags.service_account.is_none() && flags.token_file.is_none() {
            return usage(
                "the gateway itself takes tokens for the audience kubesvc alone; add --service-account or --token-file",
            );
        }
        if self.output == Some(OutputFormat::Clouddriver)
            && flags.token_file.as_ref().is_some_and(|path| !path.is_absolute())
        {
            return usage("--token-file is a path where Clouddriver runs, and begins with / there");
        }
        if !self.prefix.chars().all(|one| one.is_ascii_graphic()) {
            return usage("--prefix has letters, digits and punctuation only");
        }
        Ok(())
    }

    async fn credential(&self, session: &ApiSession) -> Result<KubeconfigUser, CommandError> {
        let audience = self.address.gateway.is_some().then_some(credential::GATEWAY_AUDIENCE);
        match (&self.credential.service_account, &self.credential.token_file) {
            (Some(name), _) => {
                KubeconfigUser::of_service_account(session, name, self.credential.duration, audience).await
            }
            (None, Some(path)) => match self.output {
                None => Ok(KubeconfigUser::TokenFile(own_kubeconfig::absolute(path)?)),
                Some(OutputFormat::Clouddriver) => Ok(KubeconfigUser::TokenFile(path.display().to_string())),
                Some(_) => KubeconfigUser::of_file(path),
            },
            (None, None) => Ok(KubeconfigUser::Own),
        }
    }

    fn door(&self, own: OwnEntries, credential: &KubeconfigUser) -> Result<Door, CommandError> {
        let OwnEntries { cluster, user_name, mut user, .. } = own;
        let mut cluster = match &self.address.gateway {
            Some(url) => Cluster { server: Some(url.clone()), ..Cluster::default() },
            None => Cluster { server: self.address.server.clone().or(cluster.server.clone()), ..cluster },
        };
        if let Some(path) = &self.address.certificate_authority {
            cluster.certificate_authority = Some(own_kubeconfig::absolute(path)?);
            cluster.certificate_authority_data = None;
            cluster.insecure_skip_tls_verify = None;
        }
        if self.output.is_some() {
            own_kubeconfig::inline_authority(&mut cluster)?;
        }
        if let Some((user_name, user)) = credential.user() {
            return Ok(Door { cluster, user_name, user });
        }
        if self.output.is_some() {
            if user.exec.is_some() || user.auth_provider.is_some() {
                return Err(CommandError::Usage(format!(
                    "your user {user_name} logs in by a program, which only your machine has; add --service-account or \
                     --token-file"
                )));
            }
            own_kubeconfig::inline_user(&mut user)?;
        }
        Ok(Door { cluster, user_name, user })
    }
}
