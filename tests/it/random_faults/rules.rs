//! Invariants of an object: of each version, from one version to the next, and when it goes away. Read from
//! its JSON, without any of kubesvc's own types.

use std::fmt;

use serde_json::Value;

use Phase::{None as NoGrant, Open, Revoking};

/// The finalizer that keeps an object until nothing else is left of it.
const FINALIZER: &str = "kubesvc.io/account";

/// Phase of a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    None,
    Open,
    Revoking,
}

/// An object, as far as the invariants need it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ObservedAccount {
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) generation: i64,
    pub(super) is_deleted: bool,
    pub(super) has_finalizer: bool,
    /// Desired state: ACTIVE or INACTIVE.
    pub(super) desired: String,
    /// State in the status; INACTIVE if there is none.
    pub(super) state: String,
    pub(super) observed: i64,
    pub(super) epoch: i64,
    pub(super) phase: Phase,
    /// Zone of a grant that is not None.
    pub(super) zone: Option<String>,
    /// Reason of a failure, for people.
    pub(super) error: String,
}

impl ObservedAccount {
    /// Reads an object.
    ///
    /// # Errors
    ///
    /// The object has no uid, or an unknown phase.
    pub(super) fn read(object: &Value) -> Result<Self, String> {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        let number = |pointer: &str| object.pointer(pointer).and_then(Value::as_i64);
        let phase = match text("/status/grant/phase").as_deref() {
            None | Some("None") => NoGrant,
            Some("Open") => Open,
            Some("Revoking") => Revoking,
            Some(other) => return Err(format!("no phase of a grant: {other}")),
        };
        let finalizers = object.pointer("/metadata/finalizers").and_then(Value::as_array);
        Ok(Self {
            name: text("/metadata/name").ok_or("no name")?,
            uid: text("/metadata/uid").ok_or("no uid")?,
            generation: number("/metadata/generation").unwrap_or_default(),
            is_deleted: object.pointer("/metadata/deletionTimestamp").is_some(),
            has_finalizer: finalizers.is_some_and(|all| all.iter().any(|one| one == FINALIZER)),
            desired: text("/spec/state").unwrap_or_else(|| "ACTIVE".to_owned()),
            state: text("/status/state").unwrap_or_else(|| "INACTIVE".to_owned()),
            observed: number("/status/observedGeneration").unwrap_or(-1),
            epoch: number("/status/epoch").unwrap_or_default(),
            phase,
            zone: text("/status/grant/zone").filter(|_| phase != NoGrant),
            error: text("/status/errorMessage").unwrap_or_default(),
        })
    }

    /// States that the row may show for this version: its state, or a desired state that was not acted on
    /// yet.
    pub(super) fn shown(&self) -> Vec<String> {
        let mut all = vec![self.state.clone()];
        all.push(if self.desired == "ACTIVE" { "TO_MIGRATE" } else { "TO_DEACTIVATE" }.to_owned());
        if self.phase == Revoking {
            all.push("DEACTIVATING".to_owned());
        }
        if self.is_deleted {
            all.push("DELETING".to_owned());
        }
        all
    }

    /// What is wrong with this version by itself.
    pub(super) fn faults(&self) -> Vec<String> {
        let Self { state, phase, .. } = self;
        let fits = match state.as_str() {
            "INACTIVE" | "TO_MIGRATE" => *phase == NoGrant,
            "ACTIVE" | "ORPHANED" => *phase == Open,
            "ACTIVATING" => matches!(phase, Open | Revoking),
            "DEACTIVATING" => *phase == Revoking,
            "DELETING" | "DELETE_FAILED" => matches!(phase, NoGrant | Revoking),
            "FAILED" => true,
            _ => false,
        };
        let mut faults = Vec::new();
        if !fits {
            faults.push(format!("{state} with a grant that is {phase:?}"));
        }
        if *phase != NoGrant && self.zone.is_none() {
            faults.push(format!("a grant that is {phase:?} for no zone"));
        }
        if self.observed > self.generation {
            faults.push(format!("it speaks of generation {} before there is one", self.observed));
        }
        if *phase != NoGrant && !self.has_finalizer {
            faults.push("the finalizer is gone before the grant".to_owned());
        }
        faults
    }

