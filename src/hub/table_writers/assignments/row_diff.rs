//! The desired rows, and the rows that the database is known to hold. Pure.

use std::collections::{BTreeMap, HashMap, HashSet};

use kubesvc_core::AgentId;
use kubesvc_store::{Assignment, AssignmentChanges};

/// Key of a row.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct AssignmentKey {
    pub(super) account: String,
    pub(super) agent: AgentId,
}

/// How a session holds an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HeldAs {
    /// Whether it streams the objects.
    pub(super) caching: bool,
    /// Whether it takes requests now.
    pub(super) reachable: bool,
}

/// What a session holds of an account.
#[derive(Clone, Debug, PartialEq, Eq)]
struct AccountHold {
    uid: String,
    held: HeldAs,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum StoredRow {
    /// As desired, for the account with this uid, and whether the agent streams its objects. An account that is
    /// created again under its name gets a new row, because the old one went with the old account.
    Right(AccountHold),
    /// Marked as unreachable because the session has ended; removed in the next round.
    Unreachable,
    /// Read from the database, not compared yet.
    Unsure,
}

#[derive(Debug, Default)]
pub(super) struct RowDiff {
    /// Pair of each session and account it holds.
    holds: HashMap<(u64, String), (AssignmentKey, HeldAs)>,
    /// Sessions that hold each pair; briefly two when an agent reconnects.
    pairs: HashMap<AssignmentKey, BTreeMap<u64, AccountHold>>,
    /// Stored rows; absent while they must be read.
    rows: Option<HashMap<AssignmentKey, StoredRow>>,
    dirty: HashSet<AssignmentKey>,
    /// Pairs whose session has ended and whose row does not say so yet; readers see that before the row is removed.
    lost: HashSet<AssignmentKey>,
    /// Pairs whose row was marked in this round; removed in the next.
    marked: HashSet<AssignmentKey>,
}

/// What a session has of an account.
pub(super) enum HoldChange {
    /// It holds the account as this pair.
    As(AssignmentKey, HeldAs),
    /// It dropped the account.
    Nothing,
    /// The session has ended.
    Ended,
}

impl RowDiff {
    /// Records what a session has of an account.
    pub(super) fn record(&mut self, serial: u64, uid: String, held: HoldChange) {
        let key = (serial, uid);
        let (held, has_ended) = match held {
            HoldChange::As(pair, held) => (Some((pair, held)), false),
            HoldChange::Nothing => (None, false),
            HoldChange::Ended => (None, true),
        };
        if self.holds.get(&key) == held.as_ref() {
            return;
        }
        if let Some((before, _)) = self.holds.remove(&key) {
            if let Some(sessions) = self.pairs.get_mut(&before) {
                sessions.remove(&serial);
                if sessions.is_empty() {
                    self.pairs.remove(&before);
                }
            }
            if has_ended {
                self.lost.insert(before.clone());
            }
            self.dirty.insert(before);
        }
        if let Some((pair, held)) = held {
            let hold = AccountHold { uid: key.1.clone(), held };
            self.pairs.entry(pair.clone()).or_default().insert(serial, hold);
            self.dirty.insert(pair.clone());
            self.holds.insert(key, (pair, held));
        }
    }

    /// Marks the stored rows as unknown: they are read again.
    pub(super) fn mark_stale(&mut self) {
        self.rows = None;
    }

    /// Whether the stored rows are known.
    pub(super) fn is_read(&self) -> bool {
        self.rows.is_some()
    }

    /// Sets the stored rows.
    pub(super) fn read(&mut self, rows: impl Iterator<Item = Assignment>) {
        let mut known = HashMap::new();
        for row in rows {
            let pair = AssignmentKey { account: row.account_name.clone(), agent: row.agent_id.clone() };
            // A row that is as desired belongs to the account that is held.
            let hold = self.hold(&pair).filter(|hold| row == right(&pair, hold.held));
            known.insert(pair, hold.map_or(StoredRow::Unsure, StoredRow::Right));
        }
        self.dirty = known.keys().chain(self.pairs.keys()).cloned().collect();
        self.rows = Some(known);
    }

    /// Starts a round: rows marked in the previous one are removed.
    pub(super) fn begin_round(&mut self) {
        self.dirty.extend(self.marked.drain());
    }

