//! Error messages, and the size of list requests.

use futures::{StreamExt, stream};
use kube::api::PostParams;
use kubesvc_core::{KubesvcAccount, KubesvcAccountSpec};
use serde_json::json;

use super::{plugin, run, shown};
use crate::world::World;
use kubesvc_testkit::controlplane::{self, ControlPlane};
use kubesvc_testkit::folder::Folder;
use kubesvc_testkit::kubeconfig::{Proof, yaml};
use kubesvc_testkit::{must, ports};

#[tokio::test(flavor = "multi_thread")]
async fn unknown_name_is_reported_with_suggestions_and_the_rest_is_done() {
    let world = World::prepare().without_operator().start().await;
    world.account("production").create().await;
    for command in ["describe", "why", "retry", "activate", "wait", "list"] {
        let ended = plugin(&world, &[command, "prodution"]).await;
        assert_eq!(ended.code, Some(1), "{command}: {ended:?}");
        assert!(ended.stderr.contains("did you mean production?"), "{command}: {ended:?}");
        assert_eq!((ended.stdout.as_str(), ended.stderr.lines().count()), ("", 1), "{command}: {ended:?}");
    }
    let ended = plugin(&world, &["list", "-o", "name", "nobody", "production", "../secrets"]).await;
    assert_eq!(ended.code, Some(1));
    assert_eq!(ended.stdout, "kubesvcaccount.kubesvc.io/production\n");
    assert_eq!(ended.stderr.lines().count(), 2, "{ended:?}");
    let ended = plugin(&world, &["activate", "-l", "no=one"]).await;
    assert!(ended.code == Some(1) && ended.stderr.contains("no accounts with labels no=one"), "{ended:?}");
    let unseen = shown(&world, &["why", "production"]).await;
    assert!(
        unseen.contains("no operator has seen it yet") || unseen.contains("No operator has seen"),
        "{unseen}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_command_line_exits_with_code_2() {
    let plane = controlplane::shared().await;
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
        let ended = run(&plane.kubeconfig_path(), arguments.iter().copied()).await;
        assert_eq!(ended.code, Some(2), "{arguments:?}: {ended:?}");
        assert_eq!(ended.stdout, "", "{arguments:?}");
        assert!(!ended.stderr.contains("panicked"), "{arguments:?}: {ended:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_permission_is_named() {
    let world = World::prepare().without_operator().start().await;
    world.account("prod").create().await;
    let identity = must(world.control_plane().client_certificate("nobody", None));
    let kubeconfig = must(
        world
            .folder()
            .write("nobody.kubeconfig", &world.control_plane().kubeconfig_for_certificate(&identity)),
    );
    for (arguments, right) in [
        (&["list"][..], "you may not list kubesvcaccounts"),
        (&["describe", "prod"], "you may not get kubesvcaccounts"),
        (&["agents"], "you may not list kubesvcagents"),
        (&["list", "-A"], "in all namespaces"),
    ] {
        let all = ["-n", world.namespace()].into_iter().chain(arguments.iter().copied());
        let ended = run(&kubeconfig, all).await;
        assert_eq!(ended.code, Some(1), "{arguments:?}: {ended:?}");
        assert!(
            ended.stderr.contains(right) && ended.stderr.lines().count() == 1,
            "{arguments:?}: {ended:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_crds_are_reported_with_how_to_install_them() {
    let plane = must(ControlPlane::start().await);
    for arguments in [&["list"][..], &["why", "prod"], &["agents"], &["wait", "--all"]] {
        let ended = run(&plane.kubeconfig_path(), arguments.iter().copied()).await;
        assert_eq!(ended.code, Some(1), "{arguments:?}: {ended:?}");
        assert!(
            ended.stderr.contains("kubesvc-operator crds | kubectl apply -f -"),
            "{arguments:?}: {ended:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unreachable_cluster_is_named() {
    let plane = controlplane::shared().await;
    let folder = must(Folder::new("plugin"));
    let server = format!("https://127.0.0.1:{}", ports::free());
    let dead = must(folder.write("dead", &yaml(&server, &plane.ca_pem(), Proof::None)));
    let ended = run(&dead, ["list"]).await;
    assert!(ended.code == Some(1) && ended.stderr.contains(&server), "{ended:?}");
    let ended = run(&plane.kubeconfig_path(), ["list", "--context", "kubesvcc"]).await;
    assert!(ended.code == Some(1) && ended.stderr.contains("did you mean kubesvc?"), "{ended:?}");
    let ended = run(&plane.kubeconfig_path(), ["list", "--kubeconfig", "/nowhere/config"]).await;
    assert!(ended.code == Some(1) && ended.stderr.contains("/nowhere/config"), "{ended:?}");
    let wrong = must(folder.write("wrong", &plane.kubeconfig_for_token("wrong")));
    let ended = run(&wrong, ["list"]).await;
    assert!(ended.code == Some(1) && ended.stderr.contains("does not accept your credential"), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn accounts_are_listed_in_pages() {
    let world = World::prepare().without_operator().start().await;
    let api = world.api::<KubesvcAccount>();
    let made = stream::iter(0..300).map(|number| {
        let spec = json!({"state": "INACTIVE", "kubeconfig": {"serviceAccount": true}});
        let spec: KubesvcAccountSpec = serde_json::from_value(spec).expect("a spec");
        let (api, account) = (api.clone(), KubesvcAccount::new(&format!("account-{number:03}"), spec));
        async move { api.create(&PostParams::default(), &account).await }
    });
    let mut made = made.buffer_unordered(16);
    while let Some(answer) = made.next().await {
        must(answer.map_err(|error| error.to_string()));
    }
    let all = shown(&world, &["list", "-o", "name", "--chunk-size", "70"]).await;
    let names: Vec<_> = all.lines().collect();
    assert_eq!(names.len(), 300);
    assert!(names.is_sorted() && names[299].ends_with("/account-299"), "{all}");
    let table = shown(&world, &["list"]).await;
    assert_eq!(table.lines().count(), 301);
}
