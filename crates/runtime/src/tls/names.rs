//! Protocols and cipher suites by the names of IANA and OpenSSL.

use rustls::crypto::ring::cipher_suite::*;
use rustls::version::{TLS12, TLS13};
use rustls::{SupportedCipherSuite, SupportedProtocolVersion};

const PROTOCOLS: [(&[&str], &SupportedProtocolVersion); 2] =
    [(&["TLSv1.3", "TLS1.3", "TLSv13"], &TLS13), (&["TLSv1.2", "TLS1.2", "TLSv12"], &TLS12)];

const SUITES: [(&str, &str, SupportedCipherSuite); 9] = [
    ("TLS_AES_256_GCM_SHA384", "TLS_AES_256_GCM_SHA384", TLS13_AES_256_GCM_SHA384),
    ("TLS_AES_128_GCM_SHA256", "TLS_AES_128_GCM_SHA256", TLS13_AES_128_GCM_SHA256),
    ("TLS_CHACHA20_POLY1305_SHA256", "TLS_CHACHA20_POLY1305_SHA256", TLS13_CHACHA20_POLY1305_SHA256),
    (
        "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
        "ECDHE-ECDSA-AES256-GCM-SHA384",
        TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    ),
    (
        "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
        "ECDHE-ECDSA-AES128-GCM-SHA256",
        TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    ),
    (
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
        "ECDHE-ECDSA-CHACHA20-POLY1305",
        TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    ),
    (
        "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
        "ECDHE-RSA-AES256-GCM-SHA384",
        TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
    ),
    (
        "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
        "ECDHE-RSA-AES128-GCM-SHA256",
        TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
    ),
    (
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
        "ECDHE-RSA-CHACHA20-POLY1305",
        TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
    ),
];

/// Names that were found, and those that stand for nothing here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named<T> {
    /// What the names stand for, each once, in their order.
    pub found: Vec<T>,
    /// Names without effect: what is not supported, or does not exist.
    pub dropped: Vec<String>,
}

fn named<T: PartialEq>(list: &[String], find: impl Fn(&str) -> Option<T>) -> Named<T> {
    let mut named = Named { found: Vec::new(), dropped: Vec::new() };
    let names = list.iter().flat_map(|text| text.split([' ', ':', ',']));
    for name in names.filter(|name| !name.is_empty()) {
        match find(name) {
            Some(one) if named.found.contains(&one) => {}
            Some(one) => named.found.push(one),
            None => named.dropped.push(name.to_owned()),
        }
    }
    named
}

/// The protocols with these names; a text may hold several, with blanks, colons or commas between them.
pub fn protocols(list: &[String]) -> Named<&'static SupportedProtocolVersion> {
    named(list, |name| PROTOCOLS.iter().find(|(names, _)| names.contains(&name)).map(|(_, version)| *version))
}

/// The cipher suites with these names of IANA or OpenSSL, likewise.
pub fn suites(list: &[String]) -> Named<SupportedCipherSuite> {
    named(list, |name| {
        SUITES.iter().find(|(iana, openssl, _)| *iana == name || *openssl == name).map(|(_, _, suite)| *suite)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_iana_and_openssl_in_one_text_or_several() {
        let list = ["ECDHE-RSA-AES128-GCM-SHA256:AES128-SHA, TLS_AES_128_GCM_SHA256".to_owned()];
        let named = suites(&list);
        assert_eq!(named.found, [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, TLS13_AES_128_GCM_SHA256]);
        assert_eq!(named.dropped, ["AES128-SHA"]);
        let list = ["TLSv1.2".to_owned(), "TLSv1.1 TLSv1.3".to_owned(), "TLSv1.2".to_owned()];
        let named = protocols(&list);
        assert_eq!((named.found, named.dropped), (vec![&TLS12, &TLS13], vec!["TLSv1.1".to_owned()]));
    }
}
