//! Commands to one session's agent to stream the objects of accounts. Pure.
//!
//! The agent is told to start streaming an account once it is elected, holds the account, and the fence stands at the
//! epoch of its election. It is told to stop when another agent is elected after it.

use std::collections::HashMap;

use kubesvc_core::{AgentId, BootId, CachingEpoch, GrantEpoch, GrantPhase, KubesvcAccount, ZoneId};

/// An agent process, as elections name it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CachingProcess<'a> {
    pub(crate) agent_id: &'a AgentId,
    pub(crate) boot_id: &'a BootId,
    pub(crate) zone: &'a ZoneId,
    /// Whether it is approved and holds the account.
    pub(crate) holds: bool,
}

/// The command to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CachingCommand {
    Nothing,
    /// Stream the account's objects under this epoch.
    Start(CachingEpoch),
    /// Stop streaming them; carries the epoch of the start.
    Stop(CachingEpoch),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct StreamState {
    /// Epoch at which the fence stands.
    fenced: Option<CachingEpoch>,
    /// Epoch, grant epoch and object generation of the last start that was sent.
    sent: Option<(CachingEpoch, GrantEpoch, i64)>,
}

impl StreamState {
    /// Forgets the fence. The start that was sent counts as one that a hello names: it is sent again once the fence
    /// stands, since the agent may have dropped it, and the agent can still be told to stop.
    fn lose_fence(&mut self) {
        self.fenced = None;
        self.sent = self.sent.map(|(epoch, ..)| (epoch, GrantEpoch::NONE, 0));
    }
}

/// Commands of one session, by account; bounded by the accounts it holds.
#[derive(Clone, Debug, Default)]
pub(crate) struct CachingCommands {
    entries: HashMap<String, StreamState>,
}

impl CachingCommands {
    /// Records what the agent's hello says it streams.
    pub(crate) fn seed(&mut self, uid: &str, epoch: CachingEpoch) {
        self.entries.entry(uid.to_owned()).or_default().sent = Some((epoch, GrantEpoch::NONE, 0));
    }

    /// Records that the fence stands at this epoch for this session.
    pub(crate) fn fenced(&mut self, uid: &str, epoch: CachingEpoch) {
        self.entries.entry(uid.to_owned()).or_default().fenced = Some(epoch);
    }

    /// Epoch at which the fence of an account stands for this session.
    pub(crate) fn fenced_at(&self, uid: &str) -> Option<CachingEpoch> {
        self.entries.get(uid)?.fenced
    }

    /// Returns the epoch to which the fence must be raised for this session.
    pub(super) fn to_raise(
        &self,
        process: CachingProcess<'_>,
        account: &KubesvcAccount,
    ) -> Option<CachingEpoch> {
        let epoch = elected(process, account).filter(|_| process.holds)?;
        let fenced = self.entries.get(account.uid()).and_then(|entry| entry.fenced);
        (fenced != Some(epoch)).then_some(epoch)
    }

    /// Records that the agent is told under this epoch that its account is gone, because the fence has no row. Returns
    /// whether the fence must be raised again.
    pub(crate) fn fence_lost(&mut self, uid: &str, epoch: CachingEpoch) -> bool {
        let entry = self.entries.get_mut(uid).filter(|entry| entry.fenced == Some(epoch));
        entry.map(StreamState::lose_fence).is_some()
    }

    /// Compares with the stored fences. Returns the accounts whose fence is lower than recorded and must be raised
    /// again.
    pub(crate) fn compare(&mut self, standing: &HashMap<String, CachingEpoch>) -> Vec<String> {
        let fell = |uid: &String, epoch: CachingEpoch| standing.get(uid).is_none_or(|stands| *stands < epoch);
        let mut fallen = Vec::new();
        for (uid, entry) in &mut self.entries {
            if entry.fenced.is_some_and(|epoch| fell(uid, epoch)) {
                entry.lose_fence();
                fallen.push(uid.clone());
            }
        }
        fallen
    }

    /// Forgets an account that left the session's ledger.
    pub(crate) fn forget(&mut self, uid: &str) {
        self.entries.remove(uid);
    }

