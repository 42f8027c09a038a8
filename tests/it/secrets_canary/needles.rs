//! The texts to search for: each secret as it is, and base64-encoded at any offset within the encoded data.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};

/// Minimum length of a partial secret: part of a token may not open anything, but must not be revealed
/// either.
const ENOUGH: usize = 24;

/// Secrets, each with a name that may be shown.
#[derive(Default)]
pub(crate) struct Needles(Vec<(String, Vec<u8>)>);

impl Needles {
    /// Adds a secret.
    pub(crate) fn add(&mut self, what: &str, secret: &str) {
        self.0.push((what.to_owned(), secret.as_bytes().to_vec()));
        for shift in 0..3 {
            let shifted = [&b"\0\0"[..shift], secret.as_bytes()].concat();
            // Characters at the edges depend on the neighbouring bytes.
            let inner = |text: &str| {
                text[usize::from(shift > 0) * 4..text.len() - 4].trim_end_matches('=').to_owned()
            };
            for encoded in [STANDARD.encode(&shifted), URL_SAFE.encode(&shifted)] {
                self.0.push((format!("{what}, base64"), inner(&encoded).into_bytes()));
            }
        }
    }

    /// Adds a JSON Web Token: its payload, and the beginning and end of its signature.
    pub(crate) fn add_token(&mut self, what: &str, token: &str) {
        self.add(what, token);
        let parts: Vec<_> = token.split('.').collect();
        assert_eq!(parts.len(), 3, "{what} is no JSON Web Token");
        // The first part is the same in all tokens, and reveals nothing.
        let (payload, signature) = (parts[1], parts[2]);
        self.add(&format!("{what}: end of the payload"), &payload[payload.len() - ENOUGH..]);
        self.add(&format!("{what}: signature"), &signature[..ENOUGH]);
        self.add(&format!("{what}: end of the signature"), &signature[signature.len() - ENOUGH..]);
    }

    /// Adds a PEM, line by line, and as a whole in base64.
    pub(crate) fn add_pem(&mut self, what: &str, pem: &str) {
        self.add(what, pem.trim());
        let lines: Vec<_> =
            pem.lines().filter(|line| !line.starts_with("-----") && line.len() >= ENOUGH).collect();
        assert!(!lines.is_empty(), "{what} is no PEM");
        for line in lines {
            // The beginning of a key only reveals what kind of key it is.
            self.add(&format!("{what}: a line"), &line[line.len() - ENOUGH..]);
        }
    }

    /// Names of the secrets that are found in a text.
    pub(crate) fn in_text(&self, text: &str) -> Vec<&str> {
        self.in_bytes(text.as_bytes())
    }

    /// Names of the secrets that are found in bytes.
    pub(crate) fn in_bytes(&self, bytes: &[u8]) -> Vec<&str> {
        let holds = |needle: &[u8]| {
            let first = needle[0];
            let mut rest = bytes;
            while let Some(at) = rest.iter().position(|byte| *byte == first) {
                if rest[at..].starts_with(needle) {
                    return true;
                }
                rest = &rest[at + 1..];
            }
            false
        };
        self.0.iter().filter(|(_, needle)| holds(needle)).map(|(what, _)| what.as_str()).collect()
    }
}

#[test]
fn needles_match_a_secret_plain_and_encoded() {
    let secret = "correct horse battery staple";
    let mut needles = Needles::default();
    needles.add("it", secret);
    for before in ["", "a", "ab", "abc", "user: {token: "] {
        let text = format!("{before}{secret} and more");
        assert!(!needles.in_text(&text).is_empty());
        assert!(!needles.in_text(&STANDARD.encode(&text)).is_empty(), "after {before:?}");
    }
    assert!(needles.in_text("correct horse battery stapler, encoded: Y29ycmVjdA==").len() == 1);
    assert!(needles.in_text("nothing").is_empty());
}
