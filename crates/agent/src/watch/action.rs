//! The next request to the cluster, as a query.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// Characters that are percent-encoded in a query value: all but the unreserved ones of RFC 3986.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Current task of the scope's driver. A running request is dropped when another action replaces it: each attempt has a
/// number of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScopeAction {
    /// Wait until the next tick, or until an external report.
    Wait(WaitReason),
    /// Begin a list: acquire its share of the agent's budgets and a new sync key, then report
    /// [`begin_sync`](super::ScopeWatch::begin_sync).
    BeginSync,
    /// Wait for the hub's rows for this sync.
    AwaitBasis,
    ListPage(PageRequest),
    /// List one object and report its version as [`version_checked`](super::ScopeWatch::version_checked), before a
    /// watch resumes at an old version and before a refused list restarts. Carries the number of the attempt.
    CheckVersion(u64),
    Watch(WatchRequest),
}

impl ScopeAction {
    /// Whether this is the same attempt as `earlier`, regardless of what was read since.
    pub(super) fn continues(&self, earlier: &Self) -> bool {
        match (self, earlier) {
            (Self::ListPage(page), Self::ListPage(earlier)) => page.attempt == earlier.attempt,
            (Self::Watch(watch), Self::Watch(earlier)) => watch.attempt == earlier.attempt,
            (action, earlier) => action == earlier,
        }
    }
}

/// Reason for which a scope waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitReason {
    /// The last attempt failed, or the server sent `Retry-After`.
    Retry,
    /// The server refuses: a permission is missing, the kind cannot be listed or watched, or no connection is left.
    Refused,
    /// The server rejects the credential, which must be read again.
    Credential,
    /// The address leads to another cluster.
    OtherCluster,
    /// The server does not serve the kind; discovery decides whether it is gone.
    KindMayBeGone,
    /// Many scopes have to be listed, each after a random delay.
    Spread,
    /// The driver has paused the scope.
    Paused,
}

impl WaitReason {
    /// Whether the scope needs an external change rather than time.
    pub(super) fn needs_change(self) -> bool {
        matches!(self, Self::Refused | Self::Credential | Self::OtherCluster | Self::KindMayBeGone)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageRequest {
    pub attempt: u64,
    /// Maximum number of items; `None` for no limit.
    pub limit: Option<u32>,
    /// Continue token of the page; `None` for the first page.
    pub continue_token: Option<String>,
}

impl PageRequest {
    /// Query of the request. Without a version, so that the list is consistent.
    pub fn query(&self) -> String {
        let limit = self.limit.map(|limit| format!("limit={limit}"));
        let token = self.continue_token.as_ref().map(|token| format!("continue={}", encoded(token)));
        limit.into_iter().chain(token).collect::<Vec<_>>().join("&")
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchRequest {
    pub attempt: u64,
    /// Version after which the watch begins.
    pub resource_version: String,
    /// Duration after which the server ends the watch, in seconds.
    pub timeout_seconds: u32,
}

impl WatchRequest {
    pub fn query(&self) -> String {
        let Self { resource_version, timeout_seconds, .. } = self;
        format!(
            "watch=1&resourceVersion={}&allowWatchBookmarks=true&timeoutSeconds={timeout_seconds}",
            encoded(resource_version)
        )
    }
}

fn encoded(value: &str) -> String {
    utf8_percent_encode(value, ENCODED).to_string()
}
