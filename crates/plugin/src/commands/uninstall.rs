//! `kubectl kubesvc uninstall`: what hangs and why, and in which order to remove kubesvc. It removes nothing itself.

mod report;

use std::collections::BTreeSet;

use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, RuleWithOperations, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::api::{ListParams, ObjectMeta};
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;

use self::report::{Account, Agent, Definition, Found, Gateway, LABEL, Workload, report};
use crate::account_api::API_SERVICE;
use crate::api_session::{ACCOUNTS, AGENTS, ApiRequest, ApiSession};
use crate::arguments::{CommandError, ScopeArguments};
use kubesvc_core::{FINALIZER, GROUP, KubesvcAccount, KubesvcAgent};
use kubesvc_runtime::terminal;

pub(crate) const EXAMPLES: &str = "\
Examples:
  kubectl kubesvc uninstall --dry-run

It looks at all namespaces, and removes nothing.";

/// Label of the operator's Deployment, in the chart and in `config/`.
const OPERATOR_LABEL: &str = "app.kubernetes.io/name=kubesvc-operator";
/// Label of the agents' StatefulSets, in the chart and in `config/`.
const AGENT_LABEL: &str = "app.kubernetes.io/name=kubesvc-agent";
/// Annotation of Helm with the name of the release.
const RELEASE_ANNOTATION: &str = "meta.helm.sh/release-name";

/// Arguments of `uninstall`.
#[derive(Debug, clap::Args)]
pub(crate) struct UninstallArguments {
    /// Only report. The command does nothing else without it either.
    #[arg(long)]
    dry_run: bool,
}

/// Runs the command.
pub(crate) async fn run(scope: &ScopeArguments, arguments: &UninstallArguments) -> Result<(), CommandError> {
    let session = ApiSession::open(scope).await?;
    let found = Search { session: &session, unknown: Vec::new() }.found().await?;
    terminal::print(&report(&found).join("\n"))?;
    if !arguments.dry_run {
        terminal::note(
            "Nothing was removed: this command only reports. Run the commands above, in that order, yourself.",
        );
    }
    Ok(())
}

/// Reads what there is. What the user may not read is noted.
struct Search<'a> {
    session: &'a ApiSession,
    unknown: Vec<String>,
}

