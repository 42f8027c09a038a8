//! Watches of Endpoints and EndpointSlices that feed the [membership](super::membership).

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Arc;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Endpoints;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::runtime::watcher::Event;
use kube::{Api, Client, ResourceExt};
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use super::members::{self, Sighting};
use super::membership::{EndpointSource, Membership};
use crate::telemetry::outages;

/// Label of an EndpointSlice that names its Service.
const SERVICE_LABEL: &str = "kubernetes.io/service-name";

/// Which objects count, and which port in them.
#[derive(Clone, Debug)]
pub(super) struct DiscoveryScope {
    /// Namespace of the objects.
    pub(super) namespace: String,
    /// Prefix of the name of their Service.
    pub(super) service_prefix: String,
    /// Name of the REST port.
    pub(super) port_name: String,
}

/// A kind of object that lists addresses of replicas.
pub(super) trait EndpointObjects:
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
        members::of_endpoints(self, port_name)
    }
}

impl EndpointObjects for EndpointSlice {
    const SOURCE: EndpointSource = EndpointSource::EndpointSlices;

    fn service_name(&self) -> Option<String> {
        self.labels().get(SERVICE_LABEL).cloned()
    }

    fn sightings(&self, port_name: &str) -> Vec<Sighting> {
        members::of_slice(self, port_name)
    }
}

/// Keeps the membership in step with one kind of object until cancelled. While the watch is down, the last
/// known state remains.
pub(super) async fn watch<K: EndpointObjects>(
    client: Client,
    looked: DiscoveryScope,
    membership: Arc<Membership>,
    stop: CancellationToken,
) {
    let api: Api<K> = Api::namespaced(client, &looked.namespace);
    let stream = crate::watch_backoff::events(api, crate::watch_backoff::config());
    let mut stream = std::pin::pin!(stream.take_until(stop.cancelled_owned()));
    let mut listing = HashMap::new();
    while let Some(event) = stream.next().await {
        match event {
            Ok(Event::Init) => listing.clear(),
            Ok(Event::InitApply(object)) => {
                listing.insert(object.name_any(), seen_in(&object, &looked));
            }
            Ok(Event::InitDone) => membership.listed(K::SOURCE, std::mem::take(&mut listing)),
            Ok(Event::Apply(object)) => {
                membership.tells(K::SOURCE, object.name_any(), seen_in(&object, &looked));
            }
            Ok(Event::Delete(object)) => membership.tells(K::SOURCE, object.name_any(), Vec::new()),
            Err(outage) => {
                outages::log_transition(&format!("{:?} (used to discover replicas)", K::SOURCE), &outage);
            }
        }
    }
}

fn seen_in<K: EndpointObjects>(object: &K, looked: &DiscoveryScope) -> Vec<Sighting> {
    match object.service_name() {
        Some(service) if service.starts_with(&looked.service_prefix) => object.sightings(&looked.port_name),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn count<K: EndpointObjects>(object: serde_json::Value, prefix: &str) -> usize {
        let looked = DiscoveryScope {
            namespace: "ns".into(),
            service_prefix: prefix.into(),
            port_name: "http".into(),
        };
        seen_in(&serde_json::from_value::<K>(object).expect("an object"), &looked).len()
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
