//! A life under faults: whatever happens in whatever order, these hold.
//!
//! | invariant | checked |
//! |---|---|
//! | no account is lost: the finalizer goes only from an object being deleted, whose grant is None and whose row is gone | `checks::finalizer_off`, at each write |
//! | a row outlives no object, and none is inserted for one being deleted | `checks::rows`, after each step |
//! | ACTIVE only after an agent's word for that uid and epoch | `checks::status`, at each write |
//! | a grant changes its zone only through None, and goes Open, Revoking, None in this order | `checks::status`, at each write |
//! | the epoch never falls, and grows with each opening and revoke | `checks::status`, at each write |
//! | `failedCount` falls only by its resets | `checks::status`, at each write |
//! | Reconciling and Stalled are never both True; TO_DEACTIVATE is never written; states fit their grant | `checks::status`, at each write |
//! | no agent takes the account while the grant is not its zone's | `Sim::agent_acts`, at each Add |
//! | the operator deletes only static accounts, and none that a connected agent lists, or one that is away for less than the cleanup; a round of looking for a zone ends | `checks::deletion`, `checks::cleanup`, `checks::status` |
//! | while agents wait to be registered nobody is orphaned or taken from its zone, for ten minutes at most | `checks::queue`, at each write |
//! | somebody else's row is neither written over nor deleted | `Sim::decided` |
//! | one agent streams, which is connected, holds the account and is of its zone when it is elected; under an epoch that grows with each change; it is replaced only for a reason, and not before its time | `Sim::check_caching`, at each write |
//! | the same input twice decides the same; a write changes something | `Sim::decided`, `checks::status` |
//! | once faults stop, the account reaches its desired state, in its zone, with its row, held by no one else | `Sim::heal` |
//! | and stays there: nothing is written any more | `Sim::heal` |
//!
//! Not simulated: several replicas, two objects with one name, agents in another cluster. Their rules have unit tests.

use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence};

use crate::failure::FailureClass;
use crate::{DesiredState, State};

mod checks;
mod sim;

use sim::Sim;

