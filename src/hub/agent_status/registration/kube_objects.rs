//! KubesvcAgent objects at the API server.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use kube::Resource as _;
use kube::api::{DeleteParams, ListParams, Preconditions};
use kube::runtime::events::{Event, EventType, Recorder};
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::debug;

use crate::hub::agent_admission::queue::AdmissionClass;
use crate::hub::agent_status::registration::{
    AgentObjects, AgentSummary, KnownAgent, OutboxWrite, RegisteredAgent, Registration, RegistrationError,
    SessionRef, Stranger, status,
};
use crate::informers::version_of;
use crate::leases::Replicas;
use kubesvc_core::agent_resource::SessionEnd;
use kubesvc_core::lifecycle::Fact;
use kubesvc_core::report_outbox::{OutboxEntry, OutboxResult};
use kubesvc_core::{AgentId, FIELD_MANAGER, KubesvcAgent, KubesvcAgentStatus, ReplicaId, object_names};
use kubesvc_runtime::crash_points;
use kubesvc_runtime::kube_access::{KubeAccess, KubeError, KubeObjects, WriteOptions, unless_stale};
use kubesvc_runtime::rate_limit::{RateLimit, Urgency};
use kubesvc_runtime::telemetry::errors::chain;

/// Maximum number of attempts at a write after conflicts.
const MAX_CONFLICT_RETRIES: usize = 8;
/// Time limit for one answer of the API server, excluding the wait for the rate limit.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// KubesvcAgent objects in one namespace.
pub struct KubeAgentObjects {
    /// Registrations and summaries.
    registrations: KubeObjects<KubesvcAgent>,
    /// Reports the leader waits for, and registrations of agents that need accounts.
    answers: KubeObjects<KubesvcAgent>,
    /// The rate limit of the registrations.
    rate_limit: RateLimit,
    approve_new: bool,
    replicas: Arc<Replicas>,
    /// For agents that were never approved, in addition to one of the others.
    unapproved: RateLimit,
    pacer: WritePacer,
    events: Recorder,
}

impl KubeAgentObjects {
    /// Objects in `namespace`; a new agent is approved if `approve_new`.
    pub fn new(kube: &KubeAccess, namespace: &str, approve_new: bool, replicas: Arc<Replicas>) -> Self {
        let objects = kube.clone().within(REQUEST_TIMEOUT).namespaced(namespace);
        Self {
            registrations: objects.clone(),
            answers: objects,
            rate_limit: RateLimit::default(),
            approve_new,
            replicas,
            unapproved: RateLimit::default(),
            pacer: WritePacer::default(),
            events: Recorder::new(kube.client().clone(), FIELD_MANAGER.into()),
        }
    }

    /// Limits registrations and summaries by `registrations`, writes the leader waits for by `answers`, and
    /// registrations of unapproved agents by `unapproved`.
    #[must_use]
    pub fn paced(mut self, registrations: RateLimit, answers: RateLimit, unapproved: RateLimit) -> Self {
        let limited = |rate_limit: RateLimit, other: RateLimit| {
            self.registrations.with(|access| access.limited_by(rate_limit, [other]))
        };
        (self.registrations, self.answers) =
            (limited(registrations.clone(), answers.clone()), limited(answers, registrations.clone()));
        self.rate_limit = registrations;
        self.unapproved = unapproved;
        self
    }

    async fn get_or_create(&self, registration: &Registration) -> Result<KubesvcAgent, RegistrationError> {
        let name = object_names::agent_object_name(&registration.agent_id, &registration.zone);
        if let Some(agent) = self.read(&name).await? {
            return Ok(agent);
        }
        let new = status::new_object(&name, registration, self.approve_new);
        let options = WriteOptions::with(urgency(registration)).at("agent-create");
        let created = self.paced_for(registration).await.create(&new, options).await;
        match unless_stale(created).map_err(failed(&name))? {
            Some(created) => Ok(created),
            None => self.read(&name).await?.ok_or_else(|| contended(&registration.agent_id)),
        }
    }

    async fn read(&self, name: &str) -> Result<Option<KubesvcAgent>, RegistrationError> {
        self.answers.get(name).await.map_err(failed(name))
    }

