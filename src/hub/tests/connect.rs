//! Who may stay, and how streams begin and end.

use std::sync::Arc;
use std::time::Duration;

use tonic::Code;

use crate::connected_agents::ConnectedAgents;
use crate::hub::sessions::events::SessionEvent;
use crate::hub::sessions::session::{ApprovalSource, Session};
use crate::hub::tests::support::*;
use crate::hub::{HubSettings, KnownAgent, ListenerSettings, SessionSettings};
use crate::leases::{Replicas, Times};
use kubesvc_core::ZoneId;
use kubesvc_core::lifecycle::Presence;
use kubesvc_core::wire::ops::refused::Reason;
use kubesvc_core::wire::ops::{self, agent_frame, hub_frame};

#[tokio::test]
async fn a_good_hello_is_accepted_after_registration() {
    let hub = TestHub::start().await;
    let mut agent = hub.greet(hello("a")).await;
    let accepted = agent.accepted().await;
    assert_eq!(hub.objects.log.lock().as_slice(), ["register a 1"]);
    assert_eq!((accepted.replica_id.as_str(), accepted.approved, accepted.protocol), ("r-0", true, 1));
    assert_eq!(accepted.heartbeat_ms, 10_000);
    let agents = hub.hub.agents();
    assert_eq!((agents[0].agent_id.as_str(), agents[0].zone_id.as_str()), ("a", "z"));
}

#[tokio::test]
async fn hellos_that_cannot_stay_are_refused_with_a_reason() {
    let hub = TestHub::start().await;
    let long = "x".repeat(192);
    let held = |uid: &str, epoch| ops::HeldAccount {
        account: Some(kubesvc_core::wire::common::AccountRef {
            uid: uid.into(),
            name: "n".into(),
            epoch,
            generation: 1,
        }),
        caching_epoch: 0,
        ..Default::default()
    };
    let cached = |epoch| ops::HeldAccount { caching_epoch: epoch, ..held("u", 1) };
    let base = || hello("a");
    let table = [
        (ops::Hello { agent_id: String::new(), ..base() }, Reason::Malformed, "agent_id is empty"),
        (ops::Hello { agent_id: long, ..base() }, Reason::Malformed, "agent_id is longer"),
        (ops::Hello { agent_id: "a\nb".into(), ..base() }, Reason::Malformed, "control characters"),
        (ops::Hello { agent_id: " ".into(), ..base() }, Reason::Malformed, "agent_id begins or ends with"),
        (ops::Hello { agent_id: "a\u{202e}b".into(), ..base() }, Reason::Malformed, "agent_id has a format"),
        (ops::Hello { zone_id: "z\u{200b}".into(), ..base() }, Reason::Malformed, "zone_id has a format"),
        (ops::Hello { zone_id: "a\u{a0}b".into(), ..base() }, Reason::Malformed, "zone_id has a blank"),
        (ops::Hello { zone_id: "z ".into(), ..base() }, Reason::Malformed, "zone_id begins or ends with"),
        (ops::Hello { accounts_held: vec![held("u", 1 << 53)], ..base() }, Reason::Malformed, "epoch"),
        (ops::Hello { accounts_held: vec![cached(1 << 53)], ..base() }, Reason::Malformed, "caching_epoch"),
        (ops::Hello { zone_id: String::new(), ..base() }, Reason::Malformed, "zone_id is empty"),
        (ops::Hello { zone_id: "z".repeat(256), ..base() }, Reason::Malformed, "zone_id is longer"),
        (ops::Hello { version: "v".repeat(200), ..base() }, Reason::Malformed, "version is longer"),
        (ops::Hello { boot_id: "nope".into(), ..base() }, Reason::Malformed, "boot_id must be a ULID"),
        (ops::Hello { connect_seq: 0, ..base() }, Reason::Malformed, "connect_seq"),
        (ops::Hello { connect_seq: u64::MAX, ..base() }, Reason::Malformed, "connect_seq"),
        (
            ops::Hello { protocol_min: 2, protocol_max: 3, ..base() },
            Reason::ProtocolTooNew,
            "upgrade the operator",
        ),
        (
            ops::Hello { protocol_min: 0, protocol_max: 0, ..base() },
            Reason::ProtocolTooOld,
            "upgrade the agent",
        ),
        (ops::Hello { protocol_min: 3, protocol_max: 1, ..base() }, Reason::Malformed, "protocol_min"),
        (ops::Hello { accounts_held: vec![held("", 1)], ..base() }, Reason::Malformed, "uid is empty"),
        (ops::Hello { accounts_held: vec![held("u", u64::MAX)], ..base() }, Reason::Malformed, "epoch"),
        (ops::Hello { accounts_held: vec![Default::default()], ..base() }, Reason::Malformed, "entry"),
    ];
    for (hello, reason, text) in table {
        let mut agent = hub.greet(hello).await;
        let refused = agent.refused().await;
        assert_eq!(refused.reason(), reason, "{}", refused.message);
        assert!(refused.message.contains(text), "{:?} lacks {text:?}", refused.message);
        assert!(refused.permanent);
    }
    assert!(hub.objects.log.lock().is_empty());
    assert!(hub.hub.agents().is_empty());
}

