//! A certificate and its private key in two files, which may change while the process runs.

use std::io;
use std::path::PathBuf;

use rustls::sign::CertifiedKey;

use super::{CertificateError, certified_key};

/// Why the certificate of two files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsFilesError {
    /// A file cannot be read.
    #[error("{}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// What they hold cannot be used.
    #[error("{} with {}", certificate.display(), key.display())]
    Unfit {
        /// The file with the certificate.
        certificate: PathBuf,
        /// The file with the key.
        key: PathBuf,
        /// Why.
        source: CertificateError,
    },
}

/// Certificate and private key of the settings, both PEM.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The certificate, and those that lead to its authority.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

impl TlsFiles {
    /// Reads both files.
    ///
    /// # Errors
    /// A file cannot be read, or they do not fit.
    pub async fn read(&self) -> Result<CertifiedKey, TlsFilesError> {
        let (certificate, key) = (read_file(&self.certificate).await?, read_file(&self.key).await?);
        certified_key(&certificate, &key).map_err(|source| TlsFilesError::Unfit {
            certificate: self.certificate.clone(),
            key: self.key.clone(),
            source,
        })
    }
}

/// The bytes of a file.
///
/// # Errors
/// It cannot be read.
pub async fn read_file(path: &PathBuf) -> Result<Vec<u8>, TlsFilesError> {
    tokio::fs::read(path).await.map_err(|source| TlsFilesError::File { path: path.clone(), source })
}
