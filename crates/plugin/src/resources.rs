//! Reads accounts and agents: page by page, by name, by selector.

use std::collections::HashSet;

use kube::Api;
use kube::api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams};
use serde_json::Value;

use crate::api_session::{ACCOUNTS, AGENTS, ApiSession, ResourceRequest, did_you_mean, is_about_an_object};
use crate::arguments::{CommandError, Targets, complain_of};
use kubesvc_core::{KubesvcAccount, KubesvcAgent, PLUGIN_FIELD_MANAGER};

/// An account, typed and as the API server returned it.
#[derive(Clone, Debug)]
pub(super) struct AccountObject {
    /// The typed account.
    pub(super) account: KubesvcAccount,
    /// The account with every field, including those of a newer version. Without managedFields, like kubectl's
    /// output.
    pub(super) raw: Value,
}

impl AccountObject {
    pub(super) fn name(&self) -> &str {
        self.account.metadata.name.as_deref().unwrap_or_default()
    }

    pub(super) fn namespace(&self) -> &str {
        self.account.metadata.namespace.as_deref().unwrap_or_default()
    }

    fn read(mut object: DynamicObject) -> Result<Self, CommandError> {
        object.metadata.managed_fields = None;
        let resource = resource();
        object.types = Some(kube::core::TypeMeta { api_version: resource.api_version, kind: resource.kind });
        let name = object.metadata.name.clone().unwrap_or_default();
        let unreadable = |error: serde_json::Error| {
            CommandError::Failed(format!(
                "account {name} cannot be read: {error}; use the kubectl-kubesvc of the operator's version"
            ))
        };
        let raw = serde_json::to_value(object).map_err(unreadable)?;
        let account = serde_json::from_value(raw.clone()).map_err(unreadable)?;
        Ok(Self { account, raw })
    }
}

/// `kubesvcaccount.kubesvc.io/NAME`.
pub(super) fn resource_name(name: &str) -> String {
    format!("kubesvcaccount.kubesvc.io/{name}")
}

fn resource() -> ApiResource {
    ApiResource::erase::<KubesvcAccount>(&())
}

impl ApiSession {
    fn accounts(&self, namespace: Option<&str>) -> Api<DynamicObject> {
        match namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource()),
            None => Api::all_with(self.client.clone(), &resource()),
        }
    }

    /// Lists all accounts of the scope with these labels, by namespace and name.
    pub(super) async fn list_accounts(
        &self,
        selector: Option<&str>,
    ) -> Result<Vec<AccountObject>, CommandError> {
        let api = self.accounts(self.scope());
        let asked = ResourceRequest { verb: "list", resource: ACCOUNTS, namespace: self.scope() };
        let parameters = ListParams { label_selector: selector.map(str::to_owned), ..ListParams::default() };
        match self.pages(&api, parameters).await? {
            (_, Some(error)) => Err(self.failed(asked, &error)),
            (objects, None) => objects.into_iter().map(AccountObject::read).collect(),
        }
    }

    /// Returns the account with this object name.
    pub(super) async fn find_account(&self, name: &str) -> Result<Option<AccountObject>, CommandError> {
        let api = self.accounts(Some(&self.namespace));
        match self.try_ask(api.get(name)).await? {
            Ok(object) => AccountObject::read(object).map(Some),
            Err(kube::Error::Api(status)) if status.code == 404 && is_about_an_object(&status) => Ok(None),
            Err(error) => {
                let asked =
                    ResourceRequest { verb: "get", resource: ACCOUNTS, namespace: Some(&self.namespace) };
                Err(self.failed(asked, &error))
            }
        }
    }

    /// Finds accounts by object name or account name, in the order given, each once.
    ///
    /// Also returns one line for each name that was not found, with similar names, or that several accounts have.
    pub(super) async fn find_accounts(
        &self,
        names: &[String],
    ) -> Result<(Vec<AccountObject>, Vec<String>), CommandError> {
        let (mut found, mut missing) = (Vec::new(), Vec::new());
        let mut all = None;
        for name in names {
            let name = bare(name);
            // Names that are not valid for an object are not requested: they would form another path.
            let item = if is_object_name(name) { self.find_account(name).await? } else { None };
            if let Some(item) = item {
                found.push(item);
                continue;
            }
            let all = match &mut all {
                Some(all) => all,
                none => none.insert(self.list_accounts(None).await?),
            };
            let named: Vec<_> = all.iter().filter(|item| item.account.account_name() == name).collect();
            match *named.as_slice() {
                [item] => found.push(item.clone()),
                [] => missing.push(self.no_such_account(name, all)),
                _ => missing.push(ambiguous(name, &named)),
            }
        }
        let mut seen = HashSet::new();
        found.retain(|item: &AccountObject| {
            seen.insert((item.namespace().to_owned(), item.name().to_owned()))
        });
        Ok((found, missing))
    }

    /// Merge-patches an account with this program's field manager. Returns the written account. Fails for another account
    /// that was created under this name meanwhile.
    pub(super) async fn patch_account(
        &self,
        item: &AccountObject,
        mut patch: Value,
    ) -> Result<AccountObject, CommandError> {
        let api = self.accounts(Some(item.namespace()));
        let asked = ResourceRequest { verb: "patch", resource: ACCOUNTS, namespace: Some(item.namespace()) };
        let parameters =
            PatchParams { field_manager: Some(PLUGIN_FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        patch["metadata"]["uid"] = item.account.uid().into();
        let patch = Patch::Merge(patch);
        AccountObject::read(self.ask(asked, api.patch(item.name(), &parameters, &patch)).await?)
    }

    fn no_such_account(&self, name: &str, all: &[AccountObject]) -> String {
        let names = all.iter().flat_map(|item| [item.name(), item.account.account_name()]);
        let near = did_you_mean(name, names);
        let more = if near.is_empty() { "; see kubectl kubesvc list -A" } else { &near };
        format!("no account {name} in namespace {}{more}", self.namespace)
    }

    /// Returns one account by name, or an error if there is none.
    pub(super) async fn one_account(&self, name: &str) -> Result<AccountObject, CommandError> {
        let (mut found, mut missing) = self.find_accounts(&[name.to_owned()]).await?;
        found.pop().ok_or_else(|| CommandError::Failed(missing.pop().unwrap_or_default()))
    }

    /// Returns the accounts selected on the command line, and a line for each name that was not found.
    pub(super) async fn resolve(
        &self,
        targets: &Targets,
    ) -> Result<(Vec<AccountObject>, Vec<String>), CommandError> {
        if !targets.names.is_empty() {
            return self.find_accounts(&targets.names).await;
        }
        let found = self.list_accounts(targets.selector.as_deref()).await?;
        if found.is_empty() {
            let with =
                targets.selector.as_ref().map(|labels| format!(" with labels {labels}")).unwrap_or_default();
            return Err(CommandError::Failed(format!("no accounts{with} in {}", self.scope_name())));
        }
        Ok((found, Vec::new()))
    }

    /// Returns the accounts selected on the command line, or nothing if one of the names was not found.
    pub(super) async fn resolve_all(&self, targets: &Targets) -> Result<Vec<AccountObject>, CommandError> {
        let (found, missing) = self.resolve(targets).await?;
        complain_of(&missing).map(|()| found)
    }
}

fn ambiguous(name: &str, named: &[&AccountObject]) -> String {
    let objects: Vec<_> = named.iter().map(|item| format!("ksa/{}", item.name())).collect();
    format!(
        "several accounts are called {name} in Spinnaker; name the object of one: {}",
        objects.join(" or ")
    )
}

/// Strips the resource prefix that `-o name` prints.
pub(super) fn bare(name: &str) -> &str {
    let prefixes = [
        "kubesvcaccount.kubesvc.io/",
        "kubesvcaccounts.kubesvc.io/",
        "kubesvcaccount/",
        "kubesvcaccounts/",
        "ksa/",
    ];
    prefixes.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name)
}

