//! Request headers with the recipient and the credential.

use http::HeaderValue;
use secrecy::ExposeSecret;
use secrecy::zeroize::Zeroizing;
use url::{Position, Url};

use crate::account::kubeconfig::Authentication;
use crate::agent::failure::before_send;
use crate::wire::common::Failure;
use crate::wire::common::failure::Class;

/// The `Host` header for a server's URL.
pub(super) fn host(server: &Url) -> Result<HeaderValue, Failure> {
    HeaderValue::from_str(&server[Position::BeforeHost..Position::AfterPort])
        .map_err(|_| before_send(Class::BadKubeconfig, "the server's host cannot be sent in a header"))
}

/// The `Authorization` header, if there is one.
pub(super) fn header(authentication: &Authentication) -> Result<Option<HeaderValue>, Failure> {
    let text = match authentication {
        Authentication::Token(token) | Authentication::TokenAndClientCertificate { token, .. } => {
            format!("Bearer {}", token.expose_secret())
        }
        Authentication::ClientCertificate { .. } => return Ok(None),
    };
    let text = Zeroizing::new(text);
    let mut value = HeaderValue::from_str(&text).map_err(|_| {
        before_send(Class::BadKubeconfig, "the token holds characters that no header may have")
    })?;
    value.set_sensitive(true);
    Ok(Some(value))
}
