//! Tests of a failing server. [`contract_tests`] runs them against one adapter, each on its own server.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::{Connection as _, Executor as _, MySqlConnection, PgConnection};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::contract::row;
use crate::{Store, StoreError, VendorTables, open};
use kubesvc_core::account_row::AccountRow;
use kubesvc_testkit::databases::{Kind, Server, own};
use kubesvc_testkit::{must, wait::eventually};

const TEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Generates one test for each function.
macro_rules! contract_tests {
    ($kind:expr) => {
        $crate::tests::faults::contract_tests! { @each $kind,
            a_server_that_dies_loses_nothing, a_write_that_a_server_dies_in_is_written_whole_or_not_at_all,
            a_server_that_hangs_is_known_to_in_time, a_user_without_rights_is_told_which,
            a_full_disk_is_unavailable, a_deadlock_is_tried_again, a_lock_that_is_held_for_long_is_unavailable,
            a_write_that_is_given_up_leaves_no_connection_that_others_wait_for
        }
    };
    (@each $kind:expr, $($story:ident),+) => {
        $(#[tokio::test(flavor = "multi_thread")]
        async fn $story() {
            $crate::tests::faults::$story(&$crate::tests::faults::FaultyServer::new($kind).await).await;
        })+
    };
}
pub(super) use contract_tests;

/// A dedicated server with a database.
pub(super) struct FaultyServer {
    pub(super) server: Server,
    pub(super) url: String,
}

impl FaultyServer {
    pub(super) async fn new(kind: Kind) -> Self {
        let server = must(own(kind).await);
        let url = server.fresh_database().await;
        Self { server, url }
    }

    pub(super) async fn open(&self) -> Arc<dyn Store> {
        open(&self.url, VendorTables::Refuse).await.unwrap_or_else(|error| must(Err(error.in_full())))
    }

    pub(super) fn database(&self) -> &str {
        self.url.rsplit('/').next().unwrap_or_default()
    }

    pub(super) async fn by_hand(&self, sql: &str) {
        must(self.server.execute(self.database(), sql).await);
    }

    /// A connection of another client.
    pub(super) async fn hand(&self) -> OtherClient {
        match self.server.kind() {
            Kind::MariaDb => {
                OtherClient::MariaDb(MySqlConnection::connect(&self.url).await.expect("a connection"))
            }
            Kind::PostgreSql => {
                OtherClient::PostgreSql(PgConnection::connect(&self.url).await.expect("a connection"))
            }
        }
    }

    /// Waits until a transaction is blocked by another.
    pub(super) async fn until_blocked(&self) {
        let sql = match self.server.kind() {
            Kind::MariaDb => {
                "BEGIN NOT ATOMIC IF (SELECT variable_value + 0 FROM information_schema.global_status WHERE \
                 variable_name = 'INNODB_ROW_LOCK_CURRENT_WAITS') = 0 THEN SIGNAL SQLSTATE '45000' SET \
                 MESSAGE_TEXT = 'nobody waits'; END IF; END"
            }
            Kind::PostgreSql => {
                "DO $$ BEGIN ASSERT (SELECT count(*) FROM pg_locks WHERE NOT granted) > 0, 'nobody waits'; END $$"
            }
        };
        eventually("a transaction that waits", TEST_TIMEOUT, async || {
            self.server.execute(self.database(), sql).await
        })
        .await;
    }
}

/// A connection of another client, with its own transaction.
pub(super) enum OtherClient {
    MariaDb(MySqlConnection),
    PostgreSql(PgConnection),
}

