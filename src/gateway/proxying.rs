//! One request to an account: what is sent, and what the caller gets.

use std::sync::Arc;

use futures::{StreamExt as _, stream};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Response, StatusCode, Version};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Bytes, Incoming};

use super::answers::{AnswerBody, AuditedStream};
use super::checks::{self, Recheck};
use super::listener::ConnectionInfo;
use super::paths::AccountPath;
use super::records::{Ending, Recorder, SharedRecorder};
use super::status::Refusal;
use super::{Body, Call, Gateway, full, rewriting, upgrades};
use crate::access::audit::AuditEvent;
use crate::access::{Principal, ShortRequest};
use crate::connected_agents::{
    AccountRequest, AccountResponse, AskedAgent, AskedObserver, DEFAULT_HEAD_TIMEOUT, Repetition,
    RequestError,
};
use crate::informers::AccountKey;
use crate::request_routing::request_caller;
use kubesvc_core::KubesvcAccount;
use kubesvc_core::requests::MAX_REQUEST_BODY_BYTES;
use kubesvc_core::requests::headers::{is_about_caller, is_about_host, is_status, is_upgrade};
use kubesvc_core::requests::watch_lines::has_event_lines;
use kubesvc_runtime::listen::bodies::{self, BodyPermit};
use kubesvc_runtime::shutdown::spawn_named;
use kubesvc_store::OperationOutcome;

/// Maximum size of the index of `/openapi/v3`, in bytes.
const MAX_INDEX_BYTES: usize = 8 * 1024 * 1024;
/// Headers of an answer that belong to one connection.
const HOP_BY_HOP: [&str; 8] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// The account of a request that may be made, what is checked again while it lasts, and its count: `None` for a watch and a
/// followed log. That of an upgrade is given back with 101.
type Admitted = (Arc<KubesvcAccount>, Recheck, Option<ShortRequest>);

impl Gateway {
    /// Passes a request on to an account, and its answer to the caller.
    pub(super) async fn proxy(
        self: &Arc<Self>,
        request: Request<Incoming>,
        call: &Call,
        principal: Principal,
        account: &AccountPath,
        path: String,
    ) -> Result<Response<Body>, Refusal> {
        let query = request.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
        let (outgoing, asks_upgrade) = self.read_head(&request, path + &query, call, &principal)?;
        // A body is passed on; an upgraded request has none.
        let mut outgoing = outgoing.upgrading(asks_upgrade && request.body().is_end_stream());
        let query = query.strip_prefix('?').unwrap_or_default();
        let mut recorder =
            Recorder::new(&self.ports, &self.replica_id, call, principal.clone(), &outgoing, query);
        let admitted = self.admit(call, &principal, account, &mut outgoing, &mut recorder).await;
        let recorder = Arc::new(recorder);
        let admitted = admitted.inspect_err(|refusal| recorder.refused(refusal))?;
        self.send(request, call, outgoing, &account.prefix(), admitted, recorder).await
    }

    /// A request as the account's API server reads it, and whether its headers ask for an upgrade of the connection.
    pub(super) fn read_head<B>(
        &self,
        request: &Request<B>,
        target: String,
        call: &Call,
        principal: &Principal,
    ) -> Result<(AccountRequest, bool), Refusal> {
        let outgoing = AccountRequest::new(call.method.clone(), target).map_err(Refusal::from);
        let head = outgoing.and_then(|outgoing| Ok((outgoing, asks_upgrade(request)?)));
        head.inspect_err(|refusal| self.refused(&call.refusal_by(principal), refusal))
    }

    /// Checks everything that can be checked before the body is read.
    async fn admit(
        &self,
        call: &Call,
        principal: &Principal,
        path: &AccountPath,
        outgoing: &mut AccountRequest,
        recorder: &mut Recorder,
    ) -> Result<Admitted, Refusal> {
        if let Some(name) = call.headers.keys().find(|name| name.as_str().starts_with("impersonate-")) {
            return Err(Refusal::forbidden(format!(
                "the header {name} is not taken: an account's API is used with the rights of its agent's credential"
            )));
        }
        let wanted = checks::wanted(&call.method, outgoing.class, path)?;
        outgoing.caller =
            request_caller(principal, wanted.iter().map(|access| (access.verb, access.resource)));
        let recheck = self.authorize(call, principal, wanted).await?;
        let key = AccountKey { namespace: path.namespace.clone(), name: path.object.clone() };
        let account = self.ports.accounts.get(&key).ok_or_else(|| {
            Refusal::unavailable(format!("there is no account object {key} that the operator watches"))
        })?;
        recorder.of_account(&account);
        narrows(call, account.account_name())?;
        let length = call.header(header::CONTENT_LENGTH.as_str()).parse::<u64>().unwrap_or_default();
        if length > MAX_REQUEST_BODY_BYTES as u64 {
            return Err(Refusal::too_large(format!("the body has more than {MAX_REQUEST_BODY_BYTES} bytes")));
        }
        let is_stream = outgoing.path.is_long(call.method.as_str());
        let short = (!is_stream).then(|| self.ports.callers.short(&principal.name)).transpose()?;
        Ok((account, recheck, short))
    }