fn is_object_name(name: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    (1..=253).contains(&name.len()) && name.bytes().all(legal) && !name.starts_with('.')
}

impl ApiSession {
    /// Lists all agents of a namespace, or of all namespaces if `None`; by namespace, zone and id.
    pub(super) async fn list_agents(
        &self,
        namespace: Option<&str>,
    ) -> Result<Vec<KubesvcAgent>, CommandError> {
        let asked = ResourceRequest { verb: "list", resource: AGENTS, namespace };
        match self.read_agents(namespace).await? {
            (agents, None) => Ok(agents),
            (_, Some(error)) => Err(self.failed(asked, &error)),
        }
    }

    async fn read_agents(
        &self,
        namespace: Option<&str>,
    ) -> Result<(Vec<KubesvcAgent>, Option<kube::Error>), CommandError> {
        let api: Api<KubesvcAgent> = match namespace {
            Some(namespace) => self.api(namespace),
            None => Api::all(self.client.clone()),
        };
        let (mut agents, ended) = self.pages(&api, ListParams::default()).await?;
        agents.sort_by(|a, b| order(a).cmp(&order(b)));
        Ok((agents, ended))
    }

    /// Lists the agents that may hold an account of this namespace: those in the same namespace, which is the
    /// operator's unless the operator watches several, else those of all namespaces. `None` if the user may not list
    /// them.
    pub(super) async fn agents_for(
        &self,
        namespace: &str,
    ) -> Result<Option<Vec<KubesvcAgent>>, CommandError> {
        let here = self.agents_if_allowed(Some(namespace)).await?;
        if here.as_ref().is_some_and(|agents| !agents.is_empty()) {
            return Ok(here);
        }
        let everywhere = self.agents_if_allowed(None).await?;
        Ok(everywhere.or(here))
    }

    async fn agents_if_allowed(
        &self,
        namespace: Option<&str>,
    ) -> Result<Option<Vec<KubesvcAgent>>, CommandError> {
        let asked = ResourceRequest { verb: "list", resource: AGENTS, namespace };
        match self.read_agents(namespace).await? {
            (agents, None) => Ok(Some(agents)),
            (_, Some(kube::Error::Api(status))) if status.code == 403 => Ok(None),
            (_, Some(error)) => Err(self.failed(asked, &error)),
        }
    }
}

fn order(agent: &KubesvcAgent) -> (Option<&str>, &str, &str) {
    (agent.metadata.namespace.as_deref(), agent.spec.zone_id.as_str(), agent.spec.agent_id.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_as_kubectl_prints_them_too() {
        for name in ["kubesvcaccount.kubesvc.io/prod", "ksa/prod", "kubesvcaccounts/prod", "prod"] {
            assert_eq!(bare(name), "prod");
        }
        assert_eq!(bare("a/b"), "a/b");
    }

    #[test]
    fn what_cannot_be_an_object_is_never_put_into_a_path() {
        for name in ["", "..", "../secrets", "a/b", "A", "a b", &"x".repeat(254)] {
            assert!(!is_object_name(name), "{name}");
        }
        assert!(is_object_name("prod-1.eu"));
    }
}
