//! One request: the agent that is asked, another one where that is safe, and the answer.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt as _;
use http::Method;
use prost::bytes::{Bytes, BytesMut};
use tokio::time::{Instant, timeout_at};

use super::answers::{Answer, head, response, whole};
use super::choice::{self, Candidate, UsableAccount};
use super::counts::RequestCounts;
use super::outcome::{self, AttemptFailure, NextStep};
use super::{AgentStream, Requests};
use crate::connected_agents::{
    AccountRequest, AccountRequests, AccountResponse, AnsweringAgent, AskedObserver, ByteStream,
    RequestBytes, RequestClass, RequestError,
};
use crate::hub::sessions::session::Session;
use kubesvc_core::operations::ApplySettings;
use kubesvc_core::requests::MAX_REQUEST_BODY_BYTES;
use kubesvc_core::requests::headers::passed_on;
use kubesvc_core::requests::target::RequestPath;
use kubesvc_core::requests::wire::Opening;
use kubesvc_core::wire::common::failure::Class;
use kubesvc_core::wire::common::{AccountRef, Failure};
use kubesvc_core::wire::ops::{Header, Open, Recall};
use kubesvc_core::{AgentId, BootId};
use kubesvc_runtime::request_channel::wire_headers;

/// Maximum age of this replica's Lease for requests to be opened: no request is sent into two zones.
const MAX_LEASE_AGE: Duration = Duration::from_secs(10);
/// Number of agents that are asked.
const MAX_ASKED: usize = 2;

/// A request that can be opened at any agent.
struct PreparedRequest {
    request_id: String,
    method: Method,
    target: String,
    headers: Vec<Header>,
    body: Bytes,
    repetition: Repetition,
    repeatable: bool,
    upgrade: bool,
    deadline: Instant,
    on_asked: Option<AskedObserver>,
}

/// Whether a request that may have been executed is asked for again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repetition {
    /// Another agent may be asked.
    Any,
    /// Its answer is recalled.
    Recalled,
    /// It is asked for once.
    Once,
}

#[async_trait]
impl AccountRequests for Requests {
    async fn send(
        &self,
        account_uid: &str,
        request: AccountRequest,
    ) -> Result<AccountResponse, RequestError> {
        let (class, started) = (request.class, Instant::now());
        let sent = self.send_counted(account_uid, request).await;
        match &sent {
            Ok(_) => {
                self.metrics.head_seconds.observe(started.elapsed().as_secs_f64());
                self.metrics.count(class, "answered");
            }
            Err(error) => self.metrics.count(class, word_of(error)),
        }
        sent
    }

    async fn recall(
        &self,
        _: &str,
        _: &str,
        _: &AgentId,
        _: &BootId,
    ) -> Result<AccountResponse, RequestError> {
        Err(RequestError::Unknown("it cannot be recalled".to_owned()))
    }

    async fn apply_settings(&self, account_uid: &str) -> Option<ApplySettings> {
        let account = choice::usable(&*self.context.accounts.by_uid(account_uid)?).ok()?;
        self.choose(&account, &[]).map(|_| ApplySettings::default())
    }
}

impl Requests {
    async fn send_counted(
        &self,
        uid: &str,
        request: AccountRequest,
    ) -> Result<AccountResponse, RequestError> {
        let account = self.context.accounts.by_uid(uid).ok_or(RequestError::NoAccount)?;
        let account = choice::usable(&account)?;
        let path = RequestPath::read(request.target.as_bytes())
            .map_err(|error| invalid(error.to_string(), false))?;
        let is_long = path.is_watch || request.upgrade;
        let (prepared, upgraded) = prepare(request).await?;
        let counted = self.counts.add(uid, is_long, prepared.body.len()).map_err(RequestError::TooMany)?;
        let (stream, answer) = self.ask_agents(&account, &prepared).await?;
        response(&stream, answer, prepared.repetition, (upgraded, counted))
    }

