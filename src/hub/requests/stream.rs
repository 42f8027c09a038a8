//! The stream of requests of one session. It always reads: credit bounds what is kept of it.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};
use tonic::Streaming;
use tracing::{debug, info};

use super::{AgentStream, RequestDownSender, Requests};
use crate::hub::context::HubContext;
use crate::hub::sessions::StreamClaim;
use crate::hub::sessions::session::Session;
use crate::hub::sessions::session::identified::Identified;
use kubesvc_core::failure::{MAX_ERROR_MESSAGE_BYTES, printable};
use kubesvc_core::requests::credit::{CreditBudget, MAX_CREDIT_OF_AGENT};
use kubesvc_core::requests::headers::{self, HeaderError};
use kubesvc_core::requests::streams::Frame;
use kubesvc_core::requests::wire;
use kubesvc_core::wire::common::Failure;
use kubesvc_core::wire::common::failure::Class;
use kubesvc_core::wire::ops::refused::Reason;
use kubesvc_core::wire::ops::{
    ApplySettings, Begin, Forget, Ping, Ready, Refused, RequestDown, RequestUp, Running, request_down,
    request_up,
};
use kubesvc_runtime::crash_points;
use kubesvc_runtime::request_channel::RequestChannel;

/// Time limit for the first frame.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval between pings.
const PING_INTERVAL: Duration = Duration::from_secs(20);
/// Time without a frame after which the stream is closed.
const MAX_SILENCE: Duration = Duration::from_secs(60);
/// Interval between lists of what runs.
const RUNNING_INTERVAL: Duration = Duration::from_secs(30);
/// Maximum number of ids that are looked at in a list of what runs at the agent; more than it may be given.
const MAX_RUNNING_IDS: usize = 8192;
/// Maximum time for which frames of requests leave without a look at what the stream itself is to say: their data may be
/// queued without end.
const MAX_REQUESTS_TURN: Duration = Duration::from_millis(100);
/// Minimum time for which an agent keeps an answer that was received; at most twice as long, and some turns of requests.
/// The rows of operations are committed within a fraction of it.
const FORGET_DELAY: Duration = Duration::from_millis(500);
/// Time limit for the agent to take a frame; then its stream is closed.
const FRAME_SEND_TIMEOUT: Duration = Duration::from_secs(30);

/// Runs a stream from its first frame to its end.
pub(super) async fn run(
    requests: Arc<Requests>,
    mut inbound: Streaming<RequestUp>,
    sink: RequestDownSender,
    identity: Option<Identified>,
) {
    let (session, apply) = match requests.begin(&mut inbound, identity.as_ref()).await {
        Ok(Some(begun)) => begun,
        Ok(None) => return,
        Err(refused) => {
            debug!(reason = refused.reason().as_str_name(), "stream of requests refused");
            let frame = RequestDown { id: 0, frame: Some(request_down::Frame::Refused(refused)) };
            let _ = timeout(FRAME_SEND_TIMEOUT, sink.send(Ok(frame))).await;
            return;
        }
    };
    let stream = RegisteredStream::new(Arc::clone(&requests), session, apply);
    info!(agentId = stream.of_agent.session.agent.id.as_str(), "stream of requests opened");
    let last_frame = Mutex::new(Instant::now());
    let why = tokio::select! {
        () = stream.of_agent.session.ended.cancelled() => "the session ended",
        () = stream.of_agent.superseded() => "a later stream of the session was opened",
        why = stream.of_agent.read(inbound, &last_frame, &requests.context) => why,
        why = stream.of_agent.write(&sink, &last_frame, &requests.context) => why,
    };
    info!(agentId = stream.of_agent.session.agent.id.as_str(), why, "stream of requests ended");
}

