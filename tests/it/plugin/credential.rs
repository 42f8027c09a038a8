//! `kubectl kubesvc credential create`, from one real API server to another.

use k8s_openapi::api::core::v1::Secret;
use kubesvc_core::State;
use kubesvc_testkit::controlplane::{ControlPlane, Reused, StartOptions};
use kubesvc_testkit::kubectl::Output;
use kubesvc_testkit::{helm, must};

use super::{Scene, json, plugin, run};
use crate::charts;
use crate::world::World;

const ACCOUNT: &str = "apiVersion: kubesvc.io/v1alpha1\nkind: KubesvcAccount\nmetadata: {name: prod}\n\
    spec: {zoneId: east, kubeconfig: {secretRef: {name: prod}}}\n";

/// A target cluster, and the tokens of a user without rights in it, and of one who may renew a credential.
pub(super) struct Target {
    plane: Reused,
    powerless: String,
    renewer: String,
}

impl Target {
    pub(super) async fn start() -> Self {
        let mut options = StartOptions::default();
        let powerless = options.add_user("powerless", &[]);
        let renewer = options.add_user("renewer", &[]);
        Self { plane: must(ControlPlane::reused(options).await), powerless, renewer }
    }
}

/// Runs `credential create NAME` for a target, with further arguments.
async fn create(world: &World, target: &Target, name: &str, more: &[&str]) -> Output {
    let path = target.plane.kubeconfig_path().display().to_string();
    let fixed = ["credential", "create", name, "--target-kubeconfig", &path];
    plugin(world, &[&fixed[..], more].concat()).await
}

/// The kubeconfig in a Secret.
async fn stored(world: &World, name: &str) -> String {
    let secret = must(world.api::<Secret>().get(name).await.map_err(|e| e.to_string()));
    let data = secret.data.unwrap_or_default();
    String::from_utf8(data["kubeconfig"].0.clone()).expect("it is text")
}

fn token(kubeconfig: &str) -> String {
    let line = kubeconfig.lines().find_map(|line| line.trim().strip_prefix("token: "));
    line.expect("it has a token").trim_matches('"').to_owned()
}

/// The first one in the target.
pub(super) async fn account_gets_a_credential_and_keeps_its_agent_when_it_is_renewed(
    scene: &Scene,
    target: &Target,
) {
    let Scene { world, agent, .. } = scene;
    let first = create(world, target, "prod", &["--preset", "deploy"]).await;
    let told = must(first.clone().ok());
    let lines: Vec<_> = told.lines().collect();
    assert_eq!(
        lines,
        [
            "namespace/kubesvc applied",
            "serviceaccount/kubesvc-prod applied",
            "clusterrole.rbac.authorization.k8s.io/kubesvc-prod applied",
            "clusterrolebinding.rbac.authorization.k8s.io/kubesvc-prod applied",
            "secret/prod applied",
        ]
    );
    assert!(first.stderr.contains("The token expires at "), "{first:?}");
    assert!(first.stderr.contains("There is no account prod"), "{first:?}");
    let before = stored(world, "prod").await;
    let secret = token(&before);
    assert!(!told.contains(&secret) && !first.stderr.contains(&secret), "the token was printed");

    world.apply(ACCOUNT).await;
    let active = world.until("prod", State::Active).await;
    let version =
        |account: &kubesvc_core::KubesvcAccount| account.status_or_default().credential_version.clone();
    let again = renew(world, target).await;
    let told = must(again.clone().ok());
    assert!(!told.contains("namespace/") && !again.stderr.contains("no account"), "{again:?}");
    assert_ne!(token(&stored(world, "prod").await), secret);
    let renewed = world
        .until_account("prod", "has the new credential", |account| version(account) != version(&active))
        .await;
    let renewed = world
        .until_account("prod", "is ACTIVE with it", |account| {
            account.status_or_default().state() == State::Active && version(account) == version(&renewed)
        })
        .await;
    let (was, is) = (active.status_or_default(), renewed.status_or_default());
    assert_eq!(is.failed_count, 0);
    let election = |status: &kubesvc_core::KubesvcAccountStatus| status.caching.as_ref().map(|one| one.epoch);
    assert!(election(&was).is_some());
    assert_eq!(election(&is), election(&was), "its agent lost it in between");
    for log in [world.operator().log_text(), agent.log_text()] {
        assert!(!log.contains(&secret), "the token is in a log");
    }

    // The token may do what the preset says, and no more.
    let client = must(world.folder().write("credential.kubeconfig", &stored(world, "prod").await));
    let client = format!("--kubeconfig={}", client.display());
    for (verb, resource, may) in [
        ("create", "deployments.apps", true),
        ("list", "customresourcedefinitions", true),
        ("list", "secrets", false),
        ("create", "clusterroles", false),
    ] {
        let answer = world.kubectl(&[&client, "auth", "can-i", verb, resource, "-n", "default"]).await;
        assert_eq!(answer.stdout.trim() == "yes", may, "{verb} {resource}: {answer:?}");
    }
}

