//! The demo: two real control planes, the real programs, three accounts, what a person sees of them, and a deployment by
//! kubectl through the agent: `make demo`.
//!
//! It stays up until Ctrl-C. With `DEMO_ONCE=1` it ends after its checks instead: exit code 0 if all of them held.

#[path = "demo/account_api.rs"]
mod account_api;
#[path = "demo/checks.rs"]
mod checks;
#[path = "demo/http.rs"]
mod http_get;
#[path = "demo/inputs.rs"]
mod inputs;
#[path = "demo/screen.rs"]
mod screen;
#[path = "demo/sql.rs"]
mod sql;
#[path = "demo/stage.rs"]
mod stage;
#[path = "demo/tour.rs"]
mod tour;

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use serde_json::Value;

use inputs::{accounts, agent_settings, operator_settings};
use kubesvc_testkit::{
    controlplane::{ControlPlane, StartOptions, kubectl_path},
    folder::Folder,
    kubectl::{self, Output},
    ports,
    process::Process,
    wait::try_eventually,
};
use screen::Screen;
use stage::{
    NAMESPACE, end_well, install, is_once, namespaced, operator_kubeconfig, prepare, program, until_ready,
    with_log,
};

/// The zone of the agent that the demo starts.
const ZONE: &str = "east";
/// The zone of the agent that it does not start.
const OTHER_ZONE: &str = "west";

fn main() -> ExitCode {
    stage::perform(demo)
}

async fn demo(screen: Screen) -> Result<(), String> {
    let screen = &screen;
    screen.heading("kubesvc: two control planes, an operator, an agent, three accounts");
    screen.say("");
    let demo = Demo::start(screen).await?;
    let shown = async {
        demo.settle(screen).await?;
        demo.deploy(screen).await?;
        demo.show(screen).await?;
        demo.show_deployed(screen).await?;
        demo.check(screen).await
    };
    shown.await.map_err(|reason| demo.with_logs(&reason))?;
    if is_once() {
        return demo.stop(screen).await.map_err(|reason| demo.with_logs(&reason));
    }
    demo.suggest(screen)?;
    demo.watch().await
}

/// Everything that runs. Dropped in this order.
struct Demo {
    agent: Process,
    operator: Process,
    files: Files,
    token: String,
    rest: u16,
    kubectl: PathBuf,
    // The operator's home and a cluster that Spinnaker deploys to: they run as long as this lives.
    _control_planes: [ControlPlane; 2],
}

/// The files of the demo, in one folder.
struct Files {
    folder: Folder,
}

impl Files {
    /// The administrator's kubeconfig of the operator's home.
    fn kubeconfig(&self) -> PathBuf {
        self.folder.file("kubeconfig")
    }

    fn database(&self) -> PathBuf {
        self.folder.file("kubesvc.db")
    }

    /// The settings of the agent of a zone.
    fn agent_settings(&self, zone: &str) -> PathBuf {
        self.folder.file(&format!("agent-{zone}"))
    }
}

impl Demo {
    async fn start(screen: &Screen) -> Result<Self, String> {
        let (operator_program, agent_program) = (program("kubesvc-operator")?, program("kubesvc-agent")?);
        let files = Files { folder: Folder::new("demo")? };
        let kubectl = kubectl_path()?;
        let mut home_options = StartOptions::default();
        let person = home_options.add_user(account_api::PERSON, &[]);
        home_options.aggregates = true;
        let mut target_options = StartOptions::default();
        let token = target_options.add_user("spinnaker", &[]);
        let (home, target) = screen
            .step("two control planes: the operator's home and a target cluster", async {
                tokio::try_join!(
                    ControlPlane::start_with(home_options),
                    ControlPlane::start_with(target_options)
                )
            })
            .await?;

        files.folder.write("kubeconfig", &namespaced(&home.admin_kubeconfig()))?;
        let operator_kubeconfig = screen
            .step("definitions and rights: crds/ and config/rbac, by kubectl apply", async {
                install(&home).await?;
                operator_kubeconfig(&home, &files.folder).await
            })
            .await?;
        screen
            .step("in the target cluster: two namespaces and a user for Spinnaker", prepare(&target))
            .await?;

        let (rest, grpc, health) = (ports::free(), ports::free(), ports::free());
        let gateway = (account_api::address()?, ports::free());
        screen
            .step("config/gateway and config/people, and a person: jane", async {
                let kubeconfig = namespaced(&home.kubeconfig_for_token(&person));
                files.folder.write("jane.kubeconfig", &kubeconfig)?;
                account_api::install(&home, gateway.0, gateway.1).await
            })
            .await?;
        let operator = screen
            .step("kubesvc-operator: REST, hub, gateway and controller ready", async {
                let settings = files
                    .folder
                    .write("kubesvc.yml", &operator_settings(rest, grpc, gateway, &files.database()))?;
                let mut command = Command::new(&operator_program);
                command.arg("--config").arg(settings).arg("--kubeconfig").arg(&operator_kubeconfig);
                command.args(["--namespace", NAMESPACE]).env("POD_NAME", "demo-operator");
                let process =
                    Process::spawn("kubesvc-operator", &command, &files.folder.file("operator.log"))?;
                until_ready(&process, rest).await?;
                Ok(process)
            })
            .await?;
        let agent = screen
            .step(&format!("kubesvc-agent of zone {ZONE}: connected to the hub"), async {
                for (zone, health) in [(ZONE, health), (OTHER_ZONE, 0)] {
                    let folder = files.agent_settings(zone);
                    std::fs::create_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
                    files.folder.write(
                        &format!("agent-{zone}/armory-agent.yml"),
                        &agent_settings(zone, grpc, health),
                    )?;
                }
                let mut command = Command::new(&agent_program);
                command.arg("--config-dir").arg(files.agent_settings(ZONE)).env("AGENT_ID", "agent-1");
                let process = Process::spawn("kubesvc-agent", &command, &files.folder.file("agent.log"))?;
                until_ready(&process, health).await?;
                Ok(process)
            })
            .await
            .map_err(|reason| with_log(&reason, &operator))?;
        let good = target.kubeconfig_for_token(&token);
        let demo = Self { agent, operator, files, token, rest, kubectl, _control_planes: [home, target] };
        screen
            .step("three accounts, by kubectl apply", async {
                demo.kubectl_with_input(&["apply", "-f", "-"], &accounts(&good)).await?.ok()
            })
            .await?;
        Ok(demo)
    }

