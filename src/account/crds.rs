//! The custom resource definitions, as `kubesvc-operator crds` prints them and `crds/` holds them.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{CustomResourceDefinition, JSON};
use kube::CustomResourceExt;

use super::{KubesvcAccount, KubesvcAgent};

/// The two definitions, each with the name of its file in `crds/`.
pub fn all() -> [(&'static str, CustomResourceDefinition); 2] {
    [("kubesvcaccounts.yaml", account()), ("kubesvcagents.yaml", KubesvcAgent::crd())]
}

/// An account that no operator has seen yet must read as in progress to kstatus, so that Argo CD and Flux wait for
/// it: its status starts with an `observedGeneration` that no generation equals.
fn account() -> CustomResourceDefinition {
    let mut crd = KubesvcAccount::crd();
    let status = crd
        .spec
        .versions
        .first_mut()
        .and_then(|version| {
            version.schema.as_mut()?.open_api_v3_schema.as_mut()?.properties.as_mut()?.get_mut("status")
        })
        .expect("the derived schema has a status");
    status.default = Some(JSON(serde_json::json!({ "observedGeneration": -1 })));
    crd
}
