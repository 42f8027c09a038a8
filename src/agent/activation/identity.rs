//! What a cluster reports about itself: its version, its identity, its namespaces.

use std::borrow::Cow;
use std::collections::HashSet;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;

use crate::account::failure::truncate;
use crate::agent::cluster::ClusterAccess;
use crate::agent::failure::after_send;
use crate::wire::common::Failure;
use crate::wire::common::failure::Class;
use crate::wire::ops::AccountSpec;

mod token_keys;

/// Maximum number of namespace names sent.
const MAX_NAMESPACES: usize = 10_000;
/// Maximum number of pages read for them.
const MAX_PAGES: usize = 100;
const JSON: &str = "application/json";
const NAMES_ONLY: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";

/// Parses a response. `what` names the step in a failure.
pub(super) fn parse<'b, T: Deserialize<'b>>(
    body: &'b [u8],
    what: &str,
    access: &ClusterAccess,
) -> Result<T, Failure> {
    serde_json::from_slice(body).map_err(|error| {
        // Only category and position: serde's message quotes values of the response.
        let (category, line, column) = (error.classify(), error.line(), error.column());
        after_send(
            Class::Discovery,
            format!(
                "{what} of {} answered with something else than the JSON of an API server \
                 ({category:?} error at line {line}, column {column})",
                access.url()
            ),
        )
    })
}

/// The version of the API server.
pub(super) async fn version(access: &mut ClusterAccess) -> Result<String, Failure> {
    #[derive(Deserialize)]
    struct VersionResponse<'b> {
        #[serde(rename = "gitVersion", borrow)]
        git_version: Cow<'b, str>,
    }
    let answer = access.get("/version", JSON).await?;
    let version: VersionResponse<'_> = parse(&answer.body, "GET /version", access)?;
    let mut version: String = version.git_version.chars().filter(|letter| !letter.is_control()).collect();
    truncate(&mut version, 128);
    Ok(version)
}

#[derive(Deserialize)]
struct Object<'b> {
    #[serde(borrow)]
    metadata: Metadata<'b>,
}

#[derive(Deserialize)]
struct Metadata<'b> {
    #[serde(borrow, default)]
    name: Cow<'b, str>,
    #[serde(borrow, default)]
    uid: Cow<'b, str>,
}

/// The uid of the kube-system namespace, which identifies the cluster; empty if it may not be read.
pub(super) async fn kube_system_uid(access: &mut ClusterAccess) -> Result<String, Failure> {
    let answer = match access.get("/api/v1/namespaces/kube-system", JSON).await {
        Ok(answer) => answer,
        Err(failure) if matches!(failure.http_status, 403 | 404) => return Ok(String::new()),
        Err(failure) => return Err(failure),
    };
    let namespace: Object<'_> = parse(&answer.body, "GET /api/v1/namespaces/kube-system", access)?;
    let mut uid = namespace.metadata.uid.into_owned();
    truncate(&mut uid, 128);
    Ok(uid)
}

/// Digest of the keys with which the API server signs service account tokens; empty if they may not be read.
pub(super) async fn token_keys_digest(access: &mut ClusterAccess) -> Result<String, Failure> {
    // By default, every service account may read this path. The server accepts only this media type.
    match access.get("/openid/v1/jwks", "application/jwk-set+json").await {
        Ok(answer) => Ok(token_keys::digest(&answer.body)),
        Err(failure) if failure.http_status != 0 => Ok(String::new()),
        Err(failure) => Err(failure),
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
    metadata: ListMetadata<'b>,
    #[serde(borrow)]
    items: Vec<Object<'b>>,
}

#[derive(Deserialize, Default)]
struct ListMetadata<'b> {
    #[serde(rename = "continue", borrow, default)]
    more: Cow<'b, str>,
}

/// Lists the namespaces that an account covers. If the account may not list namespaces, they are the ones
/// that its spec names.
pub(super) async fn namespaces(
    access: &mut ClusterAccess,
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
        let answer = match access.get(&path, NAMES_ONLY).await {
            Ok(answer) => answer,
            Err(failure) if failure.http_status == 403 => return Ok(as_named(spec)),
            Err(failure) if failure.http_status == 410 => break,
            Err(failure) => return Err(failure),
        };
        let list: NamespacePage<'_> = parse(&answer.body, "GET /api/v1/namespaces", access)?;
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
