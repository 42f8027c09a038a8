//! Index of the KubesvcAgents as last seen, fed by one watch, with wake-ups for subscribers.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use kube::api::ListParams;
use kube::core::DeserializeGuard;
use kube::runtime::watcher::Event;
use kube::{Api, ResourceExt};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};

use kubesvc_core::{AgentId, KubesvcAgent, ZONE_LABEL, ZoneId, object_names};
use kubesvc_runtime::background_tasks::{AttemptOutcome, TaskRegistry, TaskSpec};
use kubesvc_runtime::kube_access::{KubeAccess, KubeError, KubeObjects};
use kubesvc_runtime::telemetry::outages;
use kubesvc_runtime::work_queue::WorkQueue;

/// Time for the watch to show what a read outside of it has found, before that object is read again by
/// itself.
const MAX_WATCH_DELAY: Duration = Duration::from_secs(5);
/// Maximum number of zones in a selector; a read of more zones lists all agents, because a selector must fit
/// into the request line.
const MAX_SELECTED_ZONES: usize = 32;
/// Timeout for reading one object.
const GET_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Default)]
struct AgentIndexState {
    by_name: HashMap<String, Arc<KubesvcAgent>>,
    /// Names of the objects of an agent id: one for each zone that the agent was in.
    by_id: HashMap<AgentId, HashSet<String>>,
    /// Names of objects whose agents were never approved.
    never_approved: HashSet<String>,
    /// Newest version shown by the watch; a read that is not newer adds nothing.
    seen: u64,
    /// Newest version in the list that is being applied.
    listing: u64,
    /// Objects and versions that a read has found and the watch has not shown yet. A list cannot remove them,
    /// because it may have started before that read.
    unconfirmed: HashMap<String, u64>,
    /// Names of objects that are malformed now.
    malformed: HashSet<String>,
}

impl AgentIndexState {
    fn insert(&mut self, name: &str, mut agent: KubesvcAgent) {
        self.remove(name);
        // Field ownership is not needed here, and it is most of an object's size in memory.
        agent.metadata.managed_fields = None;
        self.malformed.remove(name);
        self.by_id.entry(agent.spec.agent_id.clone()).or_default().insert(name.to_owned());
        if !agent.was_approved() {
            self.never_approved.insert(name.to_owned());
        }
        self.by_name.insert(name.to_owned(), Arc::new(agent));
    }

    /// Whether only a read has found this object, in a version newer than `version`.
    fn is_unconfirmed(&self, name: &str, version: u64) -> bool {
        self.unconfirmed.get(name).is_some_and(|unconfirmed| *unconfirmed > version)
    }

    fn is_of_version(&self, name: &str, version: u64) -> bool {
        self.by_name.get(name).is_some_and(|known| version_of(&**known) == version)
    }

    fn remove(&mut self, name: &str) {
        self.unconfirmed.remove(name);
        let Some(agent) = self.by_name.remove(name) else { return };
        self.never_approved.remove(name);
        let id = &agent.spec.agent_id;
        if let Some(names) = self.by_id.get_mut(id) {
            names.remove(name);
            if names.is_empty() {
                self.by_id.remove(id);
            }
        }
    }
}

/// All KubesvcAgents of one namespace, and the subscribers to their changes.
pub struct AgentIndex {
    index: RwLock<AgentIndexState>,
    followers: RwLock<Vec<Arc<WorkQueue<String>>>>,
    synced: watch::Sender<bool>,
    /// Notified when the API server's data are older than what the watch has shown.
    went_back: Notify,
}

impl Default for AgentIndex {
    fn default() -> Self {
        Self {
            index: RwLock::default(),
            followers: RwLock::default(),
            synced: watch::Sender::new(false),
            went_back: Notify::new(),
        }
    }
}

impl AgentIndex {
    /// The agent whose object has this name.
    pub fn get(&self, name: &str) -> Option<Arc<KubesvcAgent>> {
        self.index.read().by_name.get(name).cloned()
    }

