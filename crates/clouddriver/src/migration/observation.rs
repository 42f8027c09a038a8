//! What is observed about a migration and its accounts before each decision.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use kubesvc_core::lifecycle::{Tick, displayed_state};
use kubesvc_core::{
    DesiredState, KubesvcAccount, KubesvcMigrationStatus, SOURCE_ANNOTATION, SOURCE_HASH_ANNOTATION, State,
    ZoneId,
};

use super::declined::DeclinedNames;
use super::marks::{MIGRATION_ANNOTATION, is_held, is_unchanged};
use super::plan::{Plan, PlannedAccount};
use super::rules::MigrationRules;
use super::selection::{MigrationSelection, SelectionError};
use crate::definition::file_on_clouddriver;

/// An account of kubesvc, as far as a migration looks at it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountFact {
    /// The state as people see it.
    pub state: State,
    /// The desired state.
    pub desired: DesiredState,
    /// Whether its deletion was requested.
    pub is_being_deleted: bool,
    /// Whether its migration keeps it while it is being deleted.
    pub is_held: bool,
    /// The migration that created it.
    pub migration: Option<String>,
    /// Whether its spec is as that migration last wrote it.
    pub is_unchanged: bool,
    /// The zone of its spec.
    pub zone: Option<ZoneId>,
    /// The source that it came from.
    pub source: Option<String>,
    /// The hash of the entry that it came from.
    pub hash: Option<String>,
    /// Whether its kubeconfig is a file that only Clouddriver has.
    pub needs_file: bool,
}

impl AccountFact {
    /// The fact of an object. `has_secret`: whether the Secret of the account exists.
    pub fn of(account: &KubesvcAccount, has_secret: bool) -> Self {
        let annotation = |key: &str| account.annotation(key).map(str::to_owned);
        Self {
            state: displayed_state(account),
            desired: account.desired(),
            is_being_deleted: account.is_being_deleted(),
            is_held: is_held(account),
            migration: annotation(MIGRATION_ANNOTATION),
            is_unchanged: is_unchanged(account),
            zone: account.spec.zone_id.clone(),
            source: annotation(SOURCE_ANNOTATION),
            hash: annotation(SOURCE_HASH_ANNOTATION),
            needs_file: !has_secret && file_on_clouddriver(account).is_some(),
        }
    }

    /// Where it stands, as an account of this migration.
    pub(super) fn standing(&self) -> Standing {
        if self.is_being_deleted {
            return Standing::Leaving;
        }
        match (self.desired, self.state) {
            (DesiredState::Active, State::Active) => Standing::Active,
            (DesiredState::Active, State::Failed | State::Orphaned) => Standing::Failed,
            (DesiredState::Active, _) => Standing::InFlight,
            (DesiredState::Inactive, _) if self.is_unchanged => Standing::Inactive,
            (DesiredState::Inactive, _) => Standing::LeftAlone,
        }
    }
}

/// Where an account of the migration stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// INACTIVE, as the migration wrote it: to be activated.
    Inactive,
    /// On its way to ACTIVE.
    InFlight,
    /// ACTIVE.
    Active,
    /// FAILED or ORPHANED.
    Failed,
    /// Made INACTIVE by somebody else.
    LeftAlone,
    /// Being deleted.
    Leaving,
}

/// Everything that [`decide`](super::decide) decides from, beside its progress.
#[derive(Clone)]
pub struct MigrationObservation<'a> {
    /// Name of the migration, as in the accounts' annotation.
    pub migration: &'a str,
    /// Generation of the spec.
    pub generation: i64,
    /// Value of the annotation that asks a migration to resume.
    pub retry: Option<&'a str>,
    /// Whether a roll-back may take back what the sources no longer have.
    pub force_rollback: bool,
    /// The rules of the spec.
    pub rules: &'a MigrationRules,
    /// The selection of the spec, or why it cannot be used.
    pub selection: Result<&'a MigrationSelection, &'a SelectionError>,
    /// What would become of the selected accounts; absent until the sources were read.
    pub plan: Option<&'a Plan>,
    /// The accounts of kubesvc by account name: at least those that the plan has, and those of this migration.
    pub accounts: &'a BTreeMap<String, AccountFact>,
    /// The declined accounts.
    pub declined: &'a DeclinedNames,
    /// The status as last written.
    pub status: Option<&'a KubesvcMigrationStatus>,
    /// Now.
    pub now: Tick,
    /// Now, to be stamped.
    pub time: &'a Time,
}

impl<'a> MigrationObservation<'a> {
    /// The accounts that this migration created.
    pub(super) fn own(&self) -> impl Iterator<Item = (&'a str, &'a AccountFact)> + use<'a> {
        let migration = self.migration;
        let own = move |fact: &AccountFact| fact.migration.as_deref() == Some(migration);
        self.accounts.iter().filter(move |(_, fact)| own(fact)).map(|(name, fact)| (name.as_str(), fact))
    }

    /// The account of this name, if this migration created it.
    pub(super) fn own_account(&self, name: &str) -> Option<&'a AccountFact> {
        self.accounts.get(name).filter(|fact| fact.migration.as_deref() == Some(self.migration))
    }

    /// Whether an account of this migration is still to be activated. It must be selected, by an entry that is there.
    pub(super) fn is_to_activate(&self, name: &str, plan: &Plan) -> bool {
        let is_planned = plan.accounts.get(name).is_some_and(PlannedAccount::is_account);
        // One that a leader created late, which had lost the lead, may be declined by now.
        let hash = plan.accounts.get(name).and_then(PlannedAccount::hash);
        let is_declined = hash.is_some_and(|hash| self.declined.has(name, hash))
            && !self.selection.is_ok_and(|selection| selection.names(name));
        let is_waiting =
            |fact: &AccountFact| fact.standing() == Standing::Inactive && !fact.needs_file && !is_declined;
        self.rules.activate && is_planned && self.own_account(name).is_some_and(is_waiting)
    }
}
