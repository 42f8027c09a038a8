//! The rows of the table, and the check that it equals the one in `docs/rest.md`.

use super::{REQUESTS, StateRow};

const PAGE: &str = include_str!("../../../docs/rest.md");

pub(super) const INACTIVE: StateRow = StateRow {
    row: "INACTIVE",
    name: "inactive",
    shown: "INACTIVE",
    cells: [
        (409, &["INACTIVE"]),
        (202, &["TO_MIGRATE", "ACTIVATING", "ACTIVE"]),
        (202, &["INACTIVE"]),
        (202, &["INACTIVE"]),
        (202, &["DELETING", "gone"]),
    ],
};
pub(super) const TO_MIGRATE: StateRow = StateRow {
    row: "TO_MIGRATE",
    name: "tomigrate",
    shown: "TO_MIGRATE",
    cells: [
        (409, &["TO_MIGRATE"]),
        (202, &["TO_MIGRATE"]),
        (202, &["TO_DEACTIVATE", "INACTIVE"]),
        (202, &["TO_MIGRATE"]),
        (202, &["DELETING", "gone"]),
    ],
};
pub(super) const ACTIVATING: StateRow = StateRow {
    row: "ACTIVATING",
    name: "activating",
    shown: "ACTIVATING",
    cells: [
        (409, &["ACTIVATING"]),
        (202, &["ACTIVATING"]),
        (202, &["TO_DEACTIVATE", "DEACTIVATING"]),
        (202, &["ACTIVATING"]),
        (202, &["DELETING"]),
    ],
};
pub(super) const ACTIVE: StateRow = StateRow {
    row: "ACTIVE",
    name: "active",
    shown: "ACTIVE",
    cells: [
        (409, &["ACTIVE"]),
        (202, &["ACTIVE"]),
        (202, &["TO_DEACTIVATE", "DEACTIVATING", "INACTIVE"]),
        (202, &["ACTIVATING", "ACTIVE"]),
        (202, &["DELETING", "gone"]),
    ],
};
pub(super) const TO_DEACTIVATE: StateRow = StateRow {
    row: "TO_DEACTIVATE",
    name: "todeactivate",
    shown: "TO_DEACTIVATE",
    cells: [
        (409, &["TO_DEACTIVATE"]),
        // Nothing has begun, so nothing has to be undone: the account is as before.
        (202, &["TO_MIGRATE", "ACTIVE"]),
        (202, &["TO_DEACTIVATE"]),
        (202, &["TO_DEACTIVATE"]),
        (202, &["DELETING"]),
    ],
};
pub(super) const DEACTIVATING: StateRow = StateRow {
    row: "DEACTIVATING",
    name: "deactivating",
    shown: "DEACTIVATING",
    cells: [
        (409, &["DEACTIVATING"]),
        (202, &["DEACTIVATING"]),
        (202, &["DEACTIVATING"]),
        (202, &["DEACTIVATING"]),
        (202, &["DELETING"]),
    ],
};
pub(super) const DELETING: StateRow = StateRow {
    row: "DELETING",
    name: "deleting",
    shown: "DELETING",
    cells: [
        (409, &["DELETING"]),
        (409, &["DELETING"]),
        (409, &["DELETING"]),
        (409, &["DELETING"]),
        (202, &["DELETING"]),
    ],
};
pub(super) const DELETE_FAILED: StateRow = StateRow {
    row: "DELETE_FAILED",
    name: "deletefailed",
    shown: "DELETE_FAILED",
    cells: [
        (409, &["DELETE_FAILED"]),
        (409, &["DELETE_FAILED"]),
        (409, &["DELETE_FAILED"]),
        (409, &["DELETE_FAILED"]),
        (202, &["DELETING"]),
    ],
};
pub(super) const FAILED: StateRow = StateRow {
    row: "FAILED, to be active",
    name: "failed",
    shown: "FAILED",
    cells: [
        (409, &["FAILED"]),
        (202, &["TO_MIGRATE", "FAILED"]),
        (202, &["TO_DEACTIVATE", "INACTIVE"]),
        (202, &["TO_MIGRATE", "FAILED"]),
        (202, &["DELETING", "gone"]),
    ],
};
pub(super) const FAILED_TO_STOP: StateRow = StateRow {
    row: "FAILED, to be inactive",
    name: "failedtostop",
    shown: "FAILED",
    cells: [
        (409, &["FAILED"]),
        (202, &["DEACTIVATING", "FAILED"]),
        (202, &["DEACTIVATING"]),
        (202, &["FAILED"]),
        (202, &["DELETING"]),
    ],
};
pub(super) const ORPHANED: StateRow = StateRow {
    row: "ORPHANED",
    name: "orphaned",
    shown: "ORPHANED",
    cells: [
        (409, &["ORPHANED"]),
        (202, &["ORPHANED"]),
        (202, &["TO_DEACTIVATE", "DEACTIVATING", "INACTIVE"]),
        (202, &["ORPHANED"]),
        (202, &["DELETING", "gone"]),
    ],
};
/// Every request about an account that does not exist.
pub(super) const NO_ACCOUNT: StateRow = StateRow {
    row: "no account",
    name: "nobody",
    shown: "gone",
    cells: [(202, &["INACTIVE"]), (400, &["gone"]), (400, &["gone"]), (404, &["gone"]), (400, &["gone"])],
};

