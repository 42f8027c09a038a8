//! Writes summaries of agents' accounts to their KubesvcAgents: only changes, rarely, and with the lowest priority.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::AgentStatusWriter;
use crate::hub::agent_status::registration::AgentSummary;
use crate::hub::agent_status::registration::status::DUPLICATE_AGENT_ID;
use crate::hub::sessions::events::{SessionEvent, SessionSubscriber};
use crate::hub::sessions::ledger::HubUptime;
use crate::hub::sessions::session::Session;
use crate::hub::sessions::session::contest::CONTEST_TIMEOUT;
use kubesvc_runtime::background_tasks::{AttemptOutcome, BackgroundTasks, TaskSpec};
use kubesvc_runtime::telemetry::outages::warn_unless_away;
use kubesvc_runtime::work_queue::WorkQueue;

/// Time for which further changes are gathered before a write.
const BATCH_DELAY: Duration = Duration::from_secs(1);
/// Minimum interval between two status writes for one agent, and delay after a failed write.
const MIN_WRITE_INTERVAL: Duration = Duration::from_secs(5);
/// Pause of all writes while registrations use up the rate limit.
const RATE_LIMIT_PAUSE: Duration = Duration::from_secs(1);
/// Maximum number of objects written at once.
const MAX_CONCURRENT_WRITES: usize = 4;
/// Time limit for one write.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// Sessions whose summary may have changed.
#[derive(Default)]
pub(crate) struct DirtySummaries(Arc<WorkQueue<u64>>);

impl SessionSubscriber for DirtySummaries {
    fn session_event(&self, serial: u64, event: SessionEvent<'_>) {
        match event {
            SessionEvent::Stood { .. }
            | SessionEvent::Ended { .. }
            | SessionEvent::AnswerChanged(_)
            | SessionEvent::Released(_)
            | SessionEvent::Listed(_)
            | SessionEvent::ProblemsChanged => self.0.wake(serial),
            _ => {}
        }
    }
}

/// Starts the task that writes summaries.
pub(crate) fn start(background: &BackgroundTasks, status: &Arc<AgentStatusWriter>) {
    let what = "Writes into KubesvcAgents how many accounts each agent has";
    let task = TaskSpec::new("agent summaries", what).woken_by(&status.wakes.summaries.0).gather(BATCH_DELAY);
    let task = task.concurrency(MAX_CONCURRENT_WRITES).min_interval(MIN_WRITE_INTERVAL);
    let task = task.deadline(WRITE_TIMEOUT).retry_delays(MIN_WRITE_INTERVAL, MIN_WRITE_INTERVAL);
    let task = task.log_failure(|error| {
        warn_unless_away!(error, "cannot write how many accounts an agent has; retrying");
    });
    let writer = Arc::new(SummaryWriter { status: Arc::clone(status), written: Mutex::default() });
    background.start(task, move |serials| Arc::clone(&writer).write(serials));
}

struct SummaryWriter {
    status: Arc<AgentStatusWriter>,
    written: Mutex<WrittenSummaries>,
}

/// The last summary that the task wrote of each session; `None` until the first. Pure.
#[derive(Debug, Default)]
struct WrittenSummaries(HashMap<u64, Option<AgentSummary>>);

impl WrittenSummaries {
    /// Returns why a summary is not written now, if so.
    fn reason_to_skip(&mut self, serial: u64, summary: &AgentSummary) -> Option<AttemptOutcome<u64>> {
        match self.0.entry(serial) {
            Entry::Vacant(entry) => {
                entry.insert(None);
                // A new session is about to report more.
                Some(AttemptOutcome::Again(Vec::new(), MIN_WRITE_INTERVAL))
            }
            Entry::Occupied(entry) if entry.get().as_ref() == Some(summary) => {
                // Nothing else says that the other process has gone.
                let ends =
                    summary.rival.is_some().then_some(AttemptOutcome::Again(Vec::new(), CONTEST_TIMEOUT));
                Some(ends.unwrap_or(AttemptOutcome::Unchanged))
            }
            Entry::Occupied(_) => None,
        }
    }
}

