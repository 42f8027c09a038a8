//! Runs a program: sends its requests, gives it their answers, and runs it again where that is safe.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use http::header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method};
use jiff::Timestamp;
use prost::bytes::{Bytes, BytesMut};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout_at};
use tracing::debug;

use super::Operations;
use super::audit_lines::AskedWrite;
use super::checks::{is_decisive, turn};
use super::failures::{AnswerMeaning, RunFailure, Runs, after_begun_run, ask_again, of_answer, overloaded};
use super::job::SharedJob;
use super::submission::of_record;
use crate::connected_agents::{AccountRequest, AccountResponse, AskedAgent, RequestError, RequestErrorKind};
use kubesvc_core::operations::{
    ApiAnswer, ApiRequest, ApplySettings, Kinds, MAX_RESULT_BYTES, NotStarted, Outcome, OutcomeClass,
    Program, ProgramContext, Step, program_for,
};
use kubesvc_core::wire::operations::operation::Verb;
use kubesvc_runtime::crash_points;
use kubesvc_store::{OperationChange, StoreError};

/// Maximum number of lists of kinds that are read before a program begins.
const MAX_KIND_READS: usize = 8;
/// Time that the way to a cluster has to say that a request's time is over.
const SEND_MARGIN: Duration = Duration::from_secs(2);

/// Delay before it is recorded which agent has a write: most are answered earlier.
const AGENT_ROW_DELAY: Duration = Duration::from_millis(100);

/// How a run ended.
enum RunEnd {
    Outcome(Outcome),
    Failure(RunFailure),
    /// The operation was settled meanwhile, with its audit line and for those who wait.
    Settled,
}

/// How an operation ended, and whether certainly no write of it was executed; `None`: it was settled meanwhile.
type OperationEnd = Option<(Outcome, bool)>;

impl Operations {
    /// Runs an operation to its end.
    pub(super) async fn run(self: Arc<Self>, job: SharedJob) {
        if let Some((outcome, before_send)) = self.in_turn(&job).await {
            self.ended(&job, outcome, before_send).await;
        }
    }

    /// Waits for the object's turn, and runs.
    async fn in_turn(&self, job: &SharedJob) -> OperationEnd {
        let turn = match turn(&job.operation) {
            None => None,
            Some(object) => {
                let turn = self.turns.of((job.account_uid.clone(), object)).acquire_owned();
                let Ok(turn) = timeout_at(job.deadline, turn).await else {
                    let message = "other operations on the object took all of its time; nothing was done";
                    return Some((Outcome::failed(504, OutcomeClass::Timeout, message), true));
                };
                Some(turn)
            }
        };
        let ended = self.runs(job).await;
        drop(turn);
        ended
    }

    async fn runs(&self, job: &SharedJob) -> OperationEnd {
        let (mut runs, mut going_on) = (Runs::new(self.settings.max_retries), None);
        loop {
            let was_begun = job.progress.lock().is_begun;
            let failure = match self.one_run(job, &mut going_on).await {
                RunEnd::Outcome(outcome) if was_begun => {
                    return Some((after_begun_run(job.operation.verb(), outcome), false));
                }
                RunEnd::Outcome(outcome) => return Some((outcome, false)),
                RunEnd::Failure(failure) => failure,
                RunEnd::Settled => return None,
            };
            let is_begun = job.progress.lock().is_begun;
            match runs.again(&failure, job.may_run_again || !is_begun, job.left()) {
                Some(delay) => {
                    debug!(operationId = job.id, ?delay, "an operation runs again");
                    self.metrics.reruns.inc();
                    sleep(delay).await;
                }
                None => return Some(failure.into_outcome(is_begun)),
            }
        }
    }

