//! Which kinds of an account are cached, and why a kind is left out. Pure.

use crate::agent::activation::discovery::ServedKind;
use crate::wire::common::Scope;
use crate::wire::ops::{AccountSpec, DiscoveredKind};

/// The kinds, with their groups, that are cached unless an account says otherwise.
const DEFAULTS: [(&str, &str); 12] = [
    ("ReplicaSet", "apps"),
    ("Service", ""),
    ("Ingress", "networking.k8s.io"),
    ("DaemonSet", "apps"),
    ("Deployment", "apps"),
    ("Pod", ""),
    ("StatefulSet", "apps"),
    ("Job", "batch"),
    ("CronJob", "batch"),
    ("NetworkPolicy", "networking.k8s.io"),
    ("Namespace", ""),
    ("CustomResourceDefinition", "apiextensions.k8s.io"),
];
/// Maximum number of kinds that an account may name; further ones are ignored.
const MAX_KINDS: usize = 500;

/// Returns the kinds of an account: those that it names, otherwise the default ones; each with the reason if
/// it is left out.
pub(super) fn chosen(served: &[ServedKind], spec: &AccountSpec) -> Vec<DiscoveredKind> {
    let mut found = Vec::new();
    if spec.kinds.is_empty() {
        for (kind, group) in DEFAULTS {
            let serving = served.iter().find(|known| known.group == group && known.kind == kind);
            push(&mut found, discovered(serving, kind, group, spec));
        }
    } else {
        for name in spec.kinds.iter().take(MAX_KINDS) {
            let serving = named(served, name);
            let (kind, group) = split(name);
            push(&mut found, discovered(serving, kind, group.unwrap_or_default(), spec));
        }
    }
    found
}

/// Adds a kind unless it is there already: two names may mean one kind.
fn push(found: &mut Vec<DiscoveredKind>, kind: DiscoveredKind) {
    if !found.iter().any(|known| known.scope == kind.scope) {
        found.push(kind);
    }
}

/// Splits `Kind.group` into kind and group.
fn split(name: &str) -> (&str, Option<&str>) {
    match name.split_once('.') {
        Some((kind, group)) => (kind, Some(group)),
        None => (name, None),
    }
}

/// Finds the kind that a name means. Without a group, that is the default kind of this name, otherwise the
/// first one found.
fn named<'a>(served: &'a [ServedKind], name: &str) -> Option<&'a ServedKind> {
    let (kind, group) = split(name);
    let mut fitting = served.iter().filter(|known| known.kind.eq_ignore_ascii_case(kind));
    if let Some(group) = group {
        return fitting.find(|known| known.group.eq_ignore_ascii_case(group));
    }
    let default = DEFAULTS.iter().find(|(name, _)| name.eq_ignore_ascii_case(kind));
    let of_default = default.and_then(|(_, group)| fitting.clone().find(|known| known.group == *group));
    of_default.or_else(|| fitting.next())
}

fn matches(names: &[String], kind: &str, group: &str) -> bool {
    names.iter().any(|name| {
        let (named, of) = split(name);
        named.eq_ignore_ascii_case(kind) && of.is_none_or(|of| of.eq_ignore_ascii_case(group))
    })
}

fn discovered(serving: Option<&ServedKind>, kind: &str, group: &str, spec: &AccountSpec) -> DiscoveredKind {
    let Some(known) = serving else {
        let scope = Scope { kind: shortened(kind), group: shortened(group), ..Scope::default() };
        let reason = "the cluster does not serve it".to_owned();
        return DiscoveredKind { scope: Some(scope), listable: false, watchable: false, reason };
    };
    let reason = if matches(&spec.omit_kinds, &known.kind, &known.group) {
        "omitKinds names it"
    } else if spec.only_namespaced_resources && !known.namespaced {
        "it is cluster-wide, and onlyNamespacedResources is set"
    } else {
        match (known.list, known.watch) {
            (true, true) => "",
            (false, true) => "it cannot be listed",
            (true, false) => "it cannot be watched",
            (false, false) => "it can be neither listed nor watched",
        }
    };
    let scope = Scope {
        group: shortened(&known.group),
        version: shortened(&known.version),
        kind: shortened(&known.kind),
        plural: shortened(&known.plural),
        namespace: String::new(),
    };
    DiscoveredKind {
        scope: Some(scope),
        listable: known.list,
        watchable: known.watch,
        reason: reason.to_owned(),
    }
}

/// Truncates a name to the maximum length in Kubernetes; only a hostile server sends longer ones.
fn shortened(name: &str) -> String {
    let mut name = name.to_owned();
    crate::account::failure::truncate(&mut name, 253);
    name
}
