//! The keys of the agent's file that have no effect, or are refused, each with the reason.

use kubesvc_runtime::config::Unread::{self, Inert, Refused};
use kubesvc_runtime::config::{ANY, FLAG, SECRET, SettingType, TEXTS};

use super::NO_PROXY;

const PPROF: &str = "it profiles Go programs";
const AT_ONCE: &str = "a list begins as soon as the budgets allow it";
const RECALLED: &str = "the operator asks for a lost answer again until the request's own deadline";
const CLOUDDRIVERS: &str = "Clouddriver knows it, and the agent has no use for it";
const VAULT: &str = "Vault is not asked for secrets; leave this out, and give kubeconfigs as files";
const ROTATION: &str = "logs go to standard output, where the container runtime keeps and rotates them";

pub(super) const KEYS: &[Unread] = &[
    Inert(
        NO_PROXY,
        ANY,
        "",
        &[
            ("clouddriver.noProxy", "dial the hub past the proxy of the environment"),
            ("kubernetes.noProxy", "reach clusters past the proxy of the environment"),
        ],
    ),
    Inert(
        RECALLED,
        ANY,
        "clouddriver.responseRetries",
        &[("maxRetries", "how often a lost answer is sent again"), ("backOffMs", "wait between two tries")],
    ),
    Inert(
        "sign-in plugins of cloud providers are not built in",
        ANY,
        "kubernetes.accounts[]",
        &[("oAuthScopes", "scopes of a GCP sign-in")],
    ),
    Inert(
        CLOUDDRIVERS,
        ANY,
        "kubernetes.accounts[]",
        &[
            ("providerVersion", "version of the provider"),
            ("environment", "Spinnaker's environment of the account"),
            ("accountType", "Spinnaker's type of the account"),
            ("skin", "how it is shown"),
            ("kubectlExecutable", "path of kubectl"),
            ("kubectlRequestTimeoutSeconds", "longest request of kubectl"),
            ("oAuthServiceAccount", "service account of a GCP sign-in"),
            ("cacheThreads", "threads that cache"),
            ("cacheIntervalSeconds", "pace of caching"),
            ("cacheAllApplicationRelationships", "cache all relationships"),
            ("cachingPolicies", "bounds of caching"),
            ("checkPermissionsOnStartup", "look which kinds may be listed"),
            ("customResources", "how Spinnaker treats further kinds"),
            ("debug", "log more"),
            ("liveManifestCalls", "read manifests from the cluster"),
            ("namingStrategy", "how names are made"),
            ("rawResourcesEndpointConfig", "kinds of the raw resources"),
            ("configureImagePullSecrets", "make pull secrets"),
            ("dockerRegistries", "registries of the account"),
        ],
    ),
    Inert(CLOUDDRIVERS, SECRET, "kubernetes.accounts[]", &[("kubeconfigContents", "a kubeconfig")]),
    Refused(
        "the agent does not read it; write the groups as roles under READ and WRITE of permissions",
        "kubernetes.accounts[]",
        &[("requiredGroupMembership", SettingType::List(TEXTS), "", "groups that may read and write")],
    ),
    Inert(
        "accounts are taken over by the operator: it belongs in its file",
        ANY,
        "dynamicAccounts",
        &[
            ("interceptor.enabled", "take over accounts that Clouddriver adds"),
            ("scanBatchSize", "accounts taken over at once"),
            ("scanFrequencySeconds", "pace of taking over"),
            ("namePatterns", "names taken over from the database"),
            ("credentialScanNamePatterns", "names taken over from credential sources"),
        ],
    ),
    Inert(PPROF, ANY, "pprof", &[("enabled", "profiling endpoint"), ("port", "port of that endpoint")]),
    Refused(
        VAULT,
        "secrets.vault",
        &[("enabled", FLAG, "false", "ask Vault for secrets"), ("*", SECRET, "", "where secrets are kept")],
    ),
    Inert(AT_ONCE, ANY, "tasks", &[("queueCheckFrequencyMs", "pace of looking for further work")]),
    Inert(
        ROTATION,
        ANY,
        "logging",
        &[
            ("file", "log file"),
            ("multiWrite", "log file and standard output at once"),
            ("maxSizeMb", "size at which the log file is rotated"),
            ("maxAgeDays", "age of the oldest log file"),
            ("maxBackups", "number of rotated log files"),
            ("compress", "compression of rotated log files"),
        ],
    ),
    Inert("log times are always UTC", ANY, "logging", &[("localTime", "local time in logs")]),
];
