//! Limits per caller: open connections, so that one address cannot take every connection slot of a port, and log
//! lines.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Leading bits of an IPv6 address that identify one caller: the smallest network that is assigned to a site.
const IPV6_PREFIX_BITS: u32 = 64;
/// Minimum interval between two lines for one reason and caller.
const MIN_LOG_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum number of tracked reasons and callers. While it is reached, no line is logged for further ones.
const MAX_TRACKED_CALLERS: usize = 1024;

/// A caller for the purpose of limits: an IPv4 address or an IPv6 /64 network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClientAddress(IpAddr);

impl ClientAddress {
    /// Returns the caller of an address. An IPv4-mapped IPv6 address counts as IPv4.
    pub fn of(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V4(address) => address.into(),
            IpAddr::V6(address) => masked_v6(address, IPV6_PREFIX_BITS).into(),
        })
    }
}

impl fmt::Display for ClientAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            IpAddr::V4(address) => address.fmt(f),
            IpAddr::V6(address) => write!(f, "{address}/{IPV6_PREFIX_BITS}"),
        }
    }
}

fn masked_v6(address: Ipv6Addr, prefix: u32) -> Ipv6Addr {
    Ipv6Addr::from_bits(address.to_bits() & u128::MAX.checked_shl(128 - prefix).unwrap_or(0))
}

/// A network in CIDR notation, such as `10.0.0.0/8`. A bare address is a network of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    prefix: u32,
}

/// The text is not a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be an address or a network, such as 10.0.0.0/8 or fd00::/8")]
pub struct NetworkParseError;

impl FromStr for Network {
    type Err = NetworkParseError;

    fn from_str(text: &str) -> Result<Self, NetworkParseError> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| NetworkParseError)?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            None => most,
            Some(digits) if digits.bytes().all(|digit| digit.is_ascii_digit()) => {
                digits.parse().ok().filter(|prefix| *prefix <= most).ok_or(NetworkParseError)?
            }
            Some(_) => return Err(NetworkParseError),
        };
        Ok(Self { address, prefix })
    }
}

impl Network {
    /// Whether the network contains the address. An IPv4-mapped IPv6 address counts as IPv4.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                let mask = u32::MAX.checked_shl(32 - self.prefix).unwrap_or(0);
                network.to_bits() & mask == address.to_bits() & mask
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                masked_v6(network, self.prefix) == masked_v6(address, self.prefix)
            }
            _ => false,
        }
    }
}

/// Limits on the open connections of one caller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressLimits {
    /// Maximum number of open connections of one caller; 0 means no limit.
    pub per_address: usize,
    /// Networks that are exempt from the limit, such as those of a load balancer.
    pub exempt: Vec<Network>,
}

/// Number of open connections of each caller. Its size is bounded by the connection limit of the port.
#[derive(Debug, Default)]
pub struct Addresses {
    limits: AddressLimits,
    open: Mutex<HashMap<ClientAddress, usize>>,
}

/// A counted connection, released on drop.
#[derive(Debug)]
pub struct AddressSlot(Option<(Arc<Addresses>, ClientAddress)>);

impl Addresses {
    /// Creates a counter with these limits.
    pub fn new(limits: AddressLimits) -> Arc<Self> {
        Arc::new(Self { limits, ..Self::default() })
    }

    /// Whether an address has no limit of its own.
    pub fn exempts(&self, address: IpAddr) -> bool {
        self.limits.exempt.iter().any(|network| network.contains(address))
    }

    /// Counts a connection from an address. Returns `None` if its caller has reached the limit.
    pub fn enter(self: &Arc<Self>, address: IpAddr) -> Option<AddressSlot> {
        let limit = self.limits.per_address;
        if limit == 0 || self.exempts(address) {
            return Some(AddressSlot(None));
        }
        let caller = ClientAddress::of(address);
        let mut all = self.open.lock();
        let open = all.entry(caller).or_default();
        if *open >= limit {
            return None;
        }
        *open += 1;
        Some(AddressSlot(Some((Arc::clone(self), caller))))
    }
}

impl Drop for AddressSlot {
    fn drop(&mut self) {
        let Some((addresses, caller)) = self.0.take() else { return };
        let mut all = addresses.open.lock();
        if let Some(open) = all.get_mut(&caller) {
            *open -= 1;
            if *open == 0 {
                all.remove(&caller);
            }
        }
    }
}

