//! The answer of a Spring Cloud config server: property sources with flat keys, the highest first.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::placeholders::UNDECRYPTED;
use super::properties::accounts;
use super::snapshot::{Completeness, SourceFault, SourceSnapshot};
use super::yaml::PropertyNode;

/// Maximum nesting depth of a value.
const MAX_DEPTH: usize = 32;
/// What the server puts before the key of a value that it cannot decrypt, and the value that it then has. The setting is
/// there, so the account must not be taken for one without it.
const UNDECRYPTED_KEY: &str = "invalid.";
const UNDECRYPTED_VALUE: &str = "<n/a>";

/// Reads the accounts in the answer to `GET {uri}/{application}/{profile}/{label}`.
///
/// # Errors
/// It is not the answer of a config server.
pub fn read_config_server(
    source: &Arc<str>,
    answer: &[u8],
    vars: &BTreeMap<String, String>,
) -> Result<SourceSnapshot, SourceFault> {
    let fault = SourceFault::Answer("that of a Spring Cloud config server: it has no propertySources");
    let answer: Value = serde_json::from_slice(answer).map_err(|_| SourceFault::Answer("JSON"))?;
    let Some(Value::Array(sources)) = answer.get("propertySources") else { return Err(fault) };
    let properties = sources.iter().map(|one| {
        let source = one.get("source").filter(|source| source.is_object());
        source.and_then(|source| node(source, MAX_DEPTH)).map(Arc::new)
    });
    let Some(properties) = properties.collect::<Option<Vec<_>>>() else { return Err(fault) };
    // It answers so for an application, a profile or a label that it does not have.
    let completeness = match properties.is_empty() {
        true => Completeness::Partial(
            "the config server has no properties for this application, profile and label".to_owned(),
        ),
        false => Completeness::Complete,
    };
    Ok(SourceSnapshot::of(source, accounts(source, &properties, vars), completeness))
}

/// A JSON value, with numbers and flags as texts; `None` if it is nested too deep.
fn node(value: &Value, depth: usize) -> Option<PropertyNode> {
    let deeper = depth.checked_sub(1)?;
    Some(match value {
        Value::Null => PropertyNode::Null,
        Value::Bool(_) | Value::Number(_) => PropertyNode::Text(value.to_string()),
        Value::String(text) => PropertyNode::Text(text.clone()),
        Value::Array(items) => {
            let items = items.iter().map(|item| node(item, deeper).map(Arc::new));
            PropertyNode::List(items.collect::<Option<_>>()?)
        }
        // With its origin, as the server answers if it is asked to.
        Value::Object(fields) if fields.contains_key("value") && fields.contains_key("origin") => {
            node(fields.get("value").unwrap_or(&Value::Null), deeper)?
        }
        Value::Object(fields) => {
            let entries = fields.iter().map(|(key, one)| {
                let one = node(one, deeper)?;
                let undecrypted = key
                    .strip_prefix(UNDECRYPTED_KEY)
                    .filter(|_| matches!(&one, PropertyNode::Text(text) if text == UNDECRYPTED_VALUE));
                Some(match undecrypted {
                    Some(key) => (key.to_owned(), Arc::new(PropertyNode::Text(UNDECRYPTED.to_owned()))),
                    None => (key.clone(), Arc::new(one)),
                })
            });
            PropertyNode::Map(entries.collect::<Option<_>>()?)
        }
    })
}
