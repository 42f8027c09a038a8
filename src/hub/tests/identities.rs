//! Agents with identities: who is let in, what each may be given, and how it is taken back.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use secrecy::{ExposeSecret as _, SecretString};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request};

use crate::agent_tokens::{AgentTokens, TokenError};
use crate::connected_agents::ConnectedAgents as _;
use crate::hub::metrics::ReasonLabel;
use crate::hub::tests::support::*;
use crate::hub::{AgentIdentities, IdentityMode, IdentityObjects};
use crate::informers::IdentityIndex;
use kubesvc_core::agent_resource::SessionEnd;
use kubesvc_core::identity::{KubesvcIdentity, TokenFacts, TokenHolder};
use kubesvc_core::wire::ops::refused::Reason;
use kubesvc_core::wire::ops::{self, Begin, agent_frame, hub_frame, request_up};
use kubesvc_runtime::grpc::events::caching_client::CachingClient;
use kubesvc_runtime::grpc::ops::operations_client::OperationsClient;

/// Tokens whose text says what they are: `sa:NAMESPACE:NAME:EXPIRES`, `bad` or `away`.
#[derive(Default)]
struct SpokenTokens;

#[async_trait::async_trait]
impl AgentTokens for SpokenTokens {
    async fn verify(&self, token: &SecretString) -> Result<TokenFacts, TokenError> {
        let parts: Vec<_> = token.expose_secret().split(':').collect();
        match parts.as_slice() {
            ["sa", namespace, name, expires] => {
                let holder = TokenHolder::ServiceAccount {
                    namespace: (*namespace).to_owned(),
                    name: (*name).to_owned(),
                };
                let expires = expires.parse().ok();
                Ok(TokenFacts { holder, id: None, issued_at: Some(1_000), expires })
            }
            ["away"] => Err(TokenError::Unavailable("nobody can be asked".into())),
            _ => Err(TokenError::Invalid("it is no token of this test".into())),
        }
    }
}

struct NoIdentityObjects;

#[async_trait::async_trait]
impl IdentityObjects for NoIdentityObjects {
    async fn write_status(&self, _: &KubesvcIdentity) -> Result<(), String> {
        Ok(())
    }
}

fn identity(name: &str, namespace: &str, change: &serde_json::Value) -> KubesvcIdentity {
    let mut object = serde_json::json!({
        "apiVersion": "kubesvc.io/v1alpha1", "kind": "KubesvcIdentity", "metadata": {"name": name},
        "spec": {
            "match": {"serviceAccount": {"namespace": namespace, "name": "agent"}},
            "allow": {"zones": ["z"], "agentIds": ["a*"]},
        },
    });
    let spec = object["spec"].as_object_mut().expect("an object");
    let change = change.as_object().expect("an object").clone();
    for (key, value) in change {
        spec.insert(key, value);
    }
    serde_json::from_value(object).expect("an identity")
}

fn allow(more: &serde_json::Value) -> serde_json::Value {
    let mut allow = serde_json::json!({"zones": ["z"], "agentIds": ["a*"]});
    allow.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    serde_json::json!({ "allow": allow })
}

