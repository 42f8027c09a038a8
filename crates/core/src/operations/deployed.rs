//! The object of a deploy, and what every write of one has in common.

use std::sync::Arc;

use serde_json::Value;

use super::kinds::Resource;
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

/// The request that creates an object. As with kubectl, it leaves out the version that a manifest from `kubectl get`
/// has: the API server creates no object with one.
pub(super) fn create(deployed: &Deployed, manager: &str, mut object: Value) -> ApiRequest {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("resourceVersion");
    }
    let parameters = [("fieldManager", manager), STRICT];
    ApiRequest::write(Method::Post, &deployed.collection, &parameters, deployed.dry_run, JSON, &object)
}
