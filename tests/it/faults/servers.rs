//! A database on its own server stops, is paused, is slow, and comes back without its last commits.

use std::time::Duration;

use kubesvc_core::{GrantPhase, State};
use serde_json::json;

use super::proxy::{Proxy, ProxyMode};
use super::settled::{settled, settled_within};
use super::{hold, until_database};
use crate::stories::on_one_server;
use crate::world::{Agent, Cluster, Database, MAX_WAIT, Prepare, World};
use kubesvc_testkit::databases::{self, Kind, Server};
use kubesvc_testkit::must;

on_one_server! {
    rows_catch_up_after_the_server_was_killed,
    hanging_server_delays_no_account,
    server_behind_a_failing_connection_gets_every_row,
    server_gets_every_row_despite_locks_of_others,
}

/// Duration of a fault whose end cannot be observed.
const A_WHILE: Duration = Duration::from_secs(4);

/// A world whose database runs on its own server, behind a proxy.
pub(super) struct RemoteDatabase {
    pub(super) world: World,
    pub(super) line: Proxy,
    pub(super) server: Server,
}

impl RemoteDatabase {
    async fn start(kind: Kind) -> Self {
        Self::start_as(kind, World::prepare()).await
    }

    /// Starts the world with further preparations.
    pub(super) async fn start_as(kind: Kind, prepare: Prepare) -> Self {
        let server = must(databases::own(kind).await);
        let line = Proxy::to(server.port()).await;
        let url = server.fresh_database().await;
        let url = url.replace(&format!(":{}/", server.port()), &format!(":{}/", line.port()));
        let world = prepare.database_url(&url).start().await;
        Self { world, line, server }
    }

    /// Creates an agent and accounts that are ACTIVE, in their rows too.
    async fn with_accounts(&self, names: &[&str]) -> (Cluster, Agent) {
        let cluster = self.world.cluster("spinnaker").await;
        let agent = self.world.agent("agent-1").start().await;
        for name in names {
            self.world.account(name).zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
        }
        for name in names {
            self.world.until_row(name, "ACTIVE").await;
        }
        (cluster, agent)
    }
}

/// Changes of each kind while the database is not usable: what needs no row continues, and what needs one
/// waits.
async fn live_without_a_database(far: &RemoteDatabase, cluster: &Cluster) {
    let world = &far.world;
    // The first row reveals that a server is read-only.
    world.patch("stopped", json!({"spec": {"state": "INACTIVE"}})).await;
    until_database(world, true).await;
    world.until("stopped", State::Inactive).await;
    world.account("made").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    world.until("made", State::Active).await;
    world.delete("deleted").await;
    world
        .until_account("deleted", "has given back its grant and keeps its finalizer", |account| {
            let status = account.status_or_default();
            status.state() == State::Deleting && status.phase() == GrantPhase::None && account.has_finalizer()
        })
        .await;
    assert_eq!(world.state("kept").await, Some(State::Active));
}

const WANTED: [(&str, State); 3] =
    [("kept", State::Active), ("made", State::Active), ("stopped", State::Inactive)];

async fn rows_catch_up_after_the_server_was_killed(database: Database) {
    let far = RemoteDatabase::start(database.server()).await;
    let (cluster, agent) = far.with_accounts(&["kept", "stopped", "deleted"]).await;
    far.server.kill();
    live_without_a_database(&far, &cluster).await;
    must(far.server.start().await);
    until_database(&far.world, false).await;
    settled(&far.world, &[&agent], &WANTED).await;
}

async fn hanging_server_delays_no_account(database: Database) {
    let far = RemoteDatabase::start(database.server()).await;
    let (cluster, agent) = far.with_accounts(&["kept", "stopped", "deleted"]).await;
    far.server.pause();
    live_without_a_database(&far, &cluster).await;
    far.server.resume();
    until_database(&far.world, false).await;
    settled(&far.world, &[&agent], &WANTED).await;
}

async fn server_behind_a_failing_connection_gets_every_row(database: Database) {
    let far = RemoteDatabase::start(database.server()).await;
    let (cluster, agent) = far.with_accounts(&["kept", "stopped", "deleted"]).await;
    let world = &far.world;
    for round in 0..4 {
        far.line.set(if round % 2 == 0 { ProxyMode::Cut } else { ProxyMode::Held });
        match round {
            0 => drop(world.patch("stopped", json!({"spec": {"state": "INACTIVE"}})).await),
            1 => world.delete("deleted").await,
            2 => drop(world.account("made").zone("east").kubeconfig(&cluster.kubeconfig()).create().await),
            _ => drop(world.patch("kept", json!({"spec": {"kinds": ["deployment"]}})).await),
        }
        hold(A_WHILE / 4).await;
        far.line.set(ProxyMode::Slow(Duration::from_millis(2)));
        hold(A_WHILE / 8).await;
    }
    far.line.set(ProxyMode::Open);
    until_database(world, false).await;
    settled(world, &[&agent], &WANTED).await;
}

