//! The table of settings of each program, and the lookup of written keys in it.

use super::setting_type::SettingType;

/// One setting.
#[derive(Debug)]
pub(crate) struct SettingRow {
    /// The documented spelling: `[]` stands for the indexes of a list, `*` for a name chosen by the user.
    pub(crate) key: &'static str,
    /// The type and bounds.
    pub(crate) kind: SettingType,
    /// Whether and when it has an effect.
    pub(crate) used: SettingUse,
    /// Whether the value is never shown, neither in messages nor by `--print-config`.
    pub(crate) secret: bool,
    /// Its meaning, in a few words.
    pub(crate) about: &'static str,
    /// Why the setting has no effect although it is read: it is only passed on, to be displayed elsewhere.
    pub(crate) idle: Option<&'static str>,
}

/// Whether a setting has an effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SettingUse {
    /// It is read. Contains the default as it would be written; empty: not set.
    Read(&'static str),
    /// It is known, and will be read once this capability exists.
    Later(Capability),
    /// It is accepted but has no effect, for this reason.
    Inert(&'static str),
    /// It protects something in a way that is not implemented: refused, unless it asks for what happens anyway.
    Refused(RefusalRule),
}

/// When a security setting that is not implemented is refused, and with which message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RefusalRule {
    /// The value that asks for what happens anyway, if any. An empty value always does.
    pub(crate) harmless: Option<&'static str>,
    /// What does not happen, and what to do.
    pub(crate) why: &'static str,
    /// The flag that makes the setting irrelevant if it is set to true. If the flag is not set, this setting turns it
    /// off.
    pub(crate) moot_by: Option<&'static str>,
}

/// The capability required for a setting of [`SettingUse::Later`]. None concerns security: what is not implemented
/// there is [`SettingUse::Refused`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Capability {
    Migration,
}

impl Capability {
    /// Its name in the reference table.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Migration => "migration",
        }
    }
}

/// A setting that is read now.
pub(crate) const fn read(
    key: &'static str,
    kind: SettingType,
    default: &'static str,
    about: &'static str,
) -> SettingRow {
    SettingRow {
        key,
        kind,
        used: SettingUse::Read(default),
        secret: matches!(kind, SettingType::DatabaseUrl),
        about,
        idle: None,
    }
}

/// A setting that is known but not read yet.
pub(crate) const fn later(
    capability: Capability,
    key: &'static str,
    kind: SettingType,
    about: &'static str,
) -> SettingRow {
    SettingRow { key, kind, used: SettingUse::Later(capability), secret: false, about, idle: None }
}

/// A security setting that is not implemented: only `harmless` and empty values are accepted.
pub(crate) const fn refused(
    key: &'static str,
    kind: SettingType,
    harmless: Option<&'static str>,
    why: &'static str,
    about: &'static str,
) -> SettingRow {
    let used = SettingUse::Refused(RefusalRule { harmless, why, moot_by: None });
    SettingRow { key, kind, used, secret: false, about, idle: None }
}

impl SettingRow {
    /// Marks the value as never shown.
    pub(crate) const fn secret(self) -> Self {
        Self { secret: true, ..self }
    }

    /// Marks a setting that is read and passed on but has no effect, for this reason.
    pub(crate) const fn idle(self, why: &'static str) -> Self {
        Self { idle: Some(why), ..self }
    }

    /// Why the setting has no effect; `None` if it has one.
    pub(crate) fn without_effect(&self) -> Option<&'static str> {
        match self.used {
            SettingUse::Inert(why) => Some(why),
            _ => self.idle,
        }
    }

    /// Sets the flag that makes a refused setting irrelevant.
    pub(crate) const fn moot_by(self, flag: &'static str) -> Self {
        match self.used {
            SettingUse::Refused(refusal) => {
                Self { used: SettingUse::Refused(RefusalRule { moot_by: Some(flag), ..refusal }), ..self }
            }
            _ => self,
        }
    }
}

/// A setting that is accepted without effect.
pub(crate) const fn inert(key: &'static str, why: &'static str, about: &'static str) -> SettingRow {
    SettingRow { key, kind: SettingType::Any, used: SettingUse::Inert(why), secret: false, about, idle: None }
}

/// An integer without a unit.
pub(crate) const fn count(min: i64, max: i64) -> SettingType {
    SettingType::Int { min, max, unit: "" }
}

/// A duration in milliseconds.
pub(crate) const fn millis(min: i64, max: i64) -> SettingType {
    SettingType::Int { min, max, unit: "of milliseconds" }
}

/// A duration in seconds.
pub(crate) const fn seconds(min: i64, max: i64) -> SettingType {
    SettingType::Int { min, max, unit: "of seconds" }
}

/// A TCP port; 0: the system chooses a free one.
pub(crate) const PORT: SettingType =
    SettingType::Int { min: 0, max: 65535, unit: "(a port; 0 lets the system choose)" };

/// The owner of a key that matches no row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyOwnership {
    /// kubesvc: the key must be a mistake.
    Ours,
    /// Shared with another program that reads the same group: the key is ignored.
    Shared,
    /// Another program.
    Foreign,
}

