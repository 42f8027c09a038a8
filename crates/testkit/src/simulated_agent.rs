//! An agent without clusters: it speaks the real protocol with a real hub and answers as a test configures it.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use kubesvc_core::wire::{
    MAX_MESSAGE_BYTES,
    common::AccountRef,
    ops::{
        Accepted, AccountResult, AccountResults, AgentFrame, ClusterIdentity, Goodbye, Heartbeat, HubFrame,
        Working, account_result::Outcome, agent_frame, hub_frame,
    },
};
use kubesvc_runtime::grpc::ops::operations_client::OperationsClient;
use parking_lot::Mutex;
use tokio::{sync::mpsc, task::JoinHandle};
use tokio_stream::{StreamExt, wrappers::UnboundedReceiverStream};
use tonic::{
    Streaming,
    transport::{Certificate, ClientTlsConfig, Endpoint},
};

use crate::kubeconfig::Identity;

pub mod frames;

use frames::{Introduction, NoSession, OnAdd, OnDelete, Policy, Received};

/// Time limit for the hub's answer to a hello.
const HELLO: Duration = Duration::from_secs(20);

struct State {
    policy: Policy,
    /// By account name; takes precedence over `policy`.
    policies: HashMap<String, Policy>,
    held: BTreeMap<String, AccountRef>,
    received: Vec<Received>,
    ended: Option<String>,
    heartbeats: bool,
    /// Unbounded: a test sends as much as it likes, and the hub always reads. `None` once this side has ended the
    /// stream.
    out: Option<mpsc::UnboundedSender<agent_frame::Frame>>,
}

struct Shared {
    state: Mutex<State>,
    /// Sequence number of the last handled frame of the hub.
    handled: AtomicU64,
}

/// A connected agent. Dropping it cuts the connection; [`SimulatedAgent::goodbye`] closes it properly.
pub struct SimulatedAgent {
    introduction: Introduction,
    accepted: Accepted,
    shared: Arc<Shared>,
    reader: JoinHandle<()>,
}

impl fmt::Debug for SimulatedAgent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimulatedAgent({} in {})", self.introduction.agent_id, self.introduction.zone_id)
    }
}

/// TLS to a hub.
#[derive(Debug, Clone)]
pub struct SimulatedTls {
    /// Who signs the hub's certificate, as PEM.
    pub authority: String,
    /// The agent's own certificate.
    pub identity: Option<Identity>,
}

impl SimulatedAgent {
    /// Connects to the hub at `host:port`, sends a hello and waits until it is accepted.
    ///
    /// # Errors
    ///
    /// A [`NoSession`] that says which step failed.
    pub async fn connect(hub: &str, introduction: Introduction, policy: Policy) -> Result<Self, NoSession> {
        Self::connect_over(hub, None, introduction, policy).await
    }

