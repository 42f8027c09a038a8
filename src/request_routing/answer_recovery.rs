//! The answer of a write, asked for again wherever the process of its agent is by then.

use std::time::Duration;

use futures::{StreamExt as _, stream};
use http::Request;
use tokio::time::{Instant, sleep, timeout_at};

use super::RequestRouter;
use super::messages::{AnswerLine, recall_path};
use super::relaying::AnswerReader;
use crate::connected_agents::{
    AccountGrant, AccountResponse, AnsweringAgent, AskedAgent, RecallFailure, RequestError,
};
use crate::peers::{CallBody, RelayedAnswer, Replica};
use kubesvc_core::{AgentId, ReplicaId, ZoneId};

/// Interval between two rounds of questions to the other replicas.
const ROUND_INTERVAL: Duration = Duration::from_millis(500);

/// The processes that may have been given a write.
#[derive(Clone, Debug)]
pub(super) struct Suspects {
    processes: Vec<AnsweringAgent>,
    /// Whether it is certain that it was the only one.
    is_certain: bool,
}

impl Suspects {
    /// The process that was given it.
    pub(super) fn certain(agent: AnsweringAgent) -> Self {
        Self { processes: vec![agent], is_certain: true }
    }

    /// The agent that was asked, if it is certain.
    pub(super) fn named(&self) -> Vec<AgentId> {
        let named = self.processes.iter().filter(|_| self.is_certain);
        named.map(|process| process.agent_id.clone()).collect()
    }
}

/// How a recall ended without an answer.
pub(super) enum RecallEnd {
    /// Certainly nothing was executed.
    NotSent(RequestError),
    /// This is the answer.
    Settled(RequestError),
    /// The time is over.
    TimedOut,
}

impl RequestRouter {
    /// The processes that a replica may give a request of a zone to.
    pub(super) fn suspects(&self, zone: &ZoneId, replica_id: &ReplicaId) -> Suspects {
        let of_zone = self.peers.processes_of_zone(zone);
        // If Endpoints name no pods, the objects match no replica: each is suspected.
        let is_named = of_zone.iter().any(|process| process.replica_id == *replica_id);
        let there = of_zone.into_iter().filter(|process| !is_named || process.replica_id == *replica_id);
        let processes = there.map(|one| AnsweringAgent { agent_id: one.agent_id, boot_id: one.boot_id });
        Suspects { processes: processes.collect(), is_certain: false }
    }

    /// The processes that may have been given a write for an account, at any replica. An error: none is connected now.
    pub(super) fn suspects_of_zone(&self, grant: &AccountGrant) -> Result<Suspects, RequestError> {
        let mut processes = self.here.processes_of_zone(&grant.zone);
        for one in self.peers.processes_of_zone(&grant.zone) {
            let process = AnsweringAgent { agent_id: one.agent_id, boot_id: one.boot_id };
            if !processes.contains(&process) {
                processes.push(process);
            }
        }
        if processes.is_empty() {
            let (account, zone) = (grant.name.clone(), grant.zone.clone());
            return Err(RequestError::NoAgent { account, zone, is_expected: false });
        }
        Ok(Suspects { processes, is_certain: false })
    }

