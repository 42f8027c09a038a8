//! The first activation, and what prevents it.

use kubesvc_core::{FINALIZER, KubesvcAccount, ORIGIN_LABEL, State, ZoneId};
use serde_json::json;

use super::{Scene, activate_another, held_by, writes};
use crate::world::{Agent, MAX_WAIT, World, condition};
use kubesvc_testkit::{must, wait::eventually};

pub(super) async fn applied_account_becomes_active_in_every_view(scene: &Scene) {
    let Scene { world, cluster, agent } = scene;
    world.secret("prod", cluster.kubeconfig().as_bytes(), true).await;
    world
        .apply(
            "apiVersion: kubesvc.io/v1alpha1\nkind: KubesvcAccount\nmetadata: {name: prod}\n\
             spec: {zoneId: east, kubeconfig: {secretRef: {name: prod}}, permissions: {READ: [dev], WRITE: [ops]}}\n",
        )
        .await;
    world.kubectl_wait("prod", "condition=Ready").await;

    let account = world.object("prod").await.expect("it was applied");
    assert!(account.has_finalizer(), "{FINALIZER} is missing: {:?}", account.metadata.finalizers);
    let told: Vec<_> = ["Ready", "Reconciling", "Stalled", "AgentConnected", "Caching"]
        .into_iter()
        .map(|type_| condition(&account, type_).map(|one| (one.status, one.observed_generation)))
        .collect();
    let expected =
        ["True", "False", "False", "True", "True"].map(|status| Some((status.to_owned(), Some(1))));
    assert_eq!(told, expected, "{account:#?}");
    let status = account.status.expect("it is Ready");
    assert_eq!((status.observed_generation, status.epoch.0, status.failed_count), (1, 1, 0), "{status:#?}");
    assert_eq!(status.agents, [agent.id()], "{status:#?}");
    assert_eq!(status.zone_id.as_ref().map(ZoneId::as_str), Some("east"));
    assert!(status.cert_fingerprint.as_ref().is_some_and(|print| is_fingerprint(print)), "{status:#?}");
    assert!(status.cluster_uid.as_ref().is_some_and(|uid| uid.len() == 36), "{status:#?}");
    assert!(status.namespaces_count.is_some_and(|count| count >= 4), "{status:#?}");

    columns_show_it(world).await;
    describe_shows_it(world).await;
    rest_shows_it(world, agent, cluster.server()).await;

    let row = world.until_row("prod", "ACTIVE").await;
    assert_eq!(row.uid, account.metadata.uid);
    assert_eq!(
        (row.zone_id.as_deref(), row.is_dynamic, row.origin.as_str()),
        (Some("east"), true, "declared")
    );
    assert_eq!((row.failed_count, row.generation, row.observed_generation), (0, 1, 1), "{row:#?}");
    assert_eq!((&row.cert_fingerprint, &row.cluster_uid), (&status.cert_fingerprint, &status.cluster_uid));
    assert!(row.props.as_ref().is_some_and(|props| props.contains("ops")), "{row:#?}");

    activate_another(world, cluster, "next", "east").await;
    assert_eq!(writes(world, "prod"), 3, "finalizer, ACTIVATING, ACTIVE: {:#?}", world.writes_to("prod"));
}

fn is_fingerprint(text: &str) -> bool {
    let pairs: Vec<_> = text.split(':').collect();
    let pair = |pair: &&str| {
        pair.len() == 2 && pair.bytes().all(|b| b.is_ascii_digit() || (b'A'..=b'F').contains(&b))
    };
    pairs.len() == 32 && pairs.iter().all(pair)
}

async fn columns_show_it(world: &World) {
    let table = must(world.kubectl(&["get", "ksa", "prod"]).await.ok());
    let (head, line) = table.split_once('\n').expect("a head and a line");
    let head: Vec<_> = head.split_whitespace().collect();
    assert_eq!(head, ["NAME", "STATE", "ZONE", "AGENTS", "KUBE-VERSION", "RETRIES", "AGE"], "{table}");
    let shown: Vec<_> = line.split_whitespace().take(5).collect();
    assert_eq!(shown[..4], ["prod", "ACTIVE", "east", "1"], "{table}");
    assert!(shown[4].starts_with("v1."), "{table}");
    let wide = must(world.kubectl(&["get", "spinnaker", "-o", "wide"]).await.ok());
    assert!(wide.contains("MESSAGE") && wide.contains("agent-1"), "{wide}");
    let fleet = must(world.kubectl(&["get", "ksg"]).await.ok());
    assert!(fleet.contains("agent-1") && fleet.contains("east"), "{fleet}");
}

