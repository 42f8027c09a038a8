//! The feeder: an agent without clusters that sends recorded batches to the hub over its real port, as fast as the hub
//! lets it.

use std::{collections::VecDeque, time::Duration};

use kubesvc_core::wire::{
    MAX_MESSAGE_BYTES,
    common::{Fence, Scope},
    events::{
        Batch, Begin, CacheDown, CacheUp, Checkpoint, Open, Ping, ScopeDeclaration, SyncStart, Synced, Want,
        cache_down, cache_up,
    },
    ops::hub_frame,
};
use kubesvc_runtime::grpc::events::caching_client::CachingClient;
use prost::Message as _;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Streaming, transport::Endpoint};

use crate::{
    objects::ZONE,
    operator::Operator,
    recorded::{BODY_BYTES, KIND, Recorded, SCOPE},
    tables::AccountObject,
};
use kubesvc_testkit::{
    simulated_agent::{SimulatedAgent, frames::Introduction},
    wait::try_eventually,
};

/// Maximum number of events in a batch, as the agent sends them: together with bodies of 4 KB, also the bytes of one.
pub(crate) const BATCH_EVENTS: usize = (1 << 20) / BODY_BYTES;
/// Credit of a stream to which nothing is lent, in bytes.
const BASE_CREDIT: usize = 64 << 10;
/// Maximum loan that the hub gives a stream, in bytes.
const MAX_LOAN: usize = 4 << 20;
/// Time limit for an answer of the hub.
const ANSWER: Duration = Duration::from_secs(60);

/// A connected feeder that may stream all accounts.
pub(crate) struct Feeder {
    // The stream lives as long as its session.
    _agent: SimulatedAgent,
    frames: mpsc::Sender<CacheUp>,
    answers: Streaming<CacheDown>,
    accounts: Vec<Fed>,
    /// Bytes that may be sent.
    credit: usize,
    /// Whether a Want is not answered.
    asked: bool,
    /// Account, number and size of each batch that is not acknowledged.
    in_flight: VecDeque<(usize, u64, usize)>,
}

/// An account, and the number of its last batch.
#[derive(Debug)]
struct Fed {
    name: String,
    fence: Fence,
    seq: u64,
}

type Result<T> = std::result::Result<T, String>;

