//! Requests that other replicas relay, at the replica that has the agent. They are never relayed again.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::BoxStream;
use futures::{StreamExt as _, stream};
use http::Method;
use http::request::Parts;
use hyper::body::Frame;
use prost::bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument as _;

use super::messages::{AnswerHead, AnswerLine, RelayedFor, cluster_headers, end_trailer};
pub use super::messages::{ApplySettingsAnswer, ForgetCall, RelayedCallError};
use crate::connected_agents::{
    AccountRequest, AccountResponse, AnsweringAgent, AskedAgent, MAX_ASKED_AGENTS, ReplicaRequests,
    RequestError, RequestErrorKind, Retry,
};
use kubesvc_core::AgentId;
use kubesvc_runtime::shutdown::spawn_named;

/// Number of parts of an answer that wait to be sent.
const MAX_WAITING_PARTS: usize = 4;
/// Maximum time that another replica may wait for an answer.
const MAX_WAIT: Duration = Duration::from_secs(660);

/// The parts of an answer: lines, bytes, and a trailer. Dropping them ends the request.
pub type AnswerParts = BoxStream<'static, io::Result<Frame<Bytes>>>;

/// Reads the head of a relayed request to this target, and the agents that were asked already. `None`: no agent of this
/// replica can be asked, or is expected back.
///
/// # Errors
/// The call is malformed.
pub fn read(
    here: &dyn ReplicaRequests,
    account_uid: &str,
    target: &str,
    head: &Parts,
) -> Result<Option<(AccountRequest, Vec<AgentId>)>, RelayedCallError> {
    let relayed_for = RelayedFor::read(&head.headers)?;
    let class = relayed_for.class()?;
    // A replica that lags behind would ask agents of the former zone.
    let is_behind = here.grant(account_uid).map_or(true, |grant| grant.epoch < relayed_for.epoch());
    let is_nothing_here =
        here.can_ask(account_uid, &relayed_for.asked).is_err_and(|error| match error.kind {
            RequestErrorKind::NoAccount | RequestErrorKind::NotUsable => true,
            RequestErrorKind::NoAgent => error.retry != Retry::Later,
            _ => false,
        });
    if is_behind || is_nothing_here {
        return Ok(None);
    }
    let method = if relayed_for.is_head { Method::HEAD } else { head.method.clone() };
    let request = AccountRequest::new(method, target).map_err(|_| RelayedCallError("its target"))?;
    let request = request.upgrading(relayed_for.upgrade);
    let request = AccountRequest {
        request_id: relayed_for.request_id,
        headers: cluster_headers(&head.headers),
        class,
        repeatable: relayed_for.repeatable,
        caller: relayed_for.caller,
        keep_answer: true,
        ..request.within(Duration::from_millis(relayed_for.deadline_ms).min(MAX_WAIT))
    };
    Ok(Some((request, relayed_for.asked)))
}

/// Called with the head of the answer, or with the failure.
pub type HeadObserver = Box<dyn FnOnce(Result<&AccountResponse, &RequestError>) + Send>;

/// Makes a relayed request. Returns the parts of its answer.
pub fn answer(
    here: Arc<dyn ReplicaRequests>,
    account_uid: String,
    (request, asked): (AccountRequest, Vec<AgentId>),
    observer: HeadObserver,
) -> AnswerParts {
    let span = tracing::info_span!("relayed request", requestId = request.request_id);
    let (parts, waiting) = mpsc::channel(MAX_WAITING_PARTS);
    let answering = async move {
        // An error: the other replica reads no more.
        let _ = make(&*here, &account_uid, request, asked, observer, &parts).await;
    };
    boxed(waiting, spawn_named("relayed request", answering.instrument(span)))
}

