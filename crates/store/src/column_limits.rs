//! What a row may hold on every database, so that a row accepted by one is accepted by all.

use std::collections::HashSet;

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
    let puts = changes.puts.iter().map(|row| (&row.account_name, &row.agent_id));
    let mut keys = HashSet::with_capacity(changes.puts.len());
    for (account, agent) in puts {
        let texts = [
            ("account_name", account.as_str(), 255),
            ("agent_id", agent.as_str(), 191),
            ("cd_id", replica_id.as_str(), 191),
        ];
        for (column, text, most) in texts {
            if let Some(why) = unfit(column, text, most) {
                return refused(account, agent, why);
            }
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
    let texts: [(&str, Option<&str>, usize); 12] = [
        ("name", Some(&row.name), 255),
        ("uid", Some(&row.uid), 36),
        ("status", Some(&row.status), 32),
        ("zone_id", row.zone_id.as_deref(), 255),
        ("origin", Some(&row.origin), 16),
        ("definition", Some(&row.definition), usize::MAX),
        ("props", Some(&row.props), usize::MAX),
        ("kube_host", row.kube_host.as_deref(), 512),
        ("kube_version", row.kube_version.as_deref(), 64),
        ("cert_fingerprint", row.cert_fingerprint.as_deref(), 128),
        ("cluster_uid", row.cluster_uid.as_deref(), 36),
        ("error_message", row.error_message.as_deref(), 2048),
    ];
    for (column, text, most) in texts {
        let Some(text) = text else { continue };
        if let Some(why) = unfit(column, text, most) {
            return Err(refused(row, why));
        }
    }
    if row.name.is_empty() || row.uid.is_empty() {
        return Err(refused(row, "it has no name or no uid"));
    }
    Ok(())
}
