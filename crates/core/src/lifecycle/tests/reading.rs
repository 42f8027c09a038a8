//! How an account reads to kstatus, and with it to Argo CD, Flux and `kubectl wait`.

use super::*;
use crate::lifecycle::fixtures::wall;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

#[derive(Debug, PartialEq, Eq)]
enum KstatusReading {
    InProgress,
    Current,
    Failed,
    Terminating,
}

/// The rules of kstatus for a custom resource, in their order.
fn kstatus(account: &KubesvcAccount) -> KstatusReading {
    if account.is_being_deleted() {
        return KstatusReading::Terminating;
    }
    let Some(status) = &account.status else { return KstatusReading::Current };
    if status.observed_generation != account.generation() {
        return KstatusReading::InProgress;
    }
    for condition in status.conditions.iter().filter(|one| one.status == "True") {
        match condition.type_.as_str() {
            "Reconciling" => return KstatusReading::InProgress,
            "Stalled" => return KstatusReading::Failed,
            _ => {}
        }
    }
    match condition(status, "Ready") {
        "False" => KstatusReading::InProgress,
        _ => KstatusReading::Current,
    }
}

/// Each state as it comes about in a life, with its object.
fn lives() -> Vec<(State, KubesvcAccount, KstatusReading)> {
    let mut all = Vec::new();
    let mut keep = |world: &World, reading| all.push((world.state(), world.account.clone(), reading));
    let mut world = World::of(account("a"));
    world.connect("agent-1", "east");
    keep(&world, KstatusReading::InProgress);
    world.say("agent-1", held());
    keep(&world, KstatusReading::Current);
    world.cut("agent-1").wait(31);
    keep(&world, KstatusReading::InProgress);
    world.connect("agent-1", "east").connect("agent-2", "west").say("agent-1", held());
    world.edit(|account| account.spec.zone_id = Some("west".into()));
    world.secret = Err(failure(FailureClass::BadKubeconfig));
    world.say("agent-1", AgentReport::Dropped);
    keep(&world, KstatusReading::Failed);
    world.edit(|account| account.spec.state = Some(DesiredState::Inactive));
    keep(&world, KstatusReading::Current);
    let mut world = active_world();
    world.edit(|account| account.spec.state = Some(DesiredState::Inactive));
    keep(&world, KstatusReading::InProgress);
    world.edit(|account| *account = account.clone().being_deleted().edited());
    keep(&world, KstatusReading::Terminating);
    world.say("agent-1", fails(FailureClass::Internal));
    keep(&world, KstatusReading::Terminating);
    let mut no_agent = World::of(account("a"));
    no_agent.run_until_idle();
    keep(&no_agent, KstatusReading::InProgress);
    let slow = account("a").finalized();
    let status = seen(slow.clone()).slowly().written();
    let slow = slow.map(|account| account.status = Some(status));
    all.push((State::ToMigrate, slow, KstatusReading::InProgress));
    all
}

#[test]
fn every_state_that_is_written_reads_as_it_is() {
    let lives = lives();
    for (state, account, reading) in &lives {
        assert_eq!(account.status_or_default().state(), *state);
        assert_eq!(kstatus(account), *reading, "{state}");
    }
    for state in State::ALL.into_iter().filter(|state| *state != State::ToDeactivate) {
        assert!(lives.iter().any(|(seen, ..)| *seen == state), "{state} is not in the lives");
    }
}

#[test]
fn an_object_that_no_operator_has_seen_is_in_progress() {
    assert_eq!(kstatus(&account("a")), KstatusReading::InProgress);
}

#[test]
fn an_edit_that_no_operator_has_seen_is_in_progress() {
    assert_eq!(kstatus(&active_world().account.edited()), KstatusReading::InProgress);
}

#[test]
fn a_failure_that_is_tried_again_is_in_progress_and_one_that_stalls_is_failed() {
    let mut world = World::of(account("a"));
    world.connect("agent-1", "east").say("agent-1", fails(FailureClass::Unreachable));
    assert_eq!(kstatus(&world.account), KstatusReading::InProgress);
    world.wait(6).say("agent-1", fails(FailureClass::BadKubeconfig));
    assert_eq!(kstatus(&world.account), KstatusReading::Failed);
}

#[test]
fn reconciling_and_stalled_are_never_both_true_and_every_condition_names_its_generation() {
    for (state, account, _) in lives() {
        let status = account.status_or_default();
        assert!(
            condition(&status, "Reconciling") == "False" || condition(&status, "Stalled") == "False",
            "{state}"
        );
        let kinds: Vec<_> = status.conditions.iter().map(|one| one.type_.as_str()).collect();
        let always = ["Ready", "Reconciling", "Stalled", "AgentConnected", "Caching"];
        let once_reached = status.kube_host.is_some().then_some("ClusterIdentity");
        assert_eq!(kinds, always.into_iter().chain(once_reached).collect::<Vec<_>>(), "{state}");
        for one in &status.conditions {
            assert_eq!(one.observed_generation, Some(status.observed_generation), "{state} {}", one.type_);
            assert!(!one.reason.is_empty() && !one.message.is_empty(), "{state} {}", one.type_);
        }
    }
}

#[test]
fn deleting_reconciles_and_delete_failed_is_stalled() {
    let mut world = active_world();
    world.edit(|account| *account = account.clone().being_deleted().edited());
    assert_eq!(condition(world.status(), "Reconciling"), "True");
    world.say("agent-1", fails(FailureClass::Internal));
    assert_eq!(condition(world.status(), "Stalled"), "True");
}

#[test]
fn an_account_that_is_inactive_by_wish_is_ready() {
    let mut world = World::of(account("a").wanted_inactive());
    world.run_until_idle();
    assert_eq!((condition(world.status(), "Ready"), reason(world.status())), ("True", "Inactive"));
}

#[test]
fn the_time_of_a_condition_moves_only_with_its_status() {
    let mut world = World::of(account("a"));
    let time = |world: &World, kind: &str| {
        let one = world.status().conditions.iter().find(|one| one.type_ == kind).cloned();
        one.expect("all four").last_transition_time
    };
    world.connect("agent-1", "east");
    let began = Time(wall(world.now));
    world.wait(7).say("agent-1", fails(FailureClass::Unreachable));
    for kind in ["Ready", "Reconciling", "Stalled", "AgentConnected"] {
        assert_eq!(
            time(&world, kind),
            began,
            "{kind}: FAILED with a retry is not ready and reconciling as before"
        );
    }
    world.wait(6).say("agent-1", held());
    let healed = Time(wall(world.now));
    assert_eq!((time(&world, "Ready"), time(&world, "Stalled")), (healed, began));
}

#[test]
fn a_state_that_stays_keeps_its_time() {
    let mut world = active_world();
    let before = world.status().last_transition_time.clone();
    world.wait(9).edit(|account| account.spec.environment = Some("prod".to_owned()));
    assert_eq!(world.status().last_transition_time, before);
    world.edit(|account| account.spec.state = Some(DesiredState::Inactive));
    assert_ne!(world.status().last_transition_time, before);
}
