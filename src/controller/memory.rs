//! The leader's memory of an account beside its object: facts that may be lost at any time and are determined again.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::account::failure::Failure;
use crate::account::lifecycle::{CredentialFact, Fact, Tick};
use crate::account::secret_reference::is_read_by_operator;
use crate::account::{GrantEpoch, KubesvcAccount, State};
use crate::objects::AccountKey;

/// Minimum delays, in ticks, before the credential is read again for an agent's replica, after each consecutive time.
/// The last one repeats.
const REREAD_DELAYS: [Tick; 4] = [5, 10, 30, 60];

/// While this is unchanged, the account is in the same state for the retry clock.
type RetryStage = (State, GrantEpoch, i32);

/// The memory of one account.
#[derive(Clone, Debug, Default)]
pub(super) struct AccountMemory {
    /// The account's name, to wake a rival when the object goes.
    pub(super) account_name: String,
    /// The stage last seen, and the tick since which it lasts.
    stage: Option<RetryStage>,
    pub(super) since: Tick,
    /// The verdict on the credential for this generation of the spec.
    pub(super) credential: Fact<Result<CredentialFact, Failure>>,
    generation: i64,
    /// Resolving the credential takes longer than the limit after which it counts as slow.
    pub(super) credential_slow: bool,
    /// Read the credential again although the object did not change.
    pub(super) recheck: bool,
    /// The credential differs from the one judged before.
    pub(super) credential_changed: bool,
    judged: Option<Result<CredentialFact, Failure>>,
    credential_mismatches: CredentialMismatches,
    /// The sessions of the zone were read since the last look. Valid for one look: while a revoke waits, others may
    /// register.
    pub(super) sessions_are_read: bool,
    /// The database refuses the row: the account proceeds without it.
    pub(super) row_refused: bool,
    /// The resourceVersion for which the row was last projected.
    row_said: Option<String>,
    /// Number of consecutive failed requests.
    pub(super) errors: u32,
}

/// How many times in a row the credential was read again because an agent's replica found another one, and the
/// earliest tick for the next time.
#[derive(Clone, Copy, Debug, Default)]
struct CredentialMismatches {
    count: usize,
    next: Tick,
}

/// The memories of all accounts.
#[derive(Debug, Default)]
pub(super) struct Memories(Mutex<MemoryShards>);

#[derive(Debug, Default)]
struct MemoryShards {
    by_uid: HashMap<String, AccountMemory>,
    /// uids seen under a key; more than one while a name is reused.
    uids: HashMap<AccountKey, Vec<String>>,
}

impl Memories {
    /// Returns the memory of an account, updated to its current object. `sessions_are_read` is returned only once.
    pub(super) fn look(&self, account: &KubesvcAccount, now: Tick) -> AccountMemory {
        let status = account.status_or_default();
        let stage = (status.state(), status.epoch, status.failed_count);
        let mut shelves = self.0.lock();
        if !shelves.by_uid.contains_key(account.uid()) {
            shelves.uids.entry(AccountKey::of(account)).or_default().push(account.uid().to_owned());
        }
        let memory = shelves.by_uid.entry(account.uid().to_owned()).or_insert_with(|| AccountMemory {
            // Judge once even if the object did not change: the Secret may have changed while no replica led.
            recheck: is_read_by_operator(account.spec.agent_source()),
            account_name: account.account_name().to_owned(),
            ..AccountMemory::default()
        });
        if memory.stage != Some(stage) {
            memory.stage = Some(stage);
            memory.since = now;
            memory.sessions_are_read = false;
        }
        if memory.generation != account.generation() {
            memory.generation = account.generation();
            memory.credential = Fact::Unknown;
            memory.row_refused = false;
        }
        let seen = memory.clone();
        memory.sessions_are_read = false;
        seen
    }

    /// Changes the memory of an account, if there is one.
    pub(super) fn update(&self, uid: &str, change: impl FnOnce(&mut AccountMemory)) {
        if let Some(memory) = self.0.lock().by_uid.get_mut(uid) {
            change(memory);
        }
    }

    /// Records the verdict on a credential.
    pub(super) fn judged(&self, uid: &str, verdict: Result<CredentialFact, Failure>) {
        self.update(uid, |memory| {
            memory.credential_changed |=
                memory.judged.as_ref().is_some_and(|before| differ(before, &verdict));
            memory.judged = Some(verdict.clone());
            memory.credential = Fact::Known(verdict);
            memory.credential_slow = false;
            memory.recheck = false;
        });
    }

    /// Records that a status was written: the verdict it was based on does not apply to the next.
    pub(super) fn wrote_status(&self, uid: &str, now: Tick) {
        self.update(uid, |memory| {
            memory.stage = None;
            memory.since = now;
            memory.credential = Fact::Unknown;
            memory.credential_slow = false;
            memory.credential_changed = false;
            memory.sessions_are_read = false;
            memory.errors = 0;
        });
    }

    /// Whether resolving the credential is known to take long.
    pub(super) fn awaits_credential(&self, uid: &str) -> bool {
        self.0.lock().by_uid.get(uid).is_some_and(|memory| memory.credential_slow)
    }

    /// Records that the row is projected for this version of the object. Returns `false` if it was already, so that
    /// nothing can have changed.
    pub(super) fn row_is_current(&self, account: &KubesvcAccount) -> bool {
        let version = &account.metadata.resource_version;
        let mut news = true;
        self.update(account.uid(), |memory| {
            news = memory.row_said.is_none() || memory.row_said != *version;
            memory.row_said.clone_from(version);
        });
        news
    }

    /// Requests that the credential is read again.
    pub(super) fn recheck_credential(&self, uid: &str) {
        self.update(uid, |memory| memory.recheck = true);
    }

