//! From a connection to the hub to a stream that the hub has accepted: Hello, then Accepted or Refused.

use std::time::Duration;

use prost::Message;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

use crate::AgentOptions;
use crate::caching::{HubConnection, StreamIdentity};
use crate::link::LinkEnd;
use crate::link::refusal::{HubRefusal, said};
use crate::link::transport::HubChannel;
use kubesvc_core::requests;
use kubesvc_core::wire::ops::{
    Accepted, AgentFrame, HeldAccount, Hello, HubFrame, KubernetesPlace, agent_frame, hub_frame,
};
use kubesvc_core::wire::{
    MAX_HELD_BYTES, MAX_MESSAGE_BYTES, MESSAGE_HEAD_BYTES, PROTOCOL_VERSION, REAUTH_CAPABILITY,
    REFUSALS_CAPABILITY,
};
use kubesvc_runtime::grpc::ops::operations_client::OperationsClient;

/// Timeout for the hub's answer to the hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of frames queued for the network; further ones wait at their source.
const MAX_QUEUED_FRAMES: usize = 16;

/// What is needed to stream objects, with compressed bodies.
pub(super) const CACHING_CAPABILITIES: [&str; 2] = ["caching/1", "zstd/1"];
/// What this agent can do. The hub answers with what of it is used.
const CAPABILITIES: [&str; 5] = [
    CACHING_CAPABILITIES[0],
    CACHING_CAPABILITIES[1],
    requests::CAPABILITY,
    REFUSALS_CAPABILITY,
    REAUTH_CAPABILITY,
];

/// A stream that the hub has accepted.
#[derive(Debug)]
pub(super) struct AcceptedStream {
    pub(super) accepted: Accepted,
    /// The connection, for further streams, and what it shows.
    pub(super) hub: HubChannel,
    /// Number of the token that the stream was opened with; 0: none.
    pub(super) token: u64,
    pub(super) outbound: mpsc::Sender<AgentFrame>,
    pub(super) inbound: Streaming<HubFrame>,
}

impl AcceptedStream {
    fn uses(&self, capability: &str) -> bool {
        self.accepted.capabilities.iter().any(|used| used == capability)
    }

    /// Whether this hub hears that a cluster refuses the credential of a held account.
    pub(super) fn hears_refusals(&self) -> bool {
        self.uses(REFUSALS_CAPABILITY)
    }

    /// Whether this hub takes another token for a session that goes on.
    pub(super) fn takes_tokens(&self) -> bool {
        self.uses(REAUTH_CAPABILITY)
    }

    /// The connection for further streams; `None` if the hub does not use all of these capabilities.
    pub(super) fn connection(&self, capabilities: &[&str], agent: &Introduction) -> Option<HubConnection> {
        capabilities.iter().all(|one| self.uses(one)).then(|| HubConnection {
            service: self.hub.service.clone(),
            identity: StreamIdentity {
                session_id: self.accepted.session_id.clone(),
                agent_id: agent.options.agent_id.to_string(),
                boot_id: agent.boot_id.clone(),
                replica_id: self.accepted.replica_id.clone(),
                max_message_bytes: agent.max_message_bytes,
            },
        })
    }
}

/// What the agent says of itself to a hub.
#[derive(Debug)]
pub(super) struct Introduction {
    pub(super) options: AgentOptions,
    /// Identifies this process; the hub uses it to tell a reconnecting agent from a second one.
    boot_id: String,
    connect_seq: u64,
    /// Maximum message size that the hub accepts, in bytes, as far as it is known.
    pub(super) max_message_bytes: usize,
    /// The uid of kube-system in the cluster that the agent runs in, once read. It does not change while the
    /// agent runs.
    pub(super) own_cluster: Option<String>,
}

impl Introduction {
    pub(super) fn new(options: AgentOptions, boot_id: String) -> Self {
        Self { options, boot_id, connect_seq: 0, max_message_bytes: MAX_MESSAGE_BYTES, own_cluster: None }
    }

