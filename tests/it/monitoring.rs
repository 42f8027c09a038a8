//! What watches kubesvc: the alerts, their unit tests and runbooks, and the dashboard. Prometheus' own programs read the
//! rules and expressions, and the programs themselves say which metrics exist.

mod dashboard;
mod exposition;
mod expressions;
mod rules;

use serde_json::Value;

use crate::world::in_repository;
use kubesvc_testkit::must;

/// The rules of each program, and the folder with what watches it.
const PROGRAMS: [(&str, &str); 2] =
    [("operator", "charts/kubesvc/files/monitoring"), ("agent", "charts/kubesvc-agent/files/monitoring")];

fn read(path: &str) -> String {
    must(std::fs::read_to_string(in_repository(path)).map_err(|error| format!("{path}: {error}")))
}

fn read_yaml(path: &str) -> Value {
    must(serde_saphyr::from_str(&read(path)).map_err(|error| format!("{path}: {error}")))
}

/// The alerts of a folder: the rules of its PrometheusRule.
fn alerts_in(folder: &str) -> Vec<Value> {
    let rule = read_yaml(&format!("{folder}/prometheus-rule.yaml"));
    let groups = rule["spec"]["groups"].as_array().expect("groups").iter();
    groups.flat_map(|group| group["rules"].as_array().expect("rules").clone()).collect()
}

/// A text of an object, empty if it is absent.
fn text<'a>(object: &'a Value, key: &str) -> &'a str {
    object[key].as_str().unwrap_or_default()
}
