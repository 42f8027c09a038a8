//! Chooses the next fault. Each kind is a card; all cards are drawn before one is drawn again, so that a
//! minute includes each kind.

use std::time::Duration;

use fastrand::Rng;

use super::plan::{AGENTS, Fault, Way, Whom, ZONES};

/// Grace for agents, in seconds; a fault of a whole zone lasts longer, one of a replica less long.
pub(super) const GRACE: u64 = 8;
/// Validity of a Lease, in seconds. A paused replica stays paused for longer.
pub(super) const LEASE: u64 = 5;
/// A kind of fault, as a card of the deck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Leader,
    Follower,
    Replicas,
    Agent,
    Zone,
    Database,
    ApiServer,
}

const CARDS: [(Kind, Way); 17] = [
    (Kind::Leader, Way::Kill),
    (Kind::Leader, Way::End),
    (Kind::Leader, Way::Halt),
    (Kind::Follower, Way::Kill),
    (Kind::Follower, Way::End),
    (Kind::Follower, Way::Halt),
    (Kind::Replicas, Way::Kill),
    (Kind::Agent, Way::Kill),
    (Kind::Agent, Way::End),
    (Kind::Agent, Way::Halt),
    (Kind::Zone, Way::Kill),
    (Kind::Database, Way::Kill),
    (Kind::Database, Way::End),
    (Kind::Database, Way::Halt),
    (Kind::ApiServer, Way::Kill),
    (Kind::ApiServer, Way::End),
    (Kind::ApiServer, Way::Halt),
];

/// The cards that are still to be drawn.
#[derive(Debug, Default)]
pub(super) struct Deck(Vec<(Kind, Way)>);

/// When the current fault of each target ends. The replicas count as one target, so that agents always have
/// one to dial.
#[derive(Debug, Default)]
struct Busy {
    replicas: Duration,
    agents: [Duration; AGENTS],
    database: Duration,
    api_server: Duration,
}

/// The faults of a round; the last one is over when the round ends.
pub(super) fn faults(random: &mut Rng, deck: &mut Deck, length: Duration) -> Vec<Fault> {
    let (mut all, mut busy) = (Vec::new(), Busy::default());
    let mut at = Duration::from_secs(1);
    while at < length {
        if let Some(fault) = deck.draw(random, &mut busy, at, length) {
            all.push(fault);
        }
        at += Duration::from_millis(random.u64(1_000..4_000));
    }
    all
}

impl Deck {
    /// Draws the next card that can be played now.
    fn draw(&mut self, random: &mut Rng, busy: &mut Busy, at: Duration, length: Duration) -> Option<Fault> {
        if self.0.is_empty() {
            self.0 = CARDS.to_vec();
            random.shuffle(&mut self.0);
        }
        for place in 0..self.0.len() {
            let (kind, way) = self.0[place];
            let lasts = lasts(random, kind, way);
            let Some(whom) = free(random, busy, kind, at) else { continue };
            if at + lasts > length {
                continue;
            }
            self.0.remove(place);
            busy.until(whom, at + lasts + afterwards(kind));
            return Some(Fault { at, lasts, way, whom });
        }
        None
    }
}

/// Time to leave a target alone after a fault, for its restart. Little happens without an API server, so it
/// gets more.
fn afterwards(kind: Kind) -> Duration {
    Duration::from_secs(if kind == Kind::ApiServer { 10 } else { 3 })
}

fn lasts(random: &mut Rng, kind: Kind, way: Way) -> Duration {
    let milliseconds = match (kind, way) {
        (Kind::Zone, _) => (GRACE + 3) * 1000..(GRACE + 8) * 1000,
        (Kind::Leader | Kind::Follower, Way::Halt) => (LEASE + 1) * 1000..(LEASE + 4) * 1000,
        // Every now and then, past the time without frames after which a stream is cut.
        (Kind::Agent, Way::Halt) if random.u8(0..4) == 0 => 32_000..40_000,
        (_, Way::Halt) => 2_000..9_000,
        (Kind::Replicas | Kind::Leader | Kind::Follower, _) => 0..2_000,
        _ => 0..4_000,
    };
    Duration::from_millis(random.u64(milliseconds))
}

/// A target of this kind without a current fault.
fn free(random: &mut Rng, busy: &Busy, kind: Kind, at: Duration) -> Option<Whom> {
    let agents = |zone: usize| busy.agents[2 * zone..2 * zone + 2].iter().all(|until| *until <= at);
    match kind {
        Kind::Leader if busy.replicas <= at => Some(Whom::Leader),
        Kind::Follower if busy.replicas <= at => Some(Whom::Follower(random.usize(0..2))),
        Kind::Replicas if busy.replicas <= at => Some(Whom::Replicas),
        Kind::Agent => {
            let agent = random.usize(0..AGENTS);
            (busy.agents[agent] <= at).then_some(Whom::Agent(agent))
        }
        Kind::Zone => {
            let zone = random.usize(0..ZONES.len());
            agents(zone).then_some(Whom::Zone(zone))
        }
        Kind::Database if busy.database <= at => Some(Whom::Database),
        Kind::ApiServer if busy.api_server <= at => Some(Whom::ApiServer),
        _ => None,
    }
}

impl Busy {
    fn until(&mut self, whom: Whom, end: Duration) {
        match whom {
            Whom::Leader | Whom::Follower(_) | Whom::Replicas => self.replicas = end,
            Whom::Agent(agent) => self.agents[agent] = end,
            Whom::Zone(zone) => self.agents[2 * zone..2 * zone + 2].fill(end),
            Whom::Database => self.database = end,
            Whom::ApiServer => self.api_server = end,
        }
    }
}
