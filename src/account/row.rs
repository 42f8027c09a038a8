//! The row of `kubesvc_accounts` that an object calls for.

use std::fmt;

use super::lifecycle::displayed_state;
use super::{KubesvcAccount, ORIGIN_LABEL, spinnaker};

/// A row of `kubesvc_accounts`: what Spinnaker reads. Times are epoch milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountRow {
    /// The account's name; the primary key.
    pub name: String,
    /// uid of the object.
    pub uid: String,
    /// The shown state.
    pub status: String,
    /// The zone, the pinned one first.
    pub zone_id: Option<String>,
    /// False for accounts of an agent's own file.
    pub is_dynamic: bool,
    /// `declared`, `rest`, `agent` or `migrated`.
    pub origin: String,
    /// The account as Spinnaker defines it, in JSON; it holds no credential.
    pub definition: String,
    /// What the vendor's `props` holds: `{"permissions": …}`.
    pub props: String,
    /// URL of the cluster's API server.
    pub kube_host: Option<String>,
    /// Version of the cluster's API server.
    pub kube_version: Option<String>,
    /// SHA-256 of its certificate.
    pub cert_fingerprint: Option<String>,
    /// uid of its kube-system namespace.
    pub cluster_uid: Option<String>,
    /// How old a stored resource version may be, as documented: in milliseconds in spite of its name.
    pub max_watch_age_seconds: i64,
    /// How many namespaces an agent saw.
    pub namespaces_count: Option<i32>,
    /// Why the last try failed.
    pub error_message: Option<String>,
    /// How many tries failed in a row.
    pub failed_count: i32,
    /// When the next try is due.
    pub next_retry_time: Option<i64>,
    /// Generation of the spec.
    pub generation: i64,
    /// Generation that the status speaks of.
    pub observed_generation: i64,
}

/// A row of somebody else's that tells of an account: in `kubesvc_accounts` with the uid NULL, or in a table of the
/// vendor's. Its `Debug` leaves the definition out: it may hold a kubeconfig.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ForeignRow {
    /// The account's name.
    pub name: String,
    /// Its status, as somebody wrote it.
    pub status: String,
    /// Its zone.
    pub zone_id: Option<String>,
    /// The account as Spinnaker defines it, in JSON.
    pub definition: Option<String>,
    /// What the vendor's `props` holds, in JSON.
    pub props: Option<String>,
}

impl fmt::Debug for ForeignRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForeignRow")
            .field("name", &self.name)
            .field("status", &self.status)
            .field("zone_id", &self.zone_id)
            .finish_non_exhaustive()
    }
}

/// The default of `maxResumableResourceAgeMs`.
pub const DEFAULT_RESUMABLE_AGE_MS: i64 = 300_000;

/// The row of an account.
pub fn of(account: &KubesvcAccount) -> AccountRow {
    let status = account.status_or_default();
    let origin = account.label(ORIGIN_LABEL).unwrap_or("declared").to_owned();
    AccountRow {
        name: account.account_name().to_owned(),
        uid: account.uid().to_owned(),
        status: displayed_state(account).as_str().to_owned(),
        zone_id: account.spec.zone_id.clone().or_else(|| status.zone_id.clone()),
        is_dynamic: !account.is_static(),
        origin,
        definition: spinnaker::definition(account).to_string(),
        props: spinnaker::props(account).to_string(),
        kube_host: status.kube_host.clone(),
        kube_version: status.kube_version.clone(),
        cert_fingerprint: status.cert_fingerprint.clone(),
        cluster_uid: status.cluster_uid.clone(),
        max_watch_age_seconds: account.spec.max_resumable_resource_age_ms.unwrap_or(DEFAULT_RESUMABLE_AGE_MS),
        namespaces_count: status.namespaces_count,
        error_message: status.error_message.clone(),
        failed_count: status.failed_count,
        next_retry_time: status.next_retry_time.as_ref().map(|time| time.0.as_millisecond()),
        generation: account.generation(),
        observed_generation: status.observed_generation,
    }
}
