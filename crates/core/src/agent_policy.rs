//! The agent owner's limits: which servers an agent may dial, and how it may authenticate.
//!
//! The hub says which accounts an agent holds, but a hub may be deceived. The limits in the agent's file restrict
//! what the hub can request, and the hub cannot relax them. Everything here is pure; the agent consults it before it
//! sends a packet.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::sync::Arc;

use super::kubeconfig::{carried_ipv4, refused_address};

/// Maximum number of entries in `servers`.
pub const MAX_SERVERS: usize = 1000;

/// Networks in which clouds serve metadata, and credentials with it. Link-local ones are not listed, because they are
/// always refused.
const METADATA_NETWORKS: [AddressBlock; 4] = [
    AddressBlock { address: IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0)), prefix: 32 },
    AddressBlock { address: IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)), prefix: 32 },
    AddressBlock { address: IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)), prefix: 32 },
    AddressBlock { address: IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)), prefix: 32 },
];

/// What an agent may do for an account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentPolicy {
    /// The only servers that may be dialled; empty: all.
    pub servers: Arc<[ServerEntry]>,
    /// Whether addresses of the agent's own machine may be dialled.
    pub loopback: bool,
    /// Whether a server's certificate may go unverified.
    pub insecure: bool,
    /// Whether the agent's own service account may be used.
    pub service_account: bool,
    /// Whether kubeconfigs on the agent may be used.
    pub files: bool,
}

impl Default for AgentPolicy {
    fn default() -> Self {
        Self { servers: Arc::default(), loopback: true, insecure: true, service_account: true, files: true }
    }
}

/// Overrides for one of the agent's own accounts; what is `None` is as for all accounts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccountPolicy {
    /// Overrides [`AgentPolicy::servers`].
    pub servers: Option<Arc<[ServerEntry]>>,
    /// Overrides [`AgentPolicy::insecure`].
    pub insecure: Option<bool>,
    /// Overrides [`AgentPolicy::service_account`].
    pub service_account: Option<bool>,
    /// Overrides [`AgentPolicy::files`].
    pub files: Option<bool>,
}

impl AgentPolicy {
    /// The policy for an account of the agent's own file. Such an account may always dial loopback addresses.
    #[must_use]
    pub fn of_own_account(&self, own: &AccountPolicy) -> Self {
        Self {
            servers: own.servers.clone().unwrap_or_else(|| Arc::clone(&self.servers)),
            loopback: true,
            insecure: own.insecure.unwrap_or(self.insecure),
            service_account: own.service_account.unwrap_or(self.service_account),
            files: own.files.unwrap_or(self.files),
        }
    }

    /// Why a server may not be dialled, whatever its name resolves to; `None` while an address may still be allowed.
    pub fn refuses_host(&self, host: &str, port: u16) -> Option<String> {
        let hopeless = !self.servers.is_empty()
            && !self.servers.iter().any(|entry| entry.may_fit(host, port))
            && host.parse::<IpAddr>().is_err();
        hopeless.then(|| not_listed(host, port))
    }

    /// Why an address that this host resolves to may not be dialled; `None` if it may.
    pub fn refuses(&self, host: &str, address: SocketAddr) -> Option<String> {
        let (ip, port) = (address.ip(), address.port());
        if self.condemns(ip) || refused_address(ip).is_some() {
            let what = refused_address(ip).unwrap_or("is an address of a cloud's metadata service");
            return Some(format!("{host} resolves to {ip}, which {what}"));
        }
        if !self.loopback && is_loopback(ip) {
            return Some(format!(
                "{host} resolves to {ip}, an address of the agent's own machine, and kubernetes.policy.loopback is false"
            ));
        }
        let listed = self.servers.is_empty() || self.servers.iter().any(|entry| entry.fits(host, ip, port));
        (!listed).then(|| {
            if host.parse() == Ok(ip) {
                not_listed(host, port)
            } else {
                format!("{} (which resolves to {ip})", not_listed(host, port))
            }
        })
    }

    /// Whether this address alone makes a name forbidden that resolves to it: whoever controls the name also chooses
    /// which of its addresses is tried.
    pub fn condemns(&self, ip: IpAddr) -> bool {
        if refused_address(ip).is_some() {
            return true;
        }
        let within = METADATA_NETWORKS.iter().find(|network| network.contains(ip));
        within.is_some_and(|metadata| {
            // Only an entry at least as specific as the metadata network counts, not a broad range.
            let listed = |entry: &ServerEntry| match &entry.host {
                Host::Network(network) => network.prefix >= metadata.prefix && network.contains(ip),
                Host::Name(_) | Host::Suffix(_) => false,
            };
            !self.servers.iter().any(listed)
        })
    }
}

