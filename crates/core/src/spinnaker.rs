//! Converts Clouddriver's account fields to a spec and back.
//!
//! | direction | where |
//! |---|---|
//! | account → JSON | [`definition`], [`props`]: what Spinnaker and the row read |
//! | JSON → spec | [`AccountInput`]: a caller's input, and how it changes a spec |
//! | validation | [`validate`]: what the API server would refuse, checked in advance with the same messages |
//!
//! A definition that is read back yields the spec it came from, unless the kubeconfig is in a Secret: a definition
//! contains no credential.

mod fields;
mod rules;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use secrecy::{ExposeSecret, SecretString};
use serde_json::{Map, Value, json};

pub use fields::FieldError;
pub use rules::{is_account_name, validate};

use fields::{flag, text};

use super::owned_secret::{self, AGENT_KEY, Contents, OWN_KEY};
use super::secret_reference::{self, Reference, is_redacted, is_reference};
use super::spec::KubeconfigSource;
use super::{DesiredState, KubesvcAccount, KubesvcAccountSpec};

/// The account as Clouddriver's account management defines it, without credentials.
pub fn definition(account: &KubesvcAccount) -> Value {
    let spec = &account.spec;
    let fields = json!({
        "type": "kubernetes",
        "name": account.account_name(),
        "kubeconfigFile": kubeconfig_file(&spec.kubeconfig),
        "serviceAccount": spec.kubeconfig.service_account.filter(|is_own| *is_own),
        "context": spec.context,
        "environment": spec.environment,
        "accountType": spec.account_type,
        "insecure": spec.insecure,
        "onlyNamespacedResources": spec.only_namespaced_resources,
        "onlySpinnakerManaged": spec.only_spinnaker_managed,
        "metrics": spec.metrics,
        "noProxy": spec.no_proxy,
        "maxResumableResourceAgeMs": spec.max_resumable_resource_age_ms,
        "namespaces": spec.namespaces,
        "omitNamespaces": spec.omit_namespaces,
        "kinds": spec.kinds,
        "omitKinds": spec.omit_kinds,
        "customResourceDefinitions": spec.custom_resource_definitions,
        "customResources": spec.custom_resources,
        "permissions": spec.permissions,
    });
    match fields {
        Value::Object(fields) => fields.into_iter().filter(|(_, value)| !is_empty(value)).collect(),
        other => other,
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Array(list) => list.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        value => value.is_null(),
    }
}

/// Content of the vendor's column `props`.
pub fn props(account: &KubesvcAccount) -> Value {
    json!({ "permissions": account.spec.permissions })
}

/// The path or reference of a kubeconfig, if it has one that may be shown.
pub fn kubeconfig_file(source: &KubeconfigSource) -> Option<Cow<'_, str>> {
    let path = source.file.as_deref().map(Cow::Borrowed);
    path.or_else(|| secret_reference::shown(source.reference.as_deref()?))
}

/// Maximum size of a kubeconfig, in bytes.
pub(crate) const MAX_KUBECONFIG_BYTES: usize = 256 * 1024;

/// The fields that say how to reach the cluster; only one may be given.
const SOURCES: [&str; 3] = ["kubeconfigContents", "kubeconfigFile", "serviceAccount"];
/// The field of a kubeconfig for the agent that differs from Clouddriver's; may be given beside the account's own.
const AGENT_SOURCE: &str = "kubeconfigAgent";

/// How an agent shall reach the cluster, according to the caller.
#[derive(Clone)]
pub enum ClusterSource {
    /// A kubeconfig itself. Stored in a Secret, and only there.
    Contents(SecretString),
    /// A path on the agent.
    File(String),
    /// A Spinnaker secret reference.
    Reference(String),
    /// The agent's own service account.
    ServiceAccount,
}

impl ClusterSource {
    /// Whether it is more than the redacted form of a secret. A definition that was read and is sent back leaves the
    /// source unchanged.
    fn says_something(&self) -> bool {
        !matches!(self, Self::Reference(reference) if is_redacted(reference))
    }

    /// The source for a spec; `None` for contents, which are never stored in a spec.
    pub fn in_spec(&self) -> Option<KubeconfigSource> {
        match self {
            Self::Contents(_) => None,
            Self::File(path) => Some(KubeconfigSource { file: Some(path.clone()), ..Default::default() }),
            Self::Reference(reference) => {
                Some(KubeconfigSource { reference: Some(reference.clone()), ..Default::default() })
            }
            Self::ServiceAccount => {
                Some(KubeconfigSource { service_account: Some(true), ..Default::default() })
            }
        }
    }
}

/// A change of the kubeconfig for the agent.
#[derive(Clone)]
pub enum AgentSource {
    /// Set it to this one.
    Set(ClusterSource),
    /// Remove it: agents are sent the account's own.
    Remove,
}

