//! Accounts of agents' own files: from frames to objects, and what the leader and the agent hear of them.

use crate::connected_agents::ConnectedAgents;
use crate::hub::tests::support::*;
use crate::hub::{HubSettings, StaticAccountSettings};
use crate::informers::AccountKey;
use kubesvc_core::lifecycle::{Fact, Presence, SessionFact};
use kubesvc_core::wire::common::{self, failure::Class};
use kubesvc_core::wire::ops::account_spec::Credential;
use kubesvc_core::wire::ops::{self, agent_frame, hub_frame};
use kubesvc_core::{KubesvcAccount, ORIGIN_LABEL, ZoneId, object_names};

fn entry(name: &str) -> ops::AccountSpec {
    ops::AccountSpec {
        account: Some(common::AccountRef { name: name.into(), ..Default::default() }),
        credential: Some(Credential::File("/kubeconfigs/one".into())),
        ..Default::default()
    }
}

impl TestAgent {
    async fn list(&self, accounts: Vec<ops::AccountSpec>, complete: bool) {
        let list = ops::StaticAccounts { accounts, complete };
        self.say(agent_frame::Frame::StaticAccounts(list)).await;
    }

    async fn list_names(&self, names: &[&str]) {
        self.list(names.iter().map(|name| entry(name)).collect(), true).await;
    }

    /// The next answers, so many.
    async fn answers_to(&mut self, count: usize) -> Vec<ops::StaticAnswer> {
        let mut answered = Vec::new();
        while answered.len() < count {
            match self.next().await {
                Ok(Some(hub_frame::Frame::StaticAnswers(answers))) => answered.extend(answers.answers),
                other => panic!("expected StaticAnswers, got {other:?}"),
            }
        }
        assert_eq!(answered.len(), count);
        answered
    }

    /// Name, class and message of the next answer.
    async fn answered(&mut self) -> (String, Class, String) {
        let answer = self.answers_to(1).await.remove(0);
        let failure = answer.failure.expect("a reason");
        (answer.name, failure.class(), failure.message)
    }
}

async fn synced() -> TestHub {
    let hub = TestHub::start().await;
    hub.accounts.sync();
    hub
}

async fn object(hub: &TestHub, name: &str) -> KubesvcAccount {
    eventually("the object is made", || hub.made.get_now(&object_names::object_name(name))).await
}

/// The object as a watch would show it.
async fn shown(hub: &TestHub, name: &str) -> KubesvcAccount {
    let object = object(hub, name).await;
    hub.accounts.show(object.clone());
    object
}

async fn fact(hub: &TestHub, uid: &str, is: impl Fn(&SessionFact) -> bool) -> SessionFact {
    eventually("the session says it", || hub.hub.sessions(uid).into_iter().find(|fact| is(fact))).await
}

#[tokio::test]
async fn a_list_becomes_objects_of_the_agents_zone() {
    let hub = synced().await;
    let agent = hub.agent("a").await;
    agent.list(vec![entry("one")], false).await;
    agent.list(vec![entry("Prod East")], true).await;
    let one = object(&hub, "one").await;
    assert_eq!(one.label(ORIGIN_LABEL), Some("agent"));
    assert_eq!(one.metadata.namespace.as_deref(), Some("ns"));
    assert_eq!(one.spec.zone_id.as_ref().map(ZoneId::as_str), Some("z"));
    assert_eq!(one.spec.kubeconfig.file.as_deref(), Some("/kubeconfigs/one"));
    assert_eq!(object(&hub, "Prod East").await.account_name(), "Prod East");
}

