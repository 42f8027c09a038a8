//! What a cluster reports about itself: its version, its identity, the keys of its tokens, its namespaces.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use http::HeaderValue;
use hyper::body::Bytes;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::cluster::{ClusterClient, ClusterDocument, ClusterError, ServerCertificate, Use};
use crate::wire_failure::after_send;
use kubesvc_core::failure::truncate;
use kubesvc_core::wire::common::Failure;
use kubesvc_core::wire::common::failure::Class;
use kubesvc_core::wire::ops::AccountSpec;

/// Maximum number of namespace names sent.
const MAX_NAMESPACES: usize = 10_000;
/// Maximum number of pages read for them.
const MAX_PAGES: usize = 100;
pub(super) const JSON: &str = "application/json";
/// The only media type that servers accept for [`TOKEN_KEYS_PATH`].
pub(super) const JWK_SET: &str = "application/jwk-set+json";
/// Path of the namespace whose uid identifies the cluster.
pub(super) const KUBE_SYSTEM_PATH: &str = "/api/v1/namespaces/kube-system";
/// Path of the keys of service account tokens. By default, every service account may read it.
pub(super) const TOKEN_KEYS_PATH: &str = "/openid/v1/jwks";
const NAMES_ONLY: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";
/// Maximum number of keys considered; an API server has a few.
const MAX_TOKEN_KEYS: usize = 1000;

/// Reads from one cluster. All responses come from servers that show the same certificate: what they say is reported
/// together with it.
#[derive(Debug)]
pub(super) struct ClusterReader {
    client: ClusterClient,
    purpose: Use,
    server: Option<Arc<ServerCertificate>>,
}

impl ClusterReader {
    pub(super) fn new(client: ClusterClient) -> Self {
        Self { client, purpose: Use::Activation, server: None }
    }

    /// A reader over the connections of watches. What is asked first opens the connection that watches then share.
    pub(super) fn over_watches(client: ClusterClient) -> Self {
        Self { client, purpose: Use::Watches, server: None }
    }

    /// A reader that shares the connections of watches, where these take several requests at once.
    pub(super) fn beside_watches(client: ClusterClient) -> Self {
        let is_shared = client.has_shared_connection(Use::Watches);
        let purpose = if is_shared { Use::Watches } else { Use::Activation };
        Self { client, purpose, server: None }
    }

    /// URL of the API server, without a trailing slash.
    pub(super) fn url(&self) -> &str {
        self.client.url()
    }

    /// The certificate of the server, once it has answered with status 200.
    pub(super) fn server(&self) -> Option<&ServerCertificate> {
        self.server.as_deref()
    }

    /// The body of the response with status 200 to a GET request.
    pub(super) async fn get(&mut self, path: &str, accept: &'static str) -> Result<Bytes, ClusterError> {
        let document = self.client.get(self.purpose, path, accept).await?;
        self.checked(document).map(|document| document.body)
    }

    /// The same with the tag of the document; `None` if it has still the given one.
    pub(super) async fn get_changed(
        &mut self,
        path: &str,
        accept: &'static str,
        tag: Option<&HeaderValue>,
    ) -> Result<Option<ClusterDocument>, ClusterError> {
        let document = self.client.get_changed(self.purpose, path, accept, tag).await?;
        document.map(|document| self.checked(document)).transpose()
    }

    fn checked(&mut self, document: ClusterDocument) -> Result<ClusterDocument, ClusterError> {
        let first = self.server.get_or_insert_with(|| document.server.clone());
        if *first != document.server {
            return Err(ClusterError::CertificateChanged(self.client.url().to_owned()));
        }
        Ok(document)
    }
}

/// Parses a response. `what` names the step in a failure.
pub(super) fn parse<'b, T: Deserialize<'b>>(
    body: &'b [u8],
    what: &str,
    reader: &ClusterReader,
) -> Result<T, Failure> {
    serde_json::from_slice(body).map_err(|error| {
        // Only category and position: serde's message quotes values of the response.
        let (category, line, column) = (error.classify(), error.line(), error.column());
        after_send(
            Class::Discovery,
            format!(
                "{what} of {} answered with something else than the JSON of an API server \
                 ({category:?} error at line {line}, column {column})",
                reader.url()
            ),
        )
    })
}

pub(super) async fn version(reader: &mut ClusterReader) -> Result<String, Failure> {
    #[derive(Deserialize)]
    struct VersionResponse<'b> {
        #[serde(rename = "gitVersion", borrow)]
        git_version: Cow<'b, str>,
    }
    let answer = reader.get("/version", JSON).await?;
    let version: VersionResponse<'_> = parse(&answer, "GET /version", reader)?;
    let mut version: String = version.git_version.chars().filter(|letter| !letter.is_control()).collect();
    truncate(&mut version, 128);
    Ok(version)
}

#[derive(Deserialize)]
struct IdentifiedObject<'b> {
    #[serde(borrow)]
    metadata: PartialMetadata<'b>,
}

/// Metadata of an object, a group, or a page of a list.
#[derive(Deserialize, Default)]
pub(super) struct PartialMetadata<'b> {
    #[serde(borrow, default)]
    pub(super) name: Cow<'b, str>,
    #[serde(borrow, default)]
    uid: Cow<'b, str>,
    /// Token of the next page of a list.
    #[serde(rename = "continue", borrow, default)]
    more: Cow<'b, str>,
}

