//! Scopes of an account: the watched kinds and namespaces, and the omissions with their reasons.
//!
//! The agent calls [`select`] with the result of its discovery; the same kinds and rules give the same scopes in the
//! same order.

use std::collections::HashMap;

use super::findings::Setting;
use super::keys::{MAX_KIND_CHARS, ScopeKey};
use super::kind_names::{KindNames, KindSelector, is_group, is_kind, quoted};
use super::left_out::{LeftOut, Why, has_synthetic_rows};
use super::native;
use super::rules::{AccountRules, ChosenKinds, MAX_SCOPES, Namespaces, OperatorRules};
use super::synthetic::synthetic_scopes;
use crate::wire::common;

/// Maximum length of a plural, in characters.
const MAX_PLURAL_CHARS: usize = 253;

/// A kind that a cluster serves, in one version: the preferred version, if it serves the kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServedKind {
    /// API group; empty for the core group.
    pub group: String,
    /// Version.
    pub version: String,
    /// Kind.
    pub kind: String,
    /// Plural name in paths.
    pub plural: String,
    /// Whether its objects are namespaced.
    pub namespaced: bool,
    /// Whether it has the verb `list`.
    pub listable: bool,
    /// Whether it has the verb `watch`.
    pub watchable: bool,
}

impl ServedKind {
    fn can_be_cached(&self) -> bool {
        self.listable && self.watchable
    }

    /// Whether its names are valid in Kubernetes, so that they can be used in paths and keys.
    pub(super) fn has_valid_names(&self) -> bool {
        let is_path_text = |text: &str, max: usize| {
            (1..=max).contains(&text.len())
                && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
                && !text.starts_with('.')
        };
        is_kind(&self.kind)
            && is_group(&self.group)
            && is_path_text(&self.version, MAX_KIND_CHARS)
            && is_path_text(&self.plural, MAX_PLURAL_CHARS)
    }
}

/// A watched kind, in one namespace or in all.
#[derive(Clone, Debug, PartialEq)]
pub struct SelectedScope {
    /// The scope on the wire.
    pub scope: common::Scope,
    /// Whether objects of the kind are namespaced.
    pub namespaced: bool,
}

impl SelectedScope {
    /// The scope's key in `kubesvc_resourceversion`.
    pub fn key(&self) -> ScopeKey {
        ScopeKey::from(&self.scope)
    }
}

/// Selected scopes of an account.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Selection {
    /// At most 5,000 with the account's synthetic scopes, each with a distinct key. Kinds are in the order of the list
    /// that names them.
    pub scopes: Vec<SelectedScope>,
    /// Kinds that a setting requests but that are not watched, in the same order; then the account's names that omit
    /// nothing.
    pub left_out: Vec<LeftOut>,
}

/// Whether nothing is selected, and nothing is left out, regardless of the cluster's kinds.
pub fn selects_nothing(operator: &OperatorRules, account: &AccountRules) -> bool {
    let has_no_kinds = matches!(operator.chosen(), ChosenKinds::Named(names) if names.is_empty());
    has_no_kinds && account.kinds.is_none() && account.omit_kinds.is_empty()
}

/// Chooses the scopes of an account: the kinds that the cluster serves and that the lists of operator and account both
/// allow, in the account's namespaces.
///
/// A kind that only one of the lists names is reported only if it is the account's, because its owner then waits for
/// rows that the operator does not allow. The same applies to a kind that the account names and that is omitted.
pub fn select(served: &[ServedKind], operator: &OperatorRules, account: &AccountRules) -> Selection {
    let served = distinct(served);
    let homes = homes(&served);
    let judge = Judge { served: &served, operator, account, homes: &homes };
    let mut judged: Vec<Judged<'_>> = served.iter().filter_map(|kind| judge.judge(kind)).collect();
    judged.extend(not_served(&served, operator, account));
    judged.extend(omitting_nothing(&served, &account.omit_kinds));
    // Stable: kinds of one position stay in the cluster's order.
    judged.sort_by_key(|judged| judged.place);
    within_bound(&judged, account, MAX_SCOPES.saturating_sub(synthetic_scopes(operator, account)))
}

