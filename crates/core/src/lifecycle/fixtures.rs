//! Accounts, sessions and observations for tests, built in chains that read like English.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{
    AgentProcess, AgentReport, ClusterIdentity, CredentialFact, Decision, Fact, LifecyclePolicy, Observation,
    Offer, Presence, Rival, RowFact, SessionEnding, SessionFact, Tick, decide,
};
use crate::conditions::{self, ConditionSummary};
use crate::failure::{Failure, FailureClass};
use crate::spec::{KubeconfigSource, SecretKeyReference};
use crate::{
    CachingAssignment, CachingEpoch, DesiredState, FINALIZER, FORCE_DELETE_ANNOTATION, Grant, GrantEpoch,
    GrantPhase, KubesvcAccount, KubesvcAccountSpec, KubesvcAccountStatus, NameHolder, ORIGIN_AGENT,
    ORIGIN_LABEL, RETRY_ANNOTATION, State,
};

mod world;

pub(super) use world::World;

/// Wall time at tick 0.
pub(super) const EPOCH: Timestamp = Timestamp::UNIX_EPOCH;

/// Wall time at a tick.
pub(super) fn wall(now: Tick) -> Timestamp {
    EPOCH + SignedDuration::from_secs(i64::try_from(now).expect("a short test"))
}

impl Decision {
    pub(super) fn nothing() -> Self {
        Self::default()
    }

    pub(super) fn wait_until(tick: Tick) -> Self {
        Self { action: None, wake: Some(tick) }
    }
}

/// A new account with a Secret, as `kubectl apply` makes it: generation 1, no finalizer, the status the CRD defaults.
pub(super) fn account(name: &str) -> KubesvcAccount {
    let secret = SecretKeyReference { name: format!("{name}-kubeconfig"), key: None };
    let source = KubeconfigSource { secret_ref: Some(secret), ..KubeconfigSource::default() };
    let spec = KubesvcAccountSpec { kubeconfig: source, ..KubesvcAccountSpec::default() };
    let mut account = KubesvcAccount::new(name, spec);
    account.metadata.uid = Some(format!("uid-of-{name}"));
    account.metadata.namespace = Some("spinnaker".to_owned());
    account.metadata.generation = Some(1);
    account.metadata.resource_version = Some("1".to_owned());
    account.status =
        Some(KubesvcAccountStatus { observed_generation: -1, ..KubesvcAccountStatus::default() });
    account
}

/// What can be said of an account.
pub(super) trait AccountFixture: Sized {
    fn map(self, change: impl FnOnce(&mut KubesvcAccount)) -> Self;

    fn pinned(self, zone: &str) -> Self {
        self.map(|account| account.spec.zone_id = Some(zone.into()))
    }

    fn wanted_inactive(self) -> Self {
        self.map(|account| account.spec.state = Some(DesiredState::Inactive))
    }

    fn finalized(self) -> Self {
        self.map(|account| account.metadata.finalizers = Some(vec![FINALIZER.to_owned()]))
    }

    fn being_deleted(self) -> Self {
        self.map(|account| account.metadata.deletion_timestamp = Some(Time(EPOCH)))
    }

    fn annotated(self, key: &str, value: &str) -> Self {
        self.map(|account| {
            let annotations = account.metadata.annotations.get_or_insert_with(BTreeMap::new);
            annotations.insert(key.to_owned(), value.to_owned());
        })
    }

    fn asked_to_retry(self, value: &str) -> Self {
        self.annotated(RETRY_ANNOTATION, value)
    }

    fn force_deleted(self) -> Self {
        self.being_deleted().annotated(FORCE_DELETE_ANNOTATION, "yes")
    }

    /// The spec was changed, and nobody has looked at it since.
    fn edited(self) -> Self {
        self.map(|account| account.metadata.generation = account.metadata.generation.map(|before| before + 1))
    }

