//! Activation against a TLS server that answers like an API server.

use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tempfile::TempDir;

use super::*;
use crate::cluster::Limits;
use crate::cluster::tests::test_server::{Authority, Reply, TestServer, json, kubeconfig};
use kubesvc_core::wire::ops::account_spec::Credential;

mod owned;

fn activator(folders: Vec<PathBuf>) -> Activator {
    let limits = Limits { answer: Duration::from_secs(5), ..Limits::default() };
    let clusters = ClusterContext { limits, ..ClusterContext::default() };
    Activator { clusters, ..Activator::new(folders, 4) }
}

fn spec(credential: Credential) -> AccountSpec {
    AccountSpec { credential: Some(credential), ..AccountSpec::default() }
}

async fn activate(activator: &Activator, spec: AccountSpec) -> Result<ClusterIdentity, Failure> {
    let started = activator.start(&Definition::split(spec).1, DefinitionOrigin::Hub).await;
    started.map(|reached| reached.identity)
}

/// Activates an account at a server with these responses.
async fn at_server(
    change: impl FnOnce(&mut AccountSpec),
    reply: impl Fn(&str) -> Reply + Send + Sync + 'static,
) -> (TestServer, Result<ClusterIdentity, Failure>) {
    let authority = Authority::new();
    let server = TestServer::start(&authority, reply).await;
    let config = kubeconfig(&server.url(), Some(&authority.pem()), "a-token-of-some-length");
    let mut spec = spec(Credential::Kubeconfig(config));
    change(&mut spec);
    let result = activate(&activator(Vec::new()), spec).await;
    (server, result)
}

const VERSION: &str = r#"{"major":"1","gitVersion":"v1.33.1"}"#;
const KUBE_SYSTEM: &str = r#"{"metadata":{"name":"kube-system","uid":"u-1"}}"#;
const CORE: &str = r#"{"kind":"APIGroupDiscoveryList","items":[{"versions":[{"version":"v1","resources":[
    {"resource":"pods","responseKind":{"group":"","version":"","kind":"Pod"},"scope":"Namespaced","verbs":["get","list","watch"]},
    {"resource":"namespaces","responseKind":{"kind":"Namespace"},"scope":"Cluster","verbs":["list","watch"]},
    {"resource":"bindings","responseKind":{"kind":"Binding"},"scope":"Namespaced","verbs":["create"]}]}]}]}"#;
const GROUPS: &str = r#"{"kind":"APIGroupDiscoveryList","items":[{"metadata":{"name":"apps"},"versions":[
    {"version":"v1","resources":[
        {"resource":"deployments","responseKind":{"kind":"Deployment"},"scope":"Namespaced","verbs":["list","watch"]}]},
    {"version":"v1beta1","resources":[
        {"resource":"deployments","responseKind":{"kind":"Deployment"},"scope":"Namespaced","verbs":["list"]}]}]}]}"#;

