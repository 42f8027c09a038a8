//! How the chosen user authenticates.

use crate::account::kubeconfig::Authentication;
use crate::account::kubeconfig::fields::{Mapping, is_set};
use crate::account::kubeconfig::pem;
use crate::account::kubeconfig::refusal::Refusal;
use crate::account::kubeconfig::secret::{SecretBytes, SecretText};

const USE_A_CREDENTIAL: &str = "use a token, or client-certificate-data with client-key-data";
const NOT_SOMEBODY_ELSE: &str = "impersonates somebody";
const OWN_CREDENTIAL: &str = "remove it, and give the credential of the account to act as";

/// Refuses what would run a program, read a file, or act as somebody else.
pub(super) fn refuse_foreign(user: &Mapping<'_, '_>) -> Result<(), Refusal> {
    for (key, problem) in
        [("exec", "runs a program to log in"), ("auth-provider", "is a plugin of kubectl's to log in")]
    {
        // Even an empty one is a way to log in.
        if user.get(key).is_some() {
            return Err(Refusal::exec(user.place(key), problem, USE_A_CREDENTIAL));
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
        ("as", NOT_SOMEBODY_ELSE, OWN_CREDENTIAL),
        ("as-uid", NOT_SOMEBODY_ELSE, OWN_CREDENTIAL),
        ("as-groups", NOT_SOMEBODY_ELSE, OWN_CREDENTIAL),
        ("as-user-extra", NOT_SOMEBODY_ELSE, OWN_CREDENTIAL),
    ] {
        if user.get(key).is_some_and(is_set) {
            return Err(Refusal::new(user.place(key), problem, remedy));
        }
    }
    Ok(())
}

/// The credential: there has to be one, and of what goes into the Authorization header only one.
pub(super) fn authentication(user: &Mapping<'_, '_>) -> Result<Authentication, Refusal> {
    let token = token(user)?;
    let basic = basic(user)?;
    let certificate = client_certificate(user)?;
    let refuse = |key: &str, problem: &'static str| {
        Err(Refusal::new(user.place(key), problem, "keep one way to authenticate and remove the other"))
    };
    match (token, certificate, basic) {
        (Some(_), _, Some(_)) => refuse("username", "stands beside a token"),
        (None, Some(_), Some(_)) => refuse("username", "stands beside a client certificate"),
        (None, None, Some((username, password))) => Ok(Authentication::Basic { username, password }),
        (Some(token), None, None) => Ok(Authentication::Token(token)),
        (None, Some((certificate, key)), None) => Ok(Authentication::ClientCertificate { certificate, key }),
        (Some(token), Some((certificate, key)), None) => {
            Ok(Authentication::TokenAndClientCertificate { token, certificate, key })
        }
        (None, None, None) => Err(Refusal::new(user.own_place(), "holds no credential", USE_A_CREDENTIAL)),
    }
}

fn token(user: &Mapping<'_, '_>) -> Result<Option<SecretText>, Refusal> {
    let Some(token) = user.text("token")? else { return Ok(None) };
    let refuse = |problem, remedy| Err(Refusal::new(user.place("token"), problem, remedy));
    if token.contains(['\r', '\n']) {
        return refuse("holds a line break", "write the token on one line, without `|` or `>` before it");
    }
    if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return refuse("holds characters that no header may", "use the token as it was issued");
    }
    Ok(Some(SecretText::from(token)))
}

fn basic(user: &Mapping<'_, '_>) -> Result<Option<(String, SecretText)>, Refusal> {
    let (username, password) = match (user.text("username")?, user.text("password")?) {
        (None, None) => return Ok(None),
        (Some(_), None) => {
            return Err(Refusal::new(user.place("password"), "is missing beside username", USE_A_CREDENTIAL));
        }
        (None, Some(_)) => {
            return Err(Refusal::new(user.place("username"), "is missing beside password", USE_A_CREDENTIAL));
        }
        (Some(username), Some(password)) => (username, password),
    };
    if username.contains(|character: char| character == ':' || character.is_control()) {
        return Err(Refusal::new(
            user.place("username"),
            "holds a colon or a control character",
            USE_A_CREDENTIAL,
        ));
    }
    if password.contains(char::is_control) {
        return Err(Refusal::new(user.place("password"), "holds a control character", USE_A_CREDENTIAL));
    }
    Ok(Some((username.to_owned(), SecretText::from(password))))
}

fn client_certificate(user: &Mapping<'_, '_>) -> Result<Option<(Vec<u8>, SecretBytes)>, Refusal> {
    const CERTIFICATE: &str = "client-certificate-data";
    const KEY: &str = "client-key-data";
    match (user.bytes(CERTIFICATE)?, user.bytes(KEY)?) {
        (None, None) => Ok(None),
        (Some(_), None) => Err(Refusal::new(
            user.place(KEY),
            "is missing beside client-certificate-data",
            "add the key that belongs to the certificate",
        )),
        (None, Some(_)) => Err(Refusal::new(
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
