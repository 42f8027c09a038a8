//! Beside the cache: how much later an account's row is committed while the objects of a large cluster are written for the
//! first time; and how late heartbeats come while such objects go over a slow link.

use std::time::{Duration, Instant};

use kube::api::{Api, Patch, PatchParams, PostParams};
use kubesvc_core::{
    DesiredState, KubesvcAccount, KubesvcAccountSpec,
    spec::{KubeconfigSource, SecretKeyReference},
};
use kubesvc_testkit::folder::Folder;
use serde_json::json;

use crate::{
    agent,
    feeder::Feeder,
    latencies::Latencies,
    operator::Database,
    options::Options,
    progress::say,
    recorded::Recorded,
    report::{Report, Row, Wanted},
    rows::until_number,
    slow_link::SlowLink,
    statistics::{Series, shown},
    tables::Tables,
    world::World,
};

/// Objects of the cluster.
const OBJECTS: usize = 30_000;
/// How much later a row may be committed, in milliseconds: the longest transaction that the cache aims at.
const ALLOWED: f64 = 250.0;
/// Account that changes, and is inactive.
const ACCOUNT: &str = "probe";
/// Changes at rest.
const CHANGES: usize = 100;
const MAX_WAIT: Duration = Duration::from_secs(30);

/// Rate of the slow link, in bytes a second: 2 Mbit/s.
const SLOW: u32 = 2_000_000 / 8;
/// Accounts whose objects go over it, with the same cluster.
const ACCOUNTS: usize = 3;
/// Interval between heartbeats, unless set.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// How late a heartbeat may be behind the slow link, in seconds.
const ALLOWED_LATE: f64 = 2.0;
const MAX_SLOW_WAIT: Duration = Duration::from_secs(900);

/// Runs the benchmark and adds its results to the report.
///
/// # Errors
///
/// The benchmark could not run.
pub(crate) async fn run(options: &Options, world: &World, report: &mut Report) -> Result<(), String> {
    slow_link(options, world, report).await?;
    for (name, database) in Database::ALL {
        let [rest, beside] = of_database(world, database).await?;
        let later = beside.quantile(0.99) - rest.quantile(0.99);
        say(&format!(
            "beside {name}: p99 {} ms at rest, {} ms beside a first list",
            shown(rest.quantile(0.99)),
            shown(beside.quantile(0.99))
        ));
        let mut add = |what: &str, value: f64, wanted: Wanted| {
            report.add(Row::series(
                "beside",
                &format!("{name}: {what}"),
                &Series::from_iter([value]),
                wanted,
            ));
        };
        add("account's row at rest, p99, ms", rest.quantile(0.99), Wanted::Nothing);
        add("account's row beside 30,000 objects, p99, ms", beside.quantile(0.99), Wanted::Nothing);
        add("later by, ms", later, Wanted::AtMost(ALLOWED));
    }
    Ok(())
}

/// The first list of three accounts over a slow link, by the real agent.
async fn slow_link(options: &Options, world: &World, report: &mut Report) -> Result<(), String> {
    world.large(options.objects).await?;
    let (namespace, site) = world.site(Database::Sqlite, "{cacheKinds: [deployment]}").await?;
    world.accounts(&namespace, ACCOUNTS).await?;
    let operator = site.start()?;
    operator.ready().await?;
    let link = SlowLink::start(&site.hub(), SLOW).await?;
    let folder = Folder::new("bench-agent")?;
    let begun = Instant::now();
    let agent = agent::start("agent-0", &folder, &link.address())?;
    let mut tables = Tables::connect(site.database()).await?;
    let synced = "SELECT count(*) FROM kubesvc_resourceversion WHERE state = 'SYNCED'";
    let accounts = i64::try_from(ACCOUNTS).unwrap_or(i64::MAX);
    until_number(&mut tables, synced, accounts, MAX_SLOW_WAIT)
        .await
        .map_err(|reason| format!("{}\n{}", operator.explain(&reason), agent.log_tail(12)))?;
    let (seconds, bytes, connections) = (begun.elapsed().as_secs_f64(), link.bytes(), link.connections());
    let late = link.longest_silence().map(|silence| silence.saturating_sub(HEARTBEAT).as_secs_f64());
    let rows = tables.number("SELECT count(*) FROM kubesvc_cache").await?;
    agent.terminate(Duration::from_secs(20)).await?;
    operator.stop().await?;
    say(&format!(
        "beside, 2 Mbit/s: {rows} objects in {} s; heartbeats {} s late from the agent, {} s from the hub",
        shown(seconds),
        shown(late[0]),
        shown(late[1])
    ));
    let mut add = |what: &str, value: f64, wanted: Wanted| {
        let what = format!("{rows} objects over 2 Mbit/s: {what}");
        report.add(Row::series("beside", &what, &Series::from_iter([value]), wanted));
    };
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    let (kib, connections) = (bytes as f64 / 1024.0 / seconds, connections as f64);
    add("seconds", seconds, Wanted::Nothing);
    add("KiB a second in both directions", kib, Wanted::Nothing);
    add("heartbeats from the agent late by, s", late[0], Wanted::AtMost(ALLOWED_LATE));
    add("heartbeats from the hub late by, s", late[1], Wanted::AtMost(ALLOWED_LATE));
    add("connections of the agent", connections, Wanted::AtMost(1.0));
    Ok(())
}

