//! Resume: bytes between agent and hub after a cut, a restart of the agent and a forced list, compared with the first list
//! of the same objects, none of which changed.

use std::time::{Duration, Instant};

use crate::{
    agent, cluster,
    operator::{Database, Operator},
    options::Options,
    processes::Programs,
    progress::say,
    proxy::Proxy,
    report::{Report, Row, Wanted},
    rows::until_number,
    statistics::{Series, shown},
    tables::Tables,
    world::World,
};
use kubesvc_testkit::{databases::Kind, folder::Folder, wait::try_eventually};

const MAX_WAIT: Duration = Duration::from_secs(120);
/// How long the connection is cut.
const CUT: Duration = Duration::from_secs(30);
/// What follows a resumption by itself is over after this time.
const QUIET: Duration = Duration::from_secs(5);
const SYNCED: &str = "SELECT count(*) FROM kubesvc_resourceversion WHERE state = 'SYNCED'";

const WAL: &str = "SELECT (pg_current_wal_lsn() - '0/0'::pg_lsn)::bigint";
const DISK: &str =
    "SELECT (pg_total_relation_size('kubesvc_cache') + pg_total_relation_size('kubesvc_cache_rel'))::bigint";
const RELATIONS: &str = "SELECT count(*) FROM kubesvc_cache_rel";
const MEGABYTE: f64 = 1024.0 * 1024.0;

/// Runs the benchmark and adds its results to the report.
///
/// # Errors
///
/// The benchmark could not run.
pub(crate) async fn run(options: &Options, world: &World, report: &mut Report) -> Result<(), String> {
    let workloads = world.large(options.objects).await?;
    let database = Database::Server(Kind::PostgreSql);
    let (namespace, site) = world.site(database, "{cacheKinds: [deployment]}").await?;
    world.accounts(&namespace, 1).await?;
    let operator = site.start()?;
    operator.ready().await?;
    let proxy = Proxy::start(&site.hub()).await?;
    let folder = Folder::new("bench-agent")?;
    let mut tables = Tables::connect(site.database()).await?;
    let wal = tables.number(WAL).await?;
    let begun = Instant::now();
    let agent = agent::start("agent-0", &folder, proxy.address())?;
    let mut programs = vec![("operator", operator.id()), ("agent", agent.id())];
    programs.extend(site.database_server());
    let programs = Programs::new(&programs);
    let cpu = programs.cpu()?;
    until_number(&mut tables, SYNCED, 1, MAX_WAIT)
        .await
        .map_err(|reason| format!("{}\n{}", operator.explain(&reason), agent.log_tail(12)))?;
    let (seconds, cpu) = (begun.elapsed().as_secs_f64(), programs.cpu()?.since(&cpu));
    report.cpu("start of an agent and first list", std::iter::once((seconds, &cpu)));
    let cost = [tables.number(WAL).await? - wal, tables.number(DISK).await?, tables.number(RELATIONS).await?];
    tokio::time::sleep(QUIET).await;
    let full = proxy.bytes();
    let mut written = Written::of(&operator).await?;

    let before = proxy.bytes();
    proxy.cut();
    tokio::time::sleep(CUT).await;
    until_synced(&operator, 0).await?;
    proxy.mend();
    until_synced(&operator, 1).await?;
    tokio::time::sleep(QUIET).await;
    let after_cut = proxy.bytes() - before;
    let rows_after_cut = written.since(&operator).await?;

    let before = proxy.bytes();
    agent.kill();
    until_synced(&operator, 0).await?;
    let agent = agent::start("agent-0", &folder, proxy.address())?;
    until_synced(&operator, 1).await?;
    tokio::time::sleep(QUIET).await;
    let after_restart = proxy.bytes() - before;
    let rows_after_restart = written.since(&operator).await?;

    let before = proxy.bytes();
    agent.kill();
    until_synced(&operator, 0).await?;
    tables.execute("UPDATE kubesvc_resourceversion SET resourceversion = NULL, state = 'LISTING'").await?;
    let agent = agent::start("agent-0", &folder, proxy.address())?;
    until_number(&mut tables, SYNCED, 1, MAX_WAIT).await.map_err(|reason| operator.explain(&reason))?;
    tokio::time::sleep(QUIET).await;
    let after_list = proxy.bytes() - before;
    let rows_after_list = written.since(&operator).await?;

    // What was resumed follows the cluster.
    let version = workloads.change(0, 0).await?;
    let row = format!(
        "SELECT count(*) FROM kubesvc_cache WHERE name = '{}' AND resource_version = '{version}'",
        cluster::name(0)
    );
    until_number(&mut tables, &row, 1, MAX_WAIT).await.map_err(|reason| operator.explain(&reason))?;
    agent.terminate(Duration::from_secs(20)).await?;
    operator.stop().await?;

    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    let [full, cut, restart, list] =
        [full, after_cut, after_restart, after_list].map(|bytes| bytes as f64 / 1024.0);
    say(&format!(
        "resume: {} KiB for the first list; {} after a cut, {} after a restart, {} after a list",
        shown(full),
        shown(cut),
        shown(restart),
        shown(list)
    ));
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    let [wal, disk, relations] = cost.map(|number| number as f64);
    let mut add = |what: &str, value: f64, wanted: Wanted| {
        let what = format!("{} objects: {what}", options.objects);
        report.add(Row::series("resume", &what, &Series::from_iter([value]), wanted));
    };
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    let end_to_end = options.objects as f64 / seconds;
    add("first list, with the start of the agent: rows a second", end_to_end, Wanted::Nothing);
    add("first list, KiB between agent and hub", full, Wanted::Nothing);
    add("first list, MB of WAL", wal / MEGABYTE, Wanted::Nothing);
    add("MB on disk, with relations and indexes", disk / MEGABYTE, Wanted::Nothing);
    add("relations", relations, Wanted::Nothing);
    add("cut of 30 s, KiB", cut, Wanted::AtMost(64.0));
    add("restart of the agent, of the first list", restart / full, Wanted::AtMost(0.01));
    add("forced list, of the first list", list / full, Wanted::AtMost(0.05));
    let rows = [rows_after_cut, rows_after_restart, rows_after_list];
    report.add(Row::exact("resume", "rows written in all three", rows, 0));
    Ok(())
}

/// Waits until the hub streams this many accounts of which nothing has to be listed.
async fn until_synced(operator: &Operator<'_>, wanted: u64) -> Result<(), String> {
    try_eventually("streams as they should be", MAX_WAIT, async || {
        let accounts = operator.metric("kubesvc_cache_accounts{state=\"synced\"}").await?;
        if accounts == wanted { Ok(()) } else { Err(format!("{accounts} accounts are synced")) }
    })
    .await
    .map_err(|reason| operator.explain(&reason))
}

/// Rows that the hub has written.
struct Written(u64);

impl Written {
    async fn of(operator: &Operator<'_>) -> Result<Self, String> {
        let written = operator.metric("kubesvc_cache_rows_written_total").await?;
        Ok(Self(written + operator.metric("kubesvc_cache_rows_deleted_total").await?))
    }

    /// Rows written since the last call.
    async fn since(&mut self, operator: &Operator<'_>) -> Result<u64, String> {
        let before = std::mem::replace(self, Self::of(operator).await?);
        Ok(self.0 - before.0)
    }
}