    /// Connects as [`Self::connect`] does, over TLS if it is given.
    ///
    /// # Errors
    ///
    /// A [`NoSession`] that says which step failed.
    pub async fn connect_over(
        hub: &str,
        tls: Option<&SimulatedTls>,
        introduction: Introduction,
        policy: Policy,
    ) -> Result<Self, NoSession> {
        let unreachable = |e: tonic::transport::Error| NoSession::Unreachable(format!("{hub}: {e:?}"));
        let scheme = if tls.is_some() { "https" } else { "http" };
        let mut endpoint = Endpoint::from_shared(format!("{scheme}://{hub}")).map_err(unreachable)?;
        if let Some(tls) = tls {
            let mut config = ClientTlsConfig::new()
                .ca_certificate(Certificate::from_pem(&tls.authority))
                .domain_name("localhost");
            if let Some(Identity { certificate, key }) = &tls.identity {
                config = config.identity(tonic::transport::Identity::from_pem(certificate, key));
            }
            endpoint = endpoint.tls_config(config).map_err(unreachable)?;
        }
        let channel = endpoint
            .tcp_nodelay(true)
            .initial_stream_window_size(u32::try_from(MAX_MESSAGE_BYTES).ok())
            .initial_connection_window_size(u32::try_from(2 * MAX_MESSAGE_BYTES).ok())
            .connect()
            .await
            .map_err(unreachable)?;
        let held = introduction.accounts_held.iter().map(|one| (one.uid.clone(), one.clone())).collect();
        #[expect(
            clippy::disallowed_methods,
            reason = "a simulated agent must never wait for the hub to read"
        )]
        let (out, waiting) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                policy,
                policies: HashMap::new(),
                held,
                received: Vec::new(),
                ended: None,
                heartbeats: true,
                out: Some(out),
            }),
            handled: AtomicU64::new(0),
        });
        shared.send(agent_frame::Frame::Hello(introduction.hello()));
        let (numbered, mut seq) = (Arc::downgrade(&shared), 0);
        let frames = UnboundedReceiverStream::new(waiting).map(move |frame| {
            seq += 1;
            let ack = numbered.upgrade().map_or(0, |shared| shared.handled.load(Ordering::Relaxed));
            AgentFrame { seq, ack, frame: Some(frame) }
        });
        let ended = |reason: String| NoSession::Ended(reason);
        let mut client = OperationsClient::new(channel)
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES);
        let answer = async {
            let mut frames = client.get_ops(frames).await.map_err(|e| ended(e.to_string()))?.into_inner();
            let first = frames.message().await.map_err(|e| ended(e.to_string()))?;
            Ok((frames, first.and_then(|first| first.frame)))
        };
        let answer = tokio::time::timeout(HELLO, answer).await;
        match answer.map_err(|_| ended(format!("nothing within {} s", HELLO.as_secs())))?? {
            (frames, Some(hub_frame::Frame::Accepted(accepted))) => {
                let every = Duration::from_millis(u64::from(accepted.heartbeat_ms.max(100)));
                let reader = tokio::spawn(read(Arc::clone(&shared), frames, every));
                Ok(Self { introduction, accepted, shared, reader })
            }
            (_, Some(hub_frame::Frame::Refused(refused))) => Err(NoSession::Refused(Box::new(refused))),
            (_, other) => Err(ended(format!("the first frame is {other:?}"))),
        }
    }

    /// The hub's answer to the hello.
    pub fn accepted(&self) -> &Accepted {
        &self.accepted
    }

    /// Returns the hello for the next connection of the same process, with the accounts that it holds now.
    pub fn again(&self) -> Introduction {
        Introduction {
            connect_seq: self.introduction.connect_seq + 1,
            accounts_held: self.held(),
            ..self.introduction.clone()
        }
    }

    /// Sets the answers from now on.
    pub fn set_policy(&self, policy: Policy) {
        self.shared.state.lock().policy = policy;
    }

    /// Sets the answers about the account of this name from now on.
    pub fn set_policy_for(&self, account: &str, policy: Policy) {
        self.shared.state.lock().policies.insert(account.into(), policy);
    }

    /// Sets whether the agent sends heartbeats. Defaults to true.
    pub fn set_heartbeats(&self, on: bool) {
        self.shared.state.lock().heartbeats = on;
    }

    /// Returns the accounts that the agent holds, by uid.
    pub fn held(&self) -> Vec<AccountRef> {
        self.shared.state.lock().held.values().cloned().collect()
    }

    /// Returns all frames of the hub after the first, oldest first.
    pub fn received(&self) -> Vec<Received> {
        self.shared.state.lock().received.clone()
    }

    /// Returns the accounts that the agent was told to add, oldest first.
    pub fn added(&self) -> Vec<AccountRef> {
        let frames = &self.shared.state.lock().received;
        let of = |one: &Received| match &one.frame {
            hub_frame::Frame::AddAccounts(add) => add.accounts.clone(),
            _ => Vec::new(),
        };
        frames.iter().flat_map(of).filter_map(|one| one.account).collect()
    }

    /// Returns the accounts that the agent was told to drop, oldest first.
    pub fn deleted(&self) -> Vec<AccountRef> {
        let frames = &self.shared.state.lock().received;
        let of = |one: &Received| match &one.frame {
            hub_frame::Frame::DeleteAccounts(delete) => delete.accounts.clone(),
            _ => Vec::new(),
        };
        frames.iter().flat_map(of).collect()
    }

    /// Sends any frame, valid or not.
    pub fn send(&self, frame: agent_frame::Frame) {
        self.shared.send(frame);
    }

    /// Reports an account as held with this identity, regardless of the policy.
    pub fn say_held(&self, account: AccountRef, identity: ClusterIdentity) {
        let outcome = Some(Outcome::Identity(identity));
        self.shared.say(vec![Answer { account, outcome, dropped: false }]);
    }

    /// Why the stream ended; `None` while it is open.
    pub fn ended(&self) -> Option<String> {
        self.shared.state.lock().ended.clone()
    }

    /// Sends a goodbye and waits until the hub has closed the stream.
    pub async fn goodbye(mut self) {
        self.shared.send(agent_frame::Frame::Goodbye(Goodbye {}));
        self.shared.end();
        let _ = tokio::time::timeout(HELLO, &mut self.reader).await;
    }
}

