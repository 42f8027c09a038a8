//! The accounts of the agent's own file.

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};

use crate::account::policy::AccountPolicy;
use crate::account::secret_reference::{self, Reference};
use crate::config::error::{ConfigError, ConfigProblem, Origin};
use crate::config::layer::{EffectiveSetting, SettingList, Values};
use crate::config::setting_type::SettingValue;
use crate::config::yaml::shown;
use crate::config::{CustomResourceDefinition, RolePermissions};

/// The only engine of secret references that the agent has.
const FILE_ENGINE: &str = "file";
const ACCOUNTS_KEY: &str = "kubernetes.accounts";
/// Maximum number of accounts in a file.
const MAX_ACCOUNTS: usize = 1000;
/// Maximum length of a kubeconfig path, in bytes; the same as in the account's object.
const MAX_PATH_BYTES: usize = 1024;

/// One account of `kubernetes.accounts`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccountSettings {
    /// Its name in Spinnaker: 1 to 255 characters, no control characters.
    pub name: String,
    /// How to reach the cluster.
    pub source: AccountSource,
    /// The context of the kubeconfig; `None`: its current context.
    pub context: Option<String>,
    /// Whether the certificate of the API server is not verified.
    pub insecure: bool,
    /// The roles that may see and change the account.
    pub permissions: RolePermissions,
    /// The only kinds that are cached; empty: the default kinds.
    pub kinds: Vec<String>,
    /// Kinds that are not cached.
    pub omit_kinds: Vec<String>,
    /// The only namespaces that are watched; empty: all.
    pub namespaces: Vec<String>,
    /// Namespaces that are not watched.
    pub omit_namespaces: Vec<String>,
    /// Whether cluster-wide resources are ignored.
    pub only_namespaced_resources: bool,
    /// Custom resources that the account exposes.
    pub custom_resource_definitions: Vec<CustomResourceDefinition>,
    /// Whether only objects deployed by Spinnaker are cached.
    pub only_spinnaker_managed: bool,
    /// Whether pod metrics are sent.
    pub metrics: bool,
    /// Maximum age at which a watch is resumed, in milliseconds; `None` or 0: the hub's default.
    pub max_resumable_resource_age_ms: Option<u64>,
    /// Whether to bypass the proxy that the environment sets.
    pub no_proxy: bool,
    /// Limits of this account that differ from the agent's.
    pub policy: AccountPolicy,
}

/// How to reach the cluster of an account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AccountSource {
    /// With a kubeconfig file on the agent; absolute once the settings are loaded.
    File(PathBuf),
    /// With the agent's own service account.
    ServiceAccount,
}

/// Reads the list. Every invalid entry is reported as its own problem.
pub(super) fn build(v: &Values) -> Result<Vec<AccountSettings>, ConfigError> {
    let Some(listed) = v.listed(ACCOUNTS_KEY) else { return Ok(Vec::new()) };
    if listed.len > MAX_ACCOUNTS {
        let place = listed.places.values().next().cloned().unwrap_or(Origin::Default);
        let why = format!(
            "lists {} accounts, and an agent takes {MAX_ACCOUNTS} at most; add another agent",
            listed.len
        );
        return Err(ConfigProblem::Rule { place, key: ACCOUNTS_KEY.to_owned(), why }.into());
    }
    let (mut accounts, mut problems) = (Vec::new(), Vec::new());
    let mut names: HashMap<String, Origin> = HashMap::new();
    for place in 0..listed.len {
        let entry = AccountEntry { values: v, listed, place };
        match entry.account() {
            Ok(account) => {
                let origin = entry.origin("name");
                if let Some(first) = names.get(&account.name) {
                    let name = shown(&account.name);
                    let why = format!("is \"{name}\", which is already the name of the account at {first}");
                    problems.push(entry.rule("name", why));
                } else {
                    names.insert(account.name.clone(), origin);
                    accounts.push(account);
                }
            }
            Err(problem) => problems.push(*problem),
        }
    }
    if problems.is_empty() { Ok(accounts) } else { Err(ConfigError { problems }) }
}