impl Requests {
    /// Waits for the first frame. Returns the session that it names, and what it says of applying; `None` if the stream ended.
    async fn begin(
        &self,
        inbound: &mut Streaming<RequestUp>,
        identity: Option<&Identified>,
    ) -> Result<Option<(Arc<Session>, ApplySettings)>, Refused> {
        let refused = |reason: Reason, message: String| Refused {
            reason: reason.into(),
            message,
            ..Refused::default()
        };
        let malformed =
            || refused(Reason::Malformed, format!("the first frame must be Begin, within {BEGIN_TIMEOUT:?}"));
        let first = tokio::select! {
            () = self.draining.sends_away() => {
                return Err(refused(Reason::Draining, format!("{}; connect anew", self.draining.reason())));
            }
            first = timeout(BEGIN_TIMEOUT, inbound.next()) => first,
        };
        let begin = match first {
            Err(_) => return Err(malformed()),
            Ok(None | Some(Err(_))) => return Ok(None),
            Ok(Some(Ok(RequestUp { frame: Some(request_up::Frame::Begin(begin)), .. }))) => begin,
            Ok(Some(Ok(_))) => return Err(malformed()),
        };
        let own = &self.context.settings.replica_id;
        let apply = begin.apply.clone().unwrap_or_default();
        self.session_of(&begin, identity).map(|session| Some((session, apply))).ok_or_else(|| {
            let agent: String = begin.agent_id.chars().take(191).collect();
            let message = format!(
                "agent {agent:?} has no session of this id and process at replica {own}; open the stream where the \
                 session is"
            );
            refused(Reason::WrongReplica, message)
        })
    }

    /// The connected session that Begin names.
    fn session_of(&self, begin: &Begin, identity: Option<&Identified>) -> Option<Arc<Session>> {
        let Begin { agent_id, boot_id, session_id, replica_id, .. } = begin;
        self.sessions.of_stream(&StreamClaim { agent_id, boot_id, session_id, replica_id, identity })
    }
}

/// A stream that requests can be sent on. Dropping it ends them.
struct RegisteredStream {
    requests: Arc<Requests>,
    of_agent: Arc<AgentStream>,
}

impl RegisteredStream {
    /// Registers the stream; one that the session has already is superseded.
    fn new(requests: Arc<Requests>, session: Arc<Session>, apply: ApplySettings) -> Self {
        let credit = CreditBudget::new(MAX_CREDIT_OF_AGENT, Some(Arc::clone(&requests.credit)));
        let of_agent = Arc::new(AgentStream {
            channel: RequestChannel::new(credit),
            apply,
            forgets: Mutex::default(),
            has_forgets: Notify::new(),
            superseded: Notify::new(),
            replica_id: requests.context.settings.replica_id.clone(),
            session,
        });
        let (former, has_changed) = {
            let mut streams = requests.streams.lock();
            let former = streams.insert(of_agent.session.id.clone(), Arc::clone(&of_agent));
            requests.metrics.streams.set(i64::try_from(streams.len()).unwrap_or(i64::MAX));
            // Under the same lock, or the end of a former stream could be recorded after this.
            (former, of_agent.session.set_reachable(true))
        };
        if let Some(former) = former {
            former.superseded.notify_one();
            former.channel.lost();
        }
        if has_changed {
            requests.sessions.reachable_changed(&of_agent.session);
        }
        requests.changed.send_modify(|count| *count += 1);
        Self { requests, of_agent }
    }
}

impl Drop for RegisteredStream {
    fn drop(&mut self) {
        let Self { requests, of_agent } = self;
        let has_changed = {
            let mut streams = requests.streams.lock();
            let open = streams.get(&of_agent.session.id);
            let is_last = open.is_some_and(|open| Arc::ptr_eq(open, of_agent));
            if is_last {
                streams.remove(&of_agent.session.id);
            }
            requests.metrics.streams.set(i64::try_from(streams.len()).unwrap_or(i64::MAX));
            is_last && of_agent.session.set_reachable(false)
        };
        if has_changed {
            requests.sessions.reachable_changed(&of_agent.session);
        }
        of_agent.channel.lost();
        requests.metrics.dropped_frames.inc_by(of_agent.channel.dropped());
        requests.changed.send_modify(|count| *count += 1);
    }
}

impl AgentStream {
    async fn superseded(&self) {
        self.superseded.notified().await;
    }

