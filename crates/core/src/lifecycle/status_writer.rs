//! The one writer of a status. A rule says what changes; what follows from that (conditions, agents, times, the Event)
//! is filled in here, in one order, so that no two rules can make them disagree.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::caching_agent_election::{ElectionOutcome, election, requested_election};
use super::cluster_identity::{self, IdentityCondition};
use super::facts::Facts;
use super::observation::{AgentReport, ClusterIdentity, Fact, Presence, Tick};
use super::retry_schedule;
use super::status_change::{CredentialChange, GrantChange, StatusChange, StatusTarget, TriedZones};
use crate::conditions::{
    self, CLUSTER_IDENTITY, CREDENTIAL_AVAILABLE, ConditionSummary, LISTED_BY_AGENT, ZONE_AWAITED,
};
use crate::credential_expiry::CREDENTIAL_EXPIRING;
use crate::failure::{Failure, FailureClass, Outlook};
use crate::ids::{AgentId, ZoneId};
use crate::registration::{CLOUDDRIVER_ALSO, LEAVING_CLOUDDRIVER, SPINNAKER_REGISTERED};
use crate::status::{CachingAssignment, Grant, KubesvcAccountStatus, MAX_AGENTS_SHOWN, MAX_TRIED_ZONES};
use crate::{CachingEpoch, GrantPhase, State};

/// What is said while the account leaves Clouddriver.
const LEAVING_MESSAGE: &str = "it is removed from Clouddriver before its agents drop it";

/// A status to be written, and the Event that tells of it.
#[derive(Clone, Debug, PartialEq)]
pub struct StatusWrite {
    /// The whole new status.
    pub status: KubesvcAccountStatus,
    /// What to tell people; absent where nothing they would look for has happened.
    pub event: Option<EventDraft>,
}

/// A Kubernetes Event in the making.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventDraft {
    /// Whether someone should worry.
    pub warning: bool,
    /// A word in CamelCase.
    pub reason: String,
    /// A sentence.
    pub message: String,
}

/// The status with the change, and the Event that tells of it.
pub(super) fn write(change: StatusChange, facts: &Facts<'_>) -> StatusWrite {
    let mut status = facts.status.clone().into_owned();
    // Written by its own change alone, which has an Event.
    let expiry = match change.outcome {
        StatusTarget::Expiring => facts.expiry_warning(),
        _ => facts.expiry_said(),
    };
    let is_leaving = matches!(change.outcome, StatusTarget::LeavingClouddriver);
    let event = match change.outcome {
        StatusTarget::Listing => listing_event(facts),
        StatusTarget::TakenOver => taken_over_event(facts),
        StatusTarget::Expiring => expiry.clone().map(|(_, message)| EventDraft {
            warning: true,
            reason: CREDENTIAL_EXPIRING.to_owned(),
            message,
        }),
        StatusTarget::LeftOut => {
            show_left_out(facts, &mut status);
            None
        }
        StatusTarget::Registered => registration_event(facts),
        StatusTarget::LeavingClouddriver => Some(show_leaving_clouddriver(facts, &mut status)),
        _ => apply(change, facts, &mut status),
    };
    status.operator = facts.observation.policy.installation.clone().or(status.operator);
    status.listed_by = facts.listing_agent();
    let appended =
        [LISTED_BY_AGENT, CREDENTIAL_EXPIRING, CREDENTIAL_AVAILABLE, SPINNAKER_REGISTERED, CLOUDDRIVER_ALSO];
    status.conditions.retain(|one| !appended.contains(&one.type_.as_str()));
    status.conditions.extend(listing_condition(facts, status.observed_generation));
    let expiry = expiry.filter(|_| status.state() != State::Inactive);
    status.conditions.extend(expiry_condition(facts, expiry, status.observed_generation));
    let registration = match is_leaving {
        true => Some(("False", LEAVING_CLOUDDRIVER.to_owned(), LEAVING_MESSAGE.to_owned())),
        false => facts.clouddriver_condition(SPINNAKER_REGISTERED),
    };
    let also = facts.clouddriver_condition(CLOUDDRIVER_ALSO);
    let missing = facts
        .credential_on_clouddriver()
        .filter(|_| status.state() != State::Active)
        .map(|message| ("False", FailureClass::FileOnClouddriver.reason().to_owned(), message.to_owned()));
    let told =
        [(CREDENTIAL_AVAILABLE, missing), (SPINNAKER_REGISTERED, registration), (CLOUDDRIVER_ALSO, also)];
    for (type_, said) in told {
        let Some((holds, reason, message)) = said else { continue };
        let (before, wall) = (&facts.status.conditions, Time(facts.observation.wall));
        let generation = status.observed_generation;
        status.conditions.push(conditions::one(before, type_, holds, &reason, &message, generation, &wall));
    }
    StatusWrite { status, event }
}

