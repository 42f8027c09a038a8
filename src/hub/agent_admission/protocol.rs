//! What a connection speaks, by its first bytes, and the answer to HTTP/1.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// The HTTP/2 preface.
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// First byte of a TLS connection: a record of the handshake.
pub(super) const TLS_RECORD: u8 = 0x16;
/// Maximum size of an HTTP/1 request that is read before the answer, in bytes.
const HTTP1_PEEK_BYTES: usize = 16;
/// Maximum size read and discarded after an answer, in bytes, so that closing the connection does not discard the
/// answer.
const MAX_DISCARDED_BYTES: u64 = 64 * 1024;

/// Protocol of a connection, by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DetectedProtocol {
    /// The HTTP/2 preface.
    Http2,
    /// An HTTP/1 request line.
    Http1,
    /// A TLS ClientHello.
    Tls,
    /// Another protocol, or end of stream.
    Other,
}

/// Detects the protocol; `None` if more bytes are needed.
fn protocol_of(bytes: &[u8]) -> Option<DetectedProtocol> {
    let begins = bytes.len().min(PREFACE.len());
    if bytes[..begins] == PREFACE[..begins] {
        return (begins == PREFACE.len()).then_some(DetectedProtocol::Http2);
    }
    if bytes[0] == TLS_RECORD {
        return match bytes.get(1) {
            None => None,
            Some(0x03) => Some(DetectedProtocol::Tls),
            Some(_) => Some(DetectedProtocol::Other),
        };
    }
    let method = bytes.iter().take_while(|byte| byte.is_ascii_uppercase()).count();
    match bytes.get(method) {
        Some(b' ') if (3..=10).contains(&method) => Some(DetectedProtocol::Http1),
        None if method < HTTP1_PEEK_BYTES => None,
        _ => Some(DetectedProtocol::Other),
    }
}

/// Reads until the protocol is known. The bytes read are kept in `peeked`.
pub(super) async fn detect_protocol<S: AsyncRead + Unpin>(
    stream: &mut S,
    peeked: &mut Vec<u8>,
) -> io::Result<DetectedProtocol> {
    let mut buffer = [0; PREFACE.len()];
    loop {
        let missing = PREFACE.len() - peeked.len();
        let count = stream.read(&mut buffer[..missing]).await?;
        peeked.extend_from_slice(&buffer[..count]);
        match protocol_of_peeked(peeked, count) {
            Some(spoken) => return Ok(spoken),
            None if peeked.len() == PREFACE.len() => return Ok(DetectedProtocol::Other),
            None => {}
        }
    }
}

fn protocol_of_peeked(peeked: &[u8], count: usize) -> Option<DetectedProtocol> {
    if count == 0 { Some(DetectedProtocol::Other) } else { protocol_of(peeked) }
}

/// Answers an HTTP/1 request with 505 and a sentence, and gives the client time to read it.
pub(super) async fn answer_http1<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    sentence: &str,
) -> io::Result<()> {
    let answer = format!(
        "HTTP/1.1 505 HTTP Version Not Supported\r\ncontent-type: text/plain; charset=utf-8\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n{sentence}",
        sentence.len()
    );
    stream.write_all(answer.as_bytes()).await?;
    read_out(stream).await
}

/// Ends the own side, and discards what the client sends yet: closing at once would discard what it has not read.
pub(super) async fn read_out<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S) -> io::Result<()> {
    stream.shutdown().await?;
    tokio::io::copy(&mut stream.take(MAX_DISCARDED_BYTES), &mut tokio::io::sink()).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocol_is_detected_from_the_first_bytes() {
        for (bytes, expected) in [
            (PREFACE, Some(DetectedProtocol::Http2)),
            (&PREFACE[..5], None),
            (b"GET / HTTP/1.1\r\n", Some(DetectedProtocol::Http1)),
            (b"P", None),
            (b"POST /", Some(DetectedProtocol::Http1)),
            (b"PRI * HTTP/1.1", Some(DetectedProtocol::Http1)),
            (b"\x16\x03\x01", Some(DetectedProtocol::Tls)),
            (b"\x16", None),
            (b"\x16\x00", Some(DetectedProtocol::Other)),
            (b"\x00", Some(DetectedProtocol::Other)),
            (b"hello", Some(DetectedProtocol::Other)),
            (b"AAAAAAAAAAAAAAAAAAAAAAAA", Some(DetectedProtocol::Other)),
        ] {
            assert_eq!(protocol_of(bytes), expected, "{bytes:?}");
        }
    }
}
