//! Which certificates of clients a port accepts: by authorities, and by the revocation lists of their issuers.

use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use serde::Deserialize;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer as _;
use x509_parser::revocation_list::CertificateRevocationList;

use super::{PemError, TlsFilesError, is_binary_store};

/// Whether clients show a certificate. Settings have the words of gRPC servers, or those of Spring Boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum ClientAuth {
    /// They are not asked for one.
    #[default]
    #[serde(rename = "NONE", alias = "none")]
    None,
    /// They may; one that is not accepted ends the handshake.
    #[serde(rename = "OPTIONAL", alias = "want")]
    Optional,
    /// They must.
    #[serde(rename = "REQUIRE", alias = "need")]
    Required,
}

/// Why authorities or revocation lists cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ClientsError {
    /// They cannot be read.
    #[error(transparent)]
    Pem(#[from] PemError),
    /// There is no certificate.
    #[error("there is no certificate in it")]
    NoAuthority,
    /// A certificate cannot be used as an authority.
    #[error("certificate {number} of it cannot be used as an authority")]
    Authority {
        /// Its number, from 1.
        number: usize,
        /// Why.
        source: rustls::Error,
    },
    /// There is no revocation list.
    #[error("there is no revocation list (X509 CRL) in it")]
    NoRevocationList,
    /// A revocation list has expired.
    #[error("the revocation list of {issuer} expired at {at}; renew it")]
    ExpiredList {
        /// Its issuer.
        issuer: String,
        /// When.
        at: jiff::Timestamp,
    },
    /// An authority has no revocation list.
    #[error("authority {0} of it has no revocation list, and others have; add its list")]
    NoListOf(String),
    /// What was read fits no connection.
    #[error(transparent)]
    Verifier(#[from] VerifierBuilderError),
}

/// The authorities of a PEM text. One that cannot be used is an error: a list that was cut off would lock its clients out.
///
/// # Errors
/// There is none, or one cannot be used.
pub fn authorities(pem: &[u8]) -> Result<RootCertStore, ClientsError> {
    let mut roots = RootCertStore::empty();
    for (at, certificate) in CertificateDer::pem_slice_iter(pem).enumerate() {
        let certificate = certificate.map_err(PemError::Damaged)?;
        roots.add(certificate).map_err(|source| ClientsError::Authority { number: at + 1, source })?;
    }
    match roots.is_empty() {
        true if is_binary_store(pem) => Err(PemError::Store.into()),
        true => Err(ClientsError::NoAuthority),
        false => Ok(roots),
    }
}

/// The authorities that the machine trusts. Reads files.
///
/// # Errors
/// There are none.
pub fn system_authorities() -> Result<RootCertStore, TlsFilesError> {
    let mut roots = RootCertStore::empty();
    match roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs).0 {
        0 => Err(TlsFilesError::NoSystemAuthority),
        _ => Ok(roots),
    }
}

/// The revocation lists of a file, PEM or DER. `now` is in epoch seconds.
///
/// # Errors
/// There is none, or one has expired: it would lock its issuer's clients out.
pub fn revocation_lists(
    bytes: &[u8],
    now: i64,
) -> Result<Vec<CertificateRevocationListDer<'static>>, ClientsError> {
    let lists = CertificateRevocationListDer::pem_slice_iter(bytes).collect::<Result<Vec<_>, _>>();
    let lists = match lists.map_err(PemError::Damaged)? {
        lists if !lists.is_empty() => lists,
        // Whether it is a list is found when the verifier is made.
        _ if bytes.first() == Some(&0x30) => vec![bytes.to_vec().into()],
        _ => return Err(ClientsError::NoRevocationList),
    };
    for list in &lists {
        let Ok((_, list)) = CertificateRevocationList::from_der(list) else { continue };
        let next = list.next_update().map(|time| time.timestamp());
        if let Some(next) = next.filter(|next| *next < now) {
            let (issuer, at) =
                (list.issuer().to_string(), jiff::Timestamp::from_second(next).unwrap_or_default());
            return Err(ClientsError::ExpiredList { issuer, at });
        }
    }
    Ok(lists)
}

/// Checks that each of the authorities has a revocation list: without, its clients would be locked out.
///
/// # Errors
/// One has none.
pub fn check_each_has_a_list(
    authorities: &[u8],
    lists: &[CertificateRevocationListDer<'_>],
) -> Result<(), ClientsError> {
    let lists: Vec<_> =
        lists.iter().filter_map(|list| CertificateRevocationList::from_der(list).ok()).collect();
    for authority in CertificateDer::pem_slice_iter(authorities).filter_map(Result::ok) {
        let Ok((_, authority)) = X509Certificate::from_der(&authority) else { continue };
        let subject = authority.subject();
        if !lists.iter().any(|(_, list)| list.issuer().as_raw() == subject.as_raw()) {
            return Err(ClientsError::NoListOf(subject.to_string()));
        }
    }
    Ok(())
}

/// Verifies clients by these authorities. With revocation lists, each issuer of a chain needs one that has not expired.
///
/// # Errors
/// There is no authority, or a list is damaged.
pub fn verifier(
    provider: Arc<CryptoProvider>,
    roots: RootCertStore,
    lists: Vec<CertificateRevocationListDer<'static>>,
    auth: ClientAuth,
) -> Result<Arc<dyn ClientCertVerifier>, ClientsError> {
    let has_lists = !lists.is_empty();
    let mut builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).with_crls(lists);
    if has_lists {
        builder = builder.enforce_revocation_expiration();
    }
    if auth != ClientAuth::Required {
        builder = builder.allow_unauthenticated();
    }
    Ok(builder.build()?)
}
