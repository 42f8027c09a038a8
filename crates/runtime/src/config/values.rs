//! The merged settings of a program, and typed access to them by key. A type mismatch is a bug in a table, which the
//! tests detect.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::error::{ConfigProblem, Origin};
use super::setting_type::{SettingType, SettingValue};
use super::table::{RefusalRule, SettingIndex, SettingRow, SettingUse, Spec, fold};
use crate::listen::connection_limits::Network;
use kubesvc_core::spec::CustomResourceTreatment;

/// One effective setting.
#[derive(Debug, Clone)]
pub(crate) struct EffectiveSetting {
    pub(crate) row: &'static SettingRow,
    pub(crate) value: SettingValue,
    pub(crate) origin: Origin,
}

/// A setting that is given but not read: its first position, and how often it is given.
#[derive(Debug, Clone)]
pub(crate) struct UnreadSetting {
    pub(crate) row: &'static SettingRow,
    pub(crate) first: Origin,
    pub(crate) places: usize,
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
pub(crate) struct SettingList {
    pub(crate) len: usize,
    /// Where each group begins. A group that is only skipped (as by `accounts[5].name` alone) has no entry.
    pub(crate) places: BTreeMap<usize, Origin>,
}

/// Everything known after the layers read so far.
pub(crate) struct Values {
    pub(crate) index: SettingIndex,
    /// By identity, which is the key for a row without `*`.
    pub(crate) slots: BTreeMap<String, EffectiveSetting>,
    pub(crate) unread: BTreeMap<&'static str, UnreadSetting>,
    /// By identity.
    pub(super) asked: BTreeMap<String, UnbuiltSetting>,
    /// Lists of groups, from the last file that gives each.
    pub(super) lists: BTreeMap<String, SettingList>,
    pub(crate) warnings: Vec<String>,
    /// The warnings about keys that are no settings of this program.
    pub(crate) ignored: Vec<String>,
    pub(crate) problems: Vec<ConfigProblem>,
}

impl Values {
    /// The defaults.
    pub(crate) fn new(spec: &'static Spec) -> Self {
        let mut slots = BTreeMap::new();
        for row in spec.rows() {
            if let SettingUse::Read(default) = row.used
                && !row.key.contains(['*', '['])
            {
                let value = if default.is_empty() { empty(row.kind) } else { row.kind.parse(default) };
                let value = value.unwrap_or(SettingValue::Nothing);
                slots.insert(row.key.to_owned(), EffectiveSetting { row, value, origin: Origin::Default });
            }
        }
        Self {
            index: SettingIndex::new(spec),
            slots,
            unread: BTreeMap::new(),
            asked: BTreeMap::new(),
            lists: BTreeMap::new(),
            warnings: Vec::new(),
            ignored: Vec::new(),
            problems: Vec::new(),
        }
    }

    fn slot(&self, key: &str) -> Result<&EffectiveSetting, ConfigProblem> {
        self.slots.get(key).ok_or_else(|| ConfigProblem::Value {
            origin: Origin::Default,
            key: key.to_owned(),
            read: "not in the table of settings".into(),
            allowed: "one of its rows".into(),
        })
    }

    pub(crate) fn mismatch(&self, key: &str) -> ConfigProblem {
        match self.slot(key) {
            Err(problem) => problem,
            Ok(slot) => ConfigProblem::Value {
                origin: slot.origin.clone(),
                key: key.to_owned(),
                read: "of another type in the table of settings".into(),
                allowed: slot.row.kind.to_string(),
            },
        }
    }

    /// The problem of a value that is within its own bounds, but not in combination with others.
    pub(crate) fn out_of_bounds(&self, key: &str, read: String, allowed: String) -> ConfigProblem {
        match self.slot(key) {
            Err(problem) => problem,
            Ok(slot) => {
                ConfigProblem::Value { origin: slot.origin.clone(), key: key.to_owned(), read, allowed }
            }
        }
    }

    pub(crate) fn optional(&self, key: &str) -> Result<Option<String>, ConfigProblem> {
        match &self.slot(key)?.value {
            SettingValue::Text(text) => Ok(Some(text.clone())),
            SettingValue::Nothing => Ok(None),
            _ => Err(self.mismatch(key)),
        }
    }

    pub(crate) fn string(&self, key: &str) -> Result<String, ConfigProblem> {
        self.optional(key)?.ok_or_else(|| self.mismatch(key))
    }

    pub(crate) fn boolean(&self, key: &str) -> Result<bool, ConfigProblem> {
        match self.slot(key)?.value {
            SettingValue::Flag(flag) => Ok(flag),
            _ => Err(self.mismatch(key)),
        }
    }

