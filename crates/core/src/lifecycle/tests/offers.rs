//! The zone of an account that names none: asked for, tried, and left for the next one.

use super::*;
use std::collections::BTreeSet;

use crate::ids::ZoneId;
use crate::lifecycle::{AgentProcess, LifecyclePolicy, Offer};

/// Two zones have agents, and the account waits for an offer of one.
fn asking() -> World {
    let mut world = World::of(account("a"));
    world.sessions.extend([session("agent-1", "east"), session("agent-2", "west")]);
    world
}

fn no(class: FailureClass) -> Offer {
    Offer::No(failure(class))
}

fn zone(world: &World) -> Option<&str> {
    world.status().granted_zone().map(ZoneId::as_str)
}

#[test]
fn with_agents_of_one_zone_there_is_nothing_to_ask() {
    let mut world = World::of(account("a"));
    world.connect("agent-1", "east");
    assert_eq!(world.writes(), ["finalizer", "ACTIVATING"]);
}

#[test]
fn with_agents_of_several_zones_offers_are_awaited_in_to_migrate() {
    let mut world = asking();
    assert_eq!(world.writes(), ["finalizer", "TO_MIGRATE"]);
    let ready = world.status().conditions.iter().find(|one| one.type_ == "Ready").cloned();
    let message = ready.expect("it is told").message;
    assert_eq!(message, "asked the agents of 2 zones; waiting for an offer");
    assert_eq!(condition(world.status(), "Reconciling"), "True");
    world.wait(20);
    assert_eq!(world.writes(), Vec::<String>::new());
}

#[test]
fn the_first_zone_that_offers_is_given_the_grant_and_no_other() {
    let mut world = asking();
    world.run_until_idle().answer("agent-1", no(FailureClass::Unreachable)).answer("agent-2", Offer::Yes);
    assert_eq!((world.state(), zone(&world)), (State::Activating, Some("west")));
    world.say("agent-2", held());
    assert_eq!(world.writes(), ["finalizer", "TO_MIGRATE", "ACTIVATING", "ACTIVE"]);
}

#[test]
fn of_two_offers_at_once_the_zone_of_the_agent_that_came_first_is_taken_and_no_name_helps() {
    for stranger in ["!", "zzz"] {
        let newcomer = SessionFact {
            process: AgentProcess { since: 900, ..AgentProcess::default() },
            ..session("agent-2", stranger)
        };
        let both = seen(account("a").in_state(State::ToMigrate))
            .with(newcomer.can())
            .with(session("agent-1", "east").can());
        assert_eq!(both.written().granted_zone(), Some(&"east".into()));
    }
    let zone_of = |account: KubesvcAccount| {
        let both = seen(account.in_state(State::ToMigrate))
            .with(session("agent-2", "!").can())
            .with(session("agent-1", "east").can());
        both.written().granted_zone().cloned()
    };
    let zones: BTreeSet<_> = (0..32).map(|number| zone_of(account(&format!("a{number}")))).collect();
    assert_eq!(zones.len(), 2, "of agents that came in the same second not always the same name is first");
}

/// Nobody may offer.
fn closed(mut world: World) -> World {
    world.policy.offers = false;
    world
}

#[test]
fn where_no_agent_may_offer_an_account_without_a_zone_is_given_to_none() {
    let mut one_zone = World::of(account("a"));
    one_zone.sessions.push(session("agent-1", "!"));
    for world in [World::of(account("a")), one_zone, asking()] {
        let mut world = closed(world);
        assert_eq!(world.writes(), ["finalizer", "FAILED"]);
        assert_eq!((reason(world.status()), world.status().phase()), ("ZoneRequired", GrantPhase::None));
        assert_eq!((world.status().failed_count, condition(world.status(), "Stalled")), (1, "True"));
        let message = world.status().error_message.clone().unwrap_or_default();
        assert!(message.contains("spec.zoneId") && message.contains("kubesvc.agents.offers"), "{message}");
        world.connect("agent-9", "north").wait(4000).recheck();
        assert_eq!(world.writes(), Vec::<String>::new(), "nothing changes that");
        world.edit(|account| account.spec.zone_id = Some("north".into()));
        assert_eq!((world.state(), zone(&world)), (State::Activating, Some("north")));
    }
}

