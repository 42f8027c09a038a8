//! Sessions, and the agents at their other ends.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::hub::model_checker::shared::Shared;
use crate::hub::model_checker::world::{
    HubSession, ModelWorld, REPLICA_NAMES, SessionNumber, ToAgent, number_of, session_of,
};
use jiff::Timestamp;

use crate::hub::agent_admission::queue::AdmissionClass;
use crate::hub::agent_status::registration::{Registration, status};
use crate::hub::sessions::duties::{Duty, SessionView, duty};
use crate::hub::sessions::ledger::{HeldClaim, HubUptime, Ledger};
use crate::hub::sessions::wire_conversion;
use kubesvc_agent::{ActivatedAccount, Definition, Effect};
use kubesvc_core::agent_resource::SessionEnd;
use kubesvc_core::lifecycle::AgentReport;
use kubesvc_core::report_outbox::{OutboxEntry, PackingCursor, SessionReport, awaited, packed};
use kubesvc_core::wire::common::{AccountRef, Failure, failure::Class};
use kubesvc_core::wire::ops::account_result::Outcome;
use kubesvc_core::wire::ops::account_spec::Credential;
use kubesvc_core::wire::ops::{AccountSpec, ClusterIdentity, HeldAccount};
use kubesvc_core::{GrantEpoch, GrantPhase, KubesvcAccount, KubesvcAgent, KubesvcAgentStatus, ZoneId};

/// Time at which frames are received.
const RECEIVED: HubUptime = Duration::from_secs(3600);
/// Time at which sessions check their accounts: every retry delay has passed by then.
const READ: HubUptime = Duration::from_secs(7200);

