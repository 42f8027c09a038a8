//! TLS on the port for agents: which certificates are shown and accepted, and what becomes of open streams when files change.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::DeleteParams;
use kubesvc_core::wire::ops::{self, agent_frame, hub_frame};
use kubesvc_runtime::crash_points::POINTS;
use kubesvc_runtime::grpc::ops::operations_client::OperationsClient;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};

use crate::faults::resident_kib;
use crate::world::{Database, MAX_WAIT, Operator, Prepare, World};
use kubesvc_testkit::certificates::{Identity, MountedFiles, TestAuthority};
use kubesvc_testkit::folder::Folder;
use kubesvc_testkit::must;
use kubesvc_testkit::wait::eventually;

const SECURITY: &str = "kubesvc.grpc.server.security";
/// Serial numbers of two agents.
const KEPT: u64 = 2;
const REVOKED: u64 = 7;
/// Time within which a changed file is seen, with `reloadSeconds: 1`, and what follows has happened.
const SEEN: Duration = Duration::from_secs(5);

/// A world whose hub has TLS, with these settings.
fn prepare(settings: &[(&str, Value)]) -> Prepare {
    let prepared = World::prepare()
        .setting(&format!("{SECURITY}.enabled"), true)
        .setting(&format!("{SECURITY}.reloadSeconds"), 1);
    settings.iter().fold(prepared, |prepared, (key, value)| {
        prepared.setting(&format!("{SECURITY}.{key}"), value.clone())
    })
}

/// A stream of an agent that the hub has accepted.
struct Agent {
    _frames: mpsc::Sender<ops::AgentFrame>,
    answers: Streaming<ops::HubFrame>,
}

impl Agent {
    /// Connects with this authority of the hub, and a certificate or none.
    async fn connect(
        hub: &Operator,
        authority: &str,
        identity: Option<&Identity>,
        name: &str,
    ) -> Result<Self, String> {
        let mut tls =
            ClientTlsConfig::new().ca_certificate(Certificate::from_pem(authority)).domain_name("localhost");
        if let Some((certificate, key)) = identity {
            tls = tls.identity(tonic::transport::Identity::from_pem(certificate, key));
        }
        let endpoint = Endpoint::from_shared(format!("https://127.0.0.1:{}", hub.hub_port()));
        let endpoint =
            endpoint.and_then(|endpoint| endpoint.tls_config(tls)).map_err(|e| format!("{e:?}"))?;
        let channel = endpoint.connect().await.map_err(|e| format!("{e:?}"))?;
        let mut client = OperationsClient::new(channel);
        let (frames, outgoing) = mpsc::channel(4);
        let hello = agent_frame::Frame::Hello(hello(name));
        let first = ops::AgentFrame { frame: Some(hello), seq: 1, ack: 0 };
        frames.send(first).await.map_err(|e| e.to_string())?;
        let answers = client.get_ops(ReceiverStream::new(outgoing)).await.map_err(|e| format!("{e:?}"))?;
        let mut agent = Self { _frames: frames, answers: answers.into_inner() };
        match agent.answers.message().await.map_err(|e| format!("{e:?}"))?.and_then(|answer| answer.frame) {
            Some(hub_frame::Frame::Accepted(_)) => Ok(agent),
            other => Err(format!("{other:?}")),
        }
    }

    /// Waits for the end of the stream.
    async fn ended(&mut self) {
        while let Ok(Some(_)) = self.answers.message().await {}
    }

    /// Whether the stream is open.
    async fn is_open(&mut self) -> bool {
        tokio::time::timeout(Duration::from_millis(200), self.ended()).await.is_err()
    }
}

fn hello(agent_id: &str) -> ops::Hello {
    ops::Hello {
        agent_id: agent_id.to_owned(),
        boot_id: ulid::Ulid::generate().to_string(),
        connect_seq: 1,
        zone_id: "east".to_owned(),
        version: "0.0.0".to_owned(),
        protocol_min: 1,
        protocol_max: 1,
        ..ops::Hello::default()
    }
}

