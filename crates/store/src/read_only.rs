//! Reads a table of another program, in one READ ONLY transaction over a connection of its own, so that a user with
//! SELECT is enough and all that is read is of one state of the table.

use std::error::Error;
use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;

use futures::TryStreamExt as _;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection, Executor as _};

use super::clouddriver_accounts::{ClouddriverDatabase, ClouddriverTableError, check_clouddriver_url};
use super::error::{ServerErrors, SqlFault, StartFault};
use super::mysql::{self, MySql};
use super::postgres::{self, Postgres};
use super::sql::columns::FromColumns;
use super::sql::driver::Driver as _;
use super::sql::statement::Statement;
use super::sql::{ConnectionOf, RowOf, STATEMENT_TIMEOUT};
use super::url::{self, DatabaseLocation, ServerAddress};

/// What is read of a table.
pub(super) trait TableReading: Sync {
    /// Name of the table.
    const TABLE: &'static str;
    /// The result.
    type Found: Send;

    /// Reads it.
    fn read<D: ServerErrors>(
        &self,
        session: &mut ReadOnlySession<'_, D>,
    ) -> impl Future<Output = Result<Self::Found, ClouddriverTableError>> + Send;
}

/// Connects, reads and closes the connection.
pub(super) async fn read_only<R: TableReading>(
    database: &ClouddriverDatabase,
    reading: &R,
) -> Result<R::Found, ClouddriverTableError> {
    check_clouddriver_url(&database.url)?;
    let with_secrets = |mut address: ServerAddress, strictest: &str| {
        address.password.clone_from(&database.password);
        if let Some(authority) = &database.authority {
            address.authority = Some(authority.to_string_lossy().into_owned());
            address.tls_mode.get_or_insert_with(|| strictest.to_owned());
        }
        address
    };
    match url::parse(&database.url).map_err(|_| ClouddriverTableError::Url)? {
        DatabaseLocation::Sqlite(_) => Err(ClouddriverTableError::Url),
        DatabaseLocation::MySql(address) => {
            let address = with_secrets(address, "VERIFY_IDENTITY");
            let options = mysql::options(&address).map_err(|_| ClouddriverTableError::Url)?;
            let limits = StatementLimits::<MySql>::new(&address, R::TABLE);
            // Not `START TRANSACTION ISOLATION LEVEL`, which MySQL does not have.
            let prepare = "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ";
            run(limits, reading, options.connect(), prepare, "START TRANSACTION READ ONLY").await
        }
        DatabaseLocation::Postgres(address) => {
            let address = with_secrets(address, "verify-full");
            let options = postgres::options(&address).map_err(|_| ClouddriverTableError::Url)?;
            let limits = StatementLimits::<Postgres>::new(&address, R::TABLE);
            let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
            run(limits, reading, options.connect(), "SELECT 1", begin).await
        }
    }
}

async fn run<D: ServerErrors, R: TableReading>(
    limits: StatementLimits<'_, D>,
    reading: &R,
    connecting: impl Future<Output = Result<ConnectionOf<D>, sqlx::Error>> + Send,
    prepare: &'static str,
    begin: &'static str,
) -> Result<R::Found, ClouddriverTableError>
where
    for<'c> &'c mut ConnectionOf<D>: sqlx::Executor<'c, Database = D::Database>,
{
    let mut connection = limits.bounded(connecting).await?;
    limits.bounded((&mut connection).execute(AssertSqlSafe(prepare.to_owned()))).await?;
    let mut transaction = limits.bounded(connection.begin_with(AssertSqlSafe(begin.to_owned()))).await?;
    let found = reading.read(&mut ReadOnlySession { limits, connection: &mut transaction }).await?;
    limits.bounded(transaction.rollback()).await?;
    limits.bounded(connection.close()).await?;
    Ok(found)
}

/// A transaction that only reads.
pub(super) struct ReadOnlySession<'c, D: ServerErrors> {
    limits: StatementLimits<'c, D>,
    connection: &'c mut ConnectionOf<D>,
}

impl<D: ServerErrors> ReadOnlySession<'_, D> {
    /// Reads the first columns of all rows of a result.
    pub(super) async fn all<T: FromColumns>(
        &mut self,
        statement: Statement<D>,
    ) -> Result<Vec<T>, ClouddriverTableError> {
        let (limits, mut found) = (self.limits, Vec::new());
        self.each(statement, |row| {
            found.push(T::from_columns::<D::Database>(row).map_err(|error| limits.error(error)));
        })
        .await?;
        found.into_iter().collect()
    }

    /// Calls `take` for each row of a result, with a time limit for each.
    pub(super) async fn each(
        &mut self,
        statement: Statement<D>,
        mut take: impl FnMut(&RowOf<D>) + Send,
    ) -> Result<(), ClouddriverTableError> {
        let limits = self.limits;
        let (sql, arguments) = statement.into_parts().map_err(|error| limits.error(error))?;
        let mut rows = D::Database::fetch(self.connection, sql, arguments);
        while let Some(row) = limits.bounded(rows.try_next()).await? {
            take(&row);
        }
        Ok(())
    }

    /// Names of a table's columns; empty if there is no such table.
    pub(super) async fn columns_of(&mut self, table: &str) -> Result<Vec<String>, ClouddriverTableError> {
        self.all(Statement::new(D::COLUMNS_OF).bind(table)).await
    }

    /// The database, for messages.
    pub(super) fn database(&self) -> String {
        self.limits.address.to_string()
    }
}

/// Time limits, and the meaning of errors.
struct StatementLimits<'a, D> {
    address: &'a ServerAddress,
    table: &'static str,
    dialect: PhantomData<fn() -> D>,
}

impl<D> Clone for StatementLimits<'_, D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<D> Copy for StatementLimits<'_, D> {}

impl<'a, D: ServerErrors> StatementLimits<'a, D> {
    fn new(address: &'a ServerAddress, table: &'static str) -> Self {
        Self { address, table, dialect: PhantomData }
    }

    async fn bounded<T>(
        &self,
        statement: impl Future<Output = Result<T, sqlx::Error>> + Send,
    ) -> Result<T, ClouddriverTableError> {
        match tokio::time::timeout(STATEMENT_TIMEOUT, statement).await {
            Ok(result) => result.map_err(|error| self.error(error)),
            Err(_) => Err(ClouddriverTableError::TooSlow { database: self.address.to_string() }),
        }
    }

    fn error(&self, error: sqlx::Error) -> ClouddriverTableError {
        let (database, table) = (self.address.to_string(), self.table);
        let (start, fault) = (D::start_fault(&error), D::fault(&error));
        let source: Arc<dyn Error + Send + Sync> = Arc::new(error);
        match (start, fault) {
            (Some(StartFault::User(_) | StartFault::Pooler), _) => {
                ClouddriverTableError::Login { database, source }
            }
            (Some(StartFault::Database), _) | (_, SqlFault::Schema) => {
                ClouddriverTableError::NoTable { database, source }
            }
            (Some(StartFault::Rights(_)), _) | (_, SqlFault::Denied) => {
                ClouddriverTableError::Denied { table, database, source }
            }
            (_, SqlFault::TooSlow) => ClouddriverTableError::TooSlow { database },
            _ => ClouddriverTableError::Unavailable { database, source },
        }
    }
}
