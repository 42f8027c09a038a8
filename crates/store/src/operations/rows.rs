//! The tables `kubesvc_ops` and `kubesvc_ops_history`, and what a row of them holds.

use super::MAX_OPERATIONS;
use crate::StoreError;
use crate::dialect::Dialect;
use crate::sql::RowOf;
use crate::sql::driver::{ColumnValue, Value};
use crate::sql::statement::ColumnType::{Bigint, Boolean, Int, Text};
use crate::sql::statement::{ColumnType, SqlTable, Statement};

/// The columns that both tables have, in the order of [`values`].
const RECORD: [(&str, ColumnType); 24] = [
    ("operation_id", Text),
    ("operation_type", Text),
    ("account", Text),
    ("account_uid", Text),
    ("start_time", Bigint),
    ("end_time", Bigint),
    ("total_duration_ms", Bigint),
    ("final_outcome", Text),
    ("received_by_cd_id", Text),
    ("received_by_cd_time", Bigint),
    ("processed_by_cd_id", Text),
    ("processed_by_cd_time", Bigint),
    ("sent_to_agent_id", Text),
    ("sent_to_agent_time", Bigint),
    ("res_received_from_agent_agent_id", Text),
    ("res_received_from_agent_cd_id", Text),
    ("res_received_from_agent_time", Bigint),
    ("res_received_from_agent_result_status", Int),
    ("res_received_from_agent_result_duration_ms", Bigint),
    ("res_received_by_cd_id", Text),
    ("res_received_by_cd_time", Bigint),
    ("principal", Text),
    ("request_id", Text),
    ("dry_run", Boolean),
];

/// The column of operations that ended alone: a JSON array.
const HISTORY_ONLY: [(&str, ColumnType); 1] = [("warnings", Text)];

/// The columns of open operations alone.
const OPEN_ONLY: [(&str, ColumnType); 5] = [
    ("state", Text),
    ("deadline", Bigint),
    ("idempotent", Boolean),
    ("last_write", Text),
    ("agent_boot_id", Text),
];

/// [`RECORD`] and the columns of one table alone.
const fn with<const MORE: usize, const ALL: usize>(
    more: [(&'static str, ColumnType); MORE],
) -> [(&'static str, ColumnType); ALL] {
    let mut all = [("", Text); ALL];
    let mut at = 0;
    while at < ALL {
        all[at] = if at < RECORD.len() { RECORD[at] } else { more[at - RECORD.len()] };
        at += 1;
    }
    all
}

const OPEN_COLUMNS: [(&str, ColumnType); RECORD.len() + OPEN_ONLY.len()] = with(OPEN_ONLY);
const HISTORY_COLUMNS: [(&str, ColumnType); RECORD.len() + HISTORY_ONLY.len()] = with(HISTORY_ONLY);

/// Open operations.
pub(crate) const OPEN: SqlTable =
    SqlTable { name: "kubesvc_ops", key: &["operation_id"], columns: &OPEN_COLUMNS, ours: None };

/// Operations that ended.
pub(crate) const HISTORY: SqlTable =
    SqlTable { name: "kubesvc_ops_history", key: &["operation_id"], columns: &HISTORY_COLUMNS, ours: None };

/// Approximate size of a row without warnings in a statement, in bytes.
const WEIGHT: usize = 1024;
/// Maximum length of a principal, in characters.
const MAX_PRINCIPAL: usize = 255;

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationOutcome {
    /// It is open.
    Pending,
    /// It succeeded.
    Completed,
    /// It failed, or was not begun.
    Failed,
    /// It took too long, and certainly nothing was done.
    Timeout,
    /// It may or may not have been done.
    Unknown,
}

impl OperationOutcome {
    const ALL: [Self; 5] = [Self::Pending, Self::Completed, Self::Failed, Self::Timeout, Self::Unknown];

    /// Its name in the table and in records.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Timeout => "timeout",
            Self::Unknown => "unknown",
        }
    }
}

/// A step of an operation: where, and when in epoch milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageRecord {
    /// Id of the replica, or of the agent.
    pub id: String,
    /// Time in epoch milliseconds.
    pub time_ms: i64,
}

/// The answer of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerRecord {
    /// Id of the agent.
    pub agent_id: String,
    /// The replica that received it.
    pub replica_id: String,
    /// Time in epoch milliseconds.
    pub time_ms: i64,
    /// HTTP status.
    pub status: i32,
    /// Time from the first request to the last answer, in milliseconds.
    pub duration_ms: i64,
}

