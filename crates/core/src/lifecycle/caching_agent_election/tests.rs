use std::collections::BTreeMap;
use std::sync::LazyLock;

use proptest::prelude::*;

use super::*;
use crate::ids::AgentId;

const NOW: Tick = 1000;

/// The process with this number.
fn boot(number: &str) -> &'static BootId {
    static FIRST: LazyLock<BootId> = LazyLock::new(|| "1".into());
    static SECOND: LazyLock<BootId> = LazyLock::new(|| "2".into());
    if number == "1" { &FIRST } else { &SECOND }
}

/// The agent with this id, a letter from `a` to `e`.
fn agent(id: &str) -> &'static AgentId {
    static AGENTS: LazyLock<Vec<AgentId>> =
        LazyLock::new(|| ["a", "b", "c", "d", "e"].map(AgentId::from).into());
    AGENTS.iter().find(|agent| **agent == id).expect("it is one of them")
}

fn candidate<'a>(agent_id: &'a AgentId, number: &str) -> CachingCandidate<'a> {
    CachingCandidate {
        agent_id,
        boot_id: boot(number),
        presence: Presence::Connected,
        since: 0,
        ending: SessionEnding::Cut,
        holds: Holding::Yes,
        is_unreadable: false,
        load: 0,
    }
}

fn away<'a>(agent_id: &'a AgentId, since: Tick, ending: SessionEnding) -> CachingCandidate<'a> {
    CachingCandidate {
        presence: Presence::Away(since),
        ending,
        holds: Holding::NotYet,
        ..candidate(agent_id, "1")
    }
}

fn election<'s, 'a>(
    current: Option<(&'s AgentId, &'s BootId)>,
    candidates: &'s [CachingCandidate<'a>],
) -> Election<'s, 'a> {
    let (uid, unreadable_replaced_from) = ("u", 0);
    Election { uid, now: NOW, leading_since: 0, current, asked: false, unreadable_replaced_from, candidates }
}

fn elected<'a>(
    current: Option<(&AgentId, &BootId)>,
    candidates: &[CachingCandidate<'a>],
) -> ElectionOutcome<'a> {
    elect(&election(current, candidates))
}

#[test]
fn the_one_that_streams_the_fewest_accounts_is_elected_among_those_that_hold_it() {
    let busy = CachingCandidate { load: 3, ..candidate(agent("a"), "1") };
    let idle = CachingCandidate { load: 2, ..candidate(agent("b"), "1") };
    let none = CachingCandidate { load: 0, holds: Holding::NotYet, ..candidate(agent("c"), "1") };
    let failed = CachingCandidate { holds: Holding::No, ..candidate(agent("d"), "1") };
    let gone = away(agent("e"), 0, SessionEnding::Cut);
    let candidates = [busy, idle, none, failed, gone];
    assert_eq!(elected(None, &candidates), ElectionOutcome::Goes(agent("b"), boot("1")));
    assert_eq!(elected(None, &candidates[2..]), ElectionOutcome::Stays);
}

#[test]
fn the_elected_agent_stays_however_idle_the_others_are() {
    let busy = CachingCandidate { load: 900, ..candidate(agent("a"), "1") };
    let again = CachingCandidate { holds: Holding::NotYet, ..busy.clone() };
    for current in [busy, again] {
        assert_eq!(
            elected(Some((agent("a"), boot("1"))), &[current, candidate(agent("b"), "1")]),
            ElectionOutcome::Stays
        );
    }
}

#[test]
fn another_one_has_it_when_the_time_is_over_and_not_before() {
    for (ending, ticks) in
        [(SessionEnding::Goodbye, 2), (SessionEnding::Cut, 10), (SessionEnding::ReplicaLost, 60)]
    {
        let due = NOW + ticks + 1;
        let candidates = [away(agent("a"), NOW, ending), candidate(agent("b"), "1")];
        for now in NOW..due {
            let election = Election { now, ..election(Some((agent("a"), boot("1"))), &candidates) };
            assert_eq!(elect(&election), ElectionOutcome::StaysUntil(due), "{ending:?}, {} ticks", now - NOW);
        }
        let late = Election { now: due, ..election(Some((agent("a"), boot("1"))), &candidates) };
        assert_eq!(elect(&late), ElectionOutcome::Goes(agent("b"), boot("1")));
        let alone = Election { candidates: &candidates[..1], ..late };
        assert_eq!(elect(&alone), ElectionOutcome::Stays, "there is nobody else");
    }
}

