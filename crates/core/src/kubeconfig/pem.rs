//! Certificates and keys: parsed block by block and re-encoded, so that nothing else is sent along.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::{PemObject, SectionKind};
use secrecy::zeroize::Zeroizing;

use crate::kubeconfig::KubeconfigError;
use crate::kubeconfig::SecretBytes;
use crate::kubeconfig::der::{is_on_p521, unusable_key};

/// Remedy for a key with which nobody can log in.
const USABLE_KEYS: &str = "use an RSA key of 2048, 3072 or 4096 bits, an EC key on P-256 or P-384, or an Ed25519 key, with its certificate";

type Section = (SectionKind, Zeroizing<Vec<u8>>);

/// Parses the certificates of `certificate-authority-data`. A private key among them is refused, not merely dropped:
/// it would have been sent where it must not go.
pub(super) fn certificate_authority(pem: &[u8], field: &str) -> Result<Vec<u8>, KubeconfigError> {
    if mentions_private_key(pem) {
        return Err(KubeconfigError::new(
            field,
            "holds a private key",
            "give the certificate of the authority without its key, and consider that key known to others",
        ));
    }
    // One that cannot be used takes nothing from the others.
    certificates(pem, field, |on_p521| on_p521.iter().all(|one| *one))
}

/// Parses `client-certificate-data`: the certificate of the key, and those of its issuers, which sign nothing here.
pub(super) fn client_certificate(pem: &[u8], field: &str) -> Result<Vec<u8>, KubeconfigError> {
    certificates(pem, field, |on_p521| on_p521.first() == Some(&true))
}

/// Parses the certificates of a PEM text. `is_unusable` judges by which of them have a key on P-521.
fn certificates(
    pem: &[u8],
    field: &str,
    is_unusable: impl FnOnce(&[bool]) -> bool,
) -> Result<Vec<u8>, KubeconfigError> {
    let (mut written, mut on_p521) = (Zeroizing::new(Vec::new()), Vec::new());
    for (kind, der) in sections(pem, field)? {
        if kind == SectionKind::Certificate {
            on_p521.push(is_on_p521(&der));
            write("CERTIFICATE", &der, &mut written);
        }
    }
    if !on_p521.is_empty() && is_unusable(&on_p521) {
        return Err(KubeconfigError::new(
            field,
            "holds a certificate with a key on P-521, which is not supported",
            "use a certificate with an RSA key, or one on P-256 or P-384",
        ));
    }
    if written.is_empty() {
        return Err(KubeconfigError::new(
            field,
            "holds no PEM certificate",
            "base64-encode a PEM file, which has the line -----BEGIN CERTIFICATE-----",
        ));
    }
    Ok(written.to_vec())
}

/// Parses `client-key-data`: one private key without a passphrase.
pub(super) fn private_key(pem: &[u8], field: &str) -> Result<SecretBytes, KubeconfigError> {
    const UNENCRYPTED: &str = "base64-encode a PEM file with one private key that needs no passphrase";
    let contains = |part: &[u8]| pem.windows(part.len()).any(|window| window == part);
    if contains(b"ENCRYPTED PRIVATE KEY-----") || contains(b"Proc-Type: 4,ENCRYPTED") {
        return Err(KubeconfigError::new(field, "holds an encrypted private key", UNENCRYPTED));
    }
    let mut keys = sections(pem, field)?
        .into_iter()
        .filter_map(|(kind, der)| {
            let label = match kind {
                SectionKind::PrivateKey => "PRIVATE KEY",
                SectionKind::RsaPrivateKey => "RSA PRIVATE KEY",
                SectionKind::EcPrivateKey => "EC PRIVATE KEY",
                _ => return None,
            };
            Some((label, der))
        })
        .collect::<Vec<_>>();
    match (keys.pop(), keys.is_empty()) {
        (Some((label, der)), true) => {
            if let Some(problem) = unusable(label, &der) {
                return Err(KubeconfigError::new(field, problem, USABLE_KEYS));
            }
            // Allocated at its final size: growing would leave copies behind.
            let mut written = Zeroizing::new(Vec::with_capacity(der.len() * 2 + 128));
            write(label, &der, &mut written);
            Ok(SecretBytes::from(written.as_slice()))
        }
        (None, _) => Err(KubeconfigError::new(field, "holds no PEM private key", UNENCRYPTED)),
        _ => Err(KubeconfigError::new(field, "holds several private keys", UNENCRYPTED)),
    }
}

/// Why nobody can log in with the key of a section.
fn unusable(label: &str, der: &[u8]) -> Option<String> {
    let key = match label {
        "RSA PRIVATE KEY" => PrivateKeyDer::Pkcs1(der.into()),
        "EC PRIVATE KEY" => PrivateKeyDer::Sec1(der.into()),
        _ => PrivateKeyDer::Pkcs8(der.into()),
    };
    unusable_key(&key)
}

fn sections(pem: &[u8], field: &str) -> Result<Vec<Section>, KubeconfigError> {
    let malformed = || {
        KubeconfigError::new(
            field,
            "holds malformed PEM",
            "base64-encode the PEM file as it is, from the BEGIN to the END line",
        )
    };
    let mut sections = Vec::new();
    for section in <(SectionKind, Vec<u8>)>::pem_slice_iter(pem) {
        let (kind, der) = section.map_err(|_| malformed())?;
        if der.is_empty() {
            return Err(malformed());
        }
        sections.push((kind, Zeroizing::new(der)));
    }
    Ok(sections)
}

fn mentions_private_key(pem: &[u8]) -> bool {
    const MARK: &[u8] = b"PRIVATE KEY-----";
    pem.windows(MARK.len()).any(|window| window == MARK)
}

fn write(label: &str, der: &[u8], out: &mut Vec<u8>) {
    const BYTES_OF_A_LINE: usize = 48;
    let mut line = [0; BYTES_OF_A_LINE / 3 * 4];
    out.extend_from_slice(format!("-----BEGIN {label}-----\n").as_bytes());
    for chunk in der.chunks(BYTES_OF_A_LINE) {
        // The line has room for a whole chunk, so this cannot fail.
        let length = STANDARD.encode_slice(chunk, &mut line).unwrap_or_default();
        out.extend_from_slice(line.get(..length).unwrap_or_default());
        out.push(b'\n');
    }
    out.extend_from_slice(format!("-----END {label}-----\n").as_bytes());
}
