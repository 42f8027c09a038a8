//! Well-formed operations: their checks, and the properties of their verbs.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::manifest::{self, MAX_MANIFEST_BYTES, ManifestError};
use crate::wire::common::AccountRef;
use crate::wire::operations as wire;
use crate::wire::operations::operation::Verb;
use crate::wire::operations::{Target, deploy, patch, undo_rollout};

/// Maximum deadline of an operation.
pub const MAX_DEADLINE: Duration = Duration::from_millis(600_000);
/// Maximum size of an operation's result, in bytes.
pub const MAX_RESULT_BYTES: usize = 10 << 20;
/// Maximum number of objects in a page of a list.
pub(super) const MAX_LIST: i32 = 500;
/// Length of an operation's id.
const ID_CHARS: usize = 26;
/// Maximum length of a name, namespace, kind, group or version, in bytes.
const MAX_NAME: usize = 253;
/// Maximum length of a label selector or of a continue token, in bytes.
const MAX_QUERY: usize = 8 << 10;

/// Defect of an operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidOperation {
    /// A required field is missing.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// A field has an invalid value.
    #[error("{field} is {value:?}: {remedy}")]
    Field {
        /// Path of the field.
        field: &'static str,
        /// Value, truncated.
        value: String,
        /// Valid values.
        remedy: &'static str,
    },
    /// Two fields exclude each other, or one requires the other.
    #[error("{0}")]
    Fields(&'static str),
    /// The manifest or patch is invalid.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
}

impl InvalidOperation {
    /// Whether the manifest or patch is larger than [`MAX_MANIFEST_BYTES`].
    pub fn is_too_large(&self) -> bool {
        matches!(self, Self::Manifest(ManifestError::TooLarge))
    }
}

/// A well-formed operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Operation {
    id: String,
    account: AccountRef,
    deadline: Option<Duration>,
    /// Without the text of its manifest or patch.
    verb: Verb,
    /// Parsed manifest or patch.
    document: Option<Arc<Value>>,
    document_bytes: usize,
}

/// A well-formed operation whose manifest or patch is not parsed yet. Parsing may take long, and is done only for
/// authorized callers.
#[derive(Clone, Debug, PartialEq)]
pub struct UnreadOperation(Operation);

/// Documented name of an operation's verb, for rows and records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationVerb {
    /// `Deploy`, `Delete` …
    pub name: &'static str,
    /// Whether the verb only reads.
    pub reads: bool,
}

impl OperationVerb {
    /// Whether the verb of this name only reads. False for names that are no verbs, such as `Connect`.
    pub fn only_reads(name: &str) -> bool {
        matches!(name, "RevisionHistory" | "Get" | "List" | "Logs" | "Discovery")
    }

    pub(super) fn of(verb: &Verb) -> Self {
        let (name, reads) = match verb {
            Verb::Deploy(_) => ("Deploy", false),
            Verb::Delete(_) => ("Delete", false),
            Verb::Patch(_) => ("Patch", false),
            Verb::Scale(_) => ("Scale", false),
            Verb::PauseRollout(_) => ("PauseRollout", false),
            Verb::ResumeRollout(_) => ("ResumeRollout", false),
            Verb::RestartRollout(_) => ("RestartRollout", false),
            Verb::UndoRollout(_) => ("UndoRollout", false),
            Verb::RevisionHistory(_) => ("RevisionHistory", true),
            Verb::Get(_) => ("Get", true),
            Verb::List(_) => ("List", true),
            Verb::Logs(_) => ("Logs", true),
            Verb::Discovery(_) => ("Discovery", true),
        };
        Self { name, reads }
    }
}

/// The object that an operation changes, for the rule "one at a time for each object".
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// API group.
    pub group: String,
    /// Kind.
    pub kind: String,
    /// Namespace; empty if it has none.
    pub namespace: String,
    /// Name; empty for the objects that match a selector.
    pub name: String,
}

