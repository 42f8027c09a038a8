//! The controller over a scripted API server and a database in a file.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use http::{Request, Response};
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::sync::DropGuard;

use super::*;
use crate::connected_agents::{AgentView, ConnectedAgentsError};
use crate::secrets::Credential;
use kubesvc_core::failure::Failure;
use kubesvc_core::lifecycle::{RowFact, SessionFact};
use kubesvc_core::{AgentId, Installation, KubesvcAccount, ZoneId, account_row};
use kubesvc_store::VendorTables;

/// No agent, and no credential.
struct Nobody;

#[async_trait]
impl ConnectedAgents for Nobody {
    fn sessions(&self, _: &str) -> Vec<SessionFact> {
        Vec::new()
    }

    fn agents(&self) -> Vec<AgentView> {
        Vec::new()
    }

    fn holders(&self, _: &str) -> Vec<AgentView> {
        Vec::new()
    }

    fn namespaces(&self, _: &str) -> Option<Vec<String>> {
        None
    }

    fn is_all_here(&self) -> bool {
        true
    }

    async fn read(&self, _: &ZoneId) -> Result<(), ConnectedAgentsError> {
        Ok(())
    }

    fn disconnect(&self, _: &AgentId, _: Option<&ZoneId>) -> bool {
        false
    }
}

#[async_trait]
impl CredentialSource for Nobody {
    async fn resolve(&self, _: &KubesvcAccount, _: bool) -> Result<Credential, Failure> {
        unreachable!("no account needs one")
    }
}

/// The objects of an API server, by path.
type Objects = Arc<Mutex<HashMap<&'static str, Value>>>;

/// Access to an API server that has these objects, and nothing else.
fn kube(objects: &Objects) -> KubeAccess {
    let objects = Arc::clone(objects);
    let service = tower::service_fn(move |request: Request<Body>| {
        let found = objects.lock().get(request.uri().path()).cloned();
        let name = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
        let missing = || {
            json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404,
                "message": "it is not there", "details": {"name": name}})
        };
        let (code, body) = found.map_or_else(|| (404, missing()), |object| (200, object));
        async move { Response::builder().status(code).body(Body::from(body.to_string().into_bytes())) }
    });
    KubeAccess::new(kube::Client::new(service, "ns"), "test")
}

struct Scene {
    controller: Controller,
    objects: Objects,
    _stop: DropGuard,
    _folder: tempfile::TempDir,
}

impl Scene {
    async fn of(accounts: AccountIndex) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let url = format!("sqlite://{}", folder.path().join("test.db").display());
        let opened = kubesvc_store::open_with_cache(&url, VendorTables::Refuse, 1).await;
        let (store, _) = opened.expect("it opens");
        let projection = Projection::new(Arc::clone(&store));
        projection.load().await.expect("it is read");
        let (stop, tasks) = (CancellationToken::new(), TaskRegistry::default());
        let (writer, ended, registry) = (Arc::clone(&projection), stop.clone(), tasks.clone());
        tokio::spawn(async move { writer.run(&registry, ended).await });
        let objects = Objects::default();
        let kube = kube(&objects);
        let replica_id = ReplicaId::from("replica");
        let events = Events::start(&kube, &replica_id, stop.clone());
        let context = ControllerContext {
            leases: LeaseObjects::new(&kube, "ns"),
            kube,
            accounts: Arc::new(accounts),
            connected_agents: Arc::new(Nobody),
            agents: Arc::default(),
            changed_agents: Arc::default(),
            credentials: Arc::new(Nobody),
            projection,
            store,
            adopts: None,
            policy: LifecyclePolicy {
                max_retries: 3,
                retry_first: 5,
                retry_multiplier: 2.0,
                retry_max: 300,
                orphan_grace: 30,
                operation_wait: 30,
                account_cleanup: 600,
                clean_unused_accounts: false,
                offers: true,
                agent_wins: false,
                installation: None,
            },
            source_rules: Arc::default(),
            registrations: None,
            ticks: Arc::default(),
            wakes: Arc::default(),
            changed_secrets: Arc::default(),
            outdated_secrets: Arc::default(),
            tasks,
            mandate: Mandate::alone(&replica_id),
            replicas: Replicas::alone(&replica_id),
            replica_id,
            metrics: ControllerMetrics::default(),
        };
        let controller = Controller::new(context, events);
        Self { controller, objects, _stop: stop.drop_guard(), _folder: folder }
    }

    fn row(&self, account: &KubesvcAccount) -> RowFact {
        self.controller.context.projection.fact(account.uid(), account.account_name())
    }
}

fn account() -> KubesvcAccount {
    serde_json::from_value(json!({
        "apiVersion": "kubesvc.io/v1alpha1", "kind": "KubesvcAccount",
        "metadata": {"name": "prod", "namespace": "ns", "uid": "uid-prod", "resourceVersion": "1"},
        "spec": {"kubeconfig": {"serviceAccount": true}},
    }))
    .expect("well-formed")
}

#[tokio::test]
async fn row_of_an_account_that_only_the_watch_reports_as_deleted_stays() {
    const PATH: &str = "/apis/kubesvc.io/v1alpha1/namespaces/ns/kubesvcaccounts/prod";
    let scene = Scene::of(AccountIndex::default()).await;
    let (context, account, stop) = (&scene.controller.context, account(), CancellationToken::new());
    let key = AccountKey::of(&account);
    context.accounts.show(account.clone());
    context.projection.insert(account_row::of(&account)).await.expect("it is written");
    scene.controller.transient_states.observe(&account, 0);
    context.accounts.hide(&key);
    for (uid, expected) in [(Some("uid-prod"), RowFact::Present), (Some("uid-anew"), RowFact::Absent)] {
        let there = uid.map(|uid| {
            json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
                "metadata": {"name": "prod", "namespace": "ns", "uid": uid}})
        });
        scene.objects.lock().extend(there.map(|there| (PATH, there)));
        let is_kept = expected == RowFact::Present;
        if is_kept {
            // Nobody answers the new list of all accounts, which it waits for.
            tokio::time::pause();
        }
        scene.controller.reconcile(&key, &stop).await;
        if is_kept {
            tokio::time::resume();
        }
        assert_eq!(scene.row(&account), expected, "{uid:?}");
    }
}

#[tokio::test]
async fn accounts_are_taken_over_once_the_namespace_of_their_installation_is_gone_or_another_one() {
    const PATH: &str = "/api/v1/namespaces/other";
    let own = Installation { namespace: "ns".to_owned(), uid: "uid-ns".to_owned() };
    for (uid, is_taken) in [(Some("uid-other"), false), (Some("uid-anew"), true), (None, true)] {
        let scene = Scene::of(AccountIndex::default().served_by(own.clone())).await;
        let mut account = account();
        let operator = Installation { namespace: "other".to_owned(), uid: "uid-other".to_owned() };
        account.status.get_or_insert_default().operator = Some(operator);
        scene.controller.context.accounts.show(account);
        assert_eq!(scene.controller.context.accounts.foreign_len(), 1);
        let namespace = uid.map(
            |uid| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other", "uid": uid}}),
        );
        scene.objects.lock().extend(namespace.map(|namespace| (PATH, namespace)));
        foreign_accounts::check(&scene.controller).await;
        assert_eq!(scene.controller.context.accounts.len(), usize::from(is_taken), "{uid:?}");
    }
}
