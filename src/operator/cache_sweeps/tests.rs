//! Sweeps of a database in a file.

use std::sync::Arc;

use super::*;
use kubesvc_core::account_row::AccountRow;
use kubesvc_core::{CachingAssignment, CachingEpoch, KubesvcAccountSpec, KubesvcAccountStatus};
use kubesvc_store::{
    AccountBatch, AccountChanges, BatchClaim, BatchOutcome, Fence, ObjectBody, ObjectRow, ScopeChange,
    ScopeKey, ScopeRow, Store, VendorTables,
};

/// A database with the account `one`, of which agent `a` has cached these objects.
struct World {
    store: Arc<dyn Store>,
    sweeps: CacheSweeps,
    plan: SweepPlan,
    _folder: tempfile::TempDir,
}

fn key(kind: &str) -> ScopeKey {
    ScopeKey { namespace: String::new(), group: String::new(), kind: kind.to_owned() }
}

fn object(kind: &str, name: &str) -> ObjectRow {
    ObjectRow {
        id: format!("{kind}/{name}"),
        kind: kind.to_owned(),
        application: None,
        namespace: "default".to_owned(),
        name: name.to_owned(),
        api_version: Some("v1".to_owned()),
        uid: None,
        resource_version: "1".to_owned(),
        body_hash: "0".repeat(64),
        body: ObjectBody::Text("{}".to_owned()),
        relations: Vec::new(),
    }
}

fn fence(agent_id: Option<&str>, epoch: i64) -> Fence {
    Fence {
        uid: "uid-one".to_owned(),
        epoch: CachingEpoch(epoch),
        agent_id: agent_id.map(Into::into),
        boot_id: None,
        replica_id: None,
    }
}

impl World {
    async fn with(kinds: &[(&str, &str)], objects: Vec<ObjectRow>) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let url = format!("sqlite://{}", folder.path().join("test.db").display());
        let (store, cache) =
            kubesvc_store::open_with_cache(&url, VendorTables::Refuse, 1).await.expect("it opens");
        let row = AccountRow {
            name: "one".to_owned(),
            uid: "uid-one".to_owned(),
            status: "ACTIVE".to_owned(),
            zone_id: None,
            is_dynamic: true,
            origin: "declared".to_owned(),
            definition: "{}".to_owned(),
            props: "{}".to_owned(),
            kube_host: None,
            kube_version: None,
            cert_fingerprint: None,
            cluster_uid: None,
            max_watch_age_seconds: 300,
            namespaces_count: None,
            error_message: None,
            failed_count: 0,
            next_retry_time: None,
            generation: 1,
            observed_generation: 1,
        };
        let changes = AccountChanges { puts: vec![Arc::new(row)], ..AccountChanges::default() };
        store.write(&changes).await.expect("written");
        store.raise_fences(&[fence(Some("a"), 1)]).await.expect("raised");
        let scopes = kinds.iter().map(|(kind, cached_kind)| {
            ScopeChange::Added(ScopeRow {
                key: key(kind),
                cached_kind: (*cached_kind).to_owned(),
                shape: "shape".to_owned(),
                filter: String::new(),
            })
        });
        let batch = AccountBatch {
            claim: BatchClaim { uid: "uid-one".to_owned(), epoch: CachingEpoch(1), committed: 0, last: 1 },
            account: "one".to_owned(),
            agent_id: "a".into(),
            upserts: objects,
            deletes: Vec::new(),
            scopes: scopes.collect(),
        };
        let written = batch.upserts.len();
        let outcomes = cache.write_objects(&[batch]).await.expect("written");
        assert_eq!(outcomes, [BatchOutcome::Committed { written, refused: Vec::new() }]);
        let sweeps = CacheSweeps {
            store: cache,
            projection: Projection::new(Arc::clone(&store)),
            accounts: Arc::new(AccountIndex::default()),
            swept_rows: Counter::default(),
            tasks: TaskRegistry::default(),
            event_lifetime: Duration::from_secs(3600),
        };
        Self { store, sweeps, plan: SweepPlan::default(), _folder: folder }
    }

    async fn pass(&mut self) -> AttemptOutcome {
        self.sweeps.pass(&mut self.plan).await
    }

    async fn objects(&self) -> i64 {
        let counts = self.sweeps.store.count_objects("one").await.expect("counted");
        counts.iter().map(|count| count.objects).sum()
    }

    async fn scopes(&self) -> usize {
        self.sweeps.store.scopes("one").await.expect("read").len()
    }
}

