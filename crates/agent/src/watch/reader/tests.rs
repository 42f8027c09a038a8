//! A reader against an API server in the process.

use std::collections::{BTreeMap, VecDeque};
use std::io;

use futures::{FutureExt as _, SinkExt as _, stream};
use http::Response;
use http_body_util::StreamBody;
use hyper::body::Frame;
use serde_json::json;
use tokio::sync::{Notify, oneshot, watch};
use tokio_util::task::AbortOnDropHandle;

use super::*;
use crate::cluster::tests::test_server::{Authority, ServerOptions, TestBody, TestServer, kubeconfig, whole};
use crate::cluster::{ClusterContext, ClusterEndpoint, PoolLimits};
use crate::scrub::{BodyLimits, ObjectRules};
use crate::watch::{ScopeStart, ScopeTiming};
use kubesvc_core::agent_policy::AgentPolicy;
use kubesvc_core::kubeconfig::vet;
use kubesvc_core::wire::common::failure::Class;
use kubesvc_core::wire::events::{LeftOutObjects, SyncStart};

/// What a reader said, in order.
#[derive(Clone, Debug, PartialEq)]
enum Said {
    Upsert(String, String),
    Delete(String),
    Checkpoint(String),
    SyncStart(SyncStart),
    Synced(Synced),
    Problem(Option<i32>),
    /// How many objects are left out, and the names of the first.
    LeftOut(u32, Vec<String>),
}

#[derive(Debug, Default)]
struct Heard {
    said: watch::Sender<Vec<Said>>,
    /// Events that are refused before the next one is taken.
    refused: Mutex<usize>,
    room: Notify,
    waits: Notify,
}

#[derive(Clone, Debug, Default)]
struct Sink(Arc<Heard>);

impl Sink {
    fn say(&self, said: Said) {
        self.0.said.send_modify(|all| all.push(said));
    }
}

impl ReaderSink for Sink {
    fn event(&self, event: Event) -> Result<(), Box<Event>> {
        let mut refused = self.0.refused.lock();
        if *refused > 0 {
            *refused -= 1;
            return Err(Box::new(event));
        }
        self.say(match event.op() {
            Operation::Delete => Said::Delete(event.name),
            _ => Said::Upsert(event.name, event.rv),
        });
        Ok(())
    }

    fn checkpoint(&self, resource_version: String) {
        self.say(Said::Checkpoint(resource_version));
    }

    fn sync_start(&self, sync_key: String) {
        self.say(Said::SyncStart(SyncStart { scope_id: 0, sync_key }));
    }

    fn synced(&self, synced: Synced) {
        self.say(Said::Synced(Synced { sync_key: String::new(), ..synced }));
    }

    fn problem(&self, problem: Option<&Failure>) {
        self.say(Said::Problem(problem.map(|failure| failure.http_status)));
    }

    fn waits(&self, _: WaitReason) {
        self.0.waits.notify_one();
    }

    fn left_out(&self, _: OmittedItem) {}

    fn left_out_objects(&self, objects: LeftOutObjects) {
        let names = objects.objects.into_iter().map(|object| object.name).collect();
        let left_out = Said::LeftOut(objects.count, names);
        let is_left_out = |said: &&Said| matches!(said, Said::LeftOut(..));
        let before = self.0.said.borrow().iter().rfind(is_left_out).cloned();
        if before.unwrap_or(Said::LeftOut(0, Vec::new())) != left_out {
            self.say(left_out);
        }
    }

    async fn room(&self) {
        self.0.room.notified().await;
    }
}

/// A running reader, and the server that it reads.
struct Reading {
    server: Arc<TestServer>,
    client: ClusterClient,
    heard: Arc<Heard>,
    inputs: mpsc::Sender<ReaderInput>,
    budget: ListBudget,
    _running: AbortOnDropHandle<()>,
}

/// Responses to lists and watches, in the order in which they are asked for. When none is left, requests hang.
type Script = Vec<(u16, TestBody)>;

impl Reading {
    async fn start(start: ScopeStart, is_metadata_alone: bool, script: Script) -> Self {
        let options = ServerOptions { http2_streams: Some(100) };
        Self::start_at(options, start, is_metadata_alone, script).await
    }

    async fn start_at(
        options: ServerOptions,
        start: ScopeStart,
        is_metadata_alone: bool,
        script: Script,
    ) -> Self {
        Self::start_beside(LargePieces::default(), options, start, is_metadata_alone, script).await
    }

    /// A reader whose large lines take turns with those of others.
    async fn start_beside(
        large_pieces: LargePieces,
        options: ServerOptions,
        start: ScopeStart,
        is_metadata_alone: bool,
        script: Script,
    ) -> Self {
        let (server, client) = Self::scripted(&ClusterContext::default(), options, script).await;
        Self::read((server, client), large_pieces, start, is_metadata_alone)
    }

