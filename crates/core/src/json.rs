//! JSON none of whose mappings has a key twice, since of two values one would be lost silently; and the patch between
//! two values.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Maximum length of a key that a message repeats, in characters.
const MAX_QUOTED: usize = 64;

/// The JSON merge patch between two objects: removed keys are null, equal ones are left out.
pub fn merge_patch(old: &Value, new: &Value) -> Map<String, Value> {
    let empty = Map::new();
    let (old, new) = (old.as_object().unwrap_or(&empty), new.as_object().unwrap_or(&empty));
    let mut patch: Map<String, Value> =
        old.keys().filter(|key| !new.contains_key(*key)).map(|key| (key.clone(), Value::Null)).collect();
    for (key, value) in new {
        match old.get(key) {
            Some(before) if before == value => {}
            Some(before) if before.is_object() && value.is_object() => {
                patch.insert(key.clone(), Value::Object(merge_patch(before, value)));
            }
            _ => {
                patch.insert(key.clone(), value.clone());
            }
        }
    }
    patch
}

/// Reads a value within limits, and refuses keys that a mapping has twice.
#[derive(Clone, Copy, Debug)]
pub struct UniqueKeys<'l> {
    /// Number of values that may still follow, this one included.
    pub values: &'l Cell<usize>,
    /// Levels of lists and mappings that may still follow.
    pub depth: usize,
}

impl UniqueKeys<'_> {
    fn deeper<E: Error>(self) -> Result<Self, E> {
        let depth =
            self.depth.checked_sub(1).ok_or_else(|| E::custom("lists and mappings are nested too deep"));
        Ok(Self { depth: depth?, ..self })
    }
}

/// Text of the error about a key that a mapping has twice.
pub(crate) fn duplicate_key(key: &str) -> String {
    let key: String = key.chars().take(MAX_QUOTED).collect();
    format!("the key {key:?} is there a second time in its mapping: keep one of them")
}

impl<'de> DeserializeSeed<'de> for UniqueKeys<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        let left =
            self.values.get().checked_sub(1).ok_or_else(|| D::Error::custom("there are too many values"));
        self.values.set(left?);
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for UniqueKeys<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value of JSON")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        from.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Value, A::Error> {
        let (below, mut items) = (self.deeper()?, Vec::new());
        while let Some(item) = from.next_element_seed(below)? {
            items.push(item);
        }
        Ok(items.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Value, A::Error> {
        let (below, mut map) = (self.deeper()?, Map::new());
        while let Some(key) = from.next_key::<String>()? {
            if map.contains_key(&key) {
                return Err(A::Error::custom(duplicate_key(&key)));
            }
            let value = from.next_value_seed(below)?;
            map.insert(key, value);
        }
        Ok(map.into())
    }
}
