//! Accounts as REST shows them. They contain no credential, because the definition has none.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::account::lifecycle::displayed_state;
use crate::account::row::DEFAULT_RESUMABLE_AGE_MS;
use crate::account::{KubesvcAccount, State, spinnaker};

/// One account. Absent values are left out.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct AccountView {
    /// The name Spinnaker knows it by.
    name: String,
    /// Where it is in its life.
    status: ShownState,
    /// The zone whose agents hold it, or are to.
    #[serde(skip_serializing_if = "Option::is_none")]
    zone_id: Option<String>,
    /// False for an account of an agent's own file.
    dynamic: bool,
    /// How many connected agents hold it.
    connections: usize,
    /// URL of the cluster's API server.
    #[serde(skip_serializing_if = "Option::is_none")]
    kube_host: Option<String>,
    /// Version of the cluster's API server.
    #[serde(skip_serializing_if = "Option::is_none")]
    kube_version: Option<String>,
    /// SHA-256 of the certificate of the cluster's API server.
    #[serde(skip_serializing_if = "Option::is_none")]
    cert_fingerprint: Option<String>,
    /// When its state last changed, in epoch milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_updated: Option<i64>,
    /// How old a stored resource version may be for a watch to resume from it: in milliseconds, in spite of its name.
    max_watch_age_seconds: i64,
    /// How many tries failed in a row.
    retry_count: i32,
    /// Why the last try failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    error_message: Option<String>,
    /// Who may READ and WRITE it in Spinnaker.
    permissions: BTreeMap<String, Vec<String>>,
    /// What the column `props` of its row holds.
    #[schema(value_type = Object)]
    properties: Value,
    /// `properties` as text.
    properties_as_string: String,
    /// `properties` as text.
    props: String,
    /// The account as Clouddriver defines it.
    #[schema(value_type = Object)]
    definition: Value,
    /// `definition` as text.
    definition_as_string: String,
    /// `definition` as text.
    def: String,
    /// `kubernetes`.
    #[serde(rename = "type")]
    kind: &'static str,
    /// `clouddriver`, or `static-agent-config` for an account of an agent's own file.
    source: &'static str,
    /// The account as Clouddriver defines it.
    #[schema(value_type = Object)]
    config: Value,
    /// The connected agents that hold it, by id.
    agents: Vec<AgentOfAccount>,
    /// Which agent was last elected to cache it.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_assignment_msg: Option<String>,
}

/// One account in a list. Absent values are left out.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct AccountItem {
    /// The name Spinnaker knows it by.
    pub(super) name: String,
    /// `kubernetes`.
    #[serde(rename = "type")]
    kind: &'static str,
    /// `clouddriver`, or `static-agent-config` for an account of an agent's own file.
    source: &'static str,
    /// The account as Clouddriver defines it.
    #[schema(value_type = Object)]
    config: Value,
    /// The zone whose agents hold it, or are to.
    #[serde(skip_serializing_if = "Option::is_none")]
    zone_id: Option<String>,
    /// The connected agents that hold it, by id.
    agents: Vec<AgentOfAccount>,
    /// Where it is in its life.
    status: ShownState,
    /// Which agent was last elected to cache it.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_assignment_msg: Option<String>,
}

/// An agent that holds an account.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct AgentOfAccount {
    /// The agent.
    agent_id: String,
    /// Whether it is the one that streams the account's objects.
    caching: bool,
}

/// An account that was there before the request.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ExistingAccount {
    /// Its name.
    name: String,
    /// The zone whose agents hold it, or are to.
    #[serde(skip_serializing_if = "Option::is_none")]
    zone_id: Option<String>,
    /// The path or the secret reference of its kubeconfig, where it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    kubeconfig_file: Option<String>,
    /// Where it is in its life.
    state: ShownState,
}

/// Where an account is in its life, in the documented words.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub(super) enum ShownState {
    /// Kept, and no agent holds it.
    Inactive,
    /// To be active; a zone, an agent or a credential is awaited.
    ToMigrate,
    /// Handed to the agents of its zone; none has answered yet.
    Activating,
    /// An agent holds it.
    Active,
    /// To be inactive, and not begun.
    ToDeactivate,
    /// The agents were told to drop it.
    Deactivating,
    /// Being deleted.
    Deleting,
    /// Being deleted, and an agent failed to drop it. Tried again.
    DeleteFailed,
    /// The last try failed.
    Failed,
    /// It was active, and the last agent that held it is gone.
    Orphaned,
}