    /// Returns the next changes, bounded in number; `None` if the rows are as desired in this round.
    pub(super) fn changes(&mut self, max: usize) -> Option<AssignmentChanges> {
        let rows = self.rows.as_ref()?;
        let (pairs, mut changes, mut count) = (&self.pairs, AssignmentChanges::default(), 0);
        let (lost, marked) = (&mut self.lost, &self.marked);
        self.dirty.retain(|pair| {
            if count == max {
                return true;
            }
            let hold = pairs.get(pair).and_then(|sessions| sessions.values().next_back());
            match (hold, rows.get(pair)) {
                (Some(hold), Some(StoredRow::Right(known))) if known == hold => {
                    lost.remove(pair);
                    return false;
                }
                (Some(hold), _) => changes.puts.push(right(pair, hold.held)),
                (None, Some(StoredRow::Unreachable)) if marked.contains(pair) => return false,
                (None, Some(StoredRow::Right(known))) if lost.contains(pair) => {
                    changes.puts.push(right(pair, HeldAs { reachable: false, ..known.held }));
                }
                (None, Some(_)) => changes.deletes.push((pair.account.clone(), pair.agent.clone())),
                (None, None) => {
                    lost.remove(pair);
                    return false;
                }
            }
            count += 1;
            true
        });
        changes.puts.sort_by(|one, other| key(one).cmp(&key(other)));
        changes.deletes.sort();
        (count > 0).then_some(changes)
    }

    /// Records that these changes are committed.
    pub(super) fn written(&mut self, changes: &AssignmentChanges) {
        for (account, agent) in &changes.deletes {
            let pair = AssignmentKey { account: account.clone(), agent: agent.clone() };
            self.lost.remove(&pair);
            if let Some(rows) = &mut self.rows {
                rows.remove(&pair);
            }
        }
        for put in &changes.puts {
            let pair = AssignmentKey { account: put.account_name.clone(), agent: put.agent_id.clone() };
            let written = HeldAs { caching: put.caching, reachable: put.reachable };
            let row = match self.hold(&pair) {
                Some(hold) if hold.held == written => StoredRow::Right(hold),
                Some(_) => StoredRow::Unsure,
                None if put.reachable => StoredRow::Unsure,
                None => {
                    self.marked.insert(pair.clone());
                    StoredRow::Unreachable
                }
            };
            self.lost.remove(&pair);
            if let Some(rows) = &mut self.rows {
                rows.insert(pair, row);
            }
        }
    }

