//! Unacknowledged batches of an account, and the part of them that is in flight.

use std::collections::VecDeque;

use super::batch::EncodedBatch;

#[derive(Clone, Debug)]
pub(super) struct UnackedBatch {
    pub(super) seq: u64,
    pub(super) batch: EncodedBatch,
}

/// Size of what was sent on the current stream and is not known to be committed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct InFlightSize {
    pub(super) bytes: usize,
    pub(super) events: usize,
}

impl InFlightSize {
    /// Difference to a smaller size.
    pub(super) fn minus(self, less: Self) -> Self {
        Self { bytes: self.bytes - less.bytes, events: self.events - less.events }
    }
}

/// Unacknowledged batches, sent in order, so those in flight come first. The sums are maintained because each event
/// needs them.
#[derive(Clone, Debug, Default)]
pub(super) struct UnackedBatches {
    /// Oldest first.
    batches: VecDeque<UnackedBatch>,
    /// Number of batches in flight.
    sent: usize,
    in_flight: InFlightSize,
    /// Bytes of all batches.
    bytes: usize,
}

impl UnackedBatches {
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = &UnackedBatch> {
        self.batches.iter()
    }

    pub(super) fn in_flight(&self) -> InFlightSize {
        self.in_flight
    }

    /// Bytes of the batches that are not in flight.
    pub(super) fn unsent_bytes(&self) -> usize {
        self.bytes - self.in_flight.bytes
    }

    /// Marks nothing as in flight: the stream ended, or another one is open.
    pub(super) fn unsend(&mut self) {
        self.sent = 0;
        self.in_flight = InFlightSize::default();
    }

    /// The first batch that is not in flight.
    pub(super) fn next_unsent(&self) -> Option<&EncodedBatch> {
        self.batches.get(self.sent).map(|unacked| &unacked.batch)
    }

    /// Marks the first unsent batch as sent.
    pub(super) fn send_next(&mut self) {
        if let Some(UnackedBatch { batch, .. }) = self.batches.get(self.sent) {
            self.sent += 1;
            self.in_flight.bytes += batch.bytes;
            self.in_flight.events += batch.event_count;
        }
    }

    /// Adds an unsent batch.
    pub(super) fn push(&mut self, seq: u64, batch: EncodedBatch) {
        self.bytes += batch.bytes;
        self.batches.push_back(UnackedBatch { seq, batch });
    }

    /// Takes the first batch if its number is at most `seq`.
    pub(super) fn pop_up_to(&mut self, seq: u64) -> Option<UnackedBatch> {
        let first = self.batches.pop_front_if(|first| first.seq <= seq)?;
        self.bytes -= first.batch.bytes;
        if let Some(sent) = self.sent.checked_sub(1) {
            self.sent = sent;
            self.in_flight.bytes -= first.batch.bytes;
            self.in_flight.events -= first.batch.event_count;
        }
        Some(first)
    }

    pub(super) fn take(&mut self) -> VecDeque<UnackedBatch> {
        std::mem::take(self).batches
    }
}

#[cfg(test)]
mod tests {
    use super::super::batch::EncodedFrame;
    use super::*;
    use kubesvc_core::wire::events::{Ping, cache_up};

    fn batch(bytes: usize, event_count: usize) -> EncodedBatch {
        EncodedBatch {
            frame: EncodedFrame::encode(cache_up::Frame::Ping(Ping { nonce: 1 })),
            bytes,
            added: Vec::new(),
            sync_starts: Vec::new(),
            problems: Vec::new(),
            events: Vec::new(),
            event_count,
        }
    }

    fn sums(unacked: &UnackedBatches) -> (usize, usize, usize) {
        let InFlightSize { bytes, events } = unacked.in_flight();
        (bytes, events, unacked.unsent_bytes())
    }

    #[test]
    fn sums_follow_what_is_sent_acknowledged_and_sent_again() {
        let mut unacked = UnackedBatches::default();
        for (seq, bytes, events) in [(1, 100, 1), (2, 20, 2), (3, 3, 4)] {
            unacked.push(seq, batch(bytes, events));
            unacked.send_next();
        }
        assert_eq!((sums(&unacked), unacked.next_unsent().is_none()), ((123, 7, 0), true));
        assert_eq!(unacked.pop_up_to(1).map(|first| first.seq), Some(1));
        assert_eq!(sums(&unacked), (23, 6, 0));
        assert!(unacked.pop_up_to(1).is_none());
        unacked.unsend();
        assert_eq!(sums(&unacked), (0, 0, 23));
        unacked.send_next();
        assert_eq!((sums(&unacked), unacked.next_unsent().map(|next| next.bytes)), ((20, 2, 3), Some(3)));
        // The second was committed on a former stream before it was sent on this one.
        while unacked.pop_up_to(3).is_some() {}
        assert_eq!((sums(&unacked), unacked.iter().count()), ((0, 0, 0), 0));
        unacked.push(4, batch(5, 1));
        unacked.send_next();
        assert_eq!((unacked.take().len(), sums(&unacked)), (1, (0, 0, 0)));
    }
}