#[test]
fn a_zone_that_was_found_before_is_no_offer_and_is_kept_while_it_holds_the_account() {
    let mut world = closed(active_world());
    world.connect("agent-2", "west").cut("agent-1").wait(700);
    assert_eq!((world.state(), zone(&world)), (State::Orphaned, Some("east")), "no other zone may offer");
    world.connect("agent-1", "east").say("agent-1", held());
    world
        .edit(|account| account.spec.state = Some(DesiredState::Inactive))
        .say("agent-1", AgentReport::Dropped);
    world.edit(|account| account.spec.state = None);
    assert_eq!((world.state(), reason(world.status())), (State::Failed, "ZoneRequired"));
}

#[test]
fn an_account_that_lacked_a_zone_is_tried_once_agents_may_offer() {
    let mut world = closed(asking());
    world.run_until_idle();
    world.policy.offers = true;
    assert_eq!(world.writes(), ["finalizer", "FAILED", "TO_MIGRATE"]);
}

#[test]
fn an_offer_for_another_generation_of_an_agent_away_or_not_approved_is_none() {
    let yes = |one: SessionFact| one.can();
    let others = [
        session("agent-1", "east").offers(7, Offer::Yes),
        yes(session("agent-1", "east")).not_approved(),
        yes(session("agent-1", "east")).away_since(1000),
    ];
    for other in others {
        let asked = seen(account("a").in_state(State::ToMigrate))
            .with(other)
            .with(session("agent-2", "west"))
            .with(session("agent-3", "north"));
        assert!(asked.decide().wake.is_some() || asked.written().state() == State::ToMigrate);
    }
}

#[test]
fn a_credential_that_is_refused_fails_before_anyone_is_asked() {
    let mut world = asking();
    world.secret = Err(failure(FailureClass::BadKubeconfig));
    assert_eq!(world.writes(), ["finalizer", "FAILED"]);
    assert_eq!(reason(world.status()), "KubeconfigRefused");
}

#[test]
fn no_offer_in_time_is_one_failure_with_the_most_telling_no_and_is_tried_again() {
    let mut world = asking();
    world.run_until_idle().answer("agent-1", no(FailureClass::CredentialMissing));
    world.answer("agent-2", no(FailureClass::Tls)).wait(29);
    assert_eq!(world.state(), State::ToMigrate, "an agent that said no is asked again meanwhile");
    world.wait(1);
    assert_eq!((world.state(), world.status().failed_count), (State::Failed, 1));
    assert_eq!(reason(world.status()), "TLSFailed");
    let message = world.status().error_message.clone().unwrap_or_default();
    assert!(
        message.contains("none of the 2 agents") && message.contains("agent-2 of zone west"),
        "{message}"
    );
    let waited = world.until(State::ToMigrate);
    assert!((5..=6).contains(&waited), "{waited}");
    world.answer("agent-1", Offer::Yes);
    assert_eq!((world.state(), zone(&world)), (State::Activating, Some("east")));
}

#[test]
fn agents_that_say_nothing_are_counted_in_the_failure() {
    let mut world = asking();
    world.run_until_idle().wait(30);
    let message = world.status().error_message.clone().unwrap_or_default();
    assert!(message.contains("none of the 2 agents asked"), "{message}");
    assert_eq!((reason(world.status()), world.status().failed_count), ("ClusterUnreachable", 1));
}

#[test]
fn rounds_without_an_offer_are_counted_to_four_and_go_on_at_the_slowest_pace() {
    let mut world = asking();
    world.run_until_idle();
    for (count, pace) in [(1, 5..=6), (2, 10..=12), (3, 20..=24), (4, 300..=300), (4, 300..=300)] {
        assert_eq!(world.until(State::Failed), 30);
        assert_eq!(world.status().failed_count, count);
        assert_eq!(condition(world.status(), "Stalled"), if count < 4 { "False" } else { "True" });
        let waited = world.recheck().until(State::ToMigrate);
        assert!(pace.contains(&waited), "round {count} after {waited} s");
    }
}

#[test]
fn a_secret_that_changes_while_rounds_fail_is_tried_at_once_and_counts_from_zero() {
    let mut world = asking();
    world.run_until_idle().until(State::Failed);
    world.secret = Ok(CredentialFact::new(Some("secret/2".to_owned())));
    world.recheck();
    assert_eq!((world.state(), world.status().failed_count), (State::ToMigrate, 0));
}

