//! Whose credential a kubeconfig has.

use std::path::Path;
use std::time::Duration;

use kube::config::AuthInfo;
use secrecy::SecretString;

use crate::api_session::ApiSession;
use crate::arguments::CommandError;

/// Audience of the gateway's own tokens.
pub(super) const GATEWAY_AUDIENCE: &str = "kubesvc";
/// Begin of the names of users that are not the caller.
const USER_PREFIX: &str = "kubesvc:";

/// Whose credential a kubeconfig has.
#[derive(Clone, Debug)]
pub(super) enum KubeconfigUser {
    /// The caller's own, as the kubeconfig has it.
    Own,
    /// A token of a service account: its name, and when it expires.
    ServiceAccount { name: String, token: SecretString, expires: String },
    /// A token that was in a file.
    Token { path: String, token: SecretString },
    /// A file that is read at each use.
    TokenFile(String),
}

impl KubeconfigUser {
    /// Has the API server make a token of a service account, `NAME` or `NAMESPACE/NAME`.
    pub(super) async fn of_service_account(
        session: &ApiSession,
        name: &str,
        lifetime: Duration,
        audience: Option<&str>,
    ) -> Result<Self, CommandError> {
        let (namespace, name) = name.split_once('/').unwrap_or((&session.namespace, name));
        if !kubesvc_core::object_names::is_dns_subdomain(name)
            || !kubesvc_core::object_names::is_dns_label(namespace)
        {
            return Err(CommandError::Usage(format!(
                "--service-account {namespace}/{name} is no name; write it as NAME or NAMESPACE/NAME"
            )));
        }
        let audiences = audience.map(str::to_owned).into_iter().collect();
        let made = session.service_account_token((namespace, name), lifetime, audiences).await?;
        Ok(Self::ServiceAccount {
            name: format!("{namespace}/{name}"),
            token: made.token.into(),
            expires: made.expiration_timestamp.0.to_string(),
        })
    }

    /// Reads a token from a file.
    pub(super) fn of_file(path: &Path) -> Result<Self, CommandError> {
        let shown = path.display().to_string();
        let token =
            std::fs::read_to_string(path).map_err(|error| format!("--token-file {shown}: {error}"))?;
        let token = token.trim();
        if token.is_empty() || token.chars().any(|one| !one.is_ascii_graphic()) {
            return Err(CommandError::Failed(format!("--token-file {shown} holds no token")));
        }
        Ok(Self::Token { path: shown, token: token.to_owned().into() })
    }

    /// Name and content of the user entry; `None` for the caller's own.
    pub(super) fn user(&self) -> Option<(String, AuthInfo)> {
        let of_token = |name: &str, token: &SecretString| {
            let user = AuthInfo { token: Some(token.clone()), ..AuthInfo::default() };
            Some((format!("{USER_PREFIX}{name}"), user))
        };
        match self {
            Self::Own => None,
            Self::ServiceAccount { name, token, .. } => of_token(name, token),
            Self::Token { path, token } => of_token(path, token),
            Self::TokenFile(path) => {
                let user = AuthInfo { token_file: Some(path.clone()), ..AuthInfo::default() };
                Some((format!("{USER_PREFIX}{path}"), user))
            }
        }
    }

    /// A sentence for a comment in the output.
    pub(super) fn sentence(&self) -> String {
        match self {
            Self::Own => {
                "The credential is your own, and ends when yours does; rather give --service-account \
                          NAMESPACE/NAME, with rights of its own on accounts/proxy."
                    .to_owned()
            }
            Self::ServiceAccount { name, expires, .. } => format!(
                "The credential is a token of service account {name} that expires at {expires}: run this again before."
            ),
            Self::Token { path, .. } => format!("The credential is the token that was in {path}."),
            Self::TokenFile(path) => {
                format!("The credential is read from {path} at each use, so that it may be renewed there.")
            }
        }
    }

    /// What the caller is told on standard error.
    pub(super) fn note(&self) -> Option<String> {
        match self {
            Self::ServiceAccount { expires, .. } => {
                Some(format!("The token expires at {expires}: run this again before."))
            }
            _ => None,
        }
    }
}
