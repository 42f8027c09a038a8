//! Tests of a server's database that is also edited by hand. [`contract_tests`] runs them against one adapter.

use std::sync::Arc;

use super::cache_contract::first_batch;
use super::contract::{DeleteAccount as _, row};
use super::installations::database_belongs_to_the_installation_that_opened_it_first;
use crate::{
    AccountChanges, Assignment, AssignmentChanges, ForeignRow, Store, StoreError, VendorTables, open,
    open_with_cache,
};
use kubesvc_core::account_row::AccountRow;
use kubesvc_testkit::databases::{Kind, Server, shared};
use kubesvc_testkit::must;

/// Generates one test for each function, on the shared server of this kind.
macro_rules! contract_tests {
    ($kind:expr) => {
        $crate::tests::manual_edits::contract_tests! { @each $kind,
            written_rows_survive_a_restart, another_installation_is_kept_out, last_updated_moves_only_with_the_row,
            rows_of_others_stay_as_they_are, rows_of_others_that_come_between_stay, rows_of_others_are_adopted,
            rows_of_the_vendors_table_are_adopted, rows_edited_by_hand_are_named,
            tables_of_another_product_are_kept, a_table_without_our_key_is_kept,
            cached_objects_of_another_product_are_kept,
            a_schema_that_is_much_newer_is_refused, a_schema_that_is_half_done_is_finished,
            a_schema_that_was_damaged_is_named, two_processes_may_start_at_once, a_caching_row_goes_with_its_account,
            a_caching_row_that_is_missing_or_left_over_is_told_and_mended,
            a_row_says_by_how_many_agents_its_account_is_held, replicas_that_count_at_once_count_each_other,
            a_wrong_url_is_said_without_the_password, objects_have_connections_of_their_own
        }
    };
    (@each $kind:expr, $($story:ident),+) => {
        $(#[tokio::test]
        async fn $story() {
            $crate::tests::manual_edits::$story(&$crate::tests::manual_edits::ServerDatabase::new($kind).await).await;
        })+
    };
}
pub(super) use contract_tests;

/// A dedicated database on a shared server.
pub(super) struct ServerDatabase {
    pub(super) server: &'static Server,
    pub(super) url: String,
}

impl ServerDatabase {
    pub(super) async fn new(kind: Kind) -> Self {
        let server = shared(kind).await;
        Self { server, url: server.fresh_database().await }
    }

    pub(super) async fn open(&self) -> Arc<dyn Store> {
        open(&self.url, VendorTables::Rename).await.unwrap_or_else(|error| must(Err(error.in_full())))
    }

    /// Runs SQL as another client.
    pub(super) async fn by_hand(&self, sql: &str) {
        must(self.try_by_hand(sql).await);
    }

    async fn try_by_hand(&self, sql: &str) -> Result<(), String> {
        let name = self.url.rsplit('/').next().unwrap_or_default();
        self.server.execute(name, sql).await
    }

    /// Panics unless this condition is true in the database.
    pub(super) async fn holds(&self, condition: &str) {
        let assertion = match self.server.kind() {
            Kind::MariaDb => format!(
                "BEGIN NOT ATOMIC IF NOT ({condition}) THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'it is not so'; \
                 END IF; END"
            ),
            Kind::PostgreSql => format!("DO $$ BEGIN ASSERT {condition}, 'it is not so'; END $$"),
        };
        let held = self.try_by_hand(&assertion).await;
        assert_eq!(held, Ok(()), "{condition}");
    }

    async fn unfit(&self, url: &str) -> String {
        match open(url, VendorTables::Refuse).await {
            Err(StoreError::Unfit(why)) => {
                assert!(!why.contains('\n') && !why.contains("p@ss"), "{why}");
                why
            }
            Err(error) => format!("not unfit: {error:?}"),
            Ok(_) => "not unfit: it opens".to_owned(),
        }
    }
}

async fn rows(store: &dyn Store) -> Vec<AccountRow> {
    let accounts = store.accounts().await.expect("the accounts");
    assert_eq!(accounts.malformed, []);
    accounts.rows
}

