//! Clouddriver's own answers as a source: it is asked for pages, and what it leaves out is never taken for absent.

use std::fmt::Write as _;

use super::*;
use kubesvc_testkit::clouddriver::{Clouddriver as RunningClouddriver, Settings};
use kubesvc_testkit::wait::eventually;

/// A page has 200.
const ACCOUNT_COUNT: usize = 405;
/// Left out for a failing secret: within the first page, and at its end.
const LEFT_OUT: [&str; 2] = ["a-010", "a-199"];
/// Registered by kubesvc, at the end of the second page.
const PUSHED: &str = "a-397";

#[tokio::test(flavor = "multi_thread")]
async fn all_pages_of_a_running_clouddriver_are_read_and_what_it_leaves_out_is_never_absent() {
    let database = shared(Kind::MariaDb).await.fresh_database().await;
    let fiat = Settings { poller: false, admins: Some(vec!["migrator".to_owned()]), ..Settings::default() };
    let mut clouddriver = must(RunningClouddriver::start(&database, fiat.clone()).await);
    let source =
        json!([{"name": "api", "type": "api", "uri": clouddriver.base_url(), "username": "migrator"}]);
    let world = World::prepare().setting("kubesvc.clouddriver.sources", source).start().await;
    let cluster = world.cluster("spinnaker").await;
    let marked = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "kubesvc/aaaa/bbbb",
        "contexts": [{"name": "kubesvc/aaaa/bbbb", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [], "users": [],
    });
    let mut rows = String::new();
    for number in 0..ACCOUNT_COUNT {
        let name = format!("a-{number:03}");
        let kubeconfig = match name.as_str() {
            name if LEFT_OUT.contains(&name) => "encrypted:no-such-engine!v:x".to_owned(),
            PUSHED => marked.to_string(),
            _ => cluster.kubeconfig_in_one_line(),
        };
        let body = json!({"type": "kubernetes", "name": name, "kubeconfigContents": kubeconfig});
        let body = body.to_string().replace('\\', "\\\\").replace('\'', "''");
        let comma = if rows.is_empty() { "" } else { ", " };
        let _ = write!(rows, "{comma}('{name}', 'kubernetes', '{body}', 1, 1, 'x')");
    }
    must(clouddriver.tables().execute(&format!("INSERT INTO accounts VALUES {rows}")).await);
    let before = must(clouddriver.tables().checksum().await);

    // The first and last of each page, and those on both sides of what is left out.
    let taken = ["a-000", "a-009", "a-011", "a-198", "a-200", "a-396", "a-398", "a-404"];
    let of = |names: &[&str]| json!(names.iter().map(|name| json!({ "name": name })).collect::<Vec<_>>());
    let answer = world.rest("POST", ACCOUNTS, &of(&taken)).await;
    assert_eq!((answer.status, answer.text.as_str()), (202, "[]"), "{answer}");
    for name in taken {
        assert!(world.object(name).await.is_some(), "{name}");
    }
    for name in LEFT_OUT.into_iter().chain([PUSHED, "no-such-account"]) {
        let answer = world.rest("POST", ACCOUNTS, &of(&["a-100", name])).await;
        assert_eq!(answer.status, 503, "{name}: {answer}");
        assert!(answer.text.contains("credentials source api may have it"), "{name}: {answer}");
        assert!(answer.text.contains("leaves out accounts"), "{name}: {answer}");
        assert!(world.object("a-100").await.is_none(), "nothing is made");
    }
    let count = format!("kubesvc_credentials_source_accounts{{source=\"api\"}} {}", ACCOUNT_COUNT - 3);
    let metrics = world.get("/metrics").await.text;
    assert!(metrics.contains(&count), "{metrics}");

    // A server that is gone, and a user who may not see accounts.
    clouddriver.kill();
    let answer = world.rest("POST", ACCOUNTS, &of(&["a-100"])).await;
    assert!(answer.status == 503 && answer.text.contains("check that the server runs there"), "{answer}");
    must(clouddriver.restart().await);
    eventually("the source again", WITHIN, async || {
        let answer = world.try_rest("POST", ACCOUNTS, &of(&["a-100"])).await?;
        if answer.status == 202 { Ok(()) } else { Err(answer.text) }
    })
    .await;
    must(clouddriver.restart_with(Settings { admins: Some(vec!["ann".to_owned()]), ..fiat }).await);
    let answer = world.rest("POST", ACCOUNTS, &of(&["a-101"])).await;
    assert!(answer.status == 503 && answer.text.contains("credentials source api may have it"), "{answer}");
    assert_eq!(must(clouddriver.tables().checksum().await), before, "a source is never written");
    for (log, text) in world.all_logs() {
        assert!(!text.contains(cluster.token()), "{log} contains a secret");
    }
}