impl Drop for SimulatedAgent {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// Reads and answers frames until the stream ends.
async fn read(shared: Arc<Shared>, mut frames: Streaming<HubFrame>, every: Duration) {
    let mut heartbeat = tokio::time::interval(every);
    let ended = loop {
        let message = tokio::select! {
            message = frames.message() => message,
            _ = heartbeat.tick() => {
                shared.heartbeat();
                continue;
            }
        };
        match message {
            Ok(Some(HubFrame { frame: Some(frame), seq, .. })) => {
                answer(&shared, &frame);
                shared.handled.store(seq, Ordering::Relaxed);
                shared.state.lock().received.push(Received { at: Instant::now(), frame });
            }
            Ok(Some(HubFrame { frame: None, .. })) => {}
            Ok(None) => break "the hub closed the stream".to_owned(),
            Err(status) => break status.to_string(),
        }
    };
    shared.state.lock().ended = Some(ended);
}

fn answer(shared: &Arc<Shared>, frame: &hub_frame::Frame) {
    // Answers by their delay: one frame for each delay.
    let mut due: BTreeMap<Duration, Vec<Answer>> = BTreeMap::new();
    match frame {
        hub_frame::Frame::AddAccounts(add) => {
            for account in add.accounts.iter().filter_map(|one| one.account.clone()) {
                let policy = shared.policy(&account.name);
                let outcome = match policy.add {
                    OnAdd::Hold(identity) => Outcome::Identity(identity),
                    OnAdd::Fail(failure) => Outcome::Failure(failure),
                    OnAdd::Working => {
                        shared.send(agent_frame::Frame::Working(Working { account: Some(account) }));
                        continue;
                    }
                    OnAdd::Silent => continue,
                };
                due.entry(policy.add_after).or_default().push(Answer {
                    account,
                    outcome: Some(outcome),
                    dropped: false,
                });
            }
        }
        hub_frame::Frame::DeleteAccounts(delete) => {
            for account in delete.accounts.iter().cloned() {
                let policy = shared.policy(&account.name);
                let outcome = match policy.delete {
                    OnDelete::Drop => None,
                    OnDelete::Fail(failure) => Some(Outcome::Failure(failure)),
                    OnDelete::Silent => continue,
                };
                due.entry(policy.delete_after).or_default().push(Answer { account, outcome, dropped: true });
            }
        }
        hub_frame::Frame::Drain(_) => shared.end(),
        _ => {}
    }
    for (after, answers) in due {
        if after.is_zero() {
            shared.say(answers);
        } else {
            let shared = Arc::clone(shared);
            tokio::spawn(async move {
                tokio::time::sleep(after).await;
                shared.say(answers);
            });
        }
    }
}

struct Answer {
    account: AccountRef,
    outcome: Option<Outcome>,
    dropped: bool,
}

impl Shared {
    fn send(&self, frame: agent_frame::Frame) {
        self.state.lock().send(frame);
    }

    /// Ends this side's half of the stream, after the frames already sent.
    fn end(&self) {
        self.state.lock().out = None;
    }

    fn policy(&self, account: &str) -> Policy {
        let state = self.state.lock();
        state.policies.get(account).unwrap_or(&state.policy).clone()
    }

    fn heartbeat(&self) {
        let state = self.state.lock();
        if state.heartbeats {
            let accounts_live = u32::try_from(state.held.len()).unwrap_or(u32::MAX);
            state.send(agent_frame::Frame::Heartbeat(Heartbeat { accounts_live, ..Heartbeat::default() }));
        }
    }

    /// Sends answers in one frame and updates the held accounts at the same moment.
    fn say(&self, answers: Vec<Answer>) {
        let mut state = self.state.lock();
        let mut results = Vec::with_capacity(answers.len());
        for Answer { account, outcome, dropped } in answers {
            match (&outcome, dropped) {
                (Some(Outcome::Identity(_)), _) => {
                    state.held.insert(account.uid.clone(), account.clone());
                }
                (None, true)
                    if state.held.get(&account.uid).is_some_and(|held| held.epoch <= account.epoch) =>
                {
                    state.held.remove(&account.uid);
                }
                _ => {}
            }
            results.push(AccountResult {
                account: Some(account),
                outcome,
                dropped,
                ..AccountResult::default()
            });
        }
        state.send(agent_frame::Frame::AccountResults(AccountResults { results }));
    }
}

impl State {
    fn send(&self, frame: agent_frame::Frame) {
        // After the end of the stream no one listens; `ended` has the reason.
        if let Some(out) = &self.out {
            let _ = out.send(frame);
        }
    }
}
