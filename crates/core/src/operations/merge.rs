//! The three-way merge of `kubectl apply`: the object that is wanted, from what was applied last, what is to be applied
//! and what the cluster has.
//!
//! kubectl sends a patch that says how to merge, and the API server merges. Here the merged object is computed, with the
//! same result: what the manifest has wins, what only the last manifest had goes, and all else stays as it is.

use serde_json::{Map, Value};

use super::list_keys::{MergeSchema, Strategy};

/// Merges. `last` is what was applied before, an empty object if that is not known.
///
/// Where two items of a list have the same key, it cannot be told which is which: the list is taken from the manifest
/// as a whole, where kubectl would lose one of them.
pub fn three_way(group: &str, kind: &str, last: &Value, manifest: &Value, live: &Value) -> Value {
    let empty = Map::new();
    let map = |value: &'_ Value| value.as_object().cloned();
    let (Some(manifest), Some(live)) = (map(manifest), map(live)) else { return live.clone() };
    let schema = MergeSchema::of(group, kind);
    let merge = Merge { schema };
    Value::Object(merge.maps(&mut Vec::new(), last.as_object().unwrap_or(&empty), &manifest, &live))
}

struct Merge<'k> {
    schema: MergeSchema<'k>,
}

impl Merge<'_> {
    fn maps<'v>(
        &self,
        path: &mut Vec<&'v str>,
        last: &'v Map<String, Value>,
        manifest: &'v Map<String, Value>,
        live: &Map<String, Value>,
    ) -> Map<String, Value> {
        let mut merged = live.clone();
        merged.retain(|key, _| manifest.contains_key(key) || !last.contains_key(key));
        for (key, wanted) in manifest {
            path.push(key);
            let strategy = self.schema.at(path);
            match (wanted, live.get(key)) {
                (Value::Null, _) => {
                    merged.remove(key);
                }
                (Value::Object(wanted), Some(Value::Object(held))) if strategy != Strategy::Replace => {
                    let before = object(last.get(key));
                    let mut value = self.maps(path, before, wanted, held);
                    if strategy == Strategy::RetainKeys {
                        value.retain(|key, _| wanted.contains_key(key));
                    }
                    merged.insert(key.clone(), value.into());
                }
                (Value::Array(wanted), Some(Value::Array(held))) => {
                    let before = last.get(key).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
                    merged.insert(key.clone(), self.lists(path, strategy, before, wanted, held).into());
                }
                _ => {
                    merged.insert(key.clone(), without_nulls(wanted));
                }
            }
            path.pop();
        }
        merged
    }

    fn lists<'v>(
        &self,
        path: &mut Vec<&'v str>,
        strategy: Strategy,
        last: &'v [Value],
        manifest: &'v [Value],
        live: &[Value],
    ) -> Vec<Value> {
        let whole = || manifest.iter().map(without_nulls).collect();
        let key = match strategy {
            Strategy::Items(key) | Strategy::ItemsRetainingKeys(key) => key,
            Strategy::Set => return sets(last, manifest, live),
            Strategy::Default | Strategy::RetainKeys | Strategy::Replace => return whole(),
        };
        if !distinct(manifest, key) || !distinct(live, key) {
            return whole();
        }
        let find = |items: &'_ [Value], item: &Value| items.iter().position(|held| held[key] == item[key]);
        let ours: Vec<Value> = manifest
            .iter()
            .map(|wanted| {
                let Some(held) = find(live, wanted).map(|at| &live[at]) else { return without_nulls(wanted) };
                let before = object(last.iter().find(|item| item[key] == wanted[key]));
                let (Value::Object(wanted), Value::Object(held)) = (wanted, held) else {
                    return without_nulls(wanted);
                };
                let mut value = self.maps(path, before, wanted, held);
                if matches!(strategy, Strategy::ItemsRetainingKeys(_)) {
                    value.retain(|key, _| wanted.contains_key(key));
                }
                value.into()
            })
            .collect();
        let others: Vec<Value> = live
            .iter()
            .filter(|held| find(manifest, held).is_none() && find(last, held).is_none())
            .cloned()
            .collect();
        interleave(others, ours, |item| find(live, item))
    }
}

/// Merges lists of texts or numbers: those of the manifest, and those that others added.
fn sets(last: &[Value], manifest: &[Value], live: &[Value]) -> Vec<Value> {
    let mut ours: Vec<Value> = Vec::with_capacity(manifest.len());
    for item in manifest {
        if !ours.contains(item) {
            ours.push(item.clone());
        }
    }
    let others =
        live.iter().filter(|item| !manifest.contains(item) && !last.contains(item)).cloned().collect();
    interleave(others, ours, |item| live.iter().position(|held| held == item))
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

/// Whether each item has this key, and none has that of another.
fn distinct(items: &[Value], key: &str) -> bool {
    let mut seen = std::collections::HashSet::with_capacity(items.len());
    items.iter().all(|item| match &item[key] {
        Value::Null => false,
        value => seen.insert(value.to_string()),
    })
}

fn object(value: Option<&Value>) -> &Map<String, Value> {
    static EMPTY: std::sync::LazyLock<Map<String, Value>> = std::sync::LazyLock::new(Map::new);
    value.and_then(Value::as_object).unwrap_or(&EMPTY)
}

/// A value of the manifest where the cluster has none: a field that is null is no field. Items of lists stay.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(map) => map
            .iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(key, value)| (key.clone(), without_nulls(value)))
            .collect::<Map<_, _>>()
            .into(),
        Value::Array(items) => items.iter().map(without_nulls).collect(),
        value => value.clone(),
    }
}
