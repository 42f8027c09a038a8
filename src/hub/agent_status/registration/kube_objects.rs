//! KubesvcAgent objects at the API server.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use kube::api::{DeleteParams, ListParams, PostParams, Preconditions};
use kube::{Api, Client};

use crate::account::agent_resource::SessionEnd;
use crate::account::lifecycle::Fact;
use crate::account::outbox::{OutboxEntry, OutboxResult};
use crate::account::{FIELD_MANAGER, KubesvcAgent, KubesvcAgentStatus, names};
use crate::budget::{Budget, Urgency};
use crate::crash;
use crate::hub::admission::queue::AdmissionClass;
use crate::hub::agent_status::registration::write_pacer::WritePacer;
use crate::hub::agent_status::registration::{
    AgentObjects, AgentSummary, KnownAgent, OutboxWrite, RegisteredAgent, Registration, RegistrationError,
    SessionRef, status,
};
use crate::leases::Replicas;
use crate::objects::{too_busy, version_of};

/// Maximum number of attempts at a write after conflicts.
const MAX_CONFLICT_RETRIES: usize = 8;
/// Time limit for one answer of the API server, excluding the wait for the budget.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// KubesvcAgent objects in one namespace.
pub struct KubeAgentObjects {
    api: Api<KubesvcAgent>,
    approve_new: bool,
    replicas: Arc<Replicas>,
    /// For registrations and summaries.
    budget: Budget,
    /// For reports the leader waits for, and registrations of agents that need accounts.
    answers: Budget,
    /// For agents that were never approved, in addition to one of the others.
    unapproved: Budget,
    pacer: WritePacer,
}

impl KubeAgentObjects {
    /// Objects in `namespace`; a new agent is approved if `approve_new`.
    pub fn new(client: Client, namespace: &str, approve_new: bool, replicas: Arc<Replicas>) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            approve_new,
            replicas,
            budget: Budget::default(),
            answers: Budget::default(),
            unapproved: Budget::default(),
            pacer: WritePacer::default(),
        }
    }

    /// Limits registrations and summaries by `registrations`, writes the leader waits for by `answers`, and
    /// registrations of unapproved agents by `strangers`.
    #[must_use]
    pub fn paced(mut self, registrations: Budget, answers: Budget, strangers: Budget) -> Self {
        self.budget = registrations;
        self.answers = answers;
        self.unapproved = strangers;
        self
    }

    async fn get_or_create(&self, registration: &Registration) -> Result<KubesvcAgent, RegistrationError> {
        let name = names::agent_object_name(&registration.agent_id, &registration.zone);
        if let Some(agent) = self.read(&name).await? {
            return Ok(agent);
        }
        let new = status::new_object(&name, registration, self.approve_new);
        self.pace(registration).await;
        crash::point("agent-create:before");
        let created = timed(&name, self.api.create(&post_params(), &new)).await?;
        crash::point("agent-create:after");
        match created {
            Err(kube::Error::Api(status)) if status.code == 409 => {
                timed(&name, self.api.get(&name)).await?.map_err(failed(&name))
            }
            created => created.map_err(|problem| self.heed(&name, problem)),
        }
    }

    async fn read(&self, name: &str) -> Result<Option<KubesvcAgent>, RegistrationError> {
        timed(name, self.api.get_opt(name)).await?.map_err(failed(name))
    }

    /// Waits for the budget of one registration. At most a tenth may be of unapproved agents.
    async fn pace(&self, registration: &Registration) {
        if registration.admission == AdmissionClass::Unapproved {
            self.unapproved.take(Urgency::Newcomer).await;
        }
        self.pace_of(registration).take(urgency(registration)).await;
    }

    /// Registrations that change nothing for any account leave the budget of the others alone.
    fn pace_of(&self, registration: &Registration) -> &Budget {
        if registration.needs_accounts { &self.answers } else { &self.budget }
    }

    /// Converts an error of the API server, and pauses the budgets if it asks for that.
    fn heed(&self, name: &str, problem: kube::Error) -> RegistrationError {
        if let Some(pause) = too_busy(&problem) {
            self.budget.pause(pause);
            self.answers.pause(pause);
        }
        failed(name)(problem)
    }

    /// Writes the status that `change` makes of an agent's object, and retries after a conflict. Returns whether the
    /// object has that status; false if there is no object or `change` returns `None`.
    async fn update(
        &self,
        session: SessionRef<'_>,
        urgency: Urgency,
        change: impl Fn(&KubesvcAgent) -> Option<KubesvcAgentStatus> + Send,
    ) -> Result<bool, RegistrationError> {
        let name = names::agent_object_name(session.agent_id, session.zone);
        self.pacer.pass(&name).await;
        for _ in 0..MAX_CONFLICT_RETRIES {
            let Some(agent) = self.read(&name).await? else { return Ok(false) };
            let Some(status) = change(&agent) else { return Ok(false) };
            if agent.status.as_ref() == Some(&status) {
                return Ok(true);
            }
            self.answers.take(urgency).await;
            if self.put(agent, status).await?.is_some() {
                return Ok(true);
            }
        }
        Err(contended(session.agent_id))
    }

    /// Writes the status. Returns the object's version, or `None` after a conflict.
    async fn put(
        &self,
        mut agent: KubesvcAgent,
        status: KubesvcAgentStatus,
    ) -> Result<Option<u64>, RegistrationError> {
        let name = agent.metadata.name.clone().unwrap_or_default();
        agent.status = Some(status);
        match timed(&name, self.api.replace_status(&name, &post_params(), &agent)).await? {
            Ok(agent) => Ok(Some(version_of(&agent))),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(None),
            Err(problem) => Err(self.heed(&name, problem)),
        }
    }
}

