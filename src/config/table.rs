//! One table of settings per program, and how a written key finds its row.

use super::setting_type::SettingType;

/// One setting.
#[derive(Debug)]
pub(crate) struct SettingRow {
    /// The documented spelling: `[]` stands for the places of a list, `*` for a name of the user's own.
    pub(crate) key: &'static str,
    /// The type and bounds.
    pub(crate) kind: SettingType,
    /// Whether and when it has an effect.
    pub(crate) used: Use,
    /// Never shown, not in messages and not by `--print-config`.
    pub(crate) secret: bool,
    /// What it means, in a few words.
    pub(crate) about: &'static str,
    /// Why it changes nothing although it is read: it is passed on, to be seen elsewhere.
    pub(crate) idle: Option<&'static str>,
}

/// Whether a setting has an effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// It is read; this is the default, as it would be written. Empty: not set.
    Read(&'static str),
    /// It is known, and will be read once the capability is there.
    Later(Capability),
    /// It is accepted and has no effect, for this reason.
    Inert(&'static str),
    /// It protects something in a way that is not built: refused, unless it asks for what happens anyway.
    Refused(RefusalRule),
}

/// When a security setting that is not built is refused, and with which words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RefusalRule {
    /// The value that asks for what happens anyway, if there is one. An empty value always does.
    pub(crate) harmless: Option<&'static str>,
    /// What does not happen, and what to do.
    pub(crate) why: &'static str,
    /// The flag that makes the setting moot where somebody set it to true. Where nobody has set the flag, the setting
    /// turns it off.
    pub(crate) moot_by: Option<&'static str>,
}

/// What the program will be able to do when a setting of [`Use::Later`] is read. There is none of security: what is not
/// built there is [`Use::Refused`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Capability {
    Lifecycle,
    Streaming,
    Operations,
    Migration,
}

impl Capability {
    /// Its name in the list of settings.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Lifecycle => "lifecycle",
            Self::Streaming => "streaming",
            Self::Operations => "operations",
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
        used: Use::Read(default),
        secret: matches!(kind, SettingType::DatabaseUrl),
        about,
        idle: None,
    }
}

/// A setting that is known and not read yet.
pub(crate) const fn later(
    capability: Capability,
    key: &'static str,
    kind: SettingType,
    about: &'static str,
) -> SettingRow {
    SettingRow { key, kind, used: Use::Later(capability), secret: false, about, idle: None }
}

/// A security setting that is not built, of which only `harmless` and what is empty are taken.
pub(crate) const fn refused(
    key: &'static str,
    kind: SettingType,
    harmless: Option<&'static str>,
    why: &'static str,
    about: &'static str,
) -> SettingRow {
    let used = Use::Refused(RefusalRule { harmless, why, moot_by: None });
    SettingRow { key, kind, used, secret: false, about, idle: None }
}

impl SettingRow {
    /// As the row is, for a value that must never be shown.
    pub(crate) const fn secret(self) -> Self {
        Self { secret: true, ..self }
    }

    /// As the row is, of a setting that is read and passed on, and changes nothing for this reason.
    pub(crate) const fn idle(self, why: &'static str) -> Self {
        Self { idle: Some(why), ..self }
    }

    /// Why it has no effect, if it has none.
    pub(crate) fn without_effect(&self) -> Option<&'static str> {
        match self.used {
            Use::Inert(why) => Some(why),
            _ => self.idle,
        }
    }

    /// As the row is, with the flag that makes a refused setting moot.
    pub(crate) const fn moot_by(self, flag: &'static str) -> Self {
        match self.used {
            Use::Refused(refusal) => {
                Self { used: Use::Refused(RefusalRule { moot_by: Some(flag), ..refusal }), ..self }
            }
            _ => self,
        }
    }
}

/// A setting that is accepted without effect.
pub(crate) const fn inert(key: &'static str, why: &'static str, about: &'static str) -> SettingRow {
    SettingRow { key, kind: SettingType::Any, used: Use::Inert(why), secret: false, about, idle: None }
}

/// A whole number without a unit of its own.
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

/// A TCP port; 0 lets the system choose a free one.
pub(crate) const PORT: SettingType =
    SettingType::Int { min: 0, max: 65535, unit: "(a port; 0 lets the system choose)" };

/// To whom a key belongs that is in no row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyOwnership {
    /// Ours: it must be a mistake.
    Ours,
    /// Another program reads the same group: it is passed over.
    Shared,
    /// Another program's.
    Foreign,
}

/// A program's settings as one whole.
pub(crate) struct Spec {
    /// The tables, in the order of printing.
    pub(crate) tables: &'static [&'static [SettingRow]],
    /// Where a path that begins as the first really stands.
    pub(crate) moved: &'static [(&'static str, &'static str)],
    /// Roots that only we read; empty: the whole file is ours.
    pub(crate) ours: &'static [&'static str],
    /// Roots that another program reads too.
    pub(crate) shared: &'static [&'static str],
    /// Groups that protect something: a key in them that no row has is always an error.
    pub(crate) guarded: &'static [&'static str],
}

/// One step of a written key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum KeySegment {
    /// A name, as written.
    Name(String),
    /// A place in a list.
    Index(usize),
}

/// How a written key stands to the table.
pub(crate) enum KeyLookup {
    /// It is this row; the identity is the same for all spellings of one setting.
    Setting { row: &'static SettingRow, id: String },
    /// Rows lie below it.
    Group,
    /// Rows lie below it, if all its last names are one name of the user's own.
    Stretched,
    /// Nothing of that name.
    Nothing,
}

/// Names are equal without case, hyphens and underscores.
pub(crate) fn fold(name: &str) -> String {
    name.chars().filter(|c| !matches!(c, '-' | '_')).flat_map(char::to_lowercase).collect()
}

/// Splits a written key at its dots; `a[0]` is a place in a list, `a[b.c]` a name that keeps its dots.
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

/// A path that is the same in all spellings.
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
    /// All rows, in the order of printing.
    pub(crate) fn rows(&self) -> impl Iterator<Item = &'static SettingRow> {
        self.tables.iter().flat_map(|t| t.iter())
    }

    /// The path under its documented root.
    pub(crate) fn settle(&self, path: &[KeySegment]) -> Vec<KeySegment> {
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

    /// Whose a key is that no row has.
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

    /// Whether the path is one of the groups that protect something, or below one.
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

    /// The known key, or group of keys, that looks most like this one.
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
                // The right name in the wrong group is nearer than two wrong letters.
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

/// A [`Spec`] made ready for many look-ups.
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

    /// Looks a settled path up.
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

/// A row's key in steps; `a[]` is two of them.
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
    /// As `Part`, but only since `*` took more than one name.
    Stretched,
    None,
}

/// `*` takes one name or more, so that a user's name may hold dots.
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

/// The row's key with the places in lists and the user's own names in it, those as they were written.
fn identity(row: &SettingRow, pattern: &[String], path: &[KeySegment], folded: &[String]) -> String {
    let Some(fixed) = pattern.iter().position(|p| p == "*") else {
        return if row.key.contains('[') { self::folded(path) } else { row.key.to_owned() };
    };
    let (head, tail) = (folded.iter().take(fixed), path.iter().skip(fixed));
    let tail = tail.map(|step| match step {
        KeySegment::Name(name) => name.clone(),
        KeySegment::Index(i) => format!("[{i}]"),
    });
    head.cloned().chain(tail).collect::<Vec<_>>().join(".")
}
