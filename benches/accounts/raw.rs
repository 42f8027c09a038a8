//! Raw writes: the throughput of a client that does nothing else, which is the ceiling.

use std::time::Instant;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{Client, Resource};
use kubesvc_core::{
    FIELD_MANAGER, FINALIZER, Grant, GrantPhase, KubesvcAccount, KubesvcAccountStatus, State,
};
use serde::Deserialize;
use serde_json::json;

use crate::{
    objects::{AT_ONCE, ZONE, each},
    processes::{Cpu, Programs},
    progress::Bar,
};

/// Number of writes of each object.
pub(crate) const WRITES: usize = 3;

/// Result of a round.
#[derive(Debug)]
pub(crate) struct Raw {
    /// Status writes per second.
    pub(crate) per_second: f64,
    pub(crate) seconds: f64,
    pub(crate) cpu: Cpu,
}

/// The few fields of an object that the next write needs.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Object {
    metadata: Metadata,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: String,
    uid: String,
    resource_version: String,
}

impl Object {
    pub(crate) fn name(&self) -> &str {
        &self.metadata.name
    }
}

/// Writes the status of each account [`WRITES`] times, [`AT_ONCE`] accounts at a time.
///
/// # Errors
///
/// A write is refused.
pub(crate) async fn status_writes(
    client: &Client,
    namespace: &str,
    accounts: usize,
    programs: &Programs,
) -> Result<Raw, String> {
    let objects = list(client, namespace, accounts).await?;
    let bar = Bar::start(&format!("raw status writes, {AT_ONCE} at once"), accounts);
    let (cpu, start) = (programs.cpu()?, Instant::now());
    each(accounts, async |number| {
        let mut object = objects[number].clone();
        for write in 0..WRITES {
            object = put_status(client, namespace, &object, write).await?;
        }
        bar.step();
        Ok(())
    })
    .await?;
    let seconds = start.elapsed().as_secs_f64();
    let cpu = programs.cpu()?.since(&cpu);
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    Ok(Raw { per_second: (accounts * WRITES) as f64 / seconds, seconds, cpu })
}

/// Returns the accounts of a namespace.
///
/// # Errors
///
/// The accounts cannot be listed, or their number is not `count`.
pub(crate) async fn list(client: &Client, namespace: &str, count: usize) -> Result<Vec<Object>, String> {
    #[derive(Deserialize)]
    struct List {
        items: Vec<Object>,
    }
    let path = KubesvcAccount::url_path(&(), Some(namespace));
    let request = http::Request::get(&path).body(Vec::new()).map_err(|e| e.to_string())?;
    let list: List = client.request(request).await.map_err(|e| format!("{path}: {e}"))?;
    match list.items.len() {
        found if found == count => Ok(list.items),
        found => Err(format!("{found} accounts are in {namespace}, not {count}")),
    }
}

/// Writes a status with the same request as the operator.
///
/// # Errors
///
/// The API server refuses it.
pub(crate) async fn put_status(
    client: &Client,
    namespace: &str,
    object: &Object,
    write: usize,
) -> Result<Object, String> {
    let Metadata { name, uid, resource_version } = &object.metadata;
    let body = json!({
        "apiVersion": KubesvcAccount::api_version(&()),
        "kind": KubesvcAccount::kind(&()),
        "metadata": {"name": name, "namespace": namespace, "uid": uid, "resourceVersion": resource_version},
        "status": status(write),
    });
    let path = KubesvcAccount::url_path(&(), Some(namespace));
    let request = http::Request::put(format!("{path}/{name}/status?fieldManager={FIELD_MANAGER}"))
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(body.to_string().into_bytes())
        .map_err(|e| e.to_string())?;
    client.request(request).await.map_err(|e| format!("status of {name}: {e}"))
}

/// Adds the finalizer with the same request as the operator.
///
/// # Errors
///
/// The API server refuses it.
pub(crate) async fn add_finalizer(
    client: &Client,
    namespace: &str,
    object: &Object,
) -> Result<Object, String> {
    let Metadata { name, resource_version, .. } = &object.metadata;
    let body = json!({"metadata": {"resourceVersion": resource_version, "finalizers": [FINALIZER]}});
    let path = KubesvcAccount::url_path(&(), Some(namespace));
    let request = http::Request::patch(format!("{path}/{name}?fieldManager={FIELD_MANAGER}"))
        .header(http::header::CONTENT_TYPE, "application/merge-patch+json")
        .body(body.to_string().into_bytes())
        .map_err(|e| e.to_string())?;
    client.request(request).await.map_err(|e| format!("finalizer of {name}: {e}"))
}

/// A status of the size of an ACTIVE account's. Each write differs, because the API server does not store unchanged
/// objects.
fn status(write: usize) -> KubesvcAccountStatus {
    let epoch = i64::try_from(write).unwrap_or_default() + 1;
    let now = Time(jiff::Timestamp::now());
    let condition = |kind: &str, holds: bool| Condition {
        type_: kind.into(),
        status: if holds { "True" } else { "False" }.into(),
        reason: "Active".into(),
        message: "an agent holds the account".into(),
        observed_generation: Some(1),
        last_transition_time: now.clone(),
    };
    KubesvcAccountStatus {
        state: Some(State::Active),
        observed_generation: 1,
        epoch: kubesvc_core::GrantEpoch(epoch),
        grant: Some(Grant {
            phase: GrantPhase::Open,
            zone: Some(ZONE.into()),
            generation: 1,
            definition: Some("0123456789abcdef".into()),
        }),
        zone_id: Some(ZONE.into()),
        agents: vec!["agent-0".into()],
        agent_count: Some(1),
        kube_host: Some("https://simulated.example:6443".into()),
        kube_version: Some("v1.36.3".into()),
        cert_fingerprint: Some(vec!["5A"; 32].join(":")),
        cluster_uid: Some("uid-of-simulated".into()),
        namespaces_count: Some(4),
        last_transition_time: Some(now.clone()),
        credential_version: Some("5f2f6c0e-7a51-4c6c-8a9c-0a0b0c0d0e0f/12345".into()),
        conditions: vec![
            condition("Ready", true),
            condition("Reconciling", false),
            condition("Stalled", false),
            condition("AgentConnected", true),
        ],
        ..KubesvcAccountStatus::default()
    }
}
