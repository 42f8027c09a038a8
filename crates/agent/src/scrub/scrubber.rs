//! From the bytes of an object to an event: the rules of a scope applied to one object after another.

use std::fmt;

use kubesvc_core::wire::events::Event;
use kubesvc_core::wire::events::event::{Body, Omitted, Operation};
use prost::Message as _;
use sha2::{Digest as _, Sha256};

use crate::scrub::body::BodyEncoder;
use crate::scrub::body::{MemberCuts, Splice};
use crate::scrub::identity::{IdentityError, ObjectIdentity, Unidentified};
use crate::scrub::json::{Entries, Extent, JsonEntry, is_null, leading_space, text};
use crate::scrub::metadata::ScannedMetadata;
use crate::scrub::object::{BodyError, RawObject};
use crate::scrub::rules::{Exclusion, ObjectRules};
use crate::scrub::{MAX_BODY_BYTES, MAX_DEPTH, MAX_NUMBER_BYTES};

/// An event, and why it has no body if an object lacks one.
#[derive(Clone, Debug, PartialEq)]
pub struct ScrubbedEvent {
    /// The event; `held_ms` is 0.
    pub event: Event,
    /// Why the body is left out. The object has a row nevertheless.
    pub omitted: Option<OmittedBody>,
}

/// The body of an object is left out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the body of {kind} {name:?} in namespace {namespace:?} is left out")]
pub struct OmittedBody {
    pub kind: String,
    /// Namespace of the object; empty for a cluster-wide one.
    pub namespace: String,
    pub name: String,
    #[source]
    pub why: OmissionReason,
}

/// Why a body is left out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OmissionReason {
    #[error("it has {size} bytes; at most {MAX_BODY_BYTES} are sent, and at most {max_event} in one message")]
    TooLarge {
        /// Size without what is cut out, in bytes.
        size: usize,
        /// Maximum size of an encoded event, in bytes.
        max_event: usize,
    },
    #[error(transparent)]
    Unparsable(#[from] BodyError),
}

/// An object that was read and not yet encoded.
pub struct InspectedObject<'a> {
    identity: ObjectIdentity,
    kind: &'a str,
    bytes: &'a [u8],
    splice: Splice,
    metadata: ScannedMetadata,
    problem: Option<BodyError>,
    operation: Operation,
}

impl fmt::Debug for InspectedObject<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the bytes: they may hold a Secret.
        f.debug_struct("InspectedObject")
            .field("identity", &self.identity)
            .field("bytes", &self.bytes.len())
            .finish_non_exhaustive()
    }
}

/// What the rules make of an object.
#[derive(Debug)]
pub enum Inspected<'a> {
    /// It is sent.
    Object(Box<InspectedObject<'a>>),
    /// It is left out.
    Excluded(Exclusion, ObjectIdentity),
    /// It is unknown which object it is.
    Unidentified(Unidentified),
}

/// Applies the rules of one scope. It decides by an object's metadata, reads no more of the body than it must, and
/// makes no tree of it.
#[derive(Clone, Debug)]
pub struct Scrubber {
    rules: ObjectRules,
    /// `"kind":"Pod"` and `"apiVersion":"v1"`: in this order, in which a server writes them in a watch, so that an
    /// object has the same bytes in a list.
    type_members: [String; 2],
}

impl Scrubber {
    /// A scrubber for the objects of one scope.
    pub fn new(rules: ObjectRules) -> Self {
        let member = |key: &str, value: &str| format!("\"{key}\":{}", serde_json::Value::from(value));
        let type_members = [member("kind", &rules.kind), member("apiVersion", &rules.api_version)];
        Self { rules, type_members }
    }

