//! What replicas say to one another about requests: the header and the body of a relayed one, and the frames of its
//! answer. Pure.

use std::time::Duration;

use http::{HeaderMap, Method};
use percent_encoding::{AsciiSet, CONTROLS, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use prost::Message as _;
use prost::bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use serde::{Deserialize, Serialize};

use crate::connected_agents::{
    AccountGrant, AnsweringAgent, AskedAgent, PreparedRequest, RecallFailure, RequestClass, SendFailure,
};
use kubesvc_core::wire::ops::{self, Head};
use kubesvc_core::{AgentId, GrantEpoch};
use kubesvc_runtime::request_channel::{header_map, wire_headers};

/// What is encoded in the header.
const HEADER_SET: &AsciiSet = &CONTROLS.add(b'%');
/// Maximum length of the principal's name in the header, in characters.
const MAX_PRINCIPAL_CHARS: usize = 256;
/// Maximum number of bytes in a frame of data.
pub(super) const MAX_DATA_BYTES: usize = 128 * 1024;

/// The header `x-kubesvc-for` of a relayed request: JSON, percent-encoded where it is not ASCII.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RelayedFor {
    /// Name of the user who asks.
    pub principal: String,
    /// ULID of the request.
    pub request_id: String,
    /// Epoch of the account's grant, as the other replica knows it.
    pub epoch: i64,
    /// Time until its caller waits no more, in milliseconds: replicas' clocks differ.
    pub deadline_ms: u64,
    /// What it does: `read`, `write` or `connect`.
    pub class: String,
    /// Agents that were asked already.
    pub asked: Vec<AgentId>,
}

/// Why a relayed call cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("the relayed request cannot be read: {0}")]
pub struct RelayedCallError(&'static str);

impl RelayedCallError {
    pub(super) fn class() -> Self {
        Self("its class")
    }
}

impl RelayedFor {
    pub(super) fn new(
        grant: &AccountGrant,
        request: &PreparedRequest,
        left: Duration,
        asked: &[AgentId],
    ) -> Self {
        Self {
            principal: request.principal.chars().take(MAX_PRINCIPAL_CHARS).collect(),
            request_id: request.request_id.clone(),
            epoch: grant.epoch.0,
            deadline_ms: left.as_millis().try_into().unwrap_or(u64::MAX),
            class: request.class.as_str().to_owned(),
            asked: asked.to_vec(),
        }
    }

    pub(super) fn header(&self) -> String {
        let json = serde_json::to_string(self).expect("texts and numbers are JSON");
        utf8_percent_encode(&json, HEADER_SET).to_string()
    }

    /// Reads the header.
    ///
    /// # Errors
    /// It is malformed.
    pub fn read(header: &str) -> Result<Self, RelayedCallError> {
        let json = percent_decode_str(header).decode_utf8().map_err(|_| RelayedCallError("x-kubesvc-for"))?;
        serde_json::from_str(&json).map_err(|_| RelayedCallError("x-kubesvc-for"))
    }

    /// The epoch of the grant, as the other replica knows it.
    pub fn epoch(&self) -> GrantEpoch {
        GrantEpoch(self.epoch)
    }

    pub(super) fn class(&self) -> Option<RequestClass> {
        [RequestClass::Read, RequestClass::Write, RequestClass::Connect]
            .into_iter()
            .find(|class| class.as_str() == self.class)
    }
}

/// The body of a relayed call: what the head of an HTTP request may be too small for, and the request's own body.
pub(super) fn relayed_body(request: &PreparedRequest) -> Bytes {
    let head = ops::Open {
        method: request.method.to_string(),
        target: request.target.clone().into_bytes(),
        headers: wire_headers(&request.headers),
        upgrade: request.upgrade,
        repeatable: request.repeatable,
        ..ops::Open::default()
    };
    let length = head.encoded_len();
    let mut body = BytesMut::with_capacity(4 + length + request.body.len());
    body.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    body.extend_from_slice(&head.encode_to_vec());
    body.extend_from_slice(&request.body);
    body.freeze()
}

/// A request as the body of a relayed call has it.
pub(super) struct RelayedRequest {
    pub(super) method: Method,
    pub(super) target: String,
    pub(super) headers: HeaderMap,
    pub(super) upgrade: bool,
    pub(super) repeatable: bool,
    pub(super) body: Bytes,
}

pub(super) fn read_relayed_body(mut body: Bytes) -> Result<RelayedRequest, RelayedCallError> {
    let cut = || RelayedCallError("its body is cut");
    let length = usize::try_from(body.try_get_u32().map_err(|_| cut())?).map_err(|_| cut())?;
    if body.len() < length {
        return Err(cut());
    }
    let head = ops::Open::decode(body.split_to(length)).map_err(|_| RelayedCallError("its head"))?;
    Ok(RelayedRequest {
        method: Method::from_bytes(head.method.as_bytes()).map_err(|_| RelayedCallError("its method"))?,
        target: String::from_utf8(head.target).map_err(|_| RelayedCallError("its target"))?,
        headers: header_map(head.headers).ok_or(RelayedCallError("a header"))?,
        upgrade: head.upgrade,
        repeatable: head.repeatable,
        body,
    })
}

/// A frame of an answer; of an upgraded request also of its caller.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum RelayFrame {
    /// Nothing but a sign of life.
    KeepAlive,
    /// An agent is about to be asked, or answers.
    Asked(AskedAgent),
    /// The head of the answer.
    Head(Head),
    /// Bytes of the body.
    Data(Bytes),
    /// The body is complete.
    End,
    /// There is no answer, or its body ends early.
    Failed(SendFailure),
    /// The answer of a write was not recalled.
    NotRecalled(RecallFailure),
}

