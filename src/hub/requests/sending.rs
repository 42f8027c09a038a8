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
use super::outcome;
use super::{AgentStream, Requests};
use crate::connected_agents::{
    AccountGrant, AccountRequest, AccountResponse, AnsweringAgent, MAX_ASKED_AGENTS, Repetition,
    ReplicaRequests, RequestError, RequestErrorKind as Kind, Retry,
};
use crate::hub::account_objects::is_still_granted;
use crate::hub::sessions::session::Session;
use kubesvc_core::lifecycle::Fact;
use kubesvc_core::requests::headers::passed_on;
use kubesvc_core::requests::wire::Opening;
use kubesvc_core::wire::common::AccountRef;
use kubesvc_core::wire::ops::{ApplySettings, Header, Open};
use kubesvc_core::{AgentId, KubesvcAccount, State, ZoneId};
use kubesvc_runtime::request_channel::wire_headers;
use kubesvc_runtime::telemetry::outages::warn_unless_away;

/// Time for which a write is awaited after its account was taken from the zone.
const TAKEN_WRITE_TIME: Duration = Duration::from_secs(5);

#[async_trait]
impl ReplicaRequests for Requests {
    fn grant(&self, account_uid: &str) -> Result<AccountGrant, RequestError> {
        let account = self.context.accounts.by_uid(account_uid).ok_or_else(RequestError::no_account)?;
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
        request: &AccountRequest,
        asked: &mut Vec<AgentId>,
    ) -> Result<AccountResponse, RequestError> {
        let (class, started, asked_before) = (request.class, Instant::now(), asked.len());
        let sent = self.send_counted(account_uid, request, asked).await;
        match &sent {
            Ok(_) => {
                self.metrics.head_seconds.observe(started.elapsed().as_secs_f64());
                self.metrics.count(class, "answered");
            }
            // Another replica may have an agent.
            Err(error) if asked.len() == asked_before && error.goes_elsewhere() => {}
            Err(error) => self.metrics.count(class, word_of(error)),
        }
        sent
    }

    async fn recall_here(
        &self,
        request_id: &str,
        agent: &AnsweringAgent,
        deadline: Instant,
        keep_answer: bool,
    ) -> Result<AccountResponse, RequestError> {
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
    request: &'r AccountRequest,
    headers: Vec<Header>,
    repetition: Repetition,
    /// Cancelled when the account is taken from its zone.
    taken: CancellationToken,
}

impl Requests {
    fn usable(&self, uid: &str) -> Result<UsableAccount, RequestError> {
        let account = self.context.accounts.by_uid(uid).ok_or_else(RequestError::no_account)?;
        choice::takes_requests(&account)
    }

    async fn send_counted(
        &self,
        uid: &str,
        request: &AccountRequest,
        asked: &mut Vec<AgentId>,
    ) -> Result<AccountResponse, RequestError> {
        let account = self.usable(uid)?;
        let headers = passed_on(wire_headers(&request.headers))
            .map_err(|error| RequestError::new(Kind::Invalid, error.to_string()))?;
        let counted = self.counts.add((uid, &account.zone), request.is_long(), request.body.len())?;
        let repetition = request.repetition();
        let template = OpenTemplate { request, headers, repetition, taken: counted.taken.clone() };
        let (stream, answer) = self.ask_agents(&account, &template, asked).await?;
        let watches = request.path.watches_objects(request.method.as_str());
        let reading = BodyReading {
            upgraded: request.upgraded.lock().take(),
            counted: Some(counted),
            ends_with: watches.then(|| self.context.stopping.clone()),
        };
        response(&stream, answer, repetition, reading)
    }

