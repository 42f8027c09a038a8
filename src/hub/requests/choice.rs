//! Which agents may be asked for an account, and in which order. Pure.

use kubesvc_core::{AgentId, GrantEpoch, GrantPhase, KubesvcAccount, State, ZoneId};

use crate::connected_agents::{RequestError, RequestErrorKind};
use crate::hub::sessions::ledger::HeldAtAgent;
use crate::informers::version_of;

/// An account that takes requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UsableAccount {
    pub(super) uid: String,
    pub(super) name: String,
    pub(super) zone: ZoneId,
    pub(super) epoch: GrantEpoch,
    pub(super) generation: i64,
    /// resourceVersion of the object.
    pub(super) version: u64,
    /// Whether the definition of an earlier epoch is used: the one of the grant is not ready, or has failed.
    takes_earlier: bool,
    cluster_uid: Option<String>,
    caching_agent: Option<AgentId>,
}

/// An agent of this replica that says something of the account.
#[derive(Clone, Debug)]
pub(super) struct AgentCandidate<'s> {
    pub(super) agent_id: &'s AgentId,
    pub(super) zone: &'s ZoneId,
    /// Whether it is approved, and neither superseded nor sent away.
    pub(super) is_in_force: bool,
    /// Whether it stops, and takes no further request.
    pub(super) is_draining: bool,
    pub(super) held: Option<&'s HeldAtAgent>,
    /// Whether the API server may have to be asked if its zone still has the account.
    pub(super) is_unconfirmed: bool,
    /// Number of its requests; `None`: it has no stream of requests.
    pub(super) running: Option<usize>,
}

/// Whether an account takes requests.
pub(super) fn usable(account: &KubesvcAccount) -> Result<UsableAccount, RequestError> {
    let status = account.status_or_default();
    let state = status.state();
    let is_changing = matches!(state, State::Activating | State::Failed);
    let refused = || not_usable(account.account_name(), state, "it takes no requests");
    let is_open = status.phase() == GrantPhase::Open && (state == State::Active || is_changing);
    let zone =
        status.granted_zone().filter(|_| is_open && !account.is_being_deleted()).ok_or_else(refused)?;
    Ok(UsableAccount {
        uid: account.uid().to_owned(),
        name: account.account_name().to_owned(),
        zone: zone.to_owned(),
        epoch: status.epoch,
        generation: account.generation(),
        version: version_of(account),
        takes_earlier: is_changing,
        cluster_uid: status.cluster_uid.clone().filter(|uid| !uid.is_empty()),
        caching_agent: status.caching_agent().cloned(),
    })
}

/// Whether an account takes further requests: its cluster would refuse them while it refuses the credential.
pub(super) fn takes_requests(account: &KubesvcAccount) -> Result<UsableAccount, RequestError> {
    let usable = usable(account)?;
    if !account.status_or_default().is_refused_while_held() {
        return Ok(usable);
    }
    let why = format!(
        "its cluster refuses the account's credential (401); renew it, as `kubectl kubesvc why {}` says",
        usable.name
    );
    Err(not_usable(&usable.name, State::Failed, &why))
}

fn not_usable(account: &str, state: State, why: &str) -> RequestError {
    RequestError::new(RequestErrorKind::NotUsable, format!("account {account} is {state}: {why}"))
}

impl UsableAccount {
    /// Whether an agent may be asked, apart from whether it takes requests.
    pub(super) fn may_ask(&self, candidate: &AgentCandidate<'_>) -> bool {
        !candidate.is_draining && !candidate.is_unconfirmed && self.is_held_by(candidate)
    }

    /// Whether an agent has the account as the grant says. Once an agent has reached the cluster with the definition of
    /// the grant, that one alone is used: it may allow less than an earlier one.
    pub(super) fn is_held_by(&self, candidate: &AgentCandidate<'_>) -> bool {
        let Some(HeldAtAgent { epoch, cluster_uid, is_claim }) = candidate.held else { return false };
        let is_bound = match &self.cluster_uid {
            Some(bound) => bound == cluster_uid,
            // What tells clusters apart otherwise is in a report alone.
            None => !is_claim,
        };
        // The agent itself refuses what it holds under a later epoch.
        let is_held = *epoch == self.epoch || (*epoch < self.epoch && self.takes_earlier);
        candidate.is_in_force && *candidate.zone == self.zone && is_held && is_bound
    }

