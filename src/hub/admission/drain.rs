//! Redial times of a draining replica's agents. Pure.

use std::time::Duration;

/// Rate at which agents redial if registrations have no limit.
const DEFAULT_REGISTRATIONS_PER_SECOND: u32 = 1000;
/// Minimum time until a successor of the last replica is ready.
const SUCCESSOR_START_TIME: Duration = Duration::from_secs(2);

/// A draining replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::hub) struct Drain {
    /// Number of connected agents.
    pub(in crate::hub) agents: usize,
    /// Registrations per second of one replica; 0: no limit.
    pub(in crate::hub) registration_qps: u32,
    /// Number of other living replicas.
    pub(in crate::hub) others: usize,
    /// Time after which the accounts of an absent agent become ORPHANED.
    pub(in crate::hub) grace: Duration,
}

/// Redial time of one agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hub) struct RedialTime {
    /// Minimum delay.
    pub(in crate::hub) after: Duration,
    /// Maximum additional delay.
    pub(in crate::hub) jitter: Duration,
}

impl Drain {
    /// Returns the redial time of the `nth` agent, from 0. The agents are spread at the rate at which the other
    /// replicas register them, within half of the grace; the other half is for the registrations.
    pub(in crate::hub) fn redial_time(&self, nth: usize) -> RedialTime {
        let latest = self.grace / 2;
        let soonest = if self.others == 0 { SUCCESSOR_START_TIME.min(latest / 2) } else { Duration::ZERO };
        let rate =
            if self.registration_qps == 0 { DEFAULT_REGISTRATIONS_PER_SECOND } else { self.registration_qps };
        let rate = f64::from(rate) * count(self.others.max(1));
        let agents = count(self.agents.max(1));
        let spread = Duration::from_secs_f64(agents / rate).min(latest - soonest);
        let share = count(nth % self.agents.max(1)) / agents;
        RedialTime { after: soonest + spread.mul_f64(share), jitter: spread.div_f64(agents) }
    }
}

fn count(number: usize) -> f64 {
    f64::from(u32::try_from(number).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
            let mut seconds = std::collections::BTreeMap::<u64, usize>::new();
            for nth in 0..agents {
                *seconds.entry(leaving.redial_time(nth).after.as_secs()).or_default() += 1;
            }
            prop_assert!(seconds.values().all(|count| *count <= rate + 1), "{seconds:?}");
        }
    }
}
