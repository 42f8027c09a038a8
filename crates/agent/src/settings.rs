//! The settings of `kubesvc-agent`: its structs, each field with its key, type, default and meaning, and the files they
//! are read from.

mod account_types;
mod accounts;
mod auth;
#[cfg(test)]
mod tests;
mod tls;
mod unread;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;

pub use accounts::AccountSettings;
pub use auth::{TokenCommandSettings, TokenFormat, TokenSettings};
use kubesvc_core::agent_policy::AgentPolicy;
use kubesvc_core::requests::access::AllowedClasses;
use kubesvc_core::requests::target::Class;
use kubesvc_core::wire::ops::{ApplySettings, RetrySettings, ServerSideApply};
use kubesvc_runtime::config::{
    ADDRESS, COMMANDS, ConfigError, ConfigProblem, FLAG, FOLDERS, FileShape, HOST_PORT, InspectedSettings,
    Loaded, LoggingSettings, PORT, REQUEST_CLASSES, SERVERS, SettingType, Settings, Source, Spec, TEXT,
    TEXTS, Unit, UnknownKeys, Values, count, group, key, list, millis, parsed, seconds,
};
use kubesvc_runtime::settings;
pub use tls::{DialTlsSettings, IdentitySettings, ServerSslSettings};

const DAY: i64 = 86_400;
const DAY_MS: i64 = DAY * 1000;
const DAY_NS: i64 = DAY_MS * 1_000_000;
const NANOS: SettingType = SettingType::Int(0, DAY_NS, Unit::Nanos);
const SCALE: SettingType = SettingType::Float(0.0, 1000.0);
const APPLY: SettingType = SettingType::Choice(&["always", "never", "allowed"]);
const BUDGET: SettingType = count(0, 1_000_000);

/// Maximum number of kinds with settings of their own.
const MAX_KINDS: usize = 1000;
/// Time limit for a ping's response if `clouddriver.keepAliveTimeOutSeconds` is 0; the same as gRPC's default.
const PING_TIMEOUT: Duration = Duration::from_secs(20);

const NO_PROXY: &str = "the agent dials directly, whatever proxy the environment names";
const NO_DEFAULTS: &str = "a manifest is applied as it is, as kubectl applies it";

