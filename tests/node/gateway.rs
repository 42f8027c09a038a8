//! kubectl through an agent to a real kubelet: logs, exec and port-forward, with the agent's own service account.

use std::time::Instant;

use kubesvc_testkit::ports;

use crate::cluster::{Cluster, blocks, page, section, told};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root and a node: make node-test"]
async fn logs_exec_and_port_forward_reach_pods_through_an_agent_of_mode_agent() {
    let cluster = Cluster::clean().await;
    let install = page("docs/install.md");
    let blocks = blocks(section(&install, "The first account"));
    let begun = Instant::now();
    for block in &blocks {
        // Neither is there by default: whoever may run programs in pods may do what the pods may.
        let rights = r#"--set-json 'rbac.extraRules=[{"apiGroups":[""],"resources":["pods/exec","pods/portforward"],"verbs":["create","get"]}],settings.kubernetes.requests.allow=["read","write","connect"]' --set mode=agent"#;
        cluster.sh(&block.replace("--set mode=agent", rights));
    }
    cluster.sh(
        "helm upgrade kubesvc charts/kubesvc -n kubesvc --reset-then-reuse-values --set gateway.enabled=true
kubectl -n kubesvc rollout status deployment/kubesvc-operator --timeout=2m
kubectl wait --for=condition=Available apiservice/v1alpha1.proxy.kubesvc.io --timeout=2m",
    );
    cluster.account("here", "ACTIVE").await;
    // Its agent dials the restarted operator again within seconds.
    let get_pods = "kubectl kubesvc on here -n kubesvc -- get pods -n kubesvc -o name";
    cluster.prints(get_pods, |pods| pods.lines().count() == 2).await;
    let on = |command: &str| cluster.sh(&format!("kubectl kubesvc on here -n kubesvc -- {command}"));
    let pods = on("get pods -n kubesvc -o name");
    assert_eq!(pods.lines().count(), 2, "{pods}");
    let operator = pods.lines().find(|pod| pod.contains("operator")).expect("the operator's pod");

    let logs = on(&format!("logs -n kubesvc {operator}"));
    assert!(logs.contains("kubesvc"), "{logs}");
    let version = on(&format!("exec -n kubesvc {operator} -- kubesvc-operator --version"));
    assert!(version.contains(env!("CARGO_PKG_VERSION")), "{version}");
    let port = ports::free();
    let health = cluster.sh(&format!(
        "kubectl kubesvc on here -n kubesvc -- port-forward -n kubesvc {operator} {port}:7002 >/dev/null & forward=$!
trap 'kill $forward' EXIT
for attempt in $(seq 100); do curl -sf http://127.0.0.1:{port}/health && exit; sleep 0.1; done
exit 1"
    ));
    assert!(health.contains("UP"), "{health}");
    let deployment = "create deployment pause --image=kubesvc.test/pause:1 -n default";
    on(deployment);
    on("rollout status deployment/pause -n default --timeout=60s");
    let pod = on("get pods -n default -l app=pause -o name");
    let attached = cluster.try_sh(&format!(
        "timeout 20 kubectl kubesvc on here -n kubesvc -- exec -n default {} -- /no-such-program",
        pod.trim()
    ));
    assert!(attached.code != Some(0) && attached.stderr.contains("no-such-program"), "{}", attached.stderr);
    on("delete deployment pause -n default");
    told("mode Agent: get, logs, exec, port-forward, a Deployment, through the gateway", begun);
}
