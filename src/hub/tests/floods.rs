//! What strangers and newcomers may cost, and that an agent which was here before notices nothing of it.

use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;

use crate::connected_agents::ConnectedAgents as _;
use crate::hub::tests::support::*;
use crate::hub::{AdmissionClass, AdmissionSettings, HubSettings, SessionSettings};
use kubesvc_core::wire::common::AccountRef;
use kubesvc_core::wire::ops::refused::Reason;
use kubesvc_core::wire::ops::{self, hub_frame};

/// So many agents say hello, of which so many may wait. What the others are told, and the streams of all.
async fn crowd(hub: &TestHub, count: usize, waiting: usize) -> (Vec<ops::Refused>, Vec<TestAgent>) {
    let mut agents = Vec::new();
    for one in 0..count {
        agents.push(hub.greet(hello(&format!("crowd-{one}"))).await);
    }
    let mut answers: FuturesUnordered<_> = agents.iter_mut().map(TestAgent::next).collect();
    let mut refused = Vec::new();
    while refused.len() < count - waiting {
        match answers.next().await {
            Some(Ok(Some(hub_frame::Frame::Refused(why)))) => refused.push(why),
            other => panic!("expected Refused, got {other:?}"),
        }
    }
    drop(answers);
    (refused, agents)
}

#[tokio::test]
async fn a_known_agent_is_registered_beside_many_unapproved_ones() {
    let hub = TestHub::with(HubSettings {
        admission: AdmissionSettings { approves_new: false, ..Default::default() },
        ..HubSettings::default()
    })
    .await;
    hub.accounts.show(account("one"));
    hub.show_agent_before("good");
    *hub.objects.holds_up.lock() = Some(AdmissionClass::Unapproved);
    let (refused, _streams) = crowd(&hub, 200, 64).await;
    assert!(refused.iter().all(|why| why.retry_after_ms == 60_000 && !why.permanent));
    assert_eq!(*hub.hub.backlog().borrow(), 0, "the leader counts agents as gone all the same");

    let mut good = hub.agent("good").await;
    assert_eq!(good.added().await.len(), 1);
    assert_eq!(hub.hub.agents().len(), 1);
}

#[tokio::test]
async fn an_agent_that_has_an_object_is_registered_beside_a_crowd_of_newcomers() {
    let hub = TestHub::start().await;
    hub.accounts.show(account("one"));
    hub.show_agent_before("good");
    *hub.objects.holds_up.lock() = Some(AdmissionClass::Newcomer);
    let (refused, _streams) = crowd(&hub, 300, 200).await;
    assert!(refused.iter().all(|why| why.reason() == Reason::Overloaded && !why.permanent));
    assert_eq!(*hub.hub.backlog().borrow(), 0, "the leader counts agents as gone all the same");
    let mut good = hub.agent("good").await;
    assert_eq!(good.added().await.len(), 1);
}

/// A hello that claims so many accounts which never were.
fn claims(agent_id: &str, count: usize) -> ops::Hello {
    let claim = |one| {
        let account = AccountRef { uid: format!("u{one}"), name: "n".into(), epoch: 1, ..Default::default() };
        ops::HeldAccount { account: Some(account), caching_epoch: 0, ..Default::default() }
    };
    ops::Hello { accounts_held: (0..count).map(claim).collect(), ..hello(agent_id) }
}

#[tokio::test]
async fn claims_of_an_unapproved_agent_cause_no_list_and_are_not_kept() {
    let hub = TestHub::with(HubSettings {
        admission: AdmissionSettings { approves_new: false, ..Default::default() },
        ..HubSettings::default()
    })
    .await;
    hub.accounts.sync();
    *hub.objects.approve.lock() = false;
    let mut unlisted_fact = hub.greet(claims("stranger", 100_000)).await;
    assert!(!unlisted_fact.accepted().await.approved);
    let session = hub.hub.sessions.registry.of_id(&"stranger".into()).pop().expect("it stands");
    assert!(
        session.uids().is_empty() && session.wakes.is_empty() && session.missing_accounts.lock().is_empty()
    );
    // Whatever it says after that was looked at before.
    unlisted_fact.answer(failed(&AccountRef { uid: "u1".into(), ..Default::default() })).await;
    let ignored = crate::hub::metrics::ReasonLabel { reason: "never_approved" };
    eventually("it is ignored", || {
        (hub.hub.context.metrics.ignored.get_or_create(&ignored).get() == 1).then_some(())
    })
    .await;
    assert_eq!(hub.accounts.lists_asked_for(), 0);
}

