//! The demo of a stock Clouddriver beside kubesvc: accounts that are applied with kubectl appear in it by themselves,
//! deploy through the agent, and leave it when they are deleted, also while it is down. Then accounts that Clouddriver has of
//! its own are taken over in waves: `make demo-spinnaker`.
//!
//! It stays up until Ctrl-C. With `DEMO_ONCE=1` it ends after its checks instead: exit code 0 if all of them held.

#[path = "demo/http.rs"]
mod http_get;
#[path = "demo_spinnaker/inputs.rs"]
mod inputs;
#[path = "demo_spinnaker/migration.rs"]
mod migration;
#[path = "demo/screen.rs"]
mod screen;
#[path = "demo_spinnaker/spinnaker.rs"]
mod spinnaker;
#[path = "demo/stage.rs"]
mod stage;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use inputs::{Ports, Sources, account, agent_settings, operator_settings};
use kubesvc_testkit::{
    clouddriver::{Clouddriver, Settings},
    controlplane::{ControlPlane, StartOptions, kubectl_path},
    databases::{self, Kind},
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

/// The accounts, each for a namespace of the target and with a user of its own there.
const ACCOUNTS: [&str; 2] = ["payments", "shop"];
/// Interval at which Clouddriver loads its accounts here, and kubesvc reads them.
const POLL: Duration = Duration::from_secs(1);
/// Longest time for which a deletion waits for Clouddriver here.
const REMOVAL_WAIT: Duration = Duration::from_secs(5);
/// User of Clouddriver's database who may only read its accounts, and the password.
const READER: &str = "kubesvc_reader";
/// Time limit for what follows by itself.
const LIMIT: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    stage::perform(demo)
}

async fn demo(screen: Screen) -> Result<(), String> {
    let screen = &screen;
    screen.heading("kubesvc: accounts that appear in a stock Clouddriver by themselves");
    screen.say("");
    let demo = Demo::start(screen).await?;
    let shown = async {
        demo.deploy(screen).await?;
        demo.delete_while_clouddriver_is_down(screen).await?;
        demo.migrate(screen).await
    };
    shown.await.map_err(|reason| demo.with_logs(&reason))?;
    if is_once() {
        return end_well(screen, [&demo.agent, &demo.operator])
            .await
            .map_err(|reason| demo.with_logs(&reason));
    }
    demo.suggest(screen);
    demo.watch().await
}

/// Everything that runs. Dropped in this order.
struct Demo {
    agent: Process,
    operator: Process,
    clouddriver: Clouddriver,
    _database: databases::Server,
    folder: Folder,
    kubectl: PathBuf,
    /// Port of REST.
    rest: u16,
    _home: ControlPlane,
    // The cluster that Spinnaker deploys to.
    target: ControlPlane,
}