    /// Asks for the answer of a write, at each replica in turn, until the deadline.
    pub(super) async fn recall_until(
        &self,
        request_id: &str,
        mut suspects: Suspects,
        deadline: Instant,
    ) -> Result<AccountResponse, RecallEnd> {
        let mut streams = self.here.streams();
        loop {
            // From here on, no stream is missed.
            streams.borrow_and_update();
            for process in suspects.processes.clone() {
                match self.recall_once(request_id, &process, suspects.is_certain, deadline).await {
                    Ok(response) => return Ok(response),
                    Err(RecallFailure::NotHere) => {}
                    Err(RecallFailure::NotSent(error)) if suspects.is_certain => {
                        return Err(RecallEnd::NotSent(error));
                    }
                    Err(RecallFailure::Settled(error)) if suspects.is_certain => {
                        return Err(RecallEnd::Settled(error));
                    }
                    Err(RecallFailure::NotSent(_) | RecallFailure::Settled(_)) => {
                        suspects.processes.retain(|one| *one != process);
                    }
                    Err(RecallFailure::TimedOut) => return Err(RecallEnd::TimedOut),
                }
            }
            if suspects.processes.is_empty() {
                let why = "the replica between was lost, and no agent that it may have asked has the request";
                return Err(RecallEnd::Settled(RequestError::Unknown(why.to_owned())));
            }
            let waiting = async {
                tokio::select! {
                    _ = streams.changed() => {}
                    () = sleep(ROUND_INTERVAL) => {}
                }
            };
            if timeout_at(deadline, waiting).await.is_err() {
                return Err(RecallEnd::TimedOut);
            }
        }
    }

    /// Asks a process at the replica that has its session. Where it is certain that the process was given the write, a
    /// failure is its end as an answer is; else the write may still be on its way there.
    async fn recall_once(
        &self,
        request_id: &str,
        process: &AnsweringAgent,
        is_certain: bool,
        deadline: Instant,
    ) -> Result<AccountResponse, RecallFailure> {
        match self.here.recall_here(request_id, process, deadline, false).await {
            Err(RecallFailure::NotHere) => {}
            settled => return settled,
        }
        for replica in self.peers.replicas_for_agent(&process.agent_id) {
            let recalled = self.recall_at(&replica, request_id, process, deadline).await;
            let has_end = match &recalled {
                Err(RecallFailure::NotHere) => continue,
                Ok(_) => true,
                Err(RecallFailure::NotSent(_) | RecallFailure::Settled(_)) => is_certain,
                // It runs.
                Err(RecallFailure::TimedOut) => false,
            };
            if has_end {
                self.forgets.add(&replica.id, process, request_id);
            }
            return recalled;
        }
        Err(RecallFailure::NotHere)
    }

    /// Asks another replica. What it cannot say counts as "not here".
    async fn recall_at(
        &self,
        replica: &Replica,
        request_id: &str,
        process: &AnsweringAgent,
        deadline: Instant,
    ) -> Result<AccountResponse, RecallFailure> {
        let path = recall_path(request_id, process, deadline.saturating_duration_since(Instant::now()));
        let call = Request::get(self.peers.url(replica, &path)).body(CallBody::default());
        let call = call.map_err(|_| RecallFailure::NotHere)?;
        let answer = self.peers.relay_request(replica, call, deadline).await;
        let RelayedAnswer { body, slot: _slot } = answer.map_err(|_| RecallFailure::NotHere)?;
        let reading = timeout_at(deadline, read_recalled(AnswerReader::new(body), process));
        reading.await.unwrap_or(Err(RecallFailure::TimedOut))
    }
}

/// Reads the answer of a recall.
async fn read_recalled(
    mut answer: AnswerReader,
    process: &AnsweringAgent,
) -> Result<AccountResponse, RecallFailure> {
    let not_here = |_: String| RecallFailure::NotHere;
    let mut answers = None;
    let head = loop {
        match answer.line().await.map_err(not_here)? {
            AnswerLine::Asked(agent) => answers = Some(agent),
            AnswerLine::Head(head) => break head,
            AnswerLine::NotRecalled(failure) => return Err(failure),
            AnswerLine::Failed(_) => return Err(RecallFailure::NotHere),
        }
    };
    let body = answer.whole().await.map_err(not_here)?;
    let (status, headers) = head.read().ok_or(RecallFailure::NotHere)?;
    let body = stream::once(std::future::ready(body)).boxed();
    let replica_id = answers.ok_or(RecallFailure::NotHere)?.replica_id;
    let agent = AskedAgent { process: process.clone(), replica_id };
    Ok(AccountResponse { status, headers, body, agent })
}
