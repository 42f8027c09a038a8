//! The table of the lifecycle, row by row; then what each costs in writes, and how it reads from outside.

use super::fixtures::{
    AccountFixture, SessionFixture, World, account, cluster_named, failure, good_credential, seen, session,
};
use super::{
    Action, AgentReport, ClusterIdentity, CredentialFact, Decision, Fact, SessionEnding, SessionFact,
    displayed_state,
};
use crate::failure::{Failure, FailureClass};
use crate::{DesiredState, GrantPhase, KubesvcAccount, KubesvcAccountStatus, State};

mod activation;
mod caching_agent;
mod deactivation;
mod deletion;
mod expiring_credentials;
mod failures;
mod names;
mod offers;
mod queue;
mod reading;
mod refused_credentials;
mod registration;
mod show;
mod static_accounts;
mod transitions;
mod writes;
mod zones;

fn held() -> AgentReport {
    AgentReport::Held(cluster_named("prod"))
}

/// It is held, and the cluster refuses the credential since.
fn refused() -> AgentReport {
    let refused = Some(failure(FailureClass::Auth));
    AgentReport::Held(ClusterIdentity { refused, ..cluster_named("prod") })
}

fn fails(class: FailureClass) -> AgentReport {
    AgentReport::Failed(failure(class))
}

/// An account that became ACTIVE in zone east by agent-1, with nothing written since.
fn active_world() -> World {
    let mut world = World::of(account("a"));
    world.connect("agent-1", "east").say("agent-1", held());
    assert_eq!(world.state(), State::Active);
    world.writes();
    world
}

fn condition<'a>(status: &'a KubesvcAccountStatus, kind: &str) -> &'a str {
    status.conditions.iter().find(|one| one.type_ == kind).map_or("", |one| one.status.as_str())
}

fn reason(status: &KubesvcAccountStatus) -> &str {
    status.conditions.iter().find(|one| one.type_ == "Ready").map_or("", |one| one.reason.as_str())
}
