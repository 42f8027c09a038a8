//! The stream of requests: opened where the session's hub makes requests, and opened again when it ends.

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, Stream, StreamExt as _};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};

use super::RequestService;
use crate::caching::HubConnection;
use crate::hub_token::HubService;
use kubesvc_core::requests::credit::{CreditBudget, INITIAL_CREDIT, MAX_CREDIT_OF_AGENT};
use kubesvc_core::requests::streams::{Frame, NumberedFrame};
use kubesvc_core::requests::wire::{self, AgentEnd, Opening};
use kubesvc_core::wire::MAX_MESSAGE_BYTES;
use kubesvc_core::wire::ops::refused::Reason;
use kubesvc_core::wire::ops::{
    Begin, Ping, Refused, RequestDown, RequestUp, Running, request_down, request_up,
};
use kubesvc_runtime::grpc::ops::operations_client::OperationsClient;
use kubesvc_runtime::request_channel::{NewRequest, RequestChannel};

/// Time limit for the hub's first frame.
const READY_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval between pings.
const PING_INTERVAL: Duration = Duration::from_secs(20);
/// Time without a frame after which the stream is opened anew.
const MAX_SILENCE: Duration = Duration::from_secs(60);
/// Interval between lists of what runs.
const RUNNING_INTERVAL: Duration = Duration::from_secs(30);
/// Number of times that a stream which a proxy brought to another replica is opened again at once.
const MAX_QUICK_TRIES: u32 = 10;
/// Delay after that.
const WRONG_REPLICA_DELAY: Duration = Duration::from_secs(5);
/// First and maximum delay before a stream that broke is opened again.
const REOPEN_DELAYS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];

/// Why a stream ended.
enum RequestStreamEnd {
    /// The hub refused it.
    Refused(Refused),
    /// It broke; it had been open for this long.
    Broken(String, Duration),
}

/// Drives the stream of requests, for ever.
#[derive(Debug)]
pub struct RequestsDriver {
    service: Arc<RequestService>,
    connection: watch::Receiver<Option<HubConnection>>,
    budget: Arc<CreditBudget>,
}

impl RequestsDriver {
    /// A driver for the sessions that `connection` names.
    pub fn new(service: Arc<RequestService>, connection: watch::Receiver<Option<HubConnection>>) -> Self {
        Self { service, connection, budget: CreditBudget::new(MAX_CREDIT_OF_AGENT, None) }
    }

    /// Serves requests, for ever.
    pub async fn run(mut self) {
        loop {
            let connection = self.connection.borrow_and_update().clone();
            let mut changes = self.connection.clone();
            let changed = async {
                if changes.changed().await.is_err() {
                    // The link is gone: the agent is stopping, and ends this task too.
                    std::future::pending::<()>().await;
                }
            };
            match connection {
                None => changed.await,
                Some(connection) => tokio::select! {
                    () = changed => {}
                    () = self.serve_session(&connection) => {}
                },
            }
        }
    }

    /// Keeps a stream open in one session.
    async fn serve_session(&self, connection: &HubConnection) {
        let (mut wrong_replica, mut delay) = (0, REOPEN_DELAYS[0]);
        loop {
            let wait = match self.serve_stream(connection).await {
                RequestStreamEnd::Refused(refused) if refused.reason() == Reason::WrongReplica => {
                    wrong_replica += 1;
                    if wrong_replica <= MAX_QUICK_TRIES { Duration::ZERO } else { WRONG_REPLICA_DELAY }
                }
                RequestStreamEnd::Refused(refused) => {
                    let reason = refused.reason().as_str_name();
                    tracing::info!(reason, "the hub refuses the stream of requests");
                    Duration::from_millis(refused.retry_after_ms.into())
                        .clamp(REOPEN_DELAYS[0], REOPEN_DELAYS[1])
                }
                RequestStreamEnd::Broken(why, lifetime) => {
                    tracing::info!("the stream of requests ended: {why}");
                    if lifetime > REOPEN_DELAYS[1] {
                        (delay, wrong_replica) = (REOPEN_DELAYS[0], 0);
                    }
                    let wait = delay;
                    delay = (delay * 2).min(REOPEN_DELAYS[1]);
                    // What was served for a while is likely to be served again at once.
                    if lifetime > REOPEN_DELAYS[0] { Duration::from_millis(100) } else { wait }
                }
            };
            sleep(wait).await;
        }
    }

