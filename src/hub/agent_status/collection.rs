//! Collection of the objects of absent agents: marks them as disconnected after the grace, and removes them later.
//! Absence is counted in ticks since it was first observed, so that a process that was suspended removes nothing. An
//! object whose approval was set by a person is kept for a month, and one that was never approved for a minute. Only
//! the leader collects, and it leaves agents of other living replicas alone.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::AgentStatus;
use crate::account::agent_resource::SessionEnd;
use crate::account::lifecycle::{Fact, Tick};
use crate::hub::agent_status::registration::KnownAgent;
use crate::telemetry::outages::warn_unless_away;

/// Interval between passes over all objects, at most half the removal time.
const COLLECTION_INTERVAL: Duration = Duration::from_secs(60);
/// Time limit for one request to the API server.
const API_TIMEOUT: Duration = Duration::from_secs(15);

/// What to do with one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CollectionAction {
    /// Nothing yet.
    Keep,
    /// It says connected, but no replica has the agent.
    MarkDisconnected,
    /// Its agent has been away for too long.
    Remove,
}

/// Ticks of absence after which an object is changed or removed.
#[derive(Clone, Copy, Debug)]
struct CollectionDelays {
    /// Until then the agent may come back, which writes the object.
    mark_disconnected: Tick,
    remove: Tick,
    /// For agents that were never approved.
    remove_unapproved: Tick,
    /// Time since the end of the stream, if a person has set the approval.
    forget_decision: Duration,
    /// The default approval.
    approves_new: bool,
}

impl CollectionDelays {
    /// Whether an object is removed whose agent has been absent for this many ticks.
    fn removes(&self, agent: &KnownAgent, absent: Tick, wall: Timestamp) -> bool {
        let was_approved = agent.approved || agent.approved_once;
        let after = if was_approved { self.remove } else { self.remove.min(self.remove_unapproved) };
        let since = agent.ended_at.and_then(|ended| Duration::try_from(wall.duration_since(ended)).ok());
        // The wall clock may stop or jump, so it counts only together with the ticks.
        let away = since.unwrap_or(Duration::from_secs(absent));
        absent >= after && (agent.approved == self.approves_new || away >= self.forget_decision)
    }
}

/// Tick of the first observed absence, by object uid. Pure.
#[derive(Debug, Default)]
pub(in crate::hub) struct AbsentAgents {
    since: HashMap<String, Tick>,
}

impl AbsentAgents {
    /// Judges an object. `is_here`: its agent is connected, registering, or may still come back.
    fn judge(
        &mut self,
        agent: &KnownAgent,
        is_here: bool,
        (now, wall): (Tick, Timestamp),
        after: CollectionDelays,
    ) -> CollectionAction {
        if is_here {
            self.since.remove(&agent.uid);
            return CollectionAction::Keep;
        }
        let since = *self.since.entry(agent.uid.clone()).or_insert(now);
        match now.saturating_sub(since) {
            absent if after.removes(agent, absent, wall) => CollectionAction::Remove,
            absent if absent >= after.mark_disconnected && agent.connected => {
                CollectionAction::MarkDisconnected
            }
            _ => CollectionAction::Keep,
        }
    }

    /// Forgets objects that no longer exist.
    fn keep_only(&mut self, known: &[KnownAgent]) {
        let uids: std::collections::HashSet<_> = known.iter().map(|agent| agent.uid.as_str()).collect();
        self.since.retain(|uid, _| uids.contains(uid.as_str()));
    }
}

/// Interval between passes while objects of unapproved agents exist, which are removed sooner.
const UNAPPROVED_COLLECTION_INTERVAL: Duration = Duration::from_secs(5);

fn interval(remove_after: Tick) -> Duration {
    (Duration::from_secs(remove_after) / 2).clamp(Duration::from_secs(1), COLLECTION_INTERVAL)
}

