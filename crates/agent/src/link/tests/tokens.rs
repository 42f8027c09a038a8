//! The agent's token: it is sent with each stream, replaced in a session or by a second one, and refusals say what to do.

use std::fs;

use tonic::Status;

use super::*;
use crate::hub_token::tests::{LogText, MountedToken, jwt, script};
use crate::settings::{TokenFormat, TokenSettings};
use kubesvc_core::wire::REAUTH_CAPABILITY;
use kubesvc_core::wire::common::Fence;
use kubesvc_core::wire::ops::{CachingAssignment, CachingRules};

const REAUTH: &[&str] = &[REAUTH_CAPABILITY];

fn options(hub: &FakeHub, token: TokenSettings) -> AgentOptions {
    let mut options = AgentOptions::of_test(hub.address.to_string());
    options.settings.hub.token = Some(token);
    options
}

fn fixed(token: &str) -> TokenSettings {
    TokenSettings::Fixed(serde_json::from_value(serde_json::json!(token)).expect("a token"))
}

fn bearer(token: &str) -> Vec<String> {
    vec![format!("Bearer {token}")]
}

/// The token in the next frame that is neither a heartbeat nor a list of the agent's own accounts.
async fn next_token(stream: &mut Stream) -> String {
    match stream.next_but_own_accounts().await {
        Some(Frame::Reauthenticate(frame)) => frame.token,
        other => panic!("{other:?} where a token was awaited"),
    }
}

#[tokio::test]
async fn each_of_the_three_streams_has_the_token_once_and_no_log_has_it() {
    let (log, logging) = LogText::begin();
    let mut hub = FakeHub::start().await;
    let mounted = MountedToken::new("CANARY-1");
    let agent = agent_with(options(&hub, mounted.source())).await;
    let (_cluster, account) = account("u", good).await;
    let all = ["caching/1", "zstd/1", requests::CAPABILITY, REAUTH_CAPABILITY];
    let (mut stream, hello) = hub.accepted_with(60_000, &all).await;
    assert!(hello.capabilities.iter().any(|one| one == REAUTH_CAPABILITY), "{hello:?}");
    stream.own_accounts().await;
    // The streams that are opened from now on have the other one.
    mounted.swap("second", "CANARY-2");
    assert_eq!(next_token(&mut stream).await, "CANARY-2");
    stream.send(add(&[&account])).await;
    assert!(matches!(result(&mut stream).await.outcome, Some(Outcome::Identity(_))));
    let fence = Fence { account_uid: "u".to_owned(), caching_epoch: 1 };
    let rules = CachingRules { default_kinds: true, ..CachingRules::default() };
    let assignment = CachingAssignment {
        fence: Some(fence),
        on: true,
        account: Some(reference("u", 1)),
        rules: Some(rules),
    };
    stream.send(hub_frame::Frame::CachingAssignment(assignment)).await;
    let opened = async {
        let has = |name| hub.authorizations.lock().iter().any(|(stream, _)| *stream == name);
        while !(has("Caching") && has("Requests")) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(10), opened).await.expect("both streams in time");
    let authorizations = hub.authorizations.lock().clone();
    for (stream, values) in &authorizations {
        let token = match *stream {
            "GetOps" => "CANARY-1",
            "Caching" => "CANARY-2",
            // Opened at once, and again after it was refused.
            _ => values[0].strip_prefix("Bearer ").expect("a token"),
        };
        assert_eq!(*values, bearer(token), "{authorizations:?}");
    }
    drop(stream);
    agent.end().await;
    drop(logging);
    let log = log.text();
    assert!(log.contains("has another token") && !log.contains("CANARY"), "{log}");
}

#[tokio::test]
async fn an_agent_without_a_token_sends_none() {
    let mut hub = FakeHub::start().await;
    let agent = agent(&hub).await;
    let (stream, _) = hub.accepted_with(100, REAUTH).await;
    assert_eq!(*hub.authorizations.lock(), [("GetOps", Vec::new())]);
    drop(stream);
    agent.end().await;
}

