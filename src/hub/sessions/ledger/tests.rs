use super::*;
use kubesvc_core::lifecycle::ClusterIdentity;

mod held;

const NOW: HubUptime = Duration::from_secs(1000);

fn held() -> AgentReport {
    AgentReport::Held(ClusterIdentity::default())
}

fn failure() -> Failure {
    Failure::new(FailureClass::Unreachable, "no route")
}

fn sent(epoch: i64) -> Ledger {
    let mut ledger = Ledger::new(0);
    ledger.prepare("u", "one", GrantEpoch(epoch), 0);
    ledger.added("u", GrantEpoch(epoch), 0);
    ledger
}

/// A hello's claim of the account under an epoch.
fn claim(epoch: i64, cluster: &str) -> HeldClaim {
    let (uid, name) = ("u".to_owned(), "one".to_owned());
    HeldClaim { uid, name, epoch: GrantEpoch(epoch), cluster_uid: cluster.to_owned() }
}

fn report(ledger: &Ledger) -> Option<(GrantEpoch, AgentReport)> {
    ledger.entry("u").and_then(|entry| entry.report.clone())
}

fn command(ledger: &Ledger) -> Option<PendingCommand> {
    ledger.entry("u").and_then(|entry| entry.command)
}

#[test]
fn held_and_failed_answer_an_add() {
    for answer in [held(), AgentReport::Failed(failure())] {
        let mut ledger = sent(3);
        assert_eq!(ledger.record_answer("u", GrantEpoch(3), answer.clone(), false, NOW), AnswerEffect::Taken);
        assert_eq!(report(&ledger), Some((GrantEpoch(3), answer)));
        assert_eq!(command(&ledger), None);
        assert_eq!(ledger.silent_for("u", 100), None);
    }
}

#[test]
fn answers_to_what_was_never_sent_are_ignored() {
    let mut ledger = Ledger::new(0);
    assert_eq!(ledger.record_answer("u", GrantEpoch(3), held(), false, NOW), AnswerEffect::NeverSent);
    ledger.prepare("u", "one", GrantEpoch(3), 0);
    assert_eq!(
        ledger.record_answer("u", GrantEpoch(3), held(), false, NOW),
        AnswerEffect::NeverSent,
        "it was only prepared"
    );
    ledger.added("u", GrantEpoch(3), 0);
    assert_eq!(ledger.record_answer("u", GrantEpoch(4), held(), false, NOW), AnswerEffect::Future);
    assert_eq!(report(&ledger), None);
}

#[test]
fn late_and_repeated_answers_are_harmless() {
    let mut ledger = sent(3);
    ledger.prepare("u", "one", GrantEpoch(4), 0);
    ledger.added("u", GrantEpoch(4), 0);
    assert_eq!(
        ledger.record_answer("u", GrantEpoch(3), AgentReport::Failed(failure()), false, NOW),
        AnswerEffect::Late
    );
    assert_eq!(command(&ledger), Some(PendingCommand::Add(GrantEpoch(4))));
    assert_eq!(ledger.record_answer("u", GrantEpoch(4), held(), false, NOW), AnswerEffect::Taken);
    assert_eq!(ledger.record_answer("u", GrantEpoch(4), held(), false, NOW), AnswerEffect::Taken);
    assert_eq!(ledger.record_answer("u", GrantEpoch(3), held(), false, NOW), AnswerEffect::Late);
    assert_eq!(
        ledger.record_answer("u", GrantEpoch(4), AgentReport::Failed(failure()), false, NOW),
        AnswerEffect::Late
    );
    assert_eq!(report(&ledger), Some((GrantEpoch(4), held())));
}

