//! Where the keys of issuers are read: a file, an https URL, the document of an issuer, the operator's own API server.

use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use reqwest::header::ACCEPT;
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, StatusCode};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use super::kept_keys::PublishedKeys;
use super::key_set::{KeySet, KeySetError};
use super::shown;
use kubesvc_runtime::kube_access::{ErrorClass, KubeAccess, KubeError, KubeRequest};
use kubesvc_runtime::tls::{TlsFilesError, read_file};

/// Interval between two looks at a file.
const FILE_INTERVAL: Duration = Duration::from_secs(10);
/// Interval between two reads of what a server has.
const FETCH_INTERVAL: Duration = Duration::from_secs(600);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for an answer with its body.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of a JWKS or of an issuer's document, in bytes.
const MAX_BYTES: usize = 1 << 20;
/// Maximum length of a URL that a document names, in bytes.
const MAX_URL_BYTES: usize = 2048;
/// Path of an issuer's document.
const DOCUMENT: &str = "/.well-known/openid-configuration";
/// Path of the keys of a Kubernetes API server.
const CLUSTER_KEYS: &str = "/openid/v1/jwks";

/// Why keys cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum KeySourceError {
    /// A file cannot be read.
    #[error(transparent)]
    File(#[from] TlsFilesError),
    /// The file with authorities has none.
    #[error("{} has no certificate in PEM", .0.display())]
    NoAuthority(PathBuf),
    /// What was read is no set of keys.
    #[error("{place} cannot be used")]
    Keys {
        /// File or URL.
        place: String,
        /// Why.
        source: KeySetError,
    },
    /// There was no answer.
    #[error("no answer to GET {url}")]
    Request {
        /// What was asked for.
        url: String,
        /// Why.
        source: reqwest::Error,
    },
    /// The answer is a redirect or an error.
    #[error("GET {url} was answered with {code}{}", advice(*code))]
    Status {
        /// What was asked for.
        url: String,
        /// Its status.
        code: u16,
    },
    /// A file or an answer is too large.
    #[error("{0} is larger than 1 MiB")]
    TooLarge(String),
    /// The document of the issuer is none.
    #[error("{0} is no document of an issuer, which is JSON with `issuer` and `jwks_uri`")]
    DiscoveryDocument(String),
    /// The document is another issuer's.
    #[error("{url} is of the issuer {found:?}, and not of the one in the settings: write it exactly so")]
    Issuer {
        /// Its URL.
        url: String,
        /// The issuer that it names.
        found: String,
    },
    /// The document names keys that are not fetched.
    #[error("{0} names keys (jwks_uri) that are not at an https URL without a login")]
    NoHttps(String),
    /// The operator may not read them.
    #[error(
        "the operator may not get {DOCUMENT} and {CLUSTER_KEYS} of its API server: bind its service account to ClusterRole \
         system:service-account-issuer-discovery"
    )]
    Forbidden(#[source] KubeError),
    /// The operator's API server did not give them.
    #[error(transparent)]
    Cluster(KubeError),
    /// It took too long.
    #[error("they were not read within {0:?}")]
    Slow(Duration),
}

fn advice(code: u16) -> &'static str {
    if (300..400).contains(&code) {
        ": redirects are not followed; name the URL that it leads to"
    } else {
        ""
    }
}

/// Where keys are read. Nothing is repeated here.
#[async_trait]
pub(super) trait KeySource: Send + Sync {
    /// Names the issuer, for people.
    fn name(&self) -> &str;

    /// Interval between two reads.
    fn interval(&self) -> Duration;

    /// Whether it is a file, which its owner changes here.
    fn is_local(&self) -> bool {
        false
    }

    /// Reads the keys.
    async fn read(&self) -> Result<PublishedKeys, KeySourceError>;
}

/// A file with the keys of an issuer.
pub(super) struct FileKeys {
    pub(super) issuer: String,
    pub(super) path: PathBuf,
}

#[async_trait]
impl KeySource for FileKeys {
    fn name(&self) -> &str {
        &self.issuer
    }

    fn interval(&self) -> Duration {
        FILE_INTERVAL
    }

    fn is_local(&self) -> bool {
        true
    }

    async fn read(&self) -> Result<PublishedKeys, KeySourceError> {
        let json = read_file(&self.path).await?;
        let place = self.path.display().to_string();
        if json.len() > MAX_BYTES {
            return Err(KeySourceError::TooLarge(place));
        }
        published(&self.issuer, &json, place)
    }
}

/// A server with the keys of an issuer.
pub(super) struct FetchedKeys {
    pub(super) issuer: String,
    /// URL of the keys; `None`: the issuer's document names it.
    pub(super) url: Option<String>,
    /// File with authorities in place of the system's, read for each fetch.
    pub(super) authorities: Option<PathBuf>,
}

