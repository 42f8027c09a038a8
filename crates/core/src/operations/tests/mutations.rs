//! Random mutations of operations, manifests and answers: what a fuzzer does that knows no coverage. Nothing panics, and no
//! error repeats a manifest. Every run of the tests has some, and `make fuzz` as many as fit into its time.
//!
//! `KUBESVC_SEED` repeats a run, `KUBESVC_FUZZ_SECONDS` sets the time of each target.

use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use fastrand::Rng;
use serde_json::Value;

use super::patches::patched;
use super::{
    ApiAnswer, ApplySettings, ProgramContext, Step, deploy, kinds, operation_from_json, program_for,
};
use crate::operations::manifest::{self, MAX_MANIFEST_BYTES};
use crate::operations::merge::three_way_patch;
use crate::operations::{Operation, operation_from_text, result_from_text};

/// Number of inputs of each target in every run of the tests.
const INPUTS: usize = 2_000;
/// Time of each target in `make fuzz`, in seconds.
const LONG_RUN_SECONDS: u64 = 60;
/// Maximum number of steps of a program that is given random answers.
const MAX_STEPS: usize = 40;
/// What no error may repeat.
const CANARY: &str = "canary";

const TARGET: &str =
    r#"target { group: "apps" version: "v1" kind: "Deployment" namespace: "n" name: "web" }"#;
const VERBS: [&str; 12] = [
    r#"deploy { manifest { data: "{\"apiVersion\":\"v1\",\"kind\":\"Secret\",\"metadata\":{\"name\":\"s\"}}" } }"#,
    r#"deploy { manifest { data: "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web, namespace: n}\n" } mode: RECREATE }"#,
    r#"delete { TARGET propagation: FOREGROUND grace_s: 1 ignore_not_found: true }"#,
    r#"delete { target { kind: "Pod" namespace: "n" } label_selector: "a in (b)" }"#,
    r#"patch { TARGET type: JSON body { data: "[{\"op\":\"remove\",\"path\":\"/spec\"}]" } record: true }"#,
    r#"scale { TARGET replicas: 3 }"#,
    r#"undo_rollout { TARGET revisions_back: 1 }"#,
    r#"revision_history { TARGET }"#,
    r#"list { target { kind: "Pod" } limit: 5 continue: "x" }"#,
    r#"logs { target { kind: "Pod" namespace: "n" name: "p" } tail: 3 limit_bytes: 9 }"#,
    r#"restart_rollout { TARGET } deadline_ms: 1000"#,
    "discovery { }",
];
const MANIFESTS: [&str; 5] = [
    "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: canary\n  namespace: n\ndata: {a: \"1\", b: |\n    x\n  }\n",
    r#"{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "canary", "finalizers": ["a", "b"]}, "spec":
    {"strategy": {"type": "Recreate"}, "template": {"spec": {"containers": [{"name": "a", "env": [{"name": "X", "value":
    "1"}], "ports": [{"containerPort": 80}]}, {"name": "b"}], "volumes": [{"name": "v", "emptyDir": {}}]}}}}"#,
    r#"{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "canary", "uid": "1", "resourceVersion": "7",
    "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"}, "managedFields": [{"manager": "kubesvc",
    "operation": "Apply", "fieldsV1": {"f:spec": {}}}]}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template":
    {"spec": {"containers": [{"name": "b", "image": "i"}, {"name": "c"}], "volumes": [{"name": "v", "secret": {}}]}}}}"#,
    r#"{"metadata": {"continue": "x"}, "items": [{"metadata": {"name": "r", "annotations":
    {"deployment.kubernetes.io/revision": "1"}, "ownerReferences": [{"uid": "1", "controller": true}]}, "revision": 1,
    "data": {"spec": {"template": {}}}, "spec": {"template": {"metadata": {"labels": {}}}}}]}"#,
    r#"{"groupVersion": "apps/v1", "versions": ["v1"], "groups": [{"versions": [{"groupVersion": "apps/v1"}]}],
    "resources": [{"name": "deployments", "kind": "Deployment", "namespaced": true}], "message": "no"}"#,
];
/// Texts on which the code decides.
const TOKENS: [&str; 24] = [
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "\\",
    "\n",
    "\t",
    "- ",
    "---\n",
    "&a ",
    "*a",
    "null",
    "1e999",
    "!!binary ",
    "\u{0}",
    "name",
    "containers",
    "$patch",
    "metadata",
    "<",
    "'",
];

/// Does something with random input.
type Target = fn(&mut Rng);

#[derive(Clone, Copy)]
enum Limit {
    Inputs(usize),
    Time(Duration),
}

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Gives a target random numbers, again and again.
fn run(name: &str, limit: Limit, target: Target) {
    let seed = from_environment("KUBESVC_SEED").unwrap_or_else(|| fastrand::u64(..1_000_000));
    let mut random = Rng::with_seed(seed);
    let (begun, mut inputs) = (Instant::now(), 0_usize);
    let goes_on = |inputs: usize| match limit {
        Limit::Inputs(most) => inputs < most,
        Limit::Time(most) => begun.elapsed() < most,
    };
    while goes_on(inputs) {
        let result = std::panic::catch_unwind(AssertUnwindSafe(|| target(&mut random)));
        assert!(result.is_ok(), "KUBESVC_SEED={seed}, input {inputs} of {name}");
        inputs += 1;
    }
    eprintln!("{name}: {inputs} inputs, KUBESVC_SEED={seed}, {:.1} s", begun.elapsed().as_secs_f64());
}

