//! Sessions at all replicas: those of this replica from memory, the others from their KubesvcAgents.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;

use super::{AgentView, ConnectedAgents, ConnectedAgentsError, RemoteSessions};
use crate::informers::{AccountIndex, AgentIndex, read_agents};
use kubesvc_core::lifecycle::{Presence, SessionFact};
use kubesvc_core::{AgentId, ZoneId};
use kubesvc_runtime::kube_access::KubeAccess;
use kubesvc_runtime::telemetry::errors::chain;

/// Timeout for one read of agents from the API server.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// One read of several zones, shared by all callers that asked before it began.
#[derive(Default)]
struct AgentsRead {
    zones: Mutex<BTreeSet<ZoneId>>,
    outcome: OnceLock<Result<(), ConnectedAgentsError>>,
}

/// The agents of all replicas.
pub struct ClusterSessions {
    here: Arc<dyn ConnectedAgents>,
    remote: Arc<RemoteSessions>,
    accounts: Arc<AccountIndex>,
    agents: Arc<AgentIndex>,
    kube: KubeAccess,
    namespace: String,
    /// The read that starts next.
    next: Mutex<Arc<AgentsRead>>,
    /// Held by the caller that performs a read.
    reading: tokio::sync::Mutex<()>,
}

impl ClusterSessions {
    /// `here` provides the agents of this replica; `namespace` contains all KubesvcAgents.
    pub fn new(
        here: Arc<dyn ConnectedAgents>,
        remote: Arc<RemoteSessions>,
        accounts: Arc<AccountIndex>,
        agents: Arc<AgentIndex>,
        kube: KubeAccess,
        namespace: &str,
    ) -> Self {
        Self {
            here,
            remote,
            accounts,
            agents,
            kube: kube.within(READ_TIMEOUT),
            namespace: namespace.to_owned(),
            next: Mutex::default(),
            reading: tokio::sync::Mutex::default(),
        }
    }

    async fn read_all(&self, zones: &BTreeSet<ZoneId>) -> Result<(), ConnectedAgentsError> {
        let read = read_agents(&self.kube, &self.namespace, zones, &self.agents).await;
        read.map_err(|problem| ConnectedAgentsError(chain(&problem)))?;
        self.remote.catch_up(zones);
        zones.iter().for_each(|zone| self.here.catch_up(zone));
        Ok(())
    }
}

#[async_trait]
impl ConnectedAgents for ClusterSessions {
    fn sessions(&self, uid: &str) -> Vec<SessionFact> {
        let here = self.here.sessions(uid);
        match self.accounts.by_uid(uid) {
            Some(account) => together(here, self.remote.sessions(&account)),
            None => here,
        }
    }

    fn agents(&self) -> Vec<AgentView> {
        self.here.agents()
    }

    fn holders(&self, uid: &str) -> Vec<AgentView> {
        self.here.holders(uid)
    }

    fn namespaces(&self, uid: &str) -> Option<Vec<String>> {
        self.here.namespaces(uid)
    }

    fn credential_mismatch(&self, uid: &str) -> bool {
        let remote = || self.accounts.by_uid(uid).is_some_and(|one| self.remote.mismatched(&one));
        self.here.credential_mismatch(uid) || remote()
    }

    fn is_all_here(&self) -> bool {
        false
    }

    /// A call during a read waits for the next one, and all waiting calls share it, whatever their zones: one
    /// list, however many accounts are revoked at once.
    async fn read(&self, zone: &ZoneId) -> Result<(), ConnectedAgentsError> {
        let round = {
            let next = self.next.lock();
            next.zones.lock().insert(zone.clone());
            Arc::clone(&next)
        };
        let _reading = self.reading.lock().await;
        if let Some(outcome) = round.outcome.get() {
            return outcome.clone();
        }
        {
            // If a caller was cancelled in the middle of this read, it is no longer the next one, but it is
            // performed all the same.
            let mut next = self.next.lock();
            if Arc::ptr_eq(&next, &round) {
                *next = Arc::default();
            }
        }
        let zones = round.zones.lock().clone();
        let outcome = self.read_all(&zones).await;
        round.outcome.get_or_init(|| outcome).clone()
    }

