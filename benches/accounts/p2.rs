//! P2: writes of a restarted operator while every account is ACTIVE.

use std::time::{Duration, Instant};

use futures::future::try_join_all;

use crate::{
    follow::{Follow, max_wait},
    objects::{self, Form},
    operator::{Operator, Site, introductions},
    options::Options,
    progress::say,
    report::{Report, Row, Wanted},
    requests::Requests,
    statistics::Series,
};
use kubesvc_testkit::{simulated_agent::SimulatedAgent, wait::try_eventually};

/// Short, so that writes of accounts wrongly considered orphaned fall into the measurement.
const GRACE: Duration = Duration::from_secs(5);
/// Longer than the grace.
const QUIET: Duration = Duration::from_secs(8);
/// Metric that counts how often accounts were looked at.
const LOOKS: &str = "kubesvc_controller_looks_total";

/// Runs the benchmark and adds its results to the report.
///
/// # Errors
///
/// The benchmark could not run.
pub(crate) async fn run(options: &Options, kubeconfig: &str, report: &mut Report) -> Result<(), String> {
    let plane = crate::control_plane().await?;
    let client = plane.client().await;
    let namespace = plane.namespace().await;
    objects::create(&client, namespace.name(), options.accounts, Form::RestMade, kubeconfig).await?;
    let mut follow = Follow::start(client.clone(), namespace.name()).await?;
    let site = Site::new(&plane, namespace.name(), GRACE).await?;

    let mut operator = site.start()?;
    let mut introductions = introductions(2);
    let mut agents = try_join_all(introductions.iter().map(|one| operator.connect(one))).await?;
    let active = follow.active(options.accounts, max_wait(options.accounts)).await;
    active.map_err(|reason| operator.explain(&reason))?;

    let (mut writes, mut others, mut seconds) = (Vec::new(), Vec::new(), Vec::new());
    for round in 1..=options.rounds {
        operator.stop().await?;
        introductions = agents.iter().map(SimulatedAgent::again).collect();
        for introduction in &introductions {
            if introduction.accounts_held.len() != options.accounts {
                let held = introduction.accounts_held.len();
                return Err(format!("{} holds {held} accounts", introduction.agent_id));
            }
        }
        let before = Requests::now(&client).await?;
        let start = Instant::now();
        operator = site.start()?;
        agents = try_join_all(introductions.iter().map(|one| operator.connect(one))).await?;
        operator.ready().await?;
        looked_at_all(&operator, options.accounts).await?;
        seconds.push(start.elapsed().as_secs_f64());
        tokio::time::sleep(QUIET).await;
        let requests = Requests::since(&before, &client).await?;
        let of_accounts = requests.account_writes();
        let count = of_accounts.done + of_accounts.conflicts + of_accounts.refused;
        say(&format!("P2 {round}/{}: {count} writes of accounts; all: {}", options.rounds, requests.shown()));
        writes.push(count);
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        others.push(requests.other_writes() as f64);
    }
    operator.stop().await?;
    let accounts = options.accounts;
    report.add(Row::exact("P2", &format!("restart with {accounts} ACTIVE: writes of accounts"), writes, 0));
    let others = Series::from_iter(others);
    report.add(Row::series("P2", "writes of Events and KubesvcAgents (2 agents)", &others, Wanted::Nothing));
    let seconds = Series::from_iter(seconds);
    report.add(Row::series("P2", "seconds until each was looked at", &seconds, Wanted::Nothing));
    Ok(())
}

async fn looked_at_all(operator: &Operator<'_>, accounts: usize) -> Result<(), String> {
    try_eventually("a look at every account", max_wait(accounts), async || {
        let looks = operator.counter(LOOKS).await?;
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        if looks >= accounts as f64 { Ok(()) } else { Err(format!("{LOOKS} is {looks}")) }
    })
    .await
    .map_err(|reason| operator.explain(&reason))
}
