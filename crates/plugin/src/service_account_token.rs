//! Tokens of service accounts, by TokenRequest.

use std::time::Duration;

use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec, TokenRequestStatus};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::Api;
use kube::api::PostParams;

use crate::api_session::{ApiSession, ResourceRequest};
use crate::arguments::CommandError;

/// A token to be made.
#[derive(Clone, Debug)]
pub(super) struct TokenOrder<'a> {
    /// Namespace of the service account.
    pub(super) namespace: &'a str,
    /// Name of the service account.
    pub(super) service_account: &'a str,
    /// Lifetime asked for; the API server may give a shorter one.
    pub(super) lifetime: Duration,
    /// Who is to accept the token; empty: the API server.
    pub(super) audiences: Vec<String>,
}

impl TokenOrder<'_> {
    /// Has the API server make the token.
    pub(super) async fn make(self, session: &ApiSession) -> Result<TokenRequestStatus, CommandError> {
        let seconds = i64::try_from(self.lifetime.as_secs()).unwrap_or(i64::MAX);
        let spec = TokenRequestSpec {
            audiences: self.audiences,
            expiration_seconds: Some(seconds),
            ..TokenRequestSpec::default()
        };
        let request = TokenRequest { spec, ..TokenRequest::default() };
        let asked = ResourceRequest {
            verb: "create",
            resource: "serviceaccounts/token",
            namespace: Some(self.namespace),
        };
        let api: Api<ServiceAccount> = session.api(self.namespace);
        let parameters = PostParams::default();
        let answer = api.create_token_request(self.service_account, &parameters, &request);
        let answer = session.ask(asked, answer).await?;
        answer.status.ok_or_else(|| CommandError::Failed(format!("{} gave no token", session.server)))
    }
}
