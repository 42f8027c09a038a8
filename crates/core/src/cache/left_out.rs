//! Reasons for uncached kinds and objects, and the responsible settings.

use std::fmt;

use super::findings::Setting;
use super::kind_names::KindNames;
use super::native;
use super::rules::{AccountRules, ChosenKinds, MAX_SCOPES, OperatorRules};

/// A kind, or an object of it, that is not cached; or a name in a setting to omit kinds that omits nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// `Kind.group`, or the kind alone in the core group; as written in the setting if the cluster has no such kind.
    pub kind: String,
    /// Reason.
    pub why: Why,
    /// The setting that leaves it out, or that requests it where the cluster is the reason.
    pub setting: Option<Setting>,
}

/// Reason for which something is not cached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// A setting names a kind that the cluster does not serve.
    NotServed,
    /// Contained in a list of kinds to omit.
    Omitted,
    /// Named by the account's own `kinds`, and contained in a list of kinds to omit.
    NamedAndOmitted,
    /// An account's list of kinds to omit names a kind that the cluster does not serve.
    OmitsNothing,
    /// Missing in a list of kinds to cache.
    NotNamed,
    /// Cluster-scoped, and the account has only namespaced kinds.
    ClusterWide,
    /// Named by the account's own `kinds`, but cluster-scoped, and the account has only namespaced kinds.
    NamedAndClusterWide,
    /// No list verb.
    CannotBeListed,
    /// No watch verb.
    CannotBeWatched,
    /// Neither list nor watch verb.
    CannotBeRead,
    /// Objects shared with this other cached kind: `Kind.group`.
    SameObjects(String),
    /// Too many watches for the account's limit; the number that the kind needs.
    TooManyScopes(usize),
    /// Served under an invalid name.
    InvalidName,
    /// The given namespaces are all invalid or omitted.
    NoNamespace,
    /// The account does not watch the object's namespace.
    OtherNamespace(String),
    /// The account omits the object's namespace.
    OmittedNamespace(String),
    /// The object is not Spinnaker's.
    NotManaged,
    /// The object asks not to be cached.
    Ignored,
}

impl LeftOut {
    /// Whether the omission is intended, or a setting requests all kinds: then it is reported only on demand.
    pub fn is_expected(&self) -> bool {
        match self.why {
            Why::Omitted
            | Why::ClusterWide
            | Why::SameObjects(_)
            | Why::OtherNamespace(_)
            | Why::OmittedNamespace(_)
            | Why::NotManaged
            | Why::Ignored => true,
            Why::CannotBeListed | Why::CannotBeWatched | Why::CannotBeRead | Why::InvalidName => {
                self.setting == Some(Setting::CacheAll)
            }
            Why::NotServed
            | Why::NotNamed
            | Why::NamedAndOmitted
            | Why::NamedAndClusterWide
            | Why::OmitsNothing
            | Why::TooManyScopes(_)
            | Why::NoNamespace => false,
        }
    }

    /// The reason in words, to follow `Kind.group: `.
    pub fn reason(&self) -> String {
        let setting = self.setting.map_or("a setting", Setting::name);
        match &self.why {
            Why::NotServed => "the cluster does not serve it".to_owned(),
            Why::Omitted => format!("{setting} names it"),
            Why::NamedAndOmitted => format!("kinds names it, and {setting} omits it"),
            Why::OmitsNothing => {
                format!("{setting} names it, but the cluster serves no such kind: it omits nothing")
            }
            Why::NotNamed => format!("{setting} does not name it"),
            Why::ClusterWide => "it is cluster-wide, and onlyNamespacedResources is set".to_owned(),
            Why::NamedAndClusterWide => {
                "kinds names it, but it is cluster-wide, and onlyNamespacedResources is set".to_owned()
            }
            Why::CannotBeListed => "it cannot be listed".to_owned(),
            Why::CannotBeWatched => "it cannot be watched".to_owned(),
            Why::CannotBeRead => "it can be neither listed nor watched".to_owned(),
            Why::SameObjects(kind) => format!("its objects are cached as {kind}; name {kind} instead"),
            Why::TooManyScopes(scopes) => format!(
                "it takes {scopes} more watches, and an account has at most {MAX_SCOPES}: name fewer kinds or \
                 namespaces, or give the account rights on the whole cluster and set omitNamespaces in place of \
                 namespaces"
            ),
            Why::InvalidName => "the cluster serves it under a name that no kind can have".to_owned(),
            Why::NoNamespace => "namespaces leaves no namespace to watch".to_owned(),
            Why::OtherNamespace(namespace) => format!("namespaces does not name {namespace}"),
            Why::OmittedNamespace(namespace) => format!("omitNamespaces names {namespace}"),
            Why::NotManaged => {
                "it has no annotation moniker.spinnaker.io/application, and onlySpinnakerManaged is set"
                    .to_owned()
            }
            Why::Ignored => "its annotation caching.spinnaker.io/ignore is \"true\"".to_owned(),
        }
    }
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.reason())
    }
}

