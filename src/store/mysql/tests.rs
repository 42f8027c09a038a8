use crate::account::row::AccountRow;
use crate::store::harness::databases::Kind;
use crate::store::stories::row;
use crate::store::{Store, StoreError, by_hand, open, outages, stories};

mod shared_stories {
    use super::*;

    stories::stories!(fresh());

    async fn fresh() -> (std::sync::Arc<dyn Store>, by_hand::Home) {
        let home = by_hand::Home::new(Kind::MariaDb).await;
        (home.open().await, home)
    }
}

mod stories_by_hand {
    use super::*;

    by_hand::stories!(Kind::MariaDb);
}

mod outage_stories {
    use super::*;

    outages::stories!(Kind::MariaDb);
}

#[tokio::test]
async fn a_server_that_may_only_be_read_is_unavailable_until_it_may_be_written() {
    let house = outages::House::new(Kind::MariaDb).await;
    let database = house.database().to_owned();
    house
        .by_hand(&format!("CREATE USER app@'%' IDENTIFIED BY 'a'; GRANT ALL ON {database}.* TO app@'%'"))
        .await;
    let url = house.url.replace("kubesvc:p%40ss%2Fword", "app:a");
    let store = open(&url).await.expect("it opens");
    house.by_hand("SET GLOBAL read_only = 1").await;
    let said = outages::unavailable(store.put_accounts(&[row("one", "uid-1")]).await);
    assert!(said.contains("may only be read"), "{said}");
    assert_eq!(outages::rows(&*store).await, []);
    house.by_hand("SET GLOBAL read_only = 0").await;
    store.put_accounts(&[row("one", "uid-1")]).await.expect("written");
}

#[tokio::test]
async fn a_row_that_the_server_cannot_take_at_once_is_refused() {
    let house = outages::House::new(Kind::MariaDb).await;
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
    assert_eq!(outages::rows(&*store).await, wanted);
}
