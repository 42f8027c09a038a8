//! Keys and certificates in DER, as far as must be known of them: their algorithm, and the number of an EC key.

use rustls::pki_types::PrivateKeyDer;
use secrecy::zeroize::Zeroizing;

const BOOLEAN: u8 = 0x01;
const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OCTET_STRING: u8 = 0x04;
const OID: u8 = 0x06;
const SEQUENCE: u8 = 0x30;
const TAG_0: u8 = 0xa0;
const TAG_3: u8 = 0xa3;

const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];
const EC: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
const ED25519: &[u8] = &[0x2b, 0x65, 0x70];
const EXTENDED_KEY_USAGE: &[u8] = &[0x55, 0x1d, 0x25];
const ANY_EXTENDED_KEY_USAGE: &[u8] = &[0x55, 0x1d, 0x25, 0x00];
const SERVER_AUTH: &[u8] = &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, 0x01];
const P256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];
const P384: &[u8] = &[0x2b, 0x81, 0x04, 0x00, 0x22];
const P521: &[u8] = &[0x2b, 0x81, 0x04, 0x00, 0x23];

/// Sizes of the primes of RSA keys with which `ring` signs, in bits: half of 2048, 3072 and 4096.
const RSA_PRIME_BITS: [usize; 3] = [1024, 1536, 2048];
/// Smallest public exponent of RSA keys with which `ring` signs.
const MIN_RSA_EXPONENT: &[u8] = &[0x01, 0x00, 0x01];

/// Reads one element after the other.
#[derive(Clone, Copy)]
struct Elements<'a>(&'a [u8]);

impl<'a> Elements<'a> {
    /// The next element, if it has this tag.
    fn next(&mut self, tag: u8) -> Option<&'a [u8]> {
        let (found, content, rest) = element(self.0)?;
        (found == tag).then_some(())?;
        self.0 = rest;
        Some(content)
    }

    fn sequence(&mut self) -> Option<Elements<'a>> {
        self.next(SEQUENCE).map(Elements)
    }
}

/// Tag and content of the first element, and what follows it.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let [tag, first, rest @ ..] = bytes else { return None };
    let (length, rest) = match usize::from(*first) {
        short @ 0..0x80 => (short, rest),
        long => {
            let (octets, rest) = rest.split_at_checked(long - 0x80)?;
            (
                octets
                    .iter()
                    .try_fold(0_usize, |sum, byte| sum.checked_mul(256)?.checked_add(usize::from(*byte)))?,
                rest,
            )
        }
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((*tag, content, rest))
}

/// The elliptic curves on which keys may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Curve {
    /// NIST P-256, also called prime256v1.
    P256,
    /// NIST P-384, also called secp384r1.
    P384,
}

impl Curve {
    /// Size of a private key, in bytes.
    pub(crate) fn key_bytes(self) -> usize {
        match self {
            Self::P256 => 32,
            Self::P384 => 48,
        }
    }
}

/// An EC private key: its number, without the public part, which [RFC 5915](https://www.rfc-editor.org/rfc/rfc5915) makes
/// optional.
pub struct EcKey {
    /// The curve.
    pub curve: Curve,
    /// The number, big endian and [`Curve::key_bytes`] long.
    pub number: Zeroizing<Vec<u8>>,
}

impl EcKey {
    /// Reads a key in either form (SEC1, PKCS#8); `None` if it is no EC key on one of the curves.
    pub fn read(key: &PrivateKeyDer<'_>) -> Option<Self> {
        let PrivateKey::Ec { curve: Some(curve), number } = PrivateKey::read(key)? else { return None };
        let first = number.iter().position(|byte| *byte != 0)?;
        let digits = number.get(first..)?;
        let mut padded = Zeroizing::new(vec![0; curve.key_bytes()]);
        let begin = padded.len().checked_sub(digits.len())?;
        padded.get_mut(begin..)?.copy_from_slice(digits);
        Some(Self { curve, number: padded })
    }
}

/// What is known of a private key.
enum PrivateKey<'a> {
    /// Bits of the modulus and of the two primes, and the public exponent.
    Rsa {
        bits: usize,
        primes: [usize; 2],
        exponent: &'a [u8],
    },
    Ec {
        curve: Option<Curve>,
        number: &'a [u8],
    },
    Ed25519,
    Other,
}

impl<'a> PrivateKey<'a> {
    /// Reads a key; `None` if it is not in its form.
    fn read(key: &'a PrivateKeyDer<'_>) -> Option<Self> {
        match key {
            PrivateKeyDer::Pkcs1(key) => Self::rsa(key.secret_pkcs1_der()),
            PrivateKeyDer::Sec1(key) => Self::ec(key.secret_sec1_der(), None),
            PrivateKeyDer::Pkcs8(key) => {
                let mut key = Elements(key.secret_pkcs8_der()).sequence()?;
                key.next(INTEGER)?;
                let mut algorithm = key.sequence()?;
                let inner = key.next(OCTET_STRING)?;
                match algorithm.next(OID)? {
                    RSA => Self::rsa(inner),
                    EC => Self::ec(inner, Some(algorithm.next(OID)?)),
                    ED25519 => Some(Self::Ed25519),
                    _ => Some(Self::Other),
                }
            }
            _ => None,
        }
    }

