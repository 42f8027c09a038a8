//! Whole pages, block by block as they are pasted, in the order of the page.

use std::time::Instant;

use kubesvc_testkit::databases::Kind;
use kubesvc_testkit::folder::Folder;
use kubesvc_testkit::must;
use sqlx::Connection as _;

use crate::cluster::{
    Cluster, DATABASE, INSTALL, READY, ROLLED_OUT, Walk, blocks, page, put, section, told, upgrade_page,
};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root and a node: make node-test"]
async fn the_page_of_modes_works_in_order_in_one_namespace() {
    let cluster = Cluster::clean().await;
    let install = page("docs/install.md");
    let first = blocks(section(&install, "The first account"));
    cluster.sh(first[0].lines().next().expect("the operator comes first"));
    let hub = "hub.address=kubesvc-operator.kubesvc.svc:9091,hub.tls.enabled=false";
    let page = put(&page("docs/modes.md"), &[("hub.address=hub.example.com:443,hub.tls.enabled=true", hub)]);
    let mut walk = Walk::of(cluster, "docs/modes.md", &page);
    walk.on("Agent", 1);
    cluster.account("production", "ACTIVE").await;
    walk.on("Infrastructure", 1);
    walk.on("Spinnaker Service", 1);
    walk.ends();
    cluster.sh("kubectl -n kubesvc rollout status statefulset/kubesvc-agent-east --timeout=2m
kubectl -n kubesvc rollout status statefulset/kubesvc-agent-spinnaker --timeout=2m");
    cluster.make_account("testing").await;
    // The Secret's first content is no kubeconfig: the account failed, and is tried again when somebody says so.
    cluster.account("staging", "FAILED").await;
    let begun = Instant::now();
    let folder = must(Folder::new("modes"));
    let kubeconfig = folder.file("staging.kubeconfig");
    must(std::fs::copy(cluster.kubeconfig(), &kubeconfig).map_err(|e| e.to_string()));
    cluster.sh(&format!(
        "kubectl -n kubesvc create secret generic kubesvc-agent-kubeconfigs --from-file=staging={} --dry-run=client -o yaml | kubectl apply --server-side --force-conflicts -f -",
        kubeconfig.display()
    ));
    let retry =
        "kubectl --namespace kubesvc annotate ksa/staging kubesvc.io/retry=\"$(date +%s)\" --overwrite";
    assert!(page.replace('\n', " ").contains(retry), "the page says so");
    let state =
        format!("{retry} >/dev/null && kubectl get ksa staging -n kubesvc -o jsonpath='{{.status.state}}'");
    cluster.prints(&state, |printed| printed == "ACTIVE").await;
    told("… the Secret filled in practice: its account ACTIVE", begun);
    cluster.account("production", "ACTIVE").await;

    // The same without Helm, one after the other: they have one name.
    let begun = Instant::now();
    let place = folder.path().display();
    cluster.sh(&format!(
        "helm uninstall kubesvc-agent kubesvc-agent-east kubesvc-agent-spinnaker --namespace kubesvc
cp -r config {place}/config
sed -i 's/${{HUB_ADDRESS}}/kubesvc-operator.kubesvc.svc:9091/; s/${{ZONE_ID}}/west/; s/${{CLUSTER_NAME}}/production/' {place}/config/modes/*/armory-agent.yml"
    ));
    for mode in ["agent", "infrastructure", "spinnaker-service"] {
        let apply = format!("kubectl apply -k config/modes/{mode}");
        assert!(page.contains(&apply), "the page says so: {apply}");
        cluster.sh(&format!(
            "cd {place}
kubectl -n kubesvc delete statefulset/kubesvc-agent --ignore-not-found
kubectl -n kubesvc wait --for=delete pod -l app.kubernetes.io/name=kubesvc-agent --timeout=1m
{apply}
kubectl -n kubesvc rollout status statefulset/kubesvc-agent --timeout=2m"
        ));
        if mode == "agent" {
            cluster.account("production", "ACTIVE").await;
        }
    }
    told("… each mode without Helm", begun);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root and a node: make node-test"]
async fn the_page_of_several_replicas_works_in_order() {
    let cluster = Cluster::clean().await;
    let readme = page("README.md");
    let install = blocks(readme.split_once("\n## Install it\n").expect("the README has this chapter").1);
    let [_, one_replica, three_replicas, ..] = &install[..] else {
        unreachable!("three blocks: {install:?}")
    };
    let begun = Instant::now();
    cluster.sh(one_replica);
    cluster.make_account("production").await;
    told("README: kustomize, and an account of the operator", begun);
    cluster.sh("kubectl create namespace monitoring");
    let states = cluster.watch_states().await;

    let (url, server) = cluster.database(Kind::PostgreSql).await;
    let rest = cluster.sh("kubectl get service kubesvc-operator -n kubesvc -o jsonpath='{.spec.clusterIP}'");
    let page =
        put(&page("docs/operating.md"), &[(DATABASE, &url), ("http://HUB:", &format!("http://{rest}:"))]);
    // `HUB` of docs/rest.md, and port-forward of step 5.
    let page = page
        .replace("\"$HUB/", &format!("\"http://{rest}:7002/"))
        .replace(" localhost:7002/", &format!(" {rest}:7002/"));
    let (three, others) =
        page.split_once("\n### From one replica on SQLite\n").expect("the page has this chapter");
    let mut steps = Walk::of(cluster, "docs/operating.md", three);
    let mut walk = Walk::of(cluster, "docs/operating.md", others);
    steps.on("Three replicas: the Secret", 1);
    // The page: if one replica on SQLite runs, it is replaced instead.
    let said = walk.on("From one replica on SQLite", 4);
    assert!(said.contains("There is no volume to copy from"), "{said}");
    steps.on("Three replicas: nothing is left to apply", 1);
    assert_eq!(cluster.sh(READY), "3");
    let said = steps.on("Three replicas: the check", 1);
    assert_eq!(said.matches("baseUrl").count(), 3, "{said}");
    steps.ends();
    cluster.account("production", "ACTIVE").await;
    states.all_active();

    walk.on("Back to one replica", 1);
    cluster.sh(ROLLED_OUT);
    assert_eq!(cluster.sh(READY), "1");
    cluster.account("production", "ACTIVE").await;
    let said = walk.on("Who leads", 1);
    assert!(said.contains("\"status\":\"UP\"") && said.contains("leader"), "{said}");
    walk.on("Watch it, and What runs in the background", 2);
    let said = walk.on("Agents at any replica", 2);
    assert!(said.contains("kubesvc-agent_kubesvc"), "{said}");
    let said = walk.on("How replicas find one another", 1);
    assert!(said.contains("http://") && said.contains("true"), "{said}");
    walk.ends();

    // The README's way: in place of the one replica.
    let begun = Instant::now();
    cluster.sh("kubectl -n kubesvc delete deployment/kubesvc-operator");
    cluster.sh(&format!("{three_replicas}\n{ROLLED_OUT}"));
    assert_eq!(cluster.sh(READY), "3");
    cluster.account("production", "ACTIVE").await;
    told("README: three replicas in place of config/default", begun);
    states.all_active();

    // Once more from one replica, whose file is on a volume: its rows go along, those that are not kubesvc's included.
    let volume = one_replica_with_a_volume(cluster);
    cluster.account("production", "ACTIVE").await;
    let empty = server.0.fresh_database().await;
    let of_pods = empty.replace("127.0.0.1", &cluster.node.address().to_string());
    cluster.sh(&format!(
        "kubectl -n kubesvc create secret generic kubesvc-database --from-literal=url='{of_pods}' --dry-run=client -o yaml | kubectl apply --server-side --force-conflicts -f -"
    ));
    let mut walk = Walk::of(cluster, "docs/operating.md, with a volume", others);
    walk.on("From one replica on SQLite: stopped", 1);
    let file = format!("sqlite://{}", volume.file("volume/kubesvc.db").display());
    let row = "INSERT INTO kubesvc_accounts (name, status, zone_id) VALUES ('theirs', 'ACTIVE', 'z')";
    let inserted = async {
        let mut connection = sqlx::SqliteConnection::connect(&file).await?;
        sqlx::query(row).execute(&mut connection).await?;
        connection.close().await
    };
    must(inserted.await.map_err(|e| e.to_string()));
    let said = walk.on("From one replica on SQLite: the copy", 1);
    assert!(said.contains("job.batch/kubesvc-copy-database condition met"), "{said}");
    let database = empty.rsplit('/').next().expect("a name");
    // It divides by zero where there is none.
    must(server.0.execute(database, "SELECT 1 / count(*) FROM kubesvc_accounts WHERE name = 'theirs'").await);
    walk.on("From one replica on SQLite: three replicas", 2);
    cluster.sh(ROLLED_OUT);
    assert_eq!(cluster.sh(READY), "3");
    cluster.account("production", "ACTIVE").await;
    assert_eq!(cluster.sh("kubectl -n kubesvc get pvc,job -o name"), "");
    cluster.sh("kubectl delete pv/kubesvc-test");
    states.all_active();
}

/// Puts one replica with `config/components/volume` in place of three, as the component says, on a volume in this folder.
fn one_replica_with_a_volume(cluster: &Cluster) -> Folder {
    let begun = Instant::now();
    let folder = must(Folder::new("volume"));
    let place = folder.path().display();
    cluster.sh(&format!(
        "mkdir {place}/volume {place}/mine
chmod 777 {place}/volume
kubectl apply -f - <<'YAML'
apiVersion: v1
kind: PersistentVolume
metadata: {{name: kubesvc-test}}
spec:
  accessModes: [ReadWriteOnce]
  capacity: {{storage: 1Gi}}
  hostPath: {{path: {place}/volume}}
YAML
config=$(realpath --relative-to={place}/mine config)
cat >{place}/mine/kustomization.yaml <<YAML
namespace: kubesvc
resources: [$config/default]
components: [$config/components/volume]
YAML
kubectl -n kubesvc delete deployment/kubesvc-operator
kubectl apply -k {place}/mine
{ROLLED_OUT}"
    ));
    told("config/default with config/components/volume in place of three replicas", begun);
    folder
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root and a node: make node-test"]
async fn the_page_of_upgrades_works_in_order_from_the_first_block_to_the_last() {
    let cluster = Cluster::clean().await;
    cluster.sh(INSTALL);
    cluster.make_account("production").await;
    let folder = must(Folder::new("upgrade"));
    let mut walk = Walk::of(cluster, "docs/upgrade.md", &upgrade_page(&folder));
    let states = cluster.watch_states().await;
    walk.on("Upgrade", 1);
    walk.on("Roll back", 1);
    cluster.sh(ROLLED_OUT);
    cluster.account("production", "ACTIVE").await;
    states.all_active();

    // For those who have installed with kustomize.
    let cluster = Cluster::clean().await;
    let install = page("docs/install.md");
    blocks(section(&install, "Without Helm")).iter().for_each(|block| drop(cluster.sh(block)));
    cluster.make_account("production").await;
    let states = cluster.watch_states().await;
    walk.on("From kustomize to Helm", 1);
    cluster.sh(ROLLED_OUT);
    walk.on("Another name of the release", 1);
    cluster.sh(ROLLED_OUT);
    walk.on("A second operator", 1);
    cluster.sh("kubectl -n team-b rollout status deployment/kubesvc-b-operator --timeout=2m");
    cluster.account("production", "ACTIVE").await;
    states.all_active();
    // Back to the name of the other pages, and to three replicas, from which the page goes on.
    let (url, _server) = cluster.database(Kind::PostgreSql).await;
    cluster.sh("helm uninstall kubesvc-b --namespace team-b
helm uninstall spinnaker --namespace kubesvc
helm install kubesvc charts/kubesvc --namespace kubesvc --take-ownership");
    let several = put(section(&install, "From one replica to several"), &[(DATABASE, &url)]);
    blocks(&several).iter().for_each(|block| drop(cluster.sh(block)));
    cluster.sh(ROLLED_OUT);
    walk.on("From several replicas to one", 1);
    cluster.sh(ROLLED_OUT);
    assert_eq!(cluster.sh(READY), "1");
    cluster.account("production", "ACTIVE").await;
    states.all_active();
    drop(states);

    walk.on("Back up", 1);
    let said = walk.on("Restore, over what is there", 2);
    assert!(said.contains("There is nothing to claim") || said.contains("already"), "{said}");
    cluster.account("production", "ACTIVE").await;
    walk.on("Remove", 3);
    cluster.sh("kubectl wait --for=delete namespace/kubesvc --timeout=60s");
    walk.on("When the operator is gone already", 3);
    walk.ends();
    let left = "kubectl get crd,namespace,apiservice -o name | grep kubesvc || true";
    assert_eq!(cluster.sh(left), "");
}
