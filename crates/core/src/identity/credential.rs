//! What an agent shows: the facts of its certificate and of its token, both verified already.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer as _;

use super::resource::{CredentialMatch, JwtMatch, ServiceAccountMatch, TokenSecret};
use super::subject::{Subject, SubjectError, attributes};
use super::template::is_exact;

/// What identifies an agent: a certificate, a token, or both.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AgentCredential {
    /// Its certificate.
    pub certificate: Option<CertificateFacts>,
    /// Its token.
    pub token: Option<TokenFacts>,
}

/// The facts of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFacts {
    /// URIs of its subjectAltName.
    pub uris: Vec<String>,
    /// The subject's attributes with their values; `None`: it is no text.
    pub attributes: Vec<(String, Option<String>)>,
    /// Its subject.
    pub subject: Subject,
    /// The subject of the authority that signed it.
    pub issuer: Subject,
    /// SHA-256 in lower-case hexadecimal.
    pub fingerprint: String,
    /// Serial number in lower-case hexadecimal, without leading zeros.
    pub serial: String,
    /// Start of its validity, in epoch seconds.
    pub not_before: i64,
    /// End of its validity, in epoch seconds.
    pub not_after: i64,
}

/// The facts of a token.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenFacts {
    /// Whose it is.
    pub holder: TokenHolder,
    /// Id of the token (`jti`).
    pub id: Option<String>,
    /// When it was issued, in epoch seconds.
    pub issued_at: Option<i64>,
    /// When it expires, in epoch seconds; `None`: never.
    pub expires: Option<i64>,
}

/// Whose token it is.
#[derive(Clone, Debug, PartialEq)]
pub enum TokenHolder {
    /// A service account of the operator's cluster, as a TokenReview says.
    ServiceAccount {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// The subject of another issuer.
    Jwt {
        /// `iss`.
        issuer: String,
        /// `sub`.
        subject: String,
        /// All claims.
        claims: Map<String, Value>,
    },
    /// Whoever knows the content of these Secrets, which is the same.
    Secrets(Vec<TokenSecret>),
}

impl CertificateFacts {
    /// Reads a certificate in DER.
    ///
    /// # Errors
    /// It cannot be read, or its subject is too long.
    pub fn read(certificate: &[u8]) -> Result<Self, SubjectError> {
        let (_, parsed) = X509Certificate::from_der(certificate).map_err(|_| SubjectError::Damaged)?;
        let names = parsed.subject_alternative_name().map_err(|_| SubjectError::Damaged)?;
        let names = names.map(|names| names.value.general_names.as_slice()).unwrap_or_default();
        let uris = names.iter().filter_map(|name| match name {
            GeneralName::URI(uri) => Some((*uri).to_owned()),
            _ => None,
        });
        Ok(Self {
            uris: uris.collect(),
            attributes: attributes(parsed.subject()),
            subject: Subject::of(parsed.subject())?,
            issuer: Subject::of(parsed.issuer())?,
            fingerprint: hex::encode(Sha256::digest(certificate)),
            serial: normal_serial(&hex::encode(parsed.raw_serial())),
            not_before: parsed.validity().not_before.timestamp(),
            not_after: parsed.validity().not_after.timestamp(),
        })
    }

    /// The match of certificates such as this one: by its only URI, its subject, or itself.
    fn to_match(&self) -> CredentialMatch {
        let issuer = Some(self.issuer.as_str().to_owned()).filter(|issuer| !issuer.is_empty());
        let issuer = CredentialMatch { issuer, ..CredentialMatch::default() };
        if let [uri] = self.uris.as_slice()
            && is_exact(uri)
        {
            return CredentialMatch { uri: Some(uri.clone()), ..issuer };
        }
        let texts = self.attributes.iter().filter_map(|(kind, value)| Some((kind.clone(), value.clone()?)));
        let attributes: BTreeMap<_, _> = texts.collect();
        let is_complete = attributes.len() == self.attributes.len() && !attributes.is_empty();
        if is_complete && attributes.values().all(|value| is_exact(value)) {
            return CredentialMatch { subject: Some(attributes), ..issuer };
        }
        CredentialMatch { fingerprints: Some(vec![self.fingerprint.clone()]), ..CredentialMatch::default() }
    }
}

impl AgentCredential {
    /// Whether nothing is shown.
    pub fn is_empty(&self) -> bool {
        self.certificate.is_none() && self.token.is_none()
    }

