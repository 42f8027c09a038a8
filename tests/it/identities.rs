//! Agents with identities: one by its certificate, one by a token of a service account; what each may be, and how it is taken
//! back.

use std::fs;
use std::time::Instant;

use kube::api::{Patch, PatchParams, PostParams};
use kubesvc_core::agent_resource::SessionEnd;
use kubesvc_core::identity::KubesvcIdentity;
use kubesvc_core::{KubesvcAgent, State};
use rcgen::ExtendedKeyUsagePurpose;
use serde_json::{Value, json};

use crate::agent_tls::Certificates;
use crate::world::{Agent, AgentBuilder, MAX_WAIT, Prepare, World};
use kubesvc_testkit::must;
use kubesvc_testkit::wait::eventually;

/// Time within which a session ends whose identity was taken back, with the writes around it.
const CUT: std::time::Duration = std::time::Duration::from_secs(3);

/// A world whose hub asks for identities.
fn bound(certificates: &Certificates) -> Prepare {
    let security = |key: &str| format!("kubesvc.grpc.server.security.{key}");
    certificates
        .prepare()
        .setting(&security("clientAuth"), "OPTIONAL")
        .setting("kubesvc.grpc.auth.mode", "bound")
        .setting("kubesvc.dynamicAccounts.orphanGraceSeconds", 20)
        .setting("kubesvc.grpc.auth.bearer.tokenReview", true)
}

async fn identity(world: &World, name: &str, spec: Value) {
    let object = json!({
        "apiVersion": "kubesvc.io/v1alpha1", "kind": "KubesvcIdentity",
        "metadata": {"name": name, "namespace": world.namespace()}, "spec": spec,
    });
    let object: KubesvcIdentity = serde_json::from_value(object).expect("an identity");
    must(
        world
            .api::<KubesvcIdentity>()
            .create(&PostParams::default(), &object)
            .await
            .map_err(|e| e.to_string()),
    );
}

async fn change(world: &World, name: &str, spec: Value) {
    let patch = Patch::Merge(json!({ "spec": spec }));
    let identities = world.api::<KubesvcIdentity>();
    must(identities.patch(name, &PatchParams::default(), &patch).await.map_err(|e| e.to_string()));
}

/// A token of a service account for the hub, in a file.
async fn token(world: &World, certificates: &Certificates, account: &str, audience: &str) -> String {
    let _ = world.kubectl(&["create", "serviceaccount", account]).await;
    let audience = format!("--audience={audience}");
    let token = must(world.kubectl(&["create", "token", account, "--duration=10m", &audience]).await.ok());
    let file = certificates.path(&format!("{account}.{audience}.token"));
    fs::write(&file, token.trim()).expect("written");
    file
}

/// An agent that shows this token.
fn with_token<'w>(
    world: &'w World,
    certificates: &Certificates,
    (id, zone): (&str, &str),
    file: &str,
) -> AgentBuilder<'w> {
    world
        .agent(id)
        .zone(zone)
        .setting("clouddriver.insecure", json!(false))
        .setting("clouddriver.tls.cacertFile", json!(certificates.path("ca.pem")))
        .setting("clouddriver.auth.tokenFile", json!(file))
}

/// An agent that shows a certificate of this name.
fn with_certificate<'w>(
    world: &'w World,
    certificates: &Certificates,
    (id, zone): (&str, &str),
    name: &str,
) -> AgentBuilder<'w> {
    let (certificate, key) = certificates.leaf(name, ExtendedKeyUsagePurpose::ClientAuth);
    certificates.write(&format!("{name}.crt"), &certificate);
    certificates.write(&format!("{name}.key"), &key);
    world
        .agent(id)
        .zone(zone)
        .setting("clouddriver.insecure", json!(false))
        .setting("clouddriver.tls.cacertFile", json!(certificates.path("ca.pem")))
        .setting("clouddriver.tls.clientCertFile", json!(certificates.path(&format!("{name}.crt"))))
        .setting("clouddriver.tls.clientKeyFile", json!(certificates.path(&format!("{name}.key"))))
}

