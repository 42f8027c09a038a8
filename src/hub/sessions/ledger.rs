//! What one session has been told and has said, account by account. No I/O and no clock: time comes in.

use std::collections::HashMap;
use std::time::Duration;

use crate::account::GrantEpoch;
use crate::account::failure::{Failure, FailureClass};
use crate::account::lifecycle::{AgentReport, Tick};

/// Time since the hub began.
pub(in crate::hub) type Moment = Duration;

/// Delays before a failed epoch is sent again, in seconds; the last one repeats.
pub(in crate::hub) const RETRY_DELAYS_SECONDS: [u64; 4] = [10, 20, 40, 60];
/// Number of mismatches in a row between the credential read here and the grant's after which that is a failure.
const MAX_CREDENTIAL_MISMATCHES: u32 = 12;
/// Age of a session's last frame, in ticks, from which its debts count no further: it is being lost, not silent.
const MAX_TICKS_WITHOUT_FRAME: Tick = 15;

/// What was begun for an account and is not answered yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hub) enum PendingCommand {
    /// An Add of this epoch awaits its credential; nothing was sent.
    Prepare(GrantEpoch),
    /// AddAccounts was sent for this epoch.
    Add(GrantEpoch),
    /// DeleteAccounts was sent for this epoch.
    Drop(GrantEpoch),
}

/// When an epoch that failed is asked for again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hub) struct RetryAt {
    pub(in crate::hub) epoch: GrantEpoch,
    pub(in crate::hub) count: usize,
    pub(in crate::hub) at: Moment,
    /// The failure was that the agent held it in the wrong cluster. So it said Held before, and the next Held does not
    /// end the series.
    pub(in crate::hub) wrong_cluster: bool,
}

/// One account in one session.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in crate::hub) struct LedgerEntry {
    /// The account's name.
    pub(in crate::hub) name: String,
    /// The greatest epoch that the agent may hold: told in its hello, or sent. Absent: it holds nothing.
    pub(in crate::hub) believed: Option<GrantEpoch>,
    /// It said in its hello that it holds the account. It is asked again all the same, for what it reaches.
    pub(in crate::hub) said_held: bool,
    pub(in crate::hub) command: Option<PendingCommand>,
    /// The last report, with its epoch.
    pub(in crate::hub) report: Option<(GrantEpoch, AgentReport)>,
    /// The object was read from the API server itself since the session was registered.
    pub(in crate::hub) confirmed: bool,
    pub(in crate::hub) retry: Option<RetryAt>,
    /// The epoch whose credential was found to be another one than the grant's, and how often in a row.
    pub(in crate::hub) credential_mismatch: Option<(GrantEpoch, u32)>,
    /// The epoch of a drop that the agent could not do.
    pub(in crate::hub) drop_failed: Option<GrantEpoch>,
    /// It was claimed in the hello, and was then none of the zone's accounts.
    pub(in crate::hub) foreign: bool,
    /// Since when an answer is owed, on the session's clock of silence, and for which epoch.
    pub(in crate::hub) owed: Option<(GrantEpoch, Tick)>,
}

/// What became of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hub) enum AnswerEffect {
    /// It is the account's last report now.
    Taken,
    /// A duplicate, or for an older epoch: harmless.
    Late,
    /// The session was never sent this account.
    NeverSent,
    /// The epoch was never sent.
    Future,
}

/// Counts ticks, but only those at most [`MAX_TICKS_WITHOUT_FRAME`] after a frame.
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
pub(in crate::hub) struct Ledger {
    entries: HashMap<String, LedgerEntry>,
    /// Account names with drops under way, and how many.
    dropping: HashMap<String, usize>,
    /// Accounts that wait until their name is free.
    waiting: HashMap<String, Vec<String>>,
    /// How many entries are foreign.
    foreign: usize,
    clock: SilenceClock,
}

impl Ledger {
    pub(in crate::hub) fn new(now: Tick) -> Self {
        Self { clock: SilenceClock { counted: 0, last_frame: now }, ..Self::default() }
    }

