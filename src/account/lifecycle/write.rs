//! A status to be written, made from the one before it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::observation::{Context, Fact, Identity, Presence, Tick, Word};
use super::retry;
use crate::account::conditions::{self, Story};
use crate::account::failure::{Failure, FailureClass};
use crate::account::state::{GrantPhase, State};
use crate::account::status::{Grant, KubesvcAccountStatus, MAX_AGENTS_SHOWN};

/// A status to be written, and the Event that tells of it.
#[derive(Clone, Debug, PartialEq)]
pub struct StatusWrite {
    /// The whole new status.
    pub status: KubesvcAccountStatus,
    /// What to tell people; absent where nothing they would look for has happened.
    pub note: Option<Note>,
}

/// A Kubernetes Event in the making.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Whether someone should worry.
    pub warning: bool,
    /// A word in CamelCase.
    pub reason: String,
    /// A sentence.
    pub message: String,
}

impl StatusWrite {
    /// The status as it is, seen at this generation, with a handled retry; every other write starts from it.
    fn seen(context: &Context<'_>) -> Self {
        let mut status = context.status.clone().into_owned();
        status.observed_generation = context.observation.account.generation();
        if let Some(asked) = context.retry_asked() {
            status.retry_handled = Some(asked.to_owned());
            status.failed_count = 0;
        }
        Self { status, note: None }
    }

    /// The state stays; what is new is the generation or the retry that was seen.
    pub(super) fn acknowledged(context: &Context<'_>) -> Self {
        let mut write = Self::seen(context);
        let class = context.failure_class();
        if let Some(grant) = write.status.grant.as_mut().filter(|grant| grant.phase == GrantPhase::Open) {
            grant.generation = context.observation.account.generation();
        }
        let story = match class {
            Some(class) => failure_story(context, class, &write.status),
            None => Story::of_state(write.status.state(), context.observation.account.desired()),
        };
        write.finish(context, story)
    }

    /// The account stays as it is until an agent of the zone it is to move to connects.
    pub(super) fn awaiting_zone(context: &Context<'_>, zone: &str) -> Self {
        let write = Self::seen(context);
        let story = Story::of_state(write.status.state(), context.observation.account.desired())
            .still_reconciling("ZoneAwaited", format!("moves when an agent of zone {zone} connects"));
        write.finish(context, story)
    }

    /// A state without a failure.
    pub(super) fn to(context: &Context<'_>, state: State) -> Self {
        let mut write = Self::seen(context);
        write.status.state = Some(state);
        if state == State::Inactive {
            write.clear_cluster();
        }
        if matches!(state, State::Inactive | State::Active) {
            write.status.failed_count = 0;
            write.status.error_message = None;
            write.status.next_retry_time = None;
        }
        let story = Story::of_state(state, context.observation.account.desired());
        write.finish(context, story)
    }

    /// ACTIVATING: the grant is open for the zone, under a new epoch.
    pub(super) fn open(context: &Context<'_>, zone: &str) -> Self {
        let mut write = Self::to(context, State::Activating);
        let account = context.observation.account;
        write.status.epoch += 1;
        write.status.zone_id = Some(zone.to_owned());
        write.status.next_retry_time = None;
        if let Fact::Known(Ok(credential)) = &context.observation.credential {
            write.status.credential_version.clone_from(&credential.version);
        }
        write.status.grant = Some(Grant {
            phase: GrantPhase::Open,
            zone: Some(zone.to_owned()),
            generation: account.generation(),
            definition: Some(context.definition.clone()),
        });
        write.with_note(context, format!("handed to the agents of zone {zone}"))
    }

    /// A new definition: nothing that failed before counts against it.
    pub(super) fn forgiven(mut self) -> Self {
        self.status.failed_count = 0;
        self.status.error_message = None;
        self
    }

    /// ACTIVE: these agents hold it, and this is the cluster they reached.
    pub(super) fn held(context: &Context<'_>, identity: &Identity) -> Self {
        let mut write = Self::to(context, State::Active);
        let status = &mut write.status;
        status.kube_host = some(&identity.host);
        status.kube_version = some(&identity.version);
        status.cert_fingerprint = some(&identity.cert_fingerprint);
        status.cluster_uid = some(&identity.cluster_uid).or(status.cluster_uid.take());
        status.namespaces_count = i32::try_from(identity.namespaces_count).ok();
        status.tried_zones.clear();
        let by = status.agents.join(", ");
        write.with_note(context, format!("held by {by}"))
    }

