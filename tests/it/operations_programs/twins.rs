//! Random deploys, by the programs into one namespace and by `kubectl apply` into its twin, with others' changes between:
//! after each round the objects are equal, and so are their managers and the annotation last-applied.
//!
//! `KUBESVC_SEED` repeats a run, `KUBESVC_ROUNDS` sets the number of rounds.

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;
use kubesvc_core::operations::Method;
use serde_json::{Map, Value, json};

use super::driver::{ApiServer, deploy};
use super::manifests::{DEPLOYABLES, Deployable, custom_definition};
use kubesvc_testkit::controlplane::{self, ControlPlane};
use kubesvc_testkit::must;
use kubesvc_testkit::namespace::TestNamespace;
use kubesvc_testkit::wait::eventually;

/// Number of rounds in every run of the tests.
const ROUNDS: u64 = 12;

/// The annotation in a set of fields.
const LAST_APPLIED: [&str; 3] =
    ["f:metadata", "f:annotations", "f:kubectl.kubernetes.io/last-applied-configuration"];

/// Two namespaces that are to be equal.
struct Twins {
    plane: &'static ControlPlane,
    server: ApiServer,
    ours: TestNamespace,
    theirs: TestNamespace,
}

/// How a round deploys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    ClientSide,
    ServerSide,
    Forced,
}

impl Mode {
    fn of_operation(self) -> &'static str {
        match self {
            Self::ClientSide => "mode: APPLY",
            Self::ServerSide => "mode: SERVER_SIDE",
            Self::Forced => "mode: SERVER_SIDE force: true",
        }
    }

    fn of_kubectl(self) -> &'static [&'static str] {
        match self {
            Self::ClientSide => &["apply", "-f", "-"],
            Self::ServerSide => &["apply", "-f", "-", "--server-side"],
            Self::Forced => &["apply", "-f", "-", "--server-side", "--force-conflicts"],
        }
    }
}

/// The manifests of a kind for both namespaces.
type Pair = (Value, Value);

/// What a round deploys: the same random manifests into both namespaces.
struct Round {
    mode: Mode,
    manifests: Vec<(Deployable, Pair)>,
}

/// What is known of the kinds, by rounds before.
#[derive(Default)]
struct Known {
    /// What was applied last.
    applied: BTreeMap<&'static str, Pair>,
    /// Those that were applied client-side last.
    client_side: BTreeSet<&'static str>,
    /// Those whose managers differ: a server-side apply that is refused has moved them, where kubectl moves them afterwards.
    moved: BTreeSet<&'static str>,
}

impl Known {
    fn learn(&mut self, round: &Round, refused: &BTreeMap<String, String>) {
        for (Deployable { kind, .. }, pair) in &round.manifests {
            match (round.mode, refused.contains_key(*kind)) {
                (Mode::ClientSide, true) => {}
                (_, true) => {
                    if self.client_side.contains(kind) {
                        self.moved.insert(kind);
                    }
                }
                (mode, false) => {
                    self.applied.insert(kind, pair.clone());
                    if mode == Mode::ClientSide {
                        self.client_side.insert(kind);
                    } else {
                        self.client_side.remove(kind);
                        self.moved.remove(kind);
                    }
                }
            }
        }
    }
}

impl Twins {
    async fn new() -> Self {
        let plane = controlplane::shared().await;
        let definition = custom_definition("gadgets", "Gadget").to_string();
        must(plane.kubectl_with_input(["apply", "-f", "-"], &definition).await.ok());
        let server = ApiServer::new(plane.client().await);
        eventually("a custom kind", std::time::Duration::from_secs(30), async || {
            let list = server.get("/apis/programs.kubesvc.test/v1/gadgets").await;
            if list.is_null() { Err("it is not served".to_owned()) } else { Ok(()) }
        })
        .await;
        Self { plane, server, ours: plane.namespace().await, theirs: plane.namespace().await }
    }

    /// The same manifests for both, from one state of the random numbers.
    ///
    /// What was applied client-side before goes to server-side applies by a forced one of what was applied last. kubectl
    /// sends a new manifest beside what was applied client-side, and moves managers afterwards: a volume that gets another
    /// type would have both for that time, which the API server refuses, and `1000m` conflicts with the `1` that is there.
    /// The programs move managers first.
    fn round(&self, mode: Mode, known: &Known, random: &mut Rng) -> Round {
        let mut manifests = Vec::new();
        for deployable in DEPLOYABLES {
            let mut same = random.clone();
            let mut pair = (
                deployable.manifest(self.ours.name(), random),
                deployable.manifest(self.theirs.name(), &mut same),
            );
            let is_chosen = random.u8(0..5) > 0;
            let moves = mode != Mode::ClientSide && known.client_side.contains(deployable.kind);
            if moves && let Some(applied) = known.applied.get(deployable.kind) {
                pair = applied.clone();
            }
            if is_chosen && !(moves && mode == Mode::ServerSide) {
                manifests.push((deployable, pair));
            }
        }
        Round { mode, manifests }
    }

