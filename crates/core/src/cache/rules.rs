//! Settings that choose the cached objects: parsed, checked, and in their form on the wire.
//!
//! The operator reads its own settings once and an account's with each generation, and sends both with the caching
//! assignment. The agent reads them with the same functions. A given list without a valid name chooses nothing: a
//! mistake never widens the choice.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use super::classes::KindClasses;
use super::findings::{Finding, Setting};
use super::keys::MAX_NAME_CHARS;
use super::kind_names::{KindNames, KindSelector, MAX_ITEMS, quoted};
use super::moniker::META_KEYS;
use super::native;
use crate::object_names::is_dns_label;
use crate::spec::{ExposedCustomResource, KubesvcAccountSpec, Scope};
use crate::wire::ops;

/// Maximum number of scopes, and so of watches, of one account.
pub const MAX_SCOPES: usize = 5000;
/// Default maximum age of a checkpoint from which a watch resumes, in milliseconds.
pub(crate) const DEFAULT_MAX_RESUMABLE_AGE_MS: u64 = 300_000;
/// Default interval between two lists of a watched scope, in milliseconds: 6 hours.
pub const DEFAULT_AUDIT_MS: u64 = 6 * 60 * 60 * 1000;

/// The operator's configured settings `kubesvc.cache.*`.
#[derive(Clone, Copy, Debug, Default)]
pub struct OperatorRuleFields<'a> {
    /// `cacheAll`.
    pub cache_all: bool,
    /// `cacheDefaults`; `None` if not set.
    pub cache_defaults: Option<&'a [String]>,
    /// `cacheKinds`; `None` if not set. An empty list is set, and caches nothing.
    pub cache_kinds: Option<&'a [String]>,
    /// `cacheOmitKinds`.
    pub cache_omit_kinds: &'a [String],
}

/// Kinds chosen by the operator's settings, before `cacheOmitKinds`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChosenKinds {
    /// Every kind that can be listed and watched.
    All,
    /// The twelve default kinds, as native kinds.
    Default,
    /// The kinds of a list.
    Named(KindNames),
}

/// The operator's rules for all accounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperatorRules {
    pub(super) chosen: ChosenKinds,
    pub(super) omit_kinds: KindNames,
}

impl Default for OperatorRules {
    /// The twelve default kinds.
    fn default() -> Self {
        Self { chosen: ChosenKinds::Default, omit_kinds: KindNames::default() }
    }
}

impl OperatorRules {
    /// Reads the operator's settings. The result is usable regardless of findings.
    pub fn read(settings: &OperatorRuleFields<'_>) -> (Self, Vec<Finding>) {
        let (omit_kinds, mut findings) = KindNames::read(Setting::CacheOmitKinds, settings.cache_omit_kinds);
        let list = match (settings.cache_kinds, settings.cache_defaults) {
            (Some(kinds), _) => Some((Setting::CacheKinds, kinds)),
            (None, Some(defaults)) => Some((Setting::CacheDefaults, defaults)),
            (None, None) => None,
        };
        let Some((setting, texts)) = list else {
            let chosen = if settings.cache_all { ChosenKinds::All } else { ChosenKinds::Default };
            return (Self { chosen, omit_kinds }, findings);
        };
        let (names, of_names) = KindNames::read(setting, texts);
        findings.extend(of_names);
        if settings.cache_all {
            let reason = "kubesvc.cache.cacheAll caches every kind; remove one of the two";
            findings.push(Finding::NoEffect { setting, reason });
            return (Self { chosen: ChosenKinds::All, omit_kinds }, findings);
        }
        findings.extend(named_and_omitted(setting, &names, Setting::CacheOmitKinds, &omit_kinds));
        (Self { chosen: ChosenKinds::Named(names), omit_kinds }, findings)
    }

    /// Reads the operator's part of the rules on the wire.
    pub fn from_wire(rules: &ops::CachingRules) -> (Self, Vec<Finding>) {
        let cache_kinds = (!rules.all && !rules.default_kinds).then_some(rules.kinds.as_slice());
        Self::read(&OperatorRuleFields {
            cache_all: rules.all,
            cache_defaults: None,
            cache_kinds,
            cache_omit_kinds: &rules.omit_kinds,
        })
    }

