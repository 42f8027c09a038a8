//! Merges files, environment and flags over the defaults, one setting at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;

use super::UnknownKeys;
use super::error::{ConfigError, ConfigProblem, Origin};
use super::keys::{KeyLookup, KeyOwnership, KeySegment, fold, folded, join, split};
use super::kind::say;
use super::row::{RefusalRule, SettingRow, SettingUse};
use super::values::{EffectiveSetting, SettingList, UnbuiltSetting, UnreadSetting, Values};
use super::yaml::{MappingEntry, YamlNode, YamlValue, shown};

/// Number of problems, or unknown keys, after which the rest of a file is only skimmed.
const MAX_PROBLEMS: usize = 200;
/// Maximum number of another program's groups that are named.
const MAX_PASSED_OVER: usize = 100;
/// Maximum number of names in one key, including its groups.
const MAX_STEPS: usize = 64;

impl Values {
    /// Merges one file.
    pub(super) fn file(&mut self, file: &Arc<str>, root: &YamlNode, unknown: UnknownKeys) {
        let mut walk = Walk {
            values: self,
            file,
            unknown,
            seen: BTreeMap::new(),
            lists: BTreeMap::new(),
            passed_over: BTreeSet::new(),
            unknown_keys: 0,
        };
        match &root.value {
            YamlValue::Null => {}
            YamlValue::Map(entries) => walk.group(&[], entries),
            _ => {
                let origin = walk.at(root.line);
                let why = format!("the file must be a group of settings, but is {}", say(root));
                walk.values.problems.push(ConfigProblem::Malformed { origin, why });
            }
        }
        let Walk { lists, passed_over, .. } = walk;
        self.lists.extend(lists);
        if !passed_over.is_empty() {
            let more = match passed_over.len().saturating_sub(MAX_PASSED_OVER) {
                0 => String::new(),
                n => format!(" and {n} more"),
            };
            let names = passed_over.into_iter().take(MAX_PASSED_OVER).collect::<Vec<_>>().join(", ");
            self.ignore(format!("{file}: ignored settings of other programs: {names}{more}"));
        }
    }

    /// Merges the environment.
    pub(super) fn environment(&mut self, env: &dyn Fn(&str) -> Option<String>) {
        for row in &self.spec.rows {
            if !matches!(row.used, SettingUse::Read(_) | SettingUse::Refused(_)) {
                continue;
            }
            let Some(name) = row.environment_name() else { continue };
            let Some(text) = env(&name).filter(|t| !t.trim().is_empty()) else { continue };
            if text.starts_with("tcp://") || text.starts_with("udp://") {
                // Kubernetes sets SERVER_PORT=tcp://… in every pod of a namespace with a Service named "server".
                self.warnings.push(format!(
                    "ignored the environment variable {name}, which Kubernetes set for a Service"
                ));
                continue;
            }
            let origin = Origin::Environment(name);
            if let SettingUse::Refused(refusal) = row.used {
                let node = YamlNode { line: 0, value: YamlValue::Text(text) };
                self.asked(row, refusal, fold(&row.key), &node, (&row.key, origin));
                continue;
            }
            if let Err(problem) = self.set_text(row, &text, origin) {
                self.problems.push(problem);
            }
        }
    }

    /// Merges one flag.
    pub(super) fn flag(&mut self, key: &str, text: &str, flag: &str) -> Result<(), ConfigProblem> {
        let origin = Origin::Flag(flag.to_owned());
        let found = split(key).map(|path| self.spec.find(&self.spec.documented_path(&path)));
        match found {
            Some(KeyLookup::Setting { row, .. })
                if matches!(row.used, SettingUse::Read(_)) && !row.is_repeated() =>
            {
                self.set_text(row, text, origin)
            }
            _ => Err(ConfigProblem::Unknown { origin, key: shown(key), nearest: None }),
        }
    }

    /// Records what a layer asks of a security setting that is not implemented. Judged after all layers are merged.
    fn asked(
        &mut self,
        row: &'static SettingRow,
        refusal: RefusalRule,
        id: String,
        node: &YamlNode,
        (key, origin): (&str, Origin),
    ) {
        if matches!(node.value, YamlValue::Null) {
            return;
        }
        if is_blank(node) {
            self.asked.remove(&id);
            return;
        }
        if has_placeholder(node) {
            self.problems.push(wrong(row, key, say(node), origin));
            return;
        }
        let harmless = match (row.kind.read(node), refusal.harmless) {
            (Err(read), _) => return self.problems.push(wrong(row, key, read.0, origin)),
            (Ok(_), None) => false,
            (Ok(Value::Null), Some(word)) => {
                matches!(&node.value, YamlValue::Text(text) if text.trim().eq_ignore_ascii_case(word))
            }
            (Ok(value), Some(word)) => row.kind.parse(word) == Some(value),
        };
        self.asked.insert(id, UnbuiltSetting { row, refusal, key: key.to_owned(), origin, harmless });
    }

