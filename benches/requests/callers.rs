//! A caller with one connection (HTTP/1.1, plain or TLS) that is kept: the same client for both sides of a comparison.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::{
    body::{Bytes, Incoming},
    client::conn::http1::{self, SendRequest},
};
use hyper_util::rt::TokioIo;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;
use tokio_util::task::AbortOnDropHandle;

/// Where and how a caller connects.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Door {
    /// Host and port.
    pub(crate) address: String,
    /// Authority of the server's certificate, PEM; `None`: no TLS. The certificate is for `localhost`.
    pub(crate) authority: Option<String>,
    pub(crate) token: String,
}

/// A request without what its door adds.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) accept: String,
    pub(crate) media: &'static str,
    pub(crate) body: Bytes,
}

impl Call {
    pub(crate) fn get(path: &str) -> Self {
        Self::new(Method::GET, path, "", Bytes::new())
    }

    pub(crate) fn patch(path: &str, body: &serde_json::Value) -> Self {
        Self::new(Method::PATCH, path, "application/merge-patch+json", body.to_string().into())
    }

    pub(crate) fn post(path: &str, body: &serde_json::Value) -> Self {
        Self::new(Method::POST, path, "application/json", body.to_string().into())
    }

    fn new(method: Method, path: &str, media: &'static str, body: Bytes) -> Self {
        Self { method, path: path.to_owned(), accept: "application/json".to_owned(), media, body }
    }

    /// The same call below another path.
    pub(crate) fn below(mut self, prefix: &str) -> Self {
        self.path.insert_str(0, prefix);
        self
    }

    /// About how many bytes it has on the wire.
    pub(crate) fn size(&self) -> usize {
        200 + self.path.len() + self.body.len()
    }
}

/// A connection with requests one after another.
pub(crate) struct Caller {
    sender: SendRequest<Full<Bytes>>,
    door: Door,
    _connection: AbortOnDropHandle<()>,
}

impl Caller {
    /// Connects.
    pub(crate) async fn connect(door: &Door) -> Result<Self, String> {
        let problem = |e: &dyn std::fmt::Display| format!("{}: {e}", door.address);
        let stream = TcpStream::connect(&door.address).await.map_err(|e| problem(&e))?;
        stream.set_nodelay(true).map_err(|e| problem(&e))?;
        match &door.authority {
            None => Self::over(stream, door).await,
            Some(authority) => {
                let mut roots = RootCertStore::empty();
                for one in CertificateDer::pem_slice_iter(authority.as_bytes()) {
                    roots.add(one.map_err(|e| problem(&e))?).map_err(|e| problem(&e))?;
                }
                let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
                let name = ServerName::try_from("localhost").map_err(|e| problem(&e))?;
                let connector = TlsConnector::from(Arc::new(config));
                Self::over(connector.connect(name, stream).await.map_err(|e| problem(&e))?, door).await
            }
        }
    }

    async fn over(
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        door: &Door,
    ) -> Result<Self, String> {
        let (sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|e| format!("{}: {e}", door.address))?;
        let connection = tokio::spawn(async move { drop(connection.await) });
        Ok(Self { sender, door: door.clone(), _connection: AbortOnDropHandle::new(connection) })
    }

    /// Sends a call and waits for the head of its answer, whatever its status.
    pub(crate) async fn begin(&mut self, call: &Call) -> Result<http::Response<Incoming>, String> {
        let problem = |e: &dyn std::fmt::Display| format!("{} {}: {e}", call.method, call.path);
        let mut request = Request::builder()
            .method(&call.method)
            .uri(&call.path)
            .header(header::HOST, &self.door.address)
            .header(header::ACCEPT, &call.accept)
            .header(header::AUTHORIZATION, format!("Bearer {}", self.door.token));
        if !call.media.is_empty() {
            request = request.header(header::CONTENT_TYPE, call.media);
        }
        let request = request.body(Full::new(call.body.clone())).map_err(|e| problem(&e))?;
        self.sender.ready().await.map_err(|e| problem(&e))?;
        self.sender.send_request(request).await.map_err(|e| problem(&e))
    }

    /// Makes a call, and returns its status and its whole answer.
    pub(crate) async fn call(&mut self, call: &Call) -> Result<(StatusCode, Bytes), String> {
        let answer = self.begin(call).await?;
        let status = answer.status();
        let body = answer.into_body().collect().await;
        let body = body.map_err(|e| format!("{} {}: {e}", call.method, call.path))?;
        Ok((status, body.to_bytes()))
    }

    /// Makes a call that must succeed. Returns the time until its last byte, and the size of its answer.
    pub(crate) async fn timed(&mut self, call: &Call) -> Result<(Duration, usize), String> {
        let begun = Instant::now();
        let mut answer = self.begin(call).await?;
        let (status, mut size) = (answer.status(), 0);
        let mut start = Vec::new();
        while let Some(frame) = answer.body_mut().frame().await {
            let frame = frame.map_err(|e| format!("{} {}: {e}", call.method, call.path))?;
            let data = frame.data_ref().map(|data| &data[..]).unwrap_or_default();
            size += data.len();
            if start.len() < 1024 {
                start.extend_from_slice(&data[..data.len().min(1024)]);
            }
        }
        let took = begun.elapsed();
        let said = String::from_utf8_lossy(&start);
        // An operation that failed is answered all the same.
        let has_failed = call.path.starts_with("/armory/") && said.contains("\"failure\"");
        if status.is_success() && !has_failed {
            return Ok((took, size));
        }
        Err(format!("{} {} at {}: {status}: {said}", call.method, call.path, self.door.address))
    }
}
