//! What a migration remembers between two decisions, in memory alone. A new leader restores what matters from the objects
//! and the last status.

use std::collections::{BTreeMap, BTreeSet};

use kubesvc_core::State;
use kubesvc_core::lifecycle::Tick;
use kubesvc_core::migration::MigrationPhase;
use kubesvc_core::object_names::digest;

use super::observation::{AccountFact, MigrationObservation, Standing};
use super::plan::{Plan, PlannedAccount};

/// Why a migration pauses by itself, until a person resumes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PauseReason {
    /// More accounts failed than `maxFailed` admits.
    TooManyFailed,
    /// Over 10 % of a source was removed at once.
    MassRemoval,
    /// No further account can be declined.
    DeclinedFull,
}

impl PauseReason {
    const ALL: [Self; 3] = [Self::TooManyFailed, Self::MassRemoval, Self::DeclinedFull];

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::TooManyFailed => "TooManyFailed",
            Self::MassRemoval => "MassRemoval",
            Self::DeclinedFull => "DeclinedFull",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pause {
    pub(super) reason: PauseReason,
    pub(super) message: String,
    /// Generation of the spec when it paused. Another one resumes it.
    pub(super) generation: i64,
}

/// Accounts that are migrated together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Wave {
    pub(super) members: BTreeSet<String>,
    /// Those that were to be created in it.
    pub(super) created: BTreeSet<String>,
    pub(super) began: Tick,
    pub(super) soak_until: Option<Tick>,
}

/// What a migration remembers between two decisions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MigrationProgress {
    is_restored: bool,
    pub(super) wave: Option<Wave>,
    pub(super) wave_number: usize,
    /// Accounts that failed in their wave and have not become ACTIVE since.
    pub(super) failed: BTreeSet<String>,
    /// Those with which a person resumed the migration.
    pub(super) accepted_failures: BTreeSet<String>,
    /// Accounts whose last write was refused, with the hash of the entry and the message.
    pub(super) refused_writes: BTreeMap<String, (Option<String>, String)>,
    /// Generation of the spec at the last decision.
    generation: Option<i64>,
    pub(super) pause: Option<Pause>,
    pub(super) retry_handled: Option<String>,
    /// Accounts that the sources no longer have, and since when that is known.
    pub(super) missing: BTreeMap<String, Tick>,
    /// Those with which a person resumed the migration.
    pub(super) accepted_removals: BTreeSet<String>,
    /// Selected accounts that were there; whoever is there no longer was deleted.
    pub(super) present: BTreeSet<String>,
    /// Accounts that this migration is deleting.
    pub(super) deleting: BTreeSet<String>,
    pub(super) last_status_write: Option<Tick>,
}

/// A request to resume as the status keeps it: its value, or a digest of one that is too long for a status.
fn request_mark(value: &str) -> String {
    const MAX_CHARS: usize = 255;
    if value.chars().nth(MAX_CHARS).is_some() { digest(value) } else { value.to_owned() }
}

impl MigrationProgress {
    /// Whether another read of the sources may change a decision.
    pub fn awaits_read(&self) -> bool {
        !self.missing.is_empty()
    }

    /// Records that a write of an account was refused. It is not tried again until its entry or the spec changes, or a
    /// person resumes the migration.
    pub fn record_refused_write(&mut self, name: &str, entry_hash: Option<&str>, message: &str) {
        self.refused_writes.insert(name.to_owned(), (entry_hash.map(str::to_owned), message.to_owned()));
    }

    /// Whether the last write of an account was refused.
    pub(super) fn is_refused(&self, name: &str) -> bool {
        self.refused_writes.contains_key(name)
    }

    /// Number of failed accounts that count against `maxFailed`.
    pub(super) fn counted_failures(&self) -> usize {
        self.failed.difference(&self.accepted_failures).count()
    }

    /// Pauses the migration.
    pub(super) fn pause(
        &mut self,
        reason: PauseReason,
        message: String,
        observation: &MigrationObservation<'_>,
    ) {
        self.pause = Some(Pause { reason, message, generation: observation.generation });
    }

    /// Takes in what was observed.
    pub(super) fn observe(&mut self, observation: &MigrationObservation<'_>) {
        if !self.is_restored {
            self.restore(observation);
        }
        if let Some(plan) = observation.plan {
            self.observe_sources(observation, plan);
            self.observe_presence(observation, plan);
            self.observe_failures(observation, plan);
        }
        self.resume_if_asked(observation);
    }