/// A kind that a setting requests, or a name that omits nothing.
struct Judged<'a> {
    /// Position in the list that names it; names that omit nothing come last.
    place: usize,
    verdict: KindVerdict<'a>,
}

enum KindVerdict<'a> {
    Watched(&'a ServedKind),
    LeftOut(LeftOut),
}

struct Judge<'a> {
    served: &'a [&'a ServedKind],
    operator: &'a OperatorRules,
    account: &'a AccountRules,
    homes: &'a HashMap<String, &'a str>,
}

impl Judge<'_> {
    /// `None` for a kind that no setting requests.
    fn judge<'a>(&self, served: &'a ServedKind) -> Option<Judged<'a>> {
        let (group, kind) = (served.group.as_str(), served.kind.as_str());
        let operators_place = self.operator.place(group, kind);
        let (accounts_place, account_names_it) = match &self.account.kinds {
            Some(kinds) => (kinds.first(group, kind), kinds.names(group, kind)),
            None => (operators_place, false),
        };
        let place = accounts_place?;
        let left_out = |why, setting| {
            let kind = quoted(&native::qualified(group, kind));
            let verdict = KindVerdict::LeftOut(LeftOut { kind, why, setting: Some(setting) });
            Some(Judged { place, verdict })
        };
        if let Some(home) = self.other_home(group, kind) {
            if !self.names_with_group(group, kind) {
                return None;
            }
            let why = Why::SameObjects(native::qualified(home, kind));
            return left_out(why, self.asking(account_names_it));
        }
        if operators_place.is_none() {
            return left_out(Why::NotNamed, self.operator.setting());
        }
        if let Some(setting) = self.omitted_by(group, kind) {
            let why = if self.awaits(group, kind) { Why::NamedAndOmitted } else { Why::Omitted };
            return left_out(why, setting);
        }
        if self.is_outside_namespaces(served) {
            let is_missed = self.awaits(group, kind) && !has_synthetic_rows(group, kind);
            let why = if is_missed { Why::NamedAndClusterWide } else { Why::ClusterWide };
            return left_out(why, Setting::OnlyNamespacedResources);
        }
        if let Some(why) = unreadable(served) {
            return left_out(why, self.asking(account_names_it));
        }
        Some(Judged { place, verdict: KindVerdict::Watched(served) })
    }

    /// The omit list that contains a kind.
    fn omitted_by(&self, group: &str, kind: &str) -> Option<Setting> {
        let lists = [
            (&self.operator.omit_kinds, Setting::CacheOmitKinds),
            (&self.account.omit_kinds, Setting::OmitKinds),
        ];
        lists.into_iter().find(|(names, _)| names.names(group, kind)).map(|(_, setting)| setting)
    }

    /// Whether a kind is cluster-scoped, and the account has only namespaced kinds.
    fn is_outside_namespaces(&self, served: &ServedKind) -> bool {
        self.account.only_namespaced_resources && !served.namespaced
    }

    /// Whether an account names a kind that other settings leave out, and expects it: the name includes the group, or
    /// nothing else of that name is left to watch. A list that omits one of several groups does not contradict a name
    /// for all of them.
    fn awaits(&self, group: &str, kind: &str) -> bool {
        let Some(kinds) = &self.account.kinds else { return false };
        let is_left = |other: &&ServedKind| {
            other.kind.eq_ignore_ascii_case(kind)
                && self.omitted_by(&other.group, &other.kind).is_none()
                && self.other_home(&other.group, &other.kind).is_none()
                && !self.is_outside_namespaces(other)
        };
        kinds.names(group, kind) && (kinds.names_with_group(group, kind) || !self.served.iter().any(is_left))
    }

    /// Group under which the objects of a native kind are watched, if different.
    fn other_home(&self, group: &str, kind: &str) -> Option<&str> {
        if !native::is_native(group, kind) {
            return None;
        }
        self.homes.get(&kind.to_ascii_lowercase()).copied().filter(|home| *home != group)
    }

    fn names_with_group(&self, group: &str, kind: &str) -> bool {
        let names_it = |names: &KindNames| names.names_with_group(group, kind);
        let operator_does = matches!(self.operator.chosen(), ChosenKinds::Named(names) if names_it(names));
        operator_does || self.account.kinds.as_ref().is_some_and(names_it)
    }

    /// The setting that requests a kind.
    fn asking(&self, account_names_it: bool) -> Setting {
        if account_names_it { Setting::Kinds } else { self.operator.setting() }
    }
}

