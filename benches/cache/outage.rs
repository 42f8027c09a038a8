//! Outage: a database that is away for a minute while objects change: memory of hub and agent, and how fast they catch up.

use std::time::{Duration, Instant};

use tokio::time::MissedTickBehavior;

use crate::{
    agent,
    cluster::{self, Workloads},
    latencies::until_number,
    operator::Database,
    options::Options,
    processes::peak_resident,
    progress::say,
    report::{Report, Row, Wanted},
    statistics::{Series, shown},
    tables::Tables,
    world::World,
};
use kubesvc_testkit::{databases::Kind, folder::Folder};

/// Objects that change in turn.
const OBJECTS: usize = 2_000;
/// Interval between two changes.
const INTERVAL: Duration = Duration::from_millis(5);
/// How long the database is away.
const AWAY: Duration = Duration::from_secs(60);
const MAX_WAIT: Duration = Duration::from_secs(180);
/// Memory that hub and agent may take more, in MB: what an account and a stream may have uncommitted at both sides, twice
/// for its copies.
const ALLOWED: f64 = 16.0;

/// Runs the benchmark and adds its results to the report.
///
/// # Errors
///
/// The benchmark could not run, or a change was lost.
pub(crate) async fn run(_: &Options, world: &World, report: &mut Report) -> Result<(), String> {
    let client = world.plane.client().await;
    let home = world.plane.namespace().await;
    let workloads = Workloads::deployments(&client, home.name());
    workloads.create(OBJECTS).await?;
    let kind = Kind::PostgreSql;
    let (namespace, site) = world.site(Database::Server(kind), "{cacheKinds: [deployment]}").await?;
    world.accounts(&namespace, 1).await?;
    let operator = site.start()?;
    operator.ready().await?;
    let folder = Folder::new("bench-agent")?;
    let agent = agent::start("agent-0", &folder, &site.hub())?;
    let mut tables = Tables::connect(site.database()).await?;
    let synced = "SELECT count(*) FROM kubesvc_resourceversion WHERE state = 'SYNCED'";
    until_number(&mut tables, synced, 1, MAX_WAIT).await.map_err(|reason| operator.explain(&reason))?;
    drop(tables);

    let before = [peak_resident(operator.id())?, peak_resident(agent.id())?];
    world.server(kind).stop().await?;
    let mut versions = vec![String::new(); OBJECTS];
    let (mut changes, begun) = (0, Instant::now());
    let mut pace = tokio::time::interval(INTERVAL);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while begun.elapsed() < AWAY {
        pace.tick().await;
        let number = changes % OBJECTS;
        versions[number] = workloads.change(number, changes).await?;
        changes += 1;
    }
    world.server(kind).start().await?;
    let back = Instant::now();
    let mut tables = Tables::connect(site.database()).await?;
    let newest = versions.iter().enumerate().filter(|(_, version)| !version.is_empty());
    let newest: Vec<_> = newest.map(|(number, version)| (cluster::name(number), version)).collect();
    let values: Vec<String> =
        newest.iter().map(|(name, version)| format!("('{name}','{version}')")).collect();
    let right = format!(
        "SELECT count(*) FROM kubesvc_cache WHERE namespace = '{}' AND (name, resource_version) IN ({})",
        home.name(),
        values.join(",")
    );
    let all = i64::try_from(newest.len()).unwrap_or(i64::MAX);
    until_number(&mut tables, &right, all, MAX_WAIT)
        .await
        .map_err(|reason| operator.explain(&reason.chars().take(300).collect::<String>()))?;
    let caught_up = back.elapsed().as_secs_f64();
    let after = [peak_resident(operator.id())?, peak_resident(agent.id())?];
    agent.terminate(Duration::from_secs(20)).await?;
    operator.stop().await?;

    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    let pace = changes as f64 / AWAY.as_secs_f64();
    say(&format!("outage: {} changes a second, caught up after {} s", shown(pace), shown(caught_up)));
    let mut add = |what: &str, value: f64, wanted: Wanted| {
        let what = format!("PostgreSQL away for 60 s: {what}");
        report.add(Row::series("outage", &what, &Series::from_iter([value]), wanted));
    };
    add("changes a second meanwhile", pace, Wanted::Nothing);
    add("memory of the operator, growth of its peak, MB", after[0] - before[0], Wanted::AtMost(ALLOWED));
    add("memory of the agent, growth of its peak, MB", after[1] - before[1], Wanted::AtMost(ALLOWED));
    add("seconds from its return until every row is the newest", caught_up, Wanted::Nothing);
    Ok(())
}
