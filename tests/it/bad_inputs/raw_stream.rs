//! A stream of an agent on which a test can send anything.

use std::time::Duration;

use kubesvc_core::wire::MAX_MESSAGE_BYTES;
use kubesvc_core::wire::ops::{self, agent_frame, hub_frame};
use kubesvc_runtime::grpc::ops::operations_client::OperationsClient;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Endpoint;
use tonic::{Status, Streaming};

use crate::world::World;
use kubesvc_testkit::must;

/// Timeout for an answer of the hub.
const LIMIT: Duration = Duration::from_secs(30);

/// An open stream.
pub(super) struct RawStream {
    frames: mpsc::Sender<ops::AgentFrame>,
    answers: Streaming<ops::HubFrame>,
    seq: u64,
}

impl RawStream {
    /// Opens a stream to the hub with this first frame.
    pub(super) async fn open(world: &World, first: agent_frame::Frame) -> Result<Self, Status> {
        Self::open_with(world, Some(first)).await
    }

    /// Opens a stream to the hub with an empty first frame.
    pub(super) async fn open_empty(world: &World) -> Result<Self, Status> {
        Self::open_with(world, None).await
    }

    async fn open_with(world: &World, frame: Option<agent_frame::Frame>) -> Result<Self, Status> {
        let hub = format!("http://127.0.0.1:{}", world.operator().hub_port());
        let endpoint = must(Endpoint::from_shared(hub).map_err(|error| error.to_string()));
        let channel = must(endpoint.connect().await.map_err(|error| error.to_string()));
        // The limit on message sizes is the hub's to enforce.
        let mut client = OperationsClient::new(channel).max_encoding_message_size(8 * MAX_MESSAGE_BYTES);
        let (frames, outgoing) = mpsc::channel(64);
        let first = ops::AgentFrame { frame, seq: 1, ack: 0 };
        frames.send(first).await.map_err(|_| Status::internal("the other half is kept here"))?;
        let answer = tokio::time::timeout(LIMIT, client.get_ops(ReceiverStream::new(outgoing))).await;
        let answer = answer.map_err(|_| Status::deadline_exceeded("the stream does not open"))??;
        Ok(Self { frames, answers: answer.into_inner(), seq: 1 })
    }

    /// Opens a stream of an agent that is accepted.
    pub(super) async fn accepted(world: &World, hello: ops::Hello) -> Self {
        let told = format!("{:.200?}", hello.agent_id);
        let mut line =
            must(Self::open(world, agent_frame::Frame::Hello(hello)).await.map_err(|e| e.to_string()));
        let first = line.next().await;
        assert!(matches!(first, Ok(Some(hub_frame::Frame::Accepted(_)))), "{told}: {first:?}");
        line
    }

    /// Sends any frame.
    pub(super) async fn say(&mut self, frame: Option<agent_frame::Frame>) {
        self.seq += 1;
        let seq = self.seq;
        let sent = self.frames.send(ops::AgentFrame { frame, seq, ack: 0 }).await;
        assert!(sent.is_ok(), "the hub has ended the stream: {:?}", self.answers.message().await);
    }

    /// Sends a frame with these sequence numbers.
    pub(super) async fn say_numbered(&mut self, frame: Option<agent_frame::Frame>, seq: u64, ack: u64) {
        let sent = self.frames.send(ops::AgentFrame { frame, seq, ack }).await;
        assert!(sent.is_ok(), "the hub has ended the stream: {:?}", self.answers.message().await);
    }

    /// The next frame other than a heartbeat; `None` at the end of the stream.
    pub(super) async fn next(&mut self) -> Result<Option<hub_frame::Frame>, Status> {
        let next = async {
            loop {
                match self.answers.message().await? {
                    None => return Ok(None),
                    Some(ops::HubFrame { frame: Some(hub_frame::Frame::Heartbeat(_)) | None, .. }) => {}
                    Some(frame) => return Ok(frame.frame),
                }
            }
        };
        tokio::time::timeout(LIMIT, next).await.map_err(|_| Status::deadline_exceeded("no answer"))?
    }

    /// The next answers about the agent's own accounts: name and message. Other frames are skipped.
    pub(super) async fn refusals(&mut self) -> Vec<(String, String)> {
        loop {
            match self.next().await {
                Ok(Some(hub_frame::Frame::StaticAnswers(answers))) => {
                    let told = |one: ops::StaticAnswer| (one.name, one.failure.unwrap_or_default().message);
                    return answers.answers.into_iter().map(told).collect();
                }
                Ok(Some(_)) => {}
                other => must(Err(format!("no answer about the agent's own accounts, but {other:?}"))),
            }
        }
    }

    /// Waits until everything sent so far has been processed and the stream is still open: frames are
    /// processed in order, and a list with an entry without a name gets an answer.
    pub(super) async fn until_heard(&mut self, what: &str) {
        let nameless = ops::StaticAccounts { accounts: vec![ops::AccountSpec::default()], complete: true };
        self.say(Some(agent_frame::Frame::StaticAccounts(nameless))).await;
        let refusals = self.refusals().await;
        assert!(refusals.iter().any(|(_, why)| why.contains("name must have")), "{what}: {refusals:?}");
    }
}

/// A valid hello.
pub(super) fn hello(agent_id: &str, zone: &str) -> ops::Hello {
    ops::Hello {
        agent_id: agent_id.to_owned(),
        boot_id: ulid::Ulid::generate().to_string(),
        connect_seq: 1,
        zone_id: zone.to_owned(),
        version: "0.0.0".to_owned(),
        protocol_min: 1,
        protocol_max: 1,
        ..ops::Hello::default()
    }
}
