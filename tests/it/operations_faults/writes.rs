//! The kinds of writes that the matrix tries: what is asked, what is there before, and which writes the API server may get
//! for it.

use serde_json::{Value, json};

use super::scene::ACCOUNT;

/// A kind of write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum WriteKind {
    Create,
    Apply,
    ServerSideApply,
    Replace,
    Recreate,
    Delete,
    StrategicPatch,
    MergePatch,
    JsonPatch,
    Scale,
    Restart,
    Pause,
    Resume,
    Undo,
    /// Of kubectl, through the gateway.
    Raw,
    /// Of any client, through the gateway.
    RawPatch,
    RawDelete,
    /// Through the operator's API server, which passes it on to the replica that is asked.
    Aggregated,
}

/// All of them.
pub(super) const KINDS: [WriteKind; 18] = [
    WriteKind::Create,
    WriteKind::Apply,
    WriteKind::ServerSideApply,
    WriteKind::Replace,
    WriteKind::Recreate,
    WriteKind::Delete,
    WriteKind::StrategicPatch,
    WriteKind::MergePatch,
    WriteKind::JsonPatch,
    WriteKind::Scale,
    WriteKind::Restart,
    WriteKind::Pause,
    WriteKind::Resume,
    WriteKind::Undo,
    WriteKind::Raw,
    WriteKind::RawPatch,
    WriteKind::RawDelete,
    WriteKind::Aggregated,
];

