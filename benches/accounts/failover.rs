//! Failover: time without a leader, from the end of the former leader until the next has activated an account.

use std::time::Instant;

use crate::{
    follow::{Follow, max_wait},
    objects::{self, Form},
    operator::introductions,
    options::Options,
    progress::say,
    replicas::{SERVERS, sites, start},
    report::{Report, Row, Wanted},
    statistics::{Series, shown},
};
use kubesvc_testkit::{controlplane::ControlPlane, databases::Kind};

/// Default duration of a Lease, in seconds.
const LEASE: f64 = 15.0;
/// How the leader ends, and the maximum time until the next one is at work, as a fraction of the Lease.
const ENDS: [(&str, End, f64); 2] = [("killed", End::Killed, 1.3), ("asked to end", End::Asked, 0.2)];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// SIGKILL.
    Killed,
    /// SIGTERM.
    Asked,
}

/// Runs the benchmark and adds its results to the report.
///
/// # Errors
///
/// The benchmark could not run.
pub(crate) async fn run(
    plane: &ControlPlane,
    options: &Options,
    kubeconfig: &str,
    report: &mut Report,
) -> Result<(), String> {
    for (database, kind) in SERVERS {
        let taken = rounds(plane, options, kubeconfig, (database, kind)).await?;
        for ((how, _, most), taken) in ENDS.into_iter().zip(taken) {
            let taken: Series = taken.into_iter().collect();
            let what = format!("leader {how}, {database}: of the Lease until the next has an account ACTIVE");
            report.add(Row::series("replicas", &what, &taken, Wanted::AtMost(most)));
        }
    }
    Ok(())
}

/// Returns the fractions of the Lease in each round, for each way to end.
async fn rounds(
    plane: &ControlPlane,
    options: &Options,
    kubeconfig: &str,
    (database, kind): (&str, Kind),
) -> Result<[Vec<f64>; 2], String> {
    let client = plane.client().await;
    let namespace = plane.namespace().await;
    let mut accounts = options.accounts;
    objects::create(&client, namespace.name(), accounts, Form::RestMade, kubeconfig).await?;
    let mut follow = Follow::start(client.clone(), namespace.name()).await?;
    let sites = sites(plane, kind, namespace.name()).await?;
    let [mut leader, mut other] = start(&sites).await?;
    let mut other_site = &sites[0];
    let [introduction] = &introductions(1)[..] else { return Err("one agent was asked for".into()) };
    // The agent is connected to the next leader, so that the measurement excludes the agent's redial.
    let mut agent = other.connect(introduction).await?;
    follow.active(accounts, max_wait(accounts)).await.map_err(|reason| leader.explain(&reason))?;

    let mut shares = [Vec::new(), Vec::new()];
    for round in 1..=options.rounds {
        for (number, (how, end, _)) in ENDS.into_iter().enumerate() {
            let ended = Instant::now();
            let next = async {
                objects::create_one(&client, namespace.name(), accounts, Form::RestMade, kubeconfig).await?;
                accounts += 1;
                follow.active(accounts, max_wait(accounts)).await.map_err(|reason| other.explain(&reason))
            };
            let (stopped, active) = if end == End::Killed {
                leader.kill();
                (Ok(()), next.await)
            } else {
                tokio::join!(leader.stop(), next)
            };
            stopped?;
            let share = (active? - ended).as_secs_f64() / LEASE;
            say(&format!(
                "replicas {round}/{}: {database}: {how}: {} of the Lease",
                options.rounds,
                shown(share)
            ));
            shares[number].push(share);

            // The former leader restarts as follower, and the agent moves to it.
            leader = other;
            other = other_site.start()?;
            other.ready().await?;
            other_site = if std::ptr::eq(other_site, &sites[0]) { &sites[1] } else { &sites[0] };
            let again = agent.again();
            agent.goodbye().await;
            agent = other.connect(&again).await?;
        }
    }
    leader.stop().await?;
    other.stop().await?;
    Ok(shares)
}
