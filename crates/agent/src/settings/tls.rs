//! TLS of the agent: to the hub, and of the health server.

use std::path::{Path, PathBuf};

use rustls::pki_types::ServerName;
use serde::Deserialize;

use super::AgentSettings;
use kubesvc_runtime::config::{
    ConfigError, FLAG, FromSetting, PASSWORD, Password, SettingType, Source, Values, group, key,
};
use kubesvc_runtime::settings;
use kubesvc_runtime::tls::clients::ClientAuth;
use kubesvc_runtime::tls::identity::TlsFiles;

const PATH: SettingType = SettingType::Optional(4096);
const NAME: SettingType = SettingType::Optional(255);

settings! {
    /// TLS to the hub.
    #[derive(Default)]
    pub struct DialTlsSettings {
        /// name expected in the hub's certificate, and told to the hub; none: the host of clouddriver.grpc
        server_name: Option<String> = key("serverName", NAME, "");
        /// take any certificate of the hub
        insecure_skip_verify: bool = key("insecureSkipVerify", FLAG, "false");
        /// How the agent shows who it is; `None`: it does not.
        identity: Option<IdentitySettings> = group("").read_as(identity_of_client);
        /// authorities of the hub's certificate, PEM; none: those that the machine trusts
        authorities: Option<PathBuf> = key("cacertFile", PATH, "");
    }

    struct ClientKeys {
        /// the agent's own certificate for the hub, PEM; the file may have the private key too
        certificate: Option<PathBuf> = key("clientCertFile", PATH, "");
        /// private key of that certificate, PEM; none: it is in the file of the certificate
        key: Option<PathBuf> = key("clientKeyFile", PATH, "");
        /// password of that key, if it is encrypted
        password: Option<Password> = key("clientKeyFilePassword", PASSWORD, "");
        /// another name of that password
        other_password: Option<Password> = key("clientKeyPassword", PASSWORD, "");
    }

    pub(super) struct ServerSslKeys {
        /// serve health over TLS
        enabled: bool = key("enabled", FLAG, "false");
        /// certificate of the health server, PEM; the file may have the private key too
        certificate: Option<PathBuf> = key("certFile", PATH, "");
        /// private key of that certificate, PEM; none: it is in the file of the certificate
        key: Option<PathBuf> = key("keyFile", PATH, "");
        /// password of that key, if it is encrypted
        password: Option<Password> = key("keyPassword", PASSWORD, "");
        /// another name of that password
        other_password: Option<Password> = key("keyFilePassword", PASSWORD, "");
        /// authorities of the callers' certificates, PEM
        authorities: Option<PathBuf> = key("caCertFile", PATH, "");
        /// callers show a certificate: none, may (want), must (need)
        client_auth: ServerClientAuth =
            key("clientAuth", SettingType::OptionalChoice(&["none", "want", "need"]), "none");
    }
}

/// Files of a certificate and its private key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentitySettings {
    /// The certificate.
    pub certificate: PathBuf,
    /// Its key; `None`: it is in the same file.
    pub key: Option<PathBuf>,
    /// What the key is encrypted with.
    pub password: Option<Password>,
}

impl IdentitySettings {
    /// The files to read.
    pub fn files(&self) -> TlsFiles {
        TlsFiles {
            certificate: self.certificate.clone(),
            key: self.key.as_ref().unwrap_or(&self.certificate).clone(),
            password: self.password.as_ref().map(|one| one.secret().clone()),
        }
    }

    fn paths(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        std::iter::once(&mut self.certificate).chain(&mut self.key)
    }
}

/// TLS of the health server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerSslSettings {
    /// What it shows.
    pub identity: IdentitySettings,
    /// File with the authorities of callers; there is one if they show certificates.
    pub authorities: Option<PathBuf>,
    /// Whether callers show a certificate.
    pub client_auth: ClientAuth,
}

/// Whether callers show a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ServerClientAuth {
    None,
    Want,
    Need,
}

impl FromSetting for ServerClientAuth {}

