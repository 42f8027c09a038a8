//! The agent that streams the account's objects.

use super::*;
use crate::conditions;
use crate::lifecycle::{AgentProcess, CachingReport, SessionFact};
use crate::{CachingAssignment, CachingEpoch, ELECT_CACHING_ANNOTATION};

fn caching(agent: &str, epoch: i64) -> Option<CachingAssignment> {
    let boot_id = Some(format!("boot-of-{agent}").into());
    Some(CachingAssignment { agent_id: Some(agent.into()), boot_id, epoch: CachingEpoch(epoch) })
}

fn nobody(epoch: i64) -> Option<CachingAssignment> {
    Some(CachingAssignment { epoch: CachingEpoch(epoch), ..CachingAssignment::default() })
}

#[test]
fn it_is_chosen_in_the_write_that_makes_the_account_active() {
    let activating = account("a").activating_in("east");
    let status = seen(activating)
        .with(session("agent-1", "east"))
        .with(session("agent-2", "east").held(1))
        .with(session("agent-3", "west").held(1))
        .written();
    assert_eq!((status.state(), &status.caching), (State::Active, &caching("agent-2", 1)));
    assert_eq!(condition(&status, "Caching"), "True");
}

#[test]
fn an_account_that_was_active_before_there_was_a_choice_has_one_by_one_write() {
    let older =
        || account("a").active_in("east").map(|one| one.status.get_or_insert_default().caching = None);
    let status = seen(older()).with(session("agent-1", "east").held(1)).written();
    assert_eq!((status.state(), &status.caching), (State::Active, &caching("agent-1", 1)));
    let unseen = seen(older()).with(session("agent-1", "east").elsewhere());
    assert_eq!(
        unseen.written().caching,
        caching("agent-1", 1),
        "another replica tells only what is waited for"
    );
    assert_eq!(seen(older()).with(session("agent-1", "east")).decide().action, None);
}

#[test]
fn it_moves_by_one_write_when_its_agent_has_been_away_for_its_time() {
    for (ending, ticks) in
        [(SessionEnding::Goodbye, 3), (SessionEnding::Cut, 11), (SessionEnding::ReplicaLost, 61)]
    {
        let at = |since| {
            seen(account("a").active_in("east"))
                .with(session("agent-1", "east").away_since(since).ended(ending))
                .with(session("agent-2", "east").held(1))
                .decide()
        };
        let early = at(1000 - ticks + 1);
        assert_eq!((early.action, early.wake), (None, Some(1001)), "{ending:?}");
        let Some(Action::WriteStatus(write)) = at(1000 - ticks).action else { unreachable!("{ending:?}") };
        assert_eq!(write.status.caching, caching("agent-2", 2));
        assert_eq!((write.status.state(), write.status.epoch.0, write.event), (State::Active, 1, None));
    }
}

#[test]
fn one_that_is_back_in_time_and_a_leader_that_has_just_begun_change_nothing() {
    let mut world = active_world();
    world.connect("agent-2", "east").say("agent-2", held()).cut("agent-1").wait(9).connect("agent-1", "east");
    assert_eq!(world.writes(), Vec::<String>::new(), "it has not said anything yet");
    world.wait(20).say("agent-1", held());
    assert_eq!(world.writes(), Vec::<String>::new());
    let new = seen(account("a").active_in("east")).with(session("agent-2", "east").held(1));
    let decision = new.by_a_new_leader().decide();
    assert_eq!((decision.action, decision.wake), (None, Some(1061)));
}

#[test]
fn another_process_of_its_agent_costs_one_write() {
    let back = session("agent-1", "east").held(1).of_process("second");
    let status = seen(account("a").active_in("east")).with(back).written();
    let caching = status.caching.expect("it is cached");
    assert_eq!((caching.boot_id, caching.epoch), (Some("second".into()), CachingEpoch(2)));
}