    async fn serve_stream(&self, connection: &HubConnection) -> RequestStreamEnd {
        let opened = Instant::now();
        let broken = |why: String| RequestStreamEnd::Broken(why, opened.elapsed());
        let begin = Begin {
            session_id: connection.identity.session_id.clone(),
            agent_id: connection.identity.agent_id.clone(),
            boot_id: connection.identity.boot_id.clone(),
            replica_id: connection.identity.replica_id.clone(),
            apply: Some(self.service.settings.apply.clone()),
        };
        let begin = RequestUp { id: 0, frame: Some(request_up::Frame::Begin(begin)) };
        let stream = OpenRequestStream::new(&self.service, &self.budget, &connection.identity.boot_id);
        let mut client = OperationsClient::new(connection.service.clone())
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES);
        let opening = async {
            let mut inbound = client.requests(stream.outgoing.frames(begin)).await?.into_inner();
            let first = inbound.message().await?;
            Ok::<_, Status>((inbound, first.and_then(|first| first.frame)))
        };
        let inbound = match timeout(READY_TIMEOUT, opening).await {
            Ok(Ok((inbound, Some(request_down::Frame::Ready(_))))) => inbound,
            Ok(Ok((_, Some(request_down::Frame::Refused(refused))))) => {
                return RequestStreamEnd::Refused(refused);
            }
            Ok(Ok(_)) => return broken("its first frame is neither Ready nor Refused".to_owned()),
            Ok(Err(status)) => return broken(said(&status, &connection.service)),
            Err(_) => return broken("the hub did not answer in time".to_owned()),
        };
        tracing::info!("the stream of requests is open");
        broken(stream.read(inbound, &connection.service).await)
    }
}

fn said(status: &Status, hub: &HubService) -> String {
    format!("{:?}: {}", status.code(), hub.shown(status.message()))
}

/// A stream that is open, or about to be. Dropping it ends its requests.
struct OpenRequestStream<'d> {
    service: &'d Arc<RequestService>,
    boot_id: &'d str,
    outgoing: Outgoing,
}

/// What a stream sends.
#[derive(Clone)]
struct Outgoing {
    channel: Arc<RequestChannel<AgentEnd>>,
    last_frame: Arc<Mutex<Instant>>,
    /// Cancelled when nothing came for too long.
    is_silent: CancellationToken,
    /// Cancelled when nothing more is sent.
    is_over: CancellationToken,
}

impl Drop for OpenRequestStream<'_> {
    fn drop(&mut self) {
        let Outgoing { channel, is_over, .. } = &self.outgoing;
        is_over.cancel();
        channel.lost();
        self.service.metrics.dropped_frames.inc_by(channel.dropped());
    }
}

impl<'d> OpenRequestStream<'d> {
    fn new(service: &'d Arc<RequestService>, budget: &Arc<CreditBudget>, boot_id: &'d str) -> Self {
        let outgoing = Outgoing {
            channel: RequestChannel::new(CreditBudget::new(MAX_CREDIT_OF_AGENT, Some(Arc::clone(budget)))),
            last_frame: Arc::new(Mutex::new(Instant::now())),
            is_silent: CancellationToken::new(),
            is_over: CancellationToken::new(),
        };
        Self { service, boot_id, outgoing }
    }

    /// Reads frames until the stream ends. Always reads: credit bounds what it keeps.
    async fn read(&self, mut inbound: Streaming<RequestDown>, hub: &HubService) -> String {
        loop {
            let frame = tokio::select! {
                frame = inbound.message() => frame,
                () = self.outgoing.is_silent.cancelled() => return "the hub said nothing for 60 s".to_owned(),
            };
            match frame {
                Ok(Some(frame)) => self.handle(frame),
                Ok(None) => return "the hub closed it".to_owned(),
                Err(status) => return said(&status, hub),
            }
        }
    }

