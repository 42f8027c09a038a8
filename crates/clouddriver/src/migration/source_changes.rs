//! What becomes of migrated accounts when their entries change or go. An account that somebody else changed is left.

use std::collections::BTreeMap;

use kubesvc_core::DesiredState;
use kubesvc_core::migration::{MigrationPhase, OnSourceChange, OnSourceRemoval};

use super::batches::{Capacity, batch};
use super::machine::{MigrationAction, PhaseStep, stay_paused};
use super::observation::{AccountFact, MigrationObservation};
use super::plan::{Plan, PlannedAccount};
use super::progress::{MigrationProgress, PauseReason};

/// Share of a source, in percent, above which a removal needs a person. A source that lost its content looks the same.
const MAX_REMOVED_PERCENT: usize = 10;

/// Deactivates or deletes the accounts that two complete reads of the sources lacked.
pub(super) fn follow_removals(
    observation: &MigrationObservation<'_>,
    plan: &Plan,
    progress: &mut MigrationProgress,
) -> Option<PhaseStep> {
    let removal = observation.rules.on_source_removal;
    if removal == OnSourceRemoval::Keep {
        return None;
    }
    // Nothing is removed while a source cannot be read: it may have the entry by now.
    let read = plan.complete_read()?;
    let is_confirmed = |name: &str| progress.missing.get(name).is_some_and(|since| *since < read);
    let is_open = |name: &str, fact: &AccountFact| {
        let is_left = removal == OnSourceRemoval::Delete || fact.desired == DesiredState::Active;
        is_left
            && fact.is_unchanged
            && !fact.is_being_deleted
            && is_confirmed(name)
            && !progress.is_refused(name)
    };
    let open: Vec<(&str, &AccountFact)> =
        observation.own().filter(|(name, fact)| is_open(name, fact)).collect();
    if open.is_empty() {
        return None;
    }
    if let Some(message) = mass_removal(observation, &open, progress) {
        progress.pause(PauseReason::MassRemoval, message, observation);
        return stay_paused(observation, plan, progress);
    }
    let now = batch(open.iter().map(|(name, _)| *name));
    let message = format!("{} accounts are no longer in the sources", open.len());
    let step = PhaseStep::new(MigrationPhase::Running, "FollowingRemovals", message);
    Some(step.doing(match removal {
        OnSourceRemoval::Delete => MigrationAction::Delete(now),
        OnSourceRemoval::Keep | OnSourceRemoval::Deactivate => MigrationAction::Deactivate(now),
    }))
}

/// Why a removal needs a person, if it does.
fn mass_removal(
    observation: &MigrationObservation<'_>,
    open: &[(&str, &AccountFact)],
    progress: &MigrationProgress,
) -> Option<String> {
    let mut removed: BTreeMap<Option<&str>, usize> = BTreeMap::new();
    for (name, fact) in open {
        if !progress.accepted_removals.contains(*name) {
            *removed.entry(fact.source.as_deref()).or_default() += 1;
        }
    }
    removed.into_iter().find_map(|(source, count)| {
        let all = observation.own().filter(|(_, fact)| fact.source.as_deref() == source).count();
        let name = source.unwrap_or_default();
        (count * 100 > all * MAX_REMOVED_PERCENT).then(|| {
            format!(
                "source {name:?} no longer has {count} of {all} migrated accounts; if that is meant, change the spec or run \
                 `kubectl kubesvc migrate resume`"
            )
        })
    })
}

/// Whether the entry of an account is another than the one it came from.
pub(super) fn is_changed(name: &str, fact: &AccountFact, plan: &Plan) -> bool {
    let hash = plan.accounts.get(name).and_then(PlannedAccount::hash);
    hash.is_some() && fact.hash.as_deref() != hash
}

/// Updates the accounts whose entries changed.
pub(super) fn follow_changes(
    observation: &MigrationObservation<'_>,
    plan: &Plan,
    progress: &mut MigrationProgress,
) -> Option<PhaseStep> {
    if observation.rules.on_source_change == OnSourceChange::Report {
        return None;
    }
    let mut capacity = Capacity::beside(observation, progress, std::iter::empty());
    let changed = observation.own().filter(|(name, fact)| {
        let has_account = plan.accounts.get(*name).is_some_and(PlannedAccount::is_account);
        has_account
            && fact.is_unchanged
            && !fact.is_being_deleted
            && !progress.is_refused(name)
            && is_changed(name, fact, plan)
            && (fact.desired == DesiredState::Inactive || capacity.take(fact.zone.as_ref()))
    });
    let now = batch(changed.map(|(name, _)| name));
    if now.is_empty() {
        return None;
    }
    let message = format!("{} accounts follow their entries", now.len());
    Some(
        PhaseStep::new(MigrationPhase::Running, "FollowingChanges", message)
            .doing(MigrationAction::Update(now)),
    )
}