    /// Asks an agent, and another one if certainly nothing was executed.
    async fn ask_agents(
        &self,
        account: &UsableAccount,
        request: &PreparedRequest,
    ) -> Result<(Arc<AgentStream>, Answer), RequestError> {
        let mut asked: Vec<Arc<AgentStream>> = Vec::new();
        let mut last_error = None;
        while asked.len() < MAX_ASKED {
            // Looked at again for each agent: it may have run out while one was asked.
            if self.context.replicas.lease_age() > MAX_LEASE_AGE {
                let message = "this replica has not renewed its Lease; another one answers".to_owned();
                return Err(RequestError::NotSent(Failure {
                    message,
                    before_send: true,
                    ..Failure::default()
                }));
            }
            let Some(stream) = self.choose(account, &asked) else { break };
            asked.push(Arc::clone(&stream));
            if let Some(on_asked) = &request.on_asked {
                on_asked(&AnsweringAgent {
                    agent_id: stream.session.agent.id.clone(),
                    boot_id: stream.session.agent.boot_id.clone(),
                });
            }
            let failure = match self.attempt(&stream, account, request).await {
                Ok(answer) => return Ok((stream, answer)),
                Err(failure) => failure,
            };
            match outcome::after(failure, request.repetition != Repetition::Any) {
                NextStep::AskAnother(error) => last_error = Some(error),
                NextStep::GiveUp(error) => return Err(error),
                NextStep::Recall if request.repetition == Repetition::Once => {
                    return Err(RequestError::Unknown("the connection to the agent was lost".to_owned()));
                }
                NextStep::Recall => match self.recall(&stream.session, request).await {
                    Ok(found) => return Ok(found),
                    Err(NextStep::AskAnother(error)) => last_error = Some(error),
                    Err(NextStep::GiveUp(error)) => return Err(error),
                    Err(NextStep::Recall) => {
                        return Err(RequestError::Unknown("the connection to the agent was lost".to_owned()));
                    }
                },
            }
            if Instant::now() >= request.deadline {
                break;
            }
        }
        Err(last_error.unwrap_or_else(|| self.no_agent(account)))
    }

    /// The agent to ask, apart from those that were.
    fn choose(&self, account: &UsableAccount, asked: &[Arc<AgentStream>]) -> Option<Arc<AgentStream>> {
        let sessions = self.sessions.registry.concerned_with(&account.uid);
        let streams = sessions.iter().filter_map(|session| {
            let stream = self.stream_of(session)?;
            let was_asked = asked.iter().any(|one| one.session.agent.id == session.agent.id);
            let running = stream.channel.len();
            if was_asked || !RequestCounts::has_room(running) {
                return None;
            }
            let rank = with_candidate(session, account, Some(running), |candidate| {
                account.may_ask(candidate).then(|| account.rank(candidate))
            })?;
            Some((rank, stream))
        });
        streams.min_by_key(|(rank, _)| *rank).map(|(_, stream)| stream)
    }

    /// Why no agent could be asked.
    fn no_agent(&self, account: &UsableAccount) -> RequestError {
        let sessions = self.sessions.registry.concerned_with(&account.uid);
        let holders = sessions
            .iter()
            .filter(|session| with_candidate(session, account, None, |candidate| account.may_ask(candidate)));
        let holders: Vec<_> = holders.collect();
        if let Some(old) = holders.first().filter(|_| holders.iter().all(|one| !one.agent.takes_requests)) {
            return RequestError::AgentTooOld {
                agent: old.agent.id.clone(),
                version: old.agent.version.clone(),
            };
        }
        if holders.iter().any(|session| self.stream_of(session).is_some()) {
            return RequestError::TooMany(
                "too many requests run at the account's agents; try again".to_owned(),
            );
        }
        let is_away = self.sessions.registry.in_zone(&account.zone, |zone| !zone.away.is_empty());
        RequestError::NoAgent {
            account: account.name.clone(),
            zone: account.zone.clone(),
            is_expected: !holders.is_empty() || is_away.unwrap_or_default(),
        }
    }