    fn restore(&mut self, observation: &MigrationObservation<'_>) {
        self.is_restored = true;
        let own = observation.own().filter(|(_, fact)| fact.standing() == Standing::InFlight);
        let in_flight: BTreeSet<String> = own.map(|(name, _)| name.to_owned()).collect();
        if !in_flight.is_empty() {
            self.wave = Some(Wave { members: in_flight, began: observation.now, ..Wave::default() });
        }
        let Some(status) = observation.status else {
            self.retry_handled = observation.retry.map(request_mark);
            return;
        };
        self.retry_handled.clone_from(&status.retry_handled);
        self.wave_number = usize::try_from(status.wave).unwrap_or_default();
        if status.phase == MigrationPhase::Soaking {
            // Which accounts soaked is not known any more: all of them do, from the start.
            let wave = self.wave.get_or_insert_with(|| Wave { began: observation.now, ..Wave::default() });
            let active = observation.own().filter(|(_, fact)| fact.standing() == Standing::Active);
            wave.members.extend(active.map(|(name, _)| name.to_owned()));
        }
        let is_under_way = matches!(
            status.phase,
            MigrationPhase::Running | MigrationPhase::Soaking | MigrationPhase::Paused
        );
        if is_under_way {
            // One that is ORPHANED lost its agents later, perhaps with the last leader; its wave may be long over.
            let failed = observation
                .own()
                .filter(|(_, fact)| fact.standing() == Standing::Failed && fact.state == State::Failed);
            self.failed = failed.map(|(name, _)| name.to_owned()).collect();
            if status.retry_handled.is_some() && status.phase != MigrationPhase::Paused {
                self.accepted_failures.clone_from(&self.failed);
            }
        }
        let ready = status.conditions.iter().find(|condition| condition.type_ == "Ready");
        let reason = ready
            .and_then(|ready| PauseReason::ALL.into_iter().find(|reason| reason.as_str() == ready.reason));
        if let (MigrationPhase::Paused, Some(ready), Some(reason)) = (status.phase, ready, reason) {
            let (message, generation) = (ready.message.clone(), status.observed_generation);
            self.pause = Some(Pause { reason, message, generation });
        }
    }

    fn observe_sources(&mut self, observation: &MigrationObservation<'_>, plan: &Plan) {
        for (name, _) in observation.own() {
            match plan.is_in_sources(name) {
                Some(true) => {
                    self.missing.remove(name);
                    self.accepted_removals.remove(name);
                }
                Some(false) => {
                    self.missing.entry(name.to_owned()).or_insert(observation.now);
                }
                None => {}
            }
        }
        let is_own = |name: &String| observation.own_account(name).is_some();
        self.missing.retain(|name, _| is_own(name));
        self.accepted_removals.retain(is_own);
    }

    fn observe_presence(&mut self, observation: &MigrationObservation<'_>, plan: &Plan) {
        for name in plan.accounts.keys() {
            if observation.accounts.get(name).is_some_and(|fact| !fact.is_being_deleted) {
                self.present.insert(name.clone());
            }
        }
        let lists = |name: &str| observation.selection.is_ok_and(|selection| selection.names(name));
        self.present.retain(|name| {
            let is_there = observation.accounts.contains_key(name);
            let is_declined = plan
                .accounts
                .get(name)
                .and_then(PlannedAccount::hash)
                .is_none_or(|hash| observation.declined.has(name, hash));
            is_there || !(is_declined || self.deleting.contains(name) || lists(name))
        });
        self.deleting.retain(|name| observation.accounts.contains_key(name));
    }

    fn observe_failures(&mut self, observation: &MigrationObservation<'_>, plan: &Plan) {
        if self.generation.replace(observation.generation) != Some(observation.generation) {
            self.refused_writes.clear();
        }
        self.refused_writes.retain(|name, (hash, _)| {
            let is_ours = !observation.accounts.contains_key(name) || observation.own_account(name).is_some();
            is_ours && plan.accounts.get(name).and_then(PlannedAccount::hash) == hash.as_deref()
        });
        let members = self.wave.iter().flat_map(|wave| &wave.members);
        let failed = members.filter(|name| {
            let account = observation.own_account(name);
            let is_failed = |fact: &AccountFact| fact.standing() == Standing::Failed;
            account.is_some_and(is_failed)
        });
        let failed: Vec<String> = failed.chain(self.refused_writes.keys()).cloned().collect();
        self.failed.extend(failed);
        let stays_failed = |name: &String| match observation.own_account(name) {
            _ if self.refused_writes.contains_key(name) => true,
            Some(fact) => matches!(fact.standing(), Standing::Failed | Standing::InFlight),
            None => false,
        };
        self.failed.retain(stays_failed);
        // Those that are tried again stay accepted until they are ACTIVE.
        self.accepted_failures.retain(|name| {
            observation.own_account(name).is_none_or(|fact| fact.standing() != Standing::Active)
        });
    }

    /// Resumes a migration that paused by itself, if the spec has changed since or the annotation asks for it. What it
    /// paused for is accepted, or it would pause again at once.
    fn resume_if_asked(&mut self, observation: &MigrationObservation<'_>) {
        let asked = observation.retry.map(request_mark);
        let is_asked = asked.is_some() && asked != self.retry_handled;
        if is_asked {
            self.retry_handled = asked;
            self.refused_writes.clear();
        }
        let Some(pause) = &self.pause else { return };
        let is_changed = pause.generation != observation.generation;
        if observation.rules.paused || !(is_asked || is_changed) {
            return;
        }
        match pause.reason {
            PauseReason::TooManyFailed => self.accepted_failures.extend(self.failed.iter().cloned()),
            PauseReason::MassRemoval => self.accepted_removals.extend(self.missing.keys().cloned()),
            PauseReason::DeclinedFull => {}
        }
        self.pause = None;
    }
}
