//! What is written down of the agents: their objects and the table of assignments.

use std::time::Duration;

use crate::connected_agents::ConnectedAgents;
use crate::hub::agent_status::disconnects::Disconnect;
use crate::hub::agent_status::garbage_collection::{self, AbsentAgents};
use crate::hub::sessions::registry::AwaySession;
use crate::hub::tests::support::*;
use crate::hub::{AbsentAgentSettings, HubSettings, KnownAgent, SessionSettings};
use crate::leases::{Leadership, Replicas, Times};
use kubesvc_core::agent_resource::SessionEnd;
use kubesvc_core::lifecycle::SessionEnding;
use kubesvc_core::wire::ops;
use kubesvc_core::wire::ops::hub_frame::Frame;
use kubesvc_core::{AgentId, AgentKey, BootId, CachingAssignment, CachingEpoch, KubesvcAccount, State};
use kubesvc_store::Assignment;

fn known(agent_id: &str, connected: bool) -> KnownAgent {
    KnownAgent {
        agent_id: agent_id.into(),
        zone: "z".into(),
        uid: format!("uid-{agent_id}"),
        replica: "r-0".into(),
        approved: true,
        approved_once: true,
        connected,
        ..KnownAgent::default()
    }
}

fn row(hub: &TestHub, account: &str, agent: &str) -> Option<Assignment> {
    hub.rows.rows.lock().get(&(account.to_owned(), agent.into())).cloned()
}

#[tokio::test]
async fn an_agents_object_says_how_many_accounts_it_holds_and_how_many_failed() {
    let hub = TestHub::start().await;
    hub.accounts.show(account("one"));
    hub.accounts.show(account("two"));
    let mut agent = hub.agent("a").await;
    let mut specs = agent.added().await;
    while specs.len() < 2 {
        specs.extend(agent.added().await);
    }
    let refs: Vec<_> = specs.into_iter().filter_map(|spec| spec.account).collect();
    agent.answer(held(&refs[0])).await;
    let failed = ops::AccountResult {
        account: Some(refs[1].clone()),
        outcome: Some(ops::account_result::Outcome::Failure(Default::default())),
        ..Default::default()
    };
    agent.answer(failed).await;
    eventually("it is noted", || {
        hub.objects.notes.lock().last().filter(|note| (note.held, note.failed) == (1, 1)).cloned()
    })
    .await;
    assert_eq!(hub.objects.notes.lock().len(), 1, "both in one write");
}

#[tokio::test]
async fn objects_of_absent_agents_are_removed_and_others_are_kept() {
    let settings = HubSettings {
        absent_agents: AbsentAgentSettings { forget_after: 4, remove_after: 14, ..Default::default() },
        ..HubSettings::default()
    };
    let hub = TestHub::with(settings).await;
    let _here = hub.agent("here").await;
    hub.objects.known.lock().extend([known("here", true), known("gone", false), known("lying", true)]);
    let mut gone = AbsentAgents::default();
    garbage_collection::collect(&hub.hub.agent_status, &mut gone).await;
    let marked = || hub.objects.log.lock().contains(&"disconnected lying".to_owned());
    assert!(!marked(), "it may come back, and writes itself");
    (0..4).for_each(|_| hub.ticks.advance());
    garbage_collection::collect(&hub.hub.agent_status, &mut gone).await;
    assert!(hub.objects.removed.lock().is_empty());
    assert!(marked());
    (0..10).for_each(|_| hub.ticks.advance());
    garbage_collection::collect(&hub.hub.agent_status, &mut gone).await;
    assert_eq!(hub.objects.removed.lock().as_slice(), ["gone", "lying"]);
    assert!(!hub.objects.log.lock().contains(&"disconnected here".to_owned()));
}

#[tokio::test]
async fn a_replica_that_follows_touches_no_object_of_an_agent_that_is_gone() {
    let settings = HubSettings {
        absent_agents: AbsentAgentSettings { remove_after: 10, ..Default::default() },
        ..HubSettings::default()
    };
    let hub = TestHub::that_leads(settings, Some(Leadership::unknown())).await;
    hub.objects.known.lock().extend([known("gone", false), known("lying", true)]);
    let mut gone = AbsentAgents::default();
    for _ in 0..2 {
        garbage_collection::collect(&hub.hub.agent_status, &mut gone).await;
        (0..10).for_each(|_| hub.ticks.advance());
    }
    assert!(hub.objects.removed.lock().is_empty() && hub.objects.log.lock().is_empty());
}