fn apply(change: StatusChange, facts: &Facts<'_>, status: &mut KubesvcAccountStatus) -> Option<EventDraft> {
    acknowledge(facts, status);
    let (failure, recognised) = change.outcome.apply(facts, status);
    if change.is_electing {
        elect(facts, status);
    }
    change.grant.apply(facts, status);
    match (change.credential, &facts.observation.credential) {
        (CredentialChange::IsRecorded, Fact::Known(Ok(credential))) => {
            status.credential_version.clone_from(&credential.version);
        }
        (CredentialChange::IsForgotten, _) => status.credential_version = None,
        _ => {}
    }
    match change.tried_zones {
        TriedZones::Gain(zone) if status.tried_zones.contains(&zone) => {}
        TriedZones::Gain(zone) if status.tried_zones.len() < MAX_TRIED_ZONES => {
            status.tried_zones.push(zone);
        }
        TriedZones::Gain(_) | TriedZones::Stay => {}
        TriedZones::Are(zones) => status.tried_zones = zones,
    }
    if change.is_forgiven {
        status.failed_count = 0;
    }
    status.error_message = change.because.or(status.error_message.take());
    status.name_holder = change.name_holder.or(status.name_holder.take());
    follow(facts, status, failure);
    let summary = summary(facts, status, failure, change.reason, change.message.as_deref());
    status.conditions = lifecycle_conditions(facts, status, &summary, recognised);
    event(facts, status, &summary, failure, change.reason)
}

impl StatusTarget {
    /// The failure that the status speaks of after it, and what tells which cluster was reached.
    fn apply(
        self,
        facts: &Facts<'_>,
        status: &mut KubesvcAccountStatus,
    ) -> (Option<FailureClass>, Option<IdentityCondition>) {
        match self {
            Self::Listing
            | Self::LeftOut
            | Self::Expiring
            | Self::TakenOver
            | Self::Registered
            | Self::LeavingClouddriver
            | Self::Acknowledged => (facts.failure_class(), None),
            Self::FailedAsBefore => {
                status.state = Some(State::Failed);
                (facts.failure_class(), None)
            }
            Self::Failed(failure) => {
                let class = failure.class;
                fail(facts, status, failure);
                (Some(class), None)
            }
            Self::Held(identity) => {
                enter(status, State::Active);
                status.tried_zones.clear();
                (None, Some(show_cluster(status, &identity)))
            }
            Self::State(state) => {
                enter(status, state);
                (None, None)
            }
        }
    }
}

impl GrantChange {
    fn apply(self, facts: &Facts<'_>, status: &mut KubesvcAccountStatus) {
        match self {
            Self::Stays => {}
            Self::Opens(zone) => {
                status.epoch = status.epoch.next();
                status.zone_id = Some(zone.clone());
                status.grant = Some(Grant {
                    phase: GrantPhase::Open,
                    zone: Some(zone),
                    generation: facts.observation.account.generation(),
                    definition: Some(facts.definition.clone()),
                });
            }
            Self::IsRevoked => {
                status.epoch = status.epoch.next();
                if let Some(grant) = &mut status.grant {
                    grant.phase = GrantPhase::Revoking;
                }
                stop_caching(status);
            }
            Self::IsReleased => {
                status.grant = None;
                stop_caching(status);
            }
        }
    }
}

