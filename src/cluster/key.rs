//! The key under which replicas sign their calls: one Secret in the operator's namespace.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use parking_lot::RwLock;
use secrecy::{ExposeSecret, SecretSlice};
use tokio::sync::Mutex;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::account::FIELD_MANAGER;

/// The Secret.
const NAME: &str = "kubesvc-peer";
/// The key in it.
const FIELD: &str = "key";
/// How long a key is that is made here, and how long one must be at least, in bytes.
const LENGTH: usize = 32;
/// How long the API server may take.
const WAIT: Duration = Duration::from_secs(15);
/// It is not read again sooner, whoever calls.
const PAUSE: Duration = Duration::from_secs(1);
/// When a key counts as old for those who ask for the newest.
const GETS_OLD: Duration = Duration::from_secs(5);
/// How often the Secret is looked at again when others make and delete it meanwhile.
const ATTEMPTS: usize = 5;

/// A key.
pub(super) struct Key(SecretSlice<u8>);

impl Key {
    /// The bytes as a key, if they are enough.
    pub(super) fn new(bytes: Vec<u8>) -> Option<Self> {
        (bytes.len() >= LENGTH).then(|| Self(SecretSlice::from(bytes)))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.0.expose_secret()
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

/// The key as last read.
pub(super) struct PeerKey {
    secrets: Api<Secret>,
    namespace: String,
    current: RwLock<Arc<Key>>,
    read_at: Mutex<Instant>,
}

impl PeerKey {
    /// Reads the Secret of this namespace, or makes it where there is none.
    ///
    /// # Errors
    /// A right is missing, or the Secret holds no good key. One line, with what to do, without anything of the key.
    pub(super) async fn open(client: Client, namespace: &str) -> Result<Self, String> {
        let secrets = Api::namespaced(client, namespace);
        let key = tokio::time::timeout(WAIT, read_or_make(&secrets, namespace))
            .await
            .unwrap_or_else(|_| Err(format!("Secret {namespace}/{NAME}: the API server does not answer")))?;
        Ok(Self {
            secrets,
            namespace: namespace.to_owned(),
            current: RwLock::new(Arc::new(key)),
            read_at: Mutex::new(Instant::now()),
        })
    }

    /// The key in use.
    pub(super) fn current(&self) -> Arc<Key> {
        Arc::clone(&self.current.read())
    }

    /// A key with which something did not fit: reads the Secret again, at most once a second, and gives the key that is
    /// there now if it is another one.
    pub(super) async fn other_than(&self, known: &Key) -> Option<Arc<Key>> {
        let mut read_at = self.read_at.lock().await;
        if self.current().bytes() == known.bytes() && read_at.elapsed() >= PAUSE {
            *read_at = Instant::now();
            self.read_again().await;
        }
        Some(self.current()).filter(|current| current.bytes() != known.bytes())
    }

    /// The key in use, read again if that was not done for a while. Whoever asks while it is read has the former one.
    pub(super) async fn newest(&self) -> Arc<Key> {
        if let Ok(mut read_at) = self.read_at.try_lock()
            && read_at.elapsed() >= GETS_OLD
        {
            self.read_again().await;
            *read_at = Instant::now();
        }
        self.current()
    }

    async fn read_again(&self) {
        match tokio::time::timeout(WAIT, read_or_make(&self.secrets, &self.namespace)).await {
            Ok(Ok(key)) if key.bytes() != self.current().bytes() => {
                info!("the key for calls between replicas was changed");
                *self.current.write() = Arc::new(key);
            }
            Ok(Ok(_)) => {}
            Ok(Err(problem)) => warn!("{problem}; the former key stays in use"),
            Err(_) => {
                warn!("Secret {}/{NAME} was not read in time; the former key stays in use", self.namespace);
            }
        }
    }
}

async fn read_or_make(secrets: &Api<Secret>, namespace: &str) -> Result<Key, String> {
    for _ in 0..ATTEMPTS {
        if let Some(secret) = secrets.get_opt(NAME).await.map_err(|error| failed(namespace, "get", &error))? {
            return parse(secret, namespace);
        }
        match secrets
            .create(
                &PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() },
                &new_secret()?,
            )
            .await
        {
            Ok(made) => {
                info!("Secret {namespace}/{NAME} was made, for calls between replicas");
                return parse(made, namespace);
            }
            // Another replica was faster.
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => return Err(failed(namespace, "create", &error)),
        }
    }
    Err(format!("Secret {namespace}/{NAME} is made and deleted all the time; let it be"))
}

fn new_secret() -> Result<Secret, String> {
    let mut bytes = vec![0; LENGTH];
    rustls::crypto::ring::default_provider()
        .secure_random
        .fill(&mut bytes)
        .map_err(|_| "the system gives no random numbers".to_owned())?;
    Ok(Secret {
        metadata: ObjectMeta { name: Some(NAME.to_owned()), ..ObjectMeta::default() },
        type_: Some("Opaque".to_owned()),
        data: Some(BTreeMap::from([(FIELD.to_owned(), ByteString(bytes))])),
        ..Secret::default()
    })
}

fn parse(mut secret: Secret, namespace: &str) -> Result<Key, String> {
    let bytes = secret.data.as_mut().and_then(|data| data.remove(FIELD)).map(|bytes| bytes.0);
    bytes.and_then(Key::new).ok_or_else(|| {
        format!(
            "Secret {namespace}/{NAME} must have {LENGTH} random bytes or more under {FIELD:?}; delete it, and it is made anew"
        )
    })
}

/// An error of the client in words that hold nothing of the Secret.
fn failed(namespace: &str, verb: &str, error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if status.code == 403 => format!(
            "the operator may not {verb} Secret {namespace}/{NAME}, whose key signs calls between replicas; apply \
             config/rbac, or set kubesvc.cluster: local for one replica"
        ),
        kube::Error::Api(status) => {
            format!(
                "cannot {verb} Secret {namespace}/{NAME}: the API server answered {} {}",
                status.code, status.reason
            )
        }
        _ => format!("cannot {verb} Secret {namespace}/{NAME}: the API server cannot be reached"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_are_made_are_long_enough_and_never_the_same() {
        let key = || parse(new_secret().expect("a Secret"), "ns").expect("a key");
        let (one, other) = (key(), key());
        assert_eq!(one.bytes().len(), LENGTH);
        assert_ne!(one.bytes(), other.bytes());
    }

    #[test]
    fn a_secret_without_a_good_key_says_what_to_do_and_nothing_of_it() {
        let with = |field: &str, bytes: &[u8]| Secret {
            data: Some(BTreeMap::from([(field.to_owned(), ByteString(bytes.to_vec()))])),
            ..Secret::default()
        };
        for secret in [Secret::default(), with("other", &[7; 32]), with(FIELD, b"short-s3cret")] {
            let problem = parse(secret, "ns").expect_err("no good key");
            assert!(problem.contains("ns/kubesvc-peer") && problem.contains("delete it"), "{problem}");
            assert!(!problem.contains("s3cret"), "{problem}");
        }
        assert!(parse(with(FIELD, &[7; 64]), "ns").is_ok());
    }
}