#[tokio::test]
async fn agents_of_a_replica_that_may_be_alive_are_left_alone() {
    let settings = HubSettings {
        absent_agents: AbsentAgentSettings { remove_after: 10, ..Default::default() },
        ..HubSettings::default()
    };
    let hub = TestHub::of_replicas(settings, None, Replicas::unknown(&"r-0".into(), Times::default())).await;
    let elsewhere = KnownAgent { replica: "r-1".into(), ..known("elsewhere", true) };
    let left = KnownAgent { replica: "r-1".into(), ..known("left", false) };
    hub.objects.known.lock().extend([elsewhere, left]);
    let mut gone = AbsentAgents::default();
    for _ in 0..2 {
        garbage_collection::collect(&hub.hub.agent_status, &mut gone).await;
        (0..10).for_each(|_| hub.ticks.advance());
    }
    assert_eq!(hub.objects.removed.lock().as_slice(), ["left"]);
    assert!(hub.objects.log.lock().is_empty());
}

#[tokio::test]
async fn a_new_leader_grants_absent_agents_the_whole_grace() {
    let hub = TestHub::with(HubSettings {
        absent_agents: AbsentAgentSettings { forget_after: 10, ..Default::default() },
        ..HubSettings::default()
    })
    .await;
    hub.objects.known.lock().push(KnownAgent { replica: "r-0".into(), ..known("a", true) });
    hub.hub.remember_agents().await;
    (0..10).for_each(|_| hub.ticks.advance());
    hub.hub.remember_agents().await;
    assert!(hub.hub.sessions.registry.forget(0).is_empty(), "it is away since now");
    assert_eq!(hub.hub.sessions.registry.forget(10).len(), 1);
}

#[tokio::test]
async fn registrations_that_wait_are_counted() {
    let hub = TestHub::start().await;
    let mut backlog = hub.hub.backlog();
    *hub.objects.failing.lock() = 1;
    let _agent = hub.agent("a").await;
    assert_eq!(*backlog.borrow_and_update(), 0, "none waits any more");
    *hub.objects.failing.lock() = 100;
    hub.show_agent_before("b");
    let waiting = hub.greet(hello("b")).await;
    backlog.wait_for(|count| *count == 1).await.expect("the hub lives");
    drop(waiting);
    backlog.wait_for(|count| *count == 0).await.expect("the hub lives");
}

#[tokio::test]
async fn an_agent_that_may_still_come_back_is_not_marked_as_disconnected() {
    let hub = TestHub::with(HubSettings {
        absent_agents: AbsentAgentSettings { forget_after: 10, ..Default::default() },
        ..HubSettings::default()
    })
    .await;
    hub.objects.known.lock().push(known("a", true));
    hub.hub.remember_agents().await;
    let mut gone = AbsentAgents::default();
    garbage_collection::collect(&hub.hub.agent_status, &mut gone).await;
    assert!(hub.objects.log.lock().is_empty());
    hub.hub.sessions.registry.forget(10);
    garbage_collection::collect(&hub.hub.agent_status, &mut gone).await;
    (0..10).for_each(|_| hub.ticks.advance());
    garbage_collection::collect(&hub.hub.agent_status, &mut gone).await;
    assert_eq!(hub.objects.log.lock().as_slice(), ["disconnected a"]);
}

/// An ACTIVE account that this process of agent `a` was elected to cache; absent: nobody was.
fn elected(boot: Option<&str>, epoch: i64) -> KubesvcAccount {
    with(account("one"), |status| {
        status.state = Some(State::Active);
        let agent_id = boot.map(|_| "a".to_owned());
        status.caching = Some(CachingAssignment {
            agent_id: agent_id.map(AgentId::from),
            boot_id: boot.map(BootId::from),
            epoch: CachingEpoch(epoch),
        });
    })
}

async fn assigned(agent: &mut TestAgent) -> (u64, bool) {
    match agent.next().await {
        Ok(Some(Frame::CachingAssignment(assignment))) => {
            (assignment.fence.unwrap_or_default().caching_epoch, assignment.on)
        }
        other => panic!("expected CachingAssignment, got {other:?}"),
    }
}

