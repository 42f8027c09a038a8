//! The next step for a name, decided from its row, what its account shall become, and what Clouddriver shows.

use super::{BODY_VERSION, LoadedNames, Tick};

/// First and longest delay, in ticks, before a failed call is made again.
const RETRY_DELAYS: [Tick; 2] = [5, 300];
/// Interval, in ticks, between two tries to remove a row.
const REMOVAL_INTERVAL: Tick = 60;
/// Longest time, in ticks, for which what Clouddriver showed of a row is acted on.
const SHOWN_VALID: Tick = 10;
/// Polls after which a name that is listed still, though its row is gone, is not kubesvc's: an account of a file has it.
const FOREIGN_NAME_POLLS: Tick = 10;

/// Intervals, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegistrationTimes {
    /// Between two reads of the list of accounts.
    pub poll: Tick,
    /// Between two reads of a registered row.
    pub resync: Tick,
}

/// State of a row in `kubesvc_pushed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowState {
    /// It is to be stored in Clouddriver, and may be.
    Adding,
    /// Clouddriver has stored it.
    Added,
    /// It is to be deleted in Clouddriver, and may be.
    Removing,
}

impl RowState {
    /// Its name in the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Adding => "ADDING",
            Self::Added => "ADDED",
            Self::Removing => "REMOVING",
        }
    }

    /// The state of this name; `None`: there is none.
    pub fn of(name: &str) -> Option<Self> {
        [Self::Adding, Self::Added, Self::Removing].into_iter().find(|one| one.name() == name)
    }
}

/// A row of `kubesvc_pushed`, but for its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisteredRow {
    /// uid of the account.
    pub account_uid: String,
    /// Its state.
    pub state: RowState,
    /// Form of the definition.
    pub body_version: i32,
    /// SHA-256 of the definition; `None`: it is not known which one Clouddriver has.
    pub body_hash: Option<String>,
    /// When Clouddriver last answered for it with success, in epoch milliseconds; `None`: it never has, as far as is known.
    pub pushed_at: Option<i64>,
}

/// What shall become of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// It is registered for this account with this definition.
    Registered {
        /// uid of the account.
        uid: String,
        /// Form of the definition.
        version: i32,
        /// SHA-256 of the definition.
        hash: String,
    },
    /// What is registered for this account stays as it is.
    Kept {
        /// uid of the account.
        uid: String,
    },
    /// It is not registered.
    Absent,
}

impl Wanted {
    fn uid(&self) -> Option<&str> {
        match self {
            Self::Registered { uid, .. } | Self::Kept { uid } => Some(uid),
            Self::Absent => None,
        }
    }
}

/// What Clouddriver shows of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shown {
    /// No row of this name, or none that may be seen.
    Nothing,
    /// A row that this installation registered.
    Own {
        /// uid of the account in its mark.
        account_uid: String,
        /// Whether it has every field as it is to be sent now.
        is_as_sent: bool,
    },
    /// A row of somebody else.
    Foreign,
}

/// A call that changes Clouddriver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccountCall {
    /// `POST /credentials`, which overwrites nothing.
    Create,
    /// `PUT /credentials`, which overwrites.
    Replace,
    /// `DELETE /credentials/NAME`.
    Delete,
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallFailure {
    /// The kind of failure.
    pub kind: FailureKind,
    /// A sentence for people, without secrets.
    pub message: String,
}

/// The kind of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// 400.
    Rejected,
    /// 401 or 403.
    Forbidden,
    /// Clouddriver stores no accounts: `account.storage` is off.
    StorageOff,
    /// No answer, or another one that says nothing of the account.
    Unreachable,
}

