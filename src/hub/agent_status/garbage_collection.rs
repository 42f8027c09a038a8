//! Absent agents: they are forgotten after some time, and their objects are collected.
//!
//! Collection marks an object as disconnected after the grace, and removes it later.
//! Absence is counted in ticks since it was first observed, so that a process that was suspended removes nothing. An
//! object whose approval was set by a person is kept for a month, and one that was never approved for a minute. Only
//! the leader collects, and it leaves agents of other living replicas alone.
//!
//! Each replica forgets its own agents that have been away for long. While a forgotten agent that had accounts in its own
//! file may come back, an account that no other agent lists is not deleted.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::info;

use crate::hub::agent_status::AgentStatusWriter;
use crate::hub::agent_status::disconnects::Disconnect;
use crate::hub::agent_status::registration::KnownAgent;
use crate::hub::sessions::registry::AwaySession;
use crate::hub::static_accounts::Listing;
use kubesvc_core::agent_resource::SessionEnd;
use kubesvc_core::lifecycle::{AgentProcess, Fact, Presence, SessionFact, Tick};
use kubesvc_core::{AgentId, AgentKey, KubesvcAccount, ZoneId};
use kubesvc_runtime::background_tasks::{AttemptOutcome, BackgroundTasks, TaskSpec};
use kubesvc_runtime::telemetry::outages::warn_unless_away;

/// Interval between passes over all objects, at most half the removal time.
const COLLECTION_INTERVAL: Duration = Duration::from_secs(60);
/// Interval between passes while objects of unapproved agents exist, which are removed sooner.
const UNAPPROVED_COLLECTION_INTERVAL: Duration = Duration::from_secs(5);
/// Interval between scans for agents to forget.
const FORGET_INTERVAL: Duration = Duration::from_secs(5);
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
        // One that is not admitted has no session: each dial in vain is its latest end.
        if agent.is_identified_by_credential && !was_approved && away < Duration::from_secs(after) {
            return false;
        }
        let is_undecided = agent.is_identified_by_credential || agent.approved == self.approves_new;
        absent >= after && (is_undecided || away >= self.forget_decision)
    }
}

