//! `kubectl kubesvc describe`.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::ListParams;

use crate::api_session::ApiSession;
use crate::arguments::{CommandError, ScopeArguments, complain_of, names_have_a_namespace};
use crate::resources::AccountObject;
use kubesvc_core::lifecycle::displayed_state;
use kubesvc_core::spec::KubeconfigSource;
use kubesvc_core::{DesiredState, ORIGIN_LABEL, ZoneId, age};
use kubesvc_runtime::terminal::{self, Fields, Table, text};

pub(crate) const EXAMPLES: &str = "\
Examples:
  kubectl kubesvc describe production
  kubectl kubesvc describe production -n spinnaker";

/// Arguments of `describe`.
#[derive(Debug, clap::Args)]
pub(crate) struct DescribeArguments {
    /// Names of accounts: of their objects or in Spinnaker.
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,
}

/// Runs the command.
pub(crate) async fn run(scope: &ScopeArguments, arguments: &DescribeArguments) -> Result<(), CommandError> {
    names_have_a_namespace(&arguments.names, scope)?;
    let session = ApiSession::open(scope).await?;
    let (items, missing) = session.find_accounts(&arguments.names).await?;
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            terminal::print("")?;
        }
        let events = events(&session, item).await?;
        terminal::print(&render(item, &events, Timestamp::now()))?;
    }
    complain_of(&missing)
}

/// The Events about an account.
enum EventList {
    /// Oldest first.
    Read(Vec<Event>),
    /// They cannot be read, for this reason.
    Unreadable(String),
}

async fn events(session: &ApiSession, item: &AccountObject) -> Result<EventList, CommandError> {
    let api = session.api::<Event>(item.namespace());
    let fields = format!(
        "involvedObject.kind=KubesvcAccount,involvedObject.name={},involvedObject.uid={}",
        item.name(),
        item.account.uid()
    );
    let parameters = ListParams::default().fields(&fields).limit(session.page);
    Ok(match session.try_ask(api.list(&parameters)).await? {
        Ok(list) => {
            let mut events = list.items;
            events.sort_by_key(last_seen);
            EventList::Read(events)
        }
        Err(kube::Error::Api(status)) if status.code == 403 => {
            EventList::Unreadable(format!("you may not list events in namespace {}", item.namespace()))
        }
        Err(error) => EventList::Unreadable(kubesvc_runtime::telemetry::errors::chain(&error)),
    })
}

fn last_seen(event: &Event) -> Option<Timestamp> {
    let series =
        event.series.as_ref().and_then(|series| series.last_observed_time.as_ref()).map(|time| time.0);
    let last = event.last_timestamp.as_ref().map(|time| time.0);
    let first = event.event_time.as_ref().map(|time| time.0);
    series.or(last).or(first).or(event.metadata.creation_timestamp.as_ref().map(|time| time.0))
}

fn render(item: &AccountObject, events: &EventList, now: Timestamp) -> String {
    let mut fields = Fields::default();
    about(&mut fields, item, now);
    spec(&mut fields, item);
    status(&mut fields, item, now);
    conditions(&mut fields, item, now);
    fields.section("Events");
    match events {
        EventList::Unreadable(reason) => fields.lines([text::line(reason)]),
        EventList::Read(events) if events.is_empty() => fields.lines(["<none>".to_owned()]),
        EventList::Read(events) => fields.lines(event_table(events, now)),
    }
    fields.render()
}

fn ago(time: &Time, now: Timestamp) -> String {
    format!("{} ({} ago)", time.0, age::since(time.0, now))
}

fn about(fields: &mut Fields, item: &AccountObject, now: Timestamp) {
    let account = &item.account;
    fields.top("Name", item.name());
    fields.top("Namespace", item.namespace());
    if account.account_name() != item.name() {
        fields.top("Account", account.account_name());
    }
    fields.top("Origin", account.label(ORIGIN_LABEL).unwrap_or("declared"));
    if let Some(owner) = account.gitops_owner() {
        fields.top("Kept By", owner);
    }
    if let Some(created) = &account.metadata.creation_timestamp {
        fields.top("Created", ago(created, now));
    }
    if let Some(deleted) = &account.metadata.deletion_timestamp {
        fields.top("Deletion Asked", ago(deleted, now));
    }
    let joined = |map: &Option<std::collections::BTreeMap<String, String>>| {
        let pairs = map.iter().flatten().map(|(key, value)| format!("{key}={value}"));
        pairs.collect::<Vec<_>>().join(", ")
    };
    let labels = joined(&account.metadata.labels);
    fields.top("Labels", if labels.is_empty() { "<none>" } else { &labels });
}

/// Describes where a kubeconfig is.
fn kubeconfig(source: &KubeconfigSource) -> String {
    match (&source.secret_ref, &source.reference, &source.file) {
        (Some(secret), _, _) => format!("key {} of Secret {}", secret.key(), secret.name),
        (None, Some(reference), _) => reference.clone(),
        (None, None, Some(file)) => format!("file {file} on the agent"),
        (None, None, None) => "the agent's own service account".to_owned(),
    }
}

