//! Limits on the memory of this process that requests may use at once. Small bodies are not counted: even one per
//! permitted connection does no harm, and they need not wait behind large ones.
//!
//! Memory is reserved for what has arrived, not for what was announced, and one caller gets at most a quarter of it.
//! So a slow body delays only its own caller.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::error::RestError;
use kubesvc_runtime::listen::connection_limits::Caller;

/// Memory for bodies being received, in KiB.
const BODIES_KIB: usize = 64 * 1024;
/// Memory for parsed bodies, in KiB: enough for the largest body.
const VALUES_KIB: usize = 192 * 1024;
/// Memory for bodies of other replicas, in KiB.
const PEER_BODIES_KIB: usize = 16 * 1024;
/// Memory for bodies of requests that other replicas relay, in KiB.
const RELAYED_BODIES_KIB: usize = 64 * 1024;
/// Size up to which a body is not counted, in KiB.
const UNCOUNTED_KIB: usize = 16;
/// One caller may use the memory divided by this.
const CALLER_SHARE: usize = 4;
/// Maximum number of concurrent writing requests. Each runs to completion even if its caller has disconnected.
const MAX_CONCURRENT_WRITES: usize = 1024;
/// Minimum time for which a body that is being received waits for more memory. Random jitter at most doubles it, so
/// that among bodies that wait for one another, the first to give up lets the others continue.
const GROWTH_TIMEOUT: Duration = Duration::from_secs(10);

/// Limits that all requests share.
#[derive(Debug)]
pub(super) struct RequestLimits {
    bodies: MemoryPool,
    values: MemoryPool,
    of_replicas: MemoryPool,
    relayed: MemoryPool,
    writes: Arc<Semaphore>,
}

/// Memory or a write slot, released on drop.
#[derive(Debug, Default)]
pub(super) struct MemoryPermit(#[expect(dead_code, reason = "it is held")] Vec<OwnedSemaphorePermit>);

/// A pool of memory, counted in KiB.
#[derive(Debug)]
struct MemoryPool {
    kib: usize,
    free: Arc<Semaphore>,
    /// Shares of the callers that hold some of the pool, or wait for it.
    callers: Mutex<HashMap<Option<Caller>, Weak<Semaphore>>>,
}

/// The memory of one body, which grows as the body arrives.
#[derive(Debug)]
pub(super) struct GrowingPermit<'r> {
    space: &'r MemoryPool,
    part: Arc<Semaphore>,
    /// Permits of the caller's share and of the whole pool.
    held: Option<[OwnedSemaphorePermit; 2]>,
    kib: usize,
}

impl RequestLimits {
    /// Creates limits that fit bodies of up to `max_body_bytes`.
    pub(super) fn new(max_body_bytes: usize) -> Self {
        Self {
            bodies: MemoryPool::new(BODIES_KIB.max(kib(max_body_bytes))),
            values: MemoryPool::new(VALUES_KIB.max(kib(max_body_bytes))),
            of_replicas: MemoryPool::new(PEER_BODIES_KIB),
            relayed: MemoryPool::new(RELAYED_BODIES_KIB),
            writes: Arc::new(Semaphore::new(MAX_CONCURRENT_WRITES)),
        }
    }

    /// Starts a permit for a caller's body, which grows as the body arrives.
    pub(super) fn body(&self, caller: Option<Caller>) -> GrowingPermit<'_> {
        self.bodies.growing(caller)
    }

    /// Waits for memory for the parsed form of a body.
    pub(super) async fn values(
        &self,
        caller: Option<Caller>,
        bytes: usize,
        until: Instant,
    ) -> Result<MemoryPermit, RestError> {
        let mut growing = self.values.growing(caller);
        growing.grow_until(bytes, until).await?;
        Ok(MemoryPermit(growing.held.into_iter().flatten().collect()))
    }

    /// Starts a permit for a body of another replica, which grows as the body arrives.
    pub(super) fn of_replica(&self, caller: Option<Caller>) -> GrowingPermit<'_> {
        self.of_replicas.growing(caller)
    }

    /// Starts a permit for a body of a request that another replica relays, which grows as the body arrives.
    pub(super) fn relayed(&self, caller: Option<Caller>) -> GrowingPermit<'_> {
        self.relayed.growing(caller)
    }

    /// Waits for a write slot.
    pub(super) async fn write(&self, within: Duration) -> Result<MemoryPermit, RestError> {
        Ok(MemoryPermit(vec![take(&self.writes, 1, Instant::now() + within).await?]))
    }
}

impl MemoryPool {
    fn new(kib: usize) -> Self {
        Self { kib, free: Arc::new(Semaphore::new(kib)), callers: Mutex::default() }
    }

    fn part_kib(&self) -> usize {
        self.kib / CALLER_SHARE
    }

    fn growing(&self, caller: Option<Caller>) -> GrowingPermit<'_> {
        GrowingPermit { space: self, part: self.part(caller), held: None, kib: 0 }
    }

    /// Returns the caller's share of the pool.
    fn part(&self, caller: Option<Caller>) -> Arc<Semaphore> {
        let mut callers = self.callers.lock();
        if let Some(part) = callers.get(&caller).and_then(Weak::upgrade) {
            return part;
        }
        callers.retain(|_, part| part.strong_count() > 0);
        let part = Arc::new(Semaphore::new(self.part_kib()));
        callers.insert(caller, Arc::downgrade(&part));
        part
    }
}