#[test]
fn a_file_or_a_service_account_waits_for_every_answer() {
    let asked = |account: KubesvcAccount| {
        seen(account.in_state(State::ToMigrate)).with(session("agent-1", "east").can())
    };
    let own = account("a").map(|account| {
        account.spec.kubeconfig =
            crate::spec::KubeconfigSource { service_account: Some(true), ..Default::default() };
    });
    for account in [account("a").with_a_file(), own] {
        let account = account.map(|account| account.status.get_or_insert_default().observed_generation = 1);
        let without_secret = Fact::Known(Ok(CredentialFact::new(None)));
        let asked = asked(account).credential(without_secret);
        let waiting = asked.with(session("agent-2", "west"));
        assert_eq!(waiting.decide(), Decision::wait_until(1030));
        assert_eq!(waiting.after(30).written().granted_zone(), Some(&"east".into()), "silence is no offer");
    }
}

#[test]
fn a_file_that_one_zone_has_goes_there() {
    let mut world = asking();
    world.account = world.account.clone().with_a_file();
    world.secret = Ok(CredentialFact::new(None));
    world.run_until_idle().answer("agent-2", Offer::Yes);
    assert_eq!(world.state(), State::ToMigrate);
    world.answer("agent-1", no(FailureClass::CredentialMissing));
    assert_eq!((world.state(), zone(&world)), (State::Activating, Some("west")));
}

#[test]
fn a_file_that_several_zones_have_is_ambiguous_and_names_them() {
    let mut world = asking();
    world.account = world.account.clone().with_a_file();
    world.secret = Ok(CredentialFact::new(None));
    world.run_until_idle().answer("agent-1", Offer::Yes).answer("agent-2", Offer::Yes);
    assert_eq!((world.state(), reason(world.status())), (State::Failed, "ZoneAmbiguous"));
    assert_eq!((world.status().failed_count, condition(world.status(), "Reconciling")), (0, "True"));
    let message = world.status().error_message.clone().unwrap_or_default();
    assert!(message.contains("east, west") && message.contains("set spec.zoneId"), "{message}");
    world.writes();
    world.wait(3600).recheck();
    assert_eq!(world.writes(), Vec::<String>::new());
    world.connect("agent-3", "north");
    assert_eq!(world.writes(), ["TO_MIGRATE"], "agents that come are asked");
    assert_eq!(world.status().tried_zones, Vec::<String>::new());
    world.edit(|account| account.spec.zone_id = Some("west".into()));
    assert_eq!((world.state(), zone(&world)), (State::Activating, Some("west")));
}

#[test]
fn an_ambiguous_account_is_taken_by_the_one_zone_that_is_left() {
    let mut world = asking();
    world.account = world.account.clone().with_a_file();
    world.secret = Ok(CredentialFact::new(None));
    world.run_until_idle().answer("agent-1", Offer::Yes).answer("agent-2", Offer::Yes);
    world.cut("agent-2");
    assert_eq!((world.state(), zone(&world)), (State::Activating, Some("east")));
}

#[test]
fn a_zone_whose_agents_fail_for_a_reason_of_place_is_left_for_the_next_that_offers() {
    let mut world = asking();
    world.run_until_idle().answer("agent-1", Offer::Yes);
    world.writes();
    world.say("agent-1", fails(FailureClass::Unreachable));
    assert_eq!((world.state(), world.status().phase()), (State::Activating, GrantPhase::Revoking));
    assert_eq!((world.status().tried_zones.as_slice(), zone(&world)), (&["east".into()][..], Some("east")));
    world.say("agent-1", AgentReport::Dropped);
    assert_eq!((world.state(), world.status().failed_count), (State::ToMigrate, 0));
    world.answer("agent-1", Offer::Yes);
    assert_eq!(world.state(), State::ToMigrate, "it was tried");
    world.answer("agent-2", Offer::Yes).say("agent-2", held());
    assert_eq!(world.writes(), ["ACTIVATING", "TO_MIGRATE, None", "ACTIVATING", "ACTIVE"]);
    assert_eq!((world.status().tried_zones.len(), &world.status().error_message), (0, &None));
}

