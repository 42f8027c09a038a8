//! Resolves an account's credential to a cluster that can be dialled.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use url::Url;

use crate::activation::exec::Login;
use crate::activation::kubeconfig_files::{self, below, blocking, read, read_file};
use crate::activation::{Activator, DefinitionOrigin};
use crate::cluster::ClusterEndpoint;
use crate::watched_files::ReadFile;
use crate::wire_failure::{before_send, forbidden, refused};
use kubesvc_core::kubeconfig::{Authentication, KubeconfigError, SecretText, VettedKubeconfig, vet};
use kubesvc_core::secret_reference::{Reference, is_reference};
use kubesvc_core::wire::common::Failure;
use kubesvc_core::wire::common::failure::Class;
use kubesvc_core::wire::ops::AccountSpec;
use kubesvc_core::wire::ops::account_spec::Credential;

/// Location of the agent's own service account.
#[derive(Clone, Debug, Default)]
pub struct ServiceAccountFiles {
    /// Folder with `token` and `ca.crt`.
    pub folder: PathBuf,
    /// Host of the API server, if the agent runs in Kubernetes.
    pub host: Option<String>,
    pub port: Option<String>,
}

impl ServiceAccountFiles {
    /// The location that Kubernetes uses.
    pub fn from_environment() -> Self {
        Self {
            folder: PathBuf::from("/var/run/secrets/kubernetes.io/serviceaccount"),
            host: std::env::var("KUBERNETES_SERVICE_HOST").ok(),
            port: std::env::var("KUBERNETES_SERVICE_PORT").ok(),
        }
    }
}

/// A cluster, and the files from which its credential was read.
pub(super) struct ResolvedSource {
    pub(super) cluster: ClusterEndpoint,
    pub(super) files: Vec<ReadFile>,
    /// Credential that a program printed for it.
    pub(super) login: Option<Login>,
}

/// A kubeconfig that was read from a file.
pub(super) struct FileKubeconfig {
    pub(super) vetted: Result<VettedKubeconfig, KubeconfigError>,
    /// The file itself, and the files that it names.
    pub(super) files: Vec<ReadFile>,
    /// Credential that a program printed for it.
    pub(super) login: Option<Login>,
}

/// Purpose of reading a kubeconfig.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Its program is run, if it has one.
    Use,
    /// Its program is only checked, not run.
    Check,
}

impl Activator {
    /// Resolves the cluster of an account.
    pub(super) async fn source(
        &self,
        spec: &AccountSpec,
        origin: DefinitionOrigin,
    ) -> Result<ResolvedSource, Failure> {
        let context = Some(spec.context.as_str()).filter(|context| !context.is_empty());
        let insecure = |vetted: VettedKubeconfig| vetted.with_insecure(spec.insecure);
        let mut login = None;
        let (kubeconfig, files) = match &spec.credential {
            Some(Credential::Kubeconfig(bytes)) => {
                let vetted = vet(bytes, context).and_then(insecure);
                (vetted.map_err(|refusal| refused(&refusal))?, Vec::new())
            }
            Some(Credential::File(path)) => {
                self.permits_files()?;
                if is_reference(path) {
                    return Err(no_engine(path));
                }
                let read = self.read_kubeconfig(path, context, origin, Purpose::Use).await?;
                let FileKubeconfig { vetted, files, login: given } = read;
                login = given;
                (vetted.and_then(insecure).map_err(|refusal| in_file(path, &refusal))?, files)
            }
            Some(Credential::ServiceAccount(true)) => {
                self.permits_service_account()?;
                let own = insecure(self.own_account().await?);
                (own.map_err(|refusal| in_service_account(&refusal))?, Vec::new())
            }
            Some(Credential::ServiceAccount(false)) | None => {
                return Err(before_send(
                    Class::BadKubeconfig,
                    "the account has no credential that this version of the agent knows",
                ));
            }
        };
        Ok(ResolvedSource { cluster: ClusterEndpoint::new(kubeconfig, &self.policy), files, login })
    }

    /// Fails if the policy forbids kubeconfigs on the agent.
    pub(super) fn permits_files(&self) -> Result<(), Failure> {
        if self.policy.files {
            return Ok(());
        }
        Err(forbidden("kubeconfigs on the agent are not used: kubernetes.policy.files is false"))
    }

    /// Fails if the policy forbids the agent's own service account.
    pub(super) fn permits_service_account(&self) -> Result<(), Failure> {
        if self.policy.service_account {
            return Ok(());
        }
        Err(forbidden(
            "the agent's own service account is not used: kubernetes.policy.serviceAccount is false",
        ))
    }

