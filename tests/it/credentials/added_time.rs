//! What a call costs more through kubesvc than made directly, with the same server behind both. `make floods` runs it with
//! optimised programs and nothing beside it.

use std::convert::Infallible;
use std::time::Instant;

use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::SendRequest;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::AbortOnDropHandle;

use super::*;

/// Calls on each side that are not measured.
const WARM_UP: usize = 200;
/// Measured calls on each side.
const CALL_COUNT: usize = 3000;
/// Maximum of what is added to the median time of a GET.
const MAX_ADDED: Duration = Duration::from_millis(1);
/// Size of an answer, in bytes: that of an account without its details.
const ANSWER_BYTES: usize = 400;

/// A server that answers every call at once. Returns its port.
async fn serve() -> (u16, AbortOnDropHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let body = Bytes::from(format!("{{\"name\": \"{}\"}}", "a".repeat(ANSWER_BYTES)));
    let serving = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            stream.set_nodelay(true).expect("set");
            let body = body.clone();
            tokio::spawn(async move {
                let answer = service_fn(|_: Request<Incoming>| {
                    let mut answer = Response::new(Full::new(body.clone()));
                    let media_type = "application/json".parse().expect("a media type");
                    answer.headers_mut().insert("content-type", media_type);
                    std::future::ready(Ok::<_, Infallible>(answer))
                });
                let stream = TokioIo::new(stream);
                let _ = hyper::server::conn::http1::Builder::new().serve_connection(stream, answer).await;
            });
        }
    });
    (port, AbortOnDropHandle::new(serving))
}

/// One connection of a caller.
struct Caller {
    sender: SendRequest<Full<Bytes>>,
    _connection: AbortOnDropHandle<()>,
}

impl Caller {
    async fn to(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).await.expect("it listens");
        stream.set_nodelay(true).expect("set");
        let (sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.expect("HTTP");
        let connection = tokio::spawn(async move { drop(connection.await) });
        Self { sender, _connection: AbortOnDropHandle::new(connection) }
    }

    /// Time of a GET with its whole answer.
    async fn get(&mut self) -> Duration {
        let request = Request::get("/credentials/prod").header("host", "clouddriver");
        let request = request.body(Full::default()).expect("a request");
        self.sender.ready().await.expect("it is open");
        let began = Instant::now();
        let answer = self.sender.send_request(request).await.expect("an answer");
        assert_eq!(answer.status(), 200);
        let body = answer.into_body().collect().await.expect("a body").to_bytes();
        let took = began.elapsed();
        assert!(body.len() > ANSWER_BYTES);
        took
    }
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make floods"]
async fn a_get_takes_at_most_a_millisecond_more_through_kubesvc() {
    let (port, _serving) = serve().await;
    let world = World::prepare()
        .setting("kubesvc.clouddriver.baseUrl", format!("http://127.0.0.1:{port}"))
        // The caller is like Gate: no limit of its rate.
        .setting("server.limits.exempt", json!(["127.0.0.1/32"]))
        .start()
        .await;
    let mut callers = [Caller::to(port).await, Caller::to(world.operator().rest_port()).await];
    let mut times = [Vec::new(), Vec::new()];
    // They take turns, so that whatever else the machine does meets both.
    for number in 0..WARM_UP + CALL_COUNT {
        for (caller, times) in callers.iter_mut().zip(&mut times) {
            let took = caller.get().await;
            if number >= WARM_UP {
                times.push(took);
            }
        }
    }
    let [direct, through] = times.each_mut().map(|times| median(times));
    let added = through.saturating_sub(direct);
    println!(
        "GET, median: directly {direct:?}, through kubesvc {through:?}: {added:?} more (wanted: {MAX_ADDED:?})"
    );
    assert!(added <= MAX_ADDED, "{added:?}");
}