    /// Reads an object, without encoding it: in a list, most are known already. The end of an object is told even if
    /// its last state is left out, because an earlier one may have been sent.
    pub fn inspect<'a>(&'a self, object: &RawObject<'a>, operation: Operation) -> Inspected<'a> {
        let (splice, mut metadata, found) = self.outline(object);
        let problem = object.problem().cloned().or(found);
        let identity = std::mem::take(&mut metadata.identity);
        let (namespace, name) = identity.shown();
        let identity = match identity.checked(&self.rules.namespace) {
            Ok(identity) => identity,
            Err(why) => {
                // What is missing may stand in what cannot be read.
                let why = match (why, problem) {
                    (IdentityError::Missing(_), Some(problem)) => IdentityError::Body(problem),
                    (why, _) => why,
                };
                let kind = self.rules.kind.clone();
                return Inspected::Unidentified(Unidentified { kind, namespace, name, why });
            }
        };
        let exclusion = self.rules.exclusion(&identity.namespace, &metadata.annotations);
        match exclusion.filter(|exclusion| operation != Operation::Delete || !exclusion.may_have_row()) {
            Some(exclusion) => Inspected::Excluded(exclusion, identity),
            None => Inspected::Object(Box::new(InspectedObject {
                identity,
                kind: &self.rules.kind,
                bytes: object.bytes(),
                splice,
                metadata,
                problem,
                operation,
            })),
        }
    }

    /// Goes through the members of an object, as far as they can be told apart.
    fn outline(&self, object: &RawObject<'_>) -> (Splice, ScannedMetadata, Option<BodyError>) {
        let (mut splice, mut metadata) = (Splice::default(), ScannedMetadata::default());
        let (mut extent, mut problem) = (Extent::default(), None);
        let (mut cuts, mut has_type) = (MemberCuts::default(), [false; 2]);
        for entry in object.members() {
            let Ok(entry) = entry else {
                problem.get_or_insert(BodyError::BadKey);
                break;
            };
            extent.depth = extent.depth.max(entry.extent.depth + 1);
            extent.number = extent.number.max(entry.extent.number);
            if self.is_cut(object.bytes(), &entry) {
                cuts.cut(&entry, &mut splice);
                continue;
            }
            cuts.keep(&entry, &mut splice);
            match &*entry.key {
                "kind" => has_type[0] = true,
                "apiVersion" => has_type[1] = true,
                "metadata" => metadata.read(object.bytes(), entry.value.start, &self.rules, &mut splice),
                "spec" if self.rules.is_crd && cut_schemas(object.bytes(), &entry, &mut splice).is_none() => {
                    problem.get_or_insert(BodyError::WrongType("spec.versions"));
                }
                _ => {}
            }
        }
        let kept = cuts.finish(&mut splice);
        self.insert_type(object.bytes(), has_type, kept, &mut splice);
        let problem = metadata.problem.clone().or(problem).or_else(|| beyond(extent));
        (splice, metadata, problem)
    }

    /// Whether a member of the object is cut out.
    fn is_cut(&self, bytes: &[u8], entry: &JsonEntry<'_>) -> bool {
        let is = |value: &str| text(bytes, &entry.value).as_deref() == Some(value);
        match &*entry.key {
            // Of an object that was asked for as metadata alone, these are not its own.
            "kind" => is("PartialObjectMetadata") && self.rules.kind != "PartialObjectMetadata",
            "apiVersion" => {
                text(bytes, &entry.value).is_some_and(|version| version.starts_with("meta.k8s.io/"))
                    && !self.rules.api_version.starts_with("meta.k8s.io/")
            }
            "metadata" => false,
            _ => self.rules.is_secret,
        }
    }

    /// Inserts kind and apiVersion where the object lacks them.
    fn insert_type(&self, bytes: &[u8], has_type: [bool; 2], kept: usize, splice: &mut Splice) {
        let missing =
            self.type_members.iter().zip(has_type).filter(|(_, has)| !has).map(|(member, _)| member);
        let mut inserted = missing.map(String::as_str).collect::<Vec<_>>().join(",");
        if inserted.is_empty() {
            return;
        }
        if kept > 0 {
            inserted.push(',');
        }
        splice.insert((leading_space(bytes) + 1).min(bytes.len()), inserted);
    }
}

