//! The operations: the port, its types, and the transactions.
//!
//! `kubesvc_ops` holds the open ones, `kubesvc_ops_history` those that ended, and every write through the accounts' API.
//! An operation ends in one transaction that deletes its open row and inserts its history, so that it is in one of the
//! two tables at any time. The first end counts: a later one changes nothing.
//!
//! Callers wait for these rows, so that a change alone is one statement where the database allows it, and no transaction.
//!
//! `rows` has the tables, and what a row holds.

use std::collections::HashSet;

use async_trait::async_trait;

use super::dialect::Dialect;
use super::sql::driver::ColumnValue as _;
use super::sql::statement::Statement;
use super::sql::{SqlSession, SqlStore, Transaction};
use super::{StoreError, Term, leader_terms};
use kubesvc_core::ReplicaId;
use rows::{HISTORY, OPEN};

pub(super) mod rows;

pub use rows::{AnswerRecord, OpenOperation, OperationOutcome, OperationRecord, OperationState, StageRecord};

/// Maximum number of operations in one page, and in one call that writes.
pub const MAX_OPERATIONS: usize = 1_000;

/// A change of the row of an operation.
#[derive(Clone, Debug, PartialEq)]
pub enum OperationChange {
    /// A new operation with an id of its caller. It is left out if another operation has the id.
    Begun(Box<OpenOperation>),
    /// An open operation, new or changed, with an id that this replica made: no other operation has it, and none but this
    /// replica writes that it is open.
    Open(Box<OpenOperation>),
    /// An operation of which a write is about to be sent. It is left out if it has ended, and refused if it has no row.
    Sent(Box<OpenOperation>),
    /// An operation that ended. If it has ended before, the former end stays.
    End(Box<OperationRecord>),
}

impl OperationChange {
    /// What is recorded.
    pub fn record(&self) -> &OperationRecord {
        match self {
            Self::Begun(open) | Self::Open(open) | Self::Sent(open) => &open.record,
            Self::End(record) => record,
        }
    }

    /// Id of the operation.
    pub fn id(&self) -> &str {
        &self.record().operation_id
    }
}

/// What became of a result that a person gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandSettlement {
    /// The operation was open or its outcome unknown, and has this result now.
    Settled,
    /// It has a result.
    AlreadySettled,
    /// There is no such operation.
    NotFound,
}

/// Which open operations are settled for the process that left them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Overdue {
    /// Those that are late, and those of dead replicas.
    Left {
        /// Those with a deadline before this time, in epoch milliseconds.
        deadline_before_ms: i64,
        /// Those of other replicas than these; empty: of none.
        live_replicas: Vec<ReplicaId>,
    },
    /// Those of the former process of a replica that was started again under its id.
    OfFormerProcess {
        /// Id of the replica.
        replica_id: ReplicaId,
        /// Those that began before this time, in epoch milliseconds.
        began_before_ms: i64,
    },
}

/// The operations of all accounts.
#[async_trait]
pub trait OperationStore: Send + Sync {
    /// Writes at most [`MAX_OPERATIONS`] changes. Returns what is recorded instead of those that were left out.
    async fn write_operations(&self, changes: &[OperationChange])
    -> Result<Vec<OperationRecord>, StoreError>;

    /// One operation, open or ended.
    async fn operation(&self, id: &str) -> Result<Option<OperationRecord>, StoreError>;

    /// A page of operations, open and ended, of one account or of all, the newest first.
    async fn operations(
        &self,
        account: Option<&str>,
        offset: u64,
        limit: u32,
    ) -> Result<Vec<OperationRecord>, StoreError>;

    /// At most `limit` open operations that their process does not settle any more, the oldest first.
    async fn overdue_operations(
        &self,
        overdue: &Overdue,
        limit: u32,
    ) -> Result<Vec<OpenOperation>, StoreError>;

    /// Ends operations that are still open; others are left as they are. Returns the ids of those that were.
    async fn end_open_operations(
        &self,
        term: Option<Term>,
        ends: &[OperationRecord],
    ) -> Result<Vec<String>, StoreError>;

    /// Gives an operation that is open, or whose outcome is unknown, the result of a person.
    async fn settle_operation(&self, record: &OperationRecord) -> Result<HandSettlement, StoreError>;

    /// Deletes at most `limit` ended operations that began before a time in epoch milliseconds, the oldest first.
    /// Returns how many.
    async fn purge_operations(
        &self,
        term: Option<Term>,
        older_than_ms: i64,
        limit: u32,
    ) -> Result<u64, StoreError>;

