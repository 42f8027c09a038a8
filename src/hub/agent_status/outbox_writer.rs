//! Writes the outboxes: reports of this replica's sessions that accounts wait for, while another replica leads. At
//! most twice a second for each agent, and only changes.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio_util::sync::CancellationToken;

use super::AgentStatus;
use crate::account::KubesvcAccount;
use crate::account::lifecycle::silence;
use crate::account::outbox::{OutboxEntry, PackedOutbox, PackingCursor, SessionReport, awaited, packed};
use crate::crash;
use crate::hub::agent_status::registration::OutboxWrite;
use crate::hub::sessions::events::{SessionEvent, SessionSubscriber};
use crate::hub::sessions::session::Session;
use crate::hub::zone_probes::probe::ProbeRound;
use crate::telemetry::outages::warn_unless_away;
use crate::wake_set::WakeSet;

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
/// Maximum number of sessions taken from the wake set at once.
const MAX_SESSIONS_PER_SCAN: usize = 100_000;

/// Sessions whose outbox may have changed.
#[derive(Default)]
pub(in crate::hub) struct DirtyOutboxes(WakeSet<u64>);

impl SessionSubscriber for DirtyOutboxes {
    fn session_event(&self, serial: u64, event: SessionEvent<'_>) {
        match event {
            SessionEvent::Stood { accounts, .. } if accounts.is_empty() => {}
            SessionEvent::Stood { .. } | SessionEvent::AnswerChanged(_) | SessionEvent::Released(_) => {
                self.0.wake(serial);
            }
            SessionEvent::OfferChanged(_, change) => {
                self.0.wake(serial);
                change.speaker.into_iter().for_each(|speaker| self.0.wake(speaker));
            }
            SessionEvent::Ended { .. } | SessionEvent::Listed(_) | SessionEvent::ProblemsChanged => {}
        }
    }

    fn account_changed(&self, _uid: &str, serials: &[u64]) {
        self.0.wake_all(serials.iter().copied());
    }
}

/// Sessions with a changed outbox, and the time of their next write. Pure.
#[derive(Debug, Default)]
pub(in crate::hub) struct WriteSchedule {
    /// Times at which waiting sessions may be written.
    due: BTreeSet<(Instant, u64)>,
    waiting: HashSet<u64>,
    /// Sessions being written, and whether they changed meanwhile.
    under_way: HashMap<u64, bool>,
    /// Earliest time of the next write of each session.
    not_before: HashMap<u64, Instant>,
    /// Sessions whose reports exceed the size of an outbox.
    overflowing: HashMap<u64, OutboxOverflow>,
}

/// Rotation of reports that do not fit into one outbox.
#[derive(Debug)]
struct OutboxOverflow {
    now: PackingCursor,
    next: PackingCursor,
    /// Time of the next rotation.
    at: Instant,
}

impl WriteSchedule {
    /// Marks a session whose outbox may have changed.
    fn mark(&mut self, serial: u64, now: Instant) {
        if let Some(again) = self.under_way.get_mut(&serial) {
            *again = true;
            return;
        }
        if self.waiting.insert(serial) {
            let at = self.not_before.get(&serial).copied().unwrap_or(now).max(now + BATCH_DELAY);
            self.due.insert((at, serial));
        }
    }

