//! Why a cluster could not be reached, or did not answer as it should: the errors, their class, and a remedy.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use rustls::{AlertDescription, CertificateError, Error as TlsError};
use serde::Deserialize;

use crate::cluster::tls::TrustError;
use crate::wire_failure::after_send;
use kubesvc_core::wire::common::Failure;
use kubesvc_core::wire::common::failure::Class;
use kubesvc_runtime::telemetry::errors::chain;

/// Error of a connection or a request to a cluster. It holds neither a credential nor a query. As a [`Failure`], it says
/// what to do.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The agent's owner does not allow it.
    #[error("policy: {0}")]
    Policy(String),
    #[error("{0}")]
    Kubeconfig(String),
    #[error("certificate-authority-data cannot be used")]
    Authority(#[source] TrustError),
    #[error(transparent)]
    SystemAuthorities(TrustError),
    #[error("TLS cannot be set up")]
    TlsSetup(#[source] TlsError),
    #[error("{host} of {url} cannot be looked up from the agent")]
    Lookup { host: String, url: String, source: io::Error },
    #[error("the name in {0} has no address")]
    NoAddress(String),
    #[error("no connection to {url} ({addresses})")]
    Unreachable { url: String, addresses: String, source: io::Error },
    #[error("no connection to {0} in time; check the address, and firewalls between it and the agent")]
    ConnectTimeout(String),
    #[error("{url} closed the connection before the TLS handshake was done")]
    HandshakeClosed { url: String, source: io::Error },
    #[error("connecting to {url}: TLS failed")]
    Tls { url: String, source: TlsError },
    #[error("{step} found no free connection within {}", shown(.waited))]
    Busy { step: Arc<str>, waited: Duration },
    /// Each watch takes a connection, and all that may be open, this many, are taken. The text stands in a condition beside
    /// the name of a kind, where there is room for 120 bytes.
    #[error(
        "the cluster's front speaks HTTP/1.1 only, which allows {0} watches: enable HTTP/2, or cache fewer kinds or \
         namespaces"
    )]
    TooManyWatches(usize),
    #[error("{step} could not be built")]
    Request { step: Arc<str>, source: http::Error },
    #[error("{0} names no path")]
    Path(Arc<str>),
    #[error("{0} asks for an upgrade, which needs HTTP/1.1")]
    UpgradeOverHttp2(Arc<str>),
    #[error("{0} did not upgrade the connection")]
    NotUpgraded(Arc<str>),
    #[error("{step} got no complete response")]
    Broken {
        step: Arc<str>,
        source: BrokenConnection,
        /// Whether certainly nothing of the request was sent.
        before_send: bool,
    },
    #[error("{step} was not answered within {}", shown(.limit))]
    Timeout { step: Arc<str>, limit: Duration },
    #[error("{step} answered with more than {limit} bytes")]
    TooLarge {
        step: Arc<str>,
        /// Maximum size in bytes.
        limit: usize,
    },
    #[error(
        "{step} answered {}: a redirect, and redirects are not followed; give the address of the API server itself",
        .status.as_u16()
    )]
    Redirected { step: Arc<str>, status: StatusCode },
    #[error("{step} answered {}: {}{said}", .status.as_u16(), refused_meaning(.status).1)]
    Refused {
        step: Arc<str>,
        status: StatusCode,
        /// What the server said, in parentheses and safe to show; may be empty.
        said: String,
    },
    /// The server closed a new connection after the response to this request, its first.
    #[error("{0}: the server closed the connection after it")]
    Closed(Arc<str>),
    /// A new connection did not pass its check, and nothing else was sent on it.
    #[error(transparent)]
    Check(Box<ClusterError>),
    #[error("{url} is another cluster than the account was activated with: {why}; nothing of it is read")]
    AnotherCluster { url: String, why: String },
    #[error("{0} has changed its certificate meanwhile")]
    CertificateChanged(String),
}

impl ClusterError {
    pub fn class(&self) -> Class {
        match self {
            Self::Policy(_) => Class::Forbidden,
            Self::Kubeconfig(_) | Self::Authority(_) => Class::BadKubeconfig,
            Self::SystemAuthorities(_) | Self::Tls { .. } => Class::Tls,
            Self::TlsSetup(_) | Self::Request { .. } | Self::Path(_) | Self::UpgradeOverHttp2(_) => {
                Class::Internal
            }
            Self::ConnectTimeout(_) | Self::Timeout { .. } => Class::Timeout,
            Self::TooLarge { .. } => Class::TooLarge,
            Self::Refused { status, .. } => refused_meaning(status).0,
            Self::Broken { source, .. } => source.class(),
            // The answer to the agent's own question, not to the request.
            Self::Check(error) if matches!(**error, Self::TooLarge { .. }) => Class::Discovery,
            Self::Check(error) => error.class(),
            Self::NotUpgraded(_) | Self::TooManyWatches(_) => Class::Discovery,
            Self::AnotherCluster { .. } => Class::ClusterMismatch,
            Self::Closed(_)
            | Self::Lookup { .. }
            | Self::NoAddress(_)
            | Self::Unreachable { .. }
            | Self::HandshakeClosed { .. }
            | Self::Busy { .. }
            | Self::Redirected { .. }
            | Self::CertificateChanged(_) => Class::Unreachable,
        }
    }