/// What this leader remembers of a name.
#[derive(Clone, Debug, Default)]
pub struct Attempts {
    shown: Option<(Tick, Shown)>,
    /// Hash of the definition that what was shown was compared with.
    compared: Option<String>,
    /// Since when Clouddriver has stored the row, as far as this leader knows.
    stored_since: Option<Tick>,
    /// Since when Clouddriver has deleted the row.
    removed_since: Option<Tick>,
    /// Since when Clouddriver has shown no row of the name.
    hidden_since: Option<Tick>,
    /// The outcome of the last call is not known.
    is_unresolved: bool,
    failure: Option<CallFailure>,
    failures: u32,
    not_before: Tick,
    next_check: Tick,
    /// A row of somebody else, or an account of a file, has the name.
    is_in_conflict: bool,
    has_drifted: bool,
}

impl Attempts {
    /// What Clouddriver showed of the row, compared with the definition that was to be sent then.
    pub fn looked(&mut self, now: Tick, times: RegistrationTimes, shown: Shown, compared: Option<&str>) {
        if !self.is_unresolved {
            (self.failure, self.failures, self.not_before) = (None, 0, 0);
        }
        self.is_unresolved = false;
        self.next_check = now + times.resync;
        self.has_drifted = matches!(shown, Shown::Own { is_as_sent: false, .. });
        match shown {
            Shown::Nothing => drop(self.hidden_since.get_or_insert(now)),
            Shown::Own { .. } | Shown::Foreign => (self.hidden_since, self.removed_since) = (None, None),
        }
        self.shown = Some((now, shown));
        self.compared = compared.map(str::to_owned);
    }

    /// A call succeeded.
    pub fn succeeded(&mut self, now: Tick, times: RegistrationTimes, call: AccountCall) {
        *self = Self { next_check: now + times.resync, ..Self::default() };
        match call {
            AccountCall::Create | AccountCall::Replace => self.stored_since = Some(now),
            AccountCall::Delete => self.removed_since = Some(now),
        }
    }

    /// A call or a look failed.
    pub fn failed(&mut self, now: Tick, call: Option<AccountCall>, failure: CallFailure) {
        let delay = match call {
            Some(AccountCall::Delete) => REMOVAL_INTERVAL,
            _ => (RETRY_DELAYS[0] << self.failures.min(6)).min(RETRY_DELAYS[1]),
        };
        // What it answered is not what became of it: the name is looked at before anything else.
        self.is_unresolved = call.is_some();
        self.shown = None;
        self.failure = Some(failure);
        self.failures = self.failures.saturating_add(1);
        self.not_before = now + delay;
    }

    /// The row is as it was written now: what was shown for the one before does not count.
    pub fn row_written(&mut self, now: Tick, times: RegistrationTimes, row: &RegisteredRow) {
        match row.state {
            RowState::Added => {
                *self = Self { next_check: now + times.resync, stored_since: Some(now), ..Self::default() };
            }
            RowState::Adding | RowState::Removing => {
                *self = Self {
                    shown: self.shown.take(),
                    compared: self.compared.take(),
                    is_unresolved: self.is_unresolved,
                    ..Self::default()
                };
            }
        }
    }

    /// The row is gone. `is_foreign`: somebody else has the name.
    pub fn row_forgotten(&mut self, now: Tick, times: RegistrationTimes, is_foreign: bool) {
        *self = Self { is_in_conflict: is_foreign, next_check: now + times.resync, ..Self::default() };
    }

    /// Somebody else has the name.
    pub fn met_conflict(&mut self, now: Tick, times: RegistrationTimes) {
        self.row_forgotten(now, times, true);
    }

    /// Why the last call failed.
    pub(super) fn failure(&self) -> Option<&CallFailure> {
        self.failure.as_ref()
    }

    /// Whether a call failed, and what became of it is not known yet.
    pub(super) fn is_unresolved(&self) -> bool {
        self.is_unresolved
    }

    /// Whether Clouddriver showed no row of the name when it was last looked at.
    pub(super) fn is_hidden(&self) -> bool {
        self.hidden_since.is_some()
    }

    /// Whether Clouddriver has deleted the row, and a list since then lacks the name.
    pub fn has_left(&self, name: &str, listing: &LoadedNames) -> bool {
        self.removed_since.is_some_and(|since| listing.newest_lacks_since(name, since))
    }

