//! Passes calls on to Clouddriver: path, query, headers and body as they came, and the answer as it comes.
//!
//! A call is sent once. Whether one without an answer may have been carried out is said by [`NotAnswered`].

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::request::Parts;
use axum::http::uri::{Authority, PathAndQuery, Scheme};
use axum::http::{Request, Response, StatusCode, Uri};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::ClientConfig;

use super::client::ClientError;
use super::tls::{OverTls, RenewedTls};
use kubesvc_runtime::crash_points;
use kubesvc_runtime::telemetry::errors::chain;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for the head of an answer, the connection included, in seconds.
const ANSWER_SECONDS: u64 = 65;
/// Time after which an unused connection is closed: well before Clouddriver closes it, so that no call is lost then.
const IDLE_TIMEOUT: Duration = Duration::from_secs(4);

/// Headers of one connection. `Host` is that of Clouddriver's URL, and a whole body needs no `Expect`.
const HOP_BY_HOP: [&str; 11] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "host",
    "expect",
];

type PassingClient = Client<TimeoutConnector<HttpsConnector<HttpConnector>>, Full<Bytes>>;

/// Passes calls on to one Clouddriver.
#[derive(Debug)]
pub struct ClouddriverProxy {
    http: OverTls<PassingClient>,
    scheme: Scheme,
    authority: Authority,
    /// Path of Clouddriver's URL, without a slash at its end.
    prefix: String,
    /// How this installation names itself in `Via`.
    pseudonym: String,
    answer_timeout: Duration,
}

/// Why a call has no answer of Clouddriver's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotAnswered {
    /// The call came from this installation itself.
    Loop,
    /// It was not sent, for this reason.
    NotSent(String),
    /// It may have been carried out; this is what happened.
    Unknown(String),
}

impl ClouddriverProxy {
    /// Passes calls on to the Clouddriver at this URL. The installation is named in `Via`.
    ///
    /// # Errors
    /// The URL cannot be used.
    pub fn new(base: &str, tls: Arc<RenewedTls>, installation: &str) -> Result<Self, ClientError> {
        let parts = base.parse::<Uri>().map_err(|_| ClientError::Url)?.into_parts();
        let (Some(scheme), Some(authority)) = (parts.scheme, parts.authority) else {
            return Err(ClientError::Url);
        };
        let path = parts.path_and_query.as_ref().map_or("", PathAndQuery::path);
        let http = OverTls::new(tls, |tls| Ok(http_client(tls)))?;
        let prefix = path.trim_end_matches('/').to_owned();
        let pseudonym = format!("kubesvc-{installation}");
        let seconds = crash_points::seconds("KUBESVC_CLOUDDRIVER_ANSWER_SECONDS", ANSWER_SECONDS);
        let answer_timeout = Duration::from_secs(seconds);
        Ok(Self { http, scheme, authority, prefix, pseudonym, answer_timeout })
    }

    /// Sends a call, and returns the answer, whose body is still to come.
    pub async fn pass_on(&self, call: &Parts, body: Bytes) -> Result<Response<Body>, NotAnswered> {
        let via = |value: &HeaderValue| {
            value.as_bytes().windows(self.pseudonym.len()).any(|part| part == self.pseudonym.as_bytes())
        };
        if call.headers.get_all(header::VIA).iter().any(via) {
            return Err(NotAnswered::Loop);
        }
        let not_sent = |_| NotAnswered::NotSent("its path cannot be sent".to_owned());
        let target = call.uri.path_and_query().map_or("/", PathAndQuery::as_str);
        let uri = Uri::builder()
            .scheme(self.scheme.clone())
            .authority(self.authority.clone())
            .path_and_query(format!("{}{target}", self.prefix))
            .build()
            .map_err(not_sent)?;
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = call.method.clone();
        *request.uri_mut() = uri;
        *request.headers_mut() = end_to_end(&call.headers);
        // Set for the body as it was read.
        request.headers_mut().remove(header::CONTENT_LENGTH);
        if let Ok(via) = HeaderValue::from_str(&format!("1.1 {}", self.pseudonym)) {
            request.headers_mut().append(header::VIA, via);
        }
        let answer = tokio::time::timeout(self.answer_timeout, self.http.client().request(request)).await;
        let answer = answer.map_err(|_| {
            NotAnswered::Unknown(format!("it did not answer within {} s", self.answer_timeout.as_secs()))
        })?;
        let answer = answer.map_err(|error| {
            let why = chain(&error);
            if error.is_connect() { NotAnswered::NotSent(why) } else { NotAnswered::Unknown(why) }
        })?;
        if answer.status() < StatusCode::OK {
            let status = answer.status().as_u16();
            return Err(NotAnswered::Unknown(format!("it answered {status}, which this call cannot have")));
        }
        let (head, body) = answer.into_parts();
        let mut response = Response::new(Body::new(body));
        *response.status_mut() = head.status;
        *response.headers_mut() = end_to_end(&head.headers);
        Ok(response)
    }
}

fn http_client(tls: &ClientConfig) -> PassingClient {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    let https = HttpsConnectorBuilder::new().with_tls_config(tls.clone());
    let mut connector = TimeoutConnector::new(https.https_or_http().enable_http1().wrap_connector(tcp));
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
    Client::builder(TokioExecutor::new())
        .pool_idle_timeout(IDLE_TIMEOUT)
        .pool_timer(TokioTimer::new())
        .build(connector)
}

/// The headers that are passed on: all but those of one connection, and those that `Connection` names.
fn end_to_end(headers: &HeaderMap) -> HeaderMap {
    let named: Vec<String> = headers
        .get_all(header::CONNECTION)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .map(|name| String::from_utf8_lossy(name).trim().to_ascii_lowercase())
        .collect();
    let stays = |name: &HeaderName| {
        !HOP_BY_HOP.contains(&name.as_str()) && !named.iter().any(|named| named == name.as_str())
    };
    let mut kept = HeaderMap::with_capacity(headers.len());
    for (name, value) in headers.iter().filter(|(name, _)| stays(name)) {
        kept.append(name.clone(), value.clone());
    }
    kept
}
