//! The memory of bodies that are being read.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::status::Refusal;

/// Maximum size of the bodies that are being read at once, in bytes.
const MAX_BODIES_BYTES: usize = 256 * 1024 * 1024;

/// Bytes of bodies that are being read.
#[derive(Debug, Default)]
pub(super) struct InFlight(AtomicUsize);

/// The memory of a body that is being read, until it is dropped.
#[derive(Debug)]
pub(super) struct BodyMemory {
    in_flight: Arc<InFlight>,
    bytes: usize,
}

impl InFlight {
    /// Takes the memory of a body of at most so many bytes.
    pub(super) fn body(self: &Arc<Self>, bytes: usize) -> Result<BodyMemory, Refusal> {
        // Given back when it is dropped, also if there is no room.
        let taken = BodyMemory { in_flight: Arc::clone(self), bytes };
        if self.0.fetch_add(bytes, Ordering::Relaxed) + bytes > MAX_BODIES_BYTES {
            return Err(Refusal::too_many("too many bodies are being read; try again"));
        }
        Ok(taken)
    }
}

impl Drop for BodyMemory {
    fn drop(&mut self) {
        self.in_flight.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_have_a_bound_together() {
        let in_flight = Arc::<InFlight>::default();
        let body = in_flight.body(MAX_BODIES_BYTES).expect("room");
        assert!(in_flight.body(1).is_err());
        drop(body);
        assert!(in_flight.body(1).is_ok());
    }
}
