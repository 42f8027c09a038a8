//! Whether this process may write rows, and under which term.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use super::Projection;
use super::state::ProjectionState;
use crate::{AssignmentChanges, StoreError, Term};
use kubesvc_core::ReplicaId;
use kubesvc_runtime::crash_points;

/// How long the database may take to begin a term; after that the leader goes on without rows. Longer than a connection
/// and a statement may take together, so that one that hangs is found out and given up by whoever waits for it.
const TERM_TIMEOUT: Duration = Duration::from_secs(12);

/// Asks whether the replica still leads. It is asked after a term was begun and before it is used: a replica that slept
/// through its lead must not end the term of whoever leads now and go on.
pub type Confirm = Arc<dyn Fn() -> BoxFuture<'static, bool> + Send + Sync>;

/// A lead that has begun.
#[derive(Clone)]
pub struct LeaderTerm {
    /// The replica, as it is named in `kubesvc_locks`.
    pub replica_id: ReplicaId,
    /// Whether it still leads.
    pub confirm: Confirm,
    /// Is cancelled when a later term was found: all work of the leader must end. Once it is cancelled, by whomever,
    /// nothing is written any more.
    pub over: CancellationToken,
}

/// Who writes rows.
#[derive(Clone, Default)]
pub(super) enum WriterRole {
    /// There is only this process.
    #[default]
    Alone,
    /// Another replica does, or nobody.
    Follows,
    /// This one does, once it has a term.
    Elected(LeaderTerm),
    /// This one does.
    Leads(LeaderTerm, Term),
}

impl WriterRole {
    /// Whether what is said here counts.
    pub(super) fn writes(&self) -> bool {
        match self {
            Self::Alone => true,
            Self::Follows => false,
            Self::Elected(lead) | Self::Leads(lead, _) => !lead.over.is_cancelled(),
        }
    }

    /// The term to write under.
    pub(super) fn term(&self) -> Option<Term> {
        match self {
            Self::Leads(_, term) => Some(*term),
            Self::Alone | Self::Follows | Self::Elected(_) => None,
        }
    }
}

impl Projection {
    /// Writes nothing until this replica [leads](Projection::lead): there are others. What waits is forgotten.
    pub fn follow(&self) {
        *self.role.lock() = WriterRole::Follows;
        self.drop_waiting();
        self.count_pending();
    }

    /// This replica leads. A term is begun and confirmed at once if the database allows, and else before the first row;
    /// what the table holds is read anew. It goes on until [`Projection::follow`], or until `over` is cancelled.
    pub async fn lead(&self, lead: LeaderTerm) {
        let _table = self.table.lock().await;
        self.drop_waiting();
        *self.state.lock() = ProjectionState::default();
        *self.role.lock() = WriterRole::Elected(lead);
        let begin = async {
            self.begin_leading().await?;
            self.read().await
        };
        let begun = tokio::time::timeout(TERM_TIMEOUT, begin).await;
        match begun.unwrap_or_else(|_| Err(StoreError::unavailable("the database does not answer in time"))) {
            Ok(()) => self.recover(),
            Err(error) => self.fail(&error),
        }
        self.wake.wake(());
    }

    /// The term that rows are written under; absent while there is none, and where there is only this process.
    pub fn term(&self) -> Option<Term> {
        self.role.lock().term()
    }

    /// Writes assignments for a replica that is gone, under the leader's term.
    pub async fn write_assignments(
        &self,
        replica_id: &ReplicaId,
        mut changes: AssignmentChanges,
    ) -> Result<(), StoreError> {
        let write = |term| async move {
            changes.term = term;
            self.store.write_assignments(replica_id, &changes).await
        };
        self.under_term(write).await
    }

    /// Writes to another table under the leader's term, which is absent where there is only this process.
    ///
    /// # Errors
    /// That of the write; [`StoreError::Deposed`] if another replica writes.
    pub async fn under_term<T, W: Future<Output = Result<T, StoreError>>>(
        &self,
        write: impl FnOnce(Option<Term>) -> W,
    ) -> Result<T, StoreError> {
        let term = self.term_to_write()?;
        self.judged(write(term).await)
    }

    /// Begins a term if this replica was elected and has none. The caller holds the table.
    pub(super) async fn begin_leading(&self) -> Result<(), StoreError> {
        let WriterRole::Elected(lead) = self.role.lock().clone() else { return Ok(()) };
        if lead.over.is_cancelled() {
            return Ok(());
        }
        crash_points::point("term:before");
        let term = self.store.begin_term(&lead.replica_id).await?;
        crash_points::point("term:after");
        let confirmed = (lead.confirm)().await && !lead.over.is_cancelled();
        let mut role = self.role.lock();
        // It may have been ended meanwhile, by whoever knows.
        if matches!(&*role, WriterRole::Elected(_)) {
            if confirmed {
                tracing::info!(term = term.number(), "writing rows under this term");
                *role = WriterRole::Leads(lead, term);
            } else {
                lead.over.cancel();
                *role = WriterRole::Follows;
            }
        }
        Ok(())
    }

    /// An error if another replica writes.
    pub(super) fn may_write(&self) -> Result<(), StoreError> {
        if self.role.lock().writes() { Ok(()) } else { Err(StoreError::Deposed) }
    }

    /// The term to write under, absent where there is only this process; an error if another replica writes, or if the
    /// term of this one has not begun: what is written without it is not fenced.
    pub(super) fn term_to_write(&self) -> Result<Option<Term>, StoreError> {
        let role = self.role.lock();
        match &*role {
            _ if !role.writes() => Err(StoreError::Deposed),
            WriterRole::Elected(_) => Err(StoreError::unavailable("the leader's term has not begun yet")),
            WriterRole::Alone | WriterRole::Follows | WriterRole::Leads(..) => Ok(role.term()),
        }
    }

    /// Ends the lead if the database knows a later term.
    pub(super) fn judged<T>(&self, answer: Result<T, StoreError>) -> Result<T, StoreError> {
        if matches!(answer, Err(StoreError::Deposed)) {
            self.counters.late.inc();
            // Also where this replica knows by now that it leads no more.
            tracing::warn!("a late write was refused: another replica leads under a later term");
            let mut role = self.role.lock();
            if let WriterRole::Leads(lead, _) = &*role {
                lead.over.cancel();
                *role = WriterRole::Follows;
            }
        }
        answer
    }
}
