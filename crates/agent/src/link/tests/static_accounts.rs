//! The accounts of the agent's own file, from the file to the hub and back.

use std::path::Path;

use super::*;
use crate::static_accounts::StaticAccountFile;
use kubesvc_core::wire::common::Failure;
use kubesvc_core::wire::ops::{StaticAnswer, StaticAnswers};

fn own(name: &str, file: &Path) -> AccountSpec {
    AccountSpec {
        account: Some(AccountRef { name: name.to_owned(), ..AccountRef::default() }),
        credential: Some(Credential::File(file.display().to_string())),
        ..AccountSpec::default()
    }
}

/// What the hub sends for it once it is granted.
fn granted(own: &AccountSpec, uid: &str, epoch: u64) -> AccountSpec {
    let name = own.account.clone().unwrap_or_default().name;
    AccountSpec { account: Some(AccountRef { name, ..reference(uid, epoch) }), ..own.clone() }
}

fn names(accounts: &[AccountSpec]) -> Vec<&str> {
    accounts.iter().filter_map(|spec| spec.account.as_ref()).map(|account| account.name.as_str()).collect()
}

fn failure_of(result: AccountResult) -> Failure {
    match result.outcome {
        Some(Outcome::Failure(failure)) => failure,
        other => panic!("{other:?} where a failure was awaited"),
    }
}

#[tokio::test]
async fn the_list_is_sent_after_every_hello_and_on_every_change() {
    let mut hub = FakeHub::start().await;
    let many: Vec<_> = (0..120).map(|n| own(&format!("a{n:03}"), Path::new("/k"))).collect();
    let options = AgentOptions {
        own: StaticAccountFile::new(many.clone()),
        ..AgentOptions::of_test(hub.address.to_string())
    };
    let list = options.own.clone();
    let agent = agent_with(options).await;
    let (mut stream, _) = hub.accepted(60_000).await;
    assert_eq!(stream.own_accounts().await, many);
    list.replace(vec![own("b", Path::new("/k"))]);
    assert_eq!(names(&stream.own_accounts().await), ["b"]);
    list.replace(vec![own("b", Path::new("/k"))]);
    list.replace(Vec::new());
    assert!(stream.own_accounts().await.is_empty(), "what has not changed is not told again");
    drop(stream);
    list.replace(vec![own("c", Path::new("/k"))]);
    let (mut stream, _) = hub.accepted(60_000).await;
    assert_eq!(names(&stream.own_accounts().await), ["c"]);
    drop(stream);
    agent.end().await;
}

