use super::contract::{self, row};
use super::{faults, manual_edits};
use crate::sql::pools::PoolUse;
use crate::tests::cache_contract::{fence, first_batch, object};
use crate::url::{self, DatabaseLocation};
use crate::{BatchOutcome, ObjectBody, ObjectRow, Store, StoreError, VendorTables, open, open_with_cache};
use kubesvc_core::account_row::AccountRow;
use kubesvc_testkit::databases::Kind;

mod shared_contract {
    use super::*;

    contract::contract_tests!(fresh());

    async fn fresh() -> (std::sync::Arc<dyn Store>, manual_edits::ServerDatabase) {
        let home = manual_edits::ServerDatabase::new(Kind::MariaDb).await;
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
        let home = manual_edits::ServerDatabase::new(Kind::MariaDb).await;
        (replica(&home).await, replica(&home).await, home)
    }

    async fn replica(home: &manual_edits::ServerDatabase) -> Arc<dyn Streaming> {
        let Ok(DatabaseLocation::MySql(address)) = parse(&home.url) else { unreachable!("it is one") };
        Arc::new(crate::mysql::open(&address, &VendorTables::Refuse.into()).await.expect("it opens"))
    }
}

mod cache_contract {
    use std::sync::Arc;

    use super::*;
    use crate::tests::cache_contract::{CachedStore, contract_tests};
    use crate::url::{DatabaseLocation, parse};

    contract_tests!(fresh());

    async fn fresh() -> (CachedStore, CachedStore, manual_edits::ServerDatabase) {
        let home = manual_edits::ServerDatabase::new(Kind::MariaDb).await;
        (replica(&home).await, replica(&home).await, home)
    }

    pub(super) async fn replica(home: &manual_edits::ServerDatabase) -> CachedStore {
        let Ok(DatabaseLocation::MySql(address)) = parse(&home.url) else { unreachable!("it is one") };
        let mut store = crate::mysql::open(&address, &VendorTables::Refuse.into()).await.expect("it opens");
        store.pools.add_cache_pools(2);
        Arc::new(store)
    }
}

mod operation_contract {
    use std::sync::Arc;

    use super::*;

    crate::tests::operation_contract::contract_tests!(fresh());

    async fn fresh() -> (Arc<dyn Store>, Arc<dyn Store>, manual_edits::ServerDatabase) {
        let home = manual_edits::ServerDatabase::new(Kind::MariaDb).await;
        (home.open().await, home.open().await, home)
    }
}

mod with_manual_edits {
    use super::*;

    manual_edits::contract_tests!(Kind::MariaDb);
}

mod under_faults {
    use super::*;

    faults::contract_tests!(Kind::MariaDb);
}

#[tokio::test]
async fn a_server_that_may_only_be_read_is_unavailable_until_it_may_be_written() {
    let house = faults::FaultyServer::new(Kind::MariaDb).await;
    let database = house.database().to_owned();
    house
        .by_hand(&format!("CREATE USER app@'%' IDENTIFIED BY 'a'; GRANT ALL ON {database}.* TO app@'%'"))
        .await;
    let url = house.url.replace("kubesvc:p%40ss%2Fword", "app:a");
    let store = open(&url, VendorTables::Refuse).await.expect("it opens");
    house.by_hand("SET GLOBAL read_only = 1").await;
    let said = faults::unavailable(store.put_accounts(&[row("one", "uid-1")]).await);
    assert!(said.contains("is read-only"), "{said}");
    assert_eq!(faults::rows(&*store).await, []);
    house.by_hand("SET GLOBAL read_only = 0").await;
    store.put_accounts(&[row("one", "uid-1")]).await.expect("written");
}

