//! Derives the settings of each part from the operator's settings.

use std::collections::HashSet;
use std::time::Duration;

use tracing::warn;

use super::hub_tls::HubTls;
use super::kube_client::RunLocation;
use super::settings::{Approval, CacheSettings, ClusterMode, OperatorSettings};
use crate::controller::AdoptedRows;
use crate::credentials_sources::SourcePlace;
use crate::hub::{
    AbsentAgentSettings, AdmissionSettings, AssignmentChecks, CachingSettings, HubSettings, IdentityMode,
    ListenerSettings, SessionSettings, StaticAccountSettings,
};
use crate::migration::ScannerSettings;
use crate::operations::OperationSettings;
use crate::registration;
use crate::rest::{BrowserRules, RestAuthMode, RestSettings};
use kubesvc_clouddriver::registration::{RegistrationSettings, RegistrationTimes};
use kubesvc_core::lifecycle::LifecyclePolicy;
use kubesvc_core::name_precedence::Precedence;
use kubesvc_core::not_watched;
use kubesvc_core::source_rules::{NamespaceSet, SourceRules};
use kubesvc_runtime::crash_points;

/// Maximum number of connections from agents.
const MAX_AGENT_CONNECTIONS: usize = 20_000;
/// Maximum number of REST connections.
const REST_CONNECTIONS: usize = 4096;

/// Maximum numbers of open connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Connections {
    /// From agents.
    pub(super) agents: usize,
    /// From REST clients.
    pub(super) rest: usize,
}

impl Connections {
    /// As many as the limit of open files allows: five eighths for agents, a quarter for REST. One eighth is left for
    /// probes, the API server and the database, so that no crowd of clients can block them.
    pub(super) fn within(open_files: u64) -> Self {
        let open_files = usize::try_from(open_files).unwrap_or(usize::MAX);
        let (agents, rest) = (open_files / 8 * 5, open_files / 4);
        Self { agents: agents.min(MAX_AGENT_CONNECTIONS), rest: rest.min(REST_CONNECTIONS) }
    }

    /// To the API of accounts: from the eighth that is left, since most of its callers come over a few connections of the
    /// API server.
    pub(super) fn gateway(self) -> usize {
        (self.rest / 4).max(16)
    }

    /// Whether the limit of open files lowers them.
    pub(super) fn are_fewer(self) -> bool {
        self.agents < MAX_AGENT_CONNECTIONS || self.rest < REST_CONNECTIONS
    }
}

/// Whether other replicas may exist. A SQLite file belongs to a single one.
pub(super) fn may_have_peers(settings: &OperatorSettings) -> bool {
    settings.cluster_mode != ClusterMode::Local && kubesvc_store::serves_several(&settings.database_url)
}

/// Whether agents are approved automatically.
pub(super) fn approves(settings: &OperatorSettings) -> bool {
    settings.agents.approval == Approval::Auto
}

/// Maximum number of registrations per second of agents that were never approved: a tenth of all, at least one; 0:
/// unlimited.
pub(super) fn unapproved_registration_qps(registration_qps: u32) -> u32 {
    registration_qps.div_ceil(10)
}