/// Shakes hands as a client that allows this.
async fn shake(
    hub: &Operator,
    authority: &str,
    config: Option<ClientConfig>,
) -> Result<TlsStream<TcpStream>, String> {
    let config = config.unwrap_or_else(|| client(authority, rustls::crypto::ring::default_provider()));
    let stream = TcpStream::connect(("127.0.0.1", hub.hub_port())).await.map_err(|e| e.to_string())?;
    let name = ServerName::try_from("localhost").expect("a name");
    TlsConnector::from(Arc::new(config)).connect(name, stream).await.map_err(|e| e.to_string())
}

fn client(authority: &str, provider: rustls::crypto::CryptoProvider) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    for one in CertificateDer::pem_slice_iter(authority.as_bytes()) {
        roots.add(one.expect("PEM")).expect("an authority");
    }
    let config =
        ClientConfig::builder_with_provider(Arc::new(provider)).with_safe_default_protocol_versions();
    let mut config = config.expect("versions").with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    config
}

/// The certificate that the hub shows.
async fn shown(hub: &Operator, authority: &str) -> Result<CertificateDer<'static>, String> {
    let stream = shake(hub, authority, None).await?;
    let chain = stream.get_ref().1.peer_certificates().ok_or("no certificate")?;
    chain.first().map(|leaf| leaf.clone().into_owned()).ok_or_else(|| "no certificate".to_owned())
}

/// SHA-256 of a certificate, as the log has it.
fn fingerprint(identity: &Identity) -> String {
    let digest = Sha256::digest(leaf(identity));
    digest.iter().map(|byte| format!("{byte:02X}")).collect::<Vec<_>>().join(":")
}

fn leaf(identity: &Identity) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(identity.0.as_bytes()).expect("a certificate")
}

/// What the operator has counted under this reason.
async fn refused(world: &World, reason: &str) -> u64 {
    let text = world.get("/metrics").await.to_string();
    let line = format!("kubesvc_hub_connections_refused_total{{reason=\"{reason}\"}} ");
    text.lines().find_map(|text| text.strip_prefix(&line)?.trim().parse().ok()).unwrap_or_default()
}

async fn until_logged(hub: &Operator, text: &str) {
    eventually(&format!("a line with {text:?}"), SEEN, async || {
        if hub.log_text().contains(text) { Ok(()) } else { Err("there is none".to_owned()) }
    })
    .await;
}

