//! kubectl finds the plugin, and shells complete it.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use serde_json::json;

use super::scripted_api::{ScriptedApi, account};
use super::{PLUGIN, folder, run, run_with};
use kubesvc_testkit::controlplane::kubectl_path;
use kubesvc_testkit::folder::Folder;
use kubesvc_testkit::must;

#[tokio::test]
async fn kubectl_runs_and_completes_the_plugin() {
    let api = ScriptedApi::with_accounts([account("production")]).await;
    let tools = must(Folder::new("tools"));
    let script = "#!/bin/sh\nexec kubectl-kubesvc __complete \"$@\"\n";
    let completer = must(tools.write("kubectl_complete-kubesvc", script));
    std::fs::set_permissions(&completer, std::fs::Permissions::from_mode(0o755)).expect("our own file");
    let path = format!("PATH={}:{}:/usr/bin:/bin", folder().display(), tools.path().display());
    let kubectl = must(kubectl_path()).display().to_string();

    let call = async |arguments: &[&str]| run_with(&api.kubeconfig(), &[&path], &kubectl, arguments).await;
    let version = must(call(&["kubesvc", "version"]).await.ok());
    assert_eq!(version.trim_end(), format!("kubectl-kubesvc {}", env!("CARGO_PKG_VERSION")));
    let listed = must(call(&["kubesvc", "list", "-o", "name", "-n", "default"]).await.ok());
    assert_eq!(listed, "kubesvcaccount.kubesvc.io/production\n");

    let commands = must(call(&["__complete", "kubesvc", "de"]).await.ok());
    assert_eq!(commands.lines().collect::<Vec<_>>(), ["deactivate", "describe", ":4"], "{commands}");
    let flags = must(call(&["__complete", "kubesvc", "--"]).await.ok());
    assert!(flags.contains("--all-namespaces") && flags.contains("--kubeconfig"), "{flags}");
    let names = must(call(&["__complete", "kubesvc", "-n", "default", "why", "pro"]).await.ok());
    assert_eq!(names.lines().collect::<Vec<_>>(), ["production", ":4"], "{names}");
}

#[tokio::test]
async fn completion_scripts_exist_for_each_shell() {
    let nowhere = Path::new("/nowhere/config");
    let folder = must(Folder::new("completion"));
    for shell in ["bash", "zsh", "fish", "powershell"] {
        let script = must(run(nowhere, ["completion", shell]).await.ok());
        assert!(script.len() > 1000 && script.contains("deactivate"), "{shell}: {script}");
        if shell == "bash" {
            let file = must(folder.write("script", &script));
            let checked = Command::new("bash").arg("-n").arg(&file).output().expect("bash is there");
            assert!(checked.status.success() && checked.stderr.is_empty(), "{checked:?}");
        }
    }
    let wrong = run(nowhere, ["completion", "tcsh"]).await;
    assert_eq!(wrong.code, Some(2), "{wrong:?}");
}

#[tokio::test]
async fn closed_output_pipe_is_no_error() {
    let api = ScriptedApi::with_accounts([account("production")]).await;
    api.shown(&["list"]).await;
    let script = format!("set -o pipefail; '{PLUGIN}' list -o json | true");
    let ended = run_with(&api.kubeconfig(), &[], "bash", &["-c", &script]).await;
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
}

#[tokio::test]
async fn terminal_output_has_colours_counts_and_a_progress_bar() {
    let mut one = account("one");
    one["status"] = json!({"state": "FAILED", "observedGeneration": 1});
    let api = ScriptedApi::with_accounts([one, account("two")]).await;
    let on_a_terminal = async |command: &str| {
        let line = format!("stty cols 100; '{PLUGIN}' {command}");
        let arguments = ["-qec", &line, "/dev/null"];
        run_with(&api.kubeconfig(), &["TERM=xterm-256color"], "script", &arguments).await
    };
    let listed = on_a_terminal("list").await;
    assert!(listed.stdout.contains("\x1b[31mFAILED\x1b[0m"), "{listed:?}");
    assert!(listed.stdout.contains("2 accounts: 1 TO_MIGRATE, 1 FAILED"), "{listed:?}");
    let waited = on_a_terminal("wait --all --timeout 1s").await;
    assert_eq!(waited.code, Some(1), "{waited:?}");
    assert!(waited.stdout.contains("0/2") && waited.stdout.contains("1 TO_MIGRATE, 1 FAILED"), "{waited:?}");
    assert!(waited.stdout.contains("2 of 2 accounts are not ready: timed out after 1s"), "{waited:?}");
}
