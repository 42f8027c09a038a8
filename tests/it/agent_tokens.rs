//! Bearer tokens of agents, made and reviewed by real API servers.
#![expect(clippy::panic, reason = "this is how a test fails")]

use std::sync::Arc;
use std::time::Duration;

use http::Request;
use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Pod, Secret, ServiceAccount};
use kube::api::{DeleteParams, PostParams};
use kube::{Client, Resource, ResourceExt as _};
use kubesvc::{
    ALGORITHMS, AUDIENCE, AgentTokens as _, BearerSettings, BearerTokens, IssuerSettings, KeyLocation,
    TokenError, TokenSecretNames,
};
use kubesvc_core::identity::{TokenFacts, TokenHolder, TokenSecret};
use kubesvc_runtime::kube_access::KubeAccess;
use kubesvc_testkit::controlplane::{ControlPlane, reused, shared};
use kubesvc_testkit::namespace::TestNamespace;
use kubesvc_testkit::{must, wait::eventually};
use secrecy::SecretString;
use serde_json::{Value, json};

/// An API server keeps its own answer about a token for 10 s.
const MAX_WAIT: Duration = Duration::from_secs(45);
const ISSUER: &str = "https://kubernetes.default.svc";

fn object<T: serde::de::DeserializeOwned>(json: Value) -> T {
    serde_json::from_value(json).expect("an object")
}

async fn create<K>(namespace: &TestNamespace, object: &K) -> K
where
    K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + serde::Serialize
        + serde::de::DeserializeOwned
        + Clone
        + std::fmt::Debug,
{
    must(namespace.api::<K>().create(&PostParams::default(), object).await.map_err(|e| e.to_string()))
}

async fn service_account(namespace: &TestNamespace, name: &str) {
    create::<ServiceAccount>(namespace, &object(json!({"metadata": {"name": name}}))).await;
}

/// A token of a service account, bound to another object if there is one.
async fn token(
    namespace: &TestNamespace,
    account: &str,
    audience: &str,
    bound_object_ref: Option<BoundObjectReference>,
) -> String {
    let spec = TokenRequestSpec {
        audiences: vec![audience.to_owned()],
        expiration_seconds: Some(3600),
        bound_object_ref,
    };
    let request = TokenRequest { spec, ..TokenRequest::default() };
    let accounts = namespace.api::<ServiceAccount>();
    let made = accounts.create_token_request(account, &PostParams::default(), &request).await;
    must(made.map_err(|e| e.to_string())).status.expect("the API server fills it").token
}

async fn tokens(
    client: Client,
    namespace: &str,
    token_review: bool,
    issuers: Vec<IssuerSettings>,
    secrets: TokenSecretNames,
) -> Arc<BearerTokens> {
    let settings = BearerSettings { token_review, issuers };
    let kube = KubeAccess::new(client, "kubesvc-operator");
    must(BearerTokens::read(&settings, &kube, namespace, secrets).await.map_err(|e| e.to_string()))
}

async fn reviewed(plane: &ControlPlane) -> Arc<BearerTokens> {
    tokens(plane.client().await, "default", true, Vec::new(), Arc::new(Vec::new)).await
}

async fn verify(tokens: &Arc<BearerTokens>, token: &str) -> Result<TokenFacts, TokenError> {
    tokens.verify(&SecretString::from(token)).await
}

