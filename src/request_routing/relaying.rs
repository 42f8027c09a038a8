//! A request that the agents of another replica make, at the replica that asks: the call, and its answer as it comes.

use std::io;
use std::time::Duration;

use futures::{StreamExt as _, stream};
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use prost::bytes::{Buf as _, Bytes, BytesMut};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::RequestRouter;
use super::messages::{AnswerLine, MAX_LINE_BYTES, RelayedFor, proxy_path, read_end, relayed_headers};
use crate::connected_agents::{
    AccountGrant, AccountRequest, AccountResponse, AskedAgent, Repetition, RequestError,
    RequestErrorKind as Kind, Retry, Suspects, UpgradedBytes,
};
use crate::peers::{CallBody, CallError, NOT_HERE, RelayedAnswer, Replica};
use kubesvc_core::AgentId;
use kubesvc_core::requests::MAX_WRITE_ANSWER_BYTES;
use kubesvc_runtime::telemetry::errors::chain;

/// Slack beyond a request's deadline for the other replica to say that it has passed.
const DEADLINE_SLACK: Duration = Duration::from_millis(500);

/// Uid and grant of an account.
pub(super) type RelayedAccount<'r> = (&'r str, &'r AccountGrant);

/// The head of an answer, and what follows it.
struct Begun {
    /// The agent that was asked last.
    agent: AskedAgent,
    status: StatusCode,
    headers: HeaderMap,
    answer: AnswerReader,
}

impl RequestRouter {
    /// Makes a request at another replica. Adds the agents that it asks to `asked_there`, as far as it says.
    pub(super) async fn relay_to(
        &self,
        replica: &Replica,
        (uid, grant): RelayedAccount<'_>,
        request: &AccountRequest,
        asked: &[AgentId],
        asked_there: &mut Vec<AskedAgent>,
    ) -> Result<AccountResponse, RequestError> {
        // Agents that may be asked there, in case it does not say which one it asked.
        let suspects = self.suspects(&grant.zone, &replica.id);
        let left = request.deadline.saturating_duration_since(Instant::now());
        let relayed_for = RelayedFor::new(grant, request, left, asked);
        let deadline = request.deadline + DEADLINE_SLACK;
        // Ends what the caller of an upgraded request sends, when its answer ends or is dropped.
        let ended = CancellationToken::new();
        let ends = ended.clone().drop_guard();
        let (give, given) = oneshot::channel();
        let body = match request.upgrade {
            true => upgraded_body(given, ended),
            false => Full::new(request.body.clone()).map_err(|never| match never {}).boxed_unsync(),
        };
        let url = self.peers.url(replica, &proxy_path(uid, &request.target));
        let call = relayed_call(request, &relayed_for, &url, body)?;
        let RelayedAnswer { body, slot } = match self.peers.relay_request(replica, call, deadline).await {
            Ok(answer) => answer,
            Err(error) => return Err(self.not_relayed(error, grant, request, suspects)),
        };
        let reading = read_head(AnswerReader::new(body), request, asked_there);
        let begun = timeout_at(deadline, reading).await;
        let begun = begun.unwrap_or_else(|_| Err("the time is over".to_owned()));
        if !matches!(begun, Ok(Ok(_))) {
            self.metrics.failed.inc();
        }
        let mut begun = begun.map_err(|why| {
            let last = asked_there.last().map(|agent| agent.process.clone());
            lost(request, &why, last.map_or(suspects, Suspects::certain))
        })??;
        let agent = begun.agent.clone();
        if request.repetition() == Repetition::Recalled {
            let reading = timeout_at(deadline, begun.answer.whole()).await;
            let body = reading.unwrap_or_else(|_| Err("the time is over".to_owned()));
            let body = body.map_err(|why| lost(request, &why, Suspects::certain(agent.process.clone())))?;
            let body = stream::once(std::future::ready(body)).boxed();
            return Ok(AccountResponse { status: begun.status, headers: begun.headers, body, agent });
        }
        if begun.status == StatusCode::SWITCHING_PROTOCOLS
            && let Some(sent) = request.upgraded.lock().take()
        {
            // If it is not taken, the call has ended.
            let _ = give.send(sent);
        }
        let body = RelayedBody { answer: begun.answer, _ends: ends, _slot: slot };
        let body = stream::unfold(Some(body), next_part).boxed();
        Ok(AccountResponse { status: begun.status, headers: begun.headers, body, agent })
    }

