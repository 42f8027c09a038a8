//! TLS to the hub: what a failed connection says, and how a new client certificate takes over.

use rcgen::{ExtendedKeyUsagePurpose, SerialNumber};
use rustls::AlertDescription;
use tokio::net::TcpListener;

use super::*;
use crate::link::dial::Introduction;
use crate::link::transport::remedy_of_alert;
use crate::settings::{DialTlsSettings, IdentitySettings, ServerSslSettings};
use crate::tls::DialTls;
use crate::tls::tests::Place;
use kubesvc_core::wire::ops::Accepted;
use kubesvc_runtime::tls::clients::ClientAuth;
use kubesvc_runtime::tls::server::{ServerTls, ServerTlsSettings};

async fn secure(settings: ServerTlsSettings) -> FakeHub {
    FakeHub::secure(Arc::new(ServerTls::read(settings).await.expect("TLS of the hub"))).await
}

/// Options of an agent that dials with these settings; `None`: without TLS.
fn options(hub: String, tls: Option<DialTlsSettings>) -> AgentOptions {
    let mut options = AgentOptions::of_test(hub);
    options.settings.hub.insecure = tls.is_none();
    options.settings.hub.tls = tls.unwrap_or_default();
    options
}

/// Dials, and says hello. Returns why that fails; the hub accepts nothing within the time of a test.
async fn problem(address: String, settings: Option<DialTlsSettings>) -> String {
    let options = options(address, settings.clone());
    let tls = match settings {
        Some(settings) => Some(Arc::new(DialTls::read(settings).await.expect("TLS of the agent"))),
        None => None,
    };
    let dialer = HubDialer::new(&options, HubCredentials { tls, token: None }).expect("a hub");
    let hub = match dialer.channel().await {
        Ok(hub) => hub,
        Err(error) => return chain(&error),
    };
    let mut introduction = Introduction::new(options, Ulid::generate().to_string());
    match timeout(Duration::from_secs(1), dial::greet(hub, introduction.hello(Vec::new()))).await {
        Ok(Err(LinkEnd::Broken(problem))) => problem,
        Ok(other) => panic!("{other:?}"),
        Err(_) => "none".to_owned(),
    }
}

#[tokio::test]
async fn a_hub_with_a_certificate_that_is_trusted_is_dialled() {
    let place = Place::new();
    let hub = secure(place.server(&["127.0.0.1"], ClientAuth::None)).await;
    assert_eq!(problem(hub.address.to_string(), Some(place.trusting())).await, "none");
    let any = DialTlsSettings { insecure_skip_verify: true, ..DialTlsSettings::default() };
    assert_eq!(problem(hub.address.to_string(), Some(any)).await, "none");
}

#[tokio::test]
async fn an_unknown_issuer_of_the_hub_names_cacert_file() {
    let place = Place::new();
    let hub = secure(place.server(&["127.0.0.1"], ClientAuth::None)).await;
    let (stranger, namesake) = (Place::new(), place.namesake());
    for (authority, why) in [(stranger, "UnknownIssuer"), (namesake, "BadSignature")] {
        let other = problem(hub.address.to_string(), Some(authority.trusting())).await;
        assert!(other.contains("no authority in clouddriver.tls.cacertFile has signed"), "{other}");
        assert!(other.contains(&hub.address.to_string()) && other.contains(why), "{other}");
    }
    let system = problem(hub.address.to_string(), Some(DialTlsSettings::default())).await;
    assert!(system.contains("clouddriver.tls.cacertFile"), "{system}");
}

#[tokio::test]
async fn other_names_of_the_hub_name_server_name_which_replaces_its_host() {
    let place = Place::new();
    let hub = secure(place.server(&["hub.example.com"], ClientAuth::None)).await;
    let other = problem(hub.address.to_string(), Some(place.trusting())).await;
    assert!(other.contains("set clouddriver.tls.serverName"), "{other}");
    let named = DialTlsSettings { server_name: Some("hub.example.com".to_owned()), ..place.trusting() };
    assert_eq!(problem(hub.address.to_string(), Some(named)).await, "none");
}

#[tokio::test]
async fn a_hub_without_tls_names_insecure() {
    let hub = FakeHub::start().await;
    let plain = problem(hub.address.to_string(), Some(Place::new().trusting())).await;
    assert!(plain.contains("clouddriver.insecure: true"), "{plain}");
    // One that closes the connection, and one that is no hub.
    for answer in ["", "HTTP/1.1 400 Bad Request\r\n\r\n"] {
        let address = answering(answer).await;
        let closed = problem(address.clone(), Some(Place::new().trusting())).await;
        assert!(closed.contains("clouddriver.insecure: true"), "{closed}");
        let plain = problem(address, None).await;
        assert!(plain.contains("clouddriver.insecure"), "{plain}");
    }
}

/// The address of a server that answers this to whatever it is sent, and closes the connection.
async fn answering(answer: &'static str) -> String {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read(&mut [0; 4096]).await;
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    address
}

