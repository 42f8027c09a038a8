//! The key that signs calls between replicas: one Secret in the operator's namespace.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::ObjectMeta;
use parking_lot::RwLock;
use secrecy::{ExposeSecret, SecretSlice};
use sha2::Sha256;
use tokio::sync::Mutex;
use tokio::time::Instant;
use tracing::info;

use super::JoinPeersError;
use kubesvc_runtime::kube_access::{KubeAccess, KubeError, KubeObjects, WriteOptions, unless_stale};
use kubesvc_runtime::telemetry::outages::warn_unless_away;

/// Name of the Secret.
const SECRET_NAME: &str = "kubesvc-peer";
/// Key in the Secret whose value signs calls and answers.
const SECRET_KEY: &str = "key";
/// Key in the Secret whose value, if present, is accepted as well: the previous or the next key during a
/// rotation.
const SECOND_SECRET_KEY: &str = "other-key";
/// Length of a key's id, in hexadecimal digits.
const KEY_ID_DIGITS: usize = 16;
/// Minimum length of a key, and length of a key created here, in bytes.
const MIN_KEY_BYTES: usize = 32;
/// Minimum interval between two reads of the Secret.
const MIN_READ_INTERVAL: Duration = Duration::from_secs(1);
/// Age at which a key is read again for callers that need the newest one.
const MAX_KEY_AGE: Duration = Duration::from_secs(5);
/// Maximum number of attempts if other clients create and delete the Secret at the same time.
const MAX_ATTEMPTS: usize = 5;

/// A signing key.
pub(super) struct SigningKey {
    bytes: SecretSlice<u8>,
    id: String,
}

impl SigningKey {
    /// Creates a key, or returns `None` if there are too few bytes.
    pub(super) fn new(bytes: Vec<u8>) -> Option<Self> {
        if bytes.len() < MIN_KEY_BYTES {
            return None;
        }
        let mut mac = Hmac::<Sha256>::new_from_slice(&bytes).expect("HMAC takes a key of any length");
        mac.update(b"kubesvc-key-id-1\n");
        let mut id = hex::encode(mac.finalize().into_bytes());
        id.truncate(KEY_ID_DIGITS);
        Some(Self { bytes: SecretSlice::from(bytes), id })
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.bytes.expose_secret()
    }

    /// Identifies the key without revealing it: the beginning of an HMAC under it.
    pub(super) fn id(&self) -> &str {
        &self.id
    }
}

/// The keys in the Secret.
#[derive(Clone, Debug)]
struct PeerKeys {
    /// The key that signs.
    key: Arc<SigningKey>,
    /// A second key that is accepted.
    other: Option<Arc<SigningKey>>,
}

impl PeerKeys {
    fn named(&self, id: &str) -> Option<Arc<SigningKey>> {
        [Some(&self.key), self.other.as_ref()].into_iter().flatten().find(|key| key.id() == id).cloned()
    }

