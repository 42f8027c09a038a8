//! The accounts of the agent's own file: `kubernetes.accounts`.

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};

use super::account_types::{CUSTOM_RESOURCE_DEFINITIONS, CustomKind, PERMISSIONS, RolePermissions};
use super::{DAY_MS, NO_PROXY, unreadable};
use kubesvc_core::agent_policy::AccountPolicy;
use kubesvc_core::secret_reference::{self, Reference};
use kubesvc_core::wire::common::AccountRef;
use kubesvc_core::wire::ops::account_spec::Credential;
use kubesvc_core::wire::ops::{AccountSpec, CustomResourceDefinition};
use kubesvc_runtime::config::{
    ConfigError, ConfigProblem, FLAG, Origin, SERVERS, SettingType, TEXTS, Values, key, millis, parsed, shown,
};
use kubesvc_runtime::settings;

/// Prefix of a reference whose engine the agent does not have, without its parameters.
const ENCRYPTED: &str = "encrypted:";
/// The only engine of secret references that the agent has.
const FILE_ENGINE: &str = "file";
const ACCOUNTS_KEY: &str = "kubernetes.accounts";
/// Maximum number of accounts in a file.
pub(super) const MAX_ACCOUNTS: usize = 1000;
/// Maximum length of a kubeconfig path, in bytes; the same as in the account's object.
const MAX_PATH_BYTES: usize = 1024;
const NO_METRICS: &str = "metrics of pods are not sent";
const OPTIONAL: SettingType = SettingType::Optional(1024);
const NAMES: SettingType = SettingType::List(TEXTS);

settings! {
    /// One account as the file has it.
    pub(super) struct AccountKeys {
        /// name of an account; each needs one of its own
        name: Option<String> = key("name", SettingType::Text(255), "");
        /// context of its kubeconfig; none: the current one
        context: Option<String> = key("context", OPTIONAL, "");
        /// its kubeconfig; a relative path counts from the folder of this file
        kubeconfig_file: Option<String> = key("kubeconfigFile", OPTIONAL, "");
        /// take any certificate of its API server
        insecure: bool = key("insecure", FLAG, "false");
        /// the cluster in which the agent runs
        service_account: bool = key("serviceAccount", FLAG, "false");
        /// roles that may read and write
        permissions: Option<RolePermissions> = key("permissions", PERMISSIONS, "");
        /// custom kinds
        custom_kinds: Vec<CustomKind> = key("customResourceDefinitions", CUSTOM_RESOURCE_DEFINITIONS, "");
        /// the only kinds cached
        kinds: Vec<String> = key("kinds", NAMES, "");
        /// kinds not cached
        omit_kinds: Vec<String> = key("omitKinds", NAMES, "");
        /// the only namespaces watched
        namespaces: Vec<String> = key("namespaces", NAMES, "");
        /// namespaces not watched
        omit_namespaces: Vec<String> = key("omitNamespaces", NAMES, "");
        /// nothing without namespace
        only_namespaced_resources: bool = key("onlyNamespacedResources", FLAG, "false");
        /// only what Spinnaker deployed
        only_spinnaker_managed: bool = key("onlySpinnakerManaged", FLAG, "false");
        /// send metrics of pods
        metrics: bool = key("metrics", FLAG, "false").idle(NO_METRICS);
        /// age up to which a watch is resumed; 0: the hub's default
        max_resumable_resource_age_ms: Option<u64> = key("maxResumableResourceAgeMs", millis(0, DAY_MS), "");
        /// past the proxy of the environment
        no_proxy: bool = key("noProxy", FLAG, "false").idle(NO_PROXY);
        /// kubernetes.policy.servers for this one
        policy_servers: Option<Vec<String>> = key("policy.servers", SettingType::OptionalList(SERVERS), "");
        /// kubernetes.policy.insecure for this one
        policy_insecure: Option<bool> = key("policy.insecure", FLAG, "");
        /// kubernetes.policy.serviceAccount for this one
        policy_service_account: Option<bool> = key("policy.serviceAccount", FLAG, "");
        /// kubernetes.policy.files for this one
        policy_files: Option<bool> = key("policy.files", FLAG, "");
    }
}

