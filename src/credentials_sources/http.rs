//! GET requests, bounded in size and time. Redirects are not followed: they could lead a credential elsewhere.

use std::path::PathBuf;
use std::time::Duration;

use reqwest::redirect::Policy;
use reqwest::{Certificate, Client};
use secrecy::{ExposeSecret as _, SecretString};

use super::SourceReadError;
use super::bounded_files::{read_password, read_text_file};
use kubesvc_runtime::crash_points;

/// Interval of reads while a server is followed, in seconds.
const INTERVAL_SECONDS: u64 = 60;
/// Time limit for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for an answer with its body.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum size of an answer, in MiB.
const MAX_ANSWER_MIB: u64 = 16;
/// Maximum size of a file with authorities, in bytes.
const MAX_AUTHORITY_BYTES: u64 = 1 << 20;

/// How a server is called. Files are read for each call, so that their changes take effect.
#[derive(Clone, Debug, Default)]
pub(super) struct HttpAccess {
    /// PEM file with authorities; `None`: the system's.
    pub(super) authority: Option<PathBuf>,
    /// User and file with the password of basic authentication.
    pub(super) login: Option<(String, Option<PathBuf>)>,
    /// The user that `X-SPINNAKER-USER` names.
    pub(super) spinnaker_user: Option<String>,
}

/// A client, and the password at the time of its making.
pub(super) struct HttpClient {
    client: Client,
    login: Option<(String, Option<SecretString>)>,
    spinnaker_user: Option<String>,
}

impl HttpAccess {
    /// Reads the files, and makes a client for a few calls. `url` is named in errors.
    pub(super) async fn client(&self, url: &str) -> Result<HttpClient, SourceReadError> {
        let failed = |source: reqwest::Error| SourceReadError::Request {
            url: url.to_owned(),
            source: source.without_url(),
        };
        let mut builder = Client::builder()
            .redirect(Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(ANSWER_TIMEOUT)
            .user_agent(concat!("kubesvc-operator/", env!("CARGO_PKG_VERSION")));
        if let Some(path) = &self.authority {
            let pem = read_text_file(path.clone(), MAX_AUTHORITY_BYTES).await?;
            let authorities = Certificate::from_pem_bundle(pem.expose_secret().as_bytes()).map_err(failed)?;
            builder = builder.tls_certs_only(authorities);
        }
        let login = match &self.login {
            Some((user, Some(file))) => Some((user.clone(), Some(read_password(file).await?))),
            Some((user, None)) => Some((user.clone(), None)),
            None => None,
        };
        let client = builder.build().map_err(failed)?;
        Ok(HttpClient { client, login, spinnaker_user: self.spinnaker_user.clone() })
    }
}

impl HttpClient {
    /// The body of the answer, if it is 200.
    pub(super) async fn get(&self, url: &str) -> Result<Vec<u8>, SourceReadError> {
        let failed = |source: reqwest::Error| SourceReadError::Request {
            url: url.to_owned(),
            source: source.without_url(),
        };
        let mut request = self.client.get(url).header(reqwest::header::ACCEPT, "application/json");
        if let Some((user, password)) = &self.login {
            request = request.basic_auth(user, password.as_ref().map(SecretString::expose_secret));
        }
        if let Some(user) = &self.spinnaker_user {
            request = request.header("X-SPINNAKER-USER", user);
        }
        let mut answer = request.send().await.map_err(failed)?;
        if answer.status() != reqwest::StatusCode::OK {
            return Err(SourceReadError::Status { url: url.to_owned(), code: answer.status().as_u16() });
        }
        let mut body = Vec::new();
        while let Some(part) = answer.chunk().await.map_err(failed)? {
            if (body.len() + part.len()) as u64 > MAX_ANSWER_MIB << 20 {
                let what = format!("the answer to GET {url}");
                return Err(SourceReadError::TooLarge { what, mib: MAX_ANSWER_MIB });
            }
            body.extend_from_slice(&part);
        }
        Ok(body)
    }
}

/// Interval of reads while a server is followed.
pub(super) fn follow_interval() -> Duration {
    Duration::from_secs(crash_points::seconds("KUBESVC_SOURCE_SECONDS", INTERVAL_SECONDS))
}

/// A part of a path, with everything percent-encoded that could end it.
pub(super) fn path_segment(text: &str) -> String {
    use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
    const KEPT: &AsciiSet = &NON_ALPHANUMERIC
        .remove(b'-')
        .remove(b'_')
        .remove(b'.')
        .remove(b'~')
        .remove(b',')
        .remove(b'(')
        .remove(b')');
    utf8_percent_encode(text, KEPT).to_string()
}
