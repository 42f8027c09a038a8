//! Invariants for arbitrary sequences of events.

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum AgentStep {
    Add { uid: u8, name: u8, epoch: u64, definition: u8 },
    Drop { uid: u8, epoch: u64 },
    Finish { which: usize, good: bool },
    FinishOld { attempt: u64 },
    StreamLost,
    FileChanged,
}

fn step() -> impl Strategy<Value = AgentStep> {
    prop_oneof![
        6 => (0..4u8, 0..3u8, 1..6u64, 0..3u8)
            .prop_map(|(uid, name, epoch, definition)| AgentStep::Add { uid, name, epoch, definition }),
        3 => (0..4u8, 1..6u64).prop_map(|(uid, epoch)| AgentStep::Drop { uid, epoch }),
        5 => (any::<usize>(), any::<bool>()).prop_map(|(which, good)| AgentStep::Finish { which, good }),
        1 => (0..20u64).prop_map(|attempt| AgentStep::FinishOld { attempt }),
        1 => Just(AgentStep::StreamLost),
        1 => Just(AgentStep::FileChanged),
    ]
}

/// A table, and what a driver knows that executes its effects.
#[derive(Default)]
struct AgentWorld {
    table: AccountTable,
    running: Vec<(Attempt, String)>,
    used: HashSet<Attempt>,
}

fn account(uid: u8, name: u8, epoch: u64) -> AccountRef {
    AccountRef { uid: format!("uid-{uid}"), name: format!("name-{name}"), epoch, generation: 1 }
}

impl AgentWorld {
    fn take(&mut self, step: &AgentStep) -> Vec<Effect> {
        let effects = match step {
            AgentStep::Add { uid, name, epoch, definition } => {
                let spec = AccountSpec { context: definition.to_string(), ..AccountSpec::default() };
                self.table.add(account(*uid, *name, *epoch), Definition::split(spec).1)
            }
            AgentStep::Drop { uid, epoch } => self.table.drop_account(account(*uid, 0, *epoch)),
            AgentStep::Finish { .. } if self.running.is_empty() => Vec::new(),
            AgentStep::Finish { which, good } => {
                let (attempt, uid) = self.running.remove(which % self.running.len());
                let effects = self.table.finished(&uid, attempt, result(*good));
                assert_eq!(effects.len(), 1, "the end of an attempt that runs is answered once");
                effects
            }
            AgentStep::FinishOld { attempt } => {
                let attempt = Attempt(*attempt);
                if self.running.iter().any(|(running, _)| *running == attempt) {
                    return Vec::new();
                }
                let effects = self.table.finished("uid-1", attempt, result(true));
                assert!(effects.is_empty(), "the end of an attempt that was cancelled changes nothing");
                effects
            }
            AgentStep::StreamLost => self.table.stream_lost(),
            AgentStep::FileChanged => {
                self.table.files_changed(&[ReadFile { path: "/k".into(), digest: [1; 32] }])
            }
        };
        for effect in &effects {
            match effect {
                Effect::Start { attempt, account, .. } => {
                    assert!(self.used.insert(*attempt), "the number of an attempt is not used again");
                    self.running.push((*attempt, account.uid.clone()));
                }
                Effect::Cancel { attempt, .. } => {
                    let before = self.running.len();
                    self.running.retain(|(running, _)| running != attempt);
                    assert_eq!(self.running.len() + 1, before, "only what runs is cancelled");
                }
                Effect::Stop { account, keep } => {
                    let kept = |attempt: &Attempt| Some(*attempt) == *keep;
                    self.running.retain(|(running, of)| *of != account.uid || kept(running));
                    let runs = |attempt| self.running.contains(&(attempt, account.uid.clone()));
                    assert!(keep.is_none_or(runs), "only what runs is kept");
                }
                Effect::Answer(_) | Effect::Lost(_) | Effect::Kept { .. } => {}
            }
        }
        effects
    }

