//! Detection of an overloaded API server.

use std::time::Duration;

/// Pause if the API server does not name one.
const DEFAULT_RETRY_AFTER: Duration = Duration::from_secs(1);

/// How long the API server asks clients to pause with this error; `None` if it does not.
pub fn too_busy(error: &kube::Error) -> Option<Duration> {
    let kube::Error::Api(status) = error else { return None };
    if status.code != 429 {
        return None;
    }
    let seconds = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
    Some(if seconds == 0 { DEFAULT_RETRY_AFTER } else { Duration::from_secs(seconds.into()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: serde_json::Value) -> kube::Error {
        kube::Error::Api(serde_json::from_value(status).expect("a status"))
    }

    #[test]
    fn only_429_asks_for_a_pause_and_may_say_how_long() {
        let says = serde_json::json!({"code": 429, "details": {"retryAfterSeconds": 7}});
        assert_eq!(too_busy(&answer(says)), Some(Duration::from_secs(7)));
        assert_eq!(too_busy(&answer(serde_json::json!({"code": 429}))), Some(DEFAULT_RETRY_AFTER));
        assert_eq!(too_busy(&answer(serde_json::json!({"code": 503}))), None);
    }
}