/// A program's settings as a whole.
pub(crate) struct Spec {
    /// The tables, in the order of printing.
    pub(crate) tables: &'static [&'static [SettingRow]],
    /// Prefixes of paths, each with the documented prefix that it stands for.
    pub(crate) moved: &'static [(&'static str, &'static str)],
    /// Roots that only kubesvc reads; empty: the whole file is kubesvc's.
    pub(crate) ours: &'static [&'static str],
    /// Roots that another program reads too.
    pub(crate) shared: &'static [&'static str],
    /// Security-relevant groups: an unknown key in them is always an error.
    pub(crate) guarded: &'static [&'static str],
}

/// One segment of a written key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum KeySegment {
    /// A name, as written.
    Name(String),
    /// An index of a list.
    Index(usize),
}

/// Result of looking up a written key.
pub(crate) enum KeyLookup {
    /// The key is this row. `id` is the same for all spellings of one setting.
    Setting { row: &'static SettingRow, id: String },
    /// The key is a group that contains rows.
    Group,
    /// As `Group`, if all its last names together are one name chosen by the user.
    Stretched,
    /// No row matches.
    Nothing,
}

/// Normalizes a name: names that differ only in case, hyphens and underscores are equal.
pub(crate) fn fold(name: &str) -> String {
    name.chars().filter(|c| !matches!(c, '-' | '_')).flat_map(char::to_lowercase).collect()
}

/// Splits a written key at its dots; `a[0]` is an index of a list, `a[b.c]` a name that keeps its dots.
pub(crate) fn split(key: &str) -> Option<Vec<KeySegment>> {
    let mut steps = Vec::new();
    let mut rest = key;
    loop {
        if let Some(inside) = rest.strip_prefix('[') {
            let (name, after) = inside.split_once(']')?;
            steps.push(match name.parse() {
                Ok(index) => KeySegment::Index(index),
                Err(_) if name.is_empty() => return None,
                Err(_) => KeySegment::Name(name.to_owned()),
            });
            rest = after;
        } else {
            let end = rest.find(['.', '[']).unwrap_or(rest.len());
            let name = rest[..end].trim();
            if name.is_empty() {
                return None;
            }
            steps.push(KeySegment::Name(name.to_owned()));
            rest = &rest[end..];
        }
        if rest.is_empty() {
            return Some(steps);
        }
        if !rest.starts_with('[') {
            rest = rest.strip_prefix('.')?;
        }
    }
}

/// The normal form of a path, the same for all spellings.
pub(crate) fn folded(path: &[KeySegment]) -> String {
    let steps = path.iter().map(|step| match step {
        KeySegment::Name(name) => fold(name),
        KeySegment::Index(i) => format!("[{i}]"),
    });
    steps.collect::<Vec<_>>().join(".")
}

/// A path as a person would write it.
pub(crate) fn join(path: &[KeySegment]) -> String {
    let mut out = String::new();
    for step in path {
        match step {
            KeySegment::Index(i) => out.push_str(&format!("[{i}]")),
            KeySegment::Name(name) => {
                if !out.is_empty() {
                    out.push('.');
                }
                out.push_str(name);
            }
        }
    }
    super::yaml::shown(&out)
}

impl Spec {
    /// All rows, in printing order.
    pub(crate) fn rows(&self) -> impl Iterator<Item = &'static SettingRow> {
        self.tables.iter().flat_map(|t| t.iter())
    }

    /// Moves a path to its documented prefix.
    pub(crate) fn documented_path(&self, path: &[KeySegment]) -> Vec<KeySegment> {
        for (from, to) in self.moved {
            let from: Vec<_> = from.split('.').collect();
            let same =
                |(step, name): (&KeySegment, &&str)| matches!(step, KeySegment::Name(n) if fold(n) == **name);
            if path.len() >= from.len() && path.iter().zip(&from).all(same) {
                let root = to.split('.').map(|n| KeySegment::Name(n.to_owned()));
                return root.chain(path[from.len()..].iter().cloned()).collect();
            }
        }
        path.to_vec()
    }

    /// The owner of a key that matches no row.
    pub(crate) fn ground(&self, path: &[KeySegment]) -> KeyOwnership {
        let root = match path.first() {
            Some(KeySegment::Name(name)) => fold(name),
            _ => String::new(),
        };
        if self.ours.is_empty() || self.ours.contains(&root.as_str()) {
            KeyOwnership::Ours
        } else if self.shared.contains(&root.as_str()) {
            KeyOwnership::Shared
        } else {
            KeyOwnership::Foreign
        }
    }

    /// Whether the path is one of the guarded groups, or below one.
    pub(crate) fn is_guarded(&self, path: &[KeySegment]) -> bool {
        self.guarded.iter().any(|group| {
            let group = pattern(group);
            let same = |(step, name): (&KeySegment, &String)| match step {
                KeySegment::Name(written) => fold(written) == *name,
                KeySegment::Index(_) => name == "[]",
            };
            path.len() >= group.len() && path.iter().zip(&group).all(same)
        })
    }