#[test]
fn a_full_round_without_success_is_one_failure_and_the_next_begins_with_all_zones() {
    let mut world = asking();
    world.run_until_idle().answer("agent-1", Offer::Yes).say("agent-1", fails(FailureClass::Tls));
    world.say("agent-1", AgentReport::Dropped).answer("agent-2", Offer::Yes);
    world.say("agent-2", fails(FailureClass::Unreachable));
    assert_eq!((world.state(), world.status().failed_count), (State::Failed, 1));
    assert_eq!((reason(world.status()), world.status().tried_zones.len()), ("ClusterUnreachable", 0));
    world.until(State::Activating);
    assert_eq!(zone(&world), Some("west"), "where it is");
    world.say("agent-2", fails(FailureClass::Unreachable)).say("agent-2", AgentReport::Dropped);
    world.answer("agent-1", Offer::Yes);
    assert_eq!((world.state(), zone(&world)), (State::Activating, Some("east")));
}

#[test]
fn a_round_whose_other_zones_offer_nothing_is_one_failure() {
    let mut world = asking();
    world.run_until_idle().answer("agent-1", Offer::Yes).say("agent-1", fails(FailureClass::Timeout));
    world.say("agent-1", AgentReport::Dropped).wait(30);
    assert_eq!((world.state(), world.status().failed_count), (State::Failed, 1));
    assert_eq!((world.status().phase(), world.status().tried_zones.len()), (GrantPhase::None, 0));
}

#[test]
fn a_round_whose_other_zones_leave_is_one_failure() {
    let mut world = asking();
    world.run_until_idle().answer("agent-1", Offer::Yes).say("agent-1", fails(FailureClass::Timeout));
    world.cut("agent-2").say("agent-1", AgentReport::Dropped);
    assert_eq!((world.state(), world.status().failed_count), (State::Failed, 1));
    let message = world.status().error_message.clone().unwrap_or_default();
    assert!(
        message.contains("no zone is left to try after east") && message.contains("Timeout"),
        "{message}"
    );
}

#[test]
fn what_no_other_place_can_mend_leaves_no_zone() {
    let one = || session("agent-1", "east");
    let several = [
        vec![one().failed(1, FailureClass::Forbidden)],
        vec![
            one().failed(1, FailureClass::Unreachable),
            session("agent-3", "east").failed(1, FailureClass::Auth),
        ],
        vec![one().failed(1, FailureClass::Unreachable), session("agent-3", "east").silent_for(30)],
    ];
    for sessions in several {
        let mut seen = seen(account("a").activating_in("east")).with(session("agent-2", "west"));
        for session in sessions {
            seen = seen.with(session);
        }
        assert_eq!(seen.written().state(), State::Failed);
    }
}

#[test]
fn a_pinned_account_leaves_its_zone_for_no_failure() {
    let failed = session("agent-1", "east").failed(1, FailureClass::Unreachable);
    let pinned =
        seen(account("a").pinned("east").activating_in("east")).with(failed).with(session("agent-2", "west"));
    assert_eq!(pinned.written().state(), State::Failed);
}

#[test]
fn a_retry_and_a_new_definition_begin_a_round_with_all_zones() {
    let tried = || account("a").in_state(State::ToMigrate).having_tried(&["east"]);
    let changed = tried().map(|account| account.spec.namespaces = vec!["web".to_owned()]).edited();
    for before in [tried().asked_to_retry("1"), changed] {
        let status = seen(before).with(session("agent-1", "east")).with(session("agent-2", "west")).written();
        assert_eq!((status.state(), status.tried_zones.len()), (State::ToMigrate, 0));
    }
}

#[test]
fn no_round_tries_more_than_64_zones() {
    let names: Vec<_> = (0..64).map(|number| format!("zone-{number:02}")).collect();
    let tried: Vec<_> = names.iter().map(String::as_str).collect();
    let failed = session("agent-1", "east").failed(1, FailureClass::Unreachable);
    let full = seen(account("a").activating_in("east").having_tried(&tried)).with(failed);
    let status = full.with(session("agent-2", "west")).written();
    assert_eq!((status.state(), status.failed_count, status.tried_zones.len()), (State::Failed, 1, 0));
}

#[test]
fn a_move_in_a_round_that_an_agent_fails_to_make_goes_on_when_it_is_made() {
    let mut world = asking();
    world.run_until_idle().answer("agent-1", Offer::Yes).say("agent-1", fails(FailureClass::Tls));
    world.say("agent-1", fails(FailureClass::Internal));
    assert_eq!((world.state(), world.status().failed_count), (State::Failed, 1));
    world.until(State::Activating);
    world.say("agent-1", AgentReport::Dropped);
    assert_eq!(world.state(), State::ToMigrate);
    world.answer("agent-2", Offer::Yes);
    assert_eq!(zone(&world), Some("west"));
}

