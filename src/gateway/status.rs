//! Errors as Kubernetes' Status.
//!
//! Callers read texts: Clouddriver takes "forbidden" and "NotFound" in one for the answer of the cluster. A text about
//! the way to the cluster has neither.

use http::{HeaderValue, Response, StatusCode};
use serde_json::{Value, json};

use super::Body;
use crate::access::{AccessError, TooManyHeads, TooManyOfCaller};
use crate::connected_agents::{RequestError, Retry};
use kubesvc_runtime::listen::bodies::UnreadBody;
use kubesvc_runtime::listen::refused_heads::MAX_HEAD_BYTES;

/// A call that is refused, or that has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) code: StatusCode,
    pub(super) message: String,
    /// Whether the caller should try again in a second. It certainly changed nothing.
    retries: bool,
}

impl Refusal {
    pub(super) fn new(code: StatusCode, message: impl Into<String>) -> Self {
        let retries = code == StatusCode::TOO_MANY_REQUESTS;
        Self { code, message: about_the_way(&message.into()), retries }
    }

    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    pub(super) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, message)
    }

    pub(super) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, message)
    }

    pub(super) fn method_not_allowed() -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "this path does not take this method")
    }

    pub(super) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, message)
    }

    pub(super) fn too_large(message: impl Into<String>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, message)
    }

    pub(super) fn too_many(message: impl Into<String>) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, message)
    }

    /// The refusal of a head that is too large.
    pub(super) fn too_large_head() -> Self {
        let why = format!(
            "the head of the request has more than {MAX_HEAD_BYTES} bytes; send fewer or shorter headers"
        );
        Self::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, why)
    }

    /// The body of its answer.
    pub(super) fn of_head() -> String {
        Self::too_large_head().status().to_string()
    }

    /// `reason` of the Status.
    fn reason(&self) -> &'static str {
        match self.code {
            StatusCode::BAD_REQUEST => "BadRequest",
            StatusCode::UNAUTHORIZED => "Unauthorized",
            StatusCode::FORBIDDEN => "Forbidden",
            StatusCode::NOT_FOUND => "NotFound",
            StatusCode::METHOD_NOT_ALLOWED => "MethodNotAllowed",
            StatusCode::NOT_ACCEPTABLE => "NotAcceptable",
            StatusCode::PAYLOAD_TOO_LARGE | StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => {
                "RequestEntityTooLarge"
            }
            StatusCode::TOO_MANY_REQUESTS => "TooManyRequests",
            StatusCode::SERVICE_UNAVAILABLE => "ServiceUnavailable",
            StatusCode::REQUEST_TIMEOUT | StatusCode::GATEWAY_TIMEOUT => "Timeout",
            _ => "InternalError",
        }
    }

    /// The object that says it.
    fn status(&self) -> Value {
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason(),
            "code": self.code.as_u16(),
        });
        if self.retries {
            status["details"] = json!({"retryAfterSeconds": 1});
        }
        status
    }

    /// The answer that the caller gets.
    pub(super) fn response(self) -> Response<Body> {
        let mut response = super::json(self.code, &self.status());
        if self.retries {
            response.headers_mut().insert(http::header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

impl From<AccessError> for Refusal {
    fn from(error: AccessError) -> Self {
        let retries = matches!(error, AccessError::Busy);
        Self { retries, ..Self::new(error.status(), error.to_string()) }
    }
}

impl From<TooManyHeads> for Refusal {
    fn from(error: TooManyHeads) -> Self {
        Self { retries: true, ..Self::unavailable(error.to_string()) }
    }
}

impl From<UnreadBody> for Refusal {
    fn from(error: UnreadBody) -> Self {
        let retries = matches!(error, UnreadBody::NoRoom(_));
        Self { retries, ..Self::new(error.status(), error.to_string()) }
    }
}

impl From<TooManyOfCaller> for Refusal {
    fn from(error: TooManyOfCaller) -> Self {
        Self::too_many(error.to_string())
    }
}

impl From<RequestError> for Refusal {
    fn from(error: RequestError) -> Self {
        let refusal = Self::new(error.status(), error.message);
        Self { retries: refusal.retries || error.retry == Retry::Later, ..refusal }
    }
}

/// The same text without the words by which callers recognise an answer of the cluster.
fn about_the_way(text: &str) -> String {
    const WORDS: [(&str, &str); 3] =
        [("forbidden", "refused"), ("notfound", "missing"), ("not found", "missing")];
    WORDS.iter().fold(text.to_owned(), |text, (word, other)| {
        let (mut replaced, mut rest) = (String::with_capacity(text.len()), 0);
        for (at, _) in text.to_ascii_lowercase().match_indices(word) {
            replaced.push_str(&text[rest..at]);
            replaced.push_str(other);
            rest = at + word.len();
        }
        replaced + &text[rest..]
    })
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;
    use crate::connected_agents::RequestErrorKind as Kind;

    async fn said(refusal: impl Into<Refusal>) -> (u16, Value, bool) {
        let response = refusal.into().response();
        let (code, retries) = (response.status().as_u16(), response.headers().contains_key("retry-after"));
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        (code, serde_json::from_slice(&body).expect("JSON"), retries)
    }

    fn no_agent(is_expected: bool) -> RequestError {
        RequestError::no_agent("prod", &"east".into(), is_expected)
    }

    #[tokio::test]
    async fn a_caller_retries_only_what_was_not_done_and_can_soon_be() {
        let error = |kind, retry| RequestError::new(kind, "so").then(retry);
        for (error, code, reason, retries) in [
            (RequestError::no_account(), 503, "ServiceUnavailable", false),
            (no_agent(true), 503, "ServiceUnavailable", true),
            (no_agent(false), 503, "ServiceUnavailable", false),
            (error(Kind::TooMany, Retry::Never), 429, "TooManyRequests", true),
            (RequestError::unknown("lost"), 504, "Timeout", false),
            (error(Kind::Timeout, Retry::Never), 504, "Timeout", false),
            (error(Kind::NoAnswer, Retry::Later), 503, "ServiceUnavailable", true),
            (error(Kind::NoAnswer, Retry::Elsewhere), 503, "ServiceUnavailable", false),
            (error(Kind::NotSent, Retry::Later), 503, "ServiceUnavailable", true),
            (error(Kind::NotSent, Retry::Elsewhere), 503, "ServiceUnavailable", false),
            (error(Kind::Forbidden, Retry::Never), 403, "Forbidden", false),
            (error(Kind::TooLarge, Retry::Never), 413, "RequestEntityTooLarge", false),
        ] {
            let (answered, status, may_retry) = said(error.clone()).await;
            assert_eq!(
                (answered, &status["reason"], may_retry),
                (code, &json!(reason), retries),
                "{error:?}"
            );
            assert_eq!(status["kind"], "Status");
            assert_eq!(status["code"], code);
        }
    }

    #[test]
    fn words_of_the_clusters_are_replaced_wherever_and_however_often_they_are() {
        for (text, expected) in [
            ("", ""),
            ("forbiddenFORBIDDEN", "refusedrefused"),
            ("forforbiddenbidden, é notfound", "forrefusedbidden, é missing"),
            ("Not FoundNotFound not", "missingmissing not"),
        ] {
            assert_eq!(about_the_way(text), expected);
        }
        let many = about_the_way(&"forbidden".repeat(60_000));
        assert_eq!(many, "refused".repeat(60_000));
    }

    #[tokio::test]
    async fn a_text_about_the_way_is_not_taken_for_the_clusters_answer() {
        let (_, status, _) =
            said(Refusal::unavailable("Forbidden: x is forbidden; pod NotFound, Not Found")).await;
        let message = status["message"].as_str().expect("a text").to_lowercase();
        assert!(!message.contains("forbidden") && !message.contains("found"), "{message}");
    }
}