#[tokio::test]
async fn leader_knows_the_list_only_when_it_is_complete() {
    let hub = synced().await;
    let agent = hub.agent("a").await;
    agent.list(vec![entry("one")], true).await;
    let uid = shown(&hub, "one").await.uid().to_owned();
    fact(&hub, &uid, |fact| fact.lists == Fact::Known(true)).await;
    let mut other = hub.agent("b").await;
    assert_eq!(fact(&hub, &uid, |fact| fact.agent_id == "b").await.lists, Fact::Unknown);
    other.list(vec![entry("two")], false).await;
    other.list(vec![entry("")], false).await;
    eventually("the index has settled", || hub.leader.try_take(100).is_empty().then_some(())).await;
    other.list(Vec::new(), true).await;
    assert_eq!(other.answered().await.0, "");
    fact(&hub, &uid, |fact| fact.agent_id == "b" && fact.lists == Fact::Known(false)).await;
    eventually("the leader is woken", || hub.leader.try_take(100).contains(&uid).then_some(())).await;
    hub.leader.try_take(100);
    agent.list(Vec::new(), true).await;
    fact(&hub, &uid, |fact| fact.agent_id == "a" && fact.lists == Fact::Known(false)).await;
    eventually("the leader is woken", || hub.leader.try_take(100).contains(&uid).then_some(())).await;
}

#[tokio::test]
async fn an_object_follows_the_file_and_one_that_fits_is_not_written() {
    let hub = synced().await;
    let agent = hub.agent("a").await;
    agent.list_names(&["one"]).await;
    shown(&hub, "one").await;
    agent.list_names(&["one"]).await;
    agent.list(vec![ops::AccountSpec { metrics: true, ..entry("one") }], true).await;
    eventually("it is changed", || {
        hub.made.get_now("one").filter(|object| object.spec.metrics == Some(true))
    })
    .await;
    assert_eq!(hub.made.log.lock().as_slice(), ["create one", "replace one"]);
}

#[tokio::test]
async fn an_agent_that_lists_nothing_costs_no_task_beside_its_session() {
    let hub = synced().await;
    let agent = hub.agent("a").await;
    agent.list_names(&["one"]).await;
    object(&hub, "one").await;
    let with_one = hub.hub.context.tasks.len();
    agent.list(Vec::new(), true).await;
    eventually("the task ends", || (hub.hub.context.tasks.len() < with_one).then_some(())).await;
}

#[tokio::test]
async fn an_object_that_the_index_does_not_know_yet_is_found_and_kept() {
    let hub = synced().await;
    let agent = hub.agent("a").await;
    agent.list_names(&["one"]).await;
    object(&hub, "one").await;
    agent.list(vec![ops::AccountSpec { metrics: true, ..entry("one") }], true).await;
    eventually("it is changed", || {
        hub.made.get_now("one").filter(|object| object.spec.metrics == Some(true))
    })
    .await;
    assert_eq!(hub.made.log.lock().as_slice(), ["create one", "create one", "replace one"]);
}

#[tokio::test]
async fn a_name_that_is_declared_is_answered_and_the_others_go_on() {
    let hub = synced().await;
    let mut declared = account("taken");
    declared.metadata.namespace = Some("team".into());
    hub.accounts.show(declared);
    let mut agent = hub.agent("a").await;
    agent.added().await;
    agent.list_names(&["taken", "one"]).await;
    let (name, class, why) = agent.answered().await;
    assert_eq!((name.as_str(), class), ("taken", Class::Conflict));
    assert!(why.contains("declared as KubesvcAccount team/taken"), "{why}");
    object(&hub, "one").await;
}

#[tokio::test]
async fn an_account_of_another_zones_agents_is_a_conflict() {
    let hub = synced().await;
    let first = hub.agent("a").await;
    first.list_names(&["one"]).await;
    let before = shown(&hub, "one").await;
    let mut other = hub.greet(ops::Hello { zone_id: "west".into(), ..hello("b") }).await;
    other.accepted().await;
    other.list_names(&["one"]).await;
    let (name, class, why) = other.answered().await;
    assert_eq!((name.as_str(), class), ("one", Class::Conflict));
    assert!(why.contains("\"z\""), "{why}");
    assert_eq!(hub.made.get_now("one"), Some(before));
}

