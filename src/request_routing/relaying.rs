//! A request that the agents of another replica make, at the replica that asks: the call, and its answer read from
//! frames.

use std::time::Duration;

use futures::{StreamExt as _, stream};
use http::StatusCode;
use prost::bytes::{Bytes, BytesMut};
use tokio::io::{AsyncWriteExt as _, WriteHalf};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use super::answer_recovery::Suspects;
use super::messages::{MAX_DATA_BYTES, RelayFrame, RelayedFor, proxy_path, relayed_body};
use super::{Attempted, RequestRouter};
use crate::connected_agents::{
    AccountGrant, AccountResponse, AfterFailure, AskedAgent, PreparedRequest, Repetition, RequestError,
    SendFailure, UpgradedBytes,
};
use crate::peers::{
    FrameSigner, KEEP_ALIVE_INTERVAL, MAX_RELAYED, PeerFrames, RelayFailure, RelayedAnswer, RelayedCall,
    Replica,
};
use kubesvc_core::AgentId;
use kubesvc_core::requests::MAX_WRITE_ANSWER_BYTES;
use kubesvc_core::wire::common::Failure;
use kubesvc_core::wire::ops::Head;
use kubesvc_runtime::request_channel::header_map;
use kubesvc_runtime::shutdown::spawn_named;

/// Slack beyond a request's deadline for the other replica to say that it has passed.
const DEADLINE_SLACK: Duration = Duration::from_millis(500);

/// Uid and grant of an account.
pub(super) type RelayedAccount<'r> = (&'r str, &'r AccountGrant);

/// The head of an answer, and what follows it.
struct Begun {
    /// The agent that was asked last.
    agent: AskedAgent,
    head: Head,
    frames: PeerFrames,
}

/// How the frames before the head ended.
enum NoHead {
    Failed(Box<SendFailure>),
    /// The frames broke.
    Broken(String),
}

impl RequestRouter {
    /// Makes a request at another replica. Adds the agents that it asks to `asked_there`, as far as it says.
    pub(super) async fn relay_to(
        &self,
        replica: &Replica,
        (uid, grant): RelayedAccount<'_>,
        request: &PreparedRequest,
        upgraded: &mut Option<UpgradedBytes>,
        asked: &[AgentId],
        asked_there: &mut Vec<AskedAgent>,
    ) -> Result<AccountResponse, Attempted> {
        // Agents that may be asked there, in case it does not say which one it asked.
        let suspects = self.suspects(&grant.zone, &replica.id);
        let left = request.deadline.saturating_duration_since(Instant::now());
        let call = RelayedCall {
            method: http::Method::POST,
            path: proxy_path(uid),
            relayed_for: Some(RelayedFor::new(grant, request, left, asked).header()),
            body: relayed_body(request),
            upgrade: request.upgrade,
            deadline: request.deadline + DEADLINE_SLACK,
        };
        let RelayedAnswer { frames, upgraded: writer, slot } =
            match self.peers.relay_request(replica, &call).await {
                Ok(answer) => answer,
                Err(failure) => return Err(self.not_relayed(failure, grant, request, suspects)),
            };
        let reading = read_head(frames, request, asked_there);
        let begun = timeout_at(request.deadline + DEADLINE_SLACK, reading).await;
        let begun = begun.unwrap_or_else(|_| Err(NoHead::Broken("the time is over".to_owned())));
        let mut begun = match begun {
            Ok(begun) => begun,
            Err(NoHead::Failed(failure)) => {
                self.metrics.failed.inc();
                return Err(Attempted::Failed(failure));
            }
            Err(NoHead::Broken(why)) => {
                self.metrics.failed.inc();
                let last = asked_there.last().map(|agent| agent.process.clone());
                return Err(lost(request, &why, last.map_or(suspects, Suspects::certain)));
            }
        };
        let (status, headers) = head_of(&begun).ok_or_else(|| {
            lost(request, "the head is malformed", Suspects::certain(begun.agent.process.clone()))
        })?;
        if request.repetition() == Repetition::Recalled {
            let reading = timeout_at(request.deadline + DEADLINE_SLACK, whole(&mut begun.frames)).await;
            let body = reading.unwrap_or_else(|_| Err("the time is over".to_owned()));
            let body =
                body.map_err(|why| lost(request, &why, Suspects::certain(begun.agent.process.clone())))?;
            let body = stream::once(std::future::ready(body)).boxed();
            return Ok(AccountResponse { status, headers, body, agent: begun.agent });
        }
        let pump = match (writer, upgraded.take()) {
            (Some((writer, signer)), Some(sent)) if status == StatusCode::SWITCHING_PROTOCOLS => {
                Some(spawn_named("relayed upgrade", pass_on(sent, writer, signer)))
            }
            _ => None,
        };
        let body = RelayedBody { frames: begun.frames, _pump: pump, _slot: slot };
        let body = stream::unfold(Some(body), next_part).boxed();
        Ok(AccountResponse { status, headers, body, agent: begun.agent })
    }

