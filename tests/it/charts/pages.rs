//! The commands of the pages, run as they are written.

use std::path::Path;
use std::time::Duration;

use serde_json::json;

use crate::manifests::Overlays;
use crate::world::in_repository;
use kubesvc_testkit::controlplane::{ControlPlane, reused};
use kubesvc_testkit::folder::Folder;
use kubesvc_testkit::kubeconfig::with_contexts;
use kubesvc_testkit::wait::eventually;
use kubesvc_testkit::{helm, must};

/// Maximum wait until the API server has deleted a definition. It waits a minute for the objects of one to go before it
/// tries again.
const TIMEOUT: Duration = Duration::from_secs(150);
/// Parts of commands that need more than an API server: a builder of images, a published release, pods that run, an
/// operator that answers, or the controller that empties a namespace.
const NEEDS_MORE: [&str; 10] = [
    " exec ",
    "{.status.",
    "docker ",
    "oci://",
    " krew ",
    " kubesvc wait ",
    " rollout ",
    " port-forward ",
    "curl ",
    " delete namespace ",
];

fn page(path: &str) -> String {
    must(std::fs::read_to_string(in_repository(path)).map_err(|e| format!("{path}: {e}")))
}

/// A section of a page, without those below it.
fn section<'a>(page: &'a str, title: &str) -> &'a str {
    let found = page.split("\n#").find(|section| section.trim_start_matches(['#', ' ']).starts_with(title));
    found.unwrap_or_else(|| unreachable!("the page has no section {title}"))
}

/// The blocks of commands in a page.
fn blocks(page: &str) -> impl Iterator<Item = &str> {
    page.split("```").skip(1).step_by(2).filter_map(|block| block.strip_prefix("sh\n"))
}

/// Runs a command line where `kubectl kubesvc` is installed too.
fn shell(kubeconfig: &Path, line: &str) -> String {
    let plugin = Path::new(env!("CARGO_BIN_EXE_kubectl-kubesvc")).parent().expect("a folder").display();
    let line = format!("PATH=\"$PATH:{plugin}\"\n{line}");
    let done = tokio::task::block_in_place(|| helm::shell(kubeconfig, &line));
    assert_eq!(done.code, Some(0), "{line}\n{}{}", done.stderr, done.stdout);
    done.stdout
}

