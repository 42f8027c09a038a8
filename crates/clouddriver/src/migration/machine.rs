//! The next step of a migration: one observation in, at most one action out.
//!
//! The rules are asked in order, and the first that answers decides. They hold these invariants together:
//!
//! - an account is created or activated only while the spec selects it and an entry describes it;
//! - an account that another client created or changed is left unchanged;
//! - a declined account stays declined until its entry changes or the spec lists it, whoever leads;
//! - what takes an account back needs to know that nobody has changed it since;
//! - absence from the sources needs two complete reads.

use kubesvc_core::KubesvcMigrationStatus;
use kubesvc_core::lifecycle::Tick;
use kubesvc_core::migration::{MigrationPhase, MigrationRollback};

use super::batches::{MAX_BATCH, batch};
use super::observation::{AccountFact, MigrationObservation};
use super::plan::Plan;
use super::progress::{MigrationProgress, PauseReason};
use super::{rollback, source_changes, status, waves};

/// The one thing to do now. A list has at most [`MAX_BATCH`](super::batches::MAX_BATCH) accounts, each of which is one
/// write of its own; the caller may stop between two of them at any time.
#[derive(Clone, Debug, PartialEq)]
pub enum MigrationAction {
    /// Create the accounts of the plan, INACTIVE.
    Create(Vec<String>),
    /// Make the accounts ACTIVE.
    Activate(Vec<String>),
    /// Replace the specs of the accounts by those of the plan, except for their states.
    Update(Vec<String>),
    /// Make the accounts INACTIVE.
    Deactivate(Vec<String>),
    /// Delete the accounts.
    Delete(Vec<String>),
    /// Add the accounts, with the hashes of their entries, to the declined ones.
    Decline(Vec<(String, String)>),
    /// Let the accounts go that are being deleted.
    Release(Vec<String>),
    /// Write the status.
    WriteStatus(Box<KubesvcMigrationStatus>),
}

/// What to do now, and when to look again if nothing wakes us before.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MigrationDecision {
    /// At most one action.
    pub action: Option<MigrationAction>,
    /// Look again at this tick; absent: a change of something observed will wake us.
    pub wake: Option<Tick>,
}

/// What a rule decides, and how it is shown.
pub(super) struct PhaseStep {
    pub(super) phase: MigrationPhase,
    /// A word in CamelCase.
    pub(super) reason: &'static str,
    pub(super) message: String,
    pub(super) action: Option<MigrationAction>,
    pub(super) wake: Option<Tick>,
}

impl PhaseStep {
    pub(super) fn new(phase: MigrationPhase, reason: &'static str, message: impl Into<String>) -> Self {
        Self { phase, reason, message: message.into(), action: None, wake: None }
    }

    pub(super) fn doing(self, action: MigrationAction) -> Self {
        Self { action: Some(action), ..self }
    }

    pub(super) fn until(self, wake: Option<Tick>) -> Self {
        Self { wake, ..self }
    }
}

