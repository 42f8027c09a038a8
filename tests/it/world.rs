//! The environment of most tests: an operator in its own namespace, agents that connect to it, and target clusters.
//!
//! ```ignore
//! let world = World::start().await;
//! let cluster = world.cluster("prod").await;
//! let agent = world.agent("agent-1").zone("east").start().await;
//! world.account("prod").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
//! world.until("prod", State::Active).await;
//! agent.kill();
//! world.until("prod", State::Orphaned).await;
//! ```
//!
//! | file | contents |
//! |---|---|
//! | `prepare.rs` | the options and start of a world: settings, environment, a separate control plane; worlds that several tests start from |
//! | `operator.rs`, `agent.rs` | the two programs: pause, resume, kill, restart, with any environment |
//! | `proxied_peers.rs` | which of several replicas leads |
//! | `rights.rs` | the CRDs, and the operator's permissions |
//! | `replica.rs` | additional operators on the same API server and database, and how they discover one another |
//! | `cluster.rs` | users of a target cluster, and their kubeconfigs |
//! | `account.rs` | accounts: creating, changing, and waiting for them |
//! | `cases.rs` | cases that run beside one another in one world |
//! | `database.rs` | the kinds of databases, and statements of a test |
//! | `rest.rs`, `row.rs` | what callers of the REST API and readers of the database see |
//!
//! If a test panics, dropping its world prints the end of each log.

mod account;
mod agent;
mod cases;
mod cluster;
mod database;
mod operator;
mod prepare;
mod proxied_peers;
mod replica;
mod rest;
mod rights;
pub(crate) mod row;

use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kube::{Api, Client};
use parking_lot::Mutex;
use serde_json::Value;

pub(crate) use self::{
    account::condition,
    agent::{Agent, AgentBuilder},
    cases::{case, panic_message, run_cases},
    cluster::Cluster,
    database::{CachedObject, Connection, Database, ForeignTableRow, connect},
    operator::Operator,
    prepare::Prepare,
    proxied_peers::one_leads,
    replica::{SERVICE, address},
    rest::{Answer, Call, get_from, send},
    rights::{in_repository, install_definitions},
    row::CachedRow,
};
use kubesvc_testkit::{
    audit::AuditedWrite,
    controlplane::{ControlPlane, Reused},
    folder::Folder,
    kubectl::Output,
    must,
    namespace::TestNamespace,
};

/// Time limit for a condition to become true, far longer than on an idle machine.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(45);
/// Time limit of the promise that a kind is cached within a minute after its CRD was made or the right to it was granted,
/// and that its rows are gone within a minute after its CRD. Agents look every 30 s, and the leader sweeps every 10 s.
pub(crate) const MAX_KIND_DELAY: Duration = Duration::from_secs(60);
/// Time limit for the condition `Caching` to follow what is left out, which is noticed within 30 s and written at most once
/// a minute.
pub(crate) const MAX_LEFT_OUT_DELAY: Duration = Duration::from_secs(90);
/// Number of lines of each log that a failed test prints.
const TAIL: usize = 60;

/// The control plane of a world.
enum Plane {
    /// The control plane that this test process shares; never stopped.
    Shared(&'static ControlPlane),
    /// A control plane that no one else uses now, which may be stopped, paused and restarted.
    Own(Box<Reused>),
}

impl Deref for Plane {
    type Target = ControlPlane;

    fn deref(&self) -> &ControlPlane {
        match self {
            Self::Shared(plane) => plane,
            Self::Own(plane) => plane,
        }
    }
}

/// An operator, its namespace, its database, and the programs that connect to it.
pub(crate) struct World {
    // Dropped in this order: the programs before the API server that they use.
    operator: Operator,
    namespace: TestNamespace,
    client: Client,
    logs: Arc<Mutex<Vec<(String, PathBuf)>>>,
    plane: Plane,
    database: String,
    folder: Folder,
}

impl World {
    /// Starts a world with default settings on the shared control plane. The operator is ready.
    pub(crate) async fn start() -> Self {
        Self::prepare().start().await
    }

