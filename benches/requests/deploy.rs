//! Deploy: an operation that applies a changed manifest, held against its own two requests made directly, a GET and a
//! PATCH, a bare echo with two round trips to the agent, and two bare commits.

use serde_json::{Value, json};

use crate::{
    callers::Call,
    calls::operation,
    echo::Echo,
    latency::{Kind, Way, measure},
    options::Options,
    report::Report,
    world::{Running, deployment},
};

/// What is deployed, and what is changed in the same way directly.
const NAMES: [&str; 2] = ["deployed", "patched"];

/// Runs the benchmark and adds its results to the report.
///
/// # Errors
///
/// The benchmark could not run.
pub(crate) async fn run(
    options: &Options,
    running: &Running<'_>,
    echo: &Echo,
    report: &mut Report,
) -> Result<(), String> {
    let namespace = running.world.objects.name().to_owned();
    let list =
        json!({"apiVersion": "v1", "kind": "List", "items": NAMES.map(|name| manifest(&namespace, name, 0))});
    running.world.target.kubectl_with_input(["apply", "-f", "-"], &list.to_string()).await.ok()?;
    let of_direct = namespace.clone();
    let kind = Kind {
        benchmark: "deploy",
        what: "apply, operation",
        direct: Box::new(move |number| direct(&of_direct, number)),
        through: Box::new(move |number| {
            let data = manifest(&namespace, NAMES[0], number).to_string();
            operation("deploy", &json!({"manifest": {"data": data}}))
        }),
        tls: false,
        commits: 2,
        ways: Way::both([running.rest(0), running.rest(1)]),
    };
    measure(options, running, echo, vec![kind], report).await
}

fn manifest(namespace: &str, name: &str, number: usize) -> Value {
    let mut manifest = deployment(namespace, name);
    manifest["spec"]["template"]["metadata"]["annotations"] = json!({"number": number.to_string()});
    manifest
}

/// The two requests of an apply: a GET, and a PATCH of what changed with the manifest itself.
fn direct(namespace: &str, number: usize) -> Vec<Call> {
    let path = format!("/apis/apps/v1/namespaces/{namespace}/deployments/{}", NAMES[1]);
    let manifest = manifest(namespace, NAMES[1], number);
    let applied = json!({"kubectl.kubernetes.io/last-applied-configuration": format!("{manifest}\n")});
    let patch = json!({
        "metadata": {"annotations": applied},
        "spec": {"template": {"metadata": manifest["spec"]["template"]["metadata"]}},
    });
    vec![Call::get(&path), Call::patch(&path, &patch)]
}
