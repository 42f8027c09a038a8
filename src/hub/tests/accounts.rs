//! Accounts on their way to agents and back.

use std::time::Duration;

use prost::Message as _;

use crate::connected_agents::ConnectedAgents;
use crate::hub::context::MAX_CONCURRENT_CREDENTIAL_READS;
use crate::hub::tests::support::*;
use crate::hub::{AdmissionSettings, HubSettings};
use crate::informers::AccountKey;
use kubesvc_core::failure::{Failure, FailureClass};
use kubesvc_core::lifecycle::{AgentReport, Presence, SessionFact};
use kubesvc_core::wire::common;
use kubesvc_core::wire::ops::{self, agent_frame};
use kubesvc_core::{GrantEpoch, GrantPhase, State};

async fn fact(hub: &TestHub, uid: &str, is: impl Fn(&SessionFact) -> bool) -> SessionFact {
    eventually("the session says it", || hub.hub.sessions(uid).into_iter().find(|fact| is(fact))).await
}

async fn word(hub: &TestHub, uid: &str, is: impl Fn(&AgentReport) -> bool) -> (GrantEpoch, AgentReport) {
    let said = |fact: &SessionFact| fact.report.as_ref().is_some_and(|(_, word)| is(word));
    fact(hub, uid, said).await.report.expect("it is there")
}

#[tokio::test]
async fn an_account_is_added_held_dropped_and_gone() {
    let hub = TestHub::start().await;
    hub.accounts.show(account("one"));
    hub.accounts.sync();
    let mut agent = hub.agent("a").await;
    let added = agent.added().await;
    let reference = added[0].account.clone().expect("it is named");
    assert_eq!((reference.uid.as_str(), reference.name.as_str(), reference.epoch), ("uid-one", "one", 1));
    assert!(hub.hub.sessions("uid-one")[0].silent_for.is_some(), "an answer is owed");

    hub.leader.try_take(100);
    agent.answer(held(&reference)).await;
    assert_eq!(word(&hub, "uid-one", |word| matches!(word, AgentReport::Held(_))).await.0, GrantEpoch(1));
    eventually("the leader is woken", || hub.leader.try_take(100).contains(&"uid-one".into()).then_some(()))
        .await;
    assert_eq!(hub.hub.holders("uid-one")[0].accounts, ["one"]);
    assert_eq!(hub.hub.namespaces("uid-one"), Some(vec!["default".to_owned()]));
    assert_eq!(hub.hub.sessions("uid-one")[0].silent_for, None);

    hub.accounts.show(with(account("one"), |status| {
        status.state = Some(State::Deactivating);
        status.epoch = GrantEpoch(2);
        status.grant.as_mut().expect("granted").phase = GrantPhase::Revoking;
    }));
    let deleted = agent.deleted().await;
    assert_eq!((deleted[0].uid.as_str(), deleted[0].epoch), ("uid-one", 2));
    agent.answer(dropped(&deleted[0])).await;
    assert_eq!(word(&hub, "uid-one", |word| *word == AgentReport::Dropped).await.0, GrantEpoch(2));

    hub.accounts.show(with(account("one"), |status| {
        status.state = Some(State::Inactive);
        status.epoch = GrantEpoch(2);
        status.grant = None;
    }));
    eventually("nothing is kept of it", || {
        (hub.hub.sessions.registry.concerned_with("uid-one").is_empty()
            && hub.hub.namespaces("uid-one").is_none())
        .then_some(())
    })
    .await;
}

/// Nothing else would make it look at an agent that never answers.
#[tokio::test]
async fn the_leader_is_woken_when_an_answer_is_owed() {
    let hub = TestHub::start().await;
    hub.accounts.sync();
    let mut agent = hub.agent("a").await;
    hub.leader.try_take(100);
    hub.accounts.show(account("one"));
    agent.added().await;
    assert!(hub.leader.try_take(100).contains(&"uid-one".into()), "after AddAccounts");
    hub.accounts.show(with(account("one"), |status| {
        status.state = Some(State::Deleting);
        status.epoch = GrantEpoch(2);
        status.grant.as_mut().expect("granted").phase = GrantPhase::Revoking;
    }));
    agent.deleted().await;
    assert!(hub.leader.try_take(100).contains(&"uid-one".into()), "after DeleteAccounts");
}

