//! Questions to the other replicas: the messages, JSON under `/internal/v1/`, and what the KubesvcAgents say in place
//! of a replica that does not answer.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use futures::future::join_all;
use http::Method;
use jiff::Timestamp;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tracing::{debug, warn};

use super::client::{CallError, PeerCall};
use super::{PeerLines, PeerTransport, Peers, Replica};
use crate::connected_agents::AgentView;
use crate::informers::AgentIndex;
use kubesvc_core::{AgentId, KubesvcAgent, ReplicaId};

/// Timeout for another replica's answer to a question.
const QUESTION_TIMEOUT: Duration = Duration::from_secs(2);
/// Timeout for another replica to close an agent's session.
const DISCONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for which a replica that did not answer is not asked again; the KubesvcAgents stand in for it.
const SILENT_PEER_PAUSE: Duration = Duration::from_secs(3);
/// Maximum number of accounts in one question.
pub const MAX_UIDS_PER_QUESTION: usize = 1000;

/// An agent of another replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteAgent {
    /// The agent. If its replica does not answer, this is what its KubesvcAgent says, without accounts.
    pub agent: AgentView,
    /// Whether its replica answered.
    pub replica_answers: bool,
}

/// Agents of other replicas that hold accounts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemoteHolders {
    /// Ids of agents, by the uid of the account that they hold.
    pub agents: BTreeMap<String, Vec<AgentId>>,
    /// Ids of agents whose replicas do not answer, so that it is unknown what they hold.
    pub unknown: HashSet<AgentId>,
}

/// Reason why an agent of another replica was not disconnected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RelayError {
    /// No replica has a session of the agent.
    #[error("it is not connected")]
    NotConnected,
    /// The session is at a replica that this one has not found.
    #[error("it is connected to replica {0}, which is not among the replicas that this one has found")]
    NotFound(ReplicaId),
    /// The call to the agent's replica failed.
    #[error(transparent)]
    Call(#[from] CallError),
}

impl Peers {
    /// The agents of the other replicas, which are asked concurrently.
    pub async fn agents(&self) -> Vec<RemoteAgent> {
        let Some(link) = &self.transport else { return Vec::new() };
        let ask = get("/internal/v1/agents");
        let (answers, silent) = self.ask_all::<AgentsOfReplica>(link, &ask).await;
        let answered = answers.into_iter().filter(|answer| answer.replica_id != self.replica_id);
        let agents = answered.flat_map(|answer| answer.agents);
        let known = agents.map(|agent| RemoteAgent { agent, replica_answers: true });
        let silent = silent.iter().map(|replica| &replica.id).collect();
        let told = of_replicas(&link.agents, &silent);
        known.chain(told.into_iter().map(|agent| RemoteAgent { agent, replica_answers: false })).collect()
    }

    /// Agents of the other replicas that hold these accounts.
    pub async fn holders(&self, uids: &[String]) -> RemoteHolders {
        let mut all = RemoteHolders::default();
        let Some(link) = &self.transport else { return all };
        for uids in uids.chunks(MAX_UIDS_PER_QUESTION) {
            let body = serde_json::to_vec(&HoldersQuestion { uids: uids.to_vec() }).expect("texts are JSON");
            let ask = PeerCall {
                method: Method::POST,
                path: "/internal/v1/holders".to_owned(),
                body,
                within: QUESTION_TIMEOUT,
            };
            let (answers, silent) = self.ask_all::<Holders>(link, &ask).await;
            for answer in answers.into_iter().filter(|answer| answer.replica_id != self.replica_id) {
                for (uid, agents) in answer.agents {
                    all.agents.entry(uid).or_default().extend(agents);
                }
            }
            let silent = silent.iter().map(|replica| &replica.id).collect();
            all.unknown.extend(of_replicas(&link.agents, &silent).into_iter().map(|agent| agent.agent_id));
        }
        all
    }

    /// The longest time without a gap for which the API server has answered another replica; `None` if no
    /// other replica answers.
    pub async fn reach_of_others(&self) -> Option<Duration> {
        let link = self.transport.as_ref()?;
        let (answers, _) = self.ask_all::<ReachAnswer>(link, &get("/internal/v1/reach")).await;
        let others = answers.into_iter().filter(|answer| answer.replica_id != self.replica_id);
        others.map(|answer| Duration::from_millis(answer.answered_for_ms)).max()
    }

