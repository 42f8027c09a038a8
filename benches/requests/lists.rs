//! Lists: the rate of a LIST of 20 MB through the agent, held against the same list read directly; also with 50 ms between
//! agent and hub, against a cluster that is 50 ms away.

use std::time::Duration;

use serde_json::json;

use crate::{
    callers::{Call, Caller, Door},
    distance::ROUND_TRIP,
    distant_server::DistantServer,
    objects::each,
    options::Options,
    progress::say,
    report::{Report, Row, Wanted},
    statistics::{Series, shown},
    world::{Running, World},
};
use kubesvc_testkit::namespace::random;

/// Objects of the list, and bytes of each.
const OBJECTS: usize = 800;
const OBJECT_BYTES: usize = 25_000;
/// Lists of each side in a round.
const LISTS: usize = 10;

/// A side of the comparison, and what it must reach.
struct Side {
    name: &'static str,
    door: Door,
    call: Call,
    wanted: Wanted,
}

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
    let world = running.world;
    let direct = prepare(world).await?;
    let through = direct.clone().below(&world.account_path(0));
    let side = |name, door, wanted| Side { name, door, call: through.clone(), wanted };
    let near = [
        side("here", running.gateway(1), Wanted::AtLeast(0.7)),
        side("relayed", running.gateway(0), Wanted::Nothing),
        side("aggregated door", world.aggregated()?, Wanted::Nothing),
    ];
    compare("LIST of 20 MB", options, running, (&world.direct(None)?, &direct), &near, report).await?;
    let (cluster, hub) = (world.direct(None)?, world.hub());
    let (cluster_there, hub_there) = tokio::try_join!(
        DistantServer::start(&cluster.address, ROUND_TRIP),
        DistantServer::start(&hub, ROUND_TRIP)
    )?;
    running.move_agent(hub_there.address()).await?;
    let far = [side("here", running.gateway(1), Wanted::AtLeast(0.6))];
    let door = world.direct(Some(cluster_there.address()))?;
    compare("LIST of 20 MB at 50 ms", options, running, (&door, &direct), &far, report).await?;
    running.move_agent(&world.hub()).await
}

/// Creates the objects, once. Returns the list of them.
pub(crate) async fn prepare(world: &World) -> Result<Call, String> {
    let namespace = format!("{}-large", world.objects.name());
    let call = Call::get(&format!("/api/v1/namespaces/{namespace}/configmaps"));
    if world.target.kubectl(["get", "namespace", &namespace]).await.ok().is_ok() {
        return Ok(call);
    }
    world.target.kubectl(["create", "namespace", &namespace]).await.ok()?;
    let door = world.direct(None)?;
    each(OBJECTS, async |number| {
        // Random, so that no side can compress it.
        let object = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("large-{number}")},
            "data": {"text": random(OBJECT_BYTES)},
        });
        let mut caller = Caller::connect(&door).await?;
        caller.timed(&Call::post(&call.path, &object)).await.map(drop)
    })
    .await?;
    Ok(call)
}

async fn compare(
    what: &str,
    options: &Options,
    running: &Running<'_>,
    (door, call): (&Door, &Call),
    sides: &[Side],
    report: &mut Report,
) -> Result<(), String> {
    let mut rates: Vec<Vec<f64>> = vec![Vec::new(); sides.len() + 1];
    for round in 0..options.rounds {
        let mut callers = vec![Caller::connect(door).await?];
        for side in sides {
            callers.push(Caller::connect(&side.door).await?);
        }
        let calls: Vec<&Call> = std::iter::once(call).chain(sides.iter().map(|side| &side.call)).collect();
        let mut times = vec![Vec::new(); callers.len()];
        let mut size = 0;
        // The first of each fills caches and windows of TCP.
        for list in 0..=LISTS {
            for (index, (caller, call)) in callers.iter_mut().zip(&calls).enumerate() {
                let (took, bytes) = caller.timed(call).await.map_err(|reason| running.explain(&reason))?;
                size = bytes;
                if list > 0 {
                    times[index].push(took);
                }
            }
        }
        for (rates, times) in rates.iter_mut().zip(&times) {
            rates.push(rate(size, times));
        }
        let all: Vec<String> = rates.iter().filter_map(|all| all.last()).map(|rate| shown(*rate)).collect();
        say(&format!("lists {}/{}: {what}, MB/s: {}", round + 1, options.rounds, all.join(", ")));
    }
    let mut add = |text: &str, values: Vec<f64>, wanted: Wanted| {
        let series: Series = values.into_iter().collect();
        report.add(Row::series("lists", &format!("{what}: {text}"), &series, wanted));
    };
    add("directly, MB/s", rates[0].clone(), Wanted::Nothing);
    for (side, own) in sides.iter().zip(&rates[1..]) {
        add(&format!("{}, MB/s", side.name), own.clone(), Wanted::Nothing);
        let shares = own.iter().zip(&rates[0]).map(|(own, direct)| own / direct).collect();
        add(&format!("{}, of the direct rate", side.name), shares, side.wanted);
    }
    Ok(())
}

/// MB a second, by the median time.
fn rate(bytes: usize, times: &[Duration]) -> f64 {
    let median = times.iter().map(Duration::as_secs_f64).collect::<Series>().median();
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    let megabytes = bytes as f64 / 1_000_000.0;
    megabytes / median
}
