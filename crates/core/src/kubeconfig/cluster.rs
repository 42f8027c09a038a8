//! The chosen cluster: which addresses its API server may have, and how the server is verified.
//!
//! URL parsers repair their input: they turn `0x7f.1` and `2130706433` into 127.0.0.1, fold full-width digits, drop
//! tabs and decode percent signs in hosts. The host is therefore checked in the text as written, and only a host in
//! plain form reaches the parser.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use url::Url;

use crate::kubeconfig::fields::{Mapping, is_set};
use crate::kubeconfig::{KubeconfigError, pem};

const SERVER_REMEDY: &str = "use https://HOST[:PORT][/PATH]";
const MAX_SERVER_BYTES: usize = 2048;

/// What is taken from the entry of the cluster.
pub(super) struct ClusterEntry {
    pub(super) server: Url,
    pub(super) certificate_authority: Option<Vec<u8>>,
    pub(super) insecure_skip_tls_verify: bool,
    pub(super) tls_server_name: Option<String>,
}

impl ClusterEntry {
    pub(super) fn vet(cluster: &Mapping<'_, '_>) -> Result<Self, KubeconfigError> {
        for (key, problem, remedy) in [
            (
                "certificate-authority",
                "is a path, and no files are read",
                "put the certificate itself into certificate-authority-data, base64-encoded",
            ),
            (
                "proxy-url",
                "is not used: a kubeconfig does not decide what connections go through",
                "remove it, and let an agent that reaches the cluster take the account",
            ),
        ] {
            if cluster.get(key).is_some_and(is_set) {
                return Err(KubeconfigError::new(cluster.path_of(key), problem, remedy));
            }
        }
        let Some(server) = cluster.text("server")? else {
            return Err(KubeconfigError::new(cluster.path_of("server"), "is missing", SERVER_REMEDY));
        };
        let server = parse_server(server, &cluster.path_of("server"))?;
        let insecure_skip_tls_verify = cluster.flag("insecure-skip-tls-verify")?;
        let certificate_authority = match cluster.bytes("certificate-authority-data")? {
            Some(pem) => {
                Some(pem::certificate_authority(&pem, &cluster.path_of("certificate-authority-data"))?)
            }
            None => None,
        };
        if insecure_skip_tls_verify && certificate_authority.is_some() {
            return Err(KubeconfigError::new(
                cluster.path_of("insecure-skip-tls-verify"),
                "is true although there is a certificate authority to verify with",
                "remove it, or else certificate-authority-data",
            ));
        }
        let tls_server_name = match cluster.text("tls-server-name")? {
            Some(name) => Some(parse_tls_server_name(name, &cluster.path_of("tls-server-name"))?),
            None => None,
        };
        Ok(Self { server, certificate_authority, insecure_skip_tls_verify, tls_server_name })
    }
}

/// Why no API server may have this address; `None` if it may.
///
/// Link-local addresses (169.254.0.0/16, fe80::/10) lead to the machine's own environment, such as a cloud's metadata
/// service. IPv6 addresses that embed an IPv4 address (mapped, compatible, NAT64, 6to4) are judged by that address.
/// Must be called again at connect time for the addresses that a name resolves to.
pub(crate) fn refused_address(ip: IpAddr) -> Option<&'static str> {
    const LINK_LOCAL: &str = "is a link-local address";
    let link_local = match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => {
            v6.is_unicast_link_local() || carried_ipv4(v6).is_some_and(|carried| carried.is_link_local())
        }
    };
    link_local.then_some(LINK_LOCAL)
}

/// The IPv4 address embedded in an IPv6 address: mapped, compatible, NAT64 or 6to4.
pub(crate) fn carried_ipv4(v6: Ipv6Addr) -> Option<Ipv4Addr> {
    let join = |high: u16, low: u16| Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low));
    match v6.segments() {
        // ::a.b.c.d, ::ffff:a.b.c.d, ::ffff:0:a.b.c.d and 64:ff9b::a.b.c.d
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low]
        | [0, 0, 0, 0, 0xffff, 0, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => Some(join(high, low)),
        [0x2002, high, low, ..] => Some(join(high, low)),
        _ => None,
    }
}

