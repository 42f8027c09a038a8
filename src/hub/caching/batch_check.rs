//! Bounds of a batch and of the bodies in it, checked before anything is allocated for them. Pure.

use kubesvc_core::wire::events::blob::Encoding;
use kubesvc_core::wire::events::event::{Body, Operation};
use kubesvc_core::wire::events::{Batch, Blob, Event};

use super::transaction_batching::BatchSize;

/// Maximum number of events in a batch.
const MAX_EVENTS: usize = 256;
/// Maximum size of a batch with several events on the wire, in bytes.
const MAX_WIRE_BYTES: usize = 512 * 1024;
/// Maximum uncompressed size of the bodies in a batch with several events, in bytes.
const MAX_BODY_BYTES: usize = 1024 * 1024;
/// Maximum uncompressed size of one body, in bytes.
pub(crate) const MAX_BODY: usize = 8 * 1024 * 1024;
/// Size of a content hash, in bytes.
const HASH_BYTES: usize = 32;

/// Reason to refuse a batch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BatchError {
    #[error("it has {0} events; send at most {MAX_EVENTS} in one batch")]
    TooManyEvents(usize),
    #[error("it has {0} bytes; send at most {MAX_WIRE_BYTES} in a batch with several events")]
    TooLarge(usize),
    #[error("its bodies have {0} bytes; send at most {MAX_BODY_BYTES} in a batch with several events")]
    BodiesTooLarge(usize),
    #[error("its number {seq} does not come after {prev}")]
    Numbers { prev: u64, seq: u64 },
    #[error("the object {namespace}/{name} of scope {scope_id} cannot be taken")]
    Event {
        namespace: String,
        name: String,
        scope_id: u32,
        #[source]
        why: EventError,
    },
}

/// Reason to refuse an event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EventError {
    #[error("it is neither an upsert nor a delete")]
    Operation,
    #[error("it has no name")]
    NoName,
    #[error("an upsert needs a body, or a reason why it has none")]
    NoBody,
    #[error("its hash has {0} bytes instead of {HASH_BYTES}")]
    Hash(usize),
    #[error("the encoding of its body is unknown; send RAW, or ZSTD")]
    Encoding,
    #[error("its body has {0} bytes; send TOO_LARGE for one with more than {MAX_BODY}")]
    TooLarge(u64),
    #[error("its body has {actual} bytes, but declares {said}")]
    Size { said: u32, actual: u64 },
    #[error("its body is not a single zstd frame that declares its content size")]
    Frame,
}

/// Checks a batch of `wire_bytes` bytes. Returns its size.
pub(crate) fn check(batch: &Batch, wire_bytes: usize) -> Result<BatchSize, BatchError> {
    let (prev, seq) = (batch.prev, batch.seq);
    if seq <= prev || i64::try_from(seq).is_err() {
        return Err(BatchError::Numbers { prev, seq });
    }
    let rows = batch.events.len();
    if rows > MAX_EVENTS {
        return Err(BatchError::TooManyEvents(rows));
    }
    if rows != 1 && wire_bytes > MAX_WIRE_BYTES {
        return Err(BatchError::TooLarge(wire_bytes));
    }
    let mut body_bytes = 0;
    for event in &batch.events {
        body_bytes += check_event(event).map_err(|why| BatchError::Event {
            namespace: event.namespace.chars().take(100).collect(),
            name: event.name.chars().take(260).collect(),
            scope_id: event.scope_id,
            why,
        })?;
    }
    if rows != 1 && body_bytes > MAX_BODY_BYTES {
        return Err(BatchError::BodiesTooLarge(body_bytes));
    }
    Ok(BatchSize { rows, body_bytes })
}

/// Checks an event. Returns the uncompressed size of its body.
fn check_event(event: &Event) -> Result<usize, EventError> {
    if event.name.is_empty() {
        return Err(EventError::NoName);
    }
    match event.op() {
        Operation::Unspecified => Err(EventError::Operation),
        Operation::Delete => Ok(0),
        Operation::Upsert => match &event.body {
            None => Err(EventError::NoBody),
            // Without a body, there may be no hash.
            Some(Body::Omitted(_)) if event.hash.is_empty() => Ok(0),
            Some(_) if event.hash.len() != HASH_BYTES => Err(EventError::Hash(event.hash.len())),
            Some(Body::Omitted(_)) => Ok(0),
            Some(Body::Blob(blob)) => check_blob(blob),
        },
    }
}

/// Checks that a body declares its true size, within bounds. Returns the size.
fn check_blob(blob: &Blob) -> Result<usize, EventError> {
    let actual = match blob.encoding() {
        Encoding::Unspecified => return Err(EventError::Encoding),
        Encoding::Raw => u64::try_from(blob.data.len()).unwrap_or(u64::MAX),
        Encoding::Zstd => content_size(&blob.data)?,
    };
    let size = usize::try_from(actual).ok().filter(|size| *size <= MAX_BODY);
    let size = size.ok_or(EventError::TooLarge(actual))?;
    if u64::from(blob.size) != actual {
        return Err(EventError::Size { said: blob.size, actual });
    }
    Ok(size)
}

