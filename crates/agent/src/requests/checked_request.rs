//! One request: what is checked before anything is sent, its body, the exchange with the cluster, and its answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::header::UPGRADE;
use http::{HeaderMap, Method, StatusCode};
use jiff::Timestamp;
use prost::bytes::{Bytes, BytesMut};
use tokio::time::{sleep, timeout};
use tracing::Instrument as _;

use super::answers::{answer_write, whole_answer};
use super::running_requests::{RequestKind, RequestState, Running, RunningRequest, stopping};
use super::writes::RecordedWrite;
use super::{MAX_BODIES_BYTES, RequestService};
use crate::account_table::HeldDefinition;
use crate::wire_failure::{after_send, before_send};
use kubesvc_core::requests::MAX_REQUEST_BODY_BYTES;
use kubesvc_core::requests::access::{self, AccessDecision, AccountBounds};
use kubesvc_core::requests::headers::{is_upgrade, passed_on};
use kubesvc_core::requests::journal::WriteStart;
use kubesvc_core::requests::streams::Event;
use kubesvc_core::requests::target::{Class as RequestClass, RequestPath};
use kubesvc_core::requests::wire::AgentEnd;
use kubesvc_core::wire::common::Failure;
use kubesvc_core::wire::common::failure::Class;
use kubesvc_core::wire::ops::{Open, Recall};
use kubesvc_runtime::request_channel::{Exchange, header_map};
use kubesvc_runtime::shutdown::spawn_named;

/// Maximum time of a write, whatever the hub waits.
const MAX_WRITE_TIME: Duration = Duration::from_secs(600);

/// A request that may be sent.
pub(super) struct CheckedRequest {
    pub(super) held: HeldDefinition,
    pub(super) open: Open,
    pub(super) method: Method,
    pub(super) headers: HeaderMap,
    pub(super) path: RequestPath,
    pub(super) class: RequestClass,
    /// Whether it is allowed only if its kind is cluster-wide.
    pub(super) is_if_cluster_wide: bool,
}

impl CheckedRequest {
    /// Time until the head of the answer.
    pub(super) fn head_within(&self) -> Duration {
        match self.open.head_within_ms {
            0 => MAX_WRITE_TIME,
            ms => Duration::from_millis(ms.into()),
        }
    }
}

/// A body, whose bytes count against the limit of all bodies until this is dropped.
struct HeldBody {
    service: Arc<RequestService>,
    counted: usize,
    bytes: Bytes,
}

impl RequestService {
    /// Serves a request. Everything that decides whether its id is known happens before this returns.
    pub(super) fn open(self: &Arc<Self>, exchange: Exchange<AgentEnd>, open: Open) {
        let request_id = open.request_id.clone();
        let (checked, running) = match self.check(open) {
            Ok(checked) => checked,
            Err(failure) => return self.refuse(&exchange, failure),
        };
        let CheckedRequest { held, class, .. } = &checked;
        let span = tracing::info_span!("request", account = %held.account.name, requestId = %request_id, class = class.as_str());
        let service = Arc::clone(self);
        if !(checked.open.write || checked.class == RequestClass::Write) || checked.open.upgrade {
            let reading = async move { service.read(exchange, checked, running).await };
            return drop(spawn_named("request", reading.instrument(span)).detach());
        }
        match self.writes.begin(&request_id, Err(not_sent("the request was not complete"))) {
            Ok(recorded) => {
                let writing = async move { service.write(exchange, checked, running, recorded).await };
                drop(spawn_named("write", writing.instrument(span)).detach());
            }
            Err(WriteStart::Full) => {
                self.refuse(
                    &exchange,
                    before_send(Class::Overloaded, "the agent's journal of writes is full"),
                );
            }
            // A known id is never sent again.
            Err(_) => self.recall_known(exchange, &request_id),
        }
    }

