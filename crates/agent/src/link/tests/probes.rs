//! Probes, as the hub requests them.

use super::*;
use crate::static_accounts::StaticAccountFile;
use kubesvc_core::wire::common::Failure;
use kubesvc_core::wire::ops::probe::Target;
use kubesvc_core::wire::ops::{Probe, ProbeResult, ProbedCluster};

async fn ask(stream: &mut Stream, uid: &str, target: Option<Target>) {
    let probe = Probe { account: Some(reference(uid, 0)), target };
    stream.send(hub_frame::Frame::Probe(probe)).await;
}

async fn answer(stream: &mut Stream) -> ProbeResult {
    match stream.next_word().await {
        Some(Frame::ProbeResult(result)) => result,
        other => panic!("{other:?} where the answer to a probe was awaited"),
    }
}

fn cluster(server: &str, authority: Option<&Authority>) -> Option<Target> {
    let certificate_authority = authority.map(Authority::pem).unwrap_or_default();
    Some(Target::Cluster(ProbedCluster {
        server: server.to_owned(),
        certificate_authority,
        ..Default::default()
    }))
}

#[tokio::test]
async fn any_answer_of_an_api_server_will_do_and_no_credential_is_shown() {
    let mut hub = FakeHub::start().await;
    let agent = agent(&hub).await;
    let (mut stream, _) = hub.settled(60_000).await;
    for status in [200, 401, 403, 500] {
        let authority = Authority::new();
        let server = TestServer::start(&authority, move |_| json(status, "{}")).await;
        ask(&mut stream, "u", cluster(&server.url(), Some(&authority))).await;
        let result = answer(&mut stream).await;
        assert_eq!(
            (result.account, result.ok, result.failure),
            (Some(reference("u", 0)), true, None),
            "{status}"
        );
        assert_eq!(server.paths(), ["/version"]);
        assert_eq!(server.asked.lock()[0].authorization, "");
    }
    drop(stream);
    agent.end().await;
}

#[tokio::test]
async fn failed_probe_is_answered_with_the_reason() {
    let mut hub = FakeHub::start().await;
    let agent = agent(&hub).await;
    let (mut stream, _) = hub.settled(60_000).await;
    let authority = Authority::new();
    let server = TestServer::start(&authority, |_| json(200, "{}")).await;
    let url = server.url();
    let other_name = ProbedCluster {
        server: url.clone(),
        certificate_authority: authority.pem(),
        tls_server_name: "other.example".to_owned(),
        insecure: false,
    };
    for (target, class) in [
        (cluster(&url, Some(&Authority::new())), Class::Tls),
        (Some(Target::Cluster(other_name)), Class::Tls),
        (cluster("https://127.0.0.1:1", None), Class::Unreachable),
        (cluster("https://169.254.169.254", None), Class::BadKubeconfig),
        (cluster("http://127.0.0.1:1", None), Class::BadKubeconfig),
        (cluster("file:///etc/passwd", None), Class::BadKubeconfig),
        (cluster("", None), Class::BadKubeconfig),
        (Some(Target::File("/etc/passwd".to_owned())), Class::BadReference),
        (Some(Target::File("relative".to_owned())), Class::BadReference),
        (Some(Target::ServiceAccount(true)), Class::BadReference),
        (Some(Target::ServiceAccount(false)), Class::BadReference),
        (None, Class::Unimplemented),
    ] {
        ask(&mut stream, "u", target.clone()).await;
        let result = answer(&mut stream).await;
        let failure = result.failure.expect("a reason");
        assert_eq!((result.ok, failure.class()), (false, class), "{target:?}: {}", failure.message);
    }
    let insecure = ProbedCluster { server: url, insecure: true, ..ProbedCluster::default() };
    ask(&mut stream, "u", Some(Target::Cluster(insecure))).await;
    assert!(answer(&mut stream).await.ok);
    drop(stream);
    agent.end().await;
}

