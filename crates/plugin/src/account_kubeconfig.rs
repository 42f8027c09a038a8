//! Kubeconfigs for the APIs of accounts: the server is the API of an account, everything else is the caller's.

use kube::config::{AuthInfo, Cluster};
use kubesvc_runtime::terminal::OutputError;
use serde_json::{Value, json};

use crate::account_api::AccountPaths;
use crate::resources::AccountObject;

/// How the APIs of accounts are reached, and as whom.
#[derive(Clone, Debug)]
pub(super) struct Door {
    /// Cluster entry; its server is the one that serves the APIs of accounts.
    pub(super) cluster: Cluster,
    pub(super) user_name: String,
    pub(super) user: AuthInfo,
}

/// An account, and the name of its entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NamedAccount {
    /// Name of its context and of its cluster entry.
    pub(super) entry: String,
    /// The account.
    pub(super) key: AccountPaths,
}

/// Names the entries of accounts: as their objects, with the namespace before it where several have the same name.
pub(super) fn named(accounts: &[AccountObject], prefix: &str) -> Vec<NamedAccount> {
    let keys: Vec<_> = accounts.iter().map(AccountPaths::of).collect();
    let entry = |key: &AccountPaths| {
        let is_unique = keys.iter().filter(|other| other.name == key.name).count() == 1;
        if is_unique {
            format!("{prefix}{}", key.name)
        } else {
            format!("{prefix}{}/{}", key.namespace, key.name)
        }
    };
    keys.iter().map(|key| NamedAccount { entry: entry(key), key: key.clone() }).collect()
}

impl Door {
    /// URL of an account's API.
    pub(super) fn server(&self, account: &AccountPaths) -> String {
        let server = self.cluster.server.as_deref().unwrap_or_default();
        format!("{}{}", server.trim_end_matches('/'), account.proxy_path())
    }

    /// The entry of an account under `clusters`.
    fn cluster_entry(&self, account: &NamedAccount) -> Result<Value, OutputError> {
        let cluster = Cluster { server: Some(self.server(&account.key)), ..self.cluster.clone() };
        Ok(json!({"name": account.entry, "cluster": value(&cluster)?}))
    }

    /// The entry of an account under `contexts`.
    fn context_entry(&self, account: &NamedAccount) -> Value {
        json!({"name": account.entry, "context": {"cluster": account.entry, "user": self.user_name}})
    }

    /// The entry under `users`.
    pub(super) fn user_entry(&self) -> Result<Value, OutputError> {
        Ok(json!({"name": self.user_name, "user": value(&self.user)?}))
    }

    /// A kubeconfig with a context for each account. If there is one account, its context is the current one.
    pub(super) fn kubeconfig(&self, accounts: &[NamedAccount]) -> Result<Value, OutputError> {
        let clusters: Result<Vec<_>, _> = accounts.iter().map(|one| self.cluster_entry(one)).collect();
        let contexts: Vec<_> = accounts.iter().map(|one| self.context_entry(one)).collect();
        let current = if let [only] = accounts { only.entry.as_str() } else { "" };
        Ok(json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": clusters?,
            "contexts": contexts,
            "current-context": current,
            "users": [self.user_entry()?],
        }))
    }
}

fn value(entry: &impl serde::Serialize) -> Result<Value, OutputError> {
    let mut value = serde_json::to_value(entry).map_err(OutputError::Json)?;
    // What is written where nothing was set.
    if let Some(exec) = value.get_mut("exec").and_then(Value::as_object_mut)
        && exec.get("provideClusterInfo") == Some(&Value::Bool(false))
    {
        exec.remove("provideClusterInfo");
    }
    Ok(value)
}
