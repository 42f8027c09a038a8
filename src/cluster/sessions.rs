//! Which replica holds which agent, as the KubesvcAgents say: kept in memory by a watch.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use futures::StreamExt;
use jiff::Timestamp;
use kube::core::DeserializeGuard;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, ResourceExt};
use parking_lot::RwLock;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::account::KubesvcAgent;
use crate::fleet::AgentView;

/// The connected agents by the name of their object.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    agents: RwLock<HashMap<String, AgentView>>,
}

impl Sessions {
    /// The replica that holds an agent; of several sessions under one id the latest.
    pub(super) fn replica_of(&self, agent_id: &str) -> Option<String> {
        let agents = self.agents.read();
        let of_agent = agents.values().filter(|agent| agent.agent_id == agent_id);
        of_agent.max_by_key(|agent| agent.connected_since).map(|agent| agent.replica_id.clone())
    }

    /// The agents that these replicas hold. Which accounts they hold is not in their objects.
    pub(super) fn of_replicas(&self, replicas: &HashSet<&str>) -> Vec<AgentView> {
        let agents = self.agents.read();
        agents.values().filter(|agent| replicas.contains(agent.replica_id.as_str())).cloned().collect()
    }

    fn seen(&self, object: DeserializeGuard<KubesvcAgent>) {
        let name = object.name_any();
        match object.0.ok().as_ref().and_then(connected) {
            Some(agent) => self.agents.write().insert(name, agent),
            None => self.agents.write().remove(&name),
        };
    }

    fn gone(&self, name: &str) {
        self.agents.write().remove(name);
    }

    fn keep_only(&self, listed: &HashSet<String>) {
        self.agents.write().retain(|name, _| listed.contains(name));
    }
}

/// What an object says of its agent, if it says that it is connected.
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

/// Keeps the sessions in step with the KubesvcAgents of a namespace until cancelled.
pub(super) async fn watch(
    client: Client,
    namespace: String,
    sessions: Arc<Sessions>,
    stop: CancellationToken,
) {
    let api: Api<DeserializeGuard<KubesvcAgent>> = Api::namespaced(client, &namespace);
    let stream = watcher::watcher(api, watcher::Config::default()).default_backoff();
    let mut stream = std::pin::pin!(stream.take_until(stop.cancelled_owned()));
    let mut listing = HashSet::new();
    while let Some(event) = stream.next().await {
        match event {
            Ok(Event::Init) => listing.clear(),
            Ok(Event::InitApply(object)) => {
                listing.insert(object.name_any());
                sessions.seen(object);
            }
            Ok(Event::InitDone) => sessions.keep_only(&std::mem::take(&mut listing)),
            Ok(Event::Apply(object)) => sessions.seen(object),
            Ok(Event::Delete(object)) => sessions.gone(&object.name_any()),
            Err(problem) => {
                let error = crate::telemetry::errors::chain(&problem);
                warn!(error, "the watch of KubesvcAgents, by which agents of other replicas are found");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(
        name: &str,
        agent_id: &str,
        replica: &str,
        second: u8,
        connected: bool,
    ) -> DeserializeGuard<KubesvcAgent> {
        let agent = json!({"apiVersion": "kubesvc.io/v1alpha1", "kind": "KubesvcAgent", "metadata": {"name": name},
            "spec": {"agentId": agent_id, "zoneId": name},
            "status": {"connected": connected, "connectedSince": format!("2026-01-01T00:00:0{second}Z"),
                "session": {"id": "s", "bootId": "b", "connectSeq": 1, "replica": replica}}});
        serde_json::from_value(agent).expect("a guard takes anything")
    }

    #[test]
    fn the_latest_session_of_an_agent_counts_while_it_stands() {
        let sessions = Sessions::default();
        sessions.seen(object("east", "a", "one", 1, true));
        sessions.seen(object("west", "a", "two", 2, true));
        assert_eq!(sessions.replica_of("a").as_deref(), Some("two"));
        assert_eq!(sessions.replica_of("b"), None);
        sessions.seen(object("west", "a", "two", 3, false));
        assert_eq!(sessions.replica_of("a").as_deref(), Some("one"));
        let of = |replica: &str| sessions.of_replicas(&HashSet::from([replica])).len();
        assert_eq!((of("one"), of("two")), (1, 0));
        sessions.gone("east");
        assert_eq!(sessions.replica_of("a"), None);
    }

    #[test]
    fn a_list_takes_out_what_is_not_in_it() {
        let sessions = Sessions::default();
        sessions.seen(object("east", "a", "one", 1, true));
        sessions.seen(object("west", "b", "one", 1, true));
        sessions.keep_only(&HashSet::from(["west".to_owned()]));
        assert_eq!(sessions.replica_of("a"), None);
        assert_eq!(sessions.replica_of("b").as_deref(), Some("one"));
    }

    #[test]
    fn an_object_that_cannot_be_read_is_no_session() {
        let sessions = Sessions::default();
        sessions.seen(object("east", "a", "one", 1, true));
        let malformed = json!({"metadata": {"name": "east"}, "spec": {"agentId": 5}});
        sessions.seen(serde_json::from_value(malformed).expect("a guard takes anything"));
        assert_eq!(sessions.replica_of("a"), None);
    }
}
