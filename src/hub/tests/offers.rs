//! Accounts without a zone: who is asked, and what the leader sees of the answers.

use std::sync::Arc;

use crate::connected_agents::ConnectedAgents;
use crate::hub::tests::support::*;
use crate::hub::zone_probes::prober::ZoneProber;
use crate::secrets::{Credential, CredentialKind};
use kubesvc_core::failure::{Failure, FailureClass};
use kubesvc_core::lifecycle::{Offer, SessionFact};
use kubesvc_core::wire::common;
use kubesvc_core::wire::ops::probe::Target;
use kubesvc_core::wire::ops::{self, agent_frame, hub_frame};
use kubesvc_core::{AgentId, GrantPhase, KubesvcAccount, State};

const KUBECONFIG: &str = r#"{
  "current-context": "c",
  "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
  "clusters": [{"name": "c", "cluster": {"server": "https://cluster.example:6443", "tls-server-name": "inner"}}],
  "users": [{"name": "u", "user": {"token": "t0ps3cret"}}]
}"#;

/// An account that waits for a zone.
fn asking(name: &str) -> KubesvcAccount {
    with(account(name), |status| {
        status.state = Some(State::ToMigrate);
        status.grant = None;
        status.zone_id = None;
    })
}

fn give_kubeconfig(hub: &TestHub, name: &str) {
    let kind = CredentialKind::Kubeconfig(KUBECONFIG.as_bytes().to_vec().into());
    let credential = Credential { kind, version: Some("v1".into()), same_as: Vec::new(), expiry: None };
    hub.credentials.answers.lock().insert(name.into(), Ok(credential));
}

pub(super) async fn hub_with(name: &str) -> TestHub {
    let hub = TestHub::start().await;
    give_kubeconfig(&hub, name);
    hub.accounts.sync();
    hub.accounts.show(asking(name));
    hub
}

async fn agent_in(hub: &TestHub, agent_id: &str, zone: &str) -> TestAgent {
    let mut agent = hub.greet(ops::Hello { zone_id: zone.into(), ..hello(agent_id) }).await;
    agent.accepted().await;
    agent
}

impl TestAgent {
    pub(super) async fn asked(&mut self) -> ops::Probe {
        match self.next().await {
            Ok(Some(hub_frame::Frame::Probe(probe))) => probe,
            other => panic!("expected Probe, got {other:?}"),
        }
    }

    pub(super) async fn offer(&self, probe: &ops::Probe, ok: bool) {
        self.reply(probe.account.clone().expect("it is named"), ok).await;
    }

    async fn reply(&self, account: common::AccountRef, ok: bool) {
        let class = common::failure::Class::Unreachable.into();
        let failure = common::Failure { class, message: "no route".into(), ..Default::default() };
        let failure = (!ok).then_some(failure);
        let result = ops::ProbeResult { account: Some(account), ok, failure };
        self.say(agent_frame::Frame::ProbeResult(result)).await;
    }
}

fn offers(hub: &TestHub, uid: &str) -> Vec<(AgentId, Option<(i64, Offer)>)> {
    hub.hub.sessions(uid).into_iter().map(|fact| (fact.agent_id, fact.offer)).collect()
}

async fn offer_of(hub: &TestHub, agent_id: &str, is: impl Fn(&SessionFact) -> bool) {
    eventually("the leader sees the answer", || {
        hub.hub.sessions("uid-one").into_iter().find(|fact| fact.agent_id == agent_id && is(fact))
    })
    .await;
}

fn no() -> Offer {
    Offer::No(Failure::new(FailureClass::Unreachable, "no route"))
}

#[tokio::test]
async fn every_approved_agent_is_asked_and_its_answer_is_seen() {
    let hub = hub_with("one").await;
    let (mut east, mut west) = (agent_in(&hub, "e", "east").await, agent_in(&hub, "w", "west").await);
    let probe = east.asked().await;
    let other = west.asked().await;
    west.offer(&other, false).await;
    offer_of(&hub, "w", |fact| fact.offer == Some((1, no()))).await;
    hub.leader.try_take(100);
    east.offer(&probe, true).await;
    offer_of(&hub, "e", |fact| fact.offer == Some((1, Offer::Yes))).await;
    eventually("the leader is woken", || hub.leader.try_take(100).contains(&"uid-one".into()).then_some(()))
        .await;
    let shown = offers(&hub, "uid-one");
    assert_eq!(shown.iter().map(|(agent, _)| agent.as_str()).collect::<Vec<_>>(), ["e", "w"], "{shown:?}");
}

