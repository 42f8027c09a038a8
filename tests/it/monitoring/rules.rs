//! The alerts: what they say, what promtool says about them, and a runbook for each.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::{PROGRAMS, alerts_in, read, read_yaml, text};
use kubesvc_testkit::folder::Folder;
use kubesvc_testkit::{assets, must};

/// Where the runbooks are published.
const RUNBOOKS: &str = "https://github.com/kubesvc/kubesvc/blob/main/docs/runbooks.md#";

fn promtool(folder: &Path, arguments: &[&str]) {
    let promtool = must(assets::prometheus_tools()).promtool;
    let mut command = Command::new(&promtool);
    let ended = command.current_dir(folder).args(arguments).stdin(Stdio::null()).output();
    let ended = must(ended.map_err(|error| format!("{}: {error}", promtool.display())));
    let said = [ended.stdout, ended.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(ended.status.success(), "promtool {}:\n{said}", arguments.join(" "));
}

/// Rules as Prometheus reads them, in which `change` has changed each rule.
fn write_rules(to: &Folder, program: &str, folder: &str, change: impl Fn(&mut Value)) -> String {
    let mut rules = read_yaml(&format!("{folder}/prometheus-rule.yaml"))["spec"].take();
    for group in rules["groups"].as_array_mut().expect("groups") {
        group["rules"].as_array_mut().expect("rules").iter_mut().for_each(&change);
    }
    let name = format!("{program}-rules.yaml");
    must(to.write(&name, &rules.to_string()));
    name
}

#[test]
fn promtool_accepts_the_rules() {
    let folder = must(Folder::new("rules"));
    for (program, source) in PROGRAMS {
        let rules = write_rules(&folder, program, source, |_| {});
        promtool(folder.path(), &["check", "rules", "--lint=all", "--lint-fatal", &rules]);
    }
}

#[test]
fn every_alert_fires_under_its_condition_and_resolves() {
    let folder = must(Folder::new("rule-tests"));
    for (program, source) in PROGRAMS {
        // Summary and runbook have no variables.
        write_rules(&folder, program, source, |rule| {
            rule["annotations"] = json!({"description": rule["annotations"]["description"]});
        });
        let tests = format!("{program}.yaml");
        must(folder.write(&tests, &read(&format!("tests/monitoring/{tests}"))));
        promtool(folder.path(), &["test", "rules", &tests]);
    }
}

#[test]
fn every_alert_has_a_test_of_pending_firing_and_resolved() {
    for (program, source) in PROGRAMS {
        let tests = read_yaml(&format!("tests/monitoring/{program}.yaml"));
        let tests = tests["tests"].as_array().expect("tests");
        for alert in alerts_in(source) {
            let name = text(&alert, "alert");
            // Whether the alert fires, at the times at which each test looks.
            let seen = tests.iter().map(|test| {
                let looks = test["alert_rule_test"].as_array().expect("looks").iter();
                let looks = looks.filter(|look| text(look, "alertname") == name);
                looks.map(|look| look["exp_alerts"].as_array().is_some_and(|all| !all.is_empty())).collect()
            });
            let seen: Vec<Vec<bool>> = seen.collect();
            let is_whole = |looks: &Vec<bool>| {
                looks.first() == Some(&false) && looks.contains(&true) && looks.last() == Some(&false)
            };
            assert!(seen.iter().any(is_whole), "{program}: {name}: {seen:?}");
        }
    }
}

#[test]
fn every_alert_names_its_object_and_links_to_a_runbook_and_no_runbook_is_left_over() {
    let page = read("docs/runbooks.md");
    let headings: BTreeSet<_> = page.lines().filter_map(|line| line.strip_prefix("### ")).collect();
    let mut names = BTreeSet::new();
    for (_, source) in PROGRAMS {
        for alert in alerts_in(source) {
            let name = text(&alert, "alert").to_owned();
            assert!(name.starts_with("Kubesvc"), "{name}");
            let severity = text(&alert["labels"], "severity");
            assert!(["critical", "warning"].contains(&severity), "{name}: {severity}");
            let annotations = &alert["annotations"];
            assert!(text(annotations, "summary").ends_with('.'), "{name}: {annotations}");
            let description = text(annotations, "description");
            assert!(description.contains("$labels.namespace"), "{name}: {description}");
            let runbook = text(annotations, "runbook_url");
            assert_eq!(runbook, format!("{RUNBOOKS}{}", name.to_lowercase()), "{name}");
            assert!(headings.contains(name.as_str()), "docs/runbooks.md has no section {name}");
            assert!(names.insert(name), "{annotations} is there twice");
        }
    }
    let left: Vec<_> = headings.iter().filter(|heading| !names.contains(**heading)).collect();
    assert!(left.is_empty(), "docs/runbooks.md has sections without an alert: {left:?}");
    assert!((10..=32).contains(&names.len()), "{} alerts: {names:?}", names.len());
}

#[test]
fn every_runbook_has_meaning_diagnosis_and_remedy() {
    let page = read("docs/runbooks.md");
    for section in page.split("\n### ").skip(1) {
        let name = section.lines().next().unwrap_or_default();
        for part in ["**Meaning.**", "**Look.**", "**Act.**"] {
            assert_eq!(section.matches(part).count(), 1, "{name}: {part}");
        }
    }
}
