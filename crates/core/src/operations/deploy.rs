//! Choice of the deploy mode: from the operation, the object's annotations, and the agent's settings.

use std::sync::Arc;

use serde_json::Value;

use super::apply::Apply;
use super::deployed::Deployed;
use super::manifest::{self, annotation};
use super::program::{NotStarted, Program, ProgramContext};
use super::replace::{Create, Recreate, Replace};
use super::server_side::ServerSideApply;
use super::{InvalidOperation, ManifestError, Operation};
use crate::wire::operations as wire;
use crate::wire::operations::deploy::Mode;
use crate::wire::operations::operation::Verb;

/// Deploy mode of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApplyMode {
    /// As `kubectl apply`.
    ClientSide,
    /// As `kubectl apply --server-side`.
    ServerSide {
        /// Whether to take over fields of other managers.
        force: bool,
    },
    /// Create; the object must not exist.
    Create,
    /// Replace as a whole, or create.
    Replace,
    /// Delete, then create once the object is gone.
    Recreate,
}

/// A setting that can override annotations in either direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Preference {
    /// On, regardless of annotations.
    Always,
    /// Off, regardless of annotations.
    Never,
    /// By annotations and the settings of kinds.
    #[default]
    Allowed,
}

/// The settings `kubernetes.serverSideApply.*` of an agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApplySettings {
    /// Whether objects are applied on the server.
    pub server_side: Preference,
    /// Whether to drop `managedFields` before an apply.
    pub clear_managed_fields: Preference,
    /// Settings of individual kinds.
    pub kinds: Vec<KindApplySettings>,
}

/// The settings of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KindApplySettings {
    /// The kind, alone or as `Kind.group`, in any case.
    pub kind: String,
    /// As [`ApplySettings::server_side`].
    pub server_side: Preference,
    /// As [`ApplySettings::clear_managed_fields`].
    pub clear_managed_fields: Preference,
}

pub(super) fn program(
    verb: &wire::Deploy,
    object: &Arc<Value>,
    context: &ProgramContext<'_>,
) -> Result<Box<dyn Program>, NotStarted> {
    let identity = manifest::identity(object).map_err(InvalidOperation::from)?;
    let resource = context.resource(&identity.group, &identity.version, &identity.kind)?;
    let mode = mode(verb, object, context.apply)?;
    let mut object = Arc::clone(object);
    let mut namespace = identity.namespace;
    if resource.namespaced && namespace.is_empty() {
        "default".clone_into(&mut namespace);
        Arc::make_mut(&mut object)["metadata"]["namespace"] = namespace.clone().into();
    }
    let collection = resource.collection(&namespace);
    let path = match identity.name.as_str() {
        "" => collection.clone(),
        name => resource.path(&namespace, name),
    };
    let clears = clears_managed_fields(&object, context.apply);
    let deployed = Deployed { object, resource, path, collection, dry_run: context.dry_run };
    Ok(match mode {
        ApplyMode::ClientSide => Box::new(Apply::new(deployed)),
        ApplyMode::ServerSide { force } => Box::new(ServerSideApply::new(deployed, force, clears)),
        ApplyMode::Create => Box::new(Create::new(deployed)),
        ApplyMode::Replace => Box::new(Replace::new(deployed)),
        ApplyMode::Recreate => Box::new(Recreate::new(deployed)),
    })
}

impl ApplyMode {
    /// Mode of a deploy, from its manifest and the agent's settings. `None`: not a deploy, or an impossible mode.
    pub fn of(operation: &Operation, settings: &ApplySettings) -> Option<Self> {
        match (operation.verb(), operation.document()) {
            (Verb::Deploy(verb), Some(object)) => mode(verb, object, settings).ok(),
            _ => None,
        }
    }
}

fn mode(
    verb: &wire::Deploy,
    object: &Value,
    settings: &ApplySettings,
) -> Result<ApplyMode, InvalidOperation> {
    let identity = manifest::identity(object)?;
    if identity.name.is_empty() {
        return match verb.mode() {
            Mode::Unspecified | Mode::Create => Ok(ApplyMode::Create),
            _ => Err(ManifestError::Missing("metadata.name").into()),
        };
    }
    let mode = match verb.mode() {
        Mode::Unspecified => annotated(object, settings, &identity),
        Mode::Apply => ApplyMode::ClientSide,
        Mode::ServerSide => ApplyMode::ServerSide { force: false },
        Mode::Create => ApplyMode::Create,
        Mode::Replace => ApplyMode::Replace,
        Mode::Recreate => ApplyMode::Recreate,
    };
    // A client-side apply would copy the Secret into an annotation, which more people can read.
    let is_secret = identity.group.is_empty() && identity.kind == "Secret";
    Ok(match mode {
        ApplyMode::ClientSide if is_secret => ApplyMode::ServerSide { force: true },
        ApplyMode::ServerSide { force } => ApplyMode::ServerSide { force: force || verb.force },
        _ if verb.force => {
            return Err(InvalidOperation::Fields(
                "deploy.force takes over fields, which only a server-side apply does: set deploy.mode: SERVER_SIDE",
            ));
        }
        mode => mode,
    })
}

/// Mode by annotations and settings.
fn annotated(object: &Value, settings: &ApplySettings, identity: &manifest::Identity) -> ApplyMode {
    let strategy = |name: &str| annotation(object, &format!("strategy.spinnaker.io/{name}"));
    if strategy("recreate") == Some("true") {
        return ApplyMode::Recreate;
    }
    if strategy("replace") == Some("true") {
        return ApplyMode::Replace;
    }
    match strategy("server-side-apply") {
        Some("true") => return ApplyMode::ServerSide { force: false },
        Some("force-conflicts") => return ApplyMode::ServerSide { force: true },
        Some("false") => return ApplyMode::ClientSide,
        _ => {}
    }
    let enabled = annotation(object, "agent-k8s.armory.io/serverside-apply") == Some("enabled");
    let of_kind = settings.of_kind(&identity.group, &identity.kind).map(|kind| kind.server_side);
    if decide(settings.server_side, enabled, of_kind) {
        ApplyMode::ServerSide { force: false }
    } else {
        ApplyMode::ClientSide
    }
}

fn clears_managed_fields(object: &Value, settings: &ApplySettings) -> bool {
    let enabled = annotation(object, "agent-k8s.armory.io/ssa-clear-managed-fields") == Some("enabled");
    let of_kind = manifest::identity(object).ok().and_then(|identity| {
        settings.of_kind(&identity.group, &identity.kind).map(|kind| kind.clear_managed_fields)
    });
    decide(settings.clear_managed_fields, enabled, of_kind)
}

/// Applies the documented precedence: the setting for all, the setting for the kind, the annotation.
fn decide(for_all: Preference, annotated: bool, of_kind: Option<Preference>) -> bool {
    match (for_all, of_kind.unwrap_or_default()) {
        (Preference::Always, _) | (Preference::Allowed, Preference::Always) => true,
        (Preference::Never, _) | (Preference::Allowed, Preference::Never) => false,
        (Preference::Allowed, Preference::Allowed) => annotated,
    }
}

impl ApplySettings {
    fn of_kind(&self, group: &str, kind: &str) -> Option<&KindApplySettings> {
        let qualified = crate::cache::native::qualified(group, kind);
        self.kinds.iter().find(|named| {
            named.kind.eq_ignore_ascii_case(kind) || named.kind.eq_ignore_ascii_case(&qualified)
        })
    }
}
