//! The patch of `kubectl apply`: from the last applied, the wanted and the live object. Fields of the manifest win,
//! fields that only the last manifest had are removed, and others stay.
//!
//! As with kubectl, native kinds get a strategic merge patch, whose lists the API server merges with the current ones,
//! and all other kinds a JSON merge patch, whose lists replace.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value, json};

use super::changes::{MERGE_PATCH, STRATEGIC_PATCH};
use super::list_keys::{MergeSchema, Strategy};

/// Directive of a strategic merge patch: the fields that a map keeps.
const RETAIN_KEYS: &str = "$retainKeys";
/// Directive of a strategic merge patch: the operation on a map or an item.
const DIRECTIVE: &str = "$patch";

/// A patch, and its media type.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ThreeWayPatch {
    pub(super) body: Value,
    pub(super) content_type: &'static str,
}

/// The patch; `None` if nothing changes. `last` is the last applied object; empty if unknown.
///
/// Items of a list that share a key (ports of TCP and UDP with one number) cannot be told apart: such a list is
/// replaced by the manifest's, where kubectl's patch would lose an item.
pub(super) fn three_way_patch(
    group: &str,
    kind: &str,
    last: &Value,
    manifest: &Value,
    live: &Value,
) -> Option<ThreeWayPatch> {
    let schema = MergeSchema::of(group, kind);
    let content_type = if schema.is_native() { STRATEGIC_PATCH } else { MERGE_PATCH };
    let diff = Diff { schema };
    let body = diff.maps(&mut Vec::new(), map(Some(last)), map(Some(manifest)), map(Some(live)));
    (!body.is_empty()).then(|| ThreeWayPatch { body: body.into(), content_type })
}

struct Diff<'k> {
    schema: MergeSchema<'k>,
}

impl Diff<'_> {
    fn maps<'v>(
        &self,
        path: &mut Vec<&'v str>,
        last: &'v Map<String, Value>,
        manifest: &'v Map<String, Value>,
        live: &'v Map<String, Value>,
    ) -> Map<String, Value> {
        let mut patch = Map::new();
        for key in last.keys().filter(|key| !manifest.contains_key(*key) && is_set(live.get(*key))) {
            patch.insert(key.clone(), Value::Null);
        }
        for (key, wanted) in manifest {
            path.push(key);
            match (wanted, live.get(key)) {
                (Value::Null, held) => {
                    if is_set(held) {
                        patch.insert(key.clone(), Value::Null);
                    }
                }
                (Value::Object(_), Some(Value::Object(held)))
                    if self.schema.at(path) != Strategy::Replace =>
                {
                    let retains = self.schema.at(path) == Strategy::RetainKeys;
                    let below = self.items(path, map(last.get(key)), map(Some(wanted)), held, retains);
                    if !below.is_empty() {
                        patch.insert(key.clone(), below.into());
                    }
                }
                (Value::Array(wanted), Some(Value::Array(held))) => {
                    let before = last.get(key).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
                    self.lists(&mut patch, path, before, wanted, held);
                }
                (wanted, held) => {
                    let wanted = without_nulls(wanted);
                    if held != Some(&wanted) {
                        patch.insert(key.clone(), wanted);
                    }
                }
            }
            path.pop();
        }
        patch
    }

    /// Like [`Diff::maps`]. If the map retains keys, fields that the manifest lacks are removed.
    fn items<'v>(
        &self,
        path: &mut Vec<&'v str>,
        last: &'v Map<String, Value>,
        manifest: &'v Map<String, Value>,
        live: &'v Map<String, Value>,
        retains_keys: bool,
    ) -> Map<String, Value> {
        let mut patch = self.maps(path, last, manifest, live);
        let is_wanted = |key: &String| is_set(manifest.get(key));
        if retains_keys && (!patch.is_empty() || live.keys().any(|key| !is_wanted(key))) {
            let keys: Vec<Value> =
                manifest.keys().filter(|key| is_wanted(key)).map(|key| key.clone().into()).collect();
            patch.insert(RETAIN_KEYS.to_owned(), keys.into());
        }
        patch
    }

    /// Adds the changes of the list at this path.
    fn lists<'v>(
        &self,
        patch: &mut Map<String, Value>,
        path: &mut Vec<&'v str>,
        last: &'v [Value],
        manifest: &'v [Value],
        live: &'v [Value],
    ) {
        let name = path.last().copied().unwrap_or_default();
        let (key, retains_keys) = match self.schema.at(path) {
            Strategy::Items(key) => (key, false),
            Strategy::ItemsRetainingKeys(key) => (key, true),
            Strategy::Set => return sets(patch, name, last, manifest, live),
            Strategy::Default | Strategy::RetainKeys | Strategy::Replace => {
                let wanted: Vec<Value> = manifest.iter().map(without_nulls).collect();
                if wanted != live {
                    patch.insert(name.to_owned(), wanted.into());
                }
                return;
            }
        };
        if !distinct(manifest, key) || !distinct(live, key) {
            if !self.same_items(path, manifest, live) {
                let replace = [json!({ DIRECTIVE: "replace" })];
                let wanted = manifest.iter().map(without_nulls);
                patch.insert(name.to_owned(), replace.into_iter().chain(wanted).collect());
            }
            return;
        }
        let (lasts, wants, lives) = (by_key(last, key), by_key(manifest, key), by_key(live, key));
        let is_in = |items: &ItemsByKey<'_>, item: &Value| items.contains_key(&item[key].to_string());
        let mut changed: Vec<Value> = Vec::new();
        for wanted in manifest {
            let text = wanted[key].to_string();
            let Some((_, held)) = lives.get(&text).copied() else {
                changed.push(without_nulls(wanted));
                continue;
            };
            let before = map(lasts.get(&text).map(|(_, before)| *before));
            let mut item = self.items(path, before, map(Some(wanted)), map(Some(held)), retains_keys);
            if !item.is_empty() {
                item.insert(key.to_owned(), wanted[key].clone());
                changed.push(item.into());
            }
        }
        let gone = last.iter().filter(|item| !is_in(&wants, item) && is_in(&lives, item));
        changed.extend(gone.map(|item| json!({ key: item[key], DIRECTIVE: "delete" })));
        let places = manifest.iter().filter_map(|item| lives.get(&item[key].to_string()).map(|(at, _)| at));
        if changed.is_empty() && places.is_sorted() {
            return;
        }
        let order: Vec<Value> = manifest.iter().map(|item| json!({ key: item[key] })).collect();
        patch.insert(set_order_of(name), order.into());
        if !changed.is_empty() {
            patch.insert(name.to_owned(), changed.into());
        }
    }

    /// Whether a list equals the manifest's, except for fields that others and defaults added to its items.
    fn same_items<'v>(&self, path: &mut Vec<&'v str>, manifest: &'v [Value], live: &'v [Value]) -> bool {
        let none = map(None);
        let same = |(wanted, held): (&'v Value, &'v Value)| match (wanted, held) {
            (Value::Object(wanted), Value::Object(held)) => self.maps(path, none, wanted, held).is_empty(),
            (wanted, held) => wanted == held,
        };
        manifest.len() == live.len() && manifest.iter().zip(live).all(same)
    }
}