#[tokio::test]
async fn bad_entries_are_answered_with_the_field_and_the_good_ones_go_on() {
    let hub = synced().await;
    let mut agent = hub.agent("a").await;
    let bad = |credential| ops::AccountSpec { credential: Some(credential), ..entry("bad") };
    let list = vec![
        bad(Credential::File("relative".into())),
        bad(Credential::Kubeconfig(b"t0ps3cret".into())),
        entry(&"x".repeat(300)),
        entry("good"),
        entry("good"),
    ];
    agent.list(list, true).await;
    let answers = agent.answers_to(4).await;
    for (answer, field) in answers.iter().zip(["absolute path", "kubeconfig", "name must have", "twice"]) {
        assert!(format!("{answer:?}").contains(field), "{answer:?}");
        assert!(!format!("{answer:?}").contains("t0ps3cret"), "{answer:?}");
    }
    object(&hub, "good").await;
    assert_eq!(hub.made.log.lock().as_slice(), ["create good"]);
}

#[tokio::test]
async fn a_list_over_the_bound_is_refused_as_a_whole_and_the_former_stays() {
    let hub = synced().await;
    let mut agent = hub.agent("a").await;
    agent.list_names(&["one"]).await;
    let uid = shown(&hub, "one").await.uid().to_owned();
    fact(&hub, &uid, |fact| fact.lists == Fact::Known(true)).await;
    for number in 0..100 {
        let accounts = (0..50).map(|entry_number| entry(&format!("a{number}-{entry_number}"))).collect();
        agent.list(accounts, false).await;
    }
    let refused = loop {
        match agent.next().await {
            Ok(Some(hub_frame::Frame::StaticAnswers(mut answers))) => break answers.answers.remove(0),
            Ok(Some(hub_frame::Frame::AddAccounts(_))) => {}
            other => panic!("expected an answer, got {other:?}"),
        }
    };
    let failure = refused.failure.expect("a reason");
    assert_eq!((refused.name.as_str(), failure.class()), ("", Class::TooLarge));
    assert!(failure.message.contains("more than 1000"), "{}", failure.message);
    let problem =
        || hub.hub.sessions.registry.of_id(&"a".into()).pop().and_then(|session| session.list_problem());
    assert_eq!(problem().map(|problem| problem.reason), Some("ListRefused"));
    agent.list(Vec::new(), true).await;
    agent.list_names(&["one", "two"]).await;
    object(&hub, "two").await;
    fact(&hub, &uid, |fact| fact.lists == Fact::Known(true)).await;
    assert_eq!(hub.made.there.lock().len(), 2, "nothing of the refused list was made");
    assert_eq!(problem(), None);
}

#[tokio::test]
async fn the_session_goes_on_while_the_api_server_is_away_and_the_objects_are_made_later() {
    let hub = synced().await;
    *hub.made.failing.lock() = 3;
    let mut agent = hub.agent("a").await;
    agent.list_names(&["one"]).await;
    hub.accounts.show(account("other"));
    assert_eq!(agent.added().await.len(), 1, "its other work is done meanwhile");
    object(&hub, "one").await;
    assert_eq!(*hub.made.failing.lock(), 0);
}

#[tokio::test]
async fn api_server_refusal_is_answered_with_its_reason() {
    let hub = synced().await;
    hub.made.refused.lock().push("one".into());
    let mut agent = hub.agent("a").await;
    agent.list_names(&["one"]).await;
    let (name, class, why) = agent.answered().await;
    assert_eq!((name.as_str(), class, why.as_str()), ("one", Class::BadReference, "one is invalid"));
}

#[tokio::test]
async fn an_agent_that_is_not_approved_makes_no_objects_until_it_is() {
    let hub = synced().await;
    *hub.objects.approve.lock() = false;
    let mut agent = hub.greet(hello("a")).await;
    agent.accepted().await;
    agent.list_names(&["one"]).await;
    let reason = crate::hub::metrics::ReasonLabel { reason: "never_approved" };
    eventually("the list is not heard", || {
        (hub.hub.context.metrics.ignored.get_or_create(&reason).get() == 1).then_some(())
    })
    .await;
    assert!(hub.made.log.lock().is_empty());
    hub.show_agent("a", true, "s", 10);
    let last = agent.next().await.expect("a last frame");
    assert_eq!(last, Some(hub_frame::Frame::Drain(ops::Drain::default())), "it is to say it anew");
    agent.next().await.expect_err("the stream ends");
    *hub.objects.approve.lock() = true;
    let mut agent = hub.greet(ops::Hello { connect_seq: 2, ..hello("a") }).await;
    agent.accepted().await;
    agent.list_names(&["one"]).await;
    object(&hub, "one").await;
}

