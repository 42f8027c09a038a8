//! Commands sent by one session and reports received, by account. No I/O and no clock: the time is an argument.

use std::collections::HashMap;
use std::time::Duration;

use kubesvc_core::GrantEpoch;
use kubesvc_core::failure::{Failure, FailureClass};
use kubesvc_core::lifecycle::{AgentReport, ClusterIdentity, Tick, UnansweredMessage};

/// Time since the start of the hub.
pub(crate) type HubUptime = Duration;

/// Delays before a failed epoch is sent again, in seconds; the last one repeats.
pub(crate) const RETRY_DELAYS_SECONDS: [u64; 4] = [10, 20, 40, 60];
/// Number of consecutive credential mismatches after which the session reports a failure.
const MAX_CREDENTIAL_MISMATCHES: u32 = 12;
/// Age of the last frame, in ticks, from which silence counts no further: the connection is being lost.
const MAX_TICKS_WITHOUT_FRAME: Tick = 15;

/// A command without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PendingCommand {
    /// An Add of this epoch waits for its credential; nothing was sent.
    Prepare(GrantEpoch),
    /// AddAccounts was sent for this epoch.
    Add(GrantEpoch),
    /// DeleteAccounts was sent for this epoch.
    Drop(GrantEpoch),
}

/// Time at which a failed epoch is sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RetryAt {
    pub(crate) epoch: GrantEpoch,
    pub(crate) count: usize,
    pub(crate) at: HubUptime,
    /// The agent held the account in the wrong cluster. It reported Held before, so the next Held does not end the
    /// series.
    pub(super) wrong_cluster: bool,
}

/// What an agent holds of an account. A definition of a later epoch that fails does not change it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HeldAtAgent {
    pub(crate) epoch: GrantEpoch,
    /// uid of kube-system of the cluster that it reached; empty if unknown.
    pub(crate) cluster_uid: String,
    /// Only the hello of this session says so. The account may have been taken from the zone while the agent was away.
    pub(crate) is_claim: bool,
}

/// An account that a hello says is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HeldClaim {
    pub(crate) uid: String,
    pub(crate) name: String,
    pub(crate) epoch: GrantEpoch,
    /// uid of kube-system of the cluster that it reached; empty if unknown.
    pub(crate) cluster_uid: String,
}

#[cfg(test)]
impl HeldClaim {
    /// A claim under epoch 1.
    pub(crate) fn of_test(uid: &str) -> Self {
        Self { uid: uid.to_owned(), name: "n".to_owned(), epoch: GrantEpoch(1), cluster_uid: String::new() }
    }
}

/// State of one account in one session.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct LedgerEntry {
    pub(crate) name: String,
    /// Greatest epoch that the agent may hold, from its hello or from a sent Add; `None` if it holds nothing.
    pub(crate) believed: Option<GrantEpoch>,
    /// Its hello said that it holds the account. It is sent an Add all the same, to learn what it reaches.
    pub(super) said_held: bool,
    pub(crate) command: Option<PendingCommand>,
    /// Last report, with its epoch.
    pub(crate) report: Option<(GrantEpoch, AgentReport)>,
    /// What requests are sent to; absent once a drop is sent.
    pub(crate) held: Option<HeldAtAgent>,
    /// Whether the object was read from the API server since the registration.
    pub(crate) confirmed: bool,
    pub(crate) retry: Option<RetryAt>,
    /// Epoch whose credential differed from the grant's, and the number of consecutive mismatches.
    pub(crate) credential_mismatch: Option<(GrantEpoch, u32)>,
    /// Epoch of a drop that failed.
    pub(crate) drop_failed: Option<GrantEpoch>,
    /// Claimed in the hello while it was no account of the zone.
    pub(crate) foreign: bool,
    /// Epoch of the outstanding answer, and since when, on the silence clock.
    pub(crate) owed: Option<(GrantEpoch, Tick)>,
    /// Last Add or drop sent, on this stream or an earlier one of the process; absent once it is answered.
    pub(crate) unanswered: Option<UnansweredMessage>,
    /// Time for which earlier streams of the process waited for the answer of an epoch, in ticks.
    pub(super) waited_before: Option<(GrantEpoch, Tick)>,
    /// The agent's identity does not allow the account: that it holds the account does not count.
    pub(super) is_forbidden: bool,
}