fn not_listed(host: &str, port: u16) -> String {
    format!("kubernetes.policy.servers does not list {host}:{port}")
}

fn is_loopback(ip: IpAddr) -> bool {
    // 0.0.0.0 and :: also lead to the machine itself.
    let own = |ip: IpAddr| ip.is_loopback() || ip.is_unspecified();
    own(ip) || matches!(ip, IpAddr::V6(v6) if carried_ipv4(v6).is_some_and(|v4| own(IpAddr::V4(v4))))
}

/// An entry of `kubernetes.policy.servers`: `HOST`, `*.SUFFIX` or `CIDR`, optionally with `:PORT` or `:FROM-TO`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerEntry {
    host: Host,
    ports: RangeInclusive<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Host {
    Name(String),
    /// Including its leading dot.
    Suffix(String),
    Network(AddressBlock),
}

impl ServerEntry {
    /// Whether the entry matches the address, or the name that resolved to it.
    fn fits(&self, host: &str, ip: IpAddr, port: u16) -> bool {
        self.ports.contains(&port)
            && match &self.host {
                Host::Network(network) => network.contains(ip),
                Host::Name(_) | Host::Suffix(_) => self.names(host),
            }
    }

    /// Whether the entry may match the server, as far as its name tells.
    fn may_fit(&self, host: &str, port: u16) -> bool {
        self.ports.contains(&port) && (matches!(self.host, Host::Network(_)) || self.names(host))
    }

    fn names(&self, host: &str) -> bool {
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        match &self.host {
            Host::Name(name) => *name == host,
            Host::Suffix(suffix) => host.len() > suffix.len() && host.ends_with(suffix.as_str()),
            Host::Network(_) => false,
        }
    }
}

/// An address and the number of its bits that count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AddressBlock {
    address: IpAddr,
    prefix: u8,
}

impl AddressBlock {
    /// Whether it contains the address, or the IPv4 address embedded in an IPv6 address.
    fn contains(&self, ip: IpAddr) -> bool {
        let carried = match ip {
            IpAddr::V6(v6) => carried_ipv4(v6).map(IpAddr::V4),
            IpAddr::V4(_) => None,
        };
        [Some(ip), carried].into_iter().flatten().any(|ip| match (self.address, ip) {
            (IpAddr::V4(own), IpAddr::V4(ip)) => {
                let cut = 32_u32.saturating_sub(self.prefix.into());
                own.to_bits().checked_shr(cut) == ip.to_bits().checked_shr(cut)
            }
            (IpAddr::V6(own), IpAddr::V6(ip)) => {
                let cut = 128_u32.saturating_sub(self.prefix.into());
                own.to_bits().checked_shr(cut) == ip.to_bits().checked_shr(cut)
            }
            _ => false,
        })
    }
}

/// Why a text is not an entry of `kubernetes.policy.servers`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ServerEntryError(&'static str);

impl FromStr for ServerEntry {
    type Err = ServerEntryError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (host, ports) = match text.strip_prefix('[') {
            Some(rest) => {
                let (inside, after) =
                    rest.split_once(']').ok_or(ServerEntryError("has no closing bracket"))?;
                let after = match after {
                    "" => None,
                    after => Some(
                        after.strip_prefix(':').ok_or(ServerEntryError("has something after the bracket"))?,
                    ),
                };
                match network(inside)? {
                    Some(network) if network.address.is_ipv6() => (Host::Network(network), after),
                    _ => return Err(ServerEntryError("has something in brackets that is no IPv6 address")),
                }
            }
            None => match (network(text)?, text.rsplit_once(':')) {
                (Some(network), _) => (Host::Network(network), None),
                (None, Some((_, _))) if text.matches(':').count() > 1 => {
                    return Err(ServerEntryError(
                        "is an IPv6 address with a port but without brackets, or no address",
                    ));
                }
                (None, Some((host, ports))) => (named(host)?, Some(ports)),
                (None, None) => (named(text)?, None),
            },
        };
        let ports = ports.map_or(Ok(1..=u16::MAX), port_range)?;
        Ok(Self { host, ports })
    }
}

impl fmt::Display for ServerEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Name(name) => f.write_str(name)?,
            Host::Suffix(suffix) => write!(f, "*{suffix}")?,
            Host::Network(AddressBlock { address: IpAddr::V6(v6), prefix }) => write!(f, "[{v6}/{prefix}]")?,
            Host::Network(AddressBlock { address, prefix }) => write!(f, "{address}/{prefix}")?,
        }
        match (self.ports.start(), self.ports.end()) {
            (1, &u16::MAX) => Ok(()),
            (from, to) if from == to => write!(f, ":{from}"),
            (from, to) => write!(f, ":{from}-{to}"),
        }
    }
}

