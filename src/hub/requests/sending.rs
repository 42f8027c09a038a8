//! One request: the agent that is asked, another one where that is safe, and the answer.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

use super::answers::{Answer, BodyReading, head, response, whole};
use super::choice::{self, AgentCandidate, UsableAccount};
use super::counts::RequestCounts;
use super::outcome::{self, AttemptFailure, NextStep};
use super::{AgentStream, Requests};
use crate::connected_agents::{
    AccountGrant, AccountResponse, AfterFailure, AnsweringAgent, MAX_ASKED_AGENTS, PreparedRequest,
    RecallFailure, Repetition, ReplicaRequests, RequestError, SendFailure, UpgradedBytes,
};
use crate::hub::account_objects::is_still_granted;
use crate::hub::sessions::session::Session;
use kubesvc_core::lifecycle::Fact;
use kubesvc_core::requests::headers::passed_on;
use kubesvc_core::requests::target::RequestPath;
use kubesvc_core::requests::wire::Opening;
use kubesvc_core::wire::common::failure::Class;
use kubesvc_core::wire::common::{AccountRef, Failure};
use kubesvc_core::wire::ops::{ApplySettings, Header, Open};
use kubesvc_core::{AgentId, KubesvcAccount, State, ZoneId};
use kubesvc_runtime::request_channel::wire_headers;
use kubesvc_runtime::telemetry::outages::warn_unless_away;

/// Time for which a write is awaited after its account was taken from the zone.
const TAKEN_WRITE_TIME: Duration = Duration::from_secs(5);

#[async_trait]
impl ReplicaRequests for Requests {
    fn grant(&self, account_uid: &str) -> Result<AccountGrant, RequestError> {
        let account = self.context.accounts.by_uid(account_uid).ok_or(RequestError::NoAccount)?;
        let usable = choice::usable(&account)?;
        let holders = account.status_or_default().agents.clone();
        Ok(AccountGrant { name: usable.name, zone: usable.zone, epoch: usable.epoch, holders })
    }

    fn can_ask(&self, account_uid: &str, asked: &[AgentId]) -> Result<(), RequestError> {
        let account = self.usable(account_uid)?;
        match self.choose(&account, asked) {
            Some(_) => Ok(()),
            None if !self.unconfirmed(&account, asked).is_empty() => Ok(()),
            None => Err(self.no_agent(&account)),
        }
    }

    fn processes_of_zone(&self, zone: &ZoneId) -> Vec<AnsweringAgent> {
        let streams = self.streams.lock();
        streams.values().filter(|stream| stream.session.agent.zone == *zone).map(|one| one.agent()).collect()
    }

    fn has_process(&self, agent: &AnsweringAgent) -> bool {
        self.stream_of_process(agent).is_some() || self.is_gone(agent)
    }

    async fn send_here(
        &self,
        account_uid: &str,
        request: &PreparedRequest,
        upgraded: &mut Option<UpgradedBytes>,
        asked: &[AgentId],
    ) -> Result<AccountResponse, SendFailure> {
        let (class, started) = (request.class, Instant::now());
        let sent = self.send_counted(account_uid, request, upgraded, asked).await;
        match &sent {
            Ok(_) => {
                self.metrics.head_seconds.observe(started.elapsed().as_secs_f64());
                self.metrics.count(class, "answered");
            }
            // Another replica may have an agent.
            Err(failure) if failure.asked.is_empty() && failure.next == AfterFailure::AskAnother => {}
            Err(failure) => self.metrics.count(class, word_of(failure)),
        }
        sent
    }

    async fn recall_here(
        &self,
        request_id: &str,
        agent: &AnsweringAgent,
        deadline: Instant,
        keep_answer: bool,
    ) -> Result<AccountResponse, RecallFailure> {
        self.recall(request_id, agent, deadline, keep_answer).await
    }

    fn forget_here(&self, agent: &AnsweringAgent, request_id: &str) -> bool {
        let stream = self.stream_of_process(agent);
        stream.as_ref().inspect(|stream| stream.forget(request_id)).is_some()
    }

    fn apply_settings_here(&self, account_uid: &str) -> Option<ApplySettings> {
        let account = self.usable(account_uid).ok()?;
        self.choose(&account, &[]).map(|stream| stream.apply.clone())
    }

    fn streams(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }
}

/// Whether a connected agent of the account's zone has not said yet whether it holds the account: after a restart it takes
/// one account after the other.
fn owes_an_answer(session: &Session, account: &UsableAccount) -> bool {
    let is_in_force = session.is_approved() && !session.is_superseded() && session.closed_because().is_none();
    let ledger = session.ledger.lock();
    let report = ledger.entry(&account.uid).and_then(|entry| entry.report.as_ref());
    is_in_force && session.agent.takes_requests && report.is_none_or(|(epoch, _)| *epoch < account.epoch)
}

