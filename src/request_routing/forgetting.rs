//! Writes of which their callers have the end, an answer or a failure, told to the replicas whose agents keep it. Best
//! effort: an agent keeps it for ten minutes at most.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::messages::{FORGET_PATH, ForgetCall, ForgottenWrites};
use crate::connected_agents::AnsweringAgent;
use crate::peers::Peers;
use kubesvc_core::ReplicaId;
use kubesvc_runtime::background_tasks::{AttemptOutcome, BackgroundTasks, TaskSpec};

/// Interval at which other replicas are told.
const TELL_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum number of writes that wait to be told; the oldest go.
const MAX_WAITING: usize = 20_000;
/// Maximum number of writes in one call.
const MAX_WRITES_PER_CALL: usize = 2000;

/// A write whose caller has its end.
type Forgotten = (ReplicaId, AnsweringAgent, String);

/// Writes whose ends need not be kept.
pub(super) struct Forgets {
    peers: Arc<Peers>,
    waiting: Mutex<VecDeque<Forgotten>>,
}

impl Forgets {
    pub(super) fn new(peers: Arc<Peers>) -> Self {
        Self { peers, waiting: Mutex::default() }
    }

    /// Records that the caller has the end of a write, which came by this replica.
    pub(super) fn add(&self, replica_id: &ReplicaId, agent: &AnsweringAgent, request_id: &str) {
        let mut waiting = self.waiting.lock();
        if waiting.len() >= MAX_WAITING {
            waiting.pop_front();
        }
        waiting.push_back((replica_id.clone(), agent.clone(), request_id.to_owned()));
    }

    /// The next writes to tell, by replica.
    fn next_calls(&self) -> BTreeMap<ReplicaId, ForgetCall> {
        let mut waiting = self.waiting.lock();
        let count = waiting.len().min(MAX_WRITES_PER_CALL);
        let mut calls: BTreeMap<ReplicaId, ForgetCall> = BTreeMap::new();
        for (replica_id, agent, request_id) in waiting.drain(..count) {
            let call = calls.entry(replica_id).or_insert_with(|| ForgetCall { processes: Vec::new() });
            match call.processes.iter_mut().find(|process| process.agent == agent) {
                Some(process) => process.request_ids.push(request_id),
                None => call.processes.push(ForgottenWrites { agent, request_ids: vec![request_id] }),
            }
        }
        calls
    }

    async fn tell(self: Arc<Self>) -> AttemptOutcome {
        loop {
            let calls = self.next_calls();
            if calls.is_empty() {
                return AttemptOutcome::Done;
            }
            for (replica_id, call) in calls {
                let Some(replica) = self.peers.other(&replica_id) else { continue };
                // The agent lets go of it by itself if this fails.
                let _ = self.peers.tell::<serde_json::Value>(&replica, FORGET_PATH, &call).await;
            }
        }
    }
}

/// Starts the task that tells the other replicas.
pub(super) fn start(background: &BackgroundTasks, forgets: &Arc<Forgets>) {
    let task: TaskSpec<()> =
        TaskSpec::new("forgotten answers", "Tells other replicas which answers of writes were received");
    let forgets = Arc::clone(forgets);
    background.start(task.every(TELL_INTERVAL), move |_| Arc::clone(&forgets).tell());
}
