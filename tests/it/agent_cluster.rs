//! The agent's way to a cluster, against a real API server.

use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, StatusCode, Version};
use http_body_util::BodyExt as _;
use hyper::body::Bytes;
use kubesvc_agent::{
    Activator, ClusterClient, ClusterContext, ClusterEndpoint, ClusterRequest, ClusterResponse, Definition,
    DefinitionOrigin, RequestBody, ResponseBody, Use,
};
use kubesvc_core::agent_policy::AgentPolicy;
use kubesvc_core::kubeconfig::vet;
use kubesvc_core::wire::common::Failure;
use kubesvc_core::wire::common::failure::Class;
use kubesvc_core::wire::ops::account_spec::Credential;
use kubesvc_core::wire::ops::{AccountSpec, ClusterIdentity};

use kubesvc_testkit::controlplane::{ControlPlane, StartOptions, reused};
use kubesvc_testkit::must;

async fn activate(
    kubeconfig: &str,
    change: impl FnOnce(&mut AccountSpec),
) -> Result<ClusterIdentity, Failure> {
    let credential = Some(Credential::Kubeconfig(kubeconfig.as_bytes().to_vec()));
    let mut spec = AccountSpec { credential, ..AccountSpec::default() };
    change(&mut spec);
    let started =
        Activator::new(Vec::new(), 16).start(&Definition::split(spec).1, DefinitionOrigin::Hub).await;
    started.map(|reached| reached.identity)
}

#[tokio::test]
async fn real_cluster_is_reported_with_all_fields() {
    let mut options = StartOptions::default();
    let nobody = options.add_user("nobody-in-particular", &[]);
    let plane = must(ControlPlane::reused(options).await);
    for number in 0..3 {
        let made = plane.kubectl(["create", "namespace", &format!("team-{number}")]).await;
        assert_eq!(made.code, Some(0), "{made:?}");
    }

    let identity = activate(&plane.admin_kubeconfig(), |_| {}).await.expect("an identity");
    assert_eq!(identity.host, plane.server_url());
    assert!(identity.version.starts_with("v1."), "{identity:?}");
    assert_eq!(identity.kube_system_uid.len(), 36, "{identity:?}");
    assert_eq!(identity.cert_fingerprint.split(':').filter(|pair| pair.len() == 2).count(), 32);
    let names: Vec<_> = identity.namespaces.iter().filter(|name| name.starts_with("team-")).collect();
    assert_eq!(names, ["team-0", "team-1", "team-2"]);
    assert_eq!(identity.namespaces_count as usize, identity.namespaces.len());

    let certificate = must(plane.client_certificate("admin", Some("system:masters")));
    let by_certificate = activate(&plane.kubeconfig_for_certificate(&certificate), |_| {}).await;
    assert_eq!(by_certificate.expect("an identity").kube_system_uid, identity.kube_system_uid);

    let named = |spec: &mut AccountSpec| spec.namespaces = vec!["team-1".to_owned()];
    let poor = activate(&plane.kubeconfig_for_token(&nobody), named).await.expect("an identity");
    assert_eq!((poor.kube_system_uid.as_str(), poor.namespaces), ("", vec!["team-1".to_owned()]));

    let wrong = activate(&plane.kubeconfig_for_token("wrong-token-of-some-length"), |_| {}).await;
    let wrong = wrong.expect_err("a failure");
    assert_eq!((wrong.class(), wrong.http_status), (Class::Auth, 401));
    assert!(wrong.message.starts_with("GET /version of https://127.0.0.1:"), "{wrong:?}");

    let foreign = must(ControlPlane::start().await).admin_kubeconfig();
    let gone = tokio::time::timeout(Duration::from_secs(30), activate(&foreign, |_| {})).await;
    assert_eq!(gone.expect("an answer in time").expect_err("a failure").class(), Class::Unreachable);
}

/// Reads a watch until it says this.
async fn until_said(watch: &mut ResponseBody, expected: &str) -> String {
    let mut said = String::new();
    let reading = async {
        while !said.contains(expected) {
            let frame = watch.frame().await.expect("the watch goes on").expect("a frame");
            said.push_str(&String::from_utf8_lossy(&frame.into_data().expect("data")));
        }
    };
    tokio::time::timeout(Duration::from_secs(60), reading).await.expect("an event in time");
    said
}

#[tokio::test]
async fn cluster_client_creates_patches_deletes_and_watches() {
    let plane = reused().await;
    let vetted = vet(plane.admin_kubeconfig().as_bytes(), None).expect("a good kubeconfig");
    let endpoint = ClusterEndpoint::new(vetted, &AgentPolicy::default());
    let client = ClusterClient::new(endpoint, &ClusterContext::default()).expect("a client");
    let send = async |method: Method, path: &str, media: &'static str, body: RequestBody| {
        let request = ClusterRequest::new(method, path)
            .header(CONTENT_TYPE, HeaderValue::from_static(media))
            .body(body);
        client.send(Use::Requests, request).await.expect("a response")
    };
    let text = async |response: ClusterResponse| {
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        String::from_utf8_lossy(&body).into_owned()
    };

    let mut watches = Vec::new();
    for kind in ["namespaces", "namespaces", "configmaps"] {
        let path = format!("/api/v1/{kind}?watch=1");
        let watch = client.send(Use::Watches, ClusterRequest::new(Method::GET, path)).await.expect("a watch");
        assert_eq!((watch.status(), watch.version()), (StatusCode::OK, Version::HTTP_2));
        watches.push(watch.into_body());
    }

    let chunks = [r#"{"apiVersion":"v1","kind":"Namespace","#, r#""metadata":{"name":"streamed"}}"#];
    let body = RequestBody::stream(futures::stream::iter(chunks.map(|chunk| Ok(Bytes::from(chunk)))));
    let made = send(Method::POST, "/api/v1/namespaces", "application/json", body).await;
    assert_eq!((made.status(), made.version()), (StatusCode::CREATED, Version::HTTP_11));
    assert!(text(made).await.contains(r#""name":"streamed""#));

    let path = "/api/v1/namespaces/streamed";
    let patch = RequestBody::whole(r#"{"metadata":{"labels":{"patched":"yes"}}}"#);
    let patched = send(Method::PATCH, path, "application/merge-patch+json", patch).await;
    assert_eq!(patched.status(), StatusCode::OK);
    assert!(text(patched).await.contains(r#""patched":"yes""#));
    drop(watches.remove(0));
    let said = until_said(&mut watches[0], r#""patched":"yes""#).await;
    assert!(said.contains(r#"{"type":"ADDED""#) && said.contains(r#"{"type":"MODIFIED""#), "{said}");

    let deleted = send(Method::DELETE, path, "application/json", RequestBody::empty()).await;
    assert_eq!(deleted.status(), StatusCode::OK);
    until_said(&mut watches[0], "deletionTimestamp").await;
    let none = send(Method::GET, "/api/v1/namespaces/none", "application/json", RequestBody::empty()).await;
    assert_eq!(none.status(), StatusCode::NOT_FOUND);
}