pub(super) async fn another_installation_is_kept_out(home: &ServerDatabase) {
    database_belongs_to_the_installation_that_opened_it_first(&home.url).await;
}

pub(super) async fn written_rows_survive_a_restart(home: &ServerDatabase) {
    home.open().await.put_accounts(&[row("one", "uid-1")]).await.expect("written");
    for _ in 0..3 {
        assert_eq!(rows(&*home.open().await).await, [row("one", "uid-1")]);
    }
}

pub(super) async fn last_updated_moves_only_with_the_row(home: &ServerDatabase) {
    let store = home.open().await;
    let both = [row("one", "uid-1"), row("two", "uid-2"), row("three", "uid-3")];
    store.put_accounts(&both).await.expect("written");
    assert!(store.put_namespaces("uid-3", &["a".to_owned()]).await.expect("a list"));
    home.by_hand("UPDATE kubesvc_accounts SET last_updated = 7").await;
    // A change of trailing spaces alone is a change.
    let changed = AccountRow { error_message: Some("x ".to_owned()), ..row("two", "uid-2") };
    store.put_accounts(&[row("one", "uid-1"), changed, row("three", "uid-3")]).await.expect("written");
    assert!(store.put_namespaces("uid-3", &["a".to_owned()]).await.expect("the same list"));
    home.holds(
        "(SELECT count(*) FROM kubesvc_accounts WHERE name IN ('one', 'three') AND last_updated = 7) = 2",
    )
    .await;
    home.holds("(SELECT last_updated FROM kubesvc_accounts WHERE name = 'two') > 1700000000000").await;
    home.by_hand("UPDATE kubesvc_accounts SET last_updated = 7").await;
    let changed = AccountRow { error_message: Some("x".to_owned()), ..row("two", "uid-2") };
    store.put_accounts(&[changed]).await.expect("written");
    home.holds("(SELECT last_updated FROM kubesvc_accounts WHERE name = 'two') > 1700000000000").await;
}

pub(super) async fn rows_of_others_stay_as_they_are(home: &ServerDatabase) {
    let store = home.open().await;
    home.by_hand("INSERT INTO kubesvc_accounts (name, status, zone_id) VALUES ('theirs', 'ACTIVE', 'z')")
        .await;
    assert_eq!(rows(&*store).await, []);
    let error =
        store.put_accounts(&[row("ours", "uid-1"), row("theirs", "uid-2")]).await.expect_err("refused");
    assert!(matches!(error, StoreError::Refused { .. }), "{error:?}");
    let said = error.in_full();
    assert!(said.contains("\"theirs\"") && said.contains("not kubesvc's"), "{said}");
    assert_eq!(rows(&*store).await, [], "all or none");
    store.put_accounts(&[row("ours", "uid-1")]).await.expect("written");
    assert_eq!(store.namespaces("theirs").await.expect("not ours"), None);
    store.delete_account("uid-1").await.expect("deleted");
    let theirs = ForeignRow {
        name: "theirs".to_owned(),
        status: "ACTIVE".to_owned(),
        zone_id: Some("z".to_owned()),
        ..ForeignRow::default()
    };
    assert_eq!(store.foreign().await.expect("the rows of others"), [theirs]);
}