#[test]
fn an_account_whose_found_zone_is_gone_for_the_cleanup_looks_for_another() {
    let mut world = active_world();
    world.connect("agent-2", "west").cut("agent-1").wait(599);
    assert_eq!(world.writes(), ["ORPHANED"]);
    world.wait(1);
    assert_eq!(world.writes(), ["ACTIVATING", "TO_MIGRATE, None", "ACTIVATING"]);
    world.say("agent-2", held());
    assert_eq!((world.state(), zone(&world)), (State::Active, Some("west")));
    assert_eq!(world.status().tried_zones, Vec::<String>::new());
}

#[test]
fn an_account_whose_found_zone_is_gone_asks_where_several_are_left() {
    let mut world = active_world();
    world.connect("agent-2", "west").connect("agent-3", "north").cut("agent-1").wait(600);
    assert_eq!(world.writes(), ["ORPHANED", "ACTIVATING", "TO_MIGRATE, None"]);
    world.answer("agent-3", Offer::Yes);
    assert_eq!(zone(&world), Some("north"));
}

#[test]
fn a_failed_account_whose_found_zone_is_gone_looks_for_another_too() {
    let mut world = active_world();
    world.connect("agent-2", "west").say("agent-1", fails(FailureClass::Forbidden)).cut("agent-1").wait(601);
    assert_eq!(zone(&world), Some("west"));
}

#[test]
fn a_found_zone_that_is_gone_is_kept_while_no_other_has_agents_and_while_it_is_pinned() {
    let mut world = active_world();
    world.cut("agent-1").wait(3000);
    assert_eq!(world.writes(), ["ORPHANED"]);
    world.connect("agent-2", "west").wait(60);
    assert_eq!(zone(&world), Some("west"), "agents that come are looked for");
    let mut pinned = World::of(account("a").pinned("east"));
    pinned.connect("agent-1", "east").say("agent-1", held()).connect("agent-2", "west");
    pinned.cut("agent-1").wait(3000);
    assert_eq!((pinned.state(), zone(&pinned)), (State::Orphaned, Some("east")));
}

#[test]
fn a_leader_counts_from_its_own_beginning_how_long_a_zone_is_gone() {
    let orphan = || seen(account("a").orphaned_in("east")).with(session("agent-2", "west"));
    let wait = LifecyclePolicy::default().account_cleanup;
    for old in [orphan().with(session("agent-1", "east").away_since(0)), orphan()] {
        let almost = old.by_a_new_leader().after(wait - 1);
        assert_eq!(almost.decide(), Decision::wait_until(1000 + wait));
        assert_eq!(almost.after(1).written().phase(), GrantPhase::Revoking);
    }
}

#[test]
fn a_new_leader_chooses_a_zone_only_after_agents_known_before_have_reported() {
    let east = || session("agent-1", "east").can();
    let before = |account: KubesvcAccount| {
        account.map(|account| account.status.get_or_insert_default().zone_id = Some("west".into()))
    };
    let ambiguous = account("a")
        .with_a_file()
        .failed_with(FailureClass::ZoneAmbiguous, 0)
        .having_tried(&["east", "west"]);
    let own = account("a").with_a_file().in_state(State::ToMigrate);
    let was_elsewhere = before(account("a").in_state(State::Inactive));
    for account in [ambiguous, own, was_elsewhere] {
        let without_secret = Fact::Known(Ok(CredentialFact::new(None)));
        let new = seen(account).credential(without_secret).with(east()).by_a_new_leader().after(5);
        match new.decide().action {
            None => assert_eq!(new.decide(), Decision::wait_until(1030)),
            Some(_) => assert_eq!(
                (new.written().state(), reason(&new.written())),
                (State::Inactive, "AwaitingAgents")
            ),
        }
        assert_eq!(new.after(30).written().granted_zone(), Some(&"east".into()));
    }
}

#[test]
fn a_new_leader_asks_again_where_several_zones_were_asked_before() {
    let alone = |offers: bool| {
        let east = session("agent-1", "east");
        let east = if offers { east.can() } else { east };
        let asked = account("a").in_state(State::ToMigrate).map(|account| {
            account.status.get_or_insert_default().credential_version = Some("secret/1".to_owned());
        });
        seen(asked).with(east).by_a_new_leader()
    };
    assert_eq!(alone(false).decide(), Decision::wait_until(1030));
    assert_eq!(alone(true).written().granted_zone(), Some(&"east".into()));
}
