//! `kubeconfig`, `on` and `operations` against an API server that serves a group of the API's name, and kubectl's stand-in, a
//! script that says what it was given.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::{PLUGIN, run, run_with};
use kubesvc_testkit::controlplane::{ControlPlane, kubectl_path};
use kubesvc_testkit::folder::Folder;
use kubesvc_testkit::kubectl::{self, Output};
use kubesvc_testkit::must;
use kubesvc_testkit::process::Process;
use kubesvc_testkit::wait::eventually;

/// How long something may take.
const MAX_WAIT: Duration = Duration::from_secs(30);

/// A kubectl that says what it was given: `say`, `read` standard input, or `wait` for a signal. The account `bad` fails.
const KUBECTL: &str = "#!/bin/sh
account=$(sed -n 's,.*/accounts/\\([^/]*\\)/proxy.*,\\1,p' \"$KUBECONFIG\")
case \"$1\" in
  say) shift; echo \"$account: $*\"; echo \"$account complains\" >&2; ls -l \"$KUBECONFIG\" | cut -c1-10 ;;
  read) cat ;;
  wait) trap 'echo ended; exit 5' TERM; echo waits; while :; do sleep 0.05; done ;;
esac
test \"$account\" != bad || exit 3
test \"$2\" != code || exit 7
";

/// A control plane with kubesvc's definitions and some accounts.
struct Scene {
    plane: ControlPlane,
    folder: Folder,
}

