//! The contract of every database, as tests. [`contract_tests`] runs them against one adapter.

use async_trait::async_trait;

use crate::{
    AccountChanges, AccountStore, Assignment, AssignmentChanges, IntentRow, MAX_NAMESPACES, NamespaceList,
    PushedRow, Store, StoreError, StoredAccounts,
};
use kubesvc_core::account_row::AccountRow;

/// Deletes one account.
#[async_trait]
pub(crate) trait DeleteAccount {
    /// Deletes every row of the account with this uid, in all tables. Succeeds if there are none.
    async fn delete_account(&self, uid: &str) -> Result<(), StoreError>;
}

#[async_trait]
impl<S: AccountStore + ?Sized> DeleteAccount for S {
    async fn delete_account(&self, uid: &str) -> Result<(), StoreError> {
        self.write(&AccountChanges { deletes: vec![uid.to_owned()], ..AccountChanges::default() }).await
    }
}

/// Generates one test for each function. The expression is a future of a fresh store and of what keeps it alive.
macro_rules! contract_tests {
    ($fresh:expr) => {
        $crate::tests::contract::contract_tests! { @each $fresh,
            rows_come_back_as_they_were, any_name_will_do, what_no_database_takes_is_refused_as_a_whole,
            a_uid_takes_over_a_name, uids_and_names_change_places, deletes_go_before_rows, namespaces_have_a_row,
            namespaces_of_many_accounts_are_written_together,
            a_thousand_rows_are_written_at_once, large_rows_are_written, assignments_are_kept_by_replica,
            assignments_that_no_database_takes_are_refused, deletes_take_what_belongs_to_the_account,
            a_uid_that_takes_over_a_name_starts_without_assignments, nothing_of_others_is_read,
            adopted_rows_take_the_place_of_no_row_of_ours, as_many_rows_are_adopted_as_are_written,
            a_space_at_the_end_makes_another_name_or_none,
            the_pools_are_told,
            a_later_term_ends_the_earlier_ones, terms_that_begin_at_once_follow_one_another,
            replicas_with_assignments_are_named, registered_accounts_are_kept_by_name_under_the_newest_term,
            writes_of_a_name_follow_one_another
        }
    };
    (@each $fresh:expr, $($story:ident),+) => {
        $(#[tokio::test]
        async fn $story() {
            let (store, _kept) = $fresh.await;
            $crate::tests::contract::$story(&*store).await;
        })+
    };
}
pub(super) use contract_tests;

