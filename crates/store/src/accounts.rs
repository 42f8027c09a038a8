//! The table `kubesvc_accounts`: kubesvc's own rows, each with its fence in `kubesvc_caching`, and foreign rows.

use std::sync::Arc;

use async_trait::async_trait;

use super::cache::scopes;
use super::dialect::Dialect;
use super::sql::columns::{FromColumns as _, columns, table, weight};
use super::sql::driver::Driver as _;
use super::sql::statement::Statement;
use super::sql::{RowOf, SqlSession, SqlStore, Transaction};
use super::{ForeignRow, Malformed, StoreError, Term, column_limits, fences, leader_terms, now};
use kubesvc_core::account_row::AccountRow;

pub(super) mod foreign_rows;

pub(super) use foreign_rows::ReplacedRows;
pub use foreign_rows::VENDOR_TABLE;

/// Changes to write in one transaction. Each uid appears once, and each name appears once among the rows.
#[derive(Clone, Debug, Default)]
pub struct AccountChanges {
    /// uids whose rows are deleted from all tables. Deletes run first, to free their names. A uid without rows is not
    /// an error.
    pub deletes: Vec<String>,
    /// Rows of `kubesvc_accounts`, each written whole, with a row in `kubesvc_caching` if it has none. A row of
    /// kubesvc with the same name and another uid is replaced, together with its dependent rows. A row of the same
    /// name without a uid is foreign, and the put is refused.
    pub puts: Vec<Arc<AccountRow>>,
    /// Like `puts`, but each row replaces a foreign row of that name, also in [`VENDOR_TABLE`]. Refused if a row with
    /// another uid has the name.
    pub adopts: Vec<Arc<AccountRow>>,
    /// uids among `deletes` whose cached objects stay, for the next account of their name. The scopes of the others
    /// are removed in the same transaction, and their objects swept later.
    pub kept_objects: Vec<String>,
    /// The leader's term to check the write against; `None` if this process is the only writer.
    pub term: Option<Term>,
}

impl AccountChanges {
    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.deletes.is_empty() && self.puts.is_empty() && self.adopts.is_empty()
    }
}

/// kubesvc's own rows in `kubesvc_accounts`, and what is wrong with them.
#[derive(Clone, Debug, Default)]
pub struct StoredAccounts {
    /// Rows that can be read, by name.
    pub rows: Vec<AccountRow>,
    /// Rows that cannot be read, because someone edited them by hand.
    pub malformed: Vec<Malformed>,
    /// uids of rows without a row in `kubesvc_caching`, or with one under another name.
    pub unfenced: Vec<String>,
    /// uids of rows in `kubesvc_caching` that no account has.
    pub stray_fences: Vec<String>,
}

/// The rows of accounts. Each method is one transaction.
#[async_trait]
pub trait AccountStore: Send + Sync {
    /// Writes all of these changes or none. Returns [`StoreError::Refused`] if any row is invalid; the error does not
    /// always name the row.
    async fn write(&self, changes: &AccountChanges) -> Result<(), StoreError>;

    /// All rows of `kubesvc_accounts` that kubesvc owns (uid not NULL).
    async fn accounts(&self) -> Result<StoredAccounts, StoreError>;

    /// The foreign rows of `kubesvc_accounts` (uid NULL).
    async fn foreign(&self) -> Result<Vec<ForeignRow>, StoreError>;

    /// The rows of [`VENDOR_TABLE`], reduced to the columns kubesvc understands; empty if the table does not exist.
    async fn vendor(&self) -> Result<Vec<ForeignRow>, StoreError>;

    /// Writes rows of `kubesvc_accounts`; see [`AccountChanges::puts`].
    async fn put_accounts(&self, rows: &[AccountRow]) -> Result<(), StoreError> {
        let puts = rows.iter().cloned().map(Arc::new).collect();
        self.write(&AccountChanges { puts, ..AccountChanges::default() }).await
    }
}

