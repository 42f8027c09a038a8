//! The sessions of the hub that has the agent: the agent's own, whose frames are recorded on their way, and idle ones
//! beside it, since a single session has few heartbeats.

use std::time::{Duration, Instant};

use futures::future::join_all;
use kubesvc_core::wire::ops::hub_frame;
use kubesvc_testkit::simulated_agent::{SimulatedAgent, frames::Introduction};

use crate::{session_recorder::SessionRecorder, world::Running};

/// Interval between heartbeats, unless set.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// Idle sessions.
const IDLE_SESSIONS: u32 = 100;
/// Zone of the idle sessions, without accounts.
const IDLE_ZONE: &str = "idle";
/// Times between two heartbeats that are waited for.
const MIN_GAPS: usize = 200;
/// Time limit for so many: three intervals are enough if none is late.
const MAX_WAIT: Duration = Duration::from_secs(120);

/// The sessions. The agent is connected through the recorder.
pub(crate) struct Sessions {
    recorder: SessionRecorder,
    idle: Vec<SimulatedAgent>,
}

impl Sessions {
    /// Moves the agent to the recorder, and connects the idle sessions over one interval, so that their heartbeats are
    /// spread.
    pub(crate) async fn start(running: &mut Running<'_>) -> Result<Self, String> {
        let recorder = SessionRecorder::start(&running.world.hub()).await?;
        running.move_agent(recorder.address()).await?;
        running.all_answer().await?;
        let mut idle = Vec::new();
        for number in 0..IDLE_SESSIONS {
            let introduction = Introduction::new(&format!("idle-{number}"), IDLE_ZONE);
            idle.push(running.operators[1].connect(&introduction).await?);
            tokio::time::sleep(HEARTBEAT / IDLE_SESSIONS).await;
        }
        Ok(Self { recorder, idle })
    }

    /// Ends the idle sessions, and moves the agent back.
    pub(crate) async fn end(self, running: &mut Running<'_>) -> Result<(), String> {
        join_all(self.idle.into_iter().map(SimulatedAgent::goodbye)).await;
        running.move_agent(&running.world.hub()).await?;
        running.all_answer().await
    }

    /// Time from the frame that sent an account to the agent until its answer.
    pub(crate) fn answered(&self, account: &str) -> Result<Duration, String> {
        self.recorder.answered(account).ok_or_else(|| format!("the agent has not answered for {account}"))
    }

    /// The longest time between two heartbeats of a session since `begun`: of the agent and the hub in the agent's
    /// session, and of the hub in the idle ones. Waits until there are [`MIN_GAPS`] such times.
    pub(crate) async fn longest_gap(&self, begun: Instant) -> Result<Duration, String> {
        loop {
            let mut heartbeats = Vec::from(self.recorder.heartbeats());
            for session in &self.idle {
                if let Some(reason) = session.ended() {
                    return Err(format!("{session:?} ended: {reason}"));
                }
                let received = session.received().into_iter();
                let received = received.filter(|one| matches!(one.frame, hub_frame::Frame::Heartbeat(_)));
                heartbeats.push(received.map(|one| one.at).collect());
            }
            let (mut count, mut longest) = (0, Duration::ZERO);
            for of_session in heartbeats {
                let (gaps, longest_of_session) = gaps(&of_session, begun);
                count += gaps;
                longest = longest.max(longest_of_session);
            }
            if count >= MIN_GAPS {
                return Ok(longest);
            }
            if begun.elapsed() > MAX_WAIT {
                return Err(format!("{count} heartbeats followed another one within {MAX_WAIT:?}"));
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}

/// Number of times between two heartbeats of a session since `begun`, and the longest. What passed before the first one and
/// after the last one can be the longest too.
fn gaps(heartbeats: &[Instant], begun: Instant) -> (usize, Duration) {
    let mut moments = vec![begun];
    moments.extend(heartbeats.iter().filter(|at| **at > begun));
    let count = moments.len().saturating_sub(2);
    moments.push(Instant::now());
    let longest = moments.windows(2).map(|pair| pair[1] - pair[0]).max();
    (count, longest.unwrap_or_default())
}
