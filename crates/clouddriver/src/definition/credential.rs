//! How an agent reaches the cluster of a migrated account.
//!
//! In this order: the request's or the rule's choice; Clouddriver's own identity, which is refused; a reference; a path,
//! mapped by the file roots; contents. `kubeconfigFile` goes before `kubeconfigContents`, as in Clouddriver.

use secrecy::{ExposeSecret, SecretString};
use serde_json::{Map, Value};

use kubesvc_core::kubeconfig;
use kubesvc_core::object_names::{credential_secret_name, object_name};
use kubesvc_core::owned_secret::{self, OWN_KEY};
use kubesvc_core::spec::{KubeconfigSource, SecretKeyReference};
use kubesvc_core::spinnaker::{AccountInput, ClusterSource};
use kubesvc_core::{KubesvcAccount, ORIGIN_LABEL, ORIGIN_MIGRATED};

use super::report::{EntryProblem, Reason};
use super::{Choice, ConversionSettings, kept_fields};

/// Maximum length of a path on Clouddriver, in characters.
const MAX_PATH_CHARS: usize = 1024;

/// Where the files of a folder of Clouddriver are found: one entry of `kubesvc.clouddriver.fileRoots`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileRoot {
    /// Folder or file on Clouddriver.
    pub from: String,
    /// Where its files are found.
    pub to: RootTarget,
}

/// Where the files of a folder of Clouddriver are found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RootTarget {
    /// In a folder of the operator, from which the content is copied.
    Folder(String),
    /// In a Secret, under the file's name.
    Secret {
        /// Namespace of the Secret.
        namespace: String,
        /// Name of the Secret.
        name: String,
    },
    /// In a folder of the agent.
    Agent(String),
}

/// The credential of a migrated account. Has no `Debug`: it may hold a kubeconfig.
#[derive(Clone)]
pub enum EntryCredential {
    /// A secret reference, unresolved.
    Reference(String),
    /// A kubeconfig, vetted; for the Secret of the account.
    Contents(SecretString),
    /// A file of the operator, whose content goes into the Secret of the account. To be vetted with [`vet_contents`].
    MountedFile(String),
    /// A key of an existing Secret.
    SecretKey {
        /// Namespace of the Secret.
        namespace: String,
        /// Name of the Secret.
        name: String,
        /// Key in the Secret.
        key: String,
    },
    /// A file of the agent.
    AgentFile(String),
    /// The agent's own service account.
    ServiceAccount,
    /// A file that only Clouddriver has. The spec names the Secret of the account, which does not exist.
    FileOnClouddriver(String),
}

impl EntryCredential {
    /// Its kind in words, for reports.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Reference(_) => "reference",
            Self::Contents(_) => "contents",
            Self::MountedFile(_) => "mounted file",
            Self::SecretKey { .. } => "Secret",
            Self::AgentFile(_) => "file on the agent",
            Self::ServiceAccount => "service account",
            Self::FileOnClouddriver(_) => "file on Clouddriver",
        }
    }

    /// The source for the spec of an object in a namespace.
    pub(super) fn in_spec(&self, own_namespace: &str, object: &str) -> KubeconfigSource {
        let source = KubeconfigSource::default();
        match self {
            Self::Reference(reference) => KubeconfigSource { reference: Some(reference.clone()), ..source },
            Self::Contents(_) | Self::MountedFile(_) | Self::FileOnClouddriver(_) => {
                owned_secret::source(object, OWN_KEY)
            }
            Self::SecretKey { namespace, name, key } if namespace == own_namespace => {
                let secret = SecretKeyReference { name: name.clone(), key: Some(key.clone()) };
                KubeconfigSource { secret_ref: Some(secret), ..source }
            }
            Self::SecretKey { namespace, name, key } => {
                let reference = format!("encryptedFile:k8s!n:{name}!k:{key}!ns:{namespace}");
                KubeconfigSource { reference: Some(reference), ..source }
            }
            Self::AgentFile(path) => KubeconfigSource { file: Some(path.clone()), ..source },
            Self::ServiceAccount => KubeconfigSource { service_account: Some(true), ..source },
        }
    }
}

