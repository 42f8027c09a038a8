//! Results of operations, as REST shows them.

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::operations::EndedOperation;
use kubesvc_core::operations::OutcomeBody;

/// The result of an operation, or only its id while it runs.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct OperationResultView {
    /// Id of the operation.
    operation_id: String,
    /// HTTP status of the account's API server; 504 where the outcome is unknown. Left out while the operation runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    /// Time that the operation took, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_ms: Option<i64>,
    /// What the operation returns: an object, a list, or the text of a log.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Object)]
    body: Option<Value>,
    /// Whether the text in `body` was cut.
    #[serde(skip_serializing_if = "Option::is_none")]
    cut: Option<bool>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<OperationFailureView>,
    /// What the API server warns of, such as a version that is deprecated.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

/// Why an operation failed.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct OperationFailureView {
    /// `AUTH`, `FORBIDDEN`, `NOT_FOUND`, `CONFLICT`, `INVALID`, `TIMEOUT`, `TOO_LARGE`, `INTERNAL`, `OVERLOADED` or
    /// `OUTCOME_UNKNOWN`.
    class: &'static str,
    /// What went wrong.
    message: String,
    /// Whether certainly nothing was executed.
    before_send: bool,
}

impl OperationResultView {
    /// An operation that runs.
    pub(super) fn open(id: &str) -> Self {
        Self {
            operation_id: id.to_owned(),
            status: None,
            duration_ms: None,
            body: None,
            cut: None,
            failure: None,
            warnings: Vec::new(),
        }
    }

    /// An operation that ended.
    pub(super) fn ended(id: &str, ended: &EndedOperation) -> Self {
        let (body, cut) = match &ended.body {
            OutcomeBody::Empty => (None, None),
            OutcomeBody::Json(body) => (Some(body.clone()), None),
            OutcomeBody::Text { text, cut } => (Some(Value::String(text.clone())), Some(*cut)),
        };
        let failure = ended.failure.as_ref().map(|failure| OperationFailureView {
            class: failure.class.as_str(),
            message: failure.message.clone(),
            before_send: ended.before_send,
        });
        let (status, duration_ms) = (Some(ended.status), Some(ended.duration_ms));
        let warnings = ended.warnings.clone();
        Self { status, duration_ms, body, cut, failure, warnings, ..Self::open(id) }
    }
}
