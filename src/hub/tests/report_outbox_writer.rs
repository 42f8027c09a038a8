//! What a replica that does not lead writes down for the one that does.

use crate::connected_agents::ConnectedAgents;
use crate::hub::agent_status::registration::OutboxWrite;
use crate::hub::tests::offers;
use crate::hub::tests::support::*;
use crate::hub::{HubSettings, SessionSettings};
use kubesvc_core::lifecycle::SessionFact;
use kubesvc_core::report_outbox::{OutboxEntry, OutboxResult};
use kubesvc_core::wire::ops;
use kubesvc_core::{GrantEpoch, GrantPhase, State};

/// The last outbox that was written, once it is so.
async fn reported(hub: &TestHub, what: &str, so: impl Fn(&[OutboxEntry]) -> bool) -> Vec<OutboxEntry> {
    eventually(what, || hub.objects.reports.lock().last().filter(|outbox| so(outbox)).cloned()).await
}

/// A hub that does not lead, and an account that looks for a zone.
async fn asked_about(name: &str) -> TestHub {
    let hub = offers::hub_with(name).await;
    hub.leadership.lose();
    hub
}

fn results(outbox: &[OutboxEntry]) -> Vec<OutboxResult> {
    outbox.iter().map(|entry| entry.result).collect()
}

#[tokio::test]
async fn an_answer_is_written_down_while_another_replica_leads_and_many_in_one_write() {
    let hub = TestHub::start().await;
    hub.leadership.lose();
    for number in 0..40 {
        hub.accounts.show(account(&format!("a{number}")));
    }
    let mut agent = hub.agent("a").await;
    let mut specs = agent.added().await;
    while specs.len() < 40 {
        specs.extend(agent.added().await);
    }
    let refs: Vec<_> = specs.into_iter().filter_map(|spec| spec.account).collect();
    let results = refs.iter().map(held).collect();
    agent.say(ops::agent_frame::Frame::AccountResults(ops::AccountResults { results })).await;
    let outbox = reported(&hub, "all are reported", |outbox| outbox.len() == 40).await;
    assert!(outbox.iter().all(|entry| entry.result == OutboxResult::Held && entry.identity.is_some()));
    assert!(hub.objects.reports.lock().len() <= 2, "{}", hub.objects.reports.lock().len());
    let active = |name: &str| with(account(name), |status| status.state = Some(State::Active));
    (0..40).for_each(|number| hub.accounts.show(active(&format!("a{number}"))));
    hub.accounts.show(account("late"));
    let sent = agent.added().await;
    agent.answer(held(sent[0].account.as_ref().expect("it is named"))).await;
    let outbox = reported(&hub, "the next is reported", |outbox| outbox.len() == 1).await;
    assert_eq!(outbox[0].uid, "uid-late", "nothing waits for the others any more");
}

#[tokio::test]
async fn hundreds_of_failures_are_each_reported_once_without_delaying_other_accounts() {
    let hub = TestHub::start().await;
    hub.leadership.lose();
    let names: Vec<_> = (0..300).map(|number| format!("a{number}")).collect();
    names.iter().for_each(|name| hub.accounts.show(account(name)));
    let mut agent = hub.agent("a").await;
    let mut sent = 0;
    while sent < 300 {
        let specs = agent.added().await;
        sent += specs.len();
        for spec in specs {
            agent.answer(failed(&spec.account.expect("it is named"))).await;
        }
    }
    let all = |outbox: &[OutboxEntry]| results(outbox) == vec![OutboxResult::Failed; 300];
    let outbox = reported(&hub, "all have failed", all).await;
    assert!(outbox.iter().all(|entry| entry.class.as_deref() == Some("ClusterUnreachable")));
    assert_eq!(outbox.iter().filter(|entry| entry.reason.is_some()).count(), 200);
    let is_failed = |name: &String| with(account(name), |status| status.state = Some(State::Failed));
    names.iter().for_each(|name| hub.accounts.show(is_failed(name)));
    hub.accounts.show(account("new"));
    let sent = agent.added().await;
    agent.answer(held(sent[0].account.as_ref().expect("it is named"))).await;
    let outbox = reported(&hub, "the new one is held", |outbox| outbox.len() == 1).await;
    assert_eq!((outbox[0].uid.as_str(), outbox[0].result), ("uid-new", OutboxResult::Held));
}

