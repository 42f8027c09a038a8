//! The gRPC services of the hub.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::task::TaskTracker;
use tonic::transport::Server;
use tonic::transport::server::Router;
use tonic::{Request, Response, Status, Streaming};
use tonic_health::server::HealthReporter;
use tower::layer::util::{Identity, Stack};

use crate::hub::admission::handshake::{self, AgentStreams};
use crate::hub::admission::streams::StreamCountingLayer;
use crate::hub::admission::transport::Peer;
use crate::hub::context::HubContext;
use crate::hub::{HubError, Pings};
use crate::wire::events::caching_server::{Caching, CachingServer};
use crate::wire::ops::operations_server::{Operations, OperationsServer};
use crate::wire::{DESCRIPTORS, events, ops};

/// Maximum number of streams of one connection: GetOps, Caching, health and reflection, with reserve.
const MAX_STREAMS: u32 = 16;
/// HTTP/2 window of a stream. GetOps is always read, so this is a bound and no back-pressure.
const STREAM_WINDOW: u32 = 1024 * 1024;
/// HTTP/2 window of a connection, larger than the window of a stream that is not read.
const CONNECTION_WINDOW: u32 = 4 * 1024 * 1024;
/// Maximum size of an HTTP/2 frame, in bytes.
const MAX_FRAME_BYTES: u32 = 16 * 1024;
/// Maximum size of the headers of one request, in bytes.
const MAX_HEADER_BYTES: u32 = 16 * 1024;
/// Maximum number of streams that the client reset and that are not handled yet (rapid reset).
const MAX_PENDING_RESETS: usize = 32;
/// Maximum number of streams that the server reset for errors of the client; then the connection is closed.
const MAX_ERROR_RESETS: usize = 256;
/// Maximum number of frames queued for one agent, beside those of its session.
const MAX_QUEUED_FRAMES: usize = 4;

/// Names of the services in gRPC's health service.
pub(in crate::hub) const SERVICES: [&str; 3] = ["", "ops.Operations", "events.Caching"];

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
}

struct CachingService;

#[async_trait]
impl Caching for CachingService {
    type StreamStream = ReceiverStream<Result<events::CacheDown, Status>>;

    async fn stream(
        &self,
        _request: Request<Streaming<events::CacheUp>>,
    ) -> Result<Response<Self::StreamStream>, Status> {
        Err(Status::unimplemented("this operator does not take cached objects yet"))
    }
}

/// All services, counting the streams of each connection.
pub(in crate::hub) type CountedRouter = Router<Stack<StreamCountingLayer, Identity>>;

/// Builds all services with the HTTP/2 limits.
pub(in crate::hub) async fn router(
    context: &HubContext,
    streams: Arc<AgentStreams>,
    health: &HealthReporter,
) -> Result<CountedRouter, HubError> {
    let settings = &context.settings;
    let max = settings.max_message_bytes;
    let operations = OperationsServer::new(OperationsService { streams, tasks: context.tasks.clone() })
        .max_decoding_message_size(max)
        .max_encoding_message_size(max);
    let caching =
        CachingServer::new(CachingService).max_decoding_message_size(max).max_encoding_message_size(max);
    for service in SERVICES {
        health.set_service_status(service, tonic_health::ServingStatus::Serving).await;
    }
    let health_server = settings.health_service.then(|| {
        let service = tonic_health::server::HealthService::from_health_reporter(health.clone());
        tonic_health::pb::health_server::HealthServer::new(service)
    });
    let reflection = || {
        let mut builder =
            tonic_reflection::server::Builder::configure().register_encoded_file_descriptor_set(DESCRIPTORS);
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