    /// Serves a recall.
    pub(super) fn recall(self: &Arc<Self>, exchange: Exchange<AgentEnd>, recall: &Recall, own_boot_id: &str) {
        if recall.boot_id != own_boot_id {
            let failure =
                after_send(Class::OutcomeUnknown, "the agent's process that had the request is gone");
            return self.refuse(&exchange, failure);
        }
        if !self.settings.keeps_answers {
            return self.refuse(&exchange, after_send(Class::OutcomeUnknown, "the agent keeps no answers"));
        }
        self.recall_known(exchange, &recall.request_id);
    }

    fn recall_known(&self, exchange: Exchange<AgentEnd>, request_id: &str) {
        let awaited = self.writes.awaited(request_id);
        let answering = self.running.answering();
        let recalling = async move {
            answer_write(&exchange, awaited).await;
            drop(answering);
        };
        drop(spawn_named("recall", recalling).detach());
    }

    fn refuse(&self, exchange: &Exchange<AgentEnd>, failure: Failure) {
        self.metrics.count("any", "refused");
        exchange.stop(failure);
    }

    /// Checks a request against the account, the owner's policy and the agent's bounds.
    fn check(&self, open: Open) -> Result<(CheckedRequest, Running), Failure> {
        if self.draining.is_cancelled() {
            return Err(stopping());
        }
        let account = open.account.clone().unwrap_or_default();
        let Some(held) = self.table.lock().held_definition(&account.uid) else {
            return Err(before_send(Class::NotFound, "the agent does not hold the account"));
        };
        if held.account.epoch > account.epoch {
            return Err(before_send(Class::Conflict, "the agent holds the account under a later epoch"));
        }
        let malformed = |why: String| before_send(Class::BadReference, why);
        if ulid::Ulid::from_string(&open.request_id).is_err() {
            return Err(malformed("request_id must be a ULID".to_owned()));
        }
        let method =
            Method::from_bytes(open.method.as_bytes()).ok().filter(|method| *method != Method::CONNECT);
        let method = method.ok_or_else(|| malformed("the method cannot be sent".to_owned()))?;
        let path = RequestPath::read(&open.target).map_err(|error| malformed(error.to_string()))?;
        let headers = passed_on(open.headers.clone()).map_err(|error| malformed(error.to_string()))?;
        let headers = header_map(headers).ok_or_else(|| malformed("a header cannot be sent".to_owned()))?;
        let protocols = headers.get_all(UPGRADE).iter().map(http::HeaderValue::as_bytes);
        if open.upgrade && !is_upgrade(protocols) {
            return Err(malformed("an upgrade names websocket or SPDY/3.1 in the header Upgrade".to_owned()));
        }
        if open.upgrade && path.class(method.as_str()) == RequestClass::Write {
            return Err(malformed("a write upgrades no connection".to_owned()));
        }
        let class =
            if open.upgrade { path.class_of_upgrade(method.as_str()) } else { path.class(method.as_str()) };
        let spec = held.definition.spec();
        let bounds = AccountBounds {
            namespaces: &spec.namespaces,
            omit_namespaces: &spec.omit_namespaces,
            only_namespaced: spec.only_namespaced_resources,
        };
        let asked = (method.as_str(), open.upgrade);
        let is_if_cluster_wide = match access::judge(self.settings.allow, bounds, asked, &path) {
            AccessDecision::Allowed => false,
            AccessDecision::IfClusterWide => true,
            AccessDecision::Refused(why) => return Err(before_send(Class::Forbidden, why)),
        };
        let kind = match (open.write || class == RequestClass::Write, path.watches_objects(method.as_str())) {
            _ if open.upgrade => RequestKind::Read,
            (true, _) => RequestKind::Write,
            (false, true) => RequestKind::Watch,
            (false, false) => RequestKind::Read,
        };
        let shown = RunningRequest {
            account: held.account.name.clone(),
            request_id: open.request_id.clone(),
            method: method.to_string(),
            path: String::from_utf8_lossy(open.target.split(|byte| *byte == b'?').next().unwrap_or_default())
                .into(),
            class: class.as_str(),
            state: RequestState::Waiting,
            since: Timestamp::now(),
        };
        let running = self.running.add(&held.account.uid, kind, shown)?;
        // What drops the account from now on finds the request; what dropped it before is seen in the table alone.
        if self.table.lock().held_epoch(&account.uid) != Some(held.account.epoch) {
            return Err(not_sent("the agent holds the account no longer"));
        }
        let checked = CheckedRequest { held, open, method, headers, path, class, is_if_cluster_wide };
        Ok((checked, running))
    }

