//! Settings that are neither one value nor a list of texts.

use super::kind::{one_line, say};
use super::table::fold;
use super::yaml::{Entry, Node, Value, shown};

/// The longest role or kind, in characters; also of the object that an account becomes.
const LONGEST: usize = 255;
/// How many roles or kinds there may be.
const MOST: usize = 1000;

/// Roles, as they were written: `007` stays `007`, and blanks stay.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Permissions {
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
    /// Whether it is cluster-wide; it is namespaced otherwise.
    pub cluster_scoped: bool,
}

/// `{READ: [..], WRITE: [..]}`, or a list of such mappings. The error says what stands there.
pub(super) fn permissions(node: &Node) -> Result<Permissions, String> {
    let mut found = Permissions::default();
    match &node.value {
        Value::Map(entries) => take_permissions(entries, &mut found)?,
        Value::List(items) => {
            for item in items {
                match &item.value {
                    Value::Map(entries) => take_permissions(entries, &mut found)?,
                    _ => return Err(format!("a list with {} in line {}", say(item), item.line)),
                }
            }
        }
        Value::Null | Value::Text(_) => return Err(say(node)),
    }
    Ok(found)
}

fn take_permissions(entries: &[Entry], found: &mut Permissions) -> Result<(), String> {
    for Entry { key, line, node } in entries {
        let roles = match fold(key).as_str() {
            "read" => &mut found.read,
            "write" => &mut found.write,
            _ => return Err(format!("something with the key \"{}\" in line {line}", shown(key))),
        };
        let items = match &node.value {
            Value::Null => continue,
            Value::List(items) => items,
            _ => return Err(format!("something with {} under {} in line {line}", say(node), shown(key))),
        };
        for item in items {
            match &item.value {
                Value::Text(role) if one_line(role, LONGEST) && !role.contains("${") => {
                    if !roles.contains(role) {
                        roles.push(role.clone());
                    }
                }
                _ => {
                    let (read, key) = (say(item), shown(key));
                    return Err(format!("something with the role {read} under {key} in line {}", item.line));
                }
            }
        }
        if roles.len() > MOST {
            return Err(format!("something with more than {MOST} roles under {}", shown(key)));
        }
    }
    Ok(())
}

/// A list of `{kind, scope}`. The error says what stands there.
pub(super) fn custom_resource_definitions(node: &Node) -> Result<Vec<CustomResourceDefinition>, String> {
    let Value::List(items) = &node.value else { return Err(say(node)) };
    if items.len() > MOST {
        return Err(say(node));
    }
    items.iter().map(custom_resource_definition).collect()
}

fn custom_resource_definition(item: &Node) -> Result<CustomResourceDefinition, String> {
    let wrong = |what: String, line: usize| Err(format!("a list with {what} in line {line}"));
    let Value::Map(entries) = &item.value else { return wrong(say(item), item.line) };
    let (mut kind, mut cluster_scoped) = (None, false);
    for Entry { key, line, node } in entries {
        match (fold(key).as_str(), &node.value) {
            ("kind", Value::Text(text)) if one_line(text, LONGEST) => kind = Some(text.trim().to_owned()),
            ("scope", Value::Null) => {}
            ("scope", Value::Text(text)) if text.trim().eq_ignore_ascii_case("cluster") => {
                cluster_scoped = true;
            }
            ("scope", Value::Text(text)) if text.trim().eq_ignore_ascii_case("namespaced") => {}
            ("kind" | "scope", _) => return wrong(format!("the {} {}", shown(key), say(node)), *line),
            _ => return wrong(format!("the key \"{}\"", shown(key)), *line),
        }
    }
    match kind {
        Some(kind) => Ok(CustomResourceDefinition { kind, cluster_scoped }),
        None => wrong("an entry without a kind".to_owned(), item.line),
    }
}
