//! Copies the accounts of one database to another, also between different kinds.

use std::collections::HashSet;

use async_trait::async_trait;

use super::accounts::ACCOUNTS;
use super::dialect::Dialect;
use super::pushed::{PushedRow, ReplacePushed};
use super::sql::driver::Driver as _;
use super::sql::statement::{ColumnType, Statement};
use super::sql::{RowOf, SqlSession, SqlStore, Transaction};
use super::{AccountChanges, Store, StoreError, VendorTables, open_database};

/// Maximum number of rows in one write.
const ROWS_PER_WRITE: usize = 500;

/// Result of a copy, in numbers of rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// kubesvc's own rows.
    pub accounts: usize,
    /// Those of `accounts` that have a list of namespaces.
    pub namespaces: usize,
    /// Foreign rows.
    pub others: usize,
    /// Foreign rows that were skipped because the target has a row of that name.
    pub others_there: usize,
    /// kubesvc's own rows that were skipped because they cannot be read.
    pub malformed: usize,
    /// Rows of accounts deleted from the target.
    pub deleted: usize,
    /// Rows of `kubesvc_pushed`.
    pub pushed: usize,
}

/// Copies all rows of `kubesvc_accounts`, foreign rows included, with their namespaces, and all of `kubesvc_pushed` from
/// one database to another, after migrating both schemas to the current version. `progress` receives the number of
/// accounts done and the total.
///
/// Assignments are not copied: they describe streams, and the target has none.
///
/// # Errors
///
/// [`StoreError::Unfit`] if the target holds rows of kubesvc in one of these tables and `overwrite` is false. With
/// `overwrite` they are replaced.
pub async fn copy(
    from: &str,
    to: &str,
    overwrite: bool,
    mut progress: impl FnMut(usize, usize),
) -> Result<Copied, StoreError> {
    let refuse = VendorTables::Refuse;
    let (from, to) = (open_database(from, refuse).await?, open_database(to, refuse).await?);
    let mut copied = Copied::default();
    let held = to.accounts().await?;
    let uids: Vec<String> = held.rows.into_iter().map(|row| row.uid).collect();
    let uids: Vec<String> =
        uids.into_iter().chain(held.malformed.into_iter().filter_map(|row| row.uid)).collect();
    if !uids.is_empty() && !overwrite {
        return Err(StoreError::Unfit(format!(
            "the target already holds {} accounts of kubesvc's: give an empty database, or --overwrite to replace them",
            uids.len()
        )));
    }
    let held = to.pushed().await?.len();
    if held > 0 && !overwrite {
        return Err(StoreError::Unfit(format!(
            "the target already knows {held} accounts that kubesvc registered in Clouddriver: give an empty database, or \
             --overwrite to replace them"
        )));
    }
    let accounts = from.accounts().await?;
    let others = from.others().await?;
    let total = accounts.rows.len() + others.len();
    for chunk in uids.chunks(ROWS_PER_WRITE) {
        to.write(&AccountChanges { deletes: chunk.to_vec(), ..AccountChanges::default() }).await?;
        copied.deleted += chunk.len();
    }
    for row in &accounts.malformed {
        tracing::warn!(%row, "skipped a row that cannot be read");
        copied.malformed += 1;
    }
    for chunk in accounts.rows.chunks(ROWS_PER_WRITE) {
        to.put_accounts(chunk).await?;
        for row in chunk {
            if let Some(list) = from.namespaces(&row.name).await? {
                to.put_namespaces(&row.uid, &list).await?;
                copied.namespaces += 1;
            }
            copied.accounts += 1;
            progress(copied.accounts, total);
        }
    }
    let there: HashSet<String> = to.foreign().await?.into_iter().map(|row| row.name).collect();
    let is_there = |row: &ForeignTableRow| {
        row.texts.first().is_some_and(|name| name.as_ref().is_some_and(|name| there.contains(name)))
    };
    let (kept, missing): (Vec<ForeignTableRow>, Vec<ForeignTableRow>) =
        others.into_iter().partition(is_there);
    copied.others_there = kept.len();
    for chunk in missing.chunks(ROWS_PER_WRITE) {
        to.put_others(chunk).await?;
        copied.others += chunk.len();
        progress(copied.accounts + copied.others_there + copied.others, total);
    }
    let pushed = from.pushed().await?;
    to.replace_pushed(&pushed).await?;
    copied.pushed = pushed.len();
    // What is not settled yet is settled by the operator on the new database.
    to.end_intents(&to.intents().await?).await?;
    to.begin_intents(&from.intents().await?).await?;
    Ok(copied)
}