    /// Rejects each security setting that would not be honoured as written.
    pub(super) fn judge_asked(&mut self) {
        let asked = std::mem::take(&mut self.asked);
        // Groups whose own switch is written, and off.
        let off: Vec<_> = asked
            .values()
            .filter(|one| one.harmless && one.refusal.harmless == Some("false"))
            .filter_map(|one| Some((one.row.key.strip_suffix("enabled")?, one.origin.clone())))
            .collect();
        for UnbuiltSetting { row, refusal, key, origin, harmless } in asked.into_values() {
            let switch = off.iter().find(|(group, _)| row.key.starts_with(group)).cloned();
            let switch = switch.or_else(|| self.read_switch_off(&row.key));
            if let Some((group, switch_origin)) = switch.filter(|_| !harmless) {
                let why = format!("has no effect, since {group}enabled is false ({switch_origin})");
                self.warnings.push(format!("{origin}: `{key}` {why}"));
                continue;
            }
            if harmless {
                continue;
            }
            let may_stay = refusal.harmless.map(|word| format!(" (`{word}` may stay)")).unwrap_or_default();
            let why = format!("cannot be honoured: {}{may_stay}", refusal.why);
            self.problems.push(ConfigProblem::Rule { origin, key, why });
        }
    }

    /// The group of a key, with its dot, if its own switch is a setting that is written, and off; and where.
    fn read_switch_off(&self, key: &'static str) -> Option<(&'static str, Origin)> {
        let group = &key[..=key.rfind('.')?];
        let switch = self.slots.get(&fold(&format!("{group}enabled")))?;
        let is_off = switch.origin != Origin::Default && switch.value == Value::Bool(false);
        is_off.then(|| (group, switch.origin.clone()))
    }

    /// Turns off the flags that are not set, where a setting that does so is.
    fn turn_off(&mut self) {
        for (flag, group) in self.spec.file.turned_off_by {
            let origin = self.given_below(group).next().map(|(_, origin)| origin.clone());
            let flag = self.slots.get_mut(&fold(flag)).filter(|flag| flag.origin == Origin::Default);
            if let (Some(flag), Some(origin)) = (flag, origin) {
                (flag.value, flag.origin) = (false.into(), origin);
            }
        }
    }

    fn set_text(
        &mut self,
        row: &'static SettingRow,
        text: &str,
        origin: Origin,
    ) -> Result<(), ConfigProblem> {
        let node = YamlNode { line: 0, value: YamlValue::Text(text.to_owned()) };
        match row.kind.parse(text).filter(|_| !has_placeholder(&node)) {
            Some(value) => {
                self.slots.insert(fold(&row.key), EffectiveSetting { row, value, origin });
                Ok(())
            }
            None => Err(wrong(row, &row.key, say(&node), origin)),
        }
    }

    fn ignore(&mut self, warning: String) {
        self.ignored.push(warning.clone());
        self.warnings.push(warning);
    }

    /// Ends reading: completes the warnings, and returns the problems.
    pub(super) fn finish(&mut self) -> Result<(), ConfigError> {
        self.judge_asked();
        self.turn_off();
        self.warn_of_unread();
        match self.problems.is_empty() {
            true => Ok(()),
            false => Err(ConfigError { problems: std::mem::take(&mut self.problems) }),
        }
    }

    fn warn_of_unread(&mut self) {
        let mut said = BTreeSet::new();
        for UnreadSetting { row, first, places } in self.unread.values() {
            let more = |places: usize| match places - 1 {
                0 => String::new(),
                n => format!(" (and {n} more places)"),
            };
            let Some(why) = row.without_effect() else {
                self.warnings.push(format!("{first}: `{}` is not read yet{}", row.key, more(*places)));
                continue;
            };
            // Print one line for all settings of a list's groups that have no effect for the same reason.
            let is_alike = |other: &&UnreadSetting| {
                row.key.contains("[].")
                    && other.row.key.contains("[].")
                    && other.row.without_effect() == Some(why)
            };
            let alike: Vec<_> = self.unread.values().filter(is_alike).collect();
            if alike.len() < 2 {
                self.warnings.push(format!("{first}: `{}` has no effect: {why}{}", row.key, more(*places)));
            } else if said.insert(why) {
                let keys: Vec<_> = alike.iter().map(|one| format!("`{}`", one.row.key)).collect();
                let places = alike.iter().map(|one| one.places).sum();
                let keys = keys.join(", ");
                self.warnings.push(format!("{first}: {keys} have no effect: {why}{}", more(places)));
            }
        }
    }
}

