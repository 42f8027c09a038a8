//! Rows of the database, as an external reader sees them.

use super::{CachedObject, MAX_WAIT, World};
use kubesvc_testkit::wait::eventually;

pub(super) const SELECT: &str = "SELECT name, uid, status, zone_id, is_dynamic, origin, definition, props, kube_host, \
                      kube_version, cert_fingerprint, cluster_uid, namespaces, namespaces_count, error_message, \
                      failed_count, generation, observed_generation, connections FROM kubesvc_accounts";

/// Defines a row, read from the columns that its fields are named after.
macro_rules! row {
    ($(#[$attribute:meta])* $row:ident { $($column:ident: $type:ty,)+ }) => {
        $(#[$attribute])*
        pub(crate) struct $row {
            $(pub(crate) $column: $type,)+
        }

        impl<'r, R: sqlx::Row> sqlx::FromRow<'r, R> for $row
        where
            &'static str: sqlx::ColumnIndex<R>,
            $($type: sqlx::Decode<'r, R::Database> + sqlx::Type<R::Database>,)+
        {
            fn from_row(row: &'r R) -> sqlx::Result<Self> {
                Ok(Self { $($column: row.try_get(stringify!($column))?,)+ })
            }
        }
    };
}

row! {
/// A row of `kubesvc_accounts`.
#[derive(Clone, Debug)]
#[expect(dead_code, reason = "all columns are shown when a test fails")]
Row {
    name: String,
    uid: Option<String>,
    status: String,
    zone_id: Option<String>,
    is_dynamic: bool,
    origin: String,
    definition: Option<String>,
    props: Option<String>,
    kube_host: Option<String>,
    kube_version: Option<String>,
    cert_fingerprint: Option<String>,
    cluster_uid: Option<String>,
    namespaces: Option<String>,
    namespaces_count: Option<i32>,
    error_message: Option<String>,
    failed_count: i32,
    generation: i64,
    observed_generation: i64,
    connections: i32,
}}

row! {
/// A row of `kubesvc_cache`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
CachedRow {
    kind: String,
    account: String,
    namespace: String,
    name: String,
    id: String,
    uid: Option<String>,
    resource_version: String,
    application: Option<String>,
    body: Option<String>,
}}

impl World {
    /// Returns the row of an account. Like all reads here, retries while the database does not answer.
    pub(crate) async fn row(&self, name: &str) -> Option<Row> {
        self.rows().await.into_iter().find(|row| row.name == name)
    }

    /// Like [`World::row`], without retries.
    ///
    /// # Errors
    ///
    /// The database does not answer, or a row cannot be read.
    pub(crate) async fn try_row(&self, name: &str) -> Result<Option<Row>, String> {
        Ok(self.try_rows().await?.into_iter().find(|row| row.name == name))
    }

    /// Returns all rows, by name.
    pub(crate) async fn rows(&self) -> Vec<Row> {
        eventually("the rows", MAX_WAIT, async || self.try_rows().await).await
    }

    /// Like [`World::rows`], without retries.
    ///
    /// # Errors
    ///
    /// The database does not answer, or a row cannot be read.
    pub(crate) async fn try_rows(&self) -> Result<Vec<Row>, String> {
        self.read_rows().await.map_err(|e| format!("the database: {e}"))
    }

    async fn read_rows(&self) -> sqlx::Result<Vec<Row>> {
        self.open_database().await?.rows().await
    }

    /// Returns account and agent of each row of `kubesvc_assignments`, in order.
    ///
    /// # Errors
    ///
    /// The database does not answer.
    pub(crate) async fn try_assignments(&self) -> Result<Vec<(String, String)>, String> {
        let read = async { self.open_database().await?.assignments().await };
        read.await.map_err(|error| format!("the database: {error}"))
    }

    /// Returns the cached objects.
    ///
    /// # Errors
    ///
    /// The database does not answer.
    pub(crate) async fn try_cached_objects(&self) -> Result<Vec<CachedObject>, String> {
        let read = async { self.open_database().await?.cached_objects().await };
        read.await.map_err(|error| format!("the database: {error}"))
    }

    /// Returns account, epoch and agent of each row of `kubesvc_caching`, in order.
    pub(crate) async fn fences(&self) -> Vec<(String, i64, Option<String>)> {
        eventually("the fences", MAX_WAIT, async || self.try_fences().await).await
    }

    /// Like [`World::fences`], without retries.
    ///
    /// # Errors
    ///
    /// The database does not answer.
    pub(crate) async fn try_fences(&self) -> Result<Vec<(String, i64, Option<String>)>, String> {
        let read = async { self.open_database().await?.fences().await };
        read.await.map_err(|error| format!("the database: {error}"))
    }

    /// Returns the replicas that have rows in `kubesvc_assignments`, in order.
    pub(crate) async fn assigned_replicas(&self) -> Vec<String> {
        eventually("the replicas with assignments", MAX_WAIT, async || self.try_assigned_replicas().await)
            .await
    }

    /// Like [`World::assigned_replicas`], without retries.
    ///
    /// # Errors
    ///
    /// The database does not answer.
    pub(crate) async fn try_assigned_replicas(&self) -> Result<Vec<String>, String> {
        let read = async { self.open_database().await?.assigned_replicas().await };
        read.await.map_err(|error| format!("the database: {error}"))
    }

    /// Waits until the assignments are exactly these pairs of account and agent name, in order.
    pub(crate) async fn until_assigned(&self, wanted: &[(&str, &str)]) {
        eventually("the assignments as they should be", MAX_WAIT, async || {
            let told = self.try_assignments().await?;
            let told: Vec<_> =
                told.iter().map(|(account, agent)| (account.as_str(), agent.as_str())).collect();
            if told == wanted { Ok(()) } else { Err(format!("they are {told:?}, not {wanted:?}")) }
        })
        .await;
    }

    /// Waits until the row of an account counts this many agents.
    pub(crate) async fn until_connections(&self, name: &str, wanted: i32) {
        eventually(&format!("{wanted} agents in the row of {name}"), MAX_WAIT, async || {
            match self.try_row(name).await? {
                Some(row) if row.connections == wanted => Ok(()),
                row => Err(format!("{row:?}")),
            }
        })
        .await;
    }

    /// Waits until an account has no row.
    pub(crate) async fn until_row_gone(&self, name: &str) {
        eventually(&format!("no row of {name}"), MAX_WAIT, async || match self.try_row(name).await? {
            None => Ok(()),
            Some(row) => Err(format!("{row:?}")),
        })
        .await;
    }

    /// Like [`World::until_row`], for a row that belongs to kubesvc.
    pub(crate) async fn until_own_row(&self, name: &str, status: &str) -> Row {
        eventually(&format!("a row of {name} that is kubesvc's and says {status}"), MAX_WAIT, async || {
            match self.try_row(name).await? {
                Some(row) if row.uid.is_some() && row.status == status => Ok(row),
                row => Err(format!("{row:?}")),
            }
        })
        .await
    }

    /// Waits until the row of an account has this status and matches the current object: rows follow objects with a
    /// delay, and an earlier row may have had the same status.
    pub(crate) async fn until_row(&self, name: &str, status: &str) -> Row {
        eventually(&format!("a row of {name} that says {status}"), MAX_WAIT, async || {
            let row = self.try_row(name).await?.filter(|row| row.status == status);
            let row = row.ok_or_else(|| format!("{name} has no row that says so"))?;
            let Some(object) = self.try_account_named(name).await? else { return Ok(row) };
            let shown = object.status_or_default();
            if (row.observed_generation, row.failed_count) == (shown.observed_generation, shown.failed_count)
            {
                Ok(row)
            } else {
                Err(format!(
                    "{row:?}, while the object is of {} with {}",
                    shown.observed_generation, shown.failed_count
                ))
            }
        })
        .await
    }
}
