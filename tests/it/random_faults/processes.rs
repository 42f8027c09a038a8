//! Executes the faults, and restarts processes that have exited by themselves, like a kubelet.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Mutex;

use super::fault_log::Target;
use super::plan::{AGENTS, Fault, FaultMode, FaultScope, REPLICAS};
use super::scene::Scene;
use kubesvc_testkit::must;

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
    pub(super) async fn execute(&self, fault: Fault, leader: &Leader) {
        let Fault { lasts, mode, scope, .. } = fault;
        // The previous fault may take longer than planned: what was stopped has to start again.
        let _turn = futures::future::join_all(self.turns(scope).iter().map(Mutex::lock)).await;
        let targets = targets(scope, leader.get());
        self.event_log
            .of_process(format!("{mode:?} {scope:?} ({targets:?}) for {:.1} s", lasts.as_secs_f64()));
        self.event_log.count(format!("fault:{}", kind(fault)));
        let places: Vec<_> = targets.iter().map(|target| self.fault_log.begin(*target, mode)).collect();
        futures::future::join_all(targets.iter().map(|target| self.hit(*target, mode))).await;
        // The sleep is the fault itself, not a wait for a condition.
        tokio::time::sleep(lasts).await;
        futures::future::join_all(targets.iter().map(|target| self.heal(*target, mode))).await;
        places.into_iter().for_each(|place| self.fault_log.end(place));
        self.event_log.of_process(format!("{mode:?} {scope:?} is over"));
    }

    /// The locks that a fault waits for. All replicas share one.
    fn turns(&self, scope: FaultScope) -> &[Mutex<()>] {
        match scope {
            FaultScope::Agent(agent) => &self.turns[agent..=agent],
            FaultScope::Zone(zone) => &self.turns[2 * zone..2 * zone + 2],
            FaultScope::Leader | FaultScope::Follower(_) | FaultScope::Replicas => {
                &self.turns[AGENTS..=AGENTS]
            }
            FaultScope::Database => &self.turns[AGENTS + 1..AGENTS + 2],
            FaultScope::ApiServer => &self.turns[AGENTS + 2..],
        }
    }

    async fn hit(&self, target: Target, mode: FaultMode) {
        match (target, mode) {
            (Target::Replica(one), FaultMode::Kill) => self.replica(one).kill(),
            (Target::Replica(one), FaultMode::Halt) => self.replica(one).pause(),
            (Target::Replica(one), FaultMode::End) => self.end_replica(one).await,
            (Target::Agent(one), FaultMode::Kill) => self.agents[one].kill(),
            (Target::Agent(one), FaultMode::Halt) => self.agents[one].pause(),
            (Target::Agent(one), FaultMode::End) => {
                let status = self.agents[one].terminate().await;
                if !status.success() {
                    let agent = self.agents[one].id();
                    self.event_log.violation(None, format!("agent {agent} was asked to end: {status}"));
                }
            }
            (Target::Database, FaultMode::Kill) => self.server.kill(),
            (Target::Database, FaultMode::Halt) => self.server.pause(),
            (Target::Database, FaultMode::End) => must(self.server.stop().await),
            (Target::ApiServer, FaultMode::Kill) => self.world.control_plane().stop_apiserver(),
            (Target::ApiServer, FaultMode::Halt) => self.world.control_plane().pause(),
            (Target::ApiServer, FaultMode::End) => self.world.control_plane().end_apiserver(END).await,
        }
    }

    async fn end_replica(&self, one: usize) {
        let replica = self.replica(one);
        if replica.exited().is_some() {
            // It had exited by itself because of the missing database, and had not been restarted yet.
            return;
        }
        let status = replica.terminate().await;
        let may_fail = self.lacked_a_server(MAY_END);
        if !status.success() && !may_fail {
            self.event_log.violation(None, format!("replica {one} was asked to end: {status}"));
        }
    }

    async fn heal(&self, target: Target, mode: FaultMode) {
        match (target, mode) {
            (Target::Replica(one), FaultMode::Halt) => self.replica(one).resume(),
            (Target::Replica(one), _) => self.replica(one).launch_with(&[]),
            (Target::Agent(one), FaultMode::Halt) => self.agents[one].resume(),
            (Target::Agent(one), _) => self.agents[one].launch(),
            (Target::Database, FaultMode::Halt) => self.server.resume(),
            (Target::Database, _) => must(self.server.start().await),
            (Target::ApiServer, FaultMode::Halt) => self.world.control_plane().resume(),
            (Target::ApiServer, _) => must(self.world.control_plane().start_apiserver().await),
        }
    }

    /// Whether a replica may have been without its database or API server within this time.
    fn lacked_a_server(&self, within: Duration) -> bool {
        [Target::Database, Target::ApiServer].iter().any(|target| self.fault_log.was_hit(*target, within))
    }

    /// Restarts exited processes and finds out which replica leads, for as long as the run lasts.
    pub(super) async fn supervise(&self, leader: &Leader) {
        loop {
            for one in 0..REPLICAS {
                self.supervise_replica(one, leader).await;
            }
            for one in 0..AGENTS {
                if !self.fault_log.is_hit(Target::Agent(one))
                    && let Some(status) = self.agents[one].exited()
                    // It may have had a fault meanwhile.
                    && !self.fault_log.was_hit(Target::Agent(one), LOOK)
                {
                    let what = format!("agent {} has ended by itself: {status}", self.agents[one].id());
                    self.event_log.violation(None, what);
                    self.agents[one].launch();
                }
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn supervise_replica(&self, one: usize, leader: &Leader) {
        let (replica, target) = (self.replica(one), Target::Replica(one));
        if self.fault_log.is_hit(target) {
            return;
        }
        if let Some(status) = replica.exited() {
            let why = replica.check_running().err().unwrap_or_default();
            if self.fault_log.was_hit(target, LOOK) && status.code().is_none() {
                return;
            }
            let last = why.lines().last().unwrap_or_default().to_owned();
            if status.code() == Some(1) && self.lacked_a_server(MAY_END) {
                self.event_log.count("also:replicas that found no database or API server at their start");
                self.event_log.of_process(format!("replica {one} has ended and is started again: {last}"));
            } else {
                self.event_log.violation(None, format!("replica {one} has ended by itself: {why}"));
            }
            replica.launch_with(&[]);
            return;
        }
        let asked = tokio::time::timeout(LOOK, replica.metric("kubesvc_leader")).await;
        if asked == Ok(Ok(1)) && leader.0.swap(one, Ordering::Relaxed) != one {
            self.event_log.count("also:changes of leader");
            self.event_log.of_process(format!("replica {one} leads"));
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

fn targets(scope: FaultScope, leader: usize) -> Vec<Target> {
    match scope {
        FaultScope::Leader => vec![Target::Replica(leader)],
        FaultScope::Follower(which) => vec![Target::Replica((leader + 1 + which) % REPLICAS)],
        FaultScope::Replicas => (0..REPLICAS).map(Target::Replica).collect(),
        FaultScope::Agent(one) => vec![Target::Agent(one)],
        FaultScope::Zone(zone) => vec![Target::Agent(2 * zone), Target::Agent(2 * zone + 1)],
        FaultScope::Database => vec![Target::Database],
        FaultScope::ApiServer => vec![Target::ApiServer],
    }
}

/// Kind of a fault, for the summary.
pub(super) fn kind(fault: Fault) -> String {
    let scope = match fault.scope {
        FaultScope::Leader => "leader",
        FaultScope::Follower(_) => "follower",
        FaultScope::Replicas => "all replicas",
        FaultScope::Agent(_) => "agent",
        FaultScope::Zone(_) => "zone",
        FaultScope::Database => "database",
        FaultScope::ApiServer => "API server",
    };
    let mode = match fault.mode {
        FaultMode::Kill => "killed",
        FaultMode::End => "ended",
        FaultMode::Halt => "halted",
    };
    format!("{scope} {mode}")
}