pub(super) async fn rows_of_others_are_adopted(home: &ServerDatabase) {
    let store = home.open().await;
    home.by_hand(
        "INSERT INTO kubesvc_accounts (name, status, zone_id, definition, props, namespaces) VALUES \
         ('theirs', 'ACTIVE', 'z', '{\"type\":\"kubernetes\"}', '{\"permissions\":{}}', '[\"n\"]'), \
         ('Theirs', 'ACTIVE', NULL, NULL, NULL, NULL), ('left', 'FAILED', NULL, NULL, NULL, NULL)",
    )
    .await;
    store.put_accounts(&[row("ours", "uid-1")]).await.expect("written");
    let theirs = store.foreign().await.expect("the rows of others").pop().expect("there are some");
    assert_eq!((theirs.name.as_str(), theirs.zone_id.as_deref()), ("theirs", Some("z")));
    assert_eq!(theirs.definition.as_deref(), Some("{\"type\":\"kubernetes\"}"));
    assert_eq!(theirs.props.as_deref(), Some("{\"permissions\":{}}"));
    let adopts = |rows: &[AccountRow]| AccountChanges {
        adopts: rows.iter().cloned().map(Arc::new).collect(),
        ..AccountChanges::default()
    };
    // A conflict of one row leaves the other rows unwritten.
    let error =
        store.write(&adopts(&[row("left", "uid-2"), row("ours", "uid-3")])).await.expect_err("refused");
    assert!(error.in_full().contains("another uid"), "{}", error.in_full());
    assert_eq!(store.foreign().await.expect("the rows of others").len(), 3);
    let changes =
        AccountChanges { puts: vec![row("new", "uid-4").into()], ..adopts(&[row("theirs", "uid-2")]) };
    store.write(&changes).await.expect("written");
    store.write(&adopts(&[row("theirs", "uid-2")])).await.expect("it is so already");
    assert_eq!(rows(&*store).await, [row("new", "uid-4"), row("ours", "uid-1"), row("theirs", "uid-2")]);
    assert_eq!(
        store.namespaces("theirs").await.expect("no list"),
        None,
        "the list was of somebody else's row"
    );
    let left: Vec<String> =
        store.foreign().await.expect("the rows of others").into_iter().map(|row| row.name).collect();
    assert_eq!(left, ["Theirs", "left"]);
}

pub(super) async fn rows_of_the_vendors_table_are_adopted(home: &ServerDatabase) {
    let json = if home.server.kind() == Kind::MariaDb { "longblob" } else { "jsonb" };
    home.by_hand(&format!(
        "CREATE TABLE kubesvc_accounts (id bigint, name varchar(100) PRIMARY KEY, def {json}, props {json}, status \
         varchar(20), zone_id varchar(100)); INSERT INTO kubesvc_accounts VALUES (1, 'theirs', '{{\"metrics\": true}}', \
         NULL, 'ORPHANED', 'z'), (2, 'left', NULL, '{{}}', NULL, NULL)"
    ))
    .await;
    let store = home.open().await;
    assert_eq!(store.foreign().await.expect("no rows"), []);
    let mut held = store.vendor().await.expect("the vendor's rows");
    held.sort_by(|a, b| b.name.cmp(&a.name));
    let theirs = ForeignRow {
        name: "theirs".to_owned(),
        status: "ORPHANED".to_owned(),
        zone_id: Some("z".to_owned()),
        definition: Some("{\"metrics\": true}".to_owned()),
        props: None,
        is_dynamic: None,
    };
    let left = ForeignRow { name: "left".to_owned(), props: Some("{}".to_owned()), ..ForeignRow::default() };
    assert!(held == [theirs, left], "{held:?}");
    let changes = AccountChanges { adopts: vec![row("theirs", "uid-1").into()], ..AccountChanges::default() };
    store.write(&changes).await.expect("written");
    home.holds("(SELECT max(name) FROM kubesvc_accounts_vendor) = 'left'").await;
    assert_eq!(rows(&*store).await, [row("theirs", "uid-1")]);
    home.by_hand("DROP TABLE kubesvc_accounts_vendor").await;
    assert_eq!(store.vendor().await.expect("no table"), []);
    let changes = AccountChanges { adopts: vec![row("more", "uid-2").into()], ..AccountChanges::default() };
    store.write(&changes).await.expect("written without the table");
}

