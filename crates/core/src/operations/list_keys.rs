//! How the fields of native kinds are merged: the strategy that Kubernetes' types declare for each list and map
//! (`patchStrategy` and `patchMergeKey` in their Go sources). What is not in the tables is merged field by field if it
//! is a map, and replaced as a whole if it is a list.

/// The groups of Kubernetes' own kinds whose names have a dot.
const BUILT_IN_GROUPS: [&str; 18] = [
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "apiregistration.k8s.io",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "certificates.k8s.io",
    "coordination.k8s.io",
    "discovery.k8s.io",
    "events.k8s.io",
    "flowcontrol.apiserver.k8s.io",
    "internal.apiserver.k8s.io",
    "networking.k8s.io",
    "node.k8s.io",
    "rbac.authorization.k8s.io",
    "resource.k8s.io",
    "scheduling.k8s.io",
    "storage.k8s.io",
    "storagemigration.k8s.io",
];

/// How a field is merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Strategy {
    /// A map field by field; a list as a whole.
    Default,
    /// A list, item by item; this field tells which is which.
    Items(&'static str),
    /// Like [`Strategy::Items`], and of an item's fields only those of the manifest stay.
    ItemsRetainingKeys(&'static str),
    /// A list of texts or numbers, as a set.
    Set,
    /// A map, of whose fields only those of the manifest stay.
    RetainKeys,
    /// A map as a whole.
    Replace,
}

use Strategy::{Items, ItemsRetainingKeys, Replace, RetainKeys, Set};

/// Below `metadata`.
const METADATA: &[(&[&str], Strategy)] = &[(&["finalizers"], Set), (&["ownerReferences"], Items("uid"))];

/// Below the `spec` of a pod.
const POD: &[(&[&str], Strategy)] = &[
    (&["containers"], Items("name")),
    (&["initContainers"], Items("name")),
    (&["ephemeralContainers"], Items("name")),
    (&["volumes"], ItemsRetainingKeys("name")),
    (&["imagePullSecrets"], Items("name")),
    (&["hostAliases"], Items("ip")),
    (&["topologySpreadConstraints"], Items("topologyKey")),
    (&["resourceClaims"], ItemsRetainingKeys("name")),
    (&["schedulingGates"], Items("name")),
];

/// Lists of pods whose items are containers.
const CONTAINERS: [&str; 3] = ["containers", "initContainers", "ephemeralContainers"];

/// Below a container.
const CONTAINER: &[(&[&str], Strategy)] = &[
    (&["env"], Items("name")),
    (&["ports"], Items("containerPort")),
    (&["volumeMounts"], Items("mountPath")),
    (&["volumeDevices"], Items("devicePath")),
];

/// A group, a kind and a path of it, and how that is merged.
type KindRule = (&'static str, &'static str, &'static [&'static str], Strategy);

/// Below the objects of some kinds.
const KINDS: &[KindRule] = &[
    ("", "Service", &["spec", "ports"], Items("port")),
    ("", "ServiceAccount", &["secrets"], Items("name")),
    ("", "Node", &["spec", "podCIDRs"], Set),
    ("apps", "Deployment", &["spec", "strategy"], RetainKeys),
    ("batch", "CronJob", &["spec", "jobTemplate", "metadata", "finalizers"], Set),
    ("batch", "CronJob", &["spec", "jobTemplate", "metadata", "ownerReferences"], Items("uid")),
    ("policy", "PodDisruptionBudget", &["spec", "selector"], Replace),
    ("admissionregistration.k8s.io", "MutatingWebhookConfiguration", &["webhooks"], Items("name")),
    ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration", &["webhooks"], Items("name")),
    (
        "admissionregistration.k8s.io",
        "MutatingWebhookConfiguration",
        &["webhooks", "matchConditions"],
        Items("name"),
    ),
    (
        "admissionregistration.k8s.io",
        "ValidatingWebhookConfiguration",
        &["webhooks", "matchConditions"],
        Items("name"),
    ),
    (
        "admissionregistration.k8s.io",
        "ValidatingAdmissionPolicy",
        &["spec", "matchConditions"],
        Items("name"),
    ),
    ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy", &["spec", "variables"], Items("name")),
    ("admissionregistration.k8s.io", "MutatingAdmissionPolicy", &["spec", "matchConditions"], Items("name")),
    ("resource.k8s.io", "ResourceClaimTemplate", &["spec", "metadata", "finalizers"], Set),
    ("resource.k8s.io", "ResourceClaimTemplate", &["spec", "metadata", "ownerReferences"], Items("uid")),
    ("storage.k8s.io", "CSINode", &["spec", "drivers"], Items("name")),
];

