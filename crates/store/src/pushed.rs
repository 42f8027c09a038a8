//! The table `kubesvc_pushed`: the accounts that kubesvc registers in Clouddriver. A row is committed before the call to
//! Clouddriver that it stands for, so that a leader that ends in between leaves its intention behind.

use async_trait::async_trait;

use super::dialect::Dialect;
use super::sql::columns::{columns, table};
use super::sql::statement::Statement;
use super::sql::{SqlSession, SqlStore, Transaction};
use super::{StoreError, Term, leader_terms, now};

/// A row of `kubesvc_pushed`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushedRow {
    /// Name of the account in Clouddriver.
    pub name: String,
    /// uid of the KubesvcAccount.
    pub account_uid: String,
    /// ADDING, ADDED or REMOVING.
    pub state: String,
    /// Version of the definition's form.
    pub body_version: i32,
    /// SHA-256 of the definition, in hexadecimal; `None`: it is not known which one Clouddriver has.
    pub body_hash: Option<String>,
    /// Time of the last call that Clouddriver answered with success, in epoch milliseconds; `None`: there was none.
    pub pushed_at: Option<i64>,
}

table! {
    /// `kubesvc_pushed`.
    pub(super) const PUSHED = "kubesvc_pushed", key &["name"], ours None;
    pub(super) fn values<'v>(row: &'v PushedRow) {
        name: Varchar(255) = &row.name,
        account_uid: Varchar(36) = &row.account_uid,
        state: Varchar(16) = &row.state,
        body_version: Int = row.body_version,
        body_hash: Varchar(64) = row.body_hash.as_deref(),
        pushed_at: Bigint = row.pushed_at,
    }
}

columns! { PushedRow: name, account_uid, state, body_version, body_hash, pushed_at }

/// The accounts registered in Clouddriver. Each method is one transaction.
#[async_trait]
pub trait PushedStore: Send + Sync {
    /// All rows, by name.
    async fn pushed(&self) -> Result<Vec<PushedRow>, StoreError>;

    /// Writes rows, each over the one of its name, all or none.
    async fn put_pushed(&self, term: Option<Term>, rows: &[PushedRow]) -> Result<(), StoreError>;

    /// Deletes the row of a name if it is of this account; succeeds if there is none.
    async fn delete_pushed(
        &self,
        term: Option<Term>,
        name: &str,
        account_uid: &str,
    ) -> Result<(), StoreError>;
}

#[async_trait]
impl<D: Dialect> PushedStore for SqlStore<D> {
    async fn pushed(&self) -> Result<Vec<PushedRow>, StoreError> {
        let select = "SELECT name, account_uid, state, body_version, body_hash, pushed_at FROM kubesvc_pushed \
             ORDER BY name";
        self.select(Statement::new(select)).await
    }

    async fn put_pushed(&self, term: Option<Term>, rows: &[PushedRow]) -> Result<(), StoreError> {
        for row in rows {
            if let Some(why) = PUSHED.unfit(&values(row)) {
                return Err(StoreError::refused(format!("kubesvc_pushed row {:?}", row.name), why));
            }
        }
        self.transact(&PutPushed { term, rows }).await
    }

    async fn delete_pushed(
        &self,
        term: Option<Term>,
        name: &str,
        account_uid: &str,
    ) -> Result<(), StoreError> {
        self.transact(&DeletePushed { term, name, account_uid }).await
    }
}

struct PutPushed<'r> {
    term: Option<Term>,
    rows: &'r [PushedRow],
}

impl<D: Dialect> Transaction<D> for PutPushed<'_> {
    type Answer = ();

    async fn run(&self, session: &mut SqlSession<'_, D>) -> Result<(), StoreError> {
        leader_terms::hold(session, self.term).await?;
        upsert(session, self.rows).await
    }
}

/// Makes these the rows of the table, without a term: no operator runs.
pub(super) struct ReplacePushed<'r>(pub(super) &'r [PushedRow]);

impl<D: Dialect> Transaction<D> for ReplacePushed<'_> {
    type Answer = ();

    async fn run(&self, session: &mut SqlSession<'_, D>) -> Result<(), StoreError> {
        session.execute(Statement::new("DELETE FROM kubesvc_pushed")).await?;
        upsert(session, self.0).await
    }
}

async fn upsert<D: Dialect>(session: &mut SqlSession<'_, D>, rows: &[PushedRow]) -> Result<(), StoreError> {
    for piece in session.dialect.pieces(rows, |_| 0) {
        let rows: Vec<_> = piece.iter().map(values).collect();
        session.execute(PUSHED.upsert(&rows, now())).await?;
    }
    Ok(())
}

struct DeletePushed<'k> {
    term: Option<Term>,
    name: &'k str,
    account_uid: &'k str,
}

impl<D: Dialect> Transaction<D> for DeletePushed<'_> {
    type Answer = ();

    async fn run(&self, session: &mut SqlSession<'_, D>) -> Result<(), StoreError> {
        leader_terms::hold(session, self.term).await?;
        let delete = Statement::new("DELETE FROM kubesvc_pushed WHERE name = ? AND account_uid = ?");
        session.execute(delete.bind(self.name).bind(self.account_uid)).await.map(drop)
    }
}
