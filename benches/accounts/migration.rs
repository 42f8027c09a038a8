//! Migration: accounts that the operator makes from a file of Clouddriver, compared with the same objects made by a bare
//! client beside an operator that does all else.

use std::time::{Duration, Instant};

use kube::api::{ListParams, PostParams};
use kube::{Api, Client};
use kubesvc_core::{KubesvcAccount, KubesvcMigration, State};
use kubesvc_testkit::{controlplane::ControlPlane, wait::try_eventually};
use serde_json::{Value, json};

use crate::{
    follow::max_wait,
    objects::{self, each},
    operator::Site,
    options::Options,
    processes::peak_resident,
    progress::say,
    report::{Report, Row, Wanted},
    requests::Requests,
    statistics::{Series, shown},
};

/// Longer than any step here.
const GRACE: Duration = Duration::from_secs(30);
/// Interval between two counts of the accounts.
const COUNT: Duration = Duration::from_millis(20);
/// How long nothing may be written afterwards, more than two reads of the file.
const QUIET: Duration = Duration::from_secs(12);
/// Name of the file.
const FILE: &str = "clouddriver.yml";

/// Result of a round.
struct Migrated {
    seconds: f64,
    bare: f64,
    idle_writes: u64,
    /// Peak memory of the operator without and with the migration, in MB.
    memory: [f64; 2],
}

/// Runs the benchmark and adds its results to the report.
///
/// # Errors
///
/// The benchmark could not run.
pub(crate) async fn run(options: &Options, report: &mut Report) -> Result<(), String> {
    let plane = crate::control_plane().await?;
    let mut results = Vec::new();
    for round in 1..=options.rounds {
        let one = measure(&plane, options).await?;
        say(&format!(
            "migration {round}/{}: {} s, bare client {} s",
            options.rounds,
            shown(one.seconds),
            shown(one.bare)
        ));
        results.push(one);
    }
    let series = |of: fn(&Migrated) -> f64| results.iter().map(of).collect::<Series>();
    let accounts = options.accounts;
    let what = format!("{accounts} accounts made from a file, seconds");
    report.add(Row::series("migration", &what, &series(|one| one.seconds), Wanted::Nothing));
    report.add(Row::series("migration", "bare client: seconds", &series(|one| one.bare), Wanted::Nothing));
    let ratio = series(|one| one.seconds / one.bare);
    report.add(Row::series("migration", "times the bare client", &ratio, Wanted::AtMost(1.3)));
    let idle = results.iter().map(|one| one.idle_writes);
    report.add(Row::exact("migration", "writes while nothing changes", idle, 0));
    let memory = series(|one| one.memory[1] - one.memory[0]);
    report.add(Row::series(
        "migration",
        "peak memory beyond an operator without it, MB",
        &memory,
        Wanted::AtMost(64.0),
    ));
    Ok(())
}