/// Waits until a token is refused; fails if nothing can be said of it.
async fn until_refused(tokens: &Arc<BearerTokens>, token: &str) -> String {
    eventually("the token is refused", MAX_WAIT, async || match verify(tokens, token).await {
        Err(TokenError::Invalid(why)) => Ok(why),
        other => Err(format!("{other:?}")),
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_for_the_hub_names_its_service_account_and_others_are_refused() {
    let plane = shared().await;
    let namespace = plane.namespace().await;
    service_account(&namespace, "east").await;
    let tokens = reviewed(plane).await;
    let now = Timestamp::now().as_second();
    let facts = must(
        verify(&tokens, &token(&namespace, "east", AUDIENCE, None).await).await.map_err(|e| e.to_string()),
    );
    let (account_namespace, name) = (namespace.name().to_owned(), "east".to_owned());
    assert_eq!(facts.holder, TokenHolder::ServiceAccount { namespace: account_namespace, name });
    assert!(facts.id.as_ref().is_some_and(|id| id.len() == 36 && !id.contains('=')), "{:?}", facts.id);
    assert!(facts.issued_at.is_some_and(|at| (at - now).abs() < 30), "{:?}", facts.issued_at);
    assert!(facts.expires.is_some_and(|at| (at - now - 3600).abs() < 30), "{:?}", facts.expires);
    for audience in ["kubesvc", ISSUER] {
        match verify(&tokens, &token(&namespace, "east", audience, None).await).await {
            Err(TokenError::Invalid(why)) => assert!(why.contains("audience"), "{audience}: {why}"),
            other => panic!("{audience}: {other:?}"),
        }
    }
    let good = token(&namespace, "east", AUDIENCE, None).await;
    for bad in [format!("{good}x"), good[..good.len() - 4].to_owned(), format!("{good}.")] {
        assert!(matches!(verify(&tokens, &bad).await, Err(TokenError::Invalid(_))));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_ends_with_what_it_is_bound_to() {
    let plane = shared().await;
    let namespace = plane.namespace().await;
    for name in ["east", "west", "gone"] {
        service_account(&namespace, name).await;
    }
    let secret: Secret = create(&namespace, &object(json!({"metadata": {"name": "bound"}}))).await;
    let pod = json!({"metadata": {"name": "agent"}, "spec": {
        "serviceAccountName": "west", "automountServiceAccountToken": false,
        "containers": [{"name": "agent", "image": "agent"}],
    }});
    let pod: Pod = create(&namespace, &object(pod)).await;
    let bound = |kind: &str, name: String, uid: Option<String>| BoundObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some(kind.to_owned()),
        name: Some(name),
        uid,
    };
    let to_secret = bound("Secret", secret.name_any(), secret.uid());
    let to_pod = bound("Pod", pod.name_any(), pod.uid());
    let of_secret = token(&namespace, "east", AUDIENCE, Some(to_secret)).await;
    let of_pod = token(&namespace, "west", AUDIENCE, Some(to_pod)).await;
    let of_account = token(&namespace, "gone", AUDIENCE, None).await;
    let tokens = reviewed(plane).await;
    for token in [&of_secret, &of_pod, &of_account] {
        must(verify(&tokens, token).await.map_err(|e| e.to_string()));
    }
    let now = DeleteParams::default().grace_period(0);
    must(namespace.api::<Secret>().delete("bound", &now).await.map(drop).map_err(|e| e.to_string()));
    must(namespace.api::<Pod>().delete("agent", &now).await.map(drop).map_err(|e| e.to_string()));
    must(namespace.api::<ServiceAccount>().delete("gone", &now).await.map(drop).map_err(|e| e.to_string()));
    for token in [&of_secret, &of_pod, &of_account] {
        assert!(until_refused(&tokens, token).await.contains("does not accept it any more"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_cluster_is_an_issuer_by_its_keys_and_one_that_is_away_is_no_refusal() {
    let (own, other) = (reused().await, shared().await);
    let (own_namespace, other_namespace) = (own.namespace().await, other.namespace().await);
    service_account(&own_namespace, "east").await;
    service_account(&other_namespace, "east").await;
    let file = tempfile::NamedTempFile::new().expect("a file");
    let get = Request::get("/openid/v1/jwks").body(Vec::new()).expect("a request");
    let keys = must(other.client().await.request_text(get).await.map_err(|e| e.to_string()));
    std::fs::write(file.path(), keys).expect("written");
    let issuer = IssuerSettings {
        // Both clusters have the same.
        issuer: ISSUER.to_owned(),
        audience: AUDIENCE.to_owned(),
        keys: KeyLocation::File(file.path().to_owned()),
        algorithms: ALGORITHMS.map(|(_, algorithm)| algorithm).to_vec(),
    };
    let client = own.client().await;
    let both = tokens(client.clone(), "default", true, vec![issuer.clone()], Arc::new(Vec::new)).await;
    let of_own = token(&own_namespace, "east", AUDIENCE, None).await;
    let of_other = token(&other_namespace, "east", AUDIENCE, None).await;
    let facts = must(verify(&both, &of_own).await.map_err(|e| e.to_string()));
    assert!(matches!(facts.holder, TokenHolder::ServiceAccount { .. }), "{facts:?}");
    let facts = must(verify(&both, &of_other).await.map_err(|e| e.to_string()));
    let TokenHolder::Jwt { issuer: by, subject, claims } = facts.holder else { panic!("{facts:?}") };
    let user = format!("system:serviceaccount:{other_namespace}:east");
    assert_eq!((by.as_str(), subject.as_str()), (ISSUER, user.as_str()));
    assert_eq!(claims["kubernetes.io"]["namespace"], other_namespace.name());
    // Without the other's keys its tokens are strangers', and without a review those of the own cluster are.
    let alone = tokens(client.clone(), "default", true, Vec::new(), Arc::new(Vec::new)).await;
    assert!(matches!(verify(&alone, &of_other).await, Err(TokenError::Invalid(_))));
    let unreviewed = tokens(client.clone(), "default", false, vec![issuer.clone()], Arc::new(Vec::new)).await;
    assert!(matches!(verify(&unreviewed, &of_own).await, Err(TokenError::Invalid(_))));

    let next = token(&own_namespace, "east", AUDIENCE, None).await;
    own.stop_apiserver();
    assert!(matches!(verify(&both, &next).await, Err(TokenError::Unavailable(_))), "its keys are known");
    let fresh = tokens(client, "default", true, vec![issuer], Arc::new(Vec::new)).await;
    assert!(matches!(verify(&fresh, &next).await, Err(TokenError::Unavailable(_))), "its keys are not known");
    must(verify(&fresh, &of_other).await.map_err(|e| format!("the other's needs no call: {e}")));
    must(own.start_apiserver().await);
    eventually("the token is reviewed again", MAX_WAIT, async || match verify(&both, &next).await {
        Ok(_) => Ok(()),
        Err(error @ TokenError::Unavailable(_)) => Err(error.to_string()),
        Err(error) => panic!("{error}"),
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_static_token_is_the_content_of_a_secret_of_the_own_namespace() {
    const TOKEN: &str = "an-agents-token-of-more-than-32-bytes";
    let namespace = shared().await.namespace().await;
    let secret =
        json!({"metadata": {"name": "agent"}, "stringData": {"token": format!("{TOKEN}\n"), "short": "x"}});
    create::<Secret>(&namespace, &object(secret)).await;
    let named: Vec<_> =
        ["token", "short"].map(|key| TokenSecret { name: "agent".to_owned(), key: key.to_owned() }).into();
    let names = named.clone();
    let tokens =
        tokens(namespace.client(), namespace.name(), false, Vec::new(), Arc::new(move || names.clone()))
            .await;
    let facts = must(verify(&tokens, TOKEN).await.map_err(|e| e.to_string()));
    assert_eq!(facts.holder, TokenHolder::Secrets(vec![named[0].clone()]));
    assert!(matches!(verify(&tokens, "x").await, Err(TokenError::Invalid(_))));
    let deleted = namespace.api::<Secret>().delete("agent", &DeleteParams::default()).await;
    must(deleted.map(drop).map_err(|e| e.to_string()));
    // Unknown tokens have it read again, at most every 10 s.
    eventually("the token is refused", MAX_WAIT, async || {
        let _ = verify(&tokens, &format!("{TOKEN}-unknown")).await;
        match verify(&tokens, TOKEN).await {
            Err(TokenError::Invalid(_)) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}
