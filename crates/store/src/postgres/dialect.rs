//! The PostgreSQL dialect, and the meaning of its
//! [errors](https://www.postgresql.org/docs/current/errcodes-appendix.html). Parameters are numbered, and several rows are
//! sent as arrays, so that one prepared statement takes any number of them.

use std::collections::HashSet;

use sqlx::Arguments as _;
use sqlx::error::BoxDynError;
use sqlx::postgres::{PgArguments, PgQueryResult, Postgres as Db};

use super::Postgres;
use crate::StoreError;
use crate::dialect::Dialect;
use crate::error::{ServerErrors, SqlFault, StartFault};
use crate::sql::SqlSession;
use crate::sql::driver::Value;
use crate::sql::statement::{self, ColumnType, SqlTable, Statement};

const MAX_ROWS_PER_STATEMENT: usize = 512;
const MAX_BYTES_PER_STATEMENT: usize = 2 << 20;

fn type_name(of: ColumnType) -> &'static str {
    match of {
        ColumnType::Text | ColumnType::Varchar(_) => "text",
        ColumnType::Boolean => "boolean",
        ColumnType::Int => "int",
        ColumnType::Bigint => "bigint",
        ColumnType::Blob => "bytea",
    }
}

/// Binds one column of the rows as an array.
fn add_column(
    arguments: &mut PgArguments,
    of: ColumnType,
    rows: &[Vec<Value<'_>>],
    column: usize,
) -> Result<(), BoxDynError> {
    /// Collects the values of one type. Other types would become NULL, but each row has the types of its table.
    macro_rules! array {
        ($variant:ident) => {
            rows.iter()
                .map(|row| match row.get(column) {
                    Some(Value::$variant(value)) => *value,
                    _ => None,
                })
                .collect::<Vec<_>>()
        };
    }
    match of {
        ColumnType::Text | ColumnType::Varchar(_) => arguments.add(array!(Text)),
        ColumnType::Boolean => arguments.add(array!(Boolean)),
        ColumnType::Int => arguments.add(array!(Int)),
        ColumnType::Bigint => arguments.add(array!(Bigint)),
        ColumnType::Blob => arguments.add(array!(Blob)),
    }
}

impl Dialect for Postgres {
    type Database = Db;

    const NAME: &'static str = "PostgreSQL";
    const COLUMNS_OF: &'static str = "SELECT attname::text FROM pg_attribute WHERE attrelid = to_regclass(?) \
                                      AND attnum > 0 AND NOT attisdropped";
    const KEYS_OF: &'static str = "SELECT i.indexrelid::text, a.attname::text FROM pg_index i JOIN pg_attribute a \
         ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey) \
         WHERE i.indrelid = to_regclass(?) AND i.indisunique AND i.indpred IS NULL AND i.indisvalid ORDER BY 1";
    const NUMBERED_PARAMETERS: bool = true;
    const ROW_LOCK: Option<&'static str> = Some("FOR NO KEY UPDATE");
    const END_IS_ONE_STATEMENT: bool = true;

    fn fault(error: &sqlx::Error) -> SqlFault {
        let Some(code) = error_code(error) else { return SqlFault::of_driver(error) };
        match code.as_str() {
            "40001" | "40P01" | "55P03" => SqlFault::Busy,
            "25006" => SqlFault::ReadOnly,
            "53100" => SqlFault::DiskFull,
            "53300" => SqlFault::TooManyConnections,
            "57014" => SqlFault::TooSlow,
            "42501" => SqlFault::Denied,
            "26000" => SqlFault::Other(
                "PostgreSQL does not know a prepared statement: a connection pooler must use session mode",
            ),
            code => match code.get(..2) {
                Some("22" | "23" | "54") => SqlFault::Row,
                Some("42") => SqlFault::Schema,
                _ => SqlFault::Unknown,
            },
        }
    }

    fn rows_affected(done: &PgQueryResult) -> u64 {
        done.rows_affected()
    }

    fn pieces<'i, T>(&self, items: &'i [T], weigh: impl Fn(&T) -> usize) -> Vec<&'i [T]> {
        statement::chunks(items, weigh, MAX_ROWS_PER_STATEMENT, MAX_BYTES_PER_STATEMENT).collect()
    }

    fn one_of(statement: Statement<Self>, keys: &[&str]) -> Statement<Self> {
        statement.text("= ANY(?)").add(|arguments: &mut PgArguments| arguments.add(keys))
    }

    fn pairs(statement: Statement<Self>, pairs: &[(&str, &str)]) -> Statement<Self> {
        let (ones, others): (Vec<&str>, Vec<&str>) = pairs.iter().copied().unzip();
        statement
            .text("(SELECT * FROM unnest(?::text[], ?::text[]))")
            .add(|arguments: &mut PgArguments| arguments.add(ones))
            .add(|arguments: &mut PgArguments| arguments.add(others))
    }

    fn same_as_parameter(column: &str) -> String {
        format!("{column} IS NOT DISTINCT FROM ?")
    }

    fn as_text(column: &str) -> String {
        format!("\"{column}\"::text")
    }

    fn as_bigint(column: &str, of: ColumnType) -> String {
        match of {
            // PostgreSQL casts a boolean to a bigint only by way of an int.
            ColumnType::Boolean => format!("{column}::int::bigint"),
            _ => format!("{column}::bigint"),
        }
    }

    fn from_bigint(of: ColumnType) -> &'static str {
        match of {
            ColumnType::Boolean => "?::bigint::int::boolean",
            ColumnType::Int => "?::bigint::int",
            ColumnType::Bigint | ColumnType::Text | ColumnType::Varchar(_) | ColumnType::Blob => "?",
        }
    }

    fn rows(
        statement: Statement<Self>,
        table: &SqlTable,
        rows: &[Vec<Value<'_>>],
        now: Option<i64>,
    ) -> Statement<Self> {
        let parameters = |brackets| {
            let types = table.columns.iter().map(|(_, of)| format!("?::{}{brackets}", type_name(*of)));
            types.collect::<Vec<_>>().join(",")
        };
        if let [row] = rows {
            // To unnest so many arrays takes three times as long as the insert of one row.
            let time = if now.is_some() { ",?::bigint" } else { "" };
            let statement = statement.text(&format!("SELECT {}{time}", parameters("")));
            return statement.bind_all(row.iter().copied()).bind_all(now.map(Value::from));
        }
        // The time is bound last, wherever it is used.
        let time = now.map(|_| format!(", ${}::bigint", table.columns.len() + 1)).unwrap_or_default();
        let statement = statement.text(&format!("SELECT *{time} FROM unnest({})", parameters("[]")));
        let columns = table.columns.iter().enumerate();
        let statement = columns.fold(statement, |statement, (column, (_, of))| {
            statement.add(|arguments: &mut PgArguments| add_column(arguments, *of, rows, column))
        });
        statement.bind_all(now.map(Value::from))
    }

    fn write_over(table: &SqlTable) -> String {
        table.on_conflict("IS DISTINCT FROM")
    }

    fn delete_assignments_of(uids: &[&str]) -> Statement<Self> {
        Statement::new(
            "DELETE FROM kubesvc_assignments s USING kubesvc_accounts a WHERE s.account_name = a.name AND a.uid ",
        )
        .one_of(uids)
    }

    /// Looks each object up by itself. Of a table that was never analyzed, PostgreSQL takes the rows of many objects
    /// for most of the table, and would read all of it.
    fn relations_of(ids: &[&str]) -> Statement<Self> {
        Statement::new(
            "SELECT r.rel_hash FROM unnest(?::text[]) AS i(id) CROSS JOIN LATERAL \
             (SELECT rel_hash FROM kubesvc_cache_rel WHERE rel1_id = i.id OFFSET 0) r",
        )
        .add(|arguments: &mut PgArguments| arguments.add(ids))
    }

    fn count_connections(names: &[&str], now: i64) -> Statement<Self> {
        Statement::new(
            "UPDATE kubesvc_accounts a SET connections = h.held, last_updated = ? FROM \
             (SELECT n.name, COUNT(DISTINCT s.agent_id)::int AS held FROM unnest(?::text[]) AS n(name) \
             LEFT JOIN kubesvc_assignments s ON s.account_name = n.name AND s.reachable GROUP BY n.name) h \
             WHERE a.name = h.name AND a.uid IS NOT NULL AND a.connections <> h.held",
        )
        .bind(now)
        .add(|arguments: &mut PgArguments| arguments.add(names))
    }

    /// One statement for all lists.
    async fn put_namespaces(
        session: &mut SqlSession<'_, Self>,
        lists: &[(&str, String)],
        now: i64,
    ) -> Result<Vec<String>, StoreError> {
        let (uids, texts): (Vec<&str>, Vec<&str>) =
            lists.iter().map(|(uid, list)| (*uid, list.as_str())).unzip();
        let update = Statement::new(
            "UPDATE kubesvc_accounts a SET namespaces = l.list, \
             last_updated = CASE WHEN a.namespaces IS NOT DISTINCT FROM l.list THEN a.last_updated ELSE ? END \
             FROM unnest(?::text[], ?::text[]) AS l(uid, list) WHERE a.uid = l.uid RETURNING a.uid",
        )
        .bind(now)
        .add(|arguments: &mut PgArguments| arguments.add(&uids))
        .add(|arguments: &mut PgArguments| arguments.add(texts));
        let there = session.select::<String>(update).await?.into_iter().collect::<HashSet<_>>();
        Ok(uids.into_iter().filter(|uid| !there.contains(*uid)).map(str::to_owned).collect())
    }
}