#[test]
fn it_is_kept_while_the_account_is_orphaned_and_while_its_definition_changes() {
    let mut world = active_world();
    let before = world.status().caching.clone();
    world.connect("agent-2", "east").say("agent-2", held());
    world.edit(|account| account.spec.namespaces = vec!["one".to_owned()]);
    world.say("agent-2", held());
    assert_eq!((world.state(), &world.status().caching), (State::Active, &before), "agent-1 has not failed");
    world.say("agent-1", fails(FailureClass::Unreachable));
    assert_eq!(world.status().caching, caching("agent-2", 2), "now it has");

    let mut world = active_world();
    world.cut("agent-1").until(State::Orphaned);
    assert_eq!((&world.status().caching, condition(world.status(), "Caching")), (&before, "False"));
    world.wait(100).connect("agent-1", "east").say("agent-1", held());
    assert_eq!((world.state(), &world.status().caching), (State::Active, &before));
}

#[test]
fn a_revoke_leaves_it_to_nobody_under_a_greater_epoch() {
    let mut world = active_world();
    world.edit(|account| account.spec.state = Some(DesiredState::Inactive));
    assert_eq!((world.state(), &world.status().caching), (State::Deactivating, &nobody(2)));
    world.say("agent-1", AgentReport::Dropped);
    assert_eq!((world.state(), &world.status().caching), (State::Inactive, &nobody(2)));
    world.edit(|account| account.spec.state = Some(DesiredState::Active)).say("agent-1", held());
    assert_eq!((world.state(), &world.status().caching), (State::Active, &caching("agent-1", 3)));
}

#[test]
fn an_election_that_is_asked_for_is_held_once() {
    let mut world = active_world();
    world.connect("agent-2", "east").say("agent-2", held()).writes();
    let ask = |account: &mut KubesvcAccount| {
        *account = account.clone().annotated(ELECT_CACHING_ANNOTATION, "one");
    };
    world.edit(ask);
    assert_eq!(world.writes(), ["ACTIVE"]);
    assert_eq!(world.status().caching, caching("agent-2", 2));
    assert_eq!(world.status().election_handled.as_deref(), Some("one"));
    world.edit(ask).wait(100);
    assert_eq!(world.writes(), Vec::<String>::new());
}

#[test]
fn an_election_that_is_asked_for_before_the_account_is_active_is_held_with_it() {
    let asked = account("a").activating_in("east").annotated(ELECT_CACHING_ANNOTATION, "one");
    let status = seen(asked).with(session("agent-1", "east").held(1)).written();
    assert_eq!((&status.caching, status.election_handled.as_deref()), (&caching("agent-1", 1), Some("one")));
}

#[test]
fn an_agent_that_is_not_approved_any_more_or_holds_it_in_another_cluster_streams_nothing() {
    for first in
        [session("agent-1", "east").held(1).not_approved(), session("agent-1", "east").held_in(1, "another")]
    {
        let status = seen(account("a").active_in("east"))
            .with(first)
            .with(session("agent-2", "east").held(1))
            .written();
        assert_eq!(status.caching, caching("agent-2", 2));
    }
}

#[test]
fn agent_that_streams_no_objects_is_not_elected_and_gives_way_to_one_that_does() {
    let with = |streams: Option<bool>, name: &str| {
        let one = session(name, "east").held(1);
        let process = AgentProcess { streams_objects: streams, ..one.process.clone() };
        SessionFact { process, ..one }
    };
    let activating = seen(account("a").activating_in("east")).with(with(Some(false), "agent-1")).written();
    assert_eq!((activating.state(), &activating.caching), (State::Active, &None));
    assert_eq!(condition(&activating, "Caching"), "False");
    let active = || seen(account("a").active_in("east")).with(with(Some(false), "agent-1"));
    assert_eq!(active().decide().action, None, "there is no other one");
    assert_eq!(active().with(with(Some(true), "agent-2")).written().caching, caching("agent-2", 2));
    assert_eq!(active().with(with(None, "agent-2")).written().caching, caching("agent-2", 2));
}

