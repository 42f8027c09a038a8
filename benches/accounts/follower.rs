//! P1 with two replicas: activations per second with the agent at the follower, compared with the agent at the
//! leader.

use crate::{
    follow::{Follow, max_wait},
    objects::{self, Form},
    operator::introductions,
    options::Options,
    progress::say,
    replicas::{SERVERS, sites, start},
    report::{Report, Row, Wanted},
    requests::Requests,
    statistics::{Series, shown},
};
use kubesvc_testkit::{controlplane::ControlPlane, databases::Kind};

/// Metric that counts how often accounts were looked at.
const LOOKS: &str = "kubesvc_controller_looks_total";

#[derive(Debug)]
struct Activation {
    per_second: f64,
    account_writes: u64,
    agent_writes: u64,
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
        let (mut at_leader, mut at_follower) = (Vec::new(), Vec::new());
        for round in 1..=options.rounds {
            at_leader.push(activate(plane, options, kubeconfig, kind, false).await?);
            at_follower.push(activate(plane, options, kubeconfig, kind, true).await?);
            if let (Some(leader), Some(follower)) = (at_leader.last(), at_follower.last()) {
                say(&format!(
                    "replicas {round}/{}: {database}: {} accounts/s with the agent at the leader, {} at the follower",
                    options.rounds,
                    shown(leader.per_second),
                    shown(follower.per_second)
                ));
            }
        }
        tell(options, database, &at_leader, &at_follower, report);
    }
    Ok(())
}

async fn activate(
    plane: &ControlPlane,
    options: &Options,
    kubeconfig: &str,
    kind: Kind,
    at_follower: bool,
) -> Result<Activation, String> {
    let client = plane.client().await;
    let namespace = plane.namespace().await;
    objects::create(&client, namespace.name(), options.accounts, Form::RestMade, kubeconfig).await?;
    let sites = sites(plane, kind, namespace.name()).await?;
    let [leader, follower] = start(&sites).await?;
    looked_at(&leader, options.accounts).await?;

    // Everything is in place except an agent: the clock starts with the first account given to it.
    let mut follow = Follow::start(client.clone(), namespace.name()).await?;
    let before = Requests::now(&client).await?;
    let introductions = introductions(1);
    let replica = if at_follower { &follower } else { &leader };
    let agent = replica.connect(&introductions[0]).await?;
    let max_wait = max_wait(options.accounts);
    let clock = async {
        let first = follow.first(max_wait).await?;
        Ok(follow.active(options.accounts, max_wait).await? - first)
    };
    let time = clock.await.map_err(|reason: String| leader.explain(&reason))?;
    let requests = Requests::since(&before, &client).await?;
    let writes = requests.account_writes();
    leader.stop().await?;
    follower.stop().await?;
    drop(agent);
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    let per_second = options.accounts as f64 / time.as_secs_f64();
    let account_writes = writes.done + writes.conflicts + writes.refused;
    Ok(Activation { per_second, account_writes, agent_writes: requests.agent_writes() })
}

async fn looked_at(leader: &crate::operator::Operator<'_>, accounts: usize) -> Result<(), String> {
    kubesvc_testkit::wait::try_eventually("a look at every account", max_wait(accounts), async || {
        let looks = leader.metric(LOOKS).await?;
        if looks >= accounts as u64 { Ok(()) } else { Err(format!("{LOOKS} is {looks}")) }
    })
    .await
    .map_err(|reason| leader.explain(&reason))
}

fn tell(
    options: &Options,
    database: &str,
    at_leader: &[Activation],
    at_follower: &[Activation],
    report: &mut Report,
) {
    let both = [("leader", at_leader), ("follower", at_follower)];
    for (whose, results) in both {
        let rate: Series = results.iter().map(|one| one.per_second).collect();
        let what = format!("agent at the {whose}, {database}: accounts ACTIVE a second");
        report.add(Row::series("replicas", &what, &rate, Wanted::Nothing));
    }
    let pairs = at_follower.iter().zip(at_leader);
    let ratio: Series = pairs.map(|(follower, leader)| follower.per_second / leader.per_second).collect();
    let what = format!("agent at the follower, {database}: of the rate at the leader");
    report.add(Row::series("replicas", &what, &ratio, Wanted::AtLeast(0.6)));
    for (whose, results) in both {
        let expected = Form::RestMade.writes() * options.accounts as u64;
        let what = format!("agent at the {whose}, {database}: writes of accounts");
        report.add(Row::exact("replicas", &what, results.iter().map(|one| one.account_writes), expected));
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        let writes: Series = results.iter().map(|one| one.agent_writes as f64).collect();
        let what = format!("agent at the {whose}, {database}: writes of KubesvcAgents");
        report.add(Row::series("replicas", &what, &writes, Wanted::Nothing));
    }
}