async fn until_object(
    world: &World,
    agent: &Agent,
    what: &str,
    holds: impl Fn(&KubesvcAgent) -> bool,
) -> KubesvcAgent {
    eventually(what, MAX_WAIT, async || {
        let object = world.try_agent_object(agent).await?.ok_or("there is none")?;
        if holds(&object) { Ok(object) } else { Err(format!("{:#?}", object.status)) }
    })
    .await
}

fn condition<'a>(agent: &'a KubesvcAgent, type_: &str) -> Option<(&'a str, &'a str)> {
    let conditions = &agent.status.as_ref()?.conditions;
    let found = conditions.iter().find(|one| one.type_ == type_)?;
    Some((found.status.as_str(), found.message.as_str()))
}

#[tokio::test(flavor = "multi_thread")]
async fn each_agent_holds_what_its_identity_allows_and_loses_it_with_the_identity() {
    let certificates = Certificates::new();
    let world = bound(&certificates).start().await;
    identity(
        &world,
        "east",
        json!({"match": {"subject": {"CN": "agent-{zone}"}}, "allow": {"zones": ["{zone}"]}}),
    )
    .await;
    let service_account = json!({"serviceAccount": {"namespace": world.namespace(), "name": "west"}});
    identity(
        &world,
        "west",
        json!({"match": service_account, "allow": {"zones": ["west"], "agentIds": ["west-*"]}}),
    )
    .await;
    let file = token(&world, &certificates, "west", "kubesvc-hub").await;
    let east = with_certificate(&world, &certificates, ("east-1", "east"), "agent-east").start().await;
    let west = with_token(&world, &certificates, ("west-1", "west"), &file).start().await;
    let object =
        until_object(&world, &west, "west is identified", |agent| condition(agent, "Identified").is_some())
            .await;
    assert_eq!(condition(&object, "Identified"), Some(("True", "KubesvcIdentity west admits the agent")));
    let status = object.status.clone().expect("a status");
    assert_eq!((status.identity.as_deref(), status.identified), (Some("west"), Some(true)));

    let cluster = world.cluster("prod").await;
    for (name, zone) in [("prod-east", "east"), ("prod-west", "west")] {
        world.account(name).zone(zone).kubeconfig(&cluster.kubeconfig()).create().await;
        world.until(name, State::Active).await;
    }

    // A token of the one in the zone of the other; one for another audience; none at all.
    let other_zone = with_token(&world, &certificates, ("west-2", "east"), &file).launch();
    let audience = token(&world, &certificates, "west", "another").await;
    let other_audience = with_token(&world, &certificates, ("west-3", "west"), &audience).launch();
    let nothing = world
        .agent("west-4")
        .zone("west")
        .setting("clouddriver.insecure", json!(false))
        .setting("clouddriver.tls.cacertFile", json!(certificates.path("ca.pem")))
        .launch();
    for (agent, why) in [
        (&other_zone, "may not be in zone"),
        (&other_audience, "no valid credential"),
        (&nothing, "no valid credential"),
    ] {
        eventually("the agent says why it is not let in", MAX_WAIT, async || {
            let log = agent.log_text();
            if log.contains(why) { Ok(()) } else { Err(log) }
        })
        .await;
        assert!(
            world.try_agent_object(agent).await.expect("an answer").is_none(),
            "{} has no object",
            agent.id()
        );
    }

    // One whose credential is good, and that nobody knows, is shown with the match that would admit it.
    let stranger = with_certificate(&world, &certificates, ("new-1", "south"), "stranger").launch();
    let shown = until_object(&world, &stranger, "the stranger is shown", |agent| {
        condition(agent, "Identified").is_some_and(|(status, _)| status == "False")
    })
    .await;
    let credential = shown.status.and_then(|status| status.credential).expect("its credential");
    assert_eq!(
        credential.subject.as_ref().and_then(|subject| subject.get("CN")).map(String::as_str),
        Some("stranger")
    );
    identity(&world, "new", json!({"match": credential, "allow": {"zones": ["south"]}})).await;
    world.until_connected(&stranger, true).await;

    // The certificate of one is suspended, the service account of the other deleted.
    let since = Instant::now();
    change(&world, "east", json!({"suspended": true})).await;
    let cut = until_object(&world, &east, "the end of east is written", |agent| {
        agent.status.as_ref().is_some_and(|status| !status.connected)
    })
    .await;
    assert!(since.elapsed() < CUT, "{:?}", since.elapsed());
    let ended = cut.status.and_then(|status| status.session).and_then(|session| session.ended);
    assert_eq!(ended, Some(SessionEnd::Revoked));
    // Nothing waits for it but the grace of a leader that is young.
    world.until("prod-east", State::Orphaned).await;
    assert_eq!(world.state("prod-west").await, Some(State::Active), "the other one is not affected");
    change(&world, "east", json!({"suspended": false})).await;
    world.until("prod-east", State::Active).await;

    change(&world, "west", json!({"allow": {"accounts": ["elsewhere/*"]}})).await;
    world.until_reason("prod-west", State::Failed, "ZoneForbidden").await;
    change(&world, "west", json!({"allow": {"accounts": [format!("{}/prod-*", world.namespace())]}})).await;
    world.until("prod-west", State::Active).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_credential_that_matches_two_objects_is_refused_and_both_say_so() {
    let certificates = Certificates::new();
    let world = bound(&certificates).start().await;
    identity(&world, "one", json!({"match": {"subject": {"CN": "agent-1"}}, "allow": {"zones": ["east"]}}))
        .await;
    let agent = with_certificate(&world, &certificates, ("a", "east"), "agent-1").start().await;
    identity(&world, "two", json!({"match": {"subject": {"CN": "agent-*"}}, "allow": {"zones": ["*"]}}))
        .await;
    world.until_connected(&agent, false).await;
    for name in ["one", "two"] {
        eventually("the object says that it is ambiguous", MAX_WAIT, async || {
            let object = world.api::<KubesvcIdentity>().get(name).await.map_err(|e| e.to_string())?;
            let status = object.status.unwrap_or_default();
            let is = status.conditions.iter().any(|one| one.type_ == "Ambiguous" && one.status == "True");
            if is { Ok(()) } else { Err(format!("{status:?}")) }
        })
        .await;
    }
    // A wrong object is refused by the API server, or says what is wrong with it.
    let wrong = "{\"apiVersion\":\"kubesvc.io/v1alpha1\",\"kind\":\"KubesvcIdentity\",\"metadata\":{\"name\":\"w\"},\
                 \"spec\":{\"match\":{\"uri\":\"a\",\"fingerprints\":[\"b\"]},\"allow\":{\"zones\":[\"z\"]}}}";
    let refused = world.kubectl_with_input(&["create", "-f", "-"], wrong).await;
    assert!(refused.stderr.contains("exactly one of uri"), "{}", refused.stderr);
    change(&world, "two", json!({"allow": {"zones": ["{nobody}"]}, "match": {"subject": {"CN": "other"}}}))
        .await;
    eventually("the object says what is wrong", MAX_WAIT, async || {
        let object = world.api::<KubesvcIdentity>().get("two").await.map_err(|e| e.to_string())?;
        let status = object.status.unwrap_or_default();
        let ready = status.conditions.iter().find(|one| one.type_ == "Ready");
        let ready = ready.filter(|one| one.status == "False" && one.message.contains("{nobody}"));
        ready.map(drop).ok_or_else(|| format!("{status:?}"))
    })
    .await;
    world.until_connected(&agent, true).await;
}
