//! Recorded objects: the bodies that a cluster would send, made ready as the agent does, before anything is measured.

use kubesvc_core::{
    cache::{keys::object_id, native::kind_name},
    wire::events::{Blob, Event, blob::Encoding, event},
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// Size of a body, in bytes.
pub(crate) const BODY_BYTES: usize = 4096;
/// Number of the only scope that the feeder declares.
pub(crate) const SCOPE: u32 = 1;
/// Namespace of all objects.
pub(crate) const NAMESPACE: &str = "bench";
/// Group, version, kind and plural of all objects. Rows of its kind have no relations without owners.
pub(crate) const KIND: [&str; 4] = ["", "v1", "ConfigMap", "configmaps"];
/// The level at which the agent compresses.
const ZSTD_LEVEL: i32 = 1;

/// One version of an object.
#[derive(Debug, Clone)]
pub(crate) struct Recorded {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) version: String,
    pub(crate) body: String,
    pub(crate) hash: [u8; 32],
    compressed: Vec<u8>,
}

impl Recorded {
    /// Version `version` of object `number` of a set. Its body has [`BODY_BYTES`] bytes, about a third of them text that
    /// does not repeat in other objects.
    pub(crate) fn new(set: &str, number: usize, version: u64) -> Self {
        let (name, uid) = (format!("{set}-{number:06}"), format!("{set}-{number:06}-uid"));
        let body = body(&name, &uid, version);
        let hash = Sha256::digest(&body).into();
        let compressed = zstd::bulk::compress(body.as_bytes(), ZSTD_LEVEL).unwrap_or_default();
        Self { name, uid, version: version.to_string(), body, hash, compressed }
    }

    /// An object that something else than the feeder writes.
    pub(crate) fn of(name: String, uid: String, version: String, body: String) -> Self {
        let hash = Sha256::digest(&body).into();
        Self { name, uid, version, body, hash, compressed: Vec::new() }
    }

    /// Id of the object's row for an account.
    pub(crate) fn id(&self, account: &str) -> String {
        object_id(&kind_name(KIND[0], KIND[2]), account, NAMESPACE, &self.name)
    }

    /// The event that the agent would send.
    pub(crate) fn event(&self) -> Event {
        let blob = Blob {
            encoding: Encoding::Zstd.into(),
            size: u32::try_from(self.body.len()).unwrap_or(u32::MAX),
            data: self.compressed.clone(),
        };
        Event {
            scope_id: SCOPE,
            op: event::Operation::Upsert.into(),
            namespace: NAMESPACE.into(),
            name: self.name.clone(),
            uid: self.uid.clone(),
            rv: self.version.clone(),
            hash: self.hash.to_vec(),
            body: Some(event::Body::Blob(blob)),
            ..Event::default()
        }
    }
}

fn body(name: &str, uid: &str, version: u64) -> String {
    let mut body = json!({
        "apiVersion": "v1",
        "kind": KIND[2],
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": uid,
            "resourceVersion": version.to_string(),
            "creationTimestamp": "2026-11-23T12:00:00Z",
            "labels": {"app.kubernetes.io/managed-by": "bench", "version": version.to_string()},
        },
        "data": {"settings.yaml": ""},
    });
    let room = BODY_BYTES.saturating_sub(body.to_string().len());
    let mut text = String::with_capacity(room);
    let mut seed = Sha256::digest(format!("{uid}/{version}"));
    while text.len() < room {
        // A line of a settings file: two thirds are the same everywhere.
        text.push_str("server.limits.connections.maximum: value-");
        text.push_str(&hex::encode(&seed[..10]));
        text.push(' ');
        seed = Sha256::digest(seed);
    }
    text.truncate(room);
    body["data"]["settings.yaml"] = Value::String(text);
    body.to_string()
}