#[test]
fn a_hello_may_name_a_hundred_thousand_accounts_and_no_more() {
    let mut greeting = hello("a");
    let account =
        kubesvc_core::wire::common::AccountRef { uid: "u".into(), name: "n".into(), ..Default::default() };
    greeting.accounts_held =
        vec![
            ops::HeldAccount { account: Some(account), caching_epoch: 0, ..Default::default() };
            crate::hub::agent_admission::hello::MAX_HELD_ACCOUNTS
        ];
    assert!(crate::hub::agent_admission::hello::check(greeting.clone(), 1024).is_ok());
    greeting.accounts_held.push(greeting.accounts_held[0].clone());
    assert!(crate::hub::agent_admission::hello::check(greeting, 1024).is_err());
}

#[tokio::test]
async fn the_first_frame_must_be_a_hello() {
    let hub = TestHub::start().await;
    let heartbeat = agent_frame::Frame::Heartbeat(ops::Heartbeat::default());
    let results = agent_frame::Frame::AccountResults(ops::AccountResults::default());
    for frame in [Some(heartbeat), Some(results), None] {
        let mut agent = hub.open().await;
        agent.say_frame(ops::AgentFrame { frame, seq: 1, ack: 0 }).await;
        assert_eq!(agent.refused().await.reason(), Reason::Malformed);
    }
}

#[tokio::test]
async fn a_stream_without_a_hello_ends_in_time() {
    let settings = HubSettings {
        listener: ListenerSettings { hello_wait: Duration::from_millis(100), ..Default::default() },
        ..HubSettings::default()
    };
    let hub = TestHub::with(settings).await;
    let mut agent = hub.open().await;
    let status = agent.next().await.expect_err("it ends with a status");
    assert_eq!(status.code(), Code::DeadlineExceeded);
}

#[tokio::test]
async fn a_later_connection_of_the_same_process_takes_over() {
    let hub = TestHub::start().await;
    let mut first = hub.agent("a").await;
    let mut second = hub.greet(ops::Hello { connect_seq: 2, ..hello("a") }).await;
    second.accepted().await;
    assert_eq!(first.next().await.expect_err("it is closed").code(), Code::Aborted);
    assert_eq!(hub.hub.agents().len(), 1);
    assert_eq!(hub.objects.log.lock().as_slice(), ["register a 1", "register a 2"]);
}

#[tokio::test]
async fn a_connection_that_is_not_later_is_refused() {
    let hub = TestHub::start().await;
    let mut first = hub.greet(ops::Hello { connect_seq: 2, ..hello("a") }).await;
    first.accepted().await;
    for connect_seq in [1, 2] {
        let mut again = hub.greet(ops::Hello { connect_seq, ..hello("a") }).await;
        assert_eq!(again.refused().await.reason(), Reason::DuplicateAgentId);
    }
    assert_eq!(hub.hub.agents().len(), 1);
}

