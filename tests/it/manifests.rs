//! A real API server accepts everything that `kubectl apply -k` is given here, as is and under overlays;
//! deleting it removes nothing that belongs to others.

use std::path::Path;

use kubesvc::settings::OperatorSettings;
use kubesvc_runtime::config::{SettingUse, Settings as _};
use serde_json::Value;

use crate::charts::read;
use crate::world::in_repository;
use kubesvc_testkit::controlplane::{ControlPlane, reused, shared};
use kubesvc_testkit::folder::Folder;
use kubesvc_testkit::must;

#[tokio::test(flavor = "multi_thread")]
async fn manifests_are_accepted_by_the_api_server() {
    let plane = shared().await;
    // Even a dry run of an object needs its namespace, and a custom object its definition.
    for folder in ["config/namespace", "config/crd"] {
        must(plane.kubectl(["apply", "-k", &in_repository(folder)]).await.ok());
    }
    let overlays = Overlays::new();
    let with_volume = overlays.write(
        "volume",
        "namespace: kubesvc\nresources: [../config/default]\ncomponents: [../config/components/volume]\n",
    );
    let exposed = overlays.write(
        "exposed",
        "namespace: kubesvc\nresources: [../config/default]\ncomponents: [../config/components/expose]\n",
    );
    let with_gateway =
        overlays.write("gateway", "resources: [../config/default]\ncomponents: [../config/gateway]\n");
    let beside_clouddriver = overlays.write(
        "clouddriver",
        "resources: [../config/default]\ncomponents: [../config/gateway, ../config/components/clouddriver]\n",
    );
    let folders =
        ["config/default", "config/replicas", "config/copy-database", "config/agent", "config/people"];
    let modes = ["agent", "infrastructure", "spinnaker-service"].map(|mode| format!("config/modes/{mode}"));
    let folders = folders.into_iter().chain(modes.iter().map(String::as_str)).map(in_repository);
    for folder in folders.chain([with_volume, exposed, with_gateway, beside_clouddriver]) {
        let tried = plane.kubectl(["apply", "--dry-run=server", "-k", &folder]).await;
        assert!(!tried.stderr.contains("Warning"), "{folder}: {}", tried.stderr);
        must(tried.ok().map_err(|e| format!("{folder}: {e}")));
    }
}

#[test]
fn patches_of_clouddriver_are_the_same_for_each_way_to_install_spinnaker() {
    let read = |file: &str| -> Value {
        let path = in_repository(&format!("config/clouddriver/{file}"));
        let text = must(std::fs::read_to_string(&path).map_err(|e| format!("{path}: {e}")));
        must(serde_saphyr::from_str(&text).map_err(|e| format!("{path}: {e}")))
    };
    let (settings, patch) = (read("clouddriver-local.yml"), read("deployment.yaml"));
    let service = &read("spinnaker-operator.yaml")["spec"];
    assert_eq!(service["spinnakerConfig"]["profiles"]["clouddriver"], settings);
    let inner = service["kustomize"]["clouddriver"]["deployment"]["patchesStrategicMerge"][0].as_str();
    let inner: Value = must(serde_saphyr::from_str(inner.expect("a patch")).map_err(|e| e.to_string()));
    assert_eq!(inner, patch);
    // The files that kubesvc names in the kubeconfigs that it registers.
    let pod = &patch["spec"]["template"]["spec"];
    let folder = pod["containers"][0]["volumeMounts"][0]["mountPath"].as_str().expect("a folder");
    let token = &pod["volumes"][0]["projected"]["sources"][0]["serviceAccountToken"];
    let file = token["path"].as_str().expect("a file");
    let default = |key: &str| {
        let key = format!("kubesvc.clouddriver.push.{key}");
        let row = OperatorSettings::spec().rows().iter().find(|row| row.key == key).expect("a setting");
        let SettingUse::Read(default) = row.used else { unreachable!("{key} is read") };
        default.to_owned()
    };
    assert_eq!(format!("{folder}/{file}"), default("tokenFile"));
    assert_eq!(format!("{folder}/ca.crt"), default("caFile"));
    assert_eq!(token["audience"], "kubesvc");
    let poll = &settings["credentials"]["poller"]["types"]["kubernetes"]["reloadFrequencyMs"];
    assert_eq!(poll.to_string(), format!("{}000", default("pollSeconds")));
}

