//! P8: time from a change of an object until its row is visible to a reader, through the real agent and the real operator,
//! compared with one process that watches the objects and commits each row by itself.

use std::time::{Duration, Instant};

use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::apps::v1::StatefulSet;
use kube::{
    Client,
    api::{Api, WatchEvent, WatchParams},
};
use kubesvc_core::cache::keys::object_id;
use tokio_util::task::AbortOnDropHandle;

use crate::{
    agent,
    cluster::{self, Workloads},
    latencies::Latencies,
    objects,
    operator::Database,
    options::Options,
    progress::say,
    recorded::Recorded,
    report::{Report, Row, Wanted},
    rows::{until_number, until_version},
    statistics::{Series, shown},
    tables::{self, AccountObject, Tables},
    world::World,
};
use kubesvc_testkit::folder::Folder;

/// Objects of each kind that change in turn.
const OBJECTS: usize = 20;
/// Changes of one side in a round.
const CHANGES: usize = 40;
/// Pause between two changes, so that each is a transaction of its own.
const PAUSE: Duration = Duration::from_millis(20);
const MAX_WAIT: Duration = Duration::from_secs(60);

/// Runs the benchmark and adds its results to the report.
///
/// # Errors
///
/// The benchmark could not run.
pub(crate) async fn run(options: &Options, world: &World, report: &mut Report) -> Result<(), String> {
    for (name, database) in Database::ALL {
        let [bare, kubesvc] = of_database(options, world, database).await?;
        let quantiles = [0.5, 0.99].map(|share| [bare.quantile(share), kubesvc.quantile(share)]);
        say(&format!(
            "P8 {name}: p50 {} ms (bare {}), p99 {} ms (bare {})",
            shown(quantiles[0][1]),
            shown(quantiles[0][0]),
            shown(quantiles[1][1]),
            shown(quantiles[1][0])
        ));
        for ([bare, kubesvc], (what, most)) in quantiles.into_iter().zip([("p50", 2.0), ("p99", 3.0)]) {
            let mut add = |what: &str, value: f64, wanted: Wanted| {
                report.add(Row::series(
                    "P8",
                    &format!("{name}: {what}"),
                    &Series::from_iter([value]),
                    wanted,
                ));
            };
            add(&format!("bare watch and commit, {what}, ms"), bare, Wanted::Nothing);
            add(&format!("change to visible row, {what}, ms"), kubesvc, Wanted::Nothing);
            add(&format!("{what}, times the bare process"), kubesvc / bare, Wanted::AtMost(most));
        }
    }
    Ok(())
}

async fn of_database(options: &Options, world: &World, database: Database) -> Result<[Latencies; 2], String> {
    let client = world.plane.client().await;
    let workloads = world.plane.namespace().await;
    let (cached, bare) = (
        Workloads::deployments(&client, workloads.name()),
        Workloads::stateful_sets(&client, workloads.name()),
    );
    cached.create(OBJECTS).await?;
    bare.create(OBJECTS).await?;
    let (namespace, site) = world.site(database, "{cacheKinds: [deployment]}").await?;
    world.accounts(&namespace, 1).await?;
    let operator = site.start()?;
    operator.ready().await?;
    let folder = Folder::new("bench-agent")?;
    let agent = agent::start("agent-0", &folder, &site.hub())?;
    let mut reader = Tables::connect(site.database()).await?;
    let there = format!("SELECT count(*) FROM kubesvc_cache WHERE namespace = '{}'", workloads.name());
    let count = i64::try_from(OBJECTS).unwrap_or(i64::MAX);
    until_number(&mut reader, &there, count, MAX_WAIT)
        .await
        .map_err(|reason| format!("{}\n{}", operator.explain(&reason), agent.log_tail(12)))?;
    let url = world.fresh(database).await;
    tables::create(&url).await?;
    let mut bare_reader = Tables::connect(&url).await?;
    let _follower = follow(client.clone(), workloads.name(), Tables::connect(&url).await?).await?;

    let account = objects::name(0);
    let mut latencies = [Latencies::default(), Latencies::default()];
    for round in 0..options.rounds {
        for side in if round % 2 == 0 { [0, 1] } else { [1, 0] } {
            for change in 0..CHANGES {
                tokio::time::sleep(PAUSE).await;
                let (number, change) = (change % OBJECTS, round * CHANGES + change);
                let name = cluster::name(number);
                let begun = Instant::now();
                let took = if side == 0 {
                    let version = bare.change(number, change).await?;
                    let id = Recorded::of(name, String::new(), String::new(), String::new()).id(&account);
                    until_version(&mut bare_reader, &id, &version, begun).await?
                } else {
                    let version = cached.change(number, change).await?;
                    let id = object_id("deployment", &account, workloads.name(), &name);
                    until_version(&mut reader, &id, &version, begun).await?
                };
                latencies[side].add(took);
            }
        }
    }
    agent.terminate(Duration::from_secs(20)).await?;
    operator.stop().await?;
    Ok(latencies)
}

/// Watches the StatefulSets of a namespace, and commits the row of each change.
async fn follow(
    client: Client,
    namespace: &str,
    mut tables: Tables,
) -> Result<AbortOnDropHandle<()>, String> {
    let api: Api<StatefulSet> = Api::namespaced(client, namespace);
    let list = api.list(&Default::default()).await.map_err(|e| e.to_string())?;
    let version = list.metadata.resource_version.unwrap_or_default();
    let watch = api.watch(&WatchParams::default(), &version).await.map_err(|e| e.to_string())?;
    let task = async move {
        let mut watch = watch.boxed();
        let account = objects::name(0);
        while let Ok(Some(event)) = watch.try_next().await {
            let (WatchEvent::Added(object) | WatchEvent::Modified(object)) = event else { continue };
            let Ok(body) = serde_json::to_string(&object) else { continue };
            let metadata = object.metadata;
            let object = Recorded::of(
                metadata.name.unwrap_or_default(),
                metadata.uid.unwrap_or_default(),
                metadata.resource_version.unwrap_or_default(),
                body,
            );
            if let Err(reason) = tables.write(&[AccountObject { account: &account, object: &object }]).await {
                say(&format!("the bare process cannot write: {reason}"));
                return;
            }
        }
        say("the watch of the bare process ended");
    };
    Ok(AbortOnDropHandle::new(tokio::spawn(task)))
}
