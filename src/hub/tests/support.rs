//! A hub on its own port, scripted agents, and fakes behind its ports.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use secrecy::SecretSlice;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

use crate::connected_agents::LeaderClock;
use crate::hub::agent_status::registration::{OutboxWrite, RegisteredAgent, RegisteredIdentity, Stranger};
use crate::hub::tests::fakes::{FakeAccounts, FakeRows};
use crate::hub::*;
use crate::leases::Mandate;
use crate::secrets::{Credential, CredentialKind};
use kubesvc_core::agent_resource::{AgentSession, SessionEnd};
use kubesvc_core::failure::Failure;
use kubesvc_core::report_outbox::OutboxEntry;
use kubesvc_core::spec::{KubeconfigSource, SecretKeyReference};
use kubesvc_core::wire::ops::{self, agent_frame, hub_frame};
use kubesvc_core::{
    Grant, GrantEpoch, GrantPhase, KubesvcAccount, KubesvcAccountSpec, KubesvcAccountStatus, KubesvcAgent,
    KubesvcAgentSpec, KubesvcAgentStatus, State, ZoneId,
};
use kubesvc_runtime::grpc::ops::operations_client::OperationsClient;

/// Time limit for an expected event.
const PATIENCE: Duration = Duration::from_secs(20);

pub(super) const BOOT_A: &str = "01ARZ3NDEKTSV4RRFFQ69G5FAA";
pub(super) const BOOT_B: &str = "01ARZ3NDEKTSV4RRFFQ69G5FAB";

/// KubesvcAgents in memory.
pub(super) struct FakeObjects {
    pub(super) log: Mutex<Vec<String>>,
    /// Whether the agent of each registration needed accounts.
    pub(super) needs: Mutex<Vec<bool>>,
    pub(super) approve: Mutex<bool>,
    /// Agents were approved before, but are not now.
    pub(super) withdrawn: Mutex<bool>,
    pub(super) failing: Mutex<usize>,
    /// Replica at which another process is connected under the id of each registration.
    pub(super) connected_at: Mutex<Option<&'static str>>,
    /// Registrations of this class do not complete.
    pub(super) holds_up: Mutex<Option<AdmissionClass>>,
    /// Number of writes of a disconnect that fail.
    pub(super) unheard: Mutex<usize>,
    pub(super) known: Mutex<Vec<KnownAgent>>,
    pub(super) notes: Mutex<Vec<AgentSummary>>,
    pub(super) removed: Mutex<Vec<String>>,
    /// Whether summaries are written; otherwise the rate limit does not allow it.
    pub(super) tells: Mutex<bool>,
    pub(super) in_force: Mutex<OutboxWrite>,
    pub(super) reports: Mutex<Vec<Vec<OutboxEntry>>>,
    /// Agents whose writes do not complete.
    pub(super) hung: Mutex<HashSet<String>>,
    /// Numbers of such writes that were started and that were abandoned.
    pub(super) hangs: Mutex<[usize; 2]>,
    /// Identities of the registrations.
    pub(super) identities: Mutex<Vec<Option<RegisteredIdentity>>>,
    /// Agents that were shown without a session.
    pub(super) shown: Mutex<Vec<Stranger>>,
    /// How the sessions ended.
    pub(super) ends: Mutex<Vec<SessionEnd>>,
}

impl FakeObjects {
    async fn hang(&self, agent: &str) {
        if self.hung.lock().contains(agent) {
            let _given_up = GivenUp(self);
            self.hangs.lock()[0] += 1;
            std::future::pending::<()>().await;
        }
    }
}

struct GivenUp<'a>(&'a FakeObjects);

impl Drop for GivenUp<'_> {
    fn drop(&mut self) {
        self.0.hangs.lock()[1] += 1;
    }
}

#[async_trait]
impl AgentObjects for FakeObjects {
    async fn known(&self) -> Result<Vec<KnownAgent>, RegistrationError> {
        Ok(self.known.lock().clone())
    }

    async fn register(&self, registration: &Registration) -> Result<RegisteredAgent, RegistrationError> {
        if *self.holds_up.lock() == Some(registration.admission) {
            return std::future::pending().await;
        }
        {
            let mut failing = self.failing.lock();
            if *failing > 0 {
                *failing -= 1;
                return Err(RegistrationError::Api { name: "a".into(), reason: "down".into() });
            }
        }
        if let Some(replica) = *self.connected_at.lock() {
            return Err(RegistrationError::ConnectedElsewhere(replica.into()));
        }
        self.log.lock().push(format!("register {} {}", registration.agent_id, registration.connect_seq));
        self.needs.lock().push(registration.needs_accounts);
        self.identities.lock().push(registration.identity.clone());
        let is_bound = registration.identity.as_ref().is_some_and(|identity| identity.binding.is_some());
        let approved = is_bound || *self.approve.lock();
        Ok(RegisteredAgent { approved, approved_once: approved || *self.withdrawn.lock(), version: 10 })
    }

