//! Rows that stand in the way of others: what is theirs to replace, and what refuses them. Decisions without a database.

use std::collections::HashMap;

use crate::account::row::AccountRow;
use crate::store::{StoreError, limits};

/// Whose rows a row takes the place of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) enum ReplacedRows {
    /// Ours: [`Changes::puts`](crate::store::Changes::puts).
    Ours,
    /// Somebody else's: [`Changes::adopts`](crate::store::Changes::adopts).
    Theirs,
}

impl ReplacedRows {
    /// What is to be done about the row that has the name of `row`; `ours` if it has another uid of ours.
    pub(in crate::store) fn judge(self, row: &AccountRow, ours: bool) -> Result<(), StoreError> {
        match (self, ours) {
            (Self::Ours, true) | (Self::Theirs, false) => Ok(()),
            (Self::Ours, false) => Err(limits::refused(row, NAME_HAS_FOREIGN_ROW)),
            (Self::Theirs, true) => Err(limits::refused(row, NAME_HAS_OUR_ROW)),
        }
    }
}

/// What must go before rows can be written.
#[derive(Debug, Default)]
pub(in crate::store) struct ConflictingRows {
    /// uids of ours: of the name with another uid, or of the uid with another name.
    pub(in crate::store) uids: Vec<String>,
    /// Names of rows that are not ours.
    pub(in crate::store) foreign: Vec<String>,
}

/// What is in the way of these rows. `held` are name and uid of the rows that have one of the names or one of the
/// uids. What these rows may not take the place of refuses them.
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

/// The refusal of the first row that has one of these names, which the database takes for its name.
pub(in crate::store) fn not_ours(rows: &[&AccountRow], names: &[String]) -> Result<(), StoreError> {
    // To MySQL a name is the same with spaces after it.
    let same = |name: &str, row: &AccountRow| name == row.name || name.trim_end_matches(' ') == row.name;
    match rows.iter().find(|row| names.iter().any(|name| same(name, row))) {
        Some(row) => Err(limits::refused(row, NAME_HAS_FOREIGN_ROW)),
        None => Ok(()),
    }
}

/// Why a row is refused whose name somebody else's row has.
pub(in crate::store) const NAME_HAS_FOREIGN_ROW: &str = "a row of that name without a uid is there already and is not kubesvc's; \
                        delete it, or give the account another name";

/// Why a row is refused that is to take the place of somebody else's, where one of ours stands.
pub(in crate::store) const NAME_HAS_OUR_ROW: &str = "a row of that name with another uid is there already; if no object has that uid, it goes \
                     within a minute";