    fn in_state(self, state: State) -> Self {
        self.map(|account| {
            let generation = account.generation();
            let desired = account.desired();
            let status = account.status.get_or_insert_default();
            status.state = Some(state);
            status.observed_generation = generation;
            let story = ConditionSummary::of_state(state, desired);
            status.conditions =
                conditions::standard_conditions(&[], &story, true, None, generation, &Time(EPOCH));
        })
        .finalized()
    }

    fn granted(self, phase: GrantPhase, zone: &str, epoch: i64) -> Self {
        self.map(|account| {
            let definition = Some(account.spec.definition_digest());
            let generation = account.generation();
            let status = account.status.get_or_insert_default();
            status.epoch = GrantEpoch(epoch);
            status.zone_id = Some(zone.into());
            status.credential_version = Some(FIRST_SECRET.to_owned());
            status.grant = Some(Grant { phase, zone: Some(zone.into()), generation, definition });
        })
    }

    fn active_in(self, zone: &str) -> Self {
        self.in_state(State::Active).granted(GrantPhase::Open, zone, 1).bound_to("prod").cached_by("agent-1")
    }

    fn cached_by(self, agent: &str) -> Self {
        self.map(|account| {
            account.status.get_or_insert_default().caching = Some(CachingAssignment {
                agent_id: Some(agent.into()),
                boot_id: Some(format!("boot-of-{agent}").into()),
                epoch: CachingEpoch(1),
            });
        })
    }

    fn activating_in(self, zone: &str) -> Self {
        self.in_state(State::Activating).granted(GrantPhase::Open, zone, 1)
    }

    fn orphaned_in(self, zone: &str) -> Self {
        self.in_state(State::Orphaned).granted(GrantPhase::Open, zone, 1).bound_to("prod")
    }

    fn bound_to(self, cluster: &str) -> Self {
        self.map(|account| {
            let status = account.status.get_or_insert_default();
            let identity = cluster_named(cluster);
            status.cluster_uid = Some(identity.cluster_uid);
            status.token_keys_digest = Some(identity.token_keys_digest);
            status.authority_key_digest = Some(identity.authority_key_digest);
            status.kube_host = Some(identity.host);
            status.cert_fingerprint = Some(identity.cert_fingerprint);
        })
    }

    fn static_in(self, zone: &str) -> Self {
        self.pinned(zone).map(|account| {
            account.metadata.labels = Some([(ORIGIN_LABEL.to_owned(), ORIGIN_AGENT.to_owned())].into());
            account.spec.kubeconfig = file_source();
        })
    }

    fn with_the_agents_own(self) -> Self {
        self.map(|account| {
            account.spec.kubeconfig =
                KubeconfigSource { service_account: Some(true), ..KubeconfigSource::default() };
        })
    }

    fn with_a_file(self) -> Self {
        self.map(|account| account.spec.kubeconfig = file_source())
    }

    fn having_tried(self, zones: &[&str]) -> Self {
        self.map(|account| {
            let status = account.status.get_or_insert_default();
            status.tried_zones = zones.iter().map(|zone| (*zone).into()).collect();
        })
    }

    fn failed_with(self, class: FailureClass, count: i32) -> Self {
        self.in_state(State::Failed).map(|account| {
            let generation = account.generation();
            let status = account.status.get_or_insert_default();
            status.failed_count = count;
            status.error_message = Some("it failed".to_owned());
            let story = ConditionSummary::failed(class.reason(), "it failed".to_owned(), false);
            status.conditions =
                conditions::standard_conditions(&[], &story, true, None, generation, &Time(EPOCH));
        })
    }
}

impl AccountFixture for KubesvcAccount {
    fn map(mut self, change: impl FnOnce(&mut KubesvcAccount)) -> Self {
        change(&mut self);
        self
    }
}

fn file_source() -> KubeconfigSource {
    KubeconfigSource { file: Some("/etc/kubeconfigs/prod".to_owned()), ..KubeconfigSource::default() }
}

/// The version of an account's Secret before anyone changes it.
pub(super) const FIRST_SECRET: &str = "secret/1";

