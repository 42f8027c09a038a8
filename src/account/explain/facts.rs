//! What is known about an account, read once.

use std::borrow::Cow;
use std::collections::BTreeSet;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::account::failure::FailureClass;
use crate::account::{KubesvcAccount, KubesvcAccountStatus, KubesvcAgent, RETRY_ANNOTATION, gitops_owner};

/// Time within which a running operator processes an object, in seconds.
const EXPECTED_LATENCY_SECONDS: i64 = 10;

pub(super) struct Facts<'a> {
    pub(super) account: &'a KubesvcAccount,
    pub(super) status: Cow<'a, KubesvcAccountStatus>,
    pub(super) fleet: Option<&'a [KubesvcAgent]>,
    pub(super) now: Timestamp,
    pub(super) name: &'a str,
    pub(super) namespace: &'a str,
}

impl<'a> Facts<'a> {
    pub(super) fn new(
        account: &'a KubesvcAccount,
        fleet: Option<&'a [KubesvcAgent]>,
        now: Timestamp,
    ) -> Self {
        Self {
            account,
            status: account.status_or_default(),
            fleet,
            now,
            name: account.metadata.name.as_deref().unwrap_or_default(),
            namespace: account.metadata.namespace.as_deref().unwrap_or("default"),
        }
    }

    /// The zone that the account is pinned to, else the zone that has it, else the zone it was in last.
    pub(super) fn zone(&self) -> Option<&str> {
        let pinned = self.account.spec.zone_id.as_deref();
        pinned.or(self.status.granted_zone()).or(self.status.zone_id.as_deref())
    }

    pub(super) fn condition(&self, type_: &str) -> Option<&Condition> {
        self.status.conditions.iter().find(|condition| condition.type_ == type_)
    }

    pub(super) fn is_true(&self, type_: &str) -> bool {
        self.condition(type_).is_some_and(|condition| condition.status == "True")
    }

    pub(super) fn reason(&self) -> Option<&str> {
        self.condition("Ready").map(|ready| ready.reason.as_str())
    }

    pub(super) fn class(&self) -> Option<FailureClass> {
        FailureClass::from_reason(self.reason()?)
    }

    /// Whether no operator has seen the account yet.
    pub(super) fn is_unseen(&self) -> bool {
        self.account.status.is_none() || self.status.observed_generation < 0
    }

    /// Whether a change of the spec has not been processed yet.
    pub(super) fn is_changed(&self) -> bool {
        self.status.observed_generation != self.account.generation()
    }

    /// Whether a retry was requested and has not begun.
    pub(super) fn is_retry_asked(&self) -> bool {
        let asked = self.account.annotation(RETRY_ANNOTATION);
        asked.is_some() && asked != self.status.retry_handled.as_deref()
    }

    /// Age of the object, in seconds.
    pub(super) fn age(&self) -> i64 {
        self.account.metadata.creation_timestamp.as_ref().map_or(0, |time| self.seconds_since(time.0))
    }

    /// Seconds since deletion was requested.
    pub(super) fn deleted_for(&self) -> i64 {
        self.account.metadata.deletion_timestamp.as_ref().map_or(0, |time| self.seconds_since(time.0))
    }

    fn seconds_since(&self, moment: Timestamp) -> i64 {
        self.now.as_second().saturating_sub(moment.as_second())
    }

    /// Whether a running operator would have acted by now.
    pub(super) fn is_late(seconds: i64) -> bool {
        seconds > EXPECTED_LATENCY_SECONDS
    }

    /// The agents of a zone.
    pub(super) fn agents_of<'s>(&'s self, zone: &'s str) -> impl Iterator<Item = &'a KubesvcAgent> + 's {
        self.fleet.unwrap_or_default().iter().filter(move |agent| agent.spec.zone_id == zone)
    }

    /// Zones with an agent that could take accounts now.
    pub(super) fn zones(&self) -> Vec<&'a str> {
        let ready = self.fleet.unwrap_or_default().iter().filter(|agent| can_take(agent));
        ready.map(|agent| agent.spec.zone_id.as_str()).collect::<BTreeSet<_>>().into_iter().collect()
    }

    pub(super) fn kept_by(&self) -> Option<String> {
        gitops_owner::gitops_owner(self.account)
    }

    /// `kubectl kubesvc VERB NAME -n NAMESPACE`.
    pub(super) fn plugin(&self, verb: &str) -> String {
        format!("kubectl kubesvc {verb} {} -n {}", shell(self.name), shell(self.namespace))
    }

    /// `kubectl VERB ksa/NAME -n NAMESPACE REST`.
    pub(super) fn kubectl(&self, verb: &str, rest: &str) -> String {
        let rest = if rest.is_empty() { String::new() } else { format!(" {rest}") };
        format!("kubectl {verb} ksa/{} -n {}{rest}", self.name, shell(self.namespace))
    }

    /// The command that pins the account to a zone.
    pub(super) fn pin(&self, zone: &str) -> String {
        let patch = serde_json::json!({"spec": {"zoneId": zone}}).to_string();
        self.kubectl("patch", &format!("--type=merge -p {}", shell(&patch)))
    }
}

/// Whether an agent can be given accounts now.
pub(super) fn can_take(agent: &KubesvcAgent) -> bool {
    agent.spec.approved && is_connected(agent)
}

/// Whether an agent is connected.
pub(super) fn is_connected(agent: &KubesvcAgent) -> bool {
    agent.status.as_ref().is_some_and(|status| status.connected)
}

/// Quotes a word for a shell.
pub(super) fn shell(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:@%+,=".contains(&byte);
    if !word.is_empty() && word.bytes().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}