impl UnreadOperation {
    /// Checks everything that needs neither the cluster nor the manifest or patch.
    pub(super) fn check(message: wire::Operation) -> Result<Self, InvalidOperation> {
        check_id(&message.op_id, true)?;
        let account = message.account.unwrap_or_default();
        if account.name.is_empty() {
            return Err(InvalidOperation::Missing("account.name"));
        }
        bounded("account.name", &account.name, 1020)?;
        let deadline = message.deadline_ms.map(|ms| {
            let deadline = u64::try_from(ms).ok().map(Duration::from_millis);
            let deadline = deadline.filter(|time| !time.is_zero() && *time <= MAX_DEADLINE);
            deadline.ok_or_else(|| field("deadline_ms", ms, "give 1 to 600000, or nothing"))
        });
        let mut verb = message.verb.ok_or(InvalidOperation::Fields(
            "there is no verb: give one of deploy, delete, patch, scale, pause_rollout, resume_rollout, \
             restart_rollout, undo_rollout, revision_history, get, list, logs, discovery",
        ))?;
        check_verb(&verb)?;
        let (document, document_bytes) = (None, text_of(&mut verb).map_or(0, |text| text.len()));
        let (id, deadline) = (message.op_id, deadline.transpose()?);
        Ok(Self(Operation { id, account, deadline, verb, document, document_bytes }))
    }

    /// The caller's own id; may be empty.
    pub fn id(&self) -> &str {
        self.0.id()
    }

    /// The account.
    pub fn account(&self) -> &AccountRef {
        self.0.account()
    }

    /// Name of the verb, and whether it only reads.
    pub fn kind(&self) -> OperationVerb {
        self.0.kind()
    }

    /// Size of the manifest or patch, in bytes.
    pub fn document_bytes(&self) -> usize {
        self.0.document_bytes
    }

    /// Parses the manifest or patch.
    ///
    /// # Errors
    /// If it is invalid, or the verb does not support it.
    pub fn read(self) -> Result<Operation, InvalidOperation> {
        let Self(mut operation) = self;
        let is_json_patch =
            matches!(&operation.verb, Verb::Patch(verb) if verb.r#type() == patch::Type::Json);
        let is_patch = matches!(operation.verb, Verb::Patch(_));
        if let Some(text) = text_of(&mut operation.verb) {
            let text = std::mem::take(text);
            let read =
                if is_patch { manifest::parse_patch(&text, is_json_patch) } else { manifest::parse(&text) };
            operation.document = Some(Arc::new(read?));
        }
        if let (Verb::Deploy(verb), Some(object)) = (&operation.verb, &operation.document) {
            check_deployed(verb, object)?;
        }
        Ok(operation)
    }
}

impl Operation {
    /// The caller's own id; may be empty.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The account.
    pub fn account(&self) -> &AccountRef {
        &self.account
    }

    /// Time limit for all requests together, if the caller set one.
    pub fn deadline(&self) -> Option<Duration> {
        self.deadline
    }

    /// The verb, without the text of its manifest or patch.
    pub fn verb(&self) -> &Verb {
        &self.verb
    }

    /// Parsed manifest or patch, if the verb has one.
    pub fn document(&self) -> Option<&Arc<Value>> {
        self.document.as_ref()
    }

    /// Writes the contents of the manifest or patch in a canonical form, independent of its notation.
    ///
    /// # Errors
    /// The writer's.
    pub fn write_canonical_document(&self, to: &mut impl fmt::Write) -> fmt::Result {
        self.document().map_or(Ok(()), |document| manifest::write_go_json(document, to))
    }

    /// Size of the manifest or patch as given, in bytes.
    pub fn document_bytes(&self) -> usize {
        self.document_bytes
    }

    /// Name of the verb, and whether it only reads.
    pub fn kind(&self) -> OperationVerb {
        OperationVerb::of(&self.verb)
    }

