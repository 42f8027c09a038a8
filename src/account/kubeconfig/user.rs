//! How the chosen user authenticates.

use crate::account::kubeconfig::Authentication;
use crate::account::kubeconfig::error::KubeconfigError;
use crate::account::kubeconfig::fields::{Mapping, is_set};
use crate::account::kubeconfig::pem;
use crate::account::kubeconfig::secret::{SecretBytes, SecretText};

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
            return Err(KubeconfigError::exec(user.place(key), problem, USE_A_CREDENTIAL));
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
            return Err(KubeconfigError::new(user.place(key), problem, remedy));
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
        (None, None) => Err(KubeconfigError::new(user.own_place(), "holds no credential", USE_A_CREDENTIAL)),
    }
}

fn token(user: &Mapping<'_, '_>) -> Result<Option<SecretText>, KubeconfigError> {
    let Some(token) = user.text("token")? else { return Ok(None) };
    let refuse = |problem, remedy| Err(KubeconfigError::new(user.place("token"), problem, remedy));
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
            user.place(KEY),
            "is missing beside client-certificate-data",
            "add the key that belongs to the certificate",
        )),
        (None, Some(_)) => Err(KubeconfigError::new(
            user.place(CERTIFICATE),
            "is missing beside client-key-data",
            "add the certificate that belongs to the key",
        )),
        (Some(certificate), Some(key)) => Ok(Some((
            pem::certificates(&certificate, &user.place(CERTIFICATE))?,
            pem::private_key(&key, &user.place(KEY))?,
        ))),
    }
}
