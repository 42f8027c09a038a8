use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{Connection as _, Executor as _, Row as _};
use tempfile::TempDir;

use crate::sql::SqlStore;
use crate::sql::pools::PoolUse;
use crate::sqlite::{Sqlite, SqliteTuning, open_with};
use crate::tests::contract::{DeleteAccount as _, contract_tests, row};
use crate::tests::installations::database_belongs_to_the_installation_that_opened_it_first;
use crate::{
    AccountChanges, AccountStore as _, Assignment, AssignmentChanges, AssignmentStore as _,
    NamespaceStore as _, Store, StoreError, StoredProgress, VendorTables, open, open_with_cache,
};
use kubesvc_core::CachingEpoch;
use kubesvc_core::account_row::AccountRow;

contract_tests!(fresh());

async fn fresh() -> (Box<dyn Store>, TempDir) {
    let home = DatabaseFolder::new();
    (Box::new(home.open().await.expect("it opens")), home.folder)
}

mod fence_contract {
    use std::sync::Arc;

    use super::*;
    use crate::tests::fence_contract::{Streaming, contract_tests};

    contract_tests!(fresh());

    /// Only one process can open the file, so there is one store.
    async fn fresh() -> (Arc<dyn Streaming>, Arc<dyn Streaming>, TempDir) {
        let home = DatabaseFolder::new();
        let store: Arc<dyn Streaming> = Arc::new(home.open().await.expect("it opens"));
        (Arc::clone(&store), store, home.folder)
    }
}

mod operation_contract {
    use std::sync::Arc;

    use super::*;

    crate::tests::operation_contract::contract_tests!(fresh());

    /// Only one process can open the file, so there is one store.
    async fn fresh() -> (Arc<dyn Store>, Arc<dyn Store>, TempDir) {
        let home = DatabaseFolder::new();
        let store: Arc<dyn Store> = Arc::new(home.open().await.expect("it opens"));
        (Arc::clone(&store), store, home.folder)
    }
}

mod cache_contract {
    use std::sync::Arc;

    use super::*;
    use crate::tests::cache_contract::{CachedStore, contract_tests};

    contract_tests!(fresh());

    /// Only one process can open the file, so there is one store.
    async fn fresh() -> (CachedStore, CachedStore, TempDir) {
        let home = DatabaseFolder::new();
        let store: CachedStore = Arc::new(home.open().await.expect("it opens"));
        (Arc::clone(&store), store, home.folder)
    }
}

/// A folder with a database in it.
struct DatabaseFolder {
    folder: TempDir,
}

