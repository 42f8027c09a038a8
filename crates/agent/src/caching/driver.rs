//! Driver of the stream: opens it over the session's connection, sends the state's frames, and feeds in the hub's.

use std::sync::Arc;

use http::uri::PathAndQuery;
use prost::Message as _;
use prost::bytes::BufMut as _;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::task::AbortOnDropHandle;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::{Request, Status, Streaming};

use super::batch::EncodedFrame;
use super::shared::SharedStream;
use super::stream::{AccountCommand, CachingSender, FrameOutcome, StreamAction, StreamIdentity};
use crate::hub_token::HubService;
use crate::metrics::CachedObjectMetrics;
use kubesvc_core::wire::MAX_MESSAGE_BYTES;
use kubesvc_core::wire::common::Fence;
use kubesvc_core::wire::events::CacheDown;
use kubesvc_runtime::shutdown::spawn_named;
use kubesvc_runtime::waits::at;

/// Maximum number of frames queued for sending, and for reading.
const MAX_QUEUED_FRAMES: usize = 16;

/// A connection to a hub that takes cached objects.
#[derive(Clone, Debug)]
pub struct HubConnection {
    pub service: HubService,
    pub identity: StreamIdentity,
}

/// Notices of the stream to the accounts' supervisor.
#[derive(Debug)]
pub enum StreamNotice {
    /// A command for the readers of an account.
    Command(AccountCommand),
    /// The hub accepts nothing more of an account under this fence.
    Revoked(Fence),
}

/// Stream number and a frame of the hub; `None` at the stream's end.
type StreamFrame = (u64, Option<CacheDown>);

#[derive(Debug)]
pub struct StreamDriver {
    shared: Arc<SharedStream>,
    connection: watch::Receiver<Option<HubConnection>>,
    /// The receiver never waits for the stream.
    notices: mpsc::Sender<StreamNotice>,
    metrics: CachedObjectMetrics,
    open: Option<OpenCachingStream>,
    received: (mpsc::Sender<StreamFrame>, mpsc::Receiver<StreamFrame>),
}

/// An open or opening stream. Dropping it ends it.
#[derive(Debug)]
struct OpenCachingStream {
    number: u64,
    outbound: mpsc::Sender<EncodedFrame>,
    _reading: AbortOnDropHandle<()>,
}

impl StreamDriver {
    /// A driver for the sessions announced by `connection`.
    pub fn new(
        shared: Arc<SharedStream>,
        connection: watch::Receiver<Option<HubConnection>>,
        notices: mpsc::Sender<StreamNotice>,
        metrics: CachedObjectMetrics,
    ) -> Self {
        Self { shared, connection, notices, metrics, open: None, received: mpsc::channel(MAX_QUEUED_FRAMES) }
    }

    /// Drives the stream until dropped.
    pub async fn run(mut self) {
        self.connection.mark_changed();
        let mut unsent = None;
        loop {
            let until = match unsent {
                Some(_) => None,
                None => match self.shared.drive(CachingSender::poll) {
                    StreamAction::Open { stream, frame } => {
                        self.open(stream, frame);
                        continue;
                    }
                    StreamAction::Close => {
                        self.open = None;
                        continue;
                    }
                    StreamAction::Send(frame) => {
                        if let Some(sent) = self.shared.drive(|state, _| state.take_sent()) {
                            self.metrics.sent(&sent);
                        }
                        unsent = Some(frame);
                        None
                    }
                    StreamAction::Wait(until) => until,
                },
            };
            let outbound = self.open.as_ref().map(|open| open.outbound.clone());
            tokio::select! {
                permit = reserve(outbound), if unsent.is_some() => {
                    match (permit, unsent.take()) {
                        (Some(permit), Some(frame)) => drop(permit.send(frame)),
                        // The frame is sent again on the next stream.
                        _ => self.ended(),
                    }
                }
                changed = self.connection.changed() => {
                    if changed.is_err() {
                        // The link is gone: the agent is stopping, and aborts this task.
                        return std::future::pending().await;
                    }
                    unsent = None;
                    self.connection_changed();
                }
                Some((stream, frame)) = self.received.1.recv() => {
                    // The queued frame belongs to the open stream: the end of a former one does not affect it.
                    if frame.is_none() && self.is_open(stream) {
                        unsent = None;
                    }
                    self.received(stream, frame).await;
                }
                () = self.shared.changed(), if unsent.is_none() => {}
                () = at(until) => {}
            }
        }
    }