    fn hold(&self, pair: &AssignmentKey) -> Option<AccountHold> {
        self.pairs.get(pair)?.values().next_back().cloned()
    }
}

fn key(row: &Assignment) -> (&str, &str) {
    (&row.account_name, row.agent_id.as_str())
}

/// Returns the row of a pair.
fn right(pair: &AssignmentKey, HeldAs { caching, reachable }: HeldAs) -> Assignment {
    Assignment {
        account_name: pair.account.clone(),
        agent_id: pair.agent.clone(),
        connections: 1,
        caching,
        reachable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(caching: bool) -> HeldAs {
        HeldAs { caching, reachable: true }
    }

    fn pair(account: &str) -> AssignmentKey {
        AssignmentKey { account: account.into(), agent: "a".into() }
    }

    fn holds(account: &str) -> HoldChange {
        HoldChange::As(pair(account), held(false))
    }

    fn empty() -> RowDiff {
        let mut diff = RowDiff::default();
        diff.read(std::iter::empty());
        diff
    }

    /// Writes everything that is to be written; answers with the numbers of rows put and deleted.
    fn flush(diff: &mut RowDiff) -> (usize, usize) {
        let (mut puts, mut deletes) = (0, 0);
        while let Some(changes) = diff.changes(100) {
            (puts, deletes) = (puts + changes.puts.len(), deletes + changes.deletes.len());
            diff.written(&changes);
        }
        (puts, deletes)
    }

    #[test]
    fn a_row_comes_when_an_account_is_held_and_goes_when_it_is_not() {
        let mut diff = empty();
        diff.record(1, "u".into(), holds("one"));
        let changes = diff.changes(100).expect("a row is to come");
        assert_eq!(changes.puts, [right(&pair("one"), held(false))]);
        diff.written(&changes);
        diff.record(1, "u".into(), holds("one"));
        assert_eq!(flush(&mut diff), (0, 0), "nothing has changed");
        diff.record(1, "u".into(), HoldChange::Nothing);
        assert_eq!(flush(&mut diff), (0, 1));
        assert!(diff.dirty.is_empty() && diff.holds.is_empty() && diff.pairs.is_empty());
    }

    #[test]
    fn a_row_says_whether_the_agent_streams_the_accounts_objects() {
        let mut diff = empty();
        diff.record(1, "u".into(), holds("one"));
        flush(&mut diff);
        diff.record(1, "u".into(), HoldChange::As(pair("one"), held(true)));
        let changes = diff.changes(100).expect("it does now");
        assert_eq!(changes.puts, [right(&pair("one"), held(true))]);
        diff.record(1, "u".into(), holds("one"));
        diff.written(&changes);
        assert_eq!(diff.changes(100).expect("it does no longer").puts, [right(&pair("one"), held(false))]);
        flush(&mut diff);
        diff.mark_stale();
        diff.read([right(&pair("one"), held(true))].into_iter());
        assert_eq!(flush(&mut diff), (1, 0), "somebody has changed it");
    }

    #[test]
    fn change_reverted_before_the_write_is_not_written() {
        let mut diff = empty();
        diff.record(1, "u".into(), holds("one"));
        diff.record(1, "u".into(), HoldChange::Nothing);
        assert_eq!(flush(&mut diff), (0, 0));
    }

    #[test]
    fn an_agent_that_connects_anew_keeps_its_row_when_the_former_session_ends() {
        let mut diff = empty();
        diff.record(1, "u".into(), holds("one"));
        flush(&mut diff);
        diff.record(2, "u".into(), holds("one"));
        diff.record(1, "u".into(), HoldChange::Nothing);
        assert_eq!(flush(&mut diff), (0, 0));
    }

    #[test]
    fn recreated_account_gets_a_new_row() {
        let mut diff = empty();
        diff.record(1, "u".into(), holds("one"));
        flush(&mut diff);
        diff.record(1, "u".into(), HoldChange::Nothing);
        diff.record(1, "v".into(), holds("one"));
        assert_eq!(flush(&mut diff), (1, 0));
    }

    #[test]
    fn rows_that_no_session_has_are_removed_and_wrong_ones_mended() {
        let mut diff = RowDiff::default();
        diff.record(1, "u".into(), holds("one"));
        diff.record(1, "v".into(), holds("two"));
        assert_eq!(diff.changes(100), None, "nothing is written before the rows were read");
        let wrong = Assignment { connections: 7, ..right(&pair("two"), held(false)) };
        diff.read([right(&pair("one"), held(false)), wrong, right(&pair("old"), held(false))].into_iter());
        let changes = diff.changes(100).expect("two differ");
        assert_eq!(changes.puts, [right(&pair("two"), held(false))]);
        assert_eq!(changes.deletes, [("old".to_owned(), "a".into())]);
        diff.written(&changes);
        assert_eq!(flush(&mut diff), (0, 0));
        diff.mark_stale();
        diff.read([right(&pair("two"), held(false))].into_iter());
        assert_eq!(flush(&mut diff), (1, 0), "somebody has removed the other one");
    }

    #[test]
    fn a_transaction_has_a_bound_and_what_failed_is_written_again() {
        let mut diff = empty();
        for number in 0..250 {
            diff.record(1, format!("u{number}"), holds(&format!("a{number}")));
        }
        let first = diff.changes(100).expect("there is much to write");
        assert_eq!(first.puts.len(), 100);
        assert_eq!(flush(&mut diff), (250, 0), "nothing of it was committed before");
    }

    #[test]
    fn change_during_a_write_is_written_afterwards() {
        let mut diff = empty();
        diff.record(1, "u".into(), holds("one"));
        let changes = diff.changes(100).expect("a row is to come");
        diff.record(1, "u".into(), HoldChange::Nothing);
        diff.written(&changes);
        assert_eq!(flush(&mut diff), (0, 1));
    }

    #[test]
    fn a_row_says_that_its_agent_cannot_be_reached_before_it_goes() {
        let mut diff = empty();
        diff.record(1, "u".into(), holds("one"));
        flush(&mut diff);
        diff.record(1, "u".into(), HoldChange::Ended);
        let changes = diff.changes(100).expect("it is told first");
        let unreachable = Assignment { reachable: false, ..right(&pair("one"), held(false)) };
        assert_eq!((changes.puts.as_slice(), changes.deletes.len()), ([unreachable].as_slice(), 0));
        diff.written(&changes);
        assert_eq!(flush(&mut diff), (0, 0), "it stands for a round");
        diff.begin_round();
        assert_eq!(flush(&mut diff), (0, 1));
        assert!(diff.dirty.is_empty() && diff.lost.is_empty() && diff.marked.is_empty());
    }

    #[test]
    fn an_agent_that_is_back_before_its_row_goes_keeps_it() {
        let mut diff = empty();
        diff.record(1, "u".into(), holds("one"));
        flush(&mut diff);
        diff.record(1, "u".into(), HoldChange::Ended);
        assert_eq!(flush(&mut diff), (1, 0));
        diff.record(2, "u".into(), holds("one"));
        let changes = diff.changes(100).expect("it can be reached again");
        assert_eq!(changes.puts, [right(&pair("one"), held(false))]);
        diff.written(&changes);
        diff.begin_round();
        assert_eq!(flush(&mut diff), (0, 0));
        assert!(diff.dirty.is_empty() && diff.lost.is_empty() && diff.marked.is_empty());
    }
}