    /// The objects of an agent id, one for each zone that the agent was in.
    pub fn of_id(&self, agent_id: &AgentId) -> Vec<Arc<KubesvcAgent>> {
        let index = self.index.read();
        let names = index.by_id.get(agent_id).into_iter().flatten();
        names.filter_map(|name| index.by_name.get(name).cloned()).collect()
    }

    /// Number of agents that were never approved.
    pub fn never_approved(&self) -> usize {
        self.index.read().never_approved.len()
    }

    /// All agents, in no particular order.
    pub fn all(&self) -> Vec<Arc<KubesvcAgent>> {
        self.index.read().by_name.values().cloned().collect()
    }

    /// Waits for the first complete list.
    pub async fn synced(&self) {
        // The sender lives as long as self, so this returns only when the value is true.
        let _ = self.synced.subscribe().wait_for(|synced| *synced).await;
    }

    /// Subscribes to changes. The new set contains the names of all current objects, and is woken for each
    /// change.
    pub fn follow(&self) -> Arc<WorkQueue<String>> {
        let wakes = Arc::new(WorkQueue::default());
        self.followers.write().push(Arc::clone(&wakes));
        wakes.wake_all(self.index.read().by_name.keys().cloned());
        wakes
    }

    /// Applies an object shown by the watch. Events arrive in order, so each is newer than the one before,
    /// whatever its version: after a restore from a backup, versions continue from an earlier one.
    pub(crate) fn seen(&self, agent: KubesvcAgent) {
        let version = version_of(&agent);
        self.index.write().seen = version;
        self.apply(agent, version);
    }

    /// Applies a deletion shown by the watch; `version` is that of the deletion.
    pub(crate) fn gone(&self, name: &str, version: u64) {
        {
            let mut index = self.index.write();
            index.seen = version;
            if index.is_unconfirmed(name, version) {
                return; // Recreated since then, and found by a read.
            }
            index.remove(name);
            index.malformed.remove(name);
        }
        self.notify(name);
    }

    /// Records the start of a complete list.
    fn list_begins(&self) {
        self.index.write().listing = 0;
    }

    /// Applies an object from a list. The list started after everything that the watch has shown.
    fn in_list(&self, agent: KubesvcAgent) {
        let version = version_of(&agent);
        {
            let mut index = self.index.write();
            index.listing = index.listing.max(version);
        }
        self.apply(agent, version);
    }

    fn apply(&self, agent: KubesvcAgent, version: u64) {
        let name = agent.name_any();
        {
            let mut index = self.index.write();
            if index.is_unconfirmed(&name, version) {
                return;
            }
            if index.is_of_version(&name, version) {
                index.unconfirmed.remove(&name);
                return;
            }
            index.insert(&name, agent);
        }
        self.notify(&name);
    }

    /// Applies objects that were read outside of the watch, except those that the watch has already shown or
    /// overtaken.
    fn read(&self, agents: Vec<KubesvcAgent>) {
        for agent in agents {
            let (name, version) = (agent.name_any(), version_of(&agent));
            {
                let mut index = self.index.write();
                let known = index.by_name.get(&name).map(|known| version_of(&**known));
                // The watch has already shown anything that is not newer, or shown that it is gone.
                if version <= index.seen || known.is_some_and(|known| known >= version) {
                    continue;
                }
                index.insert(&name, agent);
                index.unconfirmed.insert(name.clone(), version);
            }
            self.notify(&name);
        }
    }

    /// Records the end of a complete list: objects that are not in it are gone, except those that only a read
    /// has found.
    pub(crate) fn listed(&self, present: &HashSet<String>) {
        let missing: Vec<_> = {
            let mut index = self.index.write();
            index.seen = index.listing;
            let missing = index.by_name.keys().filter(|name| !present.contains(*name));
            let missing = missing.filter(|name| !index.unconfirmed.contains_key(*name));
            let missing: Vec<_> = missing.cloned().collect();
            for name in &missing {
                index.remove(name);
                index.malformed.remove(name);
            }
            missing
        };
        missing.iter().for_each(|name| self.notify(name));
        self.synced.send_replace(true);
    }