/// Events are written separately from the transitions, so they arrive a moment later.
async fn describe_shows_it(world: &World) {
    eventually("Events in kubectl describe", MAX_WAIT, async || {
        let text = world.kubectl(&["describe", "ksa", "prod"]).await.ok()?;
        let holds = ["held by agent-1", "handed to the agents of zone east", "an agent holds the account"];
        let missing: Vec<_> = holds.iter().filter(|part| !text.contains(**part)).collect();
        if missing.is_empty() { Ok(()) } else { Err(format!("{missing:?} missing in:\n{text}")) }
    })
    .await;
}

async fn rest_shows_it(world: &World, agent: &Agent, server: &str) {
    let answer = world.get("/armory/accounts/prod").await;
    assert_eq!(answer.status, 200, "{answer}");
    let expected = json!({
        "name": "prod", "status": "ACTIVE", "zoneId": "east", "dynamic": true, "connections": 1, "retryCount": 0,
        "type": "kubernetes", "source": "clouddriver", "permissions": {"READ": ["dev"], "WRITE": ["ops"]},
    });
    for (key, value) in expected.as_object().expect("an object") {
        assert_eq!(&answer.json[key], value, "{key} in {answer}");
    }
    let host = answer.json["kubeHost"].as_str().unwrap_or_default();
    assert_eq!(host.trim_end_matches('/'), server, "{answer}");
    assert!(
        answer.json["kubeVersion"].as_str().is_some_and(|version| version.starts_with("v1.")),
        "{answer}"
    );
    assert_eq!(answer.json["agents"][0]["agentId"], "agent-1", "{answer}");
    let namespaces = world.get("/armory/accounts/prod").await;
    assert_eq!(namespaces.status, 200);
    let namespaces = world.get("/agents/kubernetes/accounts/prod/namespaces").await;
    let listed = namespaces.json.as_array().is_some_and(|all| all.iter().any(|one| one == "kube-system"));
    assert!(namespaces.status == 200 && listed, "{namespaces}");
    let held = held_by(world, agent).await.expect("it is listed");
    assert_eq!(held.iter().filter(|name| *name == "prod").count(), 1, "{held:?}");
    let list = world.get("/armory/accounts?limit=100").await;
    let names: Vec<_> = list.json["items"].as_array().into_iter().flatten().map(|one| &one["name"]).collect();
    assert_eq!(names.iter().filter(|name| **name == "prod").count(), 1, "{list}");
    assert_eq!(list.json["total"], names.len(), "{list}");
}

pub(super) async fn account_created_by_rest_costs_two_further_writes(scene: &Scene) {
    let Scene { world, cluster, .. } = scene;
    let body = json!({"name": "Prod / 1", "kubeconfigContents": cluster.kubeconfig(), "zoneId": "east", "state": "ACTIVE"});
    let answer = world.rest("POST", "/armory/accounts/dynamic", &body).await;
    assert_eq!((answer.status, &answer.json), (202, &json!([])), "{answer}");
    world.until_shown("Prod%20%2F%201", "ACTIVE").await;
    activate_another(world, cluster, "after-rest", "east").await;

    let accounts = world.api::<KubesvcAccount>().list(&kube::api::ListParams::default()).await;
    let account =
        accounts.expect("the API server runs").items.into_iter().find(|one| one.account_name() == "Prod / 1");
    let account = account.expect("REST made an object");
    assert_eq!(account.label(ORIGIN_LABEL), Some("rest"));
    let name = account.metadata.name.as_deref().expect("an object has a name");
    let made_by: Vec<_> =
        world.writes_to(name).iter().map(|write| format!("{} {}", write.verb, write.subresource)).collect();
    assert_eq!(made_by.iter().filter(|one| one.ends_with(" status")).count(), 2, "{made_by:?}");
    assert_eq!(writes(world, name), 3, "creation with the finalizer, ACTIVATING, ACTIVE: {made_by:?}");
    assert_eq!(world.until_row("Prod / 1", "ACTIVE").await.origin, "rest");
}