impl ModelWorld {
    /// Name of an account on the wire.
    pub(super) fn uid_on_the_wire<'a>(&self, uid: &'a str) -> &'a str {
        if self.rules.uids { uid } else { "x" }
    }

    /// A process connects to a replica. Returns whether it was accepted.
    pub(super) fn connect(&mut self, process: usize, replica: usize) -> bool {
        let one = self.processes[process].clone();
        let (agent, boot) = (one.agent, one.boot);
        let here = |session: &Shared<HubSession>| {
            !session.ended && session.replica == replica && session.agent == agent
        };
        let former = self.sessions.iter().position(here);
        let is_another = |former: usize| self.sessions[former].boot != boot && self.rules.one_process;
        if former.is_some_and(is_another) {
            return false;
        }
        let id = self.next_session;
        if self.rules.registration && !self.register(process, replica, id) {
            return false;
        }
        self.next_session += 1;
        let object = self.agents[agent].as_ref();
        let approved = object.map_or(self.approves(one.agent_id), |agent| agent.spec.approved);
        let former = former.map(|former| self.sessions.remove(former));
        let claim = |held: HeldAccount| {
            let AccountRef { uid, name, epoch, .. } = held.account?;
            let epoch = GrantEpoch::from_wire(epoch).unwrap_or_default();
            Some(HeldClaim { uid, name, epoch, cluster_uid: held.cluster_uid })
        };
        let summary: Vec<_> = one.table.held().filter_map(claim).collect();
        let before = former.filter(|former| former.boot == boot).map(|former| former.ledger.clone());
        let mut ledger = Ledger::new(0);
        ledger.seed(&summary, &before.unwrap_or_default());
        self.sessions.push(Shared::new(HubSession {
            id,
            replica,
            process,
            agent,
            agent_id: one.agent_id,
            zone: one.zone,
            boot,
            approved,
            ledger,
            registered_at: self.stored,
            reported: Vec::new(),
            ended: false,
            to_agent: VecDeque::new(),
            to_hub: VecDeque::new(),
        }));
        let one = self.processes[process].edit();
        one.seq += 1;
        one.stream = Some(id);
        true
    }

    /// Writes the session to the agent's object.
    fn register(&mut self, process: usize, replica: usize, id: SessionNumber) -> bool {
        let one = &self.processes[process];
        let place = one.agent;
        let registration = Registration {
            agent_id: one.agent_id.into(),
            zone: one.zone.into(),
            session_id: id.to_string().into(),
            boot_id: one.boot.to_string().into(),
            connect_seq: i64::from(one.seq + 1),
            replica: REPLICA_NAMES[replica].into(),
            version: String::new(),
            protocol: 1,
            connected_since: Timestamp::UNIX_EPOCH,
            cluster_uid: String::new(),
            streams_objects: true,
            identity: None,
            needs_accounts: false,
            admission: AdmissionClass::Returning,
        };
        let new =
            || Shared::new(status::new_object(one.agent_id, &registration, self.approves(one.agent_id)));
        let agent = self.agents[place].clone().unwrap_or_else(new);
        let alive = self.rules.one_process && !self.is_lost(&agent);
        let Ok(status) = status::registered(&agent, &registration, |_| alive, Timestamp::UNIX_EPOCH) else {
            return false;
        };
        self.put_agent(place, &agent, status);
        true
    }

    fn put_agent(&mut self, place: usize, agent: &KubesvcAgent, status: KubesvcAgentStatus) {
        let now = KubesvcAgent { status: Some(status), ..agent.clone() };
        Arc::make_mut(&mut self.agents)[place] = Some(Shared::new(now));
    }

    /// A session checks its accounts. Returns whether anything changed.
    pub(super) fn check_accounts(&mut self, index: usize) -> bool {
        let session = &self.sessions[index];
        let seen = self.seen_by(session.replica).cloned();
        let seen_uid = seen.as_ref().map(|account| self.uid_on_the_wire(account.uid()).to_owned());
        let mut uids: Vec<_> = session.ledger.uids().cloned().chain(seen_uid.clone()).collect();
        uids.sort();
        uids.dedup();
        let mut changed = false;
        for uid in uids {
            let account = seen.as_deref().filter(|_| seen_uid.as_deref() == Some(uid.as_str()));
            changed |= self.do_duty(index, &uid, account);
        }
        changed
    }

    fn do_duty(&mut self, index: usize, uid: &str, account: Option<&KubesvcAccount>) -> bool {
        let session = &self.sessions[index];
        let is_connected = self.processes[session.process].stream == Some(session.id);
        let view = SessionView {
            zone: &ZoneId::from(session.zone),
            approved: session.approved,
            lists: Some(self.lists(session.agent_id) || !self.rules.own_lists),
            ..SessionView::default()
        };
        let owed = duty(view, account, session.ledger.entry(uid), READ);
        let is_known = self.is_seen_since(session) || !self.rules.object_read;
        if let (Duty::Add(epoch), Some(account)) = (owed, account)
            && !is_known
            && !session.ledger.is_confirmed(uid)
            && !self.is_granted(account, epoch.0)
        {
            return false;
        }
        let session = self.sessions[index].edit();
        let ledger = &mut session.ledger;
        match owed {
            Duty::Nothing | Duty::Later(_) => return false,
            Duty::Add(epoch) if ledger.name_is_busy("a") => {
                let before = ledger.entry(uid).cloned();
                ledger.wait_for_name(uid, "a", epoch, 0);
                return ledger.entry(uid).cloned() != before;
            }
            Duty::Add(epoch) => {
                ledger.prepare(uid, "a", epoch, 0);
                if !is_known {
                    ledger.confirm(uid);
                }
                ledger.added(uid, epoch, 0);
                // Identifies the object, also where uids do not.
                let generation = account.map(|one| number_of(one.uid())).unwrap_or_default().into();
                if is_connected {
                    session.to_agent.push_back(ToAgent::Add {
                        uid: uid.to_owned(),
                        epoch: epoch.0,
                        generation,
                    });
                }
            }
            Duty::Drop(epoch) => {
                ledger.dropping(uid, "a", epoch, 0);
                if is_connected {
                    session.to_agent.push_back(ToAgent::Drop { uid: uid.to_owned(), epoch: epoch.0 });
                }
            }
            Duty::DropFromWrongCluster(_) => {
                unreachable!("an agent reached another cluster, and there is one")
            }
            Duty::ReportDropped(epoch) => ledger.report_dropped(uid, "a", epoch),
            Duty::Forget => {
                ledger.forget(uid);
                ledger.freed("a");
            }
        }
        true
    }

    /// Whether the stored object has an open grant under this epoch.
    fn is_granted(&self, seen: &KubesvcAccount, epoch: i64) -> bool {
        self.object().is_some_and(|now| {
            let status = now.status_or_default();
            now.uid() == seen.uid()
                && status.phase() == GrantPhase::Open
                && status.epoch == GrantEpoch(epoch)
                && status.granted_zone() == seen.status_or_default().granted_zone()
        })
    }

    /// The agent handles the next frame of its stream.
    pub(super) fn hand_to_agent(&mut self, index: usize) -> bool {
        let number = self.sessions[index].process;
        if self.sessions[index].to_agent.is_empty()
            || self.processes[number].stream != Some(self.sessions[index].id)
        {
            return false;
        }
        let Some(frame) = self.sessions[index].edit().to_agent.pop_front() else { return false };
        let process = self.processes[number].edit();
        let effects = match frame {
            ToAgent::Add { uid, epoch, generation } => {
                let credential = Some(Credential::Kubeconfig(b"k".to_vec()));
                let spec = AccountSpec { credential, ..AccountSpec::default() };
                process.table.add(
                    wire_conversion::account_ref(&uid, "a", GrantEpoch(epoch), generation),
                    Definition::split(spec).1,
                )
            }
            ToAgent::Drop { uid, epoch } => {
                process.table.drop_account(wire_conversion::account_ref(&uid, "a", GrantEpoch(epoch), 0))
            }
        };
        self.carry_out_at(index, effects);
        true
    }

    /// An account that was starting has started, or failed.
    pub(super) fn finish(&mut self, process: usize, number: usize, succeeds: bool) -> bool {
        let Some(uid) = self.processes[process].starting.keys().nth(number).cloned() else { return false };
        let one = self.processes[process].edit();
        let Some((attempt, _)) = one.starting.remove(&uid) else { return false };
        let failure = || Failure { class: Class::Unreachable.into(), ..Failure::default() };
        let identity = ClusterIdentity { kube_system_uid: "k".into(), ..ClusterIdentity::default() };
        let reached = ActivatedAccount { identity, files: Vec::new(), at: Timestamp::UNIX_EPOCH };
        let result = if succeeds { Ok(reached) } else { Err(failure()) };
        let effects = one.table.finished(&uid, attempt, result);
        let stream = one.stream;
        if let Some(index) = self.sessions.iter().position(|session| Some(session.id) == stream) {
            self.carry_out_at(index, effects);
        }
        true
    }

    fn carry_out_at(&mut self, index: usize, effects: Vec<Effect>) {
        let session = self.sessions[index].edit();
        let process = self.processes[session.process].edit();
        for effect in effects {
            match effect {
                Effect::Start { attempt, account, .. } => {
                    process.starting.insert(account.uid.clone(), (attempt, account));
                }
                Effect::Cancel { attempt, .. } => process.starting.retain(|_, (one, _)| *one != attempt),
                Effect::Stop { account, keep } => {
                    process.starting.retain(|of, (one, _)| *of != account.uid || Some(*one) == keep);
                }
                Effect::Answer(answer) => {
                    if let (Some(account), Some(Outcome::Identity(_))) = (&answer.account, &answer.outcome) {
                        Arc::make_mut(&mut self.held).insert(said(account, process.zone));
                    }
                    session.to_hub.push_back(*answer);
                }
                // No account is streamed here, so none is lost.
                Effect::Kept { .. } | Effect::Lost(_) => {}
            }
        }
    }

    /// The hub handles the next answer of a stream.
    pub(super) fn hand_to_hub(&mut self, index: usize) -> bool {
        let session = &self.sessions[index];
        let Some(answer) = session.to_hub.front().cloned().and_then(wire_conversion::answer) else {
            return false;
        };
        let granted = self.seen_by(session.replica).is_some_and(|seen| {
            self.uid_on_the_wire(seen.uid()) == answer.uid
                && seen.status_or_default().granted_zone().is_some_and(|zone| zone == session.zone)
        });
        let session = self.sessions[index].edit();
        session.to_hub.pop_front();
        if granted || !matches!(answer.report, AgentReport::Held(_)) {
            session.ledger.record_answer(&answer.uid, answer.epoch, answer.report, answer.of_drop, RECEIVED);
            session.ledger.freed("a");
        }
        true
    }

    /// A session writes its outbox, unless its replica leads. Returns whether anything was written.
    pub(super) fn report(&mut self, index: usize) -> bool {
        let session = &self.sessions[index];
        let leads = self.replicas[session.replica].leads.is_some();
        let seen = self.seen_by(session.replica).filter(|_| !leads);
        let entry = seen.and_then(|seen| {
            let entry = session.ledger.entry(self.uid_on_the_wire(seen.uid()));
            let word = entry.and_then(|entry| entry.report.as_ref());
            let offers = session.approved || !self.rules.approved_offers;
            let said = SessionReport { report: word, offers, ..SessionReport::default() };
            awaited(seen, &ZoneId::from(session.zone), said)
        });
        let outbox = packed(entry.into_iter().collect(), &PackingCursor::new()).entries;
        let seen = self.seen_by(session.replica).map(|seen| &**seen);
        let may_stand = |entry: &OutboxEntry| entry.may_stand(seen.filter(|seen| seen.uid() == entry.uid));
        let may_stand = outbox.is_empty() && session.reported.iter().all(may_stand);
        if may_stand || session.reported == outbox {
            return false;
        }
        let (place, id) = (session.agent, session.id.to_string().into());
        let agent = self.agents[place].clone();
        match agent.as_ref().and_then(|agent| Some((agent, status::reported(agent, &id, &outbox)?))) {
            Some((agent, status)) => {
                self.put_agent(place, agent, status);
                self.sessions[index].edit().reported = outbox;
            }
            None => drop(self.sessions.remove(index)),
        }
        true
    }

    /// A replica's watch shows the current KubesvcAgents. Apart from closing streams, the replica uses them only if
    /// it leads.
    pub(super) fn watch_agents(&mut self, replica: usize) -> bool {
        let agents = self.agents.clone();
        let before = std::mem::replace(&mut self.replicas[replica].agents, agents);
        self.forget_gone(replica);
        let same = Arc::ptr_eq(&before, &self.agents) || self.replicas[replica].leads.is_none();
        let heeded = self.apply_approvals(replica);
        self.close_superseded(replica) || heeded || !same
    }

    /// The sessions of a replica learn their approval. Returns whether any did.
    fn apply_approvals(&mut self, replica: usize) -> bool {
        let mut changed = false;
        for session in self.sessions.iter_mut().filter(|session| session.replica == replica) {
            let agent = self.agents[session.agent].as_ref();
            if let Some(approved) = agent.map(|agent| agent.spec.approved)
                && approved != session.approved
            {
                session.edit().approved = approved;
                changed = true;
            }
        }
        changed
    }

    /// Closes the sessions of a replica whose objects name another one.
    pub(super) fn close_superseded(&mut self, replica: usize) -> bool {
        let (before, agents) = (self.sessions.len(), self.agents.clone());
        let registration = self.rules.registration;
        self.sessions.retain(|session| {
            let named = || agents[session.agent].as_ref().and_then(|agent| session_of(agent));
            session.replica != replica || !registration || named() == Some(session.id)
        });
        self.sessions.len() != before
    }

    /// The object of an agent records the end of its session.
    pub(super) fn report_disconnect(&mut self, index: usize) -> bool {
        let session = self.sessions.remove(index);
        if let Some(agent) = self.agents[session.agent].clone()
            && let Some(status) = status::disconnected(
                &agent,
                &session.id.to_string().into(),
                SessionEnd::Cut,
                Timestamp::UNIX_EPOCH,
            )
        {
            self.put_agent(session.agent, &agent, status);
        }
        true
    }
}

/// Object, epoch and zone of an account that an agent holds.
fn said(account: &AccountRef, zone: &'static str) -> (u8, i64, &'static str) {
    let epoch = i64::try_from(account.epoch).unwrap_or_default();
    (u8::try_from(account.generation).unwrap_or_default(), epoch, zone)
}
