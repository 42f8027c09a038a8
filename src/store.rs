//! The database: a trait, and one adapter for each of the databases. Rows never escape as SQL.
//!
//! [`open`] gives the adapter that a URL names. [`projection`] keeps its rows in step with the objects; nothing else
//! writes `kubesvc_accounts`. Adding a database: an adapter that passes the stories of `store/stories.rs`, and a
//! folder of migrations with the same numbers.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use async_trait::async_trait;

use crate::account::row::AccountRow;
pub use crate::account::row::ForeignRow;

pub use fences::{BatchClaim, Fence, FenceCheck, RaiseOutcome, StoredFence};
pub use terms::Term;

mod batches;
#[cfg(test)]
mod contract_tests;
pub mod copying;
mod database_error;
#[cfg(test)]
mod faults;
mod fences;
#[cfg(test)]
mod harness;
mod limits;
#[cfg(test)]
mod manual_edits;
mod migrations;
mod mysql;
mod pools;
mod postgres;
pub mod projection;
mod rows;
mod server;
mod sqlite;
mod statements;
mod terms;
mod url;
mod vendor;

pub use pools::PoolSettings;

/// How many namespaces of an account are kept at most.
pub const MAX_NAMESPACES: usize = 10_000;
/// The table of another product that stood under the name `kubesvc_accounts`, as the first start renamed it.
pub const VENDOR_TABLE: &str = "kubesvc_accounts_vendor";

/// What went wrong with the database. It is cheap to clone, so that all who wait for one commit hear the same.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// It cannot be reached, is locked, full or read-only: try again.
    #[error("the database cannot be used now")]
    Unavailable(#[source] Arc<dyn Error + Send + Sync>),
    /// The statement or its data are at fault: trying again is of no use.
    #[error("the database refuses {what}")]
    Refused {
        /// The table and the row's key.
        what: String,
        /// What it said.
        #[source]
        source: Arc<dyn Error + Send + Sync>,
    },
    /// The settings or the schema do not fit; the message says what to do.
    #[error("{0}")]
    Unfit(String),
    /// Another replica leads: a later term has begun, and nothing was written.
    #[error("another replica leads: a later term has begun in kubesvc_locks")]
    Deposed,
}

impl StoreError {
    /// An [`StoreError::Unavailable`] because of this.
    pub fn unavailable(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Unavailable(Arc::from(source.into()))
    }

    /// A [`StoreError::Refused`] of this table and row because of this.
    pub fn refused(what: impl Into<String>, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Refused { what: what.into(), source: Arc::from(source.into()) }
    }

    /// The error and what caused it, in one line. It holds no row data.
    pub fn in_full(&self) -> String {
        let mut text = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            // Some errors say their cause themselves.
            let said = error.to_string();
            if !text.ends_with(&said) {
                text.push_str(": ");
                text.push_str(&said);
            }
            cause = error.source();
        }
        text
    }
}

/// Changes to be written together. A uid stands in it once, and so does a name among the rows.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// uids whose rows go, in all tables. They go first, so that their names are free. One without rows is no error.
    pub deletes: Vec<String>,
    /// Rows of `kubesvc_accounts`, each written as a whole, with its row in `kubesvc_caching` where there is none. A row of the same name with another uid of ours is
    /// replaced, together with what belonged to it; a row of the same name without a uid is not ours, and refused.
    pub puts: Vec<Arc<AccountRow>>,
    /// As `puts`, but each takes the place of a row of that name that is not ours, also in [`VENDOR_TABLE`]. One whose name a
    /// row with another uid has is refused.
    pub adopts: Vec<Arc<AccountRow>>,
    /// The leader's term that they are written under; absent: whoever writes is the only one.
    pub term: Option<Term>,
}

impl Changes {
    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.deletes.is_empty() && self.puts.is_empty() && self.adopts.is_empty()
    }
}

/// A row of `kubesvc_assignments`: an agent of one replica and an account that it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// The account's name.
    pub account_name: String,
    /// The agent.
    pub agent_id: String,
    /// How many streams of the agent have it: 1 while it is connected.
    pub connections: i32,
    /// Whether this agent streams the account's objects.
    pub caching: bool,
    /// Whether operations can be sent to it.
    pub reachable: bool,
}

