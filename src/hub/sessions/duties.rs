//! What one session owes one account: a function of what the object says and what the session has done.
//!
//! An account is *wanted* at a session where the agent is approved, the grant is Open for its zone, and the state is
//! ACTIVATING, ACTIVE or ORPHANED. Wanted and not held under the grant's epoch: Add. Not wanted and perhaps held: Drop.
//! The grant is being revoked and the agent was never sent the account: Dropped is said for it, so that the leader
//! need not wait. That is owed without approval too, since an agent may hold what it was given before. Held in another cluster than the one the account is bound to: Drop, and it is asked for again later,
//! as after a failure; the agents that hold it in the right one are not touched. An account of an agent's own file is owed
//! to agents alone that list it themselves, with its source, and one that asks for the agent's own cluster to none that
//! runs in another one than it is bound to. A newer epoch of the same account supersedes a command that is not answered; an Add waits for a Drop.

use crate::account::lifecycle::{AgentReport, is_another_cluster, runs_in_another_cluster};
use crate::account::{GrantEpoch, GrantPhase, KubesvcAccount, KubesvcAccountStatus, State};
use crate::hub::sessions::ledger::{LedgerEntry, Moment, PendingCommand, RetryAt};

/// The session, as far as its duties go.
#[derive(Clone, Copy, Debug)]
pub(in crate::hub) struct SessionView<'a> {
    pub(in crate::hub) zone: &'a str,
    /// Whether the agent is given accounts.
    pub(in crate::hub) approved: bool,
    /// The agent is stopping: it is sent nothing new.
    pub(in crate::hub) draining: bool,
    /// Whether all objects were seen once. Before that, an account that is not known may well exist.
    pub(in crate::hub) synced: bool,
    /// Whether the agent's own file has the account that is looked at; absent until it has sent its list.
    pub(in crate::hub) lists: Option<bool>,
    /// uid of kube-system of the cluster that the agent runs in; empty where it has not said.
    pub(in crate::hub) cluster_uid: &'a str,
}

#[cfg(test)]
impl Default for SessionView<'_> {
    fn default() -> Self {
        Self { zone: "", approved: false, draining: false, synced: true, lists: None, cluster_uid: "" }
    }
}

/// What is to be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hub) enum Duty {
    /// Nothing, until the object, the session or the answer to a command changes.
    Nothing,
    /// Nothing before this moment.
    Later(Moment),
    /// Send the account under this epoch.
    Add(GrantEpoch),
    /// Have it dropped, up to this epoch.
    Drop(GrantEpoch),
    /// The agent holds it under this epoch in another cluster than the one it is bound to: have it dropped, and take
    /// that for a failure of this agent.
    DropFromWrongCluster(GrantEpoch),
    /// Say Dropped for the agent.
    SayDropped(GrantEpoch),
    /// The session has nothing to do with the account any more.
    Forget,
}

/// Decides for one account and one session. `account` is absent where no object has the uid, `entry` where the session
/// never had to do with it.
pub(in crate::hub) fn duty(
    view: SessionView<'_>,
    account: Option<&KubesvcAccount>,
    entry: Option<&LedgerEntry>,
    now: Moment,
) -> Duty {
    let status = account.map(KubesvcAccount::status_or_default);
    let is_ours = |status: &&KubesvcAccountStatus| {
        status.granted_zone() == Some(view.zone) && (view.approved || status.phase() == GrantPhase::Revoking)
    };
    let ours = status.as_deref().filter(is_ours);
    if let (Some(account), Some(status)) = (account, ours)
        && status.phase() == GrantPhase::Open
    {
        match view.lists {
            // What it holds is looked at when it has said which accounts are its own.
            None if account.is_static() => return Duty::Nothing,
            Some(false) if account.is_static() => return clean(view, Some(status), entry, now),
            _ if runs_in_another_cluster(account, view.cluster_uid) => {
                return clean(view, Some(status), entry, now);
            }
            _ => {}
        }
    }
    match (account, ours) {
        (_, Some(status)) if is_in_wrong_cluster(status, entry) => Duty::DropFromWrongCluster(status.epoch),
        (Some(account), Some(status)) if wanted(status) => add(view, account, status, entry, now),
        (_, Some(status)) if status.phase() == GrantPhase::Open => keep(status, entry, view, now),
        (_, Some(status)) => revoke(view, status, entry),
        _ => clean(view, status.as_deref(), entry, now),
    }
}