#[tokio::test]
async fn a_revoke_is_answered_for_an_agent_that_was_never_sent_the_account() {
    let hub = TestHub::start().await;
    hub.accounts.sync();
    let _agent = hub.agent("a").await;
    hub.accounts.show(with(account("one"), |status| {
        status.state = Some(State::Deactivating);
        status.grant.as_mut().expect("granted").phase = GrantPhase::Revoking;
    }));
    assert_eq!(word(&hub, "uid-one", |word| *word == AgentReport::Dropped).await.0, GrantEpoch(1));
    eventually("the leader is woken", || hub.leader.try_take(100).contains(&"uid-one".into()).then_some(()))
        .await;
}

#[tokio::test]
async fn an_account_of_another_zone_is_not_sent() {
    let hub = TestHub::start().await;
    hub.accounts.sync();
    let mut agent = hub.agent("a").await;
    hub.accounts.show(with(account("other"), |status| {
        status.grant.as_mut().expect("granted").zone = Some("elsewhere".into());
    }));
    hub.accounts.show(account("one"));
    let added = agent.added().await;
    assert_eq!(added.len(), 1);
    assert_eq!(added[0].account.as_ref().map(|one| one.uid.as_str()), Some("uid-one"));
}

#[tokio::test]
async fn account_without_an_object_is_dropped_once_the_index_is_synced() {
    let hub = TestHub::start().await;
    let gone = common::AccountRef { uid: "gone".into(), name: "gone".into(), epoch: 4, generation: 1 };
    let accounts_held =
        vec![ops::HeldAccount { account: Some(gone), caching_epoch: 0, ..Default::default() }];
    let mut agent = hub.greet(ops::Hello { accounts_held, ..hello("a") }).await;
    agent.accepted().await;
    hub.accounts.show(account("one"));
    agent.added().await;
    hub.accounts.sync();
    let deleted = agent.deleted().await;
    assert_eq!((deleted[0].uid.as_str(), deleted[0].epoch), ("gone", 4));
}

#[tokio::test]
async fn an_account_whose_object_vanishes_is_dropped() {
    let hub = TestHub::start().await;
    hub.accounts.sync();
    hub.accounts.show(account("one"));
    let mut agent = hub.agent("a").await;
    agent.added().await;
    hub.accounts.hide(&AccountKey { namespace: "ns".into(), name: "one".into() });
    assert_eq!(agent.deleted().await[0].uid, "uid-one");
}

#[tokio::test]
async fn a_name_used_again_is_added_only_after_the_old_account_was_dropped() {
    let hub = TestHub::start().await;
    hub.accounts.sync();
    hub.accounts.show(account("one"));
    let mut agent = hub.agent("a").await;
    let first = agent.added().await[0].account.clone().expect("it is named");
    agent.answer(held(&first)).await;
    hub.accounts.hide(&AccountKey { namespace: "ns".into(), name: "one".into() });
    let deleted = agent.deleted().await;
    let mut again = account("one");
    again.metadata.uid = Some("uid-two".into());
    hub.accounts.show(again);
    fact(&hub, "uid-two", |fact| fact.silent_for.is_some()).await;
    agent.answer(dropped(&deleted[0])).await;
    assert_eq!(agent.added().await[0].account.as_ref().map(|one| one.uid.as_str()), Some("uid-two"));
}

#[tokio::test]
async fn a_credential_that_cannot_be_read_is_the_sessions_failure() {
    let hub = TestHub::start().await;
    let failure = Failure::new(FailureClass::CredentialMissing, "no Secret one");
    hub.credentials.answers.lock().insert("one".into(), Err(failure.clone()));
    hub.accounts.show(account("one"));
    let _agent = hub.agent("a").await;
    let said = word(&hub, "uid-one", |word| matches!(word, AgentReport::Failed(_))).await;
    assert_eq!(said, (GrantEpoch(1), AgentReport::Failed(failure)));
}