#[async_trait]
impl<D: Dialect> AccountStore for SqlStore<D> {
    async fn write(&self, changes: &AccountChanges) -> Result<(), StoreError> {
        if changes.is_empty() {
            return Ok(());
        }
        column_limits::check(changes)?;
        self.transact(changes).await
    }

    async fn accounts(&self) -> Result<StoredAccounts, StoreError> {
        self.read(async |session| {
            let (unfenced, stray_fences) = fences::amiss(session).await?;
            let mut accounts = StoredAccounts { unfenced, stray_fences, ..StoredAccounts::default() };
            let select = Statement::new(&select_ours());
            session.each(select, |row| collect::<D>(row, &mut accounts)).await?;
            Ok(accounts)
        })
        .await
    }

    async fn foreign(&self) -> Result<Vec<ForeignRow>, StoreError> {
        self.read(async |session| foreign_rows::foreign(session).await).await
    }

    async fn vendor(&self) -> Result<Vec<ForeignRow>, StoreError> {
        self.read(async |session| foreign_rows::vendor(session).await).await
    }
}

impl<D: Dialect> Transaction<D> for AccountChanges {
    type Answer = ();

    async fn run(&self, session: &mut SqlSession<'_, D>) -> Result<(), StoreError> {
        leader_terms::hold(session, self.term).await?;
        delete(session, &self.deletes, &self.kept_objects).await?;
        put(session, &self.puts, ReplacedRows::Ours).await?;
        put(session, &self.adopts, ReplacedRows::Theirs).await?;
        foreign_rows::leave_vendor(session, &self.adopts).await
    }
}

/// Sorts rows into the order in which every database writes them, so that two writers rarely deadlock.
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

/// Deletes the rows of these uids from all tables: the dependent rows first, then the accounts. Their cached objects
/// are left to be swept, except those of the uids in `kept_objects`.
async fn delete<D: Dialect>(
    session: &mut SqlSession<'_, D>,
    uids: &[String],
    kept_objects: &[String],
) -> Result<(), StoreError> {
    let (mut uids, now): (Vec<&str>, _) = (uids.iter().map(String::as_str).collect(), now());
    uids.sort_unstable();
    for piece in session.dialect.pieces(&uids, |_| 0) {
        session.execute(D::delete_assignments_of(piece)).await?;
        let fences = Statement::new("DELETE FROM kubesvc_caching WHERE account_uid ").one_of(piece);
        session.execute(fences).await?;
        let is_swept = |uid: &&str| !kept_objects.iter().any(|kept| kept == uid);
        let swept: Vec<&str> = piece.iter().copied().filter(is_swept).collect();
        if !swept.is_empty() {
            scopes::mark_removed(session, &swept, now).await?;
        }
        let accounts = Statement::new("DELETE FROM kubesvc_accounts WHERE uid ").one_of(piece);
        session.execute(accounts).await?;
    }
    Ok(())
}

/// Writes rows, each whole. No name and no uid may appear twice.
async fn put<D: Dialect>(
    session: &mut SqlSession<'_, D>,
    rows: &[Arc<AccountRow>],
    replaced: ReplacedRows,
) -> Result<(), StoreError> {
    let (rows, now) = (sorted(rows), now());
    for row in &rows {
        session.dialect.check_account(row)?;
    }
    for piece in session.dialect.pieces(&rows, |row| weight(&values(row))) {
        D::make_way(session, piece, replaced).await?;
        let upsert = ACCOUNTS.upsert(&piece.iter().map(|row| values(row)).collect::<Vec<_>>(), now);
        session.execute(upsert).await.map_err(|error| match piece {
            [row] => column_limits::of_row(row, error),
            _ => error,
        })?;
        fences::keep(session, piece, now).await?;
        if D::ROW_LOCK.is_some() {
            // The upsert locked a foreign row inserted since `make_way` looked, and left it unchanged.
            let select = Statement::new("SELECT name FROM kubesvc_accounts WHERE name ")
                .one_of(&names(piece))
                .text(" AND uid IS NULL");
            foreign_rows::not_ours(piece, &session.select(select).await?)?;
        }
    }
    Ok(())
}