/// Collects until stopped.
pub(in crate::hub) async fn run(status: Arc<AgentStatus>, stop: CancellationToken) {
    let context = &status.context;
    let mut absent = AbsentAgents::default();
    let pace = interval(context.settings.remove_agents_after);
    let mut looked = Instant::now();
    let often = pace.min(UNAPPROVED_COLLECTION_INTERVAL);
    let mut sweep = tokio::time::interval_at(looked + often, often);
    sweep.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = sweep.tick() => {}
        }
        if looked.elapsed() < pace && context.agent_index.never_approved() == 0 {
            continue;
        }
        looked = Instant::now();
        tokio::select! {
            () = stop.cancelled() => return,
            () = collect(&status, &mut absent) => {}
        }
    }
}

/// Whether an agent is connected, registering or may still come back, here or at a replica that is not known to be
/// dead.
fn is_here(status: &AgentStatus, agent: &KnownAgent) -> bool {
    let context = &status.context;
    let ours = agent.replica == context.settings.replica_id;
    let is_elsewhere = || {
        agent.connected
            && !ours
            && context.replicas.serves(&agent.replica, agent.incarnation.as_deref()) != Fact::Known(false)
    };
    status.sessions.registry.knows(&agent.agent_id, &agent.zone) || is_elsewhere()
}

