//! Distance: kubectl 50 ms away from a cluster. Directly, all of its connection is that long. Through the agent, only the
//! connection between agent and hub is: the agent is where the cluster is, and the hub where kubectl is. Every byte takes
//! 25 ms each way. Opening a TCP connection takes no time over the proxy, which is in favour of the direct side.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use serde_json::json;

use crate::{
    callers::Door,
    distant_server::DistantServer,
    latencies::Latencies,
    options::Options,
    progress::say,
    report::{Report, Row, Wanted},
    statistics::{Series, shown},
    world::Running,
};
use kubesvc_testkit::{
    controlplane,
    folder::Folder,
    kubeconfig::{self, Proof},
};

/// Time of a round trip.
pub(crate) const ROUND_TRIP: Duration = Duration::from_millis(50);
/// Runs of kubectl on each side in a round.
const RUNS: usize = 10;
const NAME: &str = "distant";

/// Runs the benchmark and adds its results to the report.
///
/// # Errors
///
/// The benchmark could not run.
pub(crate) async fn run(
    options: &Options,
    running: &mut Running<'_>,
    report: &mut Report,
) -> Result<(), String> {
    let (cluster, hub) = (running.world.direct(None)?, running.world.hub());
    let (cluster_there, hub_there) = tokio::try_join!(
        DistantServer::start(&cluster.address, ROUND_TRIP),
        DistantServer::start(&hub, ROUND_TRIP)
    )?;
    running.move_agent(hub_there.address()).await?;
    let folder = Folder::new("bench-distance")?;
    let sides = [
        kubeconfig(&folder, "direct", &running.world.direct(Some(cluster_there.address()))?, "")?,
        kubeconfig(&folder, "through", &running.gateway(1), &running.world.account_path(0))?,
    ];
    let namespace = running.world.objects.name();
    for what in ["get", "apply"] {
        let mut ratios = Vec::new();
        let mut medians = [Vec::new(), Vec::new()];
        for round in 0..options.rounds {
            let mut times = [Latencies::default(), Latencies::default()];
            for number in 0..=RUNS {
                for (side, config) in sides.iter().enumerate() {
                    let took = kubectl(config, namespace, what, (round * RUNS + number) * 2 + side).await;
                    let took = took.map_err(|reason| running.explain(&reason))?;
                    // The first run of a round reads what kubectl keeps in its cache.
                    if number > 0 {
                        times[side].add(took);
                    }
                }
            }
            let [direct, through] = [&times[0], &times[1]].map(|side| side.quantile(0.5));
            say(&format!(
                "distance {}/{}: kubectl {what}: direct {} ms, through {}",
                round + 1,
                options.rounds,
                shown(direct),
                shown(through)
            ));
            medians[0].push(direct);
            medians[1].push(through);
            ratios.push(through / direct);
        }
        let mut add = |text: &str, values: &[f64], wanted: Wanted| {
            let series: Series = values.iter().copied().collect();
            report.add(Row::series("distance", &format!("kubectl {what} at 50 ms: {text}"), &series, wanted));
        };
        add("directly, p50, ms", &medians[0], Wanted::Nothing);
        add("through, p50, ms", &medians[1], Wanted::Nothing);
        add("times that", &ratios, Wanted::AtMost(1.0));
    }
    running.move_agent(&running.world.hub()).await
}

fn kubeconfig(folder: &Folder, name: &str, door: &Door, path: &str) -> Result<PathBuf, String> {
    let server = format!("https://{}{path}", door.address);
    let authority = door.authority.clone().unwrap_or_default();
    folder.write(name, &kubeconfig::yaml(&server, &authority, Proof::Token(&door.token)))
}

async fn kubectl(config: &Path, namespace: &str, what: &str, number: usize) -> Result<Duration, String> {
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME, "namespace": namespace},
        "data": {"number": number.to_string()},
    });
    let (arguments, input) = match what {
        "get" => (
            vec!["get", "configmap", NAME, "-n", namespace, "-o", "json", "--ignore-not-found"],
            String::new(),
        ),
        _ => (vec!["apply", "-f", "-"], object.to_string()),
    };
    let begun = Instant::now();
    controlplane::kubectl_with(config, &arguments, &input).await?.ok()?;
    Ok(begun.elapsed())
}
