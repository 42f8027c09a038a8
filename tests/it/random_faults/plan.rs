//! What a run does, and when: decided before it begins, from a seed and nothing else.

use std::time::Duration;

use fastrand::Rng;

use super::deck::{self, Deck};

/// How many accounts there are, and how many of them nobody touches.
pub(super) const ACCOUNTS: usize = 200;
/// The first ones are left alone.
pub(super) const STEADY: usize = 40;
/// The zones, with two agents each.
pub(super) const ZONES: [&str; 3] = ["east", "north", "west"];
/// How many agents there are.
pub(super) const AGENTS: usize = 2 * ZONES.len();
/// The replicas of the operator.
pub(super) const REPLICAS: usize = 3;
/// How long a round of a long run lasts; after it, everything has to be as desired.
const ROUND: Duration = Duration::from_secs(120);
/// The pause between two changes, in milliseconds: some four in a second.
const CHANGES: std::ops::Range<u64> = 50..450;

/// How a process is treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Way {
    /// SIGKILL; it is started again.
    Kill,
    /// It is asked to end, and started again.
    End,
    /// SIGSTOP, then SIGCONT.
    Halt,
}

/// Whose processes they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Whom {
    /// The replica that leads then.
    Leader,
    /// One of the others.
    Follower(usize),
    /// All replicas at once.
    Replicas,
    /// An agent.
    Agent(usize),
    /// All agents of a zone, for longer than they are waited for.
    Zone(usize),
    /// The database server.
    Database,
    /// The API server.
    ApiServer,
}

/// One fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// When it begins, from the begin of its round.
    pub(super) at: Duration,
    /// How long the process stays away or stands still.
    pub(super) lasts: Duration,
    pub(super) way: Way,
    pub(super) whom: Whom,
}

/// What there has to be of an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wish {
    pub(super) active: bool,
    /// The place of its zone in [`ZONES`].
    pub(super) zone: usize,
    /// What stands in `kinds`, which is a part of its definition.
    pub(super) kinds: u32,
    /// What stands in `environment`, which is none.
    pub(super) environment: u32,
}

/// How a change is brought about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// By a write to the API server, as kubectl does it.
    Client,
    /// By REST, at a replica.
    Rest(usize),
}

/// What is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum What {
    Activate,
    Deactivate,
    Move,
    /// A new definition: it is activated anew.
    Redefine,
    /// Something that agents are not told.
    Describe,
    /// Deleted, and made again under the same name.
    Recreate,
    Delete,
    Create,
}

/// One change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Change {
    /// When, from the begin of its round; not before earlier changes of the account.
    pub(super) at: Duration,
    pub(super) account: usize,
    pub(super) by: By,
    pub(super) what: What,
    /// What there has to be afterwards; nothing, if it is deleted.
    pub(super) wish: Option<Wish>,
}

/// Faults and changes, and then everything as desired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Round {
    pub(super) faults: Vec<Fault>,
    pub(super) changes: Vec<Change>,
    /// What there has to be in the end.
    pub(super) wishes: Vec<Option<Wish>>,
}

/// A run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) seed: u64,
    /// What there is at the begin.
    pub(super) first: Vec<Option<Wish>>,
    pub(super) rounds: Vec<Round>,
}

impl Plan {
    /// The run of this seed, with faults for so long in all.
    pub(super) fn new(seed: u64, lasts: Duration) -> Self {
        let mut random = Rng::with_seed(seed);
        let first: Vec<_> = (0..ACCOUNTS).map(|account| Some(first(account, &mut random))).collect();
        let (mut wishes, mut rounds, mut left) = (first.clone(), Vec::new(), lasts);
        let mut deck = Deck::default();
        while !left.is_zero() {
            // A last round that would be very short belongs to the one before it.
            let length = if left < ROUND * 3 / 2 { left } else { ROUND };
            left -= length;
            let faults = deck::faults(&mut random, &mut deck, length);
            let changes = changes(&mut random, &mut wishes, length);
            rounds.push(Round { faults, changes, wishes: wishes.clone() });
        }
        Self { seed, first, rounds }
    }
}

/// What an account is at the begin. Those that nobody touches are ACTIVE.
fn first(account: usize, random: &mut Rng) -> Wish {
    let active = account < STEADY || random.u8(0..4) > 0;
    Wish { active, zone: account % ZONES.len(), kinds: 0, environment: 0 }
}

fn changes(random: &mut Rng, wishes: &mut [Option<Wish>], length: Duration) -> Vec<Change> {
    let (mut all, mut at) = (Vec::new(), Duration::ZERO);
    loop {
        at += Duration::from_millis(random.u64(CHANGES));
        if at >= length {
            return all;
        }
        let account = random.usize(STEADY..ACCOUNTS);
        let by = if random.bool() { By::Client } else { By::Rest(random.usize(0..REPLICAS)) };
        let (what, wish) = change(random, wishes[account]);
        wishes[account] = wish;
        all.push(Change { at, account, by, what, wish });
    }
}

/// Half of the changes are flips between ACTIVE and INACTIVE.
fn change(random: &mut Rng, now: Option<Wish>) -> (What, Option<Wish>) {
    let elsewhere = |random: &mut Rng, zone: usize| (zone + random.usize(1..ZONES.len())) % ZONES.len();
    let Some(now) = now else {
        let wish = Wish { active: true, zone: random.usize(0..ZONES.len()), kinds: 0, environment: 0 };
        return (What::Create, Some(wish));
    };
    match random.u8(0..20) {
        0..10 if now.active => (What::Deactivate, Some(Wish { active: false, ..now })),
        0..10 => (What::Activate, Some(Wish { active: true, ..now })),
        10..14 => (What::Move, Some(Wish { zone: elsewhere(random, now.zone), ..now })),
        14 | 15 => (What::Redefine, Some(Wish { kinds: now.kinds + 1, ..now })),
        16 => (What::Describe, Some(Wish { environment: now.environment + 1, ..now })),
        17 | 18 => {
            let zone = if random.bool() { elsewhere(random, now.zone) } else { now.zone };
            (What::Recreate, Some(Wish { active: random.u8(0..4) > 0, zone, kinds: 0, environment: 0 }))
        }
        _ => (What::Delete, None),
    }
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
