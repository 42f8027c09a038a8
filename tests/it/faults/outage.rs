//! A database is away for ten minutes of real time, while accounts are added, changed and deleted and agents
//! restart.
//!
//! Short versions in `servers.rs` and `database.rs` run every time. Here there are many waiting rows, each
//! retry delay has grown to its maximum, and anything that is forgotten after some minutes would be.

use std::io::Write as _;
use std::time::{Duration, Instant};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kubesvc_core::{GrantPhase, KubesvcAccount, State};
use serde_json::json;

use super::servers::RemoteDatabase;
use super::settled::settled;
use super::{hold, resident_kib, until_database};
use crate::world::{Agent, Cluster, Prepare, World, connect};
use kubesvc_testkit::databases::Kind;
use kubesvc_testkit::must;

/// Duration of the outage.
const AWAY: Duration = Duration::from_secs(600);
/// Duration of a round, in which one account is added and one changed; in every other round, one is deleted.
const ROUND: Duration = Duration::from_secs(5);
/// Number of rounds between restarts of an agent.
const RESTART: usize = 12;
/// Number of accounts that are left alone.
const KEPT: usize = 20;
/// Maximum growth of the operator's memory, in KiB: some hundred rows wait.
const GROWTH: u64 = 64 * 1024;
/// Time in seconds within which a restarted agent is back.
const GRACE: u64 = 60;

fn prepare() -> Prepare {
    World::prepare().setting("kubesvc.dynamicAccounts.orphanGraceSeconds", GRACE)
}

/// A world with accounts that are left alone.
struct Outage<'w> {
    world: &'w World,
    cluster: Cluster,
    agents: [Agent; 2],
    writes: usize,
    /// Time of the last change of state of each account that is left alone.
    since: Vec<Option<Time>>,
    memory: u64,
}

impl<'w> Outage<'w> {
    async fn prepare(world: &'w World) -> Self {
        let cluster = world.cluster("spinnaker").await;
        let agents = [world.agent("agent-1").start().await, world.agent("agent-2").start().await];
        for number in 0..KEPT {
            let kubeconfig = cluster.kubeconfig();
            world.account(&kept(number)).zone("east").kubeconfig(&kubeconfig).create().await;
        }
        for number in 0..KEPT {
            world.until_row(&kept(number), "ACTIVE").await;
        }
        let mut outage = Self {
            world,
            cluster,
            agents,
            writes: 0,
            since: Vec::new(),
            memory: resident_kib(world.operator().id()),
        };
        outage.writes = outage.writes_to_kept();
        outage.since = outage.last_transitions().await;
        outage
    }

    /// Time of the last change of state of each account that is left alone.
    async fn last_transitions(&self) -> Vec<Option<Time>> {
        let mut times = Vec::new();
        for number in 0..KEPT {
            let account = self.world.until(&kept(number), State::Active).await;
            times.push(account.status_or_default().last_transition_time.clone());
        }
        times
    }

    /// Number of the operator's writes to the accounts that are left alone.
    fn writes_to_kept(&self) -> usize {
        let writes = self.world.operator_writes("kubesvcaccounts");
        writes.iter().filter(|write| write.name.starts_with("kept-")).count()
    }

    /// Performs all rounds, and returns the expected states at the end.
    async fn run_rounds(&self) -> Vec<(String, State)> {
        let begun = Instant::now();
        let mut wanted: Vec<_> = (0..KEPT).map(|number| (kept(number), State::Active)).collect();
        for round in 0.. {
            let next = begun + ROUND * u32::try_from(round + 1).expect("there are some hundred");
            self.round(round, &mut wanted).await;
            hold(next.saturating_duration_since(Instant::now())).await;
            if begun.elapsed() >= AWAY {
                break;
            }
        }
        wanted
    }

    async fn round(&self, round: usize, wanted: &mut Vec<(String, State)>) {
        let world = self.world;
        let name = |number: usize| format!("added-{number:03}");
        self.add(&name(round), round).await;
        wanted.push((name(round), State::Active));
        if let Some(number) = round.checked_sub(2) {
            let state = self.change(&name(number), number).await;
            wanted.iter_mut().filter(|(one, _)| *one == name(number)).for_each(|(_, wanted)| *wanted = state);
        }
        if let Some(number) = round.checked_sub(4).filter(|number| number % 2 == 0) {
            self.delete(&name(number), number).await;
            wanted.retain(|(one, _)| *one != name(number));
        }
        if round % RESTART == RESTART - 1 {
            let agent = &self.agents[round / RESTART % 2];
            agent.kill();
            agent.launch();
        }
        let why = until_database(world, true).await;
        assert!(why.contains("database") || why.contains("lock") || why.contains("connect"), "{why}");
        assert_eq!(world.get("/health/liveness").await.status, 200);
        for number in 0..KEPT {
            assert_eq!(
                world.state(&kept(number)).await,
                Some(State::Active),
                "{} in round {round}",
                kept(number)
            );
        }
    }

