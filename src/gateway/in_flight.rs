//! The memory of bodies that are being read. A body takes its length, or the largest one if it does not say; one caller
//! gets at most a quarter of the memory, so that its slow bodies delay no other.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::status::Refusal;

/// Maximum size of the bodies that are being read at once, in bytes.
const MAX_BODIES_BYTES: usize = 256 * 1024 * 1024;
/// Maximum size of those of one caller, in bytes.
const MAX_BODIES_OF_CALLER_BYTES: usize = MAX_BODIES_BYTES / 4;

/// Bytes of bodies that are being read.
#[derive(Debug, Default)]
pub(super) struct InFlight(Mutex<BodyBytes>);

#[derive(Debug, Default)]
struct BodyBytes {
    all: usize,
    /// Of each caller, by name. Callers without any are not in it.
    of_callers: HashMap<String, usize>,
}

/// The memory of a body that is being read, until it is dropped.
#[derive(Debug)]
pub(super) struct BodyMemory {
    in_flight: Arc<InFlight>,
    caller: String,
    bytes: usize,
}

impl InFlight {
    /// Takes the memory of a body of at most so many bytes, for the caller with this name.
    pub(super) fn body(self: &Arc<Self>, caller: &str, bytes: usize) -> Result<BodyMemory, Refusal> {
        let mut taken = self.0.lock();
        let of_caller = taken.of_callers.get(caller).copied().unwrap_or_default() + bytes;
        if of_caller > MAX_BODIES_OF_CALLER_BYTES {
            return Err(Refusal::too_many(format!(
                "too many bodies of user {caller:?} are being read, or bodies without a length; try again"
            )));
        }
        if taken.all + bytes > MAX_BODIES_BYTES {
            return Err(Refusal::too_many("too many bodies are being read; try again"));
        }
        taken.all += bytes;
        taken.of_callers.insert(caller.to_owned(), of_caller);
        Ok(BodyMemory { in_flight: Arc::clone(self), caller: caller.to_owned(), bytes })
    }
}

impl Drop for BodyMemory {
    fn drop(&mut self) {
        let mut taken = self.in_flight.0.lock();
        taken.all -= self.bytes;
        if let Some(of_caller) = taken.of_callers.get_mut(&self.caller) {
            *of_caller -= self.bytes;
            if *of_caller == 0 {
                taken.of_callers.remove(&self.caller);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: usize = 8 * 1024 * 1024;

    #[test]
    fn a_caller_gets_a_quarter_of_the_memory_and_delays_no_other() {
        let in_flight = Arc::<InFlight>::default();
        let held: Vec<_> = std::iter::from_fn(|| in_flight.body("slow", BODY).ok()).collect();
        assert_eq!(held.len() * BODY, MAX_BODIES_BYTES / 4);
        let refused = in_flight.body("slow", 1).expect_err("it has its quarter");
        assert!(refused.message.contains("of user \"slow\""), "{}", refused.message);
        let other = in_flight.body("other", BODY).expect("room for another one");
        drop(held);
        assert!(in_flight.body("slow", BODY).is_ok(), "it was given back");
        drop(other);
        let taken = in_flight.0.lock();
        assert_eq!((taken.all, taken.of_callers.len()), (0, 0));
    }

    #[test]
    fn bodies_have_a_bound_together() {
        let in_flight = Arc::<InFlight>::default();
        let callers = ["a", "b", "c", "d"];
        let mut held: Vec<_> = callers
            .iter()
            .map(|caller| in_flight.body(caller, MAX_BODIES_BYTES / 4).expect("room"))
            .collect();
        assert!(in_flight.body("e", 1).is_err());
        held.pop();
        assert!(in_flight.body("e", 1).is_ok());
    }
}