impl From<ClusterSource> for EntryCredential {
    fn from(source: ClusterSource) -> Self {
        match source {
            ClusterSource::Contents(contents) => Self::Contents(contents),
            ClusterSource::File(path) => Self::AgentFile(path),
            ClusterSource::Reference(reference) => Self::Reference(reference),
            ClusterSource::ServiceAccount => Self::ServiceAccount,
        }
    }
}

/// The credential of an account, or problems.
pub(super) fn choose(
    account: &str,
    given: Map<String, Value>,
    choice: &Choice,
    settings: ConversionSettings<'_>,
    problems: &mut Vec<EntryProblem>,
) -> Option<EntryCredential> {
    let chosen = match &choice.source {
        Some(ClusterSource::ServiceAccount) if choice.zone.is_none() => Err(EntryProblem::new(
            Reason::NotPortable,
            "serviceAccount needs a zone: name the zone whose agents run in the account's cluster",
        )),
        Some(source) => Ok(source.clone().into()),
        None => of_entry(account, given, settings),
    };
    chosen.map_err(|problem| problems.push(problem)).ok()
}

fn of_entry(
    account: &str,
    mut given: Map<String, Value>,
    settings: ConversionSettings<'_>,
) -> Result<EntryCredential, EntryProblem> {
    match given.remove("serviceAccount") {
        None | Some(Value::Bool(false)) => {}
        Some(Value::Bool(true)) => {
            return Err(EntryProblem::new(
                Reason::NotPortable,
                "serviceAccount is the service account of Clouddriver's own pod; give the account a kubeconfig, or name \
                 in the request or a zone rule the zone whose agents run in its cluster, with serviceAccount: true",
            ));
        }
        Some(_) => return Err(EntryProblem::field("serviceAccount must be true or false")),
    }
    if given.contains_key("kubeconfigFile") {
        given.remove("kubeconfigContents");
    }
    let reason = match given.values().next().and_then(Value::as_str) {
        Some(text) if kubesvc_core::secret_reference::is_reference(text) => Reason::ReferenceRefused,
        _ => Reason::InvalidField,
    };
    // The name of the account is checked apart from its fields.
    given.insert("name".to_owned(), Value::from("a"));
    let source =
        AccountInput::read(given).map_err(|problem| EntryProblem::new(reason, problem.to_string()))?.source;
    match source {
        Some(ClusterSource::File(path)) => of_path(account, path, settings),
        Some(source) => Ok(source.into()),
        None => Err(EntryProblem::new(
            Reason::NoCredential,
            "the entry has none of kubeconfigFile and kubeconfigContents, so Clouddriver uses a file of its own; give \
             the account a kubeconfig",
        )),
    }
}

/// Maps a path on Clouddriver by the file root with the longest prefix that can have it.
fn of_path(
    account: &str,
    path: String,
    settings: ConversionSettings<'_>,
) -> Result<EntryCredential, EntryProblem> {
    if path.chars().nth(MAX_PATH_CHARS).is_some() || path.contains(char::is_control) {
        let expected = format!("at most {MAX_PATH_CHARS} characters long, without control characters");
        return Err(EntryProblem::field(format!("kubeconfigFile must be {expected}")));
    }
    if path.split('/').any(|part| part == "..") {
        return Err(EntryProblem::field(format!(
            "kubeconfigFile must not contain .. as a part; write the path of account {account:?} without it"
        )));
    }
    // What is no path may be a credential, and is not repeated.
    if !is_path(&path) {
        return Err(EntryProblem::field(format!(
            "kubeconfigFile of account {account:?} is no path: give an absolute one, a secret reference, or the contents \
             as kubeconfigContents"
        )));
    }
    let mut fitting: Vec<(&FileRoot, Vec<&str>)> =
        settings.file_roots.iter().filter_map(|root| Some((root, below(&root.from, &path)?))).collect();
    fitting.sort_by_key(|(_, rest)| rest.len());
    let mapped = fitting.into_iter().find_map(|(root, rest)| mapped(&root.to, &rest));
    Ok(mapped.unwrap_or(EntryCredential::FileOnClouddriver(path)))
}

