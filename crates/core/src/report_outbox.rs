//! Reports that the replica with an agent's stream writes for the leader: one entry for each account whose status
//! waits for a report of that session. Computed from what is awaited and what was reported; not a mirror of the
//! session, so it is empty in a steady state. [`packed`] selects the awaited entries that fit; the others wait.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::cache::issues::condition_message;
use super::conditions;
use super::failure::{Failure, FailureClass, truncate};
use super::lifecycle::{AgentReport, CachingReport, ClusterIdentity, Offer};
use super::{CachingEpoch, GrantEpoch, GrantPhase, KubesvcAccount, KubesvcAccountStatus, State};
use crate::ids::ZoneId;

/// Maximum number of entries in an outbox; the rest waits.
pub(crate) const MAX_ENTRIES: usize = 1000;
/// Maximum number of entries, counted from the first, with a reason or an identity.
pub(crate) const MAX_DETAILED: usize = 200;
/// Maximum length of a reason, in bytes.
const MAX_REASON_BYTES: usize = 256;
/// Maximum total size of an outbox's texts, in bytes.
const MAX_BYTES: usize = 256 * 1024;
/// Size of an entry besides its texts, in bytes of JSON.
const ENTRY_BYTES: usize = 128;

/// Answer of a session about an account.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OutboxResult {
    /// The agent holds the account.
    Held,
    /// The agent could not activate or drop the account, or does not answer.
    Failed,
    /// The agent no longer holds the account.
    Dropped,
    /// The agent held the account and can no longer hold it.
    Lost,
    /// The agent could reach the account's cluster.
    Offer,
    /// What the agent leaves out of the account's objects, or that it cannot read any of them.
    CacheIssue,
    /// A value of a later version of the operator that this version does not know.
    #[default]
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

/// An answer that the leader waits for.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct OutboxEntry {
    /// UID of the account.
    #[schemars(length(min = 1, max = 64))]
    pub uid: String,
    /// Epoch that the answer is for; of a CacheIssue, the epoch of `caching`.
    #[schemars(with = "i64")]
    pub epoch: GrantEpoch,
    /// The answer.
    pub result: OutboxResult,
    /// Class of a failure, as in conditions. With Held: the cluster refuses the credential that the agent holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// Human-readable reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub reason: Option<String>,
    /// Cluster that the agent reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub identity: Option<ClusterIdentity>,
    /// Generation of the spec that an offer is for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
    /// Probe round that an offer is for; the offer does not count in another round.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub round: Option<String>,
}

/// What one session has reported about one account.
#[derive(Clone, Copy, Debug, Default)]
pub struct SessionReport<'a> {
    /// Its last report, with the epoch that the report is for.
    pub report: Option<&'a (GrantEpoch, AgentReport)>,
    /// Set if an answer for the status's epoch is overdue.
    pub overdue: Option<&'a Failure>,
    /// Whether its replica reads another credential than the granted one.
    pub credential_mismatch: bool,
    /// Whether it could reach the account, and was the first of its zone at this replica to say so.
    pub offers: bool,
    /// What it says of the objects that it streams.
    pub caching: Option<&'a CachingReport>,
}

/// The entry that the account's status waits for from a session of this zone; `None` if it waits for none, or the
/// session has not reported it yet.
pub fn awaited(
    account: &KubesvcAccount,
    zone: &ZoneId,
    session_report: SessionReport<'_>,
) -> Option<AwaitedEntry> {
    let status = account.status_or_default();
    let entry = match status.phase() {
        GrantPhase::None => offered(account, session_report)?,
        _ if status.granted_zone().is_some_and(|granted| granted != zone) => return None,
        phase => {
            let counts = |epoch: GrantEpoch, report: &AgentReport| match phase {
                GrantPhase::Revoking => {
                    epoch >= status.epoch && matches!(report, AgentReport::Dropped | AgentReport::Failed(_))
                }
                _ => epoch == status.epoch && waits_for(&status, report),
            };
            let report = session_report.report.filter(|(epoch, report)| counts(*epoch, report)).cloned();
            let overdue = || Some((status.epoch, AgentReport::Failed(session_report.overdue?.clone())));
            let report = report.or_else(|| overdue().filter(|(epoch, report)| counts(*epoch, report)));
            let mismatched = session_report.credential_mismatch
                && phase == GrantPhase::Open
                && status.state() != State::Failed;
            match report {
                Some((epoch, report)) => OutboxEntry::of(account.uid(), epoch, &report),
                None if mismatched => OutboxEntry::credential_mismatch(account.uid(), status.epoch),
                None => cache_issue(account, &status, session_report.caching?)?,
            }
        }
    };
    Some(AwaitedEntry { need: AnswerUrgency::of(status.state(), entry.result), entry })
}