    fn not_relayed(
        &self,
        error: CallError,
        grant: &AccountGrant,
        request: &AccountRequest,
        suspects: Suspects,
    ) -> RequestError {
        if matches!(error, CallError::Unreachable { .. }) {
            self.metrics.failed.inc();
        }
        let (kind, retry) = match error {
            CallError::Refused { status: NOT_HERE, .. } => {
                return RequestError::no_agent(&grant.name, &grant.zone, false);
            }
            CallError::Refused { status: 403, message, .. } => {
                return RequestError::new(Kind::Forbidden, message);
            }
            CallError::Unreachable { may_be_executed: true, .. } => {
                return lost(request, &error.to_string(), suspects);
            }
            CallError::Unreachable { .. } => (Kind::ReplicaAway, Retry::Later),
            CallError::TooMany => (Kind::TooMany, Retry::Elsewhere),
            CallError::Refused { .. } | CallError::Malformed { .. } => (Kind::NotSent, Retry::Elsewhere),
        };
        RequestError { kind, message: error.to_string(), retry }
    }
}

/// What follows when the way to the other replica is lost.
fn lost(request: &AccountRequest, why: &str, suspects: Suspects) -> RequestError {
    let message = format!("the connection to the replica that has the agent was lost: {why}");
    match request.repetition() {
        Repetition::Recalled => RequestError::recallable(suspects),
        Repetition::Once => RequestError::unknown(&message),
        Repetition::Any if Instant::now() >= request.deadline => RequestError::new(Kind::Timeout, message),
        Repetition::Any => RequestError::new(Kind::NoAnswer, message).then(Retry::Elsewhere),
    }
}

/// The call that relays a request to this URL.
fn relayed_call(
    request: &AccountRequest,
    relayed_for: &RelayedFor,
    url: &str,
    body: CallBody,
) -> Result<Request<CallBody>, RequestError> {
    let method = if request.method == Method::HEAD { Method::GET } else { request.method.clone() };
    let mut call = Request::builder().method(method).uri(url).body(body).ok();
    // A library may read a target otherwise than the cluster does, such as one with a fragment.
    call =
        call.filter(|call| call.uri().path_and_query().is_some_and(|target| url.ends_with(target.as_str())));
    let mut call = call.ok_or_else(|| {
        let message = format!("the target {:?} cannot be that of a request", request.target);
        RequestError::new(Kind::Invalid, message)
    })?;
    *call.headers_mut() = relayed_headers(request, relayed_for);
    Ok(call)
}

/// What the caller of an upgraded request sends, once it is given, until that or the answer ends. An error resets the call.
fn upgraded_body(given: oneshot::Receiver<UpgradedBytes>, ended: CancellationToken) -> CallBody {
    let sent = stream::once(given).filter_map(|sent| std::future::ready(sent.ok())).flatten().boxed();
    let parts = stream::unfold(Some((sent, ended)), |state| async move {
        let (mut sent, ended) = state?;
        match ended.run_until_cancelled(sent.next()).await {
            Some(Some(Ok(bytes))) => Some((Ok(Frame::data(bytes)), Some((sent, ended)))),
            Some(Some(Err(error))) => Some((Err(error), None)),
            Some(None) => None,
            None => Some((Err(io::Error::other("its answer has ended")), None)),
        }
    });
    StreamBody::new(parts).boxed_unsync()
}

/// The answer of another replica: lines, then bytes, then a trailer. Dropped, the call ends.
pub(super) struct AnswerReader {
    body: Incoming,
    /// What was read and not given yet.
    rest: BytesMut,
    /// Whether the other replica has said how the answer ended.
    is_ended: bool,
}

impl AnswerReader {
    pub(super) fn new(body: Incoming) -> Self {
        Self { body, rest: BytesMut::new(), is_ended: false }
    }

