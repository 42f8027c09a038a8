//! What the plugin prints for Argo CD, Flux and Clouddriver, used as these use it; and `on` at a terminal.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::normal;
use super::ways::Setting;
use crate::gateway::place::{ACCOUNT, kubectl};
use crate::gateway::plugin::{PLUGIN, RULES, person, plugin};
use kubesvc_testkit::controlplane::kubectl_path;
use kubesvc_testkit::kubectl::{self as program, Output};
use kubesvc_testkit::process::{Process, Streams};
use kubesvc_testkit::wait::eventually;
use kubesvc_testkit::{assets, must};

/// Time limit for a command at a terminal.
const TERMINAL_TIMEOUT: Duration = Duration::from_secs(30);

/// Checks them all, as a person with a token for the operator's API server.
pub(super) async fn check(setting: &Setting) {
    let place = &setting.place;
    let tess = person(place, "tess", RULES).await;
    eventually("the rights of tess", crate::world::MAX_WAIT, async || {
        plugin(place, &tess, &["on", ACCOUNT, "--", "get", "namespaces"]).await.ok()
    })
    .await;
    let authority = must(place.world.folder().write("authority.crt", &place.authority)).display().to_string();
    let gateway = format!("https://localhost:{}", place.port);
    let direct = ["--gateway", gateway.as_str(), "--certificate-authority", authority.as_str()];
    gitops(setting, &tess, &direct).await;
    clouddriver(setting, &tess, &direct).await;
    terminal(setting, &tess).await;
}

/// Argo CD and Flux find at both doors what a kubeconfig of the cluster itself shows.
async fn gitops(setting: &Setting, tess: &Path, direct: &[&str]) {
    let place = &setting.place;
    let itself = use_as("kubeconfig", &place.target.kubeconfig_path()).await;
    for tool in ["argocd", "flux"] {
        for (door, flags) in [("aggregated", &[][..]), ("direct", direct)] {
            let arguments = ["kubeconfig", ACCOUNT, "-o", tool, "--service-account", "tess"];
            let arguments: Vec<_> = arguments.iter().chain(flags).copied().collect();
            let printed = must(plugin(place, tess, &arguments).await.ok());
            let applied = ["apply", "-f", "-", "-o", "json"];
            let secret = must(place.world.kubectl_with_input(&applied, &printed).await.ok());
            let file = must(place.world.folder().write(&format!("{tool}-{door}.json"), &secret));
            assert_eq!(use_as(tool, &file).await, itself, "{tool}, {door}");
        }
    }
}

/// What a tool finds with its credential.
async fn use_as(tool: &str, file: &Path) -> String {
    let informer = must(tokio::task::spawn_blocking(assets::informer).await.expect("it ends"));
    let file = file.display().to_string();
    let used = program::run(&informer, Path::new("/dev/null"), ["use", tool, &file], "").await;
    must(must(used).ok().map_err(|e| format!("{tool}: {e}")))
}

/// Clouddriver runs kubectl with the kubeconfig of each account.
async fn clouddriver(setting: &Setting, tess: &Path, direct: &[&str]) {
    let place = &setting.place;
    let token = place.token("tess", Some("kubesvc")).await;
    let token = must(place.world.folder().write("clouddriver.token", &token)).display().to_string();
    let by_file = ["--token-file", token.as_str()];
    let by_token = ["--service-account", "tess"];
    let all = [[direct, &by_file[..]].concat(), [direct, &by_token[..]].concat(), by_token.to_vec()];
    let namespaces = ["get", "namespaces", "-o", "name"];
    let itself = kubectl(&place.target.kubeconfig_path(), &namespaces, "").await;
    for (number, flags) in all.iter().enumerate() {
        let arguments = [&["kubeconfig", ACCOUNT, "-o", "clouddriver"][..], flags].concat();
        let printed = must(plugin(place, tess, &arguments).await.ok());
        let read: Value = must(serde_saphyr::from_str(&printed).map_err(|e| format!("{e}: {printed}")));
        let account = &read["kubernetes"]["accounts"][0];
        assert_eq!((&read["kubernetes"]["enabled"], &account["name"]), (&true.into(), &ACCOUNT.into()));
        let contents = account["kubeconfigContents"].as_str().expect("a kubeconfig");
        let config = must(place.world.folder().write(&format!("clouddriver-{number}.kubeconfig"), contents));
        assert_eq!(kubectl(&config, &namespaces, "").await, itself, "{flags:?}");
    }
}