/// A credential that is there and good.
pub(super) fn good_credential() -> Fact<Result<CredentialFact, Failure>> {
    Fact::Known(Ok(CredentialFact::new(Some(FIRST_SECRET.to_owned()))))
}

/// A failure of a class.
pub(super) fn failure(class: FailureClass) -> Failure {
    Failure::new(class, format!("{class} happened"))
}

/// The cluster with this name.
pub(super) fn cluster_named(name: &str) -> ClusterIdentity {
    ClusterIdentity {
        cluster_uid: format!("uid-of-{name}"),
        token_keys_digest: format!("token-keys-of-{name}"),
        authority_key_digest: format!("authority-of-{name}"),
        host: format!("https://{name}:6443"),
        cert_fingerprint: format!("fingerprint-of-{name}"),
        version: "v1.33.1".to_owned(),
        namespaces_count: 4,
        refused: None,
    }
}

/// A connected session that has said nothing.
pub(super) fn session(agent: &str, zone: &str) -> SessionFact {
    SessionFact {
        agent_id: agent.into(),
        zone: zone.into(),
        approved: true,
        presence: Presence::Connected,
        process: AgentProcess { boot_id: format!("boot-of-{agent}").into(), ..AgentProcess::default() },
        report: None,
        silent_for: Some(0),
        unanswered: None,
        offer: None,
        lists: Fact::Unknown,
        cluster_uid: String::new(),
        caching: None,
    }
}

/// What can be said of a session.
pub(super) trait SessionFixture: Sized {
    fn says(self, epoch: i64, word: AgentReport) -> Self;
    fn away_since(self, tick: Tick) -> Self;
    fn silent_for(self, ticks: Tick) -> Self;
    fn not_approved(self) -> Self;
    fn ended(self, ending: SessionEnding) -> Self;
    fn of_process(self, boot: &str) -> Self;
    fn elsewhere(self) -> Self;
    fn offers(self, generation: i64, offer: Offer) -> Self;
    fn lists(self, lists: bool) -> Self;
    fn in_cluster(self, cluster: &str) -> Self;

    fn can(self) -> Self {
        self.offers(1, Offer::Yes)
    }

    fn held(self, epoch: i64) -> Self {
        self.held_in(epoch, "prod")
    }

    fn held_in(self, epoch: i64, cluster: &str) -> Self {
        self.says(epoch, AgentReport::Held(cluster_named(cluster)))
    }

    fn failed(self, epoch: i64, class: FailureClass) -> Self {
        self.says(epoch, AgentReport::Failed(failure(class)))
    }

    fn dropped(self, epoch: i64) -> Self {
        self.says(epoch, AgentReport::Dropped)
    }

    fn lost(self, epoch: i64) -> Self {
        self.says(epoch, AgentReport::Lost(failure(FailureClass::Unreachable)))
    }
}

impl SessionFixture for SessionFact {
    fn says(mut self, epoch: i64, word: AgentReport) -> Self {
        self.report = Some((GrantEpoch(epoch), word));
        self.silent_for = None;
        self
    }

    fn away_since(mut self, tick: Tick) -> Self {
        self.presence = Presence::Away(tick);
        self
    }

    fn silent_for(mut self, ticks: Tick) -> Self {
        self.silent_for = Some(ticks);
        self
    }

    fn not_approved(mut self) -> Self {
        self.approved = false;
        self
    }

    fn ended(mut self, ending: SessionEnding) -> Self {
        self.process.ending = ending;
        self
    }

    fn of_process(mut self, boot: &str) -> Self {
        self.process.boot_id = boot.into();
        self
    }

    fn elsewhere(mut self) -> Self {
        self.process.remote = true;
        self
    }

    fn offers(mut self, generation: i64, offer: Offer) -> Self {
        self.offer = Some((generation, offer));
        self
    }

    fn lists(mut self, lists: bool) -> Self {
        self.lists = Fact::Known(lists);
        self
    }

    fn in_cluster(mut self, cluster: &str) -> Self {
        self.cluster_uid = cluster_named(cluster).cluster_uid;
        self
    }
}