/// A hub that knows the identities `east` and `west`, of the service accounts of these namespaces.
async fn hub(mode: IdentityMode) -> (TestHub, Arc<IdentityIndex>) {
    let index = Arc::<IdentityIndex>::default();
    index.put(identity("east", "east", &serde_json::json!({})));
    index.put(identity("west", "west", &serde_json::json!({})));
    index.listed(&HashSet::from(["east".to_owned(), "west".to_owned()]));
    // What the watch does.
    let beating = Arc::clone(&index);
    tokio::spawn(async move {
        loop {
            beating.beat();
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    });
    let identities = AgentIdentities {
        mode,
        index: Arc::clone(&index),
        tokens: Arc::new(SpokenTokens),
        objects: Arc::new(NoIdentityObjects),
    };
    let hub = TestHub::with_identities(identities).await;
    hub.accounts.sync();
    (hub, index)
}

const EAST: &str = "Bearer sa:east:agent:never";

/// Opens a stream with these values of `authorization`, and sends Hello.
async fn greet(hub: &TestHub, shown: &[&str], hello: ops::Hello) -> Result<TestAgent, tonic::Status> {
    let mut client = OperationsClient::new(hub.channel().await);
    let (frames, outgoing) = tokio::sync::mpsc::channel(16);
    let mut request = Request::new(ReceiverStream::new(outgoing));
    for value in shown {
        request.metadata_mut().append("authorization", value.parse().expect("a value"));
    }
    let first = ops::AgentFrame { frame: Some(agent_frame::Frame::Hello(hello)), seq: 1, ack: 0 };
    frames.send(first).await.expect("there is room");
    let answers = client.get_ops(request).await?.into_inner();
    Ok(TestAgent { frames: Some(frames), answers })
}

async fn accepted(hub: &TestHub, agent_id: &str) -> (TestAgent, ops::Accepted) {
    let capabilities = vec!["reauth/1".to_owned(), "requests/1".to_owned()];
    let hello = ops::Hello { capabilities, ..hello(agent_id) };
    let mut agent = greet(hub, &[EAST], hello).await.expect("it is let in");
    let accepted = agent.accepted().await;
    (agent, accepted)
}

fn count(family: &Family<ReasonLabel, Counter>, reason: &'static str) -> u64 {
    family.get_or_create(&ReasonLabel { reason }).get()
}

#[tokio::test]
async fn who_shows_no_valid_credential_or_is_not_admitted_gets_no_session() {
    let (hub, index) = hub(IdentityMode::Bound).await;
    index.put(identity("held", "held", &serde_json::json!({"suspended": true})));
    index.put(identity("west-too", "west", &serde_json::json!({})));
    for (shown, code) in [
        (&[][..], Code::Unauthenticated),
        (&["Bearer bad"], Code::Unauthenticated),
        (&["Basic sa:east:agent:never"], Code::Unauthenticated),
        (&[EAST, EAST], Code::Unauthenticated),
        (&["Bearer sa:east:agent:1000"], Code::Unauthenticated),
        (&["Bearer away"], Code::Unavailable),
        (&["Bearer sa:held:agent:never"], Code::PermissionDenied),
        (&["Bearer sa:west:agent:never"], Code::PermissionDenied),
    ] {
        let refused = greet(&hub, shown, hello("a")).await.err().expect("it is not let in");
        assert_eq!(refused.code(), code, "{shown:?}");
        assert!(!refused.message().contains("suspended"), "the answer does not name the rule");
    }
    assert_eq!(hub.objects.log.lock().len(), 0, "nothing is written for them");

    let mut stranger =
        greet(&hub, &["Bearer sa:south:agent:never"], hello("a")).await.expect("it may say hello");
    let denied = stranger.next().await.expect_err("it gets no session");
    assert_eq!(denied.code(), Code::PermissionDenied);
    let shown = hub.objects.shown.lock().pop().expect("it is shown");
    let service_account =
        shown.credential.and_then(|credential| credential.service_account).expect("by its token");
    assert_eq!((service_account.namespace.as_str(), shown.agent_id.as_str()), ("south", "a"));
    assert!(shown.why.contains("no KubesvcIdentity matches"), "{}", shown.why);
}

#[tokio::test]
async fn an_agent_may_be_only_what_its_identity_allows_and_needs_no_approval() {
    let (hub, _) = hub(IdentityMode::Bound).await;
    *hub.objects.approve.lock() = false;
    for other in [ops::Hello { zone_id: "other".into(), ..hello("a") }, hello("b")] {
        let mut agent = greet(&hub, &[EAST], other).await.expect("it may say hello");
        assert_eq!(agent.refused().await.reason(), Reason::ZoneForbidden);
    }
    let (_agent, accepted) = accepted(&hub, "a").await;
    assert!(accepted.approved, "its identity is its approval");
    assert!(accepted.capabilities.contains(&"reauth/1".to_owned()));
    let identity = hub.objects.identities.lock().pop().flatten().expect("it is recorded");
    assert_eq!((identity.name.as_deref(), identity.binding.is_some()), (Some("east"), true));
    hub.show_agent("a", false, &accepted.session_id, 11);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(hub.hub.sessions.registry.of_id(&"a".into())[0].is_approved(), "spec.approved does not count");
}

#[tokio::test]
async fn an_agent_that_loses_its_identity_is_cut_and_not_waited_for() {
    for (change, removed) in [
        (serde_json::json!({"suspended": true}), false),
        (serde_json::json!({"revoked": {"issuedBefore": "2001-01-01T00:00:00Z"}}), false),
        (serde_json::json!({"allow": {"zones": ["other"]}}), false),
        (serde_json::json!({"match": {"serviceAccount": {"namespace": "x", "name": "y"}}}), false),
        (serde_json::json!({}), true),
    ] {
        let (hub, index) = hub(IdentityMode::Bound).await;
        hub.accounts.show(account("one"));
        let (mut agent, _) = accepted(&hub, "a").await;
        let sent = agent.added().await[0].account.clone().expect("it is named");
        agent.answer(held(&sent)).await;
        eventually("it holds the account", || {
            let session = hub.hub.sessions.registry.of_id(&"a".into()).pop()?;
            session.holds("uid-one").then_some(())
        })
        .await;
        // Another identity does not matter.
        index.put(identity("west", "west", &serde_json::json!({"suspended": true})));
        let since = std::time::Instant::now();
        if removed {
            index.listed(&HashSet::from(["west".to_owned()]));
        } else {
            index.put(identity("east", "east", &change));
        }
        let ended = agent.next().await.expect_err("its stream is cut");
        assert_eq!(ended.code(), Code::PermissionDenied, "{change}");
        assert!(since.elapsed() < Duration::from_secs(1), "{change}");
        eventually("its end is written", || {
            hub.objects.ends.lock().contains(&SessionEnd::Revoked).then_some(())
        })
        .await;
        let facts = hub.hub.sessions("uid-one");
        assert!(facts.is_empty(), "{change}: nothing waits for it: {facts:?}");
        let again = greet(&hub, &[EAST], hello("a")).await;
        let again = match again {
            Err(status) => status.code() == Code::PermissionDenied,
            Ok(mut agent) => match agent.next().await {
                Err(status) => status.code() == Code::PermissionDenied,
                Ok(frame) => matches!(frame, Some(hub_frame::Frame::Refused(_))),
            },
        };
        assert!(again, "{change}: it is not let in again");
    }
}

#[tokio::test]
async fn an_account_that_the_identity_does_not_allow_is_never_sent_and_dropped_once_it_is_not() {
    let (hub, index) = hub(IdentityMode::Bound).await;
    index.put(identity("east", "east", &allow(&serde_json::json!({"accounts": ["ns/one"]}))));
    hub.accounts.show(account("one"));
    hub.accounts.show(account("two"));
    let (mut agent, _) = accepted(&hub, "a").await;
    let added = agent.added().await;
    let names: Vec<_> = added.iter().filter_map(|spec| Some(spec.account.as_ref()?.name.clone())).collect();
    assert_eq!(names, ["one"]);
    let sent = added[0].account.clone().expect("it is named");
    agent.answer(held(&sent)).await;
    let session = hub.hub.sessions.registry.of_id(&"a".into()).pop().expect("it stands");
    let why = eventually("the leader learns why", || {
        let report = session.fact("uid-two", kubesvc_core::GrantEpoch(1), 0).report?;
        match report.1 {
            kubesvc_core::lifecycle::AgentReport::Failed(failure) => Some(failure),
            _ => None,
        }
    })
    .await;
    assert_eq!(why.class.reason(), "ZoneForbidden");
    assert!(
        why.message.contains("KubesvcIdentity east") && why.message.contains("ns/two"),
        "{}",
        why.message
    );
    eventually("the agent holds one and has not failed", || (session.counts() == (1, 0)).then_some(())).await;

    // The rights change while the session stands: what it may not hold any more is dropped.
    index.put(identity("east", "east", &allow(&serde_json::json!({"accounts": ["ns/other"]}))));
    assert_eq!(agent.deleted().await[0].name, "one");
    assert!(hub.hub.sessions.registry.is_connected(&session));
}

#[tokio::test]
async fn another_identity_does_not_take_a_session_over_by_the_id_of_its_process() {
    let (hub, index) = hub(IdentityMode::Bound).await;
    index.put(identity("west", "west", &allow(&serde_json::json!({}))));
    hub.accounts.show(account("one"));
    let (mut agent, _) = accepted(&hub, "a").await;
    let sent = agent.added().await[0].account.clone().expect("it is named");
    agent.answer(held(&sent)).await;
    let same_process = ops::Hello { connect_seq: 9, ..hello("a") };
    let mut other =
        greet(&hub, &["Bearer sa:west:agent:never"], same_process.clone()).await.expect("it is known");
    assert_eq!(other.refused().await.reason(), Reason::DuplicateAgentId);
    let session = hub.hub.sessions.registry.of_id(&"a".into()).pop().expect("it stands");
    assert_eq!(session.identity.name().as_deref(), Some("east"));
    let mut own = greet(&hub, &[EAST], same_process).await.expect("it is known");
    own.accepted().await;
}

#[tokio::test]
async fn another_holder_of_the_same_object_does_not_take_a_session_over_either() {
    let (hub, index) = hub(IdentityMode::Bound).await;
    let shared = serde_json::json!({"match": {"serviceAccount": {"namespace": "s*", "name": "agent"}}});
    index.put(identity("shared", "none", &shared));
    let first = "Bearer sa:s1:agent:4000000000";
    let capabilities = vec!["requests/1".to_owned()];
    let mut agent =
        greet(&hub, &[first], ops::Hello { capabilities, ..hello("a") }).await.expect("it is known");
    let accepted = agent.accepted().await;
    let same_process = ops::Hello { connect_seq: 9, ..hello("a") };
    let mut other =
        greet(&hub, &["Bearer sa:s2:agent:never"], same_process.clone()).await.expect("it is known");
    assert_eq!(other.refused().await.reason(), Reason::DuplicateAgentId);
    let session_id = accepted.session_id;
    let begin = Begin {
        session_id,
        agent_id: "a".into(),
        boot_id: BOOT_A.into(),
        replica_id: String::new(),
        apply: None,
    };
    let frame = ops::RequestUp { id: 0, frame: Some(request_up::Frame::Begin(begin)) };
    let mut client = OperationsClient::new(hub.channel().await);
    let mut request = Request::new(futures::stream::iter([frame]).chain(futures::stream::pending()));
    request.metadata_mut().insert("authorization", "Bearer sa:s2:agent:never".parse().expect("a value"));
    let mut answers = client.requests(request).await.expect("it is known").into_inner();
    let answer = answers.message().await.expect("an answer").and_then(|down| down.frame);
    assert!(matches!(answer, Some(ops::request_down::Frame::Refused(_))), "{answer:?}");
    // A renewed token of the same account is the same holder's.
    let mut renewed = greet(&hub, &["Bearer sa:s1:agent:never"], same_process).await.expect("it is known");
    renewed.accepted().await;
}

#[tokio::test]
async fn what_an_agent_says_of_an_account_that_its_identity_does_not_allow_counts_for_nothing() {
    let (hub, index) = hub(IdentityMode::Bound).await;
    index.put(identity("east", "east", &allow(&serde_json::json!({"accounts": ["ns/other"]}))));
    hub.accounts.show(account("one"));
    let claim = ops::HeldAccount {
        account: Some(kubesvc_core::wire::common::AccountRef {
            uid: "uid-one".into(),
            name: "one".into(),
            epoch: 1,
            ..Default::default()
        }),
        cluster_uid: "cluster".into(),
        ..Default::default()
    };
    let greeting = ops::Hello { accounts_held: vec![claim.clone()], ..hello("a") };
    let mut agent = greet(&hub, &[EAST], greeting).await.expect("it is let in");
    agent.accepted().await;
    let session = hub.hub.sessions.registry.of_id(&"a".into()).pop().expect("it stands");
    let dropped_account = agent.deleted().await.remove(0);
    assert_eq!(dropped_account.name, "one");
    let does_count = || session.holds_or_claims("uid-one") || session.holds("uid-one");
    assert!(!does_count(), "its claim");
    // It does not drop the account, and says again and again that it holds it.
    let failed_drop = ops::AccountResult { dropped: true, ..failed(&dropped_account) };
    for answer in [held(&dropped_account), failed_drop, held(&dropped_account), held(&dropped_account)] {
        agent.answer(answer).await;
    }
    agent.say(agent_frame::Frame::Heartbeat(ops::Heartbeat::default())).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!does_count(), "its answers");
    let report = session.fact("uid-one", kubesvc_core::GrantEpoch(1), 0).report;
    assert!(!matches!(report, Some((_, kubesvc_core::lifecycle::AgentReport::Held(_)))), "{report:?}");
    index.put(identity("east", "east", &serde_json::json!({})));
    let sent = agent.added().await[0].account.clone().expect("it is named");
    agent.answer(held(&sent)).await;
    eventually("it counts once it is allowed", || session.holds("uid-one").then_some(())).await;
}