    async fn write_disconnected(
        &self,
        session: SessionRef<'_>,
        end: SessionEnd,
    ) -> Result<(), RegistrationError> {
        let agent = session.agent_id;
        self.hang(agent.as_str()).await;
        let mut unheard = self.unheard.lock();
        if *unheard > 0 {
            *unheard -= 1;
            return Err(RegistrationError::Api { name: agent.to_string(), reason: "down".into() });
        }
        self.ends.lock().push(end);
        let requested = if end == SessionEnd::Requested { " on request" } else { "" };
        self.log.lock().push(format!("disconnected {agent}{requested}"));
        Ok(())
    }

    async fn write_approved(&self, session: SessionRef<'_>) -> Result<(), RegistrationError> {
        self.log.lock().push(format!("approved {}", session.agent_id));
        Ok(())
    }

    async fn write_summary(&self, _: SessionRef<'_>, note: &AgentSummary) -> Result<bool, RegistrationError> {
        self.notes.lock().push(note.clone());
        Ok(*self.tells.lock())
    }

    async fn show(&self, stranger: &Stranger) -> Result<(), RegistrationError> {
        self.shown.lock().push(stranger.clone());
        Ok(())
    }

    async fn warn(&self, session: SessionRef<'_>, reason: &'static str, _: &str) {
        self.log.lock().push(format!("warned of {} {reason}", session.agent_id));
    }

    async fn remove(&self, agent: &KnownAgent) -> Result<(), RegistrationError> {
        self.removed.lock().push(agent.agent_id.to_string());
        Ok(())
    }

    async fn write_outbox(
        &self,
        session: SessionRef<'_>,
        outbox: &[OutboxEntry],
    ) -> Result<OutboxWrite, RegistrationError> {
        self.hang(session.agent_id.as_str()).await;
        self.reports.lock().push(outbox.to_vec());
        Ok(*self.in_force.lock())
    }
}

/// Credentials in memory, by account name; by default a kubeconfig of version `v1`.
#[derive(Default)]
pub(super) struct FakeCredentials {
    pub(super) answers: Mutex<HashMap<String, Result<Credential, Failure>>>,
    /// Prefix of account names without an answer yet.
    pub(super) unanswered: watch::Sender<Option<&'static str>>,
}

#[async_trait]
impl CredentialSource for FakeCredentials {
    async fn resolve(&self, account: &KubesvcAccount, _fresh: bool) -> Result<Credential, Failure> {
        let name = account.account_name();
        let is_answered = |unanswered: &Option<_>| unanswered.is_none_or(|prefix| !name.starts_with(prefix));
        let _ = self.unanswered.subscribe().wait_for(is_answered).await;
        let answers = self.answers.lock();
        answers.get(account.account_name()).cloned().unwrap_or_else(|| Ok(kubeconfig("v1", 16)))
    }
}

pub(super) fn kubeconfig(version: &str, bytes: usize) -> Credential {
    let kind = CredentialKind::Kubeconfig(SecretSlice::from(vec![b'x'; bytes]));
    Credential { kind, version: Some(version.to_owned()), same_as: Vec::new(), expiry: None }
}

pub(super) struct TestHub {
    pub(super) hub: Arc<Hub>,
    pub(super) accounts: Arc<AccountIndex>,
    pub(super) objects: Arc<FakeObjects>,
    pub(super) made: Arc<FakeAccounts>,
    pub(super) rows: Arc<FakeRows>,
    pub(super) credentials: Arc<FakeCredentials>,
    pub(super) ticks: Arc<LeaderClock>,
    pub(super) leader: Arc<WorkQueue<String>>,
    pub(super) address: SocketAddr,
    pub(super) agents: Arc<AgentIndex>,
    pub(super) leadership: Arc<Leadership>,
    pub(super) tasks: TaskRegistry,
    pub(super) stop: CancellationToken,
    pub(super) served: tokio::task::JoinHandle<Result<(), HubError>>,
}

impl TestHub {
    pub(super) async fn start() -> Self {
        Self::with(HubSettings::default()).await
    }

    pub(super) async fn with(settings: HubSettings) -> Self {
        Self::that_leads(settings, None).await
    }