impl Default for LifecyclePolicy {
    fn default() -> Self {
        Self {
            max_retries: 3,
            retry_first: 5,
            retry_multiplier: 2.0,
            retry_max: 300,
            orphan_grace: 30,
            operation_wait: 30,
            account_cleanup: 600,
            clean_unused_accounts: false,
            offers: true,
            agent_wins: false,
            installation: None,
        }
    }
}

/// An observation long after the leader began, of an account with a row and a good credential.
pub(super) struct ObservationFixture {
    account: KubesvcAccount,
    policy: LifecyclePolicy,
    now: Tick,
    in_state_since: Tick,
    leading_since: Tick,
    credential: Fact<Result<CredentialFact, Failure>>,
    credential_slow: bool,
    row: RowFact,
    sessions: Vec<SessionFact>,
    sessions_are_read: bool,
    rival: Option<Rival>,
}

/// Begins an observation of an account.
pub(super) fn seen(account: KubesvcAccount) -> ObservationFixture {
    ObservationFixture {
        account,
        policy: LifecyclePolicy::default(),
        now: 1000,
        in_state_since: 1000,
        leading_since: 0,
        credential: good_credential(),
        credential_slow: false,
        row: RowFact::Present,
        sessions: Vec::new(),
        sessions_are_read: true,
        rival: None,
    }
}

impl ObservationFixture {
    pub(super) fn with(mut self, session: SessionFact) -> Self {
        self.sessions.push(session);
        self
    }

    pub(super) fn map_sessions(mut self, change: impl Fn(SessionFact) -> SessionFact) -> Self {
        self.sessions = self.sessions.into_iter().map(change).collect();
        self
    }

    pub(super) fn row(mut self, row: RowFact) -> Self {
        self.row = row;
        self
    }

    pub(super) fn without_row(self) -> Self {
        self.row(RowFact::Absent)
    }

    pub(super) fn without_database(self) -> Self {
        self.row(RowFact::Unavailable)
    }

    pub(super) fn credential(mut self, fact: Fact<Result<CredentialFact, Failure>>) -> Self {
        self.credential = fact;
        self
    }

    pub(super) fn slowly(mut self) -> Self {
        self.credential = Fact::Unknown;
        self.credential_slow = true;
        self
    }

    pub(super) fn by_a_new_leader(mut self) -> Self {
        self.leading_since = self.now;
        self
    }

    pub(super) fn seen_by_a_watch_alone(mut self) -> Self {
        self.sessions_are_read = false;
        self
    }

    /// Another object has the account name.
    pub(super) fn taken_by(mut self, namespace: &str, name: &str) -> Self {
        let object = NameHolder { namespace: namespace.to_owned(), name: name.to_owned() };
        self.rival = Some(Rival { object, is_static: false });
        self
    }

    pub(super) fn cleaning_unused_accounts(mut self) -> Self {
        self.policy.clean_unused_accounts = true;
        self
    }

    pub(super) fn after(mut self, ticks: Tick) -> Self {
        self.now += ticks;
        self
    }

    pub(super) fn decide(&self) -> Decision {
        decide(&Observation {
            account: &self.account,
            now: self.now,
            wall: wall(self.now),
            leading_since: self.leading_since,
            policy: &self.policy,
            in_state_since: self.in_state_since,
            credential: self.credential.clone(),
            credential_slow: self.credential_slow,
            credential_changed: false,
            credential_expiry: Fact::Unknown,
            row: self.row,
            sessions: &self.sessions,
            sessions_are_read: self.sessions_are_read,
            backlog_since: None,
            rival: self.rival.as_ref(),
            listed_by: Fact::Known(None),
            name_is_held: false,
            left_out_written: None,
            unreadable_replaced_from: 0,
            clouddriver_file: None,
            registration: None,
        })
    }

    /// The status that is decided on.
    pub(super) fn written(&self) -> KubesvcAccountStatus {
        match self.decide().action {
            Some(super::Action::WriteStatus(write)) => write.status,
            other => unreachable!("a status write was expected, not {other:?}"),
        }
    }
}
