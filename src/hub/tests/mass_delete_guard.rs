//! Accounts that vanish, and sessions that nobody saw end.

use std::collections::HashSet;

use crate::connected_agents::ConnectedAgents as _;
use crate::hub::tests::support::*;
use crate::informers::AccountKey;
use kubesvc_core::object_names;

/// An agent that holds so many accounts, and their keys.
async fn agent_that_holds(hub: &TestHub, count: usize) -> (TestAgent, Vec<AccountKey>) {
    let names: Vec<_> = (0..count).map(|number| format!("one-{number:02}")).collect();
    names.iter().for_each(|name| hub.accounts.show(account(name)));
    hub.accounts.sync();
    let mut agent = hub.agent("a").await;
    let mut held_now = 0;
    while held_now < count {
        for spec in agent.added().await {
            agent.answer(held(&spec.account.expect("it is named"))).await;
            held_now += 1;
        }
    }
    let all_held = || names.iter().all(|name| hub.hub.holders(&format!("uid-{name}")).len() == 1);
    eventually("all are held", || all_held().then_some(())).await;
    (agent, names.iter().map(|name| AccountKey::of(&account(name))).collect())
}

async fn dropped_names(agent: &mut TestAgent, count: usize) -> Vec<String> {
    let mut names = Vec::new();
    while names.len() < count {
        names.extend(agent.deleted().await.into_iter().map(|account| account.name));
    }
    names.sort();
    names
}

#[tokio::test]
async fn a_mass_delete_is_carried_out_only_after_a_new_list_confirms_it() {
    let hub = TestHub::start().await;
    let (mut agent, keys) = agent_that_holds(&hub, 12).await;
    keys.iter().for_each(|key| hub.accounts.hide(key));
    eventually("a list is asked for", || (hub.accounts.lists_asked_for() == 1).then_some(())).await;
    // The API server has got over its start.
    let there: HashSet<_> = keys[..9].iter().cloned().collect();
    there.iter().for_each(|key| hub.accounts.show(account(&key.name)));
    hub.accounts.answer_lists(&there);
    assert_eq!(dropped_names(&mut agent, 3).await, ["one-09", "one-10", "one-11"]);
    assert_eq!(hub.accounts.lists_asked_for(), 1, "a few are believed");
    assert_eq!(hub.hub.context.metrics.mass_deletes.get(), 1);
}

#[tokio::test]
async fn a_few_deleted_accounts_are_dropped_at_once() {
    let hub = TestHub::start().await;
    let (mut agent, keys) = agent_that_holds(&hub, 12).await;
    keys[..5].iter().for_each(|key| hub.accounts.hide(key));
    assert_eq!(dropped_names(&mut agent, 5).await.len(), 5);
    assert_eq!(hub.accounts.lists_asked_for(), 0);
    assert_eq!(hub.hub.context.metrics.mass_deletes.get(), 0);
}

fn has_left(hub: &TestHub) -> Option<()> {
    hub.objects.log.lock().contains(&"disconnected a".to_owned()).then_some(())
}

#[tokio::test]
async fn a_missed_disconnect_of_this_process_is_written() {
    let hub = TestHub::start().await;
    hub.show_agent_here("a", "of-a-registration-that-came-late", 11);
    eventually("it is told", || has_left(&hub)).await;
}

#[tokio::test]
async fn a_stream_that_ends_while_it_is_registered_leaves_no_agent_connected() {
    let hub = TestHub::start().await;
    *hub.objects.failing.lock() = 100;
    let agent = hub.greet(hello("a")).await;
    eventually("it is being registered", || hub.hub.sessions.registry.of_id(&"a".into()).pop()).await;
    hub.show_agent_here("a", "whose-answer-was-lost", 11);
    eventually("it is seen", || hub.agents.get(&object_names::agent_object_name(&"a".into(), &"z".into())))
        .await;
    assert!(
        hub.hub.agent_status.missed_disconnect(&hub.agents.all()[0]).is_none(),
        "its stream is still there"
    );
    drop(agent);
    eventually("it is told", || has_left(&hub)).await;
}
