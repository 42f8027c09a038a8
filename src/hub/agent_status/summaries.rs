//! Writes summaries of agents' accounts to their KubesvcAgents: only changes, rarely, and with the lowest priority.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::{StreamExt, stream};
use tokio_util::sync::CancellationToken;

use super::AgentStatus;
use crate::hub::agent_status::registration::AgentSummary;
use crate::hub::sessions::events::{SessionEvent, SessionSubscriber};
use crate::hub::sessions::ledger::Moment;
use crate::hub::sessions::session::Session;
use crate::telemetry::outages::warn_unless_away;
use crate::wake_set::WakeSet;

/// Interval between scans for due updates.
const SCAN_INTERVAL: Duration = Duration::from_secs(1);
/// Minimum interval between two status writes for one agent.
const MIN_WRITE_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum number of sessions taken from the wake set in one scan.
const MAX_SESSIONS_PER_SCAN: usize = 100_000;
/// Maximum number of objects written at once.
const MAX_CONCURRENT_WRITES: usize = 4;
/// Time limit for one write.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// Sessions whose summary may have changed.
#[derive(Default)]
pub(in crate::hub) struct DirtySummaries(WakeSet<u64>);

impl SessionSubscriber for DirtySummaries {
    fn session_event(&self, serial: u64, event: SessionEvent<'_>) {
        match event {
            SessionEvent::OfferChanged(..) => {}
            SessionEvent::Stood { .. }
            | SessionEvent::Ended { .. }
            | SessionEvent::AnswerChanged(_)
            | SessionEvent::Released(_)
            | SessionEvent::Listed(_)
            | SessionEvent::ProblemsChanged => self.0.wake(serial),
        }
    }
}

/// Time and content of the last write of one session.
#[derive(Debug, Default)]
struct WrittenSummary {
    at: Moment,
    summary: Option<AgentSummary>,
}

/// Sessions with a changed summary, and what was written of each. Pure.
#[derive(Debug, Default)]
pub(in crate::hub) struct SummaryQueue {
    written: HashMap<u64, WrittenSummary>,
    pending: HashSet<u64>,
}

impl SummaryQueue {
    /// Marks sessions whose summary may have changed.
    pub(in crate::hub) fn mark(&mut self, serials: impl IntoIterator<Item = u64>, now: Moment) {
        for serial in serials {
            self.pending.insert(serial);
            // A new session is about to report more.
            self.written.entry(serial).or_insert(WrittenSummary { at: now, summary: None });
        }
    }

    /// Takes the sessions that may be written now.
    pub(in crate::hub) fn due(&mut self, now: Moment) -> Vec<u64> {
        let is_due = |serial: &u64| {
            self.written.get(serial).is_none_or(|written| now >= written.at + MIN_WRITE_INTERVAL)
        };
        let due: Vec<_> = self.pending.iter().copied().filter(is_due).collect();
        due.iter().for_each(|serial| {
            self.pending.remove(serial);
        });
        due
    }

    /// Whether the summary differs from the one written.
    pub(in crate::hub) fn is_news(&self, serial: u64, summary: &AgentSummary) -> bool {
        self.written.get(&serial).is_none_or(|written| written.summary.as_ref() != Some(summary))
    }

    /// Records a write; without a summary, a failed one.
    pub(in crate::hub) fn wrote(&mut self, serial: u64, summary: Option<AgentSummary>, now: Moment) {
        if summary.is_none() {
            self.pending.insert(serial);
        }
        let before = self.written.remove(&serial).and_then(|written| written.summary);
        self.written.insert(serial, WrittenSummary { at: now, summary: summary.or(before) });
    }

    /// Marks a session again that was not written.
    pub(in crate::hub) fn later(&mut self, serial: u64) {
        self.pending.insert(serial);
    }

    /// Forgets a session that has ended.
    pub(in crate::hub) fn forget(&mut self, serial: u64) {
        self.written.remove(&serial);
        self.pending.remove(&serial);
    }
}

/// Writes summaries until stopped.
pub(in crate::hub) async fn run(status: Arc<AgentStatus>, stop: CancellationToken) {
    let mut queue = SummaryQueue::default();
    let mut look = tokio::time::interval(SCAN_INTERVAL);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = look.tick() => {}
        }
        queue.mark(status.wakes.summaries.0.try_take(MAX_SESSIONS_PER_SCAN), status.context.moment());
        if status.registrations.are_taken() {
            continue;
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = write_due(&status, &mut queue) => {}
        }
    }
}

