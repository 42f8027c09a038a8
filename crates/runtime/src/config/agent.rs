//! The settings of `kubesvc-agent`.

mod keys;

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use super::RolePermissions;
use super::error::{ConfigError, ConfigProblem, Origin};
pub use super::logging::{LogFormat, LogLevel, LoggingSettings};
use super::setting_type::SettingValue;
use super::values::{EffectiveSetting, SettingList, Values};
use super::yaml::shown;
pub(crate) use keys::SPEC;
use kubesvc_core::agent_policy::{AccountPolicy, AgentPolicy};
use kubesvc_core::requests::access::AllowedClasses;
use kubesvc_core::requests::target::Class;
use kubesvc_core::secret_reference::{self, Reference};
use kubesvc_core::wire::common::AccountRef;
use kubesvc_core::wire::ops::AccountSpec;
use kubesvc_core::wire::ops::account_spec::Credential;
use kubesvc_core::wire::ops::{ApplySettings, RetrySettings, ServerSideApply};

/// Prefix of a reference whose engine the agent does not have, without its parameters.
const ENCRYPTED: &str = "encrypted:";
/// The only engine of secret references that the agent has.
const FILE_ENGINE: &str = "file";
const ACCOUNTS_KEY: &str = "kubernetes.accounts";
/// Maximum number of accounts in a file.
const MAX_ACCOUNTS: usize = 1000;
/// Maximum number of kinds with settings of their own.
const MAX_KINDS: usize = 1000;
/// Maximum length of a kubeconfig path, in bytes; the same as in the account's object.
const MAX_PATH_BYTES: usize = 1024;

/// Time limit for a ping's response if `clouddriver.keepAliveTimeOutSeconds` is 0; the same as gRPC's default.
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// Every setting of the agent that has an effect.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentSettings {
    /// The hub to dial.
    pub hub: HubConnectionSettings,
    /// The zone this agent serves; `None`: derived from the names of the deployment and its namespace.
    pub zone_id: Option<String>,
    /// The health server.
    pub server: HealthServerSettings,
    /// Port of the metrics server; `None`: metrics are not served.
    pub metrics_port: Option<u16>,
    /// How clusters are listed and watched.
    pub reading: ReadingSettings,
    /// Logging.
    pub logging: LoggingSettings,
    /// The accounts of `kubernetes.accounts`; at most 1,000, with unique names.
    pub accounts: Vec<AccountSettings>,
    /// Whether other accounts than those are accepted.
    pub dynamic_accounts: bool,
    /// Names, without a path, of the programs that kubeconfigs of `kubernetes.accounts` may run to log in.
    pub exec_commands: Vec<String>,
    /// Limits that apply to every account.
    pub policy: AgentPolicy,
    /// Requests of the hub to clusters.
    pub requests: RequestLimits,
    /// Absolute paths of the folders in which an account's kubeconfig file may be.
    pub kubeconfig_folders: Vec<PathBuf>,
}

/// What the owner sets for requests of the hub to clusters.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestLimits {
    /// Classes of requests that are made.
    pub allow: AllowedClasses,
    /// Time limit for a request; zero: none.
    pub timeout: Duration,
    /// For the hub: how objects are applied, and when requests are tried again.
    pub apply: ApplySettings,
    /// Whether answers of writes are kept until the hub has them.
    pub keeps_answers: bool,
}

/// The hub to dial.
#[derive(Debug, Clone, PartialEq)]
pub struct HubConnectionSettings {
    /// Host and port of the hub, or of a gRPC proxy in front of it.
    pub grpc: String,
    /// Whether to dial the hub without TLS.
    pub insecure: bool,
    /// Back-off between failed dials.
    pub backoff: BackoffSettings,
    /// Minimum delay before dialling again after a stream that the hub had accepted.
    pub reconnect: Duration,
    /// Interval of HTTP/2 pings; zero: none.
    pub ping_every: Duration,
    /// Time limit for the response to a ping; not zero.
    pub ping_timeout: Duration,
    /// Time without any frame after which the hub is dialled again; zero: never for this reason.
    pub idle_timeout: Duration,
}

/// Back-off between failed dials.
#[derive(Debug, Clone, PartialEq)]
pub struct BackoffSettings {
    /// Delay after the first failure.
    pub base: Duration,
    /// Factor by which each delay grows.
    pub multiplier: f64,
    /// Fraction by which a delay varies.
    pub jitter: f64,
    /// Maximum delay.
    pub max: Duration,
}

