//! Gauges of what this replica sees and depends on, computed at each scrape. Each replica reports its own
//! view, so that a replica that diverges from the others is visible.

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::watch;

use crate::informers::{AccountIndex, AgentIndex};
use kubesvc_core::credential_expiry::ExpiryStage;
use kubesvc_core::failure::FailureClass;
use kubesvc_core::lifecycle::displayed_state;
use kubesvc_core::{KubesvcAccount, KubesvcAccountStatus, KubesvcAgent, State};
use kubesvc_runtime::telemetry::outages::api_server_is_away;
use kubesvc_store::account_projection::Projection;

/// States that an account leaves within a minute, unless something fails.
const TRANSITIONAL_STATES: [State; 5] =
    [State::ToMigrate, State::Activating, State::Deactivating, State::Deleting, State::DeleteFailed];

/// What the gauges are read from.
pub(super) struct StateMetrics {
    pub(super) accounts: Arc<AccountIndex>,
    pub(super) agents: Arc<AgentIndex>,
    pub(super) projection: Arc<Projection>,
    /// Number of returning agents that wait to be registered at this replica.
    pub(super) registrations: watch::Receiver<usize>,
}

impl fmt::Debug for StateMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StateMetrics").finish_non_exhaustive()
    }
}

impl Collector for StateMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (accounts, agents) = (self.accounts.all(), self.agents.all());
        let accounts = AccountGauges::of(accounts.iter().map(Arc::as_ref), Timestamp::now());
        let agents = agents_by_state(agents.iter().map(Arc::as_ref));
        let mut encode = |name: &str, help: &str, metric: &dyn EncodeMetric| {
            metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)
        };
        encode("kubesvc_controller_accounts", "Accounts, by state", &accounts.by_state)?;
        let foreign = gauge(count(self.accounts.foreign_len()));
        encode("kubesvc_foreign_accounts", "Accounts that another installation serves", &foreign)?;
        encode("kubesvc_controller_accounts_failed", "FAILED accounts, by reason", &accounts.failed)?;
        encode(
            "kubesvc_controller_accounts_expiring",
            "Accounts whose credential expires soon or has expired, by reason",
            &accounts.expiring,
        )?;
        encode(
            "kubesvc_controller_account_state_age_seconds",
            "Longest time that an account has been in this transitional state, or since its deletion was requested; 0: none",
            &accounts.longest_seconds,
        )?;
        encode("kubesvc_controller_agents", "Agents: connected, unapproved (and connected), away", &agents)?;
        let registrations = gauge(count(*self.registrations.borrow()));
        encode(
            "kubesvc_hub_registrations_waiting",
            "Agents that wait to be registered, also those that were told to come again",
            &registrations,
        )?;
        let database_is_up = gauge(i64::from(self.projection.problem().is_none()));
        encode("kubesvc_store_up", "Whether the database can be used", &database_is_up)?;
        let api_server_is_up = gauge(i64::from(!api_server_is_away()));
        encode("kubesvc_kubernetes_up", "Whether the operator's API server answers", &api_server_is_up)
    }
}

/// Gauges by one label, as its name and value.
type Gauges = Family<[(&'static str, &'static str); 1], Gauge>;

/// Gauges of the accounts. All states and reasons have a value.
#[derive(Debug)]
struct AccountGauges {
    by_state: Gauges,
    failed: Gauges,
    expiring: Gauges,
    longest_seconds: Gauges,
}

impl AccountGauges {
    fn of<'a>(accounts: impl Iterator<Item = &'a KubesvcAccount>, now: Timestamp) -> Self {
        let by_state = family(State::ALL.map(|state| [("state", state.as_str())]));
        let failed = family(FailureClass::ALL.iter().map(|class| [("reason", class.reason())]));
        let expiring = family(ExpiryStage::ALL.map(|stage| [("reason", stage.reason())]));
        let longest_seconds = family(TRANSITIONAL_STATES.map(|state| [("state", state.as_str())]));
        for account in accounts {
            let state = displayed_state(account);
            let label = [("state", state.as_str())];
            by_state.get_or_create(&label).inc();
            let status = account.status.as_ref();
            let class = status.and_then(KubesvcAccountStatus::failure_class);
            if let (State::Failed, Some(class)) = (state, class) {
                failed.get_or_create(&[("reason", class.reason())]).inc();
            }
            if let Some(stage) = status.and_then(|status| ExpiryStage::said(&status.conditions)) {
                expiring.get_or_create(&[("reason", stage.reason())]).inc();
            }
            if TRANSITIONAL_STATES.contains(&state) {
                let longest = longest_seconds.get_or_create(&label);
                longest.set(longest.get().max(seconds_in_state(account, now)));
            }
        }
        Self { by_state, failed, expiring, longest_seconds }
    }
}

/// Time since the state last changed, in seconds. For an account that is being deleted, the time since someone deleted
/// it: the state alternates with each retry.
fn seconds_in_state(account: &KubesvcAccount, now: Timestamp) -> i64 {
    let changed = || account.status.as_ref()?.last_transition_time.as_ref();
    let since = account.metadata.deletion_timestamp.as_ref().or_else(changed);
    since.map_or(0, |since| now.duration_since(since.0).as_secs().max(0))
}

