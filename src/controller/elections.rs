//! Elections that are decided and not written yet: accounts that become ACTIVE at the same time count them, so that not
//! all of them choose the same agent.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// How many elections of each agent are being written. Bounded by the accounts that are worked on at once.
#[derive(Debug, Default)]
pub(super) struct Elections(Arc<Mutex<HashMap<String, usize>>>);

/// An election that is being written.
pub(super) struct PendingElection {
    elections: Arc<Mutex<HashMap<String, usize>>>,
    agent_id: String,
}

impl Elections {
    /// An election of this agent is being written, until what is returned is dropped.
    pub(super) fn begin(&self, agent_id: String) -> PendingElection {
        *self.0.lock().entry(agent_id.clone()).or_default() += 1;
        PendingElection { elections: Arc::clone(&self.0), agent_id }
    }

    /// How many of this agent are.
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
