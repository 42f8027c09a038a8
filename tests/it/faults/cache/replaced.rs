//! The cluster at the account's address goes back to an earlier state, or another one is there for a while.

use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::api::{ListParams, PostParams};
use kubesvc_core::{RETRY_ANNOTATION, State};

use super::kinds::WrittenKind;
use super::load::{ACCOUNT, RowsMay, api_server_port, filled, prepare, settled, under_load};
use super::row_oracle::newest_version;
use super::writer::ClusterWriter;
use crate::faults::hold;
use crate::faults::proxy::Proxy;
use crate::world::{Database, MAX_WAIT, World};
use kubesvc_testkit::controlplane::{ControlPlane, StartOptions};
use kubesvc_testkit::must;

/// Time for which the cluster changes before it goes back. It must not have come as far again when the agent asks it, which
/// is some 10 s after it is back.
const CHANGES: Duration = Duration::from_secs(40);
/// Time for which the cluster changes otherwise.
const A_WHILE: Duration = Duration::from_secs(3);
/// A namespace that each cluster has.
const NAMESPACE: &str = "default";

/// The newest version that a row shows.
async fn newest_row(world: &World) -> u64 {
    let read = async { newest_version(&mut world.open_database().await?).await };
    must(read.await.map_err(|error| error.to_string()))
}

/// The version of a cluster.
async fn version(plane: &ControlPlane) -> u64 {
    let api = WrittenKind::ConfigMap.api(plane.client().await, NAMESPACE);
    let listed = must(api.list(&ListParams::default().limit(1)).await.map_err(|error| error.to_string()));
    let version = listed.metadata.resource_version.and_then(|version| version.parse().ok());
    version.expect("versions of the test's server are numbers")
}

async fn cluster_is_restored(database: Database) {
    let world = prepare().database(database).start().await;
    let mut options = StartOptions::without_audit();
    let token = options.add_user("restored", &["system:masters"]);
    let mut plane = must(ControlPlane::start_with(options).await);
    let mut writer = ClusterWriter::of_cluster(plane.client().await, NAMESPACE, 23);
    writer.fill(0).await;
    must(plane.back_up().await);
    let _agent = world.agent("agent-1").start().await;
    world.account(ACCOUNT).zone("east").kubeconfig(&plane.kubeconfig_for_token(&token)).create().await;
    world.until(ACCOUNT, State::Active).await;
    under_load(&world, writer, (RowsMay::GoBack, MAX_WAIT), async {
        hold(CHANGES).await;
        let newest = newest_row(&world).await;
        must(plane.restore().await);
        let version = version(&plane).await;
        assert!(version < newest, "it has not gone back: {version}, and a row has {newest}");
        hold(A_WHILE).await;
    })
    .await;
    assert_eq!(world.state(ACCOUNT).await, Some(State::Active));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a minute and a half each: make faults"]
async fn rows_follow_a_busy_cluster_that_is_restored_to_an_earlier_state_on_any_database() {
    for database in [Database::Sqlite, Database::MariaDb, Database::Postgres] {
        cluster_is_restored(database).await;
    }
}

/// A writer of a cluster in a namespace that it has not yet.
async fn writer_of(plane: &ControlPlane, name: &str, seed: u64) -> ClusterWriter {
    let mut namespace = Namespace::default();
    namespace.metadata.name = Some(name.to_owned());
    let namespaces: Api<Namespace> = Api::all(plane.client().await);
    let created = namespaces.create(&PostParams::default(), &namespace).await;
    must(created.map(drop).map_err(|error| error.to_string()));
    let mut writer = ClusterWriter::of_cluster(plane.client().await, name, seed);
    writer.fill(0).await;
    writer
}

async fn cluster_is_replaced(database: Database) {
    let world = prepare().database(database).start().await;
    let writer = filled(&world, 24, 0).await;
    let cluster = world.cluster("spinnaker").await;
    let mut options = StartOptions::without_audit();
    options.add_user_with_token("spinnaker", &["system:masters"], cluster.token());
    let other = must(ControlPlane::reused(options).await);
    // Its objects have the same names: a row of one would be seen to have a version that no object of the world had.
    let mut elsewhere = writer_of(&other, world.namespace(), 25).await;
    let own_port = api_server_port(world.control_plane());
    let line = Proxy::to(own_port).await;
    let _agent = world.agent("agent-1").start().await;
    // Without an authority, so that no certificate shows that the cluster is another one.
    let url = format!("https://127.0.0.1:{}", line.port());
    let kubeconfig = cluster.kubeconfig_in_one_line().replace(cluster.server(), &url);
    world.account(ACCOUNT).zone("east").kubeconfig(&kubeconfig).create().await;
    world.until(ACCOUNT, State::Active).await;
    settled(&world).await;
    under_load(&world, writer, (RowsMay::OnlyFollow, MAX_WAIT), async {
        let replaced = async {
            hold(A_WHILE).await;
            line.lead_to(api_server_port(&other));
            line.cut();
            world.until_reason(ACCOUNT, State::Failed, "ClusterMismatch").await;
            hold(A_WHILE).await;
            line.lead_to(own_port);
            line.cut();
            world.annotate(ACCOUNT, RETRY_ANNOTATION, "the cluster is back").await;
            world.until(ACCOUNT, State::Active).await;
        };
        tokio::select! {
            () = replaced => {}
            never = elsewhere.run() => match never {},
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "half a minute each: make faults"]
async fn rows_are_of_the_accounts_own_busy_cluster_while_another_one_replaces_it_on_any_database() {
    for database in [Database::Sqlite, Database::MariaDb, Database::Postgres] {
        cluster_is_replaced(database).await;
    }
}
