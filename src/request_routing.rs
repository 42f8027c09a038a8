//! Requests to accounts' API servers, by the agents of all replicas: the one port that REST's operations and the gateway
//! ask.
//!
//! | module | owns |
//! |---|---|
//! | `relaying` | a request made by the agents of another replica, at the replica that asks |
//! | [`received`] | the same at the replica that has the agent |
//! | `answer_recovery` | the answer of a write, asked for again wherever its agent is by then |
//! | `forgetting` | of which writes callers have the end, so that agents keep it no longer |
//! | `messages` | the headers of a relayed request, and the lines and the trailer of its answer; pure |
//!
//! An agent of this replica is asked first. Without one the request goes, once, to the replicas whose agents are of the
//! account's zone. At most [`MAX_ASKED_AGENTS`] agents are asked, a further one only if the first has certainly executed
//! nothing. A write whose connection was lost, to the agent or to the replica between, is recalled until its deadline.

mod answer_recovery;
mod forgetting;
mod messages;
pub mod received;
mod relaying;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use moka::sync::Cache;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use tokio::time::Instant;

use crate::connected_agents::{
    AccountRequest, AccountRequests, AccountResponse, AnsweringAgent, AskedAgent, DEFAULT_HEAD_TIMEOUT,
    MAX_ASKED_AGENTS, Repetition, ReplicaRequests, RequestError, RequestErrorKind, Retry, Suspects,
};
use crate::peers::{Peers, Replica};
use forgetting::Forgets;
use kubesvc_core::AgentId;
use kubesvc_core::operations::ApplySettings;
use kubesvc_core::requests::MAX_REQUEST_BODY_BYTES;
use kubesvc_core::requests::apply_settings::apply_settings;
use kubesvc_runtime::background_tasks::BackgroundTasks;
use messages::{ApplySettingsAnswer, apply_settings_path};

pub use messages::{relayed_principal, request_caller};

/// Time for which another replica's answer about an agent's settings is remembered.
const APPLY_SETTINGS_TIME: Duration = Duration::from_secs(30);
/// Maximum number of accounts of which it is remembered.
const MAX_APPLY_SETTINGS: u64 = 10_000;

/// Sends requests by the agents of all replicas.
pub struct RequestRouter {
    here: Arc<dyn ReplicaRequests>,
    peers: Arc<Peers>,
    forgets: Arc<Forgets>,
    apply_settings: Cache<String, ApplySettings>,
    metrics: RelayMetrics,
}

impl RequestRouter {
    /// A router over the agents of this replica, and of the others.
    pub fn new(here: Arc<dyn ReplicaRequests>, peers: Arc<Peers>) -> Self {
        Self {
            here,
            forgets: Arc::new(Forgets::new(Arc::clone(&peers))),
            peers,
            apply_settings: Cache::builder()
                .max_capacity(MAX_APPLY_SETTINGS)
                .time_to_live(APPLY_SETTINGS_TIME)
                .build(),
            metrics: RelayMetrics::default(),
        }
    }

    /// Starts what runs in the background.
    pub fn start(&self, background: &BackgroundTasks) {
        forgetting::start(background, &self.forgets);
    }

    /// Adds the metrics to a registry.
    pub fn register(&self, registry: &mut Registry) {
        self.metrics.register(registry);
    }

    /// Asks agents of this replica, and of others as long as certainly nothing was executed.
    async fn route(&self, uid: &str, request: &AccountRequest) -> Result<AccountResponse, RequestError> {
        let grant = self.here.grant(uid)?;
        let mut asked: Vec<AgentId> = Vec::new();
        let sent = self.here.send_here(uid, request, &mut asked).await;
        let mut error = match self.recalled(request, sent).await {
            Err(error) if error.goes_elsewhere() => error,
            ended => return ended,
        };
        for replica in self.peers.replicas_of_zone(&grant.zone, &grant.holders) {
            if asked.len() >= MAX_ASKED_AGENTS || Instant::now() >= request.deadline {
                break;
            }
            let sent = self.relay(&replica, (uid, &grant), request, &mut asked).await;
            match self.recalled(request, sent).await {
                Err(other) if other.goes_elsewhere() => {
                    if rank(&other) > rank(&error) {
                        error = other;
                    }
                }
                ended => return ended,
            }
        }
        Err(error)
    }

    /// The end of an attempt: of a write whose connection was lost, as its agent says it.
    async fn recalled(
        &self,
        request: &AccountRequest,
        sent: Result<AccountResponse, RequestError>,
    ) -> Result<AccountResponse, RequestError> {
        let Err(RequestError { retry: Retry::Recall(suspects), .. }) = sent else { return sent };
        self.metrics.recalls.inc();
        let recalled = self.recall_until(&request.request_id, suspects, request.deadline).await;
        recalled.map_err(|error| match error.kind {
            RequestErrorKind::Timeout => RequestError::unknown(
                "the connection to the agent was lost, and the answer was not found out in time",
            ),
            _ => error,
        })
    }

