//! The Helm charts: what they render, what they refuse, that they render the same objects as `config/`, and that a real
//! API server takes them.

mod conform;
mod installed;
mod pages;
mod refused;
mod rendered;
mod same_objects;

use serde_json::Value;

use kubesvc_testkit::{helm, kubectl::Output, must};

/// The namespace of `config/`.
const NAMESPACE: &str = "kubesvc";
/// A hub outside of the cluster.
const HUB: &str = "hub.address=hub.example.com:9091";

/// The values that each mode requires.
const MODES: [&[&str]; 3] = [
    &["mode=agent", "clusterName=prod", HUB],
    &["mode=infrastructure", "zoneId=east", HUB],
    &["mode=spinnaker-service"],
];

/// The hub behind a Gateway of the chart.
const BY_GATEWAY: &[&str] = &[
    "expose.type=Gateway",
    "expose.gateway.hostnames={hub.example.com}",
    "expose.gateway.className=public",
    "expose.gateway.tls.existingSecret=hub-tls",
    "networkPolicy.grpc.from[0].namespaceSelector.matchLabels.name=gateways",
];

/// Runs `helm template` with a chart of this repository, and its name as the release's.
fn template(chart: &str, values: &[&str]) -> Output {
    let folder = format!("charts/{chart}");
    let mut arguments = vec!["template", chart, &folder, "-n", NAMESPACE];
    for value in values {
        arguments.extend(["--set", value]);
    }
    helm::run(None, arguments)
}

/// The text that a chart renders.
fn text(chart: &str, values: &[&str]) -> String {
    must(template(chart, values).ok().map_err(|e| format!("{chart} {values:?}: {e}")))
}

/// The objects that a chart installs.
pub(crate) fn objects(chart: &str, values: &[&str]) -> Vec<Value> {
    let mut objects = read(&text(chart, values));
    objects.retain(|object| !is_hook(object));
    objects
}

/// The objects that `helm test` makes.
fn hooks(chart: &str, values: &[&str]) -> Vec<Value> {
    let mut objects = read(&text(chart, values));
    objects.retain(is_hook);
    objects
}

fn is_hook(object: &Value) -> bool {
    !object["metadata"]["annotations"]["helm.sh/hook"].is_null()
}

/// The objects of a YAML text.
pub(crate) fn read(yaml: &str) -> Vec<Value> {
    let all: Vec<Value> = must(serde_saphyr::from_multiple(yaml).map_err(|e| format!("{e}:\n{yaml}")));
    all.into_iter().filter(Value::is_object).collect()
}

fn of_kind<'a>(objects: &'a [Value], kind: &'a str) -> impl Iterator<Item = &'a Value> {
    objects.iter().filter(move |object| object["kind"] == kind)
}

fn only<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    let found: Vec<_> = objects.iter().filter(|object| object["kind"] == kind).collect();
    let [one] = found[..] else { unreachable!("one {kind} was expected, not {}", found.len()) };
    one
}

/// Each way to install the operator: one replica or three, with a volume or without, with network policies or without.
fn operators() -> Vec<Vec<&'static str>> {
    let databases: [&[&str]; 3] =
        [&[], &["persistence.enabled=true"], &["replicas=3", "database.existingSecret=kubesvc-database"]];
    let policies: [&[&str]; 2] = [&[], &["networkPolicy.enabled=false"]];
    databases
        .iter()
        .flat_map(|database| policies.iter().map(|policy| [*database, *policy].concat()))
        .collect()
}

/// Each way to install agents: three modes, one replica or three, with network policies or without.
fn agents() -> Vec<Vec<&'static str>> {
    let more: [&[&str]; 4] = [
        &[],
        &["replicas=3"],
        &["networkPolicy.enabled=false"],
        &["replicas=3", "networkPolicy.enabled=false"],
    ];
    MODES.iter().flat_map(|mode| more.iter().map(|more| [*mode, *more].concat())).collect()
}
