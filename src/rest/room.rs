//! How much of this process's memory requests may take at once. What is small is not counted: as many of those as there
//! may be connections do no harm, and they need not wait behind what is large.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::error::Problem;

/// Bodies of callers, as they come in, in KiB.
const BODIES: usize = 64 * 1024;
/// What was read from them, in KiB: enough for the largest.
const VALUES: usize = 192 * 1024;
/// Bodies of other replicas, in KiB.
const OF_REPLICAS: usize = 16 * 1024;
/// What is not counted, in KiB.
const SMALL: usize = 16;
/// Requests that write at once; each goes on to its end even if its caller has gone.
const WRITES: usize = 1024;

/// What requests share.
#[derive(Debug)]
pub(super) struct Room {
    bodies: Space,
    values: Space,
    of_replicas: Space,
    writes: Arc<Semaphore>,
}

/// A part of the room that is taken until this is dropped.
#[derive(Debug, Default)]
pub(super) struct Held(#[expect(dead_code, reason = "it is held")] Option<OwnedSemaphorePermit>);

/// So many KiB.
#[derive(Debug)]
struct Space {
    kib: usize,
    free: Arc<Semaphore>,
}

impl Room {
    /// Room for bodies of up to so many bytes.
    pub(super) fn new(max_body_bytes: usize) -> Self {
        Self {
            bodies: Space::new(BODIES.max(kib(max_body_bytes))),
            values: Space::new(VALUES.max(kib(max_body_bytes))),
            of_replicas: Space::new(OF_REPLICAS),
            writes: Arc::new(Semaphore::new(WRITES)),
        }
    }

    /// Waits for room for a caller's body.
    pub(super) async fn body(&self, bytes: usize, until: Instant) -> Result<Held, Problem> {
        self.bodies.take(bytes, until).await
    }

    /// Waits for room for what a body holds.
    pub(super) async fn values(&self, bytes: usize, until: Instant) -> Result<Held, Problem> {
        self.values.take(bytes, until).await
    }

    /// Waits for room for a body of another replica.
    pub(super) async fn of_replica(&self, bytes: usize, until: Instant) -> Result<Held, Problem> {
        self.of_replicas.take(bytes, until).await
    }

    /// Waits for the place of a request that writes.
    pub(super) async fn write(&self, within: Duration) -> Result<Held, Problem> {
        take(&self.writes, 1, Instant::now() + within).await
    }
}

impl Space {
    fn new(kib: usize) -> Self {
        Self { kib, free: Arc::new(Semaphore::new(kib)) }
    }

    async fn take(&self, bytes: usize, until: Instant) -> Result<Held, Problem> {
        let wanted = kib(bytes).min(self.kib);
        if wanted <= SMALL {
            return Ok(Held::default());
        }
        take(&self.free, u32::try_from(wanted).unwrap_or(u32::MAX), until).await
    }
}

async fn take(free: &Arc<Semaphore>, many: u32, until: Instant) -> Result<Held, Problem> {
    match tokio::time::timeout_at(until, Arc::clone(free).acquire_many_owned(many)).await {
        Ok(Ok(permit)) => Ok(Held(Some(permit))),
        _ => Err(Problem::unavailable(
            "this replica has as many requests under way as it takes at once, or as large ones; try again, with fewer accounts in each",
        )),
    }
}

fn kib(bytes: usize) -> usize {
    bytes.div_ceil(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1024 * 1024;

    #[tokio::test(start_paused = true)]
    async fn bodies_wait_for_room_as_long_as_they_may_and_small_ones_do_not() {
        let room = Room::new(8 * MIB);
        let until = || Instant::now() + Duration::from_secs(30);
        let mut held = Vec::new();
        for _ in 0..8 {
            held.push(room.body(8 * MIB, until()).await.expect("there is room for eight"));
        }
        let refused = room.body(MIB, until()).await.expect_err("there is no more");
        assert_eq!(refused.status.as_u16(), 503);
        assert!(refused.message.contains("try again"), "{}", refused.message);
        room.body(16 * 1024, until()).await.expect("a small one is not counted");
        room.of_replica(MIB, until()).await.expect("replicas have room of their own");
        held.pop();
        room.body(MIB, until()).await.expect("the room was given back");
    }

    #[tokio::test]
    async fn what_is_allowed_by_the_settings_always_fits() {
        let room = Room::new(1024 * MIB);
        room.body(1024 * MIB, Instant::now() + Duration::from_secs(1)).await.expect("it fits");
    }
}
