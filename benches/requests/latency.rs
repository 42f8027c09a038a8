//! Latency of one kind of call: every way of it held against the same requests made directly and a bare echo over the same
//! hops, and for operations as many bare commits as wait for one another. Calls of all sides take turns, one at a time.

use std::time::Duration;

use crate::{
    callers::{Call, Caller, Door},
    commits::Commits,
    echo::{Echo, Hops},
    latencies::Latencies,
    options::Options,
    progress::say,
    report::{Report, Row, Wanted},
    statistics::{Series, shown},
    world::Running,
};

/// Calls before the measured ones.
const WARM_UP: usize = 30;

/// Makes the calls of this number, which is never the same twice.
type Make<T> = Box<dyn Fn(usize) -> T + Send + Sync>;

/// One kind of call.
pub(crate) struct Kind {
    pub(crate) benchmark: &'static str,
    pub(crate) what: &'static str,
    /// The requests that it takes.
    pub(crate) direct: Make<Vec<Call>>,
    pub(crate) through: Make<Call>,
    /// Whether the caller's connection has TLS.
    pub(crate) tls: bool,
    /// Commits that it waits for: that of the row before the first request, and that of its end.
    pub(crate) commits: usize,
    pub(crate) ways: Vec<Way>,
}

/// One way of a call, and what it is held against.
pub(crate) struct Way {
    pub(crate) name: &'static str,
    pub(crate) door: Door,
    pub(crate) relayed: bool,
    /// Most times the median of the other side; `None`: only shown.
    pub(crate) wanted: Option<f64>,
}

impl Way {
    /// At the replica that has the agent, and at the other one.
    pub(crate) fn both(doors: [Door; 2]) -> Vec<Self> {
        let [there, here] = doors;
        vec![
            Self { name: "here", door: here, relayed: false, wanted: Some(1.25) },
            Self { name: "relayed", door: there, relayed: true, wanted: Some(1.4) },
        ]
    }
}

/// Results of one way in one round.
#[derive(Default, Clone)]
struct Measured {
    direct: Latencies,
    base: Latencies,
    through: Latencies,
}

/// Measures kinds of calls and adds the results to the report.
///
/// # Errors
///
/// A call failed.
pub(crate) async fn measure(
    options: &Options,
    running: &Running<'_>,
    echo: &Echo,
    kinds: Vec<Kind>,
    report: &mut Report,
) -> Result<(), String> {
    for kind in kinds {
        let mut rounds: Vec<Vec<Measured>> = Vec::new();
        for round in 0..options.rounds {
            let measured = one_round(options.calls, round, running, echo, &kind).await?;
            for (way, measured) in kind.ways.iter().zip(&measured) {
                say(&format!(
                    "{} {}/{}: {}, {}: direct {} ms, with the echo {}, through {}: p50 ×{}, p99 ×{}",
                    kind.benchmark,
                    round + 1,
                    options.rounds,
                    kind.what,
                    way.name,
                    shown(measured.direct.quantile(0.5)),
                    shown(measured.base.quantile(0.5)),
                    shown(measured.through.quantile(0.5)),
                    shown(measured.ratio(0.5)),
                    shown(measured.ratio(0.99)),
                ));
            }
            rounds.push(measured);
        }
        for (index, way) in kind.ways.iter().enumerate() {
            let of_way: Vec<&Measured> = rounds.iter().map(|round| &round[index]).collect();
            tell(&kind, way, &of_way, report);
        }
    }
    Ok(())
}

async fn one_round(
    calls: usize,
    round: usize,
    running: &Running<'_>,
    echo: &Echo,
    kind: &Kind,
) -> Result<Vec<Measured>, String> {
    let ways = &kind.ways;
    let mut commits = Commits::new(running.world.database()).await?;
    let mut direct = Caller::connect(&running.world.direct(None)?).await?;
    let mut callers = Vec::new();
    for way in ways {
        callers.push(Caller::connect(&way.door).await?);
    }
    let mut measured = vec![Measured::default(); ways.len()];
    for number in 0..calls + WARM_UP {
        let unique = (round * (calls + WARM_UP) + number) * ways.len();
        for at in 0..ways.len() {
            // No way always follows the same one.
            let index = (at + number) % ways.len();
            let (way, caller) = (&ways[index], &mut callers[index]);
            let (mut took, mut up, mut down) = (Duration::ZERO, 0, 0);
            let requests = (kind.direct)(unique + index);
            for call in &requests {
                let (one, size) = direct.timed(call).await?;
                (took, up, down) = (took + one, up.max(call.size()), down.max(size + 200));
            }
            let hops = Hops { relayed: way.relayed, tls: kind.tls, times: requests.len() as u64 };
            let echoed = echo.call(hops, up, down).await? + commits.commit(kind.commits).await?;
            let through = caller.timed(&(kind.through)(unique + index)).await;
            let (through, _) = through.map_err(|reason| running.explain(&reason))?;
            if number >= WARM_UP {
                measured[index].direct.add(took);
                measured[index].base.add(took + echoed);
                measured[index].through.add(through);
            }
        }
    }
    Ok(measured)
}

impl Measured {
    fn ratio(&self, share: f64) -> f64 {
        self.through.quantile(share) / self.base.quantile(share)
    }
}

fn tell(kind: &Kind, way: &Way, rounds: &[&Measured], report: &mut Report) {
    let mut add = |what: &str, wanted: Wanted, value: &dyn Fn(&Measured) -> f64| {
        let series: Series = rounds.iter().map(|one| value(one)).collect();
        report.add(Row::series(
            kind.benchmark,
            &format!("{}, {}: {what}", kind.what, way.name),
            &series,
            wanted,
        ));
    };
    add("made directly, p50, ms", Wanted::Nothing, &|one: &Measured| one.direct.quantile(0.5));
    let base = if kind.commits == 0 {
        "directly and the echo, p50, ms"
    } else {
        "directly, the echo and its commits, p50, ms"
    };
    add(base, Wanted::Nothing, &|one: &Measured| one.base.quantile(0.5));
    add("through, p50, ms", Wanted::Nothing, &|one: &Measured| one.through.quantile(0.5));
    let most = |most: Option<f64>| most.map_or(Wanted::Nothing, Wanted::AtMost);
    add("times that, p50", most(way.wanted), &|one: &Measured| one.ratio(0.5));
    add("times that, p99", most(way.wanted.map(|_| 2.0)), &|one: &Measured| one.ratio(0.99));
}