#[tokio::test]
async fn a_namespace_that_is_not_watched_is_named() {
    let hub = TestHub::with(HubSettings {
        static_accounts: StaticAccountSettings { watched: false, ..Default::default() },
        ..HubSettings::default()
    })
    .await;
    hub.accounts.sync();
    let mut agent = hub.agent("a").await;
    agent.list_names(&["one"]).await;
    let (_, class, why) = agent.answered().await;
    assert!(class == Class::Conflict && why.contains("kubesvc.watchNamespaces"), "{why}");
}

#[tokio::test]
async fn agent_object_records_the_list_and_its_problems() {
    let hub = synced().await;
    hub.accounts.show(account("taken"));
    let agent = hub.agent("a").await;
    agent.list_names(&["taken", "one"]).await;
    let note = eventually("it is noted", || {
        hub.objects.notes.lock().iter().find(|note| note.problem.is_some()).cloned()
    })
    .await;
    let mut digests = vec![object_names::digest("taken"), object_names::digest("one")];
    digests.sort();
    assert_eq!(note.static_accounts, Some(digests));
    let (reason, message) = note.problem.expect("a problem");
    assert_eq!(reason, "AccountsRefused");
    assert!(message.starts_with("1 of 2 accounts") && message.contains("taken"), "{message}");
}

#[tokio::test]
async fn an_account_that_was_kept_and_is_deleted_is_made_once_more() {
    let hub = synced().await;
    let mut agent = hub.agent("a").await;
    agent.list_names(&["one"]).await;
    let made = object(&hub, "one").await;
    hub.accounts.show(with_grant(made.clone()));
    agent.added().await;
    hub.made.there.lock().clear();
    hub.accounts.hide(&AccountKey::of(&made));
    object(&hub, "one").await;
    assert_eq!(hub.made.log.lock().as_slice(), ["create one", "create one"]);
}

fn names_of(accounts: &[ops::AccountSpec]) -> Vec<&str> {
    accounts.iter().filter_map(|sent| sent.account.as_ref()).map(|account| account.name.as_str()).collect()
}

/// What is sent next to an agent is this account, though others were to be sent before it.
async fn is_sent_only(hub: &TestHub, agent: &mut TestAgent, name: &str) {
    hub.accounts.show(account(name));
    assert_eq!(names_of(&agent.added().await), [name]);
}

#[tokio::test]
async fn an_account_of_one_agents_file_is_sent_to_no_agent_that_does_not_list_it_itself() {
    let hub = synced().await;
    let (mut lister, mut other) = (hub.agent("a").await, hub.agent("b").await);
    other.list_names(&[]).await;
    lister.list_names(&["one"]).await;
    hub.accounts.show(with_grant(object(&hub, "one").await));
    assert_eq!(names_of(&lister.added().await), ["one"]);
    is_sent_only(&hub, &mut other, "two").await;
}

#[tokio::test]
async fn a_file_listed_by_an_unapproved_agent_is_not_opened_by_the_owner() {
    let hub = synced().await;
    let mut unlisted_fact = hub.agent("s").await;
    unlisted_fact.list(vec![ops::AccountSpec { insecure: true, ..entry("one") }], true).await;
    let granted = with_grant(object(&hub, "one").await);
    hub.accounts.show(with(granted, |status| status.cluster_uid = Some("aaaaaaaa-1111".into())));
    assert_eq!(names_of(&unlisted_fact.added().await), ["one"]);

    let mut honest = hub.agent("h").await;
    honest.list_names(&["one"]).await;
    let (name, class, why) = honest.answered().await;
    assert_eq!((name.as_str(), class), ("one", Class::Conflict));
    assert!(
        why.contains("another agent of zone \"z\"") && why.contains("bound to cluster aaaaaaaa"),
        "{why}"
    );
    is_sent_only(&hub, &mut honest, "two").await;
    assert_eq!(hub.made.get_now("one").and_then(|one| one.spec.insecure), Some(true), "the first stands");
}

