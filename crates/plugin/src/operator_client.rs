//! Calls of the operator's REST API, for the commands that show cached objects: at a URL, or through the caller's own
//! API server, which passes them on to the operator's Service.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use kube::client::Body;
use kube::{Client, Config};
use serde_json::Value;

use crate::api_session::ApiSession;
use crate::arguments::{CommandError, ScopeArguments};
use kubesvc_runtime::telemetry::errors::chain;

/// Name of the operator's Service, and of its port.
pub(super) const SERVICE: &str = "kubesvc-operator";
const PORT: &str = "http";
/// Time limit for the head of an answer, and for its body.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit for establishing a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of an answer, in bytes.
const MAX_ANSWER_BYTES: usize = 64 * 1024 * 1024;
/// Maximum length of a message of the operator that is shown, in characters.
const MAX_MESSAGE_CHARS: usize = 1000;

/// Flags that say where the operator is.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Operator")]
pub(super) struct OperatorArguments {
    /// URL of the operator's REST API, such as `http://localhost:7002`. Default: the API of accounts, as you; without it, the
    /// Service kubesvc-operator, through the API server.
    #[arg(long, global = true, value_name = "URL", env = "KUBESVC_OPERATOR_URL")]
    operator_url: Option<String>,
    /// File with a token for that URL, for the audience kubesvc, where REST wants its callers known.
    #[arg(long, global = true, value_name = "FILE", env = "KUBESVC_OPERATOR_TOKEN_FILE")]
    operator_token_file: Option<PathBuf>,
    /// Namespace of the Service kubesvc-operator. Default: --namespace, then the namespace of the context.
    #[arg(long, global = true, value_name = "NS", env = "KUBESVC_OPERATOR_NAMESPACE")]
    operator_namespace: Option<String>,
}

impl OperatorArguments {
    /// Whether the caller says where the operator is.
    pub(super) fn are_given(&self) -> bool {
        self.operator_url.as_ref().is_some_and(|url| !url.is_empty()) || self.operator_namespace.is_some()
    }

    /// The namespace that is given.
    pub(super) fn namespace(&self) -> Option<&str> {
        self.operator_namespace.as_deref()
    }
}

/// A way to the operator.
pub(super) struct OperatorClient {
    client: Client,
    /// Where it is, for errors.
    at: OperatorAddress,
}

enum OperatorAddress {
    /// Its URL, and the path that it begins with.
    Url { url: String, path: String },
    /// The API server, and the namespaces in which the Service is looked for, in this order.
    Service { server: String, namespaces: Vec<String> },
}

/// An error answer, of the operator or of the API server.
struct ErrorAnswer {
    status: StatusCode,
    message: String,
    /// Whether the operator itself answered.
    is_operator: bool,
}

impl OperatorClient {
    /// Opens a way to the operator. Sends no request.
    pub(super) async fn open(
        scope: &ScopeArguments,
        arguments: &OperatorArguments,
    ) -> Result<Self, CommandError> {
        // Fails only if a provider is already installed, which is fine.
        let _ = rustls::crypto::ring::default_provider().install_default();
        if let Some(url) = arguments.operator_url.as_ref().filter(|url| !url.is_empty()) {
            return Self::at_url(url, arguments.operator_token_file.as_deref());
        }
        let session = ApiSession::open(scope).await?;
        let namespaces = match &arguments.operator_namespace {
            Some(namespace) => vec![namespace.clone()],
            None => {
                let unscoped = ScopeArguments { namespace: None, ..scope.clone() };
                let of_context = ApiSession::open(&unscoped).await?.namespace;
                let mut namespaces = vec![session.namespace.clone(), of_context];
                namespaces.dedup();
                namespaces
            }
        };
        Ok(Self {
            client: session.client,
            at: OperatorAddress::Service { server: session.server, namespaces },
        })
    }

    fn at_url(url: &str, token_file: Option<&Path>) -> Result<Self, CommandError> {
        let wrong = |why: &dyn std::fmt::Display| {
            CommandError::Usage(format!("--operator-url {url:?}: {why}; write it as http://HOST:PORT"))
        };
        let parsed: http::Uri = url.parse().map_err(|error: http::uri::InvalidUri| wrong(&error))?;
        if !matches!(parsed.scheme_str(), Some("http" | "https")) || parsed.host().is_none() {
            return Err(wrong(&"it is no URL"));
        }
        if token_file.is_some() && parsed.scheme_str() == Some("http") && !is_loopback(&parsed) {
            return Err(CommandError::Usage(format!(
                "--operator-url {url:?}: a token is sent over https, or to localhost"
            )));
        }
        let path = parsed.path().trim_end_matches('/').to_owned();
        // The path is added to each call, as for a Service.
        let mut parts = parsed.into_parts();
        parts.path_and_query = Some(http::uri::PathAndQuery::from_static("/"));
        let root = http::Uri::from_parts(parts).map_err(|error| wrong(&error))?;
        let mut config = Config::new(root);
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        config.auth_info.token_file = token_file.map(|file| file.display().to_string());
        let client = Client::try_from(config).map_err(|error| wrong(&chain(&error)))?;
        Ok(Self { client, at: OperatorAddress::Url { url: url.to_owned(), path } })
    }