    /// Order in which agents are asked, the least first.
    pub(super) fn rank(&self, candidate: &AgentCandidate<'_>) -> (usize, bool) {
        let is_caching = self.caching_agent.as_ref() == Some(candidate.agent_id);
        (candidate.running.unwrap_or(usize::MAX), is_caching)
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use kubesvc_core::conditions::{ConditionSummary, standard_conditions};
    use kubesvc_core::{Grant, KubesvcAccountSpec, KubesvcAccountStatus};

    use super::*;

    fn account() -> UsableAccount {
        UsableAccount {
            uid: "u".into(),
            name: "a".into(),
            zone: "z".into(),
            epoch: GrantEpoch(5),
            generation: 1,
            version: 1,
            takes_earlier: false,
            cluster_uid: Some("k".into()),
            caching_agent: Some("busy".into()),
        }
    }

    fn held(epoch: i64, cluster: &str) -> HeldAtAgent {
        HeldAtAgent { epoch: GrantEpoch(epoch), cluster_uid: cluster.into(), is_claim: false }
    }

    #[test]
    fn only_an_agent_of_the_zone_that_reached_the_bound_cluster_is_asked() {
        let id = AgentId::from("one");
        let ask = |account: &UsableAccount, zone: &ZoneId, is_in_force, held: &HeldAtAgent| {
            let candidate = AgentCandidate {
                agent_id: &id,
                zone,
                is_in_force,
                is_draining: false,
                held: Some(held),
                is_unconfirmed: false,
                running: Some(0),
            };
            let draining = AgentCandidate { is_draining: true, ..candidate.clone() };
            let unconfirmed = AgentCandidate { is_unconfirmed: true, ..candidate.clone() };
            for not_yet in [draining, unconfirmed] {
                assert!(!account.may_ask(&not_yet));
                assert_eq!(account.is_held_by(&not_yet), account.may_ask(&candidate));
            }
            account.may_ask(&candidate)
        };
        let good = held(5, "k");
        assert!(ask(&account(), &"z".into(), true, &good));
        let changing = UsableAccount { takes_earlier: true, ..account() };
        for epoch in [1, 4, 5] {
            assert!(ask(&changing, &"z".into(), true, &held(epoch, "k")), "the new definition is not ready");
        }
        assert!(!ask(&account(), &"z".into(), true, &held(4, "k")), "the new definition is in use");
        assert!(!ask(&changing, &"z".into(), true, &held(4, "other")), "another cluster");
        assert!(!ask(&changing, &"y".into(), true, &held(4, "k")), "of another zone");
        assert!(!ask(&changing, &"z".into(), true, &held(6, "k")), "a later epoch");
        let claim = HeldAtAgent { is_claim: true, ..held(4, "k") };
        assert!(ask(&changing, &"z".into(), true, &claim));
        let unbound = UsableAccount { cluster_uid: None, ..changing };
        assert!(!ask(&unbound, &"z".into(), true, &claim), "nothing says that it is the right cluster");
        assert!(!ask(&account(), &"y".into(), true, &good), "of another zone");
        assert!(!ask(&account(), &"z".into(), false, &good), "not in force");
        assert!(!ask(&account(), &"z".into(), true, &held(5, "other")), "another cluster");
        assert!(!ask(&account(), &"z".into(), true, &held(6, "k")), "a later epoch");
    }

    #[test]
    fn an_earlier_definition_is_used_until_the_new_one_works_and_while_the_zone_has_the_account() {
        let takes = |state, phase| {
            let mut account = KubesvcAccount::new("a", KubesvcAccountSpec::default());
            let grant = Grant { phase, zone: Some("z".into()), ..Default::default() };
            account.status = Some(KubesvcAccountStatus {
                state: Some(state),
                epoch: GrantEpoch(5),
                grant: Some(grant),
                ..Default::default()
            });
            usable(&account).ok().map(|usable| usable.takes_earlier)
        };
        for state in [State::Activating, State::Failed] {
            assert_eq!(takes(state, GrantPhase::Open), Some(true), "{state}");
        }
        assert_eq!(takes(State::Active, GrantPhase::Open), Some(false));
        for state in [State::Activating, State::Failed, State::Active, State::Deactivating, State::Deleting] {
            assert_eq!(takes(state, GrantPhase::Revoking), None, "{state}");
            assert_eq!(takes(state, GrantPhase::None), None, "{state}");
        }
    }

    #[test]
    fn requests_to_an_account_whose_credential_is_refused_say_so() {
        let mut account = KubesvcAccount::new("prod", KubesvcAccountSpec::default());
        let summary = ConditionSummary::failed("Unauthorized", "401".to_owned(), true);
        let conditions = standard_conditions(&[], &summary, true, None, 1, &Time(Timestamp::UNIX_EPOCH));
        let grant = Grant { phase: GrantPhase::Open, zone: Some("z".into()), ..Grant::default() };
        let mut status = KubesvcAccountStatus {
            state: Some(State::Failed),
            grant: Some(grant),
            conditions,
            ..KubesvcAccountStatus::default()
        };
        account.status = Some(status.clone());
        assert!(takes_requests(&account).is_ok(), "an earlier definition may serve it");
        status.agents = vec!["one".into()];
        account.status = Some(status);
        let error = takes_requests(&account).expect_err("it is held").to_string();
        assert!(error.starts_with("account prod is FAILED: its cluster refuses"), "{error}");
        assert!(usable(&account).is_ok(), "what runs goes on");
    }

    #[test]
    fn the_agent_with_the_fewest_requests_comes_first_and_one_that_caches_last() {
        let account = account();
        let rank = |agent: &str, running| {
            let agent_id = AgentId::from(agent);
            account.rank(&AgentCandidate {
                agent_id: &agent_id,
                zone: &"z".into(),
                is_in_force: true,
                is_draining: false,
                held: None,
                is_unconfirmed: false,
                running,
            })
        };
        assert!(rank("other", Some(1)) < rank("busy", Some(1)));
        assert!(rank("busy", Some(0)) < rank("other", Some(1)));
        assert!(rank("other", Some(1000)) < rank("other", None));
    }
}
