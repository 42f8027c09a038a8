//! The object of a deploy, and the common parts of its writes.

use std::sync::Arc;

use serde_json::Value;

use super::kinds::Resource;
use super::manifest::is_too_large_to_be_annotated;
use super::outcome::{Outcome, OutcomeClass};
use super::program::{ApiRequest, JSON, Method};

/// Maximum number of rereads after a conflict.
pub(super) const MAX_CONFLICTS: u32 = 3;
/// Query parameter of every write of a deployed object: an unknown field is an error, as with kubectl.
pub(super) const STRICT: (&str, &str) = ("fieldValidation", "Strict");

/// Object and paths of one deploy.
#[derive(Clone, Debug)]
pub(super) struct Deployed {
    /// Shared with its operation: it may be large, and is cloned only while a request is built.
    pub(super) object: Arc<Value>,
    pub(super) resource: Resource,
    /// Path of the object; that of its kind if it has no name yet.
    pub(super) path: String,
    /// Path of the kind in the object's namespace.
    pub(super) collection: String,
    pub(super) dry_run: bool,
}

/// Outcome of a deploy whose object does not fit into its own annotation, before anything is sent: the API server would
/// refuse the write.
pub(super) fn refused_as_too_large(deployed: &Deployed) -> Option<Outcome> {
    let message = "metadata.annotations: Too long: may not be more than 262144 bytes. A client-side apply keeps the manifest in \
                   an annotation; deploy it with mode SERVER_SIDE";
    is_too_large_to_be_annotated(&deployed.object)
        .then(|| Outcome::failed(422, OutcomeClass::Invalid, message))
}

/// Request that creates an object. As with kubectl, without the resourceVersion that a manifest from `kubectl get` has:
/// the API server creates no object with one.
pub(super) fn create(deployed: &Deployed, manager: &str, mut object: Value) -> ApiRequest {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("resourceVersion");
    }
    let parameters = [("fieldManager", manager), STRICT];
    ApiRequest::write(Method::Post, &deployed.collection, &parameters, deployed.dry_run, JSON, &object)
}
