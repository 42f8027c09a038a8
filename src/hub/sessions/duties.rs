//! What one session owes one account: a function of the account's object and of the ledger.
//!
//! An account is *wanted* in a session if the agent is approved, the grant is Open for its zone, and the state is
//! ACTIVATING, ACTIVE or ORPHANED.
//!
//! - Wanted, and not held under the grant's epoch: Add. An Add waits for a Drop.
//! - Not wanted, and possibly held: Drop.
//! - The grant is Revoking and the agent was never sent the account: the hub reports Dropped, so that the leader does
//!   not wait. This needs no approval, since an agent may hold what it was sent before.
//! - Held in another cluster than the account is bound to: Drop, and Add again later, as after a failure. Agents that
//!   hold it in the right cluster are not affected.
//! - A static account is wanted only by agents that list it with the same source. An account that uses the agent's
//!   own cluster is not wanted by an agent that runs in another cluster than the account is bound to.
//!
//! - An account that the agent's identity does not allow is dropped, and never sent.
//!
//! A newer epoch of an account supersedes an unanswered command.

use crate::hub::sessions::ledger::{HubUptime, LedgerEntry, PendingCommand, RetryAt};
use kubesvc_core::lifecycle::{AgentReport, is_another_cluster, runs_in_another_cluster};
use kubesvc_core::{GrantEpoch, GrantPhase, KubesvcAccount, KubesvcAccountStatus, State, ZoneId};

/// The session, as its duties see it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionView<'a> {
    pub(crate) zone: &'a ZoneId,
    pub(crate) approved: bool,
    /// The agent is draining: nothing new is sent.
    pub(crate) draining: bool,
    /// Whether all accounts were listed once. Before that, an unknown account may exist.
    pub(crate) synced: bool,
    /// Whether the agent's own file lists the account; absent until it has sent its list.
    pub(crate) lists: Option<bool>,
    /// uid of kube-system of the cluster that the agent runs in; empty if unknown.
    pub(crate) cluster_uid: &'a str,
    /// Whether the agent's identity may hold the account.
    pub(crate) may_hold: bool,
    /// Whether the agent may offer to take accounts that name no zone.
    pub(crate) may_offer: bool,
}

#[cfg(test)]
impl Default for SessionView<'_> {
    fn default() -> Self {
        Self {
            zone: Default::default(),
            approved: false,
            draining: false,
            synced: true,
            lists: None,
            cluster_uid: "",
            may_hold: true,
            may_offer: true,
        }
    }
}

/// The next command, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Duty {
    /// Nothing until the object, the session or the answer to a command changes.
    Nothing,
    /// Nothing before this moment.
    Later(HubUptime),
    /// Send the account under this epoch.
    Add(GrantEpoch),
    /// Drop it, up to this epoch.
    Drop(GrantEpoch),
    /// The agent holds it under this epoch in the wrong cluster: drop it, and report a failure of this agent.
    DropFromWrongCluster(GrantEpoch),
    /// Report Dropped for the agent.
    ReportDropped(GrantEpoch),
    /// Remove the account from the ledger.
    Forget,
}

/// Decides for one account and one session. `account` is `None` if no object has the uid, `entry` if the account is
/// not in the ledger.
pub(crate) fn duty(
    view: SessionView<'_>,
    account: Option<&KubesvcAccount>,
    entry: Option<&LedgerEntry>,
    now: HubUptime,
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
            // The agent's accounts are checked once it has sent its own list.
            None if account.is_static() => return Duty::Nothing,
            Some(false) if account.is_static() => return clean(view, Some(status), entry, now),
            _ if runs_in_another_cluster(account, view.cluster_uid) => {
                return clean(view, Some(status), entry, now);
            }
            // The ledger says why, once it was told.
            _ if !view.may_hold => {
                let has_it = entry.is_some_and(|entry| entry.believed.is_some());
                return if has_it { clean(view, Some(status), entry, now) } else { Duty::Nothing };
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
        && matches!(report, Some((reported_epoch, AgentReport::Held(identity)))
            if *reported_epoch == status.epoch && is_another_cluster(status, identity))
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
    now: HubUptime,
) -> Duty {
    let epoch = status.epoch;
    if let Some(entry) = entry {
        match (&entry.command, &entry.report) {
            (Some(PendingCommand::Drop(_)), _) => return Duty::Nothing,
            (Some(PendingCommand::Add(sent) | PendingCommand::Prepare(sent)), _) if *sent >= epoch => {
                return Duty::Nothing;
            }
            (None, Some((reported_epoch, AgentReport::Held(_)))) if *reported_epoch == epoch => {
                return Duty::Nothing;
            }
            (None, Some((reported_epoch, AgentReport::Failed(_))))
                if *reported_epoch == epoch && status.state() != State::Active =>
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

/// FAILED under an open grant: neither Add nor Drop. No other state occurs with an open grant.
fn keep(
    status: &KubesvcAccountStatus,
    entry: Option<&LedgerEntry>,
    view: SessionView<'_>,
    now: HubUptime,
) -> Duty {
    if status.state() == State::Failed { Duty::Nothing } else { clean(view, Some(status), entry, now) }
}

fn revoke(view: SessionView<'_>, status: &KubesvcAccountStatus, entry: Option<&LedgerEntry>) -> Duty {
    let epoch = status.epoch;
    let Some(entry) = entry else { return Duty::ReportDropped(epoch) };
    if matches!(entry.command, Some(PendingCommand::Drop(sent)) if sent >= epoch) {
        return Duty::Nothing;
    }
    match entry.believed {
        Some(_) if entry.drop_failed >= Some(epoch) => Duty::Nothing,
        Some(_) if !view.synced => Duty::Nothing,
        Some(believed) => Duty::Drop(believed.max(epoch)),
        None if matches!(&entry.report, Some((reported_epoch, AgentReport::Dropped)) if *reported_epoch >= epoch) => {
            Duty::Nothing
        }
        None => Duty::ReportDropped(epoch),
    }
}

/// The account does not belong to this session: drops whatever the agent may hold.
fn clean(
    view: SessionView<'_>,
    status: Option<&KubesvcAccountStatus>,
    entry: Option<&LedgerEntry>,
    now: HubUptime,
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

fn not_before(again: Option<RetryAt>, epoch: GrantEpoch, now: HubUptime) -> Option<Duty> {
    let again = again.filter(|again| again.epoch == epoch && again.at > now)?;
    Some(Duty::Later(again.at))
}

#[cfg(test)]
mod tests;
