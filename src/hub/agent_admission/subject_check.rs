//! Lets in only agents whose certificate has a subject that a filter matches. Health answers everybody.

use std::sync::Arc;
use std::task::{Context, Poll};

use futures::FutureExt as _;
use futures::future::{BoxFuture, ready};
use tonic::Status;
use tonic::body::Body;
use tower::{Layer, Service};
use tracing::warn;

use super::connection::Peer;
use crate::hub::context::HubContext;
use crate::hub::metrics::HubMetrics;
use kubesvc_core::identity::{Subject, SubjectFilters};
use kubesvc_runtime::listen::connection_limits::{ClientAddress, LogRateLimit};

/// Paths that everybody may ask.
const HEALTH: &str = "/grpc.health.v1.Health/";

/// The filters, and what counts those that are kept out.
#[derive(Clone)]
pub(crate) struct SubjectCheck {
    /// `None`: subjects are not looked at.
    filters: Option<Arc<SubjectFilters>>,
    metrics: HubMetrics,
    log_limit: Arc<LogRateLimit>,
}

impl SubjectCheck {
    pub(crate) fn new(context: &HubContext) -> Self {
        let (filters, metrics) = (context.settings.listener.subjects.clone(), context.metrics.clone());
        Self { filters, metrics, log_limit: Arc::default() }
    }

    fn check(&self, path: &str, peer: Option<&Peer>) -> Result<(), Status> {
        let Some(filters) = self.filters.as_ref().filter(|_| !path.starts_with(HEALTH)) else {
            return Ok(());
        };
        let Some(certificate) = peer.and_then(|peer| peer.certificates.first()) else {
            return Err(self.refuse(
                "no_certificate",
                peer,
                "it shows no certificate",
                Status::unauthenticated,
            ));
        };
        let why = match Subject::read(certificate) {
            Ok(subject) if filters.admit(&subject) => return Ok(()),
            Ok(subject) => format!(
                "no filter of kubesvc.grpc.auth.x509.filters matches {subject:?}",
                subject = subject.as_str()
            ),
            Err(error) => error.to_string(),
        };
        Err(self.refuse("subject", peer, &why, Status::permission_denied))
    }

    /// The log says which rule it is; the answer does not.
    fn refuse(
        &self,
        reason: &'static str,
        peer: Option<&Peer>,
        why: &str,
        status: impl FnOnce(&'static str) -> Status,
    ) -> Status {
        self.metrics.refuse_connection(reason);
        if let Some(peer) = peer
            && self.log_limit.may_log(reason, ClientAddress::of(peer.address.ip()))
        {
            warn!(peer = %peer.address, "an agent is kept out: {why}");
        }
        status("the certificate of the agent is not let in here; the operator's log says why")
    }
}

impl<S> Layer<S> for SubjectCheck {
    type Service = SubjectChecked<S>;

    fn layer(&self, inner: S) -> SubjectChecked<S> {
        SubjectChecked { check: self.clone(), inner }
    }
}

/// A service behind the check.
#[derive(Clone)]
pub(crate) struct SubjectChecked<S> {
    check: SubjectCheck,
    inner: S,
}

impl<S> Service<http::Request<Body>> for SubjectChecked<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Self::Response, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        match self.check.check(request.uri().path(), request.extensions().get::<Peer>()) {
            Ok(()) => self.inner.call(request).boxed(),
            Err(status) => ready(Ok(status.into_http())).boxed(),
        }
    }
}