fn wrong(row: &SettingRow, key: &str, read: String, origin: Origin) -> ConfigProblem {
    let allowed = match read.contains("${") {
        true => format!("{}; `${{…}}` is not filled in", row.kind),
        false => row.kind.to_string(),
    };
    let read = if row.kind.is_secret() { "a value not shown here".to_owned() } else { read };
    ConfigProblem::Value { origin, key: shown(key), read, allowed }
}

/// Whether the value asks for nothing: empty text, an empty list or group.
fn is_blank(node: &YamlNode) -> bool {
    match &node.value {
        YamlValue::Null => true,
        YamlValue::Text(text) => text.trim().is_empty(),
        YamlValue::List(items) => items.is_empty(),
        YamlValue::Map(entries) => entries.is_empty(),
    }
}

/// Whether the value contains a `${name}` that another program would have substituted.
fn has_placeholder(node: &YamlNode) -> bool {
    match &node.value {
        YamlValue::Text(text) => text.contains("${"),
        YamlValue::List(items) => items.iter().any(has_placeholder),
        YamlValue::Map(entries) => entries.iter().any(|entry| has_placeholder(&entry.node)),
        YamlValue::Null => false,
    }
}

/// One file being merged into [`Values`].
struct Walk<'a> {
    values: &'a mut Values,
    file: &'a Arc<str>,
    unknown: UnknownKeys,
    /// The line of each setting so far, by identity.
    seen: BTreeMap<String, usize>,
    lists: BTreeMap<String, SettingList>,
    passed_over: BTreeSet<String>,
    /// Number of unknown keys.
    unknown_keys: usize,
}