fn unreadable(served: &ServedKind) -> Option<Why> {
    if !served.has_valid_names() {
        return Some(Why::InvalidName);
    }
    match (served.listable, served.watchable) {
        (true, true) => None,
        (false, true) => Some(Why::CannotBeListed),
        (true, false) => Some(Why::CannotBeWatched),
        (false, false) => Some(Why::CannotBeRead),
    }
}

/// Deduplicates the kinds. Of several resources with one kind in one group, the first listable and watchable one wins.
fn distinct(served: &[ServedKind]) -> Vec<&ServedKind> {
    let mut places: HashMap<(&str, String), usize> = HashMap::new();
    let mut kinds: Vec<&ServedKind> = Vec::new();
    for kind in served {
        // Keyed by the name of the rows, because kinds that differ only in case may share them.
        let key = (kind.group.as_str(), native::kind_name(&kind.group, &kind.kind));
        match places.get(&key) {
            None => {
                places.insert(key, kinds.len());
                kinds.push(kind);
            }
            Some(place) => {
                if let Some(known) = kinds.get_mut(*place)
                    && !known.can_be_cached()
                    && kind.can_be_cached()
                {
                    *known = kind;
                }
            }
        }
    }
    kinds
}

/// Group under which each native kind, by its name in lower case, is watched: its home group if the cluster serves it
/// there, else the first native group that has it.
fn homes<'a>(served: &[&'a ServedKind]) -> HashMap<String, &'a str> {
    let mut homes: HashMap<String, &str> = HashMap::new();
    for kind in served.iter().filter(|kind| native::is_native(&kind.group, &kind.kind)) {
        let is_home = native::native_kind(&kind.kind).is_some_and(|native| native.home == kind.group);
        let home = homes.entry(kind.kind.to_ascii_lowercase()).or_insert(&kind.group);
        if is_home {
            *home = &kind.group;
        }
    }
    homes
}

/// Names of a list that match no kind of the cluster, with their positions and texts.
fn unserved_names<'n>(
    served: &[&ServedKind],
    names: &'n KindNames,
) -> impl Iterator<Item = (usize, &'n str, &'n KindSelector)> + use<'n> {
    let mut is_served = vec![false; names.texts().len()];
    for place in served.iter().flat_map(|kind| names.places(&kind.group, &kind.kind)) {
        is_served[place] = true;
    }
    let unserved = names.iter().enumerate().zip(is_served).filter(|(_, is_served)| !is_served);
    unserved.map(|((place, (text, name)), _)| (place, text, name))
}

/// Names in an account's omit list that match no kind of the cluster. Native kinds are excluded: they are spelled
/// right, and other clusters serve them. The operator's list is for all clusters, few of which have each custom kind.
fn omitting_nothing<'a>(served: &[&ServedKind], omitted: &KindNames) -> Vec<Judged<'a>> {
    let unknown = unserved_names(served, omitted).filter(|(_, _, name)| !name.is_native());
    let left_out = |text: &str| LeftOut {
        kind: quoted(text),
        why: Why::OmitsNothing,
        setting: Some(Setting::OmitKinds),
    };
    unknown
        .map(|(_, text, _)| Judged { place: usize::MAX, verdict: KindVerdict::LeftOut(left_out(text)) })
        .collect()
}