pub(super) fn hub_settings(
    settings: &OperatorSettings,
    location: &RunLocation,
    rest_port: u16,
    connections: Connections,
    tls: Option<&HubTls>,
) -> HubSettings {
    let policy = policy(settings, location);
    let accounts_namespace = accounts_namespace(settings, location);
    let usual = AbsentAgentSettings::default();
    HubSettings {
        replica_id: location.replica_id.clone(),
        listener: ListenerSettings {
            address: settings.grpc.address.clone(),
            port: settings.grpc.port,
            health_service: settings.grpc.health_service_enabled,
            connection_cap: connections.agents,
            limits: settings.grpc.limits.clone(),
            rest_port: Some(rest_port),
            tls: tls.map(HubTls::server),
            subjects: settings.agent_subjects.clone(),
            pings: settings.grpc.keepalive,
            ..ListenerSettings::default()
        },
        sessions: SessionSettings {
            max_message_bytes: settings.grpc.max_inbound_message_size,
            cuts_off_silent: settings.heartbeat.enabled,
            operation_wait: policy.operation_wait,
            clustered: may_have_peers(settings),
            ..SessionSettings::default()
        },
        admission: AdmissionSettings {
            approves_new: approves(settings),
            registration_qps: settings.kubernetes.registration_qps,
            orphan_grace: Duration::from_secs(policy.orphan_grace),
        },
        absent_agents: AbsentAgentSettings {
            forget_after: policy.orphan_grace.saturating_mul(2),
            remove_after: crash_points::seconds("KUBESVC_AGENTS_GONE_SECONDS", usual.remove_after),
            forget_approved_after: settings.agents.forget_approved_after,
            account_cleanup: policy.account_cleanup,
            ..usual
        },
        static_accounts: StaticAccountSettings {
            watched: location.watches(&accounts_namespace),
            namespace: accounts_namespace,
        },
        assignment_checks: AssignmentChecks {
            initial_delay: settings.heartbeat.initial_delay,
            period: settings.heartbeat.period,
        },
    }
}

pub(super) fn caching_settings(settings: &CacheSettings) -> CachingSettings {
    CachingSettings {
        pending_bytes: settings.pending_bytes,
        writers: usize::try_from(settings.writers).unwrap_or(usize::MAX),
        body_format: settings.body_format,
    }
}

/// Namespace in which accounts from REST, from agents' own files, and from rows are created.
pub(super) fn accounts_namespace(settings: &OperatorSettings, location: &RunLocation) -> String {
    settings.dynamic_accounts.namespace.clone().unwrap_or_else(|| location.namespace.clone())
}

/// What the documented settings take over from credentials sources; `None`: nothing.
pub(super) fn scanner_settings(settings: &OperatorSettings) -> Option<ScannerSettings> {
    let dynamic = &settings.dynamic_accounts;
    let (sql, other) = (&dynamic.name_patterns, &dynamic.credential_scan_name_patterns);
    if sql.is_empty() && other.is_empty() {
        return None;
    }
    if !dynamic.enabled {
        warn!("nothing is taken over from credentials sources: kubesvc.dynamicAccounts.enabled is false");
        return None;
    }
    let sources = settings.credentials_sources.sources.iter();
    let of_table = sources.filter(|source| matches!(source.place, SourcePlace::Sql { .. }));
    Some(ScannerSettings {
        sql_patterns: sql.clone(),
        other_patterns: other.clone(),
        sql_sources: of_table.map(|source| source.name.clone()).collect(),
        batch_size: dynamic.scan_batch_size,
        interval: dynamic.scan_frequency,
    })
}

/// Where rows become accounts.
pub(super) fn adopted_rows(settings: &OperatorSettings, location: &RunLocation) -> AdoptedRows {
    let namespace = accounts_namespace(settings, location);
    AdoptedRows { watched: location.watches(&namespace), namespace }
}

pub(super) fn rest_settings(settings: &OperatorSettings, location: &RunLocation) -> RestSettings {
    let accounts_namespace = accounts_namespace(settings, location);
    let accounts_watched = location.watches(&accounts_namespace);
    if settings.dynamic_accounts.enabled && !accounts_watched {
        warn!(
            "accounts cannot be added by REST or from agents' own files: {}",
            not_watched(&accounts_namespace)
        );
    }
    RestSettings {
        max_body_bytes: settings.server.max_body_bytes,
        dynamic_accounts_enabled: settings.dynamic_accounts.enabled,
        accounts_namespace,
        accounts_watched,
        replica_id: location.replica_id.clone(),
        source_rules: source_rules(settings, location),
        browsers: BrowserRules {
            hosts: settings.server.hosts.clone(),
            allowed_origins: settings.server.allowed_origins.clone(),
        },
        auth_mode: settings.rest_auth.mode,
        operator_namespace: location.namespace.clone(),
    }
}

