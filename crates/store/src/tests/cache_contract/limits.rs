//! Rows of any name, and rows that are refused.

use super::*;

pub(crate) async fn longest_names_of_any_characters_fit(store: &CachedStore, other: &CachedStore) {
    // Four bytes each, which is as long as a key can be in bytes.
    let account = "\u{1f680}".repeat(255);
    store.put_accounts(&[row(&account, "uid-1")]).await.expect("written");
    store.raise_fences(&[fence("uid-1", 1, Some("agent"))]).await.expect("raised");
    let key = ScopeKey { namespace: "n".repeat(63), group: "g".repeat(253), kind: "K".repeat(63) };
    let long = ObjectRow {
        id: "\u{1f680}".repeat(512),
        kind: "\u{1f680}".repeat(320),
        application: Some("\u{1f680}".repeat(255)),
        namespace: "\u{1f680}".repeat(63),
        api_version: Some("\u{1f680}".repeat(320)),
        relations: vec![Relation {
            to_id: "\u{1f9ed}".repeat(512),
            from_type: "\u{1f680}".repeat(320),
            to_type: "\u{1f680}".repeat(320),
        }],
        ..object("", "pod", "", &"x".repeat(253), "1")
    };
    let names =
        ["prod", "PROD", "Prod", "pröd", "pro\u{308}d", "a'b\"c`d", "%_\\", "日本語", "; DROP TABLE x --"];
    let named = names.map(|name| object("any", "pod", "default", name, "1"));
    let rows = AccountBatch {
        claim: BatchClaim { uid: "uid-1".to_owned(), ..batch("", 0, 1).claim },
        account: account.clone(),
        agent_id: ("\u{1f680}".repeat(191)).into(),
        upserts: named.into_iter().chain([long.clone()]).collect(),
        deletes: Vec::new(),
        scopes: vec![
            ScopeChange::Added(ScopeRow {
                key: key.clone(),
                cached_kind: long.kind.clone(),
                shape: "s".repeat(64),
                filter: "f".repeat(64),
            }),
            ScopeChange::SyncStarted { scope: key.clone(), sync_key: "k".repeat(26) },
        ],
    };
    commit(store, &rows).await;
    for name in names {
        let found = other.object_version(&account, "pod", "default", name).await.expect("read");
        assert!(found.is_some(), "{name}");
    }
    let found = other.object_version(&account, &long.kind, &long.namespace, &long.name).await.expect("read");
    assert!(found.is_some());
    assert_eq!(other.texts("SELECT rel2_id FROM kubesvc_cache_rel").await, [Some("\u{1f9ed}".repeat(512))]);
    let scopes = other.scopes(&account).await.expect("read");
    assert_eq!(scopes.first().map(|scope| &scope.key), Some(&key));
    // Each is deleted alone.
    let deletes = vec!["any:pod:default:Prod".to_owned(), long.id];
    let rows = AccountBatch {
        claim: BatchClaim { committed: 1, last: 2, ..rows.claim },
        upserts: Vec::new(),
        deletes,
        ..rows
    };
    commit(store, &rows).await;
    assert_eq!(other.count_objects(&account).await.expect("read")[0].objects, 8);
}