/// States that last until someone acts.
pub(super) const LASTING: [StateRow; 6] = [FAILED_TO_STOP, DELETE_FAILED, INACTIVE, ACTIVE, FAILED, ORPHANED];
/// States that end when an agent answers.
pub(super) const PASSING: [StateRow; 4] = [ACTIVATING, DEACTIVATING, DELETING, TO_MIGRATE];
/// States shown before the work has begun.
pub(super) const ASKED: [StateRow; 1] = [TO_DEACTIVATE];

/// The rows of the documented table: their labels and cells.
fn documented() -> Vec<(String, Vec<String>)> {
    let lines = PAGE.lines().skip_while(|line| !line.starts_with("| state now |")).skip(2);
    lines
        .take_while(|line| line.starts_with('|'))
        .map(|line| {
            let mut cells = line.trim_matches('|').split('|').map(|cell| cell.trim().replace('`', ""));
            (cells.next().unwrap_or_default(), cells.collect())
        })
        .collect()
}

/// Every cell of the documentation is checked by a test of this module, each of which checks one of these
/// groups of rows.
#[test]
fn every_cell_of_the_documented_table_is_true() {
    let groups: [&[StateRow]; 4] = [&LASTING, &PASSING, &ASKED, &[NO_ACCOUNT]];
    let lines: Vec<_> = groups.into_iter().flatten().collect();
    let documented = documented();
    assert_eq!((documented.len(), lines.len()), (12, 12));
    let mut held = 0;
    for (row, cells) in &documented {
        let line = lines.iter().find(|line| line.row == row);
        let line = line.unwrap_or_else(|| unreachable!("no test holds the line {row:?}"));
        assert_eq!(cells.len(), REQUESTS.len(), "{row}");
        for ((request, (code, then)), cell) in REQUESTS.iter().zip(line.cells).zip(cells) {
            let mut words = cell.split([' ', ',', ';']);
            assert_eq!(words.next(), Some(code.to_string().as_str()), "{request:?} in {row}: {cell}");
            // The state shown afterwards, where the documentation states it.
            let said = match words.next() {
                Some("same") => Some(line.shown),
                Some(word) if word == "gone" || word.contains(|letter: char| letter.is_uppercase()) => {
                    Some(word)
                }
                _ => None,
            };
            assert!(
                said.is_none_or(|said| then.contains(&said)),
                "{request:?} in {row}: {cell}, not {then:?}"
            );
            held += 1;
        }
    }
    assert_eq!(held, 12 * 5);
}
