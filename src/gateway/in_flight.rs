//! What is under way: requests of one principal, and the memory of bodies that are being read.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::status::Refusal;

/// Maximum number of short requests of one principal at once.
const MAX_SHORT_OF_PRINCIPAL: usize = 200;
/// Maximum size of the bodies that are being read at once, in bytes.
const MAX_BODIES_BYTES: usize = 256 * 1024 * 1024;

/// Requests under way.
#[derive(Debug, Default)]
pub(super) struct InFlight(Mutex<Counted>);

#[derive(Debug, Default)]
struct Counted {
    principals: HashMap<String, usize>,
    bodies: usize,
}

/// A short request, until it is dropped.
#[derive(Debug)]
pub(super) struct ShortRequest {
    in_flight: Arc<InFlight>,
    principal: String,
}

/// The memory of a body that is being read, until it is dropped.
#[derive(Debug)]
pub(super) struct BodyMemory {
    in_flight: Arc<InFlight>,
    bytes: usize,
}

impl InFlight {
    /// Counts a short request of a principal.
    pub(super) fn short(self: &Arc<Self>, principal: &str) -> Result<ShortRequest, Refusal> {
        let mut counted = self.0.lock();
        let count = counted.principals.entry(principal.to_owned()).or_default();
        if *count >= MAX_SHORT_OF_PRINCIPAL {
            return Err(Refusal::too_many(format!(
                "{MAX_SHORT_OF_PRINCIPAL} requests of user {principal:?} are under way; try again"
            )));
        }
        *count += 1;
        Ok(ShortRequest { in_flight: Arc::clone(self), principal: principal.to_owned() })
    }

    /// Takes the memory of a body of at most so many bytes.
    pub(super) fn body(self: &Arc<Self>, bytes: usize) -> Result<BodyMemory, Refusal> {
        let mut counted = self.0.lock();
        if counted.bodies + bytes > MAX_BODIES_BYTES {
            return Err(Refusal::too_many("too many bodies are being read; try again"));
        }
        counted.bodies += bytes;
        Ok(BodyMemory { in_flight: Arc::clone(self), bytes })
    }
}

impl Drop for ShortRequest {
    fn drop(&mut self) {
        let mut counted = self.in_flight.0.lock();
        if let Some(count) = counted.principals.get_mut(&self.principal) {
            *count -= 1;
            if *count == 0 {
                counted.principals.remove(&self.principal);
            }
        }
    }
}

impl Drop for BodyMemory {
    fn drop(&mut self) {
        self.in_flight.0.lock().bodies -= self.bytes;
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;

    #[test]
    fn one_principal_does_not_use_up_what_others_may_have() {
        let in_flight = Arc::<InFlight>::default();
        let held: Vec<_> = std::iter::from_fn(|| in_flight.short("a").ok()).collect();
        assert_eq!(held.len(), MAX_SHORT_OF_PRINCIPAL);
        assert_eq!(in_flight.short("a").expect_err("too many").code, StatusCode::TOO_MANY_REQUESTS);
        let other = in_flight.short("b").expect("room for another one");
        drop((held, other));
        assert!(in_flight.0.lock().principals.is_empty());
        let body = in_flight.body(MAX_BODIES_BYTES).expect("room");
        assert!(in_flight.body(1).is_err());
        drop(body);
        assert!(in_flight.body(1).is_ok());
    }
}