impl Scene {
    async fn start() -> Self {
        let plane = must(ControlPlane::start().await);
        let folder = must(Folder::new("account-api"));
        let crds = format!("{}/crds", env!("CARGO_MANIFEST_DIR"));
        must(plane.kubectl(["apply", "--server-side", "-f", &crds]).await.ok());
        must(
            plane
                .kubectl(["wait", "crd", "--all", "--for=condition=Established", "--timeout=30s"])
                .await
                .ok(),
        );
        let scene = Self { plane, folder };
        eventually("the kinds of accounts", MAX_WAIT, async || {
            scene
                .apply(&["good", "bad"].map(|name| account("default", name, name)).concat())
                .await
                .ok()
                .map(drop)
        })
        .await;
        let script = must(scene.folder.write("kubectl-stand-in", KUBECTL));
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).expect("our own file");
        std::fs::create_dir(scene.temporary()).expect("our own folder");
        scene
    }

    async fn apply(&self, objects: &str) -> Output {
        self.plane.kubectl_with_input(["apply", "-f", "-"], objects).await
    }

    /// Serves the group of the API of accounts, by a definition of the same name.
    async fn serve_group(&self) {
        let definition = "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\n\
            metadata: {name: accounts.proxy.kubesvc.io}\nspec:\n  group: proxy.kubesvc.io\n  scope: Namespaced\n  \
            names: {plural: accounts, singular: account, kind: Account}\n  versions:\n  - {name: v1alpha1, served: true, \
            storage: true, schema: {openAPIV3Schema: {type: object}}}\n";
        must(self.apply(definition).await.ok());
        eventually("the group", MAX_WAIT, async || {
            self.plane.kubectl(["get", "--raw", "/apis/proxy.kubesvc.io/v1alpha1"]).await.ok().map(drop)
        })
        .await;
    }

    /// Folder for temporary files of the plugin.
    fn temporary(&self) -> PathBuf {
        self.folder.file("temporary")
    }

    fn environment(&self) -> [String; 2] {
        [
            format!("KUBECTL={}", self.folder.file("kubectl-stand-in").display()),
            format!("TMPDIR={}", self.temporary().display()),
        ]
    }

    async fn on(&self, arguments: &[&str], input: &str) -> Output {
        let environment = self.environment();
        let all =
            environment.iter().map(String::as_str).chain([PLUGIN, "on"]).chain(arguments.iter().copied());
        must(kubectl::run(Path::new("/usr/bin/env"), &self.plane.kubeconfig_path(), all, input).await)
    }

    fn no_file_is_left(&self) {
        let left: Vec<_> = std::fs::read_dir(self.temporary()).expect("a folder").flatten().collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

fn account(namespace: &str, name: &str, account_name: &str) -> String {
    format!(
        "apiVersion: kubesvc.io/v1alpha1\nkind: KubesvcAccount\nmetadata: {{name: {name}, namespace: {namespace}, labels: \
         {{team: a}}}}\nspec: {{state: INACTIVE, zoneId: east, accountName: {account_name}, kubeconfig: {{serviceAccount: \
         true}}}}\n---\n"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_api_of_accounts_the_commands_say_what_to_apply() {
    let scene = Scene::start().await;
    let kubeconfig = scene.plane.kubeconfig_path();
    let commands = [&["kubeconfig", "good"][..], &["on", "good", "--", "get", "ns"], &["operations", "good"]];
    for arguments in commands {
        let ended = run(&kubeconfig, arguments.iter().copied()).await;
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""), "{arguments:?}: {ended:?}");
        assert!(ended.stderr.contains("apply config/gateway"), "{arguments:?}: {ended:?}");
        assert_eq!(ended.stderr.lines().count(), 1, "{ended:?}");
    }
    // Added, and nobody is there.
    let service = "apiVersion: apiregistration.k8s.io/v1\nkind: APIService\nmetadata: {name: v1alpha1.proxy.kubesvc.io}\n\
        spec: {group: proxy.kubesvc.io, version: v1alpha1, groupPriorityMinimum: 1000, versionPriority: 15, \
        insecureSkipTLSVerify: true, service: {name: nobody, namespace: default}}\n";
    must(scene.apply(service).await.ok());
    eventually("the word of the APIService", MAX_WAIT, async || {
        let ended = run(&kubeconfig, ["kubeconfig", "good"]).await;
        let is_said = ended.stderr.contains("does not reach the operator's gateway")
            && ended.stderr.contains("service/nobody")
            && ended.stderr.contains("apply config/gateway");
        if ended.code == Some(1) && is_said { Ok(()) } else { Err(format!("{ended:?}")) }
    })
    .await;
    // The gateway itself needs no APIService.
    let token = must(scene.folder.write("token", "abc\n")).display().to_string();
    let direct = ["kubeconfig", "good", "--gateway", "https://gateway:6443", "--token-file", &token];
    let direct = must(run(&kubeconfig, direct).await.ok());
    assert!(
        direct.contains("https://gateway:6443/apis/proxy.kubesvc.io/") && direct.contains(&token),
        "{direct}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kubeconfig_is_printed_merged_and_made_for_others() {
    let scene = Scene::start().await;
    scene.serve_group().await;
    let kubeconfig = scene.plane.kubeconfig_path();
    let printed = must(run(&kubeconfig, ["kubeconfig", "good"]).await.ok());
    let file = must(scene.folder.write("good.kubeconfig", &printed));
    let kubectl = must(kubectl_path());
    let server = ["config", "view", "--minify", "-o", "jsonpath={.clusters[0].cluster.server}"];
    let server = must(must(kubectl::run(&kubectl, &file, server, "").await).ok());
    let path = "/apis/proxy.kubesvc.io/v1alpha1/namespaces/default/accounts/good/proxy";
    assert_eq!(server, format!("{}{path}", scene.plane.server_url()));
    // The user is the caller's own: the API server takes it.
    let me = must(
        kubectl::run(&kubectl, &file, ["config", "view", "--raw", "-o", "jsonpath={.users[0].user}"], "")
            .await,
    );
    let own = must(
        kubectl::run(
            &kubectl,
            &kubeconfig,
            ["config", "view", "--raw", "-o", "jsonpath={.users[0].user}"],
            "",
        )
        .await,
    );
    assert_eq!(me.stdout, own.stdout);

    let merged = scene.folder.file("merged");
    std::fs::copy(&kubeconfig, &merged).expect("our own folder");
    let first = must(run(&merged, ["kubeconfig", "-l", "team=a", "--merge"]).await.ok());
    assert_eq!(first, "context bad added\ncontext good added\n");
    let again = must(run(&merged, ["kubeconfig", "good", "bad", "--merge"]).await.ok());
    assert_eq!(again, "context good unchanged\ncontext bad unchanged\n");
    let contexts =
        must(must(kubectl::run(&kubectl, &merged, ["config", "get-contexts", "-o", "name"], "").await).ok());
    assert_eq!(contexts.lines().count(), 3, "{contexts}");
    let namespaces = must(kubectl::run(&kubectl, &merged, ["get", "ns", "-o", "name"], "").await);
    assert!(must(namespaces.ok()).contains("namespace/default"), "its own context is still the current one");

    must(scene.plane.kubectl(["create", "serviceaccount", "argocd"]).await.ok());
    let argocd =
        run(&kubeconfig, ["kubeconfig", "good", "-o", "argocd", "--service-account", "argocd"]).await;
    assert!(argocd.stderr.contains("The token expires at"), "{argocd:?}");
    must(scene.plane.kubectl_with_input(["apply", "-f", "-"], &must(argocd.ok())).await.ok());
    let label = ["get", "secret", "-l", "argocd.argoproj.io/secret-type=cluster", "-o", "name"];
    assert_eq!(must(scene.plane.kubectl(label).await.ok()).trim(), "secret/kubesvc-good");
    let missing = run(&kubeconfig, ["kubeconfig", "good", "-o", "flux", "--service-account", "nobody"]).await;
    assert!(missing.code == Some(1) && missing.stderr.contains("\"nobody\" not found"), "{missing:?}");

    // Who is not there, and who could be two.
    let unknown = run(&kubeconfig, ["kubeconfig", "goood"]).await;
    assert!(unknown.code == Some(1) && unknown.stderr.contains("did you mean good?"), "{unknown:?}");
    must(scene.apply(&["twin-1", "twin-2"].map(|name| account("default", name, "Twin")).concat()).await.ok());
    let twins = run(&kubeconfig, ["kubeconfig", "Twin"]).await;
    assert!(twins.code == Some(1) && twins.stderr.contains("ksa/twin-1 or ksa/twin-2"), "{twins:?}");
    let records = run(&kubeconfig, ["operations", "good"]).await;
    assert!(records.code == Some(1) && records.stderr.contains("has no records"), "{records:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_runs_on_accounts() {
    let scene = Scene::start().await;
    scene.serve_group().await;
    let one = scene.on(&["good", "--", "say", "-n", "shop", "--", "a b"], "").await;
    assert_eq!(one.code, Some(0), "{one:?}");
    assert_eq!(one.stdout, "good: -n shop -- a b\n-rw-------\n");
    assert_eq!(one.stderr, "good complains\n");
    let input = scene.on(&["good", "--", "read"], "a manifest").await;
    assert_eq!((input.code, input.stdout.as_str()), (Some(0), "a manifest"));
    let code = scene.on(&["good", "--", "read", "code"], "").await;
    assert_eq!((code.code, code.stderr.as_str()), (Some(7), ""), "as kubectl ended");

    let all = scene.on(&["--all", "--", "say", "x"], "").await;
    assert_eq!(all.code, Some(1), "{all:?}");
    let mut lines: Vec<_> = all.stdout.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["bad  | -rw-------", "bad  | bad: x", "good | -rw-------", "good | good: x"]);
    assert!(all.stderr.contains("good | good complains"), "{all:?}");
    assert!(all.stderr.contains("1 of 2 accounts failed: bad (exit code 3)"), "{all:?}");
    let input = scene.on(&["-l", "team=a", "--", "read"], "for one only").await;
    assert!(!input.stdout.contains("for one only"), "{input:?}");

    for (arguments, code, part) in [
        (&["nobody", "good", "--", "say"][..], 1, "no account nobody"),
        (&["good", "--", "get", "ns", "--kubeconfig", "x"], 2, "would leave the account"),
        (&["--all", "--", "apply", "-f", "-"], 2, "one account only"),
    ] {
        let refused = scene.on(arguments, "").await;
        assert_eq!((refused.code, refused.stdout.as_str()), (Some(code), ""), "{refused:?}");
        assert!(refused.stderr.contains(part), "{refused:?}");
    }
    let none = run_with(
        &scene.plane.kubeconfig_path(),
        &["KUBECTL=/nowhere/kubectl"],
        PLUGIN,
        &["on", "good", "--", "get", "ns"],
    )
    .await;
    assert!(none.code == Some(1) && none.stderr.contains("/nowhere/kubectl is not there"), "{none:?}");
    scene.no_file_is_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_ends_kubectl_and_leaves_no_kubeconfig() {
    let scene = Scene::start().await;
    scene.serve_group().await;
    for (accounts, waiting, code) in [(&["good"][..], 1, 5), (&["good", "bad"], 2, 128 + 15)] {
        let mut command = Command::new(PLUGIN);
        command
            .arg("on")
            .args(accounts)
            .args(["--", "wait"])
            .env("KUBECONFIG", scene.plane.kubeconfig_path());
        for variable in scene.environment() {
            let (name, value) = variable.split_once('=').expect("a variable");
            command.env(name, value);
        }
        let log = scene.folder.file(&format!("on-{waiting}.log"));
        let process = must(Process::spawn("kubectl-kubesvc", &command, &log));
        eventually("kubectl that waits", MAX_WAIT, async || {
            let text = process.log_text();
            if text.matches("waits").count() == waiting { Ok(()) } else { Err(text) }
        })
        .await;
        assert_eq!(std::fs::read_dir(scene.temporary()).expect("a folder").count(), waiting);
        let status = must(process.terminate(MAX_WAIT).await);
        assert_eq!(status.code(), Some(code), "{}", process.log_text());
        scene.no_file_is_left();
    }
}