#[tokio::test]
async fn leader_writes_no_outbox_until_it_stops_leading() {
    let hub = TestHub::start().await;
    hub.accounts.show(account("one"));
    let mut agent = hub.agent("a").await;
    let sent = agent.added().await;
    agent.answer(held(sent[0].account.as_ref().expect("it is named"))).await;
    eventually("the word is heard", || hub.hub.sessions("uid-one")[0].report.clone()).await;
    assert!(hub.objects.reports.lock().is_empty());
    hub.leadership.lose();
    let outbox = reported(&hub, "it is reported now", |outbox| !outbox.is_empty()).await;
    assert_eq!(results(&outbox), [OutboxResult::Held]);
}

#[tokio::test]
async fn outbox_reports_dropped_if_never_sent_and_failed_if_silent() {
    let settings = HubSettings {
        sessions: SessionSettings { operation_wait: 5, ..Default::default() },
        ..HubSettings::default()
    };
    let hub = TestHub::with(settings).await;
    hub.leadership.lose();
    hub.accounts.sync();
    let _agent = hub.agent("a").await;
    let revoking = with(account("one"), |status| {
        status.state = Some(State::Deactivating);
        status.epoch = GrantEpoch(2);
        status.grant.as_mut().expect("it has one").phase = GrantPhase::Revoking;
    });
    hub.accounts.show(revoking);
    let outbox = reported(&hub, "dropped is said for it", |outbox| outbox.len() == 1).await;
    assert_eq!((outbox[0].result, outbox[0].epoch.0), (OutboxResult::Dropped, 2));
    hub.accounts.show(account("two"));
    let mut agent = hub.agent("b").await;
    agent.added().await;
    (0..6).for_each(|_| hub.ticks.advance());
    let late = |outbox: &[OutboxEntry]| outbox.iter().any(|entry| entry.class.as_deref() == Some("Timeout"));
    reported(&hub, "it is overdue", late).await;
}

#[tokio::test]
async fn a_report_that_hangs_holds_up_none_of_another_session() {
    let hub = TestHub::start().await;
    hub.leadership.lose();
    hub.accounts.sync();
    hub.objects.hung.lock().insert("a".to_owned());
    let _agents = [hub.agent("a").await, hub.agent("b").await];
    let revoking = |name: &str| {
        with(account(name), |status| {
            status.state = Some(State::Deactivating);
            status.epoch = GrantEpoch(2);
            status.grant.as_mut().expect("it has one").phase = GrantPhase::Revoking;
        })
    };
    hub.accounts.show(revoking("one"));
    reported(&hub, "the other one says it", |outbox| outbox.len() == 1).await;
    hub.accounts.show(revoking("two"));
    reported(&hub, "and says more", |outbox| outbox.len() == 2).await;
    assert_eq!(*hub.objects.hangs.lock(), [1, 0], "and the first try is still under way");
}

#[tokio::test]
async fn outbox_has_one_offer_of_a_zone_and_then_the_next() {
    let hub = asked_about("one").await;
    let mut first = hub.agent("a").await;
    let probe = first.asked().await;
    first.offer(&probe, true).await;
    let outbox = reported(&hub, "it is reported", |outbox| !outbox.is_empty()).await;
    assert_eq!((results(&outbox), outbox[0].generation), (vec![OutboxResult::Offer], Some(1)));
    let mut second = hub.agent("b").await;
    let probe = second.asked().await;
    second.offer(&probe, true).await;
    eventually("it is heard", || {
        let yes = |fact: &SessionFact| fact.agent_id == "b" && fact.offer.is_some();
        hub.hub.sessions("uid-one").iter().any(yes).then_some(())
    })
    .await;
    let written = hub.objects.reports.lock().len();
    first.frames = None;
    eventually("the other one speaks for the zone", || {
        let reports = hub.objects.reports.lock();
        (reports.len() > written && results(&reports[written]) == [OutboxResult::Offer]).then_some(())
    })
    .await;
    assert_eq!(written, 1, "one of a zone is enough");
}