/// Effect of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnswerEffect {
    /// It is the account's last report now.
    Taken,
    /// A duplicate, or an answer for an older epoch; ignored.
    Late,
    /// The account was never sent in this session.
    NeverSent,
    /// The epoch was never sent.
    Future,
}

/// Counts ticks, up to [`MAX_TICKS_WITHOUT_FRAME`] after each frame.
#[derive(Clone, Copy, Debug, Default)]
struct SilenceClock {
    counted: Tick,
    last_frame: Tick,
}

impl SilenceClock {
    fn read(self, now: Tick) -> Tick {
        self.counted + now.saturating_sub(self.last_frame).min(MAX_TICKS_WITHOUT_FRAME)
    }

    fn frame(&mut self, now: Tick) {
        self.counted = self.read(now);
        self.last_frame = now;
    }
}

/// All accounts of one session.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger {
    entries: HashMap<String, LedgerEntry>,
    /// Account names with drops in progress, and their number.
    dropping: HashMap<String, usize>,
    /// Accounts that wait until their name is free.
    waiting: HashMap<String, Vec<String>>,
    /// Number of foreign entries.
    foreign: usize,
    clock: SilenceClock,
}

impl Ledger {
    pub(crate) fn new(now: Tick) -> Self {
        Self { clock: SilenceClock { counted: 0, last_frame: now }, ..Self::default() }
    }

    pub(crate) fn entry(&self, uid: &str) -> Option<&LedgerEntry> {
        self.entries.get(uid)
    }

