//! Objects of the target cluster: Deployments and StatefulSets of about 4 KB, with the fields that charts give them.

use kube::{
    Client,
    api::{Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::{objects::each, progress::Bar};

/// Size of an object without what the API server adds, in bytes.
const OBJECT_BYTES: usize = 3_600;

/// Objects of one kind in one namespace.
#[derive(Clone)]
pub(crate) struct Workloads {
    api: Api<DynamicObject>,
    kind: &'static str,
}

impl Workloads {
    /// Deployments of a namespace: what is cached.
    pub(crate) fn deployments(client: &Client, namespace: &str) -> Self {
        Self::new(client, namespace, "Deployment")
    }

    /// StatefulSets of a namespace: what the bare loops follow.
    pub(crate) fn stateful_sets(client: &Client, namespace: &str) -> Self {
        Self::new(client, namespace, "StatefulSet")
    }

    fn new(client: &Client, namespace: &str, kind: &'static str) -> Self {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("apps", "v1", kind));
        Self { api: Api::namespaced_with(client.clone(), namespace, &resource), kind }
    }

    /// Creates `count` objects.
    pub(crate) async fn create(&self, count: usize) -> Result<(), String> {
        let bar = Bar::start(&format!("{count} {}s", self.kind), count);
        each(count, async |number| {
            let object = workload(self.kind, &name(number));
            let object: DynamicObject = serde_json::from_value(object).map_err(|e| e.to_string())?;
            self.api.create(&PostParams::default(), &object).await.map_err(|e| e.to_string())?;
            bar.step();
            Ok(())
        })
        .await?;
        bar.finish();
        Ok(())
    }

    /// Changes an object. Returns its new resource version.
    pub(crate) async fn change(&self, number: usize, change: usize) -> Result<String, String> {
        let patch =
            json!({"spec": {"template": {"metadata": {"annotations": {"change": change.to_string()}}}}});
        let patched = self.api.patch(&name(number), &PatchParams::default(), &Patch::Merge(&patch)).await;
        let patched = patched.map_err(|e| e.to_string())?;
        patched.metadata.resource_version.ok_or_else(|| "an object without a version".to_owned())
    }
}

/// Name of the object of this number.
pub(crate) fn name(number: usize) -> String {
    format!("workload-{number:06}")
}

fn workload(kind: &str, name: &str) -> Value {
    let labels = json!({"app.kubernetes.io/name": name, "app.kubernetes.io/managed-by": "bench"});
    let probe = |path: &str| json!({"httpGet": {"path": path, "port": "http"}, "periodSeconds": 10, "timeoutSeconds": 2});
    let mut object = json!({
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name, "labels": labels, "annotations": {"moniker.spinnaker.io/application": "shop"}},
        "spec": {
            "replicas": 3,
            "selector": {"matchLabels": {"app.kubernetes.io/name": name}},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "serviceAccountName": name,
                    "containers": [{
                        "name": "main",
                        "image": format!("registry.example/{name}@sha256:{}", hex::encode([7; 32])),
                        "ports": [{"name": "http", "containerPort": 8080}, {"name": "metrics", "containerPort": 9090}],
                        "livenessProbe": probe("/health/liveness"),
                        "readinessProbe": probe("/health/readiness"),
                        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}},
                        "volumeMounts": [{"name": "settings", "mountPath": "/etc/settings", "readOnly": true}],
                        "env": [],
                    }],
                    "volumes": [{"name": "settings", "configMap": {"name": name}}],
                }
            }
        }
    });
    if kind == "StatefulSet" {
        object["spec"]["serviceName"] = json!(name);
    }
    let mut number = 0;
    while object.to_string().len() < OBJECT_BYTES {
        let value = format!("value-{number}-of-{name}-{}", number * 7919 % 104_729);
        let env = json!({"name": format!("SETTING_{number}"), "value": value});
        let all = object["spec"]["template"]["spec"]["containers"][0]["env"].as_array_mut();
        all.into_iter().for_each(|all| all.push(env.clone()));
        number += 1;
    }
    object
}
