//! What the leader knows of the accounts registered in Clouddriver: published by the part that registers them, read by
//! the controller.

use std::collections::HashMap;

use parking_lot::Mutex;

use kubesvc_core::lifecycle::{Fact, Tick};
use kubesvc_core::registration::{
    AlsoCondition, ClouddriverFacts, RegistrationCondition, RegistrationPresence,
};

/// What is known of each account, by uid. Bounded by the number of accounts and rows.
#[derive(Debug)]
pub struct Registrations {
    removal_wait: Tick,
    known: Mutex<KnownRegistrations>,
}

#[derive(Debug, Default)]
struct KnownRegistrations {
    /// The leader has read the table of registered accounts.
    is_read: bool,
    accounts: HashMap<String, AccountRegistration>,
}

/// What is known of one account.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccountRegistration {
    /// What the condition `SpinnakerRegistered` shall say.
    pub condition: Fact<Option<RegistrationCondition>>,
    /// What the condition `ClouddriverAlso` shall say.
    pub also: Fact<Option<AlsoCondition>>,
    /// Whether Clouddriver may have the account.
    pub is_present: bool,
}

impl Registrations {
    /// Nothing is known. An account that goes waits for Clouddriver for `removal_wait` ticks at most.
    pub fn new(removal_wait: Tick) -> Self {
        Self { removal_wait, known: Mutex::default() }
    }

    /// What is known of an account; `leaving_since` is the tick since which it is to go, or now.
    pub fn of(&self, uid: &str, leaving_since: Tick) -> ClouddriverFacts {
        let known = self.known.lock();
        let account = known.accounts.get(uid);
        let presence = match account {
            _ if !known.is_read => RegistrationPresence::Unknown,
            Some(account) if account.is_present => RegistrationPresence::Present,
            _ => RegistrationPresence::Absent,
        };
        ClouddriverFacts {
            condition: account.map(|account| account.condition.clone()).unwrap_or_default(),
            also: account.map(|account| account.also.clone()).unwrap_or_default(),
            presence,
            leaves_until: leaving_since + self.removal_wait,
        }
    }

    /// The table was read: an account that nothing is published of is not in Clouddriver.
    pub fn table_is_read(&self) {
        self.known.lock().is_read = true;
    }

    /// Publishes what is known of an account. Returns whether that is new.
    pub fn publish(&self, uid: &str, registration: AccountRegistration) -> bool {
        let mut known = self.known.lock();
        let is_new = known.accounts.get(uid) != Some(&registration);
        if is_new {
            known.accounts.insert(uid.to_owned(), registration);
        }
        is_new
    }

    /// An account is gone.
    pub fn forget(&self, uid: &str) {
        self.known.lock().accounts.remove(uid);
    }

    /// Nothing is known any more: another replica leads.
    pub fn clear(&self) {
        *self.known.lock() = KnownRegistrations::default();
    }
}
