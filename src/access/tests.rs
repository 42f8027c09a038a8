//! Reviews against a scripted API server: what is asked, what is kept, and who is believed.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::BodyExt as _;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::audit::{AuditEvent, AuditLine, AuditLog};
use super::*;
use kubesvc_runtime::kube_access::KubeAccess;
use kubesvc_testkit::kubeconfig::Authority;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

type Answer = dyn Fn(&str, &Value) -> (u16, Value) + Send + Sync;

/// An API server that answers by a function of path and body, and keeps what it was asked.
#[derive(Clone)]
struct ScriptedApi {
    asked: Arc<Mutex<Vec<(String, Value)>>>,
    answer: Arc<Answer>,
}

impl ScriptedApi {
    fn new(answer: impl Fn(&str, &Value) -> (u16, Value) + Send + Sync + 'static) -> Self {
        Self { asked: Arc::default(), answer: Arc::new(answer) }
    }

    fn access(&self, mode: AccessMode) -> Arc<dyn Access> {
        KubeAccessReviews::new(&self.kube(), mode)
    }

    fn kube(&self) -> KubeAccess {
        let this = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let this = this.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await.expect("a body").to_bytes();
                let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
                let (code, answer) = (this.answer)(head.uri.path(), &body);
                this.asked.lock().push((head.uri.path().to_owned(), body));
                let answer = Body::from(answer.to_string().into_bytes());
                Ok::<_, Infallible>(Response::builder().status(code).body(answer).expect("an answer"))
            }
        });
        KubeAccess::new(kube::Client::new(service, "ns"), "test")
    }

    fn count(&self) -> usize {
        self.asked.lock().len()
    }
}

fn with_token(token: &str) -> HeaderMap {
    let value = HeaderValue::from_str(&format!("Bearer {token}")).expect("a header");
    HeaderMap::from_iter([(http::header::AUTHORIZATION, value)])
}

async fn who(access: &Arc<dyn Access>, headers: &HeaderMap) -> Result<Principal, AccessError> {
    access.authenticate(Caller { headers, certificates: &[] }).await
}

fn proxy(verb: &'static str) -> RequestedAccess {
    let (namespace, object) = ("ns".to_owned(), "prod".to_owned());
    RequestedAccess { verb, resource: AccessResource::Proxy, namespace, object }
}

fn ann() -> Principal {
    let (name, uid) = ("ann".to_owned(), String::new());
    Principal { name, groups: vec!["dev".to_owned()], uid, extra: BTreeMap::new(), via: Via::Token }
}

#[tokio::test]
async fn a_token_is_reviewed_for_its_audience_and_kept_for_a_while() {
    let api = ScriptedApi::new(|_, review| {
        let status = match review["spec"]["token"].as_str() {
            Some("good") => {
                json!({"authenticated": true, "audiences": ["kubesvc"], "user": {"username": "ann", "groups": ["dev"]}})
            }
            // An API server that knows no audiences.
            Some("its own") => json!({"authenticated": true, "user": {"username": "root"}}),
            _ => json!({"authenticated": false, "error": "token s3cret is bad"}),
        };
        (201, json!({"spec": {}, "status": status}))
    });
    let access = api.access(AccessMode::Required);
    for _ in 0..3 {
        let principal = who(&access, &with_token("good")).await.expect("known");
        assert_eq!((principal.name.as_str(), principal.via), ("ann", Via::Token));
    }
    assert_eq!(api.count(), 1, "a yes is kept");
    assert_eq!(api.asked.lock()[0].1["spec"]["audiences"], json!(["kubesvc"]));
    for token in ["its own", "s3cret"] {
        let error = who(&access, &with_token(token)).await.expect_err("not for us");
        assert_eq!(error.status(), StatusCode::UNAUTHORIZED);
        assert!(!error.to_string().contains("s3cret") && error.to_string().contains("audience"), "{error}");
    }
    let nothing = who(&access, &HeaderMap::new()).await.expect_err("no token");
    assert_eq!(nothing.status(), StatusCode::UNAUTHORIZED);
}