    /// A server with these responses, and a client for it.
    async fn scripted(
        context: &ClusterContext,
        options: ServerOptions,
        script: Script,
    ) -> (Arc<TestServer>, ClusterClient) {
        let authority = Authority::new();
        let script = Arc::new(Mutex::new(VecDeque::from(script)));
        let server = TestServer::scripted(&authority, options, move |_| {
            let next = script.lock().pop_front();
            async move {
                let Some((status, body)) = next else { return pending().await };
                let response = Response::builder().status(status);
                let is_busy = status == 429;
                let response = if is_busy { response.header("retry-after", "1") } else { response };
                Ok(response.body(body).expect("a response"))
            }
        })
        .await;
        let vetted = vet(&kubeconfig(&server.url(), Some(&authority.pem()), "a-token"), None).expect("good");
        let endpoint = ClusterEndpoint::new(vetted, &AgentPolicy::default());
        let client = ClusterClient::new(endpoint, context).expect("a client");
        (Arc::new(server), client)
    }

    /// A reader that shares a client with others.
    fn read(
        (server, client): (Arc<TestServer>, ClusterClient),
        large_pieces: LargePieces,
        start: ScopeStart,
        is_metadata_alone: bool,
    ) -> Self {
        Self::read_within(ListBudget::new(1, 1), (server, client), large_pieces, start, is_metadata_alone)
    }

    /// A reader that shares the budget of lists with others.
    fn read_within(
        budget: ListBudget,
        (server, client): (Arc<TestServer>, ClusterClient),
        large_pieces: LargePieces,
        start: ScopeStart,
        is_metadata_alone: bool,
    ) -> Self {
        let limits = BodyLimits::for_messages(4 * 1024 * 1024, true);
        let context = ReaderContext {
            encoder: Arc::new(Mutex::new(BodyEncoder::new(limits).expect("memory"))),
            budget: budget.clone(),
            large_pieces,
        };
        let timing = ScopeTiming {
            max_resumable_age: Duration::from_secs(60),
            audit_interval: Duration::from_secs(3600),
        };
        let rules = ObjectRules {
            api_version: "apps/v1".to_owned(),
            kind: "Deployment".to_owned(),
            ..ObjectRules::default()
        };
        let scope = Scope {
            group: "apps".to_owned(),
            version: "v1".to_owned(),
            kind: "Deployment".to_owned(),
            plural: "deployments".to_owned(),
            namespace: "team".to_owned(),
        };
        let (sink, (sender, inputs)) = (Sink::default(), mpsc::channel(8));
        let heard = Arc::clone(&sink.0);
        let machine = ScopeWatch::new(timing, start, 1, now());
        let reader = ScopeReader::new(
            (client.clone(), &scope),
            (Scrubber::new(rules), is_metadata_alone),
            (machine, 0),
            context,
            (inputs, sink),
        );
        let running = AbortOnDropHandle::new(tokio::spawn(reader.run()));
        Self { server, client, heard, inputs: sender, budget, _running: running }
    }

    /// Waits until what was said is so, and returns it.
    async fn until(&self, holds: impl Fn(&[Said]) -> bool) -> Vec<Said> {
        let mut said = self.heard.said.subscribe();
        let said = timeout(Duration::from_secs(30), said.wait_for(|said| holds(said))).await;
        match said {
            Ok(said) => said.expect("the sink lives").clone(),
            Err(_) => {
                unreachable!("said only {:?}, asked {:?}", self.heard.said.borrow(), self.server.paths())
            }
        }
    }

    /// Answers the next list with a basis.
    async fn answer_basis(&self, lists: usize, rows: &[(&str, &str)]) {
        let is_start = |said: &&Said| matches!(said, Said::SyncStart(_));
        let said = self.until(|said| said.iter().filter(is_start).count() == lists).await;
        let Some(Said::SyncStart(start)) = said.iter().rfind(is_start) else { unreachable!("no list") };
        let row = |(name, rv): &(&str, &str)| BasisRow {
            namespace: "team".to_owned(),
            name: (*name).to_owned(),
            uid: format!("uid-{name}"),
            rv: (*rv).to_owned(),
        };
        let frames = vec![Ok(rows.iter().map(row).collect())];
        let input =
            ReaderInput::Basis { sync_key: start.sync_key.clone(), frames: Box::new(frames.into_iter()) };
        self.inputs.clone().send(input).await.expect("the reader runs");
    }

    /// Ends the reader's next wait, as a changed credential does.
    async fn retry(&self) {
        timeout(Duration::from_secs(30), self.heard.waits.notified()).await.expect("the reader waits");
        self.inputs.clone().send(ReaderInput::Client(self.client.clone())).await.expect("the reader runs");
    }

