//! FAILED: how it comes, how often it is counted, and what ends it.

use super::*;
use crate::lifecycle::{ClusterIdentity, UnansweredMessage};

#[test]
fn no_agent_uses_no_retry_and_names_the_zone() {
    let status = seen(account("a").pinned("east").finalized()).written();
    assert_eq!((status.state(), status.failed_count), (State::Failed, 0));
    assert_eq!(reason(&status), "NoAgent");
    assert_eq!(status.error_message.as_deref(), Some("no agent connected for zone east"));
    assert_eq!(condition(&status, "Reconciling"), "True");
}

#[test]
fn no_agent_is_not_said_within_the_grace_of_a_new_leader() {
    let new = seen(account("a").pinned("east").finalized()).by_a_new_leader();
    assert_eq!(new.decide(), Decision::wait_until(1005), "most agents come by then");
    let asked = new.after(5).written();
    assert_eq!((asked.state(), reason(&asked)), (State::Inactive, "AwaitingAgents"));
    let known = account("a").pinned("east").finalized().map(|account| account.status = Some(asked));
    assert_eq!(seen(known).by_a_new_leader().decide(), Decision::wait_until(1030));
}

#[test]
fn a_new_account_says_that_a_new_leader_awaits_agents() {
    for (new, sessions) in [
        (account("a").pinned("east"), vec![]),
        (account("a"), vec![]),
        (account("a").pinned("east"), vec![session("agent-1", "west")]),
    ] {
        let mut told = seen(new.finalized()).by_a_new_leader().after(5);
        for session in sessions {
            told = told.with(session);
        }
        let status = told.written();
        assert_eq!((status.state, reason(&status)), (Some(State::Inactive), "AwaitingAgents"));
        assert_eq!(
            ["Ready", "Reconciling", "Stalled"].map(|one| condition(&status, one)),
            ["False", "True", "False"]
        );
        assert_eq!((status.observed_generation, status.failed_count), (1, 0));
    }
}

#[test]
fn an_account_that_awaits_agents_is_activated_when_one_comes_and_fails_after_the_grace() {
    let mut world = World::of_a_new_leader(account("a").pinned("east"));
    world.wait(5);
    assert_eq!(world.writes(), ["INACTIVE"], "once");
    world.connect("agent-1", "east").say("agent-1", held());
    assert_eq!(world.writes(), ["ACTIVATING", "ACTIVE"]);
    let mut alone = World::of_a_new_leader(account("a").pinned("east"));
    assert_eq!(alone.until(State::Failed), 30);
    assert_eq!(alone.writes(), ["INACTIVE", "FAILED"]);
}

#[test]
fn a_new_leader_writes_no_account_that_has_a_story_while_it_awaits_agents() {
    for known in [
        account("a").active_in("east"),
        account("a").activating_in("east"),
        account("a").pinned("east").in_state(State::ToMigrate),
    ] {
        let decision = seen(known.finalized()).by_a_new_leader().decide();
        assert!(!matches!(decision.action, Some(Action::WriteStatus(_))), "{decision:?}");
    }
}

#[test]
fn no_agent_is_not_said_by_a_watch_that_may_be_old() {
    let alone = seen(account("a").pinned("east").finalized()).seen_by_a_watch_alone();
    assert_eq!(alone.decide(), Action::ReadSessions.into());
}

#[test]
fn a_refused_credential_fails_and_keeps_the_epoch() {
    let refused = Fact::Known(Err(failure(FailureClass::BadKubeconfig)));
    for before in [account("a").active_in("east"), account("a").activating_in("east")] {
        let held = session("agent-1", "east").held(1);
        let status = seen(before).credential(refused.clone()).with(held).written();
        assert_eq!((status.state(), status.failed_count, status.epoch.0), (State::Failed, 1, 1));
        assert_eq!(status.phase(), GrantPhase::Open);
        assert_eq!(condition(&status, "Stalled"), "True");
    }
}

#[test]
fn an_agent_that_holds_on_does_not_heal_a_refused_credential() {
    for class in [FailureClass::BadKubeconfig, FailureClass::Timeout, FailureClass::Forbidden] {
        let mut world = active_world();
        world.secret = Err(failure(class));
        world.recheck();
        assert_eq!(world.writes(), ["FAILED"], "{class}: once, and not back and forth");
        world.secret = Ok(CredentialFact::new(Some("secret/2".to_owned())));
        world.recheck().say("agent-1", held());
        assert_eq!(world.writes(), ["ACTIVATING", "ACTIVE"], "{class}");
    }
}