#[tokio::test(flavor = "multi_thread")]
async fn clouddriver_of_a_kustomization_gets_the_volume_and_other_deployments_do_not() {
    let overlays = Overlays::new();
    let deployment = |name: &str| {
        format!(
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}}}\nspec:\n  template:\n    spec:\n      \
             containers: [{{name: clouddriver, image: x, volumeMounts: [{{name: own, mountPath: /own}}]}}]\n      \
             volumes: [{{name: own, emptyDir: {{}}}}]\n"
        )
    };
    let names = ["clouddriver", "spin-clouddriver", "spin-clouddriver-rw", "spin-gate"];
    let folder = overlays.write("spinnaker", "resources: [all.yaml]\ncomponents: [../config/clouddriver]\n");
    let all = names.map(deployment).join("---\n");
    must(std::fs::write(format!("{folder}/all.yaml"), all).map_err(|e| e.to_string()));
    let objects = rendered(shared().await, &folder).await;
    for object in &objects {
        let volumes = object["spec"]["template"]["spec"]["volumes"].as_array().expect("volumes");
        let has = volumes.iter().any(|volume| volume["name"] == "kubesvc");
        assert_eq!(has, object["metadata"]["name"] != "spin-gate", "{object}");
        assert!(volumes.iter().any(|volume| volume["name"] == "own"), "{object}");
    }
    assert_eq!(objects.len(), names.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn several_replicas_share_a_database_and_have_no_volume() {
    let objects = rendered(shared().await, &in_repository("config/replicas")).await;
    let deployment = only(&objects, "Deployment");
    assert_eq!(deployment["spec"]["replicas"], 3);
    assert_eq!(deployment["spec"]["strategy"]["type"], "RollingUpdate");
    let pod = &deployment["spec"]["template"]["spec"];
    let volumes: Vec<_> =
        pod["volumes"].as_array().expect("volumes").iter().map(|volume| &volume["name"]).collect();
    assert_eq!(volumes, ["settings"], "no volume of SQLite's is left");
    let environment = pod["containers"][0]["env"].as_array().expect("an environment");
    assert!(
        environment
            .iter()
            .any(|one| one["name"] == "KUBESVC_DATABASE_URL" && one["valueFrom"]["secretKeyRef"].is_object()),
        "the database comes from a Secret: {environment:?}"
    );
    assert!(objects.iter().all(|object| object["kind"] != "PersistentVolumeClaim"));
    let settings = only(&objects, "ConfigMap")["data"]["kubesvc.yml"].as_str().expect("settings");
    assert!(!settings.contains("sqlite:"), "{settings}");
    let rate_limit = only(&objects, "PodDisruptionBudget");
    assert_eq!(
        rate_limit["spec"]["selector"], deployment["spec"]["selector"],
        "the budget is for the operator's pods"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_require_approval_and_serve_until_endpoints_are_updated() {
    let objects = rendered(shared().await, &in_repository("config/replicas")).await;
    let settings = only(&objects, "ConfigMap")["data"]["kubesvc.yml"].as_str().expect("settings");
    assert!(settings.contains("approval: manual"), "{settings}");
    let pod = &only(&objects, "Deployment")["spec"]["template"]["spec"];
    let pause = pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"].as_u64().expect("a pause");
    let grace = pod["terminationGracePeriodSeconds"].as_u64().expect("a grace");
    assert!(pause > 0 && pause + 20 <= grace, "{pause} s and a stop of 20 s in {grace} s");
}

#[tokio::test(flavor = "multi_thread")]
async fn startup_probe_runs_each_second_and_no_storage_class_is_needed() {
    let plane = shared().await;
    let objects = rendered(plane, &in_repository("config/default")).await;
    let pod = only(&objects, "Deployment")["spec"]["template"]["spec"].clone();
    assert_eq!(pod["containers"][0]["startupProbe"]["periodSeconds"], 1);
    // Waiting for a database may take any time: only liveness may end a start.
    let asked = pod["containers"][0]["startupProbe"]["httpGet"]["path"].as_str().unwrap_or_default();
    assert_eq!(asked, "/health/liveness");
    assert!(database_of(&pod)["emptyDir"].is_object(), "{pod}");
    assert!(objects.iter().all(|object| object["kind"] != "PersistentVolumeClaim"));

    let overlays = Overlays::new();
    let folder = overlays.write(
        "volume",
        "namespace: kubesvc\nresources: [../config/default]\ncomponents: [../config/components/volume]\n",
    );
    let objects = rendered(plane, &folder).await;
    let pod = only(&objects, "Deployment")["spec"]["template"]["spec"].clone();
    let volume = database_of(&pod);
    assert_eq!(
        volume["persistentVolumeClaim"]["claimName"],
        only(&objects, "PersistentVolumeClaim")["metadata"]["name"]
    );
    assert_eq!(volume["emptyDir"], Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_agents_reach_9091_only_labelled_pods_7002_and_only_replicas_7004() {
    let plane = shared().await;
    let (operator, agent) = (
        rendered(plane, &in_repository("config/replicas")).await,
        rendered(plane, &in_repository("config/agent")).await,
    );
    for (objects, kind) in [(&operator, "Deployment"), (&agent, "StatefulSet")] {
        let (policy, workload) = (&only(objects, "NetworkPolicy")["spec"], only(objects, kind));
        assert_eq!(policy["policyTypes"], serde_json::json!(["Ingress", "Egress"]));
        assert_eq!(policy["podSelector"], workload["spec"]["selector"], "it is for these pods");
    }
    let agents = &only(&agent, "StatefulSet")["spec"]["template"]["metadata"]["labels"];
    let ingress = only(&operator, "NetworkPolicy")["spec"]["ingress"].as_array().expect("rules").clone();
    for rule in &ingress {
        for port in rule["ports"].as_array().expect("ports") {
            let port = port["port"].as_u64().expect("a number");
            let from = rule["from"].as_array().cloned().unwrap_or_default();
            let labels: Vec<_> = from.iter().map(|peer| &peer["podSelector"]["matchLabels"]).collect();
            match port {
                9091 => {
                    let name = &agents["app.kubernetes.io/name"];
                    assert!(
                        !labels.is_empty() && labels.iter().all(|one| &one["app.kubernetes.io/name"] == name)
                    );
                }
                7002 => assert!(!from.is_empty(), "{rule}"),
                7004 => {
                    let replicas = &only(&operator, "Deployment")["spec"]["selector"]["matchLabels"];
                    assert!(labels.len() == 1 && labels[0] == replicas, "{rule}");
                }
                // Health only.
                7003 => {}
                other => unreachable!("port {other} is open: {rule}"),
            }
        }
    }
    let none = only(&agent, "NetworkPolicy")["spec"]["ingress"].as_array().cloned().unwrap_or_default();
    assert!(none.is_empty(), "nobody calls an agent: {none:?}");
}

/// Renders a base under an overlay that sets another namespace, a prefix and a suffix, and that overlay under
/// another one.
async fn renamed(base: &str) -> Vec<Value> {
    let overlays = Overlays::new();
    let once = format!("namespace: armory\nnamePrefix: eu-\nnameSuffix: -one\nresources: [../{base}]\n");
    overlays.write("once", &once);
    let twice = overlays.write("twice", "namespace: armory\nnamePrefix: x-\nresources: [../once]\n");
    rendered(shared().await, &twice).await
}

#[tokio::test(flavor = "multi_thread")]
async fn bindings_and_names_stay_consistent_under_an_overlay() {
    for (base, kind, name) in [
        ("config/agent", "StatefulSet", "x-eu-kubesvc-agent-one"),
        ("config/modes/agent", "StatefulSet", "x-eu-kubesvc-agent-one"),
        ("config/replicas", "Deployment", "x-eu-kubesvc-operator-one"),
    ] {
        let objects = renamed(base).await;
        let has = |kind: &Value, name: &Value, namespace: &Value| {
            objects.iter().any(|object| {
                let metadata = &object["metadata"];
                &object["kind"] == kind && &metadata["name"] == name && &metadata["namespace"] == namespace
            })
        };
        let mut bindings = 0;
        for binding in
            objects.iter().filter(|one| one["kind"].as_str().is_some_and(|kind| kind.ends_with("Binding")))
        {
            bindings += 1;
            for subject in binding["subjects"].as_array().expect("subjects") {
                assert_eq!(subject["namespace"], "armory", "{binding}");
                assert!(has(&subject["kind"], &subject["name"], &subject["namespace"]), "{binding}");
            }
            let role = &binding["roleRef"];
            // Kubernetes' own.
            if role["name"].as_str().is_some_and(|name| name.starts_with("system:")) {
                continue;
            }
            let namespace =
                if role["kind"] == "Role" { &binding["metadata"]["namespace"] } else { &Value::Null };
            assert!(has(&role["kind"], &role["name"], namespace), "{binding}");
        }
        assert!(bindings > 0, "{base} binds a role");
        let workload = only(&objects, kind);
        assert_eq!(workload["metadata"]["name"], name);
        let pod = &workload["spec"]["template"]["spec"];
        let armory = Value::from("armory");
        assert!(has(&Value::from("ServiceAccount"), &pod["serviceAccountName"], &armory), "{pod}");
        let variable = |name: &str| variable(pod, name).map(|one| one["value"].clone());
        match kind {
            "StatefulSet" => {
                assert_eq!(variable("DEPLOYMENT_NAME"), Some(Value::from(name)), "a zone of its own");
            }
            _ => assert_eq!(
                variable("KUBESVC_CLUSTERKUBERNETES_CLOUDDRIVERSERVICENAMEPREFIX").as_ref(),
                Some(&only(&objects, "Service")["metadata"]["name"]),
                "replicas find one another by the Service"
            ),
        }
    }
}

/// The README section between a heading and the next one of the same level.
fn chapter(heading: &str) -> String {
    let text = must(std::fs::read_to_string(in_repository("README.md")).map_err(|e| e.to_string()));
    let rest = text.split_once(&format!("\n## {heading}\n")).expect("the README has this chapter").1;
    rest.split("\n## ").next().unwrap_or_default().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn readme_install_is_consistent_and_parts_are_deleted_independently() {
    let plane = reused().await;
    let install = chapter("Install it");
    let mut applied = Vec::new();
    for line in install.split("```").skip(1).step_by(2).flat_map(str::lines) {
        let command: Vec<_> = line.split('#').next().unwrap_or_default().split_whitespace().collect();
        match command[..] {
            ["kubectl", "apply", "-k", folder] => {
                let done = plane.kubectl(["apply", "-k", &in_repository(folder)]).await;
                assert!(!done.stderr.contains("Warning"), "{line}: {}", done.stderr);
                must(done.ok().map_err(|e| format!("{line}: {e}")));
                applied.push(folder.to_owned());
            }
            ["docker", "build", "--platform", "linux/amd64", "-t", image, "."] => {
                for (folder, kind) in [
                    ("config/default", "Deployment"),
                    ("config/replicas", "Deployment"),
                    ("config/modes/spinnaker-service", "StatefulSet"),
                ] {
                    let objects = rendered(&plane, &in_repository(folder)).await;
                    let pod = &only(&objects, kind)["spec"]["template"]["spec"];
                    assert_eq!(pod["containers"][0]["image"], image, "{folder} has what {line:?} builds");
                }
            }
            // tests/it/charts/pages.rs runs these.
            ["helm", ..] | [] | ["sh"] => {}
            // It waits for pods: tests/node runs it.
            ["kubectl", "--namespace", "kubesvc", "wait", ..] => {}
            _ => unreachable!("this test does not know what to do with {line:?}"),
        }
    }
    assert!(applied.len() >= 4, "{applied:?}");
    // The zone of the samples is the one that this agent claims.
    let objects = rendered(&plane, &in_repository("config/modes/spinnaker-service")).await;
    let set = only(&objects, "StatefulSet");
    let name = variable(&set["spec"]["template"]["spec"], "DEPLOYMENT_NAME").expect("it is said");
    let zone = format!(
        "{}_{}",
        name["value"].as_str().unwrap_or_default(),
        set["metadata"]["namespace"].as_str().unwrap_or_default()
    );
    let tour = chapter("A tour");
    let zones: Vec<_> = tour.split("zoneId: ").skip(1).map(|rest| rest.trim_start_matches('"')).collect();
    assert!(!zones.is_empty() && zones.iter().all(|one| one.starts_with(&zone)), "{zone}: {zones:?}");

    // Accounts exist, and stay when the agent and then the operator are deleted.
    let samples = in_repository("config/samples");
    must(plane.kubectl(["apply", "-n", "kubesvc", "-k", &samples]).await.ok());
    let names = async || {
        let list = ["get", "-n", "kubesvc", "-o", "name", "kubesvcaccounts,secrets,deployments,statefulsets"];
        let listed = must(plane.kubectl(list).await.ok());
        listed.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let mut left = names().await;
    assert!(left.iter().any(|one| one.contains("kubesvcaccount")), "{left:?}");
    for (folder, gone) in [
        ("config/modes/spinnaker-service", "statefulset.apps/kubesvc-agent"),
        ("config/default", "deployment.apps/kubesvc-operator"),
    ] {
        must(plane.kubectl(["delete", "-k", &in_repository(folder)]).await.ok());
        left.retain(|one| one != gone);
        assert_eq!(names().await, left, "after the deletion of {folder}");
        let phase = ["get", "namespace", "kubesvc", "-o", "jsonpath={.status.phase}"];
        assert_eq!(must(plane.kubectl(phase).await.ok()), "Active");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn probes_use_the_health_port() {
    let plane = shared().await;
    for folder in ["config/default", "config/replicas"] {
        let objects = rendered(plane, &in_repository(folder)).await;
        let container = &only(&objects, "Deployment")["spec"]["template"]["spec"]["containers"][0];
        let ports = container["ports"].as_array().expect("ports");
        let health = ports.iter().find(|port| port["name"] == "health").expect("a port for health");
        let settings = only(&objects, "ConfigMap")["data"]["kubesvc.yml"].as_str().expect("settings");
        let said = format!(
            "server:\n  health:\n    # The port of the probes.\n    port: {}\n",
            health["containerPort"]
        );
        assert!(settings.contains(&said), "{folder}: {settings}");
        for (name, probe) in container.as_object().expect("a container") {
            if name.ends_with("Probe") {
                assert_eq!(probe["httpGet"]["port"], "health", "{folder}: {name}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn copy_job_reads_the_volume_and_writes_the_shared_database() {
    let plane = shared().await;
    let overlays = Overlays::new();
    let with_volume = overlays.write(
        "volume",
        "namespace: kubesvc\nresources: [../config/default]\ncomponents: [../config/components/volume]\n",
    );
    let copy = rendered(plane, &in_repository("config/copy-database")).await;
    let one = rendered(plane, &with_volume).await;
    let several = rendered(plane, &in_repository("config/replicas")).await;
    let deadline = only(&copy, "Job")["spec"]["activeDeadlineSeconds"].as_u64();
    assert!(
        deadline.is_some_and(|seconds| seconds <= 600),
        "a pod without its volume waits for ever: {deadline:?}"
    );
    let pod = |objects: &[Value], kind: &str| only(objects, kind)["spec"]["template"]["spec"].clone();
    let (copying, alone, sharing) = (pod(&copy, "Job"), pod(&one, "Deployment"), pod(&several, "Deployment"));
    assert_eq!(database_of(&copying), database_of(&alone));
    let to = variable(&copying, "KUBESVC_COPY_TO").expect("it names the target");
    let shared_url = variable(&sharing, "KUBESVC_DATABASE_URL").expect("they name the database");
    assert_eq!(to["valueFrom"], shared_url["valueFrom"]);
    let from = variable(&copying, "KUBESVC_COPY_FROM").expect("it names the source");
    let settings = only(&one, "ConfigMap")["data"]["kubesvc.yml"].as_str().expect("settings").to_owned();
    assert!(settings.contains(from["value"].as_str().unwrap_or("nothing")), "{from} is not in {settings}");
}

#[tokio::test(flavor = "multi_thread")]
async fn monitors_scrape_existing_ports_that_the_network_policy_allows() {
    let overlays = Overlays::new();
    for (name, base, kind, component, port, number) in [
        ("one", "default", "Deployment", "monitoring", "http", 7002),
        ("several", "replicas", "Deployment", "monitoring", "http", 7002),
        ("agent", "agent", "StatefulSet", "monitoring-agent", "metrics", 8008),
    ] {
        let text = format!(
            "namespace: kubesvc\nresources: [../config/{base}]\ncomponents: [../config/components/{component}]\n"
        );
        let objects = rendered(shared().await, &overlays.write(name, &text)).await;
        let (monitor, pod) = (only(&objects, "PodMonitor"), &only(&objects, kind)["spec"]["template"]);
        let wanted = monitor["spec"]["selector"]["matchLabels"].as_object().expect("labels");
        assert!(wanted.iter().all(|(label, value)| pod["metadata"]["labels"][label] == *value), "{monitor}");
        assert_eq!(monitor["spec"]["podMetricsEndpoints"][0]["port"], port);
        let container = &pod["spec"]["containers"][0];
        let ports = container["ports"].as_array().expect("ports");
        let named = ports.iter().find(|one| one["name"] == port).expect("the port is there");
        assert_eq!(named["containerPort"], number);
        let rules = only(&objects, "NetworkPolicy")["spec"]["ingress"].as_array().expect("rules").clone();
        let lets_in = |rule: &&Value| {
            rule["ports"][0]["port"] == number
                && rule["from"][0]["podSelector"]["matchLabels"]["app.kubernetes.io/name"] == "prometheus"
                && rule["from"][0]["namespaceSelector"]["matchLabels"]["kubesvc.io/metrics"] == "allowed"
        };
        assert_eq!(rules.iter().filter(lets_in).count(), 1, "{rules:?}");
        assert_eq!(only(&objects, "PrometheusRule")["metadata"]["namespace"], "kubesvc");
        if component == "monitoring" {
            let dashboards =
                objects.iter().filter(|object| object["metadata"]["labels"]["grafana_dashboard"] == "1");
            let dashboards: Vec<_> =
                dashboards.map(|object| object["data"]["kubesvc.json"].as_str()).collect();
            assert!(matches!(dashboards[..], [Some(text)] if text.contains("schemaVersion")));
        } else {
            let enabled = variable(&pod["spec"], "PROMETHEUS_ENABLED").expect("the agent serves metrics");
            assert_eq!(enabled["value"], "true");
        }
    }
}

/// The volume of a pod with SQLite's file.
fn database_of(pod: &Value) -> Value {
    let volumes = pod["volumes"].as_array().cloned().unwrap_or_default();
    volumes.into_iter().find(|volume| volume["name"] == "database").unwrap_or_default()
}

/// An environment variable of a pod's first container.
fn variable(pod: &Value, name: &str) -> Option<Value> {
    let all = pod["containers"][0]["env"].as_array().cloned().unwrap_or_default();
    all.into_iter().find(|one| one["name"] == name)
}

/// A copy of `config`, `crds` and `charts`, with room for overlays: a kustomization can refer to others by relative
/// paths only.
pub(crate) struct Overlays(Folder);

impl Overlays {
    pub(crate) fn new() -> Self {
        let folder = must(Folder::new("overlays"));
        for name in ["config", "crds", "charts"] {
            must(
                copy(Path::new(&in_repository(name)), &folder.file(name)).map_err(|e| format!("{name}: {e}")),
            );
        }
        Self(folder)
    }

    /// Writes an overlay and returns its folder.
    pub(crate) fn write(&self, name: &str, text: &str) -> String {
        let folder = self.0.file(name);
        let written = std::fs::create_dir(&folder)
            .and_then(|()| std::fs::write(folder.join("kustomization.yaml"), text));
        must(written.map_err(|e| format!("{}: {e}", folder.display())));
        folder.display().to_string()
    }
}

fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir(to)?;
    for entry in std::fs::read_dir(from)? {
        let (entry, to) = (entry?, to.to_owned());
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &to)?;
        } else {
            std::fs::copy(entry.path(), &to)?;
        }
    }
    Ok(())
}

async fn rendered(plane: &ControlPlane, folder: &str) -> Vec<Value> {
    let rendered = must(plane.kubectl(["kustomize", folder]).await.ok());
    read(&rendered)
}

fn only<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    let found: Vec<_> = objects.iter().filter(|object| object["kind"] == kind).collect();
    let [one] = found[..] else { unreachable!("one {kind} was expected, not {}", found.len()) };
    one
}
