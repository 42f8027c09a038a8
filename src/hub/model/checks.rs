//! What must never be.

use super::world::{HubSession, ToAgent, World};
use crate::account::{GrantPhase, KubesvcAccount, KubesvcAccountStatus, State};

impl World {
    /// Checks a status that is about to be written over the object as it is.
    pub(super) fn check_status(&mut self, before: &KubesvcAccount, after: &KubesvcAccountStatus) {
        let was = before.status_or_default().into_owned();
        let uid = before.uid().to_owned();
        if let (Some(from), Some(to)) = (was.granted_zone(), after.granted_zone())
            && from != to
        {
            self.breaks(format!("the grant went from {from} to {to} in one write"));
        }
        if after.epoch < was.epoch {
            self.breaks(format!("the epoch went from {} back to {}", was.epoch, after.epoch));
        }
        if after.state() == State::Active {
            let zone = after.granted_zone().unwrap_or_default().to_owned();
            if !self.held.contains(&(uid.clone(), after.epoch, zone)) {
                self.breaks(format!("{uid} is ACTIVE at epoch {} and no agent has said so", after.epoch));
            }
        }
        if was.phase() == GrantPhase::Revoking && after.phase() == GrantPhase::None {
            let zone = was.granted_zone().unwrap_or_default();
            let holder = self.in_force().find(|session| session.zone == zone && self.has(session, &uid));
            if let Some(session) = holder {
                let what = format!("the revoke of {uid} ended, and session {} has it", session.id);
                self.breaks(what);
            }
        }
        if was.phase() == GrantPhase::Open && after.phase() == GrantPhase::None {
            self.breaks("an open grant became none without a revoke");
        }
    }

    /// Checks an object that goes with the write at hand.
    pub(super) fn check_end(&mut self, before: &KubesvcAccount) {
        let status = before.status_or_default();
        if status.phase() != GrantPhase::None {
            self.breaks("the object went with a grant");
        }
        if self.row.as_deref() == Some(before.uid()) {
            self.breaks("the row outlived its object");
        }
    }

    /// Checks what must be so at any time.
    pub(super) fn check(&mut self) {
        let uid = self.object().map(|now| now.account.uid().to_owned());
        if self.row.is_some() && self.row != uid {
            self.breaks(format!("there is a row of {:?}, and the object is {uid:?}", self.row));
        }
        let mut ids: Vec<_> = self.in_force().map(|session| (session.agent_id, session.zone)).collect();
        let all = ids.len();
        ids.dedup();
        if ids.len() < all {
            self.breaks("two streams of one agent are in force");
        }
    }

    /// Sessions that stand and are the ones that their objects name.
    fn in_force(&self) -> impl Iterator<Item = &HubSession> {
        self.standing().filter(|session| {
            let agent = self.agents.get(&session.object_name());
            let status = agent.and_then(|agent| agent.status.as_ref());
            let named = status.filter(|status| status.connected).and_then(|status| status.session.as_ref());
            !self.rules.registration || named.is_some_and(|named| named.id == session.id)
        })
    }

    /// Whether the agent at the other end holds the account or starts it, or is about to be told to.
    fn has(&self, session: &HubSession, uid: &str) -> bool {
        let uid = self.uid_on_the_wire(uid);
        let process = &self.processes[session.process];
        let connected = process.stream.as_deref() == Some(&session.id);
        let holds = process.table.held().any(|held| held.account.is_some_and(|one| one.uid == uid));
        let sent = session
            .to_agent
            .iter()
            .any(|frame| matches!(frame, ToAgent::Add { uid: sent, .. } if sent == uid));
        connected && (holds || sent || process.starting.contains_key(uid))
    }
}
