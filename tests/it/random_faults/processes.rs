//! Executes the faults, and restarts processes that have exited by themselves, like a kubelet.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Mutex;

use super::book::Target;
use super::plan::{AGENTS, Fault, REPLICAS, Way, Whom};
use super::scene::Scene;
use crate::harness::must;

/// Interval between checks of replicas and agents.
const LOOK: Duration = Duration::from_millis(500);
/// Time limit for an API server to stop when asked.
const END: Duration = Duration::from_secs(5);
/// Time within which a missing database or API server explains the exit of a starting replica.
const MAY_END: Duration = Duration::from_secs(40);

/// The replica that leads, as far as is known.
#[derive(Debug, Default)]
pub(super) struct Leader(AtomicUsize);

impl Leader {
    /// The replica that led at the last check.
    pub(super) fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Scene {
    /// Executes one fault from start to end.
    pub(super) async fn carry_out(&self, fault: Fault, leader: &Leader) {
        let Fault { lasts, way, whom, .. } = fault;
        // The previous fault may take longer than planned: what was stopped has to start again.
        let _turn = futures::future::join_all(self.turns(whom).iter().map(Mutex::lock)).await;
        let targets = targets(whom, leader.get());
        self.chronicle.done(format!("{way:?} {whom:?} ({targets:?}) for {:.1} s", lasts.as_secs_f64()));
        self.chronicle.count(format!("fault:{}", kind(fault)));
        let places: Vec<_> = targets.iter().map(|target| self.book.begin(*target, way)).collect();
        futures::future::join_all(targets.iter().map(|target| self.hit(*target, way))).await;
        // The sleep is the fault itself, not a wait for a condition.
        tokio::time::sleep(lasts).await;
        futures::future::join_all(targets.iter().map(|target| self.heal(*target, way))).await;
        places.into_iter().for_each(|place| self.book.end(place));
        self.chronicle.done(format!("{way:?} {whom:?} is over"));
    }

    /// The locks that a fault waits for. All replicas share one.
    fn turns(&self, whom: Whom) -> &[Mutex<()>] {
        match whom {
            Whom::Agent(agent) => &self.turns[agent..=agent],
            Whom::Zone(zone) => &self.turns[2 * zone..2 * zone + 2],
            Whom::Leader | Whom::Follower(_) | Whom::Replicas => &self.turns[AGENTS..=AGENTS],
            Whom::Database => &self.turns[AGENTS + 1..AGENTS + 2],
            Whom::ApiServer => &self.turns[AGENTS + 2..],
        }
    }

    async fn hit(&self, target: Target, way: Way) {
        match (target, way) {
            (Target::Replica(one), Way::Kill) => self.replica(one).kill(),
            (Target::Replica(one), Way::Halt) => self.replica(one).pause(),
            (Target::Replica(one), Way::End) => self.end_replica(one).await,
            (Target::Agent(one), Way::Kill) => self.agents[one].kill(),
            (Target::Agent(one), Way::Halt) => self.agents[one].pause(),
            (Target::Agent(one), Way::End) => {
                let status = self.agents[one].terminate().await;
                if !status.success() {
                    let agent = self.agents[one].id();
                    self.chronicle.violation(None, format!("agent {agent} was asked to end: {status}"));
                }
            }
            (Target::Database, Way::Kill) => self.server.kill(),
            (Target::Database, Way::Halt) => self.server.pause(),
            (Target::Database, Way::End) => must(self.server.stop().await),
            (Target::ApiServer, Way::Kill) => self.world.control_plane().stop_apiserver(),
            (Target::ApiServer, Way::Halt) => self.world.control_plane().pause(),
            (Target::ApiServer, Way::End) => self.world.control_plane().end_apiserver(END).await,
        }
    }

    async fn end_replica(&self, one: usize) {
        let replica = self.replica(one);
        if replica.exited().is_some() {
            // It had exited by itself because of the missing database, and had not been restarted yet.
            return;
        }
        let status = replica.terminate().await;
        let may_fail = self.lacks_something(MAY_END);
        if !status.success() && !may_fail {
            self.chronicle.violation(None, format!("replica {one} was asked to end: {status}"));
        }
    }

    async fn heal(&self, target: Target, way: Way) {
        match (target, way) {
            (Target::Replica(one), Way::Halt) => self.replica(one).resume(),
            (Target::Replica(one), _) => self.replica(one).launch_with(&[]),
            (Target::Agent(one), Way::Halt) => self.agents[one].resume(),
            (Target::Agent(one), _) => self.agents[one].launch(),
            (Target::Database, Way::Halt) => self.server.resume(),
            (Target::Database, _) => must(self.server.start().await),
            (Target::ApiServer, Way::Halt) => self.world.control_plane().resume(),
            (Target::ApiServer, _) => must(self.world.control_plane().start_apiserver().await),
        }
    }

    /// Whether a replica may have been without its database or API server within this time.
    fn lacks_something(&self, within: Duration) -> bool {
        [Target::Database, Target::ApiServer].iter().any(|target| self.book.was_hit(*target, within))
    }

    /// Restarts exited processes and finds out which replica leads, for as long as the run lasts.
    pub(super) async fn look_after(&self, leader: &Leader) {
        loop {
            for one in 0..REPLICAS {
                self.look_after_replica(one, leader).await;
            }
            for one in 0..AGENTS {
                if !self.book.is_hit(Target::Agent(one))
                    && let Some(status) = self.agents[one].exited()
                    // It may have had a fault meanwhile.
                    && !self.book.was_hit(Target::Agent(one), LOOK)
                {
                    let what = format!("agent {} has ended by itself: {status}", self.agents[one].id());
                    self.chronicle.violation(None, what);
                    self.agents[one].launch();
                }
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn look_after_replica(&self, one: usize, leader: &Leader) {
        let (replica, target) = (self.replica(one), Target::Replica(one));
        if self.book.is_hit(target) {
            return;
        }
        if let Some(status) = replica.exited() {
            let why = replica.check_running().err().unwrap_or_default();
            if self.book.was_hit(target, LOOK) && status.code().is_none() {
                return;
            }
            let last = why.lines().last().unwrap_or_default().to_owned();
            if status.code() == Some(1) && self.lacks_something(MAY_END) {
                self.chronicle.count("also:replicas that found no database or API server at their start");
                self.chronicle.done(format!("replica {one} has ended and is started again: {last}"));
            } else {
                self.chronicle.violation(None, format!("replica {one} has ended by itself: {why}"));
            }
            replica.launch_with(&[]);
            return;
        }
        let asked = tokio::time::timeout(LOOK, replica.metric("kubesvc_leader")).await;
        if asked == Ok(Ok(1)) && leader.0.swap(one, Ordering::Relaxed) != one {
            self.chronicle.count("also:changes of leader");
            self.chronicle.done(format!("replica {one} leads"));
        }
    }

    /// Memory of each replica, in MiB.
    pub(super) fn memory(&self) -> Vec<u64> {
        let of = |one: usize| {
            let status = std::fs::read_to_string(format!("/proc/{}/status", self.replica(one).id()));
            let status = status.unwrap_or_default();
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
            line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or_default() / 1024
        };
        (0..REPLICAS).map(of).collect()
    }
}

fn targets(whom: Whom, leader: usize) -> Vec<Target> {
    match whom {
        Whom::Leader => vec![Target::Replica(leader)],
        Whom::Follower(which) => vec![Target::Replica((leader + 1 + which) % REPLICAS)],
        Whom::Replicas => (0..REPLICAS).map(Target::Replica).collect(),
        Whom::Agent(one) => vec![Target::Agent(one)],
        Whom::Zone(zone) => vec![Target::Agent(2 * zone), Target::Agent(2 * zone + 1)],
        Whom::Database => vec![Target::Database],
        Whom::ApiServer => vec![Target::ApiServer],
    }
}

/// Kind of a fault, for the summary.
pub(super) fn kind(fault: Fault) -> String {
    let whom = match fault.whom {
        Whom::Leader => "leader",
        Whom::Follower(_) => "follower",
        Whom::Replicas => "all replicas",
        Whom::Agent(_) => "agent",
        Whom::Zone(_) => "zone",
        Whom::Database => "database",
        Whom::ApiServer => "API server",
    };
    let way = match fault.way {
        Way::Kill => "killed",
        Way::End => "ended",
        Way::Halt => "halted",
    };
    format!("{whom} {way}")
}
