//! Converts Clouddriver's account fields to a spec and back.
//!
//! | direction | where |
//! |---|---|
//! | account → JSON | [`definition`], [`props`]: what Spinnaker and the row read |
//! | JSON → spec | [`AccountInput`]: a caller's input, and how it changes a spec |
//! | validation | [`validate`]: what the API server would refuse, checked in advance with the same messages |
//!
//! A definition that is read back yields the spec it came from, unless the kubeconfig is in a Secret: a definition
//! contains no credential.

mod fields;
mod input;
mod rules;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use serde_json::{Map, Value, json};

pub use fields::FieldError;
pub use input::{AccountInput, AgentSource, ClusterSource, Ignored};
pub use rules::{is_account_name, validate};

use super::KubesvcAccount;
use super::secret_reference;
use super::spec::KubeconfigSource;

/// The account as Clouddriver's account management defines it, without credentials.
pub fn definition(account: &KubesvcAccount) -> Value {
    let spec = &account.spec;
    let mut fields = Map::new();
    fields.insert("type".to_owned(), json!("kubernetes"));
    fields.insert("name".to_owned(), json!(account.account_name()));
    put_source(&mut fields, &spec.kubeconfig);
    put(&mut fields, "context", spec.context.as_ref());
    put(&mut fields, "environment", spec.environment.as_ref());
    put(&mut fields, "accountType", spec.account_type.as_ref());
    put(&mut fields, "insecure", spec.insecure.as_ref());
    put(&mut fields, "onlyNamespacedResources", spec.only_namespaced_resources.as_ref());
    put(&mut fields, "onlySpinnakerManaged", spec.only_spinnaker_managed.as_ref());
    put(&mut fields, "metrics", spec.metrics.as_ref());
    put(&mut fields, "noProxy", spec.no_proxy.as_ref());
    put(&mut fields, "maxResumableResourceAgeMs", spec.max_resumable_resource_age_ms.as_ref());
    put_list(&mut fields, "namespaces", &spec.namespaces);
    put_list(&mut fields, "omitNamespaces", &spec.omit_namespaces);
    put_list(&mut fields, "kinds", &spec.kinds);
    put_list(&mut fields, "omitKinds", &spec.omit_kinds);
    put_list(&mut fields, "customResourceDefinitions", &spec.custom_resource_definitions);
    put_list(&mut fields, "customResources", &spec.custom_resources);
    if !spec.permissions.is_empty() {
        fields.insert("permissions".to_owned(), json!(spec.permissions));
    }
    Value::Object(fields)
}

/// Content of the vendor's column `props`.
pub fn props(account: &KubesvcAccount) -> Value {
    json!({ "permissions": account.spec.permissions })
}

/// The path or reference of a kubeconfig, if it has one that may be shown.
pub fn kubeconfig_file(source: &KubeconfigSource) -> Option<Cow<'_, str>> {
    let path = source.file.as_deref().map(Cow::Borrowed);
    path.or_else(|| secret_reference::shown(source.reference.as_deref()?))
}

fn put_source(fields: &mut Map<String, Value>, source: &KubeconfigSource) {
    put(fields, "kubeconfigFile", kubeconfig_file(source).as_ref());
    if source.service_account == Some(true) {
        fields.insert("serviceAccount".to_owned(), json!(true));
    }
}

fn put<T: serde::Serialize>(fields: &mut Map<String, Value>, key: &str, value: Option<&T>) {
    if let Some(value) = value {
        fields.insert(key.to_owned(), json!(value));
    }
}

fn put_list<T: serde::Serialize>(fields: &mut Map<String, Value>, key: &str, list: &[T]) {
    if !list.is_empty() {
        fields.insert(key.to_owned(), json!(list));
    }
}