    async fn send(
        self: &Arc<Self>,
        mut request: Request<Incoming>,
        call: &Call,
        outgoing: AccountRequest,
        prefix: &str,
        (account, recheck, mut short): Admitted,
        recorder: SharedRecorder,
    ) -> Result<Response<Body>, Refusal> {
        let connection = request.extensions_mut().remove::<Arc<ConnectionInfo>>();
        let mut body_memory = self.bodies.permit(outgoing.caller.name.clone());
        let mut upgrade = None;
        let mut body = Bytes::new();
        if outgoing.upgrade {
            let (to_cluster, from_caller) = upgrades::from_caller();
            *outgoing.upgraded.lock() = Some(from_caller);
            upgrade = Some((hyper::upgrade::on(&mut request), to_cluster));
        } else {
            let read = read_body(request.into_body(), &mut body_memory).await;
            body = read.inspect_err(|refusal| recorder.refused(refusal))?;
            if call.method == Method::DELETE {
                recorder.of_delete_options(&body);
            }
        }
        let is_upgrade = outgoing.upgrade;
        let is_stream = outgoing.path.is_long(call.method.as_str());
        let watches = outgoing.path.watches_objects(call.method.as_str());
        let is_index = call.method == Method::GET && rewriting::has_paths(&outgoing.target);
        let goes_on = outgoing.repetition() == Repetition::Recalled;
        let outgoing = AccountRequest {
            request_id: call.request_id.clone(),
            headers: outgoing_headers(call, &outgoing),
            body,
            on_asked: on_asked(&recorder),
            ..outgoing.within(DEFAULT_HEAD_TIMEOUT)
        };
        let uid = account.uid().to_owned();
        let answered = if goes_on {
            let (answered, held) = self.write(uid, outgoing, (short, body_memory), &recorder).await;
            short = held.and_then(|(short, _)| short);
            answered
        } else {
            let answered = self.ports.requests.send(&uid, outgoing).await;
            drop(body_memory);
            answered.inspect_err(|error| recorder.failed(error, &Refusal::from(error.clone())))
        };
        let answer = answered.map_err(Refusal::from)?;
        if !is_status(answer.status.as_u16().into(), is_upgrade) {
            let why =
                format!("the answer has status {}, which this request cannot have", answer.status.as_u16());
            return Err(Refusal::new(StatusCode::BAD_GATEWAY, why));
        }
        let agent = answer.agent.clone();
        let open =
            |code| AuditedStream::begin(Arc::clone(&recorder), self.metrics.clone(), recheck, code, agent);
        if let (StatusCode::SWITCHING_PROTOCOLS, Some((upgrade, to_cluster))) = (answer.status, upgrade) {
            let headers = upgraded_headers(&answer.headers, prefix);
            let passing = upgrades::pass_on(upgrade, to_cluster, answer.body, open(answer.status));
            let passing = async move {
                passing.await;
                // It is one of the connections that may be open until here.
                drop(connection);
            };
            drop(spawn_named("upgraded connection", passing).detach());
            return Ok(respond(StatusCode::SWITCHING_PROTOCOLS, headers, full(Bytes::new())));
        }
        if is_stream && answer.status.is_success() {
            let (code, headers) = (answer.status, incoming_headers(&answer.headers, prefix));
            let has_lines = {
                let headers = headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
                has_event_lines(code.as_u16().into(), headers)
            };
            let stopping = (watches && has_lines).then(|| self.stopping.clone());
            let body = AnswerBody::stream(answer.body, open(code), stopping).boxed_unsync();
            return Ok(respond(code, headers, body));
        }
        if is_upgrade {
            // What a refused upgrade answers is given on as it comes.
            recorder.ended(AuditEvent::Write, &ending(answer.status, &answer.agent, 0));
        }
        given(answer, prefix, is_index, short).await
    }