#[async_trait]
impl AgentObjects for KubeAgentObjects {
    async fn known(&self) -> Result<Vec<KnownAgent>, RegistrationError> {
        // Served from the API server's cache, which spares etcd; slightly stale data is enough.
        let listed = self.api.list(&ListParams::default().match_any()).await.map_err(failed("list"))?;
        Ok(listed.items.into_iter().map(status::known).collect())
    }

    async fn register(&self, registration: &Registration) -> Result<RegisteredAgent, RegistrationError> {
        // A new object takes two writes in one turn: it cannot be created with a status.
        self.pacer.pass(&names::agent_object_name(&registration.agent_id, &registration.zone)).await;
        for _ in 0..MAX_CONFLICT_RETRIES {
            let agent = self.get_or_create(registration).await?;
            let approved = agent.spec.approved;
            let former = agent.status.as_ref().and_then(|status| status.session.as_ref());
            let process = former.and_then(|session| session.incarnation.as_deref());
            let is_alive = |replica: &str| self.replicas.serves(replica, process) != Fact::Known(false);
            let mut status = status::registered(&agent, registration, is_alive, Timestamp::now())?;
            let approved_once = status.approved_once;
            if let Some(session) = &mut status.session {
                session.incarnation = Some(self.replicas.incarnation().to_owned());
            }
            let version = if agent.status.as_ref() == Some(&status) {
                Some(version_of(&agent))
            } else {
                self.pace(registration).await;
                self.put(agent, status).await?
            };
            if let Some(version) = version {
                return Ok(RegisteredAgent { approved, approved_once, version });
            }
        }
        Err(contended(&registration.agent_id))
    }

    async fn write_disconnected(
        &self,
        session: SessionRef<'_>,
        end: SessionEnd,
    ) -> Result<(), RegistrationError> {
        let disconnect = |agent: &KubesvcAgent| {
            let status = status::disconnected(agent, session.id, end, Timestamp::now())?;
            crash::point("agent-left:before");
            Some(status)
        };
        // Revokes, and other processes with the agent's id, wait for this write.
        if self.update(session, Urgency::Answer, disconnect).await? {
            crash::point("agent-left:after");
        }
        Ok(())
    }

    async fn write_outbox(
        &self,
        session: SessionRef<'_>,
        outbox: &[OutboxEntry],
    ) -> Result<OutboxWrite, RegistrationError> {
        let report = |agent: &KubesvcAgent| status::reported(agent, session.id, outbox);
        let is_written = self.update(session, urgency_of(outbox), report).await?;
        Ok(if is_written { OutboxWrite::Written } else { OutboxWrite::Superseded })
    }