settings! {
    /// Every setting of the agent that has an effect.
    pub struct AgentSettings {
        /// The hub to dial.
        hub: HubConnectionSettings = group("clouddriver");
        /// zone of this agent; none: deployment and namespace
        zone_id: Option<String> = key("zoneId", SettingType::Text(255), "");
        /// The health server.
        server: HealthServerSettings = group("server");
        /// folders in which an account's kubeconfig may be
        kubeconfig_folders: Vec<PathBuf> = key(
            "kubernetes.kubeconfigFolders",
            SettingType::List(FOLDERS),
            "/opt/armory,/kubeconfigfiles,/etc/kubesvc",
        );
        /// programs in PATH that may log in for kubeconfigs of this file
        exec_commands: Vec<String> = key(
            "kubernetes.execCommands",
            SettingType::List(COMMANDS),
            "aws,aws-iam-authenticator,gke-gcloud-auth-plugin,kubelogin",
        );
        /// Limits that apply to every account.
        policy: AgentPolicy = group("kubernetes.policy").read_as(policy);
        /// shortest wait before a lost hub is dialled again
        reconnect: Duration = key("kubernetes.reconnectTimeoutMs", millis(0, DAY_MS), "5000");
        /// How clusters are listed and watched.
        reading: ReadingSettings = group("");
        /// The accounts of `kubernetes.accounts`; at most 1,000, with unique names.
        accounts: Vec<AccountSettings> =
            list("kubernetes.accounts", accounts::MAX_ACCOUNTS).read_as(accounts::accounts);
        /// Logging.
        logging: LoggingSettings = group("logging");
        /// Whether other accounts than those are accepted.
        dynamic_accounts: bool = group("").read_as(dynamic_accounts);
        /// Port of the metrics server; `None`: metrics are not served.
        metrics_port: Option<u16> =
            group("prometheus").read_as(|keys: MetricsKeys, _| Ok(keys.enabled.then_some(keys.port)));
        /// Numbers of lists at once.
        budgets: ListBudgets = group("tasks");
        /// Requests of the hub to clusters.
        requests: RequestSettings = group("").read_as(requests);
    }

    /// The hub to dial.
    pub struct HubConnectionSettings {
        /// host and port of the hub
        grpc: String = key("grpc", HOST_PORT, "spin-clouddriver-grpc:9091");
        /// dial the hub without TLS; false where it is not set and clouddriver.tls is
        insecure: bool = key("insecure", FLAG, "true");
        /// TLS to the hub; the defaults if it is dialled without.
        tls: DialTlsSettings = group("tls").read_as(tls::of_hub);
        /// The token that the agent sends; `None`: it sends none.
        token: Option<TokenSettings> = group("auth").read_as(auth::token);
        /// Back-off between failed dials.
        backoff: BackoffSettings = group("backoff");
        /// pace of HTTP/2 pings; 0: none
        ping_every: Duration = key("keepAliveHeartbeatSeconds", seconds(0, DAY), "20");
        /// time without any frame after which the hub is dialled anew; 0: none
        idle_timeout: Duration = key("keepAliveOperationSeconds", seconds(0, DAY), "0");
        /// longest wait for a ping's answer; 0: 20
        ping_timeout: Duration = key("keepAliveTimeOutSeconds", seconds(0, DAY), "20").read_as(
            |timeout: Duration, _| Ok(if timeout.is_zero() { PING_TIMEOUT } else { timeout }),
        );
    }

    /// Back-off between failed dials.
    pub struct BackoffSettings {
        /// wait after the first failed dial
        base: Duration = key("baseDelay", NANOS, "1000000000");
        /// growth of that wait
        multiplier: f64 = key("multiplier", SCALE, "1.6");
        /// share of it left to chance
        jitter: f64 = key("jitter", SCALE, "0.2");
        /// longest wait between dials
        max: Duration = key("maxDelay", NANOS, "120000000000");
    }

    /// The health server.
    pub struct HealthServerSettings {
        /// address of the health server
        host: String = key("host", ADDRESS, "localhost");
        /// port of the health server
        port: u16 = key("port", PORT, "8082");
        /// TLS of the health server; `None`: it has none.
        ssl: Option<ServerSslSettings> = group("ssl").read_as(tls::of_server);
    }

    /// How many accounts begin to be listed and watched at once.
    pub struct ReadingSettings {
        /// accounts that begin to be listed and watched together; 0: all
        group_size: usize = key("kubernetes.cacheGroupSize", count(0, 100_000), "0");
        /// wait between two such groups; 0: none
        group_delay: Duration = key("kubernetes.cacheGroupDelayMs", millis(0, DAY_MS), "0");
    }

    /// Numbers of lists at once.
    pub struct ListBudgets {
        /// lists of clusters at once; 0: no bound
        lists: usize = key("totalBudget", BUDGET, "64");
        /// the same for one account; 0: no bound
        lists_per_account: usize = key("budgetPerAccount", BUDGET, "16");
    }

    struct PolicyKeys {
        /// the only API servers dialled; empty: all
        servers: Vec<String> = key("servers", SettingType::List(SERVERS), "");
        /// dial this machine for other accounts than those of this file
        loopback: bool = key("loopback", FLAG, "true");
        /// take accounts whose API server is not verified
        insecure: bool = key("insecure", FLAG, "true");
        /// take accounts of the agent's own cluster
        service_account: bool = key("serviceAccount", FLAG, "true");
        /// take accounts with a kubeconfig on the agent
        files: bool = key("files", FLAG, "true");
    }

    struct RequestKeys {
        /// How objects are applied.
        server_side: ApplyKeys = group("kubernetes.serverSideApply");
        /// Kinds with rules of their own.
        kinds: Vec<KindKeys> = list("kubernetes.serverSideApply.kinds", MAX_KINDS);
        /// what the operator may ask of clusters; connect: exec, attach, port-forward, proxy, tokens
        allow: Vec<String> = key("kubernetes.requests.allow", SettingType::List(REQUEST_CLASSES), "read,write");
        /// When requests are tried again.
        retries: RetryKeys = group("kubernetes.retries");
        /// keep the answers of writes until the operator has them; false: a lost answer stays unknown
        keeps_answers: bool = key("clouddriver.responseRetries.enabled", FLAG, "true");
        /// longest request to a cluster; 0: no bound
        timeout: Duration = key("timeoutSeconds", seconds(0, DAY), "0");
    }

    struct ApplyKeys {
        /// deploy by server-side apply
        enabled: String = key("enabled", APPLY, "allowed");
        /// be the only manager of a field
        clear_managed_fields: String = key("clearManagedFields", APPLY, "allowed");
        /// fill defaults into manifests
        manifest_defaults: String = key("manifestDefaults", APPLY, "allowed").idle(NO_DEFAULTS);
    }

    struct KindKeys {
        /// a kind with rules of its own
        kind: Option<String> = key("kind", TEXT, "");
        /// as above, for that kind
        enabled: Option<String> = key("enabled", APPLY, "");
        /// as above, for that kind
        clear_managed_fields: Option<String> = key("clearManagedFields", APPLY, "");
        /// as above, for that kind
        manifest_defaults: Option<String> = key("manifestDefaults", APPLY, "").idle(NO_DEFAULTS);
    }

    struct RetryKeys {
        /// repeat failed requests to a cluster
        enabled: bool = key("enabled", FLAG, "true");
        /// how often
        max_retries: u32 = key("maxRetries", count(0, 1000), "3");
        /// wait between two tries
        backoff_ms: u32 = key("backOffMs", millis(0, DAY_MS), "3000");
        /// after any error
        retry_any_error: bool = key("retryAnyError", FLAG, "false");
        /// after errors with these words
        retryable_errors: Vec<String> =
            key("retryableErrors", SettingType::List(TEXTS), "timeout,deadline exceeded");
    }

    #[derive(Copy)]
    struct DynamicAccountKeys {
        /// take accounts other than those of this file
        enabled: bool = key(DYNAMIC_ACCOUNTS, FLAG, "true");
        /// older spelling of dynamicAccounts.enabled
        older: bool = key(OLDER_DYNAMIC_ACCOUNTS, FLAG, "true");
    }

    struct MetricsKeys {
        /// serve metrics on a port of their own
        enabled: bool = key("enabled", FLAG, "false");
        /// that port
        port: u16 = key("port", PORT, "8008");
    }
}

