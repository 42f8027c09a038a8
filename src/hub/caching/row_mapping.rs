//! Rows of events: the port that names them, and the decoding of bodies. No I/O.

use kubesvc_core::AgentId;
use kubesvc_core::cache::object_row::{NamedObject, RowError, RowNaming};
use kubesvc_core::wire::common::Scope;
use kubesvc_core::wire::events::blob::Encoding;
use kubesvc_core::wire::events::event::{Body, Operation};
use kubesvc_core::wire::events::{Blob, Event};
use kubesvc_store::{ObjectBody, ObjectRow, ScopeChange, ScopeRow};

use serde::Deserialize;

use super::account_receiver::{AcceptedBatch, AcceptedEvent, AcceptedScopeChange};
use super::transaction_batching::{DecodedBatch, RowChange};

/// Compression level for bodies that the agent sent uncompressed.
const ZSTD_LEVEL: i32 = 1;
/// Hash of a body without a known hash.
const NO_HASH: [u8; 32] = [0; 32];

/// Port that names the rows of accounts' scopes.
pub trait RowMapper: Send + Sync {
    /// Prepares the rows of a scope of an account.
    ///
    /// # Errors
    /// If the scope cannot have rows.
    fn naming(&self, account: &str, scope: &Scope) -> Result<RowNaming, RowError>;
}

/// Storage format of bodies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BodyFormat {
    /// As JSON text.
    #[default]
    Text,
    /// Compressed with zstd.
    Zstd,
}