async fn of_database(world: &World, database: Database) -> Result<[Latencies; 2], String> {
    let (namespace, site) = world.site(database, "{}").await?;
    world.accounts(&namespace, 1).await?;
    let operator = site.start()?;
    operator.ready().await?;
    let mut feeder = Feeder::connect(&operator, &site.hub(), 1).await?;
    let api = Api::namespaced(world.plane.client().await, namespace.name());
    // An inactive account's Secret is not read.
    let secret_ref = Some(SecretKeyReference { name: ACCOUNT.into(), key: None });
    let spec = KubesvcAccountSpec {
        state: Some(DesiredState::Inactive),
        kubeconfig: KubeconfigSource { secret_ref, ..KubeconfigSource::default() },
        ..KubesvcAccountSpec::default()
    };
    let account = KubesvcAccount::new(ACCOUNT, spec);
    api.create(&PostParams::default(), &account).await.map_err(|e| e.to_string())?;
    let tables = Tables::connect(site.database()).await?;
    let mut changes = Changes { api, tables, number: 0 };
    let there = format!("SELECT count(*) FROM kubesvc_accounts WHERE name = '{ACCOUNT}'");
    until_number(&mut changes.tables, &there, 1, MAX_WAIT)
        .await
        .map_err(|reason| operator.explain(&reason))?;

    let mut rest = Latencies::default();
    for _ in 0..CHANGES {
        rest.add(changes.one().await.map_err(|reason| operator.explain(&reason))?);
    }
    let objects: Vec<Recorded> = (0..OBJECTS).map(|number| Recorded::new("beside", number, 1)).collect();
    let recorded = feeder.record(objects.iter().map(|object| (0, object)));
    let mut beside = Latencies::default();
    let fed = feeder.feed(recorded);
    tokio::pin!(fed);
    loop {
        // The change that is under way at the end began beside the objects.
        let (ended, took) = {
            let one = changes.one();
            tokio::pin!(one);
            tokio::select! {
                fed = &mut fed => {
                    fed?;
                    (true, one.await?)
                }
                took = &mut one => (false, took?),
            }
        };
        beside.add(took);
        if ended {
            break;
        }
    }
    operator.stop().await?;
    Ok([rest, beside])
}

/// Changes of the account's spec, and a reader of its row.
struct Changes {
    api: Api<KubesvcAccount>,
    tables: Tables,
    number: usize,
}

impl Changes {
    /// Changes the account. Returns how long it took until its row was visible.
    async fn one(&mut self) -> Result<Duration, String> {
        self.number += 1;
        let patch = json!({"spec": {"environment": format!("environment-{}", self.number)}});
        let begun = Instant::now();
        let patched = self.api.patch(ACCOUNT, &PatchParams::default(), &Patch::Merge(&patch)).await;
        let generation = patched.map_err(|e| e.to_string())?.metadata.generation.unwrap_or_default();
        let row = format!(
            "SELECT count(*) FROM kubesvc_accounts WHERE name = '{ACCOUNT}' AND generation >= {generation}"
        );
        loop {
            if self.tables.number(&row).await? == 1 {
                return Ok(begun.elapsed());
            }
            if begun.elapsed() > MAX_WAIT {
                return Err(format!("the row of {ACCOUNT} does not follow generation {generation}"));
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}