#[test]
fn dropped_counts_for_the_epoch_it_was_asked_for() {
    let mut ledger = sent(3);
    ledger.dropping("u", "one", GrantEpoch(4), 0);
    assert_eq!(
        ledger.record_answer("u", GrantEpoch(3), AgentReport::Dropped, false, NOW),
        AnswerEffect::Late
    );
    assert_eq!(
        ledger.record_answer("u", GrantEpoch(3), held(), false, NOW),
        AnswerEffect::Taken,
        "the Add was done first"
    );
    assert_eq!(command(&ledger), Some(PendingCommand::Drop(GrantEpoch(4))));
    assert_eq!(
        ledger.record_answer("u", GrantEpoch(4), AgentReport::Dropped, false, NOW),
        AnswerEffect::Taken
    );
    assert!(ledger.entry("u").is_some_and(|entry| !entry.may_hold()));
    assert_eq!(
        ledger.record_answer("u", GrantEpoch(4), AgentReport::Dropped, false, NOW),
        AnswerEffect::Late,
        "said twice"
    );
    assert_eq!(
        ledger.record_answer("u", GrantEpoch(3), held(), false, NOW),
        AnswerEffect::NeverSent,
        "it holds nothing any more"
    );
}

#[test]
fn a_failed_drop_is_recorded_and_the_account_may_still_be_held() {
    let mut ledger = sent(3);
    ledger.dropping("u", "one", GrantEpoch(4), 0);
    assert_eq!(
        ledger.record_answer("u", GrantEpoch(4), AgentReport::Failed(failure()), true, NOW),
        AnswerEffect::Taken
    );
    assert_eq!(report(&ledger), Some((GrantEpoch(4), AgentReport::Failed(failure()))));
    assert!(
        ledger.entry("u").is_some_and(|entry| entry.may_hold() && entry.drop_failed == Some(GrantEpoch(4)))
    );
}

#[test]
fn a_name_is_busy_until_every_drop_under_it_is_answered() {
    let mut ledger = sent(3);
    ledger.dropping("u", "one", GrantEpoch(4), 0);
    ledger.dropping("u", "one", GrantEpoch(5), 0);
    ledger.wait_for_name("v", "one", GrantEpoch(1), 0);
    assert!(ledger.name_is_busy("one"));
    assert!(ledger.freed("one").is_empty());
    ledger.record_answer("u", GrantEpoch(5), AgentReport::Dropped, false, NOW);
    assert!(!ledger.name_is_busy("one"));
    assert_eq!(ledger.freed("one"), ["v"]);
    assert!(ledger.freed("one").is_empty());
}

#[test]
fn an_agent_that_holds_a_later_epoch_fails_the_add_instead_of_looping() {
    let mut ledger = Ledger::new(0);
    ledger.believe("u", "one", GrantEpoch(9), None);
    ledger.prepare("u", "one", GrantEpoch(6), 0);
    ledger.added("u", GrantEpoch(6), 0);
    assert_eq!(ledger.record_answer("u", GrantEpoch(9), held(), false, NOW), AnswerEffect::Taken);
    assert!(matches!(report(&ledger), Some((GrantEpoch(6), AgentReport::Failed(_)))));
}

#[test]
fn the_answer_to_an_add_counts_though_a_later_epoch_was_dropped_before() {
    // A status that was wiped, or an etcd that was restored, lets epochs start over.
    let mut ledger = sent(3);
    ledger.record_answer("u", GrantEpoch(3), held(), false, NOW);
    ledger.dropping("u", "one", GrantEpoch(3), 0);
    ledger.record_answer("u", GrantEpoch(3), AgentReport::Dropped, false, NOW);
    ledger.prepare("u", "one", GrantEpoch(1), 0);
    ledger.added("u", GrantEpoch(1), 0);
    assert_eq!(ledger.record_answer("u", GrantEpoch(1), held(), false, NOW), AnswerEffect::Taken);
    assert_eq!(report(&ledger), Some((GrantEpoch(1), held())));
    assert_eq!(command(&ledger), None);
}

