//! Objects and their relations are written.

use super::*;
use crate::{FenceCheck, KindCount, NamespaceCount};

pub(crate) async fn objects_are_written_read_and_deleted(store: &CachedStore, other: &CachedStore) {
    fenced(store, &["prod"]).await;
    let bare = ObjectRow {
        application: None,
        api_version: None,
        uid: None,
        body: ObjectBody::Omitted,
        ..object("prod", "node", "", "n1", "5")
    };
    let pods = ["a", "b"].map(|name| object("prod", "pod", "default", name, "7"));
    let upserts = pods.into_iter().chain([bare]).collect();
    commit(store, &first_batch("prod", upserts)).await;
    assert_eq!(ids(other).await, ["prod:node::n1", "prod:pod:default:a", "prod:pod:default:b"]);
    let count = |kind: &str, objects| KindCount { kind: kind.to_owned(), objects };
    assert_eq!(other.count_objects("prod").await.expect("read"), [count("node", 1), count("pod", 2)]);
    let count = |kind: &str, namespace: &str, objects| NamespaceCount {
        kind: kind.to_owned(),
        namespace: namespace.to_owned(),
        objects,
    };
    let counted = other.count_objects_by_namespace("prod").await.expect("read");
    assert_eq!(counted, [count("node", "", 1), count("pod", "default", 2)]);
    let holder = other.fence_holder("uid-of-prod").await.expect("read").expect("it has a fence");
    assert!(holder.epoch.0 > 0 && holder.agent_id.is_some(), "{holder:?}");
    assert_eq!(other.fence_holder("uid-nobody").await.expect("read"), None);

    let found =
        other.object_version("prod", "pod", "default", "a").await.expect("read").expect("it is there");
    assert_eq!((found.resource_version.as_str(), found.uid.as_deref()), ("7", Some("uid-of-1")));
    assert!(found.has_body && found.last_updated_ms > 1_700_000_000_000, "{found:?}");
    let bare = other.object_version("prod", "node", "", "n1").await.expect("read").expect("it is there");
    assert_eq!((bare.uid, bare.has_body), (None, false));
    assert_eq!(other.object_version("prod", "pod", "other", "a").await.expect("read"), None);
    let columns =
        "concat(agent, '|', kind, '|', account, '|', application, '|', namespace, '|', api_version)";
    // SQLite has `concat` only since 3.44.
    let columns = if store.pools()[0].database == "sqlite" {
        "agent || '|' || kind || '|' || account || '|' || application || '|' || namespace || '|' || api_version"
    } else {
        columns
    };
    let row = other.texts(&format!("SELECT {columns} FROM kubesvc_cache WHERE name = 'a'")).await;
    assert_eq!(row, [Some("agent|pod|prod|app|default|v1".to_owned())]);

    let changed = AccountBatch {
        agent_id: "agent-2".into(),
        upserts: vec![ObjectRow { application: None, ..object("prod", "pod", "default", "a", "8") }],
        deletes: vec!["prod:pod:default:b".to_owned(), "prod:pod:default:never-there".to_owned()],
        ..batch("prod", 1, 4)
    };
    commit(other, &changed).await;
    assert_eq!(ids(store).await, ["prod:node::n1", "prod:pod:default:a"]);
    let row =
        "SELECT agent FROM kubesvc_cache WHERE name = 'a' AND application IS NULL AND resource_version = '8'";
    assert_eq!(store.texts(row).await, [Some("agent-2".to_owned())]);
    assert_eq!(store.write_objects(&[]).await.expect("nothing to do"), []);
}

pub(crate) async fn stored_body_of_same_hash_is_kept(store: &CachedStore, _: &CachedStore) {
    fenced(store, &["prod"]).await;
    let written = |text: &str, hash_of: &str, version: &str| ObjectRow {
        body: ObjectBody::Text(text.to_owned()),
        body_hash: hash(hash_of),
        ..object("prod", "pod", "default", "a", version)
    };
    let omitted = |hash_of: &str| ObjectRow { body: ObjectBody::Omitted, ..written("", hash_of, "9") };
    let steps = [
        (written("one", "1", "1"), Some("one"), "it is new"),
        (written("other", "1", "2"), Some("one"), "the hash says that it is the same"),
        (written("two", "2", "3"), Some("two"), "it changed"),
        (omitted("2"), Some("two"), "it is the same"),
        (omitted("3"), None, "it changed, and is omitted"),
        (written("three", "3", "4"), Some("three"), "there was none of this hash"),
    ];
    for (committed, (row, wanted, why)) in (0..).zip(steps) {
        let version = row.resource_version.clone();
        commit(store, &AccountBatch { upserts: vec![row], ..batch("prod", committed, committed + 1) }).await;
        assert_eq!(body_of(store, "a").await.as_deref(), wanted, "{why}");
        let found = store.object_version("prod", "pod", "default", "a").await.expect("read");
        assert_eq!(found.map(|found| found.resource_version), Some(version), "{why}");
    }
}