#[test]
fn files_that_cannot_be_used_end_the_start_with_exit_code_2() {
    let folder = must(Folder::new("hub-tls"));
    let write = |name: &str, text: &[u8]| {
        let path = folder.path().join(name);
        must(
            std::fs::File::create(&path).and_then(|mut file| file.write_all(text)).map_err(|e| e.to_string()),
        );
        path.display().to_string()
    };
    let authority = TestAuthority::new("ca");
    let (good, other) = (authority.server(), authority.server());
    let (certificate, key) = (write("tls.crt", good.0.as_bytes()), write("tls.key", good.1.as_bytes()));
    let expired = authority.expired_server();
    let (old, old_key) = (write("old.crt", expired.0.as_bytes()), write("old.key", expired.1.as_bytes()));
    let other_key = write("other.key", other.1.as_bytes());
    let jks = write("store.jks", &[0xfe, 0xed, 0xfe, 0xed, 0, 0, 0, 2]);
    let p12 = write("store.p12", &[0x30, 0x82, 0x09, 0x41, 2, 1, 3]);
    let cut = write("cut.pem", &authority.pem().as_bytes()[..200]);
    let encrypted = include_str!("../../crates/runtime/src/tls/testdata/pbes2.pem");
    let encrypted = write("encrypted.key", encrypted.as_bytes());
    let missing = folder.path().join("missing").display().to_string();
    let clients = |file: &str| json!({"clientAuth": "REQUIRE", "trustCertCollection": file});
    let with = |more: Value| {
        let mut settings = json!({"enabled": true, "certificateChain": certificate, "privateKey": key});
        for (key, value) in more.as_object().expect("a group") {
            settings[key] = value.clone();
        }
        settings
    };
    for (settings, setting, remedy) in [
        (with(json!({"certificateChain": missing})), "certificateChain", "missing: No such file"),
        (with(json!({"privateKey": missing})), "privateKey", "missing: No such file"),
        (with(json!({"certificateChain": jks})), "certificateChain", "openssl pkcs12 -in STORE"),
        (with(json!({"privateKey": p12})), "privateKey", "openssl pkcs12 -in STORE"),
        (with(json!({"privateKey": other_key})), "certificateChain", "cannot be used with the certificate"),
        (with(json!({"certificateChain": old, "privateKey": old_key})), "certificateChain", "expired at"),
        (with(json!({"privateKey": encrypted})), "privateKeyPassword", "no password is set"),
        (
            with(json!({"privateKey": encrypted, "privateKeyPassword": "hunter2"})),
            "privateKeyPassword",
            "the password does not open",
        ),
        (with(clients(&p12)), "trustCertCollection", "openssl pkcs12 -in STORE"),
        (with(clients(&cut)), "trustCertCollection", "damaged"),
        (
            with(
                json!({"clientAuth": "REQUIRE", "trustCertCollection": certificate, "crlFiles": [certificate]}),
            ),
            "crlFiles",
            "no revocation list",
        ),
    ] {
        let text = json!({ "kubesvc": {"grpc": {"server": {"security": settings}}} }).to_string();
        let file = must(folder.write("kubesvc.yml", &text));
        let mut command = Command::new(env!("CARGO_BIN_EXE_kubesvc-operator"));
        command.arg("--config").arg(&file).args(["--kubeconfig", "/nowhere"]).stdin(Stdio::null());
        let ended = command.output().expect("the program was built");
        let errors = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(2), "{settings}: {errors}");
        assert!(errors.contains(&format!("{SECURITY}.{setting}` cannot")), "{settings}: {errors}");
        assert!(errors.contains(remedy) && !errors.contains("hunter2"), "{remedy}: {errors}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_agents_with_an_accepted_certificate_come_in_and_a_revoked_one_is_cut() {
    let (authority, foreign) = (TestAuthority::new("agents"), TestAuthority::new("strangers"));
    let folder = must(Folder::new("hub-tls"));
    let (server, none, one) = (authority.server(), authority.revoking(&[]), authority.revoking(&[REVOKED]));
    let first = with_clients(&server, &authority, &none);
    let mounted = MountedFiles::new(&folder.path().join("tls"), &first);
    let swap = |list: &str| mounted.swap(&with_clients(&server, &authority, list));
    let path = |name: &str| json!(mounted.path(name));
    let world = prepare(&[
        ("certificateChain", path("tls.crt")),
        ("privateKey", json!(format!("file:{}", mounted.path("tls.key").display()))),
        ("clientAuth", json!("REQUIRE")),
        ("trustCertCollection", path("ca.crt")),
        ("crlFiles", json!([mounted.path("crl.pem")])),
    ])
    .start()
    .await;
    let hub = world.operator();
    let connect = async |identity: Option<&Identity>, name: &str| {
        Agent::connect(hub, authority.pem(), identity, name).await
    };
    for (who, identity, said) in [
        ("nobody", None, "the client shows no certificate"),
        ("stranger", Some(foreign.client(1)), "its authority is not trusted"),
        ("late", Some(authority.expired_client()), "it has expired"),
        ("server", Some(authority.server()), "it is not for clients"),
    ] {
        // Each as another address would be said; from one, a line a minute is logged.
        let before = refused(&world, "handshake").await;
        assert!(connect(identity.as_ref(), who).await.is_err(), "{who}");
        eventually("a counted handshake", SEEN, async || {
            if refused(&world, "handshake").await > before { Ok(()) } else { Err(said.to_owned()) }
        })
        .await;
    }
    until_logged(hub, "the TLS handshake failed: the client shows no certificate").await;
    let of_kept = authority.client(KEPT);
    let mut kept = must(connect(Some(&of_kept), "kept").await);
    let mut revoked = must(connect(Some(&authority.client(REVOKED)), "revoked").await);
    until_logged(hub, &fingerprint(&of_kept)).await;

    swap(&one);
    let since = Instant::now();
    must(tokio::time::timeout(SEEN, revoked.ended()).await.map_err(|_| "it is not cut".to_owned()));
    assert!(since.elapsed() < Duration::from_millis(3500), "{:?}", since.elapsed());
    assert!(kept.is_open().await, "another agent stays");
    until_logged(hub, "it is revoked").await;
    assert_eq!(refused(&world, "certificate").await, 1);
    assert!(connect(Some(&authority.client(REVOKED)), "revoked").await.is_err());
    // A list that is cut off changes nothing.
    swap(&one[..one.len() / 2]);
    until_failed(&world).await;
    assert!(connect(Some(&authority.client(REVOKED)), "revoked").await.is_err());
    let mut again = must(connect(Some(&authority.client(9)), "again").await);
    swap(&none);
    eventually("an agent whose certificate is not revoked any more", SEEN, async || {
        connect(Some(&authority.client(REVOKED)), "revoked").await.map(drop)
    })
    .await;
    assert!(kept.is_open().await && again.is_open().await);
}

/// A certificate of the hub, and what agents are verified with.
fn with_clients<'a>(
    (certificate, key): &'a Identity,
    authority: &'a TestAuthority,
    list: &'a str,
) -> [(&'static str, &'a str); 4] {
    [("tls.crt", certificate), ("tls.key", key), ("ca.crt", authority.pem()), ("crl.pem", list)]
}

