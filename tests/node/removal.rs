//! Removal with accounts there, in the right order and in the wrong one.

use std::time::{Duration, Instant};

use kubesvc_testkit::folder::Folder;
use kubesvc_testkit::must;

use crate::cluster::{Cluster, INSTALL, READY, blocks, page, section, told, upgrade_page};

/// What a removal may take, whatever is there.
const REMOVAL: Duration = Duration::from_secs(60);
const DEFINITIONS: &str = "kubectl get crd -o name | grep -c kubesvc.io || true";

async fn installed(gateway: bool) -> &'static Cluster {
    let cluster = Cluster::clean().await;
    let values = format!("--create-namespace --set gateway.enabled={gateway}");
    cluster.sh(&INSTALL.replace("--create-namespace", &values));
    cluster.make_account("production").await;
    cluster.make_account("staging").await;
    cluster
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root and a node: make node-test"]
async fn removal_by_the_page_ends_within_a_minute_and_keeps_what_it_says() {
    let cluster = installed(false).await;
    let folder = must(Folder::new("backup"));
    let page = upgrade_page(&folder);
    let removal = blocks(section(&page, "Remove"));
    let [look, releases, everything] = &removal[..] else { unreachable!("three blocks, not {removal:?}") };
    // Its values, with which the operator comes back to delete the accounts.
    blocks(section(&page, "Back up")).iter().for_each(|block| drop(cluster.sh(block)));
    cluster.sh(look);
    let mut lines = releases.lines();
    let begun = Instant::now();
    cluster.sh(&format!(
        "{}\nkubectl -n kubesvc wait --for=delete pod -l app.kubernetes.io/name=kubesvc-agent --timeout=60s",
        lines.next().expect("agents first")
    ));
    told("helm uninstall of the agent, until its pod is gone", begun);
    assert_eq!(cluster.sh(READY), "1", "the agent's removal leaves the operator");
    let begun = Instant::now();
    cluster.sh(&format!(
        "{}\nkubectl -n kubesvc wait --for=delete pod --all --timeout=60s",
        lines.next().expect("then the operator")
    ));
    told("helm uninstall of the operator, until its pod is gone", begun);
    assert!(begun.elapsed() < REMOVAL, "took {:?}", begun.elapsed());
    assert_eq!(cluster.sh(DEFINITIONS).trim(), "2");
    assert_eq!(cluster.sh("kubectl get ksa -n kubesvc -o name").lines().count(), 2);

    // With accounts that no agent holds any more.
    let begun = Instant::now();
    cluster.sh(&format!("{everything}\nkubectl wait --for=delete namespace/kubesvc --timeout=60s"));
    told("everything removed: two accounts, definitions, namespace", begun);
    assert!(begun.elapsed() < REMOVAL, "took {:?}", begun.elapsed());
    assert_eq!(cluster.sh(DEFINITIONS).trim(), "0");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root and a node: make node-test"]
async fn a_namespace_deleted_with_everything_in_it_is_explained_and_released() {
    let cluster = installed(true).await;
    let begun = Instant::now();
    cluster.sh("kubectl delete namespace kubesvc --wait=false");
    cluster.prints("kubectl get pods -n kubesvc -o name", str::is_empty).await;
    let left = cluster.sh("kubectl get ksa -n kubesvc -o name --ignore-not-found");
    eprintln!(
        "| … accounts that hang after their operator went with the namespace: {} | |",
        left.lines().count()
    );
    let page = page("docs/upgrade.md");
    let gone = blocks(section(&page, "When the operator is gone already"));
    let [look, release, gateway] = &gone[..] else { unreachable!("three blocks, not {gone:?}") };
    // The API server notices within seconds that nobody serves it.
    let unserved = "APIService v1alpha1.proxy.kubesvc.io has no operator behind it";
    cluster.prints(look, |said| said.contains(unserved)).await;
    let said = cluster.sh(look);
    if !left.is_empty() {
        assert!(said.contains("namespace kubesvc is being deleted: it waits for 2 accounts"), "{said}");
    }
    cluster.sh(&format!("{release}\n{gateway}\nkubectl wait --for=delete namespace/kubesvc --timeout=60s"));
    told("the namespace deleted first: explained, released, gone", begun);
    assert!(begun.elapsed() < REMOVAL, "took {:?}", begun.elapsed());
}
