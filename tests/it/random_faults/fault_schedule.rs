//! Chooses the next fault. No kind is repeated before all others were chosen, so that a minute includes each.

use std::time::Duration;

use fastrand::Rng;

use super::plan::{AGENTS, Fault, FaultMode, FaultScope, ZONES};

/// Grace for agents, in seconds; a fault of a whole zone lasts longer, one of a replica less long.
pub(super) const GRACE: u64 = 8;
/// Validity of a Lease, in seconds. A paused replica stays paused for longer.
pub(super) const LEASE: u64 = 5;

/// Kind of target of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TargetKind {
    Leader,
    Follower,
    Replicas,
    Agent,
    Zone,
    Database,
    ApiServer,
}

/// Every kind of fault.
const FAULTS: [(TargetKind, FaultMode); 17] = [
    (TargetKind::Leader, FaultMode::Kill),
    (TargetKind::Leader, FaultMode::End),
    (TargetKind::Leader, FaultMode::Halt),
    (TargetKind::Follower, FaultMode::Kill),
    (TargetKind::Follower, FaultMode::End),
    (TargetKind::Follower, FaultMode::Halt),
    (TargetKind::Replicas, FaultMode::Kill),
    (TargetKind::Agent, FaultMode::Kill),
    (TargetKind::Agent, FaultMode::End),
    (TargetKind::Agent, FaultMode::Halt),
    (TargetKind::Zone, FaultMode::Kill),
    (TargetKind::Database, FaultMode::Kill),
    (TargetKind::Database, FaultMode::End),
    (TargetKind::Database, FaultMode::Halt),
    (TargetKind::ApiServer, FaultMode::Kill),
    (TargetKind::ApiServer, FaultMode::End),
    (TargetKind::ApiServer, FaultMode::Halt),
];

/// The kinds of faults that are still to be chosen before one is repeated.
#[derive(Debug, Default)]
pub(super) struct FaultSchedule(Vec<(TargetKind, FaultMode)>);

/// When the current fault of each target ends. The replicas count as one target, so that agents always have
/// one to dial.
#[derive(Debug, Default)]
struct BusyUntil {
    replicas: Duration,
    agents: [Duration; AGENTS],
    database: Duration,
    api_server: Duration,
}

/// The faults of a round; the last one is over when the round ends.
pub(super) fn faults(random: &mut Rng, schedule: &mut FaultSchedule, length: Duration) -> Vec<Fault> {
    let (mut all, mut busy) = (Vec::new(), BusyUntil::default());
    let mut at = Duration::from_secs(1);
    while at < length {
        if let Some(fault) = schedule.next(random, &mut busy, at, length) {
            all.push(fault);
        }
        at += Duration::from_millis(random.u64(1_000..4_000));
    }
    all
}

impl FaultSchedule {
    /// Returns the next fault that is possible now.
    fn next(
        &mut self,
        random: &mut Rng,
        busy: &mut BusyUntil,
        at: Duration,
        length: Duration,
    ) -> Option<Fault> {
        if self.0.is_empty() {
            self.0 = FAULTS.to_vec();
            random.shuffle(&mut self.0);
        }
        for place in 0..self.0.len() {
            let (kind, mode) = self.0[place];
            let lasts = lasts(random, kind, mode);
            let Some(scope) = idle_target(random, busy, kind, at) else { continue };
            if at + lasts > length {
                continue;
            }
            self.0.remove(place);
            busy.set(scope, at + lasts + recovery_time(kind));
            return Some(Fault { at, lasts, mode, scope });
        }
        None
    }
}

/// Time to leave a target alone after a fault, for its restart. Little happens without an API server, so it
/// gets more.
fn recovery_time(kind: TargetKind) -> Duration {
    Duration::from_secs(if kind == TargetKind::ApiServer { 10 } else { 3 })
}

fn lasts(random: &mut Rng, kind: TargetKind, mode: FaultMode) -> Duration {
    let milliseconds = match (kind, mode) {
        (TargetKind::Zone, _) => (GRACE + 3) * 1000..(GRACE + 8) * 1000,
        (TargetKind::Leader | TargetKind::Follower, FaultMode::Halt) => {
            (LEASE + 1) * 1000..(LEASE + 4) * 1000
        }
        // Every now and then, past the time without frames after which a stream is cut.
        (TargetKind::Agent, FaultMode::Halt) if random.u8(0..4) == 0 => 32_000..40_000,
        (_, FaultMode::Halt) => 2_000..9_000,
        (TargetKind::Replicas | TargetKind::Leader | TargetKind::Follower, _) => 0..2_000,
        _ => 0..4_000,
    };
    Duration::from_millis(random.u64(milliseconds))
}

/// A target of this kind without a current fault.
fn idle_target(random: &mut Rng, busy: &BusyUntil, kind: TargetKind, at: Duration) -> Option<FaultScope> {
    let agents = |zone: usize| busy.agents[2 * zone..2 * zone + 2].iter().all(|until| *until <= at);
    match kind {
        TargetKind::Leader if busy.replicas <= at => Some(FaultScope::Leader),
        TargetKind::Follower if busy.replicas <= at => Some(FaultScope::Follower(random.usize(0..2))),
        TargetKind::Replicas if busy.replicas <= at => Some(FaultScope::Replicas),
        TargetKind::Agent => {
            let agent = random.usize(0..AGENTS);
            (busy.agents[agent] <= at).then_some(FaultScope::Agent(agent))
        }
        TargetKind::Zone => {
            let zone = random.usize(0..ZONES.len());
            agents(zone).then_some(FaultScope::Zone(zone))
        }
        TargetKind::Database if busy.database <= at => Some(FaultScope::Database),
        TargetKind::ApiServer if busy.api_server <= at => Some(FaultScope::ApiServer),
        _ => None,
    }
}

impl BusyUntil {
    fn set(&mut self, scope: FaultScope, end: Duration) {
        match scope {
            FaultScope::Leader | FaultScope::Follower(_) | FaultScope::Replicas => self.replicas = end,
            FaultScope::Agent(agent) => self.agents[agent] = end,
            FaultScope::Zone(zone) => self.agents[2 * zone..2 * zone + 2].fill(end),
            FaultScope::Database => self.database = end,
            FaultScope::ApiServer => self.api_server = end,
        }
    }
}