#[test]
fn all_agents_failed_or_silent_fails_with_what_was_said() {
    let one = session("agent-1", "east").failed(1, FailureClass::Unreachable);
    let waiting = seen(account("a").activating_in("east")).with(one.clone()).with(session("agent-2", "east"));
    assert_eq!(waiting.decide(), Decision::wait_until(1030));
    let silent = session("agent-2", "east").silent_for(30);
    let status = seen(account("a").activating_in("east")).with(one).with(silent).written();
    assert_eq!((status.state(), status.failed_count), (State::Failed, 1));
    assert_eq!(status.error_message.as_deref(), Some("ClusterUnreachable happened"));
}

#[test]
fn silence_alone_is_a_timeout_that_names_the_agent() {
    let silent = session("agent-1", "east").silent_for(30);
    let status = seen(account("a").activating_in("east")).with(silent).written();
    assert_eq!(reason(&status), "Timeout");
    assert!(status.error_message.is_some_and(|message| message.contains("agent-1")));
}

#[test]
fn silence_names_the_mtu_once_two_streams_ended_without_an_answer_to_a_message() {
    let adding = || account("a").activating_in("east");
    let dropping = || {
        account("a").in_state(State::Deactivating).granted(GrantPhase::Revoking, "east", 2).wanted_inactive()
    };
    for asked in [adding, dropping] {
        for (ended_streams, is_named) in [(0, false), (1, false), (2, true), (9, true)] {
            let unanswered = Some(UnansweredMessage { bytes: 2048, ended_streams });
            let silent = SessionFact { unanswered, ..session("agent-1", "east").silent_for(30) };
            let status = seen(asked()).with(silent).written();
            assert_eq!(reason(&status), "Timeout");
            let message = status.error_message.expect("it says why");
            let names = |part| message.contains(part);
            assert!(names("agent-1"), "{message}");
            assert_eq!(names("message of 2048 bytes") && names("check the MTU"), is_named, "{message}");
        }
    }
}

#[test]
fn absence_of_every_agent_fails_with_no_agent_and_uses_no_retry() {
    let gone = seen(account("a").activating_in("east")).with(session("agent-1", "east").away_since(970));
    let status = gone.written();
    assert_eq!((reason(&status), status.failed_count), ("NoAgent", 0));
}

#[test]
fn another_cluster_than_the_bound_one_stalls_without_a_retry() {
    let other = session("agent-1", "east").held_in(1, "staging");
    let status = seen(account("a").active_in("east")).with(other.clone()).written();
    assert_eq!(reason(&status), "ClusterMismatch");
    assert_eq!((condition(&status, "Stalled"), status.failed_count), ("True", 1));
    let later =
        seen(account("a").active_in("east").failed_with(FailureClass::ClusterMismatch, 1)).with(other);
    assert_eq!(later.after(10_000).decide(), Decision::nothing());
}

#[test]
fn an_agent_that_was_late_in_another_cluster_is_no_healing_and_has_to_drop_the_account() {
    let late = session("agent-1", "east").held_in(1, "staging");
    let failed = || account("a").active_in("east").failed_with(FailureClass::Forbidden, 4);
    let status = seen(failed()).with(late.clone()).written();
    assert_eq!((reason(&status), status.phase()), ("ClusterMismatch", GrantPhase::Revoking));
    let refused = Fact::Known(Err(failure(FailureClass::BadKubeconfig)));
    let refused = seen(account("a").active_in("east").failed_with(FailureClass::BadKubeconfig, 1))
        .credential(refused)
        .with(late);
    assert_eq!(refused.decide(), Decision::nothing(), "why it failed stays");
}

#[test]
fn one_agent_of_several_in_another_cluster_counts_as_failed() {
    let two = seen(account("a").active_in("east").cached_by("agent-2"))
        .with(session("agent-1", "east").held_in(1, "staging"))
        .with(session("agent-2", "east").held(1));
    assert_eq!(two.decide(), Decision::nothing());
}

