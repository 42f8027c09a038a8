//! The rows of `kubesvc_accounts`, as every database gives and takes them.

use std::collections::HashMap;

use sqlx::{ColumnIndex, Decode, Row, Type};

use super::{
    Assignment, AssignmentChanges, ForeignRow, MAX_NAMESPACES, Malformed, NamespaceList, StoreError,
    StoredAccounts, limits,
};
use crate::account::row::AccountRow;

pub(super) const TABLE: &str = "kubesvc_accounts";

/// The columns of an [`AccountRow`], in the order in which they are bound and read; `name` is the first.
pub(super) const COLUMNS: [&str; 19] = [
    "name",
    "uid",
    "status",
    "zone_id",
    "is_dynamic",
    "origin",
    "definition",
    "props",
    "kube_host",
    "kube_version",
    "cert_fingerprint",
    "cluster_uid",
    "max_watch_age_seconds",
    "namespaces_count",
    "error_message",
    "failed_count",
    "next_retry_time",
    "generation",
    "observed_generation",
];

/// Binds a row's values in the order of [`COLUMNS`].
macro_rules! bind_account {
    ($query:expr, $row:expr) => {
        $query
            .bind($row.name.as_str())
            .bind($row.uid.as_str())
            .bind($row.status.as_str())
            .bind($row.zone_id.as_deref())
            .bind($row.is_dynamic)
            .bind($row.origin.as_str())
            .bind($row.definition.as_str())
            .bind($row.props.as_str())
            .bind($row.kube_host.as_deref())
            .bind($row.kube_version.as_deref())
            .bind($row.cert_fingerprint.as_deref())
            .bind($row.cluster_uid.as_deref())
            .bind($row.max_watch_age_seconds)
            .bind($row.namespaces_count)
            .bind($row.error_message.as_deref())
            .bind($row.failed_count)
            .bind($row.next_retry_time)
            .bind($row.generation)
            .bind($row.observed_generation)
    };
}
pub(super) use bind_account;

/// Binds an assignment's values in the order of the columns of `kubesvc_assignments`.
macro_rules! bind_assignment {
    ($query:expr, $row:expr, $replica:expr) => {
        $query
            .bind($row.account_name.as_str())
            .bind($row.agent_id.as_str())
            .bind($replica)
            .bind($row.connections)
            .bind($row.caching)
            .bind($row.reachable)
    };
}
pub(super) use bind_assignment;

/// Selects all rows of ours.
pub(super) fn select_ours() -> String {
    format!("SELECT {} FROM {TABLE} WHERE uid IS NOT NULL ORDER BY name", COLUMNS.join(","))
}

/// Selects all rows that are not ours, as [`foreign`] reads them.
pub(super) const SELECT_FOREIGN: &str =
    "SELECT name, status, zone_id, definition, props FROM kubesvc_accounts WHERE uid IS NULL ORDER BY name";

/// Selects the assignments of a replica, as [`assignment`] reads them; its id is the parameter to be appended.
pub(super) const SELECT_ASSIGNMENTS: &str = "SELECT account_name, agent_id, connections, caching, reachable FROM \
     kubesvc_assignments WHERE cd_id = ";

/// Selects the replicas that have assignments.
pub(super) const SELECT_REPLICAS: &str = "SELECT DISTINCT cd_id FROM kubesvc_assignments ORDER BY cd_id";

/// Selects the names of accounts of ours whose `connections` differ from their assignments, as
/// [`recounted`] would count them.
pub(super) const SELECT_MISCOUNTED: &str = "SELECT a.name FROM kubesvc_accounts a LEFT JOIN \
     (SELECT account_name, COUNT(DISTINCT agent_id) AS held FROM kubesvc_assignments WHERE reachable \
     GROUP BY account_name) h ON h.account_name = a.name \
     WHERE a.uid IS NOT NULL AND a.connections <> COALESCE(h.held, 0)";

/// The names of the accounts whose connections are to be counted after these changes, in the order in which rows are
/// written.
pub(super) fn recounted(changes: &AssignmentChanges) -> Vec<&str> {
    let deleted = changes.deletes.iter().map(|(account, _)| account);
    let put = changes.puts.iter().map(|row| &row.account_name);
    let mut names: Vec<&str> = deleted.chain(put).chain(&changes.recounts).map(String::as_str).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// The order in which rows are written, on every database: two writers never wait for one another in a ring.
pub(super) fn sorted(rows: &[std::sync::Arc<AccountRow>]) -> Vec<&AccountRow> {
    let mut rows: Vec<&AccountRow> = rows.iter().map(AsRef::as_ref).collect();
    rows.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    rows
}

/// Assignments in the order in which they are written; see [`sorted`].
pub(super) fn sorted_assignments(rows: &[Assignment]) -> Vec<&Assignment> {
    let mut rows: Vec<&Assignment> = rows.iter().collect();
    rows.sort_unstable_by(|a, b| (&a.account_name, &a.agent_id).cmp(&(&b.account_name, &b.agent_id)));
    rows
}

/// How many bytes a row takes in a statement, about.
pub(super) fn weight(row: &AccountRow) -> usize {
    const NUMBERS_BYTES: usize = 256;
    let texts = [&row.name, &row.uid, &row.status, &row.origin, &row.definition, &row.props];
    let maybe = [
        &row.zone_id,
        &row.kube_host,
        &row.kube_version,
        &row.cert_fingerprint,
        &row.cluster_uid,
        &row.error_message,
    ];
    NUMBERS_BYTES
        + texts.into_iter().map(String::len).sum::<usize>()
        + maybe.into_iter().flatten().map(String::len).sum::<usize>()
}

/// Whose rows a row takes the place of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplacedRows {
    /// Ours: [`Changes::puts`](super::Changes::puts).
    Ours,
    /// Somebody else's: [`Changes::adopts`](super::Changes::adopts).
    Theirs,
}