/// How clusters are listed and watched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadingSettings {
    /// Maximum number of lists at once; 0: no bound.
    pub lists: usize,
    /// Maximum number of lists at once of one account; 0: no bound.
    pub lists_per_account: usize,
    /// Accounts that begin to be read together; 0: all.
    pub group_size: usize,
    /// Delay between two such groups.
    pub group_delay: Duration,
}

/// The health server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthServerSettings {
    /// Address or host name to listen on; `*` for all.
    pub host: String,
    /// TCP port; 0: the system chooses a free one.
    pub port: u16,
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

pub(crate) fn build(v: &Values) -> Result<AgentSettings, ConfigError> {
    let accounts = accounts(v)?;
    Ok(AgentSettings {
        hub: hub(v)?,
        zone_id: v.optional("zoneId")?,
        server: HealthServerSettings { host: v.string("server.host")?, port: v.number("server.port")? },
        metrics_port: if v.boolean("prometheus.enabled")? {
            Some(v.number("prometheus.port")?)
        } else {
            None
        },
        reading: ReadingSettings {
            lists: v.number("tasks.totalBudget")?,
            lists_per_account: v.number("tasks.budgetPerAccount")?,
            group_size: v.number("kubernetes.cacheGroupSize")?,
            group_delay: v.millis("kubernetes.cacheGroupDelayMs")?,
        },
        logging: super::logging::build(v)?,
        accounts,
        dynamic_accounts: dynamic_accounts(v)?,
        exec_commands: v.list("kubernetes.execCommands")?,
        policy: policy(v)?,
        requests: requests(v)?,
        kubeconfig_folders: v.paths("kubernetes.kubeconfigFolders")?,
    })
}

fn hub(v: &Values) -> Result<HubConnectionSettings, ConfigProblem> {
    let ping_timeout = v.seconds("clouddriver.keepAliveTimeOutSeconds")?;
    Ok(HubConnectionSettings {
        grpc: v.string("clouddriver.grpc")?,
        insecure: v.boolean("clouddriver.insecure")?,
        backoff: BackoffSettings {
            base: v.number("clouddriver.backoff.baseDelay").map(Duration::from_nanos)?,
            multiplier: v.float("clouddriver.backoff.multiplier")?,
            jitter: v.float("clouddriver.backoff.jitter")?,
            max: v.number("clouddriver.backoff.maxDelay").map(Duration::from_nanos)?,
        },
        reconnect: v.millis("kubernetes.reconnectTimeoutMs")?,
        ping_every: v.seconds("clouddriver.keepAliveHeartbeatSeconds")?,
        ping_timeout: if ping_timeout.is_zero() { PING_TIMEOUT } else { ping_timeout },
        idle_timeout: v.seconds("clouddriver.keepAliveOperationSeconds")?,
    })
}

fn policy(v: &Values) -> Result<AgentPolicy, ConfigProblem> {
    Ok(AgentPolicy {
        // Each entry was validated when it was read.
        servers: v.list("kubernetes.policy.servers")?.iter().filter_map(|entry| entry.parse().ok()).collect(),
        loopback: v.boolean("kubernetes.policy.loopback")?,
        insecure: v.boolean("kubernetes.policy.insecure")?,
        service_account: v.boolean("kubernetes.policy.serviceAccount")?,
        files: v.boolean("kubernetes.policy.files")?,
    })
}

fn requests(v: &Values) -> Result<RequestLimits, ConfigProblem> {
    let allowed = v.list("kubernetes.requests.allow")?;
    let allows = |class: Class| allowed.iter().any(|name| name == class.as_str());
    let retries = RetrySettings {
        enabled: v.boolean("kubernetes.retries.enabled")?,
        max_retries: v.number("kubernetes.retries.maxRetries")?,
        backoff_ms: v.number("kubernetes.retries.backOffMs")?,
        retry_any_error: v.boolean("kubernetes.retries.retryAnyError")?,
        retryable_errors: v.list("kubernetes.retries.retryableErrors")?,
    };
    Ok(RequestLimits {
        allow: AllowedClasses {
            read: allows(Class::Read),
            write: allows(Class::Write),
            connect: allows(Class::Connect),
        },
        timeout: v.seconds("timeoutSeconds")?,
        apply: ApplySettings { server_side: Some(server_side(v)?), kinds: kinds(v), retries: Some(retries) },
        keeps_answers: v.boolean("clouddriver.responseRetries.enabled")?,
    })
}

