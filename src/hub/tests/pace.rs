//! More agents than can be registered, and a replica that stops: who is told to come again, and when.

use crate::connected_agents::ConnectedAgents as _;
use crate::hub::tests::support::*;
use crate::hub::{AdmissionSettings, HubSettings, SessionSettings};
use crate::leases::{Replicas, Times};
use kubesvc_core::wire::ops::refused::Reason;
use kubesvc_core::wire::ops::{self, hub_frame};

async fn drained(agent: &mut TestAgent) -> ops::Drain {
    match agent.next().await {
        Ok(Some(hub_frame::Frame::Drain(drain))) => drain,
        other => panic!("expected Drain, got {other:?}"),
    }
}

#[tokio::test]
async fn a_draining_replica_gives_each_agent_its_own_redial_time_and_another_replica() {
    let replicas = Replicas::unknown(&"r-0".into(), Times::default());
    replicas.now_are(&["r-0", "r-1"]);
    let settings = HubSettings {
        admission: AdmissionSettings { registration_qps: 1, ..Default::default() },
        sessions: SessionSettings { clustered: true, ..Default::default() },
        ..HubSettings::default()
    };
    let hub = TestHub::of_replicas(settings, None, replicas).await;
    let mut agents = Vec::new();
    for agent_id in ["a", "b", "c", "d"] {
        agents.push(hub.agent(agent_id).await);
    }
    hub.stop.cancel();
    let mut times = Vec::new();
    for agent in &mut agents {
        let drain = drained(agent).await;
        assert_eq!((drain.replica_id.as_str(), drain.jitter_ms), ("r-1", 1000));
        times.push(drain.reconnect_after_ms);
    }
    times.sort_unstable();
    assert_eq!(times, [0, 1000, 2000, 3000]);
    drop(agents);
    hub.served.await.expect("no panic").expect("it ends well");
    let told = hub.objects.log.lock().iter().any(|line| line.starts_with("disconnected"));
    assert!(!told, "the others know it by the Lease");
}

#[tokio::test]
async fn a_draining_replica_refuses_new_agents_with_a_time() {
    let hub = TestHub::start().await;
    let mut first = hub.agent("a").await;
    hub.stop.cancel();
    assert_eq!(drained(&mut first).await.replica_id, "");
    let refused = hub.open().await.refused().await;
    assert_eq!(refused.reason(), Reason::Draining);
    assert!(!refused.permanent && (1_000..=15_000).contains(&refused.retry_after_ms), "{refused:?}");
    drop(first);
    hub.served.await.expect("no panic").expect("it ends well");
}

#[tokio::test]
async fn a_replica_that_alone_is_cut_off_sends_agents_away_with_a_time_until_it_is_not() {
    let hub = TestHub::start().await;
    for connect_seq in [1, 2] {
        let mut agent = hub.greet(ops::Hello { connect_seq, ..hello("a") }).await;
        agent.accepted().await;
        hub.hub.set_isolated(true);
        assert_eq!(drained(&mut agent).await.reconnect_after_ms, 2000, "each time it is the first");
        let refused = hub.greet(hello("b")).await.refused().await;
        assert_eq!(refused.reason(), Reason::Draining);
        assert!(!refused.permanent && refused.retry_after_ms >= 1000, "{refused:?}");
        assert!(refused.message.contains("does not reach its API server"), "{refused:?}");
        drop(agent);
        eventually("it has left", || hub.hub.agents().is_empty().then_some(())).await;
        hub.hub.set_isolated(false);
    }
}

#[tokio::test]
async fn a_stop_takes_no_longer_than_its_agents_do() {
    let hub = TestHub::start().await;
    let mut agent = hub.agent("a").await;
    let since = std::time::Instant::now();
    hub.stop.cancel();
    drained(&mut agent).await;
    drop(agent);
    hub.served.await.expect("no panic").expect("it ends well");
    assert!(since.elapsed() < std::time::Duration::from_secs(2), "{:?}", since.elapsed());
}

#[tokio::test]
async fn agents_beyond_the_registration_rate_are_told_when_it_is_their_turn() {
    let settings = HubSettings {
        admission: AdmissionSettings { registration_qps: 1, ..Default::default() },
        ..HubSettings::default()
    };
    let hub = TestHub::with(settings).await;
    ["a", "b", "c", "d", "e", "f", "g", "h"].iter().for_each(|agent_id| hub.show_agent_before(agent_id));
    for agent_id in ["a", "b", "c", "d", "e"] {
        hub.agent(agent_id).await;
    }
    assert_eq!(*hub.hub.backlog().borrow(), 0);
    let mut times = Vec::new();
    for agent_id in ["f", "g", "h"] {
        let refused = hub.greet(hello(agent_id)).await.refused().await;
        assert_eq!((refused.reason(), refused.permanent), (Reason::Overloaded, false));
        times.push(refused.retry_after_ms);
    }
    assert!(times[0] <= 5_000 && times[1] > times[0] && times[2] > times[1], "{times:?}");
    assert_eq!(*hub.hub.backlog().borrow(), 3, "they wait as well, though they are away");

    let again = hub.greet(ops::Hello { connect_seq: 2, ..hello("f") }).await.refused().await;
    assert!(again.retry_after_ms > times[2], "hurry is of no use");
    assert_eq!(*hub.hub.backlog().borrow(), 4);
    let registered = hub.objects.log.lock().iter().filter(|line| line.starts_with("register")).count();
    assert_eq!(registered, 5, "nothing was done for those who were refused");
}

#[tokio::test]
async fn an_agent_that_lacks_an_account_of_its_zone_is_registered_before_those_that_lack_none() {
    let hub = TestHub::start().await;
    let prod = account("prod");
    hub.accounts.show(prod.clone());
    let places = || !hub.hub.sessions.zone_index.lock().of_zone(&"z".into()).is_empty();
    eventually("the hub knows of the account", || places().then_some(())).await;
    let held = |epoch| ops::HeldAccount {
        account: Some(kubesvc_core::wire::common::AccountRef {
            uid: prod.uid().into(),
            name: "prod".into(),
            epoch,
            generation: 1,
        }),
        caching_epoch: 0,
        ..Default::default()
    };
    let holds = |agent_id, epoch| ops::Hello { accounts_held: vec![held(epoch)], ..hello(agent_id) };
    let elsewhere = ops::Hello { zone_id: "y".into(), ..hello("d") };
    for hello in [hello("a"), holds("b", 1), holds("c", 0), elsewhere] {
        hub.greet(hello).await.accepted().await;
    }
    assert_eq!(*hub.objects.needs.lock(), [true, false, true, false]);
}
