//! Why a handshake failed, in words for the person who runs the port.

use std::io;

use rustls::{AlertDescription, CertificateError, Error};

use crate::telemetry::errors::chain;

/// Why a handshake of a client with a port failed, to end the sentence "the TLS handshake failed: …".
pub fn problem_of_handshake(error: &io::Error) -> String {
    match error.get_ref().and_then(|source| source.downcast_ref::<Error>()) {
        Some(error) => problem_of_client(error),
        None if error.kind() == io::ErrorKind::UnexpectedEof => "the client closed the connection".to_owned(),
        None => chain(error),
    }
}

/// Why a client, or its certificate, is not accepted.
pub fn problem_of_client(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(problem) => {
            format!("the client's certificate is not accepted: {}", problem_of_certificate(problem))
        }
        Error::NoCertificatesPresented => "the client shows no certificate, and one is required".to_owned(),
        Error::AlertReceived(alert) => match alert {
            AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateUnknown
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateRevoked
            | AlertDescription::UnsupportedCertificate => {
                format!("the client does not accept the certificate of this port (alert {alert:?})")
            }
            alert => format!("the client breaks off (alert {alert:?})"),
        },
        Error::PeerIncompatible(problem) => {
            format!("client and port have no version, cipher suite or key in common ({problem:?})")
        }
        Error::NoApplicationProtocol => {
            "the client offers other protocols than this port has (ALPN)".to_owned()
        }
        // What rustls says if the resolver has no certificate.
        Error::General(text) if text.contains("no server certificate") => {
            "this port has no certificate yet".to_owned()
        }
        other => format!("the client breaks the protocol: {other}"),
    }
}

fn problem_of_certificate(problem: &CertificateError) -> String {
    use CertificateError as Problem;
    match problem {
        Problem::Expired | Problem::ExpiredContext { .. } => "it has expired".to_owned(),
        Problem::NotValidYet | Problem::NotValidYetContext { .. } => "it is not valid yet".to_owned(),
        Problem::Revoked => "it is revoked".to_owned(),
        Problem::UnknownIssuer => "its authority is not trusted".to_owned(),
        Problem::UnknownRevocationStatus => "no revocation list covers its issuer".to_owned(),
        Problem::ExpiredRevocationList | Problem::ExpiredRevocationListContext { .. } => {
            "the revocation list of its issuer has expired".to_owned()
        }
        Problem::InvalidPurpose | Problem::InvalidPurposeContext { .. } => {
            "it is not for clients: its extended key usage lacks clientAuth".to_owned()
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_person_can_mend_is_named() {
        let tls = |error: Error| io::Error::new(io::ErrorKind::InvalidData, error);
        for (error, expected) in [
            (tls(CertificateError::Revoked.into()), "certificate is not accepted: it is revoked"),
            (tls(CertificateError::UnknownIssuer.into()), "its authority is not trusted"),
            (tls(Error::NoCertificatesPresented), "shows no certificate"),
            (
                tls(Error::AlertReceived(AlertDescription::UnknownCA)),
                "does not accept the certificate of this",
            ),
            (tls(Error::General("no server certificate chain resolved".into())), "no certificate yet"),
            (io::ErrorKind::UnexpectedEof.into(), "closed the connection"),
            (io::ErrorKind::ConnectionReset.into(), "reset"),
        ] {
            let said = problem_of_handshake(&error);
            assert!(said.contains(expected), "{expected:?}: {said}");
        }
    }
}