#[tokio::test]
async fn a_further_stream_needs_the_identity_of_its_session() {
    let (hub, _) = hub(IdentityMode::Bound).await;
    let (_agent, accepted) = accepted(&hub, "a").await;
    let begin = Begin {
        session_id: accepted.session_id.clone(),
        agent_id: "a".into(),
        boot_id: BOOT_A.into(),
        replica_id: "r-0".into(),
        apply: None,
    };
    let open = |shown: &'static str| {
        let begin = begin.clone();
        let channel = hub.channel();
        async move {
            let mut client = OperationsClient::new(channel.await);
            let frame = ops::RequestUp { id: 0, frame: Some(request_up::Frame::Begin(begin)) };
            let mut request = Request::new(futures::stream::iter([frame]).chain(futures::stream::pending()));
            if !shown.is_empty() {
                request.metadata_mut().insert("authorization", shown.parse().expect("a value"));
            }
            let mut answers = client.requests(request).await?.into_inner();
            Ok::<_, tonic::Status>(answers.message().await?.and_then(|down| down.frame))
        }
    };
    assert_eq!(open("").await.expect_err("it shows nothing").code(), Code::Unauthenticated);
    let stranger = open("Bearer sa:south:agent:never").await.expect_err("nobody knows it");
    assert_eq!(stranger.code(), Code::PermissionDenied);
    match open("Bearer sa:west:agent:never").await.expect("it is known") {
        Some(ops::request_down::Frame::Refused(refused)) => {
            assert_eq!(refused.reason(), Reason::WrongReplica);
        }
        other => panic!("the session of another one is refused, not {other:?}"),
    }
    assert!(matches!(open(EAST).await, Ok(Some(ops::request_down::Frame::Ready(_)))));
    let mut caching = CachingClient::new(hub.channel().await);
    let nothing = caching.stream(futures::stream::pending()).await.expect_err("it shows nothing");
    assert!([Code::Unauthenticated, Code::Unimplemented].contains(&nothing.code()), "{nothing:?}");
}

