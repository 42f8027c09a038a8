//! Conflicts between rows to write and rows in the table: which are replaced, and which cause a refusal. No I/O.

use std::collections::HashMap;

use crate::account::row::AccountRow;
use crate::store::{StoreError, limits};

/// Which rows a write may replace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) enum ReplacedRows {
    /// kubesvc's own rows: [`Changes::puts`](crate::store::Changes::puts).
    Ours,
    /// Foreign rows: [`Changes::adopts`](crate::store::Changes::adopts).
    Theirs,
}

impl ReplacedRows {
    /// Checks whether `row` may replace the row that has its name; `ours` if that row has another uid of kubesvc.
    pub(in crate::store) fn judge(self, row: &AccountRow, ours: bool) -> Result<(), StoreError> {
        match (self, ours) {
            (Self::Ours, true) | (Self::Theirs, false) => Ok(()),
            (Self::Ours, false) => Err(limits::refused(row, NAME_HAS_FOREIGN_ROW)),
            (Self::Theirs, true) => Err(limits::refused(row, NAME_HAS_OUR_ROW)),
        }
    }
}

/// Rows to delete before others can be written.
#[derive(Debug, Default)]
pub(in crate::store) struct ConflictingRows {
    /// uids of kubesvc's own rows: same name with another uid, or same uid with another name.
    pub(in crate::store) uids: Vec<String>,
    /// Names of foreign rows.
    pub(in crate::store) foreign: Vec<String>,
}

/// Returns the rows that conflict with `rows`. `held` is the name and uid of each row in the table that has one of
/// the names or uids. Returns an error if `taking` does not allow one of them to be replaced.
pub(in crate::store) fn conflicting_rows(
    rows: &[&AccountRow],
    held: Vec<(Option<String>, Option<String>)>,
    taking: ReplacedRows,
) -> Result<ConflictingRows, StoreError> {
    let mut way = ConflictingRows::default();
    if held.is_empty() {
        return Ok(way);
    }
    let by_name: HashMap<&str, &AccountRow> = rows.iter().map(|row| (row.name.as_str(), *row)).collect();
    for (name, uid) in held {
        let wanted = name.as_deref().and_then(|name| by_name.get(name));
        match (wanted, uid) {
            (Some(row), Some(uid)) if row.uid == uid => {}
            (Some(row), uid) => {
                taking.judge(row, uid.is_some())?;
                match uid {
                    Some(uid) => way.uids.push(uid),
                    None => way.foreign.extend(name),
                }
            }
            (None, Some(uid)) => way.uids.push(uid),
            (None, None) => {}
        }
    }
    way.uids.sort_unstable();
    way.uids.dedup();
    Ok(way)
}

/// Refuses the first of `rows` that the database considers to have one of these names.
pub(in crate::store) fn not_ours(rows: &[&AccountRow], names: &[String]) -> Result<(), StoreError> {
    // MySQL ignores trailing spaces when it compares names.
    let same = |name: &str, row: &AccountRow| name == row.name || name.trim_end_matches(' ') == row.name;
    match rows.iter().find(|row| names.iter().any(|name| same(name, row))) {
        Some(row) => Err(limits::refused(row, NAME_HAS_FOREIGN_ROW)),
        None => Ok(()),
    }
}

/// Reason for refusing a put whose name belongs to a foreign row.
pub(in crate::store) const NAME_HAS_FOREIGN_ROW: &str = "a row of that name without a uid is there already and is not kubesvc's; \
                        delete it, or give the account another name";

/// Reason for refusing an adoption whose name belongs to one of kubesvc's own rows.
pub(in crate::store) const NAME_HAS_OUR_ROW: &str = "a row of that name with another uid is there already; if no object has that uid, it goes \
                     within a minute";