/// Cuts the schemas out of the versions of a CustomResourceDefinition. `None` if they are not as they should be.
fn cut_schemas(bytes: &[u8], spec: &JsonEntry<'_>, splice: &mut Splice) -> Option<()> {
    for member in Entries::members(bytes, spec.value.start) {
        let member = member.ok()?;
        if member.key != "versions" || is_null(bytes, &member.value) {
            continue;
        }
        for version in Entries::elements(bytes, member.value.start) {
            let version = version.ok()?;
            let mut cuts = MemberCuts::default();
            for member in Entries::members(bytes, version.value.start) {
                let member = member.ok()?;
                if member.key == "schema" {
                    cuts.cut(&member, splice);
                } else {
                    cuts.keep(&member, splice);
                }
            }
            cuts.finish(splice);
        }
    }
    Some(())
}

/// What is more than those who read a body must bear.
fn beyond(extent: Extent) -> Option<BodyError> {
    if extent.depth > MAX_DEPTH {
        Some(BodyError::TooDeep { depth: extent.depth, max: MAX_DEPTH })
    } else if extent.number > MAX_NUMBER_BYTES {
        Some(BodyError::NumberTooLong { length: extent.number, max: MAX_NUMBER_BYTES })
    } else {
        None
    }
}

/// The end of an object.
pub fn delete_event(scope_id: u32, object: ObjectIdentity) -> Event {
    let ObjectIdentity { namespace, name, uid, resource_version: rv } = object;
    let mut event = Event { scope_id, namespace, name, uid, rv, ..Event::default() };
    event.set_op(Operation::Delete);
    event
}

impl InspectedObject<'_> {
    pub fn identity(&self) -> &ObjectIdentity {
        &self.identity
    }

    pub fn into_event(mut self, scope_id: u32, encoder: &mut BodyEncoder) -> ScrubbedEvent {
        let mut event = delete_event(scope_id, std::mem::take(&mut self.identity));
        if self.operation == Operation::Delete {
            return ScrubbedEvent { event, omitted: None };
        }
        event.set_op(Operation::Upsert);
        if self.metadata.problem.is_none() {
            event.meta = self.metadata.take_meta();
            event.owners = std::mem::take(&mut self.metadata.owners);
        }
        let omission = self.set_body(&mut event, encoder).err();
        if let Some(reason) = &omission {
            // The same for each omitted body: one that is sent later differs from it, whatever it was then.
            event.hash = Sha256::digest([]).to_vec();
            event.body = Some(Body::Omitted(reason.on_wire().into()));
            if event.encoded_len() > encoder.max_event_bytes() {
                event.meta.clear();
                event.owners.clear();
            }
        }
        let omitted = omission.map(|why| OmittedBody {
            kind: self.kind.to_owned(),
            namespace: event.namespace.clone(),
            name: event.name.clone(),
            why,
        });
        ScrubbedEvent { event, omitted }
    }

    fn set_body(&mut self, event: &mut Event, encoder: &mut BodyEncoder) -> Result<(), OmissionReason> {
        if let Some(problem) = self.problem.take() {
            return Err(problem.into());
        }
        let max_event = encoder.max_event_bytes();
        let too_large = OmissionReason::TooLarge { size: self.splice.size(self.bytes.len()), max_event };
        let Some((blob, hash)) = encoder.encode(self.bytes, &self.splice) else { return Err(too_large) };
        event.hash = hash.to_vec();
        event.body = Some(Body::Blob(blob));
        if event.encoded_len() > max_event { Err(too_large) } else { Ok(()) }
    }
}

impl OmissionReason {
    fn on_wire(&self) -> Omitted {
        match self {
            Self::TooLarge { .. } => Omitted::TooLarge,
            Self::Unparsable(_) => Omitted::Unparsable,
        }
    }
}