/// Items of a list by the JSON of their key, with their positions; the first one for a duplicate key.
type ItemsByKey<'v> = HashMap<String, (usize, &'v Value)>;

fn by_key<'v>(items: &'v [Value], key: &str) -> ItemsByKey<'v> {
    indexed(items, |item| item[key].to_string())
}

fn indexed(items: &[Value], key: impl Fn(&Value) -> String) -> ItemsByKey<'_> {
    let mut index = HashMap::with_capacity(items.len());
    for (at, item) in items.iter().enumerate() {
        index.entry(key(item)).or_insert((at, item));
    }
    index
}

/// Adds the changes of a set of texts or numbers.
fn sets(patch: &mut Map<String, Value>, name: &str, last: &[Value], manifest: &[Value], live: &[Value]) {
    let (wants, lives) = (indexed(manifest, Value::to_string), indexed(live, Value::to_string));
    let mut added = HashSet::new();
    let new = manifest.iter().map(|item| (item.to_string(), item));
    let new = new.filter(|(text, _)| !lives.contains_key(text) && added.insert(text.clone()));
    let new: Vec<Value> = new.map(|(_, item)| item.clone()).collect();
    let gone = last.iter().filter(|item| {
        let text = item.to_string();
        !wants.contains_key(&text) && lives.contains_key(&text)
    });
    let gone: Vec<Value> = gone.cloned().collect();
    let places = manifest.iter().filter_map(|item| lives.get(&item.to_string()).map(|(at, _)| at));
    // kubectl sorts the live list before it compares, so a sorted manifest gets no order of its own.
    let mut sorted = live.to_vec();
    sorted.sort_by_key(ToString::to_string);
    if new.is_empty() && gone.is_empty() && (places.is_sorted() || sorted == manifest) {
        return;
    }
    patch.insert(set_order_of(name), manifest.into());
    if !new.is_empty() {
        patch.insert(name.to_owned(), new.into());
    }
    if !gone.is_empty() {
        patch.insert(format!("$deleteFromPrimitiveList/{name}"), gone.into());
    }
}

/// Name of the directive with the order of a list.
fn set_order_of(name: &str) -> String {
    format!("$setElementOrder/{name}")
}

/// Whether each item has this key, with a distinct value.
fn distinct(items: &[Value], key: &str) -> bool {
    let mut seen = HashSet::with_capacity(items.len());
    items.iter().all(|item| match &item[key] {
        Value::Null => false,
        value => seen.insert(value.to_string()),
    })
}

fn is_set(value: Option<&Value>) -> bool {
    value.is_some_and(|value| !value.is_null())
}

fn map(value: Option<&Value>) -> &Map<String, Value> {
    static EMPTY: std::sync::LazyLock<Map<String, Value>> = std::sync::LazyLock::new(Map::new);
    value.and_then(Value::as_object).unwrap_or(&EMPTY)
}

/// Removes null fields, which mean absence. List items stay.
pub(super) fn without_nulls(value: &Value) -> Value {
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
