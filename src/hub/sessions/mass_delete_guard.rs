//! Guard against mass deletes. An API server that starts or was restored may show fewer accounts than exist. When
//! many accounts of a session vanish at once, all accounts are listed again before the agent drops them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::hub::sessions::Sessions;
use crate::hub::sessions::ledger::{Ledger, LedgerEntry};
use crate::hub::sessions::session::Session;

/// Number of vanished accounts of a session above which a new list must confirm the deletion, unless they are at most
/// a tenth of its accounts.
const MAX_UNCONFIRMED_DELETES: usize = 10;
/// Minimum interval between two lists.
const LIST_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum interval between two lists while more are requested.
const MAX_LIST_INTERVAL: Duration = Duration::from_secs(60);

/// Whether this many of a session's accounts need a confirmation.
pub(in crate::hub) fn is_mass_delete(vanished: usize, of: usize) -> bool {
    vanished > MAX_UNCONFIRMED_DELETES.max(of / 10)
}

/// Verdict on an account of a session that has no object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hub) enum VanishedState {
    /// Vanished with few others; it is dropped.
    Few,
    /// Vanished with many others; waits for a list.
    Awaited,
    /// The list is in progress.
    Asked,
    /// A list did not contain it; it is dropped.
    Listed,
}

/// Serials of sessions that wait for a list. The sessions know for which accounts.
#[derive(Default)]
pub(in crate::hub) struct MassDeleteGuard {
    waiting: Mutex<HashSet<u64>>,
    more: Notify,
}

impl MassDeleteGuard {
    fn await_list(&self, serial: u64) {
        self.waiting.lock().insert(serial);
        self.more.notify_one();
    }

    fn take(&self) -> HashSet<u64> {
        std::mem::take(&mut *self.waiting.lock())
    }
}

/// Lists all accounts again when many have vanished, until stopped. The interval grows while this continues, because
/// any agent can claim accounts that never existed.
pub(in crate::hub) async fn run(sessions: Arc<Sessions>, stop: CancellationToken) {
    let (mut pause, mut ended) = (LIST_INTERVAL, Instant::now());
    while stop.run_until_cancelled(sessions.mass_delete_guard.more.notified()).await.is_some() {
        if ended.elapsed() > MAX_LIST_INTERVAL {
            pause = LIST_INTERVAL;
        }
        let looked = async {
            list_anew(&sessions).await;
            tokio::time::sleep(pause).await;
        };
        if stop.run_until_cancelled(looked).await.is_none() {
            return;
        }
        (pause, ended) = ((pause * 2).min(MAX_LIST_INTERVAL), Instant::now());
    }
}

async fn list_anew(sessions: &Sessions) {
    let waiting = sessions.mass_delete_guard.take().into_iter();
    let waiting: Vec<_> = waiting.filter_map(|serial| sessions.registry.by_serial(serial)).collect();
    let count: usize = waiting
        .iter()
        .map(|session| advance(session, VanishedState::Awaited, VanishedState::Asked).len())
        .sum();
    if count == 0 {
        return;
    }
    info!(accounts = count, "many accounts have vanished at once; all are listed before agents drop them");
    sessions.context.accounts.list_anew().await;
    for session in waiting {
        session.wakes.wake_all(advance(&session, VanishedState::Asked, VanishedState::Listed));
    }
}

/// Advances the accounts of a session from one verdict to another. Returns their uids.
fn advance(session: &Session, from: VanishedState, to: VanishedState) -> Vec<String> {
    let mut vanished = session.vanished_accounts.lock();
    let verdicts = vanished.iter_mut().filter(|(_, verdict)| **verdict == from);
    verdicts
        .map(|(uid, verdict)| {
            *verdict = to;
            uid.clone()
        })
        .collect()
}

/// Returns those of these accounts that the session must not drop yet. All accounts of the session are judged at
/// once, and only if one of these vanished without a verdict: a hello with 100,000 unknown accounts costs one pass.
pub(in crate::hub) fn held_back(sessions: &Sessions, session: &Session, uids: &[String]) -> HashSet<String> {
    let ledger = session.ledger.lock();
    let mut judged = session.vanished_accounts.lock();
    let has_vanished = |uid: &str| sessions.context.accounts.by_uid(uid).is_none();
    let mut to_judge = false;
    for uid in uids {
        if ledger.entry(uid).is_some_and(LedgerEntry::may_hold) && has_vanished(uid) {
            to_judge |= !judged.contains_key(uid);
        } else {
            judged.remove(uid);
        }
    }
    if to_judge && judge(&ledger, &mut judged, has_vanished) {
        sessions.mass_delete_guard.await_list(session.serial);
    }
    let waits =
        |uid: &&String| matches!(judged.get(*uid), Some(VanishedState::Awaited | VanishedState::Asked));
    uids.iter().filter(waits).cloned().collect()
}

/// Judges all vanished accounts without a verdict. Returns whether a list is needed.
fn judge(
    ledger: &Ledger,
    judged: &mut HashMap<String, VanishedState>,
    has_vanished: impl Fn(&str) -> bool,
) -> bool {
    let (mut all, mut vanished, mut new) = (0, 0, Vec::new());
    for (uid, _) in ledger.entries().filter(|(_, entry)| entry.may_hold()) {
        all += 1;
        if has_vanished(uid) {
            let verdict = judged.get(uid);
            vanished += usize::from(verdict != Some(&VanishedState::Listed));
            if verdict.is_none() {
                new.push(uid.clone());
            }
        }
    }
    let is_doubtful = is_mass_delete(vanished, all);
    let verdict = if is_doubtful { VanishedState::Awaited } else { VanishedState::Few };
    judged.extend(new.into_iter().map(|uid| (uid, verdict)));
    is_doubtful
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::account::GrantEpoch;

    #[test]
    fn all_vanished_accounts_are_judged_in_one_pass_and_only_once() {
        let mut ledger = Ledger::new(0);
        let held: Vec<_> =
            (0..5000).map(|one| (format!("uid-{one}"), "n".to_owned(), GrantEpoch(1))).collect();
        ledger.seed(&held, &Ledger::default());
        let mut judged = HashMap::new();
        let looks = std::cell::Cell::new(0);
        let has_vanished = |_: &str| {
            looks.set(looks.get() + 1);
            true
        };
        assert!(judge(&ledger, &mut judged, has_vanished), "a list is waited for");
        assert!(judged.len() == 5000 && judged.values().all(|verdict| *verdict == VanishedState::Awaited));
        assert_eq!(looks.get(), 5000);
        judged.values_mut().for_each(|verdict| *verdict = VanishedState::Listed);
        ledger.seed(&[("one-more".to_owned(), "n".to_owned(), GrantEpoch(1))], &Ledger::default());
        assert!(!judge(&ledger, &mut judged, |_| true), "what a list has shown is certain");
        assert_eq!(judged.get("one-more"), Some(&VanishedState::Few));
    }

    #[test]
    fn more_than_ten_and_more_than_a_tenth_are_a_mass_delete() {
        for (vanished, of, doubtful) in [
            (10, 10, false),
            (11, 11, true),
            (11, 109, true),
            (11, 110, false),
            (100, 1000, false),
            (101, 1000, true),
        ] {
            assert_eq!(is_mass_delete(vanished, of), doubtful, "{vanished} of {of}");
        }
    }
}