/// Reason for which settings leave out an object, by its kind and namespace alone; `None` if they do not. An object may
/// still have no row: because of `onlySpinnakerManaged` or its annotations (see
/// [`ObjectFilter`](super::object_filter::ObjectFilter)), a missing permission, or too many watches of its kind.
///
/// `group` is `None` if a person named the kind alone: the native kind, or the kind of any group that has it. An empty
/// `namespace` means a cluster-scoped object. Namespaces and definitions of custom resources have synthetic rows where
/// cluster-scoped objects are left out.
pub fn why_left_out(
    operator: &OperatorRules,
    account: &AccountRules,
    kind: &str,
    group: Option<&str>,
    namespace: &str,
) -> Option<LeftOut> {
    let alias_of = native::by_alias(kind).filter(|_| group.is_none());
    let kind = alias_of.map_or(kind, |native| native.name);
    let group = group.or_else(|| native::native_kind(kind).map(|native| native.home));
    let left_out = |why, setting| {
        Some(LeftOut {
            kind: native::qualified(group.unwrap_or_default(), kind),
            why,
            setting: Some(setting),
        })
    };
    let is_named = |names: &KindNames| match group {
        Some(group) => names.names(group, kind),
        None => names.names_kind(kind, true),
    };
    let is_omitted = |names: &KindNames| match group {
        Some(group) => names.names(group, kind),
        None => names.names_kind(kind, false),
    };
    let operator_names_it = match (operator.chosen(), group) {
        (ChosenKinds::All, _) => true,
        (ChosenKinds::Named(names), _) => is_named(names),
        (ChosenKinds::Default, group) => group.is_some_and(|group| operator.place(group, kind).is_some()),
    };
    if !operator_names_it {
        return left_out(Why::NotNamed, operator.setting());
    }
    if is_omitted(&operator.omit_kinds) {
        return left_out(Why::Omitted, Setting::CacheOmitKinds);
    }
    if account.kinds.as_ref().is_some_and(|kinds| !is_named(kinds)) {
        return left_out(Why::NotNamed, Setting::Kinds);
    }
    if is_omitted(&account.omit_kinds) {
        return left_out(Why::Omitted, Setting::OmitKinds);
    }
    let (why, setting) = outside_namespaces(account, group.unwrap_or_default(), kind, namespace)?;
    left_out(why, setting)
}

fn outside_namespaces(
    account: &AccountRules,
    group: &str,
    kind: &str,
    namespace: &str,
) -> Option<(Why, Setting)> {
    if namespace.is_empty() {
        let is_left_out = account.only_namespaced_resources && !has_synthetic_rows(group, kind);
        return is_left_out.then_some((Why::ClusterWide, Setting::OnlyNamespacedResources));
    }
    if account.omit_namespaces.contains(namespace) {
        return Some((Why::OmittedNamespace(namespace.to_owned()), Setting::OmitNamespaces));
    }
    let is_watched = account.namespaces.includes(namespace);
    (!is_watched).then(|| (Why::OtherNamespace(namespace.to_owned()), Setting::Namespaces))
}

/// Whether a cluster-scoped kind has synthetic rows where cluster-scoped kinds are not read.
pub(super) fn has_synthetic_rows(group: &str, kind: &str) -> bool {
    let is = |of: &str, name: &str| group == of && kind.eq_ignore_ascii_case(name);
    is("", "Namespace") || is("apiextensions.k8s.io", "CustomResourceDefinition")
}