impl Demo {
    async fn start(screen: &Screen) -> Result<Self, String> {
        let folder = Folder::new("demo-spinnaker")?;
        let mut target_options = StartOptions::default();
        for name in ACCOUNTS {
            target_options.add_user(name, &[]);
        }
        let (home, target) = screen
            .step("two control planes: the operator's home and a target cluster", async {
                tokio::try_join!(ControlPlane::start(), ControlPlane::start_with(target_options))
            })
            .await?;
        folder.write("kubeconfig", &namespaced(&home.admin_kubeconfig()))?;
        let kubeconfig = screen
            .step("definitions and rights, and a user for each account in the target", async {
                prepare_target(&target).await?;
                install(&home).await?;
                install_gateway(&home).await?;
                operator_kubeconfig(&home, &folder).await
            })
            .await?;
        let (database, reader, clouddriver) = screen
            .step("Clouddriver's account management and kubectl, on PostgreSQL", async {
                let database = databases::own(Kind::PostgreSql).await?;
                let settings = Settings { poll: POLL, ..Settings::default() };
                let url = database.fresh_database().await;
                let clouddriver = Clouddriver::start(&url, settings).await?;
                // A user who may read accounts, and do nothing else.
                let grant =
                    format!("CREATE USER {READER} PASSWORD '{READER}'; GRANT SELECT ON accounts TO {READER}");
                clouddriver.tables().execute(&grant).await?;
                let (_, place) = url.rsplit_once('@').ok_or("a URL without a user")?;
                Ok((database, format!("postgres://{READER}@{place}"), clouddriver))
            })
            .await?;
        let ports = Ports { rest: ports::free(), hub: ports::free(), gateway: ports::free() };
        let operator = screen
            .step("kubesvc-operator with kubesvc.clouddriver.push.enabled: ready", async {
                let files = (clouddriver.file("token"), clouddriver.file("ca.crt"));
                let sources = Sources {
                    database: &reader,
                    password: &folder.write("password", READER)?,
                    accounts: &clouddriver.file("accounts.yml"),
                };
                let settings = operator_settings(
                    ports,
                    &clouddriver.base_url(),
                    (&files.0, &files.1),
                    &sources,
                    &folder.file("kubesvc.db"),
                );
                let mut command = Command::new(program("kubesvc-operator")?);
                command.arg("--config").arg(folder.write("kubesvc.yml", &settings)?);
                command.arg("--kubeconfig").arg(&kubeconfig).args(["--namespace", NAMESPACE]);
                let process = Process::spawn("kubesvc-operator", &command, &folder.file("operator.log"))?;
                until_ready(&process, ports.rest).await?;
                Ok(process)
            })
            .await?;
        screen
            .step("a token for Clouddriver, and the gateway's authority, in files of its pod", async {
                give_credentials(&home, &clouddriver).await
            })
            .await
            .map_err(|reason| with_log(&reason, &operator))?;
        let agent = screen
            .step("kubesvc-agent of zone east: connected", start_agent(&folder, ports.hub))
            .await
            .map_err(|reason| with_log(&reason, &operator))?;
        Ok(Self {
            agent,
            operator,
            clouddriver,
            _database: database,
            folder,
            kubectl: kubectl_path()?,
            rest: ports.rest,
            _home: home,
            target,
        })
    }

    /// Applies two accounts, and deploys to each of them as Spinnaker does.
    async fn deploy(&self, screen: &Screen) -> Result<(), String> {
        let base = self.clouddriver.base_url();
        screen.heading("Two accounts");
        screen.say("");
        for (at, name) in ["shop", "payments"].into_iter().enumerate() {
            let token = self.target.token(name).ok_or("no user")?;
            let manifest = account(name, &self.target.kubeconfig_for_token(token));
            screen
                .step(&format!("account {name}: applied with kubectl, and ACTIVE"), async {
                    kubectl::run(&self.kubectl, &self.kubeconfig(), ["apply", "-f", "-"], &manifest)
                        .await?
                        .ok()?;
                    self.wait_for(name, "jsonpath={.status.state}=ACTIVE").await
                })
                .await?;
            let listed = if at == 0 { vec![name] } else { ACCOUNTS.to_vec() };
            screen
                .step(
                    "… Clouddriver lists it, without an edited file",
                    spinnaker::until_listed(&base, &listed),
                )
                .await?;
            screen
                .step("… POST /kubernetes/ops, as Orca sends it: a ConfigMap is deployed", async {
                    spinnaker::deploy(&base, name, name).await?;
                    let get = ["get", "configmap", "settings", "-n", name, "-o", "jsonpath={.data.color}"];
                    match self.target.kubectl(get).await.ok()?.as_str() {
                        "green" => Ok(()),
                        other => Err(format!("the ConfigMap has {other:?}")),
                    }
                })
                .await?;
        }
        for name in ACCOUNTS {
            self.wait_for(name, "condition=SpinnakerRegistered").await?;
        }
        self.show(screen, &["get", "ksa", "-o", "wide"]).await
    }