#[tokio::test]
async fn a_credential_that_is_not_the_grants_waits_for_the_leader() {
    let hub = TestHub::start().await;
    hub.credentials.answers.lock().insert("one".into(), Ok(kubeconfig("v2", 16)));
    let mut agent = hub.agent("a").await;
    hub.leader.try_take(100);
    hub.accounts.show(account("one"));
    eventually("the leader is woken", || hub.leader.try_take(100).contains(&"uid-one".into()).then_some(()))
        .await;
    eventually("the leader is told why", || hub.hub.credential_mismatch("uid-one").then_some(())).await;
    let renewed = with(account("one"), |status| {
        status.epoch = GrantEpoch(2);
        status.credential_version = Some("v2".into());
    });
    hub.accounts.show(renewed);
    assert_eq!(agent.added().await[0].account.as_ref().map(|one| one.epoch), Some(2));
    assert!(!hub.hub.credential_mismatch("uid-one"));
}

#[tokio::test]
async fn a_thousand_accounts_go_out_in_batches() {
    let hub = TestHub::start().await;
    for number in 0..1000 {
        hub.accounts.show(account(&format!("a{number}")));
    }
    let mut agent = hub.agent("a").await;
    let mut seen = std::collections::HashSet::new();
    while seen.len() < 1000 {
        let batch = agent.added().await;
        assert!(batch.len() <= 50, "{} in one frame", batch.len());
        seen.extend(batch.into_iter().filter_map(|spec| spec.account).map(|account| account.uid));
    }
}

#[tokio::test]
async fn a_frame_holds_at_most_a_mebibyte_of_accounts() {
    let hub = TestHub::start().await;
    for name in ["a", "b", "c"] {
        hub.credentials.answers.lock().insert(name.into(), Ok(kubeconfig("v1", 700 * 1024)));
        hub.accounts.show(account(name));
    }
    let mut agent = hub.agent("a").await;
    for _ in 0..3 {
        assert_eq!(agent.added().await.len(), 1);
    }
}

#[tokio::test]
async fn an_agent_that_is_not_approved_gets_accounts_once_it_is() {
    let hub = TestHub::start().await;
    *hub.objects.approve.lock() = false;
    hub.accounts.show(account("one"));
    let mut agent = hub.greet(hello("a")).await;
    assert!(!agent.accepted().await.approved);
    assert!(hub.hub.sessions("uid-one").is_empty());
    hub.show_agent("a", true, "s", 10);
    assert_eq!(agent.added().await.len(), 1);
}

#[tokio::test]
async fn reports_of_a_never_approved_agent_do_not_count() {
    let hub = TestHub::start().await;
    hub.accounts.sync();
    *hub.objects.approve.lock() = false;
    hub.accounts.show(account("one"));
    let claim =
        common::AccountRef { uid: "uid-one".into(), name: "one".into(), epoch: 1, ..Default::default() };
    let accounts_held =
        vec![ops::HeldAccount { account: Some(claim.clone()), caching_epoch: 1, ..Default::default() }];
    let mut agent = hub.greet(ops::Hello { accounts_held, ..hello("a") }).await;
    agent.accepted().await;
    hub.leader.try_take(usize::MAX);
    agent.answer(held(&claim)).await;
    agent.answer(failed(&claim)).await;
    agent.say(agent_frame::Frame::Lost(ops::Lost { account: Some(claim), ..Default::default() })).await;
    eventually("all is ignored", || {
        let reason = crate::hub::metrics::ReasonLabel { reason: "never_approved" };
        (hub.hub.context.metrics.ignored.get_or_create(&reason).get() == 3).then_some(())
    })
    .await;
    assert!(hub.hub.sessions("uid-one").is_empty() && hub.hub.holders("uid-one").is_empty());
    assert!(hub.hub.agents()[0].accounts.is_empty() && hub.hub.namespaces("uid-one").is_none());
    assert!(hub.leader.is_empty() && hub.rows.rows.lock().is_empty(), "nobody looks at anything for it");
    drop(agent);
    eventually("it has left", || hub.hub.agents().is_empty().then_some(())).await;
    assert!(hub.hub.sessions("uid-one").is_empty(), "nobody waits for it");
}