#[test]
fn a_rotated_certificate_is_the_same_cluster() {
    let mut identity = cluster_named("prod");
    identity.cluster_uid.clear();
    identity.cert_fingerprint = "another".to_owned();
    let rotated = session("agent-1", "east").says(1, AgentReport::Held(identity));
    assert_eq!(seen(account("a").active_in("east")).with(rotated).decide(), Decision::nothing());
}

#[test]
fn without_a_uid_token_keys_and_authority_must_both_differ() {
    let mut identity = ClusterIdentity { cluster_uid: String::new(), ..cluster_named("staging") };
    let reached = |identity: &ClusterIdentity| {
        let session = session("agent-1", "east").says(1, AgentReport::Held(identity.clone()));
        seen(account("a").active_in("east")).with(session)
    };
    assert_eq!(reason(&reached(&identity).written()), "ClusterMismatch");
    identity.token_keys_digest = cluster_named("prod").token_keys_digest;
    assert_eq!(
        reached(&identity).decide(),
        Decision::nothing(),
        "an authority that was rotated, at a new address"
    );
}

#[test]
fn a_cluster_that_cannot_be_compared_is_taken_with_a_condition_and_the_binding_stays() {
    let nameless = ClusterIdentity {
        cluster_uid: String::new(),
        token_keys_digest: String::new(),
        authority_key_digest: String::new(),
        ..cluster_named("staging")
    };
    let mut world = active_world();
    assert_eq!(condition(world.status(), "ClusterIdentity"), "True");
    let bound = world.status().clone();
    world
        .edit(|account| account.spec.namespaces = vec!["web".to_owned()])
        .say("agent-1", AgentReport::Held(nameless));
    let status = world.status();
    assert_eq!((status.state(), condition(status, "ClusterIdentity")), (State::Active, "Unknown"));
    let said = status.conditions.iter().find(|one| one.type_ == "ClusterIdentity").expect("it is there");
    assert_eq!(said.reason, "NotReadable");
    assert_eq!(
        (&status.cluster_uid, &status.token_keys_digest, &status.authority_key_digest),
        (&bound.cluster_uid, &bound.token_keys_digest, &bound.authority_key_digest)
    );
    world
        .edit(|account| account.spec.state = Some(DesiredState::Inactive))
        .say("agent-1", AgentReport::Dropped);
    let status = world.status();
    assert!(status.conditions.iter().all(|one| one.type_ != "ClusterIdentity"));
    assert_eq!(
        (&status.cluster, &status.token_keys_digest, &status.authority_key_digest),
        (&None, &None, &None)
    );
}

#[test]
fn a_uid_decides_even_where_no_host_is_known() {
    let bound = account("a").active_in("east").map(|account| {
        account.status.get_or_insert_default().kube_host = None;
    });
    let status = seen(bound).with(session("agent-1", "east").held_in(1, "staging")).written();
    assert_eq!(reason(&status), "ClusterMismatch");
}

#[test]
fn inactive_clears_the_binding() {
    let mut world = active_world();
    world
        .edit(|account| account.spec.state = Some(DesiredState::Inactive))
        .say("agent-1", AgentReport::Dropped);
    world.edit(|account| account.spec.state = None);
    world.say("agent-1", AgentReport::Held(cluster_named("staging")));
    assert_eq!(world.state(), State::Active);
    assert_eq!(world.status().kube_host.as_deref(), Some("https://staging:6443"));
}

#[test]
fn four_tries_then_it_stalls_and_is_tried_at_the_slowest_pace() {
    let mut world = World::of(account("a"));
    world.connect("agent-1", "east");
    for (count, pace) in [(1, 5..=6), (2, 10..=12), (3, 20..=24), (4, 300..=300), (4, 300..=300)] {
        world.say("agent-1", fails(FailureClass::Unreachable));
        assert_eq!((world.state(), world.status().failed_count), (State::Failed, count));
        assert_eq!(condition(world.status(), "Stalled"), if count < 4 { "False" } else { "True" });
        let waited = world.until(State::Activating);
        assert!(pace.contains(&waited), "try {count} after {waited} s");
    }
    world.say("agent-1", held());
    assert_eq!((world.state(), world.status().failed_count), (State::Active, 0));
}

