//! A migration under faults: whatever happens in whatever order, these hold.
//!
//! | invariant | checked |
//! |---|---|
//! | an account is created or activated only while the spec selects it and the entry that counts describes it | `Sim::created`, `Sim::activated` |
//! | nothing is created while paused; only what was created right before is activated | the same |
//! | a declined account stays declined | `Sim::created` |
//! | no account of another client, or that somebody changed, is written | `Sim::may_write` |
//! | no more accounts are in flight, in all and in a zone, than the spec admits | `Sim::activated` |
//! | a roll-back leaves what the sources no longer have, unless it is forced | `Sim::taken_back` |
//! | what the sources no longer have is taken back only after two complete reads, and only if the spec says so | the same |
//! | a write that was refused is not repeated at once, and ends its wave | `Sim::act`, `Sim::heal` |
//! | a status is written once a second at most, and says something new | `Sim::decide` |
//! | the same observation and progress decide the same | `Sim::decide` |
//! | once faults stop, every account ends and nothing more is written | `Sim::heal` |

use std::collections::BTreeSet;

use proptest::prelude::*;

use kubesvc_core::migration::{MigrationPhase, MigrationRollback, OnSourceChange, OnSourceRemoval};

use crate::sources::Completeness;

mod sim;

use sim::{Checked, Sim};

const NAMES: [&str; 8] = ["a0", "a1", "a2", "a3", "a4", "a9", "b0", "b1"];

/// One thing that happens.
#[derive(Clone, Debug)]
enum MigrationStep {
    /// The leader decides and acts, on all accounts of the action or on the first ones.
    Decide {
        acts_on: usize,
    },
    /// Another leader begins.
    NewLeader,
    Wait(u64),
    /// Agents bring an account to an end.
    Agents {
        name: usize,
        fail: bool,
    },
    /// The last agent of an account goes.
    Orphan(usize),
    /// The operator tries a failed account again.
    Retry(usize),
    /// An account that is being deleted goes.
    Vanish(usize),
    /// The API server refuses writes of an account, or takes them again.
    Refuse(usize, bool),
    /// A source has an entry, in this version, or has it no longer.
    Entry {
        source: usize,
        name: usize,
        version: Option<u8>,
    },
    /// A source can be read completely, in parts, or not.
    Completeness {
        source: usize,
        completeness: Completeness,
    },
    Person(Deed, usize),
    Edit(Edit),
    /// A person asks the migration to resume.
    Resume,
    /// Everything works for some rounds.
    Work(usize),
}

#[derive(Clone, Copy, Debug)]
enum Deed {
    Delete,
    Deactivate,
    Change,
    Create,
}

#[derive(Clone, Copy, Debug)]
enum Edit {
    Paused(bool),
    Rollback(MigrationRollback, bool),
    Activate(bool),
    Names(bool),
    Excluded(bool),
    WaveSize(usize),
    MaxFailed(usize),
    OnChange(OnSourceChange),
    OnRemoval(OnSourceRemoval),
}