/// One account of `kubernetes.accounts`.
#[derive(Debug, Clone, PartialEq)]
pub struct AccountSettings {
    /// The definition as it is sent to the hub, with a name and without a uid. The path of a kubeconfig is absolute once
    /// the settings are loaded.
    pub spec: AccountSpec,
    /// Limits of this account that differ from the agent's.
    pub policy: AccountPolicy,
}

impl AccountSettings {
    /// Its name in Spinnaker: 1 to 255 characters, no control characters.
    pub fn name(&self) -> &str {
        self.spec.account.as_ref().map_or("", |account| &account.name)
    }
}

/// A key of an account and what is wrong with it.
type Fault = (&'static str, String);

/// Converts the accounts. Every invalid entry is reported as its own problem.
pub(super) fn accounts(keys: Vec<AccountKeys>, values: &Values) -> Result<Vec<AccountSettings>, ConfigError> {
    if let Some(listed) = values.listed(ACCOUNTS_KEY).filter(|listed| listed.len > MAX_ACCOUNTS) {
        let origin = listed.places.values().next().cloned().unwrap_or(Origin::Default);
        let why = format!(
            "lists {} accounts, and an agent takes {MAX_ACCOUNTS} at most; add another agent",
            listed.len
        );
        return Err(ConfigProblem::Rule { origin, key: ACCOUNTS_KEY.to_owned(), why }.into());
    }
    let (mut accounts, mut problems) = (Vec::new(), Vec::new());
    let mut names: HashMap<String, Origin> = HashMap::new();
    for (index, keys) in keys.into_iter().enumerate() {
        let full_key = |key: &str| format!("{ACCOUNTS_KEY}[{index}].{key}");
        let account = account(keys, values).and_then(|account| match names.get(account.name()) {
            None => Ok(account),
            Some(first) => {
                let name = shown(account.name());
                Err(("name", format!("is \"{name}\", which is already the name of the account at {first}")))
            }
        });
        match account {
            Ok(account) => {
                names.insert(account.name().to_owned(), values.origin(&full_key("name")));
                accounts.push(account);
            }
            Err((key, why)) => problems.push(values.rule(&full_key(key), why)),
        }
    }
    if problems.is_empty() { Ok(accounts) } else { Err(ConfigError { problems }) }
}

fn account(mut keys: AccountKeys, values: &Values) -> Result<AccountSettings, Fault> {
    let Some(name) = keys.name.take() else {
        return Err(("name", "is missing; every account needs a name".to_owned()));
    };
    let credential = credential(keys.kubeconfig_file.take(), keys.service_account)?;
    check_rules(&keys)?;
    let permissions = keys.permissions.unwrap_or_default();
    let definitions = keys.custom_kinds.into_iter().map(|CustomKind { kind, scope }| {
        CustomResourceDefinition { kind, cluster_scoped: scope == kubesvc_core::spec::Scope::Cluster }
    });
    let spec = AccountSpec {
        account: Some(AccountRef { name, ..AccountRef::default() }),
        credential: Some(credential),
        context: keys.context.unwrap_or_default(),
        insecure: keys.insecure,
        namespaces: keys.namespaces,
        omit_namespaces: keys.omit_namespaces,
        kinds: keys.kinds,
        omit_kinds: keys.omit_kinds,
        only_namespaced_resources: keys.only_namespaced_resources,
        custom_resource_definitions: definitions.collect(),
        only_spinnaker_managed: keys.only_spinnaker_managed,
        metrics: keys.metrics,
        no_proxy: keys.no_proxy,
        max_resumable_resource_age_ms: keys.max_resumable_resource_age_ms.unwrap_or_default(),
        read_roles: permissions.read,
        write_roles: permissions.write,
    };
    let policy = AccountPolicy {
        servers: keys.policy_servers.and_then(|servers| parsed(servers, values).ok()),
        insecure: keys.policy_insecure,
        service_account: keys.policy_service_account,
        files: keys.policy_files,
    };
    Ok(AccountSettings { spec, policy })
}

fn credential(file: Option<String>, service_account: bool) -> Result<Credential, Fault> {
    match (file, service_account) {
        (Some(_), true) => {
            Err(("serviceAccount", "is true although kubeconfigFile is set; keep one of the two".to_owned()))
        }
        (None, true) => Ok(Credential::ServiceAccount(true)),
        (Some(path), false) => {
            let refuse = |why: String| ("kubeconfigFile", why);
            let path = referred(path).map_err(refuse)?;
            if Path::new(&path).components().any(|part| part == Component::ParentDir) {
                let why = "holds `..`; write a path below the folder of the settings, or an absolute one";
                return Err(refuse(why.to_owned()));
            }
            Ok(Credential::File(path))
        }
        (None, false) => {
            let why = "is missing; give the path of a kubeconfig, or serviceAccount: true";
            Err(("kubeconfigFile", why.to_owned()))
        }
    }
}

/// Resolves a secret reference to the file that it names. Returns other text unchanged.
fn referred(text: String) -> Result<String, String> {
    if !secret_reference::is_reference(&text) {
        return Ok(text);
    }
    let malformed =
        |error: &dyn std::fmt::Display| format!("is a secret reference that is written wrong: {error}");
    let reference = Reference::parse(&text).map_err(|error| malformed(&error))?;
    if reference.engine() != FILE_ENGINE {
        // The account fails when it is activated, and the others of the file run. The parameters may be a secret.
        return Ok(format!("{ENCRYPTED}{}", reference.engine()));
    }
    reference.check_parameters().map_err(|error| malformed(&error))?;
    match reference.get("p").filter(|path| path.starts_with('/')) {
        Some(path) => Ok(path.to_owned()),
        None => Err("is a secret reference whose p is no absolute path".to_owned()),
    }
}

/// Checks the rules for which the API server would reject the account's object.
fn check_rules(keys: &AccountKeys) -> Result<(), Fault> {
    for (key, excluded, both) in [
        ("omitKinds", "kinds", !keys.kinds.is_empty() && !keys.omit_kinds.is_empty()),
        ("omitNamespaces", "namespaces", !keys.namespaces.is_empty() && !keys.omit_namespaces.is_empty()),
    ] {
        if both {
            return Err((key, format!("is set although {excluded} is; keep one of the two")));
        }
    }
    if keys.only_namespaced_resources && keys.namespaces.is_empty() {
        return Err(("onlyNamespacedResources", "is true, which needs namespaces".to_owned()));
    }
    Ok(())
}

/// Makes the paths of kubeconfigs absolute. Relative paths start at the folder of the settings.
pub(super) fn resolve_paths(accounts: &mut [AccountSettings], dir: &Path) -> Result<(), ConfigProblem> {
    let mut folder = None;
    for account in accounts {
        let Some(Credential::File(text)) = &mut account.spec.credential else { continue };
        if secret_reference::is_reference(text) {
            continue;
        }
        let mut path = PathBuf::from(&*text);
        if path.is_relative() {
            if folder.is_none() {
                folder = Some(plain(dir).map_err(|error| unreadable(dir, error.to_string()))?);
            }
            let below = path.components().filter(|part| *part != Component::CurDir);
            path = folder.iter().flat_map(|folder| folder.components()).chain(below).collect();
        }
        if path.as_os_str().len() > MAX_PATH_BYTES {
            return Err(unreadable(&path, format!("the path is longer than {MAX_PATH_BYTES} bytes")));
        }
        match path.to_str().filter(|path| !path.contains(char::is_control)) {
            Some(path) => path.clone_into(text),
            None => return Err(unreadable(&path, "the path holds what is no text".to_owned())),
        }
    }
    Ok(())
}

/// A folder's absolute path without `..`. Links are kept unless the path contains `..`.
fn plain(dir: &Path) -> std::io::Result<PathBuf> {
    let absolute = std::path::absolute(dir)?;
    if absolute.components().any(|part| part == Component::ParentDir) {
        return std::fs::canonicalize(dir);
    }
    Ok(absolute)
}