    /// Whether the operation is idempotent, so that it may run again after an unknown outcome. Deploys in the modes
    /// create and recreate, JSON patches and `revisions_back` are not. `mode` is that of a deploy.
    pub fn may_run_again(&self, mode: Option<super::ApplyMode>) -> bool {
        use super::ApplyMode::{Create, Recreate};
        match &self.verb {
            Verb::Deploy(_) => !matches!(mode, Some(Create | Recreate)),
            Verb::Patch(verb) => verb.r#type() != patch::Type::Json,
            Verb::UndoRollout(verb) => !matches!(verb.to, Some(undo_rollout::To::RevisionsBack(_))),
            Verb::Delete(_)
            | Verb::Scale(_)
            | Verb::PauseRollout(_)
            | Verb::ResumeRollout(_)
            | Verb::RestartRollout(_)
            | Verb::RevisionHistory(_)
            | Verb::Get(_)
            | Verb::List(_)
            | Verb::Logs(_)
            | Verb::Discovery(_) => true,
        }
    }

    /// The changed object; `None` for an operation that only reads.
    pub fn object(&self) -> Option<ObjectKey> {
        let of = |target: &Target| ObjectKey {
            group: target.group.clone(),
            kind: target.kind.clone(),
            namespace: target.namespace.clone(),
            name: target.name.clone(),
        };
        match &self.verb {
            Verb::Deploy(_) => {
                let identity = manifest::identity(self.document.as_deref()?).ok()?;
                Some(ObjectKey {
                    group: identity.group,
                    kind: identity.kind,
                    namespace: identity.namespace,
                    name: identity.name,
                })
            }
            Verb::Delete(verb) => verb.target.as_ref().map(of),
            Verb::Patch(verb) => verb.target.as_ref().map(of),
            Verb::Scale(verb) => verb.target.as_ref().map(of),
            Verb::PauseRollout(verb) => verb.target.as_ref().map(of),
            Verb::ResumeRollout(verb) => verb.target.as_ref().map(of),
            Verb::RestartRollout(verb) => verb.target.as_ref().map(of),
            Verb::UndoRollout(verb) => verb.target.as_ref().map(of),
            Verb::RevisionHistory(_) | Verb::Get(_) | Verb::List(_) | Verb::Logs(_) | Verb::Discovery(_) => {
                None
            }
        }
    }
}

/// Result that a person enters for an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettledByHand {
    /// Id of the operation.
    pub operation_id: String,
    /// HTTP status.
    pub status: u16,
    /// Cause of the failure; empty for a success.
    pub message: String,
}

impl SettledByHand {
    pub(super) fn check(message: wire::OperationResult) -> Result<Self, InvalidOperation> {
        check_id(&message.op_id, false)?;
        let status = u16::try_from(message.status).ok().filter(|status| (200..600).contains(status));
        let status =
            status.ok_or_else(|| field("status", message.status, "give an HTTP status, 200 to 599"))?;
        bounded("message", &message.message, 1024)?;
        Ok(Self { operation_id: message.op_id, status, message: message.message })
    }
}

fn check_id(id: &str, may_be_absent: bool) -> Result<(), InvalidOperation> {
    if id.is_empty() {
        return if may_be_absent { Ok(()) } else { Err(InvalidOperation::Missing("op_id")) };
    }
    // Crockford's alphabet; the first digit holds three bits.
    let digit = |c: u8| c.is_ascii_digit() || (c.is_ascii_uppercase() && !b"ILOU".contains(&c));
    let fits = id.len() == ID_CHARS && id.bytes().all(digit) && id.as_bytes()[0] <= b'7';
    if fits { Ok(()) } else { Err(field("op_id", id, "give a ULID: 26 digits and capital letters")) }
}