    fn ids(&self) -> (&str, Option<&str>) {
        (self.key.id(), self.other.as_deref().map(SigningKey::id))
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

/// The keys as last read.
pub(super) struct PeerKey {
    secrets: KubeObjects<Secret>,
    namespace: String,
    current: RwLock<PeerKeys>,
    read_at: Mutex<Instant>,
}

impl PeerKey {
    /// Reads the Secret in this namespace, or creates it if there is none.
    ///
    /// # Errors
    /// One line that says what to do, without any part of the key: a permission is missing, the Secret
    /// contains no usable key, or the API server does not answer.
    pub(super) async fn open(kube: &KubeAccess, namespace: &str) -> Result<Self, JoinPeersError> {
        let secrets = kube.namespaced(namespace);
        let keys = read_or_make(&secrets, namespace).await?;
        Ok(Self {
            secrets,
            namespace: namespace.to_owned(),
            current: RwLock::new(keys),
            read_at: Mutex::new(Instant::now()),
        })
    }

    /// For tests: this key, with an API server that has none.
    #[cfg(test)]
    pub(super) fn of_test(key: SigningKey) -> Self {
        let nothing = tower::service_fn(|_: http::Request<kube::client::Body>| async {
            Ok::<_, std::convert::Infallible>(http::Response::new(kube::client::Body::empty()))
        });
        Self {
            secrets: KubeAccess::new(kube::Client::new(nothing, "ns"), "test").namespaced("ns"),
            namespace: "ns".to_owned(),
            current: RwLock::new(PeerKeys { key: Arc::new(key), other: None }),
            read_at: Mutex::new(Instant::now()),
        }
    }

    /// The key that signs.
    pub(super) fn current(&self) -> Arc<SigningKey> {
        Arc::clone(&self.current.read().key)
    }

    /// Returns the key with this id. If there is none, reads the Secret again, at most once a second.
    pub(super) async fn named(&self, id: &str) -> Option<Arc<SigningKey>> {
        let known = self.current.read().named(id);
        if known.is_some() {
            return known;
        }
        let mut read_at = self.read_at.lock().await;
        if self.current.read().named(id).is_none() && read_at.elapsed() >= MIN_READ_INTERVAL {
            *read_at = Instant::now();
            self.read_again().await;
        }
        self.current.read().named(id)
    }

    /// Returns the current key if it is not `known`, which another replica refused. Reads the Secret again
    /// before that, at most once a second.
    pub(super) async fn other_than(&self, known: &SigningKey) -> Option<Arc<SigningKey>> {
        let mut read_at = self.read_at.lock().await;
        if self.current().bytes() == known.bytes() && read_at.elapsed() >= MIN_READ_INTERVAL {
            *read_at = Instant::now();
            self.read_again().await;
        }
        Some(self.current()).filter(|current| current.bytes() != known.bytes())
    }

    /// Returns the key in use, after reading it again if it is older than [`MAX_KEY_AGE`]. Callers during
    /// that read get the former key.
    pub(super) async fn newest(&self) -> Arc<SigningKey> {
        if let Ok(mut read_at) = self.read_at.try_lock()
            && read_at.elapsed() >= MAX_KEY_AGE
        {
            self.read_again().await;
            *read_at = Instant::now();
        }
        self.current()
    }

    async fn read_again(&self) {
        match read_or_make(&self.secrets, &self.namespace).await {
            Ok(keys) if keys.ids() != self.current.read().ids() => {
                info!("the key for calls between replicas changed");
                *self.current.write() = keys;
            }
            Ok(_) => {}
            Err(problem) => warn_unless_away!("{problem}; keeping the previous key"),
        }
    }
}

async fn read_or_make(secrets: &KubeObjects<Secret>, namespace: &str) -> Result<PeerKeys, JoinPeersError> {
    for _ in 0..MAX_ATTEMPTS {
        if let Some(secret) = secrets.get(SECRET_NAME).await.map_err(failed)? {
            return parse(secret, namespace);
        }
        let made = unless_stale(secrets.create(&new_secret()?, WriteOptions::default()).await);
        // If there is none, another replica was faster.
        if let Some(made) = made.map_err(failed)? {
            info!("created Secret {namespace}/{SECRET_NAME} for calls between replicas");
            return parse(made, namespace);
        }
    }
    Err(JoinPeersError::Contended { secret: path(namespace) })
}

fn new_secret() -> Result<Secret, JoinPeersError> {
    let mut bytes = vec![0; MIN_KEY_BYTES];
    rustls::crypto::ring::default_provider()
        .secure_random
        .fill(&mut bytes)
        .map_err(|_| JoinPeersError::NoRandomness)?;
    Ok(Secret {
        metadata: ObjectMeta { name: Some(SECRET_NAME.to_owned()), ..ObjectMeta::default() },
        type_: Some("Opaque".to_owned()),
        data: Some(BTreeMap::from([(SECRET_KEY.to_owned(), ByteString(bytes))])),
        ..Secret::default()
    })
}

fn parse(mut secret: Secret, namespace: &str) -> Result<PeerKeys, JoinPeersError> {
    let mut field = |name| secret.data.as_mut().and_then(|data| data.remove(name)).map(|bytes| bytes.0);
    let unfit = |field| JoinPeersError::Unfit { secret: path(namespace), field, min_bytes: MIN_KEY_BYTES };
    let key = field(SECRET_KEY).and_then(SigningKey::new).ok_or_else(|| unfit(SECRET_KEY))?;
    let other = field(SECOND_SECRET_KEY)
        .map(|bytes| SigningKey::new(bytes).ok_or_else(|| unfit(SECOND_SECRET_KEY)))
        .transpose()?;
    Ok(PeerKeys { key: Arc::new(key), other: other.map(Arc::new) })
}

/// The Secret of this namespace, as people name it.
fn path(namespace: &str) -> String {
    format!("{namespace}/{SECRET_NAME}")
}

fn failed(error: KubeError) -> JoinPeersError {
    let request = error.request();
    match error.code() {
        Some(403) => JoinPeersError::SecretForbidden { verb: request.verb, secret: path(&request.namespace) },
        _ => JoinPeersError::Secret(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_are_made_are_long_enough_and_never_the_same() {
        let key = || parse(new_secret().expect("a Secret"), "ns").expect("a key").key;
        let (one, other) = (key(), key());
        assert_eq!(one.bytes().len(), MIN_KEY_BYTES);
        assert_ne!(one.bytes(), other.bytes());
    }

    #[test]
    fn invalid_key_secret_error_gives_a_remedy_without_the_key() {
        let with = |field: &str, bytes: &[u8]| Secret {
            data: Some(BTreeMap::from([(field.to_owned(), ByteString(bytes.to_vec()))])),
            ..Secret::default()
        };
        for secret in [Secret::default(), with("other", &[7; 32]), with(SECRET_KEY, b"short-s3cret")] {
            let problem = parse(secret, "ns").expect_err("no good key").to_string();
            assert!(problem.contains("ns/kubesvc-peer") && problem.contains("delete it"), "{problem}");
            assert!(!problem.contains("s3cret"), "{problem}");
        }
        assert!(parse(with(SECRET_KEY, &[7; 64]), "ns").is_ok());
    }

    #[test]
    fn a_second_key_is_taken_while_the_first_is_signed_with() {
        let secret = |other: &[u8]| Secret {
            data: Some(BTreeMap::from([
                (SECRET_KEY.to_owned(), ByteString(vec![1; 32])),
                (SECOND_SECRET_KEY.to_owned(), ByteString(other.to_vec())),
            ])),
            ..Secret::default()
        };
        let keys = parse(secret(&[2; 32]), "ns").expect("two keys");
        let id = |byte: u8| SigningKey::new(vec![byte; 32]).expect("long enough").id().to_owned();
        assert_eq!(keys.ids(), (id(1).as_str(), Some(id(2).as_str())));
        assert_eq!(keys.named(&id(2)).map(|key| key.bytes().to_vec()), Some(vec![2; 32]));
        assert!(keys.named(&id(3)).is_none() && keys.named("").is_none());
        assert_eq!(id(1).len(), KEY_ID_DIGITS);
        let problem = parse(secret(b"short"), "ns").expect_err("no good key").to_string();
        assert!(problem.contains(SECOND_SECRET_KEY), "{problem}");
    }
}