/// What the owner sets for requests of the hub to clusters.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestSettings {
    /// Classes of requests that are made.
    pub allow: AllowedClasses,
    /// For the hub: how objects are applied, and when requests are tried again.
    pub apply: ApplySettings,
    /// Whether answers of writes are kept until the hub has them.
    pub keeps_answers: bool,
    /// Time limit for a request to a cluster; zero: none.
    pub timeout: Duration,
}

impl Settings for AgentSettings {
    fn spec() -> &'static Spec {
        static SPEC: LazyLock<Spec> = LazyLock::new(|| {
            let file = FileShape {
                title: "Settings of kubesvc-agent",
                turned_off_by: &[("clouddriver.insecure", "clouddriver.tls")],
                guarded: &[
                    "clouddriver.auth",
                    "clouddriver.tls",
                    "kubernetes.accounts[].policy",
                    "kubernetes.policy",
                    "secrets",
                    "server.ssl",
                ],
                ..FileShape::default()
            };
            Spec::new::<AgentSettings>(file, unread::KEYS)
        });
        &SPEC
    }

    fn notes(values: &Values) -> Result<Vec<String>, ConfigError> {
        Ok(tls::notes(values).into_iter().chain(auth::notes(values)).collect())
    }
}

/// Loads the agent's settings from `armory-agent.yml` and, overriding it, `armory-agent-local.yml` in `dir`; each may
/// end in `.yaml` instead. Without either file the defaults apply, and a warning names the folder.
///
/// # Errors
/// Everything that is wrong with the files and the environment, or both endings of one file exist.
pub fn load(
    dir: &Path,
    env: &dyn Fn(&str) -> Option<String>,
    unknown: UnknownKeys,
) -> Result<Loaded<AgentSettings>, ConfigError> {
    let mut files = Vec::new();
    for stem in FILES {
        files.extend(either_ending(dir, stem)?);
    }
    let mut loaded = Loaded::<AgentSettings>::read(&files, env, unknown)?;
    accounts::resolve_paths(&mut loaded.settings.accounts, dir)?;
    tls::resolve_paths(&mut loaded.settings, dir);
    loaded.settings.hub.token.iter_mut().for_each(|token| token.resolve_path(dir));
    if files.is_empty() {
        let dir = dir.display();
        let warning =
            format!("{dir}: neither armory-agent.yml nor armory-agent-local.yml is here; defaults hold");
        loaded.warnings.insert(0, warning);
    }
    Ok(loaded)
}