    fn not_relayed(
        &self,
        failure: RelayFailure,
        grant: &AccountGrant,
        request: &PreparedRequest,
        suspects: Suspects,
    ) -> Attempted {
        let another = |error| {
            let next = AfterFailure::AskAnother;
            Attempted::Failed(Box::new(SendFailure { error, next, asked: Vec::new() }))
        };
        match failure {
            RelayFailure::NotHere => {
                let (account, zone) = (grant.name.clone(), grant.zone.clone());
                another(RequestError::NoAgent { account, zone, is_expected: false })
            }
            RelayFailure::NotSent(error) => another(RequestError::NotSent(Failure {
                message: error.to_string(),
                before_send: true,
                ..Failure::default()
            })),
            RelayFailure::TooMany => another(RequestError::TooMany(format!(
                "{MAX_RELAYED} requests to other replicas' agents run at this replica; try again"
            ))),
            RelayFailure::Unsure(error) => {
                self.metrics.failed.inc();
                lost(request, &error.to_string(), suspects)
            }
        }
    }
}

/// What follows when the way to the other replica is lost.
fn lost(request: &PreparedRequest, why: &str, suspects: Suspects) -> Attempted {
    let message = format!("the connection to the replica that has the agent was lost: {why}");
    let (error, next) = match request.repetition() {
        Repetition::Recalled => return Attempted::Lost(suspects),
        Repetition::Any if Instant::now() >= request.deadline => {
            (RequestError::NoAnswer { message, is_timeout: true }, AfterFailure::GiveUp)
        }
        Repetition::Any => (RequestError::NoAnswer { message, is_timeout: false }, AfterFailure::AskAnother),
        Repetition::Once => (RequestError::Unknown(message), AfterFailure::GiveUp),
    };
    Attempted::Failed(Box::new(SendFailure { error, next, asked: suspects.named() }))
}

/// Reads frames up to the head. Adds the agents that they name to `asked`.
async fn read_head(
    mut frames: PeerFrames,
    request: &PreparedRequest,
    asked: &mut Vec<AskedAgent>,
) -> Result<Begun, NoHead> {
    let broken = |why: &str| NoHead::Broken(why.to_owned());
    loop {
        let frame = frames.next().await.map_err(|error| broken(&error.to_string()))?;
        let frame = frame.ok_or_else(|| broken("it ended before its head"))?;
        match RelayFrame::decode(frame) {
            Some(RelayFrame::KeepAlive) => {}
            Some(RelayFrame::Asked(agent)) => {
                request.asked(&agent);
                // The answer names again who gives it.
                if asked.last() != Some(&agent) {
                    asked.push(agent);
                }
            }
            Some(RelayFrame::Failed(failure)) => return Err(NoHead::Failed(Box::new(failure))),
            Some(RelayFrame::Head(head)) => {
                let agent = asked.last().cloned().ok_or_else(|| broken("no agent was named"))?;
                return Ok(Begun { agent, head, frames });
            }
            _ => return Err(broken("a frame was not in order")),
        }
    }
}

