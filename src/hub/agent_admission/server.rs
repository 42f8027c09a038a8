//! The gRPC services of the hub, and deadlines of connections that have no stream of them.

use std::sync::Arc;
use std::task::{Context, Poll};

use async_trait::async_trait;
use futures::FutureExt;
use futures::future::BoxFuture;
use http_body_util::BodyExt as _;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::body::Body;
use tonic::transport::Server;
use tonic::transport::server::Router;
use tonic::{Request, Response, Status, Streaming};
use tonic_health::server::HealthReporter;
use tower::layer::util::{Identity, Stack};
use tower::{Layer, Service};

use crate::hub::agent_admission::handshake::{self, AgentStreams};
use crate::hub::agent_admission::listener::{ConnectionPolicy, DISPLACED, Peer};
use crate::hub::caching::Caching as ObjectStreams;
use crate::hub::context::HubContext;
use crate::hub::{HubError, Pings};
use kubesvc_core::wire::{events, ops};
use kubesvc_runtime::grpc;
use kubesvc_runtime::grpc::events::caching_server::{Caching, CachingServer};
use kubesvc_runtime::grpc::ops::operations_server::{Operations, OperationsServer};
use kubesvc_runtime::listen::connection_limits::ClientAddress;
use kubesvc_runtime::listen::connection_phase::WaitGuard;

/// Maximum number of streams of one connection: GetOps, Caching, Requests, health and reflection, with reserve.
const MAX_STREAMS: u32 = 16;
/// HTTP/2 window of a stream. All are always read, so this is a bound and no back-pressure.
const STREAM_WINDOW: u32 = 16 * 1024 * 1024;
/// HTTP/2 window of a connection: both streams with bulk data leave the control stream its room.
const CONNECTION_WINDOW: u32 = 40 * 1024 * 1024;
/// Maximum size of an HTTP/2 frame, in bytes: a message with 32 KiB of an answer fits in one.
const MAX_FRAME_BYTES: u32 = 36 * 1024;
/// Maximum size of the headers of one request, in bytes.
const MAX_HEADER_BYTES: u32 = 16 * 1024;
/// Maximum number of streams that the client reset and that are not handled yet (rapid reset).
const MAX_PENDING_RESETS: usize = 32;
/// Maximum number of streams that the server reset for errors of the client; then the connection is closed.
const MAX_ERROR_RESETS: usize = 256;
/// Maximum number of frames queued for one agent, beside those of its session.
const MAX_QUEUED_FRAMES: usize = 4;

/// Names of the services in gRPC's health service.
pub(crate) const SERVICES: [&str; 3] = ["", "ops.Operations", "events.Caching"];

struct OperationsService {
    streams: Arc<AgentStreams>,
    tasks: TaskTracker,
}

#[async_trait]
impl Operations for OperationsService {
    type GetOpsStream = ReceiverStream<Result<ops::HubFrame, Status>>;

    async fn get_ops(
        &self,
        request: Request<Streaming<ops::AgentFrame>>,
    ) -> Result<Response<Self::GetOpsStream>, Status> {
        let (sink, frames) = mpsc::channel(MAX_QUEUED_FRAMES);
        let peer = request.extensions().get::<Peer>().map(|peer| peer.address);
        self.tasks.spawn(handshake::run(Arc::clone(&self.streams), request.into_inner(), sink, peer));
        Ok(Response::new(ReceiverStream::new(frames)))
    }

    type RequestsStream = ReceiverStream<Result<ops::RequestDown, Status>>;

    async fn requests(
        &self,
        request: Request<Streaming<ops::RequestUp>>,
    ) -> Result<Response<Self::RequestsStream>, Status> {
        let (sink, frames) = mpsc::channel(MAX_QUEUED_FRAMES);
        self.tasks.spawn(Arc::clone(&self.streams.requests).run(request.into_inner(), sink));
        Ok(Response::new(ReceiverStream::new(frames)))
    }
}

struct CachingService {
    caching: Option<Arc<ObjectStreams>>,
    tasks: TaskTracker,
}

#[async_trait]
impl Caching for CachingService {
    type StreamStream = ReceiverStream<Result<events::CacheDown, Status>>;

    async fn stream(
        &self,
        request: Request<Streaming<events::CacheUp>>,
    ) -> Result<Response<Self::StreamStream>, Status> {
        let Some(caching) = self.caching.clone() else {
            return Err(Status::unimplemented("this operator does not take cached objects yet"));
        };
        let (sink, frames) = mpsc::channel(MAX_QUEUED_FRAMES);
        self.tasks.spawn(caching.run(request.into_inner(), sink));
        Ok(Response::new(ReceiverStream::new(frames)))
    }
}

