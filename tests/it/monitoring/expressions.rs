//! Every metric and label that an alert or a panel names is one that the programs expose.

use std::collections::BTreeMap;
use std::process::Stdio;

use serde::Deserialize;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::Command;

use super::dashboard::panels;
use super::exposition::Exposition;
use super::{PROGRAMS, alerts_in, read_yaml, text};
use crate::world::{MAX_WAIT, World, get_from};
use kubesvc_testkit::{assets, must, ports, wait::eventually};

/// Labels that Prometheus adds to each sample of a PodMonitor's target, and its own metric about the target.
const TARGET_LABELS: [&str; 4] = ["namespace", "pod", "container", "job"];
const TARGET_METRIC: &str = "up";
/// A metric that a program has only in a container with such a limit.
const ONLY_IN_A_CONTAINER: &str = "process_memory_limit_bytes";

/// What an expression refers to, as `tests/promtool/main.go` prints it.
#[derive(Debug, Deserialize)]
struct References {
    selectors: Vec<Selector>,
    groupings: Vec<Grouping>,
}

#[derive(Debug, Deserialize)]
struct Selector {
    metric: String,
    matchers: Vec<Matcher>,
}

#[derive(Debug, Deserialize)]
struct Matcher {
    label: String,
    op: String,
    value: String,
}

#[derive(Debug, Deserialize)]
struct Grouping {
    labels: Vec<String>,
    metrics: Vec<String>,
}

/// Parses expressions by name. An expression that is refused fails the test.
async fn references(expressions: &BTreeMap<String, String>) -> BTreeMap<String, References> {
    let program = must(assets::prometheus_tools()).promql_references;
    let mut command = Command::new(&program);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = must(command.spawn().map_err(|error| format!("{}: {error}", program.display())));
    let mut input = child.stdin.take().expect("it was piped");
    let written = input.write_all(json!(expressions).to_string().as_bytes()).await;
    must(written.map_err(|error| error.to_string()));
    drop(input);
    let ended = must(child.wait_with_output().await.map_err(|error| error.to_string()));
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    serde_json::from_slice(&ended.stdout).expect("it prints references")
}

/// What of an expression does not exist.
fn missing(expression: &References, exposed: &Exposition) -> Vec<String> {
    let mut missing = Vec::new();
    let is_known = |metric: &str| metric == TARGET_METRIC || metric == ONLY_IN_A_CONTAINER;
    for Selector { metric, matchers } in &expression.selectors {
        let Some(labels) = exposed.labels_of(metric) else {
            if !is_known(metric) {
                missing.push(metric.clone());
            }
            continue;
        };
        for Matcher { label, op, value } in matchers.iter().filter(|one| !is_of_target(&one.label)) {
            let Some(seen) = labels.get(label) else {
                missing.push(format!("{metric}{{{label}}}"));
                continue;
            };
            let is_pattern = op.ends_with('~');
            let values: Vec<_> = if is_pattern { value.split('|').collect() } else { vec![value] };
            let unseen = values.into_iter().filter(|value| !seen.contains(*value));
            missing.extend(unseen.map(|value| format!("{metric}{{{label}=\"{value}\"}}")));
        }
    }
    for Grouping { labels, metrics } in &expression.groupings {
        let of_none = |label: &&String| {
            let mut all = metrics.iter().filter_map(|metric| exposed.labels_of(metric));
            !is_of_target(label) && !all.any(|labels| labels.contains_key(*label))
        };
        missing.extend(labels.iter().filter(of_none).map(|label| format!("by ({label}) of {metrics:?}")));
    }
    missing
}

fn is_of_target(label: &str) -> bool {
    TARGET_LABELS.contains(&label)
}

