//! From what an account says about its credential to a cluster that can be dialled.

use std::fs::{self, File};
use std::io::{self, Read};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use secrecy::zeroize::Zeroizing;
use url::Url;

use crate::account::kubeconfig::{Authentication, Refusal, SecretText, VettedKubeconfig, vet, vet_file_path};
use crate::agent::cluster::Cluster;
use crate::agent::failure::{before_send, refused};
use crate::wire::common::Failure;
use crate::wire::common::failure::Class;
use crate::wire::ops::AccountSpec;
use crate::wire::ops::account_spec::Credential;

/// The largest kubeconfig, and the largest token, in bytes.
const MAX_FILE: u64 = 256 * 1024;

/// Where the agent's own service account is.
#[derive(Clone, Debug, Default)]
pub struct ServiceAccountPlace {
    /// The folder with `token` and `ca.crt`.
    pub folder: PathBuf,
    /// The host of the API server, if the agent runs in Kubernetes.
    pub host: Option<String>,
    /// Its port.
    pub port: Option<String>,
}

impl ServiceAccountPlace {
    /// Where Kubernetes puts it.
    pub fn from_environment() -> Self {
        Self {
            folder: PathBuf::from("/var/run/secrets/kubernetes.io/serviceaccount"),
            host: std::env::var("KUBERNETES_SERVICE_HOST").ok(),
            port: std::env::var("KUBERNETES_SERVICE_PORT").ok(),
        }
    }
}

/// The cluster of an account.
pub(super) async fn cluster_of(
    spec: &AccountSpec,
    folders: &[PathBuf],
    service_account: &ServiceAccountPlace,
) -> Result<Cluster, Failure> {
    let context = Some(spec.context.as_str()).filter(|context| !context.is_empty());
    let kubeconfig = match &spec.credential {
        Some(Credential::Kubeconfig(bytes)) => vet(bytes, context).map_err(|refusal| refused(&refusal))?,
        Some(Credential::File(path)) => {
            let bytes = read_kubeconfig(path.clone(), folders.to_vec()).await?;
            vet(&bytes, context).map_err(|refusal| refused(&refusal))?
        }
        Some(Credential::ServiceAccount(true)) => own_account(service_account.clone()).await?,
        Some(Credential::ServiceAccount(false)) | None => {
            return Err(before_send(
                Class::BadKubeconfig,
                "the account has no credential that this version of the agent knows",
            ));
        }
    };
    Ok(Cluster::new(kubeconfig, spec.insecure))
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(before_send(Class::Internal, format!("reading a file failed: {error}"))))
}

async fn read_kubeconfig(path: String, folders: Vec<PathBuf>) -> Result<Zeroizing<Vec<u8>>, Failure> {
    blocking(move || {
        let refuse = |refusal: Refusal| before_send(Class::BadReference, refusal.to_string());
        let asked = vet_file_path(&path, &folders).map_err(refuse)?;
        let real = fs::canonicalize(asked).map_err(|error| unreadable(asked, &error))?;
        // Links may be followed, but not out of the folders; which may be links themselves.
        let real_folders: Vec<_> =
            folders.iter().filter_map(|folder| fs::canonicalize(folder).ok()).collect();
        let leads_out = || {
            before_send(
                Class::BadReference,
                format!("{path} is a link that leads out of the folders that the agent allows"),
            )
        };
        let real =
            vet_file_path(real.to_str().ok_or_else(leads_out)?, &real_folders).map_err(|_| leads_out())?;
        read(real, asked)
    })
    .await
}

/// Reads a regular file of a sensible size. `shown` is the name that messages give it.
fn read(path: &Path, shown: &Path) -> Result<Zeroizing<Vec<u8>>, Failure> {
    let irregular = || before_send(Class::BadReference, format!("{} is no regular file", shown.display()));
    // Opening a pipe would wait for its other end, so this is asked first, and again of what was opened.
    if !fs::metadata(path).map_err(|error| unreadable(shown, &error))?.is_file() {
        return Err(irregular());
    }
    let file = File::open(path).map_err(|error| unreadable(shown, &error))?;
    if !file.metadata().map_err(|error| unreadable(shown, &error))?.is_file() {
        return Err(irregular());
    }
    let mut bytes = Zeroizing::new(Vec::with_capacity(8 * 1024));
    file.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(|error| unreadable(shown, &error))?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(before_send(
            Class::BadKubeconfig,
            format!("{} is larger than {MAX_FILE} bytes", shown.display()),
        ));
    }
    Ok(bytes)
}

/// A file that is not there may come yet, so this is tried again.
fn unreadable(path: &Path, error: &io::Error) -> Failure {
    let message = format!("{} cannot be read on the agent: {error}", path.display());
    Failure { retryable: true, ..before_send(Class::BadReference, message) }
}

async fn own_account(place: ServiceAccountPlace) -> Result<VettedKubeconfig, Failure> {
    blocking(move || {
        let (Some(host), Some(port)) = (&place.host, &place.port) else {
            return Err(before_send(
                Class::BadReference,
                "serviceAccount needs an agent that runs in Kubernetes (KUBERNETES_SERVICE_HOST is not set)",
            ));
        };
        let host = if host.parse::<IpAddr>().is_ok_and(|address| address.is_ipv6()) {
            format!("[{host}]")
        } else {
            host.clone()
        };
        let server = Url::parse(&format!("https://{host}:{port}"))
            .map_err(|error| before_send(Class::BadReference, format!("KUBERNETES_SERVICE_HOST: {error}")))?;
        let token_path = place.folder.join("token");
        let authority_path = place.folder.join("ca.crt");
        let token = read(&token_path, &token_path)?;
        let token = std::str::from_utf8(&token).map(str::trim).unwrap_or_default();
        if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            let message = format!("{} holds no token", token_path.display());
            return Err(Failure { retryable: true, ..before_send(Class::BadReference, message) });
        }
        Ok(VettedKubeconfig {
            server,
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
