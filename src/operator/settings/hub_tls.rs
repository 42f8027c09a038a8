//! The settings of TLS on the port for agents: which files, which clients, which protocols.

use std::path::PathBuf;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use rustls::{SupportedCipherSuite, SupportedProtocolVersion};

use super::{DAY, PATH};
use kubesvc_runtime::config::{
    ConfigError, ConfigProblem, FLAG, PASSWORD, Password, SettingType, TEXTS, Values, key, seconds,
};
use kubesvc_runtime::settings;
use kubesvc_runtime::tls::TlsFilesError;
use kubesvc_runtime::tls::clients::ClientAuth;
use kubesvc_runtime::tls::identity::{CertificateError, TlsFiles};
use kubesvc_runtime::tls::names::{self, Named};
use kubesvc_runtime::tls::private_key::PrivateKeyError;

pub(super) const GROUP: &str = "kubesvc.grpc.server.security";
const CLIENT_AUTH: SettingType = SettingType::Choice(&["NONE", "OPTIONAL", "REQUIRE"]);
/// How a store of Java becomes a file that can be read.
const CONVERT: &str =
    "name a PEM file; a key store is converted by openssl pkcs12 -in STORE -nodes -out FILE.pem";

settings! {
    /// TLS of the port for agents, as it is written.
    pub(super) struct HubTlsKeys {
        /// serve the hub over TLS alone
        enabled: bool = key("enabled", FLAG, "false");
        /// file with the hub's certificate and those that lead to its authority, PEM; a path, or a file: URL
        certificate_chain: Option<String> = key("certificateChain", PATH, "");
        /// file with its private key, PEM
        private_key: Option<String> = key("privateKey", PATH, "");
        /// password of that key
        private_key_password: Option<Password> = key("privateKeyPassword", PASSWORD, "");
        /// whether agents may or must show a certificate
        client_auth: ClientAuth = key("clientAuth", CLIENT_AUTH, "NONE");
        /// file with the authorities of agents' certificates, PEM; none: those that the machine trusts
        trust_cert_collection: Option<String> = key("trustCertCollection", PATH, "");
        /// cipher suites, by their names of IANA or OpenSSL; none: all of TLS 1.3 and 1.2 with AEAD and forward secrecy
        ciphers: Vec<String> = key("ciphers", SettingType::List(TEXTS), "");
        /// TLSv1.3, TLSv1.2; none: both
        protocols: Vec<String> = key("protocols", SettingType::List(TEXTS), "");
        /// pace at which the files are read again
        reload: Duration = key("reloadSeconds", seconds(1, DAY), "10");
        /// files with revocation lists, PEM or DER; with one, each issuer of an agent's certificate needs a list that has
        /// not expired
        crl_files: Vec<String> = key("crlFiles", SettingType::List(TEXTS), "");
        /// without certificateChain and privateKey, the operator makes an authority and a certificate: Secret kubesvc-hub,
        /// and for agents ConfigMap kubesvc-hub-ca
        own_certificate: bool = key("ownCertificate", FLAG, "false");
    }
}

/// TLS of the port for agents.
#[derive(Clone, Debug, PartialEq)]
pub struct HubTlsSettings {
    /// The certificate and its key; `None`: the operator makes them.
    pub files: Option<CertificateFiles>,
    /// Whether agents show a certificate.
    pub client_auth: ClientAuth,
    /// File with the authorities of agents; `None`: those that the machine trusts.
    pub authorities: Option<PathBuf>,
    /// Files with revocation lists.
    pub revocation_lists: Vec<PathBuf>,
    /// Versions of TLS; empty: 1.3 and 1.2.
    pub protocols: Vec<&'static SupportedProtocolVersion>,
    /// Cipher suites; empty: all.
    pub suites: Vec<SupportedCipherSuite>,
    /// Interval between two looks at the files.
    pub reload: Duration,
}

/// Files with the certificate of a port and its key.
#[derive(Clone, Debug, PartialEq)]
pub struct CertificateFiles {
    /// The certificate, and those that lead to its authority.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// What the key is encrypted with.
    pub password: Option<Password>,
}

impl CertificateFiles {
    /// The files to read.
    pub fn to_read(&self) -> TlsFiles {
        TlsFiles {
            certificate: self.certificate.clone(),
            key: self.key.clone(),
            password: self.password.as_ref().map(|password| password.secret().clone()),
        }
    }

