//! How Argo CD and Flux judge an account in each state.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kubesvc_core::conditions::{ConditionSummary, standard_conditions};
use kubesvc_core::{DesiredState, KubesvcAccount, KubesvcAccountSpec, KubesvcAccountStatus, State};
use serde_json::{Value, json};

use super::verdict::{SCRIPT, Verdict, judge};
use crate::world::{World, condition};
use kubesvc_testkit::must;

/// Result of kstatus and health in Argo CD: as desired, in progress, needs action, being deleted.
const GOOD: [&str; 2] = ["Current", "Healthy"];
const UNDER_WAY: [&str; 2] = ["InProgress", "Progressing"];
const BAD: [&str; 2] = ["Failed", "Degraded"];
const GOING: [&str; 2] = ["Terminating", "Progressing"];

fn hold(name: &str, verdict: &Verdict, expected: [&str; 2]) {
    assert_eq!([verdict.kstatus.as_str(), verdict.argo.as_str()], expected, "{name}: {verdict:?}");
}

/// An account with the status that the lifecycle would write for a summary.
fn told(state: State, desired: DesiredState, story: &ConditionSummary) -> KubesvcAccount {
    let mut account = KubesvcAccount::new("prod", KubesvcAccountSpec::default());
    account.spec.state = Some(desired);
    account.spec.kubeconfig.file = Some("/opt/armory/prod".to_owned());
    account.metadata.generation = Some(3);
    let now = Time(jiff::Timestamp::UNIX_EPOCH);
    account.status = Some(KubesvcAccountStatus {
        state: Some(state),
        observed_generation: 3,
        conditions: standard_conditions(&[], story, true, None, 3, &now),
        ..KubesvcAccountStatus::default()
    });
    account
}

