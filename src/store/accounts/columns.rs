//! The columns of `kubesvc_accounts`, as every database reads and writes them.

use crate::account::row::AccountRow;
use crate::store::dialect::Dialect;
use crate::store::sql::driver::{ColumnValue, Value};
use crate::store::sql::session::RowOf;
use crate::store::sql::table::ColumnType::{Bigint, Boolean, Int, Text};
use crate::store::sql::table::SqlTable;
use crate::store::{Malformed, StoredAccounts};

/// The columns of an [`AccountRow`], in the order of [`values`] and [`read`].
pub(in crate::store) const ACCOUNTS: SqlTable = SqlTable {
    name: "kubesvc_accounts",
    key: &["name"],
    columns: &[
        ("name", Text),
        ("uid", Text),
        ("status", Text),
        ("zone_id", Text),
        ("is_dynamic", Boolean),
        ("origin", Text),
        ("definition", Text),
        ("props", Text),
        ("kube_host", Text),
        ("kube_version", Text),
        ("cert_fingerprint", Text),
        ("cluster_uid", Text),
        ("max_watch_age_seconds", Bigint),
        ("namespaces_count", Int),
        ("error_message", Text),
        ("failed_count", Int),
        ("next_retry_time", Bigint),
        ("generation", Bigint),
        ("observed_generation", Bigint),
    ],
    ours: Some("uid"),
};

/// A row's values, in the order of the columns.
pub(super) fn values(row: &AccountRow) -> Vec<Value<'_>> {
    vec![
        row.name.as_str().into(),
        row.uid.as_str().into(),
        row.status.as_str().into(),
        row.zone_id.as_deref().into(),
        row.is_dynamic.into(),
        row.origin.as_str().into(),
        row.definition.as_str().into(),
        row.props.as_str().into(),
        row.kube_host.as_deref().into(),
        row.kube_version.as_deref().into(),
        row.cert_fingerprint.as_deref().into(),
        row.cluster_uid.as_deref().into(),
        row.max_watch_age_seconds.into(),
        row.namespaces_count.into(),
        row.error_message.as_deref().into(),
        row.failed_count.into(),
        row.next_retry_time.into(),
        row.generation.into(),
        row.observed_generation.into(),
    ]
}

/// Selects all rows that kubesvc owns.
pub(super) fn select_ours() -> String {
    format!(
        "SELECT {} FROM {} WHERE uid IS NOT NULL ORDER BY name",
        ACCOUNTS.column_names().join(","),
        ACCOUNTS.name
    )
}

/// The approximate size of a row in a statement, in bytes.
pub(in crate::store) fn weight(row: &AccountRow) -> usize {
    const NUMBERS_BYTES: usize = 256;
    let texts = [&row.name, &row.uid, &row.status, &row.origin, &row.definition, &row.props];
    let maybe = [
        &row.zone_id,
        &row.kube_host,
        &row.kube_version,
        &row.cert_fingerprint,
        &row.cluster_uid,
        &row.error_message,
    ];
    NUMBERS_BYTES
        + texts.into_iter().map(String::len).sum::<usize>()
        + maybe.into_iter().flatten().map(String::len).sum::<usize>()
}

type ColumnFault = (&'static str, String);

fn get<D: Dialect, T: ColumnValue>(row: &RowOf<D>, column: usize) -> Result<T, ColumnFault> {
    // A driver may decode NULL as an empty text or as zero.
    maybe::<D, T>(row, column)?.ok_or_else(|| (ACCOUNTS.columns[column].0, "it is NULL".to_owned()))
}

fn maybe<D: Dialect, T: ColumnValue>(row: &RowOf<D>, column: usize) -> Result<Option<T>, ColumnFault> {
    T::read::<D::Database>(row, column).map_err(|error| {
        let why = match error {
            sqlx::Error::ColumnDecode { source, .. } => source.to_string(),
            error => error.to_string(),
        };
        (ACCOUNTS.columns[column].0, why)
    })
}

fn read<D: Dialect>(row: &RowOf<D>) -> Result<AccountRow, ColumnFault> {
    Ok(AccountRow {
        name: get::<D, _>(row, 0)?,
        uid: get::<D, _>(row, 1)?,
        status: get::<D, _>(row, 2)?,
        zone_id: maybe::<D, _>(row, 3)?,
        is_dynamic: get::<D, _>(row, 4)?,
        origin: get::<D, _>(row, 5)?,
        definition: get::<D, _>(row, 6)?,
        props: get::<D, _>(row, 7)?,
        kube_host: maybe::<D, _>(row, 8)?,
        kube_version: maybe::<D, _>(row, 9)?,
        cert_fingerprint: maybe::<D, _>(row, 10)?,
        cluster_uid: maybe::<D, _>(row, 11)?,
        max_watch_age_seconds: get::<D, _>(row, 12)?,
        namespaces_count: maybe::<D, _>(row, 13)?,
        error_message: maybe::<D, _>(row, 14)?,
        failed_count: get::<D, _>(row, 15)?,
        next_retry_time: maybe::<D, _>(row, 16)?,
        generation: get::<D, _>(row, 17)?,
        observed_generation: get::<D, _>(row, 18)?,
    })
}

/// Adds a row from [`select_ours`] to `accounts`: readable ones to `rows`, others to `malformed`.
pub(super) fn collect<D: Dialect>(row: &RowOf<D>, accounts: &mut StoredAccounts) {
    match read::<D>(row) {
        Ok(account) => accounts.rows.push(account),
        Err((column, why)) => accounts.malformed.push(Malformed {
            table: ACCOUNTS.name,
            name: D::readable_name(row),
            uid: String::read::<D::Database>(row, 1).ok().flatten(),
            column: column.to_owned(),
            why,
        }),
    }
}
