//! What a row may hold on every database, so that a row accepted by one is accepted by all.

use std::collections::HashSet;

use super::accounts::{self, ACCOUNTS};
use super::assignments::{self, ASSIGNMENTS};
use super::{AccountChanges, AssignmentChanges, StoreError};
use kubesvc_core::account_row::AccountRow;
use kubesvc_core::{AgentId, ReplicaId};

/// Checks changes before they are sent: each uid and name once, no text too long, no NUL.
pub(super) fn check(changes: &AccountChanges) -> Result<(), StoreError> {
    let rows = || changes.puts.iter().chain(&changes.adopts);
    let mut names = HashSet::with_capacity(rows().count());
    let mut uids = HashSet::with_capacity(rows().count() + changes.deletes.len());
    for uid in &changes.deletes {
        if !uids.insert(uid.as_str()) {
            return Err(StoreError::refused(
                format!("the account with uid {uid:?}"),
                "it stands there twice",
            ));
        }
    }
    for row in rows() {
        check_row(row)?;
        if !uids.insert(&row.uid) || !names.insert(&row.name) {
            return Err(refused(row, "it stands there twice"));
        }
    }
    Ok(())
}

/// Returns the refusal of a row, named by its key.
pub(super) fn refused(
    row: &AccountRow,
    why: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> StoreError {
    StoreError::refused(key(row), why)
}

fn key(row: &AccountRow) -> String {
    format!("kubesvc_accounts row {:?} (uid {:?})", row.name, row.uid)
}

/// Names the row in the refusal of a statement that holds only this row. Returns other errors unchanged.
pub(super) fn of_row(row: &AccountRow, error: StoreError) -> StoreError {
    match error {
        StoreError::Refused { source, .. } => StoreError::Refused { what: key(row), source },
        other => other,
    }
}

/// Checks assignments before they are sent, like [`check`] does for rows.
pub(super) fn check_assignments(
    replica_id: &ReplicaId,
    changes: &AssignmentChanges,
) -> Result<(), StoreError> {
    let refused = |account: &str, agent: &AgentId, why: String| {
        Err(StoreError::refused(
            format!("kubesvc_assignments row {account:?}, {agent:?} of replica {replica_id:?}"),
            why,
        ))
    };
    let mut keys = HashSet::with_capacity(changes.puts.len());
    for row in &changes.puts {
        let (account, agent) = (&row.account_name, &row.agent_id);
        if let Some(why) = ASSIGNMENTS.unfit(&assignments::values(row, replica_id)) {
            return refused(account, agent, why);
        }
        if !keys.insert((account, agent)) {
            return refused(account, agent, "it stands there twice".to_owned());
        }
    }
    Ok(())
}

/// Why a text does not fit a column of at most `most` characters; `None` if it fits.
pub(super) fn unfit(column: &str, text: &str, most: usize) -> Option<String> {
    if text.contains('\0') {
        return Some(format!("column {column} holds a NUL"));
    }
    // A character is at least one byte, so a short text need not be counted.
    (text.len() > most && text.chars().count() > most)
        .then(|| format!("column {column} has more than {most} characters"))
}

fn check_row(row: &AccountRow) -> Result<(), StoreError> {
    if let Some(why) = ACCOUNTS.unfit(&accounts::values(row)) {
        return Err(refused(row, why));
    }
    if row.name.is_empty() || row.uid.is_empty() {
        return Err(refused(row, "it has no name or no uid"));
    }
    Ok(())
}
