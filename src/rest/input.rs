//! The accounts in a request body.

use serde_json::{Map, Value};
use tracing::debug;

use super::body::no_name_twice;
use super::error::RestError;
use crate::account::spinnaker::AccountInput;

/// Parses one account of a body.
pub(super) fn read(fields: Map<String, Value>) -> Result<AccountInput, RestError> {
    let named =
        fields.get("name").and_then(Value::as_str).map(|name| name.chars().take(255).collect::<String>());
    let given = AccountInput::read(fields).map_err(|problem| {
        RestError::bad_request(match named {
            Some(name) => format!("account {name:?}: {problem}"),
            None => problem.to_string(),
        })
    })?;
    if given.ignored.count > 0 {
        let ignored = &given.ignored;
        debug!(account = given.name, count = ignored.count, first = ?ignored.named, "ignored fields that have no effect");
    }
    Ok(given)
}

/// Parses all accounts of a body. A name that occurs twice is an error.
pub(super) fn read_all(objects: Vec<Map<String, Value>>) -> Result<Vec<AccountInput>, RestError> {
    let all: Vec<AccountInput> = objects.into_iter().map(read).collect::<Result<_, _>>()?;
    no_name_twice(all.iter().map(|given| given.name.as_str()))?;
    Ok(all)
}