#[tokio::test]
async fn a_file_counts_if_an_account_may_have_it() {
    let mut hub = FakeHub::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.display().to_string()
    };
    let good = kubeconfig("https://127.0.0.1:1", None, "a-token-of-some-length");
    let text = String::from_utf8(good.clone()).expect("text");
    let no_current = text.replace(r#""current-context":"c","#, "");
    let runs = text.replace(r#"{"token":"a-token-of-some-length"}"#, r#"{"exec":{"command":"x"}}"#);
    let mut options = AgentOptions::of_test(hub.address.to_string());
    options.settings.kubeconfig_folders = vec![folder.path().to_owned()];
    let agent = agent_with(options).await;
    let (mut stream, _) = hub.settled(60_000).await;
    for (path, class) in [
        (file("good", &good), None),
        (file("no-current-context", no_current.as_bytes()), None),
        (file("runs-a-program", runs.as_bytes()), Some(Class::ExecForbidden)),
        (file("nonsense", b"a: ["), Some(Class::BadKubeconfig)),
        (file("large", &vec![b' '; 256 * 1024 + 1]), Some(Class::BadKubeconfig)),
        (folder.path().join("missing").display().to_string(), Some(Class::BadReference)),
        (folder.path().display().to_string(), Some(Class::BadReference)),
    ] {
        ask(&mut stream, "u", Some(Target::File(path.clone()))).await;
        let result = answer(&mut stream).await;
        assert_eq!(result.failure.as_ref().map(Failure::class), class, "{path}: {result:?}");
        assert_eq!(result.ok, class.is_none());
    }
    drop(stream);
    agent.end().await;
}

#[tokio::test]
async fn probes_are_queued_and_refused_beyond_a_thousand() {
    let mut hub = FakeHub::start().await;
    let agent = agent(&hub).await;
    let authority = Authority::new();
    let hanging =
        TestServer::start(&authority, |_| Reply { after: Duration::from_secs(60), ..json(200, "{}") }).await;
    let (mut stream, _) = hub.settled(60_000).await;
    for n in 0..1016 {
        ask(&mut stream, &format!("u{n}"), cluster(&hanging.url(), Some(&authority))).await;
    }
    ask(&mut stream, "u0", cluster(&hanging.url(), Some(&authority))).await;
    ask(&mut stream, "one-more", cluster(&hanging.url(), Some(&authority))).await;
    let refused = answer(&mut stream).await;
    assert_eq!(refused.account, Some(reference("one-more", 0)), "the same probe again is not one more");
    let failure = refused.failure.expect("a reason");
    assert!(failure.retryable && failure.message.contains("busy"), "{failure:?}");
    drop(stream);
    // The next stream begins without any of them.
    let (mut stream, _) = hub.settled(60_000).await;
    ask(&mut stream, "u", Some(Target::ServiceAccount(false))).await;
    assert_eq!(answer(&mut stream).await.account, Some(reference("u", 0)));
    assert!(hanging.paths().len() <= 16, "{}", hanging.paths().len());
    drop(stream);
    agent.end().await;
}

#[tokio::test]
async fn newer_probe_of_an_account_replaces_the_older() {
    let mut hub = FakeHub::start().await;
    let agent = agent(&hub).await;
    let authority = Authority::new();
    let hanging =
        TestServer::start(&authority, |_| Reply { after: Duration::from_secs(60), ..json(200, "{}") }).await;
    let (mut stream, _) = hub.settled(60_000).await;
    ask(&mut stream, "u", cluster(&hanging.url(), Some(&authority))).await;
    ask(&mut stream, "u", Some(Target::ServiceAccount(false))).await;
    assert!(!answer(&mut stream).await.ok);
    drop(stream);
    agent.end().await;
}

#[tokio::test]
async fn without_dynamic_accounts_only_the_agents_own_are_probed() {
    let mut hub = FakeHub::start().await;
    let mine = AccountSpec {
        account: Some(AccountRef { name: "name-of-u".to_owned(), ..AccountRef::default() }),
        credential: Some(Credential::ServiceAccount(true)),
        ..AccountSpec::default()
    };
    let mut options = AgentOptions::of_test(hub.address.to_string());
    options.own = StaticAccountFile::new(vec![mine]);
    options.settings.dynamic_accounts = false;
    let agent = agent_with(options).await;
    let (mut stream, _) = hub.settled(60_000).await;
    for (uid, class) in [("u", Class::BadReference), ("v", Class::Forbidden)] {
        ask(&mut stream, uid, Some(Target::ServiceAccount(true))).await;
        assert_eq!(answer(&mut stream).await.failure.map(|failure| failure.class()), Some(class), "{uid}");
    }
    drop(stream);
    agent.end().await;
}