#[tokio::test]
async fn a_probe_says_where_the_cluster_is_and_holds_no_credential() {
    let hub = hub_with("one").await;
    let mut agent = hub.agent("a").await;
    let probe = agent.asked().await;
    let reference = probe.account.clone().expect("it is named");
    assert_eq!((reference.uid.as_str(), reference.generation, reference.epoch), ("uid-one", 1, 1));
    let Some(Target::Cluster(cluster)) = &probe.target else { panic!("expected a cluster, got {probe:?}") };
    assert_eq!(cluster.server, "https://cluster.example:6443/");
    assert_eq!(cluster.tls_server_name, "inner");
    assert!(!format!("{probe:?}").contains("t0ps3cret"));
}

#[tokio::test]
async fn files_and_service_accounts_are_asked_for_as_such() {
    let hub = TestHub::start().await;
    hub.accounts.sync();
    for (name, kind, target) in [
        ("one", CredentialKind::File("/k/one".into()), Target::File("/k/one".into())),
        ("two", CredentialKind::ServiceAccount, Target::ServiceAccount(true)),
    ] {
        hub.credentials
            .answers
            .lock()
            .insert(name.into(), Ok(Credential { kind, version: None, same_as: Vec::new(), expiry: None }));
        hub.accounts.show(asking(name));
        let mut agent = hub.agent(&format!("agent-{name}")).await;
        let asked = [agent.asked().await, if name == "two" { agent.asked().await } else { continue }];
        assert!(asked.iter().any(|probe| probe.target.as_ref() == Some(&target)), "{asked:?}");
    }
}

#[tokio::test]
async fn an_answer_that_was_given_is_not_asked_for_again_until_the_next_round() {
    let hub = hub_with("one").await;
    let mut agent = hub.agent("a").await;
    let probe = agent.asked().await;
    agent.offer(&probe, true).await;
    offer_of(&hub, "a", |fact| fact.offer.is_some()).await;
    hub.accounts.show(asking("one"));
    hub.accounts.show(with(asking("one"), |status| status.state = Some(State::Failed)));
    eventually("the answer is forgotten", || {
        offers(&hub, "uid-one").iter().all(|(_, offer)| offer.is_none()).then_some(())
    })
    .await;
    eventually("so has the session", || {
        let session = hub.hub.sessions.registry.of_id(&"a".into()).pop().expect("it is connected");
        session.zone_probes.lock().uids().is_empty().then_some(())
    })
    .await;
    hub.accounts.show(asking("one"));
    let probe = agent.asked().await;
    assert_eq!(probe.account.map(|account| account.uid), Some("uid-one".into()));
}

#[tokio::test]
async fn new_generation_is_probed_again_and_old_answers_do_not_count() {
    let hub = hub_with("one").await;
    let mut agent = hub.agent("a").await;
    let old = agent.asked().await;
    let mut changed = asking("one");
    changed.metadata.generation = Some(2);
    hub.accounts.show(changed);
    let new = agent.asked().await;
    assert_eq!(new.account.as_ref().map(|account| account.generation), Some(2));
    agent.offer(&old, true).await;
    agent.offer(&new, false).await;
    offer_of(&hub, "a", |fact| fact.offer == Some((2, no()))).await;
}

#[tokio::test]
async fn answer_to_a_round_that_ended_a_moment_ago_takes_no_answer_of_the_new_round_away() {
    let hub = hub_with("one").await;
    let (mut east, mut west) = (agent_in(&hub, "e", "east").await, agent_in(&hub, "w", "west").await);
    let old = east.asked().await;
    west.asked().await;
    let session = hub.hub.sessions.registry.of_id(&"e".into()).pop().expect("it is connected");
    let mut prober = ZoneProber::new(Arc::clone(&hub.hub.zone_probes), session);
    let mut changed = asking("one");
    changed.metadata.generation = Some(2);
    hub.accounts.show(changed);
    // Its session has not looked at the account since then.
    let late = ops::ProbeResult { account: old.account, ok: true, failure: None };
    assert_eq!(prober.record_answer(late), Err(("late", "uid-one".to_owned())));
    let (to_east, to_west) = (east.asked().await, west.asked().await);
    west.offer(&to_west, true).await;
    offer_of(&hub, "w", |fact| fact.offer == Some((2, Offer::Yes))).await;
    east.offer(&to_east, false).await;
    offer_of(&hub, "e", |fact| fact.offer == Some((2, no()))).await;
}

