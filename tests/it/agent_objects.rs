//! What the hub writes about agents and their own accounts, against a real API server.

use std::sync::LazyLock;

use kubesvc::{
    AccountObjects, AdmissionClass, AgentObjects, AgentSummary, KnownAgent, KubeAgentObjects, Registration,
    RegistrationError, Replicas, SessionRef,
};
use kubesvc_core::agent_resource::SessionEnd;
use kubesvc_core::object_names;
use kubesvc_core::spec::KubeconfigSource;
use kubesvc_core::wire::common::AccountRef;
use kubesvc_core::wire::ops::account_spec::Credential;
use kubesvc_core::wire::ops::agent_frame::Frame;
use kubesvc_core::wire::ops::hub_frame;
use kubesvc_core::wire::ops::{AccountSpec, StaticAccounts};
use kubesvc_core::{
    AgentId, FIELD_MANAGER, KubesvcAccount, KubesvcAccountSpec, KubesvcAgent, ORIGIN_LABEL, SessionId, State,
    ZoneId,
};
use kubesvc_runtime::kube_access::{ErrorClass, KubeAccess, KubeError};

use crate::world::{MAX_WAIT, World, install_definitions};
use kubesvc_testkit::controlplane;
use kubesvc_testkit::namespace::TestNamespace;
use kubesvc_testkit::simulated_agent::SimulatedAgent;
use kubesvc_testkit::simulated_agent::frames::{Introduction, Policy};
use kubesvc_testkit::{must, wait::eventually};

static AGENT: LazyLock<AgentId> = LazyLock::new(|| "agent-1".into());
static EAST: LazyLock<ZoneId> = LazyLock::new(|| "east".into());

fn session_of_agent(id: &SessionId) -> SessionRef<'_> {
    SessionRef { agent_id: &AGENT, zone: &EAST, id }
}

async fn namespace() -> TestNamespace {
    let plane = controlplane::shared().await;
    install_definitions(plane).await;
    plane.namespace().await
}

fn access(namespace: &TestNamespace) -> KubeAccess {
    KubeAccess::new(namespace.client(), FIELD_MANAGER)
}

fn registration(session_id: &str) -> Registration {
    Registration {
        agent_id: "agent-1".into(),
        zone: "east".into(),
        session_id: session_id.into(),
        boot_id: "b".into(),
        connect_seq: 1,
        replica: "r".into(),
        version: "1.0.0".into(),
        protocol: 1,
        connected_since: jiff::Timestamp::UNIX_EPOCH,
        cluster_uid: String::new(),
        streams_objects: true,
        needs_accounts: false,
        admission: AdmissionClass::Returning,
        identity: None,
    }
}

async fn agent_of(namespace: &TestNamespace) -> Option<KubesvcAgent> {
    let name = object_names::agent_object_name(&"agent-1".into(), &"east".into());
    must(namespace.api::<KubesvcAgent>().get_opt(&name).await.map_err(|error| error.to_string()))
}

