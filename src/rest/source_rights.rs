//! Rights that a body needs besides those on its account: for the kubeconfig that it brings, and for credentials that are read
//! with the rights of the operator or of an agent.

use super::callers::RestCaller;
use super::error::RestError;
use crate::access::{AccessResource, RequestedAccess};
use kubesvc_core::secret_reference::Reference;
use kubesvc_core::spinnaker::{AccountInput, AgentSource, ClusterSource};

/// Engines that read with the operator's own credential.
const OPERATOR_ENGINES: [&str; 6] =
    ["file", "vault", "s3", "gcs", "secrets-manager", "google-secrets-manager"];

/// The rights that the sources of a body need for an account object. It has no name before it is made.
fn needed(given: &AccountInput, namespace: &str, object: &str) -> Vec<RequestedAccess> {
    let right = |verb, resource, namespace: &str, object: &str| RequestedAccess {
        verb,
        resource,
        namespace: namespace.to_owned(),
        object: object.to_owned(),
    };
    let agents = match &given.agent_source {
        Some(AgentSource::Set(source)) => Some(source),
        _ => None,
    };
    let each = given.source.iter().chain(agents).filter_map(|source| match source {
        ClusterSource::Contents(_) => Some(right("create", AccessResource::Secrets, namespace, "")),
        ClusterSource::File(_) | ClusterSource::ServiceAccount => {
            Some(right("use", AccessResource::AccountSources, namespace, object))
        }
        ClusterSource::Reference(text) => {
            // A malformed one is refused elsewhere, with its own error.
            let reference = Reference::parse(text).ok()?;
            match reference.engine() {
                "k8s" => {
                    let of_secret = reference.get("ns").unwrap_or(namespace);
                    let name = reference.get("n").unwrap_or_default();
                    Some(right("get", AccessResource::Secrets, of_secret, name))
                }
                engine if OPERATOR_ENGINES.contains(&engine) => {
                    Some(right("use", AccessResource::AccountSources, namespace, object))
                }
                _ => None,
            }
        }
    });
    each.collect()
}

impl RestCaller {
    /// Refuses a body whose sources the caller may not use for accounts of a namespace.
    ///
    /// # Errors
    /// 403 with the verb and the resource, or 503.
    pub(super) async fn may_use(
        &self,
        given: &AccountInput,
        namespace: &str,
        object: &str,
    ) -> Result<(), RestError> {
        for access in needed(given, namespace, object) {
            self.require(&access).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn rights(body: Value) -> Vec<String> {
        let Value::Object(mut fields) = body else { unreachable!("an object") };
        fields.insert("name".to_owned(), "a".into());
        let given = AccountInput::read(fields).expect("an account");
        needed(&given, "ns", "a").iter().map(ToString::to_string).collect()
    }

    #[test]
    fn each_source_needs_its_right() {
        const SOURCES: &str =
            r#"use kubesvcaccounts/sources in API group "kubesvc.io" of object "a" in namespace "ns""#;
        for (body, right) in [
            (json!({"kubeconfigContents": "x"}), r#"create secrets in API group "" in namespace "ns""#),
            (json!({"kubeconfigFile": "/x"}), SOURCES),
            (json!({"serviceAccount": true}), SOURCES),
            (json!({"kubeconfigFile": "encryptedFile:file!p:/x"}), SOURCES),
            (json!({"kubeconfigFile": "secret://file?p=/x"}), SOURCES),
            (json!({"kubeconfigFile": "encryptedFile:s3!r:eu!b:b!f:f"}), SOURCES),
            (json!({"kubeconfigFile": "encryptedFile:gcs!b:b!f:f"}), SOURCES),
            (
                json!({"kubeconfigFile": "encryptedFile:k8s!n:prod!k:kubeconfig"}),
                r#"get secrets in API group "" of object "prod" in namespace "ns""#,
            ),
            (
                json!({"kubeconfigFile": "encryptedFile:k8s!n:prod!k:kubeconfig!ns:spin"}),
                r#"get secrets in API group "" of object "prod" in namespace "spin""#,
            ),
        ] {
            assert_eq!(rights(body.clone()), [right], "{body}");
        }
        assert!(rights(json!({"zoneId": "z"})).is_empty());
    }
}
