//! `kubeconfig`, `on` and `operations` against an API server by script, and kubectl's stand-in, a script that says what it was
//! given.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::json;

use super::scripted_api::{ScriptedApi, account};
use super::{PLUGIN, run, run_with};
use kubesvc_testkit::controlplane::{kubectl_path, reused};
use kubesvc_testkit::kubectl::{self, Output};
use kubesvc_testkit::must;
use kubesvc_testkit::process::Process;
use kubesvc_testkit::wait::eventually;

/// How long something may take.
const MAX_WAIT: Duration = Duration::from_secs(30);

/// A kubectl that says what it was given: `say`, `read` standard input, or `wait` for a signal.
const KUBECTL: &str = "#!/bin/sh
file=${KUBECONFIG%%:*}
account=$(sed -n 's,.*/accounts/\\([^/]*\\)/proxy.*,\\1,p' \"$file\")
case \"$1\" in
  say) shift; echo \"$account: $*\"; echo \"$account complains\" >&2; ls -l \"$file\" | cut -c1-10 ;;
  read) cat ;;
  wait) trap 'echo ended; exit 5' TERM; echo waits; while :; do sleep 0.05; done ;;
esac
test \"$2\" != code || exit 7
";

/// An API server with two accounts, which serves the group of the API of accounts if it is told to.
struct Scene {
    api: ScriptedApi,
}

impl Scene {
    async fn start() -> Self {
        let scene = Self { api: ScriptedApi::with_accounts([account("bad"), account("good")]).await };
        let script = must(scene.api.folder.write("kubectl-stand-in", KUBECTL));
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).expect("our own file");
        scene
    }

    async fn with_group() -> Self {
        let scene = Self::start().await;
        let resources =
            json!({"kind": "APIResourceList", "groupVersion": "proxy.kubesvc.io/v1alpha1", "resources": []});
        scene.api.answer("/apis/proxy.kubesvc.io/v1alpha1", 200, resources);
        scene
    }

    /// Folder of kubectl's cache.
    fn cache(&self) -> PathBuf {
        self.api.folder.file("cache")
    }

    fn environment(&self) -> [String; 2] {
        [
            format!("KUBECTL={}", self.api.folder.file("kubectl-stand-in").display()),
            format!("KUBECACHEDIR={}", self.cache().display()),
        ]
    }

    async fn on(&self, arguments: &[&str], input: &str) -> Output {
        let environment = self.environment();
        let all =
            environment.iter().map(String::as_str).chain([PLUGIN, "on"]).chain(arguments.iter().copied());
        must(kubectl::run(Path::new("/usr/bin/env"), &self.api.kubeconfig(), all, input).await)
    }
}

#[tokio::test]
async fn without_the_api_of_accounts_the_commands_say_what_to_apply() {
    let Scene { api } = Scene::start().await;
    let commands = [&["kubeconfig", "good"][..], &["on", "good", "--", "get", "ns"], &["operations", "good"]];
    for arguments in commands {
        let ended = api.plugin(arguments).await;
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""), "{arguments:?}: {ended:?}");
        assert!(ended.stderr.contains("apply config/gateway"), "{arguments:?}: {ended:?}");
        assert_eq!(ended.stderr.lines().count(), 1, "{ended:?}");
    }
    // Added, and nobody is there.
    api.refuse("/apis/proxy.kubesvc.io/v1alpha1", 503, "service unavailable");
    let message = "service/nobody in \"default\" is not present";
    let service =
        json!({"status": {"conditions": [{"type": "Available", "status": "False", "message": message}]}});
    api.answer("/apis/apiregistration.k8s.io/v1/apiservices/v1alpha1.proxy.kubesvc.io", 200, service);
    is_unreachable(&api.plugin(&["kubeconfig", "good"]).await).unwrap_or_else(|said| unreachable!("{said}"));
    // The gateway itself needs no APIService.
    let token = must(api.folder.write("token", "abc\n")).display().to_string();
    let direct = ["kubeconfig", "good", "--gateway", "https://gateway:6443", "--token-file", &token];
    let direct = api.shown(&direct).await;
    assert!(
        direct.contains("https://gateway:6443/apis/proxy.kubesvc.io/") && direct.contains(&token),
        "{direct}"
    );
}