    /// Makes a write. It goes on when its caller leaves, holds what it is counted with until it ends, and is recorded.
    pub(super) async fn write<H: Send + 'static>(
        &self,
        uid: String,
        outgoing: AccountRequest,
        held: H,
        recorder: &SharedRecorder,
    ) -> (Result<AccountResponse, RequestError>, Option<H>) {
        let (requests, recorder) = (Arc::clone(&self.ports.requests), Arc::clone(recorder));
        let writing = spawn_named("write to an account", async move {
            let (answered, bytes) = match requests.send(&uid, outgoing).await {
                Ok(answer) => {
                    let (answer, bytes) = read_whole(answer).await;
                    (Ok(answer), bytes)
                }
                Err(error) => (Err(error), 0),
            };
            record_write(&recorder, &answered, bytes);
            (answered, Some(held))
        });
        // Its panic is logged.
        writing.detach().await.unwrap_or_else(|_| {
            let why = "the operator failed to finish the request; see its log";
            (Err(RequestError::unknown(why)), None)
        })
    }
}

/// The body of a request. All of it is read before an agent is chosen.
async fn read_body(body: Incoming, memory: &mut BodyPermit) -> Result<Bytes, Refusal> {
    let expected = body.size_hint().upper().and_then(|bytes| usize::try_from(bytes).ok());
    let expected = expected.map(|bytes| bytes.min(MAX_REQUEST_BODY_BYTES));
    Ok(bodies::collect(body, MAX_REQUEST_BODY_BYTES, expected, memory).await?)
}

/// Records which agent is given a write or an upgrade.
pub(super) fn on_asked(recorder: &SharedRecorder) -> Option<AskedObserver> {
    let told = recorder.is_change().then(|| Arc::clone(recorder))?;
    Some(Arc::new(move |agent| told.asked(agent)))
}

/// The answer that is no stream, as the caller gets it.
async fn given(
    answer: AccountResponse,
    prefix: &str,
    is_index: bool,
    short: Option<ShortRequest>,
) -> Result<Response<Body>, Refusal> {
    let (code, mut headers) = (answer.status, incoming_headers(&answer.headers, prefix));
    if is_index && code == StatusCode::OK {
        headers.remove(header::CONTENT_LENGTH);
        return Ok(respond(code, headers, rewritten(answer, prefix).await?));
    }
    Ok(respond(code, headers, AnswerBody::short(answer.body, short).boxed_unsync()))
}

/// Reads the answer of a write, which is at most 2 MiB, to its end or to where it was cut. Returns it as it was, and its
/// number of bytes.
async fn read_whole(answer: AccountResponse) -> (AccountResponse, u64) {
    let parts: Vec<_> = answer.body.collect().await;
    let bytes = parts.iter().flatten().map(|part| part.len() as u64).sum();
    (AccountResponse { body: stream::iter(parts).boxed(), ..answer }, bytes)
}

/// Writes what became of a write, also if its caller has left.
fn record_write(recorder: &Recorder, answered: &Result<AccountResponse, RequestError>, bytes: u64) {
    match answered {
        Ok(answer) if recorder.is_change() => {
            recorder.ended(AuditEvent::Write, &ending(answer.status, &answer.agent, bytes));
        }
        Ok(_) => {}
        Err(error) => recorder.failed(error, &Refusal::from(error.clone())),
    }
}

fn ending(code: StatusCode, agent: &AskedAgent, bytes: u64) -> Ending<'_> {
    let is_failed = code.is_client_error() || code.is_server_error();
    let outcome = if is_failed { OperationOutcome::Failed } else { OperationOutcome::Completed };
    Ending { code, agent: Some(agent), outcome, bytes, reason: "" }
}

/// The header `X-SPINNAKER-ACCOUNTS` names the only accounts that the caller's user may use. A name that no account can have
/// is passed over, whatever its bytes.
pub(super) fn narrows(call: &Call, account: &str) -> Result<(), Refusal> {
    let mut named = call.headers.get_all("x-spinnaker-accounts").iter().peekable();
    if named.peek().is_none() {
        return Ok(());
    }
    let is_named = named
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .any(|name| name.trim_ascii() == account.as_bytes());
    if is_named {
        return Ok(());
    }
    Err(Refusal::forbidden(format!("X-SPINNAKER-ACCOUNTS does not name account {account:?}")))
}

