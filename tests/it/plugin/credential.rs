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

/// A target cluster, and the token of a user without rights in it.
pub(super) struct Target {
    plane: Reused,
    powerless: String,
}

impl Target {
    pub(super) async fn start() -> Self {
        let mut options = StartOptions::default();
        let powerless = options.add_user("powerless", &[]);
        Self { plane: must(ControlPlane::reused(options).await), powerless }
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
            "namespace/kubesvc created",
            "serviceaccount/kubesvc-prod created",
            "clusterrole.rbac.authorization.k8s.io/kubesvc-prod created",
            "clusterrolebinding.rbac.authorization.k8s.io/kubesvc-prod created",
            "secret/prod created",
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
    let again = create(world, target, "prod", &["--preset", "deploy"]).await;
    let told = must(again.clone().ok());
    assert!(told.contains("clusterrolebinding.rbac.authorization.k8s.io/kubesvc-prod unchanged"), "{told}");
    assert!(told.contains("secret/prod configured") && !again.stderr.contains("no account"), "{again:?}");
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

pub(super) async fn rights_of_the_presets_are_those_of_the_agents_chart(world: &World, target: &Target) {
    for preset in ["view", "deploy", "helm"] {
        let dry = create(world, target, "dry", &["--preset", preset, "--dry-run", "-o", "json"]).await;
        let dry = must(dry.ok());
        let list = json(&dry);
        let items = list["items"].as_array().expect("a list");
        let role = items.iter().find(|one| one["kind"] == "ClusterRole").expect("a role");
        let value = format!("rbac.preset={preset}");
        let values =
            ["template", "a", "charts/kubesvc-agent", "--set", "mode=agent,clusterName=prod,hub.address=h:1"];
        let chart = helm::run(None, values.into_iter().chain(["--set", &value]));
        let chart = charts::read(&must(chart.ok()));
        let wanted = chart.iter().find(|one| one["kind"] == "ClusterRole").expect("a role");
        assert_eq!(role["rules"], wanted["rules"], "{preset}");
        let secret = items.iter().find(|one| one["kind"] == "Secret").expect("a Secret");
        assert!(secret.get("data").is_none(), "a dry run has no token: {secret}");
    }
    let left =
        must(target.plane.kubectl(["get", "serviceaccounts,clusterroles", "-A", "-o", "name"]).await.ok());
    assert!(!left.contains("kubesvc-dry"), "a dry run changes nothing: {left}");
    assert_eq!(world.api::<Secret>().get_opt("dry").await.ok().flatten(), None);
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

pub(super) async fn rights_can_be_limited_to_namespaces_and_yaml_shows_what_was_made(
    world: &World,
    target: &Target,
) {
    must(create(world, target, "limited", &["--preset", "view"]).await.ok());
    let missing = create(world, target, "limited", &["--preset", "view", "--namespaces", "shop"]).await;
    assert_eq!(missing.code, Some(1), "{missing:?}");
    assert!(missing.stderr.contains("\"shop\" not found"), "{missing:?}");
    must(target.plane.kubectl(["create", "namespace", "shop"]).await.ok());
    let made =
        create(world, target, "limited", &["--preset", "view", "--namespaces", "shop", "-o", "yaml"]).await;
    let yaml = must(made.clone().ok());
    let kinds = ["kind: ServiceAccount", "kind: Role\n", "kind: RoleBinding", "kind: Secret"];
    assert!(kinds.iter().all(|kind| yaml.contains(kind)) && !yaml.contains("ClusterRole"), "{yaml}");
    assert!(yaml.contains("kubeconfig: "), "asked for, the Secret is shown: {yaml}");
    assert!(
        made.stderr.contains("ClusterRoleBinding kubesvc-limited in the target cluster still grants"),
        "{made:?}"
    );
    assert!(stored(world, "limited").await.contains("namespace: \"shop\""));
}

pub(super) async fn nothing_is_made_where_something_speaks_against_it(world: &World, target: &Target) {
    let refused = async |output: Output, part: &str| {
        assert_eq!(output.code, Some(1), "{output:?}");
        assert!(output.stderr.contains(part), "{part:?} is not in {output:?}");
        let left = must(target.plane.kubectl(["get", "sa,clusterroles", "-A", "-o", "name"]).await.ok());
        assert!(!left.contains("serviceaccount/kubesvc-refused"), "{part}: {left}");
    };
    let own = world.control_plane().kubeconfig_path().display().to_string();
    let deploy = ["--preset", "deploy"];
    let same = plugin(
        world,
        &["credential", "create", "refused", "--target-kubeconfig", &own, "--preset", "deploy"],
    )
    .await;
    refused(same, "is the operator's own cluster").await;

    let path = must(world.folder().write("powerless", &target.plane.kubeconfig_for_token(&target.powerless)));
    let path = path.display().to_string();
    let weak = ["credential", "create", "refused", "--target-kubeconfig", &path, "--preset", "view"];
    let weak = plugin(world, &weak).await;
    refused(weak, "target cluster: you may not get serviceaccounts in namespace kubesvc").await;

    // A cluster without kubesvc's definitions in the operator's place: the contexts were confused.
    let confused = ["credential", "create", "refused", "--target-kubeconfig", &own, "--preset", "view"];
    let confused = run(&target.plane.kubeconfig_path(), confused).await;
    refused(confused, "kubesvc is not installed there").await;

    must(world.kubectl(&["create", "secret", "generic", "refused", "--from-literal=a=b"]).await.ok());
    refused(create(world, target, "refused", &deploy).await, "secret/refused is there").await;
    must(world.kubectl(&["delete", "secret", "refused"]).await.ok());
    must(
        target
            .plane
            .kubectl(["create", "clusterrole", "kubesvc-refused", "--verb=get", "--resource=pods"])
            .await
            .ok(),
    );
    refused(
        create(world, target, "refused", &deploy).await,
        "clusterrole.rbac.authorization.k8s.io/kubesvc-refused is there",
    )
    .await;
    must(target.plane.kubectl(["delete", "clusterrole", "kubesvc-refused"]).await.ok());
    let usage = create(world, target, "refused", &["--preset", "admin"]).await;
    assert_eq!(usage.code, Some(2), "{usage:?}");

    must(create(world, target, "refused", &deploy).await.ok());
    let annotate = ["annotate", "secret", "refused", "kubesvc.io/credential-cluster=other", "--overwrite"];
    must(world.kubectl(&annotate).await.ok());
    let other = create(world, target, "refused", &deploy).await;
    assert!(other.code == Some(1) && other.stderr.contains("credential of another cluster"), "{other:?}");
}