#[tokio::test]
async fn a_session_takes_a_new_token_of_its_identity_and_ends_with_one_that_is_not_good() {
    let (hub, _) = hub(IdentityMode::Bound).await;
    let renewed =
        |token: &str| agent_frame::Frame::Reauthenticate(ops::Reauthenticate { token: token.into() });
    let (agent, _) = accepted(&hub, "a").await;
    let session = hub.hub.sessions.registry.of_id(&"a".into()).pop().expect("it stands");
    agent.say(renewed("sa:east:agent:4000000000")).await;
    eventually("the new one counts", || {
        (session.identity.get()?.credential.expires() == Some(4_000_000_000)).then_some(())
    })
    .await;
    agent.say(renewed("away")).await;
    agent.say(agent_frame::Frame::Heartbeat(ops::Heartbeat::default())).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(hub.hub.sessions.registry.is_connected(&session), "that nobody can be asked is no answer");
    let mut agent = agent;
    for other in ["bad", "sa:west:agent:never"] {
        agent.say(renewed(other)).await;
        let ended = agent.next().await.expect_err("its stream is cut");
        assert_eq!(ended.code(), Code::PermissionDenied, "{other}");
        agent = greet(&hub, &[EAST], ops::Hello { connect_seq: 9, ..hello("a") })
            .await
            .expect("it is let in again");
        agent.accepted().await;
    }
}

