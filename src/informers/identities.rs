//! Index of the KubesvcIdentities as last seen, fed by one watch. A deleted object counts until a list does not have it, and
//! nothing counts after the process was suspended until they were listed again.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use kube::ResourceExt;
use kube::core::DeserializeGuard;
use kube::runtime::watcher::Event;
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use kubesvc_core::identity::{
    AgentCredential, AgentRights, Identities, IdentityRefusal, KubesvcIdentity, TokenSecret,
};
use kubesvc_runtime::kube_access::KubeAccess;
use kubesvc_runtime::telemetry::outages;
use kubesvc_runtime::work_queue::WorkQueue;

/// Interval between two signs of life of the process.
const BEAT_INTERVAL: Duration = Duration::from_secs(1);
/// Time without a sign of life after which the process was suspended: objects may have changed meanwhile.
const MAX_PAUSE: Duration = Duration::from_secs(10);

type GuardedIdentity = DeserializeGuard<KubesvcIdentity>;

/// All KubesvcIdentities of one namespace.
pub struct IdentityIndex {
    objects: RwLock<KnownIdentities>,
    /// Names of objects that were added, changed or deleted.
    changed: Arc<WorkQueue<String>>,
    /// Whether what is known is as new as the watch: listed once, and not suspended since.
    fresh: watch::Sender<bool>,
    beat: Mutex<Instant>,
}

#[derive(Default)]
struct KnownIdentities {
    identities: Identities,
    /// Objects as they were seen, with why they identify nobody.
    by_name: std::collections::BTreeMap<String, (Arc<KubesvcIdentity>, Option<String>)>,
}

impl Default for IdentityIndex {
    fn default() -> Self {
        Self {
            objects: RwLock::default(),
            changed: Arc::default(),
            fresh: watch::Sender::new(false),
            beat: Mutex::new(Instant::now()),
        }
    }
}

impl IdentityIndex {
    /// What an agent with this credential may do at this time, in epoch seconds.
    ///
    /// # Errors
    /// It is not let in.
    pub fn identify(&self, credential: &AgentCredential, now: i64) -> Result<AgentRights, IdentityRefusal> {
        self.objects.read().identities.identify(credential, now)
    }

    /// Whether a change of this object may change what an agent with this credential may do.
    pub fn concerns(&self, name: &str, credential: &AgentCredential) -> bool {
        self.objects.read().identities.concerns(name, credential)
    }

    /// The Secrets with static tokens.
    pub fn token_secrets(&self) -> Vec<TokenSecret> {
        self.objects.read().identities.token_secrets()
    }

    /// An object, with why it identifies nobody.
    pub fn get(&self, name: &str) -> Option<(Arc<KubesvcIdentity>, Option<String>)> {
        self.objects.read().by_name.get(name).cloned()
    }

    /// The names of objects that were added, changed or deleted. There is one subscriber.
    pub fn changes(&self) -> Arc<WorkQueue<String>> {
        Arc::clone(&self.changed)
    }

    /// Whether the objects are known as they are now, as far as the watch shows.
    pub fn is_fresh(&self) -> bool {
        *self.fresh.borrow() && self.beat.lock().elapsed() < MAX_PAUSE
    }

    /// Waits until [`Self::is_fresh`].
    pub async fn fresh(&self) {
        let mut fresh = self.fresh.subscribe();
        while !self.is_fresh() {
            let again = tokio::time::sleep(BEAT_INTERVAL);
            tokio::select! {
                // The sender lives as long as self.
                _ = fresh.changed() => {}
                () = again => {}
            }
        }
    }

    /// Applies an object that was added or changed.
    pub(crate) fn put(&self, object: KubesvcIdentity) {
        let name = object.name_any();
        let problem = {
            let mut objects = self.objects.write();
            // A list shows all of them again, and a status decides nothing.
            if let Some((known, _)) = objects.by_name.get_mut(&name)
                && known.spec == object.spec
                && known.metadata.uid == object.metadata.uid
                && known.metadata.generation == object.metadata.generation
            {
                *known = Arc::new(object);
                return;
            }
            let before = objects.by_name.get(&name).and_then(|(_, problem)| problem.clone());
            let problem = objects.identities.put(&object).err().map(|error| error.to_string());
            objects.by_name.insert(name.clone(), (Arc::new(object), problem.clone()));
            problem.filter(|now| before.as_ref() != Some(now))
        };
        if let Some(problem) = problem {
            error!(identity = name, "KubesvcIdentity identifies nobody: {problem}");
        }
        self.changed.wake(name);
    }

    fn remove(&self, name: &str) {
        {
            let mut objects = self.objects.write();
            objects.identities.remove(name);
            objects.by_name.remove(name);
        }
        self.changed.wake(name.to_owned());
    }

    /// Applies an object that may be malformed, which then identifies nobody.
    fn seen(&self, object: GuardedIdentity) {
        let name = object.name_any();
        match object.0 {
            Ok(object) => self.put(object),
            Err(invalid) => {
                error!(identity = name, error = %invalid.error, "malformed KubesvcIdentity, which identifies nobody; mend or delete it");
                self.remove(&name);
            }
        }
    }