    /// The next line. Cancel safe.
    ///
    /// # Errors
    /// The connection broke, or what came is no line.
    pub(super) async fn line(&mut self) -> Result<AnswerLine, String> {
        let mut searched = 0;
        loop {
            if let Some(at) = self.rest[searched..].iter().position(|byte| *byte == b'\n') {
                let line = AnswerLine::decode(&self.rest[..searched + at]);
                self.rest.advance(searched + at + 1);
                return line.ok_or_else(|| "a line was malformed".to_owned());
            }
            searched = self.rest.len();
            if searched > MAX_LINE_BYTES {
                return Err("a line was too long".to_owned());
            }
            match self.body.frame().await {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(bytes) => self.rest.extend_from_slice(&bytes),
                    Err(_) => return Err("it ended before its head".to_owned()),
                },
                Some(Err(error)) => return Err(chain(&error)),
                None => return Err("it ended before its head".to_owned()),
            }
        }
    }

    /// The next bytes; `None` if the answer is whole. Cancel safe.
    ///
    /// # Errors
    /// The connection broke: [`Cut`](Kind::Cut). Or the other replica has not all of it, and says why.
    async fn bytes(&mut self) -> Option<Result<Bytes, RequestError>> {
        if !self.rest.is_empty() {
            return Some(Ok(self.rest.split().freeze()));
        }
        let end = match self.body.frame().await {
            Some(Ok(frame)) => match frame.into_data() {
                Ok(bytes) => return Some(Ok(bytes)),
                Err(frame) => read_end(frame.trailers_ref()),
            },
            Some(Err(error)) => return Some(Err(RequestError::cut(&chain(&error)))),
            None => None,
        };
        self.is_ended = end.is_some();
        end.unwrap_or_else(|| Err(RequestError::cut("the other replica ended it"))).err().map(Err)
    }

    /// Reads all bytes: the whole, or why the other replica has not all of it.
    ///
    /// # Errors
    /// The connection broke, or there are too many.
    pub(super) async fn whole(&mut self) -> Result<Result<Bytes, RequestError>, String> {
        let mut body = BytesMut::new();
        loop {
            match self.bytes().await {
                Some(Ok(bytes)) if body.len() + bytes.len() <= MAX_WRITE_ANSWER_BYTES => {
                    body.extend_from_slice(&bytes);
                }
                Some(Ok(_)) => return Err("it is too long".to_owned()),
                Some(Err(error)) if self.is_ended => return Ok(Err(error)),
                Some(Err(error)) => return Err(error.message),
                None => return Ok(Ok(body.freeze())),
            }
        }
    }
}

/// Reads lines up to the head, or to a failure that the other replica says. Adds the agents that they name to `asked`.
///
/// # Errors
/// The connection broke.
async fn read_head(
    mut answer: AnswerReader,
    request: &AccountRequest,
    asked: &mut Vec<AskedAgent>,
) -> Result<Result<Begun, RequestError>, String> {
    loop {
        match answer.line().await? {
            AnswerLine::Asked(agent) => {
                request.asked(&agent);
                // The answer names again who gives it.
                if asked.last() != Some(&agent) {
                    asked.push(agent);
                }
            }
            AnswerLine::Failed(error) => return Ok(Err(error)),
            AnswerLine::Head(head) => {
                let agent = asked.last().cloned().ok_or("no agent was named")?;
                let (status, headers) = head.read().ok_or("the head was malformed")?;
                return Ok(Ok(Begun { agent, status, headers, answer }));
            }
        }
    }
}

/// A body that is being read. Dropping it ends the call, and so cancels the request.
struct RelayedBody {
    answer: AnswerReader,
    _ends: DropGuard,
    _slot: OwnedSemaphorePermit,
}

/// The next part of a body. One that ends without its trailer ends with an error.
async fn next_part(body: Option<RelayedBody>) -> Option<(Result<Bytes, RequestError>, Option<RelayedBody>)> {
    let mut body = body?;
    match body.answer.bytes().await? {
        Ok(bytes) => Some((Ok(bytes), Some(body))),
        Err(error) => Some((Err(error), None)),
    }
}