/// Changes of the assignments of one replica, to be written together. In the same transaction the rows of ours in
/// `kubesvc_accounts` that are concerned are told by how many agents they are held: over all replicas, each agent once, and
/// only agents that can be reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AssignmentChanges {
    /// Account name and agent of rows that go. One that is not there is no error.
    pub deletes: Vec<(String, String)>,
    /// Rows to be there; account name and agent stand in it once.
    pub puts: Vec<Assignment>,
    /// Names of accounts whose `connections` are to be counted, beside those of all rows above.
    pub recounts: Vec<String>,
    /// The leader's term, where it is the leader who writes for a replica that is gone; absent: the replica itself does.
    pub term: Option<Term>,
}

/// What `kubesvc_accounts` holds of ours.
#[derive(Clone, Debug, Default)]
pub struct StoredAccounts {
    /// The rows that can be read, by name.
    pub rows: Vec<AccountRow>,
    /// The rows that cannot: somebody wrote them by hand.
    pub malformed: Vec<Malformed>,
    /// uids of rows that have no row in `kubesvc_caching`, or one under another name.
    pub unfenced: Vec<String>,
    /// uids of rows in `kubesvc_caching` that no account has.
    pub stray_fences: Vec<String>,
}

/// A row with a value that its column cannot have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// The table.
    pub table: &'static str,
    /// The row's name, as far as it can be read.
    pub name: String,
    /// Its uid, if that can be read.
    pub uid: Option<String>,
    /// The first column at fault.
    pub column: String,
    /// What is wrong with it.
    pub why: String,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "table {}, row {:?}, column {}: {}", self.table, self.name, self.column, self.why)
    }
}

/// The namespaces of an account, as an agent saw them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceList {
    /// uid of the object.
    pub uid: String,
    /// Their names.
    pub namespaces: Vec<String>,
}

/// A database. Each method is one transaction, and what is committed survives a loss of power.
///
/// The adapter stamps `last_updated` with its own clock, and only on rows that change.
#[async_trait]
pub trait Store: Send + Sync {
    /// Writes all of these changes or none. [`StoreError::Refused`] if a single row of them is at fault; it does not
    /// always say which.
    async fn write(&self, changes: &Changes) -> Result<(), StoreError>;

    /// Begins a leader's term: whatever is written under an earlier one is [`StoreError::Deposed`] from now on.
    async fn begin_term(&self, replica_id: &str) -> Result<Term, StoreError>;

    /// All rows of `kubesvc_accounts` that are ours (uid not NULL).
    async fn accounts(&self) -> Result<StoredAccounts, StoreError>;

    /// Replaces the lists of namespaces of accounts, all or none; more than [`MAX_NAMESPACES`] in one are refused. No
    /// uid may stand among them twice. Answers with those that have no row; nothing is kept of them.
    async fn put_namespace_lists(&self, lists: &[NamespaceList]) -> Result<Vec<String>, StoreError>;

    /// The namespaces of an account of ours, by its name; absent if there is no such row or no list.
    async fn namespaces(&self, account_name: &str) -> Result<Option<Vec<String>>, StoreError>;

    /// Writes assignments of a replica: all of these changes or none.
    async fn write_assignments(
        &self,
        replica_id: &str,
        changes: &AssignmentChanges,
    ) -> Result<(), StoreError>;

    /// All assignments of a replica.
    async fn assignments(&self, replica_id: &str) -> Result<Vec<Assignment>, StoreError>;

    /// Names of rows of ours in `kubesvc_accounts` whose `connections` are not what the assignments say.
    async fn miscounted(&self) -> Result<Vec<String>, StoreError>;

    /// The replicas that have assignments, each once.
    async fn assigned_replicas(&self) -> Result<Vec<String>, StoreError>;

    /// Raises the fences of accounts, all or none; each uid once. Answers what became of each.
    async fn raise_fences(&self, fences: &[Fence]) -> Result<Vec<(String, RaiseOutcome)>, StoreError>;