    /// Deploys, and returns what failed of it: the path, and what was said.
    async fn deploy(&self, round: &Round) -> (BTreeMap<String, String>, String) {
        let mut refused = BTreeMap::new();
        if round.manifests.is_empty() {
            return (refused, String::new());
        }
        for (deployable, (manifest, _)) in &round.manifests {
            let outcome = self.server.run(&deploy(manifest, round.mode.of_operation())).await;
            if let Some(failure) = outcome.failure {
                assert!((400..500).contains(&outcome.status), "{failure:?}");
                refused.insert(deployable.kind.to_owned(), failure.message);
            }
        }
        let theirs: Vec<_> = round.manifests.iter().map(|(_, (_, manifest))| manifest).collect();
        let list = json!({"apiVersion": "v1", "kind": "List", "items": theirs}).to_string();
        let output = self.plane.kubectl_with_input(round.mode.of_kubectl(), &list).await;
        let is_said = |(kind, ours): (&String, &String)| said(round.mode, kind, ours, &output.stderr);
        let refused_by_kubectl = refused.iter().filter(|refusal| is_said(*refusal)).count();
        assert_eq!(output.code == Some(0), refused_by_kubectl == 0, "{refused:#?}\n{output:?}");
        (refused, output.stderr)
    }

    /// Others change some of the objects, in both namespaces alike.
    async fn change(&self, random: &mut Rng) {
        for deployable in DEPLOYABLES {
            if random.u8(0..3) > 0 {
                continue;
            }
            let (content_type, body) = deployable.change_of_others(random);
            let mut statuses = Vec::new();
            for namespace in [&self.ours, &self.theirs] {
                let target = format!("{}?fieldManager=other", deployable.path(namespace.name()));
                let (status, _) = self.server.call(Method::Patch, &target, content_type, &body).await;
                statuses.push(status);
            }
            assert_eq!(statuses[0], statuses[1], "{} {body}", deployable.kind);
        }
    }

    /// The differences of all objects. Without `managers`, those of managers are left out.
    async fn differences(&self, managers: impl Fn(&str) -> bool) -> Vec<String> {
        let mut differences = Vec::new();
        for deployable in DEPLOYABLES {
            let mut both = Vec::new();
            for namespace in [&self.ours, &self.theirs] {
                let object = self.server.get(&deployable.path(namespace.name())).await;
                let mut object = comparable(&object, namespace.name());
                if !managers(deployable.kind) {
                    object["managedFields"] = Value::Null;
                }
                both.push(object);
            }
            differ(deployable.kind, &both[0], &both[1], &mut differences);
        }
        differences
    }
}

/// An object without what must differ: names of the namespace, ids, versions, times, what is allocated, and how often it
/// was written, since kubectl moves managers in another order.
fn comparable(object: &Value, namespace: &str) -> Value {
    let mut text = object.to_string().replace(namespace, "NAMESPACE");
    if let Some(uid) = object["metadata"]["uid"].as_str() {
        text = text.replace(uid, "UID");
    }
    let mut object: Value = serde_json::from_str(&text).expect("JSON");
    for at in [
        "/metadata/resourceVersion",
        "/metadata/creationTimestamp",
        "/metadata/generation",
        "/metadata/annotations/deprecated.daemonset.template.generation",
        "/spec/clusterIP",
        "/spec/clusterIPs",
    ] {
        if let Some(value) = object.pointer_mut(at) {
            *value = Value::Null;
        }
    }
    for port in object.pointer_mut("/spec/ports").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(node_port) = port.get_mut("nodePort") {
            *node_port = Value::Null;
        }
    }
    let entries = object.pointer_mut("/metadata/managedFields").map(Value::take).unwrap_or_default();
    if object.is_object() {
        object["managedFields"] = managers(&entries);
    }
    object
}

