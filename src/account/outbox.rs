//! Reports that the replica with an agent's stream writes for the leader: one entry for each account whose status
//! waits for a report of that session. Computed from what is awaited and what was reported; not a mirror of the
//! session, so it is empty in a steady state.

mod packing;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::failure::{Failure, FailureClass, truncate};
use super::lifecycle::{AgentReport, ClusterIdentity, Offer};
use super::zones::{needs_zone_probe, probe_round};
use super::{GrantEpoch, GrantPhase, KubesvcAccount, KubesvcAccountStatus, State};

pub use packing::{AnswerUrgency, AwaitedEntry, PackedOutbox, PackingCursor, packed};

/// Maximum number of entries in an outbox; the rest waits.
pub const MAX_ENTRIES: usize = 1000;
/// Maximum number of entries, counted from the first, with a reason or an identity.
pub const MAX_DETAILED: usize = 200;
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
    /// Epoch that the answer is for.
    #[schemars(with = "i64")]
    pub epoch: GrantEpoch,
    /// The answer.
    pub result: OutboxResult,
    /// Class of a failure, as in conditions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// Human-readable reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub reason: Option<String>,
    /// Cluster that the agent reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub identity: Option<OutboxIdentity>,
    /// Generation of the spec that an offer is for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
    /// Probe round that an offer is for; the offer does not count in another round.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub round: Option<String>,
}

/// The cluster that an agent reached.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct OutboxIdentity {
    /// UID of the kube-system namespace; empty if the agent may not read it.
    pub cluster_uid: String,
    /// SHA-256 of the keys that verify service account tokens; empty if the agent may not read them.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub token_keys_digest: String,
    /// SHA-256 of the public key of the pinned certificate authority that verified the server; empty if none did.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub authority_key_digest: String,
    /// URL of the API server.
    pub host: String,
    /// SHA-256 of the served certificate.
    pub cert_fingerprint: String,
    /// Version of the API server.
    pub version: String,
    /// Number of namespaces that the agent saw.
    pub namespaces_count: u32,
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
}

/// The entry that the account's status waits for from a session of this zone; `None` if it waits for none, or the
/// session has not reported it yet.
pub fn awaited(account: &KubesvcAccount, zone: &str, said: SessionReport<'_>) -> Option<AwaitedEntry> {
    let status = account.status_or_default();
    let entry = match status.phase() {
        GrantPhase::None => offered(account, said)?,
        _ if status.granted_zone().is_some_and(|granted| granted != zone) => return None,
        phase => {
            let counts = |epoch: GrantEpoch, word: &AgentReport| match phase {
                GrantPhase::Revoking => {
                    epoch >= status.epoch && matches!(word, AgentReport::Dropped | AgentReport::Failed(_))
                }
                _ => epoch == status.epoch && waits_for(&status, word),
            };
            let word = said.report.filter(|(epoch, word)| counts(*epoch, word)).cloned();
            let overdue = || Some((status.epoch, AgentReport::Failed(said.overdue?.clone())));
            let word = word.or_else(|| overdue().filter(|(epoch, word)| counts(*epoch, word)));
            let doubts =
                said.credential_mismatch && phase == GrantPhase::Open && status.state() != State::Failed;
            match word {
                Some((epoch, word)) => OutboxEntry::of(account.uid(), epoch, &word),
                None if doubts => OutboxEntry::credential_mismatch(account.uid(), status.epoch),
                None => return None,
            }
        }
    };
    Some(AwaitedEntry { need: AnswerUrgency::of(status.state(), entry.result), entry })
}

fn offered(account: &KubesvcAccount, said: SessionReport<'_>) -> Option<OutboxEntry> {
    let round = probe_round(account).filter(|_| said.offers)?;
    let entry = OutboxEntry::new(account.uid(), account.status_or_default().epoch, OutboxResult::Offer);
    Some(OutboxEntry { generation: Some(account.generation()), round: Some(round), ..entry })
}