    /// Closes the session of an agent at another replica.
    ///
    /// # Errors
    /// No other replica has the agent, or the one that has it cannot be reached.
    pub async fn disconnect(&self, agent_id: &AgentId) -> Result<(), RelayError> {
        let Some(link) = &self.transport else { return Err(RelayError::NotConnected) };
        let others = self.others();
        let holder = replica_of(&link.agents, agent_id).filter(|replica| *replica != self.replica_id);
        let known = others.iter().find(|replica| Some(&replica.id) == holder.as_ref());
        if let Some(replica) = known
            && self.relay(link, replica, agent_id).await?
        {
            return Ok(());
        }
        // The KubesvcAgents may lag behind, and if Endpoints name no pods, they match no replica.
        let rest = others.iter().filter(|replica| known.is_none_or(|known| known.id != replica.id));
        let relayed = join_all(rest.map(|replica| self.relay(link, replica, agent_id))).await;
        match (relayed.contains(&Ok(true)), known, holder) {
            (true, _, _) => Ok(()),
            (false, None, Some(replica)) => Err(RelayError::NotFound(replica)),
            (false, _, _) => Err(RelayError::NotConnected),
        }
    }

    /// Follows the committed changes of an account at the replica that has the session of the agent that streams it.
    /// Returns that replica's id too.
    ///
    /// # Errors
    /// No other replica has the agent, or the one that has it cannot be reached.
    pub async fn changes(
        &self,
        account_uid: &str,
        agent_id: &AgentId,
    ) -> Result<(ReplicaId, PeerLines), RelayError> {
        let Some(link) = &self.transport else { return Err(RelayError::NotConnected) };
        let others = self.others();
        let holder = replica_of(&link.agents, agent_id).filter(|replica| *replica != self.replica_id);
        let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let path =
            format!("/internal/v1/changes/{}?agent={}", encoded(account_uid), encoded(agent_id.as_str()));
        let is_holder = |replica: &&Replica| Some(&replica.id) == holder.as_ref();
        // If Endpoints name no pods, the KubesvcAgents match no replica: each is asked.
        let known = others.iter().find(is_holder).map(std::slice::from_ref);
        for replica in known.unwrap_or(&others) {
            self.metrics.calls.inc();
            match link.client.lines(replica, &get(&path)).await {
                Ok(lines) => return Ok((replica.id.clone(), lines)),
                Err(CallError::Refused { status: 404, .. }) => {}
                Err(problem) => {
                    self.metrics.failed.inc();
                    return Err(problem.into());
                }
            }
        }
        Err(RelayError::NotConnected)
    }

    /// Returns whether that replica had the agent and closed its session.
    async fn relay(
        &self,
        link: &PeerTransport,
        replica: &Replica,
        agent_id: &AgentId,
    ) -> Result<bool, CallError> {
        let timestamp = Timestamp::now().as_millisecond();
        let message = DisconnectCall { cluster_driven: true, origin: self.replica_id.clone(), timestamp };
        let ask = PeerCall {
            method: Method::POST,
            path: format!(
                "/internal/v1/agents/{}/disconnect",
                utf8_percent_encode(agent_id.as_str(), NON_ALPHANUMERIC)
            ),
            body: serde_json::to_vec(&message).expect("texts and numbers are JSON"),
            within: DISCONNECT_TIMEOUT,
        };
        self.metrics.calls.inc();
        let answer = link.client.ask::<serde_json::Value>(replica, &ask).await;
        match answer {
            Ok(_) => Ok(true),
            Err(CallError::Refused { status: 404, .. }) => Ok(false),
            Err(problem) => {
                self.metrics.failed.inc();
                warn!(agentId = agent_id.as_str(), error = %problem, "cannot disconnect an agent");
                Err(problem)
            }
        }
    }

    /// Asks all other replicas concurrently. Returns their answers, and the replicas that did not answer.
    async fn ask_all<T: DeserializeOwned>(
        &self,
        link: &PeerTransport,
        ask: &PeerCall,
    ) -> (Vec<T>, Vec<Replica>) {
        let others = self.others();
        let asking = others.iter().map(|replica| async move {
            if link.is_resting(replica) {
                return None;
            }
            self.metrics.calls.inc();
            match link.client.ask::<T>(replica, ask).await {
                Ok(answer) => Some(answer),
                Err(problem) => {
                    self.metrics.failed.inc();
                    // An address that has never answered may not be a replica; `verification` has logged
                    // that.
                    if link.verified.has(replica) {
                        warn!(error = %problem, path = ask.path, "another replica does not answer; using what the objects record");
                    }
                    link.rest(replica);
                    None
                }
            }
        });
        let answers = join_all(asking).await;
        let silent = others.iter().zip(&answers).filter(|(_, answer)| answer.is_none());
        let silent = silent.map(|(replica, _)| replica.clone()).collect();
        (answers.into_iter().flatten().collect(), silent)
    }
}

impl PeerTransport {
    /// Whether a replica did not answer a moment ago.
    pub(super) fn is_resting(&self, replica: &Replica) -> bool {
        let mut resting = self.silent.lock();
        resting.retain(|_, since| since.elapsed() < SILENT_PEER_PAUSE);
        let rests = resting.contains_key(&replica.base_url);
        if rests {
            debug!(replica = replica.id.as_str(), "skipped a replica that did not answer a moment ago");
        }
        rests
    }

