//! The table `kubesvc_assignments`: which agent of which replica holds an account. The same transaction updates the
//! number of agents that hold each account in `kubesvc_accounts`.

use async_trait::async_trait;

use super::dialect::Dialect;
use super::sql::columns::{columns, table};
use super::sql::statement::Statement;
use super::sql::{SqlSession, SqlStore, Transaction};
use super::{StoreError, Term, column_limits, leader_terms, now};
use kubesvc_core::{AgentId, ReplicaId};

/// A row of `kubesvc_assignments`: an agent of one replica and an account that it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// Name of the account.
    pub account_name: String,
    /// id of the agent.
    pub agent_id: AgentId,
    /// Number of streams of the agent that have the account: 1 while it is connected.
    pub connections: i32,
    /// Whether this agent streams the account's objects.
    pub caching: bool,
    /// Whether operations can be sent to the agent.
    pub reachable: bool,
}

/// Changes to the assignments of one replica, written in one transaction. The same transaction updates `connections`
/// of the affected kubesvc rows in `kubesvc_accounts`: the number of reachable agents that hold the account, over all
/// replicas, each agent counted once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AssignmentChanges {
    /// Account name and agent of rows to delete. A missing row is not an error.
    pub deletes: Vec<(String, AgentId)>,
    /// Rows to write; each pair of account name and agent appears once.
    pub puts: Vec<Assignment>,
    /// Names of further accounts whose `connections` are recounted, besides those of all rows above.
    pub recounts: Vec<String>,
    /// The leader's term if the leader writes for a replica that is gone; `None` if the replica writes its own rows.
    pub term: Option<Term>,
}

table! {
    /// `kubesvc_assignments`.
    pub(super) const ASSIGNMENTS =
        "kubesvc_assignments", key &["account_name", "agent_id", "cd_id"], ours None;
    pub(super) fn values<'v>(row: &'v Assignment, replica_id: &'v ReplicaId) {
        account_name: Varchar(255) = &row.account_name,
        agent_id: Varchar(191) = row.agent_id.as_str(),
        cd_id: Varchar(191) = replica_id.as_str(),
        connections: Int = row.connections,
        caching: Boolean = row.caching,
        reachable: Boolean = row.reachable,
    }
}

columns! { Assignment: account_name, agent_id, connections, caching, reachable }

/// Names of kubesvc's accounts whose `connections` differ from what [`Dialect::count_connections`] would write.
const SELECT_MISCOUNTED: &str = "SELECT a.name FROM kubesvc_accounts a LEFT JOIN \
     (SELECT account_name, COUNT(DISTINCT agent_id) AS held FROM kubesvc_assignments WHERE reachable \
     GROUP BY account_name) h ON h.account_name = a.name \
     WHERE a.uid IS NOT NULL AND a.connections <> COALESCE(h.held, 0)";

/// The assignments of all replicas. Each method is one transaction.
#[async_trait]
pub trait AssignmentStore: Send + Sync {
    /// Writes assignments of a replica: all of these changes or none.
    async fn write_assignments(
        &self,
        replica_id: &ReplicaId,
        changes: &AssignmentChanges,
    ) -> Result<(), StoreError>;

    /// All assignments of a replica.
    async fn assignments(&self, replica_id: &ReplicaId) -> Result<Vec<Assignment>, StoreError>;

    /// Names of kubesvc's rows in `kubesvc_accounts` whose `connections` do not match the assignments.
    async fn miscounted(&self) -> Result<Vec<String>, StoreError>;

    /// The replicas that have assignments, each once.
    async fn assigned_replicas(&self) -> Result<Vec<ReplicaId>, StoreError>;
}

#[async_trait]
impl<D: Dialect> AssignmentStore for SqlStore<D> {
    async fn write_assignments(
        &self,
        replica_id: &ReplicaId,
        changes: &AssignmentChanges,
    ) -> Result<(), StoreError> {
        if *changes == AssignmentChanges::default() {
            return Ok(());
        }
        column_limits::check_assignments(replica_id, changes)?;
        self.transact(&WriteAssignments { replica_id, changes }).await
    }

    async fn assignments(&self, replica_id: &ReplicaId) -> Result<Vec<Assignment>, StoreError> {
        let select = Statement::new(
            "SELECT account_name, agent_id, connections, caching, reachable FROM kubesvc_assignments \
             WHERE cd_id = ?",
        );
        self.select(select.bind(replica_id.as_str())).await
    }

    async fn miscounted(&self) -> Result<Vec<String>, StoreError> {
        self.select(Statement::new(SELECT_MISCOUNTED)).await
    }

    async fn assigned_replicas(&self) -> Result<Vec<ReplicaId>, StoreError> {
        let select = "SELECT DISTINCT cd_id FROM kubesvc_assignments ORDER BY cd_id";
        self.select(Statement::new(select)).await
    }
}

/// Sorts assignments into the order in which they are written, so that two writers rarely deadlock.
fn sorted(rows: &[Assignment]) -> Vec<&Assignment> {
    let mut rows: Vec<&Assignment> = rows.iter().collect();
    rows.sort_unstable_by(|a, b| (&a.account_name, &a.agent_id).cmp(&(&b.account_name, &b.agent_id)));
    rows
}

/// Names of the accounts whose connections are recounted after these changes, in write order.
fn recounted(changes: &AssignmentChanges) -> Vec<&str> {
    let deleted = changes.deletes.iter().map(|(account, _)| account);
    let put = changes.puts.iter().map(|row| &row.account_name);
    let mut names: Vec<&str> = deleted.chain(put).chain(&changes.recounts).map(String::as_str).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// The transaction that writes the changes of one replica.
#[derive(Clone, Copy)]
struct WriteAssignments<'c> {
    replica_id: &'c ReplicaId,
    changes: &'c AssignmentChanges,
}

impl<D: Dialect> Transaction<D> for WriteAssignments<'_> {
    type Answer = ();

    async fn run(&self, session: &mut SqlSession<'_, D>) -> Result<(), StoreError> {
        let (Self { replica_id, changes }, now) = (*self, now());
        leader_terms::hold(session, changes.term).await?;
        for piece in session.dialect.pieces(&changes.deletes, |_| 0) {
            let delete = Statement::new(
                "DELETE FROM kubesvc_assignments WHERE cd_id = ? AND (account_name, agent_id) IN ",
            )
            .bind(replica_id.as_str());
            let keys: Vec<_> =
                piece.iter().map(|(account, agent)| (account.as_str(), agent.as_str())).collect();
            session.execute(D::pairs(delete, &keys)).await?;
        }
        for piece in session.dialect.pieces(&sorted(&changes.puts), |_| 0) {
            for row in piece {
                D::check_assignment(row, replica_id)?;
            }
            let rows: Vec<_> = piece.iter().map(|row| values(row, replica_id)).collect();
            session.execute(ASSIGNMENTS.upsert(&rows, now)).await?;
        }
        for piece in session.dialect.pieces(&recounted(changes), |_| 0) {
            if let Some(lock) = D::ROW_LOCK {
                // Lock the accounts in name order. The count then sees what other transactions have committed, and no
                // other transaction counts until this one ends.
                let rows = Statement::new("SELECT name FROM kubesvc_accounts WHERE name ")
                    .one_of(piece)
                    .text(" AND uid IS NOT NULL ORDER BY name ")
                    .text(lock);
                session.execute(rows).await?;
            }
            session.execute(D::count_connections(piece, now)).await?;
        }
        Ok(())
    }
}
