//! Settings that are neither a single value nor a list of texts.

use super::setting_type::{UnfitValue, one_line, say};
use super::table::fold;
use super::yaml::{MappingEntry, YamlNode, YamlValue, shown};

/// Maximum length of a role or kind, in characters; the same as in the account's object.
const MAX_ROLE_CHARS: usize = 255;
/// Maximum number of roles or kinds.
const MAX_ROLES: usize = 1000;

/// Roles as written: `007` stays `007`, and blanks are kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RolePermissions {
    /// Who may see the account.
    pub read: Vec<String>,
    /// Who may change it.
    pub write: Vec<String>,
}

/// A custom resource that an account exposes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CustomResourceDefinition {
    /// `Kind.group`
    pub kind: String,
    /// Whether it is cluster-wide instead of namespaced.
    pub cluster_scoped: bool,
}

/// Parses `{READ: [..], WRITE: [..]}`, or a list of such mappings. The error describes what was found.
pub(super) fn permissions(node: &YamlNode) -> Result<RolePermissions, UnfitValue> {
    let mut found = RolePermissions::default();
    match &node.value {
        YamlValue::Map(entries) => take_permissions(entries, &mut found)?,
        YamlValue::List(items) => {
            for item in items {
                match &item.value {
                    YamlValue::Map(entries) => take_permissions(entries, &mut found)?,
                    _ => return Err(UnfitValue(format!("a list with {} in line {}", say(item), item.line))),
                }
            }
        }
        YamlValue::Null | YamlValue::Text(_) => return Err(UnfitValue(say(node))),
    }
    Ok(found)
}

fn take_permissions(entries: &[MappingEntry], found: &mut RolePermissions) -> Result<(), UnfitValue> {
    let unfit = |what: String| Err(UnfitValue(format!("something with {what}")));
    for MappingEntry { key, line, node } in entries {
        let roles = match fold(key).as_str() {
            "read" => &mut found.read,
            "write" => &mut found.write,
            _ => return unfit(format!("the key \"{}\" in line {line}", shown(key))),
        };
        let items = match &node.value {
            YamlValue::Null => continue,
            YamlValue::List(items) => items,
            _ => return unfit(format!("{} under {} in line {line}", say(node), shown(key))),
        };
        for item in items {
            match &item.value {
                YamlValue::Text(role) if one_line(role, MAX_ROLE_CHARS) && !role.contains("${") => {
                    if !roles.contains(role) {
                        roles.push(role.clone());
                    }
                }
                _ => {
                    let (read, key) = (say(item), shown(key));
                    return unfit(format!("the role {read} under {key} in line {}", item.line));
                }
            }
        }
        if roles.len() > MAX_ROLES {
            return unfit(format!("more than {MAX_ROLES} roles under {}", shown(key)));
        }
    }
    Ok(())
}

/// Parses a list of `{kind, scope}`. The error describes what was found.
pub(super) fn custom_resource_definitions(
    node: &YamlNode,
) -> Result<Vec<CustomResourceDefinition>, UnfitValue> {
    let YamlValue::List(items) = &node.value else { return Err(UnfitValue(say(node))) };
    if items.len() > MAX_ROLES {
        return Err(UnfitValue(say(node)));
    }
    items.iter().map(custom_resource_definition).collect()
}

fn custom_resource_definition(item: &YamlNode) -> Result<CustomResourceDefinition, UnfitValue> {
    let wrong = |what: String, line: usize| Err(UnfitValue(format!("a list with {what} in line {line}")));
    let YamlValue::Map(entries) = &item.value else { return wrong(say(item), item.line) };
    let (mut kind, mut cluster_scoped) = (None, false);
    for MappingEntry { key, line, node } in entries {
        match (fold(key).as_str(), &node.value) {
            ("kind", YamlValue::Text(text)) if one_line(text, MAX_ROLE_CHARS) => {
                kind = Some(text.trim().to_owned());
            }
            ("scope", YamlValue::Null) => {}
            ("scope", YamlValue::Text(text)) if text.trim().eq_ignore_ascii_case("cluster") => {
                cluster_scoped = true;
            }
            ("scope", YamlValue::Text(text)) if text.trim().eq_ignore_ascii_case("namespaced") => {}
            ("kind" | "scope", _) => return wrong(format!("the {} {}", shown(key), say(node)), *line),
            _ => return wrong(format!("the key \"{}\"", shown(key)), *line),
        }
    }
    match kind {
        Some(kind) => Ok(CustomResourceDefinition { kind, cluster_scoped }),
        None => wrong("an entry without a kind".to_owned(), item.line),
    }
}
