//! A certificate with its private key, from two files or one.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::RwLock;
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use secrecy::SecretString;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::{FromDer as _, X509Version};

use super::private_key::{PrivateKeyError, private_key};
use super::{PemError, TlsFilesError, is_binary_store, read_file};

/// Why a certificate and its key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// The certificates cannot be read.
    #[error("the certificate")]
    Pem(#[from] PemError),
    /// There is no certificate.
    #[error("there is no certificate in it")]
    Empty,
    /// The key cannot be read.
    #[error("the private key")]
    Key(#[from] PrivateKeyError),
    /// The key is not that of the certificate, or cannot sign.
    #[error("the private key cannot be used with the certificate")]
    Mismatch(#[from] rustls::Error),
    /// The first certificate is damaged.
    #[error("the first certificate cannot be read")]
    Damaged,
    /// It is of X.509 version 1.
    #[error(
        "the certificate is of X.509 version 1, which no client accepts; have a certificate of version 3 issued"
    )]
    Version1,
    /// It names no host.
    #[error(
        "the certificate has no subject alternative name, so that no client accepts it; have one issued with the names of the port"
    )]
    NoNames,
    /// It is not for servers.
    #[error("the certificate is not for servers: its extended key usage lacks serverAuth")]
    NotForServers,
    /// It is not for clients.
    #[error("the certificate is not for clients: its extended key usage lacks clientAuth")]
    NotForClients,
    /// Its time is over.
    #[error("the certificate expired at {0}")]
    Expired(jiff::Timestamp),
    /// Its time has not come.
    #[error("the certificate is valid only from {0} on")]
    NotYetValid(jiff::Timestamp),
}

/// A certificate, with those that lead to its authority, and its key, from PEM.
///
/// # Errors
/// They cannot be read, or do not fit.
pub fn certified_key(
    certificate: &[u8],
    key: &[u8],
    password: Option<&SecretString>,
) -> Result<CertifiedKey, CertificateError> {
    let chain = CertificateDer::pem_slice_iter(certificate).collect::<Result<Vec<_>, _>>();
    let chain = chain.map_err(PemError::Damaged)?;
    if chain.is_empty() {
        return Err(match is_binary_store(certificate) {
            true => PemError::Store.into(),
            false => CertificateError::Empty,
        });
    }
    let (_, leaf) = X509Certificate::from_der(&chain[0]).map_err(|_| CertificateError::Damaged)?;
    if leaf.version() != X509Version::V3 {
        return Err(CertificateError::Version1);
    }
    let key = ring::sign::any_supported_type(&private_key(key, password)?)?;
    let certified = CertifiedKey::new(chain, key);
    certified.keys_match()?;
    Ok(certified)
}

/// Checks what clients require of a server's certificate: names, its usage, and its time. `now` is in epoch seconds.
///
/// # Errors
/// What is wrong with it.
pub fn check_server(certified: &CertifiedKey, now: i64) -> Result<(), CertificateError> {
    let leaf = certified.cert.first().ok_or(CertificateError::Empty)?;
    let (_, leaf) = X509Certificate::from_der(leaf).map_err(|_| CertificateError::Damaged)?;
    let names = leaf.subject_alternative_name().map_err(|_| CertificateError::Damaged)?;
    if names.is_none_or(|names| names.value.general_names.is_empty()) {
        return Err(CertificateError::NoNames);
    }
    let usage = leaf.extended_key_usage().map_err(|_| CertificateError::Damaged)?;
    if usage.is_some_and(|usage| !usage.value.server_auth && !usage.value.any) {
        return Err(CertificateError::NotForServers);
    }
    check_time(&leaf, now)
}

/// Checks what servers require of a client's certificate: its usage and its time. `now` is in epoch seconds.
///
/// # Errors
/// What is wrong with it.
pub fn check_client(certified: &CertifiedKey, now: i64) -> Result<(), CertificateError> {
    let leaf = certified.cert.first().ok_or(CertificateError::Empty)?;
    let (_, leaf) = X509Certificate::from_der(leaf).map_err(|_| CertificateError::Damaged)?;
    let usage = leaf.extended_key_usage().map_err(|_| CertificateError::Damaged)?;
    if usage.is_some_and(|usage| !usage.value.client_auth && !usage.value.any) {
        return Err(CertificateError::NotForClients);
    }
    check_time(&leaf, now)
}

fn check_time(leaf: &X509Certificate<'_>, now: i64) -> Result<(), CertificateError> {
    let time = |seconds: i64| jiff::Timestamp::from_second(seconds).unwrap_or_default();
    let validity = leaf.validity();
    let (from, to) = (validity.not_before.timestamp(), validity.not_after.timestamp());
    if now > to {
        return Err(CertificateError::Expired(time(to)));
    }
    if now < from {
        return Err(CertificateError::NotYetValid(time(from)));
    }
    Ok(())
}

/// When the first certificate expires, in epoch seconds.
pub fn not_after(chain: &[CertificateDer<'_>]) -> Option<i64> {
    let (_, leaf) = X509Certificate::from_der(chain.first()?).ok()?;
    Some(leaf.validity().not_after.timestamp())
}

/// Certificate and private key of the settings, both PEM. They may be one file.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The certificate, and those that lead to its authority.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// What the key is encrypted with.
    pub password: Option<SecretString>,
}

