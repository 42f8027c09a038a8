//! Tokens of the own cluster, of issuers, and of both at once.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use jiff::Timestamp;
use jsonwebtoken::Algorithm;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};

use super::fetched_keys::{IssuerServer, Reply};
use super::issuer::{ISSUER, SigningKey, claims, jwks};
use super::scripted_api::ScriptedApi;
use super::{refused, shown_token, unavailable};
use crate::agent_tokens::issuers::ALGORITHMS;
use crate::agent_tokens::{AUDIENCE, BearerSettings, BearerTokens, IssuerSettings, KeyLocation};
use kubesvc_core::identity::TokenHolder;
use kubesvc_runtime::telemetry::errors::chain;

const OWN: &str = "https://kubernetes.default.svc.cluster.local";
const USER: &str = "system:serviceaccount:agents:east";
const DOCUMENT: &str = "/.well-known/openid-configuration";
const KEYS: &str = "/openid/v1/jwks";
const REVIEWS: &str = "/tokenreviews";

fn now() -> i64 {
    Timestamp::now().as_second()
}

/// An own cluster with these keys, whose reviews are answered with this status.
fn cluster(keys: String, status: impl Fn() -> (u16, Value) + Send + Sync + 'static) -> ScriptedApi {
    ScriptedApi::new(move |path, _| match path {
        DOCUMENT => (200, json!({"issuer": OWN, "jwks_uri": "https://10.0.0.1/openid/v1/jwks"})),
        KEYS => (200, serde_json::from_str(&keys).expect("JSON")),
        _ => {
            assert_eq!(path, "/apis/authentication.k8s.io/v1/tokenreviews");
            let (code, status) = status();
            (code, json!({"spec": {}, "status": status}))
        }
    })
}

fn accepted() -> Value {
    json!({"authenticated": true, "audiences": [AUDIENCE], "user": {
        "username": USER, "extra": {"authentication.kubernetes.io/credential-id": ["JTI=reviewed"]},
    }})
}

/// A token of the service account.
fn own_token(key: &SigningKey) -> String {
    let mut claims = claims(now());
    (claims["iss"], claims["sub"], claims["aud"]) = (json!(OWN), json!(USER), json!([AUDIENCE]));
    key.token(&claims)
}

fn issuer(keys: KeyLocation) -> IssuerSettings {
    let algorithms = ALGORITHMS.map(|(_, algorithm)| algorithm).to_vec();
    IssuerSettings { issuer: ISSUER.to_owned(), audience: AUDIENCE.to_owned(), keys, algorithms }
}

async fn tokens(api: &ScriptedApi, token_review: bool, issuers: Vec<IssuerSettings>) -> Arc<BearerTokens> {
    let settings = BearerSettings { token_review, issuers };
    BearerTokens::read(&settings, &api.kube(), "own", Arc::new(Vec::new))
        .await
        .expect("the files can be used")
}

fn file(text: &str) -> (tempfile::NamedTempFile, KeyLocation) {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), text).expect("written");
    let place = KeyLocation::File(file.path().to_owned());
    (file, place)
}

#[tokio::test(start_paused = true)]
async fn a_service_account_is_reviewed_and_the_answer_kept_for_five_seconds() {
    let key = SigningKey::new("k1", Algorithm::RS256);
    let holds = Arc::new(Mutex::new(true));
    let still = Arc::clone(&holds);
    let api = cluster(jwks([&key]), move || {
        (201, if *still.lock() { accepted() } else { json!({"authenticated": false, "error": "hunter2"}) })
    });
    let tokens = tokens(&api, true, Vec::new()).await;
    let token = own_token(&key);
    let all = join_all((0..50).map(|_| shown_token(&tokens, &token))).await;
    for facts in all {
        let facts = facts.expect("it is accepted");
        let (namespace, name) = ("agents".to_owned(), "east".to_owned());
        assert_eq!(facts.holder, TokenHolder::ServiceAccount { namespace, name });
        assert_eq!(facts.id.as_deref(), Some("reviewed"));
        assert!(facts.issued_at.is_some() && facts.expires.is_some_and(|end| end > now() + 3000));
    }
    let reviews = api.asked(REVIEWS);
    assert_eq!(reviews.len(), 1, "one flight, and a kept answer");
    assert_eq!(reviews[0]["spec"], json!({"token": token, "audiences": [AUDIENCE]}));
    *holds.lock() = false;
    tokio::time::advance(Duration::from_millis(4900)).await;
    shown_token(&tokens, &token).await.expect("kept");
    tokio::time::advance(Duration::from_millis(200)).await;
    let said = refused(shown_token(&tokens, &token).await);
    assert!(said.contains("not accept it any more") && !said.contains("hunter2"), "{said}");
    assert_eq!((api.asked(REVIEWS).len(), api.asked(KEYS).len(), api.asked(DOCUMENT).len()), (2, 1, 1));
}

