//! How replicas find one another.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use k8s_openapi::api::core::v1::Endpoints;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{DeleteParams, PostParams};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use serde_json::json;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::task::AbortOnDropHandle;

use super::{FIRST, SECOND, two, until_replicas};
use crate::world::{Database, MAX_WAIT, SERVICE, World, address};
use kubesvc_testkit::{must, wait::eventually};

#[tokio::test(flavor = "multi_thread")]
async fn replicas_are_found_in_slices_and_endpoints_and_include_self() {
    let world = World::prepare().database(Database::Postgres).setting("server.address", "*").start().await;
    until_replicas(world.operator(), &[(FIRST, true)]).await;
    let second = world.replica(SECOND).await;
    world.publish(SECOND, &second, false).await;
    until_replicas(world.operator(), &[(FIRST, true), (SECOND, false)]).await;
    until_replicas(&second, &[(SECOND, false)]).await;
    world.publish(SECOND, &second, true).await;
    world.publish(FIRST, world.operator(), true).await;
    for replica in [world.operator(), &second] {
        until_replicas(replica, &[(FIRST, true), (SECOND, true)]).await;
    }

    let one = world.get(&format!("/armory/clouddrivers/{SECOND}")).await;
    let base_url = format!("http://{}:{}", address(), second.rest_port());
    assert_eq!(one.json["baseUrl"], json!(base_url), "{one}");
    assert!(one.json["lastUpdated"].as_str().is_some_and(|time| time.ends_with('Z')), "{one}");
    assert_eq!(world.get("/armory/clouddrivers/operator-7").await.status, 404);

    // Endpoints list one more replica, the second one again, and addresses of other Services.
    let endpoints: Endpoints = serde_json::from_value(json!({
        "metadata": {"name": format!("{SERVICE}-ro")},
        "subsets": [{
            "addresses": [{"ip": address().to_string()}],
            "notReadyAddresses": [{"ip": "10.11.12.13", "targetRef": {"kind": "Pod", "name": "operator-9"}}],
            "ports": [{"name": "http", "port": second.rest_port()}, {"name": "replicas", "port": second.calls_port()}],
        }],
    }))
    .expect("Endpoints");
    let mut other = endpoints.clone();
    other.metadata.name = Some("other".to_owned());
    let api = world.api::<Endpoints>();
    for one in [&other, &endpoints] {
        must(api.create(&PostParams::default(), one).await.map_err(|e| e.to_string()));
    }
    // An address that never answered as a replica is none.
    let both = [(FIRST, true), (SECOND, true)];
    until_replicas(world.operator(), &both).await;
    until_replicas(&second, &both).await;

    let slices = world.api::<EndpointSlice>();
    must(slices.delete(SECOND, &DeleteParams::default()).await.map_err(|e| e.to_string()));
    let by_address = format!("{}:{}", address(), second.rest_port());
    until_replicas(world.operator(), &[(&by_address, true), (FIRST, true)]).await;
    must(api.delete(&format!("{SERVICE}-ro"), &DeleteParams::default()).await.map_err(|e| e.to_string()));
    until_replicas(world.operator(), &[(FIRST, true)]).await;
    until_replicas(&second, &both).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn restarted_replica_finds_the_others() {
    let (world, second) = two(Database::MariaDb).await;
    world.operator().kill_and_start().await;
    until_replicas(world.operator(), &[(FIRST, true), (SECOND, true)]).await;
    assert!(second.is_running());
    let pools = world.get("/armory/clouddrivers/sql/pool/settings").await;
    assert_eq!(
        (&pools.json[0]["name"], &pools.json[0]["database"]),
        (&json!("writer"), &json!("mysql")),
        "{pools}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn operator_without_watch_permission_exits_naming_it() {
    let world = World::prepare().database(Database::Postgres).without_operator().start().await;
    world.forbid(&["endpoints"]).await;
    world.operator().launch_with(&[]);
    let refused = world.operator().try_ready().await.expect_err("a right is missing");
    assert!(refused.contains("exit code 1"), "{refused}");
    let namespace = world.namespace();
    let expected = format!("may not list and watch endpoints in namespace {namespace}");
    assert!(refused.contains(&expected) && refused.contains("config/rbac/replicas.yaml"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn permitted_watches_run_without_fail_fast() {
    let world = World::prepare()
        .database(Database::Postgres)
        .setting("kubesvc.cluster-kubernetes.failFast", false)
        .setting("server.address", "*")
        .without_operator()
        .start()
        .await;
    world.forbid(&["endpoints"]).await;
    world.operator().start().await;
    let log = world.operator().log_text();
    assert!(log.contains("may not list and watch endpoints") && log.contains("failFast"), "{log}");
    let second = world.replica(SECOND).await;
    world.publish(SECOND, &second, true).await;
    until_replicas(world.operator(), &[(FIRST, true), (SECOND, true)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_are_found_with_another_kubeconfig_and_service() {
    let world = World::prepare()
        .database(Database::Postgres)
        .setting("server.address", "*")
        .setting("kubesvc.cluster-kubernetes.clouddriverServiceNamePrefix", "spin-clouddriver")
        .setting("kubesvc.cluster-kubernetes.verifySsl", false)
        .setting("kubesvc.cluster-kubernetes.useDNS", true)
        .setting("kubesvc.cluster-kubernetes.domainName", "example.test")
        .without_operator()
        .start()
        .await;
    world.forbid(&["endpoints", "endpointslices"]).await;
    let admin = world.control_plane().kubeconfig_path();
    let variable = ("KUBESVC_CLUSTERKUBERNETES_KUBECONFIGFILE", admin.to_str().expect("a path in UTF-8"));
    world.operator().launch_with(&[variable]);
    world.operator().ready().await;
    world.publish(FIRST, world.operator(), true).await;
    until_replicas(world.operator(), &[(FIRST, true)]).await;
    let name = address().to_string().replace('.', "-");
    let expected =
        format!("http://{name}.{}.pod.example.test:{}", world.namespace(), world.operator().rest_port());
    // It lists itself under another address before it has seen the slice.
    eventually("its address by the slice", MAX_WAIT, async || {
        let shown = world.operator().get(&format!("/armory/clouddrivers/{FIRST}")).await?;
        if shown.json["baseUrl"] == json!(expected) { Ok(()) } else { Err(shown.to_string()) }
    })
    .await;
}

/// Like Clouddriver's own pods next to a replica, whose Service has the same prefix.
#[tokio::test(flavor = "multi_thread")]
async fn address_without_a_certificate_of_the_authority_is_no_replica() {
    let (world, second) = two(Database::Postgres).await;
    let stranger = must(Stranger::start().await);
    let slice: EndpointSlice = serde_json::from_value(json!({
        "metadata": {"name": "stranger", "labels": {"kubernetes.io/service-name": SERVICE}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [address().to_string()], "conditions": {"ready": true},
            "targetRef": {"kind": "Pod", "name": "stranger", "namespace": world.namespace()}}],
        "ports": [
            {"name": "http", "port": stranger.port, "protocol": "TCP"},
            {"name": "replicas", "port": stranger.port, "protocol": "TCP"},
        ],
    }))
    .expect("a slice");
    must(
        world.api::<EndpointSlice>().create(&PostParams::default(), &slice).await.map_err(|e| e.to_string()),
    );
    eventually("both have asked it", MAX_WAIT, async || {
        let logs = [world.operator().log_text(), second.log_text()];
        let told = |log: &String| log.contains("not counted as a replica") && log.contains("stranger");
        if logs.iter().all(told) { Ok(()) } else { Err(logs.join("\n")) }
    })
    .await;
    assert!(
        stranger.connections.load(Ordering::Relaxed) > 0 && stranger.requests.load(Ordering::Relaxed) == 0
    );
    until_replicas(world.operator(), &[(FIRST, true), (SECOND, true)]).await;
    let agents = world.get("/armory/agents").await;
    assert_eq!(agents.json, json!([]), "{agents}");
}

/// A server with TLS and a certificate of its own for the name `stranger`, which would answer everything.
struct Stranger {
    port: u16,
    connections: Arc<AtomicUsize>,
    requests: Arc<AtomicUsize>,
    _serving: AbortOnDropHandle<()>,
}

impl Stranger {
    async fn start() -> Result<Self, String> {
        let own =
            rcgen::generate_simple_self_signed(vec!["stranger".to_owned()]).map_err(|e| e.to_string())?;
        let key = PrivateKeyDer::try_from(own.signing_key.serialize_der())?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config =
            ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().and_then(
                |config| config.with_no_client_auth().with_single_cert(vec![own.cert.der().clone()], key),
            );
        let mut config = config.map_err(|e| e.to_string())?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        let tls = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("0.0.0.0:0").await.map_err(|e| e.to_string())?;
        let port = listener.local_addr().map_err(|e| e.to_string())?.port();
        let (connections, requests) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let counts = (Arc::clone(&connections), Arc::clone(&requests));
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (connections, requests) = counts.clone();
                connections.fetch_add(1, Ordering::Relaxed);
                let accepted = tls.accept(stream).await;
                // Whoever sends something has taken it for a replica.
                if let Ok(mut stream) = accepted
                    && stream.read_u8().await.is_ok()
                {
                    requests.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        Ok(Self { port, connections, requests, _serving: AbortOnDropHandle::new(serving) })
    }
}
