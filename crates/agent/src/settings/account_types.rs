//! The types of an account's `permissions` and `customResourceDefinitions`.

use kubesvc_core::spec::Scope;
use kubesvc_runtime::config::{
    CustomType, FromSetting, MappingEntry, SettingType, UnfitValue, YamlNode, YamlValue, fold, one_line, say,
    shown,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Maximum length of a role or kind, in characters; the same as in the account's object.
const MAX_ROLE_CHARS: usize = 255;
/// Maximum number of roles or kinds.
const MAX_ROLES: usize = 1000;

/// Lists of roles under READ and WRITE.
pub(super) const PERMISSIONS: SettingType = SettingType::Custom(&CustomType {
    allowed: "lists of roles under READ and WRITE",
    is_list: false,
    read: |node| Ok(json!(permissions(node)?)),
    schema: || json!({ "type": ["object", "array", "null"] }),
});

/// A list of `{kind, scope}`.
pub(super) const CUSTOM_RESOURCE_DEFINITIONS: SettingType = SettingType::Custom(&CustomType {
    allowed: "a list of {kind: Kind.group, scope: Namespaced or Cluster}",
    is_list: true,
    read: custom_kinds,
    schema: || json!({ "type": ["array", "null"], "items": { "type": "object", "required": ["kind"] } }),
});

/// Roles as written: `007` stays `007`, and blanks are kept.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub(super) struct RolePermissions {
    /// Who may see the account.
    pub(super) read: Vec<String>,
    /// Who may change it.
    pub(super) write: Vec<String>,
}

/// A custom kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CustomKind {
    /// The kind, as `Kind.group`.
    pub(super) kind: String,
    /// Its scope.
    pub(super) scope: Scope,
}

impl FromSetting for RolePermissions {}
impl FromSetting for CustomKind {}

/// Parses `{READ: [..], WRITE: [..]}`, or a list of such mappings. The error describes what was found.
fn permissions(node: &YamlNode) -> Result<RolePermissions, UnfitValue> {
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

fn custom_kinds(node: &YamlNode) -> Result<Value, UnfitValue> {
    let YamlValue::List(items) = &node.value else { return Err(UnfitValue(say(node))) };
    if items.len() > MAX_ROLES {
        return Err(UnfitValue(say(node)));
    }
    let kinds = items.iter().map(custom_kind).collect::<Result<Vec<_>, _>>()?;
    Ok(json!(kinds))
}

/// Parses one entry. The error describes what was found.
fn custom_kind(item: &YamlNode) -> Result<CustomKind, UnfitValue> {
    let wrong = |what: String, line: usize| Err(UnfitValue(format!("a list with {what} in line {line}")));
    let YamlValue::Map(entries) = &item.value else { return wrong(say(item), item.line) };
    let (mut kind, mut scope) = (None, Scope::Namespaced);
    for MappingEntry { key, line, node } in entries {
        match (fold(key).as_str(), &node.value) {
            ("kind", YamlValue::Text(text)) if one_line(text, MAX_ROLE_CHARS) => {
                kind = Some(text.trim().to_owned());
            }
            ("scope", YamlValue::Null) => {}
            ("scope", YamlValue::Text(text)) if text.trim().eq_ignore_ascii_case("cluster") => {
                scope = Scope::Cluster;
            }
            ("scope", YamlValue::Text(text)) if text.trim().eq_ignore_ascii_case("namespaced") => {}
            ("kind" | "scope", _) => return wrong(format!("the {} {}", shown(key), say(node)), *line),
            _ => return wrong(format!("the key \"{}\"", shown(key)), *line),
        }
    }
    match kind {
        Some(kind) => Ok(CustomKind { kind, scope }),
        None => wrong("an entry without a kind".to_owned(), item.line),
    }
}
