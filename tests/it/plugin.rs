//! `kubectl kubesvc` against a real API server, operator and agents; what it prints alone, against an API server by script.

mod account_api;
mod change;
mod control_characters;
mod credential;
mod errors;
mod rights;
mod scripted_api;
mod shells;
mod show;

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::world::{Agent, Cluster, World, case, run_cases};
use kubesvc_testkit::kubectl::{self, Output};
use kubesvc_testkit::must;

/// The plugin binary.
const PLUGIN: &str = env!("CARGO_BIN_EXE_kubectl-kubesvc");

/// A kubeconfig whose user runs a program to log in, which kubesvc refuses.
const EXEC: &str = "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: 'https://c.example.com'}}]\n\
    users: [{name: u, user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: aws}}}]\n\
    contexts: [{name: x, context: {cluster: c, user: u}}]\ncurrent-context: x\n";

/// A world that cases share, with a cluster and an agent of zone east.
struct Scene {
    world: World,
    cluster: Cluster,
    agent: Agent,
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_show_and_change_accounts_agents_and_credentials_as_far_as_the_caller_may() {
    let world = World::prepare().without_operator().start().await;
    rights::apply_roles(&world).await;
    run_cases([
        case(change::gitops_owned_account_is_unchanged_unless_forced(&world)),
        case(
            rights::users_of_accounts_have_the_verbs_of_their_role_and_see_no_secret_of_the_operators_cluster(
                &world,
            ),
        ),
    ])
    .await;
    world.operator().start().await;
    let cluster = world.cluster("spinnaker").await;
    let agent = world.agent("agent-1").zone("east").start().await;
    let scene = Scene { world, cluster, agent };
    run_cases([case(change::deactivate_activate_retry_and_wait_work(&scene))]).await;
    run_cases([case(show::accounts_and_agents_are_shown_in_every_form(&scene))]).await;
    let target = credential::Target::start().await;
    run_cases([
        case(credential::account_gets_a_credential_and_keeps_its_agent_when_it_is_renewed(&scene, &target)),
        case(rights::viewers_see_everything_and_change_nothing(&scene)),
        case(rights::operators_change_accounts_and_agents_and_read_no_secret(&scene)),
        case(change::agent_gets_accounts_only_while_approved(&scene)),
    ])
    .await;
    run_cases([
        case(credential::rights_of_the_presets_are_those_of_the_agents_chart(&scene.world, &target)),
        case(credential::helm_does_everything_with_its_preset_and_only_installs_with_deploy(
            &scene.world,
            &target,
        )),
        case(credential::rights_can_be_limited_to_namespaces(&scene.world, &target)),
        case(credential::what_is_somebody_elses_is_left_alone(&scene.world, &target)),
    ])
    .await;
}

/// Runs the plugin in the world's namespace with all permissions.
pub(crate) async fn plugin(world: &World, arguments: &[&str]) -> Output {
    let all = ["-n", world.namespace()].into_iter().chain(arguments.iter().copied());
    run(&world.control_plane().kubeconfig_path(), all).await
}

/// Runs the plugin with a kubeconfig.
async fn run<'a>(kubeconfig: &Path, arguments: impl IntoIterator<Item = &'a str>) -> Output {
    must(kubectl::run(Path::new(PLUGIN), kubeconfig, arguments, "").await)
}

/// Runs a program with variables in its environment.
async fn run_with(kubeconfig: &Path, environment: &[&str], program: &str, arguments: &[&str]) -> Output {
    let all = environment.iter().chain([&program]).chain(arguments).copied();
    must(kubectl::run(Path::new("/usr/bin/env"), kubeconfig, all, "").await)
}

/// Standard output of a run that must succeed.
async fn shown(world: &World, arguments: &[&str]) -> String {
    must(plugin(world, arguments).await.ok())
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| unreachable!("{error}: {text}"))
}

/// The words of the table row that begins with `name`.
#[track_caller]
fn row<'t>(table: &'t str, name: &str) -> Vec<&'t str> {
    let found = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    found
        .into_iter()
        .find(|words| words.first() == Some(&name))
        .unwrap_or_else(|| unreachable!("no {name}:\n{table}"))
}

/// Folder of the plugin, for `PATH`.
fn folder() -> PathBuf {
    Path::new(PLUGIN).parent().expect("a program is in a folder").to_owned()
}
