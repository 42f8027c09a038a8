//! The table of the agent's settings.

use crate::config::logging;
use crate::config::setting_type::ListItem;
use crate::config::setting_type::SettingType::{self, List};
use crate::config::table::Capability::Migration;
use crate::config::table::{PORT, SettingRow, Spec, count, inert, later, millis, read, refused, seconds};

/// The agent's settings as a whole.
pub(crate) static SPEC: Spec = Spec {
    tables: &[ROWS, logging::ROWS, logging::FILE_ROWS, REST],
    moved: &[],
    ours: &[],
    shared: &[],
    guarded: &[
        "clouddriver.auth",
        "clouddriver.tls",
        "kubernetes.accounts[].policy",
        "kubernetes.policy",
        "secrets",
        "server.ssl",
    ],
};

const DAY: i64 = 86_400;
const DAY_MS: i64 = DAY * 1000;
const DAY_NS: i64 = DAY_MS * 1_000_000;
const TEXT: SettingType = SettingType::Text { max: 4096 };
const OPTIONAL: SettingType = SettingType::Optional { max: 1024 };
const NANOS: SettingType = SettingType::Int { min: 0, max: DAY_NS, unit: "of nanoseconds" };
const SCALE: SettingType = SettingType::Float { min: 0.0, max: 1000.0 };
const APPLY: SettingType = SettingType::Choice(&["always", "never", "allowed"]);

const PPROF: &str = "it profiles Go programs";
const NO_PROXY: &str = "the agent dials directly, whatever proxy the environment names";
const NO_METRICS: &str = "metrics of pods are not sent";
const AT_ONCE: &str = "a list begins as soon as the budgets allow it";
const RECALLED: &str = "the operator asks for a lost answer again until the request's own deadline";
const NO_DEFAULTS: &str = "a manifest is applied as it is, as kubectl applies it";
const CLOUDDRIVERS: &str = "Clouddriver knows it, and the agent has no use for it";
const HUB_TOKEN: &str = "no token is sent to the hub yet; leave this out (docs/security.md)";
const HUB_TLS: &str = "TLS to the hub is without a certificate of the agent's own, and trusts the authorities that the \
    machine trusts; leave this out and set clouddriver.insecure: false for that, or true for no TLS (docs/security.md)";
const HEALTH_TLS: &str =
    "health is served without TLS; leave this out, and let nobody but the kubelet reach server.port";
const VAULT: &str = "Vault is not asked for secrets; leave this out, and give kubeconfigs as files";

/// A TLS setting of the connection to the hub; without effect if `clouddriver.insecure` is true.
const fn tls(
    key: &'static str,
    kind: SettingType,
    harmless: Option<&'static str>,
    about: &'static str,
) -> SettingRow {
    refused(key, kind, harmless, HUB_TLS, about).moot_by("clouddriver.insecure")
}