/// What is recorded of an operation. Nothing of its manifest or its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationRecord {
    /// Id, a ULID.
    pub operation_id: String,
    /// `Deploy`, `Scale` …
    pub operation_type: String,
    /// Name of the account.
    pub account: String,
    /// uid of the account.
    pub account_uid: Option<String>,
    /// When it was received, in epoch milliseconds.
    pub start_time_ms: i64,
    /// When it ended, in epoch milliseconds.
    pub end_time_ms: Option<i64>,
    /// How it ended.
    pub outcome: OperationOutcome,
    /// The replica that received it.
    pub received: Option<StageRecord>,
    /// The replica whose agent did it.
    pub processed: Option<StageRecord>,
    /// The agent that did it.
    pub sent: Option<StageRecord>,
    /// What the agent answered.
    pub answered: Option<AnswerRecord>,
    /// The replica that gave the answer to the caller.
    pub delivered: Option<StageRecord>,
    /// Who asked for it.
    pub principal: Option<String>,
    /// Id of its last write, as the target cluster's audit log has it. If nothing was written, the log does not have it.
    pub request_id: Option<String>,
    /// Whether nothing was to be changed.
    pub dry_run: bool,
    /// What the API server warned of, once it has ended.
    pub warnings: Vec<String>,
}

/// How far an open operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationState {
    /// No write was sent, but for `last_write`, if it has one.
    Received,
    /// A write may have been sent.
    Sent,
}

impl OperationState {
    fn as_str(self) -> &'static str {
        match self {
            Self::Received => "RECEIVED",
            Self::Sent => "SENT",
        }
    }
}

/// An open operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenOperation {
    /// What is recorded of it.
    pub record: OperationRecord,
    /// How far it is.
    pub state: OperationState,
    /// When its replica gives it up, in epoch milliseconds.
    pub deadline_ms: i64,
    /// Whether it may run again.
    pub is_idempotent: bool,
    /// Id of the last write whose answer decides the outcome. It may have been sent, or is about to be.
    pub last_write: Option<String>,
    /// The process of the agent that it was sent to.
    pub agent_boot_id: Option<String>,
}

/// Refuses what no database takes.
pub(super) fn check<'r>(records: impl IntoIterator<Item = &'r OperationRecord>) -> Result<(), StoreError> {
    for (before, record) in records.into_iter().enumerate() {
        if before == MAX_OPERATIONS {
            return Err(refused("", "there are too many at once"));
        }
        check_record(record)?;
    }
    Ok(())
}

fn check_record(record: &OperationRecord) -> Result<(), StoreError> {
    let id = &record.operation_id;
    let too_long = |text: &str, most: usize| text.chars().count() > most || text.contains('\0');
    let ids = [&record.received, &record.processed, &record.sent, &record.delivered];
    let long_id = ids.into_iter().flatten().any(|stage| too_long(&stage.id, 191));
    if id.is_empty() || id.len() > 26 || !id.is_ascii() {
        return Err(refused(id, "its id is no ULID"));
    }
    if too_long(&record.account, 255)
        || too_long(&record.operation_type, 32)
        || record.account_uid.as_deref().is_some_and(|uid| too_long(uid, 36))
        || record.request_id.as_deref().is_some_and(|id| too_long(id, 26))
        || long_id
    {
        return Err(refused(id, "one of its texts is too long or has a NUL"));
    }
    Ok(())
}

pub(super) fn refused(id: &str, why: &'static str) -> StoreError {
    StoreError::refused(format!("the operation {id:?}"), why)
}

/// Approximate size of a row in a statement, in bytes.
pub(super) fn weight(record: &OperationRecord) -> usize {
    WEIGHT + record.warnings.iter().map(String::len).sum::<usize>()
}

/// Sorts by id, as every transaction writes them; of two with the same id the first one stays.
pub(super) fn sorted<T>(mut all: Vec<&T>, record: impl Fn(&T) -> &OperationRecord) -> Vec<&T> {
    all.sort_by(|a, b| record(a).operation_id.cmp(&record(b).operation_id));
    all.dedup_by(|later, kept| record(later).operation_id == record(kept).operation_id);
    all
}

/// Inserts open operations, or overwrites them.
pub(super) fn put_open<D: Dialect>(open: &[&OpenOperation]) -> Statement<D> {
    let columns = OPEN.column_names();
    let assigned: Vec<_> = columns
        .iter()
        .filter(|column| **column != "operation_id")
        .map(|column| format!("{column}={}", D::inserted(column)))
        .collect();
    insert_into_open(open, &assigned.join(","))
}

/// Inserts open operations. One that is there keeps its row.
pub(super) fn insert_open<D: Dialect>(open: &[&OpenOperation]) -> Statement<D> {
    insert_into_open(open, &format!("operation_id={}.operation_id", OPEN.name))
}