    pub(super) fn is_in_conflict(&self) -> bool {
        self.is_in_conflict
    }

    pub(super) fn has_drifted(&self) -> bool {
        self.has_drifted
    }

    /// Since when Clouddriver has stored the row, as far as this leader knows.
    pub fn stored_since(&self) -> Option<Tick> {
        self.stored_since
    }

    /// Begins to count, for a row that an earlier leader stored.
    pub fn seen_stored(&mut self, now: Tick) {
        self.stored_since.get_or_insert(now);
    }

    #[cfg(test)]
    pub(super) fn next_check_for_tests(&self) -> Tick {
        self.next_check
    }

    /// Spreads the first read of a row that an earlier leader stored.
    pub fn check_at(&mut self, tick: Tick) {
        self.next_check = tick;
    }
}

/// Everything that a step is decided from.
#[derive(Clone, Debug)]
pub struct NameSituation<'a> {
    /// Now.
    pub now: Tick,
    /// Intervals.
    pub times: RegistrationTimes,
    /// Whether a row that somebody changed is written again.
    pub force: bool,
    /// Name of the account in Clouddriver.
    pub name: &'a str,
    /// What shall become of it.
    pub wanted: &'a Wanted,
    /// Its row.
    pub row: Option<&'a RegisteredRow>,
    /// The names that Clouddriver has loaded.
    pub listing: &'a LoadedNames,
    /// What this leader remembers of it.
    pub attempts: &'a Attempts,
}

/// The one thing to do now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegistrationStep {
    /// Commit this row.
    Write(RegisteredRow),
    /// Delete the row. `is_foreign`: somebody else has the name.
    Forget {
        /// Whether somebody else has the name.
        is_foreign: bool,
    },
    /// Somebody else has the name, and there is no row.
    Conflict,
    /// Read the row in Clouddriver.
    Look,
    /// Make this call.
    AccountCall(AccountCall),
    /// Nothing, until something changes or this tick comes.
    Wait(Option<Tick>),
}

/// Decides. The same situation gives the same step.
pub fn next_step(situation: &NameSituation<'_>) -> RegistrationStep {
    let NameSituation { now, attempts, listing, .. } = *situation;
    // A list that was read wakes all names that wait for it.
    if !listing.is_current() {
        return RegistrationStep::Wait(None);
    }
    if attempts.is_unresolved && attempts.shown.is_none() {
        return RegistrationStep::Look;
    }
    // What is wanted now does not wait for a call that failed for something else.
    if let Some(row) = situation.row.filter(|row| row.state != RowState::Removing) {
        if situation.wanted.uid() != Some(row.account_uid.as_str()) {
            return RegistrationStep::Write(RegisteredRow { state: RowState::Removing, ..row.clone() });
        }
        if let (Wanted::Registered { version, hash, .. }, RowState::Adding) = (situation.wanted, row.state)
            && (row.body_hash.as_ref() != Some(hash) || row.body_version != *version)
        {
            let (body_version, body_hash) = (*version, Some(hash.clone()));
            return RegistrationStep::Write(RegisteredRow { body_version, body_hash, ..row.clone() });
        }
    }
    if now < attempts.not_before {
        return RegistrationStep::Wait(Some(attempts.not_before));
    }
    match (situation.row, situation.wanted) {
        (None, _) => without_row(situation),
        (Some(row), _) if row.state == RowState::Removing => removing(situation, row),
        (Some(row), Wanted::Registered { .. }) if row.state == RowState::Adding => adding(situation, row),
        (Some(row), Wanted::Registered { version, hash, .. }) => added(situation, row, *version, hash),
        (Some(_), Wanted::Kept { .. } | Wanted::Absent) => RegistrationStep::Wait(None),
    }
}

