//! Equality of worlds: encodes a world, with sessions named by their position and not by their id.
//!
//! Numbers of connections and attempts, times and messages are left out. The world removes them from objects when
//! they are stored, so that no decision can depend on them.

use crate::hub::model_checker::leader::Pending;
use crate::hub::model_checker::shared::{Encode, Shared, WorldDigest, digest};
use crate::hub::model_checker::world::{
    AgentObjectVersions, HubSession, ModelProcess, ModelReplica, ModelWorld, SessionNumber, ToAgent,
    number_of, session_of,
};
use crate::hub::sessions::ledger::{LedgerEntry, PendingCommand};
use kubesvc_core::lifecycle::{Action, AgentReport};
use kubesvc_core::report_outbox::OutboxEntry;
use kubesvc_core::wire::ops::AccountResult;
use kubesvc_core::wire::ops::account_result::Outcome;
use kubesvc_core::{KubesvcAccount, KubesvcAccountStatus, KubesvcAgent, ZoneId};

fn text(text: &str, bytes: &mut Vec<u8>) {
    bytes.extend(text.as_bytes());
    bytes.push(0xff);
}

fn optional(some: Option<&str>, bytes: &mut Vec<u8>) {
    bytes.push(u8::from(some.is_some()));
    text(some.unwrap_or_default(), bytes);
}

fn number(number: i64, bytes: &mut Vec<u8>) {
    bytes.extend(number.to_le_bytes());
}

fn optional_number(some: Option<i64>, bytes: &mut Vec<u8>) {
    number(some.unwrap_or(i64::MIN), bytes);
}

impl Encode for KubesvcAccount {
    fn encode(&self, bytes: &mut Vec<u8>) {
        let meta = &self.metadata;
        text(self.uid(), bytes);
        optional_number(meta.generation, bytes);
        bytes.push(u8::from(meta.deletion_timestamp.is_some()));
        bytes.push(u8::from(self.has_finalizer()));
        optional(self.spec.zone_id.as_ref().map(ZoneId::as_str), bytes);
        bytes.push(self.desired() as u8);
        bytes.push(u8::from(self.status.is_some()));
        self.status_or_default().encode(bytes);
    }
}

impl Encode for KubesvcAccountStatus {
    fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.push(self.state.map_or(255, |state| state as u8));
        number(self.observed_generation, bytes);
        number(self.epoch.0, bytes);
        bytes.push(self.grant.as_ref().map_or(255, |grant| grant.phase as u8));
        if let Some(grant) = &self.grant {
            optional(grant.zone.as_ref().map(ZoneId::as_str), bytes);
            number(grant.generation, bytes);
            optional(grant.definition.as_deref(), bytes);
        }
        optional(self.zone_id.as_ref().map(ZoneId::as_str), bytes);
        optional(self.cluster_uid.as_deref(), bytes);
        number(self.failed_count.into(), bytes);
        optional(self.error_message.as_deref(), bytes);
        optional(self.credential_version.as_deref(), bytes);
        self.tried_zones.iter().for_each(|zone| text(zone.as_str(), bytes));
        for condition in &self.conditions {
            text(&condition.type_, bytes);
            text(&condition.status, bytes);
            text(&condition.reason, bytes);
        }
    }
}

/// The world encodes which session it names.
impl Encode for KubesvcAgent {
    fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.push(u8::from(self.spec.approved));
        let Some(status) = &self.status else { return };
        bytes.push(u8::from(status.connected));
        if let Some(session) = &status.session {
            text(session.boot_id.as_str(), bytes);
            text(session.replica.as_str(), bytes);
        }
        status.outbox.iter().for_each(|entry| entry.encode(bytes));
    }
}

impl Encode for OutboxEntry {
    fn encode(&self, bytes: &mut Vec<u8>) {
        text(&self.uid, bytes);
        number(self.epoch.0, bytes);
        bytes.push(self.result as u8);
        optional(self.class.as_deref(), bytes);
    }
}