/// Whether the headers ask for an upgrade of the connection to a protocol that is taken. To others, such as the HTTP/2 that
/// some clients ask for with each request, the connection is not upgraded.
fn asks_upgrade<B>(request: &Request<B>) -> Result<bool, Refusal> {
    let connection =
        request.headers().get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let asks =
        connection.flat_map(|value| value.split(',')).any(|one| one.trim().eq_ignore_ascii_case("upgrade"));
    let protocols = request.headers().get_all(header::UPGRADE).iter().map(HeaderValue::as_bytes);
    if !asks || !is_upgrade(protocols) {
        return Ok(false);
    }
    if request.version() != Version::HTTP_11 {
        return Err(Refusal::bad_request("a connection can be upgraded in HTTP/1.1 only"));
    }
    Ok(true)
}

/// Headers that are sent. What says who the caller is stays here, and so does the id that the caller, or the aggregating
/// API server, gave to its request: the agent sends the request's own.
fn outgoing_headers(call: &Call, outgoing: &AccountRequest) -> HeaderMap {
    let stays = |name: &HeaderName| {
        let name = name.as_str();
        let is_here = ["authorization", "cookie", "host", "expect", "content-length", "audit-id"]
            .contains(&name)
            || name.starts_with("x-spinnaker-")
            || is_about_caller(name);
        let is_upgrade = name == "upgrade" && !outgoing.upgrade;
        !is_here && !is_upgrade
    };
    let mut headers = HeaderMap::with_capacity(call.headers.len());
    for (name, value) in call.headers.iter().filter(|(name, _)| stays(name)) {
        headers.append(name.clone(), value.clone());
    }
    if rewriting::has_paths(&outgoing.target) {
        headers.remove(header::ACCEPT_ENCODING);
        headers.remove(header::IF_NONE_MATCH);
    }
    headers
}

/// Headers that the caller gets. The id of the request is set for each answer.
fn incoming_headers(headers: &HeaderMap, prefix: &str) -> HeaderMap {
    let stays = |name: &HeaderName| {
        let name = name.as_str();
        !HOP_BY_HOP.contains(&name) && !is_about_host(name) && name != "audit-id"
    };
    let mut given = HeaderMap::with_capacity(headers.len());
    for (name, value) in headers.iter().filter(|(name, _)| stays(name)) {
        let moved = (*name == header::LOCATION)
            .then(|| value.to_str().ok())
            .flatten()
            .and_then(|value| HeaderValue::from_str(&rewriting::location(value, prefix)).ok());
        given.append(name.clone(), moved.unwrap_or_else(|| value.clone()));
    }
    given
}

/// The same, with those by which the caller knows to what its connection was upgraded.
fn upgraded_headers(from: &HeaderMap, prefix: &str) -> HeaderMap {
    let mut headers = incoming_headers(from, prefix);
    if let Some(protocol) = from.get(header::UPGRADE) {
        headers.insert(header::UPGRADE, protocol.clone());
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    }
    headers
}

async fn rewritten(answer: AccountResponse, prefix: &str) -> Result<Body, Refusal> {
    let mut index = Vec::new();
    let mut parts = answer.body;
    while let Some(part) = parts.next().await {
        index.extend_from_slice(&part.map_err(Refusal::from)?);
        if index.len() > MAX_INDEX_BYTES {
            return Err(Refusal::unavailable("the account's index of /openapi/v3 is too large"));
        }
    }
    let rewritten = rewriting::open_api_index(&index, prefix);
    Ok(full(rewritten.unwrap_or(index)))
}

