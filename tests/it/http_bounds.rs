//! Connection limits of REST with the default settings.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::world::{MAX_WAIT, World};
use kubesvc_testkit::{ports, wait::eventually};

/// Maximum number of connections from one address by default.
const PER_ADDRESS: usize = 256;

async fn connect(from: [u8; 4], port: u16) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind(SocketAddr::from((from, 0))).expect("an address of this machine");
    socket.connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await.expect("a connection")
}

/// Sends a GET request and returns the whole response.
async fn ask(from: [u8; 4], port: u16, path: &str) -> String {
    let mut stream = connect(from, port).await;
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn flood_from_one_address_blocks_neither_probes_nor_other_callers() {
    let health = ports::free();
    let world = World::prepare().setting("server.health.port", health).start().await;
    let rest = world.operator().rest_port();
    let mut crowd = Vec::new();
    for _ in 0..PER_ADDRESS + 44 {
        crowd.push(connect([127, 0, 0, 9], rest).await);
    }
    eventually("those above the bound closed, and counted", MAX_WAIT, async || {
        let metrics = ask([127, 0, 0, 8], rest, "/metrics").await;
        let counted = metrics.lines().find(|line| {
            line.starts_with("kubesvc_http_connections_closed_total") && line.contains("\"address\"")
        });
        counted.map(drop).ok_or_else(|| "nothing is counted".to_owned())
    })
    .await;
    for path in ["/health", "/health/liveness", "/health/readiness", "/health/tasks"] {
        for port in [health, rest] {
            let answer = ask([127, 0, 0, 8], port, path).await;
            assert!(answer.starts_with("HTTP/1.1 200 OK"), "{port} {path}: {answer}");
        }
    }
    let answer = ask([127, 0, 0, 8], health, "/armory/accounts").await;
    assert!(answer.starts_with("HTTP/1.1 404"), "only health is served there: {answer}");
}
