//! Several replicas: how fast a new leader takes over, and the cost of an agent that is connected to a follower.

use std::time::Duration;

use crate::{
    failover, follower,
    operator::{Database, Operator, Site},
    options::Options,
    report::Report,
};
use kubesvc_testkit::{controlplane::ControlPlane, databases::Kind};

/// Longer than any step here, so that no account is considered orphaned.
const GRACE: Duration = Duration::from_secs(60);
/// The databases that support several replicas.
pub(crate) const SERVERS: [(&str, Kind); 2] = [("MariaDB", Kind::MariaDb), ("PostgreSQL", Kind::PostgreSql)];

/// Runs the benchmark and adds its results to the report.
///
/// # Errors
///
/// The benchmark could not run.
pub(crate) async fn run(options: &Options, kubeconfig: &str, report: &mut Report) -> Result<(), String> {
    let plane = crate::control_plane().await?;
    failover::run(&plane, options, kubeconfig, report).await?;
    follower::run(&plane, options, kubeconfig, report).await
}

/// Creates the sites of two replicas on one database of this kind, for the accounts of a namespace.
///
/// # Errors
///
/// Their files cannot be written.
pub(crate) async fn sites(plane: &ControlPlane, kind: Kind, namespace: &str) -> Result<[Site; 2], String> {
    let first = Site::on(Database::Server(kind), plane, namespace, GRACE).await?;
    let second = first.beside("bench-operator-2", GRACE)?;
    Ok([first, second])
}

/// Starts both replicas; the first leads.
///
/// # Errors
///
/// A replica does not become ready.
pub(crate) async fn start(sites: &[Site; 2]) -> Result<[Operator<'_>; 2], String> {
    let first = sites[0].start()?;
    first.ready().await?;
    first.leads().await?;
    let second = sites[1].start()?;
    second.ready().await?;
    Ok([first, second])
}
