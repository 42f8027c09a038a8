//! What the log has of tokens, keys and Secrets: nothing.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use jsonwebtoken::Algorithm;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::issuer::{ISSUER, SigningKey, claims, encoded, jwks};
use super::scripted_api::ScriptedApi;
use super::shown_token;
use crate::agent_tokens::issuers::ALGORITHMS;
use crate::agent_tokens::{AUDIENCE, BearerSettings, BearerTokens, IssuerSettings, KeyLocation};
use kubesvc_core::identity::TokenSecret;

const CANARY: &str = "hunter2-canary-of-more-than-thirty-two-bytes";

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn no_line_has_a_token_a_key_or_the_content_of_a_secret() {
    let lines = Lines::default();
    let writer = lines.clone();
    // The programs log no more of libraries.
    let subscriber = tracing_subscriber::fmt().with_env_filter("info,kubesvc=trace").with_ansi(false);
    let subscriber = subscriber.with_writer(move || writer.clone());
    let _logged = tracing::subscriber::set_default(subscriber.finish());

    let key = SigningKey::new("k1", Algorithm::ES256);
    let own_keys = jwks([&key]);
    let api = ScriptedApi::new(move |path, _| {
        let status = |code: u16, reason: &str| {
            (code, json!({"kind": "Status", "code": code, "reason": reason, "message": CANARY}))
        };
        let secret =
            |content: &str| (200, json!({"metadata": {}, "data": {"token": STANDARD.encode(content)}}));
        match path.rsplit('/').next().unwrap_or_default() {
            "openid-configuration" => (200, json!({"issuer": "own"})),
            "jwks" => (200, serde_json::from_str(&own_keys).expect("JSON")),
            "tokenreviews" => (201, json!({"spec": {}, "status": {"authenticated": false, "error": CANARY}})),
            "good" => secret(CANARY),
            "blank" => secret(&format!("{CANARY} {CANARY}")),
            "short" => secret("hunter2"),
            _ => status(500, "InternalError"),
        }
    });
    let file = tempfile::NamedTempFile::new().expect("a file");
    let secret_key = json!({"kty": "oct", "kid": "oct", "k": encoded(CANARY)});
    let write = |text: String| std::fs::write(file.path(), text).expect("written");
    write(json!({"keys": [key.jwk(), secret_key]}).to_string());
    let issuer = IssuerSettings {
        issuer: ISSUER.to_owned(),
        audience: AUDIENCE.to_owned(),
        keys: KeyLocation::File(file.path().to_owned()),
        algorithms: ALGORITHMS.map(|(_, algorithm)| algorithm).to_vec(),
    };
    let names = || {
        let named = ["good", "blank", "short", "away"];
        named.map(|name| TokenSecret { name: name.to_owned(), key: "token".to_owned() }).into()
    };
    let settings = BearerSettings { token_review: true, issuers: vec![issuer] };
    let tokens = BearerTokens::read(&settings, &api.kube(), "own", Arc::new(names)).await.expect("a set");

    let now = Timestamp::now().as_second();
    let with = |name: &str, value: Value| {
        let mut claims = claims(now);
        claims[name] = value;
        key.token(&claims)
    };
    let shown = [
        with("sub", json!(CANARY)),
        with("iss", json!("own")),
        with("x", json!({"deep": CANARY})),
        key.token_with(&json!({"alg": "ES256", "kid": "unknown"}), &claims(now)),
        key.token_with(&json!({"alg": "none", "x": CANARY}), &claims(now)),
        format!("{CANARY}-unknown"),
        CANARY.to_owned(),
    ];
    let mut told = String::new();
    for token in &shown {
        if let Err(error) = shown_token(&tokens, token).await {
            told.push_str(&format!("{error}\n{error:?}\n"));
        }
    }
    for text in
        [format!("{{\"keys\": {CANARY}"), json!(CANARY).to_string(), json!({"keys": CANARY}).to_string()]
    {
        write(text);
        tokio::time::advance(Duration::from_secs(61)).await;
        told.push_str(&format!("{:?}\n", tokens.read_keys().await));
    }
    assert!(told.contains("it is no JWKS"), "{told}");

    let lines = String::from_utf8(lines.0.lock().clone()).expect("text");
    for expected in
        ["shared secret", "Secret own/short", "Secret own/blank", "Secret own/away", "cannot be read"]
    {
        assert!(lines.contains(expected), "{expected}: {lines}");
    }
    for text in [lines, told] {
        let parts = shown.iter().flat_map(|token| token.split('.').skip(1)).filter(|part| part.len() > 20);
        let encoded = [encoded(CANARY), STANDARD.encode(CANARY)];
        for secret in parts.chain(["hunter2"]).chain(encoded.iter().map(String::as_str)) {
            assert!(!text.contains(secret), "{secret}: {text}");
        }
    }
}
