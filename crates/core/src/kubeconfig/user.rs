//! How the chosen user authenticates, and the secret values that this takes.

use std::fmt;

use secrecy::zeroize::Zeroize;
use secrecy::{ExposeSecret, SecretBox, SecretSlice, SecretString};

use crate::kubeconfig::fields::{Mapping, is_set};
use crate::kubeconfig::{KubeconfigError, pem};

/// How a client authenticates. `Debug` shows only the kind.
#[derive(Clone, PartialEq, Eq)]
pub enum Authentication {
    /// A bearer token of visible ASCII, so that it is valid in a header.
    Token(SecretText),
    /// A TLS client certificate.
    ClientCertificate {
        /// The certificate and its chain (PEM only).
        certificate: Vec<u8>,
        /// The private key: a single, unencrypted PEM block.
        key: SecretBytes,
    },
    /// Both, as kubectl allows: the certificate in the TLS handshake, the token in each request.
    TokenAndClientCertificate {
        /// As in [`Authentication::Token`].
        token: SecretText,
        /// As in [`Authentication::ClientCertificate`].
        certificate: Vec<u8>,
        /// As in [`Authentication::ClientCertificate`].
        key: SecretBytes,
    },
}

impl Authentication {
    /// The kind in words, for logs and messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Token(_) => "token",
            Self::ClientCertificate { .. } => "client certificate",
            Self::TokenAndClientCertificate { .. } => "token and client certificate",
        }
    }
}

impl fmt::Debug for Authentication {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind())
    }
}

/// A secret: wiped from memory when dropped, and accessible only through [`ExposeSecret::expose_secret`].
///
/// Wraps [`secrecy::SecretBox`] and adds comparison, which vetting twice needs.
pub struct Secret<S: Zeroize + ?Sized>(SecretBox<S>);

/// A secret text, such as a token.
pub type SecretText = Secret<str>;
/// Secret bytes, such as a private key.
pub type SecretBytes = Secret<[u8]>;

impl<S: Zeroize + ?Sized> ExposeSecret<S> for Secret<S> {
    fn expose_secret(&self) -> &S {
        self.0.expose_secret()
    }
}

impl From<&str> for SecretText {
    fn from(text: &str) -> Self {
        Self(SecretString::from(text))
    }
}

impl From<&[u8]> for SecretBytes {
    fn from(bytes: &[u8]) -> Self {
        Self(SecretSlice::from(bytes.to_vec()))
    }
}

impl<S: Zeroize + ?Sized> Clone for Secret<S>
where
    SecretBox<S>: Clone,
{
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<S: Zeroize + PartialEq + ?Sized> PartialEq for Secret<S> {
    fn eq(&self, other: &Self) -> bool {
        self.expose_secret() == other.expose_secret()
    }
}

impl<S: Zeroize + Eq + ?Sized> Eq for Secret<S> {}

impl<S: Zeroize + ?Sized> fmt::Debug for Secret<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

const USE_A_CREDENTIAL: &str = "use a token, or client-certificate-data with client-key-data";
const BASIC_LOGIN: &str = "is a login by user name and password, which Kubernetes has not had since 1.19";
const NOT_SOMEBODY_ELSE: &str = "impersonates somebody";
const OWN_CREDENTIAL: &str = "remove it, and give the credential of the account to act as";

/// Refuses authentication that would run a program, read a file or use a password, and impersonation.
pub(super) fn refuse_foreign(user: &Mapping<'_, '_>) -> Result<(), KubeconfigError> {
    for (key, problem) in
        [("exec", "runs a program to log in"), ("auth-provider", "is a plugin of kubectl's to log in")]
    {
        // Even an empty entry selects a login method.
        if user.get(key).is_some() {
            return Err(KubeconfigError::exec(user.path_of(key), problem, USE_A_CREDENTIAL));
        }
    }
    for (key, problem, remedy) in [
        ("tokenFile", "is a path, and no files are read", "put the token itself into token"),
        (
            "client-certificate",
            "is a path, and no files are read",
            "put the certificate itself into client-certificate-data, base64-encoded",
        ),
        (
            "client-key",
            "is a path, and no files are read",
            "put the key itself into client-key-data, base64-encoded",
        ),
        ("username", BASIC_LOGIN, USE_A_CREDENTIAL),
        ("password", BASIC_LOGIN, USE_A_CREDENTIAL),
        ("as", NOT_SOMEBODY_ELSE, OWN_CREDENTIAL),
        ("as-uid", NOT_SOMEBODY_ELSE, OWN_CREDENTIAL),
        ("as-groups", NOT_SOMEBODY_ELSE, OWN_CREDENTIAL),
        ("as-user-extra", NOT_SOMEBODY_ELSE, OWN_CREDENTIAL),
    ] {
        if user.get(key).is_some_and(is_set) {
            return Err(KubeconfigError::new(user.path_of(key), problem, remedy));
        }
    }
    Ok(())
}

/// The credential, which is required.
pub(super) fn authentication(user: &Mapping<'_, '_>) -> Result<Authentication, KubeconfigError> {
    let token = token(user)?;
    match (token, client_certificate(user)?) {
        (Some(token), None) => Ok(Authentication::Token(token)),
        (None, Some((certificate, key))) => Ok(Authentication::ClientCertificate { certificate, key }),
        (Some(token), Some((certificate, key))) => {
            Ok(Authentication::TokenAndClientCertificate { token, certificate, key })
        }
        (None, None) => Err(KubeconfigError::new(user.own_path(), "holds no credential", USE_A_CREDENTIAL)),
    }
}

fn token(user: &Mapping<'_, '_>) -> Result<Option<SecretText>, KubeconfigError> {
    let Some(token) = user.text("token")? else { return Ok(None) };
    let refuse = |problem, remedy| Err(KubeconfigError::new(user.path_of("token"), problem, remedy));
    if token.contains(['\r', '\n']) {
        return refuse("holds a line break", "write the token on one line, without `|` or `>` before it");
    }
    if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return refuse("holds characters that no header may", "use the token as it was issued");
    }
    Ok(Some(SecretText::from(token)))
}

fn client_certificate(user: &Mapping<'_, '_>) -> Result<Option<(Vec<u8>, SecretBytes)>, KubeconfigError> {
    const CERTIFICATE: &str = "client-certificate-data";
    const KEY: &str = "client-key-data";
    match (user.bytes(CERTIFICATE)?, user.bytes(KEY)?) {
        (None, None) => Ok(None),
        (Some(_), None) => Err(KubeconfigError::new(
            user.path_of(KEY),
            "is missing beside client-certificate-data",
            "add the key that belongs to the certificate",
        )),
        (None, Some(_)) => Err(KubeconfigError::new(
            user.path_of(CERTIFICATE),
            "is missing beside client-key-data",
            "add the certificate that belongs to the key",
        )),
        (Some(certificate), Some(key)) => Ok(Some((
            pem::client_certificate(&certificate, &user.path_of(CERTIFICATE))?,
            pem::private_key(&key, &user.path_of(KEY))?,
        ))),
    }
}
