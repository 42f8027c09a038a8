//! Elections that are decided but not yet written. Accounts that become ACTIVE at the same time count them, so that
//! they do not all choose the same agent.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// Number of elections being written for each agent. Bounded by the accounts reconciled concurrently.
#[derive(Debug, Default)]
pub(super) struct Elections(Arc<Mutex<HashMap<String, usize>>>);

/// An election that is being written. Ends when dropped.
pub(super) struct PendingElection {
    elections: Arc<Mutex<HashMap<String, usize>>>,
    agent_id: String,
}

impl Elections {
    /// Counts an election of this agent until the returned value is dropped.
    pub(super) fn begin(&self, agent_id: String) -> PendingElection {
        *self.0.lock().entry(agent_id.clone()).or_default() += 1;
        PendingElection { elections: Arc::clone(&self.0), agent_id }
    }

    /// Number of elections of this agent that are being written.
    pub(super) fn of(&self, agent_id: &str) -> usize {
        self.0.lock().get(agent_id).copied().unwrap_or_default()
    }
}

impl Drop for PendingElection {
    fn drop(&mut self) {
        let mut elections = self.elections.lock();
        if let Some(count) = elections.get_mut(&self.agent_id) {
            *count -= 1;
            if *count == 0 {
                elections.remove(&self.agent_id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_election_counts_while_it_is_written() {
        let elections = Elections::default();
        let (one, two) = (elections.begin("a".into()), elections.begin("a".into()));
        assert_eq!((elections.of("a"), elections.of("b")), (2, 0));
        drop(one);
        assert_eq!(elections.of("a"), 1);
        drop(two);
        assert!(elections.0.lock().is_empty());
    }
}
