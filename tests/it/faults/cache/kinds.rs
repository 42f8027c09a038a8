//! The kinds that the writer changes, what it writes, and what a row of it must say: read from the object alone, without
//! kubesvc's code.

use fastrand::Rng;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};

/// Applications between which objects move.
const APPLICATIONS: [&str; 3] = ["shop", "till", "stock"];
/// Annotation that names the application.
const APPLICATION: &str = "moniker.spinnaker.io/application";
/// Label that names the application of an object without the annotation.
const APPLICATION_LABEL: &str = "app.kubernetes.io/name";
/// Annotation that no row has, as `kubectl apply` writes it. It repeats the data of Secrets.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// A text in the data of each Secret, plain and in Base64, and in its last-applied annotation.
pub(crate) const CANARIES: [&str; 2] = ["canary-of-the-writer", "Y2FuYXJ5LW9mLXRoZS13cml0ZXI"];

/// A kind that the writer changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum WrittenKind {
    Deployment,
    ReplicaSet,
    ConfigMap,
    Secret,
    /// Of a CRD that [`definition`] makes.
    Gadget,
}

/// The kinds that every API server has.
pub(crate) const NATIVE_KINDS: [WrittenKind; 4] =
    [WrittenKind::Deployment, WrittenKind::ReplicaSet, WrittenKind::ConfigMap, WrittenKind::Secret];

/// Group of the CRD of a namespace: two tests on one control plane have one each.
pub(crate) fn group(namespace: &str) -> String {
    format!("{namespace}.example.com")
}

/// Name of the CRD of a namespace.
pub(crate) fn definition_name(namespace: &str) -> String {
    format!("gadgets.{}", group(namespace))
}

/// The CRD of a namespace. Its objects keep any field, among them one named as the data of a Secret.
pub(crate) fn definition(namespace: &str) -> Value {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": definition_name(namespace)},
        "spec": {
            "group": group(namespace),
            "scope": "Namespaced",
            "names": {"plural": "gadgets", "singular": "gadget", "kind": "Gadget", "listKind": "GadgetList"},
            "versions": [{
                "name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
            }],
        },
    })
}

impl WrittenKind {
    fn resource(self, namespace: &str) -> ApiResource {
        let of_group = group(namespace);
        let (group, version, kind, plural) = match self {
            Self::Deployment => ("apps", "v1", "Deployment", "deployments"),
            Self::ReplicaSet => ("apps", "v1", "ReplicaSet", "replicasets"),
            Self::ConfigMap => ("", "v1", "ConfigMap", "configmaps"),
            Self::Secret => ("", "v1", "Secret", "secrets"),
            Self::Gadget => (of_group.as_str(), "v1", "Gadget", "gadgets"),
        };
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
    }

    /// Its API in a namespace.
    pub(crate) fn api(self, client: Client, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(client, namespace, &self.resource(namespace))
    }

    /// Kind in the rows of a namespace.
    pub(crate) fn cached(self, namespace: &str) -> String {
        match self {
            Self::Deployment => "deployment".to_owned(),
            Self::ReplicaSet => "replicaSet".to_owned(),
            Self::ConfigMap => "configMap".to_owned(),
            Self::Secret => "secret".to_owned(),
            Self::Gadget => format!("Gadget.{}", group(namespace)),
        }
    }

    /// A new object.
    pub(super) fn object(self, namespace: &str, name: &str, random: &mut Rng) -> Value {
        let (mut object, resource) = (self.change(name, random), self.resource(namespace));
        object["apiVersion"] = json!(resource.api_version);
        object["kind"] = json!(resource.kind);
        object["metadata"]["name"] = json!(name);
        // What a patch takes away is not there yet.
        for place in ["annotations", "labels"] {
            if let Some(all) = object["metadata"][place].as_object_mut() {
                all.retain(|_, value| !value.is_null());
            }
        }
        let labels = json!({"matchLabels": {"pod": name}});
        let template = json!({
            "metadata": {"labels": {"pod": name}},
            "spec": {"containers": [{"name": "c", "image": "i"}]},
        });
        match self {
            Self::Deployment | Self::ReplicaSet => {
                object["spec"]["selector"] = labels;
                object["spec"]["template"] = template;
            }
            Self::ConfigMap | Self::Secret | Self::Gadget => {}
        }
        if self == Self::ReplicaSet {
            object["metadata"]["ownerReferences"] = json!([{
                "apiVersion": "apps/v1", "kind": "Deployment", "controller": true,
                "name": format!("deployment-{:02}", random.u8(0..10)), "uid": "00000000-0000-4000-8000-000000000000",
            }]);
        }
        object
    }