    /// Status of the response behind the error; 0 if there is none.
    pub fn http_status(&self) -> u16 {
        match self {
            Self::Redirected { status, .. } | Self::Refused { status, .. } => status.as_u16(),
            Self::Check(error) => error.http_status(),
            _ => 0,
        }
    }

    /// Whether certainly nothing of the request was sent to the cluster.
    pub fn is_before_send(&self) -> bool {
        match self {
            Self::Broken { before_send, .. } => *before_send,
            Self::Timeout { .. }
            | Self::TooLarge { .. }
            | Self::Redirected { .. }
            | Self::Refused { .. }
            | Self::NotUpgraded(_)
            | Self::TooManyWatches(_)
            | Self::Closed(_)
            | Self::AnotherCluster { .. }
            | Self::CertificateChanged(_) => false,
            _ => true,
        }
    }

    /// What happened and what to do, in one text.
    fn explained(&self) -> String {
        match self {
            Self::Tls { url, source } => format!("connecting to {url}: {}", tls_meaning(source)),
            Self::Broken { step, source, .. } => format!("{step}: {source}"),
            Self::Check(error) => error.explained(),
            other => chain(other),
        }
    }
}

impl From<ClusterError> for Failure {
    fn from(error: ClusterError) -> Self {
        let failure = after_send(error.class(), error.explained());
        Failure { http_status: error.http_status().into(), before_send: error.is_before_send(), ..failure }
    }
}

/// The message of a Kubernetes Status; `None` if the body is not one.
pub(super) fn message_in(body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct StatusResponse {
        kind: String,
        api_version: String,
        #[serde(default)]
        message: String,
    }
    let status: StatusResponse = serde_json::from_slice(body).ok()?;
    (status.kind == "Status" && status.api_version == "v1").then_some(status.message)
}

/// Class and meaning of a status other than 200.
fn refused_meaning(status: &StatusCode) -> (Class, &'static str) {
    match status.as_u16() {
        401 => (Class::Auth, "the credential is refused"),
        403 => (Class::Forbidden, "the credential lacks the right"),
        404 => (Class::NotFound, "there is no such thing; is this the address of an API server?"),
        408 | 504 => (Class::Timeout, "the server took too long"),
        413 => (Class::TooLarge, "the server finds it too large"),
        429 => (Class::Unreachable, "the server asks to be left alone for a while"),
        500..=599 => (Class::Unreachable, "the server has a fault or is not ready"),
        _ => (Class::Discovery, "that is no answer of an API server"),
    }
}

/// How a connection ended. It replaces the error of hyper, which quotes what the server sent: the server may echo the
/// credential.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{meaning}")]
pub struct BrokenConnection {
    class: Class,
    meaning: String,
}

impl BrokenConnection {
    pub fn class(&self) -> Class {
        self.class
    }
}

impl From<hyper::Error> for BrokenConnection {
    fn from(error: hyper::Error) -> Self {
        if let Some(error) = find::<TlsError>(&error) {
            return Self { class: Class::Tls, meaning: tls_meaning(error) };
        }
        let io = find::<io::Error>(&error);
        let is_kind = |kind| io.is_some_and(|error| error.kind() == kind);
        let is_timeout = error.is_timeout() || is_kind(io::ErrorKind::TimedOut);
        let class = if is_timeout { Class::Timeout } else { Class::Unreachable };
        let is_closed = error.is_incomplete_message() || error.is_closed() || error.is_canceled();
        let meaning = if error.is_parse() {
            "the answer is no HTTP".to_owned()
        } else if is_closed || is_kind(io::ErrorKind::UnexpectedEof) {
            "the server closed the connection".to_owned()
        } else if let Some(io) = io {
            format!("the connection broke: {}", root(io))
        } else {
            format!("the connection broke: {error}")
        };
        Self { class, meaning }
    }
}