impl From<State> for ShownState {
    fn from(state: State) -> Self {
        match state {
            State::Inactive => Self::Inactive,
            State::ToMigrate => Self::ToMigrate,
            State::Activating => Self::Activating,
            State::Active => Self::Active,
            State::ToDeactivate => Self::ToDeactivate,
            State::Deactivating => Self::Deactivating,
            State::Deleting => Self::Deleting,
            State::DeleteFailed => Self::DeleteFailed,
            State::Failed => Self::Failed,
            State::Orphaned => Self::Orphaned,
        }
    }
}

impl AccountView {
    /// Shows an account with the ids of the connected agents that hold it.
    pub(super) fn of(account: &KubesvcAccount, holders: &[String]) -> Self {
        let status = account.status_or_default();
        let definition = spinnaker::definition(account);
        let properties = spinnaker::props(account);
        let changed = status.last_transition_time.as_ref().or(account.metadata.creation_timestamp.as_ref());
        let text = definition.to_string();
        let props = properties.to_string();
        Self {
            name: account.account_name().to_owned(),
            status: displayed_state(account).into(),
            zone_id: zone(account),
            dynamic: !account.is_static(),
            connections: holders.len(),
            kube_host: status.kube_host.clone(),
            kube_version: status.kube_version.clone(),
            cert_fingerprint: status.cert_fingerprint.clone(),
            last_updated: changed.map(|time| time.0.as_millisecond()),
            max_watch_age_seconds: account
                .spec
                .max_resumable_resource_age_ms
                .unwrap_or(DEFAULT_RESUMABLE_AGE_MS),
            retry_count: status.failed_count,
            error_message: status.error_message.clone(),
            permissions: account.spec.permissions.clone(),
            properties,
            properties_as_string: props.clone(),
            props,
            config: definition.clone(),
            definition,
            definition_as_string: text.clone(),
            def: text,
            kind: KIND,
            source: source(account),
            agents: agents(account, holders),
            last_assignment_msg: last_assignment(account),
        }
    }
}

impl AccountItem {
    /// Shows an account with the ids of the connected agents that hold it.
    pub(super) fn of(account: &KubesvcAccount, holders: &[String]) -> Self {
        Self {
            name: account.account_name().to_owned(),
            kind: KIND,
            source: source(account),
            config: spinnaker::definition(account),
            zone_id: zone(account),
            agents: agents(account, holders),
            status: displayed_state(account).into(),
            last_assignment_msg: last_assignment(account),
        }
    }
}

impl ExistingAccount {
    /// Shows an account that a POST found under its name.
    pub(super) fn of(account: &KubesvcAccount) -> Self {
        Self {
            name: account.account_name().to_owned(),
            zone_id: zone(account),
            kubeconfig_file: spinnaker::kubeconfig_file(&account.spec.kubeconfig).map(Cow::into_owned),
            state: displayed_state(account).into(),
        }
    }
}

const KIND: &str = "kubernetes";

fn source(account: &KubesvcAccount) -> &'static str {
    if account.is_static() { "static-agent-config" } else { "clouddriver" }
}

/// Returns the requested zone, else the zone that holds the account or held it last.
fn zone(account: &KubesvcAccount) -> Option<String> {
    let held = || account.status.as_ref().and_then(|status| status.zone_id.clone());
    account.spec.zone_id.clone().or_else(held)
}

fn agents(account: &KubesvcAccount, holders: &[String]) -> Vec<AgentOfAccount> {
    let caching = caching_agent(account);
    holders
        .iter()
        .map(|agent_id| AgentOfAccount {
            agent_id: agent_id.clone(),
            caching: caching == Some(agent_id.as_str()),
        })
        .collect()
}

/// Text about the last election of the agent that caches an account.
fn last_assignment(account: &KubesvcAccount) -> Option<String> {
    let caching = account.status.as_ref()?.caching.as_ref()?;
    let (who, epoch) = (caching.agent_id.as_deref().unwrap_or("nobody"), caching.epoch);
    Some(format!("cached by {who}, epoch {epoch}"))
}

/// Returns the agent that streams an account's objects.
pub(super) fn caching_agent(account: &KubesvcAccount) -> Option<&str> {
    account.status.as_ref()?.caching_agent()
}

#[cfg(test)]
mod tests;