#[test]
fn the_pace_is_10_20_40_and_60_seconds() {
    let mut ledger = sent(3);
    let mut waits = Vec::new();
    for _ in 0..6 {
        ledger.prepare("u", "one", GrantEpoch(3), 0);
        ledger.added("u", GrantEpoch(3), 0);
        ledger.record_answer("u", GrantEpoch(3), AgentReport::Failed(failure()), false, NOW);
        let again = ledger.entry("u").and_then(|entry| entry.retry).expect("it is paced");
        waits.push((again.at - NOW).as_secs());
    }
    assert_eq!(waits, [10, 20, 40, 60, 60, 60]);
    ledger.prepare("u", "one", GrantEpoch(4), 0);
    ledger.added("u", GrantEpoch(4), 0);
    ledger.record_answer("u", GrantEpoch(4), AgentReport::Failed(failure()), false, NOW);
    let again = ledger.entry("u").and_then(|entry| entry.retry).expect("it is paced");
    assert_eq!((again.at - NOW).as_secs(), 10, "a new epoch begins anew");
}

#[test]
fn silence_counts_from_the_add_and_anew_from_working() {
    let mut ledger = Ledger::new(100);
    ledger.prepare("u", "one", GrantEpoch(3), 101);
    assert_eq!(ledger.silent_for("u", 102), Some(0), "the hub waits for the credential");
    ledger.added("u", GrantEpoch(3), 102);
    assert_eq!(ledger.silent_for("u", 105), Some(3));
    ledger.frame(106);
    assert_eq!(ledger.silent_for("u", 107), Some(5));
    ledger.working("u", 108);
    assert_eq!(ledger.silent_for("u", 110), Some(2));
}

#[test]
fn silence_counts_from_the_wish_to_send_while_a_drop_keeps_the_name_busy() {
    let mut ledger = Ledger::new(100);
    ledger.dropping("other", "one", GrantEpoch(2), 100);
    ledger.wait_for_name("u", "one", GrantEpoch(3), 101);
    assert_eq!(ledger.silent_for("u", 105), Some(4), "it is the agent that does not answer");
}

#[test]
fn silence_stands_still_while_the_session_is_being_lost() {
    let mut ledger = Ledger::new(100);
    ledger.prepare("u", "one", GrantEpoch(3), 100);
    ledger.added("u", GrantEpoch(3), 100);
    assert_eq!(ledger.silent_for("u", 115), Some(15));
    assert_eq!(ledger.silent_for("u", 1000), Some(15));
    ledger.frame(1000);
    assert_eq!(ledger.silent_for("u", 1001), Some(16));
}

#[test]
fn a_new_epoch_is_owed_from_its_own_beginning() {
    let mut ledger = sent(3);
    ledger.frame(10);
    assert_eq!(ledger.silent_for("u", 10), Some(10));
    ledger.prepare("u", "one", GrantEpoch(4), 10);
    assert_eq!(ledger.silent_for("u", 10), Some(0));
}

#[test]
fn an_account_that_could_not_be_sent_says_why() {
    let mut ledger = Ledger::new(0);
    ledger.prepare("u", "one", GrantEpoch(3), 0);
    ledger.not_sent("u", GrantEpoch(3), Some(failure()), NOW, Duration::ZERO);
    assert_eq!(report(&ledger), Some((GrantEpoch(3), AgentReport::Failed(failure()))));
    assert!(ledger.entry("u").is_some_and(|entry| !entry.may_hold()));
}

#[test]
fn dropped_in_answer_to_an_add_is_paced() {
    let mut ledger = sent(3);
    assert_eq!(
        ledger.record_answer("u", GrantEpoch(3), AgentReport::Dropped, false, NOW),
        AnswerEffect::Taken
    );
    assert!(ledger.entry("u").is_some_and(|entry| entry.retry.is_some_and(|again| again.at > NOW)));
}

/// The ledger of the next stream of the same process, which is sent the account again in a message of so many bytes.
fn next_stream(former: &Ledger, epoch: i64, now: Tick, bytes: usize) -> Ledger {
    let mut ledger = Ledger::new(now);
    ledger.seed(&[], former);
    ledger.prepare("u", "one", GrantEpoch(epoch), now);
    ledger.added("u", GrantEpoch(epoch), now);
    ledger.sent("u", bytes);
    ledger
}

fn unanswered(ledger: &Ledger) -> Option<(usize, u32)> {
    let message = ledger.entry("u").and_then(|entry| entry.unanswered)?;
    Some((message.bytes, message.ended_streams))
}

