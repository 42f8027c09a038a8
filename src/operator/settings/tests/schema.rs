//! The JSON schema of settings files.

use serde_json::{Value, json};

use super::specs;
use kubesvc_runtime::config::SettingUse;

/// The part of a schema that is for one key.
fn of_key<'a>(schema: &'a Value, key: &str) -> &'a Value {
    key.split('.').fold(schema, |group, name| {
        let (name, is_list) = name.strip_suffix("[]").map_or((name, false), |name| (name, true));
        let member = match name {
            "*" => &group["additionalProperties"],
            name => &group["properties"][name],
        };
        if is_list { &member["items"] } else { member }
    })
}

#[test]
fn the_schema_tells_of_each_documented_key() {
    for spec in specs() {
        let schema = spec.schema();
        for row in spec.rows() {
            let part = of_key(&schema, &row.key);
            let about = part.get("description").or_else(|| part["anyOf"][0].get("description"));
            let about = about.and_then(Value::as_str).unwrap_or_default();
            assert!(about.starts_with(row.about), "{}: {part}", row.key);
        }
    }
}

#[test]
fn the_schema_accepts_defaults_and_of_settings_that_are_not_built_what_happens_anyway() {
    let schema = specs()[0].schema();
    let enabled = of_key(&specs()[1].schema(), "secrets.vault.enabled").clone();
    assert_eq!(enabled["enum"], json!([null, "", false]));
    assert_eq!(of_key(&schema, "kubesvc.agents.approval")["enum"], json!(["auto", "manual", null]));
    assert_eq!(of_key(&schema, "server.port")["maximum"], 65535);
    for spec in specs() {
        let schema = spec.schema();
        let defaults = spec.rows().iter().filter_map(|row| match row.used {
            SettingUse::Read(default) if !default.is_empty() => Some((row.key.as_str(), default)),
            _ => None,
        });
        for (key, default) in defaults {
            let part = of_key(&schema, key);
            if let Some(words) = part.get("enum").and_then(Value::as_array) {
                assert!(words.iter().any(|word| word == default), "{key}: {part}");
            }
        }
    }
}

#[test]
fn a_group_that_is_a_setting_too_is_either() {
    let level = specs()[0].schema();
    let level = of_key(&level, "logging.level");
    assert_eq!(level["anyOf"][1], json!({ "type": "object" }));
}
