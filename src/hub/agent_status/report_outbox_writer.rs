//! Writes the outboxes: reports of this replica's sessions that accounts wait for, while another replica leads. At
//! most twice a second for each agent, and only changes.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::AgentStatusWriter;
use crate::hub::agent_status::registration::OutboxWrite;
use crate::hub::sessions::events::{SessionEvent, SessionSubscriber};
use crate::hub::sessions::session::Session;
use crate::hub::zone_probes::probe::ProbeRound;
use kubesvc_core::KubesvcAccount;
use kubesvc_core::lifecycle::silence;
use kubesvc_core::report_outbox::{OutboxEntry, PackedOutbox, PackingCursor, SessionReport, awaited, packed};
use kubesvc_runtime::background_tasks::{AttemptOutcome, BackgroundTasks, TaskSpec};
use kubesvc_runtime::crash_points;
use kubesvc_runtime::telemetry::outages::warn_unless_away;
use kubesvc_runtime::work_queue::WorkQueue;

/// Minimum interval between two outbox writes for one agent.
const MIN_WRITE_INTERVAL: Duration = Duration::from_millis(500);
/// Time for which further reports are gathered before a write.
const BATCH_DELAY: Duration = Duration::from_millis(10);
/// Delay after a failed write.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Interval between scans for sessions with an outstanding answer.
const OVERDUE_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Time after which entries that did not fit take the place of those written.
const OVERFLOW_ROTATION_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum number of concurrent writes. Each ends by itself, so that one that hangs does not block other sessions.
const MAX_CONCURRENT_WRITES: usize = 16;

/// Sessions whose outbox may have changed.
#[derive(Default)]
pub(crate) struct DirtyOutboxes(Arc<WorkQueue<u64>>);

impl SessionSubscriber for DirtyOutboxes {
    fn session_event(&self, serial: u64, event: SessionEvent<'_>) {
        match event {
            SessionEvent::Stood { accounts, .. } if accounts.is_empty() => {}
            SessionEvent::Stood { .. }
            | SessionEvent::AnswerChanged(_)
            | SessionEvent::Released(_)
            | SessionEvent::CachingReportChanged(_) => self.0.wake(serial),
            SessionEvent::OfferChanged(_, change) => {
                self.0.wake(serial);
                change.speaker.into_iter().for_each(|speaker| self.0.wake(speaker));
            }
            _ => {}
        }
    }

    fn account_changed(&self, _uid: &str, serials: &[u64]) {
        self.0.wake_all(serials.iter().copied());
    }
}

/// Sessions whose reports exceed the size of an outbox. Pure.
#[derive(Debug, Default)]
struct OverflowingOutboxes(HashMap<u64, OutboxOverflow>);

/// Rotation of reports that do not fit into one outbox.
#[derive(Debug)]
struct OutboxOverflow {
    now: PackingCursor,
    next: PackingCursor,
    /// Time of the next rotation.
    at: Instant,
}

impl OverflowingOutboxes {
    /// Returns the current position of the rotation of a session.
    fn cursor_of(&mut self, serial: u64, now: Instant) -> PackingCursor {
        let Some(overflow) = self.0.get_mut(&serial) else { return PackingCursor::new() };
        if overflow.at <= now {
            overflow.now = std::mem::take(&mut overflow.next);
        }
        overflow.now.clone()
    }

    /// Records where the rotation of a session continues.
    fn record(&mut self, serial: u64, (begun, next): (PackingCursor, PackingCursor), now: Instant) {
        if next.is_empty() {
            self.0.remove(&serial);
            return;
        }
        let overflow = self.0.entry(serial).or_insert_with(|| OutboxOverflow {
            now: begun,
            next: PackingCursor::new(),
            at: now,
        });
        if overflow.at <= now {
            overflow.at = now + OVERFLOW_ROTATION_INTERVAL;
        }
        overflow.next = next;
    }

    /// Returns the sessions whose rotation is due.
    fn due(&self, now: Instant) -> Vec<u64> {
        self.0.iter().filter(|(_, overflow)| overflow.at <= now).map(|(serial, _)| *serial).collect()
    }