    /// Chosen kinds, before omissions.
    pub fn chosen(&self) -> &ChosenKinds {
        &self.chosen
    }

    /// Whether the operator's settings allow a kind of a group.
    pub fn allows(&self, group: &str, kind: &str) -> bool {
        self.place(group, kind).is_some() && !self.omit_kinds.names(group, kind)
    }

    /// Position of a kind among the chosen ones, if any, regardless of omissions.
    pub fn place(&self, group: &str, kind: &str) -> Option<usize> {
        match &self.chosen {
            ChosenKinds::Named(names) => names.first(group, kind),
            ChosenKinds::Default => {
                native::default_kind_index(kind).filter(|_| native::is_native(group, kind))
            }
            ChosenKinds::All => {
                let default = native::default_kind_index(kind).filter(|_| native::is_native(group, kind));
                Some(default.unwrap_or(native::DEFAULT_KINDS.len()))
            }
        }
    }

    /// The setting that chooses the kinds.
    pub(super) fn setting(&self) -> Setting {
        match self.chosen {
            ChosenKinds::All => Setting::CacheAll,
            ChosenKinds::Default | ChosenKinds::Named(_) => Setting::CacheKinds,
        }
    }
}

/// Watched namespaces of an account.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Namespaces {
    /// All namespaces.
    #[default]
    All,
    /// These, without duplicates, in the given order, and without those of `omitNamespaces`.
    Only(Vec<String>),
}

impl Namespaces {
    /// Whether a namespace is watched.
    pub fn includes(&self, namespace: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(names) => names.iter().any(|name| name == namespace),
        }
    }
}

/// A custom kind that an account exposes although it may not read its definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExposedKind {
    /// The kind as given.
    pub kind: String,
    /// API group, in lower case.
    pub group: String,
    /// Whether objects of the kind are cluster-scoped.
    pub cluster_scoped: bool,
}

/// An account's rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountRules {
    /// `kinds`; `None` if not given.
    pub(super) kinds: Option<KindNames>,
    /// `omitKinds`.
    pub(super) omit_kinds: KindNames,
    /// `namespaces`.
    pub namespaces: Namespaces,
    /// `omitNamespaces`.
    pub omit_namespaces: Arc<BTreeSet<String>>,
    /// `onlyNamespacedResources`.
    pub only_namespaced_resources: bool,
    /// `customResourceDefinitions`.
    pub custom_resource_definitions: Vec<ExposedKind>,
    /// `onlySpinnakerManaged`.
    pub only_spinnaker_managed: bool,
    /// `maxResumableResourceAgeMs`.
    pub max_resumable_age_ms: u64,
}

impl Default for AccountRules {
    /// The rules of an account without settings.
    fn default() -> Self {
        Self::read(&AccountRuleFields::default()).0
    }
}

/// The relevant fields of an account, from an object or from the wire.
#[derive(Default)]
struct AccountRuleFields<'a> {
    kinds: &'a [String],
    omit_kinds: &'a [String],
    namespaces: &'a [String],
    omit_namespaces: &'a [String],
    only_namespaced_resources: bool,
    definitions: Vec<(&'a str, bool)>,
    only_spinnaker_managed: bool,
    max_resumable_age_ms: Option<u64>,
}

