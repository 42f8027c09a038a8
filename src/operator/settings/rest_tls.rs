//! The settings of TLS on the port of REST: `server.ssl`, as Spring Boot has it for PEM files.

use std::path::PathBuf;

use super::hub_tls::file;
use super::{CertificateFiles, PATH};
use kubesvc_runtime::config::{
    ConfigError, ConfigProblem, FLAG, PASSWORD, Password, SettingType, Values, key,
};
use kubesvc_runtime::settings;
use kubesvc_runtime::tls::TlsFilesError;
use kubesvc_runtime::tls::clients::ClientAuth;

pub(super) const GROUP: &str = "server.ssl";
const CLIENT_AUTH: SettingType = SettingType::OptionalChoice(&["none", "want", "need"]);

settings! {
    /// TLS of the port of REST, as it is written.
    pub(super) struct RestTlsKeys {
        /// serve REST over TLS alone
        enabled: bool = key("enabled", FLAG, "false");
        /// file with the certificate of REST and those that lead to its authority, PEM; a path, or a file: URL
        certificate: Option<String> = key("certificate", PATH, "");
        /// file with its private key, PEM
        private_key: Option<String> = key("certificatePrivateKey", PATH, "");
        /// password of that key
        key_password: Option<Password> = key("keyPassword", PASSWORD, "");
        /// whether callers may (want) or must (need) show a certificate; kubesvc.rest.auth.certificates says who they are
        client_auth: ClientAuth = key("clientAuth", CLIENT_AUTH, "none");
        /// file with the authorities of callers' certificates, PEM
        trust_certificate: Option<String> = key("trustCertificate", PATH, "");
    }
}

/// TLS of the port of REST.
#[derive(Clone, Debug, PartialEq)]
pub struct RestTlsSettings {
    /// The certificate and its key.
    pub files: CertificateFiles,
    /// Whether callers show a certificate.
    pub client_auth: ClientAuth,
    /// File with the authorities of callers; there is one if they show certificates.
    pub authorities: Option<PathBuf>,
}

impl RestTlsSettings {
    /// The setting to which an error about files belongs.
    pub fn setting_of(&self, error: &TlsFilesError) -> String {
        let keys = ["certificate", "certificatePrivateKey", "keyPassword"];
        setting(self.files.key_of(error, keys).unwrap_or("trustCertificate"))
    }
}

fn setting(key: &str) -> String {
    format!("{GROUP}.{key}")
}

impl RestTlsKeys {
    /// The keys that ask for TLS or for something of it.
    fn asked(&self) -> impl Iterator<Item = &'static str> {
        let keys = [
            ("certificate", self.certificate.is_some()),
            ("certificatePrivateKey", self.private_key.is_some()),
            ("keyPassword", self.key_password.is_some()),
            ("clientAuth", self.client_auth != ClientAuth::None),
            ("trustCertificate", self.trust_certificate.is_some()),
        ];
        keys.into_iter().filter(|(_, is_asked)| *is_asked).map(|(key, _)| key)
    }
}

/// Refuses what cannot be honoured as it is written; `None`: the port speaks plain text.
pub(super) fn checked(keys: RestTlsKeys, values: &Values) -> Result<Option<RestTlsSettings>, ConfigError> {
    let needs = |key: &str, what: &str| values.rule(&setting(key), format!("needs {GROUP}.{what}"));
    if !keys.enabled {
        // Without a written switch, these keys may be meant to protect something.
        let asked = keys.asked().filter(|_| !values.is_given(&setting("enabled")));
        let problems: Vec<_> =
            asked.map(|key| needs(key, "enabled: true; with false it is ignored")).collect();
        return if problems.is_empty() { Ok(None) } else { Err(ConfigError { problems }) };
    }
    let mut problems: Vec<ConfigProblem> = Vec::new();
    let mut path = |key: &str, text: Option<&String>| {
        let read = file(text?).map_err(|why| problems.push(values.rule(&setting(key), why)));
        read.ok()
    };
    let certificate = path("certificate", keys.certificate.as_ref());
    let key = path("certificatePrivateKey", keys.private_key.as_ref());
    let authorities = path("trustCertificate", keys.trust_certificate.as_ref());
    if keys.certificate.is_none() {
        problems.push(needs("enabled", "certificate, a PEM file"));
    } else if keys.private_key.is_none() {
        problems.push(needs("certificate", "certificatePrivateKey too, the private key of the certificate"));
    }
    if keys.client_auth != ClientAuth::None && keys.trust_certificate.is_none() {
        problems.push(needs("clientAuth", "trustCertificate, the authorities of callers' certificates"));
    }
    if keys.client_auth == ClientAuth::None && keys.trust_certificate.is_some() {
        problems.push(needs(
            "trustCertificate",
            "clientAuth: want or need: no caller is asked for a certificate",
        ));
    }
    match certificate.zip(key).filter(|_| problems.is_empty()) {
        Some((certificate, key)) => Ok(Some(RestTlsSettings {
            files: CertificateFiles { certificate, key, password: keys.key_password },
            client_auth: keys.client_auth,
            authorities,
        })),
        None => Err(ConfigError { problems }),
    }
}

/// Warnings about the settings, one line each.
pub(super) fn notes(values: &Values) -> Result<Vec<String>, ConfigError> {
    let keys = values.group::<RestTlsKeys>(GROUP)?;
    let ignored = keys.asked().filter(|_| !keys.enabled);
    Ok(ignored
        .map(|key| {
            let (origin, switch) = (values.origin(&setting(key)), values.origin(&setting("enabled")));
            format!("{origin}: `{GROUP}.{key}` has no effect, since {GROUP}.enabled is false ({switch})")
        })
        .collect())
}