    /// Reads and vets a kubeconfig on the agent.
    pub(super) async fn read_kubeconfig(
        &self,
        path: &str,
        context: Option<&str>,
        origin: DefinitionOrigin,
        purpose: Purpose,
    ) -> Result<FileKubeconfig, Failure> {
        let (asked, chosen) = (path.to_owned(), context.map(str::to_owned));
        let folders = self.kubeconfig_folders.clone();
        let (bytes, own, mut files) = blocking(move || {
            let at = Path::new(&asked);
            let (bytes, own) = match origin {
                DefinitionOrigin::Hub => (read(&below(&asked, &folders)?, at)?, None),
                DefinitionOrigin::OwnFile => {
                    let bytes = read(at, at)?;
                    let own = kubeconfig_files::with_files(&bytes, chosen.as_deref(), at)
                        .map_err(|failure| about(&asked, failure))?;
                    (bytes, own)
                }
            };
            let files = vec![read_file(at, &bytes)];
            Ok((bytes, own, files))
        })
        .await?;
        let Some(mut own) = own else {
            return Ok(FileKubeconfig { vetted: vet(&bytes, context), files, login: None });
        };
        files.append(&mut own.files);
        let login = match (&own.exec, purpose) {
            (None, _) => None,
            (Some(exec), Purpose::Check) => {
                self.programs.knows(exec).map_err(|failure| about(path, failure))?;
                None
            }
            (Some(exec), Purpose::Use) => {
                Some(self.programs.log_in(exec).await.map_err(|failure| about(path, failure))?)
            }
        };
        let bytes = match &login {
            Some(login) => own.with_credential(&login.credential),
            None => own.without_credential(),
        };
        Ok(FileKubeconfig { vetted: vet(&bytes, context), files, login })
    }

    /// The cluster that the agent runs in, with its service account.
    pub(super) async fn own_account(&self) -> Result<VettedKubeconfig, Failure> {
        let place = self.service_account.clone();
        blocking(move || {
            let (Some(host), Some(port)) = (&place.host, &place.port) else {
                return Err(before_send(
                    Class::BadReference,
                    "serviceAccount needs an agent that runs in Kubernetes (KUBERNETES_SERVICE_HOST is not set)",
                ));
            };
            let token_path = place.folder.join("token");
            let authority_path = place.folder.join("ca.crt");
            let token = read(&token_path, &token_path)?;
            let token = std::str::from_utf8(&token).map(str::trim).unwrap_or_default();
            if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
                let message = format!("{} holds no token", token_path.display());
                return Err(Failure { retryable: true, ..before_send(Class::BadReference, message) });
            }
            Ok(VettedKubeconfig {
                server: server(host, port)?,
                certificate_authority: Some(read(&authority_path, &authority_path)?.to_vec()),
                insecure_skip_tls_verify: false,
                tls_server_name: None,
                namespace: None,
                authentication: Authentication::Token(SecretText::from(token)),
                context: String::new(),
            })
        })
        .await
    }
}

/// The failure of an account whose kubeconfig is a secret reference of an engine that the agent does not have.
fn no_engine(reference: &str) -> Failure {
    let what = match Reference::parse(reference) {
        Ok(read) => format!("of the engine {:?}, which is not there on the agent", read.engine()),
        Err(_) => "that is malformed".to_owned(),
    };
    let message = format!("kubeconfigFile is a secret reference {what}: mount the secret and give its path");
    before_send(Class::BadReference, message)
}

/// The failure of a refused kubeconfig in a file.
fn in_file(path: &str, refusal: &KubeconfigError) -> Failure {
    about(path, refused(refusal))
}

/// Adds the path of a kubeconfig to a failure.
fn about(path: &str, failure: Failure) -> Failure {
    // The message names a file already.
    if failure.message.starts_with('/') {
        return failure;
    }
    Failure {
        retryable: failure.retryable,
        ..before_send(failure.class(), format!("{path}: {}", failure.message))
    }
}

/// The failure of a refused service account; it always comes with the authority of its cluster.
fn in_service_account(refusal: &KubeconfigError) -> Failure {
    let failure = refused(refusal);
    before_send(failure.class(), format!("the agent's own service account: {}", failure.message))
}

fn server(host: &str, port: &str) -> Result<Url, Failure> {
    let host = if host.parse::<IpAddr>().is_ok_and(|address| address.is_ipv6()) {
        format!("[{host}]")
    } else {
        host.to_owned()
    };
    Url::parse(&format!("https://{host}:{port}"))
        .map_err(|error| before_send(Class::BadReference, format!("KUBERNETES_SERVICE_HOST: {error}")))
}
