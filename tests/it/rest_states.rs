//! What each request does in each state: the table of the REST API, cell by cell, on real parts.
//!
//! Each state is reached as in real life: DEACTIVATING and DELETING with an agent that was paused, ORPHANED
//! with one that was killed, TO_MIGRATE while a new leader waits for agents, TO_DEACTIVATE with an operator
//! that lacks permission to write its decision. Each cell has an account of its own.

mod malformed;
mod shapes;
mod table;

use futures::future::join_all;
use kubesvc_core::{KubesvcAccount, State};
use serde_json::{Value, json};

use self::table::{
    ACTIVATING, ACTIVE, DEACTIVATING, DELETE_FAILED, DELETING, FAILED, FAILED_TO_STOP, INACTIVE, NO_ACCOUNT,
    ORPHANED, TO_DEACTIVATE, TO_MIGRATE,
};
use crate::world::{Agent, Answer, Call, Cluster, World, case, run_cases};

/// A request to the REST API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    Add,
    Activate,
    Deactivate,
    Put,
    Delete,
}

const REQUESTS: [Request; 5] =
    [Request::Add, Request::Activate, Request::Deactivate, Request::Put, Request::Delete];

/// Expected status code, and the states that may be shown right after it: that of the table, and those that
/// the leader turns it into at once. `gone` means 404.
type Cell = (u16, &'static [&'static str]);

/// One row of the table: its label in `docs/rest.md`, the prefix of its accounts' names, the state they show,
/// and the five cells.
struct StateRow {
    row: &'static str,
    name: &'static str,
    shown: &'static str,
    cells: [Cell; 5],
}

impl StateRow {
    fn account(&self, request: Request) -> String {
        format!("{}-{request:?}", self.name).to_lowercase()
    }

    fn accounts(&self) -> Vec<String> {
        REQUESTS.iter().map(|request| self.account(*request)).collect()
    }

    /// Creates the five accounts; without a cluster, with a kubeconfig that is refused.
    async fn create(&self, world: &World, zone: &str, cluster: Option<&Cluster>) {
        let kubeconfig = cluster.map_or_else(|| "kind: Nonsense".to_owned(), Cluster::kubeconfig);
        let made = self.accounts().into_iter().map(|name| {
            let kubeconfig = kubeconfig.clone();
            async move { world.account(&name).zone(zone).kubeconfig(&kubeconfig).create().await }
        });
        join_all(made).await;
    }

    async fn until(&self, world: &World, state: State) {
        join_all(self.accounts().iter().map(|name| world.until(name, state))).await;
    }

    async fn patch(&self, world: &World, patch: &Value) {
        join_all(self.accounts().iter().map(|name| world.patch(name, patch.clone()))).await;
    }

    async fn delete(&self, world: &World) {
        join_all(self.accounts().iter().map(|name| world.delete(name))).await;
    }

    /// Checks all five cells.
    async fn hold(&self, world: &World) {
        for (request, (code, then)) in REQUESTS.into_iter().zip(self.cells) {
            let name = self.account(request);
            world.until_shown(&name, self.shown).await;
            let before = world.object(&name).await.expect("it was shown");
            for answer in ask(world, request, &name).await {
                assert_eq!(answer.status, code, "{request:?} in {}: {answer}", self.name);
                if request == Request::Add {
                    assert_eq!(answer.json, json!([existing(&name, self.shown, &before)]), "{}", self.name);
                } else if code >= 400 {
                    shapes::hold_error(&answer, code);
                    assert!(answer.json["message"].to_string().contains(&name), "{answer}");
                }
            }
            let shown = world.shown(&name).await.unwrap_or_else(|| "gone".to_owned());
            assert!(
                then.contains(&shown.as_str()),
                "{request:?} in {} shows {shown}, not {then:?}",
                self.name
            );
            if request == Request::Put && code < 400 {
                let after = world.object(&name).await.expect("it was not deleted");
                assert_eq!(after.spec.kinds, ["pod"], "{}: stored", self.name);
                assert!(after.metadata.generation > before.metadata.generation, "{}", self.name);
            }
            if code >= 400 && request != Request::Add {
                let after = world.object(&name).await.map(|after| after.spec);
                assert_eq!(after, Some(before.spec), "{}: a refused request changes nothing", self.name);
            }
        }
    }
}

/// The entry in the 409 response of the two POSTs.
fn existing(name: &str, state: &str, account: &KubesvcAccount) -> Value {
    json!({"name": name, "zoneId": account.spec.zone_id, "state": state})
}

