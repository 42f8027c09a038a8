//! Names of kinds in settings: `Kind` for every group that has it, or `Kind.group`, case-insensitive.

use std::collections::HashMap;

use super::findings::{Finding, Setting};
use super::keys::{MAX_GROUP_CHARS, MAX_KIND_CHARS};
use super::native;
use crate::failure::truncate;
use crate::object_names::is_dns_subdomain;

/// Maximum number of items of a list that are used.
pub const MAX_ITEMS: usize = 1000;
/// Maximum length of a text quoted in a finding, in bytes.
const MAX_QUOTED_BYTES: usize = 320;

/// A kind as a setting names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KindSelector {
    /// In lower case.
    kind: String,
    /// In lower case; empty for the core group. `None` for every group that has the kind.
    group: Option<String>,
    /// The kind, in lower case, if the name is Clouddriver's short form.
    alias_of: Option<String>,
}

impl KindSelector {
    /// Parses `Kind` or `Kind.group`; `Kind.` and `Kind.core` mean the core group. `None` if it cannot be a kind.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim().to_ascii_lowercase();
        let (kind, group) = match text.split_once('.') {
            Some((kind, "core")) => (kind, Some("")),
            Some((kind, group)) => (kind, Some(group)),
            None => (text.as_str(), None),
        };
        if !is_kind(kind) || !group.is_none_or(is_group) {
            return None;
        }
        let alias_of = native::by_alias(kind).map(|native| native.name.to_ascii_lowercase());
        Some(Self { kind: kind.to_owned(), group: group.map(str::to_owned), alias_of })
    }

    /// The name as `kind` or `kind.group`, in lower case.
    pub fn text(&self) -> String {
        self.group().map_or_else(|| self.kind().to_owned(), |group| native::qualified(group, self.kind()))
    }

    /// The group, if the name has one.
    pub fn group(&self) -> Option<&str> {
        self.group.as_deref()
    }

    /// The kind in lower case, without its group; the full name of a short form.
    pub fn kind(&self) -> &str {
        self.alias_of.as_deref().unwrap_or(&self.kind)
    }

    /// Whether this is a native kind's name, alone or with a group in which clusters have or had that kind.
    pub(super) fn is_native(&self) -> bool {
        let Some(native) = native::native_kind(self.kind()) else { return false };
        self.group().is_none_or(|group| group == native.home || group == native::FORMER_GROUP)
    }

    /// Whether this name matches a kind of a group.
    pub fn names(&self, group: &str, kind: &str) -> bool {
        let group_fits = self.group().is_none_or(|named| named.eq_ignore_ascii_case(group));
        let is_alias = || self.alias_of.as_deref().is_some_and(|full| full.eq_ignore_ascii_case(kind));
        group_fits && (self.kind.eq_ignore_ascii_case(kind) || (is_alias() && native::is_native(group, kind)))
    }
}

/// Whether a text can be a kind: at most 63 letters, digits and dashes.
pub(super) fn is_kind(text: &str) -> bool {
    (1..=MAX_KIND_CHARS).contains(&text.len())
        && text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// Whether a text can be an API group. The core group is empty.
pub(super) fn is_group(text: &str) -> bool {
    text.is_empty() || (text.len() <= MAX_GROUP_CHARS && is_dns_subdomain(text))
}

/// The kinds of one setting, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KindNames {
    /// As written, for the wire and for display.
    texts: Vec<String>,
    names: Vec<KindSelector>,
    /// Positions in `names`, by kind in lower case and by the kinds of short forms.
    by_kind: HashMap<String, Vec<usize>>,
}

impl KindNames {
    /// Reads the list of a setting. Invalid names, and items beyond 1,000, are left out and reported.
    pub fn read(setting: Setting, texts: &[String]) -> (Self, Vec<Finding>) {
        let (mut list, mut findings) = (Self::default(), Vec::new());
        if texts.len() > MAX_ITEMS {
            findings.push(Finding::TooMany { setting, count: texts.len(), max: MAX_ITEMS });
        }
        for text in texts.iter().take(MAX_ITEMS) {
            match KindSelector::parse(text) {
                Some(name) => {
                    findings.extend(unfamiliar(setting, text, &name));
                    list.push(text, name);
                }
                None => findings.push(Finding::NotAKind { setting, text: quoted(text) }),
            }
        }
        (list, findings)
    }

    fn push(&mut self, text: &str, name: KindSelector) {
        let place = self.names.len();
        self.by_kind.entry(name.kind.clone()).or_default().push(place);
        if let Some(full) = &name.alias_of {
            self.by_kind.entry(full.clone()).or_default().push(place);
        }
        self.texts.push(text.trim().to_owned());
        self.names.push(name);
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// The names as written.
    pub fn texts(&self) -> &[String] {
        &self.texts
    }

    /// The names with their texts, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &KindSelector)> {
        self.texts.iter().map(String::as_str).zip(&self.names)
    }

    /// Whether the list names a kind of a group.
    pub fn names(&self, group: &str, kind: &str) -> bool {
        self.first(group, kind).is_some()
    }

    /// Whether the list names a kind together with its group.
    pub(crate) fn names_with_group(&self, group: &str, kind: &str) -> bool {
        self.places(group, kind).any(|place| self.names[place].group.is_some())
    }

    /// Whether the list names everything that `name` matches.
    pub fn covers(&self, name: &KindSelector) -> bool {
        match name.group() {
            Some(group) => self.names(group, name.kind()),
            None => self.names_kind(name.kind(), false),
        }
    }

    /// Whether the list names a kind in all groups, or with `in_any` in at least one of them.
    pub(super) fn names_kind(&self, kind: &str, in_any: bool) -> bool {
        let named = self.by_kind.get(&kind.to_ascii_lowercase());
        named.into_iter().flatten().any(|place| in_any || self.names[*place].group.is_none())
    }

    /// Position of the first name that matches a kind of a group.
    pub(super) fn first(&self, group: &str, kind: &str) -> Option<usize> {
        self.places(group, kind).next()
    }

    /// Positions of all names that match a kind of a group, in ascending order.
    pub(super) fn places(&self, group: &str, kind: &str) -> impl Iterator<Item = usize> {
        let named = self.by_kind.get(&kind.to_ascii_lowercase());
        named.into_iter().flatten().copied().filter(move |place| self.names[*place].names(group, kind))
    }
}

/// A text for a finding, truncated to 320 bytes.
pub(super) fn quoted(text: &str) -> String {
    let mut text = text.to_owned();
    truncate(&mut text, MAX_QUOTED_BYTES);
    text
}

/// Finding for a name, without a group or with a native one, that is similar to a native kind.
fn unfamiliar(setting: Setting, text: &str, name: &KindSelector) -> Option<Finding> {
    let is_known = name.alias_of.is_some() || native::native_kind(&name.kind).is_some();
    let is_custom = name.group().is_some_and(|group| !native::is_native(group, &name.kind));
    if is_known || is_custom {
        return None;
    }
    let nearest = native::nearest(&name.kind)?;
    Some(Finding::Unfamiliar { setting, text: quoted(text), nearest })
}
