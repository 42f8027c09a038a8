//! Errors of requests to the API server, and their classes.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::time::Duration;

use kube::Resource;
use kube::core::Status;

/// Pause if an overloaded API server does not name one.
const DEFAULT_PAUSE: Duration = Duration::from_secs(1);

/// What a caller can do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// No usable answer, or the creation of an object collided with another write, for instance of a quota. The same
    /// request may succeed later. Whether a write took effect is unknown, unless [`KubeError::had_no_effect`].
    Retry,
    /// The object exists already, or has another version. Read it again before deciding.
    Conflict,
    /// The object itself does not exist.
    Gone,
    /// The API server rejects the object as it is; only another object can be accepted.
    Invalid,
    /// The request is not allowed, or its namespace or kind does not exist.
    Refused,
}

impl ErrorClass {
    /// Label of the class in metrics.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Conflict => "conflict",
            Self::Gone => "gone",
            Self::Invalid => "invalid",
            Self::Refused => "refused",
        }
    }
}

/// A request, as RBAC and people name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubeRequest {
    /// RBAC verb.
    pub verb: &'static str,
    /// Kind of the object.
    pub kind: Cow<'static, str>,
    /// Plural of the kind.
    pub plural: Cow<'static, str>,
    /// API group; empty for the core group.
    pub group: Cow<'static, str>,
    /// Namespace; empty for all namespaces or none.
    pub namespace: String,
    /// Name of the object; empty for a list.
    pub name: String,
}

impl KubeRequest {
    /// Names a request about an object of kind `K`.
    pub fn of<K: Resource<DynamicType = ()>>(verb: &'static str, namespace: &str, name: &str) -> Self {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        Self { verb, kind: K::kind(&()), plural: K::plural(&()), group: K::group(&()), namespace, name }
    }
}

impl fmt::Display for KubeRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.kind)?;
        match (self.namespace.as_str(), self.name.as_str()) {
            ("", "") => Ok(()),
            ("", one) => write!(f, " {one}"),
            (namespace, "") => write!(f, " in namespace {namespace}"),
            (namespace, name) => write!(f, " {namespace}/{name}"),
        }
    }
}

/// Why a request failed.
pub enum KubeCause {
    /// The API server answered with this status.
    Status(Box<Status>),
    /// No answer came within the time limit.
    NoAnswer(Duration),
    /// The API server could not be reached, or its answer could not be read.
    Unreachable(Box<kube::Error>),
    /// The request was not sent: too many others were under way for this long.
    Busy {
        /// Maximum number of concurrent requests.
        limit: usize,
        /// How long the request waited.
        waited: Duration,
    },
}

/// A failed request.
pub struct KubeError {
    request: Box<KubeRequest>,
    cause: KubeCause,
    /// Whether the answer may contain a secret.
    is_secret: bool,
}

impl KubeError {
    pub(super) fn new(request: KubeRequest, cause: KubeCause) -> Self {
        let is_secret = request.plural == "secrets";
        Self { request: Box::new(request), cause, is_secret }
    }

    /// The same error without the message of the API server, as if it were about a Secret.
    #[must_use]
    pub fn without_message(self) -> Self {
        Self { is_secret: true, ..self }
    }

    /// The error of a request that the client could not complete.
    pub fn of(request: KubeRequest, error: kube::Error) -> Self {
        let cause = match error {
            kube::Error::Api(status) => KubeCause::Status(status),
            error => KubeCause::Unreachable(Box::new(error)),
        };
        Self::new(request, cause)
    }

    /// What the caller can do about it.
    pub fn class(&self) -> ErrorClass {
        let KubeCause::Status(status) = &self.cause else { return ErrorClass::Retry };
        match status.code {
            409 if self.request.verb == "create" && status.reason != "AlreadyExists" => ErrorClass::Retry,
            409 => ErrorClass::Conflict,
            404 if status.reason == "NotFound" && self.is_about_object() => ErrorClass::Gone,
            400 | 413 | 422 => ErrorClass::Invalid,
            429 => ErrorClass::Retry,
            400..=499 => ErrorClass::Refused,
            _ => ErrorClass::Retry,
        }
    }

