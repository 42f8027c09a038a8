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
/// Headers that say from which address, by the word of a proxy: the cluster's audit log would believe them.
const ADDRESSES: [&str; 12] = [
    "forwarded",
    "x-real-ip",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-original-forwarded-for",
    "x-originating-ip",
    "x-envoy-external-address",
    "true-client-ip",
    "cf-connecting-ip",
    "cf-connecting-ipv6",
    "fastly-client-ip",
    "x-azure-clientip",
];
/// Headers of an answer by which a host speaks for itself. The caller of an account's API talks to another host.
const OF_HOST: [&str; 10] = [
    "set-cookie",
    "set-cookie2",
    "strict-transport-security",
    "public-key-pins",
    "public-key-pins-report-only",
    "expect-ct",
    "alt-svc",
    "clear-site-data",
    "nel",
    "report-to",
];
/// Protocols to which a connection may be upgraded.
const UPGRADES: [&str; 2] = ["websocket", "spdy/3.1"];

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

/// Whether a header of a request says who asks, or from where. Such a header is never sent to a cluster.
pub fn is_about_caller(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    IDENTITIES.iter().any(|prefix| name.starts_with(prefix)) || ADDRESSES.contains(&name.as_str())
}

/// Whether a header of a cluster's answer is about the host that sent it. Such a header never reaches a caller.
pub fn is_about_host(name: &str) -> bool {
    OF_HOST.contains(&name.to_ascii_lowercase().as_str())
}

/// Whether a connection may be upgraded as the values of the header `Upgrade` ask: to one protocol, which is WebSocket or
/// SPDY. What such a connection carries is known; that of another protocol, such as `h2c`, would be further requests.
pub fn is_upgrade<'v>(values: impl IntoIterator<Item = &'v [u8]>) -> bool {
    let mut values = values.into_iter();
    let is_known = values.next().is_some_and(|value| {
        let value = value.trim_ascii();
        UPGRADES.iter().any(|protocol| value.eq_ignore_ascii_case(protocol.as_bytes()))
    });
    is_known && values.next().is_none()
}

/// Whether an answer may have this status: 101 only if an upgrade was asked for, and no other before 200.
pub fn is_status(status: u32, asked_upgrade: bool) -> bool {
    (200..=999).contains(&status) || (status == 101 && asked_upgrade)
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
            && !is_about_caller(&name)
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
            ("X-Real-Ip", "::1"),
            ("Forwarded", "for=192.0.2.1"),
            ("Transfer-Encoding", "chunked"),
            ("Content-Type", "application/json"),
        ];
        let headers = sent.iter().map(|(name, value)| header(name, value)).collect();
        let names: Vec<_> = passed_on(headers).expect("good").into_iter().map(|one| one.name).collect();
        assert_eq!(names, ["Accept", "Upgrade", "Content-Type"]);
    }

    #[test]
    fn only_one_known_protocol_is_an_upgrade() {
        for (values, expected) in [
            (&["websocket"][..], true),
            (&["WebSocket"], true),
            (&[" SPDY/3.1 "], true),
            (&["h2c"], false),
            (&["SPDY/3.1, h2c"], false),
            (&["SPDY/3.1", "h2c"], false),
            (&["SPDY/3"], false),
            (&[""], false),
            (&[], false),
        ] {
            assert_eq!(is_upgrade(values.iter().map(|value| value.as_bytes())), expected, "{values:?}");
        }
    }

    #[test]
    fn an_answer_switches_protocols_only_when_asked_and_is_never_provisional() {
        for (status, plain, upgraded) in [
            (100, false, false),
            (101, false, true),
            (103, false, false),
            (200, true, true),
            (599, true, true),
        ] {
            assert_eq!((is_status(status, false), is_status(status, true)), (plain, upgraded), "{status}");
        }
        assert!(is_about_host("Set-Cookie") && is_about_host("strict-transport-security"));
        assert!(!is_about_host("warning") && !is_about_host("retry-after"));
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
