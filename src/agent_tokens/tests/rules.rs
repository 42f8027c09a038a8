//! The rules of a JWT, each with tokens that keep and break it.

use jsonwebtoken::Algorithm;
use ring::hmac;
use serde_json::{Value, json};

use super::issuer::{ISSUER, SigningKey, claims, encoded, jwks};
use crate::agent_tokens::check::{CheckedToken, TokenRefusal, TokenRules, check, is_jwt};
use crate::agent_tokens::issuers::ALGORITHMS;
use crate::agent_tokens::key_set::KeySet;

const NOW: i64 = 1_800_000_000;

fn all() -> [Algorithm; 9] {
    ALGORITHMS.map(|(_, algorithm)| algorithm)
}

fn set(json: &str) -> KeySet {
    KeySet::parse(json.as_bytes()).expect("a JWKS")
}

fn checked(token: &str, keys: &KeySet) -> Result<CheckedToken, TokenRefusal> {
    let algorithms = all();
    let rules = TokenRules { issuer: ISSUER, audience: "kubesvc-hub", algorithms: &algorithms };
    check(token, keys, rules, NOW)
}

fn rule(token: &str, keys: &KeySet) -> String {
    match checked(token, keys) {
        Err(TokenRefusal::Rule(why)) => why,
        other => panic!("a rule is to be broken: {other:?}"),
    }
}

/// The claims with one of them changed; `null`: without it.
fn with(name: &str, value: Value) -> Value {
    let mut claims = claims(NOW - 60);
    match value {
        Value::Null => {
            claims.as_object_mut().and_then(|claims| claims.remove(name)).map(drop).expect("it is there");
        }
        value => claims[name] = value,
    }
    claims
}

#[test]
fn each_algorithm_is_verified_and_a_changed_token_is_not() {
    for (name, algorithm) in ALGORITHMS {
        let key = SigningKey::new("k1", algorithm);
        let keys = set(&jwks([&key]));
        assert_eq!(keys.left_out(), <[String; 0]>::default(), "{name}");
        let token = key.token(&claims(NOW - 60));
        let facts = checked(&token, &keys).unwrap_or_else(|why| panic!("{name}: {why:?}"));
        assert_eq!((facts.subject.as_str(), facts.id.as_deref()), ("agent", Some("t1")));
        assert_eq!((facts.issued_at, facts.expires), (Some(NOW - 60), NOW + 3540));
        assert_eq!(facts.claims["aud"], "kubesvc-hub");
        let (message, signature) = token.rsplit_once('.').expect("three parts");
        let (header, _) = message.split_once('.').expect("three parts");
        let other = format!("{header}.{}.{signature}", encoded(with("sub", json!("admin")).to_string()));
        assert!(rule(&other, &keys).contains("signature is not by"), "{name}");
        let other_key = SigningKey::new("k1", Algorithm::ES256);
        assert!(rule(&token, &set(&jwks([&other_key]))).contains(if algorithm == Algorithm::ES256 {
            "signature is not by"
        } else {
            "is for another algorithm"
        }));
    }
}

