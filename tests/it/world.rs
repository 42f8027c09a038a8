//! What most tests start with: an operator in a namespace of its own, agents that dial it, and clusters for them.
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
//! | file | what it gives |
//! |---|---|
//! | `prepare.rs` | the start, and what may be said before it: settings, environment, a control plane of its own |
//! | `scenes.rs` | worlds that several tests begin with |
//! | `operator.rs`, `agent.rs` | the two programs: stop, continue, kill, start again, with any environment |
//! | `peers.rs` | further replicas of the operator, and which one leads |
//! | `rights.rs` | the definitions, and the rights that the operator has |
//! | `replica.rs` | further operators on the same API server and database, and how they find one another |
//! | `cluster.rs` | users of a target cluster, and their kubeconfigs |
//! | `account.rs` | accounts: made, changed, waited for |
//! | `database.rs` | the kinds of databases, and statements of a test's own |
//! | `rest.rs`, `row.rs` | what callers of the REST API and readers of the database see |
//!
//! A world that a panicking test drops prints the ends of all its logs.

mod account;
mod agent;
mod cluster;
mod database;
mod operator;
mod prepare;
mod proxied_peers;
mod replica;
mod rest;
mod rights;
pub(crate) mod row;
mod scenes;

use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kube::{Api, Client};
use parking_lot::Mutex;
use serde_json::Value;

pub(crate) use self::{
    account::condition,
    agent::Agent,
    cluster::Cluster,
    database::{Connection, Database, Theirs, connect},
    operator::Operator,
    prepare::Prepare,
    proxied_peers::one_leads,
    replica::{SERVICE, address},
    rest::{Answer, Call},
    rights::{documents, in_repository, install_definitions},
};
use crate::harness::{
    audit::AuditedWrite, controlplane::ControlPlane, folder::Folder, kubectl::Output, must,
    namespace::TestNamespace,
};

/// How long a condition may take to come true: far more than it needs on an idle machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(45);
/// How many lines of each log a failed test shows.
const TAIL: usize = 60;

/// The control plane that a world stands on.
enum Plane {
    /// The one of this test process; never stopped.
    Shared(&'static ControlPlane),
    /// Its own; it may be stopped, paused and started.
    Own(Box<ControlPlane>),
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

/// An operator, its namespace, its database, and whoever dials it.
pub(crate) struct World {
    // Dropped in this order: the programs before the API server that they talk to.
    operator: Operator,
    namespace: TestNamespace,
    client: Client,
    logs: Arc<Mutex<Vec<(String, PathBuf)>>>,
    plane: Plane,
    database: String,
    folder: Folder,
}

impl World {
    /// A world with the usual settings on the shared control plane, its operator ready.
    pub(crate) async fn start() -> Self {
        Self::prepare().start().await
    }

    /// A world with the usual settings, and this kind of database.
    pub(crate) async fn on(database: Database) -> Self {
        Self::prepare().database(database).start().await
    }

    /// A world that something is said about before it starts.
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

    /// The operator's namespace; all objects of the world are in it.
    pub(crate) fn namespace(&self) -> &str {
        self.namespace.name()
    }

    /// The objects of one kind in the world's namespace.
    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType: Default>,
    {
        self.namespace.api()
    }

    /// The folder of the world: settings, logs, database.
    pub(crate) fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Runs the real kubectl with all rights in the world's namespace.
    pub(crate) async fn kubectl(&self, arguments: &[&str]) -> Output {
        self.kubectl_with_input(arguments, "").await
    }

    /// As [`World::kubectl`], with a standard input.
    pub(crate) async fn kubectl_with_input(&self, arguments: &[&str], input: &str) -> Output {
        let all = ["-n", self.namespace()].into_iter().chain(arguments.iter().copied());
        self.plane.kubectl_with_input(all, input).await
    }

    /// `kubectl apply` of one or several documents; they must be taken.
    pub(crate) async fn apply(&self, yaml: &str) {
        must(self.kubectl_with_input(&["apply", "-f", "-"], yaml).await.ok());
    }

    /// `kubectl wait --for=CONDITION ksa/NAME`; it must come true.
    pub(crate) async fn kubectl_wait(&self, name: &str, condition: &str) {
        let (target, wanted) = (format!("ksa/{name}"), format!("--for={condition}"));
        must(self.kubectl(&["wait", &target, &wanted, "--timeout=45s"]).await.ok());
    }

    /// The operator's writes to one account so far, status and spec, oldest first.
    pub(crate) fn writes_to(&self, account: &str) -> Vec<AuditedWrite> {
        let mut writes = self.operator_writes("kubesvcaccounts");
        writes.retain(|write| write.name == account);
        writes
    }

    /// The operator's writes so far in the world's namespace to one kind of objects, by its plural.
    pub(crate) fn operator_writes(&self, resource: &str) -> Vec<AuditedWrite> {
        let user = rights::operator_user(self.namespace());
        let ours = |write: &AuditedWrite| {
            write.user == user && write.resource == resource && write.namespace == self.namespace()
        };
        self.plane.writes().into_iter().filter(ours).collect()
    }

    /// Kubernetes Events about one account, as JSON.
    pub(crate) async fn events_about(&self, account: &str) -> Vec<Value> {
        let listed = must(self.kubectl(&["get", "events.events.k8s.io", "-o", "json"]).await.ok());
        let listed: Value = serde_json::from_str(&listed).expect("kubectl prints JSON");
        let about = |event: &&Value| event["regarding"]["name"] == account;
        listed["items"].as_array().into_iter().flatten().filter(about).cloned().collect()
    }

    /// Everything that the operator and all agents have logged, over all their starts.
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