/// Content size in the header of a single zstd frame.
fn content_size(data: &[u8]) -> Result<u64, EventError> {
    let frame = zstd::zstd_safe::find_frame_compressed_size(data);
    if frame != Ok(data.len()) {
        return Err(EventError::Frame);
    }
    zstd::zstd_safe::get_frame_content_size(data).ok().flatten().ok_or(EventError::Frame)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kubesvc_core::wire::events::event::Omitted;

    fn upsert(blob: Blob) -> Event {
        Event {
            op: Operation::Upsert.into(),
            name: "one".into(),
            hash: vec![0; HASH_BYTES],
            body: Some(Body::Blob(blob)),
            ..Event::default()
        }
    }

    fn raw(bytes: usize) -> Blob {
        let size = u32::try_from(bytes).expect("small");
        Blob { encoding: Encoding::Raw.into(), size, data: vec![b'x'; bytes] }
    }

    fn compressed(bytes: usize) -> Blob {
        let data = zstd::bulk::compress(&vec![b'x'; bytes], 1).expect("it compresses");
        Blob { encoding: Encoding::Zstd.into(), data, ..raw(bytes) }
    }

    fn batch(events: Vec<Event>) -> Batch {
        Batch { seq: 1, events, ..Batch::default() }
    }

    fn refusal(event: Event) -> EventError {
        match check(&batch(vec![event]), 0) {
            Err(BatchError::Event { why, .. }) => why,
            other => unreachable!("expected a refusal, got {other:?}"),
        }
    }

    #[test]
    fn bodies_count_uncompressed() {
        let events = vec![upsert(raw(1000)), upsert(compressed(500_000))];
        assert_eq!(check(&batch(events), 3000), Ok(BatchSize { rows: 2, body_bytes: 501_000 }));
    }

    #[test]
    fn a_batch_of_several_events_has_bounds_that_one_event_has_not() {
        assert_eq!(check(&batch(vec![upsert(raw(1)); 257]), 0), Err(BatchError::TooManyEvents(257)));
        assert_eq!(check(&batch(vec![upsert(raw(1)); 256]), 0).map(|size| size.rows), Ok(256));
        let two = batch(vec![upsert(compressed(600_000)); 2]);
        assert_eq!(check(&two, 1), Err(BatchError::BodiesTooLarge(1_200_000)));
        let two = batch(vec![upsert(raw(1)); 2]);
        assert_eq!(check(&two, MAX_WIRE_BYTES + 1), Err(BatchError::TooLarge(MAX_WIRE_BYTES + 1)));
        let none = Batch { added: vec![Default::default()], ..batch(Vec::new()) };
        assert!(check(&none, MAX_WIRE_BYTES + 1).is_err(), "a batch without events is bounded too");
        assert!(check(&batch(vec![upsert(compressed(MAX_BODY))]), 4 * MAX_WIRE_BYTES).is_ok());
    }

    #[test]
    fn the_number_of_a_batch_comes_after_the_one_before_it() {
        for (prev, seq) in [(0, 0), (3, 3), (3, 2), (0, u64::MAX)] {
            let batch = Batch { prev, seq, ..Batch::default() };
            assert_eq!(check(&batch, 0), Err(BatchError::Numbers { prev, seq }));
        }
    }

    #[test]
    fn a_body_that_lies_about_its_size_is_refused_before_it_is_decompressed() {
        let lies = |blob: Blob, size| refusal(upsert(Blob { size, ..blob }));
        assert_eq!(lies(raw(10), 11), EventError::Size { said: 11, actual: 10 });
        assert_eq!(lies(compressed(5000), 10), EventError::Size { said: 10, actual: 5000 });
        let bomb = compressed(MAX_BODY + 1);
        assert!(bomb.data.len() < 10_000, "a bomb is small");
        assert_eq!(refusal(upsert(bomb)), EventError::TooLarge(8 * 1024 * 1024 + 1));
    }

    #[test]
    fn a_body_that_is_not_one_whole_frame_with_its_size_is_refused() {
        let with = |data: Vec<u8>| refusal(upsert(Blob { data, ..compressed(5000) }));
        let whole = compressed(5000).data;
        assert_eq!(with(Vec::new()), EventError::Frame);
        assert_eq!(with(b"{\"a\": 1}".to_vec()), EventError::Frame);
        assert_eq!(with(whole[..whole.len() - 1].to_vec()), EventError::Frame);
        assert_eq!(with([whole.clone(), whole].concat()), EventError::Frame);
        let mut streamed = zstd::Encoder::new(Vec::new(), 1).expect("an encoder");
        std::io::Write::write_all(&mut streamed, &[b'x'; 5000]).expect("it is taken");
        assert_eq!(with(streamed.finish().expect("it ends")), EventError::Frame, "it does not say its size");
    }

    #[test]
    fn an_event_needs_a_name_an_operation_a_body_and_a_hash() {
        let event = || upsert(raw(1));
        assert_eq!(refusal(Event { name: String::new(), ..event() }), EventError::NoName);
        assert_eq!(refusal(Event { op: 7, ..event() }), EventError::Operation);
        assert_eq!(refusal(Event { body: None, ..event() }), EventError::NoBody);
        assert_eq!(refusal(Event { hash: vec![0; 31], ..event() }), EventError::Hash(31));
        assert_eq!(refusal(upsert(Blob { encoding: 9, ..raw(1) })), EventError::Encoding);
        let omitted = Some(Body::Omitted(Omitted::TooLarge.into()));
        let omitted = Event { body: omitted, hash: Vec::new(), ..event() };
        let deleted = Event { op: Operation::Delete.into(), body: None, hash: Vec::new(), ..event() };
        assert_eq!(check(&batch(vec![omitted, deleted]), 0), Ok(BatchSize { rows: 2, body_bytes: 0 }));
    }

    #[test]
    fn a_refusal_names_the_object_and_its_cause() {
        let error =
            check(&batch(vec![upsert(Blob { encoding: 9, ..raw(1) })]), 0).expect_err("it is refused");
        let source = std::error::Error::source(&error).map(ToString::to_string);
        assert_eq!(error.to_string(), "the object /one of scope 0 cannot be taken");
        assert_eq!(source.as_deref(), Some("the encoding of its body is unknown; send RAW, or ZSTD"));
    }
}