    fn forget(&mut self, serial: u64) {
        self.0.remove(&serial);
    }
}

/// Starts the task that writes outboxes.
pub(crate) fn start(background: &BackgroundTasks, status: &Arc<AgentStatusWriter>) {
    let task = TaskSpec::new("outbox writes", "Writes reports of agents for a leader in another replica");
    let sessions = Arc::clone(&status.sessions);
    // A change of leadership may change every outbox.
    let all = move || sessions.registry.connected().iter().map(|session| session.serial).collect::<Vec<_>>();
    let task = task.woken_by(&status.wakes.outboxes.0);
    let task = task.wake_on_change(status.context.leadership.follow(), all).every(OVERDUE_CHECK_INTERVAL);
    let task = task.gather(BATCH_DELAY).min_interval(MIN_WRITE_INTERVAL).concurrency(MAX_CONCURRENT_WRITES);
    // A write may wait for the rate limit. Its requests have time limits.
    let task = task.without_deadline().retry_delays(RETRY_DELAY, RETRY_DELAY);
    let task = task.log_failure(|error| {
        warn_unless_away!(error, "cannot write reports of an agent for the leader; retrying");
    });
    let writer = Arc::new(OutboxWriter { status: Arc::clone(status), overflowing: Mutex::default() });
    background.start(task, move |serials| Arc::clone(&writer).apply(serials));
}

struct OutboxWriter {
    status: Arc<AgentStatusWriter>,
    overflowing: Mutex<OverflowingOutboxes>,
}

impl OutboxWriter {
    async fn apply(self: Arc<Self>, serials: Vec<u64>) -> AttemptOutcome<u64> {
        if let Some(serial) = serials.first() {
            return self.write(*serial).await;
        }
        if !self.status.context.is_leading() {
            self.wake_due();
        }
        AttemptOutcome::Unchanged
    }

    /// Wakes sessions with an outstanding answer, which may be overdue by now, and those whose rotation is due.
    fn wake_due(&self) {
        let AgentStatusWriter { sessions, wakes, .. } = &*self.status;
        let mut due = self.overflowing.lock().due(Instant::now());
        // Collected first: a ledger is never locked inside the work queue's lock.
        let connected = sessions.registry.connected().into_iter();
        due.extend(connected.filter(|one| one.ledger.lock().owes()).map(|one| one.serial));
        wakes.outboxes.0.wake_all(due);
    }

    /// Writes the outbox of a session, if it changed.
    async fn write(&self, serial: u64) -> AttemptOutcome<u64> {
        let Some(session) = self.status.sessions.registry.by_serial(serial) else {
            self.overflowing.lock().forget(serial);
            return AttemptOutcome::Unchanged;
        };
        let cursor = self.overflowing.lock().cursor_of(serial, Instant::now());
        let PackedOutbox { entries, next } = if self.status.context.is_leading() {
            PackedOutbox::default()
        } else {
            outbox_of(&self.status, &session, &cursor)
        };
        let has_unwritten = session.has_unwritten(&entries, |entry| may_stand(&self.status, entry));
        let outcome = if has_unwritten {
            write_outbox(&self.status, &session, entries).await
        } else {
            AttemptOutcome::Unchanged
        };
        self.overflowing.lock().record(serial, (cursor, next), Instant::now());
        if self.status.sessions.registry.by_serial(serial).is_none() {
            self.overflowing.lock().forget(serial);
        }
        outcome
    }
}

async fn write_outbox(
    status: &AgentStatusWriter,
    session: &Session,
    outbox: Vec<OutboxEntry>,
) -> AttemptOutcome<u64> {
    crash_points::point("agent-report:before");
    let answer = status.agents.write_outbox(session.reference(), &outbox).await;
    crash_points::point("agent-report:after");
    match answer {
        Ok(OutboxWrite::Written) => session.reported(outbox),
        Ok(OutboxWrite::Superseded) => session.close("another stream of the agent is in force"),
        Err(error) => return AttemptOutcome::failed(error.to_string()),
    }
    AttemptOutcome::Done
}