    /// Objects and versions that only a read has found.
    fn unconfirmed(&self) -> HashMap<String, u64> {
        self.index.read().unconfirmed.clone()
    }

    /// Applies the API server's answer about an object that the watch has not shown at this version; `None`
    /// if it is gone.
    fn apply_lookup(&self, name: &str, version: u64, found: Option<KubesvcAgent>) {
        {
            let mut index = self.index.write();
            if index.unconfirmed.get(name) != Some(&version) {
                return; // The watch or another read has changed it meanwhile.
            }
            match found {
                None => index.remove(name),
                Some(agent) if version_of(&agent) == version => return,
                Some(agent) => {
                    let version = version_of(&agent);
                    index.insert(name, agent);
                    index.unconfirmed.insert(name.to_owned(), version);
                }
            }
        }
        self.notify(name);
    }

    /// Newest version shown by the watch.
    fn newest_watched(&self) -> u64 {
        self.index.read().seen
    }

    /// Returns the agent if the object is well-formed. A malformed object is logged once, and its last
    /// well-formed state stays in the index.
    fn well_formed(&self, object: GuardedAgent) -> Option<KubesvcAgent> {
        let name = object.name_any();
        match object.0 {
            Ok(agent) => Some(agent),
            Err(invalid) => {
                if self.index.write().malformed.insert(name.clone()) {
                    error!(agent = name, error = %invalid.error, "malformed KubesvcAgent, using its last valid version; delete the object");
                }
                None
            }
        }
    }

    fn notify(&self, name: &str) {
        for follower in self.followers.read().iter() {
            follower.wake(name.to_owned());
        }
    }
}

/// The resourceVersion as a number; 0 if it cannot be parsed. It grows with each write: all custom resources
/// are in one etcd, which counts them together.
pub fn version_of(object: &impl ResourceExt) -> u64 {
    object.resource_version().and_then(|version| version.parse().ok()).unwrap_or_default()
}

type GuardedAgent = DeserializeGuard<KubesvcAgent>;

/// Keeps the index in step with one namespace until cancelled. A malformed object is logged once, and its
/// last well-formed state counts. A watch that was lost restarts with a list.
pub async fn watch_agents(
    kube: KubeAccess,
    namespace: String,
    agents: Arc<AgentIndex>,
    tasks: TaskRegistry,
    stop: CancellationToken,
) {
    let objects = kube.within(GET_TIMEOUT).namespaced(&namespace);
    let task = TaskSpec::new("agents that the watch does not show", "Reads their KubesvcAgents one by one");
    let (task, before) = (task.every(MAX_WATCH_DELAY).without_deadline(), Mutex::default());
    let looking_up = tasks.drive(task, &stop, |_| look_up_unconfirmed(&objects, &agents, &before));
    tokio::join!(stop.run_until_cancelled(follow(objects.api(), &agents)), looking_up);
}

async fn follow(api: &Api<GuardedAgent>, agents: &AgentIndex) {
    let new_stream =
        || kubesvc_runtime::watch_backoff::events(api.clone(), kubesvc_runtime::watch_backoff::config());
    let (mut stream, mut listing) = (new_stream(), HashSet::new());
    loop {
        let event = tokio::select! {
            () = agents.went_back.notified() => {
                warn!("the API server returned older KubesvcAgents than before; listing them again");
                stream = new_stream();
                continue;
            }
            event = stream.next() => event,
        };
        match event {
            None => return,
            Some(Ok(Event::Init)) => {
                listing.clear();
                agents.list_begins();
            }
            Some(Ok(Event::InitApply(object))) => {
                listing.insert(object.name_any());
                if let Some(agent) = agents.well_formed(object) {
                    agents.in_list(agent);
                }
            }
            Some(Ok(Event::InitDone)) => agents.listed(&std::mem::take(&mut listing)),
            Some(Ok(Event::Apply(object))) => {
                if let Some(agent) = agents.well_formed(object) {
                    agents.seen(agent);
                }
            }
            Some(Ok(Event::Delete(object))) => agents.gone(&object.name_any(), version_of(&object)),
            Some(Err(outage)) => outages::log_transition("KubesvcAgents", &outage),
        }
    }
}