/// Asks a process of an agent for the answer of a write. Returns the parts of its answer; `None`: the process is not
/// connected here.
pub fn recall(
    here: Arc<dyn ReplicaRequests>,
    request_id: String,
    agent: AnsweringAgent,
    within: Duration,
) -> Option<AnswerParts> {
    if !here.has_process(&agent) {
        return None;
    }
    let (parts, waiting) = mpsc::channel(MAX_WAITING_PARTS);
    let recalling = async move {
        let deadline = Instant::now() + within.min(MAX_WAIT);
        let recalled = here.recall_here(&request_id, &agent, deadline, true);
        match while_read(&parts, recalled).await? {
            Ok(response) => say_answer(&parts, response).await,
            Err(error) => say(&parts, &AnswerLine::Failed(error)).await,
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

async fn give(parts: &mpsc::Sender<Frame<Bytes>>, part: Frame<Bytes>) -> Result<(), Gone> {
    parts.send(part).await.map_err(|_| Gone)
}

async fn say(parts: &mpsc::Sender<Frame<Bytes>>, line: &AnswerLine) -> Result<(), Gone> {
    give(parts, Frame::data(line.encode())).await
}

async fn end(parts: &mpsc::Sender<Frame<Bytes>>, end: Result<(), &RequestError>) -> Result<(), Gone> {
    give(parts, Frame::trailers(end_trailer(end))).await
}

/// Waits for something as long as the other replica reads.
async fn while_read<T>(
    parts: &mpsc::Sender<Frame<Bytes>>,
    waited: impl Future<Output = T>,
) -> Result<T, Gone> {
    tokio::select! {
        biased;
        () = parts.closed() => Err(Gone),
        done = waited => Ok(done),
    }
}

async fn make(
    here: &dyn ReplicaRequests,
    account_uid: &str,
    mut request: AccountRequest,
    mut asked: Vec<AgentId>,
    observer: HeadObserver,
    parts: &mpsc::Sender<Frame<Bytes>>,
) -> Result<(), Gone> {
    let (tell, mut told) = mpsc::channel(MAX_ASKED_AGENTS);
    request.on_asked = Some(Arc::new(move |agent: &AskedAgent| {
        // There is room for as many as are asked.
        let _ = tell.try_send(agent.clone());
    }));
    // Who is asked is recorded of a write before it is sent. Of a read, the answer says it.
    let is_read = matches!(request.method, Method::GET | Method::HEAD) && !request.upgrade;
    let sent = {
        let sending = here.send_here(account_uid, &request, &mut asked);
        tokio::pin!(sending);
        loop {
            tokio::select! {
                biased;
                () = parts.closed() => return Err(Gone),
                Some(agent) = told.recv(), if !is_read => say(parts, &AnswerLine::Asked(agent)).await?,
                sent = &mut sending => break sent,
            }
        }
    };
    observer(sent.as_ref());
    // The caller asks none of them again, and lets each forget how a write ended there.
    if !is_read || sent.is_err() {
        while let Ok(agent) = told.try_recv() {
            say(parts, &AnswerLine::Asked(agent)).await?;
        }
    }
    match sent {
        Ok(response) => say_answer(parts, response).await,
        Err(error) => {
            say(parts, &AnswerLine::Failed(error)).await?;
            end(parts, Ok(())).await
        }
    }
}

async fn say_answer(parts: &mpsc::Sender<Frame<Bytes>>, response: AccountResponse) -> Result<(), Gone> {
    say(parts, &AnswerLine::Asked(response.agent)).await?;
    say(parts, &AnswerLine::Head(AnswerHead::new(response.status, &response.headers))).await?;
    let mut body = response.body;
    loop {
        match while_read(parts, body.next()).await? {
            Some(Ok(bytes)) => give(parts, Frame::data(bytes)).await?,
            // As a trailer, and not by a reset, which would overtake the bytes before it.
            Some(Err(error)) => return end(parts, Err(&error)).await,
            None => return end(parts, Ok(())).await,
        }
    }
}

/// Parts as they come from a task, which ends with them.
fn boxed(parts: mpsc::Receiver<Frame<Bytes>>, task: AbortOnDropHandle<()>) -> AnswerParts {
    let parts = stream::unfold((parts, task), |(mut parts, task)| async move {
        let part = parts.recv().await?;
        Some((Ok(part), (parts, task)))
    });
    parts.boxed()
}