/// Returns the reports of a session that accounts wait for, as far as they fit.
fn outbox_of(status: &AgentStatusWriter, session: &Session, cursor: &PackingCursor) -> PackedOutbox {
    let now = status.context.ticks.now();
    let mut entries = Vec::new();
    let caching = session.caching_reports.lock().clone();
    for uid in session.uids() {
        let Some(account) = status.context.accounts.by_uid(&uid) else { continue };
        let ledger = session.ledger.lock();
        let entry = ledger.entry(&uid);
        let owed = entry.and_then(|entry| entry.owed).map(|(epoch, _)| epoch);
        let late = silence(&session.agent.id, entry.and_then(|entry| entry.unanswered));
        let overdue = owed == Some(account.status_or_default().epoch)
            && ledger
                .silent_for(&uid, now)
                .is_some_and(|silent| silent >= status.context.settings.sessions.operation_wait);
        let said = SessionReport {
            report: entry.and_then(|entry| entry.report.as_ref()),
            overdue: overdue.then_some(&late),
            credential_mismatch: ledger.has_credential_mismatch(&uid, account.status_or_default().epoch),
            offers: false,
            caching: caching.get(uid.as_str()),
        };
        entries.extend(awaited(&account, &session.agent.zone, said));
    }
    for uid in session.zone_probes.lock().uids() {
        let Some(account) = status.context.accounts.by_uid(&uid) else { continue };
        let said = SessionReport {
            offers: speaks_for_its_zone(status, session, &account),
            ..SessionReport::default()
        };
        entries.extend(awaited(&account, &session.agent.zone, said));
    }
    packed(entries, cursor)
}

/// Whether the session reports its zone's offer for the account.
fn speaks_for_its_zone(status: &AgentStatusWriter, session: &Session, account: &KubesvcAccount) -> bool {
    let round = ProbeRound::of(account);
    let speaker =
        round.and_then(|round| status.zone_probes.speaker(account.uid(), round, &session.agent.zone));
    speaker == Some(session.serial)
}

/// Whether an entry that nothing waits for any more may be left in the object.
fn may_stand(status: &AgentStatusWriter, entry: &OutboxEntry) -> bool {
    entry.may_stand(status.context.accounts.by_uid(&entry.uid).as_deref())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hub::zone_probes::OfferChange;
    use kubesvc_core::report_outbox::AnswerUrgency;

    #[test]
    fn offer_marks_its_session_and_the_speaker_of_its_zone_dirty() {
        let dirty = DirtyOutboxes::default();
        dirty.session_event(1, SessionEvent::ProblemsChanged);
        assert!(dirty.0.is_empty(), "no outbox has that");
        let change = OfferChange { matters: false, speaker: Some(2) };
        dirty.session_event(1, SessionEvent::OfferChanged("u", change));
        dirty.session_event(3, SessionEvent::AnswerChanged("u"));
        assert_eq!(dirty.0.try_take(9), [1, 2, 3]);
    }

    #[test]
    fn overflowed_entries_rotate_into_the_outbox_after_the_interval() {
        let (mut outboxes, begin) = (OverflowingOutboxes::default(), Instant::now());
        let at = |uid: &str| PackingCursor::from([(AnswerUrgency::Standing, uid.to_owned())]);
        outboxes.record(1, (PackingCursor::new(), at("b")), begin);
        let between = begin + OVERFLOW_ROTATION_INTERVAL / 2;
        outboxes.record(1, (PackingCursor::new(), at("c")), between);
        assert_eq!(outboxes.cursor_of(1, between), PackingCursor::new(), "not yet");
        assert!(outboxes.due(between).is_empty());
        let then = begin + OVERFLOW_ROTATION_INTERVAL;
        assert_eq!(outboxes.due(then), [1]);
        assert_eq!(outboxes.cursor_of(1, then), at("c"));
        outboxes.record(1, (at("c"), PackingCursor::new()), then);
        assert!(outboxes.0.is_empty(), "all has room now");
    }
}
