//! A lost cluster, restored from its backup, with the garbage collector and the controller of namespaces at work.

use std::collections::BTreeMap;
use std::time::Instant;

use kubesvc_testkit::folder::Folder;
use kubesvc_testkit::must;

use crate::cluster::{Cluster, INSTALL, blocks, section, told, upgrade_page};

/// An agent that has an account of its own, for the cluster that it runs in.
const OWN_CLUSTER: &str = "helm install own charts/kubesvc-agent -n kubesvc --set mode=agent,clusterName=here,hub.address=kubesvc-operator.kubesvc.svc:9091";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root and a node: make node-test"]
async fn every_account_and_credential_comes_back_from_the_backup() {
    let cluster = Cluster::clean().await;
    cluster.sh(INSTALL);
    let names = ["production", "staging", "testing"];
    for name in names {
        cluster.make_account(name).await;
    }
    cluster.sh(OWN_CLUSTER);
    cluster
        .prints("kubectl get ksa -n kubesvc -o name", |printed| printed.lines().count() == names.len() + 1)
        .await;
    cluster.account("here", "ACTIVE").await;
    let folder = must(Folder::new("backup"));
    let page = upgrade_page(&folder);
    let run = |title: &str| blocks(section(&page, title)).iter().for_each(|block| drop(cluster.sh(block)));
    let secrets = || -> BTreeMap<String, String> {
        let all = cluster.json("kubectl get secrets -n kubesvc --field-selector type=Opaque -o json");
        let items = all["items"].as_array().into_iter().flatten();
        let data = |one: &serde_json::Value| (one["metadata"]["name"].to_string(), one["data"].to_string());
        items.map(data).filter(|(name, _)| names.iter().any(|account| name.contains(account))).collect()
    };
    let before = secrets();
    assert_eq!(before.len(), names.len(), "{:?}", before.keys());
    run("Back up");

    let begun = Instant::now();
    cluster.sh(
        "kubectl delete namespace kubesvc --wait=false
kubectl delete crd kubesvcaccounts.kubesvc.io kubesvcagents.kubesvc.io kubesvcidentities.kubesvc.io kubesvcmigrations.kubesvc.io --wait=false
kubectl -n kubesvc wait --for=delete pod --all --timeout=60s
kubectl --namespace kubesvc get kubesvcaccounts --output name | xargs -r -n 1 kubectl --namespace kubesvc patch --type=merge --patch '{\"metadata\":{\"finalizers\":null}}' || true
kubectl wait --for=delete namespace/kubesvc crd/kubesvcaccounts.kubesvc.io crd/kubesvcagents.kubesvc.io crd/kubesvcidentities.kubesvc.io crd/kubesvcmigrations.kubesvc.io --timeout=90s",
    );
    told("wiped: namespace, definitions, all objects", begun);
    let begun = Instant::now();
    // Cluster-wide objects of the lost release are taken over by the new one.
    run("Restore");
    cluster.sh(OWN_CLUSTER);
    for name in names.into_iter().chain(["here"]) {
        cluster.account(name, "ACTIVE").await;
    }
    told("restored: three accounts of the operator and one of an agent ACTIVE", begun);
    assert_eq!(secrets(), before);
}
