//! A status to be written, made from the one before it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::cluster_identity::{self, IdentityCondition};
use super::context::LifecycleContext;
use super::observation::{AgentReport, ClusterIdentity, Fact, Presence, Tick};
use super::{Action, Decision, caching_agent, listed, retry};
use crate::account::conditions::{self, CLUSTER_IDENTITY, ConditionSummary, LISTED_BY_AGENT};
use crate::account::failure::{Failure, FailureClass, Outlook};
use crate::account::state::{GrantPhase, State};
use crate::account::status::{
    CachingAssignment, Grant, KubesvcAccountStatus, MAX_AGENTS_SHOWN, MAX_TRIED_ZONES, NameHolder,
};
use crate::account::{BootId, CachingEpoch};

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

/// A status in the making. What follows from its state and grant (conditions, agents, times) is filled in at the end,
/// so that no order of the steps before can make them disagree.
pub(super) struct StatusDraft<'a> {
    context: &'a LifecycleContext<'a>,
    status: KubesvcAccountStatus,
    /// The failure that the status speaks of.
    failure: Option<FailureClass>,
    /// A reason in place of the state's own.
    reason: Option<&'static str>,
    /// A sentence in place of the state's own.
    message: Option<String>,
    /// Whether the cluster that was reached just now is the one the account is bound to.
    recognised: Option<IdentityCondition>,
}

impl<'a> StatusDraft<'a> {
    /// The status as it is, seen at this generation, with a handled retry; every other draft starts from it.
    fn seen(context: &'a LifecycleContext<'a>) -> Self {
        let mut status = context.status.clone().into_owned();
        let generation = context.observation.account.generation();
        status.observed_generation = generation;
        if context.starts_anew() {
            status.failed_count = 0;
        }
        if context.tried_zones().is_empty() {
            status.tried_zones.clear();
        }
        if let Some(asked) = context.retry_asked() {
            status.retry_handled = Some(retry::mark(asked).into_owned());
        }
        if status.grant.is_none()
            && let Some(pinned) = &context.observation.account.spec.zone_id
        {
            status.zone_id = Some(pinned.clone());
        }
        let same_definition = !context.definition_is_new();
        if let Some(grant) = status.grant.as_mut().filter(|grant| grant.phase == GrantPhase::Open)
            && same_definition
        {
            grant.generation = generation;
        }
        Self { context, status, failure: None, reason: None, message: None, recognised: None }
    }

    /// The state stays; what is new is the generation or the retry that was seen.
    pub(super) fn acknowledged(context: &'a LifecycleContext<'a>) -> Self {
        Self { failure: context.failure_class(), ..Self::seen(context) }
    }

    /// A state without a failure.
    pub(super) fn to(context: &'a LifecycleContext<'a>, state: State) -> Self {
        let mut draft = Self::seen(context);
        draft.status.state = Some(state);
        if state == State::Inactive {
            draft.clear_cluster();
            draft.status.credential_version = None;
            draft.status.tried_zones.clear();
        }
        if matches!(state, State::Inactive | State::Active) {
            draft.status.failed_count = 0;
        }
        draft
    }

    /// ACTIVATING: the grant is open for the zone, under a new epoch.
    pub(super) fn open(context: &'a LifecycleContext<'a>, zone: &str) -> Self {
        let mut draft = Self::to(context, State::Activating);
        draft = draft.with_credential();
        let status = &mut draft.status;
        status.epoch = status.epoch.next();
        status.zone_id = Some(zone.to_owned());
        status.grant = Some(Grant {
            phase: GrantPhase::Open,
            zone: Some(zone.to_owned()),
            generation: context.observation.account.generation(),
            definition: Some(context.definition.clone()),
        });
        draft.with_message(format!("handed to the agents of zone {zone}"))
    }