#[test]
fn a_leader_that_has_just_begun_counts_anew() {
    let candidates = [away(agent("a"), 0, SessionEnding::Cut), candidate(agent("b"), "1")];
    let new = Election { leading_since: NOW - 5, ..election(Some((agent("a"), boot("1"))), &candidates) };
    assert_eq!(elect(&new), ElectionOutcome::StaysUntil(NOW - 5 + 11));
    let unseen = Election { candidates: &candidates[1..], ..new };
    assert_eq!(elect(&unseen), ElectionOutcome::StaysUntil(NOW - 5 + 61), "it may not have come back yet");
    assert_eq!(
        elected(Some((agent("a"), boot("1"))), &candidates[1..]),
        ElectionOutcome::Goes(agent("b"), boot("1"))
    );
}

#[test]
fn another_process_of_the_agent_has_it_as_soon_as_it_holds_the_account() {
    let next = CachingCandidate { load: 9, since: NOW - 3, ..candidate(agent("a"), "2") };
    let candidates = [next.clone(), candidate(agent("b"), "1")];
    assert_eq!(
        elected(Some((agent("a"), boot("1"))), &candidates),
        ElectionOutcome::Goes(agent("a"), boot("2"))
    );
    let starting = [CachingCandidate { holds: Holding::NotYet, ..next.clone() }, candidate(agent("b"), "1")];
    assert_eq!(elected(Some((agent("a"), boot("1"))), &starting), ElectionOutcome::StaysUntil(NOW + 8));
    let late = Election { now: NOW + 8, ..election(Some((agent("a"), boot("1"))), &starting) };
    assert_eq!(elect(&late), ElectionOutcome::Goes(agent("b"), boot("1")));
    let failed = [CachingCandidate { holds: Holding::No, ..next }, candidate(agent("b"), "1")];
    assert_eq!(elected(Some((agent("a"), boot("1"))), &failed), ElectionOutcome::Goes(agent("b"), boot("1")));
}

#[test]
fn the_session_in_force_counts_where_a_former_one_is_still_shown() {
    let former = CachingCandidate { presence: Presence::Away(0), ..candidate(agent("a"), "1") };
    let candidates = [former, candidate(agent("a"), "1"), candidate(agent("b"), "1")];
    assert_eq!(elected(Some((agent("a"), boot("1"))), &candidates), ElectionOutcome::Stays);
}

#[test]
fn one_that_has_lost_the_account_is_replaced_if_another_one_holds_it() {
    let lost = CachingCandidate { holds: Holding::No, ..candidate(agent("a"), "1") };
    assert_eq!(
        elected(Some((agent("a"), boot("1"))), &[lost.clone(), candidate(agent("b"), "1")]),
        ElectionOutcome::Goes(agent("b"), boot("1"))
    );
    assert_eq!(elected(Some((agent("a"), boot("1"))), &[lost]), ElectionOutcome::Stays);
}

#[test]
fn an_election_that_is_asked_for_goes_to_another_one_or_begins_anew() {
    let candidates = [candidate(agent("a"), "1"), CachingCandidate { load: 9, ..candidate(agent("b"), "1") }];
    let asked = Election { asked: true, ..election(Some((agent("a"), boot("1"))), &candidates) };
    assert_eq!(elect(&asked), ElectionOutcome::Goes(agent("b"), boot("1")));
    assert_eq!(
        elect(&Election { candidates: &candidates[..1], ..asked.clone() }),
        ElectionOutcome::Goes(agent("a"), boot("1"))
    );
    assert_eq!(
        elect(&Election { candidates: &[], ..asked }),
        ElectionOutcome::Stays,
        "it waits for one that holds it"
    );
}

#[test]
fn a_thousand_accounts_spread_over_fifty_agents() {
    let agents: Vec<_> = (0..50).map(|number| AgentId::from(format!("agent-{number}"))).collect();
    let mut loads = BTreeMap::new();
    for number in 0..1000 {
        let candidates: Vec<_> = agents
            .iter()
            .map(|agent| CachingCandidate {
                load: loads.get(agent).copied().unwrap_or_default(),
                ..candidate(agent, "1")
            })
            .collect();
        let uid = format!("uid-{number}");
        let ElectionOutcome::Goes(agent, _) = elect(&Election { uid: &uid, ..election(None, &candidates) })
        else {
            unreachable!("all of them hold it")
        };
        *loads.entry(agents.iter().find(|one| *one == agent).expect("it is one of them")).or_default() += 1;
    }
    assert!(loads.len() == 50 && loads.values().all(|load: &usize| *load == 20), "{loads:?}");
}

#[test]
fn accounts_that_begin_together_spread_before_anything_is_counted() {
    let agents: Vec<_> = (0..5).map(|number| AgentId::from(format!("agent-{number}"))).collect();
    let candidates: Vec<_> = agents.iter().map(|agent| candidate(agent, "1")).collect();
    let mut loads = BTreeMap::<&AgentId, usize>::new();
    for number in 0..500 {
        let uid = format!("uid-{number}");
        if let ElectionOutcome::Goes(agent, _) = elect(&Election { uid: &uid, ..election(None, &candidates) })
        {
            *loads.entry(agent).or_default() += 1;
        }
    }
    assert!(loads.len() == 5 && loads.values().all(|load| (60..=140).contains(load)), "{loads:?}");
}

