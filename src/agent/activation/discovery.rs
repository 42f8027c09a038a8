//! Discovers the kinds that a cluster serves.
//!
//! Aggregated discovery takes two requests. Servers without it (before 1.26) answer the same two requests
//! with the legacy lists; then each group is asked for its resources.

use std::borrow::Cow;
use std::collections::HashSet;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;

use crate::agent::activation::identity::parse;
use crate::agent::cluster::ClusterAccess;
use crate::wire::common::Failure;

const DISCOVERY: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
    application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";
const JSON: &str = "application/json";
/// Maximum number of API groups read from a server without aggregated discovery.
const MAX_GROUPS: usize = 500;
/// Maximum number of kinds kept for one cluster.
const MAX_KINDS: usize = 20_000;
/// Characters of a group's name or version that need no escaping in a path.
const PATH_SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_');

/// A kind that a cluster serves, in one version: the preferred version, if it serves the kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServedKind {
    pub(super) group: String,
    pub(super) version: String,
    pub(super) kind: String,
    pub(super) plural: String,
    pub(super) namespaced: bool,
    pub(super) list: bool,
    pub(super) watch: bool,
}

/// Returns all kinds, in the order in which the server lists their groups.
pub(super) async fn served_kinds(access: &mut ClusterAccess) -> Result<Vec<ServedKind>, Failure> {
    let mut found = KindSet::default();
    for root in ["/api", "/apis"] {
        let answer = access.get(root, DISCOVERY).await?;
        let kind: ResponseKind<'_> = parse(&answer.body, root, access)?;
        match kind.kind.as_ref() {
            "APIGroupDiscoveryList" => {
                let list: AggregatedList<'_> = parse(&answer.body, root, access)?;
                list.items.into_iter().for_each(|group| take_group(group, &mut found));
            }
            "APIVersions" => {
                let versions: CoreVersions<'_> = parse(&answer.body, root, access)?;
                for version in versions.versions {
                    legacy_resources(access, "", &version, &mut found).await?;
                }
            }
            _ => {
                let groups: GroupList<'_> = parse(&answer.body, root, access)?;
                for group in groups.groups.into_iter().take(MAX_GROUPS) {
                    legacy_group(access, group, &mut found).await?;
                }
            }
        }
    }
    Ok(found.kinds)
}

#[derive(Deserialize)]
struct ResponseKind<'b> {
    #[serde(borrow, default)]
    kind: Cow<'b, str>,
}

#[derive(Deserialize)]
struct AggregatedList<'b> {
    #[serde(borrow, default)]
    items: Vec<AggregatedGroup<'b>>,
}

#[derive(Deserialize)]
struct AggregatedGroup<'b> {
    #[serde(borrow, default)]
    metadata: GroupName<'b>,
    #[serde(borrow, default)]
    versions: Vec<AggregatedVersion<'b>>,
}

#[derive(Deserialize, Default)]
struct GroupName<'b> {
    #[serde(borrow, default)]
    name: Cow<'b, str>,
}

#[derive(Deserialize)]
struct AggregatedVersion<'b> {
    #[serde(borrow)]
    version: Cow<'b, str>,
    #[serde(borrow, default)]
    resources: Vec<AggregatedResource<'b>>,
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
        for resource in version.resources {
            let Some(kind) = resource.response_kind else { continue };
            let serves = |verb: &str| resource.verbs.iter().any(|known| known == verb);
            found.add(ServedKind {
                group: group.metadata.name.to_string(),
                version: version.version.to_string(),
                kind: kind.kind.into_owned(),
                list: serves("list"),
                watch: serves("watch"),
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
}

impl KindSet {
    /// Adds a kind, unless a version that the server lists earlier serves it too.
    fn add(&mut self, kind: ServedKind) {
        let is_new = self.seen.insert((kind.group.clone(), kind.plural.clone()));
        if is_new && self.kinds.len() < MAX_KINDS {
            self.kinds.push(kind);
        }
    }
}

#[derive(Deserialize)]
struct CoreVersions<'b> {
    #[serde(borrow, default)]
    versions: Vec<Cow<'b, str>>,
}

#[derive(Deserialize)]
struct GroupList<'b> {
    #[serde(borrow, default)]
    groups: Vec<LegacyGroup<'b>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LegacyGroup<'b> {
    #[serde(borrow)]
    name: Cow<'b, str>,
    #[serde(borrow, default)]
    versions: Vec<LegacyVersion<'b>>,
    #[serde(borrow)]
    preferred_version: Option<LegacyVersion<'b>>,
}

#[derive(Deserialize)]
struct LegacyVersion<'b> {
    #[serde(borrow)]
    version: Cow<'b, str>,
}

#[derive(Deserialize)]
struct LegacyResources<'b> {
    #[serde(borrow, default)]
    resources: Vec<LegacyResource<'b>>,
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
    access: &mut ClusterAccess,
    group: LegacyGroup<'_>,
    found: &mut KindSet,
) -> Result<(), Failure> {
    let preferred = group.preferred_version.map(|preferred| preferred.version);
    let others = group.versions.into_iter().map(|version| version.version);
    let others: Vec<_> = others.filter(|version| Some(version) != preferred.as_ref()).collect();
    for version in preferred.into_iter().chain(others) {
        legacy_resources(access, &group.name, &version, found).await?;
    }
    Ok(())
}

/// Reads one version of one group. A version that cannot be served (an aggregated API server is down) leaves
/// the others usable.
async fn legacy_resources(
    access: &mut ClusterAccess,
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
    let answer = match access.get(&path, JSON).await {
        Ok(answer) => answer,
        Err(failure) if !group.is_empty() && matches!(failure.http_status, 403 | 404 | 500..=599) => {
            return Ok(());
        }
        Err(failure) => return Err(failure),
    };
    let list: LegacyResources<'_> = parse(&answer.body, &path, access)?;
    for resource in list.resources {
        // Names with a slash are subresources, such as pods/log.
        if resource.name.contains('/') {
            continue;
        }
        let serves = |verb: &str| resource.verbs.iter().any(|known| known == verb);
        let (list, watch) = (serves("list"), serves("watch"));
        found.add(ServedKind {
            group: group.to_owned(),
            version: version.to_owned(),
            kind: resource.kind.into_owned(),
            plural: resource.name.into_owned(),
            namespaced: resource.namespaced,
            list,
            watch,
        });
    }
    Ok(())
}