fn one_of<'t>(texts: &[&'t str], random: &mut Rng) -> &'t str {
    texts[random.usize(0..texts.len())]
}

/// A place between two characters.
fn place(text: &str, random: &mut Rng) -> usize {
    text.floor_char_boundary(random.usize(0..=text.len()))
}

/// The text after a few changes; in one of four cases as it is.
fn mutated(text: &str, random: &mut Rng) -> String {
    let mut text = text.to_owned();
    for _ in 0..random.usize(0..4) {
        let from = place(&text, random);
        let to = text.floor_char_boundary((from + random.usize(0..24)).min(text.len()));
        match random.u8(0..4) {
            0 => drop(text.drain(from..to)),
            1 => text.insert_str(from, one_of(&TOKENS, random)),
            2 => {
                let copy = text[from..to].to_owned();
                let at = place(&text, random);
                text.insert_str(at, &copy);
            }
            _ => text.truncate(from),
        }
    }
    text
}

fn some_text(random: &mut Rng) -> String {
    let verb = one_of(&VERBS, random).replace("TARGET", TARGET);
    format!("account {{ name: \"a\" }} {verb}")
}

/// Runs the program of an operation on random answers.
fn answered(operation: &Operation, random: &mut Rng) {
    let context = ProgramContext {
        kinds: &kinds(),
        now: Duration::from_secs(2),
        began: Duration::from_secs(1),
        time_of_day: "2026-01-01T00:00:00Z",
        operation_id: "01J00000000000000000000000",
        dry_run: random.bool(),
        apply: &ApplySettings::default(),
    };
    let Ok(mut program) = program_for(operation, &context) else { return };
    let mut elapsed = Duration::ZERO;
    let mut step = program.next(elapsed, None);
    for _ in 0..MAX_STEPS {
        step = match step {
            Step::Request(request) => {
                assert!(request.target.starts_with('/') && !request.target.contains("//"), "{request:?}");
                let status = [200, 200, 200, 201, 404, 409, 422, 500][random.usize(0..8)];
                let body = mutated(one_of(&MANIFESTS, random), random).into_bytes();
                program.next(elapsed, Some(&ApiAnswer { status, body, ..ApiAnswer::default() }))
            }
            Step::Wait(time) => {
                elapsed += time;
                program.next(elapsed, None)
            }
            Step::Done(_) => return,
        };
    }
}

fn text(random: &mut Rng) {
    let text = mutated(&some_text(random), random);
    let _ = result_from_text(&text);
    if let Ok(operation) = operation_from_text(&text) {
        let _ = (operation.object(), operation.may_run_again(None), operation.kind());
        answered(&operation, random);
    }
}

fn json(random: &mut Rng) {
    let text = mutated(
        r#"{"account": {"name": "a"}, "deadlineMs": 5, "patch": {"target": {"kind": "Pod", "namespace": "n", "name": "p"},
        "type": "MERGE", "body": {"data": "{}"}}}"#,
        random,
    );
    let Ok(value) = serde_json::from_str(&text) else { return };
    if let Ok(operation) = operation_from_json(&value) {
        answered(&operation, random);
    }
}

fn manifests(random: &mut Rng) {
    let text = mutated(one_of(&MANIFESTS, random), random);
    let refused = match manifest::parse(&text) {
        Ok(object) => manifest::identity(&object).err(),
        Err(error) => Some(error),
    };
    let refused = refused.map(|error| error.to_string()).unwrap_or_default();
    assert!(!refused.contains(CANARY), "{refused}\n{text}");
    if let Ok(value) = manifest::parse_any(&text)
        && let Ok(operation) = operation_from_text(&deploy(&value, ""))
    {
        answered(&operation, random);
    }
    assert!(text.len() < MAX_MANIFEST_BYTES);
}

fn merges(random: &mut Rng) {
    let tree = |random: &mut Rng| -> Value {
        let text = mutated(one_of(&MANIFESTS[1..4], random), random);
        serde_json::from_str(&text).unwrap_or_default()
    };
    let (last, manifest, live) = (tree(random), tree(random), tree(random));
    let (group, kind) = [("apps", "Deployment"), ("", "Pod"), ("example.com", "Widget")][random.usize(0..3)];
    let Some(patch) = three_way_patch(group, kind, &last, &manifest, &live) else { return };
    assert!(patch.body.as_object().is_some_and(|body| !body.is_empty()));
    let merged = patched(&live, &patch.body);
    if group == "example.com" && !patch.body.to_string().contains('$') {
        // Each list is replaced, so nothing is left to do.
        assert_eq!(three_way_patch(group, kind, &manifest, &manifest, &merged), None, "{merged}");
    }
}

const TARGETS: [(&str, Target); 4] =
    [("texts", text), ("JSON", json), ("manifests", manifests), ("merges", merges)];

#[test]
fn mutated_operations_and_answers_end_without_panic() {
    for (name, target) in TARGETS {
        run(name, Limit::Inputs(INPUTS), target);
    }
}

#[test]
#[ignore = "four minutes: make fuzz"]
fn mutations_of_operations_for_as_long_as_asked() {
    let seconds = from_environment("KUBESVC_FUZZ_SECONDS").unwrap_or(LONG_RUN_SECONDS);
    for (name, target) in TARGETS {
        run(name, Limit::Time(Duration::from_secs(seconds)), target);
    }
}
