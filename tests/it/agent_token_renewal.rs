//! An agent's token for the hub, with the real programs: a file that is swapped behind a link, and a command.

use std::fs;
use std::os::unix::fs::symlink;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use kubesvc_core::State;
use serde_json::json;

use crate::world::{MAX_WAIT, Prepare, World};
use kubesvc_testkit::folder::Folder;
use kubesvc_testkit::must;
use kubesvc_testkit::wait::eventually;

/// A token with an end that no hub verifies. `name` makes it another one.
fn token(name: &str) -> String {
    let now = jiff::Timestamp::now().as_second();
    let claims = json!({"sub": name, "iat": now, "exp": now + 3600}).to_string();
    format!("e30.{}.CANARY", URL_SAFE_NO_PAD.encode(claims))
}

fn write_version(folder: &Folder, version: &str) {
    let at = |name: &str| folder.file(name);
    fs::create_dir(at(version)).expect("a folder");
    fs::write(at(version).join("token"), token(version)).expect("written");
    symlink(version, at("..new")).expect("a link");
    fs::rename(at("..new"), at("..data")).expect("renamed");
}

fn prepare() -> Prepare {
    World::prepare().with_long_timeouts()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_is_swapped_costs_no_write_to_an_account_and_no_log_has_it() {
    let folder = must(Folder::new("token"));
    symlink("..data/token", folder.file("token")).expect("a link");
    write_version(&folder, "first");
    let world = prepare().start().await;
    let file = json!(folder.file("token").display().to_string());
    let agent =
        world.agent("agent-1").log_level("trace").setting("clouddriver.auth.tokenFile", file).start().await;
    let cluster = world.cluster("prod").await;
    world.account("prod").zone(agent.zone()).kubeconfig(&cluster.kubeconfig()).create().await;
    world.until("prod", State::Active).await;
    let writes = world.writes_to("prod").len();
    write_version(&folder, "second");
    eventually("the other token is in use", MAX_WAIT, async || {
        let log = agent.log_text();
        if log.contains("clouddriver.auth.tokenFile has another token") { Ok(()) } else { Err(log) }
    })
    .await;
    world.until_connected(&agent, true).await;
    assert_eq!(world.state("prod").await, Some(State::Active));
    assert_eq!(world.writes_to("prod").len(), writes, "{:#?}", world.writes_to("prod"));
    let log = agent.log_text();
    assert!(!log.contains("retrying in"), "the session was never away: {log}");
    assert!(log.contains("the token of `clouddriver.auth.tokenFile` is sent without TLS"), "{log}");
    assert!(!log.contains("CANARY") && !world.operator().log_text().contains("CANARY"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_has_no_token_is_shown_and_waited_for() {
    let folder = must(Folder::new("token"));
    let world = prepare().start().await;
    let file = folder.file("token");
    let script = format!("echo CANARY >&2; cat {} || exit 7", file.display());
    let agent = world
        .agent("agent-1")
        .setting("clouddriver.auth.tokenCommand.command", json!("sh"))
        .setting("clouddriver.auth.tokenCommand.args", json!(["-c", script]))
        .setting("clouddriver.auth.tokenCommand.format", json!("raw"))
        .launch();
    eventually("the agent says that it has no token", MAX_WAIT, async || {
        let log = agent.log_text();
        let told = log.contains("the hub is not dialled without a token") && log.contains("exit code 7");
        if told { Ok(()) } else { Err(log) }
    })
    .await;
    fs::write(&file, token("later")).expect("written");
    world.until_connected(&agent, true).await;
    let log = agent.log_text();
    assert!(!log.contains("CANARY"), "{log}");
}