/// Overwrites the row of an open operation.
pub(super) fn update_open<D: Dialect>(open: &OpenOperation) -> Statement<D> {
    let columns = OPEN.column_names();
    let principal = principal(&open.record);
    Statement::new(&format!("UPDATE {} SET {}=? WHERE operation_id = ?", OPEN.name, columns.join("=?,")))
        .bind_all(open_values(open, principal.as_deref()))
        .bind(open.record.operation_id.as_str())
}

/// Inserts open operations, with these assignments to those that are there.
fn insert_into_open<D: Dialect>(open: &[&OpenOperation], assigned: &str) -> Statement<D> {
    let principals: Vec<_> = open.iter().map(|open| principal(&open.record)).collect();
    let rows: Vec<_> = open
        .iter()
        .zip(&principals)
        .map(|(open, principal)| open_values(open, principal.as_deref()))
        .collect();
    let into = Statement::new(&format!("INSERT INTO {} ({}) ", OPEN.name, OPEN.column_names().join(",")));
    D::rows(into, &OPEN, &rows, None).text(&format!(" {}{assigned}", D::on_same_key("operation_id")))
}

/// Inserts ends. An operation that has ended before keeps its row.
pub(super) fn put_history<D: Dialect>(ends: &[&OperationRecord]) -> Statement<D> {
    on_former_end(insert_into_history(Statement::new(""), ends))
}

/// Inserts ends and deletes their open rows, in one statement. The rows are deleted first, as in a transaction that
/// settles an operation: of two that end it, one waits for the other.
pub(super) fn move_to_history<D: Dialect>(ends: &[&OperationRecord]) -> Statement<D> {
    let ids: Vec<&str> = ends.iter().map(|end| end.operation_id.as_str()).collect();
    let delete = format!("WITH ended AS (DELETE FROM {} WHERE operation_id ", OPEN.name);
    let delete = Statement::new(&delete).one_of(&ids).text(" RETURNING 1) ");
    on_former_end(insert_into_history(delete, ends).text(" WHERE (SELECT count(*) FROM ended) >= 0"))
}

/// Appends that a former end stays.
fn on_former_end<D: Dialect>(insert: Statement<D>) -> Statement<D> {
    let on_same_key = D::on_same_key("operation_id");
    insert.text(&format!(" {on_same_key}operation_id={}.operation_id", HISTORY.name))
}

/// Appends an `INSERT` of ends.
fn insert_into_history<D: Dialect>(statement: Statement<D>, ends: &[&OperationRecord]) -> Statement<D> {
    let texts: Vec<_> = ends.iter().map(|end| (principal(end), warnings(end))).collect();
    let mut rows = Vec::with_capacity(ends.len());
    for (end, (principal, warnings)) in ends.iter().zip(&texts) {
        let mut row = values(end, principal.as_deref());
        row.push(warnings.as_deref().into());
        rows.push(row);
    }
    let into = format!("INSERT INTO {} ({}) ", HISTORY.name, HISTORY.column_names().join(","));
    D::rows(statement.text(&into), &HISTORY, &rows, None)
}

/// The principal as it is stored: cut, and without what PostgreSQL does not take.
fn principal(record: &OperationRecord) -> Option<String> {
    let name = record.principal.as_ref()?;
    Some(name.chars().filter(|c| *c != '\0').take(MAX_PRINCIPAL).collect())
}

/// The warnings as they are stored.
fn warnings(record: &OperationRecord) -> Option<String> {
    // A list of texts can always be serialized.
    (!record.warnings.is_empty()).then(|| serde_json::to_string(&record.warnings).unwrap_or_default())
}

/// The values of an open row.
fn open_values<'v>(open: &'v OpenOperation, principal: Option<&'v str>) -> Vec<Value<'v>> {
    let mut values = values(&open.record, principal);
    values.extend([
        Value::from(open.state.as_str()),
        open.deadline_ms.into(),
        open.is_idempotent.into(),
        open.last_write.as_deref().into(),
        open.agent_boot_id.as_deref().into(),
    ]);
    values
}