    /// ACTIVE: an agent holds it, and this is the cluster it reached.
    pub(super) fn held(context: &'a LifecycleContext<'a>, identity: &ClusterIdentity) -> Self {
        let mut draft = Self::to(context, State::Active);
        let status = &mut draft.status;
        status.kube_host = some(&identity.host);
        status.kube_version = some(&identity.version);
        status.cert_fingerprint = some(&identity.cert_fingerprint);
        let recognised = cluster_identity::bind(status, identity);
        status.namespaces_count = i32::try_from(identity.namespaces_count).ok();
        status.tried_zones.clear();
        draft.recognised = Some(recognised);
        let zone = draft.status.granted_zone().map(str::to_owned).unwrap_or_default();
        caching_agent::with_election(context, &zone, draft)
    }

    /// FAILED, or DELETE_FAILED for an account that is being deleted; counted where a try was used up. What cannot pass
    /// by itself is not tried again, so that it counts once.
    pub(super) fn failed(context: &'a LifecycleContext<'a>, failure: &Failure) -> Self {
        let mut draft = Self::seen(context);
        let deleting = context.observation.account.is_being_deleted();
        let said_before =
            failure.class.outlook() == Outlook::CannotPass && context.failure_class() == Some(failure.class);
        let status = &mut draft.status;
        status.state = Some(if deleting { State::DeleteFailed } else { State::Failed });
        let counts = !said_before || status.failed_count == 0;
        if counts && !retry::waits_for_agents(failure.class) {
            let most = i32::try_from(context.observation.policy.max_retries).unwrap_or(i32::MAX);
            let most = most.saturating_add(1).max(status.failed_count);
            status.failed_count = status.failed_count.saturating_add(1).min(most);
        }
        status.error_message = Some(failure.message.clone());
        let retry = retry_after_failure(context, failure.class, status.failed_count);
        status.next_retry_time = retry.after.and_then(|after| wall_after(context, after));
        draft.failure = Some(failure.class);
        draft
    }

    /// This object has the account name.
    pub(super) fn name_held_by(mut self, holder: &NameHolder) -> Self {
        self.status.name_holder = Some(holder.clone());
        self
    }

    /// Something else is wanted now: nothing that failed before counts against it.
    pub(super) fn forgiven(mut self) -> Self {
        self.status.failed_count = 0;
        self
    }

    /// The grant is being revoked, under a new epoch.
    pub(super) fn revoking(mut self) -> Self {
        self.status.epoch = self.status.epoch.next();
        if let Some(grant) = &mut self.status.grant {
            grant.phase = GrantPhase::Revoking;
        }
        self.cached_by_nobody()
    }

    /// Nobody has the grant.
    pub(super) fn released(mut self) -> Self {
        self.status.grant = None;
        self.cached_by_nobody()
    }

    /// This process caches the account from now on.
    pub(super) fn cached_by(mut self, agent_id: &str, boot_id: &BootId) -> Self {
        let epoch = self.next_caching_epoch();
        let agent_id = some(agent_id);
        let boot_id = (!boot_id.is_empty()).then(|| boot_id.clone());
        self.status.caching = Some(CachingAssignment { agent_id, boot_id, epoch });
        self
    }

    /// Nobody caches the account from now on. The epoch grows, so that nothing more is taken from whoever did.
    fn cached_by_nobody(mut self) -> Self {
        if self.status.caching_agent().is_some() {
            let epoch = self.next_caching_epoch();
            self.status.caching = Some(CachingAssignment { epoch, ..CachingAssignment::default() });
        }
        self
    }

    fn next_caching_epoch(&self) -> CachingEpoch {
        self.status.caching.as_ref().map_or(CachingEpoch::NONE, |caching| caching.epoch).next()
    }

    /// The election that was asked for is held.
    pub(super) fn elected(mut self, asked: &str) -> Self {
        self.status.election_handled = Some(retry::mark(asked).into_owned());
        self
    }

    /// The failure that the status speaks of stays, and no try was used.
    pub(super) fn failed_as_before(context: &'a LifecycleContext<'a>) -> Self {
        let mut draft = Self::acknowledged(context);
        draft.status.state = Some(State::Failed);
        draft
    }

    /// The credential as it is now is the one that agents are asked about, or sent.
    pub(super) fn with_credential(mut self) -> Self {
        if let Fact::Known(Ok(credential)) = &self.context.observation.credential {
            self.status.credential_version.clone_from(&credential.version);
        }
        self
    }