impl Search<'_> {
    async fn found(mut self) -> Result<Found, CommandError> {
        let definitions: Vec<CustomResourceDefinition> = self.list("customresourcedefinitions", "").await?;
        let definitions = definitions.iter().filter(|one| one.spec.group == GROUP).map(definition).collect();
        let accounts: Vec<KubesvcAccount> = self.list(ACCOUNTS, "").await?;
        let agents: Vec<KubesvcAgent> = self.list(AGENTS, "").await?;
        let operators: Vec<Deployment> = self.list("deployments", OPERATOR_LABEL).await?;
        let agent_workloads: Vec<StatefulSet> = self.list("statefulsets", AGENT_LABEL).await?;
        let namespaces: Vec<Namespace> = self.list("namespaces", "").await?;
        let webhooks = self.webhooks().await?;
        let services: Vec<APIService> = self.list("apiservices", "").await?;
        let roles: Vec<ClusterRole> = self.list("clusterroles", LABEL).await?;
        let bindings: Vec<ClusterRoleBinding> = self.list("clusterrolebindings", LABEL).await?;
        let leases: Vec<Lease> = self.list("leases", LABEL).await?;
        let leases: BTreeSet<_> = leases.iter().filter_map(ResourceExt::namespace).collect();
        let is_foreign = |one: &APIService| {
            one.spec
                .as_ref()
                .is_some_and(|spec| spec.group.as_deref() == Some(GROUP) && spec.service.is_some())
        };
        Ok(Found {
            definitions,
            accounts: accounts.iter().map(account).collect(),
            agents: agents.into_iter().map(agent).collect(),
            operators: operators
                .into_iter()
                .map(|one| {
                    let ready = one.status.as_ref().and_then(|status| status.ready_replicas);
                    workload("deployment", &one.metadata, ready)
                })
                .collect(),
            agent_workloads: agent_workloads
                .into_iter()
                .map(|one| {
                    let ready = one.status.as_ref().and_then(|status| status.ready_replicas);
                    workload("statefulset", &one.metadata, ready)
                })
                .collect(),
            webhooks,
            gateway: services.iter().find(|one| one.name_any() == API_SERVICE).map(gateway),
            api_services: services.iter().filter(|one| is_foreign(one)).map(ResourceExt::name_any).collect(),
            ending_namespaces: namespaces
                .iter()
                .filter(|one| one.metadata.deletion_timestamp.is_some())
                .map(ResourceExt::name_any)
                .collect(),
            cluster_roles: roles.len() + bindings.len(),
            leases: leases.into_iter().collect(),
            unknown: self.unknown,
        })
    }

    async fn webhooks(&mut self) -> Result<Vec<String>, CommandError> {
        let validating: Vec<ValidatingWebhookConfiguration> =
            self.list("validatingwebhookconfigurations", "").await?;
        let mutating: Vec<MutatingWebhookConfiguration> =
            self.list("mutatingwebhookconfigurations", "").await?;
        let about_us = |rules: &Option<Vec<RuleWithOperations>>| {
            let mut groups = rules.iter().flatten().flat_map(|rule| rule.api_groups.iter().flatten());
            groups.any(|group| group == GROUP)
        };
        let validating = validating
            .iter()
            .filter(|one| one.webhooks.iter().flatten().any(|webhook| about_us(&webhook.rules)))
            .map(|one| format!("ValidatingWebhookConfiguration {}", one.name_any()));
        let mutating = mutating
            .iter()
            .filter(|one| one.webhooks.iter().flatten().any(|webhook| about_us(&webhook.rules)))
            .map(|one| format!("MutatingWebhookConfiguration {}", one.name_any()));
        Ok(validating.chain(mutating).collect())
    }

    /// Lists objects of all namespaces, page by page. Without the definition there are none.
    async fn list<K>(&mut self, resource: &'static str, labels: &str) -> Result<Vec<K>, CommandError>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
    {
        let api: Api<K> = Api::all(self.session.client.clone());
        let mut parameters = ListParams::default().labels(labels).limit(self.session.page);
        let mut items = Vec::new();
        loop {
            let page = match self.session.try_ask(api.list(&parameters)).await? {
                Ok(page) => page,
                Err(kube::Error::Api(status)) if status.code == 404 => return Ok(Vec::new()),
                Err(kube::Error::Api(status)) if matches!(status.code, 403 | 410 | 500 | 503) => {
                    self.unknown.push(format!("{resource}: {} ({})", status.message, status.code));
                    return Ok(items);
                }
                Err(error) => {
                    let asked = ApiRequest { verb: "list", resource, namespace: None };
                    return Err(CommandError::Failed(asked.explain(&self.session.server, &error)));
                }
            };
            items.extend(page.items);
            parameters.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
            if parameters.continue_token.is_none() {
                return Ok(items);
            }
        }
    }
}

fn gateway(one: &APIService) -> Gateway {
    let mut conditions = one.status.iter().flat_map(|status| &status.conditions).flatten();
    let is_available =
        conditions.any(|condition| condition.type_ == "Available" && condition.status == "True");
    Gateway { api_service: one.name_any(), is_available }
}

fn definition(one: &CustomResourceDefinition) -> Definition {
    let conversion = one.spec.conversion.as_ref();
    Definition {
        name: one.name_any(),
        is_being_deleted: one.metadata.deletion_timestamp.is_some(),
        has_conversion_webhook: conversion.is_some_and(|conversion| conversion.strategy == "Webhook"),
    }
}

fn account(one: &KubesvcAccount) -> Account {
    let others = one.finalizers().iter().filter(|finalizer| *finalizer != FINALIZER);
    Account {
        namespace: one.namespace().unwrap_or_default(),
        name: one.name_any(),
        is_being_deleted: one.is_being_deleted(),
        has_finalizer: one.has_finalizer(),
        other_finalizers: others.cloned().collect(),
    }
}

fn agent(one: KubesvcAgent) -> Agent {
    let status = one.status.unwrap_or_default();
    Agent {
        id: one.spec.agent_id.to_string(),
        zone: one.spec.zone_id.to_string(),
        is_connected: status.connected,
        held: status.held.unwrap_or_default(),
        finalizers: one.metadata.finalizers.unwrap_or_default(),
    }
}

fn workload(kind: &'static str, metadata: &ObjectMeta, ready: Option<i32>) -> Workload {
    Workload {
        kind,
        namespace: metadata.namespace.clone().unwrap_or_default(),
        name: metadata.name.clone().unwrap_or_default(),
        ready: ready.unwrap_or_default(),
        release: metadata.annotations.as_ref().and_then(|all| all.get(RELEASE_ANNOTATION)).cloned(),
    }
}
