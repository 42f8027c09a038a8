//! The port for replicas: who gets in, and what becomes of the authority.

use std::sync::Arc;

use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Bytes;
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::api::core::v1::Secret;
use kube::api::DeleteParams;
use kubesvc::{Authority, LeafRequest, dns_names_in_der};
use rcgen::ExtendedKeyUsagePurpose;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::{FIRST, two};
use crate::world::{Database, MAX_WAIT, Operator, World};
use kubesvc_testkit::{must, wait::eventually};

const SECRET: &str = "kubesvc-replicas";

/// A field of the Secret.
async fn field(world: &World, name: &str) -> Vec<u8> {
    let secret = must(world.api::<Secret>().get(SECRET).await.map_err(|e| e.to_string()));
    secret.data.expect("it has data")[name].0.clone()
}

/// A certificate with its key, PEM.
type Identity = (Vec<u8>, Vec<u8>);

/// Makes a certificate of an authority with this key.
fn identity(authority_key: &[u8]) -> Identity {
    let authority = Authority::read("kubesvc-replicas-ca", authority_key).expect("a key");
    let leaf = LeafRequest {
        common_name: "test",
        names: &["test".to_owned()],
        usages: vec![ExtendedKeyUsagePurpose::ClientAuth],
        days: 1,
    };
    must(authority.sign(leaf, jiff::Timestamp::now().as_second()).map_err(|e| e.to_string()))
}

/// Calls the port for replicas as the holder of this certificate, or of none. Returns the names in the certificate of the
/// replica, status and body.
async fn call(
    to: &Operator,
    authority: &[u8],
    shown: Option<&Identity>,
    path: &str,
) -> Result<(Vec<String>, StatusCode, Value), String> {
    let text = |e: &dyn std::fmt::Display| e.to_string();
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(authority) {
        roots.add(certificate.map_err(|e| text(&e))?).map_err(|e| text(&e))?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| text(&e))?
        .with_root_certificates(roots);
    let mut config = match shown {
        None => config.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = CertificateDer::pem_slice_iter(certificate).collect::<Result<_, _>>();
            let key = PrivateKeyDer::from_pem_slice(key).map_err(|e| text(&e))?;
            config.with_client_auth_cert(chain.map_err(|e| text(&e))?, key).map_err(|e| text(&e))?
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    let stream = TcpStream::connect(("127.0.0.1", to.calls_port())).await.map_err(|e| text(&e))?;
    let name = ServerName::try_from(to.replica_id().to_owned()).map_err(|e| text(&e))?;
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.map_err(|e| text(&e))?;
    let names =
        stream.get_ref().1.peer_certificates().and_then(<[_]>::first).map(|own| dns_names_in_der(own));
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(|e| text(&e))?;
    tokio::spawn(connection);
    let request = Request::get(format!("https://{}{path}", to.replica_id())).body(Empty::<Bytes>::new());
    let answer = sender.send_request(request.map_err(|e| text(&e))?).await.map_err(|e| text(&e))?;
    let (head, body) = answer.into_parts();
    let body = body.collect().await.map_err(|e| text(&e))?.to_bytes();
    Ok((names.unwrap_or_default(), head.status, serde_json::from_slice(&body).unwrap_or_default()))
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_holder_of_a_certificate_of_the_authority_gets_in_and_only_at_the_port_for_replicas() {
    const AGENTS: &str = "/internal/v1/agents";
    let world = World::prepare().database(Database::Postgres).start().await;
    let here = world.operator();
    let (authority, key) = (field(&world, "ca.crt").await, field(&world, "ca.key").await);
    let _agent = world.agent("agent-1").start().await;

    let good = identity(&key);
    let (names, status, answer) = must(call(here, &authority, Some(&good), AGENTS).await);
    assert_eq!((names, status), (vec![FIRST.to_owned()], StatusCode::OK), "its certificate has its id");
    assert_eq!((&answer["replicaId"], &answer["agents"][0]["agentId"]), (&json!(FIRST), &json!("agent-1")));
    let (_, status, answer) = must(call(here, &authority, Some(&good), "/internal/v1/none").await);
    assert!(status == StatusCode::NOT_FOUND && answer["message"].is_string(), "{answer}");

    let (_, stranger) = must(
        Authority::make("kubesvc-replicas-ca", 1, jiff::Timestamp::now().as_second())
            .map_err(|e| e.to_string()),
    );
    let forged = identity(&stranger.key_pem());
    for shown in [None, Some(&forged)] {
        let refused = call(here, &authority, shown, AGENTS).await;
        assert!(refused.is_err(), "{refused:?}");
    }
    // Nothing of it is at the port of REST.
    for path in [AGENTS, "/internal/v1/reach", "/internal"] {
        assert_eq!(must(here.get(path).await).status, 404, "{path}");
    }
    let metrics = must(here.get("/metrics").await).text;
    assert!(metrics.contains("kubesvc_peer_connections_refused_total 2"), "{metrics}");
    for secret in ["ca.key", "version.key"] {
        let text = String::from_utf8_lossy(&field(&world, secret).await).into_owned();
        assert!(world.all_logs().iter().all(|(_, log)| !log.contains(text.trim())), "{secret} is in a log");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_authority_that_is_taken_away_is_made_anew_without_a_restart() {
    let (world, second) = two(Database::MariaDb).await;
    let (authority, old) = (field(&world, "ca.crt").await, field(&world, "ca.key").await);
    let _agent = world.agent("agent-2").hub_port(second.hub_port()).start().await;
    let shows = async |asked: &Operator| {
        let answer = asked.get("/armory/agents").await?;
        let alive = &answer.json[0]["clouddriverAlive"];
        if *alive == json!(true) { Ok(()) } else { Err(answer.to_string()) }
    };
    eventually("the agent of the other replica", MAX_WAIT, async || shows(world.operator()).await).await;

    let secrets = world.api::<Secret>();
    must(secrets.delete(SECRET, &DeleteParams::default()).await.map_err(|e| e.to_string()));
    eventually("another authority", MAX_WAIT, async || {
        let made = secrets.get_opt(SECRET).await.map_err(|e| e.to_string())?;
        made.map(drop).ok_or_else(|| "there is none".to_owned())
    })
    .await;
    let (new_authority, new) = (field(&world, "ca.crt").await, field(&world, "ca.key").await);
    assert_ne!(new, old);
    for replica in [world.operator(), &second] {
        eventually("a call under the new authority", MAX_WAIT, async || {
            let shown = identity(&new);
            call(replica, &new_authority, Some(&shown), "/internal/v1/reach").await.map(drop)
        })
        .await;
        let refused = call(replica, &authority, Some(&identity(&old)), "/internal/v1/reach").await;
        assert!(refused.is_err(), "the old one opens nothing: {refused:?}");
    }
    eventually("the agent under the new authority", MAX_WAIT, async || shows(world.operator()).await).await;
}
