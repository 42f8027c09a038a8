//! The statements on `kubesvc_caching`.

use sqlx::postgres::PgConnection;

use super::errors::classify;
use crate::account::row::AccountRow;
use crate::store::StoreError;
use crate::store::fences::{fences, keeping};
use crate::store::server::bounded;

fences! { PgConnection, "$1" "$2" "$3" "$4" "$5" "$6" "$7" "$8", bounded, classify }

const LOOK: &str = "SELECT account_uid, account FROM kubesvc_caching WHERE account_uid = ANY($1) UNION \
                    SELECT account_uid, account FROM kubesvc_caching WHERE account = ANY($2)";

const DELETE: &str = "DELETE FROM kubesvc_caching WHERE account_uid = ANY($1)";

const INSERT: &str = "INSERT INTO kubesvc_caching (account_uid, account, epoch, last_updated) \
                      SELECT uid, name, 0, $3 FROM unnest($1::text[], $2::text[]) AS r(uid, name)";

/// Sees that each of these accounts has a fence under its name.
pub(super) async fn keep(
    connection: &mut PgConnection,
    rows: &[&AccountRow],
    now: i64,
) -> Result<(), StoreError> {
    let uids: Vec<_> = rows.iter().map(|row| row.uid.as_str()).collect();
    let names: Vec<_> = rows.iter().map(|row| row.name.as_str()).collect();
    let look = sqlx::query_as(LOOK).bind(uids).bind(names).fetch_all(&mut *connection);
    let keeping = keeping(rows, bounded(look, classify).await?);
    if !keeping.deletes.is_empty() {
        bounded(sqlx::query(DELETE).bind(&keeping.deletes).execute(&mut *connection), classify).await?;
    }
    if !keeping.inserts.is_empty() {
        let (uids, names): (Vec<&str>, Vec<&str>) = keeping.inserts.iter().copied().unzip();
        let insert = sqlx::query(INSERT).bind(uids).bind(names).bind(now).execute(connection);
        bounded(insert, classify).await?;
    }
    Ok(())
}
