//! The first frames of a stream: Hello, then Accepted or Refused.

use std::time::Duration;

use prost::Message;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

use crate::account::failure::truncate;
use crate::agent::AgentOptions;
use crate::agent::link::StreamEnd;
use crate::wire::ops::operations_client::OperationsClient;
use crate::wire::ops::{
    Accepted, AgentFrame, HeldAccount, Hello, HubFrame, KubernetesPlace, agent_frame, hub_frame,
};
use crate::wire::{MAX_HELD_BYTES, MAX_MESSAGE_BYTES, MESSAGE_HEAD_BYTES, PROTOCOL_VERSION};

/// Timeout for the hub's answer to the hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of frames queued for the network; further ones wait at their source.
const MAX_QUEUED_FRAMES: usize = 16;

/// A stream that the hub has accepted.
#[derive(Debug)]
pub(super) struct AcceptedStream {
    pub(super) accepted: Accepted,
    pub(super) outbound: mpsc::Sender<AgentFrame>,
    pub(super) inbound: Streaming<HubFrame>,
}

/// Builds the hello, for a hub that accepts messages of `max_bytes`. Held accounts that do not fit are left
/// out.
pub(super) fn hello(
    options: &AgentOptions,
    boot_id: &str,
    connect_seq: u64,
    max_bytes: usize,
    held: impl Iterator<Item = HeldAccount>,
) -> Hello {
    let mut room = MAX_HELD_BYTES.min(max_bytes.saturating_sub(MESSAGE_HEAD_BYTES));
    let accounts_held = held
        .take_while(|held| {
            let left = room.checked_sub(held.encoded_len() + 8);
            room = left.unwrap_or_default();
            left.is_some()
        })
        .collect();
    let place = options.place.clone();
    Hello {
        agent_id: options.agent_id.clone(),
        boot_id: boot_id.to_owned(),
        connect_seq,
        zone_id: options.zone_id.clone(),
        version: options.version.clone(),
        protocol_min: PROTOCOL_VERSION,
        protocol_max: PROTOCOL_VERSION,
        capabilities: Vec::new(),
        accounts_held,
        kube: place.map(|(namespace, pod)| KubernetesPlace { namespace, pod }),
        max_message_bytes: u32::try_from(MAX_MESSAGE_BYTES).unwrap_or(u32::MAX),
        cluster_uid: String::new(),
    }
}

/// Opens the stream, sends the hello, and waits for the answer.
pub(super) async fn greet(channel: Channel, hello: Hello) -> Result<AcceptedStream, StreamEnd> {
    match timeout(HELLO_TIMEOUT, open(channel, hello)).await {
        Ok(result) => result,
        Err(_) => Err(StreamEnd::Broken(format!(
            "the hub did not answer the hello within {} s",
            HELLO_TIMEOUT.as_secs()
        ))),
    }
}

async fn open(channel: Channel, hello: Hello) -> Result<AcceptedStream, StreamEnd> {
    let mut client = OperationsClient::new(channel)
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES);
    let (outbound, frames) = mpsc::channel(MAX_QUEUED_FRAMES);
    let first = AgentFrame { seq: 1, ack: 0, frame: Some(agent_frame::Frame::Hello(hello)) };
    // The queue is new, so there is room. The hub may wait for the hello before it answers the call at all.
    let _ = outbound.try_send(first);
    let response = client.get_ops(ReceiverStream::new(frames)).await.map_err(|status| broken(&status))?;
    let mut inbound = response.into_inner();
    let first = inbound.message().await.map_err(|status| broken(&status))?;
    match first.and_then(|frame| frame.frame) {
        Some(hub_frame::Frame::Accepted(accepted)) => Ok(AcceptedStream { accepted, outbound, inbound }),
        Some(hub_frame::Frame::Refused(refused)) => Err(StreamEnd::Refused(refused)),
        Some(_) => Err(StreamEnd::Broken("the hub's first frame is neither Accepted nor Refused".to_owned())),
        None => Err(StreamEnd::Broken("the hub closed the stream without an answer to the hello".to_owned())),
    }
}

/// The end of a stream with an error.
pub(super) fn broken(status: &Status) -> StreamEnd {
    let remedy = match status.code() {
        Code::Unimplemented => " (is this the address of a kubesvc hub?)",
        Code::Unauthenticated | Code::PermissionDenied => {
            " (does the hub, or a proxy before it, want a certificate?)"
        }
        _ => "",
    };
    let text =
        if status.message().is_empty() { super::dial::chain(status) } else { status.message().to_owned() };
    StreamEnd::Broken(format!("the stream to the hub broke: {:?}: {}{remedy}", status.code(), shown(&text)))
}

/// A text from the hub, made safe for a log line.
pub(super) fn shown(text: &str) -> String {
    let mut text: String = text.chars().filter(|letter| !letter.is_control()).collect();
    truncate(&mut text, 512);
    text
}
