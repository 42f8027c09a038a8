//! Clouddriver's table of kinds: spelling, short names, home groups and classes.
//!
//! Names and groups are those of Clouddriver's `KubernetesKind` and `KubernetesApiGroup`, oddities included: its
//! readers find rows by exactly this text. A kind of a native group that the table lacks keeps its own spelling; a kind
//! of any other group is `Kind.group`.

use SpinnakerKind::{
    Configs, Instances, LoadBalancers, SecurityGroups, ServerGroupManagers, ServerGroups, Unclassified,
};

use crate::spec::SpinnakerKind;

/// A kind that Clouddriver knows by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NativeKind {
    /// Clouddriver's spelling: `replicaSet`.
    pub name: &'static str,
    /// Clouddriver's short name, if any.
    pub alias: Option<&'static str>,
    /// API group under which its objects are watched. Other native groups may serve the same objects.
    pub home: &'static str,
    /// Spinnaker's class.
    pub class: SpinnakerKind,
}

const fn kind(
    name: &'static str,
    alias: Option<&'static str>,
    home: &'static str,
    class: SpinnakerKind,
) -> NativeKind {
    NativeKind { name, alias, home, class }
}

const NATIVE_KINDS: &[NativeKind] = &[
    kind("apiService", None, "apiregistration.k8s.io", Unclassified),
    kind("clusterRole", None, "rbac.authorization.k8s.io", Unclassified),
    kind("clusterRoleBinding", None, "rbac.authorization.k8s.io", Unclassified),
    kind("configMap", Some("cm"), "", Configs),
    kind("controllerRevision", None, "apps", Unclassified),
    kind("cronJob", None, "batch", ServerGroups),
    kind("csiDriver", None, "storage.k8s.io", Unclassified),
    kind("csiNode", None, "storage.k8s.io", Unclassified),
    kind("customResourceDefinition", Some("crd"), "apiextensions.k8s.io", Unclassified),
    kind("daemonSet", Some("ds"), "apps", ServerGroups),
    kind("deployment", Some("deploy"), "apps", ServerGroupManagers),
    kind("destinationRule", None, "networking.istio.io", Configs),
    kind("event", None, "", Unclassified),
    kind("gateway", None, "networking.istio.io", Configs),
    kind("horizontalpodautoscaler", Some("hpa"), "autoscaling", Unclassified),
    kind("ingress", None, "networking.k8s.io", LoadBalancers),
    kind("job", None, "batch", ServerGroups),
    kind("limitRange", None, "", Unclassified),
    kind("mutatingWebhookConfiguration", None, "admissionregistration.k8s.io", Unclassified),
    kind("namespace", Some("ns"), "", Unclassified),
    kind("networkPolicy", Some("netpol"), "networking.k8s.io", SecurityGroups),
    kind("persistentVolume", Some("pv"), "", Configs),
    kind("persistentVolumeClaim", Some("pvc"), "", Configs),
    kind("pod", Some("po"), "", Instances),
    kind("podDisruptionBudget", None, "policy", Unclassified),
    kind("podPreset", None, "settings.k8s.io", Unclassified),
    kind("podSecurityPolicy", None, "policy", Unclassified),
    kind("replicaSet", Some("rs"), "apps", ServerGroups),
    kind("role", None, "rbac.authorization.k8s.io", Unclassified),
    kind("roleBinding", None, "rbac.authorization.k8s.io", Unclassified),
    kind("secret", None, "", Configs),
    kind("service", Some("svc"), "", LoadBalancers),
    kind("serviceAccount", Some("sa"), "", Unclassified),
    kind("statefulSet", None, "apps", ServerGroups),
    kind("storageClass", Some("sc"), "storage.k8s.io", Unclassified),
    kind("validatingWebhookConfiguration", None, "admissionregistration.k8s.io", Unclassified),
    kind("virtualService", None, "networking.istio.io", Configs),
];

/// API groups whose kinds Clouddriver writes without their group.
const NATIVE_GROUPS: &[&str] = &[
    "",
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "apiregistration.k8s.io",
    "apps",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "autoscaling",
    "batch",
    "certificates.k8s.io",
    "extensions",
    "networking.istio.io",
    "networking.k8s.io",
    "policy",
    "rbac.authorization.k8s.io",
    "scheduling.k8s.io",
    "settings.k8s.io",
    "storage.k8s.io",
];

/// API group in which older clusters serve native kinds that now have other home groups.
pub(super) const FORMER_GROUP: &str = "extensions";

/// Kinds that serve the objects of a native kind in a group that is not native otherwise.
const SAME_OBJECTS: &[(&str, &str)] = &[("Event", "events.k8s.io")];

