//! A fault under load: the cluster changes while it lasts, and afterwards the rows must be the objects.

use std::convert::Infallible;
use std::future::pending;
use std::time::Duration;

use serde_json::json;

use super::history::History;
use super::kinds::{NATIVE_KINDS, WrittenKind};
use super::row_oracle::{rows_are_objects, rows_are_objects_of};
use super::writer::ClusterWriter;
use crate::world::{MAX_WAIT, Prepare, World};
use kubesvc_core::State;
use kubesvc_testkit::controlplane::ControlPlane;
use kubesvc_testkit::{must, wait::try_eventually};

/// The account whose objects are cached.
pub(super) const ACCOUNT: &str = "prod";
/// Number of objects that are left alone: lists of ConfigMaps take several pages.
pub(super) const STILL: usize = 600;

/// Time limit for the bare watch to see what the rows show.
const VERDICT_TIMEOUT: Duration = Duration::from_secs(5);

/// What a fault may do to the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowsMay {
    /// Rows follow the objects, and never go back.
    OnlyFollow,
    /// Rows go and come back with their account, or commits are lost. Nobody looks at them before the end.
    GoBack,
}

/// A world that caches what the writer writes.
pub(super) fn prepare() -> Prepare {
    let kinds = json!(["deployment", "replicaSet", "configMap", "secret", "Gadget"]);
    World::prepare().setting("kubesvc.cache.cacheKinds", kinds)
}

/// Port of a cluster's API server.
pub(super) fn api_server_port(plane: &ControlPlane) -> u16 {
    let url = plane.server_url();
    url.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a URL with a port")
}

/// Creates the account, whose cluster is at this address, and waits until it is ACTIVE.
pub(super) async fn create_account(world: &World, server: Option<&str>) {
    let cluster = world.cluster("spinnaker").await;
    let kubeconfig = server.map_or_else(|| cluster.kubeconfig(), |server| cluster.kubeconfig_at(server));
    world.account(ACCOUNT).zone("east").kubeconfig(&kubeconfig).create().await;
    world.until(ACCOUNT, State::Active).await;
}

/// The writer of a world that is about to be filled.
pub(super) async fn filled(world: &World, seed: u64, still: usize) -> ClusterWriter {
    let mut writer = ClusterWriter::new(world, seed).await;
    writer.fill(still).await;
    writer
}

/// Waits until the rows are the objects at rest.
pub(super) async fn settled(world: &World) {
    must(rows_are_objects(world, ACCOUNT, &NATIVE_KINDS, MAX_WAIT).await);
}

/// Does something while the cluster changes. When it is over, the writer stops, and the rows must be the objects within
/// `limit`; none may have gone back. A writer of another cluster than the world's needs [`RowsMay::GoBack`].
pub(super) async fn under_load<T>(
    world: &World,
    mut writer: ClusterWriter,
    (rows_may, limit): (RowsMay, Duration),
    fault: impl Future<Output = T>,
) -> T {
    let history = (rows_may == RowsMay::OnlyFollow).then(History::default);
    let kinds: Vec<WrittenKind> = writer.kinds().to_vec();
    let watching = async {
        let Some(history) = &history else { return pending::<Infallible>().await };
        tokio::select! {
            never = history.watch(world, &kinds) => never,
            never = history.poll_rows(world) => never,
        }
    };
    let all = async {
        if let Some(history) = &history {
            history.until_watched(&kinds).await;
        }
        let result = tokio::select! {
            result = fault => result,
            never = writer.run() => match never {},
        };
        must(rows_are_objects_of(world, writer.target(), ACCOUNT, &kinds, limit).await);
        if let Some(history) = &history {
            // The last versions may reach the bare watch late.
            must(try_eventually("rows that only follow", VERDICT_TIMEOUT, async || history.verdict()).await);
        }
        result
    };
    let result = tokio::select! {
        result = all => result,
        never = watching => match never {},
    };
    if let Some(history) = &history {
        assert!(history.versions_shown() > 0, "no row was seen");
    }
    result
}