/// Counts the rows that still show the state before the standby stopped following, among those changed or
/// deleted afterwards. The result is far larger if a row exists that was created afterwards.
const LOST: &str = "SELECT count(*) + 10 * count(*) FILTER (WHERE name = 'made') FROM kubesvc_accounts \
                    WHERE (name = 'stopped' AND status = 'ACTIVE') OR name = 'deleted' OR name = 'made'";

/// Everything changes after the standby has stopped following; then the first server is lost.
#[tokio::test(flavor = "multi_thread")]
async fn promoted_standby_gets_lost_commits_again() {
    let far = RemoteDatabase::start(Kind::PostgreSql).await;
    let (cluster, agent) = far.with_accounts(&["kept", "stopped", "deleted"]).await;
    let world = &far.world;
    let standby = must(far.server.standby().await);
    must(standby.stop_following().await);

    world.patch("stopped", json!({"spec": {"state": "INACTIVE"}})).await;
    world.until_row("stopped", "INACTIVE").await;
    world.delete("deleted").await;
    world.until_gone("deleted").await;
    world.account("made").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    world.until_row("made", "ACTIVE").await;

    far.server.kill();
    must(standby.promote());
    let database = world.database_url().rsplit('/').next().expect("a URL ends with its name");
    let mut left = must(crate::world::connect(&standby.url(database)).await.map_err(|e| e.to_string()));
    let told = left.number(LOST).await.expect("it has the table");
    assert_eq!(told, 2, "the standby has the rows as they were, and what was made later is lost");
    far.line.lead_to(standby.port());
    until_database(world, false).await;
    // Rows and objects are compared once a minute.
    settled_within(MAX_WAIT + Duration::from_secs(60), world, &[&agent], &WANTED).await;
}

/// A server that refuses writes is not an unreachable server: the refusal is reported, and repaired when it
/// accepts writes again.
#[tokio::test(flavor = "multi_thread")]
async fn writes_wait_until_a_read_only_standby_is_promoted() {
    let far = RemoteDatabase::start(Kind::PostgreSql).await;
    let (cluster, agent) = far.with_accounts(&["kept", "stopped", "deleted"]).await;
    let standby = must(far.server.standby().await);
    far.line.lead_to(standby.port());
    far.server.kill();
    live_without_a_database(&far, &cluster).await;
    must(standby.promote());
    until_database(&far.world, false).await;
    settled(&far.world, &[&agent], &WANTED).await;
}

/// Other sessions lock the rows that the operator writes, in the order that causes deadlocks.
async fn server_gets_every_row_despite_locks_of_others(database: Database) {
    let far = RemoteDatabase::start(database.server()).await;
    let (cluster, agent) = far.with_accounts(&["kept", "stopped", "deleted"]).await;
    let world = &far.world;
    let url = world.database_url().to_owned();
    let others = tokio::spawn(async move {
        let mut sessions = Vec::new();
        for order in [["kept", "stopped"], ["stopped", "kept"]] {
            let url = url.clone();
            sessions.push(tokio::spawn(async move {
                let mut database = crate::world::connect(&url).await.expect("it answers");
                for _ in 0..40 {
                    for statement in [
                        "BEGIN".to_owned(),
                        format!("UPDATE kubesvc_accounts SET failed_count = 3 WHERE name = '{}'", order[0]),
                        format!("UPDATE kubesvc_accounts SET failed_count = 4 WHERE name = '{}'", order[1]),
                        "ROLLBACK".to_owned(),
                    ] {
                        // A deadlock ends the transaction; the next round starts again.
                        let _ = database.execute(&statement).await;
                    }
                }
            }));
        }
        for session in sessions {
            session.await.expect("it ends by itself");
        }
    });
    for round in 0..20 {
        world.patch("kept", json!({"spec": {"environment": format!("round-{round}")}})).await;
        let state = if round % 2 == 0 { "INACTIVE" } else { "ACTIVE" };
        world.patch("stopped", json!({"spec": {"state": state}})).await;
    }
    world.patch("stopped", json!({"spec": {"state": "INACTIVE"}})).await;
    world.delete("deleted").await;
    world.account("made").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    others.await.expect("they end by themselves");
    settled(world, &[&agent], &WANTED).await;
}