async fn measure(plane: &ControlPlane, options: &Options) -> Result<Migrated, String> {
    let (client, namespace) = (plane.client().await, plane.namespace().await);
    let site =
        Site::new(plane, namespace.name(), GRACE).await?.with_source(GRACE, FILE, &file(options.accounts))?;
    let operator = site.start()?;
    operator.ready().await?;
    let migrations: Api<KubesvcMigration> = Api::namespaced(client.clone(), namespace.name());
    let spec = json!({
        "patterns": [".*"], "activate": false, "wave": {"size": "100%", "soak": "0s"},
        "limits": {"maxInFlight": 10_000}, "zoneRules": [{"pattern": ".*", "zoneId": objects::ZONE}],
    });
    let migration =
        KubesvcMigration::new("bench", serde_json::from_value(spec).map_err(|error| error.to_string())?);
    migrations.create(&PostParams::default(), &migration).await.map_err(|error| error.to_string())?;
    counted(&client, namespace.name(), 1, options).await?;
    let start = Instant::now();
    counted(&client, namespace.name(), options.accounts, options)
        .await
        .map_err(|why| operator.explain(&why))?;
    let seconds = start.elapsed().as_secs_f64();
    try_eventually("a migration that is complete", max_wait(options.accounts), async || {
        let status =
            migrations.get("bench").await.map_err(|error| error.to_string())?.status.unwrap_or_default();
        if json!(status.phase) == "Complete" { Ok(()) } else { Err(format!("{status:?}")) }
    })
    .await?;
    // What the controller still writes of new accounts is not the migration's.
    let accounts: Api<KubesvcAccount> = Api::namespaced(client.clone(), namespace.name());
    try_eventually("accounts that are INACTIVE", max_wait(options.accounts), async || {
        let all = accounts.list(&ListParams::default()).await.map_err(|error| error.to_string())?.items;
        let settled = all.iter().filter(|one| one.status_or_default().state() == State::Inactive).count();
        if settled == options.accounts { Ok(()) } else { Err(format!("{settled} are")) }
    })
    .await?;
    let before = Requests::now(&client).await?;
    tokio::time::sleep(QUIET).await;
    let requests = Requests::since(&before, &client).await?;
    let idle_writes = requests.account_writes().done + requests.other_writes();
    let with = peak_resident(operator.id())?;
    operator.stop().await?;

    // The same objects, by a client that does nothing else.
    let made = accounts.list(&ListParams::default()).await.map_err(|error| error.to_string())?.items;
    let bodies: Vec<KubesvcAccount> = made.into_iter().map(bare).collect();
    let other = plane.namespace().await;
    let site = Site::new(plane, other.name(), GRACE).await?;
    let operator = site.start()?;
    operator.ready().await?;
    let accounts: Api<KubesvcAccount> = Api::namespaced(client.clone(), other.name());
    let start = Instant::now();
    each(bodies.len(), async |number| {
        let mut body = bodies[number].clone();
        body.metadata.namespace = None;
        accounts.create(&PostParams::default(), &body).await.map(drop).map_err(|error| error.to_string())
    })
    .await?;
    let bare = start.elapsed().as_secs_f64();
    let without = peak_resident(operator.id())?;
    operator.stop().await?;
    Ok(Migrated { seconds, bare, idle_writes, memory: [without, with] })
}

/// Waits until the namespace has so many accounts.
async fn counted(client: &Client, namespace: &str, count: usize, options: &Options) -> Result<(), String> {
    let accounts: Api<KubesvcAccount> = Api::namespaced(client.clone(), namespace);
    let end = Instant::now() + max_wait(options.accounts);
    loop {
        let one = accounts.list_metadata(&ListParams::default().limit(1)).await;
        let one = one.map_err(|error| error.to_string())?;
        let left = one.metadata.remaining_item_count.and_then(|left| usize::try_from(left).ok());
        let there = one.items.len() + left.unwrap_or_default();
        if there >= count {
            return Ok(());
        }
        if Instant::now() > end {
            return Err(format!("only {there} of {count} accounts are there"));
        }
        tokio::time::sleep(COUNT).await;
    }
}

/// The object as its creator sends it.
fn bare(mut account: KubesvcAccount) -> KubesvcAccount {
    let metadata = std::mem::take(&mut account.metadata);
    account.status = None;
    account.metadata.name = metadata.name;
    account.metadata.labels = metadata.labels;
    account.metadata.annotations = metadata.annotations;
    account.metadata.finalizers = metadata.finalizers;
    account
}

/// A file of Clouddriver with so many accounts.
fn file(count: usize) -> String {
    let accounts: Vec<Value> = (0..count)
        .map(|number| {
            json!({
                "name": objects::name(number), "kubeconfigFile": "encryptedFile:k8s!n:kubeconfigs!k:all",
                "permissions": {"READ": ["dev"], "WRITE": ["ops"]}, "environment": "production", "cacheThreads": 2,
            })
        })
        .collect();
    json!({"kubernetes": {"accounts": accounts}}).to_string()
}
