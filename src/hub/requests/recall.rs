//! The answer of a write, asked for again from the process of the agent that was given it.

use std::sync::Arc;

use tokio::time::{Instant, timeout_at};

use super::answers::{Answer, BodyReading, head, response, whole};
use super::outcome::{self, AttemptFailure, NextStep};
use super::sending::is_settled;
use super::{AgentStream, Requests};
use crate::connected_agents::{AccountResponse, AnsweringAgent, RecallFailure, Repetition, RequestError};
use kubesvc_core::KubesvcAgent;
use kubesvc_core::requests::wire::Opening;
use kubesvc_core::wire::ops::Recall;

impl Requests {
    /// Asks a process that is connected here. Without a stream, or when it is lost again, the caller looks elsewhere.
    pub(super) async fn recall(
        &self,
        request_id: &str,
        agent: &AnsweringAgent,
        deadline: Instant,
        keep_answer: bool,
    ) -> Result<AccountResponse, RecallFailure> {
        let unknown = |why: &str| Err(RecallFailure::Settled(RequestError::Unknown(why.to_owned())));
        if self.is_gone(agent) {
            return unknown("the agent's process that had the request is gone");
        }
        let recall = Recall { request_id: request_id.to_owned(), boot_id: agent.boot_id.as_str().to_owned() };
        let opened = self.stream_of_process(agent).and_then(|stream| {
            let exchange = stream.channel.open(|_| Opening::Recall(recall))?;
            Some((stream, exchange))
        });
        let Some((stream, exchange)) = opened else { return Err(RecallFailure::NotHere) };
        self.metrics.recalls.inc();
        exchange.end();
        let recalling = async { whole(&exchange, head(&exchange).await?).await };
        let answered = timeout_at(deadline, recalling).await.unwrap_or(Err(AttemptFailure::TimedOut));
        if is_settled(&answered) && !keep_answer {
            stream.forget(request_id);
        }
        match answered {
            Ok(Ok((head, body))) => {
                let answer = Answer::Whole(head, body);
                response(&stream, answer, Repetition::Recalled, BodyReading::default())
                    .map_err(RecallFailure::Settled)
            }
            Ok(Err(_)) => unknown("the agent's answer has no end"),
            // The recall is lost, not the write.
            Err(AttemptFailure::Broken(_)) => Err(RecallFailure::NotHere),
            Err(AttemptFailure::TimedOut) => Err(RecallFailure::TimedOut),
            Err(failure) => match outcome::after(failure, true) {
                NextStep::AskAnother(error) => Err(RecallFailure::NotSent(error)),
                NextStep::GiveUp(error) => Err(if error.is_before_send() {
                    RecallFailure::NotSent(error)
                } else {
                    RecallFailure::Settled(error)
                }),
                NextStep::Recall => Err(RecallFailure::NotHere),
            },
        }
    }

    /// Whether a later process of the agent is connected here. Ids of processes are ULIDs. Another zone may have an
    /// agent of the same id: the process is not gone while the object of an agent names it.
    pub(super) fn is_gone(&self, agent: &AnsweringAgent) -> bool {
        let registered = self.sessions.registry.of_id(&agent.agent_id);
        let has_later =
            registered.iter().any(|session| session.agent.boot_id.as_str() > agent.boot_id.as_str());
        let is_named = |object: &KubesvcAgent| {
            let session = object.status.as_ref().and_then(|status| status.session.as_ref());
            session.is_some_and(|session| session.boot_id == agent.boot_id)
        };
        has_later && !self.context.agent_index.of_id(&agent.agent_id).iter().any(|object| is_named(object))
    }

    /// The stream of a process of an agent.
    pub(super) fn stream_of_process(&self, agent: &AnsweringAgent) -> Option<Arc<AgentStream>> {
        let session = self.sessions.registry.of_process(&agent.agent_id, agent.boot_id.as_str())?;
        self.stream_of(&session)
    }
}