#[tokio::test]
async fn a_hub_with_tls_that_is_dialled_without_names_insecure() {
    let place = Place::new();
    let hub = secure(place.server(&["127.0.0.1"], ClientAuth::None)).await;
    let plain = problem(hub.address.to_string(), None).await;
    assert!(plain.contains("clouddriver.insecure: false"), "{plain}");
}

#[tokio::test]
async fn a_certificate_that_the_hub_refuses_names_client_cert_file() {
    let place = Place::new();
    let with = |identity: IdentitySettings| DialTlsSettings { identity: Some(identity), ..place.trusting() };
    let required = secure(place.server(&["127.0.0.1"], ClientAuth::Required)).await;
    let none = problem(required.address.to_string(), Some(place.trusting())).await;
    assert!(none.contains("wants a certificate of the agent: set clouddriver.tls.clientCertFile"), "{none}");
    assert_eq!(problem(required.address.to_string(), Some(with(place.client(1)))).await, "none");
    let stranger = Place::new();
    let foreign = problem(required.address.to_string(), Some(with(stranger.client(1)))).await;
    assert!(
        foreign.contains("authority of the agent's certificate (clouddriver.tls.clientCertFile)"),
        "{foreign}"
    );
    let mut settings = place.server(&["127.0.0.1"], ClientAuth::Required);
    settings.revocation_lists = vec![place.revoking(7)];
    let revoking = secure(settings).await;
    let revoked = problem(revoking.address.to_string(), Some(with(place.client(7)))).await;
    assert!(revoked.contains("(clouddriver.tls.clientCertFile) as revoked"), "{revoked}");
    let tls = DialTls::read(with(place.client(1))).await.expect("TLS");
    let expired = remedy_of_alert(AlertDescription::CertificateExpired, &tls).expect("a remedy");
    assert!(expired.contains("(clouddriver.tls.clientCertFile) as expired"), "{expired}");
}

#[tokio::test]
async fn tls_1_2_says_the_same_of_a_certificate_that_is_refused() {
    let place = Place::new();
    let mut settings = place.server(&["127.0.0.1"], ClientAuth::Required);
    settings.protocols = vec![&rustls::version::TLS12];
    let hub = secure(settings).await;
    let none = problem(hub.address.to_string(), Some(place.trusting())).await;
    assert!(none.contains("clouddriver.tls.clientCertFile"), "{none}");
    let stranger = Place::new();
    let identity = Some(stranger.client(1));
    let foreign =
        problem(hub.address.to_string(), Some(DialTlsSettings { identity, ..place.trusting() })).await;
    assert!(foreign.contains("clouddriver.tls.clientCertFile"), "{foreign}");
}

/// An agent that shows a certificate to its hub, and holds an account over their first stream.
struct Secure {
    place: Place,
    hub: FakeHub,
    agent: RunningAgent,
    stream: Stream,
    hello: kubesvc_core::wire::ops::Hello,
    _cluster: TestServer,
}

impl Secure {
    async fn start() -> Self {
        let place = Place::new();
        let mut hub = secure(place.server(&["127.0.0.1"], ClientAuth::Required)).await;
        let tls = DialTlsSettings { identity: Some(place.client(1)), ..place.trusting() };
        let agent = agent_with(options(hub.address.to_string(), Some(tls))).await;
        let (cluster, account) = account("u", good).await;
        let (mut stream, hello) = hub.settled(100).await;
        stream.send(add(&[&account])).await;
        assert_eq!(result(&mut stream).await.account, Some(reference("u", 1)));
        Self { place, hub, agent, stream, hello, _cluster: cluster }
    }
}