    pub(super) fn rest(&self, replica: &Replica) {
        self.silent.lock().insert(replica.base_url.clone(), Instant::now());
    }
}

pub(super) fn get(path: &str) -> PeerCall {
    PeerCall { method: Method::GET, path: path.to_owned(), body: Vec::new(), within: QUESTION_TIMEOUT }
}

/// `GET /internal/v1/agents`: the agents of the replica that answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentsOfReplica {
    /// Id of the replica that answers.
    pub replica_id: ReplicaId,
    /// Its connected agents.
    pub agents: Vec<AgentView>,
}

/// `POST /internal/v1/holders`: asks which agents of the replica hold these accounts.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HoldersQuestion {
    /// Uids of the accounts, at most [`MAX_UIDS_PER_QUESTION`].
    pub uids: Vec<String>,
}

/// Answer to a [`HoldersQuestion`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Holders {
    /// Id of the replica that answers.
    pub replica_id: ReplicaId,
    /// Ids of agents, by the uid of the account that they hold. Accounts without a holder are left out.
    pub agents: BTreeMap<String, Vec<AgentId>>,
}

/// `GET /internal/v1/reach`: how long the API server has answered the replica.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReachAnswer {
    /// Id of the replica that answers.
    pub replica_id: ReplicaId,
    /// How long the API server has answered it without a gap, in milliseconds; 0 if it does not answer now.
    pub answered_for_ms: u64,
}

/// `POST /internal/v1/agents/{id}/disconnect`, relayed. The receiving replica never relays it again.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DisconnectCall {
    /// Always true.
    pub cluster_driven: bool,
    /// Id of the replica that relays the call.
    pub origin: ReplicaId,
    /// Send time, in epoch milliseconds.
    pub timestamp: i64,
}

/// The replica that has an agent's session, according to the KubesvcAgents; the latest one if the id has several.
pub(super) fn replica_of(agents: &AgentIndex, agent_id: &AgentId) -> Option<ReplicaId> {
    let agents = agents.all();
    let of_agent = agents.iter().filter(|agent| agent.spec.agent_id == *agent_id);
    let connected = of_agent.filter_map(|agent| connected(agent));
    connected.max_by_key(|agent| agent.connected_since).map(|agent| agent.replica_id)
}

/// The agents of these replicas, according to the KubesvcAgents, which do not say which accounts they hold.
fn of_replicas(agents: &AgentIndex, replicas: &HashSet<&ReplicaId>) -> Vec<AgentView> {
    let all = agents.all();
    let connected = all.iter().filter_map(|agent| connected(agent));
    connected.filter(|agent| replicas.contains(&agent.replica_id)).collect()
}

/// What a KubesvcAgent says about its agent, if it shows the agent as connected.
pub(super) fn connected(agent: &KubesvcAgent) -> Option<AgentView> {
    let status = agent.status.as_ref().filter(|status| status.connected)?;
    let since = status.connected_since.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0);
    Some(AgentView {
        agent_id: agent.spec.agent_id.clone(),
        zone_id: agent.spec.zone_id.clone(),
        version: status.version.clone().unwrap_or_default(),
        replica_id: status.session.as_ref()?.replica.clone(),
        connected_since: since,
        last_seen: since,
        approved: agent.spec.approved,
        accounts: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(name: &str, agent_id: &str, replica: &str, second: u8, connected: bool) -> KubesvcAgent {
        let agent = json!({"apiVersion": "kubesvc.io/v1alpha1", "kind": "KubesvcAgent",
            "metadata": {"name": name, "resourceVersion": second.to_string()},
            "spec": {"agentId": agent_id, "zoneId": name},
            "status": {"connected": connected, "connectedSince": format!("2026-01-01T00:00:0{second}Z"),
                "session": {"id": "s", "bootId": "b", "connectSeq": 1, "replica": replica}}});
        serde_json::from_value(agent).expect("it is well-formed")
    }

    #[test]
    fn the_latest_session_of_an_agent_counts_while_it_stands() {
        let agents = AgentIndex::default();
        agents.seen(object("east", "a", "one", 1, true));
        agents.seen(object("west", "a", "two", 2, true));
        assert_eq!(replica_of(&agents, &"a".into()), Some("two".into()));
        assert_eq!(replica_of(&agents, &"b".into()), None);
        agents.seen(object("west", "a", "two", 3, false));
        assert_eq!(replica_of(&agents, &"a".into()), Some("one".into()));
        let of = |replica: &str| of_replicas(&agents, &HashSet::from([&replica.into()])).len();
        assert_eq!((of("one"), of("two")), (1, 0));
        agents.gone("east", 4);
        assert_eq!(replica_of(&agents, &"a".into()), None);
    }
}
