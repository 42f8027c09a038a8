//! How many large lines and items are in memory at once: they take turns.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::scrub::MAX_LINE_BYTES;

/// Size from which a line or item needs a turn, in bytes.
pub(super) const LARGE_PIECE_BYTES: usize = 256 * 1024;
/// Memory for those that have one, in bytes; each may grow up to the maximum of a line.
const LARGE_PIECES_BYTES: usize = 64 * 1024 * 1024;

/// The turns of an agent's large lines and items. Clones share them.
#[derive(Clone, Debug)]
pub struct LargePieces(Arc<Semaphore>);

/// A turn, until it is dropped.
#[derive(Debug)]
pub(super) struct LargePieceTurn {
    _permit: Option<OwnedSemaphorePermit>,
}

impl Default for LargePieces {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(LARGE_PIECES_BYTES / MAX_LINE_BYTES)))
    }
}

impl LargePieces {
    /// Waits for a turn.
    pub(super) async fn turn(self) -> LargePieceTurn {
        LargePieceTurn { _permit: self.0.acquire_owned().await.ok() }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn four_have_their_turn_and_the_fifth_waits() {
        let pieces = LargePieces::default();
        let mut turns = Vec::new();
        for _ in 0..4 {
            turns.push(pieces.clone().turn().await);
        }
        assert!(pieces.clone().turn().now_or_never().is_none());
        turns.pop();
        assert!(pieces.turn().now_or_never().is_some());
    }
}
