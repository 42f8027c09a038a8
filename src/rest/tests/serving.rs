//! REST on a real socket.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use super::*;
use kubesvc_runtime::listen::http::HttpServer;
use kubesvc_runtime::listen::port::HttpMetrics;

async fn serving() -> (std::net::SocketAddr, CancellationToken, tokio::task::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let stop = CancellationToken::new();
    let server = HttpServer::new("rest", http_limits(64, AddressLimits::default()), HttpMetrics::default());
    let task = tokio::spawn(server.serve(listener, None, a_router(), stop.clone()));
    (address, stop, task)
}

async fn say(address: std::net::SocketAddr, text: &str) -> String {
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    stream.write_all(text.as_bytes()).await.expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    answer
}

#[tokio::test]
async fn it_answers_and_ends_with_connections_open() {
    let (address, stop, task) = serving().await;
    let answer = say(address, "GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    let _idle = TcpStream::connect(address).await.expect("a connection");
    stop.cancel();
    tokio::time::timeout(Duration::from_secs(12), task).await.expect("in time").expect("no panic");
}

#[tokio::test]
async fn malformed_or_too_large_requests_are_refused() {
    let (address, _stop, _task) = serving().await;
    assert!(say(address, "hello\r\n\r\n").await.starts_with("HTTP/1.1 400"));
    let body = "POST /armory/accounts/dynamic HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 99999999\r\n\r\n";
    let answer = say(address, body).await;
    assert!(answer.starts_with("HTTP/1.1 413") && answer.contains("connection: close"), "{answer}");
}