/// Parses an address or a CIDR; `None` if the text is neither.
fn network(text: &str) -> Result<Option<AddressBlock>, ServerEntryError> {
    let (address, prefix) = match text.split_once('/') {
        Some((address, prefix)) => (address, Some(prefix)),
        None => (text, None),
    };
    let Ok(address) = address.parse::<IpAddr>() else {
        // `10.0.0.0/8:6443` has its port after the prefix.
        return Ok(None);
    };
    let bits = if address.is_ipv4() { 32 } else { 128 };
    let prefix = match prefix {
        None => bits,
        Some(prefix) => match prefix.parse() {
            Ok(prefix) if prefix <= bits && text.bytes().all(|byte| byte != b'+') => prefix,
            _ if prefix.contains(':') => return Ok(None),
            _ => return Err(ServerEntryError("has a prefix that its address cannot have")),
        },
    };
    Ok(Some(AddressBlock { address, prefix }))
}

/// Parses the part before a port: an IPv4 address or CIDR, `*.SUFFIX`, or a name.
fn named(host: &str) -> Result<Host, ServerEntryError> {
    if let Some(network) = network(host)? {
        return Ok(Host::Network(network));
    }
    let (name, is_suffix) = match host.strip_prefix("*.") {
        Some(rest) => (rest, true),
        None => (host, false),
    };
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    let legal = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    if name.len() > 253 || !name.split('.').all(legal) {
        return Err(ServerEntryError("is no host, *.SUFFIX, address or CIDR"));
    }
    // Resolvers read such a name as an address, but it is not one in plain form.
    if name.rsplit('.').next().is_some_and(|last| last.bytes().all(|byte| byte.is_ascii_digit())) {
        return Err(ServerEntryError("is an address that is not four decimal numbers with dots"));
    }
    Ok(if is_suffix { Host::Suffix(format!(".{name}")) } else { Host::Name(name) })
}