    /// Returns the objects with the rate limit for a write of one registration; at most a tenth may be of unapproved
    /// agents. Registrations that change nothing for any account leave the rate limit of the others alone.
    async fn paced_for(&self, registration: &Registration) -> &KubeObjects<KubesvcAgent> {
        if registration.admission == AdmissionClass::Unapproved {
            self.unapproved.take(Urgency::Newcomer).await;
        }
        if registration.needs_accounts { &self.answers } else { &self.registrations }
    }

    /// Writes the status that `change` makes of an agent's object, and retries after a conflict. Returns whether the
    /// object has that status; false if there is no object or `change` returns `None`.
    async fn update(
        &self,
        session: SessionRef<'_>,
        urgency: Urgency,
        change: impl Fn(&KubesvcAgent) -> Option<KubesvcAgentStatus> + Send,
    ) -> Result<bool, RegistrationError> {
        let name = object_names::agent_object_name(session.agent_id, session.zone);
        self.pacer.pass(&name).await;
        for _ in 0..MAX_CONFLICT_RETRIES {
            let Some(agent) = self.read(&name).await? else { return Ok(false) };
            let Some(status) = change(&agent) else { return Ok(false) };
            if agent.status.as_ref() == Some(&status) {
                return Ok(true);
            }
            if put(&self.answers, agent, status, WriteOptions::with(urgency)).await?.is_some() {
                return Ok(true);
            }
        }
        Err(contended(session.agent_id))
    }
}

/// Writes the status. Returns the object's version, or `None` after a conflict.
async fn put(
    objects: &KubeObjects<KubesvcAgent>,
    mut agent: KubesvcAgent,
    status: KubesvcAgentStatus,
    options: WriteOptions,
) -> Result<Option<u64>, RegistrationError> {
    let name = agent.metadata.name.clone().unwrap_or_default();
    agent.status = Some(status);
    let written = unless_stale(objects.replace_status(&name, &agent, options).await);
    Ok(written.map_err(failed(&name))?.map(|agent| version_of(&agent)))
}

#[async_trait]
impl AgentObjects for KubeAgentObjects {
    async fn known(&self) -> Result<Vec<KnownAgent>, RegistrationError> {
        // Served from the API server's cache, which spares etcd; slightly stale data is enough.
        let listed = self.answers.list(&ListParams::default().match_any()).await.map_err(failed("list"))?;
        Ok(listed.items.into_iter().map(status::known).collect())
    }

    async fn register(&self, registration: &Registration) -> Result<RegisteredAgent, RegistrationError> {
        // A new object takes two writes in one turn: it cannot be created with a status.
        self.pacer.pass(&object_names::agent_object_name(&registration.agent_id, &registration.zone)).await;
        for _ in 0..MAX_CONFLICT_RETRIES {
            let agent = self.get_or_create(registration).await?;
            let identity = registration.identity.as_ref();
            let is_bound = identity.is_some_and(|identity| identity.binding.is_some());
            let approved = is_bound || agent.spec.approved;
            let former = agent.status.as_ref().and_then(|status| status.session.as_ref());
            let process = former.and_then(|session| session.incarnation.as_deref());
            let is_alive = |replica: &ReplicaId| self.replicas.serves(replica, process) != Fact::Known(false);
            let mut status = status::registered(&agent, registration, is_alive, Timestamp::now())?;
            let approved_once = status.approved_once;
            if let Some(session) = &mut status.session {
                session.incarnation = Some(self.replicas.incarnation().to_owned());
            }
            let version = if agent.status.as_ref() == Some(&status) {
                Some(version_of(&agent))
            } else {
                let objects = self.paced_for(registration).await;
                put(objects, agent, status, WriteOptions::with(urgency(registration))).await?
            };
            if let Some(version) = version {
                return Ok(RegisteredAgent { approved, approved_once, version });
            }
        }
        Err(contended(&registration.agent_id))
    }

    async fn show(&self, stranger: &Stranger) -> Result<(), RegistrationError> {
        let name = object_names::agent_object_name(&stranger.agent_id, &stranger.zone);
        let known = self.read(&name).await?;
        if known.as_ref().is_some_and(|agent| status::shown(agent, stranger, Timestamp::now()).is_none()) {
            return Ok(());
        }
        self.unapproved.take(Urgency::Newcomer).await;
        let options = || WriteOptions::with(Urgency::Newcomer).at("agent-create");
        let agent = match known {
            Some(agent) => agent,
            None => {
                let new = status::unapproved_object(&name, &stranger.agent_id, &stranger.zone);
                let created = self.registrations.create(&new, options()).await;
                // Another replica may have shown it.
                let Some(created) = unless_stale(created).map_err(failed(&name))? else { return Ok(()) };
                created
            }
        };
        let Some(status) = status::shown(&agent, stranger, Timestamp::now()) else { return Ok(()) };
        put(&self.registrations, agent, status, options()).await.map(drop)
    }

