//! Calls that are passed on while callers need rights: what follows here, and what their lines say.

use super::super::callers::{ANN, Place, place};
use super::*;

const MAY_WRITE: &str = "update kubesvcaccounts/clouddriver";
const GET: &str = "get kubesvcaccounts in";
const UPDATE: &str = "update kubesvcaccounts in";
const ASSERT: &str = "assert kubesvcaccounts/users";

/// A state before a Clouddriver, with the account `far` in another namespace than the one of new accounts.
async fn before(clouddriver: &Clouddriver, mode: RestAuthMode, allowed: &[&str]) -> Place {
    let mut place = place(mode, allowed);
    let tls = Arc::new(RenewedTls::read(ClouddriverTlsFiles::default()).await.expect("no files"));
    let client = ClouddriverClient::new(clouddriver.url.parse().expect("a URL"), "kubesvc", Arc::clone(&tls));
    place.state.ports.credentials = Some(Arc::new(AccountManagement::new(AccountManagementPorts {
        proxy: ClouddriverProxy::new(&clouddriver.url, tls, "uid-1").expect("a proxy"),
        accounts: Arc::new(client.expect("a client")),
        passes_all: false,
        passes_secrets: false,
        follows: true,
        poll: Duration::from_secs(30),
    })));
    place.has("far", "other");
    place
}

#[tokio::test]
async fn an_account_follows_only_for_those_who_may_change_that_object() {
    let body = definition("far").to_string();
    let narrowed = ("x-spinnaker-accounts", "near");
    for (rights, headers, shown) in [
        (vec![MAY_WRITE], vec![ANN], "left; reason=kubesvc has no account of that name"),
        (
            vec![MAY_WRITE, GET],
            vec![ANN],
            "left; reason=you may not update the account of that name in kubesvc",
        ),
        (
            vec![MAY_WRITE, GET, UPDATE, ASSERT],
            vec![ANN, narrowed],
            "left; reason=kubesvc has no account of that name",
        ),
        (vec![MAY_WRITE, UPDATE, "get", "create secrets"], vec![ANN], "updated"),
    ] {
        let clouddriver = Clouddriver::answering(STORED).await;
        let place = before(&clouddriver, RestAuthMode::Enforce, &rights).await;
        let answer = place.call("PUT", "/credentials", &body, &headers).await;
        assert_eq!((answer.status, result(&answer).as_str()), (200, shown), "{rights:?} {}", answer.text);
        assert_eq!(clouddriver.asked.lock().len(), 1, "Clouddriver decides of its own account");
        let environment =
            place.api.get("kubesvcaccounts/far").expect("it is there")["spec"]["environment"].clone();
        assert_eq!(environment == "new", shown == "updated", "{rights:?}");
        let lines = place.audit.lines();
        let said: Vec<_> = lines
            .iter()
            .map(|line| {
                json!([
                    line["principal"],
                    line["verb"],
                    line["resource"],
                    line["account"],
                    line["namespace"],
                    line["uid"]
                ])
            })
            .collect();
        let mut expected =
            vec![json!(["ann", "update", "kubesvcaccounts/clouddriver", "far", "other", "u-far"])];
        if shown == "updated" {
            expected.push(json!(["ann", "update", "kubesvcaccounts", "far", "other", "u-far"]));
        }
        assert_eq!(said, expected, "{lines:?}");
    }
}

#[tokio::test]
async fn of_an_account_that_kubesvc_registered_only_those_who_see_it_learn_where_it_is() {
    let body = definition("far").to_string();
    for (rights, is_seen) in [(vec![MAY_WRITE], false), (vec![MAY_WRITE, GET], true)] {
        let clouddriver = Clouddriver::answering(STORED).await;
        let mut place = before(&clouddriver, RestAuthMode::Enforce, &rights).await;
        let store = NoStore::default();
        store.pushed.lock().push(PushedRow {
            name: "far".to_owned(),
            account_uid: "u-far".to_owned(),
            state: "ADDED".to_owned(),
            body_version: 1,
            body_hash: None,
            pushed_at: None,
        });
        place.state.ports.store = Arc::new(store);
        let answer = place.call("PUT", "/credentials", &body, &[ANN]).await;
        assert_eq!(answer.status, 409, "{}", answer.text);
        assert_eq!(answer.text.contains("other/far"), is_seen, "{}", answer.text);
    }
}

#[tokio::test]
async fn with_log_authorization_stays_here_only_if_it_says_who_calls() {
    let stranger = ("authorization", "Bearer nobody");
    for (mode, caller, is_passed_on) in [
        (RestAuthMode::Off, ANN, true),
        (RestAuthMode::Log, ANN, false),
        (RestAuthMode::Log, stranger, true),
        (RestAuthMode::Enforce, ANN, false),
    ] {
        let clouddriver = Clouddriver::answering(STORED).await;
        let place = before(&clouddriver, mode, &[""]).await;
        assert_eq!(place.call("GET", "/credentials", "", &[caller]).await.status, 200);
        let asked = clouddriver.asked.lock().join("").to_lowercase();
        assert_eq!(asked.contains("authorization: bearer"), is_passed_on, "{mode:?} {caller:?}");
    }
}