    /// The uids and account names that objects under a key have had.
    pub(super) fn known(&self, key: &AccountKey) -> Vec<(String, String)> {
        let shelves = self.0.lock();
        let uids = shelves.uids.get(key).into_iter().flatten();
        uids.filter_map(|uid| Some((uid.clone(), shelves.by_uid.get(uid)?.account_name.clone()))).collect()
    }

    /// Records that an agent's replica found another credential than the granted one. The credential is read again
    /// now or, if that was done recently, at the returned tick.
    pub(super) fn credential_mismatched(&self, uid: &str, now: Tick) -> Option<Tick> {
        let mut later = None;
        self.update(uid, |memory| {
            let doubts = &mut memory.credential_mismatches;
            if doubts.next > now {
                later = Some(doubts.next);
                return;
            }
            doubts.next = now + REREAD_DELAYS[doubts.count.min(REREAD_DELAYS.len() - 1)];
            doubts.count += 1;
            memory.recheck = true;
        });
        later
    }

    /// Records that no replica finds another credential any more.
    pub(super) fn credential_matched(&self, uid: &str) {
        self.update(uid, |memory| memory.credential_mismatches.count = 0);
    }

    /// Forgets the object under a key. Returns the uids and account names it had.
    pub(super) fn forget(&self, key: &AccountKey) -> Vec<(String, String)> {
        let mut shelves = self.0.lock();
        let uids = shelves.uids.remove(key).unwrap_or_default();
        uids.into_iter()
            .filter_map(|uid| Some((uid.clone(), shelves.by_uid.remove(&uid)?.account_name)))
            .collect()
    }
}

/// Whether two verdicts differ in the credential or in its validity.
fn differ(before: &Result<CredentialFact, Failure>, now: &Result<CredentialFact, Failure>) -> bool {
    match (before, now) {
        (Ok(before), Ok(now)) => !now.is(before.version.as_deref()),
        (before, now) => before != now,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::account::KubesvcAccountSpec;
    use crate::account::spec::SecretKeyReference;

    #[test]
    fn a_row_is_said_once_of_each_version_of_an_object() {
        let mut account = KubesvcAccount::new("prod", KubesvcAccountSpec::default());
        account.metadata.uid = Some("uid-prod".to_owned());
        account.metadata.resource_version = Some("7".to_owned());
        let memories = Memories::default();
        memories.look(&account, 0);
        assert!(memories.row_is_current(&account) && !memories.row_is_current(&account));
        account.metadata.resource_version = Some("8".to_owned());
        assert!(memories.row_is_current(&account) && !memories.row_is_current(&account));
    }

    #[test]
    fn a_reading_of_sessions_counts_for_one_look() {
        let mut account = KubesvcAccount::new("prod", KubesvcAccountSpec::default());
        account.metadata.uid = Some("uid-prod".to_owned());
        let memories = Memories::default();
        assert!(!memories.look(&account, 0).sessions_are_read);
        memories.update("uid-prod", |memory| memory.sessions_are_read = true);
        assert!(memories.look(&account, 0).sessions_are_read);
        assert!(!memories.look(&account, 30).sessions_are_read, "an agent may have come to another replica");
    }

    #[test]
    fn a_mismatched_credential_is_read_again_at_growing_intervals() {
        let mut account = KubesvcAccount::new("prod", KubesvcAccountSpec::default());
        account.metadata.uid = Some("uid-prod".to_owned());
        let memories = Memories::default();
        memories.look(&account, 0);
        let reread: Vec<_> =
            (100..400).filter(|now| memories.credential_mismatched("uid-prod", *now).is_none()).collect();
        assert_eq!(reread, [100, 105, 115, 145, 205, 265, 325, 385]);
        assert!(memories.look(&account, 400).recheck);
        assert_eq!(memories.credential_mismatched("uid-prod", 400), Some(445));
        memories.credential_matched("uid-prod");
        assert_eq!(memories.credential_mismatched("uid-prod", 445), None);
        assert_eq!(memories.credential_mismatched("uid-prod", 446), Some(450), "it begins anew");
    }

    #[test]
    fn other_labels_of_a_secret_are_no_other_credential() {
        let mut account = KubesvcAccount::new("prod", KubesvcAccountSpec::default());
        account.metadata.uid = Some("uid-prod".to_owned());
        let (memories, version) = (Memories::default(), |number: u8| Some(format!("uid/{number}")));
        memories.look(&account, 0);
        memories.judged("uid-prod", Ok(CredentialFact::new(version(1))));
        let same_as = version(1).into_iter().collect();
        memories.judged("uid-prod", Ok(CredentialFact { version: version(2), same_as }));
        assert!(!memories.look(&account, 1).credential_changed);
        memories.judged("uid-prod", Ok(CredentialFact::new(version(3))));
        assert!(memories.look(&account, 2).credential_changed);
    }

    #[test]
    fn a_credential_from_a_secret_is_judged_once_by_each_leader() {
        let mut spec = KubesvcAccountSpec::default();
        spec.kubeconfig.secret_ref = Some(SecretKeyReference { name: "prod".to_owned(), key: None });
        let mut account = KubesvcAccount::new("prod", spec);
        account.metadata.uid = Some("uid-prod".to_owned());
        let memories = Memories::default();
        assert!(memories.look(&account, 0).recheck, "the Secret may have changed while nobody led");
        memories.judged("uid-prod", Ok(CredentialFact::new(None)));
        assert!(!memories.look(&account, 1).recheck);
        memories.recheck_credential("uid-prod");
        assert!(memories.look(&account, 2).recheck, "the Secret has changed");

        account.spec.kubeconfig.secret_ref = None;
        account.metadata.uid = Some("uid-other".to_owned());
        assert!(!memories.look(&account, 0).recheck, "there is no Secret to read");
    }
}
