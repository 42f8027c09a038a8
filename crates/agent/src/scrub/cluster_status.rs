//! What a cluster says in a `Status`: in place of a list, as the last line of a watch, or with an error of HTTP.

use std::ops::Range;
use std::time::Duration;

use kubesvc_core::failure::truncate;

use crate::scrub::json::{Entries, leading_space, number, text};

/// Maximum length of what a cluster says, in bytes.
const MAX_MESSAGE_BYTES: usize = 1024;
/// Maximum length of a reason, in bytes.
const MAX_REASON_BYTES: usize = 128;

/// A `Status` of an API server. What it does not say, or says in a form that cannot be read, is left at its default.
///
/// The texts are bounded and free of control characters. They may still repeat what the server was sent, so the client
/// of the cluster removes credentials from them before they are shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterStatus {
    /// Code, as in HTTP; 0 if there is none.
    pub code: u16,
    /// Reason in one word.
    pub reason: String,
    /// What happened.
    pub message: String,
    /// Time that the server asks to be left alone.
    pub retry_after: Option<Duration>,
}

impl ClusterStatus {
    /// Reads the `Status` in a body; `None` if the body is another object or none.
    pub fn read(body: &[u8]) -> Option<Self> {
        let (mut status, mut is_status) = (Self::default(), false);
        for entry in Entries::members(body, leading_space(body)) {
            let entry = entry.ok()?;
            if entry.key == "kind" {
                is_status = text(body, &entry.value).as_deref() == Some("Status");
            } else {
                status.take(&entry.key, body, &entry.value);
            }
        }
        is_status.then_some(status)
    }

    /// Takes one member of a `Status`.
    pub(super) fn take(&mut self, key: &str, bytes: &[u8], value: &Range<usize>) {
        match key {
            "code" => self.code = number(bytes, value).and_then(|code| u16::try_from(code).ok()).unwrap_or(0),
            "reason" => self.reason = said(bytes, value, MAX_REASON_BYTES),
            "message" => self.message = said(bytes, value, MAX_MESSAGE_BYTES),
            "details" => {
                for detail in Entries::members(bytes, value.start).map_while(Result::ok) {
                    if detail.key == "retryAfterSeconds" {
                        let seconds = number(bytes, &detail.value).filter(|seconds| *seconds > 0);
                        self.retry_after = seconds.map(Duration::from_secs);
                    }
                }
            }
            _ => {}
        }
    }

    /// Whether the version that was asked for is no longer kept.
    pub fn is_expired(&self) -> bool {
        self.code == 410 || self.reason == "Expired" || self.reason == "Gone"
    }
}

fn said(bytes: &[u8], value: &Range<usize>, max: usize) -> String {
    let text = text(bytes, value).unwrap_or_default();
    let mut said: String = text.chars().take(max).filter(|char| !char.is_control()).collect();
    truncate(&mut said, max);
    said
}
