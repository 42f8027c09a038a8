//! Which parts of a spec reach an agent, and whether they changed.

use serde::Serialize;
use sha2::{Digest, Sha256};

use super::spec::{ExposedCustomResource, KubeconfigSource, KubesvcAccountSpec};

/// The parts of a spec that `AddAccounts` carries. `permissions`, `environment`, `accountType` and `customResources`
/// are only for Spinnaker: changing them updates the row and involves no agent.
#[derive(Serialize)]
struct SentDefinition<'a> {
    kubeconfig: &'a KubeconfigSource,
    context: Option<&'a str>,
    insecure: bool,
    namespaces: &'a [String],
    omit_namespaces: &'a [String],
    kinds: &'a [String],
    omit_kinds: &'a [String],
    only_namespaced_resources: bool,
    custom_resource_definitions: &'a [ExposedCustomResource],
    only_spinnaker_managed: bool,
    metrics: bool,
    no_proxy: bool,
    max_resumable_resource_age_ms: Option<i64>,
}

/// A digest of the parts of a spec that agents receive: 16 hex digits. It covers no credential; a Secret counts by
/// its version, which is stored beside the digest in the status.
pub fn digest(spec: &KubesvcAccountSpec) -> String {
    let definition = SentDefinition {
        kubeconfig: spec.agent_source(),
        context: spec.context.as_deref(),
        insecure: spec.insecure.unwrap_or_default(),
        namespaces: &spec.namespaces,
        omit_namespaces: &spec.omit_namespaces,
        kinds: &spec.kinds,
        omit_kinds: &spec.omit_kinds,
        only_namespaced_resources: spec.only_namespaced_resources.unwrap_or_default(),
        custom_resource_definitions: &spec.custom_resource_definitions,
        only_spinnaker_managed: spec.only_spinnaker_managed.unwrap_or_default(),
        metrics: spec.metrics.unwrap_or_default(),
        no_proxy: spec.no_proxy.unwrap_or_default(),
        max_resumable_resource_age_ms: spec.max_resumable_resource_age_ms,
    };
    let bytes = serde_json::to_vec(&definition).expect("strings, numbers and lists are JSON");
    hex::encode(&Sha256::digest(bytes)[..8])
}