impl Encode for AccountResult {
    fn encode(&self, bytes: &mut Vec<u8>) {
        if let Some(account) = &self.account {
            text(&account.uid, bytes);
            bytes.extend(account.epoch.to_le_bytes());
            bytes.extend(account.generation.to_le_bytes());
        }
        let outcome = match &self.outcome {
            None => 0,
            Some(Outcome::Identity(_)) => 1,
            Some(Outcome::Failure(_)) => 2,
        };
        bytes.extend([outcome, u8::from(self.dropped), u8::from(self.refused.is_some())]);
    }
}

impl Encode for ToAgent {
    fn encode(&self, bytes: &mut Vec<u8>) {
        let (kind, uid, epoch, generation) = match self {
            Self::Add { uid, epoch, generation } => (1, uid, epoch, *generation),
            Self::Drop { uid, epoch } => (2, uid, epoch, 0),
        };
        bytes.push(kind);
        text(uid, bytes);
        number(*epoch, bytes);
        number(generation, bytes);
    }
}

impl Encode for LedgerEntry {
    fn encode(&self, bytes: &mut Vec<u8>) {
        optional_number(self.believed.map(|epoch| epoch.0), bytes);
        let (kind, epoch) = match self.command {
            None => (0, None),
            Some(PendingCommand::Prepare(epoch)) => (1, Some(epoch)),
            Some(PendingCommand::Add(epoch)) => (2, Some(epoch)),
            Some(PendingCommand::Drop(epoch)) => (3, Some(epoch)),
        };
        bytes.push(kind);
        optional_number(epoch.map(|epoch| epoch.0), bytes);
        optional_number(self.report.as_ref().map(|(epoch, _)| epoch.0), bytes);
        match self.report.as_ref().map(|(_, word)| word) {
            None => bytes.push(0),
            Some(AgentReport::Held(_)) => bytes.push(1),
            Some(AgentReport::Dropped) => bytes.push(2),
            Some(AgentReport::Failed(failure)) => bytes.extend([3, failure.class as u8]),
            Some(AgentReport::Lost(failure)) => bytes.extend([4, failure.class as u8]),
        }
        optional_number(self.held.as_ref().map(|held| held.epoch.0), bytes);
        bytes.push(u8::from(self.confirmed));
        optional_number(self.retry.map(|again| again.epoch.0), bytes);
        optional_number(self.credential_mismatch.map(|(epoch, _)| epoch.0), bytes);
        optional_number(self.drop_failed.map(|epoch| epoch.0), bytes);
        optional_number(self.owed.map(|(epoch, _)| epoch.0), bytes);
    }
}

impl Encode for HubSession {
    fn encode(&self, bytes: &mut Vec<u8>) {
        let small = |number: usize| u8::try_from(number).unwrap_or(u8::MAX);
        bytes.extend([small(self.process), small(self.replica), self.boot, u8::from(self.ended)]);
        bytes.push(u8::from(self.approved));
        bytes.extend([small(self.to_agent.len()), small(self.to_hub.len()), small(self.reported.len())]);
        self.to_agent.iter().for_each(|one| one.encode(bytes));
        self.to_hub.iter().for_each(|one| one.encode(bytes));
        self.reported.iter().for_each(|one| one.encode(bytes));
        let mut entries: Vec<_> = self.ledger.entries().collect();
        entries.sort_by_key(|(uid, _)| uid.as_str());
        for (uid, entry) in entries {
            text(uid, bytes);
            entry.encode(bytes);
            bytes.push(u8::from(self.ledger.name_is_busy(&entry.name)));
        }
    }
}

/// The world encodes the session at the other end.
impl Encode for ModelProcess {
    fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.push(self.boot);
        let mut held: Vec<_> = self.table.held().filter_map(|held| held.account).collect();
        held.sort_by(|one, other| one.uid.cmp(&other.uid));
        let starting = self.starting.values().map(|(_, account)| account.clone());
        bytes.push(u8::try_from(held.len()).unwrap_or(u8::MAX));
        for account in held.into_iter().chain(starting) {
            text(&account.uid, bytes);
            bytes.extend(account.epoch.to_le_bytes());
            bytes.extend(account.generation.to_le_bytes());
        }
    }
}

impl Encode for Pending {
    fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.extend(self.seen.as_ref().map_or([0; 16], Shared::digest));
        match &self.action {
            Some(Action::WriteStatus(write)) => write.status.encode(bytes),
            other => text(&format!("{other:?}"), bytes),
        }
    }
}

