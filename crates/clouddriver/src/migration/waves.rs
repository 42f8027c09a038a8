//! Waves: accounts that are created and activated together, and must stay well for a while before the next ones.

use kubesvc_core::ZoneId;
use kubesvc_core::migration::MigrationPhase;

use super::batches::{Capacity, batch};
use super::machine::{MigrationAction, PhaseStep, stay_paused};
use super::observation::{AccountFact, MigrationObservation, Standing};
use super::plan::{Plan, PlanOutcome};
use super::progress::{MigrationProgress, PauseReason, Wave};

/// What an account needs before it has settled.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    Creation,
    Activation,
    /// It is on its way to ACTIVE.
    Time,
}

fn need(
    name: &str,
    observation: &MigrationObservation<'_>,
    plan: &Plan,
    progress: &MigrationProgress,
) -> Option<Need> {
    if progress.is_refused(name) {
        return None;
    }
    if !observation.accounts.contains_key(name) {
        let is_planned =
            plan.accounts.get(name).is_some_and(|planned| planned.outcome == PlanOutcome::Create);
        // Whoever was there was deleted, and is about to be declined.
        return (is_planned && !progress.present.contains(name)).then_some(Need::Creation);
    }
    if observation.is_to_activate(name, plan) {
        return Some(Need::Activation);
    }
    let is_in_flight = observation.own_account(name)?.standing() == Standing::InFlight;
    (is_in_flight && !progress.failed.contains(name)).then_some(Need::Time)
}

/// Whether an account has not settled.
pub(super) fn needs_more(
    name: &str,
    observation: &MigrationObservation<'_>,
    plan: &Plan,
    progress: &MigrationProgress,
) -> bool {
    need(name, observation, plan, progress).is_some()
}

/// Number of accounts that the migration created or is to create.
pub(super) fn size_of_migration(observation: &MigrationObservation<'_>, plan: &Plan) -> usize {
    let is_new = |name: &String, outcome: &PlanOutcome| {
        *outcome == PlanOutcome::Create && !observation.accounts.contains_key(name)
    };
    let new = plan.accounts.iter().filter(|(name, planned)| is_new(name, &planned.outcome)).count();
    new + observation.own().count()
}

/// Goes on with the current wave, or begins the next one. `None` if no account is left.
pub(super) fn advance(
    observation: &MigrationObservation<'_>,
    plan: &Plan,
    progress: &mut MigrationProgress,
) -> Option<PhaseStep> {
    loop {
        if progress.wave.is_none() {
            begin(observation, plan, progress)?;
        }
        if let Some(step) = go_on(observation, plan, progress) {
            return Some(step);
        }
        progress.wave = None;
    }
}

fn begin(
    observation: &MigrationObservation<'_>,
    plan: &Plan,
    progress: &mut MigrationProgress,
) -> Option<()> {
    let all = size_of_migration(observation, plan);
    let is_open = |name: &&String| {
        matches!(need(name, observation, plan, progress), Some(Need::Creation | Need::Activation))
    };
    let open = plan.accounts.keys().filter(is_open);
    let members: std::collections::BTreeSet<String> =
        open.take(observation.rules.wave_size.of(all)).cloned().collect();
    if members.is_empty() {
        return None;
    }
    progress.wave_number += 1;
    progress.wave = Some(Wave { members, began: observation.now, ..Wave::default() });
    Some(())
}

/// The next step of the current wave; `None` if it is over.
fn go_on(
    observation: &MigrationObservation<'_>,
    plan: &Plan,
    progress: &mut MigrationProgress,
) -> Option<PhaseStep> {
    let all = size_of_migration(observation, plan);
    let failed = progress.counted_failures();
    if observation.rules.max_failed.is_exceeded_by(failed, all) {
        let message = format!(
            "{failed} of {all} accounts failed, more than spec.limits.maxFailed; look at them, then change the spec or \
             run `kubectl kubesvc migrate resume`"
        );
        progress.pause(PauseReason::TooManyFailed, message, observation);
        return stay_paused(observation, plan, progress);
    }
    let wave = progress.wave.as_ref()?;
    let number = progress.wave_number;
    let needs: Vec<(&str, Need)> = wave
        .members
        .iter()
        .filter_map(|name| Some((name.as_str(), need(name, observation, plan, progress)?)))
        .collect();
    let that_need =
        |wanted: Need| needs.iter().filter(move |(_, need)| *need == wanted).map(|(name, _)| *name);
    let running = || {
        let message =
            format!("wave {number}: {} of {} accounts have not settled", needs.len(), wave.members.len());
        PhaseStep::new(MigrationPhase::Running, "Running", message)
    };
    let zone = |name: &str| observation.accounts.get(name).and_then(|fact| fact.zone.as_ref());
    let mut capacity = Capacity::beside(observation, progress, std::iter::empty());
    let now = batch(that_need(Need::Activation).filter(|name| capacity.take(zone(name))));
    if !now.is_empty() {
        return Some(running().doing(MigrationAction::Activate(now)));
    }
    let created: Vec<&str> = observation
        .own()
        .map(|(name, _)| name)
        .filter(|name| wave.members.contains(*name) && observation.is_to_activate(name, plan))
        .collect();
    let mut capacity = Capacity::beside(observation, progress, created.into_iter());
    let zone = |name: &str| -> Option<&ZoneId> { plan.accounts.get(name)?.zone() };
    let now = batch(that_need(Need::Creation).filter(|name| capacity.take(zone(name))));
    if !now.is_empty() {
        let step = running().doing(MigrationAction::Create(now.clone()));
        progress.wave.as_mut()?.created.extend(now);
        return Some(step);
    }
    if !needs.is_empty() {
        let ends = observation.rules.wave_timeout.map(|timeout| wave.began + timeout);
        let is_over = ends.is_some_and(|ends| ends <= observation.now);
        return (!is_over).then(|| running().until(ends));
    }
    soak(observation, progress)
}

/// Waits while the accounts of the wave must stay well.
fn soak(observation: &MigrationObservation<'_>, progress: &mut MigrationProgress) -> Option<PhaseStep> {
    if !observation.rules.activate || observation.rules.soak == 0 {
        return None;
    }
    let number = progress.wave_number;
    let wave = progress.wave.as_mut()?;
    let until = *wave.soak_until.get_or_insert(observation.now + observation.rules.soak);
    let message = format!("wave {number}: its accounts must stay well for {} s", observation.rules.soak);
    (observation.now < until)
        .then(|| PhaseStep::new(MigrationPhase::Soaking, "Soaking", message).until(Some(until)))
}

/// The accounts of the current wave that were created and not yet activated.
pub(super) fn halfway(
    observation: &MigrationObservation<'_>,
    plan: &Plan,
    progress: &MigrationProgress,
) -> Vec<String> {
    let mut capacity = Capacity::beside(observation, progress, std::iter::empty());
    let created = progress.wave.iter().flat_map(|wave| &wave.created);
    let halfway = created.filter(|name| {
        let may = |fact: &AccountFact| {
            !progress.is_refused(name)
                && observation.is_to_activate(name, plan)
                && capacity.take(fact.zone.as_ref())
        };
        observation.own_account(name).is_some_and(may)
    });
    batch(halfway.map(String::as_str))
}