fn good(path: &str) -> Reply {
    match path {
        "/version" => json(200, VERSION),
        "/api/v1/namespaces/kube-system" => json(200, KUBE_SYSTEM),
        "/api/v1/namespaces?limit=500" => json(
            200,
            r#"{"metadata":{"continue":"a b=="},"items":[{"metadata":{"name":"one"}},{"metadata":{"name":"two"}}]}"#,
        ),
        "/api/v1/namespaces?limit=500&continue=a%20b%3D%3D" => {
            json(200, r#"{"items":[{"metadata":{"name":"three"}},{"metadata":{"name":"two"}}]}"#)
        }
        "/api" => json(200, CORE),
        "/apis" => json(200, GROUPS),
        _ => json(404, "{}"),
    }
}

#[tokio::test]
async fn a_good_cluster_is_reported_in_full() {
    let (server, result) = at_server(|_| {}, good).await;
    let identity = result.expect("an identity");
    assert_eq!(identity.version, "v1.33.1");
    assert_eq!(identity.kube_system_uid, "u-1");
    assert_eq!(identity.host, server.url());
    assert_eq!(identity.cert_fingerprint.len(), 32 * 3 - 1);
    assert_eq!(identity.namespaces, ["one", "two", "three"]);
    assert_eq!(identity.namespaces_count, 3);
}

#[tokio::test]
async fn an_old_server_is_asked_group_by_group() {
    let (_, result) = at_server(
        |_| {},
        |path| match path {
            "/api" => json(200, r#"{"kind":"APIVersions","versions":["v1"]}"#),
            "/api/v1" => json(
                200,
                r#"{"kind":"APIResourceList","resources":[{"name":"pods","kind":"Pod","namespaced":true,"verbs":["list","watch"]},
                    {"name":"pods/log","kind":"Pod","namespaced":true,"verbs":["get"]}]}"#,
            ),
            "/apis" => json(
                200,
                r#"{"kind":"APIGroupList","groups":[{"name":"apps","versions":[{"version":"v1"}],"preferredVersion":{"version":"v1"}},
                    {"name":"down.example","versions":[{"version":"v1"}],"preferredVersion":{"version":"v1"}}]}"#,
            ),
            "/apis/apps/v1" => json(
                200,
                r#"{"resources":[{"name":"deployments","kind":"Deployment","namespaced":true,"verbs":["list","watch"]}]}"#,
            ),
            "/apis/down.example/v1" => json(503, "{}"),
            path => good(path),
        },
    )
    .await;
    result.expect("a group that is down leaves the others usable");
}

