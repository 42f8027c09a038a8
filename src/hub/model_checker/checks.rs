//! The properties, by name.

use crate::hub::model_checker::world::{
    AccountVariant, HubSession, ModelWorld, ToAgent, number_of, session_of,
};
use kubesvc_core::{GrantPhase, KubesvcAccount, KubesvcAccountStatus, KubesvcAgent, State};

/// A promise of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Property {
    /// The zone of a grant changes only through None.
    ZoneThroughNone,
    /// The epoch of an object never decreases.
    EpochGrows,
    /// An open grant ends by a revoke.
    GrantEndsByRevoke,
    /// When a revoke ends, no connected registered session holds the account in its zone.
    NoHolderAfterRevoke,
    /// An account is sent only to sessions of the zone that has the grant.
    SentUnderGrant,
    /// A static account is sent only to agents that list it.
    SentToListers,
    /// A static account whose agent is connected, or may come back, stays.
    ListedStays,
    /// An account without a zone is granted only to a zone with a known approved agent.
    ZoneMayOffer,
    /// ACTIVE follows from a report of an agent of the zone for this epoch.
    ActiveIsHeld,
    /// ORPHANED starts only in a zone without a session in force.
    OrphanedIsDeserted,
    /// A report about a deleted object does not count for the next one of its name.
    OldUidIsMute,
    /// The object is deleted only without a grant.
    FinalizerFromNone,
    /// No former leader leaves a row of a deleted object. The current leader may write one at the moment of the
    /// deletion; it observes the deletion next, and deletes the row.
    RowHasObject,
    /// Rows are written under the newest term.
    NewestTermWritesRows,
    /// What a session takes for held, so that requests are sent to it, its agent holds under that epoch or a later one.
    AskedHolds,
    /// One stream of an agent is in force.
    OneStream,
    /// Wherever the faults end, everything settles as desired.
    Rest,
    /// Without faults there is no cycle.
    NoLivelock,
}

impl ModelWorld {
    /// Checks a status before it replaces the current one.
    pub(super) fn check_status(
        &mut self,
        replica: usize,
        before: &KubesvcAccount,
        after: &KubesvcAccountStatus,
    ) {
        let was = before.status_or_default();
        if let (Some(from), Some(to)) = (was.granted_zone(), after.granted_zone())
            && from != to
        {
            let what = || format!("the grant went from {from} to {to} in one write");
            self.breaks(Property::ZoneThroughNone, what);
        }
        if after.epoch < was.epoch {
            let what = || format!("the epoch went from {} back to {}", was.epoch, after.epoch);
            self.breaks(Property::EpochGrows, what);
        }
        match (was.phase(), after.phase()) {
            (GrantPhase::Open, GrantPhase::None) => {
                let what = || "an open grant became None without a revoke".to_owned();
                self.breaks(Property::GrantEndsByRevoke, what);
            }
            (GrantPhase::Revoking, GrantPhase::None) => {
                self.check_revoked(replica, before.uid(), was.granted_zone().unwrap_or_default().as_str());
            }
            _ => {}
        }
        if let (AccountVariant::Unpinned { .. }, None, Some(zone)) =
            (self.kind, was.granted_zone(), after.granted_zone())
        {
            let may = |agent: &KubesvcAgent| agent.spec.approved && agent.spec.zone_id == *zone;
            if !self.agents.iter().flatten().any(|agent| may(agent)) {
                let what = format!("the account was given to {zone}, of which no agent is approved");
                self.breaks(Property::ZoneMayOffer, || what);
            }
        }
        if after.state() == State::Active {
            self.check_active(before.uid(), after);
        }
        if after.state() == State::Orphaned && was.state() != State::Orphaned {
            self.check_deserted(replica, after.granted_zone().unwrap_or_default().as_str());
        }
    }

    /// An account that an agent brings back after the grace, after the leader has read the sessions, is ignored: the
    /// agent drops it at the next check of its replica, and is sent nothing.
    fn check_revoked(&mut self, replica: usize, uid: &str, zone: &str) {
        let holder = self.could_be_seen_by(replica, zone).find(|session| self.has(session, uid));
        if let Some(session) = holder {
            let what = format!("the revoke of {uid} ended, and agent {} of {zone} has it", session.agent_id);
            self.breaks(Property::NoHolderAfterRevoke, || what);
        }
    }

    fn check_deserted(&mut self, replica: usize, zone: &str) {
        let approved = |session: &&HubSession| {
            self.agents[session.agent].as_ref().is_none_or(|agent| agent.spec.approved)
                && self.lists(session.agent_id)
        };
        let there =
            self.could_be_seen_by(replica, zone).filter(approved).find(|session| self.is_connected(session));
        if let Some(session) = there {
            let what = format!("{zone} was called deserted, and agent {} is connected", session.agent_id);
            self.breaks(Property::OrphanedIsDeserted, || what);
        }
    }

    /// Sessions in force of a zone that were registered before a replica read them, if it has.
    fn could_be_seen_by(&self, replica: usize, zone: &str) -> impl Iterator<Item = &HubSession> {
        let read = self.replicas[replica].has_read.filter(|_| self.rules.sessions_read);
        // Without the rule an old read may be used, so sessions registered since then count too.
        let read = read.filter(|_| self.rules.reads_afresh);
        let counts = move |session: &HubSession| read.is_none_or(|read| session.id < read.before);
        self.in_force().filter(move |session| session.zone == zone && counts(session))
    }

