//! What the rows shall be, and what the database is known to hold. Pure.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::store::{Assignment, AssignmentChanges};

/// The key of a row.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Pair {
    pub(super) account: String,
    pub(super) agent: String,
}

/// What the database holds under a key.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Row {
    /// As it should be, for the account with this uid. An account that is made anew under its name gets its row anew,
    /// because the old one went with the old account.
    Right(String),
    /// It was read, and may be anything.
    Unsure,
}

#[derive(Debug, Default)]
pub(super) struct Desk {
    /// The pair of each session and account that it holds.
    held: HashMap<(u64, String), Pair>,
    /// For each pair the sessions that hold it, and the account's uid: two for a moment, when an agent connects anew.
    pairs: HashMap<Pair, BTreeMap<u64, String>>,
    /// What the database holds; absent while that must be read.
    rows: Option<HashMap<Pair, Row>>,
    dirty: HashSet<Pair>,
}

impl Desk {
    /// A session holds this account as this pair, or does not.
    pub(super) fn look(&mut self, serial: u64, uid: String, held: Option<Pair>) {
        let key = (serial, uid);
        if self.held.get(&key) == held.as_ref() {
            return;
        }
        if let Some(before) = self.held.remove(&key) {
            if let Some(sessions) = self.pairs.get_mut(&before) {
                sessions.remove(&serial);
                if sessions.is_empty() {
                    self.pairs.remove(&before);
                }
            }
            self.dirty.insert(before);
        }
        if let Some(pair) = held {
            self.pairs.entry(pair.clone()).or_default().insert(serial, key.1.clone());
            self.dirty.insert(pair.clone());
            self.held.insert(key, pair);
        }
    }

    /// The database may hold something else than is known: it is to be read.
    pub(super) fn doubt(&mut self) {
        self.rows = None;
    }

    /// Whether it is known what the database holds.
    pub(super) fn is_read(&self) -> bool {
        self.rows.is_some()
    }

    /// This is what the database holds.
    pub(super) fn read(&mut self, rows: impl Iterator<Item = Assignment>) {
        let mut known = HashMap::new();
        for row in rows {
            let pair = Pair { account: row.account_name.clone(), agent: row.agent_id.clone() };
            // The account of a row that is as it should be is the one that holds it.
            let uid = self.uid(&pair).filter(|_| row == right(&pair));
            known.insert(pair, uid.map_or(Row::Unsure, Row::Right));
        }
        self.dirty = known.keys().chain(self.pairs.keys()).cloned().collect();
        self.rows = Some(known);
    }

    /// Changes to be written, at most so many; absent: the database holds what it should.
    pub(super) fn changes(&mut self, max: usize) -> Option<AssignmentChanges> {
        let rows = self.rows.as_ref()?;
        let (pairs, mut changes, mut count) = (&self.pairs, AssignmentChanges::default(), 0);
        self.dirty.retain(|pair| {
            if count == max {
                return true;
            }
            let uid = pairs.get(pair).and_then(|sessions| sessions.values().next_back());
            match (uid, rows.get(pair)) {
                (Some(uid), Some(Row::Right(known))) if known == uid => return false,
                (Some(_), _) => changes.puts.push(right(pair)),
                (None, Some(_)) => changes.deletes.push((pair.account.clone(), pair.agent.clone())),
                (None, None) => return false,
            }
            count += 1;
            true
        });
        changes.puts.sort_by(|one, other| key(one).cmp(&key(other)));
        changes.deletes.sort();
        (count > 0).then_some(changes)
    }

    /// These changes are committed.
    pub(super) fn written(&mut self, changes: &AssignmentChanges) {
        for (account, agent) in &changes.deletes {
            let pair = Pair { account: account.clone(), agent: agent.clone() };
            if let Some(rows) = &mut self.rows {
                rows.remove(&pair);
            }
        }
        for put in &changes.puts {
            let pair = Pair { account: put.account_name.clone(), agent: put.agent_id.clone() };
            let row = self.uid(&pair).map_or(Row::Unsure, Row::Right);
            if let Some(rows) = &mut self.rows {
                rows.insert(pair, row);
            }
        }
    }

    fn uid(&self, pair: &Pair) -> Option<String> {
        self.pairs.get(pair)?.values().next_back().cloned()
    }
}

fn key(row: &Assignment) -> (&str, &str) {
    (&row.account_name, &row.agent_id)
}

