//! One name: decides what is next, does it, and publishes what is so.

use std::sync::Arc;

use jiff::Timestamp;
use tracing::{debug, info};

use super::LeaderRegistrations;
use crate::clouddriver::{AccountRegistration, StoredAccount};
use kubesvc_clouddriver::registration::{
    AccountCall, Attempts, BODY_VERSION, CallFailure, Eligibility, Mark, NameSituation, RegisteredDefinition,
    RegisteredRow, RegistrationStep, RowState, Shown, Tick, Wanted, also_condition, condition,
    differs_from_sent, eligibility, next_step,
};
use kubesvc_core::KubesvcAccount;
use kubesvc_core::lifecycle::Fact;
use kubesvc_core::registration::{AlsoCondition, RegistrationCondition};
use kubesvc_runtime::crash_points;
use kubesvc_store::{PushedRow, StoreError};

/// Maximum number of steps for a name before others get their turn.
const MAX_STEPS: usize = 8;
/// Interval, in ticks, between two reads of the namespaces that an agent found.
const FOUND_INTERVAL: Tick = 600;

/// The account that has a name, and what shall become of it.
struct Registrant {
    account: Arc<KubesvcAccount>,
    eligibility: Eligibility,
    definition: RegisteredDefinition,
    wanted: Wanted,
}

