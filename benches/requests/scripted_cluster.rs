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
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::task::AbortOnDropHandle;

use crate::callers::{Call, Caller, Door};
use kubesvc_testkit::kubeconfig::{self, Authority, Proof};

/// Bytes of a log.
pub(crate) const LOG_BYTES: usize = 1_000_000_000;
/// Bytes that are written at once.
const PART_BYTES: usize = 64 * 1024;
/// Time for the answer of the slow object.
pub(crate) const SLOW: Duration = Duration::from_secs(1);

type Body = BoxBody<Bytes, Infallible>;

/// A running server. It ends when it is dropped.
pub(crate) struct ScriptedCluster {
    pub(crate) kubeconfig: String,
    _task: AbortOnDropHandle<()>,
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
    pub(crate) async fn start(real: &Door) -> Result<Self, String> {
        let authority = Authority::new("scripted cluster")?;
        let server = authority.server(&["localhost"])?;
        let problem = |e: &dyn std::fmt::Display| format!("scripted cluster: {e}");
        let chain = CertificateDer::pem_slice_iter(server.certificate.as_bytes());
        let chain = chain.collect::<Result<Vec<_>, _>>().map_err(|e| problem(&e))?;
        let key = PrivateKeyDer::from_pem_slice(server.key.as_bytes()).map_err(|e| problem(&e))?;
        let config = ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key);
        let tls = TlsAcceptor::from(Arc::new(config.map_err(|e| problem(&e))?));
        let listener = TcpListener::bind("127.0.0.1:0").await.map_err(|e| problem(&e))?;
        let port = listener.local_addr().map_err(|e| problem(&e))?.port();
        let behind = Arc::new(real.clone());
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (tls, behind) = (tls.clone(), Arc::clone(&behind));
                let _ = stream.set_nodelay(true);
                tokio::spawn(async move {
                    let Ok(stream) = tls.accept(stream).await else { return };
                    let service = service_fn(move |request| {
                        let behind = Arc::clone(&behind);
                        async move { Ok::<_, Infallible>(answer(request, &behind).await) }
                    });
                    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        let (address, pem) = (format!("localhost:{port}"), authority.pem());
        Ok(Self {
            kubeconfig: kubeconfig::yaml(&format!("https://{address}"), &pem, Proof::Token(&real.token)),
            _task: AbortOnDropHandle::new(task),
        })
    }
}

async fn answer(request: Request<Incoming>, behind: &Door) -> Response<Body> {
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
    pass_on(&call, behind).await.unwrap_or_else(|reason| {
        let mut response = Response::new(whole(reason));
        *response.status_mut() = StatusCode::BAD_GATEWAY;
        response
    })
}

/// Asks the real cluster. Activation asks for little, so that a connection for each question will do.
async fn pass_on(call: &Call, behind: &Door) -> Result<Response<Body>, String> {
    let mut caller = Caller::connect(behind).await?;
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
