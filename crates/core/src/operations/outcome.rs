//! Answers of the API server to a program, and outcomes of programs.

use std::fmt;
use std::time::Duration;

use serde_json::Value;

/// An answer of the API server.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ApiAnswer {
    /// HTTP status.
    pub status: u16,
    /// Body. It may hold a Secret.
    pub body: Vec<u8>,
    /// Value of `Retry-After`.
    pub retry_after: Option<Duration>,
}

impl fmt::Debug for ApiAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} bytes)", self.status, self.body.len())
    }
}

impl ApiAnswer {
    pub(super) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// The body as JSON, or a failure if it is not JSON.
    pub(super) fn json(&self) -> Result<Value, Outcome> {
        serde_json::from_slice(&self.body).map_err(|_| {
            let message = "the API server answered with something that is not JSON".to_owned();
            Outcome::failed(502, OutcomeClass::Internal, message)
        })
    }

    /// The body of a success as JSON, or the outcome of a refusal.
    pub(super) fn object(&self) -> Result<Value, Outcome> {
        if self.is_success() { self.json() } else { Err(Outcome::refused(self)) }
    }
}

/// End of an operation.
#[derive(Clone, PartialEq)]
pub struct Outcome {
    /// HTTP status, the API server's if it answered.
    pub status: u16,
    /// Result of the operation.
    pub body: OutcomeBody,
    /// Failure, if any.
    pub failure: Option<OutcomeFailure>,
}

/// Result of an operation.
#[derive(Clone, PartialEq)]
pub enum OutcomeBody {
    /// No body.
    Empty,
    /// JSON.
    Json(Value),
    /// A text that may be truncated.
    Text {
        /// The text.
        text: String,
        /// Whether it was truncated at the operation's limit.
        cut: bool,
    },
}

impl fmt::Debug for OutcomeBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("nothing"),
            Self::Json(_) => f.write_str("JSON (redacted)"),
            Self::Text { text, cut } => write!(f, "text of {} bytes (redacted), cut: {cut}", text.len()),
        }
    }
}

impl fmt::Debug for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?} {:?}", self.status, self.failure, self.body)
    }
}

/// Failure of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutcomeFailure {
    /// Class of the failure.
    pub class: OutcomeClass,
    /// Cause and remedy, at most 1 KiB.
    pub message: String,
}

/// Class of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutcomeClass {
    /// The cluster rejected the credential.
    Auth,
    /// The credential lacks a permission.
    Forbidden,
    /// The object or kind does not exist.
    NotFound,
    /// Another writer was faster, or manages the fields.
    Conflict,
    /// The API server refused the request.
    Invalid,
    /// A time limit expired.
    Timeout,
    /// The answer or the object is too large.
    TooLarge,
    /// The API server, or the connection to it, failed.
    Internal,
    /// The API server was overloaded for as long as the operation could wait.
    Overloaded,
    /// The operation may or may not have been executed.
    OutcomeUnknown,
}

impl OutcomeClass {
    /// Name for callers.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auth => "AUTH",
            Self::Forbidden => "FORBIDDEN",
            Self::NotFound => "NOT_FOUND",
            Self::Conflict => "CONFLICT",
            Self::Invalid => "INVALID",
            Self::Timeout => "TIMEOUT",
            Self::TooLarge => "TOO_LARGE",
            Self::Internal => "INTERNAL",
            Self::Overloaded => "OVERLOADED",
            Self::OutcomeUnknown => "OUTCOME_UNKNOWN",
        }
    }

    /// Class of an HTTP status.
    pub fn of_status(status: u16) -> Self {
        match status {
            401 => Self::Auth,
            403 => Self::Forbidden,
            404 | 410 => Self::NotFound,
            409 => Self::Conflict,
            413 => Self::TooLarge,
            408 | 504 => Self::Timeout,
            400..=499 => Self::Invalid,
            _ => Self::Internal,
        }
    }
}

/// Maximum length of a failure's message, in bytes.
const MAX_MESSAGE: usize = 1024;

/// Length of the beginning that a truncated message keeps, in bytes. The reason of a refusal often follows a dump of
/// the refused object.
const MESSAGE_BEGINNING: usize = 448;

/// Truncates a message to [`MAX_MESSAGE`] bytes: keeps its beginning and end, and notes the omission.
fn without_middle(message: String) -> String {
    if message.len() <= MAX_MESSAGE {
        return message;
    }
    let note = |bytes: usize| format!(" […{bytes} bytes left out…] ");
    let room = MAX_MESSAGE - MESSAGE_BEGINNING - note(message.len()).len();
    let beginning = message.floor_char_boundary(MESSAGE_BEGINNING);
    let end = message.ceil_char_boundary(message.len() - room);
    format!("{}{}{}", &message[..beginning], note(end - beginning), &message[end..])
}

impl Outcome {
    /// A success with this body.
    pub fn done(status: u16, body: OutcomeBody) -> Self {
        Self { status, body, failure: None }
    }

    /// A failure.
    pub fn failed(status: u16, class: OutcomeClass, message: impl Into<String>) -> Self {
        let message = without_middle(message.into());
        Self { status, body: OutcomeBody::Empty, failure: Some(OutcomeFailure { class, message }) }
    }

    /// The API server's refusal, in its own words.
    pub fn refused(answer: &ApiAnswer) -> Self {
        let said: Option<Value> = serde_json::from_slice(&answer.body).ok();
        let said =
            said.as_ref().and_then(|status| status["message"].as_str()).filter(|said| !said.is_empty());
        let message = said.map_or_else(
            || format!("the API server answered {} without saying why", answer.status),
            str::to_owned,
        );
        let status = if answer.status < 400 { 502 } else { answer.status };
        Self::failed(status, OutcomeClass::of_status(status), message)
    }

    /// Outcome with the object of an answer, or the API server's refusal.
    pub(super) fn of(answer: &ApiAnswer) -> Self {
        match answer.object() {
            Ok(object) => Self::done(answer.status, OutcomeBody::Json(object)),
            Err(refused) => refused,
        }
    }
}