#[tokio::test(start_paused = true)]
async fn a_yes_is_kept_ten_seconds_and_a_no_one() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let api = ScriptedApi::new(move |_, review| {
        counted.fetch_add(1, Ordering::Relaxed);
        let allowed = review["spec"]["resourceAttributes"]["verb"] == "get";
        (201, json!({"spec": {}, "status": {"allowed": allowed}}))
    });
    let access = api.access(AccessMode::Required);
    for (verb, lifetime) in [("get", 10_000), ("delete", 1_000)] {
        let before = asked.load(Ordering::Relaxed);
        let first = access.authorize(&ann(), &proxy(verb)).await;
        assert_eq!(first.is_ok(), verb == "get");
        tokio::time::advance(Duration::from_millis(lifetime - 100)).await;
        let _ = access.authorize(&ann(), &proxy(verb)).await;
        assert_eq!(asked.load(Ordering::Relaxed), before + 1, "{verb} is kept");
        tokio::time::advance(Duration::from_millis(200)).await;
        let _ = access.authorize(&ann(), &proxy(verb)).await;
        assert_eq!(asked.load(Ordering::Relaxed), before + 2, "{verb} is asked again");
    }
    let review = api.asked.lock()[0].clone();
    assert_eq!(review.0, "/apis/authorization.k8s.io/v1/subjectaccessreviews");
    let attributes = json!({"group": "proxy.kubesvc.io", "version": "v1alpha1", "resource": "accounts",
        "subresource": "proxy", "verb": "get", "namespace": "ns", "name": "prod"});
    assert_eq!(review.1["spec"]["resourceAttributes"], attributes);
    assert_eq!(review.1["spec"]["groups"], json!(["dev"]));
    // Another user, another verb, another account: other questions.
    let count = asked.load(Ordering::Relaxed);
    let bob = Principal { name: "bob".to_owned(), ..ann() };
    access.authorize(&bob, &proxy("get")).await.expect("allowed");
    access
        .authorize(&ann(), &RequestedAccess { object: "other".to_owned(), ..proxy("get") })
        .await
        .expect("yes");
    assert_eq!(asked.load(Ordering::Relaxed), count + 2);
}