fn offered(account: &KubesvcAccount, session_report: SessionReport<'_>) -> Option<OutboxEntry> {
    let round = account.probe_round().filter(|_| session_report.offers)?;
    let entry = OutboxEntry::new(account.uid(), account.status_or_default().epoch, OutboxResult::Offer);
    Some(OutboxEntry { generation: Some(account.generation()), round: Some(round), ..entry })
}

/// What the elected session says of the objects, if the account does not say so already.
fn cache_issue(
    account: &KubesvcAccount,
    status: &KubesvcAccountStatus,
    said: &CachingReport,
) -> Option<OutboxEntry> {
    let is_elected = status.caching.as_ref().is_some_and(|caching| caching.epoch == said.epoch)
        && status.caching_agent().is_some();
    let is_awaited = status.state() == State::Active
        && is_elected
        && (said.is_unreadable || !is_shown(account, said.left_out.as_deref()));
    is_awaited.then(|| OutboxEntry::cache_issue(account.uid(), said))
}

/// Whether the account's condition says that this is left out.
fn is_shown(account: &KubesvcAccount, left_out: Option<&str>) -> bool {
    let shown = condition_message(&account.spec, left_out);
    conditions::left_out(&account.status_or_default().conditions) == shown.as_deref()
}

/// Whether an account with an open grant waits for such a report. A FAILED account recovers through a session that
/// holds it after all; another failure tells it nothing new, unless an agent reached another cluster.
fn waits_for(status: &KubesvcAccountStatus, report: &AgentReport) -> bool {
    let failed = status.state() == State::Failed;
    match report {
        AgentReport::Held(identity) => status.state() != State::Active || identity.refused.is_some(),
        AgentReport::Failed(failure) if failed => {
            failure.class == FailureClass::ClusterMismatch && status.failure_class() != Some(failure.class)
        }
        AgentReport::Lost(_) if failed => false,
        AgentReport::Failed(_) | AgentReport::Lost(_) => true,
        AgentReport::Dropped => false,
    }
}

impl OutboxEntry {
    fn new(uid: &str, epoch: GrantEpoch, result: OutboxResult) -> Self {
        Self { uid: uid.to_owned(), epoch, result, ..Self::default() }
    }

    fn of(uid: &str, epoch: GrantEpoch, report: &AgentReport) -> Self {
        match report {
            AgentReport::Held(identity) => {
                let held = match &identity.refused {
                    Some(failure) => Self::failed(uid, epoch, failure),
                    None => Self::new(uid, epoch, OutboxResult::Held),
                };
                let identity = ClusterIdentity { refused: None, ..identity.clone() };
                Self { result: OutboxResult::Held, identity: Some(identity), ..held }
            }
            AgentReport::Failed(failure) => Self::failed(uid, epoch, failure),
            AgentReport::Lost(failure) => {
                Self { result: OutboxResult::Lost, ..Self::failed(uid, epoch, failure) }
            }
            AgentReport::Dropped => Self::new(uid, epoch, OutboxResult::Dropped),
        }
    }

    fn failed(uid: &str, epoch: GrantEpoch, failure: &Failure) -> Self {
        let mut reason = failure.message.clone();
        truncate(&mut reason, MAX_REASON_BYTES);
        Self {
            class: Some(failure.class.reason().to_owned()),
            reason: Some(reason),
            ..Self::new(uid, epoch, OutboxResult::Failed)
        }
    }