/// The uid of the kube-system namespace, which identifies the cluster; empty if it may not be read.
pub(super) async fn kube_system_uid(reader: &mut ClusterReader) -> Result<String, Failure> {
    let answer = match reader.get(KUBE_SYSTEM_PATH, JSON).await {
        Ok(answer) => answer,
        Err(error) if matches!(error.http_status(), 403 | 404) => return Ok(String::new()),
        Err(error) => return Err(error.into()),
    };
    let namespace: IdentifiedObject<'_> = parse(&answer, "GET /api/v1/namespaces/kube-system", reader)?;
    Ok(shortened_uid(namespace))
}

/// The uid of an object; `None` if the body is not one.
pub(super) fn uid_in(body: &[u8]) -> Option<String> {
    serde_json::from_slice(body).ok().map(shortened_uid)
}

fn shortened_uid(object: IdentifiedObject<'_>) -> String {
    let mut uid = object.metadata.uid.into_owned();
    truncate(&mut uid, 128);
    uid
}

/// Digest of the keys with which the API server signs service account tokens; empty if they may not be read.
pub(super) async fn token_keys_digest(reader: &mut ClusterReader) -> Result<String, Failure> {
    match reader.get(TOKEN_KEYS_PATH, JWK_SET).await {
        Ok(answer) => Ok(jwk_set_digest(&answer)),
        Err(error) if error.http_status() != 0 => Ok(String::new()),
        Err(error) => Err(error.into()),
    }
}

/// The namespaces that an account covers.
#[derive(Debug, Default, PartialEq)]
pub(super) struct CoveredNamespaces {
    /// Number of namespaces.
    pub(super) count: u32,
    /// The first of their names.
    pub(super) names: Vec<String>,
}

#[derive(Deserialize)]
struct NamespacePage<'b> {
    #[serde(borrow, default)]
    metadata: PartialMetadata<'b>,
    #[serde(borrow)]
    items: Vec<IdentifiedObject<'b>>,
}

/// Lists the namespaces that an account covers. If the account may not list namespaces, they are the ones
/// that its spec names.
pub(super) async fn namespaces(
    reader: &mut ClusterReader,
    spec: &AccountSpec,
) -> Result<CoveredNamespaces, Failure> {
    let mut chosen = NamespaceFilter::new(spec);
    let mut more = String::new();
    for _ in 0..MAX_PAGES {
        let path = if more.is_empty() {
            "/api/v1/namespaces?limit=500".to_owned()
        } else {
            let token = utf8_percent_encode(&more, NON_ALPHANUMERIC);
            format!("/api/v1/namespaces?limit=500&continue={token}")
        };
        let answer = match reader.get(&path, NAMES_ONLY).await {
            Ok(answer) => answer,
            Err(error) if error.http_status() == 403 => return Ok(as_named(spec)),
            Err(error) if error.http_status() == 410 => break,
            Err(error) => return Err(error.into()),
        };
        let list: NamespacePage<'_> = parse(&answer, "GET /api/v1/namespaces", reader)?;
        list.items.into_iter().for_each(|item| chosen.take(item.metadata.name.into_owned()));
        more = list.metadata.more.into_owned();
        if more.is_empty() {
            break;
        }
    }
    Ok(chosen.found)
}

/// The namespaces that an account's spec names.
fn as_named(spec: &AccountSpec) -> CoveredNamespaces {
    let mut chosen = NamespaceFilter::new(spec);
    spec.namespaces.iter().for_each(|name| chosen.take(name.clone()));
    chosen.found
}

/// Collects the namespaces that an account covers, each once.
struct NamespaceFilter<'s> {
    only: HashSet<&'s str>,
    omitted: HashSet<&'s str>,
    seen: HashSet<String>,
    found: CoveredNamespaces,
}

impl<'s> NamespaceFilter<'s> {
    fn new(spec: &'s AccountSpec) -> Self {
        let set = |names: &'s [String]| names.iter().map(String::as_str).collect();
        let (only, omitted) = (set(&spec.namespaces), set(&spec.omit_namespaces));
        Self { only, omitted, seen: HashSet::new(), found: CoveredNamespaces::default() }
    }

    fn take(&mut self, name: String) {
        let covered = self.only.is_empty() || self.only.contains(name.as_str());
        // Only a hostile server sends names longer than Kubernetes allows.
        if !covered || self.omitted.contains(name.as_str()) || name.is_empty() || name.len() > 63 {
            return;
        }
        if !self.seen.insert(name.clone()) {
            return;
        }
        self.found.count += 1;
        if self.found.names.len() < MAX_NAMESPACES {
            self.found.names.push(name);
        }
    }
}

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

/// Digest of a JWK set that depends only on the public keys, not on their order, their formatting, or other
/// members of the document: SHA-256 of the sorted thumbprints, in hexadecimal; empty without any key, or if the
/// body is not a JWK set.
pub(super) fn jwk_set_digest(body: &[u8]) -> String {
    let Ok(set) = serde_json::from_slice::<JwkSet<'_>>(body) else { return String::new() };
    let thumbprints: BTreeSet<_> = set.keys.iter().take(MAX_TOKEN_KEYS).filter_map(Jwk::thumbprint).collect();
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
        let of = |keys: &[&str]| jwk_set_digest(format!("{{\"keys\":[{}]}}", keys.join(",")).as_bytes());
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
    fn malformed_jwk_set_yields_no_identity() {
        for body in [
            "",
            "<html>",
            "{}",
            r#"{"keys":[]}"#,
            r#"{"keys":[{"kty":"oct","k":"c2VjcmV0"}]}"#,
            r#"{"keys":[{"kty":"RSA","e":"AQAB"}]}"#,
            r#"{"keys":[{"kty":"RSA","e":"AQAB","n":"a\"b"}]}"#,
        ] {
            assert_eq!(jwk_set_digest(body.as_bytes()), "", "{body}");
        }
    }
}
