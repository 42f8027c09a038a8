//! Which accounts a migration selects, and their zones.
//!
//! Patterns are compared with the whole name, case-sensitively, by an engine whose time is linear in the length of the
//! name. It has no look-around and no back-references.

use std::collections::BTreeSet;

use regex::{Regex, RegexBuilder};

use kubesvc_core::KubesvcMigrationSpec;
use kubesvc_core::secret_reference::Reference;
use kubesvc_core::spinnaker::ClusterSource;

use crate::definition::Choice;

/// Maximum size of a compiled pattern, in bytes. A short pattern with nested repetitions can need gigabytes.
const MAX_PATTERN_BYTES: usize = 1024 * 1024;

/// Why a selection cannot be used. Names the field, and the pattern if that is at fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectionError {
    /// A pattern does not compile.
    #[error("{field}: {pattern:?} is no regular expression: {reason}")]
    Pattern {
        /// The field.
        field: String,
        /// The pattern.
        pattern: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The kubeconfig of a zone rule is a malformed reference.
    #[error("{field} must be a secret reference: {reason}")]
    Reference {
        /// The field.
        field: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The operator does not watch the namespace of the accounts.
    #[error("{0}")]
    NotWatched(String),
}

/// The accounts that a migration selects, and their zones.
#[derive(Clone)]
pub struct MigrationSelection {
    names: BTreeSet<String>,
    patterns: Vec<Pattern>,
    excluded: Vec<Pattern>,
    zones: Vec<(Pattern, Choice)>,
    sources: Option<BTreeSet<String>>,
}

/// A pattern that matches parts of names but no whole name; its author probably forgot a `.*`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{field}: {pattern:?} matches parts of {parts} names and 0 of {names} whole names; write .* where a name may go on"
)]
pub struct PartialMatch {
    /// The field of the pattern.
    pub field: String,
    /// The pattern.
    pub pattern: String,
    /// Number of names of which it matches a part.
    pub parts: usize,
    /// Number of names that it was compared with.
    pub names: usize,
}

#[derive(Clone)]
struct Pattern {
    field: String,
    text: String,
    /// The sources that it holds for; `None`: all.
    sources: Option<BTreeSet<String>>,
    /// Matches a whole name.
    whole: Regex,
    /// Matches any part of a name.
    part: Regex,
}

impl Pattern {
    fn compile(field: String, text: &str) -> Result<Self, SelectionError> {
        let compile = |pattern: &str| RegexBuilder::new(pattern).size_limit(MAX_PATTERN_BYTES).build();
        let refuse = |field: &str, reason: String| {
            Err(SelectionError::Pattern { field: field.to_owned(), pattern: text.to_owned(), reason })
        };
        if text.is_empty() {
            return refuse(&field, "it is empty".to_owned());
        }
        // By itself first: `a)|(b` is whole only inside other parentheses.
        let whole = compile(text).and_then(|part| {
            // The line break ends a comment of a pattern with the flag x, where it means nothing else.
            let whole = compile(&format!(r"\A(?:{text})\z"));
            Ok((part, whole.or_else(|_| compile(&format!("\\A(?:{text}\n)\\z")))?))
        });
        match whole {
            Ok((part, whole)) => Ok(Self { field, text: text.to_owned(), whole, part, sources: None }),
            Err(error) => {
                let error = error.to_string();
                let last = error.lines().next_back().unwrap_or_default();
                refuse(&field, last.trim_start_matches("error: ").to_owned())
            }
        }
    }

    fn all(field: &str, texts: &[String]) -> Result<Vec<Self>, SelectionError> {
        let compiled = texts.iter().enumerate();
        compiled.map(|(index, text)| Self::compile(format!("{field}[{index}]"), text)).collect()
    }
}

/// Whether a text is a pattern that compiles.
pub fn is_pattern(text: &str) -> bool {
    Pattern::compile(String::new(), text).is_ok()
}

