//! A second API server of a control plane on the same etcd, as in a highly available cluster. A proxy
//! between the two can hold back its watches.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::StreamExt as _;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, BodyStream, Empty, StreamBody, combinators::BoxBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::client::conn::http2::SendRequest;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use kube::Client;
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::{ControlPlane, START, client_from, ready};
use crate::{ports, process::Process, wait::try_eventually};

/// A second API server. Its watches can be held back while its reads and writes continue, so that its watchers see
/// the past.
#[derive(Debug)]
pub struct SecondServer {
    // Dropped in this order: without its etcd an API server hangs.
    process: Process,
    proxy: EtcdProxy,
    port: u16,
}

impl ControlPlane {
    /// Starts a second API server on the same etcd and waits until it is ready. [`ControlPlane::writes`] includes its
    /// writes.
    ///
    /// # Errors
    ///
    /// It ends, or is not ready in time. The message contains the last lines of its log.
    pub async fn second(&self) -> Result<SecondServer, String> {
        let proxy = EtcdProxy::to(&self.folder.file("etcd.sock")).await?;
        let port = ports::free();
        let name = format!("kube-apiserver-{port}");
        let command = self.apiserver_command_at(port, &proxy.url(), &format!("certificates-{port}"));
        let process = Process::spawn(&name, &command, &self.folder.file(&format!("{name}.log")))?;
        let second = SecondServer { process, proxy, port };
        let client = client_from(&second.instead(&self.admin_kubeconfig(), self)).await?;
        try_eventually("a second kube-apiserver", START, async || match second.process.check_running() {
            Err(reason) => Ok(Err(reason)),
            Ok(()) => async {
                ready(&client).await?;
                watched(&client).await
            }
            .await
            .map(Ok),
        })
        .await
        .map_err(|reason| format!("{reason}\n{}", second.process.log_tail(20)))??;
        Ok(second)
    }
}

/// Waits until kubesvc's objects can be watched. Until its cache is filled, a server refuses watches, and a client
/// that retries then lists the current state.
async fn watched(client: &Client) -> Result<(), String> {
    for plural in ["kubesvcaccounts", "kubesvcagents", "kubesvcidentities", "kubesvcmigrations"] {
        let path =
            format!("/apis/kubesvc.io/v1alpha1/{plural}?watch=true&resourceVersion=0&timeoutSeconds=1");
        let request = Request::get(&path).body(Vec::new()).map_err(|e| e.to_string())?;
        client.request_text(request).await.map_err(|e| format!("{path}: {e}"))?;
    }
    Ok(())
}

impl SecondServer {
    /// Rewrites a kubeconfig of the control plane to use this server instead of the first.
    pub fn instead(&self, kubeconfig: &str, plane: &ControlPlane) -> String {
        kubeconfig.replace(&plane.server_url(), &format!("https://127.0.0.1:{}", self.port))
    }

    /// Holds back its watches, and thereby its cache. Reads that request the latest state still return it.
    pub fn hold_watches(&self) {
        self.proxy.hold_watches(Some(""));
    }

    /// Like [`SecondServer::hold_watches`], but only for accounts.
    pub fn hold_watches_of_accounts(&self) {
        self.proxy.hold_watches(Some("/kubesvc.io/kubesvcaccounts/"));
    }

    /// Like [`SecondServer::hold_watches`], but only for the agents' objects.
    pub fn hold_watches_of_agents(&self) {
        self.proxy.hold_watches(Some("/kubesvc.io/kubesvcagents/"));
    }

    /// Releases the watches: delivers all events that were held, and all further ones.
    pub fn let_watches_go(&self) {
        self.proxy.hold_watches(None);
    }
}

/// gRPC path of etcd's watches.
const WATCH: &str = "/etcdserverpb.Watch/Watch";
/// Maximum size of the recorded requests of a watch, in bytes.
const MOST_ASKED: usize = 64 * 1024;

