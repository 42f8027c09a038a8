//! What a zone's agents say about the account, taken together: of an open grant, and of a revoke.

use super::cluster_identity::mismatch;
use super::facts::{Facts, earlier, silence};
use super::observation::{AgentReport, ClusterIdentity, Presence, SessionFact, Tick};
use crate::KubesvcAccount;
use crate::failure::{Failure, FailureClass};
use crate::ids::ZoneId;

/// What the connected sessions of a zone say about the account, taken together.
pub(super) struct ZoneReports<'a> {
    /// How many are connected.
    pub(super) connected: usize,
    /// The cluster that one of them holds it in, which is the one the account is bound to.
    pub(super) held: Option<&'a ClusterIdentity>,
    /// Why the cluster refuses the credential with which one of them holds it.
    pub(super) refused: Option<&'a Failure>,
    /// Set if each of them failed or is silent: the most telling reason.
    pub(super) all_failed: Option<Failure>,
    /// When one that is still to answer counts as silent.
    pub(super) wake: Option<Tick>,
    /// Whether each of them failed, and for a reason that agents of another zone may not have.
    pub(super) all_failed_by_zone: bool,
}

impl<'a> ZoneReports<'a> {
    /// What they say for the epoch of the status.
    pub(super) fn of(facts: &Facts<'a>, zone: &ZoneId) -> Self {
        let mut reports = Self {
            connected: 0,
            held: None,
            refused: None,
            all_failed: None,
            wake: None,
            all_failed_by_zone: true,
        };
        let (mut pending, mut said, mut silent) = (false, None, None);
        for session in facts.connected(zone) {
            reports.connected += 1;
            let report = report_for_epoch(facts, session);
            reports.all_failed_by_zone &=
                matches!(report, Some(AgentReport::Failed(failure)) if failure.class.depends_on_zone());
            match report {
                Some(AgentReport::Held(identity)) => {
                    match mismatch(&facts.status, &session.agent_id, identity) {
                        None => {
                            reports.held = reports.held.or(Some(identity));
                            reports.refused = reports.refused.or(identity.refused.as_ref());
                        }
                        Some(failure) => said = said.or(Some(failure)),
                    }
                }
                Some(AgentReport::Failed(failure)) => said = said.or_else(|| Some(failure.clone())),
                // It found another cluster while it streamed. To ask it again would tell nothing new.
                Some(AgentReport::Lost(failure)) if failure.class == FailureClass::ClusterMismatch => {
                    said = said.or_else(|| Some(failure.clone()));
                }
                _ if facts.is_silent(session) => {
                    silent = silent.or_else(|| Some(silence(&session.agent_id, session.unanswered)));
                }
                _ => {
                    pending = true;
                    reports.wake = earlier(reports.wake, facts.silent_at(session));
                    reports.wake = earlier(reports.wake, facts.lists_until(session));
                }
            }
        }
        reports.all_failed = said.or(silent).filter(|_| !pending);
        reports.all_failed_by_zone &= reports.connected > 0;
        reports
    }
}

/// Whether an agent that runs in this cluster is none for the account: it asks for the cluster that its agents are in, and
/// is bound to another one. `own` is empty where it is not known.
pub fn runs_in_another_cluster(account: &KubesvcAccount, own: &str) -> bool {
    let status = account.status_or_default();
    let bound = status.cluster_uid.as_deref().filter(|bound| !bound.is_empty());
    account.spec.agent_source().service_account == Some(true)
        && !own.is_empty()
        && bound.is_some_and(|bound| bound != own)
}

fn report_for_epoch<'a>(facts: &Facts<'_>, session: &'a SessionFact) -> Option<&'a AgentReport> {
    let (epoch, report) = session.report.as_ref()?;
    (*epoch == facts.status.epoch).then_some(report)
}

/// How far a revoke is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RevokeProgress {
    /// Every session has dropped the account or is gone.
    Over,
    /// So it seems; the sessions are to be read once more, from the API server itself.
    ToConfirm,
    /// Someone is waited for.
    Blocked(Blocker),
}

/// Why a revoke is not over.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Blocker {
    /// Someone is still to answer, or may come back; look again at the tick.
    Waiting(Option<Tick>),
    /// An agent said that it could not drop the account, or says nothing. Others may still be waited for until the
    /// tick.
    Failed(Failure, Option<Tick>),
}

impl Blocker {
    /// When to look again.
    pub(super) fn wake(&self) -> Option<Tick> {
        match self {
            Self::Waiting(wake) => *wake,
            Self::Failed(_, wake) => *wake,
        }
    }
}

impl RevokeProgress {
    /// How far the revoke is: over when every session has dropped the account or is gone.
    pub(super) fn of(facts: &Facts<'_>) -> Self {
        let Some(zone) = facts.status.granted_zone() else { return Self::Over };
        let (mut waiting, mut wake, mut failure) = (false, None, None);
        for session in facts.observation.sessions.iter().filter(|session| session.zone == *zone) {
            match blocker_by(facts, session) {
                None => {}
                Some(Blocker::Failed(reason, _)) => failure = failure.or(Some(reason)),
                Some(Blocker::Waiting(at)) => {
                    waiting = true;
                    wake = earlier(wake, at);
                }
            }
        }
        match failure {
            Some(failure) => Self::Blocked(Blocker::Failed(failure, wake)),
            None if waiting => Self::Blocked(Blocker::Waiting(wake)),
            None if facts.observation.sessions_are_read => Self::Over,
            None => Self::ToConfirm,
        }
    }
}

/// Why one session of the zone keeps a revoke from ending; absent: it holds nothing. One whose approval was withdrawn may
/// have the account still, and is asked and waited for like any other.
fn blocker_by(facts: &Facts<'_>, session: &SessionFact) -> Option<Blocker> {
    if session.presence != Presence::Connected {
        return facts.may_return_until(session).map(|until| Blocker::Waiting(Some(until)));
    }
    match &session.report {
        Some((epoch, AgentReport::Dropped)) if *epoch >= facts.status.epoch => None,
        Some((epoch, AgentReport::Failed(failure))) if *epoch >= facts.status.epoch => {
            Some(Blocker::Failed(failure.clone(), None))
        }
        _ if facts.is_silent(session) => {
            Some(Blocker::Failed(silence(&session.agent_id, session.unanswered), None))
        }
        _ => Some(Blocker::Waiting(facts.silent_at(session))),
    }
}
