//! Charts and kustomizations render the same objects.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::{NAMESPACE, objects, of_kind, read};
use crate::manifests::Overlays;
use crate::world::in_repository;
use kubesvc_testkit::controlplane::kubectl_with;
use kubesvc_testkit::must;

/// Labels that Helm's conventions ask for, and kustomizations have no use for.
const LABELS: [&str; 4] = [
    "app.kubernetes.io/instance",
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/version",
    "helm.sh/chart",
];
/// How a chart starts pods anew, where a kustomization renames the ConfigMap; and what `helm uninstall` keeps.
const ANNOTATIONS: [&str; 2] = ["checksum/settings", "helm.sh/resource-policy"];

#[tokio::test(flavor = "multi_thread")]
async fn chart_and_manifests_make_the_same_operator() {
    let crds = in_repository("config/crd");
    let overlays = Overlays::new();
    let with = |component: &str| {
        let text = format!(
            "namespace: {NAMESPACE}\nresources: [../config/default]\ncomponents: [../config/components/{component}]\n"
        );
        overlays.write(component, &text)
    };
    // A kustomization that sets a namespace would move what is in kube-system.
    let gateway =
        overlays.write("gateway", "resources: [../config/default]\ncomponents: [../config/gateway]\n");
    let several = ["replicas=3", "database.existingSecret=kubesvc-database"];
    for (values, folder) in [
        (&[][..], in_repository("config/default")),
        (&several[..], in_repository("config/replicas")),
        (&["persistence.enabled=true"][..], with("volume")),
        (&["gateway.enabled=true"][..], gateway),
    ] {
        let chart = comparable(&objects("kubesvc", values), &[]);
        compare(&folder, &chart, &comparable(&built(&[&folder, &crds]).await, &[]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn chart_and_manifests_expose_the_same_hub() {
    let overlays = Overlays::new();
    let text = format!(
        "namespace: {NAMESPACE}\nresources: [../config/default]\ncomponents: [../config/components/expose]\n"
    );
    let folder = overlays.write("expose", &text);
    let values = ["expose.type=LoadBalancer", "expose.loadBalancer.sourceRanges={192.0.2.0/24}"];
    let mut chart = comparable(&objects("kubesvc", &values), &[]);
    let mut kustomization = comparable(&built(&[&folder, &in_repository("config/crd")]).await, &[]);
    // A kustomization cannot add to a file of settings, so that its component sets the same by a variable.
    let object = |kind: &str| format!("\"{kind}\" \"{NAMESPACE}\" \"kubesvc-operator\"");
    let settings = chart.get_mut(&object("ConfigMap")).expect("the settings of the chart");
    let agents = settings["data"]["kubesvc.yml"]["kubesvc"]["agents"].as_object_mut();
    assert_eq!(agents.and_then(|agents| agents.remove("approval")), Some(json!("manual")));
    let deployment = kustomization.get_mut(&object("Deployment")).expect("the Deployment of config/");
    let variables = deployment["spec"]["template"]["spec"]["containers"][0]["env"].as_array_mut();
    let variables = variables.expect("variables");
    let set = json!({"name": "KUBESVC_AGENTS_APPROVAL", "value": "manual"});
    let position = variables.iter().position(|variable| *variable == set).expect("the variable");
    variables.remove(position);
    compare(&folder, &chart, &kustomization);
}

#[tokio::test(flavor = "multi_thread")]
async fn chart_and_manifests_make_the_same_operator_beside_clouddriver() {
    const URL: &str = "http://spin-clouddriver.spinnaker:7002";
    let overlays = Overlays::new();
    let text =
        "resources: [../config/default]\ncomponents: [../config/gateway, ../config/components/clouddriver]\n";
    let folder = overlays.write("clouddriver", text);
    let url = format!("settings.kubesvc.clouddriver.baseUrl={URL}");
    let values = ["gateway.enabled=true", &url, "settings.kubesvc.clouddriver.push.enabled=true"];
    let mut chart = comparable(&objects("kubesvc", &values), &[]);
    let mut kustomization = comparable(&built(&[&folder, &in_repository("config/crd")]).await, &[]);
    // A kustomization cannot add to a file of settings, so that its component sets the same by variables.
    let object = |kind: &str| format!("\"{kind}\" \"{NAMESPACE}\" \"kubesvc-operator\"");
    let settings = chart.get_mut(&object("ConfigMap")).expect("the settings of the chart");
    let settings = settings["data"]["kubesvc.yml"]["kubesvc"].as_object_mut();
    assert_eq!(
        settings.and_then(|settings| settings.remove("clouddriver")),
        Some(json!({"baseUrl": URL, "push": {"enabled": true}}))
    );
    let deployment = kustomization.get_mut(&object("Deployment")).expect("the Deployment of config/");
    let variables = deployment["spec"]["template"]["spec"]["containers"][0]["env"].as_array_mut();
    let variables = variables.expect("variables");
    for (name, value) in [("KUBESVC_CLOUDDRIVER_BASEURL", URL), ("KUBESVC_CLOUDDRIVER_PUSH_ENABLED", "true")]
    {
        let set = json!({"name": name, "value": value});
        let position = variables.iter().position(|variable| *variable == set).expect(name);
        variables.remove(position);
    }
    compare(&folder, &chart, &kustomization);
}

#[tokio::test(flavor = "multi_thread")]
async fn chart_and_manifests_make_the_same_agent_in_each_mode() {
    let hub = ("${HUB_ADDRESS}", "hub.example.com:9091");
    for (mode, values, filled) in [
        ("agent", &["clusterName=prod"][..], &[("${CLUSTER_NAME}", "prod"), hub][..]),
        (
            "infrastructure",
            &["zoneId=east", "kubeconfigs.existingSecret=kubesvc-agent-kubeconfigs"][..],
            &[("${ZONE_ID}", "east"), hub][..],
        ),
        ("spinnaker-service", &[][..], &[][..]),
    ] {
        let named = format!("mode={mode}");
        let address = (!filled.is_empty()).then_some(super::HUB);
        let values: Vec<_> =
            [named.as_str()].into_iter().chain(address).chain(values.iter().copied()).collect();
        let folder = in_repository(&format!("config/modes/{mode}"));
        let chart = comparable(&objects("kubesvc-agent", &values), &[]);
        compare(&folder, &chart, &comparable(&built(&[&folder]).await, filled));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn chart_and_manifests_make_the_same_monitoring() {
    let overlays = Overlays::new();
    let folder = overlays.write(
        "monitoring",
        &format!(
            "namespace: {NAMESPACE}\nresources: [../config/default, ../config/modes/spinnaker-service]\n\
             components: [../config/components/monitoring, ../config/components/monitoring-agent]\n"
        ),
    );
    let operator = objects("kubesvc", &["monitoring.enabled=true", "crds.enabled=false"]);
    let agent = objects("kubesvc-agent", &["mode=spinnaker-service", "monitoring.enabled=true"]);
    let charts = [operator, agent].concat();
    let watching = |kind| of_kind(&charts, kind).count();
    assert_eq!((watching("PodMonitor"), watching("PrometheusRule")), (2, 2));
    let dashboards = of_kind(&charts, "ConfigMap")
        .filter(|config_map| config_map["metadata"]["labels"]["grafana_dashboard"] == "1");
    assert_eq!(dashboards.count(), 1);
    compare(&folder, &comparable(&charts, &[]), &comparable(&built(&[&folder]).await, &[]));
}

/// What `kubectl kustomize` prints for these folders.
async fn built(folders: &[&str]) -> Vec<Value> {
    let mut all = Vec::new();
    for folder in folders {
        let built = must(kubectl_with(Path::new("/dev/null"), ["kustomize", folder], "").await);
        all.extend(read(&must(built.ok().map_err(|e| format!("{folder}: {e}")))));
    }
    all
}

/// Objects by kind, namespace and name, without what differs by convention: labels and annotations of Helm, the hash
/// in the name of a ConfigMap, comments and spelling of settings, the order of lists whose items have names.
fn comparable(objects: &[Value], filled: &[(&str, &str)]) -> BTreeMap<String, Value> {
    let hashed = of_kind(objects, "ConfigMap").filter_map(|config_map| {
        let name = config_map["metadata"]["name"].as_str()?;
        let (plain, hash) = name.rsplit_once('-')?;
        (hash.len() == 10).then_some((name, plain))
    });
    let hashed: BTreeMap<_, _> = hashed.collect();
    let written = |text: &str| {
        let text = *hashed.get(text).unwrap_or(&text);
        filled.iter().fold(text.to_owned(), |text, (placeholder, value)| text.replace(placeholder, value))
    };
    let keyed = objects.iter().map(|object| {
        let mut object = with_texts(object, &written);
        if object["kind"] == "ConfigMap" {
            object["metadata"]["labels"] = Value::Null;
            let files = object["data"].as_object_mut().into_iter().flat_map(|files| files.values_mut());
            for file in files {
                let yaml = file.as_str().unwrap_or_default().to_owned();
                *file = nested(must(serde_saphyr::from_str(&yaml).map_err(|e| format!("{e}:\n{yaml}"))));
            }
        }
        let object = plain(object);
        let metadata = &object["metadata"];
        (format!("{} {} {}", object["kind"], metadata["namespace"], metadata["name"]), object)
    });
    keyed.collect()
}

/// The value with each text in it changed.
fn with_texts(value: &Value, change: &impl Fn(&str) -> String) -> Value {
    match value {
        Value::String(text) => Value::String(change(text)),
        Value::Array(items) => items.iter().map(|item| with_texts(item, change)).collect(),
        Value::Object(entries) => {
            entries.iter().map(|(key, value)| (key.clone(), with_texts(value, change))).collect()
        }
        other => other.clone(),
    }
}

/// Settings with dotted keys as nested ones.
fn nested(settings: Value) -> Value {
    let Value::Object(entries) = settings else { return settings };
    let mut out = json!({});
    for (key, value) in entries {
        let place = key.split('.').fold(&mut out, |group, name| &mut group[name]);
        match (place.as_object_mut(), nested(value)) {
            (Some(group), Value::Object(more)) => group.extend(more),
            (_, value) => *place = value,
        }
    }
    out
}

fn plain(value: Value) -> Value {
    match value {
        Value::Object(entries) => {
            let is_ours = |key: &str| !LABELS.contains(&key) && !ANNOTATIONS.contains(&key);
            let entries = entries.into_iter().filter(|(key, _)| is_ours(key));
            let entries = entries.map(|(key, value)| (key, plain(value)));
            let is_empty = |value: &Value| value.is_null() || value.as_object().is_some_and(Map::is_empty);
            Value::Object(entries.filter(|(_, value)| !is_empty(value)).collect())
        }
        Value::Array(items) => {
            let mut items: Vec<_> = items.into_iter().map(plain).collect();
            if items.iter().all(|item| item["name"].is_string()) {
                items.sort_by_key(|item| item["name"].to_string());
            }
            Value::Array(items)
        }
        Value::Number(number) => number.as_f64().map_or(Value::Null, Value::from),
        other => other,
    }
}

fn compare(what: &str, chart: &BTreeMap<String, Value>, kustomization: &BTreeMap<String, Value>) {
    let keys = |objects: &BTreeMap<String, Value>| objects.keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(chart), keys(kustomization), "{what}: chart, kustomization");
    for (key, object) in chart {
        assert!(
            *object == kustomization[key],
            "{what}: {key}\nchart:\n{object:#}\nkustomization:\n{:#}",
            kustomization[key]
        );
    }
}
