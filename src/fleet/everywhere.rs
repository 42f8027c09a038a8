//! The agents of all replicas: those of this one as it knows them, the others as their objects tell.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use kube::Client;
use tokio::sync::Mutex;

use super::{AgentView, Elsewhere, Fleet, FleetError};
use crate::account::lifecycle::{Presence, SessionFact};
use crate::objects::{Accounts, Agents, read_agents};
use crate::telemetry::errors::chain;

/// How long the API server may take to read the agents of a zone.
const READ_WAIT: Duration = Duration::from_secs(10);
/// Zones whose last reading is remembered.
const ZONES_REMEMBERED: usize = 10_000;

/// The agents of all replicas.
pub struct Everywhere {
    here: Arc<dyn Fleet>,
    elsewhere: Arc<Elsewhere>,
    accounts: Arc<Accounts>,
    agents: Arc<Agents>,
    client: Client,
    namespace: String,
    /// When the last reading of each zone that succeeded was begun. Whoever holds the lock reads.
    readings: Mutex<HashMap<String, Instant>>,
}

impl Everywhere {
    /// `here`: the agents of this replica; the objects of all are in `namespace`.
    pub fn new(
        here: Arc<dyn Fleet>,
        elsewhere: Arc<Elsewhere>,
        accounts: Arc<Accounts>,
        agents: Arc<Agents>,
        client: Client,
        namespace: &str,
    ) -> Self {
        let readings = Mutex::default();
        Self { here, elsewhere, accounts, agents, client, namespace: namespace.to_owned(), readings }
    }
}

#[async_trait]
impl Fleet for Everywhere {
    fn sessions(&self, uid: &str) -> Vec<SessionFact> {
        let here = self.here.sessions(uid);
        match self.accounts.by_uid(uid) {
            Some(account) => together(here, self.elsewhere.sessions(&account)),
            None => here,
        }
    }

    fn agents(&self) -> Vec<AgentView> {
        self.here.agents()
    }

    fn holders(&self, uid: &str) -> Vec<AgentView> {
        self.here.holders(uid)
    }

    fn namespaces(&self, uid: &str) -> Option<Vec<String>> {
        self.here.namespaces(uid)
    }

    fn doubts(&self, uid: &str) -> bool {
        let elsewhere = || self.accounts.by_uid(uid).is_some_and(|one| self.elsewhere.doubts(&one));
        self.here.doubts(uid) || elsewhere()
    }

    fn is_all_here(&self) -> bool {
        false
    }

    /// Who asks while a reading is under way waits for the next one, and all who wait share it.
    async fn read(&self, zone: &str) -> Result<(), FleetError> {
        let asked = Instant::now();
        let mut readings = self.readings.lock().await;
        if readings.get(zone).is_some_and(|begun| *begun > asked) {
            return Ok(());
        }
        let begun = Instant::now();
        let reading = read_agents(self.client.clone(), &self.namespace, zone, &self.agents);
        match tokio::time::timeout(READ_WAIT, reading).await {
            Ok(Ok(())) => {}
            Ok(Err(problem)) => return Err(FleetError(chain(&problem))),
            Err(_) => return Err(FleetError(format!("no answer within {READ_WAIT:?}"))),
        }
        self.elsewhere.catch_up(zone);
        self.here.catch_up(zone);
        if readings.len() >= ZONES_REMEMBERED {
            readings.clear();
        }
        readings.insert(zone.to_owned(), begun);
        Ok(())
    }

    fn disconnect(&self, agent_id: &str) -> bool {
        self.here.disconnect(agent_id)
    }
}

/// An agent that both know of is where it is connected; it may have moved a moment ago.
fn together(mut here: Vec<SessionFact>, elsewhere: Vec<SessionFact>) -> Vec<SessionFact> {
    for fact in elsewhere {
        let same = |one: &SessionFact| one.agent_id == fact.agent_id && one.zone == fact.zone;
        match here.iter_mut().find(|one| same(one)) {
            None => here.push(fact),
            Some(known) if known.presence == Presence::Connected => {}
            Some(known) => {
                if stays_longer(fact.presence, known.presence) {
                    *known = fact;
                }
            }
        }
    }
    here
}

/// Whether one presence keeps others waiting longer than another.
fn stays_longer(one: Presence, other: Presence) -> bool {
    match (one, other) {
        (Presence::Away(one), Presence::Away(other)) => one > other,
        (Presence::Connected, _) => true,
        (Presence::Away(_), Presence::Connected) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::account::lifecycle::{Fact, Process};

    fn fact(agent: &str, presence: Presence) -> SessionFact {
        SessionFact {
            agent_id: agent.into(),
            zone: "z".into(),
            approved: true,
            presence,
            process: Process::default(),
            word: None,
            silent_for: None,
            offer: None,
            lists: Fact::Unknown,
            cluster_uid: String::new(),
        }
    }

    #[test]
    fn an_agent_that_moved_is_where_it_is_connected() {
        use Presence::{Away, Connected};
        for (here, there, expected) in [
            (Connected, Connected, Connected),
            (Connected, Away(5), Connected),
            (Away(5), Connected, Connected),
            (Away(5), Away(9), Away(9)),
            (Away(9), Away(5), Away(9)),
        ] {
            let all = together(vec![fact("a", here)], vec![fact("a", there), fact("b", Connected)]);
            let presences: Vec<_> = all.iter().map(|one| one.presence).collect();
            assert_eq!(presences, [expected, Connected], "{here:?} {there:?}");
        }
    }
}