/// Returns `kubernetes.serverSideApply` of all kinds.
fn server_side(v: &Values) -> Result<ServerSideApply, ConfigProblem> {
    Ok(ServerSideApply {
        kind: String::new(),
        enabled: v.string("kubernetes.serverSideApply.enabled")?,
        clear_managed_fields: v.string("kubernetes.serverSideApply.clearManagedFields")?,
    })
}

/// Returns `kubernetes.serverSideApply.kinds`. An entry without a kind is of no effect.
fn kinds(v: &Values) -> Vec<ServerSideApply> {
    const KINDS: &str = "kubernetes.serverSideApply.kinds";
    let count = v.listed(KINDS).map_or(0, |listed| listed.len).min(MAX_KINDS);
    let text = |index, key| match v.of_listed(KINDS, index, key).map(|slot| &slot.value) {
        Some(SettingValue::Text(text)) => text.clone(),
        _ => String::new(),
    };
    let kinds = (0..count).map(|index| ServerSideApply {
        kind: text(index, "kind"),
        enabled: text(index, "enabled"),
        clear_managed_fields: text(index, "clearManagedFields"),
    });
    kinds.filter(|one| !one.kind.is_empty()).collect()
}

/// Resolves the two spellings of the setting. Both may be given if they agree.
fn dynamic_accounts(v: &Values) -> Result<bool, ConfigProblem> {
    const KEY: &str = "dynamicAccounts.enabled";
    const OLDER: &str = "dynamicAccountsEnabled";
    let (enabled, older) = (v.boolean(KEY)?, v.boolean(OLDER)?);
    match (v.is_given(KEY), v.is_given(OLDER)) {
        (true, true) if enabled != older => Err(ConfigProblem::Rule {
            origin: v.origin(OLDER),
            key: OLDER.to_owned(),
            why: format!("is {older} although {KEY}, its newer spelling, is {enabled}; keep one of the two"),
        }),
        (false, true) => Ok(older),
        _ => Ok(enabled),
    }
}

/// Reads `kubernetes.accounts`. Every invalid entry is reported as its own problem.
fn accounts(v: &Values) -> Result<Vec<AccountSettings>, ConfigError> {
    let Some(listed) = v.listed(ACCOUNTS_KEY) else { return Ok(Vec::new()) };
    if listed.len > MAX_ACCOUNTS {
        let origin = listed.places.values().next().cloned().unwrap_or(Origin::Default);
        let why = format!(
            "lists {} accounts, and an agent takes {MAX_ACCOUNTS} at most; add another agent",
            listed.len
        );
        return Err(ConfigProblem::Rule { origin, key: ACCOUNTS_KEY.to_owned(), why }.into());
    }
    let (mut accounts, mut problems) = (Vec::new(), Vec::new());
    let mut names: HashMap<String, Origin> = HashMap::new();
    for index in 0..listed.len {
        let entry = AccountEntry { values: v, listed, index };
        match entry.account() {
            Ok(account) => {
                let origin = entry.origin("name");
                if let Some(first) = names.get(account.name()) {
                    let name = shown(account.name());
                    let why = format!("is \"{name}\", which is already the name of the account at {first}");
                    problems.push(entry.rule("name", why));
                } else {
                    names.insert(account.name().to_owned(), origin);
                    accounts.push(account);
                }
            }
            Err(problem) => problems.push(*problem),
        }
    }
    if problems.is_empty() { Ok(accounts) } else { Err(ConfigError { problems }) }
}

/// Makes the paths of kubeconfigs absolute. Relative paths start at the folder of the settings.
pub(crate) fn resolve_paths(accounts: &mut [AccountSettings], dir: &Path) -> Result<(), ConfigProblem> {
    let unreadable =
        |path: &Path, why: String| ConfigProblem::Unreadable { file: path.display().to_string().into(), why };
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

/// One entry of `kubernetes.accounts`.
struct AccountEntry<'v> {
    values: &'v Values,
    listed: &'v SettingList,
    index: usize,
}

type Wrong = Box<ConfigProblem>;