    pub(in crate::hub) fn entry(&self, uid: &str) -> Option<&LedgerEntry> {
        self.entries.get(uid)
    }

    pub(in crate::hub) fn uids(&self) -> impl Iterator<Item = &String> {
        self.entries.keys()
    }

    pub(in crate::hub) fn entries(&self) -> impl Iterator<Item = (&String, &LedgerEntry)> {
        self.entries.iter()
    }

    /// A frame came.
    pub(in crate::hub) fn frame(&mut self, now: Tick) {
        self.clock.frame(now);
    }

    /// For how many ticks the agent has owed an answer about the account. None of them while the hub itself still waits
    /// for the credential: that wait has its own bound, and says nothing about the agent.
    pub(in crate::hub) fn silent_for(&self, uid: &str, now: Tick) -> Option<Tick> {
        let entry = self.entries.get(uid)?;
        let (_, since) = entry.owed?;
        let is_preparing = matches!(entry.command, Some(PendingCommand::Prepare(_)));
        Some(if is_preparing { 0 } else { self.clock.read(now).saturating_sub(since) })
    }

    /// Whether the object was read from the API server itself since the session was registered.
    pub(in crate::hub) fn is_confirmed(&self, uid: &str) -> bool {
        self.entries.get(uid).is_some_and(|entry| entry.confirmed)
    }

    /// The object was read from the API server itself.
    pub(in crate::hub) fn confirm(&mut self, uid: &str) {
        if let Some(entry) = self.entries.get_mut(uid) {
            entry.confirmed = true;
        }
    }

    /// Whether any answer is owed.
    pub(in crate::hub) fn owes(&self) -> bool {
        self.entries.values().any(|entry| entry.owed.is_some())
    }