    /// The hello of the next connection. Held accounts that do not fit are left out.
    pub(super) fn hello(&mut self, held: Vec<HeldAccount>) -> Hello {
        self.connect_seq += 1;
        let mut free_bytes = MAX_HELD_BYTES.min(self.max_message_bytes.saturating_sub(MESSAGE_HEAD_BYTES));
        let held = held.into_iter().take_while(|held| {
            let left = free_bytes.checked_sub(held.encoded_len() + 8);
            free_bytes = left.unwrap_or_default();
            left.is_some()
        });
        let accounts_held = held.collect();
        let options = &self.options;
        Hello {
            agent_id: options.agent_id.to_string(),
            boot_id: self.boot_id.clone(),
            connect_seq: self.connect_seq,
            zone_id: options.zone_id.clone(),
            version: options.version.clone(),
            protocol_min: PROTOCOL_VERSION,
            protocol_max: PROTOCOL_VERSION,
            capabilities: CAPABILITIES.map(str::to_owned).into(),
            accounts_held,
            kube: options.place.clone().map(|(namespace, pod)| KubernetesPlace { namespace, pod }),
            max_message_bytes: u32::try_from(MAX_MESSAGE_BYTES).unwrap_or(u32::MAX),
            cluster_uid: self.own_cluster.clone().unwrap_or_default(),
        }
    }
}

/// Opens the stream, sends the hello, and waits for the answer.
pub(super) async fn greet(hub: HubChannel, hello: Hello) -> Result<AcceptedStream, LinkEnd> {
    match timeout(HELLO_TIMEOUT, open(&hub, hello)).await {
        Ok(Err(LinkEnd::Broken(problem))) => Err(LinkEnd::Broken(hub.explained(problem))),
        Ok(result) => result,
        Err(_) => Err(LinkEnd::Broken(format!(
            "the hub did not answer the hello within {} s",
            HELLO_TIMEOUT.as_secs()
        ))),
    }
}

async fn open(hub: &HubChannel, hello: Hello) -> Result<AcceptedStream, LinkEnd> {
    // Before the token is sent, so that a change in between is noticed.
    let token = hub.token_number();
    let mut client = OperationsClient::new(hub.service.clone())
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES);
    let (outbound, frames) = mpsc::channel(MAX_QUEUED_FRAMES);
    let zone = hello.zone_id.clone();
    let first = AgentFrame { seq: 1, ack: 0, frame: Some(agent_frame::Frame::Hello(hello)) };
    // The queue is new, so there is room. The hub may wait for the hello before it answers the call at all.
    let _ = outbound.try_send(first);
    let response =
        client.get_ops(ReceiverStream::new(frames)).await.map_err(|status| broken(&status, hub))?;
    let mut inbound = response.into_inner();
    let first = inbound.message().await.map_err(|status| broken(&status, hub))?;
    match first.and_then(|frame| frame.frame) {
        Some(hub_frame::Frame::Accepted(accepted)) => {
            Ok(AcceptedStream { accepted, hub: hub.clone(), token, outbound, inbound })
        }
        Some(hub_frame::Frame::Refused(refused)) => {
            Err(LinkEnd::Refused(HubRefusal::of_frame(&refused, &zone, hub)))
        }
        Some(_) => Err(LinkEnd::Broken("the hub's first frame is neither Accepted nor Refused".to_owned())),
        None => Err(LinkEnd::Broken("the hub closed the stream without an answer to the hello".to_owned())),
    }
}

/// The end of a stream with an error.
pub(super) fn broken(status: &Status, hub: &HubChannel) -> LinkEnd {
    if let Some(refusal) = HubRefusal::of_status(status, hub) {
        return LinkEnd::Refused(refusal);
    }
    let remedy = match status.code() {
        Code::Unimplemented => " (is this the address of a kubesvc hub?)",
        _ => "",
    };
    LinkEnd::Broken(format!(
        "the stream to the hub broke: {:?}: {}{remedy}",
        status.code(),
        said(status, hub)
    ))
}
