//! Writes whose end is not known: what the leader makes of them.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio_util::sync::CancellationToken;

use super::*;
use crate::clouddriver::{ClouddriverAccounts, StoredAccount};
use crate::leases::Mandate;
use kubesvc_clouddriver::registration::{AccountCall, CallFailure, FailureKind};

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
        Self::reading(sources, clouddriver, |ports| ports.poll = Duration::from_millis(1)).await
    }

    /// Lets a leader settle these writes, and waits until there are none.
    async fn settle(&self, intents: &[IntentRow]) {
        self.settle_by(&Mandate::alone(&"replica".into()), intents).await;
        assert!(self.store.intents.lock().is_empty(), "every intent ends");
    }

    /// Lets a leader settle these writes until there are none, or it has lost its mandate.
    async fn settle_by(&self, mandate: &Mandate, intents: &[IntentRow]) {
        self.store.intents.lock().extend_from_slice(intents);
        let settlement = IntentSettlement::new(&self.state, &Replicas::alone(&"replica".into()));
        let settlement = settlement.expect("calls are passed on");
        let stop = CancellationToken::new();
        let settled = async {
            while !self.store.intents.lock().is_empty() && mandate.holds() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            // What is under way is done.
            tokio::time::sleep(Duration::from_millis(500)).await;
            stop.cancel();
        };
        let both = futures::future::join(settlement.run(mandate, &stop), settled);
        tokio::time::timeout(Duration::from_secs(1000), both).await.expect("it ends");
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

/// A Clouddriver without accounts that lists them in turn as slowly as this, and then at once.
#[derive(Default)]
struct Lists {
    take: Vec<Duration>,
    read: AtomicUsize,
    /// Lost while a list is under way.
    mandate: Option<Mandate>,
    /// Whether all accounts are listed, and no definition can be read.
    has: HashSet<String>,
    asked: AtomicUsize,
}

#[async_trait]
impl ClouddriverAccounts for Lists {
    async fn loaded(&self) -> Result<HashSet<String>, CallFailure> {
        let at = self.read.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(self.take.get(at).copied().unwrap_or_default()).await;
        if let Some(mandate) = self.mandate.as_ref().filter(|_| at > 0) {
            mandate.lost().cancel();
        }
        Ok(self.has.clone())
    }

    async fn stored(&self, _: &str) -> Result<Option<StoredAccount>, CallFailure> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        Err(CallFailure { kind: FailureKind::Unreachable, message: "it stands still".to_owned() })
    }

    async fn change(
        &self,
        _: AccountCall,
        _: &str,
        _: &serde_json::Map<String, Value>,
    ) -> Result<(), CallFailure> {
        unreachable!("nothing is changed")
    }
}

impl Rest {
    async fn with_lists(lists: &Arc<Lists>) -> Self {
        let clouddriver = Clouddriver::answering(FAILED).await;
        Self::reading(&[], clouddriver, |ports| {
            ports.accounts = Arc::<Lists>::clone(lists);
            ports.poll = Duration::from_millis(1);
        })
        .await
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_read_long_ago_or_by_a_former_leader_decides_nothing() {
    // A leader that was suspended while it read reads anew.
    let take = vec![Duration::ZERO, Duration::from_secs(200), Duration::ZERO];
    let lists = Arc::new(Lists { take, ..Lists::default() });
    let rest = Rest::with_lists(&lists).await;
    rest.put_account("prod", &json!({}));
    rest.settle(&[found("prod")]).await;
    assert!(rest.account("prod").is_none());
    assert!(lists.read.load(Ordering::Relaxed) > 2, "the second list was too old");

    let mandate = Mandate::alone(&"replica".into());
    let lists = Arc::new(Lists { mandate: Some(mandate.clone()), ..Lists::default() });
    let rest = Rest::with_lists(&lists).await;
    rest.put_account("prod", &json!({}));
    rest.settle_by(&mandate, &[found("prod")]).await;
    assert!(!mandate.holds() && rest.account("prod").is_some());
}

#[tokio::test(start_paused = true)]
async fn one_list_is_for_all_intents_and_a_clouddriver_that_stands_still_ends_the_round() {
    let lists = Arc::new(Lists::default());
    let rest = Rest::with_lists(&lists).await;
    let names: Vec<String> = (0..50).map(|at| format!("account-{at}")).collect();
    rest.settle(&names.iter().map(|name| found(name)).collect::<Vec<_>>()).await;
    let read = lists.read.load(Ordering::Relaxed);
    assert!((2..5).contains(&read), "{read} lists for 50 intents");

    let mandate = Mandate::alone(&"replica".into());
    let lists = Arc::new(Lists { has: names.iter().cloned().collect(), ..Lists::default() });
    let rest = Rest::with_lists(&lists).await;
    let added: Vec<IntentRow> = names.iter().map(|name| intent("POST", name)).collect();
    let later = async {
        tokio::time::sleep(Duration::from_secs(90)).await;
        mandate.lost().cancel();
    };
    futures::future::join(rest.settle_by(&mandate, &added), later).await;
    let (asked, read) = (lists.asked.load(Ordering::Relaxed), lists.read.load(Ordering::Relaxed));
    assert!(asked > 0 && asked < read, "{asked} definitions after {read} lists");
}
