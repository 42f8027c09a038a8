//! The object of a deploy, and what every write of one has in common.

use std::sync::Arc;

use serde_json::Value;

use super::kinds::Resource;
use super::manifest::is_too_large_to_be_annotated;
use super::outcome::{Outcome, OutcomeClass};
use super::program::{ApiRequest, JSON, Method};

/// Number of times that an object is read and merged again after a conflict.
pub(super) const MAX_CONFLICTS: u32 = 3;
/// What every write of a deployed object asks for: an unknown field is an error, as with kubectl.
pub(super) const STRICT: (&str, &str) = ("fieldValidation", "Strict");

/// What one object's deploy knows.
#[derive(Clone, Debug)]
pub(super) struct Deployed {
    /// Shared with its operation: it may be large, and is copied only while a request is made of it.
    pub(super) object: Arc<Value>,
    pub(super) resource: Resource,
    /// Path of the object; that of its kind if it has no name yet.
    pub(super) path: String,
    /// Path of the kind in the object's namespace.
    pub(super) collection: String,
    pub(super) dry_run: bool,
}

/// The end of a deploy whose object cannot hold itself in an annotation, before anything is sent: as the API server would refuse
/// the write.
pub(super) fn refused_as_too_large(deployed: &Deployed) -> Option<Outcome> {
    let message = "metadata.annotations: Too long: may not be more than 262144 bytes. A client-side apply keeps the manifest in \
                   an annotation; deploy it with mode SERVER_SIDE";
    is_too_large_to_be_annotated(&deployed.object)
        .then(|| Outcome::failed(422, OutcomeClass::Invalid, message))
}

/// The request that creates an object. As with kubectl, it leaves out the version that a manifest from `kubectl get`
/// has: the API server creates no object with one.
pub(super) fn create(deployed: &Deployed, manager: &str, mut object: Value) -> ApiRequest {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("resourceVersion");
    }
    let parameters = [("fieldManager", manager), STRICT];
    ApiRequest::write(Method::Post, &deployed.collection, &parameters, deployed.dry_run, JSON, &object)
}