impl TlsFiles {
    /// Reads both files.
    ///
    /// # Errors
    /// A file cannot be read, or they do not fit.
    pub async fn read(&self) -> Result<CertifiedKey, TlsFilesError> {
        let (certificate, key) = self.contents().await?;
        self.parse(&certificate, &key)
    }

    /// What both files hold.
    ///
    /// # Errors
    /// A file cannot be read.
    pub async fn contents(&self) -> Result<(Vec<u8>, Vec<u8>), TlsFilesError> {
        Ok((read_file(&self.certificate).await?, read_file(&self.key).await?))
    }

    /// The identity in what both files hold.
    ///
    /// # Errors
    /// They do not fit.
    pub fn parse(&self, certificate: &[u8], key: &[u8]) -> Result<CertifiedKey, TlsFilesError> {
        certified_key(certificate, key, self.password.as_ref()).map_err(|source| self.unfit(source))
    }

    /// The error about what both files hold.
    pub fn unfit(&self, source: CertificateError) -> TlsFilesError {
        TlsFilesError::Unfit { certificate: self.certificate.clone(), key: self.key.clone(), source }
    }
}

/// The certificate that a port shows; none at first, so that handshakes fail until there is one.
#[derive(Default)]
pub struct ServingCertificate(RwLock<Option<Arc<CertifiedKey>>>);

impl fmt::Debug for ServingCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServingCertificate")
    }
}

impl ServingCertificate {
    /// Uses a certificate from now on. Returns whether it is another one.
    pub fn set(&self, certificate: CertifiedKey) -> bool {
        let mut current = self.0.write();
        let is_same = current.as_ref().is_some_and(|current| current.cert == certificate.cert);
        if !is_same {
            *current = Some(Arc::new(certificate));
        }
        !is_same
    }

    /// When the one in use expires, in epoch seconds.
    pub fn not_after(&self) -> Option<i64> {
        not_after(&self.0.read().as_ref()?.cert)
    }
}

impl ResolvesServerCert for ServingCertificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.read().clone()
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, KeyPair};

    use super::*;
    use crate::telemetry::errors::chain;

    const NOW: i64 = 1_800_000_000;
    const DAY: i64 = 86_400;

    fn identity(change: impl FnOnce(&mut CertificateParams)) -> (String, String) {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(["hub.example.com".to_owned()]).expect("a name");
        params.not_before = rcgen::date_time_ymd(2026, 1, 1);
        params.not_after = rcgen::date_time_ymd(2030, 1, 1);
        change(&mut params);
        let certificate = params.self_signed(&key).expect("a certificate");
        (certificate.pem(), key.serialize_pem())
    }

    fn problem(certificate: &str, key: &str, now: i64) -> Option<String> {
        let certified = certified_key(certificate.as_bytes(), key.as_bytes(), None);
        certified.and_then(|certified| check_server(&certified, now)).err().map(|error| chain(&error))
    }

    #[test]
    fn what_no_client_would_accept_is_named() {
        let good = identity(|_| {});
        assert_eq!(problem(&good.0, &good.1, NOW), None);
        let any = identity(|params| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::Any]);
        assert_eq!(problem(&any.0, &any.1, NOW), None);
        let nameless = identity(|params| params.subject_alt_names.clear());
        let for_clients =
            identity(|params| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth]);
        let version_1 = include_str!("testdata/v1.pem");
        for (certificate, key, now, expected) in [
            (nameless.0.as_str(), nameless.1.as_str(), NOW, "no subject alternative name"),
            (&for_clients.0, &for_clients.1, NOW, "lacks serverAuth"),
            (version_1, include_str!("testdata/pkcs8.pem"), NOW, "X.509 version 1"),
            (&good.0, &good.1, NOW + 1500 * DAY, "expired at 2030-01-01T00:00:00Z"),
            (&good.0, &good.1, NOW - 1000 * DAY, "valid only from 2026-01-01T00:00:00Z on"),
            (&good.0, &any.1, NOW, "cannot be used with the certificate"),
            (&good.1, &good.1, NOW, "there is no certificate"),
            (&good.0[..good.0.len() - 60], &good.1, NOW, "damaged"),
        ] {
            let problem = problem(certificate, key, now).expect(expected);
            assert!(problem.contains(expected), "{expected:?}: {problem}");
        }
        let used = |(certificate, key): &(String, String)| {
            let certified = certified_key(certificate.as_bytes(), key.as_bytes(), None).expect("they fit");
            check_client(&certified, NOW).err().map(|error| error.to_string())
        };
        assert_eq!([used(&for_clients), used(&any), used(&nameless)], [None, None, None]);
        let for_servers =
            identity(|params| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth]);
        assert!(used(&for_servers).is_some_and(|problem| problem.contains("lacks clientAuth")));
        let store = certified_key(&[0xfe, 0xed, 0xfe, 0xed, 0, 0], good.1.as_bytes(), None);
        let said = chain(&store.expect_err("a key store"));
        assert!(said.contains("openssl pkcs12"), "{said}");
    }
}
