//! Certificates that the operator makes: for its ports, and for calls between replicas. Authorities are self-signed, keys are
//! ECDSA, and everything is PEM. `own_certificate` keeps that of a port in a Secret; `kept_secret` reads and writes such
//! Secrets. The rest does no I/O.

pub mod kept_secret;
pub mod own_certificate;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PublicKeyData as _,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// Seconds of a day.
pub const DAY: i64 = 86_400;

/// An authority, by its name and its key.
pub struct Authority {
    name: &'static str,
    key: KeyPair,
}

/// What a certificate is for.
pub struct LeafRequest<'r> {
    /// Its common name.
    pub common_name: &'r str,
    /// Host names and addresses.
    pub names: &'r [String],
    /// What its key may be used for.
    pub usages: Vec<ExtendedKeyUsagePurpose>,
    /// Validity, in days.
    pub days: i64,
}

impl Authority {
    /// Makes an authority of this common name, valid for so many days. Returns its certificate, too. `now` is in epoch
    /// seconds.
    ///
    /// # Errors
    /// There is no randomness.
    pub fn make(name: &'static str, days: i64, now: i64) -> Result<(Vec<u8>, Self), rcgen::Error> {
        let key = KeyPair::generate()?;
        let certificate = params_of(name, days, now).self_signed(&key)?;
        Ok((certificate.pem().into_bytes(), Self { name, key }))
    }

    /// The authority of this common name with this key; `None` if the key cannot be used.
    pub fn read(name: &'static str, key: &[u8]) -> Option<Self> {
        let key = KeyPair::from_pem(std::str::from_utf8(key).ok()?).ok()?;
        Some(Self { name, key })
    }

    /// Whether the first certificate is that of this authority.
    pub fn has_made(&self, authorities: &[u8]) -> bool {
        let key = self.key.subject_public_key_info();
        first(authorities, |certificate| certificate.public_key().raw == key) == Some(true)
    }

    /// Its key.
    pub fn key_pem(&self) -> Vec<u8> {
        self.key.serialize_pem().into_bytes()
    }

    /// Makes a certificate. Returns it with its key.
    ///
    /// # Errors
    /// A name cannot be that of a host.
    pub fn sign(&self, leaf: LeafRequest<'_>, now: i64) -> Result<(Vec<u8>, Vec<u8>), rcgen::Error> {
        // Of the authority, only name and key count here.
        let issuer = Issuer::new(params_of(self.name, 1, now), &self.key);
        let mut params = CertificateParams::new(leaf.names)?;
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, leaf.common_name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = leaf.usages;
        params.use_authority_key_identifier_extension = true;
        set_validity(&mut params, now, leaf.days);
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &issuer)?;
        Ok((certificate.pem().into_bytes(), key.serialize_pem().into_bytes()))
    }
}

fn params_of(name: &str, days: i64, now: i64) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    set_validity(&mut params, now, days);
    params
}

/// Makes a certificate valid from the midnight before yesterday's time on, since clocks differ, for so many days.
fn set_validity(params: &mut CertificateParams, now: i64, days: i64) {
    let midnight = |seconds: i64| {
        let time = jiff::Timestamp::from_second(seconds).unwrap_or_default();
        let day = time.to_zoned(jiff::tz::TimeZone::UTC).date();
        rcgen::date_time_ymd(day.year().into(), day.month().unsigned_abs(), day.day().unsigned_abs())
    };
    (params.not_before, params.not_after) = (midnight(now - DAY), midnight(now + days * DAY));
}

/// Seconds for which the first certificate is valid yet; 0 if there is none.
pub fn seconds_left(pem: &[u8], now: i64) -> i64 {
    first(pem, |certificate| certificate.validity().not_after.timestamp() - now).unwrap_or_default().max(0)
}

/// The methods of a verifier that verify signatures of handshakes, and no certificate, as the provider in its field does.
macro_rules! verify_signatures_by {
    ($field:tt) => {
        fn verify_tls12_signature(
            &self,
            message: &[u8],
            certificate: &rustls::pki_types::CertificateDer<'_>,
            signature: &rustls::DigitallySignedStruct,
        ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
            let algorithms = &self.$field.signature_verification_algorithms;
            rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &rustls::pki_types::CertificateDer<'_>,
            signature: &rustls::DigitallySignedStruct,
        ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
            let algorithms = &self.$field.signature_verification_algorithms;
            rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
            self.$field.signature_verification_algorithms.supported_schemes()
        }
    };
}
pub(crate) use verify_signatures_by;

/// When the first certificate became valid, in epoch seconds.
pub fn valid_from(pem: &[u8]) -> Option<i64> {
    first(pem, |certificate| certificate.validity().not_before.timestamp())
}

/// The host names of the first certificate.
pub fn dns_names(pem: &[u8]) -> Vec<String> {
    first(pem, dns_names_of).unwrap_or_default()
}

/// Whether the first certificate names the first authority as the one that signed it, by the identifier of its key.
pub fn is_signed_by(pem: &[u8], authorities: &[u8]) -> bool {
    let signer = first(pem, |certificate| {
        certificate.extensions().iter().find_map(|extension| match extension.parsed_extension() {
            ParsedExtension::AuthorityKeyIdentifier(signer) => {
                Some(signer.key_identifier.as_ref()?.0.to_vec())
            }
            _ => None,
        })
    });
    let authority = first(authorities, |certificate| {
        certificate.extensions().iter().find_map(|extension| match extension.parsed_extension() {
            ParsedExtension::SubjectKeyIdentifier(key) => Some(key.0.to_vec()),
            _ => None,
        })
    });
    signer.flatten().is_some_and(|signer| Some(signer) == authority.flatten())
}

/// The host names of a certificate in DER.
pub fn dns_names_in_der(der: &[u8]) -> Vec<String> {
    X509Certificate::from_der(der).map(|(_, certificate)| dns_names_of(&certificate)).unwrap_or_default()
}

fn dns_names_of(certificate: &X509Certificate<'_>) -> Vec<String> {
    let names = certificate.subject_alternative_name().ok().flatten();
    let names = names.map(|names| names.value.general_names.clone()).unwrap_or_default();
    let dns = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        _ => None,
    };
    names.iter().filter_map(dns).collect()
}

/// The text of the first certificate.
pub fn first_text(pem: &[u8]) -> &[u8] {
    const END: &[u8] = b"-----END CERTIFICATE-----\n";
    let at = pem.windows(END.len()).position(|window| window == END);
    at.map_or(&[], |at| &pem[..at + END.len()])
}

/// Reads something of the first certificate.
fn first<T>(pem: &[u8], read: impl FnOnce(&X509Certificate<'_>) -> T) -> Option<T> {
    let der = CertificateDer::pem_slice_iter(pem).next()?.ok()?;
    let (_, certificate) = X509Certificate::from_der(&der).ok()?;
    Some(read(&certificate))
}