/// One thing that happens.
#[derive(Clone, Debug)]
enum LifecycleStep {
    /// The leader looks at a version of the object that may be old, decides and acts.
    Decide { lag: usize, crash: Crash },
    /// The write of a leader that was paused arrives.
    LateWrite,
    /// The hub sends what the object says to each session.
    Send,
    /// An agent works on the next command that it was sent.
    Act { agent: usize, outcome: StepOutcome },
    /// An answer arrives; it may arrive again.
    Deliver { index: usize, again: bool },
    /// Seconds pass.
    Wait(u64),
    /// Agents begin or cease to wait for registration.
    Queue(bool),
    /// A stream is cut, a process ends, or connects again.
    Cut(usize),
    /// See above.
    Die { agent: usize, goodbye: bool },
    /// See above.
    Connect(usize),
    /// An agent can no longer hold what it held.
    Lose(usize),
    /// The cluster comes to refuse the credential of what an agent holds, or accepts it again.
    Judge { agent: usize, refused: bool },
    /// The operator reads the credential again by itself.
    Recheck,
    /// The operator ends and starts again.
    Crash,
    /// The database comes or goes.
    Database(bool),
    /// Somebody writes a row of this name, or deletes it; only where ours is not there.
    ForeignRow(bool),
    /// The file of an agent has the account, or has it no longer.
    List { agent: usize, lists: bool },
    /// A person does something.
    Person(Deed),
    /// Everything works for some rounds.
    Work(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Crash {
    No,
    Before,
    After,
    /// The decision is acted on later, after another leader began.
    Paused,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StepOutcome {
    Done,
    Fails(FailureClass),
}

#[derive(Clone, Copy, Debug)]
enum Deed {
    Wish(DesiredState),
    Pin(Option<&'static str>),
    Define(u8),
    Describe(u8),
    ChangeSecret(SimSecret),
    Retry,
    /// Another agent is to stream.
    Elect,
    Delete,
    ForceDelete,
    Create,
    /// An agent's file has it.
    CreateStatic,
}

#[derive(Clone, Copy, Debug)]
enum SimSecret {
    Good,
    Refused,
    Missing,
}

fn step() -> impl Strategy<Value = LifecycleStep> {
    let crash = prop_oneof![8 => Just(Crash::No), 1 => Just(Crash::Before), 1 => Just(Crash::After), 1 => Just(Crash::Paused)];
    let class = prop_oneof![
        Just(FailureClass::Unreachable),
        Just(FailureClass::Forbidden),
        Just(FailureClass::BadKubeconfig),
    ];
    let outcome = prop_oneof![4 => Just(StepOutcome::Done), 1 => class.prop_map(StepOutcome::Fails)];
    prop_oneof![
        10 => (0..3_usize, crash).prop_map(|(lag, crash)| LifecycleStep::Decide { lag, crash }),
        1 => Just(LifecycleStep::LateWrite),
        8 => Just(LifecycleStep::Send),
        8 => (0..4_usize, outcome).prop_map(|(agent, outcome)| LifecycleStep::Act { agent, outcome }),
        8 => (any::<usize>(), any::<bool>()).prop_map(|(index, again)| LifecycleStep::Deliver { index, again }),
        3 => prop_oneof![1..8_u64, Just(11_u64), Just(31_u64), Just(61_u64), Just(310_u64), Just(650_u64)].prop_map(LifecycleStep::Wait),
        1 => any::<bool>().prop_map(LifecycleStep::Queue),
        2 => (0..4_usize).prop_map(LifecycleStep::Cut),
        1 => (0..4_usize, any::<bool>()).prop_map(|(agent, goodbye)| LifecycleStep::Die { agent, goodbye }),
        4 => (0..4_usize).prop_map(LifecycleStep::Connect),
        1 => (0..4_usize).prop_map(LifecycleStep::Lose),
        2 => (0..4_usize, any::<bool>()).prop_map(|(agent, refused)| LifecycleStep::Judge { agent, refused }),
        1 => Just(LifecycleStep::Recheck),
        1 => Just(LifecycleStep::Crash),
        1 => any::<bool>().prop_map(LifecycleStep::Database),
        1 => any::<bool>().prop_map(LifecycleStep::ForeignRow),
        1 => (0..2_usize, any::<bool>()).prop_map(|(agent, lists)| LifecycleStep::List { agent, lists }),
        5 => deed().prop_map(LifecycleStep::Person),
        3 => (1..4_usize).prop_map(LifecycleStep::Work),
    ]
}

fn deed() -> impl Strategy<Value = Deed> {
    let secret = prop_oneof![Just(SimSecret::Good), Just(SimSecret::Refused), Just(SimSecret::Missing)];
    prop_oneof![
        2 => Just(Deed::Wish(DesiredState::Active)),
        2 => Just(Deed::Wish(DesiredState::Inactive)),
        1 => Just(Deed::Pin(None)),
        2 => Just(Deed::Pin(Some("east"))),
        2 => Just(Deed::Pin(Some("west"))),
        1 => any::<u8>().prop_map(Deed::Define),
        1 => any::<u8>().prop_map(Deed::Describe),
        2 => secret.prop_map(Deed::ChangeSecret),
        1 => Just(Deed::Retry),
        1 => Just(Deed::Elect),
        1 => Just(Deed::Delete),
        1 => Just(Deed::ForceDelete),
        3 => Just(Deed::Create),
        1 => Just(Deed::CreateStatic),
    ]
}

/// Runs the steps and then heals; proptest prints the steps of a failure, shrunk, as they can be pasted here.
fn live(steps: &[LifecycleStep]) -> Result<(), String> {
    let mut sim = Sim::new();
    for (at, step) in steps.iter().enumerate() {
        sim.step(step).map_err(|broken| sim.report(&broken, &steps[..=at]))?;
    }
    sim.heal().map_err(|broken| sim.report(&broken, steps))
}

proptest! {
    #![proptest_config(Config {
        cases: std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(200),
        failure_persistence: Some(Box::new(FileFailurePersistence::Off)),
        max_shrink_iters: 20_000,
        ..Config::default()
    })]

    #[test]
    fn no_fault_breaks_an_invariant_and_the_account_recovers(steps in prop::collection::vec(step(), 1..90)) {
        if let Err(report) = live(&steps) {
            return Err(TestCaseError::fail(report));
        }
    }
}

#[test]
fn an_agent_that_lists_a_static_account_no_more_loses_it_and_another_streams_it() {
    let steps = [
        LifecycleStep::Connect(1),
        LifecycleStep::Person(Deed::CreateStatic),
        LifecycleStep::Work(1),
        LifecycleStep::Person(Deed::Define(0)),
        LifecycleStep::Decide { lag: 0, crash: Crash::No },
        LifecycleStep::Decide { lag: 0, crash: Crash::No },
        LifecycleStep::List { agent: 1, lists: false },
        LifecycleStep::Connect(0),
        LifecycleStep::Person(Deed::Wish(DesiredState::Active)),
    ];
    live(&steps).expect("no invariant is broken");
}

#[test]
fn an_election_that_is_written_late_elects_who_held_the_account_when_it_was_decided() {
    let steps = [
        LifecycleStep::Connect(0),
        LifecycleStep::Person(Deed::Create),
        LifecycleStep::Work(1),
        LifecycleStep::Person(Deed::Elect),
        LifecycleStep::Decide { lag: 0, crash: Crash::Paused },
        LifecycleStep::LateWrite,
    ];
    live(&steps).expect("no invariant is broken");
}

#[test]
fn a_life_without_faults_reaches_every_state_that_is_written() {
    let mut seen = std::collections::BTreeSet::new();
    let mut sim = Sim::new();
    let forbidden = || StepOutcome::Fails(FailureClass::Forbidden);
    let script = [
        LifecycleStep::Person(Deed::Create),
        LifecycleStep::Connect(0),
        LifecycleStep::Work(3),
        LifecycleStep::Cut(0),
        LifecycleStep::Wait(31),
        LifecycleStep::Work(1),
        LifecycleStep::Connect(0),
        LifecycleStep::Work(2),
        LifecycleStep::Person(Deed::Wish(DesiredState::Inactive)),
        LifecycleStep::Decide { lag: 0, crash: Crash::No },
        LifecycleStep::Work(3),
        LifecycleStep::Person(Deed::Wish(DesiredState::Active)),
        LifecycleStep::Work(3),
        LifecycleStep::Connect(2),
        LifecycleStep::Person(Deed::Pin(Some("west"))),
        LifecycleStep::Decide { lag: 0, crash: Crash::No },
        LifecycleStep::Work(3),
        LifecycleStep::Person(Deed::Delete),
        LifecycleStep::Decide { lag: 0, crash: Crash::No },
        LifecycleStep::Send,
        LifecycleStep::Act { agent: 2, outcome: forbidden() },
        LifecycleStep::Deliver { index: 0, again: false },
        LifecycleStep::Decide { lag: 0, crash: Crash::No },
        LifecycleStep::Work(20),
    ];
    for step in &script {
        sim.step(step).unwrap_or_else(|broken| unreachable!("{broken}"));
        seen.extend(sim.states_written().iter().copied());
    }
    let missing: Vec<_> = State::ALL.into_iter().filter(|state| !seen.contains(state.as_str())).collect();
    assert_eq!(missing, [State::ToDeactivate, State::Failed]);
}