/// Another client inserts a row while kubesvc writes, and commits later: kubesvc's insert waits for the commit.
pub(super) async fn rows_of_others_that_come_between_stay(home: &ServerDatabase) {
    let store = home.open().await;
    let (begin, pause) = match home.server.kind() {
        Kind::MariaDb => ("START TRANSACTION", "DO SLEEP(1)"),
        Kind::PostgreSql => ("BEGIN", "DO $$ BEGIN PERFORM pg_sleep(1); END $$"),
    };
    let theirs = format!(
        "{begin}; INSERT INTO kubesvc_accounts (name, status) VALUES ('theirs', 'ACTIVE'); {pause}; COMMIT"
    );
    let (written, ()) = tokio::join!(
        async {
            // One of the writes meets the other client's open transaction. Once that is committed, all are refused.
            let mut written = Ok(());
            while written.is_ok() {
                store.delete_account("uid-1").await.expect("deleted");
                written = store.put_accounts(&[row("theirs", "uid-1")]).await;
            }
            written
        },
        async {
            // kubesvc's row may exist at this moment.
            while home.try_by_hand(&theirs).await.is_err() {}
        }
    );
    assert!(matches!(written, Err(StoreError::Refused { .. })), "{written:?}");
    assert_eq!(rows(&*store).await, []);
    assert_eq!(store.foreign().await.expect("the rows of others").len(), 1);
}

pub(super) async fn rows_edited_by_hand_are_named(home: &ServerDatabase) {
    let store = home.open().await;
    let wanted: Vec<AccountRow> = ["a", "b", "c"].map(|name| row(name, &format!("uid-{name}"))).into();
    store.put_accounts(&wanted).await.expect("written");
    home.by_hand(
        "UPDATE kubesvc_accounts SET props = NULL WHERE name = 'a'; \
         UPDATE kubesvc_accounts SET definition = NULL WHERE name = 'b'; \
         UPDATE kubesvc_accounts SET namespaces = 'none' WHERE name = 'c'",
    )
    .await;
    let accounts = store.accounts().await.expect("the accounts");
    assert_eq!(accounts.rows, [row("c", "uid-c")]);
    let named: Vec<String> = accounts.malformed.iter().map(ToString::to_string).collect();
    assert_eq!(
        named,
        [
            "table kubesvc_accounts, row \"a\", column props: it is NULL",
            "table kubesvc_accounts, row \"b\", column definition: it is NULL"
        ]
    );
    let error = store.namespaces("c").await.expect_err("no list").in_full();
    assert!(error.contains("row \"c\", column namespaces"), "{error}");
    store.put_accounts(&wanted).await.expect("written over");
    assert_eq!(rows(&*store).await, wanted);
}

pub(super) async fn tables_of_another_product_are_kept(home: &ServerDatabase) {
    home.by_hand(
        "CREATE TABLE kubesvc_accounts (name varchar(255) PRIMARY KEY, last_updated bigint, props text, \
         connections varchar(10)); INSERT INTO kubesvc_accounts VALUES ('theirs', 1, '{}', 'many'); \
         CREATE TABLE kubesvc_locks (id varchar(10))",
    )
    .await;
    let refused = open(&home.url, VendorTables::Refuse).await.err().map(|error| error.to_string());
    let refused = refused.unwrap_or_default();
    for part in
        ["kubesvc.database.takeOver: true", "kubesvc_accounts to kubesvc_accounts_vendor", "kubesvc_locks to"]
    {
        assert!(refused.contains(part), "{refused:?} lacks {part}");
    }
    let database = if home.server.kind() == Kind::MariaDb { "DATABASE()" } else { "'public'" };
    home.holds(&format!(
        "(SELECT count(*) FROM information_schema.tables WHERE table_schema = {database}) = 2"
    ))
    .await;
    for _ in 0..2 {
        let store = home.open().await;
        store.put_accounts(&[row("theirs", "uid-1")]).await.expect("the name is free");
    }
    home.holds("(SELECT props FROM kubesvc_accounts_vendor WHERE name = 'theirs') = '{}'").await;
    home.holds("(SELECT connections FROM kubesvc_accounts_vendor WHERE name = 'theirs') = 'many'").await;
    home.holds("(SELECT connections FROM kubesvc_accounts WHERE name = 'theirs') = 0").await;
    home.holds("(SELECT count(*) FROM kubesvc_locks_vendor) = 0").await;
}

