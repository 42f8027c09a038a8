//! Writes whose end is not known: what the leader makes of them.

use tokio_util::sync::CancellationToken;

use super::*;
use crate::leases::Mandate;

const FAILED: &str = "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n";

/// A write of long ago, whose replica is no longer at it.
fn intent(verb: &str, name: &str) -> IntentRow {
    IntentRow {
        name: name.to_owned(),
        verb: verb.to_owned(),
        body_hash: None,
        replica_id: "other".to_owned(),
        started_at: 1,
        tries: 1,
    }
}

/// A deletion that found its account in Clouddriver.
fn found(name: &str) -> IntentRow {
    IntentRow { body_hash: Some("found".to_owned()), ..intent("DELETE", name) }
}

impl Rest {
    async fn with_sources(sources: &[(&str, &[&'static str], bool)], answer: &str) -> Self {
        let clouddriver = Clouddriver::answering(answer).await;
        Self::reading(sources, clouddriver, |ports| ports.poll = Duration::from_millis(1))
    }

    /// Lets a leader settle these writes, and waits until there are none.
    async fn settle(&self, intents: &[IntentRow]) {
        self.store.intents.lock().extend_from_slice(intents);
        let settlement = IntentSettlement::new(&self.state, &Replicas::alone(&"replica".into()));
        let settlement = settlement.expect("calls are passed on");
        let (mandate, stop) = (Mandate::alone(&"replica".into()), CancellationToken::new());
        let settled = async {
            while !self.store.intents.lock().is_empty() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            stop.cancel();
        };
        let both = futures::future::join(settlement.run(&mandate, &stop), settled);
        tokio::time::timeout(Duration::from_secs(30), both).await.expect("every intent ends");
    }

    async fn delete(&self, name: &str) -> TestResponse {
        self.send(Request::delete(format!("/credentials/{name}")).body(Body::empty()).expect("a request"))
            .await
    }
}

#[tokio::test]
async fn a_lost_deletion_deletes_only_what_clouddriver_had() {
    let rest = Rest::with_sources(&[("sql", &[], true)], FAILED).await;
    for name in ["handed-over", "removed"] {
        rest.put_account(name, &json!({}));
    }
    rest.settle(&[intent("DELETE", "handed-over"), found("removed")]).await;
    assert!(rest.account("handed-over").is_some() && rest.account("removed").is_none());
}

#[tokio::test]
async fn a_deletion_is_sent_once_it_is_known_whether_clouddriver_has_the_account() {
    let marks = |rest: &Rest| -> Vec<bool> {
        rest.store.intents.lock().iter().map(IntentRow::found_account).collect()
    };
    // By its table; without one, by what it says itself.
    for (sources, lists, is_found) in [
        (&[("sql", &["prod"][..], true)][..], &[][..], true),
        (&[("sql", &[], true)], &["prod"], false),
        (&[("yaml", &[], false)], &["prod"], true),
        (&[], &["prod"], true),
        (&[], &["other"], false),
    ] {
        let rest = Rest::with_sources(sources, FAILED).await;
        *rest.clouddriver.has.lock() = Some(lists.to_vec());
        rest.put_account("prod", &json!({}));
        let answer = rest.delete("prod").await;
        assert!(result(&answer).starts_with("pending; reason=outcome unknown"), "{}", result(&answer));
        assert_eq!(marks(&rest), [is_found], "{sources:?} {lists:?}");
    }
    let rest = Rest::with_sources(&[], REMOVED).await;
    *rest.clouddriver.has.lock() = None;
    rest.put_account("prod", &json!({}));
    let answer = rest.delete("prod").await;
    assert_eq!((answer.status, rest.clouddriver.asked.lock().len()), (502, 0), "{}", answer.text);
    assert!(rest.tries().is_empty() && rest.account("prod").is_some());
    // Nothing here would follow.
    assert_eq!(rest.delete("none").await.status, 200);
}

#[tokio::test]
async fn a_source_without_the_table_does_not_show_that_an_account_is_gone() {
    let rest = Rest::with_sources(&[("yaml", &[], false)], FAILED).await;
    rest.put_account("still-there", &json!({}));
    rest.put_account("gone", &json!({}));
    *rest.clouddriver.has.lock() = Some(vec!["still-there"]);
    rest.settle(&[found("still-there"), found("gone")]).await;
    assert!(rest.account("still-there").is_some() && rest.account("gone").is_none());
}

#[tokio::test]
async fn an_account_that_another_source_still_has_is_left() {
    let rest = Rest::with_sources(&[("sql", &["prod"], true), ("yaml", &["prod"], false)], REMOVED).await;
    rest.put_account("prod", &json!({}));
    let answer = rest.delete("prod").await;
    assert_eq!(
        (answer.status, result(&answer).as_str()),
        (200, "left; reason=Clouddriver still has it from yaml")
    );
    assert!(rest.account("prod").is_some() && rest.tries().is_empty());
}

#[tokio::test]
async fn only_what_a_write_itself_made_is_taken_back() {
    let rest = Rest::with_sources(&[("sql", &[], true)], STORED).await;
    let made = |mark: &str| {
        json!({
            "labels": {"kubesvc.io/origin": "migrated"}, "annotations": {"kubesvc.io/clouddriver-write": mark},
            "creationTimestamp": "2026-01-01T00:00:00Z",
        })
    };
    rest.put_account("own", &made("other/1"));
    rest.put_account("later", &made("other/2"));
    rest.put_account("imported", &json!({"labels": {"kubesvc.io/origin": "migrated"}}));
    rest.settle(&["own", "later", "imported"].map(|name| intent("POST", name))).await;
    let here = ["own", "later", "imported"].map(|name| rest.account(name).is_some());
    assert_eq!(here, [false, true, true]);
    // The mark is there from the beginning.
    rest.call("POST", "/credentials", definition("prod")).await;
    let account = rest.account("prod").expect("it is made");
    let mark = account["metadata"]["annotations"]["kubesvc.io/clouddriver-write"].as_str();
    assert!(mark.is_some_and(|mark| mark.starts_with("replica/")), "{mark:?}");
}