/// Parses `clusters[].cluster.server`.
fn parse_server(text: &str, field: &str) -> Result<Url, KubeconfigError> {
    let refuse = |problem: &'static str| KubeconfigError::new(field, problem, SERVER_REMEDY);
    if text.len() > MAX_SERVER_BYTES {
        return Err(refuse("is too long"));
    }
    if !text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\') {
        return Err(refuse("holds blanks, backslashes or characters other than ASCII"));
    }
    let Some((scheme, rest)) = text.split_once("://") else {
        return Err(refuse("has no scheme"));
    };
    if !scheme.eq_ignore_ascii_case("https") {
        return Err(refuse("has a scheme other than https"));
    }
    let authority_end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(authority_end);
    if authority.contains('@') {
        return Err(refuse("holds user information"));
    }
    if path.contains('?') {
        return Err(refuse("holds a query"));
    }
    if path.contains('#') {
        return Err(refuse("holds a fragment"));
    }
    authority_is_plain(authority).map_err(refuse)?;
    let url = Url::parse(text).map_err(|_| refuse("is no URL"))?;
    // The host was checked above, so the parser should agree. If it ever does not, refuse.
    let agreed = url.scheme() == "https"
        && url.has_host()
        && url.username().is_empty()
        && url.password().is_none()
        && url.query().is_none()
        && url.fragment().is_none();
    if agreed { Ok(url) } else { Err(refuse("is no plain URL")) }
}

fn authority_is_plain(authority: &str) -> Result<(), &'static str> {
    let (host, port) = if authority.starts_with('[') {
        let Some(end) = authority.find(']') else {
            return Err("holds an IPv6 address without its closing bracket");
        };
        match authority.split_at(end + 1) {
            (host, "") => (host, None),
            (host, rest) => {
                (host, Some(rest.strip_prefix(':').ok_or("holds something after the IPv6 address")?))
            }
        }
    } else {
        match authority.split_once(':') {
            Some((_, port)) if port.contains(':') => {
                return Err("holds an IPv6 address without brackets, or several ports");
            }
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        }
    };
    if let Some(port) = port {
        let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        if !digits || port.parse::<u16>().is_ok_and(|port| port == 0) || port.parse::<u16>().is_err() {
            return Err("holds a port that is not between 1 and 65535");
        }
    }
    let address = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(inner) => Some(IpAddr::V6(
            inner.parse().map_err(|_| "holds something in brackets that is no IPv6 address")?,
        )),
        None => name_or_ipv4(host)?.map(IpAddr::V4),
    };
    match address.and_then(refused_address) {
        Some(problem) => Err(problem),
        None => Ok(()),
    }
}

/// Checks that the host is a DNS name or an IPv4 address in its canonical form. Returns the address.
fn name_or_ipv4(host: &str) -> Result<Option<Ipv4Addr>, &'static str> {
    if host.is_empty() {
        return Err("holds no host");
    }
    let name = host.strip_suffix('.').unwrap_or(host);
    let last = name.rsplit('.').next().unwrap_or(name);
    if is_number(last) {
        return match host.parse() {
            Ok(address) => Ok(Some(address)),
            Err(_) => Err("holds an address that is not four decimal numbers with dots"),
        };
    }
    let label_is_plain = |label: &str| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    if name.len() > 253 || !name.split('.').all(label_is_plain) {
        return Err("holds a malformed host");
    }
    Ok(None)
}

/// Whether resolvers and URL parsers would read this last label as a number, which makes the host an address.
fn is_number(label: &str) -> bool {
    let hex = label.strip_prefix("0x").or_else(|| label.strip_prefix("0X"));
    match hex {
        Some(digits) => digits.bytes().all(|byte| byte.is_ascii_hexdigit()),
        None => !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_digit()),
    }
}

/// Parses `clusters[].cluster.tls-server-name`: a DNS name or an IP address.
fn parse_tls_server_name(text: &str, field: &str) -> Result<String, KubeconfigError> {
    if text.parse::<IpAddr>().is_err() && name_or_ipv4(text).is_err() {
        return Err(KubeconfigError::new(
            field,
            "is neither a DNS name nor an IP address",
            "use the name in the server's certificate, without scheme and port",
        ));
    }
    Ok(text.to_owned())
}
