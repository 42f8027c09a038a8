//! Clouddriver's account management (`/credentials`). No call is repeated here, and no redirect is followed.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt as _;
use reqwest::{Method, Response, StatusCode, Url};
use rustls::ClientConfig;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::tls::{OverTls, RenewedTls};
use kubesvc_clouddriver::registration::{AccountCall, CallFailure, FailureKind, folded_name};
use kubesvc_runtime::telemetry::errors::chain;
use kubesvc_runtime::tls::TlsFilesError;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for a call, from the first byte sent to the last one received.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum time between two bytes of an answer.
const READ_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum size of the list of accounts, in bytes: 10,000 accounts take about 3 MB.
const MAX_LIST_BYTES: usize = 64 << 20;
/// Maximum size of one account, in bytes.
const MAX_ACCOUNT_BYTES: usize = 4 << 20;
/// Maximum length of Clouddriver's words in a message, in characters.
const MAX_SAID_CHARS: usize = 300;
/// Header that says as whom Clouddriver is called.
const USER_HEADER: &str = "X-SPINNAKER-USER";

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// A file cannot be used.
    #[error("cannot use the certificate of kubesvc.clouddriver.tls")]
    Files(#[from] TlsFilesError),
    /// The file with authorities has none.
    #[error("{} has no certificate in PEM, which kubesvc.clouddriver.tls.caFile names", .0.display())]
    NoAuthority(PathBuf),
    /// The URL.
    #[error("kubesvc.clouddriver.baseUrl is no URL that can be called")]
    Url,
    /// The URL, or TLS.
    #[error("cannot prepare calls to kubesvc.clouddriver.baseUrl")]
    Client(#[source] reqwest::Error),
}

/// A row of Clouddriver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoredAccount {
    /// The definition of the account of exactly this name.
    Definition(Map<String, Value>),
    /// The account of a name that differs only in case or accents, which may be the same row. Its definition is not read.
    Namesake,
}

/// Clouddriver's account management, as far as registering accounts needs it.
#[async_trait]
pub trait ClouddriverAccounts: Send + Sync {
    /// Names of all accounts that Clouddriver has loaded.
    async fn loaded(&self) -> Result<HashSet<String>, CallFailure>;

    /// The stored row of this name; `None`: there is none, or it is not shown.
    async fn stored(&self, name: &str) -> Result<Option<StoredAccount>, CallFailure>;

    /// Makes a call that changes a definition.
    async fn change(
        &self,
        call: AccountCall,
        name: &str,
        definition: &Map<String, Value>,
    ) -> Result<(), CallFailure>;
}

/// A client of Clouddriver.
#[derive(Debug)]
pub struct ClouddriverClient {
    http: OverTls<reqwest::Client>,
    base: Url,
    user: String,
}

impl ClouddriverClient {
    /// A client of the Clouddriver at this URL.
    ///
    /// # Errors
    /// The URL cannot be used.
    pub fn new(base: Url, user: &str, tls: Arc<RenewedTls>) -> Result<Self, ClientError> {
        Ok(Self { http: OverTls::new(tls, http_client)?, base, user: user.to_owned() })
    }

    fn url(&self, segments: &[&str]) -> Url {
        let mut url = self.base.clone();
        // A base with http or https always has a path.
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().push("credentials").extend(segments);
        }
        url
    }

    async fn send(&self, method: Method, url: Url, body: Option<String>) -> Result<Response, CallFailure> {
        let mut request = self.http.client().request(method, url).header(USER_HEADER, &self.user);
        if let Some(body) = body {
            request = request.header(reqwest::header::CONTENT_TYPE, "application/json").body(body);
        }
        let answer = request.send().await.map_err(|error| self.unreachable(error))?;
        let status = answer.status();
        if status.is_success() {
            return Ok(answer);
        }
        let said = bytes(answer, MAX_ACCOUNT_BYTES).await.unwrap_or_default();
        Err(refused(status, &said))
    }

    fn unreachable(&self, error: reqwest::Error) -> CallFailure {
        let host = self.base.host_str().unwrap_or_default();
        // Without the URL, in which the account's name may be.
        let why = chain(&error.without_url());
        CallFailure {
            kind: FailureKind::Unreachable,
            message: format!("Clouddriver at {host} does not answer: {}", first_chars(&why)),
        }
    }
}

fn http_client(tls: &ClientConfig) -> Result<reqwest::Client, ClientError> {
    let http = reqwest::Client::builder()
        .user_agent(concat!("kubesvc-operator/", env!("CARGO_PKG_VERSION")))
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT_TIMEOUT)
        .timeout(CALL_TIMEOUT)
        .read_timeout(READ_TIMEOUT)
        .tls_backend_preconfigured(tls.clone());
    http.build().map_err(ClientError::Client)
}

