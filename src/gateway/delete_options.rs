//! What the body of a delete says: kubectl writes `dryRun` there, not into the query. Pure.

use prost::Message;
use prost::bytes::Bytes;
use serde::Deserialize;

/// Maximum size of options that are read, in bytes.
pub(super) const MAX_BYTES: usize = 16 * 1024;
/// What each message of Kubernetes in protobuf begins with.
const PROTOBUF_MAGIC: &[u8] = b"k8s\0";

#[derive(Deserialize)]
struct JsonOptions {
    #[serde(default, rename = "dryRun")]
    dry_run: Option<Vec<String>>,
}

/// `runtime.Unknown` of `k8s.io/apimachinery`, as far as it is read.
#[derive(Clone, PartialEq, Message)]
struct Envelope {
    #[prost(bytes = "bytes", tag = "2")]
    raw: Bytes,
}

/// `meta.v1.DeleteOptions`, as far as it is read.
#[derive(Clone, PartialEq, Message)]
struct ProtobufOptions {
    #[prost(string, repeated, tag = "5")]
    dry_run: Vec<String>,
}

/// Whether the body of a delete asks for a dry run; `None`: there is none, and the query says it. A body that cannot be read
/// here, because it is too large or in YAML or CBOR, asks for none: the cluster's API server may read it, and deletes.
pub(super) fn is_dry_run(body: &[u8]) -> Option<bool> {
    if body.is_empty() {
        return None;
    }
    Some(body.len() <= MAX_BYTES && asks_for_dry_run(body).unwrap_or_default())
}

/// Whether options in JSON or protobuf ask for a dry run; `None`: they cannot be read.
fn asks_for_dry_run(body: &[u8]) -> Option<bool> {
    let dry_run = match body.strip_prefix(PROTOBUF_MAGIC) {
        Some(envelope) => ProtobufOptions::decode(Envelope::decode(envelope).ok()?.raw).ok()?.dry_run,
        None => serde_json::from_slice::<JsonOptions>(body).ok()?.dry_run.unwrap_or_default(),
    };
    Some(dry_run.iter().any(|stage| stage == "All"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dry_run_is_read_from_the_options_of_a_delete() {
        let kubectl = br#"{"kind":"DeleteOptions","apiVersion":"v1","propagationPolicy":"Background","dryRun":["All"]}"#;
        assert_eq!(is_dry_run(kubectl), Some(true));
        for real in
            [&br#"{"propagationPolicy":"Background"}"#[..], br#"{"dryRun":[]}"#, br#"{"dryRun":null}"#]
        {
            assert_eq!(is_dry_run(real), Some(false));
        }
        assert_eq!(is_dry_run(b""), None, "the query says it");
    }

    #[test]
    fn a_body_that_cannot_be_read_is_no_dry_run() {
        let blanks = format!("{{\"dryRun\":[\"All\"]{}}}", " ".repeat(20_000));
        let cbor = b"\xd9\xd9\xf7\xa1\x46dryRun\x81\x43All";
        for unread in [
            &b"dryRun: [All]"[..],
            b"7",
            b" ",
            br#"{"dryRun":"All"}"#,
            br#"{"dryRun":["All"],"dryRun":[]}"#,
            b"k8s\0\xff",
            cbor,
            blanks.as_bytes(),
        ] {
            assert_eq!(is_dry_run(unread), Some(false), "{:?}", unread.get(..40));
        }
    }

    #[test]
    fn options_in_protobuf_are_read_too() {
        let body = |dry_run: &[&str]| {
            let dry_run = dry_run.iter().map(ToString::to_string).collect();
            let raw = ProtobufOptions { dry_run }.encode_to_vec().into();
            [PROTOBUF_MAGIC, &Envelope { raw }.encode_to_vec()].concat()
        };
        assert_eq!((is_dry_run(&body(&["All"])), is_dry_run(&body(&[]))), (Some(true), Some(false)));
    }
}