/// Deletes conflicting rows: those with one of these names and another uid or none, and those with one of these uids
/// and another name. Returns an error if `replaced` does not allow a row to be replaced.
pub(super) async fn make_way<D: Dialect>(
    session: &mut SqlSession<'_, D>,
    rows: &[&AccountRow],
    replaced: ReplacedRows,
) -> Result<(), StoreError> {
    let select = Statement::new("SELECT name, uid FROM kubesvc_accounts WHERE name ")
        .one_of(&names(rows))
        .text(" UNION ALL SELECT name, uid FROM kubesvc_accounts WHERE uid ")
        .one_of(&uids(rows));
    let way = foreign_rows::conflicting_rows(rows, session.select(select).await?, replaced)?;
    delete(session, &way.uids, &[]).await?;
    for piece in session.dialect.pieces(&way.foreign, |_| 0) {
        let foreign =
            Statement::new("DELETE FROM kubesvc_accounts WHERE name ").one_of(piece).text(" AND uid IS NULL");
        session.execute(foreign).await?;
    }
    Ok(())
}

table! {
    /// `kubesvc_accounts`, with the columns of an [`AccountRow`].
    pub(super) const ACCOUNTS = "kubesvc_accounts", key &["name"], ours Some("uid");
    pub(super) fn values<'r>(row: &'r AccountRow) {
        name: Varchar(255) = &row.name,
        uid: Varchar(36) = &row.uid,
        status: Varchar(32) = &row.status,
        zone_id: Varchar(255) = &row.zone_id,
        is_dynamic: Boolean = row.is_dynamic,
        origin: Varchar(16) = &row.origin,
        definition: Text = &row.definition,
        props: Text = &row.props,
        kube_host: Varchar(512) = &row.kube_host,
        kube_version: Varchar(64) = &row.kube_version,
        cert_fingerprint: Varchar(128) = &row.cert_fingerprint,
        cluster_uid: Varchar(36) = &row.cluster_uid,
        max_watch_age_seconds: Bigint = row.max_watch_age_seconds,
        namespaces_count: Int = row.namespaces_count,
        error_message: Varchar(2048) = &row.error_message,
        failed_count: Int = row.failed_count,
        next_retry_time: Bigint = row.next_retry_time,
        generation: Bigint = row.generation,
        observed_generation: Bigint = row.observed_generation,
    }
}

columns! {
    AccountRow: name, uid, status, zone_id, is_dynamic, origin, definition, props, kube_host, kube_version,
    cert_fingerprint, cluster_uid, max_watch_age_seconds, namespaces_count, error_message, failed_count,
    next_retry_time, generation, observed_generation
}

/// Selects all rows that kubesvc owns.
fn select_ours() -> String {
    format!(
        "SELECT {} FROM {} WHERE uid IS NOT NULL ORDER BY name",
        ACCOUNTS.column_names().join(","),
        ACCOUNTS.name
    )
}

/// The column of a row from [`select_ours`] that cannot be read, and why.
fn column_fault(error: sqlx::Error) -> (&'static str, String) {
    match error {
        sqlx::Error::ColumnDecode { index, source } => {
            let column = index.parse().ok().and_then(|index: usize| ACCOUNTS.columns.get(index));
            (column.map_or("", |(column, _)| column), source.to_string())
        }
        error => ("", error.to_string()),
    }
}

/// Adds a row from [`select_ours`] to `accounts`: readable ones to `rows`, others to `malformed`.
fn collect<D: Dialect>(row: &RowOf<D>, accounts: &mut StoredAccounts) {
    match AccountRow::from_columns::<D::Database>(row) {
        Ok(account) => accounts.rows.push(account),
        Err(error) => {
            let (column, why) = column_fault(error);
            accounts.malformed.push(Malformed {
                table: ACCOUNTS.name,
                name: D::readable_name(row),
                uid: D::Database::text(row, 1).ok().flatten(),
                column: column.to_owned(),
                why,
            });
        }
    }
}