#[test]
fn a_refused_right_is_tried_four_times_and_then_not_again() {
    let mut world = World::of(account("a"));
    world.connect("agent-1", "east").say("agent-1", fails(FailureClass::Forbidden));
    for _ in 0..3 {
        world.until(State::Activating);
        world.say("agent-1", fails(FailureClass::Forbidden));
    }
    world.writes();
    world.wait(3600);
    assert_eq!(world.writes(), Vec::<String>::new());
    assert_eq!((world.state(), world.status().failed_count), (State::Failed, 4));
}

#[test]
fn a_missing_secret_goes_on_being_looked_for_and_is_not_looked_for_all_the_time() {
    let mut world = World::of(account("a"));
    world.secret = Err(failure(FailureClass::CredentialMissing));
    world.connect("agent-1", "east").wait(100);
    assert_eq!(world.status().failed_count, 4);
    world.writes();
    world.wait(3000);
    assert_eq!(world.writes().len(), 10, "once in 300 s");
    world.secret = Ok(CredentialFact::new(Some("secret/9".to_owned())));
    world.wait(300).say("agent-1", held());
    assert_eq!(world.state(), State::Active);
}

#[test]
fn a_secret_that_appears_is_tried_at_once_and_counts_from_zero() {
    let mut world = World::of(account("a"));
    world.secret = Err(failure(FailureClass::CredentialMissing));
    world.connect("agent-1", "east").wait(100);
    world.secret = Ok(CredentialFact::new(Some("secret/9".to_owned())));
    world.recheck();
    assert_eq!((world.state(), world.status().failed_count), (State::Activating, 0));
}

#[test]
fn a_refused_kubeconfig_counts_once_however_often_it_is_changed_to_another_refused_one() {
    let mut world = active_world();
    for version in 0..3 {
        let message = format!("refused for reason {version}");
        world.secret = Err(Failure::new(FailureClass::BadKubeconfig, message.clone()));
        world.recheck();
        assert_eq!(world.status().failed_count, 1);
        assert_eq!(world.status().error_message, Some(message));
    }
    world.writes();
    world.wait(3600);
    assert_eq!(world.writes(), Vec::<String>::new());
}

#[test]
fn a_retry_that_is_asked_for_is_tried_at_once_and_counts_from_zero() {
    let failed = account("a").active_in("east").failed_with(FailureClass::Forbidden, 4).asked_to_retry("2");
    let status = seen(failed).with(session("agent-1", "east").failed(1, FailureClass::Forbidden)).written();
    assert_eq!((status.state(), status.failed_count, status.epoch.0), (State::Activating, 0, 2));
    assert_eq!(status.retry_handled.as_deref(), Some("2"));
}

#[test]
fn a_new_definition_is_tried_at_once_and_counts_from_zero() {
    let failed = account("a")
        .active_in("east")
        .failed_with(FailureClass::Forbidden, 4)
        .map(|account| account.spec.namespaces = vec!["web".to_owned()])
        .edited();
    let status = seen(failed).with(session("agent-1", "east")).written();
    assert_eq!((status.state(), status.failed_count), (State::Activating, 0));
}

#[test]
fn new_permissions_are_seen_in_failed_and_try_nothing() {
    let failed = account("a")
        .active_in("east")
        .failed_with(FailureClass::Forbidden, 4)
        .map(|account| account.spec.environment = Some("prod".to_owned()))
        .edited();
    let status = seen(failed).with(session("agent-1", "east")).written();
    assert_eq!((status.state(), status.failed_count, status.epoch.0), (State::Failed, 4, 1));
    assert_eq!(status.observed_generation, 2);
}

#[test]
fn a_late_held_heals_and_a_held_for_an_older_epoch_does_not() {
    let failed = account("a").active_in("east").failed_with(FailureClass::Forbidden, 4);
    let late = seen(failed.clone()).with(session("agent-1", "east").held(1));
    assert_eq!(late.written().state(), State::Active);
    let old = seen(failed).with(session("agent-1", "east").held(0));
    assert_eq!(old.decide(), Decision::nothing());
}