    /// Which of the keys for certificate, private key and password an error is about, if it is one of them.
    pub(super) fn key_of(
        &self,
        error: &TlsFilesError,
        [certificate, key, password]: [&'static str; 3],
    ) -> Option<&'static str> {
        match error {
            TlsFilesError::Unfit { source, .. } => Some(match source {
                CertificateError::Key(PrivateKeyError::NoPassword | PrivateKeyError::WrongPassword) => {
                    password
                }
                CertificateError::Key(_) => key,
                _ => certificate,
            }),
            TlsFilesError::File { path, .. } if *path == self.certificate => Some(certificate),
            TlsFilesError::File { path, .. } if *path == self.key => Some(key),
            _ => None,
        }
    }
}

impl HubTlsSettings {
    /// The settings to which an error about files belongs.
    pub fn setting_of(&self, error: &TlsFilesError) -> String {
        let keys = ["certificateChain", "privateKey", "privateKeyPassword"];
        let of_files = self.files.as_ref().and_then(|files| files.key_of(error, keys));
        setting(of_files.unwrap_or_else(|| match error {
            TlsFilesError::File { path, .. } | TlsFilesError::Clients { path, .. }
                if self.revocation_lists.contains(path) =>
            {
                "crlFiles"
            }
            TlsFilesError::Unfit { .. } => keys[0],
            TlsFilesError::Setup(_) | TlsFilesError::Interrupted(_) => "ciphers",
            TlsFilesError::File { .. } | TlsFilesError::Clients { .. } | TlsFilesError::NoSystemAuthority => {
                "trustCertCollection"
            }
        }))
    }
}

fn setting(key: &str) -> String {
    format!("{GROUP}.{key}")
}

impl HubTlsKeys {
    /// The keys that ask for TLS or for something of it.
    fn asked(&self) -> Vec<&'static str> {
        let keys = [
            ("certificateChain", self.certificate_chain.is_some()),
            ("privateKey", self.private_key.is_some()),
            ("privateKeyPassword", self.private_key_password.is_some()),
            ("clientAuth", self.client_auth != ClientAuth::None),
            ("trustCertCollection", self.trust_cert_collection.is_some()),
            ("ciphers", !self.ciphers.is_empty()),
            ("protocols", !self.protocols.is_empty()),
            ("crlFiles", !self.crl_files.is_empty()),
            ("ownCertificate", self.own_certificate),
        ];
        keys.into_iter().filter(|(_, is_asked)| *is_asked).map(|(key, _)| key).collect()
    }
}

/// Refuses what cannot be honoured as it is written; `None`: the port speaks plain text.
pub(super) fn checked(keys: HubTlsKeys, values: &Values) -> Result<Option<HubTlsSettings>, ConfigError> {
    let mut found = SettingProblems { values, all: Vec::new() };
    if !keys.enabled {
        // Without a written switch, these keys may be meant to protect something.
        if !values.is_given(&setting("enabled")) {
            for key in keys.asked() {
                found.add(key, format!("needs {GROUP}.enabled: true; with false it is ignored"));
            }
        }
        return found.or(None);
    }
    let files = certificate_files(&keys, &mut found);
    let authorities =
        keys.trust_cert_collection.as_ref().and_then(|text| found.path("trustCertCollection", text));
    let lists = keys.crl_files.iter().filter_map(|text| found.path("crlFiles", text));
    let revocation_lists = lists.collect();
    if !keys.crl_files.is_empty() && keys.client_auth == ClientAuth::None {
        let why =
            format!("needs {GROUP}.clientAuth: OPTIONAL or REQUIRE: no agent is asked for a certificate");
        found.add("crlFiles", why);
    }
    let protocols =
        found.usable("protocols", &keys.protocols, names::protocols(&keys.protocols), "TLSv1.3, TLSv1.2");
    let suites = found.usable(
        "ciphers",
        &keys.ciphers,
        names::suites(&keys.ciphers),
        "such as TLS_AES_128_GCM_SHA256",
    );
    let is_of = |suite: &SupportedCipherSuite| protocols.iter().any(|one| *one == suite.version());
    if !protocols.is_empty() && !suites.is_empty() && !suites.iter().any(is_of) {
        found.add("ciphers", "has no cipher suite of the protocols that are allowed".to_owned());
    }
    let password = keys.private_key_password;
    let files = files.map(|(certificate, key)| CertificateFiles { certificate, key, password });
    found.or(Some(HubTlsSettings {
        files,
        client_auth: keys.client_auth,
        authorities,
        revocation_lists,
        protocols,
        suites,
        reload: keys.reload,
    }))
}