    async fn write_approved(&self, session: SessionRef<'_>) -> Result<(), RegistrationError> {
        let approve = |agent: &KubesvcAgent| status::approved(agent, session.id);
        self.update(session, Urgency::Answer, approve).await.map(drop)
    }

    async fn write_summary(
        &self,
        session: SessionRef<'_>,
        summary: &AgentSummary,
    ) -> Result<bool, RegistrationError> {
        if !self.budget.try_take() {
            return Ok(false);
        }
        let name = names::agent_object_name(session.agent_id, session.zone);
        let Some(agent) = self.read(&name).await? else { return Ok(true) };
        let Some(status) = status::summarized(&agent, session.id, summary) else { return Ok(true) };
        if self.pacer.try_pass(&name).is_err() {
            return Ok(false);
        }
        crash::point("agent-note:before");
        let written = self.put(agent, status).await;
        crash::point("agent-note:after");
        // After a conflict the summary is written later.
        Ok(written?.is_some())
    }

    async fn remove(&self, agent: &KnownAgent) -> Result<(), RegistrationError> {
        let name = names::agent_object_name(&agent.agent_id, &agent.zone);
        let preconditions = Preconditions {
            uid: Some(agent.uid.clone()),
            resource_version: Some(agent.resource_version.clone()),
        };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        self.budget.take(Urgency::Rest).await;
        crash::point("agent-remove:before");
        let removed = self.api.delete(&name, &params).await;
        crash::point("agent-remove:after");
        match removed {
            Ok(_) => Ok(()),
            // Already removed or replaced.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
            Err(problem) => Err(self.heed(&name, problem)),
        }
    }
}

/// Returning agents are registered first.
fn urgency(registration: &Registration) -> Urgency {
    match registration.admission {
        AdmissionClass::Returning => Urgency::Registration,
        AdmissionClass::Newcomer | AdmissionClass::Unapproved => Urgency::Newcomer,
    }
}

/// Returns the urgency of the most urgent report.
fn urgency_of(outbox: &[OutboxEntry]) -> Urgency {
    let ends_a_revoke = outbox.iter().any(|entry| entry.result == OutboxResult::Dropped);
    if ends_a_revoke { Urgency::Revoke } else { Urgency::Answer }
}

fn post_params() -> PostParams {
    PostParams { dry_run: false, field_manager: Some(FIELD_MANAGER.to_owned()) }
}

fn failed(name: &str) -> impl Fn(kube::Error) -> RegistrationError + '_ {
    move |problem| RegistrationError::Api { name: name.to_owned(), reason: problem.to_string() }
}

/// Waits for an answer of the API server, within its time limit.
async fn timed<T>(name: &str, answer: impl Future<Output = T>) -> Result<T, RegistrationError> {
    tokio::time::timeout(REQUEST_TIMEOUT, answer).await.map_err(|_| RegistrationError::Api {
        name: name.to_owned(),
        reason: format!("the API server does not answer within {REQUEST_TIMEOUT:?}"),
    })
}

