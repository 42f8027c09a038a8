//! The status of a migration: counts, what a person should look at, and conditions.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use kubesvc_core::KubesvcMigrationStatus;
use kubesvc_core::State;
use kubesvc_core::conditions;
use kubesvc_core::migration::{
    MAX_NOTABLE, MAX_NOTABLE_MESSAGE_CHARS, MigrationPhase, MigrationRollback, NotableAccount,
    OnSourceRemoval,
};

use super::machine::PhaseStep;
use super::observation::MigrationObservation;
use super::plan::{Plan, PlanOutcome};
use super::progress::MigrationProgress;
use super::source_changes::is_changed;
use super::waves::needs_more;

/// Reason while a person has paused the migration.
pub(super) const PAUSED_BY_PERSON: &str = "Paused";
/// Reason while the selection cannot be used.
pub(super) const INVALID_SELECTION: &str = "InvalidSelection";

/// The status to show.
pub(super) fn of(
    observation: &MigrationObservation<'_>,
    progress: &MigrationProgress,
    step: &PhaseStep,
) -> KubesvcMigrationStatus {
    let before = observation.status;
    let mut status = KubesvcMigrationStatus {
        phase: step.phase,
        observed_generation: observation.generation,
        wave: count(progress.wave_number),
        failed: count(progress.failed.len()),
        retry_handled: progress.retry_handled.clone(),
        conditions: conditions(observation, step),
        ..KubesvcMigrationStatus::default()
    };
    match (observation.plan, before) {
        (Some(plan), _) => {
            let is_active = |name: &&String| {
                observation.accounts.get(*name).is_some_and(|fact| fact.state == State::Active)
            };
            let is_done = |name: &&String| {
                let is_undecided = matches!(plan.accounts[*name].outcome, PlanOutcome::Undecided { .. });
                !is_undecided && !needs_more(name, observation, plan, progress)
            };
            status.total = count(plan.accounts.len());
            status.done = count(plan.accounts.keys().filter(is_done).count());
            status.active = count(plan.accounts.keys().filter(is_active).count());
            status.notable = notable(observation, plan, progress);
        }
        // Until the sources are read, what was known stays.
        (None, Some(before)) => {
            (status.total, status.done, status.active) = (before.total, before.done, before.active);
            status.notable.clone_from(&before.notable);
        }
        (None, None) => {}
    }
    status
}

fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

fn conditions(observation: &MigrationObservation<'_>, step: &PhaseStep) -> Vec<Condition> {
    let before = observation.status.map(|status| status.conditions.as_slice()).unwrap_or_default();
    let is_complete = step.phase == MigrationPhase::Complete;
    let is_paused = step.phase == MigrationPhase::Paused;
    let needs_person = is_paused && step.reason != PAUSED_BY_PERSON;
    [("Ready", is_complete), ("Reconciling", !is_complete && !is_paused), ("Stalled", needs_person)]
        .into_iter()
        .map(|(type_, holds)| {
            let status = if holds { "True" } else { "False" };
            let (message, generation) = (&step.message, observation.generation);
            conditions::one(before, type_, status, step.reason, message, generation, observation.time)
        })
        .collect()
}

/// The accounts that a person should look at, the most urgent first.
fn notable(
    observation: &MigrationObservation<'_>,
    plan: &Plan,
    progress: &MigrationProgress,
) -> Vec<NotableAccount> {
    let one = |name: &str, reason: &str, message: String| NotableAccount {
        name: name.to_owned(),
        reason: reason.to_owned(),
        message: message.chars().take(MAX_NOTABLE_MESSAGE_CHARS).collect(),
    };
    let failed = progress.failed.iter().map(|name| match progress.refused_writes.get(name) {
        Some((_, message)) => one(name, "Refused", message.clone()),
        None => one(name, "Failed", format!("it failed; see `kubectl kubesvc why {name}`")),
    });
    let planned = plan.accounts.iter().filter_map(|(name, planned)| {
        let fact = observation.own_account(name);
        match &planned.outcome {
            PlanOutcome::Refused { reason, message } => Some(one(name, reason, message.clone())),
            PlanOutcome::Missing => {
                Some(one(name, "Missing", "no source has an account of this name".to_owned()))
            }
            PlanOutcome::Undecided { source } => {
                Some(one(name, "SourceUnread", format!("source {source:?} cannot be read completely")))
            }
            _ if fact.is_some_and(|fact| fact.needs_file) => {
                let message =
                    format!("its kubeconfig is a file of Clouddriver; see `kubectl kubesvc why {name}`");
                Some(one(name, "FileOnClouddriver", message))
            }
            _ if fact.is_some_and(|fact| is_changed(name, fact, plan)) => {
                Some(one(name, "SourceChanged", "its entry in the source has changed since".to_owned()))
            }
            PlanOutcome::Create | PlanOutcome::Exists | PlanOutcome::Declined => None,
        }
    });
    let rules = observation.rules;
    let removed = progress.missing.keys().filter(|_| {
        rules.on_source_removal != OnSourceRemoval::Keep || rules.rollback != MigrationRollback::None
    });
    let removed =
        removed.map(|name| one(name, "NotInSources", "no source has an account of this name".to_owned()));
    let warnings = plan.warnings.iter().map(|warning| one("", "Selection", warning.clone()));
    failed.chain(planned).chain(removed).chain(warnings).take(MAX_NOTABLE).collect()
}
