//! The subject of a certificate as text ([RFC 4514](https://www.rfc-editor.org/rfc/rfc4514)).

use x509_parser::asn1_rs::Tag;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer as _;
use x509_parser::x509::{AttributeTypeAndValue, RelativeDistinguishedName, X509Name};

/// Maximum size of a subject's text, in bytes.
pub const MAX_SUBJECT_BYTES: usize = 4096;

/// Attributes with a name; others are written by their OID.
const NAMES: [(&str, &str); 9] = [
    ("2.5.4.3", "CN"),
    ("2.5.4.7", "L"),
    ("2.5.4.8", "ST"),
    ("2.5.4.10", "O"),
    ("2.5.4.11", "OU"),
    ("2.5.4.6", "C"),
    ("2.5.4.9", "STREET"),
    ("0.9.2342.19200300.100.1.25", "DC"),
    ("0.9.2342.19200300.100.1.1", "UID"),
];

/// Why a certificate has no subject that could be matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubjectError {
    /// It is no certificate.
    #[error("the certificate cannot be read")]
    Damaged,
    /// It is too long.
    #[error("the subject of the certificate has more than {MAX_SUBJECT_BYTES} bytes")]
    TooLong,
}

/// The subject of a certificate. A comma or plus sign of a value is escaped, so that one that is not stands between
/// attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// The last attribute first, as RFC 4514 writes it, and the first one first, as OpenSSL does; each without and with a
    /// blank after a comma.
    forms: [String; 4],
}

impl Subject {
    /// Reads the subject of a certificate in DER.
    ///
    /// # Errors
    /// It cannot be read, or is too long.
    pub fn read(certificate: &[u8]) -> Result<Self, SubjectError> {
        let (_, certificate) = X509Certificate::from_der(certificate).map_err(|_| SubjectError::Damaged)?;
        Self::of(certificate.subject())
    }

    pub(super) fn of(name: &X509Name<'_>) -> Result<Self, SubjectError> {
        let mut parts = Vec::new();
        let mut bytes = 0;
        for part in name.iter_rdn() {
            let part = part.iter().map(attribute).collect::<Vec<_>>().join("+");
            bytes += part.len() + 1;
            if bytes > MAX_SUBJECT_BYTES {
                return Err(SubjectError::TooLong);
            }
            parts.push(part);
        }
        let first_one_first = [parts.join(","), parts.join(", ")];
        parts.reverse();
        let [short, spaced] = first_one_first;
        Ok(Self { forms: [parts.join(","), parts.join(", "), short, spaced] })
    }

    /// The subject as RFC 4514 writes it.
    pub fn as_str(&self) -> &str {
        &self.forms[0]
    }

    pub(super) fn forms(&self) -> impl Iterator<Item = &str> {
        self.forms.iter().map(String::as_str)
    }
}

/// The attributes of a name with their values; `None`: it is no text.
pub(super) fn attributes(name: &X509Name<'_>) -> Vec<(String, Option<String>)> {
    let attributes = name.iter_rdn().flat_map(RelativeDistinguishedName::iter);
    attributes
        .map(|attribute| {
            let oid = attribute.attr_type().to_id_string();
            (name_of(&oid).map(str::to_owned).unwrap_or(oid), text(attribute))
        })
        .collect()
}

fn name_of(oid: &str) -> Option<&'static str> {
    NAMES.iter().find(|(known, _)| *known == oid).map(|(_, name)| *name)
}

fn attribute(attribute: &AttributeTypeAndValue<'_>) -> String {
    let oid = attribute.attr_type().to_id_string();
    let name = name_of(&oid);
    match (name, text(attribute)) {
        (Some(name), Some(text)) => format!("{name}={}", escaped(&text)),
        // A value whose form is not known is written as its bytes.
        _ => format!("{}=#{}", name.unwrap_or(&oid), encoded(attribute)),
    }
}