    /// FAILED, or DELETE_FAILED for an account that is being deleted; counted where a try was used up.
    pub(super) fn failed(context: &Context<'_>, failure: &Failure) -> Self {
        let mut write = Self::seen(context);
        let account = context.observation.account;
        let policy = context.observation.policy;
        let status = &mut write.status;
        status.state = Some(if account.is_being_deleted() { State::DeleteFailed } else { State::Failed });
        if !matches!(failure.class, FailureClass::NoAgent | FailureClass::ZoneAmbiguous) {
            let most = i32::try_from(policy.max_retries).unwrap_or(i32::MAX).saturating_add(1);
            status.failed_count = status.failed_count.saturating_add(1).min(most.max(status.failed_count));
        }
        status.error_message = Some(failure.message.clone());
        let retry = retry_after_failure(context, failure.class, status.failed_count);
        status.next_retry_time = retry.after.and_then(|after| wall_after(context, after));
        let story = failure_story(context, failure.class, status);
        let mut write = write.finish(context, story);
        let reason = failure.class.reason().to_owned();
        write.note = Some(Note { warning: true, reason, message: failure.message.clone() });
        write
    }

    /// The grant is being revoked, under a new epoch.
    pub(super) fn revoking(mut self) -> Self {
        self.status.epoch += 1;
        if let Some(grant) = &mut self.status.grant {
            grant.phase = GrantPhase::Revoking;
        }
        self
    }

    /// Nobody has the grant.
    pub(super) fn released(mut self) -> Self {
        self.status.grant = None;
        self.status.caching = None;
        self.status.agents.clear();
        self.status.agent_count = Some(0);
        self.status.credential_version = None;
        self
    }

    /// An account that is made inactive is bound to no cluster any more.
    fn clear_cluster(&mut self) {
        let status = &mut self.status;
        status.kube_host = None;
        status.kube_version = None;
        status.cert_fingerprint = None;
        status.cluster_uid = None;
        status.namespaces_count = None;
    }

    fn with_note(mut self, context: &Context<'_>, message: String) -> Self {
        if self.status.state() != context.state() || context.status.state.is_none() {
            let reason = conditions::state_reason(self.status.state()).to_owned();
            self.note = Some(Note { warning: false, reason, message });
        }
        self
    }

    fn finish(mut self, context: &Context<'_>, story: Story) -> Self {
        let wall = Time(context.observation.wall);
        if self.status.state != context.status.state {
            self.status.last_transition_time = Some(wall.clone());
        }
        self.show_agents(context);
        let connected =
            self.status.granted_zone().is_some_and(|zone| context.connected(zone).next().is_some());
        let generation = context.observation.account.generation();
        self.status.conditions =
            conditions::tell(&context.status.conditions, &story, connected, generation, &wall);
        let message = story.message;
        self.with_note(context, message)
    }

    fn show_agents(&mut self, context: &Context<'_>) {
        let epoch = context.status.epoch;
        let mut holders: Vec<_> = context
            .observation
            .sessions
            .iter()
            .filter(|session| session.presence == Presence::Connected)
            .filter(|session| matches!(&session.word, Some((said, Word::Held(_))) if *said == epoch))
            .map(|session| session.agent_id.clone())
            .collect();
        holders.sort();
        self.status.agent_count = i32::try_from(holders.len()).ok();
        holders.truncate(MAX_AGENTS_SHOWN);
        self.status.agents = holders;
    }
}

/// What follows a failure, with deletion tried without a limit.
pub(super) fn retry_after_failure(
    context: &Context<'_>,
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

fn failure_story(context: &Context<'_>, class: FailureClass, status: &KubesvcAccountStatus) -> Story {
    let retry = retry_after_failure(context, class, status.failed_count);
    let reason = class.reason();
    Story::failed(reason, status.error_message.clone().unwrap_or_default(), retry.stalled)
}

fn wall_after(context: &Context<'_>, after: Tick) -> Option<Time> {
    let seconds = i64::try_from(after).ok()?;
    let span = jiff::SignedDuration::from_secs(seconds);
    context.observation.wall.checked_add(span).ok().map(Time)
}

fn some(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}
