//! The reports of a zone's agents about the account, taken together.

use super::cluster_identity::mismatch;
use super::facts::{Facts, earlier, silence};
use super::observation::{AgentReport, ClusterIdentity, SessionFact, Tick};
use crate::account::KubesvcAccount;
use crate::account::failure::Failure;

/// What the connected sessions of a zone say about the account, taken together.
pub(super) struct ZoneReports<'a> {
    /// How many are connected.
    pub(super) connected: usize,
    /// The cluster that one of them holds it in, which is the one the account is bound to.
    pub(super) held: Option<&'a ClusterIdentity>,
    /// What follows from them.
    pub(super) outcome: ZoneOutcome,
    /// Whether each of them failed, and for a reason that agents of another zone may not have.
    pub(super) all_failed_by_place: bool,
}

/// What follows from the reports of all.
pub(super) enum ZoneOutcome {
    /// Someone is still to answer, and will count as silent at this tick.
    Open(Option<Tick>),
    /// Everyone failed or is silent; this is the most telling reason.
    AllFailed(Failure),
}

impl<'a> ZoneReports<'a> {
    /// What they say for the epoch of the status.
    pub(super) fn of(facts: &Facts<'a>, zone: &str) -> Self {
        let outcome = ZoneOutcome::Open(None);
        let mut reports = Self { connected: 0, held: None, outcome, all_failed_by_place: true };
        let (mut pending, mut wake) = (false, None);
        let (mut said, mut silent) = (None, None);
        for session in facts.connected(zone) {
            reports.connected += 1;
            let report = report_for_epoch(facts, session);
            reports.all_failed_by_place &=
                matches!(report, Some(AgentReport::Failed(failure)) if failure.class.is_of_place());
            match report {
                Some(AgentReport::Held(identity)) => {
                    match mismatch(&facts.status, &session.agent_id, identity) {
                        None => reports.held = reports.held.or(Some(identity)),
                        Some(failure) => said = said.or(Some(failure)),
                    }
                }
                Some(AgentReport::Failed(failure)) => said = said.or_else(|| Some(failure.clone())),
                _ if facts.is_silent(session) => {
                    silent = silent.or_else(|| Some(silence(&session.agent_id)));
                }
                _ => {
                    pending = true;
                    wake = earlier(wake, facts.silent_at(session));
                    wake = earlier(wake, facts.lists_until(session));
                }
            }
        }
        if let (false, Some(failure)) = (pending, said.or(silent)) {
            reports.outcome = ZoneOutcome::AllFailed(failure);
        } else {
            reports.outcome = ZoneOutcome::Open(wake);
        }
        reports.all_failed_by_place &= reports.connected > 0;
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