impl Feeder {
    /// Connects, waits until the feeder is elected for `count` accounts, and declares one scope for each.
    pub(crate) async fn connect(operator: &Operator<'_>, hub: &str, count: usize) -> Result<Self> {
        let capabilities = ["caching/1", "zstd/1"].map(str::to_owned).to_vec();
        let introduction = Introduction { capabilities, ..Introduction::new("agent-0", ZONE) };
        let agent = operator.connect(&introduction).await?;
        let accounts = assignments(&agent, count).await.map_err(|reason| operator.explain(&reason))?;
        let channel = Endpoint::from_shared(format!("http://{hub}")).map_err(|e| e.to_string())?;
        let channel = channel.tcp_nodelay(true).connect().await.map_err(|e| format!("{hub}: {e}"))?;
        let mut client = CachingClient::new(channel)
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES);
        let (frames, outgoing) = mpsc::channel(64);
        let accepted = agent.accepted();
        let open = Open {
            session_id: accepted.session_id.clone(),
            agent_id: introduction.agent_id.clone(),
            boot_id: introduction.boot_id.clone(),
            replica_id: accepted.replica_id.clone(),
        };
        let first = CacheUp { frame: Some(cache_up::Frame::Open(open)), ..CacheUp::default() };
        frames.send(first).await.map_err(|e| e.to_string())?;
        let answers = client.stream(ReceiverStream::new(outgoing)).await.map_err(|e| e.to_string())?;
        let (answers, in_flight) = (answers.into_inner(), VecDeque::new());
        let mut feeder =
            Self { _agent: agent, frames, answers, accounts, credit: 0, asked: false, in_flight };
        feeder.begin().await?;
        Ok(feeder)
    }

    /// Number of accounts.
    pub(crate) fn accounts(&self) -> usize {
        self.accounts.len()
    }

    /// Gives each object to one of the accounts.
    pub(crate) fn spread<'o>(
        &self,
        objects: &'o [Recorded],
    ) -> impl Iterator<Item = (usize, &'o Recorded)> + use<'o> {
        let accounts = self.accounts.len();
        objects.iter().enumerate().map(move |(at, object)| (at % accounts, object))
    }

    /// Declares the scope of each account, and an empty list of it, so that what follows are changes.
    async fn begin(&mut self) -> Result<()> {
        let [group, version, kind, plural] = KIND.map(str::to_owned);
        let scope = Some(Scope { group, version, kind, plural, namespace: String::new() });
        let declared =
            ScopeDeclaration { scope_id: SCOPE, scope, shape: "bench".into(), filter: String::new() };
        for at in 0..self.accounts.len() {
            let fence = Some(self.accounts[at].fence.clone());
            let begin = Begin { fence, scopes: vec![declared.clone()], last: true, ..Begin::default() };
            self.send(cache_up::Frame::Begin(begin)).await?;
            while !matches!(self.answer().await?, cache_down::Frame::Resume(resume) if resume.last) {}
        }
        let sync_key = ulid::Ulid::generate().to_string();
        let starts = (0..self.accounts.len()).map(|at| {
            let start = SyncStart { scope_id: SCOPE, sync_key: sync_key.clone() };
            let synced =
                Synced { scope_id: SCOPE, sync_key: sync_key.clone(), rv: "1".into(), ..Synced::default() };
            (at, Batch { sync_starts: vec![start], synced: vec![synced], ..Batch::default() })
        });
        let starts: Vec<_> = starts.collect();
        let starts = self.number(starts);
        self.feed(starts).await
    }

    /// These objects in the order in which they are fed: at most [`BATCH_EVENTS`] of each account in turn.
    fn in_turns<'o>(
        &self,
        objects: impl IntoIterator<Item = (usize, &'o Recorded)>,
    ) -> Vec<(usize, Vec<&'o Recorded>)> {
        let mut of_accounts: Vec<Vec<&Recorded>> = vec![Vec::new(); self.accounts.len()];
        for (account, object) in objects {
            of_accounts[account].push(object);
        }
        let longest = of_accounts.iter().map(Vec::len).max().unwrap_or_default();
        let turns = (0..longest).step_by(BATCH_EVENTS).flat_map(|begin| {
            of_accounts.iter().enumerate().map(move |(account, objects)| {
                let turn = objects.iter().skip(begin).take(BATCH_EVENTS).copied();
                (account, turn.collect::<Vec<_>>())
            })
        });
        turns.filter(|(_, objects)| !objects.is_empty()).collect()
    }

    /// Batches of these objects for the accounts in turn.
    pub(crate) fn record<'o>(
        &mut self,
        objects: impl IntoIterator<Item = (usize, &'o Recorded)>,
    ) -> Vec<(usize, Batch)> {
        let turns = self.in_turns(objects).into_iter();
        let batches = turns.map(|(account, objects)| (account, batch(&objects))).collect();
        self.number(batches)
    }

    /// These objects with their accounts' names, in the order in which they are fed.
    pub(crate) fn account_objects<'o>(
        &'o self,
        objects: impl IntoIterator<Item = (usize, &'o Recorded)>,
    ) -> Vec<AccountObject<'o>> {
        let turns = self.in_turns(objects).into_iter();
        turns
            .flat_map(|(account, objects)| {
                let account = self.accounts[account].name.as_str();
                objects.into_iter().map(move |object| AccountObject { account, object })
            })
            .collect()
    }

    /// Numbers batches and names their fences.
    fn number(&mut self, mut batches: Vec<(usize, Batch)>) -> Vec<(usize, Batch)> {
        for (account, batch) in &mut batches {
            let fed = &mut self.accounts[*account];
            batch.fence = Some(fed.fence.clone());
            batch.prev = fed.seq;
            fed.seq += 1;
            batch.seq = fed.seq;
        }
        batches
    }

    /// Sends recorded batches, and returns when the last one is acknowledged.
    pub(crate) async fn feed(&mut self, batches: Vec<(usize, Batch)>) -> Result<()> {
        let mut left: usize = batches.iter().map(|(_, batch)| batch.encoded_len()).sum();
        let mut batches = batches.into_iter().peekable();
        while batches.peek().is_some() || !self.in_flight.is_empty() {
            let size = batches.peek().map(|(_, batch)| batch.encoded_len());
            match size {
                Some(size) if size <= self.credit => {
                    let Some((account, batch)) = batches.next() else { continue };
                    self.credit -= size;
                    left -= size;
                    self.in_flight.push_back((account, batch.seq, size));
                    self.send(cache_up::Frame::Batch(batch)).await?;
                    continue;
                }
                Some(_) if !self.asked => {
                    let bytes = (left - self.credit).min(MAX_LOAN);
                    self.asked = true;
                    let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
                    self.send(cache_up::Frame::Want(Want { bytes })).await?;
                }
                _ => {}
            }
            self.answer().await?;
        }
        self.give_back().await
    }

    /// Gives back what is lent and unused: the hub ends a stream that keeps it for a minute.
    async fn give_back(&mut self) -> Result<()> {
        self.send(cache_up::Frame::Ping(Ping { nonce: 1 })).await?;
        // All credit for what is committed comes before the answer.
        while !matches!(self.answer().await?, cache_down::Frame::Pong(_)) {}
        self.credit = self.credit.min(BASE_CREDIT);
        self.asked = false;
        self.send(cache_up::Frame::Want(Want { bytes: 0 })).await
    }

    async fn send(&self, frame: cache_up::Frame) -> Result<()> {
        self.frames
            .send(CacheUp { frame: Some(frame), ..CacheUp::default() })
            .await
            .map_err(|e| format!("the stream ended: {e}"))
    }

    /// The next frame of the hub, after what it says of credit and commits is taken into account.
    async fn answer(&mut self) -> Result<cache_down::Frame> {
        let answer = tokio::time::timeout(ANSWER, self.answers.message()).await;
        let answer = answer.map_err(|_| "the hub does not answer".to_owned())?.map_err(|e| e.to_string())?;
        let frame = answer.and_then(|down| down.frame).ok_or("the hub ended the stream")?;
        match &frame {
            cache_down::Frame::Credit(credit) => {
                self.credit += usize::try_from(credit.bytes).unwrap_or(usize::MAX);
                self.asked = false;
            }
            cache_down::Frame::Ack(ack) => {
                let uid = ack.fence.as_ref().map(|fence| fence.account_uid.as_str()).unwrap_or_default();
                let accounts = &self.accounts;
                self.in_flight.retain(|(account, seq, _)| {
                    accounts[*account].fence.account_uid != uid || *seq > ack.seq
                });
                self.asked = false;
            }
            cache_down::Frame::Rewind(_)
            | cache_down::Frame::Revoked(_)
            | cache_down::Frame::Relist(_)
            | cache_down::Frame::Closed(_) => return Err(format!("the hub says {frame:?}")),
            _ => {}
        }
        Ok(frame)
    }
}

/// A batch of these objects, with a checkpoint at the last one.
fn batch(objects: &[&Recorded]) -> Batch {
    let rv = objects.last().map(|object| object.version.clone()).unwrap_or_default();
    let checkpoints = vec![Checkpoint { scope_id: SCOPE, rv }];
    Batch { events: objects.iter().map(|object| object.event()).collect(), checkpoints, ..Batch::default() }
}

/// Waits until the agent is told to stream this many accounts.
async fn assignments(agent: &SimulatedAgent, count: usize) -> Result<Vec<Fed>> {
    try_eventually("the election of the feeder", Duration::from_secs(60), async || {
        let mut accounts: Vec<Fed> = Vec::new();
        for received in agent.received() {
            let hub_frame::Frame::CachingAssignment(told) = received.frame else { continue };
            let (Some(fence), Some(account), true) = (told.fence, told.account, told.on) else { continue };
            accounts.retain(|fed| fed.fence.account_uid != fence.account_uid);
            accounts.push(Fed { name: account.name, fence, seq: 0 });
        }
        accounts.sort_by(|one, other| one.name.cmp(&other.name));
        if accounts.len() == count { Ok(accounts) } else { Err(format!("{} of {count}", accounts.len())) }
    })
    .await
}
