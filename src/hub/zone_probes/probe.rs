//! The zone probes of one session: which accounts its agent is asked about, and when. Pure.
//!
//! An account is probed while it is TO_MIGRATE without a grant, shall be ACTIVE, names no zone and is not being
//! deleted. Each approved session is asked once in a round; after a No it is asked again with the delays of
//! [`RETRY_DELAYS_SECONDS`]. An answer counts for its round only, and is forgotten when probing ends.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use crate::hub::sessions::duties::SessionView;
use crate::hub::sessions::ledger::{HubUptime, RETRY_DELAYS_SECONDS};
use kubesvc_core::{GrantEpoch, KubesvcAccount};

/// Maximum number of unanswered probes of one agent; further ones wait.
const MAX_OPEN_PROBES: usize = 256;

/// The round that an answer counts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProbeRound {
    pub(crate) generation: i64,
    pub(crate) epoch: GrantEpoch,
    /// The [id](kubesvc_core::KubesvcAccount::probe_round) of the round.
    mark: [u8; 16],
}

impl ProbeRound {
    /// Returns the round of an account; `None` if it is not probed.
    pub(crate) fn of(account: &KubesvcAccount) -> Option<Self> {
        let status = account.status_or_default();
        let mark = account.probe_round()?.into_bytes().try_into().ok()?;
        Some(Self { generation: account.generation(), epoch: status.epoch, mark })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProbeStage {
    /// Waits for its turn.
    Waiting,
    /// The target is being looked up.
    LookingUp,
    Sent,
    /// The agent can reach the account.
    Yes,
    /// The agent cannot reach it, or could not be asked; asked again at this moment.
    RetryAt(HubUptime),
}

#[derive(Clone, Copy, Debug)]
struct ZoneProbe {
    round: ProbeRound,
    stage: ProbeStage,
    /// Number of No answers in this round.
    refused: usize,
}

/// Next step for one account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProbeStep {
    /// Nothing until the account or the session changes.
    Nothing,
    /// Nothing before this moment.
    Later(HubUptime),
    /// Ask the agent.
    Send(ProbeRound),
    Forget,
}

/// All probes of one session.
#[derive(Debug, Default)]
pub(crate) struct SessionProbes {
    probes: HashMap<String, ZoneProbe>,
    waiting: VecDeque<String>,
    open: usize,
}

impl SessionProbes {
    /// Decides the next step for one account; `account` is `None` if no object has the uid.
    pub(crate) fn step(
        &self,
        view: SessionView<'_>,
        uid: &str,
        account: Option<&KubesvcAccount>,
        now: HubUptime,
    ) -> ProbeStep {
        let known = self.probes.get(uid);
        let round =
            account.and_then(ProbeRound::of).filter(|_| view.approved && !view.draining && view.may_offer);
        match (round, known) {
            (None, None) => ProbeStep::Nothing,
            (None, Some(_)) => ProbeStep::Forget,
            (Some(round), Some(probe)) if probe.round == round => match probe.stage {
                ProbeStage::RetryAt(at) if at <= now => ProbeStep::Send(round),
                ProbeStage::RetryAt(at) => ProbeStep::Later(at),
                _ => ProbeStep::Nothing,
            },
            (Some(round), _) => ProbeStep::Send(round),
        }
    }

    pub(crate) fn queue(&mut self, uid: &str, round: ProbeRound) {
        let before = self.probes.get(uid).filter(|probe| probe.round == round);
        let refused = before.map_or(0, |probe| probe.refused);
        if self.stage(uid) != Some(ProbeStage::Waiting) {
            self.waiting.push_back(uid.to_owned());
        }
        self.put(uid, ZoneProbe { round, stage: ProbeStage::Waiting, refused });
    }

    /// Returns the next probe, if fewer than the maximum are unanswered.
    pub(crate) fn next(&mut self) -> Option<(String, ProbeRound)> {
        while self.open < MAX_OPEN_PROBES {
            let uid = self.waiting.pop_front()?;
            let Some(probe) = self.probes.get(&uid).copied() else { continue };
            if probe.stage == ProbeStage::Waiting {
                self.put(&uid, ZoneProbe { stage: ProbeStage::LookingUp, ..probe });
                return Some((uid, probe.round));
            }
        }
        None
    }

