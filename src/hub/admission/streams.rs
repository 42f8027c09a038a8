//! Streams of each connection: closes connections that have none.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use http_body_util::BodyExt as _;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tower::{Layer, Service};

use crate::hub::admission::listener::{ConnectionPolicy, DISPLACED};
use crate::hub::admission::transport::Peer;
use crate::listen::addresses::Caller;
use crate::listen::connection_phase::Turn;

/// Number of open streams of one connection; clones share it.
#[derive(Clone, Debug)]
pub(in crate::hub) struct Streams(watch::Sender<usize>);

/// An open stream, closed when dropped.
struct OpenStream(watch::Sender<usize>);

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.send_modify(|open| *open -= 1);
    }
}

impl Default for Streams {
    fn default() -> Self {
        Self(watch::Sender::new(0))
    }
}

impl Streams {
    fn open(&self) -> OpenStream {
        self.0.send_modify(|open| *open += 1);
        OpenStream(self.0.clone())
    }
}

/// Deadlines of a connection without a stream.
#[derive(Clone, Copy, Debug)]
pub(in crate::hub) struct StreamDeadlines {
    /// Time limit until the first request.
    pub(in crate::hub) first_request: Duration,
    /// Time limit after the end of the last stream.
    pub(in crate::hub) idle: Duration,
}

/// Closes a connection that has no stream for too long, or that is displaced because there are too many. Ends with
/// the connection.
pub(in crate::hub) async fn watch_over(
    policy: Arc<ConnectionPolicy>,
    streams: Streams,
    close: CancellationToken,
    (caller, turn): (Caller, Turn),
) {
    let ConnectionPolicy { bounds, metrics, .. } = &*policy;
    let (mut seen, mut turn) = (streams.0.subscribe(), Some(turn));
    drop(streams);
    let (mut limit, mut reason) = (bounds.first_request, "no_request");
    loop {
        // `None`: the connection was closed otherwise.
        let busy = close.run_until_cancelled(tokio::time::timeout(limit, seen.wait_for(|open| *open > 0)));
        match busy.await {
            None | Some(Ok(Err(_))) => return,
            Some(Ok(Ok(_))) => drop(turn.take()),
            Some(Err(_)) => {
                metrics.refuse_connection(reason);
                close.cancel();
                return;
            }
        }
        match close.run_until_cancelled(seen.wait_for(|open| *open == 0)).await {
            None | Some(Err(_)) => return,
            Some(Ok(_)) => (limit, reason) = (bounds.idle, "idle"),
        }
        let (waits, displaced) = policy.without_stream.enter_among(policy.without_stream_cap, caller, &close);
        if displaced {
            metrics.refuse_connection(DISPLACED);
        }
        turn = Some(waits);
    }
}

/// Counts the streams of each connection, from the request to the end of its response.
#[derive(Clone, Copy, Debug)]
pub(in crate::hub) struct StreamCountingLayer;

impl<S> Layer<S> for StreamCountingLayer {
    type Service = StreamCountingService<S>;

    fn layer(&self, inner: S) -> StreamCountingService<S> {
        StreamCountingService(inner)
    }
}

/// A service whose streams are counted.
#[derive(Clone, Debug)]
pub(in crate::hub) struct StreamCountingService<S>(S);