    async fn relay(
        &self,
        replica: &Replica,
        account: relaying::RelayedAccount<'_>,
        request: &AccountRequest,
        asked: &mut Vec<AgentId>,
    ) -> Result<AccountResponse, RequestError> {
        let mut asked_there = Vec::new();
        let sent = self.relay_to(replica, account, request, asked, &mut asked_there).await;
        if sent.is_ok() {
            self.metrics.answered.inc();
        }
        if request.repetition() == Repetition::Recalled {
            for process in ended_at(sent.as_ref().err(), &asked_there) {
                self.forgets.add(&replica.id, process, &request.request_id);
            }
        }
        asked.extend(asked_there.into_iter().map(|agent| agent.process.agent_id));
        sent
    }
}

/// The processes of another replica that were given a write of which its caller has the end, be it an answer or a
/// failure: all that were asked, but not one from which the end is to be recalled. An agent keeps failures as long as
/// answers.
fn ended_at<'a>(
    failed: Option<&'a RequestError>,
    asked: &'a [AskedAgent],
) -> impl Iterator<Item = &'a AnsweringAgent> {
    let recalled = match failed {
        Some(RequestError { retry: Retry::Recall(suspects), .. }) => suspects.processes.as_slice(),
        _ => &[],
    };
    asked.iter().map(|agent| &agent.process).filter(|process| !recalled.contains(process))
}

/// How much an error tells a caller: of two, the one that tells more is given.
fn rank(error: &RequestError) -> u8 {
    match error.kind {
        RequestErrorKind::NoAccount | RequestErrorKind::NotUsable => 0,
        RequestErrorKind::NoAgent => 1 + u8::from(error.retry == Retry::Later),
        // Only that replica knows what its agents would have answered.
        RequestErrorKind::ReplicaAway => 4,
        _ => 3,
    }
}

#[async_trait]
impl AccountRequests for RequestRouter {
    async fn send(
        &self,
        account_uid: &str,
        request: AccountRequest,
    ) -> Result<AccountResponse, RequestError> {
        if request.body.len() > MAX_REQUEST_BODY_BYTES {
            let message = format!("the body has more than {MAX_REQUEST_BODY_BYTES} bytes");
            return Err(RequestError::new(RequestErrorKind::TooLarge, message));
        }
        self.route(account_uid, &request).await
    }

    async fn recall(
        &self,
        account_uid: &str,
        request_id: &str,
        agent: Option<AnsweringAgent>,
    ) -> Result<AccountResponse, RequestError> {
        let suspects = match agent {
            Some(agent) => Suspects::certain(agent),
            None => self.suspects_of_zone(&self.here.grant(account_uid)?)?,
        };
        self.recall_until(request_id, suspects, Instant::now() + DEFAULT_HEAD_TIMEOUT).await
    }

    async fn apply_settings(&self, account_uid: &str) -> Option<ApplySettings> {
        if let Some(settings) = self.here.apply_settings_here(account_uid) {
            return Some(apply_settings(&settings));
        }
        if let Some(settings) = self.apply_settings.get(account_uid) {
            return Some(settings);
        }
        let grant = self.here.grant(account_uid).ok()?;
        for replica in self.peers.replicas_of_zone(&grant.zone, &grant.holders) {
            let path = apply_settings_path(account_uid);
            let Ok(answer) = self.peers.ask::<ApplySettingsAnswer>(&replica, &path).await else { continue };
            let Some(settings) = answer.apply else { continue };
            self.apply_settings.insert(account_uid.to_owned(), settings.clone());
            return Some(settings);
        }
        None
    }
}

/// Metrics of requests that are made by another replica's agents: `kubesvc_relayed_requests_*`. Atomic.
#[derive(Clone, Debug, Default)]
struct RelayMetrics {
    /// Requests that another replica's agents answered.
    answered: Counter,
    /// Requests that another replica had no answer to.
    failed: Counter,
    /// Writes whose connection was lost, and whose answer was asked for again.
    recalls: Counter,
}

impl RelayMetrics {
    fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("kubesvc_relayed_requests");
        registry.register("answered", "Requests answered by other replicas' agents", self.answered.clone());
        registry.register("failed", "Requests that another replica had no answer to", self.failed.clone());
        registry.register(
            "recalls",
            "Writes whose connection was lost, and whose answer was asked for again",
            self.recalls.clone(),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_has_ended_at_every_asked_agent_but_the_one_from_which_it_is_recalled() {
        let asked = ["one", "two"].map(|agent_id| {
            let process = AnsweringAgent { agent_id: agent_id.into(), boot_id: "boot".into() };
            AskedAgent { process, replica_id: "other".into() }
        });
        let ended = |failed: Option<Retry>, asked: &[AskedAgent]| {
            let failed = failed.map(|retry| RequestError::unknown("so").then(retry));
            ended_at(failed.as_ref(), asked).map(|process| process.agent_id.to_string()).collect::<Vec<_>>()
        };
        let second = || Some(Retry::Recall(Suspects::certain(asked[1].process.clone())));
        assert_eq!(ended(None, &asked), ["one", "two"]);
        assert_eq!(ended(Some(Retry::Elsewhere), &asked), ["one", "two"]);
        assert_eq!(ended(Some(Retry::Never), &asked), ["one", "two"]);
        assert_eq!(ended(second(), &asked), ["one"]);
        assert!(ended(second(), &[]).is_empty());
    }
}
