//! The agents' objects as last seen: an index over one watch, told to whoever follows it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use futures::StreamExt;
use kube::api::ListParams;
use kube::core::DeserializeGuard;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, ResourceExt};
use parking_lot::RwLock;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};

use crate::account::{KubesvcAgent, ZONE_LABEL, names};
use crate::wakes::Wakes;

#[derive(Default)]
struct Index {
    by_name: HashMap<String, Arc<KubesvcAgent>>,
    /// Names of the objects of an agent id: one for each zone that it was in.
    by_id: HashMap<String, HashSet<String>>,
    /// The newest version that the watch has shown; a list that is older has nothing new to say.
    seen: u64,
    /// Names of objects that cannot be read now.
    malformed: HashSet<String>,
}

impl Index {
    fn insert(&mut self, name: &str, agent: KubesvcAgent) {
        self.remove(name);
        self.by_id.entry(agent.spec.agent_id.clone()).or_default().insert(name.to_owned());
        self.by_name.insert(name.to_owned(), Arc::new(agent));
    }

    fn remove(&mut self, name: &str) {
        let Some(agent) = self.by_name.remove(name) else { return };
        let id = &agent.spec.agent_id;
        if let Some(names) = self.by_id.get_mut(id) {
            names.remove(name);
            if names.is_empty() {
                self.by_id.remove(id);
            }
        }
    }
}

/// All agents' objects of one namespace, and who is to be told when one changes.
pub struct Agents {
    index: RwLock<Index>,
    followers: RwLock<Vec<Arc<Wakes<String>>>>,
    synced: watch::Sender<bool>,
}

impl Default for Agents {
    fn default() -> Self {
        Self { index: RwLock::default(), followers: RwLock::default(), synced: watch::Sender::new(false) }
    }
}

impl Agents {
    /// The agent whose object has this name.
    pub fn get(&self, name: &str) -> Option<Arc<KubesvcAgent>> {
        self.index.read().by_name.get(name).cloned()
    }

    /// The objects of an agent id, one for each zone that it was in.
    pub fn of_id(&self, agent_id: &str) -> Vec<Arc<KubesvcAgent>> {
        let index = self.index.read();
        let names = index.by_id.get(agent_id).into_iter().flatten();
        names.filter_map(|name| index.by_name.get(name).cloned()).collect()
    }

    /// All of them, in no order.
    pub fn all(&self) -> Vec<Arc<KubesvcAgent>> {
        self.index.read().by_name.values().cloned().collect()
    }

    /// Waits for the first complete list.
    pub async fn synced(&self) {
        // The sender lives as long as self, so this ends only when the value is true.
        let _ = self.synced.subscribe().wait_for(|synced| *synced).await;
    }

    /// A set of names of its own that is told of every change from now on, and of all there is now.
    pub fn follow(&self) -> Arc<Wakes<String>> {
        let wakes = Arc::new(Wakes::default());
        self.followers.write().push(Arc::clone(&wakes));
        wakes.wake_all(self.index.read().by_name.keys().cloned());
        wakes
    }

    /// Takes in an object as the watch shows it.
    pub(crate) fn seen(&self, agent: KubesvcAgent) {
        let version = version_of(&agent);
        self.put(agent);
        let mut index = self.index.write();
        index.seen = index.seen.max(version);
    }

    /// An object is gone, by the watch; `version` is that of its deletion.
    pub(crate) fn gone(&self, name: &str, version: u64) {
        {
            let mut index = self.index.write();
            index.remove(name);
            index.malformed.remove(name);
            index.seen = index.seen.max(version);
        }
        self.tell(name);
    }

    /// Takes in objects that were read beside the watch: those that it has not shown yet.
    fn read(&self, agents: Vec<KubesvcAgent>) {
        let seen = self.index.read().seen;
        // What is not newer than that, the watch has shown or has shown to be gone.
        agents.into_iter().filter(|agent| version_of(agent) > seen).for_each(|agent| self.put(agent));
    }

    /// A complete list was taken in: whatever is not in it is gone.
    pub(crate) fn listed(&self, present: &HashSet<String>) {
        let missing: Vec<_> = {
            let index = self.index.read();
            index.by_name.keys().filter(|name| !present.contains(*name)).cloned().collect()
        };
        missing.iter().for_each(|name| self.gone(name, 0));
        self.synced.send_replace(true);
    }

    /// The object, if it can be read. Of one that cannot, what was read last stands, and it is said once.
    fn well_formed(&self, object: Guarded) -> Option<KubesvcAgent> {
        let name = object.name_any();
        match object.0 {
            Ok(agent) => Some(agent),
            Err(invalid) => {
                if self.index.write().malformed.insert(name.clone()) {
                    error!(agent = name, error = %invalid.error, "malformed KubesvcAgent; it counts as it was read last; delete it");
                }
                None
            }
        }
    }

    /// Takes in an object, unless a newer version of it is known.
    fn put(&self, agent: KubesvcAgent) {
        let name = agent.name_any();
        {
            let mut index = self.index.write();
            let known = index.by_name.get(&name).map(|known| version_of(&**known));
            if known.is_some_and(|known| known >= version_of(&agent)) {
                return;
            }
            index.malformed.remove(&name);
            index.insert(&name, agent);
        }
        self.tell(&name);
    }

