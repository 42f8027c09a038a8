//! What the tests of the splitters and the scrubber share.
#![expect(clippy::panic, clippy::unwrap_used, reason = "this is how a test fails")]

use hyper::body::Bytes;
use kubesvc_core::wire::events::event::{Body, Operation};
use kubesvc_core::wire::events::{Blob, Event, blob};
use kubesvc_runtime::telemetry::errors::chain;

use super::object::BodyError;
use super::rules::{IGNORE_ANNOTATION, LAST_APPLIED_ANNOTATION, ObjectFilter};
use super::scrubber::ScrubbedEvent;
use super::*;

mod bodies;
mod corpus;
mod identities;
mod items;
mod lines;
mod mutations;
mod properties;
mod splicing;
mod watch_lines;

/// What has become of an object.
#[derive(Debug)]
enum Scrubbed {
    Event(Box<ScrubbedEvent>),
    /// It is left out.
    Excluded(Exclusion, ObjectIdentity),
    /// It is unknown which object it is.
    Unidentified(Unidentified),
}

impl Scrubber {
    /// Makes an event of an object.
    fn scrub(
        &self,
        object: &RawObject<'_>,
        scope_id: u32,
        operation: Operation,
        encoder: &mut BodyEncoder,
    ) -> Scrubbed {
        match self.inspect(object, operation) {
            Inspected::Object(object) => Scrubbed::Event(Box::new(object.into_event(scope_id, encoder))),
            Inspected::Excluded(exclusion, identity) => Scrubbed::Excluded(exclusion, identity),
            Inspected::Unidentified(unidentified) => Scrubbed::Unidentified(unidentified),
        }
    }
}

/// Rules of a scope of Pods in all namespaces.
fn pods() -> ObjectRules {
    ObjectRules { api_version: "v1".to_owned(), kind: "Pod".to_owned(), ..ObjectRules::default() }
}

/// Rules of a scope of Secrets in all namespaces.
fn secrets() -> ObjectRules {
    ObjectRules { kind: "Secret".to_owned(), is_secret: true, ..pods() }
}

/// Encodes bodies as they are, up to the size of a message.
fn raw_encoder() -> BodyEncoder {
    encoder(false)
}

fn encoder(zstd: bool) -> BodyEncoder {
    BodyEncoder::new(BodyLimits::for_messages(4 * 1024 * 1024, zstd)).unwrap()
}

fn scrub(rules: ObjectRules, object: impl AsRef<[u8]>) -> Scrubbed {
    let object = RawObject::read(object.as_ref());
    Scrubber::new(rules).scrub(&object, 7, Operation::Upsert, &mut raw_encoder())
}

fn event(scrubbed: Scrubbed) -> ScrubbedEvent {
    match scrubbed {
        Scrubbed::Event(event) => *event,
        other => panic!("{other:?}"),
    }
}

fn scrubbed_event(rules: ObjectRules, object: impl AsRef<[u8]>) -> Event {
    let scrubbed = event(scrub(rules, object));
    assert_eq!(scrubbed.omitted, None);
    scrubbed.event
}

/// The body of an event as text.
fn body(event: &Event) -> String {
    let Some(Body::Blob(blob)) = &event.body else { panic!("no body: {event:?}") };
    String::from_utf8(content(blob)).unwrap()
}

fn content(blob: &Blob) -> Vec<u8> {
    let content = match blob.encoding() {
        blob::Encoding::Zstd => zstd::bulk::decompress(&blob.data, MAX_BODY_BYTES).unwrap(),
        blob::Encoding::Raw => blob.data.clone(),
        blob::Encoding::Unspecified => panic!("no encoding"),
    };
    assert_eq!(content.len(), usize::try_from(blob.size).unwrap());
    content
}

/// What has become of an object, in one line.
fn outcome(scrubbed: &Scrubbed) -> String {
    match scrubbed {
        Scrubbed::Event(scrubbed) => match &scrubbed.omitted {
            Some(omitted) => {
                assert!(matches!(scrubbed.event.body, Some(Body::Omitted(_))));
                format!("omitted: {}", chain(omitted))
            }
            None => body(&scrubbed.event),
        },
        Scrubbed::Excluded(why, identity) => format!("excluded: {why:?} {}", identity.name),
        Scrubbed::Unidentified(why) => format!("unidentified: {}", chain(why)),
    }
}

/// The bytes in chunks of one size.
fn chunks(bytes: &[u8], size: usize) -> Vec<Bytes> {
    bytes.chunks(size.max(1)).map(Bytes::copy_from_slice).collect()
}

/// The bytes in chunks of these sizes, and the rest.
fn cut(bytes: &[u8], cuts: &[usize]) -> Vec<Bytes> {
    let mut rest = bytes;
    let mut pieces = Vec::new();
    for cut in cuts {
        let (piece, after) = rest.split_at((*cut).min(rest.len()));
        pieces.push(Bytes::copy_from_slice(piece));
        rest = after;
    }
    pieces.push(Bytes::copy_from_slice(rest));
    pieces
}

/// The lines of a response, and the bytes left at its end.
fn split_lines(mut splitter: LineSplitter, chunks: Vec<Bytes>) -> Result<(Vec<Bytes>, usize), LineTooLong> {
    let mut lines = Vec::new();
    for chunk in chunks {
        splitter.push(chunk);
        while let Some(line) = splitter.next_line()? {
            lines.push(line);
        }
    }
    Ok((lines, splitter.pending_bytes()))
}

/// The items of a response, and how it ended.
fn split_items(mut splitter: ItemSplitter, chunks: Vec<Bytes>) -> (Vec<Bytes>, Result<ListPage, ListError>) {
    let mut items = Vec::new();
    for chunk in chunks {
        splitter.push(chunk);
        loop {
            match splitter.next_item() {
                Ok(Some(item)) => items.push(item),
                Ok(None) => break,
                Err(error) => {
                    assert_eq!(splitter.next_item(), Err(error.clone()), "an error stays");
                    assert_eq!(splitter.finish(), Err(error.clone()));
                    return (items, Err(error));
                }
            }
        }
    }
    (items, splitter.finish())
}
