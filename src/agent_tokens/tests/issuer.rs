//! An issuer of tokens, with keys of each type.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::Algorithm;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair,
    KeyPair as _, RSA_PKCS1_SHA256, RSA_PKCS1_SHA384, RSA_PKCS1_SHA512, RSA_PSS_SHA256, RSA_PSS_SHA384,
    RSA_PSS_SHA512, RsaKeyPair, RsaPublicKeyComponents,
};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::{Value, json};

use crate::agent_tokens::issuers::ALGORITHMS;

pub(super) const ISSUER: &str = "https://issuer.example";

enum PrivateKey {
    Ec(EcdsaKeyPair),
    Ed(Ed25519KeyPair),
    Rsa(RsaKeyPair),
}

/// A private key with the id and the algorithm that its tokens have.
pub(super) struct SigningKey {
    pub(super) id: String,
    pub(super) algorithm: Algorithm,
    key: PrivateKey,
}

pub(super) fn encoded(part: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(part)
}

/// Claims of a token that is issued at this time, and valid for an hour.
pub(super) fn claims(now: i64) -> Value {
    json!({"iss": ISSUER, "aud": "kubesvc-hub", "sub": "agent", "iat": now, "exp": now + 3600, "jti": "t1"})
}

pub(super) fn jwks<'k>(keys: impl IntoIterator<Item = &'k SigningKey>) -> String {
    json!({"keys": keys.into_iter().map(SigningKey::jwk).collect::<Vec<_>>()}).to_string()
}

impl SigningKey {
    pub(super) fn new(id: &str, algorithm: Algorithm) -> Self {
        let random = SystemRandom::new();
        let key = match algorithm {
            Algorithm::ES256 | Algorithm::ES384 => {
                let curve = match algorithm {
                    Algorithm::ES256 => &ECDSA_P256_SHA256_FIXED_SIGNING,
                    _ => &ECDSA_P384_SHA384_FIXED_SIGNING,
                };
                let der = EcdsaKeyPair::generate_pkcs8(curve, &random).expect("a key");
                PrivateKey::Ec(EcdsaKeyPair::from_pkcs8(curve, der.as_ref(), &random).expect("a key"))
            }
            Algorithm::EdDSA => {
                let der = Ed25519KeyPair::generate_pkcs8(&random).expect("a key");
                PrivateKey::Ed(Ed25519KeyPair::from_pkcs8(der.as_ref()).expect("a key"))
            }
            _ => {
                let pem = include_bytes!("../testdata/rsa2048.pem");
                let der = PrivatePkcs8KeyDer::from_pem_slice(pem).expect("PEM");
                PrivateKey::Rsa(RsaKeyPair::from_pkcs8(der.secret_pkcs8_der()).expect("a key"))
            }
        };
        Self { id: id.to_owned(), algorithm, key }
    }

    /// The public key.
    pub(super) fn jwk(&self) -> Value {
        let id = &self.id;
        match &self.key {
            PrivateKey::Ec(key) => {
                let point = &key.public_key().as_ref()[1..];
                let (x, y) = point.split_at(point.len() / 2);
                let curve = if x.len() == 32 { "P-256" } else { "P-384" };
                json!({"kty": "EC", "kid": id, "crv": curve, "x": encoded(x), "y": encoded(y)})
            }
            PrivateKey::Ed(key) => {
                json!({"kty": "OKP", "kid": id, "crv": "Ed25519", "x": encoded(key.public_key())})
            }
            PrivateKey::Rsa(key) => {
                let RsaPublicKeyComponents { n, e } = RsaPublicKeyComponents::<Vec<u8>>::from(key.public());
                // With a zero at its beginning, as some issuers write it.
                json!({"kty": "RSA", "kid": id, "use": "sig", "n": encoded([vec![0], n].concat()), "e": encoded(e)})
            }
        }
    }

    pub(super) fn token(&self, claims: &Value) -> String {
        self.token_with(&json!({"alg": self.algorithm_name(), "kid": self.id, "typ": "JWT"}), claims)
    }

    pub(super) fn algorithm_name(&self) -> &'static str {
        ALGORITHMS.iter().find(|(_, algorithm)| *algorithm == self.algorithm).expect("a name").0
    }

    pub(super) fn token_with(&self, header: &Value, claims: &Value) -> String {
        self.signed(&format!("{}.{}", encoded(header.to_string()), encoded(claims.to_string())))
    }

    /// The message with its signature.
    pub(super) fn signed(&self, message: &str) -> String {
        let (random, bytes) = (SystemRandom::new(), message.as_bytes());
        let signature = match &self.key {
            PrivateKey::Ec(key) => key.sign(&random, bytes).expect("signed").as_ref().to_vec(),
            PrivateKey::Ed(key) => key.sign(bytes).as_ref().to_vec(),
            PrivateKey::Rsa(key) => {
                let mut signature = vec![0; key.public().modulus_len()];
                let padding: &dyn ring::signature::RsaEncoding = match self.algorithm {
                    Algorithm::RS256 => &RSA_PKCS1_SHA256,
                    Algorithm::RS384 => &RSA_PKCS1_SHA384,
                    Algorithm::RS512 => &RSA_PKCS1_SHA512,
                    Algorithm::PS256 => &RSA_PSS_SHA256,
                    Algorithm::PS384 => &RSA_PSS_SHA384,
                    _ => &RSA_PSS_SHA512,
                };
                key.sign(padding, &random, bytes, &mut signature).expect("signed");
                signature
            }
        };
        format!("{message}.{}", encoded(signature))
    }
}
