//! The column `namespaces` of `kubesvc_accounts`: the namespaces of an account, as an agent saw them.

use async_trait::async_trait;

use super::accounts::ACCOUNTS;
use super::dialect::Dialect;
use super::sql::driver::Driver as _;
use super::sql::statement::Statement;
use super::sql::{SqlSession, SqlStore, Transaction};
use super::{Malformed, StoreError, now};

/// Maximum number of namespaces stored for one account.
pub const MAX_NAMESPACES: usize = 10_000;

/// The namespaces of an account, as an agent saw them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceList {
    /// uid of the account.
    pub uid: String,
    /// Names of the namespaces.
    pub namespaces: Vec<String>,
}

/// The lists of namespaces of accounts. Each method is one transaction.
#[async_trait]
pub trait NamespaceStore: Send + Sync {
    /// Replaces the lists of namespaces of accounts, all or none. Each uid appears once; a list of more than
    /// [`MAX_NAMESPACES`] is refused. Returns the uids that have no row; their lists are dropped.
    async fn put_namespace_lists(&self, lists: &[NamespaceList]) -> Result<Vec<String>, StoreError>;

    /// The namespaces of one of kubesvc's accounts, by name; `None` without such a row or without a list.
    async fn namespaces(&self, account_name: &str) -> Result<Option<Vec<String>>, StoreError>;

    /// Replaces the list of namespaces of one account; see [`NamespaceStore::put_namespace_lists`]. Returns `false`
    /// if the account has no row.
    async fn put_namespaces(&self, uid: &str, namespaces: &[String]) -> Result<bool, StoreError> {
        let list = NamespaceList { uid: uid.to_owned(), namespaces: namespaces.to_vec() };
        Ok(self.put_namespace_lists(&[list]).await?.is_empty())
    }
}

#[async_trait]
impl<D: Dialect> NamespaceStore for SqlStore<D> {
    async fn put_namespace_lists(&self, lists: &[NamespaceList]) -> Result<Vec<String>, StoreError> {
        self.transact(&Put(encode_lists(lists)?)).await
    }

    async fn namespaces(&self, account_name: &str) -> Result<Option<Vec<String>>, StoreError> {
        let list = self.read(async |session| {
            let select = Statement::new("SELECT namespaces FROM kubesvc_accounts WHERE ");
            let select = D::name_is(select, account_name).text(" AND uid IS NOT NULL");
            let found = session.all(select, |row| Ok(D::Database::text(row, 0))).await?.pop();
            let what = || format!("table {}, row {account_name:?}, column namespaces", ACCOUNTS.name);
            found.transpose().map(Option::flatten).map_err(|error| StoreError::refused(what(), error))
        });
        decode(account_name, list.await?)
    }
}

/// The transaction that replaces lists, each with its uid.
struct Put<'l>(Vec<(&'l str, String)>);

impl<D: Dialect> Transaction<D> for Put<'_> {
    type Answer = Vec<String>;

    async fn run(&self, session: &mut SqlSession<'_, D>) -> Result<Vec<String>, StoreError> {
        D::put_namespaces(session, &self.0, now()).await
    }
}

/// Replaces lists one by one. Returns the uids that have no row.
pub(super) async fn put_each<D: Dialect>(
    session: &mut SqlSession<'_, D>,
    lists: &[(&str, String)],
    now: i64,
) -> Result<Vec<String>, StoreError> {
    let mut missing = Vec::new();
    // `last_updated` comes first because MySQL assigns from left to right: it must still see the old list.
    let sql = format!(
        "UPDATE kubesvc_accounts SET last_updated = CASE WHEN {} THEN last_updated ELSE ? END, namespaces = ? \
         WHERE uid = ?",
        D::same_as_parameter("namespaces")
    );
    for (uid, list) in lists {
        let list = list.as_str();
        let update = Statement::new(&sql).bind(list).bind(now).bind(list).bind(*uid);
        // Counts the rows that match, changed or not.
        if session.execute(update).await? == 0 {
            missing.push((*uid).to_owned());
        }
    }
    Ok(missing)
}

/// Encodes lists as they are stored, each with its uid, in write order.
fn encode_lists(lists: &[NamespaceList]) -> Result<Vec<(&str, String)>, StoreError> {
    let encode = |list: &NamespaceList| encode(&list.uid, &list.namespaces);
    let encoded = lists.iter().map(|list| Ok((list.uid.as_str(), encode(list)?)));
    let mut encoded = encoded.collect::<Result<Vec<_>, StoreError>>()?;
    encoded.sort_unstable();
    Ok(encoded)
}

fn encode(uid: &str, namespaces: &[String]) -> Result<String, StoreError> {
    let what = || format!("the namespaces of the account with uid {uid:?}");
    if namespaces.len() > MAX_NAMESPACES {
        return Err(StoreError::refused(what(), format!("there are more than {MAX_NAMESPACES}")));
    }
    serde_json::to_string(namespaces).map_err(|error| StoreError::refused(what(), error))
}

/// Decodes the stored namespaces of an account.
fn decode(name: &str, list: Option<String>) -> Result<Option<Vec<String>>, StoreError> {
    let Some(list) = list else { return Ok(None) };
    serde_json::from_str(&list).map(Some).map_err(|error| {
        let malformed = Malformed {
            table: ACCOUNTS.name,
            name: name.to_owned(),
            uid: None,
            column: "namespaces".to_owned(),
            why: error.to_string(),
        };
        StoreError::refused(malformed.to_string(), "it is no list of texts in JSON")
    })
}
