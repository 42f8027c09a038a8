//! The database: a trait, and one adapter for each of the databases. Rows never escape as SQL.

use async_trait::async_trait;

use crate::account::row::AccountRow;

/// What went wrong with the database.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// It cannot be reached, is locked, full or read-only: try again.
    #[error("the database cannot be used now")]
    Unavailable(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The statement or its data are at fault: trying again is of no use.
    #[error("the database refuses {what}")]
    Refused {
        /// The table and the row's key.
        what: String,
        /// What it said.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The settings or the schema do not fit; the message says what to do.
    #[error("{0}")]
    Unfit(String),
}

/// A database. Each method is one transaction.
#[async_trait]
pub trait Store: Send + Sync {
    /// Writes rows of `kubesvc_accounts`, each as a whole. A row of the same name with another uid of ours is
    /// replaced, together with what belonged to it.
    async fn put_accounts(&self, rows: &[AccountRow]) -> Result<(), StoreError>;

    /// Deletes every row of the account with this uid, in all tables. None is success.
    async fn delete_account(&self, uid: &str) -> Result<(), StoreError>;

    /// All rows of `kubesvc_accounts` that are ours (uid not NULL), by name.
    async fn accounts(&self) -> Result<Vec<AccountRow>, StoreError>;

    /// Replaces the list of namespaces of an account; at most 10,000.
    async fn put_namespaces(&self, uid: &str, namespaces: &[String]) -> Result<(), StoreError>;

    /// The namespaces of an account, by its name; absent if there is no such row or no list.
    async fn namespaces(&self, account_name: &str) -> Result<Option<Vec<String>>, StoreError>;

    /// Whether it answers.
    async fn ping(&self) -> Result<(), StoreError>;
}
