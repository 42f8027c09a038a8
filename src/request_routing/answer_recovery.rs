//! The answer of a write, asked for again wherever the process of its agent is by then.

use std::time::Duration;

use futures::{StreamExt as _, stream};
use http::Request;
use tokio::time::{Instant, sleep, timeout_at};

use super::RequestRouter;
use super::messages::{AnswerLine, recall_path};
use super::relaying::AnswerReader;
use crate::connected_agents::{
    AccountGrant, AccountResponse, AnsweringAgent, AskedAgent, RequestError, RequestErrorKind, Suspects,
};
use crate::peers::{CallBody, RelayedAnswer, Replica};
use kubesvc_core::{ReplicaId, ZoneId};

/// Interval between two rounds of questions to the other replicas.
const ROUND_INTERVAL: Duration = Duration::from_millis(500);

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
            return Err(RequestError::no_agent(&grant.name, &grant.zone, false));
        }
        Ok(Suspects { processes, is_certain: false })
    }

    /// Asks for the answer of a write, at each replica in turn, until the deadline.
    pub(super) async fn recall_until(
        &self,
        request_id: &str,
        mut suspects: Suspects,
        deadline: Instant,
    ) -> Result<AccountResponse, RequestError> {
        let mut streams = self.here.streams();
        loop {
            // From here on, no stream is missed.
            streams.borrow_and_update();
            for process in suspects.processes.clone() {
                match self.recall_once(request_id, &process, suspects.is_certain, deadline).await {
                    Err(error) if error.is_recallable() => {}
                    // It is not the one that was given the write.
                    Err(error) if !suspects.is_certain && error.kind != RequestErrorKind::Timeout => {
                        suspects.processes.retain(|one| *one != process);
                    }
                    ended => return ended,
                }
            }
            if suspects.processes.is_empty() {
                let why = "the replica between was lost, and no agent that it may have asked has the request";
                return Err(RequestError::unknown(why));
            }
            let waiting = async {
                tokio::select! {
                    _ = streams.changed() => {}
                    () = sleep(ROUND_INTERVAL) => {}
                }
            };
            if timeout_at(deadline, waiting).await.is_err() {
                return Err(RequestError::not_recalled());
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
    ) -> Result<AccountResponse, RequestError> {
        let here = self.here.recall_here(request_id, process, deadline, false).await;
        if !is_elsewhere(&here) {
            return here;
        }
        for replica in self.peers.replicas_for_agent(&process.agent_id) {
            let recalled = self.recall_at(&replica, request_id, process, deadline).await;
            if is_elsewhere(&recalled) {
                continue;
            }
            // Without an answer in time it runs.
            let failed = recalled.as_ref().err();
            if failed.is_none_or(|error| is_certain && error.kind != RequestErrorKind::Timeout) {
                self.forgets.add(&replica.id, process, request_id);
            }
            return recalled;
        }
        here
    }

    /// Asks another replica. What it cannot say counts as "not here".
    async fn recall_at(
        &self,
        replica: &Replica,
        request_id: &str,
        process: &AnsweringAgent,
        deadline: Instant,
    ) -> Result<AccountResponse, RequestError> {
        let not_here = || RequestError::recallable(Suspects::certain(process.clone()));
        let path = recall_path(request_id, process, deadline.saturating_duration_since(Instant::now()));
        let call = Request::get(self.peers.url(replica, &path)).body(CallBody::default());
        let call = call.map_err(|_| not_here())?;
        let answer = self.peers.relay_request(replica, call, deadline).await;
        let RelayedAnswer { body, slot: _slot } = answer.map_err(|_| not_here())?;
        let recalled = timeout_at(deadline, read_recalled(AnswerReader::new(body), process)).await;
        recalled.map_err(|_| RequestError::not_recalled())?.unwrap_or_else(|_| Err(not_here()))
    }
}

/// Whether the process is not connected at the replica that was asked.
fn is_elsewhere(recalled: &Result<AccountResponse, RequestError>) -> bool {
    recalled.as_ref().is_err_and(RequestError::is_recallable)
}

/// Reads the answer of a recall.
///
/// # Errors
/// The connection broke, or what came is no answer.
async fn read_recalled(
    mut answer: AnswerReader,
    process: &AnsweringAgent,
) -> Result<Result<AccountResponse, RequestError>, String> {
    let mut answers = None;
    let head = loop {
        match answer.line().await? {
            AnswerLine::Asked(agent) => answers = Some(agent),
            AnswerLine::Head(head) => break head,
            AnswerLine::Failed(error) => return Ok(Err(error)),
        }
    };
    let body = stream::once(std::future::ready(answer.whole().await?)).boxed();
    let (status, headers) = head.read().ok_or("the head was malformed")?;
    let replica_id = answers.ok_or("no agent was named")?.replica_id;
    let agent = AskedAgent { process: process.clone(), replica_id };
    Ok(Ok(AccountResponse { status, headers, body, agent }))
}