    /// A hub with this leadership.
    pub(super) async fn that_leads(settings: HubSettings, leads: Option<Arc<Leadership>>) -> Self {
        Self::of_replicas(settings, leads, Replicas::alone(&"r-0".into())).await
    }

    /// A hub among these replicas; leads alone by default.
    pub(super) async fn of_replicas(
        settings: HubSettings,
        leads: Option<Arc<Leadership>>,
        replicas: Arc<Replicas>,
    ) -> Self {
        Self::of_ports(settings, leads, replicas, (None, None)).await
    }

    /// A hub to which agents stream objects.
    pub(super) async fn with_cache(cache: CachePorts) -> Self {
        let replicas = Replicas::alone(&"r-0".into());
        Self::of_ports(HubSettings::default(), None, replicas, (Some(cache), None)).await
    }

    /// A hub that identifies agents.
    pub(super) async fn with_identities(identities: AgentIdentities) -> Self {
        let replicas = Replicas::alone(&"r-0".into());
        Self::of_ports(HubSettings::default(), None, replicas, (None, Some(identities))).await
    }

    async fn of_ports(
        settings: HubSettings,
        leads: Option<Arc<Leadership>>,
        replicas: Arc<Replicas>,
        (cache, identities): (Option<CachePorts>, Option<AgentIdentities>),
    ) -> Self {
        let settings = HubSettings {
            replica_id: "r-0".into(),
            listener: ListenerSettings { address: "127.0.0.1".into(), port: 0, ..settings.listener },
            static_accounts: StaticAccountSettings { namespace: "ns".into(), ..settings.static_accounts },
            ..settings
        };
        let agents = Arc::new(AgentIndex::default());
        agents.listed(&HashSet::new());
        let leadership = leads.unwrap_or_else(|| {
            let leadership = Leadership::unknown();
            leadership.take(Mandate::alone(&"r-0".into()));
            leadership
        });
        let objects = Arc::new(FakeObjects {
            log: Mutex::default(),
            needs: Mutex::default(),
            approve: Mutex::new(true),
            withdrawn: Mutex::default(),
            failing: Mutex::default(),
            connected_at: Mutex::default(),
            holds_up: Mutex::default(),
            unheard: Mutex::default(),
            known: Mutex::default(),
            notes: Mutex::default(),
            removed: Mutex::default(),
            tells: Mutex::new(true),
            in_force: Mutex::new(OutboxWrite::Written),
            reports: Mutex::default(),
            hung: Mutex::default(),
            hangs: Mutex::default(),
            identities: Mutex::default(),
            shown: Mutex::default(),
            ends: Mutex::default(),
        });
        let (accounts, credentials) =
            (Arc::new(AccountIndex::default()), Arc::new(FakeCredentials::default()));
        let (ticks, leader) = (Arc::new(LeaderClock::default()), Arc::new(WorkQueue::default()));
        let made = Arc::new(FakeAccounts::default());
        let rows = Arc::new(FakeRows::default());
        let ports = HubPorts {
            accounts: Arc::clone(&accounts),
            account_objects: Arc::clone(&made) as Arc<dyn AccountObjects>,
            credentials: Arc::clone(&credentials) as Arc<dyn CredentialSource>,
            agents: Arc::clone(&objects) as Arc<dyn AgentObjects>,
            agent_index: Arc::clone(&agents),
            assignment_rows: Arc::clone(&rows) as Arc<dyn AssignmentStore>,
            fence_rows: Arc::clone(&rows) as Arc<dyn FenceStore>,
            namespace_rows: Arc::clone(&rows) as Arc<dyn NamespaceStore>,
            cache,
            ticks: Arc::clone(&ticks),
            leader: Arc::clone(&leader),
            leadership: Arc::clone(&leadership),
            replicas,
            identities,
        };
        let hub = Hub::new(settings, ports);
        let bound = hub.bind().await.expect("an ephemeral port can be had");
        let (address, stop) = (bound.local_addr(), CancellationToken::new());
        let tasks = TaskRegistry::default();
        let served = tokio::spawn(bound.serve(Arc::clone(&hub), tasks.clone(), stop.clone()));
        Self {
            hub,
            accounts,
            objects,
            made,
            rows,
            credentials,
            ticks,
            leader,
            address,
            agents,
            leadership,
            tasks,
            stop,
            served,
        }
    }

