use super::contract::{self, row};
use super::{faults, manual_edits};
use crate::{Store, VendorTables, open};
use kubesvc_core::account_row::AccountRow;
use kubesvc_testkit::{databases::Kind, must};

mod shared_contract {
    use super::*;

    contract::contract_tests!(fresh());

    async fn fresh() -> (std::sync::Arc<dyn Store>, manual_edits::ServerDatabase) {
        let home = manual_edits::ServerDatabase::new(Kind::PostgreSql).await;
        (home.open().await, home)
    }
}

mod fence_contract {
    use std::sync::Arc;

    use super::*;
    use crate::tests::fence_contract::{
        Streaming, a_writer_that_sleeps_in_its_transaction_is_waited_for, contract_tests,
    };
    use crate::url::{DatabaseLocation, parse};

    contract_tests!(fresh());

    #[tokio::test(flavor = "multi_thread")]
    async fn a_writer_that_sleeps_in_its_transaction_is_waited_for_by_the_next() {
        let (one, other, _home) = fresh().await;
        a_writer_that_sleeps_in_its_transaction_is_waited_for(&one, &other).await;
    }

    async fn fresh() -> (Arc<dyn Streaming>, Arc<dyn Streaming>, manual_edits::ServerDatabase) {
        let home = manual_edits::ServerDatabase::new(Kind::PostgreSql).await;
        (replica(&home).await, replica(&home).await, home)
    }

    async fn replica(home: &manual_edits::ServerDatabase) -> Arc<dyn Streaming> {
        let Ok(DatabaseLocation::Postgres(address)) = parse(&home.url) else { unreachable!("it is one") };
        Arc::new(crate::postgres::open(&address, &VendorTables::Refuse.into()).await.expect("it opens"))
    }
}

mod cache_contract {
    use std::sync::Arc;

    use super::*;
    use crate::tests::cache_contract::{CachedStore, contract_tests};
    use crate::url::{DatabaseLocation, parse};

    contract_tests!(fresh());

    async fn fresh() -> (CachedStore, CachedStore, manual_edits::ServerDatabase) {
        let home = manual_edits::ServerDatabase::new(Kind::PostgreSql).await;
        (replica(&home).await, replica(&home).await, home)
    }

    pub(super) async fn replica(home: &manual_edits::ServerDatabase) -> CachedStore {
        let Ok(DatabaseLocation::Postgres(address)) = parse(&home.url) else { unreachable!("it is one") };
        let mut store =
            crate::postgres::open(&address, &VendorTables::Refuse.into()).await.expect("it opens");
        store.pools.add_cache_pools(2);
        Arc::new(store)
    }
}

mod operation_contract {
    use std::sync::Arc;

    use super::*;

    crate::tests::operation_contract::contract_tests!(fresh());

    async fn fresh() -> (Arc<dyn Store>, Arc<dyn Store>, manual_edits::ServerDatabase) {
        let home = manual_edits::ServerDatabase::new(Kind::PostgreSql).await;
        (home.open().await, home.open().await, home)
    }
}

mod with_manual_edits {
    use super::*;

    manual_edits::contract_tests!(Kind::PostgreSql);
}

mod under_faults {
    use super::*;

    faults::contract_tests!(Kind::PostgreSql);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_is_unavailable_until_it_is_promoted() {
    let house = faults::FaultyServer::new(Kind::PostgreSql).await;
    let store = house.open().await;
    store.put_accounts(&[row("one", "uid-1")]).await.expect("written");
    let mut standby = must(house.server.standby().await);
    let why = open(&standby.url(house.database()), VendorTables::Refuse)
        .await
        .err()
        .map(|error| error.to_string())
        .unwrap_or_default();
    assert!(why.contains("primary"), "{why}");
    // From now on the primary's address leads to the standby, as in the middle of a failover.
    must(house.server.stop().await);
    must(standby.take_over(&house.server).await);
    let said = faults::unavailable(store.put_accounts(&[row("two", "uid-2")]).await);
    assert!(said.contains("not the primary"), "{said}");
    assert_eq!(faults::rows(&*store).await, [row("one", "uid-1")], "it may be read");
    must(standby.promote());
    faults::until_written(&*store, &[row("two", "uid-2")]).await;
    assert_eq!(faults::rows(&*store).await, [row("one", "uid-1"), row("two", "uid-2")]);
}

#[tokio::test]
async fn texts_are_compressed_with_lz4() {
    let home = manual_edits::ServerDatabase::new(Kind::PostgreSql).await;
    let store = home.open().await;
    let large = AccountRow { definition: "d".repeat(100_000), ..row("large", "uid-1") };
    store.put_accounts(&[large]).await.expect("written");
    home.by_hand(
        "DO $$ BEGIN ASSERT (SELECT pg_column_compression(definition) FROM kubesvc_accounts) = 'lz4'; \
         EXCEPTION WHEN undefined_function THEN NULL; END $$",
    )
    .await;
}

mod cached_objects {
    use std::time::Duration;

    use super::cache_contract::replica;
    use super::*;
    use crate::tests::cache_contract::{CachedStore, batch, commit, fenced, hash, object};
    use crate::{AccountBatch, ObjectBody, ObjectRow};
    use kubesvc_testkit::wait::eventually;

