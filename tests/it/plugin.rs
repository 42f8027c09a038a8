//! `kubectl kubesvc` against a real API server, operator and agents.

mod account_api;
mod change;
mod control_characters;
mod credential;
mod errors;
mod rights;
mod shells;
mod show;

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::world::World;
use kubesvc_testkit::kubectl::{self, Output};
use kubesvc_testkit::must;

/// The plugin binary.
const PLUGIN: &str = env!("CARGO_BIN_EXE_kubectl-kubesvc");

/// A kubeconfig whose user runs a program to log in, which kubesvc refuses.
const EXEC: &str = "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: 'https://c.example.com'}}]\n\
    users: [{name: u, user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: aws}}}]\n\
    contexts: [{name: x, context: {cluster: c, user: u}}]\ncurrent-context: x\n";

/// Runs the plugin in the world's namespace with all permissions.
async fn plugin(world: &World, arguments: &[&str]) -> Output {
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
