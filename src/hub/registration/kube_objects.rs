//! The KubesvcAgent objects at the API server.

use std::sync::Arc;

use async_trait::async_trait;
use kube::api::{DeleteParams, ListParams, PostParams, Preconditions};
use kube::{Api, Client};

use super::{
    AgentNote, AgentObjects, KnownAgent, Registered, Registration, RegistrationError, Reported, status,
};
use crate::account::lifecycle::Fact;
use crate::account::outbox::OutboxEntry;
use crate::account::{FIELD_MANAGER, KubesvcAgent, KubesvcAgentStatus, names};
use crate::budget::Budget;
use crate::crash;
use crate::leases::Replicas;
use crate::objects::version_of;

/// How often a write is decided anew after someone else has written.
const CONFLICTS: usize = 8;

/// KubesvcAgent objects in one namespace.
pub struct KubeAgentObjects {
    api: Api<KubesvcAgent>,
    approve_new: bool,
    replicas: Arc<Replicas>,
    /// For registrations, and for what is told to people.
    budget: Budget,
    /// For what the leader waits for.
    answers: Budget,
}

impl KubeAgentObjects {
    /// Objects in `namespace`; an agent that is seen for the first time is approved if `approve_new`.
    pub fn new(client: Client, namespace: &str, approve_new: bool, replicas: Arc<Replicas>) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            approve_new,
            replicas,
            budget: Budget::default(),
            answers: Budget::default(),
        }
    }

    /// The same, with no more registrations and notes than `registrations` allows, and no more answers for the leader
    /// than `answers` does.
    #[must_use]
    pub fn paced(mut self, registrations: Budget, answers: Budget) -> Self {
        self.budget = registrations;
        self.answers = answers;
        self
    }

    async fn get_or_create(&self, registration: &Registration) -> Result<KubesvcAgent, RegistrationError> {
        let name = names::agent_object_name(&registration.agent_id, &registration.zone);
        if let Some(agent) = self.api.get_opt(&name).await.map_err(failed(&name))? {
            return Ok(agent);
        }
        let new = status::new_object(&name, registration, self.approve_new);
        self.budget.take().await;
        crash::point("agent-create:before");
        let created = self.api.create(&post_params(), &new).await;
        crash::point("agent-create:after");
        match created {
            Err(kube::Error::Api(status)) if status.code == 409 => {
                self.api.get(&name).await.map_err(failed(&name))
            }
            created => created.map_err(failed(&name)),
        }
    }

    /// Writes the status if it is another one, and answers with the object's version; absent: someone else has written
    /// meanwhile.
    async fn put_status(
        &self,
        agent: KubesvcAgent,
        status: KubesvcAgentStatus,
    ) -> Result<Option<u64>, RegistrationError> {
        if agent.status.as_ref() == Some(&status) {
            return Ok(Some(version_of(&agent)));
        }
        self.budget.take().await;
        self.put(agent, status).await
    }

    async fn put(
        &self,
        mut agent: KubesvcAgent,
        status: KubesvcAgentStatus,
    ) -> Result<Option<u64>, RegistrationError> {
        let name = agent.metadata.name.clone().unwrap_or_default();
        agent.status = Some(status);
        match self.api.replace_status(&name, &post_params(), &agent).await {
            Ok(agent) => Ok(Some(version_of(&agent))),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(None),
            Err(problem) => Err(failed(&name)(problem)),
        }
    }
}

#[async_trait]
impl AgentObjects for KubeAgentObjects {
    async fn known(&self) -> Result<Vec<KnownAgent>, RegistrationError> {
        // From the API server's cache: what is a moment old will do, and it spares etcd.
        let listed = self.api.list(&ListParams::default().match_any()).await.map_err(failed("list"))?;
        Ok(listed.items.into_iter().map(status::known).collect())
    }

    async fn register(&self, registration: &Registration) -> Result<Registered, RegistrationError> {
        for _ in 0..CONFLICTS {
            let agent = self.get_or_create(registration).await?;
            let approved = agent.spec.approved;
            let is_alive = |replica: &str| self.replicas.is_alive(replica) != Fact::Known(false);
            let status = status::registered(&agent, registration, is_alive)?;
            if let Some(version) = self.put_status(agent, status).await? {
                return Ok(Registered { approved, version });
            }
        }
        Err(contended(&registration.agent_id))
    }

    async fn disconnected(
        &self,
        agent_id: &str,
        zone: &str,
        session_id: &str,
    ) -> Result<(), RegistrationError> {
        let name = names::agent_object_name(agent_id, zone);
        for _ in 0..CONFLICTS {
            let Some(agent) = self.api.get_opt(&name).await.map_err(failed(&name))? else { return Ok(()) };
            let Some(status) = status::disconnected(&agent, session_id) else { return Ok(()) };
            crash::point("agent-left:before");
            let written = self.put_status(agent, status).await?;
            crash::point("agent-left:after");
            if written.is_some() {
                return Ok(());
            }
        }
        Err(contended(agent_id))
    }

    async fn report(
        &self,
        agent_id: &str,
        zone: &str,
        session_id: &str,
        outbox: &[OutboxEntry],
    ) -> Result<Reported, RegistrationError> {
        let name = names::agent_object_name(agent_id, zone);
        for _ in 0..CONFLICTS {
            let Some(agent) = self.api.get_opt(&name).await.map_err(failed(&name))? else {
                return Ok(Reported::Superseded);
            };
            let Some(status) = status::reported(&agent, session_id, outbox) else {
                return Ok(Reported::Superseded);
            };
            self.answers.take().await;
            if agent.status.as_ref() == Some(&status) || self.put(agent, status).await?.is_some() {
                return Ok(Reported::Written);
            }
        }
        Err(contended(agent_id))
    }

    async fn note(
        &self,
        agent_id: &str,
        zone: &str,
        session_id: &str,
        note: &AgentNote,
    ) -> Result<bool, RegistrationError> {
        if !self.budget.try_take() {
            return Ok(false);
        }
        let name = names::agent_object_name(agent_id, zone);
        let Some(agent) = self.api.get_opt(&name).await.map_err(failed(&name))? else { return Ok(true) };
        let Some(status) = status::noted(&agent, session_id, note) else { return Ok(true) };
        crash::point("agent-note:before");
        let written = self.put(agent, status).await;
        crash::point("agent-note:after");
        // After a conflict it is the next one's turn to say it.
        Ok(written?.is_some())
    }

    async fn remove(&self, agent: &KnownAgent) -> Result<(), RegistrationError> {
        let name = names::agent_object_name(&agent.agent_id, &agent.zone);
        let preconditions = Preconditions {
            uid: Some(agent.uid.clone()),
            resource_version: Some(agent.resource_version.clone()),
        };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        self.budget.take().await;
        crash::point("agent-remove:before");
        let removed = self.api.delete(&name, &params).await;
        crash::point("agent-remove:after");
        match removed {
            Ok(_) => Ok(()),
            // Gone already, or another one by now.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
            Err(problem) => Err(failed(&name)(problem)),
        }
    }
}

fn post_params() -> PostParams {
    PostParams { dry_run: false, field_manager: Some(FIELD_MANAGER.to_owned()) }
}

fn failed(name: &str) -> impl Fn(kube::Error) -> RegistrationError + '_ {
    move |problem| RegistrationError::Api { name: name.to_owned(), reason: problem.to_string() }
}

fn contended(agent_id: &str) -> RegistrationError {
    RegistrationError::Api {
        name: agent_id.to_owned(),
        reason: "someone else writes it all the time".to_owned(),
    }
}