/// The files with certificate and key; `None`: the operator makes them, or a problem says what is missing.
fn certificate_files(keys: &HubTlsKeys, found: &mut SettingProblems<'_>) -> Option<(PathBuf, PathBuf)> {
    let (given, what) = match (&keys.certificate_chain, &keys.private_key) {
        (Some(certificate), Some(key)) => {
            let [certificate, key] = [("certificateChain", certificate), ("privateKey", key)]
                .map(|(key, text)| found.path(key, text));
            return certificate.zip(key);
        }
        (Some(_), None) => ("certificateChain", "privateKey too, the private key of the certificate"),
        (None, Some(_)) => ("privateKey", "certificateChain too, the certificate of the key"),
        (None, None) if keys.own_certificate => return None,
        (None, None) => (
            "enabled",
            "certificateChain and privateKey, or ownCertificate: true, and the operator makes both",
        ),
    };
    found.add(given, format!("needs {GROUP}.{what}"));
    None
}

/// What is wrong with the settings, all at once.
struct SettingProblems<'v> {
    values: &'v Values,
    all: Vec<ConfigProblem>,
}

impl SettingProblems<'_> {
    fn add(&mut self, key: &str, why: String) {
        self.all.push(self.values.rule(&setting(key), why));
    }

    fn path(&mut self, key: &str, text: &str) -> Option<PathBuf> {
        file(text).map_err(|why| self.add(key, why)).ok()
    }

    /// What the names of a list stand for. A problem if there are names, and none stands for anything.
    fn usable<T>(&mut self, key: &str, list: &[String], named: Named<T>, allowed: &str) -> Vec<T> {
        if named.found.is_empty() && list.iter().any(|text| !text.trim().is_empty()) {
            self.add(key, format!("has none of the {key} that are supported: {allowed}"));
        }
        named.found
    }

    /// The settings, if nothing is wrong.
    fn or<T>(self, settings: T) -> Result<T, ConfigError> {
        if self.all.is_empty() { Ok(settings) } else { Err(ConfigError { problems: self.all }) }
    }
}

/// Warnings about the settings, one line each.
pub(super) fn notes(values: &Values) -> Result<Vec<String>, ConfigError> {
    let keys = values.group::<HubTlsKeys>(GROUP)?;
    let mut notes = Vec::new();
    if !keys.enabled {
        let asked: Vec<_> = keys.asked().into_iter().map(|key| format!("`{GROUP}.{key}`")).collect();
        if let Some(first) = keys.asked().first() {
            let (all, have) = (asked.join(", "), if asked.len() == 1 { "has" } else { "have" });
            let (origin, switch) = (values.origin(&setting(first)), values.origin(&setting("enabled")));
            notes
                .push(format!("{origin}: {all} {have} no effect, since {GROUP}.enabled is false ({switch})"));
        }
        return Ok(notes);
    }
    if keys.client_auth == ClientAuth::None && keys.trust_cert_collection.is_some() {
        let origin = values.origin(&setting("trustCertCollection"));
        notes.push(format!(
            "{origin}: `{GROUP}.trustCertCollection` has no effect, since {GROUP}.clientAuth is NONE: no agent is asked for \
             a certificate"
        ));
    }
    let dropped = [
        ("protocols", names::protocols(&keys.protocols).dropped),
        ("ciphers", names::suites(&keys.ciphers).dropped),
    ];
    for (key, names) in dropped.into_iter().filter(|(_, names)| !names.is_empty()) {
        let origin = values.origin(&setting(key));
        notes.push(format!("{origin}: `{GROUP}.{key}`: not supported, and left out: {}", names.join(", ")));
    }
    if keys.client_auth != ClientAuth::None && keys.trust_cert_collection.is_none() {
        let origin = values.origin(&setting("clientAuth"));
        notes.push(format!(
            "{origin}: `{GROUP}.clientAuth` without {GROUP}.trustCertCollection: certificates of every authority that the \
             machine trusts are accepted, public ones too"
        ));
    }
    Ok(notes)
}

/// The path of a file, which may be written as a `file:` URL.
pub(super) fn file(text: &str) -> Result<PathBuf, String> {
    let is_scheme = |scheme: &str| {
        scheme.len() > 1 && scheme.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '*'))
    };
    let Some((scheme, rest)) = text.split_once(':').filter(|(scheme, _)| is_scheme(scheme)) else {
        return Ok(text.into());
    };
    if !scheme.eq_ignore_ascii_case("file") {
        return Err(format!("begins with {scheme}:, which is no file: {CONVERT}"));
    }
    let path = match rest.strip_prefix("//") {
        Some(rest) => rest.strip_prefix("localhost").unwrap_or(rest),
        None => rest,
    };
    let is_remote = rest.starts_with("//") && !path.starts_with('/');
    let decoded = percent_decode_str(path).decode_utf8();
    match decoded {
        Ok(path) if !is_remote && !path.is_empty() => Ok(path.into_owned().into()),
        _ => Err("is no file: URL of this machine, such as file:/tls/tls.crt".to_owned()),
    }
}