/// What copying needs from a database beyond [`Store`].
#[async_trait]
pub(super) trait ForeignRowStore: Store {
    /// All foreign rows, with every column.
    async fn others(&self) -> Result<Vec<ForeignTableRow>, StoreError>;

    /// Inserts foreign rows, all or none. Refused if a row of the same name exists.
    async fn put_others(&self, rows: &[ForeignTableRow]) -> Result<(), StoreError>;

    /// Makes these the rows of `kubesvc_pushed`, in one transaction.
    async fn replace_pushed(&self, rows: &[PushedRow]) -> Result<(), StoreError>;
}

/// The columns of a foreign row with a text, beginning with its name.
fn texts() -> impl Iterator<Item = &'static str> {
    let texts = ACCOUNTS.columns.iter().filter(|(column, of)| is_text(*of) && Some(*column) != ACCOUNTS.ours);
    texts.map(|(column, _)| *column).chain(["namespaces"])
}

/// The other columns of a foreign row.
fn numbers() -> impl Iterator<Item = (&'static str, ColumnType)> {
    let numbers = ACCOUNTS.columns.iter().filter(|(_, of)| !is_text(*of)).copied();
    numbers.chain([("connections", ColumnType::Int), ("last_updated", ColumnType::Bigint)])
}

fn is_text(of: ColumnType) -> bool {
    matches!(of, ColumnType::Text | ColumnType::Varchar(_))
}

/// A foreign row of `kubesvc_accounts`, with every column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ForeignTableRow {
    pub(super) texts: Vec<Option<String>>,
    pub(super) numbers: Vec<Option<i64>>,
}

/// Selects all foreign rows, in the column order of [`read`].
fn select<D: Dialect>() -> String {
    let columns: Vec<String> =
        texts().map(str::to_owned).chain(numbers().map(|(column, of)| D::as_bigint(column, of))).collect();
    format!("SELECT {} FROM kubesvc_accounts WHERE uid IS NULL ORDER BY name", columns.join(","))
}

/// Inserts one foreign row.
fn insert<D: Dialect>() -> String {
    let columns: Vec<&str> = texts().chain(numbers().map(|(column, _)| column)).collect();
    let values: Vec<&str> = texts().map(|_| "?").chain(numbers().map(|(_, of)| D::from_bigint(of))).collect();
    format!("INSERT INTO kubesvc_accounts ({}) VALUES ({})", columns.join(","), values.join(","))
}

fn read<D: Dialect>(row: &RowOf<D>) -> Result<ForeignTableRow, sqlx::Error> {
    let count = texts().count();
    let texts = (0..count).map(|column| D::Database::text(row, column));
    let numbers = (count..count + numbers().count()).map(|column| D::Database::bigint(row, column));
    Ok(ForeignTableRow {
        texts: texts.collect::<Result<_, _>>()?,
        numbers: numbers.collect::<Result<_, _>>()?,
    })
}

#[async_trait]
impl<D: Dialect> ForeignRowStore for SqlStore<D> {
    async fn others(&self) -> Result<Vec<ForeignTableRow>, StoreError> {
        self.read(async |session| session.all(Statement::new(&select::<D>()), read::<D>).await).await
    }

    async fn put_others(&self, rows: &[ForeignTableRow]) -> Result<(), StoreError> {
        self.transact(&Insert(rows)).await
    }

    async fn replace_pushed(&self, rows: &[PushedRow]) -> Result<(), StoreError> {
        self.transact(&ReplacePushed(rows)).await
    }
}

struct Insert<'r>(&'r [ForeignTableRow]);

impl<D: Dialect> Transaction<D> for Insert<'_> {
    type Answer = ();

    async fn run(&self, session: &mut SqlSession<'_, D>) -> Result<(), StoreError> {
        let sql = insert::<D>();
        for row in self.0 {
            let texts = row.texts.iter().map(|text| text.as_deref().into());
            let numbers = row.numbers.iter().map(|number| (*number).into());
            session.execute(Statement::new(&sql).bind_all(texts).bind_all(numbers)).await?;
        }
        Ok(())
    }
}