    /// Reads the body of a request to its end. `None`: the request was ended early.
    async fn body(self: &Arc<Self>, exchange: &Exchange<AgentEnd>) -> Option<Result<HeldBody, Failure>> {
        let mut held = HeldBody::empty(self);
        let mut body = BytesMut::new();
        loop {
            match exchange.event().await {
                Event::Data(bytes) => {
                    if body.len() + bytes.len() > MAX_REQUEST_BODY_BYTES {
                        let why = format!("the body has more than {MAX_REQUEST_BODY_BYTES} bytes");
                        return Some(Err(before_send(Class::TooLarge, why)));
                    }
                    if !held.add(bytes.len()) {
                        let why = "the bodies of requests have no room at the agent";
                        return Some(Err(before_send(Class::Overloaded, why)));
                    }
                    body.extend_from_slice(&bytes);
                }
                Event::End => {
                    held.bytes = body.freeze();
                    return Some(Ok(held));
                }
                Event::Head(_) | Event::Stopped(()) | Event::Broken(_) => return None,
            }
        }
    }

    /// Serves a request that nobody needs once its stream is gone.
    async fn read(self: Arc<Self>, exchange: Exchange<AgentEnd>, request: CheckedRequest, running: Running) {
        let class = request.class.as_str();
        let body =
            if request.open.upgrade { Some(Ok(HeldBody::empty(&self))) } else { self.body(&exchange).await };
        let body = match body {
            Some(Ok(body)) => body,
            Some(Err(failure)) => return self.refuse(&exchange, failure),
            None => return self.metrics.count(class, "cancelled"),
        };
        let answering = self.answer_read(&exchange, &request, &running, body.bytes.clone());
        let outcome = tokio::select! {
            outcome = answering => outcome,
            () = running.end.cancelled() => {
                Some(Err(after_send(Class::NotFound, "the agent holds the account no longer")))
            }
        };
        match outcome {
            None => self.metrics.count(class, "cancelled"),
            Some(Ok(())) => self.metrics.count(class, "answered"),
            Some(Err(failure)) => {
                self.metrics.count(class, "failed");
                tracing::info!(
                    class = failure.class().as_str_name(),
                    "the request failed: {}",
                    failure.message
                );
                exchange.stop(failure);
            }
        }
    }

    /// Sends a read and passes its answer on. `None`: the request was ended early.
    async fn answer_read(
        &self,
        exchange: &Exchange<AgentEnd>,
        request: &CheckedRequest,
        running: &Running,
        body: Bytes,
    ) -> Option<Result<(), Failure>> {
        let sent = tokio::select! {
            sent = timeout(request.head_within(), self.send(request, body, running, || {})) => sent,
            () = exchange.ended_early() => return None,
        };
        let response = match sent {
            Ok(Ok(response)) => response,
            Ok(Err(failure)) => return Some(Err(failure)),
            Err(_) => return Some(Err(after_send(Class::Timeout, "the cluster did not answer in time"))),
        };
        let is_upgraded = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        tokio::select! {
            outcome = self.stream_answer(exchange, request, running, response) => Some(outcome),
            () = until_cancelled(exchange, is_upgraded) => None,
        }
    }