/// Describes a TLS error and how to fix it.
fn tls_meaning(error: &TlsError) -> String {
    match error {
        TlsError::InvalidCertificate(error) => certificate_meaning(error),
        TlsError::NoCertificatesPresented => "the server shows no certificate".to_owned(),
        TlsError::AlertReceived(
            AlertDescription::CertificateRequired
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateUnknown
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateRevoked
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied,
        ) => "the server refuses the client certificate; give a current client-certificate-data, from an authority that \
              the server trusts"
            .to_owned(),
        TlsError::InvalidMessage(_) => {
            "the server does not speak TLS here; check the scheme and the port of server".to_owned()
        }
        TlsError::PeerIncompatible(_) => "the server has no version, cipher or signature of TLS in common with the \
                                          agent, which has TLS 1.2 and 1.3 with AES-GCM or ChaCha20, and no RSA under \
                                          2048 bits, SHA-1 or P-521"
            .to_owned(),
        TlsError::AlertReceived(AlertDescription::HandshakeFailure | AlertDescription::ProtocolVersion) => {
            "the server refuses the handshake: it has no version or cipher of TLS in common with the agent".to_owned()
        }
        TlsError::AlertReceived(AlertDescription::UnrecognisedName) => {
            "the server knows no such name; set tls-server-name to one of its names".to_owned()
        }
        TlsError::AlertReceived(alert) => {
            format!("the server ended the handshake with alert {}", u8::from(*alert))
        }
        TlsError::InappropriateMessage { .. }
        | TlsError::InappropriateHandshakeMessage { .. }
        | TlsError::PeerMisbehaved(_)
        | TlsError::InvalidEncryptedClientHello(_)
        | TlsError::InvalidCertRevocationList(_)
        | TlsError::InconsistentKeys(_) => {
            "TLS failed: the server does not follow the protocol; check what is between it and the agent".to_owned()
        }
        other => format!("TLS failed: {other}"),
    }
}

fn certificate_meaning(error: &CertificateError) -> String {
    let (problem, remedy) = match error {
        CertificateError::UnknownIssuer | CertificateError::BadSignature => (
            "comes from an authority that is not trusted".to_owned(),
            "put the cluster's own authority into certificate-authority-data",
        ),
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => (
            format!("does not fit the name: {error}"),
            "use a name from the certificate in server, or set tls-server-name",
        ),
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            (format!("has expired: {error}"), "renew the API server's certificate")
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            (format!("is not valid yet: {error}"), "check the clocks of the agent and of the API server")
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => (
            "is not one of a server: its extended key usage lacks serverAuth".to_owned(),
            "give the API server a certificate for servers",
        ),
        CertificateError::UnsupportedSignatureAlgorithmContext { .. }
        | CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => (
            "is signed with an algorithm that is not supported (SHA-1, P-521)".to_owned(),
            "give the API server a certificate signed with SHA-256 and RSA, P-256, P-384 or Ed25519",
        ),
        CertificateError::BadEncoding => {
            ("cannot be read".to_owned(), "check the certificate that the API server shows")
        }
        CertificateError::Other(other) => path_meaning(other.0.downcast_ref()),
        _ => ("cannot be used".to_owned(), "check the certificate that the API server shows"),
    };
    format!("the server's certificate {problem}; {remedy}")
}

/// Describes an error for which rustls has only the name that webpki gives it.
fn path_meaning(error: Option<&webpki::Error>) -> (String, &'static str) {
    use webpki::Error;
    let (problem, remedy) = match error {
        Some(Error::CaUsedAsEndEntity) => (
            "is that of an authority (CA:TRUE), and not one of certificate-authority-data",
            "put this certificate itself there, or give the API server one without CA:TRUE",
        ),
        Some(Error::EndEntityUsedAsCa | Error::PathLenConstraintViolated) => (
            "leads over one that may not sign others",
            "correct the chain that the API server shows, or put its own certificate into certificate-authority-data",
        ),
        Some(Error::NameConstraintViolation | Error::MalformedNameConstraint) => (
            "has a name for which its authority may not sign",
            "give the API server a certificate within the name constraints of its authority",
        ),
        Some(Error::UnsupportedCertVersion) => {
            ("is not of version 3, so it has no names", "give the API server one with subjectAltName")
        }
        Some(Error::UnsupportedCriticalExtension) => {
            ("has a critical extension that is not known", "give the API server one without it")
        }
        _ => ("cannot be used", "check the certificate that the API server shows, and its chain"),
    };
    (problem.to_owned(), remedy)
}

/// Finds an error of this type in a chain. The error inside an `io::Error` does not appear in `source`, so it
/// is looked at separately.
pub(super) fn find<'e, E: Error + 'static>(error: &'e (dyn Error + 'static)) -> Option<&'e E> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<E>() {
            return Some(found);
        }
        next = match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(inner) => Some(inner as &(dyn Error + 'static)),
            None => error.source(),
        };
    }
    None
}

fn root<'e>(error: &'e (dyn Error + 'static)) -> &'e (dyn Error + 'static) {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error
}

/// A duration for messages.
fn shown(duration: &Duration) -> String {
    if duration.as_secs() > 0 {
        format!("{} s", duration.as_secs())
    } else {
        format!("{} ms", duration.as_millis())
    }
}
