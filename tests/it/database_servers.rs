//! The database servers that other tests use.

use std::time::Duration;

use crate::harness::databases::{Kind, own, shared};
use crate::harness::must;

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
async fn a_mariadb_comes_back_with_what_was_written() {
    come_back(Kind::MariaDb).await;
}

#[tokio::test]
async fn a_postgresql_comes_back_with_what_was_written() {
    come_back(Kind::PostgreSql).await;
}

#[tokio::test]
async fn databases_of_the_shared_servers_are_apart() {
    for kind in [Kind::MariaDb, Kind::PostgreSql] {
        let server = shared(kind).await;
        for url in [server.fresh_database().await, server.fresh_database().await] {
            let name = url.rsplit('/').next().expect("a name");
            must(server.execute(name, "CREATE TABLE here (id int)").await);
        }
    }
}