/// A handshake costs more than all the requests of an activation.
#[tokio::test]
async fn an_activation_makes_one_connection_whatever_the_cluster_answers() {
    let legacy = |path: &str| match path {
        "/api" => json(200, r#"{"kind":"APIVersions","versions":["v1"]}"#),
        "/api/v1" => json(200, r#"{"kind":"APIResourceList","resources":[]}"#),
        "/apis" => json(200, r#"{"kind":"APIGroupList","groups":[]}"#),
        path => good(path),
    };
    let refusing = |path: &str| match path {
        "/api/v1/namespaces/kube-system" => json(404, "x".repeat(60_000)),
        "/openid/v1/jwks" => json(403, ""),
        path if path.contains("/namespaces?") => json(403, r#"{"kind":"Status","apiVersion":"v1"}"#),
        path => good(path),
    };
    for (server, result) in
        [at_server(|_| {}, good).await, at_server(|_| {}, legacy).await, at_server(|_| {}, refusing).await]
    {
        result.expect("an identity");
        assert!(server.asked.lock().len() >= 6);
        assert_eq!(server.accepted(), 1);
    }
}

#[tokio::test]
async fn forbidden_reads_leave_the_identity_unknown() {
    let named = |spec: &mut AccountSpec| spec.namespaces = vec!["mine".to_owned(), "mine".to_owned()];
    let (_, result) =
        at_server(named, |path| if path.contains("/namespaces") { json(403, "{}") } else { good(path) })
            .await;
    let identity = result.expect("an identity");
    assert_eq!(identity.kube_system_uid, "");
    assert_eq!((identity.namespaces, identity.namespaces_count), (vec!["mine".to_owned()], 1));
}

/// The API server answers any other media type with 406.
#[tokio::test]
async fn token_keys_are_read_as_a_jwk_set_and_may_be_missing() {
    const KEYS: &str = r#"{"keys":[{"kty":"RSA","n":"AQ","e":"AQAB","kid":"a"}]}"#;
    let (server, with) =
        at_server(|_| {}, |path| if path == "/openid/v1/jwks" { json(200, KEYS) } else { good(path) }).await;
    assert_eq!(with.expect("an identity").token_keys_digest.len(), 64);
    {
        let asked = server.asked.lock();
        let asked = asked.iter().find(|asked| asked.path == "/openid/v1/jwks").expect("it was asked for");
        assert_eq!(asked.accept, "application/jwk-set+json");
    }
    for status in [401, 403, 404, 406] {
        let (_, without) = at_server(
            |_| {},
            move |path| if path == "/openid/v1/jwks" { json(status, "{}") } else { good(path) },
        )
        .await;
        assert_eq!(without.expect("an identity").token_keys_digest, "", "{status}");
    }
}

#[tokio::test]
async fn only_the_namespaces_of_the_account_count() {
    let omitting = |spec: &mut AccountSpec| spec.omit_namespaces = vec!["two".to_owned()];
    let (_, result) = at_server(omitting, good).await;
    assert_eq!(result.expect("an identity").namespaces, ["one", "three"]);
}

#[tokio::test]
async fn a_refused_credential_is_an_auth_failure_at_any_step() {
    for step in
        ["/version", "/api/v1/namespaces/kube-system", "/api/v1/namespaces?limit=500", "/api", "/apis"]
    {
        let (_, result) =
            at_server(|_| {}, move |path| if path == step { json(401, "{}") } else { good(path) }).await;
        assert_eq!(result.expect_err("a failure").class(), Class::Auth, "{step}");
    }
    let (_, result) = at_server(|_| {}, |_| json(403, "{}")).await;
    assert_eq!(result.expect_err("a failure").class(), Class::Forbidden);
}

#[tokio::test]
async fn group_whose_own_api_server_is_down_is_not_known_rather_than_gone() {
    let aggregated: fn(&str) -> Reply = |path| match path {
        "/apis" => json(
            200,
            r#"{"kind":"APIGroupDiscoveryList","items":[
                {"metadata":{"name":"down.example"},"versions":[{"version":"v1","freshness":"Stale","resources":[]}]},
                {"metadata":{"name":"up.example"},"versions":[{"version":"v1","freshness":"Current","resources":[]}]}]}"#,
        ),
        path => good(path),
    };
    let legacy: fn(&str) -> Reply = |path| match path {
        "/apis" => json(
            200,
            r#"{"kind":"APIGroupList","groups":[{"name":"down.example","versions":[{"version":"v1"}]},
                {"name":"gone.example","versions":[{"version":"v1"}]}]}"#,
        ),
        "/apis/down.example/v1" => json(503, "{}"),
        path => good(path),
    };
    let hanging: fn(&str) -> Reply = |path| match path {
        "/apis" => json(
            200,
            r#"{"kind":"APIGroupList","groups":[{"name":"down.example","versions":[{"version":"v1"}]},
                {"name":"gone.example","versions":[{"version":"v1"}]}]}"#,
        ),
        "/apis/down.example/v1" => Reply { after: Duration::from_secs(60), ..json(200, "{}") },
        path => good(path),
    };
    let limits = Limits { answer: Duration::from_secs(1), ..Limits::default() };
    let context = ClusterContext { limits, ..ClusterContext::default() };
    for reply in [aggregated, legacy, hanging] {
        let authority = Authority::new();
        let server = TestServer::start(&authority, reply).await;
        let vetted = vet(&kubeconfig(&server.url(), Some(&authority.pem()), "a-token"), None).expect("good");
        let endpoint = ClusterEndpoint::new(vetted, &AgentPolicy::default());
        let client = ClusterClient::new(endpoint, &context).expect("a client");
        let served = Activator::changed_kinds(client, &DiscoveryTags::default()).await.expect("answers");
        let served = served.expect("no tags were known");
        assert!(served.is_unanswered("down.example", "v1"), "{served:?}");
        assert_eq!(served.unanswered.len(), 1, "{served:?}");
        assert!(served.may_have("widget") && served.may_have("Widget.DOWN.example"), "{served:?}");
        assert!(!served.may_have("Widget.up.example") && !served.may_have("Widget."), "{served:?}");
        assert!(served.kinds.iter().any(|kind| kind.kind == "Pod"));
    }
}

#[tokio::test]
async fn an_answer_that_is_not_json_is_a_discovery_failure() {
    let (_, result) = at_server(|_| {}, |_| json(200, "<html>secret-page</html>")).await;
    let failure = result.expect_err("a failure");
    assert_eq!(failure.class(), Class::Discovery);
    assert!(failure.message.contains("/version") && !failure.message.contains("secret-page"), "{failure:?}");
}