impl LeaderRegistrations<'_> {
    /// Does what is to be done for a name now.
    pub(super) async fn settle(&self, name: &str) -> Result<(), StoreError> {
        for _ in 0..MAX_STEPS {
            if !self.mandate.holds() {
                // Cut off or suspended: a leader that goes on continues in a moment.
                self.wake_at(name, self.ports.ticks.now() + 1);
                return Ok(());
            }
            if !self.policy.registers {
                self.publish_of(name, None);
                self.book.lock().tidy(name, true);
                return Ok(());
            }
            let account = self.named(name).await?;
            let now = self.ports.ticks.now();
            let step = {
                let book = self.book.lock();
                let attempts = book.attempts(name);
                next_step(&self.situation(name, account.as_ref(), &book, &attempts, now))
            };
            self.publish_of(name, account.as_ref());
            if !matches!(step, RegistrationStep::Wait(_)) {
                debug!(account = name, ?step, "registering in Clouddriver");
            }
            match step {
                RegistrationStep::Wait(tick) => {
                    if let Some(tick) = tick {
                        self.wake_at(name, tick);
                    }
                    self.book.lock().tidy(name, account.is_some());
                    return Ok(());
                }
                RegistrationStep::Write(row) => self.write_row(name, row).await?,
                RegistrationStep::Forget { is_foreign } => self.forget_row(name, is_foreign).await?,
                RegistrationStep::Conflict => {
                    self.update(name, |attempts| attempts.met_conflict(now, self.policy.times));
                }
                RegistrationStep::Look => self.look(name, account.as_ref()).await,
                RegistrationStep::AccountCall(call) => self.call(name, call, account.as_ref()).await?,
            }
        }
        self.names.wake(name.to_owned());
        Ok(())
    }

    fn situation<'s>(
        &self,
        name: &'s str,
        account: Option<&'s Registrant>,
        book: &'s super::book::Book,
        attempts: &'s Attempts,
        now: Tick,
    ) -> NameSituation<'s> {
        NameSituation {
            now,
            times: self.policy.times,
            force: self.policy.force,
            name,
            wanted: account.map_or(&Wanted::Absent, |account| &account.wanted),
            row: book.row(name),
            listing: &book.listing,
            attempts,
        }
    }

    /// The account that has the name among those that may be registered.
    async fn named(&self, name: &str) -> Result<Option<Registrant>, StoreError> {
        let precedence = self.ports.accounts.precedence();
        let account = self
            .ports
            .accounts
            .by_account_name(name)
            .into_iter()
            .filter(|account| {
                account.metadata.namespace.as_ref().is_some_and(|one| self.policy.namespaces.contains(one))
            })
            .min_by(|one, other| precedence.order(one, other));
        let Some(account) = account else { return Ok(None) };
        let found = match self.policy.fills_namespaces {
            true => self.found_namespaces(&account).await?,
            false => None,
        };
        let book = self.book.lock();
        let eligibility = eligibility(&account, book.older_namesake(&account));
        let uid = account.uid().to_owned();
        let of =
            |version| RegisteredDefinition::of(&account, &self.policy.definitions, found.as_deref(), version);
        // A row keeps the form that it was sent in until its account changes.
        let row = book.row(name).filter(|row| row.account_uid == uid);
        let kept = row
            .map(|row| (row.body_version, of(row.body_version)))
            .filter(|(_, kept)| row.is_some_and(|row| row.body_hash.as_ref() == Some(&kept.hash)));
        let (version, definition) = kept.unwrap_or_else(|| (BODY_VERSION, of(BODY_VERSION)));
        let wanted = match &eligibility {
            Eligibility::Registered => Wanted::Registered { uid, version, hash: definition.hash.clone() },
            Eligibility::Kept => Wanted::Kept { uid },
            Eligibility::Excluded | Eligibility::Unfit { .. } => Wanted::Absent,
        };
        drop(book);
        Ok(Some(Registrant { account, eligibility, definition, wanted }))
    }

    /// The namespaces that the account's agent found, read again at most every 10 minutes.
    async fn found_namespaces(&self, account: &KubesvcAccount) -> Result<Option<Vec<String>>, StoreError> {
        let now = self.ports.ticks.now();
        let (uid, since) = (account.uid(), now.saturating_sub(FOUND_INTERVAL));
        if let Some(found) = self.book.lock().found_namespaces(uid, since) {
            return Ok(found);
        }
        let found = self.ports.store.namespaces(account.account_name()).await?;
        self.book.lock().put_found_namespaces(uid, now, found.clone());
        Ok(found)
    }

    /// Publishes that Clouddriver may have the account of a row.
    pub(super) fn publish(&self, name: &str) {
        let row = self.book.lock().row(name).cloned();
        if let Some(row) = row {
            let also = self.ports.accounts.by_uid(&row.account_uid).map(|account| self.also(&account));
            let also = also.unwrap_or_default();
            self.publish_one(
                &row.account_uid,
                AccountRegistration { is_present: true, also, ..Default::default() },
            );
        }
    }

    /// Publishes what is known of all accounts of a name, and of the one whose row it has.
    fn publish_of(&self, name: &str, named: Option<&Registrant>) {
        let (row, has_left) = {
            let book = self.book.lock();
            (book.row(name).cloned(), book.attempts(name).has_left(name, &book.listing))
        };
        let has_row = |uid: &str| row.as_ref().is_some_and(|row| row.account_uid == uid);
        let accounts = self.ports.accounts.by_account_name(name);
        for account in &accounts {
            let uid = account.uid();
            let named = named.filter(|named| named.account.uid() == uid);
            let condition = named.map_or(Fact::Known(None), |named| self.condition(name, named));
            // Another account's row of the name is on its way out; what is said stays until then.
            let condition = if named.is_none() && has_row(uid) { Fact::Unknown } else { condition };
            let is_present = has_row(uid) && !has_left;
            let registration = AccountRegistration { condition, also: self.also(account), is_present };
            self.publish_one(uid, registration);
        }
        if row.is_some_and(|row| accounts.iter().all(|account| account.uid() != row.account_uid)) {
            self.publish(name);
        }
    }

    fn condition(&self, name: &str, named: &Registrant) -> Fact<Option<RegistrationCondition>> {
        let book = self.book.lock();
        let attempts = book.attempts(name);
        let situation = self.situation(name, Some(named), &book, &attempts, self.ports.ticks.now());
        condition(&named.account, &named.eligibility, &situation, book.clouddriver)
    }

    fn also(&self, account: &KubesvcAccount) -> Fact<Option<AlsoCondition>> {
        let book = self.book.lock();
        let row = book.row(account.account_name()).filter(|row| row.account_uid == account.uid());
        if row.is_some_and(|row| row.state != RowState::Added) {
            return Fact::Unknown;
        }
        let is_own = row.is_some();
        also_condition(account, Some(&book.listing), is_own)
    }

    fn publish_one(&self, uid: &str, registration: AccountRegistration) {
        if self.ports.registrations.publish(uid, registration) {
            self.ports.wakes.wake(uid.to_owned());
        }
    }

    /// Commits a row, and says that Clouddriver may have the account from now on.
    async fn write_row(&self, name: &str, row: RegisteredRow) -> Result<(), StoreError> {
        self.put_row(name, &row).await?;
        let now = self.ports.ticks.now();
        let before = self.book.lock().row(name).cloned();
        {
            let mut book = self.book.lock();
            book.update_attempts(name, |attempts| attempts.row_written(now, self.policy.times, &row));
            book.put_row(name, row.clone());
        }
        if let Some(before) = before.filter(|before| before.account_uid != row.account_uid) {
            self.release(&before.account_uid);
        }
        if row.state != RowState::Added {
            self.publish(name);
        }
        Ok(())
    }

    async fn put_row(&self, name: &str, row: &RegisteredRow) -> Result<(), StoreError> {
        let pushed = PushedRow {
            name: name.to_owned(),
            account_uid: row.account_uid.clone(),
            state: row.state.name().to_owned(),
            body_version: row.body_version,
            body_hash: row.body_hash.clone(),
            pushed_at: row.pushed_at,
        };
        let store = &self.ports.store;
        let writing =
            self.ports.projection.under_term(|term| store.put_pushed(term, std::slice::from_ref(&pushed)));
        crash_points::around(Some("pushed-row"), writing).await
    }

    async fn forget_row(&self, name: &str, is_foreign: bool) -> Result<(), StoreError> {
        let Some(row) = self.book.lock().row(name).cloned() else { return Ok(()) };
        let store = &self.ports.store;
        let deleting =
            self.ports.projection.under_term(|term| store.delete_pushed(term, name, &row.account_uid));
        crash_points::around(Some("pushed-row"), deleting).await?;
        let now = self.ports.ticks.now();
        {
            let mut book = self.book.lock();
            book.remove_row(name);
            book.update_attempts(name, |attempts| attempts.row_forgotten(now, self.policy.times, is_foreign));
        }
        info!(account = name, is_foreign, "not registered in Clouddriver any more");
        self.release(&row.account_uid);
        Ok(())
    }

    /// Clouddriver does not have this account: the controller need not wait for it.
    fn release(&self, uid: &str) {
        let account = self.ports.accounts.by_uid(uid);
        let also = account.as_ref().map(|account| self.also(account)).unwrap_or_default();
        self.publish_one(uid, AccountRegistration { condition: Fact::Known(None), also, is_present: false });
        if account.is_none() {
            self.ports.registrations.forget(uid);
        }
    }

    async fn look(&self, name: &str, account: Option<&Registrant>) {
        let stored = self.ports.clouddriver.stored(name).await;
        self.ports.metrics.called("look", stored.is_ok());
        let now = self.ports.ticks.now();
        match stored {
            Ok(definition) => {
                let shown = match definition {
                    None => Shown::Nothing,
                    Some(StoredAccount::Namesake) => Shown::Foreign,
                    Some(StoredAccount::Definition(definition)) => match Mark::of(&definition) {
                        Some(mark) if mark.installation == self.policy.definitions.installation => {
                            Shown::Own {
                                account_uid: mark.account_uid,
                                is_as_sent: account.is_some_and(|account| {
                                    !differs_from_sent(&account.definition, &definition)
                                }),
                            }
                        }
                        _ => Shown::Foreign,
                    },
                };
                let compared = account.map(|account| account.definition.hash.as_str());
                self.update(name, |attempts| attempts.looked(now, self.policy.times, shown, compared));
            }
            Err(failure) => self.failed(name, None, failure),
        }
    }

    async fn call(
        &self,
        name: &str,
        call: AccountCall,
        account: Option<&Registrant>,
    ) -> Result<(), StoreError> {
        let (kind, point) = match call {
            AccountCall::Create => ("create", "push-create"),
            AccountCall::Replace => ("replace", "push-replace"),
            AccountCall::Delete => ("delete", "push-delete"),
        };
        let empty = serde_json::Map::new();
        let definition = account.map_or(&empty, |account| &account.definition.fields);
        let calling = self.ports.clouddriver.change(call, name, definition);
        let outcome = crash_points::around(Some(point), calling).await;
        self.ports.metrics.called(kind, outcome.is_ok());
        let now = self.ports.ticks.now();
        if let Err(failure) = outcome {
            self.failed(name, Some(call), failure);
            return Ok(());
        }
        self.update(name, |attempts| attempts.succeeded(now, self.policy.times, call));
        let row = self.book.lock().row(name).cloned();
        if let Some(row) = row.filter(|_| call != AccountCall::Delete) {
            info!(account = name, call = kind, "registered in Clouddriver");
            self.write_row(
                name,
                RegisteredRow {
                    state: RowState::Added,
                    pushed_at: Some(Timestamp::now().as_millisecond()),
                    ..row
                },
            )
            .await?;
        }
        Ok(())
    }

    fn failed(&self, name: &str, call: Option<AccountCall>, failure: CallFailure) {
        debug!(account = name, ?call, why = failure.message, "a call to Clouddriver failed");
        let now = self.ports.ticks.now();
        self.update(name, |attempts| attempts.failed(now, call, failure));
    }

    fn update(&self, name: &str, update: impl FnOnce(&mut Attempts)) {
        self.book.lock().update_attempts(name, update);
    }

    fn wake_at(&self, name: &str, tick: Tick) {
        self.due.lock().entry(tick).or_default().insert(name.to_owned());
    }
}
