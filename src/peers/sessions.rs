//! Which replica has which agent, according to the KubesvcAgents.

use std::collections::HashSet;
use std::sync::Arc;

use jiff::Timestamp;

use crate::account::KubesvcAgent;
use crate::fleet::AgentView;
use crate::objects::AgentIndex;

/// The agents that their KubesvcAgents show as connected.
pub(super) struct RecordedSessions(Arc<AgentIndex>);

impl RecordedSessions {
    pub(super) fn new(agents: Arc<AgentIndex>) -> Self {
        Self(agents)
    }

    /// The replica that has an agent's session; the latest one if the id has several.
    pub(super) fn replica_of(&self, agent_id: &str) -> Option<String> {
        let agents = self.0.all();
        let of_agent = agents.iter().filter(|agent| agent.spec.agent_id == agent_id);
        let connected = of_agent.filter_map(|agent| connected(agent));
        connected.max_by_key(|agent| agent.connected_since).map(|agent| agent.replica_id)
    }

    /// The agents of these replicas. Their objects do not say which accounts they hold.
    pub(super) fn of_replicas(&self, replicas: &HashSet<&str>) -> Vec<AgentView> {
        let all = self.0.all();
        let connected = all.iter().filter_map(|agent| connected(agent));
        connected.filter(|agent| replicas.contains(agent.replica_id.as_str())).collect()
    }
}

/// What a KubesvcAgent says about its agent, if it shows the agent as connected.
fn connected(agent: &KubesvcAgent) -> Option<AgentView> {
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
        let agents = Arc::new(AgentIndex::default());
        let sessions = RecordedSessions::new(Arc::clone(&agents));
        agents.seen(object("east", "a", "one", 1, true));
        agents.seen(object("west", "a", "two", 2, true));
        assert_eq!(sessions.replica_of("a").as_deref(), Some("two"));
        assert_eq!(sessions.replica_of("b"), None);
        agents.seen(object("west", "a", "two", 3, false));
        assert_eq!(sessions.replica_of("a").as_deref(), Some("one"));
        let of = |replica: &str| sessions.of_replicas(&HashSet::from([replica])).len();
        assert_eq!((of("one"), of("two")), (1, 0));
        agents.gone("east", 4);
        assert_eq!(sessions.replica_of("a"), None);
    }
}