#[test]
fn agents_that_all_reached_another_cluster_drop_the_account_and_it_stays_bound() {
    let mut world = active_world();
    world.say("agent-1", AgentReport::Held(cluster_named("staging")));
    assert_eq!((reason(world.status()), world.status().phase()), ("ClusterMismatch", GrantPhase::Revoking));
    world.say("agent-1", AgentReport::Dropped);
    assert_eq!(world.writes(), ["FAILED", "FAILED, None"]);
    assert_eq!((reason(world.status()), world.status().failed_count), ("ClusterMismatch", 1));
    assert_eq!(world.status().kube_host.as_deref(), Some("https://prod:6443"));
    world.recheck().wait(3600);
    assert_eq!(world.writes(), Vec::<String>::new());
}

#[test]
fn agents_that_find_another_cluster_while_they_stream_drop_the_account_and_it_stays_bound() {
    let mut world = active_world();
    let lost = || AgentReport::Lost(failure(FailureClass::ClusterMismatch));
    world.connect("agent-2", "east").say("agent-2", held()).writes();
    let streams = |world: &World| world.status().caching_agent().map(|agent| agent.as_str().to_owned());
    world.say("agent-1", lost());
    assert_eq!((world.state(), streams(&world).as_deref()), (State::Active, Some("agent-2")));
    world.say("agent-2", lost());
    assert_eq!((reason(world.status()), world.status().phase()), ("ClusterMismatch", GrantPhase::Revoking));
    assert_eq!(streams(&world), None);
    world.say("agent-1", AgentReport::Dropped).say("agent-2", AgentReport::Dropped);
    assert_eq!((world.state(), world.status().phase()), (State::Failed, GrantPhase::None));
    assert_eq!(world.status().kube_host.as_deref(), Some("https://prod:6443"), "it stays bound");
    world.writes();
    world.wait(3600);
    assert_eq!(world.writes(), Vec::<String>::new());
}

#[test]
fn agents_that_leave_do_not_turn_a_stalled_account_into_one_that_is_tried() {
    let mut world = active_world();
    world.say("agent-1", AgentReport::Held(cluster_named("staging"))).say("agent-1", AgentReport::Dropped);
    assert_eq!(reason(world.status()), "ClusterMismatch");
    world.writes();
    world.cut("agent-1").wait(3600).connect("agent-1", "east").wait(10);
    assert_eq!(world.writes(), Vec::<String>::new());
}

#[test]
fn a_changed_secret_after_a_mismatch_is_tried_at_once_against_the_same_binding() {
    for dropped in [true, false] {
        let mut world = active_world();
        world.say("agent-1", AgentReport::Held(cluster_named("staging")));
        if dropped {
            world.say("agent-1", AgentReport::Dropped);
        }
        world.secret = Ok(CredentialFact::new(Some("secret/2".to_owned())));
        world.recheck();
        if !dropped {
            world.say("agent-1", AgentReport::Dropped).recheck();
        }
        assert_eq!((world.state(), world.status().failed_count), (State::Activating, 0), "{dropped}");
        world.say("agent-1", AgentReport::Held(cluster_named("staging")));
        assert_eq!(reason(world.status()), "ClusterMismatch", "{dropped}");
        world.say("agent-1", AgentReport::Dropped);
        world.secret = Ok(CredentialFact::new(Some("secret/3".to_owned())));
        world.recheck().say("agent-1", held());
        assert_eq!(world.state(), State::Active, "{dropped}");
    }
}

#[test]
fn an_edit_while_the_wrong_cluster_is_left_does_not_unbind_the_account() {
    let mut world = active_world();
    world.say("agent-1", AgentReport::Held(cluster_named("staging")));
    world
        .edit(|account| account.spec.namespaces = vec!["web".to_owned()])
        .say("agent-1", AgentReport::Dropped);
    assert_eq!(world.state(), State::Activating);
    assert_eq!(world.status().kube_host.as_deref(), Some("https://prod:6443"));
    world.say("agent-1", AgentReport::Held(cluster_named("staging")));
    assert_eq!(reason(world.status()), "ClusterMismatch");
}

#[test]
fn a_failure_that_is_due_while_no_agent_is_there_becomes_no_agent_and_is_tried_when_one_connects() {
    let mut world = World::of(account("a"));
    world.connect("agent-1", "east").say("agent-1", fails(FailureClass::Unreachable));
    world.cut("agent-1").wait(60);
    assert_eq!((reason(world.status()), world.status().failed_count), ("NoAgent", 1));
    world.connect("agent-1", "east");
    assert_eq!(world.state(), State::Activating);
}
