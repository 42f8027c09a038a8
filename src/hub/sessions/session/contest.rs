//! Another process that asks for the id of a connected agent in its zone, and is refused. Pure.

use std::net::IpAddr;
use std::time::Duration;

use crate::hub::sessions::ledger::HubUptime;

/// Time between the first and the last refusal from which on two processes run. Before, the session may be that of a
/// process that has ended without a goodbye: it is kept for 30 s without frames.
const MIN_CONTEST: Duration = Duration::from_secs(40);
/// Time after the last refusal at which the other process is taken for gone. It tries every 30 s.
pub(crate) const CONTEST_TIMEOUT: Duration = Duration::from_secs(180);

/// Refusals of other processes, as long as they follow one another.
#[derive(Debug, Default)]
pub(crate) struct Contest(Option<Refusals>);

#[derive(Debug)]
struct Refusals {
    first: HubUptime,
    last: HubUptime,
    peer: Option<IpAddr>,
}

impl Contest {
    /// Records that another process was refused.
    pub(crate) fn refused(&mut self, peer: Option<IpAddr>, now: HubUptime) {
        let first = self.current(now).map_or(now, |refusals| refusals.first);
        self.0 = Some(Refusals { first, last: now, peer });
    }

    /// Describes the other process, while there is one.
    pub(crate) fn rival(&self, now: HubUptime) -> Option<String> {
        let refusals = self.current(now).filter(|one| one.last - one.first >= MIN_CONTEST)?;
        let from = refusals.peer.map(|peer| format!(" at {peer}")).unwrap_or_default();
        Some(format!(
            "another process{from} connects with this agent's id and zone, and is refused; give each agent an AGENT_ID of \
             its own, and the agents of each cluster a zone of their own"
        ))
    }

    fn current(&self, now: HubUptime) -> Option<&Refusals> {
        self.0.as_ref().filter(|one| one.last + CONTEST_TIMEOUT > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_that_comes_again_and_again_is_a_rival_until_it_stays_away() {
        let seconds = Duration::from_secs;
        let (mut contest, peer) = (Contest::default(), Some([10, 0, 0, 1].into()));
        contest.refused(peer, seconds(0));
        contest.refused(peer, seconds(30));
        assert_eq!(contest.rival(seconds(30)), None, "the session may be of a process that has ended");
        contest.refused(peer, seconds(60));
        assert!(contest.rival(seconds(60)).is_some_and(|said| said.contains("at 10.0.0.1 ")));
        assert!(contest.rival(seconds(239)).is_some());
        assert_eq!(contest.rival(seconds(240)), None);
        contest.refused(peer, seconds(300));
        assert_eq!(contest.rival(seconds(300)), None, "it begins anew");
    }
}
