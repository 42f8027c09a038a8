//! The credential of a cluster: in the headers of requests, and removed from what a server says.

use std::collections::HashSet;

use http::HeaderValue;
use http::uri::Authority;
use secrecy::ExposeSecret;
use secrecy::zeroize::Zeroizing;
use url::{Position, Url};

use crate::cluster::ClusterError;
use kubesvc_core::failure::truncate;
use kubesvc_core::kubeconfig::Authentication;
use kubesvc_core::object_names::is_hidden;

/// Maximum size of a server's text in a message, in bytes.
const MAX_SHOWN_BYTES: usize = 400;
/// Maximum length of a server's text that is searched for credentials, in characters.
const MAX_SCANNED_BYTES: usize = 4096;
/// Minimum length, in bytes, of a substring shared with a credential that is redacted; shorter ones are
/// coincidence.
const MIN_MATCH_BYTES: usize = 8;
const MASK: &str = "[redacted]";

/// The recipient of requests, as a `Host` header and HTTP/2 name it.
pub(super) fn authority(server: &Url) -> Result<Authority, ClusterError> {
    Authority::try_from(&server[Position::BeforeHost..Position::AfterPort])
        .map_err(|_| ClusterError::Kubeconfig("the server's host cannot be sent in a header".to_owned()))
}

/// The `Authorization` header, if there is one.
pub(super) fn header(authentication: &Authentication) -> Result<Option<HeaderValue>, ClusterError> {
    let text = match authentication {
        Authentication::Token(token) | Authentication::TokenAndClientCertificate { token, .. } => {
            format!("Bearer {}", token.expose_secret())
        }
        Authentication::ClientCertificate { .. } => return Ok(None),
    };
    let text = Zeroizing::new(text);
    let mut value = HeaderValue::from_str(&text).map_err(|_| {
        ClusterError::Kubeconfig("the token holds characters that no header may have".to_owned())
    })?;
    value.set_sensitive(true);
    Ok(Some(value))
}

/// Removes a credential from texts of a server, which may echo what it was sent.
///
/// Control characters are removed first, then every substring that also occurs in the credential, and only then
/// is the text truncated.
#[derive(Default)]
pub(super) struct Redactor {
    secrets: Vec<Zeroizing<String>>,
}

impl Redactor {
    /// Creates a redactor for the secret parts of a credential.
    pub(super) fn of(authentication: &Authentication) -> Self {
        let mut secrets = Vec::new();
        let mut add = |secret: &str| secrets.push(Zeroizing::new(secret.to_owned()));
        match authentication {
            Authentication::Token(token) => add(token.expose_secret()),
            Authentication::ClientCertificate { key, .. } => key_lines(key.expose_secret(), &mut add),
            Authentication::TokenAndClientCertificate { token, key, .. } => {
                add(token.expose_secret());
                key_lines(key.expose_secret(), &mut add);
            }
        }
        Self { secrets }
    }

    /// Returns a server's text without control characters and without the credential, truncated.
    pub(super) fn clean(&self, text: &str) -> String {
        // Invisible characters are removed too: they could be interleaved with an echoed token.
        let mut text: String =
            text.chars().filter(|letter| !is_hidden(*letter)).take(MAX_SCANNED_BYTES).collect();
        for secret in &self.secrets {
            text = without(&text, secret);
        }
        let mut text = text.trim().to_owned();
        truncate(&mut text, MAX_SHOWN_BYTES);
        text
    }
}

fn key_lines(pem: &[u8], add: &mut impl FnMut(&str)) {
    let text = String::from_utf8_lossy(pem);
    let body: String = text.lines().filter(|line| !line.starts_with("-----")).collect();
    add(&Zeroizing::new(body));
}

fn without(text: &str, secret: &str) -> String {
    if secret.len() < MIN_MATCH_BYTES {
        // Too short to tell an echo from coincidence.
        return if !secret.is_empty() && text.contains(secret) { String::new() } else { text.to_owned() };
    }
    let stretches: HashSet<&[u8]> = secret.as_bytes().windows(MIN_MATCH_BYTES).collect();
    let mut secret_bytes = vec![false; text.len()];
    for (start, stretch) in text.as_bytes().windows(MIN_MATCH_BYTES).enumerate() {
        if stretches.contains(stretch) {
            secret_bytes[start..start + MIN_MATCH_BYTES].fill(true);
        }
    }
    let mut shown = String::with_capacity(text.len());
    let mut masked = false;
    for (at, letter) in text.char_indices() {
        let hide = secret_bytes[at..at + letter.len_utf8()].iter().any(|is_secret| *is_secret);
        if !hide {
            shown.push(letter);
        } else if !masked {
            shown.push_str(MASK);
        }
        masked = hide;
    }
    shown
}
