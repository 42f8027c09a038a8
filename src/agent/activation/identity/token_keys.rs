//! Digest of a JWK set that depends only on the public keys, not on their order, their formatting, or other
//! members of the document.

use std::borrow::Cow;
use std::collections::BTreeSet;

use serde::Deserialize;
use sha2::{Digest, Sha256};

/// Maximum number of keys considered; an API server has a few.
const MAX_KEYS: usize = 1000;

#[derive(Deserialize)]
struct JwkSet<'b> {
    #[serde(borrow)]
    keys: Vec<Jwk<'b>>,
}

/// The members that form an RFC 7638 thumbprint.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Jwk<'b> {
    #[serde(borrow)]
    kty: Cow<'b, str>,
    #[serde(borrow)]
    crv: Cow<'b, str>,
    #[serde(borrow)]
    e: Cow<'b, str>,
    #[serde(borrow)]
    n: Cow<'b, str>,
    #[serde(borrow)]
    x: Cow<'b, str>,
    #[serde(borrow)]
    y: Cow<'b, str>,
}

impl Jwk<'_> {
    /// The RFC 7638 SHA-256 thumbprint; `None` for a key that is not a public key or lacks a member.
    fn thumbprint(&self) -> Option<[u8; 32]> {
        let members: &[(&str, &str)] = match &*self.kty {
            "RSA" => &[("e", &self.e), ("kty", "RSA"), ("n", &self.n)],
            "EC" => &[("crv", &self.crv), ("kty", "EC"), ("x", &self.x), ("y", &self.y)],
            "OKP" => &[("crv", &self.crv), ("kty", "OKP"), ("x", &self.x)],
            _ => return None,
        };
        let is_plain = |value: &str| {
            !value.is_empty() && value.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
        };
        if !members.iter().all(|(_, value)| is_plain(value)) {
            return None;
        }
        let members: Vec<_> = members.iter().map(|(name, value)| format!("\"{name}\":\"{value}\"")).collect();
        Some(Sha256::digest(format!("{{{}}}", members.join(","))).into())
    }
}

/// SHA-256 of the sorted thumbprints, in hexadecimal; empty without any key, or if the body is not a JWK set.
pub(super) fn digest(body: &[u8]) -> String {
    let Ok(set) = serde_json::from_slice::<JwkSet<'_>>(body) else { return String::new() };
    let thumbprints: BTreeSet<_> = set.keys.iter().take(MAX_KEYS).filter_map(Jwk::thumbprint).collect();
    if thumbprints.is_empty() {
        return String::new();
    }
    let mut digest = Sha256::new();
    thumbprints.iter().for_each(|thumbprint| digest.update(thumbprint));
    hex::encode(digest.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_keys_count_and_not_how_they_are_written() {
        let one = r#"{"use":"sig","kty":"RSA","kid":"a","alg":"RS256","n":"AQ_-","e":"AQAB"}"#;
        let two = r#"{"kty":"EC","crv":"P-256","x":"eA","y":"eQ","kid":"b"}"#;
        let same = r#"{ "e": "AQAB", "n": "AQ_-", "kty": "RSA", "kid": "another" }"#;
        let of = |keys: &[&str]| digest(format!("{{\"keys\":[{}]}}", keys.join(",")).as_bytes());
        assert_eq!(of(&[one, two]), of(&[two, same, one]));
        assert_eq!(of(&[one]).len(), 64);
        assert_ne!(of(&[one]), of(&[one, two]));
        assert_ne!(of(&[one]), of(&[&one.replace("AQ_-", "Ag_-")]));
    }

    #[test]
    fn the_thumbprint_is_that_of_rfc_7638() {
        let n = "0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx4cbbfAAtVT86zwu1RK7aPFFxuhDR1L6tSoc_BJECPebWKRXjBZCiF\
                 V4n3oknjhMstn64tZ_2W-5JsGY4Hc5n9yBXArwl93lqt7_RN5w6Cf0h4QyQ5v-65YGjQR0_FDW2QvzqY368QQMicAtaSqzs8KJZgnYb9\
                 c7d0zgdAZHzu6qMQvRL5hajrn1n91CbOpbISD08qNLyrdkt-bFTWhAI4vMQFh6WeZu0fM4lFd2NcRwr3XPksINHaQ-G_xBniIqbw0Ls1\
                 jF44-csFCur-kEgU8awapJzKnqDKgw";
        let key = Jwk { kty: "RSA".into(), n: n.into(), e: "AQAB".into(), ..Jwk::default() };
        let base64url = &base64::engine::general_purpose::URL_SAFE_NO_PAD;
        let thumbprint = base64::Engine::encode(base64url, key.thumbprint().expect("a key"));
        assert_eq!(thumbprint, "NzbLsXh8uDCcd-6MNwXF4W_7noWXFZAfHkxZsRGC9Xs");
    }

    #[test]
    fn what_is_no_set_of_public_keys_is_no_evidence() {
        for body in [
            "",
            "<html>",
            "{}",
            r#"{"keys":[]}"#,
            r#"{"keys":[{"kty":"oct","k":"c2VjcmV0"}]}"#,
            r#"{"keys":[{"kty":"RSA","e":"AQAB"}]}"#,
            r#"{"keys":[{"kty":"RSA","e":"AQAB","n":"a\"b"}]}"#,
        ] {
            assert_eq!(digest(body.as_bytes()), "", "{body}");
        }
    }
}