impl AccountEntry<'_> {
    fn account(&self) -> Result<AccountSettings, Wrong> {
        let Some(name) = self.text("name") else {
            return Err(Box::new(self.rule("name", "is missing; every account needs a name".to_owned())));
        };
        let permissions = match self.value("permissions") {
            Some(SettingValue::Permissions(permissions)) => permissions.clone(),
            _ => RolePermissions::default(),
        };
        let spec = AccountSpec {
            account: Some(AccountRef { name, ..AccountRef::default() }),
            credential: Some(self.credential()?),
            context: self.text("context").unwrap_or_default(),
            insecure: self.flag("insecure"),
            namespaces: self.list("namespaces"),
            omit_namespaces: self.list("omitNamespaces"),
            kinds: self.list("kinds"),
            omit_kinds: self.list("omitKinds"),
            only_namespaced_resources: self.flag("onlyNamespacedResources"),
            custom_resource_definitions: match self.value("customResourceDefinitions") {
                Some(SettingValue::CustomResourceDefinitions(definitions)) => definitions.clone(),
                _ => Vec::new(),
            },
            only_spinnaker_managed: self.flag("onlySpinnakerManaged"),
            metrics: self.flag("metrics"),
            no_proxy: self.flag("noProxy"),
            max_resumable_resource_age_ms: match self.value("maxResumableResourceAgeMs") {
                Some(SettingValue::Int(ms)) => u64::try_from(*ms).unwrap_or_default(),
                _ => 0,
            },
            read_roles: permissions.read,
            write_roles: permissions.write,
        };
        self.check_rules(&spec)?;
        let policy = AccountPolicy {
            servers: self.value("policy.servers").map(|_| {
                // Each entry was validated when it was read.
                self.list("policy.servers").iter().filter_map(|entry| entry.parse().ok()).collect()
            }),
            insecure: self.optional_flag("policy.insecure"),
            service_account: self.optional_flag("policy.serviceAccount"),
            files: self.optional_flag("policy.files"),
        };
        Ok(AccountSettings { spec, policy })
    }

    fn credential(&self) -> Result<Credential, Wrong> {
        match (self.text("kubeconfigFile"), self.flag("serviceAccount")) {
            (Some(_), true) => {
                let why = "is true although kubeconfigFile is set; keep one of the two".to_owned();
                Err(Box::new(self.rule("serviceAccount", why)))
            }
            (None, true) => Ok(Credential::ServiceAccount(true)),
            (Some(path), false) => {
                let path = self.referred(path)?;
                if Path::new(&path).components().any(|part| part == Component::ParentDir) {
                    let why = "holds `..`; write a path below the folder of the settings, or an absolute one";
                    return Err(Box::new(self.rule("kubeconfigFile", why.to_owned())));
                }
                Ok(Credential::File(path))
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
            // The account fails when it is activated, and the others of the file run. The parameters may be a secret.
            return Ok(format!("{ENCRYPTED}{}", reference.engine()));
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
    fn check_rules(&self, spec: &AccountSpec) -> Result<(), Wrong> {
        for (key, excluded, both) in [
            ("omitKinds", "kinds", !spec.kinds.is_empty() && !spec.omit_kinds.is_empty()),
            ("omitNamespaces", "namespaces", !spec.namespaces.is_empty() && !spec.omit_namespaces.is_empty()),
        ] {
            if both {
                let why = format!("is set although {excluded} is; keep one of the two");
                return Err(Box::new(self.rule(key, why)));
            }
        }
        if spec.only_namespaced_resources && spec.namespaces.is_empty() {
            let why = "is true, which needs namespaces".to_owned();
            return Err(Box::new(self.rule("onlyNamespacedResources", why)));
        }
        Ok(())
    }

    fn rule(&self, key: &str, why: String) -> ConfigProblem {
        ConfigProblem::Rule {
            origin: self.origin(key),
            key: format!("{ACCOUNTS_KEY}[{}].{key}", self.index),
            why,
        }
    }

    /// The position of a key of this entry; if missing, of the entry itself; if missing, of any entry of the list.
    fn origin(&self, key: &str) -> Origin {
        let entry = self.listed.places.get(&self.index).or_else(|| self.listed.places.values().next());
        self.slot(key).map(|slot| slot.origin.clone()).or_else(|| entry.cloned()).unwrap_or(Origin::Default)
    }

    fn slot(&self, key: &str) -> Option<&EffectiveSetting> {
        self.values.of_listed(ACCOUNTS_KEY, self.index, key)
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