/// The settings that name an identity.
struct IdentityNames {
    certificate: &'static str,
    key: &'static str,
    passwords: [&'static str; 2],
}

const CLIENT: IdentityNames = IdentityNames {
    certificate: "clouddriver.tls.clientCertFile",
    key: "clouddriver.tls.clientKeyFile",
    passwords: ["clouddriver.tls.clientKeyFilePassword", "clouddriver.tls.clientKeyPassword"],
};
const SERVER: IdentityNames = IdentityNames {
    certificate: "server.ssl.certFile",
    key: "server.ssl.keyFile",
    passwords: ["server.ssl.keyPassword", "server.ssl.keyFilePassword"],
};
const INSECURE: &str = "clouddriver.insecure";
const SSL_ENABLED: &str = "server.ssl.enabled";

impl IdentityNames {
    /// The identity that was set, if one was.
    fn identity(
        &self,
        certificate: Option<PathBuf>,
        key: Option<PathBuf>,
        passwords: [Option<Password>; 2],
        values: &Values,
    ) -> Result<Option<IdentitySettings>, ConfigError> {
        let [first, second] = self.passwords;
        if let [Some(one), Some(other)] = &passwords
            && one != other
        {
            let why = format!("differs from {first}, which is the same password; keep one of the two");
            return Err(values.rule(second, why).into());
        }
        let given =
            [(self.key, key.is_some()), (first, passwords[0].is_some()), (second, passwords[1].is_some())];
        let Some(certificate) = certificate else {
            return match given.into_iter().find(|(_, is_given)| *is_given) {
                None => Ok(None),
                Some((name, _)) => {
                    let why = format!(
                        "is set, but {}, the certificate of the key, is not; set both",
                        self.certificate
                    );
                    Err(values.rule(name, why).into())
                }
            };
        };
        let password = passwords.into_iter().flatten().next();
        Ok(Some(IdentitySettings { certificate, key, password }))
    }
}

fn identity_of_client(keys: ClientKeys, values: &Values) -> Result<Option<IdentitySettings>, ConfigError> {
    if values.is_true(INSECURE) {
        return Ok(None);
    }
    let ClientKeys { certificate, key, password, other_password } = keys;
    CLIENT.identity(certificate, key, [password, other_password], values)
}

/// Checks TLS to the hub, if it is dialled with TLS.
pub(super) fn of_hub(settings: DialTlsSettings, values: &Values) -> Result<DialTlsSettings, ConfigError> {
    if values.is_true(INSECURE) {
        return Ok(DialTlsSettings::default());
    }
    let name = settings.server_name.as_deref();
    if let Some(name) = name.filter(|name| ServerName::try_from(*name).is_err()) {
        let why = format!("is {name:?}, which is neither a host name nor an address");
        return Err(values.rule("clouddriver.tls.serverName", why).into());
    }
    Ok(settings)
}

/// TLS of the health server, if it is switched on.
pub(super) fn of_server(
    keys: ServerSslKeys,
    values: &Values,
) -> Result<Option<ServerSslSettings>, ConfigError> {
    let ServerSslKeys { enabled, certificate, key, password, other_password, authorities, client_auth } =
        keys;
    if !enabled {
        let asks = |key: &str| values.text(key) != Some("none");
        let mut asked = values.given_below("server.ssl").map(|(key, _)| key);
        return match asked.find(|key| asks(key)).filter(|_| !values.is_given(SSL_ENABLED)) {
            None => Ok(None),
            Some(key) => {
                let why =
                    format!("is set, but {SSL_ENABLED} is not; set that to true, or to false to ignore this");
                Err(values.rule(key, why).into())
            }
        };
    }
    let wants = |key: &str, what: &str| Err(values.rule(key, format!("needs {what}")).into());
    let Some(identity) = SERVER.identity(certificate, key, [password, other_password], values)? else {
        return wants(SSL_ENABLED, "server.ssl.certFile, the certificate of the health server");
    };
    let client_auth = match client_auth {
        ServerClientAuth::None => ClientAuth::None,
        ServerClientAuth::Want => ClientAuth::Optional,
        ServerClientAuth::Need => ClientAuth::Required,
    };
    if client_auth != ClientAuth::None && authorities.is_none() {
        return wants(
            "server.ssl.clientAuth",
            "server.ssl.caCertFile, the authorities of the callers' certificates",
        );
    }
    if client_auth == ClientAuth::None && authorities.is_some() {
        return wants(
            "server.ssl.caCertFile",
            "server.ssl.clientAuth: want or need, since no caller is asked for a certificate",
        );
    }
    Ok(Some(ServerSslSettings { identity, authorities, client_auth }))
}

/// Warnings about what is set and has no effect, or leaves a door open.
pub(super) fn notes(values: &Values) -> Vec<String> {
    let mut notes = Vec::new();
    if values.is_true(INSECURE) {
        let flag = values.origin(INSECURE);
        notes.extend(values.given_below("clouddriver.tls").map(|(key, origin)| {
            format!("{origin}: `{key}` has no effect, since {INSECURE} is true ({flag})")
        }));
    } else if values.is_true("clouddriver.tls.insecureSkipVerify") {
        let origin = values.origin("clouddriver.tls.insecureSkipVerify");
        notes.push(format!(
            "{origin}: `clouddriver.tls.insecureSkipVerify` is true: whoever answers is taken for the hub; set              clouddriver.tls.cacertFile instead"
        ));
    }
    if values.is_given(SSL_ENABLED) && !values.is_true(SSL_ENABLED) {
        let flag = values.origin(SSL_ENABLED);
        let others = values.given_below("server.ssl").filter(|(key, _)| *key != SSL_ENABLED);
        let in_force = others.filter(|(key, _)| values.text(key) != Some("none"));
        notes.extend(in_force.map(|(key, origin)| {
            format!("{origin}: `{key}` has no effect, since {SSL_ENABLED} is false ({flag})")
        }));
    }
    notes
}

/// Lets relative paths count from the folder of the settings.
pub(super) fn resolve_paths(settings: &mut AgentSettings, dir: &Path) {
    let AgentSettings { hub, server, .. } = settings;
    let of_hub =
        hub.tls.identity.iter_mut().flat_map(IdentitySettings::paths).chain(&mut hub.tls.authorities);
    let of_server = server.ssl.iter_mut();
    let of_server = of_server.flat_map(|ssl| ssl.identity.paths().chain(&mut ssl.authorities));
    for path in of_hub.chain(of_server) {
        *path = dir.join(&path);
    }
}