impl GrowingPermit<'_> {
    /// Reserves memory for a body of which `bytes` have arrived.
    pub(super) async fn grow(&mut self, bytes: usize) -> Result<(), RestError> {
        let wait = GROWTH_TIMEOUT + GROWTH_TIMEOUT.mul_f64(fastrand::f64());
        self.grow_until(bytes, Instant::now() + wait).await
    }

    async fn grow_until(&mut self, bytes: usize, until: Instant) -> Result<(), RestError> {
        let wanted = kib(bytes);
        if wanted <= UNCOUNTED_KIB || wanted <= self.kib {
            return Ok(());
        }
        // A body larger than its caller's share takes the whole share.
        let more = |most: usize| wanted.min(most) - self.kib.min(most);
        let of_part = take(&self.part, more(self.space.part_kib()), until).await?;
        let of_all = take(&self.space.free, more(self.space.kib), until).await?;
        self.kib = wanted;
        match &mut self.held {
            None => self.held = Some([of_part, of_all]),
            Some([part, all]) => {
                part.merge(of_part);
                all.merge(of_all);
            }
        }
        Ok(())
    }
}

async fn take(free: &Arc<Semaphore>, many: usize, until: Instant) -> Result<OwnedSemaphorePermit, RestError> {
    let many = u32::try_from(many).unwrap_or(u32::MAX);
    match tokio::time::timeout_at(until, Arc::clone(free).acquire_many_owned(many)).await {
        Ok(Ok(permit)) => Ok(permit),
        _ => Err(RestError::unavailable(
            "this replica has reached its limit of concurrent requests, or of memory for requests, in total or for your address; try again, with fewer accounts per request",
        )),
    }
}

fn kib(bytes: usize) -> usize {
    bytes.div_ceil(1024)
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    const MIB: usize = 1024 * 1024;

    fn caller(number: u8) -> Option<Caller> {
        Some(Caller::of(IpAddr::V4(Ipv4Addr::new(192, 0, 2, number))))
    }

    /// Reserves memory for a body of `bytes`.
    async fn reserve(
        limits: &RequestLimits,
        number: u8,
        bytes: usize,
    ) -> Result<GrowingPermit<'_>, RestError> {
        let mut growing = limits.body(caller(number));
        growing.grow(bytes).await?;
        Ok(growing)
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_gets_a_quarter_of_the_memory_and_delays_no_other() {
        let limits = RequestLimits::new(8 * MIB);
        let first = reserve(&limits, 1, 8 * MIB).await.expect("a quarter holds two");
        let _second = reserve(&limits, 1, 8 * MIB).await.expect("a quarter holds two");
        let refused = reserve(&limits, 1, MIB).await.expect_err("it has its quarter");
        assert_eq!(refused.status.as_u16(), 503);
        assert!(refused.message.contains("try again"), "{}", refused.message);
        let began = Instant::now();
        let _other = reserve(&limits, 2, 8 * MIB).await.expect("another has its own");
        reserve(&limits, 1, 16 * 1024).await.expect("a small one is not counted");
        limits.of_replica(caller(1)).grow(MIB).await.expect("replicas have room of their own");
        assert_eq!(began.elapsed(), Duration::ZERO, "nobody waited");
        drop(first);
        reserve(&limits, 1, MIB).await.expect("the room was given back");
    }

    #[tokio::test(start_paused = true)]
    async fn memory_is_taken_as_a_body_arrives_and_is_shared_by_all_callers() {
        let limits = RequestLimits::new(8 * MIB);
        let mut held = Vec::new();
        for number in 1..=4 {
            held.push(reserve(&limits, number, 8 * MIB).await.expect("there is room"));
            held.push(reserve(&limits, number, 7 * MIB).await.expect("there is room"));
        }
        let mut growing = reserve(&limits, 5, 4 * MIB).await.expect("four are left");
        assert_eq!(growing.grow(5 * MIB).await.expect_err("and no more").status.as_u16(), 503);
        held.pop();
        growing.grow(5 * MIB).await.expect("the room was given back");
        drop((held, growing));
        assert_eq!(limits.bodies.free.available_permits(), BODIES_KIB, "all of it was");
        drop(limits.body(caller(9)));
        assert_eq!(limits.bodies.callers.lock().len(), 1, "callers that have gone are forgotten");
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_that_wait_for_one_another_do_not_all_fail() {
        let limits = RequestLimits::new(8 * MIB);
        let body = async || {
            let mut growing = limits.body(caller(1));
            for mib in 1..=8 {
                growing.grow(mib * MIB).await?;
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            Ok::<_, RestError>(())
        };
        // Each has a third of the quarter when none is left. The seed makes the waits the same in each run.
        fastrand::seed(7);
        let (first, second, third) = tokio::join!(body(), body(), body());
        let failed = [first, second, third].iter().filter(|body| body.is_err()).count();
        assert!(failed <= 1, "{failed} failed");
    }

    #[tokio::test]
    async fn largest_permitted_request_always_fits() {
        let limits = RequestLimits::new(1024 * MIB);
        reserve(&limits, 1, 1024 * MIB).await.expect("it fits");
        let soon = Instant::now() + Duration::from_secs(1);
        let _held = limits.values(caller(1), 1024 * MIB, soon).await.expect("it fits");
    }
}