/// `on` one account leaves the terminal to kubectl: colours, an editor, and questions.
async fn terminal(setting: &Setting, tess: &Path) {
    let place = &setting.place;
    let namespace = &setting.ways[0].namespace;
    let folder = place.world.folder();
    let editor = "#!/bin/sh\ntest -t 0 && test -t 1 && sed -i s/before/after/ \"$1\"\n";
    let editor = must(folder.write("editor", editor));
    let changed =
        r#"{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "typed"}, "data": {"a": "other"}}"#;
    let changed = must(folder.write("changed.json", changed)).display().to_string();
    let on = format!("{PLUGIN} -n {} on {ACCOUNT} --", place.world.namespace());
    let kubectl = must(kubectl_path()).display().to_string();
    let mut seen = Vec::new();
    for (program, config) in
        [(kubectl.as_str(), &place.target.kubeconfig_path()), (on.as_str(), &tess.to_path_buf())]
    {
        let mut steps = Vec::new();
        for (arguments, typed) in [
            ("create configmap typed --from-literal=a=before".to_owned(), ""),
            ("edit configmap typed".to_owned(), ""),
            ("get configmap typed -o jsonpath={.data.a}".to_owned(), ""),
            (format!("diff -f {changed}"), ""),
            ("delete configmap typed --interactive".to_owned(), "y\n"),
        ] {
            let line = format!("{program} {arguments} -n {namespace}");
            let ran = at_terminal(setting, config, &line, &editor, typed).await;
            steps.push((arguments, normal::text(&setting.ways[0], &ran.stdout), ran.code));
        }
        seen.push(steps);
    }
    let (itself, through) = (&seen[0], &seen[1]);
    assert_eq!(through, itself);
    assert!(itself[2].1.contains("after"), "the editor saw a terminal: {itself:?}");
    assert!(itself[3].1.contains("\u{1b}["), "the difference has colours: {itself:?}");
    assert!(itself[4].1.contains("deleted"), "the question was answered: {itself:?}");
}

/// Runs a command line at a terminal, on which `typed` is typed.
async fn at_terminal(setting: &Setting, config: &PathBuf, line: &str, editor: &Path, typed: &str) -> Output {
    let folder = must(kubesvc_testkit::folder::Folder::new("terminal"));
    let mut command = Command::new("/usr/bin/script");
    command
        .args(["--quiet", "--return", "--command", line, "/dev/null"])
        .env("KUBECONFIG", config)
        .env("KUBECTL", must(kubectl_path()))
        .env("KUBERC", "off")
        .env("KUBECACHEDIR", setting.place.world.folder().file("terminal-cache"))
        .env("KUBE_EDITOR", format!("sh {}", editor.display()))
        .env("KUBECTL_EXTERNAL_DIFF", "diff -u -N --color=auto")
        .env("TERM", "xterm")
        .env("SHELL", "/bin/sh")
        .env_remove("NO_COLOR");
    let streams = Streams {
        input: Some(must(folder.write("typed", typed))),
        output: Some(folder.file("screen")),
        errors: folder.file("errors"),
    };
    let process = must(Process::spawn_with("a command at a terminal", &command, &streams));
    let ended = must(process.wait(TERMINAL_TIMEOUT).await);
    let read = |name: &str| std::fs::read(folder.file(name)).unwrap_or_default();
    let text = |name: &str| String::from_utf8_lossy(&read(name)).into_owned();
    Output { code: ended.code(), stdout: text("screen"), stderr: text("errors") }
}
