use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;

use super::*;

/// What is simulated: agents that arrive, and a server that registers.
#[derive(Clone, Debug)]
struct QueueSimulation {
    agents: usize,
    /// In which time they arrive, in milliseconds.
    within: u64,
    per_second: u32,
    /// The server is so many times slower than that.
    slower: u32,
    /// An agent is late by so many thousandths of the time that it is told, one second at most.
    late: u32,
}

#[derive(Debug, Default)]
struct SimulationOutcome {
    /// When each was registered.
    registered: BTreeMap<usize, Duration>,
    most_inside: usize,
    /// How often an agent that came at its time was sent away.
    turned_away: usize,
}

fn play(scene: &QueueSimulation) -> SimulationOutcome {
    let step = Duration::from_millis(1);
    let mut queue = AdmissionQueue::new(scene.per_second);
    let mut comes: BTreeMap<Duration, Vec<usize>> = BTreeMap::new();
    for agent in 0..scene.agents {
        let at =
            scene.within * u64::try_from(agent).expect("few") / u64::try_from(scene.agents).expect("few");
        comes.entry(Duration::from_millis(at)).or_default().push(agent);
    }
    let mut told = BTreeMap::new();
    let (mut inside, mut outcome) = (VecDeque::new(), SimulationOutcome::default());
    let gap = Duration::from_secs(1) / scene.per_second * scene.slower;
    let (mut now, mut next) = (Duration::ZERO, Duration::ZERO);
    while outcome.registered.len() < scene.agents {
        assert!(now < Duration::from_secs(100_000), "somebody starves: {scene:?}");
        let later = comes.split_off(&(now + Duration::from_nanos(1)));
        for agent in std::mem::replace(&mut comes, later).into_values().flatten() {
            let was_told = told.remove(&agent);
            match queue.arrive(now) {
                AdmissionDecision::Now => inside.push_back(agent),
                AdmissionDecision::TooManyUnapproved => unreachable!("it is a line without strangers"),
                AdmissionDecision::Later(wait) => {
                    outcome.turned_away += usize::from(was_told.is_some());
                    told.insert(agent, now + wait);
                    let late = (wait * scene.late / 1000).min(Duration::from_secs(1));
                    comes.entry(now + wait + late).or_default().push(agent);
                }
            }
        }
        outcome.most_inside = outcome.most_inside.max(inside.len());
        while next <= now && !inside.is_empty() {
            let agent = inside.pop_front().expect("somebody waits");
            queue.waiting -= 1;
            outcome.registered.insert(agent, now);
            next = next.max(now.saturating_sub(step)) + gap;
        }
        now += step;
    }
    assert_eq!(queue.backlog(now + LATE_ARRIVAL_TOLERANCE + Duration::from_secs(1)), 0);
    outcome
}

fn last(outcome: &SimulationOutcome) -> f64 {
    outcome.registered.values().max().expect("somebody").as_secs_f64()
}

#[test]
fn ten_thousand_agents_within_a_second_are_registered_at_the_pace_and_few_wait_at_once() {
    let scene = QueueSimulation { agents: 10_000, within: 1000, per_second: 50, slower: 1, late: 50 };
    let outcome = play(&scene);
    assert!(outcome.most_inside <= 200, "{}", outcome.most_inside);
    assert!(last(&outcome) <= 200.0 * 1.05, "{}", last(&outcome));
    assert_eq!(outcome.turned_away, 0);
}

#[test]
fn a_server_slower_than_its_rate_starves_no_agent() {
    let scene = QueueSimulation { agents: 2000, within: 1000, per_second: 50, slower: 4, late: 50 };
    let outcome = play(&scene);
    assert!(outcome.most_inside <= 200);
    assert!(last(&outcome) <= 160.0 * 1.4, "{}", last(&outcome));
}

#[test]
fn each_agent_is_told_a_time_of_its_own_and_counts_until_a_little_after_it() {
    let mut queue = AdmissionQueue::new(1);
    assert!((0..4).all(|_| queue.arrive(Duration::ZERO) == AdmissionDecision::Now));
    let told = [0, 1, 2].map(|_| queue.arrive(Duration::ZERO));
    assert_eq!(told, [4, 5, 6].map(|second| AdmissionDecision::Later(Duration::from_secs(second))));
    assert_eq!(queue.backlog(Duration::ZERO), 4 + 3);
    queue.waiting = 0;
    let backlog = [3, 6, 15, 16].map(|second| queue.backlog(Duration::from_secs(second)));
    assert_eq!(backlog, [3, 1, 1, 0]);
}

#[test]
fn an_agent_is_told_ten_minutes_at_most() {
    let mut queue = AdmissionQueue::new(1);
    for _ in 0..10_000 {
        queue.arrive(Duration::ZERO);
    }
    assert_eq!(queue.arrive(Duration::ZERO), AdmissionDecision::Later(MAX_RETRY_DELAY));
}

#[test]
fn a_few_that_are_registered_at_once_are_no_backlog() {
    let mut queue = AdmissionQueue::new(50);
    assert!((0..25).all(|_| queue.arrive(Duration::ZERO) == AdmissionDecision::Now));
    assert_eq!(queue.backlog(Duration::ZERO), 0);
    queue.arrive(Duration::ZERO);
    assert_eq!(queue.backlog(Duration::ZERO), 26);
}