#[tokio::test]
async fn an_offer_that_is_taken_back_while_the_account_asks_does_not_stand() {
    let hub = asked_about("one").await;
    let mut agent = hub.agent("a").await;
    let probe = agent.asked().await;
    agent.offer(&probe, true).await;
    reported(&hub, "it is reported", |outbox| !outbox.is_empty()).await;
    // FAILED ZoneAmbiguous, and asking again, before anybody has looked.
    let again = with(hub.accounts.by_uid("uid-one").expect("it is there").as_ref().clone(), |status| {
        status.retry_handled = Some("now".into());
    });
    hub.accounts.show(again);
    reported(&hub, "it is taken back", <[OutboxEntry]>::is_empty).await;
    let probe = agent.asked().await;
    agent.offer(&probe, false).await;
    eventually("the answer is heard", || {
        hub.hub.sessions("uid-one").iter().any(|fact| fact.offer.is_some()).then_some(())
    })
    .await;
    assert_eq!(hub.objects.reports.lock().len(), 2, "a no is not said");
}

#[tokio::test]
async fn an_offer_of_an_agent_that_drains_is_taken_back() {
    let hub = asked_about("one").await;
    let mut agent = hub.agent("a").await;
    let probe = agent.asked().await;
    agent.offer(&probe, true).await;
    reported(&hub, "it is reported", |outbox| !outbox.is_empty()).await;
    agent.say(ops::agent_frame::Frame::Draining(ops::Draining::default())).await;
    reported(&hub, "it is taken back", <[OutboxEntry]>::is_empty).await;
}

#[tokio::test]
async fn agent_with_withdrawn_approval_still_answers_a_revoke() {
    let hub = TestHub::start().await;
    hub.leadership.lose();
    hub.accounts.sync();
    *hub.objects.approve.lock() = false;
    *hub.objects.withdrawn.lock() = true;
    let mut agent = hub.greet(hello("a")).await;
    assert!(!agent.accepted().await.approved);
    hub.accounts.show(with(account("one"), |status| {
        status.state = Some(State::Deactivating);
        status.epoch = GrantEpoch(2);
        status.grant.as_mut().expect("it has one").phase = GrantPhase::Revoking;
    }));
    let outbox = reported(&hub, "dropped is said for it", |outbox| outbox.len() == 1).await;
    assert_eq!((outbox[0].result, outbox[0].epoch.0), (OutboxResult::Dropped, 2));
}

#[tokio::test]
async fn the_list_is_written_before_its_accounts_are_created() {
    let hub = TestHub::start().await;
    hub.leadership.lose();
    hub.accounts.sync();
    let agent = hub.agent("a").await;
    let listed = ops::AccountSpec {
        account: Some(kubesvc_core::wire::common::AccountRef { name: "own".into(), ..Default::default() }),
        credential: Some(ops::account_spec::Credential::ServiceAccount(true)),
        ..Default::default()
    };
    let list = ops::StaticAccounts { accounts: vec![listed], complete: true };
    *hub.objects.tells.lock() = false;
    agent.say(ops::agent_frame::Frame::StaticAccounts(list)).await;
    eventually("it was tried", || hub.objects.notes.lock().first().cloned()).await;
    assert!(hub.made.there.lock().is_empty());
    *hub.objects.tells.lock() = true;
    eventually("it is made", || hub.made.get_now("own")).await;
    let digests = Some(vec![kubesvc_core::object_names::digest("own")]);
    assert_eq!(hub.objects.notes.lock().last().and_then(|note| note.static_accounts.clone()), digests);
}

#[tokio::test]
async fn a_stream_that_another_replica_took_over_is_closed() {
    let hub = TestHub::start().await;
    let mut agent = hub.agent("a").await;
    hub.show_agent("a", true, "another", 9);
    hub.show_agent("b", true, "x", 99);
    eventually("older news are no news", || hub.agents.get("b")).await;
    hub.show_agent("a", true, "another", 11);
    let ended = agent.next().await.expect_err("the stream is cut");
    assert_eq!(ended.code(), tonic::Code::Aborted);
}

