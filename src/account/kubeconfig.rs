//! Which kubeconfigs are accepted, and what is taken from them.
//!
//! A kubeconfig received over the wire is untrusted: it may name programs to run, files to read, proxies to use and
//! users to impersonate. [`vet`] extracts the chosen context and keeps one server and one way to authenticate;
//! everything else in the context is refused with a message that names the key and says what to use. [`render`]
//! writes the extract that may be sent. The operator vets before it stores or sends anything, and the agent vets
//! again before it builds a client.

use std::fmt;

use url::Url;

use crate::account::kubeconfig::document::MAX_BYTES;
use crate::account::kubeconfig::fields::{Mapping, is_set, quoted, shown};

mod address;
mod document;
pub(crate) mod edit;
mod error;
mod fields;
mod file_path;
mod pem;
mod render;
mod secret;
mod user;

#[cfg(test)]
mod tests;

pub use address::{carried_ipv4, refused_address};
pub(crate) use document::DocumentNode;
pub use error::{KubeconfigError, KubeconfigErrorKind};
pub use file_path::vet_file_path;
pub use render::render;
pub use secret::{Secret, SecretBytes, SecretText};

/// A vetted kubeconfig: one server, one way to authenticate, and nothing that runs or reads anything.
///
/// `Debug` shows only the server and the kind of authentication.
#[derive(Clone, PartialEq, Eq)]
pub struct VettedKubeconfig {
    /// URL of the API server: https, a host that is not a link-local address, and optionally a port and a path
    /// prefix.
    pub server: Url,
    /// The certificates (PEM only) that the server's certificate must chain to; `None`: those that the machine
    /// trusts.
    pub certificate_authority: Option<Vec<u8>>,
    /// Whether the server's certificate is not verified. Never set together with `certificate_authority`.
    pub insecure_skip_tls_verify: bool,
    /// The name or address that the server's certificate must be for, if it is not the host of `server`.
    pub tls_server_name: Option<String>,
    /// The namespace of the context.
    pub namespace: Option<String>,
    /// How the client authenticates.
    pub authentication: Authentication,
    /// Name of the chosen context.
    pub context: String,
}

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

impl fmt::Debug for VettedKubeconfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VettedKubeconfig")
            .field("server", &self.server.as_str())
            .field("authentication", &self.authentication)
            .finish_non_exhaustive()
    }
}

impl VettedKubeconfig {
    /// Applies the account's own `insecure`.
    ///
    /// The author of an account need not be the author of its kubeconfig: `insecure` together with a certificate
    /// authority would bypass the authority that the credential's owner pinned.
    ///
    /// # Errors
    ///
    /// A [`KubeconfigError`] if `insecure` is true although the kubeconfig has a certificate authority.
    pub fn with_insecure(self, insecure: bool) -> Result<Self, KubeconfigError> {
        if !insecure {
            return Ok(self);
        }
        if self.certificate_authority.is_some() {
            return Err(KubeconfigError::new(
                "insecure",
                "is true for the account although there is a certificate authority to verify with",
                "remove it from the account, or else certificate-authority-data from the kubeconfig",
            ));
        }
        Ok(Self { insecure_skip_tls_verify: true, ..self })
    }
}

/// Vets the kubeconfig in `bytes` (YAML or JSON) and extracts one context: `context`, or else its `current-context`
/// (an empty name counts as none).
///
/// Certificates and keys are re-encoded, which drops text around them and PEM blocks of other kinds. Unknown keys,
/// and everything that belongs to other contexts, are ignored.
///
/// # Errors
///
/// A [`KubeconfigError`] that names the key at fault and says what to use. It contains names of contexts, clusters
/// and users, lines and columns, and no other value of the file.
pub fn vet(bytes: &[u8], context: Option<&str>) -> Result<VettedKubeconfig, KubeconfigError> {
    let document = document::read(document::decode(bytes)?)?;
    let root = Mapping::root(&document)?;
    expect_value(&root, "kind", "Config")?;
    expect_value(&root, "apiVersion", "v1")?;

    let (name, chosen) = choose_context(&root, context)?;
    let namespace = namespace(&chosen)?;
    let cluster = follow(&root, &chosen, "cluster", "clusters")?;
    let user = follow(&root, &chosen, "user", "users")?;

    // The user first: running programs is the most severe problem, and has a failure class of its own.
    user::refuse_foreign(&user)?;
    let ClusterEntry { server, certificate_authority, insecure_skip_tls_verify, tls_server_name } =
        ClusterEntry::vet(&cluster)?;
    let authentication = user::authentication(&user)?;

    let vetted = VettedKubeconfig {
        server,
        certificate_authority,
        insecure_skip_tls_verify,
        tls_server_name,
        namespace,
        authentication,
        context: name.to_owned(),
    };
    // The extract is vetted again where it arrives. Only long names full of escapes can make it longer than the
    // original.
    if render::rendered(&vetted).len() > MAX_BYTES {
        return Err(KubeconfigError::new(
            "kubeconfig",
            "is too large once cut out",
            document::TOO_LARGE_REMEDY,
        ));
    }
    Ok(vetted)
}

struct ClusterEntry {
    server: Url,
    certificate_authority: Option<Vec<u8>>,
    insecure_skip_tls_verify: bool,
    tls_server_name: Option<String>,
}

