//! What to ask of the cluster now, as the queries of requests.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// Characters of a value in a query that are encoded: all but the unreserved ones of RFC 3986.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// What the driver of a scope does now. A request that runs is dropped when another action takes its place: each
/// attempt has a number of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScopeAction {
    /// Wait until the next tick, or until something is reported from outside.
    Wait(WaitReason),
    /// Begin a list: take what a list may take of the agent's budgets, and a new sync key, and report
    /// [`begin_sync`](super::ScopeWatch::begin_sync).
    BeginSync,
    /// Wait for the rows that the hub has for this sync.
    AwaitBasis,
    ListPage(PageRequest),
    /// Ask for a list of one object, whose version is reported as
    /// [`version_checked`](super::ScopeWatch::version_checked): before a watch goes on at a version from before, and
    /// before a list that was refused begins again. It has the number of the attempt.
    CheckVersion(u64),
    Watch(WatchRequest),
}

impl ScopeAction {
    /// Whether it is the same as an earlier one: a request that runs is the same attempt, whatever was read since.
    pub(super) fn continues(&self, earlier: &Self) -> bool {
        match (self, earlier) {
            (Self::ListPage(page), Self::ListPage(earlier)) => page.attempt == earlier.attempt,
            (Self::Watch(watch), Self::Watch(earlier)) => watch.attempt == earlier.attempt,
            (action, earlier) => action == earlier,
        }
    }
}

/// Why a scope waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitReason {
    /// The last attempt failed, or the server asks to be left alone.
    Retry,
    /// The server refuses: a right is missing, the kind cannot be listed or watched, or there is no connection for it.
    Refused,
    /// The server refuses the credential: read it again.
    Credential,
    /// The address leads to another cluster.
    OtherCluster,
    /// The server has no such kind: see whether discovery still has it.
    KindMayBeGone,
    /// Many scopes have to be listed, each at its own time.
    Spread,
    /// The driver has paused the scope.
    Paused,
}

impl WaitReason {
    /// Whether something must change before the scope can be read, rather than time pass.
    pub(super) fn needs_change(self) -> bool {
        matches!(self, Self::Refused | Self::Credential | Self::OtherCluster | Self::KindMayBeGone)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageRequest {
    pub attempt: u64,
    /// Maximum number of items; `None` for all.
    pub limit: Option<u32>,
    /// Where to go on; `None` for the first page.
    pub continue_token: Option<String>,
}

impl PageRequest {
    /// Query of the request. It names no version, so the list is consistent.
    pub fn query(&self) -> String {
        let limit = self.limit.map(|limit| format!("limit={limit}"));
        let token = self.continue_token.as_ref().map(|token| format!("continue={}", encoded(token)));
        limit.into_iter().chain(token).collect::<Vec<_>>().join("&")
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchRequest {
    pub attempt: u64,
    /// Version after which it begins.
    pub resource_version: String,
    /// Duration after which the server ends it, in seconds.
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
