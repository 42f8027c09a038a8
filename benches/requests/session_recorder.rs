//! A proxy between agent and hub that reads the frames of the agent's session on their way: when heartbeats pass, and how
//! long an `AddAccounts` waits for its answer. It delays nothing, and what else is on the connection passes unread.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use kubesvc_core::wire::ops::{AgentFrame, HubFrame, agent_frame, hub_frame};
use parking_lot::Mutex;
use prost::Message as _;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};
use tokio_util::task::AbortOnDropHandle;

use crate::session_data::SessionData;

/// Bytes of a gRPC message before its content: whether that is compressed, and its length.
const MESSAGE_HEAD_BYTES: usize = 5;

/// A running proxy. It ends when it is dropped.
pub(crate) struct SessionRecorder {
    address: String,
    recorded: Arc<Mutex<Recorded>>,
    _task: AbortOnDropHandle<()>,
}

/// What passed.
#[derive(Default)]
struct Recorded {
    /// Heartbeats of the agent, and of the hub.
    heartbeats: [Vec<Instant>; 2],
    /// When an account without an answer was sent, by its name.
    sent: HashMap<String, Instant>,
    /// How long an account waited for its last answer, by its name.
    answered: HashMap<String, Duration>,
}

impl SessionRecorder {
    /// Listens on a free port, and forwards to `hub`.
    pub(crate) async fn start(hub: &str) -> Result<Self, String> {
        let listener = TcpListener::bind("127.0.0.1:0").await.map_err(|e| e.to_string())?;
        let address = listener.local_addr().map_err(|e| e.to_string())?.to_string();
        let recorded = Arc::new(Mutex::new(Recorded::default()));
        let (hub, shared) = (hub.to_owned(), Arc::clone(&recorded));
        let task = tokio::spawn(async move {
            while let Ok((agent, _)) = listener.accept().await {
                tokio::spawn(forward(agent, hub.clone(), Arc::clone(&shared)));
            }
        });
        Ok(Self { address, recorded, _task: AbortOnDropHandle::new(task) })
    }

    /// Where the agent dials it.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// When heartbeats passed: those of the agent, and those of the hub.
    pub(crate) fn heartbeats(&self) -> [Vec<Instant>; 2] {
        self.recorded.lock().heartbeats.clone()
    }

    /// Time from the frame that sent an account to the agent until its answer; `None`: there was none.
    pub(crate) fn answered(&self, account: &str) -> Option<Duration> {
        self.recorded.lock().answered.get(account).copied()
    }
}

impl Recorded {
    fn record_of_agent(&mut self, message: &[u8]) {
        match AgentFrame::decode(message).ok().and_then(|frame| frame.frame) {
            Some(agent_frame::Frame::Heartbeat(_)) => self.heartbeats[0].push(Instant::now()),
            Some(agent_frame::Frame::AccountResults(answers)) => {
                for account in answers.results.into_iter().filter_map(|answer| answer.account) {
                    if let Some(sent) = self.sent.remove(&account.name) {
                        self.answered.insert(account.name, sent.elapsed());
                    }
                }
            }
            _ => {}
        }
    }

    fn record_of_hub(&mut self, message: &[u8]) {
        match HubFrame::decode(message).ok().and_then(|frame| frame.frame) {
            Some(hub_frame::Frame::Heartbeat(_)) => self.heartbeats[1].push(Instant::now()),
            Some(hub_frame::Frame::AddAccounts(add)) => {
                let accounts = add.accounts.into_iter().filter_map(|one| one.account);
                self.sent.extend(accounts.map(|account| (account.name, Instant::now())));
            }
            _ => {}
        }
    }
}

async fn forward(agent: TcpStream, hub: String, recorded: Arc<Mutex<Recorded>>) {
    let Ok(hub) = TcpStream::connect(&hub).await else { return };
    let _ = (agent.set_nodelay(true), hub.set_nodelay(true));
    let ((from_agent, to_agent), (from_hub, to_hub)) = (agent.into_split(), hub.into_split());
    tokio::select! {
        () = carry(from_agent, to_hub, SessionData::from_agent(), &recorded, Recorded::record_of_agent) => {}
        () = carry(from_hub, to_agent, SessionData::from_hub(), &recorded, Recorded::record_of_hub) => {}
    }
}

async fn carry(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut session: SessionData,
    recorded: &Mutex<Recorded>,
    record: fn(&mut Recorded, &[u8]),
) {
    let (mut buffer, mut data) = (vec![0; 64 * 1024], Vec::new());
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        data.extend(session.of(&buffer[..read]));
        while let Some(message) = next_message(&mut data) {
            record(&mut recorded.lock(), &message);
        }
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}

/// Takes the next gRPC message from data, if it is whole.
fn next_message(data: &mut Vec<u8>) -> Option<Vec<u8>> {
    let head: [u8; MESSAGE_HEAD_BYTES] = data.get(..MESSAGE_HEAD_BYTES)?.try_into().ok()?;
    let [_is_compressed, length @ ..] = head;
    let end = MESSAGE_HEAD_BYTES + usize::try_from(u32::from_be_bytes(length)).ok()?;
    let message = data.get(MESSAGE_HEAD_BYTES..end)?.to_vec();
    data.drain(..end);
    Some(message)
}