/// The row of a pair.
fn right(pair: &Pair) -> Assignment {
    Assignment {
        account_name: pair.account.clone(),
        agent_id: pair.agent.clone(),
        connections: 1,
        caching: false,
        reachable: true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(account: &str) -> Pair {
        Pair { account: account.into(), agent: "a".into() }
    }

    fn empty() -> Desk {
        let mut desk = Desk::default();
        desk.read(std::iter::empty());
        desk
    }

    /// Writes everything that is to be written; answers with the numbers of rows put and deleted.
    fn flush(desk: &mut Desk) -> (usize, usize) {
        let (mut puts, mut deletes) = (0, 0);
        while let Some(changes) = desk.changes(100) {
            (puts, deletes) = (puts + changes.puts.len(), deletes + changes.deletes.len());
            desk.written(&changes);
        }
        (puts, deletes)
    }

    #[test]
    fn a_row_comes_when_an_account_is_held_and_goes_when_it_is_not() {
        let mut desk = empty();
        desk.look(1, "u".into(), Some(pair("one")));
        let changes = desk.changes(100).expect("a row is to come");
        assert_eq!(changes.puts, [right(&pair("one"))]);
        desk.written(&changes);
        desk.look(1, "u".into(), Some(pair("one")));
        assert_eq!(flush(&mut desk), (0, 0), "nothing has changed");
        desk.look(1, "u".into(), None);
        assert_eq!(flush(&mut desk), (0, 1));
        assert!(desk.dirty.is_empty() && desk.held.is_empty() && desk.pairs.is_empty());
    }

    #[test]
    fn what_comes_and_goes_between_two_writes_costs_none() {
        let mut desk = empty();
        desk.look(1, "u".into(), Some(pair("one")));
        desk.look(1, "u".into(), None);
        assert_eq!(flush(&mut desk), (0, 0));
    }

    #[test]
    fn an_agent_that_connects_anew_keeps_its_row_when_the_former_session_ends() {
        let mut desk = empty();
        desk.look(1, "u".into(), Some(pair("one")));
        flush(&mut desk);
        desk.look(2, "u".into(), Some(pair("one")));
        desk.look(1, "u".into(), None);
        assert_eq!(flush(&mut desk), (0, 0));
    }

    #[test]
    fn an_account_made_anew_under_its_name_gets_its_row_anew() {
        let mut desk = empty();
        desk.look(1, "u".into(), Some(pair("one")));
        flush(&mut desk);
        desk.look(1, "u".into(), None);
        desk.look(1, "v".into(), Some(pair("one")));
        assert_eq!(flush(&mut desk), (1, 0));
    }

    #[test]
    fn rows_that_no_session_has_are_removed_and_wrong_ones_mended() {
        let mut desk = Desk::default();
        desk.look(1, "u".into(), Some(pair("one")));
        desk.look(1, "v".into(), Some(pair("two")));
        assert_eq!(desk.changes(100), None, "nothing is written before the rows were read");
        let wrong = Assignment { connections: 7, ..right(&pair("two")) };
        desk.read([right(&pair("one")), wrong, right(&pair("old"))].into_iter());
        let changes = desk.changes(100).expect("two differ");
        assert_eq!(changes.puts, [right(&pair("two"))]);
        assert_eq!(changes.deletes, [("old".to_owned(), "a".to_owned())]);
        desk.written(&changes);
        assert_eq!(flush(&mut desk), (0, 0));
        desk.doubt();
        desk.read([right(&pair("two"))].into_iter());
        assert_eq!(flush(&mut desk), (1, 0), "somebody has removed the other one");
    }

    #[test]
    fn a_transaction_has_a_bound_and_what_failed_is_written_again() {
        let mut desk = empty();
        for number in 0..250 {
            desk.look(1, format!("u{number}"), Some(pair(&format!("a{number}"))));
        }
        let first = desk.changes(100).expect("there is much to write");
        assert_eq!(first.puts.len(), 100);
        assert_eq!(flush(&mut desk), (250, 0), "nothing of it was committed before");
    }

    #[test]
    fn what_changes_while_a_row_is_being_written_is_written_after_it() {
        let mut desk = empty();
        desk.look(1, "u".into(), Some(pair("one")));
        let changes = desk.changes(100).expect("a row is to come");
        desk.look(1, "u".into(), None);
        desk.written(&changes);
        assert_eq!(flush(&mut desk), (0, 1));
    }
}
