//! Leases: which replica leads, and which replicas are alive.
//!
//! The replica that leads holds one Lease, `kubesvc-operator`; each replica also holds a Lease of its own. A
//! Lease has expired if it has not changed for its duration on the observer's own clock; timestamps of
//! different machines are never compared. A Lease is not a fence: a replica that was suspended may still
//! believe that it leads. What it writes then is rejected through the resourceVersion of each object and, in
//! the database, through the [term](kubesvc_store::Term).
//!
//! | module | owns |
//! |---|---|
//! | [`election_rules`] | the next action for the leader's Lease: pure |
//! | [`leader_lease`] | executing that action |
//! | [`leadership`] | who leads, for the rest of the process: [`Leadership`], [`Mandate`] |
//! | [`replica_lease`] | the Lease of this replica, and whether only this replica is cut off from the API server |
//! | [`liveness`], [`replicas`] | which replicas are alive, and since when agents wait for registration: the first is pure |
//!
//! This file reads and writes Leases at the API server. Those requests are exempt from the write rate limits: a
//! busy operator must not lose leadership because of its own writes.

mod election_rules;
mod isolation;
mod leader_lease;
mod leadership;
mod liveness;
mod replica_lease;
mod replicas;

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::ResourceExt as _;
use kube::api::{DeleteParams, ListParams, Preconditions};

use election_rules::LeaseRecord;
use kubesvc_core::ReplicaId;
use kubesvc_core::object_names;
use kubesvc_runtime::kube_access::{KubeAccess, KubeError, KubeObjects, WriteOptions};
use kubesvc_runtime::telemetry::errors::chain;

pub use election_rules::Times;
pub use isolation::Isolation;
pub use leader_lease::Elector;
pub use leadership::{Leadership, Mandate};
pub use replica_lease::OwnLease;
pub use replicas::Replicas;

/// Name of the leader's Lease.
pub const LEADER_LEASE: &str = "kubesvc-operator";
/// Prefix of the names of replica Leases.
const REPLICA_PREFIX: &str = "kubesvc-replica-";
/// Annotation with the number of waiting registrations.
const BACKLOG: &str = "kubesvc.io/registration-backlog";
/// Annotation with the ULID of the process that holds a replica's Lease.
const INCARNATION: &str = "kubesvc.io/incarnation";
/// Label of all Leases of the operator.
const NAME_LABEL: (&str, &str) = ("app.kubernetes.io/name", "kubesvc-operator");

/// Leases in the operator's namespace.
#[derive(Clone)]
pub struct LeaseObjects(KubeObjects<Lease>);

impl LeaseObjects {
    /// The Leases in `namespace`.
    pub fn new(kube: &KubeAccess, namespace: &str) -> Self {
        Self(kube.namespaced(namespace))
    }

    /// Checks that Leases can be read.
    pub async fn may_be_read(&self) -> Result<(), KubeError> {
        self.0.get(LEADER_LEASE).await.map(drop)
    }

    /// Reads a Lease from the API server, not from its watch cache; `None` if it does not exist.
    async fn get(&self, name: &str, within: Duration) -> Result<Option<Lease>, KubeError> {
        self.within(within).get(name).await
    }

    /// Replaces the Lease at its resourceVersion, or creates it if it has none.
    async fn put(&self, lease: &Lease, within: Duration, options: WriteOptions) -> Result<Lease, KubeError> {
        let objects = self.within(within);
        if lease.metadata.resource_version.is_some() {
            objects.replace(lease, options).await
        } else {
            objects.create(lease, options).await
        }
    }

    /// Names and resourceVersions of the Leases of all replicas, read from the API server.
    async fn of_replicas(&self, within: Duration) -> Result<Vec<(String, String)>, KubeError> {
        let listed = self.within(within).list(&ListParams::default()).await?;
        let named = listed.items.into_iter().map(|lease| {
            let version = lease.resource_version().unwrap_or_default();
            (lease.name_any(), version)
        });
        Ok(named.filter(|(name, _)| is_replica_lease(name)).collect())
    }

    /// Deletes a Lease if it still has this resourceVersion.
    async fn delete(&self, name: &str, version: &str, within: Duration) -> Result<(), KubeError> {
        let preconditions = Preconditions { resource_version: Some(version.to_owned()), uid: None };
        let parameters = DeleteParams::default().preconditions(preconditions);
        self.within(within).delete(name, &parameters, WriteOptions::default()).await.map(drop)
    }

    fn within(&self, timeout: Duration) -> KubeObjects<Lease> {
        self.0.with(|access| access.within(timeout))
    }
}