#[tokio::test]
async fn each_resource_is_asked_about_as_rbac_names_it_and_a_refusal_names_it() {
    let api = ScriptedApi::new(|_, _| (201, json!({"spec": {}, "status": {"allowed": false}})));
    let access = api.access(AccessMode::Required);
    use AccessResource as R;
    for (resource, attributes, said) in [
        (R::Cache, ("proxy.kubesvc.io", "v1alpha1", "accounts", "cache"), "get accounts/cache"),
        (R::Accounts, ("kubesvc.io", "v1alpha1", "kubesvcaccounts", ""), "get kubesvcaccounts"),
        (
            R::AccountSources,
            ("kubesvc.io", "v1alpha1", "kubesvcaccounts", "sources"),
            "kubesvcaccounts/sources",
        ),
        (R::AccountUsers, ("kubesvc.io", "v1alpha1", "kubesvcaccounts", "users"), "kubesvcaccounts/users"),
        (R::Agents, ("kubesvc.io", "v1alpha1", "kubesvcagents", ""), "get kubesvcagents"),
        (
            R::Secrets,
            ("", "v1", "secrets", ""),
            "get secrets in API group \"\" of object \"prod\" in namespace \"ns\"",
        ),
    ] {
        let refused = access.authorize(&ann(), &RequestedAccess { resource, ..proxy("get") }).await;
        let refused = refused.expect_err("denied").to_string();
        assert!(refused.contains(said) && refused.contains("\"ann\""), "{refused}");
        let asked = api.asked.lock().last().expect("asked").1["spec"]["resourceAttributes"].clone();
        let text = |key: &str| asked[key].as_str().unwrap_or_default().to_owned();
        let (group, version, name, subresource) = attributes;
        assert_eq!(
            [text("group"), text("version"), text("resource"), text("subresource")],
            [group, version, name, subresource]
        );
    }
    let path = RequestedAccess { resource: R::Path("/metrics"), ..proxy("get") };
    let refused = access.authorize(&ann(), &path).await.expect_err("denied").to_string();
    assert!(refused.contains("get the path /metrics"), "{refused}");
    let asked = api.asked.lock().last().expect("asked").1["spec"].clone();
    assert_eq!(asked["nonResourceAttributes"], json!({"path": "/metrics", "verb": "get"}));
    assert!(asked.get("resourceAttributes").is_none());
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_is_silent_is_no_answer_after_two_seconds() {
    let service =
        tower::service_fn(|_: Request<Body>| std::future::pending::<Result<Response<Body>, Infallible>>());
    let kube = KubeAccess::new(kube::Client::new(service, "ns"), "test");
    let access = KubeAccessReviews::new(&kube, AccessMode::Required);
    let (token, ann, wanted) = (with_token("x"), ann(), proxy("get"));
    let began = tokio::time::Instant::now();
    let caller = Caller { headers: &token, certificates: &[] };
    let (who, may, again) = tokio::join!(
        access.authenticate(caller),
        access.authorize(&ann, &wanted),
        access.authorize(&ann, &wanted),
    );
    for error in [who.expect_err("silent"), may.expect_err("silent"), again.expect_err("silent")] {
        assert_eq!(error.status(), StatusCode::SERVICE_UNAVAILABLE);
    }
    assert!(began.elapsed() < Duration::from_millis(2_100), "{:?}", began.elapsed());
}

#[tokio::test]
async fn certificates_of_rests_callers_are_users_and_never_the_front_proxy() {
    let authority = Authority::new("front-proxy-ca").expect("an authority");
    let api = ScriptedApi::new(|_, review| {
        let is_good = review["spec"]["token"] == "good";
        let status = json!({"authenticated": is_good, "audiences": ["kubesvc"], "user": {"username": "ann"}});
        (201, json!({"spec": {}, "status": status}))
    });
    let certificates = vec![client_certificate(&authority, "front-proxy-client")];
    let known =
        kubesvc_core::identity::Subject::read(&certificates[0]).expect("a subject").as_str().to_owned();
    let user = CertificateUser {
        shown: ShownCertificate::Subject(known),
        user: "gate".to_owned(),
        groups: Vec::new(),
    };
    let access = KubeAccessReviews::of_rest(&api.kube(), CertificateUsers(vec![user]));
    let nothing = HeaderMap::new();
    let ask = async |headers: &HeaderMap, certificates: &[Vec<u8>]| {
        access.authenticate(Caller { headers, certificates }).await.map(|principal| principal.name)
    };
    assert_eq!(ask(&remote("root"), &certificates).await.expect("the certificate's user"), "gate");
    assert_eq!(ask(&with_token("good"), &certificates).await.expect("the token's user"), "ann");
    assert!(ask(&with_token("bad"), &certificates).await.is_err(), "a token that is shown is what counts");
    let other = vec![client_certificate(&Authority::new("x").expect("an authority"), "somebody")];
    let refused = ask(&remote("root"), &other).await.expect_err("nobody");
    assert!(refused.to_string().contains("kubesvc.rest.auth.certificates"), "{refused}");
    assert!(ask(&nothing, &[]).await.is_err());
    assert!(!access.is_front_proxy(&certificates).await);
    assert!(access.is_certified(&certificates) && !access.is_certified(&other) && !access.is_certified(&[]));
    let (good, bad) = (with_token("good"), with_token("bad"));
    let was_known = |headers| access.was_known(Caller { headers, certificates: &[] });
    assert!(was_known(&good) && !was_known(&bad) && !was_known(&nothing));
}

#[tokio::test]
async fn an_api_server_that_cannot_be_asked_is_no_yes_and_is_asked_again() {
    let failing = Arc::new(AtomicUsize::new(2));
    let left = Arc::clone(&failing);
    let api = ScriptedApi::new(move |_, _| {
        let is_failing = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        match is_failing {
            Ok(2) => (500, json!({"kind": "Status", "code": 500, "message": "etcd"})),
            Ok(_) => (
                403,
                json!({"kind": "Status", "code": 403, "reason": "Forbidden", "message": "is forbidden"}),
            ),
            Err(_) => (201, json!({"spec": {}, "status": {"allowed": true}})),
        }
    });
    let access = api.access(AccessMode::Required);
    for _ in 0..2 {
        let error = access.authorize(&ann(), &proxy("get")).await.expect_err("nobody answers");
        assert_eq!(error.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(!error.to_string().contains("forbidden"), "{error}");
    }
    access.authorize(&ann(), &proxy("get")).await.expect("asked again");
}

#[tokio::test]
async fn without_authentication_everybody_is_nobody_and_nothing_is_asked() {
    let api = ScriptedApi::new(|_, _| (500, Value::Null));
    let access = api.access(AccessMode::Nobody);
    let principal = who(&access, &with_token("x")).await.expect("nobody is asked");
    assert_eq!(principal.via, Via::Nobody);
    access.authorize(&principal, &proxy("delete")).await.expect("everybody may");
    assert_eq!(api.count(), 0);
}

#[tokio::test]
async fn reviews_beyond_those_that_may_wait_are_unavailable_at_once_and_rights_have_places_of_their_own() {
    let api = ScriptedApi::new(|path, _| {
        let is_right = path.contains("subjectaccessreviews");
        let status = if is_right { json!({"allowed": true}) } else { json!({"authenticated": false}) };
        (201, json!({"spec": {}, "status": status}))
    });
    let access = api.access(AccessMode::Required);
    let tokens: Vec<_> = (0..300).map(|number| with_token(&number.to_string())).collect();
    let asked = futures::future::join_all(tokens.iter().map(|headers| who(&access, headers)));
    let (ann, wanted) = (ann(), proxy("get"));
    // All of them ask before the first is answered.
    let asked = tokio::task::unconstrained(asked);
    let (answers, right) = tokio::join!(asked, access.authorize(&ann, &wanted));
    right.expect("tokens take no place of rights");
    let statuses: Vec<_> =
        answers.into_iter().map(|answer| answer.expect_err("no token is good").status()).collect();
    let unavailable = statuses.iter().filter(|status| **status == StatusCode::SERVICE_UNAVAILABLE).count();
    assert_eq!(unavailable, 300 - 32 - 80);
}

#[tokio::test(start_paused = true)]
async fn a_token_that_was_good_is_reviewed_again_beside_a_flood_of_others() {
    let api = ScriptedApi::new(|_, review| {
        let is_good = review["spec"]["token"] == "good";
        let status = json!({"authenticated": is_good, "audiences": ["kubesvc"], "user": {"username": "ann"}});
        (201, json!({"spec": {}, "status": status}))
    });
    let access = api.access(AccessMode::Required);
    let good = with_token("good");
    who(&access, &good).await.expect("it is good");
    // Longer than a yes is kept.
    tokio::time::advance(Duration::from_secs(11)).await;
    let tokens: Vec<_> = (0..300).map(|number| with_token(&number.to_string())).collect();
    let asked = futures::future::join_all(tokens.iter().map(|headers| who(&access, headers)));
    let (_, again) = tokio::task::unconstrained(async { tokio::join!(asked, who(&access, &good)) }).await;
    assert_eq!(again.expect("others take no place of it").name, "ann");
    assert_eq!(api.count(), 2 + 32 + 80);
}

fn front_proxy_api(authority: &Authority) -> ScriptedApi {
    front_proxy_api_with(authority, json!({"requestheader-uid-headers": r#"["X-Remote-Uid"]"#}))
}

/// The same with these further settings.
fn front_proxy_api_with(authority: &Authority, further: Value) -> ScriptedApi {
    let pem = authority.pem();
    ScriptedApi::new(move |path, _| {
        assert_eq!(path, "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication");
        let mut data = json!({
            "requestheader-client-ca-file": pem,
            "requestheader-allowed-names": r#"["front-proxy-client"]"#,
            "requestheader-username-headers": r#"["X-Remote-User"]"#,
            "requestheader-group-headers": r#"["X-Remote-Group"]"#,
            "requestheader-extra-headers-prefix": r#"["X-Remote-Extra-"]"#,
        });
        for (key, value) in further.as_object().into_iter().flatten() {
            data[key] = value.clone();
        }
        (200, json!({"metadata": {"name": "extension-apiserver-authentication"}, "data": data}))
    })
}

fn client_certificate(authority: &Authority, name: &str) -> Vec<u8> {
    let identity = authority.client(name, None).expect("a certificate");
    CertificateDer::from_pem_slice(identity.certificate.as_bytes()).expect("a certificate").to_vec()
}

fn remote(user: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let mut put = |name: &'static str, value: &str| {
        headers.append(name, HeaderValue::from_str(value).expect("a header"));
    };
    put("x-remote-user", user);
    put("x-remote-group", "a");
    put("x-remote-group", "b");
    put("x-remote-uid", "42");
    put("x-remote-extra-example.com%2fkey", "one");
    headers
}

#[tokio::test]
async fn the_front_proxy_is_known_by_its_certificate_and_says_who_calls() {
    let authority = || Authority::new("front-proxy-ca").expect("an authority");
    let (authority, other) = (authority(), authority());
    let api = front_proxy_api(&authority);
    let access = api.access(AccessMode::Required);
    let certificate = |authority: &Authority, name: &str| vec![client_certificate(authority, name)];
    let good = certificate(&authority, "front-proxy-client");
    let headers = remote("ann");
    let caller = Caller { headers: &headers, certificates: &good };
    let principal = access.authenticate(caller).await.expect("the front proxy");
    assert_eq!((principal.name.as_str(), principal.uid.as_str()), ("ann", "42"));
    assert_eq!(principal.groups, ["a", "b"]);
    assert_eq!(principal.extra["example.com/key"], ["one"]);
    assert_eq!(principal.via, Via::FrontProxy);
    assert_eq!(api.count(), 1);

    let empty = HeaderMap::new();
    let unnamed = access.authenticate(Caller { headers: &empty, certificates: &good }).await;
    assert_eq!(unnamed.expect_err("nobody").status(), StatusCode::UNAUTHORIZED);

    for wrong in [
        certificate(&other, "front-proxy-client"),
        certificate(&authority, "somebody"),
        vec![b"no certificate".to_vec()],
        vec![good[0].clone(); 9],
        Vec::new(),
    ] {
        let caller = Caller { headers: &headers, certificates: &wrong };
        let error = access.authenticate(caller).await.expect_err("not the front proxy");
        assert_eq!(error.status(), StatusCode::UNAUTHORIZED, "{error}");
    }
    assert!(api.count() <= 2, "certificates of strangers do not make the operator read again and again");
}

#[tokio::test]
async fn a_users_id_counts_only_where_the_config_map_names_its_header() {
    let authority = Authority::new("front-proxy-ca").expect("an authority");
    let certificates = vec![client_certificate(&authority, "front-proxy-client")];
    let headers = remote("ann");
    for further in [json!({}), json!({"requestheader-uid-headers": "[]"})] {
        let access = front_proxy_api_with(&authority, further).access(AccessMode::Required);
        let caller = Caller { headers: &headers, certificates: &certificates };
        assert_eq!(access.authenticate(caller).await.expect("the front proxy").uid, "");
    }
}

#[tokio::test]
async fn a_config_map_that_cannot_be_read_lets_nobody_pass_for_the_front_proxy() {
    let api = ScriptedApi::new(|_, _| (403, json!({"kind": "Status", "code": 403, "reason": "Forbidden"})));
    let access = api.access(AccessMode::Required);
    let certificates =
        vec![client_certificate(&Authority::new("ca").expect("an authority"), "front-proxy-client")];
    let headers = remote("root");
    let error = access.authenticate(Caller { headers: &headers, certificates: &certificates }).await;
    let error = error.expect_err("nobody");
    assert_eq!(error.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(error.to_string().contains("extension-apiserver-authentication-reader"), "{error}");
}

#[test]
fn an_audit_line_is_one_json_object_and_what_is_not_known_is_left_out() {
    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);
    impl std::io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let written = Written::default();
    let log = AuditLog::to(written.clone());
    let (principal, long) = (ann(), "x\n".repeat(5_000));
    log.write(&AuditLine {
        principal: Some(&principal),
        account: "prod",
        verb: "patch",
        name: &long,
        code: Some(200),
        duration: Some(Duration::from_millis(7)),
        ..AuditLine::new(AuditEvent::Write, "01")
    });
    log.write(&AuditLine { reason: "no", ..AuditLine::new(AuditEvent::Refusal, "02") });
    let text = String::from_utf8(written.0.lock().clone()).expect("text");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    assert_eq!(lines.len(), 2);
    assert_eq!((&lines[0]["message"], &lines[0]["principal"]), (&json!("write"), &json!("ann")));
    assert_eq!(
        (&lines[0]["via"], &lines[0]["ms"], &lines[0]["code"]),
        (&json!("token"), &json!(7), &json!(200))
    );
    assert_eq!(lines[0]["name"].as_str().map(str::len), Some(512));
    assert!(lines[1].get("principal").is_none() && lines[1]["requestId"] == "02");
}
