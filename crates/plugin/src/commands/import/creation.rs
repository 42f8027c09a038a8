//! Creation of the accounts of rows.
//!
//! An account and its Secret are created by [`AccountSecret`], with the rules that the operator has, because others may
//! create the same account meanwhile: another import, a client of REST, the operator. The credential of an account that
//! exists is neither replaced nor deleted.

use std::sync::OnceLock;

use kubesvc_core::PLUGIN_FIELD_MANAGER;
use kubesvc_core::owned_secret::Contents;
use kubesvc_core::row_adoption::Adoption;
use kubesvc_runtime::account_secret::{AccountSecret, AccountSecretError, SecretWriter};
use kubesvc_runtime::kube_access::{ErrorClass, KubeAccess, KubeError, WriteOptions};
use kubesvc_runtime::rate_limit::Urgency;

use super::rows::RowResult;
use crate::api_session::ApiSession;

/// Reason of the accounts after a failure that they would meet, too.
const NOT_TRIED: &str = "not tried, because an earlier account failed";

/// Creates accounts until a failure that the next ones would meet, too.
pub(super) struct AccountCreator {
    namespace: String,
    kube: KubeAccess,
    dry_run: bool,
    stopped: OnceLock<()>,
}

impl AccountCreator {
    pub(super) fn new(session: &ApiSession, dry_run: bool) -> Self {
        let kube = KubeAccess::new(session.client.clone(), PLUGIN_FIELD_MANAGER);
        Self { namespace: session.namespace.clone(), kube, dry_run, stopped: OnceLock::new() }
    }

    /// Creates an account, its Secret first. Returns what became of it, and why.
    pub(super) async fn create(&self, adoption: &Adoption) -> (RowResult, String) {
        if self.stopped.get().is_some() {
            return (RowResult::Failed, NOT_TRIED.to_owned());
        }
        let object = &adoption.object;
        let name = object.metadata.name.as_deref().unwrap_or_default();
        let contents: Contents<'_> = adoption.kubeconfigs.iter().map(|(key, text)| (*key, text)).collect();
        let secret = AccountSecret::of(&self.kube, (&self.namespace, name), SecretWriter::IMPORT);
        let created = if self.dry_run {
            secret.try_account(&contents, object).await
        } else {
            let options = WriteOptions::with(Urgency::Rest).at("import-create");
            secret.create_account(&contents, object, options).await.map(|made| made.is_some())
        };
        match created {
            Ok(true) => (RowResult::Created, String::new()),
            Ok(false) | Err(AccountSecretError::Taken) => {
                (RowResult::Exists, format!("ksa/{name} was created meanwhile, and is left as it is"))
            }
            Err(AccountSecretError::Api(error)) => {
                if concerns_all(&error) {
                    let _ = self.stopped.set(());
                }
                failure(error)
            }
            Err(error @ AccountSecretError::NotOurs(_)) => (RowResult::Refused, error.to_string()),
            Err(error @ AccountSecretError::Contended(_)) => (RowResult::Failed, error.to_string()),
        }
    }
}

/// Whether the next accounts would fail like this one: the API server is away or overloaded, or does not know the user.
fn concerns_all(error: &KubeError) -> bool {
    error.code().is_none_or(|code| code == 401 || code == 429 || code >= 500)
}