#[tokio::test]
async fn a_new_client_certificate_takes_over_on_a_second_connection() {
    let Secure { place, mut hub, agent, mut stream, hello, _cluster } = Secure::start().await;
    place.client(2);
    let (mut second, again) = hub.stream().await;
    assert_eq!((again.connect_seq, &again.boot_id), (2, &hello.boot_id));
    let held: Vec<_> = again.accounts_held.into_iter().filter_map(|held| held.account).collect();
    assert_eq!(held, [reference("u", 1)]);
    {
        let shown = hub.shown.lock();
        assert!(shown.len() == 2 && shown[0] != shown[1], "another certificate is shown");
    }
    assert_eq!(agent.readiness().await.0, 200, "it is connected all the time");
    let accepted = Accepted {
        session_id: "second".to_owned(),
        protocol: 1,
        approved: true,
        heartbeat_ms: 100,
        ..Default::default()
    };
    second.send(hub_frame::Frame::Accepted(accepted)).await;
    while stream.next().await.is_some() {}
    agent.until("/health", |answer| answer.contains(r#""sessionId":"second""#)).await;
    second.own_accounts().await;
    assert!(matches!(second.next().await, Some(Frame::Heartbeat(_))), "the second stream is served");
    assert_eq!(agent.readiness().await.0, 200);
    drop(second);
    agent.end().await;
}

#[tokio::test]
async fn a_session_goes_on_while_the_hub_refuses_the_new_certificate() {
    let Secure { place, mut hub, agent, mut stream, _cluster, .. } = Secure::start().await;
    // Of an authority that the hub does not know.
    let (certificate, key) = Place::new().leaf(&["agent"], ExtendedKeyUsagePurpose::ClientAuth, |params| {
        params.serial_number = Some(SerialNumber::from(3_u64));
    });
    place.write("agent.key", &key);
    place.write("agent.pem", &certificate);
    let two_seconds = async {
        loop {
            stream.send(hub_frame::Frame::Heartbeat(Heartbeat::default())).await;
            assert!(stream.next().await.is_some(), "the session goes on");
        }
    };
    let _: Result<(), _> = timeout(Duration::from_secs(2), two_seconds).await;
    assert_eq!(agent.readiness().await.0, 200);
    assert_eq!(hub.shown.lock().len(), 1, "no other handshake was completed");
    // Refused in words, then accepted.
    place.client(4);
    let (mut refused, _) = hub.stream().await;
    let reason = Refused { reason: Reason::Overloaded.into(), ..Refused::default() };
    refused.send(hub_frame::Frame::Refused(reason)).await;
    drop(refused);
    assert!(stream.next().await.is_some(), "the session goes on");
    let (mut next, hello) = hub.accepted(100).await;
    assert!(hello.connect_seq >= 3 && hello.accounts_held.len() == 1, "{hello:?}");
    while stream.next().await.is_some() {}
    next.own_accounts().await;
    drop(next);
    agent.end().await;
}

#[tokio::test]
async fn other_authorities_count_for_the_next_dial_alone() {
    let Secure { place, mut hub, agent, mut stream, _cluster, .. } = Secure::start().await;
    place.write("ca.pem", &Place::new().pem);
    let quiet = timeout(Duration::from_millis(500), hub.stream()).await;
    assert!(quiet.is_err(), "no other stream");
    assert!(stream.next().await.is_some());
    drop(stream);
    let (_, answer) = {
        let told = async {
            loop {
                let (status, answer) = agent.readiness().await;
                if status == 503 && answer.contains("cacertFile") {
                    return (status, answer);
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(Duration::from_secs(10), told).await.expect("the new authorities count")
    };
    assert!(answer.contains("not connected to the hub"), "{answer}");
    agent.end().await;
}

#[tokio::test]
async fn files_that_cannot_be_used_end_the_start() {
    let mut options = options("hub.example:9091".to_owned(), Some(DialTlsSettings::default()));
    options.settings.hub.tls.authorities = Some("/absent/ca.pem".into());
    let error = Agent::bind(options).await.expect_err("there is no such file");
    assert!(matches!(error, AgentError::Tls(_)), "{error}");
    assert!(
        chain(&error).starts_with("`clouddriver.tls.cacertFile` cannot be honoured"),
        "{}",
        chain(&error)
    );
}

#[tokio::test]
async fn health_over_tls_is_answered_and_follows_its_files() {
    let place = Place::new();
    let (certificate, key) = place.leaf(&["localhost"], ExtendedKeyUsagePurpose::ServerAuth, |_| {});
    let identity = IdentitySettings {
        certificate: place.write("health.pem", &(certificate + &key)),
        key: None,
        password: None,
    };
    let mut options = AgentOptions::of_test("hub.example:9091".to_owned());
    options.settings.server.ssl = Some(ServerSslSettings {
        identity,
        authorities: Some(place.path("ca.pem")),
        client_auth: ClientAuth::Optional,
    });
    let agent = agent_with(options).await;
    let asked = async |tls: DialTlsSettings, path: &str| -> std::io::Result<(String, Vec<u8>)> {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let tls = DialTls::read(tls).await.expect("TLS");
        let config = Arc::new(tls.config(b"http/1.1").await.expect("authorities"));
        let name = rustls::pki_types::ServerName::try_from("localhost").expect("a name");
        let stream = tokio::net::TcpStream::connect(agent.health).await?;
        let mut stream = tokio_rustls::TlsConnector::from(config).connect(name, stream).await?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        let leaf = stream.get_ref().1.peer_certificates().and_then(<[_]>::first).expect("a certificate");
        Ok((answer, leaf.to_vec()))
    };
    let (answer, first) = asked(place.trusting(), "/health/liveness").await.expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let identity = Some(place.client(1));
    let (answer, _) =
        asked(DialTlsSettings { identity, ..place.trusting() }, "/accounts").await.expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let stranger = Place::new();
    let identity = Some(stranger.client(1));
    asked(DialTlsSettings { identity, ..place.trusting() }, "/accounts")
        .await
        .expect_err("another authority");
    let (certificate, key) = place.leaf(&["localhost"], ExtendedKeyUsagePurpose::ServerAuth, |_| {});
    place.write("health.pem", &(certificate + &key));
    let renewed = async {
        while asked(place.trusting(), "/health").await.expect("an answer").1 == first {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(10), renewed).await.expect("the new certificate is shown");
    agent.end().await;
}