#[test]
fn agent_that_has_read_nothing_for_a_minute_is_replaced() {
    let mut world = active_world();
    world.connect("agent-2", "east").say("agent-2", held()).writes();
    let blind = |epoch: i64| {
        let epoch = CachingEpoch(epoch);
        Some(CachingReport { epoch, is_unreadable: true, left_out: Some("Pod: it is away".to_owned()) })
    };
    world.report_caching("agent-1", blind(7));
    assert_eq!(world.writes(), Vec::<String>::new(), "it says so of another election");
    world.report_caching("agent-2", blind(1));
    assert_eq!(world.writes(), Vec::<String>::new(), "it was not elected");
    world.report_caching("agent-2", None).report_caching("agent-1", blind(1));
    assert_eq!(
        (world.writes(), &world.status().caching),
        (vec!["ACTIVE".to_owned()], &caching("agent-2", 2))
    );
    world.wait(200);
    assert_eq!(world.writes(), Vec::<String>::new());
}

fn left_out(world: &World) -> Option<&str> {
    conditions::left_out(&world.status().conditions)
}

#[test]
fn what_is_left_out_is_written_once_and_taken_back_and_changes_nothing_else() {
    let mut world = active_world();
    let before = world.status().clone();
    world.leave_out("agent-1", None);
    assert_eq!(world.writes(), Vec::<String>::new(), "nothing is left out, and the object says so");
    world.leave_out("agent-1", Some("Pod: no right"));
    assert_eq!((world.writes(), left_out(&world)), (vec!["ACTIVE".to_owned()], Some("Pod: no right")));
    assert_eq!(condition(world.status(), "Caching"), "True");
    let mut after = world.status().clone();
    after.conditions.clone_from(&before.conditions);
    assert_eq!(after, before);
    world.leave_out("agent-1", Some("Pod: no right")).wait(300);
    assert_eq!(world.writes(), Vec::<String>::new());
    world.leave_out("agent-1", None);
    assert_eq!((world.writes(), left_out(&world)), (vec!["ACTIVE".to_owned()], None));
    assert_eq!(world.status().conditions, before.conditions);
}

#[test]
fn what_is_left_out_is_written_at_most_once_a_minute() {
    let mut world = active_world();
    world.leave_out("agent-1", Some("Pod: no right")).writes();
    for nth in 0..59 {
        world.leave_out("agent-1", Some(&format!("Pod: no right {nth}"))).wait(1);
        assert_eq!(world.writes(), Vec::<String>::new(), "{nth}");
    }
    world.wait(1);
    assert_eq!((world.writes(), left_out(&world)), (vec!["ACTIVE".to_owned()], Some("Pod: no right 58")));
}

#[test]
fn what_is_left_out_stays_while_nobody_says_otherwise() {
    let mut world = active_world();
    world.connect("agent-2", "east").say("agent-2", held());
    world.leave_out("agent-1", Some("Pod: no right")).writes();
    world.report_caching("agent-1", None).wait(100);
    assert_eq!(world.writes(), Vec::<String>::new(), "its stream is opened anew");
    world.cut("agent-1").wait(61);
    assert_eq!(world.status().caching, caching("agent-2", 2));
    assert_eq!(left_out(&world), Some("Pod: no right"), "the next one has not looked yet");
    world.wait(60).leave_out("agent-2", None);
    assert_eq!(left_out(&world), None);
    world.leave_out("agent-2", Some("Secret: no right")).wait(61);
    assert_eq!(left_out(&world), Some("Secret: no right"));
    world.edit(|account| account.spec.state = Some(DesiredState::Inactive));
    world.say("agent-2", AgentReport::Dropped);
    assert_eq!((world.state(), condition(world.status(), "Caching")), (State::Inactive, "False"));
    assert_eq!(left_out(&world), None);
}

#[test]
fn settings_that_contradict_each_other_are_told_with_the_write_that_makes_the_account_active() {
    let mut world = World::of(account("a").map(|account| {
        account.spec.custom_resource_definitions = Vec::new();
        account.spec.namespaces = vec!["one".to_owned()];
        account.spec.omit_namespaces = vec!["two".to_owned()];
    }));
    world.connect("agent-1", "east").say("agent-1", held());
    let told = left_out(&world).expect("they contradict each other").to_owned();
    assert!(told.contains("namespaces and omitNamespaces exclude each other"), "{told}");
    world.writes();
    world.leave_out("agent-1", Some("Pod: no right")).wait(60);
    assert_eq!(left_out(&world), Some(format!("{told}; Pod: no right").as_str()));
}