    /// Deletes an account while Clouddriver does not run. That delays the deletion by no more than the wait.
    async fn delete_while_clouddriver_is_down(&self, screen: &Screen) -> Result<(), String> {
        let base = self.clouddriver.base_url();
        screen.heading("Clouddriver is stopped, and an account deleted");
        screen.say("");
        screen.step("Clouddriver: stopped", self.clouddriver.stop()).await?;
        let deleted = Instant::now();
        screen
            .step("kubectl delete ksa/payments: it leaves Clouddriver first", async {
                self.kubectl(&["delete", "ksa/payments", "--wait=false"]).await?.ok()?;
                let reason = "jsonpath={.status.conditions[?(@.type==\"Ready\")].reason}=LeavingClouddriver";
                self.wait_for("payments", reason).await
            })
            .await?;
        let why = self.why("payments").await?;
        screen.command("kubectl kubesvc why payments", &why);
        screen.say("");
        screen
            .step(
                &format!("… after {} s its agent drops it, and it is gone", REMOVAL_WAIT.as_secs()),
                async {
                    self.wait_for("payments", "delete").await?;
                    match deleted.elapsed() {
                        // The operator counts whole seconds.
                        took if took + Duration::from_secs(1) < REMOVAL_WAIT => {
                            Err(format!("it took {took:?}, and waited for nothing"))
                        }
                        _ => Ok(()),
                    }
                },
            )
            .await?;
        screen
            .step("Clouddriver: started again, with the row of payments", async {
                let row = self.clouddriver.tables().row("payments").await?;
                row.ok_or("the row is gone, and nobody could remove it")?;
                self.clouddriver.restart().await
            })
            .await?;
        screen
            .step("… the operator removes that row", async {
                try_eventually("no row of payments", 4 * LIMIT, async || {
                    match self.clouddriver.tables().row("payments").await? {
                        None => Ok(()),
                        Some(_) => Err("it is there".to_owned()),
                    }
                })
                .await?;
                spinnaker::until_listed(&base, &["shop"]).await
            })
            .await?;
        screen
            .step("… and shop deploys as before", async {
                spinnaker::deploy(&base, "shop", "shop").await?;
                self.wait_for("shop", "condition=SpinnakerRegistered").await
            })
            .await?;
        self.show(screen, &["get", "ksa", "-o", "wide"]).await
    }

    /// Waits as `kubectl wait` does.
    async fn wait_for(&self, name: &str, what: &str) -> Result<(), String> {
        let timeout = format!("--timeout={}s", LIMIT.as_secs());
        self.kubectl(&["wait", &format!("ksa/{name}"), &format!("--for={what}"), &timeout])
            .await?
            .ok()
            .map(drop)
    }

    /// Prints a command of kubectl and what it answers.
    async fn show(&self, screen: &Screen, args: &[&str]) -> Result<(), String> {
        let output = self.kubectl(args).await?.ok()?;
        screen.command(&format!("kubectl {}", args.join(" ")), &output);
        Ok(())
    }

    /// What the plugin says of an account.
    async fn why(&self, name: &str) -> Result<String, String> {
        kubectl::run(&program("kubectl-kubesvc")?, &self.kubeconfig(), ["why", name], "").await?.ok()
    }

    /// Says what to try next.
    fn suggest(&self, screen: &Screen) {
        screen.heading("It stays up until Ctrl-C. In another terminal:");
        let folder = self.kubectl.parent().map(|path| path.display().to_string()).unwrap_or_default();
        let base = self.clouddriver.base_url();
        screen.suggestion(
            "the kubectl and the cluster of this demo",
            &format!("export PATH={folder}:$PATH KUBECONFIG={}", self.kubeconfig().display()),
        );
        screen.suggestion("the accounts in Clouddriver", &format!("curl -s {base}/credentials"));
        screen.suggestion(
            "what kubesvc has stored there: no secret",
            &format!("curl -s '{base}/credentials/type/kubernetes' | jq"),
        );
        screen.suggestion(
            "take an account out of Clouddriver, and keep it in kubesvc",
            "kubectl patch ksa/shop --type=merge -p '{\"spec\":{\"spinnaker\":{\"register\":false}}}'",
        );
        screen.suggestion("watch what becomes of it", "kubectl get ksa -o wide --watch");
        screen.suggestion(
            "the migrations, and what they would do with all accounts of Clouddriver",
            &format!(
                "{} migrate status; {0} migrate --all --dry-run --operator-url http://127.0.0.1:{}",
                program("kubectl-kubesvc").unwrap_or_default().display(),
                self.rest
            ),
        );
        screen.suggestion("what the operator says", &format!("tail -f {}", self.operator.log().display()));
        screen.say("");
    }