/// Makes one pass over all objects, if this replica leads.
pub(in crate::hub) async fn collect(status: &AgentStatus, absent: &mut AbsentAgents) {
    let AgentStatus { context, agents, .. } = status;
    if !context.leadership.leads() {
        // The next leader counts from the start.
        *absent = AbsentAgents::default();
        return;
    }
    if context.replicas.backlog_since(context.ticks.now()).is_some() {
        // An absent agent may be waiting to be registered.
        return;
    }
    let known = match tokio::time::timeout(API_TIMEOUT, agents.known()).await {
        Ok(Ok(known)) => known,
        Ok(Err(problem)) => return warn_unless_away!(error = %problem, "cannot list the agents' objects"),
        Err(_) => return warn_unless_away!("the agents' objects were not listed in time"),
    };
    absent.keep_only(&known);
    let after = CollectionDelays {
        mark_disconnected: context.settings.forget_after,
        remove: context.settings.remove_agents_after,
        remove_unapproved: context.settings.remove_unapproved_after,
        forget_decision: context.settings.forget_approved_after,
        approves_new: context.settings.approves_new,
    };
    // Static accounts are kept as long as their agent may come back.
    let after_listing =
        CollectionDelays { remove: after.remove.max(context.settings.account_cleanup), ..after };
    for agent in known {
        if !context.leadership.leads() || context.replicas.backlog_since(context.ticks.now()).is_some() {
            return;
        }
        let after = if agent.lists { after_listing } else { after };
        let fate =
            absent.judge(&agent, is_here(status, &agent), (context.ticks.now(), Timestamp::now()), after);
        let done = match fate {
            CollectionAction::Keep => continue,
            CollectionAction::MarkDisconnected => {
                // Nobody observed the end of the stream.
                let end = SessionEnd::ReplicaLost;
                let told = agents.write_disconnected(agent.session(), end);
                tokio::time::timeout(API_TIMEOUT, told).await
            }
            CollectionAction::Remove => {
                info!(
                    agentId = agent.agent_id,
                    zoneId = agent.zone,
                    "an agent that was long gone is removed"
                );
                tokio::time::timeout(API_TIMEOUT, agents.remove(&agent)).await
            }
        };
        if let Ok(Err(problem)) = done {
            warn_unless_away!(agentId = agent.agent_id, error = %problem, "cannot write the object of an agent that is gone");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(connected: bool) -> KnownAgent {
        KnownAgent { uid: "u".into(), connected, approved: true, ..KnownAgent::default() }
    }

    #[test]
    fn objects_are_collected_every_minute_or_twice_in_the_removal_time() {
        let paces = [600, 60, 4, 0].map(|remove_after| interval(remove_after).as_secs());
        assert_eq!(paces, [60, 30, 2, 1]);
    }

    const MONTH: Duration = Duration::from_secs(2_592_000);
    const AFTER: CollectionDelays = CollectionDelays {
        mark_disconnected: 30,
        remove: 600,
        remove_unapproved: 60,
        forget_decision: MONTH,
        approves_new: true,
    };

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    #[test]
    fn the_object_of_an_agent_that_was_never_approved_goes_a_minute_after_its_stream() {
        let after = CollectionDelays { approves_new: false, ..AFTER };
        let stranger = KnownAgent { approved: false, ..agent(false) };
        assert!(!after.removes(&stranger, 59, at(0)) && after.removes(&stranger, 60, at(0)));
        let withdrawn = KnownAgent { approved_once: true, ..stranger };
        assert!(!after.removes(&withdrawn, 599, at(0)) && after.removes(&withdrawn, 600, at(0)));
    }

    #[test]
    fn what_a_person_has_decided_outlives_the_absence_of_the_agent_by_a_month() {
        let month = i64::try_from(MONTH.as_secs()).expect("it is short");
        for approves_new in [true, false] {
            let after = CollectionDelays { approves_new, ..AFTER };
            let agent = |approved| KnownAgent {
                approved,
                approved_once: true,
                ended_at: Some(at(0)),
                ..agent(false)
            };
            assert!(after.removes(&agent(approves_new), 600, at(600)), "nobody has decided anything");
            let decided = agent(!approves_new);
            assert!(!after.removes(&decided, 600, at(month - 1)) && after.removes(&decided, 600, at(month)));
            assert!(!after.removes(&decided, 599, at(month)), "the process may have slept");
            let unstamped = KnownAgent { ended_at: None, ..decided };
            assert!(!after.removes(&unstamped, 600, at(month)));
            assert!(after.removes(&unstamped, MONTH.as_secs(), at(0)));
        }
    }

    #[test]
    fn an_agent_that_was_away_for_the_whole_time_is_removed() {
        let mut absent = AbsentAgents::default();
        assert_eq!(absent.judge(&agent(false), false, (5, at(0)), AFTER), CollectionAction::Keep);
        assert_eq!(absent.judge(&agent(false), false, (604, at(0)), AFTER), CollectionAction::Keep);
        assert_eq!(absent.judge(&agent(false), false, (605, at(0)), AFTER), CollectionAction::Remove);
    }

    #[test]
    fn an_agent_that_comes_back_begins_anew() {
        let mut absent = AbsentAgents::default();
        absent.judge(&agent(false), false, (5, at(0)), AFTER);
        assert_eq!(absent.judge(&agent(true), true, (500, at(0)), AFTER), CollectionAction::Keep);
        assert_eq!(absent.judge(&agent(false), false, (700, at(0)), AFTER), CollectionAction::Keep);
    }

    #[test]
    fn an_object_wrongly_marked_connected_is_corrected_after_the_grace() {
        let mut absent = AbsentAgents::default();
        assert_eq!(absent.judge(&agent(true), false, (5, at(0)), AFTER), CollectionAction::Keep);
        assert_eq!(absent.judge(&agent(true), false, (34, at(0)), AFTER), CollectionAction::Keep);
        assert_eq!(absent.judge(&agent(true), false, (35, at(0)), AFTER), CollectionAction::MarkDisconnected);
        assert_eq!(absent.judge(&agent(true), false, (700, at(0)), AFTER), CollectionAction::Remove);
    }

    #[test]
    fn an_object_made_again_under_the_same_name_begins_anew() {
        let mut absent = AbsentAgents::default();
        absent.judge(&agent(false), false, (5, at(0)), AFTER);
        let again = KnownAgent { uid: "v".into(), ..agent(false) };
        absent.keep_only(std::slice::from_ref(&again));
        assert_eq!(absent.judge(&again, false, (700, at(0)), AFTER), CollectionAction::Keep);
        assert_eq!(absent.since.len(), 1);
    }
}