    async fn warn(&self, session: SessionRef<'_>, reason: &'static str, message: &str) {
        let name = object_names::agent_object_name(session.agent_id, session.zone);
        let Ok(Some(agent)) = self.registrations.get(&name).await else { return };
        let event = Event {
            type_: EventType::Warning,
            action: reason.to_owned(),
            reason: reason.to_owned(),
            note: Some(message.to_owned()),
            secondary: None,
        };
        let about = agent.object_ref(&());
        let publishing = self.events.publish(&event, &about);
        if !matches!(tokio::time::timeout(REQUEST_TIMEOUT, publishing).await, Ok(Ok(()))) {
            debug!(agentId = session.agent_id.as_str(), reason, "cannot write an Event");
        }
    }

    async fn write_disconnected(
        &self,
        session: SessionRef<'_>,
        end: SessionEnd,
    ) -> Result<(), RegistrationError> {
        let disconnect = |agent: &KubesvcAgent| {
            let status = status::disconnected(agent, session.id, end, Timestamp::now())?;
            crash_points::point("agent-left:before");
            Some(status)
        };
        // Revokes, and other processes with the agent's id, wait for this write.
        if self.update(session, Urgency::Answer, disconnect).await? {
            crash_points::point("agent-left:after");
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
        if !self.rate_limit.try_take() {
            return Ok(false);
        }
        let name = object_names::agent_object_name(session.agent_id, session.zone);
        let Some(agent) = self.read(&name).await? else { return Ok(true) };
        let Some(status) = status::summarized(&agent, session.id, summary) else { return Ok(true) };
        if self.pacer.try_pass(&name).is_err() {
            return Ok(false);
        }
        let options = WriteOptions::default().at("agent-note");
        // After a conflict the summary is written later.
        Ok(put(&self.registrations, agent, status, options).await?.is_some())
    }

    async fn remove(&self, agent: &KnownAgent) -> Result<(), RegistrationError> {
        let name = object_names::agent_object_name(&agent.agent_id, &agent.zone);
        let parameters = DeleteParams::default().preconditions(Preconditions {
            uid: Some(agent.uid.clone()),
            resource_version: Some(agent.resource_version.clone()),
        });
        let options = WriteOptions::with(Urgency::Rest).at("agent-remove");
        // Stale: already removed or replaced.
        let removed = unless_stale(self.registrations.delete(&name, &parameters, options).await);
        removed.map(drop).map_err(failed(&name))
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

fn failed(name: &str) -> impl Fn(KubeError) -> RegistrationError + '_ {
    move |error| RegistrationError::Api { name: name.to_owned(), reason: chain(&error) }
}

fn contended(agent_id: &AgentId) -> RegistrationError {
    RegistrationError::Api {
        name: agent_id.to_string(),
        reason: "someone else writes it all the time".to_owned(),
    }
}

/// Minimum interval between two writes of one object.
const MIN_WRITE_INTERVAL: Duration = Duration::from_millis(500);
/// Number of tracked names at which expired ones are dropped.
const MAX_TRACKED_NAMES: usize = 1024;

/// Earliest time of the next write, by object.
#[derive(Debug, Default)]
struct WritePacer(Mutex<HashMap<String, Instant>>);

impl WritePacer {
    /// Waits until an object may be written, and takes the turn.
    pub(super) async fn pass(&self, name: &str) {
        while let Err(at) = self.try_pass(name) {
            tokio::time::sleep_until(at).await;
        }
    }

    /// Takes the turn if the object may be written now; otherwise returns the time of the next turn.
    fn try_pass(&self, name: &str) -> Result<(), Instant> {
        let now = Instant::now();
        let mut again = self.0.lock();
        if let Some(at) = again.get(name).filter(|at| **at > now) {
            return Err(*at);
        }
        if again.len() >= MAX_TRACKED_NAMES {
            again.retain(|_, at| *at > now);
        }
        again.insert(name.to_owned(), now + MIN_WRITE_INTERVAL);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http_body_util::BodyExt as _;
    use kube::Client;
    use serde_json::json;
    use tokio::time::Instant;

    use super::*;
    use kubesvc_core::{SessionId, ZoneId};

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
                let name = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
                let sent = request.into_body().collect().await.expect("a body").to_bytes();
                let missing = json!({
                    "kind": "Status", "status": "Failure", "message": "none", "reason": "NotFound", "code": 404,
                    "details": {"name": name},
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
            agent_id: agent_id.into(),
            zone: "z".into(),
            session_id: "s".into(),
            boot_id: "b".into(),
            connect_seq: 1,
            replica: "r-0".into(),
            version: String::new(),
            protocol: 1,
            connected_since: Timestamp::UNIX_EPOCH,
            cluster_uid: String::new(),
            streams_objects: true,
            identity: None,
            needs_accounts: false,
            admission: standing,
        }
    }

    static A: LazyLock<AgentId> = LazyLock::new(|| "a".into());
    static Z: LazyLock<ZoneId> = LazyLock::new(|| "z".into());

    fn session_of_a(id: &SessionId) -> SessionRef<'_> {
        SessionRef { agent_id: &A, zone: &Z, id }
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
        KubeAgentObjects::new(&KubeAccess::new(client, "test"), "ns", false, Replicas::alone(&"r-0".into()))
    }

    #[tokio::test(start_paused = true)]
    async fn unapproved_agents_have_a_rate_limit_of_their_own() {
        let unapproved = RateLimit::default();
        let paced =
            objects(api_server(None)).paced(RateLimit::default(), RateLimit::default(), unapproved.clone());
        let (objects, began) = (Arc::new(paced), Instant::now());
        unapproved.pause(Duration::from_secs(60));
        let unlisted_fact = tokio::spawn({
            let objects = Arc::clone(&objects);
            async move { objects.register(&registration("stranger", AdmissionClass::Unapproved)).await }
        });
        while unapproved.waiting() == 0 {
            tokio::task::yield_now().await;
        }
        for standing in [AdmissionClass::Returning, AdmissionClass::Newcomer] {
            let registration = registration(&format!("{standing:?}"), standing);
            objects.register(&registration).await.expect("it is taken");
        }
        assert!(began.elapsed() < Duration::from_secs(60) && !unlisted_fact.is_finished());
        unlisted_fact.await.expect("no panic").expect("it has its turn in the end");
        assert!(began.elapsed() >= Duration::from_secs(60));
    }

    #[tokio::test(start_paused = true)]
    async fn of_those_that_wait_to_be_registered_agents_that_were_here_before_come_first() {
        let registrations = RateLimit::new(10, 1);
        registrations.pause(Duration::from_secs(1));
        let paced = objects(api_server(None)).paced(
            registrations.clone(),
            RateLimit::default(),
            RateLimit::default(),
        );
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
    async fn waiting_for_the_rate_limit_is_no_api_server_failure() {
        let agent = registered_agent();
        let (answers, began) = (RateLimit::default(), Instant::now());
        let paced = objects(api_server(Some(&agent)));
        let objects = paced.paced(RateLimit::default(), answers.clone(), RateLimit::default());
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
    async fn silent_api_server_times_out_with_an_error() {
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

    #[tokio::test]
    async fn an_object_is_written_twice_a_second_at_most_and_others_are_not_held_up() {
        let (pacer, since) = (WritePacer::default(), std::time::Instant::now());
        pacer.pass("a").await;
        pacer.pass("b").await;
        assert!(since.elapsed() < MIN_WRITE_INTERVAL);
        assert!(pacer.try_pass("a").is_err());
        pacer.pass("a").await;
        pacer.pass("a").await;
        assert!(since.elapsed() >= MIN_WRITE_INTERVAL * 2);
    }

    #[test]
    fn names_are_forgotten_when_they_may_be_written_again() {
        let pacer = WritePacer::default();
        let long_ago = Instant::now();
        pacer.0.lock().extend((0..MAX_TRACKED_NAMES).map(|one| (one.to_string(), long_ago)));
        assert!(pacer.try_pass("a").is_ok());
        assert_eq!(pacer.0.lock().len(), 1);
    }
}