#[tokio::test]
async fn a_cluster_that_drags_on_is_given_up() {
    let authority = Authority::new();
    let server =
        TestServer::start(&authority, |_| Reply { after: Duration::from_secs(60), ..json(200, "{}") }).await;
    let config = kubeconfig(&server.url(), Some(&authority.pem()), "a-token-of-some-length");
    let activator = Activator { deadline: Duration::from_millis(100), ..activator(Vec::new()) };
    let failure = activate(&activator, spec(Credential::Kubeconfig(config))).await.expect_err("a failure");
    assert_eq!(failure.class(), Class::Timeout);
}

/// Otherwise a user who names a file of the agent and sets `insecure: true` would be sent the token in it,
/// despite the authority that the file pins.
#[tokio::test]
async fn insecure_beside_a_certificate_authority_is_refused_before_anything_is_sent() {
    let folder = TempDir::new().expect("a folder");
    let (authority, other) = (Authority::new(), Authority::new());
    let server = TestServer::start(&authority, good).await;
    let config = kubeconfig(&server.url(), Some(&other.pem()), "a-token-of-some-length");
    let path = folder.path().join("config");
    std::fs::write(&path, &config).expect("a file");
    std::fs::write(folder.path().join("token"), "a-token-of-some-length").expect("a file");
    std::fs::write(folder.path().join("ca.crt"), other.pem()).expect("a file");
    let place = ServiceAccountFiles {
        folder: folder.path().to_owned(),
        host: Some(server.address.ip().to_string()),
        port: Some(server.address.port().to_string()),
    };
    let activator =
        Activator { service_account: Arc::new(place), ..activator(vec![folder.path().to_owned()]) };
    let file = Credential::File(path.to_str().expect("UTF-8").to_owned());
    for credential in [file, Credential::Kubeconfig(config), Credential::ServiceAccount(true)] {
        let spec = AccountSpec { insecure: true, ..spec(credential) };
        for word in [DefinitionOrigin::Hub, DefinitionOrigin::OwnFile] {
            let definition = Definition::split(spec.clone()).1;
            let failure = activator.start(&definition, word).await.expect_err("it is refused");
            assert_eq!(failure.class(), Class::BadKubeconfig, "{failure:?}");
            assert!(failure.before_send && failure.message.contains("insecure is true"), "{failure:?}");
        }
    }
    let cluster = ProbedCluster {
        server: server.url(),
        certificate_authority: other.pem(),
        insecure: true,
        ..Default::default()
    };
    let probe = Target::Cluster(cluster);
    activator.probe(&probe, None, DefinitionOrigin::Hub).await.expect_err("nor is it probed");
    assert!(server.asked.lock().is_empty());
}

#[tokio::test]
async fn a_kubeconfig_that_runs_programs_is_refused_as_such() {
    let config = r#"{"current-context":"c","clusters":[{"name":"k","cluster":{"server":"https://h"}}],
        "users":[{"name":"u","user":{"exec":{"command":"aws"}}}],
        "contexts":[{"name":"c","context":{"cluster":"k","user":"u"}}]}"#;
    let failure = activate(&activator(Vec::new()), spec(Credential::Kubeconfig(config.into()))).await;
    assert_eq!(failure.expect_err("a failure").class(), Class::ExecForbidden);
    let failure = activate(&activator(Vec::new()), AccountSpec::default()).await;
    assert_eq!(failure.expect_err("a failure").class(), Class::BadKubeconfig);
}

#[tokio::test]
async fn a_reference_of_a_missing_engine_fails_its_account_with_what_to_do() {
    let activator = activator(Vec::new());
    for (reference, says) in [
        ("encrypted:vault!e:secret!n:prod!k:kubeconfig", "of the engine \"vault\", which is not there"),
        ("encrypted:vault", "is a secret reference that is malformed"),
    ] {
        let path = Credential::File(reference.to_owned());
        let definition = Definition::split(spec(path)).1;
        let started = activator.start(&definition, DefinitionOrigin::OwnFile).await;
        let failure = started.expect_err("it is refused");
        assert_eq!(failure.class(), Class::BadReference);
        assert!(
            failure.message.contains(says) && failure.message.contains("mount the secret"),
            "{failure:?}"
        );
    }
}

