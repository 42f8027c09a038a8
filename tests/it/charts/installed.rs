//! The charts on a real API server, by the real Helm.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::{BY_GATEWAY, agents, operators, read};
use crate::world::in_repository;
use kubesvc_testkit::controlplane::{ControlPlane, reused, shared};
use kubesvc_testkit::folder::Folder;
use kubesvc_testkit::kubectl::Output;
use kubesvc_testkit::{helm, must};

fn helm(plane: &ControlPlane, arguments: &[&str]) -> Output {
    tokio::task::block_in_place(|| helm::run(Some(&plane.kubeconfig_path()), arguments.iter().copied()))
}

/// Runs Helm and fails the test if it fails or warns.
fn helm_ok(plane: &ControlPlane, arguments: &[&str]) {
    let said = helm(plane, arguments);
    assert!(!said.stderr.to_lowercase().contains("warn"), "{arguments:?}: {}", said.stderr);
    must(said.ok().map_err(|e| format!("{arguments:?}: {e}")));
}

async fn get(plane: &ControlPlane, arguments: &[&str]) -> Value {
    let all = ["get", "-n", super::NAMESPACE, "-o", "json"].iter().chain(arguments);
    let printed = must(plane.kubectl(all).await.ok().map_err(|e| format!("{arguments:?}: {e}")));
    serde_json::from_str(&printed).expect("kubectl prints JSON")
}

#[tokio::test(flavor = "multi_thread")]
async fn every_render_is_accepted_under_restricted_pod_security() {
    let plane = shared().await;
    let namespace = plane.namespace().await;
    let levels =
        ["pod-security.kubernetes.io/enforce=restricted", "pod-security.kubernetes.io/warn=restricted"];
    must(plane.kubectl(["label", "namespace", namespace.name()].iter().chain(&levels)).await.ok());
    let exposed = ["expose.type=LoadBalancer", "expose.loadBalancer.sourceRanges={203.0.113.7/32}"];
    let more = ["services.aliases.enabled=true", "extraEnv[0].name=RUST_LOG", "extraEnv[0].value=debug"];
    let mut every: Vec<_> = operators().into_iter().map(|values| ("kubesvc", values)).collect();
    every.push(("kubesvc", [exposed.as_slice(), more.as_slice()].concat()));
    every.push(("kubesvc", vec!["gateway.enabled=true"]));
    every.push(("kubesvc", BY_GATEWAY.to_vec()));
    every.extend(agents().into_iter().map(|values| ("kubesvc-agent", values)));
    let (mut all, mut pods) = (Vec::new(), Vec::new());
    for (index, (chart, values)) in every.iter().enumerate() {
        let folder = format!("charts/{chart}");
        let mut arguments = vec!["template", *chart, folder.as_str(), "-n", namespace.name()];
        values.iter().for_each(|value| arguments.extend(["--set", value]));
        let definitions = format!("crds.enabled={}", index == 0);
        if *chart == "kubesvc" {
            arguments.extend(["--set", &definitions]);
        }
        let rendered = must(tokio::task::block_in_place(|| helm::run(None, arguments)).ok());
        for object in read(&rendered) {
            if object["spec"]["template"]["spec"].is_object() {
                // Pod Security only warns about what makes pods.
                let mut pod = object["spec"]["template"].clone();
                (pod["apiVersion"], pod["kind"]) = (json!("v1"), json!("Pod"));
                pod["metadata"]["name"] = json!(format!("pod-{index}"));
                pod["metadata"]["namespace"] = json!(namespace.name());
                pods.push(pod);
            }
            // The Gateway API is not a part of the tests.
            let group = object["apiVersion"].as_str().unwrap_or_default();
            if !group.starts_with("gateway.networking.k8s.io/") {
                all.push(object);
            }
        }
    }
    assert_eq!(pods.len(), every.len());
    let how = ["apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", "-"];
    for objects in [all, pods] {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string();
        let taken = plane.kubectl_with_input(how, &list).await;
        assert!(!taken.stderr.contains("Warning"), "{}", taken.stderr);
        must(taken.ok());
    }
}

/// A copy of the operator's chart as an older release would have it: another text in a definition.
fn older_chart() -> (Folder, String) {
    let folder = must(Folder::new("older"));
    let to = folder.file("kubesvc");
    must(copy(Path::new(&in_repository("charts/kubesvc")), &to).map_err(|e| e.to_string()));
    let file = to.join("files/crds/kubesvcagents.yaml");
    let text = must(fs::read_to_string(&file).map_err(|e| e.to_string()));
    assert!(text.contains("- ksg\n"), "the short name that this test changes");
    must(fs::write(&file, text.replace("- ksg\n", "- kagent\n")).map_err(|e| e.to_string()));
    let path = to.display().to_string();
    (folder, path)
}

fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &to)?;
        } else {
            fs::copy(entry.path(), &to)?;
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn upgrade_installs_crds_and_uninstall_keeps_them_and_the_accounts() {
    let plane = reused().await;
    let (_folder, older) = older_chart();
    let release = ["kubesvc", "charts/kubesvc", "-n", "kubesvc"];
    helm_ok(&plane, &["install", "kubesvc", &older, "-n", "kubesvc", "--create-namespace"]);
    let short_name = async || {
        let definition = get(&plane, &["crd", "kubesvcagents.kubesvc.io"]).await;
        definition["spec"]["names"]["shortNames"][0].clone()
    };
    assert_eq!(short_name().await, "kagent");
    helm_ok(&plane, &[&["upgrade"], &release[..]].concat());
    assert_eq!(short_name().await, "ksg", "an upgrade brings the definitions");

    let samples = in_repository("config/samples");
    must(plane.kubectl(["apply", "-n", "kubesvc", "-k", &samples]).await.ok());
    let accounts = async || {
        let all = get(&plane, &["kubesvcaccounts"]).await;
        all["items"].as_array().map_or(0, Vec::len)
    };
    assert!(accounts().await > 3);

    let agent = ["install", "kubesvc-agent", "charts/kubesvc-agent", "-n", "kubesvc"];
    helm_ok(&plane, &[&agent[..], &["--set", "mode=spinnaker-service"]].concat());
    helm_ok(&plane, &["uninstall", "kubesvc-agent", "-n", "kubesvc"]);
    let deployment = get(&plane, &["deployment", "kubesvc-operator"]).await;
    assert_eq!(deployment["spec"]["replicas"], 1, "the agent's removal leaves the operator");

    helm_ok(&plane, &["uninstall", "kubesvc", "-n", "kubesvc"]);
    assert_eq!(get(&plane, &["deployments,services,roles"]).await["items"], json!([]));
    assert_eq!(short_name().await, "ksg");
    assert!(accounts().await > 3, "accounts outlive the operator");
    helm_ok(&plane, &[&["install"], &release[..]].concat());
    assert!(accounts().await > 3, "and are there for the next one");
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_are_not_started_next_to_one_on_sqlite() {
    let plane = reused().await;
    helm_ok(&plane, &["install", "kubesvc", "charts/kubesvc", "-n", "kubesvc", "--create-namespace"]);
    let upgrade = ["upgrade", "kubesvc", "charts/kubesvc", "-n", "kubesvc"];
    let several = ["--set", "replicas=3", "--set", "database.existingSecret=kubesvc-database"];
    let refused = helm(&plane, &[upgrade.as_slice(), &several].concat());
    assert_ne!(refused.code, Some(0));
    assert!(
        refused.stderr.contains("one replica on SQLite runs") && refused.stderr.contains("replicas=0"),
        "{refused:?}"
    );
    helm_ok(&plane, &[upgrade.as_slice(), &["--set", "replicas=0"]].concat());
    helm_ok(&plane, &[upgrade.as_slice(), &several].concat());
    let deployment = get(&plane, &["deployment", "kubesvc-operator"]).await;
    assert_eq!(deployment["spec"]["replicas"], 3);
    assert_eq!(deployment["spec"]["strategy"]["type"], "RollingUpdate");
    assert_eq!(get(&plane, &["pdb", "kubesvc-operator"]).await["spec"]["maxUnavailable"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn unserved_hub_address_is_refused_at_install() {
    let plane = shared().await;
    let namespace = plane.namespace().await;
    let agent = |more: &[&str]| {
        let mode = ["-n", namespace.name(), "--set", "mode=spinnaker-service"];
        helm(plane, &[&["install", "kubesvc-agent", "charts/kubesvc-agent"], &mode[..], more].concat())
    };
    let refuses = |more: &[&str], sentence: &str| {
        let said = agent(more);
        assert_ne!(said.code, Some(0), "{more:?}");
        assert!(said.stderr.contains(sentence), "{more:?}: {sentence:?} is not in\n{}", said.stderr);
    };
    let missing = format!("there is no Service kubesvc-operator in namespace {namespace}");
    refuses(&[], &missing);
    refuses(
        &["--set", "hub.address=spin-clouddriver-grpc:9091"],
        "there is no Service spin-clouddriver-grpc",
    );
    let new = format!("{namespace}-new");
    refuses(
        &["-n", &new, "--create-namespace"],
        &format!("there is no Service kubesvc-operator in namespace {new}"),
    );
    let short = format!("hub.address=kubesvc-operator.{namespace}:9091");
    refuses(&["--set", &short], &missing);
    must(agent(&["--dry-run=server", "--set", "hub.address=example.com:443"]).ok());
    let service =
        ["create", "service", "clusterip", "kubesvc-operator", "--tcp=9091", "-n", namespace.name()];
    must(plane.kubectl(service).await.ok());
    let address = format!("hub.address=kubesvc-operator.{namespace}.svc.cluster.local:443");
    refuses(&["--set", &address], "serves 9091: correct the port");
    must(agent(&["--dry-run=server", "--set", &short]).ok());
    must(agent(&[]).ok());
}