fn contended(agent_id: &str) -> RegistrationError {
    RegistrationError::Api {
        name: agent_id.to_owned(),
        reason: "someone else writes it all the time".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http_body_util::BodyExt as _;
    use serde_json::json;
    use tokio::time::Instant;

    use super::*;
    use crate::account::SessionId;

    #[test]
    fn answers_are_as_urgent_as_the_most_urgent_among_them() {
        let says = |result| OutboxEntry { result, ..OutboxEntry::default() };
        assert_eq!(urgency_of(&[says(OutboxResult::Held)]), Urgency::Answer);
        assert_eq!(urgency_of(&[says(OutboxResult::Held), says(OutboxResult::Dropped)]), Urgency::Revoke);
    }

    /// An API server that has these objects and takes whatever is made and written. It answers a write with what was sent.
    fn api_server(there: Option<&KubesvcAgent>) -> Client {
        let there = there.map(|agent| serde_json::to_vec(agent).expect("it is written as JSON"));
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let there = there.clone();
            async move {
                let is_read = request.method() == http::Method::GET;
                let sent = request.into_body().collect().await.expect("a body").to_bytes();
                let missing = json!({
                    "kind": "Status", "status": "Failure", "message": "none", "reason": "NotFound", "code": 404,
                });
                let (code, body) = match there {
                    Some(there) if is_read => (200, there),
                    None if is_read => (404, missing.to_string().into_bytes()),
                    _ => (200, sent.to_vec()),
                };
                http::Response::builder().status(code).body(kube::client::Body::from(body))
            }
        });
        Client::new(service, "ns")
    }

    /// The same with an object that someone else writes before each of the first so many writes.
    fn contended_api_server(there: &KubesvcAgent, conflicts: usize) -> (Client, Arc<AtomicUsize>) {
        let there = serde_json::to_vec(there).expect("it is written as JSON");
        let writes = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&writes);
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let (there, writes) = (there.clone(), Arc::clone(&counted));
            async move {
                let is_read = request.method() == http::Method::GET;
                let sent = request.into_body().collect().await.expect("a body").to_bytes();
                let conflict = json!({
                    "kind": "Status", "status": "Failure", "message": "newer", "reason": "Conflict", "code": 409,
                });
                let (code, body) = if is_read {
                    (200, there)
                } else if writes.fetch_add(1, Ordering::Relaxed) < conflicts {
                    (409, conflict.to_string().into_bytes())
                } else {
                    (200, sent.to_vec())
                };
                http::Response::builder().status(code).body(kube::client::Body::from(body))
            }
        });
        (Client::new(service, "ns"), writes)
    }

    fn silent_api_server() -> Client {
        let silence = std::future::pending::<Result<http::Response<kube::client::Body>, std::io::Error>>;
        Client::new(tower::service_fn(move |_: http::Request<kube::client::Body>| silence()), "ns")
    }

    fn registration(agent_id: &str, standing: AdmissionClass) -> Registration {
        Registration {
            agent_id: agent_id.to_owned(),
            zone: "z".to_owned(),
            session_id: "s".into(),
            boot_id: "b".into(),
            connect_seq: 1,
            replica: "r-0".to_owned(),
            version: String::new(),
            protocol: 1,
            connected_since: Timestamp::UNIX_EPOCH,
            cluster_uid: String::new(),
            needs_accounts: false,
            admission: standing,
        }
    }

    fn session_of_a(id: &SessionId) -> SessionRef<'_> {
        SessionRef { agent_id: "a", zone: "z", id }
    }

    /// The object of agent `a`, with session `s` in it; its approval is not written down.
    fn registered_agent() -> KubesvcAgent {
        let session = registration("a", AdmissionClass::Returning);
        let mut agent = status::new_object("a", &session, true);
        let status = status::registered(&agent, &session, |_| true, Timestamp::UNIX_EPOCH);
        agent.status = Some(KubesvcAgentStatus { approved_once: false, ..status.expect("its id is free") });
        agent
    }

    fn objects(client: Client) -> KubeAgentObjects {
        KubeAgentObjects::new(client, "ns", false, Replicas::alone("r-0"))
    }

    #[tokio::test(start_paused = true)]
    async fn strangers_have_turns_of_their_own_and_nobody_else_waits_for_them() {
        let strangers = Budget::default();
        let paced = objects(api_server(None)).paced(Budget::default(), Budget::default(), strangers.clone());
        let (objects, began) = (Arc::new(paced), Instant::now());
        strangers.pause(Duration::from_secs(60));
        let stranger = tokio::spawn({
            let objects = Arc::clone(&objects);
            async move { objects.register(&registration("stranger", AdmissionClass::Unapproved)).await }
        });
        while strangers.waiting() == 0 {
            tokio::task::yield_now().await;
        }
        for standing in [AdmissionClass::Returning, AdmissionClass::Newcomer] {
            let registration = registration(&format!("{standing:?}"), standing);
            objects.register(&registration).await.expect("it is taken");
        }
        assert!(began.elapsed() < Duration::from_secs(60) && !stranger.is_finished());
        stranger.await.expect("no panic").expect("it has its turn in the end");
        assert!(began.elapsed() >= Duration::from_secs(60));
    }

    #[tokio::test(start_paused = true)]
    async fn of_those_that_wait_to_be_registered_agents_that_were_here_before_come_first() {
        let registrations = Budget::new(10, 1);
        registrations.pause(Duration::from_secs(1));
        let paced =
            objects(api_server(None)).paced(registrations.clone(), Budget::default(), Budget::default());
        let objects = Arc::new(paced);
        let (done, mut order) = tokio::sync::mpsc::channel(4);
        let coming = [AdmissionClass::Newcomer, AdmissionClass::Unapproved, AdmissionClass::Returning];
        for (before, standing) in coming.into_iter().enumerate() {
            let (objects, done) = (Arc::clone(&objects), done.clone());
            tokio::spawn(async move {
                let registration = registration(&format!("{standing:?}"), standing);
                objects.register(&registration).await.expect("it is taken");
                let _ = done.send(standing).await;
            });
            while registrations.waiting() <= before {
                tokio::task::yield_now().await;
            }
        }
        assert_eq!(order.recv().await, Some(AdmissionClass::Returning), "though it came last");
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_wait_for_the_turn_to_write_is_no_failure_of_the_api_server() {
        let agent = registered_agent();
        let (answers, began) = (Budget::default(), Instant::now());
        let paced = objects(api_server(Some(&agent)));
        let objects = paced.paced(Budget::default(), answers.clone(), Budget::default());
        answers.pause(REQUEST_TIMEOUT * 3);
        objects
            .write_disconnected(session_of_a(&"s".into()), SessionEnd::Cut)
            .await
            .expect("it is only late");
        assert!(began.elapsed() >= REQUEST_TIMEOUT * 3);
        answers.pause(REQUEST_TIMEOUT * 3);
        objects.write_approved(session_of_a(&"s".into())).await.expect("it is only late");
        assert!(began.elapsed() >= REQUEST_TIMEOUT * 6);
    }

    #[tokio::test(start_paused = true)]
    async fn an_api_server_that_does_not_answer_is_given_up_and_said_to() {
        let objects = objects(silent_api_server());
        let left = objects.write_disconnected(session_of_a(&"s".into()), SessionEnd::Cut).await;
        let approved = objects.write_approved(session_of_a(&"s".into())).await;
        let registered = objects.register(&registration("a", AdmissionClass::Returning)).await.map(drop);
        for problem in [left, approved, registered] {
            let problem = problem.expect_err("there is no answer").to_string();
            assert!(problem.contains("does not answer within 10s"), "{problem}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_status_is_written_again_after_a_conflict_and_given_up_after_eight() {
        let (client, writes) = contended_api_server(&registered_agent(), 1);
        objects(client).write_approved(session_of_a(&"s".into())).await.expect("the second write is taken");
        assert_eq!(writes.load(Ordering::Relaxed), 2);
        let (client, writes) = contended_api_server(&registered_agent(), usize::MAX);
        let problem =
            objects(client).write_outbox(session_of_a(&"s".into()), &[OutboxEntry::default()]).await;
        let problem = problem.expect_err("someone else is always faster").to_string();
        assert!(problem.contains("someone else writes it all the time"), "{problem}");
        assert_eq!(writes.load(Ordering::Relaxed), MAX_CONFLICT_RETRIES);
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_written_for_a_session_that_the_object_does_not_name() {
        let (client, writes) = contended_api_server(&registered_agent(), 0);
        let objects = objects(client);
        let another = "another".into();
        let written = objects.write_outbox(session_of_a(&another), &[OutboxEntry::default()]).await;
        assert_eq!(written.expect("it is answered"), OutboxWrite::Superseded);
        objects
            .write_disconnected(session_of_a(&another), SessionEnd::Cut)
            .await
            .expect("there is nothing to say");
        assert_eq!(writes.load(Ordering::Relaxed), 0);
    }
}
