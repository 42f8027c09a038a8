//! Start: time until the operator is ready with many accounts in objects and rows.

use std::time::{Duration, Instant};

use kube::{Api, api::ListParams};
use kubesvc_core::KubesvcAccount;

use crate::{
    follow::max_wait,
    objects::{self, Form},
    operator::{Database, Site},
    options::Options,
    processes::{Cpu, Programs},
    progress::say,
    report::{Report, Row, Wanted},
    statistics::Series,
};
use kubesvc_testkit::controlplane::ControlPlane;

/// Accounts here, as a multiple of the number in the other benchmarks.
const TIMES: usize = 10;
/// Starts per round. They are short, so other activity on the machine can lengthen them, but never shorten them.
/// Therefore the minimum of each side is compared.
const STARTS: usize = 3;
/// Time without row writes after which an operator has written all rows.
const QUIET: Duration = Duration::from_secs(3);
/// Page size of a LIST, equal to that of the operator's watch.
const PAGE: u32 = 500;

/// Runs the benchmark and adds its results to the report.
///
/// # Errors
///
/// The benchmark could not run.
pub(crate) async fn run(options: &Options, report: &mut Report) -> Result<(), String> {
    let count = options.accounts * TIMES;
    let plane = crate::control_plane().await?;
    let namespace = plane.namespace().await;
    objects::create_bare(&plane.client().await, namespace.name(), count, Form::RestMade).await?;
    for (name, database) in Database::ALL {
        let site = Site::on(database, &plane, namespace.name(), Duration::from_secs(30)).await?;
        fill(&site, count).await?;
        let (mut starts, mut bares) = (Vec::new(), Vec::new());
        let rounds = options.rounds * STARTS;
        for round in 1..=rounds {
            let bare = bare(&plane, namespace.name(), site.database(), count).await?;
            let start = start(&plane, &site).await?;
            say(&format!(
                "start {round}/{rounds}: {name}: {:.2} s, a bare LIST and read {:.2} s",
                start.0, bare.0
            ));
            bares.push(bare);
            starts.push(start);
        }
        tell(&format!("{count} accounts, {name}"), &bares, &starts, report);
    }
    Ok(())
}

fn tell(of: &str, bares: &[(f64, Cpu)], starts: &[(f64, Cpu)], report: &mut Report) {
    let seconds = |all: &[(f64, Cpu)]| all.iter().map(|(seconds, _)| *seconds).collect::<Series>();
    let (bare, start) = (seconds(bares), seconds(starts));
    let what = |what: &str| format!("{of}: {what}");
    report.add(Row::series("start", &what("a bare LIST and a bare read, s"), &bare, Wanted::Nothing));
    report.add(Row::series("start", &what("from start to ready, s"), &start, Wanted::Nothing));
    let ratio = Series::from_iter([start.min() / bare.min()]);
    report.add(Row::series(
        "start",
        &what("times the bare client, least by least"),
        &ratio,
        Wanted::AtMost(2.0),
    ));
    report.cpu(&what("bare LIST and read"), bares.iter().map(|(seconds, cpu)| (*seconds, cpu)));
    report.cpu(&what("start to ready"), starts.iter().map(|(seconds, cpu)| (*seconds, cpu)));
}

/// Runs an operator until it has written all rows.
async fn fill(site: &Site, count: usize) -> Result<(), String> {
    let operator = site.start()?;
    operator.ready().await?;
    let (end, mut before) = (Instant::now() + max_wait(count), 0);
    loop {
        tokio::time::sleep(QUIET).await;
        let rows = operator.metric("kubesvc_store_rows_written_total").await?;
        if rows == before && rows >= count as u64 && operator.metric("kubesvc_store_pending").await? == 0 {
            return operator.stop().await;
        }
        before = rows;
        if Instant::now() > end {
            return Err(operator.explain(&format!("{rows} rows were written, {count} are wanted")));
        }
    }
}

/// Returns the seconds from the start until ready.
async fn start(plane: &ControlPlane, site: &Site) -> Result<(f64, Cpu), String> {
    let others = Programs::new(&crate::servers(plane)?).cpu()?;
    let begun = Instant::now();
    let operator = site.start()?;
    operator.ready().await?;
    let seconds = begun.elapsed().as_secs_f64();
    let mut programs = crate::servers(plane)?;
    programs.push(("operator", operator.id()));
    let cpu = Programs::new(&programs).cpu()?.since(&others);
    operator.stop().await?;
    Ok((seconds, cpu))
}

/// Returns the seconds for a LIST of all objects in pages and one read of all rows.
async fn bare(
    plane: &ControlPlane,
    namespace: &str,
    database: &str,
    count: usize,
) -> Result<(f64, Cpu), String> {
    let store = kubesvc_store::open(database, kubesvc_store::VendorTables::Refuse)
        .await
        .map_err(|e| e.to_string())?;
    let accounts: Api<KubesvcAccount> = Api::namespaced(plane.client().await, namespace);
    let programs = Programs::new(&crate::servers(plane)?);
    let (cpu, begun) = (programs.cpu()?, Instant::now());
    let mut listed = Vec::with_capacity(count);
    let mut page = ListParams::default().limit(PAGE);
    loop {
        let list = accounts.list(&page).await.map_err(|e| e.to_string())?;
        listed.extend(list.items);
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => break,
        }
    }
    let rows = store.accounts().await.map_err(|e| e.to_string())?.rows;
    let (seconds, cpu) = (begun.elapsed().as_secs_f64(), programs.cpu()?.since(&cpu));
    if (listed.len(), rows.len()) != (count, count) {
        return Err(format!("{} objects and {} rows, not {count} of each", listed.len(), rows.len()));
    }
    Ok((seconds, cpu))
}
