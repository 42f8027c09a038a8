//! Every setting that the agent's files may hold.

use crate::config::kind::Kind;
use crate::config::logging;
use crate::config::table::Capability::{Lifecycle, Migration, Operations, Security, Streaming};
use crate::config::table::{PORT, Row, Spec, count, inert, later, later_secret, millis, read, seconds};

/// The agent's settings as one whole.
pub(crate) static SPEC: Spec =
    Spec { tables: &[ROWS, logging::ROWS, logging::FILE_ROWS, REST], moved: &[], ours: &[], shared: &[] };

const DAY: i64 = 86_400;
const DAY_MS: i64 = DAY * 1000;
const DAY_NS: i64 = DAY_MS * 1_000_000;
const TEXT: Kind = Kind::Text { max: 4096 };
const NANOS: Kind = Kind::Int { min: 0, max: DAY_NS, unit: "of nanoseconds" };
const SCALE: Kind = Kind::Float { min: 0.0, max: 1000.0 };
const APPLY: Kind = Kind::Choice(&["always", "never", "allowed"]);

const PPROF: &str = "it profiles Go programs";

const ROWS: &[Row] = &[
    // The hub
    read(
        "clouddriver.grpc",
        Kind::Text { max: 1024 },
        "spin-clouddriver-grpc:9091",
        "host and port of the hub",
    ),
    read("clouddriver.insecure", Kind::Flag, "true", "dial the hub without TLS"),
    later_secret(Security, "clouddriver.auth.token", "bearer token for the hub"),
    later(Security, "clouddriver.auth.tokenCommand.command", TEXT, "program that prints such a token"),
    later(Security, "clouddriver.auth.tokenCommand.args", Kind::Any, "its arguments"),
    later(
        Security,
        "clouddriver.auth.tokenCommand.format",
        Kind::Choice(&["raw", "json"]),
        "whether it prints the token or JSON with it",
    ),
    later(
        Security,
        "clouddriver.auth.tokenCommand.refreshIntervalSeconds",
        seconds(0, 365 * DAY),
        "pace at which it is run again",
    ),
    later(Security, "clouddriver.tls.serverName", TEXT, "name expected in the hub's certificate"),
    later(Security, "clouddriver.tls.insecureSkipVerify", Kind::Flag, "take any certificate"),
    later(Security, "clouddriver.tls.clientCertFile", TEXT, "the agent's own certificate"),
    later(Security, "clouddriver.tls.clientKeyFile", TEXT, "its private key"),
    later_secret(Security, "clouddriver.tls.clientKeyFilePassword", "password of that key"),
    later(Security, "clouddriver.tls.cacertFile", TEXT, "who signs the hub's certificate"),
    later(Security, "clouddriver.noProxy", Kind::Flag, "dial the hub past the proxy of the environment"),
    later(Lifecycle, "clouddriver.backoff.baseDelay", NANOS, "wait after the first failed dial"),
    later(Lifecycle, "clouddriver.backoff.multiplier", SCALE, "growth of that wait"),
    later(Lifecycle, "clouddriver.backoff.jitter", SCALE, "share of it left to chance"),
    later(Lifecycle, "clouddriver.backoff.maxDelay", NANOS, "longest wait between dials"),
    later(
        Lifecycle,
        "clouddriver.keepAliveHeartbeatSeconds",
        seconds(0, DAY),
        "pace of HTTP/2 pings; 0: none",
    ),
    later(
        Lifecycle,
        "clouddriver.keepAliveOperationSeconds",
        seconds(0, DAY),
        "time without operations after which the hub is dialled anew; 0: none",
    ),
    later(
        Lifecycle,
        "clouddriver.keepAliveTimeOutSeconds",
        seconds(0, DAY),
        "longest wait for a ping's answer",
    ),
    later(Operations, "clouddriver.responseRetries.enabled", Kind::Flag, "send a lost result again"),
    later(Operations, "clouddriver.responseRetries.maxRetries", count(0, 1000), "how often"),
    later(Operations, "clouddriver.responseRetries.backOffMs", millis(0, DAY_MS), "wait between two tries"),
    // The agent itself
    read("zoneId", Kind::Text { max: 255 }, "", "zone of this agent; none: deployment and namespace"),
    read("server.host", Kind::Address, "localhost", "address of the health server"),
    read("server.port", PORT, "8082", "port of the health server"),
    later(Security, "server.ssl.enabled", Kind::Flag, "serve health over TLS"),
    later(Security, "server.ssl.certFile", TEXT, "certificate of the health server"),
    later(Security, "server.ssl.keyFile", TEXT, "its private key"),
    later_secret(Security, "server.ssl.keyPassword", "password of that key"),
    later_secret(Security, "server.ssl.keyFilePassword", "password of that key"),
    later(Security, "server.ssl.caCertFile", TEXT, "who signs the callers' certificates"),
    later(Security, "server.ssl.clientAuth", Kind::Any, "whether callers must show a certificate"),
    // Clusters
    read(
        "kubernetes.kubeconfigFolders",
        Kind::Folders,
        "/opt/armory,/kubeconfigfiles,/etc/kubesvc",
        "folders in which an account's kubeconfig may be",
    ),
    later(Security, "kubernetes.noProxy", Kind::Flag, "reach clusters past the proxy of the environment"),
    later(
        Lifecycle,
        "kubernetes.reconnectTimeoutMs",
        millis(0, DAY_MS),
        "wait before the hub is dialled again",
    ),
    later(Streaming, "kubernetes.cacheGroupSize", count(0, 100_000), "accounts whose watches begin together"),
    later(Streaming, "kubernetes.cacheGroupDelayMs", millis(0, DAY_MS), "wait between two such groups"),
    later(Lifecycle, "kubernetes.accounts[].name", TEXT, "name of an account"),
    later(Lifecycle, "kubernetes.accounts[].context", Kind::Any, "context of its kubeconfig"),
    later(Lifecycle, "kubernetes.accounts[].kubeconfigFile", TEXT, "its kubeconfig"),
    later(Lifecycle, "kubernetes.accounts[].insecure", Kind::Flag, "take any certificate of its API server"),
    later(
        Lifecycle,
        "kubernetes.accounts[].serviceAccount",
        Kind::Flag,
        "the cluster in which the agent runs",
    ),
    later(Lifecycle, "kubernetes.accounts[].permissions", Kind::Any, "roles that may read and write"),
    later(Streaming, "kubernetes.accounts[].customResourceDefinitions", Kind::Any, "custom kinds"),
    later(Streaming, "kubernetes.accounts[].kinds", Kind::List, "the only kinds cached"),
    later(Streaming, "kubernetes.accounts[].omitKinds", Kind::List, "kinds not cached"),
    later(Streaming, "kubernetes.accounts[].namespaces", Kind::List, "the only namespaces watched"),
    later(Streaming, "kubernetes.accounts[].omitNamespaces", Kind::List, "namespaces not watched"),
    later(
        Streaming,
        "kubernetes.accounts[].onlyNamespacedResources",
        Kind::Flag,
        "nothing without namespace",
    ),
    later(
        Streaming,
        "kubernetes.accounts[].onlySpinnakerManaged",
        Kind::Flag,
        "only what Spinnaker deployed",
    ),
    later(Streaming, "kubernetes.accounts[].metrics", Kind::Flag, "send metrics of pods"),
    later(
        Streaming,
        "kubernetes.accounts[].maxResumableResourceAgeMs",
        millis(0, 365 * DAY_MS),
        "age up to which a watch is resumed",
    ),
    later(Security, "kubernetes.accounts[].noProxy", Kind::Flag, "past the proxy of the environment"),
    inert(
        "kubernetes.accounts[].oAuthScopes",
        "sign-in plugins of cloud providers are not built in",
        "scopes of a GCP sign-in",
    ),
    later(Operations, "kubernetes.serverSideApply.enabled", APPLY, "deploy by server-side apply"),
    later(
        Operations,
        "kubernetes.serverSideApply.clearManagedFields",
        APPLY,
        "be the only manager of a field",
    ),
    later(Operations, "kubernetes.serverSideApply.manifestDefaults", APPLY, "fill defaults into manifests"),
    later(Operations, "kubernetes.serverSideApply.kinds[].kind", TEXT, "a kind with rules of its own"),
    later(Operations, "kubernetes.serverSideApply.kinds[].enabled", APPLY, "as above, for that kind"),
    later(
        Operations,
        "kubernetes.serverSideApply.kinds[].clearManagedFields",
        APPLY,
        "as above, for that kind",
    ),
    later(
        Operations,
        "kubernetes.serverSideApply.kinds[].manifestDefaults",
        APPLY,
        "as above, for that kind",
    ),
    later(Operations, "kubernetes.retries.enabled", Kind::Flag, "repeat failed requests to a cluster"),
    later(Operations, "kubernetes.retries.maxRetries", count(0, 1000), "how often"),
    later(Operations, "kubernetes.retries.backOffMs", millis(0, DAY_MS), "wait between two tries"),
    later(Operations, "kubernetes.retries.retryAnyError", Kind::Flag, "after any error"),
    later(Operations, "kubernetes.retries.retryableErrors", Kind::List, "after errors with these words"),
];

