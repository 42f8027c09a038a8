//! Operations against a cluster, rights and a database that the tests script.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::FutureExt as _;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::access::{Principal, Via};
use crate::connected_agents::{RequestError, RequestErrorKind as Kind};
use fakes::{Answered, Asked, AuditLines, MemoryRows, ScriptedAccess, ScriptedCluster, principal};
use kubesvc_core::KubesvcAccount;
use kubesvc_core::operations::{
    MAX_RESULT_BYTES, OutcomeBody, OutcomeClass, UnreadOperation, result_from_text,
};
use kubesvc_runtime::telemetry::metrics::Metrics;
use kubesvc_store::{OpenOperation, OperationOutcome, OperationState};

pub(crate) mod fakes;
mod repeats;
mod rows;
mod runs;

const WEB: &str =
    "target { group: \"apps\" version: \"v1\" kind: \"Deployment\" namespace: \"n\" name: \"web\" }";
const MINUTE: Duration = Duration::from_secs(60);

/// A replica with account `a` that is active, and `off` that is not.
struct Replica {
    operations: Arc<Operations>,
    cluster: Arc<ScriptedCluster>,
    access: Arc<ScriptedAccess>,
    rows: Arc<MemoryRows>,
    audit: AuditLines,
    stop: CancellationToken,
    /// No caller is served any more.
    served: CancellationToken,
}

impl Replica {
    fn new(cluster: Arc<ScriptedCluster>) -> Self {
        Self::over(cluster, Arc::default(), "r-0")
    }

    fn over(cluster: Arc<ScriptedCluster>, rows: Arc<MemoryRows>, id: &str) -> Self {
        Self::set(cluster, rows, OperationSettings { replica_id: id.into(), ..fakes::settings() })
    }

    fn set(cluster: Arc<ScriptedCluster>, rows: Arc<MemoryRows>, settings: OperationSettings) -> Self {
        let id = settings.replica_id.clone();
        let accounts = Arc::new(AccountIndex::default());
        accounts.show(account("a", "ACTIVE", "Open"));
        accounts.show(account("off", "INACTIVE", "None"));
        accounts.sync();
        let (access, audit) = (Arc::<ScriptedAccess>::default(), AuditLines::default());
        let operations = Operations::new(
            settings,
            OperationPorts {
                accounts,
                requests: Arc::<ScriptedCluster>::clone(&cluster),
                access: Arc::<ScriptedAccess>::clone(&access),
                store: Arc::<MemoryRows>::clone(&rows),
                replicas: Replicas::alone(&id),
                audit: AuditLog::to(audit.clone()),
                callers: Arc::default(),
            },
        );
        let (stop, served) = (CancellationToken::new(), CancellationToken::new());
        let (writer, until, then) = (Arc::clone(&operations), stop.clone(), served.clone());
        tokio::spawn(async move { writer.write_rows(until, then).await });
        Self { operations, cluster, access, rows, audit, stop, served }
    }

    async fn submit(&self, call: OperationCall) -> Result<Submitted, OperationRefusal> {
        self.operations.submit(call).await
    }

    /// Runs an operation to its end.
    async fn run(&self, verb: &str) -> Arc<EndedOperation> {
        let submitted = self.submit(call(verb)).await.expect(verb);
        submitted.ended.expect("it ended")
    }

