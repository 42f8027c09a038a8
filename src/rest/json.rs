//! Strict JSON parsing: no duplicate keys, nothing after the value, and no values in error messages.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Why a body is not taken. Its source says what is wrong and where, and shows nothing of the values.
#[derive(Debug, thiserror::Error)]
#[error("the body is not JSON")]
pub(super) struct JsonError(#[from] serde_json::Error);

/// Parses a body.
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
    use crate::telemetry::errors::chain;

    #[test]
    fn good_json_is_what_it_is() {
        let text = r#"{"a":[1,-2,2.5,true,null,"x"],"b":{"c":"\u0041"}}"#;
        assert_eq!(parse(text.as_bytes()).expect("good"), serde_json::from_str::<Value>(text).expect("good"));
    }

    #[test]
    fn what_is_refused_shows_no_value() {
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
