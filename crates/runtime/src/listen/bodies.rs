//! Bodies of requests: their pace, and the memory that those of a port may use at once. Small bodies are not counted: even
//! one per permitted connection does no harm, and they need not wait behind large ones.
//!
//! Memory is reserved for what has arrived, not for what was announced, and one caller gets at most a quarter of it.
//! So a slow body delays only its own caller.

use std::hash::Hash;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::BoxError;
use http::StatusCode;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::{Body, Bytes};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use crate::limits::KeyedLimit;

/// Size up to which a body is not counted, in KiB.
const UNCOUNTED_KIB: usize = 16;
/// One caller may use the memory divided by this.
const CALLER_SHARE: usize = 4;
/// Minimum time for which a body that is being received waits for more memory. Random jitter at most doubles it, so
/// that among bodies that wait for one another, the first to give up lets the others continue.
const GROWTH_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for the first bytes of a body, and slack that is added to the time allowed by the minimum rate.
const BODY_GRACE: Duration = Duration::from_secs(5);
/// Minimum rate of a body, in bytes per second.
const MIN_BYTES_PER_SECOND: u32 = 16 * 1024;
/// Maximum time for which a body arrives.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);

/// Why a body was not read.
#[derive(Debug, thiserror::Error)]
pub enum UnreadBody {
    /// It is larger than it may be.
    #[error("the body may have {0} bytes at most")]
    TooLarge(usize),
    /// It arrives too slowly.
    #[error(
        "the body arrives too slowly: after {} s the minimum rate is {MIN_BYTES_PER_SECOND} bytes per second, \
         and all of it arrives within {} s", BODY_GRACE.as_secs(), BODY_TIMEOUT.as_secs()
    )]
    TooSlow,
    /// The caller left, or broke the protocol.
    #[error("the body ended before it was complete")]
    Incomplete,
    /// There was no memory for it in time.
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
}