    /// Starts a world with default settings and this kind of database.
    pub(crate) async fn on(database: Database) -> Self {
        Self::prepare().database(database).start().await
    }

    /// Returns the options of a world, to be changed before its start.
    pub(crate) fn prepare() -> Prepare {
        Prepare::default()
    }

    /// The control plane of the operator. Stop or pause it only in a world with [`Prepare::own_control_plane`].
    pub(crate) fn control_plane(&self) -> &ControlPlane {
        &self.plane
    }

    /// The operator.
    pub(crate) fn operator(&self) -> &Operator {
        &self.operator
    }

    /// The operator's namespace, which contains all objects of the world.
    pub(crate) fn namespace(&self) -> &str {
        self.namespace.name()
    }

    /// Returns the API of one kind in the world's namespace.
    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType: Default>,
    {
        self.namespace.api()
    }

    /// Folder of the world: settings, logs, database.
    pub(crate) fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Runs the real kubectl with all rights in the world's namespace.
    pub(crate) async fn kubectl(&self, arguments: &[&str]) -> Output {
        self.kubectl_with_input(arguments, "").await
    }

    /// Like [`World::kubectl`], with standard input.
    pub(crate) async fn kubectl_with_input(&self, arguments: &[&str], input: &str) -> Output {
        let all = ["-n", self.namespace()].into_iter().chain(arguments.iter().copied());
        self.plane.kubectl_with_input(all, input).await
    }

    /// Runs `kubectl apply` on one or several documents and fails the test if they are refused.
    pub(crate) async fn apply(&self, yaml: &str) {
        must(self.kubectl_with_input(&["apply", "-f", "-"], yaml).await.ok());
    }

    /// Runs `kubectl wait --for=CONDITION ksa/NAME` and fails the test if the condition is not met.
    pub(crate) async fn kubectl_wait(&self, name: &str, condition: &str) {
        let (target, wanted) = (format!("ksa/{name}"), format!("--for={condition}"));
        must(self.kubectl(&["wait", &target, &wanted, "--timeout=45s"]).await.ok());
    }

    /// Returns the operator's writes to one account so far, status and spec, oldest first.
    pub(crate) fn writes_to(&self, account: &str) -> Vec<AuditedWrite> {
        let mut writes = self.operator_writes("kubesvcaccounts");
        writes.retain(|write| write.name == account);
        writes
    }

    /// Returns the operator's writes so far in the world's namespace to one kind of object, given by its plural.
    pub(crate) fn operator_writes(&self, resource: &str) -> Vec<AuditedWrite> {
        let user = rights::operator_user(self.namespace());
        let ours = |write: &AuditedWrite| {
            write.user == user && write.resource == resource && write.namespace == self.namespace()
        };
        self.plane.writes().into_iter().filter(ours).collect()
    }

    /// Returns the Kubernetes Events about one account, as JSON.
    pub(crate) async fn events_about(&self, account: &str) -> Vec<Value> {
        let listed = must(self.kubectl(&["get", "events.events.k8s.io", "-o", "json"]).await.ok());
        let listed: Value = serde_json::from_str(&listed).expect("kubectl prints JSON");
        let about = |event: &&Value| event["regarding"]["name"] == account;
        listed["items"].as_array().into_iter().flatten().filter(about).cloned().collect()
    }

    /// Returns the logs of the operator and all agents, over all their starts.
    pub(crate) fn all_logs(&self) -> Vec<(String, String)> {
        let read = |path: &PathBuf| {
            std::fs::read(path).map(|text| String::from_utf8_lossy(&text).into_owned()).unwrap_or_default()
        };
        self.logs.lock().iter().map(|(name, path)| (name.clone(), read(path))).collect()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        for (name, text) in self.all_logs() {
            let lines: Vec<_> = text.lines().collect();
            let tail = lines[lines.len().saturating_sub(TAIL)..].join("\n");
            eprintln!("--- the end of the log of {name} in {}:\n{tail}", self.namespace());
        }
    }
}