#[tokio::test]
async fn the_fence_is_raised_before_the_agent_is_started_and_after_it_holds_the_account() {
    let hub = TestHub::start().await;
    hub.accounts.show(elected(Some(BOOT_A), 3));
    hub.accounts.sync();
    *hub.rows.down.lock() = true;
    let mut agent = hub.agent("a").await;
    let reference = agent.added().await[0].account.clone().expect("it is named");
    assert!(hub.rows.fences.lock().is_empty(), "it does not hold it");
    hub.rows.unfenced.lock().push("uid-one".into());
    agent.answer(held(&reference)).await;
    *hub.rows.down.lock() = false;
    // The leader inserts the row a moment later.
    hub.rows.unfenced.lock().clear();
    assert_eq!(assigned(&mut agent).await, (3, true));
    let fence = hub.rows.fences.lock().get("uid-one").cloned().expect("it is raised");
    assert_eq!(
        (fence.epoch.0, fence.agent_id.as_ref().map(AgentId::as_str), fence.boot_id.as_deref()),
        (3, Some("a"), Some(BOOT_A))
    );
    let row = eventually("the row says so", || row(&hub, "one", "a").filter(|row| row.caching)).await;
    assert!(row.reachable, "an agent without requests counts as before");

    // Another one is elected: it is told, and whoever has that one raises the fence.
    hub.accounts.show(elected(Some("another process"), 4));
    assert_eq!(assigned(&mut agent).await, (3, false));
    eventually("the row says so", || row_of(&hub).filter(|row| !row.caching)).await;
    // Nobody is: this replica leads, and raises it.
    hub.accounts.show(elected(None, 5));
    eventually("the fence is nobody's", || {
        let fences = hub.rows.fences.lock();
        fences
            .get("uid-one")
            .filter(|fence| fence.epoch == CachingEpoch(5) && fence.agent_id.is_none())
            .map(drop)
    })
    .await;
}

fn row_of(hub: &TestHub) -> Option<Assignment> {
    row(hub, "one", "a")
}

/// An agent that holds an account, of which there is a row.
async fn agent_with_a_row(hub: &TestHub) -> TestAgent {
    hub.accounts.show(account("one"));
    let mut agent = hub.agent("a").await;
    let reference = agent.added().await[0].account.clone().expect("it is named");
    agent.answer(held(&reference)).await;
    eventually("the row is there", || row_of(hub)).await;
    agent
}

#[tokio::test]
async fn assignments_follow_what_agents_hold() {
    let hub = TestHub::start().await;
    hub.rows.rows.lock().insert(
        ("old".into(), "gone".into()),
        Assignment {
            account_name: "old".into(),
            agent_id: "gone".into(),
            connections: 1,
            caching: false,
            reachable: true,
        },
    );
    hub.accounts.show(account("one"));
    hub.accounts.sync();
    let mut agent = hub.agent("a").await;
    let reference = agent.added().await[0].account.clone().expect("it is named");
    assert!(row(&hub, "one", "a").is_none(), "it holds nothing yet");
    agent.answer(held(&reference)).await;
    let there = eventually("the row is there", || row(&hub, "one", "a")).await;
    assert_eq!((there.connections, there.caching, there.reachable), (1, false, true));
    eventually("the row of an earlier time is gone", || row(&hub, "old", "gone").is_none().then_some(()))
        .await;
    agent.frames = None;
    eventually("the row goes with the agent", || hub.rows.rows.lock().is_empty().then_some(())).await;
}

#[tokio::test]
async fn a_database_that_is_away_is_waited_for() {
    let hub = TestHub::start().await;
    *hub.rows.down.lock() = true;
    hub.accounts.show(account("one"));
    let mut agent = hub.agent("a").await;
    let reference = agent.added().await[0].account.clone().expect("it is named");
    agent.answer(held(&reference)).await;
    eventually("it is held", || (!hub.hub.holders("uid-one").is_empty()).then_some(())).await;
    *hub.rows.down.lock() = false;
    eventually("the row is there", || row(&hub, "one", "a")).await;
}

#[tokio::test]
async fn row_deleted_by_hand_is_restored() {
    let checks =
        crate::hub::AssignmentChecks { initial_delay: Duration::ZERO, period: Duration::from_secs(1) };
    let hub = TestHub::with(HubSettings { assignment_checks: checks, ..HubSettings::default() }).await;
    let _agent = agent_with_a_row(&hub).await;
    hub.rows.rows.lock().clear();
    eventually("the row is there again", || row(&hub, "one", "a")).await;
}

#[tokio::test]
async fn wrong_agent_count_is_corrected_by_the_next_comparison() {
    let checks =
        crate::hub::AssignmentChecks { initial_delay: Duration::ZERO, period: Duration::from_secs(1) };
    let hub = TestHub::with(HubSettings { assignment_checks: checks, ..HubSettings::default() }).await;
    *hub.rows.miscounted.lock() = vec!["one".to_owned(), "another".to_owned()];
    eventually("they are right", || hub.rows.miscounted.lock().is_empty().then_some(())).await;
}