async fn ask(world: &World, request: Request, name: &str) -> Vec<Answer> {
    let patch = |state: &str| json!([{"name": name, "state": state}]);
    let file = "/opt/armory/some/kubeconfig";
    match request {
        Request::Add => {
            let body = json!({"name": name, "kubeconfigFile": file});
            vec![world.rest("POST", "/armory/accounts/dynamic", &body).await]
        }
        Request::Activate => vec![world.rest("PATCH", "/armory/accounts", &patch("ACTIVE")).await],
        Request::Deactivate => {
            vec![world.rest("PATCH", "/armory/accounts/dynamic", &patch("INACTIVE")).await]
        }
        Request::Put => {
            vec![
                world.rest("PUT", "/armory/accounts/dynamic", &json!({"name": name, "kinds": ["pod"]})).await,
            ]
        }
        Request::Delete if name.len().is_multiple_of(2) => {
            vec![world.call(Call::new("DELETE", "/armory/accounts").bytes(json!([name]).to_string())).await]
        }
        Request::Delete => vec![world.call(Call::new("DELETE", &format!("/armory/accounts/{name}"))).await],
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stable_states_answer_requests_as_documented() {
    let (world, cluster, [_east, killed, mute]) = World::without_retries().await;
    FAILED.create(&world, "east", None).await;
    for line in [ACTIVE, INACTIVE] {
        line.create(&world, "east", Some(&cluster)).await;
    }
    INACTIVE.patch(&world, &json!({"spec": {"state": "INACTIVE"}})).await;
    ORPHANED.create(&world, "south", Some(&cluster)).await;
    for line in [FAILED_TO_STOP, DELETE_FAILED] {
        line.create(&world, "mute", Some(&cluster)).await;
        line.until(&world, State::Active).await;
    }
    ORPHANED.until(&world, State::Active).await;
    killed.kill();
    mute.pause();
    FAILED_TO_STOP.patch(&world, &json!({"spec": {"state": "INACTIVE"}})).await;
    DELETE_FAILED.delete(&world).await;
    FAILED_TO_STOP.until(&world, State::Failed).await;
    DELETE_FAILED.until(&world, State::DeleteFailed).await;
    for line in table::LASTING {
        line.hold(&world).await;
    }

    mute.resume();
    world.until_gone(&DELETE_FAILED.account(Request::Delete)).await;
    world.until(&FAILED_TO_STOP.account(Request::Activate), State::Active).await;
    world.until(&FAILED_TO_STOP.account(Request::Deactivate), State::Inactive).await;
    let put = world.until(&ACTIVE.account(Request::Put), State::Active).await;
    assert_eq!(put.status_or_default().epoch.0, 2, "a changed definition activates anew");
    world.until(&ACTIVE.account(Request::Deactivate), State::Inactive).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn transient_and_requested_states_and_malformed_requests_are_answered_as_documented() {
    let (world, cluster, agent) = World::with_long_timeouts().await;
    // The first two count all accounts, the third those that the agent holds.
    run_cases([case(malformed::malformed_requests_are_refused_and_change_nothing(&world))]).await;
    run_cases([case(shapes::request_naming_several_accounts_is_all_or_nothing(&world))]).await;
    run_cases([case(shapes::agents_are_listed_and_disconnected(&world, &agent))]).await;
    run_cases([
        case(shapes::adding_from_a_credentials_source_is_refused_with_the_alternative(&world)),
        case(transient_states_answer_requests_as_documented(&world, &cluster, &agent)),
        case(unknown_accounts_answer_requests_as_documented(&world)),
        case(shapes::account_names_that_are_no_labels_or_equal_routes_work(&world)),
        case(shapes::gitops_owned_objects_are_unchanged_unless_forced(&world)),
    ])
    .await;
    run_cases([case(requested_states_are_shown_before_they_begin(&world, &cluster))]).await;
}

async fn transient_states_answer_requests_as_documented(world: &World, cluster: &Cluster, agent: &Agent) {
    TO_MIGRATE.create(world, "west", Some(cluster)).await;
    for line in [DEACTIVATING, DELETING] {
        line.create(world, "east", Some(cluster)).await;
    }
    for line in [DEACTIVATING, DELETING] {
        line.until(world, State::Active).await;
    }
    agent.pause();
    DEACTIVATING.patch(world, &json!({"spec": {"state": "INACTIVE"}})).await;
    DELETING.delete(world).await;
    ACTIVATING.create(world, "east", Some(cluster)).await;
    for line in table::PASSING {
        line.hold(world).await;
    }
    agent.resume();
    for name in DELETING.accounts() {
        world.until_gone(&name).await;
    }
    for line in [ACTIVATING, DEACTIVATING] {
        world.until_gone(&line.account(Request::Delete)).await;
        world.until(&line.account(Request::Activate), State::Active).await;
        world.until(&line.account(Request::Deactivate), State::Inactive).await;
    }
    world.until(&ACTIVATING.account(Request::Put), State::Active).await;
    world.until_gone(&TO_MIGRATE.account(Request::Delete)).await;
    world.until(&TO_MIGRATE.account(Request::Deactivate), State::Inactive).await;
}

async fn requested_states_are_shown_before_they_begin(world: &World, cluster: &Cluster) {
    TO_DEACTIVATE.create(world, "east", Some(cluster)).await;
    TO_DEACTIVATE.until(world, State::Active).await;
    world.forbid_status_writes().await;
    TO_DEACTIVATE.patch(world, &json!({"spec": {"state": "INACTIVE"}})).await;
    for line in table::ASKED {
        line.hold(world).await;
    }
    world.allow_status_writes().await;
    for name in [Request::Deactivate, Request::Put].map(|request| TO_DEACTIVATE.account(request)) {
        world.until(&name, State::Inactive).await;
    }
    world.until_gone(&TO_DEACTIVATE.account(Request::Delete)).await;
    world.until(&TO_DEACTIVATE.account(Request::Activate), State::Active).await;
}

async fn unknown_accounts_answer_requests_as_documented(world: &World) {
    for (request, (code, then)) in REQUESTS.into_iter().zip(NO_ACCOUNT.cells) {
        // Names of each length: they are deleted in different ways.
        for name in [
            NO_ACCOUNT.account(request),
            format!("{}-2", NO_ACCOUNT.account(request)),
            format!("{}-10", NO_ACCOUNT.account(request)),
        ] {
            for answer in ask(world, request, &name).await {
                if code < 400 {
                    assert_eq!((answer.status, &answer.json), (code, &json!([])), "{request:?}: {answer}");
                } else {
                    shapes::hold_error(&answer, code);
                    assert!(answer.json["message"].to_string().contains(&name), "{answer}");
                }
            }
            let shown = world.shown(&name).await.unwrap_or_else(|| NO_ACCOUNT.shown.to_owned());
            assert!(then.contains(&shown.as_str()), "{request:?} of nobody shows {shown}");
        }
    }
}