impl ClusterEntry {
    fn vet(cluster: &Mapping<'_, '_>) -> Result<Self, KubeconfigError> {
        for (key, problem, remedy) in [
            (
                "certificate-authority",
                "is a path, and no files are read",
                "put the certificate itself into certificate-authority-data, base64-encoded",
            ),
            (
                "proxy-url",
                "is not used: a kubeconfig does not decide what connections go through",
                "remove it, and let an agent that reaches the cluster take the account",
            ),
        ] {
            if cluster.get(key).is_some_and(is_set) {
                return Err(KubeconfigError::new(cluster.place(key), problem, remedy));
            }
        }
        let Some(server) = cluster.text("server")? else {
            return Err(KubeconfigError::new(cluster.place("server"), "is missing", address::SERVER_REMEDY));
        };
        let server = address::server(server, &cluster.place("server"))?;
        let insecure_skip_tls_verify = cluster.flag("insecure-skip-tls-verify")?;
        let certificate_authority = match cluster.bytes("certificate-authority-data")? {
            Some(pem) => {
                Some(pem::certificate_authority(&pem, &cluster.place("certificate-authority-data"))?)
            }
            None => None,
        };
        if insecure_skip_tls_verify && certificate_authority.is_some() {
            return Err(KubeconfigError::new(
                cluster.place("insecure-skip-tls-verify"),
                "is true although there is a certificate authority to verify with",
                "remove it, or else certificate-authority-data",
            ));
        }
        let tls_server_name = match cluster.text("tls-server-name")? {
            Some(name) => Some(address::tls_server_name(name, &cluster.place("tls-server-name"))?),
            None => None,
        };
        Ok(Self { server, certificate_authority, insecure_skip_tls_verify, tls_server_name })
    }
}

fn expect_value(root: &Mapping<'_, '_>, key: &str, expected: &str) -> Result<(), KubeconfigError> {
    match root.text(key)? {
        Some(value) if value != expected => Err(KubeconfigError::new(
            root.place(key),
            format!("is not {expected}"),
            "give a kubeconfig as `kubectl config view --raw` prints it",
        )),
        _ => Ok(()),
    }
}

/// The name and body of the context to use.
fn choose_context<'t, 'a>(
    root: &Mapping<'t, 'a>,
    context: Option<&'t str>,
) -> Result<(&'t str, Mapping<'t, 'a>), KubeconfigError> {
    let (field, name) = match context.filter(|name| !name.is_empty()) {
        Some(name) => ("context", name),
        None => match root.text("current-context")? {
            Some(name) => ("current-context", name),
            None => {
                return Err(KubeconfigError::new(
                    "current-context",
                    "is not set, and no context was given",
                    format!("name a context; {}", those_there_are(root, "contexts")?),
                ));
            }
        },
    };
    match find(root, "contexts", name)? {
        Some(entry) => Ok((name, entry.mapping("context")?)),
        None => Err(KubeconfigError::new(
            field,
            format!("names {}, which is not among the contexts", quoted(name)),
            format!("name another context; {}", those_there_are(root, "contexts")?),
        )),
    }
}

/// The body of the cluster or user that the context names under `key`.
fn follow<'t, 'a>(
    root: &Mapping<'t, 'a>,
    context: &Mapping<'t, 'a>,
    key: &str,
    list: &str,
) -> Result<Mapping<'t, 'a>, KubeconfigError> {
    let Some(name) = context.text(key)? else {
        return Err(KubeconfigError::new(
            context.place(key),
            "is missing",
            format!("name one of the {list}; {}", those_there_are(root, list)?),
        ));
    };
    match find(root, list, name)? {
        Some(entry) => entry.mapping(key),
        None => Err(KubeconfigError::new(
            context.place(key),
            format!("names {}, which is not among the {list}", quoted(name)),
            format!("add it, or name another; {}", those_there_are(root, list)?),
        )),
    }
}

/// The single entry of a list that has exactly this name.
fn find<'t, 'a>(
    root: &Mapping<'t, 'a>,
    list: &str,
    name: &str,
) -> Result<Option<Mapping<'t, 'a>>, KubeconfigError> {
    let place = format!("{list}[{}]", shown(name));
    let mut matching = root.list(list)?.iter().filter(|entry| entry.name() == Some(name));
    let Some(entry) = matching.next() else { return Ok(None) };
    match matching.count() {
        0 => Mapping::at(Some(entry), place).map(Some),
        more => Err(KubeconfigError::new(
            place,
            format!("is there {} times", more + 1),
            "keep one entry, or give each a name of its own",
        )),
    }
}

/// "there are …", with at most ten names.
fn those_there_are(root: &Mapping<'_, '_>, list: &str) -> Result<String, KubeconfigError> {
    const MAX_NAMES_SHOWN: usize = 10;
    let names: Vec<_> = root.list(list)?.iter().filter_map(|entry| entry.name()).collect();
    if names.is_empty() {
        return Ok(format!("{list} has none"));
    }
    let mut told = names.iter().take(MAX_NAMES_SHOWN).map(|name| quoted(name)).collect::<Vec<_>>().join(", ");
    if names.len() > MAX_NAMES_SHOWN {
        told.push_str(&format!(" and {} more", names.len() - MAX_NAMES_SHOWN));
    }
    Ok(format!("there are {told}"))
}

/// The namespace of the context. It becomes part of a path, so it must be a valid Kubernetes name.
fn namespace(context: &Mapping<'_, '_>) -> Result<Option<String>, KubeconfigError> {
    let Some(name) = context.text("namespace")? else { return Ok(None) };
    let legal = name.len() <= 63
        && !name.starts_with('-')
        && !name.ends_with('-')
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    if !legal {
        return Err(KubeconfigError::new(
            context.place("namespace"),
            "is no name of a namespace",
            "use at most 63 small letters, digits and dashes",
        ));
    }
    Ok(Some(name.to_owned()))
}