    pub(crate) fn uids(&self) -> impl Iterator<Item = &String> {
        self.entries.keys()
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = (&String, &LedgerEntry)> {
        self.entries.iter()
    }

    /// Records that a frame came.
    pub(crate) fn frame(&mut self, now: Tick) {
        self.clock.frame(now);
    }

    /// Returns the ticks for which an answer about the account is outstanding. Zero while the credential is being
    /// read: that wait has its own bound and is not the agent's.
    pub(crate) fn silent_for(&self, uid: &str, now: Tick) -> Option<Tick> {
        let entry = self.entries.get(uid)?;
        let (epoch, since) = entry.owed?;
        let is_preparing = matches!(entry.command, Some(PendingCommand::Prepare(_)));
        let before = entry.waited_before.filter(|(waited, _)| *waited == epoch).map_or(0, |(_, ticks)| ticks);
        Some(if is_preparing { 0 } else { before + self.clock.read(now).saturating_sub(since) })
    }

    /// Whether the object was read from the API server since the registration.
    pub(crate) fn is_confirmed(&self, uid: &str) -> bool {
        self.entries.get(uid).is_some_and(|entry| entry.confirmed)
    }

    /// Records that the object was read from the API server.
    pub(crate) fn confirm(&mut self, uid: &str) {
        if let Some(entry) = self.entries.get_mut(uid) {
            entry.confirmed = true;
        }
    }

    /// Whether any answer is outstanding.
    pub(crate) fn owes(&self) -> bool {
        self.entries.values().any(|entry| entry.owed.is_some())
    }

    /// Initializes the ledger with what the agent's hello says it holds and with the ledger of the former stream of the
    /// same process. A report is kept only where both agree. What the hello does not name may still be held, and is
    /// dropped or sent again explicitly. An answer that was outstanding stays so: a path may end each stream before the
    /// agent counts as silent.
    pub(crate) fn seed(&mut self, held: &[HeldClaim], former: &Self) {
        // Foreign accounts were never sent, so the hello alone counts.
        let sent = former.entries().filter(|(_, entry)| entry.may_hold() && !entry.foreign);
        for (uid, entry) in sent {
            self.believe(uid, &entry.name, entry.believed.unwrap_or_default(), None);
            self.at(uid, &entry.name)
                .continue_waiting(entry, former.silent_for(uid, former.clock.last_frame));
        }
        for HeldClaim { uid, name, epoch, cluster_uid } in held {
            let former = former.entry(uid).filter(|entry| entry.may_hold());
            let report = former.and_then(|entry| entry.report.clone());
            let report = report.filter(|(reported_epoch, report)| {
                reported_epoch == epoch && matches!(report, AgentReport::Held(_))
            });
            self.believe(uid, name, *epoch, report);
            let is_answered = former.and_then(|entry| entry.owed).is_none_or(|(owed, _)| owed <= *epoch);
            let entry = self.at(uid, name);
            if is_answered {
                entry.received();
            }
            entry.said_held = true;
            let known = former.and_then(|entry| entry.held.clone());
            let known = known.filter(|held| held.epoch == *epoch && !held.is_claim);
            let claim = || HeldAtAgent { epoch: *epoch, cluster_uid: cluster_uid.clone(), is_claim: true };
            // Without a cluster nothing says that it is the one to which the account is bound.
            entry.held = known.or_else(|| (!cluster_uid.is_empty()).then(claim));
        }
    }

    fn believe(
        &mut self,
        uid: &str,
        name: &str,
        epoch: GrantEpoch,
        report: Option<(GrantEpoch, AgentReport)>,
    ) {
        let entry = self.at(uid, name);
        entry.believed = entry.believed.max(Some(epoch));
        if report.is_some() {
            entry.report = report;
        }
    }

    /// Returns the number of accounts held, and of those that failed to be added or dropped or were lost. An account
    /// whose later definition failed is both.
    pub(crate) fn counts(&self) -> (usize, usize) {
        self.entries.values().fold((0, 0), |(held, failed), entry| {
            // A reconnected agent holds what its hello says, although an Add is sent again.
            let is_claimed = entry.held.is_some() || (entry.report.is_none() && entry.said_held);
            let is_held = is_claimed || entry.reported_held();
            let has_failed = match &entry.report {
                // The agent was not asked: its identity does not allow the account.
                Some((_, AgentReport::Failed(failure))) => failure.class != FailureClass::ZoneForbidden,
                report => matches!(report, Some((_, AgentReport::Lost(_)))),
            };
            (held + usize::from(is_held), failed + usize::from(has_failed))
        })
    }

    /// Starts an Add: an answer is outstanding from now on, although the credential is not read yet.
    pub(crate) fn prepare(&mut self, uid: &str, name: &str, epoch: GrantEpoch, now: Tick) {
        self.owe(uid, name, epoch, now).command = Some(PendingCommand::Prepare(epoch));
    }

    /// Delays an Add until the name is free.
    pub(crate) fn wait_for_name(&mut self, uid: &str, name: &str, epoch: GrantEpoch, now: Tick) {
        self.owe(uid, name, epoch, now);
        let waiting = self.waiting.entry(name.to_owned()).or_default();
        if !waiting.iter().any(|one| one == uid) {
            waiting.push(uid.to_owned());
        }
    }

    /// Whether a drop under this name is in progress.
    pub(crate) fn name_is_busy(&self, name: &str) -> bool {
        self.dropping.contains_key(name)
    }

    /// Records that an Add was sent; the time limit of its answer starts.
    pub(crate) fn added(&mut self, uid: &str, epoch: GrantEpoch, now: Tick) {
        let since = self.clock.read(now);
        if let Some(entry) = self.entries.get_mut(uid) {
            entry.command = Some(PendingCommand::Add(epoch));
            entry.owed = Some((epoch, since));
            entry.believed = entry.believed.max(Some(epoch));
            self.foreign -= usize::from(std::mem::take(&mut entry.foreign));
            entry.credential_mismatch = None;
            entry.drop_failed = None;
        }
    }

    /// Records the size of the message with an Add or a drop, in bytes: the largest counts.
    pub(crate) fn sent(&mut self, uid: &str, bytes: usize) {
        if let Some(entry) = self.entries.get_mut(uid) {
            // A drop is far smaller than the Add before it, which is what the path may lose.
            let unanswered = entry.unanswered.get_or_insert_default();
            unanswered.bytes = unanswered.bytes.max(bytes);
        }
    }

    /// Records that a drop was sent.
    pub(crate) fn dropping(&mut self, uid: &str, name: &str, epoch: GrantEpoch, now: Tick) {
        let before = self.entries.get(uid).and_then(|entry| entry.command);
        if !matches!(before, Some(PendingCommand::Drop(_))) {
            *self.dropping.entry(name.to_owned()).or_default() += 1;
        }
        let entry = self.owe(uid, name, epoch, now);
        entry.command = Some(PendingCommand::Drop(epoch));
        entry.held = None;
    }

    /// Records that a drop was sent because the agent holds the account in the wrong cluster, and reports that
    /// failure.
    pub(super) fn dropping_from_wrong_cluster(
        &mut self,
        uid: &str,
        epoch: GrantEpoch,
        failure: Failure,
        at: (HubUptime, Tick),
    ) {
        let (now, tick) = at;
        let Some(name) = self.entries.get(uid).map(|entry| entry.name.clone()) else { return };
        self.dropping(uid, &name, epoch, tick);
        let entry = self.at(uid, &name);
        entry.report = Some((epoch, AgentReport::Failed(failure)));
        entry.pace(epoch, now);
        entry.retry = entry.retry.map(|again| RetryAt { wrong_cluster: true, ..again });
    }

    /// Records that the agent's identity does not allow the account, and reports that failure: from now on it counts for
    /// nothing that the agent holds it. Returns whether that is new.
    pub(super) fn forbid(&mut self, uid: &str, name: &str, epoch: GrantEpoch, failure: Failure) -> bool {
        let entry = self.at(uid, name);
        let report = Some((epoch, AgentReport::Failed(failure)));
        if entry.is_forbidden && entry.report == report {
            return false;
        }
        entry.is_forbidden = true;
        entry.said_held = false;
        entry.held = None;
        entry.report = report;
        if !matches!(entry.command, Some(PendingCommand::Drop(_))) {
            entry.owed = None;
        }
        true
    }

    /// Records that the agent's identity allows the account, which may be sent at once.
    pub(super) fn allow(&mut self, uid: &str) {
        if let Some(entry) = self.entries.get_mut(uid).filter(|entry| entry.is_forbidden) {
            entry.is_forbidden = false;
            entry.report = None;
            entry.retry = None;
        }
    }

    /// Reports Dropped for an agent that was never sent the account.
    pub(crate) fn report_dropped(&mut self, uid: &str, name: &str, epoch: GrantEpoch) {
        let entry = self.at(uid, name);
        entry.command = None;
        entry.owed = None;
        entry.report = Some((epoch, AgentReport::Dropped));
    }

    /// Records that an Add was not sent. A failure of the account is reported; anything else is retried at `retry`.
    pub(crate) fn not_sent(
        &mut self,
        uid: &str,
        epoch: GrantEpoch,
        failure: Option<Failure>,
        now: HubUptime,
        wait: HubUptime,
    ) {
        let Some(entry) = self.entries.get_mut(uid) else { return };
        if entry.command != Some(PendingCommand::Prepare(epoch)) {
            return;
        }
        entry.command = None;
        entry.owed = None;
        if let Some(failure) = failure {
            entry.report = Some((epoch, AgentReport::Failed(failure)));
            entry.pace(epoch, now);
        } else {
            entry.retry = Some(RetryAt { epoch, count: 0, at: now + wait, wrong_cluster: false });
        }
    }

    /// Records that an Add was not sent because of a credential mismatch. The leader has to check, and cannot notice
    /// by itself. A persistent mismatch is reported as a failure.
    pub(super) fn record_credential_mismatch(
        &mut self,
        uid: &str,
        epoch: GrantEpoch,
        now: HubUptime,
        wait: HubUptime,
    ) {
        let Some(entry) = self.entries.get_mut(uid) else { return };
        let before =
            entry.credential_mismatch.filter(|(doubted, _)| *doubted == epoch).map_or(0, |(_, count)| count);
        let count = before.saturating_add(1);
        entry.credential_mismatch = Some((epoch, count));
        let failure = (count >= MAX_CREDENTIAL_MISMATCHES).then(another_credential);
        self.not_sent(uid, epoch, failure, now, wait);
    }

    /// Whether the last read of this epoch's credential was a mismatch.
    pub(crate) fn has_credential_mismatch(&self, uid: &str, epoch: GrantEpoch) -> bool {
        self.entries
            .get(uid)
            .and_then(|entry| entry.credential_mismatch)
            .is_some_and(|(doubted, _)| doubted == epoch)
    }

    /// Discards a prepared Add.
    pub(super) fn abandon(&mut self, uid: &str, epoch: GrantEpoch) {
        if let Some(entry) =
            self.entries.get_mut(uid).filter(|one| one.command == Some(PendingCommand::Prepare(epoch)))
        {
            entry.command = None;
        }
    }

    /// Handles `Working`: the silence clock restarts.
    pub(crate) fn working(&mut self, uid: &str, now: Tick) {
        let since = self.clock.read(now);
        let Some(entry) = self.entries.get_mut(uid) else { return };
        if let Some((_, owed)) = entry.owed.as_mut() {
            *owed = since;
            entry.received();
        }
    }

    /// Records an answer. `of_drop`: a failure to drop.
    pub(crate) fn record_answer(
        &mut self,
        uid: &str,
        epoch: GrantEpoch,
        report: AgentReport,
        of_drop: bool,
        now: HubUptime,
    ) -> AnswerEffect {
        let Some(entry) = self.entries.get_mut(uid) else { return AnswerEffect::NeverSent };
        let Some(known) = entry.known_epoch() else {
            let duplicate = report == AgentReport::Dropped
                && matches!(&entry.report, Some((reported_epoch, AgentReport::Dropped)) if *reported_epoch >= epoch);
            return if duplicate { AnswerEffect::Late } else { AnswerEffect::NeverSent };
        };
        if epoch > known {
            return AnswerEffect::Future;
        }
        let was_dropping = matches!(entry.command, Some(PendingCommand::Drop(_)));
        let heard = match report {
            AgentReport::Dropped => entry.record_dropped(epoch, now),
            AgentReport::Held(identity) => entry.record_held(epoch, identity, now),
            AgentReport::Failed(failure) if of_drop => entry.record_drop_failed(epoch, failure, now),
            AgentReport::Failed(failure) => entry.record_failed(epoch, failure, now),
            AgentReport::Lost(failure) => entry.record_lost(epoch, failure, now),
        };
        if was_dropping && !matches!(entry.command, Some(PendingCommand::Drop(_))) {
            let name = entry.name.clone();
            self.release_name(&name);
        }
        heard
    }

    /// Takes the accounts that waited for a name that is free now.
    pub(crate) fn freed(&mut self, name: &str) -> Vec<String> {
        if self.name_is_busy(name) { Vec::new() } else { self.waiting.remove(name).unwrap_or_default() }
    }

    /// Removes an account. Returns whether it was a foreign one.
    pub(crate) fn forget(&mut self, uid: &str) -> bool {
        let Some(entry) = self.entries.remove(uid) else { return false };
        if matches!(entry.command, Some(PendingCommand::Drop(_))) {
            self.release_name(&entry.name);
        }
        self.foreign -= usize::from(entry.foreign);
        entry.foreign
    }

    /// Removes what was only claimed; the next hello says whether the agent holds it.
    pub(super) fn forget_foreign(&mut self) {
        let foreign = self.entries.iter().filter(|(_, entry)| entry.foreign);
        let foreign: Vec<_> = foreign.map(|(uid, _)| uid.clone()).collect();
        for uid in &foreign {
            self.forget(uid);
        }
        self.entries.shrink_to_fit();
    }

    /// Marks claimed accounts as foreign.
    pub(crate) fn are_foreign(&mut self, uids: impl Iterator<Item = String>) {
        for uid in uids {
            if let Some(entry) = self.entries.get_mut(&uid).filter(|entry| !entry.foreign) {
                entry.foreign = true;
                self.foreign += 1;
            }
        }
    }

    /// Returns the number of foreign accounts.
    pub(crate) fn foreign(&self) -> usize {
        self.foreign
    }

    fn release_name(&mut self, name: &str) {
        if let Some(count) = self.dropping.get_mut(name) {
            *count -= 1;
            if *count == 0 {
                self.dropping.remove(name);
            }
        }
    }

    /// An answer for this epoch is outstanding, and for no other.
    fn owe(&mut self, uid: &str, name: &str, epoch: GrantEpoch, now: Tick) -> &mut LedgerEntry {
        let since = self.clock.read(now);
        let entry = self.at(uid, name);
        // The agent's hello may have used another name. A drop in progress counts under the name it started with.
        if entry.name != name && !matches!(entry.command, Some(PendingCommand::Drop(_))) {
            name.clone_into(&mut entry.name);
        }
        let same = entry.owed.is_some_and(|(owed, _)| owed == epoch)
            && !matches!(entry.command, Some(PendingCommand::Drop(_)));
        if !same {
            entry.owed = Some((epoch, since));
        }
        entry
    }

    fn at(&mut self, uid: &str, name: &str) -> &mut LedgerEntry {
        self.entries
            .entry(uid.to_owned())
            .or_insert_with(|| LedgerEntry { name: name.to_owned(), ..LedgerEntry::default() })
    }
}

/// Failure reported when the leader keeps granting another credential than the one read here.
fn another_credential() -> Failure {
    let message = "the replica of the agent reads another credential than the leader; see that all replicas have the same file, and the same Secret";
    Failure::new(FailureClass::CredentialDiffers, message)
}

impl LedgerEntry {
    /// Whether the agent may hold the account.
    pub(super) fn may_hold(&self) -> bool {
        self.believed.is_some()
    }