#[test]
fn failed_registration_is_retried_after_the_minimum_delay() {
    let mut queue = AdmissionQueue::new(50);
    assert_eq!(queue.arrive(Duration::ZERO), AdmissionDecision::Now);
    let wait = queue.redial_delay(Duration::from_secs(8));
    queue.waiting -= 1;
    assert_eq!(wait, MIN_RETRY_DELAY);
    assert_eq!(queue.arrive(Duration::from_secs(8) + wait), AdmissionDecision::Now);
}

#[test]
fn no_crowd_of_others_keeps_an_agent_waiting_that_has_an_object_or_counts_as_a_backlog() {
    for class in [AdmissionClass::Newcomer, AdmissionClass::Unapproved] {
        let mut queues = AdmissionQueues::new(50);
        let decisions: Vec<_> = (0..8000).map(|_| queues.arrive(class, Duration::ZERO)).collect();
        let let_in = decisions.iter().filter(|decision| **decision == AdmissionDecision::Now).count();
        assert_eq!(let_in, if class == AdmissionClass::Unapproved { 64 } else { 200 });
        assert_eq!(queues.arrive(AdmissionClass::Returning, Duration::ZERO), AdmissionDecision::Now);
        assert_eq!(queues.backlog(Duration::ZERO), 0);
    }
}

#[test]
fn an_unapproved_agent_is_told_no_time_and_enters_when_another_leaves() {
    let mut queues = AdmissionQueues::new(50);
    let (unapproved, late) = (AdmissionClass::Unapproved, Duration::from_secs(60));
    assert!((0..64).all(|_| queues.arrive(unapproved, Duration::ZERO) == AdmissionDecision::Now));
    for now in [Duration::ZERO, late] {
        assert_eq!(queues.arrive(unapproved, now), AdmissionDecision::TooManyUnapproved);
    }
    assert_eq!(queues.again(unapproved, late), UNAPPROVED_RETRY_DELAY);
    queues.leave(unapproved);
    assert_eq!(queues.arrive(unapproved, late), AdmissionDecision::Now);
    assert_eq!(queues.arrive(unapproved, late), AdmissionDecision::TooManyUnapproved);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn all_agents_are_registered_in_time(
        agents in 1..3000_usize, within in 1..20_000_u64, per_second in 2..200_u32, late in 0..100_u32,
    ) {
        let scene = QueueSimulation { agents, within, per_second, slower: 1, late };
        let outcome = play(&scene);
        let room = usize::try_from(per_second * MAX_WAIT_SECONDS).expect("few");
        prop_assert!(outcome.most_inside <= room);
        let due = (f64::from(u32::try_from(agents).expect("few")) / f64::from(per_second))
            .max(Duration::from_millis(within).as_secs_f64());
        prop_assert!(last(&outcome) <= due * 1.2 + 6.0, "{} of {due}", last(&outcome));
    }
}

fn leaving(agents: usize, others: usize) -> Drain {
    Drain { agents, registration_qps: 50, others, grace: Duration::from_secs(30) }
}

#[test]
fn few_agents_redial_at_once_where_another_replica_is_alive() {
    assert_eq!(
        leaving(1, 1).redial_time(0),
        RedialTime { after: Duration::ZERO, jitter: Duration::from_millis(20) }
    );
}

#[test]
fn agents_wait_for_a_successor_where_no_replica_is_alive() {
    assert_eq!(leaving(1, 0).redial_time(0).after, SUCCESSOR_START_TIME);
}

#[test]
fn redials_are_spread_at_the_rate_of_the_other_replicas() {
    let five_hundred = leaving(500, 1);
    assert_eq!(five_hundred.redial_time(250).after, Duration::from_secs(5));
    assert_eq!(Drain { others: 2, ..five_hundred }.redial_time(250).after, Duration::from_millis(2500));
}

#[test]
fn redials_beyond_the_rate_still_end_within_half_the_grace() {
    let last = leaving(10_000, 1).redial_time(9_999);
    assert!(last.after > Duration::from_secs(14) && last.after + last.jitter <= Duration::from_secs(15));
}

proptest! {
    #[test]
    fn no_redial_is_later_than_half_the_grace(
        agents in 0..30_000_usize, nth in 0..60_000_usize, qps in 0..2000_u32, others in 0..9_usize, grace in 0..900_u64,
    ) {
        let grace = Duration::from_secs(grace);
        let place = Drain { agents, registration_qps: qps, others, grace }.redial_time(nth);
        // One nanosecond for what is rounded.
        prop_assert!(place.after + place.jitter <= grace / 2 + Duration::from_nanos(2), "{place:?}");
    }

    #[test]
    fn no_second_exceeds_the_rate_unless_the_grace_forces_it(
        agents in 1..3_000_usize, qps in 1..200_u32, others in 0..4_usize,
    ) {
        let leaving = Drain { agents, registration_qps: qps, others, grace: Duration::from_secs(86_400) };
        let rate = usize::try_from(qps).expect("it is small") * others.max(1);
        let mut seconds = BTreeMap::<u64, usize>::new();
        for nth in 0..agents {
            *seconds.entry(leaving.redial_time(nth).after.as_secs()).or_default() += 1;
        }
        prop_assert!(seconds.values().all(|count| *count <= rate + 1), "{seconds:?}");
    }
}