/// Fields without effect. Only the first are named, since a caller may send any number of any length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ignored {
    /// Number of such fields.
    pub count: usize,
    /// Names of the first fields, at most 20, each truncated to 64 characters.
    pub named: Vec<String>,
}

impl Ignored {
    /// Counts a field, and keeps its name if there are few.
    pub fn count(&mut self, field: &str) {
        const MAX_NAMES_SHOWN: usize = 20;
        const MAX_NAME_CHARS: usize = 64;
        self.count += 1;
        if self.named.len() < MAX_NAMES_SHOWN {
            self.named.push(field.chars().take(MAX_NAME_CHARS).collect());
        }
    }
}

/// A caller's input for one account, parsed and validated by itself. Has no `Debug`, because it may hold a
/// kubeconfig.
pub struct AccountInput {
    /// The account's name.
    pub name: String,
    /// The desired state, if given.
    pub state: Option<DesiredState>,
    /// How to reach the cluster, if given.
    pub source: Option<ClusterSource>,
    /// How the agent reaches the cluster, if given.
    pub agent_source: Option<AgentSource>,
    /// Fields that kubesvc does not use.
    pub ignored: Ignored,
    fields: Map<String, Value>,
}

impl AccountInput {
    /// Parses Clouddriver's JSON of one account.
    ///
    /// # Errors
    /// A field of the wrong type, more than one source of a kubeconfig, or an invalid name.
    pub fn read(mut fields: Map<String, Value>) -> Result<Self, FieldError> {
        let name = name(&fields)?;
        drop_empty_texts(&mut fields);
        account_type(&fields)?;
        let state = state(&fields)?;
        let source = source(&mut fields)?;
        let agent_source = agent_source(&mut fields)?;
        for key in ["name", "type", "@type", "state"] {
            fields.remove(key);
        }
        let (mut used, mut ignored) = (Map::new(), Ignored::default());
        let mut scratch = KubesvcAccountSpec::default();
        for (field, value) in fields {
            if fields::set(&mut scratch, &field, &value)? {
                used.insert(field, value);
            } else {
                ignored.count(&field);
            }
        }
        Ok(Self { name, state, source, agent_source, ignored, fields: used })
    }

    /// Whether only name and state were given.
    pub fn is_bare(&self) -> bool {
        self.fields.is_empty() && !self.has_source()
    }

    /// Whether one of the kubeconfigs was given or removed.
    pub fn has_source(&self) -> bool {
        self.source.is_some() || self.agent_source.is_some()
    }

    /// The given kubeconfigs, by their key in the Secret.
    pub fn contents(&self) -> Contents<'_> {
        let mut contents = Contents::new();
        if let Some(ClusterSource::Contents(own)) = &self.source {
            contents.insert(OWN_KEY, own);
        }
        if let Some(AgentSource::Set(ClusterSource::Contents(agents))) = &self.agent_source {
            contents.insert(AGENT_KEY, agents);
        }
        contents
    }

    /// Makes a spec refer to the given kubeconfigs in the Secret of the account with this object name.
    pub fn put_contents_into(&self, spec: &mut KubesvcAccountSpec, object: &str) {
        for key in self.contents().into_keys() {
            let source = owned_secret::source(object, key);
            match key {
                AGENT_KEY => spec.agent_kubeconfig = Some(source),
                _ => spec.kubeconfig = source,
            }
        }
    }

    /// Applies the given fields to a spec; other fields are unchanged. The caller handles state, account name and
    /// contents of kubeconfigs, whose meaning depends on the request.
    ///
    /// # Errors
    /// None that [`AccountInput::read`] has not already returned.
    pub fn apply_to(&self, spec: &mut KubesvcAccountSpec) -> Result<(), FieldError> {
        if self.fields.contains_key("requiredGroupMembership") && self.fields.contains_key("permissions") {
            spec.permissions.clear();
        }
        for (field, value) in self.fields.iter().filter(|(field, _)| *field != "requiredGroupMembership") {
            fields::set(spec, field, value)?;
        }
        if let Some(groups) = self.fields.get("requiredGroupMembership") {
            fields::set(spec, "requiredGroupMembership", groups)?;
        }
        if let Some(source) = self.source.as_ref().and_then(ClusterSource::in_spec) {
            spec.kubeconfig = source;
        }
        match &self.agent_source {
            Some(AgentSource::Set(source)) => {
                spec.agent_kubeconfig = source.in_spec().or(spec.agent_kubeconfig.take());
            }
            Some(AgentSource::Remove) => spec.agent_kubeconfig = None,
            None => {}
        }
        Ok(())
    }
}