    /// Deletes the oldest ended operations beyond this number, at most `limit` of them. Returns how many.
    async fn trim_operations(&self, term: Option<Term>, max_rows: u64, limit: u32)
    -> Result<u64, StoreError>;
}

#[async_trait]
impl<D: Dialect> OperationStore for SqlStore<D> {
    async fn write_operations(
        &self,
        changes: &[OperationChange],
    ) -> Result<Vec<OperationRecord>, StoreError> {
        rows::check(changes.iter().map(OperationChange::record))?;
        if changes.is_empty() { Ok(Vec::new()) } else { self.transact(&WriteOperations::new(changes)).await }
    }

    async fn operation(&self, id: &str) -> Result<Option<OperationRecord>, StoreError> {
        self.read(async |session| {
            for table in [&OPEN, &HISTORY] {
                let select = rows::select(table).text(" WHERE operation_id = ?").bind(id);
                let mut found = session.all(select, rows::read_record::<D>).await?;
                if let Some(record) = found.pop() {
                    return Ok(Some(record));
                }
            }
            Ok(None)
        })
        .await
    }

    async fn operations(
        &self,
        account: Option<&str>,
        offset: u64,
        limit: u32,
    ) -> Result<Vec<OperationRecord>, StoreError> {
        self.read(async |session| {
            let mut select = Statement::new(&format!("SELECT {} FROM (", rows::record_columns()));
            let end = offset.saturating_add(u64::from(limit));
            let end = i64::try_from(end).unwrap_or(i64::MAX);
            for (at, table) in [&OPEN, &HISTORY].into_iter().enumerate() {
                let union = if at > 0 { " UNION ALL " } else { "" };
                // Each table gives as many rows as the page could take, so that an index orders them.
                select = select.text(&format!(
                    "{union}SELECT * FROM (SELECT {} FROM {}",
                    rows::record_columns_of(table),
                    table.name
                ));
                if let Some(account) = account {
                    select = select.text(" WHERE account = ?").bind(account);
                }
                select = select
                    .text(&format!(
                        " ORDER BY start_time DESC, operation_id DESC LIMIT ?) AS of_{}",
                        table.name
                    ))
                    .bind(end);
            }
            let select = select
                .text(") AS operations ORDER BY start_time DESC, operation_id DESC LIMIT ? OFFSET ?")
                .bind(i64::from(limit))
                .bind(i64::try_from(offset).unwrap_or(i64::MAX));
            session.all(select, rows::read_record::<D>).await
        })
        .await
    }

    async fn overdue_operations(
        &self,
        overdue: &Overdue,
        limit: u32,
    ) -> Result<Vec<OpenOperation>, StoreError> {
        self.read(async |session| {
            let select = match overdue {
                Overdue::Left { deadline_before_ms, live_replicas } => {
                    let late = rows::select_open().text(" WHERE deadline < ?").bind(*deadline_before_ms);
                    let live: Vec<&str> = live_replicas.iter().map(ReplicaId::as_str).collect();
                    if live.is_empty() {
                        late
                    } else {
                        late.text(" OR NOT (received_by_cd_id ").one_of(&live).text(")")
                    }
                }
                Overdue::OfFormerProcess { replica_id, began_before_ms } => rows::select_open()
                    .text(" WHERE received_by_cd_id = ? AND start_time < ?")
                    .bind(replica_id.as_str())
                    .bind(*began_before_ms),
            };
            let select = select.text(" ORDER BY start_time, operation_id LIMIT ?").bind(i64::from(limit));
            session.all(select, rows::read_open::<D>).await
        })
        .await
    }

    async fn end_open_operations(
        &self,
        term: Option<Term>,
        ends: &[OperationRecord],
    ) -> Result<Vec<String>, StoreError> {
        rows::check(ends)?;
        self.transact(&EndOpen { term, ends }).await
    }

    async fn settle_operation(&self, record: &OperationRecord) -> Result<HandSettlement, StoreError> {
        rows::check([record])?;
        self.transact(&Settle(record)).await
    }

    async fn purge_operations(
        &self,
        term: Option<Term>,
        older_than_ms: i64,
        limit: u32,
    ) -> Result<u64, StoreError> {
        self.transact(&Purge { term, what: Purged::OlderThan(older_than_ms), limit }).await
    }

    async fn trim_operations(
        &self,
        term: Option<Term>,
        max_rows: u64,
        limit: u32,
    ) -> Result<u64, StoreError> {
        self.transact(&Purge { term, what: Purged::Beyond(max_rows), limit }).await
    }
}

