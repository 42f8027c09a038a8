//! The matrix: each step × each kind of write × each fault, counted in the audit log of the API server.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::time::Instant;

use futures::future::join_all;
use http::{Method, Request};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::rounds::{FAULTS, Fault, Round, STEPS, Step};
use super::scene::{ACCOUNT, Scene};
use super::until_written;
use super::verdict::{Seen, Told, faults_of};
use super::writes::{KINDS, WriteKind};
use crate::world::MAX_WAIT;
use kubesvc_testkit::controlplane::kubectl_with;
use kubesvc_testkit::must;
use kubesvc_testkit::wait::{eventually, try_eventually};

/// One cell that was tried, and what was wrong.
struct Tried {
    round: Round,
    kind: WriteKind,
    wrong: Vec<String>,
}

/// A write of a round.
#[derive(Clone)]
struct Cell {
    round: Round,
    kind: WriteKind,
    name: String,
}

#[tokio::test(flavor = "multi_thread")]
async fn each_step_and_each_kind_of_write_survives_a_fault() {
    let chosen = [
        (Step::Asked, Fault::StreamCut, true),
        (Step::Recorded, Fault::AgentKilled, true),
        (Step::Relayed, Fault::BetweenKilled, true),
        (Step::Opened, Fault::StreamMoved, false),
        (Step::Sent, Fault::ApiCut, false),
        (Step::Applied, Fault::StreamMoved, true),
        (Step::Answered, Fault::AskedKilled, true),
        (Step::Returned, Fault::BetweenKilled, true),
        (Step::Acknowledged, Fault::AgentKilled, false),
    ];
    try_all(chosen.into_iter()).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-all"]
async fn every_step_of_every_kind_of_write_survives_every_fault() {
    let all = STEPS.into_iter().flat_map(|step| {
        let of_step = FAULTS.into_iter().map(move |fault| (step, fault));
        of_step.flat_map(|(step, fault)| [true, false].map(|is_relayed| (step, fault, is_relayed)))
    });
    // To look at a part of it.
    let only = std::env::var("KUBESVC_STEP").unwrap_or_default();
    try_all(all.filter(|(step, fault, _)| format!("{step:?} {fault:?}").contains(&only))).await;
}

/// Runs rounds one after the other, and fails with all that was wrong.
async fn try_all(rounds: impl Iterator<Item = (Step, Fault, bool)>) {
    let rounds = rounds.enumerate();
    let rounds = rounds.map(|(number, (step, fault, is_relayed))| Round { number, step, fault, is_relayed });
    let (scene, begun) = (Scene::start().await, Instant::now());
    let mut tried = Vec::new();
    for round in rounds.filter(|round| round.makes_sense()) {
        let began = Instant::now();
        let of_round = try_round(&scene, round).await;
        let wrong = of_round.iter().filter(|cell| !cell.wrong.is_empty()).count();
        let took = began.elapsed().as_secs_f64();
        say(&format!("{round:?}: {} tried, {wrong} wrong, {took:.1} s\n", of_round.len()));
        tried.extend(of_round);
    }
    let wrong: Vec<_> = tried.iter().filter(|cell| !cell.wrong.is_empty()).map(line).collect();
    say(&format!(
        "{}\n{}{} writes tried, {} wrong, in {:.0} s\n",
        table("step", &tried, |round| format!("{:?}", round.step)),
        table("fault", &tried, |round| format!("{:?}", round.fault)),
        tried.len(),
        wrong.len(),
        begun.elapsed().as_secs_f64()
    ));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn line(cell: &Tried) -> String {
    format!("{:?} {}: {}", cell.round, cell.kind.name(), cell.wrong.join("; "))
}

/// Not captured, because it reports what the test has done.
fn say(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// How many were tried and passed, by kind.
fn table(what: &str, tried: &[Tried], row: impl Fn(Round) -> String) -> String {
    let mut counts: BTreeMap<String, BTreeMap<WriteKind, (usize, usize)>> = BTreeMap::new();
    let mut order = Vec::new();
    for cell in tried {
        let name = row(cell.round);
        if !order.contains(&name) {
            order.push(name.clone());
        }
        let count = counts.entry(name).or_default().entry(cell.kind).or_default();
        count.0 += usize::from(cell.wrong.is_empty());
        count.1 += 1;
    }
    let mut text = format!("{what:<14}");
    text.extend(KINDS.iter().map(|kind| format!("{:>12}", kind.name())));
    for name in order {
        text += &format!("\n{name:<14}");
        text.extend(KINDS.iter().map(|kind| {
            let (passed, all) = counts[&name].get(kind).copied().unwrap_or_default();
            let cell = if all == 0 { String::new() } else { format!("{passed}/{all}") };
            format!("{cell:>12}")
        }));
    }
    text + "\n"
}

async fn try_round(scene: &Scene, round: Round) -> Vec<Tried> {
    scene.ready(Round::AGENT_AT).await;
    let cell =
        |kind: WriteKind| Cell { round, kind, name: format!("cell-{:03}-{}", round.number, kind.name()) };
    let cells: Vec<_> = round.kinds().map(cell).collect();
    join_all(cells.iter().map(|cell| cell.set_up(scene))).await;
    round.arm(scene);
    let (go, late) = watch::channel(!round.reads_before());
    let (told, reached) = if matches!(round.step, Step::Recorded | Step::Acknowledged) {
        let told = join_all(cells.iter().map(|cell| cell.ask(scene, round.asked_at(), &late))).await;
        let reached = until_all_written(scene).await;
        round.strike(scene);
        (told, reached)
    } else {
        let faults = async {
            let reached = async {
                if round.reads_before() {
                    round.pass_reads(scene).await?;
                    go.send_replace(true);
                }
                round.until_there(scene).await?;
                if round.step == Step::Asked { Ok(()) } else { until_all_written(scene).await }
            };
            let reached = reached.await;
            go.send_replace(true);
            round.strike(scene);
            reached
        };
        let asked = join_all(cells.iter().map(|cell| cell.ask(scene, round.asked_at(), &late)));
        tokio::join!(asked, faults)
    };
    let settled = until_settled(scene).await;
    let seen = cells.iter().zip(told).map(|(cell, (told, took))| cell.look(scene, told, took));
    let seen = join_all(seen).await;
    let judged = cells.into_iter().zip(seen).map(|(cell, seen)| {
        let mut wrong = faults_of(round, &seen);
        wrong.extend(settled.as_ref().err().cloned());
        wrong.extend(reached.as_ref().err().map(|why| format!("the step was not reached: {why}")));
        if !wrong.is_empty() {
            wrong.push(format!("told {:?}, record {:?}, again {:?}", seen.told, seen.outcome, seen.again));
            wrong.extend(seen.writes.iter().map(|one| format!("{} {} {}", one.verb, one.code, one.audit_id)));
        }
        Tried { round, kind: cell.kind, wrong }
    });
    judged.collect()
}

/// Waits until the rows of writes that were sent name the agent's process: that is written a moment later.
async fn until_agents_known(scene: &Scene) -> Result<(), String> {
    let nameless = "SELECT count(*) FROM kubesvc_ops WHERE state = 'SENT' AND agent_boot_id IS NULL";
    try_eventually("rows with the agent's process", MAX_WAIT, async || {
        let mut connection = scene.world.open_database().await.map_err(|e| e.to_string())?;
        let rows = connection.number(nameless).await.map_err(|e| e.to_string())?;
        if rows == 0 { Ok(()) } else { Err(format!("{rows} without")) }
    })
    .await
}

/// Waits until the replicas have written all rows.
async fn until_all_written(scene: &Scene) -> Result<(), String> {
    for at in [0, 1] {
        until_written(scene.replica(at)).await?;
    }
    until_agents_known(scene).await
}

/// Waits until no operation is open.
async fn until_settled(scene: &Scene) -> Result<(), String> {
    try_eventually("no open operation", MAX_WAIT, async || {
        let mut connection = scene.world.open_database().await.map_err(|e| e.to_string())?;
        let open = connection.number("SELECT count(*) FROM kubesvc_ops").await.map_err(|e| e.to_string())?;
        if open == 0 { Ok(()) } else { Err(format!("{open} are open")) }
    })
    .await
}

impl Cell {
    fn id(&self, namespace: &str) -> String {
        format!("{namespace}-{}", self.name)
    }

    fn path(&self, namespace: &str) -> String {
        let group = if self.kind.resource() == "deployments" { "/apis/apps/v1" } else { "/api/v1" };
        format!("{group}/namespaces/{namespace}/{}/{}", self.kind.resource(), self.name)
    }

    async fn set_up(&self, scene: &Scene) {
        let namespace = scene.world.namespace();
        if self.kind == WriteKind::Aggregated {
            scene.aggregate_at(self.round.asked_at()).await;
        }
        let Some(object) = self.kind.before(namespace, &self.name) else { return };
        let made = make(scene, &self.path(namespace), &object).await;
        if let Some(revision) = self.kind.revision(namespace, &self.name, &made["metadata"]["uid"]) {
            make(scene, &self.path(namespace).replace("/deployments/", "/replicasets/"), &revision).await;
        }
    }

    /// Asks for the write once it may begin.
    async fn ask(
        &self,
        scene: &Scene,
        at: usize,
        late: &watch::Receiver<bool>,
    ) -> (Told, std::time::Duration) {
        if !self.kind.reads_first() {
            let _ = late.clone().wait_for(|go| *go).await;
        }
        let began = Instant::now();
        let told = self.ask_now(scene, at).await;
        (told, began.elapsed())
    }

    async fn ask_now(&self, scene: &Scene, at: usize) -> Told {
        let namespace = scene.world.namespace();
        let Some(operation) = self.kind.operation(namespace, &self.name) else {
            return self.ask_raw(scene, at).await;
        };
        let wait = if self.round.step == Step::Recorded { "" } else { "wait=25s&" };
        let query = format!("?{wait}clientRequestId={}", self.id(namespace));
        match scene.alice.try_run(scene.replica(at), &query, &operation).await {
            Err(error) => Told::Broken(error),
            Ok(answer) if answer.status == 200 && answer.text.is_empty() => Told::Accepted,
            Ok(answer) if answer.status == 200 => of_answer(&answer.json),
            Ok(answer) if matches!(answer.status, 409 | 429 | 503) => Told::NotDone(answer.to_string()),
            Ok(answer) => Told::Other(answer.to_string()),
        }
    }

    /// Makes the request to the account's API.
    async fn ask_raw(&self, scene: &Scene, at: usize) -> Told {
        let namespace = scene.world.namespace();
        let object = WriteKind::after(namespace, &self.name).to_string();
        let collection = format!("/api/v1/namespaces/{namespace}/configmaps");
        let (in_account, by_gateway) = (|path: &str| format!("{}{path}", scene.path()), scene.door(at));
        let (door, method, path, media, body) = match self.kind {
            WriteKind::RawPatch => {
                let patch = json!({"data": {"key": "1"}}).to_string();
                (by_gateway, Method::PATCH, self.path(namespace), "application/merge-patch+json", patch)
            }
            WriteKind::RawDelete => {
                (by_gateway, Method::DELETE, self.path(namespace), "application/json", String::new())
            }
            WriteKind::Aggregated => {
                let token = scene.aggregated_token().await;
                (scene.aggregated_door(&token), Method::POST, collection, "application/json", object)
            }
            _ => {
                let create = ["create", "--raw", &collection, "-f", "-"];
                return match kubectl_with(&scene.kubeconfig(at), create, &object).await {
                    Ok(output) => of_kubectl(output.code, &output.stderr),
                    Err(error) => Told::Other(error),
                };
            }
        };
        match door.write(method, &in_account(&path), media, body).await {
            Ok((code, text)) => of_status(code, text),
            Err(error) => Told::Broken(error),
        }
    }

    /// Looks at what became of it.
    async fn look(&self, scene: &Scene, told: Told, took: std::time::Duration) -> Seen {
        let namespace = scene.world.namespace();
        let user = format!("system:serviceaccount:{namespace}:spinnaker");
        let mut writes = scene.world.control_plane().writes();
        writes.retain(|write| {
            (write.user.as_str(), write.resource.as_str()) == (user.as_str(), self.kind.resource())
                && write.name == self.name
        });
        let client = scene.world.control_plane().client().await;
        let read = Request::get(self.path(namespace)).body(Vec::new()).expect("a path");
        let object = client.request_text(read).await.ok();
        let object = object.and_then(|text| serde_json::from_str::<Value>(&text).ok());
        let is_again = self.round.step == Step::Acknowledged && !self.kind.is_raw();
        let again = if is_again { Some(self.ask_now(scene, self.round.alive_at()).await) } else { None };
        let outcome = self.outcome(scene, &told, writes.first().map(|write| write.audit_id.as_str())).await;
        Seen { kind: self.kind, told, took, outcome, writes, object, again }
    }

    /// The outcome in its record.
    async fn outcome(&self, scene: &Scene, told: &Told, audit_id: Option<&str>) -> Option<String> {
        let replica = scene.replica(self.round.alive_at());
        let is_raw = self.kind.is_raw();
        let records = format!("/armory/agent/operations?account={ACCOUNT}&items=200");
        let read = async || {
            let listed = must(scene.alice.try_get(replica, &records).await);
            let listed = listed.json.as_array().cloned().unwrap_or_default();
            let is_it = |record: &&Value| {
                let id = record["operationId"].as_str().or_else(|| record["id"].as_str());
                if is_raw {
                    id == audit_id
                } else {
                    id == Some(derived(scene, &self.id(scene.world.namespace())).as_str())
                }
            };
            let found = listed.iter().find(is_it);
            found.and_then(|record| record["finalOutcome"].as_str()).map(str::to_owned)
        };
        // What was written through the account's API has its record a moment later: such rows are written in batches.
        let is_certain = matches!(told, Told::Own(_) | Told::Unknown) && (!is_raw || audit_id.is_some());
        let last = Mutex::new(None);
        let reading = try_eventually("the end in its record", MAX_WAIT, async || {
            let outcome = read().await;
            let is_enough = outcome.as_deref() != Some("pending") && (outcome.is_some() || !is_certain);
            *last.lock() = outcome;
            if is_enough { Ok(()) } else { Err("it has not ended".to_owned()) }
        });
        // The verdict judges what was read last.
        drop(reading.await);
        last.into_inner()
    }
}

fn of_answer(json: &Value) -> Told {
    let status = json["status"].as_u64().and_then(|status| u16::try_from(status).ok()).unwrap_or_default();
    match &json["failure"] {
        Value::Null => Told::Own(status),
        failure if failure["class"] == "OUTCOME_UNKNOWN" && status == 504 => Told::Unknown,
        failure if failure["beforeSend"] == true => Told::NotDone(failure["message"].to_string()),
        failure if status >= 500 => Told::Other(failure.to_string()),
        _ => Told::Own(status),
    }
}

/// Creates the object at a path. Returns it.
async fn make(scene: &Scene, path: &str, object: &Value) -> Value {
    let collection = path.rsplit_once('/').map(|(collection, _)| collection).unwrap_or_default();
    let client = scene.world.control_plane().client().await;
    eventually("the object of a write", MAX_WAIT, async || {
        let request = Request::post(collection).header("content-type", "application/json");
        let request = request.body(object.to_string().into_bytes()).map_err(|e| e.to_string())?;
        match client.request_text(request).await {
            Err(error) if !error.to_string().contains("AlreadyExists") => return Err(error.to_string()),
            _ => {}
        }
        let read = Request::get(path).body(Vec::new()).map_err(|e| e.to_string())?;
        let made = client.request_text(read).await.map_err(|e| e.to_string())?;
        serde_json::from_str(&made).map_err(|e| e.to_string())
    })
    .await
}

/// What a client of the account's API was told.
fn of_status(code: u16, text: String) -> Told {
    match code {
        200..300 => Told::Own(code),
        504 if text.contains("unknown") => Told::Unknown,
        // The operator's API server lost the replica.
        502 | 503 if text.contains("error trying to reach service") => Told::Broken(text),
        429 | 503 => Told::NotDone(text),
        _ => Told::Other(format!("{code} {text}")),
    }
}

fn of_kubectl(code: Option<i32>, errors: &str) -> Told {
    let has = |words: &[&str]| words.iter().any(|word| errors.contains(word));
    match code {
        Some(0) => Told::Own(201),
        _ if has(&["unknown"]) => Told::Unknown,
        _ if has(&["ServiceUnavailable", "unable to handle the request"]) => Told::NotDone(errors.to_owned()),
        _ if has(&["EOF", "refused", "reset", "closed", "connection"]) => Told::Broken(errors.to_owned()),
        _ => Told::Other(errors.to_owned()),
    }
}

/// The id of an operation with an id of its caller's own.
fn derived(scene: &Scene, id: &str) -> String {
    use sha2::{Digest as _, Sha256};
    let alice = format!("system:serviceaccount:{}:alice", scene.world.namespace());
    let mut digest = Sha256::new().chain_update(b"kubesvc operation\0");
    for part in [&scene.account_uid, &alice, id] {
        digest.update((part.len() as u64).to_be_bytes());
        digest.update(part);
    }
    let digest = digest.finalize();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    ulid::Ulid::from_bytes(bytes).to_string()
}