    fn disconnect(&self, agent_id: &AgentId, zone: Option<&ZoneId>) -> bool {
        self.here.disconnect(agent_id, zone)
    }
}

/// Merges the facts by agent and zone. A connected session wins: the agent may just have moved.
fn together(mut here: Vec<SessionFact>, remote: Vec<SessionFact>) -> Vec<SessionFact> {
    for fact in remote {
        let same = |one: &SessionFact| one.agent_id == fact.agent_id && one.zone == fact.zone;
        match here.iter_mut().find(|one| same(one)) {
            None => here.push(fact),
            Some(known) if known.presence == Presence::Connected => {}
            Some(known) => {
                if stays_longer(fact.presence, known.presence) {
                    *known = fact;
                }
            }
        }
    }
    here
}

/// Whether one presence keeps others waiting longer than another.
fn stays_longer(one: Presence, other: Presence) -> bool {
    match (one, other) {
        (Presence::Away(one), Presence::Away(other)) => one > other,
        (Presence::Connected, _) => true,
        (Presence::Away(_), Presence::Connected) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leases::{Replicas, Times};
    use kubesvc_core::agent_resource::AgentSession;
    use kubesvc_core::lifecycle::{AgentProcess, Fact};
    use kubesvc_core::report_outbox::{SessionReport, awaited};
    use kubesvc_core::{KubesvcAccount, KubesvcAgent, KubesvcAgentSpec, KubesvcAgentStatus};

    fn fact(agent: &str, presence: Presence) -> SessionFact {
        SessionFact {
            agent_id: agent.into(),
            zone: "z".into(),
            approved: true,
            presence,
            process: AgentProcess::default(),
            report: None,
            silent_for: None,
            unanswered: None,
            offer: None,
            lists: Fact::Unknown,
            cluster_uid: String::new(),
            caching: None,
        }
    }

    /// No connected agents.
    struct NoSessions;

    #[async_trait]
    impl ConnectedAgents for NoSessions {
        fn sessions(&self, _: &str) -> Vec<SessionFact> {
            Vec::new()
        }

        fn agents(&self) -> Vec<AgentView> {
            Vec::new()
        }

        fn holders(&self, _: &str) -> Vec<AgentView> {
            Vec::new()
        }

        fn namespaces(&self, _: &str) -> Option<Vec<String>> {
            None
        }

        fn credential_mismatch(&self, _: &str) -> bool {
            false
        }

        fn is_all_here(&self) -> bool {
            true
        }

        async fn read(&self, _: &ZoneId) -> Result<(), ConnectedAgentsError> {
            Ok(())
        }

        fn disconnect(&self, _: &AgentId, _: Option<&ZoneId>) -> bool {
            false
        }
    }

    #[tokio::test]
    async fn all_zones_that_are_asked_for_during_a_reading_share_the_next_one() {
        let (asked, answers) = (Arc::new(Mutex::new(Vec::new())), Arc::new(tokio::sync::Semaphore::new(0)));
        let (log, gate) = (Arc::clone(&asked), Arc::clone(&answers));
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            log.lock().push(request.uri().query().unwrap_or_default().to_owned());
            let gate = Arc::clone(&gate);
            async move {
                gate.acquire().await.expect("it is never closed").forget();
                let list = serde_json::json!({"metadata": {"resourceVersion": "1"}, "items": []}).to_string();
                http::Response::builder().body(kube::client::Body::from(list.into_bytes()))
            }
        });
        let (agents, accounts) = (Arc::new(AgentIndex::default()), Arc::new(AccountIndex::default()));
        let replicas = Replicas::unknown(&"me".into(), Times::default());
        let (followed, known) = (Arc::clone(&agents), Arc::clone(&accounts));
        let remote = Arc::new(RemoteSessions::new(&"me".into(), followed, known, replicas, Arc::default()));
        let kube = KubeAccess::new(kube::Client::new(service, "ns"), "test");
        let sessions =
            Arc::new(ClusterSessions::new(Arc::new(NoSessions), remote, accounts, agents, kube, "ns"));
        let read = |zone: ZoneId| {
            let sessions = Arc::clone(&sessions);
            tokio::spawn(async move { sessions.read(&zone).await })
        };
        let mut readings = vec![read("z-0".into())];
        while asked.lock().is_empty() {
            tokio::task::yield_now().await;
        }
        // The first zone again too: the read in progress may have read it before this request.
        readings.extend((0..2000).map(|nth| read(format!("z-{nth}").into())));
        while sessions.next.lock().zones.lock().len() < 2000 {
            tokio::task::yield_now().await;
        }
        answers.add_permits(2);
        for reading in readings {
            reading.await.expect("no panic").expect("it is answered");
        }
        let asked = asked.lock();
        assert_eq!(asked.len(), 2, "{asked:?}");
        assert!(asked[0].contains("z-0") && !asked[1].contains("labelSelector"), "{asked:?}");
    }

    #[tokio::test]
    async fn credential_mismatch_at_another_replica_is_one_of_all_replicas() {
        let (agents, accounts) = (Arc::new(AgentIndex::default()), Arc::new(AccountIndex::default()));
        let replicas = Replicas::unknown(&"me".into(), Times::default());
        replicas.now_are(&["other"]);
        let account: KubesvcAccount = serde_json::from_value(serde_json::json!({
            "apiVersion": "kubesvc.io/v1alpha1", "kind": "KubesvcAccount",
            "metadata": {"name": "a", "namespace": "ns", "uid": "uid-a", "generation": 1, "resourceVersion": "1"},
            "spec": {"kubeconfig": {"secretRef": {"name": "a"}}},
            "status": {"state": "ACTIVE", "epoch": 4, "grant": {"phase": "Open", "zone": "z", "generation": 1}},
        }))
        .expect("well-formed");
        accounts.show(account.clone());
        let said = SessionReport { credential_mismatch: true, ..SessionReport::default() };
        let mismatch = awaited(&account, &"z".into(), said).expect("it is awaited").entry;
        let (followed, known) = (Arc::clone(&agents), Arc::clone(&accounts));
        let remote = Arc::new(RemoteSessions::new(&"me".into(), followed, known, replicas, Arc::default()));
        let service = tower::service_fn(|_: http::Request<kube::client::Body>| async {
            http::Response::builder().body(kube::client::Body::empty())
        });
        let kube = KubeAccess::new(kube::Client::new(service, "ns"), "test");
        let here = Arc::new(NoSessions);
        let (followed, known) = (Arc::clone(&agents), Arc::clone(&remote));
        let sessions = ClusterSessions::new(here, known, accounts, followed, kube, "ns");
        for (version, outbox, expected) in [(1, vec![], false), (2, vec![mismatch], true), (3, vec![], false)]
        {
            let spec = KubesvcAgentSpec { agent_id: "one".into(), zone_id: "z".into(), approved: true };
            let mut agent = KubesvcAgent::new("one-z", spec);
            agent.metadata.resource_version = Some(format!("{version}"));
            let session = AgentSession { id: "s".into(), replica: "other".into(), ..AgentSession::default() };
            let (session, connected) = (Some(session), true);
            agent.status = Some(KubesvcAgentStatus { session, connected, outbox, ..Default::default() });
            agents.seen(agent);
            remote.catch_up(&BTreeSet::from(["z".into()]));
            assert_eq!(sessions.credential_mismatch("uid-a"), expected, "{version}");
        }
    }

    #[test]
    fn an_agent_that_moved_is_where_it_is_connected() {
        use Presence::{Away, Connected};
        for (here, there, expected) in [
            (Connected, Connected, Connected),
            (Connected, Away(5), Connected),
            (Away(5), Connected, Connected),
            (Away(5), Away(9), Away(9)),
            (Away(9), Away(5), Away(9)),
        ] {
            let all = together(vec![fact("a", here)], vec![fact("a", there), fact("b", Connected)]);
            let presences: Vec<_> = all.iter().map(|one| one.presence).collect();
            assert_eq!(presences, [expected, Connected], "{here:?} {there:?}");
        }
    }
}