    /// The known key, or group of keys, that is most similar to this one.
    pub(crate) fn nearest(&self, path: &[KeySegment]) -> Option<String> {
        let tidy = |key: &str| fold(key).replace("[]", "");
        let named = path.iter().filter_map(|s| match s {
            KeySegment::Name(name) => Some(name.as_str()),
            KeySegment::Index(_) => None,
        });
        let written = tidy(&named.collect::<Vec<_>>().join("."));
        let last = |key: &str| key.rsplit('.').next().unwrap_or_default().to_owned();
        let mut best: Option<(usize, &str)> = None;
        for row in self.rows() {
            let dots = row.key.match_indices('.').map(|(i, _)| i).chain([row.key.len()]);
            for known in dots.map(|end| row.key[..end].trim_end_matches("[]")) {
                let folded = tidy(known);
                let whole = known.len() == row.key.len();
                // The right name in the wrong group is more similar than two wrong letters.
                let distance = match strsim::osa_distance(&written, &folded) {
                    d if whole && d > 2 && last(&written) == last(&folded) => 2,
                    d => d,
                };
                let near = distance * 4 <= folded.len().max(8);
                if near && best.is_none_or(|(d, _)| distance < d) {
                    best = Some((distance, known));
                }
            }
        }
        best.map(|(_, key)| key.to_owned())
    }
}

/// A [`Spec`] prepared for many lookups.
pub(crate) struct SettingIndex {
    pub(crate) spec: &'static Spec,
    rows: Vec<(Vec<String>, &'static SettingRow)>,
    moved: Vec<Vec<String>>,
}

impl SettingIndex {
    pub(crate) fn new(spec: &'static Spec) -> Self {
        Self {
            spec,
            rows: spec.rows().map(|row| (pattern(row.key), row)).collect(),
            moved: spec.moved.iter().map(|(from, _)| pattern(from)).collect(),
        }
    }

    /// Looks up a path that [`Spec::documented_path`] returned.
    pub(crate) fn find(&self, path: &[KeySegment]) -> KeyLookup {
        let folded: Vec<_> = path
            .iter()
            .map(|step| match step {
                KeySegment::Name(name) => fold(name),
                KeySegment::Index(_) => "[]".to_owned(),
            })
            .collect();
        let leads_on = self.moved.iter().any(|from| compare(from, &folded) == KeyMatch::Part);
        let mut found = if leads_on { KeyLookup::Group } else { KeyLookup::Nothing };
        for (pattern, row) in &self.rows {
            match compare(pattern, &folded) {
                KeyMatch::Whole => {
                    return KeyLookup::Setting { row, id: identity(row, pattern, path, &folded) };
                }
                KeyMatch::Part => found = KeyLookup::Group,
                KeyMatch::Stretched if matches!(found, KeyLookup::Nothing) => found = KeyLookup::Stretched,
                KeyMatch::Stretched | KeyMatch::None => {}
            }
        }
        found
    }
}

/// A row's key in segments; `a[]` is two of them.
fn pattern(key: &str) -> Vec<String> {
    let mut out = Vec::new();
    for name in key.split('.') {
        match name.strip_suffix("[]") {
            Some(list) => out.extend([fold(list), "[]".to_owned()]),
            None => out.push(fold(name)),
        }
    }
    out
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeyMatch {
    Whole,
    Part,
    /// As `Part`, but only because `*` matched more than one name.
    Stretched,
    None,
}

/// Compares a path with a pattern. `*` matches one or more names, since a user's name may contain dots.
fn compare(pattern: &[String], path: &[String]) -> KeyMatch {
    match (pattern, path) {
        ([], []) => KeyMatch::Whole,
        (_, []) => KeyMatch::Part,
        ([], _) => KeyMatch::None,
        ([any, after @ ..], [name, rest @ ..]) if any == "*" => {
            if name == "[]" {
                return KeyMatch::None;
            }
            match compare(after, rest) {
                KeyMatch::Whole => KeyMatch::Whole,
                _ if rest.is_empty() => KeyMatch::Part,
                shorter => match compare(pattern, rest) {
                    KeyMatch::None => shorter,
                    KeyMatch::Part => KeyMatch::Stretched,
                    longer => longer,
                },
            }
        }
        ([want, after @ ..], [name, rest @ ..]) => {
            if want == name {
                compare(after, rest)
            } else {
                KeyMatch::None
            }
        }
    }
}

/// The row's key with list indexes and the user's names filled in; the names as written.
fn identity(row: &SettingRow, pattern: &[String], path: &[KeySegment], folded: &[String]) -> String {
    let Some(fixed) = pattern.iter().position(|p| p == "*") else {
        return if row.key.contains('[') { self::folded(path) } else { row.key.to_owned() };
    };
    // What follows the user's name is the row's, in whatever spelling.
    let after: Vec<_> = row.key.split('.').skip(fixed + 1).map(str::to_owned).collect();
    let (head, name) = (folded.iter().take(fixed), &path[fixed..path.len() - after.len()]);
    let name = name.iter().map(|step| match step {
        KeySegment::Name(name) => name.clone(),
        KeySegment::Index(i) => format!("[{i}]"),
    });
    head.cloned().chain(name).chain(after).collect::<Vec<_>>().join(".")
}
