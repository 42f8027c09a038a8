//! Two replicas on a database of their own: restarted, killed and drained while callers and accounts go on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kubesvc_testkit::databases::{Kind, Server};
use kubesvc_testkit::must;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_util::task::AbortOnDropHandle;

use crate::cluster::{Cluster, READY, ROLLED_OUT, told};

/// How long callers poll while all replicas restart.
const POLLS: Duration = Duration::from_secs(30);
/// Time between two calls of one caller, each on a connection of its own.
const BETWEEN: Duration = Duration::from_millis(25);
const CALLERS: usize = 4;
/// Longer than any call takes.
const CALL: Duration = Duration::from_secs(5);
const LEADER: &str = "kubectl get lease kubesvc-operator -n kubesvc -o jsonpath='{.spec.holderIdentity}'";

/// Two replicas, an approved agent, and the ACTIVE account `production`.
struct Installed {
    cluster: &'static Cluster,
    _database: (Server, AbortOnDropHandle<()>),
}

async fn two_replicas(kind: Kind) -> Installed {
    let cluster = Cluster::clean().await;
    let (url, database) = cluster.database(kind).await;
    cluster.sh(&format!(
        "kubectl create namespace kubesvc
kubectl -n kubesvc create secret generic kubesvc-database --from-literal=url='{url}'
helm install kubesvc charts/kubesvc -n kubesvc --set replicas=2,database.existingSecret=kubesvc-database
helm install kubesvc-agent charts/kubesvc-agent -n kubesvc --set mode=spinnaker-service
{ROLLED_OUT}"
    ));
    cluster.prints("kubectl get ksg -n kubesvc -o name", |printed| !printed.is_empty()).await;
    cluster.sh("kubectl kubesvc agents approve -n kubesvc $(kubectl get ksg -n kubesvc -o jsonpath='{.items[0].spec.agentId}')");
    cluster.make_account("production").await;
    Installed { cluster, _database: database }
}

/// Callers that poll the account until they are asked what they met.
struct Callers {
    stop: Arc<AtomicBool>,
    polling: Vec<AbortOnDropHandle<(usize, Vec<String>)>>,
}

impl Callers {
    fn of(address: &str) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let polling = (0..CALLERS).map(|_| {
            let (stop, address) = (Arc::clone(&stop), address.to_owned());
            AbortOnDropHandle::new(tokio::spawn(async move {
                let (mut calls, mut failed) = (0, Vec::new());
                while !stop.load(Ordering::Relaxed) {
                    calls += 1;
                    match tokio::time::timeout(CALL, call(&address)).await {
                        Ok(Ok(())) => {}
                        Ok(Err(reason)) => failed.push(reason),
                        Err(_) => failed.push(format!("no answer within {CALL:?}")),
                    }
                    tokio::time::sleep(BETWEEN).await;
                }
                (calls, failed)
            }))
        });
        Self { stop: Arc::clone(&stop), polling: polling.collect() }
    }

    /// Number of calls, and why some failed.
    async fn end(self) -> (usize, Vec<String>) {
        self.stop.store(true, Ordering::Relaxed);
        let (mut calls, mut failed) = (0, Vec::new());
        for caller in self.polling {
            let (made, reasons) = must(caller.await.map_err(|e| e.to_string()));
            calls += made;
            failed.extend(reasons);
        }
        (calls, failed)
    }
}

/// Asks for the account on a connection of its own.
async fn call(address: &str) -> Result<(), String> {
    let problem = |e: std::io::Error| e.to_string();
    let mut stream = TcpStream::connect(address).await.map_err(problem)?;
    let request = "GET /armory/accounts/production HTTP/1.1\r\nHost: kubesvc\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).await.map_err(problem)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.map_err(problem)?;
    let text = String::from_utf8_lossy(&answer);
    match text.lines().next() {
        Some(line) if line.contains(" 200 ") => Ok(()),
        line => Err(line.unwrap_or("an empty answer").to_owned()),
    }
}

fn rest(cluster: &Cluster) -> String {
    cluster.sh("kubectl get service kubesvc-operator -n kubesvc -o jsonpath='{.spec.clusterIP}'") + ":7002"
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root and a node: make node-test"]
async fn a_rolling_restart_refuses_no_call_and_accounts_stay_active() {
    let installed = two_replicas(Kind::MariaDb).await;
    let cluster = installed.cluster;
    let states = cluster.watch_states().await;
    let callers = Callers::of(&rest(cluster));
    let begun = Instant::now();
    cluster.sh("kubectl -n kubesvc rollout restart deployment/kubesvc-operator");
    cluster.sh(ROLLED_OUT);
    told("rolling restart of two replicas", begun);
    tokio::time::sleep(POLLS.saturating_sub(begun.elapsed())).await;
    let (calls, failed) = callers.end().await;
    eprintln!("| … {} refused of {calls} calls in {:.0} s | |", failed.len(), begun.elapsed().as_secs_f64());
    assert!(failed.is_empty(), "{} of {calls}: {:?}", failed.len(), failed.first());
    states.all_active();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root and a node: make node-test"]
async fn a_killed_leader_is_followed_by_the_other_replica_and_a_drain_leaves_one() {
    let installed = two_replicas(Kind::PostgreSql).await;
    let cluster = installed.cluster;
    let states = cluster.watch_states().await;
    let leader = cluster.sh(LEADER);
    let begun = Instant::now();
    cluster.sh(&format!("kubectl -n kubesvc delete pod {leader} --grace-period=0 --force 2>/dev/null"));
    cluster.prints(LEADER, |holder| !holder.is_empty() && holder != leader).await;
    told("the leader's pod killed: another one leads", begun);
    cluster.make_account("second").await;
    told("… and has activated a new account", begun);
    states.all_active();
    cluster.sh(ROLLED_OUT);

    // On one node no replacement can be scheduled: one replica has to stay.
    let callers = Callers::of(&rest(cluster));
    let begun = Instant::now();
    let drained = cluster.try_sh(
        "kubectl drain node --pod-selector=app.kubernetes.io/name=kubesvc-operator --delete-emptydir-data --ignore-daemonsets --timeout=20s",
    );
    assert_ne!(drained.code, Some(0), "{}", drained.stdout);
    let budget = "would violate the pod's disruption budget";
    assert!(drained.stderr.contains(budget), "{}", drained.stderr);
    assert_eq!(cluster.sh(READY), "1");
    cluster.sh(&format!("kubectl uncordon node\n{ROLLED_OUT}"));
    told("drain for 20 s against the budget, uncordon, both replicas back", begun);
    let (calls, failed) = callers.end().await;
    eprintln!("| … {} refused of {calls} calls | |", failed.len());
    assert!(failed.is_empty(), "{} of {calls}: {:?}", failed.len(), failed.first());
    states.all_active();
}