#[tokio::test]
async fn a_session_ends_when_its_credential_expires() {
    let (hub, _) = hub(IdentityMode::Bound).await;
    let expires = jiff::Timestamp::now().as_second() + 2;
    let token = format!("Bearer sa:east:agent:{expires}");
    let mut agent = greet(&hub, &[&token], hello("a")).await.expect("it is let in");
    agent.accepted().await;
    let ended = agent.next().await.expect_err("its stream is cut");
    assert_eq!(ended.code(), Code::Unauthenticated);
    assert!(jiff::Timestamp::now().as_second() >= expires);
}

#[tokio::test]
async fn who_speaks_of_accounts_that_it_was_never_sent_is_cut_at_the_tenth() {
    let (hub, _) = hub(IdentityMode::Bound).await;
    let (mut agent, _) = accepted(&hub, "a").await;
    let foreign = kubesvc_core::wire::common::AccountRef {
        uid: "other".into(),
        name: "other".into(),
        epoch: 1,
        ..Default::default()
    };
    for _ in 0..9 {
        agent.answer(dropped(&foreign)).await;
    }
    eventually("they are counted", || {
        (count(&hub.hub.context.metrics.ignored, "never_sent") == 9).then_some(())
    })
    .await;
    assert_eq!(hub.hub.sessions.registry.connected().len(), 1);
    agent.answer(dropped(&foreign)).await;
    assert!(agent.next().await.is_err(), "the tenth cuts it");
}