impl ReplacedRows {
    /// What is to be done about the row that has the name of `row`; `ours` if it has another uid of ours.
    pub(super) fn judge(self, row: &AccountRow, ours: bool) -> Result<(), StoreError> {
        match (self, ours) {
            (Self::Ours, true) | (Self::Theirs, false) => Ok(()),
            (Self::Ours, false) => Err(limits::refused(row, NAME_HAS_FOREIGN_ROW)),
            (Self::Theirs, true) => Err(limits::refused(row, NAME_HAS_OUR_ROW)),
        }
    }
}

/// What must go before rows can be written.
#[derive(Debug, Default)]
pub(super) struct ConflictingRows {
    /// uids of ours: of the name with another uid, or of the uid with another name.
    pub(super) uids: Vec<String>,
    /// Names of rows that are not ours.
    pub(super) foreign: Vec<String>,
}

/// What is in the way of these rows. `held` are name and uid of the rows that have one of the names or one of the
/// uids. What these rows may not take the place of refuses them.
pub(super) fn conflicting_rows(
    rows: &[&AccountRow],
    held: Vec<(Option<String>, Option<String>)>,
    taking: ReplacedRows,
) -> Result<ConflictingRows, StoreError> {
    let mut way = ConflictingRows::default();
    if held.is_empty() {
        return Ok(way);
    }
    let by_name: HashMap<&str, &AccountRow> = rows.iter().map(|row| (row.name.as_str(), *row)).collect();
    for (name, uid) in held {
        let wanted = name.as_deref().and_then(|name| by_name.get(name));
        match (wanted, uid) {
            (Some(row), Some(uid)) if row.uid == uid => {}
            (Some(row), uid) => {
                taking.judge(row, uid.is_some())?;
                match uid {
                    Some(uid) => way.uids.push(uid),
                    None => way.foreign.extend(name),
                }
            }
            (None, Some(uid)) => way.uids.push(uid),
            (None, None) => {}
        }
    }
    way.uids.sort_unstable();
    way.uids.dedup();
    Ok(way)
}

/// The refusal of the first row that has one of these names, which the database takes for its name.
pub(super) fn not_ours(rows: &[&AccountRow], names: &[String]) -> Result<(), StoreError> {
    // To MySQL a name is the same with spaces after it.
    let same = |name: &str, row: &AccountRow| name == row.name || name.trim_end_matches(' ') == row.name;
    match rows.iter().find(|row| names.iter().any(|name| same(name, row))) {
        Some(row) => Err(limits::refused(row, NAME_HAS_FOREIGN_ROW)),
        None => Ok(()),
    }
}

/// Why a row is refused whose name somebody else's row has.
pub(super) const NAME_HAS_FOREIGN_ROW: &str = "a row of that name without a uid is there already and is not kubesvc's; \
                        delete it, or give the account another name";

/// Why a row is refused that is to take the place of somebody else's, where one of ours stands.
pub(super) const NAME_HAS_OUR_ROW: &str = "a row of that name with another uid is there already; if no object has that uid, it goes \
                     within a minute";

/// Lists of namespaces as they are stored, each with its uid, in the order in which they are written.
pub(super) fn encode_lists(lists: &[NamespaceList]) -> Result<Vec<(&str, String)>, StoreError> {
    let encode = |list: &NamespaceList| encode_namespaces(&list.uid, &list.namespaces);
    let encoded = lists.iter().map(|list| Ok((list.uid.as_str(), encode(list)?)));
    let mut encoded = encoded.collect::<Result<Vec<_>, StoreError>>()?;
    encoded.sort_unstable();
    Ok(encoded)
}

fn encode_namespaces(uid: &str, namespaces: &[String]) -> Result<String, StoreError> {
    let what = || format!("the namespaces of the account with uid {uid:?}");
    if namespaces.len() > MAX_NAMESPACES {
        return Err(StoreError::refused(what(), format!("there are more than {MAX_NAMESPACES}")));
    }
    serde_json::to_string(namespaces).map_err(|error| StoreError::refused(what(), error))
}

