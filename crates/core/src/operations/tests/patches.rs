//! What the API server does with a merge patch (RFC 7386), and with the directives of a strategic one.

use serde_json::{Map, Value};

/// The object after the patch.
pub(super) fn patched(target: &Value, patch: &Value) -> Value {
    let Value::Object(patch) = patch else { return patch.clone() };
    let mut target = target.as_object().cloned().unwrap_or_default();
    for (key, value) in patch.iter().filter(|(key, _)| !key.starts_with('$')) {
        let held = target.get(key).cloned().unwrap_or_default();
        if value.is_null() {
            target.remove(key);
        } else if !is_merged(patch, key, value) {
            target.insert(key.clone(), patched(&held, value));
        }
    }
    let merged: Vec<String> = patch
        .keys()
        .filter_map(|key| key.strip_prefix("$setElementOrder/").map(str::to_owned))
        .chain(patch.iter().filter(|(key, value)| is_merged(patch, key, value)).map(|(key, _)| key.clone()))
        .collect();
    for name in merged {
        let held = items(target.get(&name));
        let list = list(patch, &name, &held);
        target.insert(name, list.into());
    }
    if let Some(keys) = patch.get("$retainKeys").and_then(Value::as_array) {
        target.retain(|key, _| keys.iter().any(|kept| kept == key.as_str()));
    }
    Value::Object(target)
}

fn is_merged(patch: &Map<String, Value>, key: &str, value: &Value) -> bool {
    let has_directive = |item: &Value| item.get("$patch").is_some();
    patch.contains_key(&format!("$setElementOrder/{key}"))
        || value.as_array().is_some_and(|items| items.iter().any(has_directive))
}

fn items(value: Option<&Value>) -> Vec<Value> {
    value.and_then(Value::as_array).cloned().unwrap_or_default()
}

/// The list of this name after the patch.
fn list(patch: &Map<String, Value>, name: &str, held: &[Value]) -> Vec<Value> {
    let changed = items(patch.get(name));
    if changed.first().is_some_and(|first| first["$patch"] == "replace") {
        return changed[1..].to_vec();
    }
    let order = items(patch.get(&format!("$setElementOrder/{name}")));
    let deleted = items(patch.get(&format!("$deleteFromPrimitiveList/{name}")));
    let key = order
        .first()
        .or(changed.first())
        .and_then(Value::as_object)
        .and_then(|item| item.keys().find(|key| !key.starts_with('$')).cloned());
    let id = |item: &Value| key.as_ref().map_or_else(|| item.clone(), |key| item[key].clone());
    let place = |items: &[Value], item: &Value| items.iter().position(|held| id(held) == id(item));
    let is_deleted = |item: &Value| {
        deleted.contains(item)
            || changed.iter().any(|gone| gone["$patch"] == "delete" && id(gone) == id(item))
    };
    let mut ours: Vec<Value> = Vec::new();
    for wanted in &order {
        let before = place(held, wanted).map(|at| &held[at]);
        let change = place(&changed, wanted).map(|at| &changed[at]);
        ours.extend(match (before, change) {
            (Some(before), Some(change)) => Some(patched(before, change)),
            (Some(before), None) => Some(before.clone()),
            (None, change) => change.cloned(),
        });
    }
    let others = held.iter().filter(|item| place(&order, item).is_none() && !is_deleted(item)).cloned();
    interleave(others.collect(), ours, |item| place(held, item))
}

/// Puts the items of others between those of the manifest, in the order of both, and between the two as the cluster has
/// them as far as that is possible.
fn interleave(
    others: Vec<Value>,
    ours: Vec<Value>,
    place_in_cluster: impl Fn(&Value) -> Option<usize>,
) -> Vec<Value> {
    let mut merged = Vec::with_capacity(others.len() + ours.len());
    let (mut others, mut ours) = (others.into_iter().peekable(), ours.into_iter().peekable());
    loop {
        let other_first = match (others.peek(), ours.peek()) {
            (Some(other), Some(own)) => match (place_in_cluster(other), place_in_cluster(own)) {
                (Some(other), Some(own)) => other < own,
                _ => false,
            },
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (None, None) => return merged,
        };
        merged.extend(if other_first { others.next() } else { ours.next() });
    }
}