/// The result of a failed request, without the API server's text, which may quote a reference that is itself a secret.
fn failure(error: KubeError) -> (RowResult, String) {
    let error = error.without_message();
    let request = error.request();
    let (verb, plural, namespace) = (request.verb, &request.plural, &request.namespace);
    match (error.class(), error.code()) {
        (ErrorClass::Invalid, _) => {
            let (kind, name) = (&request.kind, &request.name);
            (RowResult::Refused, format!("its {kind} {name} is refused: {}", error.refusal()))
        }
        (_, Some(401)) => (RowResult::Failed, format!("{error}; log in again")),
        (_, Some(403)) => {
            let group = if request.group.is_empty() { String::new() } else { format!(".{}", request.group) };
            let check = format!("kubectl auth can-i {verb} {plural}{group} -n {namespace}");
            (RowResult::Failed, format!("{error}; check `{check}`, quotas and admission webhooks"))
        }
        _ => (RowResult::Failed, error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kube::Client;
    use kubesvc_core::account_row::ForeignRow;
    use kubesvc_core::row_adoption::adopt;
    use parking_lot::Mutex;
    use serde_json::json;

    use super::*;

    /// What the API server answers when the account is created: a status, or nothing.
    type Answer = Option<(u16, &'static str)>;

    fn adoption(name: &str) -> Adoption {
        let row = ForeignRow {
            name: name.to_owned(),
            status: "ACTIVE".to_owned(),
            zone_id: None,
            definition: Some(
                json!({"kubeconfigContents": "apiVersion: v1\nkind: Config\ncurrent-context: x\n\
                    clusters: [{name: c, cluster: {server: 'https://c.example'}}]\nusers: [{name: u, user: {token: t}}]\n\
                    contexts: [{name: x, context: {cluster: c, user: u}}]\n"})
                .to_string(),
            ),
            props: None,
            is_dynamic: Some(true),
        };
        adopt(&row, "spin").expect("it is an account")
    }

    /// A creator at an API server that has nothing, and the writes that it received. Secrets are created.
    fn creator(
        answer: impl Fn(&str) -> Answer + Clone + Send + 'static,
    ) -> (AccountCreator, Arc<Mutex<Vec<String>>>) {
        let log = Arc::new(Mutex::new(Vec::new()));
        let writes = Arc::clone(&log);
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let (answer, writes) = (answer.clone(), Arc::clone(&writes));
            async move {
                let (parts, body) = request.into_parts();
                let path = parts.uri.path().to_owned();
                let body = body.collect_bytes().await.unwrap_or_default();
                let sent: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
                let name = sent["metadata"]["name"].as_str().unwrap_or_default().to_owned();
                let last = path.rsplit('/').next().unwrap_or_default().to_owned();
                let absent = json!({"code": 404, "reason": "NotFound", "details": {"name": last}});
                if parts.method != http::Method::GET {
                    writes.lock().push(format!(
                        "{} {}",
                        parts.method,
                        if name.is_empty() { last } else { name.clone() }
                    ));
                }
                let (code, body) = match (parts.method.as_str(), path.ends_with("/kubesvcaccounts")) {
                    ("GET", _) => (404, absent),
                    ("POST", true) => match answer(&name) {
                        None => return Err("the connection broke".into()),
                        Some((201, _)) => (201, sent),
                        Some((code, reason)) => (
                            code,
                            json!({"code": code, "reason": reason, "message": "quotes s3cret", "status": "Failure"}),
                        ),
                    },
                    _ => {
                        let mut stored = sent;
                        stored["metadata"]["uid"] = json!("s");
                        stored["metadata"]["resourceVersion"] = json!("1");
                        (200, stored)
                    }
                };
                let body = kube::client::Body::from(body.to_string().into_bytes());
                let answer = http::Response::builder().status(code).body(body);
                answer.map_err(|error| Box::<dyn std::error::Error + Send + Sync>::from(error.to_string()))
            }
        });
        let client = Client::new(service, "spin");
        let kube = KubeAccess::new(client, PLUGIN_FIELD_MANAGER);
        (AccountCreator { namespace: "spin".to_owned(), kube, dry_run: false, stopped: OnceLock::new() }, log)
    }

    #[tokio::test]
    async fn refusal_of_one_account_is_reported_and_the_next_are_created() {
        let (creator, writes) = creator(|name| {
            Some(match name {
                "forbidden" => (403, "Forbidden"),
                "invalid" => (422, "Invalid"),
                _ => (201, ""),
            })
        });
        for (name, expected, part) in [
            ("forbidden", RowResult::Failed, "kubectl auth can-i create kubesvcaccounts.kubesvc.io -n spin"),
            ("invalid", RowResult::Refused, "its KubesvcAccount invalid is refused: 422 Invalid"),
            ("good", RowResult::Created, ""),
        ] {
            let (result, why) = creator.create(&adoption(name)).await;
            assert!(result == expected && why.contains(part) && !why.contains("s3cret"), "{name}: {why}");
        }
        let expected = [
            "POST forbidden-kubeconfig",
            "POST forbidden",
            "DELETE forbidden-kubeconfig",
            "POST invalid-kubeconfig",
            "POST invalid",
            "DELETE invalid-kubeconfig",
            "POST good-kubeconfig",
            "POST good",
        ];
        assert_eq!(*writes.lock(), expected, "the Secret of an account that was refused is taken back");
    }

    #[tokio::test]
    async fn secret_stays_if_the_account_may_exist_and_the_next_accounts_are_not_tried() {
        for answer in [None, Some((429, "TooManyRequests")), Some((500, "InternalError"))] {
            let (creator, writes) = creator(move |_| answer);
            let (result, why) = creator.create(&adoption("one")).await;
            assert!(
                result == RowResult::Failed && why.contains("cannot create KubesvcAccount spin/one"),
                "{why}"
            );
            assert_eq!(creator.create(&adoption("two")).await, (RowResult::Failed, NOT_TRIED.to_owned()));
            assert_eq!(*writes.lock(), ["POST one-kubeconfig", "POST one"], "{answer:?}");
        }
    }
}