impl DatabaseFolder {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a folder") }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("kubesvc.db")
    }

    fn url(&self) -> String {
        format!("sqlite://{}", self.path().display())
    }

    /// Opens the store. It waits long for a lock: connections that a test dropped close asynchronously.
    async fn open(&self) -> Result<SqlStore<Sqlite>, StoreError> {
        self.open_with(SqliteTuning { busy_timeout: Duration::from_secs(10), ..SqliteTuning::default() })
            .await
    }

    async fn open_with(&self, tuning: SqliteTuning) -> Result<SqlStore<Sqlite>, StoreError> {
        open_with(&self.path(), &VendorTables::Rename.into(), &tuning).await
    }

    /// Runs SQL on the file as another client.
    async fn by_hand(&self, sql: &'static str) -> SqliteConnection {
        let options = SqliteConnectOptions::new().filename(self.path()).create_if_missing(true);
        let mut connection = SqliteConnection::connect_with(&options).await.expect("a connection");
        connection.execute(sql).await.expect(sql);
        connection
    }

    async fn unfit(&self) -> String {
        match open(&self.url(), VendorTables::Refuse).await {
            Err(StoreError::Unfit(why)) => {
                assert!(!why.contains('\n'), "{why}");
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

#[tokio::test]
async fn another_installation_is_kept_out() {
    let home = DatabaseFolder::new();
    database_belongs_to_the_installation_that_opened_it_first(&home.url()).await;
}

#[tokio::test]
async fn written_rows_survive_a_restart() {
    let home = DatabaseFolder::new();
    let store = open(&home.url(), VendorTables::Refuse).await.expect("it opens");
    store.put_accounts(&[row("one", "uid-1")]).await.expect("written");
    drop(store);
    for _ in 0..3 {
        let store = open(&home.url(), VendorTables::Refuse).await.expect("it opens again");
        assert_eq!(rows(&*store).await, [row("one", "uid-1")]);
    }
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).expect("a file").permissions().mode() & 0o7777
}

#[tokio::test]
async fn all_files_are_for_their_owner_alone_also_those_of_an_earlier_version() {
    let home = DatabaseFolder::new();
    let files = ["", "-wal", "-shm", ".lock"].map(|suffix| {
        let mut path = home.path().into_os_string();
        path.push(suffix);
        PathBuf::from(path)
    });
    for round in ["made", "found open to others"] {
        let store = home.open().await.expect("it opens");
        store.put_accounts(&[row("one", "uid-1")]).await.expect("written");
        for file in &files {
            assert_eq!(format!("{:o}", mode(file)), "600", "{round}: {}", file.display());
        }
        // Simulates a crash: the write-ahead log is left behind.
        std::mem::forget(store);
        for file in &files {
            std::fs::set_permissions(file, Permissions::from_mode(0o644)).expect("ours");
        }
        // The leaked store still holds the lock.
        std::fs::remove_file(&files[3]).expect("removed");
    }
}

#[tokio::test]
async fn a_lock_that_leads_to_another_file_is_refused_and_that_file_left_alone() {
    let home = DatabaseFolder::new();
    let (lock, other) = (home.folder.path().join("kubesvc.db.lock"), home.folder.path().join("other"));
    std::fs::write(&other, "precious").expect("written");
    let links: [fn(&Path, &Path) -> std::io::Result<()>; 2] = [
        |other, lock| std::os::unix::fs::symlink(other, lock),
        |other, lock| std::fs::hard_link(other, lock),
    ];
    for link in links {
        link(&other, &lock).expect("linked");
        let why = home.unfit().await;
        assert!(why.contains("kubesvc.db.lock is a link"), "{why}");
        assert_eq!(std::fs::read_to_string(&other).expect("it is there"), "precious");
        std::fs::remove_file(&lock).expect("removed");
    }
    home.open().await.expect("it opens without the link");
}

#[tokio::test]
async fn every_commit_is_on_the_disk() {
    let home = DatabaseFolder::new();
    let store = home.open().await.expect("it opens");
    let mut connection = store.pools.acquire(PoolUse::Write).await.expect("a connection");
    for (pragma, wanted) in
        [("PRAGMA synchronous", "2"), ("PRAGMA journal_mode", "wal"), ("PRAGMA foreign_keys", "1")]
    {
        let row = connection.fetch_one(pragma).await.expect(pragma);
        let held = row
            .try_get::<String, _>(0)
            .or_else(|_| row.try_get::<i64, _>(0).map(|number| number.to_string()));
        assert_eq!(held.expect(pragma), wanted, "{pragma}");
    }
}

#[tokio::test]
async fn last_updated_moves_only_with_the_row() {
    let home = DatabaseFolder::new();
    let store = home.open().await.expect("it opens");
    let both = [row("one", "uid-1"), row("two", "uid-2")];
    store.put_accounts(&both).await.expect("written");
    let mut hand = home.by_hand("UPDATE kubesvc_accounts SET last_updated = 7").await;
    let changed = AccountRow { failed_count: 1, ..row("two", "uid-2") };
    store.put_accounts(&[row("one", "uid-1"), changed]).await.expect("written");
    let held: Vec<i64> = sqlx::query_scalar("SELECT last_updated FROM kubesvc_accounts ORDER BY name")
        .fetch_all(&mut hand)
        .await
        .expect("times");
    assert_eq!(held[0], 7);
    assert!(held[1] > 1_700_000_000_000, "{held:?}");
}

#[tokio::test]
async fn a_second_process_ends_with_a_remedy() {
    let home = DatabaseFolder::new();
    let store = home.open().await.expect("it opens");
    let error = home.open().await.err().expect("in use");
    assert!(matches!(error, StoreError::InUse { .. }), "{error}");
    let why = error.to_string();
    assert!(!why.contains('\n'), "{why}");
    for part in ["another process", &std::process::id().to_string(), "one replica", "Recreate", "PostgreSQL"]
    {
        assert!(why.contains(part), "{part}: {why}");
    }
    // Another name of the same file does not get around the lock.
    let link = home.folder.path().join("link.db");
    std::os::unix::fs::symlink(home.path(), &link).expect("a link");
    assert!(open(&format!("sqlite://{}", link.display()), VendorTables::Refuse).await.is_err());
    drop(store);
    home.open().await.expect("the lock is free");
}

#[tokio::test]
async fn files_that_do_not_fit_are_refused_and_left_alone() {
    let home = DatabaseFolder::new();
    std::fs::write(home.path(), "apiVersion: v1\nkind: Secret\n").expect("a file");
    let why = home.unfit().await;
    assert!(why.contains("no SQLite database") && why.contains("another path"), "{why}");
    assert_eq!(std::fs::read(home.path()).expect("the file"), b"apiVersion: v1\nkind: Secret\n");

    let missing = format!("sqlite://{}/none/kubesvc.db", home.folder.path().display());
    let why =
        open(&missing, VendorTables::Refuse).await.err().map(|error| error.to_string()).unwrap_or_default();
    assert!(why.contains("/none") && why.contains("make it"), "{why}");
    let folder = format!("sqlite://{}", home.folder.path().display());
    let why =
        open(&folder, VendorTables::Refuse).await.err().map(|error| error.to_string()).unwrap_or_default();
    assert!(why.contains("is a folder"), "{why}");

    std::fs::write(home.path(), "").expect("an empty file");
    home.open().await.expect("an empty file is a new database");
}

#[tokio::test]
async fn a_damaged_file_is_named() {
    let home = DatabaseFolder::new();
    drop(home.open().await.expect("it opens"));
    // Connections of the dropped store close asynchronously.
    let mut hand = home.by_hand("SELECT 1").await;
    while hand.execute("PRAGMA journal_mode = DELETE").await.is_err() {
        tokio::task::yield_now().await;
    }
    drop(hand);
    let mut bytes = std::fs::read(home.path()).expect("the file");
    bytes[100..].fill(0xa5);
    std::fs::write(home.path(), bytes).expect("damaged");
    let why = home.unfit().await;
    assert!(
        why.contains("kubesvc.db") && why.contains("damaged") && why.contains("move the file away"),
        "{why}"
    );
}

#[tokio::test]
async fn a_file_without_the_right_to_write_is_named() {
    let home = DatabaseFolder::new();
    drop(home.open().await.expect("it opens"));
    std::fs::set_permissions(home.path(), Permissions::from_mode(0o400)).expect("rights");
    if std::fs::OpenOptions::new().append(true).open(home.path()).is_ok() {
        return; // root may write anything
    }
    let why = home.unfit().await;
    assert!(why.contains("readable and writable") && why.contains("rights"), "{why}");
}

#[tokio::test]
async fn a_database_that_may_only_be_read_is_unavailable() {
    let home = DatabaseFolder::new();
    let store = home.open().await.expect("it opens");
    let mut connection = store.pools.acquire(PoolUse::Write).await.expect("a connection");
    connection.execute("PRAGMA query_only = ON").await.expect("a pragma");
    drop(connection);
    let error = store.put_accounts(&[row("one", "uid-1")]).await.expect_err("not written");
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    assert!(error.in_full().contains("is not writable"), "{}", error.in_full());
    store.put_accounts(&[row("one", "uid-1")]).await.expect("a new connection may");
}

#[tokio::test]
async fn a_locked_database_is_unavailable_until_it_is_free() {
    let home = DatabaseFolder::new();
    let store = home
        .open_with(SqliteTuning { busy_timeout: Duration::from_millis(20), ..SqliteTuning::default() })
        .await
        .expect("it opens");
    let mut hand = home.by_hand("BEGIN IMMEDIATE").await;
    let error = store.put_accounts(&[row("one", "uid-1")]).await.expect_err("locked");
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    let said = error.in_full();
    assert!(said.contains("has the SQLite file locked"), "{said}");
    assert_eq!(said.matches("database is locked").count(), 1, "{said}");
    assert_eq!(rows(&store).await, [], "reading goes on");
    hand.execute("COMMIT").await.expect("free");
    store.put_accounts(&[row("one", "uid-1")]).await.expect("written");
}

#[tokio::test]
async fn a_brief_lock_delays_a_write_and_fails_none() {
    let home = DatabaseFolder::new();
    let store = home.open().await.expect("it opens");
    store.put_accounts(&[row("one", "uid-1")]).await.expect("written");
    let mut hand = home.by_hand("BEGIN IMMEDIATE").await;
    let free = async {
        tokio::time::sleep(Duration::from_millis(30)).await;
        hand.execute("COMMIT").await.expect("free");
    };
    let (written, ()) = tokio::join!(store.delete_account("uid-1"), free);
    written.expect("deleted");
}

#[tokio::test]
async fn full_disk_is_unavailable_until_space_is_freed() {
    let home = DatabaseFolder::new();
    drop(home.open().await.expect("it opens"));
    let store = home
        .open_with(SqliteTuning { max_pages: Some(90), ..SqliteTuning::default() })
        .await
        .expect("it opens");
    let large = |name: &str, uid: &str| AccountRow { definition: "x".repeat(150_000), ..row(name, uid) };
    store.put_accounts(&[large("one", "uid-1")]).await.expect("it fits");
    for _ in 0..3 {
        let error = store.put_accounts(&[large("two", "uid-2")]).await.expect_err("full");
        assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
        assert!(error.in_full().contains("full: make room"), "{}", error.in_full());
    }
    assert_eq!(rows(&store).await, [large("one", "uid-1")]);
    store.delete_account("uid-1").await.expect("room");
    store.put_accounts(&[large("two", "uid-2")]).await.expect("it fits now");
}

#[tokio::test]
async fn rows_of_others_stay_as_they_are() {
    let home = DatabaseFolder::new();
    let store = home.open().await.expect("it opens");
    let mut hand =
        home.by_hand("INSERT INTO kubesvc_accounts (name, status) VALUES ('theirs', 'ACTIVE')").await;
    assert_eq!(rows(&store).await, []);
    let error =
        store.put_accounts(&[row("ours", "uid-1"), row("theirs", "uid-2")]).await.expect_err("refused");
    assert!(matches!(error, StoreError::Refused { .. }), "{error:?}");
    let said = error.in_full();
    assert!(said.contains("\"theirs\"") && said.contains("not kubesvc's"), "{said}");
    assert_eq!(rows(&store).await, [], "all or none");
    store.put_accounts(&[row("ours", "uid-1")]).await.expect("written");
    assert_eq!(store.namespaces("theirs").await.expect("not ours"), None);
    let left: i64 =
        sqlx::query_scalar("SELECT count(*) FROM kubesvc_accounts WHERE name = 'theirs' AND uid IS NULL")
            .fetch_one(&mut hand)
            .await
            .expect("a count");
    assert_eq!(left, 1);
}

fn adopts(name: &str, uid: &str) -> AccountChanges {
    AccountChanges { adopts: vec![row(name, uid).into()], ..AccountChanges::default() }
}

#[tokio::test]
async fn rows_of_others_are_adopted() {
    let home = DatabaseFolder::new();
    let store = home.open().await.expect("it opens");
    drop(
        home.by_hand(
            "INSERT INTO kubesvc_accounts (name, status, definition, namespaces) VALUES
             ('theirs', 'ACTIVE', '{}', '[\"n\"]'), ('left', 'ACTIVE', NULL, NULL)",
        )
        .await,
    );
    store.put_accounts(&[row("ours", "uid-1")]).await.expect("written");
    let changes = AccountChanges {
        adopts: vec![row("left", "uid-2").into(), row("ours", "uid-3").into()],
        ..AccountChanges::default()
    };
    let error = store.write(&changes).await.expect_err("one of them is ours");
    assert!(error.in_full().contains("another uid"), "{}", error.in_full());
    for _ in 0..2 {
        store.write(&adopts("theirs", "uid-2")).await.expect("adopted");
    }
    assert_eq!(rows(&store).await, [row("ours", "uid-1"), row("theirs", "uid-2")]);
    assert_eq!(
        store.namespaces("theirs").await.expect("no list"),
        None,
        "the list was of somebody else's row"
    );
    let left: Vec<String> =
        store.foreign().await.expect("the rows of others").into_iter().map(|row| row.name).collect();
    assert_eq!(left, ["left"]);
}

#[tokio::test]
async fn rows_of_the_vendors_table_are_adopted() {
    let home = DatabaseFolder::new();
    drop(
        home.by_hand(
            "CREATE TABLE kubesvc_accounts (name TEXT PRIMARY KEY, def BLOB, zoneId TEXT);
             INSERT INTO kubesvc_accounts VALUES ('theirs', x'7b7d', 'z'), ('left', 7, NULL)",
        )
        .await,
    );
    let store = home.open().await.expect("it opens");
    let held = store.vendor().await.expect("the vendor's rows");
    let theirs = held.iter().find(|row| row.name == "theirs").expect("it is there");
    assert_eq!((theirs.definition.as_deref(), theirs.zone_id.as_deref()), (Some("{}"), Some("z")));
    store.write(&adopts("theirs", "uid-1")).await.expect("adopted");
    assert_eq!(rows(&store).await, [row("theirs", "uid-1")]);
    let left: Vec<String> = store.vendor().await.expect("the rest").into_iter().map(|row| row.name).collect();
    assert_eq!(left, ["left"]);
}

#[tokio::test]
async fn malformed_rows_are_named_and_can_be_written_over() {
    let home = DatabaseFolder::new();
    drop(home.open().await.expect("it opens"));
    // A table that accepts any value, as a person may have created it.
    drop(
        home.by_hand(
            "CREATE TABLE loose AS SELECT * FROM kubesvc_accounts; DROP TABLE kubesvc_accounts;
             CREATE TABLE kubesvc_accounts (name PRIMARY KEY, uid UNIQUE, status, zone_id, is_dynamic, origin,
             definition, props, kube_host, kube_version, cert_fingerprint, cluster_uid, max_watch_age_seconds,
             namespaces, namespaces_count, error_message, failed_count, next_retry_time, generation,
             observed_generation, connections NOT NULL DEFAULT 0, last_updated)",
        )
        .await,
    );
    let store = home.open().await.expect("it opens");
    let wanted: Vec<AccountRow> =
        ["a", "b", "c", "d", "e", "f"].map(|name| row(name, &format!("uid-{name}"))).into();
    store.put_accounts(&wanted).await.expect("written");
    drop(
        home.by_hand(
            "UPDATE kubesvc_accounts SET generation = 'many' WHERE name = 'a';
             UPDATE kubesvc_accounts SET failed_count = 99999999999 WHERE name = 'b';
             UPDATE kubesvc_accounts SET status = NULL WHERE name = 'c';
             UPDATE kubesvc_accounts SET props = CAST(x'ff' AS TEXT) WHERE name = 'd';
             UPDATE kubesvc_accounts SET uid = x'00ff' WHERE name = 'e';
             UPDATE kubesvc_accounts SET namespaces = 'none' WHERE name = 'f';",
        )
        .await,
    );
    let accounts = store.accounts().await.expect("the accounts");
    assert_eq!(accounts.rows, [row("f", "uid-f")]);
    let named: Vec<(&str, Option<&str>, &str)> = accounts
        .malformed
        .iter()
        .map(|row| (row.name.as_str(), row.uid.as_deref(), row.column.as_str()))
        .collect();
    assert_eq!(
        named,
        [
            ("a", Some("uid-a"), "generation"),
            ("b", Some("uid-b"), "failed_count"),
            ("c", Some("uid-c"), "status"),
            ("d", Some("uid-d"), "props"),
            ("e", None, "uid"),
        ]
    );
    let said = accounts.malformed[0].to_string();
    assert!(said.starts_with("table kubesvc_accounts, row \"a\", column generation: "), "{said}");
    let error = store.namespaces("f").await.expect_err("no list").in_full();
    assert!(error.contains("row \"f\", column namespaces"), "{error}");
    store.put_accounts(&wanted).await.expect("written over");
    assert_eq!(rows(&store).await, wanted);
}

#[tokio::test]
async fn a_table_of_another_product_is_kept_under_another_name() {
    let home = DatabaseFolder::new();
    let mut hand = home
        .by_hand(
            "CREATE TABLE kubesvc_accounts (name TEXT PRIMARY KEY, last_updated INTEGER, props TEXT);
             INSERT INTO kubesvc_accounts VALUES ('theirs', 1, '{}');
             CREATE TABLE kubesvc_locks (id TEXT)",
        )
        .await;
    let why = home.unfit().await;
    for part in
        ["kubesvc.database.takeOver: true", "kubesvc_accounts to kubesvc_accounts_vendor", "kubesvc_locks to"]
    {
        assert!(why.contains(part), "{why:?} lacks {part}");
    }
    let tables: i64 = sqlx::query_scalar("SELECT count(*) FROM sqlite_schema WHERE type = 'table'")
        .fetch_one(&mut hand)
        .await
        .expect("a number");
    assert_eq!(tables, 2, "nothing was touched");
    for _ in 0..2 {
        let store = home.open().await.expect("it opens");
        store.put_accounts(&[row("theirs", "uid-1")]).await.expect("the name is free");
        drop(store);
    }
    let kept: String = sqlx::query_scalar("SELECT props FROM kubesvc_accounts_vendor WHERE name = 'theirs'")
        .fetch_one(&mut hand)
        .await
        .expect("the row");
    assert_eq!(kept, "{}");
}

#[tokio::test]
async fn tables_of_a_plugin_that_runs_are_not_taken_over() {
    let home = DatabaseFolder::new();
    let written = |age: i64| {
        let time = crate::now() - age;
        let update = format!("UPDATE kubesvc_assignments SET last_updated = {time} WHERE id = 'new'");
        home.by_hand(update.leak())
    };
    drop(
        home.by_hand(
            "CREATE TABLE kubesvc_assignments (id TEXT PRIMARY KEY, account_name TEXT, last_updated INTEGER);
             INSERT INTO kubesvc_assignments VALUES ('new', 'prod', 1), ('old', 'prod', 1), ('none', 'prod', NULL)",
        )
        .await,
    );
    for age in [0, 170_000, -3_600_000] {
        drop(written(age).await);
        let why = home.open().await.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(
            why.contains("plugin still uses the database") && why.contains("180 s later"),
            "{age}: {why:?}"
        );
        drop(home.by_hand("SELECT count(*) FROM kubesvc_assignments").await);
    }
    let why = home.unfit().await;
    assert!(why.contains("kubesvc.database.takeOver: true"), "{why:?}");
    drop(written(181_000).await);
    drop(home.open().await.expect("it was removed"));
    drop(home.by_hand("SELECT id FROM kubesvc_assignments_vendor").await);
}

#[tokio::test]
async fn a_schema_that_is_much_newer_is_refused() {
    let home = DatabaseFolder::new();
    drop(home.open().await.expect("it opens"));
    drop(
        home.by_hand(
            "INSERT INTO kubesvc_schema_migrations (version, description, success, checksum, execution_time)
             SELECT max(version) + 1, 'next', 1, x'00', 0 FROM kubesvc_schema_migrations",
        )
        .await,
    );
    drop(home.open().await.expect("one step ahead is well"));
    drop(
        home.by_hand("UPDATE kubesvc_schema_migrations SET version = 1000 WHERE description = 'next'").await,
    );
    let why = home.unfit().await;
    assert!(why.contains("has schema 1000") && why.contains("newer version"), "{why}");
}

#[tokio::test]
async fn a_row_says_by_how_many_agents_its_account_is_held() {
    let home = DatabaseFolder::new();
    let store = home.open().await.expect("it opens");
    let connections = async |name: &'static str| -> i64 {
        let mut connection = home.by_hand("SELECT 1").await;
        let select = sqlx::query_scalar("SELECT connections FROM kubesvc_accounts WHERE name = ?").bind(name);
        select.fetch_one(&mut connection).await.expect("a row")
    };
    let assigned = |agent: &str, reachable| Assignment {
        account_name: "one".to_owned(),
        agent_id: agent.into(),
        connections: 1,
        caching: false,
        reachable,
    };
    store.put_accounts(&[row("one", "uid-1"), row("two", "uid-2")]).await.expect("written");
    assert_eq!(connections("one").await, 0);
    let puts = vec![assigned("a", true), assigned("b", true)];
    let both = AssignmentChanges { puts, ..AssignmentChanges::default() };
    store.write_assignments(&"operator-0".into(), &both).await.expect("written");
    assert_eq!((connections("one").await, connections("two").await), (2, 0));

    drop(home.by_hand("UPDATE kubesvc_accounts SET last_updated = 7").await);
    store.write_assignments(&"operator-0".into(), &both).await.expect("written");
    store.put_accounts(&[row("one", "uid-1")]).await.expect("written");
    let mut held = home.by_hand("SELECT 1").await;
    let newest: i64 = sqlx::query_scalar("SELECT max(last_updated) FROM kubesvc_accounts")
        .fetch_one(&mut held)
        .await
        .expect("there are rows");
    assert_eq!(newest, 7, "what is the same is not written");

    let deletes = vec![("one".to_owned(), "a".into())];
    let less =
        AssignmentChanges { deletes, puts: vec![assigned("b", false)], ..AssignmentChanges::default() };
    store.write_assignments(&"operator-0".into(), &less).await.expect("written");
    assert_eq!(connections("one").await, 0);

    assert_eq!(store.miscounted().await.expect("read"), Vec::<String>::new());
    drop(home.by_hand("UPDATE kubesvc_accounts SET connections = 9 WHERE name = 'two'").await);
    let recounts = store.miscounted().await.expect("read");
    assert_eq!(recounts, ["two"]);
    let again = AssignmentChanges { recounts, ..AssignmentChanges::default() };
    store.write_assignments(&"operator-0".into(), &again).await.expect("written");
    assert_eq!(connections("two").await, 0);
}

#[tokio::test]
async fn a_schema_that_is_half_done_is_finished() {
    let home = DatabaseFolder::new();
    drop(home.open().await.expect("it opens"));
    for damage in [
        "DELETE FROM kubesvc_schema_migrations WHERE version > 1; DROP TABLE kubesvc_locks",
        "UPDATE kubesvc_schema_migrations SET success = 0 WHERE version = 2",
        "UPDATE kubesvc_schema_migrations SET success = 0 WHERE version = 6",
        "DELETE FROM kubesvc_schema_migrations WHERE version = 6; ALTER TABLE kubesvc_accounts DROP COLUMN connections",
        "UPDATE kubesvc_schema_migrations SET success = 0 WHERE version = 13",
        "UPDATE kubesvc_schema_migrations SET success = 0 WHERE version = 8; DROP TABLE kubesvc_cache_rel",
        "DELETE FROM kubesvc_schema_migrations WHERE version > 8; DROP TABLE kubesvc_resourceversion",
        "DROP TABLE kubesvc_schema_migrations",
        "DELETE FROM kubesvc_schema_migrations",
    ] {
        drop(home.by_hand(damage).await);
        let store = home.open().await.expect(damage);
        store.put_accounts(&[row("one", "uid-1")]).await.expect(damage);
    }
    drop(home.by_hand("ALTER TABLE kubesvc_meta RENAME COLUMN v TO w").await);
    let why = home.unfit().await;
    assert!(why.contains("column v of table kubesvc_meta"), "{why}");
}

#[tokio::test]
async fn cached_objects_of_another_product_are_kept() {
    let home = DatabaseFolder::new();
    let mut hand = home
        .by_hand(
            "CREATE TABLE kubesvc_cache (id TEXT PRIMARY KEY, kind TEXT, body TEXT);
             CREATE INDEX idx_kubesvc_cache_kind ON kubesvc_cache (kind);
             CREATE TABLE kubesvc_cache_rel (id TEXT PRIMARY KEY, rel1_id TEXT REFERENCES kubesvc_cache (id));
             INSERT INTO kubesvc_cache VALUES ('theirs', 'pod', '{}');
             INSERT INTO kubesvc_cache_rel VALUES ('r', 'theirs')",
        )
        .await;
    drop(home.open().await.expect("it opens"));
    let kept =
        "SELECT count(*) FROM kubesvc_cache_rel_vendor r JOIN kubesvc_cache_vendor c ON c.id = r.rel1_id";
    let kept: i64 = sqlx::query_scalar(kept).fetch_one(&mut hand).await.expect("a number");
    let ours = "SELECT count(*) FROM sqlite_schema WHERE type = 'index' AND name LIKE 'ix_kubesvc_%'";
    let ours: i64 = sqlx::query_scalar(ours).fetch_one(&mut hand).await.expect("a number");
    assert_eq!((kept, ours), (1, 11));
}

#[tokio::test]
async fn objects_and_accounts_take_turns_on_one_connection() {
    let home = DatabaseFolder::new();
    let (store, cache) = open_with_cache(&home.url(), VendorTables::Refuse, 2).await.expect("it opens");
    assert_eq!(store.pools().iter().map(|pool| pool.name).collect::<Vec<_>>(), ["writer", "readers"]);
    store.put_accounts(&[row("prod", "uid-1")]).await.expect("written");
    let progress = cache.resume("uid-1", CachingEpoch(0)).await.expect("read");
    assert_eq!(progress, StoredProgress::Stands { committed: 0, scopes: Vec::new() });
}
