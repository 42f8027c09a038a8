//! Strict JSON parsing: the memory that a text would take is computed before any of it is built; no duplicate keys,
//! nothing after the value, and no values in error messages.
//!
//! The size of a body says little: an object with one entry takes 7 bytes as text and several hundred in memory.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Maximum number of values in a body: 1,000 accounts with 200 values each.
const MAX_VALUES: usize = 200_000;
/// Maximum depth of nested lists and objects.
const MAX_DEPTH: usize = 32;
/// Approximate size of an object without its values, in bytes: the first node of its map.
const OBJECT_BYTES: usize = 640;
/// Approximate size of a value, in bytes, with its entry in a list or map and the spare capacity there.
const VALUE_BYTES: usize = 128;

/// Why a body is not taken. Its source says what is wrong and where, and shows nothing of the values.
#[derive(Debug, thiserror::Error)]
pub(super) enum JsonError {
    #[error("the body is not JSON")]
    Malformed(#[from] serde_json::Error),
    #[error("the body may hold {} values at most; send it in several requests", MAX_VALUES)]
    TooMany,
    #[error("the body may be nested {} deep at most", MAX_DEPTH)]
    TooDeep,
}

/// Counts of what a JSON text contains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct JsonSize {
    values: usize,
    objects: usize,
    bytes: usize,
}

impl JsonSize {
    /// Approximate size in memory, in bytes.
    pub(super) fn memory(self) -> usize {
        self.bytes + self.values * VALUE_BYTES + self.objects * OBJECT_BYTES
    }
}

/// Counts what a text contains.
///
/// # Errors
/// The text is not JSON, or exceeds a limit.
pub(super) fn measure(text: &[u8]) -> Result<JsonSize, JsonError> {
    let mut found = SizeCounter { size: JsonSize { bytes: text.len(), ..JsonSize::default() }, excess: None };
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let counted = CountingVisitor { found: &mut found, left: MAX_DEPTH }.deserialize(&mut deserializer);
    match (found.excess, counted) {
        (Some(excess), _) => Err(excess),
        (None, Err(problem)) => Err(JsonError::Malformed(problem)),
        (None, Ok(())) => Ok(found.size),
    }
}

struct SizeCounter {
    size: JsonSize,
    excess: Option<JsonError>,
}

impl SizeCounter {
    fn refuse<E: Error>(&mut self, excess: JsonError) -> E {
        self.excess = Some(excess);
        E::custom("the limit of the body is exceeded")
    }
}

struct CountingVisitor<'f> {
    found: &'f mut SizeCounter,
    /// How many more levels of lists and objects are allowed below this value.
    left: usize,
}

impl CountingVisitor<'_> {
    fn deeper<E: Error>(&mut self) -> Result<usize, E> {
        self.left.checked_sub(1).ok_or_else(|| self.found.refuse(JsonError::TooDeep))
    }
}

impl<'de> DeserializeSeed<'de> for CountingVisitor<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        self.found.size.values += 1;
        if self.found.size.values > MAX_VALUES {
            return Err(self.found.refuse(JsonError::TooMany));
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for CountingVisitor<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut items: A) -> Result<(), A::Error> {
        let left = self.deeper()?;
        while items.next_element_seed(CountingVisitor { found: &mut *self.found, left })?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut entries: A) -> Result<(), A::Error> {
        let left = self.deeper()?;
        self.found.size.objects += 1;
        while entries.next_key::<IgnoredAny>()?.is_some() {
            entries.next_value_seed(CountingVisitor { found: &mut *self.found, left })?;
        }
        Ok(())
    }
}

/// Parses a body. Duplicate keys are refused.
pub(super) fn parse(bytes: &[u8]) -> Result<Value, JsonError> {
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let value = Strict.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(value)
}

/// Builds a `Value` and refuses duplicate keys, since one of the two values would be lost silently.
struct Strict;

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
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
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(Strict)? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            let value = entries.next_value_seed(Strict)?;
            if map.contains_key(&key) {
                let shown: String = key.chars().take(64).collect();
                return Err(A::Error::custom(format_args!("the key {shown:?} is given twice")));
            }
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kubesvc_runtime::telemetry::errors::chain;

    #[test]
    fn values_and_objects_are_counted_at_every_depth() {
        let size = measure(br#"{"a":[1,-2,2.5,true,null,"x"],"b":{"c":"\u0041"}}"#).expect("good");
        assert_eq!((size.values, size.objects), (10, 2));
        assert_eq!(measure(b"[]").expect("good"), JsonSize { values: 1, objects: 0, bytes: 2 });
    }

    #[test]
    fn limits_are_inclusive_and_their_errors_name_them() {
        let list = |count: usize| format!("[{}]", vec!["0"; count].join(","));
        assert!(measure(list(MAX_VALUES - 1).as_bytes()).is_ok());
        let refused = |text: &str| measure(text.as_bytes()).expect_err(text).to_string();
        assert!(refused(&list(MAX_VALUES)).contains("200000 values at most"));
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(measure(nested(MAX_DEPTH).as_bytes()).is_ok());
        assert!(refused(&nested(MAX_DEPTH + 1)).contains("nested 32 deep at most"));
        let objects = format!("{}0{}", r#"{"":"#.repeat(MAX_DEPTH + 1), "}".repeat(MAX_DEPTH + 1));
        assert!(refused(&objects).contains("nested 32 deep at most"));
        assert!(refused("{").contains("not JSON"));
    }

    #[test]
    fn memory_of_objects_includes_their_maps() {
        let small = br#"[{"":0}]"#;
        assert!(measure(small).expect("good").memory() > 50 * small.len());
    }

    #[test]
    fn valid_json_is_parsed_unchanged() {
        let text = r#"{"a":[1,-2,2.5,true,null,"x"],"b":{"c":"\u0041"}}"#;
        assert_eq!(parse(text.as_bytes()).expect("good"), serde_json::from_str::<Value>(text).expect("good"));
    }

    #[test]
    fn json_errors_contain_no_values() {
        let deep = "[".repeat(100_000);
        for text in [
            r#"{"a":"s3cret","a":"s3cret"}"#,
            r#"{"a":"s3cret"} x"#,
            r#"{"a":"s3cret""#,
            r#"["s3cret",]"#,
            r#"{"a":{"b":"s3cret","b":1}}"#,
            "\u{feff}{}",
            "",
            " ",
            &deep,
        ] {
            let problem = chain(&parse(text.as_bytes()).expect_err(text));
            assert!(!problem.contains("s3cret"), "{problem}");
        }
        assert!(parse(b"{\"a\":\"\xff\"}").is_err());
    }
}