    pub(crate) fn number<T: TryFrom<i64>>(&self, key: &str) -> Result<T, ConfigProblem> {
        match self.slot(key)?.value {
            SettingValue::Int(n) => T::try_from(n).map_err(|_| self.mismatch(key)),
            _ => Err(self.mismatch(key)),
        }
    }

    pub(crate) fn float(&self, key: &str) -> Result<f64, ConfigProblem> {
        match self.slot(key)?.value {
            SettingValue::Float(n) => Ok(n),
            _ => Err(self.mismatch(key)),
        }
    }

    pub(crate) fn seconds(&self, key: &str) -> Result<Duration, ConfigProblem> {
        self.number(key).map(Duration::from_secs)
    }

    pub(crate) fn millis(&self, key: &str) -> Result<Duration, ConfigProblem> {
        self.number(key).map(Duration::from_millis)
    }

    pub(crate) fn list(&self, key: &str) -> Result<Vec<String>, ConfigProblem> {
        match &self.slot(key)?.value {
            SettingValue::List(items) => Ok(items.clone()),
            _ => Err(self.mismatch(key)),
        }
    }

    /// A list for which none is not the same as an empty one.
    pub(crate) fn optional_list(&self, key: &str) -> Result<Option<Vec<String>>, ConfigProblem> {
        match &self.slot(key)?.value {
            SettingValue::List(items) => Ok(Some(items.clone())),
            SettingValue::Nothing => Ok(None),
            _ => Err(self.mismatch(key)),
        }
    }

    pub(crate) fn custom_resources(&self, key: &str) -> Result<Vec<CustomResourceTreatment>, ConfigProblem> {
        match &self.slot(key)?.value {
            SettingValue::CustomResources(resources) => Ok(resources.clone()),
            _ => Err(self.mismatch(key)),
        }
    }

    pub(crate) fn networks(&self, key: &str) -> Result<Vec<Network>, ConfigProblem> {
        self.list(key)?.iter().map(|text| text.parse().map_err(|_| self.mismatch(key))).collect()
    }

    pub(crate) fn paths(&self, key: &str) -> Result<Vec<PathBuf>, ConfigProblem> {
        Ok(self.list(key)?.into_iter().map(PathBuf::from).collect())
    }

    /// The names chosen by the user below `prefix.`, with their texts.
    pub(crate) fn names(&self, prefix: &str) -> BTreeMap<String, String> {
        let below = self.slots.iter().filter_map(|(id, slot)| {
            let name = id.strip_prefix(prefix)?.strip_prefix('.')?;
            match &slot.value {
                SettingValue::Text(text) => Some((name.to_owned(), text.clone())),
                _ => None,
            }
        });
        below.collect()
    }

    /// The groups below `prefix.` whose names are chosen by the user: by name, what is set in each, by its documented
    /// key below the group.
    pub(crate) fn named_groups(
        &self,
        prefix: &str,
    ) -> BTreeMap<&str, BTreeMap<&'static str, &EffectiveSetting>> {
        let below = format!("{}.", fold(prefix));
        let mut groups: BTreeMap<&str, BTreeMap<_, _>> = BTreeMap::new();
        for (id, slot) in self.slots.range(below.clone()..) {
            let Some(rest) = id.strip_prefix(&below) else { break };
            let Some((_, key)) = slot.row.key.split_once(".*.") else { continue };
            let name = rest.strip_suffix(key).and_then(|name| name.strip_suffix('.'));
            if let Some(name) = name {
                groups.entry(name).or_default().insert(key, slot);
            }
        }
        groups
    }

    /// A list of groups, such as `kubernetes.accounts`; `None` if no file gives it.
    pub(crate) fn listed(&self, key: &str) -> Option<&SettingList> {
        self.lists.get(&fold(key))
    }

    /// A setting of one group of a list.
    pub(crate) fn of_listed(&self, list: &str, index: usize, key: &str) -> Option<&EffectiveSetting> {
        self.slots.get(&format!("{}.[{index}].{}", fold(list), fold(key)))
    }

    /// The origin of a setting.
    pub(crate) fn origin(&self, key: &str) -> Origin {
        self.slots.get(key).map_or(Origin::Default, |slot| slot.origin.clone())
    }

    /// Whether the setting was set, and is not the default.
    pub(crate) fn is_given(&self, key: &str) -> bool {
        self.slots.get(key).is_some_and(|slot| slot.origin != Origin::Default)
    }
}

/// The value of a setting without a default: an empty list, or nothing.
fn empty(kind: SettingType) -> Option<SettingValue> {
    match kind {
        SettingType::List(_) => Some(SettingValue::List(Vec::new())),
        SettingType::CustomResources => Some(SettingValue::CustomResources(Vec::new())),
        _ => None,
    }
}