#[async_trait]
impl ClouddriverAccounts for ClouddriverClient {
    async fn loaded(&self) -> Result<HashSet<String>, CallFailure> {
        #[derive(Deserialize)]
        struct LoadedName {
            name: String,
        }
        let answer = self.send(Method::GET, self.url(&[]), None).await?;
        let text = bytes(answer, MAX_LIST_BYTES).await?;
        let accounts: Vec<LoadedName> =
            serde_json::from_slice(&text).map_err(|_| not_clouddriver("list of accounts"))?;
        Ok(accounts.into_iter().map(|account| account.name).collect())
    }

    async fn stored(&self, name: &str) -> Result<Option<StoredAccount>, CallFailure> {
        #[derive(Deserialize)]
        struct NamedRow {
            name: Option<String>,
        }
        let mut url = self.url(&["type", "kubernetes"]);
        url.query_pairs_mut().append_pair("limit", "1").append_pair("startingAccountName", name);
        let answer = self.send(Method::GET, url, None).await?;
        let text = bytes(answer, MAX_ACCOUNT_BYTES).await?;
        let unfit = |_| not_clouddriver("definition");
        // The next name in order may come instead. It is not read, since it may have secrets.
        let rows: Vec<&RawValue> = serde_json::from_slice(&text).map_err(unfit)?;
        let Some(row) = rows.first() else { return Ok(None) };
        let named: NamedRow = serde_json::from_str(row.get()).map_err(unfit)?;
        match named.name {
            Some(other) if other == name => {
                let definition = serde_json::from_str(row.get()).map_err(unfit)?;
                Ok(Some(StoredAccount::Definition(definition)))
            }
            Some(other) if folded_name(&other) == folded_name(name) => Ok(Some(StoredAccount::Namesake)),
            _ => Ok(None),
        }
    }

    async fn change(
        &self,
        call: AccountCall,
        name: &str,
        definition: &Map<String, Value>,
    ) -> Result<(), CallFailure> {
        let body = || serde_json::to_string(definition).ok();
        let answer = match call {
            AccountCall::Create => self.send(Method::POST, self.url(&[]), body()).await?,
            AccountCall::Replace => self.send(Method::PUT, self.url(&[]), body()).await?,
            AccountCall::Delete => self.send(Method::DELETE, self.url(&[name]), None).await?,
        };
        bytes(answer, MAX_ACCOUNT_BYTES).await.map(drop)
    }
}

/// Why Clouddriver answered with this status. Of an answer that has not the error shape of a Spring service, only the
/// status is said.
fn refused(status: StatusCode, body: &[u8]) -> CallFailure {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct SpringError {
        exception: String,
        message: String,
    }
    let error: SpringError = serde_json::from_slice(body).unwrap_or_default();
    let said = first_chars(&error.message);
    let with_words = |what: &str| if said.is_empty() { what.to_owned() } else { format!("{what}: {said}") };
    let (kind, message) = match status {
        StatusCode::BAD_REQUEST if error.exception.ends_with("ConfigurationException") => {
            (FailureKind::StorageOff, with_words("Clouddriver stores no accounts (account.storage.enabled)"))
        }
        StatusCode::BAD_REQUEST => (FailureKind::Rejected, with_words("Clouddriver rejects the account")),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => (
            FailureKind::Forbidden,
            with_words("Clouddriver forbids it: kubesvc.clouddriver.push.user must be an admin in Fiat"),
        ),
        status => {
            (FailureKind::Unreachable, with_words(&format!("Clouddriver answered {}", status.as_u16())))
        }
    };
    CallFailure { kind, message }
}

fn not_clouddriver(what: &str) -> CallFailure {
    CallFailure {
        kind: FailureKind::Unreachable,
        message: format!("what answers at kubesvc.clouddriver.baseUrl sent no {what}: is it Clouddriver?"),
    }
}

/// The body of an answer, if it is not larger than `most` bytes.
async fn bytes(answer: Response, most: usize) -> Result<Vec<u8>, CallFailure> {
    let failed = |message: String| CallFailure { kind: FailureKind::Unreachable, message };
    let mut body = Vec::new();
    let mut pieces = answer.bytes_stream();
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|error| {
            failed(format!("Clouddriver's answer was cut: {}", chain(&error.without_url())))
        })?;
        if body.len() + piece.len() > most {
            return Err(failed(format!("Clouddriver's answer is larger than {most} bytes")));
        }
        body.extend_from_slice(&piece);
    }
    Ok(body)
}

fn first_chars(text: &str) -> String {
    text.chars().filter(|one| !one.is_control()).take(MAX_SAID_CHARS).collect()
}