/// Watches whose requests contain this text are held; `None` holds none.
type Held = Option<&'static str>;
type Body = BoxBody<Bytes, hyper::Error>;

/// A proxy between an API server and its etcd. It forwards everything, but can hold back the events of watches. The
/// API server then shows an old state to its watchers while reads and writes continue: it has traveled in time. Its
/// connections end on drop.
#[derive(Debug)]
struct EtcdProxy {
    port: u16,
    held: watch::Sender<Held>,
    _accepting: AbortOnDropHandle<()>,
}

impl EtcdProxy {
    /// Starts a proxy to the etcd that listens on this socket.
    ///
    /// # Errors
    ///
    /// No port is available.
    async fn to(socket: &Path) -> Result<Self, String> {
        let port = ports::free();
        let listener =
            TcpListener::bind(("127.0.0.1", port)).await.map_err(|e| format!("port {port}: {e}"))?;
        let held = watch::Sender::new(None);
        let (socket, line) = (socket.to_path_buf(), held.subscribe());
        let accepting = tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                tokio::spawn(connect(near, socket.clone(), line.clone()));
            }
        });
        Ok(Self { port, held, _accepting: AbortOnDropHandle::new(accepting) })
    }

    /// URL that the proxy listens on.
    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Holds the events of watches whose requests contain this text. `None` forwards everything, including the events
    /// that were held.
    fn hold_watches(&self, of: Option<&'static str>) {
        self.held.send_replace(of);
    }
}

/// Serves one connection until either side or the proxy ends.
async fn connect(near: TcpStream, socket: PathBuf, held: watch::Receiver<Held>) {
    let Ok(far) = UnixStream::connect(&socket).await else { return };
    let Ok((sender, far)) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(far)).await
    else {
        return;
    };
    let gone = held.clone();
    let service = service_fn(move |request| pass_on(sender.clone(), request, held.clone()));
    let near = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(near), service);
    tokio::select! {
        _ = near => {}
        _ = far => {}
        () = dropped(gone) => {}
    }
}

async fn pass_on(
    mut etcd: SendRequest<Body>,
    request: Request<Incoming>,
    held: watch::Receiver<Held>,
) -> Result<Response<Body>, hyper::Error> {
    let asked = (request.uri().path() == WATCH).then(Asked::default);
    let listened = asked.clone();
    let request = request.map(|body| match listened {
        None => body.boxed(),
        Some(asked) => BoxBody::new(body.map_frame(move |frame| {
            asked.hear(&frame);
            frame
        })),
    });
    let Ok(answer) = etcd.send_request(request).await else {
        let mut none = Response::new(Empty::new().map_err(|never| match never {}).boxed());
        *none.status_mut() = StatusCode::BAD_GATEWAY;
        return Ok(none);
    };
    let Some(asked) = asked else { return Ok(answer.map(BodyExt::boxed)) };
    let gated = |body| {
        let frames = BodyStream::new(body).then(move |frame| {
            let (mut held, asked) = (held.clone(), asked.clone());
            async move {
                // An error means that the proxy was dropped; its connections end.
                let _ = held.wait_for(|held| held.is_none_or(|text| !asked.has(text))).await;
                frame
            }
        });
        BoxBody::new(StreamBody::new(frames))
    };
    Ok(answer.map(gated))
}

/// Recorded requests of a watch stream.
#[derive(Clone, Default)]
struct Asked(Arc<Mutex<Vec<u8>>>);

impl Asked {
    fn hear(&self, frame: &Frame<Bytes>) {
        let mut asked = self.0.lock();
        if let Some(piece) = frame.data_ref().filter(|piece| asked.len() + piece.len() <= MOST_ASKED) {
            asked.extend_from_slice(piece);
        }
    }

    fn has(&self, text: &str) -> bool {
        text.is_empty() || self.0.lock().windows(text.len()).any(|piece| piece == text.as_bytes())
    }
}

/// Completes when the proxy is dropped.
async fn dropped(mut held: watch::Receiver<Held>) {
    while held.changed().await.is_ok() {}
}