/// Whether the plugin says that nobody is behind the APIService.
fn is_unreachable(ended: &Output) -> Result<(), String> {
    let is_said = ended.stderr.contains("does not reach the operator's gateway")
        && ended.stderr.contains("service/nobody")
        && ended.stderr.contains("apply config/gateway");
    if ended.code == Some(1) && is_said { Ok(()) } else { Err(format!("{ended:?}")) }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-all"]
async fn api_service_of_a_real_api_server_without_a_service_is_reported_with_its_condition() {
    let plane = reused().await;
    let crds = format!("{}/crds", env!("CARGO_MANIFEST_DIR"));
    must(plane.kubectl(["apply", "--server-side", "-f", &crds]).await.ok());
    let service = "apiVersion: apiregistration.k8s.io/v1\nkind: APIService\nmetadata: {name: v1alpha1.proxy.kubesvc.io}\n\
        spec: {group: proxy.kubesvc.io, version: v1alpha1, groupPriorityMinimum: 1000, versionPriority: 15, \
        insecureSkipTLSVerify: true, service: {name: nobody, namespace: default}}\n";
    must(plane.kubectl_with_input(["apply", "-f", "-"], service).await.ok());
    let good = "apiVersion: kubesvc.io/v1alpha1\nkind: KubesvcAccount\nmetadata: {name: good}\n\
        spec: {state: INACTIVE, zoneId: east, kubeconfig: {serviceAccount: true}}\n";
    eventually("the word of the APIService", MAX_WAIT, async || {
        plane.kubectl_with_input(["apply", "-f", "-"], good).await.ok()?;
        is_unreachable(&run(&plane.kubeconfig_path(), ["kubeconfig", "good"]).await)
    })
    .await;
}

#[tokio::test]
async fn a_kubeconfig_is_printed_read_beside_others_and_made_for_others() {
    let Scene { api } = Scene::with_group().await;
    let printed = api.shown(&["kubeconfig", "good"]).await;
    let file = must(api.folder.write("good.kubeconfig", &printed));
    let kubectl = must(kubectl_path());
    let view = async |file: &Path, arguments: &[&str]| {
        let all = ["config"].into_iter().chain(arguments.iter().copied());
        must(must(kubectl::run(&kubectl, file, all, "").await).ok())
    };
    let server = view(&file, &["view", "--minify", "-o", "jsonpath={.clusters[0].cluster.server}"]).await;
    let path = "/apis/proxy.kubesvc.io/v1alpha1/namespaces/default/accounts/good/proxy";
    assert_eq!(server, format!("{}{path}", api.server));
    // The user is the caller's own: the API server takes it.
    let user = ["view", "--raw", "-o", "jsonpath={.users[0].user}"];
    assert_eq!(view(&file, &user).await, view(&api.kubeconfig(), &user).await);

    // kubectl reads several files; the first one that has a current context is followed.
    let several = api.shown(&["kubeconfig", "-l", "team=a"]).await;
    let several = must(api.folder.write("several.kubeconfig", &several));
    let both = format!("KUBECONFIG={}:{}", several.display(), api.kubeconfig().display());
    let kubectl = kubectl.display().to_string();
    let of_both = async |arguments: &[&str]| {
        let arguments = [&["config"][..], arguments].concat();
        must(run_with(&api.kubeconfig(), &[&both], &kubectl, &arguments).await.ok())
    };
    let contexts = of_both(&["get-contexts", "-o", "name"]).await;
    assert_eq!(contexts.lines().count(), 3, "{contexts}");
    assert_eq!(
        of_both(&["current-context"]).await.trim(),
        "kubesvc",
        "of several accounts, none is the current one"
    );

    let token = json!({"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "metadata": {},
        "spec": {"audiences": []}, "status": {"token": "made", "expirationTimestamp": "2027-01-01T00:00:00Z"}});
    api.answer("/api/v1/namespaces/default/serviceaccounts/argocd/token", 201, token);
    let argocd = ["kubeconfig", "good", "-o", "argocd", "--service-account", "argocd"];
    let argocd = api.plugin(&argocd).await;
    assert!(argocd.stderr.contains("The token expires at"), "{argocd:?}");
    let secret = must(argocd.ok());
    for part in ["argocd.argoproj.io/secret-type: cluster", "name: kubesvc-good", "made"] {
        assert!(secret.contains(part), "{part}: {secret}");
    }
    api.refuse(
        "/api/v1/namespaces/default/serviceaccounts/nobody",
        404,
        "serviceaccounts \"nobody\" not found",
    );
    let missing = api.plugin(&["kubeconfig", "good", "-o", "flux", "--service-account", "nobody"]).await;
    assert!(missing.code == Some(1) && missing.stderr.contains("\"nobody\" not found"), "{missing:?}");

    // Who is not there, and who could be two.
    let unknown = api.plugin(&["kubeconfig", "goood"]).await;
    assert!(unknown.code == Some(1) && unknown.stderr.contains("did you mean good?"), "{unknown:?}");
    for name in ["twin-1", "twin-2"] {
        let mut twin = account(name);
        twin["spec"]["accountName"] = json!("Twin");
        api.add(twin);
    }
    let twins = api.plugin(&["kubeconfig", "Twin"]).await;
    assert!(twins.code == Some(1) && twins.stderr.contains("ksa/twin-1 or ksa/twin-2"), "{twins:?}");
    api.refuse("/apis/proxy.kubesvc.io/v1alpha1/namespaces", 404, "not found");
    let records = api.plugin(&["operations", "good"]).await;
    assert!(records.code == Some(1) && records.stderr.contains("has no records"), "{records:?}");
}

#[tokio::test]
async fn kubectl_runs_on_accounts() {
    let scene = Scene::with_group().await;
    let one = scene.on(&["good", "--", "say", "-n", "shop", "--", "a b"], "").await;
    assert_eq!(one.code, Some(0), "{one:?}");
    assert_eq!(one.stdout, "good: -n shop -- a b\n-rw-------\n");
    assert_eq!(one.stderr, "good complains\n");
    let input = scene.on(&["good", "--", "read"], "a manifest").await;
    assert_eq!((input.code, input.stdout.as_str()), (Some(0), "a manifest"));
    let code = scene.on(&["good", "--", "read", "code"], "").await;
    assert_eq!((code.code, code.stderr.as_str()), (Some(7), ""), "as kubectl ended");

    let cache = scene.cache().join("kubesvc");
    for file in std::fs::read_dir(&cache).expect("a folder").flatten() {
        let text = std::fs::read_to_string(file.path()).expect("a file");
        assert!(text.contains("/accounts/") && text.contains("users: []"), "no credential is copied: {text}");
    }

    for (arguments, code, part) in [
        (&["nobody", "--", "say"][..], 1, "no account nobody"),
        (&["good", "--", "get", "ns", "--kubeconfig", "x"], 2, "would leave the account"),
    ] {
        let refused = scene.on(arguments, "").await;
        assert_eq!((refused.code, refused.stdout.as_str()), (Some(code), ""), "{refused:?}");
        assert!(refused.stderr.contains(part), "{refused:?}");
    }
    let none = run_with(
        &scene.api.kubeconfig(),
        &["KUBECTL=/nowhere/kubectl"],
        PLUGIN,
        &["on", "good", "--", "get", "ns"],
    )
    .await;
    assert!(none.code == Some(1) && none.stderr.contains("/nowhere/kubectl is not there"), "{none:?}");
}

#[tokio::test]
async fn a_signal_reaches_kubectl_itself() {
    let scene = Scene::with_group().await;
    let mut command = Command::new(PLUGIN);
    command.args(["on", "good", "--", "wait"]).env("KUBECONFIG", scene.api.kubeconfig());
    for variable in scene.environment() {
        let (name, value) = variable.split_once('=').expect("a variable");
        command.env(name, value);
    }
    let log = scene.api.folder.file("on.log");
    let process = must(Process::spawn("kubectl-kubesvc", &command, &log));
    eventually("kubectl that waits", MAX_WAIT, async || {
        let text = process.log_text();
        if text.contains("waits") { Ok(()) } else { Err(text) }
    })
    .await;
    let status = must(process.terminate(MAX_WAIT).await);
    assert_eq!(status.code(), Some(5), "{}", process.log_text());
}
