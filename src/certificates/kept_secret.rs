//! Secrets that the operator makes for itself and that all its replicas share: the first replica creates one, and each
//! writes what it must have next.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;
use kube::api::ObjectMeta;
use tracing::info;

use kubesvc_runtime::kube_access::{KubeError, KubeObjects, WriteOptions, unless_stale};

/// Maximum number of attempts if other replicas write the Secret at the same time.
const MAX_ATTEMPTS: usize = 5;

/// What a Secret has, in fields of its own.
pub trait SecretFiles: Clone + Default {
    /// The name of each field, and its bytes. An empty field is not written.
    fn fields(&mut self) -> impl Iterator<Item = (&'static str, &mut Vec<u8>)>;
}

/// A Secret that is kept.
pub struct KeptSecret<'k> {
    /// The Secrets of its namespace.
    pub secrets: &'k KubeObjects<Secret>,
    pub name: &'static str,
    /// Its type, if it is created.
    pub type_: &'static str,
    /// What it has, for the log.
    pub content: &'static str,
    pub write: WriteOptions,
}

impl KeptSecret<'_> {
    /// Reads the Secret, and writes what it must have instead, if `next` says so. `None` if other clients write it again
    /// and again.
    ///
    /// # Errors
    /// A request fails, or `next` does.
    pub async fn keep<F: SecretFiles, E: From<KubeError>>(
        &self,
        next: impl Fn(&F) -> Result<Option<F>, E>,
    ) -> Result<Option<F>, E> {
        for _ in 0..MAX_ATTEMPTS {
            let found = self.secrets.get(self.name).await?;
            let files = found.as_ref().map(read).unwrap_or_default();
            let Some(files) = next(&files)? else { return Ok(Some(files)) };
            let written = match found {
                Some(found) => {
                    let secret = Secret { data: Some(data(&files)), ..found };
                    self.secrets.replace(&secret, self.write).await
                }
                None => self.secrets.create(&self.with(&files), self.write).await,
            };
            // If it is stale, another replica was faster.
            if let Some(written) = unless_stale(written)? {
                let namespace = written.namespace().unwrap_or_default();
                info!("wrote Secret {namespace}/{}, with {}", self.name, self.content);
                return Ok(Some(files));
            }
        }
        Ok(None)
    }

    fn with<F: SecretFiles>(&self, files: &F) -> Secret {
        Secret {
            metadata: ObjectMeta { name: Some(self.name.to_owned()), ..ObjectMeta::default() },
            type_: Some(self.type_.to_owned()),
            data: Some(data(files)),
            ..Secret::default()
        }
    }
}

fn read<F: SecretFiles>(secret: &Secret) -> F {
    let mut files = F::default();
    for (name, bytes) in files.fields() {
        let field = secret.data.as_ref().and_then(|data| data.get(name));
        *bytes = field.map(|field| field.0.clone()).unwrap_or_default();
    }
    files
}

fn data<F: SecretFiles>(files: &F) -> BTreeMap<String, ByteString> {
    let mut files = files.clone();
    let given = files.fields().filter(|(_, bytes)| !bytes.is_empty());
    given.map(|(name, bytes)| (name.to_owned(), ByteString(std::mem::take(bytes)))).collect()
}