/// Whether an account with an open grant waits for such a report. A FAILED account recovers through a session that
/// holds it after all; another failure tells it nothing new, unless an agent reached another cluster.
fn waits_for(status: &KubesvcAccountStatus, word: &AgentReport) -> bool {
    let failed = status.state() == State::Failed;
    match word {
        AgentReport::Held(_) => status.state() != State::Active,
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

    fn of(uid: &str, epoch: GrantEpoch, word: &AgentReport) -> Self {
        match word {
            AgentReport::Held(identity) => Self {
                identity: Some(OutboxIdentity::of(identity)),
                ..Self::new(uid, epoch, OutboxResult::Held)
            },
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
        let word = match self.result {
            OutboxResult::Held => AgentReport::Held(self.identity.as_ref().map(OutboxIdentity::read)?),
            OutboxResult::Failed if self.reason.is_none() && self.is_credential_mismatch().is_some() => {
                return None;
            }
            OutboxResult::Failed => AgentReport::Failed(self.failure()),
            OutboxResult::Lost => AgentReport::Lost(self.failure()),
            OutboxResult::Dropped => AgentReport::Dropped,
            OutboxResult::Offer | OutboxResult::Unknown => return None,
        };
        Some((self.epoch, word))
    }

    /// The offer, with the generation it is for; `None` if the entry is none, or was made in another round than the
    /// account's current one.
    pub fn offer(&self, account: &KubesvcAccount) -> Option<(i64, Offer)> {
        let generation = self.generation.filter(|_| self.result == OutboxResult::Offer)?;
        let counts = self.uid == account.uid()
            && self.epoch == account.status_or_default().epoch
            && self.round.is_some()
            && self.round == probe_round(account);
        counts.then_some((generation, Offer::Yes))
    }

    fn failure(&self) -> Failure {
        let class = self.class.as_deref().and_then(FailureClass::from_reason);
        let class = class.unwrap_or(FailureClass::Internal);
        Failure::new(class, self.reason.clone().unwrap_or_else(|| class.to_string()))
    }

    /// Whether the entry may stay although nothing waits for it any more; `account` is `None` if it is gone. A
    /// failure may not: it would count as the session's last report, although the session may have reported something
    /// else since. An offer may not while the account still asks: the session has withdrawn it.
    pub fn may_stand(&self, account: Option<&KubesvcAccount>) -> bool {
        match self.result {
            OutboxResult::Failed | OutboxResult::Lost => false,
            OutboxResult::Offer => !account.is_some_and(needs_zone_probe),
            OutboxResult::Held | OutboxResult::Dropped | OutboxResult::Unknown => true,
        }
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

impl OutboxIdentity {
    fn of(identity: &ClusterIdentity) -> Self {
        Self {
            cluster_uid: identity.cluster_uid.clone(),
            token_keys_digest: identity.token_keys_digest.clone(),
            authority_key_digest: identity.authority_key_digest.clone(),
            host: identity.host.clone(),
            cert_fingerprint: identity.cert_fingerprint.clone(),
            version: identity.version.clone(),
            namespaces_count: identity.namespaces_count,
        }
    }

    fn read(&self) -> ClusterIdentity {
        ClusterIdentity {
            cluster_uid: self.cluster_uid.clone(),
            token_keys_digest: self.token_keys_digest.clone(),
            authority_key_digest: self.authority_key_digest.clone(),
            host: self.host.clone(),
            cert_fingerprint: self.cert_fingerprint.clone(),
            version: self.version.clone(),
            namespaces_count: self.namespaces_count,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::account::{Grant, KubesvcAccountSpec};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

    fn account(state: State, phase: GrantPhase, epoch: i64) -> KubesvcAccount {
        let mut account = KubesvcAccount::new("a", KubesvcAccountSpec::default());
        account.metadata.uid = Some("u".into());
        account.metadata.generation = Some(3);
        let grant = Grant { phase, zone: Some("z".into()), generation: 3, definition: None };
        account.status = Some(KubesvcAccountStatus {
            state: Some(state),
            epoch: GrantEpoch(epoch),
            grant: (phase != GrantPhase::None).then_some(grant),
            ..KubesvcAccountStatus::default()
        });
        account
    }

    fn failure() -> Failure {
        Failure::new(FailureClass::Unreachable, "x".repeat(2000))
    }

    fn words() -> [AgentReport; 4] {
        [
            AgentReport::Held(ClusterIdentity::default()),
            AgentReport::Failed(failure()),
            AgentReport::Dropped,
            AgentReport::Lost(failure()),
        ]
    }

    fn awaited(account: &KubesvcAccount, zone: &str, said: SessionReport<'_>) -> Option<OutboxEntry> {
        super::awaited(account, zone, said).map(|awaited| awaited.entry)
    }

    fn results(state: State, phase: GrantPhase, zone: &str) -> Vec<OutboxResult> {
        let account = account(state, phase, 4);
        let entries = words().map(|word| {
            awaited(
                &account,
                zone,
                SessionReport { report: Some(&(GrantEpoch(4), word)), ..SessionReport::default() },
            )
        });
        entries.into_iter().flatten().map(|entry| entry.result).collect()
    }

    #[test]
    fn only_what_the_status_waits_for_is_said() {
        use OutboxResult::{Dropped, Failed, Held, Lost};
        for state in [State::Activating, State::Orphaned] {
            assert_eq!(results(state, GrantPhase::Open, "z"), [Held, Failed, Lost], "{state}");
        }
        assert_eq!(results(State::Failed, GrantPhase::Open, "z"), [Held], "that it failed is known");
        assert_eq!(results(State::Active, GrantPhase::Open, "z"), [Failed, Lost]);
        for state in
            [State::Activating, State::Deactivating, State::Failed, State::Deleting, State::DeleteFailed]
        {
            assert_eq!(results(state, GrantPhase::Revoking, "z"), [Failed, Dropped], "{state}");
        }
        for state in [State::Inactive, State::ToMigrate, State::Failed] {
            assert_eq!(results(state, GrantPhase::None, "z"), [], "{state}");
        }
        assert_eq!(results(State::Activating, GrantPhase::Open, "y"), [], "another zone has the grant");
    }

    #[test]
    fn a_report_for_another_epoch_is_left_out_and_a_later_drop_is_not() {
        let said = |epoch: i64, word: AgentReport, account: &KubesvcAccount| {
            awaited(
                account,
                "z",
                SessionReport { report: Some(&(GrantEpoch(epoch), word)), ..SessionReport::default() },
            )
            .map(|entry| entry.epoch)
        };
        let open = account(State::Activating, GrantPhase::Open, 4);
        let revoking = account(State::Deactivating, GrantPhase::Revoking, 4);
        for epoch in [3, 5] {
            assert_eq!(said(epoch, AgentReport::Held(ClusterIdentity::default()), &open), None);
        }
        assert_eq!(said(3, AgentReport::Dropped, &revoking), None);
        assert_eq!(said(5, AgentReport::Dropped, &revoking), Some(GrantEpoch(5)));
    }

    #[test]
    fn who_is_overdue_has_failed_until_it_says_something() {
        let account = account(State::Activating, GrantPhase::Open, 4);
        let late = Failure::new(FailureClass::Timeout, "no answer");
        let overdue = SessionReport { overdue: Some(&late), ..SessionReport::default() };
        let entry = awaited(&account, "z", overdue).expect("it is awaited");
        assert_eq!(entry.report(), Some((GrantEpoch(4), AgentReport::Failed(late.clone()))));
        let word = (GrantEpoch(4), AgentReport::Held(ClusterIdentity::default()));
        let entry =
            awaited(&account, "z", SessionReport { report: Some(&word), ..overdue }).expect("it is awaited");
        assert_eq!(entry.result, OutboxResult::Held);
    }

    #[test]
    fn a_credential_mismatch_is_reported_until_the_agent_has_answered() {
        let doubts = SessionReport { credential_mismatch: true, ..SessionReport::default() };
        for state in [State::Activating, State::Active, State::Orphaned] {
            let account = account(state, GrantPhase::Open, 4);
            let entry = awaited(&account, "z", doubts).expect("it is awaited");
            let json = serde_json::to_string(&entry).expect("it is JSON");
            let read: OutboxEntry = serde_json::from_str(&json).expect("it is an entry");
            assert_eq!(
                (read.is_credential_mismatch(), read.report(), read.offer(&account)),
                (Some(GrantEpoch(4)), None, None),
                "{state}"
            );
            assert!(!read.may_stand(Some(&account)));
            let word = (
                GrantEpoch(4),
                AgentReport::Failed(Failure::new(FailureClass::CredentialDiffers, "they differ")),
            );
            let entry = awaited(&account, "z", SessionReport { report: Some(&word), ..doubts })
                .expect("it is awaited");
            assert_eq!(
                (entry.is_credential_mismatch(), entry.report()),
                (Some(GrantEpoch(4)), Some(word)),
                "{state}"
            );
        }
        assert_eq!(awaited(&account(State::Failed, GrantPhase::Open, 4), "z", doubts), None);
        assert_eq!(awaited(&account(State::Deactivating, GrantPhase::Revoking, 4), "z", doubts), None);
        assert_eq!(OutboxEntry::failed("u", GrantEpoch(4), &failure()).is_credential_mismatch(), None);
    }

    #[test]
    fn a_failed_account_gets_one_report_of_another_cluster() {
        let mismatch =
            (GrantEpoch(4), AgentReport::Failed(Failure::new(FailureClass::ClusterMismatch, "another one")));
        let said = SessionReport { report: Some(&mismatch), ..SessionReport::default() };
        let mut failed = account(State::Failed, GrantPhase::Open, 4);
        let entry = awaited(&failed, "z", said).expect("it is news");
        assert_eq!(entry.report().map(|(epoch, _)| epoch), Some(GrantEpoch(4)));
        let reason = FailureClass::ClusterMismatch.reason().to_owned();
        let time = Time(jiff::Timestamp::UNIX_EPOCH);
        let ready = Condition {
            type_: "Ready".into(),
            status: "False".into(),
            reason,
            message: String::new(),
            last_transition_time: time,
            observed_generation: None,
        };
        failed.status.get_or_insert_default().conditions = vec![ready];
        assert_eq!(awaited(&failed, "z", said), None);
        let late = Failure::new(FailureClass::Timeout, "no answer");
        assert_eq!(
            awaited(&failed, "z", SessionReport { overdue: Some(&late), ..SessionReport::default() }),
            None
        );
    }

    #[test]
    fn an_offer_is_said_while_the_account_asks() {
        let offers = SessionReport { offers: true, ..SessionReport::default() };
        let mut asking = account(State::ToMigrate, GrantPhase::None, 4);
        let entry = awaited(&asking, "y", offers).expect("it asks");
        assert_eq!((entry.offer(&asking), entry.report()), (Some((3, Offer::Yes)), None));
        assert_eq!(awaited(&account(State::Inactive, GrantPhase::None, 4), "y", offers), None);
        asking.spec.zone_id = Some("z".into());
        assert_eq!(awaited(&asking, "y", offers), None, "it is pinned by now");
    }

    /// After FAILED `ZoneAmbiguous` an account starts a new round without a failed attempt, and under the same epoch.
    #[test]
    fn an_offer_counts_in_the_round_it_was_made_in_and_may_not_stand_while_another_goes_on() {
        let asking = account(State::ToMigrate, GrantPhase::None, 4);
        let entry = awaited(&asking, "y", SessionReport { offers: true, ..SessionReport::default() })
            .expect("it is awaited");
        let after = |change: &dyn Fn(&mut KubesvcAccountStatus)| {
            let mut account = asking.clone();
            change(account.status.get_or_insert_default());
            account
        };
        let later = Time(jiff::Timestamp::from_second(1_000_000).expect("a time"));
        let rounds = [
            after(&|status| status.last_transition_time = Some(later.clone())),
            after(&|status| status.failed_count = 1),
            after(&|status| status.epoch = GrantEpoch(5)),
            after(&|status| status.retry_handled = Some("now".into())),
            after(&|status| status.credential_version = Some("secret/2".into())),
        ];
        for next in rounds {
            assert_eq!(entry.offer(&next), None, "{:?}", next.status);
            assert!(!entry.may_stand(Some(&next)));
        }
        assert!(!entry.may_stand(Some(&asking)), "who says so no more has taken it back");
        assert!(entry.may_stand(Some(&account(State::Activating, GrantPhase::Open, 5))));
        let without = OutboxEntry { round: None, ..entry };
        assert_eq!(without.offer(&asking), None);
    }

    #[test]
    fn a_report_survives_the_round_trip_through_an_object() {
        for word in words() {
            let entry = OutboxEntry::of("u", GrantEpoch(4), &word);
            let json = serde_json::to_string(&entry).expect("it is JSON");
            let read: OutboxEntry = serde_json::from_str(&json).expect("it is an entry");
            let (epoch, read) = read.report().expect("it is a word");
            assert_eq!((epoch.0, std::mem::discriminant(&read)), (4, std::mem::discriminant(&word)));
            if let AgentReport::Failed(failure) | AgentReport::Lost(failure) = read {
                assert_eq!((failure.class, failure.message.len()), (FailureClass::Unreachable, 256));
            }
        }
    }

    #[test]
    fn what_a_later_version_says_is_no_word() {
        let read: OutboxEntry =
            serde_json::from_str(r#"{"uid": "u", "epoch": 1, "result": "Juggled"}"#).expect("it is an entry");
        let asking = account(State::ToMigrate, GrantPhase::None, 1);
        assert_eq!((read.result, read.report(), read.offer(&asking)), (OutboxResult::Unknown, None, None));
    }
}