    /// The class says whether the cluster can be read, the reason what is left out.
    fn cache_issue(uid: &str, said: &CachingReport) -> Self {
        let class = said.is_unreadable.then(|| FailureClass::Unreachable.reason().to_owned());
        let epoch = GrantEpoch(said.epoch.0);
        Self { class, reason: said.left_out.clone(), ..Self::new(uid, epoch, OutboxResult::CacheIssue) }
    }

    /// What the session says of the objects that it streams; `None` if the entry is about something else.
    pub fn caching_report(&self) -> Option<CachingReport> {
        (self.result == OutboxResult::CacheIssue).then(|| CachingReport {
            epoch: CachingEpoch(self.epoch.0),
            left_out: self.reason.clone(),
            is_unreadable: self.class.is_some(),
        })
    }

    /// A failure without a reason: not a report, but a question to the leader.
    fn credential_mismatch(uid: &str, epoch: GrantEpoch) -> Self {
        let class = Some(FailureClass::CredentialDiffers.reason().to_owned());
        Self { class, ..Self::new(uid, epoch, OutboxResult::Failed) }
    }

    /// The epoch for which the session's replica reads another credential than the granted one; `None` if the entry
    /// does not say so.
    pub fn is_credential_mismatch(&self) -> Option<GrantEpoch> {
        let differs = self.class.as_deref() == Some(FailureClass::CredentialDiffers.reason());
        (differs && self.result == OutboxResult::Failed).then_some(self.epoch)
    }

    /// The report, with the epoch it is for; `None` if the entry is none.
    pub fn report(&self) -> Option<(GrantEpoch, AgentReport)> {
        let report = match self.result {
            OutboxResult::Held => {
                let refused = self.class.is_some().then(|| self.failure());
                AgentReport::Held(ClusterIdentity { refused, ..self.identity.clone()? })
            }
            OutboxResult::Failed if self.reason.is_none() && self.is_credential_mismatch().is_some() => {
                return None;
            }
            OutboxResult::Failed => AgentReport::Failed(self.failure()),
            OutboxResult::Lost => AgentReport::Lost(self.failure()),
            OutboxResult::Dropped => AgentReport::Dropped,
            OutboxResult::Offer | OutboxResult::CacheIssue | OutboxResult::Unknown => return None,
        };
        Some((self.epoch, report))
    }

    /// The offer, with the generation it is for; `None` if the entry is none, or was made in another round than the
    /// account's current one.
    pub fn offer(&self, account: &KubesvcAccount) -> Option<(i64, Offer)> {
        let generation = self.generation.filter(|_| self.result == OutboxResult::Offer)?;
        let counts = self.uid == account.uid()
            && self.epoch == account.status_or_default().epoch
            && self.round.is_some()
            && self.round == account.probe_round();
        counts.then_some((generation, Offer::Yes))
    }

    fn failure(&self) -> Failure {
        let class = self.class.as_deref().and_then(FailureClass::from_reason);
        let class = class.unwrap_or(FailureClass::Internal);
        Failure::new(class, self.reason.clone().unwrap_or_else(|| class.to_string()))
    }

    /// Whether the entry may stay although nothing waits for it any more; `account` is `None` if it is gone. A
    /// failure, or a refusal of the credential, may not: it would count as the session's last report, although the session may have reported something
    /// else since. An offer may not while the account still asks: the session has withdrawn it.
    pub fn may_stand(&self, account: Option<&KubesvcAccount>) -> bool {
        match self.result {
            OutboxResult::Failed | OutboxResult::Lost => false,
            OutboxResult::Held if self.class.is_some() => false,
            OutboxResult::Offer => !account.is_some_and(KubesvcAccount::needs_zone_probe),
            OutboxResult::CacheIssue => {
                // The leader may wait before it acts on what it read.
                let is_old = |account| self.class.is_none() && is_shown(account, self.reason.as_deref());
                account.is_none_or(is_old)
            }
            OutboxResult::Held | OutboxResult::Dropped | OutboxResult::Unknown => true,
        }
    }