/// Renews the credential `prod` with no more rights than docs/credentials.md asks for.
async fn renew(world: &World, target: &Target) -> Output {
    let kubectl = async |arguments: &[&str]| must(target.plane.kubectl(arguments.iter().copied()).await.ok());
    for (kind, name, rules) in [
        ("clusterrole", "renewer", &["--verb=get", "--resource=namespaces", "--resource-name=kubesvc"][..]),
        (
            "clusterrole",
            "renewer-rights",
            &["--verb=patch", "--resource=clusterroles,clusterrolebindings", "--resource-name=kubesvc-prod"],
        ),
        ("role", "renewer", &["--verb=patch", "--resource=serviceaccounts", "--resource-name=kubesvc-prod"]),
        ("role", "renewer-token", &["--verb=create", "--resource=serviceaccounts/token"]),
    ] {
        kubectl(&[&["create", kind, name, "-n", "kubesvc"][..], rules].concat()).await;
        let (binding, role) = (format!("{kind}binding"), format!("--{kind}={name}"));
        kubectl(&["create", &binding, name, &role, "--user=renewer", "-n", "kubesvc"]).await;
    }
    let kubeconfig =
        must(world.folder().write("renewer", &target.plane.kubeconfig_for_token(&target.renewer)));
    let kubeconfig = kubeconfig.display().to_string();
    let renewal = ["credential", "create", "prod", "--target-kubeconfig", &kubeconfig, "--preset", "deploy"];
    plugin(world, &renewal).await
}

pub(super) async fn rights_of_the_presets_are_those_of_the_agents_chart(world: &World, target: &Target) {
    for preset in ["view", "deploy", "helm"] {
        must(create(world, target, "chart", &["--preset", preset]).await.ok());
        let role = target.plane.kubectl(["get", "clusterrole", "kubesvc-chart", "-o", "json"]).await;
        let role = json(&must(role.ok()));
        let value = format!("rbac.preset={preset}");
        let values =
            ["template", "a", "charts/kubesvc-agent", "--set", "mode=agent,clusterName=prod,hub.address=h:1"];
        let chart = helm::run(None, values.into_iter().chain(["--set", &value]));
        let chart = charts::read(&must(chart.ok()));
        let wanted = chart.iter().find(|one| one["kind"] == "ClusterRole").expect("a role");
        assert_eq!(role["rules"], wanted["rules"], "{preset}");
    }
}

