//! When a credential expires. Pure.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::{SignedDuration, Timestamp};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use secrecy::ExposeSecret as _;
use serde::Deserialize;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use kubesvc_core::credential_expiry::{CredentialExpiry, ExpiryOrigin};
use kubesvc_core::kubeconfig::Authentication;

/// How much earlier than the credential itself an annotation must be to count. The annotation of a token is a few seconds
/// off the token.
const MIN_DIFFERENCE: SignedDuration = SignedDuration::from_mins(1);

/// When a credential expires, whichever is the first: its token, its client certificate, or `annotated`. `None` if nothing
/// says so. What cannot be read says nothing; the cluster judges it.
pub(super) fn of(authentication: &Authentication, annotated: Option<Timestamp>) -> Option<CredentialExpiry> {
    let (token, certificate) = match authentication {
        Authentication::Token(token) => (Some(token), None),
        Authentication::ClientCertificate { certificate, .. } => (None, Some(certificate)),
        Authentication::TokenAndClientCertificate { token, certificate, .. } => {
            (Some(token), Some(certificate))
        }
    };
    let token = token.and_then(|token| of_token(token.expose_secret()));
    let certificate = certificate.and_then(|certificate| of_certificate(certificate));
    let itself = token.into_iter().chain(certificate).min_by_key(|one| one.at);
    let annotated =
        annotated.map(|at| CredentialExpiry { at, lifetime: None, origin: ExpiryOrigin::Annotation });
    match (itself, annotated) {
        (Some(itself), Some(annotated)) if annotated.at < itself.at - MIN_DIFFERENCE => Some(annotated),
        (itself, annotated) => itself.or(annotated),
    }
}

/// Claims of a JSON Web Token, in seconds since 1970 (RFC 7519, 4.1).
#[derive(Deserialize)]
struct Claims {
    exp: f64,
    iat: Option<f64>,
}

fn of_token(token: &str) -> Option<CredentialExpiry> {
    let payload = token.split('.').nth(1)?;
    let claims: Claims = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).ok()?).ok()?;
    let at = second(claims.exp)?;
    let lifetime = claims.iat.and_then(second).map(|begun| at.duration_since(begun));
    Some(CredentialExpiry { at, lifetime, origin: ExpiryOrigin::Token })
}

#[expect(clippy::cast_possible_truncation, reason = "a second that does not fit is none of a time either")]
fn second(seconds: f64) -> Option<Timestamp> {
    Timestamp::from_second(seconds as i64).ok()
}

/// The first certificate is the client's own; what follows is its chain.
fn of_certificate(pem: &[u8]) -> Option<CredentialExpiry> {
    let certificate = CertificateDer::from_pem_slice(pem).ok()?;
    let (_, certificate) = X509Certificate::from_der(&certificate).ok()?;
    let validity = certificate.validity();
    let at = Timestamp::from_second(validity.not_after.timestamp()).ok()?;
    let begun = Timestamp::from_second(validity.not_before.timestamp()).ok();
    let lifetime = begun.map(|begun| at.duration_since(begun));
    Some(CredentialExpiry { at, lifetime, origin: ExpiryOrigin::ClientCertificate })
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};

    use super::*;
    use kubesvc_core::kubeconfig::{SecretBytes, SecretText};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    fn token(claims: &str) -> Authentication {
        let token = format!("{}.{}.c2ln", URL_SAFE_NO_PAD.encode("{}"), URL_SAFE_NO_PAD.encode(claims));
        Authentication::Token(SecretText::from(token.as_str()))
    }

    fn certificate() -> (Vec<u8>, i64) {
        let mut parameters = CertificateParams::new(Vec::new()).expect("no names");
        parameters.not_before = rcgen::date_time_ymd(2026, 1, 1);
        parameters.not_after = rcgen::date_time_ymd(2027, 1, 1);
        let key = KeyPair::generate().expect("a key");
        let not_after = parameters.not_after.unix_timestamp();
        (parameters.self_signed(&key).expect("a certificate").pem().into_bytes(), not_after)
    }

    #[test]
    fn token_says_when_it_expires_and_for_how_long_it_is_valid() {
        let expiry = of(&token(r#"{"exp": 7200, "iat": 3600, "sub": "a"}"#), None).expect("it says so");
        let lifetime = Some(SignedDuration::from_hours(1));
        assert_eq!(expiry, CredentialExpiry { at: at(7200), lifetime, origin: ExpiryOrigin::Token });
    }

    #[test]
    fn client_certificate_says_when_it_expires() {
        let (certificate, not_after) = certificate();
        let key = SecretBytes::from([1].as_slice());
        let expiry = of(&Authentication::ClientCertificate { certificate, key }, None).expect("it says so");
        assert_eq!((expiry.at, expiry.origin), (at(not_after), ExpiryOrigin::ClientCertificate));
        assert_eq!(expiry.lifetime, Some(SignedDuration::from_hours(365 * 24)));
    }

    #[test]
    fn earliest_of_token_and_certificate_counts() {
        let (certificate, _) = certificate();
        let Authentication::Token(token) = token(r#"{"exp": 100}"#) else { unreachable!("a token") };
        let key = SecretBytes::from([1].as_slice());
        let both = Authentication::TokenAndClientCertificate { token, certificate, key };
        assert_eq!(of(&both, None).map(|expiry| expiry.at), Some(at(100)));
    }

    #[test]
    fn annotation_counts_where_the_credential_says_nothing_or_something_later() {
        let opaque = Authentication::Token(SecretText::from("abc"));
        assert_eq!(of(&opaque, None), None);
        let annotated =
            |authentication, second| of(authentication, Some(at(second))).map(|expiry| expiry.origin);
        assert_eq!(annotated(&opaque, 50), Some(ExpiryOrigin::Annotation));
        let token = token(r#"{"exp": 7200}"#);
        assert_eq!(annotated(&token, 7195), Some(ExpiryOrigin::Token));
        assert_eq!(annotated(&token, 9000), Some(ExpiryOrigin::Token));
        assert_eq!(annotated(&token, 3600), Some(ExpiryOrigin::Annotation));
    }

    #[test]
    fn what_cannot_be_read_says_nothing() {
        for claims in ["", "{}", "[]", r#"{"exp": "soon"}"#, r#"{"exp": 1e300}"#] {
            assert_eq!(of(&token(claims), None), None, "{claims}");
        }
        for text in ["a", "a.b.c", "..", "a.%%.c"] {
            assert_eq!(of(&Authentication::Token(SecretText::from(text)), None), None, "{text}");
        }
        let key = SecretBytes::from([1].as_slice());
        let broken = Authentication::ClientCertificate { certificate: b"no PEM".to_vec(), key };
        assert_eq!(of(&broken, None), None);
    }
}