    /// Runs the program once. `going_on`: the program of the run before and when it began, if this run goes on with it.
    async fn one_run(&self, job: &SharedJob, going_on: &mut Option<(Box<dyn Program>, Instant)>) -> RunEnd {
        let (mut program, begun) = match going_on.take() {
            Some(before) => before,
            None => match self.program(job).await {
                Ok(program) => (program, Instant::now()),
                Err(end) => return end,
            },
        };
        let mut answer = None;
        loop {
            let elapsed = begun.elapsed();
            let bytes = answer.as_ref().map_or(0, |answer: &ApiAnswer| answer.body.len());
            let bytes = bytes.max(job.operation.document_bytes());
            let (moved, step) = self
                .documents
                .run(&job.principal.name, bytes, move || {
                    let step = program.next(elapsed, answer.as_ref());
                    (program, step)
                })
                .await;
            (program, answer) = (moved, None);
            match step {
                Step::Done(outcome) => return RunEnd::Outcome(outcome),
                Step::Wait(time) if time < job.left() => {
                    sleep(time).await;
                }
                Step::Wait(_) => {
                    return program.out_of_time().map_or_else(|| out_of_time(job), RunEnd::Outcome);
                }
                Step::Request(request) => match self.ask(job, request).await {
                    Ok(answered) => answer = Some(answered),
                    Err(end) => {
                        if let RunEnd::Failure(failure) = &end
                            && failure.is_overloaded()
                            && let Some(outcome) = program.out_of_time()
                        {
                            return RunEnd::Outcome(outcome);
                        }
                        let is_failure = matches!(end, RunEnd::Failure(_));
                        if is_failure && job.progress.lock().is_begun && program.goes_on() {
                            *going_on = Some((program, begun));
                        }
                        return end;
                    }
                },
            }
        }
    }

    /// The program, after the kinds were read that it needs.
    async fn program(&self, job: &SharedJob) -> Result<Box<dyn Program>, RunEnd> {
        let apply = self.requests.apply_settings(&job.account_uid).await.unwrap_or_default();
        let kinds = self.kinds.of(&job.account_uid);
        let began = self.clock();
        for _ in 0..MAX_KIND_READS {
            let read = {
                let kinds = kinds.lock();
                match self.program_of(job, &kinds, began, &apply) {
                    Ok(program) => return Ok(program),
                    Err(NotStarted::Read(read)) => read,
                    Err(NotStarted::Invalid(error)) => {
                        let outcome = Outcome::failed(400, OutcomeClass::Invalid, error.to_string());
                        return Err(RunEnd::Outcome(outcome));
                    }
                    Err(NotStarted::Failed(outcome)) => return Err(RunEnd::Outcome(outcome)),
                }
            };
            let path = read.target.clone();
            let answer = self.ask(job, read).await?;
            kinds.lock().learn(&path, &answer, self.clock()).map_err(RunEnd::Outcome)?;
        }
        let message = "the API server's lists of kinds lead nowhere";
        Err(RunEnd::Outcome(Outcome::failed(502, OutcomeClass::Internal, message)))
    }

    fn program_of(
        &self,
        job: &SharedJob,
        kinds: &Kinds,
        began: Duration,
        apply: &ApplySettings,
    ) -> Result<Box<dyn Program>, NotStarted> {
        let time_of_day = job.time_of_day.get_or_init(|| format!("{:.0}", Timestamp::now()));
        let context = ProgramContext {
            kinds,
            now: self.clock(),
            began,
            time_of_day,
            operation_id: &job.id,
            dry_run: job.dry_run,
            apply,
        };
        program_for(&job.operation, &context)
    }

    /// Makes a request until it has an answer that its program is given, or until that is of no use.
    async fn ask(&self, job: &SharedJob, request: ApiRequest) -> Result<ApiAnswer, RunEnd> {
        let is_write = !request.method.reads();
        let was_begun = job.progress.lock().is_begun;
        let mut tries = 0;
        loop {
            let answered = self.ask_once(job, request.clone()).await?;
            tries += 1;
            if answered.as_ref().is_ok_and(|answer| answer.status == 429) {
                // Certainly nothing was executed.
                job.failed(is_write, true);
            }
            let error = match answered {
                Ok(answer) => match of_answer(&answer, &request, (tries, job.left())) {
                    AnswerMeaning::Answer => return Ok(answer),
                    AnswerMeaning::Later(delay) => {
                        sleep(delay).await;
                        continue;
                    }
                    AnswerMeaning::Overloaded if was_begun => {
                        return Err(RunEnd::Failure(RunFailure::overloaded(&answer)));
                    }
                    AnswerMeaning::Overloaded => return Err(RunEnd::Outcome(overloaded(&answer))),
                    AnswerMeaning::Unknown => {
                        return Err(RunEnd::Failure(RunFailure::of_late_write(&answer)));
                    }
                },
                Err(error) => error,
            };
            let is_begun = job.failed(is_write, error.is_before_send());
            match ask_again(&error, is_write, is_begun, (tries, job.left())) {
                Some(delay) => sleep(delay).await,
                None => {
                    let mut failure = RunFailure::of_request(&error, is_write, is_begun);
                    // All that an operation does which only reads is what was sent.
                    failure.before_send &= !job.operation.kind().reads || error.is_before_send();
                    return Err(RunEnd::Failure(failure));
                }
            }
        }
    }