    /// Shows the object of an agent of zone `z` in the watch.
    pub(super) fn show_agent(&self, agent_id: &str, approved: bool, session_id: &str, version: u64) {
        let spec = KubesvcAgentSpec { agent_id: agent_id.into(), zone_id: "z".into(), approved };
        let mut agent = KubesvcAgent::new(agent_id, spec);
        agent.metadata.resource_version = Some(version.to_string());
        let session = AgentSession { id: session_id.into(), ..AgentSession::default() };
        let status = KubesvcAgentStatus { session: Some(session), ..KubesvcAgentStatus::default() };
        agent.status = Some(KubesvcAgentStatus { approved_once: approved, ..status });
        self.agents.seen(agent);
    }

    /// Shows the object of an agent of zone `z` that a session connects to this process.
    pub(super) fn show_agent_here(&self, agent_id: &str, session_id: &str, version: u64) {
        let spec = KubesvcAgentSpec { agent_id: agent_id.into(), zone_id: "z".into(), approved: true };
        let name = kubesvc_core::object_names::agent_object_name(&agent_id.into(), &"z".into());
        let mut agent = KubesvcAgent::new(&name, spec);
        agent.metadata.resource_version = Some(version.to_string());
        let session = AgentSession {
            id: session_id.into(),
            replica: self.hub.context.settings.replica_id.clone(),
            incarnation: Some(self.hub.context.replicas.incarnation().to_owned()),
            ..AgentSession::default()
        };
        agent.status = Some(KubesvcAgentStatus {
            session: Some(session),
            connected: true,
            ..KubesvcAgentStatus::default()
        });
        self.agents.seen(agent);
    }

    /// Shows the object of an approved, absent agent of zone `z`.
    pub(super) fn show_agent_before(&self, agent_id: &str) {
        let mut agent = agent_object_in(agent_id, "z", "", 1);
        let status = agent.status.as_mut().expect("it has one");
        (status.connected, status.approved_once) = (false, true);
        self.agents.seen(agent);
    }

    pub(super) async fn channel(&self) -> Channel {
        let uri = format!("http://{}", self.address);
        Channel::from_shared(uri).expect("a URI").connect().await.expect("the hub listens")
    }

    /// Opens a stream and sends nothing.
    pub(super) async fn open(&self) -> TestAgent {
        let mut client =
            OperationsClient::new(self.channel().await).max_decoding_message_size(8 * 1024 * 1024);
        let (frames, outgoing) = mpsc::channel(16);
        let answer = client.get_ops(ReceiverStream::new(outgoing)).await.expect("the stream opens");
        TestAgent { frames: Some(frames), answers: answer.into_inner() }
    }

    /// Opens a stream and sends Hello.
    pub(super) async fn greet(&self, hello: ops::Hello) -> TestAgent {
        let agent = self.open().await;
        agent.say(agent_frame::Frame::Hello(hello)).await;
        agent
    }

    /// Connects an agent of zone `z`.
    pub(super) async fn agent(&self, agent_id: &str) -> TestAgent {
        let mut agent = self.greet(hello(agent_id)).await;
        agent.accepted().await;
        agent
    }
}

pub(super) struct TestAgent {
    pub(super) frames: Option<mpsc::Sender<ops::AgentFrame>>,
    pub(super) answers: Streaming<ops::HubFrame>,
}

impl TestAgent {
    pub(super) async fn say(&self, frame: agent_frame::Frame) {
        self.say_frame(ops::AgentFrame { frame: Some(frame), seq: 1, ack: 0 }).await;
    }

    pub(super) async fn say_frame(&self, frame: ops::AgentFrame) {
        let frames = self.frames.as_ref().expect("the stream was not closed");
        frames.send(frame).await.expect("the stream is open");
    }

    /// Returns the next frame except heartbeats, or how the stream ends.
    pub(super) async fn next(&mut self) -> Result<Option<hub_frame::Frame>, Status> {
        let answer = async {
            loop {
                match self.answers.message().await? {
                    None => return Ok(None),
                    Some(ops::HubFrame { frame: Some(hub_frame::Frame::Heartbeat(_)), .. }) => {}
                    Some(frame) => return Ok(frame.frame),
                }
            }
        };
        tokio::time::timeout(PATIENCE, answer).await.expect("a frame or the end comes in time")
    }

    pub(super) async fn accepted(&mut self) -> ops::Accepted {
        match self.next().await {
            Ok(Some(hub_frame::Frame::Accepted(accepted))) => accepted,
            other => panic!("expected Accepted, got {other:?}"),
        }
    }

    pub(super) async fn refused(&mut self) -> ops::Refused {
        let refused = match self.next().await {
            Ok(Some(hub_frame::Frame::Refused(refused))) => refused,
            other => panic!("expected Refused, got {other:?}"),
        };
        assert_eq!(self.next().await.expect("the stream ends well"), None);
        refused
    }