/// A request with what every Open of it has.
struct OpenTemplate<'r> {
    request: &'r PreparedRequest,
    headers: Vec<Header>,
    repetition: Repetition,
    /// Cancelled when the account is taken from its zone.
    taken: CancellationToken,
}

impl Requests {
    fn usable(&self, uid: &str) -> Result<UsableAccount, RequestError> {
        let account = self.context.accounts.by_uid(uid).ok_or(RequestError::NoAccount)?;
        choice::takes_requests(&account)
    }

    async fn send_counted(
        &self,
        uid: &str,
        request: &PreparedRequest,
        upgraded: &mut Option<UpgradedBytes>,
        asked: &[AgentId],
    ) -> Result<AccountResponse, SendFailure> {
        let account = self.usable(uid).map_err(given_up)?;
        let path = RequestPath::read(request.target.as_bytes()).map_err(|error| given_up(invalid(&error)))?;
        let headers = passed_on(wire_headers(&request.headers)).map_err(|error| given_up(invalid(&error)))?;
        let is_long = request.upgrade || path.is_long(request.method.as_str());
        let counted = self.counts.add((uid, &account.zone), is_long, request.body.len());
        let counted = counted.map_err(given_up)?;
        let repetition = request.repetition();
        let checked = OpenTemplate { request, headers, repetition, taken: counted.taken.clone() };
        let mut tried = asked.to_vec();
        let answered = self.ask_agents(&account, &checked, &mut tried).await;
        let of_here = tried.split_off(asked.len());
        match answered {
            Ok((stream, answer)) => {
                let reading = BodyReading {
                    upgraded: upgraded.take(),
                    counted: Some(counted),
                    ends_with: path
                        .watches_objects(request.method.as_str())
                        .then(|| self.context.stopping.clone()),
                };
                response(&stream, answer, checked.repetition, reading).map_err(|error| SendFailure {
                    error,
                    next: AfterFailure::GiveUp,
                    asked: of_here,
                })
            }
            Err((error, next)) => Err(SendFailure { error, next, asked: of_here }),
        }
    }

    /// Asks an agent, and another one if certainly nothing was executed. Adds those that were asked to `asked`.
    async fn ask_agents(
        &self,
        account: &UsableAccount,
        request: &OpenTemplate<'_>,
        asked: &mut Vec<AgentId>,
    ) -> Result<(Arc<AgentStream>, Answer), (RequestError, AfterFailure)> {
        let mut last_error = None;
        while asked.len() < MAX_ASKED_AGENTS {
            // Looked at again for each agent: its Lease may have run out while one was asked.
            if !self.is_current() {
                let message =
                    "this replica has not renewed its Lease in time; another one answers".to_owned();
                let failure = Failure { message, before_send: true, ..Failure::default() };
                return Err((RequestError::NotSent(failure), AfterFailure::AskAnother));
            }
            let stream = match self.choose(account, asked) {
                Some(stream) => stream,
                None if self.confirm_claims(account, asked).await => continue,
                None => break,
            };
            asked.push(stream.session.agent.id.clone());
            request.request.asked(&stream.asked_agent());
            let failure = match self.attempt(&stream, account, request).await {
                Ok(answer) => return Ok((stream, answer)),
                Err(failure) => failure,
            };
            let lost = || RequestError::Unknown("the connection to the agent was lost".to_owned());
            match outcome::after(failure, request.repetition != Repetition::Any) {
                // It stops: another one, or none that is there now, says why there is no answer.
                NextStep::AskAnother(RequestError::NotSent(_)) if stream.session.is_draining() => {}
                NextStep::AskAnother(error) => last_error = Some(error),
                NextStep::GiveUp(error) => return Err((error, AfterFailure::GiveUp)),
                NextStep::Recall if request.repetition == Repetition::Once => {
                    return Err((lost(), AfterFailure::GiveUp));
                }
                NextStep::Recall => return Err((lost(), AfterFailure::Recall(stream.agent()))),
            }
            if Instant::now() >= request.request.deadline {
                break;
            }
        }
        Err((last_error.unwrap_or_else(|| self.no_agent(account)), AfterFailure::AskAnother))
    }

