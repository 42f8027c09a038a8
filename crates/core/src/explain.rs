//! Explains why an account is in its state, what it waits for, and what a person can do: the text of `kubectl kubesvc
//! why`.
//!
//! | file | explains |
//! |---|---|
//! | `rules.rs` | which rule of the lifecycle waits for what |
//! | `failed.rs` | the same for each reason of FAILED |
//! | `agents.rs` | what connected and missing agents mean for it |

mod agents;
mod failed;
mod rules;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::BTreeSet;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;

use super::conditions::{CREDENTIAL_AVAILABLE, LISTED_BY_AGENT, find, left_out};
use super::credential_expiry::CREDENTIAL_EXPIRING;
use super::lifecycle::{displayed_state, generation_is_unhandled};
use super::registration::{CLOUDDRIVER_ALSO, LEAVING_CLOUDDRIVER, RegistrationReason, SPINNAKER_REGISTERED};
use super::{
    DesiredState, GrantPhase, KubesvcAccount, KubesvcAccountStatus, KubesvcAgent, OPERATOR_ANNOTATION,
    SOURCE_ANNOTATION, State,
};
use crate::ids::ZoneId;

/// Time within which a running operator processes an object, in seconds.
const EXPECTED_LATENCY_SECONDS: i64 = 10;
/// Text of the advice whose command is `kubectl kubesvc cache`.
const CACHE_ADVICE: &str = "What is cached, and how far:";

/// Everything a person needs to know to proceed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// Name of the object.
    pub name: String,
    /// Namespace of the object.
    pub namespace: String,
    /// Name of the account in Spinnaker.
    pub account_name: String,
    /// The desired state; `deleted` if deletion was requested.
    pub desired: String,
    /// The current state, as shown to every reader.
    pub state: State,
    /// Whether the account is as desired, and the operator has seen the latest spec.
    pub ready: bool,
    /// The reason of its condition Ready; `None` until an operator has seen it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Time since which it is in this state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// The zone that it is pinned to, or else is or was in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<ZoneId>,
    /// Which rule waits for what, in a sentence or two.
    pub waits_for: String,
    /// Why the last attempt failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// Number of consecutive failed attempts.
    pub failed_count: i32,
    /// Time of the next automatic retry; `None`: none is scheduled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_try: Option<Timestamp>,
    /// The tool that manages the object, where its spec must be changed.
    #[serde(rename = "keptBy", skip_serializing_if = "Option::is_none")]
    pub gitops_owner: Option<String>,
    /// Namespace of the installation that serves it; others that watch it leave it alone. `None`: it is not written down.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub served_by: Option<String>,
    /// The agents of its zone, or of all zones if it has none; `None` if they may not be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agents: Option<Vec<ExplainedAgent>>,
    /// What to do, the most likely first; empty: nothing.
    pub advice: Vec<Advice>,
}

impl Explanation {
    /// Adds the command that shows what is cached of the account, unless it is there.
    pub fn advise_cache(&mut self) {
        let command = Some(plugin_command("cache", &self.name, &self.namespace));
        if self.advice.iter().all(|advice| advice.command != command) {
            self.advice.push(Advice { text: CACHE_ADVICE.to_owned(), command });
        }
    }
}

/// An agent, as far as it concerns the account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedAgent {
    /// Namespace of its object, which is its operator's.
    pub namespace: String,
    /// id of the agent.
    pub agent_id: String,
    /// Zone of the agent.
    pub zone: ZoneId,
    /// Whether it is connected.
    pub connected: bool,
    /// Whether it is approved to receive accounts.
    pub approved: bool,
    /// Whether it held the account when the account last changed.
    pub holds: bool,
    /// Why the account is withheld from it, according to its object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Advice {
    /// What to do or to look at.
    pub text: String,
    /// A command to copy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
}

/// The result of a rule: what is waited for, and what to do about it.
#[derive(Debug, Default)]
struct WaitExplanation {
    waits_for: String,
    advice: Vec<Advice>,
}

impl WaitExplanation {
    fn waits(text: impl Into<String>) -> Self {
        Self { waits_for: text.into(), advice: Vec::new() }
    }

    /// Adds advice without a command.
    fn advise(mut self, text: impl Into<String>) -> Self {
        self.advice.push(Advice { text: text.into(), command: None });
        self
    }

    /// Adds advice with a command.
    fn command(mut self, text: impl Into<String>, command: impl Into<String>) -> Self {
        self.advice.push(Advice { text: text.into(), command: Some(command.into()) });
        self
    }
}