#[test]
fn agent_that_cannot_read_the_cluster_is_replaced_if_another_holds_the_account() {
    let blind = CachingCandidate { is_unreadable: true, ..candidate(agent("a"), "1") };
    let current = Some((agent("a"), boot("1")));
    let other = candidate(agent("b"), "1");
    assert_eq!(elected(current, &[blind.clone(), other]), ElectionOutcome::Goes(agent("b"), boot("1")));
    let without = CachingCandidate { holds: Holding::No, ..candidate(agent("b"), "1") };
    assert_eq!(elected(current, &[blind.clone(), without]), ElectionOutcome::Stays);
    assert_eq!(
        elected(current, std::slice::from_ref(&blind)),
        ElectionOutcome::Stays,
        "there is nobody else"
    );
    // It took its turn from one that could not read it either.
    let candidates = [blind, candidate(agent("b"), "1")];
    let later = |from: Tick| Election { unreadable_replaced_from: from, ..election(current, &candidates) };
    assert_eq!(elect(&later(NOW + 9)), ElectionOutcome::StaysUntil(NOW + 9));
    assert_eq!(elect(&later(NOW)), ElectionOutcome::Goes(agent("b"), boot("1")));
}

fn any_candidate() -> impl Strategy<Value = CachingCandidate<'static>> {
    let agent = prop_oneof![Just(agent("a")), Just(agent("b")), Just(agent("c"))];
    let ending =
        prop_oneof![Just(SessionEnding::Goodbye), Just(SessionEnding::Cut), Just(SessionEnding::ReplicaLost)];
    let holds =
        prop_oneof![Just(Holding::Yes), Just(Holding::Perhaps), Just(Holding::NotYet), Just(Holding::No)];
    let times = (NOW - 70..=NOW, any::<bool>(), 0..3_usize);
    (agent, prop_oneof![Just(boot("1")), Just(boot("2"))], ending, holds, times).prop_map(
        |(agent_id, boot_id, ending, holds, (since, connected, load))| {
            let presence = if connected { Presence::Connected } else { Presence::Away(since) };
            CachingCandidate { agent_id, boot_id, presence, since, ending, holds, is_unreadable: false, load }
        },
    )
}

/// A process has one session.
fn any_candidates() -> impl Strategy<Value = Vec<CachingCandidate<'static>>> {
    prop::collection::vec(any_candidate(), 0..6).prop_map(|all| {
        let mut candidates: Vec<CachingCandidate<'static>> = Vec::new();
        for one in all {
            let is_it =
                |other: &CachingCandidate<'_>| other.agent_id == one.agent_id && other.boot_id == one.boot_id;
            if !candidates.iter().any(is_it) {
                candidates.push(one);
            }
        }
        candidates
    })
}

proptest! {
    /// At most one process is elected, and only one that is connected and may hold the account. It is never replaced
    /// without a cause. Once no wait is pending, an account with a holder has an elected process.
    #[test]
    fn no_election_breaks_a_rule(
        candidates in any_candidates(),
        current in prop::option::of((prop_oneof![Just(agent("a")), Just(agent("b")), Just(agent("d"))], prop_oneof![Just(boot("1")), Just(boot("2"))])),
        asked in any::<bool>(),
        leading_since in NOW - 80..=NOW,
    ) {
        let election = Election { leading_since, asked, ..election(current, &candidates) };
        let outcome = elect(&election);
        prop_assert_eq!(outcome, elect(&election), "the same input decides the same");
        let holds = |candidate: &CachingCandidate<'_>| {
            candidate.presence == Presence::Connected && matches!(candidate.holds, Holding::Yes | Holding::Perhaps)
        };
        let stands = current.is_some_and(|(agent, boot)| {
            let is_it = |candidate: &&CachingCandidate<'_>| candidate.agent_id == agent && candidate.boot_id == boot;
            candidates.iter().filter(is_it).any(|candidate| {
                candidate.presence == Presence::Connected && candidate.holds != Holding::No
            })
        });
        match outcome {
            ElectionOutcome::Goes(agent, boot) => {
                prop_assert!(candidates.iter().any(|candidate| candidate.agent_id == agent && candidate.boot_id == boot && holds(candidate)));
                prop_assert!(asked || !stands, "it was taken from one that has it");
            }
            ElectionOutcome::StaysUntil(tick) => {
                prop_assert!(tick > NOW && tick <= NOW + 61 && current.is_some() && !asked);
            }
            ElectionOutcome::Stays => {
                let other = |candidate: &CachingCandidate<'_>| holds(candidate) && current.is_none_or(|(agent, _)| agent != candidate.agent_id);
                prop_assert!(stands && !asked || !candidates.iter().any(other), "somebody holds it, and nobody streams it");
            }
        }
    }
}