async fn write_due(status: &AgentStatus, queue: &mut SummaryQueue) {
    let mut news = Vec::new();
    for serial in queue.due(status.context.moment()) {
        let Some(session) = status.sessions.registry.by_serial(serial) else {
            queue.forget(serial);
            continue;
        };
        let summary = summary_of(&session);
        if queue.is_news(serial, &summary) {
            news.push((session, summary));
        }
    }
    // Once one write was refused for lack of budget, the others are not tried.
    let full = &AtomicBool::new(false);
    let mut written = stream::iter(news)
        .map(|(session, summary)| async move {
            let written = if status.registrations.are_taken() || full.load(Ordering::Relaxed) {
                Some(false)
            } else {
                write(status, &session, &summary).await
            };
            full.fetch_or(written == Some(false), Ordering::Relaxed);
            (session.serial, summary, written)
        })
        .buffer_unordered(MAX_CONCURRENT_WRITES);
    while let Some((serial, summary, written)) = written.next().await {
        match written {
            Some(true) => queue.wrote(serial, Some(summary), status.context.moment()),
            Some(false) => queue.later(serial),
            None => queue.wrote(serial, None, status.context.moment()),
        }
    }
}

/// Writes the summary of a session now. Returns whether the object contains it.
pub(in crate::hub) async fn write_now(status: &AgentStatus, session: &Session) -> bool {
    write(status, session, &summary_of(session)).await == Some(true)
}

/// Returns whether it was written, false if the budget did not allow it, and `None` if the API server failed.
async fn write(status: &AgentStatus, session: &Session, summary: &AgentSummary) -> Option<bool> {
    let writing = status.agents.write_summary(session.reference(), summary);
    let problem = match tokio::time::timeout(WRITE_TIMEOUT, writing).await {
        Ok(Ok(written)) => return Some(written),
        Ok(Err(problem)) => problem.to_string(),
        Err(_) => "the API server does not answer".to_owned(),
    };
    if status.context.may_log("notes", None) {
        warn_unless_away!(
            agentId = session.agent.id,
            error = problem,
            "cannot write how many accounts the agent has"
        );
    }
    None
}

fn summary_of(session: &Session) -> AgentSummary {
    let (held, failed) = session.counts();
    let listing = session.listing();
    let count = |number| i32::try_from(number).unwrap_or(i32::MAX);
    AgentSummary {
        held: count(held),
        failed: count(failed),
        static_accounts: listing.as_ref().map(|listing| listing.name_digests()),
        static_sources: listing.as_ref().map(|listing| listing.source_digests()),
        kept_from: session.all_kept_from().map(|(count, first)| {
            let more = if count > 1 { format!("; and {} more accounts", count - 1) } else { String::new() };
            format!("{first}{more}")
        }),
        problem: session.list_problem().map(|problem| (problem.reason.to_owned(), problem.message)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Moment = Duration::from_secs(100);

    fn held(held: i32) -> AgentSummary {
        AgentSummary { held, ..AgentSummary::default() }
    }

    #[test]
    fn an_object_is_written_at_most_once_in_five_seconds() {
        let mut queue = SummaryQueue::default();
        let mut writes = 0;
        // A thousand activations in ten seconds.
        for tenth in 0..=150_u32 {
            let now = NOW + Duration::from_millis(100) * tenth;
            let count = i32::try_from(tenth.min(100) * 10).expect("it is small");
            queue.mark([1], now);
            for serial in queue.due(now) {
                if queue.is_news(serial, &held(count)) {
                    writes += 1;
                    queue.wrote(serial, Some(held(count)), now);
                }
            }
        }
        assert_eq!(writes, 2);
        assert!(!queue.is_news(1, &held(1000)));
    }

    #[test]
    fn what_could_not_be_written_is_due_again_after_the_pause() {
        let mut queue = SummaryQueue::default();
        queue.mark([1], NOW);
        assert!(queue.due(NOW).is_empty(), "it has just begun");
        let later = NOW + MIN_WRITE_INTERVAL;
        assert_eq!(queue.due(later), [1]);
        queue.wrote(1, None, later);
        assert!(queue.due(later).is_empty());
        assert_eq!(queue.due(later + MIN_WRITE_INTERVAL), [1]);
        assert!(queue.is_news(1, &held(0)));
    }

    #[test]
    fn nothing_is_kept_of_a_session_that_has_ended() {
        let mut queue = SummaryQueue::default();
        queue.mark([1], NOW);
        queue.forget(1);
        assert!(queue.written.is_empty() && queue.pending.is_empty());
    }
}
