//! Bytes of list and watch responses become events of the stream to the hub.
//!
//! [`ItemSplitter`] cuts a list and [`LineSplitter`] a watch into objects while the response arrives, and
//! [`read_watch_line`] says what a line means. [`Scrubber`] applies the rules of a scope to one object: what is left out,
//! what is cut out of the body, what is sent apart from it. The driver of a scope calls them.
//!
//! A body is never made a tree and never written anew: it stays the server's bytes, less what is cut out. One object is
//! in memory at a time. There is no I/O here, no clock, and nothing of the names that Spinnaker gives things. What a
//! cluster sends may be anything: it ends in an event, or in an error that names the object where that is possible.
//!
//! | file | owns |
//! |---|---|
//! | `items.rs` | cutting chunks into lines and items |
//! | `list_head.rs` | what a list says beside its items, or a `Status` in its place |
//! | `watch_line.rs` | what a line of a watch says |
//! | `json.rs`, `object.rs` | the outline of JSON; whether an object is JSON at all |
//! | `rules.rs`, `metadata.rs`, `identity.rs` | what is left out, what is sent apart from the body, who an object is |
//! | `body.rs`, `scrubber.rs` | what is cut out; hash and compression; the event |

mod body;
pub(crate) mod identity;
mod items;
mod json;
mod list_head;
mod metadata;
mod object;
mod rules;
mod scrubber;
#[cfg(test)]
mod tests;
mod watch_line;

pub use body::{BodyEncoder, BodyLimits, CompressorError};
pub use identity::{ObjectIdentity, Unidentified};
pub use items::{ItemSplitter, LineSplitter, LineTooLong};
pub use list_head::{ClusterStatus, ListError, ListPage};
pub use object::RawObject;
pub use rules::{ClusterScopedKinds, Exclusion, ObjectRules};
pub use scrubber::{Inspected, InspectedObject, OmissionReason, OmittedBody, Scrubber, delete_event};
pub use watch_line::{WatchEventType, WatchLine, WatchLineError, read_watch_line};

/// Version of what is cut out of the bodies of a kind: with another one, every body of the kind is sent again.
pub fn splice_version(group: &str, kind: &str) -> u32 {
    // Since 2, only a few annotations of Secrets are kept.
    if group.is_empty() && kind == "Secret" { 2 } else { 1 }
}
/// Maximum length of a line of a watch, in bytes.
pub const MAX_LINE_BYTES: usize = 16 * 1024 * 1024;
/// Maximum size of an item of a list, in bytes.
pub const MAX_ITEM_BYTES: usize = 16 * 1024 * 1024;
/// Maximum size of a body without what is cut out, in bytes.
pub const MAX_BODY_BYTES: usize = 8 * 1024 * 1024;
/// Minimum size of a body that is compressed, in bytes.
pub const MIN_COMPRESSED_BYTES: usize = 1024;
/// Maximum number of levels of objects and arrays in a body: what Jackson reads by default, and with it Spinnaker.
pub const MAX_DEPTH: usize = 1000;
/// Maximum length of a number in a body, in bytes: what Jackson reads by default.
pub const MAX_NUMBER_BYTES: usize = 1000;
/// Maximum size of the labels and annotations that are sent apart from the body, in bytes: twice what Kubernetes allows
/// for all annotations of an object.
const MAX_META_BYTES: usize = 512 * 1024;
/// Maximum number of owner references of an object.
const MAX_OWNERS: usize = 1000;
