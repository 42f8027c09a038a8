use super::*;

impl Default for Times {
    fn default() -> Self {
        Self {
            duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }
}

const S: fn(u64) -> Duration = Duration::from_secs;

fn record(holder: &str, version: u32) -> LeaseRecord {
    LeaseRecord { holder: holder.into(), version: version.to_string() }
}

fn candidate() -> Candidate {
    Candidate::new(&"a".into(), Times::default())
}

/// A candidate that took the Lease at second 100.
fn leader() -> Candidate {
    let mut candidate = candidate();
    candidate.wrote(record("a", 1), S(100));
    candidate
}

#[test]
fn lease_is_not_acquired_before_it_was_read() {
    assert_eq!(candidate().step(S(0)), LeaseAction::Wait(S(2)));
}

#[test]
fn a_lease_that_is_absent_or_released_or_ours_is_taken_at_once() {
    for seen in [None, Some(record("", 1)), Some(record("a", 1))] {
        let mut candidate = candidate();
        candidate.saw(seen, S(5));
        assert_eq!(candidate.step(S(5)), LeaseAction::Acquire);
    }
}

#[test]
fn a_lease_of_another_is_taken_when_it_has_not_changed_for_its_duration() {
    let mut candidate = candidate();
    candidate.saw(Some(record("b", 1)), S(5));
    assert_eq!(candidate.step(S(5)), LeaseAction::Wait(S(15)));
    candidate.saw(Some(record("b", 1)), S(15));
    assert_eq!(candidate.step(S(15)), LeaseAction::Wait(S(5)), "to look again changes nothing");
    candidate.saw(Some(record("b", 2)), S(19));
    assert_eq!(candidate.step(S(20)), LeaseAction::Wait(S(14)), "it was renewed");
    assert_eq!(candidate.step(S(34)), LeaseAction::Acquire);
    candidate.saw(Some(record("", 3)), S(20));
    assert_eq!(candidate.step(S(20)), LeaseAction::Acquire, "it was released");
}

#[test]
fn a_write_that_failed_is_not_tried_before_the_pause_is_over() {
    let mut candidate = candidate();
    candidate.saw(None, S(5));
    candidate.pause(S(5), S(3));
    assert_eq!(candidate.step(S(6)), LeaseAction::Wait(S(2)));
    assert_eq!(candidate.step(S(8)), LeaseAction::Acquire);
}

#[test]
fn a_leader_renews_in_time_and_gives_up_at_its_deadline() {
    let mut leader = leader();
    assert_eq!(leader.step(S(100)), LeaseAction::Wait(S(2)));
    assert_eq!(leader.step(S(102)), LeaseAction::Renew);
    leader.pause(S(109), S(2));
    assert_eq!(leader.step(S(109)), LeaseAction::Wait(S(1)), "not longer than until the deadline");
    assert_eq!(leader.step(S(110)), LeaseAction::Lost);
    leader.step_down();
    assert_eq!(leader.step(S(111)), LeaseAction::Acquire, "nobody has taken it yet");
}

#[test]
fn leader_stops_when_its_lease_is_taken_released_or_deleted() {
    for seen in [Some(record("b", 2)), Some(record("", 2)), None] {
        let mut leader = leader();
        leader.saw(seen, S(101));
        assert_eq!(leader.step(S(101)), LeaseAction::Lost);
    }
    let mut leader = leader();
    leader.saw(Some(record("a", 2)), S(103));
    assert_eq!(leader.step(S(103)), LeaseAction::Renew, "somebody has edited it, and it is still ours");
}

#[test]
fn the_holder_is_shown_until_the_lease_has_expired() {
    let mut candidate = candidate();
    assert_eq!(candidate.holder(S(0)), None);
    candidate.saw(Some(record("b", 1)), S(5));
    assert_eq!(candidate.holder(S(19)), Some(&"b".into()));
    assert_eq!(candidate.holder(S(20)), None);
    candidate.saw(Some(record("", 2)), S(20));
    assert_eq!(candidate.holder(S(20)), None);
}