    /// Whether the agent reported in this session, or in the former one of its process, that it holds the account: under
    /// the epoch of its last report, or under an earlier one that it kept.
    pub(super) fn reported_held(&self) -> bool {
        matches!(self.report, Some((_, AgentReport::Held(_))))
            || self.held.as_ref().is_some_and(|held| !held.is_claim)
    }

    /// Returns the greatest epoch that the agent can know.
    fn known_epoch(&self) -> Option<GrantEpoch> {
        match self.command {
            Some(PendingCommand::Add(epoch) | PendingCommand::Drop(epoch)) => self.believed.max(Some(epoch)),
            _ => self.believed,
        }
    }

    fn newest_reported_epoch(&self) -> GrantEpoch {
        self.report.as_ref().map_or(GrantEpoch(i64::MIN), |(epoch, _)| *epoch)
    }

    fn answered(&mut self) {
        self.command = None;
        self.owed = None;
        self.received();
    }

    /// The agent has received the last message.
    fn received(&mut self) {
        self.unanswered = None;
        self.waited_before = None;
    }

    /// Takes over the outstanding answer of the former stream's entry, for which that stream waited so many ticks.
    fn continue_waiting(&mut self, former: &Self, waited: Option<Tick>) {
        let was_sent = matches!(former.command, Some(PendingCommand::Add(_) | PendingCommand::Drop(_)));
        self.unanswered = former.unanswered.map(|message| UnansweredMessage {
            ended_streams: message.ended_streams.saturating_add(was_sent.into()),
            ..message
        });
        let owed = former.owed.map(|(epoch, _)| epoch);
        self.waited_before = if was_sent { owed.zip(waited) } else { former.waited_before };
    }

