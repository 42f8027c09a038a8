//! An API server and a database in memory.

use std::collections::{BTreeMap, HashMap};

use async_trait::async_trait;
use kube::core::Status;
use parking_lot::Mutex;

use crate::hub::AccountObjects;
use kubesvc_core::{AgentId, KubesvcAccount, ReplicaId};
use kubesvc_runtime::kube_access::{KubeError, KubeRequest};
use kubesvc_store::{
    Assignment, AssignmentChanges, AssignmentStore, Fence, FenceStore, NamespaceList, NamespaceStore,
    RaiseOutcome, StoreError, StoredFence,
};

/// Accounts at an API server in memory. Writes are not shown in the index.
#[derive(Default)]
pub(super) struct FakeAccounts {
    pub(super) there: Mutex<HashMap<String, KubesvcAccount>>,
    pub(super) log: Mutex<Vec<String>>,
    /// Number of calls that fail.
    pub(super) failing: Mutex<usize>,
    /// Names that are refused.
    pub(super) refused: Mutex<Vec<String>>,
    version: Mutex<u32>,
}

impl FakeAccounts {
    pub(super) fn get_now(&self, name: &str) -> Option<KubesvcAccount> {
        self.there.lock().get(name).cloned()
    }

    fn begin(&self, call: &str, account: &KubesvcAccount) -> Result<String, KubeError> {
        let name = account.metadata.name.clone().expect("it has a name");
        let mut failing = self.failing.lock();
        if *failing > 0 {
            *failing -= 1;
            return Err(failed(503, "ServiceUnavailable", "down"));
        }
        self.log.lock().push(format!("{call} {name}"));
        if self.refused.lock().contains(&name) {
            return Err(failed(422, "Invalid", &format!("{name} is invalid")));
        }
        Ok(name)
    }

    fn put(&self, name: String, account: &KubesvcAccount) -> KubesvcAccount {
        let mut version = self.version.lock();
        *version += 1;
        let mut account = account.clone();
        account.metadata.resource_version = Some(version.to_string());
        account.metadata.uid.get_or_insert(format!("uid-{name}-{version}"));
        self.there.lock().insert(name, account.clone());
        account
    }
}

#[async_trait]
impl AccountObjects for FakeAccounts {
    async fn get(&self, _: &str, name: &str) -> Result<Option<KubesvcAccount>, KubeError> {
        Ok(self.get_now(name))
    }

    async fn create(&self, account: &KubesvcAccount) -> Result<KubesvcAccount, KubeError> {
        let name = self.begin("create", account)?;
        if self.get_now(&name).is_some() {
            return Err(failed(409, "Conflict", "changed"));
        }
        Ok(self.put(name, account))
    }

    async fn replace(&self, account: &KubesvcAccount) -> Result<KubesvcAccount, KubeError> {
        let name = self.begin("replace", account)?;
        let there = self.get_now(&name).map(|there| there.metadata.resource_version);
        if there.as_ref() != Some(&account.metadata.resource_version) {
            return Err(failed(409, "Conflict", "changed"));
        }
        Ok(self.put(name, account))
    }
}

fn failed(code: u16, reason: &str, message: &str) -> KubeError {
    let status = Status::failure(message, reason).with_code(code).boxed();
    KubeError::of(KubeRequest::of::<KubesvcAccount>("update", "ns", ""), kube::Error::Api(status))
}

/// Rows in memory.
#[derive(Default)]
pub(super) struct FakeRows {
    pub(super) rows: Mutex<BTreeMap<(String, AgentId), Assignment>>,
    /// Lists of namespaces by uid.
    pub(super) namespaces: Mutex<BTreeMap<String, Vec<String>>>,
    /// Last raised fence by uid.
    pub(super) fences: Mutex<BTreeMap<String, Fence>>,
    /// Accounts without a fence.
    pub(super) unfenced: Mutex<Vec<String>>,
    pub(super) down: Mutex<bool>,
    pub(super) writes: Mutex<usize>,
    /// Accounts with a wrong number of agents.
    pub(super) miscounted: Mutex<Vec<String>>,
}

#[async_trait]
impl AssignmentStore for FakeRows {
    async fn assignments(&self, _: &ReplicaId) -> Result<Vec<Assignment>, StoreError> {
        if *self.down.lock() {
            return Err(StoreError::unavailable("down"));
        }
        Ok(self.rows.lock().values().cloned().collect())
    }

    async fn miscounted(&self) -> Result<Vec<String>, StoreError> {
        if *self.down.lock() {
            return Err(StoreError::unavailable("down"));
        }
        Ok(self.miscounted.lock().clone())
    }

    async fn assigned_replicas(&self) -> Result<Vec<ReplicaId>, StoreError> {
        Ok(Vec::new())
    }

    async fn write_assignments(&self, _: &ReplicaId, changes: &AssignmentChanges) -> Result<(), StoreError> {
        if *self.down.lock() {
            return Err(StoreError::unavailable("down"));
        }
        *self.writes.lock() += 1;
        self.miscounted.lock().retain(|name| !changes.recounts.contains(name));
        let mut rows = self.rows.lock();
        for key in &changes.deletes {
            rows.remove(key);
        }
        for put in &changes.puts {
            rows.insert((put.account_name.clone(), put.agent_id.clone()), put.clone());
        }
        Ok(())
    }
}

#[async_trait]
impl FenceStore for FakeRows {
    async fn raise_fences(&self, raised: &[Fence]) -> Result<Vec<(String, RaiseOutcome)>, StoreError> {
        if *self.down.lock() {
            return Err(StoreError::unavailable("down"));
        }
        let (mut fences, unfenced) = (self.fences.lock(), self.unfenced.lock());
        let mut raise = |fence: &Fence| match fences.get(&fence.uid).map(|stands| stands.epoch) {
            _ if unfenced.contains(&fence.uid) => RaiseOutcome::Missing,
            Some(epoch) if epoch > fence.epoch => RaiseOutcome::Higher(epoch),
            _ => {
                fences.insert(fence.uid.clone(), fence.clone());
                RaiseOutcome::Stands
            }
        };
        Ok(raised.iter().map(|fence| (fence.uid.clone(), raise(fence))).collect())
    }

    async fn fences(&self) -> Result<Vec<StoredFence>, StoreError> {
        let standing = |fence: &Fence| StoredFence {
            uid: fence.uid.clone(),
            epoch: fence.epoch,
            replica_id: fence.replica_id.clone(),
        };
        Ok(self.fences.lock().values().map(standing).collect())
    }
}

#[async_trait]
impl NamespaceStore for FakeRows {
    async fn namespaces(&self, _: &str) -> Result<Option<Vec<String>>, StoreError> {
        Ok(None)
    }

    async fn put_namespace_lists(&self, lists: &[NamespaceList]) -> Result<Vec<String>, StoreError> {
        if *self.down.lock() {
            return Err(StoreError::unavailable("down"));
        }
        let lists = lists.iter().map(|list| (list.uid.clone(), list.namespaces.clone()));
        self.namespaces.lock().extend(lists);
        Ok(Vec::new())
    }
}