#[tokio::test]
async fn unrequested_probe_answers_are_counted_and_ignored() {
    let hub = hub_with("one").await;
    let mut agent = hub.agent("a").await;
    let asked = agent.asked().await.account.expect("it is named");
    let wrong = [
        common::AccountRef { uid: "never".into(), ..asked.clone() },
        common::AccountRef { generation: 7, ..asked.clone() },
        common::AccountRef { epoch: 7, ..asked.clone() },
        common::AccountRef { generation: u64::MAX, ..asked.clone() },
        common::AccountRef::default(),
    ];
    for account in wrong {
        agent.reply(account, true).await;
    }
    agent.say(agent_frame::Frame::ProbeResult(ops::ProbeResult::default())).await;
    agent.reply(asked, false).await;
    offer_of(&hub, "a", |fact| fact.offer == Some((1, no()))).await;
    let ignored = |reason| {
        hub.hub.context.metrics.ignored.get_or_create(&crate::hub::metrics::ReasonLabel { reason }).get()
    };
    assert_eq!((ignored("never_asked"), ignored("malformed_answer")), (3, 3));
}

#[tokio::test]
async fn refusal_of_an_unknown_class_counts_as_no() {
    let hub = hub_with("one").await;
    let mut agent = hub.agent("a").await;
    let account = agent.asked().await.account;
    let failure = Some(common::Failure { class: 999, ..Default::default() });
    agent.say(agent_frame::Frame::ProbeResult(ops::ProbeResult { account, ok: false, failure })).await;
    offer_of(&hub, "a", |fact| {
        matches!(&fact.offer, Some((1, Offer::No(failure))) if failure.class == FailureClass::Internal)
    })
    .await;
}

#[tokio::test]
async fn a_credential_that_cannot_be_read_is_not_asked_about() {
    let hub = TestHub::start().await;
    let failure = Failure::new(FailureClass::CredentialMissing, "no Secret one");
    hub.credentials.answers.lock().insert("one".into(), Err(failure));
    give_kubeconfig(&hub, "two");
    hub.accounts.sync();
    hub.accounts.show(asking("one"));
    let mut agent = hub.agent("a").await;
    hub.accounts.show(asking("two"));
    assert_eq!(agent.asked().await.account.map(|account| account.uid), Some("uid-two".into()));
    assert_eq!(offers(&hub, "uid-one"), [("a".into(), None)]);
}

#[tokio::test]
async fn an_account_that_has_a_zone_is_not_asked_about() {
    let hub = hub_with("one").await;
    let mut agent = hub.agent("a").await;
    agent.asked().await;
    let mut pinned = asking("two");
    pinned.spec.zone_id = Some("z".into());
    hub.accounts.show(pinned);
    hub.accounts.show(account("three"));
    assert_eq!(agent.added().await.len(), 1, "no probe comes before it");
    hub.accounts.show(with(account("three"), |status| {
        status.grant.as_mut().expect("granted").phase = GrantPhase::Revoking;
        status.state = Some(State::ToMigrate);
    }));
    agent.deleted().await;
}

#[tokio::test]
async fn an_offer_goes_with_its_agent() {
    let hub = hub_with("one").await;
    let mut agent = hub.agent("a").await;
    let probe = agent.asked().await;
    agent.offer(&probe, true).await;
    offer_of(&hub, "a", |fact| fact.offer.is_some()).await;
    hub.leader.try_take(100);
    agent.frames = None;
    eventually("the leader is woken", || hub.leader.try_take(100).contains(&"uid-one".into()).then_some(()))
        .await;
    eventually("nobody offers", || offers(&hub, "uid-one").is_empty().then_some(())).await;
}

#[tokio::test]
async fn an_agent_is_asked_once_it_is_approved() {
    let hub = hub_with("one").await;
    *hub.objects.approve.lock() = false;
    let mut agent = hub.greet(hello("a")).await;
    agent.accepted().await;
    assert!(offers(&hub, "uid-one").is_empty());
    hub.show_agent("a", true, "s", 10);
    agent.asked().await;
}

#[tokio::test]
async fn the_leader_sees_the_offering_sessions_among_any_number_of_others() {
    let hub = hub_with("one").await;
    let mut agents = Vec::new();
    for number in 0..20 {
        let mut agent = agent_in(&hub, &format!("a{number:02}"), "z").await;
        let probe = agent.asked().await;
        agents.push((agent, probe));
    }
    assert_eq!(offers(&hub, "uid-one").len(), 16, "of a zone some will do");
    for (agent, probe) in &agents[..19] {
        agent.offer(probe, false).await;
    }
    eventually("one is still to answer", || {
        let open = offers(&hub, "uid-one").iter().filter(|(_, offer)| offer.is_none()).count();
        (open == 1).then_some(())
    })
    .await;
    let (last, probe) = &agents[19];
    last.offer(probe, true).await;
    eventually("it comes first", || {
        let shown = offers(&hub, "uid-one");
        (shown.len() == 17 && shown[0] == ("a19".into(), Some((1, Offer::Yes)))).then_some(())
    })
    .await;
}