    fn handle(&self, RequestDown { id, frame }: RequestDown) {
        use request_down::Frame as Down;
        let channel = &self.outgoing.channel;
        *self.outgoing.last_frame.lock() = Instant::now();
        match frame {
            Some(Down::Open(open)) if id > 0 => {
                let credit = open.credit;
                let first = Opening::Open(Box::new(open));
                if let NewRequest::Opened(exchange, Opening::Open(open)) =
                    channel.receive_opening(id, first, credit)
                {
                    self.service.open(exchange, *open);
                }
            }
            Some(Down::Recall(recall)) if id > 0 => {
                let opening = channel.receive_opening(id, Opening::Recall(recall), INITIAL_CREDIT);
                if let NewRequest::Opened(exchange, Opening::Recall(recall)) = opening {
                    self.service.recall(exchange, &recall, self.boot_id);
                }
            }
            Some(Down::Data(data)) => drop(channel.receive(id, Frame::Data(data.bytes))),
            Some(Down::End(_)) => drop(channel.receive(id, Frame::End)),
            Some(Down::Credit(credit)) => drop(channel.receive(id, Frame::Credit(credit.bytes))),
            Some(Down::Cancel(_)) => drop(channel.receive(id, Frame::Stop(()))),
            Some(Down::Forget(forget)) => self.service.writes.forget(&forget.request_ids),
            Some(Down::Running(running)) => channel.reconcile(&running.ids, false),
            Some(Down::Ping(_) | Down::Ready(_) | Down::Refused(_)) => {}
            Some(Down::Open(_) | Down::Recall(_)) | None => {
                tracing::debug!(id, "ignored a frame of an unknown type on the stream of requests");
            }
        }
    }
}

impl Outgoing {
    /// The frames of the stream, this one first. The connection takes each when it can send it, so that all others wait
    /// where turns are decided.
    fn frames(&self, begin: RequestUp) -> impl Stream<Item = RequestUp> + Send + use<> {
        let following = stream::unfold((self.clone(), ticks()), async |(outgoing, mut ticks)| {
            let frame = outgoing.is_over.run_until_cancelled(outgoing.next(&mut ticks)).await?;
            Some((frame, (outgoing, ticks)))
        });
        stream::once(ready(begin)).chain(following)
    }

    /// The next frame. What the stream itself has to say comes first: data may be queued without end.
    async fn next(&self, [pings, lists]: &mut [Interval; 2]) -> RequestUp {
        let of_stream = tokio::select! {
            biased;
            _ = pings.tick() => {
                if self.last_frame.lock().elapsed() >= MAX_SILENCE {
                    self.is_silent.cancel();
                }
                request_up::Frame::Ping(Ping {})
            }
            _ = lists.tick() => request_up::Frame::Running(Running { ids: self.channel.running() }),
            (id, frame) = self.next_of_requests() => return wire::up(id, frame),
        };
        RequestUp { id: 0, frame: Some(of_stream) }
    }

    async fn next_of_requests(&self) -> NumberedFrame<AgentEnd> {
        loop {
            if let Some(frame) = self.channel.next_frame() {
                return frame;
            }
            self.channel.outgoing().await;
        }
    }
}

/// When pings, and lists of what runs, are sent.
fn ticks() -> [Interval; 2] {
    [PING_INTERVAL, RUNNING_INTERVAL].map(|period| {
        let mut ticks = interval_at(Instant::now() + period, period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks
    })
}

#[cfg(test)]
mod tests {
    use prost::bytes::Bytes;

    use super::*;
    use kubesvc_core::requests::credit::MAX_CREDIT;
    use kubesvc_core::wire::ops::{Head, Open};

    #[tokio::test(start_paused = true)]
    async fn pings_and_lists_leave_while_data_is_always_queued() {
        let outgoing = Outgoing {
            channel: RequestChannel::new(CreditBudget::new(MAX_CREDIT_OF_AGENT, None)),
            last_frame: Arc::new(Mutex::new(Instant::now())),
            is_silent: CancellationToken::new(),
            is_over: CancellationToken::new(),
        };
        let first = Opening::Open(Box::<Open>::default());
        let opening = outgoing.channel.receive_opening(1, first, MAX_CREDIT);
        let NewRequest::Opened(exchange, _) = opening else { unreachable!("its id is new") };
        assert!(exchange.send_head(Head { status: 200, headers: Vec::new() }));
        let (mut ticks, mut pings, mut lists) = (ticks(), 0, 0);
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(65) {
            assert!(exchange.send(Bytes::from_static(b"x")).await);
            loop {
                match outgoing.next(&mut ticks).await.frame {
                    Some(request_up::Frame::Data(_)) => break,
                    Some(request_up::Frame::Ping(_)) => pings += 1,
                    Some(request_up::Frame::Running(_)) => lists += 1,
                    _ => {}
                }
            }
            sleep(Duration::from_secs(1)).await;
        }
        assert_eq!((pings, lists), (3, 2));
    }
}
