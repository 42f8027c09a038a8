//! Which installation a database belongs to. Two installations on one database would each remove the rows of the other.

use kubesvc_core::Installation;

use super::migrations::Schema;
use super::{OpenOptions, StoreError};

/// The table with the owner.
pub(super) const TABLE: &str = "kubesvc_installation";

/// The installation that opens a database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstallationClaim {
    /// The installation.
    pub by: Installation,
    /// Whether the database becomes its own if it is that of another one.
    pub replaces: bool,
}

/// Returns the owner of the database.
///
/// # Errors
/// [`StoreError::Claimed`] if that is another installation than the one that opens it.
pub(super) async fn check<C: Schema>(
    connection: &mut C,
    database: &str,
    options: &OpenOptions,
    at_start: impl Fn(sqlx::Error) -> StoreError,
) -> Result<Option<Installation>, StoreError> {
    // An older version has no such table.
    if connection.columns_of(TABLE).await.map_err(&at_start)?.is_empty() {
        return Ok(None);
    }
    let owner = connection.owner().await.map_err(&at_start)?;
    match (&owner, &options.claim) {
        (Some(owner), Some(claim)) if owner.uid != claim.by.uid && !claim.replaces => {
            Err(StoreError::Claimed { database: database.to_owned(), owner: owner.clone() })
        }
        _ => Ok(owner),
    }
}

/// Records the installation that opens the database as its owner.
pub(super) async fn claim<C: Schema>(
    connection: &mut C,
    owner: Option<Installation>,
    options: &OpenOptions,
    at_start: impl Fn(sqlx::Error) -> StoreError,
) -> Result<(), StoreError> {
    let Some(claim) = &options.claim else { return Ok(()) };
    match owner {
        Some(owner) if owner == claim.by => return Ok(()),
        Some(_) => connection.run(format!("DELETE FROM {TABLE}")).await.map_err(&at_start)?,
        None => {}
    }
    connection.set_owner(&claim.by, super::now()).await.map_err(&at_start)
}
