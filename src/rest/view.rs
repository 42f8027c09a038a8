//! Accounts as REST shows them. They contain no credential, because the definition has none.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use kubesvc_core::account_row::DEFAULT_RESUMABLE_AGE_MS;
use kubesvc_core::lifecycle::displayed_state;
use kubesvc_core::{AgentId, KubesvcAccount, State, spinnaker};

/// An account. Absent values are omitted.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct AccountView {
    /// Name of the account in Spinnaker.
    name: String,
    /// State of the account.
    status: State,
    /// Zone whose agents hold the account, or are to hold it.
    #[serde(skip_serializing_if = "Option::is_none")]
    zone_id: Option<String>,
    /// False for an account from an agent's own file.
    dynamic: bool,
    /// Number of connected agents that hold the account.
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
    /// Time of the last state change, in milliseconds since the Unix epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_updated: Option<i64>,
    /// Maximum age of a stored resource version from which a watch may resume: in milliseconds, despite the field's name.
    max_watch_age_seconds: i64,
    /// Number of consecutive failed attempts.
    retry_count: i32,
    /// Error of the last failed attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    error_message: Option<String>,
    /// Roles with READ and WRITE permission in Spinnaker.
    permissions: BTreeMap<String, Vec<String>>,
    /// Content of the `props` column of the account's row.
    #[schema(value_type = Object)]
    properties: Value,
    /// `properties` as JSON text.
    properties_as_string: String,
    /// `properties` as JSON text.
    props: String,
    /// Definition of the account, as in Clouddriver.
    #[schema(value_type = Object)]
    definition: Value,
    /// `definition` as JSON text.
    definition_as_string: String,
    /// `definition` as JSON text.
    def: String,
    /// `kubernetes`.
    #[serde(rename = "type")]
    kind: &'static str,
    /// `clouddriver`, or `static-agent-config` for an account from an agent's own file.
    source: &'static str,
    /// Definition of the account, as in Clouddriver.
    #[schema(value_type = Object)]
    config: Value,
    /// Connected agents that hold the account, sorted by id.
    agents: Vec<AgentOfAccount>,
    /// Text that names the agent that was last elected to cache the account.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_assignment_msg: Option<String>,
}

/// An account in a list. Absent values are omitted.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct AccountItem {
    /// Name of the account in Spinnaker.
    name: String,
    /// `kubernetes`.
    #[serde(rename = "type")]
    kind: &'static str,
    /// `clouddriver`, or `static-agent-config` for an account from an agent's own file.
    source: &'static str,
    /// Definition of the account, as in Clouddriver.
    #[schema(value_type = Object)]
    config: Value,
    /// Zone whose agents hold the account, or are to hold it.
    #[serde(skip_serializing_if = "Option::is_none")]
    zone_id: Option<String>,
    /// Connected agents that hold the account, sorted by id.
    agents: Vec<AgentOfAccount>,
    /// State of the account.
    status: State,
    /// Text that names the agent that was last elected to cache the account.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_assignment_msg: Option<String>,
}

/// A page of accounts.
#[derive(Serialize, ToSchema)]
pub(super) struct AccountPage {
    /// Accounts, sorted by name.
    pub(super) items: Vec<AccountItem>,
    /// Page number, from 1.
    pub(super) page: u64,
    /// Maximum number of items per page.
    pub(super) limit: u64,
    /// Total number of accounts.
    pub(super) total: usize,
}

/// An agent that holds an account.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct AgentOfAccount {
    /// Id of the agent.
    agent_id: String,
    /// Whether this agent streams the account's objects.
    caching: bool,
}

/// An account that existed before the request.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ExistingAccount {
    /// Name of the account in Spinnaker.
    name: String,
    /// Zone whose agents hold the account, or are to hold it.
    #[serde(skip_serializing_if = "Option::is_none")]
    zone_id: Option<String>,
    /// Path or secret reference of the kubeconfig, if the account has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    kubeconfig_file: Option<String>,
    /// State of the account.
    state: State,
}

impl AccountView {
    /// Shows an account with the ids of the connected agents that hold it.
    pub(super) fn of(account: &KubesvcAccount, holders: &[AgentId]) -> Self {
        let status = account.status_or_default();
        let definition = spinnaker::definition(account);
        let properties = spinnaker::props(account);
        let changed = status.last_transition_time.as_ref().or(account.metadata.creation_timestamp.as_ref());
        let text = definition.to_string();
        let props = properties.to_string();
        Self {
            name: account.account_name().to_owned(),
            status: displayed_state(account),
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
    pub(super) fn of(account: &KubesvcAccount, holders: &[AgentId]) -> Self {
        Self {
            name: account.account_name().to_owned(),
            kind: KIND,
            source: source(account),
            config: spinnaker::definition(account),
            zone_id: zone(account),
            agents: agents(account, holders),
            status: displayed_state(account),
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
            state: displayed_state(account),
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
    account.spec.zone_id.clone().or_else(held).map(String::from)
}

fn agents(account: &KubesvcAccount, holders: &[AgentId]) -> Vec<AgentOfAccount> {
    let caching = caching_agent(account);
    holders
        .iter()
        .map(|agent_id| AgentOfAccount { agent_id: agent_id.to_string(), caching: caching == Some(agent_id) })
        .collect()
}

/// Text about the last election of the agent that caches an account.
fn last_assignment(account: &KubesvcAccount) -> Option<String> {
    let caching = account.status.as_ref()?.caching.as_ref()?;
    Some(match &caching.agent_id {
        Some(agent_id) => format!("cached by {agent_id}, epoch {}", caching.epoch),
        None => "no agent caches the account".to_owned(),
    })
}

/// The agent that streams an account's objects.
fn caching_agent(account: &KubesvcAccount) -> Option<&AgentId> {
    account.status.as_ref()?.caching_agent()
}

#[cfg(test)]
mod tests;