impl OtherClient {
    pub(super) async fn run(&mut self, statements: &[&'static str]) {
        for statement in statements {
            let done = match self {
                Self::MariaDb(connection) => connection.execute(*statement).await.map(drop),
                Self::PostgreSql(connection) => connection.execute(*statement).await.map(drop),
            };
            must(done.map_err(|error| format!("{statement}: {error}")));
        }
    }
}

pub(super) async fn rows(store: &dyn Store) -> Vec<AccountRow> {
    store.accounts().await.expect("the accounts").rows
}

/// Retries the write until it succeeds.
pub(super) async fn until_written(store: &dyn Store, rows: &[AccountRow]) {
    eventually("a write", TEST_TIMEOUT, async || {
        store.put_accounts(rows).await.map_err(|error| error.in_full())
    })
    .await;
}

#[track_caller]
pub(super) fn unavailable<T: std::fmt::Debug>(result: Result<T, StoreError>) -> String {
    match result {
        Err(error @ StoreError::Unavailable(_)) => error.in_full(),
        other => must(Err(format!("not unavailable: {other:?}"))),
    }
}

pub(super) async fn a_server_that_dies_loses_nothing(house: &FaultyServer) {
    let store = house.open().await;
    store.put_accounts(&[row("one", "uid-1")]).await.expect("written");
    store.ping().await.expect("it answers");
    house.server.kill();
    unavailable(store.put_accounts(&[row("two", "uid-2")]).await);
    unavailable(store.ping().await);
    unavailable(store.accounts().await);
    must(house.server.start().await);
    until_written(&*store, &[row("two", "uid-2")]).await;
    assert_eq!(rows(&*store).await, [row("one", "uid-1"), row("two", "uid-2")]);
    // A graceful restart goes unnoticed: a connection is checked before it is used.
    must(house.server.stop().await);
    must(house.server.start().await);
    store.put_accounts(&[row("three", "uid-3")]).await.expect("written");
    assert_eq!(rows(&*store).await.len(), 3);
}

pub(super) async fn a_write_that_a_server_dies_in_is_written_whole_or_not_at_all(house: &FaultyServer) {
    let store = house.open().await;
    let old: Vec<AccountRow> =
        (0..300).map(|at| row(&format!("row-{at:03}"), &format!("uid-{at}"))).collect();
    store.put_accounts(&old).await.expect("written");
    let new: Vec<AccountRow> = old.iter().map(|row| AccountRow { generation: 2, ..row.clone() }).collect();
    // The last row is locked, so the write blocks before its end.
    let mut hand = house.hand().await;
    hand.run(&["BEGIN", "UPDATE kubesvc_accounts SET zone_id = 'z' WHERE name = 'row-299'"]).await;
    let (written, ()) = tokio::join!(store.put_accounts(&new), async {
        house.until_blocked().await;
        house.server.kill();
    });
    unavailable(written);
    must(house.server.start().await);
    let held = eventually("an answer", TEST_TIMEOUT, async || {
        store.accounts().await.map_err(|error| error.in_full())
    })
    .await;
    assert_eq!(held.rows, old, "nothing of it is written");
    until_written(&*store, &new).await;
    assert_eq!(rows(&*store).await, new);
}

pub(super) async fn a_server_that_hangs_is_known_to_in_time(house: &FaultyServer) {
    let store = house.open().await;
    store.put_accounts(&[row("one", "uid-1")]).await.expect("written");
    house.server.pause();
    let start = Instant::now();
    let two = [row("two", "uid-2")];
    let (write, read, ping) = tokio::join!(store.put_accounts(&two), store.accounts(), store.ping());
    let took = start.elapsed();
    unavailable(write);
    unavailable(read);
    unavailable(ping);
    let unreached = open(&house.url, VendorTables::Refuse).await.err().map(|error| error.in_full());
    let unreached = unreached.unwrap_or_default();
    assert!(unreached.contains("cannot be used now: no connection to the database"), "{unreached}");
    house.server.resume();
    assert!(took < Duration::from_secs(11), "{took:?}");
    until_written(&*store, &two).await;
    assert_eq!(rows(&*store).await, [row("one", "uid-1"), row("two", "uid-2")]);
}

pub(super) async fn a_user_without_rights_is_told_which(house: &FaultyServer) {
    let database = house.database();
    let create = match house.server.kind() {
        Kind::MariaDb => {
            format!("CREATE USER reader@'%' IDENTIFIED BY 'r'; GRANT SELECT ON {database}.* TO reader@'%'")
        }
        Kind::PostgreSql => {
            "CREATE ROLE reader LOGIN PASSWORD 'r'; REVOKE CREATE ON SCHEMA public FROM PUBLIC".into()
        }
    };
    house.by_hand(&create).await;
    let url = house.url.replace("kubesvc:p%40ss%2Fword", "reader:r");
    let why = open(&url, VendorTables::Refuse).await.err().map(|error| error.to_string()).unwrap_or_default();
    assert!(why.contains("\"reader\"") && why.contains("grant it"), "{why}");
}

/// The server reports the error of a full disk.
pub(super) async fn a_full_disk_is_unavailable(house: &FaultyServer) {
    let store = house.open().await;
    let (full, room) = match house.server.kind() {
        Kind::MariaDb => (
            "CREATE TRIGGER full BEFORE INSERT ON kubesvc_accounts FOR EACH ROW SIGNAL SQLSTATE 'HY000' SET \
             MYSQL_ERRNO = 1114, MESSAGE_TEXT = 'The table is full'",
            "DROP TRIGGER full",
        ),
        Kind::PostgreSql => (
            "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no space left' \
             USING ERRCODE = '53100'; END $$; \
             CREATE TRIGGER full_disk BEFORE INSERT ON kubesvc_accounts FOR EACH ROW EXECUTE FUNCTION full_disk()",
            "DROP TRIGGER full_disk ON kubesvc_accounts",
        ),
    };
    house.by_hand(full).await;
    let said = unavailable(store.put_accounts(&[row("one", "uid-1")]).await);
    assert!(said.contains("full: make room"), "{said}");
    assert_eq!(rows(&*store).await, [], "it may be read");
    house.by_hand(room).await;
    store.put_accounts(&[row("one", "uid-1")]).await.expect("written");
}

fn changed() -> [AccountRow; 2] {
    [row("a", "uid-a"), row("b", "uid-b")].map(|row| AccountRow { zone_id: Some("ours".to_owned()), ..row })
}

const THEIRS_TO_A: &str = "UPDATE kubesvc_accounts SET zone_id = 'theirs' WHERE name = 'a'";
const THEIRS_TO_B: &str = "UPDATE kubesvc_accounts SET zone_id = 'theirs' WHERE name = 'b'";

/// The server aborts kubesvc's transaction: MariaDB the one that has changed less, PostgreSQL the first one to check
/// for a deadlock.
pub(super) async fn a_deadlock_is_tried_again(house: &FaultyServer) {
    let store = house.open().await;
    store.put_accounts(&[row("a", "uid-a"), row("b", "uid-b")]).await.expect("written");
    let mut hand = house.hand().await;
    match house.server.kind() {
        Kind::MariaDb => {
            hand.run(&[
                "BEGIN",
                "INSERT INTO kubesvc_accounts (name) SELECT help_topic_id FROM mysql.help_topic",
            ])
            .await;
        }
        Kind::PostgreSql => hand.run(&["SET deadlock_timeout = '60s'", "BEGIN"]).await,
    }
    hand.run(&[THEIRS_TO_B]).await;
    let changed = changed();
    let (written, ()) = tokio::join!(store.put_accounts(&changed), async {
        house.until_blocked().await;
        hand.run(&[THEIRS_TO_A, "COMMIT"]).await;
    });
    written.expect("tried again, and written");
    assert_eq!(rows(&*store).await, changed);
}

pub(super) async fn a_lock_that_is_held_for_long_is_unavailable(house: &FaultyServer) {
    let store = house.open().await;
    store.put_accounts(&[row("a", "uid-a"), row("b", "uid-b")]).await.expect("written");
    let mut hand = house.hand().await;
    hand.run(&["BEGIN", THEIRS_TO_B]).await;
    let changed = changed();
    let said = unavailable(store.put_accounts(&changed).await);
    assert!(said.contains("a conflict with another"), "{said}");
    // MariaDB itself rolls back only one statement. kubesvc rolled back the rest: `a` is unlocked and unchanged.
    hand.run(&["UPDATE kubesvc_accounts SET zone_id = zone_id WHERE name = 'a'", "ROLLBACK"]).await;
    assert_eq!(rows(&*store).await, [row("a", "uid-a"), row("b", "uid-b")]);
    store.put_accounts(&changed).await.expect("written");
}

/// A proxy to a server that can be severed silently: the client keeps its connections, but receives nothing more.
struct SeverableProxy {
    port: u16,
    lost: watch::Sender<bool>,
}

impl SeverableProxy {
    async fn to(server: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let lost = watch::Sender::new(false);
        let now = lost.clone();
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let mut far = TcpStream::connect(("127.0.0.1", server)).await.expect("the server");
                let born_after = *now.borrow();
                let mut lost = now.subscribe();
                tokio::spawn(async move {
                    let passing =
                        async { tokio::io::copy_bidirectional(&mut near, &mut far).await.map(drop) };
                    tokio::select! {
                        _ = passing => return,
                        _ = lost.wait_for(|lost| *lost), if !born_after => {}
                    }
                    drop(far);
                    std::future::pending::<()>().await;
                });
            }
        });
        Self { port, lost }
    }
}

pub(super) async fn a_write_that_is_given_up_leaves_no_connection_that_others_wait_for(house: &FaultyServer) {
    let line = SeverableProxy::to(house.server.port()).await;
    let there = format!(":{}/", house.server.port());
    let url = house.url.replace(&there, &format!(":{}/", line.port));
    let store = open(&url, VendorTables::Refuse).await.unwrap_or_else(|error| must(Err(error.in_full())));
    store.put_accounts(&[row("a", "uid-a"), row("b", "uid-b")]).await.expect("written");
    let mut hand = house.hand().await;
    hand.run(&["BEGIN", THEIRS_TO_B]).await;
    let changed = changed();
    tokio::select! {
        written = store.put_accounts(&changed) => must(Err(format!("it should wait: {written:?}"))),
        () = async {
            house.until_blocked().await;
            line.lost.send_replace(true);
        } => {}
    }
    hand.run(&["ROLLBACK"]).await;
    let writing = until_written(&*store, &changed);
    tokio::time::timeout(Duration::from_secs(20), writing).await.expect("a connection that answers");
    assert_eq!(rows(&*store).await, changed);
}
