//! The public keys of an issuer, as a JWKS has them. A key that cannot be used is left out, and the others count.

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind};
use serde::Deserialize;
use serde_json::Value;

use super::shown;

/// Maximum number of keys of an issuer.
const MAX_KEYS: usize = 100;
/// Minimum and maximum length of an RSA key, in bits.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2048..=8192;

const RSA: &[Algorithm] = &[
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
];

/// Why there are no keys.
#[derive(Debug, thiserror::Error)]
pub enum KeySetError {
    /// The text has another form. The parser's own words may repeat what stands there, which may be a secret.
    #[error("it is no JWKS, which is JSON with a list `keys` (line {line}, column {column})")]
    Form {
        /// Where the text stops being one.
        line: usize,
        /// The same within the line.
        column: usize,
    },
    /// More keys than anybody needs.
    #[error("it has {0} keys, and {MAX_KEYS} are the most")]
    TooMany(usize),
}

/// The keys of an issuer.
#[derive(Debug)]
pub(super) struct KeySet {
    keys: Vec<TokenKey>,
    left_out: Vec<String>,
}

/// A public key.
#[derive(Debug)]
pub(super) struct TokenKey {
    id: Option<String>,
    /// The algorithms that it is for.
    algorithms: Vec<Algorithm>,
    pub(super) key: DecodingKey,
}

impl TokenKey {
    pub(super) fn fits(&self, algorithm: Algorithm) -> bool {
        self.algorithms.contains(&algorithm)
    }
}

impl KeySet {
    /// Reads a JWKS.
    ///
    /// # Errors
    /// It is none.
    pub(super) fn parse(json: &[u8]) -> Result<Self, KeySetError> {
        #[derive(Deserialize)]
        struct ListedKey {
            keys: Vec<Value>,
        }
        let ListedKey { keys: listed } = serde_json::from_slice(json)
            .map_err(|error| KeySetError::Form { line: error.line(), column: error.column() })?;
        if listed.len() > MAX_KEYS {
            return Err(KeySetError::TooMany(listed.len()));
        }
        let (mut keys, mut left_out) = (Vec::new(), Vec::new());
        for (at, key) in listed.into_iter().enumerate() {
            let name = match key.get("kid").and_then(Value::as_str) {
                Some(id) => format!("key {:?}", shown(id)),
                None => format!("key {}", at + 1),
            };
            match read_key(key) {
                Ok(key) => keys.push(key),
                Err(why) => left_out.push(format!("{name} {why}")),
            }
        }
        Ok(Self { keys, left_out })
    }

    /// The keys that were left out, each with the reason.
    pub(super) fn left_out(&self) -> &[String] {
        &self.left_out
    }

    /// The keys with this id. Ids are compared, and nothing else is made of them.
    pub(super) fn with_id<'s>(&'s self, id: &'s str) -> impl Iterator<Item = &'s TokenKey> {
        self.keys.iter().filter(move |key| key.id.as_deref() == Some(id))
    }

    /// The keys for an algorithm.
    pub(super) fn fitting(&self, algorithm: Algorithm) -> impl Iterator<Item = &TokenKey> {
        self.keys.iter().filter(move |key| key.fits(algorithm))
    }
}

/// Reads one key, or says why it is left out, to follow its name.
fn read_key(key: Value) -> Result<TokenKey, String> {
    // Without the value, which a key that is none of ours may have as a secret.
    let jwk: Jwk = serde_json::from_value(key).map_err(|_| "is no JWK".to_owned())?;
    let common = &jwk.common;
    let is_for_signatures = common.public_key_use.as_ref().is_none_or(|of| *of == PublicKeyUse::Signature)
        && common.key_operations.as_ref().is_none_or(|all| all.contains(&KeyOperations::Verify));
    if !is_for_signatures {
        return Err("is not for signatures (use, key_ops)".to_owned());
    }
    let damaged = |_| "has parts that are no base64url".to_owned();
    let (key, fitting) = match &jwk.algorithm {
        AlgorithmParameters::RSA(of) => {
            (rsa(&DecodingKey::from_rsa_components(&of.n, &of.e).map_err(damaged)?)?, RSA)
        }
        AlgorithmParameters::EllipticCurve(of) => {
            let (length, fitting): (_, &[_]) = match of.curve {
                EllipticCurve::P256 => (65, &[Algorithm::ES256]),
                EllipticCurve::P384 => (97, &[Algorithm::ES384]),
                _ => return Err("is on a curve other than P-256 and P-384".to_owned()),
            };
            (of_length(length, DecodingKey::from_ec_components(&of.x, &of.y).map_err(damaged)?)?, fitting)
        }
        AlgorithmParameters::OctetKeyPair(of) if of.curve == EllipticCurve::Ed25519 => (
            of_length(32, DecodingKey::from_ed_components(&of.x).map_err(damaged)?)?,
            &[Algorithm::EdDSA][..],
        ),
        AlgorithmParameters::OctetKeyPair(_) => return Err("is on a curve other than Ed25519".to_owned()),
        AlgorithmParameters::OctetKey(_) => {
            return Err(
                "is a shared secret (kty oct), which whoever checks a token could sign with".to_owned()
            );
        }
        _ => return Err("is of no known type (kty)".to_owned()),
    };
    let named = common.key_algorithm.map(Algorithm::try_from).transpose().ok();
    let algorithms = match named {
        Some(None) => fitting.to_vec(),
        Some(Some(only)) if fitting.contains(&only) => vec![only],
        _ => return Err("is for an algorithm that does not fit its type (alg)".to_owned()),
    };
    Ok(TokenKey { id: common.key_id.clone(), algorithms, key })
}

/// The key in the form that `ring` reads, without leading zeros.
fn rsa(key: &DecodingKey) -> Result<DecodingKey, String> {
    let DecodingKeyKind::RsaModulusExponent { n, e } = key.kind() else {
        return Err("is no RSA key".to_owned());
    };
    let [n, e] = [n, e].map(|number| {
        let zeros = number.iter().take_while(|byte| **byte == 0).count();
        &number[zeros..]
    });
    let bits = n.len() * 8 - n.first().map_or(0, |first| first.leading_zeros() as usize);
    if !RSA_BITS.contains(&bits) {
        return Err(format!(
            "is RSA of {bits} bits, and {} to {} are taken",
            RSA_BITS.start(),
            RSA_BITS.end()
        ));
    }
    Ok(DecodingKey::from_rsa_raw_components(n, e))
}

fn of_length(length: usize, key: DecodingKey) -> Result<DecodingKey, String> {
    match key.try_get_as_bytes() {
        Ok(bytes) if bytes.len() == length => Ok(key),
        _ => Err("has coordinates of another length than its curve".to_owned()),
    }
}
