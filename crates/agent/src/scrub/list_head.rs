//! What a list says beside its items: which list it is, its version, how to go on, or why there is no list.

use std::borrow::Cow;
use std::ops::Range;
use std::time::Duration;

use kubesvc_core::failure::truncate;

use crate::scrub::identity::is_usable_version;
use crate::scrub::json::{Entries, is_null, leading_space, number, text};

/// Maximum size of all that is kept of a list beside its items, in bytes.
const MAX_HEAD_BYTES: usize = 256 * 1024;
/// Maximum length of a key that is compared, in bytes with quotes; `apiVersion` in escapes is shorter.
const MAX_KEY_BYTES: usize = 64;

/// A member of a list, or of a `Status` in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListMember {
    Items,
    /// One that is kept until the end.
    Kept(&'static str),
    /// One that nobody reads.
    Ignored,
}

const KEPT: [&str; 7] = ["apiVersion", "kind", "metadata", "code", "reason", "message", "details"];

/// The end of one page of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListPage {
    pub api_version: String,
    /// Kind of the list, for example `PodList`.
    pub kind: String,
    /// Version of the whole list; not empty.
    pub resource_version: String,
    /// Token for the next page; `None` if this is the last one.
    pub continue_token: Option<String>,
    pub items: u64,
}

/// A response is not a complete page of a list, so its items do not count as one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListError {
    /// The server answered with a `Status`.
    #[error("the server answered with status {} in place of a list: {}", .0.code, .0.message)]
    Status(ClusterStatus),
    #[error("the list ended after {items} items, before its end; the server or a proxy cut it")]
    Truncated { items: u64 },
    #[error(
        "the response is no list: {expected} expected at byte {at}; is this the address of an API server?"
    )]
    Malformed {
        expected: &'static str,
        /// Offset in bytes.
        at: u64,
    },
    /// A member appears twice, so it is not clear which one counts.
    #[error("the list has {0:?} twice")]
    Repeated(&'static str),
    #[error("the list has no usable metadata.resourceVersion, so the kind cannot be watched; leave it out")]
    NoVersion,
    #[error(
        "an item of the list is larger than {max} bytes; leave the kind out, or make its objects smaller"
    )]
    ItemTooLarge {
        /// Maximum size of an item, in bytes.
        max: usize,
    },
    #[error("the list has more than {max} bytes beside its items")]
    HeadTooLarge {
        /// Maximum size, in bytes.
        max: usize,
    },
}

/// The members that are kept, as their bytes arrive.
#[derive(Debug, Default)]
pub(super) struct ListHead {
    bytes: Vec<u8>,
    members: Vec<(&'static str, Range<usize>)>,
    has_items: bool,
    key: Vec<u8>,
}

impl ListHead {
    /// Takes a part of a key, or of a value in place of the items. The rest of a long one is dropped: it is none that
    /// counts.
    pub(super) fn key_part(&mut self, part: &[u8]) {
        // One byte more than the maximum tells a long key from one that fits.
        let room = (MAX_KEY_BYTES + 1).saturating_sub(self.key.len()).min(part.len());
        self.key.extend_from_slice(&part[..room]);
    }

    /// Ends the key. Returns which member follows.
    pub(super) fn end_key(&mut self) -> Result<ListMember, ListError> {
        let key = std::mem::take(&mut self.key);
        let name = if key.len() > MAX_KEY_BYTES { None } else { text(&key, &(0..key.len())) };
        let name = name.unwrap_or_default();
        if name == "items" {
            if std::mem::replace(&mut self.has_items, true) {
                return Err(ListError::Repeated("items"));
            }
            return Ok(ListMember::Items);
        }
        let Some(kept) = KEPT.into_iter().find(|kept| *kept == name) else { return Ok(ListMember::Ignored) };
        if self.members.iter().any(|(member, _)| *member == kept) {
            return Err(ListError::Repeated(kept));
        }
        self.members.push((kept, self.bytes.len()..self.bytes.len()));
        Ok(ListMember::Kept(kept))
    }

    /// Ends a value that was taken as a key. Returns whether it is `null`.
    pub(super) fn end_null(&mut self) -> bool {
        std::mem::take(&mut self.key) == b"null"
    }

    /// Takes a part of the value of the member that is kept.
    pub(super) fn value_part(&mut self, part: &[u8]) -> Result<(), ListError> {
        if self.bytes.len() + part.len() > MAX_HEAD_BYTES {
            return Err(ListError::HeadTooLarge { max: MAX_HEAD_BYTES });
        }
        self.bytes.extend_from_slice(part);
        if let Some((_, value)) = self.members.last_mut() {
            value.end = self.bytes.len();
        }
        Ok(())
    }

    /// Bytes in memory.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Reads the head of a response that is complete.
    pub(super) fn finish(&self, items: u64, length: u64) -> Result<ListPage, ListError> {
        let mut page = ListPage { items, ..ListPage::default() };
        let mut status = ClusterStatus::default();
        for (member, value) in &self.members {
            match *member {
                "apiVersion" => page.api_version = self.text(value, length)?,
                "kind" => page.kind = self.text(value, length)?,
                "metadata" if !is_null(&self.bytes, value) => self.metadata(value, &mut page, length)?,
                other => status.take(other, &self.bytes, value),
            }
        }
        if !self.has_items && page.kind == "Status" {
            return Err(ListError::Status(status));
        }
        if !self.has_items {
            return Err(ListError::Malformed { expected: "items", at: length });
        }
        if !is_usable_version(&page.resource_version) {
            return Err(ListError::NoVersion);
        }
        Ok(page)
    }

    fn metadata(&self, value: &Range<usize>, page: &mut ListPage, length: u64) -> Result<(), ListError> {
        for entry in Entries::members(&self.bytes[..value.end], value.start) {
            let entry =
                entry.map_err(|_| ListError::Malformed { expected: "metadata of a list", at: length })?;
            match &*entry.key {
                "resourceVersion" => page.resource_version = self.text(&entry.value, length)?,
                "continue" => {
                    let token = self.text(&entry.value, length)?;
                    page.continue_token = Some(token).filter(|token| !token.is_empty());
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// A text that the list may lack.
    fn text(&self, value: &Range<usize>, length: u64) -> Result<String, ListError> {
        if is_null(&self.bytes, value) {
            return Ok(String::new());
        }
        let text = text(&self.bytes, value).map(Cow::into_owned);
        text.ok_or(ListError::Malformed { expected: "text in apiVersion, kind and metadata", at: length })
    }
}

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
    pub reason: String,
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
