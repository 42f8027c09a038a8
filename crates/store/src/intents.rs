//! The table `kubesvc_intents`: writes of Clouddriver's accounts that REST passes on. A row is committed before its call
//! is, and goes when the account here has followed, so that a replica that ends in between leaves its intention behind.

use async_trait::async_trait;

use super::StoreError;
use super::dialect::Dialect;
use super::sql::columns::{columns, table};
use super::sql::statement::Statement;
use super::sql::{SqlSession, SqlStore, Transaction};

/// A row of `kubesvc_intents`. Name, replica and time identify it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IntentRow {
    /// Name of the account in Clouddriver.
    pub name: String,
    /// POST, PUT or DELETE.
    pub verb: String,
    /// SHA-256 of the body, in hexadecimal; of a DELETE, whether [the account was found](IntentRow::found_account).
    pub body_hash: Option<String>,
    /// Replica that passes the call on.
    pub replica_id: String,
    /// Time at which the replica began, in epoch milliseconds of its clock.
    pub started_at: i64,
    /// Number of times that its end was looked for; 0: the replica may still be at it.
    pub tries: i32,
}

impl IntentRow {
    /// Whether Clouddriver was seen to have the account before the call was sent: [`IntentStore::mark_found`].
    pub fn found_account(&self) -> bool {
        self.body_hash.as_deref() == Some(FOUND)
    }
}

/// `body_hash` of a row whose account was found.
const FOUND: &str = "found";

table! {
    /// `kubesvc_intents`.
    pub(super) const INTENTS = "kubesvc_intents", key &["name"], ours None;
    fn values<'v>(row: &'v IntentRow) {
        name: Varchar(255) = &row.name,
        verb: Varchar(16) = &row.verb,
        body_hash: Varchar(64) = row.body_hash.as_deref(),
        replica_id: Varchar(191) = &row.replica_id,
        started_at: Bigint = row.started_at,
        tries: Int = row.tries,
    }
}

columns! { IntentRow: name, verb, body_hash, replica_id, started_at, tries }

/// Maximum number of rows that are read: as many as there are accounts. Rows that cannot be settled must hide no others.
const MAX_READ: usize = 10_000;

/// Writes of Clouddriver's accounts under way. Each method is one transaction.
#[async_trait]
pub trait IntentStore: Send + Sync {
    /// The oldest rows, at most 10,000.
    async fn intents(&self) -> Result<Vec<IntentRow>, StoreError>;

    /// Inserts rows, all or none. Returns a name that has a row already; then none is inserted.
    async fn begin_intents(&self, rows: &[IntentRow]) -> Result<Option<String>, StoreError>;

    /// Stores that Clouddriver has the accounts of these rows, which are about to be deleted there.
    async fn mark_found(&self, rows: &[IntentRow]) -> Result<(), StoreError>;

    /// Counts one more try of these rows.
    async fn count_intent_tries(&self, rows: &[IntentRow]) -> Result<(), StoreError>;

    /// Deletes these rows; succeeds if they are gone.
    async fn end_intents(&self, rows: &[IntentRow]) -> Result<(), StoreError>;
}

#[async_trait]
impl<D: Dialect> IntentStore for SqlStore<D> {
    async fn intents(&self) -> Result<Vec<IntentRow>, StoreError> {
        let order = format!("ORDER BY started_at, name LIMIT {MAX_READ}");
        self.select(select().text(&order)).await
    }

    async fn begin_intents(&self, rows: &[IntentRow]) -> Result<Option<String>, StoreError> {
        for row in rows {
            if let Some(why) = INTENTS.unfit(&values(row)) {
                return Err(StoreError::refused(format!("kubesvc_intents row {:?}", row.name), why));
            }
        }
        self.transact(&BeginIntents(rows)).await
    }

    async fn mark_found(&self, rows: &[IntentRow]) -> Result<(), StoreError> {
        self.transact(&OfEach { change: "UPDATE kubesvc_intents SET body_hash = 'found'", rows }).await
    }

    async fn count_intent_tries(&self, rows: &[IntentRow]) -> Result<(), StoreError> {
        self.transact(&OfEach { change: "UPDATE kubesvc_intents SET tries = tries + 1", rows }).await
    }

    async fn end_intents(&self, rows: &[IntentRow]) -> Result<(), StoreError> {
        self.transact(&OfEach { change: "DELETE FROM kubesvc_intents", rows }).await
    }
}

fn select<D: Dialect>() -> Statement<D> {
    Statement::new(&format!("SELECT {} FROM {} ", INTENTS.column_names().join(","), INTENTS.name))
}

struct BeginIntents<'r>(&'r [IntentRow]);

impl<D: Dialect> Transaction<D> for BeginIntents<'_> {
    type Answer = Option<String>;

    async fn run(&self, session: &mut SqlSession<'_, D>) -> Result<Option<String>, StoreError> {
        let into = format!("INSERT INTO {} ({}) ", INTENTS.name, INTENTS.column_names().join(","));
        // A row that exists stays as it is, and is locked.
        let or_keep = format!(" {}name={}", D::on_same_key("name"), D::inserted("name"));
        for row in self.0 {
            let insert = D::rows(Statement::new(&into), &INTENTS, &[values(row)], None).text(&or_keep);
            session.execute(insert).await?;
        }
        let mut other = None;
        for piece in session.dialect.pieces(self.0, |_| 0) {
            let names: Vec<&str> = piece.iter().map(|row| row.name.as_str()).collect();
            let found: Vec<IntentRow> = session.select(select().text("WHERE name ").one_of(&names)).await?;
            let is_ours = |found: &IntentRow| piece.iter().any(|row| is_same(row, found));
            other = other.or_else(|| found.into_iter().find(|found| !is_ours(found)));
        }
        if other.is_some() {
            each(session, "DELETE FROM kubesvc_intents", self.0).await?;
        }
        Ok(other.map(|row| row.name))
    }
}

fn is_same(one: &IntentRow, other: &IntentRow) -> bool {
    (&one.name, &one.replica_id, one.started_at) == (&other.name, &other.replica_id, other.started_at)
}

/// Changes each of these rows, if it is still there.
struct OfEach<'r> {
    change: &'static str,
    rows: &'r [IntentRow],
}

impl<D: Dialect> Transaction<D> for OfEach<'_> {
    type Answer = ();

    async fn run(&self, session: &mut SqlSession<'_, D>) -> Result<(), StoreError> {
        each(session, self.change, self.rows).await
    }
}

async fn each<D: Dialect>(
    session: &mut SqlSession<'_, D>,
    change: &str,
    rows: &[IntentRow],
) -> Result<(), StoreError> {
    for row in rows {
        let statement = Statement::new(change).text(" WHERE name = ? AND replica_id = ? AND started_at = ?");
        let statement = statement.bind(row.name.as_str()).bind(row.replica_id.as_str()).bind(row.started_at);
        session.execute(statement).await?;
    }
    Ok(())
}
