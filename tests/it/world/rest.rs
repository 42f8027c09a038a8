//! Calls of the REST API, each over its own connection.

use std::fmt;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Request};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use super::{Agent, MAX_WAIT, World};
use kubesvc_testkit::{must, wait::eventually};

/// Time limit for an answer.
const LIMIT: Duration = Duration::from_secs(30);

/// A request.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

/// An answer.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    /// The status code.
    pub(crate) status: u16,
    /// The headers.
    pub(crate) headers: HeaderMap,
    /// The body.
    pub(crate) text: String,
    /// The body as JSON; null if it is not JSON.
    pub(crate) json: Value,
}

impl Call {
    /// A request without a body.
    pub(crate) fn new(method: &str, path: &str) -> Self {
        Self { method: method.to_owned(), path: path.to_owned(), headers: Vec::new(), body: Vec::new() }
    }

    /// A `GET` request.
    pub(crate) fn get(path: &str) -> Self {
        Self::new("GET", path)
    }

    /// Adds a header.
    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets the body, without a media type.
    pub(crate) fn bytes(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    /// Sets a JSON body.
    pub(crate) fn json(self, body: &Value) -> Self {
        self.header("content-type", "application/json").bytes(body.to_string())
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.status, self.text)
    }
}

impl World {
    /// Calls the operator's REST API.
    pub(crate) async fn call(&self, call: Call) -> Answer {
        must(send(self.operator.rest_port(), call).await)
    }

    /// Sends a `GET` request.
    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.call(Call::get(path)).await
    }

    /// Sends a request with a JSON body.
    pub(crate) async fn rest(&self, method: &str, path: &str, body: &Value) -> Answer {
        self.call(Call::new(method, path).json(body)).await
    }

    /// Waits until the operator has examined the rows to adopt and has skipped `left` of them.
    pub(crate) async fn until_adopted(&self, left: usize) {
        eventually(&format!("rows adopted but for {left}"), MAX_WAIT, async || {
            let metrics = self.try_get("/metrics").await?.text;
            let value =
                |name: &str| metrics.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
            let looks = value("kubesvc_controller_adoption_looks_total");
            let unreadable = value("kubesvc_controller_unreadable_rows");
            if looks > Some(0) && unreadable == Some(left) {
                return Ok(());
            }
            Err(format!("{looks:?} looks, {unreadable:?} left alone"))
        })
        .await;
    }

    /// Like [`World::rest`], for an operator that may restart meanwhile.
    ///
    /// # Errors
    ///
    /// There is no answer.
    pub(crate) async fn try_rest(&self, method: &str, path: &str, body: &Value) -> Result<Answer, String> {
        send(self.operator.rest_port(), Call::new(method, path).json(body)).await
    }

    /// Sends a `GET` request to an operator that may restart meanwhile.
    ///
    /// # Errors
    ///
    /// There is no answer.
    pub(crate) async fn try_get(&self, path: &str) -> Result<Answer, String> {
        send(self.operator.rest_port(), Call::get(path)).await
    }

    /// Returns the health of an agent's process.
    ///
    /// # Errors
    ///
    /// There is no answer.
    pub(crate) async fn ask_agent(&self, agent: &Agent) -> Result<Value, String> {
        self.ask_agent_for(agent, "/health").await
    }

    /// Like [`World::ask_agent`], for another path.
    ///
    /// # Errors
    ///
    /// There is no answer.
    pub(crate) async fn ask_agent_for(&self, agent: &Agent, path: &str) -> Result<Value, String> {
        Ok(send(agent.health_port(), Call::get(path)).await?.json)
    }

    /// Returns the state of an account as `GET /armory/accounts/{name}` shows it; `None` if there is no such account.
    pub(crate) async fn shown(&self, name: &str) -> Option<String> {
        must(self.try_shown(name).await)
    }

    /// Like [`World::shown`], but returns errors.
    ///
    /// # Errors
    ///
    /// There is no answer, or one that is neither `200` nor `404`.
    pub(crate) async fn try_shown(&self, name: &str) -> Result<Option<String>, String> {
        let answer = self.try_get(&format!("/armory/accounts/{name}")).await?;
        match answer.status {
            200 => Ok(Some(answer.json["status"].as_str().unwrap_or_default().to_owned())),
            404 => Ok(None),
            _ => Err(format!("account {name}: {answer}")),
        }
    }

    /// Waits until REST shows this state.
    pub(crate) async fn until_shown(&self, name: &str, state: &str) {
        eventually(&format!("account {name} shown as {state}"), MAX_WAIT, async || {
            match self.try_shown(name).await? {
                Some(shown) if shown == state => Ok(()),
                shown => Err(format!("{shown:?}")),
            }
        })
        .await;
    }
}

/// Sends a `GET` request to a port of this machine.
///
/// # Errors
///
/// There is no answer.
pub(crate) async fn get_from(port: u16, path: &str) -> Result<Answer, String> {
    send(port, Call::get(path)).await
}

/// Sends one request over its own connection.
///
/// # Errors
///
/// There is no answer.
pub(crate) async fn send(port: u16, call: Call) -> Result<Answer, String> {
    let what = format!("{} {}", call.method, call.path);
    tokio::time::timeout(LIMIT, exchange(port, call))
        .await
        .map_err(|_| format!("{what}: no answer"))?
        .map_err(|e| format!("{what}: {e}"))
}

async fn exchange(port: u16, call: Call) -> Result<Answer, Box<dyn std::error::Error + Send + Sync>> {
    let stream = TcpStream::connect(("127.0.0.1", port)).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let mut request = Request::builder()
        .method(Method::from_bytes(call.method.as_bytes())?)
        .uri(&call.path)
        .header("host", format!("127.0.0.1:{port}"))
        .body(Full::new(Bytes::from(call.body)))?;
    for (name, value) in call.headers {
        request.headers_mut().insert(HeaderName::try_from(name)?, HeaderValue::try_from(value)?);
    }
    let answer = sender.send_request(request).await?;
    let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
    let body = answer.into_body().collect().await?.to_bytes();
    drop(sender);
    connection.abort();
    let text = String::from_utf8_lossy(&body).into_owned();
    let json = serde_json::from_str(&text).unwrap_or(Value::Null);
    Ok(Answer { status, headers, text, json })
}