pub(crate) async fn body_is_stored_as_the_row_carries_it(store: &CachedStore, _: &CachedStore) {
    fenced(store, &["prod"]).await;
    let compressed: Vec<u8> = (0..=255).cycle().take(5_000).collect();
    let zstd = |hash_of: &str| ObjectRow {
        body: ObjectBody::Zstd(compressed.clone()),
        body_hash: hash(hash_of),
        ..object("prod", "pod", "default", "a", "1")
    };
    let text = |hash_of: &str| ObjectRow {
        body: ObjectBody::Text("text".to_owned()),
        body_hash: hash(hash_of),
        ..object("prod", "pod", "default", "a", "1")
    };
    let (text_size, blob_size) = (
        "SELECT coalesce(length(body), 0) + 0 * last_updated FROM kubesvc_cache",
        "SELECT coalesce(length(body_z), 0) + 0 * last_updated FROM kubesvc_cache",
    );
    let steps = [
        (zstd("1"), (0, 5_000), "compressed"),
        (text("1"), (0, 5_000), "the same, so the stored form stays"),
        (text("2"), (4, 0), "changed, so it is a text now"),
        (zstd("2"), (4, 0), "the same"),
        (zstd("3"), (0, 5_000), "changed"),
        (ObjectRow { body: ObjectBody::Omitted, ..zstd("4") }, (0, 0), "omitted"),
        (zstd("4"), (0, 5_000), "there was none of this hash"),
    ];
    for (committed, (row, wanted, why)) in (0..).zip(steps) {
        commit(store, &AccountBatch { upserts: vec![row], ..batch("prod", committed, committed + 1) }).await;
        let sizes = (store.numbers(text_size).await[0], store.numbers(blob_size).await[0]);
        assert_eq!(sizes, wanted, "{why}");
    }
}

const RELATIONS: &str = "SELECT rel2_id FROM kubesvc_cache_rel ORDER BY rel2_id";

async fn relations(store: &CachedStore) -> Vec<String> {
    store.texts(RELATIONS).await.into_iter().flatten().collect()
}

pub(crate) async fn unchanged_relations_are_not_touched(store: &CachedStore, _: &CachedStore) {
    fenced(store, &["prod"]).await;
    let related = |version: &str, relations: &[Relation]| ObjectRow {
        relations: relations.to_vec(),
        ..object("prod", "pod", "default", "a", version)
    };
    let (owner, app) = (
        relation("prod:replicaSet:default:r", "replicaSet"),
        relation("logical:applications:x", "applications"),
    );
    commit(store, &first_batch("prod", vec![related("1", &[owner.clone(), app.clone(), owner.clone()])]))
        .await;
    assert_eq!(relations(store).await, ["logical:applications:x", "prod:replicaSet:default:r"]);
    store.run("UPDATE kubesvc_cache_rel SET last_updated = 7").await;
    let upserts = vec![related("2", &[app.clone(), owner.clone()])];
    commit(store, &AccountBatch { upserts, ..batch("prod", 1, 2) }).await;
    assert_eq!(store.numbers("SELECT last_updated FROM kubesvc_cache_rel").await, [7, 7]);

    // Another type of the same id is another relation.
    let retyped = Relation { to_type: "deployment".to_owned(), ..owner };
    let upserts = vec![related("3", &[app, retyped, relation("logical:clusters:y", "clusters")])];
    commit(store, &AccountBatch { upserts, ..batch("prod", 2, 3) }).await;
    assert_eq!(
        relations(store).await,
        ["logical:applications:x", "logical:clusters:y", "prod:replicaSet:default:r"]
    );
    let kept = "SELECT rel2_id FROM kubesvc_cache_rel WHERE last_updated = 7";
    assert_eq!(store.texts(kept).await, [Some("logical:applications:x".to_owned())]);
    let types = "SELECT rel2_type FROM kubesvc_cache_rel WHERE rel2_id LIKE 'prod:%' AND rel1_type = 'pod'";
    assert_eq!(store.texts(types).await, [Some("deployment".to_owned())]);
}

pub(crate) async fn relations_go_with_their_object(store: &CachedStore, _: &CachedStore) {
    fenced(store, &["prod"]).await;
    let related = |name: &str, to: &str| ObjectRow {
        relations: vec![relation(to, "applications")],
        ..object("prod", "pod", "default", name, "1")
    };
    commit(store, &first_batch("prod", vec![related("a", "x"), related("b", "x"), related("c", "y")])).await;
    assert_eq!(relations(store).await, ["x", "x", "y"]);
    let upserts = vec![ObjectRow { relations: Vec::new(), ..related("c", "") }];
    let deletes = vec!["prod:pod:default:a".to_owned()];
    commit(store, &AccountBatch { upserts, deletes, ..batch("prod", 1, 2) }).await;
    assert_eq!(relations(store).await, ["x"]);
}

