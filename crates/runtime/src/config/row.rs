//! The description of a program's settings: one row per key, declared by its structs and by its list of keys without
//! effect.

use std::collections::HashMap;

use super::group::{Group, Rows};
use super::keys::pattern;
use super::kind::SettingType;

/// One setting.
#[derive(Debug)]
pub struct SettingRow {
    /// The documented spelling: `[]` stands for the indexes of a list, `*` for a name chosen by the user.
    pub key: String,
    /// The type and bounds.
    pub kind: SettingType,
    /// Whether and when it has an effect.
    pub used: SettingUse,
    /// Its meaning, in a few words.
    pub about: &'static str,
    /// Why the setting has no effect although it is read: it is only passed on, to be displayed elsewhere.
    pub idle: Option<&'static str>,
    pub(super) pattern: Vec<String>,
}

/// Whether a setting has an effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettingUse {
    /// It is read. Contains the default as it would be written; empty: not set.
    Read(&'static str),
    /// It is accepted but has no effect, for this reason.
    Inert(&'static str),
    /// It protects something in a way that is not implemented: refused, unless it asks for what happens anyway.
    Refused(RefusalRule),
}

/// When a security setting that is not implemented is refused, and with which message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefusalRule {
    /// The value that asks for what happens anyway, if any. An empty value always does.
    pub harmless: Option<&'static str>,
    /// What does not happen, and what to do.
    pub why: &'static str,
}

/// Keys that are not read, for one reason.
#[derive(Debug)]
pub enum Unread {
    /// Accepted without effect: reason, type, group, and each key with its meaning.
    Inert(&'static str, SettingType, &'static str, &'static [(&'static str, &'static str)]),
    /// Security settings that are not implemented: what does not happen and what to do, group, and each key with its type,
    /// the value that asks for what happens anyway (empty: none), and its meaning.
    Refused(&'static str, &'static str, &'static [(&'static str, SettingType, &'static str, &'static str)]),
}

impl SettingRow {
    pub(super) fn new(key: String, kind: SettingType, used: SettingUse, about: &'static str) -> Self {
        let pattern = pattern(&key);
        Self { key, kind, used, about, idle: None, pattern }
    }

    /// The variable that sets it: `KUBESVC_DATABASE_URL` for `kubesvc.database.url`; `None` if the key stands for several
    /// settings.
    pub fn environment_name(&self) -> Option<String> {
        (!self.is_repeated()).then(|| self.key.replace('.', "_").replace('-', "").to_uppercase())
    }

    /// Whether the key stands for several settings.
    pub(super) fn is_repeated(&self) -> bool {
        self.key.contains(['*', '['])
    }

    /// Why the setting has no effect; `None` if it has one.
    pub(super) fn without_effect(&self) -> Option<&'static str> {
        match self.used {
            SettingUse::Inert(why) => Some(why),
            _ => self.idle,
        }
    }
}

/// How a program's file is shared with other programs.
#[derive(Debug, Default)]
pub struct FileShape {
    /// Title of its schema.
    pub title: &'static str,
    /// Prefixes of paths, each with the documented prefix that it stands for.
    pub moved: &'static [(&'static str, &'static str)],
    /// Roots that only kubesvc reads; empty: the whole file is kubesvc's.
    pub ours: &'static [&'static str],
    /// Roots that another program reads too.
    pub shared: &'static [&'static str],
    /// Security-relevant groups: an unknown key in them is always an error.
    pub guarded: &'static [&'static str],
    /// Flags, each false where it is not set and a setting below a group is: the flag, and the group.
    pub turned_off_by: &'static [(&'static str, &'static str)],
}

/// A program's settings as a whole.
#[derive(Debug)]
pub struct Spec {
    pub(super) file: FileShape,
    /// In the order of printing: groups stay together, each where its first key was declared.
    pub(super) rows: Vec<SettingRow>,
}

impl Spec {
    /// Collects the keys that `G` declares, and those that are not read.
    pub fn new<G: Group>(file: FileShape, unread: &[Unread]) -> Self {
        let mut rows = Vec::new();
        G::declare(&mut Rows::new(&mut rows));
        for part in unread {
            part.declare(&mut rows);
        }
        let mut first = HashMap::new();
        let mut places: Vec<(Vec<usize>, SettingRow)> = Vec::new();
        for row in rows {
            let names = 1..=row.pattern.len();
            let place = names.map(|end| {
                let next = first.len();
                *first.entry(row.pattern[..end].to_vec()).or_insert(next)
            });
            places.push((place.collect(), row));
        }
        places.sort_by(|(one, _), (other, _)| one.cmp(other));
        Self { file, rows: places.into_iter().map(|(_, row)| row).collect() }
    }

    /// All settings, in the order of printing.
    pub fn rows(&self) -> &[SettingRow] {
        &self.rows
    }
}

impl Unread {
    fn declare(&self, rows: &mut Vec<SettingRow>) {
        let key = |group: &str, name: &str| {
            if group.is_empty() { name.to_owned() } else { format!("{group}.{name}") }
        };
        match *self {
            Self::Inert(why, kind, group, keys) => {
                let inert = |&(name, about): &(&str, _)| {
                    SettingRow::new(key(group, name), kind, SettingUse::Inert(why), about)
                };
                rows.extend(keys.iter().map(inert));
            }
            Self::Refused(why, group, keys) => {
                rows.extend(keys.iter().map(|&(name, kind, harmless, about)| {
                    let harmless = Some(harmless).filter(|word| !word.is_empty());
                    let used = SettingUse::Refused(RefusalRule { harmless, why });
                    SettingRow::new(key(group, name), kind, used, about)
                }));
            }
        }
    }
}
