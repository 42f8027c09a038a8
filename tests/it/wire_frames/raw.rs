//! Connections that are not gRPC, byte by byte.

use std::time::Duration;

use futures::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// A SETTINGS frame without settings.
const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
/// The hub waits 10 s for the start of a connection; everything is over well before this limit.
const LIMIT: Duration = Duration::from_secs(30);

/// Sends bytes, and reads until the other side closes.
async fn exchange(port: u16, what: &str, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.expect("the hub listens");
    // The connection may be closed before everything was sent.
    let _ = stream.write_all(bytes).await;
    let mut answer = Vec::new();
    let ended = tokio::time::timeout(LIMIT, stream.read_to_end(&mut answer)).await;
    assert!(ended.is_ok(), "{what}: the hub keeps the connection; it said {answer:?}");
    answer
}

pub(super) async fn http1_is_answered_with_505(port: u16) {
    for request in [
        "GET / HTTP/1.1\r\nhost: hub\r\n\r\n",
        "POST /ops.Operations/GetOps HTTP/1.1\r\nhost: hub\r\ncontent-type: application/grpc\r\n\r\n",
        "GET /health HTTP/1.0\r\n\r\n",
    ] {
        let answer = exchange(port, request, request.as_bytes()).await;
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.starts_with("HTTP/1.1 505 "), "{request}: {answer}");
        assert!(answer.contains("gRPC"), "{request}: {answer}");
    }
}

pub(super) async fn tls_is_closed(port: u16) {
    // The beginning of a ClientHello.
    let hello = [0x16, 3, 1, 0, 0xc8, 1, 0, 0, 0xc4, 3, 3].into_iter().chain([7; 196]).collect::<Vec<u8>>();
    assert!(exchange(port, "TLS", &hello).await.is_empty());
}

pub(super) async fn garbage_is_closed(port: u16) {
    let noise: Vec<u8> = (0..4096).map(|_| rand::random()).collect();
    for bytes in [
        &b"\0\0\0\0"[..],
        &[0xff; 64],
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"PRI * HTTP/3.0\r\n\r\nSM\r\n\r\n",
        &noise,
    ] {
        exchange(port, "garbage", bytes).await;
    }
}

pub(super) async fn silence_is_closed(port: u16) {
    let half = exchange(port, "half a preface", &PREFACE[..10]);
    let (nothing, half) = tokio::join!(exchange(port, "silence", b""), half);
    assert!(nothing.is_empty() && half.is_empty());
}

pub(super) async fn garbage_after_the_preface_is_closed(port: u16) {
    let frame = |length: u32, kind: u8, flags: u8, stream: u32, payload: &[u8]| {
        let mut bytes = [PREFACE, SETTINGS].concat();
        bytes.extend(&length.to_be_bytes()[1..]);
        bytes.extend([kind, flags]);
        bytes.extend(stream.to_be_bytes());
        bytes.extend(payload);
        bytes
    };
    let noise: Vec<u8> = (0..65_536).map(|_| rand::random()).collect();
    let cases = [
        ("noise for frames", [PREFACE, &noise].concat()),
        ("a frame over the limit", frame(0x00ff_ffff, 0, 0, 1, &[0; 100])),
        ("data on a stream that is not open", frame(4, 0, 0, 1, &[0; 4])),
        ("headers that are no HPACK", frame(8, 1, 4, 1, &[0xff; 8])),
        ("headers on an even stream", frame(1, 1, 4, 2, &[0x82])),
        ("settings of a wrong length", frame(5, 4, 0, 0, &[0; 5])),
        ("a window that overflows", frame(4, 8, 0, 0, &0x7fff_ffff_u32.to_be_bytes())),
        ("a ping of a wrong length", frame(3, 6, 0, 0, &[0; 3])),
        ("a push promise", frame(4, 5, 4, 1, &[0; 4])),
    ];
    join_all(cases.iter().map(|(what, bytes)| exchange(port, what, bytes))).await;
}

pub(super) async fn many_connections_come_and_go(port: u16) {
    for _ in 0..5 {
        let opened = join_all((0..100).map(|_| TcpStream::connect(("127.0.0.1", port)))).await;
        assert!(opened.iter().all(Result::is_ok));
    }
}