    fn pace(&mut self, epoch: GrantEpoch, now: HubUptime) {
        let count = self.retry.filter(|again| again.epoch == epoch).map_or(0, |again| again.count);
        let wait = RETRY_DELAYS_SECONDS[count.min(RETRY_DELAYS_SECONDS.len() - 1)];
        let at = now + Duration::from_secs(wait);
        self.retry = Some(RetryAt { epoch, count: count + 1, at, wrong_cluster: false });
    }

    /// Whether the drop of this epoch follows from the wrong cluster; that failure remains the report.
    fn failed_in_wrong_cluster(&self, epoch: GrantEpoch) -> bool {
        self.retry.is_some_and(|again| again.wrong_cluster && again.epoch == epoch)
            && matches!(&self.report, Some((reported_epoch, AgentReport::Failed(_))) if *reported_epoch == epoch)
    }

    fn record_dropped(&mut self, epoch: GrantEpoch, now: HubUptime) -> AnswerEffect {
        match self.command {
            Some(PendingCommand::Add(sent) | PendingCommand::Drop(sent)) if epoch < sent => {
                return AnswerEffect::Late;
            }
            // Dropped makes no sense as the answer to an Add; it must not become a loop.
            Some(PendingCommand::Add(sent)) => self.pace(sent, now),
            _ => {}
        }
        if self.believed > Some(epoch) {
            return AnswerEffect::Late;
        }
        self.believed = None;
        self.held = None;
        self.drop_failed = None;
        self.answered();
        if !self.failed_in_wrong_cluster(epoch) {
            self.report = Some((epoch, AgentReport::Dropped));
        }
        AnswerEffect::Taken
    }