/// Kinds that are requested by name but not served by the cluster.
fn not_served<'a>(
    served: &[&ServedKind],
    operator: &OperatorRules,
    account: &AccountRules,
) -> Vec<Judged<'a>> {
    let left_out = |place: usize, kind: String, setting| {
        let left_out = LeftOut { kind, why: Why::NotServed, setting: Some(setting) };
        Judged { place, verdict: KindVerdict::LeftOut(left_out) }
    };
    let of_list = |names: &KindNames, setting| -> Vec<Judged<'a>> {
        let is_omitted = |name: &KindSelector| {
            setting != Setting::Kinds && (operator.omit_kinds.covers(name) || account.omit_kinds.covers(name))
        };
        let missing = unserved_names(served, names).filter(|(_, _, name)| !is_omitted(name));
        missing.map(|(place, text, _)| left_out(place, quoted(text), setting)).collect()
    };
    if let Some(kinds) = &account.kinds {
        return of_list(kinds, Setting::Kinds);
    }
    match operator.chosen() {
        ChosenKinds::All => Vec::new(),
        ChosenKinds::Named(names) => of_list(names, operator.setting()),
        ChosenKinds::Default => {
            let defaults = native::DEFAULT_KINDS.iter().enumerate();
            let natives =
                defaults.filter_map(|(place, kind)| Some((place, kind, native::native_kind(kind)?)));
            let is_served = |kind: &str| {
                let same = |known: &&ServedKind| known.kind.eq_ignore_ascii_case(kind);
                served.iter().any(|known| same(known) && native::is_native(&known.group, &known.kind))
            };
            let wanted = natives.filter(|(_, kind, native)| {
                !is_served(kind)
                    && !operator.omit_kinds.names(native.home, kind)
                    && !account.omit_kinds.names(native.home, kind)
            });
            let setting = operator.setting();
            wanted
                .map(|(place, kind, native)| left_out(place, native::qualified(native.home, kind), setting))
                .collect()
        }
    }
}

/// Makes at most `max` scopes. Kinds with a single scope come first.
fn within_bound(judged: &[Judged<'_>], account: &AccountRules, max: usize) -> Selection {
    let given = match &account.namespaces {
        Namespaces::All => None,
        Namespaces::Only(names) => Some(names.as_slice()),
    };
    let namespaces_of = |kind: &ServedKind| given.filter(|_| kind.namespaced);
    let singles = judged.iter().filter(
        |judged| matches!(judged.verdict, KindVerdict::Watched(kind) if namespaces_of(kind).is_none()),
    );
    let mut single_room = max;
    let mut other_room = max - singles.count().min(max);
    let mut selection = Selection::default();
    for judged in judged {
        let kind = match &judged.verdict {
            KindVerdict::LeftOut(left_out) => {
                selection.left_out.push(left_out.clone());
                continue;
            }
            KindVerdict::Watched(kind) => *kind,
        };
        let namespaces = namespaces_of(kind);
        let (room, needed) = match namespaces {
            None => (&mut single_room, 1),
            Some(names) => (&mut other_room, names.len()),
        };
        if needed == 0 || needed > *room {
            let why = if needed == 0 { Why::NoNamespace } else { Why::TooManyScopes(needed) };
            let setting = given.map_or(Setting::Kinds, |_| Setting::Namespaces);
            let kind = native::qualified(&kind.group, &kind.kind);
            selection.left_out.push(LeftOut { kind, why, setting: Some(setting) });
            continue;
        }
        *room -= needed;
        match namespaces {
            None => selection.scopes.push(scope_of(kind, "")),
            Some(names) => selection.scopes.extend(names.iter().map(|name| scope_of(kind, name))),
        }
    }
    selection
}

fn scope_of(kind: &ServedKind, namespace: &str) -> SelectedScope {
    let scope = common::Scope {
        group: kind.group.clone(),
        version: kind.version.clone(),
        kind: kind.kind.clone(),
        plural: kind.plural.clone(),
        namespace: namespace.to_owned(),
    };
    SelectedScope { scope, namespaced: kind.namespaced }
}
