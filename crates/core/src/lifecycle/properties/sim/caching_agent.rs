//! Who streams the account's objects, and why it was changed.

use super::*;
use crate::ids::{AgentId, ZoneId};
use crate::lifecycle::caching_agent_election::absence_grace;
use crate::lifecycle::retry_schedule::mark;
use crate::{CachingAssignment, KubesvcAccountStatus};

impl Sim {
    /// What must hold of who streams when a status is decided.
    pub(super) fn check_caching(
        &self,
        seen: &KubesvcAccount,
        new: &KubesvcAccountStatus,
    ) -> Result<(), String> {
        let old = seen.status_or_default();
        let told = || format!("{:?} → {:?}", old.caching, new.caching);
        let epoch = |caching: &Option<CachingAssignment>| caching.as_ref().map_or(0, |one| one.epoch.0);
        let (before, after) = (epoch(&old.caching), epoch(&new.caching));
        if (old.caching != new.caching) != (after > before) || after < before {
            return Err(format!("the epoch of caching does not grow with each change: {}", told()));
        }
        if new.phase() != GrantPhase::Open && new.caching_agent().is_some() {
            return Err(format!("somebody streams what nobody is granted: {}", told()));
        }
        let Some(agent_id) = new.caching_agent().filter(|_| old.caching != new.caching) else {
            return Ok(());
        };
        let Some(agent) = self.agents.iter().find(|agent| agent.id == agent_id) else {
            return Err(format!("nobody knows {agent_id}"));
        };
        let boot = new.caching.as_ref().and_then(|caching| caching.boot_id.clone());
        let holds = agent.is_known_to_hold(seen.uid(), new.epoch.0)
            && Some(agent.zone) == new.granted_zone().map(ZoneId::as_str);
        if new.state() != State::Active || !holds || boot != Some(agent.boot_id()) {
            return Err(format!("{agent_id} is elected and does not hold it: {}", told()));
        }
        match old.caching.as_ref().filter(|caching| caching.agent_id.is_some()) {
            Some(caching) if !self.may_go(seen, &old, caching) => {
                Err(format!("it was taken without a reason: {}", told()))
            }
            _ => Ok(()),
        }
    }

    /// Whether there is a reason to take it from whoever has it.
    fn may_go(
        &self,
        seen: &KubesvcAccount,
        status: &KubesvcAccountStatus,
        caching: &CachingAssignment,
    ) -> bool {
        let asked = seen.annotation(ELECT_CACHING_ANNOTATION).map(mark);
        if asked.is_some() && asked.as_deref() != status.election_handled.as_deref() {
            return true;
        }
        let Some(agent) =
            self.agents.iter().find(|agent| Some(agent.id) == caching.agent_id.as_ref().map(AgentId::as_str))
        else {
            return false;
        };
        // An account of agents' own files goes from one that does not list it.
        if seen.is_static() && !agent.lists {
            return true;
        }
        if agent.connected {
            let is_another = caching.boot_id != Some(agent.boot_id());
            return is_another || agent.says_no(seen.uid(), status.epoch.0);
        }
        let (since, ending) = agent.away();
        self.now - since.max(self.memory.leading_since) > absence_grace(ending)
    }

    /// Whether an ACTIVE account has somebody who streams it, and nothing that was asked for waits.
    pub(super) fn is_cached(&self, account: &KubesvcAccount) -> Result<(), String> {
        let status = account.status_or_default();
        let asked = account.annotation(ELECT_CACHING_ANNOTATION).map(mark);
        if asked.is_some() && asked.as_deref() != status.election_handled.as_deref() {
            return Err("an election that was asked for was not held".to_owned());
        }
        let is_it = |agent: &&SimAgent| {
            let caching = status.caching.as_ref();
            caching.is_some_and(|one| one.boot_id == Some(agent.boot_id()))
                && agent.is_known_to_hold(account.uid(), status.epoch.0)
        };
        match self.agents.iter().find(is_it) {
            Some(_) => Ok(()),
            None => Err(format!("streamed by {:?}", status.caching)),
        }
    }
}
