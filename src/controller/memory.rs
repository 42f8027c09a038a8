//! What the leader remembers of an account beside its object: facts that may be lost at any time and are found again.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::account::failure::Failure;
use crate::account::lifecycle::{CredentialFact, Fact, Tick};
use crate::account::{KubesvcAccount, State};

/// What makes a state "the same" for the clock of retries.
type Stage = (State, i64, i32);

/// What is remembered of one account.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    /// The object's Spinnaker name, to wake a rival when it goes.
    pub(super) account_name: String,
    /// The stage last seen, and since when.
    stage: Option<Stage>,
    pub(super) since: Tick,
    /// The credential as last judged, for this generation of the spec.
    pub(super) credential: Fact<Result<CredentialFact, Failure>>,
    generation: i64,
    /// It is being awaited for more than a second.
    pub(super) credential_slow: bool,
    /// Read it again, though nothing of the object changed.
    pub(super) recheck: bool,
    /// It differs from the one that was judged before.
    pub(super) credential_changed: bool,
    judged: Option<Result<CredentialFact, Failure>>,
    /// The database refuses the row: the status goes on without it.
    pub(super) row_refused: bool,
    /// How many requests failed in a row.
    pub(super) errors: u32,
}

/// The memories of all accounts, by uid.
#[derive(Debug, Default)]
pub(super) struct Memories(Mutex<HashMap<String, Memory>>);

impl Memories {
    /// The memory of an account, brought up to the object as it is now.
    pub(super) fn look(&self, account: &KubesvcAccount, now: Tick) -> Memory {
        let status = account.status_or_default();
        let stage = (status.state(), status.epoch, status.failed_count);
        let mut memories = self.0.lock();
        let memory = memories.entry(account.uid().to_owned()).or_default();
        if memory.stage != Some(stage) {
            memory.stage = Some(stage);
            memory.since = now;
        }
        if memory.generation != account.generation() {
            memory.generation = account.generation();
            memory.credential = Fact::Unknown;
            account.account_name().clone_into(&mut memory.account_name);
        }
        memory.clone()
    }

    /// Changes the memory of an account, if there is one.
    pub(super) fn update(&self, uid: &str, change: impl FnOnce(&mut Memory)) {
        if let Some(memory) = self.0.lock().get_mut(uid) {
            change(memory);
        }
    }

    /// The credential was judged.
    pub(super) fn judged(&self, uid: &str, verdict: Result<CredentialFact, Failure>) {
        self.update(uid, |memory| {
            memory.credential_changed |= memory.judged.as_ref().is_some_and(|before| *before != verdict);
            memory.judged = Some(verdict.clone());
            memory.credential = Fact::Known(verdict);
            memory.credential_slow = false;
            memory.recheck = false;
        });
    }

    /// A status was written: what was judged for it is not judged for the next.
    pub(super) fn wrote_status(&self, uid: &str, now: Tick) {
        self.update(uid, |memory| {
            memory.stage = None;
            memory.since = now;
            memory.credential = Fact::Unknown;
            memory.credential_slow = false;
            memory.credential_changed = false;
            memory.errors = 0;
        });
    }

    /// The credential is to be read again.
    pub(super) fn recheck_credential(&self, uid: &str) {
        self.update(uid, |memory| memory.recheck = true);
    }

    /// The account is gone; the name it had.
    pub(super) fn forget(&self, uid: &str) -> Option<String> {
        self.0.lock().remove(uid).map(|memory| memory.account_name)
    }

    /// uids that are remembered and not in `live`.
    pub(super) fn not_in(&self, live: impl Fn(&str) -> bool) -> Vec<String> {
        self.0.lock().keys().filter(|uid| !live(uid)).cloned().collect()
    }
}
