//! Faults stop: everyone works, a person corrects what only a person can, and the account is as desired, and stays.

use super::*;
use crate::DesiredState;
use crate::ids::ZoneId;

/// In this many seconds everything is as desired: the longest wait for a retry, a revoke, and the grace, twice.
const BOUND: Tick = 1000;

impl Sim {
    /// A second in which everything works.
    pub(super) fn round(&mut self) -> Result<(), String> {
        for _ in 0..8 {
            for _ in 0..30 {
                let (versions, row) = (self.versions.len(), self.row.clone());
                let credential = self.memory.credential.clone();
                self.leads(0, Crash::No)?;
                if versions == self.versions.len() && row == self.row && credential == self.memory.credential
                {
                    break;
                }
            }
            self.send();
            for agent in 0..self.agents.len() {
                while self.agents[agent].has_work() {
                    self.agent_acts(agent, StepOutcome::Done)?;
                }
            }
            self.deliver_all();
        }
        self.now += 1;
        checks::rows(self.row.as_deref(), self.object())
    }

    /// See the module.
    pub(in crate::lifecycle::properties) fn heal(&mut self) -> Result<(), String> {
        self.database = true;
        self.foreign = false;
        self.late = None;
        self.queue_since = None;
        self.change_secret(SimSecret::Good);
        self.answers.clear();
        for agent in 0..self.agents.len() {
            self.connect(agent);
        }
        self.resolve();
        if self.object().is_some_and(|object| object.status_or_default().state() == State::Failed) {
            self.person(Deed::Retry);
        }
        let began = self.now;
        for _ in 0..5 {
            self.round()?;
        }
        while let Err(wrong) = self.as_desired() {
            if self.now - began > BOUND {
                return Err(format!("not as desired after {BOUND} s: {wrong}"));
            }
            self.round()?;
        }
        let writes = self.writes;
        for _ in 0..400 {
            self.round()?;
        }
        if writes == self.writes { self.as_desired() } else { Err("it does not come to rest".to_owned()) }
    }

    fn as_desired(&self) -> Result<(), String> {
        let held_by: Vec<_> = self.agents.iter().filter(|agent| agent.holds.is_some()).collect();
        let nobody = || if held_by.is_empty() { Ok(()) } else { Err(format!("still held by {held_by:?}")) };
        let Some(account) = self.object() else {
            nobody()?;
            return self.row.as_ref().map_or(Ok(()), |row| Err(format!("the row of {row} is left")));
        };
        if account.is_being_deleted() {
            return Err("not deleted".to_owned());
        }
        if self.row.as_deref() != Some(account.uid()) {
            return Err("no row".to_owned());
        }
        let status = account.status_or_default();
        if status.observed_generation != account.generation() {
            return Err("the last change was not seen".to_owned());
        }
        if account.annotation(RETRY_ANNOTATION) != status.retry_handled.as_deref() {
            return Err("the last retry was not seen".to_owned());
        }
        let zone =
            account.spec.zone_id.as_ref().map(ZoneId::as_str).or(status.zone_id.as_ref().map(ZoneId::as_str));
        let listed = self.agents.iter().any(|agent| Some(agent.zone) == zone && agent.lists);
        if account.is_static() && zone.is_some() && !listed {
            return Err("in no file, and not deleted".to_owned());
        }
        match (account.desired(), status.state()) {
            (DesiredState::Inactive, State::Inactive) => nobody(),
            (DesiredState::Active, State::Active) => {
                let zone = status.granted_zone();
                let pinned = account.spec.zone_id.as_ref().map(ZoneId::as_str);
                if pinned.is_some_and(|pinned| zone != Some(&ZoneId::from(pinned))) {
                    return Err(format!("in {zone:?}, not in {pinned:?}"));
                }
                let here = |agent: &&&SimAgent| {
                    Some(agent.zone) == zone.map(ZoneId::as_str)
                        && agent.holds == Some((account.uid().to_owned(), status.epoch.0))
                };
                let all_here = held_by.iter().filter(here).count() == held_by.len();
                let may = |agent: &&SimAgent| {
                    Some(agent.zone) == zone.map(ZoneId::as_str) && (!account.is_static() || agent.lists)
                };
                let all_hold = self.agents.iter().filter(may).count();
                if all_here && held_by.len() == all_hold {
                    self.is_cached(account)
                } else {
                    Err(format!("held by {held_by:?}"))
                }
            }
            // A file may be another one in each zone that has it: someone must say which is meant.
            (DesiredState::Active, State::Failed)
                if account.spec.zone_id.is_none()
                    && account.spec.kubeconfig.file.is_some()
                    && status.error_message.as_deref().is_some_and(|why| why.contains("spec.zoneId")) =>
            {
                nobody()
            }
            (desired, state) => Err(format!("{state} where {desired:?} is desired")),
        }
    }
}