/// The account without an agent, in this state.
fn account(state: State) -> KubesvcAccount {
    let mut account = KubesvcAccount::new("one", KubesvcAccountSpec::default());
    account.metadata.namespace = Some("ns".to_owned());
    account.metadata.uid = Some("uid-one".to_owned());
    let caching = CachingAssignment { agent_id: None, boot_id: None, epoch: CachingEpoch(2) };
    let (state, caching) = (Some(state), Some(caching));
    account.status = Some(KubesvcAccountStatus { state, caching, ..KubesvcAccountStatus::default() });
    account
}

#[tokio::test]
async fn objects_of_a_deleted_account_go_in_pieces_and_its_scopes_last() {
    let pods = (0..2_500).map(|at| object("pod", &format!("p{at}"))).collect();
    let mut world = World::with(&[("Pod", "pod")], pods).await;
    assert_eq!(world.pass().await, AttemptOutcome::Done);
    assert_eq!(world.objects().await, 2_500, "they are watched");
    let changes = AccountChanges { deletes: vec!["uid-one".to_owned()], ..AccountChanges::default() };
    world.store.write(&changes).await.expect("deleted");
    assert_eq!(world.pass().await, AttemptOutcome::Done);
    assert_eq!((world.objects().await, world.scopes().await), (0, 0));
    assert_eq!(world.sweeps.swept_rows.get(), 2_500);
}

#[tokio::test]
async fn objects_of_an_inactive_account_go_once_its_fence_names_nobody() {
    let mut world = World::with(&[("Pod", "pod")], vec![object("pod", "a")]).await;
    world.sweeps.accounts.show(account(State::Orphaned));
    world.pass().await;
    world.sweeps.accounts.show(account(State::Inactive));
    world.pass().await;
    assert_eq!(world.objects().await, 1, "the fence names an agent");
    world.store.raise_fences(&[fence(None, 2)]).await.expect("raised");
    world.pass().await;
    assert_eq!((world.objects().await, world.scopes().await), (0, 0));
}

#[tokio::test]
async fn old_events_go_and_their_scope_stays() {
    let objects = vec![object("event", "e"), object("pod", "a")];
    let mut world = World::with(&[("Event", "event"), ("Pod", "pod")], objects).await;
    world.pass().await;
    assert_eq!(world.objects().await, 2, "the event is young");
    let written = Timestamp::now();
    world.sweeps.event_lifetime = Duration::ZERO;
    while Timestamp::now().as_millisecond() <= written.as_millisecond() {
        tokio::task::yield_now().await;
    }
    for _ in 0..6 {
        world.pass().await;
    }
    assert_eq!((world.objects().await, world.scopes().await), (1, 2));
    assert_eq!(world.sweeps.swept_rows.get(), 1);
}

#[tokio::test]
async fn a_replica_that_does_not_lead_sweeps_nothing() {
    let mut world = World::with(&[("Pod", "pod")], vec![object("pod", "a")]).await;
    let changes = AccountChanges { deletes: vec!["uid-one".to_owned()], ..AccountChanges::default() };
    world.store.write(&changes).await.expect("deleted");
    world.sweeps.projection.follow();
    assert!(matches!(world.pass().await, AttemptOutcome::Failed(..)));
    assert_eq!(world.objects().await, 1);
}