    /// Serves a write: it goes on when its stream is gone.
    async fn write(
        self: Arc<Self>,
        exchange: Exchange<AgentEnd>,
        request: CheckedRequest,
        running: Running,
        recorded: RecordedWrite,
    ) {
        let body = tokio::select! {
            body = self.body(&exchange) => body,
            () = running.end.cancelled() => Some(Err(not_sent("the agent holds the account no longer"))),
        };
        let body = match body {
            Some(Ok(body)) => body,
            Some(Err(failure)) => {
                recorded.done(Err(failure.clone()));
                return self.refuse(&exchange, failure);
            }
            // The record says that it was not sent.
            None => return self.metrics.count(request.class.as_str(), "cancelled"),
        };
        let (service, request_id) = (Arc::clone(&self), request.open.request_id.clone());
        let awaited = recorded.awaited();
        let answering = self.running.answering();
        let writing = async move { service.write_to_end(request, body, running, recorded).await };
        drop(spawn_named("sent write", writing.in_current_span()).detach());
        answer_write(&exchange, awaited).await;
        drop(answering);
        if !self.settings.keeps_answers {
            self.writes.forget(&[request_id]);
        }
    }

    /// Sends a write and records its answer.
    async fn write_to_end(
        &self,
        request: CheckedRequest,
        body: HeldBody,
        running: Running,
        mut recorded: RecordedWrite,
    ) {
        let unknown = |why: &str| Err(after_send(Class::OutcomeUnknown, why));
        let gone = unknown("the agent failed while the write ran");
        let is_sent = AtomicBool::new(false);
        let sends = || {
            is_sent.store(true, Ordering::Relaxed);
            recorded.sends(gone.clone());
        };
        let sending = async {
            let response = self.send(&request, body.bytes.clone(), &running, sends).await?;
            Ok(whole_answer(response).await)
        };
        let cut = async {
            tokio::select! {
                () = running.end.cancelled() => "the account was taken from the agent before the write was answered",
                () = sleep(MAX_WRITE_TIME) => "the cluster did not answer in time",
            }
        };
        let outcome = tokio::select! {
            outcome = sending => outcome,
            why = cut => if is_sent.load(Ordering::Relaxed) { unknown(why) } else { Err(not_sent(why)) },
        };
        let outcome = match outcome {
            // What was sent and is not answered may have been executed.
            Err(failure) if !failure.before_send => {
                Err(Failure { class: Class::OutcomeUnknown.into(), retryable: false, ..failure })
            }
            outcome => outcome,
        };
        let counted = match &outcome {
            Ok(_) => "answered",
            Err(failure) if failure.before_send => "failed",
            Err(_) => "unknown",
        };
        self.metrics.count(request.class.as_str(), counted);
        if let Err(failure) = &outcome {
            tracing::warn!(
                class = failure.class().as_str_name(),
                "the write has no answer: {}",
                failure.message
            );
        }
        recorded.done(outcome);
    }
}

impl HeldBody {
    fn empty(service: &Arc<RequestService>) -> Self {
        Self { service: Arc::clone(service), counted: 0, bytes: Bytes::new() }
    }

    fn add(&mut self, bytes: usize) -> bool {
        self.counted += bytes;
        self.service.bodies.fetch_add(bytes, Ordering::Relaxed) + bytes <= MAX_BODIES_BYTES
    }
}

impl Drop for HeldBody {
    fn drop(&mut self) {
        self.service.bodies.fetch_sub(self.counted, Ordering::Relaxed);
    }
}

/// A failure of a request of which certainly nothing was executed; another agent may be asked.
pub(super) fn not_sent(why: &str) -> Failure {
    before_send(Class::NotFound, why)
}

/// Waits until the hub has no use for the request any more. After an upgrade its events are data, and the one who passes
/// them on sees its end.
async fn until_cancelled(exchange: &Exchange<AgentEnd>, is_upgraded: bool) {
    if is_upgraded {
        std::future::pending::<()>().await;
    } else {
        exchange.ended_early().await;
    }
}
