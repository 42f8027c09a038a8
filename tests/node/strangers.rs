//! A pod of somebody else that dials the hub and claims a zone.

use std::time::Instant;

use crate::cluster::{Cluster, INSTALL, told};

const AGENTS: &str = "kubectl get ksg -n kubesvc -o jsonpath='{range .items[*]}{.spec.agentId} {.spec.approved} {.status.held}{\"\\n\"}{end}'";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root and a node: make node-test"]
async fn a_stranger_gets_no_account_even_when_the_approved_agent_is_away() {
    let cluster = Cluster::clean().await;
    let begun = Instant::now();
    cluster.sh(&INSTALL
        .replace("--create-namespace", "--create-namespace --set settings.kubesvc.agents.approval=manual"));
    cluster.prints(AGENTS, |printed| printed.lines().count() == 1).await;
    let rightful = cluster.sh("kubectl get ksg -n kubesvc -o jsonpath='{.items[0].spec.agentId}'");
    cluster.sh(&format!("kubectl kubesvc agents approve {rightful} -n kubesvc"));
    cluster.make_account("production").await;

    cluster.sh("helm install stranger charts/kubesvc-agent -n stranger --create-namespace --set mode=spinnaker-service,zoneId=kubesvc-agent_kubesvc,hub.address=kubesvc-operator.kubesvc.svc:9091");
    let stranger = |printed: &str| {
        let of = printed.lines().find(|line| !line.starts_with(&rightful)).map(str::to_owned);
        of.map(|line| line.split_whitespace().skip(1).map(str::to_owned).collect::<Vec<_>>())
    };
    cluster.prints(AGENTS, |printed| stranger(printed).is_some()).await;
    cluster.sh("kubectl scale statefulset kubesvc-agent -n kubesvc --replicas=0
kubectl -n kubesvc wait --for=delete pod -l app.kubernetes.io/name=kubesvc-agent --timeout=60s");
    // Nobody is left who may hold it.
    cluster.account("production", "ORPHANED").await;
    let seen = stranger(&cluster.sh(AGENTS)).expect("it is connected");
    assert!(!seen.contains(&"true".to_owned()) && !seen.iter().any(|field| field == "1"), "{seen:?}");
    cluster.sh("kubectl scale statefulset kubesvc-agent -n kubesvc --replicas=1");
    cluster.account("production", "ACTIVE").await;
    told("a stranger's pod: connected, not approved, without accounts", begun);
}