#[tokio::test]
async fn a_file_is_read_through_links_that_stay_in_the_folder() {
    let (folder, outside) = (TempDir::new().expect("a folder"), TempDir::new().expect("a folder"));
    let authority = Authority::new();
    let server = TestServer::start(&authority, good).await;
    let config = kubeconfig(&server.url(), Some(&authority.pem()), "a-token-of-some-length");
    let at = |name: &str| folder.path().join(name);
    std::fs::create_dir(at("..data")).expect("a folder");
    std::fs::write(at("..data/config"), &config).expect("a file");
    symlink("..data/config", at("config")).expect("a link");
    std::fs::write(outside.path().join("config"), &config).expect("a file");
    symlink(outside.path().join("config"), at("leads-out")).expect("a link");
    std::fs::write(at("large"), vec![b' '; 300 * 1024]).expect("a file");

    let activator = activator(vec![folder.path().to_owned()]);
    let result = async |path: PathBuf| {
        let path = path.to_str().expect("UTF-8").to_owned();
        activate(&activator, spec(Credential::File(path))).await
    };
    assert_eq!(result(at("config")).await.expect("an identity").version, "v1.33.1");
    for (path, class, retryable) in [
        (at("leads-out"), Class::BadReference, false),
        (outside.path().join("config"), Class::BadReference, false),
        (at("missing"), Class::BadReference, true),
        (at("..data"), Class::BadReference, false),
        (at("large"), Class::BadKubeconfig, false),
    ] {
        let failure = result(path.clone()).await.expect_err("a failure");
        assert_eq!((failure.class(), failure.retryable), (class, retryable), "{path:?}: {failure:?}");
        assert!(failure.before_send);
    }
}

#[tokio::test]
async fn the_own_service_account_is_used() {
    let folder = TempDir::new().expect("a folder");
    let authority = Authority::new();
    let server = TestServer::start(&authority, good).await;
    std::fs::write(folder.path().join("token"), "own-token-of-the-pod\n").expect("a file");
    std::fs::write(folder.path().join("ca.crt"), authority.pem()).expect("a file");
    let place = ServiceAccountFiles {
        folder: folder.path().to_owned(),
        host: Some(server.address.ip().to_string()),
        port: Some(server.address.port().to_string()),
    };
    let activator = Activator { service_account: Arc::new(place), ..activator(Vec::new()) };
    let reached = activate(&activator, spec(Credential::ServiceAccount(true))).await.expect("an identity");
    assert_eq!(server.asked.lock()[0].authorization, "Bearer own-token-of-the-pod");
    assert!(!reached.kube_system_uid.is_empty());
    assert_eq!(activator.own_cluster().await, Some(reached.kube_system_uid), "the agent's own cluster");

    let nowhere = Activator { service_account: Arc::default(), ..activator };
    assert_eq!(nowhere.own_cluster().await, None);
    let failure = activate(&nowhere, spec(Credential::ServiceAccount(true))).await.expect_err("a failure");
    assert_eq!(failure.class(), Class::BadReference);
}

/// With other agents, a kind whose first discovery failed could not be used again until a restart.
#[tokio::test]
async fn kinds_that_could_not_be_read_at_first_are_there_at_the_next_try() {
    let broken = Arc::new(AtomicBool::new(true));
    let is_broken = Arc::clone(&broken);
    let authority = Authority::new();
    let server = TestServer::start(&authority, move |path| match path {
        "/apis" if is_broken.load(Ordering::SeqCst) => json(503, "{}"),
        path => good(path),
    })
    .await;
    let config = kubeconfig(&server.url(), Some(&authority.pem()), "a-token-of-some-length");
    let spec = spec(Credential::Kubeconfig(config));
    let activator = activator(Vec::new());
    let first = activate(&activator, spec.clone()).await;
    first.expect_err("its kinds cannot be read");
    broken.store(false, Ordering::SeqCst);
    activate(&activator, spec).await.expect("an identity");
}
