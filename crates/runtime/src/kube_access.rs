//! Requests to the operator's own API server.
//!
//! [`KubeAccess`] carries what its callers have in common: the field manager, the time limit for an answer, and the
//! limit on requests. [`KubeObjects`] sends the requests about one kind of object. Each request waits for its turn,
//! passes its crash points, and is answered within the time limit. The time limit does not count the wait for the
//! budget of writes, but counts the wait for one of the concurrent requests, because a caller waits meanwhile. An answer
//! that asks for a pause stops all writes of the rate limit. No request is repeated here: callers decide by
//! [`KubeError::class`].
//!
//! An error about a Secret contains nothing of what the API server said, because that may be a part of the Secret.

mod error;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::fmt::Debug;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::ObjectList;
use kube::{Api, Client, Resource};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

use crate::crash_points;
use crate::rate_limit::{RateLimit, Urgency};

pub use error::{ErrorClass, KubeCause, KubeError, KubeRequest};

/// Time limit for one answer, unless the caller sets another.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);
/// Minimum time for an answer to a request that has waited for its turn.
const MIN_ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RequestLabel {
    verb: &'static str,
    resource: Cow<'static, str>,
    /// `ok`, or the class of the error.
    result: &'static str,
}

type Durations = Family<RequestLabel, Histogram, fn() -> Histogram>;

/// From the start of a request, after the wait for its turn, until its answer or its time limit. Global, because a
/// process has one API server.
static DURATIONS: LazyLock<Durations> = LazyLock::new(|| {
    // From 1 ms to about 16 s.
    Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.001, 4.0, 8)))
});

/// Registers the histogram of requests.
pub fn register(registry: &mut Registry) {
    let registry = registry.sub_registry_with_prefix("kubesvc_api_request");
    let help = "Time that the API server took to answer a request";
    registry.register_with_unit("duration", help, Unit::Seconds, DURATIONS.clone());
}

/// How a write waits for its turn, and where fault tests interrupt it.
#[derive(Clone, Copy, Debug, Default)]
pub struct WriteOptions {
    /// Priority in the rate limit; `None` for a write that takes nothing from the rate limit.
    pub urgency: Option<Urgency>,
    /// Name of the crash points, without `:before` and `:after`.
    pub crash_point: Option<&'static str>,
}

impl WriteOptions {
    /// A write of this priority.
    pub const fn with(urgency: Urgency) -> Self {
        Self { urgency: Some(urgency), crash_point: None }
    }

    /// The same write with crash points.
    #[must_use]
    pub const fn at(self, crash_point: &'static str) -> Self {
        Self { crash_point: Some(crash_point), ..self }
    }
}

/// What limits the requests.
#[derive(Clone, Default)]
enum RequestLimit {
    #[default]
    None,
    /// The rate of writes. An overloaded API server pauses all of the rate limits, of which writes use the first.
    Writes(Vec<RateLimit>),
    /// The number of concurrent requests.
    Concurrent(Arc<Semaphore>, usize),
}

/// A way to the API server. Clones share the limit.
#[derive(Clone)]
pub struct KubeAccess {
    client: Client,
    manager: &'static str,
    timeout: Duration,
    limit: RequestLimit,
}

impl KubeAccess {
    /// Creates an access without a limit, whose writes name this field manager.
    pub fn new(client: Client, manager: &'static str) -> Self {
        Self { client, manager, timeout: ANSWER_TIMEOUT, limit: RequestLimit::None }
    }

    /// Sets the time limit for an answer, including the wait for one of the concurrent requests. A request whose turn
    /// comes late has 5 seconds from then on.
    #[must_use]
    pub fn within(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Limits the rate of writes. `others` are paused together with the rate limit.
    #[must_use]
    pub fn limited_by(self, rate_limit: RateLimit, others: impl IntoIterator<Item = RateLimit>) -> Self {
        Self { limit: RequestLimit::Writes([rate_limit].into_iter().chain(others).collect()), ..self }
    }

    /// Limits the number of concurrent requests, reads included.
    #[must_use]
    pub fn at_most(self, requests: usize) -> Self {
        Self { limit: RequestLimit::Concurrent(Arc::new(Semaphore::new(requests)), requests), ..self }
    }

    /// The client, for watches and for Events.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The objects of one kind in a namespace.
    pub fn namespaced<K>(&self, namespace: &str) -> KubeObjects<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        let api = Api::namespaced(self.client.clone(), namespace);
        KubeObjects { api, namespace: namespace.to_owned(), access: self.clone() }
    }

