//! Queued frames for one agent. Consecutive acknowledgements and credits are merged into one frame. Pure.

use std::collections::VecDeque;

use kubesvc_core::wire::events::cache_down::Frame;
use kubesvc_core::wire::events::{CacheDown, Credit};

/// Maximum number of queued frames. An agent that reads more slowly is disconnected.
const MAX_FRAMES: usize = 20_000;
/// Size of the queued frames below which further answers are prepared, in bytes.
const MAX_BYTES_FOR_READS: usize = 1024 * 1024;

/// The agent does not read its frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{MAX_FRAMES} frames wait to be read; read the stream without pause")]
pub(crate) struct OutboxFull;

/// Queued frames, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    frames: VecDeque<(Frame, usize)>,
    bytes: usize,
}

impl Outbox {
    /// Adds a frame, or merges it with a queued one.
    pub(crate) fn push(&mut self, frame: Frame) -> Result<(), OutboxFull> {
        if self.join(&frame) {
            return Ok(());
        }
        if self.frames.len() >= MAX_FRAMES {
            return Err(OutboxFull);
        }
        let bytes = frame.encoded_len();
        self.bytes += bytes;
        self.frames.push_back((frame, bytes));
        Ok(())
    }

    /// Takes the oldest frame.
    pub(crate) fn pop(&mut self) -> Option<CacheDown> {
        let (frame, bytes) = self.frames.pop_front()?;
        self.bytes -= bytes;
        Some(CacheDown { frame: Some(frame) })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Whether further answers may be prepared.
    pub(crate) fn has_room_for_reads(&self) -> bool {
        self.bytes < MAX_BYTES_FOR_READS
    }

    /// Merges an Ack or a Credit into one of the last frames, if only such frames came after it.
    fn join(&mut self, frame: &Frame) -> bool {
        let tail = self.frames.iter_mut().rev().map(|(waiting, _)| waiting);
        for waiting in tail.take_while(|waiting| matches!(waiting, Frame::Ack(_) | Frame::Credit(_))) {
            match (waiting, frame) {
                (Frame::Ack(waiting), Frame::Ack(ack)) if waiting.fence == ack.fence => {
                    waiting.seq = waiting.seq.max(ack.seq);
                    return true;
                }
                (Frame::Credit(waiting), Frame::Credit(Credit { bytes })) => {
                    waiting.bytes = waiting.bytes.saturating_add(*bytes);
                    return true;
                }
                _ => {}
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kubesvc_core::wire::common::Fence;
    use kubesvc_core::wire::events::{Ack, Pong, Resume, Rewind};

    fn ack(uid: &str, seq: u64) -> Frame {
        Frame::Ack(Ack { fence: Some(Fence { account_uid: uid.into(), caching_epoch: 1 }), seq })
    }

    fn credit(bytes: u32) -> Frame {
        Frame::Credit(Credit { bytes })
    }

    fn sent(frames: Vec<Frame>) -> Vec<Frame> {
        let mut outbox = Outbox::default();
        frames.into_iter().for_each(|frame| outbox.push(frame).expect("there is room"));
        std::iter::from_fn(|| outbox.pop()).filter_map(|down| down.frame).collect()
    }

    #[test]
    fn acknowledgements_of_an_account_and_credits_are_joined_while_they_wait() {
        let frames = vec![ack("u", 1), credit(5), ack("v", 1), ack("u", 3), credit(7)];
        assert_eq!(sent(frames), [ack("u", 3), credit(12), ack("v", 1)]);
    }

    #[test]
    fn nothing_is_moved_over_another_frame() {
        let rewind = || Frame::Rewind(Rewind::default());
        let frames = vec![ack("u", 1), credit(5), rewind(), ack("u", 2), credit(6)];
        assert_eq!(sent(frames.clone()), frames);
    }

    #[test]
    fn the_number_of_waiting_frames_is_bounded() {
        let (mut outbox, pong) = (Outbox::default(), || Frame::Pong(Pong { nonce: 1 }));
        (0..MAX_FRAMES).for_each(|_| outbox.push(pong()).expect("there is room"));
        assert_eq!(outbox.push(pong()), Err(OutboxFull));
    }

    #[test]
    fn answers_are_prepared_again_when_large_ones_were_sent() {
        let mut outbox = Outbox::default();
        assert!(outbox.is_empty() && outbox.has_room_for_reads());
        let large = || Frame::Resume(Resume { others: vec!["x".repeat(250_000)], ..Resume::default() });
        (0..5).for_each(|_| outbox.push(large()).expect("there is room"));
        assert!(!outbox.has_room_for_reads());
        outbox.pop();
        assert!(outbox.has_room_for_reads() && !outbox.is_empty());
    }
}