    /// Asks an agent, and another one if certainly nothing was executed. Adds those that were asked to `asked`.
    async fn ask_agents(
        &self,
        account: &UsableAccount,
        request: &OpenTemplate<'_>,
        asked: &mut Vec<AgentId>,
    ) -> Result<(Arc<AgentStream>, Answer), RequestError> {
        let mut last_error = None;
        while asked.len() < MAX_ASKED_AGENTS {
            // Looked at again for each agent: its Lease may have run out while one was asked.
            if !self.is_current() {
                let message = "this replica has not renewed its Lease in time; another one answers";
                return Err(RequestError::new(Kind::NotSent, message).then(Retry::Elsewhere));
            }
            let stream = match self.choose(account, asked) {
                Some(stream) => stream,
                None if self.confirm_claims(account, asked).await => continue,
                None => break,
            };
            asked.push(stream.session.agent.id.clone());
            request.request.asked(&stream.asked_agent());
            match self.attempt(&stream, account, request).await {
                Ok(answer) => return Ok((stream, answer)),
                // It stops: another one, or none that is there now, says why there is no answer.
                Err(error) if error.kind == Kind::NotSent && stream.session.is_draining() => {}
                Err(error) if error.goes_elsewhere() => last_error = Some(error),
                Err(error) => return Err(error),
            }
            if Instant::now() >= request.request.deadline {
                break;
            }
        }
        Err(last_error.unwrap_or_else(|| self.no_agent(account)))
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
            return RequestError::too_old(&old.agent.id, &old.agent.version);
        }
        let may_be_asked =
            |session: &Arc<Session>| self.with_candidate(session, account, None, |one| account.may_ask(one));
        if holders.iter().any(|session| may_be_asked(session) && self.stream_of(session).is_some()) {
            let message = "too many requests run at the account's agents; try again";
            return RequestError::new(Kind::TooMany, message).then(Retry::Elsewhere);
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
        let is_expected = !holders.is_empty() || !draining.is_empty() || is_coming;
        RequestError::no_agent(&account.name, &account.zone, is_expected)
    }

    /// Makes the request at one agent.
    async fn attempt(
        &self,
        stream: &Arc<AgentStream>,
        account: &UsableAccount,
        request: &OpenTemplate<'_>,
    ) -> Result<Answer, RequestError> {
        let repetition = request.repetition;
        // A replica that stops keeps the stream until its writes are answered.
        let _write = (repetition == Repetition::Recalled).then(|| stream.session.write_began());
        let open = |credit| Opening::Open(Box::new(request.open(account, credit)));
        let exchange = if request.request.upgrade {
            stream.channel.open(open)
        } else {
            stream.channel.open_whole(open, request.request.body.clone())
        };
        let exchange = exchange.ok_or_else(|| {
            RequestError::new(Kind::NotSent, "the agent's stream has no room for the request")
                .then(Retry::Elsewhere)
        })?;
        let broken = |why: &'static str| outcome::broken(why, repetition, stream.agent());
        if repetition == Repetition::Recalled {
            let answering = async {
                let head = head(&exchange, repetition, broken).await?;
                whole(&exchange, head, broken).await
            };
            let answered = request.in_time(answering).await?;
            if is_settled(&answered) && !request.request.keep_answer {
                stream.forget(&request.request.request_id);
            }
            return answered;
        }
        let head = request.in_time(head(&exchange, repetition, broken)).await??;
        Ok(Answer::Streamed(head, exchange))
    }
}

impl OpenTemplate<'_> {
    /// Waits until the deadline, or until the account is taken from the zone. A write is then awaited for a while.
    async fn in_time<T>(&self, awaited: impl Future<Output = T>) -> Result<T, RequestError> {
        let cut = async {
            self.taken.cancelled().await;
            if self.repetition == Repetition::Recalled {
                sleep(TAKEN_WRITE_TIME).await;
            }
        };
        tokio::select! {
            done = timeout_at(self.request.deadline, awaited) => {
                done.map_err(|_| outcome::timed_out(self.repetition))
            }
            () = cut => Err(outcome::taken(self.repetition)),
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
pub(super) fn is_settled<T>(answered: &Result<T, RequestError>) -> bool {
    answered.as_ref().err().is_none_or(|error| !error.is_recallable())
}

/// How a failure is counted.
fn word_of(error: &RequestError) -> &'static str {
    match error.kind {
        _ if error.is_recallable() => "recalled",
        Kind::NoAccount | Kind::NotUsable => "unusable",
        Kind::NoAgent | Kind::ReplicaAway | Kind::AgentTooOld => "no_agent",
        Kind::TooMany => "too_many",
        Kind::Invalid | Kind::TooLarge => "invalid",
        Kind::Forbidden => "forbidden",
        Kind::NotSent => "not_sent",
        Kind::Unknown => "unknown",
        Kind::NoAnswer | Kind::Timeout | Kind::Cut => "no_answer",
    }
}
