//! Bound on the objects of agents that were never approved. Pure except for the index.

use std::collections::HashMap;
use std::time::Duration;

use crate::hub::sessions::ledger::Moment;
use crate::objects::AgentIndex;

/// Maximum number of KubesvcAgents that were never approved.
const MAX_OBJECTS: usize = 100;
/// Time after which the watch has shown a new object, or it was not created.
const MAX_WATCH_DELAY: Duration = Duration::from_secs(60);

/// Unapproved agents whose object the watch has not shown yet.
#[derive(Debug, Default)]
pub(super) struct UnapprovedAgents {
    /// Time of admission, by object name.
    pending: HashMap<String, Moment>,
}

impl UnapprovedAgents {
    /// Whether an unapproved agent may be registered: its object exists, or one more is allowed.
    pub(super) fn admit(&mut self, name: &str, agents: &AgentIndex, now: Moment) -> bool {
        self.pending.retain(|one, since| agents.get(one).is_none() && *since + MAX_WATCH_DELAY > now);
        if agents.get(name).is_some() || self.pending.contains_key(name) {
            return true;
        }
        let is_room = agents.never_approved() + self.pending.len() < MAX_OBJECTS;
        if is_room {
            self.pending.insert(name.to_owned(), now);
        }
        is_room
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::account::{KubesvcAgent, KubesvcAgentSpec};

    #[test]
    fn at_most_a_hundred_unapproved_agents_have_objects_and_those_may_return() {
        let (agents, mut strangers) = (AgentIndex::default(), UnapprovedAgents::default());
        let show = |name: &str, approved| {
            let spec = KubesvcAgentSpec { approved, ..KubesvcAgentSpec::default() };
            let mut agent = KubesvcAgent::new(name, spec);
            agent.metadata.resource_version = Some("1".into());
            agents.seen(agent);
        };
        (0..50).for_each(|one| show(&format!("approved-{one}"), true));
        (0..60).for_each(|one| show(&format!("seen-{one}"), false));
        let now = Duration::ZERO;
        assert!((0..40).all(|one| strangers.admit(&format!("new-{one}"), &agents, now)));
        assert!(!strangers.admit("one-more", &agents, now));
        assert!(strangers.admit("seen-0", &agents, now) && strangers.admit("new-0", &agents, now));
        show("new-0", false);
        assert!(!strangers.admit("one-more", &agents, now), "it is counted once");
        agents.gone("seen-0", 2);
        assert!(strangers.admit("one-more", &agents, now));
        let later = now + MAX_WATCH_DELAY;
        assert!(
            (0..40).all(|one| strangers.admit(&format!("later-{one}"), &agents, later)),
            "they were never made"
        );
        assert!(!strangers.admit("too-late", &agents, later));
    }
}