    /// Sends a request, and waits for the whole answer.
    async fn ask_once(
        &self,
        job: &SharedJob,
        request: ApiRequest,
    ) -> Result<Result<ApiAnswer, RequestError>, RunEnd> {
        let is_write = !request.method.reads();
        if job.left().is_zero() {
            return Err(RunEnd::Failure(RunFailure::out_of_time(false, job.progress.lock().is_begun)));
        }
        let decides =
            is_decisive(&job.operation, !job.may_run_again, request.method.as_str(), request.content_type);
        let is_asked = Arc::new(Notify::new());
        let request = account_request(job, request, Arc::clone(&is_asked));
        let mut request = request.map_err(|error| {
            let is_begun = job.progress.lock().is_begun;
            RunEnd::Failure(RunFailure::of_request(&error, is_write, is_begun))
        })?;
        if is_write {
            request.request_id = self.record_write(job, decides).await?;
        }
        let write = is_write.then(|| AskedWrite::of(&request));
        let sending = self.requests.send(&job.account_uid, request);
        let sent = tokio::select! {
            sent = timeout_at(job.deadline + SEND_MARGIN, sending) => sent,
            never = self.record_agent(job, &is_asked), if is_write => match never {},
        };
        let answered = match sent {
            Ok(Ok(response)) => self.whole(job, response, is_write).await,
            Ok(Err(error)) => Err(error),
            Err(_) => Err(no_end(is_write)),
        };
        if let Some(write) = write {
            let ended = answered.as_ref().map(|(answer, bytes)| (answer.status, *bytes));
            self.write_ended(job, &write, ended);
        }
        Ok(answered.map(|(answer, _)| answer))
    }

    /// Records that a write is about to be sent. Returns its id. The error: it must not be sent.
    async fn record_write(&self, job: &SharedJob, decides: bool) -> Result<String, RunEnd> {
        if !self.known.get(&job.id).is_some_and(|known| known.is_running()) {
            return Err(RunEnd::Settled);
        }
        let (request_id, row) = job.begin_write(decides);
        let Some(row) = row else { return Ok(request_id) };
        let row = OperationChange::Sent(Box::new(row));
        let committing = crash_points::around(Some("operation-write"), self.rows.commit(row));
        match timeout_at(job.deadline, committing).await {
            Ok(Ok(None)) => Ok(request_id),
            Ok(Ok(Some(end))) => {
                self.known.end(&job.id, of_record(&end), self.clock());
                Err(RunEnd::Settled)
            }
            Ok(Err(_)) | Err(_) => {
                Err(RunEnd::Failure(RunFailure::not_recorded(job.progress.lock().is_begun)))
            }
        }
    }

    /// Records which agent has a write that takes longer. Without that, the one who settles it asks all agents of the zone.
    async fn record_agent(&self, job: &SharedJob, is_asked: &Notify) -> Infallible {
        loop {
            is_asked.notified().await;
            sleep(AGENT_ROW_DELAY).await;
            // A row that is not there any more stays so.
            while let Err(error) = self.rows.commit(OperationChange::Sent(Box::new(job.open_row()))).await
                && !matches!(error, StoreError::Refused { .. })
            {
                sleep(AGENT_ROW_DELAY).await;
            }
        }
    }