pub(super) fn operation_settings(settings: &OperatorSettings, location: &RunLocation) -> OperationSettings {
    let operations = &settings.operations;
    OperationSettings {
        replica_id: location.replica_id.clone(),
        write_time: settings.operation_wait,
        read_time: settings.read_wait,
        max_retries: operations.max_retries,
        kept_for: operations.kept_for,
        purge: operations.purge.clone(),
        max_rows: operations.max_rows,
        max_result_label: operations.max_result_label,
        hides_accounts: settings.rest_auth.mode == RestAuthMode::Enforce,
    }
}

/// The settings of the lifecycle.
pub(super) fn policy(settings: &OperatorSettings, location: &RunLocation) -> LifecyclePolicy {
    let accounts = &settings.dynamic_accounts;
    LifecyclePolicy {
        max_retries: accounts.max_retries,
        retry_first: accounts.retry_frequency.as_secs(),
        retry_multiplier: accounts.retry_multiplier,
        retry_max: accounts.retry_max_delay.as_secs(),
        orphan_grace: accounts.orphan_grace.as_secs(),
        operation_wait: settings.operation_wait.as_secs().max(1),
        account_cleanup: settings.account_cleanup.as_secs(),
        clean_unused_accounts: settings.cache.clean_unused_accounts,
        // Where identities count, each says whether its agents may offer.
        offers: settings.agents.offers || settings.agent_identities == Some(IdentityMode::Bound),
        agent_wins: accounts.agent_wins,
        installation: Some(location.installation.clone()),
    }
}

/// Which accounts are registered in Clouddriver, and how.
pub(super) fn registration_policy(
    settings: &OperatorSettings,
    location: &RunLocation,
) -> registration::Policy {
    let push = &settings.clouddriver.push;
    let own = &location.namespace;
    let namespaces: HashSet<String> = match push.namespaces.is_empty() {
        true => [own.clone()].into(),
        false => push.namespaces.iter().cloned().collect(),
    };
    for namespace in push.namespaces.iter().filter(|one| push.enabled && !location.watches(one)) {
        warn!(
            "accounts of kubesvc.clouddriver.push.namespaces are not registered: {}",
            not_watched(namespace)
        );
    }
    let gateway = push.gateway.clone().unwrap_or_else(|| format!("https://kubesvc-operator.{own}.svc:6443"));
    registration::Policy {
        registers: push.enabled,
        namespaces,
        definitions: RegistrationSettings {
            gateway: gateway.trim_end_matches('/').to_owned(),
            token_file: push.token_file.clone(),
            ca_file: push.ca_file.clone(),
            cache_interval_seconds: push.cache_interval_seconds,
            installation: location.installation.uid.clone(),
        },
        times: RegistrationTimes { poll: push.poll.as_secs(), resync: push.resync.as_secs() },
        force: push.force,
        fills_namespaces: push.fill_namespaces,
    }
}

/// Which of several objects with the same account name has precedence.
pub(super) fn precedence(settings: &OperatorSettings) -> Precedence {
    Precedence { agent_wins: settings.dynamic_accounts.agent_wins }
}

/// Which accounts may use credentials that are not in their own namespace.
pub(super) fn source_rules(settings: &OperatorSettings, location: &RunLocation) -> SourceRules {
    let accounts = &settings.accounts;
    SourceRules {
        agent_sources: namespaces(&accounts.agent_sources, &location.namespace),
        operator_files: namespaces(&accounts.operator_files, &location.namespace),
        secrets: settings.secrets.namespaces.iter().cloned().collect(),
        noop: settings.secrets.noop,
    }
}

