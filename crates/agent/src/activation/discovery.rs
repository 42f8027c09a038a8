//! The kinds that a cluster serves.
//!
//! Aggregated discovery takes two requests. Servers without it (before 1.26) answer the same two requests
//! with the legacy lists; then each group is asked for its resources.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use http::HeaderValue;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use tokio::time::timeout;

use crate::activation::identity::{ClusterReader, JSON, PartialMetadata, parse};
use crate::cluster::{ClusterDocument, ClusterError};
use kubesvc_core::cache::kind_names::KindSelector;
use kubesvc_core::cache::selection::ServedKind;
use kubesvc_core::wire::common::Failure;

const DISCOVERY: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
    application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";
/// Maximum number of API groups read from a server without aggregated discovery.
const MAX_GROUPS: usize = 500;
/// Maximum number of kinds kept for one cluster.
const MAX_SERVED_KINDS: usize = 20_000;
/// Timeout for the resources of one version of a group other than the core group.
const GROUP_TIMEOUT: Duration = Duration::from_secs(10);
/// Characters of a group's name or version that need no escaping in a path.
const PATH_SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_');

/// The paths at which discovery begins.
const ROOTS: [&str; 2] = ["/api", "/apis"];

/// The tags of what a server has answered, if it gave some: it need not answer the same again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiscoveryTags([Option<HeaderValue>; ROOTS.len()]);

/// What a cluster serves.
#[derive(Clone, Debug, Default)]
pub struct ServedKinds {
    /// The kinds, in the order in which the server lists their groups.
    pub kinds: Vec<ServedKind>,
    /// Group and version of what is not known: an API server behind this one is down. What it served before may be there
    /// still.
    pub unanswered: BTreeSet<(String, String)>,
    pub tags: DiscoveryTags,
}

impl ServedKinds {
    /// Whether it is not known what is served of this version of a group.
    pub fn is_unanswered(&self, group: &str, version: &str) -> bool {
        self.unanswered.iter().any(|(of, one)| of == group && one == version)
    }

    /// Whether a kind that a setting names, and that is not among the kinds, may be served by a group that has not answered.
    pub fn may_have(&self, name: &str) -> bool {
        let name = KindSelector::parse(name);
        match name.as_ref().and_then(KindSelector::group) {
            Some(group) => self.unanswered.iter().any(|(of, _)| of == group),
            None => !self.unanswered.is_empty(),
        }
    }
}

pub(super) async fn served_kinds(reader: &mut ClusterReader) -> Result<Vec<ServedKind>, Failure> {
    let changed = changed_kinds(reader, &DiscoveryTags::default()).await?;
    Ok(changed.map(|served| served.kinds).unwrap_or_default())
}

/// The same with their tags; `None` if the server still has those of the given tags.
pub(super) async fn changed_kinds(
    reader: &mut ClusterReader,
    known: &DiscoveryTags,
) -> Result<Option<ServedKinds>, Failure> {
    let mut answers = Vec::with_capacity(ROOTS.len());
    for (root, tag) in ROOTS.into_iter().zip(&known.0) {
        answers.push(reader.get_changed(root, DISCOVERY, tag.as_ref()).await?);
    }
    if answers.iter().all(Option::is_none) {
        return Ok(None);
    }
    let (mut found, mut tags) = (KindSet::default(), DiscoveryTags::default());
    for ((root, answer), tag) in ROOTS.into_iter().zip(answers).zip(&mut tags.0) {
        let answer = match answer {
            Some(answer) => Some(answer),
            None => reader.get_changed(root, DISCOVERY, None).await?,
        };
        let Some(ClusterDocument { body: answer, tag: new, .. }) = answer else { continue };
        let root: DiscoveryResponse<'_> = parse(&answer, root, reader)?;
        let was_unanswered = found.unanswered.len();
        let is_aggregated = root.kind == "APIGroupDiscoveryList";
        match root.kind.as_ref() {
            "APIGroupDiscoveryList" => {
                root.items.into_iter().for_each(|group| take_group(group, &mut found));
            }
            "APIVersions" => {
                for version in root.versions {
                    legacy_resources(reader, "", &version, &mut found).await?;
                }
            }
            _ => {
                for group in root.groups.into_iter().take(MAX_GROUPS) {
                    legacy_group(reader, group, &mut found).await?;
                }
            }
        }
        // Asked for again: what is not known, and in the legacy form all, as other documents may change while this stays.
        *tag = new.filter(|_| is_aggregated && found.unanswered.len() == was_unanswered);
    }
    let KindSet { kinds, unanswered, .. } = found;
    Ok(Some(ServedKinds { kinds, unanswered, tags }))
}

/// A response of discovery, in any of its forms.
#[derive(Deserialize)]
struct DiscoveryResponse<'b> {
    #[serde(borrow, default)]
    kind: Cow<'b, str>,
    /// Of an `APIGroupDiscoveryList`: all kinds.
    #[serde(borrow, default)]
    items: Vec<AggregatedGroup<'b>>,
    /// Of `APIVersions`: the versions of the core group.
    #[serde(borrow, default)]
    versions: Vec<Cow<'b, str>>,
    /// Of an `APIGroupList`: the groups, without their kinds.
    #[serde(borrow, default)]
    groups: Vec<LegacyGroup<'b>>,
    /// Of an `APIResourceList`: the kinds of one version of one group.
    #[serde(borrow, default)]
    resources: Vec<LegacyResource<'b>>,
}

#[derive(Deserialize)]
struct ResponseKind<'b> {
    #[serde(borrow, default)]
    kind: Cow<'b, str>,
}