/// Reads objects that a read has found but the watch does not show: the watch may lag behind, or may have
/// restarted with a list that no longer contained them.
async fn look_up_unconfirmed(
    objects: &KubeObjects<GuardedAgent>,
    agents: &AgentIndex,
    before: &Mutex<HashMap<String, u64>>,
) -> AttemptOutcome {
    let unconfirmed = agents.unconfirmed();
    let before = std::mem::replace(&mut *before.lock(), unconfirmed.clone());
    for (name, version) in unconfirmed.iter().filter(|(name, version)| before.get(*name) == Some(*version)) {
        // An object that cannot be read stays unshown, and is read again in the next pass.
        if let Ok(found) = objects.get(name).await {
            match found {
                None => agents.apply_lookup(name, *version, None),
                Some(object) => {
                    if let Some(agent) = agents.well_formed(object) {
                        agents.apply_lookup(name, *version, Some(agent));
                    }
                }
            }
        }
    }
    AttemptOutcome::Done
}

/// Reason why the agents of a zone could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error(transparent)]
    Api(#[from] KubeError),
    /// The API server's data are older than what it has shown: they were restored from a backup. The watch
    /// restarts with a list.
    #[error("the API server returned older data than before; its objects are being listed again")]
    WentBack,
}

/// Reads the agents of some zones from the API server, not from its watch cache, and applies them to the
/// index.
pub async fn read_agents(
    kube: &KubeAccess,
    namespace: &str,
    zones: &BTreeSet<ZoneId>,
    agents: &AgentIndex,
) -> Result<(), ReadError> {
    let may_be_selected = zones.len() <= MAX_SELECTED_ZONES
        && zones.iter().all(|zone| object_names::is_label_value(zone.as_str()));
    let of_zones = if may_be_selected {
        let zones: Vec<_> = zones.iter().map(ZoneId::as_str).collect();
        ListParams::default().labels(&format!("{ZONE_LABEL} in ({})", zones.join(",")))
    } else {
        ListParams::default()
    };
    let apply = agents.newest_watched();
    let listed = kube.namespaced::<GuardedAgent>(namespace).list(&of_zones).await?;
    let version = listed.metadata.resource_version.as_deref().and_then(|version| version.parse::<u64>().ok());
    if version.is_some_and(|version| version < apply) {
        agents.went_back.notify_one();
        return Err(ReadError::WentBack);
    }
    let well_formed = listed.items.into_iter().filter_map(|object| agents.well_formed(object));
    agents.read(well_formed.collect());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use kubesvc_core::KubesvcAgentSpec;

    fn agent(name: &str, version: u64) -> KubesvcAgent {
        let mut agent = KubesvcAgent::new(name, KubesvcAgentSpec::default());
        agent.metadata.resource_version = Some(version.to_string());
        agent
    }

    fn version(agents: &AgentIndex, name: &str) -> Option<u64> {
        agents.get(name).map(|agent| version_of(&*agent))
    }

    #[test]
    fn managed_fields_are_not_kept() {
        let agents = AgentIndex::default();
        let written = |name: &str, version: u64| {
            let mut agent = agent(name, version);
            agent.metadata.managed_fields = Some(vec![Default::default()]);
            agent
        };
        agents.seen(written("watched", 10));
        agents.read(vec![written("read", 11)]);
        let kept: Vec<_> = agents.all().iter().map(|agent| agent.metadata.managed_fields.is_some()).collect();
        assert_eq!(kept, [false, false]);
    }

    #[test]
    fn read_adds_only_objects_newer_than_the_watch() {
        let agents = AgentIndex::default();
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

    /// Applies a complete list as the watch does.
    fn list(agents: &AgentIndex, all: Vec<KubesvcAgent>) {
        agents.list_begins();
        let present = all.iter().map(ResourceExt::name_any).collect();
        all.into_iter().for_each(|agent| agents.in_list(agent));
        agents.listed(&present);
    }

    #[test]
    fn a_list_that_began_before_a_reading_takes_nothing_away_that_it_brought() {
        let agents = AgentIndex::default();
        agents.seen(agent("a", 10));
        agents.list_begins();
        agents.in_list(agent("a", 10));
        agents.read(vec![agent("a", 12), agent("b", 11)]);
        agents.in_list(agent("a", 10));
        agents.listed(&HashSet::from(["a".to_owned()]));
        assert_eq!((version(&agents, "a"), version(&agents, "b")), (Some(12), Some(11)));
        agents.seen(agent("b", 11));
        assert_eq!(agents.unconfirmed(), HashMap::from([("a".to_owned(), 12)]));
        list(&agents, vec![agent("a", 12)]);
        assert_eq!((version(&agents, "a"), version(&agents, "b")), (Some(12), None));
        assert!(agents.unconfirmed().is_empty());
    }

    #[test]
    fn object_unseen_by_the_watch_is_confirmed_by_a_get() {
        let agents = AgentIndex::default();
        agents.read(vec![agent("gone", 11), agent("there", 12), agent("shown", 13)]);
        list(&agents, vec![]);
        agents.seen(agent("shown", 14));
        for name in ["gone", "shown"] {
            agents.apply_lookup(name, if name == "gone" { 11 } else { 13 }, None);
        }
        agents.apply_lookup("there", 12, Some(agent("there", 7)));
        let versions = ["gone", "there", "shown"].map(|name| version(&agents, name));
        assert_eq!(versions, [None, Some(7), Some(14)], "data that were restored are taken in as well");
    }

    #[test]
    fn after_a_restore_to_earlier_versions_the_list_counts_and_what_follows() {
        let agents = AgentIndex::default();
        agents.seen(agent("a", 5000));
        agents.seen(agent("b", 5001));
        agents.gone("c", 5002);
        list(&agents, vec![agent("a", 3000)]);
        assert_eq!((version(&agents, "a"), version(&agents, "b")), (Some(3000), None));
        agents.read(vec![agent("d", 3001)]);
        agents.seen(agent("a", 3002));
        assert_eq!((version(&agents, "a"), version(&agents, "d")), (Some(3002), Some(3001)));
    }

    #[tokio::test]
    async fn read_older_than_the_watch_fails_and_forces_a_list() {
        let answer = serde_json::json!({"metadata": {"resourceVersion": "3000"}, "items": []}).to_string();
        let service = tower::service_fn(move |_: http::Request<kube::client::Body>| {
            let body = kube::client::Body::from(answer.clone().into_bytes());
            std::future::ready(http::Response::builder().body(body))
        });
        let kube = KubeAccess::new(kube::Client::new(service, "ns"), "test");
        let agents = AgentIndex::default();
        agents.seen(agent("a", 3000));
        let zones = BTreeSet::from(["z".into()]);
        read_agents(&kube, "ns", &zones, &agents).await.expect("it is not older");
        agents.seen(agent("a", 3001));
        let read = read_agents(&kube, "ns", &zones, &agents).await;
        assert!(matches!(read, Err(ReadError::WentBack)), "{read:?}");
        agents.went_back.notified().await;
    }

    #[test]
    fn malformed_object_keeps_its_last_state_and_is_logged_once() {
        let agents = AgentIndex::default();
        agents.seen(agent("a", 1));
        let malformed = || {
            let object = serde_json::json!({"metadata": {"name": "a", "resourceVersion": "2"}, "spec": {"agentId": 5}});
            serde_json::from_value::<GuardedAgent>(object).expect("a guard takes anything")
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
    fn followers_are_woken_for_existing_objects_and_each_change() {
        let agents = AgentIndex::default();
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