#[tokio::test]
async fn ten_thousand_of_a_hundred_thousand_unknown_claims_are_accepted_for_one_list() {
    let hub = TestHub::start().await;
    hub.accounts.show(account("one"));
    hub.accounts.sync();
    let mut good = hub.agent("good").await;
    good.added().await;

    let mut claimant = hub.greet(claims("claimant", 100_000)).await;
    claimant.accepted().await;
    assert_eq!(claimant.added().await.len(), 1, "an account of its zone does not wait for them");
    eventually("a list is asked for", || (hub.accounts.lists_asked_for() == 1).then_some(())).await;
    let session = hub.hub.sessions.registry.of_id(&"claimant".into()).pop().expect("it stands");
    // Those, and the account of its zone.
    assert_eq!(session.uids().len(), 10_001);
    assert_eq!(hub.hub.admission.foreign_claims.available_permits(), 190_000);

    hub.accounts.answer_lists(&[crate::informers::AccountKey::of(&account("one"))].into());
    let mut settled = 0;
    let end = loop {
        match claimant.next().await {
            Ok(Some(hub_frame::Frame::DeleteAccounts(delete))) => {
                settled += delete.accounts.len();
                let results = delete.accounts.iter().map(dropped).collect();
                let results = ops::AccountResults { results };
                claimant.say(ops::agent_frame::Frame::AccountResults(results)).await;
            }
            Ok(other) => panic!("expected DeleteAccounts, got {other:?}"),
            Err(end) => break end,
        }
    };
    assert_eq!(settled, 10_000);
    assert!(end.message().contains("says them anew"), "{}", end.message());
    assert_eq!(hub.accounts.lists_asked_for(), 1);
    eventually("their room is free", || {
        (hub.hub.admission.foreign_claims.available_permits() == 200_000).then_some(())
    })
    .await;
    assert!(hub.hub.agents().iter().any(|agent| agent.agent_id == "good"));
}

#[tokio::test]
async fn claims_are_forgotten_when_the_agent_leaves() {
    let hub = TestHub::start().await;
    hub.accounts.show(account("one"));
    hub.accounts.sync();
    let mut claimant = hub.greet(claims("claimant", 10_000)).await;
    claimant.accepted().await;
    claimant.added().await;
    let session = hub.hub.sessions.registry.of_id(&"claimant".into()).pop().expect("it stands");
    assert_eq!(
        (session.uids().len(), hub.hub.admission.foreign_claims.available_permits()),
        (10_001, 190_000)
    );
    drop(claimant);
    eventually("it has left", || {
        hub.hub.sessions.registry.of_id(&"claimant".into()).pop().is_none().then_some(())
    })
    .await;
    eventually("its room is free", || {
        (hub.hub.admission.foreign_claims.available_permits() == 200_000).then_some(())
    })
    .await;
    // The session is remembered, with what the agent was sent.
    eventually("the claims are forgotten", || (session.uids() == ["uid-one"]).then_some(())).await;
    assert!(session.wakes.is_empty() && session.missing_accounts.lock().is_empty());
}

#[tokio::test]
async fn foreign_claims_are_bounded_and_a_known_agent_is_admitted_without_them() {
    let hub = TestHub::start().await;
    hub.accounts.sync();
    let room =
        hub.hub.admission.foreign_claims.clone().try_acquire_many_owned(199_999).expect("nobody has any");
    let refused = hub.greet(claims("newcomer", 2)).await.refused().await;
    assert_eq!((refused.reason(), refused.retry_after_ms), (Reason::Overloaded, 60_000));
    hub.show_agent_before("good");
    hub.greet(claims("good", 2)).await.accepted().await;
    assert_eq!(
        hub.hub.sessions.registry.of_id(&"good".into()).pop().map(|session| session.uids().len()),
        Some(1)
    );
    drop(room);
}

#[tokio::test]
async fn an_agent_none_of_whose_claims_was_accepted_repeats_them_once_permits_are_free() {
    let heartbeat = Duration::from_millis(20);
    let sessions = SessionSettings { heartbeat, cuts_off_silent: false, ..Default::default() };
    let hub = TestHub::with(HubSettings { sessions, ..HubSettings::default() }).await;
    hub.accounts.sync();
    let room =
        hub.hub.admission.foreign_claims.clone().try_acquire_many_owned(200_000).expect("nobody has any");
    hub.show_agent_before("good");
    let mut agent = hub.greet(claims("good", 2)).await;
    agent.accepted().await;
    let session = hub.hub.sessions.registry.of_id(&"good".into()).pop().expect("it stands");
    tokio::time::sleep(heartbeat * 5).await;
    assert!(session.uids().is_empty() && session.closed_because().is_none(), "no permit is free");
    drop(room);
    let end = agent.next().await.expect_err("it is closed");
    assert!(end.message().contains("says them anew"), "{}", end.message());
    hub.greet(ops::Hello { connect_seq: 2, ..claims("good", 2) }).await.accepted().await;
    assert_eq!(
        hub.hub.sessions.registry.of_id(&"good".into()).pop().map(|session| session.uids().len()),
        Some(2)
    );
}
