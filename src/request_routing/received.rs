//! Requests that other replicas relay, at the replica that has the agent. They are never relayed again.

use std::sync::Arc;
use std::time::Duration;

use futures::stream::BoxStream;
use futures::{FutureExt as _, StreamExt as _, stream};
use http::Method;
use prost::bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument as _;

pub use super::messages::{ApplySettingsAnswer, ForgetCall, RelayedCallError, RelayedFor};
use super::messages::{MAX_DATA_BYTES, RelayFrame, read_relayed_body};
use super::relaying::data_frames;
use crate::connected_agents::{
    AccountResponse, AfterFailure, AnsweringAgent, AskedAgent, LONG_HEAD_TIMEOUT, MAX_ASKED_AGENTS,
    PreparedRequest, ReplicaRequests, RequestError, SendFailure, UpgradedBytes, is_long,
};
use crate::peers::{KEEP_ALIVE_INTERVAL, PeerFrames};
use kubesvc_core::AgentId;
use kubesvc_core::wire::ops::Head;
use kubesvc_runtime::request_channel::wire_headers;
use kubesvc_runtime::shutdown::spawn_named;

/// Number of groups of frames that wait to be written.
const MAX_WAITING_GROUPS: usize = 4;
/// Maximum time that another replica may wait for an answer.
const MAX_WAIT: Duration = Duration::from_secs(660);

/// A request that another replica relays.
#[derive(Debug)]
pub struct ReceivedRequest {
    account_uid: String,
    request: PreparedRequest,
    asked: Vec<AgentId>,
}

/// Reads a relayed request. `None`: no agent of this replica can be asked, or is expected back.
///
/// # Errors
/// The call is malformed.
pub fn read(
    here: &dyn ReplicaRequests,
    account_uid: &str,
    relayed_for: &str,
    body: Bytes,
) -> Result<Option<ReceivedRequest>, RelayedCallError> {
    let relayed_for = RelayedFor::read(relayed_for)?;
    let class = relayed_for.class().ok_or_else(RelayedCallError::class)?;
    let relayed = read_relayed_body(body)?;
    // A replica that lags behind would ask agents of the former zone.
    let is_behind = here.grant(account_uid).map_or(true, |grant| grant.epoch < relayed_for.epoch());
    let is_nothing_here = here.can_ask(account_uid, &relayed_for.asked).is_err_and(|error| {
        matches!(
            error,
            RequestError::NoAccount
                | RequestError::NotUsable { .. }
                | RequestError::NoAgent { is_expected: false, .. }
        )
    });
    if is_behind || is_nothing_here {
        return Ok(None);
    }
    let is_long = is_long(&relayed.method, &relayed.target, relayed.upgrade);
    let most = if is_long { LONG_HEAD_TIMEOUT } else { MAX_WAIT };
    let request = PreparedRequest {
        request_id: relayed_for.request_id,
        method: relayed.method,
        target: relayed.target,
        headers: relayed.headers,
        body: relayed.body,
        upgrade: relayed.upgrade,
        class,
        repeatable: relayed.repeatable,
        deadline: Instant::now() + Duration::from_millis(relayed_for.deadline_ms).min(most),
        principal: relayed_for.principal,
        on_asked: None,
        keep_answer: true,
    };
    Ok(Some(ReceivedRequest { account_uid: account_uid.to_owned(), request, asked: relayed_for.asked }))
}

impl ReceivedRequest {
    /// Whether both sides send frames.
    pub fn is_upgrade(&self) -> bool {
        self.request.upgrade
    }

    /// Makes the request. Returns the frames of its answer, to be signed. Dropping them cancels it.
    pub fn frames(
        self,
        here: Arc<dyn ReplicaRequests>,
        caller: Option<PeerFrames>,
    ) -> BoxStream<'static, Bytes> {
        let span = tracing::info_span!("relayed request", requestId = self.request.request_id);
        let (frames, waiting) = mpsc::channel(MAX_WAITING_GROUPS);
        let answering = async move {
            // An error: the other replica reads no more.
            let _ = answer(here, self, caller, &frames).await;
        };
        boxed(waiting, spawn_named("relayed request", answering.instrument(span)))
    }
}

/// Asks a process of an agent for the answer of a write. Returns the frames of its answer; `None`: the process is not
/// connected here.
pub fn recall(
    here: Arc<dyn ReplicaRequests>,
    request_id: String,
    agent: AnsweringAgent,
    within: Duration,
) -> Option<BoxStream<'static, Bytes>> {
    if !here.has_process(&agent) {
        return None;
    }
    let (frames, waiting) = mpsc::channel(MAX_WAITING_GROUPS);
    let recalling = async move {
        let deadline = Instant::now() + within.min(MAX_WAIT);
        let recalled = here.recall_here(&request_id, &agent, deadline, true);
        let recalled = while_alive(&frames, recalled).await?;
        match recalled {
            Ok(response) => say_answer(&frames, response).await,
            Err(failure) => say(&frames, RelayFrame::NotRecalled(failure)).await,
        }
    };
    Some(boxed(waiting, spawn_named("relayed recall", async move { drop(recalling.await) })))
}

/// Lets agents of this replica forget how writes ended.
pub fn forget(here: &dyn ReplicaRequests, call: &ForgetCall) {
    for process in &call.processes {
        for request_id in &process.request_ids {
            here.forget_here(&process.agent, request_id);
        }
    }
}

/// The other replica reads no more.
struct Gone;

