//! Callers of whom it is not known who they are: their address, and the memory of their heads. A call that is open to anybody
//! holds that until it is answered, another one until its caller is known.

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::Response;
use parking_lot::Mutex;

use super::RestState;
use super::error::RestError;
use crate::access::{HeldHead, head_bytes};
use crate::operations::OperationRefusal;
use kubesvc_runtime::listen::connection_limits::ClientAddress;

/// Beginning of the paths of calls about operations: those that are refused have an audit line.
pub(super) const OPERATIONS: &str = "/armory/agent/operation";

/// The head of a call, in the extensions of its request.
#[derive(Clone)]
struct PendingHead(Arc<Mutex<Option<HeldHead>>>);

/// Middleware that takes the memory of each head, or refuses the call at once.
pub(super) async fn hold_head(
    State(state): State<RestState>,
    mut request: Request,
    next: Next,
) -> Result<Response, RestError> {
    // Absent only without a connection.
    let Some(address) = request.extensions().get::<ClientAddress>().copied() else {
        return Ok(next.run(request).await);
    };
    let held = state.limits.head(address, head_bytes(request.uri(), request.headers()));
    let held = held.map_err(|error| {
        let error = RestError::unavailable(error.to_string());
        if request.uri().path().starts_with(OPERATIONS) {
            let refusal = OperationRefusal::Malformed { status: error.status, why: error.message.clone() };
            state.operations.refused_stranger(Some(address), &refusal);
        }
        error
    })?;
    let head = PendingHead(Arc::new(Mutex::new(Some(held))));
    request.extensions_mut().insert(head.clone());
    let response = next.run(request).await;
    drop(head.0.lock().take());
    Ok(response)
}

/// A caller of whom it is not known yet who it is.
pub(super) struct UnknownCaller {
    /// Where the connection comes from; `None`: that is not known.
    pub(super) address: Option<ClientAddress>,
    head: Option<PendingHead>,
}

impl UnknownCaller {
    pub(super) fn of(parts: &Parts) -> Self {
        Self { address: parts.extensions.get().copied(), head: parts.extensions.get().cloned() }
    }

    /// It is known now who calls: gives the memory of the head back.
    pub(super) fn known(self) {
        drop(self.head.and_then(|head| head.0.lock().take()));
    }
}

impl<S: Send + Sync> FromRequestParts<S> for UnknownCaller {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self::of(parts))
    }
}