#[tokio::test(flavor = "multi_thread")]
async fn account_without_agent_reports_it_and_activates_when_one_connects() {
    let world = World::prepare().setting("kubesvc.cache.operationWaitMs", 120_000).start().await;
    let cluster = world.cluster("spinnaker").await;
    world.account("pinned").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    world.account("free").kubeconfig(&cluster.kubeconfig()).create().await;
    for name in ["pinned", "free"] {
        let account = world.until_reason(name, State::Failed, "NoAgent").await;
        assert_eq!(condition(&account, "Reconciling").map(|one| one.status).as_deref(), Some("True"));
        assert_eq!(condition(&account, "Stalled").map(|one| one.status).as_deref(), Some("False"));
        let status = account.status.expect("it is FAILED");
        assert_eq!(status.failed_count, 0, "no try is used up: {status:#?}");
        let message = status.error_message.unwrap_or_default();
        assert!(message.starts_with("no agent connected"), "{message}");
        assert_eq!(message.contains("zone east"), name == "pinned", "{message}");
        let row = world.until_row(name, "FAILED").await;
        assert_eq!(row.error_message, Some(message));
    }
    let _agent = world.agent("agent-1").start().await;
    for name in ["pinned", "free"] {
        let account = world.until(name, State::Active).await;
        assert_eq!(account.status_or_default().zone_id.as_ref().map(ZoneId::as_str), Some("east"));
        assert_eq!(account.status_or_default().error_message, None);
    }
    activate_another(&world, &cluster, "next", "east").await;
    for name in ["pinned", "free"] {
        // An account that is created while the leader still waits for agents first gets a write that says so.
        assert!(
            matches!(writes(&world, name), 4 | 5),
            "finalizer, at most once AwaitingAgents, FAILED, ACTIVATING, ACTIVE: {:#?}",
            world.writes_to(name)
        );
    }
}

pub(super) async fn setting_the_zone_ends_the_zone_probe_when_two_zones_have_agents(scene: &Scene) {
    let Scene { world, cluster, .. } = scene;
    let _west = world.agent("agent-2").zone("west").start().await;
    world.account("probed").kubeconfig(&cluster.kubeconfig()).create().await;
    world
        .until_account("probed", "waits for an offer, or has had one", |account| {
            let state = account.status_or_default().state();
            matches!(state, State::ToMigrate | State::Activating | State::Active)
        })
        .await;

    world.patch("probed", json!({"spec": {"zoneId": "west"}})).await;
    let account = world
        .until_account("probed", "is ACTIVE in zone west", |account| {
            let status = account.status_or_default();
            status.state() == State::Active && status.granted_zone() == Some(&"west".into())
        })
        .await;
    assert_eq!(account.status_or_default().zone_id.as_ref().map(ZoneId::as_str), Some("west"));
    assert_eq!(account.status_or_default().agents, ["agent-2"]);
}

/// Objects created in the same second count as equally old.
async fn another_second(world: &World, name: &str) {
    let account = world.object(name).await.expect("it was made");
    let made = account.metadata.creation_timestamp.expect("the API server stamps it").0;
    eventually("another second", MAX_WAIT, async || {
        let age = jiff::Timestamp::now().duration_since(made);
        if age.as_secs() > 0 { Ok(()) } else { Err(format!("{age:?}")) }
    })
    .await;
}

pub(super) async fn older_of_two_objects_with_one_account_name_wins(scene: &Scene) {
    let Scene { world, cluster, .. } = scene;
    world
        .account("older")
        .zone("east")
        .spec("accountName", "doubled")
        .kubeconfig(&cluster.kubeconfig())
        .create()
        .await;
    world.until("older", State::Active).await;
    another_second(world, "older").await;
    world
        .account("younger")
        .zone("east")
        .spec("accountName", "doubled")
        .kubeconfig(&cluster.kubeconfig())
        .create()
        .await;
    let younger = world.until_reason("younger", State::Failed, "DuplicateName").await;
    assert_eq!(condition(&younger, "Stalled").map(|one| one.status).as_deref(), Some("True"));
    assert!(
        younger.status_or_default().error_message.as_ref().is_some_and(|why| why.contains("older")),
        "{younger:#?}"
    );
    let row = world.until_row("doubled", "ACTIVE").await;
    assert_ne!(row.uid, younger.metadata.uid, "the younger has no row");

    world.delete("older").await;
    world.until("younger", State::Active).await;
    eventually("the row of the younger", MAX_WAIT, async || match world.try_row("doubled").await? {
        Some(row) if row.uid == younger.metadata.uid && row.status == "ACTIVE" => Ok(()),
        row => Err(format!("{row:?}")),
    })
    .await;
}
