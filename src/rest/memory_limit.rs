//! Limits on the memory of this process that requests may use at once, and on concurrent writes.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout};

use super::error::RestError;
use crate::access::{HeldHead, TooManyHeads, UnknownHeads};
use kubesvc_runtime::listen::bodies::{BodyMemory, BodyPermit, kib};
use kubesvc_runtime::listen::connection_limits::ClientAddress;

/// Memory for bodies being received, in KiB.
const BODIES_KIB: usize = 64 * 1024;
/// Memory for parsed bodies, in KiB: enough for the largest body.
const VALUES_KIB: usize = 192 * 1024;
/// Size up to which bodies are parsed beside one another, in bytes. While a larger one is, it takes three times its size.
const LARGE_BODY_BYTES: usize = 256 * 1024;
/// Maximum number of concurrent writing requests. Each runs to completion even if its caller has disconnected.
const MAX_CONCURRENT_WRITES: usize = 1024;

/// Limits that all requests share.
#[derive(Debug)]
pub(super) struct RestLimits {
    bodies: BodyMemory<Option<ClientAddress>>,
    values: BodyMemory<Option<ClientAddress>>,
    large_body: Semaphore,
    writes: Arc<Semaphore>,
    heads: Arc<UnknownHeads>,
}

/// Memory of a parsed body, and of its text, whose large parts go on in it; released on drop.
#[derive(Debug, Default)]
pub(super) struct MemoryPermit(Vec<BodyPermit>);

impl MemoryPermit {
    /// Holds the memory of the text too.
    pub(super) fn with(mut self, text: BodyPermit) -> Self {
        self.0.push(text);
        self
    }
}

impl RestLimits {
    /// Creates limits that fit bodies of up to `max_body_bytes`.
    pub(super) fn new(max_body_bytes: usize) -> Self {
        Self {
            bodies: BodyMemory::new(BODIES_KIB.max(kib(max_body_bytes))),
            values: BodyMemory::new(VALUES_KIB.max(kib(max_body_bytes))),
            large_body: Semaphore::new(1),
            writes: Arc::new(Semaphore::new(MAX_CONCURRENT_WRITES)),
            heads: Arc::default(),
        }
    }

    /// Takes the memory of a head until it is known who calls.
    pub(super) fn head(&self, caller: ClientAddress, bytes: usize) -> Result<HeldHead, TooManyHeads> {
        self.heads.hold(caller, bytes)
    }

    /// Starts a permit for a caller's body, which grows as the body arrives.
    pub(super) fn body(&self, caller: Option<ClientAddress>) -> BodyPermit {
        self.bodies.permit(caller)
    }

    /// Waits for memory for the parsed form of a body.
    pub(super) async fn values(
        &self,
        caller: Option<ClientAddress>,
        bytes: usize,
        until: Instant,
    ) -> Result<MemoryPermit, RestError> {
        let mut permit = self.values.permit(caller);
        permit.grow_until(bytes, until).await.map_err(|_| busy())?;
        Ok(MemoryPermit(vec![permit]))
    }

    /// Waits until no other large body is parsed, if this one is large.
    pub(super) async fn parsing(&self, bytes: usize) -> Option<SemaphorePermit<'_>> {
        if bytes > LARGE_BODY_BYTES { self.large_body.acquire().await.ok() } else { None }
    }

    /// Waits for a write slot.
    pub(super) async fn write(&self, within: Duration) -> Result<OwnedSemaphorePermit, RestError> {
        let place = timeout(within, Arc::clone(&self.writes).acquire_owned()).await;
        place.ok().and_then(Result::ok).ok_or_else(busy)
    }
}

/// The refusal of a request for which a limit leaves no room.
pub(super) fn busy() -> RestError {
    RestError::unavailable(
        "this replica has reached its limit of concurrent requests, or of memory for requests, in total or for your address; try again, with fewer accounts per request",
    )
}