#[test]
fn streams_that_end_without_an_answer_to_a_message_are_counted_until_there_is_one() {
    let mut first = sent(3);
    first.sent("u", 2048);
    assert_eq!(unanswered(&first), Some((2048, 0)));
    let second = next_stream(&first, 3, 40, 2048);
    assert_eq!(unanswered(&second), Some((2048, 1)));
    let mut unsent = Ledger::new(80);
    unsent.seed(&[], &second);
    unsent.prepare("u", "one", GrantEpoch(3), 80);
    let third = next_stream(&unsent, 4, 120, 2050);
    assert_eq!(
        unanswered(&third),
        Some((2050, 2)),
        "also of a later epoch; a stream without it does not count"
    );
    for hear in [
        |ledger: &mut Ledger| ledger.working("u", 121),
        |ledger: &mut Ledger| {
            ledger.record_answer("u", GrantEpoch(4), AgentReport::Failed(failure()), false, NOW);
        },
        |ledger: &mut Ledger| {
            ledger.dropping("u", "one", GrantEpoch(4), 121);
            ledger.record_answer("u", GrantEpoch(4), AgentReport::Dropped, false, NOW);
        },
    ] {
        let mut heard = third.clone();
        hear(&mut heard);
        assert_eq!(unanswered(&heard), None);
    }
    let mut dropping = third.clone();
    dropping.dropping("u", "one", GrantEpoch(4), 121);
    dropping.sent("u", 60);
    assert_eq!(unanswered(&dropping), Some((2050, 2)), "the path may lose the large ones");
    let mut claimed = Ledger::new(130);
    claimed.seed(&[claim(4, "")], &third);
    assert_eq!(unanswered(&claimed), None, "an agent that holds the epoch has received it");
}

#[test]
fn silence_about_an_epoch_adds_up_over_the_streams_of_a_process() {
    let mut first = sent(3);
    first.frame(20);
    let mut second = next_stream(&first, 3, 100, 2048);
    assert_eq!(
        second.silent_for("u", 105),
        Some(20),
        "15 counted until its last frame; the time between the streams does not count"
    );
    let mut unsent = Ledger::new(110);
    second.frame(105);
    unsent.seed(&[], &second);
    unsent.prepare("u", "one", GrantEpoch(3), 110);
    assert_eq!(
        next_stream(&unsent, 3, 120, 2048).silent_for("u", 121),
        Some(21),
        "nor that of a stream without it"
    );
    second.prepare("u", "one", GrantEpoch(4), 105);
    second.added("u", GrantEpoch(4), 105);
    assert_eq!(second.silent_for("u", 106), Some(1), "a new epoch begins anew");
    let mut heard = next_stream(&first, 3, 100, 2048);
    heard.working("u", 101);
    assert_eq!(heard.silent_for("u", 103), Some(2), "the agent has received it");
}

fn mismatch() -> Failure {
    Failure::new(FailureClass::ClusterMismatch, "another cluster")
}

#[test]
fn an_agent_that_let_go_of_the_wrong_cluster_has_failed_and_holds_nothing() {
    let mut ledger = sent(3);
    ledger.record_answer("u", GrantEpoch(3), held(), false, NOW);
    ledger.dropping_from_wrong_cluster("u", GrantEpoch(3), mismatch(), (NOW, 0));
    assert_eq!(command(&ledger), Some(PendingCommand::Drop(GrantEpoch(3))));
    assert_eq!(report(&ledger), Some((GrantEpoch(3), AgentReport::Failed(mismatch()))));
    assert!(ledger.name_is_busy("one"));
    assert_eq!(
        ledger.record_answer("u", GrantEpoch(3), AgentReport::Dropped, false, NOW),
        AnswerEffect::Taken
    );
    assert!(!ledger.name_is_busy("one"));
    assert_eq!(
        report(&ledger),
        Some((GrantEpoch(3), AgentReport::Failed(mismatch()))),
        "the leader goes on being told why"
    );
    assert!(ledger.entry("u").is_some_and(|entry| !entry.may_hold() && entry.command.is_none()));
}