#[tokio::test]
async fn only_a_review_that_says_all_is_a_yes() {
    let with = |change: fn(&mut Value)| {
        let mut status = accepted();
        change(&mut status);
        status
    };
    let user = |name: &'static str| {
        let mut status = accepted();
        status["user"]["username"] = json!(name);
        status
    };
    for (status, expected) in [
        (json!({}), "not accept"),
        (with(|status| status["authenticated"] = json!(false)), "not accept"),
        (
            with(|status| status["audiences"] = json!(["kubernetes"])),
            "does not say that it is for kubesvc-hub",
        ),
        (with(|status| status["audiences"] = Value::Null), "does not say"),
        (with(|status| status["user"] = Value::Null), "no service account"),
        (user("admin"), "user \"admin\" is no service account"),
        (user("system:serviceaccount:agents"), "no service account"),
        (user("system:serviceaccount:agents:"), "no service account"),
        (user("system:serviceaccount::east"), "no service account"),
        (user("system:serviceaccount:agents:east:x"), "no service account"),
        (user("system:serviceaccount:agents:west"), "another subject's"),
    ] {
        let key = SigningKey::new("k1", Algorithm::ES256);
        let answer = status.clone();
        let api = cluster(jwks([&key]), move || (201, answer.clone()));
        let tokens = tokens(&api, true, Vec::new()).await;
        let said = refused(shown_token(&tokens, &own_token(&key)).await);
        assert!(said.contains(expected), "{status}: {said}");
    }
    let key = SigningKey::new("k1", Algorithm::ES256);
    let api = cluster(jwks([&key]), || {
        let mut status = accepted();
        status["user"]["extra"] = Value::Null;
        (201, status)
    });
    let facts = shown_token(&tokens(&api, true, Vec::new()).await, &own_token(&key)).await.expect("accepted");
    assert_eq!(facts.id.as_deref(), Some("t1"), "of the token itself");
}

#[tokio::test]
async fn forged_tokens_cost_no_review_and_one_read_of_keys() {
    let (key, forger) = (SigningKey::new("k1", Algorithm::ES256), SigningKey::new("k1", Algorithm::ES256));
    let api = cluster(jwks([&key]), || (201, accepted()));
    let tokens = tokens(&api, true, Vec::new()).await;
    tokens.read_keys().await;
    assert_eq!(api.asked(KEYS).len(), 1);
    for round in 0..100 {
        let mut claims = claims(now());
        (claims["iss"], claims["sub"], claims["jti"]) = (json!(OWN), json!(USER), json!(round));
        refused(shown_token(&tokens, &forger.token(&claims)).await);
        let header = json!({"alg": "ES256", "kid": format!("forged-{round}")});
        claims["jti"] = json!("text");
        refused(shown_token(&tokens, &forger.token_with(&header, &claims)).await);
        let header = json!({"alg": "none"});
        refused(shown_token(&tokens, &forger.token_with(&header, &claims)).await);
    }
    assert_eq!((api.asked(KEYS).len(), api.asked(REVIEWS).len()), (2, 0));
}

