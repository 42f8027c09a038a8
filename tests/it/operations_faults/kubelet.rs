//! What the API server of an account asks a kubelet for: logs, followed logs, exec and port-forward, through both doors.

mod server;

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;

use self::server::{Kubelet, POD};
use super::gate::connector;
use crate::gateway::place::{EVERYTHING, Place, kubectl};
use crate::world::MAX_WAIT;
use kubesvc_testkit::controlplane::kubectl_path;
use kubesvc_testkit::must;
use kubesvc_testkit::process::{Process, Streams};
use kubesvc_testkit::wait::eventually;

/// A door: how kubectl and others use it.
struct Door {
    name: &'static str,
    config: PathBuf,
    port: u16,
    authority: String,
    token: String,
}

async fn doors(place: &Place) -> Vec<Door> {
    let direct = place.person("ann", EVERYTHING, Some("kubesvc")).await;
    let usual = place.token("ann", None).await;
    let plane = place.world.control_plane();
    let port = plane.server_url().rsplit(':').next().and_then(|port| port.parse().ok());
    let doors = vec![
        Door {
            name: "direct",
            config: place.direct(&direct),
            port: place.port,
            authority: place.authority.clone(),
            token: direct,
        },
        Door {
            name: "aggregated",
            config: place.aggregated(&usual),
            port: port.expect("a URL with a port"),
            authority: plane.ca_pem(),
            token: usual,
        },
    ];
    for door in &doors {
        eventually("a door that is open", MAX_WAIT, async || {
            kubectl(&door.config, &["get", "--raw", "/version"], "").await.ok()
        })
        .await;
    }
    doors
}

/// Begins `kubectl logs -f`, which prints into the file.
fn follow(place: &Place, door: &Door, round: usize) -> (Process, PathBuf) {
    let mut command = Command::new(must(kubectl_path()));
    command.args(["logs", "-f", POD]).env("KUBECONFIG", &door.config);
    let file = |end: &str| place.world.folder().file(&format!("logs-{}-{round}.{end}", door.name));
    let output = file("out");
    let streams = Streams { input: None, output: Some(output.clone()), errors: file("err") };
    (must(Process::spawn_with("kubectl logs -f", &command, &streams)), output)
}

async fn until_printed(output: &Path, text: &str) {
    eventually(&format!("a log with {text:?}"), MAX_WAIT, async || {
        let printed = std::fs::read_to_string(output).unwrap_or_default();
        if printed.contains(text) { Ok(()) } else { Err(printed) }
    })
    .await;
}

/// Asks for an upgrade. Returns the head of the answer, and the connection.
async fn upgrade(door: &Door, path: &str, protocol: &str) -> Result<(String, TlsStream<TcpStream>), String> {
    let stream = TcpStream::connect(("127.0.0.1", door.port)).await.map_err(|e| e.to_string())?;
    let name = ServerName::try_from("localhost").expect("a name");
    let stream = connector(&door.authority).connect(name, stream).await;
    let mut stream = stream.map_err(|e| e.to_string())?;
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\nConnection: Upgrade\r\n\
         Upgrade: {protocol}\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\nContent-Length: 0\r\n\r\n",
        door.token
    );
    stream.write_all(head.as_bytes()).await.map_err(|e| e.to_string())?;
    let (mut answer, mut byte) = (Vec::new(), [0]);
    while !answer.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).await.map_err(|e| e.to_string())?;
        answer.push(byte[0]);
    }
    Ok((String::from_utf8_lossy(&answer).to_lowercase(), stream))
}

async fn shouts(door: &Door, path: &str) {
    let (head, mut stream) = must(upgrade(door, path, "SPDY/3.1").await);
    assert!(head.starts_with("http/1.1 101") && head.contains("upgrade: spdy/3.1"), "{}: {head}", door.name);
    let large = "many words, ".repeat(20_000);
    for word in ["hello", large.as_str(), "the end"] {
        let (mut reader, mut writer) = tokio::io::split(&mut stream);
        let mut loud = vec![0; word.len()];
        let (sent, read) = tokio::join!(writer.write_all(word.as_bytes()), reader.read_exact(&mut loud));
        assert!(sent.is_ok() && read.is_ok(), "{}: {path}: {sent:?} {read:?}", door.name);
        assert!(loud == word.to_uppercase().into_bytes(), "{}: {path}", door.name);
    }
    // The kubelet has ended it.
    let mut rest = Vec::new();
    let ended = tokio::time::timeout(MAX_WAIT, stream.read_to_end(&mut rest)).await;
    assert!(ended.is_ok() && rest.is_empty(), "{}: {path}: {ended:?}", door.name);
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_exec_and_port_forward_pass_through_both_doors_where_the_owner_allows_it() {
    let place = Place::start(true).await;
    let (kubelet, doors) = (Kubelet::start(&place.target).await, doors(&place).await);
    kubelet.say("first");
    kubelet.say("second");
    let pod = format!("{}/api/v1/namespaces/default/pods/{POD}", place.path());
    for (round, door) in doors.iter().enumerate() {
        let itself = kubectl(&place.target.kubeconfig_path(), &["logs", POD], "").await;
        let through = kubectl(&door.config, &["logs", POD], "").await;
        assert_eq!(through, itself, "{}", door.name);
        assert!(through.stdout.starts_with("first\nsecond\n"), "{through:?}");

        let (following, output) = follow(&place, door, round);
        until_printed(&output, "second").await;
        let later = format!("later {round}");
        kubelet.say(&later);
        until_printed(&output, &later).await;
        kubelet.end(true);
        assert!(must(following.wait(MAX_WAIT).await).success(), "a log that ended is whole");
        kubelet.end(false);

        shouts(door, &format!("{pod}/exec?command=sh&stdin=true&stdout=true&container=c")).await;
        shouts(door, &format!("{pod}/attach?stdin=true&stdout=true&container=c")).await;
        shouts(door, &format!("{pod}/portforward")).await;
    }
    // A log that is cut is none that ended.
    let (following, output) = follow(&place, &doors[0], doors.len());
    until_printed(&output, "later 1").await;
    place.agent.kill();
    let ended = must(following.wait(MAX_WAIT).await);
    assert!(!ended.success(), "kubectl ended with {ended} although the log was cut");

    // The owner takes it back: connections are refused in the owner's words, and logs go on.
    place.agent.set("kubernetes.requests.allow", json!(["read", "write"]));
    place.agent.launch();
    for door in &doors {
        eventually("logs as before", MAX_WAIT, async || kubectl(&door.config, &["logs", POD], "").await.ok())
            .await;
        let refused = kubectl(&door.config, &["exec", POD, "--", "sh"], "").await;
        assert_ne!(refused.code, Some(0), "{}", door.name);
        assert!(refused.stderr.contains("policy"), "{}: {refused:?}", door.name);
        for rest in ["exec?command=sh&stdout=true", "attach?stdout=true", "portforward"] {
            let (head, _) = must(upgrade(door, &format!("{pod}/{rest}"), "SPDY/3.1").await);
            assert!(head.starts_with("http/1.1 403"), "{}: {rest}: {head}", door.name);
        }
    }
}