impl Walk<'_> {
    fn at(&self, line: usize) -> Origin {
        Origin::File { file: Arc::clone(self.file), line }
    }

    fn group(&mut self, path: &[KeySegment], entries: &[MappingEntry]) {
        for MappingEntry { key, line, node } in entries {
            let steps = split(key).unwrap_or_else(|| vec![KeySegment::Name(key.clone())]);
            let path: Vec<_> = path.iter().cloned().chain(steps).collect();
            // `accounts[1].name` makes the list at least two entries long.
            for (end, step) in path.iter().enumerate() {
                if let KeySegment::Index(i) = step {
                    let at = self.at(*line);
                    let list = self.list(&path[..end]);
                    list.len = list.len.max(i.saturating_add(1));
                    list.places.entry(*i).or_insert(at);
                }
            }
            self.visit(&path, *line, node);
        }
    }

    fn visit(&mut self, path: &[KeySegment], line: usize, node: &YamlNode) {
        if self.values.problems.len() >= MAX_PROBLEMS {
            return;
        }
        if path.len() > MAX_STEPS {
            let (origin, why) = (self.at(line), format!("a key has more than {MAX_STEPS} parts"));
            return self.values.problems.push(ConfigProblem::Malformed { origin, why });
        }
        let documented = self.values.spec.documented_path(path);
        let ground = self.values.spec.ground(&documented);
        match (self.values.spec.find(&documented), &node.value) {
            // Another program's setting of the same name may be a whole group, such as `logging.level`.
            (KeyLookup::Setting { .. }, YamlValue::Map(entries)) if ground == KeyOwnership::Shared => {
                self.group(&documented, entries);
            }
            (KeyLookup::Setting { row, id }, _) => self.setting(path, row, id, line, node),
            (KeyLookup::Group | KeyLookup::Stretched, YamlValue::Null) => {}
            (KeyLookup::Group | KeyLookup::Stretched, YamlValue::Map(entries)) => {
                self.group(&documented, entries);
            }
            (KeyLookup::Group | KeyLookup::Stretched, YamlValue::List(items))
                if self.takes_list(&documented) =>
            {
                let places = items.iter().map(|item| self.at(item.line)).enumerate().collect();
                *self.list(&documented) = SettingList { len: items.len(), places };
                for (i, item) in items.iter().enumerate() {
                    let path: Vec<_> = documented.iter().cloned().chain([KeySegment::Index(i)]).collect();
                    self.visit(&path, item.line, item);
                }
            }
            (KeyLookup::Group, _)
                if ground == KeyOwnership::Ours || self.values.spec.is_guarded(&documented) =>
            {
                let (origin, key) = (self.at(line), join(path));
                let allowed = "a group of settings".to_owned();
                self.values.problems.push(ConfigProblem::Value { origin, key, read: say(node), allowed });
            }
            (KeyLookup::Group | KeyLookup::Stretched | KeyLookup::Nothing, _) => {
                self.nothing(path, ground, line);
            }
        }
    }

    /// The list of groups at this path in this file. It replaces the list from earlier files completely.
    fn list(&mut self, path: &[KeySegment]) -> &mut SettingList {
        let id = folded(path);
        if !self.lists.contains_key(&id) {
            let places = format!("{id}[");
            self.values.slots.retain(|slot, _| !slot.starts_with(&places));
            self.values.asked.retain(|asked, _| !asked.starts_with(&places));
        }
        self.lists.entry(id).or_default()
    }

    /// Whether the rows below this path are entries of a list.
    fn takes_list(&self, path: &[KeySegment]) -> bool {
        let element: Vec<_> = path.iter().cloned().chain([KeySegment::Index(0)]).collect();
        !matches!(self.values.spec.find(&element), KeyLookup::Nothing)
    }

    fn nothing(&mut self, path: &[KeySegment], ground: KeyOwnership, line: usize) {
        let unknown = match self.values.spec.is_guarded(&self.values.spec.documented_path(path)) {
            true => UnknownKeys::Error,
            false => self.unknown,
        };
        match ground {
            KeyOwnership::Ours if self.unknown_keys == MAX_PROBLEMS && unknown == UnknownKeys::Warn => {}
            KeyOwnership::Ours => {
                self.unknown_keys += 1;
                let origin = self.at(line);
                let nearest = self.values.spec.nearest(&self.values.spec.documented_path(path));
                let problem = ConfigProblem::Unknown { origin, key: join(path), nearest };
                match unknown {
                    UnknownKeys::Error => self.values.problems.push(problem),
                    UnknownKeys::Warn => self.values.ignore(problem.to_string()),
                }
                if self.unknown_keys == MAX_PROBLEMS && self.unknown == UnknownKeys::Warn {
                    let more = format!("{}: further unknown settings are not named", self.file);
                    self.values.ignore(more);
                }
            }
            KeyOwnership::Shared => {
                self.passed_over.insert(join(path));
            }
            // A group that is only partly kubesvc's, such as `armory`, is named together with its foreign key.
            KeyOwnership::Foreign => {
                let part_ours = !matches!(self.values.spec.find(&path[..1]), KeyLookup::Nothing);
                let named = if part_ours { path.len().min(2) } else { 1 };
                self.passed_over.insert(join(&path[..named]));
            }
        }
    }

    fn setting(
        &mut self,
        path: &[KeySegment],
        row: &'static SettingRow,
        id: String,
        line: usize,
        node: &YamlNode,
    ) {
        let (origin, written) = (self.at(line), join(path));
        if let Some(first) = self.seen.insert(id.clone(), line) {
            self.values.problems.push(ConfigProblem::Twice { key: written, first, second: origin });
            return;
        }
        if let SettingUse::Refused(refusal) = row.used {
            return self.values.asked(row, refusal, id, node, (&written, origin));
        }
        if !matches!(row.used, SettingUse::Read(_)) {
            return self.unread(row, origin);
        }
        let key = if row.is_repeated() { written } else { row.key.clone() };
        match row.kind.read(node) {
            Err(read) => self.values.problems.push(wrong(row, &key, read.0, origin)),
            Ok(_) if has_placeholder(node) => {
                self.values.problems.push(wrong(row, &key, say(node), origin));
            }
            Ok(Value::Null) => {}
            Ok(value) => {
                if row.idle.is_some() {
                    self.unread(row, origin.clone());
                }
                self.values.slots.insert(id, EffectiveSetting { row, value, origin });
            }
        }
    }

    fn unread(&mut self, row: &'static SettingRow, origin: Origin) {
        let unread = UnreadSetting { row, first: origin, places: 0 };
        self.values.unread.entry(&row.key).or_insert(unread).places += 1;
    }
}