    /// Makes the request at one agent.
    async fn attempt(
        &self,
        stream: &Arc<AgentStream>,
        account: &UsableAccount,
        request: &PreparedRequest,
    ) -> Result<Answer, AttemptFailure> {
        let open = |credit| Opening::Open(Box::new(request.open(account, credit)));
        let exchange = stream.channel.open(open).ok_or_else(no_room)?;
        let exchanging = async {
            if !request.upgrade {
                // If it is refused, the agent says why.
                if request.body.is_empty() || exchange.send(request.body.clone()).await {
                    exchange.end();
                }
            }
            let head = head(&exchange).await?;
            if request.repetition == Repetition::Recalled {
                whole(&exchange, head).await
            } else {
                Ok(Err(head))
            }
        };
        let answered =
            timeout_at(request.deadline, exchanging).await.unwrap_or(Err(AttemptFailure::TimedOut));
        if request.repetition == Repetition::Recalled && is_settled(&answered) {
            stream.forget(&request.request_id);
        }
        answered.map(|answer| match answer {
            Ok((head, body)) => Answer::Whole(head, body),
            Err(head) => Answer::Streamed(head, exchange),
        })
    }

    /// Asks the process that had a write for its answer, wherever it connects by the deadline.
    async fn recall(
        &self,
        lost: &Session,
        request: &PreparedRequest,
    ) -> Result<(Arc<AgentStream>, Answer), NextStep> {
        let unknown = |why: &str| Err(NextStep::GiveUp(RequestError::Unknown(why.to_owned())));
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // From here on, no stream is missed.
            changed.as_mut().enable();
            let registered = self.sessions.registry.of_agent(&lost.agent.id);
            if registered.as_ref().is_some_and(|session| session.agent.boot_id != lost.agent.boot_id) {
                return unknown("the agent's process that had the request is gone");
            }
            let stream = registered.and_then(|session| self.stream_of(&session));
            let recall = Recall {
                request_id: request.request_id.clone(),
                boot_id: lost.agent.boot_id.as_str().to_owned(),
            };
            let exchange = stream.and_then(|stream| {
                let exchange = stream.channel.open(|_| Opening::Recall(recall))?;
                Some((stream, exchange))
            });
            let Some((stream, exchange)) = exchange else {
                match timeout_at(request.deadline, changed).await {
                    Ok(()) => continue,
                    Err(_) => {
                        return unknown(
                            "the connection to the agent was lost, and it has not come back in time",
                        );
                    }
                }
            };
            self.metrics.recalls.inc();
            exchange.end();
            let recalling = async { whole(&exchange, head(&exchange).await?).await };
            let answered =
                timeout_at(request.deadline, recalling).await.unwrap_or(Err(AttemptFailure::TimedOut));
            if is_settled(&answered) {
                stream.forget(&request.request_id);
            }
            match answered {
                Ok(Ok((head, body))) => return Ok((stream, Answer::Whole(head, body))),
                Ok(Err(_)) => return unknown("the agent's answer has no end"),
                // The recall is lost, not the write.
                Err(AttemptFailure::Broken(_)) => {}
                Err(failure) => return Err(outcome::after(failure, true)),
            }
        }
    }
}

impl PreparedRequest {
    fn open(&self, account: &UsableAccount, credit: u32) -> Open {
        let left = self.deadline.saturating_duration_since(Instant::now()).as_millis();
        Open {
            account: Some(AccountRef {
                uid: account.uid.clone(),
                name: account.name.clone(),
                epoch: account.epoch.to_wire(),
                generation: u64::try_from(account.generation).unwrap_or_default(),
            }),
            request_id: self.request_id.clone(),
            method: self.method.to_string(),
            target: self.target.clone().into_bytes(),
            headers: self.headers.clone(),
            upgrade: self.upgrade,
            write: self.repetition == Repetition::Recalled,
            repeatable: self.repeatable,
            head_within_ms: u32::try_from(left.max(1)).unwrap_or(u32::MAX),
            credit,
        }
    }
}

/// A request, and what its caller sends after 101.
type Prepared = (PreparedRequest, Option<ByteStream<std::io::Error>>);