impl SummaryWriter {
    /// Writes the summary of a session, if it changed.
    async fn write(self: Arc<Self>, serials: Vec<u64>) -> AttemptOutcome<u64> {
        let Some(serial) = serials.first().copied() else { return AttemptOutcome::Unchanged };
        let status = &self.status;
        let Some(session) = status.sessions.registry.by_serial(serial) else {
            self.written.lock().0.remove(&serial);
            return AttemptOutcome::Unchanged;
        };
        let summary = summary_of(&session, status.context.moment());
        let skipped = self.written.lock().reason_to_skip(serial, &summary);
        if let Some(outcome) = skipped {
            return outcome;
        }
        if status.registrations.are_in_use() {
            return AttemptOutcome::Pause(RATE_LIMIT_PAUSE);
        }
        match status.agents.write_summary(session.reference(), &summary).await {
            Ok(true) => {
                let rival = summary.rival.clone();
                let before = self.written.lock().0.insert(serial, Some(summary)).flatten();
                let Some(rival) = rival else { return AttemptOutcome::Done };
                if before.is_none_or(|before| before.rival.is_none()) {
                    status.agents.warn(session.reference(), DUPLICATE_AGENT_ID, &rival).await;
                }
                AttemptOutcome::Again(Vec::new(), CONTEST_TIMEOUT)
            }
            Ok(false) => AttemptOutcome::Pause(RATE_LIMIT_PAUSE),
            Err(error) => AttemptOutcome::failed(error.to_string()),
        }
    }
}

/// Writes the summary of a session now. Returns whether the object contains it.
pub(crate) async fn write_now(status: &AgentStatusWriter, session: &Session) -> bool {
    let summary = summary_of(session, status.context.moment());
    let writing = status.agents.write_summary(session.reference(), &summary);
    let error = match tokio::time::timeout(WRITE_TIMEOUT, writing).await {
        Ok(Ok(is_written)) => return is_written,
        Ok(Err(error)) => error.to_string(),
        Err(_) => "the API server does not answer".to_owned(),
    };
    if status.context.may_log("notes", None) {
        warn_unless_away!(
            agentId = session.agent.id.as_str(),
            error,
            "cannot write which accounts the agent lists; retrying"
        );
    }
    false
}

fn summary_of(session: &Session, now: HubUptime) -> AgentSummary {
    let (held, failed) = session.counts();
    let listing = session.listing();
    let count = |number| i32::try_from(number).unwrap_or(i32::MAX);
    AgentSummary {
        offers: session.identity.get().map(|identified| identified.rights.offers),
        held: count(held),
        failed: count(failed),
        static_accounts: listing.as_ref().map(|listing| listing.name_digests()),
        static_sources: listing.as_ref().map(|listing| listing.source_digests()),
        kept_from: session.all_kept_from().map(|(count, first)| {
            let more = if count > 1 { format!("; and {} more accounts", count - 1) } else { String::new() };
            format!("{first}{more}")
        }),
        rival: session.contest.lock().rival(now),
        problem: session.list_problem().map(|problem| (problem.reason.to_owned(), problem.message)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(held: i32) -> AgentSummary {
        AgentSummary { held, ..AgentSummary::default() }
    }

    #[test]
    fn a_new_session_waits_and_an_unchanged_summary_is_not_written() {
        let mut written = WrittenSummaries::default();
        let wait = AttemptOutcome::Again(Vec::new(), MIN_WRITE_INTERVAL);
        assert_eq!(written.reason_to_skip(1, &held(0)), Some(wait), "it has just begun");
        assert_eq!(written.reason_to_skip(1, &held(0)), None, "nothing was written yet");
        written.0.insert(1, Some(held(0)));
        assert_eq!(written.reason_to_skip(1, &held(0)), Some(AttemptOutcome::Unchanged));
        assert_eq!(written.reason_to_skip(1, &held(1)), None);
    }
}