impl<S, B> Service<http::Request<Body>> for StreamCountingService<S>
where
    S: Service<http::Request<Body>, Response = http::Response<B>>,
    S::Future: Send + 'static,
    B: hyper::body::Body<Data = hyper::body::Bytes> + Send + 'static,
    B::Error: Into<tonic::codegen::StdError>,
{
    type Response = http::Response<Body>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Self::Response, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let open = request.extensions().get::<Peer>().map(|peer| peer.streams.open());
        let answer = self.0.call(request);
        async move {
            let answer = answer.await?;
            // Dropped with the body.
            let counted = move |body: B| {
                body.map_frame(move |frame| {
                    let _open = &open;
                    frame
                })
            };
            Ok(answer.map(|body| Body::new(counted(body))))
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use tokio_util::task::TaskTracker;

    use super::*;
    use crate::hub::metrics::HubMetrics;
    use crate::listen::addresses::Addresses;
    use crate::listen::connection_phase::WaitingConnections;

    const BOUNDS: StreamDeadlines =
        StreamDeadlines { first_request: Duration::from_secs(10), idle: Duration::from_secs(30) };

    /// A port at which so many connections may be without a stream.
    fn policy(without_stream_cap: usize) -> Arc<ConnectionPolicy> {
        Arc::new(ConnectionPolicy {
            metrics: HubMetrics::default(),
            cap: 10,
            addresses: Addresses::new(Default::default()),
            without_stream: Arc::default(),
            without_stream_cap,
            preface_wait: Duration::from_secs(10),
            bounds: BOUNDS,
            rest_port: None,
            close: CancellationToken::new(),
            tasks: TaskTracker::new(),
            log_limit: Default::default(),
        })
    }

    /// A connection that has just begun; it is watched until the token is cancelled.
    fn watched(policy: &Arc<ConnectionPolicy>) -> (Streams, CancellationToken, tokio::task::JoinHandle<()>) {
        let (streams, close) = (Streams::default(), CancellationToken::new());
        let caller = Caller::of([192, 0, 2, 1].into());
        let (turn, _) = WaitingConnections::enter_among(
            &policy.without_stream,
            policy.without_stream_cap,
            caller,
            &close,
        );
        let watched =
            tokio::spawn(watch_over(Arc::clone(policy), streams.clone(), close.clone(), (caller, turn)));
        (streams, close, watched)
    }

    fn closed_for(policy: &ConnectionPolicy, reason: &'static str) -> u64 {
        policy.metrics.connections_refused.get_or_create(&crate::hub::ReasonLabel { reason }).get()
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_a_request_is_closed_in_ten_seconds() {
        let policy = policy(9);
        let (_streams, close, watched) = watched(&policy);
        let since = tokio::time::Instant::now();
        watched.await.expect("no panic");
        assert_eq!((since.elapsed(), close.is_cancelled()), (BOUNDS.first_request, true));
        assert_eq!(closed_for(&policy, "no_request"), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_closed_thirty_seconds_after_its_last_stream() {
        let policy = policy(9);
        let (streams, close, watched) = watched(&policy);
        let (first, second) = (streams.open(), streams.open());
        tokio::time::sleep(Duration::from_secs(3600)).await;
        drop(first);
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert!(!close.is_cancelled(), "one is open");
        let since = tokio::time::Instant::now();
        drop(second);
        watched.await.expect("no panic");
        assert_eq!((since.elapsed(), closed_for(&policy, "idle")), (BOUNDS.idle, 1));
        assert!(close.is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn the_watch_ends_with_its_connection() {
        let policy = policy(9);
        let (streams, close, watched) = watched(&policy);
        let _open = streams.open();
        tokio::task::yield_now().await;
        close.cancel();
        watched.await.expect("no panic");
        assert_eq!(closed_for(&policy, "idle") + closed_for(&policy, "no_request"), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn among_too_many_connections_without_a_stream_the_longest_idle_is_closed_and_none_with_an_agent() {
        let policy = policy(2);
        let (agent, with_agent, _agent) = watched(&policy);
        let open = agent.open();
        tokio::task::yield_now().await;
        let (_idle, first, _first) = watched(&policy);
        let (_idle_too, second, _second) = watched(&policy);
        assert!(!first.is_cancelled() && !second.is_cancelled());
        // Its last stream ends: it is the third without one, and has been for the shortest time.
        drop(open);
        tokio::task::yield_now().await;
        assert!(first.is_cancelled() && !second.is_cancelled() && !with_agent.is_cancelled());
        assert_eq!(closed_for(&policy, "displaced"), 1);
    }
}