    /// The agent to ask, apart from those that were.
    fn choose(&self, account: &UsableAccount, asked: &[AgentId]) -> Option<Arc<AgentStream>> {
        let sessions = self.sessions.registry.concerned_with(&account.uid);
        let streams = sessions.iter().filter_map(|session| {
            let stream = self.stream_of(session)?;
            let was_asked = asked.contains(&session.agent.id);
            let running = stream.channel.len();
            if was_asked || !RequestCounts::has_room(running) {
                return None;
            }
            let rank = self.with_candidate(session, account, Some(running), |candidate| {
                account.may_ask(candidate).then(|| account.rank(candidate))
            })?;
            Some((rank, stream))
        });
        streams.min_by_key(|(rank, _)| *rank).map(|(_, stream)| stream)
    }

    /// Sessions that could be asked once the API server confirms that their zone still has the account.
    fn unconfirmed(&self, account: &UsableAccount, asked: &[AgentId]) -> Vec<Arc<Session>> {
        let mut sessions = self.sessions.registry.concerned_with(&account.uid);
        sessions.retain(|session| {
            let is_free = !asked.contains(&session.agent.id) && self.stream_of(session).is_some();
            is_free
                && self.with_candidate(session, account, None, |candidate| {
                    let confirmed = AgentCandidate { is_unconfirmed: false, ..candidate.clone() };
                    candidate.is_unconfirmed && account.may_ask(&confirmed)
                })
        });
        sessions
    }

    /// Confirms what hellos claim, if any does. Returns whether there is an agent to ask more than before.
    async fn confirm_claims(&self, account: &UsableAccount, asked: &[AgentId]) -> bool {
        let sessions = self.unconfirmed(account, asked);
        let Some(seen) = self.context.accounts.by_uid(&account.uid).filter(|_| !sessions.is_empty()) else {
            return false;
        };
        match is_still_granted(&*self.account_objects, &seen).await {
            Ok(true) => sessions.iter().for_each(|session| session.ledger.lock().confirm(&account.uid)),
            Ok(false) => return false,
            Err(problem) => {
                warn_unless_away!(account = account.name, error = %problem, "cannot read the account before a request is sent to an agent that came back");
                return false;
            }
        }
        true
    }

    /// Reads what decides whether an agent may be asked.
    fn with_candidate<T>(
        &self,
        session: &Session,
        account: &UsableAccount,
        running: Option<usize>,
        read: impl FnOnce(&AgentCandidate<'_>) -> T,
    ) -> T {
        let ledger = session.ledger.lock();
        let entry = ledger.entry(&account.uid);
        let held = entry.and_then(|entry| entry.held.as_ref());
        let is_unconfirmed = self.context.settings.sessions.clustered
            && held.is_some_and(|held| held.is_claim)
            && !entry.is_some_and(|entry| entry.confirmed)
            && !session.connected_before(account.version);
        read(&AgentCandidate {
            agent_id: &session.agent.id,
            zone: &session.agent.zone,
            is_in_force: session.is_approved()
                && !session.is_superseded()
                && session.closed_because().is_none(),
            is_draining: session.is_draining(),
            held,
            is_unconfirmed,
            running,
        })
    }

    /// Why no agent could be asked.
    fn no_agent(&self, account: &UsableAccount) -> RequestError {
        let sessions = self.sessions.registry.concerned_with(&account.uid);
        let holders = sessions.iter().filter(|session| {
            self.with_candidate(session, account, None, |candidate| account.is_held_by(candidate))
        });
        let (draining, holders): (Vec<_>, Vec<_>) = holders.partition(|session| session.is_draining());
        if let Some(old) = holders.first().filter(|_| holders.iter().all(|one| !one.agent.takes_requests)) {
            return RequestError::AgentTooOld {
                agent: old.agent.id.clone(),
                version: old.agent.version.clone(),
            };
        }
        let may_be_asked =
            |session: &Arc<Session>| self.with_candidate(session, account, None, |one| account.may_ask(one));
        if holders.iter().any(|session| may_be_asked(session) && self.stream_of(session).is_some()) {
            return RequestError::TooMany(
                "too many requests run at the account's agents; try again".to_owned(),
            );
        }
        let of_zone = self.sessions.registry.in_zone(&account.zone, |zone| {
            (!zone.away.is_empty(), zone.connected.values().cloned().collect::<Vec<_>>())
        });
        let (is_away, connected) = of_zone.unwrap_or_default();
        let now = self.context.accounts.by_uid(&account.uid);
        // A FAILED account is given to nobody, and one of an agent's own file to that agent alone.
        let is_given = now.as_ref().is_some_and(|account| {
            matches!(account.status_or_default().state(), State::Active | State::Activating)
        });
        let may_be_given = |session: &Session| {
            let lists = |account: &KubesvcAccount| {
                !account.is_static() || session.lists(account) != Fact::Known(false)
            };
            now.as_ref().is_some_and(|account| lists(account))
        };
        let owes = |session: &Session| may_be_given(session) && owes_an_answer(session, account);
        let is_coming = is_away || is_given && connected.iter().any(|session| owes(session));
        RequestError::NoAgent {
            account: account.name.clone(),
            zone: account.zone.clone(),
            is_expected: !holders.is_empty() || !draining.is_empty() || is_coming,
        }
    }

    /// Makes the request at one agent.
    async fn attempt(
        &self,
        stream: &Arc<AgentStream>,
        account: &UsableAccount,
        request: &OpenTemplate<'_>,
    ) -> Result<Answer, AttemptFailure> {
        // A replica that stops keeps the stream until its writes are answered.
        let _write = (request.repetition == Repetition::Recalled).then(|| stream.session.write_began());
        let open = |credit| Opening::Open(Box::new(request.open(account, credit)));
        let exchange = if request.request.upgrade {
            stream.channel.open(open)
        } else {
            stream.channel.open_whole(open, request.request.body.clone())
        };
        let exchange = exchange.ok_or_else(no_room)?;
        let exchanging = async {
            let head = head(&exchange).await?;
            if request.repetition == Repetition::Recalled {
                whole(&exchange, head).await
            } else {
                Ok(Err(head))
            }
        };
        let answered = tokio::select! {
            answered = timeout_at(request.request.deadline, exchanging) => {
                answered.unwrap_or(Err(AttemptFailure::TimedOut))
            }
            () = request.cut() => Err(AttemptFailure::Taken),
        };
        let has_answer = request.repetition == Repetition::Recalled && is_settled(&answered);
        if has_answer && !request.request.keep_answer {
            stream.forget(&request.request.request_id);
        }
        answered.map(|answer| match answer {
            Ok((head, body)) => Answer::Whole(head, body),
            Err(head) => Answer::Streamed(head, exchange),
        })
    }
}

impl OpenTemplate<'_> {
    /// Waits until the request is cut because its account is taken from the zone. A write is awaited for a while.
    async fn cut(&self) {
        self.taken.cancelled().await;
        if self.repetition == Repetition::Recalled {
            sleep(TAKEN_WRITE_TIME).await;
        }
    }

