//! kubectl finds the plugin, and shells complete it.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use kube::api::{Patch, PatchParams};
use kubesvc_core::KubesvcAccount;
use serde_json::json;

use super::{PLUGIN, folder, run, run_with, shown};
use crate::world::World;
use kubesvc_testkit::folder::Folder;
use kubesvc_testkit::{assets, controlplane, must};

async fn real_kubectl() -> String {
    let assets = tokio::task::spawn_blocking(assets::ensure).await.map_err(|error| error.to_string());
    must(assets.and_then(|assets| assets)).kubectl.display().to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_runs_and_completes_the_plugin() {
    let world = World::prepare().without_operator().start().await;
    world.account("production").create().await;
    let tools = must(Folder::new("tools"));
    let script = "#!/bin/sh\nexec kubectl-kubesvc __complete \"$@\"\n";
    let completer = must(tools.write("kubectl_complete-kubesvc", script));
    std::fs::set_permissions(&completer, std::fs::Permissions::from_mode(0o755)).expect("our own file");
    let path = format!("PATH={}:{}:/usr/bin:/bin", folder().display(), tools.path().display());
    let (kubectl, kubeconfig) = (real_kubectl().await, world.control_plane().kubeconfig_path());

    let call = |arguments: &'static [&'static str]| {
        let (path, kubectl, kubeconfig) = (path.clone(), kubectl.clone(), kubeconfig.clone());
        async move { run_with(&kubeconfig, &[&path], &kubectl, arguments).await }
    };
    let version = must(call(&["kubesvc", "version"]).await.ok());
    assert_eq!(version.trim_end(), format!("kubectl-kubesvc {}", env!("CARGO_PKG_VERSION")));
    let list = ["kubesvc", "list", "-o", "name", "-n", world.namespace()];
    let listed = must(run_with(&kubeconfig, &[&path], &kubectl, &list).await.ok());
    assert_eq!(listed, "kubesvcaccount.kubesvc.io/production\n");

    let commands = must(call(&["__complete", "kubesvc", "de"]).await.ok());
    assert_eq!(commands.lines().collect::<Vec<_>>(), ["deactivate", "describe", ":4"], "{commands}");
    let flags = must(call(&["__complete", "kubesvc", "--"]).await.ok());
    assert!(flags.contains("--all-namespaces") && flags.contains("--kubeconfig"), "{flags}");
    let names = ["__complete", "kubesvc", "-n", world.namespace(), "why", "pro"];
    let names = must(run_with(&kubeconfig, &[&path], &kubectl, &names).await.ok());
    assert_eq!(names.lines().collect::<Vec<_>>(), ["production", ":4"], "{names}");
}

#[tokio::test(flavor = "multi_thread")]
async fn completion_scripts_exist_for_each_shell() {
    let plane = controlplane::shared().await;
    let folder = must(Folder::new("completion"));
    for shell in ["bash", "zsh", "fish", "powershell"] {
        let script = must(run(&plane.kubeconfig_path(), ["completion", shell]).await.ok());
        assert!(script.len() > 1000 && script.contains("deactivate"), "{shell}: {script}");
        if shell == "bash" {
            let file = must(folder.write("script", &script));
            let checked = Command::new("bash").arg("-n").arg(&file).output().expect("bash is there");
            assert!(checked.status.success() && checked.stderr.is_empty(), "{checked:?}");
        }
    }
    let wrong = run(&plane.kubeconfig_path(), ["completion", "tcsh"]).await;
    assert_eq!(wrong.code, Some(2), "{wrong:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn closed_output_pipe_is_no_error() {
    let world = World::prepare().without_operator().start().await;
    world.account("production").create().await;
    assert!(Path::new(PLUGIN).exists());
    shown(&world, &["list"]).await;
    let script = format!("set -o pipefail; '{PLUGIN}' list -n {} -o json | true", world.namespace());
    let kubeconfig = world.control_plane().kubeconfig_path();
    let ended = run_with(&kubeconfig, &[], "bash", &["-c", &script]).await;
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn terminal_output_has_colours_counts_and_a_progress_bar() {
    let world = World::prepare().without_operator().start().await;
    for name in ["one", "two"] {
        world.account(name).create().await;
    }
    let failed = json!({"status": {"state": "FAILED", "observedGeneration": 1}});
    let accounts = world.api::<KubesvcAccount>();
    let written = accounts.patch_status("one", &PatchParams::default(), &Patch::Merge(failed)).await;
    must(written.map_err(|error| error.to_string()));
    let kubeconfig = world.control_plane().kubeconfig_path();
    let on_a_terminal = async |command: &str| {
        let line = format!("stty cols 100; '{PLUGIN}' {command} -n {}", world.namespace());
        run_with(&kubeconfig, &["TERM=xterm-256color"], "script", &["-qec", &line, "/dev/null"]).await
    };
    let listed = on_a_terminal("list").await;
    assert!(listed.stdout.contains("\x1b[31mFAILED\x1b[0m"), "{listed:?}");
    assert!(listed.stdout.contains("2 accounts: 1 TO_MIGRATE, 1 FAILED"), "{listed:?}");
    let waited = on_a_terminal("wait --all --timeout 1s").await;
    assert_eq!(waited.code, Some(1), "{waited:?}");
    assert!(waited.stdout.contains("0/2") && waited.stdout.contains("1 TO_MIGRATE, 1 FAILED"), "{waited:?}");
    assert!(waited.stdout.contains("2 of 2 accounts are not ready: timed out after 1s"), "{waited:?}");
}
