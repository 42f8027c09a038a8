//! The demo of several replicas: three of them on one PostgreSQL, two agents, an account. The one that leads is killed
//! before your eyes, another one goes on, and the account is ACTIVE all the time: `make demo-replicas`.
//!
//! It stays up until Ctrl-C. With `DEMO_ONCE=1` it ends after its checks instead: exit code 0 if all of them held.

#[path = "demo_replicas/balancer.rs"]
mod balancer;
#[path = "demo/http.rs"]
mod http_get;
#[path = "demo_replicas/lookout.rs"]
mod lookout;
#[path = "demo_replicas/replica.rs"]
mod replica;
#[path = "demo/screen.rs"]
mod screen;
#[path = "demo/stage.rs"]
mod stage;

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use balancer::Balancer;
use kubesvc_testkit::{
    controlplane::{ControlPlane, StartOptions, kubectl_path},
    databases::{self, Kind},
    folder::Folder,
    kubectl::{self, Output},
    ports,
    process::Process,
    wait::try_eventually,
};
use lookout::Lookout;
use replica::{Replica, until_one_leads};
use screen::Screen;
use stage::{
    end_well, install, is_once, namespaced, operator_kubeconfig, prepare, program, until_ready, with_log,
};

/// How long a Lease is valid here, in seconds.
const LEASE: u64 = 6;
/// The account, and its Secret.
const ACCOUNT: &str = "shop";
/// How agents and their replicas are shown.
const AGENTS: &str = "custom-columns=AGENT:.spec.agentId,ZONE:.spec.zoneId,CONNECTED:.status.connected,\
                      REPLICA:.status.session.replica";
/// How long agents of a dead replica may take to connect elsewhere.
const RECONNECT: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    stage::perform(demo)
}

async fn demo(screen: Screen) -> Result<(), String> {
    let screen = &screen;
    screen.heading("kubesvc: three replicas of the operator, two agents, an account");
    screen.say("");
    let mut demo = Demo::start(screen).await?;
    let shown = async {
        let lookout = Lookout::start(demo.home.client().await, ACCOUNT);
        demo.lose_the_leader(screen, &lookout).await
    };
    let shown = shown.await;
    shown.map_err(|reason| demo.with_logs(&reason))?;
    if is_once() {
        return demo.stop(screen).await.map_err(|reason| demo.with_logs(&reason));
    }
    demo.suggest(screen);
    demo.watch().await
}

/// Everything that runs. Dropped in this order.
struct Demo {
    agents: Vec<Process>,
    _balancer: Balancer,
    replicas: Vec<Replica>,
    _database: databases::Server,
    folder: Folder,
    kubectl: PathBuf,
    home: ControlPlane,
    // A cluster that Spinnaker deploys to.
    _target: ControlPlane,
}

impl Demo {
    async fn start(screen: &Screen) -> Result<Self, String> {
        let folder = Folder::new("demo-replicas")?;
        let mut target_options = StartOptions::default();
        let token = target_options.add_user("spinnaker", &[]);
        let (home, target) = screen
            .step("two control planes: the operator's home and a target cluster", async {
                tokio::try_join!(ControlPlane::start(), ControlPlane::start_with(target_options))
            })
            .await?;
        folder.write("kubeconfig", &namespaced(&home.admin_kubeconfig()))?;
        let kubeconfig = screen
            .step("definitions and rights, and a user for Spinnaker in the target", async {
                install(&home).await?;
                prepare(&target).await?;
                operator_kubeconfig(&home, &folder).await
            })
            .await?;
        let database = screen.step("PostgreSQL", databases::own(Kind::PostgreSql)).await?;
        let url = database.fresh_database().await;
        let mut replicas = Vec::new();
        for number in 0..3 {
            let what = format!("kubesvc-operator replica-{number}: ready");
            replicas.push(screen.step(&what, Replica::start(&folder, number, &kubeconfig, &url)).await?);
        }
        let balancer = Balancer::to(replicas.iter().map(|replica| replica.hub).collect()).await?;
        let mut agents = Vec::new();
        for id in ["agent-1", "agent-2"] {
            let what = format!("kubesvc-agent {id} of zone east: connected");
            agents.push(screen.step(&what, start_agent(&folder, id, balancer.port())).await?);
        }
        let demo = Self {
            agents,
            _balancer: balancer,
            replicas,
            _database: database,
            folder,
            kubectl: kubectl_path()?,
            home,
            _target: target,
        };
        let manifest = account(&demo._target.kubeconfig_for_token(&token));
        screen
            .step(&format!("account {ACCOUNT}: applied with kubectl, and ACTIVE"), async {
                kubectl::run(&demo.kubectl, &demo.kubeconfig(), ["apply", "-f", "-"], &manifest)
                    .await?
                    .ok()?;
                let active = "--for=jsonpath={.status.state}=ACTIVE";
                demo.kubectl(&["wait", &format!("ksa/{ACCOUNT}"), active, "--timeout=30s"]).await?.ok()
            })
            .await?;
        Ok(demo)
    }