    fn open(&self, account: &UsableAccount, credit: u32) -> Open {
        let request = self.request;
        let left = request.deadline.saturating_duration_since(Instant::now()).as_millis();
        Open {
            account: Some(AccountRef {
                uid: account.uid.clone(),
                name: account.name.clone(),
                epoch: account.epoch.to_wire(),
                generation: u64::try_from(account.generation).unwrap_or_default(),
            }),
            request_id: request.request_id.clone(),
            method: request.method.to_string(),
            target: request.target.clone().into_bytes(),
            headers: self.headers.clone(),
            upgrade: request.upgrade,
            write: self.repetition == Repetition::Recalled,
            repeatable: request.repeatable,
            head_within_ms: u32::try_from(left.max(1)).unwrap_or(u32::MAX),
            credit,
        }
    }
}

/// Whether a write has an outcome that will not be asked for again.
pub(super) fn is_settled<T>(answered: &Result<T, AttemptFailure>) -> bool {
    matches!(answered, Ok(_) | Err(AttemptFailure::Stopped(_)))
}

fn given_up(error: RequestError) -> SendFailure {
    SendFailure { error, next: AfterFailure::GiveUp, asked: Vec::new() }
}

fn no_room() -> AttemptFailure {
    AttemptFailure::Stopped(Failure {
        class: Class::Overloaded.into(),
        message: "the agent's stream has no room for the request".to_owned(),
        before_send: true,
        ..Failure::default()
    })
}

fn invalid(error: &dyn std::error::Error) -> RequestError {
    RequestError::Invalid { message: error.to_string(), is_too_large: false }
}

/// How a failure is counted.
fn word_of(failure: &SendFailure) -> &'static str {
    if matches!(failure.next, AfterFailure::Recall(_)) {
        return "recalled";
    }
    match &failure.error {
        RequestError::NoAccount | RequestError::NotUsable { .. } => "unusable",
        RequestError::NoAgent { .. } | RequestError::AgentTooOld { .. } => "no_agent",
        RequestError::TooMany(_) => "too_many",
        RequestError::Invalid { .. } => "invalid",
        RequestError::Forbidden(_) => "forbidden",
        RequestError::NotSent(_) | RequestError::ReplicaAway(_) => "not_sent",
        RequestError::Unknown(_) => "unknown",
        RequestError::NoAnswer { .. } | RequestError::Cut(_) => "no_answer",
    }
}
