//! What a line of a watch says: a change of an object, a bookmark, or an error.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::scrub::identity::is_usable_version;
use crate::scrub::json::{Entries, leading_space, text};
use crate::scrub::list_head::ClusterStatus;
use crate::scrub::object::RawObject;

/// How an object changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WatchEventType {
    /// It is new.
    Added,
    /// It was there already.
    Modified,
    /// It is gone; this is its last state.
    Deleted,
}

#[derive(Clone, Debug)]
pub enum WatchLine<'a> {
    /// An object changed.
    Object(WatchEventType, RawObject<'a>),
    /// Nothing before this version is still to come.
    Bookmark {
        /// The version; not empty.
        resource_version: Cow<'a, str>,
    },
    /// The watch ends with an error.
    Error(ClusterStatus),
}

/// A line of a watch cannot be read. What it says is unknown, so the watch must be resumed before it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WatchLineError {
    #[error("a line of the watch is no event: it lacks {0}, or is not JSON")]
    Malformed(&'static str),
    /// A member appears twice, so it is not clear which one counts.
    #[error("a line of the watch has {0:?} twice")]
    Repeated(&'static str),
    #[error("a line of the watch has the unknown type {0:?}")]
    UnknownType(String),
    /// A bookmark without a version.
    #[error("a bookmark of the watch has no usable metadata.resourceVersion")]
    NoVersion,
}

/// An event in the form that servers send. It is read in one pass, and the object is known to be JSON afterwards.
#[derive(Deserialize)]
struct JsonEvent<'a> {
    #[serde(borrow, rename = "type")]
    event_type: Cow<'a, str>,
    #[serde(borrow)]
    object: &'a RawValue,
}

/// Reads a line of a watch. `type` and `object` may come in either order. Of a line that is not JSON, the object is
/// found nevertheless if possible, so that it can be named.
///
/// # Errors
///
/// A [`WatchLineError`] if the line is no event.
pub fn read_watch_line(line: &[u8]) -> Result<WatchLine<'_>, WatchLineError> {
    match serde_json::from_slice::<JsonEvent<'_>>(line) {
        Ok(event) => said(&event.event_type, RawObject::known_json(event.object.get())),
        Err(_) => read_outline(line),
    }
}

/// Reads a line that is not JSON as a whole.
fn read_outline(line: &[u8]) -> Result<WatchLine<'_>, WatchLineError> {
    let (mut event_type, mut object) = (None, None);
    // What follows the two members is not looked at, nor how the line ends.
    for entry in Entries::members(line, leading_space(line)).map_while(Result::ok) {
        match &*entry.key {
            "type" => {
                let value = text(line, &entry.value).ok_or(WatchLineError::Malformed("type"))?;
                if event_type.replace(value).is_some() {
                    return Err(WatchLineError::Repeated("type"));
                }
            }
            "object" if object.replace(&line[entry.value.clone()]).is_some() => {
                return Err(WatchLineError::Repeated("object"));
            }
            _ => {}
        }
    }
    let event_type = event_type.ok_or(WatchLineError::Malformed("type"))?;
    let object = object.ok_or(WatchLineError::Malformed("object"))?;
    said(&event_type, RawObject::read(object))
}

fn said<'a>(event_type: &str, object: RawObject<'a>) -> Result<WatchLine<'a>, WatchLineError> {
    Ok(match event_type {
        "ADDED" => WatchLine::Object(WatchEventType::Added, object),
        "MODIFIED" => WatchLine::Object(WatchEventType::Modified, object),
        "DELETED" => WatchLine::Object(WatchEventType::Deleted, object),
        "BOOKMARK" => {
            WatchLine::Bookmark { resource_version: version(&object).ok_or(WatchLineError::NoVersion)? }
        }
        // Not every server sends a Status: what it is remains an error.
        "ERROR" => WatchLine::Error(ClusterStatus::read(object.bytes()).unwrap_or_default()),
        other => return Err(WatchLineError::UnknownType(other.chars().take(32).collect())),
    })
}

/// `metadata.resourceVersion` of a bookmark.
fn version<'a>(object: &RawObject<'a>) -> Option<Cow<'a, str>> {
    let mut version = None;
    for entry in object.members().map_while(Result::ok).filter(|entry| entry.key == "metadata") {
        for member in Entries::members(object.bytes(), entry.value.start).map_while(Result::ok) {
            if member.key == "resourceVersion" {
                version = text(object.bytes(), &member.value);
            }
        }
    }
    version.filter(|version| is_usable_version(version))
}
