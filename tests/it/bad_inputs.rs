//! The inventory of bad inputs: what is sent, and the expected answer, which must be clear and name the thing
//! that is wrong. All inputs that arrive in the same way share one world. At its end the same processes still
//! run, and an unrelated account has been ACTIVE all the time. Pure parsers are called as functions.
//!
//! | file | sender |
//! |---|---|
//! | `hellos.rs` | programs with a false identity |
//! | `words.rs` | agents that report about accounts they were never given |
//! | `liars.rs` | an agent that was given an account and sends nonsense about it |
//! | `own_lists.rs` | agents with an invalid list of their own accounts |
//! | `objects.rs` | people with kubectl: names, statuses edited by hand |
//! | `credentials.rs` | people with Secrets |
//! | `rows.rs` | people with SQL |
//! | `settings.rs`, `parsed.rs` | people with files |
//!
//! Inputs to a single part are tested elsewhere: `crd_rules.rs`, `bad_objects.rs` (kubeconfigs),
//! `references.rs`, `rest_states/malformed.rs`, `wire_frames/` (below gRPC), and the tables next to each
//! parser in `src/`.

mod credentials;
mod hellos;
mod liars;
mod line;
mod objects;
mod own_lists;
mod parsed;
mod rows;
mod settings;
mod words;

use std::collections::BTreeSet;

use kubesvc::account::State;
use serde_json::json;

use crate::world::{Agent, World};

/// Minimum number of bad inputs.
const AT_LEAST: usize = 120;

/// A world with a healthy account that a real agent holds.
struct Calm {
    world: World,
    agent: Agent,
    kubeconfig: String,
    operator: u32,
    writes: usize,
}

impl Calm {
    async fn start() -> Self {
        let world = World::prepare().setting("kubesvc.cache.operationWaitMs", 60_000).start().await;
        let kubeconfig = world.cluster("spinnaker").await.kubeconfig();
        let agent = world.agent("agent-1").zone("east").start().await;
        world.account("good").zone("east").kubeconfig(&kubeconfig).create().await;
        world.until("good", State::Active).await;
        world.until_row("good", "ACTIVE").await;
        let (operator, writes) = (world.operator().id(), world.writes_to("good").len());
        Self { world, agent, kubeconfig, operator, writes }
    }

    /// Checks that the process is the same, and that the account has not been touched.
    async fn hold(&self, after: &str) {
        let world = &self.world;
        assert!(world.operator().is_running(), "{after}: the operator has ended");
        assert_eq!(world.operator().id(), self.operator, "{after}: it is another process");
        assert_eq!(world.get("/health/readiness").await.status, 200, "{after}");
        assert_eq!(world.shown("good").await.as_deref(), Some("ACTIVE"), "{after}");
        let writes = world.writes_to("good");
        assert_eq!(writes.len(), self.writes, "{after}: {writes:#?}");
        let own = world.ask_agent(&self.agent).await.expect("the agent runs");
        assert_eq!(own["connected"], json!(true), "{after}: {own}");
        for (name, log) in world.all_logs() {
            assert!(!log.contains("panicked"), "{after}: the log of {name} tells of a panic");
        }
    }
}

#[test]
fn each_bad_input_is_named_once_and_none_has_been_lost() {
    let groups = [
        hellos::names(),
        words::names(),
        liars::names(),
        own_lists::names(),
        objects::names(),
        credentials::names(),
        rows::names(),
        settings::names(),
        parsed::names(),
    ];
    let all: Vec<_> = groups.iter().flatten().collect();
    let distinct: BTreeSet<_> = all.iter().collect();
    assert_eq!(all.len(), distinct.len(), "a name stands there twice");
    assert!(all.len() >= AT_LEAST, "{} bad inputs", all.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_inputs_to_programs_are_answered_by_name_and_the_account_beside_them_stays_active() {
    let calm = Calm::start().await;
    hellos::try_all(&calm.world).await;
    calm.hold("bad hellos").await;
    words::try_all(&calm.world).await;
    calm.hold("words about accounts that were never given").await;
    own_lists::try_all(&calm.world).await;
    calm.hold("bad lists of agents' own accounts").await;
    liars::try_all(&calm.world).await;
    calm.hold("an agent of its own zone that lies").await;
    objects::try_all(&calm.world, &calm.kubeconfig).await;
    calm.hold("odd names and edited statuses").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_secrets_are_said_by_name_and_each_account_is_active_once_its_secret_is_good() {
    let calm = Calm::start().await;
    credentials::try_all(&calm.world, &calm.kubeconfig).await;
    calm.hold("Secrets that are not what they should be").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_edited_by_hand_in_any_way_are_undone_and_nothing_is_decided_from_them() {
    let calm = Calm::start().await;
    rows::try_all(&calm.world).await;
}