    /// Returns the time of the next write.
    fn next(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Takes at most `most` due sessions. They are being written until [`end`](Self::end).
    fn take(&mut self, now: Instant, most: usize) -> Vec<u64> {
        let mut taken = Vec::new();
        while taken.len() < most
            && let Some((at, serial)) = self.due.first().copied()
            && at <= now
        {
            self.due.pop_first();
            self.waiting.remove(&serial);
            self.under_way.insert(serial, false);
            taken.push(serial);
        }
        taken
    }

    /// Ends a write, successful or not.
    fn end(&mut self, serial: u64, now: Instant) {
        if self.under_way.remove(&serial) == Some(true) {
            self.mark(serial, now);
        }
    }

    /// Delays the next write of a session.
    fn rest(&mut self, serial: u64, until: Instant) {
        self.not_before.insert(serial, until);
    }

    /// Returns the current position of the rotation of a session.
    fn cursor_of(&mut self, serial: u64, now: Instant) -> PackingCursor {
        let Some(overflow) = self.overflowing.get_mut(&serial) else { return PackingCursor::new() };
        if overflow.at <= now {
            overflow.now = std::mem::take(&mut overflow.next);
        }
        overflow.now.clone()
    }

    /// Records where the rotation of a session continues.
    fn record_overflow(&mut self, serial: u64, (begun, next): (PackingCursor, PackingCursor), now: Instant) {
        if next.is_empty() {
            self.overflowing.remove(&serial);
            return;
        }
        let overflow = self.overflowing.entry(serial).or_insert_with(|| OutboxOverflow {
            now: begun,
            next: PackingCursor::new(),
            at: now,
        });
        if overflow.at <= now {
            overflow.at = now + OVERFLOW_ROTATION_INTERVAL;
        }
        overflow.next = next;
    }

    /// Marks the sessions whose rotation is due.
    fn mark_due_rotations(&mut self, now: Instant) {
        let due: Vec<_> =
            self.overflowing.iter().filter(|(_, one)| one.at <= now).map(|(serial, _)| *serial).collect();
        due.into_iter().for_each(|serial| self.mark(serial, now));
    }

    fn forget(&mut self, serial: u64) {
        self.not_before.remove(&serial);
        self.overflowing.remove(&serial);
    }
}

/// Writes outboxes until stopped.
pub(in crate::hub) async fn run(status: Arc<AgentStatus>, stop: CancellationToken) {
    let AgentStatus { context, sessions, wakes, .. } = &*status;
    let mut schedule = WriteSchedule::default();
    let mut writes = FuturesUnordered::new();
    let mut leads = context.leadership.follow();
    let mut overdue = tokio::time::interval(OVERDUE_CHECK_INTERVAL);
    overdue.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let next = schedule.next();
        tokio::select! {
            () = stop.cancelled() => return,
            serials = wakes.outboxes.0.take(MAX_SESSIONS_PER_SCAN) => {
                serials.into_iter().for_each(|serial| schedule.mark(serial, Instant::now()));
            }
            // The sender lives as long as the hub.
            _ = leads.changed() => {
                // A change of leadership may change every outbox.
                sessions.registry.connected().iter().for_each(|one| schedule.mark(one.serial, Instant::now()));
            }
            _ = overdue.tick(), if !context.is_leading() => {
                let owing = sessions.registry.connected().into_iter().filter(|one| one.ledger.lock().owes());
                owing.for_each(|one| schedule.mark(one.serial, Instant::now()));
                schedule.mark_due_rotations(Instant::now());
            }
            Some(written) = writes.next(), if !writes.is_empty() => settle(&status, &mut schedule, written),
            () = at(next), if next.is_some() && writes.len() < MAX_CONCURRENT_WRITES => {
                let now = Instant::now();
                for serial in schedule.take(now, MAX_CONCURRENT_WRITES - writes.len()) {
                    let cursor = schedule.cursor_of(serial, now);
                    writes.push(write(&status, serial, cursor));
                }
            }
        }
    }
}

async fn at(next: Option<Instant>) {
    if let Some(next) = next {
        tokio::time::sleep_until(next.into()).await;
    }
}

/// Result of one write.
struct WriteReport {
    serial: u64,
    /// Position of the rotation and the next one; absent if the session has ended.
    cursors: Option<(PackingCursor, PackingCursor)>,
    /// Whether the write succeeded; absent if nothing changed.
    done: Option<bool>,
}

async fn write(status: &AgentStatus, serial: u64, cursor: PackingCursor) -> WriteReport {
    let Some(session) = status.sessions.registry.by_serial(serial) else {
        return WriteReport { serial, cursors: None, done: None };
    };
    let PackedOutbox { entries, next } = if status.context.is_leading() {
        PackedOutbox::default()
    } else {
        outbox_of(status, &session, &cursor)
    };
    let is_news = session.is_news(&entries, |entry| may_stand(status, entry));
    let done = if is_news { Some(write_outbox(status, &session, entries).await) } else { None };
    WriteReport { serial, cursors: Some((cursor, next)), done }
}

fn settle(status: &AgentStatus, schedule: &mut WriteSchedule, written: WriteReport) {
    let (now, serial) = (Instant::now(), written.serial);
    if let Some(cursors) = written.cursors {
        schedule.record_overflow(serial, cursors, now);
    }
    match written.done {
        Some(true) => schedule.rest(serial, now + MIN_WRITE_INTERVAL),
        Some(false) => schedule.rest(serial, now + RETRY_DELAY),
        None => {}
    }
    schedule.end(serial, now);
    if written.done == Some(false) {
        schedule.mark(serial, now);
    }
    if status.sessions.registry.by_serial(serial).is_none() {
        schedule.forget(serial);
    }
}

/// Writes an outbox. Returns false if it has to be retried.
async fn write_outbox(status: &AgentStatus, session: &Session, outbox: Vec<OutboxEntry>) -> bool {
    crash::point("agent-report:before");
    let answer = status.agents.write_outbox(session.reference(), &outbox).await;
    crash::point("agent-report:after");
    let problem = match answer {
        Ok(OutboxWrite::Written) => {
            session.reported(outbox);
            return true;
        }
        Ok(OutboxWrite::Superseded) => {
            session.close("another stream of the agent is in force");
            return true;
        }
        Err(problem) => problem.to_string(),
    };
    if status.context.may_log("reports", None) {
        warn_unless_away!(
            agentId = session.agent.id,
            error = problem,
            "cannot write what the agent answered; tried again"
        );
    }
    false
}

