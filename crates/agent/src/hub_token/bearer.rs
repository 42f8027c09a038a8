//! A bearer token: its form, how it is shown (not at all), and until when it holds.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::HeaderValue;
use jiff::Timestamp;
use secrecy::zeroize::Zeroizing;
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;

use kubesvc_core::wire::MAX_TOKEN_BYTES;

/// A bearer token of 1 to [`MAX_TOKEN_BYTES`] visible ASCII characters. Its memory is zeroized, and `Debug` omits it.
#[derive(Clone)]
pub struct BearerToken(SecretString);

/// Why bytes are no bearer token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BearerTokenError {
    #[error("there is no token in it")]
    Empty,
    #[error("the token in it has more than {MAX_TOKEN_BYTES} bytes")]
    TooLong,
    #[error("the token in it has a blank, or a byte that is no visible ASCII character")]
    NotVisible,
}

impl BearerToken {
    /// Takes the token in these bytes. White space around it does not count.
    ///
    /// # Errors
    /// There is none.
    pub fn parse(bytes: &[u8]) -> Result<Self, BearerTokenError> {
        let token = bytes.trim_ascii();
        if token.is_empty() {
            return Err(BearerTokenError::Empty);
        }
        if token.len() > MAX_TOKEN_BYTES {
            return Err(BearerTokenError::TooLong);
        }
        let visible =
            str::from_utf8(token).ok().filter(|text| text.bytes().all(|one| one.is_ascii_graphic()));
        visible.map(|text| Self(text.into())).ok_or(BearerTokenError::NotVisible)
    }

    /// The token itself.
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }

    /// The value of `authorization`, which is never shown either.
    pub fn header(&self) -> Option<HeaderValue> {
        let text = Zeroizing::new(format!("Bearer {}", self.expose()));
        let mut value = HeaderValue::from_str(&text).ok()?;
        value.set_sensitive(true);
        Some(value)
    }

    /// When it was issued and expires.
    pub fn life(&self) -> TokenLife {
        TokenLife::of(self.expose()).unwrap_or_default()
    }
}

impl PartialEq for BearerToken {
    fn eq(&self, other: &Self) -> bool {
        self.expose() == other.expose()
    }
}

impl fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BearerToken(***)")
    }
}

/// When a token was issued and expires, as far as it says so: `iat` and `exp` of a JWT, which is not verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenLife {
    pub issued: Option<Timestamp>,
    pub expires: Option<Timestamp>,
}

impl TokenLife {
    fn of(token: &str) -> Option<Self> {
        #[derive(Deserialize)]
        struct TokenClaims {
            iat: Option<f64>,
            exp: Option<f64>,
        }
        let mut parts = token.split('.');
        let (Some(_), Some(claims), Some(_), None) = (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return None;
        };
        let claims = Zeroizing::new(URL_SAFE_NO_PAD.decode(claims.trim_end_matches('=')).ok()?);
        let claims: TokenClaims = serde_json::from_slice(&claims).ok()?;
        let expires = claims.exp.and_then(time);
        let issued =
            claims.iat.and_then(time).filter(|issued| expires.is_none_or(|expires| *issued < expires));
        Some(Self { issued, expires })
    }
}

/// A time in seconds since 1970, which may have a fraction.
fn time(seconds: f64) -> Option<Timestamp> {
    let whole = jiff::SignedDuration::try_from_secs_f64(seconds).ok()?;
    Timestamp::from_duration(whole).ok()
}
