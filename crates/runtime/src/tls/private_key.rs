//! Private keys in PEM: PKCS#8, PKCS#1 and SEC1, and encrypted PKCS#8.

use pkcs8::EncryptedPrivateKeyInfoRef;
use pkcs8::der::SecretDocument;
use pkcs8::pkcs5::EncryptionScheme;
use pkcs8::pkcs5::pbes2::{EncryptionScheme as Cipher, Kdf};
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use secrecy::{ExposeSecret, SecretString};

use super::{PemError, completed, is_binary_store};
use kubesvc_core::kubeconfig::unusable_key;

const ENCRYPTED_BEGIN: &str = "-----BEGIN ENCRYPTED PRIVATE KEY-----";
const ENCRYPTED_END: &str = "-----END ENCRYPTED PRIVATE KEY-----";
/// Line of a key that is encrypted as OpenSSL did before PKCS#8.
const LEGACY_ENCRYPTION: &[u8] = b"Proc-Type: 4,ENCRYPTED";
/// Maximum number of iterations from a password to a key: a few seconds.
const MAX_ITERATIONS: u32 = 10_000_000;

/// Why a private key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PrivateKeyError {
    /// The file is a key store.
    #[error(transparent)]
    Store(PemError),
    /// There is none.
    #[error("it has no private key in PEM (PKCS#8, PKCS#1 or SEC1)")]
    Missing(#[source] pem::Error),
    /// It is encrypted, and there is no password.
    #[error("the private key is encrypted, and no password is set")]
    NoPassword,
    /// It is encrypted in another way.
    #[error(
        "the private key is encrypted in a way that is not supported: it must be PBES2 with PBKDF2 of at most \
         {MAX_ITERATIONS} iterations, HMAC with SHA-2, and AES in CBC mode; convert it: openssl pkcs8 -topk8 -v2 aes-256-cbc \
         -v2prf hmacWithSHA256 -in KEY -out NEW"
    )]
    Encryption,
    /// It does not open.
    #[error("the password does not open the private key")]
    WrongPassword,
    /// Its encrypted form is damaged.
    #[error("the encrypted private key is damaged")]
    Damaged,
    /// It is of a kind with which nobody can log in.
    #[error("the private key {0}")]
    Unusable(String),
}

/// Reads a private key from PEM, which may hold certificates too.
///
/// # Errors
/// There is none, the password does not open it, or it is of a kind that is not supported.
pub fn private_key(
    pem: &[u8],
    password: Option<&SecretString>,
) -> Result<PrivateKeyDer<'static>, PrivateKeyError> {
    let key = match encrypted(pem) {
        Some(block) => decrypted(block, password.ok_or(PrivateKeyError::NoPassword)?)?,
        None if pem.windows(LEGACY_ENCRYPTION.len()).any(|window| window == LEGACY_ENCRYPTION) => {
            return Err(PrivateKeyError::Encryption);
        }
        None => PrivateKeyDer::from_pem_slice(pem).map_err(|error| match is_binary_store(pem) {
            true => PrivateKeyError::Store(PemError::Store),
            false => PrivateKeyError::Missing(error),
        })?,
    };
    match unusable_key(&key) {
        Some(problem) => Err(PrivateKeyError::Unusable(problem)),
        None => Ok(completed(key)),
    }
}

/// The block of an encrypted key.
fn encrypted(pem: &[u8]) -> Option<&str> {
    let text = str::from_utf8(pem).ok()?;
    let begin = text.find(ENCRYPTED_BEGIN)?;
    let end = text[begin..].find(ENCRYPTED_END)? + ENCRYPTED_END.len();
    Some(&text[begin..begin + end])
}

fn decrypted(block: &str, password: &SecretString) -> Result<PrivateKeyDer<'static>, PrivateKeyError> {
    let (_, document) = SecretDocument::from_pem(block).map_err(|_| PrivateKeyError::Damaged)?;
    let info =
        document.decode_msg::<EncryptedPrivateKeyInfoRef<'_>>().map_err(|_| PrivateKeyError::Encryption)?;
    let EncryptionScheme::Pbes2(scheme) = &info.encryption_algorithm else {
        return Err(PrivateKeyError::Encryption);
    };
    let is_supported = match (&scheme.kdf, &scheme.encryption) {
        (Kdf::Pbkdf2(derivation), cipher) => {
            let is_cbc = matches!(
                cipher,
                Cipher::Aes128Cbc { .. } | Cipher::Aes192Cbc { .. } | Cipher::Aes256Cbc { .. }
            );
            is_cbc && derivation.iteration_count <= MAX_ITERATIONS
        }
        _ => false,
    };
    if !is_supported {
        return Err(PrivateKeyError::Encryption);
    }
    let opened = info.decrypt(password.expose_secret()).map_err(|_| PrivateKeyError::WrongPassword)?;
    Ok(PrivatePkcs8KeyDer::from(opened.as_bytes().to_vec()).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: &[u8] = include_bytes!("testdata/pkcs8.pem");

    fn read(pem: &[u8], password: &str) -> Result<PrivateKeyDer<'static>, String> {
        let password = (!password.is_empty()).then(|| SecretString::from(password));
        private_key(pem, password.as_ref()).map_err(|error| error.to_string())
    }

    #[test]
    fn every_form_of_a_key_is_the_same_key() {
        let plain = read(PLAIN, "").expect("PKCS#8");
        for (form, password) in [
            (include_bytes!("testdata/sec1.pem").as_slice(), ""),
            (include_bytes!("testdata/pbes2.pem").as_slice(), "open-sesame"),
            (&[include_bytes!("testdata/v1.pem").as_slice(), PLAIN].concat(), ""),
        ] {
            let key = read(form, password).expect("a key");
            assert_eq!(key.secret_der(), plain.secret_der());
        }
        assert!(read(PLAIN, "not needed").is_ok(), "a password that nothing needs is no error");
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        let pbes2 = include_bytes!("testdata/pbes2.pem").as_slice();
        let cut = &pbes2[..pbes2.len() - 60];
        for (pem, password, expected) in [
            (pbes2, "", "no password is set"),
            (pbes2, "wrong", "the password does not open"),
            (cut, "open-sesame", "has no private key in PEM"),
            (include_bytes!("testdata/scrypt.pem"), "open-sesame", "openssl pkcs8 -topk8 -v2 aes-256-cbc"),
            (include_bytes!("testdata/des3.pem"), "open-sesame", "must be PBES2"),
            (include_bytes!("testdata/pbes1.pem"), "open-sesame", "must be PBES2"),
            (include_bytes!("testdata/legacy.pem"), "open-sesame", "must be PBES2"),
            (include_bytes!("testdata/rsa1024.pem"), "", "RSA key of 1024 bits"),
            (include_bytes!("testdata/v1.pem"), "", "has no private key in PEM"),
            (b"", "", "has no private key in PEM"),
            (b"\x30\x82\x09\x41", "", "openssl pkcs12 -in STORE"),
        ] {
            let error = read(pem, password).expect_err(expected);
            assert!(error.contains(expected), "{expected:?}: {error}");
            assert!(!error.contains("open-sesame"), "{error}");
        }
    }
}