    pub(super) async fn added(&mut self) -> Vec<ops::AccountSpec> {
        match self.next().await {
            Ok(Some(hub_frame::Frame::AddAccounts(add))) => add.accounts,
            other => panic!("expected AddAccounts, got {other:?}"),
        }
    }

    pub(super) async fn deleted(&mut self) -> Vec<kubesvc_core::wire::common::AccountRef> {
        match self.next().await {
            Ok(Some(hub_frame::Frame::DeleteAccounts(delete))) => delete.accounts,
            other => panic!("expected DeleteAccounts, got {other:?}"),
        }
    }

    pub(super) async fn answer(&self, result: ops::AccountResult) {
        let results = ops::AccountResults { results: vec![result] };
        self.say(agent_frame::Frame::AccountResults(results)).await;
    }
}

pub(super) fn hello(agent_id: &str) -> ops::Hello {
    ops::Hello {
        agent_id: agent_id.into(),
        boot_id: BOOT_A.into(),
        connect_seq: 1,
        zone_id: "z".into(),
        version: "1.0.0".into(),
        protocol_min: 1,
        protocol_max: 1,
        ..Default::default()
    }
}

/// An account granted to zone `z` under epoch 1.
pub(super) fn account(name: &str) -> KubesvcAccount {
    let secret = SecretKeyReference { name: name.into(), key: None };
    let kubeconfig = KubeconfigSource { secret_ref: Some(secret), ..Default::default() };
    let spec = KubesvcAccountSpec { kubeconfig, ..Default::default() };
    let mut account = KubesvcAccount::new(name, spec);
    account.metadata.namespace = Some("ns".into());
    account.metadata.uid = Some(format!("uid-{name}"));
    account.metadata.generation = Some(1);
    let grant = Grant { phase: GrantPhase::Open, zone: Some("z".into()), generation: 1, definition: None };
    account.status = Some(KubesvcAccountStatus {
        state: Some(State::Activating),
        epoch: GrantEpoch(1),
        grant: Some(grant),
        zone_id: Some("z".into()),
        credential_version: Some("v1".into()),
        ..Default::default()
    });
    account
}

/// The same account with a changed status.
pub(super) fn with(
    mut account: KubesvcAccount,
    change: impl FnOnce(&mut KubesvcAccountStatus),
) -> KubesvcAccount {
    change(account.status.as_mut().expect("it has a status"));
    account
}

pub(super) fn held(account: &kubesvc_core::wire::common::AccountRef) -> ops::AccountResult {
    let identity = ops::ClusterIdentity {
        kube_system_uid: "cluster".into(),
        host: "https://one".into(),
        namespaces: vec!["default".into()],
        namespaces_count: 1,
        ..Default::default()
    };
    ops::AccountResult {
        account: Some(account.clone()),
        outcome: Some(ops::account_result::Outcome::Identity(identity)),
        ..Default::default()
    }
}

/// The object of an agent that is connected to another replica.
pub(super) fn agent_object_in(agent_id: &str, zone: &str, replica: &str, version: u64) -> KubesvcAgent {
    let spec = KubesvcAgentSpec { agent_id: agent_id.into(), zone_id: zone.into(), approved: true };
    let name = kubesvc_core::object_names::agent_object_name(&agent_id.into(), &ZoneId::from(zone));
    let mut agent = KubesvcAgent::new(&name, spec);
    agent.metadata.resource_version = Some(version.to_string());
    let session = AgentSession { id: "another".into(), replica: replica.into(), ..AgentSession::default() };
    agent.status =
        Some(KubesvcAgentStatus { session: Some(session), connected: true, ..KubesvcAgentStatus::default() });
    agent
}

pub(super) fn failed(account: &kubesvc_core::wire::common::AccountRef) -> ops::AccountResult {
    let class = kubesvc_core::wire::common::failure::Class::Unreachable.into();
    let failure =
        kubesvc_core::wire::common::Failure { class, message: "no route".into(), ..Default::default() };
    ops::AccountResult {
        account: Some(account.clone()),
        outcome: Some(ops::account_result::Outcome::Failure(failure)),
        ..Default::default()
    }
}

pub(super) fn dropped(account: &kubesvc_core::wire::common::AccountRef) -> ops::AccountResult {
    ops::AccountResult { account: Some(account.clone()), dropped: true, ..Default::default() }
}

/// Waits until a condition holds.
pub(super) async fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let looking = async {
        loop {
            if let Some(found) = look() {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    match tokio::time::timeout(PATIENCE, looking).await {
        Ok(found) => found,
        Err(_) => panic!("it did not come about that {what}"),
    }
}
