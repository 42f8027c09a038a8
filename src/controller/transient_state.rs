//! What the leader keeps of an account in memory beside its object: facts that may be lost at any time and are
//! determined again.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::informers::AccountKey;
use kubesvc_core::credential_expiry::CredentialExpiry;
use kubesvc_core::failure::Failure;
use kubesvc_core::lifecycle::{CredentialFact, Fact, Tick};
use kubesvc_core::secret_reference::is_read_by_operator;
use kubesvc_core::{AgentKey, GrantEpoch, KubesvcAccount, State};

/// Minimum delays, in ticks, before the credential is read again for an agent's replica, after each consecutive time.
/// The last one repeats.
const REREAD_DELAYS: [Tick; 4] = [5, 10, 30, 60];

/// First and maximum interval, in ticks, between two elections because the elected agent cannot read the cluster.
const FIRST_ELECTION_INTERVAL: Tick = 120;
const MAX_ELECTION_INTERVAL: Tick = 3600;

/// While this is unchanged, the account is in the same state for the retry clock.
type RetryStage = (State, GrantEpoch, i32);

/// The transient state of one account.
#[derive(Clone, Debug, Default)]
pub(super) struct TransientState {
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
    /// Number of times that the credential is to be read again although the object did not change, and how many of them
    /// the last verdict answers. A request that comes while the credential is being read is answered by the next read.
    rechecks: u64,
    rechecked: u64,
    /// The credential differs from the one judged before.
    pub(super) credential_changed: bool,
    /// The last verdict, whatever was written or changed since.
    judged: Option<Result<CredentialFact, Failure>>,
    credential_mismatches: CredentialMismatches,
    /// The sessions of the zone were read since the last look. Valid for one look: while a revoke waits, others may
    /// register.
    pub(super) sessions_are_read: bool,
    /// The database refuses the row: the account proceeds without it.
    pub(super) row_refused: bool,
    /// The resourceVersion for which the row was last projected.
    projected_version: Option<String>,
    /// The tick at which what is left out of the account's objects was last written.
    pub(super) left_out_written: Option<Tick>,
    /// Since when the account is to be INACTIVE or deleted.
    pub(super) leaving_since: Option<Tick>,
    /// The elections of the agent that streams the account's objects.
    pub(super) elections: ElectionTurns,
    /// Number of consecutive failed requests.
    pub(super) errors: u32,
}

impl TransientState {
    /// Whether to read the credential again although the object did not change.
    pub(super) fn recheck(&self) -> bool {
        self.rechecks != self.rechecked
    }

    /// When the credential that was last read expires; unknown if the last one could not be read.
    pub(super) fn credential_expiry(&self) -> Fact<Option<CredentialExpiry>> {
        match &self.judged {
            Some(Ok(credential)) => Fact::Known(credential.expiry),
            _ => Fact::Unknown,
        }
    }
}

/// How many times in a row the credential was read again because an agent's replica found another one, and the
/// earliest tick for the next time.
#[derive(Clone, Copy, Debug, Default)]
struct CredentialMismatches {
    count: usize,
    next: Tick,
}

/// The elections of this leader for one account.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ElectionTurns {
    /// Number of elections, none of them as late as twice [`MAX_ELECTION_INTERVAL`] after the one before.
    count: u32,
    last: Tick,
}

impl ElectionTurns {
    /// Records that an agent was elected.
    pub(super) fn record(&mut self, now: Tick) {
        if now.saturating_sub(self.last) >= 2 * MAX_ELECTION_INTERVAL {
            self.count = 0;
        }
        (self.count, self.last) = (self.count.saturating_add(1), now);
    }

    /// The earliest tick at which an agent that cannot read the cluster is replaced: at once after the first election,
    /// then at intervals that double.
    pub(super) fn unreadable_replaced_from(self) -> Tick {
        let delay = match self.count {
            0 | 1 => 0,
            count => FIRST_ELECTION_INTERVAL.saturating_mul(1 << (count - 2).min(16)),
        };
        self.last + delay.min(MAX_ELECTION_INTERVAL)
    }
}

/// The transient states of all accounts.
#[derive(Debug, Default)]
pub(super) struct TransientStates(Mutex<StatesByUid>);

