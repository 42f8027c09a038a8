//! `/agents/kubernetes/accounts/{name}/cache/changes`: what is committed of an account, a line of JSON each.
//!
//! Only the replica that has the session of the account's agent commits its objects. It reads its own
//! [`ChangeFeed`](crate::cache_changes::ChangeFeed); any other replica passes that one's lines on. When the objects are
//! streamed elsewhere, the caller is told, and the call goes on there.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use jiff::Timestamp;
use serde::Serialize;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep};
use utoipa::ToSchema;

use super::RestState;
use super::error::{ErrorBody, RestError};
use super::extract::PathName;
use crate::cache_changes::{ChangeReader, FeedItem, MAX_READERS};
use crate::peers::PeerLines;
use kubesvc_core::{AgentId, AgentKey, KubesvcAccount, ReplicaId};

/// Time without a line after which an empty one is sent, which shows that the call stands.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// Interval between two looks at who streams the account.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// What a line says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub(super) enum LineOperation {
    /// Changes that are committed from here on follow.
    Following,
    /// A row was inserted or replaced.
    #[expect(dead_code, reason = "the feed writes these lines; the description names them")]
    Upsert,
    /// A row was deleted.
    #[expect(dead_code, reason = "the feed writes these lines; the description names them")]
    Delete,
    /// Lines were lost here, because the caller reads too slowly: `lost` of them.
    Lost,
    /// Nobody streams the account's objects now, or its replica cannot be reached; the call goes on when that changes.
    Waiting,
    /// The objects are streamed by another agent or to another replica from here on. Changes that are committed until
    /// the next `FOLLOWING` are not shown.
    Moved,
    /// The account is gone. The last line.
    Gone,
}

/// A line of JSON: a change, or what became of the call.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ChangeLine {
    /// Time of the commit, or of the line.
    time: String,
    /// Name of the account.
    account: String,
    /// What happened.
    op: LineOperation,
    /// Of a row: its kind, as `kubesvc_cache.kind` has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<String>,
    /// Of a row: its namespace; empty if the object has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<String>,
    /// Of a row: its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// Of a row: the version of the object in its cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    resource_version: Option<String>,
    /// Of a row: the uid of the object in its cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    uid: Option<String>,
    /// Number of lines that were lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    lost: Option<u64>,
    /// The agent that streams the objects.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    agent_id: Option<AgentId>,
    /// The replica that commits them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    replica: Option<ReplicaId>,
    /// What is the matter.
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
}

impl ChangeLine {
    fn new(account: &str, op: LineOperation) -> Self {
        Self {
            time: Timestamp::now().to_string(),
            account: account.to_owned(),
            op,
            kind: None,
            namespace: None,
            name: None,
            resource_version: None,
            uid: None,
            lost: None,
            agent_id: None,
            replica: None,
            message: None,
        }
    }

    fn saying(self, message: impl Into<String>) -> Self {
        Self { message: Some(message.into()), ..self }
    }

    fn text(&self) -> String {
        serde_json::to_string(self).expect("text and numbers are JSON")
    }
}

/// Follow what is committed of an account's objects, a line of JSON each.
///
/// The call goes on until the caller ends it, the account is gone, or the replica stops. An empty line every 10 s shows
/// that it stands. It can be made at any replica.
#[utoipa::path(get, path = "/agents/kubernetes/accounts/{accountName}/cache/changes", operation_id = "followAccountCache", tag = "accounts",
    params(("accountName" = String, Path, description = "Name of the account, percent-encoded", min_length = 1, max_length = 255, pattern = r"^[^\x00-\x1f\x7f-\x9f]*$")),
    responses(
        (status = 200, description = "Lines of JSON, one object each", body = ChangeLine, content_type = "application/x-ndjson"),
        (status = 400, description = "The name is invalid", body = ErrorBody),
        (status = 404, description = "No such account", body = ErrorBody),
        (status = 503, description = "The Kubernetes API server is unavailable, or too many calls follow changes", body = ErrorBody),
    ))]
