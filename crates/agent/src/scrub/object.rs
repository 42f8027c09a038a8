//! An object as the cluster sent it, and whether its bytes are JSON.

use std::fmt;

use serde::de::IgnoredAny;

use crate::scrub::json::{Entries, leading_space};

/// Why the body of an object cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    #[error("byte {at} is not valid UTF-8")]
    InvalidUtf8 {
        /// Offset in bytes.
        at: usize,
    },
    #[error("it is not valid JSON at line {line}, column {column}")]
    InvalidJson {
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
    },
    #[error("it is no JSON object")]
    NotAnObject,
    #[error("it is nested {depth} levels deep, and at most {max} are read")]
    TooDeep {
        depth: usize,
        /// Maximum number of levels.
        max: usize,
    },
    #[error("it has a number of {length} bytes, and at most {max} are read")]
    NumberTooLong {
        /// Length of the number, in bytes.
        length: usize,
        /// Maximum length, in bytes.
        max: usize,
    },
    /// It has half of a surrogate pair.
    #[error("a key of it is no text")]
    BadKey,
    /// A member has another type than Kubernetes gives it, or a key that is no text.
    #[error("{0} has another type than in Kubernetes")]
    WrongType(&'static str),
    #[error("the label or annotation {key:?} is no text without NUL")]
    BadMetaValue { key: String },
    #[error("it has more than {max} bytes of labels and annotations that are sent apart from the body")]
    TooMuchMeta {
        /// Maximum size, in bytes.
        max: usize,
    },
    /// An owner reference lacks a kind or name, or its text cannot be stored.
    #[error("owner reference {index} has no usable apiVersion, kind, name and uid")]
    BadOwner {
        /// Position in the list, from 0.
        index: usize,
    },
    #[error("it has more than {max} owner references")]
    TooManyOwners { max: usize },
}

/// The bytes of one object, from a list or a watch.
#[derive(Clone)]
pub struct RawObject<'a> {
    bytes: &'a [u8],
    /// Why the bytes are no JSON object, if they are not.
    problem: Option<BodyError>,
}

impl<'a> RawObject<'a> {
    /// Checks whether the bytes are one JSON object. That is done once for each object.
    pub fn read(bytes: &'a [u8]) -> Self {
        Self { bytes, problem: check(bytes).err() }
    }

    /// An object that is known to be JSON.
    pub(super) fn known_json(text: &'a str) -> Self {
        let problem = (!text.starts_with('{')).then_some(BodyError::NotAnObject);
        Self { bytes: text.as_bytes(), problem }
    }

    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Why the bytes are no JSON object, if they are not.
    pub fn problem(&self) -> Option<&BodyError> {
        self.problem.as_ref()
    }

    /// The members, as far as they can be told apart.
    pub(super) fn members(&self) -> Entries<'a> {
        Entries::members(self.bytes, leading_space(self.bytes))
    }
}

impl fmt::Debug for RawObject<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the bytes: they may hold a Secret.
        f.debug_struct("RawObject")
            .field("bytes", &self.bytes.len())
            .field("problem", &self.problem)
            .finish_non_exhaustive()
    }
}

fn check(bytes: &[u8]) -> Result<(), BodyError> {
    let text =
        std::str::from_utf8(bytes).map_err(|error| BodyError::InvalidUtf8 { at: error.valid_up_to() })?;
    let json: Result<IgnoredAny, _> = serde_json::from_str(text);
    // The error's text is not kept: it may quote the body.
    json.map_err(|error| BodyError::InvalidJson { line: error.line(), column: error.column() })?;
    if bytes.get(leading_space(bytes)) == Some(&b'{') { Ok(()) } else { Err(BodyError::NotAnObject) }
}