    /// No credential is known to be good.
    pub(super) fn without_credential(mut self) -> Self {
        self.status.credential_version = None;
        self
    }

    /// This zone is not tried again in this round.
    pub(super) fn tried(mut self, zone: &str) -> Self {
        let tried = &mut self.status.tried_zones;
        if !tried.iter().any(|one| one == zone) && tried.len() < MAX_TRIED_ZONES {
            tried.push(zone.to_owned());
        }
        self
    }

    /// The round of looking for a zone is over; the next one begins with all zones.
    pub(super) fn round_over(mut self) -> Self {
        self.status.tried_zones.clear();
        self
    }

    /// These zones were asked; with others it is another question.
    pub(super) fn asked(mut self, zones: Vec<String>) -> Self {
        self.status.tried_zones = zones;
        self
    }

    /// Why the last zone was left; kept until the round is over.
    pub(super) fn because(mut self, failure: &Failure) -> Self {
        self.status.error_message = Some(failure.message.clone());
        self
    }

    /// A reason that says more than the state's own.
    pub(super) fn for_reason(mut self, reason: &'static str) -> Self {
        self.reason = Some(reason);
        self
    }

    /// A sentence that says more than the state's own.
    pub(super) fn with_message(mut self, message: String) -> Self {
        self.message = Some(message);
        self
    }

    /// An account that is made inactive is bound to no cluster any more.
    fn clear_cluster(&mut self) {
        let status = &mut self.status;
        status.kube_host = None;
        status.kube_version = None;
        status.cert_fingerprint = None;
        status.cluster_uid = None;
        status.token_keys_digest = None;
        status.authority_key_digest = None;
        status.cluster = None;
        status.namespaces_count = None;
    }

    fn finish(mut self) -> StatusWrite {
        let wall = Time(self.context.observation.wall);
        if self.status.state != self.context.status.state {
            self.status.last_transition_time = Some(wall.clone());
        }
        if !matches!(self.status.state(), State::Failed | State::DeleteFailed) {
            self.status.next_retry_time = None;
            if self.status.failed_count == 0 && self.status.tried_zones.is_empty() {
                self.status.error_message = None;
            }
        }
        if self.failure != Some(FailureClass::DuplicateName) {
            self.status.name_holder = None;
        }
        self.status.listed_by = listed::agent(self.context);
        self.show_agents();
        let zone = self.status.granted_zone();
        let connected = zone.is_some_and(|zone| self.context.connected(zone).next().is_some());
        let story = self.story();
        let generation = self.context.observation.account.generation();
        let before = &self.context.status.conditions;
        let caching = self.status.caching_agent().filter(|_| self.status.state() == State::Active);
        let identity = self.recognised.map(IdentityCondition::condition);
        let keeps_identity = identity.is_none() && self.status.kube_host.is_some();
        let kept = before.iter().find(|one| one.type_ == CLUSTER_IDENTITY).filter(|_| keeps_identity);
        let kept = kept.map(|one| (one.status.as_str(), one.reason.as_str(), one.message.as_str()));
        let mut told = conditions::tell(before, &story, connected, caching, generation, &wall);
        if let Some((holds, reason, message)) = identity.or(kept) {
            told.push(conditions::one(before, CLUSTER_IDENTITY, holds, reason, message, generation, &wall));
        }
        told.extend(listing(self.context, generation));
        self.status.conditions = told;
        let note = self.note(&story);
        StatusWrite { status: self.status, event: note }
    }

    fn story(&self) -> ConditionSummary {
        let status = &self.status;
        if let Some(class) = self.failure {
            let retry = retry_after_failure(self.context, class, status.failed_count);
            let message = status.error_message.clone().unwrap_or_default();
            return ConditionSummary::failed(class.reason(), message, retry.stalled);
        }
        let mut story =
            ConditionSummary::of_state(status.state(), self.context.observation.account.desired());
        if let Some(reason) = self.reason {
            reason.clone_into(&mut story.reason);
        }
        if let Some(message) = &self.message {
            story.message.clone_from(message);
        }
        match self.context.zone_awaited() {
            Some(zone) if status.phase() == GrantPhase::Open => {
                story.still_reconciling("ZoneAwaited", format!("moves when an agent of zone {zone} connects"))
            }
            _ => story,
        }
    }