fn namespaces(set: &[String], own: &str) -> NamespaceSet {
    if set.iter().any(|one| one == "*") {
        return NamespaceSet::All;
    }
    let named = |one: &String| if one == "." { own.to_owned() } else { one.clone() };
    NamespaceSet::These(set.iter().map(named).collect())
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::{Request, Response};
    use kubesvc_core::Installation;
    use kubesvc_runtime::config::UnknownKeys;
    use kubesvc_runtime::kube_access::KubeAccess;

    use super::*;
    use crate::hub::BodyFormat;
    use crate::operator::settings;

    fn loaded(yaml: &str) -> OperatorSettings {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), yaml).expect("written");
        settings::load(&[file.path().to_owned()], &|_| None, UnknownKeys::Error).expect("valid").settings
    }

    /// A location in namespace `own`, with an API server that is never asked.
    fn location() -> RunLocation {
        let served = tower::service_fn(|_: Request<kube::client::Body>| async {
            Ok::<_, std::io::Error>(Response::new(Body::empty()))
        });
        RunLocation {
            kube: KubeAccess::new(kube::Client::new(served, "own"), "test"),
            config: kube::Config::new("https://127.0.0.1".parse().expect("a URI")),
            namespace: "own".to_owned(),
            installation: Installation { namespace: "own".to_owned(), uid: "u".to_owned() },
            replica_id: "r-0".into(),
            watched: vec![None],
        }
    }

    #[tokio::test]
    async fn settings_of_accounts_reach_the_lifecycle_and_the_rules() {
        let (usual, location) = (loaded(""), location());
        let settings = loaded(
            "kubesvc: {cache.cleanDataWithUnusedAccounts: false, agents.offers: false, accounts.agentSources: [., team]}",
        );
        let (before, after) = (policy(&usual, &location), policy(&settings, &location));
        assert!(before.clean_unused_accounts && before.offers);
        assert!(!after.clean_unused_accounts && !after.offers);
        assert_eq!(source_rules(&usual, &location).agent_sources, NamespaceSet::All);
        let named = NamespaceSet::These(["own".to_owned(), "team".to_owned()].into());
        assert_eq!(source_rules(&settings, &location).agent_sources, named);
    }

    #[test]
    fn settings_of_the_cache_reach_its_writers() {
        assert_eq!(caching_settings(&loaded("").cache).body_format, BodyFormat::Text);
        let settings = loaded("kubesvc.cache: {bodyFormat: zstd, eventsCleanupFrequencySeconds: 60}");
        assert_eq!(caching_settings(&settings.cache).body_format, BodyFormat::Zstd);
        assert_eq!(settings.cache.event_lifetime, Duration::from_secs(60));
    }

    #[test]
    fn defaults_of_accounts_reach_the_rules_by_which_agents_choose() {
        let settings = loaded(
            "kubesvc.runtime: {defaults: {onlySpinnakerManaged: true, customResources: [{kubernetesKind: \
             Rollout.argoproj.io, spinnakerKind: serverGroupManagers}]}, accounts: {plain: {onlySpinnakerManaged: false}}}",
        );
        let of = |settings: &OperatorSettings, account: &str| {
            let defaults = &settings.cache.defaults;
            (defaults.only_spinnaker_managed(account), defaults.classes(account, &[]))
        };
        let (usual, chosen) = (of(&loaded(""), "prod"), of(&settings, "prod"));
        assert!(!usual.0 && chosen.0 && !of(&settings, "plain").0);
        assert_ne!(
            format!("{:?}", usual.1),
            format!("{:?}", chosen.1),
            "Spinnaker takes the kind for another"
        );
    }

    #[test]
    fn a_dot_stands_for_the_operators_own_namespace_and_an_empty_list_for_none() {
        let of =
            |set: &[&str]| namespaces(&set.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>(), "own");
        assert_eq!(of(&["*"]), NamespaceSet::All);
        assert_eq!(of(&[".", "team"]), NamespaceSet::These(["own".to_owned(), "team".to_owned()].into()));
        assert_eq!(of(&[]), NamespaceSet::These([].into()));
    }

    #[test]
    fn connections_leave_an_eighth_of_the_open_files_to_everything_else() {
        let usual = Connections::within(1024);
        assert_eq!((usual.agents, usual.rest, usual.are_fewer()), (640, 256, true));
        let many = Connections::within(u64::MAX);
        assert_eq!((many.agents, many.rest, many.are_fewer()), (20_000, 4096, false));
        assert!(!Connections::within(32_000).are_fewer());
    }

    #[test]
    fn a_tenth_of_the_registrations_may_be_of_strangers() {
        assert_eq!([0, 1, 10, 11, 50].map(unapproved_registration_qps), [0, 1, 1, 2, 5]);
    }
}
