//! The dashboard: JSON that Grafana loads as it is.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{PROGRAMS, read, text};

/// Variables of Grafana itself.
const OF_GRAFANA: [&str; 1] = ["__rate_interval"];

fn dashboard() -> Value {
    let (_, folder) = PROGRAMS[0];
    serde_json::from_str(&read(&format!("{folder}/dashboard.json"))).expect("the dashboard is JSON")
}

/// All panels, rows included.
pub(super) fn panels() -> Vec<Value> {
    dashboard()["panels"].as_array().expect("panels").clone()
}

#[test]
fn every_panel_uses_the_selected_prometheus_and_has_a_description() {
    let mut ids = BTreeSet::new();
    for panel in panels() {
        let title = text(&panel, "title");
        assert!(!title.is_empty() && ids.insert(panel["id"].as_u64().expect("an id")), "{panel}");
        if panel["type"] == "row" {
            continue;
        }
        assert!(text(&panel, "description").ends_with('.'), "{title}");
        let targets = panel["targets"].as_array().expect("targets");
        assert!(!targets.is_empty(), "{title}");
        for asked in targets.iter().chain([&panel]) {
            assert_eq!(asked["datasource"]["uid"], "${datasource}", "{title}");
        }
    }
}

#[test]
fn panels_fit_the_width_and_do_not_overlap() {
    let mut taken = BTreeSet::new();
    for panel in panels() {
        let at = |key: &str| panel["gridPos"][key].as_u64().expect("a position");
        assert!(at("x") + at("w") <= 24, "{panel}");
        for x in at("x")..at("x") + at("w") {
            for y in at("y")..at("y") + at("h") {
                assert!(taken.insert((x, y)), "{} covers another at {x}, {y}", text(&panel, "title"));
            }
        }
    }
}

#[test]
fn every_variable_of_an_expression_is_defined() {
    let dashboard = dashboard();
    let list = dashboard["templating"]["list"].as_array().expect("variables");
    let defined: BTreeSet<_> = list.iter().map(|variable| text(variable, "name")).collect();
    assert!(list.iter().any(|one| one["type"] == "datasource" && one["query"] == "prometheus"));
    for panel in panels() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            for rest in text(target, "expr").split('$').skip(1) {
                let name = rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next();
                let name = name.unwrap_or_default();
                assert!(defined.contains(name) || OF_GRAFANA.contains(&name), "{target}");
            }
        }
    }
}

#[test]
fn the_dashboard_has_a_row_for_each_part() {
    let panels = panels();
    let rows: Vec<_> =
        panels.iter().filter(|panel| panel["type"] == "row").map(|row| text(row, "title")).collect();
    let wanted = [
        "Accounts by state",
        "Agents",
        "Leader and replicas",
        "Writes to the API server",
        "Database",
        "Cached objects",
        "Background tasks",
        "Agents, as they see it",
    ];
    assert_eq!(rows, wanted);
}
