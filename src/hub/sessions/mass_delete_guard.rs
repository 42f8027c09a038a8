//! Guard against mass deletes. An API server that starts or was restored may show fewer accounts than exist. When
//! many accounts of a session vanish at once, all accounts are listed again before the agent drops them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::info;

use crate::hub::sessions::Sessions;
use crate::hub::sessions::ledger::{Ledger, LedgerEntry};
use crate::hub::sessions::session::Session;
use kubesvc_runtime::background_tasks::{AttemptOutcome, BackgroundTasks, TaskSpec};
use kubesvc_runtime::work_queue::WorkQueue;

/// Number of vanished accounts of a session above which a new list must confirm the deletion, unless they are at most
/// a tenth of its accounts.
const MAX_UNCONFIRMED_DELETES: usize = 10;
/// Rest after a list.
const LIST_REST: Duration = Duration::from_secs(1);
/// Maximum rest after a list while more are requested.
const MAX_LIST_REST: Duration = Duration::from_secs(60);
/// Maximum number of sessions that one list serves.
const MAX_SESSIONS_PER_LIST: usize = 100_000;

/// Whether this many of a session's accounts need a confirmation.
fn is_mass_delete(missing: usize, of: usize) -> bool {
    missing > MAX_UNCONFIRMED_DELETES.max(of / 10)
}

/// Verdict on an account of a session that has no object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MissingAccountState {
    /// Vanished with few others; it is dropped.
    Few,
    /// Vanished with many others; waits for a list.
    Awaited,
    /// The list is in progress.
    Asked,
    /// A list did not contain it; it is dropped.
    Listed,
}

/// Serials of sessions that wait for a list, and the rest after the next one. The sessions know for which accounts.
#[derive(Default)]
pub(super) struct MassDeleteGuard {
    waiting: Arc<WorkQueue<u64>>,
    rests: Mutex<ListRests>,
}

/// Rests after lists. They double while lists follow one another, because any agent can claim accounts that never
/// existed. Pure.
struct ListRests {
    next: Duration,
    /// End of the last rest.
    until: Option<Instant>,
}

impl Default for ListRests {
    fn default() -> Self {
        Self { next: LIST_REST, until: None }
    }
}

impl ListRests {
    /// Returns the rest after a list that took place between `begun` and `ended`.
    fn after_list(&mut self, begun: Instant, ended: Instant) -> Duration {
        if self.until.is_some_and(|until| begun > until + MAX_LIST_REST) {
            self.next = LIST_REST;
        }
        let rest = self.next;
        (self.next, self.until) = ((rest * 2).min(MAX_LIST_REST), Some(ended + rest));
        rest
    }
}

/// Starts the task that lists all accounts again when many have vanished.
pub(crate) fn start(background: &BackgroundTasks, sessions: &Arc<Sessions>) {
    let task = TaskSpec::new("mass delete guard", "Lists all accounts again before agents drop many of them");
    // A list is repeated until it is complete.
    let task = task.woken_by(&sessions.mass_delete_guard.waiting).without_deadline();
    let sessions = Arc::clone(sessions);
    background
        .start(task.batch(MAX_SESSIONS_PER_LIST), move |serials| list_anew(Arc::clone(&sessions), serials));
}

async fn list_anew(sessions: Arc<Sessions>, serials: Vec<u64>) -> AttemptOutcome<u64> {
    let waiting = serials.into_iter().filter_map(|serial| sessions.registry.by_serial(serial));
    let waiting: Vec<_> = waiting.collect();
    let count: usize = waiting
        .iter()
        .map(|session| advance(session, MissingAccountState::Awaited, MissingAccountState::Asked).len())
        .sum();
    if count == 0 {
        return AttemptOutcome::Unchanged;
    }
    sessions.context.metrics.mass_deletes.inc();
    info!(
        accounts = count,
        "many accounts disappeared at once; listing all accounts before agents drop them"
    );
    let begun = Instant::now();
    sessions.context.accounts.list_anew().await;
    for session in waiting {
        session.wakes.wake_all(advance(&session, MissingAccountState::Asked, MissingAccountState::Listed));
    }
    AttemptOutcome::Pause(sessions.mass_delete_guard.rests.lock().after_list(begun, Instant::now()))
}

/// Advances the accounts of a session from one verdict to another. Returns their uids.
fn advance(session: &Session, from: MissingAccountState, to: MissingAccountState) -> Vec<String> {
    let mut missing = session.missing_accounts.lock();
    let verdicts = missing.iter_mut().filter(|(_, verdict)| **verdict == from);
    verdicts
        .map(|(uid, verdict)| {
            *verdict = to;
            uid.clone()
        })
        .collect()
}

