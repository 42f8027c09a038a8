//! Callers of an account's API by HTTP/1.1 and HTTP/2, at either door, who see how an answer ends.

use std::sync::Arc;
use std::time::Duration;

use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;

use super::gate::client_config;

/// A server that serves an account's API, and who calls.
#[derive(Clone, Debug)]
pub(super) struct Door {
    pub(super) name: &'static str,
    pub(super) port: u16,
    /// Authority of its certificate, as PEM.
    pub(super) authority: String,
    pub(super) token: String,
    pub(super) is_http2: bool,
}

/// An answer that is being read.
pub(super) struct Reading {
    pub(super) status: StatusCode,
    body: Incoming,
    pub(super) seen: Vec<u8>,
}

impl Door {
    /// The same door by another version of HTTP.
    pub(super) fn by_http2(&self, is_http2: bool) -> Self {
        Self { is_http2, ..self.clone() }
    }

    /// Begins a GET on a connection of its own.
    pub(super) async fn get(&self, path: &str) -> Result<Reading, String> {
        let uri = format!("https://localhost{path}");
        let request = Request::get(if self.is_http2 { uri.as_str() } else { path })
            .header("host", "localhost")
            .header(AUTHORIZATION, format!("Bearer {}", self.token))
            .body(Empty::<Bytes>::new())
            .map_err(|e| e.to_string())?;
        let answer = if self.is_http2 {
            self.session().await?.sender.send_request(request).await
        } else {
            let handshake = hyper::client::conn::http1::handshake(self.connect(b"http/1.1").await?).await;
            let (mut sender, connection) = handshake.map_err(|e| e.to_string())?;
            tokio::spawn(connection);
            sender.send_request(request).await
        };
        let (head, body) = answer.map_err(|e| e.to_string())?.into_parts();
        Ok(Reading { status: head.status, body, seen: Vec::new() })
    }

    /// Makes a write on a connection of its own. Returns the status and the body.
    pub(super) async fn write(
        &self,
        method: Method,
        path: &str,
        media: &str,
        body: String,
    ) -> Result<(u16, String), String> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "localhost")
            .header(CONTENT_TYPE, media)
            .header(AUTHORIZATION, format!("Bearer {}", self.token))
            .body(Full::new(Bytes::from(body)))
            .map_err(|e| e.to_string())?;
        let handshake = hyper::client::conn::http1::handshake(self.connect(b"http/1.1").await?).await;
        let (mut sender, connection) = handshake.map_err(|e| e.to_string())?;
        tokio::spawn(connection);
        let answer = sender.send_request(request).await.map_err(|e| e.to_string())?;
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await.map_err(|e| e.to_string())?.to_bytes();
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    }

    /// Opens a connection by HTTP/2.
    pub(super) async fn session(&self) -> Result<Session, String> {
        let stream = self.connect(b"h2").await?;
        let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await;
        let (sender, connection) = handshake.map_err(|e| e.to_string())?;
        tokio::spawn(connection);
        Ok(Session { sender, token: self.token.clone() })
    }

    async fn connect(&self, protocol: &[u8]) -> Result<TokioIo<TlsStream<TcpStream>>, String> {
        let mut config = client_config(&self.authority);
        config.alpn_protocols = vec![protocol.to_vec()];
        let stream = TcpStream::connect(("127.0.0.1", self.port)).await.map_err(|e| e.to_string())?;
        let name = ServerName::try_from("localhost").expect("a name");
        let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await;
        Ok(TokioIo::new(stream.map_err(|e| e.to_string())?))
    }
}

impl Reading {
    /// Reads until this text was seen.
    pub(super) async fn until(&mut self, text: &str) -> Result<(), String> {
        loop {
            if String::from_utf8_lossy(&self.seen).contains(text) {
                return Ok(());
            }
            match tokio::time::timeout(Duration::from_secs(20), self.body.frame()).await {
                Ok(Some(Ok(frame))) => self.take(frame),
                other => {
                    let seen = String::from_utf8_lossy(&self.seen).into_owned();
                    return Err(format!("no {text:?} but {other:?} after {} {seen:.300}", self.status));
                }
            }
        }
    }

    /// Reads to the end: `Ok` if it ended as if it were whole, else the error.
    pub(super) async fn end(&mut self) -> Result<(), String> {
        loop {
            match self.body.frame().await {
                None => return Ok(()),
                Some(Ok(frame)) => self.take(frame),
                Some(Err(error)) => return Err(error.to_string()),
            }
        }
    }

    /// The body so far.
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.seen).into_owned()
    }

    fn take(&mut self, frame: hyper::body::Frame<Bytes>) {
        if let Ok(data) = frame.into_data() {
            self.seen.extend_from_slice(&data);
        }
    }
}

/// A connection by HTTP/2 on which many requests run at once.
#[derive(Clone)]
pub(super) struct Session {
    sender: hyper::client::conn::http2::SendRequest<Empty<Bytes>>,
    token: String,
}

impl Session {
    /// Gets a path. Returns the status and the body.
    pub(super) async fn get(&self, path: &str) -> Result<(u16, String), String> {
        let request = Request::get(format!("https://localhost{path}"))
            .header(AUTHORIZATION, format!("Bearer {}", self.token))
            .body(Empty::new())
            .map_err(|e| e.to_string())?;
        let answer = self.sender.clone().send_request(request).await.map_err(|e| e.to_string())?;
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await.map_err(|e| e.to_string())?.to_bytes();
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    }
}
