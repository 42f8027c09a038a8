//! How many bytes of batches a stream may have uncommitted at the hub.
//!
//! A stream has [`BASE_CREDIT_BYTES`] always. The hub says it in a first Credit, and gives it back by a Credit when
//! batches are committed. Who has more to send says Want and is lent more; lent credit goes back to the hub's pool with
//! the commit. A batch counts with the length of its encoded `Batch`, which its frame says.
//!
//! The hub's numbers are kept as it says them, so that both sides count the same; what is in flight has a bound of the
//! agent's own besides.

use std::time::{Duration, Instant};

/// Credit that every stream has, in bytes.
pub const BASE_CREDIT_BYTES: usize = 64 * 1024;
/// Maximum credit that the hub lends to a stream, in bytes.
pub const MAX_LENT_BYTES: usize = 4 * 1024 * 1024;
/// Maximum number of bytes in flight on a stream, whatever credit the hub gives: sent, kept for a resend, and not known to
/// be committed.
pub const MAX_IN_FLIGHT_BYTES: usize = BASE_CREDIT_BYTES + MAX_LENT_BYTES;
/// Time after which unused credit is given back. The hub ends a stream that keeps it for 60 s.
pub const UNUSED_CREDIT_TIME: Duration = Duration::from_secs(30);

/// The credit of one stream.
#[derive(Clone, Debug)]
pub struct SenderCredit {
    available: usize,
    in_flight: usize,
    /// Bytes of a Want that is not answered.
    asked: Option<usize>,
    used_at: Instant,
}

impl SenderCredit {
    /// A stream that has no credit yet.
    pub fn new(now: Instant) -> Self {
        Self { available: 0, in_flight: 0, asked: None, used_at: now }
    }

    /// Bytes that may be sent.
    pub fn available(&self) -> usize {
        self.available.min(MAX_IN_FLIGHT_BYTES.saturating_sub(self.in_flight))
    }

    /// Bytes that the stream holds, used or not.
    fn total(&self) -> usize {
        self.available + self.in_flight
    }

    /// The hub gave credit.
    pub fn granted(&mut self, bytes: usize, now: Instant) {
        self.available = self.available.saturating_add(bytes).min(MAX_IN_FLIGHT_BYTES);
        self.used_at = now;
        if self.total() > BASE_CREDIT_BYTES {
            self.asked = None;
        }
    }

    /// A batch was sent.
    pub fn spend(&mut self, bytes: usize, now: Instant) {
        self.available = self.available.saturating_sub(bytes);
        self.in_flight += bytes;
        self.used_at = now;
    }

    /// Batches are committed, or discarded.
    pub fn settle(&mut self, bytes: usize, now: Instant) {
        self.used_at = now;
        self.in_flight = self.in_flight.saturating_sub(bytes);
    }

    /// What an account may send that has `in_flight` bytes uncommitted: a quarter of the stream's credit, or
    /// [`BASE_CREDIT_BYTES`] where that is more.
    pub fn account_allowance(&self, in_flight: usize) -> usize {
        (self.total() / 4).max(BASE_CREDIT_BYTES).saturating_sub(in_flight)
    }

    /// What may be sent while `reserved` bytes are waited for: what is beyond them, and what is left of
    /// [`BASE_CREDIT_BYTES`].
    pub fn available_beside(&self, reserved: usize) -> usize {
        let base = BASE_CREDIT_BYTES.saturating_sub(self.in_flight);
        self.available.saturating_sub(reserved).max(base)
    }

    /// What to say in a Want, given the credit that would let all that waits be sent; `None` if the hub was asked for
    /// about as much and has not answered.
    pub fn ask(&mut self, needed: usize) -> Option<u32> {
        let short = needed.saturating_sub(self.available).min(MAX_LENT_BYTES);
        if short == 0 || self.asked.is_some_and(|asked| short < asked.saturating_mul(2)) {
            return None;
        }
        self.asked = Some(short);
        u32::try_from(short).ok()
    }

    /// When lent credit is unused for long enough to be given back; `None` if there is none, if something is in flight,
    /// or if more was asked for.
    pub fn give_back_at(&self) -> Option<Instant> {
        // What is in flight may come back as credit, which both sides must count the same.
        let is_unused = self.in_flight == 0 && self.available > BASE_CREDIT_BYTES && self.asked.is_none();
        is_unused.then(|| self.used_at + UNUSED_CREDIT_TIME)
    }

    /// Gives back what is lent and unused; the hub is told by a Want of 0 bytes.
    pub fn give_back(&mut self) {
        self.available = self.available.min(BASE_CREDIT_BYTES);
    }
}
