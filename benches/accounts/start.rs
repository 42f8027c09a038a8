//! Start: from the start of the operator to ready, with many accounts in objects and rows.

use std::time::{Duration, Instant};

use kube::{Api, api::ListParams};
use kubesvc::{account::KubesvcAccount, store};

use crate::{
    follow::patience,
    harness::controlplane::ControlPlane,
    objects::{self, Form},
    operator::{Database, Site},
    options::Options,
    progress::say,
    report::{Report, Row, Wanted},
    statistics::Series,
};

/// How many accounts there are for each one of the other benchmarks.
const TIMES: usize = 10;
/// An operator that has written no row for so long has written all.
const QUIET: Duration = Duration::from_secs(3);
/// How many objects a page of a LIST has, as the operator's watch asks for it.
const PAGE: u32 = 500;

/// Measures, and adds what came out.
///
/// # Errors
///
/// Something did not work at all.
pub(crate) async fn run(options: &Options, report: &mut Report) -> Result<(), String> {
    let count = options.accounts * TIMES;
    let plane = crate::control_plane().await?;
    let namespace = plane.namespace().await;
    objects::create_bare(&plane.client().await, namespace.name(), count, Form::RestMade).await?;
    for (name, database) in Database::ALL {
        let site = Site::on(database, &plane, namespace.name(), Duration::from_secs(30)).await?;
        fill(&site, count).await?;
        let (mut starts, mut bares) = (Vec::new(), Vec::new());
        for round in 1..=options.rounds {
            bares.push(bare(&plane, namespace.name(), site.database(), count).await?);
            starts.push(start(&site).await?);
            say(&format!(
                "start {round}/{}: {name}: {:.2} s, a bare LIST and read {:.2} s",
                options.rounds,
                starts[round - 1],
                bares[round - 1]
            ));
        }
        let (starts, bares): (Series, Series) = (starts.into_iter().collect(), bares.into_iter().collect());
        let what = |what: &str| format!("{count} accounts, {name}: {what}");
        report.add(Row::series("start", &what("a bare LIST and a bare read, s"), &bares, Wanted::Nothing));
        report.add(Row::series("start", &what("from start to ready, s"), &starts, Wanted::Nothing));
        let ratio = Series::from_iter([starts.median() / bares.median()]);
        report.add(Row::series("start", &what("times the bare client"), &ratio, Wanted::AtMost(2.0)));
    }
    Ok(())
}

/// Lets an operator write all rows once, and waits until it writes no more.
async fn fill(site: &Site, count: usize) -> Result<(), String> {
    let operator = site.start()?;
    operator.ready().await?;
    let (end, mut before) = (Instant::now() + patience(count), 0);
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

/// Seconds from the start to ready.
async fn start(site: &Site) -> Result<f64, String> {
    let begun = Instant::now();
    let operator = site.start()?;
    operator.ready().await?;
    let seconds = begun.elapsed().as_secs_f64();
    operator.stop().await?;
    Ok(seconds)
}

/// Seconds for a LIST of all objects in pages, and one read of all rows.
async fn bare(plane: &ControlPlane, namespace: &str, database: &str, count: usize) -> Result<f64, String> {
    let store = store::open(database).await.map_err(|e| e.to_string())?;
    let accounts: Api<KubesvcAccount> = Api::namespaced(plane.client().await, namespace);
    let begun = Instant::now();
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
    let seconds = begun.elapsed().as_secs_f64();
    if (listed.len(), rows.len()) != (count, count) {
        return Err(format!("{} objects and {} rows, not {count} of each", listed.len(), rows.len()));
    }
    Ok(seconds)
}