pub(super) async fn get(State(state): State<RestState>, name: PathName) -> Result<Response, RestError> {
    let name = name.account()?;
    let account = state.find(&name).await?.account.ok_or_else(|| RestError::no_account(&name))?;
    let place = place(&state)?;
    let follower = Follower {
        uid: account.uid().to_owned(),
        elected: caching_agent(&account),
        state,
        account: name,
        source: Source::Nowhere,
        waiting: VecDeque::new(),
        told: None,
        last_line: Instant::now(),
        is_over: false,
        _place: place,
    };
    let lines = stream::unfold(follower, |mut follower| async move {
        let line = follower.next().await?;
        Some((Ok::<_, Infallible>(format!("{line}\n")), follower))
    });
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    Ok((headers, Body::from_stream(lines)).into_response())
}

/// The lines of this replica about an account, for another replica that passes them on. They end when the agent leaves.
///
/// # Errors
/// 404 if the agent does not hold the account here, 503 if too many calls follow changes.
pub(super) fn here(
    state: &RestState,
    uid: &str,
    agent_id: &AgentId,
) -> Result<BoxStream<'static, String>, RestError> {
    if !state.has_here(uid, agent_id) {
        return Err(RestError::not_found("the agent does not hold the account at this replica"));
    }
    let place = place(state)?;
    let account = state.accounts.by_uid(uid).map(|account| account.account_name().to_owned());
    let passed = Passed {
        reader: state.changes.follow(uid),
        state: state.clone(),
        uid: uid.to_owned(),
        account: account.unwrap_or_default(),
        agent_id: agent_id.clone(),
        last_line: Instant::now(),
        _place: place,
    };
    let lines = stream::unfold(passed, |mut passed| async move {
        let line = passed.next().await?;
        Some((line, passed))
    });
    Ok(lines.boxed())
}

fn place(state: &RestState) -> Result<OwnedSemaphorePermit, RestError> {
    state.changes.place().ok_or_else(|| {
        RestError::unavailable(format!(
            "{MAX_READERS} calls follow changes at this replica already; end one of them"
        ))
    })
}

fn caching_agent(account: &KubesvcAccount) -> Option<AgentKey> {
    account.status.as_ref()?.caching_agent_key()
}

impl RestState {
    /// Whether an agent of this replica holds the account.
    fn has_here(&self, uid: &str, agent_id: &AgentId) -> bool {
        self.connected_agents.holders(uid).iter().any(|agent| agent.agent_id == *agent_id)
    }
}

/// Lines for another replica.
struct Passed {
    reader: ChangeReader,
    state: RestState,
    uid: String,
    account: String,
    agent_id: AgentId,
    last_line: Instant,
    _place: OwnedSemaphorePermit,
}

impl Passed {
    async fn next(&mut self) -> Option<String> {
        loop {
            let line = tokio::select! {
                biased;
                () = self.state.stopping.cancelled() => return None,
                item = self.reader.next() => line_of(&self.account, item),
                () = sleep(CHECK_INTERVAL) => {
                    if !self.state.has_here(&self.uid, &self.agent_id) {
                        return None;
                    }
                    if self.last_line.elapsed() < KEEP_ALIVE {
                        continue;
                    }
                    String::new()
                }
            };
            self.last_line = Instant::now();
            return Some(line);
        }
    }
}

fn line_of(account: &str, item: FeedItem) -> String {
    match item {
        FeedItem::Line(line) => line.as_ref().to_owned(),
        FeedItem::Lost(lost) => {
            let line = ChangeLine::new(account, LineOperation::Lost);
            ChangeLine { lost: Some(lost), ..line.saying("the caller reads too slowly") }.text()
        }
    }
}

/// Where the lines come from.
enum Source {
    Nowhere,
    Here(ChangeReader),
    There(Box<PeerLines>),
}

/// What a call waits for; the caller is told once.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Wait(String);

/// One call, for as long as it lasts.
struct Follower {
    state: RestState,
    account: String,
    uid: String,
    /// The agent that was elected when it was last looked.
    elected: Option<AgentKey>,
    source: Source,
    /// Lines to send before others.
    waiting: VecDeque<String>,
    told: Option<Wait>,
    last_line: Instant,
    is_over: bool,
    _place: OwnedSemaphorePermit,
}

