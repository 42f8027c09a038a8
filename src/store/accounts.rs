//! The table `kubesvc_accounts`: the rows of accounts, each with its fence in `kubesvc_caching`, and rows of others.

use std::sync::Arc;

use async_trait::async_trait;

use super::dialect::Dialect;
use super::sql::driver::Driver as _;
use super::sql::session::{Session, SqlStore, Transaction};
use super::sql::statement::Statement;
use super::{ForeignRow, Malformed, StoreError, Term, fences, limits, now, terms};
use crate::account::row::AccountRow;

mod columns;
mod conflicts;
mod foreign;

pub(super) use columns::{ACCOUNTS, weight};
pub(super) use conflicts::ReplacedRows;
pub use foreign::VENDOR_TABLE;

/// Changes to be written together. A uid stands in it once, and so does a name among the rows.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// uids whose rows go, in all tables. They go first, so that their names are free. One without rows is no error.
    pub deletes: Vec<String>,
    /// Rows of `kubesvc_accounts`, each written as a whole, with its row in `kubesvc_caching` where there is none. A row
    /// of the same name with another uid of ours is replaced, together with what belonged to it; a row of the same name
    /// without a uid is not ours, and refused.
    pub puts: Vec<Arc<AccountRow>>,
    /// As `puts`, but each takes the place of a row of that name that is not ours, also in [`VENDOR_TABLE`]. One whose
    /// name a row with another uid has is refused.
    pub adopts: Vec<Arc<AccountRow>>,
    /// The leader's term that they are written under; absent: whoever writes is the only one.
    pub term: Option<Term>,
}

impl Changes {
    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.deletes.is_empty() && self.puts.is_empty() && self.adopts.is_empty()
    }
}

/// What `kubesvc_accounts` holds of ours.
#[derive(Clone, Debug, Default)]
pub struct StoredAccounts {
    /// The rows that can be read, by name.
    pub rows: Vec<AccountRow>,
    /// The rows that cannot: somebody wrote them by hand.
    pub malformed: Vec<Malformed>,
    /// uids of rows that have no row in `kubesvc_caching`, or one under another name.
    pub unfenced: Vec<String>,
    /// uids of rows in `kubesvc_caching` that no account has.
    pub stray_fences: Vec<String>,
}

/// The rows of accounts. Each method is one transaction.
#[async_trait]
pub trait AccountStore: Send + Sync {
    /// Writes all of these changes or none. [`StoreError::Refused`] if a single row of them is at fault; it does not
    /// always say which.
    async fn write(&self, changes: &Changes) -> Result<(), StoreError>;

    /// All rows of `kubesvc_accounts` that are ours (uid not NULL).
    async fn accounts(&self) -> Result<StoredAccounts, StoreError>;

    /// Rows of `kubesvc_accounts` that are not ours (uid NULL).
    async fn foreign(&self) -> Result<Vec<ForeignRow>, StoreError>;

    /// The rows of [`VENDOR_TABLE`], as far as they have columns that say something; none if there is no such table.
    async fn vendor(&self) -> Result<Vec<ForeignRow>, StoreError>;

    /// Writes rows of `kubesvc_accounts`; see [`Changes::puts`].
    async fn put_accounts(&self, rows: &[AccountRow]) -> Result<(), StoreError> {
        let puts = rows.iter().cloned().map(Arc::new).collect();
        self.write(&Changes { puts, ..Changes::default() }).await
    }

    /// Deletes every row of the account with this uid, in all tables. None is success.
    async fn delete_account(&self, uid: &str) -> Result<(), StoreError> {
        self.write(&Changes { deletes: vec![uid.to_owned()], ..Changes::default() }).await
    }
}

#[async_trait]
impl<D: Dialect> AccountStore for SqlStore<D> {
    async fn write(&self, changes: &Changes) -> Result<(), StoreError> {
        if changes.is_empty() {
            return Ok(());
        }
        limits::check(changes)?;
        self.transact(changes).await
    }

    async fn accounts(&self) -> Result<StoredAccounts, StoreError> {
        self.read(async |session| {
            let (unfenced, stray_fences) = fences::amiss(session).await?;
            let mut accounts = StoredAccounts { unfenced, stray_fences, ..StoredAccounts::default() };
            let select = Statement::new(&columns::select_ours());
            session.each(select, |row| columns::collect::<D>(row, &mut accounts)).await?;
            Ok(accounts)
        })
        .await
    }

    async fn foreign(&self) -> Result<Vec<ForeignRow>, StoreError> {
        self.read(async |session| foreign::foreign(session).await).await
    }

