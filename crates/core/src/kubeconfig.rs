//! Which kubeconfigs are accepted, and what is taken from them.
//!
//! A kubeconfig received over the wire is untrusted: it may name programs to run, files to read, proxies to use and
//! users to impersonate. [`vet`] extracts the chosen context and keeps one server and one way to authenticate;
//! everything else in the context is refused with a message that names the key and says what to use. [`render`]
//! writes the extract that may be sent. The operator vets before it stores or sends anything, and the agent vets
//! again before it builds a client.

use std::borrow::Cow;
use std::fmt;
use std::path::{Component, Path, PathBuf};

use url::Url;

use crate::kubeconfig::cluster::ClusterEntry;
use crate::kubeconfig::document::MAX_BYTES;
use crate::kubeconfig::fields::{Mapping, quoted, shown};
use crate::object_names::is_dns_label;

mod cluster;
mod der;
mod document;
mod fields;
mod pem;
mod render;
mod user;

#[cfg(test)]
mod tests;

pub(crate) use cluster::{carried_ipv4, refused_address};
pub use der::{Curve, EcKey, may_serve, unusable_key};
pub use document::{DocumentNode, Text};
pub use render::render;
pub use user::{Authentication, Secret, SecretBytes, SecretText};

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

/// Why a kubeconfig is refused: which key, what is wrong with it, and what to use.
///
/// Neither `Display` nor `Debug` shows a value of the file that might be a credential. They may show names of
/// contexts, clusters and users, and lines and columns.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} {problem}; {remedy}")]
pub struct KubeconfigError {
    field: String,
    problem: Cow<'static, str>,
    remedy: Cow<'static, str>,
    is_exec: bool,
}

impl KubeconfigError {
    fn new(
        field: impl Into<String>,
        problem: impl Into<Cow<'static, str>>,
        remedy: impl Into<Cow<'static, str>>,
    ) -> Self {
        let (field, problem, remedy) = (field.into(), problem.into(), remedy.into());
        Self { field, problem, remedy, is_exec: false }
    }

    fn exec(field: String, problem: &'static str, remedy: &'static str) -> Self {
        Self { is_exec: true, ..Self::new(field, problem, remedy) }
    }

    /// The key at fault, such as `users[dev].user.exec`; `kubeconfig` if it is the file as a whole.
    pub fn field(&self) -> &str {
        &self.field
    }

    /// Whether the kubeconfig would have run a program: failure class EXEC_FORBIDDEN instead of BAD_KUBECONFIG.
    pub fn is_exec(&self) -> bool {
        self.is_exec
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

fn expect_value(root: &Mapping<'_, '_>, key: &str, expected: &str) -> Result<(), KubeconfigError> {
    match root.text(key)? {
        Some(value) if value != expected => Err(KubeconfigError::new(
            root.path_of(key),
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
            context.path_of(key),
            "is missing",
            format!("name one of the {list}; {}", those_there_are(root, list)?),
        ));
    };
    match find(root, list, name)? {
        Some(entry) => entry.mapping(key),
        None => Err(KubeconfigError::new(
            context.path_of(key),
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
    let path = format!("{list}[{}]", shown(name));
    let mut matching = root.list(list)?.iter().filter(|entry| entry.name() == Some(name));
    let Some(entry) = matching.next() else { return Ok(None) };
    match matching.count() {
        0 => Mapping::at(Some(entry), path).map(Some),
        more => Err(KubeconfigError::new(
            path,
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
    if !is_dns_label(name) {
        return Err(KubeconfigError::new(
            context.path_of("namespace"),
            "is no name of a namespace",
            "use at most 63 small letters, digits and dashes",
        ));
    }
    Ok(Some(name.to_owned()))
}

/// Vets the path of a `kubeconfig.file`: absolute, without `..` and control characters, and a file below one of the
/// `allowed` folders. An allowed folder that is not absolute allows nothing.
///
/// Checks only the path: before it opens the file, the caller must resolve links and vet the resolved path as well.
///
/// # Errors
///
/// A [`KubeconfigError`] of the field `kubeconfig.file` that names the allowed folders.
pub fn vet_file_path<'a>(path: &'a str, allowed: &[PathBuf]) -> Result<&'a Path, KubeconfigError> {
    let refusal = |problem: &'static str| {
        let folders: Vec<_> = allowed.iter().map(|folder| folder.display().to_string()).collect();
        let remedy = match folders.as_slice() {
            [] => "the agent allows no folder for kubeconfigs; set one in its settings".to_owned(),
            folders => format!("give the path of a file on the agent under {}", folders.join(", ")),
        };
        KubeconfigError::new("kubeconfig.file", problem, remedy)
    };
    let as_path = Path::new(path);
    if path.is_empty() {
        return Err(refusal("is empty"));
    }
    if path.contains(char::is_control) {
        return Err(refusal("holds a NUL or another control character"));
    }
    if !as_path.is_absolute() {
        return Err(refusal("is not an absolute path"));
    }
    if as_path.components().any(|component| component == Component::ParentDir) {
        return Err(refusal("holds `..`"));
    }
    if path.ends_with('/') || path.ends_with("/.") {
        return Err(refusal("is a folder"));
    }
    let below = |folder: &PathBuf| folder.is_absolute() && as_path.starts_with(folder) && as_path != folder;
    if !allowed.iter().any(below) {
        return Err(refusal("is outside the folders that the agent allows"));
    }
    Ok(as_path)
}
