//! P9: activations through a real agent on a real target cluster, compared with a minimal client that makes the same
//! requests.

use std::time::{Duration, Instant};

use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::{Api, Client, api::PostParams};
use serde_json::json;

use crate::{
    agent, bare,
    follow::{Follow, max_wait},
    objects::{self, Form},
    operator::Site,
    options::Options,
    processes::{Cpu, Programs, peak_resident, proportional, sockets},
    progress::say,
    report::{Report, Row, Wanted},
    requests::Requests,
    statistics::{Series, shown},
};
use kubesvc_testkit::{
    controlplane::{ControlPlane, StartOptions},
    folder::Folder,
    namespace::TestNamespace,
    process::Process,
};

const GRACE: Duration = Duration::from_secs(30);
/// Time after which idle connections should be closed.
const REST: Duration = Duration::from_secs(3);
/// Time limit for an agent to end when asked.
const AGENT_END_TIMEOUT: Duration = Duration::from_secs(20);
/// Interval between reads of the agent's log.
const LOG_POLL: Duration = Duration::from_millis(20);
/// The user in the accounts' kubeconfigs.
const READER: &str = "kubesvc-bench-reader";
/// Maximum number of sockets of an agent that only holds its accounts: hub, health, and the runtime's own.
const SOCKETS: f64 = 10.0;

/// Two control planes: the operator's and the target.
struct Pair {
    home: ControlPlane,
    target: ControlPlane,
    kubeconfig: String,
}

#[derive(Debug)]
struct Run {
    seconds: f64,
    cpu: Cpu,
    writes: u64,
    operator: Memory,
    agent: Memory,
    sockets: usize,
    /// Seconds until the agent holds all accounts again, after SIGKILL and after SIGTERM.
    held_again: [f64; 2],
}

#[derive(Debug, Clone, Copy)]
struct Memory {
    peak: f64,
    proportional: f64,
}

/// Runs the benchmark and adds its results to the report.
///
/// # Errors
///
/// The benchmark could not run.
pub(crate) async fn run(options: &Options, report: &mut Report) -> Result<(), String> {
    let pair = Pair::start().await?;
    let (mut bares, mut runs) = (Vec::new(), Vec::new());
    for round in 1..=options.rounds {
        let bare = pair.bare(options.accounts).await?;
        say(&format!("P9 {round}/{}: bare client: {} s", options.rounds, shown(bare.0)));
        bares.push(bare);
        let run = pair.kubesvc(options.accounts).await?;
        say(&format!(
            "P9 {round}/{}: operator and agent: {} s; {} sockets of the agent afterwards",
            options.rounds,
            shown(run.seconds),
            run.sockets
        ));
        runs.push(run);
    }
    tell(options, &bares, &runs, report);
    Ok(())
}

impl Pair {
    async fn start() -> Result<Self, String> {
        let mut options = StartOptions::without_audit();
        let token = options.add_user(READER, &[]);
        let target = ControlPlane::start_with(options).await?;
        allow_reading(target.client().await).await?;
        let kubeconfig = target.kubeconfig_for_token(&token);
        Ok(Self { home: crate::control_plane().await?, target, kubeconfig })
    }

    fn servers(&self) -> Result<Vec<(&'static str, u32)>, String> {
        let mut all = crate::servers(&self.home)?;
        let target = crate::servers(&self.target)?;
        all.extend(
            target
                .into_iter()
                .zip(["target kube-apiserver", "target etcd"])
                .map(|((_, pid), name)| (name, pid)),
        );
        Ok(all)
    }

    async fn accounts(&self, count: usize) -> Result<TestNamespace, String> {
        let namespace = self.home.namespace().await;
        let client = self.home.client().await;
        objects::create(&client, namespace.name(), count, Form::Applied, &self.kubeconfig).await?;
        Ok(namespace)
    }

    async fn bare(&self, count: usize) -> Result<(f64, Cpu), String> {
        let namespace = self.accounts(count).await?;
        let _follow = Follow::start(self.home.client().await, namespace.name()).await?;
        let programs = Programs::new(&self.servers()?);
        let home = self.home.client().await;
        let (cpu, start) = (programs.cpu()?, Instant::now());
        bare::register(&home, namespace.name(), count, &self.kubeconfig).await?;
        Ok((start.elapsed().as_secs_f64(), programs.cpu()?.since(&cpu)))
    }