    /// Whether both are shown by one holder: by certificates of one subject with the same URIs, and tokens of one account. A
    /// renewed one differs in all else.
    pub fn is_of_same_holder(&self, other: &Self) -> bool {
        let certificate = match (&self.certificate, &other.certificate) {
            (Some(one), Some(other)) => {
                let is_named = !one.uris.is_empty() || !one.subject.as_str().is_empty();
                let same_names = one.uris == other.uris && one.subject == other.subject;
                same_names && (is_named || one.fingerprint == other.fingerprint)
            }
            (one, other) => one.is_none() && other.is_none(),
        };
        let token = match (&self.token, &other.token) {
            (Some(one), Some(other)) => one.holder.is(&other.holder),
            (one, other) => one.is_none() && other.is_none(),
        };
        certificate && token
    }

    /// When it expires, in epoch seconds: the earlier end of the two.
    pub fn expires(&self) -> Option<i64> {
        let certificate = self.certificate.as_ref().map(|certificate| certificate.not_after);
        let token = self.token.as_ref().and_then(|token| token.expires);
        certificate.into_iter().chain(token).min()
    }

    /// The match that an object for this agent would have: by its token if it shows one. `None` if it shows nothing.
    pub fn to_match(&self) -> Option<CredentialMatch> {
        match (&self.token, &self.certificate) {
            (Some(token), _) => token.to_match(),
            (None, certificate) => certificate.as_ref().map(CertificateFacts::to_match),
        }
    }
}

impl TokenHolder {
    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (
                Self::Jwt { issuer, subject, .. },
                Self::Jwt { issuer: other_issuer, subject: other_subject, .. },
            ) => issuer == other_issuer && subject == other_subject,
            (one, other) => one == other,
        }
    }
}

impl TokenFacts {
    fn to_match(&self) -> Option<CredentialMatch> {
        let one = match &self.holder {
            TokenHolder::ServiceAccount { namespace, name } => {
                let of = ServiceAccountMatch { namespace: namespace.clone(), name: name.clone() };
                CredentialMatch { service_account: Some(of), ..CredentialMatch::default() }
            }
            TokenHolder::Jwt { issuer, subject, .. } if is_exact(subject) => {
                let of = JwtMatch {
                    issuer: issuer.clone(),
                    subject: subject.clone(),
                    claims: BTreeMap::default(),
                };
                CredentialMatch { jwt: Some(of), ..CredentialMatch::default() }
            }
            TokenHolder::Jwt { .. } => return None,
            TokenHolder::Secrets(secrets) => {
                CredentialMatch { token_secret: secrets.first().cloned(), ..CredentialMatch::default() }
            }
        };
        Some(one)
    }
}

/// For people: names nothing secret.
impl fmt::Display for AgentCredential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.certificate, &self.token) {
            (None, None) => f.write_str("no credential"),
            (Some(certificate), None) => certificate.fmt(f),
            (None, Some(token)) => token.fmt(f),
            (Some(certificate), Some(token)) => write!(f, "{certificate} with {token}"),
        }
    }
}

impl fmt::Display for CertificateFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.uris.as_slice() {
            [uri] => write!(f, "certificate of {uri:?}")?,
            _ => write!(f, "certificate of {:?}", self.subject.as_str())?,
        }
        write!(f, " (SHA-256 {})", self.fingerprint)
    }
}

impl fmt::Display for TokenFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.holder {
            TokenHolder::ServiceAccount { namespace, name } => {
                write!(f, "token of service account {namespace}/{name}")
            }
            TokenHolder::Jwt { issuer, subject, .. } => write!(f, "token of {subject:?} from {issuer:?}"),
            TokenHolder::Secrets(secrets) => {
                let names: Vec<_> = secrets.iter().map(|secret| secret.name.as_str()).collect();
                write!(f, "token of Secret {}", names.join(", "))
            }
        }
    }
}

/// A digest in lower-case hexadecimal without colons; `None` if it is no SHA-256.
pub(super) fn normal_fingerprint(text: &str) -> Option<String> {
    let digits: String = text.chars().filter(|one| *one != ':').collect::<String>().to_ascii_lowercase();
    (digits.len() == 64 && digits.bytes().all(|one| one.is_ascii_hexdigit())).then_some(digits)
}

/// A serial number in lower-case hexadecimal without colons and leading zeros.
pub(super) fn normal_serial(text: &str) -> String {
    let digits: String = text.chars().filter(|one| *one != ':').collect::<String>().to_ascii_lowercase();
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() { "0".to_owned() } else { digits.to_owned() }
}
