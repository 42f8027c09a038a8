//! Clouddriver's credentials sources, read and never written.
//!
//! A [`CredentialsSource`] reads one source as it is now, within bounds of size and time; [`CredentialsSources`] holds
//! those of the settings in their order, reads them on demand, and keeps the last good snapshot of each. What their text
//! means is decided in [`kubesvc_clouddriver::sources`].
//!
//! | module | owns |
//! |---|---|
//! | `sql` | Clouddriver's table |
//! | `files` | files on the operator's disk |
//! | `object` | keys of a Secret or ConfigMap |
//! | `config_server` | a Spring Cloud config server |
//! | `clouddriver_api` | Clouddriver's own answers |
//! | `http` | bounded GET requests |
//! | `bounded_files` | bounded reads of files, also of passwords |
//! | `kept` | the sources in their order, and what is known of each |
//!
//! Errors, logs and metrics name sources, places and accounts, never a value.

mod bounded_files;
mod clouddriver_api;
mod config_server;
mod files;
mod http;
mod kept;
mod object;
mod sql;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use kubesvc_clouddriver::sources::{SourceFault, SourceSnapshot};
use kubesvc_runtime::kube_access::{ErrorClass, KubeError};
use kubesvc_store::ClouddriverTableError;

pub use bounded_files::{FileError, read_text_file_below};
pub use kept::{CredentialsSources, NeededSources};

/// A credentials source of the settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceSettings {
    /// Its name, unique among all sources.
    pub name: String,
    /// What it is, and where.
    pub place: SourcePlace,
}

/// What a credentials source is, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourcePlace {
    /// Clouddriver's table `accounts`.
    Sql {
        /// URL of the database, without a password.
        url: String,
        /// File with the password.
        password_file: Option<PathBuf>,
        /// PEM file with the authority of the server's certificate.
        authority: Option<PathBuf>,
    },
    /// YAML files on the operator's disk. All of them exist.
    Files {
        /// Their paths.
        paths: Vec<PathBuf>,
        /// The active profiles besides `local`, the last one above the others.
        profiles: Vec<String>,
    },
    /// YAML files in a Secret or ConfigMap.
    Object {
        /// Which of the two.
        kind: ObjectKind,
        /// Its namespace; `None`: the operator's own.
        namespace: Option<String>,
        /// Its name.
        name: String,
        /// The keys that are read, which exist; empty: those with the name of a file that Clouddriver reads.
        keys: Vec<String>,
        /// The active profiles besides `local`, the last one above the others.
        profiles: Vec<String>,
    },
    /// A Spring Cloud config server.
    ConfigServer {
        /// Its base URL.
        uri: String,
        /// Name of the application.
        application: String,
        /// Its profiles, with commas.
        profile: String,
        /// Branch or tag; `None`: the server's default.
        label: Option<String>,
        /// User of basic authentication.
        username: Option<String>,
        /// File with the user's password.
        password_file: Option<PathBuf>,
        /// PEM file with the authorities of the server's certificate; `None`: the system's.
        authority: Option<PathBuf>,
    },
    /// Clouddriver's `/credentials/type/kubernetes`.
    Api {
        /// Clouddriver's base URL.
        uri: String,
        /// User that is named to Clouddriver.
        username: Option<String>,
        /// PEM file with the authorities of the server's certificate; `None`: the system's.
        authority: Option<PathBuf>,
    },
}

/// A kind of object that may hold files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectKind {
    /// A Secret.
    Secret,
    /// A ConfigMap.
    ConfigMap,
}

impl ObjectKind {
    /// Its name as Kubernetes spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Secret => "Secret",
            Self::ConfigMap => "ConfigMap",
        }
    }
}

/// Reads one credentials source.
#[async_trait]
pub trait CredentialsSource: Send + Sync {
    /// Interval of reads while the source is followed.
    fn interval(&self) -> Duration;

    /// Whether it reads Clouddriver's table, where the accounts are that are written at `/credentials`.
    fn is_table(&self) -> bool {
        false
    }

    /// Reads the source as it is now. An unchanged source may return the same snapshot again. The caller bounds the time,
    /// and may drop the read at any point.
    ///
    /// # Errors
    /// Nothing is known about the source's accounts then.
    async fn read(&self) -> Result<Arc<SourceSnapshot>, SourceReadError>;
}

/// Why a credentials source cannot be read. Its text contains no value of the source.
#[derive(Debug, thiserror::Error)]
pub enum SourceReadError {
    /// Its text is not what the source should have.
    #[error(transparent)]
    Content(#[from] SourceFault),
    /// Clouddriver's table cannot be read.
    #[error(transparent)]
    Table(#[from] ClouddriverTableError),
    /// A file cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The API server refuses.
    #[error("the {} {namespace}/{name} cannot be read: {}", kind.as_str(), advice(source))]
    Object {
        /// The kind of the object.
        kind: ObjectKind,
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// The error of the request.
        #[source]
        source: KubeError,
    },
    /// The object, or a key in it, does not exist or is not text.
    #[error("the {} {namespace}/{name} {what}", kind.as_str())]
    ObjectContent {
        /// The kind of the object.
        kind: ObjectKind,
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// What is wrong, and what to do.
        what: String,
    },
    /// A request failed.
    #[error("GET {url} failed: check that the server runs there, and caFile")]
    Request {
        /// The URL, which has no credential.
        url: String,
        /// The error of the client, without the URL.
        #[source]
        source: reqwest::Error,
    },
    /// Another answer than 200.
    #[error("GET {url} was answered with {code}{}", remedy(*code))]
    Status {
        /// The URL, which has no credential.
        url: String,
        /// The status code.
        code: u16,
    },
    /// An answer or a source is larger than it may be.
    #[error("{what} is larger than {mib} MiB")]
    TooLarge {
        /// What is.
        what: String,
        /// The bound.
        mib: u64,
    },
    /// The source was not read in time.
    #[error("it was not read within {} s", .0.as_secs())]
    Timeout(Duration),
}

fn advice(error: &KubeError) -> &'static str {
    match error.class() {
        ErrorClass::Refused => "let the operator get it, with a Role in its namespace",
        _ => "the Kubernetes API server does not answer as it should",
    }
}

fn remedy(code: u16) -> &'static str {
    match code {
        300..=399 => ": redirects are not followed; give the URL that it leads to",
        401 | 403 => ": check username, and the right to read accounts",
        404 => ": check uri, and the name and label of the application",
        _ => "",
    }
}