    fn record_held(&mut self, epoch: GrantEpoch, identity: ClusterIdentity, now: HubUptime) -> AnswerEffect {
        let sent = match self.command {
            Some(PendingCommand::Add(sent)) => Some(sent),
            _ => None,
        };
        if self.is_forbidden {
            return AnswerEffect::Late;
        }
        // The answer to the last Add counts even if a later epoch was reported before: epochs start over where a
        // status was wiped or etcd was restored.
        if sent.is_none_or(|sent| epoch < sent) && epoch < self.newest_reported_epoch() {
            return AnswerEffect::Late;
        }
        // What a drop was sent for takes no more requests.
        let is_dropping = matches!(self.command, Some(PendingCommand::Drop(_)));
        let cluster_uid = identity.cluster_uid.clone();
        self.held = (!is_dropping).then_some(HeldAtAgent { epoch, cluster_uid, is_claim: false });
        match sent {
            Some(sent) if epoch > sent => {
                let message = format!(
                    "the agent holds epoch {epoch} of the account, later than epoch {sent} of the grant"
                );
                self.answered();
                self.pace(sent, now);
                self.report =
                    Some((sent, AgentReport::Failed(Failure::new(FailureClass::Internal, message))));
            }
            Some(sent) if epoch == sent => {
                self.answered();
                self.retry = self.retry.filter(|again| again.wrong_cluster);
                self.report = Some((epoch, AgentReport::Held(identity)));
            }
            _ => self.report = Some((epoch, AgentReport::Held(identity))),
        }
        AnswerEffect::Taken
    }

