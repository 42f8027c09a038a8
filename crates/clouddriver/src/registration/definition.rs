//! The definition that is sent to Clouddriver, and the mark in it that says whose it is.

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use kubesvc_core::KubesvcAccount;
use kubesvc_core::kubeconfig::DocumentNode;
use kubesvc_core::object_names::account_api_path;
use kubesvc_core::spec::CustomResourceTreatment;

/// The newest form of a definition. An account keeps the form that it was sent in until it changes, because each changed
/// row makes Clouddriver rebuild the account's caching agents.
pub const BODY_VERSION: i32 = 1;
/// Beginning of a mark: `kubesvc/<namespace uid>/<account uid>`.
const MARK_PREFIX: &str = "kubesvc/";
/// Name of cluster and user in the kubeconfig.
const ENTRY: &str = "kubesvc";
/// Clouddriver's default priority of a kind.
const DEFAULT_PRIORITY: &str = "100";

/// What is the same for all definitions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistrationSettings {
    /// URL of the API of accounts, as Clouddriver reaches it, without a slash at its end.
    pub gateway: String,
    /// File with Clouddriver's token, in its pod.
    pub token_file: String,
    /// File with the certificate authority of the API of accounts, in its pod.
    pub ca_file: String,
    /// Interval at which Clouddriver reads an account's objects, in seconds.
    pub cache_interval_seconds: u64,
    /// uid of the operator's namespace.
    pub installation: String,
}

/// Says which account of which installation registered a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// uid of the operator's namespace.
    pub installation: String,
    /// uid of the account.
    pub account_uid: String,
}

impl Mark {
    /// The name of a context with this mark.
    pub fn context(&self) -> String {
        format!("{MARK_PREFIX}{}/{}", self.installation, self.account_uid)
    }

    /// The mark of the definition of a row, which is the context of its kubeconfig; `None`: kubesvc did not register it,
    /// whatever its other fields are.
    pub fn of(definition: &Map<String, Value>) -> Option<Self> {
        let contents = definition.get("kubeconfigContents")?.as_str()?;
        // Most rows are somebody else's, and are not parsed.
        if !contents.contains(MARK_PREFIX) {
            return None;
        }
        let kubeconfig = DocumentNode::read(contents.as_bytes())?;
        let chosen = definition.get("context").and_then(Value::as_str).filter(|context| !context.is_empty());
        let context = chosen.or_else(|| kubeconfig.text("current-context"))?;
        let (installation, account_uid) = context.strip_prefix(MARK_PREFIX)?.split_once('/')?;
        let is_mark = is_uid(installation) && is_uid(account_uid);
        is_mark.then(|| Self { installation: installation.to_owned(), account_uid: account_uid.to_owned() })
    }
}

fn is_uid(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// A definition to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisteredDefinition {
    /// The fields, as JSON.
    pub fields: Map<String, Value>,
    /// SHA-256 of the fields, in hexadecimal.
    pub hash: String,
}

impl RegisteredDefinition {
    /// The definition of an account. `found` are the namespaces that its agent found, for an account that names none. It
    /// contains no secret, and changes with neither a token nor a certificate authority.
    ///
    /// There is one form so far, so that each `version` gives it.
    pub fn of(
        account: &KubesvcAccount,
        settings: &RegistrationSettings,
        found: Option<&[String]>,
        _version: i32,
    ) -> Self {
        let spec = &account.spec;
        let names_none = spec.namespaces.is_empty() && spec.omit_namespaces.is_empty();
        let namespaces = found.filter(|_| names_none).unwrap_or(&spec.namespaces);
        let resources: Vec<Value> = spec.custom_resources.iter().map(custom_resource).collect();
        let definition = json!({
            "type": "kubernetes",
            "name": account.account_name(),
            "kubeconfigContents": kubeconfig(account, settings).to_string(),
            "namespaces": namespaces,
            "omitNamespaces": spec.omit_namespaces,
            "kinds": spec.kinds,
            "omitKinds": spec.omit_kinds,
            "customResources": resources,
            "permissions": spec.permissions,
            "environment": spec.environment,
            "accountType": spec.account_type,
            "onlySpinnakerManaged": spec.only_spinnaker_managed.unwrap_or_default(),
            "checkPermissionsOnStartup": false,
            "cacheIntervalSeconds": settings.cache_interval_seconds,
        });
        let mut fields = match definition {
            Value::Object(fields) => fields,
            _ => Map::new(),
        };
        fields.retain(|_, value| !value.is_null());
        let text = Value::Object(fields.clone()).to_string();
        Self { fields, hash: hex::encode(Sha256::digest(text)) }
    }
}

/// Fields of an account that have an effect here and that Clouddriver does not know, for people.
pub(super) fn unsent_fields(account: &KubesvcAccount) -> Vec<&'static str> {
    let spec = &account.spec;
    let has = [
        (spec.only_namespaced_resources.is_some(), "onlyNamespacedResources"),
        (!spec.custom_resource_definitions.is_empty(), "customResourceDefinitions"),
    ];
    has.into_iter().filter_map(|(is_set, field)| is_set.then_some(field)).collect()
}

/// Whether a field that was sent has another value in a row.
pub fn differs_from_sent(sent: &RegisteredDefinition, shown: &Map<String, Value>) -> bool {
    sent.fields.iter().any(|(field, value)| match shown.get(field) {
        Some(shown) => shown != value,
        // Clouddriver leaves out what is empty.
        None => !is_empty(value),
    })
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        other => other.is_null(),
    }
}

fn custom_resource(treatment: &CustomResourceTreatment) -> Value {
    json!({
        "kubernetesKind": treatment.kubernetes_kind,
        "spinnakerKind": treatment.spinnaker_kind.unwrap_or_default(),
        "deployPriority": treatment.deploy_priority.as_deref().unwrap_or(DEFAULT_PRIORITY),
        "versioned": treatment.versioned.unwrap_or_default(),
        "namespaced": treatment.namespaced.unwrap_or(true),
    })
}

fn kubeconfig(account: &KubesvcAccount, settings: &RegistrationSettings) -> Value {
    let namespace = account.metadata.namespace.as_deref().unwrap_or_default();
    let name = account.metadata.name.as_deref().unwrap_or_default();
    let mark =
        Mark { installation: settings.installation.clone(), account_uid: account.uid().to_owned() }.context();
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{
            "name": ENTRY,
            "cluster": {
                "server": format!("{}{}", settings.gateway, account_api_path(namespace, name, "proxy")),
                "certificate-authority": settings.ca_file,
            },
        }],
        "users": [{"name": ENTRY, "user": {"tokenFile": settings.token_file}}],
        "contexts": [{"name": mark, "context": {"cluster": ENTRY, "user": ENTRY}}],
        "current-context": mark,
    })
}