/// Writes changes. Those of each kind are sorted by id.
struct WriteOperations<'c> {
    begun: Vec<&'c OpenOperation>,
    open: Vec<&'c OpenOperation>,
    sent: Vec<&'c OpenOperation>,
    ends: Vec<&'c OperationRecord>,
}

impl<'c> WriteOperations<'c> {
    fn new(changes: &'c [OperationChange]) -> Self {
        let (mut begun, mut open, mut sent, mut ends) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        // Of two changes of an open operation the later one counts, of two ends the first.
        for change in changes.iter().rev() {
            match change {
                OperationChange::Begun(one) => begun.push(&**one),
                OperationChange::Open(one) => open.push(&**one),
                OperationChange::Sent(one) => sent.push(&**one),
                OperationChange::End(one) => ends.push(&**one),
            }
        }
        ends.reverse();
        let [begun, open, sent] = [begun, open, sent].map(|of| rows::sorted(of, |open| &open.record));
        Self { begun, open, sent, ends: rows::sorted(ends, |end| end) }
    }
}

impl<D: Dialect> Transaction<D> for WriteOperations<'_> {
    type Answer = Vec<OperationRecord>;

    fn commits_each_statement(&self, dialect: &D) -> bool {
        // What reads back whether an id was free: an insert without that answer must not stay.
        if !self.begun.is_empty() {
            return false;
        }
        let inserts = dialect.pieces(&self.open, |open| rows::weight(&open.record)).len();
        let of_each_end = if D::END_IS_ONE_STATEMENT { 1 } else { 2 };
        let of_ends = of_each_end * dialect.pieces(&self.ends, |end| rows::weight(end)).len();
        inserts + self.sent.len() + of_ends == 1
    }

    async fn run(&self, session: &mut SqlSession<'_, D>) -> Result<Vec<OperationRecord>, StoreError> {
        for piece in session.dialect.pieces(&self.begun, |open| rows::weight(&open.record)) {
            session.execute(rows::insert_open(piece)).await?;
        }
        for piece in session.dialect.pieces(&self.open, |open| rows::weight(&open.record)) {
            session.execute(rows::put_open(piece)).await?;
        }
        let mut without_row = Vec::new();
        for sent in self.sent.iter().copied() {
            if session.execute(rows::update_open(sent)).await? == 0 {
                without_row.push(sent);
            }
        }
        end(session, &self.ends).await?;
        // After the inserts: one that ended an operation before, or took its id, has committed that, and one that does it
        // later finds the row.
        let mut left_out = recorded(session, &self.begun).await?;
        let own: HashSet<_> = self.begun.iter().map(|open| begin(&open.record)).collect();
        left_out.retain(|there| there.outcome != OperationOutcome::Pending || !own.contains(&begin(there)));
        // The id is that of an operation that has ended, whose row the insert did not find.
        let ended = left_out.iter().filter(|there| there.outcome != OperationOutcome::Pending);
        delete_open(session, &ended.collect::<Vec<_>>()).await?;
        left_out.extend(recorded(session, &without_row).await?);
        let ended: HashSet<_> = left_out.iter().map(|end| end.operation_id.as_str()).collect();
        let ids = without_row.iter().map(|open| open.record.operation_id.as_str());
        match ids.into_iter().find(|id| !ended.contains(id)) {
            Some(id) => Err(rows::refused(id, "its row was deleted")),
            None => Ok(left_out),
        }
    }
}

/// What tells an operation from another one with its id: which replica received it, and when.
fn begin(record: &OperationRecord) -> (&str, Option<(&str, i64)>, i64) {
    let received = record.received.as_ref().map(|stage| (stage.id.as_str(), stage.time_ms));
    (&record.operation_id, received, record.start_time_ms)
}

/// What is recorded under the ids of these operations, in both tables.
async fn recorded<D: Dialect>(
    session: &mut SqlSession<'_, D>,
    open: &[&OpenOperation],
) -> Result<Vec<OperationRecord>, StoreError> {
    let mut records = Vec::new();
    for piece in session.dialect.pieces(open, |_| 0) {
        let ids: Vec<&str> = piece.iter().map(|open| open.record.operation_id.as_str()).collect();
        let select = rows::select(&HISTORY).text(" WHERE operation_id ").one_of(&ids);
        let columns = rows::record_columns_of(&OPEN);
        let union = format!(" UNION ALL SELECT {columns} FROM {} WHERE operation_id ", OPEN.name);
        records.extend(session.all(select.text(&union).one_of(&ids), rows::read_record::<D>).await?);
    }
    Ok(records)
}

