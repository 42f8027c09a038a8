//! Replicas that live in the past: one whose API server serves an old state, and one that was suspended for
//! longer than its Lease. Neither acts on outdated state, and their late writes are rejected.
//!
//! | file | case |
//! |---|---|
//! | `follower.rs` | a follower is served an old state |
//! | `leader.rs` | a replica that starts to lead is served an old state |
//! | `late_writes.rs` | a leader is suspended in the middle of its work until its Lease has expired, then continues |

mod follower;
mod late_writes;
mod leader;

use std::time::Duration;

use kubesvc_core::wire::common::AccountRef;
use kubesvc_core::{KubesvcAccount, State, ZoneId};

use crate::world::{Database, MAX_WAIT, Operator, Prepare, World};
use kubesvc_testkit::controlplane::second::SecondServer;
use kubesvc_testkit::simulated_agent::{
    SimulatedAgent,
    frames::{Introduction, Policy},
};
use kubesvc_testkit::{must, wait::eventually};

/// Validity of a Lease, in seconds.
const LEASE: u64 = 6;
/// Duration of a fault whose end cannot be observed: longer than an answer may take, and longer than the
/// grace.
const A_WHILE: Duration = Duration::from_secs(7);

fn prepare(database: Database, grace: u64) -> Prepare {
    World::prepare()
        .database(database)
        .setting("kubesvc.leaderElection.leaseDurationSeconds", LEASE)
        .setting("kubesvc.leaderElection.renewDeadlineSeconds", LEASE * 2 / 3)
        .setting("kubesvc.leaderElection.retryPeriodSeconds", 1)
        .setting("kubesvc.dynamicAccounts.orphanGraceSeconds", grace)
}

/// A world whose first replica leads, and a follower that reads from a second API server.
struct Travel {
    // Drop order: the replica before the API server that it uses.
    follower: Operator,
    second: SecondServer,
    world: World,
    kubeconfig: String,
}

impl Travel {
    async fn start(database: Database, grace: u64) -> Self {
        let world = prepare(database, grace).start().await;
        let second = must(world.control_plane().second().await);
        let follower = world.differing_replica("operator-1", &[], |kubeconfig| {
            second.instead(kubeconfig, world.control_plane())
        });
        follower.start().await;
        assert_eq!(world.until_one_leads(&[world.operator(), &follower]).await, 0, "the first one was first");
        let kubeconfig = world.cluster("spinnaker").await.kubeconfig();
        Self { follower, second, world, kubeconfig }
    }

    /// Creates accounts in zone east without waiting for them.
    async fn create(&self, names: &[&str]) {
        self.create_in("east", names).await;
    }

    /// Creates accounts in a zone without waiting for them.
    async fn create_in(&self, zone: &str, names: &[&str]) {
        for name in names {
            self.world.account(name).zone(zone).kubeconfig(&self.kubeconfig).create().await;
        }
    }

    /// Waits until an account is ACTIVE in a zone.
    async fn active_in(&self, name: &str, zone: &str) -> KubesvcAccount {
        self.world
            .until_account(name, &format!("is ACTIVE in {zone}"), |account| {
                let status = account.status_or_default();
                status.state() == State::Active && status.granted_zone() == Some(&ZoneId::from(zone))
            })
            .await
    }

    /// Waits until the replica's REST API lists an account in a state, according to its own watch.
    async fn listed(&self, replica: &Operator, name: &str, state: &str) {
        eventually(&format!("{} lists {name} as {state}", replica.replica_id()), MAX_WAIT, async || {
            let answer = replica.get("/armory/accounts").await?;
            let items = answer.json["items"].as_array().ok_or("no list")?.clone();
            let found = items.iter().find(|item| item["name"] == name);
            match found {
                Some(item) if item["status"] == state => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    }
}

/// Connects a simulated agent to a replica.
async fn agent(replica: &Operator, id: &str, zone: &str) -> SimulatedAgent {
    join(replica, Introduction::new(id, zone)).await
}

async fn join(replica: &Operator, introduction: Introduction) -> SimulatedAgent {
    let hub = format!("127.0.0.1:{}", replica.hub_port());
    let joined = SimulatedAgent::connect(&hub, introduction, Policy::default()).await;
    must(joined.map_err(|reason| reason.to_string()))
}

/// Waits until an agent holds exactly these accounts, by uid.
async fn holds(agent: &SimulatedAgent, wanted: &[&KubesvcAccount]) {
    let mut wanted: Vec<_> = wanted.iter().map(|account| account.uid().to_owned()).collect();
    wanted.sort();
    eventually(&format!("{agent:?} holds {wanted:?}"), MAX_WAIT, async || {
        let held: Vec<_> = agent.held().into_iter().map(|one| one.uid).collect();
        if held == wanted { Ok(()) } else { Err(format!("it holds {held:?}")) }
    })
    .await;
}

/// The references that belong to an account.
fn of<'r>(account: &KubesvcAccount, among: &'r [AccountRef]) -> Vec<&'r AccountRef> {
    among.iter().filter(|one| one.uid == account.uid()).collect()
}