impl NameSituation<'_> {
    /// What Clouddriver showed, if that is not old and was compared with the definition of now.
    fn shown(&self) -> Option<&Shown> {
        let (at, shown) = self.attempts.shown.as_ref()?;
        let is_compared = match self.wanted {
            Wanted::Registered { hash, .. } => self.attempts.compared.as_ref() == Some(hash),
            Wanted::Kept { .. } | Wanted::Absent => true,
        };
        (is_compared && self.now <= at + SHOWN_VALID).then_some(shown)
    }

    fn check_later(&self) -> RegistrationStep {
        RegistrationStep::Wait(Some(self.attempts.next_check))
    }
}

/// A name without a row: it is registered once two lists lack it, so that no account of a Clouddriver that is starting is
/// shadowed. One that the list has may be kubesvc's own, whose row was lost.
fn without_row(situation: &NameSituation<'_>) -> RegistrationStep {
    let NameSituation { name, listing, attempts, now, .. } = *situation;
    let Wanted::Registered { uid, version, hash } = situation.wanted else {
        return unwanted_row(situation);
    };
    let row = |account_uid: &str, state, body_hash: Option<&String>| RegisteredRow {
        account_uid: account_uid.to_owned(),
        state,
        body_version: *version,
        body_hash: body_hash.cloned(),
        pushed_at: None,
    };
    if listing.lacks(name) && !attempts.is_in_conflict {
        return RegistrationStep::Write(row(uid, RowState::Adding, Some(hash)));
    }
    if !listing.has(name) && !attempts.is_in_conflict {
        return RegistrationStep::Wait(None);
    }
    if attempts.is_in_conflict && now < attempts.next_check && situation.shown().is_none() {
        return situation.check_later();
    }
    match situation.shown() {
        None => RegistrationStep::Look,
        Some(Shown::Own { account_uid, is_as_sent }) if account_uid == uid => {
            RegistrationStep::Write(row(uid, RowState::Added, is_as_sent.then_some(hash)))
        }
        Some(Shown::Own { account_uid, .. }) => {
            RegistrationStep::Write(row(account_uid, RowState::Removing, None))
        }
        Some(Shown::Nothing) if listing.lacks(name) => {
            RegistrationStep::Write(row(uid, RowState::Adding, Some(hash)))
        }
        Some(Shown::Nothing | Shown::Foreign) => RegistrationStep::Conflict,
    }
}

/// A name that no account wants, and that has just appeared: a leader that was suspended may have stored the row only now,
/// when its account had gone.
fn unwanted_row(situation: &NameSituation<'_>) -> RegistrationStep {
    if *situation.wanted != Wanted::Absent || !situation.listing.has_appeared(situation.name) {
        return RegistrationStep::Wait(None);
    }
    match situation.shown() {
        None => RegistrationStep::Look,
        Some(Shown::Own { account_uid, .. }) => RegistrationStep::Write(RegisteredRow {
            account_uid: account_uid.clone(),
            state: RowState::Removing,
            body_version: BODY_VERSION,
            body_hash: None,
            pushed_at: None,
        }),
        Some(Shown::Nothing | Shown::Foreign) => RegistrationStep::Wait(None),
    }
}