    fn record_failed(&mut self, epoch: GrantEpoch, failure: Failure, now: HubUptime) -> AnswerEffect {
        match self.command {
            Some(PendingCommand::Add(sent)) if epoch == sent => {
                self.answered();
                self.pace(epoch, now);
                self.held.take_if(|held| held.epoch >= epoch);
                self.report = Some((epoch, AgentReport::Failed(failure)));
                AnswerEffect::Taken
            }
            _ => AnswerEffect::Late,
        }
    }

    fn record_drop_failed(&mut self, epoch: GrantEpoch, failure: Failure, now: HubUptime) -> AnswerEffect {
        match self.command {
            Some(PendingCommand::Drop(sent)) if epoch == sent => {
                self.answered();
                self.pace(epoch, now);
                self.drop_failed = Some(epoch);
                self.report = Some((epoch, AgentReport::Failed(failure)));
                AnswerEffect::Taken
            }
            _ => AnswerEffect::Late,
        }
    }

    fn record_lost(&mut self, epoch: GrantEpoch, failure: Failure, now: HubUptime) -> AnswerEffect {
        let is_news = self.held.take_if(|held| held.epoch <= epoch).is_some();
        if epoch < self.newest_reported_epoch() {
            // The report is about a later definition.
            return if is_news { AnswerEffect::Taken } else { AnswerEffect::Late };
        }
        if self.command.is_none() {
            self.pace(epoch, now);
        }
        self.report = Some((epoch, AgentReport::Lost(failure)));
        AnswerEffect::Taken
    }
}

#[cfg(test)]
mod tests;
