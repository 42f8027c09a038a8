//! The memory that a JSON text would take, computed before any of it is built.
//!
//! The size of a body says little: an object with one entry takes 7 bytes as text and several hundred in memory.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// Maximum number of values in a body: 1,000 accounts with 200 values each.
pub(super) const MAX_VALUES: usize = 200_000;
/// Maximum depth of nested lists and objects.
pub(super) const MAX_DEPTH: usize = 32;
/// Approximate size of an object without its values, in bytes: the first node of its map.
const OBJECT_BYTES: usize = 640;
/// Approximate size of a value, in bytes, with its entry in a list or map and the spare capacity there.
const VALUE_BYTES: usize = 128;

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

/// Why a text is refused.
#[derive(Debug)]
pub(super) enum JsonSizeError {
    TooMany,
    TooDeep,
    NoJson(serde_json::Error),
}

impl fmt::Display for JsonSizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooMany => {
                write!(f, "the body may hold {MAX_VALUES} values at most; send it in several requests")
            }
            Self::TooDeep => write!(f, "the body may be nested {MAX_DEPTH} deep at most"),
            Self::NoJson(problem) => write!(f, "the body is not JSON: {problem}"),
        }
    }
}

/// Counts what a text contains.
///
/// # Errors
/// The text is not JSON, or exceeds a limit.
pub(super) fn measure(text: &[u8]) -> Result<JsonSize, JsonSizeError> {
    let mut found = SizeCounter { size: JsonSize { bytes: text.len(), ..JsonSize::default() }, excess: None };
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let counted = CountingVisitor { found: &mut found, left: MAX_DEPTH }.deserialize(&mut deserializer);
    match (found.excess, counted) {
        (Some(excess), _) => Err(excess),
        (None, Err(problem)) => Err(JsonSizeError::NoJson(problem)),
        (None, Ok(())) => Ok(found.size),
    }
}

struct SizeCounter {
    size: JsonSize,
    excess: Option<JsonSizeError>,
}

impl SizeCounter {
    fn refuse<E: Error>(&mut self, excess: JsonSizeError) -> E {
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
        self.left.checked_sub(1).ok_or_else(|| self.found.refuse(JsonSizeError::TooDeep))
    }
}

impl<'de> DeserializeSeed<'de> for CountingVisitor<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        self.found.size.values += 1;
        if self.found.size.values > MAX_VALUES {
            return Err(self.found.refuse(JsonSizeError::TooMany));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_and_objects_are_counted_at_every_depth() {
        let size = measure(br#"{"a":[1,-2,2.5,true,null,"x"],"b":{"c":"\u0041"}}"#).expect("good");
        assert_eq!((size.values, size.objects), (10, 2));
        assert_eq!(measure(b"[]").expect("good"), JsonSize { values: 1, objects: 0, bytes: 2 });
    }

    #[test]
    fn more_than_is_taken_is_named_and_what_just_fits_is_taken() {
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
    fn an_object_weighs_what_its_map_takes() {
        let small = br#"[{"":0}]"#;
        assert!(measure(small).expect("good").memory() > 50 * small.len());
    }
}
