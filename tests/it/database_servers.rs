//! The database servers that other tests use.

use std::time::Duration;

use kubesvc_testkit::databases::{Kind, own, shared};
use kubesvc_testkit::must;

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
