//! Bearer tokens of agents: the port that turns a token into facts, and what answers it.
//!
//! | module | owns |
//! |---|---|
//! | [`issuers`] | which issuers are trusted, as the settings have them |
//! | [`bearer_tokens`] | [`BearerTokens`]: which check a token gets |
//! | [`check`] | the rules of a JWT (pure) |
//! | [`signatures`] | `ring` behind `jsonwebtoken` |
//! | [`key_set`] | the public keys of an issuer |
//! | [`key_sources`] | where they are read: a file, a server, the operator's own API server |
//! | [`kept_keys`] | when they are read again, and what counts meanwhile |
//! | [`own_cluster`] | TokenReview |
//! | [`static_tokens`] | Secrets with tokens |
//!
//! Nothing here has a token or a key in `Debug`, an error or a log line, or keeps one: what is remembered is a digest.

mod bearer_tokens;
mod check;
mod issuers;
mod kept_keys;
mod key_set;
mod key_sources;
mod own_cluster;
mod signatures;
mod static_tokens;
#[cfg(test)]
mod tests;

use async_trait::async_trait;
use secrecy::SecretString;

pub use bearer_tokens::{BearerSetupError, BearerTokens};
pub use issuers::{ALGORITHMS, BearerSettings, IssuerSettings, KeyLocation};
pub use key_sources::KeySourceError;
use kubesvc_core::identity::TokenFacts;
pub use static_tokens::TokenSecretNames;

/// Maximum length of what a message repeats of a token's names, in characters.
const MAX_SHOWN_CHARS: usize = 200;

/// Audience that a token of the operator's own cluster must be for.
pub const AUDIENCE: &str = "kubesvc-hub";
/// Minimum length of a static token, in bytes.
pub const MIN_STATIC_TOKEN_BYTES: usize = 32;

/// Why there are no facts of a token. No message has a part of the token but its issuer and the id of its key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// It is not accepted; the rule, for the log. An answer to the agent does not have it.
    #[error("{0}")]
    Invalid(String),
    /// It cannot be checked now, which says nothing about it.
    #[error("{0}")]
    Unavailable(String),
}

/// Verifies tokens of agents. It is asked for each stream, for each `Reauthenticate`, and about each session once a minute: an
/// answer is kept for some seconds.
#[async_trait]
pub trait AgentTokens: Send + Sync {
    /// Verifies a token, as it stands after `Bearer`.
    ///
    /// # Errors
    /// It is not accepted, or cannot be checked now.
    async fn verify(&self, token: &SecretString) -> Result<TokenFacts, TokenError>;
}

/// The beginning of a name that strangers choose.
fn shown(name: &str) -> String {
    name.chars().take(MAX_SHOWN_CHARS).collect()
}
