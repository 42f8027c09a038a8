//! One round of the matrix: writes of all kinds are brought to one step at the same time, then a fault strikes.

use std::time::Duration;

use super::gate::Hold;
use super::scene::Scene;
use super::writes::{KINDS, WriteKind};
use crate::faults::proxy::ProxyMode;
use crate::world::MAX_WAIT;
use kubesvc_testkit::wait::try_eventually;

/// How far a write is when the fault strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Step {
    /// The replica was asked, and has recorded nothing.
    Asked,
    /// Its row is committed.
    Recorded,
    /// It is at the replica that has the agent.
    Relayed,
    /// The agent has it, and has no connection to the API server for it.
    Opened,
    /// It is on its way to the API server.
    Sent,
    /// The API server has done it.
    Applied,
    /// The agent has the answer.
    Answered,
    /// The replica that has the agent has it.
    Returned,
    /// The caller has it.
    Acknowledged,
}

/// All of them.
pub(super) const STEPS: [Step; 9] = [
    Step::Asked,
    Step::Recorded,
    Step::Relayed,
    Step::Opened,
    Step::Sent,
    Step::Applied,
    Step::Answered,
    Step::Returned,
    Step::Acknowledged,
];

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fault {
    /// The agent's streams are cut, and it dials the same replica again.
    StreamCut,
    /// They are cut, and it dials the other replica.
    StreamMoved,
    /// The agent's process is killed, and started again.
    AgentKilled,
    /// The replica that was asked is killed.
    AskedKilled,
    /// The replica that has the agent is killed, and another one was asked.
    BetweenKilled,
    /// The agent's connections to the API server are cut.
    ApiCut,
}

/// All of them.
pub(super) const FAULTS: [Fault; 6] = [
    Fault::StreamCut,
    Fault::StreamMoved,
    Fault::AgentKilled,
    Fault::AskedKilled,
    Fault::BetweenKilled,
    Fault::ApiCut,
];

/// Maximum number of connections to one cluster that an agent opens at the same time.
const MAX_HANDSHAKES: usize = 16;

/// A step, a fault, and which replica is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Round {
    pub(super) number: usize,
    pub(super) step: Step,
    pub(super) fault: Fault,
    /// Whether the replica that is asked relays to the one that has the agent.
    pub(super) is_relayed: bool,
}

impl Round {
    /// Whether there is such a thing.
    pub(super) fn makes_sense(self) -> bool {
        let needs_relay =
            matches!(self.step, Step::Relayed | Step::Returned) || self.fault == Fault::BetweenKilled;
        self.is_relayed || !needs_relay
    }

    /// The replica that has the agent.
    pub(super) const AGENT_AT: usize = 0;

    /// The replica that is asked.
    pub(super) fn asked_at(self) -> usize {
        usize::from(self.is_relayed)
    }

    /// A replica that answers after the fault.
    pub(super) fn alive_at(self) -> usize {
        match self.fault {
            Fault::AskedKilled => 1 - self.asked_at(),
            _ => self.asked_at(),
        }
    }

    /// The kinds of writes that have this step. Requests to the account's API have no row before they are sent.
    pub(super) fn kinds(self) -> impl Iterator<Item = WriteKind> {
        let has_raw = !matches!(self.step, Step::Asked | Step::Recorded);
        KINDS.into_iter().filter(move |kind| has_raw || !kind.is_raw())
    }

    /// Whether a write that reads before comes to the step only if its reads are over when the others begin.
    pub(super) fn reads_before(self) -> bool {
        matches!(self.step, Step::Relayed | Step::Opened)
    }

    /// Holds what keeps writes from going beyond the step.
    pub(super) fn arm(self, scene: &Scene) {
        match self.step {
            Step::Asked => scene.database.set(ProxyMode::Held),
            Step::Recorded => scene.hub.set(ProxyMode::Deaf),
            Step::Relayed | Step::Opened => scene.gate.set(Hold::Reads),
            Step::Sent => scene.gate.set(Hold::Writes),
            Step::Applied | Step::Answered | Step::Returned => scene.gate.set(Hold::Answers),
            Step::Acknowledged => {}
        }
    }

