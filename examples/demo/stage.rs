//! What the demos have in common: how they begin and end, and what stands before the first program.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::http_get;
use super::screen::Screen;
use kubesvc_testkit::{controlplane::ControlPlane, folder::Folder, process::Process, wait::try_eventually};

/// Where the operator and the accounts are.
pub(crate) const NAMESPACE: &str = "spinnaker";

/// Shows a demo until it ends, or a signal ends it.
pub(crate) fn perform<D>(demo: impl FnOnce(Screen) -> D) -> ExitCode
where
    D: Future<Output = Result<(), String>>,
{
    let screen = Screen::new();
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            screen.complain(&format!("no runtime: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let result = runtime.block_on(async {
        let mut signals = Signals::catch()?;
        tokio::select! {
            result = demo(Screen::new()) => result,
            () = signals.next() => { screen.say("\nstopped; everything is removed"); Ok(()) }
        }
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            screen.complain(&reason);
            ExitCode::FAILURE
        }
    }
}

/// Ends programs as a person would.
pub(crate) async fn end_well(
    screen: &Screen,
    programs: impl IntoIterator<Item = &Process>,
) -> Result<(), String> {
    for process in programs {
        screen
            .step(&format!("{}: ended by SIGTERM with exit code 0", process.name()), async {
                let status = process.terminate(Duration::from_secs(20)).await?;
                if status.success() { Ok(()) } else { Err(format!("{}: {status}", process.name())) }
            })
            .await?;
    }
    screen.say("");
    Ok(())
}

/// Whether it ends after its checks, by `DEMO_ONCE`.
pub(crate) fn is_once() -> bool {
    std::env::var_os("DEMO_ONCE").is_some_and(|value| !value.is_empty() && value != "0")
}

/// Writes the kubeconfig of the operator's service account, and returns its path.
pub(crate) async fn operator_kubeconfig(home: &ControlPlane, folder: &Folder) -> Result<PathBuf, String> {
    let token = home.kubectl(["create", "token", "kubesvc-operator", "-n", NAMESPACE]).await.ok()?;
    folder.write("operator.kubeconfig", &namespaced(&home.kubeconfig_for_token(token.trim())))
}

/// A kubeconfig that speaks of the demo's namespace.
pub(crate) fn namespaced(kubeconfig: &str) -> String {
    kubeconfig.replace("namespace: default", &format!("namespace: {NAMESPACE}"))
}

/// The definitions, the namespace and the rights, each as config/ has it.
pub(crate) async fn install(home: &ControlPlane) -> Result<(), String> {
    let folder = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join(name).display().to_string();
    home.kubectl(["apply", "--server-side", "-f", &folder("crds")]).await.ok()?;
    home.kubectl(["wait", "crd", "--all", "--for=condition=Established", "--timeout=30s"]).await.ok()?;
    home.kubectl(["create", "namespace", NAMESPACE]).await.ok()?;
    let rights = home.kubectl(["kustomize", &folder("config/rbac")]).await.ok()?;
    // The overlays of config/ say the namespace; a binding for all namespaces needs that of its subject.
    let subject = "- kind: ServiceAccount\n  name: kubesvc-operator\n";
    let rights = rights.replace(subject, &format!("{subject}  namespace: {NAMESPACE}\n"));
    home.kubectl_with_input(["apply", "-n", NAMESPACE, "-f", "-"], &rights).await.ok()?;
    // The API server takes an object of a new kind a moment after it calls the kind established.
    try_eventually("the new kinds", Duration::from_secs(10), async || {
        home.kubectl(["get", "ksa,ksg", "-n", NAMESPACE]).await.ok().map(drop)
    })
    .await
}

/// Two namespaces, and a user for Spinnaker that may do everything.
pub(crate) async fn prepare(target: &ControlPlane) -> Result<(), String> {
    for namespace in ["shop", "payments"] {
        target.kubectl(["create", "namespace", namespace]).await.ok()?;
    }
    target.kubectl(["create", "clusterrole", "spinnaker", "--verb=*", "--resource=*.*"]).await.ok()?;
    let binding =
        ["create", "clusterrolebinding", "spinnaker", "--clusterrole=spinnaker", "--user=spinnaker"];
    target.kubectl(binding).await.ok().map(drop)
}

/// A program that was built beside this one.
pub(crate) fn program(name: &str) -> Result<PathBuf, String> {
    let this = std::env::current_exe().map_err(|e| format!("where this program is: {e}"))?;
    let built = this.parent().and_then(Path::parent).unwrap_or(Path::new(".")).join(name);
    if built.is_file() {
        return Ok(built);
    }
    Err(format!("{} is not there; `make demo` builds it", built.display()))
}

/// Waits until a program says on this port that it is ready.
pub(crate) async fn until_ready(process: &Process, port: u16) -> Result<(), String> {
    let what = format!("a ready {}", process.name());
    let ready = try_eventually(&what, Duration::from_secs(30), async || match process.check_running() {
        Err(ended) => Ok(Err(ended)),
        Ok(()) => http_get::get_ok(port, "/health/readiness").await.map(|_| Ok(())),
    });
    ready.await.and_then(|ended| ended).map_err(|reason| with_log(&reason, process))
}

/// Adds the last lines of a program to what went wrong.
pub(crate) fn with_log(reason: &str, process: &Process) -> String {
    let tail = process.log_tail(20);
    if reason.contains(&tail) {
        return reason.to_owned();
    }
    format!("{reason}\n\nthe last lines of {}:\n{tail}", process.name())
}

/// What ends the demo from outside.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn catch() -> Result<Self, String> {
        let catch = |kind| signal(kind).map_err(|e| format!("signals cannot be caught: {e}"));
        Ok(Self { interrupt: catch(SignalKind::interrupt())?, terminate: catch(SignalKind::terminate())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