#[derive(Debug, Default)]
struct StatesByUid {
    by_uid: HashMap<String, TransientState>,
    /// uids seen under a key; more than one while a name is reused.
    uids: HashMap<AccountKey, Vec<String>>,
}

impl TransientStates {
    /// Returns the transient state of an account, updated to its current object. `sessions_are_read` is returned only
    /// once.
    pub(super) fn observe(&self, account: &KubesvcAccount, now: Tick) -> TransientState {
        let status = account.status_or_default();
        let stage = (status.state(), status.epoch, status.failed_count);
        let mut states = self.0.lock();
        if !states.by_uid.contains_key(account.uid()) {
            states.uids.entry(AccountKey::of(account)).or_default().push(account.uid().to_owned());
        }
        let transient_state =
            states.by_uid.entry(account.uid().to_owned()).or_insert_with(|| TransientState {
                // Judge once even if the object did not change: the Secret may have changed while no replica led.
                rechecks: u64::from(is_read_by_operator(account.spec.agent_source())),
                account_name: account.account_name().to_owned(),
                ..TransientState::default()
            });
        if transient_state.stage != Some(stage) {
            transient_state.stage = Some(stage);
            transient_state.since = now;
            transient_state.sessions_are_read = false;
        }
        if transient_state.generation != account.generation() {
            transient_state.generation = account.generation();
            transient_state.credential = Fact::Unknown;
            transient_state.row_refused = false;
        }
        let seen = transient_state.clone();
        transient_state.sessions_are_read = false;
        seen
    }

    /// Changes the transient state of an account, if there is one.
    pub(super) fn update(&self, uid: &str, change: impl FnOnce(&mut TransientState)) {
        if let Some(transient_state) = self.0.lock().by_uid.get_mut(uid) {
            change(transient_state);
        }
    }

    /// Number of times that the credential of an account is to be read again: what a read that begins now answers.
    pub(super) fn rechecks(&self, uid: &str) -> u64 {
        self.0.lock().by_uid.get(uid).map(|transient_state| transient_state.rechecks).unwrap_or_default()
    }

    /// Records the verdict on a credential, which answers so many requests to read it.
    pub(super) fn judged(&self, uid: &str, rechecked: u64, verdict: Result<CredentialFact, Failure>) {
        self.update(uid, |transient_state| {
            transient_state.credential_changed |=
                transient_state.judged.as_ref().is_some_and(|before| differ(before, &verdict));
            transient_state.judged = Some(verdict.clone());
            transient_state.credential = Fact::Known(verdict);
            transient_state.credential_slow = false;
            transient_state.rechecked = rechecked;
        });
    }

    /// Records that a status was written: the verdict it was based on does not apply to the next.
    pub(super) fn wrote_status(&self, uid: &str, now: Tick) {
        self.update(uid, |transient_state| {
            transient_state.stage = None;
            transient_state.since = now;
            transient_state.credential = Fact::Unknown;
            transient_state.credential_slow = false;
            transient_state.credential_changed = false;
            transient_state.sessions_are_read = false;
            transient_state.errors = 0;
        });
    }

    /// Whether resolving the credential is known to take long.
    pub(super) fn awaits_credential(&self, uid: &str) -> bool {
        self.0.lock().by_uid.get(uid).is_some_and(|transient_state| transient_state.credential_slow)
    }

    /// Records that the row is projected for this version of the object. Returns `false` if it was already, so that
    /// nothing can have changed.
    pub(super) fn row_needs_projection(&self, account: &KubesvcAccount) -> bool {
        let version = &account.metadata.resource_version;
        let mut needs_projection = true;
        self.update(account.uid(), |transient_state| {
            needs_projection =
                transient_state.projected_version.is_none() || transient_state.projected_version != *version;
            transient_state.projected_version.clone_from(version);
        });
        needs_projection
    }

    /// Requests that the credential is read again.
    pub(super) fn recheck_credential(&self, uid: &str) {
        self.update(uid, |transient_state| transient_state.rechecks += 1);
    }

    /// The uids and account names that objects under a key have had.
    pub(super) fn known(&self, key: &AccountKey) -> Vec<(String, String)> {
        let states = self.0.lock();
        let uids = states.uids.get(key).into_iter().flatten();
        uids.filter_map(|uid| Some((uid.clone(), states.by_uid.get(uid)?.account_name.clone()))).collect()
    }

