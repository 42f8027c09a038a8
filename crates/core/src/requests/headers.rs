//! Which headers of a request or an answer are passed on. Connections, credentials and identities are each side's own.

use std::collections::HashSet;

use super::MAX_HEADERS_BYTES;
use crate::wire::ops::Header;

/// Headers of one connection.
const HOP_BY_HOP: [&str; 8] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "content-length",
];
/// Headers with a credential or a recipient.
const CREDENTIALS: [&str; 4] = ["authorization", "proxy-authorization", "cookie", "host"];
/// Prefixes of headers that say who asks.
const IDENTITIES: [&str; 3] = ["impersonate-", "x-remote-", "x-forwarded-"];

/// Why headers are refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// A name that no header has.
    #[error("{0:?} is no name of a header")]
    Name(String),
    /// A value with a line break or a zero byte.
    #[error("the header {0} has a line break or a zero byte")]
    Value(String),
    /// All headers together are too large.
    #[error("the headers have more than {MAX_HEADERS_BYTES} bytes; send fewer or shorter ones")]
    TooLarge,
}

/// Checks headers, and removes those that are not passed on. `Upgrade` stays.
///
/// # Errors
/// A [`HeaderError`] names the header that cannot be sent.
pub fn passed_on(headers: Vec<Header>) -> Result<Vec<Header>, HeaderError> {
    check(&headers)?;
    let mut named = HashSet::new();
    for Header { name, value } in &headers {
        if name.eq_ignore_ascii_case("connection") {
            let value = String::from_utf8_lossy(value).to_ascii_lowercase();
            named.extend(value.split(',').map(|one| one.trim().to_owned()));
        }
    }
    named.remove("upgrade");
    let stays = |header: &Header| {
        let name = header.name.to_ascii_lowercase();
        !HOP_BY_HOP.contains(&name.as_str())
            && !CREDENTIALS.contains(&name.as_str())
            && !IDENTITIES.iter().any(|prefix| name.starts_with(prefix))
            && !named.contains(&name)
    };
    Ok(headers.into_iter().filter(stays).collect())
}

/// Checks that headers can be sent, and their size.
///
/// # Errors
/// A [`HeaderError`] names the header that cannot be sent.
pub fn check(headers: &[Header]) -> Result<(), HeaderError> {
    let mut bytes = 0;
    for Header { name, value } in headers {
        bytes += name.len() + value.len() + 4;
        if bytes > MAX_HEADERS_BYTES {
            return Err(HeaderError::TooLarge);
        }
        if name.is_empty() || name.len() > 256 || !name.bytes().all(is_token) {
            return Err(HeaderError::Name(name.chars().take(64).collect()));
        }
        if value.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0)) {
            return Err(HeaderError::Value(name.clone()));
        }
    }
    Ok(())
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(name: &str, value: &str) -> Header {
        Header { name: name.into(), value: value.into() }
    }

    #[test]
    fn headers_of_the_connection_of_credentials_and_of_identity_are_removed() {
        let sent = [
            ("Accept", "application/json"),
            ("Connection", "Upgrade, X-Mine"),
            ("X-Mine", "1"),
            ("Upgrade", "SPDY/3.1"),
            ("Authorization", "Bearer t"),
            ("COOKIE", "c"),
            ("Host", "h"),
            ("Impersonate-User", "root"),
            ("impersonate-extra-x", "y"),
            ("X-Remote-Group", "system:masters"),
            ("X-Forwarded-For", "::1"),
            ("Transfer-Encoding", "chunked"),
            ("Content-Type", "application/json"),
        ];
        let headers = sent.iter().map(|(name, value)| header(name, value)).collect();
        let names: Vec<_> = passed_on(headers).expect("good").into_iter().map(|one| one.name).collect();
        assert_eq!(names, ["Accept", "Upgrade", "Content-Type"]);
    }

    #[test]
    fn headers_that_would_become_others_are_refused() {
        for (name, value) in [("A", "b\r\nAuthorization: x"), ("A", "b\nc"), ("A", "\0")] {
            assert_eq!(passed_on(vec![header(name, value)]), Err(HeaderError::Value("A".into())));
        }
        for name in ["", "a b", "a:b", "a\nb", "é"] {
            assert!(matches!(passed_on(vec![header(name, "")]), Err(HeaderError::Name(_))), "{name:?}");
        }
        let long = header("a", &"x".repeat(MAX_HEADERS_BYTES));
        assert_eq!(passed_on(vec![long]), Err(HeaderError::TooLarge));
    }
}
