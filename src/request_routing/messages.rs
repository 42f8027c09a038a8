//! What replicas say to one another about requests. A relayed request is an HTTP request: its method, target, headers and body,
//! with a header that says for whom. The body of its answer begins with lines of JSON, who is asked and then the head, since it is
//! known before there is a head who is asked; then come the cluster's bytes, and a trailer that says how they ended. Pure.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use prost::bytes::{BufMut as _, Bytes, BytesMut};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::access::{AccessResource, Principal, Via};
use crate::connected_agents::{
    AccountGrant, AccountRequest, AnsweringAgent, AskedAgent, CallerRight, RequestCaller, RequestClass,
    RequestError,
};
use crate::peers::encoded;
use kubesvc_core::operations::ApplySettings;
use kubesvc_core::{AgentId, GrantEpoch};

/// Header that says for whom a request is relayed, and how.
pub(super) const RELAYED_FOR: HeaderName = HeaderName::from_static("x-kubesvc-for");
/// Trailer that says how the bytes of an answer ended: `whole`, or the error.
pub(super) const END: HeaderName = HeaderName::from_static("x-kubesvc-end");
/// Value of that trailer if the answer is whole.
const WHOLE: &str = "whole";
/// Beginning of the names of headers that are meant for the cluster, and that HTTP/2 or the connection would take for its own.
const HELD: &str = "x-kubesvc-held-";
/// The names of such headers.
const HELD_NAMES: [HeaderName; 7] = [
    header::CONNECTION,
    header::UPGRADE,
    header::CONTENT_LENGTH,
    header::TRANSFER_ENCODING,
    header::TE,
    header::HOST,
    header::EXPECT,
];
/// What is encoded in a header.
const HEADER_SET: &AsciiSet = &CONTROLS.add(b'%');
/// Maximum length of a line, in bytes: a head of 64 KiB, escaped.
pub(super) const MAX_LINE_BYTES: usize = 512 * 1024;

/// For whom a request is relayed: the header `x-kubesvc-for`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RelayedFor {
    /// Who asks.
    pub(super) caller: RequestCaller,
    /// ULID of the request.
    pub(super) request_id: String,
    /// Epoch of the account's grant, as the other replica knows it.
    epoch: i64,
    /// Time until its caller waits no more, in milliseconds: replicas' clocks differ.
    pub(super) deadline_ms: u64,
    /// What it does: `read`, `write` or `connect`.
    class: String,
    /// Whether it is a HEAD, which is relayed as GET: its answer has bytes of its own.
    pub(super) is_head: bool,
    /// Whether the connection is to be upgraded.
    pub(super) upgrade: bool,
    /// Whether the agent may send it again.
    pub(super) repeatable: bool,
    /// Agents that were asked already.
    pub(super) asked: Vec<AgentId>,
}

/// Why a relayed call cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("the relayed request cannot be read: {0}")]
pub struct RelayedCallError(pub(super) &'static str);

impl RelayedFor {
    pub(super) fn new(
        grant: &AccountGrant,
        request: &AccountRequest,
        left: Duration,
        asked: &[AgentId],
    ) -> Self {
        Self {
            caller: request.caller.clone(),
            request_id: request.request_id.clone(),
            epoch: grant.epoch.0,
            deadline_ms: left.as_millis().try_into().unwrap_or(u64::MAX),
            class: request.class.as_str().to_owned(),
            is_head: request.method == Method::HEAD,
            upgrade: request.upgrade,
            repeatable: request.repeatable,
            asked: asked.to_vec(),
        }
    }

    pub(super) fn read(headers: &HeaderMap) -> Result<Self, RelayedCallError> {
        let value = headers.get(RELAYED_FOR).ok_or(RelayedCallError("x-kubesvc-for is missing"))?;
        in_header(value).ok_or(RelayedCallError("x-kubesvc-for"))
    }

    /// The epoch of the grant, as the other replica knows it.
    pub(super) fn epoch(&self) -> GrantEpoch {
        GrantEpoch(self.epoch)
    }

    pub(super) fn class(&self) -> Result<RequestClass, RelayedCallError> {
        let mut classes = [RequestClass::Read, RequestClass::Write, RequestClass::Connect].into_iter();
        classes.find(|class| class.as_str() == self.class).ok_or(RelayedCallError("its class"))
    }
}

/// The headers of a relayed request.
pub(super) fn relayed_headers(request: &AccountRequest, relayed_for: &RelayedFor) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in &request.headers {
        if name.as_str().starts_with("x-kubesvc-") {
            continue;
        }
        if HELD_NAMES.contains(name) {
            let held = HeaderName::try_from(format!("{HELD}{name}")).expect("a name with a longer beginning");
            headers.append(held, value.clone());
        } else {
            headers.append(name, value.clone());
        }
    }
    headers.insert(RELAYED_FOR, header_value(relayed_for));
    headers
}