impl AccountRules {
    /// Reads an account's spec. `only_managed_default` is the operator's `kubesvc.runtime.….onlySpinnakerManaged` for
    /// this account, which the spec overrides.
    pub fn from_spec(spec: &KubesvcAccountSpec, only_managed_default: bool) -> (Self, Vec<Finding>) {
        let is_cluster_scoped = |exposed: &ExposedCustomResource| exposed.scope == Some(Scope::Cluster);
        let definitions = spec.custom_resource_definitions.iter();
        let age = spec.max_resumable_resource_age_ms;
        Self::read(&AccountRuleFields {
            kinds: &spec.kinds,
            omit_kinds: &spec.omit_kinds,
            namespaces: &spec.namespaces,
            omit_namespaces: &spec.omit_namespaces,
            only_namespaced_resources: spec.only_namespaced_resources.unwrap_or_default(),
            definitions: definitions
                .map(|exposed| (exposed.kind.as_str(), is_cluster_scoped(exposed)))
                .collect(),
            only_spinnaker_managed: spec.only_spinnaker_managed.unwrap_or(only_managed_default),
            max_resumable_age_ms: age.map(|age| u64::try_from(age).unwrap_or_default()),
        })
    }

    /// Reads an account from the wire: its definition, and the rules of its caching assignment.
    pub fn from_wire(spec: &ops::AccountSpec, rules: &ops::CachingRules) -> (Self, Vec<Finding>) {
        let definitions = spec.custom_resource_definitions.iter();
        Self::read(&AccountRuleFields {
            kinds: &spec.kinds,
            omit_kinds: &spec.omit_kinds,
            namespaces: &spec.namespaces,
            omit_namespaces: &spec.omit_namespaces,
            only_namespaced_resources: spec.only_namespaced_resources,
            definitions: definitions.map(|exposed| (exposed.kind.as_str(), exposed.cluster_scoped)).collect(),
            only_spinnaker_managed: rules.only_spinnaker_managed,
            max_resumable_age_ms: (rules.max_resumable_age_ms > 0).then_some(rules.max_resumable_age_ms),
        })
    }

    fn read(settings: &AccountRuleFields<'_>) -> (Self, Vec<Finding>) {
        let (kinds, mut findings) = KindNames::read(Setting::Kinds, settings.kinds);
        let (omit_kinds, of_omitted) = KindNames::read(Setting::OmitKinds, settings.omit_kinds);
        findings.extend(of_omitted);
        let mut watched = namespaces(Setting::Namespaces, settings.namespaces, &mut findings);
        let omitted = namespaces(Setting::OmitNamespaces, settings.omit_namespaces, &mut findings);
        let omitted: BTreeSet<_> = omitted.into_iter().collect();
        watched.retain(|namespace| !omitted.contains(namespace));
        let definitions = exposed_kinds(&settings.definitions, &mut findings);
        contradictions(settings, &mut findings);
        let rules = Self {
            kinds: (!settings.kinds.is_empty()).then_some(kinds),
            omit_kinds,
            namespaces: if settings.namespaces.is_empty() {
                Namespaces::All
            } else {
                Namespaces::Only(watched)
            },
            omit_namespaces: Arc::new(omitted),
            only_namespaced_resources: settings.only_namespaced_resources,
            custom_resource_definitions: definitions,
            only_spinnaker_managed: settings.only_spinnaker_managed,
            max_resumable_age_ms: settings.max_resumable_age_ms.unwrap_or(DEFAULT_MAX_RESUMABLE_AGE_MS),
        };
        (rules, findings)
    }

    /// Whether the account's own lists allow a kind of a group.
    pub fn allows(&self, group: &str, kind: &str) -> bool {
        self.kinds.as_ref().is_none_or(|kinds| kinds.names(group, kind))
            && !self.omit_kinds.names(group, kind)
    }
}

/// Rules of a caching assignment: the operator's lists, and the effective values for this account. The account's own
/// lists reach the agent with its definition.
pub fn to_wire(
    operator: &OperatorRules,
    account: &AccountRules,
    classes: &KindClasses,
    audit_ms: u64,
) -> ops::CachingRules {
    let kinds = match operator.chosen() {
        ChosenKinds::Named(names) => names.texts().to_vec(),
        ChosenKinds::All | ChosenKinds::Default => Vec::new(),
    };
    ops::CachingRules {
        all: operator.chosen == ChosenKinds::All,
        kinds,
        omit_kinds: operator.omit_kinds.texts().to_vec(),
        default_kinds: operator.chosen == ChosenKinds::Default,
        only_spinnaker_managed: account.only_spinnaker_managed,
        meta_keys: META_KEYS.map(str::to_owned).to_vec(),
        // 0 is the default on the wire. With a configured 0, no checkpoint of 1 ms or older is resumed.
        max_resumable_age_ms: account.max_resumable_age_ms.max(1),
        audit_ms,
        mapping: classes.mapping(),
    }
}