    /// Without its reason, a report of a differing credential would be read as a mismatch, and one of what is left out as
    /// if nothing were; neither is so.
    fn means_nothing_without_reason(&self) -> bool {
        self.is_credential_mismatch().is_some() || self.result == OutboxResult::CacheIssue
    }

    fn is_detailed(&self) -> bool {
        self.reason.is_some() || self.identity.is_some()
    }

    fn bytes(&self) -> usize {
        let identity = self.identity.as_ref().map_or(0, |one| {
            ENTRY_BYTES
                + one.cluster_uid.len()
                + one.token_keys_digest.len()
                + one.authority_key_digest.len()
                + one.host.len()
                + one.cert_fingerprint.len()
                + one.version.len()
        });
        ENTRY_BYTES + self.uid.len() + self.reason.as_ref().map_or(0, String::len) + identity
    }
}

/// How urgently an answer is needed, the most urgent first. The leader does not act on a standing answer until
/// another session reports something else. There may be any number of these, for any time, so they must not displace
/// the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AnswerUrgency {
    /// Ends a revoke.
    Dropped,
    /// Makes an account ACTIVE.
    Held,
    /// Lets an account proceed, or makes it FAILED.
    Failed,
    /// Standing: a FAILED account is held, and its credential is refused.
    StandingHeld,
    /// Standing: one agent of several cannot take an ACTIVE account.
    Standing,
}

/// An awaited entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AwaitedEntry {
    /// The entry.
    pub entry: OutboxEntry,
    /// Its urgency.
    pub need: AnswerUrgency,
}

/// For each urgency whose entries do not all fit, the uid to begin with.
pub type PackingCursor = BTreeMap<AnswerUrgency, String>;

/// An outbox, and where the next one continues.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PackedOutbox {
    /// The entries that fit.
    pub entries: Vec<OutboxEntry>,
    /// Where to begin next time, so that every entry gets its turn; empty if all fit.
    pub next: PackingCursor,
}

impl AnswerUrgency {
    fn of(state: State, result: OutboxResult) -> Self {
        let stands = matches!(state, State::Active | State::Failed | State::DeleteFailed);
        match result {
            OutboxResult::Dropped => Self::Dropped,
            // The cluster refuses the credential.
            OutboxResult::Held if state == State::Active => Self::Failed,
            OutboxResult::Held if stands => Self::StandingHeld,
            OutboxResult::Held => Self::Held,
            OutboxResult::Failed | OutboxResult::Lost if stands => Self::Standing,
            OutboxResult::CacheIssue => Self::Standing,
            _ => Self::Failed,
        }
    }
}

/// Packs as many entries as fit, the most urgent first; within an urgency, from where `cursor` says. Only the first
/// [`MAX_DETAILED`] carry details. A `Held` is only included together with the cluster's identity.
pub fn packed(mut awaited: Vec<AwaitedEntry>, cursor: &PackingCursor) -> PackedOutbox {
    let is_later = |one: &AwaitedEntry| cursor.get(&one.need).is_some_and(|begin| one.entry.uid < *begin);
    awaited.sort_by(|one, other| {
        (one.need, is_later(one), &one.entry.uid).cmp(&(other.need, is_later(other), &other.entry.uid))
    });
    let (mut packed, mut detailed, mut bytes) = (PackedOutbox::default(), 0, 0);
    for AwaitedEntry { mut entry, need } in awaited {
        if detailed == MAX_DETAILED && !entry.means_nothing_without_reason() {
            entry.reason = None;
        }
        let has_details = !entry.is_detailed() || detailed < MAX_DETAILED;
        if has_details && packed.entries.len() < MAX_ENTRIES && bytes + entry.bytes() <= MAX_BYTES {
            bytes += entry.bytes();
            detailed += usize::from(entry.is_detailed());
            packed.entries.push(entry);
        } else {
            packed.next.entry(need).or_insert(entry.uid);
        }
    }
    packed
}

#[cfg(test)]
mod tests;