pub(super) async fn a_table_without_our_key_is_kept(home: &ServerDatabase) {
    home.by_hand(
        "CREATE TABLE kubesvc_assignments (id bigint PRIMARY KEY, account_name varchar(255), agent_id varchar(255), \
         cd_id varchar(255), connections int, caching int, reachable int, last_updated bigint); \
         INSERT INTO kubesvc_assignments (id) VALUES (7)",
    )
    .await;
    let written = |time: i64| format!("UPDATE kubesvc_assignments SET last_updated = {time}");
    home.by_hand(&written(crate::now() - 100_000)).await;
    let alive = open(&home.url, VendorTables::Rename).await.err().map(|error| error.to_string());
    assert!(alive.as_ref().is_some_and(|why| why.contains("plugin still uses the database")), "{alive:?}");
    home.by_hand(&written(crate::now() - 181_000)).await;
    let store = home.open().await;
    assert_eq!(store.assignments(&"operator-0".into()).await.expect("a table of ours"), []);
    home.holds("(SELECT count(*) FROM kubesvc_assignments_vendor WHERE id = 7) = 1").await;
}

/// Their indexes and constraints keep their names, which are unique in a schema.
pub(super) async fn cached_objects_of_another_product_are_kept(home: &ServerDatabase) {
    home.by_hand(
        "CREATE TABLE kubesvc_cache (id varchar(255) NOT NULL, kind varchar(100), account varchar(100), body text, \
         CONSTRAINT kubesvc_cache_pkey PRIMARY KEY (id)); \
         CREATE INDEX idx_kubesvc_cache_kind ON kubesvc_cache (kind, account); \
         CREATE TABLE kubesvc_cache_rel (id varchar(255) PRIMARY KEY, rel1_id varchar(255), \
         CONSTRAINT kubesvc_cache_rel_rel1_id_fkey FOREIGN KEY (rel1_id) REFERENCES kubesvc_cache (id)); \
         CREATE TABLE kubesvc_resourceversion (kind varchar(100) PRIMARY KEY, resourceversion varchar(100)); \
         INSERT INTO kubesvc_cache VALUES ('theirs', 'pod', 'prod', '{}'); \
         INSERT INTO kubesvc_cache_rel VALUES ('r', 'theirs')",
    )
    .await;
    let store = home.open().await;
    store.put_accounts(&[row("prod", "uid-1")]).await.expect("written");
    home.holds("(SELECT count(*) FROM kubesvc_cache_vendor WHERE id = 'theirs') = 1").await;
    home.holds("(SELECT count(*) FROM kubesvc_cache_rel_vendor WHERE rel1_id = 'theirs') = 1").await;
    home.holds("(SELECT count(*) FROM kubesvc_resourceversion_vendor) = 0").await;
    home.holds("(SELECT count(*) FROM kubesvc_cache) + (SELECT count(*) FROM kubesvc_cache_rel) = 0").await;
    let indexes = if home.server.kind() == Kind::MariaDb {
        "SELECT count(DISTINCT table_name, index_name) FROM information_schema.statistics \
         WHERE table_schema = DATABASE()"
    } else {
        "SELECT count(*) FROM (SELECT indexname AS index_name, tablename AS table_name FROM pg_indexes \
         WHERE schemaname = current_schema()) i WHERE true"
    };
    home.holds(&format!("({indexes} AND index_name LIKE 'ix_kubesvc_%') = 11")).await;
    drop(home.open().await);
}

pub(super) async fn a_schema_that_is_much_newer_is_refused(home: &ServerDatabase) {
    drop(home.open().await);
    let zero = if home.server.kind() == Kind::MariaDb { "x'00'" } else { "'\\x00'" };
    home.by_hand(&format!(
        "INSERT INTO kubesvc_schema_migrations (version, description, success, checksum, execution_time) \
         SELECT max(version) + 1, 'next', true, {zero}, 0 FROM kubesvc_schema_migrations"
    ))
    .await;
    drop(home.open().await);
    home.by_hand("UPDATE kubesvc_schema_migrations SET version = 1000 WHERE description = 'next'").await;
    let why = home.unfit(&home.url).await;
    assert!(why.contains("has schema 1000") && why.contains("newer version"), "{why}");
}