    /// The objects of one kind in a namespace, or in all of them.
    pub fn in_namespace<K>(&self, namespace: Option<&str>) -> KubeObjects<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        namespace.map_or_else(|| self.all(), |namespace| self.namespaced(namespace))
    }

    /// The objects of one kind in all namespaces, or without a namespace.
    pub fn all<K: Resource<DynamicType = ()>>(&self) -> KubeObjects<K> {
        KubeObjects { api: Api::all(self.client.clone()), namespace: String::new(), access: self.clone() }
    }

    /// Sends the request that `answer` makes, and that `request` names in errors and metrics. Reads have no options.
    ///
    /// # Errors
    /// See [`KubeError`].
    pub async fn send<T>(
        &self,
        request: KubeRequest,
        options: Option<WriteOptions>,
        answer: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, KubeError> {
        let asked = Instant::now();
        let _permit = match self.admit(options).await {
            Ok(admit) => admit,
            Err(cause) => return Err(KubeError::new(request, cause)),
        };
        let (verb, resource, began) = (request.verb, request.plural.clone(), Instant::now());
        let timeout = self.answer_timeout(began - asked);
        let point = options.and_then(|options| options.crash_point);
        let answer = crash_points::around(point, async {
            match tokio::time::timeout(timeout, answer).await {
                Ok(answer) => answer.map_err(|problem| KubeError::of(request, problem)),
                Err(_) => Err(KubeError::new(request, KubeCause::NoAnswer(timeout))),
            }
        });
        let answer = answer.await;
        let error = answer.as_ref().err();
        let result = error.map_or("ok", |error| error.class().as_str());
        let label = RequestLabel { verb, resource, result };
        DURATIONS.get_or_create(&label).observe(began.elapsed().as_secs_f64());
        if let (Some(pause), RequestLimit::Writes(rate_limits)) =
            (error.and_then(KubeError::pause), &self.limit)
        {
            rate_limits.iter().for_each(|rate_limit| rate_limit.pause(pause));
        }
        answer
    }

    /// Time limit for the answer to a request that has waited this long for its turn.
    fn answer_timeout(&self, waited: Duration) -> Duration {
        match self.limit {
            RequestLimit::Concurrent(..) => {
                self.timeout.saturating_sub(waited).max(self.timeout.min(MIN_ANSWER_TIMEOUT))
            }
            RequestLimit::None | RequestLimit::Writes(_) => self.timeout,
        }
    }

    /// Waits until the limit permits the request. Fails if that takes longer than the time limit.
    async fn admit(&self, options: Option<WriteOptions>) -> Result<Option<SemaphorePermit<'_>>, KubeCause> {
        match (&self.limit, options.and_then(|options| options.urgency)) {
            (RequestLimit::Concurrent(requests, limit), _) => {
                match tokio::time::timeout(self.timeout, requests.acquire()).await {
                    Ok(Ok(admit)) => Ok(Some(admit)),
                    _ => Err(KubeCause::Busy { limit: *limit, waited: self.timeout }),
                }
            }
            (RequestLimit::Writes(rate_limits), Some(urgency)) => {
                if let Some(rate_limit) = rate_limits.first() {
                    rate_limit.take(urgency).await;
                }
                Ok(None)
            }
            _ => Ok(None),
        }
    }
}

/// The objects of one kind, in one namespace or in all.
#[derive(Clone)]
pub struct KubeObjects<K> {
    api: Api<K>,
    namespace: String,
    access: KubeAccess,
}

impl<K: Clone> KubeObjects<K> {
    /// The same objects with another access.
    #[must_use]
    pub fn with(&self, change: impl FnOnce(KubeAccess) -> KubeAccess) -> Self {
        Self { access: change(self.access.clone()), ..self.clone() }
    }

    /// The API of these objects, for watches.
    pub fn api(&self) -> &Api<K> {
        &self.api
    }
}

impl<K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned> KubeObjects<K> {
    /// Reads an object; `None` if it does not exist.
    ///
    /// # Errors
    /// See [`KubeError`]; so for all requests.
    pub async fn get(&self, name: &str) -> Result<Option<K>, KubeError> {
        none_if_gone(self.send("get", name, None, self.api.get(name)).await)
    }