/// Returns the reports of a session that accounts wait for, as far as they fit.
fn outbox_of(status: &AgentStatus, session: &Session, cursor: &PackingCursor) -> PackedOutbox {
    let now = status.context.ticks.now();
    let late = silence(&session.agent.id);
    let mut entries = Vec::new();
    for uid in session.uids() {
        let Some(account) = status.context.accounts.by_uid(&uid) else { continue };
        let ledger = session.ledger.lock();
        let entry = ledger.entry(&uid);
        let owed = entry.and_then(|entry| entry.owed).map(|(epoch, _)| epoch);
        let overdue = owed == Some(account.status_or_default().epoch)
            && ledger
                .silent_for(&uid, now)
                .is_some_and(|silent| silent >= status.context.settings.operation_wait);
        let said = SessionReport {
            report: entry.and_then(|entry| entry.report.as_ref()),
            overdue: overdue.then_some(&late),
            credential_mismatch: ledger.has_credential_mismatch(&uid, account.status_or_default().epoch),
            offers: false,
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
fn speaks_for_its_zone(status: &AgentStatus, session: &Session, account: &KubesvcAccount) -> bool {
    let round = ProbeRound::of(account);
    let speaker =
        round.and_then(|round| status.zone_probes.speaker(account.uid(), round, &session.agent.zone));
    speaker == Some(session.serial)
}

/// Whether an entry that nothing waits for any more may be left in the object.
fn may_stand(status: &AgentStatus, entry: &OutboxEntry) -> bool {
    entry.may_stand(status.context.accounts.by_uid(&entry.uid).as_deref())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::account::outbox::AnswerUrgency;
    use crate::hub::zone_probes::offers::OfferChange;

    #[test]
    fn an_offer_marks_the_session_and_the_one_that_speaks_for_its_zone() {
        let dirty = DirtyOutboxes::default();
        dirty.session_event(1, SessionEvent::ProblemsChanged);
        assert!(dirty.0.is_empty(), "no outbox has that");
        let change = OfferChange { matters: false, speaker: Some(2) };
        dirty.session_event(1, SessionEvent::OfferChanged("u", change));
        dirty.session_event(3, SessionEvent::AnswerChanged("u"));
        assert_eq!(dirty.0.try_take(9), [1, 2, 3]);
    }

    #[test]
    fn what_one_session_says_is_gathered_and_not_said_too_often() {
        let (mut schedule, begin) = (WriteSchedule::default(), Instant::now());
        schedule.mark(1, begin);
        schedule.mark(1, begin);
        assert_eq!(schedule.next(), Some(begin + BATCH_DELAY));
        assert!(schedule.take(begin, 9).is_empty());
        assert_eq!(schedule.take(begin + BATCH_DELAY, 9), [1]);
        schedule.rest(1, begin + MIN_WRITE_INTERVAL);
        schedule.end(1, begin + BATCH_DELAY);
        schedule.mark(1, begin + BATCH_DELAY);
        schedule.mark(2, begin + BATCH_DELAY);
        assert_eq!(schedule.take(begin + BATCH_DELAY * 2, 9), [2]);
        assert_eq!(schedule.next(), Some(begin + MIN_WRITE_INTERVAL));
        assert_eq!(schedule.take(begin + MIN_WRITE_INTERVAL, 9), [1]);
        assert_eq!(schedule.next(), None);
    }

    #[test]
    fn a_session_is_written_once_at_a_time_and_again_for_what_came_meanwhile() {
        let (mut schedule, begin) = (WriteSchedule::default(), Instant::now());
        (1..=3).for_each(|serial| schedule.mark(serial, begin));
        assert_eq!(schedule.take(begin + BATCH_DELAY, 2), [1, 2]);
        schedule.mark(1, begin + BATCH_DELAY);
        assert_eq!(schedule.take(begin + OVERFLOW_ROTATION_INTERVAL, 9), [3]);
        schedule.end(1, begin + OVERFLOW_ROTATION_INTERVAL);
        schedule.end(2, begin + OVERFLOW_ROTATION_INTERVAL);
        assert_eq!(schedule.take(begin + OVERFLOW_ROTATION_INTERVAL * 2, 9), [1]);
    }

    #[test]
    fn what_had_no_room_gets_its_turn_after_a_while_and_not_before() {
        let (mut schedule, begin) = (WriteSchedule::default(), Instant::now());
        let at = |uid: &str| PackingCursor::from([(AnswerUrgency::Standing, uid.to_owned())]);
        schedule.record_overflow(1, (PackingCursor::new(), at("b")), begin);
        schedule.record_overflow(1, (PackingCursor::new(), at("c")), begin + OVERFLOW_ROTATION_INTERVAL / 2);
        assert_eq!(
            schedule.cursor_of(1, begin + OVERFLOW_ROTATION_INTERVAL / 2),
            PackingCursor::new(),
            "not yet"
        );
        schedule.mark_due_rotations(begin + OVERFLOW_ROTATION_INTERVAL / 2);
        assert_eq!(schedule.next(), None);
        schedule.mark_due_rotations(begin + OVERFLOW_ROTATION_INTERVAL);
        assert_eq!(schedule.take(begin + OVERFLOW_ROTATION_INTERVAL + BATCH_DELAY, 9), [1]);
        assert_eq!(schedule.cursor_of(1, begin + OVERFLOW_ROTATION_INTERVAL), at("c"));
        schedule.record_overflow(1, (at("c"), PackingCursor::new()), begin + OVERFLOW_ROTATION_INTERVAL);
        assert!(schedule.overflowing.is_empty(), "all has room now");
    }
}