/// Builds all services with the HTTP/2 limits, counting the streams of each connection.
pub(crate) async fn router(
    context: &HubContext,
    streams: Arc<AgentStreams>,
    health: &HealthReporter,
) -> Result<Router<Stack<StreamCountingLayer, Identity>>, HubError> {
    let settings = &context.settings.listener;
    let max = context.settings.sessions.max_message_bytes;
    let caching = CachingService { caching: streams.caching.clone(), tasks: context.tasks.clone() };
    let operations = OperationsServer::new(OperationsService { streams, tasks: context.tasks.clone() })
        .max_decoding_message_size(max)
        .max_encoding_message_size(max);
    let caching = CachingServer::new(caching).max_decoding_message_size(max).max_encoding_message_size(max);
    for service in SERVICES {
        health.set_service_status(service, tonic_health::ServingStatus::Serving).await;
    }
    let health_server = settings.health_service.then(|| {
        let service = tonic_health::server::HealthService::from_health_reporter(health.clone());
        tonic_health::pb::health_server::HealthServer::new(service)
    });
    let reflection = || {
        let mut builder = tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(grpc::DESCRIPTORS);
        if settings.health_service {
            builder = builder.register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET);
        }
        builder
    };
    Ok(limits(Server::builder(), settings.pings)
        .layer(StreamCountingLayer)
        .add_service(operations)
        .add_service(caching)
        .add_optional_service(health_server)
        .add_service(reflection().build_v1().map_err(|problem| HubError::Descriptors(problem.to_string()))?)
        .add_service(
            reflection().build_v1alpha().map_err(|problem| HubError::Descriptors(problem.to_string()))?,
        ))
}

fn limits(server: Server, pings: Option<Pings>) -> Server {
    server
        .max_concurrent_streams(MAX_STREAMS)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .http2_adaptive_window(Some(false))
        .max_frame_size(MAX_FRAME_BYTES)
        .http2_max_header_list_size(MAX_HEADER_BYTES)
        .http2_keepalive_interval(pings.map(|pings| pings.every))
        .http2_keepalive_timeout(pings.map(|pings| pings.timeout))
        .http2_max_pending_accept_reset_streams(Some(MAX_PENDING_RESETS))
        .http2_max_local_error_reset_streams(Some(MAX_ERROR_RESETS))
        .accept_http1(false)
}

/// Numbers of streams of one connection.
#[derive(Clone, Copy, Debug, Default)]
struct StreamCounts {
    /// Streams that are open.
    open: usize,
    /// Streams that were opened since the connection began. A stream that ends before the connection's watch runs shows
    /// here alone.
    opened: u64,
}

/// Counts the streams of one connection; clones share the counts.
#[derive(Clone, Debug)]
pub(crate) struct Streams(watch::Sender<StreamCounts>);

/// An open stream, closed when dropped.
struct StreamCountGuard(watch::Sender<StreamCounts>);

impl Drop for StreamCountGuard {
    fn drop(&mut self) {
        self.0.send_modify(|counts| counts.open -= 1);
    }
}

impl Default for Streams {
    fn default() -> Self {
        Self(watch::Sender::new(StreamCounts::default()))
    }
}

impl Streams {
    fn open(&self) -> StreamCountGuard {
        self.0.send_modify(|counts| {
            counts.open += 1;
            counts.opened += 1;
        });
        StreamCountGuard(self.0.clone())
    }
}

/// Closes a connection that has no stream for too long, or that is displaced because there are too many. Ends with
/// the connection.
pub(super) async fn watch_over(
    policy: Arc<ConnectionPolicy>,
    streams: Streams,
    close: CancellationToken,
    (caller, guard): (ClientAddress, WaitGuard),
) {
    let ConnectionPolicy { settings, metrics, .. } = &*policy;
    let (mut seen, mut guard) = (streams.0.subscribe(), Some(guard));
    drop(streams);
    let (mut limit, mut reason, mut opened) = (settings.request_wait, "no_request", 0);
    loop {
        let next_stream = tokio::time::timeout(limit, seen.wait_for(|counts| counts.opened > opened));
        // `None`: the connection was closed otherwise.
        match close.run_until_cancelled(next_stream).await {
            None | Some(Ok(Err(_))) => return,
            Some(Ok(Ok(_))) => drop(guard.take()),
            Some(Err(_)) => {
                metrics.refuse_connection(reason);
                close.cancel();
                return;
            }
        }
        match close.run_until_cancelled(seen.wait_for(|counts| counts.open == 0)).await {
            None | Some(Err(_)) => return,
            Some(Ok(counts)) => (limit, reason, opened) = (settings.idle_wait, "idle", counts.opened),
        }
        let (waits, displaced) =
            policy.without_stream.enter_among(settings.without_stream_cap, caller, &close);
        if displaced {
            metrics.refuse_connection(DISPLACED);
        }
        guard = Some(waits);
    }
}

/// Counts the streams of each connection, from the request to the end of its response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamCountingLayer;

impl<S> Layer<S> for StreamCountingLayer {
    type Service = StreamCountingService<S>;

    fn layer(&self, inner: S) -> StreamCountingService<S> {
        StreamCountingService(inner)
    }
}

/// A service whose streams are counted.
#[derive(Clone, Debug)]
pub(crate) struct StreamCountingService<S>(S);