#[tokio::test]
async fn agent_reconnects_after_approval_to_repeat_its_claims() {
    let hub = TestHub::start().await;
    *hub.objects.approve.lock() = false;
    let claim =
        common::AccountRef { uid: "uid-one".into(), name: "one".into(), epoch: 1, ..Default::default() };
    let accounts_held =
        vec![ops::HeldAccount { account: Some(claim), caching_epoch: 0, ..Default::default() }];
    let mut agent = hub.greet(ops::Hello { accounts_held: accounts_held.clone(), ..hello("a") }).await;
    agent.accepted().await;
    hub.show_agent("a", true, "s", 10);
    let last = agent.next().await.expect("a last frame");
    assert_eq!(last, Some(ops::hub_frame::Frame::Drain(ops::Drain::default())), "it dials again at once");
    let status = agent.next().await.expect_err("it is closed");
    assert!(status.message().contains("says anew"), "{}", status.message());
    *hub.objects.approve.lock() = true;
    // Long enough for a write of its end, which would delay its registration.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!hub.objects.log.lock().iter().any(|write| write.starts_with("disconnected")));
    let mut agent = hub.greet(ops::Hello { accounts_held, connect_seq: 2, ..hello("a") }).await;
    assert!(agent.accepted().await.approved);
    assert_eq!(
        hub.hub.sessions.registry.of_id(&"a".into()).pop().map(|session| session.uids()),
        Some(vec!["uid-one".to_owned()])
    );
}

/// Its replica's watch is behind: the registration reads the approval first. Which event comes first is left to chance.
#[tokio::test]
async fn agent_that_is_approved_while_it_registers_is_accepted_and_told_to_reconnect() {
    let settings = HubSettings::default();
    let admission = AdmissionSettings { approves_new: false, ..settings.admission };
    let hub = TestHub::with(HubSettings { admission, ..settings }).await;
    for number in 0..20 {
        let id = format!("a{number}");
        let claim =
            common::AccountRef { uid: "uid-one".into(), name: "one".into(), epoch: 1, ..Default::default() };
        let accounts_held =
            vec![ops::HeldAccount { account: Some(claim), caching_epoch: 0, ..Default::default() }];
        let mut agent = hub.greet(ops::Hello { accounts_held, ..hello(&id) }).await;
        agent.accepted().await;
        let last = agent.next().await.expect("a last frame");
        let drain = ops::Drain { reconnect_after_ms: 500, ..ops::Drain::default() };
        assert_eq!(last, Some(ops::hub_frame::Frame::Drain(drain)), "{id}");
        let status = agent.next().await.expect_err("it is closed");
        assert!(status.message().contains("says anew"), "{}", status.message());
    }
}

#[tokio::test]
async fn an_approval_is_written_down_before_the_agent_is_given_anything() {
    let hub = TestHub::start().await;
    *hub.objects.approve.lock() = false;
    hub.accounts.show(account("one"));
    let mut agent = hub.greet(hello("a")).await;
    agent.accepted().await;
    let mut object = agent_object_in("a", "z", "r-0", 9);
    hub.agents.seen(object.clone());
    eventually("it is written down", || {
        hub.objects.log.lock().contains(&"approved a".to_owned()).then_some(())
    })
    .await;
    assert!(hub.hub.sessions("uid-one").is_empty());
    object.metadata.resource_version = Some("10".into());
    object.status.as_mut().expect("it has one").approved_once = true;
    hub.agents.seen(object);
    assert_eq!(agent.added().await.len(), 1);
}

