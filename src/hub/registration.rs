//! The port to the KubesvcAgent objects, and its adapter over the Kubernetes API.

use std::collections::BTreeMap;

use async_trait::async_trait;
use futures::stream::BoxStream;
use futures::{StreamExt, future};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{ListParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};

use crate::account::fleet_member::AgentSession;
use crate::account::{FIELD_MANAGER, KubesvcAgent, KubesvcAgentSpec, KubesvcAgentStatus, ZONE_LABEL, names};
use crate::budget::Budget;

/// How often a write is decided anew after someone else has written.
const CONFLICTS: usize = 8;

/// A session, as it is written into its KubesvcAgent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// The agent.
    pub agent_id: String,
    /// Its zone.
    pub zone: String,
    /// The ULID of the session.
    pub session_id: String,
    /// The ULID of the agent's process.
    pub boot_id: String,
    /// Counts the connections of that process.
    pub connect_seq: i64,
    /// The replica that holds the stream.
    pub replica: String,
    /// The program's version; empty if it told none.
    pub version: String,
    /// The protocol that both speak.
    pub protocol: u32,
    /// Since when the stream stands.
    pub connected_since: Timestamp,
}

/// What the object says of an agent that was registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registered {
    /// Whether the agent is given accounts.
    pub approved: bool,
}

/// An agent that an object says is connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownAgent {
    /// The agent.
    pub agent_id: String,
    /// Its zone.
    pub zone: String,
    /// Its session.
    pub session_id: String,
    /// Whether it is given accounts.
    pub approved: bool,
}

/// Whether an agent is given accounts, as a person has set it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Approval {
    /// The agent.
    pub agent_id: String,
    /// Its zone.
    pub zone: String,
    /// Whether it is given accounts.
    pub approved: bool,
}

/// Why an object could not be written.
#[derive(Debug, thiserror::Error)]
pub enum RegistrationError {
    /// A later connection of the same process is registered already.
    #[error("a later connection of the same process is registered")]
    Superseded,
    /// The name of the object is taken by another agent; the two names hash alike.
    #[error("KubesvcAgent {0} belongs to another agent; give the agent another AGENT_ID")]
    NameTaken(String),
    /// The API server did not take it.
    #[error("KubesvcAgent {name}: {reason}")]
    Api {
        /// The object, or what was asked for.
        name: String,
        /// What the API server said.
        reason: String,
    },
}

/// The KubesvcAgent objects.
#[async_trait]
pub trait AgentObjects: Send + Sync {
    /// Agents that an object says are connected.
    ///
    /// # Errors
    /// The API server cannot be asked.
    async fn connected(&self) -> Result<Vec<KnownAgent>, RegistrationError>;

    /// Writes a session into its object, which is created if need be. Tried once against the API server, and again
    /// only where someone else has written meanwhile.
    ///
    /// # Errors
    /// The API server cannot be reached or refuses, or a later connection of the process is there already.
    async fn register(&self, registration: &Registration) -> Result<Registered, RegistrationError>;

    /// Writes that a session has ended; nothing is written if the object names another session or says so already.
    ///
    /// # Errors
    /// The API server cannot be reached or refuses.
    async fn disconnected(
        &self,
        agent_id: &str,
        zone: &str,
        session_id: &str,
    ) -> Result<(), RegistrationError>;

    /// Approvals as they are, and then as they change. The stream does not end.
    fn approvals(&self) -> BoxStream<'static, Approval>;
}

/// KubesvcAgent objects in one namespace.
pub struct KubeAgentObjects {
    api: Api<KubesvcAgent>,
    approve_new: bool,
    budget: Budget,
}

impl KubeAgentObjects {
    /// Objects in `namespace`; an agent that is seen for the first time is approved if `approve_new`.
    pub fn new(client: Client, namespace: &str, approve_new: bool) -> Self {
        Self { api: Api::namespaced(client, namespace), approve_new, budget: Budget::default() }
    }

    /// The same, with no more writes than the budget allows.
    #[must_use]
    pub fn paced(mut self, budget: Budget) -> Self {
        self.budget = budget;
        self
    }

    async fn get_or_create(&self, registration: &Registration) -> Result<KubesvcAgent, RegistrationError> {
        let name = names::agent_object_name(&registration.agent_id, &registration.zone);
        if let Some(agent) = self.api.get_opt(&name).await.map_err(failed(&name))? {
            return Ok(agent);
        }
        let new = new_object(&name, registration, self.approve_new);
        self.budget.take().await;
        match self.api.create(&post_params(), &new).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {
                self.api.get(&name).await.map_err(failed(&name))
            }
            created => created.map_err(failed(&name)),
        }
    }

    /// Writes the status if it is another one; false: someone else has written meanwhile.
    async fn put_status(
        &self,
        mut agent: KubesvcAgent,
        status: KubesvcAgentStatus,
    ) -> Result<bool, RegistrationError> {
        if agent.status.as_ref() == Some(&status) {
            return Ok(true);
        }
        let name = agent.metadata.name.clone().unwrap_or_default();
        agent.status = Some(status);
        self.budget.take().await;
        match self.api.replace_status(&name, &post_params(), &agent).await {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
            Err(problem) => Err(failed(&name)(problem)),
        }
    }
}

#[async_trait]
impl AgentObjects for KubeAgentObjects {
    async fn connected(&self) -> Result<Vec<KnownAgent>, RegistrationError> {
        let listed = self.api.list(&ListParams::default()).await.map_err(failed("list"))?;
        Ok(listed.items.into_iter().filter_map(known).collect())
    }