fn error_code(error: &sqlx::Error) -> Option<String> {
    Some(error.as_database_error()?.code()?.into_owned())
}

/// Whether what PgBouncer says, in its own words or in those of its server, is an error that waiting does not cure.
fn is_final_at_a_pooler(message: &str) -> bool {
    let message = message.to_ascii_lowercase();
    [
        "unsupported startup parameter",
        "no such database",
        "no such user",
        "does not exist",
        "authentication failed",
        "auth failed",
        "not allowed",
        "no pg_hba.conf entry",
        "permission denied",
        "is not permitted to log in",
        "wrong password type",
    ]
    .iter()
    .any(|part| message.contains(part))
}

impl ServerErrors for Postgres {
    const SERVERS: &'static str = "PostgreSQL";
    const CONNECTION_HINT: &'static str = "check host, port and TLS in kubesvc.database.url";

    fn start_fault(error: &sqlx::Error) -> Option<StartFault> {
        Some(match error_code(error)?.as_str() {
            "28P01" | "28000" => StartFault::User(
                "check user and password in kubesvc.database.url, and the server's pg_hba.conf",
            ),
            "3D000" => StartFault::Database,
            "42501" => StartFault::Rights(
                "grant it with GRANT CREATE, USAGE ON SCHEMA public, or make it the owner of the database",
            ),
            "25006" => StartFault::ReadOnly,
            // A pooler has one code for whatever it refuses.
            "08P01" if is_final_at_a_pooler(error.as_database_error()?.message()) => StartFault::Pooler,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_pooler_says_is_final_unless_its_server_may_come_back() {
        for last in [
            "unsupported startup parameter: extra_float_digits",
            "no such database: kubesvc",
            "no such user: kubesvc",
            "password authentication failed",
            "SASL authentication failed",
            "server login failed: FATAL password authentication failed for user \"kubesvc\"",
            "server login failed: FATAL database \"kubesvc\" does not exist",
            "bouncer config error: auth failed",
        ] {
            assert!(is_final_at_a_pooler(last), "{last}");
        }
        for passing in [
            "server login has been failing, try again later (server_login_retry)",
            "server login failed: FATAL the database system is starting up",
            "server login failed: FATAL sorry, too many clients already",
            "no more connections allowed (max_client_conn)",
            "query_wait_timeout",
            "server conn crashed?",
            "pgbouncer cannot connect to server",
            "the pooler is shutting down",
        ] {
            assert!(!is_final_at_a_pooler(passing), "{passing}");
        }
    }
}