/// The expressions of each program's alerts, and those of the dashboard.
async fn all_references() -> [BTreeMap<String, References>; 3] {
    let of_alerts = PROGRAMS.map(|(_, folder)| {
        let alerts = alerts_in(folder);
        let named =
            alerts.iter().map(|alert| (text(alert, "alert").to_owned(), text(alert, "expr").to_owned()));
        named.collect::<BTreeMap<_, _>>()
    });
    let mut of_panels = BTreeMap::new();
    for panel in panels() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let name = format!("{} {} {}", panel["id"], text(&panel, "title"), text(target, "refId"));
            let expression = text(target, "expr").replace("$__rate_interval", "5m");
            assert!(of_panels.insert(name.clone(), expression).is_none(), "two panels are {name}");
        }
    }
    assert!(of_panels.len() > 30, "only {} expressions of panels were found", of_panels.len());
    let [operator, agent] = of_alerts;
    [references(&operator).await, references(&agent).await, references(&of_panels).await]
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_expose_every_metric_and_label_used_by_alerts_and_panels() {
    let [operator_alerts, agent_alerts, of_panels] = all_references().await;
    let prepare = World::prepare().setting("kubesvc.cache.cacheKinds", json!(["namespace", "secret"]));
    let world = prepare.start().await;
    let port = ports::free();
    let agent = world.agent("agent-1").setting("prometheus", json!({"enabled": true, "port": port}));
    let _agent = agent.start().await;
    // Some counters have a label whose values come with the first event: an account that works and has a kind that may not
    // be read, one that does not work, and a connection that the hub refuses.
    let cluster = world.cluster_with_rights("prod", &["namespaces"]).await;
    world.account("prod").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    let nobody = cluster.kubeconfig_at(&format!("https://127.0.0.1:{}", ports::free()));
    world.account("lost").zone("east").kubeconfig(&nobody).create().await;
    speak_http1(world.operator().hub_port()).await;
    eventually("all metrics and labels", MAX_WAIT, async || {
        let operator = Exposition::read(&world.try_get("/metrics").await?.text);
        let agent = Exposition::read(&get_from(port, "/metrics").await?.text);
        let both = operator.clone().with(agent.clone());
        let mut left = Vec::new();
        for (named, exposed) in [(&operator_alerts, &operator), (&agent_alerts, &agent), (&of_panels, &both)]
        {
            for (name, expression) in named {
                let missing = missing(expression, exposed);
                if !missing.is_empty() {
                    left.push(format!("{name}: {}", missing.join(", ")));
                }
            }
        }
        if left.is_empty() { Ok(()) } else { Err(left.join("\n")) }
    })
    .await;
}

/// Opens a connection to the hub in a protocol that it does not speak, and waits for its end.
async fn speak_http1(port: u16) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.expect("the hub listens");
    stream.write_all(b"GET / HTTP/1.1\r\nhost: hub\r\n\r\n").await.expect("it can be written");
    let _ = stream.read_to_end(&mut Vec::new()).await;
}

#[tokio::test]
async fn containers_in_expressions_exist_in_the_manifests() {
    for (program, file) in
        [("operator", "config/operator/deployment.yaml"), ("agent", "config/agent/stateful-set.yaml")]
    {
        let container = &read_yaml(file)["spec"]["template"]["spec"]["containers"][0]["name"];
        assert_eq!(*container, format!("kubesvc-{program}"));
    }
    let allowed = ["kubesvc-operator", "kubesvc-agent"];
    for (name, expression) in all_references().await.into_iter().flatten() {
        for matcher in expression.selectors.iter().flat_map(|selector| &selector.matchers) {
            if matcher.label == "container" {
                assert!(
                    matcher.op == "=" && allowed.contains(&matcher.value.as_str()),
                    "{name}: {matcher:?}"
                );
            }
        }
    }
}

#[tokio::test]
async fn unknown_metrics_and_labels_of_an_expression_are_found() {
    let exposed = Exposition::read("a_total{x=\"1\"} 1\nb 1\n# EOF\n");
    let expressions = [
        ("none", "sum by (x, pod) (rate(a_total{x=\"1\", namespace=\"n\"}[5m])) / on (namespace) b"),
        ("metric", "a - b"),
        ("label", "a_total{y=\"1\"}"),
        ("value", "a_total{x=~\"1|2\"}"),
        ("grouping", "sum by (y) (a_total)"),
    ];
    let expressions = expressions.map(|(name, expression)| (name.to_owned(), expression.to_owned()));
    let found = references(&expressions.into()).await;
    let missing = |name: &str| missing(&found[name], &exposed);
    assert!(missing("none").is_empty(), "{:?}", missing("none"));
    assert_eq!(missing("metric"), ["a"]);
    assert_eq!(missing("label"), ["a_total{y}"]);
    assert_eq!(missing("value"), ["a_total{x=\"2\"}"]);
    assert_eq!(missing("grouping"), ["by (y) of [\"a_total\"]"]);
}
