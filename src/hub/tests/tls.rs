//! The port with TLS: handshakes that fail, or do not end, and clients that speak plain text.

use std::sync::Arc;
use std::time::Duration;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};

use crate::hub::metrics::ReasonLabel;
use crate::hub::tests::support::*;
use crate::hub::{HubSettings, ListenerSettings};
use kubesvc_core::wire::ops::{self, agent_frame};
use kubesvc_runtime::grpc::ops::operations_client::OperationsClient;
use kubesvc_runtime::tls::clients::ClientAuth;
use kubesvc_runtime::tls::identity::{ServingCertificate, TlsFiles, certified_key};
use kubesvc_runtime::tls::server::{ServerIdentity, ServerTls, ServerTlsSettings};
use kubesvc_testkit::certificates::{Identity, TestAuthority};

/// Time that a client has for its handshake.
const HANDSHAKE_WAIT: Duration = Duration::from_millis(500);

fn settings(identity: ServerIdentity) -> ServerTlsSettings {
    ServerTlsSettings {
        identity,
        client_auth: ClientAuth::None,
        authorities: None,
        revocation_lists: Vec::new(),
        protocols: Vec::new(),
        suites: Vec::new(),
        alpn: &[b"h2"],
    }
}

fn made(identity: Option<&Identity>) -> ServerIdentity {
    let made = ServingCertificate::default();
    if let Some((certificate, key)) = identity {
        made.set(certified_key(certificate.as_bytes(), key.as_bytes(), None).expect("they fit"));
    }
    ServerIdentity::Made(Arc::new(made))
}

async fn hub_with(
    tls: ServerTlsSettings,
    change: impl FnOnce(&mut ListenerSettings),
) -> (TestHub, Arc<ServerTls>) {
    let tls = Arc::new(ServerTls::read(tls).await.expect("it can be used"));
    let mut listener = ListenerSettings { tls: Some(Arc::clone(&tls)), ..Default::default() };
    change(&mut listener);
    (TestHub::with(HubSettings { listener, ..HubSettings::default() }).await, tls)
}

fn refused(hub: &TestHub, reason: &'static str) -> u64 {
    hub.hub.context.metrics.connections_refused.get_or_create(&ReasonLabel { reason }).get()
}

/// Connects an agent over TLS, with a certificate or without one.
async fn agent(hub: &TestHub, authority: &TestAuthority, shown: Option<&Identity>) -> Option<TestAgent> {
    let mut tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(authority.pem()))
        .domain_name("localhost");
    if let Some((certificate, key)) = shown {
        tls = tls.identity(tonic::transport::Identity::from_pem(certificate, key));
    }
    let endpoint = Endpoint::from_shared(format!("https://{}", hub.address)).expect("an address");
    let channel = endpoint.tls_config(tls).expect("a configuration").connect().await.ok()?;
    let mut client = OperationsClient::new(channel);
    let (frames, outgoing) = tokio::sync::mpsc::channel(16);
    let hello = agent_frame::Frame::Hello(hello("a"));
    frames.send(ops::AgentFrame { frame: Some(hello), seq: 1, ack: 0 }).await.expect("there is room");
    let answers = client.get_ops(tokio_stream::wrappers::ReceiverStream::new(outgoing)).await.ok()?;
    let mut agent = TestAgent { frames: Some(frames), answers: answers.into_inner() };
    agent.next().await.ok().flatten().map(|_| agent)
}

#[tokio::test]
async fn a_handshake_that_does_not_end_is_closed_in_time_and_keeps_nobody_out() {
    let authority = TestAuthority::new("ca");
    let (hub, _) = hub_with(settings(made(Some(&authority.server()))), |listener| {
        (listener.preface_wait, listener.without_stream_cap) = (HANDSHAKE_WAIT, 4);
    })
    .await;
    let since = tokio::time::Instant::now();
    let open = |bytes: &'static [u8]| async move {
        let mut stream = TcpStream::connect(hub.address).await.expect("the hub listens");
        let _ = stream.write_all(bytes).await;
        let mut answer = Vec::new();
        let read = stream.read_to_end(&mut answer);
        assert!(tokio::time::timeout(HANDSHAKE_WAIT * 10, read).await.is_ok(), "{bytes:?}");
    };
    let half_open = futures::future::join_all((0..20).map(|_| open(&[0x16, 3, 1, 2, 0, 1])));
    let (_, (), good) = tokio::join!(half_open, open(b""), async {
        tokio::time::sleep(HANDSHAKE_WAIT / 4).await;
        agent(&hub, &authority, None).await
    });
    assert!(good.is_some(), "the longest waiting one made room for it");
    assert!(since.elapsed() >= HANDSHAKE_WAIT);
    let (late, silent) = (refused(&hub, "handshake"), refused(&hub, "silent"));
    assert_eq!(late + silent + refused(&hub, "displaced"), 21);
    assert!(late > 0 && late + silent <= 4, "{late} {silent}");
}

