//! The table of the operator's settings.

use crate::config::logging;
use crate::config::setting_type::ListItem;
use crate::config::setting_type::SettingType::{self, List};
use crate::config::table::Capability::Migration;
use crate::config::table::{PORT, SettingRow, Spec, count, inert, later, millis, read, refused, seconds};

/// Minimum limit on message sizes, in bytes: a smaller one could exclude an agent that holds many accounts for good,
/// since its hello would not fit.
const MIN_MESSAGE_BYTES: u64 = 3 * 1024 * 1024 + 64 * 1024;

/// The operator's settings as a whole.
pub(crate) static SPEC: Spec = Spec {
    tables: &[ROWS, logging::ROWS],
    moved: &[("armory.kubesvc", "kubesvc"), ("logging.level.root", "logging.level")],
    ours: &["kubesvc"],
    shared: &["server", "logging"],
    guarded: &[
        "kubesvc.grpc.server.security",
        "kubesvc.grpc.auth",
        "kubesvc.rest",
        "kubesvc.gateway",
        "kubesvc.operations.auth",
        "kubesvc.audit",
        "kubesvc.agents",
        "kubesvc.accounts",
        "server.ssl",
    ],
};

const DAY: i64 = 86_400;
const DAY_MS: i64 = DAY * 1000;
const TEXT: SettingType = SettingType::Text { max: 4096 };
const UNITS: SettingType = SettingType::Choice(&[
    "NANOSECONDS",
    "MICROSECONDS",
    "MILLISECONDS",
    "SECONDS",
    "MINUTES",
    "HOURS",
    "DAYS",
]);

const NO_POOL: &str = "writes to the cache are batched, not given to a pool of threads";
const NO_V2: &str = "there is no V2 provider in this program";

const HUB_TLS: &str = "the hub serves no TLS and asks for no certificates yet; leave this out, and let a proxy before \
    port 9091 do it (docs/security.md)";
const HUB_AUTH: &str = "the hub does not check who an agent is yet; leave this out, and let nobody but agents reach \
    port 9091 (docs/security.md)";
const REST_TLS: &str = "REST serves no TLS and asks for no certificates yet; leave this out, and let a proxy before \
    port 7002 do it (docs/security.md)";
const REST_AUTH: &str = "REST does not check who a caller is yet; leave this out, and let nobody but trusted callers \
    reach port 7002 (docs/security.md)";