    async fn until_asked(&self, requests: usize) {
        let asked = async {
            while self.server.paths().len() < requests {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(Duration::from_secs(30), asked).await.expect("the requests are sent");
    }
}

fn object(name: &str, version: u32) -> serde_json::Value {
    let metadata = json!({"name": name, "namespace": "team", "uid": format!("uid-{name}"),
        "resourceVersion": version.to_string()});
    json!({"kind": "Deployment", "apiVersion": "apps/v1", "metadata": metadata, "spec": {"replicas": version}})
}

fn page(version: u32, token: &str, items: &[serde_json::Value]) -> (u16, TestBody) {
    let metadata = json!({"resourceVersion": version.to_string(), "continue": token});
    let list =
        json!({"kind": "DeploymentList", "apiVersion": "apps/v1", "metadata": metadata, "items": items});
    (200, whole(list.to_string()))
}

/// The answer to the question whether the cluster went back behind a stored version.
fn version(version: u32) -> (u16, TestBody) {
    page(version, "", &[])
}

fn line(change: &str, object: &serde_json::Value) -> String {
    format!("{}\n", json!({"type": change, "object": object}))
}

/// A watch that sends these bytes and stays open.
fn open_watch(lines: &[String]) -> (u16, TestBody) {
    let chunks: Vec<io::Result<_>> =
        lines.iter().map(|line| Ok(Frame::data(Bytes::from(line.clone())))).collect();
    (
        200,
        http_body_util::BodyExt::boxed_unsync(StreamBody::new(stream::iter(chunks).chain(stream::pending()))),
    )
}

/// An object with a version that no row can have.
fn odd(name: &str) -> serde_json::Value {
    let mut odd = object(name, 1);
    odd["metadata"]["resourceVersion"] = json!("9".repeat(65));
    odd
}

#[tokio::test]
async fn objects_that_cannot_be_reported_are_told_before_their_list_ends_and_until_they_can_be() {
    let script = vec![
        page(10, "", &[object("a", 3), odd("b")]),
        open_watch(&[
            line("MODIFIED", &odd("a")),
            line("MODIFIED", &odd("a")),
            line("MODIFIED", &object("a", 11)),
            line("DELETED", &odd("b")),
        ]),
    ];
    let reading = Reading::start(ScopeStart::default(), false, script).await;
    reading.answer_basis(1, &[("a", "2"), ("b", "2")]).await;
    let gone = Said::Delete("b".to_owned());
    let said = reading.until(|said| said.iter().filter(|one| **one == gone).count() == 2).await;
    let left_out = |names: &[&str]| {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        Said::LeftOut(u32::try_from(names.len()).expect("few"), names)
    };
    let synced = Synced { rv: "10".to_owned(), listed: 2, sent: 1, deleted: 1, ..Synced::default() };
    let stale = Said::Delete("a".to_owned());
    let expected = [
        upsert("a", "3"),
        gone.clone(),
        left_out(&["b"]),
        Said::Synced(synced),
        // Its row would pass for the object.
        left_out(&["a", "b"]),
        stale.clone(),
        stale,
        left_out(&["b"]),
        upsert("a", "11"),
        left_out(&[]),
        gone,
    ];
    assert_eq!(said[1..], expected);
}

fn status(code: u16) -> (u16, TestBody) {
    let status =
        json!({"kind": "Status", "apiVersion": "v1", "code": code, "reason": "R", "message": "said"});
    (code, whole(status.to_string()))
}

fn checkpoint(version: &str) -> ScopeStart {
    ScopeStart { resource_version: version.to_owned(), ..ScopeStart::default() }
}

fn upsert(name: &str, version: &str) -> Said {
    Said::Upsert(name.to_owned(), version.to_owned())
}

/// Parameters of a request's query.
fn query(path: &str) -> BTreeMap<&str, &str> {
    let query = path.split_once('?').map_or("", |(_, query)| query);
    query.split('&').filter_map(|parameter| parameter.split_once('=')).collect()
}

#[tokio::test]
async fn list_in_pages_is_compared_with_its_basis_and_then_watched() {
    let script = vec![
        page(10, "more", &[object("same", 3), object("changed", 9)]),
        page(10, "", &[object("new", 8)]),
        open_watch(&[line("ADDED", &object("later", 11)), line("DELETED", &object("same", 12))]),
    ];
    let reading = Reading::start(ScopeStart::default(), false, script).await;
    reading.answer_basis(1, &[("same", "3"), ("changed", "4"), ("gone", "5")]).await;
    let said = reading.until(|said| said.last() == Some(&Said::Delete("same".to_owned()))).await;
    let synced = Synced { rv: "10".to_owned(), listed: 3, kept: 1, sent: 2, deleted: 1, ..Synced::default() };
    let expected = [
        upsert("changed", "9"),
        upsert("new", "8"),
        Said::Delete("gone".to_owned()),
        Said::Synced(synced),
        upsert("later", "11"),
        Said::Delete("same".to_owned()),
    ];
    assert_eq!(said[1..], expected);
    let paths = reading.server.paths();
    assert!(
        paths.iter().all(|path| path.starts_with("/apis/apps/v1/namespaces/team/deployments?")),
        "{paths:?}"
    );
    assert_eq!(query(&paths[0]), BTreeMap::from([("limit", "500")]));
    assert_eq!(query(&paths[1]), BTreeMap::from([("limit", "500"), ("continue", "more")]));
    assert_eq!(query(&paths[2])["resourceVersion"], "10");
    assert_eq!(query(&paths[2])["allowWatchBookmarks"], "true");
}

#[tokio::test]
async fn fresh_checkpoint_is_resumed_after_one_small_request_and_without_a_list() {
    let script =
        vec![page(9, "more", &[object("one", 8)]), open_watch(&[line("MODIFIED", &object("one", 8))])];
    let reading = Reading::start(checkpoint("7"), false, script).await;
    assert_eq!(reading.until(|said| !said.is_empty()).await, [upsert("one", "8")]);
    let paths = reading.server.paths();
    assert_eq!(query(&paths[0]), BTreeMap::from([("limit", "1")]));
    assert_eq!(query(&paths[1])["resourceVersion"], "7");
    assert_eq!(paths.len(), 2);
}

#[tokio::test]
async fn cluster_behind_the_checkpoint_is_listed_at_once_and_each_object_sent() {
    let script = vec![version(6), page(6, "", &[object("one", 5)]), open_watch(&[])];
    let reading = Reading::start(checkpoint("7"), false, script).await;
    reading.answer_basis(1, &[("one", "5"), ("later", "7")]).await;
    let said = reading.until(|said| matches!(said.last(), Some(Said::Synced(_)))).await;
    assert_eq!(said[1..3], [upsert("one", "5"), Said::Delete("later".to_owned())]);
    reading.until_asked(3).await;
    assert_eq!(query(&reading.server.paths()[2])["resourceVersion"], "6");
}

#[tokio::test]
async fn secrets_are_asked_for_as_metadata_alone() {
    let script = vec![page(10, "", &[]), open_watch(&[])];
    let reading = Reading::start(ScopeStart::default(), true, script).await;
    reading.answer_basis(1, &[]).await;
    reading.until_asked(2).await;
    let accepted: Vec<_> = reading.server.asked.lock().iter().map(|asked| asked.accept.clone()).collect();
    assert!(accepted[0].contains("as=PartialObjectMetadataList;"), "{accepted:?}");
    assert!(accepted[1].contains("as=PartialObjectMetadata;"), "{accepted:?}");
}

#[tokio::test]
async fn watch_without_room_is_closed_and_goes_on_after_the_event_that_waited() {
    let script = vec![
        version(7),
        open_watch(&[line("ADDED", &object("one", 8)) + &line("ADDED", &object("two", 9))]),
        open_watch(&[line("ADDED", &object("two", 9))]),
    ];
    let reading = Reading::start(checkpoint("7"), false, script).await;
    *reading.heard.refused.lock() = 1;
    reading.heard.room.notify_one();
    let said = reading.until(|said| said.len() == 2).await;
    assert_eq!(said, [upsert("one", "8"), upsert("two", "9")]);
}

#[tokio::test]
async fn list_without_room_goes_on_once_there_is_room() {
    let script = vec![page(10, "", &[object("one", 8), object("two", 9)]), open_watch(&[])];
    let reading = Reading::start(ScopeStart::default(), false, script).await;
    *reading.heard.refused.lock() = 1;
    reading.answer_basis(1, &[]).await;
    reading.heard.room.notify_one();
    let said = reading.until(|said| matches!(said.last(), Some(Said::Synced(_)))).await;
    assert_eq!(said[1..3], [upsert("one", "8"), upsert("two", "9")]);
}

/// A response that begins and does not end; tells when it is dropped.
fn endless(beginning: Bytes) -> ((u16, TestBody), oneshot::Receiver<()>) {
    let (open, dropped) = oneshot::channel();
    let first = stream::iter([Ok(Frame::data(beginning))]);
    let rest = stream::once(async move {
        let _open: oneshot::Sender<()> = open;
        pending().await
    });
    ((200, http_body_util::BodyExt::boxed_unsync(StreamBody::new(first.chain(rest)))), dropped)
}

async fn is_dropped(dropped: oneshot::Receiver<()>) {
    let dropped = timeout(Duration::from_secs(30), dropped).await;
    assert!(dropped.is_ok_and(|sent| sent.is_err()), "the response is closed");
}

impl Reading {
    /// Waits until the sink has refused as many events as it was to refuse.
    async fn until_refused(&self) {
        let refused = async {
            while *self.heard.refused.lock() > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(Duration::from_secs(30), refused).await.expect("events are refused");
    }
}

#[tokio::test]
async fn list_without_room_for_long_closes_its_response_and_begins_anew_once_there_is_room() {
    let items = format!(r#"{{"items":[{},"#, object("one", 8));
    let (first, dropped) = endless(items.into());
    let script = vec![first, page(10, "", &[object("one", 8)]), open_watch(&[])];
    let reading = Reading::start(ScopeStart::default(), false, script).await;
    *reading.heard.refused.lock() = 1;
    reading.answer_basis(1, &[]).await;
    reading.until_refused().await;
    tokio::time::pause();
    tokio::time::advance(LIST_ROOM_TIMEOUT).await;
    tokio::time::resume();
    is_dropped(dropped).await;
    assert_eq!(reading.server.paths().len(), 1, "it waits for room");
    reading.heard.room.notify_one();
    reading.answer_basis(2, &[]).await;
    let said = reading.until(|said| matches!(said.last(), Some(Said::Synced(_)))).await;
    assert!(said.contains(&upsert("one", "8")), "{said:?}");
}

#[tokio::test]
async fn watch_without_room_leaves_its_response_and_its_turn_to_others() {
    let mut large = object("one", 8);
    large["spec"]["text"] = "x".repeat(600 * 1024).into();
    let (first, dropped) = endless(line("ADDED", &large).into());
    let pieces = LargePieces::default();
    let mut turns = Vec::new();
    for _ in 0..3 {
        turns.push(pieces.clone().turn().await);
    }
    let options = ServerOptions { http2_streams: Some(100) };
    let script = vec![version(7), first];
    let reading = Reading::start_beside(pieces.clone(), options, checkpoint("7"), false, script).await;
    *reading.heard.refused.lock() = 1;
    reading.until_refused().await;
    is_dropped(dropped).await;
    let turn = timeout(Duration::from_secs(30), pieces.turn()).await;
    assert!(turn.is_ok(), "another reader has the turn");
    assert!(reading.heard.said.borrow().is_empty());
}

#[tokio::test]
async fn rows_that_are_left_over_count_in_the_budget_of_lists_until_they_are_queued() {
    let script = vec![page(10, "", &[]), open_watch(&[])];
    let reading = Reading::start(ScopeStart::default(), false, script).await;
    *reading.heard.refused.lock() = 1;
    reading.answer_basis(1, &[("gone", "5")]).await;
    reading.until_refused().await;
    assert!(reading.budget.clone().acquire(1).now_or_never().is_none(), "the rows are in memory");
    reading.heard.room.notify_one();
    let said = reading.until(|said| matches!(said.last(), Some(Said::Synced(_)))).await;
    assert_eq!(said[1], Said::Delete("gone".to_owned()));
    let next = timeout(Duration::from_secs(30), reading.budget.clone().acquire(1)).await;
    assert!(next.is_ok(), "another list begins");
}

#[tokio::test]
async fn expired_version_is_listed_anew() {
    let gone = json!({"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"});
    let script = vec![
        version(20),
        open_watch(&[line("ERROR", &gone)]),
        page(20, "", &[object("one", 8)]),
        open_watch(&[]),
    ];
    let reading = Reading::start(checkpoint("7"), false, script).await;
    reading.answer_basis(1, &[("one", "8")]).await;
    let said = reading.until(|said| matches!(said.last(), Some(Said::Synced(_)))).await;
    let Some(Said::Synced(synced)) = said.last() else { unreachable!("{said:?}") };
    assert_eq!((synced.kept, synced.sent, synced.rv.as_str()), (1, 0, "20"));
}

#[tokio::test]
async fn missing_right_is_a_problem_until_it_is_granted() {
    let script = vec![status(403), status(403), version(10), page(10, "", &[]), open_watch(&[])];
    let reading = Reading::start(ScopeStart::default(), false, script).await;
    reading.answer_basis(1, &[]).await;
    reading.until(|said| said.last() == Some(&Said::Problem(Some(403)))).await;
    reading.retry().await;
    reading.retry().await;
    reading.until_asked(3).await;
    let starts = |said: &[Said]| said.iter().filter(|said| matches!(said, Said::SyncStart(_))).count();
    assert!(starts(&reading.heard.said.borrow()) <= 2, "the rows are not asked for each time");
    reading.answer_basis(2, &[]).await;
    let paths = reading.server.paths();
    assert_eq!([1, 2].map(|at: usize| query(&paths[at])["limit"]), ["1", "1"], "{paths:?}");
    let said = reading.until(|said| said.contains(&Said::Problem(None))).await;
    assert!(said.iter().any(|said| matches!(said, Said::Synced(_))), "{said:?}");
}

#[tokio::test]
async fn kind_without_a_right_keeps_no_other_from_being_listed() {
    let script = vec![status(403), version(10), page(10, "", &[]), open_watch(&[])];
    let reading = Reading::start(ScopeStart::default(), false, script).await;
    reading.answer_basis(1, &[]).await;
    reading.until(|said| said.last() == Some(&Said::Problem(Some(403)))).await;
    let other = timeout(Duration::from_secs(30), reading.budget.clone().acquire(u64::MAX)).await;
    assert!(other.is_ok(), "there is a turn, and all memory for rows");
    // Tried again while another kind is listed, it waits for its turn.
    reading.retry().await;
    reading.until_asked(2).await;
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    assert_eq!(reading.server.paths().len(), 2);
    drop(other);
    reading.answer_basis(2, &[]).await;
    let said = reading.until(|said| said.contains(&Said::Problem(None))).await;
    assert!(said.iter().any(|said| matches!(said, Said::Synced(_))), "{said:?}");
}

/// A reader that shares the budget, of a server with these responses.
async fn reading_within(budget: &ListBudget, start: ScopeStart, script: Script) -> Reading {
    let options = ServerOptions { http2_streams: Some(100) };
    let shared = Reading::scripted(&ClusterContext::default(), options, script).await;
    Reading::read_within(budget.clone(), shared, LargePieces::default(), start, false)
}

#[tokio::test]
async fn basis_with_more_rows_than_were_known_waits_for_their_memory() {
    let budget = ListBudget::new(2, 2);
    let script = vec![page(10, "", &[]), open_watch(&[])];
    let reading = reading_within(&budget, ScopeStart::default(), script).await;
    let names: Vec<String> = (0..10_000).map(|row| format!("row-{row}")).collect();
    let rows: Vec<_> = names.iter().map(|name| (name.as_str(), "5")).collect();
    reading.until(|said| !said.is_empty()).await;
    let others = budget.clone().acquire(330_000).await;
    reading.answer_basis(1, &rows).await;
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    assert!(reading.server.paths().is_empty(), "it does not go on without memory");
    drop(others);
    reading.answer_basis(2, &rows).await;
    let said = reading.until(|said| matches!(said.last(), Some(Said::Synced(_)))).await;
    let Some(Said::Synced(synced)) = said.last() else { unreachable!("{said:?}") };
    assert_eq!(synced.deleted, 10_000);
}

#[tokio::test]
async fn what_a_first_list_has_sent_is_remembered_while_there_is_memory_for_it() {
    const MAX_OBJECTS: usize = 1024 * 1024;
    let budget = ListBudget::new(1, 1);
    let mut others = SentMemory::default();
    assert!(others.reserve(&budget, MAX_OBJECTS));
    for (has_memory, sent) in [(false, 2), (true, 1)] {
        let items = [object("one", 8), object("two", 9)];
        let script = vec![page(10, "more", &items), status(410), page(11, "", &items), open_watch(&[])];
        let start = ScopeStart { resend: true, ..ScopeStart::default() };
        let reading = reading_within(&budget, start, script).await;
        reading.answer_basis(1, &[]).await;
        reading.answer_basis(2, &[("one", "8"), ("two", "9")]).await;
        let said = reading.until(|said| matches!(said.last(), Some(Said::Synced(_)))).await;
        assert_eq!(said.iter().filter(|said| **said == upsert("one", "8")).count(), sent, "{said:?}");
        reading.until_asked(4).await;
        if has_memory {
            assert!(others.reserve(&budget, MAX_OBJECTS), "a list that is complete remembers nothing");
        } else {
            others = SentMemory::default();
        }
    }
}

/// A list that had to wait after its first page, and another one that has its turn, once these times have passed.
async fn list_that_has_lost_its_turn(waited: &[Duration]) -> (Reading, ListPermit) {
    let (first, second) = (object("one", 8), object("two", 9));
    let script = vec![
        page(10, "more", std::slice::from_ref(&first)),
        status(429),
        page(10, "", &[first, second]),
        open_watch(&[]),
    ];
    let reading = Reading::start(ScopeStart::default(), false, script).await;
    reading.answer_basis(1, &[]).await;
    reading.until_asked(2).await;
    let other = timeout(Duration::from_secs(30), reading.budget.clone().acquire(1)).await;
    let other = other.expect("it leaves its turn while it waits");
    assert_eq!(reading.server.paths().len(), 2, "it has not gone on");
    tokio::time::pause();
    for time in waited {
        tokio::time::advance(*time).await;
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    }
    tokio::time::resume();
    assert_eq!(reading.server.paths().len(), 2, "it waits for its turn");
    (reading, other)
}

#[tokio::test]
async fn list_that_waits_after_a_failure_leaves_its_turn_and_goes_on_where_it_was_once_it_has_another() {
    let (reading, other) = list_that_has_lost_its_turn(&[Duration::from_secs(3)]).await;
    drop(other);
    let said = reading.until(|said| matches!(said.last(), Some(Said::Synced(_)))).await;
    assert_eq!(said.iter().filter(|said| matches!(said, Said::SyncStart(_))).count(), 1, "{said:?}");
    assert_eq!(query(&reading.server.paths()[2])["continue"], "more");
}

#[tokio::test]
async fn list_whose_turn_does_not_come_for_long_begins_anew() {
    let too_long = LIST_TURN_TIMEOUT + Duration::from_secs(1);
    let (reading, other) = list_that_has_lost_its_turn(&[Duration::from_secs(3), too_long]).await;
    drop(other);
    reading.answer_basis(2, &[("one", "8")]).await;
    let said = reading.until(|said| matches!(said.last(), Some(Said::Synced(_)))).await;
    let Some(Said::Synced(synced)) = said.last() else { unreachable!("{said:?}") };
    assert_eq!((synced.kept, synced.sent), (1, 1));
    assert!(!query(&reading.server.paths()[2]).contains_key("continue"));
}

#[tokio::test]
async fn basis_that_cannot_be_read_begins_another_list() {
    let reading = Reading::start(ScopeStart::default(), false, vec![page(10, "", &[])]).await;
    let said = reading.until(|said| !said.is_empty()).await;
    let Said::SyncStart(first) = &said[0] else { unreachable!("{said:?}") };
    let frames = vec![Err(crate::wire_failure::after_send(Class::Internal, "a frame cannot be read"))];
    let input = ReaderInput::Basis { sync_key: first.sync_key.clone(), frames: Box::new(frames.into_iter()) };
    reading.inputs.clone().send(input).await.expect("the reader runs");
    reading.answer_basis(2, &[]).await;
    reading.until(|said| matches!(said.last(), Some(Said::Synced(_)))).await;
}

#[tokio::test]
async fn response_that_ends_early_counts_for_nothing() {
    let (_, whole_page) = page(10, "", &[object("one", 8)]);
    let bytes = whole_page.collect().await.expect("a body").to_bytes();
    let script = vec![(200, whole(bytes.slice(..bytes.len() - 3))), page(10, "", &[object("one", 8)])];
    let reading = Reading::start(ScopeStart::default(), false, script).await;
    reading.answer_basis(1, &[]).await;
    reading.answer_basis(2, &[("one", "8")]).await;
    let said = reading.until(|said| matches!(said.last(), Some(Said::Synced(_)))).await;
    assert_eq!(said.iter().filter(|said| matches!(said, Said::Synced(_))).count(), 1, "{said:?}");
}

#[tokio::test]
async fn front_that_speaks_http1_alone_serves_lists_and_watches() {
    let script = vec![page(10, "", &[object("one", 8)]), open_watch(&[line("MODIFIED", &object("one", 11))])];
    let options = ServerOptions { http2_streams: None };
    let reading = Reading::start_at(options, ScopeStart::default(), false, script).await;
    reading.answer_basis(1, &[]).await;
    let said = reading.until(|said| said.last() == Some(&upsert("one", "11"))).await;
    assert_eq!(said[1], upsert("one", "8"));
}

#[tokio::test]
async fn kind_for_which_http1_leaves_no_connection_says_so_until_there_is_one() {
    let context = ClusterContext {
        pool_limits: |purpose| PoolLimits { connections: 1, ..PoolLimits::of(purpose) },
        ..ClusterContext::default()
    };
    let script = vec![
        version(7),
        open_watch(&[line("ADDED", &object("one", 8))]),
        version(8),
        open_watch(&[line("ADDED", &object("two", 9))]),
    ];
    let options = ServerOptions { http2_streams: None };
    let shared = Reading::scripted(&context, options, script).await;
    let first = Reading::read(shared, LargePieces::default(), checkpoint("7"), false);
    first.until(|said| said.len() == 1).await;
    // One would resume, and one would list.
    let shared = || (Arc::clone(&first.server), first.client.clone());
    let watcher = Reading::read(shared(), LargePieces::default(), checkpoint("8"), false);
    let lister = Reading::read(shared(), LargePieces::default(), ScopeStart::default(), false);
    for crowded_out in [&watcher, &lister] {
        crowded_out.until(|said| said == [Said::Problem(Some(0))]).await;
    }
    assert_eq!(first.server.paths().len(), 2, "nothing is asked for them");
    drop((first, lister));
    loop {
        tokio::select! {
            _ = watcher.until(|said| said.contains(&upsert("two", "9"))) => break,
            () = watcher.retry() => {}
        }
    }
    assert_eq!(watcher.server.paths().len(), 4);
}

#[tokio::test]
async fn server_that_is_too_busy_is_asked_again_after_the_time_that_it_names() {
    let begun = Instant::now();
    let script = vec![status(429), page(10, "", &[]), open_watch(&[])];
    let reading = Reading::start(ScopeStart::default(), false, script).await;
    reading.answer_basis(1, &[]).await;
    let said = reading.until(|said| matches!(said.last(), Some(Said::Synced(_)))).await;
    assert!(begun.elapsed() >= Duration::from_secs(1), "{:?}", begun.elapsed());
    let starts = said.iter().filter(|said| matches!(said, Said::SyncStart(_))).count();
    assert_eq!(starts, 1, "nothing of the list was read, so it is the same one: {said:?}");
}

#[tokio::test]
async fn status_in_place_of_a_list_is_an_answer_and_no_empty_list() {
    let refused = json!({"kind": "Status", "apiVersion": "v1", "code": 500, "reason": "R", "message": "m"});
    let script = vec![(200, whole(refused.to_string())), page(10, "", &[object("one", 8)]), open_watch(&[])];
    let reading = Reading::start(ScopeStart::default(), false, script).await;
    reading.answer_basis(1, &[("one", "8")]).await;
    let said = reading.until(|said| matches!(said.last(), Some(Said::Synced(_)))).await;
    assert!(!said.iter().any(|said| matches!(said, Said::Delete(_))), "{said:?}");
}

#[tokio::test]
async fn line_of_20_mb_is_passed_by_with_a_list() {
    let too_long = || line("ADDED", &json!({"metadata": {"name": "x".repeat(20 << 20)}}));
    let script = vec![
        version(7),
        open_watch(&[line("ADDED", &object("one", 8)) + &too_long()]),
        version(8),
        open_watch(&[too_long()]),
        page(20, "", &[object("one", 8)]),
        open_watch(&[]),
    ];
    let reading = Reading::start(checkpoint("7"), false, script).await;
    reading.until(|said| matches!(said.last(), Some(Said::Problem(Some(_))))).await;
    reading.retry().await;
    reading.until_asked(4).await;
    // The second time at the same place, a list follows.
    reading.retry().await;
    reading.answer_basis(1, &[("one", "8")]).await;
    reading.until(|said| said.iter().any(|said| matches!(said, Said::Synced(_)))).await;
    let paths = reading.server.paths();
    assert_eq!(query(&paths[2]), BTreeMap::from([("limit", "1")]), "it asks whether the cluster went back");
    assert_eq!(query(&paths[3])["resourceVersion"], "8", "it went on after the last whole line");
}

#[tokio::test]
async fn line_without_newline_is_read_again_by_the_next_watch() {
    let cut = line("ADDED", &object("two", 9));
    let chunks = [line("ADDED", &object("one", 8)), cut.trim_end().to_owned()].concat();
    let script = vec![version(7), (200, whole(chunks)), version(8), open_watch(&[cut])];
    let reading = Reading::start(checkpoint("7"), false, script).await;
    reading.until(|said| said.contains(&upsert("one", "8"))).await;
    let said = reading.until(|said| said.contains(&upsert("two", "9"))).await;
    assert_eq!(said.iter().filter(|said| matches!(said, Said::Upsert(..))).count(), 2, "{said:?}");
    assert_eq!(query(&reading.server.paths()[3])["resourceVersion"], "8");
}

#[tokio::test]
async fn large_line_is_read_once_it_has_its_turn() {
    let mut large = object("one", 8);
    large["spec"]["text"] = "x".repeat(600 * 1024).into();
    let script = vec![version(7), open_watch(&[line("ADDED", &large), line("ADDED", &object("two", 9))])];
    let reading = Reading::start(checkpoint("7"), false, script).await;
    let said = reading.until(|said| said.len() == 2).await;
    assert_eq!(said, [upsert("one", "8"), upsert("two", "9")]);
}

/// A watch with one line, of which the last chunk comes once it is asked for; counts the bytes that were sent.
fn watch_of_slow_line(
    line: &str,
    mut end: watch::Receiver<bool>,
    sent: &watch::Sender<usize>,
) -> (u16, TestBody) {
    let mut chunks: Vec<_> =
        line.as_bytes().chunks(64 * 1024).map(|chunk| Frame::data(Bytes::copy_from_slice(chunk))).collect();
    let last = chunks.pop();
    let sent = sent.clone();
    let first = stream::iter(chunks).inspect(move |chunk| {
        let bytes = chunk.data_ref().map_or(0, Bytes::len);
        sent.send_modify(|sent| *sent += bytes);
    });
    let rest = stream::once(async move {
        let _ = end.wait_for(|is_asked_for| *is_asked_for).await;
        stream::iter(last)
    });
    let body = first.chain(rest.flatten()).map(Ok).chain(stream::pending());
    (200, http_body_util::BodyExt::boxed_unsync(StreamBody::new(body)))
}

#[tokio::test]
async fn large_line_without_a_turn_waits_in_the_windows_of_its_connection() {
    const LINE_BYTES: usize = 3 * 1024 * 1024;
    let pieces = LargePieces::default();
    let mut turns = Vec::new();
    for _ in 0..4 {
        turns.push(pieces.clone().turn().await);
    }
    let mut large = object("one", 8);
    large["spec"]["text"] = "x".repeat(LINE_BYTES).into();
    let (ends, end) = watch::channel(false);
    let mut both = Vec::new();
    for _ in 0..2 {
        let (sent, counted) = watch::channel(0);
        let script = vec![version(7), watch_of_slow_line(&line("ADDED", &large), end.clone(), &sent)];
        let options = ServerOptions { http2_streams: Some(100) };
        let reading = Reading::start_beside(pieces.clone(), options, checkpoint("7"), false, script).await;
        both.push((reading, counted));
    }
    let until = async |counted: &watch::Receiver<usize>, bytes: usize| {
        let mut counted = counted.clone();
        let reached = timeout(Duration::from_secs(30), counted.wait_for(|sent| *sent >= bytes)).await;
        assert!(reached.is_ok_and(|sent| sent.is_ok()), "it is sent in time");
    };
    for (_, counted) in &both {
        until(counted, LARGE_PIECE_BYTES).await;
    }
    // One has its turn, and its line arrives but for the end.
    turns.pop();
    let (one, other) = (both[0].1.clone(), both[1].1.clone());
    tokio::select! {
        () = until(&one, LINE_BYTES - 64 * 1024) => {}
        () = until(&other, LINE_BYTES - 64 * 1024) => {}
    }
    let sent = [*one.borrow(), *other.borrow()];
    assert!(sent.iter().min().is_some_and(|sent| *sent < LINE_BYTES / 2), "{sent:?}");
    assert!(both.iter().all(|(reading, _)| reading.heard.said.borrow().is_empty()));
    ends.send_replace(true);
    for (reading, _) in &both {
        assert_eq!(reading.until(|said| !said.is_empty()).await, [upsert("one", "8")]);
    }
}