#[tokio::test]
async fn reconnected_process_is_not_asked_again_for_its_reports() {
    let hub = TestHub::start().await;
    hub.accounts.show(account("one"));
    hub.accounts.show(account("two"));
    hub.accounts.sync();
    let mut agent = hub.agent("a").await;
    let mut sent = agent.added().await;
    while sent.len() < 2 {
        sent.extend(agent.added().await);
    }
    let refs: Vec<_> = sent.into_iter().filter_map(|spec| spec.account).collect();
    for reference in &refs {
        agent.answer(held(reference)).await;
        word(&hub, &reference.uid, |word| matches!(word, AgentReport::Held(_))).await;
    }
    let kept = refs.iter().find(|one| one.name == "one").cloned();
    let accounts_held = vec![ops::HeldAccount { account: kept, caching_epoch: 0, ..Default::default() }];
    let mut agent = hub.greet(ops::Hello { connect_seq: 2, accounts_held, ..hello("a") }).await;
    agent.accepted().await;
    assert!(matches!(hub.hub.sessions("uid-one")[0].report, Some((GrantEpoch(1), AgentReport::Held(_)))));
    let added = agent.added().await;
    assert_eq!(added.len(), 1);
    assert_eq!(added[0].account.as_ref().map(|one| one.name.as_str()), Some("two"), "its hello lacks it");
}

#[tokio::test]
async fn message_that_no_stream_of_a_process_brought_an_answer_to_is_told_with_its_size() {
    let hub = TestHub::start().await;
    hub.credentials.answers.lock().insert("one".to_owned(), Ok(kubeconfig("v1", 2000)));
    hub.accounts.show(account("one"));
    for (connect_seq, ended_streams) in [(1, 0), (2, 1), (3, 2)] {
        let mut agent = hub.greet(ops::Hello { connect_seq, ..hello("a") }).await;
        agent.accepted().await;
        let sent = ops::AddAccounts { accounts: agent.added().await, ..ops::AddAccounts::default() };
        let message = hub.hub.sessions("uid-one")[0].unanswered.expect("it is not answered");
        assert_eq!(message.ended_streams, ended_streams);
        // The id of the batch is a ULID.
        assert_eq!(message.bytes, sent.encoded_len() + 28);
    }
    let mut agent = hub.greet(ops::Hello { connect_seq: 4, ..hello("a") }).await;
    agent.accepted().await;
    let reference = agent.added().await[0].account.clone().expect("it is named");
    agent.answer(held(&reference)).await;
    let heard = fact(&hub, "uid-one", |fact| fact.report.is_some()).await;
    assert_eq!(heard.unanswered, None);
}

#[tokio::test]
async fn unrequested_answers_are_ignored() {
    let hub = TestHub::start().await;
    hub.accounts.show(account("one"));
    let mut agent = hub.agent("a").await;
    let reference = agent.added().await[0].account.clone().expect("it is named");
    agent.answer(held(&common::AccountRef { epoch: 9, ..reference.clone() })).await;
    agent.answer(dropped(&common::AccountRef { uid: "never".into(), ..reference.clone() })).await;
    agent.answer(held(&reference)).await;
    assert_eq!(word(&hub, "uid-one", |_| true).await.0, GrantEpoch(1));
    let ignored = |reason| {
        hub.hub.context.metrics.ignored.get_or_create(&crate::hub::metrics::ReasonLabel { reason }).get()
    };
    assert_eq!((ignored("future_epoch"), ignored("never_sent")), (1, 1));
}

#[tokio::test]
async fn a_loss_is_reported_and_working_restarts_the_silence_clock() {
    let hub = TestHub::start().await;
    hub.accounts.show(account("one"));
    let mut agent = hub.agent("a").await;
    let reference = agent.added().await[0].account.clone();
    (0..5).for_each(|_| hub.ticks.advance());
    fact(&hub, "uid-one", |fact| fact.silent_for == Some(5)).await;
    agent.say(agent_frame::Frame::Working(ops::Working { account: reference.clone() })).await;
    fact(&hub, "uid-one", |fact| fact.silent_for == Some(0)).await;
    agent.say(agent_frame::Frame::Lost(ops::Lost { account: reference, failure: None })).await;
    word(&hub, "uid-one", |word| matches!(word, AgentReport::Lost(_))).await;
}

