//! What people do with kubectl: names that are hard to display or store, two objects with one name, and
//! statuses edited by hand.

use kubesvc_core::State;
use serde_json::json;

use crate::world::World;

/// Name of the case, and an account name that is accepted everywhere as it is.
const NAMES: &[(&str, &str)] = &[
    ("a name that differs in case alone", "Good"),
    ("a name of quotes", "it's \"good\" `good`"),
    ("a name of emoji", "🚀🦀"),
    ("a name that is a path", "../../etc/passwd"),
    ("a name that is SQL", "good'; DROP TABLE kubesvc_accounts;--"),
    ("a name of wildcards", "100%_*?"),
    ("a name that is JSON", "{\"name\": null}"),
    ("a name that turns the reading direction", "\u{202e}doog"),
    ("a name of another script that looks the same", "gооd"),
    ("a name that ends with a space", "good "),
    ("a name of spaces", "   "),
    ("a name of an address", "https://user@host:1/?a=b#c"),
    ("a name of a flag", "--all"),
];

/// Name of the case, a patch of the status, and what the API server's message must contain.
const STATUSES: &[(&str, &str, &str)] = &[
    ("a status of the greatest epoch", r#"{"epoch": 9223372036854775807}"#, "status.epoch"),
    ("a status of an epoch past 2^53", r#"{"epoch": 9007199254740993}"#, "status.epoch"),
    ("a status of an epoch below all", r#"{"epoch": -1}"#, "status.epoch"),
    ("a status of an epoch in words", r#"{"epoch": "seven"}"#, "status.epoch"),
    ("a status of a state that there is not", r#"{"state": "SLEEPING"}"#, "status.state"),
    ("a status of a state in small letters", r#"{"state": "active"}"#, "status.state"),
    ("a status of a negative count", r#"{"failedCount": -3}"#, "status.failedCount"),
    ("a status of a count past 32 bits", r#"{"failedCount": 4294967296}"#, "failedCount"),
    ("a grant of a phase that there is not", r#"{"grant": {"phase": "Half"}}"#, "status.grant.phase"),
    ("a grant that is a word", r#"{"grant": "east"}"#, "status.grant"),
];

const LONG: &str = "an object name of 253 characters";
const TWIN: &str = "a second object of one account name";
const ANNOTATION: &str = "a retry annotation of 200 KiB";

pub(super) fn names() -> Vec<&'static str> {
    let names = NAMES.iter().map(|(name, _)| *name);
    names.chain(STATUSES.iter().map(|(name, ..)| *name)).chain([LONG, TWIN, ANNOTATION]).collect()
}

pub(super) async fn try_all(world: &World, kubeconfig: &str) {
    world.secret("names", kubeconfig.as_bytes(), true).await;
    let by_secret = json!({"secretRef": {"name": "names"}});
    let long = "n".repeat(253);
    for (index, (_, name)) in NAMES.iter().enumerate() {
        let account = world.account(&format!("named-{index}")).zone("east").spec("accountName", *name);
        account.spec("kubeconfig", by_secret.clone()).create().await;
    }
    world.account(&long).zone("east").spec("kubeconfig", by_secret.clone()).create().await;
    let twin = world.account("twin").zone("east").spec("accountName", "good");
    twin.spec("kubeconfig", by_secret).create().await;

    for (index, (case, name)) in NAMES.iter().enumerate() {
        let object = format!("named-{index}");
        world.until(&object, State::Active).await;
        let row = world.until_row(name, "ACTIVE").await;
        let own = world.object(&object).await.and_then(|account| account.metadata.uid);
        assert_eq!(row.uid, own, "{case}: the row is of another account");
        let answer = world.get(&format!("/armory/accounts/{}", escaped(name))).await;
        assert_eq!((answer.status, &answer.json["name"]), (200, &json!(name)), "{case}: {answer}");
    }
    world.until(&long, State::Active).await;
    world.until_row(&long, "ACTIVE").await;
    let twin = world.until_reason("twin", State::Failed, "DuplicateName").await;
    let why = twin.status_or_default().error_message.clone().unwrap_or_default();
    assert!(why.contains("good") && twin.status_or_default().granted_zone().is_none(), "{TWIN}: {why}");
    edit_statuses(world).await;
    let noise = "r".repeat(200 << 10);
    world.annotate("named-0", "kubesvc.io/retry", &noise).await;
    let tried = world
        .until_account("named-0", "is ACTIVE after its retry", |account| {
            let status = account.status_or_default();
            status.state() == State::Active && status.retry_handled.is_some()
        })
        .await;
    let kept = tried.status_or_default().retry_handled.clone().unwrap_or_default();
    assert!(kept.len() <= 256, "{ANNOTATION}: {} bytes of it are kept in the status", kept.len());
    for index in 0..NAMES.len() {
        world.delete(&format!("named-{index}")).await;
    }
    for name in [long.as_str(), "twin"] {
        world.delete(name).await;
        world.until_gone(name).await;
    }
    for (index, (_, name)) in NAMES.iter().enumerate() {
        world.until_gone(&format!("named-{index}")).await;
        world.until_row_gone(name).await;
    }
    world.until_row("good", "ACTIVE").await;
}

/// The API server refuses what no operator could have written.
async fn edit_statuses(world: &World) {
    let before = world.object("named-0").await.expect("it is ACTIVE").status;
    for (case, status, field) in STATUSES {
        let patch = format!(r#"{{"status": {status}}}"#);
        let arguments = ["patch", "ksa", "named-0", "--subresource=status", "--type=merge", "-p", &patch];
        let answer = world.kubectl(&arguments).await;
        assert_ne!(answer.code, Some(0), "{case}: {answer:?}");
        assert!(answer.stderr.contains(field), "{case}: {answer:?}");
    }
    assert_eq!(world.object("named-0").await.expect("it is there").status, before);
}

/// A name, percent-encoded as part of a URL.
fn escaped(name: &str) -> String {
    name.bytes().map(|byte| format!("%{byte:02X}")).collect()
}
