//! Migration of accounts from credentials sources: what is migrated, and in which steps.
//!
//! | step | where |
//! |---|---|
//! | which accounts a spec selects, and in which zones | [`MigrationSelection`] |
//! | what would become of each of them; a dry run ends here | [`plan`] |
//! | the next write | [`decide`]: one observation in, at most one action out |
//!
//! The caller reads sources and objects, calls [`plan`] and [`decide`], acts, and starts over. Nothing here writes, so a
//! dry run makes no write by construction. [`decide`] remembers its [`MigrationProgress`] only in memory: a new leader starts from
//! the objects and the last status.

mod batches;
mod declined;
mod machine;
mod marks;
mod observation;
mod plan;
mod progress;
mod rollback;
mod rules;
mod selection;
mod source_changes;
mod status;
mod waves;

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

pub use declined::{DeclinedFull, DeclinedNames, MAX_DECLINED};
pub use machine::{MigrationAction, MigrationDecision, decide};
pub use marks::{
    MIGRATED_SPEC_ANNOTATION, MIGRATION_ANNOTATION, MIGRATION_FINALIZER, is_held, mark, spec_digest,
};
pub use observation::{AccountFact, MigrationObservation};
pub use plan::{AssessedEntry, Plan, PlanOutcome, PlannedAccount, plan};
pub use progress::MigrationProgress;
pub use rules::{MigrationRules, Share, scanner_rules};
pub use selection::{MigrationSelection, PartialMatch, SelectionError, is_pattern};
