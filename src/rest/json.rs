//! Strict JSON: an upper bound of the memory that a text would take, before any of it is built; no duplicate keys, nothing after
//! the value, and no values in error messages.
//!
//! The size of a body says little: an object with one entry takes 7 bytes as text and several hundred in memory.

use std::cell::Cell;

use kubesvc_core::json::UniqueKeys;
use serde::de::DeserializeSeed as _;
use serde_json::Value;

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
    Malformed(#[source] serde_json::Error),
    #[error(
        "the body may have {MAX_VALUES} values, nested {MAX_DEPTH} deep, and each key once in its object"
    )]
    Refused(#[source] serde_json::Error),
}

/// Upper bound of the memory that the value of a text takes, in bytes. Separators within strings count too.
pub(super) fn memory_bound(text: &[u8]) -> usize {
    let of_byte = |byte: &u8| match byte {
        b'{' => VALUE_BYTES + OBJECT_BYTES,
        b'[' | b',' => VALUE_BYTES,
        _ => 0,
    };
    // More values are refused as they are read.
    let most = MAX_VALUES * (VALUE_BYTES + OBJECT_BYTES);
    text.len() + VALUE_BYTES + text.iter().map(of_byte).sum::<usize>().min(most)
}

/// Parses a body.
pub(super) fn parse(bytes: &[u8]) -> Result<Value, JsonError> {
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let value =
        UniqueKeys { values: &Cell::new(MAX_VALUES), depth: MAX_DEPTH }.deserialize(&mut deserializer);
    let value = value.and_then(|value| deserializer.end().map(|()| value));
    value.map_err(
        |error| if error.is_data() { JsonError::Refused(error) } else { JsonError::Malformed(error) },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use kubesvc_runtime::telemetry::errors::chain;

    #[test]
    fn limits_are_inclusive_and_their_error_names_them() {
        let list = |count: usize| format!("[{}]", vec!["0"; count].join(","));
        assert!(parse(list(MAX_VALUES - 1).as_bytes()).is_ok());
        let refused = |text: &str| chain(&parse(text.as_bytes()).expect_err("it is refused"));
        let many = refused(&list(MAX_VALUES));
        assert!(many.contains("may have 200000 values") && many.contains("too many values"), "{many}");
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(parse(nested(MAX_DEPTH).as_bytes()).is_ok());
        let objects = format!("{}0{}", r#"{"":"#.repeat(MAX_DEPTH + 1), "}".repeat(MAX_DEPTH + 1));
        for deep in [nested(MAX_DEPTH + 1), objects] {
            let deep = refused(&deep);
            assert!(deep.contains("nested 32 deep") && deep.contains("too deep"), "{deep}");
        }
        assert!(refused("{").contains("not JSON"));
    }

    #[test]
    fn memory_of_objects_includes_their_maps() {
        let small = br#"[{"":0}]"#;
        assert!(memory_bound(small) > 50 * small.len());
        let text = "x".repeat(1_000_000);
        assert!(memory_bound(text.as_bytes()) < 1_001_000);
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
