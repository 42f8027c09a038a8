//! The JSON schema of a settings file, for editors and the charts.
//!
//! It knows the documented spelling of each key. The programs match keys without case, hyphens and underscores, and
//! read dotted keys as nested ones, so unknown keys are left to them.

use serde_json::{Value, json};

use super::row::{RefusalRule, SettingRow, SettingUse, Spec};

impl Spec {
    /// The JSON schema of the program's file, in the documented spelling of the keys. It refuses wrong values of
    /// documented keys, and leaves other keys to the program.
    pub fn schema(&self) -> Value {
        let mut root = json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": self.file.title,
            "type": "object",
        });
        for row in &self.rows {
            let is_group_too =
                self.file.moved.iter().any(|(from, _)| from.starts_with(&format!("{}.", row.key)));
            let mut leaf = leaf(row);
            if is_group_too {
                leaf = json!({ "anyOf": [leaf, { "type": "object" }] });
            }
            merge(child(&mut root, &row.key), leaf);
        }
        root
    }
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
        SettingUse::Read(default) if !default.is_empty() && !row.kind.is_secret() => {
            (row.kind.schema(), format!("{}. Default: {default}", row.about))
        }
        _ => (row.kind.schema(), row.about.to_owned()),
    };
    schema["description"] = about.into();
    if row.kind.is_secret() {
        schema["writeOnly"] = true.into();
    }
    schema
}

/// The values of a security setting that is not implemented which ask for what happens anyway.
fn harmless(rule: RefusalRule) -> Value {
    let mut values = vec![Value::Null, "".into()];
    match rule.harmless.map(|word| (word, serde_json::from_str(word))) {
        Some((_, Ok(value))) => values.push(value),
        Some((word, Err(_))) => values.extend([word.into(), word.to_uppercase().into()]),
        None => {}
    }
    values.dedup();
    json!({ "enum": values })
}