/// Tick of the first observed absence, by object uid. Pure.
#[derive(Debug, Default)]
pub(crate) struct AbsentAgents {
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

fn interval(remove_after: Tick) -> Duration {
    (Duration::from_secs(remove_after) / 2).clamp(Duration::from_secs(1), COLLECTION_INTERVAL)
}

/// Starts the tasks that collect objects and forget agents.
pub(crate) fn start(background: &BackgroundTasks, status: &Arc<AgentStatusWriter>) {
    let often =
        interval(status.context.settings.absent_agents.remove_after).min(UNAPPROVED_COLLECTION_INTERVAL);
    let task = TaskSpec::new("agent collection", "Removes the KubesvcAgents of agents that are long absent");
    // Each request has a time limit.
    let task = task.every(often).without_deadline().log_failure(|error| {
        warn_unless_away!(error, "cannot list or write the KubesvcAgents of absent agents; retrying later");
    });
    let collector = Collector { absent: AbsentAgents::default(), last_pass: Instant::now() };
    let (collecting, collector) = (Arc::clone(status), Arc::new(tokio::sync::Mutex::new(collector)));
    background.start(task, move |_: Vec<()>| collect_if_due(Arc::clone(&collecting), Arc::clone(&collector)));
    let task = TaskSpec::new("forgetting agents", "Forgets agents that have been away for long");
    let status = Arc::clone(status);
    background
        .start(task.every(FORGET_INTERVAL).at_start(), move |_: Vec<()>| std::future::ready(forget(&status)));
}

/// State between two passes.
struct Collector {
    absent: AbsentAgents,
    last_pass: Instant,
}

async fn collect_if_due(
    status: Arc<AgentStatusWriter>,
    collector: Arc<tokio::sync::Mutex<Collector>>,
) -> AttemptOutcome {
    let context = &status.context;
    let mut collector = collector.lock().await;
    let is_due = collector.last_pass.elapsed() >= interval(context.settings.absent_agents.remove_after);
    if !is_due && context.agent_index.never_approved() == 0 {
        return AttemptOutcome::Unchanged;
    }
    collector.last_pass = Instant::now();
    collect(&status, &mut collector.absent).await
}

/// Whether an agent is connected, registering or may still come back, here or at a replica that is not known to be
/// dead.
fn is_here(status: &AgentStatusWriter, agent: &KnownAgent) -> bool {
    let context = &status.context;
    let ours = agent.replica == context.settings.replica_id;
    let is_elsewhere = || {
        agent.connected
            && !ours
            && context.replicas.serves(&agent.replica, agent.incarnation.as_deref()) != Fact::Known(false)
    };
    status.sessions.registry.knows(&agent.agent_id, &agent.zone) || is_elsewhere()
}

/// Makes one pass over all objects, if this replica leads. An object that cannot be written is tried again in the next
/// pass.
pub(crate) async fn collect(status: &AgentStatusWriter, absent: &mut AbsentAgents) -> AttemptOutcome {
    let AgentStatusWriter { context, agents, .. } = status;
    if !context.leadership.leads() {
        // The next leader counts from the start.
        *absent = AbsentAgents::default();
        return AttemptOutcome::Unchanged;
    }
    if context.replicas.backlog_since(context.ticks.now()).is_some() {
        // An absent agent may be waiting to be registered.
        return AttemptOutcome::Unchanged;
    }
    let known = match tokio::time::timeout(API_TIMEOUT, agents.known()).await {
        Ok(Ok(known)) => known,
        Ok(Err(error)) => return AttemptOutcome::Refused(error.to_string()),
        Err(_) => {
            return AttemptOutcome::Refused("the API server did not list the KubesvcAgents in time".into());
        }
    };
    absent.keep_only(&known);
    let settings = &context.settings.absent_agents;
    let after = CollectionDelays {
        mark_disconnected: settings.forget_after,
        remove: settings.remove_after,
        remove_unapproved: settings.remove_unapproved_after,
        forget_decision: settings.forget_approved_after,
        approves_new: context.settings.admission.approves_new,
    };
    // Static accounts are kept as long as their agent may come back.
    let after_listing = CollectionDelays { remove: after.remove.max(settings.account_cleanup), ..after };
    let mut outcome = AttemptOutcome::Done;
    for agent in known {
        if !context.leadership.leads() || context.replicas.backlog_since(context.ticks.now()).is_some() {
            break;
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
                    agentId = agent.agent_id.as_str(),
                    zoneId = agent.zone.as_str(),
                    "removing the KubesvcAgent of an agent that has been absent for long"
                );
                tokio::time::timeout(API_TIMEOUT, agents.remove(&agent)).await
            }
        };
        if let Ok(Err(error)) = done {
            outcome = AttemptOutcome::Refused(error.to_string());
        }
    }
    outcome
}

struct DepartedAgent {
    since: Tick,
    approved: bool,
    listing: Arc<Listing>,
}

/// By zone and agent id; only agents that had listed accounts.
#[derive(Default)]
pub(crate) struct DepartedAgents(Mutex<HashMap<(ZoneId, AgentId), DepartedAgent>>);

impl DepartedAgents {
    /// Adds an agent that is being forgotten.
    pub(crate) fn put(&self, agent_id: &AgentId, zone: &ZoneId, away: &AwaySession) {
        let listing = away.session.as_ref().and_then(|session| session.listing());
        if let Some(listing) = listing.filter(|listing| listing.len() > 0) {
            let gone = DepartedAgent { since: away.since, approved: away.approved, listing };
            self.0.lock().insert((zone.clone(), agent_id.clone()), gone);
        }
    }

    /// Removes agents that left at or before `before`, and those that are back.
    pub(crate) fn sweep(&self, before: Option<Tick>, is_back: impl Fn(&AgentId, &str) -> bool) {
        self.0.lock().retain(|(zone, agent_id), gone| {
            before.is_none_or(|before| gone.since > before) && !is_back(agent_id, zone.as_str())
        });
    }
}