    /// What the agent holds by its own hello (uid, name and epoch), and what the former stream of the same process was
    /// sent. A word stands only where both agree; what the hello does not name may still be held, and is dropped or sent
    /// again explicitly.
    pub(in crate::hub) fn seed(&mut self, held: &[(String, String, GrantEpoch)], former: &Self) {
        // Foreign accounts were never sent: whether they are held, the hello alone says.
        let sent = former.entries().filter(|(_, entry)| entry.may_hold() && !entry.foreign);
        for (uid, entry) in sent {
            self.believe(uid, &entry.name, entry.believed.unwrap_or_default(), None);
        }
        for (uid, name, epoch) in held {
            let report =
                former.entry(uid).filter(|entry| entry.may_hold()).and_then(|entry| entry.report.clone());
            let report =
                report.filter(|(said, report)| said == epoch && matches!(report, AgentReport::Held(_)));
            self.believe(uid, name, *epoch, report);
            self.at(uid, name).said_held = true;
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

    /// How many accounts the agent holds, and how many it could not take or drop or has lost.
    pub(in crate::hub) fn counts(&self) -> (usize, usize) {
        self.entries.values().fold((0, 0), |(held, failed), entry| match &entry.report {
            Some((_, AgentReport::Held(_))) => (held + 1, failed),
            Some((_, AgentReport::Failed(_) | AgentReport::Lost(_))) => (held, failed + 1),
            // An agent that has come back holds what it says, though it is asked once more.
            None if entry.said_held => (held + 1, failed),
            Some((_, AgentReport::Dropped)) | None => (held, failed),
        })
    }

    /// An Add is wanted. The account owes an answer from now on, though its credential is still awaited.
    pub(in crate::hub) fn prepare(&mut self, uid: &str, name: &str, epoch: GrantEpoch, now: Tick) {
        self.owe(uid, name, epoch, now).command = Some(PendingCommand::Prepare(epoch));
    }

    /// An Add is wanted, and the name is not free: the account is looked at again when it is.
    pub(in crate::hub) fn wait_for_name(&mut self, uid: &str, name: &str, epoch: GrantEpoch, now: Tick) {
        self.owe(uid, name, epoch, now);
        let waiting = self.waiting.entry(name.to_owned()).or_default();
        if !waiting.iter().any(|one| one == uid) {
            waiting.push(uid.to_owned());
        }
    }

    /// Whether a drop under this name is under way.
    pub(in crate::hub) fn name_is_busy(&self, name: &str) -> bool {
        self.dropping.contains_key(name)
    }

    /// An Add was given to the stream: the agent's time to answer begins.
    pub(in crate::hub) fn added(&mut self, uid: &str, epoch: GrantEpoch, now: Tick) {
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

    /// A drop was given to the stream.
    pub(in crate::hub) fn dropping(&mut self, uid: &str, name: &str, epoch: GrantEpoch, now: Tick) {
        let before = self.entries.get(uid).and_then(|entry| entry.command);
        if !matches!(before, Some(PendingCommand::Drop(_))) {
            *self.dropping.entry(name.to_owned()).or_default() += 1;
        }
        let entry = self.owe(uid, name, epoch, now);
        entry.command = Some(PendingCommand::Drop(epoch));
    }

    /// A drop was given to the stream because the agent holds the account in the wrong cluster: that is its failure.
    pub(in crate::hub) fn dropping_from_wrong_cluster(
        &mut self,
        uid: &str,
        epoch: GrantEpoch,
        failure: Failure,
        at: (Moment, Tick),
    ) {
        let (now, tick) = at;
        let Some(name) = self.entries.get(uid).map(|entry| entry.name.clone()) else { return };
        self.dropping(uid, &name, epoch, tick);
        let entry = self.at(uid, &name);
        entry.report = Some((epoch, AgentReport::Failed(failure)));
        entry.pace(epoch, now);
        entry.retry = entry.retry.map(|again| RetryAt { wrong_cluster: true, ..again });
    }

    /// Dropped, said for an agent that was never sent the account.
    pub(in crate::hub) fn say_dropped(&mut self, uid: &str, name: &str, epoch: GrantEpoch) {
        let entry = self.at(uid, name);
        entry.command = None;
        entry.owed = None;
        entry.report = Some((epoch, AgentReport::Dropped));
    }

    /// The Add was not sent: the account's own fault is the session's word, anything else is tried again at `retry`.
    pub(in crate::hub) fn not_sent(
        &mut self,
        uid: &str,
        epoch: GrantEpoch,
        failure: Option<Failure>,
        now: Moment,
        wait: Moment,
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

    /// The Add was not sent: the credential is another one than the grant's. The leader has to look, and does not know it
    /// by itself. Where that goes on, it is the session's failure.
    pub(in crate::hub) fn record_credential_mismatch(
        &mut self,
        uid: &str,
        epoch: GrantEpoch,
        now: Moment,
        wait: Moment,
    ) {
        let Some(entry) = self.entries.get_mut(uid) else { return };
        let before =
            entry.credential_mismatch.filter(|(doubted, _)| *doubted == epoch).map_or(0, |(_, count)| count);
        let count = before.saturating_add(1);
        entry.credential_mismatch = Some((epoch, count));
        let failure = (count >= MAX_CREDENTIAL_MISMATCHES).then(another_credential);
        self.not_sent(uid, epoch, failure, now, wait);
    }

    /// Whether the credential of this epoch was last found to be another one than the grant's.
    pub(in crate::hub) fn has_credential_mismatch(&self, uid: &str, epoch: GrantEpoch) -> bool {
        self.entries
            .get(uid)
            .and_then(|entry| entry.credential_mismatch)
            .is_some_and(|(doubted, _)| doubted == epoch)
    }

    /// The Add is not to be sent as it was prepared.
    pub(in crate::hub) fn abandon(&mut self, uid: &str, epoch: GrantEpoch) {
        if let Some(entry) =
            self.entries.get_mut(uid).filter(|one| one.command == Some(PendingCommand::Prepare(epoch)))
        {
            entry.command = None;
        }
    }

    /// `working`: the clock of silence starts anew.
    pub(in crate::hub) fn working(&mut self, uid: &str, now: Tick) {
        let since = self.clock.read(now);
        if let Some((_, owed)) = self.entries.get_mut(uid).and_then(|entry| entry.owed.as_mut()) {
            *owed = since;
        }
    }

    /// Takes in an answer. `of_drop`: a failure to drop.
    pub(in crate::hub) fn record_answer(
        &mut self,
        uid: &str,
        epoch: GrantEpoch,
        report: AgentReport,
        of_drop: bool,
        now: Moment,
    ) -> AnswerEffect {
        let Some(entry) = self.entries.get_mut(uid) else { return AnswerEffect::NeverSent };
        let Some(known) = entry.known_epoch() else {
            let duplicate = report == AgentReport::Dropped
                && matches!(&entry.report, Some((said, AgentReport::Dropped)) if *said >= epoch);
            return if duplicate { AnswerEffect::Late } else { AnswerEffect::NeverSent };
        };
        if epoch > known {
            return AnswerEffect::Future;
        }
        let was_dropping = matches!(entry.command, Some(PendingCommand::Drop(_)));
        let heard = match report {
            AgentReport::Dropped => entry.record_dropped(epoch, now),
            AgentReport::Held(identity) => entry.record_held(epoch, AgentReport::Held(identity), now),
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

    /// Accounts that waited for a name which is free now.
    pub(in crate::hub) fn freed(&mut self, name: &str) -> Vec<String> {
        if self.name_is_busy(name) { Vec::new() } else { self.waiting.remove(name).unwrap_or_default() }
    }

    /// Nothing about the account matters to this session any more. Answers whether it was a foreign one.
    pub(in crate::hub) fn forget(&mut self, uid: &str) -> bool {
        let Some(entry) = self.entries.remove(uid) else { return false };
        if matches!(entry.command, Some(PendingCommand::Drop(_))) {
            self.release_name(&entry.name);
        }
        self.foreign -= usize::from(entry.foreign);
        entry.foreign
    }

    /// Forgets what was only claimed: whether the agent holds that, its next hello says.
    pub(in crate::hub) fn forget_foreign(&mut self) {
        let foreign = self.entries.iter().filter(|(_, entry)| entry.foreign);
        let foreign: Vec<_> = foreign.map(|(uid, _)| uid.clone()).collect();
        for uid in &foreign {
            self.forget(uid);
        }
        self.entries.shrink_to_fit();
    }

    /// These accounts were claimed, and are none of the zone's.
    pub(in crate::hub) fn are_foreign(&mut self, uids: impl Iterator<Item = String>) {
        for uid in uids {
            if let Some(entry) = self.entries.get_mut(&uid).filter(|entry| !entry.foreign) {
                entry.foreign = true;
                self.foreign += 1;
            }
        }
    }

    /// How many foreign accounts it has to do with.
    pub(in crate::hub) fn foreign(&self) -> usize {
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

    /// An answer for this epoch is owed; one for another epoch is owed no longer.
    fn owe(&mut self, uid: &str, name: &str, epoch: GrantEpoch, now: Tick) -> &mut LedgerEntry {
        let since = self.clock.read(now);
        let entry = self.at(uid, name);
        // An agent's hello may have named it otherwise. A drop under way is counted by the name it was begun with.
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

/// What is said where the leader goes on granting another credential than the one that is read here.
fn another_credential() -> Failure {
    let message = "the replica of the agent reads another credential than the leader; see that all replicas have the same file, and the same Secret";
    Failure::new(FailureClass::CredentialDiffers, message)
}

impl LedgerEntry {
    /// Whether the agent may hold the account.
    pub(in crate::hub) fn may_hold(&self) -> bool {
        self.believed.is_some()
    }

    /// The greatest epoch that the agent can know of.
    fn known_epoch(&self) -> Option<GrantEpoch> {
        match self.command {
            Some(PendingCommand::Add(epoch) | PendingCommand::Drop(epoch)) => self.believed.max(Some(epoch)),
            _ => self.believed,
        }
    }

    fn newest_said(&self) -> GrantEpoch {
        self.report.as_ref().map_or(GrantEpoch(i64::MIN), |(epoch, _)| *epoch)
    }

    fn answered(&mut self) {
        self.command = None;
        self.owed = None;
    }

    fn pace(&mut self, epoch: GrantEpoch, now: Moment) {
        let count = self.retry.filter(|again| again.epoch == epoch).map_or(0, |again| again.count);
        let wait = RETRY_DELAYS_SECONDS[count.min(RETRY_DELAYS_SECONDS.len() - 1)];
        let at = now + Duration::from_secs(wait);
        self.retry = Some(RetryAt { epoch, count: count + 1, at, wrong_cluster: false });
    }

    /// Whether what is dropped under this epoch was held in the wrong cluster: that goes on being its word.
    fn failed_in_wrong_cluster(&self, epoch: GrantEpoch) -> bool {
        self.retry.is_some_and(|again| again.wrong_cluster && again.epoch == epoch)
            && matches!(&self.report, Some((said, AgentReport::Failed(_))) if *said == epoch)
    }

    fn record_dropped(&mut self, epoch: GrantEpoch, now: Moment) -> AnswerEffect {
        match self.command {
            Some(PendingCommand::Add(sent) | PendingCommand::Drop(sent)) if epoch < sent => {
                return AnswerEffect::Late;
            }
            // In answer to an Add it makes no sense; it must not become a loop.
            Some(PendingCommand::Add(sent)) => self.pace(sent, now),
            _ => {}
        }
        if self.believed > Some(epoch) {
            return AnswerEffect::Late;
        }
        self.believed = None;
        self.drop_failed = None;
        self.answered();
        if !self.failed_in_wrong_cluster(epoch) {
            self.report = Some((epoch, AgentReport::Dropped));
        }
        AnswerEffect::Taken
    }

    fn record_held(&mut self, epoch: GrantEpoch, report: AgentReport, now: Moment) -> AnswerEffect {
        match self.command {
            Some(PendingCommand::Add(sent)) if epoch > sent => {
                let message = format!(
                    "the agent holds epoch {epoch} of the account, later than epoch {sent} of the grant"
                );
                self.answered();
                self.pace(sent, now);
                self.report =
                    Some((sent, AgentReport::Failed(Failure::new(FailureClass::Internal, message))));
                return AnswerEffect::Taken;
            }
            // The answer to the last Add counts even if a later epoch was reported before: epochs start over where a
            // status was wiped or etcd was restored.
            Some(PendingCommand::Add(sent)) if epoch == sent => {
                self.answered();
                self.retry = self.retry.filter(|again| again.wrong_cluster);
                self.report = Some((epoch, report));
                return AnswerEffect::Taken;
            }
            _ => {}
        }
        if epoch < self.newest_said() {
            return AnswerEffect::Late;
        }
        self.report = Some((epoch, report));
        AnswerEffect::Taken
    }

    fn record_failed(&mut self, epoch: GrantEpoch, failure: Failure, now: Moment) -> AnswerEffect {
        match self.command {
            Some(PendingCommand::Add(sent)) if epoch == sent => {
                self.answered();
                self.pace(epoch, now);
                self.report = Some((epoch, AgentReport::Failed(failure)));
                AnswerEffect::Taken
            }
            _ => AnswerEffect::Late,
        }
    }

    fn record_drop_failed(&mut self, epoch: GrantEpoch, failure: Failure, now: Moment) -> AnswerEffect {
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

    fn record_lost(&mut self, epoch: GrantEpoch, failure: Failure, now: Moment) -> AnswerEffect {
        if epoch < self.newest_said() {
            return AnswerEffect::Late;
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
