//! Roll-back: what this migration created, and nobody has changed since, is taken back.

use kubesvc_core::DesiredState;
use kubesvc_core::migration::{MigrationPhase, MigrationRollback};

use super::batches::batch;
use super::machine::{MigrationAction, PhaseStep};
use super::observation::{AccountFact, MigrationObservation, Standing};
use super::plan::Plan;
use super::progress::MigrationProgress;

/// Takes back the accounts. The sources must still have them, so that Clouddriver can serve them again, unless the
/// roll-back is forced.
pub(super) fn take_back(
    observation: &MigrationObservation<'_>,
    plan: &Plan,
    progress: &mut MigrationProgress,
) -> Option<PhaseStep> {
    let rollback = observation.rules.rollback;
    if rollback == MigrationRollback::None {
        return None;
    }
    progress.wave = None;
    let refused = &progress.refused_writes;
    let is_left = |fact: &AccountFact| match rollback {
        MigrationRollback::Deactivate => fact.desired == DesiredState::Active,
        MigrationRollback::None | MigrationRollback::Delete => true,
    };
    let open = || {
        let own = observation.own();
        own.filter(|(_, fact)| fact.is_unchanged && !fact.is_being_deleted && is_left(fact))
            .filter(|(name, _)| !refused.contains_key(*name))
    };
    let step = |message: String| PhaseStep::new(MigrationPhase::RollingBack, "RollingBack", message);
    let may_go = |name: &str| observation.force_rollback || plan.is_in_sources(name) == Some(true);
    let now = batch(open().map(|(name, _)| name).filter(|name| may_go(name)));
    if !now.is_empty() {
        let step = step(format!("{} accounts are to be taken back", open().count()));
        return Some(step.doing(match rollback {
            MigrationRollback::Delete => MigrationAction::Delete(now),
            MigrationRollback::None | MigrationRollback::Deactivate => MigrationAction::Deactivate(now),
        }));
    }
    let unknown = open().filter(|(name, _)| plan.is_in_sources(name).is_none()).count();
    if unknown > 0 {
        return Some(step(format!(
            "{unknown} accounts wait until it is known whether the sources have them"
        )));
    }
    let leaving = observation.own().filter(|(_, fact)| fact.standing() == Standing::Leaving).count();
    if leaving > 0 {
        return Some(step(format!("{leaving} accounts are being deleted")));
    }
    let message = match open().count() {
        0 => "the accounts of this migration that nobody has changed are taken back".to_owned(),
        left => format!(
            "{left} accounts are left, because the sources no longer have them; the annotation {} takes them back too",
            kubesvc_core::FORCE_ROLLBACK_ANNOTATION
        ),
    };
    Some(PhaseStep::new(MigrationPhase::Complete, "RolledBack", message))
}
