//! From nothing to the first account, by the commands of the pages.

use std::time::{Duration, Instant};

use kubesvc_testkit::databases::Kind;

use crate::cluster::{Cluster, DATABASE, READY, ROLLED_OUT, blocks, page, put, section, told};

/// What a newcomer may wait besides pulling an image.
const NEWCOMER: Duration = Duration::from_secs(60);
const STATE: &str = "kubectl get ksa here -n kubesvc -o jsonpath='{.status.state}'";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root and a node: make node-test"]
async fn three_commands_of_the_install_page_make_an_account_active_in_restricted_pods() {
    let cluster = Cluster::clean().await;
    let page = page("docs/install.md");
    let commands = blocks(section(&page, "The first account"));
    assert_eq!(commands.iter().map(|block| block.lines().count()).sum::<usize>(), 3);
    let begun = Instant::now();
    commands.iter().for_each(|block| drop(cluster.sh(block)));
    assert_eq!(cluster.sh(STATE), "ACTIVE");
    told("docs/install.md: three commands to ACTIVE", begun);
    assert!(begun.elapsed() < NEWCOMER, "took {:?}", begun.elapsed());

    for release in ["kubesvc", "kubesvc-agent"] {
        cluster.sh(&format!("helm test {release} -n kubesvc --timeout 1m --logs"));
    }

    // Not what the manifests ask for, but what runs.
    for program in ["kubesvc-operator", "kubesvc-agent"] {
        let status = format!("cat /proc/$(pgrep -o -x {})/status", &program[..15.min(program.len())]);
        let status = cluster.sh(&status);
        let has = |line: &str| {
            status.lines().any(|each| each.split_whitespace().collect::<Vec<_>>().join(" ") == line)
        };
        assert!(has("Uid: 65532 65532 65532 65532"), "{program}: {status}");
        assert!(
            has("CapEff: 0000000000000000") && has("NoNewPrivs: 1") && has("Seccomp: 2"),
            "{program}: {status}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root and a node: make node-test"]
async fn the_install_page_works_in_order_up_to_three_replicas() {
    let cluster = Cluster::clean().await;
    let (url, _server) = cluster.database(Kind::PostgreSql).await;
    let whole = page("docs/install.md");
    let helm = whole.split_once("\n## Without Helm").expect("the page has this chapter").0;
    let helm = put(helm, &[(DATABASE, &url)]);
    let begun = Instant::now();
    let mut states = None;
    for block in blocks(&helm) {
        cluster.sh(&block);
        if states.is_none() {
            states = Some(cluster.watch_states().await);
        }
    }
    cluster.sh(ROLLED_OUT);
    assert_eq!(cluster.sh(READY), "3");
    cluster.account("here", "ACTIVE").await;
    let held =
        "kubectl get ksg -n kubesvc -o jsonpath='{.items[*].status.connected} {.items[*].status.held}'";
    cluster.prints(held, |printed| printed == "true 1").await;
    told("docs/install.md in order: restricted, two more namespaces, three replicas on PostgreSQL", begun);
    states.expect("the page has commands").all_active();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root and a node: make node-test"]
async fn the_commands_of_the_readme_and_those_without_helm_run_pods() {
    let cluster = Cluster::clean().await;
    let readme = page("README.md");
    let install = readme.split_once("\n## Install it\n").expect("the README has this chapter").1;
    let begun = Instant::now();
    cluster.sh(&blocks(install)[0]);
    assert_eq!(cluster.sh(STATE), "ACTIVE");
    told("README: Helm, and the account of its cluster", begun);

    let cluster = Cluster::clean().await;
    let begun = Instant::now();
    let page = page("docs/install.md");
    blocks(section(&page, "Without Helm")).iter().for_each(|block| drop(cluster.sh(block)));
    cluster.make_account("production").await;
    told("docs/install.md without Helm, and an account of the operator", begun);
}