impl Follower {
    async fn next(&mut self) -> Option<String> {
        loop {
            if let Some(line) = self.waiting.pop_front() {
                self.last_line = Instant::now();
                return Some(line);
            }
            if self.is_over {
                return None;
            }
            if matches!(self.source, Source::Nowhere) {
                let stopping = self.state.stopping.clone();
                stopping.run_until_cancelled(self.locate()).await?;
                if !self.waiting.is_empty() {
                    continue;
                }
            }
            let stopping = self.state.stopping.clone();
            tokio::select! {
                biased;
                () = stopping.cancelled() => return None,
                line = self.source.next(&self.account) => match line {
                    Ok(Some(line)) => {
                        self.last_line = Instant::now();
                        return Some(line);
                    }
                    Ok(None) => self.moved("the replica that commits the objects ended its lines"),
                    Err(problem) => self.moved(&problem),
                },
                () = sleep(CHECK_INTERVAL) => self.look(),
            }
        }
    }

    /// Looks at who streams the account, and whether the caller needs a sign of life.
    fn look(&mut self) {
        let account = self.state.accounts.by_uid(&self.uid);
        match account {
            Some(account) => self.check_agent(&account),
            None if self.state.accounts.is_synced() => {
                let line = ChangeLine::new(&self.account, LineOperation::Gone);
                self.waiting.push_back(line.saying("the account was deleted").text());
                self.is_over = true;
            }
            None => {}
        }
        if self.waiting.is_empty() && self.last_line.elapsed() >= KEEP_ALIVE {
            self.waiting.push_back(String::new());
        }
    }

    fn check_agent(&mut self, account: &KubesvcAccount) {
        let elected = caching_agent(account);
        let is_left = match &self.source {
            Source::Nowhere => false,
            Source::Here(_) => {
                !elected.as_ref().is_some_and(|agent| self.state.has_here(&self.uid, &agent.id))
            }
            Source::There(_) => false,
        };
        let is_other = self.elected != elected;
        self.elected = elected;
        if is_other && !matches!(self.source, Source::Nowhere) {
            self.moved("another agent was elected to stream the objects");
        } else if is_left {
            self.moved("the agent left this replica");
        }
    }

    /// Ends a source; the next one is looked for.
    fn moved(&mut self, why: &str) {
        self.source = Source::Nowhere;
        self.told = None;
        let line = ChangeLine::new(&self.account, LineOperation::Moved);
        let message = format!("{why}; changes that are committed until the call goes on are not shown");
        self.waiting.push_back(line.saying(message).text());
    }

    /// Finds the replica that has the agent's session.
    async fn locate(&mut self) {
        let Some(agent) = self.elected.clone() else {
            return self.waits_for("no agent is elected to stream the account's objects");
        };
        if self.state.has_here(&self.uid, &agent.id) {
            self.source = Source::Here(self.state.changes.follow(&self.uid));
            let replica = self.state.settings.replica_id.clone();
            return self.follows(agent.id, replica);
        }
        let peers = Arc::clone(&self.state.peers);
        match peers.changes(&self.uid, &agent).await {
            Ok((replica, lines)) => {
                self.source = Source::There(Box::new(lines));
                self.follows(agent.id, replica);
            }
            Err(problem) => self.waits_for(&format!("agent {}: {problem}", agent.id)),
        }
    }

    fn follows(&mut self, agent_id: AgentId, replica: ReplicaId) {
        self.told = None;
        let line = ChangeLine::new(&self.account, LineOperation::Following);
        let line = ChangeLine { agent_id: Some(agent_id), replica: Some(replica), ..line };
        self.waiting.push_back(line.text());
    }

    fn waits_for(&mut self, what: &str) {
        let wait = Wait(what.to_owned());
        if self.told.as_ref() != Some(&wait) {
            self.waiting
                .push_back(ChangeLine::new(&self.account, LineOperation::Waiting).saying(what).text());
            self.told = Some(wait);
        }
    }
}

impl Source {
    /// The next line; never, if there is no source. Cancel safe.
    async fn next(&mut self, account: &str) -> Result<Option<String>, String> {
        match self {
            Self::Nowhere => std::future::pending().await,
            Self::Here(reader) => Ok(Some(line_of(account, reader.next().await))),
            Self::There(lines) => lines.next().await.map_err(|problem| problem.to_string()),
        }
    }
}