#[tokio::test]
async fn with_a_fifth_of_its_life_left_a_token_is_replaced_in_the_session() {
    let mut hub = FakeHub::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("token");
    // A fifth of 1,003 s is left in 1.4 to 2.4 s, since the times of a JWT are whole seconds.
    let (first, second) = (jwt(800, 203), jwt(0, 1000));
    fs::write(&path, &first).expect("written");
    let source = script(&format!("cat {}", path.display()), TokenFormat::Raw);
    let since = Instant::now();
    let agent = agent_with(options(&hub, source)).await;
    fs::write(&path, &second).expect("written");
    let (mut stream, hello) = hub.accepted_with(2000, REAUTH).await;
    assert_eq!(hub.authorizations.lock()[0].1, bearer(&first));
    assert_eq!(next_token(&mut stream).await, second);
    assert!(since.elapsed() > Duration::from_secs(1), "{:?}", since.elapsed());
    assert!(matches!(stream.next().await, Some(Frame::Heartbeat(_))), "the session goes on");
    assert_eq!((hello.connect_seq, hub.authorizations.lock().len()), (1, 1));
    drop(stream);
    agent.end().await;
}

#[tokio::test]
async fn a_token_that_is_the_same_again_is_not_sent() {
    let mut hub = FakeHub::start().await;
    let mounted = MountedToken::new("first");
    let agent = agent_with(options(&hub, mounted.source())).await;
    let (mut stream, _) = hub.accepted_with(60_000, REAUTH).await;
    stream.own_accounts().await;
    mounted.swap("second", "first\n");
    agent.until("/health/tasks", |answer| answer.contains("token for the hub")).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    mounted.swap("third", "third");
    assert_eq!(next_token(&mut stream).await, "third");
    drop(stream);
    agent.end().await;
}

#[tokio::test]
async fn without_the_capability_another_token_takes_over_on_a_second_connection() {
    let mut hub = FakeHub::start().await;
    let mounted = MountedToken::new("first");
    let agent = agent_with(options(&hub, mounted.source())).await;
    let (_cluster, account) = account("u", good).await;
    let (mut stream, hello) = hub.settled(100).await;
    stream.send(add(&[&account])).await;
    assert_eq!(result(&mut stream).await.account, Some(reference("u", 1)));
    mounted.swap("second", "second");
    let (mut refused, again) = hub.stream().await;
    assert_eq!((again.connect_seq, &again.boot_id), (2, &hello.boot_id));
    let held: Vec<_> = again.accounts_held.into_iter().filter_map(|held| held.account).collect();
    assert_eq!(held, [reference("u", 1)]);
    refused.send(hub_frame::Frame::Refused(Refused::default())).await;
    drop(refused);
    assert!(stream.next().await.is_some(), "the session goes on");
    assert_eq!(agent.readiness().await.0, 200);
    let (mut next, _) = hub.accepted(100).await;
    while stream.next().await.is_some() {}
    next.own_accounts().await;
    let values: Vec<_> = hub.authorizations.lock().iter().map(|(_, values)| values.clone()).collect();
    assert_eq!(values, [bearer("first"), bearer("second"), bearer("second")]);
    assert_eq!(agent.readiness().await.0, 200, "it is connected all the time");
    drop(next);
    agent.end().await;
}

#[tokio::test]
async fn a_command_that_fails_at_the_start_is_waited_for_and_shown() {
    let mut hub = FakeHub::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("token");
    let source = script(&format!("cat {} || exit 3", path.display()), TokenFormat::Raw);
    let agent = agent_with(options(&hub, source)).await;
    let failed =
        |answer: &str| answer.contains("tokenCommand.command: the program") && answer.contains("exit code 3");
    agent.until("/health/tasks", failed).await;
    let told =
        |answer: &str| answer.contains("not dialled without a token") && answer.contains("exit code 3");
    agent.until("/health/readiness", told).await;
    assert_eq!(hub.authorizations.lock().len(), 0, "nothing is dialled");
    fs::write(&path, "t0ken").expect("written");
    let (stream, _) = hub.accepted(100).await;
    assert_eq!(hub.authorizations.lock()[0].1, bearer("t0ken"));
    drop(stream);
    agent.end().await;
}

#[tokio::test]
async fn a_file_that_is_gone_leaves_the_last_token_for_the_next_dial() {
    let mut hub = FakeHub::start().await;
    let mounted = MountedToken::new("first");
    let agent = agent_with(options(&hub, mounted.source())).await;
    let (stream, _) = hub.settled(60_000).await;
    fs::remove_file(mounted.path()).expect("removed");
    agent.until("/health/tasks", |answer| answer.contains("clouddriver.auth.tokenFile: ")).await;
    drop(stream);
    let (stream, _) = hub.accepted(60_000).await;
    assert_eq!(hub.authorizations.lock()[1].1, bearer("first"));
    drop(stream);
    agent.end().await;
}