/// What each manager manages, by manager, operation, version and subresource.
///
/// kubesvc is what kubectl is to itself. Of server-side applies, kubectl keeps last-applied under a manager of its own,
/// and the programs under theirs: its value is compared, and not who manages it.
fn managers(entries: &Value) -> Value {
    let mut managers = Map::new();
    for entry in entries.as_array().into_iter().flatten() {
        let text = |field: &str| entry[field].as_str().unwrap_or_default();
        let name = match (text("manager"), text("operation")) {
            ("kubectl-last-applied", _) => continue,
            ("kubesvc" | "kubectl", "Apply") => "applier",
            (name, _) => name,
        };
        let key = format!("{name} {} {} {}", text("operation"), text("apiVersion"), text("subresource"));
        let mut fields = entry["fieldsV1"].clone();
        if name == "applier" {
            remove(&mut fields, &LAST_APPLIED);
        }
        unite(managers.entry(key).or_insert_with(|| json!({})), &fields);
    }
    managers.retain(|_, fields| fields.as_object().is_some_and(|fields| !fields.is_empty()));
    managers.into()
}

/// Removes a field of a set, and what is empty then.
fn remove(set: &mut Value, path: &[&str]) {
    let ([name, below @ ..], Some(fields)) = (path, set.as_object_mut()) else { return };
    if let Some(field) = fields.get_mut(*name) {
        remove(field, below);
        if field.as_object().is_some_and(Map::is_empty) {
            fields.remove(*name);
        }
    }
}

fn unite(set: &mut Value, other: &Value) {
    for (name, below) in other.as_object().into_iter().flatten() {
        let Some(set) = set.as_object_mut() else { return };
        unite(set.entry(name.clone()).or_insert_with(|| json!({})), below);
    }
}

/// The paths at which two values differ.
fn differ(path: &str, ours: &Value, theirs: &Value, to: &mut Vec<String>) {
    match (ours, theirs) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: BTreeSet<_> = a.keys().chain(b.keys()).collect();
            for key in keys {
                differ(&format!("{path}.{key}"), &ours[key], &theirs[key], to);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (at, (a, b)) in a.iter().zip(b).enumerate() {
                differ(&format!("{path}[{at}]"), a, b, to);
            }
        }
        (a, b) if a != b => to.push(format!("{path}: {a} is {b} by kubectl")),
        _ => {}
    }
}

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Whether kubectl said the same. It words a refusal in its own way, but each cause stands in both.
///
/// It may have said nothing of a conflict: the API server lets kubectl, by its name, take over a field that somebody else
/// manages with the very value that was applied last.
fn said(mode: Mode, kind: &str, ours: &str, kubectl: &str) -> bool {
    if mode == Mode::ServerSide && ours.starts_with("Apply failed with ") {
        return kubectl.contains(ours);
    }
    let causes = ours.split_once(" is invalid: ").map_or(ours, |(_, causes)| causes);
    let cause = causes.trim_start_matches('[').split([':', ',']).next().unwrap_or(causes);
    assert!(kubectl.contains(cause), "{kind}: {cause} of {ours}\nkubectl: {kubectl}");
    true
}

async fn deploys_are_as_kubectls(seed: u64, rounds: u64) {
    let mut random = Rng::with_seed(seed);
    let twins = Twins::new().await;
    let (mut refusals, mut deploys) = (0, 0);
    let mut known = Known::default();
    for number in 0..rounds {
        let mode = match random.u8(0..10) {
            0..=5 => Mode::ClientSide,
            6..=7 => Mode::Forced,
            _ => Mode::ServerSide,
        };
        let mut round = twins.round(mode, &known, &mut random);
        loop {
            let (refused, kubectl) = twins.deploy(&round).await;
            known.learn(&round, &refused);
            let mut differences = twins.differences(|kind| !known.moved.contains(kind)).await;
            // A forced round follows.
            for (kind, _) in refused.iter().filter(|(kind, ours)| !said(round.mode, kind, ours, &kubectl)) {
                differences.retain(|difference| !difference.starts_with(&format!("{kind}.")));
            }
            assert!(
                differences.is_empty(),
                "KUBESVC_SEED={seed}, round {number}, {:?}:\n{}\nrefused: {refused:#?}\nkubectl: {kubectl}",
                round.mode,
                differences.join("\n")
            );
            deploys += round.manifests.len();
            refusals += refused.len();
            if refused.is_empty() || round.mode != Mode::ServerSide {
                break;
            }
            round.mode = Mode::Forced;
        }
        twins.change(&mut random).await;
        let differences = twins.differences(|_| false).await;
        assert!(
            differences.is_empty(),
            "KUBESVC_SEED={seed}, others' changes of round {number}: {differences:#?}"
        );
    }
    eprintln!("KUBESVC_SEED={seed}: {rounds} rounds, {deploys} deploys, {refusals} refused");
}

#[tokio::test]
async fn random_deploys_are_as_kubectls() {
    let seed = from_environment("KUBESVC_SEED").unwrap_or_else(|| fastrand::u64(..1_000_000));
    deploys_are_as_kubectls(seed, from_environment("KUBESVC_ROUNDS").unwrap_or(ROUNDS)).await;
}