fn step() -> impl Strategy<Value = MigrationStep> {
    let name = || 0..NAMES.len();
    let deed =
        prop_oneof![Just(Deed::Delete), Just(Deed::Deactivate), Just(Deed::Change), Just(Deed::Create)];
    let rollback = prop_oneof![
        2 => Just(MigrationRollback::None), 1 => Just(MigrationRollback::Deactivate), 1 => Just(MigrationRollback::Delete)
    ];
    let removal = prop_oneof![
        Just(OnSourceRemoval::Keep),
        Just(OnSourceRemoval::Deactivate),
        Just(OnSourceRemoval::Delete)
    ];
    let completeness = prop_oneof![
        2 => Just(Completeness::Complete), 1 => Just(Completeness::Partial("gaps".to_owned())),
        2 => Just(Completeness::Unread("away".to_owned()))
    ];
    let edit = prop_oneof![
        2 => any::<bool>().prop_map(Edit::Paused),
        2 => (rollback, any::<bool>()).prop_map(|(rollback, force)| Edit::Rollback(rollback, force)),
        1 => any::<bool>().prop_map(Edit::Activate),
        1 => any::<bool>().prop_map(Edit::Names),
        1 => any::<bool>().prop_map(Edit::Excluded),
        1 => (1..4_usize).prop_map(Edit::WaveSize),
        1 => (0..3_usize).prop_map(Edit::MaxFailed),
        1 => prop_oneof![Just(OnSourceChange::Report), Just(OnSourceChange::Follow)].prop_map(Edit::OnChange),
        1 => removal.prop_map(Edit::OnRemoval),
    ];
    prop_oneof![
        12 => (0..4_usize).prop_map(|acts_on| MigrationStep::Decide { acts_on }),
        1 => Just(MigrationStep::NewLeader),
        3 => (1..4_u64).prop_map(MigrationStep::Wait),
        6 => (name(), prop::bool::weighted(0.3)).prop_map(|(name, fail)| MigrationStep::Agents { name, fail }),
        1 => name().prop_map(MigrationStep::Orphan),
        1 => name().prop_map(MigrationStep::Retry),
        2 => name().prop_map(MigrationStep::Vanish),
        1 => (name(), any::<bool>()).prop_map(|(name, refuse)| MigrationStep::Refuse(name, refuse)),
        5 => (0..2_usize, name(), prop::option::weighted(0.7, 0..3_u8))
            .prop_map(|(source, name, version)| MigrationStep::Entry { source, name, version }),
        2 => (0..2_usize, completeness)
            .prop_map(|(source, completeness)| MigrationStep::Completeness { source, completeness }),
        3 => (deed, name()).prop_map(|(deed, name)| MigrationStep::Person(deed, name)),
        3 => edit.prop_map(MigrationStep::Edit),
        1 => Just(MigrationStep::Resume),
        2 => (1..4_usize).prop_map(MigrationStep::Work),
    ]
}

fn live(steps: &[MigrationStep]) -> Checked {
    let mut sim = Sim::new();
    for (at, step) in steps.iter().enumerate() {
        sim.step(step).map_err(|broken| format!("{broken}, at step {at}: {:#?}", &steps[..=at]))?;
    }
    sim.heal().map_err(|broken| format!("{broken}, while healing after {steps:#?}\n{:#?}", sim.progress))
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(200),
        failure_persistence: None,
        max_shrink_iters: 20_000,
        ..ProptestConfig::default()
    })]

    #[test]
    fn no_fault_breaks_an_invariant_and_the_migration_ends(steps in prop::collection::vec(step(), 1..80)) {
        if let Err(report) = live(&steps) {
            return Err(TestCaseError::fail(report));
        }
    }
}

#[test]
fn a_migration_without_faults_reaches_every_phase() {
    let mut sim = Sim::new();
    let mut seen = BTreeSet::new();
    let mut work = |sim: &mut Sim, until: MigrationPhase| {
        for _ in 0..200 {
            sim.now += 1;
            let _ = sim.work().unwrap_or_else(|broken| unreachable!("{broken}"));
            let phase = sim.status.as_ref().map(|status| status.phase).unwrap_or_default();
            seen.insert(format!("{phase:?}"));
            if phase == until {
                return;
            }
        }
        unreachable!("it never is {until:?}: {:?}", sim.status);
    };
    sim.completeness[0] = Completeness::Unread("away".to_owned());
    work(&mut sim, MigrationPhase::Planning);
    sim.completeness[0] = Completeness::Complete;
    work(&mut sim, MigrationPhase::Complete);
    assert_eq!(sim.accounts.len(), 6);
    sim.edit(Edit::Paused(true));
    work(&mut sim, MigrationPhase::Paused);
    sim.edit(Edit::Paused(false));
    sim.edit(Edit::Rollback(MigrationRollback::Delete, false));
    work(&mut sim, MigrationPhase::RollingBack);
    work(&mut sim, MigrationPhase::Complete);
    assert!(sim.accounts.is_empty());
    let seen: Vec<String> = seen.into_iter().collect();
    assert_eq!(seen, ["Complete", "Paused", "Planning", "RollingBack", "Running", "Soaking"]);
}