/// Interval between two lists of a watched scope, in milliseconds.
pub fn audit_ms(rules: &ops::CachingRules) -> u64 {
    if rules.audit_ms == 0 { DEFAULT_AUDIT_MS } else { rules.audit_ms }
}

fn namespaces(setting: Setting, texts: &[String], findings: &mut Vec<Finding>) -> Vec<String> {
    if texts.len() > MAX_ITEMS {
        findings.push(Finding::TooMany { setting, count: texts.len(), max: MAX_ITEMS });
    }
    let (mut names, mut seen) = (Vec::new(), HashSet::new());
    for text in texts.iter().take(MAX_ITEMS) {
        if !is_dns_label(text) {
            findings.push(Finding::NotANamespace { setting, text: quoted(text) });
        } else if seen.insert(text) {
            names.push(text.clone());
        }
    }
    names
}

fn exposed_kinds(definitions: &[(&str, bool)], findings: &mut Vec<Finding>) -> Vec<ExposedKind> {
    let setting = Setting::CustomResourceDefinitions;
    if definitions.len() > MAX_ITEMS {
        findings.push(Finding::TooMany { setting, count: definitions.len(), max: MAX_ITEMS });
    }
    let mut kinds: Vec<ExposedKind> = Vec::new();
    for (text, cluster_scoped) in definitions.iter().copied().take(MAX_ITEMS) {
        // The definition's name, `plural.group`, must be a valid object name.
        let name = KindSelector::parse(text).filter(|_| text.len() < MAX_NAME_CHARS);
        let Some(name) = name else {
            findings.push(Finding::NotAKind { setting, text: quoted(text) });
            continue;
        };
        let Some(group) = name.group().filter(|group| !group.is_empty()) else {
            findings.push(Finding::NoGroup { setting, text: quoted(text) });
            continue;
        };
        let kind = text.trim().split('.').next().unwrap_or_default().to_owned();
        if !kinds.iter().any(|known| known.group == group && known.kind.eq_ignore_ascii_case(&kind)) {
            kinds.push(ExposedKind { kind, group: group.to_owned(), cluster_scoped });
        }
    }
    kinds
}

fn contradictions(settings: &AccountRuleFields<'_>, findings: &mut Vec<Finding>) {
    let exclusive = [
        (Setting::Kinds, settings.kinds, Setting::OmitKinds, settings.omit_kinds),
        (Setting::Namespaces, settings.namespaces, Setting::OmitNamespaces, settings.omit_namespaces),
    ];
    for (one, of_one, other, of_other) in exclusive {
        if !of_one.is_empty() && !of_other.is_empty() {
            findings.push(Finding::Exclusive { one, other });
        }
    }
    if settings.only_namespaced_resources && settings.namespaces.is_empty() {
        findings.push(Finding::Needs {
            setting: Setting::OnlyNamespacedResources,
            needed: Setting::Namespaces,
            reason: "list the namespaces to watch",
        });
    }
    if !settings.only_namespaced_resources && !settings.definitions.is_empty() {
        let reason = "without onlyNamespacedResources the cluster's own definitions are cached";
        findings.push(Finding::NoEffect { setting: Setting::CustomResourceDefinitions, reason });
    }
}

/// A finding for each name that the same owner's omit list contains too, or covers in all groups.
fn named_and_omitted<'a>(
    named_by: Setting,
    named: &'a KindNames,
    omitted_by: Setting,
    omitted: &'a KindNames,
) -> impl Iterator<Item = Finding> + 'a {
    let both = named.iter().filter(move |(_, name)| omitted.covers(name));
    both.map(move |(text, _)| Finding::NamedAndOmitted { named_by, omitted_by, text: quoted(text) })
}