fn is_in_wrong_cluster(status: &KubesvcAccountStatus, entry: Option<&LedgerEntry>) -> bool {
    let report = entry.filter(|entry| entry.command.is_none()).and_then(|entry| entry.report.as_ref());
    status.phase() == GrantPhase::Open
        && matches!(report, Some((said, AgentReport::Held(identity)))
            if *said == status.epoch && is_another_cluster(status, identity))
}

fn wanted(status: &KubesvcAccountStatus) -> bool {
    status.phase() == GrantPhase::Open
        && matches!(status.state(), State::Activating | State::Active | State::Orphaned)
}

fn add(
    view: SessionView<'_>,
    account: &KubesvcAccount,
    status: &KubesvcAccountStatus,
    entry: Option<&LedgerEntry>,
    now: Moment,
) -> Duty {
    let epoch = status.epoch;
    if let Some(entry) = entry {
        match (&entry.command, &entry.report) {
            (Some(PendingCommand::Drop(_)), _) => return Duty::Nothing,
            (Some(PendingCommand::Add(sent) | PendingCommand::Prepare(sent)), _) if *sent >= epoch => {
                return Duty::Nothing;
            }
            (None, Some((said, AgentReport::Held(_)))) if *said == epoch => return Duty::Nothing,
            (None, Some((said, AgentReport::Failed(_))))
                if *said == epoch && status.state() != State::Active =>
            {
                return Duty::Nothing;
            }
            _ => {}
        }
        if let Some(later) = not_before(entry.retry, epoch, now) {
            return later;
        }
    }
    let granted = status.grant.as_ref().map(|grant| grant.generation);
    if view.draining || granted != Some(account.generation()) {
        return Duty::Nothing;
    }
    Duty::Add(epoch)
}

/// FAILED under an open grant: neither add nor drop. Any other state is none that an open grant goes with.
fn keep(
    status: &KubesvcAccountStatus,
    entry: Option<&LedgerEntry>,
    view: SessionView<'_>,
    now: Moment,
) -> Duty {
    if status.state() == State::Failed { Duty::Nothing } else { clean(view, Some(status), entry, now) }
}

fn revoke(view: SessionView<'_>, status: &KubesvcAccountStatus, entry: Option<&LedgerEntry>) -> Duty {
    let epoch = status.epoch;
    let Some(entry) = entry else { return Duty::SayDropped(epoch) };
    if matches!(entry.command, Some(PendingCommand::Drop(sent)) if sent >= epoch) {
        return Duty::Nothing;
    }
    match entry.believed {
        Some(_) if entry.drop_failed >= Some(epoch) => Duty::Nothing,
        Some(_) if !view.synced => Duty::Nothing,
        Some(believed) => Duty::Drop(believed.max(epoch)),
        None if matches!(&entry.report, Some((said, AgentReport::Dropped)) if *said >= epoch) => {
            Duty::Nothing
        }
        None => Duty::SayDropped(epoch),
    }
}

/// The account is none of this session's: whatever it may hold of it goes.
fn clean(
    view: SessionView<'_>,
    status: Option<&KubesvcAccountStatus>,
    entry: Option<&LedgerEntry>,
    now: Moment,
) -> Duty {
    let Some(entry) = entry else { return Duty::Nothing };
    if !view.synced {
        return Duty::Nothing;
    }
    let Some(believed) = entry.believed else {
        let dropping = matches!(entry.command, Some(PendingCommand::Drop(_)));
        return if dropping { Duty::Nothing } else { Duty::Forget };
    };
    let epoch = believed.max(status.map_or(believed, |status| status.epoch));
    if matches!(entry.command, Some(PendingCommand::Drop(sent)) if sent >= epoch) {
        return Duty::Nothing;
    }
    let failed = entry.drop_failed >= Some(epoch);
    match not_before(entry.retry, epoch, now) {
        Some(later) if failed => later,
        _ => Duty::Drop(epoch),
    }
}

fn not_before(again: Option<RetryAt>, epoch: GrantEpoch, now: Moment) -> Option<Duty> {
    let again = again.filter(|again| again.epoch == epoch && again.at > now)?;
    Some(Duty::Later(again.at))
}

#[cfg(test)]
mod tests;