fn name(fields: &Map<String, Value>) -> Result<String, FieldError> {
    let expected = "a string of 1 to 255 characters without control characters";
    text("name", fields.get("name").unwrap_or(&Value::Null))
        .ok()
        .flatten()
        .filter(|name| is_account_name(name))
        .ok_or_else(|| FieldError::new("name", expected))
}

/// Removes the fields with an empty text, which count as absent, at every depth. One for the agent's kubeconfig removes
/// that. Items of lists stay: a list of namespaces without its only item would mean all of them.
fn drop_empty_texts(fields: &mut Map<String, Value>) {
    fields.retain(|field, value| field == AGENT_SOURCE || value.as_str() != Some(""));
    for value in fields.values_mut() {
        match value {
            Value::Object(fields) => drop_empty_texts(fields),
            Value::Array(items) => {
                items.iter_mut().filter_map(Value::as_object_mut).for_each(drop_empty_texts);
            }
            _ => {}
        }
    }
}

fn account_type(fields: &Map<String, Value>) -> Result<(), FieldError> {
    for key in ["type", "@type"] {
        match fields.get(key) {
            None | Some(Value::Null) => {}
            Some(Value::String(kind)) if kind == "kubernetes" => {}
            Some(_) => return Err(FieldError::new(key, "kubernetes")),
        }
    }
    Ok(())
}

fn state(fields: &Map<String, Value>) -> Result<Option<DesiredState>, FieldError> {
    match fields.get("state") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(state)) if state == "ACTIVE" => Ok(Some(DesiredState::Active)),
        Some(Value::String(state)) if state == "INACTIVE" => Ok(Some(DesiredState::Inactive)),
        Some(_) => Err(FieldError::new("state", "ACTIVE or INACTIVE")),
    }
}

/// Removes the account's own source from the fields, so that no credential stays among them.
fn source(fields: &mut Map<String, Value>) -> Result<Option<ClusterSource>, FieldError> {
    let mut taken = |key: &str| fields.remove(key).unwrap_or(Value::Null);
    let contents = text(SOURCES[0], &taken(SOURCES[0]))?;
    let file = text(SOURCES[1], &taken(SOURCES[1]))?;
    let service_account = flag(SOURCES[2], &taken(SOURCES[2]))? == Some(true);
    if [contents.is_some(), file.is_some(), service_account].into_iter().filter(|given| *given).count() > 1 {
        return Err(FieldError::new(
            SOURCES.join(", "),
            "given only once: they say how the cluster is reached, and exclude each other",
        ));
    }
    let source = match (contents, file) {
        (Some(contents), _) => Some(self::contents(SOURCES[0], contents)?),
        (None, Some(file)) => Some(path(SOURCES[1], file)?),
        (None, None) => service_account.then_some(ClusterSource::ServiceAccount),
    };
    Ok(source.filter(ClusterSource::says_something))
}

/// Removes the agent's source from the fields: a path, a reference or a kubeconfig. Null or an empty text removes the
/// agent's kubeconfig.
fn agent_source(fields: &mut Map<String, Value>) -> Result<Option<AgentSource>, FieldError> {
    let Some(given) = fields.remove(AGENT_SOURCE) else { return Ok(None) };
    let source = match text(AGENT_SOURCE, &given)?.filter(|text| !text.is_empty()) {
        None => return Ok(Some(AgentSource::Remove)),
        Some(agent) if agent.starts_with('/') => path(AGENT_SOURCE, agent)?,
        Some(agent) => contents(AGENT_SOURCE, agent)?,
    };
    Ok(source.says_something().then_some(AgentSource::Set(source)))
}

fn contents(field: &str, contents: String) -> Result<ClusterSource, FieldError> {
    if is_reference(&contents) {
        return reference(field, contents);
    }
    let contents = SecretString::from(contents);
    if contents.expose_secret().trim().is_empty() {
        return Err(FieldError::new(field, "a kubeconfig, not an empty string"));
    }
    if contents.expose_secret().len() > MAX_KUBECONFIG_BYTES {
        return Err(FieldError::new(field, format!("at most {} KiB long", MAX_KUBECONFIG_BYTES / 1024)));
    }
    Ok(ClusterSource::Contents(contents))
}

fn path(field: &str, path: String) -> Result<ClusterSource, FieldError> {
    if path.is_empty() {
        return Err(FieldError::new(field, "a path or a secret reference, not an empty string"));
    }
    if is_reference(&path) { reference(field, path) } else { Ok(ClusterSource::File(path)) }
}

/// A well-formed reference with the parameters that its engine needs.
fn reference(field: &str, text: String) -> Result<ClusterSource, FieldError> {
    let good = Reference::parse(&text).and_then(|reference| reference.check_parameters());
    good.map_err(|problem| FieldError::new(field, format!("a secret reference: {problem}")))?;
    Ok(ClusterSource::Reference(text))
}
