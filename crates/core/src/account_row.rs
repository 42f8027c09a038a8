//! The row of `kubesvc_accounts` for an account's object.

use std::fmt;

use super::lifecycle::displayed_state;
use super::{KubesvcAccount, ORIGIN_LABEL, spinnaker};
use crate::ids::ZoneId;

/// A row of `kubesvc_accounts`, which Spinnaker reads. Times are epoch milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountRow {
    /// The account's name; the primary key.
    pub name: String,
    /// uid of the object.
    pub uid: String,
    /// The displayed state.
    pub status: String,
    /// The zone; a pinned one takes precedence.
    pub zone_id: Option<String>,
    /// Whether it is not an account of an agent's own file.
    pub is_dynamic: bool,
    /// `declared`, `rest`, `agent` or `migrated`.
    pub origin: String,
    /// The account's definition in Spinnaker, as JSON without credentials.
    pub definition: String,
    /// Content of the vendor's column `props`: `{"permissions": …}`.
    pub props: String,
    /// URL of the cluster's API server.
    pub kube_host: Option<String>,
    /// Version of the cluster's API server.
    pub kube_version: Option<String>,
    /// SHA-256 of the API server's certificate.
    pub cert_fingerprint: Option<String>,
    /// uid of the cluster's kube-system namespace.
    pub cluster_uid: Option<String>,
    /// Maximum age of a stored resource version; in milliseconds despite its name, as documented.
    pub max_watch_age_seconds: i64,
    /// Number of namespaces that an agent saw.
    pub namespaces_count: Option<i32>,
    /// Why the last attempt failed.
    pub error_message: Option<String>,
    /// Number of consecutive failed attempts.
    pub failed_count: i32,
    /// Time of the next retry.
    pub next_retry_time: Option<i64>,
    /// Generation of the spec.
    pub generation: i64,
    /// Generation that the status is about.
    pub observed_generation: i64,
}

/// A foreign row that describes an account: in `kubesvc_accounts` with uid NULL, or in the vendor's table. `Debug`
/// omits the definition, since it may hold a kubeconfig.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ForeignRow {
    /// The account's name.
    pub name: String,
    /// Its status as written by someone else.
    pub status: String,
    /// Its zone.
    pub zone_id: Option<String>,
    /// The account's definition in Spinnaker, as JSON.
    pub definition: Option<String>,
    /// Content of the vendor's column `props`, as JSON.
    pub props: Option<String>,
    /// Whether it is not an account of an agent's own file; `None` if the table does not say.
    pub is_dynamic: Option<bool>,
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

/// Default of `maxResumableResourceAgeMs`, in milliseconds.
pub const DEFAULT_RESUMABLE_AGE_MS: i64 = 300_000;

/// Derives the row of an account.
pub fn of(account: &KubesvcAccount) -> AccountRow {
    let status = account.status_or_default();
    let origin = account.label(ORIGIN_LABEL).unwrap_or("declared").to_owned();
    AccountRow {
        name: account.account_name().to_owned(),
        uid: account.uid().to_owned(),
        status: displayed_state(account).as_str().to_owned(),
        zone_id: account.spec.zone_id.as_ref().or(status.zone_id.as_ref()).map(ZoneId::to_string),
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