pub(crate) async fn row_that_no_database_takes_is_left_out_and_named(store: &CachedStore, _: &CachedStore) {
    fenced(store, &["prod"]).await;
    let good = object("prod", "pod", "default", "good", "1");
    let with = |name: &str, change: fn(&mut ObjectRow)| {
        let mut row = object("prod", "pod", "default", name, "1");
        change(&mut row);
        row
    };
    let upserts = vec![
        good.clone(),
        with("long", |row| row.name = "n".repeat(254)),
        with("nul", |row| row.name = "n\0".to_owned()),
        with("application", |row| row.application = Some("a".repeat(256))),
        with("body", |row| row.body = ObjectBody::Text("a\0secret".to_owned())),
        with("related", |row| row.relations = vec![relation("\0", "pod"), relation("fits", "pod")]),
        object("prod", "pod", &"n".repeat(64), "namespace", "1"),
    ];
    let (written, mut said) = committed(write(store, &first_batch("prod", upserts)).await);
    assert_eq!(written, 3, "also one without its body");
    said.sort();
    assert_eq!(
        said.iter().map(|one| one.split(" row ").next().unwrap_or_default()).collect::<Vec<_>>(),
        [
            "kubesvc_cache",
            "kubesvc_cache",
            "kubesvc_cache",
            "kubesvc_cache",
            "kubesvc_cache",
            "kubesvc_cache_rel"
        ]
    );
    for (key, what) in [
        ("prod:pod:default:application", "left out: column application has more than 255"),
        ("prod:pod:default:body", "written without its body: column body holds a NUL"),
        ("prod:pod:default:long", "left out: column name has more than 253"),
        ("prod:pod:default:nul", "left out: column name holds a NUL"),
        (":namespace", "left out: column namespace has more than 63"),
        ("prod:pod:default:related to \\0", "left out: column rel2_id holds a NUL"),
    ] {
        assert!(said.iter().any(|one| one.contains(key) && one.contains(what)), "{key}: {said:?}");
    }
    assert!(said.iter().all(|one| !one.contains("secret")), "{said:?}");
    assert_eq!(ids(store).await, ["body", "good", "related"].map(|name| format!("prod:pod:default:{name}")));
    assert_eq!(body_of(store, "body").await, None);
    assert_eq!(store.texts("SELECT rel2_id FROM kubesvc_cache_rel").await, [Some("fits".to_owned())]);
    // The escape of a NUL is no NUL.
    let escaped =
        ObjectRow { body: ObjectBody::Text(r#"{"a":"\u0000"}"#.to_owned()), body_hash: hash("2"), ..good };
    commit(store, &AccountBatch { upserts: vec![escaped], ..batch("prod", 1, 2) }).await;
    assert_eq!(body_of(store, "good").await.as_deref(), Some(r#"{"a":"\u0000"}"#));
}

pub(crate) async fn row_that_the_database_refuses_is_found_and_left_out(
    store: &CachedStore,
    _: &CachedStore,
) {
    fenced(store, &["prod", "test"]).await;
    store.poison().await;
    let rows = |account: &str| {
        (0..300).map(|at| object(account, "pod", "default", &format!("pod-{at}"), "1")).collect()
    };
    let mut prod = first_batch("prod", rows("prod"));
    for (at, name) in [(17, "poison-1"), (170, "poison-body"), (299, "poison-2")] {
        let poisoned = ObjectRow {
            relations: vec![relation(&format!("of-{name}"), "applications")],
            ..object("prod", "pod", "default", name, "1")
        };
        prod.upserts.insert(at, poisoned);
    }
    prod.scopes = vec![added("", "Pod")];
    let test = first_batch("test", rows("test"));
    let mut outcomes = store.write_objects(&[prod, test]).await.expect("written");
    assert_eq!(outcomes.pop(), Some(BatchOutcome::Committed { written: 300, refused: Vec::new() }));
    let (written, mut said) = committed(outcomes.pop().expect("two batches"));
    assert_eq!(written, 301, "also one without its body");
    said.sort();
    assert_eq!(said.len(), 3, "{said:?}");
    for (said, (name, what)) in said.iter().zip([
        ("poison-1", "left out"),
        ("poison-2", "left out"),
        ("poison-body", "written without its body"),
    ]) {
        let begin = format!(
            "kubesvc_cache row \"prod:pod:default:{name}\" {what}: the database refuses it with error "
        );
        assert!(said.starts_with(&begin) && !said.contains("classified"), "{said}");
    }
    assert_eq!(store.numbers("SELECT count(*) FROM kubesvc_cache").await, [601]);
    assert_eq!(body_of(store, "poison-body").await, None);
    assert_eq!(
        store.texts("SELECT rel2_id FROM kubesvc_cache_rel").await,
        [Some("of-poison-body".to_owned())]
    );
    assert_eq!(store.scopes("prod").await.expect("read").len(), 1);
    assert_eq!(write(store, &batch("prod", 0, 1)).await, BatchOutcome::Stopped(crate::FenceCheck::Done));
}

pub(crate) async fn refused_scope_leaves_the_others(store: &CachedStore, _: &CachedStore) {
    fenced(store, &["prod"]).await;
    let rows = AccountBatch {
        scopes: vec![
            added("", "Pod"),
            added(&"n".repeat(64), "Pod"),
            sync_started("", "Pod", &"k".repeat(27)),
            added("a:b", "Pod"),
        ],
        ..batch("prod", 0, 1)
    };
    let (_, said) = committed(write(store, &rows).await);
    assert_eq!(said.len(), 3, "{said:?}");
    assert!(said.iter().all(|one| one.starts_with("kubesvc_resourceversion row \"prod:")), "{said:?}");
    let scopes = store.scopes("prod").await.expect("read");
    assert_eq!(scopes.iter().map(|one| &one.key).collect::<Vec<_>>(), [&scope("", "Pod")]);
}