    /// Returns the command for an account and records it as sent.
    pub(crate) fn command(
        &mut self,
        process: CachingProcess<'_>,
        account: &KubesvcAccount,
    ) -> CachingCommand {
        let status = account.status_or_default();
        let Some(entry) = self.entries.get_mut(account.uid()) else { return CachingCommand::Nothing };
        if let Some(epoch) = elected(process, account) {
            let sent = (epoch, status.epoch, account.generation());
            if entry.fenced != Some(epoch) || !process.holds || entry.sent == Some(sent) {
                return CachingCommand::Nothing;
            }
            entry.sent = Some(sent);
            return CachingCommand::Start(epoch);
        }
        let Some((sent, ..)) = entry.sent else { return CachingCommand::Nothing };
        // A stale watch shows an earlier election.
        if status.caching.as_ref().is_none_or(|caching| caching.epoch <= sent) {
            return CachingCommand::Nothing;
        }
        self.entries.remove(account.uid());
        // If the grant is revoked, the agent is told to drop the account instead.
        if status.phase() == GrantPhase::Open { CachingCommand::Stop(sent) } else { CachingCommand::Nothing }
    }
}

/// Returns the epoch under which this process is elected.
fn elected(process: CachingProcess<'_>, account: &KubesvcAccount) -> Option<CachingEpoch> {
    let status = account.status_or_default();
    let caching = status.caching.as_ref()?;
    let is_it = caching.agent_id.as_ref() == Some(process.agent_id)
        && caching.boot_id.as_ref() == Some(process.boot_id)
        && status.phase() == GrantPhase::Open
        && status.granted_zone() == Some(process.zone);
    is_it.then_some(caching.epoch)
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;
    use kubesvc_core::{CachingAssignment, Grant, KubesvcAccountSpec, KubesvcAccountStatus, State};

    static AGENT: LazyLock<AgentId> = LazyLock::new(|| "a".into());
    static ZONE: LazyLock<ZoneId> = LazyLock::new(|| "z".into());
    static FIRST: LazyLock<BootId> = LazyLock::new(|| "1".into());

    fn process() -> CachingProcess<'static> {
        CachingProcess { agent_id: &AGENT, boot_id: &FIRST, zone: &ZONE, holds: true }
    }

    fn account(agent: Option<&str>, boot: &str, epoch: i64) -> KubesvcAccount {
        let mut account = KubesvcAccount::new("one", KubesvcAccountSpec::default());
        account.metadata.uid = Some("u".into());
        account.metadata.generation = Some(1);
        account.status = Some(KubesvcAccountStatus {
            state: Some(State::Active),
            epoch: GrantEpoch(4),
            grant: Some(Grant { phase: GrantPhase::Open, zone: Some("z".into()), ..Grant::default() }),
            caching: Some(CachingAssignment {
                agent_id: agent.map(str::to_owned).map(AgentId::from),
                boot_id: agent.map(|_| boot.into()),
                epoch: CachingEpoch(epoch),
            }),
            ..KubesvcAccountStatus::default()
        });
        account
    }

    #[test]
    fn an_agent_is_started_once_and_only_when_the_fence_stands() {
        let (mut cached, elected) = (CachingCommands::default(), account(Some("a"), "1", 2));
        assert_eq!(cached.command(process(), &elected), CachingCommand::Nothing);
        assert_eq!(
            cached.to_raise(CachingProcess { holds: false, ..process() }, &elected),
            None,
            "it does not hold it yet"
        );
        assert_eq!(cached.to_raise(process(), &elected), Some(CachingEpoch(2)));
        cached.fenced("u", CachingEpoch(2));
        assert_eq!(cached.to_raise(process(), &elected), None);
        assert_eq!(
            cached.command(CachingProcess { holds: false, ..process() }, &elected),
            CachingCommand::Nothing
        );
        assert_eq!(
            (cached.command(process(), &elected), cached.command(process(), &elected)),
            (CachingCommand::Start(CachingEpoch(2)), CachingCommand::Nothing)
        );
        let mut renewed = elected.clone();
        renewed.metadata.generation = Some(2);
        assert_eq!(
            cached.command(process(), &renewed),
            CachingCommand::Start(CachingEpoch(2)),
            "with the generation as it is now"
        );
        for other in [account(Some("b"), "1", 2), account(Some("a"), "0", 2)] {
            assert_eq!(cached.to_raise(process(), &other), None, "it was not elected");
        }
    }

    #[test]
    fn a_replaced_agent_is_stopped_and_not_by_a_stale_watch() {
        let mut cached = CachingCommands::default();
        cached.seed("u", CachingEpoch(3));
        assert_eq!(
            cached.command(process(), &account(Some("b"), "1", 2)),
            CachingCommand::Nothing,
            "that was before"
        );
        assert_eq!(
            cached.command(process(), &account(Some("b"), "1", 4)),
            CachingCommand::Stop(CachingEpoch(3))
        );
        assert_eq!(cached.command(process(), &account(Some("b"), "1", 4)), CachingCommand::Nothing);
        cached.seed("u", CachingEpoch(3));
        let mut revoked = account(None, "", 4);
        revoked.status.get_or_insert_default().grant.get_or_insert_default().phase = GrantPhase::Revoking;
        assert_eq!(
            cached.command(process(), &revoked),
            CachingCommand::Nothing,
            "it is told to drop the account"
        );
    }

    #[test]
    fn an_agent_is_started_again_after_reconnect() {
        let (mut cached, elected) = (CachingCommands::default(), account(Some("a"), "1", 2));
        cached.seed("u", CachingEpoch(2));
        assert_eq!(cached.to_raise(process(), &elected), Some(CachingEpoch(2)), "its stream ends here now");
        cached.fenced("u", CachingEpoch(2));
        assert_eq!(cached.command(process(), &elected), CachingCommand::Start(CachingEpoch(2)));
    }

    #[test]
    fn a_fence_that_fell_is_raised_again() {
        let (mut cached, elected) = (CachingCommands::default(), account(Some("a"), "1", 2));
        cached.fenced("u", CachingEpoch(2));
        assert!(cached.compare(&HashMap::from([("u".to_owned(), CachingEpoch(2))])).is_empty());
        assert!(
            cached.compare(&HashMap::from([("u".to_owned(), CachingEpoch(9))])).is_empty(),
            "the object will tell"
        );
        assert_eq!(cached.compare(&HashMap::from([("u".to_owned(), CachingEpoch(0))])), ["u"]);
        assert_eq!(cached.to_raise(process(), &elected), Some(CachingEpoch(2)));
    }

    #[test]
    fn an_agent_is_started_again_once_a_fence_that_was_lost_stands() {
        let (mut cached, elected) = (CachingCommands::default(), account(Some("a"), "1", 2));
        cached.fenced("u", CachingEpoch(2));
        assert_eq!(cached.command(process(), &elected), CachingCommand::Start(CachingEpoch(2)));
        assert!(!cached.fence_lost("u", CachingEpoch(1)), "that was under an earlier election");
        let by_comparison = |cached: &mut CachingCommands| cached.compare(&HashMap::new()) == ["u"];
        let by_stream = |cached: &mut CachingCommands| cached.fence_lost("u", CachingEpoch(2));
        let ways: [fn(&mut CachingCommands) -> bool; 2] = [by_comparison, by_stream];
        for is_lost in ways {
            assert!(is_lost(&mut cached));
            assert!(!is_lost(&mut cached), "that is known");
            assert_eq!(cached.command(process(), &elected), CachingCommand::Nothing, "it does not stand");
            assert_eq!(cached.to_raise(process(), &elected), Some(CachingEpoch(2)));
            cached.fenced("u", CachingEpoch(2));
            assert_eq!(
                [cached.command(process(), &elected), cached.command(process(), &elected)],
                [CachingCommand::Start(CachingEpoch(2)), CachingCommand::Nothing]
            );
        }
        assert!(cached.fence_lost("u", CachingEpoch(2)));
        assert_eq!(
            cached.command(process(), &account(Some("b"), "1", 4)),
            CachingCommand::Stop(CachingEpoch(2)),
            "it may stream still"
        );
    }
}