    fn tell(&self, name: &str) {
        for follower in self.followers.read().iter() {
            follower.wake(name.to_owned());
        }
    }
}

/// The resourceVersion as the number that it is: it grows with each write. Custom resources of all kinds are in one etcd,
/// which counts them together. 0 where it cannot be read.
pub fn version_of(object: &impl ResourceExt) -> u64 {
    object.resource_version().and_then(|version| version.parse().ok()).unwrap_or_default()
}

type Guarded = DeserializeGuard<KubesvcAgent>;

/// Keeps the index in step with one namespace until cancelled. A malformed object is logged once, and counts as it was
/// read last. A lost watch is resumed with backoff.
pub async fn watch_agents(client: Client, namespace: String, agents: Arc<Agents>, stop: CancellationToken) {
    let api: Api<Guarded> = Api::namespaced(client, &namespace);
    let stream = watcher::watcher(api, crate::watches::config()).backoff(crate::watches::pauses());
    let mut stream = std::pin::pin!(stream.take_until(stop.cancelled_owned()));
    let mut listing = HashSet::new();
    while let Some(event) = stream.next().await {
        match event {
            Ok(Event::Init) => listing.clear(),
            Ok(Event::InitApply(object)) => {
                listing.insert(object.name_any());
                // A list comes in any order: it says nothing about what else was seen.
                if let Some(agent) = agents.well_formed(object) {
                    agents.put(agent);
                }
            }
            Ok(Event::InitDone) => agents.listed(&std::mem::take(&mut listing)),
            Ok(Event::Apply(object)) => {
                if let Some(agent) = agents.well_formed(object) {
                    agents.seen(agent);
                }
            }
            Ok(Event::Delete(object)) => {
                agents.gone(&object.name_any(), version_of(&object));
            }
            Err(problem) => {
                warn!(error = %crate::telemetry::errors::chain(&problem), "watch of KubesvcAgents");
            }
        }
    }
}

/// Reads the agents of a zone from the API server itself, not from a cache of it, and brings the index up to that.
///
/// # Errors
/// The API server cannot be asked.
pub async fn read_agents(
    client: Client,
    namespace: &str,
    zone: &str,
    agents: &Agents,
) -> Result<(), kube::Error> {
    let api: Api<Guarded> = Api::namespaced(client, namespace);
    let of_zone = if names::is_label_value(zone) {
        ListParams::default().labels(&format!("{ZONE_LABEL}={zone}"))
    } else {
        ListParams::default()
    };
    let listed = api.list(&of_zone).await?;
    let well_formed = listed.items.into_iter().filter_map(|object| agents.well_formed(object));
    agents.read(well_formed.collect());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::account::KubesvcAgentSpec;

    fn agent(name: &str, version: u64) -> KubesvcAgent {
        let mut agent = KubesvcAgent::new(name, KubesvcAgentSpec::default());
        agent.metadata.resource_version = Some(version.to_string());
        agent
    }

    fn version(agents: &Agents, name: &str) -> Option<u64> {
        agents.get(name).map(|agent| version_of(&*agent))
    }

    #[test]
    fn a_read_brings_what_the_watch_has_not_shown_and_nothing_older() {
        let agents = Agents::default();
        agents.seen(agent("a", 10));
        agents.seen(agent("b", 12));
        agents.gone("b", 13);
        agents.read(vec![agent("a", 9), agent("b", 12), agent("c", 14)]);
        assert_eq!(
            (version(&agents, "a"), version(&agents, "b"), version(&agents, "c")),
            (Some(10), None, Some(14))
        );
        agents.seen(agent("c", 14));
        agents.read(vec![agent("a", 15)]);
        agents.seen(agent("a", 11));
        assert_eq!(version(&agents, "a"), Some(15), "what the watch shows late is old");
    }

    #[test]
    fn an_object_that_cannot_be_read_counts_as_it_was_read_last_and_is_said_once() {
        let agents = Agents::default();
        agents.seen(agent("a", 1));
        let malformed = || {
            let object = serde_json::json!({"metadata": {"name": "a", "resourceVersion": "2"}, "spec": {"agentId": 5}});
            serde_json::from_value::<Guarded>(object).expect("a guard takes anything")
        };
        assert!(agents.well_formed(malformed()).is_none() && agents.well_formed(malformed()).is_none());
        assert_eq!(version(&agents, "a"), Some(1));
        assert_eq!(agents.index.read().malformed.len(), 1, "whoever is in it was spoken of");
        agents.seen(agent("a", 3));
        assert!(agents.index.read().malformed.is_empty(), "and may be again");
        let _ = agents.well_formed(malformed());
        agents.gone("a", 4);
        assert!(agents.index.read().malformed.is_empty());
    }

    #[test]
    fn followers_are_told_of_what_is_there_and_of_each_change() {
        let agents = Agents::default();
        agents.seen(agent("a", 1));
        let follower = agents.follow();
        assert_eq!(follower.try_take(9), ["a"]);
        agents.seen(agent("a", 1));
        assert!(follower.is_empty());
        agents.seen(agent("a", 2));
        agents.listed(&HashSet::new());
        assert_eq!(follower.try_take(9), ["a"]);
        assert!(agents.all().is_empty());
    }
}