/// Runs each command of a block, and returns how many it were.
fn run(plane: &ControlPlane, block: &str) -> usize {
    let mut commands = 0;
    let is_runnable = |line: &&str| {
        !line.trim_start().starts_with('#') && !NEEDS_MORE.iter().any(|part| line.contains(part))
    };
    for line in block.replace("\\\n", "").lines().filter(is_runnable).filter(|line| !line.trim().is_empty()) {
        shell(&plane.kubeconfig_path(), line);
        commands += 1;
    }
    commands
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_of_the_page_of_several_replicas_work_in_order() {
    let plane = reused().await;
    let overlays = Overlays::new();
    let one_with_volume = overlays.write(
        "volume",
        "namespace: kubesvc\nresources: [../config/default]\ncomponents: [../config/components/volume]\n",
    );
    let lease = "apiVersion: coordination.k8s.io/v1\nkind: Lease\n\
                 metadata: {name: kubesvc-operator, namespace: kubesvc}\nspec: {holderIdentity: a}\n";
    let page = page("docs/operating.md")
        // No controller runs the Job, or releases the claim.
        .replace("--for=condition=complete", "--for=create")
        .replace(" delete job/", " delete --wait=false job/");
    let (first, rest) =
        page.split_once("\n### From one replica on SQLite\n").expect("the page has this chapter");
    let mut commands: usize = blocks(first).map(|block| run(&plane, block)).sum();
    must(plane.kubectl(["create", "namespace", "monitoring"]).await.ok());
    must(plane.kubectl_with_input(["apply", "-f", "-"], lease).await.ok());
    let (to_several, rest) = rest.split_once("\n### Back to one replica\n").expect("and this one");
    run(&plane, "kubectl apply -k config/default");
    // Without a volume, and with one. As a whole: a block is pasted.
    let paste = |text: &str| {
        blocks(text)
            .map(|block| shell(&plane.kubeconfig_path(), &format!("set -e\n{block}")))
            .collect::<String>()
    };
    let said = paste(to_several);
    assert!(said.contains("There is no volume to copy from"), "{said}");
    run(&plane, &format!("kubectl apply -k {one_with_volume}"));
    let said = paste(to_several);
    assert!(said.contains("job.batch/kubesvc-copy-database created"), "{said}");
    assert!(!said.contains("There is no volume"), "{said}");
    let job = ["get", "job", "-n", "kubesvc", "-o", "name"];
    let left = must(plane.kubectl(job).await.ok());
    assert!(left.trim().is_empty(), "{left}");
    let runs = async || {
        let replicas = "jsonpath={.spec.replicas} {.spec.strategy.type}";
        let deployment = ["get", "deployment", "kubesvc-operator", "-n", "kubesvc", "-o", replicas];
        must(plane.kubectl(deployment).await.ok())
    };
    assert_eq!(runs().await, "3 RollingUpdate");
    let (to_one, rest) = rest.split_once("\n### Database requirements\n").expect("and this one");
    paste(to_one);
    assert_eq!(runs().await, "1 Recreate");
    commands += blocks(rest).map(|block| run(&plane, block)).sum::<usize>();
    assert_eq!(commands, 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_of_the_install_page_work_in_order() {
    let plane = reused().await;
    let page = page("docs/install.md");
    let commands: usize = blocks(&page).map(|block| run(&plane, block)).sum();
    assert!(commands > 10, "only {commands} commands were found");
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_of_the_page_of_modes_and_of_the_readme_work() {
    let plane = reused().await;
    let readme = page("README.md");
    let install = readme.split_once("\n## Install it\n").expect("the README has this chapter").1;
    assert_eq!(run(&plane, blocks(install).next().expect("commands")), 2);
    let modes = page("docs/modes.md");
    // All modes beside one another, and beside the agent of the README, which the page's first mode would be.
    let commands: usize = blocks(&modes)
        .map(|block| block.replace("helm install kubesvc-agent ", "helm install kubesvc-agent-elsewhere "))
        .map(|block| run(&plane, &block))
        .sum();
    assert_eq!(commands, 4);
    let names = must(plane.kubectl(["get", "statefulsets", "-n", "kubesvc", "-o", "name"]).await.ok());
    assert_eq!(names.lines().count(), 4, "{names}");
    run(
        &plane,
        "helm uninstall kubesvc kubesvc-agent kubesvc-agent-elsewhere kubesvc-agent-east kubesvc-agent-spinnaker --namespace kubesvc",
    );
    let with_kustomize: Vec<_> = blocks(install).skip(1).take(2).map(|block| run(&plane, block)).collect();
    assert_eq!(with_kustomize, [4, 1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_of_the_page_of_credentials_make_and_revoke_one() {
    let (plane, production) = (reused().await, reused().await);
    run(&plane, "helm install kubesvc charts/kubesvc --namespace kubesvc --create-namespace");
    run(&plane, "kubectl wait --for=condition=Established crd/kubesvcaccounts.kubesvc.io");
    let folder = must(Folder::new("credentials"));
    let (operator, target) = (plane.admin_kubeconfig(), production.admin_kubeconfig());
    let kubeconfig = must(with_contexts(&[("operator", &operator), ("production", &target)]));
    let kubeconfig = must(folder.write("kubeconfig", &kubeconfig));
    let page = page("docs/credentials.md");
    let printed: Vec<_> =
        blocks(&page).map(|block| shell(&kubeconfig, &format!("set -e\n{block}"))).collect();
    assert_eq!(printed.len(), 3);
    assert!(printed[0].contains("secret/production applied"), "{printed:?}");
    assert!(printed[1].contains("kubesvcaccount.kubesvc.io/production created"), "{printed:?}");
    let left = ["get", "serviceaccounts,clusterroles,clusterrolebindings", "-A", "-o", "name"];
    let left = must(production.kubectl(left).await.ok());
    assert!(!left.contains("kubesvc-production"), "{left}");
}

/// What the page presupposes: a Spinnaker, and the Secret of an operator that serves the API of accounts.
const CLOUDDRIVER: &str = r#"
kubectl create namespace spinnaker
kubectl create deployment spin-clouddriver -n spinnaker --image=x --dry-run=client -o yaml | sed 's/name: x$/name: clouddriver/' | kubectl apply -f -
kubectl create secret generic kubesvc-gateway -n kubesvc --from-literal=ca.crt=PEM
"#;

#[tokio::test(flavor = "multi_thread")]
async fn commands_of_the_page_beside_clouddriver_work_in_order() {
    let plane = reused().await;
    run(&plane, "helm install kubesvc charts/kubesvc --namespace kubesvc --create-namespace");
    run(&plane, "kubectl wait --for=condition=Established crd/kubesvcaccounts.kubesvc.io");
    shell(&plane.kubeconfig_path(), CLOUDDRIVER);
    let folder = must(Folder::new("authority"));
    let page = page("docs/beside-clouddriver.md")
        .replace("ca.crt\n", &format!("{}\n", folder.file("ca.crt").display()));
    let page = page.replace("--from-file=", "--from-file=ca.crt=");
    assert_eq!(blocks(&page).map(|block| run(&plane, block)).sum::<usize>(), 7);
    let print = async |kind: &str, name: &str, namespace: &str, path: &str| {
        let path = format!("jsonpath={path}");
        must(plane.kubectl(["get", kind, name, "-n", namespace, "-o", &path]).await.ok())
    };
    assert_eq!(print("configmap", "kubesvc-gateway", "spinnaker", "{.data.ca\\.crt}").await, "PEM");
    let pod = "{.spec.template.spec.containers[*].name} {.spec.template.spec.volumes[*].projected.sources[*].configMap.name}";
    assert_eq!(
        print("deployment", "spin-clouddriver", "spinnaker", pod).await,
        "clouddriver kubesvc-gateway"
    );
    let settings = print("configmap", "kubesvc-operator", "kubesvc", "{.data}").await;
    assert!(settings.contains("baseUrl: http://spin-clouddriver.spinnaker:7002"), "{settings}");
}

/// Definitions of the Gateway API by name alone: its module is not a part of the tests.
const GATEWAY_API: &str = r#"
kubectl create -f - <<'YAML'
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: grpcroutes.gateway.networking.k8s.io
  annotations: {api-approved.kubernetes.io: "https://github.com/kubernetes-sigs/gateway-api/pull/891"}
spec:
  group: gateway.networking.k8s.io
  scope: Namespaced
  names: {kind: GRPCRoute, plural: grpcroutes, singular: grpcroute}
  versions:
    - name: v1
      served: true
      storage: true
      schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
YAML
kubectl wait --for=condition=Established crd/grpcroutes.gateway.networking.k8s.io
"#;

#[tokio::test(flavor = "multi_thread")]
async fn commands_of_the_page_that_exposes_the_hub_work_in_order() {
    let plane = reused().await;
    run(&plane, "helm install kubesvc charts/kubesvc --namespace kubesvc --create-namespace");
    run(&plane, "kubectl wait --for=condition=Established crd/kubesvcagents.kubesvc.io");
    shell(&plane.kubeconfig_path(), GATEWAY_API);
    let page = page("docs/expose.md");
    assert_eq!(blocks(&page).map(|block| run(&plane, block)).sum::<usize>(), 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn release_of_several_replicas_goes_back_to_one_on_sqlite() {
    let plane = reused().await;
    let several = "replicas=3,database.existingSecret=kubesvc-database";
    let install = "helm install kubesvc charts/kubesvc --namespace kubesvc --create-namespace --set";
    run(&plane, &format!("{install} {several}"));
    let upgrade = page("docs/upgrade.md");
    let commands = blocks(section(&upgrade, "From several replicas to one")).map(|block| run(&plane, block));
    assert_eq!(commands.sum::<usize>(), 2);
    let one = "jsonpath={.spec.replicas} {.spec.strategy} {.spec.template.spec.containers[0].env[*].name}";
    let deployment = ["get", "deployment", "kubesvc-operator", "-n", "kubesvc", "-o", one];
    let said = must(plane.kubectl(deployment).await.ok());
    assert!(said.starts_with(r#"1 {"type":"Recreate"}"#) && !said.contains("KUBESVC_DATABASE_URL"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_kustomize_installed_goes_on_as_a_release_under_any_name_beside_a_second_one() {
    let plane = reused().await;
    let upgrade = page("docs/upgrade.md");
    let page_says =
        |title: &str| blocks(section(&upgrade, title)).map(|block| run(&plane, block)).sum::<usize>();
    for folder in ["namespace", "crd", "default", "modes/spinnaker-service"] {
        run(&plane, &format!("kubectl apply -k config/{folder}"));
    }
    run(&plane, "kubectl wait --for=condition=Established crd/kubesvcaccounts.kubesvc.io");
    run(&plane, "kubectl apply --namespace kubesvc --kustomize config/samples");
    let print = async |arguments: &[&str]| must(plane.kubectl(arguments.iter().copied()).await.ok());
    let accounts = ["get", "ksa", "-A", "-o", "jsonpath={.items[*].metadata.uid}"];
    let before = print(&accounts).await;
    assert!(!before.is_empty());
    // Objects that a release owns, whatever their kind.
    let release = "jsonpath={range .items[*]}{.metadata.name} {.metadata.annotations.meta\\.helm\\.sh/release-name}{\"\\n\"}{end}";
    let owner = async |kind: &str, name: &str| {
        let listed = print(&["get", kind, "-n", "kubesvc", "-o", release]).await;
        let line = listed.lines().find_map(|line| line.strip_prefix(&format!("{name} ")).map(str::to_owned));
        line.unwrap_or_else(|| unreachable!("no {kind} {name}: {listed}"))
    };

    assert_eq!(page_says("From kustomize to Helm"), 3);
    for (kind, name) in [
        ("deployments", "kubesvc-operator"),
        ("services", "kubesvc-operator"),
        ("roles", "kubesvc-operator-replicas"),
        ("networkpolicies", "kubesvc-operator"),
        ("crds", "kubesvcaccounts.kubesvc.io"),
    ] {
        assert_eq!(owner(kind, name).await, "kubesvc", "{kind} {name}");
    }
    assert_eq!(owner("statefulsets", "kubesvc-agent").await, "kubesvc-agent");

    assert_eq!(page_says("Another name of the release"), 2);
    assert_eq!(owner("deployments", "kubesvc-operator").await, "spinnaker");
    assert_eq!(owner("crds", "kubesvcaccounts.kubesvc.io").await, "spinnaker");

    assert_eq!(page_says("A second operator"), 1);
    let second = print(&["get", "deployments", "-n", "team-b", "-o", "name"]).await;
    assert_eq!(second.trim(), "deployment.apps/kubesvc-b-operator");
    assert_eq!(owner("crds", "kubesvcaccounts.kubesvc.io").await, "spinnaker", "they stay the first one's");
    run(&plane, "helm upgrade spinnaker charts/kubesvc --namespace kubesvc --reset-then-reuse-values");
    run(&plane, "helm uninstall kubesvc-b --namespace team-b");
    assert_eq!(print(&accounts).await, before, "no account was touched");
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_of_the_upgrade_page_restore_and_remove_everything() {
    let plane = reused().await;
    let folder = must(Folder::new("backup"));
    let mut page = page("docs/upgrade.md");
    for file in
        ["kubesvc-objects.json", "kubesvc-secrets.json", "kubesvc-values.yaml", "kubesvc-agent-values.yaml"]
    {
        page = page.replace(file, &folder.file(file).display().to_string());
    }
    let page_says =
        |title: &str| blocks(section(&page, title)).map(|block| run(&plane, block)).sum::<usize>();
    let install = || {
        let operator = "helm upgrade --install kubesvc charts/kubesvc --namespace kubesvc --create-namespace";
        let agent = "helm install kubesvc-agent charts/kubesvc-agent --namespace kubesvc --set mode=spinnaker-service";
        run(&plane, &format!("{operator} --set settings.logging.level=debug\n{agent}"));
        run(
            &plane,
            "kubectl wait --for=condition=Established crd/kubesvcaccounts.kubesvc.io crd/kubesvcagents.kubesvc.io crd/kubesvcidentities.kubesvc.io crd/kubesvcmigrations.kubesvc.io",
        );
        run(&plane, "kubectl apply --namespace kubesvc --kustomize config/samples");
    };
    let agent = json!({
        "apiVersion": "kubesvc.io/v1alpha1",
        "kind": "KubesvcAgent",
        "metadata": {"name": "agent-1", "namespace": "kubesvc"},
        "spec": {"agentId": "agent-1", "zoneId": "east", "approved": true},
    });
    let what_counts = async || {
        let mut counts = Vec::new();
        for (kind, fields) in [
            (
                "kubesvcaccounts,kubesvcagents,kubesvcidentities,kubesvcmigrations",
                "{.kind} {.metadata.name} {.spec}",
            ),
            ("secrets", "{.type} {.metadata.name} {.data}"),
            ("configmaps", "{.metadata.name} {.data}"),
            ("deployments,statefulsets", "{.metadata.name} {.spec.replicas}"),
        ] {
            let each = format!("jsonpath={{range .items[*]}}{fields}{{\"\\n\"}}{{end}}");
            let printed = plane.kubectl(["get", kind, "--namespace=kubesvc", "--output", &each]).await;
            let printed = must(printed.ok());
            let lines = printed.lines().filter(|line| !line.starts_with("helm.sh/release"));
            counts.extend(lines.filter(|line| !line.starts_with("kubesvc-agent")).map(str::to_owned));
        }
        counts
    };

    install();
    must(plane.kubectl_with_input(["apply", "-f", "-"], &agent.to_string()).await.ok());
    assert_eq!((page_says("Upgrade\n"), page_says("Roll back")), (2, 2));
    let before = what_counts().await;
    assert!(
        before.len() > 8 && before.iter().any(|line| line.contains("sample-production-kubeconfig")),
        "{before:?}"
    );
    assert_eq!(page_says("Back up"), 4);
    // Without the releases, and with them.
    for releases in ["kubesvc kubesvc-agent", ""] {
        if !releases.is_empty() {
            run(&plane, &format!("helm uninstall {releases} --namespace kubesvc"));
        }
        run(
            &plane,
            "kubectl delete crd kubesvcaccounts.kubesvc.io kubesvcagents.kubesvc.io kubesvcidentities.kubesvc.io kubesvcmigrations.kubesvc.io",
        );
        run(&plane, "kubectl delete secret sample-production-kubeconfig --namespace kubesvc");
        assert_eq!(page_says("Restore"), 6);
        assert_eq!(what_counts().await, before, "after {releases:?} were uninstalled");
        must(plane.kubectl(["get", "statefulset", "kubesvc-agent", "--namespace=kubesvc"]).await.ok());
    }
    // Over objects that exist, and of which some have changed.
    run(
        &plane,
        r#"kubectl patch ksg/agent-1 --namespace kubesvc --type=merge --patch '{"spec":{"approved":false}}'"#,
    );
    assert_eq!(page_says("Restore"), 6);
    assert_eq!(what_counts().await, before, "after a restore over what is there");

    assert_eq!(page_says("Remove"), 7);
    let definitions = ["get", "crd", "--output", "name"];
    assert_eq!(must(plane.kubectl(definitions).await.ok()), "");

    install();
    run(&plane, "kubectl create namespace team-a");
    run(&plane, "kubectl apply --namespace team-a --kustomize config/samples");
    for namespace in ["kubesvc", "team-a"] {
        let finalizers = r#"{"metadata":{"finalizers":["kubesvc.io/account"]}}"#;
        run(
            &plane,
            &format!(
                "kubectl patch ksa/sample-production --namespace {namespace} --type=merge --patch '{finalizers}'"
            ),
        );
    }
    run(&plane, "helm uninstall kubesvc --namespace kubesvc");
    run(
        &plane,
        "kubectl delete --wait=false crd kubesvcaccounts.kubesvc.io kubesvcagents.kubesvc.io kubesvcidentities.kubesvc.io kubesvcmigrations.kubesvc.io",
    );
    eventually("the accounts with the finalizer are left alone", TIMEOUT, async || {
        let left = plane.kubectl(["get", "ksa", "--all-namespaces", "--output=name"]).await.ok()?;
        if left.lines().count() == 2 { Ok(()) } else { Err(left) }
    })
    .await;
    let report = shell(&plane.kubeconfig_path(), "kubectl kubesvc uninstall --dry-run");
    for part in [
        "definition kubesvcaccounts.kubesvc.io is being deleted: it waits for 2 accounts with a finalizer",
        "kubesvc/sample-production",
        "team-a/sample-production",
        "; their finalizer kubesvc.io/account is the operator's, and no operator runs",
        "patch --type=merge",
    ] {
        assert!(report.contains(part), "{part:?} is missing:\n{report}");
    }
    assert_eq!(page_says("When the operator is gone already"), 3);
    eventually("the definitions are gone", TIMEOUT, async || {
        let left = plane.kubectl(definitions).await.ok()?;
        if left.is_empty() { Ok(()) } else { Err(left) }
    })
    .await;
}