/// Returns those of these accounts that the session must not drop yet. All accounts of the session are judged at
/// once, and only if one of these vanished without a verdict: a hello with 100,000 unknown accounts costs one pass.
pub(super) fn held_back(sessions: &Sessions, session: &Session, uids: &[String]) -> HashSet<String> {
    let ledger = session.ledger.lock();
    let mut judged = session.missing_accounts.lock();
    let is_missing = |uid: &str| sessions.context.accounts.by_uid(uid).is_none();
    let mut to_judge = false;
    for uid in uids {
        if ledger.entry(uid).is_some_and(LedgerEntry::may_hold) && is_missing(uid) {
            to_judge |= !judged.contains_key(uid);
        } else {
            judged.remove(uid);
        }
    }
    if to_judge && judge(&ledger, &mut judged, is_missing) {
        sessions.mass_delete_guard.waiting.wake(session.serial);
    }
    let waits = |uid: &&String| {
        matches!(judged.get(*uid), Some(MissingAccountState::Awaited | MissingAccountState::Asked))
    };
    uids.iter().filter(waits).cloned().collect()
}

/// Judges all vanished accounts without a verdict. Returns whether a list is needed.
fn judge(
    ledger: &Ledger,
    judged: &mut HashMap<String, MissingAccountState>,
    is_missing: impl Fn(&str) -> bool,
) -> bool {
    let (mut all, mut missing, mut new) = (0, 0, Vec::new());
    for (uid, _) in ledger.entries().filter(|(_, entry)| entry.may_hold()) {
        all += 1;
        if is_missing(uid) {
            let verdict = judged.get(uid);
            missing += usize::from(verdict != Some(&MissingAccountState::Listed));
            if verdict.is_none() {
                new.push(uid.clone());
            }
        }
    }
    let is_doubtful = is_mass_delete(missing, all);
    let verdict = if is_doubtful { MissingAccountState::Awaited } else { MissingAccountState::Few };
    judged.extend(new.into_iter().map(|uid| (uid, verdict)));
    is_doubtful
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hub::sessions::ledger::HeldClaim;

    #[test]
    fn all_vanished_accounts_are_judged_in_one_pass_and_only_once() {
        let mut ledger = Ledger::new(0);
        let held: Vec<_> = (0..5000).map(|one| HeldClaim::of_test(&format!("uid-{one}"))).collect();
        ledger.seed(&held, &Ledger::default());
        let mut judged = HashMap::new();
        let looks = std::cell::Cell::new(0);
        let is_missing = |_: &str| {
            looks.set(looks.get() + 1);
            true
        };
        assert!(judge(&ledger, &mut judged, is_missing), "a list is waited for");
        assert!(
            judged.len() == 5000 && judged.values().all(|verdict| *verdict == MissingAccountState::Awaited)
        );
        assert_eq!(looks.get(), 5000);
        judged.values_mut().for_each(|verdict| *verdict = MissingAccountState::Listed);
        ledger.seed(&[HeldClaim::of_test("one-more")], &Ledger::default());
        assert!(!judge(&ledger, &mut judged, |_| true), "what a list has shown is certain");
        assert_eq!(judged.get("one-more"), Some(&MissingAccountState::Few));
    }

    #[test]
    fn rests_after_lists_double_up_to_a_minute_and_begin_anew_after_a_quiet_minute() {
        let (mut rests, mut now) = (ListRests::default(), Instant::now());
        let mut seconds = Vec::new();
        for _ in 0..8 {
            let rest = rests.after_list(now, now + LIST_REST);
            seconds.push(rest.as_secs());
            now += LIST_REST + rest;
        }
        assert_eq!(seconds, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(rests.after_list(now + MAX_LIST_REST, now + MAX_LIST_REST), MAX_LIST_REST);
        now += MAX_LIST_REST * 3 + LIST_REST;
        assert_eq!(rests.after_list(now, now), LIST_REST);
    }

    #[test]
    fn more_than_ten_and_more_than_a_tenth_are_a_mass_delete() {
        for (missing, of, doubtful) in [
            (10, 10, false),
            (11, 11, true),
            (11, 109, true),
            (11, 110, false),
            (100, 1000, false),
            (101, 1000, true),
        ] {
            assert_eq!(is_mass_delete(missing, of), doubtful, "{missing} of {of}");
        }
    }
}
