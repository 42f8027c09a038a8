//! Three replicas, their agents, an API server and a database server of their own.

use std::sync::Arc;

use futures::StreamExt as _;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::balancer::Balancer;
use super::book::Book;
use super::chronicle::Chronicle;
use super::deck::{GRACE, LEASE};
use super::plan::{self, AGENTS, REPLICAS, Wish, ZONES, zone_of};
use crate::harness::databases::{self, Kind, Server};
use crate::harness::must;
use crate::world::{Agent, Cluster, Operator, World};

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
    pub(super) book: Arc<Book>,
    pub(super) chronicle: Chronicle,
    /// Locks for faults that exclude each other: one for each agent, one for the replicas, the database and
    /// the API server each.
    pub(super) turns: Vec<Mutex<()>>,
}

impl Scene {
    /// Starts everything.
    pub(super) async fn start(kind: Kind, chronicle: Chronicle) -> Self {
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
            .start()
            .await;
        let mut others = Vec::new();
        for number in 1..REPLICAS {
            others.push(world.replica(&format!("operator-{number}")).await);
        }
        let book = Arc::new(Book::default());
        let hubs = std::iter::once(world.operator()).chain(&others).map(Operator::hub_port).collect();
        let balancer = Balancer::before(hubs, Arc::clone(&book)).await;
        let mut agents = Vec::new();
        for number in 0..AGENTS {
            let agent = world.agent(&plan::agent(number)).zone(ZONES[zone_of(number)]);
            let agent = agent.hub_port(balancer.port());
            // The back-off of an agent whose user waits for a test.
            agents.push(agent.setting("clouddriver.backoff.maxDelay", json!(2_000_000_000_u64)).launch());
        }
        let cluster = world.cluster("spinnaker").await;
        let turns = (0..AGENTS + 3).map(|_| Mutex::new(())).collect();
        Self { agents, others, _balancer: balancer, world, server, cluster, book, chronicle, turns }
    }

    /// One of the replicas.
    pub(super) fn replica(&self, number: usize) -> &Operator {
        match number.checked_sub(1) {
            None => self.world.operator(),
            Some(other) => &self.others[other],
        }
    }

    /// Creates the accounts that exist at the start.
    pub(super) async fn make(&self, wishes: &[Option<Wish>]) {
        let all = wishes.iter().enumerate().filter_map(|(account, wish)| Some((account, (*wish)?)));
        let made = futures::stream::iter(all).map(async |(account, wish)| {
            let name = plan::name(account);
            self.world.secret(&name, self.cluster.kubeconfig().as_bytes(), true).await;
            let fields = fields(wish);
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
pub(super) fn fields(wish: Wish) -> Value {
    json!({
        "state": state(wish),
        "zoneId": ZONES[wish.zone],
        "kinds": [format!("kind{}", wish.kinds)],
        "environment": format!("environment-{}", wish.environment),
    })
}

/// The desired state.
pub(super) fn state(wish: Wish) -> &'static str {
    if wish.active { "ACTIVE" } else { "INACTIVE" }
}