impl<S, B> Service<http::Request<Body>> for StreamCountingService<S>
where
    S: Service<http::Request<Body>, Response = http::Response<B>>,
    S::Future: Send + 'static,
    B: hyper::body::Body<Data = hyper::body::Bytes> + Send + 'static,
    B::Error: Into<tonic::codegen::StdError>,
{
    type Response = http::Response<Body>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Self::Response, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let open = request.extensions().get::<Peer>().map(|peer| peer.streams.open());
        let answer = self.0.call(request);
        async move {
            let answer = answer.await?;
            // Dropped with the body.
            let counted = move |body: B| {
                body.map_frame(move |frame| {
                    let _open = &open;
                    frame
                })
            };
            Ok(answer.map(|body| Body::new(counted(body))))
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio_util::task::TaskTracker;

    use super::*;
    use crate::hub::ListenerSettings;
    use crate::hub::metrics::HubMetrics;
    use kubesvc_runtime::listen::connection_limits::Addresses;
    use kubesvc_runtime::listen::connection_phase::WaitingConnections;

    const REQUEST_WAIT: Duration = Duration::from_secs(10);
    const IDLE_WAIT: Duration = Duration::from_secs(30);

    /// A port at which so many connections may be without a stream.
    fn policy(without_stream_cap: usize) -> Arc<ConnectionPolicy> {
        Arc::new(ConnectionPolicy {
            metrics: HubMetrics::default(),
            settings: ListenerSettings {
                connection_cap: 10,
                without_stream_cap,
                request_wait: REQUEST_WAIT,
                idle_wait: IDLE_WAIT,
                ..ListenerSettings::default()
            },
            addresses: Addresses::new(Default::default()),
            without_stream: Arc::default(),
            close: CancellationToken::new(),
            tasks: TaskTracker::new(),
            log_limit: Default::default(),
        })
    }

    /// A connection that has just begun; it is watched until the token is cancelled.
    fn watched(policy: &Arc<ConnectionPolicy>) -> (Streams, CancellationToken, tokio::task::JoinHandle<()>) {
        let (streams, close) = (Streams::default(), CancellationToken::new());
        let caller = ClientAddress::of([192, 0, 2, 1].into());
        let (guard, _) = WaitingConnections::enter_among(
            &policy.without_stream,
            policy.settings.without_stream_cap,
            caller,
            &close,
        );
        let watched =
            tokio::spawn(watch_over(Arc::clone(policy), streams.clone(), close.clone(), (caller, guard)));
        (streams, close, watched)
    }

    fn closed_for(policy: &ConnectionPolicy, reason: &'static str) -> u64 {
        policy.metrics.connections_refused.get_or_create(&crate::hub::metrics::ReasonLabel { reason }).get()
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_a_request_is_closed_in_ten_seconds() {
        let policy = policy(9);
        let (_streams, close, watched) = watched(&policy);
        let since = tokio::time::Instant::now();
        watched.await.expect("no panic");
        assert_eq!((since.elapsed(), close.is_cancelled()), (REQUEST_WAIT, true));
        assert_eq!(closed_for(&policy, "no_request"), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_closed_thirty_seconds_after_its_last_stream() {
        let policy = policy(9);
        let (streams, close, watched) = watched(&policy);
        let (first, second) = (streams.open(), streams.open());
        tokio::time::sleep(Duration::from_secs(3600)).await;
        drop(first);
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert!(!close.is_cancelled(), "one is open");
        let since = tokio::time::Instant::now();
        drop(second);
        watched.await.expect("no panic");
        assert_eq!((since.elapsed(), closed_for(&policy, "idle")), (IDLE_WAIT, 1));
        assert!(close.is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_ends_at_once_restarts_the_limit() {
        let policy = policy(9);
        let (streams, close, watched) = watched(&policy);
        for limit in [REQUEST_WAIT, IDLE_WAIT, IDLE_WAIT] {
            tokio::time::sleep(limit - Duration::from_secs(1)).await;
            drop(streams.open());
        }
        assert!(!close.is_cancelled());
        let since = tokio::time::Instant::now();
        watched.await.expect("no panic");
        assert_eq!((since.elapsed(), close.is_cancelled()), (IDLE_WAIT, true));
        assert_eq!((closed_for(&policy, "idle"), closed_for(&policy, "no_request")), (1, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn the_watch_ends_with_its_connection() {
        let policy = policy(9);
        let (streams, close, watched) = watched(&policy);
        let _open = streams.open();
        tokio::task::yield_now().await;
        close.cancel();
        watched.await.expect("no panic");
        assert_eq!(closed_for(&policy, "idle") + closed_for(&policy, "no_request"), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn among_too_many_connections_without_a_stream_the_longest_idle_is_closed_and_none_with_an_agent() {
        let policy = policy(2);
        let (agent, with_agent, _agent) = watched(&policy);
        let open = agent.open();
        tokio::task::yield_now().await;
        let (_idle, first, _first) = watched(&policy);
        let (_idle_too, second, _second) = watched(&policy);
        assert!(!first.is_cancelled() && !second.is_cancelled());
        // Its last stream ends: it is the third without one, and has been for the shortest time.
        drop(open);
        tokio::task::yield_now().await;
        assert!(first.is_cancelled() && !second.is_cancelled() && !with_agent.is_cancelled());
        assert_eq!(closed_for(&policy, "displaced"), 1);
    }
}