/// The states that a process killed between two writes leaves behind.
pub(super) async fn a_schema_that_is_half_done_is_finished(home: &ServerDatabase) {
    drop(home.open().await);
    for damage in [
        "DELETE FROM kubesvc_schema_migrations WHERE version > 1; DROP TABLE kubesvc_locks",
        "UPDATE kubesvc_schema_migrations SET success = false WHERE version = 2",
        "UPDATE kubesvc_schema_migrations SET success = false WHERE version = 4; DROP TABLE kubesvc_assignments; \
         DELETE FROM kubesvc_schema_migrations WHERE version = 5; DROP TABLE kubesvc_caching",
        "UPDATE kubesvc_schema_migrations SET success = false WHERE version = 6",
        "UPDATE kubesvc_schema_migrations SET success = false WHERE version = 6; \
         ALTER TABLE kubesvc_accounts DROP COLUMN connections",
        "UPDATE kubesvc_schema_migrations SET success = false WHERE version = 7",
        "UPDATE kubesvc_schema_migrations SET success = false WHERE version = 8; DROP TABLE kubesvc_cache_rel",
        "DELETE FROM kubesvc_schema_migrations WHERE version > 8; DROP TABLE kubesvc_resourceversion",
        "UPDATE kubesvc_schema_migrations SET success = false WHERE version = 10; DROP TABLE kubesvc_ops",
        "UPDATE kubesvc_schema_migrations SET success = false WHERE version = 13",
        "DELETE FROM kubesvc_schema_migrations WHERE version = 13; \
         ALTER TABLE kubesvc_ops_history DROP COLUMN warnings",
        "UPDATE kubesvc_schema_migrations SET success = false WHERE version = 14; DROP TABLE kubesvc_pushed",
        "UPDATE kubesvc_schema_migrations SET success = false WHERE version = 15; DROP TABLE kubesvc_intents",
        "DROP TABLE kubesvc_schema_migrations",
        "DELETE FROM kubesvc_schema_migrations",
    ] {
        // A migration that was begun lately is waited for.
        home.by_hand("UPDATE kubesvc_schema_migrations SET installed_on = installed_on - INTERVAL '1' HOUR")
            .await;
        home.by_hand(damage).await;
        let store = home.open().await;
        store.put_accounts(&[row("one", "uid-1")]).await.expect(damage);
        home.holds("(SELECT count(*) FROM kubesvc_schema_migrations WHERE success) = 15").await;
    }
    assert_eq!(rows(&*home.open().await).await, [row("one", "uid-1")]);
}

pub(super) async fn a_schema_that_was_damaged_is_named(home: &ServerDatabase) {
    drop(home.open().await);
    home.by_hand("ALTER TABLE kubesvc_meta DROP COLUMN v").await;
    let why = home.unfit(&home.url).await;
    assert!(why.contains("column v of table kubesvc_meta"), "{why}");
    home.by_hand("DROP TABLE kubesvc_meta; DROP TABLE kubesvc_caching").await;
    let why = home.unfit(&home.url).await;
    assert!(why.contains("column k of table kubesvc_meta"), "{why}");
}

pub(super) async fn two_processes_may_start_at_once(home: &ServerDatabase) {
    let stores = futures::future::join_all((0..6).map(|_| home.open())).await;
    for (at, store) in stores.iter().enumerate() {
        store.put_accounts(&[row(&format!("row-{at}"), &format!("uid-{at}"))]).await.expect("written");
    }
    assert_eq!(rows(&*stores[0]).await.len(), 6);
    home.holds("(SELECT count(*) FROM kubesvc_schema_migrations) = 15").await;
}

/// Writes an assignment of this account for each of these agents, with this `reachable`.
async fn assign(store: &dyn Store, replica: &str, account: &str, agents: &[&str], reachable: bool) {
    let put = |agent: &&str| Assignment {
        account_name: account.to_owned(),
        agent_id: (*agent).into(),
        connections: 1,
        caching: false,
        reachable,
    };
    let puts = agents.iter().map(put).collect();
    let changes = AssignmentChanges { puts, ..AssignmentChanges::default() };
    store.write_assignments(&replica.into(), &changes).await.expect("written");
}