    /// With reads that are held: waits for them, then lets them end and holds what follows.
    pub(super) async fn pass_reads(self, scene: &Scene) -> Result<(), String> {
        let reads = self.kinds().filter(|kind| kind.reads_first()).count();
        until_held(scene, reads).await?;
        if self.step == Step::Relayed {
            scene.hub.set(ProxyMode::Deaf);
            scene.gate.set(Hold::Nothing);
        } else {
            scene.gate.set(Hold::Handshakes);
            scene.gate.cut_idle();
        }
        Ok(())
    }

    /// Waits until the writes are at the step.
    pub(super) async fn until_there(self, scene: &Scene) -> Result<(), String> {
        let all = self.kinds().count();
        match self.step {
            Step::Asked => {
                eventually("a question to the database", async || {
                    if scene.database.keeping() > 0 { Ok(()) } else { Err("none is kept".to_owned()) }
                })
                .await
            }
            // They are when their calls are answered.
            Step::Recorded | Step::Acknowledged => Ok(()),
            Step::Relayed => {
                eventually("writes at the replica that has the agent", async || {
                    let running = scene.running_at(Self::AGENT_AT).await?;
                    if running >= all as u64 { Ok(()) } else { Err(format!("{running} of {all}")) }
                })
                .await
            }
            Step::Opened => {
                eventually("writes without a connection", async || {
                    let (waiting, writes) = (scene.gate.handshakes(), scene.agents_writes().await?.len());
                    let is_there = waiting >= all.min(MAX_HANDSHAKES) && writes == all;
                    if is_there { Ok(()) } else { Err(format!("{waiting} connections, {writes} of {all}")) }
                })
                .await
            }
            Step::Sent | Step::Applied => until_held(scene, all).await,
            Step::Answered | Step::Returned => {
                until_held(scene, all).await?;
                match self.step {
                    Step::Answered => scene.hub.set(ProxyMode::Mute),
                    _ => scene.peer.set(ProxyMode::Deaf),
                }
                scene.gate.set(Hold::Nothing);
                eventually("answers that have come that far", async || {
                    let writes = scene.agents_writes().await?.len();
                    let running =
                        if self.step == Step::Returned { scene.running_at(Self::AGENT_AT).await? } else { 0 };
                    let is_there = writes == 0 && running == 0;
                    if is_there {
                        Ok(())
                    } else {
                        Err(format!("{writes} at the agent, {running} at the hub"))
                    }
                })
                .await
            }
        }
    }

    /// The fault strikes, and nothing is held any more.
    pub(super) fn strike(self, scene: &Scene) {
        let away = 1 - Self::AGENT_AT;
        match self.fault {
            Fault::StreamCut => scene.cut_streams(),
            Fault::StreamMoved => {
                scene.hub.lead_to(scene.replica(away).hub_port());
                scene.cut_streams();
            }
            Fault::AgentKilled => {
                scene.agent.kill();
                scene.cut_streams();
                scene.agent.launch();
            }
            Fault::AskedKilled => {
                if self.asked_at() == Self::AGENT_AT {
                    scene.hub.lead_to(scene.replica(away).hub_port());
                }
                scene.replica(self.asked_at()).kill();
            }
            // What it said and is kept is lost with it.
            Fault::BetweenKilled => {
                scene.hub.lead_to(scene.replica(away).hub_port());
                scene.replica(Self::AGENT_AT).kill();
                scene.peer.cut();
            }
            Fault::ApiCut => scene.gate.cut(),
        }
        scene.gate.set(Hold::Nothing);
        for line in [&scene.hub, &scene.peer, &scene.database] {
            line.set(ProxyMode::Open);
        }
    }
}

async fn until_held(scene: &Scene, count: usize) -> Result<(), String> {
    eventually(&format!("{count} requests at the gate"), async || {
        let held = scene.gate.held();
        if held.len() == count { Ok(()) } else { Err(format!("{held:?}")) }
    })
    .await
}

async fn eventually<A>(what: &str, check: impl FnMut() -> A) -> Result<(), String>
where
    A: Future<Output = Result<(), String>>,
{
    const WITHIN: Duration = Duration::from_secs(8);
    try_eventually(what, WITHIN.min(MAX_WAIT), check).await
}