type MigrationRule = fn(&MigrationObservation<'_>, &Plan, &mut MigrationProgress) -> Option<PhaseStep>;

const RULES: &[MigrationRule] = &[
    pause_for_person,
    rollback::take_back,
    decline_deleted,
    stay_paused,
    source_changes::follow_removals,
    source_changes::follow_changes,
    waves::advance,
    await_sources,
];

/// Decides. The same observation and progress give the same decision.
pub fn decide(observation: &MigrationObservation<'_>, progress: &mut MigrationProgress) -> MigrationDecision {
    progress.observe(observation);
    let step = step(observation, progress);
    let status = status::of(observation, progress, &step);
    let is_shown = observation.status == Some(&status);
    let next_write = progress.last_status_write.map_or(0, |last| last + 1);
    if is_shown || observation.now < next_write {
        if let Some(MigrationAction::Delete(names)) = &step.action {
            progress.deleting.extend(names.iter().cloned());
        }
        let next_write = (!is_shown).then_some(next_write);
        let wake = step.wake.into_iter().chain(next_write).min();
        return MigrationDecision { action: step.action, wake };
    }
    progress.last_status_write = Some(observation.now);
    MigrationDecision { action: Some(MigrationAction::WriteStatus(Box::new(status))), wake: None }
}

fn step(observation: &MigrationObservation<'_>, progress: &mut MigrationProgress) -> PhaseStep {
    if let Some(step) = settle_deletions(observation, progress) {
        return step;
    }
    if let Err(error) = observation.selection {
        return PhaseStep::new(MigrationPhase::Paused, status::INVALID_SELECTION, error.to_string());
    }
    let Some(plan) = observation.plan else {
        return PhaseStep::new(MigrationPhase::Planning, "Reading", "the sources are being read");
    };
    let decided = RULES.iter().find_map(|rule| rule(observation, plan, progress));
    decided.unwrap_or_else(|| PhaseStep::new(MigrationPhase::Complete, "Complete", "nothing is left to do"))
}

/// Records the accounts of this migration that a person is deleting as declined, and then lets them go. Needs no plan: the
/// sources may be away.
fn settle_deletions(
    observation: &MigrationObservation<'_>,
    progress: &mut MigrationProgress,
) -> Option<PhaseStep> {
    let phase = match observation.status {
        _ if observation.rules.rollback != MigrationRollback::None => MigrationPhase::RollingBack,
        // A pause of an earlier spec is over.
        Some(status) if status.observed_generation == observation.generation => status.phase,
        _ => MigrationPhase::Planning,
    };
    let leaving = || observation.own().filter(|(_, fact)| fact.is_being_deleted && fact.is_held);
    let lists = |name: &str| observation.selection.is_ok_and(|selection| selection.names(name));
    let takes_back =
        |fact: &AccountFact| observation.rules.rollback == MigrationRollback::Delete && fact.is_unchanged;
    let is_gone = |name: &str| observation.plan.and_then(|plan| plan.is_in_sources(name)) == Some(false);
    let by_person = leaving().filter(|(name, fact)| !takes_back(fact) && !is_gone(name));
    let to_decline = by_person.filter_map(|(name, fact)| {
        let planned = observation.plan.and_then(|plan| plan.accounts.get(name)?.hash());
        let hash = planned.or(fact.hash.as_deref())?;
        let is_open =
            !progress.deleting.contains(name) && !lists(name) && !observation.declined.has(name, hash);
        is_open.then(|| (name.to_owned(), hash.to_owned()))
    });
    let to_decline: Vec<_> = to_decline.take(MAX_BATCH).collect();
    let full = PauseReason::DeclinedFull;
    let is_said = |status: &KubesvcMigrationStatus| {
        status.phase == MigrationPhase::Paused
            && status.conditions.iter().any(|one| one.reason == full.as_str())
    };
    if !to_decline.is_empty() && observation.declined.is_full() && !observation.status.is_some_and(is_said) {
        // Said before they go, so that the next leader does not migrate them again.
        return pause_as_full(observation, progress);
    }
    if !to_decline.is_empty() && !observation.declined.is_full() {
        let message = "accounts that are being deleted are recorded as declined";
        let step = PhaseStep::new(phase, "Declining", message);
        return Some(step.doing(MigrationAction::Decline(to_decline)));
    }
    let to_release = batch(leaving().map(|(name, _)| name));
    (!to_release.is_empty()).then(|| {
        PhaseStep::new(phase, "Declining", "accounts are being deleted")
            .doing(MigrationAction::Release(to_release))
    })
}

/// Records the accounts of others that a person deleted although a source has them.
fn decline_deleted(
    observation: &MigrationObservation<'_>,
    plan: &Plan,
    progress: &mut MigrationProgress,
) -> Option<PhaseStep> {
    let selection = observation.selection.ok()?;
    let deleted = plan.accounts.iter().filter(|(name, planned)| {
        let is_deleted = match observation.accounts.get(*name) {
            Some(fact) => fact.is_being_deleted && !progress.deleting.contains(*name),
            None => progress.present.contains(*name),
        };
        let is_open = |hash: &str| !observation.declined.has(name, hash);
        is_deleted && !selection.names(name) && planned.hash().is_some_and(is_open)
    });
    let deleted = deleted.filter_map(|(name, planned)| Some((name.clone(), planned.hash()?.to_owned())));
    let deleted: Vec<_> = deleted.take(MAX_BATCH).collect();
    if deleted.is_empty() {
        return None;
    }
    if observation.declined.is_full() {
        return pause_as_full(observation, progress);
    }
    let message = "accounts that were deleted are recorded as declined";
    Some(
        PhaseStep::new(MigrationPhase::Running, "Declining", message)
            .doing(MigrationAction::Decline(deleted)),
    )
}

/// Pauses because no further account can be declined.
fn pause_as_full(
    observation: &MigrationObservation<'_>,
    progress: &mut MigrationProgress,
) -> Option<PhaseStep> {
    progress.pause(PauseReason::DeclinedFull, super::DeclinedFull.to_string(), observation);
    paused(progress)
}

/// Waits for a person after the migration paused by itself.
pub(super) fn stay_paused(
    _: &MigrationObservation<'_>,
    _: &Plan,
    progress: &mut MigrationProgress,
) -> Option<PhaseStep> {
    paused(progress)
}

fn paused(progress: &MigrationProgress) -> Option<PhaseStep> {
    let pause = progress.pause.as_ref()?;
    Some(PhaseStep::new(MigrationPhase::Paused, pause.reason.as_str(), pause.message.clone()))
}

/// Waits while a person has paused the migration. What was created right before is still activated, so that the pause is
/// between two accounts and not inside one.
fn pause_for_person(
    observation: &MigrationObservation<'_>,
    plan: &Plan,
    progress: &mut MigrationProgress,
) -> Option<PhaseStep> {
    if !observation.rules.paused {
        return None;
    }
    let step = PhaseStep::new(MigrationPhase::Paused, status::PAUSED_BY_PERSON, "spec.paused is true");
    let halfway = match observation.rules.rollback {
        MigrationRollback::None => waves::halfway(observation, plan, progress),
        MigrationRollback::Deactivate | MigrationRollback::Delete => Vec::new(),
    };
    Some(if halfway.is_empty() { step } else { step.doing(MigrationAction::Activate(halfway)) })
}

/// Waits for a source that may have more accounts.
fn await_sources(_: &MigrationObservation<'_>, plan: &Plan, _: &mut MigrationProgress) -> Option<PhaseStep> {
    let source = plan.unread_source()?;
    let message = format!("source {source:?} cannot be read completely, and may have more accounts");
    Some(PhaseStep::new(MigrationPhase::Planning, "SourceUnread", message))
}
