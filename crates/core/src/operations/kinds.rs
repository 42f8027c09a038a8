//! Resources of kinds, by the cluster's own lists.
//!
//! The list of a group and version is cached for ten minutes, and read again for a kind that it lacks, once per
//! operation: a custom kind is served a moment after its definition.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use super::outcome::{ApiAnswer, Outcome, OutcomeClass};

/// Time for which a list is cached.
const KEPT_FOR: Duration = Duration::from_secs(600);
/// Maximum number of cached lists of a cluster.
const MAX_LISTS: usize = 512;

/// A resource of the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// API group; empty for the core group.
    pub group: String,
    /// Version.
    pub version: String,
    /// Kind.
    pub kind: String,
    /// Name in paths.
    pub plural: String,
    /// Whether its objects are namespaced.
    pub namespaced: bool,
}

impl Resource {
    /// `group/version`, or the version of the core group.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// Path of an object.
    pub(super) fn path(&self, namespace: &str, name: &str) -> String {
        format!("{}/{}", self.collection(namespace), segment(name))
    }

    /// Path of the objects in a namespace, or in all namespaces if it is empty.
    pub(super) fn collection(&self, namespace: &str) -> String {
        let base = group_version_path(&self.group, &self.version);
        if self.namespaced && !namespace.is_empty() {
            return format!("{base}/namespaces/{}/{}", segment(namespace), self.plural);
        }
        format!("{base}/{}", self.plural)
    }
}

/// Percent-encodes a path segment, except for the characters of Kubernetes' names.
fn segment(text: &str) -> String {
    use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
    const KEPT: &AsciiSet =
        &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b':');
    utf8_percent_encode(text, KEPT).to_string()
}

fn group_version_path(group: &str, version: &str) -> String {
    if group.is_empty() {
        return format!("/api/{}", segment(version));
    }
    format!("/apis/{}/{}", segment(group), segment(version))
}

/// Result of the lookup of a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KindLookup {
    /// The resource.
    Found(Resource),
    /// The path to read first.
    Read(String),
    /// The cluster has no such kind; the message says so.
    Unknown(String),
}

/// Cached result of a read.
#[derive(Clone, Debug)]
struct Kept<T> {
    read_at: Duration,
    /// `None`: the API server has no such path.
    found: Option<T>,
}

/// Cached kinds of one cluster.
#[derive(Clone, Debug, Default)]
pub struct Kinds {
    /// By path of the group and version.
    lists: BTreeMap<String, Kept<Vec<Resource>>>,
    /// The preferred version, by path of the group.
    preferred: BTreeMap<String, Kept<String>>,
}

impl Kinds {
    /// Looks up a kind at time `now`, for an operation that began at `began`. Without a version, uses the one that the
    /// cluster prefers.
    pub fn find(&self, group: &str, version: &str, kind: &str, now: Duration, began: Duration) -> KindLookup {
        let decides = |read_at: Duration| read_at >= began;
        let stands = |read_at: Duration| now.saturating_sub(read_at) < KEPT_FOR;
        let version = match (version, group) {
            ("", "") => "v1".to_owned(),
            ("", group) => {
                let path = format!("/apis/{}", segment(group));
                match self.preferred.get(&path) {
                    Some(Kept { read_at, found: Some(version) }) if stands(*read_at) => version.clone(),
                    Some(Kept { read_at, found: None }) if decides(*read_at) => {
                        return KindLookup::Unknown(format!("the cluster serves no group {group:?}"));
                    }
                    _ => return KindLookup::Read(path),
                }
            }
            (version, _) => version.to_owned(),
        };
        let path = group_version_path(group, &version);
        let Some(kept) = self.lists.get(&path) else { return KindLookup::Read(path) };
        let found = kept.found.iter().flatten().find(|resource| resource.kind == kind);
        match found {
            Some(resource) if stands(kept.read_at) => KindLookup::Found(resource.clone()),
            Some(_) => KindLookup::Read(path),
            None if decides(kept.read_at) => {
                let served = if group.is_empty() { version } else { format!("{group}/{version}") };
                KindLookup::Unknown(format!("the cluster serves no kind {kind:?} in {served}"))
            }
            None => KindLookup::Read(path),
        }
    }

    /// Takes the answer for a path that [`Kinds::find`] named.
    ///
    /// # Errors
    ///
    /// The outcome of the operation, if the API server refused the read.
    pub fn learn(&mut self, path: &str, answer: &ApiAnswer, now: Duration) -> Result<(), Outcome> {
        if self.lists.len() + self.preferred.len() > MAX_LISTS {
            self.lists.clear();
            self.preferred.clear();
        }
        let is_group = path.starts_with("/apis/") && path.matches('/').count() == 2;
        if answer.status == 404 {
            if is_group {
                self.preferred.insert(path.to_owned(), Kept { read_at: now, found: None });
            } else {
                self.lists.insert(path.to_owned(), Kept { read_at: now, found: None });
            }
            return Ok(());
        }
        let body = answer.object()?;
        let malformed = || {
            let message = format!("the API server answered {path} with something that is no list of kinds");
            Outcome::failed(502, OutcomeClass::Internal, message)
        };
        if is_group {
            let version = body["preferredVersion"]["version"].as_str().ok_or_else(malformed)?.to_owned();
            self.preferred.insert(path.to_owned(), Kept { read_at: now, found: Some(version) });
        } else {
            let resources = resources(&body).ok_or_else(malformed)?;
            self.lists.insert(path.to_owned(), Kept { read_at: now, found: Some(resources) });
        }
        Ok(())
    }
}

/// Resources of an `APIResourceList`, without subresources.
pub(super) fn resources(list: &Value) -> Option<Vec<Resource>> {
    let (group, version) = split_api_version(list["groupVersion"].as_str()?);
    let resource = |entry: &Value| {
        let plural = entry["name"].as_str().filter(|name| !name.is_empty() && !name.contains('/'))?;
        Some(Resource {
            group: group.to_owned(),
            version: version.to_owned(),
            kind: entry["kind"].as_str()?.to_owned(),
            plural: plural.to_owned(),
            namespaced: entry["namespaced"].as_bool()?,
        })
    };
    Some(list["resources"].as_array()?.iter().filter_map(resource).collect())
}

/// Group and version of an `apiVersion`.
pub(super) fn split_api_version(api_version: &str) -> (&str, &str) {
    api_version.split_once('/').unwrap_or(("", api_version))
}