#[tokio::test]
async fn a_token_that_cannot_be_read_ends_the_start() {
    let hub = FakeHub::start().await;
    let error = Agent::bind(options(&hub, TokenSettings::File("/absent/token".into()))).await;
    let error = error.expect_err("there is no such file");
    assert!(matches!(error, AgentError::Token(_)), "{error}");
    assert!(
        chain(&error).starts_with("`clouddriver.auth.tokenFile` cannot be honoured"),
        "{}",
        chain(&error)
    );
}

#[tokio::test]
async fn a_refusal_says_what_to_do_is_tried_again_and_leaves_the_accounts() {
    const AT_THE_OPERATOR: &str = "`kubectl kubesvc agents` at the operator shows it";
    let zone = Refused {
        reason: Reason::ZoneForbidden.into(),
        message: "not here".to_owned(),
        retry_after_ms: 1,
        permanent: true,
    };
    let unauthenticated = Refused { reason: Reason::Unauthenticated.into(), ..zone.clone() };
    let sixteen = |said: &str| Err(Status::unauthenticated(said));
    let token = || Some(fixed("CANARY"));
    for (token, answer, parts) in [
        (
            token(),
            sixteen("no CANARY here"),
            ["does not accept the agent's token (clouddriver.auth.token)", "no *** here"],
        ),
        (
            None,
            sixteen("who is it"),
            [
                "wants a credential of the agent: set clouddriver.auth.tokenFile",
                "clouddriver.tls.clientCertFile",
            ],
        ),
        (
            token(),
            Err(Status::permission_denied("")),
            ["no identity for this agent, or the agent is revoked", AT_THE_OPERATOR],
        ),
        (token(), Ok(zone), ["does not allow this agent the zone \"zone-1\"", AT_THE_OPERATOR]),
        (token(), Ok(unauthenticated), ["UNAUTHENTICATED: not here", "(clouddriver.auth.token)"]),
    ] {
        let mut hub = FakeHub::start().await;
        let mut options = AgentOptions::of_test(hub.address.to_string());
        let of_token = parts[0].contains("token (clouddriver.auth.token)");
        options.settings.hub.token = token;
        let agent = agent_with(options).await;
        let (_cluster, account) = account("u", good).await;
        let (mut stream, _) = hub.settled(60_000).await;
        stream.send(add(&[&account])).await;
        assert_eq!(result(&mut stream).await.account, Some(reference("u", 1)));
        drop(stream);
        let since = Instant::now();
        for attempt in 1..=3 {
            let (mut stream, hello) = hub.stream().await;
            assert_eq!((hello.connect_seq, hello.accounts_held.len()), (attempt + 1, 1));
            match &answer {
                Ok(refused) => stream.send(hub_frame::Frame::Refused(refused.clone())).await,
                Err(status) => stream.fail(status.clone()).await,
            }
            let told = |answer: &str| parts.iter().all(|part| answer.contains(&part.replace('"', "\\\"")));
            let answer = agent.until("/health/readiness", told).await;
            assert!(!answer.contains("CANARY"), "{answer}");
        }
        if of_token {
            let refused = "clouddriver.auth.token: the hub does not accept the token";
            agent.until("/health/tasks", |answer| answer.contains(refused)).await;
        }
        if answer.is_err() {
            assert!(since.elapsed() >= LEAST_REFUSED_DELAY, "{:?}", since.elapsed());
        }
        let (stream, _) = hub.settled(100).await;
        assert_eq!(agent.readiness().await.0, 200);
        drop(stream);
        agent.end().await;
    }
}

#[tokio::test]
async fn a_session_that_ends_with_a_refusal_says_so() {
    let mut hub = FakeHub::start().await;
    let agent = agent_with(options(&hub, fixed("CANARY"))).await;
    let (stream, _) = hub.settled(60_000).await;
    stream.fail(Status::permission_denied("it was revoked")).await;
    let told = |answer: &str| {
        answer.contains("PermissionDenied: it was revoked") && answer.contains("kubectl kubesvc agents")
    };
    agent.until("/health/readiness", told).await;
    agent.end().await;
}

#[test]
fn the_frame_of_a_token_does_not_show_it() {
    let frame = Frame::Reauthenticate(kubesvc_core::wire::ops::Reauthenticate { token: "CANARY".to_owned() });
    assert!(!format!("{frame:?}").contains("CANARY"));
}