impl WriteKind {
    /// Its name, as in tables and names of objects.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Apply => "apply",
            Self::ServerSideApply => "server-side",
            Self::Replace => "replace",
            Self::Recreate => "recreate",
            Self::Delete => "delete",
            Self::StrategicPatch => "strategic",
            Self::MergePatch => "merge",
            Self::JsonPatch => "json",
            Self::Scale => "scale",
            Self::Restart => "restart",
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Undo => "undo",
            Self::Raw => "kubectl",
            Self::RawPatch => "raw-patch",
            Self::RawDelete => "raw-delete",
            Self::Aggregated => "aggregated",
        }
    }

    /// Whether it may be done twice, so that it runs again after an unknown outcome.
    pub(super) fn may_repeat(self) -> bool {
        !(self.is_raw() || matches!(self, Self::Create | Self::Recreate | Self::JsonPatch))
    }

    /// Whether it is a request to the account's API, not an operation.
    pub(super) fn is_raw(self) -> bool {
        matches!(self, Self::Raw | Self::RawPatch | Self::RawDelete | Self::Aggregated)
    }

    /// Whether it reads the object before it writes.
    pub(super) fn reads_first(self) -> bool {
        matches!(
            self,
            Self::Apply
                | Self::ServerSideApply
                | Self::Replace
                | Self::Recreate
                | Self::Delete
                | Self::Restart
                | Self::Undo
        )
    }

    /// Whether its object is there before.
    fn has_object(self) -> bool {
        !matches!(self, Self::Create | Self::Raw | Self::Aggregated)
    }

    fn is_of_deployment(self) -> bool {
        matches!(self, Self::Scale | Self::Restart | Self::Pause | Self::Resume | Self::Undo)
    }

    /// Plural of its object's kind.
    pub(super) fn resource(self) -> &'static str {
        if self.is_of_deployment() { "deployments" } else { "configmaps" }
    }

    /// The verbs of its writes, as the audit log has them.
    pub(super) fn writes(self) -> &'static [&'static str] {
        match self {
            Self::Create | Self::Raw | Self::Aggregated => &["create"],
            Self::Replace => &["update"],
            Self::Recreate => &["delete", "create"],
            Self::Delete | Self::RawDelete => &["delete"],
            _ => &["patch"],
        }
    }

    /// The object that is there before, if there must be one.
    pub(super) fn before(self, namespace: &str, name: &str) -> Option<Value> {
        self.has_object().then(|| {
            if self.is_of_deployment() {
                let mut object = deployment(namespace, name);
                object["spec"]["paused"] = json!(self == Self::Resume);
                object
            } else {
                config_map(namespace, name, "0")
            }
        })
    }

    /// What must be there besides: of a Deployment with this uid that is rolled back, its former revision.
    pub(super) fn revision(self, namespace: &str, name: &str, uid: &Value) -> Option<Value> {
        (self == Self::Undo).then(|| {
            let mut object = deployment(namespace, name);
            object["kind"] = json!("ReplicaSet");
            object["metadata"]["labels"] = json!({"app": name});
            object["metadata"]["annotations"] = json!({"deployment.kubernetes.io/revision": "1"});
            object["metadata"]["ownerReferences"] = json!([{
                "apiVersion": "apps/v1", "kind": "Deployment", "name": name, "uid": uid, "controller": true,
            }]);
            object["spec"]["template"]["spec"]["containers"][0]["image"] = json!("former");
            object
        })
    }

    /// The object with what the write changes.
    pub(super) fn after(namespace: &str, name: &str) -> Value {
        config_map(namespace, name, "1")
    }

    /// Whether the object is as the write leaves it; `None`: it is not there.
    pub(super) fn is_done(self, object: Option<&Value>) -> bool {
        let at = |pointer: &str| object.and_then(|object| object.pointer(pointer)).cloned();
        match self {
            Self::Delete | Self::RawDelete => object.is_none(),
            Self::Pause => at("/spec/paused") == Some(json!(true)),
            Self::Resume => {
                object.is_some() && at("/spec/paused").is_none_or(|paused| paused == json!(false))
            }
            Self::Undo => at("/spec/template/spec/containers/0/image") == Some(json!("former")),
            Self::Scale => at("/spec/replicas") == Some(json!(3)),
            Self::Restart => {
                at("/spec/template/metadata/annotations/kubectl.kubernetes.io~1restartedAt").is_some()
            }
            _ => at("/data/key") == Some(json!("1")),
        }
    }

    /// The operation, in protobuf's text format; `None` for a request to the account's API.
    pub(super) fn operation(self, namespace: &str, name: &str) -> Option<Value> {
        // JSON's escapes are those of the text format.
        let data = |value: &Value| Value::String(value.to_string());
        let manifest = data(&Self::after(namespace, name));
        let deploy = |mode: &str| format!("deploy {{ manifest {{ data: {manifest} }} mode: {mode} }}");
        let (group, kind) = if self.is_of_deployment() { ("apps", "Deployment") } else { ("", "ConfigMap") };
        let target = format!(
            "target {{ group: \"{group}\" version: \"v1\" kind: \"{kind}\" namespace: \"{namespace}\" name: \"{name}\" }}"
        );
        let patch = |kind: &str, body: &Value| {
            format!("patch {{ {target} type: {kind} body {{ data: {} }} }}", data(body))
        };
        let changed = json!({"data": {"key": "1"}});
        let verb = match self {
            Self::Raw | Self::RawPatch | Self::RawDelete | Self::Aggregated => return None,
            Self::Create => deploy("CREATE"),
            Self::Apply => deploy("APPLY"),
            Self::ServerSideApply => deploy("SERVER_SIDE force: true"),
            Self::Replace => deploy("REPLACE"),
            Self::Recreate => deploy("RECREATE"),
            Self::Delete => format!("delete {{ {target} grace_s: 0 }}"),
            Self::StrategicPatch => patch("STRATEGIC", &changed),
            Self::MergePatch => patch("MERGE", &changed),
            Self::JsonPatch => patch("JSON", &json!([{"op": "replace", "path": "/data/key", "value": "1"}])),
            Self::Scale => format!("scale {{ {target} replicas: 3 }}"),
            Self::Restart => format!("restart_rollout {{ {target} }}"),
            Self::Pause => format!("pause_rollout {{ {target} }}"),
            Self::Resume => format!("resume_rollout {{ {target} }}"),
            Self::Undo => format!("undo_rollout {{ {target} to_revision: 1 }}"),
        };
        Some(json!({"operation": format!("account {{ name: \"{ACCOUNT}\" }} {verb}")}))
    }
}

fn config_map(namespace: &str, name: &str, value: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace}, "data": {"key": value},
    })
}

fn deployment(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "c", "image": "i"}]},
            },
        },
    })
}