    /// Shows who leads, kills it, and sees to it that nothing came of that.
    async fn lose_the_leader(&mut self, screen: &Screen, lookout: &Lookout) -> Result<(), String> {
        let first = screen.step("exactly one replica leads", until_one_leads(&self.replicas)).await?;
        try_eventually("the account under watch", RECONNECT, async || {
            if lookout.has_begun() { Ok(()) } else { Err("it was not shown yet".to_owned()) }
        })
        .await?;
        self.show(screen).await?;

        screen.heading(&format!("{} leads. It is killed (SIGKILL), now.", self.replicas[first].id));
        screen.say("");
        let died = Instant::now();
        self.replicas[first].process().kill();
        let dead = self.replicas[first].id.clone();
        let next = screen
            .step(&format!("another one leads, once the Lease of {LEASE} s has run out"), async {
                let next = until_one_leads(&self.replicas).await?;
                let took = died.elapsed();
                if next == first || took > Duration::from_millis(LEASE * 1300) {
                    return Err(format!("{} leads after {took:?}", self.replicas[next].id));
                }
                Ok(next)
            })
            .await?;
        screen
            .step(&format!("the agents of {dead} are connected to others"), self.agents_left(&dead))
            .await?;
        self.show(screen).await?;

        screen.heading("Checks");
        screen.say("");
        let what =
            format!("{} does the leader's work: a second account becomes ACTIVE", self.replicas[next].id);
        screen.step(&what, self.copy_account("second")).await?;
        screen
            .step(&format!("{dead} is started again, and follows"), async {
                self.replicas[first].start_again().await?;
                let leads = until_one_leads(&self.replicas).await?;
                if leads == next { Ok(()) } else { Err(format!("{} leads", self.replicas[leads].id)) }
            })
            .await?;
        screen
            .step(&format!("account {ACCOUNT} was ACTIVE all the time, and not written once"), async {
                match lookout.writes_while_active()? {
                    0 => Ok(()),
                    writes => Err(format!("it was written {writes} times")),
                }
            })
            .await
    }

    /// Every agent is connected, to a replica that is not this one.
    async fn agents_left(&self, dead: &str) -> Result<(), String> {
        try_eventually("agents at living replicas", RECONNECT, async || {
            let path = "{range .items[*]}{.status.connected} {.status.session.replica}{\"\\n\"}{end}";
            let text = self.kubectl(&["get", "ksg", "-o", &format!("jsonpath={path}")]).await?.ok()?;
            let good = |line: &str| line.starts_with("true ") && !line.ends_with(dead);
            if text.lines().count() == 2 && text.lines().all(good) { Ok(()) } else { Err(text) }
        })
        .await
    }

    /// A further account with the same Secret.
    async fn copy_account(&self, name: &str) -> Result<String, String> {
        let manifest = account_object(name);
        kubectl::run(&self.kubectl, &self.kubeconfig(), ["apply", "-f", "-"], &manifest).await?.ok()?;
        let active = "--for=jsonpath={.status.state}=ACTIVE";
        self.kubectl(&["wait", &format!("ksa/{name}"), active, "--timeout=30s"]).await?.ok()
    }