impl AgentStatusWriter {
    /// Returns the forgotten agents of a zone that list the account: those of this process, and those recorded in
    /// KubesvcAgents.
    pub(crate) fn departed_with(&self, account: &KubesvcAccount, zone: &ZoneId) -> Vec<SessionFact> {
        let departed = self.departed_agents.0.lock();
        let is_known = |agent_id: &AgentId| self.sessions.registry.knows(agent_id, zone);
        let mut facts = Vec::new();
        for ((of, agent_id), gone) in departed.iter() {
            if of == zone && gone.listing.has(account) && !is_known(agent_id) {
                facts.push(fact(agent_id, zone, gone.approved, gone.since));
            }
        }
        for agent in self.context.agent_index.all() {
            let (spec, status) = (&agent.spec, agent.status.as_ref());
            let lists = || status.and_then(|status| status.lists(account)) == Some(true);
            let is_ours = || {
                let session = status.and_then(|status| status.session.as_ref());
                session.is_some_and(|session| session.replica == self.context.settings.replica_id)
            };
            let is_departed = || departed.contains_key(&(zone.clone(), spec.agent_id.clone()));
            if spec.zone_id == *zone && is_ours() && lists() && !is_known(&spec.agent_id) && !is_departed() {
                // Listed by an agent of an earlier process; the time it left is unknown.
                facts.push(fact(&spec.agent_id, zone, agent.is_approved(), 0));
            }
        }
        facts
    }
}

/// Forgets agents that have been away for long, and queues their disconnects.
pub(crate) fn forget(status: &AgentStatusWriter) -> AttemptOutcome {
    let AgentStatusWriter { context, sessions, .. } = status;
    let now = context.ticks.now();
    if context.replicas.backlog_since(now).is_some() {
        // An absent agent may be waiting to be registered.
        return AttemptOutcome::Unchanged;
    }
    let settings = &context.settings.absent_agents;
    let Some(before) = now.checked_sub(settings.forget_after) else { return AttemptOutcome::Unchanged };
    let over = now.checked_sub(settings.account_cleanup);
    status
        .departed_agents
        .sweep(over, |agent_id, zone| sessions.registry.knows(agent_id, &ZoneId::from(zone)));
    for (agent_id, zone, away) in sessions.registry.forget(before) {
        status.departed_agents.put(&agent_id, &zone, &away);
        // Written by the disconnects task: this one does not wait for the API server.
        status.pending_disconnects.put(Disconnect {
            agent: AgentKey { id: agent_id, zone },
            session_id: away.session_id,
            end: away.ending.into(),
        });
    }
    AttemptOutcome::Done
}

fn fact(agent_id: &AgentId, zone: &ZoneId, approved: bool, since: Tick) -> SessionFact {
    SessionFact {
        agent_id: agent_id.to_owned(),
        zone: zone.to_owned(),
        approved,
        presence: Presence::Away(since),
        process: AgentProcess::default(),
        report: None,
        silent_for: None,
        unanswered: None,
        offer: None,
        lists: Fact::Known(true),
        cluster_uid: String::new(),
        caching: None,
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
        let unlisted_fact = KnownAgent { approved: false, ..agent(false) };
        assert!(!after.removes(&unlisted_fact, 59, at(0)) && after.removes(&unlisted_fact, 60, at(0)));
        let withdrawn = KnownAgent { approved_once: true, ..unlisted_fact };
        assert!(!after.removes(&withdrawn, 599, at(0)) && after.removes(&withdrawn, 600, at(0)));
    }

    #[test]
    fn the_object_of_an_agent_that_is_not_admitted_goes_a_minute_after_its_last_dial() {
        let shown = KnownAgent {
            approved: false,
            is_identified_by_credential: true,
            ended_at: Some(at(1000)),
            ..agent(false)
        };
        assert!(!AFTER.removes(&shown, 300, at(1059)), "it dials again and again");
        assert!(AFTER.removes(&shown, 300, at(1060)), "nobody has decided that it is not approved");
        assert!(!AFTER.removes(&shown, 59, at(5000)), "the clock may have jumped");
    }

    #[test]
    fn approval_set_by_a_person_is_kept_for_a_month_of_absence() {
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
