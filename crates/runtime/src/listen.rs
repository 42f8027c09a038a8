//! Listening sockets and the limits on their connections, shared by all servers.

pub mod bodies;
pub mod connection_limits;
pub mod connection_phase;
mod connection_slots;
pub mod http;
pub mod port;
pub mod refused_heads;
pub mod unread_answers;

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::net::{TcpListener, TcpSocket};

/// Length of the accept queue, up to the system's own limit. Connections beyond it are dropped by the system before
/// the program sees them.
const BACKLOG: u32 = 4096;

/// Listens on an address. An empty address or `*` means all addresses of the machine, IPv6 and IPv4. An IPv6 address
/// may be in brackets. For a host name, it is the first address that can be bound.
///
/// # Errors
/// Returns the error of the system call.
pub async fn listen(address: &str, port: u16) -> io::Result<TcpListener> {
    match address {
        "" | "*" => match at(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))) {
            // The machine has no IPv6.
            Err(problem) if problem.kind() != io::ErrorKind::AddrInUse => {
                at(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)))
            }
            bound => bound,
        },
        name => first_of(bare(name), port).await,
    }
}

/// Strips the brackets that an IPv6 address may have.
fn bare(address: &str) -> &str {
    address.strip_prefix('[').and_then(|inner| inner.strip_suffix(']')).unwrap_or(address)
}

async fn first_of(name: &str, port: u16) -> io::Result<TcpListener> {
    let mut problem = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in tokio::net::lookup_host((name, port)).await? {
        match at(address) {
            Ok(listener) => return Ok(listener),
            Err(other) => problem = other,
        }
    }
    Err(problem)
}

fn at(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    #[cfg(not(windows))]
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_way_to_write_an_address_is_bound() {
        for address in ["", "*", "127.0.0.1", "localhost"] {
            let listener = listen(address, 0).await.expect(address);
            let port = listener.local_addr().expect("an address").port();
            let connected = tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await;
            // Some machines resolve localhost to their IPv6 address.
            assert!(connected.is_ok() || address == "localhost", "{address:?}: {connected:?}");
        }
    }

    #[tokio::test]
    async fn where_there_is_ipv6_all_addresses_and_brackets_mean_it_too() {
        if TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).await.is_err() {
            return;
        }
        for address in ["", "*", "::1", "[::1]"] {
            let listener = listen(address, 0).await.expect(address);
            let port = listener.local_addr().expect("an address").port();
            tokio::net::TcpStream::connect((Ipv6Addr::LOCALHOST, port)).await.expect(address);
        }
    }

    #[tokio::test]
    async fn a_port_that_is_taken_is_an_error() {
        let first = listen("*", 0).await.expect("a port");
        let port = first.local_addr().expect("an address").port();
        assert_eq!(listen("*", port).await.expect_err("taken").kind(), io::ErrorKind::AddrInUse);
    }
}