/// A leader may look between its own write of a new epoch and the session's first look at it.
#[tokio::test]
async fn silence_about_an_older_epoch_is_none_about_a_newer_one() {
    let hub = TestHub::start().await;
    hub.accounts.show(account("one"));
    let mut agent = hub.agent("a").await;
    agent.added().await;
    (0..5).for_each(|_| hub.ticks.advance());
    let session = hub.hub.sessions.registry.of_id(&"a".into()).pop().expect("it is connected");
    let silent_for = |epoch| session.fact("uid-one", epoch, hub.ticks.now()).silent_for;
    assert_eq!((silent_for(GrantEpoch(1)), silent_for(GrantEpoch(2))), (Some(5), None));
}

#[tokio::test]
async fn an_account_for_any_zone_sees_one_session_of_each_zone() {
    let hub = TestHub::start().await;
    let free = with(account("one"), |status| {
        status.grant = None;
        status.zone_id = None;
    });
    hub.accounts.show(free);
    let _first = hub.agent("a").await;
    let _second = hub.agent("b").await;
    let mut third = hub.greet(ops::Hello { zone_id: "y".into(), ..hello("c") }).await;
    third.accepted().await;
    let facts = hub.hub.sessions("uid-one");
    let zones: Vec<_> = facts.iter().map(|fact| fact.zone.as_str()).collect();
    assert_eq!(zones, ["y", "z"], "in the order of their names");
    assert!(facts.iter().all(|fact| fact.report.is_none() && fact.presence == Presence::Connected));
    let woken = || hub.leader.try_take(100).contains(&"uid-one".into()).then_some(());
    eventually("the leader is woken", woken).await;
    third.frames = None;
    eventually("the leader is woken when a zone has lost its last agent", woken).await;
    assert_eq!(hub.hub.sessions("uid-one").len(), 1);
}

/// Users saw an account of one cluster deployed into another, because one of two agents resolved its address elsewhere.
#[tokio::test]
async fn an_agent_in_the_wrong_cluster_is_sent_a_drop_and_the_other_keeps_the_account() {
    let hub = TestHub::start().await;
    hub.accounts.sync();
    let bound = with(account("one"), |status| {
        status.state = Some(State::Active);
        status.cluster_uid = Some("cluster".into());
    });
    hub.accounts.show(bound.clone());
    let (mut right, mut astray) = (hub.agent("right").await, hub.agent("astray").await);
    let reference = right.added().await[0].account.clone().expect("it is named");
    right.answer(held(&reference)).await;
    eventually("the first holds it", || hub.hub.namespaces("uid-one")).await;
    astray.added().await;
    let mut elsewhere = held(&reference);
    if let Some(ops::account_result::Outcome::Identity(identity)) = &mut elsewhere.outcome {
        identity.kube_system_uid = "another".into();
        identity.namespaces = vec!["of-the-other".into()];
    }
    astray.answer(elsewhere).await;
    let deleted = astray.deleted().await;
    assert_eq!((deleted[0].uid.as_str(), deleted[0].epoch), ("uid-one", 1));
    astray.answer(dropped(&deleted[0])).await;
    eventually("it is counted as failed, by one alone", || {
        let facts = hub.hub.sessions("uid-one");
        let said = |agent: &str| facts.iter().find(|fact| fact.agent_id == agent)?.report.clone();
        let holds = matches!(said("right"), Some((GrantEpoch(1), AgentReport::Held(_))));
        let failed = matches!(said("astray"), Some((GrantEpoch(1), AgentReport::Failed(why)))
            if why.class == FailureClass::ClusterMismatch && why.message.contains("agent astray"));
        let agents: Vec<_> = hub.hub.holders("uid-one").into_iter().map(|one| one.agent_id).collect();
        (holds && failed && agents == ["right"]).then_some(())
    })
    .await;
    assert_eq!(
        hub.hub.namespaces("uid-one"),
        Some(vec!["default".to_owned()]),
        "the row is of the right one"
    );
}

