//! The settings of who may call REST, and of where audit lines go.

use std::collections::HashSet;
use std::path::PathBuf;

use super::PATH;
use crate::access::{CertificateUser, CertificateUsers, ShownCertificate};
use crate::rest::RestAuthMode;
use kubesvc_core::identity::MAX_SUBJECT_BYTES;
use kubesvc_runtime::config::{
    ConfigError, ConfigProblem, FromSetting, SettingType, TEXTS, Values, key, list,
};
use kubesvc_runtime::settings;

pub(super) const GROUP: &str = "kubesvc.rest.auth";
pub(super) const AUDIT_OUTPUT: &str = "kubesvc.audit.output";
const CERTIFICATES: &str = "kubesvc.rest.auth.certificates";
const MODE: &str = "kubesvc.rest.auth.mode";
const MODES: SettingType = SettingType::Choice(&["off", "log", "enforce"]);
/// Maximum number of certificates that are users.
const MAX_CERTIFICATES: usize = 1000;
const STDOUT: &str = "stdout";

settings! {
    /// Who may call REST, as it is written.
    pub(super) struct RestAuthKeys {
        /// whether callers of REST must show who they are, and have rights: off, log (admit, but count and log who would be refused), enforce
        mode: RestAuthMode = key("mode", MODES, "off");
        /// Certificates that identify callers.
        certificates: Vec<CertificateKeys> = list("certificates", MAX_CERTIFICATES);
    }

    struct CertificateKeys {
        /// a URI of the subject alternative name of a caller's certificate
        uri: Option<String> = key("uri", PATH, "");
        /// or its subject, as RFC 4514 writes it, such as CN=gate,O=acme
        subject: Option<String> = key("subject", PATH, "");
        /// the caller's user in RBAC
        user: Option<String> = key("user", SettingType::Optional(253), "");
        /// its groups there
        groups: Vec<String> = key("groups", SettingType::List(TEXTS), "");
    }
}

impl FromSetting for RestAuthMode {}

/// Who may call REST.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RestAuthSettings {
    /// Whether callers must be known.
    pub mode: RestAuthMode,
    /// Whose certificates identify them.
    pub certificates: CertificateUsers,
}

/// Where audit lines go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuditOutput {
    /// To standard output.
    Stdout,
    /// To the end of this file.
    File(PathBuf),
}

/// Refuses what cannot be honoured as it is written.
pub(super) fn checked(
    RestAuthKeys { mode, certificates }: RestAuthKeys,
    values: &Values,
) -> Result<RestAuthSettings, ConfigError> {
    if mode == RestAuthMode::Off {
        // Without a written mode, these entries may be meant to let somebody in.
        return match certificates.is_empty() || values.is_given(MODE) {
            true => Ok(RestAuthSettings::default()),
            false => Err(rule(
                values,
                "[0].user",
                "needs kubesvc.rest.auth.mode: log or enforce; with off it is ignored",
            )
            .into()),
        };
    }
    let mut problems: Vec<ConfigProblem> = Vec::new();
    if certificates.len() > MAX_CERTIFICATES {
        let why = format!("has {} entries, and {MAX_CERTIFICATES} are the most", certificates.len());
        problems.push(values.rule(&format!("{CERTIFICATES}[{MAX_CERTIFICATES}]"), why));
    }
    let asks = values.is_true("server.ssl.enabled")
        && values.text("server.ssl.clientAuth").is_some_and(|word| !word.is_empty() && word != "none");
    if !certificates.is_empty() && !asks {
        let why = "needs server.ssl.enabled: true and server.ssl.clientAuth: want or need, since no caller shows a certificate otherwise";
        problems.push(rule(values, "[0].user", why));
    }
    let (mut users, mut shown) = (Vec::new(), HashSet::new());
    for (at, keys) in certificates.into_iter().enumerate() {
        let read = keys.user().and_then(|(key, user)| match shown.insert(user.shown.clone()) {
            true => Ok(user),
            false => Err((key, "is that of an earlier entry too; name each certificate once".to_owned())),
        });
        match read {
            Ok(user) => users.push(user),
            Err((key, why)) => problems.push(rule(values, &format!("[{at}].{key}"), &why)),
        }
    }
    if problems.is_empty() {
        Ok(RestAuthSettings { mode, certificates: CertificateUsers(users) })
    } else {
        Err(ConfigError { problems })
    }
}

