//! Operations: 1,000 scales over 100 accounts at once, held against the same requests made directly, with as many
//! connections.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use serde_json::{Value, json};

use crate::{
    callers::{Call, Caller, Door},
    objects,
    options::Options,
    processes::Cpu,
    progress::say,
    report::{Report, Row, Wanted},
    statistics::{Series, shown},
    world::{ACCOUNTS, Running, deployment},
};

const OPERATIONS: usize = 1_000;
/// Connections of either side. One caller may run 200 operations.
const CONNECTIONS: usize = 160;

/// Runs the benchmark and adds its results to the report.
///
/// # Errors
///
/// The benchmark could not run.
pub(crate) async fn run(options: &Options, running: &Running<'_>, report: &mut Report) -> Result<(), String> {
    running.all_answer().await?;
    let namespace = running.world.objects.name().to_owned();
    let items: Vec<Value> =
        (0..ACCOUNTS).map(|number| deployment(&namespace, &objects::name(number))).collect();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    running.world.target.kubectl_with_input(["apply", "-f", "-"], &list.to_string()).await.ok()?;
    let (direct, rest) = (running.world.direct(None)?, running.rest(1));
    let mut sides: [Vec<(f64, Cpu)>; 2] = [Vec::new(), Vec::new()];
    for round in 0..options.rounds {
        let base = round * OPERATIONS * 2;
        let of_direct = all(running, &direct, |number| direct_call(&namespace, base + number)).await?;
        let of_rest = all(running, &rest, |number| operation(&namespace, base + OPERATIONS + number)).await;
        let of_rest = of_rest.map_err(|reason| running.explain(&reason))?;
        say(&format!(
            "operations {}/{}: direct {} s, through {} s",
            round + 1,
            options.rounds,
            shown(of_direct.0),
            shown(of_rest.0)
        ));
        sides[0].push(of_direct);
        sides[1].push(of_rest);
    }
    #[expect(clippy::cast_precision_loss, reason = "a small number")]
    let rate = |side: &[(f64, Cpu)]| side.iter().map(|(s, _)| OPERATIONS as f64 / s).collect::<Vec<_>>();
    let [direct, through] = [&sides[0], &sides[1]].map(|side| rate(side));
    let shares: Series = through.iter().zip(&direct).map(|(own, direct)| own / direct).collect();
    let mut add = |text: &str, series: &Series| {
        let what = format!("{OPERATIONS} scales over {ACCOUNTS} accounts: {text}");
        report.add(Row::series("operations", &what, series, Wanted::Nothing));
    };
    add("directly, a second", &direct.into_iter().collect());
    add("operations a second", &through.into_iter().collect());
    add("of the direct rate", &shares);
    for (what, side) in ["1,000 scales made directly", "1,000 scales by operations"].iter().zip(&sides) {
        report.cpu(what, side.iter().map(|(seconds, cpu)| (*seconds, cpu)));
    }
    Ok(())
}

fn direct_call(namespace: &str, number: usize) -> Call {
    let name = objects::name(number % ACCOUNTS);
    let path = format!("/apis/apps/v1/namespaces/{namespace}/deployments/{name}/scale");
    Call::patch(&path, &json!({"spec": {"replicas": 1 + number}}))
}

fn operation(namespace: &str, number: usize) -> Call {
    let name = objects::name(number % ACCOUNTS);
    let target =
        json!({"group": "apps", "version": "v1", "kind": "Deployment", "namespace": namespace, "name": name});
    let operation = json!({"account": {"name": name}, "scale": {"target": target, "replicas": 1 + number}});
    Call::post("/armory/agent/operations?wait=60s", &json!({"operation": operation}))
}

/// Makes all calls. Returns the seconds until the last answer, and the CPU seconds of each program.
async fn all(running: &Running<'_>, door: &Door, call: impl Fn(usize) -> Call) -> Result<(f64, Cpu), String> {
    let calls: Arc<Vec<Call>> = Arc::new((0..OPERATIONS).map(call).collect());
    let next = Arc::new(AtomicUsize::new(0));
    let connecting = (0..CONNECTIONS).map(|_| Caller::connect(door));
    let callers = futures::future::try_join_all(connecting).await?;
    let (programs, begun) = (running.programs(), Instant::now());
    let before = programs.cpu()?;
    let workers = callers.into_iter().map(|mut caller| {
        let (calls, next) = (Arc::clone(&calls), Arc::clone(&next));
        tokio::spawn(async move {
            while let Some(call) = calls.get(next.fetch_add(1, Ordering::Relaxed)) {
                caller.timed(call).await?;
            }
            Ok::<_, String>(())
        })
    });
    for worker in futures::future::join_all(workers).await {
        worker.map_err(|e| e.to_string())??;
    }
    Ok((begun.elapsed().as_secs_f64(), programs.cpu()?.since(&before)))
}
