//! A stand-in for a kubelet: logs that can be followed, and connections that are upgraded and repeat in capitals what they
//! are sent. The real kube-apiserver passes requests on to it.

use std::convert::Infallible;

use futures::{StreamExt as _, stream};
use http::header::{CONNECTION, CONTENT_TYPE, HeaderValue, UPGRADE};
use http::{Request, Response, StatusCode};
use http_body_util::StreamBody;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::{Bytes, Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use crate::operations_faults::gate::acceptor;
use crate::world::address;
use kubesvc_testkit::controlplane::ControlPlane;
use kubesvc_testkit::kubeconfig::Authority;
use kubesvc_testkit::must;

/// Name of its node and of the pod on it.
pub(super) const NODE: &str = "stand-in";
pub(super) const POD: &str = "talkative";

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// The lines of the log, and whether there will be more.
#[derive(Clone, Debug, Default)]
struct Log {
    lines: Vec<String>,
    is_over: bool,
}

/// The stand-in. It ends on drop.
pub(super) struct Kubelet {
    log: watch::Sender<Log>,
    _accepting: AbortOnDropHandle<()>,
}

impl Kubelet {
    /// Starts it, and tells the API server of its node and pod.
    pub(super) async fn start(target: &ControlPlane) -> Self {
        let listener = TcpListener::bind((address(), 0)).await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let ip = address().to_string();
        let acceptor = acceptor(&must(must(Authority::new("kubelet")).server(&[&ip])));
        let (log, following) = watch::channel(Log::default());
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, following) = (acceptor.clone(), following.clone());
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let service = service_fn(move |request| answer(request, following.clone()));
                    let serving = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .with_upgrades();
                    let _ = serving.await;
                });
            }
        });
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}});
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": POD, "namespace": "default"},
            "spec": {"nodeName": NODE, "containers": [{"name": "c", "image": "i"}]}});
        for object in [&node, &pod] {
            must(target.kubectl_with_input(["create", "-f", "-"], &object.to_string()).await.ok());
        }
        let addresses = json!({"status": {
            "addresses": [{"type": "InternalIP", "address": ip}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        }});
        let running =
            json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
        for (kind, name, status) in [("node", NODE, addresses), ("pod", POD, running)] {
            let status = status.to_string();
            let patch = ["patch", kind, name, "--subresource=status", "--type=merge", "-p", &status];
            must(target.kubectl(patch).await.ok());
        }
        Self { log, _accepting: AbortOnDropHandle::new(accepting) }
    }

    /// Adds a line to the log.
    pub(super) fn say(&self, line: &str) {
        self.log.send_modify(|log| log.lines.push(format!("{line}\n")));
    }

    /// Begins a new log, or ends this one: whoever follows it sees its end.
    pub(super) fn end(&self, is_over: bool) {
        self.log.send_modify(|log| log.is_over = is_over);
    }
}

async fn answer(
    mut request: Request<Incoming>,
    log: watch::Receiver<Log>,
) -> Result<Response<Body>, Infallible> {
    if request.uri().path().starts_with("/containerLogs/") {
        let follows = request.uri().query().is_some_and(|query| query.contains("follow=true"));
        let mut answer = Response::new(UnsyncBoxBody::new(StreamBody::new(lines(log, follows))));
        answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
        return Ok(answer);
    }
    let mut answer = Response::new(UnsyncBoxBody::new(StreamBody::new(stream::empty().boxed())));
    let Some(protocol) = request.headers().get(UPGRADE).cloned() else {
        *answer.status_mut() = StatusCode::BAD_REQUEST;
        return Ok(answer);
    };
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let Ok(upgraded) = upgrade.await else { return };
        shout(TokioIo::new(upgraded)).await;
    });
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    answer.headers_mut().insert(UPGRADE, protocol);
    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    Ok(answer)
}

/// Repeats what it is sent, in capitals, until it is sent nothing more or `end`.
async fn shout(mut stream: TokioIo<hyper::upgrade::Upgraded>) {
    let mut part = vec![0; 16 * 1024];
    while let Ok(count @ 1..) = stream.read(&mut part).await {
        if stream.write_all(&part[..count].to_ascii_uppercase()).await.is_err()
            || part[..count].ends_with(b"end")
        {
            break;
        }
    }
    let _ = stream.shutdown().await;
}

/// The lines so far, and those that come if the log is followed.
fn lines(
    log: watch::Receiver<Log>,
    follows: bool,
) -> stream::BoxStream<'static, Result<Frame<Bytes>, Infallible>> {
    let lines = stream::unfold((log, 0), move |(mut log, given)| async move {
        let now = log.wait_for(|log| !follows || log.is_over || log.lines.len() > given).await.ok()?.clone();
        let text: String = now.lines.get(given..)?.concat();
        if text.is_empty() {
            return None;
        }
        Some((Ok(Frame::data(Bytes::from(text))), (log, now.lines.len())))
    });
    lines.boxed()
}