/// Rate limit for log lines that any host on the network can trigger: at most one per minute for each reason and
/// caller.
#[derive(Debug, Default)]
pub struct LogRateLimit(Mutex<HashMap<(&'static str, ClientAddress), Instant>>);

impl LogRateLimit {
    /// Whether a line may be logged now. If so, it counts as logged.
    pub fn may_log(&self, reason: &'static str, caller: ClientAddress) -> bool {
        self.may_log_at(reason, caller, Instant::now())
    }

    fn may_log_at(&self, reason: &'static str, caller: ClientAddress, now: Instant) -> bool {
        let mut written = self.0.lock();
        if written.get(&(reason, caller)).is_some_and(|last| now.duration_since(*last) < MIN_LOG_INTERVAL) {
            return false;
        }
        if written.len() >= MAX_TRACKED_CALLERS {
            written.retain(|_, last| now.duration_since(*last) < MIN_LOG_INTERVAL);
        }
        if written.len() >= MAX_TRACKED_CALLERS {
            return false;
        }
        written.insert((reason, caller), now);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn a_caller_gets_as_many_connections_as_it_may_and_one_more_once_one_has_ended() {
        let addresses = Addresses::new(AddressLimits { per_address: 2, exempt: Vec::new() });
        let first = addresses.enter(ip("192.0.2.1")).expect("the first");
        let _second = addresses.enter(ip("::ffff:192.0.2.1")).expect("the same caller, written as IPv6");
        assert!(addresses.enter(ip("192.0.2.1")).is_none());
        let _other = addresses.enter(ip("192.0.2.2")).expect("another caller has room of its own");
        drop(first);
        let _third = addresses.enter(ip("192.0.2.1")).expect("one has ended");
    }

    #[test]
    fn closed_connections_take_no_memory() {
        let addresses = Addresses::new(AddressLimits { per_address: 1, exempt: Vec::new() });
        let place = addresses.enter(ip("2001:db8::1"));
        assert!(place.is_some() && addresses.enter(ip("2001:db8::2")).is_none(), "one /64 is one caller");
        assert!(addresses.enter(ip("2001:db8:0:1::1")).is_some());
        drop(place);
        assert!(addresses.open.lock().is_empty());
    }

    #[test]
    fn exempt_networks_and_a_limit_of_0_are_not_counted() {
        let exempt = vec!["10.0.0.0/8".parse().expect("a network")];
        let addresses = Addresses::new(AddressLimits { per_address: 1, exempt });
        let slots: Vec<_> = (0..3).map(|_| addresses.enter(ip("10.1.2.3"))).collect();
        assert!(slots.iter().all(Option::is_some));
        let unbounded = Addresses::new(AddressLimits::default());
        let slots: Vec<_> = (0..3).map(|_| unbounded.enter(ip("192.0.2.1"))).collect();
        assert!(slots.iter().all(Option::is_some));
    }

    #[test]
    fn networks_are_parsed_strictly() {
        for (network, inside, outside) in [
            ("10.0.0.0/8", "10.255.0.1", "11.0.0.1"),
            ("10.1.2.3", "10.1.2.3", "10.1.2.4"),
            ("10.1.2.3/8", "10.9.9.9", "192.0.2.1"),
            ("0.0.0.0/0", "192.0.2.1", "2001:db8::1"),
            ("fd00::/8", "fd12::1", "fe80::1"),
            ("2001:db8::1", "2001:db8::1", "2001:db8::2"),
            ("10.0.0.0/8", "::ffff:10.0.0.1", "::10.0.0.1"),
            ("::/0", "2001:db8::1", "10.0.0.1"),
        ] {
            let network: Network = network.parse().expect(network);
            assert!(network.contains(ip(inside)), "{network:?} {inside}");
            assert!(!network.contains(ip(outside)), "{network:?} {outside}");
        }
        for text in
            ["", "x", "10.0.0.0/33", "fd00::/129", "10.0.0.0/", "10.0.0.0/-1", "10.0.0.0/+8", "10.0.0/8"]
        {
            assert_eq!(text.parse::<Network>(), Err(NetworkParseError), "{text:?}");
        }
    }

    fn caller(number: u32) -> ClientAddress {
        ClientAddress::of(IpAddr::V4(Ipv4Addr::from_bits(number)))
    }

    #[test]
    fn each_reason_and_caller_is_logged_once_a_minute() {
        let (complaints, now) = (LogRateLimit::default(), Instant::now());
        assert!(complaints.may_log_at("cap", caller(1), now));
        assert!(!complaints.may_log_at("cap", caller(1), now + MIN_LOG_INTERVAL / 2));
        assert!(complaints.may_log_at("address", caller(1), now), "another reason");
        assert!(complaints.may_log_at("cap", caller(2), now), "another caller");
        assert!(complaints.may_log_at("cap", caller(1), now + MIN_LOG_INTERVAL));
    }

    #[test]
    fn any_number_of_callers_cause_a_bounded_number_of_log_lines() {
        let (complaints, now) = (LogRateLimit::default(), Instant::now());
        let crowd = u32::try_from(MAX_TRACKED_CALLERS).expect("it is small") + 10;
        let spoken = (0..crowd).filter(|number| complaints.may_log_at("cap", caller(*number), now)).count();
        assert_eq!(spoken, MAX_TRACKED_CALLERS);
        assert!(complaints.may_log_at("cap", caller(crowd), now + MIN_LOG_INTERVAL), "the minute is over");
    }
}