impl RelayFrame {
    pub(super) fn encode(&self) -> Bytes {
        let (kind, rest): (u8, Bytes) = match self {
            Self::KeepAlive => return Bytes::new(),
            Self::Asked(agent) => (1, json(agent)),
            Self::Head(head) => (2, head.encode_to_vec().into()),
            Self::Data(bytes) => (3, bytes.clone()),
            Self::End => (4, Bytes::new()),
            Self::Failed(failure) => (5, json(failure)),
            Self::NotRecalled(failure) => (6, json(failure)),
        };
        let mut frame = BytesMut::with_capacity(1 + rest.len());
        frame.put_u8(kind);
        frame.extend_from_slice(&rest);
        frame.freeze()
    }

    /// Reads a frame; `None` if it is none.
    pub(super) fn decode(mut frame: Bytes) -> Option<Self> {
        let Some(kind) = frame.first().copied() else { return Some(Self::KeepAlive) };
        frame.advance(1);
        Some(match kind {
            1 => Self::Asked(serde_json::from_slice(&frame).ok()?),
            2 => Self::Head(Head::decode(frame).ok()?),
            3 => Self::Data(frame),
            4 => Self::End,
            5 => Self::Failed(serde_json::from_slice(&frame).ok()?),
            6 => Self::NotRecalled(serde_json::from_slice(&frame).ok()?),
            _ => return None,
        })
    }
}

fn json(value: &impl Serialize) -> Bytes {
    serde_json::to_vec(value).expect("texts and numbers are JSON").into()
}

/// `GET /internal/v1/accounts/{uid}/apply-settings`: what the owner of the agent that would be asked says of applying.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApplySettingsAnswer {
    /// `ops.ApplySettings` in hexadecimal; absent: no agent of the replica can be asked.
    apply: Option<String>,
}

impl ApplySettingsAnswer {
    /// Creates the answer.
    pub fn new(apply: Option<&ops::ApplySettings>) -> Self {
        Self { apply: apply.map(|apply| hex::encode(apply.encode_to_vec())) }
    }

    pub(super) fn read(&self) -> Option<ops::ApplySettings> {
        let bytes = hex::decode(self.apply.as_deref()?).ok()?;
        ops::ApplySettings::decode(bytes.as_slice()).ok()
    }
}

/// `POST /internal/v1/requests/forget`: writes of an agent's process whose answers their callers have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ForgetCall {
    /// The processes, each with its writes.
    pub processes: Vec<ForgottenWrites>,
}

/// Writes of one process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ForgottenWrites {
    /// The process.
    #[serde(flatten)]
    pub agent: AnsweringAgent,
    /// Ids of the requests.
    pub request_ids: Vec<String>,
}

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

pub(super) fn apply_settings_path(uid: &str) -> String {
    format!("/internal/v1/accounts/{}/apply-settings", encoded(uid))
}

pub(super) fn proxy_path(uid: &str) -> String {
    format!("/internal/v1/accounts/{}/proxy/", encoded(uid))
}

pub(super) fn recall_path(request_id: &str, agent: &AnsweringAgent, within: Duration) -> String {
    format!(
        "/internal/v1/requests/{}?agent={}&boot={}&within={}",
        encoded(request_id),
        encoded(agent.agent_id.as_str()),
        encoded(agent.boot_id.as_str()),
        within.as_millis()
    )
}

pub(super) const FORGET_PATH: &str = "/internal/v1/requests/forget";
