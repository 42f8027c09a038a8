//! TLS of ports and clients: certificates, keys, authorities and revocation lists from files that may change while the
//! process runs.
//!
//! | module | owns |
//! |---|---|
//! | `private_key` | private keys in PEM, encrypted ones too |
//! | `identity` | a certificate with its key, and what is required of a server's |
//! | `clients` | which certificates of clients are accepted |
//! | `names` | protocols and cipher suites by the names that settings use |
//! | `handshake_errors` | why a handshake failed, in words |
//! | `server` | what a port presents and accepts; another set of files takes effect as a whole or not at all |
//!
//! There is one provider of cryptography, `ring`. Sessions are not resumed, and nothing is sent before the handshake ends.

pub mod clients;
mod ec_keys;
pub mod handshake_errors;
pub mod identity;
pub mod names;
pub mod private_key;
pub mod server;

use std::io;
use std::path::{Path, PathBuf};

use rustls::pki_types::pem;

use sha2::{Digest as _, Sha256};

pub use ec_keys::completed;

/// Maximum size of a file, in bytes.
const MAX_FILE_BYTES: u64 = 4 * 1024 * 1024;

/// Why files cannot be used for TLS. Names the file; no message has a key or a password.
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
    /// Certificate and key cannot be used.
    #[error("{} with {}", certificate.display(), key.display())]
    Unfit {
        /// The file with the certificate.
        certificate: PathBuf,
        /// The file with the key.
        key: PathBuf,
        /// Why.
        source: identity::CertificateError,
    },
    /// Authorities or revocation lists cannot be used.
    #[error("{}", .path.display())]
    Clients {
        /// The file.
        path: PathBuf,
        /// Why.
        source: clients::ClientsError,
    },
    /// The machine has no certificate authorities.
    #[error("the machine trusts no certificate authority (ca-certificates)")]
    NoSystemAuthority,
    /// The program is ending.
    #[error("the files were not parsed to their end")]
    Interrupted(#[from] tokio::task::JoinError),
    /// The settings of TLS fit no connection.
    #[error("TLS cannot be set up")]
    Setup(#[from] rustls::Error),
}

/// The bytes of a file, at most 4 MiB.
///
/// # Errors
/// It cannot be read, or is larger.
pub async fn read_file(path: &Path) -> Result<Vec<u8>, TlsFilesError> {
    use tokio::io::AsyncReadExt as _;
    let read = async {
        let mut bytes = Vec::new();
        tokio::fs::File::open(path).await?.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).await?;
        if bytes.len() as u64 > MAX_FILE_BYTES {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is larger than 4 MiB"));
        }
        Ok(bytes)
    };
    read.await.map_err(|source| TlsFilesError::File { path: path.to_owned(), source })
}

/// A digest of what files hold: another one if any of them changes, or if a byte moves from one to the next.
pub fn digest<'p>(parts: impl Iterator<Item = &'p Vec<u8>>) -> [u8; 32] {
    let mut digest = Sha256::new();
    for part in parts {
        digest.update(part.len().to_be_bytes());
        digest.update(part);
    }
    digest.finalize().into()
}

/// What a PEM file that cannot be read says of itself.
fn is_binary_store(bytes: &[u8]) -> bool {
    // A Java key store, or DER, as PKCS#12 is.
    bytes.starts_with(&[0xfe, 0xed, 0xfe, 0xed]) || bytes.starts_with(&[0x30, 0x82])
}

/// Why a text is no PEM.
#[derive(Debug, thiserror::Error)]
pub enum PemError {
    /// It is a key store.
    #[error(
        "it is no PEM but a key store or DER; convert it: openssl pkcs12 -in STORE -nodes -out FILE.pem, and for a JKS first \
         keytool -importkeystore -srckeystore STORE -destkeystore STORE.p12 -deststoretype PKCS12"
    )]
    Store,
    /// It has a damaged block.
    #[error("it is no PEM, or a block of it is damaged")]
    Damaged(#[from] pem::Error),
}