/// Waits until the task that reads the files has failed.
async fn until_failed(world: &World) {
    eventually("a failed task", SEEN, async || {
        let answer = world.try_get("/health/tasks").await?;
        let task = answer.json.as_array().into_iter().flatten().find(|task| task["name"] == "hub TLS files");
        let error = task.and_then(|task| task["activity"]["lastError"].as_str().map(str::to_owned));
        if error.is_some_and(|error| error.contains("stay in use")) {
            Ok(())
        } else {
            Err(answer.to_string())
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_certificate_is_shown_while_streams_stay_and_only_tls_gets_in() {
    let authority = TestAuthority::new("hub");
    let folder = must(Folder::new("hub-tls"));
    let (first, second) = (authority.server(), authority.server());
    let initial = [("tls.crt", first.0.as_str()), ("tls.key", first.1.as_str())];
    let mounted = MountedFiles::new(&folder.path().join("tls"), &initial);
    let settings = [
        ("certificateChain", json!(mounted.path("tls.crt"))),
        ("privateKey", json!(mounted.path("tls.key"))),
    ];
    let world = prepare(&settings).start().await;
    let hub = world.operator();
    let metrics = world.get("/metrics").await.to_string();
    assert!(metrics.contains("kubesvc_certificate_not_after_seconds{use=\"hub\",name=\""), "{metrics}");
    assert!(metrics.contains("kubesvc_security_open{door=\"hub-plaintext\"} 0"), "{metrics}");

    let mut agent = must(Agent::connect(hub, authority.pem(), None, "agent-1").await);
    assert!(Agent::connect(hub, TestAuthority::new("other").pem(), None, "agent-2").await.is_err());
    assert_eq!(shown(hub, authority.pem()).await, Ok(leaf(&first)));
    // Half written: the certificate is another one, its key is not there yet.
    mounted.swap(&[("tls.crt", &second.0), ("tls.key", &first.1)]);
    until_failed(&world).await;
    assert_eq!(shown(hub, authority.pem()).await, Ok(leaf(&first)));
    mounted.swap(&[("tls.crt", &second.0), ("tls.key", &second.1)]);
    eventually("the next certificate", SEEN, async || {
        let shown = shown(hub, authority.pem()).await?;
        if shown == leaf(&second) { Ok(()) } else { Err("the former one is shown".to_owned()) }
    })
    .await;
    assert!(agent.is_open().await, "an open stream stays");

    let exchange = async |bytes: &[u8]| {
        let mut stream = TcpStream::connect(("127.0.0.1", hub.hub_port())).await.expect("the hub listens");
        let _ = stream.write_all(bytes).await;
        let mut answer = Vec::new();
        let read = tokio::time::timeout(Duration::from_secs(8), stream.read_to_end(&mut answer)).await;
        assert!(read.is_ok(), "it is not closed after {bytes:?}");
        answer
    };
    let answer = exchange(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    assert!(answer.starts_with("HTTP/1.1 505 ") && answer.contains("gRPC over HTTP/2 with TLS"), "{answer}");
    assert!(exchange(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.is_empty());
    until_logged(hub, "it speaks plain text, and this port has TLS alone").await;
    assert_eq!(refused(&world, "plaintext").await, 2);
    // A record of more than 2^14 bytes, one of a version that does not exist, and a ClientHello of TLS 1.1.
    let before = refused(&world, "handshake").await;
    for broken in [&[0x16, 3, 1, 0xff, 0xff, 1][..], &[0x16, 9, 9, 0, 1, 1], &client_hello(&[3, 2])] {
        // A fatal alert, if anything.
        let answer = exchange(broken).await;
        assert!(answer.is_empty() || answer.starts_with(&[0x15]), "{answer:?}");
    }
    let mut provider = rustls::crypto::ring::default_provider();
    provider
        .cipher_suites
        .retain(|suite| suite.suite() == rustls::CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256);
    let no_suite = shake(hub, authority.pem(), Some(client(authority.pem(), provider))).await;
    assert!(no_suite.is_err(), "the hub's key is ECDSA");
    let mut http1 = client(authority.pem(), rustls::crypto::ring::default_provider());
    http1.alpn_protocols = vec![b"http/1.1".to_vec()];
    assert!(shake(hub, authority.pem(), Some(http1)).await.is_err(), "ALPN has h2 alone");
    eventually("four counted handshakes", SEEN, async || {
        let counted = refused(&world, "handshake").await - before;
        if counted >= 4 { Ok(()) } else { Err(counted.to_string()) }
    })
    .await;
    assert!(agent.is_open().await);
}

/// A ClientHello of this version without extensions.
fn client_hello(version: &[u8; 2]) -> Vec<u8> {
    let body = [&version[..], &[7; 32], &[0, 0, 2, 0xc0, 0x09, 1, 0]].concat();
    let length = u8::try_from(body.len()).expect("it is short");
    [&[0x16, 3, 1, 0, length + 4, 1, 0, 0, length][..], &body].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn half_open_handshakes_keep_no_good_client_out_and_end_in_time() {
    let authority = TestAuthority::new("hub");
    let folder = must(Folder::new("hub-tls"));
    let server = authority.server();
    let file = |name: &str, text: &str| json!(must(folder.write(name, text)));
    let settings =
        [("certificateChain", file("tls.crt", &server.0)), ("privateKey", file("tls.key", &server.1))];
    let world = prepare(&settings).start().await;
    let hub = world.operator();
    let memory = resident_kib(hub.id());
    // They say that a ClientHello of 512 bytes begins.
    let half_open = join_all((0..2000).map(async |_| {
        let mut stream = TcpStream::connect(("127.0.0.1", hub.hub_port())).await.ok()?;
        stream.write_all(&[0x16, 3, 1, 2, 0, 1, 0]).await.ok()?;
        Some(stream)
    }))
    .await;
    assert!(half_open.iter().flatten().count() > 1900);
    let mut slow = TcpStream::connect(("127.0.0.1", hub.hub_port())).await.expect("the hub listens");
    let dribbled = tokio::spawn(async move {
        let since = Instant::now();
        for byte in [0x16, 3, 1, 2, 0].into_iter().chain(std::iter::repeat(0)) {
            let mut answer = [0; 1];
            let paused = tokio::time::timeout(Duration::from_millis(100), slow.read(&mut answer)).await;
            if paused.is_ok() || slow.write_all(&[byte]).await.is_err() {
                break;
            }
        }
        since.elapsed()
    });
    for number in 0..5 {
        let name = format!("agent-{number}");
        let connect = Agent::connect(hub, authority.pem(), None, &name);
        let connected = tokio::time::timeout(Duration::from_secs(10), connect).await;
        let mut agent = must(must(connected.map_err(|_| "it takes too long".to_owned())));
        assert!(agent.is_open().await);
    }
    let grown = resident_kib(hub.id()).saturating_sub(memory);
    assert!(grown < 64 * 1024, "the operator grew by {grown} KiB");
    let took = dribbled.await.expect("no panic");
    assert!(took > Duration::from_secs(8) && took < Duration::from_secs(15), "{took:?}");
    eventually("the end of all half-open connections", Duration::from_secs(15), async || {
        let text = world.get("/metrics").await.to_string();
        let line = "kubesvc_hub_connections_refused_total{reason=\"handshake\"} ";
        let late =
            text.lines().find_map(|text| text.strip_prefix(line)?.parse::<u64>().ok()).unwrap_or_default();
        let displaced = refused(&world, "displaced").await;
        if late + displaced >= 1900 && displaced > 0 { Ok(()) } else { Err(format!("{late} {displaced}")) }
    })
    .await;
    until_logged(hub, "whose TLS handshake takes too long").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operator_makes_a_certificate_that_all_replicas_show() {
    let world = prepare(&[("ownCertificate", json!(true))]).database(Database::MariaDb).start().await;
    let hub = world.operator();
    let told = async || {
        let object = world.api::<ConfigMap>().get("kubesvc-hub-ca").await.map_err(|e| e.to_string())?;
        object.data.unwrap_or_default().remove("ca.crt").ok_or_else(|| "it has no ca.crt".to_owned())
    };
    let authority = eventually("a ConfigMap for agents", MAX_WAIT, told).await;
    let secret = must(world.api::<Secret>().get("kubesvc-hub").await.map_err(|e| e.to_string()));
    let data = secret.data.unwrap_or_default();
    let keys: Vec<_> = data.keys().map(String::as_str).collect();
    assert_eq!(keys, ["ca.crt", "ca.key", "tls.crt", "tls.key"]);
    assert_eq!(data["ca.crt"].0, authority.as_bytes());
    must(Agent::connect(hub, &authority, None, "agent-1").await);

    let second = world.replica("operator-1").await;
    eventually("the same certificate at another replica", MAX_WAIT, async || {
        let [here, there] = [shown(hub, &authority).await?, shown(&second, &authority).await?];
        if here == there { Ok(()) } else { Err("it shows another one".to_owned()) }
    })
    .await;
    must(Agent::connect(&second, &authority, None, "agent-2").await);
    let metrics = world.get("/metrics").await.to_string();
    assert!(metrics.contains("{use=\"hub\",name=\"kubesvc-hub\"}"), "{metrics}");
    second.kill();

    for point in POINTS.iter().filter(|point| point.starts_with("hub-")) {
        hub.kill();
        // A new authority, which agents have to be told.
        let deleted = world.api::<Secret>().delete("kubesvc-hub", &DeleteParams::default()).await;
        must(deleted.map_err(|e| e.to_string()));
        hub.launch_with(&[("KUBESVC_CRASH_AT", point)]);
        must(hub.ended(MAX_WAIT).await.map_err(|why| format!("{point}: {why}")));
        hub.start().await;
        eventually(&format!("an authority with which agents get in after {point}"), MAX_WAIT, async || {
            Agent::connect(hub, &told().await?, None, "agent-1").await.map(drop)
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_agents_whose_subject_a_filter_matches_come_in() {
    let authority = TestAuthority::new("hub");
    let folder = must(Folder::new("hub-tls"));
    let server = authority.server();
    let file = |name: &str, text: &str| json!(must(folder.write(name, text)));
    let world = prepare(&[
        ("certificateChain", file("tls.crt", &server.0)),
        ("privateKey", file("tls.key", &server.1)),
        ("clientAuth", json!("OPTIONAL")),
        ("trustCertCollection", file("ca.crt", authority.pem())),
    ])
    .setting("kubesvc.grpc.auth.x509.enabled", true)
    .setting("kubesvc.grpc.auth.x509.filters", json!(["^CN=agent-[a-z]+,O=acme$"]))
    .start()
    .await;
    let hub = world.operator();
    let connect =
        async |identity: Option<&Identity>| Agent::connect(hub, authority.pem(), identity, "agent-1").await;
    let let_in = authority.client_named("agent-east", "acme");
    let mut agent = must(connect(Some(&let_in)).await);
    for (identity, code) in [
        (None, "Unauthenticated"),
        (Some(authority.client_named("agent-east", "other")), "PermissionDenied"),
        (Some(authority.client_named("agent-east,O=acme", "other")), "PermissionDenied"),
        (Some(authority.client_named("agent-9", "acme")), "PermissionDenied"),
    ] {
        let refused = connect(identity.as_ref()).await.map(drop).expect_err("it is kept out");
        assert!(refused.contains(code) && !refused.contains("x509"), "{refused}");
    }
    until_logged(hub, "no filter of kubesvc.grpc.auth.x509.filters matches \"CN=agent-east,O=other\"").await;
    assert_eq!((refused(&world, "subject").await, refused(&world, "no_certificate").await), (3, 1));
    assert!(agent.is_open().await);
}