pub(super) async fn a_row_says_by_how_many_agents_its_account_is_held(home: &ServerDatabase) {
    let store = home.open().await;
    let of = |name: &str, held: u8| {
        format!("(SELECT connections FROM kubesvc_accounts WHERE name = '{name}') = {held}")
    };
    store.put_accounts(&[row("one", "uid-1"), row("two", "uid-2")]).await.expect("written");
    home.by_hand("INSERT INTO kubesvc_accounts (name, connections) VALUES ('theirs', 7)").await;
    home.holds(&of("one", 0)).await;
    assign(&*store, "operator-0", "one", &["a", "b"], true).await;
    assign(&*store, "operator-0", "theirs", &["a"], true).await;
    // An agent that moves between replicas is briefly in both.
    assign(&*store, "operator-1", "one", &["b", "c"], true).await;
    home.holds(&of("one", 3)).await;
    home.holds(&of("two", 0)).await;
    home.holds(&of("theirs", 7)).await;

    // Unchanged rows are not written, neither as assignments nor as accounts.
    home.by_hand("UPDATE kubesvc_accounts SET last_updated = 7").await;
    assign(&*store, "operator-1", "one", &["b", "c"], true).await;
    store.put_accounts(&[row("one", "uid-1")]).await.expect("written");
    home.holds("(SELECT max(last_updated) FROM kubesvc_accounts) = 7").await;
    home.holds(&of("one", 3)).await;

    assign(&*store, "operator-1", "one", &["c"], false).await;
    home.holds(&of("one", 2)).await;
    let gone = |agent: &str| ("one".to_owned(), agent.into());
    for (replica, agents) in [("operator-0", ["a", "b"]), ("operator-1", ["b", "c"])] {
        let changes = AssignmentChanges { deletes: agents.map(gone).into(), ..AssignmentChanges::default() };
        store.write_assignments(&replica.into(), &changes).await.expect("written");
    }
    home.holds(&of("one", 0)).await;

    // Counts edited by hand are found and recounted.
    assign(&*store, "operator-0", "one", &["a"], true).await;
    assert_eq!(store.miscounted().await.expect("read"), Vec::<String>::new());
    home.by_hand("UPDATE kubesvc_accounts SET connections = 9").await;
    let mut wrong = store.miscounted().await.expect("read");
    wrong.sort();
    assert_eq!(wrong, ["one", "two"]);
    let changes = AssignmentChanges { recounts: wrong, ..AssignmentChanges::default() };
    store.write_assignments(&"operator-1".into(), &changes).await.expect("written");
    home.holds(&of("one", 1)).await;
    home.holds(&of("two", 0)).await;
    home.holds(&of("theirs", 9)).await;
    store.put_accounts(&[row("one", "uid-new")]).await.expect("the name is taken over");
    home.holds(&of("one", 0)).await;
}

pub(super) async fn replicas_that_count_at_once_count_each_other(home: &ServerDatabase) {
    let stores = futures::future::join_all((0..4).map(|_| home.open())).await;
    let names: Vec<String> = (0..40).map(|at| format!("account-{at}")).collect();
    let rows: Vec<_> = names.iter().map(|name| row(name, &format!("uid-{name}"))).collect();
    stores[0].put_accounts(&rows).await.expect("written");
    let stores = &stores;
    let all = names.iter().map(|name| async move {
        let each = stores.iter().enumerate().map(|(at, store)| async move {
            assign(&**store, &format!("operator-{at}"), name, &[&format!("agent-{at}")], true).await;
        });
        futures::future::join_all(each).await;
    });
    futures::future::join_all(all).await;
    home.holds("(SELECT count(*) FROM kubesvc_accounts WHERE connections = 4) = 40").await;
}

pub(super) async fn a_caching_row_goes_with_its_account(home: &ServerDatabase) {
    let store = home.open().await;
    store.put_accounts(&[row("a", "uid-a"), row("b", "uid-b")]).await.expect("written");
    home.by_hand("UPDATE kubesvc_caching SET epoch = 7").await;
    store.delete_account("uid-a").await.expect("deleted");
    home.holds("(SELECT min(account_uid) FROM kubesvc_caching) = 'uid-b'").await;
    store.put_accounts(&[row("b", "uid-new")]).await.expect("the name is taken over");
    home.holds("(SELECT max(epoch) FROM kubesvc_caching WHERE account_uid = 'uid-new') = 0").await;
    home.holds("(SELECT count(*) FROM kubesvc_caching) = 1").await;
}