/// The headers of the request for the cluster, from those of the relayed one.
pub(super) fn cluster_headers(relayed: &HeaderMap) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in relayed {
        let held = name.as_str().strip_prefix(HELD);
        match held.map(|name| HELD_NAMES.iter().find(|one| *one == name)) {
            Some(Some(name)) => _ = headers.append(name, value.clone()),
            Some(None) => {}
            None if *name == RELAYED_FOR || HELD_NAMES.contains(name) => {}
            None => _ = headers.append(name, value.clone()),
        }
    }
    headers
}

/// A line of an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum AnswerLine {
    /// An agent is about to be asked, or answers.
    Asked(AskedAgent),
    /// The head of the answer. The cluster's bytes follow.
    Head(AnswerHead),
    /// There is no answer.
    Failed(RequestError),
}

/// The head of an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AnswerHead {
    status: u16,
    /// Names and values. Each character of a value stands for a byte.
    headers: Vec<(String, String)>,
}

impl AnswerHead {
    pub(super) fn new(status: StatusCode, headers: &HeaderMap) -> Self {
        let text = |value: &HeaderValue| value.as_bytes().iter().copied().map(char::from).collect();
        let headers = headers.iter().map(|(name, value)| (name.as_str().to_owned(), text(value)));
        Self { status: status.as_u16(), headers: headers.collect() }
    }

    /// Status and headers; `None` if they are malformed.
    pub(super) fn read(self) -> Option<(StatusCode, HeaderMap)> {
        let mut headers = HeaderMap::new();
        for (name, value) in self.headers {
            let value: Vec<u8> = value.chars().map(|one| u8::try_from(one).ok()).collect::<Option<_>>()?;
            let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
            headers.try_append(name, HeaderValue::from_bytes(&value).ok()?).ok()?;
        }
        Some((StatusCode::from_u16(self.status).ok()?, headers))
    }
}

impl AnswerLine {
    pub(super) fn encode(&self) -> Bytes {
        let mut line = BytesMut::new().writer();
        serde_json::to_writer(&mut line, self).expect("texts and numbers are JSON");
        let mut line = line.into_inner();
        line.put_u8(b'\n');
        line.freeze()
    }

    /// Reads a line, with or without its end; `None` if it is none.
    pub(super) fn decode(line: &[u8]) -> Option<Self> {
        serde_json::from_slice(line).ok()
    }
}

/// The trailer of an answer.
pub(super) fn end_trailer(end: Result<(), &RequestError>) -> HeaderMap {
    let value = match end {
        Ok(()) => HeaderValue::from_static(WHOLE),
        Err(error) => header_value(error),
    };
    HeaderMap::from_iter([(END, value)])
}

/// Reads the trailer of an answer: whether it is whole, or why not. `None`: there is none that can be read.
pub(super) fn read_end(trailers: Option<&HeaderMap>) -> Option<Result<(), RequestError>> {
    let value = trailers?.get(END)?;
    if value == WHOLE { Some(Ok(())) } else { in_header(value).map(Err) }
}

fn header_value(value: &impl Serialize) -> HeaderValue {
    let json = serde_json::to_string(value).expect("texts and numbers are JSON");
    let text = utf8_percent_encode(&json, HEADER_SET).to_string();
    HeaderValue::try_from(text).expect("it is ASCII without control characters")
}

fn in_header<T: DeserializeOwned>(value: &HeaderValue) -> Option<T> {
    let json = percent_decode_str(value.to_str().ok()?).decode_utf8().ok()?;
    serde_json::from_str(&json).ok()
}

/// The caller of a request, with the rights that were reviewed.
pub fn request_caller<'r>(
    principal: &Principal,
    rights: impl IntoIterator<Item = (&'r str, AccessResource)>,
) -> RequestCaller {
    let rights = rights.into_iter().map(|(verb, resource)| CallerRight {
        verb: verb.to_owned(),
        subresource: resource.subresource().to_owned(),
    });
    RequestCaller {
        name: principal.name.clone(),
        groups: principal.groups.clone(),
        uid: principal.uid.clone(),
        extra: principal.extra.clone(),
        rights: rights.collect(),
    }
}

