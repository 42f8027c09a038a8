//! What the leader knows of all names: their rows, what it tried, the accounts that want them, and Clouddriver's lists.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use tracing::warn;

use crate::informers::AccountKey;
use kubesvc_clouddriver::registration::{
    Attempts, ClouddriverSituation, LoadedNames, RegisteredRow, RegistrationTimes, RowState, Tick,
    folded_name,
};
use kubesvc_core::{DesiredState, KubesvcAccount};
use kubesvc_store::PushedRow;

/// See the module. Bounded by the number of accounts and rows.
#[derive(Debug, Default)]
pub(super) struct Book {
    rows: HashMap<String, RegisteredRow>,
    attempts: HashMap<String, Attempts>,
    accounts: HashMap<AccountKey, NotedAccount>,
    /// Accounts by the form of their name without case and accents, oldest first.
    folded: HashMap<String, BTreeMap<NameAge, String>>,
    /// Namespaces that agents found, by uid of the account, and when they were read.
    found: HashMap<String, (Tick, Option<Vec<String>>)>,
    /// Names of accounts that were registered and loaded when the last list was read.
    settled: HashSet<String>,
    /// Clouddriver's lists.
    pub(super) listing: LoadedNames,
    /// What is so of Clouddriver as a whole.
    pub(super) clouddriver: ClouddriverSituation,
}

/// Time of creation in seconds, and uid.
type NameAge = (i64, String);

/// An account as it was last noted.
#[derive(Debug)]
struct NotedAccount {
    uid: String,
    name: String,
    /// Form of the name and age, if it competes for a name.
    claim: Option<(String, NameAge)>,
}

/// What follows from a changed account.
#[derive(Debug, Default)]
pub(super) struct Noted {
    /// Names to look at.
    pub(super) names: BTreeSet<String>,
    /// uid of an account that is gone.
    pub(super) gone: Option<String>,
}

impl Book {
    /// Takes the rows of the table. Their first comparisons are spread over the interval.
    pub(super) fn load(&mut self, rows: Vec<PushedRow>, now: Tick, times: RegistrationTimes) {
        let count = Tick::try_from(rows.len()).unwrap_or(Tick::MAX).max(1);
        for (at, row) in (0..).zip(rows) {
            let state = RowState::of(&row.state).unwrap_or_else(|| {
                warn!(
                    name = row.name,
                    state = row.state,
                    "a row of kubesvc_pushed has no such state; read as ADDING"
                );
                RowState::Adding
            });
            let mut attempts = Attempts::default();
            attempts.check_at(now + times.resync * at / count);
            if state == RowState::Added {
                attempts.seen_stored(now);
            }
            self.attempts.insert(row.name.clone(), attempts);
            let registered = RegisteredRow {
                account_uid: row.account_uid,
                state,
                body_version: row.body_version,
                body_hash: row.body_hash,
                pushed_at: row.pushed_at,
            };
            self.rows.insert(row.name, registered);
        }
    }

    /// Notes an account as it is now; `None`: it is gone. One that may not be registered competes for no name.
    pub(super) fn note(
        &mut self,
        key: &AccountKey,
        account: Option<&KubesvcAccount>,
        may_register: bool,
    ) -> Noted {
        let mut noted = Noted::default();
        if let Some(before) = self.accounts.remove(key) {
            if let Some((form, age)) = &before.claim {
                self.withdraw(form, age, &mut noted);
            }
            noted.names.insert(before.name);
            let is_gone = account.is_none_or(|account| account.uid() != before.uid);
            if is_gone {
                self.found.remove(&before.uid);
            }
            noted.gone = is_gone.then_some(before.uid);
        }
        if let Some(account) = account {
            let name = account.account_name().to_owned();
            let claim = (may_register && competes(account)).then(|| (folded_name(&name), age(account)));
            if let Some((form, age)) = &claim {
                let namesakes = self.folded.entry(form.clone()).or_default();
                namesakes.insert(age.clone(), name.clone());
                noted.names.extend(namesakes.values().cloned());
            }
            noted.names.insert(name.clone());
            self.accounts.insert(key.clone(), NotedAccount { uid: account.uid().to_owned(), name, claim });
        }
        noted
    }