#[test]
fn held_in_the_wrong_cluster_is_retried_at_the_pace_of_failures() {
    let mut ledger = Ledger::new(0);
    let mut waits = Vec::new();
    for _ in 0..5 {
        ledger.prepare("u", "one", GrantEpoch(3), 0);
        ledger.added("u", GrantEpoch(3), 0);
        ledger.record_answer("u", GrantEpoch(3), held(), false, NOW);
        ledger.dropping_from_wrong_cluster("u", GrantEpoch(3), mismatch(), (NOW, 0));
        ledger.record_answer("u", GrantEpoch(3), AgentReport::Dropped, false, NOW);
        let again = ledger.entry("u").and_then(|entry| entry.retry).expect("it is paced");
        waits.push((again.at - NOW).as_secs());
    }
    assert_eq!(waits, [10, 20, 40, 60, 60]);
}

#[test]
fn a_revoke_ends_though_the_wrong_cluster_was_let_go_of_before() {
    let mut ledger = sent(3);
    ledger.record_answer("u", GrantEpoch(3), held(), false, NOW);
    ledger.dropping_from_wrong_cluster("u", GrantEpoch(3), mismatch(), (NOW, 0));
    ledger.dropping("u", "one", GrantEpoch(4), 0);
    assert_eq!(
        ledger.record_answer("u", GrantEpoch(3), AgentReport::Dropped, false, NOW),
        AnswerEffect::Late
    );
    assert_eq!(
        ledger.record_answer("u", GrantEpoch(4), AgentReport::Dropped, false, NOW),
        AnswerEffect::Taken
    );
    assert_eq!(report(&ledger), Some((GrantEpoch(4), AgentReport::Dropped)));
}

#[test]
fn account_claimed_in_the_hello_counts_as_held_until_confirmed() {
    let mut ledger = Ledger::new(0);
    ledger.seed(&[claim(3, "")], &Ledger::new(0));
    assert_eq!(ledger.counts(), (1, 0));
    ledger.prepare("u", "one", GrantEpoch(3), 0);
    ledger.added("u", GrantEpoch(3), 0);
    assert_eq!(ledger.counts(), (1, 0), "it is asked for what it reaches");
    assert_eq!(
        ledger.record_answer("u", GrantEpoch(3), AgentReport::Failed(failure()), false, NOW),
        AnswerEffect::Taken
    );
    assert_eq!(ledger.counts(), (0, 1));
    assert_eq!(sent(3).counts(), (0, 0), "one that was never told holds nothing before it has said so");
}

#[test]
fn a_credential_that_stays_another_one_than_the_grants_becomes_the_sessions_failure() {
    let mut ledger = Ledger::new(0);
    let doubt = |ledger: &mut Ledger, epoch: i64| {
        ledger.prepare("u", "one", GrantEpoch(epoch), 0);
        ledger.record_credential_mismatch("u", GrantEpoch(epoch), NOW, Duration::from_secs(5));
    };
    for _ in 1..MAX_CREDENTIAL_MISMATCHES {
        doubt(&mut ledger, 3);
        assert!(
            ledger.has_credential_mismatch("u", GrantEpoch(3))
                && !ledger.has_credential_mismatch("u", GrantEpoch(4))
        );
        assert_eq!(report(&ledger), None);
    }
    doubt(&mut ledger, 4);
    assert_eq!(report(&ledger), None, "another epoch begins anew");
    for _ in 1..MAX_CREDENTIAL_MISMATCHES {
        doubt(&mut ledger, 4);
    }
    let said = report(&ledger).expect("it has failed");
    assert!(
        matches!(&said, (GrantEpoch(4), AgentReport::Failed(why)) if why.class == FailureClass::CredentialDiffers),
        "{said:?}"
    );
    ledger.prepare("u", "one", GrantEpoch(4), 0);
    ledger.added("u", GrantEpoch(4), 0);
    assert!(!ledger.has_credential_mismatch("u", GrantEpoch(4)), "it was the right one after all");
}
