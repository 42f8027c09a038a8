//! The gRPC services of the hub, and their HTTP/2 limits.

use std::sync::Arc;
use std::task::{Context, Poll};

use async_trait::async_trait;
use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::task::TaskTracker;
use tonic::body::Body;
use tonic::transport::Server;
use tonic::transport::server::Router;
use tonic::{Request, Response, Status, Streaming};
use tonic_health::server::HealthReporter;
use tower::layer::util::{Identity, Stack};
use tower::{Layer, Service};

use crate::hub::agent_admission::connection::Peer;
use crate::hub::agent_admission::handshake::{self, AgentClient, AgentStreams};
use crate::hub::agent_admission::identification::Identification;
use crate::hub::agent_admission::subject_check::SubjectCheck;
use crate::hub::caching::Caching as ObjectStreams;
use crate::hub::context::HubContext;
use crate::hub::{HubError, Pings};
use kubesvc_core::wire::{events, ops};
use kubesvc_runtime::grpc;
use kubesvc_runtime::grpc::events::caching_server::{Caching, CachingServer};
use kubesvc_runtime::grpc::ops::operations_server::{Operations, OperationsServer};
use kubesvc_runtime::listen::unread_answers::ReadBody;

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
        let peer = request.extensions().get::<Peer>().cloned();
        let shown = self.streams.identification.authenticate(peer.as_ref(), request.metadata()).await?;
        let (sink, frames) = mpsc::channel(MAX_QUEUED_FRAMES);
        let client = AgentClient { peer, shown };
        self.tasks.spawn(handshake::run(Arc::clone(&self.streams), request.into_inner(), sink, client));
        Ok(Response::new(ReceiverStream::new(frames)))
    }

    type RequestsStream = ReceiverStream<Result<ops::RequestDown, Status>>;

    async fn requests(
        &self,
        request: Request<Streaming<ops::RequestUp>>,
    ) -> Result<Response<Self::RequestsStream>, Status> {
        let identification = &self.streams.identification;
        let peer = request.extensions().get::<Peer>();
        let identity = identification.authenticate_further(peer, request.metadata()).await?;
        let (sink, frames) = mpsc::channel(MAX_QUEUED_FRAMES);
        self.tasks.spawn(Arc::clone(&self.streams.requests).run(request.into_inner(), sink, identity));
        Ok(Response::new(ReceiverStream::new(frames)))
    }
}

struct CachingService {
    caching: Option<Arc<ObjectStreams>>,
    identification: Arc<Identification>,
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
        let peer = request.extensions().get::<Peer>();
        let identity = self.identification.authenticate_further(peer, request.metadata()).await?;
        let (sink, frames) = mpsc::channel(MAX_QUEUED_FRAMES);
        self.tasks.spawn(caching.run(request.into_inner(), sink, identity));
        Ok(Response::new(ReceiverStream::new(frames)))
    }
}

/// Builds all services with the HTTP/2 limits, counting the streams of each connection.
pub(crate) async fn router(
    context: &HubContext,
    streams: Arc<AgentStreams>,
    health: &HealthReporter,
    subjects: SubjectCheck,
) -> Result<Router<Stack<SubjectCheck, Stack<StreamCountingLayer, Identity>>>, HubError> {
    let settings = &context.settings.listener;
    let max = context.settings.sessions.max_message_bytes;
    let identification = Arc::clone(&streams.identification);
    // What the services are is told to those alone who may be asked nothing else.
    let has_reflection = identification.is_open();
    let caching =
        CachingService { caching: streams.caching.clone(), identification, tasks: context.tasks.clone() };
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
        .layer(subjects)
        .add_service(operations)
        .add_service(caching)
        .add_optional_service(health_server)
        .add_optional_service(
            has_reflection.then(|| reflection().build_v1()).transpose().map_err(undescribed)?,
        )
        .add_optional_service(
            has_reflection.then(|| reflection().build_v1alpha()).transpose().map_err(undescribed)?,
        ))
}

fn undescribed(problem: impl Into<tonic_reflection::server::Error>) -> HubError {
    HubError::Descriptors(problem.into().to_string())
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
    B: hyper::body::Body<Data = hyper::body::Bytes> + Send + Unpin + 'static,
    B::Error: Into<tonic::codegen::StdError>,
{
    type Response = http::Response<Body>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Self::Response, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let open = request.extensions().get::<Peer>().map(|peer| peer.phase.request());
        let answer = self.0.call(request);
        async move {
            let answer = answer.await?;
            Ok(answer.map(|body| Body::new(ReadBody::new(body, open))))
        }
        .boxed()
    }
}