    fn withdraw(&mut self, form: &str, age: &NameAge, noted: &mut Noted) {
        let Some(namesakes) = self.folded.get_mut(form) else { return };
        namesakes.remove(age);
        noted.names.extend(namesakes.values().cloned());
        if namesakes.is_empty() {
            self.folded.remove(form);
        }
    }

    /// The name of an older account that differs only in case or accents.
    pub(super) fn older_namesake(&self, account: &KubesvcAccount) -> Option<&str> {
        let name = account.account_name();
        let namesakes = self.folded.get(&folded_name(name))?;
        let older = namesakes.range(..age(account)).map(|(_, name)| name.as_str());
        older.into_iter().find(|older| *older != name)
    }

    /// Names for which a list that was just read may mean something: those that it has and the one before lacks, and all with
    /// an account or a row but those that the two lists before had, and that were registered before both.
    pub(super) fn names_to_settle(&mut self) -> HashSet<String> {
        let is_settled = |name: &String| {
            let row = self.rows.get(name).is_some_and(|row| row.state == RowState::Added);
            let stored_since = self.attempts.get(name).and_then(Attempts::stored_since);
            row && self.listing.has(name)
                && stored_since.is_some_and(|since| self.listing.is_read_twice_since(since))
        };
        let mut names = self.names();
        let settled: HashSet<String> = names.iter().filter(|name| is_settled(name)).cloned().collect();
        names.retain(|name| !(settled.contains(name) && self.settled.contains(name)));
        self.settled = settled;
        names.extend(self.listing.appeared().cloned());
        names
    }

    /// All names that have an account or a row.
    pub(super) fn names(&self) -> HashSet<String> {
        self.rows.keys().cloned().chain(self.accounts.values().map(|account| account.name.clone())).collect()
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = (&String, &RegisteredRow)> {
        self.rows.iter()
    }

    pub(super) fn row(&self, name: &str) -> Option<&RegisteredRow> {
        self.rows.get(name)
    }

    pub(super) fn put_row(&mut self, name: &str, row: RegisteredRow) {
        self.rows.insert(name.to_owned(), row);
    }

    pub(super) fn remove_row(&mut self, name: &str) {
        self.rows.remove(name);
    }

    pub(super) fn attempts(&self, name: &str) -> Attempts {
        self.attempts.get(name).cloned().unwrap_or_default()
    }

    pub(super) fn update_attempts(&mut self, name: &str, update: impl FnOnce(&mut Attempts)) {
        update(self.attempts.entry(name.to_owned()).or_default());
    }

    /// Forgets what was tried for a name that has neither an account nor a row.
    pub(super) fn tidy(&mut self, name: &str, has_account: bool) {
        if !has_account && !self.rows.contains_key(name) {
            self.attempts.remove(name);
        }
    }

    /// The namespaces that the agent of an account found, if they were read since a tick.
    pub(super) fn found_namespaces(&self, uid: &str, since: Tick) -> Option<Option<Vec<String>>> {
        let (at, found) = self.found.get(uid)?;
        (*at >= since).then(|| found.clone())
    }

    pub(super) fn put_found_namespaces(&mut self, uid: &str, now: Tick, found: Option<Vec<String>>) {
        self.found.insert(uid.to_owned(), (now, found));
    }

    /// Counts the registered accounts that Clouddriver has had time to load, and those that it has.
    pub(super) fn count_loaded(&mut self) {
        let mut whole = ClouddriverSituation::default();
        for (name, _) in self.rows.iter().filter(|(_, row)| row.state == RowState::Added) {
            let is_old = self
                .attempts
                .get(name)
                .and_then(Attempts::stored_since)
                .is_some_and(|since| self.listing.is_read_twice_since(since));
            if is_old {
                whole.stored += 1;
                whole.loaded += usize::from(self.listing.had_lately(name));
            }
        }
        self.clouddriver = whole;
    }
}

/// Whether an account has a claim to a name in Clouddriver.
fn competes(account: &KubesvcAccount) -> bool {
    let registers = account.spec.spinnaker.as_ref().and_then(|one| one.register).unwrap_or(true);
    registers && !account.is_being_deleted() && account.desired() == DesiredState::Active
}

fn age(account: &KubesvcAccount) -> NameAge {
    let created = account.metadata.creation_timestamp.as_ref().map_or(i64::MAX, |time| time.0.as_second());
    (created, account.uid().to_owned())
}
