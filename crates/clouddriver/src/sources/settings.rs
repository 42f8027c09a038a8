//! The settings of a plugin in Clouddriver's files, with Spring's precedence.

use std::collections::BTreeMap;

use serde_json::Value;

use super::fields::untyped;
use super::files::{NamedText, completeness, property_sources};
use super::placeholders::Placeholders;
use super::properties::{Property, at, steps};
use super::snapshot::{Completeness, SourceFault};

/// One setting of a file.
#[derive(Clone, PartialEq)]
pub struct FileSetting {
    /// Its key, from the root, as the file spells it; a name with dots is in brackets.
    pub key: String,
    /// Name of the file.
    pub file: String,
    /// Its value, a list as a whole, with placeholders filled in; or why it has none. It may be a credential.
    pub value: Result<Value, String>,
}

/// The settings of files.
#[derive(Clone)]
pub struct FileSettings {
    /// From the highest file to the lowest: of two spellings of one key, the first one counts.
    pub settings: Vec<FileSetting>,
    /// Whether the files are all that Clouddriver reads.
    pub completeness: Completeness,
}

/// Reads the settings below these roots.
///
/// # Errors
/// A file is not YAML that Spring reads.
pub fn read_settings(
    files: &[NamedText],
    profiles: &[String],
    roots: &[&str],
) -> Result<FileSettings, SourceFault> {
    let (names, properties): (Vec<_>, Vec<_>) = property_sources(files, profiles)?.into_iter().unzip();
    let vars = BTreeMap::new();
    let mut placeholders = Placeholders::new(&properties, &vars);
    let mut settings = Vec::new();
    for (file, source) in names.into_iter().zip(&properties) {
        for root in roots {
            let Some(property) = at(source, &steps(root)) else { continue };
            leaves((*root).to_owned(), &property, &mut |key, leaf| {
                let value = match leaf {
                    leaf if leaf.is_empty() => Ok(Value::Array(Vec::new())),
                    leaf => untyped(leaf, &key, &mut placeholders).map_err(without_remedy),
                };
                settings.push(FileSetting { key, file: file.to_owned(), value });
            });
        }
    }
    Ok(FileSettings { settings, completeness: completeness(&properties, profiles) })
}

/// Calls `found` for each text and list.
fn leaves<'p>(key: String, property: &'p Property<'_>, found: &mut impl FnMut(String, &'p Property<'p>)) {
    if property.is_null() {
        return;
    }
    match property.entries().filter(|entries| !entries.is_empty()) {
        Some(entries) if property.items().is_none() => {
            for (name, one) in entries {
                let is_plain = !name.contains(['.', '[', ']']);
                leaves(if is_plain { format!("{key}.{name}") } else { format!("{key}[{name}]") }, one, found);
            }
        }
        _ => found(key, property),
    }
}

/// The settings of the plugin have no variables.
fn without_remedy(why: String) -> String {
    match why.split_once(": add it to kubesvc.clouddriver.vars") {
        Some((what, _)) => format!("{what}: write the value into the file"),
        None => why,
    }
}