const ROWS: &[SettingRow] = &[
    // REST
    read("server.address", SettingType::Address, "*", "address of the REST server"),
    read("server.port", PORT, "7002", "port of the REST server"),
    read(
        "server.maxBodyBytes",
        SettingType::Size { min: 1 << 10, max: 1 << 30 },
        "8MB",
        "largest request body",
    ),
    refused("server.ssl.enabled", SettingType::Flag, Some("false"), REST_TLS, "serve REST over TLS"),
    refused(
        "server.ssl.clientAuth",
        SettingType::OptionalChoice(&["none", "want", "need"]),
        Some("none"),
        REST_TLS,
        "whether callers must show a certificate",
    ),
    refused("server.ssl.certificate", SettingType::Any, None, REST_TLS, "certificates of REST"),
    refused("server.ssl.certificatePrivateKey", SettingType::Any, None, REST_TLS, "their private key")
        .secret(),
    refused(
        "server.ssl.trustCertificate",
        SettingType::Any,
        None,
        REST_TLS,
        "who signs callers' certificates",
    ),
    refused("server.ssl.bundle", SettingType::Any, None, REST_TLS, "the same, under a name"),
    refused(
        "server.ssl.keyStore",
        SettingType::Any,
        None,
        REST_TLS,
        "certificates of REST, in a Java key store",
    ),
    refused("server.ssl.keyStorePassword", SettingType::Any, None, REST_TLS, "password of that store")
        .secret(),
    refused("server.ssl.keyPassword", SettingType::Any, None, REST_TLS, "password of the key in it").secret(),
    refused(
        "server.ssl.trustStore",
        SettingType::Any,
        None,
        REST_TLS,
        "who signs callers' certificates, likewise",
    ),
    refused("server.ssl.trustStorePassword", SettingType::Any, None, REST_TLS, "password of that store")
        .secret(),
    refused("server.ssl.*", SettingType::Any, None, REST_TLS, "all else about TLS").secret(),
    refused(
        "kubesvc.rest.auth.mode",
        SettingType::Choice(&["off", "log", "enforce"]),
        Some("off"),
        REST_AUTH,
        "whether callers of REST must show who they are",
    ),
    read(
        "server.health.port",
        SettingType::Int { min: 0, max: 65535, unit: "(a port; 0: none)" },
        "0",
        "port for /health alone, which answers probes whatever goes on at the other one; 0: none",
    ),
    read(
        "server.limits.perAddress",
        count(0, 1_000_000),
        "256",
        "connections to the REST server from one address (IPv6: /64); 0: no bound",
    ),
    read("server.limits.exempt", List(ListItem::Network), "", "networks for which that bound does not count"),
    read(
        "server.hosts",
        List(ListItem::Host),
        "",
        "names under which REST is called, with or without a port; another is 421; none: any",
    ),
    read("server.cors.allowedOrigins", List(ListItem::Origin), "", "origins whose web pages may call REST"),
    // The hub
    read("kubesvc.grpc.server.address", SettingType::Address, "*", "address of the hub that agents dial"),
    read("kubesvc.grpc.server.port", PORT, "9091", "port of the hub that agents dial"),
    read("kubesvc.grpc.server.healthServiceEnabled", SettingType::Flag, "true", "answer gRPC health checks"),
    read(
        "kubesvc.grpc.server.maxInboundMessageSize",
        SettingType::Size { min: MIN_MESSAGE_BYTES, max: 1 << 30 },
        "4MB",
        "largest message taken from an agent",
    ),
    read(
        "kubesvc.grpc.server.limits.perAddress",
        count(0, 1_000_000),
        "0",
        "connections of agents from one address (IPv6: /64); 0: no bound",
    ),
    read(
        "kubesvc.grpc.server.limits.exempt",
        List(ListItem::Network),
        "",
        "networks for which that bound does not count",
    ),
    refused(
        "kubesvc.grpc.server.security.enabled",
        SettingType::Flag,
        Some("false"),
        HUB_TLS,
        "serve the hub over TLS",
    ),
    refused("kubesvc.grpc.server.security.certificateChain", TEXT, None, HUB_TLS, "certificates of the hub"),
    refused("kubesvc.grpc.server.security.privateKey", TEXT, None, HUB_TLS, "where the hub's private key is"),
    refused(
        "kubesvc.grpc.server.security.privateKeyPassword",
        SettingType::Any,
        None,
        HUB_TLS,
        "password of that key",
    )
    .secret(),
    refused(
        "kubesvc.grpc.server.security.clientAuth",
        SettingType::Choice(&["NONE", "OPTIONAL", "REQUIRE"]),
        Some("NONE"),
        HUB_TLS,
        "whether agents must show a certificate",
    ),
    refused(
        "kubesvc.grpc.server.security.ciphers",
        List(ListItem::Text),
        None,
        HUB_TLS,
        "TLS cipher suites allowed",
    ),
    refused(
        "kubesvc.grpc.server.security.trustCertCollection",
        TEXT,
        None,
        HUB_TLS,
        "who signs agents' certificates",
    ),
    refused(
        "kubesvc.grpc.server.security.protocols",
        List(ListItem::Text),
        None,
        HUB_TLS,
        "TLS versions allowed",
    ),
    read(
        "kubesvc.grpc.server.security.keepAliveHeartbeatSeconds",
        seconds(0, DAY),
        "20",
        "pace of HTTP/2 pings to agents; 0: none",
    ),
    read(
        "kubesvc.grpc.server.security.KeepAliveTimeOutSeconds",
        seconds(0, DAY),
        "20",
        "longest wait for the answer to a ping; 0: a day",
    ),
    refused(
        "kubesvc.grpc.auth.mode",
        SettingType::Choice(&["open", "log", "bound"]),
        Some("open"),
        HUB_AUTH,
        "whether agents must show who they are",
    ),
    refused(
        "kubesvc.grpc.auth.x509.enabled",
        SettingType::Flag,
        Some("false"),
        HUB_AUTH,
        "let agents in by certificate subject",
    ),
    refused(
        "kubesvc.grpc.auth.x509.filters",
        List(ListItem::Text),
        None,
        HUB_AUTH,
        "the subjects that are let in",
    ),
    // State
    read("kubesvc.database.url", SettingType::DatabaseUrl, "sqlite://kubesvc.db", "the database"),
    read(
        "kubesvc.database.takeOver",
        SettingType::Flag,
        "false",
        "rename tables of another product that have kubesvc's names, and keep them",
    ),
    read(
        "kubesvc.watchNamespaces",
        List(ListItem::NamespaceOrAll),
        "",
        "namespaces watched; none: the operator's own",
    ),
    read(
        "kubesvc.secrets.folders",
        List(ListItem::Folder),
        "",
        "folders of the operator below which references of engine file may name kubeconfigs",
    ),
    read(
        "kubesvc.secrets.namespaces",
        List(ListItem::Namespace),
        "",
        "namespaces besides its own whose Secrets an account may name by a reference of engine k8s",
    ),
    read(
        "kubesvc.secrets.noop",
        SettingType::Flag,
        "true",
        "take references of engine noop, which are the secret themselves",
    ),
    // Cache
    read(
        "kubesvc.cache.operationWaitMs",
        millis(1, DAY_MS),
        "30000",
        "time for an operation in a cluster, unless its caller says another; a delete may wait on top of it",
    ),
    read(
        "kubesvc.cache.onDemandQuickWaitMs",
        millis(1, DAY_MS),
        "10000",
        "time for an operation that only reads, unless its caller says another",
    ),
    read(
        "kubesvc.cache.accountCleanupFrequencySeconds",
        seconds(1, 365 * DAY),
        "600",
        "how long a static account is kept without agents, and a zone that was found by asking",
    ),
    read(
        "kubesvc.cache.cleanDataWithUnusedAccounts",
        SettingType::Flag,
        "true",
        "delete cached objects too where a static account goes for want of agents; false: they wait for the next account \
         of that name",
    ),
    read(
        "kubesvc.cache.cacheDefaults",
        SettingType::OptionalList(ListItem::Text),
        "",
        "kinds cached where cacheKinds is not set; not set: the documented twelve",
    ),
    read(
        "kubesvc.cache.cacheKinds",
        SettingType::OptionalList(ListItem::Text),
        "",
        "kinds cached, as Kind or Kind.group; not set: those of cacheDefaults; an empty list: none",
    ),
    read("kubesvc.cache.cacheOmitKinds", List(ListItem::Text), "", "kinds never cached"),
    read("kubesvc.cache.cacheAll", SettingType::Flag, "false", "cache every kind a cluster has"),
    read(
        "kubesvc.cache.bodyFormat",
        SettingType::Choice(&["text", "zstd"]),
        "text",
        "how cached objects are stored: as JSON, or as JSON compressed with zstd",
    ),
    read(
        "kubesvc.cache.eventsCleanupFrequencySeconds",
        seconds(1, 365 * DAY),
        "7200",
        "how long Kubernetes events are kept after they were last seen",
    ),
    read(
        "kubesvc.cache.pendingBytes",
        SettingType::Size { min: 4 << 20, max: 1 << 40 },
        "268435456",
        "objects that all agents together may have at the hub before they are written, beyond 64 KiB each",
    ),
    read("kubesvc.cache.writers", count(1, 64), "2", "writers of cached objects, each with a connection"),
    inert("kubesvc.cache.cacheStreamingPoolCoreSize", NO_POOL, "threads that write to the cache"),
    inert("kubesvc.cache.cacheStreamingPoolMaxSize", NO_POOL, "most threads that write to the cache"),
    inert(
        "kubesvc.cache.namespaceExpiryMinutes",
        "namespaces are watched and always current",
        "age of remembered namespaces",
    ),
    // Accounts
    read("kubesvc.dynamicAccounts.enabled", SettingType::Flag, "true", "accounts may be added while running"),
    read("kubesvc.dynamicAccounts.maxRetries", count(0, 1000), "3", "further tries of a failed registration"),
    read(
        "kubesvc.dynamicAccounts.retryFrequencySeconds",
        seconds(1, DAY),
        "5",
        "wait before the first further try",
    ),
    read(
        "kubesvc.dynamicAccounts.retryMultiplier",
        SettingType::Float { min: 1.0, max: 100.0 },
        "2",
        "growth of that wait; 1 is a fixed pace",
    ),
    read(
        "kubesvc.dynamicAccounts.retryMaxDelaySeconds",
        seconds(1, DAY),
        "300",
        "longest wait between tries",
    ),
    read(
        "kubesvc.dynamicAccounts.orphanGraceSeconds",
        seconds(0, DAY),
        "30",
        "time without an agent before another is looked for",
    ),
    read(
        "kubesvc.dynamicAccounts.adoptRows",
        SettingType::Flag,
        "false",
        "rows that kubesvc did not write become accounts",
    ),
    read(
        "kubesvc.dynamicAccounts.agentWins",
        SettingType::Flag,
        "false",
        "an account of an agent's own file has its name before a declared one",
    ),
    read(
        "kubesvc.dynamicAccounts.namespace",
        SettingType::Namespace,
        "",
        "where accounts from REST are written",
    ),
    later(
        Migration,
        "kubesvc.dynamicAccounts.interceptor.enabled",
        SettingType::Flag,
        "take over accounts that Clouddriver adds",
    ),
    later(
        Migration,
        "kubesvc.dynamicAccounts.scanBatchSize",
        count(1, 100_000),
        "accounts taken over at once",
    ),
    later(Migration, "kubesvc.dynamicAccounts.scanFrequencySeconds", seconds(1, DAY), "pace of taking over"),
    later(
        Migration,
        "kubesvc.dynamicAccounts.namePatterns",
        List(ListItem::Text),
        "names taken over from the database",
    ),
    later(
        Migration,
        "kubesvc.dynamicAccounts.credentialScanNamePatterns",
        List(ListItem::Text),
        "names taken over from credential sources",
    ),
    later(
        Migration,
        "kubesvc.credentials.poller.reloadFrequencyMs",
        millis(1, DAY_MS),
        "pace at which credentials are read again",
    ),
    later(Migration, "kubesvc.clouddriver.baseUrl", TEXT, "the Clouddriver that other calls are passed to"),
    read(
        "kubesvc.kubernetes.qps",
        count(0, 100_000),
        "200",
        "requests a second to the API server; 0: no bound",
    ),
    read("kubesvc.kubernetes.burst", count(1, 100_000), "400", "requests at once after a pause"),
    read(
        "kubesvc.kubernetes.registrationQps",
        count(0, 100_000),
        "50",
        "registrations a second; 0: no bound",
    ),
    read(
        "kubesvc.agents.approval",
        SettingType::Choice(&["auto", "manual"]),
        "auto",
        "who approves an agent: the operator at once, or a person",
    ),
    read(
        "kubesvc.agents.forgetApprovedAfterSeconds",
        seconds(600, 3650 * DAY),
        "2592000",
        "how long a person's decision about an agent outlives its absence",
    ),
    read(
        "kubesvc.agents.offers",
        SettingType::Flag,
        "true",
        "an account without a zone goes to a zone whose agents offer to take it; false: every account names its zone",
    ),
    read(
        "kubesvc.accounts.agentSources",
        List(ListItem::NamespaceOwnOrAll),
        "*",
        "namespaces whose accounts may use an agent's files and its service account",
    ),
    read(
        "kubesvc.accounts.operatorFiles",
        List(ListItem::NamespaceOwnOrAll),
        "*",
        "namespaces whose accounts may use references of engine file",
    ),
    read("kubesvc.runtime.defaults.onlySpinnakerManaged", SettingType::Flag, "false", MANAGED),
    read("kubesvc.runtime.defaults.customResources", SettingType::CustomResources, "", CUSTOM),
    read("kubesvc.runtime.accounts.*.onlySpinnakerManaged", SettingType::Flag, "", MANAGED),
    read("kubesvc.runtime.accounts.*.customResources", SettingType::CustomResources, "", CUSTOM),
    // Replicas
    read(
        "kubesvc.cluster",
        SettingType::Choice(&["local", "kubernetes", "database"]),
        "",
        "how replicas find one another; not set: local on SQLite, else kubernetes",
    ),
    read(
        "kubesvc.cluster-kubernetes.kubeconfigFile",
        SettingType::Optional { max: 4096 },
        "",
        "kubeconfig for finding replicas; none: the operator's own API server",
    ),
    read(
        "kubesvc.cluster-kubernetes.verifySsl",
        SettingType::Flag,
        "true",
        "check the certificate of the API server that is asked for replicas",
    ),
    read(
        "kubesvc.cluster-kubernetes.namespace",
        SettingType::Namespace,
        "",
        "where the replicas are; none: the operator's own",
    ),
    read(
        "kubesvc.cluster-kubernetes.httpPortName",
        SettingType::Text { max: 63 },
        "http",
        "name of the REST port in their Service",
    ),
    read(
        "kubesvc.cluster-kubernetes.clouddriverServiceNamePrefix",
        SettingType::Text { max: 63 },
        "spin-clouddriver",
        "how the name of their Service begins",
    ),
    read(
        "kubesvc.cluster-kubernetes.failFast",
        SettingType::Flag,
        "true",
        "stop when Endpoints or EndpointSlices may not be listed and watched",
    ),
    read(
        "kubesvc.cluster-kubernetes.useDNS",
        SettingType::Flag,
        "false",
        "reach replicas by their pods' names in DNS, not by address",
    ),
    read(
        "kubesvc.cluster-kubernetes.domainName",
        SettingType::Text { max: 253 },
        "cluster.local",
        "domain of those names",
    ),
    read(
        "kubesvc.leaderElection.leaseDurationSeconds",
        seconds(2, 3600),
        "15",
        "how long others wait for a leader that does not renew its Lease",
    ),
    read(
        "kubesvc.leaderElection.renewDeadlineSeconds",
        seconds(2, 3600),
        "10",
        "how long a leader that cannot renew its Lease goes on; less than that",
    ),
    read(
        "kubesvc.leaderElection.retryPeriodSeconds",
        seconds(1, 3600),
        "2",
        "time between two tries; 1.2 times it is less than the deadline",
    ),
    read(
        "kubesvc.heartbeat.enabled",
        SettingType::Flag,
        "true",
        "cut off agents that send no heartbeat; else only pings find one that is gone",
    ),
    read(
        "kubesvc.heartbeat.initialDelay",
        count(0, i64::MAX),
        "0",
        "wait before kubesvc_assignments is first compared with the agents",
    ),
    read(
        "kubesvc.heartbeat.period",
        count(1, i64::MAX),
        "60",
        "longest time between two of these, which are sooner after replicas have changed; 1 second to 365 days",
    ),
    read("kubesvc.heartbeat.periodUnit", UNITS, "SECONDS", "unit of the two above"),
    // Operations
    read(
        "kubesvc.operations.auth",
        SettingType::Choice(&["required", "none"]),
        "required",
        "whether callers of operations must be known to the operator's API server and have rights there; none: everybody \
         who reaches REST may change every account's cluster",
    ),
    read(
        "kubesvc.operations.retry.maxRetries",
        count(0, 1000),
        "3",
        "further runs of an operation whose outcome is unknown, if it may be done twice",
    ),
    read(
        "kubesvc.operations.history.maxRows",
        count(1, i64::MAX),
        "1000000",
        "most rows of the history of operations; beyond it the oldest go",
    ),
    read(
        "kubesvc.jobs.operation-history.purge.weeks",
        count(0, 5200),
        "1",
        "weeks for which the history of operations is kept",
    ),
    read(
        "kubesvc.jobs.operation-history.purge.cron",
        SettingType::Cron,
        "0 0 0 * * 0",
        "when the history is purged, in UTC: second, minute, hour, day of the month, month, day of the week",
    ),
    read(
        "kubesvc.ops.processTime.metric.result.maxLength",
        count(0, 65_535),
        "255",
        "longest label `result` of the metric `kubesvc_operations_seconds`",
    ),
    // The API of accounts
    read("kubesvc.gateway.enabled", SettingType::Flag, "false", "serve the Kubernetes API of accounts"),
    read("kubesvc.gateway.server.address", SettingType::Address, "*", "address of the API of accounts"),
    read("kubesvc.gateway.server.port", PORT, "6443", "port of the API of accounts"),
    read(
        "kubesvc.gateway.server.limits.perAddress",
        count(0, 1_000_000),
        "256",
        "connections to the API of accounts from one address (IPv6: /64), but those of the API server; 0: no bound",
    ),
    read(
        "kubesvc.gateway.server.limits.exempt",
        List(ListItem::Network),
        "",
        "networks for which that bound does not count",
    ),
    read(
        "kubesvc.gateway.tls.certificateFile",
        SettingType::Optional { max: 4096 },
        "",
        "its certificate, PEM; none: the operator makes one, in Secret kubesvc-gateway",
    ),
    read(
        "kubesvc.gateway.tls.keyFile",
        SettingType::Optional { max: 4096 },
        "",
        "private key of that certificate, PEM",
    ),
    inert(
        "kubesvc.operations.database.scan.*",
        "operations reach their replica directly, not by scanning a table",
        "scan for operations",
    ),
    inert("kubesvc.disableV2Provider", NO_V2, "leave the V2 provider out"),
    inert("kubesvc.v2-cache-eviction.disable", NO_V2, "keep the V2 provider's cache"),
    inert("kubesvc.v2-cache-eviction.batch-size", NO_V2, "kinds removed from that cache at once"),
    inert("kubesvc.v2-cache-eviction.millis", NO_V2, "time between two removals"),
    inert(
        "kubesvc.loadBalancer",
        "there is one way in which accounts are spread over agents",
        "how accounts are spread",
    ),
];

const MANAGED: &str = "cache only what Spinnaker deployed, where an account does not say";
const CUSTOM: &str = "what Spinnaker takes custom kinds for; deployPriority, versioned and namespaced have no effect: each \
     manifest is deployed as it is";