/// The same caller, as the replica that has the agent knows it.
pub fn relayed_principal(caller: &RequestCaller) -> Principal {
    let RequestCaller { name, groups, uid, extra, rights: _ } = caller.clone();
    Principal { name, groups, uid, extra, via: Via::Relayed }
}

/// `GET /internal/v1/accounts/{uid}/apply-settings`: what the owner of the agent that would be asked says of applying.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApplySettingsAnswer {
    /// Absent: no agent of the replica can be asked.
    pub apply: Option<ApplySettings>,
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

pub(super) fn apply_settings_path(uid: &str) -> String {
    format!("/internal/v1/accounts/{}/apply-settings", encoded(uid))
}

/// The path of a relayed request, which ends with its target.
pub(super) fn proxy_path(uid: &str, target: &str) -> String {
    format!("/internal/v1/accounts/{}/proxy{target}", encoded(uid))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connected_agents::{RequestErrorKind, Retry};

    #[test]
    fn headers_for_the_cluster_arrive_as_they_were_and_no_caller_writes_those_of_replicas() {
        let mut request = AccountRequest::new(Method::GET, "/").expect("a path");
        let name = |text: &'static str| HeaderName::from_static(text);
        let meant =
            [("connection", "Upgrade"), ("upgrade", "SPDY/3.1"), ("content-length", "2"), ("accept", "a")];
        for (one, value) in meant {
            request.headers.append(name(one), HeaderValue::from_static(value));
        }
        request.headers.append("accept", HeaderValue::from_bytes(b"\xff").expect("a value"));
        let asked_for = request.headers.clone();
        request.headers.append(RELAYED_FOR, HeaderValue::from_static("forged"));
        request.headers.append(name("x-kubesvc-held-te"), HeaderValue::from_static("forged"));
        let grant =
            AccountGrant { name: "a".into(), zone: "z".into(), epoch: GrantEpoch(3), holders: Vec::new() };
        let relayed_for = RelayedFor::new(&grant, &request, Duration::from_secs(1), &["ü%\n".into()]);
        let mut headers = relayed_headers(&request, &relayed_for);
        assert!(!headers.contains_key("upgrade"), "HTTP/2 has none");
        assert_eq!(RelayedFor::read(&headers).expect("well-formed"), relayed_for);
        headers.insert("content-length", HeaderValue::from_static("9"));
        assert_eq!(cluster_headers(&headers), asked_for);
        assert!(RelayedFor::read(&HeaderMap::new()).is_err());
    }

    #[test]
    fn an_answer_without_its_trailer_was_cut_and_an_error_says_what_it_said() {
        assert_eq!(read_end(Some(&end_trailer(Ok(())))), Some(Ok(())));
        let later = RequestError::new(RequestErrorKind::NotSent, "ü\n%").then(Retry::Later);
        for error in [later, RequestError::cut("so")] {
            assert_eq!(read_end(Some(&end_trailer(Err(&error)))), Some(Err(error)));
        }
        for trailers in
            [None, Some(HeaderMap::new()), Some(HeaderMap::from_iter([(END, HeaderValue::from_static("x"))]))]
        {
            assert_eq!(read_end(trailers.as_ref()), None);
        }
    }

    #[test]
    fn a_head_keeps_every_byte_of_its_values() {
        let mut headers = HeaderMap::new();
        let bytes: Vec<u8> = (0x20..=0xff_u8).filter(|byte| *byte != 0x7f).collect();
        headers.append("x-all", HeaderValue::from_bytes(&bytes).expect("a value"));
        headers.append("x-all", HeaderValue::from_static("twice"));
        let line = AnswerLine::Head(AnswerHead::new(StatusCode::CREATED, &headers));
        let encoded = line.encode();
        assert_eq!(encoded.iter().filter(|byte| **byte == b'\n').count(), 1);
        let Some(AnswerLine::Head(head)) = AnswerLine::decode(&encoded) else { unreachable!("it is a head") };
        assert_eq!(head.read(), Some((StatusCode::CREATED, headers)));
        let wide = AnswerHead { status: 200, headers: vec![("a".into(), "\u{100}".into())] };
        assert_eq!(wide.read(), None);
    }
}