/// Where a kind has the template of its pods.
const TEMPLATES: &[(&str, &str, &[&str])] = &[
    ("", "PodTemplate", &["template"]),
    ("", "ReplicationController", &["spec", "template"]),
    ("apps", "Deployment", &["spec", "template"]),
    ("apps", "ReplicaSet", &["spec", "template"]),
    ("apps", "StatefulSet", &["spec", "template"]),
    ("apps", "DaemonSet", &["spec", "template"]),
    ("batch", "Job", &["spec", "template"]),
    ("batch", "CronJob", &["spec", "jobTemplate", "spec", "template"]),
];

/// The strategies of one kind.
#[derive(Clone, Copy, Debug)]
pub(super) struct MergeSchema<'k> {
    group: &'k str,
    kind: &'k str,
    native: bool,
}

impl<'k> MergeSchema<'k> {
    /// The strategies of a kind; of one that is not native, every list is replaced as a whole.
    pub(super) fn of(group: &'k str, kind: &'k str) -> Self {
        Self { group, kind, native: !group.contains('.') || BUILT_IN_GROUPS.contains(&group) }
    }

    /// Whether the API server knows strategies of the kind, so that it takes a strategic merge patch.
    pub(super) fn is_native(&self) -> bool {
        self.native
    }

    /// How the field at a path is merged. Items of lists add nothing to a path.
    pub(super) fn at(&self, path: &[&str]) -> Strategy {
        if !self.native {
            return Strategy::Default;
        }
        self.in_object(path).unwrap_or(Strategy::Default)
    }

    fn in_object(&self, path: &[&str]) -> Option<Strategy> {
        if let Some(metadata) = path.strip_prefix(&["metadata"]) {
            return find(METADATA, metadata);
        }
        if (self.group, self.kind) == ("", "Pod") {
            return in_pod(path);
        }
        let own = KINDS
            .iter()
            .find(|(group, kind, at, _)| (*group, *kind, *at) == (self.group, self.kind, path))
            .map(|(.., strategy)| *strategy);
        let template = || {
            let (.., at) =
                TEMPLATES.iter().find(|(group, kind, _)| (*group, *kind) == (self.group, self.kind))?;
            in_pod(path.strip_prefix(*at)?)
        };
        own.or_else(template)
    }
}

/// How a field of a kind is merged, as Kubernetes' types declare it: `merge by name`, `retainKeys`; empty: a map field by
/// field, a list as a whole. Items of lists add nothing to a path.
pub fn merge_rule(group: &str, kind: &str, path: &[&str]) -> String {
    match MergeSchema::of(group, kind).at(path) {
        Strategy::Default => String::new(),
        Items(key) => format!("merge by {key}"),
        ItemsRetainingKeys(key) => format!("merge,retainKeys by {key}"),
        Set => "merge".to_owned(),
        RetainKeys => "retainKeys".to_owned(),
        Replace => "replace".to_owned(),
    }
}

/// How a field of a pod, or of the template of pods, is merged.
fn in_pod(path: &[&str]) -> Option<Strategy> {
    if let Some(metadata) = path.strip_prefix(&["metadata"]) {
        return find(METADATA, metadata);
    }
    let spec = path.strip_prefix(&["spec"])?;
    match spec {
        ["volumes", "ephemeral", "volumeClaimTemplate", "metadata", metadata @ ..] => {
            find(METADATA, metadata)
        }
        [list, container @ ..] if CONTAINERS.contains(list) && !container.is_empty() => {
            find(CONTAINER, container)
        }
        _ => find(POD, spec),
    }
}

fn find(table: &[(&[&str], Strategy)], path: &[&str]) -> Option<Strategy> {
    table.iter().find(|(at, _)| *at == path).map(|(_, strategy)| *strategy)
}
