//! Discovery of the other replicas: whether the operator may list and watch Endpoints and EndpointSlices, and the
//! watches that feed the [membership](super::membership).

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Arc;

use futures::StreamExt;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::api::core::v1::Endpoints;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::ResourceExt;
use kube::runtime::watcher::Event;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::membership::{EndpointSource, Membership, Sighting, of_endpoints, of_slice};
use super::{JoinPeersError, Lookup};
use kubesvc_runtime::background_tasks::BackgroundTasks;
use kubesvc_runtime::kube_access::{KubeAccess, WriteOptions};
use kubesvc_runtime::telemetry::outages;

/// Label of an EndpointSlice that names its Service.
const SERVICE_LABEL: &str = "kubernetes.io/service-name";
/// Verbs that must be allowed for each kind.
const VERBS: [&str; 2] = ["list", "watch"];

/// A kind of object that lists addresses of replicas.
trait EndpointObjects:
    kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
    + Clone
    + Debug
    + DeserializeOwned
    + Send
    + 'static
{
    /// The kind.
    const SOURCE: EndpointSource;

    /// Name of the Service that the object belongs to.
    fn service_name(&self) -> Option<String>;

    /// The addresses that have a port of this name.
    fn sightings(&self, port_name: &str) -> Vec<Sighting>;
}

impl EndpointObjects for Endpoints {
    const SOURCE: EndpointSource = EndpointSource::Endpoints;

    fn service_name(&self) -> Option<String> {
        self.metadata.name.clone()
    }

    fn sightings(&self, port_name: &str) -> Vec<Sighting> {
        of_endpoints(self, port_name)
    }
}

impl EndpointObjects for EndpointSlice {
    const SOURCE: EndpointSource = EndpointSource::EndpointSlices;

    fn service_name(&self) -> Option<String> {
        self.labels().get(SERVICE_LABEL).cloned()
    }

    fn sightings(&self, port_name: &str) -> Vec<Sighting> {
        of_slice(self, port_name)
    }
}

/// Starts the watches of Endpoints and EndpointSlices, which keep the membership in step until stopped.
///
/// # Errors
/// The API server does not say whether the operator may watch them, or it may not.
pub(super) async fn start(
    kube: &KubeAccess,
    lookup: Lookup,
    membership: &Arc<Membership>,
    background: &BackgroundTasks,
    stop: &CancellationToken,
) -> Result<(), JoinPeersError> {
    let namespace = &lookup.namespace;
    let no_endpoints = denied(kube, namespace, "", "endpoints").await?;
    let no_slices = denied(kube, namespace, "discovery.k8s.io", "endpointslices").await?;
    let (endpoints, slices) = (no_endpoints.is_none(), no_slices.is_none());
    let denied: Vec<_> = no_endpoints.into_iter().chain(no_slices).collect();
    if !denied.is_empty() {
        let problem = cannot_discover(&denied, namespace);
        if lookup.fail_fast {
            return Err(JoinPeersError::Denied(problem));
        }
        warn!("{problem}; continuing because kubesvc.cluster-kubernetes.failFast is false");
    }
    let (kube, membership) = (|| kube.clone(), || Arc::clone(membership));
    if endpoints {
        let watch = watch::<Endpoints>(kube(), lookup.clone(), membership(), stop.clone());
        background.spawn("watch of Endpoints", "Finds replicas by their Endpoints", watch);
    }
    if slices {
        let watch = watch::<EndpointSlice>(kube(), lookup, membership(), stop.clone());
        background.spawn("watch of EndpointSlices", "Finds replicas by their EndpointSlices", watch);
    }
    Ok(())
}

/// Keeps the membership in step with one kind of object until cancelled. While the watch is down, the last
/// known state remains.
async fn watch<K: EndpointObjects>(
    kube: KubeAccess,
    lookup: Lookup,
    membership: Arc<Membership>,
    stop: CancellationToken,
) {
    let objects = kube.namespaced::<K>(&lookup.namespace);
    let stream = kubesvc_runtime::watch_backoff::events(
        objects.api().clone(),
        kubesvc_runtime::watch_backoff::config(),
    );
    let mut stream = std::pin::pin!(stream.take_until(stop.cancelled_owned()));
    let mut listing = HashMap::new();
    while let Some(event) = stream.next().await {
        match event {
            Ok(Event::Init) => listing.clear(),
            Ok(Event::InitApply(object)) => {
                listing.insert(object.name_any(), seen_in(&object, &lookup));
            }
            Ok(Event::InitDone) => membership.listed(K::SOURCE, std::mem::take(&mut listing)),
            Ok(Event::Apply(object)) => {
                membership.record(K::SOURCE, object.name_any(), seen_in(&object, &lookup));
            }
            Ok(Event::Delete(object)) => membership.record(K::SOURCE, object.name_any(), Vec::new()),
            Err(outage) => {
                outages::log_transition(&format!("{:?} (used to discover replicas)", K::SOURCE), &outage);
            }
        }
    }
}

