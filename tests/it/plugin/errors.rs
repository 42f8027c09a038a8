//! Error messages, and the size of list requests.

use std::path::Path;

use super::run;
use super::scripted_api::{ScriptedApi, account};
use kubesvc_testkit::folder::Folder;
use kubesvc_testkit::kubeconfig::{Proof, yaml};
use kubesvc_testkit::{must, ports};

#[tokio::test]
async fn unknown_name_is_reported_with_suggestions_and_the_rest_is_done() {
    let api = ScriptedApi::with_accounts([account("production")]).await;
    for command in ["describe", "why", "retry", "activate", "wait", "list"] {
        let ended = api.plugin(&[command, "prodution"]).await;
        assert_eq!(ended.code, Some(1), "{command}: {ended:?}");
        assert!(ended.stderr.contains("did you mean production?"), "{command}: {ended:?}");
        assert_eq!((ended.stdout.as_str(), ended.stderr.lines().count()), ("", 1), "{command}: {ended:?}");
    }
    let ended = api.plugin(&["list", "-o", "name", "nobody", "production", "../secrets"]).await;
    assert_eq!(ended.code, Some(1));
    assert_eq!(ended.stdout, "kubesvcaccount.kubesvc.io/production\n");
    assert_eq!(ended.stderr.lines().count(), 2, "{ended:?}");
    let ended = api.plugin(&["activate", "-l", "no=one"]).await;
    assert!(ended.code == Some(1) && ended.stderr.contains("no accounts with labels no=one"), "{ended:?}");
    let unseen = api.shown(&["why", "production"]).await;
    assert!(
        unseen.contains("no operator has seen it yet") || unseen.contains("No operator has seen"),
        "{unseen}"
    );
}

#[tokio::test]
async fn invalid_command_line_exits_with_code_2() {
    for arguments in [
        &["list", "-o", "table"][..],
        &["list", "--state", "BROKEN"],
        &["activate"],
        &["activate", "a", "--all"],
        &["wait", "a", "--timeout", "soon"],
        &["wait", "a", "--for", "fun"],
        &["why", "a", "-o", "wide"],
        &["describe", "a", "-A"],
        &["frobnicate"],
        &[],
    ] {
        let ended = run(Path::new("/nowhere/config"), arguments.iter().copied()).await;
        assert_eq!(ended.code, Some(2), "{arguments:?}: {ended:?}");
        assert_eq!(ended.stdout, "", "{arguments:?}");
        assert!(!ended.stderr.contains("panicked"), "{arguments:?}: {ended:?}");
    }
}

#[tokio::test]
async fn missing_permission_is_named() {
    let api = ScriptedApi::with_accounts([account("prod")]).await;
    api.refuse("/", 403, "User \"nobody\" cannot do this");
    for (arguments, right) in [
        (&["list"][..], "you may not list kubesvcaccounts"),
        (&["describe", "prod"], "you may not get kubesvcaccounts"),
        (&["agents"], "you may not list kubesvcagents"),
        (&["list", "-A"], "in all namespaces"),
    ] {
        let ended = api.plugin(arguments).await;
        assert_eq!(ended.code, Some(1), "{arguments:?}: {ended:?}");
        assert!(
            ended.stderr.contains(right) && ended.stderr.lines().count() == 1,
            "{arguments:?}: {ended:?}"
        );
    }
}

#[tokio::test]
async fn what_the_caller_may_not_list_is_not_taken_for_removed() {
    let api = ScriptedApi::with_accounts([]).await;
    api.refuse("/apis/apps/v1/", 403, "deployments is forbidden");
    let said = api.shown(&["uninstall", "--dry-run"]).await;
    assert!(said.contains("deployments: deployments is forbidden (403)"), "{said}");
    assert!(said.contains("statefulsets: deployments is forbidden (403)"), "{said}");
}

#[tokio::test]
async fn missing_crds_are_reported_with_how_to_install_them() {
    let api = ScriptedApi::without_kinds().await;
    for arguments in [&["list"][..], &["why", "prod"], &["agents"], &["wait", "--all"]] {
        let ended = api.plugin(arguments).await;
        assert_eq!(ended.code, Some(1), "{arguments:?}: {ended:?}");
        assert!(
            ended.stderr.contains("kubesvc-operator crds | kubectl apply -f -"),
            "{arguments:?}: {ended:?}"
        );
    }
}

#[tokio::test]
async fn unreachable_cluster_is_named() {
    let folder = must(Folder::new("plugin"));
    let server = format!("http://127.0.0.1:{}", ports::free());
    let dead = must(folder.write("dead", &yaml(&server, "", Proof::Token("t"))));
    let ended = run(&dead, ["list"]).await;
    assert!(ended.code == Some(1) && ended.stderr.contains(&server), "{ended:?}");
    let ended = run(&dead, ["list", "--context", "kubesvcc"]).await;
    assert!(ended.code == Some(1) && ended.stderr.contains("did you mean kubesvc?"), "{ended:?}");
    let ended = run(&dead, ["list", "--kubeconfig", "/nowhere/config"]).await;
    assert!(ended.code == Some(1) && ended.stderr.contains("/nowhere/config"), "{ended:?}");
    let api = ScriptedApi::with_accounts([]).await;
    api.refuse("/", 401, "Unauthorized");
    let ended = api.plugin(&["list"]).await;
    assert!(ended.code == Some(1) && ended.stderr.contains("does not accept your credential"), "{ended:?}");
}

#[tokio::test]
async fn accounts_are_listed_in_pages() {
    let api =
        ScriptedApi::with_accounts((0..300).map(|number| account(&format!("account-{number:03}")))).await;
    let all = api.shown(&["list", "-o", "name", "--chunk-size", "70"]).await;
    let names: Vec<_> = all.lines().collect();
    assert_eq!(names.len(), 300);
    assert!(names.is_sorted() && names[299].ends_with("/account-299"), "{all}");
    let asked = api.asked();
    assert!(asked.len() == 5 && asked.iter().all(|one| one.contains("limit=70")), "{asked:?}");
    let table = api.shown(&["list"]).await;
    assert_eq!(table.lines().count(), 301);
}