/// Notes what was seen: the generation, and a retry that is handled with it.
fn acknowledge(facts: &Facts<'_>, status: &mut KubesvcAccountStatus) {
    let generation = facts.observation.account.generation();
    status.observed_generation = generation;
    if facts.starts_anew() {
        status.failed_count = 0;
    }
    if facts.tried_zones().is_empty() {
        status.tried_zones.clear();
    }
    if let Some(asked) = facts.retry_asked() {
        status.retry_handled = Some(retry_schedule::mark(asked).into_owned());
    }
    if status.grant.is_none()
        && let Some(pinned) = &facts.observation.account.spec.zone_id
    {
        status.zone_id = Some(pinned.clone());
    }
    let same_definition = !facts.definition_is_new();
    if let Some(grant) = status.grant.as_mut().filter(|grant| grant.phase == GrantPhase::Open)
        && same_definition
    {
        grant.generation = generation;
    }
}

fn enter(status: &mut KubesvcAccountStatus, state: State) {
    status.state = Some(state);
    if matches!(state, State::Inactive | State::Active) {
        status.failed_count = 0;
    }
    if state == State::Inactive {
        // It is bound to no cluster any more.
        status.kube_host = None;
        status.kube_version = None;
        status.cert_fingerprint = None;
        status.cluster_uid = None;
        status.token_keys_digest = None;
        status.authority_key_digest = None;
        status.cluster = None;
        status.namespaces_count = None;
        status.credential_version = None;
        status.tried_zones.clear();
    }
}

fn fail(facts: &Facts<'_>, status: &mut KubesvcAccountStatus, failure: Failure) {
    let deleting = facts.observation.account.is_being_deleted();
    let said_before =
        failure.class.outlook() == Outlook::CannotPass && facts.failure_class() == Some(failure.class);
    status.state = Some(if deleting { State::DeleteFailed } else { State::Failed });
    let counts = !said_before || status.failed_count == 0;
    if counts && !retry_schedule::waits_for_agents(failure.class) {
        let most = i32::try_from(facts.observation.policy.max_retries).unwrap_or(i32::MAX);
        let most = most.saturating_add(1).max(status.failed_count);
        status.failed_count = status.failed_count.saturating_add(1).min(most);
    }
    status.error_message = Some(failure.message);
    let retry = retry_schedule::after_failure(facts, failure.class, status.failed_count);
    status.next_retry_time = retry.after.and_then(|after| wall_after(facts, after));
}

fn show_cluster(status: &mut KubesvcAccountStatus, identity: &ClusterIdentity) -> IdentityCondition {
    status.kube_host = some(&identity.host);
    status.kube_version = some(&identity.version);
    status.cert_fingerprint = some(&identity.cert_fingerprint);
    status.namespaces_count = i32::try_from(identity.namespaces_count).ok();
    cluster_identity::bind(status, identity)
}

/// Whoever is elected streams the objects from now on.
fn elect(facts: &Facts<'_>, status: &mut KubesvcAccountStatus) {
    let ElectionOutcome::Goes(agent_id, boot_id) = election(facts) else { return };
    let boot_id = (!boot_id.is_empty()).then(|| boot_id.clone());
    status.caching = Some(CachingAssignment {
        agent_id: (!agent_id.is_empty()).then(|| agent_id.clone()),
        boot_id,
        epoch: next_caching_epoch(status),
    });
    if let Some(asked) = requested_election(facts) {
        status.election_handled = Some(retry_schedule::mark(asked).into_owned());
    }
}

/// Nobody streams the objects from now on. The epoch grows, so that nothing more is taken from whoever did.
fn stop_caching(status: &mut KubesvcAccountStatus) {
    if status.caching_agent().is_some() {
        let epoch = next_caching_epoch(status);
        status.caching = Some(CachingAssignment { epoch, ..CachingAssignment::default() });
    }
}

fn next_caching_epoch(status: &KubesvcAccountStatus) -> CachingEpoch {
    status.caching.as_ref().map_or(CachingEpoch::NONE, |caching| caching.epoch).next()
}

