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
    use crate::url::{DatabaseUrl, parse};

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
        let Ok(DatabaseUrl::Postgres(address)) = parse(&home.url) else { unreachable!("it is one") };
        Arc::new(crate::postgres::open(&address, VendorTables::Refuse).await.expect("it opens"))
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