    /// What is wrong with this version after `before`, which has the same uid. `missed`: versions in between
    /// may not have been seen.
    pub(super) fn faults_after(&self, before: &Self, missed: bool) -> Vec<String> {
        let mut faults = Vec::new();
        let mut check = |fault: bool, what: String| {
            if fault {
                faults.push(what);
            }
        };
        let grown = self.epoch - before.epoch;
        check(grown < 0, format!("its epoch falls from {} to {}", before.epoch, self.epoch));
        check(self.generation < before.generation, "its generation falls".to_owned());
        check(self.observed < before.observed, "its observed generation falls".to_owned());
        let moved = self.zone != before.zone && self.zone.is_some() && before.zone.is_some();
        let change = format!("{before:?} to {self:?}");
        // Closed and opened again, with a new epoch for each step still to come.
        let least = if before.phase == Revoking { 1 } else { 2 };
        check(moved && (!missed || grown < least), format!("its zone changes not through None: {change}"));
        if !missed {
            let wrong = match (before.phase, self.phase) {
                (NoGrant, Open) | (Open, Revoking) => grown < 1,
                (NoGrant, NoGrant) | (Revoking, NoGrant) => false,
                (Open, Open) => false,
                (Revoking, Revoking) => false,
                (NoGrant, Revoking) | (Open, NoGrant) | (Revoking, Open) => true,
            };
            check(wrong, format!("its grant goes a way that there is not: {change}"));
        }
        check(before.is_deleted && !self.is_deleted, "it comes back from its deletion".to_owned());
        let leaves = matches!(before.state.as_str(), "DELETING" | "DELETE_FAILED");
        let stays = matches!(self.state.as_str(), "DELETING" | "DELETE_FAILED");
        check(leaves && !stays, format!("it leaves its deletion: {change}"));
        check(
            before.has_finalizer && !self.has_finalizer && !self.is_deleted,
            "it loses its finalizer".to_owned(),
        );
        faults
    }

    /// What is wrong if this was the last version.
    pub(super) fn faults_at_its_end(&self, missed: bool) -> Vec<String> {
        let mut faults = Vec::new();
        if self.phase != NoGrant && !missed {
            faults.push(format!("it is gone with a grant that is {:?} for {:?}", self.phase, self.zone));
        }
        faults
    }
}

impl fmt::Display for ObservedAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let uid = self.uid.get(..8).unwrap_or_default();
        write!(f, "object {uid} generation {}/{} {}", self.observed, self.generation, self.state)?;
        write!(f, " epoch {} {:?} {}", self.epoch, self.phase, self.zone.as_deref().unwrap_or_default())?;
        if self.is_deleted {
            write!(f, " being deleted")?;
        }
        if !self.error.is_empty() {
            write!(f, " ({})", self.error)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{ObservedAccount, Phase};

    fn active() -> ObservedAccount {
        let read = ObservedAccount::read(&json!({
            "metadata": {"name": "one", "uid": "u-1", "generation": 2, "finalizers": [super::FINALIZER]},
            "spec": {},
            "status": {"state": "ACTIVE", "observedGeneration": 2, "epoch": 3,
                "grant": {"phase": "Open", "zone": "east"}},
        }));
        read.expect("it is whole")
    }

    fn moved(epoch: i64) -> ObservedAccount {
        ObservedAccount { epoch, zone: Some("west".to_owned()), ..active() }
    }

    #[test]
    fn valid_object_breaks_no_rule() {
        assert!(active().faults().is_empty());
        assert!(active().faults_after(&active(), false).is_empty());
        let revoked =
            ObservedAccount { state: "DEACTIVATING".into(), phase: Phase::Revoking, epoch: 4, ..active() };
        assert!(revoked.faults_after(&active(), false).is_empty());
        let inactive =
            ObservedAccount { state: "INACTIVE".into(), phase: Phase::None, zone: None, ..revoked.clone() };
        assert!(inactive.faults_after(&revoked, false).is_empty());
        assert!(inactive.faults_at_its_end(false).is_empty());
        assert!(moved(5).faults_after(&inactive, false).is_empty());
    }

    #[test]
    fn each_rule_of_one_version_can_be_broken() {
        let bad = [
            ObservedAccount { phase: Phase::Revoking, ..active() },
            ObservedAccount { zone: None, ..active() },
            ObservedAccount { observed: 3, ..active() },
            ObservedAccount { has_finalizer: false, ..active() },
            ObservedAccount { state: "ASLEEP".into(), ..active() },
        ];
        for one in bad {
            assert_eq!(one.faults().len(), 1, "{one:?}");
        }
    }

    #[test]
    fn each_rule_of_two_versions_can_be_broken() {
        let bad = [
            ObservedAccount { epoch: 2, ..active() },
            ObservedAccount { generation: 1, ..active() },
            ObservedAccount { observed: 1, ..active() },
            ObservedAccount { phase: Phase::Revoking, ..active() },
            ObservedAccount { phase: Phase::None, zone: None, ..active() },
            moved(3),
            moved(5),
        ];
        for one in bad {
            assert_eq!(one.faults_after(&active(), false).len(), 1, "{one:?}");
        }
        let deleted = ObservedAccount { is_deleted: true, state: "DELETING".into(), ..active() };
        assert_eq!(active().faults_after(&deleted, false).len(), 2);
        let bare = ObservedAccount { has_finalizer: false, ..active() };
        assert_eq!(bare.faults_after(&active(), false).len(), 1);
        assert_eq!(active().faults_at_its_end(false).len(), 1);
    }

    #[test]
    fn after_missed_versions_only_impossible_transitions_are_violations() {
        assert!(moved(5).faults_after(&active(), true).is_empty());
        assert_eq!(moved(4).faults_after(&active(), true).len(), 1);
        let revoked =
            ObservedAccount { phase: Phase::Revoking, epoch: 4, state: "ACTIVATING".into(), ..active() };
        assert!(moved(5).faults_after(&revoked, true).is_empty());
        assert_eq!(moved(4).faults_after(&revoked, true).len(), 1);
        assert!(active().faults_at_its_end(true).is_empty());
    }
}