    /// Adds an account, alternating between kubectl and REST.
    async fn add(&self, name: &str, round: usize) {
        let kubeconfig = self.cluster.kubeconfig();
        if round.is_multiple_of(2) {
            self.world.account(name).zone("east").kubeconfig(&kubeconfig).create().await;
        } else {
            let body =
                json!({"name": name, "kubeconfigContents": kubeconfig, "zoneId": "east", "state": "ACTIVE"});
            let answer = self.world.rest("POST", "/armory/accounts/dynamic", &body).await;
            assert_eq!(answer.status, 202, "{answer}");
        }
        self.world.until(name, State::Active).await;
    }

    /// Deactivates every third account and gives the others a new definition.
    async fn change(&self, name: &str, number: usize) -> State {
        let (spec, state) = if number.is_multiple_of(3) {
            (json!({"state": "INACTIVE"}), State::Inactive)
        } else {
            (json!({"kinds": ["deployment"]}), State::Active)
        };
        let generation = self.world.patch(name, json!({"spec": spec})).await.generation();
        let done = |account: &KubesvcAccount| {
            let status = account.status_or_default();
            status.state() == state && status.observed_generation == generation
        };
        self.world.until_account(name, "is changed", done).await;
        state
    }

    /// Deletes an account, which proceeds as far as possible without its row.
    async fn delete(&self, name: &str, number: usize) {
        if number.is_multiple_of(4) {
            self.world.delete(name).await;
        } else {
            let answer = self.world.rest("DELETE", "/armory/accounts", &json!([name])).await;
            assert_eq!(answer.status, 202, "{answer}");
        }
        let waits = |account: &KubesvcAccount| {
            let status = account.status_or_default();
            let is_deleted = account.is_being_deleted() && account.has_finalizer();
            is_deleted && status.phase() == GrantPhase::None
        };
        self.world.until_account(name, "waits for its row", waits).await;
    }

    /// The database is back: the same process catches up with everything that waited.
    async fn is_caught_up_with(&self, database: &str, wanted: &[(String, State)]) {
        let back = Instant::now();
        let grown = resident_kib(self.world.operator().id()).saturating_sub(self.memory);
        until_database(self.world, false).await;
        let ready = back.elapsed();
        let wanted: Vec<_> = wanted.iter().map(|(name, state)| (name.as_str(), *state)).collect();
        settled(self.world, &self.agents.each_ref(), &wanted).await;
        let _ = writeln!(
            std::io::stderr(),
            "{database} away for {} s: {} accounts in the end, {grown} KiB more memory, ready after {:.1} s, caught up after {:.1} s",
            AWAY.as_secs(),
            wanted.len(),
            ready.as_secs_f64(),
            back.elapsed().as_secs_f64()
        );
        assert_eq!(self.last_transitions().await, self.since, "they are ACTIVE all the time");
        // A process that is killed streamed the objects of some: the next one does, with a new epoch.
        let restarts = usize::try_from(AWAY.as_secs() / ROUND.as_secs()).expect("some hundred") / RESTART;
        let writes = self.writes_to_kept() - self.writes;
        assert!(writes <= restarts * KEPT, "{writes} writes for {restarts} restarts of an agent");
        assert!(grown < GROWTH, "{grown} KiB");
        assert!(self.world.operator().is_running());
    }
}

fn kept(number: usize) -> String {
    format!("kept-{number:02}")
}

async fn is_stopped(kind: Kind) {
    let far = RemoteDatabase::start_as(kind, prepare()).await;
    let outage = Outage::prepare(&far.world).await;
    must(far.server.stop().await);
    let wanted = outage.run_rounds().await;
    must(far.server.start().await);
    outage.is_caught_up_with(&format!("{kind:?}"), &wanted).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "eleven minutes: make faults"]
async fn rows_catch_up_after_ten_minutes_without_mariadb() {
    is_stopped(Kind::MariaDb).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "eleven minutes: make faults"]
async fn rows_catch_up_after_ten_minutes_without_postgresql() {
    is_stopped(Kind::PostgreSql).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "eleven minutes: make faults"]
async fn rows_catch_up_after_sqlite_was_locked_for_ten_minutes() {
    let world = prepare().start().await;
    let outage = Outage::prepare(&world).await;
    let manual_connection = connect(world.database_url()).await;
    let mut manual_connection = must(manual_connection.map_err(|error| error.to_string()));
    must(manual_connection.execute("BEGIN IMMEDIATE").await.map_err(|error| error.to_string()));
    let wanted = outage.run_rounds().await;
    must(manual_connection.execute("ROLLBACK").await.map_err(|error| error.to_string()));
    outage.is_caught_up_with("SQLite", &wanted).await;
}
