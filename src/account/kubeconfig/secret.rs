//! Secret values.

use std::fmt;

use secrecy::zeroize::Zeroize;
use secrecy::{ExposeSecret, SecretBox, SecretSlice, SecretString};

/// A secret: wiped from memory when dropped, and accessible only through [`ExposeSecret::expose_secret`].
///
/// Wraps [`secrecy::SecretBox`] and adds comparison, which vetting twice needs.
pub struct Secret<S: Zeroize + ?Sized>(SecretBox<S>);

/// A secret text, such as a token.
pub type SecretText = Secret<str>;
/// Secret bytes, such as a private key.
pub type SecretBytes = Secret<[u8]>;

impl<S: Zeroize + ?Sized> ExposeSecret<S> for Secret<S> {
    fn expose_secret(&self) -> &S {
        self.0.expose_secret()
    }
}

impl From<&str> for SecretText {
    fn from(text: &str) -> Self {
        Self(SecretString::from(text))
    }
}

impl From<&[u8]> for SecretBytes {
    fn from(bytes: &[u8]) -> Self {
        Self(SecretSlice::from(bytes.to_vec()))
    }
}

impl<S: Zeroize + ?Sized> Clone for Secret<S>
where
    SecretBox<S>: Clone,
{
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<S: Zeroize + PartialEq + ?Sized> PartialEq for Secret<S> {
    fn eq(&self, other: &Self) -> bool {
        self.expose_secret() == other.expose_secret()
    }
}

impl<S: Zeroize + Eq + ?Sized> Eq for Secret<S> {}

impl<S: Zeroize + ?Sized> fmt::Debug for Secret<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}
