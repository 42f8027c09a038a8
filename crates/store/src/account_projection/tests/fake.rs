//! A store in memory that fails, refuses and holds still on demand.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::{
    AccountChanges, AccountStore, Assignment, AssignmentChanges, AssignmentStore, Fence, FenceStore,
    ForeignRow, HandSettlement, Malformed, NamespaceList, NamespaceStore, OpenOperation, OperationChange,
    OperationRecord, OperationStore, Overdue, RaiseOutcome, Store, StoreError, StoredAccounts, StoredFence,
    Term, TermStore, column_limits,
};
use kubesvc_core::ReplicaId;
use kubesvc_core::account_row::AccountRow;

pub(super) struct Fake {
    /// The table, by name.
    pub(super) table: Mutex<BTreeMap<String, AccountRow>>,
    pub(super) malformed: Mutex<Vec<Malformed>>,
    /// What was asked to be written, also if it failed.
    pub(super) writes: Mutex<Vec<AccountChanges>>,
    pub(super) commits: AtomicUsize,
    pub(super) reads: AtomicUsize,
    /// Nothing works.
    pub(super) down: AtomicBool,
    /// Reads of the accounts do not complete.
    pub(super) holds_reads: AtomicBool,
    /// It may be read.
    pub(super) full: AtomicBool,
    /// It commits, and the answer is lost.
    pub(super) loses_answers: AtomicBool,
    /// Rows of these names are refused.
    pub(super) refuses: Mutex<Vec<String>>,
    /// Names of rows that are somebody else's.
    pub(super) foreign: Mutex<Vec<String>>,
    /// Each write takes one; many to begin with.
    pub(super) gate: Semaphore,
    /// The newest term.
    pub(super) term: Mutex<Term>,
}

impl Fake {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            table: Mutex::default(),
            malformed: Mutex::default(),
            writes: Mutex::default(),
            commits: AtomicUsize::new(0),
            reads: AtomicUsize::new(0),
            down: AtomicBool::new(false),
            holds_reads: AtomicBool::new(false),
            full: AtomicBool::new(false),
            loses_answers: AtomicBool::new(false),
            refuses: Mutex::default(),
            foreign: Mutex::default(),
            gate: Semaphore::new(1_000_000),
            term: Mutex::new(Term(0)),
        })
    }

    pub(super) fn rows(&self) -> Vec<AccountRow> {
        self.table.lock().values().cloned().collect()
    }

    pub(super) fn set(&self, row: AccountRow) {
        self.table.lock().insert(row.name.clone(), row);
    }

    /// Writes wait until the gate is opened.
    pub(super) fn close_gate(&self) {
        self.gate.forget_permits(usize::MAX);
    }

    pub(super) fn open_gate(&self) {
        self.gate.add_permits(1_000_000);
    }

    fn answers(&self) -> Result<(), StoreError> {
        if self.down.load(Ordering::SeqCst) {
            return Err(StoreError::unavailable("the test pulled the plug"));
        }
        Ok(())
    }
}

#[async_trait]
impl AccountStore for Fake {
    async fn write(&self, changes: &AccountChanges) -> Result<(), StoreError> {
        self.gate.acquire().await.map_err(StoreError::unavailable)?.forget();
        self.writes.lock().push(changes.clone());
        self.answers()?;
        if self.full.load(Ordering::SeqCst) {
            return Err(StoreError::unavailable("the disk is full"));
        }
        column_limits::check(changes)?;
        if changes.term.is_some_and(|term| term != *self.term.lock()) {
            return Err(StoreError::Deposed);
        }
        let (refuses, mut foreign) = (self.refuses.lock(), self.foreign.lock());
        let put = changes.puts.iter().find(|row| foreign.contains(&row.name));
        let any = changes.puts.iter().chain(&changes.adopts).find(|row| refuses.contains(&row.name));
        if let Some(row) = put.or(any) {
            return Err(StoreError::refused(format!("row {:?}", row.name), "the test does not like it"));
        }
        let mut table = self.table.lock();
        table.retain(|_, row| !changes.deletes.contains(&row.uid));
        foreign.retain(|name| changes.adopts.iter().all(|row| row.name != *name));
        for row in changes.puts.iter().chain(&changes.adopts) {
            table.retain(|_, held| held.uid != row.uid);
            table.insert(row.name.clone(), (**row).clone());
        }
        self.commits.fetch_add(1, Ordering::SeqCst);
        if self.loses_answers.load(Ordering::SeqCst) {
            return Err(StoreError::unavailable("the answer was lost"));
        }
        Ok(())
    }

    async fn accounts(&self) -> Result<StoredAccounts, StoreError> {
        if self.holds_reads.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        self.answers()?;
        self.reads.fetch_add(1, Ordering::SeqCst);
        Ok(StoredAccounts {
            rows: self.rows(),
            malformed: self.malformed.lock().clone(),
            ..StoredAccounts::default()
        })
    }