impl UnreadBody {
    /// Status that the caller is given.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::TooSlow => StatusCode::REQUEST_TIMEOUT,
            Self::Incomplete => StatusCode::BAD_REQUEST,
            Self::NoRoom(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

/// No memory was free in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this replica has no memory left for bodies of requests, in total or for you; try again")]
pub struct NoRoom;

/// Memory for bodies, counted in KiB, and how much of it each caller holds.
#[derive(Debug)]
pub struct BodyMemory<K> {
    kib: usize,
    free: Arc<Semaphore>,
    /// Shares of the callers.
    callers: KeyedLimit<K>,
}

/// The memory of one body, which grows as the body arrives. It is given back on drop.
#[derive(Debug)]
pub struct BodyPermit {
    free: Arc<Semaphore>,
    all_kib: usize,
    part: Arc<Semaphore>,
    part_kib: usize,
    /// Permits of the caller's share and of the whole memory.
    held: Option<[OwnedSemaphorePermit; 2]>,
    kib: usize,
}

impl<K: Eq + Hash> BodyMemory<K> {
    /// Memory of so many KiB.
    pub fn new(kib: usize) -> Self {
        let callers = KeyedLimit::new(kib / CALLER_SHARE);
        Self { kib, free: Arc::new(Semaphore::new(kib)), callers }
    }

    /// Starts the permit of a caller's body.
    pub fn permit(&self, caller: K) -> BodyPermit {
        let (part, free) = (self.callers.of(caller), Arc::clone(&self.free));
        BodyPermit { free, all_kib: self.kib, part, part_kib: self.kib / CALLER_SHARE, held: None, kib: 0 }
    }
}

impl BodyPermit {
    /// Reserves memory for a body of which `bytes` have arrived.
    ///
    /// # Errors
    /// None was free within 10 to 20 s.
    pub async fn grow(&mut self, bytes: usize) -> Result<(), NoRoom> {
        let wait = GROWTH_TIMEOUT + GROWTH_TIMEOUT.mul_f64(fastrand::f64());
        self.grow_until(bytes, Instant::now() + wait).await
    }

    /// Reserves memory for a body of `bytes`.
    ///
    /// # Errors
    /// None was free in time.
    pub async fn grow_until(&mut self, bytes: usize, until: Instant) -> Result<(), NoRoom> {
        let wanted = kib(bytes);
        if wanted <= UNCOUNTED_KIB || wanted <= self.kib {
            return Ok(());
        }
        // A body larger than its caller's share takes the whole share.
        let more = |most: usize| wanted.min(most) - self.kib.min(most);
        let of_part = take(&self.part, more(self.part_kib), until).await?;
        let of_all = take(&self.free, more(self.all_kib), until).await?;
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

async fn take(free: &Arc<Semaphore>, many: usize, until: Instant) -> Result<OwnedSemaphorePermit, NoRoom> {
    let many = u32::try_from(many).unwrap_or(u32::MAX);
    match timeout_at(until, Arc::clone(free).acquire_many_owned(many)).await {
        Ok(Ok(permit)) => Ok(permit),
        _ => Err(NoRoom),
    }
}

/// The size of so many bytes in KiB, rounded up.
pub fn kib(bytes: usize) -> usize {
    bytes.div_ceil(1024)
}

/// Reads a body of at most `max_bytes`, of which `expected` were announced.
///
/// # Errors
/// It is too large, too slow or incomplete, or there is no memory for it.
pub async fn collect<B>(
    body: B,
    max_bytes: usize,
    expected: Option<usize>,
    permit: &mut BodyPermit,
) -> Result<Bytes, UnreadBody>
where
    B: Body<Data = Bytes, Error: Into<BoxError>>,
{
    let mut body = pin!(Limited::new(body, max_bytes));
    let mut bytes = Vec::new();
    let mut began = Instant::now();
    loop {
        let frame = match timeout_at(began + due(bytes.len()), body.frame()).await {
            Ok(None) => return Ok(bytes.into()),
            Ok(Some(Ok(frame))) => frame,
            Ok(Some(Err(error))) if error.is::<LengthLimitError>() => {
                return Err(UnreadBody::TooLarge(max_bytes));
            }
            Ok(Some(Err(_))) => return Err(UnreadBody::Incomplete),
            Err(_) => return Err(UnreadBody::TooSlow),
        };
        let Ok(data) = frame.into_data() else { continue };
        // Time spent waiting for memory does not count against the caller.
        let waited = Instant::now();
        permit.grow(bytes.len() + data.len()).await?;
        began += waited.elapsed();
        reserve(&mut bytes, data.len(), expected.unwrap_or(max_bytes));
        bytes.extend_from_slice(&data);
    }
}

/// Deadline for the next bytes, relative to the start of the body, after `received` bytes.
fn due(received: usize) -> Duration {
    let at_least_pace = u32::try_from(received).unwrap_or(u32::MAX);
    (BODY_GRACE + Duration::from_secs(1) * at_least_pace / MIN_BYTES_PER_SECOND).min(BODY_TIMEOUT)
}

/// Grows the buffer for `more` bytes: doubles it, but not beyond the expected length `in_the_end`.
fn reserve(bytes: &mut Vec<u8>, more: usize, in_the_end: usize) {
    let wanted = bytes.len() + more;
    if wanted > bytes.capacity() {
        let capacity = (2 * bytes.capacity()).min(in_the_end).max(wanted);
        bytes.reserve_exact(capacity - bytes.len());
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body as AxumBody;

    use super::*;

    const MIB: usize = 1024 * 1024;
    const ALL_KIB: usize = 64 * 1024;

    async fn reserved(memory: &BodyMemory<u8>, caller: u8, bytes: usize) -> Result<BodyPermit, NoRoom> {
        let mut permit = memory.permit(caller);
        permit.grow(bytes).await?;
        Ok(permit)
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_gets_a_quarter_of_the_memory_and_delays_no_other() {
        let memory = BodyMemory::new(ALL_KIB);
        let first = reserved(&memory, 1, 8 * MIB).await.expect("a quarter holds two");
        let _second = reserved(&memory, 1, 8 * MIB).await.expect("a quarter holds two");
        reserved(&memory, 1, MIB).await.expect_err("it has its quarter");
        let began = Instant::now();
        let _other = reserved(&memory, 2, 8 * MIB).await.expect("another has its own");
        reserved(&memory, 1, 16 * 1024).await.expect("a small one is not counted");
        assert_eq!(began.elapsed(), Duration::ZERO, "nobody waited");
        drop(first);
        reserved(&memory, 1, MIB).await.expect("the room was given back");
    }

    #[tokio::test(start_paused = true)]
    async fn memory_is_taken_as_a_body_arrives_and_is_shared_by_all_callers() {
        let memory = BodyMemory::new(ALL_KIB);
        let mut held = Vec::new();
        for caller in 1..=4 {
            held.push(reserved(&memory, caller, 8 * MIB).await.expect("there is room"));
            held.push(reserved(&memory, caller, 7 * MIB).await.expect("there is room"));
        }
        let mut growing = reserved(&memory, 5, 4 * MIB).await.expect("four are left");
        growing.grow(5 * MIB).await.expect_err("and no more");
        held.pop();
        growing.grow(5 * MIB).await.expect("the room was given back");
        drop((held, growing));
        assert_eq!(memory.free.available_permits(), ALL_KIB, "all of it was");
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_that_wait_for_one_another_do_not_all_fail() {
        let memory = BodyMemory::new(ALL_KIB);
        let body = async || {
            let mut permit = memory.permit(1);
            for mib in 1..=8 {
                permit.grow(mib * MIB).await?;
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            Ok::<_, NoRoom>(())
        };
        // Each has a third of the quarter when none is left. The seed makes the waits the same in each run.
        fastrand::seed(7);
        let (first, second, third) = tokio::join!(body(), body(), body());
        let failed = [first, second, third].iter().filter(|body| body.is_err()).count();
        assert!(failed <= 1, "{failed} failed");
    }

    /// A body of `count` chunks, each after a pause.
    fn chunks(count: usize, bytes: usize, pause: Duration) -> AxumBody {
        AxumBody::from_stream(futures::stream::unfold(0, move |sent| async move {
            tokio::time::sleep(pause).await;
            (sent < count).then(|| (Ok::<_, std::io::Error>(vec![b'x'; bytes]), sent + 1))
        }))
    }

    async fn collected(body: AxumBody) -> Result<usize, UnreadBody> {
        let memory = BodyMemory::new(ALL_KIB);
        collect(body, MIB, None, &mut memory.permit(1)).await.map(|bytes| bytes.len())
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_has_its_pace_and_is_given_up_once_it_is_slower() {
        let (began, second) = (Instant::now(), Duration::from_secs(1));
        let silent = futures::stream::pending::<Result<Vec<u8>, std::io::Error>>();
        assert!(matches!(collected(AxumBody::from_stream(silent)).await, Err(UnreadBody::TooSlow)));
        assert_eq!(began.elapsed().as_secs(), BODY_GRACE.as_secs());
        let paced = collected(chunks(50, 17 * 1024, second)).await;
        assert_eq!(paced.expect("it takes most of a minute"), 50 * 17 * 1024);
        let began = Instant::now();
        let slow = collected(chunks(60, 8 * 1024, second)).await;
        assert!(matches!(slow, Err(UnreadBody::TooSlow)), "half the pace");
        assert!(began.elapsed() < 12 * second, "{:?}", began.elapsed());
        let began = Instant::now();
        let long = collected(chunks(120, 17 * 512, second / 2)).await;
        assert!(matches!(long, Err(UnreadBody::TooSlow)), "more than a minute");
        assert_eq!(began.elapsed(), BODY_TIMEOUT);
        assert_eq!(collected(chunks(4, 1, second)).await.expect("a short one need not hurry"), 4);
    }

    #[tokio::test]
    async fn a_body_that_is_larger_than_it_may_be_or_incomplete_is_refused() {
        let larger = collected(AxumBody::from(vec![b'x'; MIB + 1])).await;
        assert!(matches!(larger, Err(UnreadBody::TooLarge(MIB))));
        assert_eq!(collected(AxumBody::from(vec![b'x'; MIB])).await.expect("it fits"), MIB);
        let cut = futures::stream::iter([Ok(vec![b'x']), Err(std::io::Error::other("cut"))]);
        assert!(matches!(collected(AxumBody::from_stream(cut)).await, Err(UnreadBody::Incomplete)));
    }

    #[tokio::test]
    async fn the_largest_body_always_fits() {
        let memory = BodyMemory::new(kib(1024 * MIB));
        let soon = Instant::now() + Duration::from_secs(1);
        memory.permit(1).grow_until(1024 * MIB, soon).await.expect("it fits");
    }
}
