//! To the next version and back, by the commands of the page.

use std::path::Path;
use std::time::Instant;

use kubesvc_testkit::folder::Folder;
use kubesvc_testkit::must;

use crate::cluster::{Cluster, INSTALL, NEXT_VERSION, blocks, page, section, told};

const IMAGES: &str =
    "kubectl get pods -n kubesvc -o jsonpath='{range .items[*]}{.spec.containers[0].image}{\"\\n\"}{end}'";
const ROLLED_OUT: &str = "kubectl -n kubesvc rollout status deployment/kubesvc-operator --timeout=2m
kubectl -n kubesvc rollout status statefulset/kubesvc-agent --timeout=2m";

/// Copies both charts as the next version's.
fn next_charts() -> Folder {
    let folder = must(Folder::new("charts"));
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("charts");
    let copy = format!(
        "cp -R {}/. {} && sed -i 's/^\\(version\\|appVersion\\):.*/\\1: {NEXT_VERSION}/' {}/*/Chart.yaml",
        from.display(),
        folder.path().display(),
        folder.path().display()
    );
    let done = std::process::Command::new("sh").args(["-c", &copy]).status();
    assert!(must(done.map_err(|e| e.to_string())).success(), "{copy}");
    folder
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root and a node: make node-test"]
async fn upgrade_and_rollback_keep_accounts_active() {
    let cluster = Cluster::clean().await;
    cluster.sh(INSTALL);
    cluster.make_account("production").await;
    cluster.make_account("staging").await;
    let states = cluster.watch_states().await;
    let charts = next_charts();
    let page = page("docs/upgrade.md").replace(" charts/", &format!(" {}/", charts.path().display()));
    for (title, version) in [("Upgrade\n", NEXT_VERSION), ("Roll back", env!("CARGO_PKG_VERSION"))] {
        let begun = Instant::now();
        blocks(section(&page, title)).iter().for_each(|block| drop(cluster.sh(block)));
        cluster.sh(ROLLED_OUT);
        told(&format!("docs/upgrade.md, {}: to {version}", title.trim()), begun);
        let image = format!("kubesvc:{version}");
        cluster
            .prints(IMAGES, |images| images.lines().count() == 2 && images.lines().all(|each| each == image))
            .await;
        let held =
            "kubectl get ksg -n kubesvc -o jsonpath='{.items[*].status.connected} {.items[*].status.held}'";
        cluster.prints(held, |printed| printed == "true 2").await;
        states.all_active();
    }
}
