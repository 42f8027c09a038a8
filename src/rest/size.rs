//! How much memory a JSON text would take, counted before any of it is built.
//!
//! An object of one entry has 7 bytes as text and some hundred in memory, so the size of a body says little.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// How many values a body may hold: 1,000 accounts with 200 each.
pub(super) const MOST_VALUES: usize = 200_000;
/// How deep lists and objects may be nested.
pub(super) const DEEPEST: usize = 32;
/// About what an object takes beside its values, in bytes: the first node of its map.
const OBJECT: usize = 640;
/// About what a value takes, with its place in a list or map and what grows ahead of it, in bytes.
const VALUE: usize = 128;

/// What a JSON text holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Size {
    values: usize,
    objects: usize,
    bytes: usize,
}

impl Size {
    /// About how many bytes it takes in memory.
    pub(super) fn memory(self) -> usize {
        self.bytes + self.values * VALUE + self.objects * OBJECT
    }
}

/// Why a text is not taken.
#[derive(Debug)]
pub(super) enum Unfit {
    TooMany,
    TooDeep,
    NoJson(serde_json::Error),
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooMany => {
                write!(f, "the body may hold {MOST_VALUES} values at most; send it in several requests")
            }
            Self::TooDeep => write!(f, "the body may be nested {DEEPEST} deep at most"),
            Self::NoJson(problem) => write!(f, "the body is not JSON: {problem}"),
        }
    }
}

/// Counts what a text holds.
///
/// # Errors
/// It is no JSON, or holds more than is taken.
pub(super) fn measure(text: &[u8]) -> Result<Size, Unfit> {
    let mut found = Found { size: Size { bytes: text.len(), ..Size::default() }, excess: None };
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let counted = Counting { found: &mut found, left: DEEPEST }.deserialize(&mut deserializer);
    match (found.excess, counted) {
        (Some(excess), _) => Err(excess),
        (None, Err(problem)) => Err(Unfit::NoJson(problem)),
        (None, Ok(())) => Ok(found.size),
    }
}

struct Found {
    size: Size,
    excess: Option<Unfit>,
}

impl Found {
    fn refuse<E: Error>(&mut self, excess: Unfit) -> E {
        self.excess = Some(excess);
        E::custom("more than is taken")
    }
}

struct Counting<'f> {
    found: &'f mut Found,
    /// How many further lists and objects may be around a value.
    left: usize,
}

impl Counting<'_> {
    fn deeper<E: Error>(&mut self) -> Result<usize, E> {
        self.left.checked_sub(1).ok_or_else(|| self.found.refuse(Unfit::TooDeep))
    }
}

impl<'de> DeserializeSeed<'de> for Counting<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        self.found.size.values += 1;
        if self.found.size.values > MOST_VALUES {
            return Err(self.found.refuse(Unfit::TooMany));
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Counting<'_> {
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
        while items.next_element_seed(Counting { found: &mut *self.found, left })?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut entries: A) -> Result<(), A::Error> {
        let left = self.deeper()?;
        self.found.size.objects += 1;
        while entries.next_key::<IgnoredAny>()?.is_some() {
            entries.next_value_seed(Counting { found: &mut *self.found, left })?;
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
        assert_eq!(measure(b"[]").expect("good"), Size { values: 1, objects: 0, bytes: 2 });
    }

    #[test]
    fn more_than_is_taken_is_named_and_what_just_fits_is_taken() {
        let list = |count: usize| format!("[{}]", vec!["0"; count].join(","));
        assert!(measure(list(MOST_VALUES - 1).as_bytes()).is_ok());
        let refused = |text: &str| measure(text.as_bytes()).expect_err(text).to_string();
        assert!(refused(&list(MOST_VALUES)).contains("200000 values at most"));
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(measure(nested(DEEPEST).as_bytes()).is_ok());
        assert!(refused(&nested(DEEPEST + 1)).contains("nested 32 deep at most"));
        let objects = format!("{}0{}", r#"{"":"#.repeat(DEEPEST + 1), "}".repeat(DEEPEST + 1));
        assert!(refused(&objects).contains("nested 32 deep at most"));
        assert!(refused("{").contains("not JSON"));
    }

    #[test]
    fn an_object_weighs_what_its_map_takes() {
        let small = br#"[{"":0}]"#;
        assert!(measure(small).expect("good").memory() > 50 * small.len());
    }
}