#[tokio::test]
async fn plain_text_and_clients_without_a_certificate_yet_are_turned_away() {
    let authority = TestAuthority::new("ca");
    let (hub, _) = hub_with(settings(made(None)), |listener| listener.rest_port = Some(7002)).await;
    let exchange = async |bytes: &[u8]| {
        let mut stream = TcpStream::connect(hub.address).await.expect("the hub listens");
        let _ = stream.write_all(bytes).await;
        let mut answer = Vec::new();
        let read = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut answer)).await;
        assert!(read.is_ok(), "it is not closed");
        String::from_utf8_lossy(&answer).into_owned()
    };
    let answer = exchange(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 505 "), "{answer}");
    assert!(answer.contains("HTTP/2 with TLS; REST is on port 7002"), "{answer}");
    assert_eq!(exchange(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await, "");
    assert_eq!(exchange(b"SSH-2.0-OpenSSH_9.6\r\n").await, "");
    assert!(agent(&hub, &authority, None).await.is_none(), "there is no certificate yet");
    assert_eq!(["plaintext", "other", "handshake"].map(|reason| refused(&hub, reason)), [2, 1, 1]);
}

#[tokio::test]
async fn http1_within_tls_is_answered() {
    let authority = TestAuthority::new("ca");
    let (hub, _) = hub_with(settings(made(Some(&authority.server()))), |_| {}).await;
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(authority.pem().as_bytes()).expect("PEM"))
        .expect("an authority");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let client = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let client = client.expect("versions").with_root_certificates(roots).with_no_client_auth();
    let stream = TcpStream::connect(hub.address).await.expect("the hub listens");
    let name = ServerName::try_from("localhost").expect("a name");
    let mut stream = TlsConnector::from(Arc::new(client)).connect(name, stream).await.expect("a handshake");
    stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.expect("written");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.expect("the end");
    assert!(String::from_utf8_lossy(&answer).starts_with("HTTP/1.1 505 "));
    assert_eq!(refused(&hub, "http1"), 1);
}

#[tokio::test]
async fn connections_whose_certificate_is_revoked_are_cut_and_others_stay() {
    let authority = TestAuthority::new("ca");
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("written");
        path
    };
    let (certificate, key) = authority.server();
    let files = TlsFiles { certificate: write("c", &certificate), key: write("k", &key), password: None };
    let settings = ServerTlsSettings {
        client_auth: ClientAuth::Optional,
        authorities: Some(write("ca", authority.pem())),
        revocation_lists: vec![write("crl", &authority.revoking(&[]))],
        ..settings(ServerIdentity::Files(files))
    };
    let (hub, tls) = hub_with(settings, |_| {}).await;
    let mut revoked = agent(&hub, &authority, Some(&authority.client(7))).await.expect("it is accepted");
    write("crl", &authority.revoking(&[7]));
    assert!(tls.refresh().await.expect("it can be used"));
    while revoked.next().await.is_ok_and(|frame| frame.is_some()) {}
    assert_eq!(refused(&hub, "certificate"), 1);
    assert!(agent(&hub, &authority, Some(&authority.client(7))).await.is_none());
    let mut without = agent(&hub, &authority, None).await.expect("none is needed");
    write("crl", &authority.revoking(&[8]));
    assert!(tls.refresh().await.expect("it can be used"));
    let stays = tokio::time::timeout(Duration::from_millis(300), without.next()).await;
    assert!(stays.is_err(), "a client without a certificate has none that is revoked");
}