    async fn read(
        &self,
        mut inbound: Streaming<RequestUp>,
        last_frame: &Mutex<Instant>,
        context: &HubContext,
    ) -> &'static str {
        while let Some(frame) = inbound.next().await {
            context.identities_known().await;
            let Ok(RequestUp { id, frame }) = frame else { return "a frame cannot be read" };
            *last_frame.lock() = Instant::now();
            self.handle(id, frame);
        }
        "the agent closed it"
    }

    fn handle(&self, id: u64, frame: Option<request_up::Frame>) {
        use request_up::Frame as Up;
        let frame = match frame {
            Some(Up::Head(head)) => match headers::check(&head.headers) {
                Ok(()) => Frame::Head(head),
                Err(problem) => Frame::Stop(bad_head(&problem)),
            },
            Some(Up::Data(data)) => Frame::Data(data.bytes),
            Some(Up::End(_)) => Frame::End,
            Some(Up::Abort(abort)) => Frame::Stop(shortened(abort.failure.unwrap_or_default())),
            Some(Up::Credit(credit)) => Frame::Credit(credit.bytes),
            Some(Up::Running(running)) => {
                let ids = &running.ids[..running.ids.len().min(MAX_RUNNING_IDS)];
                return self.channel.reconcile(ids, true);
            }
            Some(Up::Ping(_) | Up::Begin(_)) | None => return,
        };
        self.channel.receive(id, frame);
    }

    async fn write(
        &self,
        sink: &RequestDownSender,
        last_frame: &Mutex<Instant>,
        context: &HubContext,
    ) -> &'static str {
        let [mut pings, mut lists] = [PING_INTERVAL, RUNNING_INTERVAL].map(|period| {
            let mut ticks = interval(period);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            ticks
        });
        let mut forget_at = None;
        let ready = send(sink, 0, request_down::Frame::Ready(Ready {}));
        if let Err(why) = crash_points::around(Some("request-stream"), ready).await {
            return why;
        }
        loop {
            context.identities_known().await;
            let has_more = match self.write_requests(sink).await {
                Ok(has_more) => has_more,
                Err(why) => return why,
            };
            let of_stream = tokio::select! {
                biased;
                () = sleep_until(forget_at.unwrap_or_else(Instant::now)), if forget_at.is_some() => {
                    let (request_ids, has_more) = self.take_forgets();
                    forget_at = has_more.then(|| Instant::now() + FORGET_DELAY);
                    if request_ids.is_empty() {
                        continue;
                    }
                    request_down::Frame::Forget(Forget { request_ids })
                }
                _ = pings.tick() => {
                    if last_frame.lock().elapsed() >= MAX_SILENCE {
                        return "the agent said nothing for 60 s";
                    }
                    request_down::Frame::Ping(Ping {})
                }
                _ = lists.tick() => request_down::Frame::Running(Running { ids: self.channel.running() }),
                () = self.has_forgets.notified(), if forget_at.is_none() => {
                    forget_at = Some(Instant::now() + FORGET_DELAY);
                    continue;
                }
                () = self.until_more(has_more) => continue,
            };
            if let Err(why) = send(sink, 0, of_stream).await {
                return why;
            }
        }
    }

    /// Sends frames of requests until none waits, or their turn is over. Returns whether more may wait.
    async fn write_requests(&self, sink: &RequestDownSender) -> Result<bool, &'static str> {
        let began = Instant::now();
        while let Some((id, frame)) = self.channel.next_frame() {
            let Some(frame) = wire::down(id, frame).frame else { continue };
            let is_write = matches!(&frame, request_down::Frame::Open(open) if open.write);
            let point = is_write.then_some("request-open");
            crash_points::around(point, send(sink, id, frame)).await?;
            if began.elapsed() >= MAX_REQUESTS_TURN {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Waits until a frame of a request may wait to be sent; not if `has_more` says that one does.
    async fn until_more(&self, has_more: bool) {
        if !has_more {
            self.channel.outgoing().await;
        }
    }
}

/// A failure whose message is fit for callers and logs: printable, and of at most 1 KiB.
fn shortened(mut failure: Failure) -> Failure {
    failure.message = printable(&failure.message, MAX_ERROR_MESSAGE_BYTES);
    failure
}

/// Why an answer ends whose head is no head of an answer. The request may have been executed.
fn bad_head(problem: &HeaderError) -> Failure {
    let message = format!("the head of the agent's answer is refused: {problem}");
    Failure { class: Class::Internal.into(), message, ..Failure::default() }
}

/// Sends a frame. The error: the agent takes none.
async fn send(sink: &RequestDownSender, id: u64, frame: request_down::Frame) -> Result<(), &'static str> {
    let frame = Ok(RequestDown { id, frame: Some(frame) });
    let sent = timeout(FRAME_SEND_TIMEOUT, sink.send(frame)).await;
    if matches!(sent, Ok(Ok(()))) { Ok(()) } else { Err("the agent takes no frames") }
}