    /// Who leads, who has which agent, and the account.
    async fn show(&self, screen: &Screen) -> Result<(), String> {
        let mut table = format!("{:<12} {:<8} {:<8} {}", "REPLICA", "RUNS", "LEADS", "REST");
        for replica in &self.replicas {
            let leads = replica.runs() && replica.leads().await?;
            let [runs, leads] = [replica.runs(), leads].map(|is| if is { "yes" } else { "no" });
            table += &format!("\n{:<12} {runs:<8} {leads:<8} 127.0.0.1:{}", replica.id, replica.rest);
        }
        screen.command("the three replicas, as they say themselves", &table);
        let holder = ["get", "lease", "kubesvc-operator", "-o", "jsonpath={.spec.holderIdentity}"];
        for command in [&holder[..], &["get", "ksg", "-o", AGENTS], &["get", "ksa"]] {
            let output = self.kubectl(command).await?.ok()?;
            screen.command(&format!("kubectl {}", command.join(" ")), &output);
        }
        Ok(())
    }

    /// Says what to try next.
    fn suggest(&self, screen: &Screen) {
        screen.heading("It stays up until Ctrl-C. In another terminal:");
        let folder = self.kubectl.parent().map(|path| path.display().to_string()).unwrap_or_default();
        screen.suggestion(
            "the kubectl and the cluster of this demo",
            &format!("export PATH={folder}:$PATH KUBECONFIG={}", self.kubeconfig().display()),
        );
        screen.suggestion("watch who leads", "kubectl get lease kubesvc-operator --watch -o wide");
        for replica in self.replicas.iter() {
            let why = format!("stop {} in its tracks, and let it go on later with -CONT", replica.id);
            screen.suggestion(&why, &format!("kill -STOP {}", replica.process().id()));
        }
        screen.suggestion("see where the agents are", &format!("kubectl get ksg -o {AGENTS}"));
        let logs: Vec<_> =
            self.replicas.iter().map(|one| one.process().log().display().to_string()).collect();
        screen.suggestion("what the replicas say", &format!("tail -f {}", logs.join(" ")));
        screen.say("");
    }

    /// Ends only when an agent, or the last replica, does.
    async fn watch(&self) -> Result<(), String> {
        loop {
            for agent in &self.agents {
                agent.check_running()?;
            }
            if !self.replicas.iter().any(Replica::runs) {
                return Err(self.with_logs("no replica runs any more"));
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    /// Stops the programs, as a person would.
    async fn stop(&self, screen: &Screen) -> Result<(), String> {
        let replicas = self.replicas.iter().map(Replica::process);
        end_well(screen, self.agents.iter().chain(replicas)).await
    }

    fn kubeconfig(&self) -> PathBuf {
        self.folder.file("kubeconfig")
    }

    async fn kubectl(&self, args: &[&str]) -> Result<Output, String> {
        kubectl::run(&self.kubectl, &self.kubeconfig(), args, "").await
    }

    fn with_logs(&self, reason: &str) -> String {
        let processes = self.replicas.iter().map(Replica::process).chain(&self.agents);
        processes.fold(reason.to_owned(), |text, process| with_log(&text, process))
    }
}

async fn start_agent(folder: &Folder, id: &str, hub: u16) -> Result<Process, String> {
    let health = ports::free();
    let settings = folder.file(id);
    std::fs::create_dir(&settings).map_err(|e| format!("{}: {e}", settings.display()))?;
    folder.write(
        &format!("{id}/armory-agent.yml"),
        &format!(
            "clouddriver: {{grpc: '127.0.0.1:{hub}', insecure: true}}\n\
             server: {{host: 127.0.0.1, port: {health}}}\nzoneId: east\n"
        ),
    )?;
    let mut command = Command::new(program("kubesvc-agent")?);
    command.arg("--config-dir").arg(settings).env("AGENT_ID", id);
    let process =
        Process::spawn(&format!("kubesvc-agent {id}"), &command, &folder.file(&format!("{id}.log")))?;
    until_ready(&process, health).await?;
    Ok(process)
}

/// The account and its Secret.
fn account(kubeconfig: &str) -> String {
    let indented: String = kubeconfig.lines().map(|line| format!("    {line}\n")).collect();
    format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: {ACCOUNT}}}\nstringData:\n  kubeconfig: |\n{indented}---\n{}",
        account_object(ACCOUNT)
    )
}

fn account_object(name: &str) -> String {
    format!(
        "apiVersion: kubesvc.io/v1alpha1\nkind: KubesvcAccount\nmetadata: {{name: {name}}}\n\
         spec:\n  zoneId: east\n  kubeconfig: {{secretRef: {{name: {ACCOUNT}}}}}\n"
    )
}