#[tokio::test]
async fn an_agent_in_the_wrong_cluster_learns_where_the_account_is_bound() {
    let hub = synced().await;
    let own = Some(Credential::ServiceAccount(true));
    let list = vec![ops::AccountSpec { credential: own, ..entry("one") }];
    let mut first = hub.greet(ops::Hello { cluster_uid: "aaaaaaaa-1111".into(), ..hello("a") }).await;
    first.accepted().await;
    first.list(list.clone(), true).await;
    let granted = with_grant(object(&hub, "one").await);
    hub.accounts.show(with(granted, |status| status.cluster_uid = Some("aaaaaaaa-1111".into())));
    assert_eq!(names_of(&first.added().await), ["one"]);

    let mut second = hub.greet(ops::Hello { cluster_uid: "bbbbbbbb-2222".into(), ..hello("b") }).await;
    second.accepted().await;
    second.list(list, true).await;
    let (name, class, why) = second.answered().await;
    assert_eq!((name.as_str(), class), ("one", Class::Conflict));
    assert!(why.contains("bound to cluster aaaaaaaa") && why.contains("runs in cluster bbbbbbbb"), "{why}");
    eventually("the agent's object says so", || {
        let notes = hub.objects.notes.lock();
        let told = notes.iter().filter_map(|note| note.kept_from.as_ref());
        told.into_iter().any(|why| why.contains("cluster aaaaaaaa")).then_some(())
    })
    .await;
    is_sent_only(&hub, &mut second, "two").await;
}

#[tokio::test]
async fn list_of_a_forgotten_agent_is_kept_for_the_cleanup() {
    let hub = synced().await;
    let agent = hub.agent("a").await;
    agent.list_names(&["one"]).await;
    let one = shown(&hub, "one").await;
    let uid = one.uid().to_owned();
    fact(&hub, &uid, |fact| fact.lists == Fact::Known(true)).await;
    drop(agent);
    let is_away = |fact: &SessionFact| matches!(fact.presence, Presence::Away(_));
    fact(&hub, &uid, |fact| is_away(fact) && fact.lists == Fact::Known(true)).await;
    let forgotten = hub.hub.sessions.registry.forget(hub.ticks.now());
    assert_eq!(forgotten.len(), 1);
    forgotten
        .iter()
        .for_each(|(agent_id, zone, away)| hub.hub.agent_status.departed_agents.put(agent_id, zone, away));
    let facts = hub.hub.sessions(&uid);
    assert!(facts.len() == 1 && is_away(&facts[0]) && facts[0].lists == Fact::Known(true), "{facts:?}");
    hub.hub.agent_status.departed_agents.sweep(Some(hub.ticks.now()), |_, _| false);
    assert!(hub.hub.sessions(&uid).is_empty());

    // Of one that an earlier process of this replica had, its object tells.
    let mut told = agent_object_in("earlier", "z", "r-0", 5);
    let status = told.status.get_or_insert_default();
    status.connected = false;
    status.static_sources = Some(vec![object_names::source_digest("one", &one.spec)]);
    hub.agents.seen(told);
    let facts = hub.hub.sessions(&uid);
    assert!(facts.len() == 1 && is_away(&facts[0]) && facts[0].lists == Fact::Known(true), "{facts:?}");
}

/// The account with its zone's grant.
fn with_grant(mut object: KubesvcAccount) -> KubesvcAccount {
    object.metadata.generation = Some(1);
    object.status = account("granted").status;
    object.status.get_or_insert_default().credential_version = Some("v1".into());
    object
}