    /// Records the end of a list: objects that are not in it are gone.
    pub(crate) fn listed(&self, present: &HashSet<String>) {
        let objects = self.objects.read();
        let gone: Vec<_> = objects.by_name.keys().filter(|name| !present.contains(*name)).cloned().collect();
        drop(objects);
        gone.iter().for_each(|name| self.remove(name));
        self.fresh.send_if_modified(|fresh| !std::mem::replace(fresh, true));
    }

    /// Makes the objects count as old, as after a pause.
    #[cfg(test)]
    pub(crate) fn went_stale(&self) {
        self.fresh.send_replace(false);
    }

    /// Records a sign of life. Returns whether the process was suspended before it.
    pub(crate) fn beat(&self) -> bool {
        let was = std::mem::replace(&mut *self.beat.lock(), Instant::now());
        let paused = was.elapsed() >= MAX_PAUSE;
        if paused {
            self.fresh.send_replace(false);
        }
        paused
    }
}

/// Keeps the index in step with one namespace until cancelled.
pub async fn watch_identities(
    kube: KubeAccess,
    namespace: String,
    identities: Arc<IdentityIndex>,
    stop: CancellationToken,
) {
    let objects = kube.namespaced::<GuardedIdentity>(&namespace);
    let new_stream = || {
        kubesvc_runtime::watch_backoff::events(
            objects.api().clone(),
            kubesvc_runtime::watch_backoff::config(),
        )
    };
    let (mut stream, mut listing) = (new_stream(), HashSet::new());
    let mut beats = interval(BEAT_INTERVAL);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let event = tokio::select! {
            // A sign of life is looked at before what the watch shows: that may be old.
            biased;
            () = stop.cancelled() => return,
            _ = beats.tick() => {
                if identities.beat() {
                    warn!("the process was suspended; listing KubesvcIdentities again before agents are heard");
                    stream = new_stream();
                }
                continue;
            }
            event = stream.next() => event,
        };
        match event {
            None => return,
            Some(Ok(Event::Init)) => listing.clear(),
            Some(Ok(Event::InitApply(object))) => {
                listing.insert(object.name_any());
                identities.seen(object);
            }
            Some(Ok(Event::InitDone)) => identities.listed(&std::mem::take(&mut listing)),
            Some(Ok(Event::Apply(object))) => identities.seen(object),
            Some(Ok(Event::Delete(object))) => {
                // An API server that is starting may say so of all objects.
                info!(identity = object.name_any(), "KubesvcIdentity deleted; listing them again");
                stream = new_stream();
            }
            Some(Err(outage)) => outages::log_transition("KubesvcIdentities", &outage),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kubesvc_core::identity::{TokenFacts, TokenHolder};

    fn object(name: &str, namespace: &str, zones: &[&str]) -> KubesvcIdentity {
        let text = serde_json::json!({
            "apiVersion": "kubesvc.io/v1alpha1", "kind": "KubesvcIdentity", "metadata": {"name": name},
            "spec": {"match": {"serviceAccount": {"namespace": namespace, "name": "agent"}}, "allow": {"zones": zones}},
        });
        serde_json::from_value(text).expect("an identity")
    }

    fn credential(namespace: &str) -> AgentCredential {
        let holder = TokenHolder::ServiceAccount { namespace: namespace.into(), name: "agent".into() };
        let token = TokenFacts { holder, id: None, issued_at: None, expires: None };
        AgentCredential { certificate: None, token: Some(token) }
    }

    #[tokio::test(start_paused = true)]
    async fn objects_count_from_the_first_list_and_not_after_a_pause_until_the_next() {
        let index = IdentityIndex::default();
        assert!(!index.is_fresh());
        index.put(object("a", "east", &["east"]));
        index.listed(&HashSet::from(["a".to_owned()]));
        assert!(index.is_fresh() && !index.beat());
        tokio::time::advance(MAX_PAUSE).await;
        assert!(!index.is_fresh(), "whoever looks first notices it");
        assert!(index.beat());
        assert!(!index.is_fresh(), "a sign of life alone is not enough");
        index.listed(&HashSet::from(["a".to_owned()]));
        index.fresh().await;
        assert!(index.identify(&credential("east"), 0).is_ok());
    }

    #[tokio::test]
    async fn an_object_that_cannot_be_used_or_is_in_no_list_identifies_nobody() {
        let index = IdentityIndex::default();
        index.put(object("a", "east", &["east"]));
        index.put(object("b", "west", &["west"]));
        index.put(object("b", "west", &[]));
        let (_, problem) = index.get("b").expect("it is known");
        assert!(problem.is_some_and(|problem| problem.contains("allow.zones")));
        assert!(index.identify(&credential("west"), 0).is_err());
        assert!(index.concerns("a", &credential("east")) && !index.concerns("a", &credential("west")));
        index.listed(&HashSet::from(["b".to_owned()]));
        assert!(index.identify(&credential("east"), 0).is_err() && index.get("a").is_none());
        let mut changed = index.changes().try_take(10);
        changed.sort();
        assert_eq!(changed, ["a", "b"]);
    }
}