    /// Ends only when a program of kubesvc does.
    async fn watch(&self) -> Result<(), String> {
        loop {
            self.operator.check_running()?;
            self.agent.check_running()?;
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    fn kubeconfig(&self) -> PathBuf {
        self.folder.file("kubeconfig")
    }

    async fn kubectl(&self, args: &[&str]) -> Result<Output, String> {
        kubectl::run(&self.kubectl, &self.kubeconfig(), args, "").await
    }

    fn with_logs(&self, reason: &str) -> String {
        [&self.operator, &self.agent].into_iter().fold(reason.to_owned(), |text, one| with_log(&text, one))
    }
}

/// The namespaces of the target, and a user for each of them.
async fn prepare_target(target: &ControlPlane) -> Result<(), String> {
    prepare(target).await?;
    for name in ACCOUNTS {
        let user = format!("--user={name}");
        let binding = ["create", "clusterrolebinding", name, "--clusterrole=spinnaker", &user];
        target.kubectl(binding).await.ok()?;
    }
    Ok(())
}

/// What the gateway's direct door needs of `config/gateway`, and the rights of Clouddriver: `config/people`.
async fn install_gateway(home: &ControlPlane) -> Result<(), String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("config");
    let file = folder.join("gateway/rbac.yaml");
    let rights = std::fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    let rights = rights.replace("namespace: kubesvc\n", &format!("namespace: {NAMESPACE}\n"));
    home.kubectl_with_input(["apply", "-f", "-"], &rights).await.ok()?;
    home.kubectl(["apply", "-k", &folder.join("people").display().to_string()]).await.ok()?;
    let account = format!("--serviceaccount={NAMESPACE}:clouddriver");
    home.kubectl(["create", "serviceaccount", "clouddriver", "-n", NAMESPACE]).await.ok()?;
    let role = "--clusterrole=kubesvc-api-edit";
    home.kubectl(["create", "rolebinding", "clouddriver", role, &account, "-n", NAMESPACE])
        .await
        .ok()
        .map(drop)
}

/// Writes the two files that the volume of Clouddriver's pod has otherwise.
async fn give_credentials(home: &ControlPlane, clouddriver: &Clouddriver) -> Result<(), String> {
    let write = |name: &str, text: &str| {
        let file = clouddriver.file(name);
        std::fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))
    };
    let token = ["create", "token", "clouddriver", "--audience=kubesvc", "-n", NAMESPACE];
    write("token", home.kubectl(token).await.ok()?.trim())?;
    let authority = try_eventually("the gateway's authority", LIMIT, async || {
        let template = "go-template={{index .data \"ca.crt\" | base64decode}}";
        let get = ["get", "secret", "kubesvc-gateway", "-n", NAMESPACE, "-o", template];
        home.kubectl(get).await.ok()
    })
    .await?;
    write("ca.crt", &authority)
}

async fn start_agent(folder: &Folder, hub: u16) -> Result<Process, String> {
    let (settings, health) = (folder.file("agent"), ports::free());
    std::fs::create_dir(&settings).map_err(|e| format!("{}: {e}", settings.display()))?;
    folder.write("agent/armory-agent.yml", &agent_settings(hub, health))?;
    let mut command = Command::new(program("kubesvc-agent")?);
    command.arg("--config-dir").arg(settings).env("AGENT_ID", "agent-1");
    let process = Process::spawn("kubesvc-agent", &command, &folder.file("agent.log"))?;
    until_ready(&process, health).await?;
    Ok(process)
}