fn values<'v>(record: &'v OperationRecord, principal: Option<&'v str>) -> Vec<Value<'v>> {
    let stage = |stage: &'v Option<StageRecord>| {
        let stage = stage.as_ref();
        [Value::from(stage.map(|stage| stage.id.as_str())), stage.map(|stage| stage.time_ms).into()]
    };
    let answered = record.answered.as_ref();
    let mut values: Vec<Value<'v>> = vec![
        record.operation_id.as_str().into(),
        record.operation_type.as_str().into(),
        record.account.as_str().into(),
        record.account_uid.as_deref().into(),
        record.start_time_ms.into(),
        record.end_time_ms.into(),
        record.end_time_ms.map(|end| end.saturating_sub(record.start_time_ms)).into(),
        record.outcome.as_str().into(),
    ];
    values.extend(stage(&record.received));
    values.extend(stage(&record.processed));
    values.extend(stage(&record.sent));
    values.extend([
        Value::from(answered.map(|answer| answer.agent_id.as_str())),
        answered.map(|answer| answer.replica_id.as_str()).into(),
        answered.map(|answer| answer.time_ms).into(),
        answered.map(|answer| answer.status).into(),
        answered.map(|answer| answer.duration_ms).into(),
    ]);
    values.extend(stage(&record.delivered));
    values.extend([Value::from(principal), record.request_id.as_deref().into(), record.dry_run.into()]);
    values
}

/// The columns of a record, as the rows of a statement have them.
pub(super) fn record_columns() -> String {
    HISTORY.column_names().join(",")
}

/// The same of a table. What is open has no warnings yet.
pub(super) fn record_columns_of(table: &SqlTable) -> String {
    let held = table.column_names();
    let named = |column: &str| match held.contains(&column) {
        true => column.to_owned(),
        false => format!("NULL AS {column}"),
    };
    HISTORY.column_names().into_iter().map(named).collect::<Vec<_>>().join(",")
}

/// Selects records of a table.
pub(super) fn select<D: Dialect>(table: &SqlTable) -> Statement<D> {
    Statement::new(&format!("SELECT {} FROM {}", record_columns_of(table), table.name))
}

pub(super) fn select_open<D: Dialect>() -> Statement<D> {
    Statement::new(&format!("SELECT {} FROM {}", OPEN.column_names().join(","), OPEN.name))
}

pub(super) fn read_record<D: Dialect>(row: &RowOf<D>) -> Result<OperationRecord, sqlx::Error> {
    let warnings = String::read::<D::Database>(row, RECORD.len())?;
    // What somebody else wrote says nothing.
    let warnings = warnings.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
    Ok(OperationRecord { warnings, ..read_common::<D>(row)? })
}

/// Reads the columns of a record that both tables have.
fn read_common<D: Dialect>(row: &RowOf<D>) -> Result<OperationRecord, sqlx::Error> {
    let text = |column| String::read::<D::Database>(row, column);
    let number = |column| i64::read::<D::Database>(row, column);
    let stage = |column| {
        let stage = text(column)?.zip(number(column + 1)?);
        Ok::<_, sqlx::Error>(stage.map(|(id, time_ms)| StageRecord { id, time_ms }))
    };
    let outcome = String::required::<D::Database>(row, 7)?;
    let answered = match (text(14)?, text(15)?, number(16)?, i32::read::<D::Database>(row, 17)?) {
        (Some(agent_id), Some(replica_id), Some(time_ms), Some(status)) => Some(AnswerRecord {
            agent_id,
            replica_id,
            time_ms,
            status,
            duration_ms: number(18)?.unwrap_or_default(),
        }),
        _ => None,
    };
    Ok(OperationRecord {
        operation_id: String::required::<D::Database>(row, 0)?,
        operation_type: String::required::<D::Database>(row, 1)?,
        account: String::required::<D::Database>(row, 2)?,
        account_uid: text(3)?,
        start_time_ms: i64::required::<D::Database>(row, 4)?,
        end_time_ms: number(5)?,
        // A word that somebody else wrote says nothing certain.
        outcome: OperationOutcome::ALL
            .into_iter()
            .find(|known| known.as_str() == outcome)
            .unwrap_or(OperationOutcome::Unknown),
        received: stage(8)?,
        processed: stage(10)?,
        sent: stage(12)?,
        answered,
        delivered: stage(19)?,
        principal: text(21)?,
        request_id: text(22)?,
        dry_run: bool::required::<D::Database>(row, 23)?,
        warnings: Vec::new(),
    })
}

pub(super) fn read_open<D: Dialect>(row: &RowOf<D>) -> Result<OpenOperation, sqlx::Error> {
    let state = String::required::<D::Database>(row, 24)?;
    Ok(OpenOperation {
        record: read_common::<D>(row)?,
        state: if state == OperationState::Received.as_str() {
            OperationState::Received
        } else {
            OperationState::Sent
        },
        deadline_ms: i64::required::<D::Database>(row, 25)?,
        is_idempotent: bool::required::<D::Database>(row, 26)?,
        last_write: String::read::<D::Database>(row, 27)?,
        agent_boot_id: String::read::<D::Database>(row, 28)?,
    })
}