async fn say(frames: &mpsc::Sender<Vec<Bytes>>, frame: RelayFrame) -> Result<(), Gone> {
    frames.send(vec![frame.encode()]).await.map_err(|_| Gone)
}

/// Sends frames that leave together.
async fn say_all(frames: &mpsc::Sender<Vec<Bytes>>, group: &[RelayFrame]) -> Result<(), Gone> {
    frames.send(group.iter().map(RelayFrame::encode).collect()).await.map_err(|_| Gone)
}

/// Waits for something, and shows meanwhile that this side is alive.
async fn while_alive<T>(
    frames: &mpsc::Sender<Vec<Bytes>>,
    waited: impl Future<Output = T>,
) -> Result<T, Gone> {
    tokio::pin!(waited);
    loop {
        tokio::select! {
            biased;
            () = frames.closed() => return Err(Gone),
            done = &mut waited => return Ok(done),
            () = sleep(KEEP_ALIVE_INTERVAL) => say(frames, RelayFrame::KeepAlive).await?,
        }
    }
}

async fn answer(
    here: Arc<dyn ReplicaRequests>,
    received: ReceivedRequest,
    caller: Option<PeerFrames>,
    frames: &mpsc::Sender<Vec<Bytes>>,
) -> Result<(), Gone> {
    let ReceivedRequest { account_uid, mut request, asked } = received;
    let (tell, mut told) = mpsc::channel(MAX_ASKED_AGENTS);
    // Who is asked is recorded of a write before it is sent. Of a read, the answer says it.
    let is_read = matches!(request.method, Method::GET | Method::HEAD) && !request.upgrade;
    if !is_read {
        request.on_asked = Some(Arc::new(move |agent: &AskedAgent| {
            // There is room for as many as are asked.
            let _ = tell.try_send(agent.clone());
        }));
    }
    let mut upgraded = caller.map(bytes_of_caller);
    let sent = {
        let sending = here.send_here(&account_uid, &request, &mut upgraded, &asked);
        tokio::pin!(sending);
        loop {
            tokio::select! {
                biased;
                () = frames.closed() => return Err(Gone),
                Some(agent) = told.recv() => say(frames, RelayFrame::Asked(agent)).await?,
                sent = &mut sending => break sent,
                () = sleep(KEEP_ALIVE_INTERVAL) => say(frames, RelayFrame::KeepAlive).await?,
            }
        }
    };
    // The caller lets each agent that was asked forget how the write ended there.
    while let Ok(agent) = told.try_recv() {
        say(frames, RelayFrame::Asked(agent)).await?;
    }
    match sent {
        Ok(response) => say_answer(frames, response).await,
        Err(failure) => say(frames, RelayFrame::Failed(failure)).await,
    }
}

async fn say_answer(frames: &mpsc::Sender<Vec<Bytes>>, response: AccountResponse) -> Result<(), Gone> {
    let headers = wire_headers(&response.headers);
    let head = Head { status: response.status.as_u16().into(), headers };
    let mut start = vec![RelayFrame::Asked(response.agent), RelayFrame::Head(head)];
    let (mut body, mut bytes) = (response.body, 0);
    // A short answer leaves at once.
    while bytes < MAX_DATA_BYTES {
        let Some(part) = body.next().now_or_never() else { break };
        bytes += part.as_ref().and_then(|part| part.as_ref().ok()).map_or(0, Bytes::len);
        let is_last = !matches!(part, Some(Ok(_)));
        start.extend(frames_of(part));
        if is_last {
            return say_all(frames, &start).await;
        }
    }
    say_all(frames, &start).await?;
    loop {
        let part = while_alive(frames, body.next()).await?;
        let is_last = !matches!(part, Some(Ok(_)));
        for frame in frames_of(part) {
            say(frames, frame).await?;
        }
        if is_last {
            return Ok(());
        }
    }
}

/// The frames of a part of a body, or of its end.
fn frames_of(part: Option<Result<Bytes, RequestError>>) -> Vec<RelayFrame> {
    match part {
        Some(Ok(bytes)) => data_frames(bytes).collect(),
        Some(Err(error)) => {
            vec![RelayFrame::Failed(SendFailure { error, next: AfterFailure::GiveUp, asked: Vec::new() })]
        }
        None => vec![RelayFrame::End],
    }
}

/// What the caller of an upgraded request sends, from its frames.
fn bytes_of_caller(frames: PeerFrames) -> UpgradedBytes {
    let parts = stream::unfold(Some(frames), |frames| async move {
        let mut frames = frames?;
        loop {
            let broken = |why: &str| Some((Err(std::io::Error::other(why.to_owned())), None));
            let frame = match frames.next().await {
                Ok(Some(frame)) => frame,
                Ok(None) => return broken("the other replica ended it"),
                Err(error) => return broken(&error.to_string()),
            };
            return match RelayFrame::decode(frame) {
                Some(RelayFrame::KeepAlive) => continue,
                Some(RelayFrame::Data(bytes)) => Some((Ok(bytes), Some(frames))),
                Some(RelayFrame::End) => None,
                _ => broken("a frame was not in order"),
            };
        }
    });
    parts.boxed()
}

/// Frames as they come from a task, which ends with them.
fn boxed(groups: mpsc::Receiver<Vec<Bytes>>, task: AbortOnDropHandle<()>) -> BoxStream<'static, Bytes> {
    let groups = stream::unfold((groups, task), |(mut groups, task)| async move {
        let group = groups.recv().await?;
        Some((stream::iter(group), (groups, task)))
    });
    groups.flatten().boxed()
}