    /// Whether the state that the request was based on is outdated: the object has another version, exists already, or
    /// is gone.
    pub fn is_stale(&self) -> bool {
        matches!(self.class(), ErrorClass::Conflict | ErrorClass::Gone)
    }

    /// Whether the request certainly had no effect.
    pub fn had_no_effect(&self) -> bool {
        match &self.cause {
            KubeCause::Status(status) => (400..=499).contains(&status.code) && status.code != 429,
            KubeCause::Busy { .. } => true,
            KubeCause::NoAnswer(_) | KubeCause::Unreachable(_) => false,
        }
    }

    /// The request.
    pub fn request(&self) -> &KubeRequest {
        &self.request
    }

    /// Why it failed.
    pub fn cause(&self) -> &KubeCause {
        &self.cause
    }

    /// The HTTP status code of the answer.
    pub fn code(&self) -> Option<u16> {
        self.any_status().map(|status| status.code)
    }

    /// The reason of the answer, in CamelCase; empty if there is none.
    pub fn reason(&self) -> &str {
        self.any_status().map(|status| status.reason.as_str()).unwrap_or_default()
    }

    /// The answer, unless it may contain a secret.
    pub fn status(&self) -> Option<&Status> {
        self.any_status().filter(|_| !self.is_secret)
    }

    /// Whether the message of the answer contains `text`.
    pub fn mentions(&self, text: &str) -> bool {
        self.any_status().is_some_and(|status| status.message.contains(text))
    }

    /// Whether the answer is about the namespace rather than the object.
    pub fn is_about_namespace(&self) -> bool {
        let details = self.any_status().and_then(|status| status.details.as_ref());
        details.is_some_and(|details| details.kind == "namespaces")
    }

    /// Whether the answer names the object. An answer about a missing namespace or kind does not.
    fn is_about_object(&self) -> bool {
        let details = self.any_status().and_then(|status| status.details.as_ref());
        let is_named = details.is_some_and(|details| details.name == self.request.name);
        let is_of_kind = !self.is_about_namespace() || self.request.plural == "namespaces";
        is_named && is_of_kind && !self.request.name.is_empty()
    }

    /// Code, reason and rejected fields of the answer, without any value of the request; otherwise like [`Self::why`].
    pub fn refusal(&self) -> String {
        let Some(status) = self.any_status() else { return self.why() };
        let causes = status.details.iter().flat_map(|details| &details.causes);
        let fields: Vec<&str> = causes.map(|cause| cause.field.as_str()).collect();
        let fields = if fields.is_empty() { String::new() } else { format!(" ({})", fields.join(", ")) };
        format!("{} {}{fields}", status.code, status.reason)
    }

    /// Why it failed, without the request. Of a Secret, without the message of the API server.
    pub fn why(&self) -> String {
        match (&self.cause, self.status()) {
            (KubeCause::Status(status), None) => {
                format!("the API server answered {} {}", status.code, status.reason)
            }
            (KubeCause::Status(_), Some(status)) => {
                format!("the API server answered {} {}: {}", status.code, status.reason, status.message)
            }
            (KubeCause::NoAnswer(timeout), _) => {
                format!("the API server does not answer within {timeout:?}")
            }
            (KubeCause::Unreachable(_), _) => "the API server cannot be reached".to_owned(),
            (KubeCause::Busy { limit, waited }, _) => {
                format!("{limit} requests to the API server are under way, and none ended within {waited:?}")
            }
        }
    }

    /// How long the API server asks clients to pause; `None` if it does not.
    pub(super) fn pause(&self) -> Option<Duration> {
        let status = self.any_status().filter(|status| status.code == 429)?;
        let seconds = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
        Some(if seconds == 0 { DEFAULT_PAUSE } else { Duration::from_secs(seconds.into()) })
    }

    fn any_status(&self) -> Option<&Status> {
        match &self.cause {
            KubeCause::Status(status) => Some(status),
            _ => None,
        }
    }
}

impl fmt::Display for KubeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {}: {}", self.request, self.why())
    }
}

/// Like `Display`: the answer of the API server may contain a secret.
impl fmt::Debug for KubeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KubeError({self})")
    }
}

impl Error for KubeError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.cause {
            KubeCause::Unreachable(error) if !self.is_secret => Some(&**error),
            _ => None,
        }
    }
}