/// Kinds cached by default, in the documented order and in Kubernetes' spelling. Each is the native kind of that name.
pub const DEFAULT_KINDS: [&str; 12] = [
    "ReplicaSet",
    "Service",
    "Ingress",
    "DaemonSet",
    "Deployment",
    "Pod",
    "StatefulSet",
    "Job",
    "CronJob",
    "NetworkPolicy",
    "Namespace",
    "CustomResourceDefinition",
];

/// The native kind of a name, case-insensitive. Short names are not considered: no object has one as its kind.
pub fn native_kind(kind: &str) -> Option<&'static NativeKind> {
    NATIVE_KINDS.iter().find(|native| native.name.eq_ignore_ascii_case(kind))
}

/// The native kind with this short name, case-insensitive.
pub(crate) fn by_alias(alias: &str) -> Option<&'static NativeKind> {
    NATIVE_KINDS.iter().find(|native| native.alias.is_some_and(|known| known.eq_ignore_ascii_case(alias)))
}

/// Whether a kind of a group is native: its rows are named without the group, so that kinds of one name in several
/// native groups share their rows.
pub fn is_native(group: &str, kind: &str) -> bool {
    NATIVE_GROUPS.contains(&group)
        || SAME_OBJECTS.iter().any(|(same, of)| *of == group && same.eq_ignore_ascii_case(kind))
}

/// Index of a kind in [`DEFAULT_KINDS`], regardless of its group.
pub(crate) fn default_kind_index(kind: &str) -> Option<usize> {
    DEFAULT_KINDS.iter().position(|known| known.eq_ignore_ascii_case(kind))
}

/// Clouddriver's spelling of a kind in keys, rows and relations: `replicaSet` if its table has the kind,
/// `ResourceQuota` for others of a native group, else `Kind.group`.
pub fn kind_name(group: &str, kind: &str) -> String {
    if !is_native(group, kind) {
        return format!("{kind}.{group}");
    }
    native_kind(kind).map_or(kind, |native| native.name).to_owned()
}

/// A kind for display, with its group unless that is the core group: `Deployment.apps`, `Pod`.
pub(crate) fn qualified(group: &str, kind: &str) -> String {
    if group.is_empty() { kind.to_owned() } else { format!("{kind}.{group}") }
}

/// Class of a kind in Clouddriver's table, by its [`kind_name`], case-insensitive.
pub(super) fn class_of(kind_name: &str) -> SpinnakerKind {
    native_kind(kind_name).map_or(Unclassified, |native| native.class)
}

/// The native kind with a similar name, in Clouddriver's spelling: one letter off, or two in a long name.
pub(super) fn nearest(kind: &str) -> Option<&'static str> {
    let kind = kind.to_ascii_lowercase();
    let tolerance = if kind.len() < 9 { 1 } else { 2 };
    let distances = NATIVE_KINDS
        .iter()
        .map(|native| (strsim::damerau_levenshtein(&kind, &native.name.to_ascii_lowercase()), native.name));
    distances.filter(|(distance, _)| (1..=tolerance).contains(distance)).min().map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use super::*;

    /// Resources that may be listed and watched, by group, in a file with a role. A list stands on one line.
    fn watched(file: &str) -> BTreeMap<String, Vec<String>> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file);
        let text = std::fs::read_to_string(path).expect("it can be read");
        let list = |line: &str, key: &str| {
            let list = line.trim_start_matches([' ', '-']).strip_prefix(key)?.trim().trim_matches(['[', ']']);
            Some(list.split(',').map(|one| one.trim().trim_matches('"').to_owned()).collect::<Vec<_>>())
        };
        let (mut groups, mut resources) = (Vec::new(), Vec::new());
        let mut watched: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for line in text.lines() {
            if let Some(found) = list(line, "apiGroups:") {
                groups = found;
            } else if let Some(found) = list(line, "resources:") {
                resources = found;
            } else if list(line, "verbs:").is_some_and(|verbs| {
                ["get", "list", "watch"].iter().all(|verb| verbs.iter().any(|one| one == verb))
            }) {
                for group in &groups {
                    watched.entry(group.clone()).or_default().extend(resources.iter().cloned());
                }
            }
        }
        watched
    }

    #[test]
    fn the_shipped_role_of_an_agent_covers_the_kinds_that_are_cached_by_default() {
        let watched = watched("config/agent/role.yaml");
        for kind in DEFAULT_KINDS {
            let group = native_kind(kind).expect("it is native").home;
            let plural = match kind.to_lowercase() {
                name if name.ends_with('s') => format!("{name}es"),
                name if name.ends_with('y') => format!("{}ies", &name[..name.len() - 1]),
                name => format!("{name}s"),
            };
            let held = watched.get(group).map(Vec::as_slice).unwrap_or_default();
            assert!(held.contains(&plural), "{plural} of {group:?} in {watched:?}");
        }
    }
}
