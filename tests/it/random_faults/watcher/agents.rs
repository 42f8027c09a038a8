//! Whether agents report that they are connected, and how long nothing has disturbed their way to the leader.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::Watcher;
use crate::random_faults::fault_log::Target;
use crate::random_faults::plan::{AGENTS, REPLICAS};
use crate::random_faults::scene::Scene;

/// Polling interval.
const POLL: Duration = Duration::from_millis(500);
/// Timeout for a response.
const MAX_WAIT: Duration = Duration::from_secs(2);
/// Time after a fault on that way until everything works again.
const AFTER: Duration = Duration::from_secs(2);

/// An agent's link to the hub.
#[derive(Debug)]
struct Link {
    zone: String,
    session: String,
    since: Instant,
}

/// The undisturbed links, by agent.
#[derive(Debug, Default)]
pub(super) struct Links(HashMap<String, Link>);

impl Links {
    /// The agent of a zone that has been connected without disturbance for the longest time, and that time.
    pub(super) fn sound(&self, zone: &str) -> Option<(String, Duration)> {
        let of_zone = self.0.iter().filter(|(_, link)| link.zone == zone);
        of_zone.map(|(agent, link)| (agent.clone(), link.since.elapsed())).max_by_key(|(_, since)| *since)
    }

    /// How long an agent has been connected without disturbance.
    pub(super) fn of(&self, agent: &str) -> Option<Duration> {
        self.0.get(agent).map(|link| link.since.elapsed())
    }
}

impl Watcher {
    pub(super) async fn watch_agents(&self, scene: &Scene) {
        loop {
            futures::future::join_all((0..AGENTS).map(|agent| self.ask(scene, agent))).await;
            tokio::time::sleep(POLL).await;
        }
    }

    async fn ask(&self, scene: &Scene, number: usize) {
        let agent = &scene.agents[number];
        let answer = tokio::time::timeout(MAX_WAIT, scene.world.ask_agent(agent)).await;
        let session = match &answer {
            Ok(Ok(health)) if health["connected"] == true => {
                let replica = health["replicaId"].as_str().unwrap_or_default();
                let replica = (0..REPLICAS).find(|one| scene.replica(*one).replica_id() == replica);
                let hit = |target| scene.fault_log.was_hit(target, AFTER);
                let sound = replica.is_some_and(|replica| !hit(Target::Replica(replica)));
                let sound = sound && !hit(Target::Agent(number)) && !hit(Target::ApiServer);
                sound.then(|| health["sessionId"].as_str().unwrap_or_default().to_owned())
            }
            _ => None,
        };
        let mut links = self.links.lock();
        match session {
            None => drop(links.0.remove(agent.id())),
            Some(session) => {
                let new = || Link {
                    zone: agent.zone().to_owned(),
                    session: session.clone(),
                    since: Instant::now(),
                };
                let link = links.0.entry(agent.id().to_owned()).or_insert_with(new);
                if link.session != session {
                    *link = new();
                }
            }
        }
    }
}