    /// Calls the operator and reads the whole answer.
    pub(super) async fn json(&self, path: &str) -> Result<Value, CommandError> {
        let answer = self.call(path).await?;
        let body = Limited::new(answer.into_body(), MAX_ANSWER_BYTES).collect();
        let body = tokio::time::timeout(ANSWER_TIMEOUT, body).await.map_err(|_| self.silent())?;
        let body = body.map_err(|error| format!("{}: the answer ended early: {error}", self.shown()))?;
        serde_json::from_slice(&body.to_bytes()).map_err(|error| {
            let at = self.shown();
            CommandError::Failed(format!(
                "{at} answered with something that is no JSON: {error}; is it the operator's port http?"
            ))
        })
    }

    async fn call(&self, path: &str) -> Result<Response<Body>, CommandError> {
        let prefixes = match &self.at {
            OperatorAddress::Url { path, .. } => vec![path.clone()],
            OperatorAddress::Service { namespaces, .. } => namespaces
                .iter()
                .map(|namespace| format!("/api/v1/namespaces/{namespace}/services/{SERVICE}:{PORT}/proxy"))
                .collect(),
        };
        let mut refusals = Vec::new();
        for prefix in prefixes {
            let request = Request::get(format!("{prefix}{path}")).body(Body::empty());
            let request = request.map_err(|error| format!("{path}: {error}"))?;
            let answer = tokio::time::timeout(ANSWER_TIMEOUT, self.client.send(request)).await;
            let answer = answer.map_err(|_| self.silent())?;
            let answer = answer.map_err(|error| self.unreachable(&error))?;
            if answer.status().is_success() {
                return Ok(answer);
            }
            let refusal = refusal(answer).await;
            let is_elsewhere = !refusal.is_operator && matches!(refusal.status.as_u16(), 403 | 404);
            refusals.push(refusal);
            if !is_elsewhere {
                break;
            }
        }
        // What the operator says counts most, then what the API server says of the first namespace.
        let own = refusals.iter().position(|refusal| refusal.is_operator).unwrap_or_default();
        Err(match refusals.into_iter().nth(own) {
            Some(refusal) => self.explain(&refusal),
            None => self.silent(),
        })
    }

    fn shown(&self) -> String {
        match &self.at {
            OperatorAddress::Url { url, .. } => url.clone(),
            OperatorAddress::Service { server, namespaces } => {
                let first = namespaces.first().map(String::as_str).unwrap_or_default();
                format!("Service {SERVICE} in namespace {first} (through {server})")
            }
        }
    }

    fn silent(&self) -> CommandError {
        let seconds = ANSWER_TIMEOUT.as_secs();
        CommandError::Failed(format!(
            "{} does not answer within {seconds} s; is the operator running? kubectl get pods -A -l \
             app.kubernetes.io/name=kubesvc-operator",
            self.shown()
        ))
    }

    fn unreachable(&self, error: &kube::Error) -> CommandError {
        let next = match &self.at {
            OperatorAddress::Url { .. } => "check --operator-url or KUBESVC_OPERATOR_URL",
            OperatorAddress::Service { .. } => "is the cluster up, and the right --context chosen?",
        };
        CommandError::Failed(format!("{} cannot be reached: {}; {next}", self.shown(), chain(error)))
    }

    fn explain(&self, refusal: &ErrorAnswer) -> CommandError {
        let ErrorAnswer { status, message, is_operator } = refusal;
        let at = self.shown();
        CommandError::Failed(match (status.as_u16(), is_operator) {
            (404, true) if message.contains("no call has this path") => {
                format!("the operator at {at} is older than this command; use the plugin of its version")
            }
            (401, true) => format!(
                "the operator wants its callers known: use the API of accounts (docs/api.md), or give --operator-url with \
                 --operator-token-file, a token for the audience kubesvc ({message})"
            ),
            (_, true) => format!("the operator says: {message} ({status})"),
            (401, false) => format!("{at} does not accept your credential (401); log in again"),
            (403, false) => format!(
                "you may not reach the operator through the API server; ask for a Role with verb get on \
                 services/proxy, resourceNames {SERVICE}:{PORT}, in the operator's namespace (config/people has \
                 it), or give --operator-url ({message})"
            ),
            (404, false) => format!(
                "there is no {at}; give the operator's namespace with --operator-namespace, or its address with \
                 --operator-url ({message})"
            ),
            (502..=504, false) => format!(
                "{at} does not reach the operator: {message} ({status}); is it running? kubectl get pods -A -l \
                 app.kubernetes.io/name=kubesvc-operator"
            ),
            _ => format!("{at}: {message} ({status})"),
        })
    }
}

