//! The commands of the pages, run as they are written.

use std::time::Duration;

use serde_json::json;

use crate::world::in_repository;
use kubesvc_testkit::controlplane::ControlPlane;
use kubesvc_testkit::folder::Folder;
use kubesvc_testkit::wait::eventually;
use kubesvc_testkit::{helm, must};

/// Maximum wait until the API server has deleted a definition.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Parts of commands that need more than an API server: a builder of images, pods that run, or the controller that empties
/// a namespace.
const NEEDS_MORE: [&str; 4] = ["docker ", " kubesvc wait ", " rollout ", " delete namespace "];

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

/// Runs each command of a block, and returns how many it were.
fn run(plane: &ControlPlane, block: &str) -> usize {
    let mut commands = 0;
    for line in block.lines().filter(|line| !NEEDS_MORE.iter().any(|part| line.contains(part))) {
        let done = tokio::task::block_in_place(|| helm::shell(&plane.kubeconfig_path(), line));
        assert_eq!(done.code, Some(0), "{line}\n{}{}", done.stderr, done.stdout);
        commands += 1;
    }
    commands
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_of_the_install_page_work_in_order() {
    let plane = must(ControlPlane::start().await);
    let page = page("docs/install.md");
    let commands: usize = blocks(&page).map(|block| run(&plane, block)).sum();
    assert!(commands > 10, "only {commands} commands were found");
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_of_the_page_of_modes_and_of_the_readme_work() {
    let plane = must(ControlPlane::start().await);
    let readme = page("README.md");
    let install = readme.split_once("\n## Install it\n").expect("the README has this chapter").1;
    assert_eq!(run(&plane, blocks(install).next().expect("commands")), 2);
    let modes = page("docs/modes.md");
    let commands = blocks(&modes).map(|block| {
        // Each mode in a cluster of its own, but the operator's.
        run(&plane, "helm uninstall kubesvc-agent --namespace kubesvc --ignore-not-found");
        run(&plane, block)
    });
    assert_eq!(commands.sum::<usize>(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_of_the_upgrade_page_restore_and_remove_everything() {
    let plane = must(ControlPlane::start().await);
    let folder = must(Folder::new("backup"));
    let mut page = page("docs/upgrade.md");
    for file in ["kubesvc-objects.yaml", "kubesvc-secrets.yaml", "kubesvc-values.yaml"] {
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
            "kubectl wait --for=condition=Established crd/kubesvcaccounts.kubesvc.io crd/kubesvcagents.kubesvc.io",
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
            ("kubesvcaccounts,kubesvcagents", "{.kind} {.metadata.name} {.spec}"),
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
        before.len() > 8 && before.iter().any(|line| line.contains("production-kubeconfig")),
        "{before:?}"
    );
    assert_eq!(page_says("Back up"), 3);
    run(&plane, "helm uninstall kubesvc kubesvc-agent --namespace kubesvc");
    run(&plane, "kubectl delete crd kubesvcaccounts.kubesvc.io kubesvcagents.kubesvc.io");
    run(&plane, "kubectl delete secret production-kubeconfig --namespace kubesvc");
    assert_eq!(page_says("Restore"), 5);
    assert_eq!(what_counts().await, before);

    run(
        &plane,
        "helm install kubesvc-agent charts/kubesvc-agent --namespace kubesvc --set mode=spinnaker-service",
    );
    assert_eq!(page_says("Remove"), 6);
    let definitions = ["get", "crd", "--output", "name"];
    assert_eq!(must(plane.kubectl(definitions).await.ok()), "");

    install();
    run(
        &plane,
        "kubectl patch ksa/production --namespace kubesvc --type=merge --patch '{\"metadata\":{\"finalizers\":[\"kubesvc.io/account\"]}}'",
    );
    run(&plane, "helm uninstall kubesvc --namespace kubesvc");
    run(&plane, "kubectl delete --wait=false crd kubesvcaccounts.kubesvc.io kubesvcagents.kubesvc.io");
    eventually("the account with the finalizer is left alone", TIMEOUT, async || {
        let left = plane.kubectl(["get", "ksa", "--namespace=kubesvc", "--output=name"]).await.ok()?;
        if left.lines().count() == 1 { Ok(()) } else { Err(left) }
    })
    .await;
    assert_eq!(page_says("When the operator is gone already"), 1);
    eventually("the definitions are gone", TIMEOUT, async || {
        let left = plane.kubectl(definitions).await.ok()?;
        if left.is_empty() { Ok(()) } else { Err(left) }
    })
    .await;
}