/// Checks a request, and reads its body unless it follows an upgrade.
async fn prepare(request: AccountRequest) -> Result<Prepared, RequestError> {
    let headers =
        passed_on(wire_headers(&request.headers)).map_err(|error| invalid(error.to_string(), false))?;
    let deadline = Instant::now() + request.head_within;
    let (body, upgraded) = match request.body {
        RequestBytes::Whole(bytes) if bytes.len() > MAX_REQUEST_BODY_BYTES => return Err(too_large()),
        RequestBytes::Whole(bytes) => (bytes, None),
        RequestBytes::Stream(parts) if request.upgrade => (Bytes::new(), Some(parts)),
        RequestBytes::Stream(parts) => {
            let read = timeout_at(deadline, read_body(parts)).await;
            (read.unwrap_or_else(|_| Err(invalid("the body did not end in time".to_owned(), false)))?, None)
        }
    };
    let is_get = matches!(request.method, Method::GET | Method::HEAD | Method::OPTIONS);
    let repetition = match request.class {
        _ if request.upgrade => Repetition::Once,
        RequestClass::Read => Repetition::Any,
        RequestClass::Write => Repetition::Recalled,
        RequestClass::Connect if is_get => Repetition::Once,
        RequestClass::Connect => Repetition::Recalled,
    };
    let prepared = PreparedRequest {
        request_id: request.request_id,
        method: request.method,
        target: request.target,
        headers,
        body,
        repetition,
        repeatable: request.repeatable,
        upgrade: request.upgrade,
        deadline,
        on_asked: request.on_asked,
    };
    Ok((prepared, upgraded))
}

async fn read_body(mut parts: ByteStream<std::io::Error>) -> Result<Bytes, RequestError> {
    let mut body = BytesMut::new();
    while let Some(part) = parts.next().await {
        let part = part.map_err(|error| invalid(format!("the body cannot be read: {error}"), false))?;
        if body.len() + part.len() > MAX_REQUEST_BODY_BYTES {
            return Err(too_large());
        }
        body.extend_from_slice(&part);
    }
    Ok(body.freeze())
}

/// Whether a write has an outcome that will not be asked for again.
fn is_settled<T>(answered: &Result<T, AttemptFailure>) -> bool {
    matches!(answered, Ok(_) | Err(AttemptFailure::Stopped(_)))
}

/// Reads what decides whether an agent may be asked.
fn with_candidate<T>(
    session: &Session,
    account: &UsableAccount,
    running: Option<usize>,
    read: impl FnOnce(&Candidate<'_>) -> T,
) -> T {
    let ledger = session.ledger.lock();
    let report = ledger.entry(&account.uid).and_then(|entry| entry.report.as_ref());
    read(&Candidate {
        agent_id: &session.agent.id,
        zone: &session.agent.zone,
        is_in_force: session.is_approved() && !session.is_superseded() && session.closed_because().is_none(),
        report,
        running,
    })
}

fn no_room() -> AttemptFailure {
    AttemptFailure::Stopped(Failure {
        class: Class::Overloaded.into(),
        message: "the agent's stream has no room for the request".to_owned(),
        before_send: true,
        ..Failure::default()
    })
}

fn invalid(message: String, is_too_large: bool) -> RequestError {
    RequestError::Invalid { message, is_too_large }
}

fn too_large() -> RequestError {
    invalid(format!("the body has more than {MAX_REQUEST_BODY_BYTES} bytes"), true)
}

/// How a failure is counted.
fn word_of(error: &RequestError) -> &'static str {
    match error {
        RequestError::NoAccount | RequestError::NotUsable { .. } => "unusable",
        RequestError::NoAgent { .. } | RequestError::AgentTooOld { .. } => "no_agent",
        RequestError::TooMany(_) => "too_many",
        RequestError::Invalid { .. } => "invalid",
        RequestError::Forbidden(_) => "forbidden",
        RequestError::NotSent(_) => "not_sent",
        RequestError::Unknown(_) => "unknown",
        RequestError::NoAnswer { .. } | RequestError::Cut(_) => "no_answer",
    }
}
