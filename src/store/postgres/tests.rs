use crate::account::row::AccountRow;
use crate::store::harness::{databases::Kind, must};
use crate::store::stories::row;
use crate::store::{Store, VendorTables, by_hand, open, outages, stories};

mod shared_stories {
    use super::*;

    stories::stories!(fresh());

    async fn fresh() -> (std::sync::Arc<dyn Store>, by_hand::Home) {
        let home = by_hand::Home::new(Kind::PostgreSql).await;
        (home.open().await, home)
    }
}

mod fence_stories {
    use std::sync::Arc;

    use super::*;
    use crate::store::fences::stories::{
        Streaming, a_writer_that_sleeps_in_its_transaction_is_waited_for, stories,
    };
    use crate::store::url::{Database, parse};

    stories!(fresh());

    #[tokio::test(flavor = "multi_thread")]
    async fn a_writer_that_sleeps_in_its_transaction_is_waited_for_by_the_next() {
        let (one, other, _home) = fresh().await;
        a_writer_that_sleeps_in_its_transaction_is_waited_for(&one, &other).await;
    }

    async fn fresh() -> (Arc<dyn Streaming>, Arc<dyn Streaming>, by_hand::Home) {
        let home = by_hand::Home::new(Kind::PostgreSql).await;
        (replica(&home).await, replica(&home).await, home)
    }

    async fn replica(home: &by_hand::Home) -> Arc<dyn Streaming> {
        let Ok(Database::Postgres(address)) = parse(&home.url) else { unreachable!("it is one") };
        Arc::new(
            crate::store::postgres::Postgres::open(&address, VendorTables::Refuse).await.expect("it opens"),
        )
    }
}

mod stories_by_hand {
    use super::*;

    by_hand::stories!(Kind::PostgreSql);
}

mod outage_stories {
    use super::*;

    outages::stories!(Kind::PostgreSql);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_is_unavailable_until_it_is_promoted() {
    let house = outages::House::new(Kind::PostgreSql).await;
    let store = house.open().await;
    store.put_accounts(&[row("one", "uid-1")]).await.expect("written");
    let mut standby = must(house.server.standby().await);
    let why = open(&standby.url(house.database()), VendorTables::Refuse)
        .await
        .err()
        .map(|error| error.to_string())
        .unwrap_or_default();
    assert!(why.contains("primary"), "{why}");
    // The address of the primary leads to the standby from now on, as after half of a failover.
    must(house.server.stop().await);
    must(standby.take_over(&house.server).await);
    let said = outages::unavailable(store.put_accounts(&[row("two", "uid-2")]).await);
    assert!(said.contains("no primary"), "{said}");
    assert_eq!(outages::rows(&*store).await, [row("one", "uid-1")], "it may be read");
    must(standby.promote());
    outages::until_written(&*store, &[row("two", "uid-2")]).await;
    assert_eq!(outages::rows(&*store).await, [row("one", "uid-1"), row("two", "uid-2")]);
}

#[tokio::test]
async fn texts_are_compressed_with_lz4() {
    let home = by_hand::Home::new(Kind::PostgreSql).await;
    let store = home.open().await;
    let large = AccountRow { definition: "d".repeat(100_000), ..row("large", "uid-1") };
    store.put_accounts(&[large]).await.expect("written");
    home.by_hand(
        "DO $$ BEGIN ASSERT (SELECT pg_column_compression(definition) FROM kubesvc_accounts) = 'lz4'; \
         EXCEPTION WHEN undefined_function THEN NULL; END $$",
    )
    .await;
}
