//! Converts responses and errors into failures with a class and a remedy.

use std::error::Error;
use std::io;
use std::time::Duration;

use http::StatusCode;
use rustls::{AlertDescription, CertificateError, Error as TlsError};
use serde::Deserialize;

use crate::agent::failure::after_send;
use crate::wire::common::Failure;
use crate::wire::common::failure::Class;

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

/// The failure of a step that was answered with a status other than 200. `said` is safe to show.
pub(super) fn refused(step: &str, status: StatusCode, said: &str) -> Failure {
    let (class, meaning) = match status.as_u16() {
        401 => (Class::Auth, "the credential is refused"),
        403 => (Class::Forbidden, "the credential lacks the right"),
        404 => (Class::NotFound, "there is no such thing; is this the address of an API server?"),
        408 | 504 => (Class::Timeout, "the server took too long"),
        413 => (Class::TooLarge, "the server finds it too large"),
        429 => (Class::Unreachable, "the server asks to be left alone for a while"),
        500..=599 => (Class::Unreachable, "the server has a fault or is not ready"),
        _ => (Class::Discovery, "that is no answer of an API server"),
    };
    let said = if said.is_empty() { String::new() } else { format!(" ({said})") };
    let message = format!("{step} answered {}: {meaning}{said}", status.as_u16());
    Failure { http_status: status.as_u16().into(), ..after_send(class, message) }
}

/// The failure of a step that was answered with a redirect.
pub(super) fn redirected(step: &str, status: StatusCode) -> Failure {
    let message = format!(
        "{step} answered {}: a redirect, and redirects are not followed; give the address of the API server itself",
        status.as_u16()
    );
    Failure { http_status: status.as_u16().into(), ..after_send(Class::Unreachable, message) }
}

/// The failure of a step during which the connection broke.
pub(super) fn broken(step: &str, error: &(dyn Error + 'static)) -> Failure {
    if let Some(error) = find::<TlsError>(error) {
        return after_send(Class::Tls, format!("{step}: {}", tls_meaning(error)));
    }
    let class = match find::<io::Error>(error).map(io::Error::kind) {
        Some(io::ErrorKind::TimedOut) => Class::Timeout,
        _ => Class::Unreachable,
    };
    let is_http = find::<hyper::Error>(error);
    let meaning = match is_http {
        Some(error) if error.is_parse() => "the answer is no HTTP".to_owned(),
        Some(error) if error.is_incomplete_message() || error.is_closed() || error.is_canceled() => {
            "the server closed the connection".to_owned()
        }
        _ => format!("the connection broke: {}", root(error)),
    };
    after_send(class, format!("{step}: {meaning}"))
}

/// Describes a TLS error and how to fix it.
pub(super) fn tls_meaning(error: &TlsError) -> String {
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
        ) => format!(
            "the server refuses the client certificate: {error}; give a current client-certificate-data"
        ),
        TlsError::InvalidMessage(_) => {
            "the server does not speak TLS here; check the scheme and the port of server".to_owned()
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
        other => (format!("cannot be used: {other}"), "check the certificate that the API server shows"),
    };
    format!("the server's certificate {problem}; {remedy}")
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
pub(super) fn shown(duration: Duration) -> String {
    if duration.as_secs() > 0 {
        format!("{} s", duration.as_secs())
    } else {
        format!("{} ms", duration.as_millis())
    }
}
