//! The exchange with the cluster: a client with the account's credential, the request, and further tries where they are
//! allowed.

use std::time::Duration;

use futures::TryFutureExt as _;
use http::StatusCode;
use http::header::{ACCEPT_ENCODING, HeaderName, HeaderValue, UPGRADE};
use prost::bytes::Bytes;
use tokio::time::{Instant, sleep, timeout};

use super::RequestService;
use super::checked_request::{CheckedRequest, not_sent};
use super::clients::AccountClient;
use super::running_requests::Running;
use crate::cluster::{ClusterClient, ClusterRequest, ClusterResponse, RequestBody, Use};
use crate::wire_failure::{after_send, before_send};
use kubesvc_core::requests::access;
use kubesvc_core::requests::headers::is_status;
use kubesvc_core::requests::target::Class as RequestClass;
use kubesvc_core::wire::common::Failure;
use kubesvc_core::wire::common::failure::Class;

/// The header by which the cluster's audit log names a request.
const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");
/// What clients in Go say of a timeout, whose words `kubernetes.retries.retryableErrors` has by default.
const TIMEOUT_WORDS: &str = "timeout, deadline exceeded";

impl RequestService {
    /// Sends a request to the cluster, and waits for the head of its answer. `sends` is called when from then on it may
    /// have been executed.
    pub(super) async fn send(
        &self,
        request: &CheckedRequest,
        body: Bytes,
        running: &Running,
        sends: impl FnMut(),
    ) -> Result<ClusterResponse, Failure> {
        let mut was_sent = false;
        let sent = self.try_to_send(request, body, running, sends, &mut was_sent).await;
        // What an earlier try sent may have been executed, whatever became of the last one.
        sent.map_err(|failure| Failure { before_send: failure.before_send && !was_sent, ..failure })
    }

    /// Sends it as often as it may be tried. `was_sent` is set when a try that sent something has failed.
    async fn try_to_send(
        &self,
        request: &CheckedRequest,
        body: Bytes,
        running: &Running,
        mut sends: impl FnMut(),
        was_sent: &mut bool,
    ) -> Result<ClusterResponse, Failure> {
        let uid = &request.held.account.uid;
        let mut retries = self.retries(request);
        let (started, within) = (Instant::now(), request.head_within());
        loop {
            let entry = self.clients.of(&request.held);
            let client = self.clients.connect(&request.held, &entry).await?;
            if request.is_if_cluster_wide {
                self.check_cluster_wide(request, &entry, &client).await?;
            }
            if !running.sends() {
                return Err(not_sent("the agent holds the account no longer"));
            }
            sends();
            let sending = client.send(Use::Requests, cluster_request(request, body.clone()));
            let sending = sending.map_err(Failure::from);
            let is_long = request.open.upgrade || request.path.is_long(request.method.as_str());
            let sent = if self.settings.timeout.is_zero() || is_long {
                sending.await
            } else {
                let too_slow = "the cluster did not answer within timeoutSeconds";
                timeout(self.settings.timeout, sending)
                    .await
                    .unwrap_or_else(|_| Err(after_send(Class::Timeout, too_slow)))
            };
            match sent {
                // A credential that was refused executed nothing.
                Ok(response)
                    if response.status() == StatusCode::UNAUTHORIZED && self.clients.renew(uid, &entry) => {}
                Ok(response) if !is_status(response.status().as_u16().into(), request.open.upgrade) => {
                    let status = response.status().as_u16();
                    let why =
                        format!("the cluster answered with status {status}, which this request cannot have");
                    return Err(after_send(Class::Unreachable, why));
                }
                // It says only of this try that nothing was executed.
                Ok(response)
                    if *was_sent
                        && request.class != RequestClass::Read
                        && response.status() == StatusCode::TOO_MANY_REQUESTS =>
                {
                    let why = "an earlier try was sent, and the cluster has no time for another one";
                    return Err(after_send(Class::Unreachable, why));
                }
                Ok(response) => return Ok(response),
                Err(failure) => {
                    *was_sent |= !failure.before_send;
                    // Nobody waits for a try after the request's time.
                    let is_useful =
                        |delay: &Duration| self.may_pass(&failure) && started.elapsed() + *delay < within;
                    match retries.next().filter(is_useful) {
                        Some(delay) => sleep(delay).await,
                        None => return Err(failure),
                    }
                }
            }
        }
    }

    /// Whether the owner's settings say that a request which failed so is tried again.
    fn may_pass(&self, failure: &Failure) -> bool {
        let words_of_class = if failure.class() == Class::Timeout { TIMEOUT_WORDS } else { "" };
        self.settings.apply.retries.as_ref().is_some_and(|retries| {
            let is_listed = |word: &String| {
                failure.message.contains(word.as_str()) || words_of_class.contains(word.as_str())
            };
            retries.retry_any_error || retries.retryable_errors.iter().any(is_listed)
        })
    }

    /// Delays before further tries of a request that may be sent again.
    fn retries(&self, request: &CheckedRequest) -> impl Iterator<Item = Duration> + use<> {
        let retries =
            self.settings.apply.retries.clone().filter(|retries| retries.enabled && request.open.repeatable);
        let retries = retries.unwrap_or_default();
        let delay = Duration::from_millis(retries.backoff_ms.into());
        (0..retries.max_retries).map(move |_| delay)
    }

    async fn check_cluster_wide(
        &self,
        request: &CheckedRequest,
        entry: &AccountClient,
        client: &ClusterClient,
    ) -> Result<(), Failure> {
        let resource = request.path.resource.as_deref().unwrap_or_default();
        match entry.is_cluster_wide(client, (&request.path.group, resource)).await? {
            Some(true) => Ok(()),
            Some(false) | None => Err(before_send(Class::Forbidden, access::refuse_over_all(&request.path))),
        }
    }
}

fn cluster_request(request: &CheckedRequest, body: Bytes) -> ClusterRequest {
    let target = String::from_utf8_lossy(&request.open.target).into_owned();
    let mut built = ClusterRequest::new(request.method.clone(), target);
    // The id in the cluster's audit log is the request's own: the server takes the first of several.
    for (name, value) in request.headers.iter().filter(|(name, _)| ![AUDIT_ID, UPGRADE].contains(name)) {
        built = built.header(name.clone(), value.clone());
    }
    if let Ok(id) = HeaderValue::from_str(&request.open.request_id) {
        built = built.header(AUDIT_ID, id);
    }
    if let Some(encodings) = request.headers.get(ACCEPT_ENCODING) {
        built = built.encoding(encodings.clone());
    }
    if let Some(protocol) = request.headers.get(UPGRADE).filter(|_| request.open.upgrade) {
        built = built.upgrade(protocol.clone());
    }
    if body.is_empty() { built } else { built.body(RequestBody::whole(body)) }
}
