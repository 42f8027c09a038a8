//! Copying the accounts of one database to another, of any kind.

use std::collections::HashSet;

use async_trait::async_trait;
use sqlx::{ColumnIndex, Decode, Row, Type};

use super::rows::TABLE;
use super::statements::Dialect;
use super::{Changes, Store, StoreError, VendorTables, open_adapter};

/// How many rows are written together.
const ROWS_PER_WRITE: usize = 500;

/// What was copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// Rows of kubesvc's.
    pub accounts: usize,
    /// Among them, those with a list of namespaces.
    pub namespaces: usize,
    /// Rows of somebody else's.
    pub others: usize,
    /// Rows of somebody else's that were left out: the target has a row of that name.
    pub others_there: usize,
    /// Rows of kubesvc's that cannot be read, and were left out.
    pub malformed: usize,
    /// Rows that were in the target and are deleted.
    pub deleted: usize,
}

/// Copies the rows of `kubesvc_accounts`, with namespaces, also those that are not kubesvc's, from one database to
/// another. Both schemas are brought up to date before. `progress` hears how many rows of how many are done.
///
/// A target that holds rows of kubesvc's is refused ([`StoreError::Unfit`]) unless they may be overwritten: then they
/// are deleted first. Assignments are not copied: they tell of streams, and there are none.
pub async fn copy(
    from: &str,
    to: &str,
    overwrite: bool,
    mut progress: impl FnMut(usize, usize),
) -> Result<Copied, StoreError> {
    let refuse = VendorTables::Refuse;
    let (from, to) = (open_adapter(from, refuse).await?, open_adapter(to, refuse).await?);
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
    let accounts = from.accounts().await?;
    let others = from.others().await?;
    let total = accounts.rows.len() + others.len();
    for chunk in uids.chunks(ROWS_PER_WRITE) {
        to.write(&Changes { deletes: chunk.to_vec(), ..Changes::default() }).await?;
        copied.deleted += chunk.len();
    }
    for row in &accounts.malformed {
        tracing::warn!(%row, "a row cannot be read and is left out");
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
    Ok(copied)
}

/// What copying needs of an adapter beyond the trait.
#[async_trait]
pub(super) trait Adapter: Store {
    /// All rows that are not ours, whole.
    async fn others(&self) -> Result<Vec<ForeignTableRow>, StoreError>;

    /// Inserts rows that are not ours, all or none. One whose name is there is refused.
    async fn put_others(&self, rows: &[ForeignTableRow]) -> Result<(), StoreError>;
}

const TEXTS: [&str; 12] = [
    "name",
    "status",
    "zone_id",
    "origin",
    "definition",
    "props",
    "kube_host",
    "kube_version",
    "cert_fingerprint",
    "cluster_uid",
    "namespaces",
    "error_message",
];

/// With PostgreSQL's way back from a bigint.
const NUMBERS: [(&str, &str); 9] = [
    ("is_dynamic", "::int::boolean"),
    ("max_watch_age_seconds", ""),
    ("namespaces_count", "::int"),
    ("failed_count", "::int"),
    ("next_retry_time", ""),
    ("generation", ""),
    ("observed_generation", ""),
    ("connections", "::int"),
    ("last_updated", ""),
];

/// A whole row of `kubesvc_accounts` that is not ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ForeignTableRow {
    pub(super) texts: Vec<Option<String>>,
    pub(super) numbers: Vec<Option<i64>>,
}

/// Selects all rows that are not ours, as [`read`] reads them.
pub(super) fn select(dialect: Dialect) -> String {
    let number = |column: &str| match dialect {
        Dialect::Sqlite => column.to_owned(),
        Dialect::MySql => format!("CAST({column} AS SIGNED)"),
        // A boolean has no way to a bigint but over an int.
        Dialect::Postgres if column == "is_dynamic" => format!("{column}::int::bigint"),
        Dialect::Postgres => format!("{column}::bigint"),
    };
    let numbers: Vec<String> = NUMBERS.iter().map(|(column, _)| number(column)).collect();
    format!("SELECT {},{} FROM {TABLE} WHERE uid IS NULL ORDER BY name", TEXTS.join(","), numbers.join(","))
}

/// Inserts one row that is not ours.
pub(super) fn insert(dialect: Dialect) -> String {
    let columns: Vec<&str> = TEXTS.into_iter().chain(NUMBERS.map(|(column, _)| column)).collect();
    let values: Vec<String> = match dialect {
        Dialect::Postgres => (1..)
            .zip([""; TEXTS.len()].into_iter().chain(NUMBERS.map(|(_, back)| back)))
            .map(|(at, back)| if back.is_empty() { format!("${at}") } else { format!("${at}::bigint{back}") })
            .collect(),
        _ => vec!["?".to_owned(); columns.len()],
    };
    format!("INSERT INTO {TABLE} ({}) VALUES ({})", columns.join(","), values.join(","))
}

/// A row that [`select`] gave.
pub(super) fn read<'r, R>(row: &'r R) -> Result<ForeignTableRow, sqlx::Error>
where
    R: Row,
    usize: ColumnIndex<R>,
    String: Decode<'r, R::Database> + Type<R::Database>,
    i64: Decode<'r, R::Database> + Type<R::Database>,
{
    let texts = (0..TEXTS.len()).map(|column| row.try_get(column)).collect::<Result<_, _>>()?;
    let numbers =
        (0..NUMBERS.len()).map(|column| row.try_get(TEXTS.len() + column)).collect::<Result<_, _>>()?;
    Ok(ForeignTableRow { texts, numbers })
}

/// Implements [`Adapter`] for an adapter, given how it reads and writes.
macro_rules! adapter {
    ($adapter:ident, $dialect:expr, $reader:ident, $writer:ident, $settle:ident) => {
        #[async_trait::async_trait]
        impl $crate::store::copying::Adapter for $adapter {
            async fn others(&self) -> Result<Vec<$crate::store::copying::ForeignTableRow>, StoreError> {
                let mut connection = self.$reader().await?;
                let sql = $crate::store::copying::select($dialect);
                let rows = sqlx::query(sqlx::AssertSqlSafe(sql)).fetch_all(&mut *connection).await;
                let result = rows
                    .and_then(|rows| {
                        rows.iter().map($crate::store::copying::read).collect::<Result<Vec<_>, _>>()
                    })
                    .map_err(errors::classify);
                self.$settle(connection, &result);
                result
            }

            async fn put_others(
                &self,
                rows: &[$crate::store::copying::ForeignTableRow],
            ) -> Result<(), StoreError> {
                let mut connection = self.$writer().await?;
                let sql = $crate::store::copying::insert($dialect);
                let result: Result<(), sqlx::Error> = async {
                    let mut transaction = connection.begin().await?;
                    for row in rows {
                        let mut query = sqlx::query(sqlx::AssertSqlSafe(sql.clone()));
                        for text in &row.texts {
                            query = query.bind(text.as_deref());
                        }
                        for number in &row.numbers {
                            query = query.bind(*number);
                        }
                        query.execute(&mut *transaction).await?;
                    }
                    transaction.commit().await
                }
                .await;
                let result = result.map_err(errors::classify);
                self.$settle(connection, &result);
                result
            }
        }
    };
}
pub(super) use adapter;

#[cfg(test)]
mod tests;