fn text(attribute: &AttributeTypeAndValue<'_>) -> Option<String> {
    let value = attribute.attr_value();
    let utf16 = |bytes: &[u8]| {
        let units = bytes.chunks(2).map(|pair| u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
        String::from_utf16(&units.collect::<Vec<_>>()).ok()
    };
    match value.tag() {
        Tag::Utf8String | Tag::PrintableString | Tag::Ia5String | Tag::NumericString => {
            String::from_utf8(value.data.to_vec()).ok()
        }
        Tag::BmpString if value.data.len().is_multiple_of(2) => utf16(value.data),
        _ => None,
    }
}

/// The value in BER, hexadecimal.
fn encoded(attribute: &AttributeTypeAndValue<'_>) -> String {
    let value = attribute.attr_value();
    let length = value.data.len();
    let head = match u8::try_from(length) {
        Ok(short @ ..0x80) => vec![short],
        _ => {
            let bytes = length.to_be_bytes();
            let bytes = &bytes[length.leading_zeros() as usize / 8..];
            [&[0x80 | u8::try_from(bytes.len()).unwrap_or_default()], bytes].concat()
        }
    };
    let tag = u8::try_from(value.tag().0 & 0x1f).unwrap_or_default();
    hex::encode([&[tag], head.as_slice(), value.data].concat())
}

/// A value, with what has a meaning in the text as `\2C`.
fn escaped(value: &str) -> String {
    let mut written = String::with_capacity(value.len());
    let last = value.chars().count().saturating_sub(1);
    for (at, letter) in value.chars().enumerate() {
        let is_special = matches!(letter, ',' | '+' | '"' | '\\' | '<' | '>' | ';' | '=')
            || letter.is_control()
            || at == 0 && letter == '#'
            || (at == 0 || at == last) && letter == ' ';
        if is_special {
            let mut buffer = [0; 4];
            letter
                .encode_utf8(&mut buffer)
                .bytes()
                .for_each(|byte| written.push_str(&format!("\\{byte:02X}")));
        } else {
            written.push(letter);
        }
    }
    written
}

#[cfg(test)]
pub(super) mod tests {
    use rcgen::{CertificateParams, CustomExtension, DistinguishedName, DnType, DnValue, KeyPair};

    use super::*;

    pub(in crate::identity) fn certificate(name: &[(DnType, DnValue)]) -> Vec<u8> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        for (kind, value) in name {
            params.distinguished_name.push(kind.clone(), value.clone());
        }
        params.custom_extensions = Vec::<CustomExtension>::new();
        let key = KeyPair::generate().expect("a key");
        params.self_signed(&key).expect("a certificate").der().to_vec()
    }

    pub(in crate::identity) fn subject(name: &[(DnType, &str)]) -> Subject {
        let name: Vec<_> = name.iter().map(|(kind, value)| (kind.clone(), DnValue::from(*value))).collect();
        Subject::read(&certificate(&name)).expect("a subject")
    }

    #[test]
    fn a_subject_is_written_in_both_orders_and_with_both_separators() {
        let subject = subject(&[
            (DnType::CountryName, "DE"),
            (DnType::OrganizationName, "ACME"),
            (DnType::CommonName, "a"),
        ]);
        let forms: Vec<_> = subject.forms().collect();
        assert_eq!(
            forms,
            ["CN=a,O=ACME,C=DE", "CN=a, O=ACME, C=DE", "C=DE,O=ACME,CN=a", "C=DE, O=ACME, CN=a"]
        );
        assert_eq!(subject.as_str(), forms[0]);
    }

    #[test]
    fn what_separates_attributes_is_escaped_in_values() {
        let of = |value: &str| subject(&[(DnType::CommonName, value)]).as_str().to_owned();
        assert_eq!(of("a, O=ACME"), "CN=a\\2C O\\3DACME");
        assert_eq!(of("a+b\"<>;\\"), "CN=a\\2Bb\\22\\3C\\3E\\3B\\5C");
        assert_eq!(of(" a b "), "CN=\\20a b\\20");
        assert_eq!(of("#a#"), "CN=\\23a#");
        assert_eq!(of("a\nb\u{0}\u{85}"), "CN=a\\0Ab\\00\\C2\\85");
        assert_eq!(of("größe 😀"), "CN=größe 😀");
        assert_eq!(of(""), "CN=");
    }

    #[test]
    fn values_in_other_forms_and_attributes_without_a_name_are_written_too() {
        let oid = DnType::CustomDnType(vec![1, 2, 840, 113_549, 1, 9, 1]);
        assert_eq!(subject(&[(oid, "a@b")]).as_str(), "1.2.840.113549.1.9.1=#0c03614062");
        let bmp = DnValue::BmpString("ä".try_into().expect("a text"));
        assert_eq!(
            Subject::read(&certificate(&[(DnType::CommonName, bmp)])).expect("a subject").as_str(),
            "CN=ä"
        );
        let teletex = DnValue::TeletexString("a".try_into().expect("a text"));
        let read = Subject::read(&certificate(&[(DnType::CommonName, teletex)])).expect("a subject");
        assert_eq!(read.as_str(), "CN=#140161");
    }

    #[test]
    fn what_is_no_certificate_or_too_long_has_no_subject() {
        assert_eq!(Subject::read(b"no"), Err(SubjectError::Damaged));
        let long = "x".repeat(MAX_SUBJECT_BYTES);
        let certificate = certificate(&[(DnType::CommonName, DnValue::from(long.as_str()))]);
        assert_eq!(Subject::read(&certificate), Err(SubjectError::TooLong));
    }
}
