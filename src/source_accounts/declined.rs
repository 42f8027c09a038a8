//! The ConfigMap of the accounts that people deleted although their source still has them.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use kubesvc_clouddriver::migration::DeclinedNames;
use kubesvc_runtime::kube_access::{KubeAccess, KubeError, KubeObjects, WriteOptions};
use kubesvc_runtime::rate_limit::Urgency;

/// Name of the ConfigMap, in the operator's namespace.
const NAME: &str = "kubesvc-migration-declined";
/// Its key: one line for each account.
const KEY: &str = "accounts";

/// Reads and writes the ConfigMap.
#[derive(Clone)]
pub struct DeclinedAccounts(KubeObjects<ConfigMap>);

/// The declined accounts, as they were read.
#[derive(Clone, Debug, Default)]
pub struct ReadDeclined {
    /// The accounts.
    pub names: DeclinedNames,
    object: Option<ConfigMap>,
}

impl DeclinedAccounts {
    /// The declined accounts of the installation in this namespace.
    pub fn new(kube: &KubeAccess, namespace: &str) -> Self {
        Self(kube.namespaced(namespace))
    }

    /// Reads the accounts; a ConfigMap that does not exist has none.
    pub async fn read(&self) -> Result<ReadDeclined, KubeError> {
        Ok(ReadDeclined::of(self.0.get(NAME).await?))
    }

    /// Replaces the accounts at the version that was read. A conflict is an error that is stale: read again.
    pub async fn write(&self, names: &DeclinedNames, read: &ReadDeclined) -> Result<ReadDeclined, KubeError> {
        let options = WriteOptions::with(Urgency::Rest).at("migration-declined");
        let mut object = read.object.clone().unwrap_or_else(|| ConfigMap {
            metadata: ObjectMeta { name: Some(NAME.to_owned()), ..ObjectMeta::default() },
            ..ConfigMap::default()
        });
        object.data = Some(BTreeMap::from([(KEY.to_owned(), names.to_string())]));
        let written = match &read.object {
            Some(_) => self.0.replace(&object, options).await,
            None => self.0.create(&object, options).await,
        };
        written.map(|object| ReadDeclined::of(Some(object)))
    }
}

impl ReadDeclined {
    /// Changes with the accounts.
    pub fn version(&self) -> Option<String> {
        self.object.as_ref().and_then(|object| object.metadata.resource_version.clone())
    }

    fn of(object: Option<ConfigMap>) -> Self {
        let data = object.as_ref().and_then(|object| object.data.as_ref());
        let text = data.and_then(|data| data.get(KEY)).map(String::as_str).unwrap_or_default();
        Self { names: DeclinedNames::parse(text), object }
    }
}