/// Reads the settings in `dir` for a report, also if the agent refuses them.
pub fn inspect(dir: &Path) -> InspectedSettings<AgentSettings> {
    let files: Result<Vec<_>, _> = FILES.iter().map(|stem| either_ending(dir, stem)).collect();
    match files {
        Ok(files) => InspectedSettings::read(&files.into_iter().flatten().collect::<Vec<_>>()),
        Err(problem) => InspectedSettings { settings: None, problems: vec![problem], warnings: Vec::new() },
    }
}

const FILES: [&str; 2] = ["armory-agent", "armory-agent-local"];
const ENDINGS: [&str; 2] = ["yml", "yaml"];

/// Every file that [`load`] would read in this folder, whether it exists or not.
pub fn files(dir: &Path) -> Vec<PathBuf> {
    let paths = FILES.iter().flat_map(|stem| ENDINGS.map(|ending| dir.join(format!("{stem}.{ending}"))));
    paths.collect()
}

/// The one file with this name, if any.
fn either_ending(dir: &Path, stem: &str) -> Result<Option<PathBuf>, ConfigProblem> {
    let mut found = Vec::new();
    for ending in ENDINGS {
        let path = dir.join(format!("{stem}.{ending}"));
        match std::fs::metadata(&path) {
            Ok(_) => found.push(path),
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) => return Err(unreadable(&path, e.to_string())),
        }
    }
    if let [first, second] = found.as_slice() {
        let why = format!("{} is there too; keep one of the two", first.display());
        return Err(unreadable(second, why));
    }
    Ok(found.pop())
}

fn unreadable(path: &Path, why: String) -> ConfigProblem {
    ConfigProblem::Unreadable { file: path.display().to_string().into(), why }
}

fn policy(keys: PolicyKeys, values: &Values) -> Result<AgentPolicy, ConfigError> {
    let PolicyKeys { servers, loopback, insecure, service_account, files } = keys;
    Ok(AgentPolicy { servers: parsed(servers, values)?, loopback, insecure, service_account, files })
}

fn requests(keys: RequestKeys, _: &Values) -> Result<RequestSettings, ConfigError> {
    let allows = |class: Class| keys.allow.iter().any(|name| name == class.as_str());
    let allow = AllowedClasses {
        read: allows(Class::Read),
        write: allows(Class::Write),
        connect: allows(Class::Connect),
    };
    let RetryKeys { enabled, max_retries, backoff_ms, retry_any_error, retryable_errors } = keys.retries;
    let retries = RetrySettings { enabled, max_retries, backoff_ms, retry_any_error, retryable_errors };
    let ApplyKeys { enabled, clear_managed_fields, .. } = keys.server_side;
    let server_side = ServerSideApply { kind: String::new(), enabled, clear_managed_fields };
    // An entry without a kind is of no effect.
    let kinds = keys.kinds.into_iter().filter_map(|one| {
        Some(ServerSideApply {
            kind: one.kind?,
            enabled: one.enabled.unwrap_or_default(),
            clear_managed_fields: one.clear_managed_fields.unwrap_or_default(),
        })
    });
    let apply =
        ApplySettings { server_side: Some(server_side), kinds: kinds.collect(), retries: Some(retries) };
    Ok(RequestSettings { allow, apply, keeps_answers: keys.keeps_answers, timeout: keys.timeout })
}

const DYNAMIC_ACCOUNTS: &str = "dynamicAccounts.enabled";
const OLDER_DYNAMIC_ACCOUNTS: &str = "dynamicAccountsEnabled";

/// Resolves the two spellings of the setting. Both may be given if they agree.
fn dynamic_accounts(keys: DynamicAccountKeys, values: &Values) -> Result<bool, ConfigError> {
    let DynamicAccountKeys { enabled, older } = keys;
    match (values.is_given(DYNAMIC_ACCOUNTS), values.is_given(OLDER_DYNAMIC_ACCOUNTS)) {
        (true, true) if enabled != older => {
            let why = format!(
                "is {older} although {DYNAMIC_ACCOUNTS}, its newer spelling, is {enabled}; keep one of the two"
            );
            Err(values.rule(OLDER_DYNAMIC_ACCOUNTS, why).into())
        }
        (false, true) => Ok(older),
        _ => Ok(enabled),
    }
}
