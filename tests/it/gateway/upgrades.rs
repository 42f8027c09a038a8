//! Upgraded connections, through the pod proxy of the account's cluster to a server of the test's own.

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::place::{EVERYTHING, Place, kubectl};
use super::refusals::{connect, get};
use crate::world::{MAX_WAIT, address};
use kubesvc_testkit::must;
use kubesvc_testkit::wait::eventually;

/// A server that upgrades a connection and repeats what it is sent, in capitals.
async fn shouting() -> u16 {
    let listener = TcpListener::bind((address(), 0)).await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut head, mut byte) = (Vec::new(), [0]);
                while !head.ends_with(b"\r\n\r\n") && stream.read_exact(&mut byte).await.is_ok() {
                    head.push(byte[0]);
                }
                let answer =
                    "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
                let _ = stream.write_all(answer.as_bytes()).await;
                let mut part = [0; 1024];
                while let Ok(count @ 1..) = stream.read(&mut part).await {
                    let loud = part[..count].to_ascii_uppercase();
                    if stream.write_all(&loud).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    port
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_of_an_upgraded_connection_pass_both_ways() {
    let place = Place::start(false).await;
    let token = place.person("ann", EVERYTHING, Some("kubesvc")).await;
    let (port, direct) = (shouting().await, place.target.kubeconfig_path());
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "loud"},
        "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}});
    must(kubectl(&direct, &["create", "-f", "-"], &pod.to_string()).await.ok());
    let ip = address().to_string();
    let status = json!({"status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}]}}).to_string();
    let patch = ["patch", "pod", "loud", "--subresource=status", "--type=merge", "-p", &status];
    must(kubectl(&direct, &patch, "").await.ok());

    let mut stream = connect(&place, None).await;
    let path = format!("{}/api/v1/namespaces/default/pods/loud:{port}/proxy/x", place.path());
    let head = format!(
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nConnection: Upgrade\r\n\
         Upgrade: websocket\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.expect("written");
    let (mut answer, mut byte) = (Vec::new(), [0]);
    while !answer.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).await.expect("an answer");
        answer.push(byte[0]);
    }
    let answer = String::from_utf8_lossy(&answer).to_lowercase();
    assert!(answer.starts_with("http/1.1 101") && answer.contains("upgrade: websocket"), "{answer}");
    for word in ["hello", "again"] {
        stream.write_all(word.as_bytes()).await.expect("written");
        let mut loud = vec![0; word.len()];
        stream.read_exact(&mut loud).await.expect("an echo");
        assert_eq!(loud, word.to_uppercase().into_bytes());
    }
    let connections = async || place.world.operator().metric("kubesvc_gateway_connections").await;
    let open = connections().await;
    assert!(open.as_ref().is_ok_and(|open| *open >= 1), "an upgraded connection counts: {open:?}");
    stream.shutdown().await.expect("closed");
    drop(stream);
    eventually("its place is free again", MAX_WAIT, async || match connections().await? {
        0 => Ok(()),
        open => Err(format!("{open} are open")),
    })
    .await;
    let operations = place.operations_path();
    eventually("a record of the connection", MAX_WAIT, async || {
        let answered = get(&place, &operations, &token).await?;
        let kinds = answered.body.as_array().cloned().unwrap_or_default();
        let is_there = kinds.iter().any(|record| record["operationType"] == "Connect");
        if is_there { Ok(()) } else { Err(format!("{kinds:?}")) }
    })
    .await;
}