/// Whether nobody else can listen on the way to a URL.
fn is_loopback(url: &http::Uri) -> bool {
    let host = url.host().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

async fn refusal(answer: Response<Body>) -> ErrorAnswer {
    let status = answer.status();
    let body = Limited::new(answer.into_body(), MAX_ANSWER_BYTES).collect();
    let body = tokio::time::timeout(ANSWER_TIMEOUT, body).await.ok().and_then(Result::ok);
    let body = body.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    read_refusal(status, &body)
}

/// Reads an error: the operator's have a path, those of the API server are a Status.
fn read_refusal(status: StatusCode, body: &[u8]) -> ErrorAnswer {
    let json: Value = serde_json::from_slice(body).unwrap_or_default();
    let is_operator = json["path"].is_string() && json["timestamp"].is_i64();
    let text = String::from_utf8_lossy(body);
    let message = json["message"].as_str().unwrap_or_else(|| text.trim());
    let message = if message.is_empty() { "no message" } else { message };
    ErrorAnswer { status, message: message.chars().take(MAX_MESSAGE_CHARS).collect(), is_operator }
}

/// A text as one segment of a path, or a value of a query.
pub(super) fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    // A segment of dots alone would be another path.
    if text.bytes().all(|byte| byte == b'.') { out.replace('.', "%2E") } else { out }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(at: OperatorAddress) -> OperatorClient {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let config = Config::new("http://127.0.0.1:1".parse().expect("a URL"));
        OperatorClient { client: Client::try_from(config).expect("a client"), at }
    }

    fn said(at: OperatorAddress, status: u16, body: &str) -> String {
        let status = StatusCode::from_u16(status).expect("a status");
        match client(at).explain(&read_refusal(status, body.as_bytes())) {
            CommandError::Failed(said) => said,
            other => unreachable!("{other:?}"),
        }
    }

    fn service() -> OperatorAddress {
        OperatorAddress::Service { server: "https://c".into(), namespaces: vec!["spin".into()] }
    }

    #[tokio::test]
    async fn an_error_says_the_next_step() {
        let status = |code: u16| format!(r#"{{"kind":"Status","code":{code},"message":"m"}}"#);
        for (code, part) in [
            (403, "verb get on services/proxy, resourceNames kubesvc-operator:http"),
            (404, "--operator-namespace"),
            (503, "is it running?"),
            (401, "log in again"),
        ] {
            let said = said(service(), code, &status(code));
            assert!(said.contains(part), "{said}");
        }
        let own = r#"{"timestamp":1,"status":503,"error":"e","message":"the database cannot be used now; try again","path":"/x"}"#;
        let own = said(service(), 503, own);
        assert!(own.contains("the operator says: the database cannot be used now"), "{own}");
    }

    #[test]
    fn names_are_encoded_for_a_path() {
        assert_eq!(encoded("Good one/ü"), "Good%20one%2F%C3%BC");
        assert_eq!(encoded(".."), "%2E%2E");
        assert_eq!(encoded("prod-1.eu"), "prod-1.eu");
    }

    #[tokio::test]
    async fn a_url_must_be_one() {
        for url in ["localhost:7002", "ftp://x", "", " "] {
            assert!(matches!(OperatorClient::at_url(url, None), Err(CommandError::Usage(_))), "{url:?}");
        }
        assert!(OperatorClient::at_url("http://localhost:7002", None).is_ok());
        assert!(OperatorClient::at_url("https://kubesvc.example.com/operator/", None).is_ok());
    }

    #[tokio::test]
    async fn a_token_is_sent_over_https_or_to_this_machine() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let file = std::env::temp_dir().join(format!("kubesvc-token-{}", std::process::id()));
        std::fs::write(&file, "t").expect("a file");
        for url in [
            "http://kubesvc:7002",
            "http://10.0.0.1:7002",
            "http://localhost.example",
            "http://[fd00::1]:7002",
        ] {
            let refused = OperatorClient::at_url(url, Some(&file)).err();
            let said = format!("{refused:?}");
            assert!(said.contains("Usage") && said.contains("over https, or to localhost"), "{url}: {said}");
            assert!(OperatorClient::at_url(url, None).is_ok(), "{url}");
        }
        for url in
            ["https://kubesvc:7002", "http://localhost:7002", "http://127.0.0.1:7002", "http://[::1]:7002"]
        {
            assert!(OperatorClient::at_url(url, Some(&file)).is_ok(), "{url}");
        }
        std::fs::remove_file(&file).expect("it is there");
    }
}
