//! What Clouddriver has of a name before an account is deleted there. Only a row that was there can have been deleted: what
//! was never Clouddriver's stays here, whatever became of the call.

use std::time::Duration;

use crate::clouddriver::{ClouddriverAccounts, StoredAccount};
use crate::credentials_sources::CredentialsSources;
use kubesvc_clouddriver::registration::{CallFailure, FailureKind};
use kubesvc_clouddriver::sources::Completeness;

/// Time limit for reading the credentials sources.
const SOURCES_TIMEOUT: Duration = Duration::from_secs(4);

/// What Clouddriver has of a name.
pub(super) struct Before {
    /// Whether it has a row, which a deletion removes.
    pub(super) has_row: bool,
    /// A source other than its table that has the name too.
    pub(super) elsewhere: Option<String>,
}

/// Reads what Clouddriver has of a name: from the sources, or, if those have not its table, from itself. An error says why
/// it cannot be known.
pub(super) async fn before(
    sources: &CredentialsSources,
    clouddriver: &dyn ClouddriverAccounts,
    name: &str,
) -> Result<Before, String> {
    let read = sources.read_now(SOURCES_TIMEOUT).await;
    let (tables, others): (Vec<_>, Vec<_>) =
        read.snapshots().iter().partition(|snapshot| sources.is_table(&snapshot.source));
    let elsewhere = others.iter().find(|other| other.has(name)).map(|other| other.source.to_string());
    let is_read = |table: &Completeness| !matches!(table, Completeness::Unread(_));
    let is_seen = tables.iter().any(|table| is_read(&table.completeness) && table.has(name));
    let is_sure = is_seen || (!tables.is_empty() && tables.iter().all(|table| table.gap().is_none()));
    let has_row = if is_sure {
        is_seen
    } else {
        is_stored(clouddriver, name).await.map_err(|failure| failure.message)?
    };
    Ok(Before { has_row, elsewhere })
}

/// Whether Clouddriver stores the account; or, if it does not show that, whether it lists it.
async fn is_stored(clouddriver: &dyn ClouddriverAccounts, name: &str) -> Result<bool, CallFailure> {
    match clouddriver.stored(name).await {
        Ok(Some(StoredAccount::Definition(_))) => Ok(true),
        Err(failure) if failure.kind == FailureKind::Unreachable => Err(failure),
        Ok(_) | Err(_) => Ok(clouddriver.loaded().await?.contains(name)),
    }
}