/// Returns the agent as listed, once the API server's cache, which serves the list, has its last write.
async fn listed_as_written(agents: &KubeAgentObjects, namespace: &TestNamespace) -> KnownAgent {
    eventually("the list shows the last write", MAX_WAIT, async || {
        let version = agent_of(namespace).await.and_then(|agent| agent.metadata.resource_version);
        let listed = agents.known().await.map_err(|error| error.to_string())?;
        let current = listed.into_iter().find(|known| Some(&known.resource_version) == version.as_ref());
        current.ok_or_else(|| format!("the list is older than {version:?}"))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_object_is_updated_and_deleted_only_at_the_observed_version() {
    let namespace = namespace().await;
    let agents = KubeAgentObjects::new(
        &access(&namespace),
        namespace.name(),
        true,
        Replicas::alone(&"operator-0".into()),
    );
    must(agents.register(&registration("s1")).await.map_err(|error| error.to_string()));
    let note = AgentSummary {
        offers: None,
        held: 3,
        failed: 1,
        static_accounts: Some(vec![object_names::digest("one")]),
        static_sources: None,
        kept_from: None,
        rival: None,
        problem: Some(("ListRefused".into(), "too many".into())),
    };
    let seen = listed_as_written(&agents, &namespace).await;
    for session in ["s0", "s1", "s1"] {
        eventually("it is its turn to be noted on", MAX_WAIT, async || {
            match agents.write_summary(session_of_agent(&session.into()), &note).await {
                Ok(true) => Ok(()),
                Ok(false) => Err("it was written just now".to_owned()),
                Err(error) => Err(error.to_string()),
            }
        })
        .await;
    }
    let status = agent_of(&namespace).await.and_then(|agent| agent.status).expect("it is registered");
    assert_eq!((status.held, status.failed), (Some(3), Some(1)));
    assert_eq!(status.static_accounts, Some(vec![object_names::digest("one")]));
    assert_eq!(status.conditions[0].reason, "ListRefused");
    assert!(status.connected);

    must(agents.remove(&seen).await.map_err(|error| error.to_string()));
    assert!(agent_of(&namespace).await.is_some(), "it has changed since it was seen");
    let seen = listed_as_written(&agents, &namespace).await;
    must(agents.remove(&seen).await.map_err(|error| error.to_string()));
    assert!(agent_of(&namespace).await.is_none());
    must(agents.remove(&seen).await.map_err(|error| error.to_string()));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_replica_reserves_the_id_of_a_disconnected_agent_and_knows_approvals() {
    let namespace = namespace().await;
    let at = |replica: &str| {
        KubeAgentObjects::new(&access(&namespace), namespace.name(), false, Replicas::alone(&replica.into()))
    };
    let (here, there) = (at("r"), at("another"));
    let first = here.register(&registration("s1")).await.expect("it is new");
    assert!(!first.approved && !first.approved_once);
    let mut agent = agent_of(&namespace).await.expect("it is registered");
    agent.spec.approved = true;
    must(
        namespace
            .api::<KubesvcAgent>()
            .replace(
                &object_names::agent_object_name(&"agent-1".into(), &"east".into()),
                &Default::default(),
                &agent,
            )
            .await
            .map_err(|error| error.to_string()),
    );
    here.write_approved(session_of_agent(&"s1".into())).await.expect("it is written");
    assert!(
        agent_of(&namespace).await.is_some_and(|agent| agent.status.is_some_and(|one| one.approved_once))
    );

    here.write_disconnected(session_of_agent(&"s1".into()), SessionEnd::Requested)
        .await
        .expect("it is written");
    let next = |boot: &str| Registration {
        boot_id: boot.into(),
        connect_seq: 2,
        session_id: "s2".into(),
        replica: "another".into(),
        ..registration("s2")
    };
    let refused = there.register(&next("stranger")).await;
    assert!(matches!(refused, Err(RegistrationError::Kept(_))), "{refused:?}");
    let again = there.register(&next("b")).await.expect("it is the same process");
    assert!(again.approved && again.approved_once);
}

#[tokio::test(flavor = "multi_thread")]
async fn accounts_are_created_and_updated_only_at_the_judged_version() {
    let namespace = namespace().await;
    let accounts = access(&namespace);
    let class = |answer: Result<KubesvcAccount, KubeError>| answer.map_err(|error| error.class());
    let kubeconfig = KubeconfigSource { file: Some("/k/one".into()), ..Default::default() };
    let spec = KubesvcAccountSpec { kubeconfig, ..Default::default() };
    let mut account = KubesvcAccount::new("one", spec);
    account.metadata.namespace = Some(namespace.name().to_owned());
    let made = accounts.create(&account).await.expect("it is new");
    assert_eq!(class(accounts.create(&account).await), Err(ErrorClass::Conflict));
    let mut changed = made.clone();
    changed.spec.metrics = Some(true);
    let written = accounts.replace(&changed).await.expect("it is as it was made");
    let outdated = class(accounts.replace(&changed).await);
    assert_eq!(outdated, Err(ErrorClass::Conflict), "another version is there");
    let there = accounts.get(namespace.name(), "one").await.expect("an answer");
    assert_eq!(there.as_ref(), Some(&written));
    let mut bad = written;
    bad.spec.kubeconfig.file = Some("relative".into());
    let refused = accounts.replace(&bad).await.expect_err("the path is relative");
    assert!(refused.class() == ErrorClass::Invalid && refused.to_string().contains("absolute"), "{refused}");
    let mut lost = changed.clone();
    lost.metadata.name = Some("another".into());
    lost.metadata.uid = None;
    assert_eq!(class(accounts.replace(&lost).await), Err(ErrorClass::Gone), "there is none");
    let mut nowhere = account;
    nowhere.metadata.namespace = Some(format!("{}-missing", namespace.name()));
    assert_eq!(class(accounts.create(&nowhere).await), Err(ErrorClass::Refused));
}

fn entry(name: &str, path: &str) -> AccountSpec {
    AccountSpec {
        account: Some(AccountRef { name: name.to_owned(), ..AccountRef::default() }),
        credential: Some(Credential::File(path.to_owned())),
        ..AccountSpec::default()
    }
}

/// A world with a simulated agent that holds everything it is sent.
#[tokio::test(flavor = "multi_thread")]
async fn static_account_becomes_active_and_is_shown_in_the_fleet() {
    let world = World::start().await;
    let hub = format!("127.0.0.1:{}", world.operator().hub_port());
    let agent = SimulatedAgent::connect(&hub, Introduction::new("agent-1", "east"), Policy::default()).await;
    let agent = must(agent.map_err(|error| error.to_string()));
    let accounts = vec![entry("one", "/kubeconfigs/one"), entry("bad", "relative")];
    agent.send(Frame::StaticAccounts(StaticAccounts { accounts, complete: true }));
    world.until("one", State::Active).await;
    let object = world.object("one").await.expect("it is ACTIVE");
    assert_eq!(object.label(ORIGIN_LABEL), Some("agent"));
    assert_eq!(object.spec.zone_id.as_ref().map(ZoneId::as_str), Some("east"));
    assert_eq!(world.writes_to("one").len(), 3, "{:#?}", world.writes_to("one"));
    let told = agent.received().into_iter().find_map(|received| match received.frame {
        hub_frame::Frame::StaticAnswers(answers) => Some(answers.answers),
        _ => None,
    });
    let told = told.expect("the bad entry is answered");
    assert!(told[0].failure.as_ref().is_some_and(|failure| failure.message.contains("absolute path")));
    eventually("the agent's object shows its accounts", MAX_WAIT, async || {
        let name = object_names::agent_object_name(&"agent-1".into(), &"east".into());
        let shown = world.api::<KubesvcAgent>().get(&name).await.map_err(|error| error.to_string())?;
        let status = shown.status.clone().unwrap_or_default();
        let as_it_should = (status.held, status.failed) == (Some(1), Some(0))
            && status.static_accounts.as_ref().is_some_and(|digests| digests.len() == 2)
            && status.conditions.iter().any(|condition| condition.reason == "AccountsRefused");
        if as_it_should { Ok(()) } else { Err(format!("{shown:?}")) }
    })
    .await;
    let table = must(world.kubectl(&["get", "ksg"]).await.ok());
    let columns: Vec<_> = table.lines().next().unwrap_or_default().split_whitespace().collect();
    let expected = ["NAME", "ZONE", "VERSION", "HELD", "FAILED", "CONNECTED", "SINCE", "APPROVED"];
    assert_eq!(columns, expected, "{table}");
}
