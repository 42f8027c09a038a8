//! The plan of a run: decided before the start, from a seed alone.

use std::time::Duration;

use fastrand::Rng;

use super::fault_schedule::{self, FaultSchedule};

/// Number of accounts.
pub(super) const ACCOUNTS: usize = 200;
/// Number of accounts, the first ones, that are left alone.
pub(super) const STEADY: usize = 40;
/// Number of accounts, the first ones, whose objects are cached.
pub(super) const CACHED: usize = 3;
/// The zones, with two agents each.
pub(super) const ZONES: [&str; 3] = ["east", "north", "west"];
/// Number of agents.
pub(super) const AGENTS: usize = 2 * ZONES.len();
/// Number of replicas of the operator.
pub(super) const REPLICAS: usize = 3;
/// Duration of a round in a long run; after it, everything must be as desired.
const ROUND: Duration = Duration::from_secs(120);
/// Range of pauses between two changes, in milliseconds: about four changes per second.
const CHANGES: std::ops::Range<u64> = 50..450;

/// Kind of fault of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum FaultMode {
    /// SIGKILL, then a new start.
    Kill,
    /// SIGTERM, then a new start.
    End,
    /// SIGSTOP, then SIGCONT.
    Halt,
}

/// Target of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum FaultScope {
    /// The replica that leads at that time.
    Leader,
    /// One of the other replicas.
    Follower(usize),
    /// All replicas at once.
    Replicas,
    /// An agent.
    Agent(usize),
    /// All agents of a zone, for longer than the grace.
    Zone(usize),
    /// The database server.
    Database,
    /// The API server.
    ApiServer,
}

/// One fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// Start, relative to the start of the round.
    pub(super) at: Duration,
    /// How long the process is down or paused.
    pub(super) lasts: Duration,
    pub(super) mode: FaultMode,
    pub(super) scope: FaultScope,
}

/// Desired state of an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DesiredAccount {
    pub(super) active: bool,
    /// Index of its zone in [`ZONES`].
    pub(super) zone: usize,
    /// Number in `kinds`, which is part of the definition.
    pub(super) kinds: u32,
    /// Number in `environment`, which is not part of the definition.
    pub(super) environment: u32,
    /// Whether its ConfigMaps are cached.
    pub(super) is_cached: bool,
}

/// How a change is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Via {
    /// A write to the API server, like kubectl.
    Client,
    /// A REST call to a replica.
    Rest(usize),
}

/// Kind of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ChangeKind {
    Activate,
    Deactivate,
    Move,
    /// A new definition, which activates the account again.
    Redefine,
    /// A field that agents are not sent.
    Describe,
    /// Deletes the account and creates it again under the same name.
    Recreate,
    Delete,
    Create,
}

/// One change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Change {
    /// Time, relative to the start of the round; not before earlier changes of the account.
    pub(super) at: Duration,
    pub(super) account: usize,
    pub(super) via: Via,
    pub(super) kind: ChangeKind,
    /// Desired state afterwards; `None` if the account is deleted.
    pub(super) desired: Option<DesiredAccount>,
}

/// A round of faults and changes, after which everything must be as desired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Round {
    pub(super) faults: Vec<Fault>,
    pub(super) changes: Vec<Change>,
    /// Desired states at the end of the round.
    pub(super) desired_accounts: Vec<Option<DesiredAccount>>,
}

/// A run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) seed: u64,
    /// Desired states at the start.
    pub(super) first: Vec<Option<DesiredAccount>>,
    pub(super) rounds: Vec<Round>,
}

impl Plan {
    /// Creates the plan for a seed, with faults for this total duration.
    pub(super) fn new(seed: u64, lasts: Duration) -> Self {
        let mut random = Rng::with_seed(seed);
        let first: Vec<_> = (0..ACCOUNTS).map(|account| Some(first(account, &mut random))).collect();
        let (mut desired_accounts, mut rounds, mut left) = (first.clone(), Vec::new(), lasts);
        let mut schedule = FaultSchedule::default();
        while !left.is_zero() {
            // A last round that would be very short is merged into the one before it.
            let length = if left < ROUND * 3 / 2 { left } else { ROUND };
            left -= length;
            let faults = fault_schedule::faults(&mut random, &mut schedule, length);
            let changes = changes(&mut random, &mut desired_accounts, length);
            rounds.push(Round { faults, changes, desired_accounts: desired_accounts.clone() });
        }
        Self { seed, first, rounds }
    }
}

/// Desired state of an account at the start. Accounts that are left alone are ACTIVE.
fn first(account: usize, random: &mut Rng) -> DesiredAccount {
    let active = account < STEADY || random.u8(0..4) > 0;
    DesiredAccount {
        active,
        zone: account % ZONES.len(),
        kinds: 0,
        environment: 0,
        is_cached: account < CACHED,
    }
}

fn changes(
    random: &mut Rng,
    desired_accounts: &mut [Option<DesiredAccount>],
    length: Duration,
) -> Vec<Change> {
    let (mut all, mut at) = (Vec::new(), Duration::ZERO);
    loop {
        at += Duration::from_millis(random.u64(CHANGES));
        if at >= length {
            return all;
        }
        let account = random.usize(STEADY..ACCOUNTS);
        let via = if random.bool() { Via::Client } else { Via::Rest(random.usize(0..REPLICAS)) };
        let (kind, desired) = change(random, desired_accounts[account]);
        desired_accounts[account] = desired;
        all.push(Change { at, account, via, kind, desired });
    }
}

/// Chooses a change. Half of the changes switch between ACTIVE and INACTIVE.
fn change(random: &mut Rng, now: Option<DesiredAccount>) -> (ChangeKind, Option<DesiredAccount>) {
    let elsewhere = |random: &mut Rng, zone: usize| (zone + random.usize(1..ZONES.len())) % ZONES.len();
    let Some(now) = now else {
        let zone = random.usize(0..ZONES.len());
        return (ChangeKind::Create, Some(created(true, zone)));
    };
    match random.u8(0..20) {
        0..10 if now.active => (ChangeKind::Deactivate, Some(DesiredAccount { active: false, ..now })),
        0..10 => (ChangeKind::Activate, Some(DesiredAccount { active: true, ..now })),
        10..14 => (ChangeKind::Move, Some(DesiredAccount { zone: elsewhere(random, now.zone), ..now })),
        14 | 15 => (ChangeKind::Redefine, Some(DesiredAccount { kinds: now.kinds + 1, ..now })),
        16 => (ChangeKind::Describe, Some(DesiredAccount { environment: now.environment + 1, ..now })),
        17 | 18 => {
            let zone = if random.bool() { elsewhere(random, now.zone) } else { now.zone };
            (ChangeKind::Recreate, Some(created(random.u8(0..4) > 0, zone)))
        }
        _ => (ChangeKind::Delete, None),
    }
}

/// Desired state of an account that is made anew.
fn created(active: bool, zone: usize) -> DesiredAccount {
    DesiredAccount { active, zone, kinds: 0, environment: 0, is_cached: false }
}

/// The name of an account.
pub(super) fn name(account: usize) -> String {
    if account < STEADY { format!("steady-{account:03}") } else { format!("moving-{account:03}") }
}

/// The id of an agent.
pub(super) fn agent(number: usize) -> String {
    format!("{}-{}", ZONES[zone_of(number)], number % 2)
}

/// The zone of an agent.
pub(super) fn zone_of(agent: usize) -> usize {
    agent / 2
}
