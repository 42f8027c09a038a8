//! Files in a Secret or ConfigMap.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};

use super::files::TextReader;
use super::{CredentialsSource, ObjectKind, SourceReadError};
use kubesvc_clouddriver::sources::{NamedText, SourceSnapshot, is_spring_file};
use kubesvc_runtime::kube_access::{KubeAccess, KubeError};

/// Interval of reads while the object is followed.
const INTERVAL: Duration = Duration::from_secs(15);

/// Reads keys of an object, which the API server bounds to 1 MiB.
pub(super) struct ObjectSource {
    pub(super) kube: KubeAccess,
    pub(super) kind: ObjectKind,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) keys: Vec<String>,
    pub(super) reader: TextReader,
}

impl ObjectSource {
    fn wrong(&self, what: impl Into<String>) -> SourceReadError {
        let Self { kind, namespace, name, .. } = self;
        SourceReadError::ObjectContent {
            kind: *kind,
            namespace: namespace.clone(),
            name: name.clone(),
            what: what.into(),
        }
    }

    /// All keys of the object that hold text; `None` if it does not exist.
    async fn texts(&self) -> Result<Option<BTreeMap<String, Option<String>>>, KubeError> {
        match self.kind {
            ObjectKind::Secret => {
                let secret = self.kube.namespaced::<Secret>(&self.namespace).get(&self.name).await?;
                Ok(secret.map(|secret| {
                    let data = secret.data.unwrap_or_default().into_iter();
                    data.map(|(key, bytes)| (key, String::from_utf8(bytes.0).ok())).collect()
                }))
            }
            ObjectKind::ConfigMap => {
                let map = self.kube.namespaced::<ConfigMap>(&self.namespace).get(&self.name).await?;
                Ok(map.map(|map| {
                    let data = map.data.unwrap_or_default().into_iter();
                    let binary = map.binary_data.unwrap_or_default().into_iter();
                    let binary = binary.map(|(key, bytes)| (key, String::from_utf8(bytes.0).ok()));
                    data.map(|(key, text)| (key, Some(text))).chain(binary).collect()
                }))
            }
        }
    }
}

#[async_trait]
impl CredentialsSource for ObjectSource {
    fn interval(&self) -> Duration {
        INTERVAL
    }

    async fn read(&self) -> Result<Arc<SourceSnapshot>, SourceReadError> {
        let texts = self.texts().await.map_err(|source| SourceReadError::Object {
            kind: self.kind,
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            source,
        })?;
        let Some(mut texts) = texts else { return Err(self.wrong("does not exist")) };
        if let Some(missing) = self.keys.iter().find(|key| !texts.contains_key(*key)) {
            return Err(self.wrong(format!("has no key {missing:?}: put it there, or take it out of keys")));
        }
        texts.retain(|key, _| {
            if self.keys.is_empty() {
                is_spring_file(key, &self.reader.profiles)
            } else {
                self.keys.contains(key)
            }
        });
        if texts.is_empty() {
            return Err(self.wrong("has neither spinnaker.yml nor clouddriver.yml: name its files in keys"));
        }
        // In the order of the settings, which counts for files that Spring does not order.
        let mut files = Vec::new();
        for (name, text) in texts {
            let Some(text) = text else {
                return Err(self.wrong(format!("has a key {name:?} that is not UTF-8")));
            };
            files.push(NamedText { name, text });
        }
        files.sort_by_key(|file| self.keys.iter().position(|key| *key == file.name));
        self.reader.read(&files)
    }
}