fn head_of(begun: &Begun) -> Option<(StatusCode, http::HeaderMap)> {
    let status = u16::try_from(begun.head.status).ok()?;
    Some((StatusCode::from_u16(status).ok()?, header_map(begun.head.headers.clone())?))
}

/// Reads a body to its end: the whole, or why the other replica has not all of it. The error: the frames broke.
pub(super) async fn whole(frames: &mut PeerFrames) -> Result<Result<Bytes, RequestError>, String> {
    let mut body = BytesMut::new();
    loop {
        let frame = frames.next().await.map_err(|error| error.to_string())?;
        match frame.ok_or_else(|| "it ended early".to_owned()).map(RelayFrame::decode)? {
            Some(RelayFrame::KeepAlive) => {}
            Some(RelayFrame::Data(bytes)) if body.len() + bytes.len() <= MAX_WRITE_ANSWER_BYTES => {
                body.extend_from_slice(&bytes);
            }
            Some(RelayFrame::End) => return Ok(Ok(body.freeze())),
            Some(RelayFrame::Failed(failure)) => return Ok(Err(failure.error)),
            _ => return Err("a frame was not in order".to_owned()),
        }
    }
}

/// A body that is being read. Dropping it ends the call, and so cancels the request.
struct RelayedBody {
    frames: PeerFrames,
    _pump: Option<AbortOnDropHandle<()>>,
    _slot: OwnedSemaphorePermit,
}

/// The next part of a body. One that ends without its last frame ends with an error.
async fn next_part(body: Option<RelayedBody>) -> Option<(Result<Bytes, RequestError>, Option<RelayedBody>)> {
    let mut body = body?;
    let cut = |why: String| Some((Err(RequestError::Cut(why)), None));
    loop {
        let frame = match body.frames.next().await {
            Ok(Some(frame)) => frame,
            Ok(None) => return cut("the other replica ended it".to_owned()),
            Err(error) => return cut(error.to_string()),
        };
        return match RelayFrame::decode(frame) {
            Some(RelayFrame::KeepAlive) => continue,
            Some(RelayFrame::Data(bytes)) => Some((Ok(bytes), Some(body))),
            Some(RelayFrame::End) => None,
            Some(RelayFrame::Failed(failure)) => Some((Err(failure.error), None)),
            _ => cut("a frame was not in order".to_owned()),
        };
    }
}

/// Sends what the caller of an upgraded request sends, in frames.
async fn pass_on<W: tokio::io::AsyncWrite>(
    mut sent: UpgradedBytes,
    mut writer: WriteHalf<W>,
    mut signer: FrameSigner,
) {
    loop {
        let part = tokio::select! {
            part = sent.next() => part,
            () = sleep(KEEP_ALIVE_INTERVAL) => Some(Ok(Bytes::new())),
        };
        let frames: Vec<_> = match part {
            Some(Ok(bytes)) if bytes.is_empty() => vec![RelayFrame::KeepAlive],
            Some(Ok(bytes)) => data_frames(bytes).collect(),
            // Without its last frame the other side knows that it is not whole.
            Some(Err(_)) => return drop(writer.shutdown().await),
            None => vec![RelayFrame::End],
        };
        let is_last = matches!(frames.last(), Some(RelayFrame::End));
        for frame in frames {
            if writer.write_all(&signer.sign(&frame.encode())).await.is_err() {
                return;
            }
        }
        if writer.flush().await.is_err() || is_last {
            return;
        }
    }
}

/// Bytes as frames of data.
pub(super) fn data_frames(mut bytes: Bytes) -> impl Iterator<Item = RelayFrame> {
    std::iter::from_fn(move || {
        let length = bytes.len().min(MAX_DATA_BYTES);
        (length > 0).then(|| RelayFrame::Data(bytes.split_to(length)))
    })
}
