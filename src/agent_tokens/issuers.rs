//! Which issuers of tokens are trusted, as the settings have them.

use std::path::PathBuf;

use jsonwebtoken::Algorithm;

/// Algorithms by their names in tokens. `ring` verifies no ES512.
pub const ALGORITHMS: [(&str, Algorithm); 9] = [
    ("RS256", Algorithm::RS256),
    ("RS384", Algorithm::RS384),
    ("RS512", Algorithm::RS512),
    ("PS256", Algorithm::PS256),
    ("PS384", Algorithm::PS384),
    ("PS512", Algorithm::PS512),
    ("ES256", Algorithm::ES256),
    ("ES384", Algorithm::ES384),
    ("EdDSA", Algorithm::EdDSA),
];

/// Which tokens are accepted. Static ones, which a KubesvcIdentity names, need no setting.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BearerSettings {
    /// Whether service accounts of the operator's own cluster are accepted.
    pub token_review: bool,
    /// Other issuers, each once.
    pub issuers: Vec<IssuerSettings>,
}

/// An issuer of tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct IssuerSettings {
    /// Its name, exactly as tokens have it (`iss`).
    pub issuer: String,
    /// Audience that its tokens must be for.
    pub audience: String,
    /// Where its keys are.
    pub keys: KeyLocation,
    /// Algorithms that its tokens may be signed with.
    pub algorithms: Vec<Algorithm>,
}

/// Where the keys of an issuer are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyLocation {
    /// In a file, as a JWKS.
    File(PathBuf),
    /// At a URL, as a JWKS. `authorities` replace those of the system.
    Url {
        /// The URL, which is https.
        url: String,
        /// File with the authorities of the server's certificate, PEM.
        authorities: Option<PathBuf>,
    },
    /// At the URL that the issuer's own document names.
    Discovery {
        /// File with the authorities of both servers' certificates, PEM.
        authorities: Option<PathBuf>,
    },
}