fn rule(values: &Values, key: &str, why: &str) -> ConfigProblem {
    values.rule(&format!("{CERTIFICATES}{key}"), why.to_owned())
}

/// A key of an entry, and what is wrong with it.
type WrongCertificate = (&'static str, String);

impl CertificateKeys {
    /// The user, and the key that names its certificate.
    fn user(self) -> Result<(&'static str, CertificateUser), WrongCertificate> {
        let wrong = |key, why: &str| Err((key, why.to_owned()));
        let (key, shown) = match (self.uri, self.subject) {
            (Some(uri), None) if uri.contains(':') => ("uri", ShownCertificate::Uri(uri)),
            (Some(_), None) => return wrong("uri", "must be a whole URI, such as spiffe://acme/gate"),
            (None, Some(subject)) if is_subject(&subject) => ("subject", ShownCertificate::Subject(subject)),
            (None, Some(_)) => {
                return wrong(
                    "subject",
                    "must be a subject as RFC 4514 writes it, such as CN=gate,O=acme: no blank after a comma, and \
                     , + \" \\ < > ; = of a value as \\2C and so on (openssl x509 -noout -subject -nameopt RFC2253)",
                );
            }
            (Some(_), Some(_)) => return wrong("subject", "is beside uri; give one of the two"),
            (None, None) => return wrong("uri", "is missing, or subject: say which certificate it is"),
        };
        let Some(user) = self.user else {
            return wrong("user", "is missing: name the caller's user in RBAC");
        };
        if user.starts_with("system:") {
            return wrong("user", "must not begin with system:, which Kubernetes keeps for its own");
        }
        if self.groups.iter().any(|group| group.is_empty() || group.starts_with("system:")) {
            return wrong(
                "groups",
                "must not be empty or begin with system:, which Kubernetes keeps for its own",
            );
        }
        Ok((key, CertificateUser { shown, user, groups: self.groups }))
    }
}

/// Whether a certificate can have this subject, as it is compared.
fn is_subject(text: &str) -> bool {
    let is_type = |name: &str| {
        name.starts_with(|first: char| first.is_ascii_alphanumeric())
            && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '.')
    };
    let is_attribute =
        |text: &str| text.split_once('=').is_some_and(|(name, value)| is_type(name) && is_value(value));
    text.len() <= MAX_SUBJECT_BYTES && text.split([',', '+']).all(is_attribute)
}

/// Whether each special character of a value is escaped, and nothing else.
fn is_value(text: &str) -> bool {
    if text.starts_with(' ') || text.ends_with(' ') || text.contains(['"', '<', '>', ';', '=']) {
        return false;
    }
    text.split('\\').skip(1).all(|after| {
        let code = after.as_bytes().get(..2).unwrap_or_default();
        code.len() == 2 && code.iter().all(|one| matches!(one, b'0'..=b'9' | b'A'..=b'F'))
    })
}

/// Where audit lines go.
pub(super) fn audit_output(text: String, values: &Values) -> Result<AuditOutput, ConfigError> {
    match text.as_str() {
        STDOUT => Ok(AuditOutput::Stdout),
        path if path.starts_with('/') => Ok(AuditOutput::File(text.into())),
        _ => {
            Err(values.rule(AUDIT_OUTPUT, "must be stdout, or the absolute path of a file".to_owned()).into())
        }
    }
}

/// Warnings about the settings, one line each.
pub(super) fn notes(values: &Values) -> Result<Vec<String>, ConfigError> {
    let keys = values.group::<RestAuthKeys>(GROUP)?;
    if keys.mode != RestAuthMode::Off || keys.certificates.is_empty() {
        return Ok(Vec::new());
    }
    let (origin, mode) = (values.origin(&format!("{CERTIFICATES}[0].user")), values.origin(MODE));
    Ok(vec![format!("{origin}: `{CERTIFICATES}` has no effect, since {MODE} is off ({mode})")])
}