    /// A merge patch that changes the content, and the application now and then.
    pub(super) fn change(self, name: &str, random: &mut Rng) -> Value {
        let mut annotations = json!({"example.com/round": random.u32(..).to_string()});
        let mut labels = json!({});
        match random.u8(0..8) {
            0..=2 => annotations[APPLICATION] = json!(APPLICATIONS[random.usize(0..APPLICATIONS.len())]),
            3 => annotations[APPLICATION] = Value::Null,
            4 => labels[APPLICATION_LABEL] = json!(APPLICATIONS[random.usize(0..APPLICATIONS.len())]),
            5 => labels[APPLICATION_LABEL] = Value::Null,
            _ => {}
        }
        let length = random.usize(10..600);
        let text: String = std::iter::repeat_with(|| random.alphanumeric()).take(length).collect();
        let content = match self {
            Self::Deployment | Self::ReplicaSet => json!({"spec": {"replicas": random.u8(0..9)}}),
            Self::ConfigMap => json!({"data": {"text": text}}),
            Self::Secret => {
                annotations[LAST_APPLIED] = json!(format!("{{\"data\":\"{}\"}}", CANARIES[1]));
                json!({"stringData": {"password": CANARIES[0], "of": name}})
            }
            Self::Gadget => json!({"data": {"text": text}, "spec": {"data": random.u32(..)}}),
        };
        let mut object = json!({"metadata": {"annotations": annotations, "labels": labels}});
        if let (Some(object), Value::Object(content)) = (object.as_object_mut(), content) {
            object.extend(content);
        }
        object
    }

    /// The body of an object's row.
    pub(super) fn body(self, object: &DynamicObject) -> Value {
        let mut body = serde_json::to_value(object).expect("it was JSON");
        // Items of a list do not name their kind.
        let resource = self.resource(&object.namespace().unwrap_or_default());
        body["apiVersion"] = json!(resource.api_version);
        body["kind"] = json!(resource.kind);
        let removed =
            |place: &mut Value, name: &str| drop(place.as_object_mut().and_then(|all| all.remove(name)));
        removed(&mut body["metadata"], "managedFields");
        if body["metadata"].get("annotations").is_some() {
            removed(&mut body["metadata"]["annotations"], LAST_APPLIED);
        }
        if self == Self::Secret {
            ["data", "type"].iter().for_each(|field| removed(&mut body, field));
            // Others may repeat the data.
            if let Some(annotations) = body["metadata"].get_mut("annotations").and_then(Value::as_object_mut)
            {
                annotations.retain(|name, _| name == APPLICATION);
            }
        }
        body
    }

    /// What an object is related to: type and id, in order.
    pub(super) fn relations(self, account: &str, object: &DynamicObject) -> Vec<(String, String)> {
        let (name, namespace) = (object.name_any(), object.namespace().unwrap_or_default());
        let mut relations = Vec::new();
        if matches!(self, Self::Deployment | Self::ReplicaSet) {
            let application = application(object);
            let cluster = format!("kubernetes.v2:logical:clusters:{account}:{application}:{name}");
            let application = format!("kubernetes.v2:logical:applications:{application}");
            relations.push(("applications".to_owned(), application));
            relations.push(("clusters".to_owned(), cluster));
        }
        for owner in object.owner_references() {
            let id = format!("kubernetes.v2:infrastructure:deployment:{account}:{namespace}:{}", owner.name);
            relations.push(("deployment".to_owned(), id));
        }
        relations.sort();
        relations
    }
}

/// The application of an object: its annotation, else its label, else the first part of its name.
pub(super) fn application(object: &DynamicObject) -> String {
    let annotated = object.annotations().get(APPLICATION);
    let named = annotated.or_else(|| object.labels().get(APPLICATION_LABEL)).cloned();
    named.unwrap_or_else(|| object.name_any().split('-').next().unwrap_or_default().to_owned())
}