fn check_verb(verb: &Verb) -> Result<(), InvalidOperation> {
    match verb {
        Verb::Deploy(verb) => check_deploy(verb),
        Verb::Delete(verb) => check_delete(verb),
        Verb::Patch(verb) => {
            object_of("patch.target", verb.target.as_ref())?;
            enumerated::<patch::Type>("patch.type", verb.r#type)?;
            small_enough(verb.body.as_ref().map_or(0, |body| body.data.len()))
        }
        Verb::Scale(verb) => {
            object_of("scale.target", verb.target.as_ref())?;
            if verb.replicas < 0 {
                return Err(field("scale.replicas", verb.replicas, "give 0 or more"));
            }
            Ok(())
        }
        Verb::PauseRollout(verb) => object_of("pause_rollout.target", verb.target.as_ref()),
        Verb::ResumeRollout(verb) => object_of("resume_rollout.target", verb.target.as_ref()),
        Verb::RestartRollout(verb) => object_of("restart_rollout.target", verb.target.as_ref()),
        Verb::UndoRollout(verb) => {
            object_of("undo_rollout.target", verb.target.as_ref())?;
            match verb.to {
                Some(undo_rollout::To::ToRevision(to)) if to < 1 => {
                    Err(field("undo_rollout.to_revision", to, "give 1 or more"))
                }
                Some(undo_rollout::To::RevisionsBack(back)) if back < 1 => {
                    Err(field("undo_rollout.revisions_back", back, "give 1 or more"))
                }
                Some(_) => Ok(()),
                None => Err(InvalidOperation::Fields("undo_rollout needs to_revision or revisions_back")),
            }
        }
        Verb::RevisionHistory(verb) => object_of("revision_history.target", verb.target.as_ref()),
        Verb::Get(verb) => object_of("get.target", verb.target.as_ref()),
        Verb::List(verb) => {
            kind_of("list.target", verb.target.as_ref())?;
            if !(0..=MAX_LIST).contains(&verb.limit) {
                return Err(field("list.limit", verb.limit, "give 1 to 500, or nothing"));
            }
            bounded("list.label_selector", &verb.label_selector, MAX_QUERY)?;
            bounded("list.continue", &verb.r#continue, MAX_QUERY)
        }
        Verb::Logs(verb) => check_logs(verb),
        Verb::Discovery(_) => Ok(()),
    }
}

/// The text of a verb's manifest or patch.
pub(super) fn text_of(verb: &mut Verb) -> Option<&mut String> {
    match verb {
        Verb::Deploy(verb) => Some(&mut verb.manifest.get_or_insert_default().data),
        Verb::Patch(verb) => Some(&mut verb.body.get_or_insert_default().data),
        _ => None,
    }
}

fn check_deploy(verb: &wire::Deploy) -> Result<(), InvalidOperation> {
    enumerated::<deploy::Mode>("deploy.mode", verb.mode)?;
    let forcible = matches!(verb.mode(), deploy::Mode::Unspecified | deploy::Mode::ServerSide);
    if verb.force && !forcible {
        return Err(InvalidOperation::Fields("deploy.force takes over fields, which only SERVER_SIDE does"));
    }
    small_enough(verb.manifest.as_ref().map_or(0, |manifest| manifest.data.len()))
}

fn small_enough(bytes: usize) -> Result<(), InvalidOperation> {
    if bytes <= MAX_MANIFEST_BYTES { Ok(()) } else { Err(ManifestError::TooLarge.into()) }
}

/// Checks the object of a deploy.
fn check_deployed(verb: &wire::Deploy, object: &Value) -> Result<(), InvalidOperation> {
    let identity = manifest::identity(object)?;
    let creates = matches!(verb.mode(), deploy::Mode::Unspecified | deploy::Mode::Create);
    if identity.name.is_empty() && !creates {
        return Err(InvalidOperation::Fields(
            "deploy.manifest has a generateName and no name, which can only be created: leave out deploy.mode",
        ));
    }
    Ok(())
}

fn check_delete(verb: &wire::Delete) -> Result<(), InvalidOperation> {
    enumerated::<wire::delete::Propagation>("delete.propagation", verb.propagation)?;
    if let Some(grace) = verb.grace_s
        && grace < 0
    {
        return Err(field("delete.grace_s", grace, "give 0 or more"));
    }
    kind_of("delete.target", verb.target.as_ref())?;
    bounded("delete.label_selector", &verb.label_selector, MAX_QUERY)?;
    let named = verb.target.as_ref().is_some_and(|target| !target.name.is_empty());
    match (named, verb.label_selector.is_empty()) {
        (true, true) | (false, false) => Ok(()),
        (true, false) => {
            Err(InvalidOperation::Fields("delete has both target.name and label_selector: give one of them"))
        }
        (false, true) => Err(InvalidOperation::Fields("delete needs target.name or label_selector")),
    }
}

fn check_logs(verb: &wire::Logs) -> Result<(), InvalidOperation> {
    object_of("logs.target", verb.target.as_ref())?;
    bounded("logs.container", &verb.container, MAX_NAME)?;
    let target = verb.target.as_ref();
    if target.is_some_and(|target| !target.group.is_empty() || target.kind != "Pod") {
        return Err(InvalidOperation::Fields("logs.target is no Pod, and only Pods have logs"));
    }
    if let Some(tail) = verb.tail
        && tail < 0
    {
        return Err(field("logs.tail", tail, "give 0 or more"));
    }
    if let Some(since) = verb.since_s
        && since < 1
    {
        return Err(field("logs.since_s", since, "give 1 or more"));
    }
    let most = i64::try_from(MAX_RESULT_BYTES).unwrap_or(i64::MAX);
    if !(0..=most).contains(&verb.limit_bytes) {
        return Err(field("logs.limit_bytes", verb.limit_bytes, "give 1 to 10485760, or nothing"));
    }
    Ok(())
}

/// Checks a target that must be one object.
fn object_of(path: &'static str, target: Option<&Target>) -> Result<(), InvalidOperation> {
    kind_of(path, target)?;
    match target {
        Some(target) if !target.name.is_empty() => Ok(()),
        _ => Err(InvalidOperation::Missing("target.name")),
    }
}

/// Checks a target that must be a kind.
fn kind_of(path: &'static str, target: Option<&Target>) -> Result<(), InvalidOperation> {
    let Some(target) = target else { return Err(InvalidOperation::Missing(path)) };
    if target.kind.is_empty() {
        return Err(InvalidOperation::Missing("target.kind"));
    }
    for (field, value) in [
        ("target.group", &target.group),
        ("target.version", &target.version),
        ("target.kind", &target.kind),
        ("target.namespace", &target.namespace),
        ("target.name", &target.name),
    ] {
        bounded(field, value, MAX_NAME)?;
        path_segment(field, value)?;
    }
    Ok(())
}

/// Refuses values that cannot be path segments: the API server has no object of such a name.
fn path_segment(name: &'static str, value: &str) -> Result<(), InvalidOperation> {
    let unfit = |c: char| c == '/' || c == '%' || c.is_control();
    if value == "." || value == ".." || value.contains(unfit) {
        return Err(field(name, value, "Kubernetes has no object with such a name"));
    }
    Ok(())
}

fn enumerated<E: TryFrom<i32>>(name: &'static str, value: i32) -> Result<(), InvalidOperation> {
    E::try_from(value).map(drop).map_err(|_| field(name, value, "give one of the documented values"))
}

fn bounded(name: &'static str, value: &str, most: usize) -> Result<(), InvalidOperation> {
    if value.len() <= most { Ok(()) } else { Err(field(name, value, "it is too long")) }
}

fn field(field: &'static str, value: impl fmt::Display, remedy: &'static str) -> InvalidOperation {
    let value: String = value.to_string().chars().take(64).collect();
    InvalidOperation::Field { field, value, remedy }
}