fn seen_in<K: EndpointObjects>(object: &K, lookup: &Lookup) -> Vec<Sighting> {
    match object.service_name() {
        Some(service) if service.starts_with(&lookup.service_name_prefix) => {
            object.sightings(&lookup.http_port_name)
        }
        _ => Vec::new(),
    }
}

/// What the operator may not do with objects of this kind; `None` if it may list and watch them.
async fn denied(
    kube: &KubeAccess,
    namespace: &str,
    group: &str,
    resource: &str,
) -> Result<Option<String>, JoinPeersError> {
    let mut missing = Vec::new();
    for verb in VERBS {
        if !may(kube, namespace, group, resource, verb).await? {
            missing.push(verb);
        }
    }
    let of_group = if group.is_empty() { String::new() } else { format!(".{group}") };
    Ok((!missing.is_empty()).then(|| format!("{} {resource}{of_group}", missing.join(" and "))))
}

async fn may(
    kube: &KubeAccess,
    namespace: &str,
    group: &str,
    resource: &str,
    verb: &str,
) -> Result<bool, JoinPeersError> {
    let question = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                namespace: Some(namespace.to_owned()),
                group: Some(group.to_owned()),
                resource: Some(resource.to_owned()),
                verb: Some(verb.to_owned()),
                ..ResourceAttributes::default()
            }),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let right = format!("{verb} {resource} in namespace {namespace}");
    let reviews = kube.all::<SelfSubjectAccessReview>();
    let review = reviews.create(&question, WriteOptions::default()).await;
    let review = review.map_err(|source| JoinPeersError::Review { right, source })?;
    Ok(review.status.is_some_and(|status| status.allowed))
}

fn cannot_discover(denied: &[String], namespace: &str) -> String {
    format!(
        "the operator may not {} in namespace {namespace}, and so cannot find other replicas; apply \
         config/rbac/replicas.yaml there, which grants list and watch of endpoints and endpointslices.discovery.k8s.io \
         to its service account, or set kubesvc.cluster: local for one replica",
        denied.join(", nor ")
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn count<K: EndpointObjects>(object: serde_json::Value, prefix: &str) -> usize {
        let lookup = Lookup {
            namespace: "ns".into(),
            service_name_prefix: prefix.into(),
            http_port_name: "http".into(),
            pod_domain: None,
            calls_port: 7004,
            fail_fast: true,
        };
        seen_in(&serde_json::from_value::<K>(object).expect("an object"), &lookup).len()
    }

    #[test]
    fn endpoints_count_by_name_and_slices_by_the_label_of_their_service() {
        let endpoints = json!({"metadata": {"name": "spin-clouddriver-ro"}, "subsets": [
            {"addresses": [{"ip": "10.0.0.1"}], "ports": [{"name": "http", "port": 7002}]}]});
        assert_eq!(count::<Endpoints>(endpoints.clone(), "spin-clouddriver"), 1);
        assert_eq!(count::<Endpoints>(endpoints, "clouddriver"), 0);
        let slice = |labels: serde_json::Value| {
            json!({"metadata": {"name": "spin-clouddriver-x", "labels": labels}, "addressType": "IPv4",
                "endpoints": [{"addresses": ["10.0.0.1"]}], "ports": [{"name": "http", "port": 7002}]})
        };
        let labelled = slice(json!({SERVICE_LABEL: "spin-clouddriver"}));
        assert_eq!(count::<EndpointSlice>(labelled.clone(), "spin-clouddriver"), 1);
        assert_eq!(count::<EndpointSlice>(labelled, "spin-clouddriver-"), 0);
        assert_eq!(
            count::<EndpointSlice>(slice(json!({})), "spin-clouddriver"),
            0,
            "its own name is not looked at"
        );
    }
}