#[tokio::test]
async fn an_api_server_that_is_away_says_nothing_about_a_token() {
    let key = SigningKey::new("k1", Algorithm::ES256);
    let api = cluster(jwks([&key]), || (503, json!("hunter2")));
    let reviewed = tokens(&api, true, Vec::new()).await;
    let said = unavailable(shown_token(&reviewed, &own_token(&key)).await);
    assert!(!said.contains("hunter2"), "{said}");
    let forbidden = ScriptedApi::new(|path, _| {
        let status =
            |message: &str| json!({"kind": "Status", "code": 403, "reason": "Forbidden", "message": message});
        (403, status(path))
    });
    let said = unavailable(shown_token(&tokens(&forbidden, true, Vec::new()).await, &own_token(&key)).await);
    assert!(said.contains("ClusterRole system:service-account-issuer-discovery"), "{said}");
    let no_reviews = cluster(jwks([&key]), || (201, accepted()));
    let off = tokens(&no_reviews, false, Vec::new()).await;
    assert!(refused(shown_token(&off, &own_token(&key)).await).contains("is not trusted here"));
    assert!(no_reviews.asked("").is_empty());
}

#[tokio::test]
async fn a_flood_of_unknown_keys_causes_one_fetch_and_a_known_key_is_served_meanwhile() {
    const FORGED: usize = 10_000;
    let server = IssuerServer::start().await;
    let (key, next) = (SigningKey::new("k1", Algorithm::ES256), SigningKey::new("k2", Algorithm::ES256));
    let forger = SigningKey::new("x", Algorithm::EdDSA);
    server.reply("/keys", Reply::Json(jwks([&key])));
    let place = KeyLocation::Url {
        url: format!("{}/keys", server.url()),
        authorities: Some(server.authority.path().to_owned()),
    };
    let api = ScriptedApi::new(|path, _| panic!("{path} is asked"));
    let tokens = tokens(&api, false, vec![issuer(place)]).await;
    assert_eq!(server.fetches(), 0, "nothing is fetched before the tasks start");
    shown_token(&tokens, &key.token(&claims(now()))).await.expect("the first token has the keys fetched");
    assert_eq!(server.fetches(), 1);
    for round in 0..FORGED {
        let header = json!({"alg": "EdDSA", "kid": format!("forged-{round}")});
        refused(shown_token(&tokens, &forger.token_with(&header, &claims(now()))).await);
    }
    let facts = shown_token(&tokens, &key.token(&claims(now() - 1))).await.expect("a known key");
    let TokenHolder::Jwt { issuer, subject, claims: told } = facts.holder else { panic!("a JWT") };
    assert_eq!((issuer.as_str(), subject.as_str(), &told["jti"]), (ISSUER, "agent", &json!("t1")));
    assert_eq!(server.fetches(), 1, "within a minute of the first");
    server.reply("/keys", Reply::Json(jwks([&key, &next])));
    assert!(refused(shown_token(&tokens, &next.token(&claims(now()))).await).contains("\"k2\" is none"));
    tokens.read_keys().await;
    assert_eq!(server.fetches(), 1, "read 10 minutes after the last time");
}

#[tokio::test]
async fn clusters_with_the_same_issuer_are_told_apart_by_their_keys() {
    let (own, remote) =
        (SigningKey::new("own", Algorithm::ES256), SigningKey::new("remote", Algorithm::RS256));
    let api = cluster(jwks([&own]), || (201, accepted()));
    let (_kept, place) = file(&jwks([&remote]));
    let settings = IssuerSettings { issuer: OWN.to_owned(), ..issuer(place) };
    let tokens = tokens(&api, true, vec![settings]).await;
    let facts = shown_token(&tokens, &own_token(&own)).await.expect("reviewed");
    assert!(matches!(facts.holder, TokenHolder::ServiceAccount { .. }));
    let facts = shown_token(&tokens, &own_token(&remote)).await.expect("by the other's key");
    assert!(matches!(facts.holder, TokenHolder::Jwt { .. }), "never a service account of the own cluster");
    assert_eq!(api.asked(REVIEWS).len(), 1);
    let stranger = SigningKey::new("stranger", Algorithm::RS256);
    assert!(refused(shown_token(&tokens, &own_token(&stranger)).await).contains("\"stranger\" is none"));
}