#[tokio::test]
async fn in_mode_log_everybody_is_let_in_and_what_would_be_refused_is_counted() {
    let (hub, index) = hub(IdentityMode::Log).await;
    let mut stay = Vec::new();
    let would = |reason| count(&hub.hub.context.metrics.would_refuse, reason);
    for (number, (shown, reason)) in [
        ("", "no_credential"),
        ("Bearer bad", "invalid_credential"),
        ("Bearer sa:south:agent:never", "unknown"),
    ]
    .into_iter()
    .enumerate()
    {
        let shown: &[&str] = if shown.is_empty() { &[] } else { &[shown] };
        let mut agent = greet(&hub, shown, hello(&format!("b{number}"))).await.expect("it is let in");
        agent.accepted().await;
        assert_eq!(would(reason), 1, "{reason}");
        stay.push(agent);
    }
    let mut agent = greet(&hub, &[EAST], hello("b")).await.expect("it is let in");
    agent.accepted().await;
    assert_eq!(would("claim"), 1, "its id is none that the identity allows");
    index.put(identity("east", "east", &serde_json::json!({"suspended": true})));
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(hub.hub.sessions.registry.connected().len(), 4, "nobody is cut");
    // Also where the objects cannot be listed: nobody waits for them.
    index.went_stale();
    let begun = std::time::Instant::now();
    let mut agent = greet(&hub, &[EAST], hello("c")).await.expect("it is let in");
    agent.accepted().await;
    assert!(would("identities_unknown") == 1 && begun.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn frames_are_not_heard_while_the_identities_may_be_old() {
    let (hub, index) = hub(IdentityMode::Bound).await;
    hub.accounts.show(account("one"));
    let (mut agent, _) = accepted(&hub, "a").await;
    let sent = agent.added().await[0].account.clone().expect("it is named");
    index.went_stale();
    agent.answer(held(&sent)).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let session = hub.hub.sessions.registry.of_id(&"a".into()).pop().expect("it stands");
    assert!(!session.holds("uid-one"), "its identity may be gone");
    index.listed(&HashSet::from(["east".to_owned(), "west".to_owned()]));
    eventually("its answer is heard", || session.holds("uid-one").then_some(())).await;
}