/// Describes an error for the log.
fn explain(error: &KubeError) -> String {
    match error.status() {
        _ if error.is_stale() => "it was changed, deleted or created by another client".to_owned(),
        Some(status) if matches!(status.code, 401 | 403) => {
            format!(
                "the operator may not use Leases in its namespace; apply config/rbac ({})",
                status.message
            )
        }
        _ => chain(error),
    }
}

/// Name of a replica's Lease.
fn replica_lease(replica_id: &ReplicaId) -> String {
    let name = format!("{REPLICA_PREFIX}{replica_id}");
    if object_names::is_dns_subdomain(&name) {
        return name;
    }
    // The id does not form a valid name: derive one that is unique to the id.
    format!("{REPLICA_PREFIX}{}", object_names::derived_name(replica_id.as_str()))
}

/// The replica id in the name of a replica's Lease.
fn replica_of(lease: &str) -> Option<&str> {
    lease.strip_prefix(REPLICA_PREFIX)
}

/// Whether a Lease belongs to a replica.
fn is_replica_lease(name: &str) -> bool {
    name.starts_with(REPLICA_PREFIX)
}

/// Content of the leader's Lease.
fn record(lease: &Lease) -> LeaseRecord {
    LeaseRecord {
        holder: holder(lease).into(),
        version: lease.metadata.resource_version.clone().unwrap_or_default(),
    }
}

/// Holder of a Lease; empty if there is none.
fn holder(lease: &Lease) -> &str {
    lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default()
}

/// The Lease with `holder_id` as its new or continuing holder. Its timestamps are for people; kubesvc never
/// reads them.
fn held(before: Option<&Lease>, name: &str, holder_id: &str, duration: Duration) -> Lease {
    let now = MicroTime(Timestamp::now());
    let old = before.and_then(|lease| lease.spec.clone()).unwrap_or_default();
    let goes_on = before.is_some_and(|lease| holder(lease) == holder_id);
    let transitions = old.lease_transitions.unwrap_or_default().max(0);
    let spec = LeaseSpec {
        holder_identity: Some(holder_id.to_owned()),
        lease_duration_seconds: Some(i32::try_from(duration.as_secs()).unwrap_or(i32::MAX).max(1)),
        acquire_time: old.acquire_time.filter(|_| goes_on).or_else(|| Some(now.clone())),
        renew_time: Some(now),
        lease_transitions: Some(match before {
            Some(_) if !goes_on => transitions.saturating_add(1),
            _ => transitions,
        }),
        ..old
    };
    Lease { metadata: metadata(before, name), spec: Some(spec) }
}

/// The Lease without a holder.
fn released(before: &Lease) -> Lease {
    let mut lease = before.clone();
    let spec = lease.spec.get_or_insert_default();
    spec.holder_identity = Some(String::new());
    spec.lease_duration_seconds = Some(1);
    spec.renew_time = Some(MicroTime(Timestamp::now()));
    lease
}

fn metadata(before: Option<&Lease>, name: &str) -> ObjectMeta {
    let mut metadata = before.map(|lease| lease.metadata.clone()).unwrap_or_default();
    metadata.name = Some(name.to_owned());
    metadata.managed_fields = None;
    let labels = metadata.labels.get_or_insert_with(BTreeMap::new);
    labels.insert(NAME_LABEL.0.to_owned(), NAME_LABEL.1.to_owned());
    metadata
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_replica_has_a_lease_of_its_own_whatever_its_id() {
        assert_eq!(replica_lease(&"operator-0".into()), "kubesvc-replica-operator-0");
        let odd = ["Host_1-77", "host-1-77", &"x".repeat(250), "", "ü"].map(|id| replica_lease(&id.into()));
        for (at, name) in odd.iter().enumerate() {
            assert!(object_names::is_dns_subdomain(name) && is_replica_lease(name), "{name}");
            assert!(!odd[at + 1..].contains(name), "{name} stands for two");
        }
        assert!(!is_replica_lease(LEADER_LEASE));
    }

    #[test]
    fn a_transition_is_counted_when_the_holder_changes() {
        let new = held(None, "x", "a", Duration::from_secs(15));
        let of = |lease: &Lease| lease.spec.clone().expect("it has one");
        assert_eq!((of(&new).lease_transitions, of(&new).lease_duration_seconds), (Some(0), Some(15)));
        let same = held(Some(&new), "x", "a", Duration::from_secs(15));
        assert_eq!((of(&same).lease_transitions, of(&same).acquire_time), (Some(0), of(&new).acquire_time));
        let free = released(&same);
        assert_eq!(holder(&free), "");
        let other = held(Some(&free), "x", "b", Duration::from_secs(15));
        assert_eq!((of(&other).lease_transitions, holder(&other)), (Some(1), "b"));
    }
}