    /// Records that the probe is sent. Returns false if it is not wanted any more.
    pub(crate) fn send(&mut self, uid: &str, round: ProbeRound) -> bool {
        self.advance(uid, round, ProbeStage::LookingUp, ProbeStage::Sent)
    }

    /// Records that the probe cannot be sent. Returns the time of the retry.
    pub(crate) fn not_sent(&mut self, uid: &str, round: ProbeRound, now: HubUptime) -> Option<HubUptime> {
        let at = now + Duration::from_secs(RETRY_DELAYS_SECONDS[0]);
        self.advance(uid, round, ProbeStage::LookingUp, ProbeStage::RetryAt(at)).then_some(at)
    }

    /// Records an answer. Returns its round, or `None` if the probe was never sent. A No is asked again after a
    /// delay.
    pub(crate) fn answer(
        &mut self,
        uid: &str,
        generation: i64,
        epoch: GrantEpoch,
        yes: bool,
        now: HubUptime,
    ) -> Option<ProbeRound> {
        let probe = self.probes.get(uid).copied()?;
        let asked = probe.round.generation == generation && probe.round.epoch == epoch;
        if !asked || probe.stage != ProbeStage::Sent {
            return None;
        }
        let wait =
            Duration::from_secs(RETRY_DELAYS_SECONDS[probe.refused.min(RETRY_DELAYS_SECONDS.len() - 1)]);
        let (stage, more) = if yes { (ProbeStage::Yes, 0) } else { (ProbeStage::RetryAt(now + wait), 1) };
        self.put(uid, ZoneProbe { stage, refused: probe.refused + more, ..probe });
        Some(probe.round)
    }

    /// Whether the agent answered in this round that it can reach the account.
    pub(crate) fn offers(&self, uid: &str, round: ProbeRound) -> bool {
        self.probes.get(uid).is_some_and(|one| one.round == round && one.stage == ProbeStage::Yes)
    }

    /// Whether the agent's last answer, in any round, was that it can reach the account.
    pub(super) fn has_offered(&self, uid: &str) -> bool {
        self.stage(uid) == Some(ProbeStage::Yes)
    }

    /// Returns the time of the next probe.
    pub(super) fn again_at(&self, uid: &str) -> Option<HubUptime> {
        match self.stage(uid) {
            Some(ProbeStage::RetryAt(at)) => Some(at),
            _ => None,
        }
    }

    /// Forgets an account that is not probed any more.
    pub(crate) fn forget(&mut self, uid: &str) {
        let Some(probe) = self.probes.remove(uid) else { return };
        self.open -= usize::from(is_open(probe.stage));
        if probe.stage == ProbeStage::Waiting {
            self.waiting.retain(|one| one != uid);
        }
    }

    /// Returns all accounts with a probe.
    pub(crate) fn uids(&self) -> Vec<String> {
        self.probes.keys().cloned().collect()
    }

    fn stage(&self, uid: &str) -> Option<ProbeStage> {
        self.probes.get(uid).map(|probe| probe.stage)
    }

    fn advance(&mut self, uid: &str, round: ProbeRound, from: ProbeStage, to: ProbeStage) -> bool {
        let probe = self.probes.get(uid).copied();
        let Some(probe) = probe.filter(|one| one.round == round && one.stage == from) else {
            return false;
        };
        self.put(uid, ZoneProbe { stage: to, ..probe });
        true
    }

    fn put(&mut self, uid: &str, probe: ZoneProbe) {
        self.open += usize::from(is_open(probe.stage));
        if let Some(before) = self.probes.insert(uid.to_owned(), probe) {
            self.open -= usize::from(is_open(before.stage));
        }
    }
}

fn is_open(stage: ProbeStage) -> bool {
    matches!(stage, ProbeStage::LookingUp | ProbeStage::Sent)
}

#[cfg(test)]
pub(crate) mod tests;