/// A row that is to be stored: the first time by a call that overwrites nothing.
fn adding(situation: &NameSituation<'_>, row: &RegisteredRow) -> RegistrationStep {
    let NameSituation { name, listing, attempts, .. } = *situation;
    let may_be_there = row.pushed_at.is_some() || listing.has(name) || attempts.failure.is_some();
    if !may_be_there {
        // Another list may have had it since the row was written.
        return if listing.lacks(name) {
            RegistrationStep::AccountCall(AccountCall::Create)
        } else {
            RegistrationStep::Wait(None)
        };
    }
    match situation.shown() {
        None => RegistrationStep::Look,
        Some(Shown::Own { account_uid, is_as_sent: true }) if *account_uid == row.account_uid => {
            RegistrationStep::Write(RegisteredRow { state: RowState::Added, ..row.clone() })
        }
        Some(Shown::Own { account_uid, .. }) if *account_uid == row.account_uid => {
            RegistrationStep::AccountCall(AccountCall::Replace)
        }
        Some(Shown::Own { account_uid, .. }) => RegistrationStep::Write(RegisteredRow {
            account_uid: account_uid.clone(),
            state: RowState::Removing,
            ..row.clone()
        }),
        Some(Shown::Foreign) => RegistrationStep::Forget { is_foreign: true },
        // It was stored, and is not shown: that is no reason to store it again.
        Some(Shown::Nothing) if row.pushed_at.is_some() => situation.check_later(),
        Some(Shown::Nothing) if listing.has(name) => RegistrationStep::Forget { is_foreign: true },
        Some(Shown::Nothing) if listing.lacks(name) => RegistrationStep::AccountCall(AccountCall::Create),
        Some(Shown::Nothing) => RegistrationStep::Wait(None),
    }
}

/// A row that is stored: it is written again when its definition is another one, and looked at from time to time.
fn added(situation: &NameSituation<'_>, row: &RegisteredRow, version: i32, hash: &str) -> RegistrationStep {
    let is_due = situation.now >= situation.attempts.next_check;
    let is_changed = row.body_hash.as_deref() != Some(hash);
    if !is_due && !is_changed {
        return situation.check_later();
    }
    let written = |state| {
        RegistrationStep::Write(RegisteredRow {
            state,
            body_version: version,
            body_hash: Some(hash.to_owned()),
            ..row.clone()
        })
    };
    match situation.shown() {
        None => RegistrationStep::Look,
        Some(Shown::Own { account_uid, .. }) if *account_uid != row.account_uid => {
            RegistrationStep::Forget { is_foreign: true }
        }
        Some(Shown::Own { is_as_sent, .. }) => match (is_changed, is_as_sent) {
            (true, true) => written(RowState::Added),
            (true, false) => written(RowState::Adding),
            (false, false) if situation.force => written(RowState::Adding),
            (false, _) => situation.check_later(),
        },
        Some(Shown::Foreign) => RegistrationStep::Forget { is_foreign: true },
        Some(Shown::Nothing) => situation.check_later(),
    }
}

/// A row that is to be deleted: only if it is the one of this account. It is forgotten once two lists lack the name since it
/// was deleted, or since no row was shown. A row that is not shown may be hidden, so that one that is listed stays.
fn removing(situation: &NameSituation<'_>, row: &RegisteredRow) -> RegistrationStep {
    let NameSituation { name, listing, attempts, now, times, .. } = *situation;
    let gone_since = attempts.removed_since.or(attempts.hidden_since);
    if gone_since.is_some_and(|since| listing.lacks_since(name, since)) {
        return RegistrationStep::Forget { is_foreign: false };
    }
    // The name may be listed still for an account of a file, which the row has hidden.
    let given_up_at = attempts.removed_since.map(|since| since + FOREIGN_NAME_POLLS * times.poll);
    if let Some(tick) = given_up_at.filter(|tick| now < *tick) {
        return RegistrationStep::Wait(Some(tick));
    }
    match situation.shown() {
        None => match attempts.hidden_since.zip(attempts.shown.as_ref()) {
            Some((_, (at, _))) if now < at + REMOVAL_INTERVAL && given_up_at.is_none() => {
                RegistrationStep::Wait(Some(at + REMOVAL_INTERVAL))
            }
            _ => RegistrationStep::Look,
        },
        Some(Shown::Own { account_uid, .. }) if *account_uid == row.account_uid => {
            RegistrationStep::AccountCall(AccountCall::Delete)
        }
        Some(Shown::Own { .. } | Shown::Foreign) => RegistrationStep::Forget { is_foreign: true },
        Some(Shown::Nothing) if given_up_at.is_some() => RegistrationStep::Forget { is_foreign: false },
        Some(Shown::Nothing) => RegistrationStep::Wait(Some(now + REMOVAL_INTERVAL)),
    }
}