    /// Reads the answer to its end. Returns it, and how many bytes came.
    async fn whole(
        &self,
        job: &SharedJob,
        response: AccountResponse,
        is_write: bool,
    ) -> Result<(ApiAnswer, u64), RequestError> {
        let AccountResponse { status, headers, mut body, agent } = response;
        let status = status.as_u16();
        job.warned(&headers);
        let retry_after = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let is_log = matches!(job.operation.verb(), Verb::Logs(_));
        // A log is asked for with one byte more than its result may have, to tell whether it is cut.
        let most = MAX_RESULT_BYTES + usize::from(is_log);
        let (mut read, mut bytes) = (BytesMut::new(), 0);
        loop {
            let late = || {
                let message = "the cluster's answer did not come to its end in time";
                RequestError::new(RequestErrorKind::Timeout, message)
            };
            let part = timeout_at(job.deadline, body.next()).await.unwrap_or_else(|_| Some(Err(late())));
            match part {
                None => break,
                // Its program sees that it is longer than it may be, and says that it is cut.
                Some(Ok(part)) if is_log && read.len() + part.len() > most => {
                    bytes += part.len() as u64;
                    read.extend_from_slice(&part[..most - read.len()]);
                    break;
                }
                Some(Ok(part)) if read.len() + part.len() > most && !is_write => {
                    job.answered(&agent, is_write, now_ms());
                    let message = format!("the answer has more than {MAX_RESULT_BYTES} bytes");
                    let body = serde_json::json!({ "message": message }).to_string().into_bytes();
                    return Ok((ApiAnswer { status: 413, body, ..ApiAnswer::default() }, bytes));
                }
                Some(Ok(part)) if read.len() + part.len() <= most => {
                    bytes += part.len() as u64;
                    read.extend_from_slice(&part);
                }
                // What was written stands, whatever became of the answer's body.
                Some(_) if is_write => {
                    read = BytesMut::from(&b"{}"[..]);
                    break;
                }
                // Reads that are too large have ended above.
                Some(Ok(_)) => break,
                Some(Err(error)) => return Err(error),
            }
        }
        job.answered(&agent, is_write, now_ms());
        let retry_after = retry_after.map(Duration::from_secs);
        Ok((ApiAnswer { status, body: read.freeze().to_vec(), retry_after }, bytes))
    }
}

/// A request to an account.
fn account_request(
    job: &SharedJob,
    request: ApiRequest,
    is_asked: Arc<Notify>,
) -> Result<AccountRequest, RequestError> {
    let is_write = !request.method.reads();
    let method = Method::from_bytes(request.method.as_str().as_bytes()).unwrap_or_default();
    let mut headers = HeaderMap::new();
    headers.insert(ACCEPT, HeaderValue::from_static(request.accept));
    let product = concat!("kubesvc-operator/", env!("CARGO_PKG_VERSION"));
    headers.insert(USER_AGENT, HeaderValue::from_static(product));
    if let Some(media) = request.content_type {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(media));
    }
    let told = Arc::clone(job);
    let on_asked = move |agent: &AskedAgent| {
        told.asked(agent, is_write, now_ms());
        is_asked.notify_one();
    };
    Ok(AccountRequest {
        request_id: job.digest.request_id(),
        headers,
        body: Bytes::from(request.body),
        repeatable: !is_write || job.may_run_again,
        caller: job.request_caller(),
        on_asked: Some(Arc::new(on_asked)),
        ..AccountRequest::new(method, request.target)?.within(job.left())
    })
}

/// The way to the cluster says nothing, although the time for its answer is over.
fn no_end(is_write: bool) -> RequestError {
    let message = "the cluster did not answer in time";
    if is_write {
        RequestError::unknown(message)
    } else {
        RequestError::new(RequestErrorKind::Timeout, message)
    }
}

fn out_of_time(job: &SharedJob) -> RunEnd {
    let progress = job.progress.lock();
    RunEnd::Failure(RunFailure::out_of_time(progress.write_in_flight, progress.is_begun))
}

/// The time of day in epoch milliseconds.
pub(super) fn now_ms() -> i64 {
    Timestamp::now().as_millisecond()
}