#[tokio::test]
async fn a_row_that_the_server_cannot_take_at_once_is_refused() {
    let house = faults::FaultyServer::new(Kind::MariaDb).await;
    house.by_hand("SET GLOBAL max_allowed_packet = 1048576").await;
    let store = house.open().await;
    let large = AccountRow { definition: "d".repeat(1_000_000), ..row("large", "uid-1") };
    let error = store.put_accounts(&[large]).await.expect_err("refused");
    assert!(matches!(error, StoreError::Refused { .. }), "{error:?}");
    assert!(error.in_full().contains("max_allowed_packet"), "{}", error.in_full());
    let fits = |at: usize| AccountRow {
        definition: "d".repeat(200_000),
        ..row(&format!("fits-{at}"), &format!("uid-{at}"))
    };
    let wanted: Vec<AccountRow> = (0..9).map(fits).collect();
    store.put_accounts(&wanted).await.expect("in several statements");
    assert_eq!(faults::rows(&*store).await, wanted);
}

#[tokio::test]
async fn body_that_the_server_cannot_take_at_once_is_left_out() {
    let house = faults::FaultyServer::new(Kind::MariaDb).await;
    house.by_hand("SET GLOBAL max_allowed_packet = 1048576").await;
    let (store, cache) = open_with_cache(&house.url, VendorTables::Refuse, 1).await.expect("it opens");
    store.put_accounts(&[row("prod", "uid-of-prod")]).await.expect("written");
    store.raise_fences(&[fence("uid-of-prod", 1, Some("agent"))]).await.expect("raised");
    let sized = |name: &str, bytes: usize| ObjectRow {
        body: ObjectBody::Text("b".repeat(bytes)),
        ..object("prod", "pod", "default", name, "1")
    };
    let upserts = vec![sized("fits-1", 700_000), sized("fits-2", 700_000), sized("large", 1_000_000)];
    let outcomes = cache.write_objects(&[first_batch("prod", upserts)]).await.expect("in several statements");
    let [BatchOutcome::Committed { written: 3, refused }] = &outcomes[..] else {
        unreachable!("{outcomes:?}")
    };
    assert!(refused.len() == 1 && refused[0].contains("large\" written without its body"), "{refused:?}");
    for (name, has_body) in [("fits-1", true), ("fits-2", true), ("large", false)] {
        let found = cache.object_version("prod", "pod", "default", name).await.expect("read");
        assert_eq!(found.map(|found| found.has_body), Some(has_body), "{name}");
    }
}

#[tokio::test]
async fn server_ends_a_client_idle_in_a_transaction() {
    let home = manual_edits::ServerDatabase::new(Kind::MariaDb).await;
    let Ok(DatabaseLocation::MySql(address)) = url::parse(&home.url) else { unreachable!("it is MariaDB's") };
    let store = crate::mysql::open(&address, &VendorTables::Refuse.into()).await.expect("it opens");
    let mut connection = store.pools.acquire(PoolUse::Write).await.expect("it connects");
    let times: (u64, u64) = sqlx::query_as(
        "SELECT CAST(@@idle_transaction_timeout AS UNSIGNED), CAST(@@wait_timeout AS UNSIGNED)",
    )
    .fetch_one(&mut *connection)
    .await
    .expect("it answers");
    assert_eq!(times, (60, 660), "a leader that stands still holds nobody up for ever");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_that_another_process_has_begun_is_waited_for_whatever_the_lock_says() {
    let home = manual_edits::ServerDatabase::new(Kind::MariaDb).await;
    drop(home.open().await);
    home.by_hand(
        "UPDATE kubesvc_schema_migrations SET success = false, installed_on = NOW() WHERE version = 12",
    )
    .await;
    let opening = open(&home.url, VendorTables::Refuse);
    let waited = tokio::time::timeout(std::time::Duration::from_millis(400), opening).await;
    assert!(waited.is_err(), "it does not open meanwhile");
    home.holds("(SELECT count(*) FROM kubesvc_schema_migrations WHERE NOT success) = 1").await;
    home.by_hand("UPDATE kubesvc_schema_migrations SET success = true").await;
    drop(home.open().await);
}
