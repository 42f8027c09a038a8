//! Written keys: their spelling, and their place in the description of a program's settings.

use super::row::{SettingRow, Spec};
use super::yaml::shown;

/// The owner of a key that matches no row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyOwnership {
    /// kubesvc: the key must be a mistake.
    Ours,
    /// Shared with another program that reads the same group: the key is ignored.
    Shared,
    /// Another program.
    Foreign,
}

/// One segment of a written key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum KeySegment {
    /// A name, as written.
    Name(String),
    /// An index of a list.
    Index(usize),
}

impl KeySegment {
    /// The segment in the form in which patterns have it.
    fn folded(&self) -> String {
        match self {
            Self::Name(name) => fold(name),
            Self::Index(_) => "[]".to_owned(),
        }
    }
}

/// Result of looking up a written key.
pub(super) enum KeyLookup {
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
pub fn fold(name: &str) -> String {
    name.chars().filter(|c| !matches!(c, '-' | '_')).flat_map(char::to_lowercase).collect()
}

/// Splits a written key at its dots; `a[0]` is an index of a list, `a[b.c]` a name that keeps its dots.
pub(super) fn split(key: &str) -> Option<Vec<KeySegment>> {
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

/// A path with its names in the form that `name` gives them.
fn joined(path: &[KeySegment], name: impl Fn(&str) -> String) -> String {
    let mut out = String::new();
    for step in path {
        match step {
            KeySegment::Index(i) => out.push_str(&format!("[{i}]")),
            KeySegment::Name(written) => {
                if !out.is_empty() {
                    out.push('.');
                }
                out.push_str(&name(written));
            }
        }
    }
    out
}

/// The normal form of a path, the same for all spellings.
pub(super) fn folded(path: &[KeySegment]) -> String {
    joined(path, fold)
}

/// A path as a person would write it.
pub(super) fn join(path: &[KeySegment]) -> String {
    shown(&joined(path, str::to_owned))
}

/// A row's key in segments; `a[]` is two of them.
pub(super) fn pattern(key: &str) -> Vec<String> {
    let mut out = Vec::new();
    for name in key.split('.') {
        match name.strip_suffix("[]") {
            Some(list) => out.extend([fold(list), "[]".to_owned()]),
            None => out.push(fold(name)),
        }
    }
    out
}

impl Spec {
    /// Moves a path to its documented prefix.
    pub(super) fn documented_path(&self, path: &[KeySegment]) -> Vec<KeySegment> {
        for (from, to) in self.file.moved {
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
    pub(super) fn ground(&self, path: &[KeySegment]) -> KeyOwnership {
        let root = path.first().map(KeySegment::folded).unwrap_or_default();
        if self.file.ours.is_empty() || self.file.ours.contains(&root.as_str()) {
            KeyOwnership::Ours
        } else if self.file.shared.contains(&root.as_str()) {
            KeyOwnership::Shared
        } else {
            KeyOwnership::Foreign
        }
    }

    /// Whether the path is one of the guarded groups, or below one.
    pub(super) fn is_guarded(&self, path: &[KeySegment]) -> bool {
        self.file.guarded.iter().any(|group| {
            let group = pattern(group);
            path.len() >= group.len() && path.iter().zip(&group).all(|(step, name)| step.folded() == *name)
        })
    }

    /// The known key, or group of keys, that is most similar to this one.
    pub(super) fn nearest(&self, path: &[KeySegment]) -> Option<String> {
        let tidy = |key: &str| fold(key).replace("[]", "");
        let named = path.iter().filter_map(|s| match s {
            KeySegment::Name(name) => Some(name.as_str()),
            KeySegment::Index(_) => None,
        });
        let written = tidy(&named.collect::<Vec<_>>().join("."));
        let last = |key: &str| key.rsplit('.').next().unwrap_or_default().to_owned();
        let mut best: Option<(usize, &str)> = None;
        for row in &self.rows {
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

    /// Looks up a path that [`Spec::documented_path`] returned.
    pub(super) fn find(&'static self, path: &[KeySegment]) -> KeyLookup {
        let folded: Vec<_> = path.iter().map(KeySegment::folded).collect();
        let leads_on =
            self.file.moved.iter().any(|(from, _)| compare(&pattern(from), &folded) == KeyMatch::Part);
        let mut found = if leads_on { KeyLookup::Group } else { KeyLookup::Nothing };
        for row in &self.rows {
            match compare(&row.pattern, &folded) {
                KeyMatch::Whole => return KeyLookup::Setting { row, id: identity(row, path) },
                KeyMatch::Part => found = KeyLookup::Group,
                KeyMatch::Stretched if matches!(found, KeyLookup::Nothing) => found = KeyLookup::Stretched,
                KeyMatch::Stretched | KeyMatch::None => {}
            }
        }
        found
    }
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
        ([want, after @ ..], [name, rest @ ..]) if want == name => compare(after, rest),
        _ => KeyMatch::None,
    }
}

/// The key in its normal form, with list indexes and the user's names filled in; those names as written.
fn identity(row: &SettingRow, path: &[KeySegment]) -> String {
    let Some(fixed) = row.pattern.iter().position(|p| p == "*") else { return folded(path) };
    // What follows the user's name is the row's, in whatever spelling.
    let (head, rest) = path.split_at(fixed);
    let (name, after) = rest.split_at(rest.len() - (row.pattern.len() - fixed - 1));
    let name = name.iter().map(|step| match step {
        KeySegment::Name(name) => name.clone(),
        KeySegment::Index(i) => format!("[{i}]"),
    });
    let after = after.iter().map(KeySegment::folded);
    [folded(head)].into_iter().chain(name).chain(after).collect::<Vec<_>>().join(".")
}