/// Explains an account. `known_agents` is all agents that could be read, of any zone; `None` if they may not be read.
pub fn explain(
    account: &KubesvcAccount,
    known_agents: Option<&[KubesvcAgent]>,
    now: Timestamp,
) -> Explanation {
    let facts = AccountFacts::new(account, known_agents, now);
    let mut verdict = rules::judge(&facts);
    if let Some(listed) = facts.condition(LISTED_BY_AGENT) {
        let then = "To end this, take the account out of the agent's file, or delete this object.";
        verdict = verdict.advise(format!("A second account of this name: {}. {then}", listed.message));
    }
    if let Some(expiring) = facts.condition(CREDENTIAL_EXPIRING) {
        let how = "If kubectl kubesvc credential create made the credential, run the same command again";
        verdict = verdict.advise(format!("Expiry: {}. {how} (docs/credentials.md).", expiring.message));
    }
    if let Some(missing) = facts.condition(CREDENTIAL_AVAILABLE).filter(|said| said.status == "False")
        && account.desired() == DesiredState::Inactive
    {
        // First: activation would fail.
        let text = format!("It cannot be activated yet ({}): {}.", missing.reason, missing.message);
        verdict.advice.insert(0, Advice { text, command: None });
    }
    if let Some(text) = registration_advice(&facts) {
        verdict = verdict.advise(text);
    }
    if let Some(text) = also_advice(&facts) {
        verdict = verdict
            .advise(text)
            .command(GATEWAY_ADVICE, format!("{} -o clouddriver", facts.plugin("kubeconfig")));
    }
    if let Some(text) = awaited_operator(account) {
        verdict = verdict.command(text, rules::OPERATOR);
    }
    if let Some(left_out) = left_out(&facts.status.conditions) {
        let cache = facts.plugin("cache");
        verdict = verdict.advise(left_out_advice(left_out)).command(CACHE_ADVICE, cache);
    }
    let status = &facts.status;
    let desired = match account.desired() {
        _ if account.is_being_deleted() => "deleted",
        DesiredState::Active => "ACTIVE",
        DesiredState::Inactive => "INACTIVE",
    };
    Explanation {
        name: facts.name.to_owned(),
        namespace: facts.namespace.to_owned(),
        account_name: account.account_name().to_owned(),
        desired: desired.to_owned(),
        state: displayed_state(account),
        ready: facts.is_true("Ready") && !generation_is_unhandled(account) && !account.is_being_deleted(),
        reason: status.reason().map(str::to_owned),
        since: status.last_transition_time.as_ref().map(|time| time.0),
        zone: facts.zone().cloned(),
        waits_for: verdict.waits_for,
        last_error: status.error_message.clone(),
        failed_count: status.failed_count,
        next_try: status.next_retry_time.as_ref().map(|time| time.0),
        gitops_owner: account.gitops_owner(),
        served_by: status.operator.as_ref().map(|operator| operator.namespace.clone()),
        agents: agents::views(&facts),
        advice: verdict.advice,
    }
}

/// What is said of an account that an installation was asked to serve and does not.
fn awaited_operator(account: &KubesvcAccount) -> Option<String> {
    let asked = account.asked_operator()?;
    let serves = account.status.as_ref().and_then(|status| status.operator.as_ref());
    (serves.map(|operator| operator.namespace.as_str()) != Some(asked)).then(|| {
        format!(
            "The installation in namespace {asked} was asked to serve it ({OPERATOR_ANNOTATION}), and does not yet: see whether it runs and watches the account's namespace."
        )
    })
}

/// Why Clouddriver has the account not as kubesvc registers it, and what to do.
fn registration_advice(facts: &AccountFacts<'_>) -> Option<String> {
    let said = facts.condition(SPINNAKER_REGISTERED).filter(|said| said.status == "False")?;
    if facts.leaves_clouddriver() {
        // What it waits for says so.
        return None;
    }
    let remedy = RegistrationReason::of(&said.reason).and_then(RegistrationReason::remedy);
    let remedy = remedy.map(|remedy| format!(" {remedy}")).unwrap_or_default();
    Some(format!("Not registered in Clouddriver ({}): {}.{remedy}", said.reason, said.message))
}

/// The second way out of an account that Clouddriver has too.
const GATEWAY_ADVICE: &str = "Or give Clouddriver's account this kubeconfig for the API of accounts, as a row of its name, which \
                              overrides an entry of a file; deleting the row is the way back \
                              (docs/migrate-from-clouddriver.md):";

/// The ways out of an account that Clouddriver has of its own.
fn also_advice(facts: &AccountFacts<'_>) -> Option<String> {
    const KEPT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
    facts.condition(CLOUDDRIVER_ALSO).filter(|said| said.status == "True")?;
    let source = facts.account.annotation(SOURCE_ANNOTATION);
    let source = source.map(|source| format!(" (source {source})")).unwrap_or_default();
    Some(format!(
        "Clouddriver has the account too{source}, and only Clouddriver deploys to it. Leave it so; or remove it there: its entry \
         in the file, or its row by DELETE /credentials/{}, sent to Clouddriver itself. Spinnaker then no longer deploys to it.",
        utf8_percent_encode(facts.account.account_name(), KEPT)
    ))
}