/// Reason for which a body is not stored.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RowBodyError {
    #[error("it cannot be decompressed")]
    Decompress(#[source] std::io::Error),
    #[error("it cannot be compressed")]
    Compress(#[source] std::io::Error),
    #[error("it is no UTF-8")]
    NotText(#[source] std::str::Utf8Error),
}

/// An item of a batch that cannot be stored. Its text names the object and shows nothing of its body.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UnstoredItem {
    #[error("the scope {0:?} has no rows")]
    Scope(Scope, #[source] RowError),
    #[error("an object is left out")]
    Row(#[source] RowError),
    #[error("the object {namespace}/{name} is stored without its body")]
    Body {
        namespace: String,
        name: String,
        #[source]
        why: RowBodyError,
    },
}

/// Decodes a batch into rows and a list of items that cannot be stored.
pub(crate) fn decode<R>(
    batch: AcceptedBatch,
    agent_id: AgentId,
    mapper: &dyn RowMapper,
    format: BodyFormat,
    receipt: R,
) -> (DecodedBatch<R>, Vec<UnstoredItem>) {
    let (mut left_out, mut bodies) = (Vec::new(), Bodies::new(format));
    let mut changes = Vec::with_capacity(batch.events.len());
    for AcceptedEvent { scope, event, .. } in batch.events {
        let change = match scope.rows(&batch.account, mapper) {
            Ok(rows) => change(rows, event, &mut bodies, &mut left_out).map_err(UnstoredItem::Row),
            Err(why) => Err(UnstoredItem::Scope(scope.scope.clone(), why)),
        };
        match change {
            Ok(change) => changes.push(change),
            Err(why) => left_out.push(why),
        }
    }
    let mut scopes = Vec::with_capacity(batch.scopes.len());
    for change in batch.scopes {
        match change {
            AcceptedScopeChange::Other(change) => scopes.push(change),
            AcceptedScopeChange::Added(scope) => match scope.rows(&batch.account, mapper) {
                Ok(rows) => scopes.push(ScopeChange::Added(ScopeRow {
                    key: scope.key.clone(),
                    cached_kind: rows.kind().to_owned(),
                    shape: scope.shape.clone(),
                    filter: scope.filter.clone(),
                })),
                Err(why) => left_out.push(UnstoredItem::Scope(scope.scope.clone(), why)),
            },
        }
    }
    let decoded = DecodedBatch {
        lane: batch.lane,
        uid: batch.uid,
        epoch: batch.epoch,
        account: batch.account,
        agent_id,
        prev: batch.prev,
        seq: batch.seq,
        size: batch.size,
        changes,
        scopes,
        receipt,
    };
    (decoded, left_out)
}

fn change(
    rows: &RowNaming,
    mut event: Event,
    bodies: &mut Bodies,
    left_out: &mut Vec<UnstoredItem>,
) -> Result<(String, RowChange), RowError> {
    if event.op() == Operation::Delete {
        return Ok((rows.id(&event.namespace, &event.name)?, None));
    }
    let body = match event.body.take() {
        Some(Body::Blob(blob)) => bodies.stored(blob).unwrap_or_else(|why| {
            let (namespace, name) = (event.namespace.clone(), event.name.clone());
            left_out.push(UnstoredItem::Body { namespace, name, why });
            ObjectBody::Omitted
        }),
        _ => ObjectBody::Omitted,
    };
    if event.hash.is_empty() {
        event.hash = NO_HASH.to_vec();
    }
    let row = object_row(rows.object_row(&event)?, body);
    Ok((row.id.clone(), Some(row)))
}

pub(crate) fn object_row(named: NamedObject, body: ObjectBody) -> ObjectRow {
    ObjectRow {
        id: named.id,
        kind: named.kind,
        application: named.application,
        namespace: named.namespace,
        name: named.name,
        api_version: Some(named.api_version),
        uid: named.uid,
        resource_version: named.resource_version,
        body_hash: named.body_hash,
        body,
        relations: named.relations.relations,
    }
}

/// Decoder of a batch's bodies. The decompressor is created once: creating it takes longer than using it.
struct Bodies {
    format: BodyFormat,
    decompressor: Option<zstd::bulk::Decompressor<'static>>,
    /// Buffer for the content of a body that stays compressed, at least as long as the largest one so far.
    content: Vec<u8>,
}

impl Bodies {
    fn new(format: BodyFormat) -> Self {
        Self { format, decompressor: None, content: Vec::new() }
    }

    /// The body in its stored form. Its size was checked when the batch was accepted.
    fn stored(&mut self, blob: Blob) -> Result<ObjectBody, RowBodyError> {
        let is_compressed = blob.encoding() == Encoding::Zstd;
        let size = usize::try_from(blob.size).unwrap_or(usize::MAX);
        match self.format {
            BodyFormat::Zstd if is_compressed => {
                self.check_content(&blob.data, size)?;
                Ok(ObjectBody::Zstd(blob.data))
            }
            BodyFormat::Zstd => {
                std::str::from_utf8(&blob.data).map_err(RowBodyError::NotText)?;
                let compressed = zstd::bulk::compress(&blob.data, ZSTD_LEVEL);
                compressed.map(ObjectBody::Zstd).map_err(RowBodyError::Compress)
            }
            BodyFormat::Text => {
                let json = if is_compressed {
                    let decompressor =
                        decompressor(&mut self.decompressor).map_err(RowBodyError::Decompress)?;
                    decompressor.decompress(&blob.data, size).map_err(RowBodyError::Decompress)?
                } else {
                    blob.data
                };
                String::from_utf8(json)
                    .map(ObjectBody::Text)
                    .map_err(|error| RowBodyError::NotText(error.utf8_error()))
            }
        }
    }

    /// Checks that a compressed body is complete and valid text, since the batch was accepted without decompression.
    fn check_content(&mut self, data: &[u8], size: usize) -> Result<(), RowBodyError> {
        if self.content.len() < size {
            self.content.resize(size, 0);
        }
        let decompressor = decompressor(&mut self.decompressor).map_err(RowBodyError::Decompress)?;
        // Limited to the declared size, regardless of the buffer's.
        let content = &mut self.content[..size];
        let length =
            decompressor.decompress_to_buffer(data, &mut *content).map_err(RowBodyError::Decompress)?;
        std::str::from_utf8(&content[..length]).map_err(RowBodyError::NotText)?;
        Ok(())
    }
}

/// The decompressor, created on first use.
fn decompressor<'a>(
    made: &'a mut Option<zstd::bulk::Decompressor<'static>>,
) -> std::io::Result<&'a mut zstd::bulk::Decompressor<'static>> {
    Ok(match made {
        Some(decompressor) => decompressor,
        none => none.insert(zstd::bulk::Decompressor::new()?),
    })
}

#[cfg(test)]
mod tests {
    use kubesvc_core::wire::events::Batch;

    use super::super::batch_check::check;
    use super::*;

    const JSON: &[u8] = br#"{"kind":"Pod"}"#;
    const FORMATS: [BodyFormat; 2] = [BodyFormat::Text, BodyFormat::Zstd];

    fn blob(encoding: Encoding, data: Vec<u8>) -> Blob {
        Blob { encoding: encoding.into(), size: u32::try_from(JSON.len()).expect("small"), data }
    }

    fn compressed() -> Vec<u8> {
        zstd::bulk::compress(JSON, 1).expect("it compresses")
    }

    /// An uncompressed frame with this content of at most 31 bytes, which declares `size`.
    fn framed(content: &[u8], size: u8) -> Blob {
        let block = u8::try_from((content.len() << 3) | 1).expect("small");
        let header = [0x28, 0xb5, 0x2f, 0xfd, 0x20, size, block, 0, 0];
        let data = header.into_iter().chain(content.iter().copied()).collect();
        Blob { encoding: Encoding::Zstd.into(), size: size.into(), data }
    }

    #[test]
    fn a_body_is_stored_as_text_or_as_zstd_however_it_was_sent() {
        for sent in [blob(Encoding::Raw, JSON.to_vec()), blob(Encoding::Zstd, compressed())] {
            let text = Bodies::new(BodyFormat::Text).stored(sent.clone()).expect("it is text");
            assert_eq!(text, ObjectBody::Text("{\"kind\":\"Pod\"}".into()));
            match Bodies::new(BodyFormat::Zstd).stored(sent) {
                Ok(ObjectBody::Zstd(data)) => {
                    assert_eq!(zstd::bulk::decompress(&data, 100).expect("it is whole"), JSON);
                }
                other => unreachable!("expected zstd, got {other:?}"),
            }
        }
    }

    #[test]
    fn a_body_with_more_content_than_it_says_is_not_decompressed() {
        let spaces = |bytes: usize| {
            let data = zstd::bulk::compress(&vec![b' '; bytes], 1).expect("it compresses");
            Blob { size: u32::try_from(bytes).expect("small"), ..blob(Encoding::Zstd, data) }
        };
        for format in FORMATS {
            let mut bodies = Bodies::new(format);
            // A smaller body must not use the whole buffer of a larger one.
            assert!(bodies.stored(spaces(2 << 20)).is_ok(), "{format:?}");
            let error = bodies.stored(Blob { size: 1000, ..spaces(1 << 20) });
            assert!(matches!(error, Err(RowBodyError::Decompress(_))), "{format:?}: {error:?}");
        }
    }

    #[test]
    fn a_corrupt_body_and_one_that_is_no_text_are_noticed_in_either_format() {
        let whole = framed(JSON, 14);
        let (corrupt, no_text) = (framed(JSON, 15), framed(b"a\xff", 2));
        for sent in [&whole, &corrupt, &no_text] {
            let event = Event {
                op: Operation::Upsert.into(),
                name: "one".into(),
                hash: NO_HASH.to_vec(),
                body: Some(Body::Blob(sent.clone())),
                ..Event::default()
            };
            let batch = Batch { seq: 1, events: vec![event], ..Batch::default() };
            assert!(check(&batch, 0).is_ok(), "the batch is taken: {sent:?}");
        }
        for format in FORMATS {
            let mut bodies = Bodies::new(format);
            assert!(bodies.stored(whole.clone()).is_ok(), "{format:?}");
            let error = bodies.stored(corrupt.clone());
            assert!(matches!(error, Err(RowBodyError::Decompress(_))), "{format:?}: {error:?}");
            for sent in [no_text.clone(), blob(Encoding::Raw, b"a\xff".to_vec())] {
                let error = bodies.stored(sent);
                assert!(matches!(error, Err(RowBodyError::NotText(_))), "{format:?}: {error:?}");
            }
            assert!(bodies.stored(whole.clone()).is_ok(), "{format:?}: the next one is read as before");
        }
    }

    #[test]
    fn a_body_that_is_no_text_is_named_without_its_contents() {
        let error =
            Bodies::new(BodyFormat::Text).stored(blob(Encoding::Raw, vec![b'a', 0xff])).expect_err("no text");
        let left_out = UnstoredItem::Body { namespace: "ns".into(), name: "one".into(), why: error };
        assert_eq!(
            kubesvc_runtime::telemetry::errors::chain(&left_out),
            "the object ns/one is stored without its body: it is no UTF-8: \
             invalid utf-8 sequence of 1 bytes from index 1"
        );
    }
}
