//! Minimum interval between writes of one object.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Minimum interval between two writes of one object.
const MIN_WRITE_INTERVAL: Duration = Duration::from_millis(500);
/// Number of tracked names at which expired ones are dropped.
const MAX_TRACKED_NAMES: usize = 1024;

/// Earliest time of the next write, by object.
#[derive(Debug, Default)]
pub(super) struct WritePacer(Mutex<HashMap<String, Instant>>);

impl WritePacer {
    /// Waits until an object may be written, and takes the turn.
    pub(super) async fn pass(&self, name: &str) {
        while let Err(at) = self.try_pass(name) {
            tokio::time::sleep_until(at).await;
        }
    }

    /// Takes the turn if the object may be written now; otherwise returns the time of the next turn.
    pub(super) fn try_pass(&self, name: &str) -> Result<(), Instant> {
        let now = Instant::now();
        let mut again = self.0.lock();
        if let Some(at) = again.get(name).filter(|at| **at > now) {
            return Err(*at);
        }
        if again.len() >= MAX_TRACKED_NAMES {
            again.retain(|_, at| *at > now);
        }
        again.insert(name.to_owned(), now + MIN_WRITE_INTERVAL);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_object_is_written_twice_a_second_at_most_and_others_are_not_held_up() {
        let (pacer, since) = (WritePacer::default(), std::time::Instant::now());
        pacer.pass("a").await;
        pacer.pass("b").await;
        assert!(since.elapsed() < MIN_WRITE_INTERVAL);
        assert!(pacer.try_pass("a").is_err());
        pacer.pass("a").await;
        pacer.pass("a").await;
        assert!(since.elapsed() >= MIN_WRITE_INTERVAL * 2);
    }

    #[test]
    fn names_are_forgotten_when_they_may_be_written_again() {
        let pacer = WritePacer::default();
        let long_ago = Instant::now();
        pacer.0.lock().extend((0..MAX_TRACKED_NAMES).map(|one| (one.to_string(), long_ago)));
        assert!(pacer.try_pass("a").is_ok());
        assert_eq!(pacer.0.lock().len(), 1);
    }
}
