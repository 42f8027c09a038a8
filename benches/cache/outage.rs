//! Outage: a database that is away for a minute while 200 objects a second change: memory of hub and agent, and how fast
//! they catch up.
//! And how fast the hub commits what waits once the database is back, compared with a bare loop.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use futures::future::try_join_all;

use crate::{
    agent,
    cluster::{self, Workloads},
    feeder::Feeder,
    operator::Database,
    options::Options,
    processes::peak_resident,
    progress::say,
    recorded::Recorded,
    report::{Report, Row, Wanted},
    rows::until_number,
    statistics::{Series, shown},
    tables::{self, BATCH, Tables},
    world::World,
};
use kubesvc_testkit::{databases::Kind, folder::Folder};

/// Objects that change in turn.
const OBJECTS: usize = 2_000;
/// Writers at once: one alone waits for each answer, which takes longer than the interval.
const WRITERS: usize = 8;
/// Interval between two changes of any writer: 200 changes a second.
const INTERVAL: Duration = Duration::from_millis(5);
/// Changes a second that the outage must have been under: 200, less what a writer that was late has not made up for.
const MIN_PACE: f64 = 190.0;
/// How long the database is away.
const AWAY: Duration = Duration::from_secs(60);
const MAX_WAIT: Duration = Duration::from_secs(180);
/// How long the database is away while batches wait, less than a feeder waits for an answer.
const BACKLOG_AWAY: Duration = Duration::from_secs(20);
/// Accounts of the batches that wait.
const ACCOUNTS: usize = 4;
/// Most rounds of batches that wait, each with an outage.
const MAX_ROUNDS: usize = 3;
/// Share of the bare loop's rows that is wanted of the hub after an outage.
const DRAINED: f64 = 0.8;
/// Memory that hub and agent may take more, in MB: what an account and a stream may have uncommitted at both sides, twice
/// for its copies.
const ALLOWED: f64 = 16.0;

/// Runs the benchmark and adds its results to the report.
///
/// # Errors
///
/// The benchmark could not run, or a change was lost.
pub(crate) async fn run(options: &Options, world: &World, report: &mut Report) -> Result<(), String> {
    drained(options, world, report).await?;
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
    let begun = Instant::now();
    let written = try_join_all((0..WRITERS).map(|writer| write(&workloads, writer))).await?;
    let took = begun.elapsed();
    world.server(kind).start().await?;
    let back = Instant::now();
    let mut tables = Tables::connect(site.database()).await?;
    let changes: usize = written.iter().map(|(changes, _)| changes).sum();
    let newest: BTreeMap<usize, String> = written.into_iter().flat_map(|(_, newest)| newest).collect();
    let values = newest.iter().map(|(number, version)| format!("('{}','{version}')", cluster::name(*number)));
    let values: Vec<String> = values.collect();
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
    let pace = changes as f64 / took.as_secs_f64();
    say(&format!("outage: {} changes a second, caught up after {} s", shown(pace), shown(caught_up)));
    let mut add = |what: &str, value: f64, wanted: Wanted| {
        let what = format!("PostgreSQL away for 60 s: {what}");
        report.add(Row::series("outage", &what, &Series::from_iter([value]), wanted));
    };
    add("changes a second meanwhile", pace, Wanted::AtLeast(MIN_PACE));
    add("memory of the operator, growth of its peak, MB", after[0] - before[0], Wanted::AtMost(ALLOWED));
    add("memory of the agent, growth of its peak, MB", after[1] - before[1], Wanted::AtMost(ALLOWED));
    // No rate: most of it is the hub's wait until it tries the database again. `drained` measures the rate.
    add("seconds from its return until every row is the newest", caught_up, Wanted::Nothing);
    Ok(())
}

/// Changes the objects of one writer in turn while the database is away. Returns the number of changes, and the newest
/// version of each object that it changed.
async fn write(workloads: &Workloads, writer: usize) -> Result<(usize, BTreeMap<usize, String>), String> {
    let (mut changes, mut newest) = (0, BTreeMap::new());
    let begun = Instant::now();
    let of = |writers: usize| INTERVAL * u32::try_from(writers).expect("there are some");
    // A late writer makes up for the ticks that it has missed.
    let mut pace = tokio::time::interval_at(tokio::time::Instant::now() + of(writer), of(WRITERS));
    for number in (writer..OBJECTS).step_by(WRITERS).cycle() {
        pace.tick().await;
        if begun.elapsed() >= AWAY {
            break;
        }
        newest.insert(number, workloads.change(number, changes).await?);
        changes += 1;
    }
    Ok((changes, newest))
}

/// Rows that the hub commits in a second after an outage, from the first commit on.
async fn drained(options: &Options, world: &World, report: &mut Report) -> Result<(), String> {
    let kind = Kind::PostgreSql;
    let (namespace, site) = world.site(Database::Server(kind), "{}").await?;
    world.accounts(&namespace, ACCOUNTS).await?;
    let operator = site.start()?;
    operator.ready().await?;
    let mut feeder = Feeder::connect(&operator, &site.hub(), ACCOUNTS).await?;
    let bare = world.fresh(Database::Server(kind)).await;
    tables::create(&bare).await?;
    let (mut rates, mut bare_rates, mut shares) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..options.rounds.min(MAX_ROUNDS) {
        let objects: Vec<_> =
            (0..options.objects).map(|number| Recorded::new(&format!("drain{round}"), number, 1)).collect();
        let recorded = feeder.record(feeder.spread(&objects));
        let written = || operator.counter("kubesvc_cache_rows_written_total");
        let before = written().await?;
        world.server(kind).stop().await?;
        let outage = async {
            tokio::time::sleep(BACKLOG_AWAY).await;
            world.server(kind).start().await?;
            let mut first = written().await?;
            while first <= before {
                tokio::time::sleep(Duration::from_millis(5)).await;
                first = written().await?;
            }
            Ok::<_, String>((first, Instant::now()))
        };
        let ((), (first, begun)) =
            tokio::try_join!(feeder.feed(recorded), outage).map_err(|reason| operator.explain(&reason))?;
        // The last acknowledgement came before this, and nothing else runs.
        let ended = Instant::now();
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        let left = objects.len() as f64 - (first - before);
        let rate = left / (ended - begun).as_secs_f64();
        let mut tables = Tables::connect(&bare).await?;
        let rows = feeder.account_objects(feeder.spread(&objects));
        let begun = Instant::now();
        for batch in rows.chunks(BATCH) {
            tables.write(batch).await?;
        }
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        let bare_rate = objects.len() as f64 / begun.elapsed().as_secs_f64();
        say(&format!("outage, drained: {} of {} rows/s", shown(rate), shown(bare_rate)));
        rates.push(rate);
        bare_rates.push(bare_rate);
        shares.push(rate / bare_rate);
    }
    operator.stop().await?;
    let mut add = |what: &str, values: Vec<f64>, wanted: Wanted| {
        let what = format!("PostgreSQL back after {} s: {what}", BACKLOG_AWAY.as_secs());
        report.add(Row::series("outage", &what, &Series::from_iter(values), wanted));
    };
    add("bare loop, rows a second", bare_rates, Wanted::Nothing);
    add("hub from its first commit on, rows a second", rates, Wanted::Nothing);
    add("of the bare loop", shares, Wanted::AtLeast(DRAINED));
    Ok(())
}