    /// Waits until a record is in the history.
    async fn history(&self, id: &str) -> OperationRecord {
        // Real time: the clock of a test may stand still.
        let begun = std::time::Instant::now();
        loop {
            if let Some(record) = self.rows.history.lock().get(id).cloned() {
                return record;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "{id} is not in the history");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

pub(crate) fn account(name: &str, state: &str, phase: &str) -> KubesvcAccount {
    serde_json::from_value(json!({
        "apiVersion": "kubesvc.io/v1alpha1", "kind": "KubesvcAccount",
        "metadata": {"name": name, "namespace": "ns", "uid": format!("uid-{name}"), "resourceVersion": "1"},
        "spec": {"zoneId": "z", "kubeconfig": {"secretRef": {"name": name}}},
        "status": {"state": state, "epoch": 1, "grant": {"phase": phase, "zone": "z"}},
    }))
    .expect("an account")
}

/// A call of alice that waits.
fn call(verb: &str) -> OperationCall {
    OperationCall {
        operation: UnreadOperation::from_text(&format!("account {{ name: \"a\" }} {verb}")).expect(verb),
        caller: caller(),
        dry_run: false,
        client_request_id: None,
        wait: Some(10 * MINUTE),
        held: Box::new(()),
    }
}

fn caller() -> OperationCaller {
    OperationCaller { principal: principal("alice"), user: None, claimed: None, accounts: None }
}

fn on_account(name: &str) -> OperationCall {
    let text = format!("account {{ name: \"{name}\" }} discovery {{}}");
    OperationCall {
        operation: UnreadOperation::from_text(&text).expect("an operation"),
        ..call("discovery {}")
    }
}

fn scale() -> String {
    format!("scale {{ {WEB} replicas: 3 }}")
}

/// Deletes the two objects of [`of_two_objects`].
fn delete_two() -> String {
    let kind = "target { group: \"apps\" version: \"v1\" kind: \"Deployment\" namespace: \"n\" }";
    format!("delete {{ {kind} label_selector: \"app=web\" }}")
}

/// What a cluster answers that lists two objects, and has neither when it is asked for one.
fn of_two_objects(asked: &Asked) -> Answered {
    let items =
        [json!({"metadata": {"name": "a", "uid": "1"}}), json!({"metadata": {"name": "b", "uid": "2"}})];
    let is_gone = asked.line.starts_with("GET") && !asked.line.contains("labelSelector");
    Ok(if is_gone { (404, json!({})) } else { (200, json!({"metadata": {}, "items": items})) })
}

fn deletes(replica: &Replica) -> usize {
    replica.cluster.lines().iter().filter(|line| line.starts_with("DELETE")).count()
}

fn done() -> Answered {
    Ok((200, json!({"kind": "Scale", "spec": {"replicas": 3}})))
}

#[tokio::test(start_paused = true)]
async fn checks_come_in_their_order_and_nothing_is_sent_before() {
    let replica = Replica::new(ScriptedCluster::new(|_, _| done()));
    let status =
        |refused: Result<Submitted, OperationRefusal>| refused.expect_err("it is refused").status().as_u16();
    assert_eq!(status(replica.submit(on_account("unknown")).await), 404);
    assert_eq!(status(replica.submit(on_account("off")).await), 409);
    let narrowed = OperationCaller { accounts: Some(vec!["b".to_owned()]), ..caller() };
    assert_eq!(status(replica.submit(OperationCall { caller: narrowed, ..call(&scale()) }).await), 403);
    replica.access.denied.lock().push("patch");
    assert_eq!(status(replica.submit(call(&scale())).await), 403);
    assert!(replica.submit(call(&format!("get {{ {WEB} }}"))).await.is_ok(), "only reading is allowed still");
    replica.access.is_away.store(true, Ordering::Relaxed);
    assert_eq!(status(replica.submit(call(&scale())).await), 503);
    assert_eq!(replica.cluster.lines(), ["GET /apis/apps/v1/namespaces/n/deployments/web"]);
    let asked = replica.access.asked.lock();
    assert_eq!((asked[0].namespace.as_str(), asked[0].object.as_str()), ("ns", "off"));
}

#[tokio::test(start_paused = true)]
async fn an_account_that_the_caller_may_not_get_is_none_where_accounts_are_hidden() {
    let settings = OperationSettings { hides_accounts: true, ..fakes::settings() };
    let replica = Replica::set(ScriptedCluster::new(|_, _| done()), Arc::default(), settings);
    let id = replica.submit(call(&scale())).await.expect("it is begun").id;
    let refusal = async || replica.submit(call(&scale())).await.expect_err("it is refused").to_string();
    replica.access.denied.lock().push("patch");
    assert_eq!(refusal().await, "you may not patch");
    replica.access.denied.lock().push("get");
    assert_eq!(refusal().await, OperationRefusal::NoAccount("a".to_owned()).to_string());
    let record = replica.operations.record(&id, &caller()).await.expect_err("hidden");
    assert_eq!(record.to_string(), OperationRefusal::NoOperation(id).to_string());
    for account in ["a", "none"] {
        let listed = replica.operations.records(Some(account), (0, 10), &caller()).await;
        assert_eq!(listed.expect_err("hidden").status(), 404, "{account}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_is_too_old_is_named_before_anything_is_begun() {
    let replica =
        Replica::new(ScriptedCluster::new(|_, _| Err(RequestError::too_old(&"old-agent".into(), "0.0"))));
    replica.cluster.has_agent.store(false, Ordering::Relaxed);
    let refused = replica.submit(call(&scale())).await.expect_err("it is too old");
    assert_eq!(refused.status().as_u16(), 409);
    assert!(refused.to_string().contains("old-agent"), "{refused}");
    assert!(replica.rows.open.lock().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_stops_takes_no_more_and_ends_what_runs() {
    let gate = Arc::new(Semaphore::new(0));
    let opened = Arc::clone(&gate);
    let replica = Replica::new(ScriptedCluster::waiting(move |_, _| {
        let gate = Arc::clone(&opened);
        async move {
            gate.acquire().await.expect("it is never closed").forget();
            done()
        }
        .boxed()
    }));
    let call_now = OperationCall { wait: None, ..call(&scale()) };
    let id = replica.submit(call_now).await.expect("it is begun").id;
    replica.stop.cancel();
    while !replica.operations.is_draining.load(Ordering::Relaxed) {
        tokio::task::yield_now().await;
    }
    let refused = replica.submit(call(&scale())).await.expect_err("it stops");
    assert_eq!(refused.status().as_u16(), 503);
    gate.add_permits(1);
    assert_eq!(replica.history(&id).await.outcome, OperationOutcome::Completed);
}

#[tokio::test(start_paused = true)]
async fn what_ends_while_its_replica_stops_is_recorded_until_no_caller_is_served_any_more() {
    let replica = Replica::new(ScriptedCluster::new(|_, _| done()));
    replica.stop.cancel();
    tokio::time::sleep(DRAIN_TIMEOUT).await;
    let ends = fakes::received("01J00000000000000000000000", "Patch", "a", 0);
    OperationHistory::ended(&*replica.operations, ends.clone());
    replica.served.cancel();
    let recorded = timeout(MINUTE, replica.history(&ends.operation_id)).await;
    assert_eq!(recorded.expect("its end is recorded"), ends);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_checked_while_its_replica_stops_begins_nothing() {
    let replica = Replica::new(ScriptedCluster::waiting(|_, _| std::future::pending::<Answered>().boxed()));
    // It is found out first whether its agent is too old, for two seconds.
    replica.cluster.has_agent.store(false, Ordering::Relaxed);
    let stopping = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        replica.stop.cancel();
    };
    let (submitted, ()) = tokio::join!(replica.submit(call(&scale())), stopping);
    assert_eq!(submitted.expect_err("it stops").status().as_u16(), 503);
    assert_eq!(replica.operations.known.running(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_caller_has_a_bound_of_its_own() {
    let replica = Replica::new(ScriptedCluster::waiting(|_, _| std::future::pending::<Answered>().boxed()));
    let short = |name: &str| {
        let caller = OperationCaller { principal: principal(name), ..caller() };
        OperationCall { wait: Some(Duration::ZERO), caller, ..call(&format!("get {{ {WEB} }}")) }
    };
    for _ in 0..200 {
        assert!(replica.submit(short("alice")).await.expect("there is room").ended.is_none());
    }
    let refused = replica.submit(short("alice")).await.expect_err("there is no room");
    assert_eq!(refused.status().as_u16(), 429);
    assert!(replica.submit(short("bob")).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn what_callers_do_who_need_not_be_known_is_audited_and_counted_as_any_other() {
    let replica = Replica::new(ScriptedCluster::new(|_, _| done()));
    let nobody = Principal { via: Via::Nobody, ..principal("system:anonymous") };
    let nobody =
        OperationCaller { principal: nobody, user: None, claimed: Some("bob".to_owned()), accounts: None };
    let done = replica.submit(OperationCall { caller: nobody.clone(), ..call(&scale()) }).await;
    let id = done.expect("it is begun").id;
    assert_eq!(replica.history(&id).await.principal.as_deref(), Some("system:anonymous"));
    let refused = replica.submit(OperationCall { caller: nobody, ..on_account("unknown") }).await;
    assert_eq!(refused.expect_err("there is none").status().as_u16(), 404);
    let lines = replica.audit.lines();
    let events: Vec<_> = lines.iter().map(|line| line["message"].clone()).collect();
    assert_eq!(events, ["write", "write", "refusal"], "that of the cluster's write comes first");
    for line in lines {
        let caller = (&line["principal"], &line["via"], &line["claimed"]);
        assert_eq!(caller, (&json!("system:anonymous"), &json!("none"), &json!("bob")), "{line}");
    }
    let mut metrics = Metrics::new();
    replica.operations.register(&mut metrics.registry);
    let text = metrics.encode();
    assert!(text.contains("kubesvc_operations_refused_total{reason=\"not_found\"} 1"), "{text}");
    assert!(text.contains("kubesvc_operations_seconds_count{verb=\"Scale\",outcome=\"completed\""), "{text}");
}
