//! The JSON schema of a settings file, for editors and the charts.
//!
//! It knows the documented spelling of each key. The programs match keys without case, hyphens and underscores, and
//! read dotted keys as nested ones, so unknown keys are left to them.

use serde_json::{Value, json};

use super::setting_type::{ListItem, SettingType};
use super::table::{RefusalRule, SettingRow, SettingUse, Spec};

const NAMESPACE: &str = "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?";

/// See [`settings_schema`](super::settings_schema).
pub(crate) fn settings_schema(spec: &Spec, title: &str) -> Value {
    let mut root = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        "type": "object",
    });
    for row in spec.rows() {
        let is_group_too = spec.moved.iter().any(|(from, _)| from.starts_with(&format!("{}.", row.key)));
        let mut leaf = leaf(row);
        if is_group_too {
            leaf = json!({ "anyOf": [leaf, { "type": "object" }] });
        }
        merge(child(&mut root, row.key), leaf);
    }
    root
}

/// The schema of the key below `root`, created with the groups that lead to it.
fn child<'a>(root: &'a mut Value, key: &str) -> &'a mut Value {
    key.split('.').fold(root, |group, name| match name.strip_suffix("[]") {
        Some(list) => {
            let list = member(group, list);
            set_type(list, "array");
            &mut list["items"]
        }
        None => member(group, name),
    })
}

/// The schema of one name in a group. `*` stands for each name that is not documented.
fn member<'a>(group: &'a mut Value, name: &str) -> &'a mut Value {
    set_type(group, "object");
    match name {
        "*" => &mut group["additionalProperties"],
        name => &mut group["properties"][name],
    }
}

/// Sets the type of a group. Like every setting, a group may be `null`, except the file as a whole.
fn set_type(group: &mut Value, name: &str) {
    if group.get("type").is_none() {
        group["type"] = json!([name, "null"]);
    }
}

fn merge(into: &mut Value, leaf: Value) {
    match (into.as_object_mut(), leaf) {
        (Some(group), Value::Object(leaf)) => group.extend(leaf),
        (_, leaf) => *into = leaf,
    }
}

fn leaf(row: &SettingRow) -> Value {
    let (mut schema, about) = match row.used {
        SettingUse::Refused(rule) => (harmless(rule), format!("{}. Not built: {}", row.about, rule.why)),
        SettingUse::Read(default) if !default.is_empty() && !row.secret => {
            (of_type(row.kind), format!("{}. Default: {default}", row.about))
        }
        _ => (of_type(row.kind), row.about.to_owned()),
    };
    schema["description"] = about.into();
    if row.secret {
        schema["writeOnly"] = true.into();
    }
    schema
}

/// The values of a security setting that is not implemented which ask for what happens anyway.
fn harmless(rule: RefusalRule) -> Value {
    // What another setting makes irrelevant cannot be judged alone.
    if rule.moot_by.is_some() {
        return json!({});
    }
    let mut values = vec![Value::Null, "".into()];
    match rule.harmless.map(|word| (word, serde_json::from_str(word))) {
        Some((_, Ok(value))) => values.push(value),
        Some((word, Err(_))) => values.extend([word.into(), word.to_uppercase().into()]),
        None => {}
    }
    values.dedup();
    json!({ "enum": values })
}

fn of_type(kind: SettingType) -> Value {
    match kind {
        SettingType::Flag => json!({ "type": ["boolean", "null"] }),
        SettingType::Int { min, max, .. } => {
            json!({ "type": ["integer", "null"], "minimum": min, "maximum": max })
        }
        SettingType::Float { min, max } => {
            json!({ "type": ["number", "null"], "minimum": min, "maximum": max })
        }
        SettingType::Size { min, max } => json!({
            "type": ["integer", "string", "null"],
            "minimum": min,
            "maximum": max,
            "pattern": "^[0-9]+ *([KMGTkmgt]?[Bb])?$",
        }),
        SettingType::Text { max } => {
            json!({ "type": ["string", "number", "boolean", "null"], "minLength": 1, "maxLength": max })
        }
        SettingType::Optional { max } => {
            json!({ "type": ["string", "number", "boolean", "null"], "maxLength": max })
        }
        SettingType::Permissions => json!({ "type": ["object", "array", "null"] }),
        SettingType::CustomResourceDefinitions => json!({
            "type": ["array", "null"],
            "items": { "type": "object", "required": ["kind"] },
        }),
        SettingType::CustomResources => json!({
            "type": ["array", "null"],
            "items": { "type": "object", "required": ["kubernetesKind"] },
        }),
        SettingType::Address => {
            json!({ "type": ["string", "null"], "pattern": r"^(\*|\[?[0-9A-Za-z.:-]+\]?)$" })
        }
        SettingType::HostPort => {
            json!({ "type": ["string", "null"], "pattern": r"^(\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z._-]+):[1-9][0-9]{0,4}$" })
        }
        SettingType::Namespace => json!({ "type": ["string", "null"], "pattern": format!("^{NAMESPACE}$") }),
        SettingType::Cron => json!({ "type": ["string", "null"], "pattern": r"^ *\S+( +\S+){5} *$" }),
        SettingType::DatabaseUrl => json!({
            "type": ["string", "null"],
            "pattern": "^(sqlite|mysql|mariadb|postgres|postgresql)://",
        }),
        SettingType::Choice(words) => choice(words, &[]),
        SettingType::OptionalChoice(words) => choice(words, &[""]),
        // One text with commas does as well.
        SettingType::List(of) | SettingType::OptionalList(of) => {
            json!({ "type": ["array", "string", "null"], "items": item(of) })
        }
        SettingType::Any => json!({}),
    }
}

fn choice(words: &[&str], more: &[&str]) -> Value {
    let words = words.iter().chain(more).map(|word| Value::from(*word));
    json!({ "enum": words.chain([Value::Null]).collect::<Vec<_>>() })
}

fn item(of: ListItem) -> Value {
    let text = |pattern: &str| json!({ "type": "string", "pattern": pattern });
    match of {
        ListItem::Text => json!({ "type": ["string", "number", "boolean"] }),
        ListItem::Namespace => text(&format!("^{NAMESPACE}$")),
        ListItem::NamespaceOrAll => text(&format!(r"^(\*|{NAMESPACE})$")),
        ListItem::NamespaceOwnOrAll => text(&format!(r"^(\*|\.|{NAMESPACE})$")),
        ListItem::Folder => text("^/"),
        ListItem::Network => text("^[0-9A-Fa-f.:]+(/[0-9]{1,3})?$"),
        ListItem::Host => text(r"^[^@*\s/]+$"),
        ListItem::Origin => text(r"^https?://[^@*\s/]+$"),
        ListItem::Server => text(r"^\S+$"),
        ListItem::Command => text(r"^[^/]+$"),
        ListItem::RequestClass => text("^(read|write|connect)$"),
    }
}