fn agents_by_state<'a>(agents: impl Iterator<Item = &'a KubesvcAgent>) -> Gauges {
    let by_state = family(["connected", "unapproved", "away"].map(|state| [("state", state)]));
    for agent in agents {
        let is_connected = agent.status.as_ref().is_some_and(|status| status.connected);
        let state = match (is_connected, agent.is_approved()) {
            (true, true) => "connected",
            (true, false) => "unapproved",
            (false, _) => "away",
        };
        by_state.get_or_create(&[("state", state)]).inc();
    }
    by_state
}

/// A family in which these labels have the value 0.
fn family(labels: impl IntoIterator<Item = [(&'static str, &'static str); 1]>) -> Gauges {
    let family = Gauges::default();
    for label in labels {
        drop(family.get_or_create(&label));
    }
    family
}

fn gauge(value: i64) -> Gauge {
    let gauge = Gauge::default();
    gauge.set(value);
    gauge
}

fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;
    use kubesvc_core::conditions;
    use kubesvc_core::credential_expiry::CREDENTIAL_EXPIRING;
    use kubesvc_core::{KubesvcAccountSpec, KubesvcAgentSpec, KubesvcAgentStatus};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    fn account(state: State, since: i64) -> KubesvcAccount {
        let mut account = KubesvcAccount::new("prod", KubesvcAccountSpec::default());
        account.status = Some(KubesvcAccountStatus {
            state: Some(state),
            last_transition_time: Some(Time(at(since))),
            ..KubesvcAccountStatus::default()
        });
        account
    }

    fn in_state(family: &Gauges, label: &[(&'static str, &'static str); 1]) -> i64 {
        family.get(label).map_or(-1, |gauge| gauge.get())
    }

    fn state(state: State) -> [(&'static str, &'static str); 1] {
        [("state", state.as_str())]
    }

    #[test]
    fn accounts_are_counted_by_state_and_states_without_accounts_are_zero() {
        let accounts = [account(State::Active, 0), account(State::Active, 0), account(State::Orphaned, 0)];
        let gauges = AccountGauges::of(accounts.iter(), at(100));
        let counts = State::ALL.map(|one| in_state(&gauges.by_state, &state(one)));
        assert_eq!(counts.iter().sum::<i64>(), 3, "{counts:?}");
        assert_eq!(in_state(&gauges.by_state, &state(State::Active)), 2);
        assert_eq!(in_state(&gauges.by_state, &state(State::Failed)), 0);
        assert_eq!(in_state(&gauges.failed, &[("reason", "NoAgent")]), 0);
    }

    #[test]
    fn accounts_whose_credential_expires_are_counted_by_reason() {
        let mut expiring = account(State::Active, 0);
        let said = conditions::one(&[], CREDENTIAL_EXPIRING, "True", "Within1Day", "soon", 1, &Time(at(0)));
        expiring.status.as_mut().expect("a status").conditions.push(said);
        let gauges = AccountGauges::of([expiring, account(State::Active, 0)].iter(), at(100));
        let of = |stage: ExpiryStage| in_state(&gauges.expiring, &[("reason", stage.reason())]);
        assert_eq!(ExpiryStage::ALL.map(of), [0, 1, 0]);
    }

    #[test]
    fn the_age_of_a_transitional_state_is_that_of_the_account_that_waits_longest() {
        let accounts =
            [account(State::Activating, 90), account(State::Activating, 40), account(State::Active, 0)];
        let gauges = AccountGauges::of(accounts.iter(), at(100));
        assert_eq!(in_state(&gauges.longest_seconds, &state(State::Activating)), 60);
        assert_eq!(in_state(&gauges.longest_seconds, &state(State::Deleting)), 0);
        assert_eq!(in_state(&gauges.longest_seconds, &state(State::Active)), -1, "ACTIVE may last");
        let gauges = AccountGauges::of([account(State::Activating, 400)].iter(), at(100));
        assert_eq!(in_state(&gauges.longest_seconds, &state(State::Activating)), 0, "another clock is ahead");
    }

    #[test]
    fn the_age_of_a_deletion_counts_from_the_request_whatever_was_retried() {
        let mut retried = account(State::DeleteFailed, 95);
        retried.metadata.deletion_timestamp = Some(Time(at(10)));
        let gauges = AccountGauges::of([retried].iter(), at(100));
        assert_eq!(in_state(&gauges.longest_seconds, &state(State::DeleteFailed)), 90);
    }

    #[test]
    fn a_connected_agent_that_nobody_approved_is_counted_apart() {
        let agent = |connected, approved| {
            let mut agent =
                KubesvcAgent::new("a", KubesvcAgentSpec { approved, ..KubesvcAgentSpec::default() });
            agent.status = Some(KubesvcAgentStatus { connected, ..KubesvcAgentStatus::default() });
            agent
        };
        let agents = [
            agent(true, true),
            agent(true, true),
            agent(true, false),
            agent(false, true),
            agent(false, false),
        ];
        let gauges = agents_by_state(agents.iter());
        let of = |state| in_state(&gauges, &[("state", state)]);
        assert_eq!([of("connected"), of("unapproved"), of("away")], [2, 1, 2]);
    }
}
