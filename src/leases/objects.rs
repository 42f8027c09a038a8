//! Reads and writes Leases at the API server.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::{Api, Client};

use super::election::LeaseRecord;
use crate::account::{FIELD_MANAGER, names};

/// Name of the leader's Lease.
pub const LEADER_LEASE: &str = "kubesvc-operator";
/// Prefix of the names of replica Leases.
const REPLICA_PREFIX: &str = "kubesvc-replica-";
/// Annotation with the number of waiting registrations.
pub(super) const BACKLOG: &str = "kubesvc.io/registration-backlog";
/// Annotation with the ULID of the process that holds a replica's Lease.
pub(super) const INCARNATION: &str = "kubesvc.io/incarnation";
/// Label of all Leases of the operator.
const NAME_LABEL: (&str, &str) = ("app.kubernetes.io/name", "kubesvc-operator");

/// Leases in the operator's namespace.
#[derive(Clone)]
pub struct LeaseObjects {
    pub(super) api: Api<Lease>,
}

/// Reason why a Lease could not be read or written.
#[derive(Debug, thiserror::Error)]
pub(super) enum LeaseWriteError {
    /// Somebody else has written, made or deleted it.
    #[error("it changed during each attempt")]
    Changed,
    /// The operator lacks the right.
    #[error("the operator may not use Leases in its namespace; apply config/rbac ({message})")]
    Forbidden { message: String },
    /// No answer came in time.
    #[error("the API server did not answer in time")]
    Silent,
    /// The API server did not take it, or could not be reached.
    #[error(transparent)]
    Api(kube::Error),
}

impl LeaseObjects {
    /// Creates a client for the Leases in `namespace`.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self { api: Api::namespaced(client, namespace) }
    }

    /// Reads a Lease from the API server, not from its watch cache; `None` if it does not exist.
    pub(super) async fn get(&self, name: &str, within: Duration) -> Result<Option<Lease>, LeaseWriteError> {
        in_time(within, self.api.get_opt(name)).await
    }

    /// Replaces the Lease at its resourceVersion, or creates it if it has none.
    pub(super) async fn put(&self, lease: &Lease, within: Duration) -> Result<Lease, LeaseWriteError> {
        let name = lease.metadata.name.as_deref().unwrap_or_default();
        let params = PostParams { dry_run: false, field_manager: Some(FIELD_MANAGER.to_owned()) };
        if lease.metadata.resource_version.is_some() {
            in_time(within, self.api.replace(name, &params, lease)).await
        } else {
            in_time(within, self.api.create(&params, lease)).await
        }
    }

    /// Deletes a Lease if it still has this resourceVersion.
    pub(super) async fn delete(
        &self,
        name: &str,
        version: &str,
        within: Duration,
    ) -> Result<(), LeaseWriteError> {
        let preconditions = Preconditions { resource_version: Some(version.to_owned()), uid: None };
        let params = DeleteParams::default().preconditions(preconditions);
        in_time(within, self.api.delete(name, &params)).await.map(drop)
    }
}

async fn in_time<T>(
    within: Duration,
    request: impl Future<Output = kube::Result<T>>,
) -> Result<T, LeaseWriteError> {
    match tokio::time::timeout(within, request).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(kube::Error::Api(status))) if matches!(status.code, 404 | 409) => {
            Err(LeaseWriteError::Changed)
        }
        Ok(Err(kube::Error::Api(status))) if matches!(status.code, 401 | 403) => {
            Err(LeaseWriteError::Forbidden { message: status.message })
        }
        Ok(Err(problem)) => Err(LeaseWriteError::Api(problem)),
        Err(_) => Err(LeaseWriteError::Silent),
    }
}

/// Name of a replica's Lease.
pub(super) fn replica_lease(replica_id: &str) -> String {
    let name = format!("{REPLICA_PREFIX}{replica_id}");
    if names::is_dns_subdomain(&name) {
        return name;
    }
    // The id does not form a valid name: derive one that is unique to the id.
    format!("{REPLICA_PREFIX}{}", names::derived_name(replica_id))
}

/// The replica id in the name of a replica's Lease.
pub(super) fn replica_of(lease: &str) -> Option<&str> {
    lease.strip_prefix(REPLICA_PREFIX)
}

/// Whether a Lease belongs to a replica.
pub(super) fn is_replica_lease(name: &str) -> bool {
    name.starts_with(REPLICA_PREFIX)
}

/// Content of the leader's Lease.
pub(super) fn record(lease: &Lease) -> LeaseRecord {
    LeaseRecord {
        holder: holder(lease).to_owned(),
        version: lease.metadata.resource_version.clone().unwrap_or_default(),
    }
}

/// Holder of a Lease; empty if there is none.
pub(super) fn holder(lease: &Lease) -> &str {
    lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default()
}

/// The Lease with `holder_id` as its new or continuing holder. Its timestamps are for people; kubesvc never
/// reads them.
pub(super) fn held(before: Option<&Lease>, name: &str, holder_id: &str, duration: Duration) -> Lease {
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
pub(super) fn released(before: &Lease) -> Lease {
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
        assert_eq!(replica_lease("operator-0"), "kubesvc-replica-operator-0");
        let odd = ["Host_1-77", "host-1-77", &"x".repeat(250), "", "ü"].map(replica_lease);
        for (at, name) in odd.iter().enumerate() {
            assert!(names::is_dns_subdomain(name) && is_replica_lease(name), "{name}");
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
