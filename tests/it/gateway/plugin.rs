//! `kubectl kubesvc on`, `kubeconfig` and `operations` through both doors.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::place::{ACCOUNT, Place, kubectl};
use crate::world::{MAX_WAIT, World};
use kubesvc_testkit::controlplane::kubectl_path;
use kubesvc_testkit::kubectl::{self as program, Output};
use kubesvc_testkit::must;
use kubesvc_testkit::wait::eventually;

/// The plugin binary.
pub(crate) const PLUGIN: &str = env!("CARGO_BIN_EXE_kubectl-kubesvc");
/// What a person needs who uses accounts by the plugin, as rules of a Role.
pub(crate) const RULES: &str = r#"[{"apiGroups": ["proxy.kubesvc.io"], "resources": ["accounts/proxy", "accounts/operations"], "verbs": ["*"]},
    {"apiGroups": ["kubesvc.io"], "resources": ["kubesvcaccounts"], "verbs": ["get", "list"]},
    {"apiGroups": [""], "resources": ["serviceaccounts/token"], "verbs": ["create"]}]"#;

/// Runs the plugin as a person, with the kubectl of the tests.
pub(crate) async fn plugin(place: &Place, kubeconfig: &Path, arguments: &[&str]) -> Output {
    let kubectl = format!("KUBECTL={}", must(kubectl_path()).display());
    let before = [kubectl.as_str(), PLUGIN, "-n", place.world.namespace()];
    let all = before.into_iter().chain(arguments.iter().copied());
    must(program::run(Path::new("/usr/bin/env"), kubeconfig, all, "").await)
}

/// Makes a person with these rights, and a kubeconfig of the operator's API server.
pub(crate) async fn person(place: &Place, name: &str, rules: &str) -> PathBuf {
    let token = place.person(name, rules, None).await;
    let text = place.world.control_plane().kubeconfig_for_token(&token);
    must(place.world.folder().write(&format!("{name}.kubeconfig"), &text))
}