    fn rsa(der: &'a [u8]) -> Option<Self> {
        let mut key = Elements(der).sequence()?;
        let (_, modulus, exponent) = (key.next(INTEGER)?, key.next(INTEGER)?, key.next(INTEGER)?);
        let (_, one, other) = (key.next(INTEGER)?, key.next(INTEGER)?, key.next(INTEGER)?);
        Some(Self::Rsa { bits: bits(modulus), primes: [bits(one), bits(other)], exponent: digits(exponent) })
    }

    fn ec(der: &'a [u8], curve: Option<&[u8]>) -> Option<Self> {
        let mut key = Elements(der).sequence()?;
        key.next(INTEGER)?;
        let number = key.next(OCTET_STRING)?;
        let own = key.next(TAG_0).and_then(|own| Elements(own).next(OID));
        let curve = match curve.or(own)? {
            P256 => Some(Curve::P256),
            P384 => Some(Curve::P384),
            _ => None,
        };
        Some(Self::Ec { curve, number })
    }
}

/// A number without leading zeros.
fn digits(number: &[u8]) -> &[u8] {
    number.iter().position(|byte| *byte != 0).and_then(|first| number.get(first..)).unwrap_or_default()
}

/// Number of bits of a number.
fn bits(number: &[u8]) -> usize {
    let digits = digits(number);
    digits.first().map_or(0, |first| digits.len() * 8 - first.leading_zeros() as usize)
}

/// Why nobody can log in with a private key; `None` if one can, or if it is unknown what key it is.
pub fn unusable_key(key: &PrivateKeyDer<'_>) -> Option<String> {
    match PrivateKey::read(key)? {
        PrivateKey::Rsa { bits, .. } if bits > 4096 => {
            Some(format!("is an RSA key of {bits} bits, over 4096"))
        }
        PrivateKey::Rsa { bits, primes: [one, other], .. }
            if one != other || !RSA_PRIME_BITS.contains(&one) =>
        {
            Some(format!(
                "is an RSA key of {bits} bits, and other sizes than 2048, 3072 and 4096 are not supported"
            ))
        }
        PrivateKey::Rsa { exponent, .. }
            if exponent.len() < MIN_RSA_EXPONENT.len()
                || exponent < MIN_RSA_EXPONENT && exponent.len() == MIN_RSA_EXPONENT.len() =>
        {
            Some("is an RSA key with a public exponent under 65537, which is not supported".to_owned())
        }
        PrivateKey::Ec { curve: None, .. } => Some(
            "is a key on another curve than P-256 and P-384, such as P-521, which is not supported"
                .to_owned(),
        ),
        PrivateKey::Other => Some(
            "is a key of another algorithm than RSA, ECDSA and Ed25519, which is not supported".to_owned(),
        ),
        PrivateKey::Rsa { .. } | PrivateKey::Ec { .. } | PrivateKey::Ed25519 => None,
    }
}

/// Whether a certificate may be a server's, by its extended key usage: it has none, or one for servers or for all. `false` if
/// it cannot be read.
pub fn may_serve(certificate: &[u8]) -> bool {
    let usages = || {
        let mut tbs = Elements(certificate).sequence()?.sequence()?;
        while let Some((tag, content, rest)) = element(tbs.0) {
            tbs.0 = rest;
            if tag != TAG_3 {
                continue;
            }
            let mut extensions = Elements(content).sequence()?;
            while let Some(mut extension) = extensions.sequence() {
                if extension.next(OID)? == EXTENDED_KEY_USAGE {
                    // Whether it is critical comes before, if it is said.
                    let _critical = extension.next(BOOLEAN);
                    return Some(Some(Elements(extension.next(OCTET_STRING)?).sequence()?));
                }
            }
        }
        Some(None)
    };
    let serves = |mut usages: Elements<'_>| {
        std::iter::from_fn(|| usages.next(OID)).any(|one| one == SERVER_AUTH || one == ANY_EXTENDED_KEY_USAGE)
    };
    usages().is_some_and(|usages| usages.is_none_or(serves))
}

/// Whether the public key of a certificate is on P-521. `false` if it cannot be read.
pub(super) fn is_on_p521(certificate: &[u8]) -> bool {
    let curve = || {
        let mut tbs = Elements(certificate).sequence()?.sequence()?;
        let _version = tbs.next(TAG_0);
        tbs.next(INTEGER)?;
        // The signature's algorithm, the issuer, the validity, the subject.
        for _ in 0..4 {
            tbs.sequence()?;
        }
        let mut key = tbs.sequence()?;
        let mut algorithm = key.sequence()?;
        key.next(BIT_STRING)?;
        (algorithm.next(OID)? == EC).then_some(())?;
        algorithm.next(OID)
    };
    curve() == Some(P521)
}
