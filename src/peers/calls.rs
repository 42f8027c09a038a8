//! Questions to the other replicas: the messages, JSON under `/internal/v1/`, and what the KubesvcAgents say in place
//! of a replica that does not answer.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use futures::future::join_all;
use jiff::Timestamp;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tracing::{debug, warn};

use super::client::PeerCall;
use super::connections::CallError;
use super::{PeerTransport, Peers, Replica};
use crate::connected_agents::AgentView;
use crate::informers::AgentIndex;
use kubesvc_core::{AgentId, AgentKey, KubesvcAgent, ReplicaId, ZoneId};

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
    /// Agents whose replicas do not answer, so that it is unknown what they hold.
    pub unknown: HashSet<AgentKey>,
}

/// Reason why an agent of another replica was not disconnected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RelayError {
    #[error("it is not connected")]
    NotConnected,
    #[error("it is connected to replica {0}, which is not among the replicas that this one has found")]
    NotFound(ReplicaId),
    #[error(transparent)]
    Call(#[from] CallError),
}

impl Peers {
    /// The agents of the other replicas, which are asked concurrently.
    pub async fn agents(&self) -> Vec<RemoteAgent> {
        let Some(link) = &self.transport else { return Vec::new() };
        let ask = PeerCall::get("/internal/v1/agents");
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
            let ask = PeerCall::post("/internal/v1/holders", &HoldersQuestion { uids: uids.to_vec() });
            let (answers, silent) = self.ask_all::<Holders>(link, &ask).await;
            for answer in answers.into_iter().filter(|answer| answer.replica_id != self.replica_id) {
                for (uid, agents) in answer.agents {
                    all.agents.entry(uid).or_default().extend(agents);
                }
            }
            let silent = silent.iter().map(|replica| &replica.id).collect();
            let unknown = of_replicas(&link.agents, &silent).into_iter();
            all.unknown.extend(unknown.map(|agent| AgentKey { id: agent.agent_id, zone: agent.zone_id }));
        }
        all
    }

    /// The longest time without a gap for which the API server has answered another replica; `None` if no
    /// other replica answers.
    pub async fn reach_of_others(&self) -> Option<Duration> {
        let link = self.transport.as_ref()?;
        let (answers, _) = self.ask_all::<ReachAnswer>(link, &PeerCall::get("/internal/v1/reach")).await;
        let others = answers.into_iter().filter(|answer| answer.replica_id != self.replica_id);
        others.map(|answer| Duration::from_millis(answer.answered_for_ms)).max()
    }

    /// Closes the sessions of the agents of an id at the other replicas, in one zone or in each. `found_here`: this replica
    /// had one.
    ///
    /// # Errors
    /// No replica has such an agent, or one that has it cannot be reached.
    pub async fn disconnect(
        &self,
        agent_id: &AgentId,
        zone: Option<&ZoneId>,
        found_here: bool,
    ) -> Result<(), RelayError> {
        let nowhere = || if found_here { Ok(()) } else { Err(RelayError::NotConnected) };
        let Some(link) = &self.transport else { return nowhere() };
        let mut holders = replicas_of(&link.agents, agent_id, zone);
        holders.retain(|replica| *replica != self.replica_id);
        let (known, rest): (Vec<_>, Vec<_>) =
            self.others().into_iter().partition(|replica| holders.contains(&replica.id));
        let relay_to = |replicas| self.relay_to_all(link, replicas, agent_id, zone);
        let mut closed = false;
        for relayed in relay_to(&known).await {
            closed |= relayed?;
        }
        let missing = holders.into_iter().find(|holder| known.iter().all(|replica| replica.id != *holder));
        // The KubesvcAgents may lag behind, and if Endpoints name no pods, they match no replica.
        if missing.is_some() || !(closed || found_here) {
            let relayed = relay_to(&rest).await;
            if relayed.contains(&Ok(true)) {
                return Ok(());
            }
        }
        match missing {
            Some(replica) => Err(RelayError::NotFound(replica)),
            None if closed => Ok(()),
            None => nowhere(),
        }
    }

    async fn relay_to_all(
        &self,
        link: &PeerTransport,
        replicas: &[Replica],
        agent_id: &AgentId,
        zone: Option<&ZoneId>,
    ) -> Vec<Result<bool, CallError>> {
        join_all(replicas.iter().map(|replica| self.relay(link, replica, agent_id, zone))).await
    }

    /// Returns whether that replica had such an agent and closed its session.
    async fn relay(
        &self,
        link: &PeerTransport,
        replica: &Replica,
        agent_id: &AgentId,
        zone: Option<&ZoneId>,
    ) -> Result<bool, CallError> {
        let zone = zone.map(|zone| format!("?zoneId={}", encoded(zone.as_str()))).unwrap_or_default();
        let path = format!("/internal/v1/agents/{}/disconnect{zone}", encoded(agent_id.as_str()));
        let ask = PeerCall::post(path, &()).within(DISCONNECT_TIMEOUT);
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
                    if matches!(problem, CallError::Unreachable { .. }) {
                        link.rest(replica);
                    }
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
        let rests = resting.contains_key(&replica.calls_at);
        if rests {
            debug!(replica = replica.id.as_str(), "skipped a replica that did not answer a moment ago");
        }
        rests
    }

    pub(super) fn rest(&self, replica: &Replica) {
        self.silent.lock().insert(replica.calls_at.clone(), Instant::now());
    }
}

/// A text as a part of a path or a query.
pub fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
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

/// The replicas that have sessions of the agents of an id, in one zone or in each, according to the KubesvcAgents; that of
/// the latest session first.
pub(super) fn replicas_of(agents: &AgentIndex, agent_id: &AgentId, zone: Option<&ZoneId>) -> Vec<ReplicaId> {
    let objects = agents.of_id(agent_id);
    let mut connected: Vec<_> = objects.iter().filter_map(|agent| connected(agent)).collect();
    connected.retain(|agent| zone.is_none_or(|zone| agent.zone_id == *zone));
    connected.sort_by_key(|agent| std::cmp::Reverse(agent.connected_since));
    let mut replicas: Vec<_> = connected.into_iter().map(|agent| agent.replica_id).collect();
    replicas.dedup();
    replicas
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
        approved: agent.is_approved(),
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
    fn the_latest_session_of_an_id_comes_first_while_it_stands() {
        let agents = AgentIndex::default();
        agents.seen(object("east", "a", "one", 1, true));
        agents.seen(object("west", "a", "two", 2, true));
        let replicas = |agent: &str, zone: Option<&str>| {
            replicas_of(&agents, &agent.into(), zone.map(ZoneId::from).as_ref())
        };
        assert_eq!(replicas("a", None), ["two", "one"]);
        assert_eq!(
            (replicas("a", Some("east")), replicas("a", Some("west"))),
            (vec!["one".into()], vec!["two".into()])
        );
        assert!(replicas("b", None).is_empty());
        agents.seen(object("west", "a", "two", 3, false));
        assert_eq!(replicas("a", None), ["one"]);
        let of = |replica: &str| of_replicas(&agents, &HashSet::from([&replica.into()])).len();
        assert_eq!((of("one"), of("two")), (1, 0));
        agents.gone("east", 4);
        assert!(replicas("a", None).is_empty());
    }
}