    fn connection_changed(&mut self) {
        self.open = None;
        let identity =
            self.connection.borrow_and_update().as_ref().map(|connection| connection.identity.clone());
        self.shared.drive(|state, _| state.session_changed(identity));
    }

    fn open(&mut self, number: u64, first: EncodedFrame) {
        let Some(hub) = self.connection.borrow().as_ref().map(|connection| connection.service.clone()) else {
            return self.shared.drive(|state, now| state.ended(number, now));
        };
        let (outbound, frames) = mpsc::channel(MAX_QUEUED_FRAMES);
        // The queue is new, so it has room.
        let _ = outbound.try_send(first);
        let received = self.received.0.clone();
        let reading = spawn_named("stream of cached objects", async move {
            let ended = match call(hub.clone(), frames).await {
                Ok(inbound) => read(number, inbound, &received).await.map_err(|status| ("it broke", status)),
                Err(status) => Err(("the hub refused it", status)),
            };
            if let Err((how, status)) = ended {
                let why = hub.shown(status.message());
                tracing::info!(code = ?status.code(), "the stream of cached objects has ended, {how}: {why}");
            }
            let _ = received.send((number, None)).await;
        });
        self.open = Some(OpenCachingStream { number, outbound, _reading: reading });
    }

    fn is_open(&self, number: u64) -> bool {
        self.open.as_ref().is_some_and(|open| open.number == number)
    }

    fn ended(&mut self) {
        if let Some(open) = self.open.take() {
            self.shared.drive(|state, now| state.ended(open.number, now));
        }
    }

    async fn received(&mut self, number: u64, frame: Option<CacheDown>) {
        // A late frame of a former stream.
        if !self.is_open(number) {
            return;
        }
        let Some(frame) = frame else { return self.ended() };
        let outcome = self.shared.drive(|state, now| state.frame(number, frame, now));
        let FrameOutcome { commands, revoked, closed, is_unknown } = outcome;
        if is_unknown {
            self.metrics.unknown_frame("caching");
            tracing::debug!("ignored a frame of an unknown type on the stream of cached objects");
        }
        // Sending fails only if the receiver is gone, because the agent is stopping.
        for command in commands {
            let _ = self.notices.send(StreamNotice::Command(command)).await;
        }
        if let Some((fence, reason)) = revoked {
            tracing::info!(uid = %fence.account_uid, epoch = fence.caching_epoch, reason = reason.as_str_name(), "caching is revoked");
            let _ = self.notices.send(StreamNotice::Revoked(fence)).await;
        }
        if let Some(closed) = closed {
            tracing::info!(
                reason = closed.reason().as_str_name(),
                "the hub closed the stream of cached objects: {}",
                closed.message
            );
            self.open = None;
        }
    }
}

/// Room for a frame; `None` if there is no stream, or it has ended.
async fn reserve(outbound: Option<mpsc::Sender<EncodedFrame>>) -> Option<mpsc::OwnedPermit<EncodedFrame>> {
    outbound?.reserve_owned().await.ok()
}

async fn call(hub: HubService, frames: mpsc::Receiver<EncodedFrame>) -> Result<Streaming<CacheDown>, Status> {
    let mut client = Grpc::new(hub)
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES);
    client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let path = PathAndQuery::from_static(STREAM_PATH);
    let response = client.streaming(Request::new(ReceiverStream::new(frames)), path, CachingCodec).await?;
    Ok(response.into_inner())
}

async fn read(
    number: u64,
    mut inbound: Streaming<CacheDown>,
    received: &mpsc::Sender<StreamFrame>,
) -> Result<(), Status> {
    while let Some(frame) = inbound.message().await? {
        if received.send((number, Some(frame))).await.is_err() {
            break;
        }
    }
    Ok(())
}

/// Path of `events.Caching/Stream`, for `tonic::client::Grpc::streaming`.
const STREAM_PATH: &str = "/events.Caching/Stream";

/// [`EncodedFrame`]s out, [`CacheDown`]s in.
#[derive(Clone, Copy, Debug, Default)]
struct CachingCodec;

impl Codec for CachingCodec {
    type Encode = EncodedFrame;
    type Decode = CacheDown;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for CachingCodec {
    type Item = EncodedFrame;
    type Error = Status;

    fn encode(&mut self, frame: EncodedFrame, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(frame.bytes());
        Ok(())
    }
}

impl Decoder for CachingCodec {
    type Item = CacheDown;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<CacheDown>, Status> {
        let frame = CacheDown::decode(buffer);
        frame
            .map(Some)
            .map_err(|error| Status::internal(format!("a frame of the hub cannot be read: {error}")))
    }
}