#[test]
fn the_header_chooses_neither_key_nor_rules() {
    let rsa = SigningKey::new("k1", Algorithm::RS256);
    let keys = set(&jwks([&rsa]));
    let claims = claims(NOW - 60);
    let header = |more: Value| {
        let mut header = json!({"alg": "RS256", "kid": "k1"});
        for (name, value) in more.as_object().expect("an object") {
            header[name] = value.clone();
        }
        rsa.token_with(&header, &claims)
    };
    checked(&header(json!({"typ": "at+jwt", "x5t": "abc"})), &keys).expect("these do no harm");
    for (more, expected) in [
        (json!({"crit": ["exp"]}), "crit"),
        (json!({"crit": null}), "crit"),
        (json!({"jku": "https://evil.example"}), "jku"),
        (json!({"jwk": rsa.jwk()}), "jwk"),
        (json!({"x5u": "https://evil.example"}), "x5u"),
        (json!({"x5c": []}), "x5c"),
        (json!({"alg": "none"}), "algorithm \"none\""),
        (json!({"alg": "NONE"}), "algorithm"),
        (json!({"alg": "ES512"}), "algorithm"),
        (json!({"alg": "rs256"}), "algorithm"),
        (json!({"alg": 5}), "no algorithm"),
        (json!({"alg": "PS256"}), "signature is not by"),
        (json!({"alg": "ES256"}), "another algorithm"),
        (json!({"kid": 1}), "something else than text"),
    ] {
        assert!(rule(&header(more.clone()), &keys).contains(expected), "{more}");
    }
    let unsigned = format!("{}.{}.", encoded(r#"{"alg":"none"}"#), encoded(claims.to_string()));
    assert!(rule(&unsigned, &keys).contains("algorithm"));
    // The public key as the secret of a symmetric algorithm.
    for secret in [rsa.jwk()["n"].as_str().expect("n").as_bytes(), jwks([&rsa]).as_bytes()] {
        let message = format!("{}.{}", encoded(r#"{"alg":"HS256","kid":"k1"}"#), encoded(claims.to_string()));
        let signature = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), message.as_bytes());
        assert!(rule(&format!("{message}.{}", encoded(signature)), &keys).contains("algorithm"));
    }
    for path in ["../k1", "/etc/passwd", "k1\0", "K1", "", "https://evil.example/k1"] {
        let refusal = checked(&header(json!({"kid": path})), &keys).expect_err(path);
        assert!(matches!(refusal, TokenRefusal::UnknownKey(_)), "{path}: {refusal:?}");
    }
    let only = [Algorithm::ES256];
    let rules = TokenRules { issuer: ISSUER, audience: "kubesvc-hub", algorithms: &only };
    assert!(check(&rsa.token(&claims), &keys, rules, NOW).is_err(), "not one of the issuer's");
}

#[test]
fn keys_that_prove_nothing_are_left_out() {
    let ec = SigningKey::new("ec", Algorithm::ES256);
    let short: Value = serde_json::from_str(include_str!("../testdata/rsa1024.json")).expect("JSON");
    let changed = |name: &str, value: Value| {
        let mut jwk = ec.jwk();
        jwk["kid"] = json!(name);
        jwk[name] = value;
        jwk
    };
    let cases = [
        (
            json!({"kty": "oct", "kid": "oct", "k": encoded("hunter2-hunter2-hunter2-hunter2")}),
            "shared secret",
        ),
        (short["jwk"].clone(), "RSA of 1024 bits"),
        (json!({"kty": "RSA", "kid": "r", "n": "", "e": "AQAB"}), "RSA of 0 bits"),
        (json!({"kty": "RSA", "kid": "r", "n": "***", "e": "AQAB"}), "no base64url"),
        (json!({"kty": "EC", "kid": "e", "crv": "P-521", "x": "AA", "y": "AA"}), "P-256 and P-384"),
        (json!({"kty": "EC", "kid": "e", "crv": "secp256k1", "x": "AA", "y": "AA"}), "type"),
        (json!({"kty": "OKP", "kid": "o", "crv": "Ed25519", "x": "AA"}), "another length"),
        (json!({"kty": "new", "kid": "n"}), "type"),
        (json!({"kid": 5, "kty": "RSA", "n": "AQAB", "e": "AQAB"}), "no JWK"),
        (json!("hunter2"), "no JWK"),
        (changed("use", json!("enc")), "signatures"),
        (changed("key_ops", json!(["sign"])), "signatures"),
        (changed("alg", json!("RS256")), "does not fit"),
        (changed("alg", json!("ES384")), "does not fit"),
        (changed("alg", json!("RSA-OAEP")), "does not fit"),
        (changed("y", json!("AA")), "another length"),
    ];
    for (key, expected) in cases {
        let keys = set(&json!({"keys": [key.clone(), ec.jwk()]}).to_string());
        let said = keys.left_out().join("\n");
        assert!(keys.left_out().len() == 1 && said.contains(expected), "{key}: {said}");
        assert!(!said.contains("hunter2"), "{said}");
        checked(&ec.token(&claims(NOW - 60)), &keys).expect("the other key counts");
    }
    let token = short["token"].as_str().expect("a token");
    let refusal = checked(token, &set(&json!({"keys": [short["jwk"]]}).to_string()));
    assert!(matches!(refusal, Err(TokenRefusal::UnknownKey(_))), "{refusal:?}");
    for text in ["", "{}", "[]", r#"{"keys": {}}"#, "<html>", r#""hunter2""#, r#"{"keys": "hunter2"}"#] {
        let error = KeySet::parse(text.as_bytes()).expect_err(text);
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
    }
    let many = json!({"keys": vec![ec.jwk(); 101]}).to_string();
    assert!(KeySet::parse(many.as_bytes()).expect_err("too many").to_string().contains("100 are the most"));
}

#[test]
fn keys_with_one_id_are_all_tried_and_a_missing_id_is_taken_for_one_key_alone() {
    let (one, other, third) = (
        SigningKey::new("same", Algorithm::ES256),
        SigningKey::new("same", Algorithm::ES256),
        SigningKey::new("same", Algorithm::EdDSA),
    );
    let keys = set(&jwks([&one, &other, &third]));
    for key in [&one, &other, &third] {
        checked(&key.token(&claims(NOW - 60)), &keys).expect("one of them");
    }
    let nameless =
        |key: &SigningKey| key.token_with(&json!({"alg": key.algorithm_name()}), &claims(NOW - 60));
    checked(&nameless(&third), &keys).expect("the only one for EdDSA");
    assert!(rule(&nameless(&one), &keys).contains("its issuer has several"));
    let stranger = SigningKey::new("x", Algorithm::EdDSA);
    assert!(matches!(checked(&nameless(&stranger), &keys), Err(TokenRefusal::UnknownKey(_))));
}

#[test]
fn claims_are_required_and_times_have_a_leeway() {
    let key = SigningKey::new("k1", Algorithm::ES256);
    let keys = set(&jwks([&key]));
    for (name, value, expected) in [
        ("iss", Value::Null, "no issuer"),
        ("aud", Value::Null, "no audience"),
        ("exp", Value::Null, "no end"),
        ("sub", Value::Null, "no subject"),
        ("sub", json!(""), "no subject"),
        ("sub", json!(["agent"]), "sub is no text"),
        ("jti", json!(5), "jti is no text"),
        ("iss", json!("https://issuer.example/"), "is another one"),
        ("iss", json!([ISSUER]), "no issuer"),
        ("aud", json!("kubernetes"), "audience"),
        ("aud", json!(["kubernetes", "kubesvc"]), "audience"),
        ("aud", json!([["kubesvc-hub"]]), "audience"),
        ("aud", json!({"kubesvc-hub": true}), "audience"),
        ("exp", json!((NOW + 60).to_string()), "exp is no time"),
        ("exp", json!(-1), "exp is no time"),
        ("exp", json!(1e300), "exp is no time"),
        ("exp", json!(NOW - 30), "expired 30 s ago"),
        ("exp", json!(NOW + 24 * 3600), "lives 86460 s"),
        ("exp", json!(NOW + 30 * 24 * 3600), "have shorter ones made"),
        ("nbf", json!(NOW + 31), "not valid yet"),
        ("nbf", json!("soon"), "nbf is no time"),
        ("iat", json!(NOW + 31), "issued in the future"),
        ("iat", json!(null), "iat is no time"),
    ] {
        let said = match (name, &value) {
            ("iat", Value::Null) => {
                let mut claims = claims(NOW);
                claims["iat"] = Value::Null;
                rule(&key.token(&claims), &keys)
            }
            _ => rule(&key.token(&with(name, value.clone())), &keys),
        };
        assert!(said.contains(expected), "{name}: {value}: {said}");
    }
    for (name, value) in [
        ("aud", json!(["kubernetes", "kubesvc-hub"])),
        ("exp", json!(NOW - 29)),
        ("exp", json!(NOW - 60 + 24 * 3600)),
        ("exp", json!(f64::from(i32::MAX).min(1_800_000_060.75))),
        ("nbf", json!(NOW + 30)),
        ("iat", json!(NOW + 30)),
        ("jti", Value::Null),
    ] {
        checked(&key.token(&with(name, value.clone())), &keys)
            .unwrap_or_else(|why| panic!("{name}: {value}: {why:?}"));
    }
    let mut ageless = with("iat", Value::Null);
    ageless["exp"] = json!(NOW + 24 * 3600);
    assert_eq!(checked(&key.token(&ageless), &keys).expect("a day from now").issued_at, None);
    ageless["exp"] = json!(NOW + 24 * 3600 + 31);
    assert!(rule(&key.token(&ageless), &keys).contains("the most"));
}

#[test]
fn garbage_is_refused_without_a_look_at_keys() {
    let key = SigningKey::new("k1", Algorithm::ES256);
    let keys = set(&jwks([&key]));
    let token = key.token(&claims(NOW - 60));
    let parts: Vec<&str> = token.split('.').collect();
    let (header, body, signature) = (parts[0], parts[1], parts[2]);
    let twice = format!("{{\"alg\":\"ES256\",\"kid\":\"k1\",\"kid\":{:?}}}", "k2");
    for (case, token) in [
        ("garbage in the header", format!("%%%.{body}.{signature}")),
        ("no JSON in the header", format!("{}.{body}.{signature}", encoded("{"))),
        ("a list in the header", format!("{}.{body}.{signature}", encoded("[]"))),
        ("garbage in the claims", format!("{header}.%%%.{signature}")),
        ("no JSON in the claims", format!("{header}.{}.{signature}", encoded("claims"))),
        ("JSON and more in the claims", key.signed(&format!("{header}.{}", encoded("{} {}")))),
        ("garbage in the signature", format!("{header}.{body}.%%%")),
        ("an empty signature", format!("{header}.{body}.")),
        ("a padded signature", format!("{token}=")),
        ("a cut signature", token[..token.len() - 2].to_owned()),
        ("a dot behind", format!("{token}.")),
        ("dots behind", format!("{token}...")),
        ("a dot in front", format!(".{token}")),
        ("two parts", format!("{header}.{body}")),
        ("five parts", format!("{token}.a.b")),
        ("a blank behind", format!("{token} ")),
        ("no token", String::new()),
        ("a member twice", key.signed(&format!("{}.{body}", encoded(twice)))),
        ("nothing but dots", "..".to_owned()),
    ] {
        rule(&token, &keys);
        assert!(!case.is_empty());
    }
    let mut large = claims(NOW - 60);
    let length = |claims: &Value| key.token(claims).len();
    large["x"] = json!("");
    // Four characters of the token stand for three of the claim.
    large["x"] = json!("x".repeat((16 * 1024 - length(&large)) / 4 * 3));
    while length(&large) < 16 * 1024 {
        large["x"] = json!(format!("{}x", large["x"].as_str().expect("text")));
    }
    let mut token = key.token(&large);
    if token.len() > 16 * 1024 {
        large["x"] = json!(large["x"].as_str().expect("text")[1..]);
        token = key.token(&large);
    }
    assert!(token.len() > 16 * 1024 - 4 && checked(&token, &keys).is_ok(), "{} bytes", token.len());
    let padding = "x".repeat(16 * 1024 + 1 - token.len());
    assert!(rule(&format!("{token}{padding}"), &keys).contains("has 16385 bytes"));
}

#[test]
fn only_what_begins_with_a_header_is_meant_as_a_jwt() {
    let key = SigningKey::new("k1", Algorithm::ES256);
    let token = key.token(&claims(NOW));
    for jwt in [token.as_str(), &format!("{token}."), &format!("{}.x", encoded("{}"))] {
        assert!(is_jwt(jwt), "{jwt}");
    }
    for other in
        ["", "a", "a.b.c", "....", &encoded("{}"), &format!(".{token}"), &format!("{}.x.y", encoded("[]"))]
    {
        assert!(!is_jwt(other), "{other}");
    }
}
