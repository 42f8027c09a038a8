//! Operations in protobuf's text format and in JSON.
//!
//! Both use the descriptors of `proto/operations.proto`, so that an unknown or duplicate field, or one of another type,
//! is an error that names it.

use std::mem;
use std::sync::LazyLock;

use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor};
use serde_json::Value;

use super::operation::{InvalidOperation, Operation, SettledByHand, UnreadOperation, text_of};
use crate::wire::operations as wire;

/// Paths of the text of a manifest or patch, in an operation in JSON.
const DOCUMENTS: [&str; 2] = ["/deploy/manifest/data", "/patch/body/data"];

/// Reason for which a text is not an operation.
#[derive(Debug, thiserror::Error)]
pub enum ParseError {
    /// Not the message in protobuf's text format.
    #[error("it is no {message} in protobuf's text format: {why}")]
    Text {
        /// Name of the message.
        message: &'static str,
        /// Error of the parser.
        why: String,
    },
    /// Not the message in JSON.
    #[error("it is no {message} in JSON: {why}")]
    Json {
        /// Name of the message.
        message: &'static str,
        /// Error of the parser.
        why: String,
    },
    /// Well-formed, but not a valid operation.
    #[error(transparent)]
    Invalid(#[from] InvalidOperation),
}

impl ParseError {
    /// Whether the manifest or patch is larger than [`MAX_MANIFEST_BYTES`](super::MAX_MANIFEST_BYTES).
    pub fn is_too_large(&self) -> bool {
        matches!(self, Self::Invalid(error) if error.is_too_large())
    }
}

/// Reads an operation in protobuf's text format, such as `account { name: "a" } get { target { … } }`.
pub fn operation_from_text(text: &str) -> Result<Operation, ParseError> {
    Ok(UnreadOperation::from_text(text)?.read()?)
}

impl UnreadOperation {
    /// Parses an operation in protobuf's text format, except for its manifest or patch.
    ///
    /// # Errors
    /// If the text is not an operation.
    pub fn from_text(text: &str) -> Result<Self, ParseError> {
        let message: wire::Operation = from_text(text, "Operation")?;
        Ok(Self::check(message)?)
    }

    /// Parses an operation in JSON, with names in camelCase or as in the proto, except for its manifest or patch.
    ///
    /// # Errors
    /// If the JSON is not an operation.
    pub fn from_json(mut json: Value) -> Result<Self, ParseError> {
        const MESSAGE: &str = "Operation";
        // A manifest or patch of up to 4 MiB bypasses the parser, which would copy it several times.
        let document = DOCUMENTS.iter().find_map(|document| match json.pointer_mut(document) {
            Some(Value::String(text)) => Some(mem::take(text)),
            _ => None,
        });
        let failed = |why: String| ParseError::Json { message: MESSAGE, why: without_values(&why) };
        let read =
            DynamicMessage::deserialize(descriptor(MESSAGE), &json).map_err(|e| failed(e.to_string()))?;
        let mut message: wire::Operation = read.transcode_to().map_err(|e| failed(e.to_string()))?;
        if let (Some(document), Some(verb)) = (document, &mut message.verb)
            && let Some(text) = text_of(verb)
        {
            *text = document;
        }
        Ok(Self::check(message)?)
    }
}

/// Parses a person's result in protobuf's text format, such as `op_id: "01…" status: 200`.
pub fn result_from_text(text: &str) -> Result<SettledByHand, ParseError> {
    let message: wire::OperationResult = from_text(text, "OperationResult")?;
    Ok(SettledByHand::check(message)?)
}

fn from_text<M: prost::Message + Default>(text: &str, message: &'static str) -> Result<M, ParseError> {
    let failed = |why: String| ParseError::Text { message, why: without_values(&why) };
    let read =
        DynamicMessage::parse_text_format(descriptor(message), text).map_err(|e| failed(e.to_string()))?;
    read.transcode_to().map_err(|e| failed(e.to_string()))
}

/// Error of a parser without the text it found, which may be a part of a manifest, and so of a Secret.
fn without_values(why: &str) -> String {
    // A single character, in quotation marks, is punctuation or a digit.
    let why = match why.split_once(", but found '") {
        Some((expected, found)) if found.len() > 2 => expected,
        _ => why,
    };
    match (why.find('"'), why.rfind('"')) {
        (Some(first), Some(last)) => format!("{}\"…\"{}", &why[..first], &why[last + 1..]),
        _ => why.to_owned(),
    }
}

pub(super) fn descriptor(message: &str) -> MessageDescriptor {
    static POOL: LazyLock<DescriptorPool> =
        LazyLock::new(|| DescriptorPool::decode(wire::DESCRIPTORS).expect("the build wrote the descriptors"));
    POOL.get_message_by_name(&format!("operations.{message}")).expect("a message of the proto")
}