    fn check_active(&mut self, uid: &str, after: &KubesvcAccountStatus) {
        let (number, zone) = (number_of(uid), after.granted_zone().unwrap_or_default());
        let said = |of: u8| self.held.contains(&(of, after.epoch.0, zone.as_str()));
        if said(number) {
            return;
        }
        let what =
            format!("{uid} is ACTIVE in {zone} at epoch {}, and none of its agents said so", after.epoch);
        let of_another = (1..number).any(said);
        let property = if of_another { Property::OldUidIsMute } else { Property::ActiveIsHeld };
        self.breaks(property, || what);
    }

    /// Checks an object that is deleted by the current write.
    pub(super) fn check_end(&mut self, before: &KubesvcAccount) {
        if before.status_or_default().phase() != GrantPhase::None {
            self.breaks(Property::FinalizerFromNone, || "the object went with a grant".to_owned());
        }
    }

    /// Checks a row that is written under an earlier term.
    pub(super) fn check_late_row(&mut self, term: u32, row: Option<u8>) {
        let uid = self.object().map(|now| number_of(now.uid()));
        self.breaks(Property::NewestTermWritesRows, || format!("a row was written under term {term}"));
        if row.is_some() && row != uid {
            let what = || format!("a row of {row:?} is left, and the object is {uid:?}");
            self.breaks(Property::RowHasObject, what);
        }
    }

    /// Checks the invariants of a world.
    pub(super) fn check(&mut self) {
        if let Some((session, uid)) = self.sent_without_grant() {
            let what = format!(
                "{uid} is on its way to agent {}, and {} has no grant",
                session.agent_id, session.zone
            );
            self.breaks(Property::SentUnderGrant, || what);
        }
        let astray = self.in_force().find_map(|session| {
            let sent = self.under_way(session).next().filter(|_| !self.lists(session.agent_id))?;
            Some(format!("{sent} is on its way to agent {}, which does not list it", session.agent_id))
        });
        if let Some(what) = astray {
            self.breaks(Property::SentToListers, || what);
        }
        let asked = self.in_force().filter(|session| self.is_connected(session)).find_map(|session| {
            let table = &self.processes[session.process].table;
            session.ledger.entries().find_map(|(uid, entry)| {
                let epoch = entry.held.as_ref()?.epoch;
                let is_held = table.held_epoch(uid).is_some_and(|held| held >= epoch.to_wire());
                (!is_held)
                    .then(|| format!("agent {} is asked for {uid}, and does not hold it", session.agent_id))
            })
        });
        if let Some(what) = asked {
            self.breaks(Property::AskedHolds, || what);
        }
        let streams = |agent: usize| {
            let connected = |session: &&HubSession| session.agent == agent && self.is_connected(session);
            self.in_force().filter(connected).count()
        };
        if (0..self.agents.len()).any(|agent| streams(agent) > 1) {
            self.breaks(Property::OneStream, || "two streams of one agent are in force".to_owned());
        }
    }

    /// Returns a session in force that is sent an account, or starts it, without a grant.
    fn sent_without_grant(&self) -> Option<(&HubSession, String)> {
        let now = self.object();
        let status = now.map(|now| now.status_or_default());
        let zone = status.as_ref().and_then(|status| status.granted_zone());
        let uid = now.map(|now| self.uid_on_the_wire(now.uid()));
        self.in_force().filter(|session| self.is_connected(session)).find_map(|session| {
            let sent = self
                .under_way(session)
                .find(|sent| zone.is_none_or(|zone| zone != session.zone) || Some(*sent) != uid)?;
            Some((session, sent.to_owned()))
        })
    }

    /// Returns the connected sessions that their objects name.
    fn in_force(&self) -> impl Iterator<Item = &HubSession> {
        self.standing().filter(|session| {
            let agent = self.agents[session.agent].as_ref();
            let connected = |agent: &&crate::hub::model_checker::shared::Shared<KubesvcAgent>| {
                agent.status.as_ref().is_some_and(|status| status.connected)
            };
            !self.rules.registration
                || agent.filter(connected).and_then(|agent| session_of(agent)) == Some(session.id)
        })
    }

    fn is_connected(&self, session: &HubSession) -> bool {
        self.processes[session.process].stream == Some(session.id)
    }

    /// Returns what a session was sent and its agent has neither held nor refused yet.
    fn under_way<'a>(&'a self, session: &'a HubSession) -> impl Iterator<Item = &'a str> {
        let sent = session.to_agent.iter().filter_map(|frame| match frame {
            ToAgent::Add { uid, .. } => Some(uid.as_str()),
            ToAgent::Drop { .. } => None,
        });
        sent.chain(self.processes[session.process].starting.keys().map(String::as_str))
    }

    /// Whether the session's agent holds the account, starts it, or is about to be told to.
    fn has(&self, session: &HubSession, uid: &str) -> bool {
        let uid = self.uid_on_the_wire(uid);
        let process = &self.processes[session.process];
        let mut held = process.table.held().filter_map(|held| held.account);
        self.is_connected(session)
            && (held.any(|one| one.uid == uid) || self.under_way(session).any(|one| one == uid))
    }
}
