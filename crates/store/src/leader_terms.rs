//! The leader's term in `kubesvc_locks`. Beginning a term ends the previous leader's. Every transaction of a leader
//! first checks that its term is still the newest, and locks the row until it commits, so that no other term can
//! begin meanwhile.

use async_trait::async_trait;

use super::StoreError;
use super::dialect::Dialect;
use super::sql::statement::Statement;
use super::sql::{SqlSession, SqlStore, Transaction};
use kubesvc_core::ReplicaId;

/// A leader's term. A later one is greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Term(pub(super) i64);

impl Term {
    /// The number stored in `kubesvc_locks`.
    pub fn number(self) -> i64 {
        self.0
    }
}

/// The terms of leaders.
#[async_trait]
pub trait TermStore: Send + Sync {
    /// Begins a leader's term: from now on, writes under an earlier one fail with [`StoreError::Deposed`].
    async fn begin_term(&self, replica_id: &ReplicaId) -> Result<Term, StoreError>;
}

#[async_trait]
impl<D: Dialect> TermStore for SqlStore<D> {
    async fn begin_term(&self, replica_id: &ReplicaId) -> Result<Term, StoreError> {
        self.transact(&Begin { owner: owner(replica_id) }).await
    }
}

/// Maximum length of an owner, in characters.
const MAX_OWNER_CHARS: usize = 255;

/// The owner stored in `kubesvc_locks`: the replica id, truncated to [`MAX_OWNER_CHARS`].
fn owner(replica_id: &ReplicaId) -> String {
    replica_id.as_str().chars().filter(|one| *one != '\0').take(MAX_OWNER_CHARS).collect()
}

/// The transaction that begins a new term.
struct Begin {
    owner: String,
}

impl<D: Dialect> Transaction<D> for Begin {
    type Answer = Term;

    async fn run(&self, session: &mut SqlSession<'_, D>) -> Result<Term, StoreError> {
        let next = || {
            Statement::new("UPDATE kubesvc_locks SET token = token + 1, owner = ? WHERE name = 'leader'")
                .bind(self.owner.as_str())
        };
        if session.execute(next()).await? == 0 {
            session.execute(Statement::new(D::INSERT_LEADER)).await?;
            session.execute(next()).await?;
        }
        let select = Statement::new("SELECT token FROM kubesvc_locks WHERE name = 'leader'");
        let token = session.select(select).await?.pop();
        token.map(Term).ok_or_else(|| StoreError::unavailable("the leader's row in kubesvc_locks is gone"))
    }
}

/// Checks the term and locks its row until the transaction ends. Without a term, any writer is allowed.
pub(super) async fn hold<D: Dialect>(
    session: &mut SqlSession<'_, D>,
    term: Option<Term>,
) -> Result<(), StoreError> {
    let Some(term) = term else { return Ok(()) };
    let hold = Statement::new("UPDATE kubesvc_locks SET token = token WHERE name = 'leader' AND token = ?")
        .bind(term.0);
    match session.execute(hold).await? {
        0 => Err(StoreError::Deposed),
        _ => Ok(()),
    }
}
