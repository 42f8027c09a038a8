//! The YAML files of a Spring application, with Spring's precedence: `spinnaker.yml`, `clouddriver.yml`, then the same
//! with the name of a profile. Halyard and the Spinnaker operator write these files.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::properties::{accounts, below, steps};
use super::snapshot::{Completeness, SourceFault, SourceSnapshot};
use super::yaml::{PropertyNode, documents};

/// The names that Clouddriver's settings have, from the lowest precedence to the highest.
const NAMES: [&str; 2] = ["spinnaker", "clouddriver"];
/// The profile that is always active, above all others.
const LOCAL: &str = "local";
/// Where a document says for which profiles it is.
const ON_PROFILE: [&str; 2] = ["spring.config.activate.on-profile", "spring.profiles"];

/// A file, and its text.
#[derive(Clone)]
pub struct NamedText {
    /// Its path, or its key in a Secret or ConfigMap.
    pub name: String,
    /// Its text, which may contain credentials.
    pub text: String,
}

/// Whether a file of this name is one that Clouddriver reads with these profiles.
pub fn is_spring_file(name: &str, profiles: &[String]) -> bool {
    let Some((name, profile)) = parts(name) else { return false };
    name.is_some() && profile.is_none_or(|profile| is_active(profile, profiles))
}

/// Whether a profile is active: it is one of these, or `local`.
pub fn is_active(profile: &str, profiles: &[String]) -> bool {
    profile == LOCAL || profiles.iter().any(|active| active == profile)
}

/// Name and profile of a YAML file: `clouddriver-local.yml` has both. A name that is neither of Clouddriver's is `None`.
fn parts(path: &str) -> Option<(Option<usize>, Option<&str>)> {
    let file = path.rsplit('/').next().unwrap_or(path);
    let stem = file.strip_suffix(".yml").or_else(|| file.strip_suffix(".yaml"))?;
    for (at, name) in NAMES.iter().enumerate() {
        match stem.strip_prefix(name) {
            Some("") => return Some((Some(at), None)),
            Some(rest) if rest.starts_with('-') => return Some((Some(at), rest.strip_prefix('-'))),
            _ => {}
        }
    }
    Some((None, None))
}

/// Sorts files from the lowest precedence to the highest; files that Spring does not order stay in their order.
pub fn sort_by_precedence<T>(files: &mut [T], profiles: &[String], name: impl Fn(&T) -> &str) {
    files.sort_by_key(|file| {
        let (name, profile) = parts(name(file)).unwrap_or_default();
        let profile = profile.map(|profile| match profiles.iter().position(|active| active == profile) {
            _ if profile == LOCAL => usize::MAX,
            Some(at) => at + 1,
            // Given by its path: active, below those that are named.
            None => 0,
        });
        (profile, name.map_or(NAMES.len(), |name| name))
    });
}

/// Reads the accounts in files.
///
/// # Errors
/// A file is not YAML that Spring reads. Nothing is known then, since any other file may be overridden by that one.
pub fn read_files(
    source: &Arc<str>,
    files: &[NamedText],
    profiles: &[String],
    vars: &BTreeMap<String, String>,
) -> Result<SourceSnapshot, SourceFault> {
    let mut files: Vec<&NamedText> = files.iter().collect();
    sort_by_precedence(&mut files, profiles, |file| &file.name);
    let mut properties = Vec::new();
    for file in files {
        for document in documents(&file.name, &file.text)? {
            if !matches!(*document, PropertyNode::Map(_)) {
                return Err(fault(file, "a document is not a group of settings"));
            }
            if applies(file, &document, profiles)? {
                properties.push(document);
            }
        }
    }
    // Later documents and files are above earlier ones.
    properties.reverse();
    let completeness = elsewhere(&properties, profiles).map_or(Completeness::Complete, Completeness::Partial);
    Ok(SourceSnapshot::of(source, accounts(source, &properties, vars), completeness))
}

/// Why the files may not be all that Clouddriver reads; `None`: they are.
fn elsewhere(properties: &[Arc<PropertyNode>], profiles: &[String]) -> Option<String> {
    let values = |key: &str| {
        let mut values = Vec::new();
        for one in properties {
            below(one, &steps(key), &mut |_, node| texts(node, &mut values));
        }
        values
    };
    if !values("spring.config.import").is_empty() {
        return Some("spring.config.import names further files, which are not read: list them".to_owned());
    }
    let active = ["spring.profiles.active", "spring.profiles.include"].map(values).concat();
    let unknown = active.iter().find(|profile| !is_active(profile, profiles))?;
    let shown: String = unknown.chars().filter(|one| !one.is_control()).take(64).collect();
    Some(format!("the files activate the profile {shown:?}: name it in the source's profile"))
}

/// The texts of a value, those with commas split.
fn texts(node: &PropertyNode, found: &mut Vec<String>) {
    match node {
        PropertyNode::Text(text) => {
            found.extend(text.split(',').map(|one| one.trim().to_owned()).filter(|one| !one.is_empty()));
        }
        PropertyNode::List(items) => items.iter().for_each(|item| texts(item, found)),
        PropertyNode::Null | PropertyNode::Map(_) => {}
    }
}

fn fault(file: &NamedText, why: &str) -> SourceFault {
    SourceFault::File { file: file.name.clone(), line: None, why: why.to_owned() }
}

/// Whether a document is for one of the active profiles, or for all.
fn applies(file: &NamedText, document: &PropertyNode, profiles: &[String]) -> Result<bool, SourceFault> {
    let mut wanted = Vec::new();
    for key in ON_PROFILE {
        below(document, &steps(key), &mut |rest, node| match node {
            // `spring.profiles.active` and others are below the same key.
            _ if !rest.is_empty() => {}
            PropertyNode::Text(text) => wanted.extend(text.split(',').map(|one| one.trim().to_owned())),
            PropertyNode::List(items) => wanted.extend(items.iter().filter_map(|item| match &**item {
                PropertyNode::Text(text) => Some(text.clone()),
                _ => None,
            })),
            PropertyNode::Null | PropertyNode::Map(_) => {}
        });
    }
    if wanted.is_empty() {
        return Ok(true);
    }
    let mut applies = false;
    for profile in wanted {
        if profile.contains(['&', '|', '(']) {
            let why = "the profile of a document is an expression: list its profiles, or use a file for each";
            return Err(fault(file, why));
        }
        applies |= match profile.strip_prefix('!') {
            Some(profile) => !is_active(profile, profiles),
            None => is_active(&profile, profiles),
        };
    }
    Ok(applies)
}