#[tokio::test]
async fn another_process_under_a_connected_agent_id_is_refused_for_a_while() {
    let hub = TestHub::start().await;
    let mut first = hub.agent("a").await;
    let other = || ops::Hello { boot_id: BOOT_B.into(), connect_seq: 9, ..hello("a") };
    let refused = hub.greet(other()).await.refused().await;
    assert_eq!(refused.reason(), Reason::DuplicateAgentId);
    assert!(!refused.permanent && (1_000..=30_000).contains(&refused.retry_after_ms), "{refused:?}");
    assert!(refused.message.contains("AGENT_ID"));
    first.say(agent_frame::Frame::Goodbye(ops::Goodbye {})).await;
    assert_eq!(first.next().await.expect("it ends well"), None);
    eventually("the agent is gone", || hub.hub.agents().is_empty().then_some(())).await;
    hub.greet(other()).await.accepted().await;
}

#[tokio::test]
async fn another_process_that_comes_again_and_again_shows_in_the_object_of_the_agent() {
    let hub = TestHub::start().await;
    let _agent = hub.agent("a").await;
    let sessions = &hub.hub.sessions;
    let session = sessions.registry.of_id(&"a".into()).pop().expect("it is connected");
    for second in [0, 41] {
        session.contest.lock().refused(None, Duration::from_secs(second));
    }
    sessions.publish(&session, SessionEvent::ProblemsChanged);
    eventually("it is written", || hub.objects.notes.lock().last().and_then(|note| note.rival.clone())).await;
    eventually("people are warned", || {
        hub.objects.log.lock().contains(&"warned of a DuplicateAgentId".to_owned()).then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_absent_agent_counts_as_away_and_is_then_forgotten() {
    let hub = TestHub::start().await;
    hub.accounts.show(account("one"));
    let mut agent = hub.agent("a").await;
    hub.ticks.advance();
    agent.frames = None;
    let away = eventually("it is away", || {
        let facts = hub.hub.sessions("uid-one");
        facts.into_iter().find(|fact| fact.presence != Presence::Connected)
    })
    .await;
    assert_eq!((away.presence, away.report), (Presence::Away(1), None));
    eventually("its object says so", || {
        hub.objects.log.lock().contains(&"disconnected a".to_owned()).then_some(())
    })
    .await;
    let forgotten = hub.hub.sessions.registry.forget(1);
    assert_eq!(forgotten.len(), 1);
    assert!(hub.hub.sessions("uid-one").is_empty());
}

#[tokio::test]
async fn disconnect_is_written_as_soon_as_possible() {
    let hub = TestHub::start().await;
    *hub.objects.unheard.lock() = 2;
    let (mut one, mut two) = (hub.agent("a").await, hub.agent("b").await);
    (one.frames, two.frames) = (None, None);
    eventually("both objects say so", || {
        let log = hub.objects.log.lock();
        ["disconnected a", "disconnected b"]
            .iter()
            .all(|line| log.iter().any(|said| said == line))
            .then_some(())
    })
    .await;
    assert_eq!(*hub.objects.unheard.lock(), 0, "it came to nothing at first");
}

#[tokio::test]
async fn agents_of_an_earlier_operator_count_as_away() {
    let hub = TestHub::start().await;
    hub.accounts.show(account("one"));
    let known = KnownAgent {
        agent_id: "a".into(),
        zone: "z".into(),
        session_id: "s".into(),
        replica: "r-0".into(),
        approved: true,
        approved_once: true,
        connected: true,
        ..KnownAgent::default()
    };
    hub.objects.known.lock().push(known);
    hub.hub.remember_agents().await;
    assert_eq!(hub.hub.sessions("uid-one")[0].presence, Presence::Away(0));
    let _agent = hub.agent("a").await;
    let facts = hub.hub.sessions("uid-one");
    assert_eq!(facts.iter().map(|fact| fact.presence).collect::<Vec<_>>(), [Presence::Connected]);
}

#[tokio::test]
async fn registration_is_tried_again_while_the_api_server_is_away() {
    let hub = TestHub::start().await;
    *hub.objects.failing.lock() = 2;
    hub.greet(hello("a")).await.accepted().await;
}

#[tokio::test]
async fn a_second_hello_and_unknown_frames_are_ignored() {
    let hub = TestHub::start().await;
    let agent = hub.agent("a").await;
    agent.say(agent_frame::Frame::Hello(hello("b"))).await;
    agent.say_frame(ops::AgentFrame { frame: None, seq: 3, ack: 0 }).await;
    agent.answer(ops::AccountResult::default()).await;
    agent.say(agent_frame::Frame::Working(ops::Working::default())).await;
    agent.say(agent_frame::Frame::Lost(ops::Lost::default())).await;
    let ignored = |reason| {
        let metrics = &hub.hub.context.metrics.ignored;
        metrics.get_or_create(&crate::hub::metrics::ReasonLabel { reason }).get()
    };
    eventually("all are counted", || (ignored("malformed_answer") == 3).then_some(())).await;
    assert_eq!((ignored("second_hello"), ignored("unknown_frame")), (1, 1));
    assert_eq!(hub.hub.agents()[0].agent_id, "a");
}

#[tokio::test]
async fn a_message_that_is_too_large_ends_the_stream_with_a_status() {
    let settings = HubSettings {
        sessions: SessionSettings { max_message_bytes: 64 * 1024, ..Default::default() },
        ..HubSettings::default()
    };
    let hub = TestHub::with(settings).await;
    let mut agent = hub.agent("a").await;
    let large = |agent_id| ops::Hello { capabilities: vec!["x".repeat(100 * 1024)], ..hello(agent_id) };
    agent.say(agent_frame::Frame::Hello(large("a"))).await;
    assert_eq!(agent.next().await.expect_err("it is cut").code(), Code::OutOfRange);
    let mut stranger = hub.greet(large("b")).await;
    assert_eq!(stranger.next().await.expect_err("it is cut").code(), Code::OutOfRange);
}

#[tokio::test]
async fn a_silent_agent_is_cut_off_after_three_heartbeats() {
    let settings = HubSettings {
        sessions: SessionSettings { heartbeat: Duration::from_millis(50), ..Default::default() },
        ..HubSettings::default()
    };
    let hub = TestHub::with(settings).await;
    let mut agent = hub.agent("a").await;
    assert_eq!(agent.next().await.expect_err("it is cut").code(), Code::DeadlineExceeded);
}

#[tokio::test]
async fn an_agent_can_be_disconnected_on_request() {
    let hub = TestHub::start().await;
    let mut agent = hub.agent("a").await;
    let disconnect =
        |id: &str, zone: Option<&str>| hub.hub.disconnect(&id.into(), zone.map(ZoneId::from).as_ref());
    assert!(!disconnect("b", None) && !disconnect("a", Some("another")));
    assert!(disconnect("a", Some("z")));
    assert_eq!(agent.next().await.expect_err("it is closed").code(), Code::Aborted);
}

#[tokio::test]
async fn agents_of_one_id_in_two_zones_are_two_agents() {
    let hub = TestHub::start().await;
    hub.accounts.show(account("one"));
    let mut agent = hub.agent("a").await;
    assert_eq!(agent.added().await.len(), 1);
    let elsewhere = ops::Hello { boot_id: BOOT_B.into(), zone_id: "another".into(), ..hello("a") };
    let mut other = hub.greet(elsewhere).await;
    other.accepted().await;
    let zones: Vec<_> = hub.hub.agents().into_iter().map(|agent| agent.zone_id).collect();
    assert_eq!(zones, ["another", "z"]);
    // Both, by the id alone.
    assert!(hub.hub.disconnect(&"a".into(), None));
    for stream in [&mut agent, &mut other] {
        assert_eq!(stream.next().await.expect_err("it is closed").code(), Code::Aborted);
    }
}

#[tokio::test]
async fn stop_sends_drain_and_ends() {
    let hub = TestHub::start().await;
    let mut agent = hub.agent("a").await;
    hub.stop.cancel();
    assert!(matches!(agent.next().await, Ok(Some(hub_frame::Frame::Drain(_)))));
    agent.frames = None;
    let _ = agent.next().await;
    hub.served.await.expect("no panic").expect("it ends well");
    assert!(hub.objects.log.lock().contains(&"disconnected a".to_owned()));
}

#[tokio::test]
async fn stopping_does_not_wait_for_an_agent_that_stays() {
    let hub = TestHub::start().await;
    let mut agent = hub.agent("a").await;
    hub.stop.cancel();
    assert!(matches!(agent.next().await, Ok(Some(hub_frame::Frame::Drain(_)))));
    assert!(agent.next().await.is_err());
    hub.served.await.expect("no panic").expect("it ends well");
}

#[tokio::test]
async fn an_agent_id_that_is_connected_in_another_zone_at_another_replica_is_another_agent() {
    let replicas = Replicas::unknown(&"r-0".into(), Times::default());
    replicas.now_are(&["r-0", "r-1"]);
    let hub = TestHub::of_replicas(HubSettings::default(), None, Arc::clone(&replicas)).await;
    hub.agents.seen(agent_object_in("a", "another", "r-1", 1));
    hub.agent("a").await;
}

#[tokio::test]
async fn an_agent_id_that_is_connected_at_another_replica_is_refused_until_that_is_gone() {
    let hub = TestHub::start().await;
    *hub.objects.connected_at.lock() = Some("r-1");
    let refused = hub.greet(hello("a")).await.refused().await;
    assert_eq!(refused.reason(), Reason::DuplicateAgentId);
    assert!(refused.message.contains("another process is connected") && !refused.permanent, "{refused:?}");
    assert!(refused.retry_after_ms >= 1000 && hub.hub.agents().is_empty(), "{refused:?}");
    *hub.objects.connected_at.lock() = None;
    hub.agent("a").await;
}

#[tokio::test]
async fn an_unapproved_process_gets_no_account_under_a_reserved_id() {
    let hub = TestHub::start().await;
    hub.accounts.show(account("one"));
    let mut agent = hub.agent("a").await;
    assert_eq!(agent.added().await.len(), 1);
    assert!(hub.hub.disconnect(&"a".into(), None));
    let status = agent.next().await.expect_err("it is closed");
    assert_eq!((status.code(), status.message()), (Code::Aborted, "its stream was closed on request"));

    let refused = hub.greet(ops::Hello { boot_id: BOOT_B.into(), ..hello("a") }).await.refused().await;
    assert_eq!(refused.reason(), Reason::DuplicateAgentId);
    assert!(refused.message.contains("disconnected on request"), "{}", refused.message);
    assert!((1..=30_000).contains(&refused.retry_after_ms) && !refused.permanent);
    let its_own = ops::Hello { connect_seq: 2, ..hello("a") };
    hub.greet(its_own).await.accepted().await;
    eventually("it is written how it ended", || {
        hub.objects.log.lock().contains(&"disconnected a on request".to_owned()).then_some(())
    })
    .await;
}

#[test]
fn approval_that_was_read_earlier_does_not_replace_a_later_one() {
    let greeting = crate::hub::agent_admission::hello::check(hello("a"), 1024).expect("it is good");
    let session = Session::new(greeting.agent.clone(), None, false, 0);
    assert!(session.approve(true, ApprovalSource::Watch(12)));
    assert!(!session.approve(false, ApprovalSource::Registration(10)), "its answer comes late");
    assert!(session.is_approved());

    let session = Session::new(greeting.agent.clone(), None, false, 0);
    assert!(session.approve(true, ApprovalSource::Registration(10)));
    assert!(!session.approve(false, ApprovalSource::Watch(9)), "the watch is behind");
    assert!(session.is_approved());
    assert!(session.approve(false, ApprovalSource::Watch(11)) && !session.is_approved());
    assert!(session.approve(true, ApprovalSource::Watch(3)), "the API server was restored from a backup");
    assert!(session.is_approved());
}