    async fn foreign(&self) -> Result<Vec<ForeignRow>, StoreError> {
        self.answers()?;
        let row = |name: &String| ForeignRow { name: name.clone(), ..ForeignRow::default() };
        Ok(self.foreign.lock().iter().map(row).collect())
    }

    async fn vendor(&self) -> Result<Vec<ForeignRow>, StoreError> {
        self.answers().map(|()| Vec::new())
    }
}

#[async_trait]
impl crate::PushedStore for Fake {
    async fn pushed(&self) -> Result<Vec<crate::PushedRow>, StoreError> {
        Ok(Vec::new())
    }

    async fn put_pushed(&self, _: Option<Term>, _: &[crate::PushedRow]) -> Result<(), StoreError> {
        Ok(())
    }

    async fn delete_pushed(&self, _: Option<Term>, _: &str, _: &str) -> Result<(), StoreError> {
        Ok(())
    }
}

#[async_trait]
impl crate::IntentStore for Fake {
    async fn intents(&self) -> Result<Vec<crate::IntentRow>, StoreError> {
        Ok(Vec::new())
    }

    async fn begin_intents(&self, _: &[crate::IntentRow]) -> Result<Option<String>, StoreError> {
        Ok(None)
    }

    async fn mark_found(&self, _: &[crate::IntentRow]) -> Result<(), StoreError> {
        Ok(())
    }

    async fn count_intent_tries(&self, _: &[crate::IntentRow]) -> Result<(), StoreError> {
        Ok(())
    }

    async fn end_intents(&self, _: &[crate::IntentRow]) -> Result<(), StoreError> {
        Ok(())
    }
}

#[async_trait]
impl NamespaceStore for Fake {
    async fn put_namespace_lists(&self, lists: &[NamespaceList]) -> Result<Vec<String>, StoreError> {
        self.answers().map(|()| lists.iter().map(|list| list.uid.clone()).collect())
    }

    async fn namespaces(&self, _: &str) -> Result<Option<Vec<String>>, StoreError> {
        self.answers().map(|()| None)
    }
}

#[async_trait]
impl AssignmentStore for Fake {
    async fn write_assignments(&self, _: &ReplicaId, _: &AssignmentChanges) -> Result<(), StoreError> {
        Ok(())
    }

    async fn assignments(&self, _: &ReplicaId) -> Result<Vec<Assignment>, StoreError> {
        Ok(Vec::new())
    }

    async fn miscounted(&self) -> Result<Vec<String>, StoreError> {
        self.answers().map(|()| Vec::new())
    }

    async fn assigned_replicas(&self) -> Result<Vec<ReplicaId>, StoreError> {
        self.answers().map(|()| Vec::new())
    }
}

#[async_trait]
impl FenceStore for Fake {
    async fn raise_fences(&self, _: &[Fence]) -> Result<Vec<(String, RaiseOutcome)>, StoreError> {
        self.answers().map(|()| Vec::new())
    }

    async fn fences(&self) -> Result<Vec<StoredFence>, StoreError> {
        self.answers().map(|()| Vec::new())
    }
}

#[async_trait]
impl TermStore for Fake {
    async fn begin_term(&self, _: &ReplicaId) -> Result<Term, StoreError> {
        self.answers()?;
        let mut term = self.term.lock();
        term.0 += 1;
        Ok(*term)
    }
}

#[async_trait]
impl OperationStore for Fake {
    async fn write_operations(&self, _: &[OperationChange]) -> Result<Vec<OperationRecord>, StoreError> {
        self.answers().map(|()| Vec::new())
    }

    async fn operation(&self, _: &str) -> Result<Option<OperationRecord>, StoreError> {
        self.answers().map(|()| None)
    }

    async fn operations(&self, _: Option<&str>, _: u64, _: u32) -> Result<Vec<OperationRecord>, StoreError> {
        self.answers().map(|()| Vec::new())
    }

    async fn overdue_operations(&self, _: &Overdue, _: u32) -> Result<Vec<OpenOperation>, StoreError> {
        self.answers().map(|()| Vec::new())
    }

    async fn end_open_operations(
        &self,
        _: Option<Term>,
        _: &[OperationRecord],
    ) -> Result<Vec<String>, StoreError> {
        self.answers().map(|()| Vec::new())
    }

    async fn settle_operation(&self, _: &OperationRecord) -> Result<HandSettlement, StoreError> {
        self.answers().map(|()| HandSettlement::NotFound)
    }

    async fn purge_operations(&self, _: Option<Term>, _: i64, _: u32) -> Result<u64, StoreError> {
        self.answers().map(|()| 0)
    }

    async fn trim_operations(&self, _: Option<Term>, _: u64, _: u32) -> Result<u64, StoreError> {
        self.answers().map(|()| 0)
    }
}

#[async_trait]
impl Store for Fake {
    async fn ping(&self) -> Result<(), StoreError> {
        self.answers()
    }
}