    /// A failure is told each time it is written, anything else when the state changes.
    fn note(&self, story: &ConditionSummary) -> Option<EventDraft> {
        let (status, before) = (&self.status, &self.context.status);
        let news = self.failure.is_some()
            && (status.next_retry_time != before.next_retry_time
                || status.error_message != before.error_message);
        if !news && status.state == before.state {
            return None;
        }
        let message = match status.state() {
            State::Active => format!("held by {}", status.agents.join(", ")),
            _ => story.message.clone(),
        };
        let reason = match self.failure {
            Some(class) => class.reason(),
            None => self.reason.unwrap_or_else(|| conditions::state_reason(status.state())),
        };
        Some(EventDraft { warning: self.failure.is_some(), reason: reason.to_owned(), message })
    }

    fn show_agents(&mut self) {
        let epoch = self.context.status.epoch;
        let granted = self.status.granted_zone();
        let is_well = self.context.state() == State::Active;
        let listed = |agent_id: &String| self.context.status.agents.contains(agent_id);
        let mut holders: Vec<_> = granted
            .into_iter()
            .flat_map(|zone| self.context.sessions_of(zone))
            .filter(|session| session.presence == Presence::Connected)
            .filter(|session| match &session.report {
                Some((said, word)) if *said == epoch => matches!(word, AgentReport::Held(_)),
                // Another replica has it, and tells nothing while all is well.
                _ => is_well && session.process.remote && listed(&session.agent_id),
            })
            .map(|session| session.agent_id.clone())
            .collect();
        holders.sort();
        self.status.agent_count = i32::try_from(holders.len()).ok();
        holders.truncate(MAX_AGENTS_SHOWN);
        self.status.agents = holders;
    }
}

/// The status as it is but for what it says of an agent that lists the account's name too.
pub(super) fn listing_told(context: &LifecycleContext<'_>) -> Action {
    let mut status = context.status.clone().into_owned();
    let was_told = conditions::find(&status.conditions, LISTED_BY_AGENT).is_some();
    status.conditions.retain(|condition| condition.type_ != LISTED_BY_AGENT);
    let listing = listing(context, status.observed_generation);
    let news = listing.as_ref().filter(|_| !was_told);
    let note = news.map(|condition| EventDraft {
        warning: true,
        reason: LISTED_BY_AGENT.to_owned(),
        message: condition.message.clone(),
    });
    status.conditions.extend(listing);
    status.listed_by = listed::agent(context);
    Action::WriteStatus(Box::new(StatusWrite { status, event: note }))
}

fn listing(context: &LifecycleContext<'_>, generation: i64) -> Option<Condition> {
    let (reason, message) = listed::told(context)?;
    let (before, wall) = (&context.status.conditions, Time(context.observation.wall));
    Some(conditions::one(before, LISTED_BY_AGENT, "True", reason, &message, generation, &wall))
}

impl From<StatusDraft<'_>> for Decision {
    fn from(draft: StatusDraft<'_>) -> Self {
        Action::WriteStatus(Box::new(draft.finish())).into()
    }
}

/// What follows a failure, with deletion tried without a limit.
pub(super) fn retry_after_failure(
    context: &LifecycleContext<'_>,
    class: FailureClass,
    failed_count: i32,
) -> retry::Retry {
    let uid = context.observation.account.uid();
    let policy = context.observation.policy;
    if context.observation.account.is_being_deleted() {
        return retry::Retry { after: Some(retry::backoff(failed_count, uid, policy)), stalled: true };
    }
    retry::plan(class, failed_count, uid, policy)
}

fn wall_after(context: &LifecycleContext<'_>, after: Tick) -> Option<Time> {
    let seconds = i64::try_from(after).ok()?;
    let span = jiff::SignedDuration::from_secs(seconds);
    context.observation.wall.checked_add(span).ok().map(Time)
}

/// The epoch after this one.
fn some(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}