pub(super) async fn a_caching_row_that_is_missing_or_left_over_is_told_and_mended(home: &ServerDatabase) {
    let store = home.open().await;
    store.put_accounts(&[row("a", "uid-a"), row("b", "uid-b"), row("c", "uid-c")]).await.expect("written");
    let amiss = async || {
        let read = store.accounts().await.expect("they are read");
        (read.unfenced, read.stray_fences)
    };
    assert_eq!(amiss().await, (vec![], vec![]));
    home.by_hand("DELETE FROM kubesvc_caching WHERE account = 'a'").await;
    home.by_hand("UPDATE kubesvc_caching SET account = 'elsewhere' WHERE account = 'b'").await;
    home.by_hand("DELETE FROM kubesvc_accounts WHERE name = 'c'").await;
    let (mut unfenced, stray) = amiss().await;
    unfenced.sort();
    assert_eq!((unfenced.join(" "), stray), ("uid-a uid-b".to_owned(), vec!["uid-c".to_owned()]));
    store.put_accounts(&[row("a", "uid-a"), row("b", "uid-b")]).await.expect("written");
    store.delete_account("uid-c").await.expect("deleted");
    assert_eq!(amiss().await, (vec![], vec![]));
    // The name of a leftover fence goes to the account that has the name now.
    home.by_hand("DELETE FROM kubesvc_accounts WHERE name = 'a'").await;
    store.put_accounts(&[row("a", "uid-new")]).await.expect("written");
    assert_eq!(amiss().await, (vec![], vec![]));
}

pub(super) async fn a_wrong_url_is_said_without_the_password(home: &ServerDatabase) {
    let name = home.url.rsplit('/').next().unwrap_or_default();
    let why = home.unfit(&home.url.replace(name, "no_such_database")).await;
    assert!(why.contains("no database \"no_such_database\"") && why.contains("CREATE DATABASE"), "{why}");
    let why = home.unfit(&home.url.replace("p%40ss", "wrong")).await;
    assert!(why.contains("refuses the user \"kubesvc\"") && why.contains("check user and password"), "{why}");
    let port = format!(":{}/", home.server.port());
    let why = home.unfit(&home.url.replace(&port, ":1/")).await;
    assert!(why.contains("127.0.0.1:1") && why.contains("check that"), "{why}");
    let why = home.unfit(&format!("{}?ssl-ca=/no/such/file&ssl-mode=VERIFY_CA", home.url)).await;
    assert!(why.contains("TLS") || why.contains("must be one of"), "{why}");
}

pub(super) async fn objects_have_connections_of_their_own(home: &ServerDatabase) {
    let (store, cache) = open_with_cache(&home.url, VendorTables::Refuse, 3).await.expect("it opens");
    let in_use = || -> Vec<_> {
        let told = store.pools();
        told.iter().map(|pool| (pool.name, pool.max_connections, pool.connections)).collect()
    };
    assert_eq!(
        in_use(),
        [("writer", 1, 0), ("readers", 4, 0), ("cache_writers", 3, 0), ("cache_sweeper", 1, 0)],
        "they connect on first use"
    );
    let nothing = first_batch("prod", Vec::new());
    let claims = [nothing.clone(), nothing.clone(), nothing];
    futures::future::join_all(claims.iter().map(|batch| cache.write_objects(std::slice::from_ref(batch))))
        .await;
    let bases = (0..20).map(|_| cache.basis("prod", "pod", "", None, 10));
    assert!(futures::future::join_all(bases).await.iter().all(Result::is_ok));
    cache.remove_scopes(None, "uid-1").await.expect("there are none");
    let in_use = in_use();
    assert_eq!((in_use[0].2, in_use[1].2, in_use[3].2), (0, 0, 1));
    assert!((1..=3).contains(&in_use[2].2), "{in_use:?}");
}
