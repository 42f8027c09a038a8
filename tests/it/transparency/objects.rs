//! The objects that a way left: of its namespace, and those of the cluster that bear its name.

use std::collections::BTreeMap;

use http::Request;
use kube::Client;
use serde_json::Value;

use super::normal;
use super::ways::Way;

/// Resources of the namespace.
const NAMESPACED: [&str; 21] = [
    "api/v1/{}/configmaps",
    "api/v1/{}/secrets",
    "api/v1/{}/services",
    "api/v1/{}/serviceaccounts",
    "api/v1/{}/pods",
    "api/v1/{}/resourcequotas",
    "apis/apps/v1/{}/deployments",
    "apis/apps/v1/{}/replicasets",
    "apis/apps/v1/{}/statefulsets",
    "apis/apps/v1/{}/daemonsets",
    "apis/apps/v1/{}/controllerrevisions",
    "apis/batch/v1/{}/jobs",
    "apis/batch/v1/{}/cronjobs",
    "apis/autoscaling/v2/{}/horizontalpodautoscalers",
    "apis/networking.k8s.io/v1/{}/ingresses",
    "apis/policy/v1/{}/poddisruptionbudgets",
    "apis/rbac.authorization.k8s.io/v1/{}/roles",
    "apis/rbac.authorization.k8s.io/v1/{}/rolebindings",
    "api/v1/{}/persistentvolumeclaims",
    "apis/coordination.k8s.io/v1/{}/leases",
    "apis/{way}.example.com/v1/{}/widgets",
];
/// Resources of the cluster.
const CLUSTER_WIDE: [&str; 7] = [
    "api/v1/namespaces",
    "api/v1/nodes",
    "apis/rbac.authorization.k8s.io/v1/clusterroles",
    "apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "apis/certificates.k8s.io/v1/certificatesigningrequests",
    "apis/scheduling.k8s.io/v1/priorityclasses",
];

/// The objects of a way, without what must differ.
pub(super) async fn left_by(client: &Client, way: &Way) -> Result<BTreeMap<String, Vec<String>>, String> {
    let in_namespace = format!("namespaces/{}", way.namespace);
    let own = NAMESPACED.map(|path| path.replace("{}", &in_namespace).replace("{way}", &way.name));
    let paths =
        own.into_iter().map(|path| (path, false)).chain(CLUSTER_WIDE.map(|path| (path.to_owned(), true)));
    let listing = paths.map(|(path, is_cluster_wide)| async move {
        let mut objects = list(client, &path).await?;
        if is_cluster_wide {
            objects.retain(|object| {
                object["metadata"]["name"].as_str().is_some_and(|name| name.contains(&way.name))
            });
        }
        let mut texts: Vec<_> =
            objects.into_iter().map(|object| normal::text(way, &described(object))).collect();
        texts.sort();
        Ok::<_, String>((normal::text(way, &path), texts))
    });
    let listed = futures::future::join_all(listing).await;
    listed.into_iter().collect()
}

async fn list(client: &Client, path: &str) -> Result<Vec<Value>, String> {
    let request = Request::get(format!("/{path}")).body(Vec::new()).map_err(|e| e.to_string())?;
    match client.request::<Value>(request).await {
        Ok(mut list) => Ok(list["items"].as_array_mut().map(std::mem::take).unwrap_or_default()),
        // A kind that is not there yet, or no longer.
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
        Err(error) => Err(format!("{path}: {error}")),
    }
}

/// An object as text. Managers of fields are sorted by the second of their last change, which is chance.
fn described(mut object: Value) -> String {
    if let Some(managers) = object["metadata"]["managedFields"].as_array_mut() {
        managers.sort_by_cached_key(|entry| {
            ["manager", "operation", "subresource"]
                .map(|field| entry[field].as_str().unwrap_or_default().to_owned())
        });
    }
    if object["type"] == "helm.sh/release.v1" {
        // Compressed, with times in it. `helm get` shows what it has.
        object["data"]["release"] = "RELEASE".into();
    }
    if let Some(conditions) = object["status"]["conditions"].as_array_mut() {
        conditions.sort_by_cached_key(|condition| condition["type"].to_string());
    }
    format!("{object:#}")
}