/// What to do about kinds that are not in the tables.
fn left_out_advice(left_out: &str) -> String {
    format!(
        "Not in the tables of cached objects: {left_out}. Grant the account's credential list and watch on these kinds, \
         or take them out of kinds of this account or out of kubesvc.cache.cacheKinds of the operator; the agent looks \
         again every 30 s."
    )
}

/// What is known about an account, read once.
struct AccountFacts<'a> {
    account: &'a KubesvcAccount,
    status: Cow<'a, KubesvcAccountStatus>,
    known_agents: Option<&'a [KubesvcAgent]>,
    now: Timestamp,
    name: &'a str,
    namespace: &'a str,
}

impl<'a> AccountFacts<'a> {
    fn new(account: &'a KubesvcAccount, known_agents: Option<&'a [KubesvcAgent]>, now: Timestamp) -> Self {
        Self {
            account,
            status: account.status_or_default(),
            known_agents,
            now,
            name: account.metadata.name.as_deref().unwrap_or_default(),
            namespace: account.metadata.namespace.as_deref().unwrap_or("default"),
        }
    }

    /// The zone that the account is pinned to, else the zone that has it, else the zone it was in last.
    fn zone(&self) -> Option<&ZoneId> {
        let pinned = self.account.spec.zone_id.as_ref();
        pinned.or(self.status.granted_zone()).or(self.status.zone_id.as_ref())
    }

    fn condition(&self, type_: &str) -> Option<&Condition> {
        find(&self.status.conditions, type_)
    }

    fn is_true(&self, type_: &str) -> bool {
        self.condition(type_).is_some_and(|condition| condition.status == "True")
    }

    /// Whether no operator has seen the account yet.
    fn is_unseen(&self) -> bool {
        self.account.status.is_none() || self.status.observed_generation < 0
    }

    /// Whether its agents keep it until Clouddriver has it no longer.
    fn leaves_clouddriver(&self) -> bool {
        self.status.phase() == GrantPhase::Open
            && self.condition("Ready").is_some_and(|ready| ready.reason == LEAVING_CLOUDDRIVER)
    }

    /// Age of the object, in seconds.
    fn age(&self) -> i64 {
        self.account.metadata.creation_timestamp.as_ref().map_or(0, |time| self.seconds_since(time.0))
    }

    /// Seconds since deletion was requested.
    fn deleted_for(&self) -> i64 {
        self.account.metadata.deletion_timestamp.as_ref().map_or(0, |time| self.seconds_since(time.0))
    }

    fn seconds_since(&self, moment: Timestamp) -> i64 {
        self.now.as_second().saturating_sub(moment.as_second())
    }

    /// Whether a running operator would have acted by now.
    fn is_late(seconds: i64) -> bool {
        seconds > EXPECTED_LATENCY_SECONDS
    }

    /// The agents of a zone.
    fn agents_of<'s>(&'s self, zone: &'s ZoneId) -> impl Iterator<Item = &'a KubesvcAgent> + 's {
        self.known_agents.unwrap_or_default().iter().filter(move |agent| agent.spec.zone_id == *zone)
    }

    /// Zones with an agent that could take accounts now.
    fn zones(&self) -> Vec<&'a ZoneId> {
        let ready = self.known_agents.unwrap_or_default().iter().filter(|agent| can_take(agent));
        ready.map(|agent| &agent.spec.zone_id).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// `kubectl kubesvc VERB NAME -n NAMESPACE`.
    fn plugin(&self, verb: &str) -> String {
        plugin_command(verb, self.name, self.namespace)
    }

    /// `kubectl VERB ksa/NAME -n NAMESPACE REST`.
    fn kubectl(&self, verb: &str, rest: &str) -> String {
        let rest = if rest.is_empty() { String::new() } else { format!(" {rest}") };
        format!("kubectl {verb} ksa/{} -n {}{rest}", self.name, shell(self.namespace))
    }

    /// The command that pins the account to a zone.
    fn pin(&self, zone: &ZoneId) -> String {
        let patch = serde_json::json!({"spec": {"zoneId": zone}}).to_string();
        self.kubectl("patch", &format!("--type=merge -p {}", shell(&patch)))
    }
}

fn plugin_command(verb: &str, name: &str, namespace: &str) -> String {
    format!("kubectl kubesvc {verb} {} -n {}", shell(name), shell(namespace))
}

/// Whether an agent can be given accounts now.
fn can_take(agent: &KubesvcAgent) -> bool {
    agent.is_approved() && is_connected(agent)
}

/// Whether an agent is connected.
fn is_connected(agent: &KubesvcAgent) -> bool {
    agent.status.as_ref().is_some_and(|status| status.connected)
}

/// Quotes a word for a shell.
fn shell(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:@%+,=".contains(&byte);
    if !word.is_empty() && word.bytes().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}