#[tokio::test(flavor = "multi_thread")]
async fn people_use_an_account_by_the_plugin() {
    let place = Place::start(true).await;
    let ann = person(&place, "ann", RULES).await;
    let direct = place.target.kubeconfig_path();
    let namespaces = ["get", "namespaces", "-o", "name"];
    let there = must(kubectl(&direct, &namespaces, "").await.ok());
    eventually("the API of accounts, as ann", MAX_WAIT, async || {
        let through = plugin(&place, &ann, &["on", ACCOUNT, "--", "get", "namespaces", "-o", "name"]).await;
        if through.code == Some(0) && through.stdout == there { Ok(()) } else { Err(format!("{through:?}")) }
    })
    .await;
    let missing = plugin(&place, &ann, &["on", ACCOUNT, "--", "get", "configmap", "none"]).await;
    assert_eq!(
        missing,
        kubectl(&direct, &["get", "configmap", "none"], "").await,
        "exit code and words are kubectl's"
    );

    // A kubeconfig, printed and by the direct door.
    let printed = must(plugin(&place, &ann, &["kubeconfig", ACCOUNT]).await.ok());
    let config = must(place.world.folder().write("printed.kubeconfig", &printed));
    assert_eq!(must(kubectl(&config, &namespaces, "").await.ok()), there);
    let gateway = format!("https://localhost:{}", place.port);
    let authority = must(place.world.folder().write("gateway.crt", &place.authority)).display().to_string();
    let flags = [
        "kubeconfig",
        ACCOUNT,
        "--gateway",
        &gateway,
        "--certificate-authority",
        &authority,
        "--service-account",
        "ann",
    ];
    let printed = must(plugin(&place, &ann, &flags).await.ok());
    assert!(printed.contains(&gateway), "{printed}");
    let config = must(place.world.folder().write("gateway.kubeconfig", &printed));
    assert_eq!(must(kubectl(&config, &namespaces, "").await.ok()), there);

    // What was done, and who did it.
    must(plugin(&place, &ann, &["on", ACCOUNT, "--", "create", "configmap", "made"]).await.ok());
    must(kubectl(&direct, &["get", "configmap", "made"], "").await.ok());
    let record = eventually("the record of the write", MAX_WAIT, async || {
        let listed = plugin(&place, &ann, &["operations", ACCOUNT, "-o", "json"]).await.ok()?;
        let records: Vec<Value> = serde_json::from_str(&listed).map_err(|error| error.to_string())?;
        records.into_iter().next().ok_or_else(|| "there is none".to_owned())
    })
    .await;
    let name = format!("system:serviceaccount:{}:ann", place.world.namespace());
    assert_eq!((&record["principal"], &record["finalOutcome"]), (&name.as_str().into(), &"completed".into()));
    let id = record["operationId"].as_str().expect("an id");
    let shown = must(plugin(&place, &ann, &["operations", id]).await.ok());
    assert!(shown.contains(&name) && shown.contains("Deploy"), "{shown}");
    let table = must(plugin(&place, &ann, &["operations"]).await.ok());
    assert!(table.lines().any(|line| line.starts_with(id) && line.ends_with(&name)), "{table}");
    let nothing = plugin(&place, &ann, &["operations", ACCOUNT, "01ARZ3NDEKTSV4RRFFQ69G5FAV"]).await;
    assert!(nothing.code == Some(1) && nothing.stderr.contains("no operation 01ARZ3"), "{nothing:?}");

    // Who may only see accounts is told so by the API server, in kubectl's words.
    let rules =
        r#"[{"apiGroups": ["kubesvc.io"], "resources": ["kubesvcaccounts"], "verbs": ["get", "list"]}]"#;
    let bob = person(&place, "bob", rules).await;
    let refused = eventually("accounts that bob sees", MAX_WAIT, async || {
        let refused = plugin(&place, &bob, &["on", ACCOUNT, "--", "get", "namespaces"]).await;
        if refused.stderr.contains("kubesvcaccounts") { Err(refused.stderr) } else { Ok(refused) }
    })
    .await;
    assert!(refused.code == Some(1) && refused.stderr.contains("Forbidden"), "{refused:?}");
    let refused = plugin(&place, &bob, &["operations", ACCOUNT]).await;
    assert!(refused.code == Some(1) && refused.stderr.contains("accounts/proxy"), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn people_see_what_is_cached_with_their_own_rights_while_rest_is_closed_to_them() {
    let enforcing = World::prepare().setting("kubesvc.rest.auth.mode", "enforce");
    let place = Place::of(enforcing, true, "info").await;
    let rules = |resource: &str| {
        format!(
            r#"[{{"apiGroups": ["proxy.kubesvc.io"], "resources": ["{resource}"], "verbs": ["get"]}},
                {{"apiGroups": ["kubesvc.io"], "resources": ["kubesvcaccounts", "kubesvcagents"], "verbs": ["get", "list"]}}]"#
        )
    };
    let ann = person(&place, "ann", &rules("accounts/cache")).await;
    let shown = eventually("what is cached, as ann", MAX_WAIT, async || {
        let shown = plugin(&place, &ann, &["cache", ACCOUNT, "-o", "json"]).await.ok()?;
        let cache: Value = serde_json::from_str(&shown).map_err(|error| error.to_string())?;
        if cache["agentId"].is_string() { Ok(cache) } else { Err(shown) }
    })
    .await;
    assert_eq!(shown["account"], ACCOUNT);
    let unknown = plugin(&place, &ann, &["cache", ACCOUNT, "bananas"]).await;
    assert!(unknown.code == Some(1) && unknown.stderr.contains("caches no kind"), "{unknown:?}");
    let why = must(plugin(&place, &ann, &["why", ACCOUNT, "-o", "json"]).await.ok());
    let why: Value = must(serde_json::from_str(&why).map_err(|error| error.to_string()));
    let summary = why["cachedObjects"]["summary"].as_str().unwrap_or_default();
    assert!(!summary.is_empty() && !summary.contains("not known"), "{why}");

    let bob = person(&place, "bob", &rules("accounts/operations")).await;
    let refused = eventually("accounts that bob sees", MAX_WAIT, async || {
        let refused = plugin(&place, &bob, &["cache", ACCOUNT]).await;
        if refused.stderr.contains("kubesvcaccounts") { Err(refused.stderr) } else { Ok(refused) }
    })
    .await;
    assert!(refused.code == Some(1) && refused.stderr.contains("accounts/cache"), "{refused:?}");
}
