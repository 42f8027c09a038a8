//! The answer of a write, asked for again from the process of the agent that was given it.

use std::sync::Arc;

use tokio::time::{Instant, timeout_at};

use super::answers::{BodyReading, head, response, whole};
use super::sending::is_settled;
use super::{AgentStream, Requests};
use crate::connected_agents::{AccountResponse, AnsweringAgent, Repetition, RequestError, Suspects};
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
    ) -> Result<AccountResponse, RequestError> {
        if self.is_gone(agent) {
            return Err(RequestError::unknown("the agent's process that had the request is gone"));
        }
        // Also after a frame out of order: the recall is lost, not the write.
        let not_here = |_: &'static str| RequestError::recallable(Suspects::certain(agent.clone()));
        let recall = Recall { request_id: request_id.to_owned(), boot_id: agent.boot_id.as_str().to_owned() };
        let opened = self.stream_of_process(agent).and_then(|stream| {
            let exchange = stream.channel.open(|_| Opening::Recall(recall))?;
            Some((stream, exchange))
        });
        let (stream, exchange) = opened.ok_or_else(|| not_here(""))?;
        self.metrics.recalls.inc();
        exchange.end();
        let recalling = async {
            let head = head(&exchange, Repetition::Recalled, not_here).await?;
            whole(&exchange, head, not_here).await
        };
        let answered = timeout_at(deadline, recalling).await.map_err(|_| RequestError::not_recalled())?;
        if is_settled(&answered) && !keep_answer {
            stream.forget(request_id);
        }
        response(&stream, answered?, Repetition::Recalled, BodyReading::default())
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