    /// Reads the metadata of an object; `None` if it does not exist.
    pub async fn get_metadata(&self, name: &str) -> Result<Option<ObjectMeta>, KubeError> {
        let read = none_if_gone(self.send("get", name, None, self.api.get_metadata(name)).await)?;
        Ok(read.map(|object| object.metadata))
    }

    /// Lists objects.
    pub async fn list(&self, parameters: &ListParams) -> Result<ObjectList<K>, KubeError> {
        self.send("list", "", None, self.api.list(parameters)).await
    }

    /// Creates an object.
    pub async fn create(&self, object: &K, options: WriteOptions) -> Result<K, KubeError>
    where
        K: Serialize,
    {
        let parameters = self.post_params();
        self.send("create", name_of(object), Some(options), self.api.create(&parameters, object)).await
    }

    /// Has the API server check an object as if it were created, and store nothing (dry run).
    pub async fn try_create(&self, object: &K) -> Result<K, KubeError>
    where
        K: Serialize,
    {
        let parameters = PostParams { dry_run: true, ..self.post_params() };
        self.send("create", name_of(object), None, self.api.create(&parameters, object)).await
    }

    /// Replaces an object at its resourceVersion.
    pub async fn replace(&self, object: &K, options: WriteOptions) -> Result<K, KubeError>
    where
        K: Serialize,
    {
        let (name, parameters) = (name_of(object), self.post_params());
        self.send("update", name, Some(options), self.api.replace(name, &parameters, object)).await
    }

    /// Replaces the status of an object. Of `object`, the API server takes only metadata and status.
    pub async fn replace_status(
        &self,
        name: &str,
        object: &impl Serialize,
        options: WriteOptions,
    ) -> Result<K, KubeError> {
        let parameters = self.post_params();
        let replaced = self.api.replace_subresource("status", name, &parameters, object);
        self.send("update", name, Some(options), replaced).await
    }

    /// Merges a patch into an object.
    pub async fn patch(&self, name: &str, patch: &Value, options: WriteOptions) -> Result<K, KubeError> {
        let (parameters, patch) = (self.patch_params(), Patch::Merge(patch));
        self.send("patch", name, Some(options), self.api.patch(name, &parameters, &patch)).await
    }

    /// Merges a patch into an object, and returns only the metadata.
    pub async fn patch_metadata(
        &self,
        name: &str,
        patch: &Value,
        options: WriteOptions,
    ) -> Result<ObjectMeta, KubeError> {
        let (parameters, patch) = (self.patch_params(), Patch::Merge(patch));
        let patched = self.api.patch_metadata(name, &parameters, &patch);
        Ok(self.send("patch", name, Some(options), patched).await?.metadata)
    }

    /// Deletes an object that meets the preconditions. Returns the object if a finalizer still keeps it.
    pub async fn delete(
        &self,
        name: &str,
        parameters: &DeleteParams,
        options: WriteOptions,
    ) -> Result<Option<K>, KubeError> {
        Ok(self.send("delete", name, Some(options), self.api.delete(name, parameters)).await?.left())
    }

    async fn send<T>(
        &self,
        verb: &'static str,
        name: &str,
        options: Option<WriteOptions>,
        answer: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, KubeError> {
        let request = KubeRequest::of::<K>(verb, &self.namespace, name);
        self.access.send(request, options, answer).await
    }

    fn post_params(&self) -> PostParams {
        PostParams { field_manager: Some(self.access.manager.to_owned()), ..PostParams::default() }
    }

    fn patch_params(&self) -> PatchParams {
        PatchParams { field_manager: Some(self.access.manager.to_owned()), ..PatchParams::default() }
    }
}

fn name_of<K: Resource>(object: &K) -> &str {
    object.meta().name.as_deref().unwrap_or_default()
}

/// Turns the error about an object that does not exist into `None`.
///
/// # Errors
/// All other errors.
pub fn none_if_gone<T>(answer: Result<T, KubeError>) -> Result<Option<T>, KubeError> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.class() == ErrorClass::Gone => Ok(None),
        Err(error) => Err(error),
    }
}

/// Turns the error of a write that was based on an outdated state ([`KubeError::is_stale`]) into `None`.
///
/// # Errors
/// All other errors.
pub fn unless_stale<T>(answer: Result<T, KubeError>) -> Result<Option<T>, KubeError> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_stale() => Ok(None),
        Err(error) => Err(error),
    }
}