/// Numbers sessions in order of first use.
struct SessionNames(Vec<SessionNumber>);

impl SessionNames {
    fn of(&mut self, id: SessionNumber) -> u8 {
        let known = self.0.iter().position(|one| *one == id);
        let place = known.unwrap_or_else(|| {
            self.0.push(id);
            self.0.len() - 1
        });
        u8::try_from(place).unwrap_or(u8::MAX)
    }
}

impl ModelWorld {
    /// Returns the key of the world. Worlds with equal keys have the same future.
    pub(super) fn key(&self) -> WorldDigest {
        let mut bytes = Vec::with_capacity(512);
        self.faults.encode(&mut bytes);
        bytes.push(u8::try_from(self.script.len()).unwrap_or(u8::MAX));
        let none = [0; 16];
        for version in &self.objects {
            bytes.extend(version.as_ref().map_or(none, Shared::digest));
        }
        bytes.extend([self.made, self.row.unwrap_or_default(), u8::from(self.broken.is_some())]);
        self.encode_reports(&mut bytes);

        let mut names = SessionNames(Vec::new());
        let since = |one: &HubSession| {
            // Number of versions stored since its registration, as far as any watch lags.
            let most = u32::from(self.faults.lag) + 1;
            u8::try_from((self.stored - one.registered_at).min(most)).unwrap_or(u8::MAX)
        };
        let mut sessions: Vec<_> = self
            .sessions
            .iter()
            .map(|one| (one.process, one.replica, one.digest(), since(one), one.id))
            .collect();
        sessions.sort_unstable();
        for (_, _, digest, since, id) in sessions {
            bytes.extend(digest);
            bytes.push(since);
            names.of(id);
        }
        bytes.push(0xfe);
        for process in &self.processes {
            bytes.extend(process.digest());
            // All streams without another end are equal.
            let stands = process.stream.filter(|id| self.sessions.iter().any(|one| one.id == *id));
            bytes.push(match (process.stream, stands) {
                (None, _) => 0xff,
                (_, None) => 0xfd,
                (_, Some(id)) => names.of(id),
            });
        }
        self.encode_agents(&self.agents, &mut names, &mut bytes);
        for replica in &self.replicas {
            let behind = replica.leads.map_or(0xff, |term| u8::try_from(self.term - term).unwrap_or(0xfe));
            bytes.extend([u8::try_from(replica.lag).unwrap_or(u8::MAX), behind]);
            if replica.leads.is_some() {
                self.encode_agents(&replica.agents, &mut names, &mut bytes);
                self.encode_reading(replica, &mut bytes);
                bytes.extend(replica.pending.as_ref().map_or(none, Shared::digest));
                let mut gone: Vec<_> = replica.gone.iter().map(|id| names.of(*id)).collect();
                gone.sort_unstable();
                bytes.extend(gone);
            }
            bytes.push(0xfe);
        }
        digest(&bytes)
    }

    /// A read is checked only against sessions registered since.
    fn encode_reading(&self, replica: &ModelReplica, bytes: &mut Vec<u8>) {
        let Some(reading) = replica.has_read else { return };
        bytes.push(reading.uid);
        number(reading.epoch, bytes);
        for session in self.sessions.iter().filter(|session| session.id >= reading.before) {
            bytes.extend(session.digest());
        }
    }

    /// Only reports about the current object matter.
    fn encode_reports(&self, bytes: &mut Vec<u8>) {
        let Some(now) = self.object() else { return };
        let (now, since) = (number_of(now.uid()), now.status_or_default().epoch);
        for (_, epoch, zone) in self.held.iter().filter(|(uid, epoch, _)| *uid == now && *epoch >= since.0) {
            number(*epoch, bytes);
            text(zone, bytes);
        }
    }

    fn encode_agents(&self, agents: &AgentObjectVersions, names: &mut SessionNames, bytes: &mut Vec<u8>) {
        for agent in agents.iter() {
            let Some(agent) = agent else {
                bytes.push(0xff);
                continue;
            };
            bytes.extend(agent.digest());
            bytes.push(session_of(agent).map_or(0xff, |id| names.of(id)));
            bytes.push(u8::from(self.is_lost(agent)));
        }
    }
}
