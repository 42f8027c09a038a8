//! The merged settings of a program.

use std::collections::BTreeMap;

use serde_json::Value;

use super::error::{ConfigError, ConfigProblem, Origin};
use super::group::{Group, Reader, Source, group};
use super::keys::fold;
use super::kind::SettingType;
use super::row::{RefusalRule, SettingRow, SettingUse, Spec};

/// One effective setting.
#[derive(Debug, Clone)]
pub(super) struct EffectiveSetting {
    pub(super) row: &'static SettingRow,
    pub(super) value: Value,
    pub(super) origin: Origin,
}

/// A setting that is given but not read: its first position, and how often it is given.
#[derive(Debug, Clone)]
pub(super) struct UnreadSetting {
    pub(super) row: &'static SettingRow,
    pub(super) first: Origin,
    pub(super) places: usize,
}

/// A security setting that is given but not implemented, from the last layer that gives it.
pub(super) struct UnbuiltSetting {
    pub(super) row: &'static SettingRow,
    pub(super) refusal: RefusalRule,
    /// The key as written.
    pub(super) key: String,
    pub(super) origin: Origin,
    /// Whether it asks for the behavior that kubesvc has anyway.
    pub(super) harmless: bool,
}

/// A list of groups, such as `kubernetes.accounts`.
#[derive(Debug, Clone, Default)]
pub struct SettingList {
    /// Number of groups.
    pub len: usize,
    /// Where each group begins. A group that is only skipped (as by `accounts[5].name` alone) has no entry.
    pub places: BTreeMap<usize, Origin>,
}

/// Everything known after the layers read so far. Settings have their normal form as identity; see [`fold`].
pub struct Values {
    pub(super) spec: &'static Spec,
    pub(super) slots: BTreeMap<String, EffectiveSetting>,
    pub(super) unread: BTreeMap<&'static str, UnreadSetting>,
    pub(super) asked: BTreeMap<String, UnbuiltSetting>,
    /// Lists of groups, from the last file that gives each.
    pub(super) lists: BTreeMap<String, SettingList>,
    pub(super) warnings: Vec<String>,
    /// The warnings about keys that are no settings of this program.
    pub(super) ignored: Vec<String>,
    pub(super) problems: Vec<ConfigProblem>,
}

impl Values {
    /// The defaults.
    pub(super) fn new(spec: &'static Spec) -> Self {
        let mut slots = BTreeMap::new();
        for row in &spec.rows {
            if let SettingUse::Read(default) = row.used
                && !row.is_repeated()
            {
                let (value, origin) = (row.kind.default_value(default), Origin::Default);
                slots.insert(fold(&row.key), EffectiveSetting { row, value, origin });
            }
        }
        Self {
            spec,
            slots,
            unread: BTreeMap::new(),
            asked: BTreeMap::new(),
            lists: BTreeMap::new(),
            warnings: Vec::new(),
            ignored: Vec::new(),
            problems: Vec::new(),
        }
    }

    fn slot(&self, key: &str) -> Option<&EffectiveSetting> {
        // The user's own names stand as written.
        let named = || {
            let (group, name) = key.rsplit_once('.')?;
            self.slots.get(&format!("{group}.{}", fold(name)))
        };
        self.slots.get(&fold(key)).or_else(named)
    }

    /// Reads the settings of a struct, below this key.
    ///
    /// # Errors
    /// Settings that do not go together.
    pub fn group<G: Group>(&self, key: &'static str) -> Result<G, ConfigError> {
        group::<G>(key).read(&Reader::new(self))
    }

    /// The text of a setting, if it is one.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.slot(key)?.value.as_str()
    }

    /// Whether a flag is set.
    pub fn is_true(&self, key: &str) -> bool {
        self.slot(key).is_some_and(|slot| slot.value.as_bool() == Some(true))
    }

    /// The problem of a value that does not become the type of its field: a mistake in the declaration.
    pub(super) fn mismatch(&self, id: &str, kind: SettingType) -> ConfigProblem {
        self.out_of_bounds(id, "of another type in the struct of settings".to_owned(), kind.to_string())
    }

    /// The problem of a value that is within its own bounds, but not in combination with others.
    pub fn out_of_bounds(&self, key: &str, read: String, allowed: String) -> ConfigProblem {
        ConfigProblem::Value { origin: self.origin(key), key: key.to_owned(), read, allowed }
    }

    /// The problem of a value that is allowed by itself, but not in combination with others.
    pub fn rule(&self, key: &str, why: String) -> ConfigProblem {
        ConfigProblem::Rule { origin: self.origin(key), key: key.to_owned(), why }
    }

    /// The groups below `prefix.` whose names are chosen by the user: by name, what is set in each, by its documented
    /// key below the group.
    pub(super) fn named_groups(
        &self,
        prefix: &str,
    ) -> BTreeMap<&str, BTreeMap<&'static str, &EffectiveSetting>> {
        let below = format!("{}.", fold(prefix));
        let mut groups: BTreeMap<&str, BTreeMap<_, _>> = BTreeMap::new();
        for (id, slot) in self.slots.range(below.clone()..) {
            let Some(rest) = id.strip_prefix(&below) else { break };
            let Some((_, key)) = slot.row.key.split_once(".*.") else { continue };
            let name = rest.strip_suffix(&fold(key)).and_then(|name| name.strip_suffix('.'));
            if let Some(name) = name {
                groups.entry(name).or_default().insert(key, slot);
            }
        }
        groups
    }

    /// A list of groups, such as `kubernetes.accounts`; `None` if no file gives it.
    pub fn listed(&self, key: &str) -> Option<&SettingList> {
        self.lists.get(&fold(key))
    }

    /// The origin of a setting; of one that is missing in a group of a list, the origin of the group, or of any other
    /// of the list.
    pub fn origin(&self, key: &str) -> Origin {
        if let Some(slot) = self.slot(key) {
            return slot.origin.clone();
        }
        let group = key.split_once('[').and_then(|(list, rest)| {
            let places = &self.listed(list)?.places;
            let index = rest.split_once(']')?.0.parse().ok()?;
            places.get(&index).or_else(|| places.values().next())
        });
        group.cloned().unwrap_or(Origin::Default)
    }

    /// The settings below `group.` that were set, by their documented keys, and where.
    pub fn given_below(&self, group: &str) -> impl Iterator<Item = (&'static str, &Origin)> {
        let below = format!("{}.", fold(group));
        let slots = self.slots.range(below.clone()..).take_while(move |(id, _)| id.starts_with(&below));
        let given = slots.filter(|(_, slot)| slot.origin != Origin::Default);
        given.map(|(_, slot)| (slot.row.key.as_str(), &slot.origin))
    }

    /// Whether the setting was set, and is not the default.
    pub fn is_given(&self, key: &str) -> bool {
        self.slot(key).is_some_and(|slot| slot.origin != Origin::Default)
    }
}
