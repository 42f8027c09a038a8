//! One GET, as curl would send it.

use std::time::Duration;

use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// An answer.
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) body: String,
}

/// Gets a path from a server on this machine.
pub(crate) async fn get(port: u16, path: &str) -> Result<Answer, String> {
    let url = format!("http://127.0.0.1:{port}{path}");
    let answer = tokio::time::timeout(Duration::from_secs(10), send(port, path)).await;
    answer.map_err(|_| format!("GET {url}: no answer"))?.map_err(|why| format!("GET {url}: {why}"))
}

/// As [`get`], where only 200 is good.
pub(crate) async fn get_ok(port: u16, path: &str) -> Result<String, String> {
    let answer = get(port, path).await?;
    match answer.code {
        200 => Ok(answer.body),
        code => Err(format!("GET {path}: {code} {}", answer.body)),
    }
}

async fn send(port: u16, path: &str) -> Result<Answer, String> {
    let stream = TcpStream::connect(("127.0.0.1", port)).await.map_err(|e| e.to_string())?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|e| e.to_string())?;
    let connection = tokio::spawn(connection);
    let request = http::Request::get(path)
        .header(http::header::HOST, format!("127.0.0.1:{port}"))
        .body(Empty::<Bytes>::new())
        .map_err(|e| e.to_string())?;
    let response = sender.send_request(request).await.map_err(|e| e.to_string())?;
    let code = response.status().as_u16();
    let body = response.into_body().collect().await.map_err(|e| e.to_string())?.to_bytes();
    connection.abort();
    Ok(Answer { code, body: String::from_utf8_lossy(&body).into_owned() })
}
