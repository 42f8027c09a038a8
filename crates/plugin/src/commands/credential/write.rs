//! Compares an object with what is to be there, and writes the difference. Objects of others are never changed.

use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::manifests::{CREDENTIAL_LABEL, Kind, Manifest};
use crate::api_session::{ApiRequest, ApiSession};
use crate::arguments::CommandError;
use kubesvc_core::{MANAGED_BY_LABEL, PLUGIN_FIELD_MANAGER};

/// What is to be done about one object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Change {
    Create,
    /// A merge patch, which fails if the object has changed since it was read.
    Update(Value),
    None,
}

impl Change {
    /// The word that kubectl has for it.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::Create => "created",
            Self::Update(_) => "configured",
            Self::None => "unchanged",
        }
    }
}

/// The object is there, and is not this credential's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{object} is there{}, and it is not of this credential{}; it is left as it is: delete it, or choose another name",
    .namespace.as_ref().map(|namespace| format!(" in namespace {namespace}")).unwrap_or_default(),
    .owner.as_ref().map(|owner| format!(", but {owner:?}'s")).unwrap_or_default())]
pub(crate) struct ForeignObject {
    object: String,
    namespace: Option<String>,
    /// Who has it, as its labels say.
    owner: Option<String>,
}

impl From<ForeignObject> for CommandError {
    fn from(error: ForeignObject) -> Self {
        Self::from(error.to_string())
    }
}

/// Decides what is to be done about an object.
///
/// # Errors
///
/// [`ForeignObject`].
pub(crate) fn change(present: Option<&DynamicObject>, wanted: &Manifest) -> Result<Change, ForeignObject> {
    let Some(present) = present else { return Ok(Change::Create) };
    if wanted.kind == Kind::Namespace {
        return Ok(Change::None);
    }
    let label = |name: &str| present.labels().get(name).map(String::as_str);
    let is_ours = label(MANAGED_BY_LABEL) == Some(PLUGIN_FIELD_MANAGER)
        && label(CREDENTIAL_LABEL) == wanted.object["metadata"]["labels"][CREDENTIAL_LABEL].as_str();
    if !is_ours {
        return Err(ForeignObject {
            object: wanted.shown(),
            namespace: wanted.namespace.clone(),
            owner: label(CREDENTIAL_LABEL).or(label(MANAGED_BY_LABEL)).map(str::to_owned),
        });
    }
    let as_json = serde_json::to_value(present).expect("what was read as JSON is JSON");
    if has(&as_json, &wanted.object) {
        return Ok(Change::None);
    }
    let mut patch = wanted.object.clone();
    patch["metadata"]["uid"] = json!(present.metadata.uid);
    patch["metadata"]["resourceVersion"] = json!(present.metadata.resource_version);
    Ok(Change::Update(patch))
}

/// Whether an object has all fields of another, with their values.
fn has(object: &Value, fields: &Value) -> bool {
    match (object, fields) {
        (Value::Object(object), Value::Object(fields)) => {
            fields.iter().all(|(key, value)| object.get(key).is_some_and(|there| has(there, value)))
        }
        (object, value) => object == value,
    }
}

fn api(session: &ApiSession, manifest: &Manifest) -> Api<DynamicObject> {
    let (client, resource) = (session.client.clone(), manifest.kind.resource());
    match &manifest.namespace {
        Some(namespace) => Api::namespaced_with(client, namespace, &resource),
        None => Api::all_with(client, &resource),
    }
}

fn asked<'a>(verb: &'static str, manifest: &'a Manifest) -> ApiRequest<'a> {
    ApiRequest { verb, resource: manifest.kind.plural(), namespace: manifest.namespace.as_deref() }
}

/// Reads an object; `None` if it is not there.
pub(crate) async fn read(
    session: &ApiSession,
    manifest: &Manifest,
) -> Result<Option<DynamicObject>, CommandError> {
    match session.try_ask(api(session, manifest).get_opt(&manifest.name)).await? {
        Ok(object) => Ok(object),
        // Whether a namespace is there shows when something is written into it.
        Err(kube::Error::Api(status)) if status.code == 403 && manifest.kind == Kind::Namespace => {
            Ok(Some(DynamicObject::new(&manifest.name, &manifest.kind.resource())))
        }
        Err(error) => Err(CommandError::Failed(asked("get", manifest).explain(&session.server, &error))),
    }
}

/// Writes a change. In a dry run the API server checks it, rights included, and keeps nothing.
pub(crate) async fn write(
    session: &ApiSession,
    manifest: &Manifest,
    change: &Change,
    dry_run: bool,
) -> Result<(), CommandError> {
    let api = api(session, manifest);
    let field_manager = Some(PLUGIN_FIELD_MANAGER.to_owned());
    match change {
        Change::None => {}
        Change::Create => {
            let object: DynamicObject = serde_json::from_value(manifest.object.clone())
                .map_err(|error| format!("{}: {error}", manifest.shown()))?;
            let parameters = PostParams { dry_run, field_manager };
            session.ask(asked("create", manifest), api.create(&parameters, &object)).await?;
        }
        Change::Update(patch) => {
            let parameters = PatchParams { dry_run, field_manager, ..PatchParams::default() };
            let patch = Patch::Merge(patch);
            session.ask(asked("patch", manifest), api.patch(&manifest.name, &parameters, &patch)).await?;
        }
    }
    Ok(())
}
