//! The database servers that other tests use.

use std::time::Duration;

use kubesvc_store::{StoreError, VendorTables, open};
use kubesvc_testkit::databases::{Kind, galera, own, shared};
use kubesvc_testkit::must;
use kubesvc_testkit::wait::eventually;
use tokio::task::JoinSet;

async fn come_back(kind: Kind) {
    let server = must(own(kind).await);
    let url = server.fresh_database().await;
    let name = url.rsplit('/').next().expect("a name");
    must(server.execute(name, "CREATE TABLE kept (id int); INSERT INTO kept VALUES (1)").await);
    server.kill();
    assert!(server.execute(name, "SELECT id FROM kept").await.is_err(), "it is dead");
    must(server.start().await);
    must(server.execute(name, "INSERT INTO kept SELECT id + 1 FROM kept").await);
    must(server.stop().await);
    must(server.start().await);
    server.pause();
    let answer =
        tokio::time::timeout(Duration::from_millis(300), server.execute(name, "SELECT id FROM kept"));
    assert!(answer.await.is_err(), "it is paused");
    server.resume();
    must(server.execute(name, "DELETE FROM kept WHERE id = 2").await);
}

#[tokio::test]
async fn mariadb_keeps_committed_rows_over_a_restart() {
    come_back(Kind::MariaDb).await;
}

#[tokio::test]
async fn postgresql_keeps_committed_rows_over_a_restart() {
    come_back(Kind::PostgreSql).await;
}

#[tokio::test]
async fn databases_of_a_shared_server_are_isolated() {
    for kind in [Kind::MariaDb, Kind::PostgreSql] {
        let server = shared(kind).await;
        for url in [server.fresh_database().await, server.fresh_database().await] {
            let name = url.rsplit('/').next().expect("a name");
            must(server.execute(name, "CREATE TABLE here (id int)").await);
        }
    }
}

/// Needs Galera, which few machines have. The lock of a migration holds on one of its nodes only.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs galera-4: make test-all"]
async fn replicas_that_start_at_two_nodes_of_galera_wait_for_each_others_migrations() {
    let nodes = must(galera().await);
    for run in 1..=6 {
        let url = nodes[0].fresh_database().await;
        let name = url.rsplit('/').next().expect("a name");
        let urls = [url.clone(), nodes[1].url(name)];
        eventually("the database at the other node", Duration::from_secs(10), async || {
            nodes[1].execute(name, "SELECT 1").await
        })
        .await;
        let mut opening = JoinSet::new();
        for url in urls {
            opening.spawn(async move { open(&url, VendorTables::Refuse).await.map(drop) });
        }
        for opened in opening.join_all().await {
            must(opened.map_err(|error: StoreError| format!("run {run}: {}", error.in_full())));
        }
        let all = "BEGIN NOT ATOMIC IF (SELECT count(*) < 12 OR NOT min(success) FROM kubesvc_schema_migrations) \
                   THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not all are applied'; END IF; END";
        must(nodes[1].execute(name, all).await);
    }
}
