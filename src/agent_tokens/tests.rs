//! Tokens of agents: the rules one by one, issuers as real servers, and API servers that answer by a script.
#![expect(clippy::panic, reason = "this is how a test fails")]

mod bearer;
mod fetched_keys;
mod issuer;
mod logs;
mod rules;
mod scripted_api;
mod secrets;

use std::sync::Arc;

use secrecy::SecretString;

use super::*;

/// Shows a token, and returns the answer.
async fn shown_token(tokens: &Arc<BearerTokens>, token: &str) -> Result<TokenFacts, TokenError> {
    tokens.verify(&SecretString::from(token)).await
}

fn refused(answer: Result<TokenFacts, TokenError>) -> String {
    match answer {
        Err(TokenError::Invalid(why)) => why,
        other => panic!("it is to be refused: {other:?}"),
    }
}

fn unavailable(answer: Result<TokenFacts, TokenError>) -> String {
    match answer {
        Err(TokenError::Unavailable(why)) => why,
        other => panic!("nothing is to be known of it: {other:?}"),
    }
}