/// An agent could put any name into `kubesvc_assignments` and what REST shows, beside the uid of an account it was given.
#[tokio::test]
async fn account_name_comes_from_the_object_not_from_the_hello() {
    let hub = TestHub::start().await;
    hub.accounts.sync();
    hub.accounts.show(account("one"));
    let called = common::AccountRef { uid: "uid-one".into(), name: "other".into(), epoch: 1, generation: 1 };
    let accounts_held =
        vec![ops::HeldAccount { account: Some(called), caching_epoch: 0, ..Default::default() }];
    let mut agent = hub.greet(ops::Hello { accounts_held, ..hello("a") }).await;
    agent.accepted().await;
    let reference = agent.added().await[0].account.clone().expect("it is named");
    assert_eq!(reference.name, "one");
    agent.answer(held(&common::AccountRef { name: "third".into(), ..reference })).await;
    word(&hub, "uid-one", |word| matches!(word, AgentReport::Held(_))).await;
    assert_eq!(hub.hub.holders("uid-one")[0].accounts, ["one"]);
    eventually("a row of the right name", || {
        let rows = hub.rows.rows.lock();
        rows.contains_key(&("one".to_owned(), "a".into())).then_some(())
    })
    .await;
}

#[tokio::test]
async fn waiting_for_a_credential_permit_fails_no_account() {
    let hub = TestHub::start().await;
    hub.accounts.sync();
    let mut agent = hub.agent("a").await;
    let others = hub
        .hub
        .streams
        .parts
        .credentials
        .reads
        .acquire_many(MAX_CONCURRENT_CREDENTIAL_READS as u32)
        .await
        .expect("it is never closed");
    hub.accounts.show(account("one"));
    fact(&hub, "uid-one", |fact| fact.silent_for.is_some()).await;
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(40)).await;
    tokio::time::resume();
    (0..40).for_each(|_| hub.ticks.advance());
    let waiting = hub.hub.sessions("uid-one").remove(0);
    assert_eq!((waiting.report, waiting.silent_for), (None, Some(0)));
    drop(others);
    assert_eq!(agent.added().await.len(), 1);
    let word = hub.hub.sessions("uid-one").remove(0).report;
    assert!(word.is_none(), "{word:?}");
}

/// Two sessions may have as many credentials under way as are read at once.
#[tokio::test]
async fn agents_that_take_no_frames_keep_no_other_from_its_credentials() {
    let hub = TestHub::start().await;
    hub.accounts.sync();
    hub.credentials.unanswered.send_replace(Some("slow"));
    let _stuck = [hub.agent("a").await, hub.agent("b").await];
    for nth in 0..16 {
        let name = format!("big-{nth:02}");
        hub.credentials.answers.lock().insert(name.clone(), Ok(kubeconfig("v1", 900 * 1024)));
        hub.accounts.show(account(&name));
    }
    (0..64).for_each(|nth| hub.accounts.show(account(&format!("slow-{nth}"))));
    eventually("all turns are taken", || {
        (hub.hub.streams.parts.credentials.reads.available_permits() == 0).then_some(())
    })
    .await;
    let mut other = hub.greet(ops::Hello { zone_id: "y".into(), ..hello("c") }).await;
    other.accepted().await;
    hub.accounts.show(with(account("one"), |status| {
        status.grant.as_mut().expect("granted").zone = Some("y".into());
    }));
    fact(&hub, "uid-one", |fact| fact.silent_for.is_some()).await;
    hub.credentials.unanswered.send_replace(None);
    assert_eq!(other.added().await.len(), 1);
}