async fn delete_open<D: Dialect>(
    session: &mut SqlSession<'_, D>,
    ends: &[&OperationRecord],
) -> Result<(), StoreError> {
    for piece in session.dialect.pieces(ends, |_| 0) {
        let ids: Vec<&str> = piece.iter().map(|end| end.operation_id.as_str()).collect();
        session.execute(Statement::new("DELETE FROM kubesvc_ops WHERE operation_id ").one_of(&ids)).await?;
    }
    Ok(())
}

/// Moves operations to the history.
async fn end<D: Dialect>(
    session: &mut SqlSession<'_, D>,
    ends: &[&OperationRecord],
) -> Result<(), StoreError> {
    if !D::END_IS_ONE_STATEMENT {
        delete_open(session, ends).await?;
    }
    for piece in session.dialect.pieces(ends, |end| rows::weight(end)) {
        let end =
            if D::END_IS_ONE_STATEMENT { rows::move_to_history(piece) } else { rows::put_history(piece) };
        session.execute(end).await?;
    }
    Ok(())
}

/// Ends operations that are still open.
struct EndOpen<'e> {
    term: Option<Term>,
    ends: &'e [OperationRecord],
}

impl<D: Dialect> Transaction<D> for EndOpen<'_> {
    type Answer = Vec<String>;

    async fn run(&self, session: &mut SqlSession<'_, D>) -> Result<Vec<String>, StoreError> {
        leader_terms::hold(session, self.term).await?;
        let mut ended = Vec::new();
        for end in rows::sorted(self.ends.iter().collect(), |end| end) {
            let delete = Statement::new("DELETE FROM kubesvc_ops WHERE operation_id = ?")
                .bind(end.operation_id.as_str());
            if session.execute(delete).await? == 1 {
                session.execute(rows::put_history(&[end])).await?;
                ended.push(end.operation_id.clone());
            }
        }
        Ok(ended)
    }
}

/// Writes the result of a person.
struct Settle<'r>(&'r OperationRecord);

impl<D: Dialect> Transaction<D> for Settle<'_> {
    type Answer = HandSettlement;

    async fn run(&self, session: &mut SqlSession<'_, D>) -> Result<HandSettlement, StoreError> {
        let id = self.0.operation_id.as_str();
        let open = Statement::new("DELETE FROM kubesvc_ops WHERE operation_id = ?").bind(id);
        let mut settled = session.execute(open).await? == 1;
        if !settled {
            let unknown = Statement::new(
                "DELETE FROM kubesvc_ops_history WHERE operation_id = ? AND final_outcome = 'unknown'",
            );
            settled = session.execute(unknown.bind(id)).await? == 1;
        }
        if settled {
            session.execute(rows::put_history(&[self.0])).await?;
            return Ok(HandSettlement::Settled);
        }
        let known = Statement::new("SELECT operation_id FROM kubesvc_ops_history WHERE operation_id = ?");
        let known = session.all(known.bind(id), |row| String::required::<D::Database>(row, 0)).await?;
        Ok(if known.is_empty() { HandSettlement::NotFound } else { HandSettlement::AlreadySettled })
    }
}

/// Deletes the oldest history.
struct Purge {
    term: Option<Term>,
    what: Purged,
    limit: u32,
}

#[derive(Clone, Copy)]
enum Purged {
    OlderThan(i64),
    Beyond(u64),
}

impl<D: Dialect> Transaction<D> for Purge {
    type Answer = u64;

    async fn run(&self, session: &mut SqlSession<'_, D>) -> Result<u64, StoreError> {
        leader_terms::hold(session, self.term).await?;
        let mut limit = i64::from(self.limit);
        if let Purged::Beyond(max_rows) = self.what {
            let count = Statement::new("SELECT count(*) FROM kubesvc_ops_history");
            let rows = session.all(count, |row| i64::required::<D::Database>(row, 0)).await?;
            let max_rows = i64::try_from(max_rows).unwrap_or(i64::MAX);
            limit = limit.min(rows.first().map_or(0, |rows| rows.saturating_sub(max_rows)));
            if limit <= 0 {
                return Ok(0);
            }
        }
        // The inner query has a name because MySQL takes a limit only there.
        let delete = Statement::new(
            "DELETE FROM kubesvc_ops_history WHERE operation_id IN (SELECT operation_id FROM \
             (SELECT operation_id FROM kubesvc_ops_history",
        );
        let delete = match self.what {
            Purged::OlderThan(time) => delete.text(" WHERE start_time < ?").bind(time),
            Purged::Beyond(_) => delete,
        };
        let delete = delete.text(" ORDER BY start_time, operation_id LIMIT ?) AS oldest)").bind(limit);
        session.execute(delete).await
    }
}