/// The row of an account that was just declared.
pub(crate) fn row(name: &str, uid: &str) -> AccountRow {
    AccountRow {
        name: name.to_owned(),
        uid: uid.to_owned(),
        status: "ACTIVATING".to_owned(),
        zone_id: None,
        is_dynamic: true,
        origin: "declared".to_owned(),
        definition: format!(r#"{{"name":{name:?},"kubeconfigContents":null}}"#),
        props: r#"{"permissions":{}}"#.to_owned(),
        kube_host: None,
        kube_version: None,
        cert_fingerprint: None,
        cluster_uid: None,
        max_watch_age_seconds: 300_000,
        namespaces_count: None,
        error_message: None,
        failed_count: 0,
        next_retry_time: None,
        generation: 1,
        observed_generation: 0,
    }
}

async fn rows(store: &dyn Store) -> Vec<AccountRow> {
    let StoredAccounts { mut rows, malformed, .. } = store.accounts().await.expect("the accounts");
    assert_eq!(malformed, []);
    rows.sort_by(|a, b| a.name.cmp(&b.name));
    rows
}

async fn put(store: &dyn Store, rows: &[AccountRow]) {
    store.put_accounts(rows).await.expect("the rows are written");
}

pub(super) async fn rows_come_back_as_they_were(store: &dyn Store) {
    store.ping().await.expect("it answers");
    assert_eq!(rows(store).await, []);
    let bare = row("bare", "uid-1");
    let full = AccountRow {
        status: "FAILED".to_owned(),
        zone_id: Some("zone-a".to_owned()),
        is_dynamic: false,
        origin: "agent".to_owned(),
        definition: "x".repeat(100_000),
        kube_host: Some("https://example.test:6443".to_owned()),
        kube_version: Some("v1.36.3".to_owned()),
        cert_fingerprint: Some("AB:CD".to_owned()),
        cluster_uid: Some("c0ffee".to_owned()),
        max_watch_age_seconds: i64::MAX,
        namespaces_count: Some(i32::MAX),
        error_message: Some("ü".repeat(2048)),
        failed_count: i32::MIN,
        next_retry_time: Some(i64::MIN),
        generation: i64::MAX,
        observed_generation: -1,
        ..row("full", "uid-2")
    };
    put(store, &[full.clone(), bare.clone()]).await;
    assert_eq!(rows(store).await, [bare.clone(), full.clone()]);
    // A value that becomes absent is removed from the row.
    let bare_again = row("full", "uid-2");
    put(store, std::slice::from_ref(&bare_again)).await;
    assert_eq!(rows(store).await, [bare, bare_again]);
}

pub(super) async fn any_name_will_do(store: &dyn Store) {
    let (long, emoji) = ("n".repeat(255), "\u{1f680}".repeat(255));
    let mut names = vec![
        "prod",
        "PROD",
        "Prod",
        " prod",
        "pröd",
        "pro\u{0308}d",
        "a'b\"c`d",
        "; DROP TABLE x --",
        "100%_\\",
        "ß",
        "ss",
        "日本語",
        &long,
        &emoji,
    ];
    let written: Vec<AccountRow> =
        names.iter().enumerate().map(|(at, name)| row(name, &format!("uid-{at}"))).collect();
    put(store, &written).await;
    put(store, &written).await;
    names.sort_unstable();
    let held = rows(store).await;
    assert_eq!(held.iter().map(|row| row.name.as_str()).collect::<Vec<_>>(), names);
    for row in &written {
        let list = std::slice::from_ref(&row.name);
        assert!(store.put_namespaces(&row.uid, list).await.expect("a list"), "{}", row.name);
    }
    for name in names {
        assert_eq!(store.namespaces(name).await.expect(name), Some(vec![name.to_owned()]));
    }
}

pub(super) async fn what_no_database_takes_is_refused_as_a_whole(store: &dyn Store) {
    let good = row("good", "uid-good");
    let with = |change: fn(&mut AccountRow)| {
        let mut row = row("bad-one", "uid-bad");
        change(&mut row);
        row
    };
    for bad in [
        with(|row| row.name = "n".repeat(256)),
        with(|row| row.name = "\u{1f680}".repeat(256)),
        with(|row| row.name = "bad-one\0".to_owned()),
        with(|row| row.name = String::new()),
        with(|row| row.uid = String::new()),
        with(|row| row.uid = "u".repeat(37)),
        with(|row| row.definition = "bad-one\0".to_owned()),
        with(|row| row.kube_version = Some("v".repeat(65))),
        with(|row| row.error_message = Some("e".repeat(2049))),
        row("good", "uid-bad"),
        row("bad-one", "uid-good"),
    ] {
        let error = store.put_accounts(&[good.clone(), bad.clone()]).await.expect_err("it is refused");
        assert!(matches!(error, StoreError::Refused { .. }), "{error:?}");
        let said = error.in_full();
        assert!(said.contains("kubesvc_accounts"), "{said}");
        assert!(said.contains(&bad.uid) && said.contains(&format!("{:?}", bad.name)), "{said}");
        assert_eq!(rows(store).await, [], "nothing is written of what is refused");
    }
}

pub(super) async fn a_uid_takes_over_a_name(store: &dyn Store) {
    put(store, &[row("one", "uid-old"), row("other", "uid-other")]).await;
    assert!(store.put_namespaces("uid-old", &["default".to_owned()]).await.expect("a list"));
    put(store, &[row("one", "uid-new")]).await;
    assert_eq!(rows(store).await, [row("one", "uid-new"), row("other", "uid-other")]);
    assert_eq!(
        store.namespaces("one").await.expect("no list"),
        None,
        "the list went with the uid it belonged to"
    );
    store.delete_account("uid-old").await.expect("the former uid has nothing left");
    assert_eq!(rows(store).await.len(), 2);
}

pub(super) async fn uids_and_names_change_places(store: &dyn Store) {
    put(store, &[row("a", "uid-b"), row("b", "uid-a"), row("c", "uid-c")]).await;
    put(store, &[row("a", "uid-a"), row("b", "uid-b")]).await;
    assert_eq!(rows(store).await, [row("a", "uid-a"), row("b", "uid-b"), row("c", "uid-c")]);
    put(store, &[row("d", "uid-c")]).await;
    assert_eq!(rows(store).await, [row("a", "uid-a"), row("b", "uid-b"), row("d", "uid-c")]);
}

pub(super) async fn deletes_go_before_rows(store: &dyn Store) {
    store.delete_account("uid-none").await.expect("nothing to delete is success");
    store.write(&AccountChanges::default()).await.expect("nothing to do is success");
    put(store, &[row("a", "uid-1"), row("b", "uid-2"), row("c", "uid-3")]).await;
    let changes = AccountChanges {
        deletes: vec!["uid-1".to_owned(), "uid-2".to_owned(), "uid-none".to_owned()],
        puts: vec![row("a", "uid-4").into()],
        ..AccountChanges::default()
    };
    store.write(&changes).await.expect("both");
    assert_eq!(rows(store).await, [row("a", "uid-4"), row("c", "uid-3")]);
    // A refused row also prevents the deletion.
    let changes = AccountChanges {
        deletes: vec!["uid-3".to_owned()],
        puts: vec![row("\0", "uid-5").into()],
        ..AccountChanges::default()
    };
    store.write(&changes).await.expect_err("refused");
    assert_eq!(rows(store).await.len(), 2);
}

pub(super) async fn namespaces_have_a_row(store: &dyn Store) {
    assert!(!store.put_namespaces("uid-1", &["a".to_owned()]).await.expect("no row"));
    assert_eq!(store.namespaces("one").await.expect("no row"), None);
    put(store, &[row("one", "uid-1")]).await;
    assert_eq!(store.namespaces("one").await.expect("no list"), None);
    let list: Vec<String> = ["kube-system", "ü\"'\\", "a\0b"].map(str::to_owned).to_vec();
    assert!(store.put_namespaces("uid-1", &list).await.expect("a list"));
    assert!(store.put_namespaces("uid-1", &list).await.expect("the same list"));
    put(store, &[AccountRow { generation: 2, ..row("one", "uid-1") }]).await;
    assert_eq!(store.namespaces("one").await.expect("the list"), Some(list));
    assert!(store.put_namespaces("uid-1", &[]).await.expect("an empty list"));
    assert_eq!(store.namespaces("one").await.expect("the list"), Some(Vec::new()));
    let full = vec!["n".repeat(63); MAX_NAMESPACES];
    assert!(store.put_namespaces("uid-1", &full).await.expect("a full list"));
    let over = vec![String::new(); MAX_NAMESPACES + 1];
    let error = store.put_namespaces("uid-1", &over).await.expect_err("too many");
    assert!(matches!(error, StoreError::Refused { .. }), "{error:?}");
    assert_eq!(store.namespaces("one").await.expect("the list").map(|list| list.len()), Some(MAX_NAMESPACES));
    store.delete_account("uid-1").await.expect("deleted");
    assert_eq!(store.namespaces("one").await.expect("no row"), None);
}

pub(super) async fn namespaces_of_many_accounts_are_written_together(store: &dyn Store) {
    let list = |uid: &str, names: &[&str]| NamespaceList {
        uid: uid.to_owned(),
        namespaces: names.iter().copied().map(str::to_owned).collect(),
    };
    assert_eq!(store.put_namespace_lists(&[]).await.expect("nothing"), [""; 0]);
    put(store, &[row("one", "uid-1"), row("two", "uid-2"), row("three", "uid-3")]).await;
    let lists =
        [list("uid-3", &["c"]), list("uid-none", &["x"]), list("uid-1", &["a", "b"]), list("uid-0", &[])];
    let missing = store.put_namespace_lists(&lists).await.expect("lists");
    assert_eq!(missing, ["uid-0", "uid-none"]);
    for (name, expected) in [("one", Some(vec!["a", "b"])), ("two", None), ("three", Some(vec!["c"]))] {
        let expected = expected.map(|names| names.into_iter().map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(store.namespaces(name).await.expect("a row"), expected, "{name}");
    }
    // A refused list also prevents the others from being written.
    let over = NamespaceList { uid: "uid-1".to_owned(), namespaces: vec![String::new(); MAX_NAMESPACES + 1] };
    store.put_namespace_lists(&[list("uid-2", &["z"]), over]).await.expect_err("too many");
    assert_eq!(store.namespaces("two").await.expect("a row"), None);
}

pub(super) async fn a_thousand_rows_are_written_at_once(store: &dyn Store) {
    let mut wanted: Vec<AccountRow> =
        (0..1_003).map(|at| row(&format!("account-{at:04}"), &format!("uid-{at}"))).collect();
    put(store, &wanted).await;
    for row in wanted.iter_mut().step_by(2) {
        row.observed_generation = 1;
    }
    put(store, &wanted).await;
    assert_eq!(rows(store).await, wanted);
    let deletes = wanted.iter().map(|row| row.uid.clone()).collect();
    store.write(&AccountChanges { deletes, ..AccountChanges::default() }).await.expect("deleted");
    assert_eq!(rows(store).await, []);
}

pub(super) async fn large_rows_are_written(store: &dyn Store) {
    let large = |at: usize| AccountRow {
        definition: "d".repeat(700_000),
        ..row(&format!("large-{at}"), &format!("uid-{at}"))
    };
    let wanted: Vec<AccountRow> = (0..9).map(large).collect();
    put(store, &wanted).await;
    assert_eq!(rows(store).await, wanted);
}

fn assignment(account: &str, agent: &str) -> Assignment {
    Assignment {
        account_name: account.to_owned(),
        agent_id: agent.into(),
        connections: 1,
        caching: false,
        reachable: true,
    }
}

async fn assign(store: &dyn Store, replica: &str, puts: Vec<Assignment>) {
    let changes = AssignmentChanges { puts, ..AssignmentChanges::default() };
    store.write_assignments(&replica.into(), &changes).await.expect("the assignments are written");
}

async fn assigned(store: &dyn Store, replica: &str) -> Vec<Assignment> {
    let mut held = store.assignments(&replica.into()).await.expect("the assignments");
    held.sort_by(|a, b| (&a.account_name, &a.agent_id).cmp(&(&b.account_name, &b.agent_id)));
    held
}

pub(super) async fn assignments_are_kept_by_replica(store: &dyn Store) {
    assert_eq!(assigned(store, "operator-0").await, []);
    store
        .write_assignments(&"operator-0".into(), &AssignmentChanges::default())
        .await
        .expect("nothing to do");
    let (one, two) = (assignment("a", "agent-1"), assignment("a", "agent-2"));
    assign(store, "operator-0", vec![two.clone(), one.clone()]).await;
    assign(store, "operator-1", vec![one.clone()]).await;
    assert_eq!(assigned(store, "operator-0").await, [one.clone(), two.clone()]);
    let caching = Assignment { caching: true, reachable: false, connections: 0, ..one.clone() };
    let changes = AssignmentChanges {
        deletes: vec![("a".to_owned(), "agent-2".into()), ("none".to_owned(), "none".into())],
        puts: vec![caching.clone(), assignment("\u{1f680}", "AGENT-1")],
        ..AssignmentChanges::default()
    };
    store.write_assignments(&"operator-0".into(), &changes).await.expect("written");
    assert_eq!(assigned(store, "operator-0").await, [caching, assignment("\u{1f680}", "AGENT-1")]);
    assert_eq!(assigned(store, "operator-1").await, [one], "the other replica's are its own");
    let many: Vec<Assignment> = (0..1_003).map(|at| assignment(&format!("m-{at:04}"), "agent")).collect();
    assign(store, "operator-2", many.clone()).await;
    assign(store, "operator-2", many.clone()).await;
    assert_eq!(assigned(store, "operator-2").await, many);
    let deletes = many.into_iter().map(|row| (row.account_name, row.agent_id)).collect();
    let changes = AssignmentChanges { deletes, ..AssignmentChanges::default() };
    store.write_assignments(&"operator-2".into(), &changes).await.expect("deleted");
    assert_eq!(assigned(store, "operator-2").await, []);
}

pub(super) async fn assignments_that_no_database_takes_are_refused(store: &dyn Store) {
    let good = assignment("a", "agent");
    let long = "x".repeat(256);
    for (replica, bad) in [
        ("operator-0", assignment(&long, "agent-1")),
        ("operator-0", assignment("b", &long)),
        ("operator-0", assignment("b\0", "agent-1")),
        ("operator-0", good.clone()),
        (long.as_str(), assignment("b", "agent-1")),
    ] {
        let changes = AssignmentChanges { puts: vec![good.clone(), bad], ..AssignmentChanges::default() };
        let error = store.write_assignments(&replica.into(), &changes).await.expect_err("refused");
        assert!(matches!(error, StoreError::Refused { .. }), "{error:?}");
        assert!(error.in_full().contains("kubesvc_assignments row"), "{}", error.in_full());
    }
    assert_eq!(assigned(store, "operator-0").await, [], "all or none");
}

pub(super) async fn deletes_take_what_belongs_to_the_account(store: &dyn Store) {
    put(store, &[row("a", "uid-a"), row("b", "uid-b")]).await;
    assign(store, "operator-0", vec![assignment("a", "agent-1"), assignment("b", "agent-1")]).await;
    assign(store, "operator-1", vec![assignment("a", "agent-2")]).await;
    store.delete_account("uid-a").await.expect("deleted");
    assert_eq!(assigned(store, "operator-0").await, [assignment("b", "agent-1")]);
    assert_eq!(assigned(store, "operator-1").await, []);
}

pub(super) async fn a_uid_that_takes_over_a_name_starts_without_assignments(store: &dyn Store) {
    put(store, &[row("a", "uid-old")]).await;
    assign(store, "operator-0", vec![assignment("a", "agent-1")]).await;
    put(store, &[row("a", "uid-old")]).await;
    assert_eq!(assigned(store, "operator-0").await.len(), 1, "the same account keeps them");
    put(store, &[row("a", "uid-new")]).await;
    assert_eq!(assigned(store, "operator-0").await, []);
}

pub(super) async fn nothing_of_others_is_read(store: &dyn Store) {
    put(store, &[row("a", "uid-a")]).await;
    assert_eq!(store.foreign().await.expect("the rows of others"), []);
    assert_eq!(store.vendor().await.expect("the rows of a table that is not there"), []);
}

pub(super) async fn adopted_rows_take_the_place_of_no_row_of_ours(store: &dyn Store) {
    let adopt = |name: &str, uid: &str| AccountChanges {
        adopts: vec![row(name, uid).into()],
        ..AccountChanges::default()
    };
    store.write(&adopt("a", "uid-a")).await.expect("the name is free");
    store.write(&adopt("a", "uid-a")).await.expect("it is so already");
    let error = store.write(&adopt("a", "uid-b")).await.expect_err("it is another account's");
    assert!(matches!(error, StoreError::Refused { .. }), "{error:?}");
    assert!(error.in_full().contains("\"a\"") && error.in_full().contains("another uid"), "{error:?}");
    assert_eq!(rows(store).await, [row("a", "uid-a")]);
    let both = AccountChanges { deletes: vec!["uid-a".to_owned()], ..adopt("a", "uid-b") };
    store.write(&both).await.expect("the other account goes first");
    assert_eq!(rows(store).await, [row("a", "uid-b")]);
    for twice in [row("a", "uid-c"), row("c", "uid-b"), row("c\0", "uid-c")] {
        let changes = AccountChanges { puts: vec![twice.into()], ..adopt("a", "uid-b") };
        let error = store.write(&changes).await.expect_err("refused");
        assert!(matches!(error, StoreError::Refused { .. }), "{error:?}");
    }
    assert_eq!(rows(store).await, [row("a", "uid-b")]);
}

pub(super) async fn as_many_rows_are_adopted_as_are_written(store: &dyn Store) {
    let wanted: Vec<AccountRow> =
        (0..1_003).map(|at| row(&format!("account-{at:04}"), &format!("uid-{at}"))).collect();
    let adopts = wanted.iter().cloned().map(Into::into).collect();
    store.write(&AccountChanges { adopts, ..AccountChanges::default() }).await.expect("adopted");
    assert_eq!(rows(store).await, wanted);
}

pub(super) async fn a_space_at_the_end_makes_another_name_or_none(store: &dyn Store) {
    put(store, &[row("prod", "uid-1")]).await;
    match store.put_accounts(&[row("prod ", "uid-2")]).await {
        Ok(()) => assert_eq!(rows(store).await, [row("prod", "uid-1"), row("prod ", "uid-2")]),
        Err(error) => {
            assert!(error.in_full().contains("ends with a space"), "{}", error.in_full());
            assert_eq!(rows(store).await, [row("prod", "uid-1")]);
        }
    }
    assert_eq!(store.namespaces("prod  ").await.expect("no such row"), None);
}

pub(super) async fn the_pools_are_told(store: &dyn Store) {
    store.put_accounts(&[row("a", "uid-1")]).await.expect("the row is written");
    let pools = store.pools();
    let names: Vec<_> = pools.iter().map(|pool| (pool.name, pool.max_connections)).collect();
    assert_eq!(names, [("writer", 1), ("readers", 4)]);
    assert_eq!(pools[0].connections, 1, "one has written");
    for pool in pools {
        assert!(["sqlite", "mysql", "postgres"].contains(&pool.database), "{pool:?}");
        assert!(pool.acquire_timeout_ms > 0 && pool.min_connections == 0, "{pool:?}");
    }
}

pub(super) async fn a_later_term_ends_the_earlier_ones(store: &dyn Store) {
    let puts = |name: &str, uid: &str, term| AccountChanges {
        puts: vec![row(name, uid).into()],
        term,
        ..AccountChanges::default()
    };
    let first = store.begin_term(&"operator-0".into()).await.expect("a term");
    store.write(&puts("one", "uid-1", Some(first))).await.expect("it is the newest");

    let second = store
        .begin_term(&("ü".repeat(300)).as_str().into())
        .await
        .expect("a term, however long its owner is named");
    assert!(second > first);
    let deposed = |error: StoreError| matches!(error, StoreError::Deposed);
    assert!(deposed(store.write(&puts("two", "uid-2", Some(first))).await.expect_err("an earlier term")));
    let changes =
        AccountChanges { deletes: vec!["uid-1".to_owned()], term: Some(first), ..AccountChanges::default() };
    assert!(deposed(store.write(&changes).await.expect_err("an earlier term")));
    let changes = AssignmentChanges {
        puts: vec![assignment("one", "agent-1")],
        term: Some(first),
        ..AssignmentChanges::default()
    };
    assert!(deposed(
        store.write_assignments(&"operator-9".into(), &changes).await.expect_err("an earlier term")
    ));
    assert_eq!(rows(store).await, [row("one", "uid-1")], "nothing of it was written");
    assert_eq!(assigned(store, "operator-9").await, []);

    store.write(&puts("two", "uid-2", Some(second))).await.expect("it is the newest");
    store
        .write_assignments(&"operator-9".into(), &AssignmentChanges { term: Some(second), ..changes })
        .await
        .expect("newest");
    assert_eq!(assigned(store, "operator-9").await.len(), 1);
}

pub(super) async fn terms_that_begin_at_once_follow_one_another(store: &dyn Store) {
    let terms =
        futures::future::join_all((0..8).map(|at| async move {
            store.begin_term(&format!("operator-{at}").into()).await.expect("a term")
        }))
        .await;
    let mut sorted: Vec<_> = terms.iter().map(|term| term.number()).collect();
    sorted.sort_unstable();
    assert_eq!(sorted, (sorted[0]..sorted[0] + 8).collect::<Vec<_>>(), "each is another one");
}

pub(super) async fn replicas_with_assignments_are_named(store: &dyn Store) {
    assert_eq!(store.assigned_replicas().await.expect("none"), Vec::<String>::new());
    assign(store, "operator-1", vec![assignment("a", "agent-1"), assignment("b", "agent-1")]).await;
    assign(store, "operator-0", vec![assignment("a", "agent-2")]).await;
    assert_eq!(store.assigned_replicas().await.expect("two"), ["operator-0", "operator-1"]);
}

pub(super) async fn registered_accounts_are_kept_by_name_under_the_newest_term(store: &dyn Store) {
    let row = |name: &str, uid: &str, state: &str| PushedRow {
        name: name.to_owned(),
        account_uid: uid.to_owned(),
        state: state.to_owned(),
        body_version: 1,
        body_hash: None,
        pushed_at: None,
    };
    let first = store.begin_term(&"operator-0".into()).await.expect("a term");
    let rows = [row("ONE", "u-2", "ADDED"), row("one", "u-1", "ADDING")];
    store.put_pushed(Some(first), &rows).await.expect("written");
    assert_eq!(store.pushed().await.expect("read"), rows, "names that differ in case are two");

    let added = PushedRow {
        body_hash: Some("ab".repeat(32)),
        pushed_at: Some(1_700_000_000_000),
        ..row("one", "u-1", "ADDED")
    };
    store.put_pushed(Some(first), std::slice::from_ref(&added)).await.expect("written over");
    store.delete_pushed(Some(first), "one", "u-9").await.expect("of another account");
    assert_eq!(store.pushed().await.expect("read"), [rows[0].clone(), added.clone()]);

    let second = store.begin_term(&"operator-1".into()).await.expect("a term");
    let refused = store.put_pushed(Some(first), &[row("two", "u-3", "ADDING")]).await;
    assert!(matches!(refused, Err(StoreError::Deposed)));
    let refused = store.delete_pushed(Some(first), "one", "u-1").await;
    assert!(matches!(refused, Err(StoreError::Deposed)));
    let refused = store.put_pushed(Some(second), &[row(&"n".repeat(256), "u-4", "ADDING")]).await;
    assert!(matches!(refused, Err(StoreError::Refused { .. })));
    store.delete_pushed(Some(second), "one", "u-1").await.expect("deleted");
    store.delete_pushed(Some(second), "one", "u-1").await.expect("there is none");
    assert_eq!(store.pushed().await.expect("read"), [rows[0].clone()]);
}

pub(super) async fn writes_of_a_name_follow_one_another(store: &dyn Store) {
    let row = |name: &str, replica: &str, started_at: i64| IntentRow {
        name: name.to_owned(),
        verb: "POST".to_owned(),
        body_hash: Some("ab".repeat(32)),
        replica_id: replica.to_owned(),
        started_at,
        tries: 0,
    };
    let first = [row("a", "operator-0", 1), row("b", "operator-0", 1)];
    assert_eq!(store.begin_intents(&first).await.expect("written"), None);
    assert_eq!(store.begin_intents(&first).await.expect("written"), None, "the same again");
    let second = [row("B", "operator-1", 2), row("b", "operator-1", 2), row("c", "operator-1", 2)];
    assert_eq!(store.begin_intents(&second).await.expect("read").as_deref(), Some("b"));
    assert_eq!(store.intents().await.expect("read"), first, "all or none");

    store.end_intents(&second).await.expect("of another write");
    store.mark_found(&second).await.expect("of another write");
    assert_eq!(store.intents().await.expect("read"), first);
    store.mark_found(&first[1..]).await.expect("marked");
    let found: Vec<bool> =
        store.intents().await.expect("read").iter().map(IntentRow::found_account).collect();
    assert_eq!(found, [false, true]);
    store.count_intent_tries(&first[..1]).await.expect("counted");
    let tried = IntentRow { tries: 1, ..first[0].clone() };
    assert_eq!(store.intents().await.expect("read")[0], tried);
    store.end_intents(&first[1..]).await.expect("ended");
    assert_eq!(store.begin_intents(&second).await.expect("written"), None);
    let names: Vec<String> = store.intents().await.expect("read").into_iter().map(|row| row.name).collect();
    assert_eq!(names, ["a", "B", "b", "c"], "the oldest first");
    store.end_intents(&first).await.expect("ended");
    store.end_intents(&second).await.expect("ended");

    let many: Vec<IntentRow> =
        (0..1001).map(|at| row(&format!("account-{at:04}"), "operator-0", 3)).collect();
    store.begin_intents(&many).await.expect("written");
    assert_eq!(store.intents().await.expect("read").len(), many.len(), "the newest too");
    store.end_intents(&many).await.expect("ended");

    let refused = store.begin_intents(&[row(&"n".repeat(256), "operator-0", 3)]).await;
    assert!(matches!(refused, Err(StoreError::Refused { .. })));
    let writers = (0..8).map(|at| async move {
        let row = row("one", &format!("operator-{at}"), 4);
        store.begin_intents(&[row]).await.expect("answered").is_none()
    });
    let begun = futures::future::join_all(writers).await;
    assert_eq!(begun.into_iter().filter(|begun| *begun).count(), 1, "one of all at once");
}
