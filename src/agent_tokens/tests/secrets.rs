//! Static tokens in Secrets of a scripted API server.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::scripted_api::ScriptedApi;
use super::{refused, shown_token, unavailable};
use crate::agent_tokens::{BearerSettings, BearerTokens};
use kubesvc_core::identity::{TokenHolder, TokenSecret};

const TOKEN: &str = "hunter2-hunter2-hunter2-hunter2!";
const OTHER: &str = "0123456789abcdef0123456789abcdef";

/// Secrets with a `token` each; `None`: the API server fails.
#[derive(Clone, Default)]
struct Secrets(Arc<Mutex<SecretsByName>>);

type SecretsByName = BTreeMap<&'static str, Option<Vec<u8>>>;

impl Secrets {
    fn put(&self, name: &'static str, token: &str) {
        self.0.lock().insert(name, Some(token.as_bytes().to_vec()));
    }

    fn api(&self) -> ScriptedApi {
        let this = self.clone();
        ScriptedApi::new(move |path, _| {
            let name = path.rsplit('/').next().unwrap_or_default();
            assert_eq!(path, format!("/api/v1/namespaces/own/secrets/{name}"));
            let status = |code: u16, reason: &str| {
                let details = json!({"name": name, "kind": "secrets"});
                (
                    code,
                    json!({"kind": "Status", "code": code, "reason": reason, "details": details, "message": "hunter2"}),
                )
            };
            match this.0.lock().get(name) {
                None => status(404, "NotFound"),
                Some(None) => status(500, "InternalError"),
                Some(Some(token)) => {
                    let secret =
                        json!({"metadata": {"name": name}, "data": {"token": STANDARD.encode(token)}});
                    (200, secret)
                }
            }
        })
    }
}

fn entry(name: &str) -> TokenSecret {
    TokenSecret { name: name.to_owned(), key: "token".to_owned() }
}

async fn tokens(api: &ScriptedApi, names: &'static [&'static str]) -> Arc<BearerTokens> {
    let names = Arc::new(move || names.iter().map(|name| entry(name)).collect());
    BearerTokens::read(&BearerSettings::default(), &api.kube(), "own", names).await.expect("no files")
}

#[tokio::test(start_paused = true)]
async fn a_static_token_is_that_of_all_secrets_that_have_it() {
    let secrets = Secrets::default();
    secrets.put("a", &format!("{TOKEN}\n"));
    secrets.put("b", TOKEN);
    secrets.put("c", OTHER);
    let api = secrets.api();
    let tokens = tokens(&api, &["a", "b", "c", "missing"]).await;
    let facts = shown_token(&tokens, TOKEN).await.expect("it is theirs");
    assert_eq!(facts.holder, TokenHolder::Secrets(vec![entry("a"), entry("b")]));
    assert_eq!((facts.id, facts.issued_at, facts.expires), (None, None, None));
    assert_eq!(api.asked("").len(), 4, "each was read once");
    let facts = shown_token(&tokens, OTHER).await.expect("it is its own");
    assert_eq!(facts.holder, TokenHolder::Secrets(vec![entry("c")]));
    for wrong in [format!("{TOKEN}\n"), format!("{TOKEN}x"), TOKEN.to_uppercase(), "x".repeat(32)] {
        assert!(refused(shown_token(&tokens, &wrong).await).contains("no Secret"));
    }
    assert_eq!(api.asked("").len(), 4, "unknown tokens cause a read every 10 s");
    let said = format!("{:?}", shown_token(&tokens, "hunter2").await);
    assert!(said.contains("shorter than 32") && !said.contains("hunter2"), "{said}");
}

#[tokio::test(start_paused = true)]
async fn an_unknown_token_has_secrets_read_at_most_every_ten_seconds() {
    let secrets = Secrets::default();
    secrets.put("a", OTHER);
    let api = secrets.api();
    let tokens = tokens(&api, &["a"]).await;
    for _ in 0..1000 {
        refused(shown_token(&tokens, TOKEN).await);
    }
    assert_eq!(api.asked("").len(), 1);
    secrets.put("a", TOKEN);
    refused(shown_token(&tokens, TOKEN).await);
    tokio::time::advance(Duration::from_secs(11)).await;
    shown_token(&tokens, TOKEN).await.expect("it was changed");
    refused(shown_token(&tokens, OTHER).await);
    assert_eq!(api.asked("").len(), 2);
}

#[tokio::test(start_paused = true)]
async fn what_is_no_token_is_none() {
    let secrets = Secrets::default();
    let short = "x".repeat(31);
    secrets.put("a", &format!("{short}\n"));
    secrets.put("b", "a token with blanks of thirty-two bytes");
    let jwt = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZ2VudCJ9.c2lnbmF0dXJlLW9mLW5vYm9keQ";
    secrets.put("c", jwt);
    secrets.put("d", &"x".repeat(16 * 1024 + 1));
    secrets.put("e", &format!("{TOKEN}\n\n"));
    let api = secrets.api();
    let tokens = tokens(&api, &["a", "b", "c", "d", "e"]).await;
    for token in
        [short.as_str(), "a token with blanks of thirty-two bytes", jwt, TOKEN, &"x".repeat(16 * 1024 + 1)]
    {
        refused(shown_token(&tokens, token).await);
    }
    assert!(refused(shown_token(&tokens, "").await).contains("0 bytes"));
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_is_away_says_nothing_about_a_token() {
    let secrets = Secrets::default();
    secrets.0.lock().insert("a", None);
    let api = secrets.api();
    let tokens = tokens(&api, &["a"]).await;
    let said = unavailable(shown_token(&tokens, TOKEN).await);
    assert!(said.contains("Secret own/a") && !said.contains("hunter2"), "{said}");
    secrets.put("a", TOKEN);
    tokio::time::advance(Duration::from_secs(11)).await;
    shown_token(&tokens, TOKEN).await.expect("it is read now");
    secrets.0.lock().insert("a", None);
    tokio::time::advance(Duration::from_secs(11)).await;
    refused(shown_token(&tokens, OTHER).await);
    shown_token(&tokens, TOKEN).await.expect("a Secret that cannot be read is as it was");
    secrets.0.lock().remove("a");
    tokio::time::advance(Duration::from_secs(11)).await;
    refused(shown_token(&tokens, OTHER).await);
    refused(shown_token(&tokens, TOKEN).await);
}

#[tokio::test]
async fn without_a_secret_nothing_is_read() {
    let api = ScriptedApi::new(|path, _: &Value| panic!("{path} is asked"));
    let tokens = tokens(&api, &[]).await;
    assert!(refused(shown_token(&tokens, TOKEN).await).contains("no KubesvcIdentity has a tokenSecret"));
}
