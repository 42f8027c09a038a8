//! Accounts registered in a Clouddriver: they appear there, deploy, and leave; what is somebody else's is left.

mod failures;
mod stories;

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kubesvc_core::State;
use serde_json::Value;

use crate::gateway::place::install;
use crate::world::{Agent, Cluster, Database, MAX_WAIT, Prepare, World, condition, get_from};
use kubesvc_testkit::clouddriver::{Clouddriver, Settings};
use kubesvc_testkit::databases::{self, Kind};
use kubesvc_testkit::must;
use kubesvc_testkit::wait::eventually;

/// Time limit for a registration to be known: three lists, each a second after the one before.
const MAX_REGISTRATION: Duration = MAX_WAIT;

/// Starts a Clouddriver on a database of its own.
async fn clouddriver(kind: Kind, settings: Settings) -> Clouddriver {
    let database = databases::shared(kind).await.fresh_database().await;
    must(Clouddriver::start(&database, settings).await)
}

/// Options of an operator that registers accounts in this Clouddriver, and reads it every second.
fn registering(clouddriver: &Clouddriver) -> Prepare {
    World::prepare()
        .with_long_timeouts()
        .setting("kubesvc.gateway.enabled", true)
        .setting("kubesvc.gateway.server.port", 0)
        .setting("kubesvc.clouddriver.baseUrl", clouddriver.base_url())
        .setting("kubesvc.clouddriver.push.enabled", true)
        .setting("kubesvc.clouddriver.push.pollSeconds", 1)
        .setting("kubesvc.clouddriver.push.resyncSeconds", 2)
        .setting("kubesvc.clouddriver.push.removalWaitSeconds", 5)
}

/// An operator that registers accounts, with an agent.
struct Registering {
    world: World,
    cluster: Cluster,
    _agent: Agent,
}

impl Registering {
    async fn start(prepare: Prepare) -> Self {
        let world = prepare.without_operator().start().await;
        install(&world, 0, false).await;
        world.operator().start().await;
        let cluster = world.cluster("target").await;
        let agent = world.agent("agent-1").zone("east").start().await;
        Self { world, cluster, _agent: agent }
    }

    async fn on(clouddriver: &Clouddriver, database: Database) -> Self {
        Self::start(registering(clouddriver).database(database)).await
    }

    /// Creates an account and waits until it is ACTIVE.
    async fn account(&self, name: &str) {
        self.world.account(name).zone("east").kubeconfig(&self.cluster.kubeconfig()).create().await;
        self.world.until(name, State::Active).await;
    }

    /// Waits until the condition has this reason.
    async fn until_reason(&self, name: &str, reason: &str) -> Condition {
        eventually(&format!("{name}: {reason}"), MAX_REGISTRATION, async || {
            let account = self.world.try_object(name).await?.ok_or("it is gone")?;
            let said = condition(&account, "SpinnakerRegistered").ok_or("it has no condition")?;
            if said.reason == reason { Ok(said) } else { Err(format!("{}: {}", said.reason, said.message)) }
        })
        .await
    }
}

/// The names that a Clouddriver has loaded.
async fn loaded(clouddriver: &Clouddriver) -> Result<BTreeSet<String>, String> {
    let answer = get_from(clouddriver.port(), "/credentials").await?;
    let accounts = answer.json.as_array().ok_or_else(|| answer.text.clone())?;
    Ok(accounts.iter().filter_map(|account| Some(account["name"].as_str()?.to_owned())).collect())
}

/// Waits until a Clouddriver has loaded these names and no others.
async fn until_loaded(clouddriver: &Clouddriver, names: &[&str]) {
    let wanted: BTreeSet<String> = names.iter().map(|name| (*name).to_owned()).collect();
    eventually("Clouddriver's accounts", MAX_REGISTRATION, async || {
        let loaded = loaded(clouddriver).await?;
        if loaded == wanted { Ok(()) } else { Err(format!("{loaded:?}")) }
    })
    .await;
}

/// The definition that a Clouddriver has stored.
async fn stored(clouddriver: &Clouddriver, name: &str) -> Option<Value> {
    let row = must(clouddriver.tables().row(name).await)?;
    Some(serde_json::from_str(&row.body).expect("a definition is JSON"))
}

/// Waits until a Clouddriver has no row of this name.
async fn until_removed(clouddriver: &Clouddriver, name: &str) {
    eventually(&format!("no row {name}"), MAX_REGISTRATION, async || {
        match clouddriver.tables().row(name).await? {
            None => Ok(()),
            Some(row) => Err(row.body),
        }
    })
    .await;
}