#[tokio::test]
async fn superseded_session_stops_counting_once_objects_are_read() {
    let hub = TestHub::start().await;
    hub.accounts.show(account("one"));
    let _agent = hub.agent("a").await;
    assert_eq!(hub.hub.sessions("uid-one").len(), 1);
    // From here on nothing else runs: it is not closed yet.
    hub.agents.seen(agent_object_in("a", "z", "r-1", 9));
    hub.hub.catch_up(&"z".into());
    assert_eq!(hub.hub.sessions("uid-one").len(), 1, "older news are no news");
    hub.agents.seen(agent_object_in("a", "z", "r-1", 11));
    hub.hub.catch_up(&"z".into());
    assert_eq!(hub.hub.sessions("uid-one"), []);
}

#[tokio::test]
async fn stream_closes_when_another_one_is_in_force() {
    let hub = TestHub::start().await;
    hub.leadership.lose();
    *hub.objects.in_force.lock() = OutboxWrite::Superseded;
    hub.accounts.show(account("one"));
    let mut agent = hub.agent("a").await;
    let sent = agent.added().await;
    agent.answer(held(sent[0].account.as_ref().expect("it is named"))).await;
    agent.next().await.expect_err("the stream is cut");
}

#[tokio::test]
async fn where_others_may_lead_an_account_is_read_before_it_is_sent() {
    let hub = TestHub::with(HubSettings {
        sessions: SessionSettings { clustered: true, ..Default::default() },
        ..HubSettings::default()
    })
    .await;
    let granted = account("one");
    let revoked = with(account("one"), |status| {
        status.epoch = GrantEpoch(2);
        status.grant.as_mut().expect("it has one").phase = GrantPhase::Revoking;
    });
    hub.made.there.lock().insert("one".into(), revoked);
    hub.made.there.lock().insert("two".into(), account("two"));
    hub.accounts.show(granted);
    hub.accounts.show(account("two"));
    let mut agent = hub.agent("a").await;
    let sent = agent.added().await;
    let names: Vec<_> =
        sent.iter().filter_map(|spec| spec.account.as_ref()).map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["two"], "the watch lags behind for the other one");
}

#[tokio::test]
async fn account_written_after_registration_is_sent_without_another_read() {
    let hub = TestHub::with(HubSettings {
        sessions: SessionSettings { clustered: true, ..Default::default() },
        ..HubSettings::default()
    })
    .await;
    let mut agent = hub.agent("a").await;
    let version = |name: &str, version: u64| {
        let mut account = account(name);
        account.metadata.resource_version = Some(version.to_string());
        account
    };
    // Neither is there any more, for who reads it. The agent's object has version 10.
    hub.accounts.show(version("before", 9));
    hub.accounts.show(version("after", 11));
    let sent = agent.added().await;
    let names: Vec<_> =
        sent.iter().filter_map(|spec| spec.account.as_ref()).map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["after"]);
}

#[tokio::test]
async fn a_credential_mismatch_is_reported_to_the_leader() {
    let hub = TestHub::start().await;
    hub.leadership.lose();
    hub.credentials.answers.lock().insert("one".into(), Ok(kubeconfig("v2", 16)));
    hub.accounts.show(with(account("one"), |status| status.state = Some(State::Active)));
    let mut agent = hub.agent("a").await;
    let outbox = reported(&hub, "it is told", |outbox| !outbox.is_empty()).await;
    assert_eq!(outbox[0].is_credential_mismatch(), Some(GrantEpoch(1)), "{outbox:?}");
    assert_eq!(outbox[0].report(), None, "it has not failed");
    hub.accounts.show(with(account("one"), |status| status.credential_version = Some("v2".into())));
    assert_eq!(
        agent.added().await[0].account.as_ref().map(|one| one.epoch),
        Some(1),
        "that was all it waited for"
    );
}