    /// All fences that were ever raised.
    async fn fences(&self) -> Result<Vec<StoredFence>, StoreError>;

    /// Rows of `kubesvc_accounts` that are not ours (uid NULL).
    async fn foreign(&self) -> Result<Vec<ForeignRow>, StoreError>;

    /// The rows of [`VENDOR_TABLE`], as far as they have columns that say something; none if there is no such table.
    async fn vendor(&self) -> Result<Vec<ForeignRow>, StoreError>;

    /// Whether it answers.
    async fn ping(&self) -> Result<(), StoreError>;

    /// Its pools of connections; none where it keeps none.
    fn pools(&self) -> Vec<PoolSettings> {
        Vec::new()
    }

    /// Writes rows of `kubesvc_accounts`; see [`Changes::puts`].
    async fn put_accounts(&self, rows: &[AccountRow]) -> Result<(), StoreError> {
        let puts = rows.iter().cloned().map(Arc::new).collect();
        self.write(&Changes { puts, ..Changes::default() }).await
    }

    /// Replaces the list of namespaces of one account; see [`Store::put_namespace_lists`]. False if it has no row.
    async fn put_namespaces(&self, uid: &str, namespaces: &[String]) -> Result<bool, StoreError> {
        let list = NamespaceList { uid: uid.to_owned(), namespaces: namespaces.to_vec() };
        Ok(self.put_namespace_lists(&[list]).await?.is_empty())
    }

    /// Deletes every row of the account with this uid, in all tables. None is success.
    async fn delete_account(&self, uid: &str) -> Result<(), StoreError> {
        self.write(&Changes { deletes: vec![uid.to_owned()], ..Changes::default() }).await
    }
}

/// Opens the database that a URL names, and brings its schema up to date.
///
/// `sqlite:///var/lib/kubesvc/kubesvc.db` is an absolute path, `sqlite://kubesvc.db` one from the working directory;
/// a file that is not there is made. `mysql://user:password@host:port/database` (or `mariadb://`) and
/// `postgres://user:password@host:port/database` are servers; the database must be there. [`StoreError::Unfit`] says in
/// one line what is wrong and what to do, and never holds a password.
pub async fn open(url: &str, vendor: VendorTables) -> Result<Arc<dyn Store>, StoreError> {
    Ok(open_adapter(url, vendor).await?)
}

/// What becomes of tables of another product that stand under the names of kubesvc's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VendorTables {
    /// The database is not touched: [`StoreError::Unfit`] says which they are.
    Refuse,
    /// They are renamed to `NAME_vendor`, and kept with all they hold.
    Rename,
}

/// Looks whether a URL can name a database, without opening it. The message is as [`open`]'s.
pub fn check_url(url: &str) -> Result<(), StoreError> {
    url::parse(url).map(drop)
}

/// The warning about a connection to a database beyond this machine that is in plain text or verifies nobody.
pub fn exposure(url: &str) -> Option<String> {
    url::exposure(&url::parse(url).ok()?)
}

/// Whether the database that a URL names can serve several replicas.
pub fn serves_several(url: &str) -> bool {
    !matches!(url::parse(url), Ok(url::DatabaseUrl::Sqlite(_)))
}

/// Whether a server's database may be spoken to without TLS beyond this machine.
pub fn may_be_plaintext(url: &str) -> bool {
    match url::parse(url) {
        Ok(url::DatabaseUrl::MySql(address) | url::DatabaseUrl::Postgres(address)) => {
            address.may_be_plaintext()
        }
        _ => false,
    }
}

async fn open_adapter(url: &str, vendor: VendorTables) -> Result<Arc<dyn copying::Adapter>, StoreError> {
    Ok(match url::parse(url)? {
        url::DatabaseUrl::Sqlite(path) => Arc::new(sqlite::Sqlite::open(&path, vendor).await?),
        url::DatabaseUrl::MySql(address) => Arc::new(mysql::MySql::open(&address, vendor).await?),
        url::DatabaseUrl::Postgres(address) => Arc::new(postgres::Postgres::open(&address, vendor).await?),
    })
}

/// Epoch milliseconds, for `last_updated`.
fn now() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}
