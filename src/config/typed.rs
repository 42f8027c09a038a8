//! Typed access to checked values by key. A type mismatch is a bug in a table, which the tests detect.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::error::ConfigProblem;
use super::layer::{EffectiveSetting, Values};
use super::setting_type::SettingValue;
use crate::listen::addresses::Network;

impl Values {
    fn slot(&self, key: &str) -> Result<&EffectiveSetting, ConfigProblem> {
        self.slots.get(key).ok_or_else(|| ConfigProblem::Value {
            place: super::Origin::Default,
            key: key.to_owned(),
            read: "not in the table of settings".into(),
            allowed: "one of its rows".into(),
        })
    }

    fn mismatch(&self, key: &str) -> ConfigProblem {
        match self.slot(key) {
            Err(problem) => problem,
            Ok(slot) => ConfigProblem::Value {
                place: slot.origin.clone(),
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
                ConfigProblem::Value { place: slot.origin.clone(), key: key.to_owned(), read, allowed }
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
}
