//! Three replicas, their agents, an API server and a database server of their own.

use std::sync::Arc;

use futures::StreamExt as _;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::balancer::Balancer;
use super::event_log::EventLog;
use super::fault_log::FaultLog;
use super::fault_schedule::{GRACE, LEASE};
use super::plan::{self, AGENTS, DesiredAccount, REPLICAS, ZONES, zone_of};
use crate::faults::cache::kinds::WrittenKind;
use crate::faults::cache::writer::ClusterWriter;
use crate::world::{Agent, Cluster, Operator, World};
use kubesvc_testkit::databases::{self, Kind, Server};
use kubesvc_testkit::must;

/// Kinds of objects that change in the cluster of all accounts.
pub(super) const WRITTEN_KINDS: [WrittenKind; 1] = [WrittenKind::ConfigMap];
/// Range of pauses between two changes of an object, in milliseconds.
const PAUSES: std::ops::Range<u64> = 50..300;
/// Number of accounts created concurrently.
const AT_ONCE: usize = 16;

/// All participants. Dropped in this order.
pub(super) struct Scene {
    pub(super) agents: Vec<Agent>,
    others: Vec<Operator>,
    _balancer: Balancer,
    pub(super) world: World,
    pub(super) server: Server,
    pub(super) cluster: Cluster,
    pub(super) fault_log: Arc<FaultLog>,
    pub(super) event_log: EventLog,
    /// Locks for faults that exclude each other: one for each agent, one for the replicas, the database and
    /// the API server each.
    pub(super) turns: Vec<Mutex<()>>,
}

impl Scene {
    /// Starts everything.
    pub(super) async fn start(kind: Kind, event_log: EventLog) -> Self {
        let server = must(databases::own(kind).await);
        let url = server.fresh_database().await;
        let world = World::prepare()
            .own_control_plane()
            .database_url(&url)
            .setting("kubesvc.leaderElection.leaseDurationSeconds", LEASE)
            .setting("kubesvc.leaderElection.renewDeadlineSeconds", LEASE * 2 / 3)
            .setting("kubesvc.leaderElection.retryPeriodSeconds", 1)
            .setting("kubesvc.dynamicAccounts.orphanGraceSeconds", GRACE)
            .setting("kubesvc.dynamicAccounts.retryMaxDelaySeconds", 5)
            .setting("kubesvc.cache.operationWaitMs", 8_000)
            .setting("kubesvc.cache.cacheKinds", json!(["configMap"]))
            .start()
            .await;
        let mut others = Vec::new();
        for number in 1..REPLICAS {
            others.push(world.replica(&format!("operator-{number}")).await);
        }
        let fault_log = Arc::new(FaultLog::default());
        let hubs = std::iter::once(world.operator()).chain(&others).map(Operator::hub_port).collect();
        let balancer = Balancer::before(hubs, Arc::clone(&fault_log)).await;
        let mut agents = Vec::new();
        for number in 0..AGENTS {
            let agent = world.agent(&plan::agent(number)).zone(ZONES[zone_of(number)]);
            let agent = agent.hub_port(balancer.port());
            // The back-off of an agent whose user waits for a test.
            agents.push(agent.setting("clouddriver.backoff.maxDelay", json!(2_000_000_000_u64)).launch());
        }
        let cluster = world.cluster("spinnaker").await;
        let turns = (0..AGENTS + 3).map(|_| Mutex::new(())).collect();
        Self { agents, others, _balancer: balancer, world, server, cluster, fault_log, event_log, turns }
    }

    /// One of the replicas.
    pub(super) fn replica(&self, number: usize) -> &Operator {
        match number.checked_sub(1) {
            None => self.world.operator(),
            Some(other) => &self.others[other],
        }
    }

    /// Creates objects in the cluster; the writer changes them while it runs.
    pub(super) async fn fill_cluster(&self, seed: u64) -> ClusterWriter {
        let writer = ClusterWriter::new(&self.world, seed).await;
        let mut writer = writer.of_kinds(&WRITTEN_KINDS).with_pauses(PAUSES);
        writer.fill(0).await;
        writer
    }

    /// Creates the accounts that exist at the start.
    pub(super) async fn make(&self, desired_accounts: &[Option<DesiredAccount>]) {
        let all =
            desired_accounts.iter().enumerate().filter_map(|(account, desired)| Some((account, (*desired)?)));
        let made = futures::stream::iter(all).map(async |(account, desired)| {
            let name = plan::name(account);
            self.world.secret(&name, self.cluster.kubeconfig().as_bytes(), true).await;
            let fields = fields(desired);
            let fields = fields.as_object().expect("it is written as one").clone();
            let builder = self.world.account(&name);
            fields
                .into_iter()
                .fold(builder, |builder, (field, value)| builder.spec(&field, value))
                .create()
                .await;
        });
        made.buffer_unordered(AT_ONCE).collect::<Vec<()>>().await;
    }
}

/// The spec fields that this run changes. REST uses the same names.
pub(super) fn fields(desired: DesiredAccount) -> Value {
    let mut kinds = vec![format!("kind{}", desired.kinds)];
    if desired.is_cached {
        kinds.push("ConfigMap".to_owned());
    }
    json!({
        "state": state(desired),
        "zoneId": ZONES[desired.zone],
        "kinds": kinds,
        "environment": format!("environment-{}", desired.environment),
    })
}

/// The desired state.
pub(super) fn state(desired: DesiredAccount) -> &'static str {
    if desired.active { "ACTIVE" } else { "INACTIVE" }
}