    /// Compares the table's view with that of the driver.
    fn check(&self) {
        let mut running: Vec<_> = self.running.iter().map(|(attempt, _)| *attempt).collect();
        let mut starting: Vec<_> = self.table.starting().map(|(attempt, _)| attempt).collect();
        running.sort_unstable();
        starting.sort_unstable();
        assert_eq!(running, starting, "what runs is what the table says is starting");

        let mut uid_of_name = HashMap::new();
        let held = self.table.held().filter_map(|held| held.account);
        for account in held.chain(self.table.starting().map(|(_, account)| account.clone())) {
            let uid = uid_of_name.entry(account.name.clone()).or_insert(account.uid.clone());
            assert_eq!(*uid, account.uid, "{} has two uids", account.name);
        }
        assert_eq!(self.table.held().count(), self.table.held_count());
        let names: HashSet<_> = self.table.uid_of_name.keys().cloned().collect();
        assert_eq!(names, uid_of_name.into_keys().collect(), "no name outlives its account");
    }

    fn held_epoch(&self, uid: &str) -> Option<u64> {
        let held = self.table.held().filter_map(|held| held.account);
        held.filter(|account| account.uid == uid).map(|account| account.epoch).next()
    }
}

fn result(good: bool) -> Result<ActivatedAccount, Failure> {
    let reached = || ActivatedAccount {
        identity: ClusterIdentity::default(),
        files: vec![ReadFile { path: "/k".into(), digest: [0; 32] }],
        at: Timestamp::UNIX_EPOCH,
    };
    if good { Ok(reached()) } else { Err(Failure::default()) }
}

proptest! {
    #[test]
    fn the_table_agrees_with_what_runs(steps in prop::collection::vec(step(), 1..60)) {
        let mut world = AgentWorld::default();
        for step in &steps {
            world.take(step);
            world.check();
        }
    }

    #[test]
    fn an_epoch_goes_back_only_by_a_drop_or_another_uid(steps in prop::collection::vec(step(), 1..60)) {
        let mut world = AgentWorld::default();
        for step in &steps {
            let before: Vec<_> = world.table.held().filter_map(|held| held.account).collect();
            world.take(step);
            for account in before {
                if let Some(epoch) = world.held_epoch(&account.uid) {
                    prop_assert!(epoch >= account.epoch);
                } else {
                    let taken = match step {
                        AgentStep::Drop { epoch, .. } => account.epoch <= *epoch,
                        AgentStep::Add { .. } => true,
                        _ => false,
                    };
                    prop_assert!(taken, "{account:?} went by {step:?}");
                }
            }
        }
    }

    #[test]
    fn a_repeated_frame_changes_nothing(steps in prop::collection::vec(step(), 1..40), last in step()) {
        prop_assume!(matches!(last, AgentStep::Add { .. } | AgentStep::Drop { .. } | AgentStep::StreamLost));
        let mut world = AgentWorld::default();
        steps.iter().for_each(|step| { world.take(step); });
        world.take(&last);
        let state = |world: &AgentWorld| {
            let mut held: Vec<_> = world.table.held().map(|held| format!("{held:?}")).collect();
            held.sort();
            (held, world.running.clone())
        };
        let before = state(&world);
        let effects = world.take(&last);
        prop_assert_eq!(before, state(&world));
        prop_assert!(effects.iter().all(|effect| matches!(effect, Effect::Answer(_))));
    }

    #[test]
    fn after_a_drop_of_the_newest_epoch_nothing_is_left(steps in prop::collection::vec(step(), 1..40), uid in 0..4u8) {
        let mut world = AgentWorld::default();
        steps.iter().for_each(|step| { world.take(step); });
        let effects = world.take(&AgentStep::Drop { uid, epoch: 9 });
        let dropped = |effect: &Effect| matches!(effect, Effect::Answer(answer) if answer.dropped);
        let uid = format!("uid-{uid}");
        prop_assert!(effects.last().is_some_and(dropped));
        prop_assert_eq!(world.held_epoch(&uid), None);
        prop_assert!(world.running.iter().all(|(_, running)| *running != uid));
        world.check();
    }
}