#[derive(Deserialize)]
struct AggregatedGroup<'b> {
    #[serde(borrow, default)]
    metadata: PartialMetadata<'b>,
    #[serde(borrow, default)]
    versions: Vec<GroupVersion<'b>>,
}

#[derive(Deserialize)]
struct GroupVersion<'b> {
    #[serde(borrow)]
    version: Cow<'b, str>,
    /// Only in aggregated discovery.
    #[serde(borrow, default)]
    resources: Vec<AggregatedResource<'b>>,
    /// Only in aggregated discovery: `Stale` if the API server behind this one does not answer. Then the resources are
    /// those of an earlier answer, or none.
    #[serde(borrow, default)]
    freshness: Cow<'b, str>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AggregatedResource<'b> {
    #[serde(borrow)]
    resource: Cow<'b, str>,
    #[serde(borrow)]
    response_kind: Option<ResponseKind<'b>>,
    #[serde(borrow, default)]
    scope: Cow<'b, str>,
    #[serde(borrow, default)]
    verbs: Vec<Cow<'b, str>>,
}

fn take_group(group: AggregatedGroup<'_>, found: &mut KindSet) {
    for version in group.versions {
        if version.freshness == "Stale" {
            found.unanswered.insert((group.metadata.name.to_string(), version.version.to_string()));
        }
        for resource in version.resources {
            let Some(kind) = resource.response_kind else { continue };
            let serves = |verb: &str| resource.verbs.iter().any(|known| known == verb);
            found.add(ServedKind {
                group: group.metadata.name.to_string(),
                version: version.version.to_string(),
                kind: kind.kind.into_owned(),
                listable: serves("list"),
                watchable: serves("watch"),
                plural: resource.resource.into_owned(),
                namespaced: resource.scope == "Namespaced",
            });
        }
    }
}

/// The kinds found so far.
#[derive(Default)]
struct KindSet {
    kinds: Vec<ServedKind>,
    seen: HashSet<(String, String)>,
    unanswered: BTreeSet<(String, String)>,
}

impl KindSet {
    /// Adds a kind, unless a version that the server lists earlier serves it too.
    fn add(&mut self, kind: ServedKind) {
        let is_new = self.seen.insert((kind.group.clone(), kind.plural.clone()));
        if is_new && self.kinds.len() < MAX_SERVED_KINDS {
            self.kinds.push(kind);
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LegacyGroup<'b> {
    #[serde(borrow)]
    name: Cow<'b, str>,
    #[serde(borrow, default)]
    versions: Vec<GroupVersion<'b>>,
    #[serde(borrow)]
    preferred_version: Option<GroupVersion<'b>>,
}

#[derive(Deserialize)]
struct LegacyResource<'b> {
    #[serde(borrow)]
    name: Cow<'b, str>,
    #[serde(borrow)]
    kind: Cow<'b, str>,
    #[serde(default)]
    namespaced: bool,
    #[serde(borrow, default)]
    verbs: Vec<Cow<'b, str>>,
}

async fn legacy_group(
    reader: &mut ClusterReader,
    group: LegacyGroup<'_>,
    found: &mut KindSet,
) -> Result<(), Failure> {
    let preferred = group.preferred_version.map(|preferred| preferred.version);
    let others = group.versions.into_iter().map(|version| version.version);
    let others: Vec<_> = others.filter(|version| Some(version) != preferred.as_ref()).collect();
    for version in preferred.into_iter().chain(others) {
        legacy_resources(reader, &group.name, &version, found).await?;
    }
    Ok(())
}

/// Whether an API server behind the cluster's has not answered for its group, or may not be asked.
fn is_unanswered(error: &ClusterError) -> bool {
    matches!(error, ClusterError::Timeout { .. }) || matches!(error.http_status(), 403 | 500..=599)
}

/// Reads one version of one group. A version that cannot be served (an aggregated API server is down, or hangs) or read
/// leaves the others usable.
async fn legacy_resources(
    reader: &mut ClusterReader,
    group: &str,
    version: &str,
    found: &mut KindSet,
) -> Result<(), Failure> {
    let segment = |text| utf8_percent_encode(text, PATH_SEGMENT);
    let path = if group.is_empty() {
        format!("/api/{}", segment(version))
    } else {
        format!("/apis/{}/{}", segment(group), segment(version))
    };
    let answer = if group.is_empty() {
        // The API server itself answers for it.
        reader.get(&path, JSON).await?
    } else {
        match timeout(GROUP_TIMEOUT, reader.get(&path, JSON)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) if error.http_status() == 404 => return Ok(()),
            Ok(Err(error)) if !is_unanswered(&error) => return Err(error.into()),
            Ok(Err(_)) | Err(_) => {
                found.unanswered.insert((group.to_owned(), version.to_owned()));
                return Ok(());
            }
        }
    };
    let list: DiscoveryResponse<'_> = parse(&answer, &path, reader)?;
    for resource in list.resources {
        // Names with a slash are subresources, such as pods/log.
        if resource.name.contains('/') {
            continue;
        }
        let serves = |verb: &str| resource.verbs.iter().any(|known| known == verb);
        let (listable, watchable) = (serves("list"), serves("watch"));
        found.add(ServedKind {
            group: group.to_owned(),
            version: version.to_owned(),
            kind: resource.kind.into_owned(),
            plural: resource.name.into_owned(),
            namespaced: resource.namespaced,
            listable,
            watchable,
        });
    }
    Ok(())
}
