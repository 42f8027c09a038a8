//! The MySQL and MariaDB dialect: texts are compared byte by byte except for trailing spaces, and the server accepts
//! at most `max_allowed_packet` bytes at once.

use std::sync::atomic::Ordering;

use sqlx::mysql::{MySql as Db, MySqlQueryResult};

use super::{MySql, errors};
use crate::account::row::AccountRow;
use crate::store::accounts::weight;
use crate::store::dialect::Dialect;
use crate::store::sql::batches;
use crate::store::sql::driver::Value;
use crate::store::sql::statement::{Statement, marks, tuples};
use crate::store::sql::table::{ColumnType, SqlTable};
use crate::store::{Assignment, StoreError, limits};

impl MySql {
    /// Maximum size of a packet that the server accepts, in bytes.
    fn packet(&self) -> usize {
        self.packet.load(Ordering::Relaxed)
    }
}

impl Dialect for MySql {
    type Database = Db;

    const ROW_LOCK: Option<&'static str> = Some("FOR UPDATE");
    const INSERT_LEADER: &'static str = "INSERT IGNORE INTO kubesvc_locks (name) VALUES ('leader')";

    fn classify(error: sqlx::Error) -> StoreError {
        errors::classify(error)
    }

    fn rows_affected(done: &MySqlQueryResult) -> u64 {
        done.rows_affected()
    }

    fn pieces<'i, T>(&self, items: &'i [T], weigh: impl Fn(&T) -> usize) -> Vec<&'i [T]> {
        batches::pieces(items, weigh, self.packet() / 4).collect()
    }

    fn check_account(&self, row: &AccountRow) -> Result<(), StoreError> {
        if row.name.ends_with(' ') {
            let why = "its name ends with a space, and MySQL takes it for the name without";
            return Err(limits::refused(row, why));
        }
        // The server would close the connection.
        if weight(row) > self.packet() - self.packet() / 8 {
            return Err(limits::refused(row, "it is larger than the server's max_allowed_packet"));
        }
        Ok(())
    }

    fn check_assignment(row: &Assignment, replica_id: &str) -> Result<(), StoreError> {
        if [row.account_name.as_str(), &row.agent_id, replica_id].iter().any(|key| key.ends_with(' ')) {
            return Err(StoreError::refused(
                format!(
                    "kubesvc_assignments row {:?}, {:?} of replica {replica_id:?}",
                    row.account_name, row.agent_id
                ),
                "one of its keys ends with a space, and MySQL takes it for the key without",
            ));
        }
        Ok(())
    }

    fn pairs(statement: Statement<Self>, pairs: &[(String, String)]) -> Statement<Self> {
        let statement = statement.text(&format!("({})", tuples(pairs.len(), 2)));
        statement
            .bind_all(pairs.iter().flat_map(|(one, other)| [one, other]).map(|key| Value::from(key.as_str())))
    }

    fn text_is_one_of(statement: Statement<Self>, column: &str, texts: &[&str]) -> Statement<Self> {
        let marks = vec!["CAST(? AS BINARY)"; texts.len()].join(",");
        let statement = statement.text(&format!("CAST({} AS BINARY) IN ({marks})", Self::as_text(column)));
        statement.bind_all(texts.iter().map(|text| Value::from(*text)))
    }

    fn name_is(statement: Statement<Self>, name: &str) -> Statement<Self> {
        statement.text("name = ? AND CAST(name AS BINARY) = CAST(? AS BINARY)").bind(name).bind(name)
    }

    fn same_as_parameter(column: &str) -> String {
        format!("CAST({column} AS BINARY) <=> CAST(? AS BINARY)")
    }

    fn as_text(column: &str) -> String {
        format!("CONVERT(`{column}` USING utf8mb4)")
    }

    fn as_bigint(column: &str, _: ColumnType) -> String {
        format!("CAST({column} AS SIGNED)")
    }

    fn write_over(table: &SqlTable) -> String {
        table.on_duplicate_key()
    }

    fn delete_assignments_of(uids: &[&str]) -> Statement<Self> {
        Statement::new(
            "DELETE s FROM kubesvc_assignments s JOIN kubesvc_accounts a ON s.account_name = a.name WHERE a.uid ",
        )
        .one_of(uids)
    }

    fn count_connections(names: &[&str], now: i64) -> Statement<Self> {
        let marks = marks(names.len());
        let values = || names.iter().map(|name| Value::from(*name));
        Statement::new(&format!(
            "UPDATE kubesvc_accounts a LEFT JOIN (SELECT account_name, COUNT(DISTINCT agent_id) AS held \
             FROM kubesvc_assignments WHERE reachable AND account_name IN ({marks}) GROUP BY account_name) h \
             ON h.account_name = a.name SET a.connections = COALESCE(h.held, 0), a.last_updated = ? \
             WHERE a.name IN ({marks}) AND a.uid IS NOT NULL AND a.connections <> COALESCE(h.held, 0)"
        ))
        .bind_all(values())
        .bind(now)
        .bind_all(values())
    }
}