#[tokio::test]
async fn refused_static_account_is_shown_until_the_hub_accepts_it() {
    let mut hub = FakeHub::start().await;
    let options = AgentOptions {
        own: StaticAccountFile::new(vec![own("a", Path::new("/no/such/file"))]),
        ..AgentOptions::of_test(hub.address.to_string())
    };
    let list = options.own.clone();
    let agent = agent_with(options).await;
    let (mut stream, _) = hub.settled(60_000).await;
    let answer = |name: &str| StaticAnswer {
        name: name.to_owned(),
        failure: Some(Failure {
            class: Class::Conflict.into(),
            message: "another account has\nthe name".to_owned(),
            ..Failure::default()
        }),
    };
    let answers = StaticAnswers { answers: vec![answer("a"), answer("stranger")] };
    stream.send(hub_frame::Frame::StaticAnswers(answers)).await;
    let shown = agent.until("/accounts", |answer| answer.contains("REFUSED")).await;
    assert!(shown.contains(r#""name":"a","state":"REFUSED","zone":"zone-1","source":"static""#), "{shown}");
    assert!(shown.contains(r#""class":"CONFLICT","reason":"another account hasthe name""#), "{shown}");
    assert!(shown.contains(r#""total":1"#), "{shown}");
    assert_eq!(list.refusals.get(), 2);

    stream.send(add(&[&granted(&own("a", Path::new("/no/such/file")), "u", 1)])).await;
    assert_eq!(failure_of(result(&mut stream).await).class(), Class::BadReference);
    let shown = agent.until("/accounts", |answer| answer.contains("FAILED")).await;
    assert!(!shown.contains("REFUSED"), "{shown}");
    drop(stream);
    agent.end().await;
}

#[tokio::test]
async fn a_definition_of_the_own_file_overrides_one_of_the_hub() {
    let mut hub = FakeHub::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let (_server, spec) = account("u", good).await;
    let Some(Credential::Kubeconfig(config)) = spec.credential else { panic!("{spec:?}") };
    let path = folder.path().join("config");
    std::fs::write(&path, &config).expect("written");
    let mine = own("mine", &path);
    let agent = agent_with(AgentOptions {
        own: StaticAccountFile::new(vec![mine.clone()]),
        ..AgentOptions::of_test(hub.address.to_string())
    })
    .await;
    let (mut stream, _) = hub.settled(60_000).await;
    // The same file under another account name comes from the hub, and no folder is allowed.
    stream.send(add(&[&granted(&own("theirs", &path), "v", 1)])).await;
    let refused = failure_of(result(&mut stream).await);
    assert_eq!(refused.class(), Class::BadReference);
    assert!(refused.message.contains("allows no folder"), "{}", refused.message);
    stream.send(add(&[&granted(&mine, "u", 1)])).await;
    assert!(matches!(result(&mut stream).await.outcome, Some(Outcome::Identity(_))));
    let shown = agent.until("/accounts", |answer| answer.contains("HELD")).await;
    assert!(
        shown.contains(r#""name":"mine","state":"HELD","zone":"zone-1","source":"static","since":""#),
        "{shown}"
    );
    assert!(shown.contains(r#""name":"theirs","state":"FAILED","zone":"zone-1","source":"hub""#), "{shown}");
    drop(stream);
    agent.end().await;
}

#[tokio::test]
async fn only_static_accounts_are_accepted_without_dynamic_accounts() {
    let mut hub = FakeHub::start().await;
    let mine = own("mine", Path::new("/no/such/file"));
    let mut options = AgentOptions::of_test(hub.address.to_string());
    options.own = StaticAccountFile::new(vec![mine.clone()]);
    options.settings.dynamic_accounts = false;
    let agent = agent_with(options).await;
    let (_server, theirs) = account("v", good).await;
    let (mut stream, _) = hub.settled(60_000).await;
    stream.send(add(&[&theirs])).await;
    let refused = failure_of(result(&mut stream).await);
    assert_eq!((refused.class(), refused.retryable, refused.before_send), (Class::Forbidden, false, true));
    assert!(refused.message.contains("dynamicAccounts.enabled"), "{}", refused.message);
    stream.send(add(&[&granted(&mine, "u", 1)])).await;
    assert_eq!(failure_of(result(&mut stream).await).class(), Class::BadReference, "it was tried");
    drop(stream);
    agent.end().await;
}

/// An agent that holds one account of its own, with a kubeconfig in this folder.
async fn holding(hub: &mut FakeHub, folder: &Path) -> (RunningAgent, Stream, AccountSpec, TestServer) {
    let (server, spec) = account("u", good).await;
    let Some(Credential::Kubeconfig(config)) = spec.credential else { panic!("{spec:?}") };
    let path = folder.join("config");
    std::fs::write(&path, &config).expect("written");
    let mine = granted(&own("mine", &path), "u", 1);
    let mut options = AgentOptions::of_test(hub.address.to_string());
    options.own = StaticAccountFile::new(vec![own("mine", &path)]);
    options.settings.metrics_port = Some(0);
    let agent = agent_with(options).await;
    let (mut stream, _) = hub.settled(60_000).await;
    stream.send(add(&[&mine])).await;
    assert!(matches!(result(&mut stream).await.outcome, Some(Outcome::Identity(_))));
    (agent, stream, mine, server)
}

#[tokio::test]
async fn a_changed_kubeconfig_starts_its_account_anew() {
    let mut hub = FakeHub::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let (agent, mut stream, mine, old) = holding(&mut hub, folder.path()).await;
    let (new, spec) = account("x", good).await;
    let Some(Credential::Kubeconfig(config)) = spec.credential else { panic!("{spec:?}") };
    let next = folder.path().join("next");
    std::fs::write(&next, &config).expect("written");
    std::fs::rename(&next, folder.path().join("config")).expect("renamed");
    let again = result(&mut stream).await;
    assert_eq!(again.account, mine.account, "the epoch is the same");
    let Some(Outcome::Identity(identity)) = again.outcome else { panic!("{again:?}") };
    assert_eq!((identity.host == new.url(), identity.host == old.url()), (true, false));
    drop(stream);
    agent.end().await;
}

#[tokio::test]
async fn a_changed_kubeconfig_that_does_not_work_leaves_its_account_held() {
    let mut hub = FakeHub::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let (agent, mut stream, mine, server) = holding(&mut hub, folder.path()).await;
    std::fs::write(folder.path().join("config"), "kind: Nonsense").expect("written");
    let kept = "kubesvc_account_reload_failures_total 1";
    agent.until_counted(|metrics| metrics.contains(kept)).await;
    let asked = server.paths().len();
    stream.send(add(&[&mine])).await;
    assert!(matches!(result(&mut stream).await.outcome, Some(Outcome::Identity(_))));
    assert_eq!(server.paths().len(), asked, "it is still held, and nothing was said to the hub before");
    std::fs::remove_file(folder.path().join("config")).expect("removed");
    let newer = AccountSpec {
        account: mine.account.clone().map(|account| AccountRef { epoch: 2, ..account }),
        ..mine
    };
    stream.send(add(&[&newer])).await;
    assert_eq!(
        failure_of(result(&mut stream).await).class(),
        Class::BadReference,
        "a new epoch reads it again"
    );
    drop(stream);
    agent.end().await;
}

#[tokio::test]
async fn metrics_are_served_under_their_documented_names() {
    let mut hub = FakeHub::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let (agent, stream, _, _server) = holding(&mut hub, folder.path()).await;
    let metrics = agent.until_counted(|metrics| metrics.contains("kubesvc_accounts{state=\"held\"} 1")).await;
    for line in [
        "kubesvc_connection_count 1",
        "kubesvc_disconnection_total 0",
        "kubesvc_kubernetes_requests{code=\"200\"} 3",
        "kubesvc_kubernetes_requests_total{code=\"200\"} 3",
        "kubesvc_kubernetes_requests_total{code=\"403\"} 3",
        "kubesvc_accounts{state=\"starting\"} 0",
        "kubesvc_accounts{state=\"failed\"} 0",
        "kubesvc_static_accounts 1",
        "kubesvc_config_valid 1",
        "kubesvc_config_reload_failures_total 0",
        "process_resident_memory_bytes",
        "# EOF",
    ] {
        assert!(metrics.lines().any(|said| said.starts_with(line)), "{line} is not in\n{metrics}");
    }
    drop(stream);
    agent.until_counted(|metrics| metrics.contains("kubesvc_disconnection_total 1")).await;
    agent.end().await;
}