fn spec(fields: &mut Fields, item: &AccountObject) {
    let spec = &item.account.spec;
    fields.section("Desired");
    let desired = match item.account.desired() {
        DesiredState::Active => "ACTIVE",
        DesiredState::Inactive => "INACTIVE",
    };
    fields.field("State", desired);
    fields.field("Zone", spec.zone_id.as_ref().map_or("<any>", ZoneId::as_str));
    fields.field("Kubeconfig", kubeconfig(&spec.kubeconfig));
    fields.optional("Agent Kubeconfig", spec.agent_kubeconfig.as_ref().map(kubeconfig));
    fields.optional("Context", spec.context.as_ref());
    let flags = [
        ("insecure", spec.insecure),
        ("onlyNamespacedResources", spec.only_namespaced_resources),
        ("onlySpinnakerManaged", spec.only_spinnaker_managed),
        ("metrics", spec.metrics),
        ("noProxy", spec.no_proxy),
    ];
    let set: Vec<_> = flags.into_iter().filter(|(_, on)| *on == Some(true)).map(|(name, _)| name).collect();
    fields.optional("Flags", Some(set.join(", ")));
    for (name, list) in [
        ("Namespaces", &spec.namespaces),
        ("Omit Namespaces", &spec.omit_namespaces),
        ("Kinds", &spec.kinds),
        ("Omit Kinds", &spec.omit_kinds),
    ] {
        fields.optional(name, Some(list.join(", ")));
    }
    for (right, roles) in &spec.permissions {
        fields.field(&format!("Permission {right}"), roles.join(", "));
    }
    fields.optional("Environment", spec.environment.as_ref());
    fields.optional("Account Type", spec.account_type.as_ref());
}

fn status(fields: &mut Fields, item: &AccountObject, now: Timestamp) {
    let status = item.account.status_or_default();
    fields.section("Status");
    fields.field("State", displayed_state(&item.account).as_str());
    fields.optional("Since", status.last_transition_time.as_ref().map(|time| ago(time, now)));
    fields.optional("Served By", status.operator.as_ref().map(ToString::to_string));
    fields.optional("Zone", status.zone_id.as_ref());
    if let Some(grant) = &status.grant {
        let zone = grant.zone.as_ref().map_or("", ZoneId::as_str);
        fields.field("Grant", format!("{:?} for zone {zone}, epoch {}", grant.phase, status.epoch));
    }
    let agents = status.agent_count.unwrap_or_default();
    let names =
        if status.agents.is_empty() { String::new() } else { format!(": {}", status.agents.join(", ")) };
    fields.field("Agents", format!("{agents}{names}"));
    fields.optional("Caching", status.caching_agent());
    fields.optional("Kube Host", status.kube_host.as_ref());
    fields.optional("Kube Version", status.kube_version.as_ref());
    fields.optional("Certificate", status.cert_fingerprint.as_ref());
    fields.optional("Cluster", status.cluster_uid.as_ref());
    fields.optional("Namespaces", status.namespaces_count.map(|count| count.to_string()));
    fields.field("Failed Tries", status.failed_count.to_string());
    fields.optional("Next Try", status.next_retry_time.as_ref().map(|time| when(time.0, now)));
    fields.optional("Message", status.error_message.as_ref());
    let observed = status.observed_generation;
    let generation = item.account.generation();
    let late = if observed == generation { "" } else { ", not handled yet" };
    fields.field("Generation", format!("{generation}, observed {observed}{late}"));
}

/// A point in time, relative to now: `in 5m (…)`, or `due (…)` if it has passed.
pub(crate) fn when(moment: Timestamp, now: Timestamp) -> String {
    let seconds = moment.as_second().saturating_sub(now.as_second());
    if seconds <= 0 { format!("due ({moment})") } else { format!("in {} ({moment})", age::seconds(seconds)) }
}

fn conditions(fields: &mut Fields, item: &AccountObject, now: Timestamp) {
    fields.section("Conditions");
    let status = item.account.status_or_default();
    if status.conditions.is_empty() {
        fields.lines(["<none>".to_owned()]);
        return;
    }
    let mut table = Table::new(vec!["TYPE", "STATUS", "REASON", "SINCE", "MESSAGE"]);
    for condition in &status.conditions {
        table.row([
            condition.type_.clone(),
            condition.status.clone(),
            condition.reason.clone(),
            age::since(condition.last_transition_time.0, now),
            condition.message.clone(),
        ]);
    }
    fields.lines(table.lines());
}

fn event_table(events: &[Event], now: Timestamp) -> Vec<String> {
    let mut table = Table::new(vec!["TYPE", "REASON", "AGE", "FROM", "MESSAGE"]);
    for event in events {
        let count = event.series.as_ref().and_then(|series| series.count).or(event.count).unwrap_or(1);
        let times = if count > 1 { format!(" (x{count})") } else { String::new() };
        let old = last_seen(event).map(|time| age::since(time, now)).unwrap_or_default();
        let source = event.source.as_ref().and_then(|source| source.component.clone());
        table.row([
            event.type_.clone().unwrap_or_default(),
            event.reason.clone().unwrap_or_default(),
            format!("{old}{times}"),
            event.reporting_component.clone().filter(|name| !name.is_empty()).or(source).unwrap_or_default(),
            event.message.clone().unwrap_or_default(),
        ]);
    }
    table.lines()
}