#[tokio::test]
async fn what_is_not_known_of_the_own_cluster_outweighs_the_no_of_an_issuer() {
    let (own, remote) =
        (SigningKey::new("own", Algorithm::ES256), SigningKey::new("remote", Algorithm::ES256));
    let away = ScriptedApi::new(|_, _| (503, Value::Null));
    let (_kept, place) = file(&jwks([&remote]));
    let tokens = tokens(&away, true, vec![IssuerSettings { issuer: OWN.to_owned(), ..issuer(place) }]).await;
    unavailable(shown_token(&tokens, &own_token(&own)).await);
    shown_token(&tokens, &own_token(&remote)).await.expect("it needs no call");
    tokens.read_keys().await;
    let asked = away.asked(DOCUMENT).len();
    tokens.read_keys().await;
    assert_eq!(away.asked(DOCUMENT).len(), asked, "a failed read is repeated after 30 s");
}

#[tokio::test]
async fn tokens_are_counted_by_result() {
    let (own, remote) =
        (SigningKey::new("own", Algorithm::ES256), SigningKey::new("remote", Algorithm::ES256));
    let api = cluster(jwks([&own]), || (201, accepted()));
    let (_kept, place) = file(&jwks([&remote]));
    let tokens = tokens(&api, true, vec![issuer(place)]).await;
    for token in
        [own_token(&own), own_token(&own), remote.token(&claims(now())), "x".to_owned(), "y".repeat(40)]
    {
        let _ = shown_token(&tokens, &token).await;
    }
    let mut registry = Registry::default();
    tokens.register(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).expect("text");
    for (result, count) in [("service_account", 2), ("jwt", 1), ("invalid", 2)] {
        let line = format!("kubesvc_agent_tokens_total{{result=\"{result}\"}} {count}\n");
        assert!(text.contains(&line), "{line}{text}");
    }
}

#[tokio::test]
async fn keys_and_tokens_are_not_in_debug_texts() {
    let key = SigningKey::new("k1", Algorithm::RS256);
    let set = crate::agent_tokens::key_set::KeySet::parse(jwks([&key]).as_bytes()).expect("a set");
    let jwk = key.jwk();
    assert!(!format!("{set:?}").contains(jwk["n"].as_str().expect("n")));
    let token = key.token(&claims(now()));
    let told = refused(
        shown_token(&tokens(&cluster(jwks([&key]), || (201, accepted())), true, Vec::new()).await, &token)
            .await,
    );
    assert!(token.split('.').all(|part| !told.contains(part)), "{told}");
}

#[tokio::test]
async fn files_that_cannot_be_used_at_start_are_named_with_their_setting() {
    let api = ScriptedApi::new(|path, _| panic!("{path} is asked"));
    let url = || "https://localhost:1/keys".to_owned();
    let (_kept, no_keys) = file("hunter2");
    let (_other, KeyLocation::File(no_pem)) = file("hunter2") else { panic!("a file") };
    for (place, key, expected) in [
        (KeyLocation::File("/nowhere/keys.json".into()), "jwksFile", "/nowhere/keys.json"),
        (no_keys, "jwksFile", "no JWKS"),
        (
            KeyLocation::Url { url: url(), authorities: Some("/nowhere/ca.pem".into()) },
            "caFile",
            "/nowhere/ca.pem",
        ),
        (KeyLocation::Discovery { authorities: Some(no_pem) }, "caFile", "no certificate in PEM"),
    ] {
        let settings = BearerSettings { token_review: false, issuers: vec![issuer(place)] };
        let read = BearerTokens::read(&settings, &api.kube(), "own", Arc::new(Vec::new)).await;
        let said = chain(&read.map(drop).expect_err(key));
        let begin = format!("`kubesvc.grpc.auth.bearer.issuers[0].{key}` cannot be honoured: ");
        assert!(said.starts_with(&begin) && said.contains(expected) && !said.contains("hunter2"), "{said}");
    }
    let nobody = issuer(KeyLocation::Url { url: url(), authorities: None });
    let _ = rustls::crypto::ring::default_provider().install_default();
    let tokens = tokens(&api, false, vec![nobody]).await;
    let token = SigningKey::new("k1", Algorithm::ES256).token(&claims(now()));
    assert!(
        unavailable(shown_token(&tokens, &token).await).contains("no answer to GET https://localhost:1/keys")
    );
}
