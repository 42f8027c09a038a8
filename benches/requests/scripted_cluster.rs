//! A cluster that behaves as a benchmark wants: it passes every request on to a real API server, except for the log of one
//! pod, which is as long as its reader likes, and one object, whose GET takes a second.

use std::{convert::Infallible, sync::Arc, time::Duration};

use futures::{StreamExt as _, stream};
use http::{
    Request, Response, StatusCode,
    header::{ACCEPT, CONTENT_TYPE},
};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::BoxBody};
use hyper::{
    body::{Bytes, Frame, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use serde::{Deserialize, Serialize};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::{
    callers::{Call, Caller, Door},
    parts::Part,
};
use kubesvc_testkit::{
    folder::Folder,
    kubeconfig::{self, Authority, Identity, Proof},
    ports,
    process::Process,
    wait::try_eventually,
};

/// Bytes of a log.
pub(crate) const LOG_BYTES: usize = 1_000_000_000;
/// Bytes that are written at once.
const PART_BYTES: usize = 64 * 1024;
/// Time limit for its start.
const START: Duration = Duration::from_secs(10);
/// Time for the answer of the slow object.
pub(crate) const SLOW: Duration = Duration::from_secs(1);

type Body = BoxBody<Bytes, Infallible>;

/// A running server, in a process of its own. It is killed when it is dropped.
pub(crate) struct ScriptedCluster {
    pub(crate) kubeconfig: String,
    /// Where its own clients reach it.
    pub(crate) door: Door,
    _process: Process,
    _folder: Folder,
}

/// What the process serves.
#[derive(Serialize, Deserialize)]
pub(crate) struct Script {
    port: u16,
    certificate: String,
    key: String,
    real: Door,
}

/// Path of the log.
pub(crate) fn log_path() -> &'static str {
    "/api/v1/namespaces/default/pods/talkative/log?follow=true"
}

/// Path of the slow object.
pub(crate) fn slow_path() -> &'static str {
    "/api/v1/namespaces/default/configmaps/slow"
}

impl ScriptedCluster {
    /// Starts in front of a cluster.
    pub(crate) async fn start(real: Door) -> Result<Self, String> {
        let folder = Folder::new("bench-scripted-cluster")?;
        let authority = Authority::new("scripted cluster")?;
        let Identity { certificate, key } = authority.server(&["localhost"])?;
        let (port, token) = (ports::free(), real.token.clone());
        let script = Script { port, certificate, key, real };
        let process = Part::ScriptedCluster(script).start("scripted-cluster", &folder)?;
        let (address, pem) = (format!("localhost:{port}"), authority.pem());
        let kubeconfig = kubeconfig::yaml(&format!("https://{address}"), &pem, Proof::Token(&token));
        let door = Door { address, authority: Some(pem), token };
        try_eventually("a scripted cluster", START, async || {
            TcpStream::connect(("localhost", port)).await.map_err(|e| format!("{e}: {}", process.log_tail(3)))
        })
        .await?;
        Ok(Self { kubeconfig, door, _process: process, _folder: folder })
    }
}

impl Script {
    /// Serves until the process is killed.
    pub(crate) async fn serve(self) -> Result<(), String> {
        let problem = |e: &dyn std::fmt::Display| format!("scripted cluster: {e}");
        let chain = CertificateDer::pem_slice_iter(self.certificate.as_bytes());
        let chain = chain.collect::<Result<Vec<_>, _>>().map_err(|e| problem(&e))?;
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).map_err(|e| problem(&e))?;
        let config = ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key);
        let tls = TlsAcceptor::from(Arc::new(config.map_err(|e| problem(&e))?));
        let listener = TcpListener::bind(("127.0.0.1", self.port)).await.map_err(|e| problem(&e))?;
        let real = Arc::new(self.real);
        loop {
            let (stream, _) = listener.accept().await.map_err(|e| problem(&e))?;
            let (tls, real) = (tls.clone(), Arc::clone(&real));
            let _ = stream.set_nodelay(true);
            tokio::spawn(async move {
                let Ok(stream) = tls.accept(stream).await else { return };
                let service = service_fn(move |request| {
                    let real = Arc::clone(&real);
                    async move { Ok::<_, Infallible>(answer(request, &real).await) }
                });
                let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
            });
        }
    }
}

async fn answer(request: Request<Incoming>, real: &Door) -> Response<Body> {
    let path = request.uri().path_and_query().map(ToString::to_string).unwrap_or_default();
    if path.starts_with(log_path()) {
        let part = Bytes::from(vec![b'l'; PART_BYTES]);
        let parts = stream::iter(0..LOG_BYTES / PART_BYTES).map(move |_| Ok(Frame::data(part.clone())));
        return Response::new(BoxBody::new(StreamBody::new(parts)));
    }
    if path == slow_path() {
        tokio::time::sleep(SLOW).await;
        return Response::new(whole("{}"));
    }
    let mut call = Call::get(&path);
    if let Some(accept) = request.headers().get(ACCEPT).and_then(|value| value.to_str().ok()) {
        accept.clone_into(&mut call.accept);
    }
    pass_on(&call, real).await.unwrap_or_else(|reason| {
        let mut response = Response::new(whole(reason));
        *response.status_mut() = StatusCode::BAD_GATEWAY;
        response
    })
}

/// Asks the real cluster. Activation asks for little, so that a connection for each question will do.
async fn pass_on(call: &Call, real: &Door) -> Result<Response<Body>, String> {
    let mut caller = Caller::connect(real).await?;
    let (head, body) = caller.begin(call).await?.into_parts();
    let body = body.collect().await.map_err(|e| e.to_string())?.to_bytes();
    let mut response = Response::new(whole(body));
    *response.status_mut() = head.status;
    if let Some(media) = head.headers.get(CONTENT_TYPE) {
        response.headers_mut().insert(CONTENT_TYPE, media.clone());
    }
    Ok(response)
}

fn whole(bytes: impl Into<Bytes>) -> Body {
    BoxBody::new(Full::new(bytes.into()))
}
