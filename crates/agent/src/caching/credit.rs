//! Limit of the uncommitted bytes of batches of a stream at the hub.
//!
//! A stream always has [`BASE_CREDIT_BYTES`]. The hub grants it in a first Credit, and returns it by a Credit when
//! batches are committed. A stream that has more to send says Want and is lent more; lent credit returns to the hub's
//! pool with the commit. A batch costs the length of its encoded `Batch`, which its frame states.
//!
//! The hub's numbers are kept as received, so that both sides count the same; bytes in flight also have a limit of the
//! agent's own.

use std::time::{Duration, Instant};

/// Permanent credit of each stream, in bytes.
pub const BASE_CREDIT_BYTES: usize = 64 * 1024;
/// Maximum loan of the hub to a stream, in bytes.
pub const MAX_LENT_BYTES: usize = 4 * 1024 * 1024;
/// Maximum number of bytes in flight on a stream, regardless of credit: sent, kept for a resend, and not known to be
/// committed.
pub const MAX_IN_FLIGHT_BYTES: usize = BASE_CREDIT_BYTES + MAX_LENT_BYTES;
/// Time after which unused credit is returned. The hub ends a stream that keeps it for 60 s.
pub const UNUSED_CREDIT_TIME: Duration = Duration::from_secs(30);

#[derive(Clone, Debug)]
pub struct SenderCredit {
    available: usize,
    in_flight: usize,
    /// Bytes of an unanswered Want.
    asked: Option<usize>,
    used_at: Instant,
}

impl SenderCredit {
    pub fn new(now: Instant) -> Self {
        Self { available: 0, in_flight: 0, asked: None, used_at: now }
    }

    /// Bytes that may be sent.
    pub fn available(&self) -> usize {
        self.available.min(MAX_IN_FLIGHT_BYTES.saturating_sub(self.in_flight))
    }

    /// Total credit of the stream, used or not, in bytes.
    fn total(&self) -> usize {
        self.available + self.in_flight
    }

    /// Records credit from the hub.
    pub fn granted(&mut self, bytes: usize, now: Instant) {
        self.available = self.available.saturating_add(bytes).min(MAX_IN_FLIGHT_BYTES);
        self.used_at = now;
        if self.total() > BASE_CREDIT_BYTES {
            self.asked = None;
        }
    }

    /// Records a sent batch.
    pub fn spend(&mut self, bytes: usize, now: Instant) {
        self.available = self.available.saturating_sub(bytes);
        self.in_flight += bytes;
        self.used_at = now;
    }

    /// Records committed or discarded batches.
    pub fn settle(&mut self, bytes: usize, now: Instant) {
        self.used_at = now;
        self.in_flight = self.in_flight.saturating_sub(bytes);
    }

    /// Credit for an account with `in_flight` uncommitted bytes: up to a quarter of the stream's credit, at least
    /// [`BASE_CREDIT_BYTES`].
    pub fn account_allowance(&self, in_flight: usize) -> usize {
        (self.total() / 4).max(BASE_CREDIT_BYTES).saturating_sub(in_flight)
    }

    /// Credit available while `reserved` bytes are reserved: whatever exceeds them, and the rest of
    /// [`BASE_CREDIT_BYTES`].
    pub fn available_beside(&self, reserved: usize) -> usize {
        let base = BASE_CREDIT_BYTES.saturating_sub(self.in_flight);
        self.available.saturating_sub(reserved).max(base)
    }

    /// Size of the next Want, given the credit that would let everything be sent; `None` while a Want for about as much
    /// is unanswered.
    pub fn ask(&mut self, needed: usize) -> Option<u32> {
        let short = needed.saturating_sub(self.available).min(MAX_LENT_BYTES);
        if short == 0 || self.asked.is_some_and(|asked| short < asked.saturating_mul(2)) {
            return None;
        }
        self.asked = Some(short);
        u32::try_from(short).ok()
    }

    /// Time at which unused lent credit is returned; `None` if there is none, if something is in flight, or if more was
    /// requested.
    pub fn give_back_at(&self) -> Option<Instant> {
        // Bytes in flight may come back as credit, which both sides must count the same.
        let is_unused = self.in_flight == 0 && self.available > BASE_CREDIT_BYTES && self.asked.is_none();
        is_unused.then(|| self.used_at + UNUSED_CREDIT_TIME)
    }

    /// Returns unused lent credit. The caller sends a Want of 0 bytes.
    pub fn give_back(&mut self) {
        self.available = self.available.min(BASE_CREDIT_BYTES);
    }
}
