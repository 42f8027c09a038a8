//! The MySQL and MariaDB dialect, and the meaning of their [errors](https://mariadb.com/kb/en/mariadb-error-codes/).
//! Texts are compared byte by byte except for trailing spaces, and the server accepts
//! at most `max_allowed_packet` bytes at once.

use std::sync::atomic::Ordering;

use sqlx::mysql::{MySql as Db, MySqlDatabaseError, MySqlQueryResult};

use super::MySql;
use crate::accounts;
use crate::dialect::Dialect;
use crate::error::{self, ServerErrors, SqlFault, StartFault};
use crate::migrations;
use crate::sql::columns::weight;
use crate::sql::driver::Value;
use crate::sql::statement::{self, ColumnType, SqlTable, Statement, marks, tuples};
use crate::url::ServerAddress;
use crate::{Assignment, StoreError, column_limits};
use kubesvc_core::ReplicaId;
use kubesvc_core::account_row::AccountRow;

impl MySql {
    /// Maximum size of a packet that the server accepts, in bytes.
    fn packet(&self) -> usize {
        self.packet.load(Ordering::Relaxed)
    }
}

impl Dialect for MySql {
    type Database = Db;

    const NAME: &'static str = "MySQL";
    const COLUMNS_OF: &'static str = "SELECT CAST(column_name AS CHAR) FROM information_schema.columns \
                                      WHERE table_schema = DATABASE() AND table_name = ?";
    const KEYS_OF: &'static str = "SELECT CAST(index_name AS CHAR), CAST(column_name AS CHAR) \
         FROM information_schema.statistics WHERE table_schema = DATABASE() AND table_name = ? AND non_unique = 0 \
         AND sub_part IS NULL ORDER BY 1";
    // One that began more than 10 s ago is of a process that died. Of one that takes longer, the statement blocks the
    // other nodes of a cluster.
    const COUNT_OTHERS_MIGRATIONS: Option<&'static str> = Some(
        "SELECT CAST(COUNT(*) AS SIGNED) FROM kubesvc_schema_migrations WHERE NOT success AND installed_on BETWEEN \
         NOW() - INTERVAL 10 SECOND AND NOW() + INTERVAL 10 SECOND",
    );
    const ROW_LOCK: Option<&'static str> = Some("FOR UPDATE");
    // Without the id in the order: an index over that would be longer than InnoDB allows, and all rows would be sorted.
    const DELETE_SOME_OBJECTS: (&'static str, &'static str) =
        ("DELETE FROM kubesvc_cache WHERE ", " ORDER BY namespace LIMIT ?");
    // A foreign key deletes row by row, which takes four times as long.
    const DELETE_THEIR_RELATIONS: Option<(&'static str, &'static str)> = Some((
        "DELETE r FROM kubesvc_cache_rel r JOIN (SELECT id FROM kubesvc_cache WHERE ",
        " ORDER BY namespace LIMIT ?) c ON r.rel1_id = c.id",
    ));
    const INSERT_LEADER: &'static str = "INSERT IGNORE INTO kubesvc_locks (name) VALUES ('leader')";

    fn fault(error: &sqlx::Error) -> SqlFault {
        match error_number(error) {
            None => SqlFault::of_driver(error),
            Some(1213 | 1205 | 1020) => SqlFault::Busy,
            Some(1290 | 1792 | 1836) => SqlFault::ReadOnly,
            Some(1021 | 1041 | 1114) => SqlFault::DiskFull,
            Some(1040 | 1203) => SqlFault::TooManyConnections,
            Some(1044 | 1045 | 1142 | 1143 | 1227) => SqlFault::Denied,
            Some(1317 | 1969 | 3024) => SqlFault::TooSlow,
            Some(
                1048 | 1062 | 1153 | 1264 | 1265 | 1366 | 1292 | 1364 | 1406 | 1451 | 1452 | 1526 | 3988,
            ) => SqlFault::Row,
            Some(1054 | 1146 | 1305 | 1049 | 1064) => SqlFault::Schema,
            Some(_) => SqlFault::Unknown,
        }
    }

    fn rows_affected(done: &MySqlQueryResult) -> u64 {
        done.rows_affected()
    }

    fn pieces<'i, T>(&self, items: &'i [T], weigh: impl Fn(&T) -> usize) -> Vec<&'i [T]> {
        statement::pieces(items, weigh, self.packet() / 4).collect()
    }

    fn check_account(&self, row: &AccountRow) -> Result<(), StoreError> {
        if row.name.ends_with(' ') {
            let why = "its name ends with a space, and MySQL takes it for the name without";
            return Err(column_limits::refused(row, why));
        }
        // The server would close the connection.
        if weight(&accounts::values(row)) > self.max_row_bytes() {
            return Err(column_limits::refused(row, "it is larger than the server's max_allowed_packet"));
        }
        Ok(())
    }

    fn check_assignment(row: &Assignment, replica_id: &ReplicaId) -> Result<(), StoreError> {
        if [row.account_name.as_str(), row.agent_id.as_str(), replica_id.as_str()]
            .iter()
            .any(|key| key.ends_with(' '))
        {
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

    fn unfit_key(key: &str) -> Option<&'static str> {
        key.ends_with(' ').then_some("it ends with a space, and MySQL takes it for the key without")
    }

    fn max_row_bytes(&self) -> usize {
        self.packet() - self.packet() / 8
    }

    fn on_same_key(_: &str) -> String {
        "ON DUPLICATE KEY UPDATE ".to_owned()
    }

    fn inserted(column: &str) -> String {
        format!("VALUES({column})")
    }

    fn pairs(statement: Statement<Self>, pairs: &[(&str, &str)]) -> Statement<Self> {
        let statement = statement.text(&format!("({})", tuples(pairs.len(), 2)));
        statement.bind_all(pairs.iter().flat_map(|(one, other)| [*one, *other]).map(Value::from))
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

fn error_number(error: &sqlx::Error) -> Option<u16> {
    Some(error.as_database_error()?.try_downcast_ref::<MySqlDatabaseError>()?.number())
}

impl ServerErrors for MySql {
    const SERVERS: &'static str = "MySQL or MariaDB";
    const CONNECTION_HINT: &'static str = "check host, port and TLS in kubesvc.database.url; a user of MySQL 8 with \
                                           caching_sha2_password needs TLS";

    fn start_fault(error: &sqlx::Error) -> Option<StartFault> {
        Some(match error_number(error)? {
            1045 | 1130 | 1698 => StartFault::User("check user and password in kubesvc.database.url"),
            1049 => StartFault::Database,
            1044 | 1142 | 1143 | 1227 => StartFault::Rights(
                "grant it SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, DROP and INDEX on the database",
            ),
            1290 | 1836 => StartFault::ReadOnly,
            _ => return None,
        })
    }
}

/// Classifies an error at startup; see [`error::at_start`].
pub(super) fn at_start(address: &ServerAddress, error: sqlx::Error) -> StoreError {
    match error_number(&error) {
        // Two processes migrate at once: a table, a column, a key or a row of the history is there already. On a single
        // server the lock prevents it.
        Some(1050 | 1060 | 1061 | 1062 | 1205 | 1213) => migrations::in_progress(Some(error)),
        _ => error::at_start::<MySql>(address, error),
    }
}