    /// Records that an agent's replica found another credential than the granted one. The credential is read again
    /// now or, if that was done recently, at the returned tick.
    pub(super) fn credential_mismatched(&self, uid: &str, now: Tick) -> Option<Tick> {
        let mut later = None;
        self.update(uid, |transient_state| {
            let mismatches = &mut transient_state.credential_mismatches;
            if mismatches.next > now {
                later = Some(mismatches.next);
                return;
            }
            mismatches.next = now + REREAD_DELAYS[mismatches.count.min(REREAD_DELAYS.len() - 1)];
            mismatches.count += 1;
            transient_state.rechecks += 1;
        });
        later
    }

    /// Records that no replica finds another credential any more.
    pub(super) fn credential_matched(&self, uid: &str) {
        self.update(uid, |transient_state| transient_state.credential_mismatches.count = 0);
    }

    /// Forgets the object under a key. Returns the uids and account names it had.
    pub(super) fn forget(&self, key: &AccountKey) -> Vec<(String, String)> {
        let mut states = self.0.lock();
        let uids = states.uids.remove(key).unwrap_or_default();
        uids.into_iter()
            .filter_map(|uid| Some((uid.clone(), states.by_uid.remove(&uid)?.account_name)))
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

/// Elections that are decided but not yet written, by agent. Accounts that become ACTIVE at the same time count them,
/// so that they do not all choose the same agent. Bounded by the accounts reconciled concurrently.
#[derive(Debug, Default)]
pub(super) struct Elections(Arc<Mutex<HashMap<AgentKey, usize>>>);

/// An election that is being written. Ends when dropped.
pub(super) struct PendingElection {
    elections: Arc<Mutex<HashMap<AgentKey, usize>>>,
    agent: AgentKey,
}

impl Elections {
    /// Counts an election of this agent until the returned value is dropped.
    pub(super) fn begin(&self, agent: AgentKey) -> PendingElection {
        *self.0.lock().entry(agent.clone()).or_default() += 1;
        PendingElection { elections: Arc::clone(&self.0), agent }
    }

    /// Number of elections of this agent that are being written.
    pub(super) fn of(&self, agent: &AgentKey) -> usize {
        self.0.lock().get(agent).copied().unwrap_or_default()
    }
}

impl Drop for PendingElection {
    fn drop(&mut self) {
        let mut elections = self.elections.lock();
        if let Some(count) = elections.get_mut(&self.agent) {
            *count -= 1;
            if *count == 0 {
                elections.remove(&self.agent);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kubesvc_core::KubesvcAccountSpec;
    use kubesvc_core::spec::SecretKeyReference;

    #[test]
    fn agents_that_cannot_read_the_cluster_take_turns_at_growing_intervals() {
        let (mut elections, mut now) = (ElectionTurns::default(), 1_000);
        elections.record(now);
        assert_eq!(elections.unreadable_replaced_from(), now, "the first one is replaced at once");
        let mut intervals = Vec::new();
        for _ in 0..7 {
            elections.record(now);
            intervals.push(elections.unreadable_replaced_from() - now);
            now = elections.unreadable_replaced_from();
        }
        assert_eq!(intervals, [120, 240, 480, 960, 1920, 3600, 3600]);
        elections.record(now + 7200);
        assert_eq!(elections.unreadable_replaced_from(), now + 7200, "it was well for hours");
    }

    #[test]
    fn row_is_projected_once_for_each_resource_version() {
        let mut account = KubesvcAccount::new("prod", KubesvcAccountSpec::default());
        account.metadata.uid = Some("uid-prod".to_owned());
        account.metadata.resource_version = Some("7".to_owned());
        let transient_states = TransientStates::default();
        transient_states.observe(&account, 0);
        assert!(
            transient_states.row_needs_projection(&account)
                && !transient_states.row_needs_projection(&account)
        );
        account.metadata.resource_version = Some("8".to_owned());
        assert!(
            transient_states.row_needs_projection(&account)
                && !transient_states.row_needs_projection(&account)
        );
    }

    #[test]
    fn read_sessions_count_for_one_reconcile() {
        let mut account = KubesvcAccount::new("prod", KubesvcAccountSpec::default());
        account.metadata.uid = Some("uid-prod".to_owned());
        let transient_states = TransientStates::default();
        assert!(!transient_states.observe(&account, 0).sessions_are_read);
        transient_states.update("uid-prod", |transient_state| transient_state.sessions_are_read = true);
        assert!(transient_states.observe(&account, 0).sessions_are_read);
        assert!(
            !transient_states.observe(&account, 30).sessions_are_read,
            "an agent may have come to another replica"
        );
    }

    #[test]
    fn a_mismatched_credential_is_read_again_at_growing_intervals() {
        let mut account = KubesvcAccount::new("prod", KubesvcAccountSpec::default());
        account.metadata.uid = Some("uid-prod".to_owned());
        let transient_states = TransientStates::default();
        transient_states.observe(&account, 0);
        let reread: Vec<_> = (100..400)
            .filter(|now| transient_states.credential_mismatched("uid-prod", *now).is_none())
            .collect();
        assert_eq!(reread, [100, 105, 115, 145, 205, 265, 325, 385]);
        assert!(transient_states.observe(&account, 400).recheck());
        assert_eq!(transient_states.credential_mismatched("uid-prod", 400), Some(445));
        transient_states.credential_matched("uid-prod");
        assert_eq!(transient_states.credential_mismatched("uid-prod", 445), None);
        assert_eq!(transient_states.credential_mismatched("uid-prod", 446), Some(450), "it begins anew");
    }

    #[test]
    fn other_labels_of_a_secret_are_no_other_credential() {
        let mut account = KubesvcAccount::new("prod", KubesvcAccountSpec::default());
        account.metadata.uid = Some("uid-prod".to_owned());
        let (transient_states, version) =
            (TransientStates::default(), |number: u8| Some(format!("uid/{number}")));
        transient_states.observe(&account, 0);
        transient_states.judged("uid-prod", 0, Ok(CredentialFact::new(version(1))));
        let same_as = version(1).into_iter().collect();
        transient_states.judged(
            "uid-prod",
            0,
            Ok(CredentialFact { version: version(2), same_as, expiry: None }),
        );
        assert!(!transient_states.observe(&account, 1).credential_changed);
        transient_states.judged("uid-prod", 0, Ok(CredentialFact::new(version(3))));
        assert!(transient_states.observe(&account, 2).credential_changed);
    }

    #[test]
    fn a_credential_from_a_secret_is_judged_once_by_each_leader() {
        let mut spec = KubesvcAccountSpec::default();
        spec.kubeconfig.secret_ref = Some(SecretKeyReference { name: "prod".to_owned(), key: None });
        let mut account = KubesvcAccount::new("prod", spec);
        account.metadata.uid = Some("uid-prod".to_owned());
        let transient_states = TransientStates::default();
        assert!(
            transient_states.observe(&account, 0).recheck(),
            "the Secret may have changed while nobody led"
        );
        let read = transient_states.rechecks("uid-prod");
        transient_states.judged("uid-prod", read, Ok(CredentialFact::new(None)));
        assert!(!transient_states.observe(&account, 1).recheck());
        transient_states.recheck_credential("uid-prod");
        assert!(transient_states.observe(&account, 2).recheck(), "the Secret has changed");
        let read = transient_states.rechecks("uid-prod");
        transient_states.recheck_credential("uid-prod");
        transient_states.judged("uid-prod", read, Ok(CredentialFact::new(None)));
        assert!(transient_states.observe(&account, 3).recheck(), "it changed again while it was read");
        let read = transient_states.rechecks("uid-prod");
        transient_states.judged("uid-prod", read, Ok(CredentialFact::new(None)));
        assert!(!transient_states.observe(&account, 4).recheck());

        account.spec.kubeconfig.secret_ref = None;
        account.metadata.uid = Some("uid-other".to_owned());
        assert!(!transient_states.observe(&account, 0).recheck(), "there is no Secret to read");
    }

    #[test]
    fn an_election_counts_while_it_is_written() {
        let elections = Elections::default();
        let agent = |id: &str, zone: &str| AgentKey::new(&id.into(), &zone.into());
        let (one, two) = (elections.begin(agent("a", "z")), elections.begin(agent("a", "z")));
        let of = |id, zone| elections.of(&agent(id, zone));
        assert_eq!((of("a", "z"), of("b", "z"), of("a", "another")), (2, 0, 0));
        drop(one);
        assert_eq!(of("a", "z"), 1);
        drop(two);
        assert!(elections.0.lock().is_empty());
    }
}