/// Whether a text has the form of a path on Clouddriver, or of a file of a config server.
fn is_path(text: &str) -> bool {
    let has_form = ["/", "~/", "configserver:"].iter().any(|start| text.starts_with(start));
    has_form && !text.contains(['{', '}', '"', '\'', '=', '@']) && !text.contains("://")
}

/// The parts of a path below a folder; none if it is the folder itself.
fn below<'p>(folder: &str, path: &'p str) -> Option<Vec<&'p str>> {
    if folder.starts_with('/') != path.starts_with('/') {
        return None;
    }
    let mut parts = parts(path);
    for part in self::parts(folder) {
        if parts.next() != Some(part) {
            return None;
        }
    }
    Some(parts.collect())
}

fn parts(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|part| !part.is_empty() && *part != ".")
}

fn mapped(target: &RootTarget, rest: &[&str]) -> Option<EntryCredential> {
    let in_folder = |folder: &str| {
        let folder = folder.trim_end_matches('/');
        [&[folder], rest].concat().join("/")
    };
    match target {
        RootTarget::Folder(folder) => Some(EntryCredential::MountedFile(in_folder(folder))),
        RootTarget::Agent(folder) => Some(EntryCredential::AgentFile(in_folder(folder))),
        RootTarget::Secret { namespace, name } => match rest {
            [key] if is_secret_key(key) => Some(EntryCredential::SecretKey {
                namespace: namespace.clone(),
                name: name.clone(),
                key: (*key).to_owned(),
            }),
            _ => None,
        },
    }
}

fn is_secret_key(key: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    key.len() <= 253 && !key.starts_with("..") && key.bytes().all(legal)
}

/// Vets a kubeconfig, as everything that stores or sends one does.
///
/// # Errors
/// Which key is refused, and what to use.
pub fn vet_contents(contents: &SecretString, context: Option<&str>) -> Result<(), EntryProblem> {
    kubeconfig::vet(contents.expose_secret().as_bytes(), context).map(drop).map_err(|refusal| {
        let reason = if refusal.is_exec() { Reason::ExecForbidden } else { Reason::KubeconfigRefused };
        EntryProblem::new(reason, format!("kubeconfigContents is refused: {refusal}"))
    })
}

/// Message of the condition `CredentialAvailable`, reason `FileOnClouddriver`: the account's kubeconfig is a file that
/// only Clouddriver has. `None` if it is not, or its spec names another source by now. Whether the Secret that the spec
/// names exists by now is for the caller to see.
pub fn file_on_clouddriver(account: &KubesvcAccount) -> Option<String> {
    let object = object_name(account.account_name());
    let is_unchanged = account.spec.kubeconfig == owned_secret::source(&object, OWN_KEY);
    if account.label(ORIGIN_LABEL) != Some(ORIGIN_MIGRATED) || !is_unchanged {
        return None;
    }
    let fields = kept_fields::of(account);
    let path = fields.get("kubeconfigFile")?.as_str()?;
    let namespace = account.metadata.namespace.as_deref().unwrap_or_default();
    let secret = credential_secret_name(&object);
    Some(format!(
        "the kubeconfig is the file {path:?} of Clouddriver, and no entry of kubesvc.clouddriver.fileRoots maps it; map \
         its folder there, delete the account and migrate it again by its name, or put the kubeconfig into the Secret {namespace}/{secret} \
         under the key {OWN_KEY}, or name another source in spec.kubeconfig"
    ))
}