const ROWS: &[SettingRow] = &[
    // The hub
    read("clouddriver.grpc", SettingType::HostPort, "spin-clouddriver-grpc:9091", "host and port of the hub"),
    read(
        "clouddriver.insecure",
        SettingType::Flag,
        "true",
        "dial the hub without TLS; false where it is not set and clouddriver.tls is",
    ),
    refused("clouddriver.auth.token", SettingType::Any, None, HUB_TOKEN, "bearer token for the hub").secret(),
    refused(
        "clouddriver.auth.tokenCommand.command",
        TEXT,
        None,
        HUB_TOKEN,
        "program that prints such a token",
    ),
    refused("clouddriver.auth.tokenCommand.args", SettingType::Any, None, HUB_TOKEN, "its arguments"),
    refused(
        "clouddriver.auth.tokenCommand.format",
        SettingType::OptionalChoice(&["raw", "json"]),
        None,
        HUB_TOKEN,
        "whether it prints the token or JSON with it",
    ),
    refused(
        "clouddriver.auth.tokenCommand.refreshIntervalSeconds",
        seconds(0, 365 * DAY),
        Some("0"),
        HUB_TOKEN,
        "pace at which it is run again",
    ),
    tls("clouddriver.tls.serverName", TEXT, None, "name expected in the hub's certificate"),
    tls("clouddriver.tls.insecureSkipVerify", SettingType::Flag, Some("false"), "take any certificate"),
    tls("clouddriver.tls.clientCertFile", TEXT, None, "the agent's own certificate"),
    tls("clouddriver.tls.clientKeyFile", TEXT, None, "its private key"),
    tls("clouddriver.tls.clientKeyFilePassword", SettingType::Any, None, "password of that key").secret(),
    tls("clouddriver.tls.clientKeyPassword", SettingType::Any, None, "another name of that password")
        .secret(),
    tls("clouddriver.tls.cacertFile", TEXT, None, "who signs the hub's certificate"),
    inert("clouddriver.noProxy", NO_PROXY, "dial the hub past the proxy of the environment"),
    read("clouddriver.backoff.baseDelay", NANOS, "1000000000", "wait after the first failed dial"),
    read("clouddriver.backoff.multiplier", SCALE, "1.6", "growth of that wait"),
    read("clouddriver.backoff.jitter", SCALE, "0.2", "share of it left to chance"),
    read("clouddriver.backoff.maxDelay", NANOS, "120000000000", "longest wait between dials"),
    read("clouddriver.keepAliveHeartbeatSeconds", seconds(0, DAY), "20", "pace of HTTP/2 pings; 0: none"),
    read(
        "clouddriver.keepAliveOperationSeconds",
        seconds(0, DAY),
        "0",
        "time without any frame after which the hub is dialled anew; 0: none",
    ),
    read(
        "clouddriver.keepAliveTimeOutSeconds",
        seconds(0, DAY),
        "20",
        "longest wait for a ping's answer; 0: 20",
    ),
    read(
        "clouddriver.responseRetries.enabled",
        SettingType::Flag,
        "true",
        "keep the answers of writes until the operator has them; false: a lost answer stays unknown",
    ),
    inert("clouddriver.responseRetries.maxRetries", RECALLED, "how often a lost answer is sent again"),
    inert("clouddriver.responseRetries.backOffMs", RECALLED, "wait between two tries"),
    // The agent itself
    read("zoneId", SettingType::Text { max: 255 }, "", "zone of this agent; none: deployment and namespace"),
    read("server.host", SettingType::Address, "localhost", "address of the health server"),
    read("server.port", PORT, "8082", "port of the health server"),
    refused("server.ssl.enabled", SettingType::Flag, Some("false"), HEALTH_TLS, "serve health over TLS"),
    refused("server.ssl.certFile", TEXT, None, HEALTH_TLS, "certificate of the health server"),
    refused("server.ssl.keyFile", TEXT, None, HEALTH_TLS, "its private key"),
    refused("server.ssl.keyPassword", SettingType::Any, None, HEALTH_TLS, "password of that key").secret(),
    refused("server.ssl.keyFilePassword", SettingType::Any, None, HEALTH_TLS, "password of that key")
        .secret(),
    refused("server.ssl.caCertFile", TEXT, None, HEALTH_TLS, "who signs the callers' certificates"),
    refused(
        "server.ssl.clientAuth",
        SettingType::Any,
        Some("none"),
        HEALTH_TLS,
        "whether callers must show a certificate",
    ),
    // Clusters
    read(
        "kubernetes.kubeconfigFolders",
        List(ListItem::Folder),
        "/opt/armory,/kubeconfigfiles,/etc/kubesvc",
        "folders in which an account's kubeconfig may be",
    ),
    read(
        "kubernetes.execCommands",
        List(ListItem::Command),
        "aws,aws-iam-authenticator,gke-gcloud-auth-plugin,kubelogin",
        "programs in PATH that may log in for kubeconfigs of this file",
    ),
    read("kubernetes.policy.servers", List(ListItem::Server), "", "the only API servers dialled; empty: all"),
    read(
        "kubernetes.policy.loopback",
        SettingType::Flag,
        "true",
        "dial this machine for other accounts than those of this file",
    ),
    read(
        "kubernetes.policy.insecure",
        SettingType::Flag,
        "true",
        "take accounts whose API server is not verified",
    ),
    read(
        "kubernetes.policy.serviceAccount",
        SettingType::Flag,
        "true",
        "take accounts of the agent's own cluster",
    ),
    read(
        "kubernetes.policy.files",
        SettingType::Flag,
        "true",
        "take accounts with a kubeconfig on the agent",
    ),
    inert("kubernetes.noProxy", NO_PROXY, "reach clusters past the proxy of the environment"),
    read(
        "kubernetes.reconnectTimeoutMs",
        millis(0, DAY_MS),
        "5000",
        "shortest wait before a lost hub is dialled again",
    ),
    read(
        "kubernetes.cacheGroupSize",
        count(0, 100_000),
        "0",
        "accounts that begin to be listed and watched together; 0: all",
    ),
    read("kubernetes.cacheGroupDelayMs", millis(0, DAY_MS), "0", "wait between two such groups; 0: none"),
    read(
        "kubernetes.accounts[].name",
        SettingType::Text { max: 255 },
        "",
        "name of an account; each needs one of its own",
    ),
    read("kubernetes.accounts[].context", OPTIONAL, "", "context of its kubeconfig; none: the current one"),
    read(
        "kubernetes.accounts[].kubeconfigFile",
        OPTIONAL,
        "",
        "its kubeconfig; a relative path counts from the folder of this file",
    ),
    read(
        "kubernetes.accounts[].insecure",
        SettingType::Flag,
        "false",
        "take any certificate of its API server",
    ),
    read(
        "kubernetes.accounts[].serviceAccount",
        SettingType::Flag,
        "false",
        "the cluster in which the agent runs",
    ),
    read("kubernetes.accounts[].permissions", SettingType::Permissions, "", "roles that may read and write"),
    read(
        "kubernetes.accounts[].customResourceDefinitions",
        SettingType::CustomResourceDefinitions,
        "",
        "custom kinds",
    ),
    read("kubernetes.accounts[].kinds", List(ListItem::Text), "", "the only kinds cached"),
    read("kubernetes.accounts[].omitKinds", List(ListItem::Text), "", "kinds not cached"),
    read("kubernetes.accounts[].namespaces", List(ListItem::Text), "", "the only namespaces watched"),
    read("kubernetes.accounts[].omitNamespaces", List(ListItem::Text), "", "namespaces not watched"),
    read(
        "kubernetes.accounts[].onlyNamespacedResources",
        SettingType::Flag,
        "false",
        "nothing without namespace",
    ),
    read(
        "kubernetes.accounts[].onlySpinnakerManaged",
        SettingType::Flag,
        "false",
        "only what Spinnaker deployed",
    ),
    read("kubernetes.accounts[].metrics", SettingType::Flag, "false", "send metrics of pods")
        .idle(NO_METRICS),
    read(
        "kubernetes.accounts[].maxResumableResourceAgeMs",
        millis(0, DAY_MS),
        "",
        "age up to which a watch is resumed; 0: the hub's default",
    ),
    read("kubernetes.accounts[].noProxy", SettingType::Flag, "false", "past the proxy of the environment")
        .idle(NO_PROXY),
    read(
        "kubernetes.accounts[].policy.servers",
        List(ListItem::Server),
        "",
        "kubernetes.policy.servers for this one",
    ),
    read(
        "kubernetes.accounts[].policy.insecure",
        SettingType::Flag,
        "",
        "kubernetes.policy.insecure for this one",
    ),
    read(
        "kubernetes.accounts[].policy.serviceAccount",
        SettingType::Flag,
        "",
        "kubernetes.policy.serviceAccount for this one",
    ),
    read("kubernetes.accounts[].policy.files", SettingType::Flag, "", "kubernetes.policy.files for this one"),
    inert(
        "kubernetes.accounts[].oAuthScopes",
        "sign-in plugins of cloud providers are not built in",
        "scopes of a GCP sign-in",
    ),
    // Settings of Clouddriver's accounts, because people copy them from its file.
    inert("kubernetes.accounts[].providerVersion", CLOUDDRIVERS, "version of the provider"),
    inert("kubernetes.accounts[].environment", CLOUDDRIVERS, "Spinnaker's environment of the account"),
    inert("kubernetes.accounts[].accountType", CLOUDDRIVERS, "Spinnaker's type of the account"),
    inert("kubernetes.accounts[].skin", CLOUDDRIVERS, "how it is shown"),
    inert("kubernetes.accounts[].kubectlExecutable", CLOUDDRIVERS, "path of kubectl"),
    inert("kubernetes.accounts[].kubectlRequestTimeoutSeconds", CLOUDDRIVERS, "longest request of kubectl"),
    inert("kubernetes.accounts[].oAuthServiceAccount", CLOUDDRIVERS, "service account of a GCP sign-in"),
    inert("kubernetes.accounts[].cacheThreads", CLOUDDRIVERS, "threads that cache"),
    inert("kubernetes.accounts[].cacheIntervalSeconds", CLOUDDRIVERS, "pace of caching"),
    inert("kubernetes.accounts[].cacheAllApplicationRelationships", CLOUDDRIVERS, "cache all relationships"),
    inert("kubernetes.accounts[].cachingPolicies", CLOUDDRIVERS, "bounds of caching"),
    inert("kubernetes.accounts[].checkPermissionsOnStartup", CLOUDDRIVERS, "look which kinds may be listed"),
    inert("kubernetes.accounts[].customResources", CLOUDDRIVERS, "how Spinnaker treats further kinds"),
    inert("kubernetes.accounts[].debug", CLOUDDRIVERS, "log more"),
    inert("kubernetes.accounts[].liveManifestCalls", CLOUDDRIVERS, "read manifests from the cluster"),
    inert("kubernetes.accounts[].namingStrategy", CLOUDDRIVERS, "how names are made"),
    inert("kubernetes.accounts[].rawResourcesEndpointConfig", CLOUDDRIVERS, "kinds of the raw resources"),
    inert("kubernetes.accounts[].configureImagePullSecrets", CLOUDDRIVERS, "make pull secrets"),
    inert("kubernetes.accounts[].dockerRegistries", CLOUDDRIVERS, "registries of the account"),
    inert("kubernetes.accounts[].kubeconfigContents", CLOUDDRIVERS, "a kubeconfig").secret(),
    refused(
        "kubernetes.accounts[].requiredGroupMembership",
        List(ListItem::Text),
        None,
        "the agent does not read it; write the groups as roles under READ and WRITE of permissions",
        "groups that may read and write",
    ),
    read("kubernetes.serverSideApply.enabled", APPLY, "allowed", "deploy by server-side apply"),
    read("kubernetes.serverSideApply.clearManagedFields", APPLY, "allowed", "be the only manager of a field"),
    read("kubernetes.serverSideApply.manifestDefaults", APPLY, "allowed", "fill defaults into manifests")
        .idle(NO_DEFAULTS),
    read("kubernetes.serverSideApply.kinds[].kind", TEXT, "", "a kind with rules of its own"),
    read("kubernetes.serverSideApply.kinds[].enabled", APPLY, "", "as above, for that kind"),
    read("kubernetes.serverSideApply.kinds[].clearManagedFields", APPLY, "", "as above, for that kind"),
    read("kubernetes.serverSideApply.kinds[].manifestDefaults", APPLY, "", "as above, for that kind")
        .idle(NO_DEFAULTS),
    read(
        "kubernetes.requests.allow",
        List(ListItem::RequestClass),
        "read,write",
        "what the operator may ask of clusters; connect: exec, attach, port-forward, proxy, tokens",
    ),
    read("kubernetes.retries.enabled", SettingType::Flag, "true", "repeat failed requests to a cluster"),
    read("kubernetes.retries.maxRetries", count(0, 1000), "3", "how often"),
    read("kubernetes.retries.backOffMs", millis(0, DAY_MS), "3000", "wait between two tries"),
    read("kubernetes.retries.retryAnyError", SettingType::Flag, "false", "after any error"),
    read(
        "kubernetes.retries.retryableErrors",
        List(ListItem::Text),
        "timeout,deadline exceeded",
        "after errors with these words",
    ),
];

