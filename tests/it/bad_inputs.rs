//! The inventory of bad inputs: what is sent, and the expected answer, which must be clear and name the thing
//! that is wrong. All inputs that arrive in the same way share one world. At its end the same processes still
//! run, and an unrelated account has been ACTIVE all the time. Pure parsers are called as functions.
//!
//! | file | sender |
//! |---|---|
//! | `hellos.rs` | programs with a false identity |
//! | `unknown_account_reports.rs` | agents that report about accounts they were never given |
//! | `invalid_reports.rs` | an agent that was given an account and sends invalid reports about it |
//! | `own_account_lists.rs` | agents with an invalid list of their own accounts |
//! | `objects.rs` | people with kubectl: names, statuses edited by hand |
//! | `credentials.rs` | people with Secrets |
//! | `rows.rs` | people with SQL |
//! | `settings.rs`, `parsed.rs` | people with files |
//!
//! Inputs to a single part are tested elsewhere: `crd_rules.rs`, `bad_objects.rs` (kubeconfigs),
//! `references.rs`, `rest_states/malformed.rs`, `wire_frames.rs` (below gRPC), and the tables next to each
//! parser in `src/`.

mod credentials;
mod hellos;
mod invalid_reports;
mod objects;
mod own_account_lists;
mod parsed;
mod raw_stream;
mod rows;
mod settings;
mod unknown_account_reports;

use std::collections::BTreeSet;

use kubesvc_core::State;
use serde_json::json;

use crate::world::{Agent, World};

/// Minimum number of bad inputs.
const AT_LEAST: usize = 120;

/// A world with a healthy account that a real agent holds.
struct HealthyWorld {
    world: World,
    agent: Agent,
    kubeconfig: String,
    operator: u32,
    writes: usize,
}

impl HealthyWorld {
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
    async fn check_untouched(&self, after: &str) {
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
fn bad_inputs_have_distinct_names_and_none_is_missing() {
    let groups = [
        hellos::names(),
        unknown_account_reports::names(),
        invalid_reports::names(),
        own_account_lists::names(),
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
async fn bad_inputs_are_named_and_an_unrelated_account_stays_active() {
    let healthy = HealthyWorld::start().await;
    hellos::try_all(&healthy.world).await;
    healthy.check_untouched("bad hellos").await;
    unknown_account_reports::try_all(&healthy.world).await;
    healthy.check_untouched("reports about accounts that were never given").await;
    own_account_lists::try_all(&healthy.world).await;
    healthy.check_untouched("bad lists of agents' own accounts").await;
    invalid_reports::try_all(&healthy.world).await;
    healthy.check_untouched("an agent that sends invalid reports").await;
    objects::try_all(&healthy.world, &healthy.kubeconfig).await;
    healthy.check_untouched("odd names and edited statuses").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_secrets_are_named_and_accounts_activate_once_they_are_fixed() {
    let healthy = HealthyWorld::start().await;
    credentials::try_all(&healthy.world, &healthy.kubeconfig).await;
    healthy.check_untouched("Secrets that are not what they should be").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_edited_by_hand_are_restored_and_never_decide_anything() {
    let healthy = HealthyWorld::start().await;
    rows::try_all(&healthy.world).await;
}