/// The namespaces of an account from what is stored.
pub(super) fn decode_namespaces(name: &str, list: Option<String>) -> Result<Option<Vec<String>>, StoreError> {
    let Some(list) = list else { return Ok(None) };
    serde_json::from_str(&list).map(Some).map_err(|error| {
        let malformed = Malformed {
            table: TABLE,
            name: name.to_owned(),
            uid: None,
            column: "namespaces".to_owned(),
            why: error.to_string(),
        };
        StoreError::refused(malformed.to_string(), "it is no list of texts in JSON")
    })
}

type ColumnFault = (&'static str, String);

fn get<'r, R, T>(row: &'r R, column: usize) -> Result<T, ColumnFault>
where
    R: Row,
    usize: ColumnIndex<R>,
    T: Decode<'r, R::Database> + Type<R::Database>,
{
    // A driver may take NULL for an empty text or for zero.
    maybe(row, column)?.ok_or_else(|| (COLUMNS[column], "it is NULL".to_owned()))
}

fn maybe<'r, R, T>(row: &'r R, column: usize) -> Result<Option<T>, ColumnFault>
where
    R: Row,
    usize: ColumnIndex<R>,
    T: Decode<'r, R::Database> + Type<R::Database>,
{
    row.try_get(column).map_err(|error| {
        let why = match error {
            sqlx::Error::ColumnDecode { source, .. } => source.to_string(),
            error => error.to_string(),
        };
        (COLUMNS[column], why)
    })
}

fn read<'r, R>(row: &'r R) -> Result<AccountRow, ColumnFault>
where
    R: Row,
    usize: ColumnIndex<R>,
    String: Decode<'r, R::Database> + Type<R::Database>,
    bool: Decode<'r, R::Database> + Type<R::Database>,
    i32: Decode<'r, R::Database> + Type<R::Database>,
    i64: Decode<'r, R::Database> + Type<R::Database>,
{
    Ok(AccountRow {
        name: get(row, 0)?,
        uid: get(row, 1)?,
        status: get(row, 2)?,
        zone_id: maybe(row, 3)?,
        is_dynamic: get(row, 4)?,
        origin: get(row, 5)?,
        definition: get(row, 6)?,
        props: get(row, 7)?,
        kube_host: maybe(row, 8)?,
        kube_version: maybe(row, 9)?,
        cert_fingerprint: maybe(row, 10)?,
        cluster_uid: maybe(row, 11)?,
        max_watch_age_seconds: get(row, 12)?,
        namespaces_count: maybe(row, 13)?,
        error_message: maybe(row, 14)?,
        failed_count: get(row, 15)?,
        next_retry_time: maybe(row, 16)?,
        generation: get(row, 17)?,
        observed_generation: get(row, 18)?,
    })
}

/// Puts a row that [`select_ours`] gave to the others. `name` is what can be read of its name.
pub(super) fn collect<'r, R>(row: &'r R, name: impl FnOnce() -> String, accounts: &mut StoredAccounts)
where
    R: Row,
    usize: ColumnIndex<R>,
    String: Decode<'r, R::Database> + Type<R::Database>,
    bool: Decode<'r, R::Database> + Type<R::Database>,
    i32: Decode<'r, R::Database> + Type<R::Database>,
    i64: Decode<'r, R::Database> + Type<R::Database>,
{
    match read(row) {
        Ok(account) => accounts.rows.push(account),
        Err((column, why)) => accounts.malformed.push(Malformed {
            table: TABLE,
            name: name(),
            uid: row.try_get(1).ok(),
            column: column.to_owned(),
            why,
        }),
    }
}

/// The name of a row, if it can be read.
pub(super) fn name<'r, R>(row: &'r R) -> String
where
    R: Row,
    usize: ColumnIndex<R>,
    String: Decode<'r, R::Database> + Type<R::Database>,
{
    row.try_get(0).unwrap_or_default()
}

/// A row that [`SELECT_FOREIGN`] or [`vendor::select`](super::vendor::select) gave. What cannot be read of it is absent.
pub(super) fn foreign<'r, R>(row: &'r R) -> Option<ForeignRow>
where
    R: Row,
    usize: ColumnIndex<R>,
    String: Decode<'r, R::Database> + Type<R::Database>,
{
    let text = |column: usize| row.try_get::<Option<String>, _>(column).ok().flatten();
    Some(ForeignRow {
        name: text(0)?,
        status: text(1).unwrap_or_default(),
        zone_id: text(2),
        definition: text(3),
        props: text(4),
    })
}

/// A row that [`SELECT_ASSIGNMENTS`] gave.
pub(super) fn assignment<'r, R>(row: &'r R) -> Result<Assignment, sqlx::Error>
where
    R: Row,
    usize: ColumnIndex<R>,
    String: Decode<'r, R::Database> + Type<R::Database>,
    bool: Decode<'r, R::Database> + Type<R::Database>,
    i32: Decode<'r, R::Database> + Type<R::Database>,
{
    Ok(Assignment {
        account_name: row.try_get(0)?,
        agent_id: row.try_get(1)?,
        connections: row.try_get(2)?,
        caching: row.try_get(3)?,
        reachable: row.try_get(4)?,
    })
}
