//! The connection to the hub: what is set on its socket.

use std::error::Error;
use std::time::Duration;

use http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tower::{Service, ServiceExt as _};

/// Interval between TCP keep-alives of an idle connection.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum size of what the kernel takes and has not sent, in bytes: the frames of the session wait for no more than
/// that behind cached objects, which share the connection.
const MAX_UNSENT_BYTES: u32 = 128 * 1024;

/// Opens TCP connections to a hub.
pub(super) fn connector(
    connect_timeout: Duration,
) -> impl Service<Uri, Response = TokioIo<TcpStream>, Error: Error + Send + Sync + 'static, Future: Send>
+ Send
+ 'static {
    let mut connector = HttpConnector::new();
    // The scheme is the session's, plain or TLS.
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_keepalive(Some(KEEP_ALIVE_INTERVAL));
    connector.set_connect_timeout(Some(connect_timeout));
    connector.map_response(|stream: TokioIo<TcpStream>| {
        bound_unsent(stream.inner());
        stream
    })
}

#[cfg(target_os = "linux")]
fn bound_unsent(stream: &TcpStream) {
    if let Err(error) = socket2::SockRef::from(stream).set_tcp_notsent_lowat(MAX_UNSENT_BYTES) {
        tracing::debug!(%error, "cannot bound what the kernel takes of the connection to the hub");
    }
}

/// Elsewhere, the kernel decides.
#[cfg(not(target_os = "linux"))]
fn bound_unsent(_: &TcpStream) {}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn socket_takes_little_that_is_not_sent() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let uri: Uri = format!("http://{address}").parse().expect("a URI");
        let connecting = connector(Duration::from_secs(5)).oneshot(uri);
        let stream = connecting.await.expect("a connection");
        let socket = socket2::SockRef::from(stream.inner());
        assert_eq!(socket.tcp_notsent_lowat().expect("the option"), MAX_UNSENT_BYTES);
        assert!(socket.tcp_nodelay().expect("the option"));
    }
}