/// What follows from the state and the grant.
fn follow(facts: &Facts<'_>, status: &mut KubesvcAccountStatus, failure: Option<FailureClass>) {
    if status.state != facts.status.state {
        status.last_transition_time = Some(Time(facts.observation.wall));
    }
    if !matches!(status.state(), State::Failed | State::DeleteFailed) {
        status.next_retry_time = None;
        if status.failed_count == 0 && status.tried_zones.is_empty() {
            status.error_message = None;
        }
    }
    if failure != Some(FailureClass::DuplicateName) {
        status.name_holder = None;
    }
    let mut holders = holders(facts, status.granted_zone());
    status.agent_count = i32::try_from(holders.len()).ok();
    holders.truncate(MAX_AGENTS_SHOWN);
    status.agents = holders;
}

/// The connected agents of the zone that hold the account, by name.
fn holders(facts: &Facts<'_>, zone: Option<&ZoneId>) -> Vec<AgentId> {
    let epoch = facts.status.epoch;
    let is_well = facts.state() == State::Active;
    let mut holders: Vec<_> = zone
        .into_iter()
        .flat_map(|zone| facts.sessions_of(zone))
        .filter(|session| session.presence == Presence::Connected)
        .filter(|session| match &session.report {
            Some((said, report)) if *said == epoch => matches!(report, AgentReport::Held(_)),
            // Another replica has it, and tells nothing while all is well.
            _ => is_well && session.process.remote && facts.status.agents.contains(&session.agent_id),
        })
        .map(|session| session.agent_id.clone())
        .collect();
    holders.sort();
    holders
}

fn summary(
    facts: &Facts<'_>,
    status: &KubesvcAccountStatus,
    failure: Option<FailureClass>,
    reason: Option<&str>,
    message: Option<&str>,
) -> ConditionSummary {
    if let Some(class) = failure {
        let retry = retry_schedule::after_failure(facts, class, status.failed_count);
        let message = status.error_message.clone().unwrap_or_default();
        return ConditionSummary::failed(class.reason(), message, retry.stalled);
    }
    let mut summary = ConditionSummary::of_state(status.state(), facts.observation.account.desired());
    if let Some(reason) = reason {
        reason.clone_into(&mut summary.reason);
    }
    if let Some(message) = message {
        message.clone_into(&mut summary.message);
    }
    match facts.zone_awaited() {
        Some(zone) if status.phase() == GrantPhase::Open => {
            summary.still_reconciling(ZONE_AWAITED, format!("moves when an agent of zone {zone} connects"))
        }
        _ => summary,
    }
}

/// The conditions but the one of [`listing_condition`]. What was recognised of the cluster stays until it is another one.
fn lifecycle_conditions(
    facts: &Facts<'_>,
    status: &KubesvcAccountStatus,
    summary: &ConditionSummary,
    recognised: Option<IdentityCondition>,
) -> Vec<Condition> {
    let (before, generation) = (&facts.status.conditions, status.observed_generation);
    let wall = Time(facts.observation.wall);
    let connected = status.granted_zone().is_some_and(|zone| facts.connected(zone).next().is_some());
    let caching = status.caching_agent().filter(|_| status.state() == State::Active);
    let left_out = caching.and_then(|_| facts.left_out());
    let mut lifecycle_conditions = conditions::standard_conditions(
        before,
        summary,
        connected,
        caching.map(|agent| (agent.as_str(), left_out.as_deref())),
        generation,
        &wall,
    );
    let kept = conditions::find(before, CLUSTER_IDENTITY).filter(|_| status.kube_host.is_some());
    let kept = kept.map(|one| (one.status.as_str(), one.reason.as_str(), one.message.as_str()));
    if let Some((holds, reason, message)) = recognised.map(IdentityCondition::condition).or(kept) {
        lifecycle_conditions.push(conditions::one(
            before,
            CLUSTER_IDENTITY,
            holds,
            reason,
            message,
            generation,
            &wall,
        ));
    }
    lifecycle_conditions
}

/// Says what is left out of the account's objects, and changes nothing else.
fn show_left_out(facts: &Facts<'_>, status: &mut KubesvcAccountStatus) {
    let left_out = facts.left_out();
    let caching = status.caching_agent().map(|agent| (agent.as_str(), left_out.as_deref()));
    let (before, wall) = (&facts.status.conditions, Time(facts.observation.wall));
    let condition = conditions::caching_condition(before, caching, status.observed_generation, &wall);
    match status.conditions.iter_mut().find(|one| one.type_ == conditions::CACHING) {
        Some(place) => *place = condition,
        None => status.conditions.push(condition),
    }
}

