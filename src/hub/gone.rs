//! Objects of agents that do not come back: marked as disconnected after the grace, and later removed. Counted in ticks since they were
//! first seen so, so that a process that slept removes nobody. Of several replicas only the leader does it, and an agent
//! that another living replica has is not touched.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::Hub;
use super::registration::KnownAgent;
use crate::account::lifecycle::{Ending, Fact, Tick};

/// All objects are looked at so often, or at least twice in the time after which one is removed.
const SWEEP: Duration = Duration::from_secs(60);
/// How long the API server may take.
const WAIT: Duration = Duration::from_secs(15);

/// What is to be done about one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Nothing yet.
    Keep,
    /// It says that an agent is connected, and nobody has it.
    MarkDisconnected,
    /// Its agent has been away for too long.
    Remove,
}

/// After how many ticks something is done about an object.
#[derive(Clone, Copy, Debug)]
struct After {
    /// Until then its agent may come back, and writes itself.
    mark: Tick,
    remove: Tick,
}

/// Since when the agents that nobody has were seen so, by uid of their objects. Pure.
#[derive(Debug, Default)]
pub(super) struct Gone {
    since: HashMap<String, Tick>,
}

impl Gone {
    /// Judges an object. `is_here`: its agent is connected, connecting, or may still come back.
    fn judge(&mut self, agent: &KnownAgent, is_here: bool, now: Tick, after: After) -> Fate {
        if is_here {
            self.since.remove(&agent.uid);
            return Fate::Keep;
        }
        let since = *self.since.entry(agent.uid.clone()).or_insert(now);
        match now.saturating_sub(since) {
            gone if gone >= after.remove => Fate::Remove,
            gone if gone >= after.mark && agent.connected => Fate::MarkDisconnected,
            _ => Fate::Keep,
        }
    }

    /// Forgets objects that are no longer there.
    fn keep_only(&mut self, known: &[KnownAgent]) {
        let uids: std::collections::HashSet<_> = known.iter().map(|agent| agent.uid.as_str()).collect();
        self.since.retain(|uid, _| uids.contains(uid.as_str()));
    }
}

fn pace(remove_after: Tick) -> Duration {
    (Duration::from_secs(remove_after) / 2).clamp(Duration::from_secs(1), SWEEP)
}

/// Sweeps until stopped.
pub(super) async fn keep(hub: Arc<Hub>, stop: CancellationToken) {
    let mut gone = Gone::default();
    let pace = pace(hub.settings.remove_agents_after);
    let mut sweep = tokio::time::interval_at(tokio::time::Instant::now() + pace, pace);
    sweep.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = sweep.tick() => {}
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = look(&hub, &mut gone) => {}
        }
    }
}

/// Whether an agent is connected, connecting, or may still come back: here, or at a replica that is not known to be
/// gone.
fn is_here(hub: &Hub, agent: &KnownAgent) -> bool {
    let ours = agent.replica == hub.settings.replica_id;
    let is_elsewhere = || {
        agent.connected
            && !ours
            && hub.replicas.serves(&agent.replica, agent.incarnation.as_deref()) != Fact::Known(false)
    };
    hub.registry.knows(&agent.agent_id, &agent.zone) || is_elsewhere()
}

/// Looks at all objects once, if this replica leads.
pub(super) async fn look(hub: &Hub, gone: &mut Gone) {
    if !hub.leadership.leads() {
        // Whoever leads next counts anew.
        *gone = Gone::default();
        return;
    }
    if hub.replicas.backlog_since(hub.ticks.now()).is_some() {
        // Whoever is away may be waiting to be registered.
        return;
    }
    let known = match tokio::time::timeout(WAIT, hub.agents.known()).await {
        Ok(Ok(known)) => known,
        Ok(Err(problem)) => return warn!(error = %problem, "cannot list the agents' objects"),
        Err(_) => return warn!("the agents' objects were not listed in time"),
    };
    gone.keep_only(&known);
    let after = After { mark: hub.settings.forget_after, remove: hub.settings.remove_agents_after };
    for agent in known {
        if !hub.leadership.leads() || hub.replicas.backlog_since(hub.ticks.now()).is_some() {
            return;
        }
        let fate = gone.judge(&agent, is_here(hub, &agent), hub.ticks.now(), after);
        let done = match fate {
            Fate::Keep => continue,
            Fate::MarkDisconnected => {
                // Nobody saw its stream end.
                let ending = Ending::ReplicaLost;
                let told = hub.agents.disconnected(&agent.agent_id, &agent.zone, &agent.session_id, ending);
                tokio::time::timeout(WAIT, told).await
            }
            Fate::Remove => {
                info!(
                    agentId = agent.agent_id,
                    zoneId = agent.zone,
                    "an agent that was long gone is removed"
                );
                tokio::time::timeout(WAIT, hub.agents.remove(&agent)).await
            }
        };
        if let Ok(Err(problem)) = done {
            warn!(agentId = agent.agent_id, error = %problem, "cannot write the object of an agent that is gone");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(connected: bool) -> KnownAgent {
        KnownAgent { uid: "u".into(), connected, ..KnownAgent::default() }
    }

    #[test]
    fn it_is_looked_once_a_minute_and_oftener_where_objects_go_sooner() {
        let paces = [600, 60, 4, 0].map(|remove_after| pace(remove_after).as_secs());
        assert_eq!(paces, [60, 30, 2, 1]);
    }

    const AFTER: After = After { mark: 30, remove: 600 };

    #[test]
    fn an_agent_that_was_away_for_the_whole_time_is_removed() {
        let mut gone = Gone::default();
        assert_eq!(gone.judge(&agent(false), false, 5, AFTER), Fate::Keep);
        assert_eq!(gone.judge(&agent(false), false, 604, AFTER), Fate::Keep);
        assert_eq!(gone.judge(&agent(false), false, 605, AFTER), Fate::Remove);
    }

    #[test]
    fn an_agent_that_comes_back_begins_anew() {
        let mut gone = Gone::default();
        gone.judge(&agent(false), false, 5, AFTER);
        assert_eq!(gone.judge(&agent(true), true, 500, AFTER), Fate::Keep);
        assert_eq!(gone.judge(&agent(false), false, 700, AFTER), Fate::Keep);
    }

    #[test]
    fn an_object_that_says_connected_though_nobody_has_the_agent_is_corrected_once_it_does_not_come_back() {
        let mut gone = Gone::default();
        assert_eq!(gone.judge(&agent(true), false, 5, AFTER), Fate::Keep);
        assert_eq!(gone.judge(&agent(true), false, 34, AFTER), Fate::Keep);
        assert_eq!(gone.judge(&agent(true), false, 35, AFTER), Fate::MarkDisconnected);
        assert_eq!(gone.judge(&agent(true), false, 700, AFTER), Fate::Remove);
    }

    #[test]
    fn an_object_made_again_under_the_same_name_begins_anew() {
        let mut gone = Gone::default();
        gone.judge(&agent(false), false, 5, AFTER);
        let again = KnownAgent { uid: "v".into(), ..agent(false) };
        gone.keep_only(std::slice::from_ref(&again));
        assert_eq!(gone.judge(&again, false, 700, AFTER), Fate::Keep);
        assert_eq!(gone.since.len(), 1);
    }
}