/// Helm keeps its releases in Secrets.
pub(super) async fn helm_does_everything_with_its_preset_and_only_installs_with_deploy(
    world: &World,
    target: &Target,
) {
    must(target.plane.kubectl(["create", "namespace", "releases"]).await.ok());
    for (preset, may) in [("deploy", false), ("helm", true)] {
        must(create(world, target, "releases", &["--preset", preset]).await.ok());
        let kubeconfig = stored(world, "releases").await;
        let kubeconfig = must(world.folder().write("releases.kubeconfig", &kubeconfig));
        let helm = |arguments: &[&str]| {
            let all = arguments.iter().copied().chain(["--namespace", "releases"]);
            tokio::task::block_in_place(|| helm::run(Some(&kubeconfig), all))
        };
        must(helm(&["install", preset, "tests/transparency/chart"]).ok());
        for rest in [
            &["list", "--all-namespaces"][..],
            &["upgrade", preset, "tests/transparency/chart", "--set", "greeting=hi"],
            &["rollback", preset],
            &["uninstall", preset],
        ] {
            let done = helm(rest);
            assert_eq!(done.code == Some(0), may, "{preset}: {rest:?}: {done:?}");
            assert!(may || done.stderr.contains("secrets is forbidden"), "{preset}: {rest:?}: {done:?}");
        }
    }
}

pub(super) async fn rights_can_be_limited_to_namespaces(world: &World, target: &Target) {
    let limited = ["--preset", "view", "--namespaces", "shop"];
    let missing = create(world, target, "limited", &limited).await;
    assert_eq!(missing.code, Some(1), "{missing:?}");
    assert!(missing.stderr.contains("\"shop\" not found"), "{missing:?}");
    must(target.plane.kubectl(["create", "namespace", "shop"]).await.ok());
    let made = must(create(world, target, "limited", &limited).await.ok());
    let kinds = ["serviceaccount/", "role.rbac", "rolebinding.rbac", "secret/"];
    assert!(kinds.iter().all(|kind| made.contains(kind)) && !made.contains("clusterrole"), "{made}");
    let before = stored(world, "limited").await;
    assert!(before.contains("namespace: \"shop\""));
    let elsewhere = [&limited[..], &["--server", "https://192.0.2.1"]].concat();
    let elsewhere = create(world, target, "limited", &elsewhere).await;
    assert_eq!(elsewhere.code, Some(1), "{elsewhere:?}");
    assert!(elsewhere.stderr.contains("secret/limited is there, and somebody else's"), "{elsewhere:?}");
    assert_eq!(stored(world, "limited").await, before, "the credential of another cluster is not replaced");
}

pub(super) async fn what_is_somebody_elses_is_left_alone(world: &World, target: &Target) {
    let refused = |output: Output, part: &str| {
        assert!(output.code == Some(1) && output.stderr.contains(part), "{part:?} is not in {output:?}");
    };
    let path = must(world.folder().write("powerless", &target.plane.kubeconfig_for_token(&target.powerless)));
    let path = path.display().to_string();
    let weak = ["credential", "create", "refused", "--target-kubeconfig", &path, "--preset", "view"];
    let weak = plugin(world, &weak).await;
    refused(weak, "target cluster: you may not patch serviceaccounts in namespace kubesvc");

    // A cluster without kubesvc's definitions in the operator's place: the contexts were confused.
    let own = world.control_plane().kubeconfig_path().display().to_string();
    let confused = ["credential", "create", "refused", "--target-kubeconfig", &own, "--preset", "view"];
    let confused = run(&target.plane.kubeconfig_path(), confused).await;
    refused(confused, "kubesvc is not installed there");

    let deploy = ["--preset", "deploy"];
    let theirs = ["create", "clusterrole", "kubesvc-refused", "--verb=get", "--resource=pods"];
    must(target.plane.kubectl(theirs).await.ok());
    let output = create(world, target, "refused", &deploy).await;
    refused(output, "clusterrole.rbac.authorization.k8s.io/kubesvc-refused is there, and somebody else's");
    must(target.plane.kubectl(["delete", "clusterrole", "kubesvc-refused"]).await.ok());
    must(
        world.kubectl(&["create", "secret", "generic", "refused", "--from-literal=kubeconfig=b"]).await.ok(),
    );
    refused(create(world, target, "refused", &deploy).await, "secret/refused is there, and somebody else's");
    assert_eq!(stored(world, "refused").await, "b");
    let usage = create(world, target, "refused", &["--preset", "admin"]).await;
    assert_eq!(usage.code, Some(2), "{usage:?}");
}