/// Says that the account is in progress because it leaves Clouddriver first, and changes nothing else.
fn show_leaving_clouddriver(facts: &Facts<'_>, status: &mut KubesvcAccountStatus) -> EventDraft {
    let (generation, wall) = (status.observed_generation, Time(facts.observation.wall));
    for (type_, holds) in [("Ready", "False"), ("Reconciling", "True"), ("Stalled", "False")] {
        let before = &facts.status.conditions;
        let said =
            conditions::one(before, type_, holds, LEAVING_CLOUDDRIVER, LEAVING_MESSAGE, generation, &wall);
        match status.conditions.iter_mut().find(|one| one.type_ == type_) {
            Some(place) => *place = said,
            None => status.conditions.push(said),
        }
    }
    EventDraft { warning: false, reason: LEAVING_CLOUDDRIVER.to_owned(), message: LEAVING_MESSAGE.to_owned() }
}

/// A failure is told each time it is written, anything else when the state changes.
fn event(
    facts: &Facts<'_>,
    status: &KubesvcAccountStatus,
    summary: &ConditionSummary,
    failure: Option<FailureClass>,
    reason: Option<&str>,
) -> Option<EventDraft> {
    let before = &facts.status;
    let needs_event = failure.is_some()
        && (status.next_retry_time != before.next_retry_time || status.error_message != before.error_message);
    if !needs_event && status.state == before.state {
        return None;
    }
    let message = match status.state() {
        State::Active => format!("held by {}", status.agents.join(", ")),
        _ => summary.message.clone(),
    };
    let reason = match failure {
        Some(class) => class.reason(),
        None => reason.unwrap_or_else(|| conditions::state_reason(status.state())),
    };
    Some(EventDraft { warning: failure.is_some(), reason: reason.to_owned(), message })
}

/// Tells of an agent that lists the account's name too, where the status did not.
fn listing_event(facts: &Facts<'_>) -> Option<EventDraft> {
    if conditions::find(&facts.status.conditions, LISTED_BY_AGENT).is_some() {
        return None;
    }
    let (_, message) = facts.listing_condition()?;
    Some(EventDraft { warning: true, reason: LISTED_BY_AGENT.to_owned(), message })
}

fn taken_over_event(facts: &Facts<'_>) -> Option<EventDraft> {
    let (now, before) = (facts.observation.policy.installation.as_ref()?, facts.status.operator.as_ref()?);
    let message = format!("served by {now} from now on; before, by {before}");
    Some(EventDraft { warning: false, reason: "TakenOver".to_owned(), message })
}

fn listing_condition(facts: &Facts<'_>, generation: i64) -> Option<Condition> {
    let (reason, message) = facts.listing_condition()?;
    let (before, wall) = (&facts.status.conditions, Time(facts.observation.wall));
    Some(conditions::one(before, LISTED_BY_AGENT, "True", reason, &message, generation, &wall))
}

/// Tells that Clouddriver has the account, or why it has not, where that is new.
fn registration_event(facts: &Facts<'_>) -> Option<EventDraft> {
    let (holds, reason, message) = facts.clouddriver_condition(SPINNAKER_REGISTERED)?;
    let said = conditions::find(&facts.status.conditions, SPINNAKER_REGISTERED);
    let is_new = said.is_none_or(|said| said.status != holds || said.reason != reason);
    is_new.then(|| EventDraft { warning: holds != "True", reason, message })
}

fn expiry_condition(
    facts: &Facts<'_>,
    warning: Option<(String, String)>,
    generation: i64,
) -> Option<Condition> {
    let (reason, message) = warning?;
    let (before, wall) = (&facts.status.conditions, Time(facts.observation.wall));
    Some(conditions::one(before, CREDENTIAL_EXPIRING, "True", &reason, &message, generation, &wall))
}

fn wall_after(facts: &Facts<'_>, after: Tick) -> Option<Time> {
    let seconds = i64::try_from(after).ok()?;
    let span = jiff::SignedDuration::from_secs(seconds);
    facts.observation.wall.checked_add(span).ok().map(Time)
}

fn some(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}
