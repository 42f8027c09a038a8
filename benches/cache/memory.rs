//! P4: memory of the agent for the objects of a cluster, compared with client-go's informer over the same server; and
//! memory and sockets of an agent with many accounts, whose cluster is a small one of their own.

use std::{process::Command, time::Duration};

use crate::{
    agent,
    cluster::Workloads,
    operator::Database,
    options::Options,
    processes::{peak_resident, settled, sockets},
    progress::say,
    report::{Report, Row, Wanted},
    rows::until_number,
    statistics::{Series, shown},
    tables::Tables,
    world::World,
};
use kubesvc_testkit::{assets, folder::Folder, process::Process, wait::try_eventually};

const MAX_WAIT: Duration = Duration::from_secs(120);
/// Accounts of the agent with many.
const ACCOUNTS: usize = 100;
/// The documented kinds.
const KINDS: usize = 12;
/// Deployments, and StatefulSets, of the cluster of the agent with many accounts.
const WORKLOADS: usize = 20;
/// Kinds with many objects and with none, as settings and as client-go name them.
const FULL: [&str; 2] = ["deployment", "apps/v1/deployments"];
const EMPTY: [&str; 2] = ["daemonSet", "apps/v1/daemonsets"];

/// Memory of a program, in MB.
#[derive(Debug, Clone, Copy)]
struct Memory {
    peak: f64,
    rest: f64,
}

impl Memory {
    fn growth(self, empty: Self) -> Self {
        Self { peak: self.peak - empty.peak, rest: self.rest - empty.rest }
    }
}

/// Runs the benchmark and adds its results to the report.
///
/// # Errors
///
/// The benchmark could not run.
pub(crate) async fn run(options: &Options, world: &World, report: &mut Report) -> Result<(), String> {
    many_accounts(world, report).await?;
    let objects = options.objects;
    world.large(objects).await?;
    let informer = of_informer(world, FULL[1]).await?.growth(of_informer(world, EMPTY[1]).await?);
    let agent = of_agent(world, FULL[0], objects).await?.growth(of_agent(world, EMPTY[0], 0).await?);
    say(&format!(
        "P4: agent {} MB at the peak, {} at rest; informer {} and {}",
        shown(agent.peak),
        shown(agent.rest),
        shown(informer.peak),
        shown(informer.rest)
    ));
    let mut add = |what: &str, value: f64, wanted: Wanted| {
        let what = format!("{objects} Deployments of 4 KB: {what}");
        report.add(Row::series("P4", &what, &Series::from_iter([value]), wanted));
    };
    add("informer of client-go, growth at the peak of the first list, MB", informer.peak, Wanted::Nothing);
    add("informer of client-go, growth at rest, MB", informer.rest, Wanted::Nothing);
    add("agent, growth at the peak of the first list, MB", agent.peak, Wanted::Nothing);
    add("agent, growth at rest, MB", agent.rest, Wanted::Nothing);
    add("agent's growth of the informer's, peak", agent.peak / informer.peak, Wanted::AtMost(1.0 / 20.0));
    add("agent's growth of the informer's, at rest", agent.rest / informer.rest, Wanted::AtMost(1.0 / 40.0));
    Ok(())
}

async fn of_informer(world: &World, resource: &str) -> Result<Memory, String> {
    let program = assets::informer()?;
    let folder = Folder::new("bench-informer")?;
    let mut command = Command::new(program);
    command.arg(world.plane.kubeconfig_path()).arg(resource);
    let process = Process::spawn("informer", &command, &folder.file("log"))?;
    try_eventually("the list of the informer", MAX_WAIT, async || {
        if let Err(ended) = process.check_running() {
            return Ok(Err(ended));
        }
        if process.log_text().contains("listed") { Ok(Ok(())) } else { Err("not yet".to_owned()) }
    })
    .await??;
    let rest = settled(process.id()).await?;
    Ok(Memory { peak: peak_resident(process.id())?, rest })
}

async fn of_agent(world: &World, kind: &str, objects: usize) -> Result<Memory, String> {
    let (namespace, site) = world.site(Database::Sqlite, &format!("{{cacheKinds: [{kind}]}}")).await?;
    world.accounts(&namespace, 1).await?;
    let operator = site.start()?;
    operator.ready().await?;
    let folder = Folder::new("bench-agent")?;
    let agent = agent::start("agent-0", &folder, &site.hub())?;
    let mut tables = Tables::connect(site.database()).await?;
    let synced = "SELECT count(*) FROM kubesvc_resourceversion WHERE state = 'SYNCED'";
    until_number(&mut tables, synced, 1, MAX_WAIT)
        .await
        .map_err(|reason| format!("{}\n{}", operator.explain(&reason), agent.log_tail(12)))?;
    let rows = tables.number("SELECT count(*) FROM kubesvc_cache").await?;
    if usize::try_from(rows).is_ok_and(|rows| rows < objects) {
        return Err(format!("{rows} rows of {objects} objects"));
    }
    let memory = Memory { rest: settled(agent.id()).await?, peak: peak_resident(agent.id())? };
    agent.terminate(Duration::from_secs(20)).await?;
    operator.stop().await?;
    Ok(memory)
}

/// Memory and sockets for each of many accounts. Their cluster is new: one that other benchmarks have used would be as
/// large as they left it.
async fn many_accounts(world: &World, report: &mut Report) -> Result<(), String> {
    let cluster = crate::control_plane().await?;
    let (client, objects) = (cluster.client().await, cluster.namespace().await);
    Workloads::deployments(&client, objects.name()).create(WORKLOADS).await?;
    Workloads::stateful_sets(&client, objects.name()).create(WORKLOADS).await?;
    let (namespace, site) = world.site(Database::Sqlite, "{}").await?;
    let operator = site.start()?;
    operator.ready().await?;
    let folder = Folder::new("bench-agent")?;
    let agent = agent::start("agent-0", &folder, &site.hub())?;
    let before = (settled(agent.id()).await?, sockets(agent.id())?);
    world.accounts_of(&cluster, &namespace, ACCOUNTS).await?;
    let mut tables = Tables::connect(site.database()).await?;
    let synced = "SELECT count(*) FROM kubesvc_resourceversion WHERE state = 'SYNCED'";
    let wanted = i64::try_from(ACCOUNTS * KINDS).unwrap_or(i64::MAX);
    until_number(&mut tables, synced, wanted, MAX_WAIT)
        .await
        .map_err(|reason| format!("{}\n{}", operator.explain(&reason), agent.log_tail(12)))?;
    let after = (settled(agent.id()).await?, sockets(agent.id())?);
    agent.terminate(Duration::from_secs(20)).await?;
    operator.stop().await?;
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    let (kib, each) = (
        (after.0 - before.0) * 1024.0 / ACCOUNTS as f64,
        after.1.saturating_sub(before.1) as f64 / ACCOUNTS as f64,
    );
    let mut add = |what: &str, value: f64, wanted: Wanted| {
        let what = format!("{ACCOUNTS} accounts with {KINDS} kinds: {what}");
        report.add(Row::series("P4", &what, &Series::from_iter([value]), wanted));
    };
    say(&format!("P4: {} KiB and {} sockets an account", shown(kib), shown(each)));
    add("memory of the agent at rest, KiB an account", kib, Wanted::AtMost(256.0));
    add("sockets of the agent an account", each, Wanted::AtMost(2.0));
    Ok(())
}