#[tokio::test]
async fn a_row_that_a_leader_has_removed_comes_back_soon_after_replicas_have_changed() {
    let an_hour = Duration::from_secs(3600);
    let checks = crate::hub::AssignmentChecks { initial_delay: an_hour, period: an_hour };
    let hub = TestHub::with(HubSettings { assignment_checks: checks, ..HubSettings::default() }).await;
    let _agent = agent_with_a_row(&hub).await;
    hub.hub.context.replicas.now_are(&["r-0"]);
    hub.rows.rows.lock().clear();
    eventually("the row is there again", || row(&hub, "one", "a")).await;
}

#[tokio::test]
async fn the_rows_of_a_replica_go_when_it_stops() {
    let hub = TestHub::start().await;
    let agent = agent_with_a_row(&hub).await;
    hub.stop.cancel();
    drop(agent);
    eventually("it has stopped", || hub.served.is_finished().then_some(())).await;
    assert!(hub.rows.rows.lock().is_empty());
}

/// Only the pings of HTTP/2 find that an agent is gone.
#[tokio::test]
async fn a_silent_agent_stays_where_heartbeats_are_not_asked_for() {
    let heartbeat = Duration::from_millis(20);
    let settings = HubSettings {
        sessions: SessionSettings { heartbeat, cuts_off_silent: false, ..Default::default() },
        ..HubSettings::default()
    };
    let hub = TestHub::with(settings).await;
    let mut agent = hub.agent("a").await;
    for _ in 0..10 {
        // Ten heartbeats of the hub, none of the agent.
        let frame = agent.answers.message().await.expect("it is not cut off").expect("it goes on");
        assert!(matches!(frame.frame, Some(Frame::Heartbeat(_))), "{frame:?}");
    }
    assert_eq!(hub.hub.agents().len(), 1);
}

/// Waits in a test whose clock goes by itself.
async fn in_time(what: &str, is_so: impl Fn() -> bool) {
    let looking = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(600), looking).await.is_ok(), "{what}");
}

#[tokio::test(start_paused = true)]
async fn a_list_of_namespaces_outlasts_the_database_and_comes_back_with_its_row() {
    let hub = TestHub::start().await;
    *hub.rows.down.lock() = true;
    hub.hub.tables.record_namespaces("uid-one", vec!["default".into()]);
    tokio::time::advance(Duration::from_secs(3600)).await;
    *hub.rows.down.lock() = false;
    let is_written = || hub.rows.namespaces.lock().contains_key("uid-one");
    in_time("it is written", is_written).await;
    hub.rows.namespaces.lock().clear();
    in_time("it is written into the new row", is_written).await;
}

#[tokio::test]
async fn collection_and_stop_do_not_wait_for_disconnect_writes() {
    let hub = TestHub::with(HubSettings {
        absent_agents: AbsentAgentSettings { forget_after: 10, ..Default::default() },
        ..HubSettings::default()
    })
    .await;
    for agent in ["a", "b", "c"] {
        hub.objects.hung.lock().insert(agent.to_owned());
        let away = AwaySession {
            approved: true,
            since: 0,
            ending: SessionEnding::Cut,
            session_id: "gone".into(),
            session: None,
        };
        hub.hub.sessions.registry.remember(&agent.into(), &"z".into(), away);
    }
    (0..20).for_each(|_| hub.ticks.advance());
    garbage_collection::forget(&hub.hub.agent_status);
    eventually("all are told of", || (hub.objects.hangs.lock()[0] > 0).then_some(())).await;
    assert_eq!(hub.objects.hangs.lock()[1], 0, "nobody has waited for a write to its end");
    hub.stop.cancel();
    eventually("the hub has stopped", || hub.served.is_finished().then_some(())).await;
}

#[tokio::test]
async fn pending_disconnect_does_not_delay_other_disconnects() {
    let hub = TestHub::start().await;
    let left = |agent_id: String| Disconnect {
        agent: AgentKey { id: agent_id.into(), zone: "z".into() },
        session_id: "gone".into(),
        end: SessionEnd::Cut,
    };
    let hung: Vec<_> = (0..8).map(|one| format!("hung-{one}")).collect();
    hub.objects.hung.lock().extend(hung.iter().cloned());
    hung.into_iter().for_each(|agent| hub.hub.agent_status.pending_disconnects.put(left(agent)));
    (0..100).for_each(|one| hub.hub.agent_status.pending_disconnects.put(left(format!("left-{one}"))));
    let written =
        || hub.objects.log.lock().iter().filter(|line| line.starts_with("disconnected left-")).count();
    eventually("all others are told of", || (written() == 100).then_some(())).await;
}