/// After the group `logging`, so that groups stay together in print.
const REST: &[Row] = &[
    later(Lifecycle, "dynamicAccounts.enabled", Kind::Flag, "accounts may be added while running"),
    // Settings of the operator that are also found here.
    later(Migration, "dynamicAccounts.interceptor.enabled", Kind::Flag, "belongs in the operator's file"),
    later(Migration, "dynamicAccounts.scanBatchSize", count(1, 100_000), "belongs in the operator's file"),
    later(
        Migration,
        "dynamicAccounts.scanFrequencySeconds",
        seconds(1, DAY),
        "belongs in the operator's file",
    ),
    later(Migration, "dynamicAccounts.namePatterns", Kind::List, "belongs in the operator's file"),
    later(
        Migration,
        "dynamicAccounts.credentialScanNamePatterns",
        Kind::List,
        "belongs in the operator's file",
    ),
    later(Lifecycle, "dynamicAccountsEnabled", Kind::Flag, "older spelling of dynamicAccounts.enabled"),
    later(Lifecycle, "prometheus.enabled", Kind::Flag, "serve metrics on a port of their own"),
    later(Lifecycle, "prometheus.port", PORT, "that port"),
    inert("pprof.enabled", PPROF, "profiling endpoint"),
    inert("pprof.port", PPROF, "port of that endpoint"),
    later_secret(Security, "secrets.vault.*", "where secrets are kept"),
    later(Streaming, "tasks.totalBudget", count(0, 1_000_000), "listings of clusters at once"),
    later(Streaming, "tasks.budgetPerAccount", count(0, 1_000_000), "the same for one account"),
    later(Streaming, "tasks.queueCheckFrequencyMs", millis(1, DAY_MS), "pace of looking for further work"),
    later(Operations, "timeoutSeconds", seconds(0, DAY), "longest request to a cluster; 0: no bound"),
];
