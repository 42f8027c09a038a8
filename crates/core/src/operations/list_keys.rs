//! Merge strategies of the fields of native kinds, as Kubernetes' types declare them for each list and map
//! (`patchStrategy` and `patchMergeKey` in their Go sources). By default a map is merged field by field, and a list is
//! replaced as a whole.

/// Groups of Kubernetes' own kinds whose names have a dot.
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

/// Merge strategy of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Strategy {
    /// A map field by field; a list as a whole.
    Default,
    /// A list, item by item; this field identifies an item.
    Items(&'static str),
    /// Like [`Strategy::Items`]; items keep only the manifest's fields.
    ItemsRetainingKeys(&'static str),
    /// A list of texts or numbers, as a set.
    Set,
    /// A map that keeps only the manifest's fields.
    RetainKeys,
    /// A map as a whole.
    Replace,
}

use Strategy::{Items, ItemsRetainingKeys, Replace, RetainKeys, Set};

/// Strategies below `metadata`.
const METADATA: &[(&[&str], Strategy)] = &[(&["finalizers"], Set), (&["ownerReferences"], Items("uid"))];

/// Strategies below the `spec` of a pod.
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

/// Lists of containers in a pod's `spec`.
const CONTAINERS: [&str; 3] = ["containers", "initContainers", "ephemeralContainers"];

/// Strategies below a container.
const CONTAINER: &[(&[&str], Strategy)] = &[
    (&["env"], Items("name")),
    (&["ports"], Items("containerPort")),
    (&["volumeMounts"], Items("mountPath")),
    (&["volumeDevices"], Items("devicePath")),
];

/// Group, kind, path, and merge strategy.
type KindRule = (&'static str, &'static str, &'static [&'static str], Strategy);

/// Strategies of individual kinds.
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

/// Paths of pod templates, by group and kind.
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
    /// The strategies of a kind. Lists of a kind that is not native are replaced as a whole.
    pub(super) fn of(group: &'k str, kind: &'k str) -> Self {
        Self { group, kind, native: !group.contains('.') || BUILT_IN_GROUPS.contains(&group) }
    }

    /// Whether the API server supports strategic merge patches of the kind.
    pub(super) fn is_native(&self) -> bool {
        self.native
    }

    /// Strategy of the field at a path. List items add nothing to a path.
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

/// Merge strategy of a field, as Kubernetes' types declare it: `merge by name`, `retainKeys`; empty for the default: a
/// map field by field, a list as a whole. List items add nothing to a path.
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

/// Strategy of a field of a pod, or of a pod template.
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
