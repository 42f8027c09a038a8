//! Definitions as Clouddriver stores them: JSON objects, whose field `type` is `kubernetes`.

use std::cell::Cell;
use std::sync::Arc;

use kubesvc_core::json::UniqueKeys;
use serde::de::DeserializeSeed as _;
use serde_json::{Map, Value};

use super::fields::checked_shape;
use super::snapshot::{SourceFault, SourceItem, bad, item, unfit_name};

/// Maximum nesting depth of a definition.
const MAX_DEPTH: usize = 32;
/// Maximum number of values in a definition.
const MAX_VALUES: usize = 200_000;

/// Reads a row of Clouddriver's table `accounts`: its `id`, its `body`, and its version.
pub fn read_row(source: &Arc<str>, id: &str, body: &str, version: String) -> SourceItem {
    match parse(body) {
        Ok(Value::Object(definition)) => from_object(source, Some(id), definition, Some(version)),
        Ok(_) => bad(Some(id.to_owned()), "its row", "its body is not a JSON object"),
        Err(why) => bad(Some(id.to_owned()), "its row", why),
    }
}

/// Reads one definition, as a caller of Clouddriver sends it.
pub fn read_definition(source: &Arc<str>, definition: Map<String, Value>) -> SourceItem {
    from_object(source, None, definition, None)
}

/// Reads a page of `GET /credentials/type/kubernetes`. Returns also the last name that can be read, from which the
/// next page begins.
///
/// # Errors
/// The answer is not a list.
pub fn read_page(source: &Arc<str>, page: &[u8]) -> Result<(Vec<SourceItem>, Option<String>), SourceFault> {
    let page: Value = serde_json::from_slice(page).map_err(|_| SourceFault::Answer("JSON"))?;
    let Value::Array(page) = page else { return Err(SourceFault::Answer("a list of accounts")) };
    let name = |one: &Value| Some(one.get("name")?.as_str()?.to_owned());
    let last = page.iter().rev().find_map(name);
    let items = page.into_iter().enumerate().map(|(at, one)| match one {
        Value::Object(definition) => read_definition(source, definition),
        _ => bad(None, &format!("[{at}]"), "it is not a JSON object"),
    });
    Ok((items.collect(), last))
}

fn parse(body: &str) -> Result<Value, &'static str> {
    let mut json = serde_json::Deserializer::from_str(body);
    let strict = UniqueKeys { values: &Cell::new(MAX_VALUES), depth: MAX_DEPTH };
    let parsed = strict.deserialize(&mut json).and_then(|value| json.end().map(|()| value));
    parsed.map_err(|error| match error.classify() {
        serde_json::error::Category::Data => "its body has a key twice, or too many values",
        _ => "its body is not JSON",
    })
}

fn from_object(
    source: &Arc<str>,
    id: Option<&str>,
    mut definition: Map<String, Value>,
    version: Option<String>,
) -> SourceItem {
    let named = match definition.get("name") {
        None | Some(Value::Null) => None,
        Some(Value::String(name)) => Some(name.clone()),
        Some(_) => return bad(id.map(str::to_owned), place(id), "its name is not text"),
    };
    let name = match (id, named) {
        (Some(id), Some(name)) if id != name => {
            return bad(Some(id.to_owned()), place(Some(id)), "the name in its body differs from its id");
        }
        (Some(name), _) => name.to_owned(),
        (None, name) => name.unwrap_or_default(),
    };
    let refuse = |why: &str| bad(Some(name.clone()), place(id), why);
    if let Some(why) = unfit_name(&name) {
        return refuse(why);
    }
    // `@type` was the field's name in the first versions.
    for key in ["type", "@type"] {
        match definition.get(key) {
            None => {}
            Some(Value::String(kind)) if kind == "kubernetes" => {}
            Some(_) => return refuse("the type in its body is not kubernetes"),
        }
    }
    definition.remove("@type");
    definition.insert("name".to_owned(), Value::String(name.clone()));
    if let Err(why) = checked_shape(&definition) {
        return refuse(&why);
    }
    item(source, name, definition, version)
}

const fn place(id: Option<&str>) -> &'static str {
    if id.is_some() { "its row" } else { "its entry" }
}