    async fn vendor(&self) -> Result<Vec<ForeignRow>, StoreError> {
        self.read(async |session| foreign::vendor(session).await).await
    }
}

impl<D: Dialect> Transaction<D> for Changes {
    type Answer = ();

    async fn run(&self, session: &mut Session<'_, D>) -> Result<(), StoreError> {
        terms::hold(session, self.term).await?;
        delete(session, &self.deletes).await?;
        put(session, &self.puts, ReplacedRows::Ours).await?;
        put(session, &self.adopts, ReplacedRows::Theirs).await?;
        foreign::leave_vendor(session, &self.adopts).await
    }
}

/// The order in which rows are written, on every database: two writers rarely wait for one another in a ring.
fn sorted(rows: &[Arc<AccountRow>]) -> Vec<&AccountRow> {
    let mut rows: Vec<&AccountRow> = rows.iter().map(AsRef::as_ref).collect();
    rows.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    rows
}

fn names<'r>(rows: &[&'r AccountRow]) -> Vec<&'r str> {
    rows.iter().map(|row| row.name.as_str()).collect()
}

fn uids<'r>(rows: &[&'r AccountRow]) -> Vec<&'r str> {
    rows.iter().map(|row| row.uid.as_str()).collect()
}

/// Deletes the rows of these uids, in all tables: what goes with them, and then the rows.
async fn delete<D: Dialect>(session: &mut Session<'_, D>, uids: &[String]) -> Result<(), StoreError> {
    let mut uids: Vec<&str> = uids.iter().map(String::as_str).collect();
    uids.sort_unstable();
    for piece in session.dialect.pieces(&uids, |_| 0) {
        session.execute(D::delete_assignments_of(piece)).await?;
        let fences = Statement::new("DELETE FROM kubesvc_caching WHERE account_uid ").one_of(piece);
        session.execute(fences).await?;
        let accounts = Statement::new("DELETE FROM kubesvc_accounts WHERE uid ").one_of(piece);
        session.execute(accounts).await?;
    }
    Ok(())
}

/// Writes rows, each as a whole. No name and no uid may stand among them twice.
async fn put<D: Dialect>(
    session: &mut Session<'_, D>,
    rows: &[Arc<AccountRow>],
    replaced: ReplacedRows,
) -> Result<(), StoreError> {
    let (rows, now) = (sorted(rows), now());
    for row in &rows {
        session.dialect.check_account(row)?;
    }
    for piece in session.dialect.pieces(&rows, |row| weight(row)) {
        D::make_way(session, piece, replaced).await?;
        let values: Vec<_> = piece.iter().map(|row| columns::values(row)).collect();
        session.execute(ACCOUNTS.upsert(&values, now)).await.map_err(|error| match piece {
            [row] => limits::of_row(row, error),
            _ => error,
        })?;
        fences::keep(session, piece, now).await?;
        if D::ROW_LOCK.is_some() {
            // Somebody else's row that came since it was looked was locked by the upsert, and left as it is.
            let select = Statement::new("SELECT name FROM kubesvc_accounts WHERE name ")
                .one_of(&names(piece))
                .text(" AND uid IS NULL");
            let foreign = session.all(select, |row| D::Database::text(row, 0)).await?;
            conflicts::not_ours(piece, &foreign.into_iter().flatten().collect::<Vec<_>>())?;
        }
    }
    Ok(())
}

/// Removes rows that stand in the way: of the name with another uid or none, or of the uid with another name. What may
/// not be taken the place of refuses these.
pub(super) async fn make_way<D: Dialect>(
    session: &mut Session<'_, D>,
    rows: &[&AccountRow],
    replaced: ReplacedRows,
) -> Result<(), StoreError> {
    let look = Statement::new("SELECT name, uid FROM kubesvc_accounts WHERE name ")
        .one_of(&names(rows))
        .text(" UNION ALL SELECT name, uid FROM kubesvc_accounts WHERE uid ")
        .one_of(&uids(rows));
    let held = session.all(look, |row| Ok((D::Database::text(row, 0)?, D::Database::text(row, 1)?))).await?;
    let way = conflicts::conflicting_rows(rows, held, replaced)?;
    delete(session, &way.uids).await?;
    for piece in session.dialect.pieces(&way.foreign, |_| 0) {
        let foreign =
            Statement::new("DELETE FROM kubesvc_accounts WHERE name ").one_of(piece).text(" AND uid IS NULL");
        session.execute(foreign).await?;
    }
    Ok(())
}