    async fn kubesvc(&self, count: usize) -> Result<Run, String> {
        let namespace = self.accounts(count).await?;
        let client = self.home.client().await;
        let mut follow = Follow::start(client.clone(), namespace.name()).await?;
        let before = Requests::now(&client).await?;
        let site = Site::new(&self.home, namespace.name(), GRACE).await?;
        let operator = site.start()?;
        let folder = Folder::new("bench-agent")?;
        operator.listens().await?;
        let agent = agent::start("agent-0", &folder, &site.hub())?;
        let mut programs = vec![("operator", operator.id()), ("agent", agent.id())];
        programs.extend(self.servers()?);
        let programs = Programs::new(&programs);

        let max_wait = max_wait(count);
        let clock = async {
            let first = follow.first(max_wait).await?;
            let cpu = programs.cpu()?;
            let last = follow.active(count, max_wait).await?;
            Ok((last - first, programs.cpu()?.since(&cpu)))
        };
        let (time, cpu) = clock.await.map_err(|reason: String| {
            format!("{}\nthe agent's last lines:\n{}", operator.explain(&reason), agent.log_tail(12))
        })?;
        tokio::time::sleep(REST).await;
        let memory = |pid: u32| {
            Ok::<_, String>(Memory { peak: peak_resident(pid)?, proportional: proportional(pid)? })
        };
        let mut run = Run {
            seconds: time.as_secs_f64(),
            cpu,
            writes: Requests::since(&before, &client).await?.account_writes().done,
            operator: memory(operator.id())?,
            agent: memory(agent.id())?,
            sockets: sockets(agent.id())?,
            held_again: [0.0; 2],
        };
        agent.kill();
        let (agent, seconds) = start_again(&folder, &site.hub(), count, max_wait).await?;
        run.held_again[0] = seconds;
        agent.terminate(AGENT_END_TIMEOUT).await?;
        let (agent, seconds) = start_again(&folder, &site.hub(), count, max_wait).await?;
        run.held_again[1] = seconds;
        let ended = agent.terminate(AGENT_END_TIMEOUT).await?;
        if !ended.success() {
            return Err(format!("the agent ended: {ended}\n{}", agent.log_tail(12)));
        }
        operator.stop().await?;
        Ok(run)
    }
}

/// Starts an agent that has ended. Returns it with the seconds until it holds all accounts.
async fn start_again(
    folder: &Folder,
    hub: &str,
    count: usize,
    max_wait: Duration,
) -> Result<(Process, f64), String> {
    let held = |agent: &Process| agent.log_text().matches("the account is held").count();
    let start = Instant::now();
    let agent = agent::start("agent-0", folder, hub)?;
    let before = held(&agent);
    while held(&agent) < before + count {
        if start.elapsed() > max_wait {
            return Err(format!(
                "the agent started anew and holds {} accounts after {max_wait:?}",
                held(&agent) - before
            ));
        }
        tokio::time::sleep(LOG_POLL).await;
    }
    Ok((agent, start.elapsed().as_secs_f64()))
}

/// Allows the reader to get, list and watch everything in the target.
async fn allow_reading(client: Client) -> Result<(), String> {
    let role = json!({
        "metadata": {"name": READER},
        "rules": [
            {"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch"]},
            {"nonResourceURLs": ["*"], "verbs": ["get"]},
        ],
    });
    let binding = json!({
        "metadata": {"name": READER},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": READER},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": READER}],
    });
    let problem = |e: &dyn std::fmt::Display| format!("rights in the target cluster: {e}");
    let role: ClusterRole = serde_json::from_value(role).map_err(|e| problem(&e))?;
    let binding: ClusterRoleBinding = serde_json::from_value(binding).map_err(|e| problem(&e))?;
    Api::all(client.clone()).create(&PostParams::default(), &role).await.map_err(|e| problem(&e))?;
    Api::all(client).create(&PostParams::default(), &binding).await.map_err(|e| problem(&e))?;
    Ok(())
}

fn tell(options: &Options, bares: &[(f64, Cpu)], runs: &[Run], report: &mut Report) {
    let accounts = options.accounts;
    let bare: Series = bares.iter().map(|(seconds, _)| *seconds).collect();
    let time: Series = runs.iter().map(|run| run.seconds).collect();
    report.add(Row::series(
        "P9",
        &format!("bare client: seconds for {accounts} accounts"),
        &bare,
        Wanted::Nothing,
    ));
    report.add(Row::series(
        "P9",
        &format!("operator and agent: seconds for {accounts} accounts"),
        &time,
        Wanted::Nothing,
    ));
    let ratio = Series::from_iter([time.median() / bare.median()]);
    report.add(Row::series("P9", "times the bare client", &ratio, Wanted::AtMost(1.3)));
    for (after, number) in [("SIGKILL", 0), ("SIGTERM", 1)] {
        let again: Series = runs.iter().map(|run| run.held_again[number]).collect();
        let ratio = Series::from_iter([again.median() / time.median()]);
        let what = format!("agent started after {after}: seconds until all accounts are held");
        report.add(Row::series("P9", &what, &again, Wanted::Nothing));
        let what = format!("agent started after {after}: times the activation");
        report.add(Row::series("P9", &what, &ratio, Wanted::AtMost(1.0)));
    }
    let expected = Form::Applied.writes() * accounts as u64;
    report.add(Row::exact("P9", "writes of accounts", runs.iter().map(|run| run.writes), expected));
    let mut memory = |what: &str, of: &dyn Fn(&Run) -> f64, wanted: Wanted| {
        report.add(Row::series("P9", what, &runs.iter().map(of).collect(), wanted));
    };
    memory("peak memory of the operator (RSS), MB", &|run| run.operator.peak, Wanted::AtMost(150.0));
    memory("memory of the operator afterwards (PSS), MB", &|run| run.operator.proportional, Wanted::Nothing);
    memory("peak memory of the agent (RSS), MB", &|run| run.agent.peak, Wanted::AtMost(250.0));
    memory("memory of the agent afterwards (PSS), MB", &|run| run.agent.proportional, Wanted::Nothing);
    #[expect(clippy::cast_precision_loss, reason = "a small number")]
    memory("sockets of the agent afterwards", &|run| run.sockets as f64, Wanted::AtMost(SOCKETS));
    report.cpu("bare client, P9", bares.iter().map(|(seconds, cpu)| (*seconds, cpu)));
    report.cpu("operator and agent, P9", runs.iter().map(|run| (run.seconds, &run.cpu)));
}
