//! What makes one object of another, as a JSON merge patch (RFC 7386).

use serde_json::{Map, Value};

/// The merge patch from one object to another; `None` if they are the same. Fields that are null count as absent.
pub(super) fn merge_patch(from: &Value, to: &Value) -> Option<Value> {
    let (Value::Object(from), Value::Object(to)) = (from, to) else {
        return (from != to).then(|| to.clone());
    };
    let mut patch = Map::new();
    for key in from.keys().filter(|key| !from[*key].is_null()) {
        if to.get(key).is_none_or(Value::is_null) {
            patch.insert(key.clone(), Value::Null);
        }
    }
    for (key, wanted) in to.iter().filter(|(_, wanted)| !wanted.is_null()) {
        match from.get(key) {
            None | Some(Value::Null) => {
                patch.insert(key.clone(), wanted.clone());
            }
            Some(held) => {
                if let Some(changed) = merge_patch(held, wanted) {
                    patch.insert(key.clone(), changed);
                }
            }
        }
    }
    (!patch.is_empty()).then(|| patch.into())
}

/// Puts a path into a patch: `["spec", "replicas"]` and `3` become `{"spec": {"replicas": 3}}`.
pub(super) fn nested(path: &[&str], value: Value) -> Value {
    path.iter().rev().fold(value, |value, key| Value::Object(Map::from_iter([((*key).to_owned(), value)])))
}
