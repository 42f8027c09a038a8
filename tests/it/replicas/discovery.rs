//! How replicas find one another.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::extract::Request;
use axum::{Json, Router};
use k8s_openapi::api::core::v1::Endpoints;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;

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
            "ports": [{"name": "http", "port": second.rest_port()}],
        }],
    }))
    .expect("Endpoints");
    let mut other = endpoints.clone();
    other.metadata.name = Some("other".to_owned());
    let api = world.api::<Endpoints>();
    for one in [&other, &endpoints] {
        must(api.create(&PostParams::default(), one).await.map_err(|e| e.to_string()));
    }
    // An address that never answered under the key is not a replica.
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
async fn address_without_the_signing_key_is_no_replica() {
    let (world, second) = two(Database::Postgres).await;
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let stranger = Router::new().fallback(async move |request: Request| {
        counted.fetch_add(1, Ordering::Relaxed);
        let path = request.uri().path().to_owned();
        Json(match path.as_str() {
            "/internal/v1/reach" => json!({"replicaId": "stranger", "answeredForMs": 86_400_000}),
            _ => json!({"replicaId": "stranger", "agents": [{"agentId": "forged", "zoneId": "z", "replicaId": "stranger",
                "connectedSince": "2026-01-01T00:00:00Z", "accounts": []}]}),
        })
    });
    let listener = must(tokio::net::TcpListener::bind("0.0.0.0:0").await.map_err(|e| e.to_string()));
    let port = must(listener.local_addr().map_err(|e| e.to_string())).port();
    let serving = tokio::spawn(async move { axum::serve(listener, stranger).await });
    let slice: EndpointSlice = serde_json::from_value(json!({
        "metadata": {"name": "stranger", "labels": {"kubernetes.io/service-name": SERVICE}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [address().to_string()], "conditions": {"ready": true},
            "targetRef": {"kind": "Pod", "name": "stranger", "namespace": world.namespace()}}],
        "ports": [{"name": "http", "port": port, "protocol": "TCP"}],
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
    assert!(asked.load(Ordering::Relaxed) > 0);
    until_replicas(world.operator(), &[(FIRST, true), (SECOND, true)]).await;
    let agents = world.get("/armory/agents").await;
    assert_eq!(agents.json, json!([]), "{agents}");
    serving.abort();
}