/// Every state with either desired state, and failures with and without automatic retry.
fn states() -> Vec<(String, KubesvcAccount, [&'static str; 2])> {
    let mut all = Vec::new();
    for state in State::ALL.into_iter().filter(|one| !matches!(one, State::Failed | State::DeleteFailed)) {
        for desired in [DesiredState::Active, DesiredState::Inactive] {
            let as_desired = matches!(
                (state, desired),
                (State::Active, DesiredState::Active) | (State::Inactive, DesiredState::Inactive)
            );
            let account = told(state, desired, &ConditionSummary::of_state(state, desired));
            all.push((
                format!("{state}, to be {desired:?}"),
                account,
                if as_desired { GOOD } else { UNDER_WAY },
            ));
        }
    }
    for (state, stalled, expected) in [
        (State::Failed, false, UNDER_WAY),
        (State::Failed, true, BAD),
        // The case without the deletion timestamp, which both tools check first.
        (State::DeleteFailed, true, BAD),
    ] {
        let story = ConditionSummary::failed("Timeout", "agent-1: no answer".to_owned(), stalled);
        let account = told(state, DesiredState::Active, &story);
        all.push((format!("{state}, stalled: {stalled}"), account, expected));
    }
    let moving = ConditionSummary::of_state(State::Active, DesiredState::Active)
        .still_reconciling("ZoneAwaited", "moves when an agent of zone west connects".to_owned());
    all.push((
        "ACTIVE, to be moved".to_owned(),
        told(State::Active, DesiredState::Active, &moving),
        UNDER_WAY,
    ));
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn every_state_has_the_expected_health_in_both_tools() {
    let states = states();
    let objects: Vec<Value> = states.iter().map(|(_, account, _)| json!(account)).collect();
    let verdicts = judge(&objects);
    for ((name, account, expected), verdict) in states.iter().zip(&verdicts) {
        hold(name, verdict, *expected);
        let ready = condition(account, "Ready").expect("it is always told");
        assert!(verdict.message.contains(&ready.message), "{name}: {verdict:?}");
    }
    assert_eq!(verdicts.len(), 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn status_of_an_older_generation_is_in_progress() {
    let (_, good, _) = states().into_iter().find(|(_, _, expected)| *expected == GOOD).expect("there is one");
    let mut edited = good.clone();
    edited.metadata.generation = Some(4);
    let mut defaulted = good.clone();
    defaulted.status =
        Some(KubesvcAccountStatus { observed_generation: -1, ..KubesvcAccountStatus::default() });
    for (name, verdict) in ["edited", "defaulted"].iter().zip(judge(&[json!(edited), json!(defaulted)])) {
        hold(name, &verdict, UNDER_WAY);
    }
    // An object without any status, which no API server with this definition stores: Argo CD must not call it
    // healthy.
    let mut bare = json!(good);
    bare["status"] = Value::Null;
    assert_eq!(judge(&[bare])[0].argo, "Progressing");
}

async fn judged(world: &World, name: &str) -> Verdict {
    let account = world.object(name).await.expect("it is there");
    judge(&[json!(account)]).remove(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn account_without_operator_is_in_progress() {
    let world = World::prepare().without_operator().start().await;
    world.account("new").spec("kubeconfig", json!({"file": "/opt/armory/prod"})).create().await;
    let account = world.object("new").await.expect("it was made");
    assert_eq!(account.status_or_default().observed_generation, -1);
    hold("new", &judged(&world, "new").await, UNDER_WAY);
    world.account("parked").spec("kubeconfig", json!({"file": "/opt/armory/prod"})).inactive().create().await;
    hold("parked", &judged(&world, "parked").await, UNDER_WAY);
}

#[tokio::test(flavor = "multi_thread")]
async fn stable_states_written_by_an_operator_have_the_expected_health() {
    let (world, cluster, [_east, killed, mute]) = World::without_retries().await;
    let good = cluster.kubeconfig();
    world.account("active").zone("east").kubeconfig(&good).create().await;
    world.account("parked").zone("east").kubeconfig(&good).inactive().create().await;
    world.account("refused").zone("east").kubeconfig("kind: Nonsense").create().await;
    world.account("retried").zone("east").create().await;
    world.account("nobody").zone("west").kubeconfig(&good).create().await;
    world.account("orphan").zone("south").kubeconfig(&good).create().await;
    world.account("undeletable").zone("mute").kubeconfig(&good).create().await;
    for name in ["active", "orphan", "undeletable"] {
        world.until(name, State::Active).await;
    }
    killed.kill();
    mute.pause();
    world.delete("undeletable").await;
    for (name, state, expected) in [
        ("active", State::Active, GOOD),
        ("parked", State::Inactive, GOOD),
        ("refused", State::Failed, BAD),
        ("retried", State::Failed, UNDER_WAY),
        ("nobody", State::Failed, UNDER_WAY),
        ("orphan", State::Orphaned, UNDER_WAY),
        ("undeletable", State::DeleteFailed, GOING),
    ] {
        world.until(name, state).await;
        hold(name, &judged(&world, name).await, expected);
    }
    mute.resume();
    world.until_gone("undeletable").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn account_waiting_for_an_agent_is_in_progress() {
    let (world, cluster, agent) = World::with_long_timeouts().await;
    let good = cluster.kubeconfig();
    for name in ["stopping", "going"] {
        world.account(name).zone("east").kubeconfig(&good).create().await;
        world.until(name, State::Active).await;
    }
    agent.pause();
    world.account("starting").zone("east").kubeconfig(&good).create().await;
    world.patch("stopping", json!({"spec": {"state": "INACTIVE"}})).await;
    world.delete("going").await;
    for (name, state, expected) in [
        ("starting", State::Activating, UNDER_WAY),
        ("stopping", State::Deactivating, UNDER_WAY),
        ("going", State::Deleting, GOING),
    ] {
        world.until(name, state).await;
        hold(name, &judged(&world, name).await, expected);
    }
    agent.resume();
    world.until_gone("going").await;
    world.until("stopping", State::Inactive).await;
    hold("stopping", &judged(&world, "stopping").await, GOOD);
    world.until("starting", State::Active).await;
    hold("starting", &judged(&world, "starting").await, GOOD);
}

/// The command from the documentation, on a ConfigMap like Argo CD's: the script arrives unchanged under the
/// key that Argo CD reads, and existing data stays.
#[tokio::test(flavor = "multi_thread")]
async fn argo_cd_patch_contains_the_health_script() {
    let world = World::prepare().without_operator().start().await;
    let made = ["create", "configmap", "argocd-cm", "--from-literal=admin.enabled=true"];
    must(world.kubectl(&made).await.ok());
    let file = concat!("--patch-file=", env!("CARGO_MANIFEST_DIR"), "/config/argocd/argocd-cm-patch.yaml");
    must(world.kubectl(&["patch", "configmap", "argocd-cm", "--type=merge", file]).await.ok());
    let stored = must(world.kubectl(&["get", "configmap", "argocd-cm", "-o", "json"]).await.ok());
    let stored: Value = serde_json::from_str(&stored).expect("kubectl prints JSON");
    let script = std::fs::read_to_string(SCRIPT).expect("the script is there");
    for kind in ["KubesvcAccount", "KubesvcMigration"] {
        let key = format!("resource.customizations.health.kubesvc.io_{kind}");
        let differs = "config/argocd/argocd-cm-patch.yaml does not hold config/argocd/health.lua";
        assert_eq!(stored["data"][key].as_str(), Some(script.as_str()), "{differs}");
    }
    assert_eq!(stored["data"]["admin.enabled"], "true");
}