pub(crate) async fn object_among_many_without_relations_loses_its_own(store: &CachedStore, _: &CachedStore) {
    fenced(store, &["prod", "test"]).await;
    let many = |account: &str, version: &str| -> Vec<ObjectRow> {
        (0..40).map(|at| object(account, "configMap", "default", &format!("c-{at:02}"), version)).collect()
    };
    let mut first = many("prod", "1");
    first[17].relations = vec![relation("prod:deployment:default:owner", "deployment")];
    commit(store, &first_batch("prod", first)).await;
    // In another account, an object that is not written again keeps its own.
    let mut others = many("test", "1");
    others.push(ObjectRow {
        relations: vec![relation("test:deployment:default:owner", "deployment")],
        ..object("test", "configMap", "default", "c-17-kept", "1")
    });
    commit(store, &first_batch("test", others)).await;
    assert_eq!(relations(store).await, ["prod:deployment:default:owner", "test:deployment:default:owner"]);
    let upserts = many("prod", "2");
    commit(store, &AccountBatch { upserts, ..batch("prod", 1, 2) }).await;
    let upserts = many("test", "2");
    commit(store, &AccountBatch { upserts, ..batch("test", 1, 2) }).await;
    assert_eq!(relations(store).await, ["test:deployment:default:owner"]);
}

pub(crate) async fn thousand_objects_are_one_transaction(store: &CachedStore, other: &CachedStore) {
    fenced(store, &["prod", "test"]).await;
    let rows = |account: &str| -> Vec<ObjectRow> {
        let row = |at: usize| ObjectRow {
            relations: vec![relation(&format!("logical:applications:{}", at % 7), "applications")],
            // Sorted in no way.
            ..object(account, "pod", "default", &format!("pod-{:04}", (at * 7919) % 1_300), "1")
        };
        (0..1_300).map(row).collect()
    };
    let mut prod = first_batch("prod", rows("prod"));
    // The later row of an id counts.
    prod.upserts.insert(0, object("prod", "pod", "default", "pod-0001", "0"));
    let test = first_batch("test", rows("test"));
    let outcomes = store.write_objects(&[prod, test]).await.expect("written");
    assert_eq!(outcomes, vec![BatchOutcome::Committed { written: 1_300, refused: Vec::new() }; 2]);
    assert_eq!(
        other.numbers("SELECT count(*) FROM kubesvc_cache WHERE resource_version = '1'").await,
        [2_600]
    );
    assert_eq!(other.numbers("SELECT count(*) FROM kubesvc_cache_rel").await, [2_600]);
    let deletes = ids(other).await.into_iter().filter(|id| id.starts_with("prod:")).collect();
    commit(other, &AccountBatch { deletes, ..batch("prod", 1, 2) }).await;
    assert_eq!(store.numbers("SELECT count(*) FROM kubesvc_cache_rel").await, [1_300]);
}

pub(crate) async fn accounts_that_do_not_pass_are_left_out_with_their_outcome(
    store: &CachedStore,
    other: &CachedStore,
) {
    fenced(store, &["a", "b", "c", "d"]).await;
    other.raise_fences(&[fence("uid-of-b", 2, Some("next"))]).await.expect("raised");
    commit(
        store,
        &AccountBatch { claim: BatchClaim { last: 3, ..batch("d", 0, 3).claim }, ..batch("d", 0, 3) },
    )
    .await;
    let with_rows = |batch: AccountBatch| AccountBatch {
        upserts: vec![object(&batch.account, "pod", "default", "p", "1")],
        scopes: vec![added("", "Pod")],
        ..batch
    };
    let batches: Vec<_> = ["e", "d", "c", "b", "a"].map(|name| with_rows(batch(name, 0, 1))).into();
    let mut ahead = batches.clone();
    ahead[2].claim.epoch = CachingEpoch(2);
    let outcomes = store.write_objects(&ahead).await.expect("written");
    assert_eq!(
        outcomes,
        [
            BatchOutcome::Stopped(FenceCheck::Gone),
            BatchOutcome::Stopped(FenceCheck::Done),
            BatchOutcome::Stopped(FenceCheck::Lower(CachingEpoch(1))),
            BatchOutcome::Stopped(FenceCheck::Higher(CachingEpoch(2))),
            BatchOutcome::Committed { written: 1, refused: Vec::new() },
        ]
    );
    assert_eq!(ids(other).await, ["a:pod:default:p"]);
    assert_eq!(other.texts("SELECT id FROM kubesvc_resourceversion").await, [Some("a::.Pod".to_owned())]);
}

pub(crate) async fn batch_is_written_once(store: &CachedStore, other: &CachedStore) {
    fenced(store, &["prod"]).await;
    let one = |version: &str, committed, last| AccountBatch {
        upserts: vec![object("prod", "pod", "default", "a", version)],
        ..batch("prod", committed, last)
    };
    commit(store, &one("1", 0, 2)).await;
    commit(store, &one("2", 2, 3)).await;
    // A sleeper sends what was committed.
    assert_eq!(write(other, &one("1", 0, 2)).await, BatchOutcome::Stopped(FenceCheck::Done));
    assert_eq!(write(other, &one("1", 1, 4)).await, BatchOutcome::Stopped(FenceCheck::Rewind(3)));
    let found = store.object_version("prod", "pod", "default", "a").await.expect("read");
    assert_eq!(found.map(|found| found.resource_version).as_deref(), Some("2"));
}