    /// Waits until each account is where it should be.
    async fn settle(&self, screen: &Screen) -> Result<(), String> {
        for (name, what, state) in [
            ("good", "account good: ACTIVE", "ACTIVE"),
            ("bad", "account bad: FAILED, its kubeconfig would run a program", "FAILED"),
            ("no-agent", "account no-agent: FAILED, nobody is in its zone", "FAILED"),
        ] {
            let account = format!("ksa/{name}");
            let wanted = format!("--for=jsonpath={{.status.state}}={state}");
            screen
                .step(what, async {
                    self.kubectl(&["wait", &account, &wanted, "--timeout=30s"]).await?.ok()?;
                    self.row(name, state).await
                })
                .await?;
        }
        // The operator writes what an agent holds at most once in five seconds.
        screen
            .step("the agent's object says how many accounts it holds", async {
                let wanted = "--for=jsonpath={.status.held}=1";
                self.kubectl(&["wait", "ksg", "--all", wanted, "--timeout=30s"]).await?.ok().map(drop)
            })
            .await
    }

    /// Waits until the cached Deployment has so many replicas; `None`: until it has no row.
    async fn cached(&self, name: &str, replicas: Option<i64>) -> Result<(), String> {
        try_eventually(&format!("the cached Deployment {name}"), Duration::from_secs(15), async || {
            let cached = sql::cached_replicas(&self.files.database(), name).await?;
            if cached == replicas { Ok(()) } else { Err(format!("its row has {cached:?} replicas")) }
        })
        .await
    }

    /// The row follows the object at once, but not in the same moment.
    async fn row(&self, name: &str, state: &str) -> Result<(), String> {
        try_eventually(&format!("the row of {name}"), Duration::from_secs(5), async || {
            let rows = sql::rows(&self.files.database()).await?;
            let row = rows.iter().find(|row| row[0] == name).ok_or("there is none")?;
            if row[1] == state { Ok(()) } else { Err(format!("its status is {}", row[1])) }
        })
        .await
    }

    /// Ends only when a program does.
    async fn watch(&self) -> Result<(), String> {
        loop {
            for process in [&self.operator, &self.agent] {
                process.check_running()?;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    /// Deletes an account and stops the programs, as a person would.
    async fn stop(&self, screen: &Screen) -> Result<(), String> {
        screen
            .step("account good: deleted, and gone everywhere", async {
                self.kubectl(&["delete", "ksa", "good", "--timeout=30s"]).await?.ok()?;
                let answer = http_get::get(self.rest, "/armory/accounts/good").await?;
                let rows = sql::rows(&self.files.database()).await?;
                match (answer.code, rows.iter().any(|row| row[0] == "good")) {
                    (404, false) => Ok(()),
                    (code, row) => Err(format!("REST answers {code}; a row is there: {row}")),
                }
            })
            .await?;
        end_well(screen, [&self.agent, &self.operator]).await
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.rest)
    }

    fn sqlite(&self) -> String {
        format!("sqlite3 -header -column {} '{}'", self.files.database().display(), sql::QUERY)
    }

    async fn account(&self, name: &str) -> Result<Value, String> {
        let body = http_get::get_ok(self.rest, &format!("/armory/accounts/{name}")).await?;
        serde_json::from_str(&body).map_err(|e| format!("GET /armory/accounts/{name}: {e}: {body}"))
    }

    async fn jsonpath(&self, name: &str, path: &str) -> Result<String, String> {
        self.kubectl(&["get", "ksa", name, "-o", &format!("jsonpath={path}")]).await?.ok()
    }

    async fn kubectl(&self, args: &[&str]) -> Result<Output, String> {
        self.kubectl_with_input(args, "").await
    }

    async fn kubectl_with_input(&self, args: &[&str], input: &str) -> Result<Output, String> {
        kubectl::run(&self.kubectl, &self.files.kubeconfig(), args, input).await
    }

    fn with_logs(&self, reason: &str) -> String {
        with_log(&with_log(reason, &self.operator), &self.agent)
    }
}