impl MigrationSelection {
    /// Compiles the selection of a spec.
    ///
    /// # Errors
    /// A pattern that does not compile, or a malformed reference in a zone rule.
    pub fn compile(spec: &KubesvcMigrationSpec) -> Result<Self, SelectionError> {
        let mut zones = Vec::new();
        for (index, rule) in spec.zone_rules.iter().enumerate() {
            let field = format!("spec.zoneRules[{index}]");
            let pattern = Pattern::compile(format!("{field}.pattern"), &rule.pattern)?;
            let source = match &rule.kubeconfig_file {
                _ if rule.service_account == Some(true) => Some(ClusterSource::ServiceAccount),
                Some(path) if path.starts_with('/') => Some(ClusterSource::File(path.clone())),
                Some(reference) => {
                    let parsed = Reference::parse(reference).and_then(|one| one.check_parameters());
                    parsed.map_err(|error| SelectionError::Reference {
                        field: format!("{field}.kubeconfigFile"),
                        reason: error.to_string(),
                    })?;
                    Some(ClusterSource::Reference(reference.clone()))
                }
                None => None,
            };
            zones.push((pattern, Choice { zone: Some(rule.zone_id.clone()), source }));
        }
        Ok(Self {
            names: spec.names.iter().cloned().collect(),
            patterns: Pattern::all("spec.patterns", &spec.patterns)?,
            excluded: Pattern::all("spec.excludePatterns", &spec.exclude_patterns)?,
            zones,
            sources: (!spec.sources.is_empty()).then(|| spec.sources.iter().cloned().collect()),
        })
    }

    /// The selection of the documented settings: patterns, each list of which holds for the sources that are named with
    /// it. Errors name the settings.
    pub fn of_settings(lists: &[(&str, &[String], BTreeSet<String>)]) -> Result<Self, SelectionError> {
        let mut patterns = Vec::new();
        for (field, texts, sources) in lists {
            let compiled = Pattern::all(field, texts)?;
            let within = compiled.into_iter().map(|one| Pattern { sources: Some(sources.clone()), ..one });
            patterns.extend(within);
        }
        Ok(Self { names: BTreeSet::new(), patterns, excluded: Vec::new(), zones: Vec::new(), sources: None })
    }

    /// Whether the account of this name in this source is migrated. An exclusion goes before everything else.
    pub fn selects(&self, name: &str, source: &str) -> bool {
        let reads =
            |sources: &Option<BTreeSet<String>>| sources.as_ref().is_none_or(|all| all.contains(source));
        let matches = |pattern: &Pattern| reads(&pattern.sources) && pattern.whole.is_match(name);
        let named = || self.names(name) || self.patterns.iter().any(matches);
        reads(&self.sources) && named() && !self.excludes(name)
    }

    fn excludes(&self, name: &str) -> bool {
        self.excluded.iter().any(|pattern| pattern.whole.is_match(name))
    }

    /// Whether the account is listed by its name.
    pub fn names(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    /// The names that are listed and not excluded.
    pub(super) fn listed(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str).filter(|name| !self.excludes(name))
    }

    /// The sources that are named and do not exist.
    pub(super) fn unknown_sources<'s>(&'s self, sources: &'s [&str]) -> impl Iterator<Item = &'s str> {
        self.sources.iter().flatten().map(String::as_str).filter(|name| !sources.contains(name))
    }

    /// What the first zone rule for this name says.
    pub fn choice(&self, name: &str) -> Choice {
        let rule = self.zones.iter().find(|(pattern, _)| pattern.whole.is_match(name));
        rule.map(|(_, choice)| choice.clone()).unwrap_or_default()
    }

    /// The patterns that match parts of these names but none as a whole.
    pub fn partial_matches(&self, names: &[&str]) -> Vec<PartialMatch> {
        let zones = self.zones.iter().map(|(pattern, _)| pattern);
        let all = self.patterns.iter().chain(&self.excluded).chain(zones);
        let judged = all.filter_map(|pattern| {
            if names.iter().any(|name| pattern.whole.is_match(name)) {
                return None;
            }
            let parts = names.iter().filter(|name| pattern.part.is_match(name)).count();
            (parts > 0).then(|| PartialMatch {
                field: pattern.field.clone(),
                pattern: pattern.text.clone(),
                parts,
                names: names.len(),
            })
        });
        judged.collect()
    }
}
