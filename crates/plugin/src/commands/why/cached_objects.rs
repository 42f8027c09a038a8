//! How far the cached objects of an account are, for `why`. Counts, progress and lag stand in no object, so the operator
//! is asked, if it can be reached; `why` never fails or waits long for it.

use std::time::Duration;

use kubesvc_core::age;
use kubesvc_core::cache::synthetic::SYNTHETIC_VERSION;
use serde::Serialize;
use serde_json::Value;

use crate::arguments::{CommandError, ScopeArguments};
use crate::commands::cache::{account_cache_path, by_account_api};
use crate::operator_client::{OperatorArguments, OperatorClient};

/// Time limit for the operator's answer: the rest of `why` needs none.
const MAX_WAIT: Duration = Duration::from_secs(5);
/// Age of a kind's version above which it lags, in milliseconds. A quiet kind moves on about once a minute.
const LAGS_AFTER_MS: i64 = 180_000;
/// Maximum number of kinds that are named.
const MAX_KINDS_NAMED: usize = 5;

/// How far the cached objects of an account are.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CachedObjects {
    /// Whether all kinds are cached whole and up to date; left out if the operator could not be asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub up_to_date: Option<bool>,
    /// The same in a sentence, with what is not.
    pub summary: String,
}

impl CachedObjects {
    /// Asks the operator about an account.
    pub(super) async fn ask(
        scope: &ScopeArguments,
        operator: &OperatorArguments,
        (object, account): (&str, &str),
    ) -> Self {
        let asked = async {
            if let Some(cache) = by_account_api(scope, operator, object, "").await? {
                return Ok(cache);
            }
            let operator = OperatorClient::open(scope, operator).await?;
            operator.json(&account_cache_path(account)).await
        };
        match tokio::time::timeout(MAX_WAIT, asked).await {
            Ok(Ok::<_, CommandError>(cache)) => Self::read(&cache),
            Ok(Err(_)) | Err(_) => Self {
                up_to_date: None,
                summary: "not known: the operator cannot be asked from here".to_owned(),
            },
        }
    }

    fn read(cache: &Value) -> Self {
        let kinds = cache["kinds"].as_array().map(Vec::as_slice).unwrap_or_default();
        let issues: Vec<_> = kinds.iter().filter_map(issue).collect();
        let is_synced = cache["synced"] == true;
        let summary = if !cache["agentId"].is_string() {
            "no agent is elected to read them".to_owned()
        } else if kinds.is_empty() {
            "no kind is watched yet".to_owned()
        } else if !issues.is_empty() {
            let named =
                issues.iter().take(MAX_KINDS_NAMED).map(String::as_str).collect::<Vec<_>>().join("; ");
            let more = issues.len().saturating_sub(MAX_KINDS_NAMED);
            let more = if more > 0 { format!("; and {more} more") } else { String::new() };
            format!("not up to date: {named}{more}")
        } else if is_synced {
            format!("up to date: {} objects of {} kinds", cache["objects"], kinds.len())
        } else {
            "nobody reads them now: their agent is not connected".to_owned()
        };
        Self { up_to_date: Some(is_synced && issues.is_empty()), summary }
    }
}

/// What is wrong with a kind of an account, if something is.
fn issue(kind: &Value) -> Option<String> {
    let text = |field: &str| kind[field].as_str().unwrap_or_default();
    let name = match text("namespace") {
        "" => text("kind").to_owned(),
        namespace => format!("{} in {namespace}", text("kind")),
    };
    // Rows that follow from the account's settings have one version for ever.
    let is_read = text("resourceVersion") != SYNTHETIC_VERSION;
    let age_ms = kind["ageMs"].as_i64().unwrap_or_default();
    let why = match (text("state"), text("problem")) {
        (_, problem) if !problem.is_empty() => problem.to_owned(),
        ("LISTING", _) => "is being listed, or waits for its turn".to_owned(),
        ("SYNCED", _) if is_read && age_ms > LAGS_AFTER_MS => {
            format!("lags, nothing was heard of it for {}", age::seconds(age_ms / 1000))
        }
        _ => return None,
    };
    Some(format!("{name}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn kind(name: &str, state: &str, version: &str, age_ms: i64, problem: Option<&str>) -> Value {
        json!({"kind": name, "namespace": "", "state": state, "objects": 1, "resourceVersion": version, "ageMs": age_ms,
            "problem": problem})
    }

    fn read(synced: bool, kinds: &[Value]) -> CachedObjects {
        let cache =
            json!({"account": "prod", "agentId": "agent-1", "synced": synced, "objects": 3, "kinds": kinds});
        CachedObjects::read(&cache)
    }

    #[test]
    fn quiet_and_synthetic_kinds_are_up_to_date() {
        let kinds = [
            kind("deployment", "SYNCED", "7", LAGS_AFTER_MS, None),
            kind("namespace", "SYNCED", SYNTHETIC_VERSION, 90_000_000, None),
            kind("job", "REMOVED", "7", 90_000_000, None),
        ];
        let read = read(true, &kinds);
        assert_eq!(
            (read.up_to_date, read.summary.as_str()),
            (Some(true), "up to date: 3 objects of 3 kinds")
        );
    }

    #[test]
    fn kinds_that_lag_or_are_listed_or_have_a_problem_are_named() {
        for (kind, is_synced, part) in [
            (
                kind("pod", "SYNCED", "7", LAGS_AFTER_MS + 1_000, None),
                true,
                "pod: lags, nothing was heard of it for 3m",
            ),
            (kind("pod", "LISTING", "", 0, None), false, "pod: is being listed"),
            (kind("pod", "SYNCED", "7", 0, Some("no right")), false, "pod: no right"),
        ] {
            let read = read(is_synced, &[kind]);
            assert!(read.summary.contains(part), "{read:?}");
            assert_eq!(read.up_to_date, Some(false), "{read:?}");
        }
    }

    #[test]
    fn many_kinds_are_counted_and_the_namespace_is_said() {
        let listed = |number| {
            let mut kind = kind(&format!("k{number}"), "LISTING", "", 0, None);
            kind["namespace"] = json!("shop");
            kind
        };
        let read = read(false, &(0..8).map(listed).collect::<Vec<_>>());
        assert!(read.summary.contains("k4 in shop: ") && !read.summary.contains("k5"), "{read:?}");
        assert!(read.summary.ends_with("; and 3 more"), "{read:?}");
    }

    #[test]
    fn an_account_that_nobody_reads_says_so() {
        let gone = read(false, &[kind("pod", "SYNCED", "7", 0, None)]);
        assert!(gone.up_to_date == Some(false) && gone.summary.contains("not connected"), "{gone:?}");
        assert!(read(false, &[]).summary.contains("no kind is watched yet"));
        let unelected = CachedObjects::read(&json!({"account": "prod", "synced": false, "kinds": []}));
        assert!(unelected.summary.contains("no agent is elected"), "{unelected:?}");
    }
}