/// Follows the group `logging`, so that groups stay together when printed.
const REST: &[SettingRow] = &[
    read("dynamicAccounts.enabled", SettingType::Flag, "true", "take accounts other than those of this file"),
    // Settings of the operator that are also found in agents' files.
    later(
        Migration,
        "dynamicAccounts.interceptor.enabled",
        SettingType::Flag,
        "belongs in the operator's file",
    ),
    later(Migration, "dynamicAccounts.scanBatchSize", count(1, 100_000), "belongs in the operator's file"),
    later(
        Migration,
        "dynamicAccounts.scanFrequencySeconds",
        seconds(1, DAY),
        "belongs in the operator's file",
    ),
    later(Migration, "dynamicAccounts.namePatterns", List(ListItem::Text), "belongs in the operator's file"),
    later(
        Migration,
        "dynamicAccounts.credentialScanNamePatterns",
        List(ListItem::Text),
        "belongs in the operator's file",
    ),
    read("dynamicAccountsEnabled", SettingType::Flag, "true", "older spelling of dynamicAccounts.enabled"),
    read("prometheus.enabled", SettingType::Flag, "false", "serve metrics on a port of their own"),
    read("prometheus.port", PORT, "8008", "that port"),
    inert("pprof.enabled", PPROF, "profiling endpoint"),
    inert("pprof.port", PPROF, "port of that endpoint"),
    refused("secrets.vault.enabled", SettingType::Flag, Some("false"), VAULT, "ask Vault for secrets"),
    refused("secrets.vault.*", SettingType::Any, None, VAULT, "where secrets are kept").secret(),
    read("tasks.totalBudget", count(0, 1_000_000), "64", "lists of clusters at once; 0: no bound"),
    read("tasks.budgetPerAccount", count(0, 1_000_000), "16", "the same for one account; 0: no bound"),
    inert("tasks.queueCheckFrequencyMs", AT_ONCE, "pace of looking for further work"),
    read("timeoutSeconds", seconds(0, DAY), "0", "longest request to a cluster; 0: no bound"),
];
