//! What holds after the faults, whatever they were.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kube::api::ListParams;
use kubesvc_core::{KubesvcAccount, State, ZoneId};
use serde_json::json;

use crate::world::{Agent, MAX_WAIT, World};
use kubesvc_testkit::wait::eventually;

/// Waits until exactly these accounts exist, in exactly these states, in every view: the objects, the rows,
/// the REST API, and the agents, each of which holds exactly those that are ACTIVE in its zone.
pub(super) async fn settled(world: &World, agents: &[&Agent], wanted: &[(&str, State)]) {
    settled_within(MAX_WAIT, world, agents, wanted).await;
}

/// Like [`settled`], for what takes longer than the usual timeout.
pub(super) async fn settled_within(
    max_wait: Duration,
    world: &World,
    agents: &[&Agent],
    wanted: &[(&str, State)],
) {
    let wanted: BTreeMap<_, _> = wanted.iter().map(|(name, state)| ((*name).to_owned(), *state)).collect();
    let what = format!("{} accounts as desired in {}", wanted.len(), world.namespace());
    eventually(&what, max_wait, async || {
        let accounts = objects(world, &wanted).await?;
        rows(world, &accounts).await?;
        shown(world, &wanted).await?;
        held(world, agents, &accounts).await
    })
    .await;
}

/// Returns the objects if they are as wanted.
async fn objects(world: &World, wanted: &BTreeMap<String, State>) -> Result<Vec<KubesvcAccount>, String> {
    let listed = world.api::<KubesvcAccount>().list(&ListParams::default()).await;
    let mut listed = listed.map_err(|error| error.to_string())?.items;
    listed.sort_by(|a, b| a.account_name().cmp(b.account_name()));
    let states: BTreeMap<_, _> =
        listed.iter().map(|one| (one.account_name().to_owned(), one.status_or_default().state())).collect();
    if states != *wanted {
        return Err(format!("the objects are {states:?}, not {wanted:?}"));
    }
    for account in &listed {
        let (name, status) = (account.account_name(), account.status_or_default());
        if account.is_being_deleted() || !account.has_finalizer() {
            return Err(format!("{name} is being deleted, or without its finalizer: {:?}", account.metadata));
        }
        let pinned = account.spec.zone_id.as_ref().map(ZoneId::as_str);
        let granted = match (status.state() == State::Active, pinned) {
            (true, Some(zone)) => status.granted_zone() == Some(&ZoneId::from(zone)),
            (active, _) => status.granted_zone().is_some() == active,
        };
        if !granted || status.observed_generation != account.generation() {
            return Err(format!("the status of {name} does not fit: {status:?}"));
        }
    }
    Ok(listed)
}

async fn rows(world: &World, accounts: &[KubesvcAccount]) -> Result<(), String> {
    let rows = world.try_rows().await?;
    let told: Vec<_> =
        rows.iter().map(|row| (row.name.as_str(), row.status.clone(), row.uid.clone())).collect();
    let right: Vec<_> = accounts
        .iter()
        .map(|one| {
            (one.account_name(), one.status_or_default().state().to_string(), one.metadata.uid.clone())
        })
        .collect();
    if told == right { Ok(()) } else { Err(format!("the rows are {told:?}, not {right:?}")) }
}

async fn shown(world: &World, wanted: &BTreeMap<String, State>) -> Result<(), String> {
    let list = world.try_get("/armory/accounts?limit=1000").await?;
    let items = list.json["items"].as_array().cloned().unwrap_or_default();
    let told: BTreeMap<_, _> =
        items.iter().map(|one| (one["name"].clone().to_string(), &one["status"])).collect();
    let right = wanted.iter().map(|(name, state)| (json!(name).to_string(), json!(state.to_string())));
    for (name, state) in right {
        if told.get(&name).copied() != Some(&state) {
            return Err(format!("{name} is shown as {:?}, not {state}: {list}", told.get(&name)));
        }
    }
    if told.len() == wanted.len() { Ok(()) } else { Err(format!("more than there should be: {list}")) }
}

/// Compares what the hub says each agent holds, and the number that the agent itself reports.
async fn held(world: &World, agents: &[&Agent], accounts: &[KubesvcAccount]) -> Result<(), String> {
    let answer = world.try_get("/armory/agents").await?;
    let listed = answer.json.as_array().cloned().unwrap_or_default();
    for agent in agents {
        let ours = accounts
            .iter()
            .filter(|one| one.status_or_default().granted_zone() == Some(&ZoneId::from(agent.zone())));
        let active: BTreeSet<_> = ours.map(KubesvcAccount::account_name).collect();
        let told = listed.iter().find(|one| one["agentId"] == agent.id());
        let told = told.and_then(|one| one["accounts"].as_array()).cloned().unwrap_or_default();
        let names: BTreeSet<_> = told.iter().filter_map(|name| name.as_str()).collect();
        if names != active {
            return Err(format!("{} holds {names:?}, not {active:?}: {answer}", agent.id()));
        }
        let own = world.ask_agent(agent).await?;
        if own["accountsHeld"] != active.len() || own["accountsStarting"] != 0 {
            return Err(format!("{} says {own}, and should hold {active:?}", agent.id()));
        }
    }
    Ok(())
}