impl FetchedKeys {
    /// A client for one read.
    ///
    /// # Errors
    /// The file with authorities cannot be used.
    pub(super) async fn client(&self) -> Result<Client, KeySourceError> {
        let mut builder = Client::builder()
            .https_only(true)
            .redirect(Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(ANSWER_TIMEOUT)
            .user_agent(concat!("kubesvc-operator/", env!("CARGO_PKG_VERSION")));
        if let Some(path) = &self.authorities {
            let pem = read_file(path).await?;
            let authorities = Certificate::from_pem_bundle(&pem).unwrap_or_default();
            if authorities.is_empty() {
                return Err(KeySourceError::NoAuthority(path.clone()));
            }
            builder = builder.tls_certs_only(authorities);
        }
        let failed = |source| KeySourceError::Request { url: self.issuer.clone(), source };
        builder.build().map_err(failed)
    }

    /// URL of the keys, as the issuer's document names it.
    async fn discover(&self, client: &Client) -> Result<String, KeySourceError> {
        let url = format!("{}{DOCUMENT}", self.issuer.trim_end_matches('/'));
        let document = DiscoveryDocument::parse(&get(client, &url).await?, &url)?;
        if document.issuer != self.issuer {
            return Err(KeySourceError::Issuer { url, found: shown(&document.issuer) });
        }
        document.jwks_uri.filter(|keys| is_fetched(keys)).ok_or(KeySourceError::NoHttps(url))
    }
}

#[async_trait]
impl KeySource for FetchedKeys {
    fn name(&self) -> &str {
        &self.issuer
    }

    fn interval(&self) -> Duration {
        FETCH_INTERVAL
    }

    async fn read(&self) -> Result<PublishedKeys, KeySourceError> {
        let client = self.client().await?;
        let url = match &self.url {
            Some(url) => url.clone(),
            None => self.discover(&client).await?,
        };
        published(&self.issuer, &get(&client, &url).await?, url)
    }
}

/// The operator's own API server.
pub(super) struct ClusterKeys(pub(super) KubeAccess);

impl ClusterKeys {
    async fn get(&self, path: &'static str) -> Result<String, KeySourceError> {
        let request = KubeRequest {
            verb: "get",
            kind: path.into(),
            plural: "openid".into(),
            group: "".into(),
            namespace: String::new(),
            name: String::new(),
        };
        let answer = async {
            let get = http::Request::get(path).body(Vec::new()).map_err(kube::Error::HttpError)?;
            self.0.client().request_text(get).await
        };
        self.0.send(request, None, answer).await.map_err(|error| match error.class() {
            ErrorClass::Refused => KeySourceError::Forbidden(error),
            _ => KeySourceError::Cluster(error),
        })
    }
}

#[async_trait]
impl KeySource for ClusterKeys {
    fn name(&self) -> &'static str {
        "the operator's own cluster"
    }

    fn interval(&self) -> Duration {
        FETCH_INTERVAL
    }

    async fn read(&self) -> Result<PublishedKeys, KeySourceError> {
        let document = DiscoveryDocument::parse(self.get(DOCUMENT).await?.as_bytes(), DOCUMENT)?;
        published(&document.issuer, self.get(CLUSTER_KEYS).await?.as_bytes(), CLUSTER_KEYS.to_owned())
    }
}

/// Whether a URL that somebody else wrote is fetched: https, without a login, and short enough for a message.
fn is_fetched(text: &str) -> bool {
    let is_plain =
        |url: url::Url| url.scheme() == "https" && url.username().is_empty() && url.password().is_none();
    text.len() <= MAX_URL_BYTES && text.parse().is_ok_and(is_plain)
}

/// What an issuer says about itself.
#[derive(Deserialize)]
struct DiscoveryDocument {
    issuer: String,
    jwks_uri: Option<String>,
}

impl DiscoveryDocument {
    fn parse(json: &[u8], url: &str) -> Result<Self, KeySourceError> {
        serde_json::from_slice(json).map_err(|_| KeySourceError::DiscoveryDocument(url.to_owned()))
    }
}

fn published(issuer: &str, json: &[u8], place: String) -> Result<PublishedKeys, KeySourceError> {
    let keys = KeySet::parse(json).map_err(|source| KeySourceError::Keys { place, source })?;
    let mut digest = Sha256::new();
    digest.update(issuer);
    digest.update([0]);
    digest.update(json);
    Ok(PublishedKeys { issuer: issuer.to_owned(), keys, digest: digest.finalize().into() })
}

/// The body of an answer, if it is 200.
async fn get(client: &Client, url: &str) -> Result<Vec<u8>, KeySourceError> {
    let failed = |source: reqwest::Error| KeySourceError::Request {
        url: url.to_owned(),
        source: source.without_url(),
    };
    let mut answer = client.get(url).header(ACCEPT, "application/json").send().await.map_err(failed)?;
    if answer.status() != StatusCode::OK {
        return Err(KeySourceError::Status { url: url.to_owned(), code: answer.status().as_u16() });
    }
    let mut body = Vec::new();
    while let Some(part) = answer.chunk().await.map_err(failed)? {
        if body.len() + part.len() > MAX_BYTES {
            return Err(KeySourceError::TooLarge(format!("the answer to GET {url}")));
        }
        body.extend_from_slice(&part);
    }
    Ok(body)
}