/// Makes paths absolute. Relative paths start at the folder of the settings.
pub(in crate::config) fn resolve(accounts: &mut [AccountSettings], dir: &Path) -> Result<(), ConfigProblem> {
    let unreadable =
        |path: &Path, why: String| ConfigProblem::Unreadable { file: path.display().to_string().into(), why };
    let mut folder = None;
    for account in accounts {
        let AccountSource::File(path) = &mut account.source else { continue };
        if path.is_relative() {
            if folder.is_none() {
                folder = Some(plain(dir).map_err(|error| unreadable(dir, error.to_string()))?);
            }
            let below = path.components().filter(|part| *part != Component::CurDir);
            *path = folder.iter().flat_map(|folder| folder.components()).chain(below).collect();
        }
        if path.as_os_str().len() > MAX_PATH_BYTES {
            return Err(unreadable(path, format!("the path is longer than {MAX_PATH_BYTES} bytes")));
        }
        if path.to_str().is_none_or(|path| path.contains(char::is_control)) {
            return Err(unreadable(path, "the path holds what is no text".to_owned()));
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

/// One entry of the list.
struct AccountEntry<'v> {
    values: &'v Values,
    listed: &'v SettingList,
    place: usize,
}

type Wrong = Box<ConfigProblem>;

impl AccountEntry<'_> {
    fn account(&self) -> Result<AccountSettings, Wrong> {
        let Some(name) = self.text("name") else {
            return Err(Box::new(self.rule("name", "is missing; every account needs a name".to_owned())));
        };
        let account = AccountSettings {
            name,
            source: self.source()?,
            context: self.text("context"),
            insecure: self.flag("insecure"),
            permissions: match self.value("permissions") {
                Some(SettingValue::Permissions(permissions)) => permissions.clone(),
                _ => RolePermissions::default(),
            },
            kinds: self.list("kinds"),
            omit_kinds: self.list("omitKinds"),
            namespaces: self.list("namespaces"),
            omit_namespaces: self.list("omitNamespaces"),
            only_namespaced_resources: self.flag("onlyNamespacedResources"),
            custom_resource_definitions: match self.value("customResourceDefinitions") {
                Some(SettingValue::CustomResourceDefinitions(definitions)) => definitions.clone(),
                _ => Vec::new(),
            },
            only_spinnaker_managed: self.flag("onlySpinnakerManaged"),
            metrics: self.flag("metrics"),
            max_resumable_resource_age_ms: match self.value("maxResumableResourceAgeMs") {
                Some(SettingValue::Int(ms)) => u64::try_from(*ms).ok(),
                _ => None,
            },
            no_proxy: self.flag("noProxy"),
            policy: AccountPolicy {
                servers: self.value("policy.servers").map(|_| {
                    // Each entry was validated when it was read.
                    self.list("policy.servers").iter().filter_map(|entry| entry.parse().ok()).collect()
                }),
                insecure: self.optional_flag("policy.insecure"),
                service_account: self.optional_flag("policy.serviceAccount"),
                files: self.optional_flag("policy.files"),
            },
        };
        self.check_rules(&account)?;
        Ok(account)
    }

    fn source(&self) -> Result<AccountSource, Wrong> {
        match (self.text("kubeconfigFile"), self.flag("serviceAccount")) {
            (Some(_), true) => {
                let why = "is true although kubeconfigFile is set; keep one of the two".to_owned();
                Err(Box::new(self.rule("serviceAccount", why)))
            }
            (None, true) => Ok(AccountSource::ServiceAccount),
            (Some(path), false) => {
                let path = PathBuf::from(self.referred(path)?);
                if path.components().any(|part| part == Component::ParentDir) {
                    let why = "holds `..`; write a path below the folder of the settings, or an absolute one";
                    return Err(Box::new(self.rule("kubeconfigFile", why.to_owned())));
                }
                Ok(AccountSource::File(path))
            }
            (None, false) => {
                let why = "is missing; give the path of a kubeconfig, or serviceAccount: true".to_owned();
                Err(Box::new(self.rule("kubeconfigFile", why)))
            }
        }
    }

    /// Resolves a secret reference to the file that it names. Returns other text unchanged.
    fn referred(&self, text: String) -> Result<String, Wrong> {
        if !secret_reference::is_reference(&text) {
            return Ok(text);
        }
        let refuse = |why: String| Err(Box::new(self.rule("kubeconfigFile", why)));
        let reference = match Reference::parse(&text) {
            Ok(reference) => reference,
            Err(error) => return refuse(format!("is a secret reference that is written wrong: {error}")),
        };
        if reference.engine() != FILE_ENGINE {
            return refuse(format!(
                "is a secret reference of the engine {:?}, which is not there on the agent; there is {FILE_ENGINE}: mount the secret \
                 and give its path",
                reference.engine()
            ));
        }
        if let Err(error) = reference.check_parameters() {
            return refuse(format!("is a secret reference that is written wrong: {error}"));
        }
        match reference.get("p").filter(|path| path.starts_with('/')) {
            Some(path) => Ok(path.to_owned()),
            None => refuse("is a secret reference whose p is no absolute path".to_owned()),
        }
    }

    /// Checks the rules for which the API server would reject the account's object.
    fn check_rules(&self, account: &AccountSettings) -> Result<(), Wrong> {
        for (key, excluded, both) in [
            ("omitKinds", "kinds", !account.kinds.is_empty() && !account.omit_kinds.is_empty()),
            (
                "omitNamespaces",
                "namespaces",
                !account.namespaces.is_empty() && !account.omit_namespaces.is_empty(),
            ),
        ] {
            if both {
                let why = format!("is set although {excluded} is; keep one of the two");
                return Err(Box::new(self.rule(key, why)));
            }
        }
        if account.only_namespaced_resources && account.namespaces.is_empty() {
            let why = "is true, which needs namespaces".to_owned();
            return Err(Box::new(self.rule("onlyNamespacedResources", why)));
        }
        Ok(())
    }

    fn rule(&self, key: &str, why: String) -> ConfigProblem {
        ConfigProblem::Rule {
            place: self.origin(key),
            key: format!("{ACCOUNTS_KEY}[{}].{key}", self.place),
            why,
        }
    }

    /// The position of a key of this entry; if missing, of the entry itself; if missing, of any entry of the list.
    fn origin(&self, key: &str) -> Origin {
        let entry = self.listed.places.get(&self.place).or_else(|| self.listed.places.values().next());
        self.slot(key).map(|slot| slot.origin.clone()).or_else(|| entry.cloned()).unwrap_or(Origin::Default)
    }

    fn slot(&self, key: &str) -> Option<&EffectiveSetting> {
        self.values.of_listed(ACCOUNTS_KEY, self.place, key)
    }

    fn value(&self, key: &str) -> Option<&SettingValue> {
        self.slot(key).map(|slot| &slot.value)
    }

    fn text(&self, key: &str) -> Option<String> {
        match self.value(key) {
            Some(SettingValue::Text(text)) => Some(text.clone()),
            _ => None,
        }
    }

    fn flag(&self, key: &str) -> bool {
        matches!(self.value(key), Some(SettingValue::Flag(true)))
    }

    fn optional_flag(&self, key: &str) -> Option<bool> {
        match self.value(key) {
            Some(SettingValue::Flag(flag)) => Some(*flag),
            _ => None,
        }
    }

    fn list(&self, key: &str) -> Vec<String> {
        match self.value(key) {
            Some(SettingValue::List(items)) => items.clone(),
            _ => Vec::new(),
        }
    }
}