fn port_range(text: &str) -> Result<RangeInclusive<u16>, ServerEntryError> {
    let port = |text: &str| {
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<u16>().ok().filter(|port| digits && *port > 0)
    };
    let (from, to) = text.split_once('-').unwrap_or((text, text));
    match (port(from), port(to)) {
        (Some(from), Some(to)) if from <= to => Ok(from..=to),
        _ => Err(ServerEntryError("has a port or range of ports that is not between 1 and 65535")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(servers: &[&str]) -> AgentPolicy {
        let servers = servers.iter().map(|text| text.parse().expect(text)).collect();
        AgentPolicy { servers, ..AgentPolicy::default() }
    }

    fn takes(policy: &AgentPolicy, host: &str, address: &str) -> bool {
        let address: SocketAddr = address.parse().expect(address);
        policy.refuses_host(host, address.port()).is_none() && policy.refuses(host, address).is_none()
    }

    #[test]
    fn metadata_and_link_local_addresses_are_refused_in_every_form_and_all_else_is_taken() {
        let default = AgentPolicy::default();
        for refused in [
            "169.254.169.254:80",
            "169.254.170.2:443",
            "[fe80::1]:443",
            "[fd00:ec2::254]:80",
            "[fd00:ec2:ffff::]:80",
            "100.100.100.200:443",
            "192.0.0.192:443",
            "168.63.129.16:443",
            "[::ffff:169.254.169.254]:443",
            "[::ffff:100.100.100.200]:443",
            "[::ffff:0:192.0.0.192]:443",
            "[64:ff9b::a83f:8110]:443",
            "[2002:6464:64c8::1]:443",
        ] {
            assert!(!takes(&default, "api.example", refused), "{refused}");
            assert!(
                !takes(&policy(&["0.0.0.0/0", "[::/0]", "*.example"]), "api.example", refused),
                "{refused}"
            );
        }
        for taken in
            ["10.0.0.1:6443", "127.0.0.1:6443", "[::1]:443", "100.100.100.201:443", "[fd00:ec3::1]:443"]
        {
            assert!(takes(&default, "api.example", taken), "{taken}");
        }
        assert!(takes(&policy(&["100.100.100.200"]), "api.example", "100.100.100.200:6443"), "named as such");
        assert!(
            !takes(&policy(&["169.254.0.0/16"]), "api.example", "169.254.1.1:6443"),
            "no list opens link-local"
        );
    }

    #[test]
    fn an_entry_fits_by_name_or_by_the_address_that_a_name_leads_to() {
        let table = [
            (&["api.example"][..], "API.example.", "10.0.0.1:6443", true),
            (&["api.example"], "api.example.com", "10.0.0.1:6443", false),
            (&["api.example:6443"], "api.example", "10.0.0.1:443", false),
            (&["*.example"], "a.b.example", "10.0.0.1:6443", true),
            (&["*.example"], "example", "10.0.0.1:6443", false),
            (&["*.example"], "badexample", "10.0.0.1:6443", false),
            (&["10.0.0.0/8"], "api.example", "10.9.9.9:6443", true),
            (&["10.0.0.0/8"], "api.example", "11.0.0.1:6443", false),
            (&["10.0.0.0/8"], "10.1.1.1", "10.1.1.1:6443", true),
            (&["10.0.0.0/8"], "api.example", "[::ffff:10.1.1.1]:6443", true),
            (&["10.0.0.0/8:6443-6445"], "api.example", "10.9.9.9:6446", false),
            (&["10.0.0.0/8:6443-6445"], "api.example", "10.9.9.9:6445", true),
            (&["10.1.1.1"], "10.1.1.1", "10.1.1.1:443", true),
            (&["10.1.1.1:6443"], "10.1.1.1", "10.1.1.1:443", false),
            (&["fd12::/16"], "api.example", "[fd12::1]:443", true),
            (&["[fd12::/16]:6443"], "api.example", "[fd12::1]:443", false),
            (&["0.0.0.0/0"], "api.example", "203.0.113.1:443", true),
            (&["a.example", "b.example"], "b.example", "10.0.0.1:443", true),
        ];
        for (servers, host, address, expected) in table {
            assert_eq!(takes(&policy(servers), host, address), expected, "{servers:?} {host} {address}");
        }
        assert!(
            policy(&["api.example"]).refuses_host("other.example", 443).is_some(),
            "before it is looked up"
        );
    }

    #[test]
    fn loopback_is_for_the_agents_own_accounts_where_the_policy_says_so() {
        let shipped = AgentPolicy { loopback: false, ..AgentPolicy::default() };
        let own = shipped.of_own_account(&AccountPolicy::default());
        for address in [
            "127.0.0.1:6443",
            "127.9.9.9:1",
            "[::1]:443",
            "[::ffff:127.0.0.1]:443",
            "0.0.0.0:443",
            "[::]:443",
        ] {
            assert!(!takes(&shipped, "localhost", address), "{address}");
            assert!(takes(&own, "localhost", address), "{address}");
        }
    }

    #[test]
    fn an_account_policy_overrides_the_general_one_field_by_field() {
        let all = AgentPolicy { insecure: false, files: false, ..policy(&["10.0.0.0/8"]) };
        let own = AccountPolicy {
            servers: Some([("api.example").parse().expect("an entry")].into()),
            insecure: Some(true),
            ..AccountPolicy::default()
        };
        let of_one = all.of_own_account(&own);
        assert!(takes(&of_one, "api.example", "203.0.113.1:443") && !takes(&of_one, "x", "10.0.0.1:443"));
        assert_eq!((of_one.insecure, of_one.files, of_one.service_account), (true, false, true));
    }

    #[test]
    fn what_is_no_entry_is_refused_and_what_is_one_reads_back() {
        for text in [
            "",
            "*",
            "*.",
            "http://a",
            "a/b",
            "a b",
            "a:0",
            "a:65536",
            "a:2-1",
            "a:+1",
            "a:",
            "a:b",
            "10.0.0.0/33",
            "10.0.0.0/+8",
            "10.0.0",
            "2130706433",
            "0x7f.1.1.1x:a",
            "::1:6443:x",
            "[::1",
            "[::1]6443",
            "[a]:1",
            "[10.0.0.1]:1",
            "fd00::/129",
            "a.*.b",
            "-",
        ] {
            let read = text.parse::<ServerEntry>();
            assert!(read.is_err() || text == "-", "{text}: {read:?}");
        }
        for text in [
            "api.example",
            "api.example:6443",
            "*.example:1-2",
            "10.0.0.0/8",
            "10.0.0.0/8:6443",
            "[fd00::/8]",
            "[fd00::1/128]:1-9",
        ] {
            assert_eq!(text.parse::<ServerEntry>().expect(text).to_string(), text);
        }
        assert_eq!("fd00::1".parse::<ServerEntry>(), "[fd00::1]".parse());
    }
}