fn respond(code: StatusCode, headers: HeaderMap, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = code;
    *response.headers_mut() = headers;
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connected_agents::{AnsweringAgent, RequestClass};

    #[test]
    fn neither_a_query_nor_a_header_makes_a_stream_of_a_write_or_of_the_read_of_one_object() {
        const PODS: &str = "/api/v1/namespaces/n/pods";
        for (method, target, asks_upgrade, is_upgrade, is_long) in [
            (Method::GET, format!("{PODS}?watch=1"), false, false, true),
            (Method::GET, format!("{PODS}?watch=1"), true, true, true),
            (Method::GET, format!("{PODS}/p/console"), true, true, false),
            (Method::GET, format!("{PODS}/p/log?follow=1"), false, false, true),
            (Method::GET, format!("{PODS}/p/exec?command=sh"), true, true, false),
            (Method::POST, format!("{PODS}/p/exec?command=sh"), true, true, false),
            (Method::GET, format!("{PODS}/p?watch=1"), false, false, false),
            (Method::POST, format!("{PODS}?watch=1"), true, false, false),
            (Method::PATCH, format!("{PODS}/p?watch=1"), true, false, false),
            (Method::DELETE, format!("{PODS}/p"), true, false, false),
        ] {
            let what = format!("{method} {target}");
            let request = AccountRequest::new(method, target).expect("a path").upgrading(asks_upgrade);
            let is_stream = request.path.is_long(request.method.as_str());
            assert_eq!((request.upgrade, is_stream), (is_upgrade, is_long), "{what}");
        }
    }

    #[test]
    fn an_upgraded_connection_is_of_class_connect_unless_it_reads() {
        for (target, asks_upgrade, class) in [
            (
                "/apis/subresources.kubevirt.io/v1/namespaces/n/virtualmachineinstances/v/vnc",
                true,
                RequestClass::Connect,
            ),
            (
                "/apis/subresources.kubevirt.io/v1/namespaces/n/virtualmachineinstances/v/vnc",
                false,
                RequestClass::Read,
            ),
            ("/api/v1/namespaces/n/pods?watch=1", true, RequestClass::Read),
            ("/api/v1/namespaces/n/pods/p/log", true, RequestClass::Read),
        ] {
            let request = AccountRequest::new(Method::GET, target).expect("a path").upgrading(asks_upgrade);
            assert_eq!(request.class, class, "{target}");
        }
        let head = |protocol: &str| {
            let request = Request::builder().header("connection", "Upgrade").header("upgrade", protocol);
            asks_upgrade(&request.body(()).expect("a request")).unwrap_or_default()
        };
        assert!(head("websocket") && head("SPDY/3.1"));
        assert!(!head("h2c") && !head("rtsp") && !head("websocket, h2c"));
    }

    #[test]
    fn what_a_host_says_of_itself_and_what_a_proxy_says_of_a_caller_stay_where_they_are() {
        let from_cluster: HeaderMap = [
            ("set-cookie", "a=b"),
            ("strict-transport-security", "max-age=1"),
            ("audit-id", "forged"),
            ("warning", "299 - \"old\""),
        ]
        .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
        .into_iter()
        .collect();
        let given = incoming_headers(&from_cluster, "");
        assert_eq!(given.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["warning"]);
        let headers: HeaderMap = [("x-real-ip", "::1"), ("forwarded", "for=::1"), ("accept", "*/*")]
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .into_iter()
            .collect();
        let call = Call { request_id: String::new(), headers, method: Method::GET, address: None };
        let sent = outgoing_headers(&call, &AccountRequest::new(Method::GET, "/").expect("a path"));
        assert_eq!(sent.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["accept"]);
    }

    #[test]
    fn a_name_that_no_account_has_narrows_nothing_but_itself() {
        let of = |value: &[u8]| {
            let mut headers = HeaderMap::new();
            headers.insert("x-spinnaker-accounts", HeaderValue::from_bytes(value).expect("a value"));
            Call { request_id: String::new(), headers, method: Method::GET, address: None }
        };
        assert_eq!(narrows(&of("küche, ops".as_bytes()), "ops"), Ok(()));
        assert_eq!(narrows(&of(b"\xff,ops"), "ops"), Ok(()));
        assert!(narrows(&of("küche".as_bytes()), "ops").is_err());
        assert!(narrows(&of(b""), "ops").is_err());
    }

    #[tokio::test]
    async fn the_bytes_of_a_writes_answer_are_counted_and_given_on_with_their_end() {
        let process = AnsweringAgent { agent_id: "agent-1".into(), boot_id: "boot-1".into() };
        let agent = AskedAgent { process, replica_id: "replica-1".into() };
        let answer = |parts: Vec<Result<Bytes, RequestError>>| AccountResponse {
            status: StatusCode::CREATED,
            headers: HeaderMap::new(),
            body: stream::iter(parts).boxed(),
            agent: agent.clone(),
        };
        let parts = vec![Ok(Bytes::from_static(b"one")), Ok(Bytes::from_static(b"four"))];
        let (whole, bytes) = read_whole(answer(parts.clone())).await;
        assert_eq!((bytes, whole.body.collect::<Vec<_>>().await), (7, parts));
        let cut = vec![Ok(Bytes::from_static(b"one")), Err(RequestError::cut("lost"))];
        let (given, bytes) = read_whole(answer(cut.clone())).await;
        assert_eq!((bytes, given.body.collect::<Vec<_>>().await), (3, cut));
    }
}