    async fn register(&self, registration: &Registration) -> Result<Registered, RegistrationError> {
        for _ in 0..CONFLICTS {
            let agent = self.get_or_create(registration).await?;
            let approved = agent.spec.approved;
            let status = status_of(&agent, registration)?;
            if self.put_status(agent, status).await? {
                return Ok(Registered { approved });
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
            let Some(status) = disconnected_status(&agent, session_id) else { return Ok(()) };
            if self.put_status(agent, status).await? {
                return Ok(());
            }
        }
        Err(contended(agent_id))
    }

    fn approvals(&self) -> BoxStream<'static, Approval> {
        let stream = watcher(self.api.clone(), watcher::Config::default()).default_backoff();
        let applied = stream.applied_objects().filter_map(|agent| {
            future::ready(agent.ok().map(|agent| Approval {
                agent_id: agent.spec.agent_id,
                zone: agent.spec.zone_id,
                approved: agent.spec.approved,
            }))
        });
        applied.boxed()
    }
}

fn new_object(name: &str, registration: &Registration, approved: bool) -> KubesvcAgent {
    let zone = &registration.zone;
    let labels = is_label_value(zone).then(|| BTreeMap::from([(ZONE_LABEL.to_owned(), zone.clone())]));
    KubesvcAgent {
        metadata: ObjectMeta { name: Some(name.to_owned()), labels, ..ObjectMeta::default() },
        spec: KubesvcAgentSpec { agent_id: registration.agent_id.clone(), zone_id: zone.clone(), approved },
        status: None,
    }
}

/// The status with the session in it.
fn status_of(
    agent: &KubesvcAgent,
    registration: &Registration,
) -> Result<KubesvcAgentStatus, RegistrationError> {
    if agent.spec.agent_id != registration.agent_id || agent.spec.zone_id != registration.zone {
        return Err(RegistrationError::NameTaken(agent.metadata.name.clone().unwrap_or_default()));
    }
    let before = agent.status.clone().unwrap_or_default();
    if let Some(session) = &before.session
        && session.boot_id == registration.boot_id
        && session.connect_seq > registration.connect_seq
    {
        return Err(RegistrationError::Superseded);
    }
    Ok(KubesvcAgentStatus {
        session: Some(AgentSession {
            id: registration.session_id.clone(),
            boot_id: registration.boot_id.clone(),
            connect_seq: registration.connect_seq,
            replica: registration.replica.clone(),
        }),
        connected: true,
        connected_since: Some(Time(whole_seconds(registration.connected_since))),
        version: (!registration.version.is_empty()).then(|| registration.version.clone()),
        protocol_version: i32::try_from(registration.protocol).ok(),
        ..before
    })
}

/// The status of an agent whose session has ended; absent: there is nothing to write.
fn disconnected_status(agent: &KubesvcAgent, session_id: &str) -> Option<KubesvcAgentStatus> {
    let status = agent.status.as_ref()?;
    let ours = status.session.as_ref().is_some_and(|session| session.id == session_id);
    (ours && status.connected).then(|| KubesvcAgentStatus { connected: false, ..status.clone() })
}

fn known(agent: KubesvcAgent) -> Option<KnownAgent> {
    let status = agent.status.filter(|status| status.connected)?;
    Some(KnownAgent {
        agent_id: agent.spec.agent_id,
        zone: agent.spec.zone_id,
        session_id: status.session.map(|session| session.id).unwrap_or_default(),
        approved: agent.spec.approved,
    })
}

/// The API server keeps seconds; more would never compare equal.
fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

/// Whether a text can be the value of a label.
fn is_label_value(text: &str) -> bool {
    let bytes = text.as_bytes();
    let edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    bytes.len() <= 63
        && edge(bytes.first())
        && edge(bytes.last())
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn registration() -> Registration {
        Registration {
            agent_id: "a".into(),
            zone: "z".into(),
            session_id: "s1".into(),
            boot_id: "b1".into(),
            connect_seq: 2,
            replica: "r".into(),
            version: "1.0".into(),
            protocol: 1,
            connected_since: Timestamp::from_second(1_000).expect("a time"),
        }
    }

    fn registered() -> KubesvcAgent {
        let mut agent = new_object("a-z", &registration(), true);
        agent.status = Some(status_of(&agent, &registration()).expect("it is free"));
        agent
    }

    #[test]
    fn registering_the_same_session_again_changes_nothing() {
        let agent = registered();
        assert_eq!(status_of(&agent, &registration()).ok(), agent.status);
    }

    #[test]
    fn an_older_connection_of_the_same_process_is_superseded() {
        let older = Registration { connect_seq: 1, session_id: "s0".into(), ..registration() };
        assert!(matches!(status_of(&registered(), &older), Err(RegistrationError::Superseded)));
        let other = Registration { boot_id: "b2".into(), ..older };
        assert!(status_of(&registered(), &other).is_ok());
    }

    #[test]
    fn an_object_of_another_agent_is_left_alone() {
        let other = Registration { agent_id: "b".into(), ..registration() };
        assert!(matches!(status_of(&registered(), &other), Err(RegistrationError::NameTaken(_))));
    }

    #[test]
    fn only_the_session_in_force_is_marked_as_ended() {
        let agent = registered();
        assert_eq!(disconnected_status(&agent, "s0"), None);
        let ended = disconnected_status(&agent, "s1").expect("it stood");
        assert!(!ended.connected);
        let agent = KubesvcAgent { status: Some(ended), ..agent };
        assert_eq!(disconnected_status(&agent, "s1"), None);
    }

    #[test]
    fn a_zone_that_is_no_label_value_gets_no_label() {
        for zone in ["", "-a", "a b", "ü", &"x".repeat(64)] {
            assert!(!is_label_value(zone), "{zone}");
        }
        let labels = new_object("n", &registration(), false).metadata.labels;
        assert_eq!(labels, Some(BTreeMap::from([(ZONE_LABEL.to_owned(), "z".to_owned())])));
    }
}