    /// An object whose body is stored beside its row.
    fn large(version: &str, hash_of: &str) -> ObjectRow {
        let text: String = (0..2_000).map(|at| hash(&format!("{hash_of}{at}"))).collect();
        ObjectRow {
            body: ObjectBody::Text(text),
            body_hash: hash(hash_of),
            ..object("prod", "pod", "default", "large", version)
        }
    }

    async fn write(store: &CachedStore, row: ObjectRow, committed: i64) {
        commit(store, &AccountBatch { upserts: vec![row], ..batch("prod", committed, committed + 1) }).await;
    }

    #[tokio::test]
    async fn bodies_are_compressed_with_lz4() {
        let home = manual_edits::ServerDatabase::new(Kind::PostgreSql).await;
        let store = replica(&home).await;
        fenced(&store, &["prod"]).await;
        let body = ObjectBody::Text("b".repeat(100_000));
        write(&store, ObjectRow { body, ..object("prod", "pod", "default", "p", "1") }, 0).await;
        home.by_hand(
            "DO $$ BEGIN ASSERT (SELECT pg_column_compression(body) FROM kubesvc_cache) = 'lz4'; \
             EXCEPTION WHEN undefined_function THEN NULL; END $$",
        )
        .await;
        let storage = "SELECT attstorage::text FROM pg_attribute WHERE attrelid = 'kubesvc_cache'::regclass \
                       AND attname = 'body_z'";
        assert_eq!(store.texts(storage).await, [Some("e".to_owned())]);
    }

    #[tokio::test]
    async fn equal_body_is_not_written_again() {
        let home = manual_edits::ServerDatabase::new(Kind::PostgreSql).await;
        let store = replica(&home).await;
        fenced(&store, &["prod"]).await;
        let table =
            "SELECT reltoastrelid::regclass::text FROM pg_class WHERE oid = 'kubesvc_cache'::regclass";
        let table = store.texts(table).await.pop().flatten().expect("a table for large values");
        let stored = async || store.numbers(&format!("SELECT DISTINCT chunk_id::bigint FROM {table}")).await;
        write(&store, large("1", "a"), 0).await;
        let first = stored().await;
        assert_eq!(first.len(), 1);
        write(&store, large("2", "a"), 1).await;
        assert_eq!(stored().await, first);
        write(&store, large("3", "b"), 2).await;
        assert!(stored().await.iter().any(|chunk| !first.contains(chunk)), "it changed");
    }

    #[tokio::test]
    async fn update_leaves_the_indexes_alone() {
        let home = manual_edits::ServerDatabase::new(Kind::PostgreSql).await;
        let store = replica(&home).await;
        let indexed = "SELECT count(*) FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND \
                       a.attnum = ANY(i.indkey) WHERE i.indrelid IN ('kubesvc_cache'::regclass, \
                       'kubesvc_resourceversion'::regclass) AND a.attname IN \
                       ('last_updated', 'resource_version', 'body_hash', 'resourceversion')";
        assert_eq!(store.numbers(indexed).await, [0]);
        fenced(&store, &["prod"]).await;
        for version in 0..40 {
            write(&store, object("prod", "pod", "default", "p", &version.to_string()), version).await;
        }
        // The server counts once the connections end.
        drop(store);
        let store = replica(&home).await;
        eventually("counted updates", Duration::from_secs(60), async || {
            let count = "SELECT n_tup_hot_upd * 1000 + n_tup_upd FROM pg_stat_user_tables WHERE relname = 'kubesvc_cache'";
            match store.numbers(count).await[0] {
                counted if counted % 1000 == 39 && counted >= 35_000 => Ok(()),
                counted => Err(format!("{} of {} updates were in place", counted / 1000, counted % 1000)),
            }
        })
        .await;
    }
}

/// Needs PgBouncer, which few machines have.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs pgbouncer"]
async fn a_pooler_is_waited_for_only_while_its_server_may_come() {
    use crate::StoreError;

    let server = must(kubesvc_testkit::databases::own(Kind::PostgreSql).await);
    let database = server.fresh_database().await.rsplit('/').next().unwrap_or_default().to_owned();
    let pooler = must(server.pooler(None).await);
    let url = pooler.url(&database);
    let store = open(&url, VendorTables::Refuse).await.expect("it opens through the pooler");
    store.put_accounts(&[row("one", "uid-1")]).await.expect("written");
    drop(store);
    let wrong = must(server.pooler(Some("wrong")).await);
    for (what, url) in [
        ("a wrong password", url.replacen("kubesvc:", "kubesvc:x", 1)),
        ("a missing database", pooler.url("nowhere")),
        ("a wrong password of the pooler", wrong.url(&database)),
    ] {
        match open(&url, VendorTables::Refuse).await {
            Err(StoreError::Unfit(why)) => println!("{what}: {why}"),
            Err(error) => unreachable!("{what}: {}", error.in_full()),
            Ok(_) => unreachable!("{what}: it opens"),
        }
    }
    must(server.stop().await);
    match open(&url, VendorTables::Refuse).await {
        Err(StoreError::Unavailable(why)) => println!("{why}"),
        Err(error) => unreachable!("{}", error.in_full()),
        Ok(_) => unreachable!("it opens without a server"),
    }
}
