//! Neighbours: what the callers of some accounts cost those of others. Beside readers that stop reading, a log of 1 GB and
//! 200 watches, calls to another account, heartbeats and the agent's answers for new accounts take about as long as before,
//! and the programs hardly grow. A flood for one account leaves others their share. Watches of clients that were killed end.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use http::StatusCode;
use parking_lot::Mutex;
use tokio_util::task::AbortOnDropHandle;

use crate::{
    callers::{Call, Caller, Door},
    latencies::Latencies,
    lists,
    log_reader::LogReader,
    objects,
    options::Options,
    processes::proportional,
    progress::say,
    report::{Report, Row, Wanted},
    scripted_cluster::{SLOW, ScriptedCluster, log_path, slow_path},
    sessions::Sessions,
    statistics::{Series, shown},
    watchers::Watchers,
    world::{ACCOUNTS, Running},
};

const WATCHES: usize = 200;
const STOPPED_READERS: usize = 8;
/// New accounts while something runs.
const NEW_ACCOUNTS: usize = 50;
/// Callers of a flood: more than the 256 requests that an account may have at once.
const FLOOD: u32 = 400;
/// Service accounts of the flood, none of them that of the measured calls. Each makes the 200 requests at once that one
/// caller may make, so that it is the account's bound that refuses.
const FLOOD_CALLERS: [&str; 2] = ["flood-1", "flood-2"];
/// What a refusal asks its caller to wait.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Interval between readings of memory. A reading walks the pages of the process, which takes its time.
const MEMORY_INTERVAL: Duration = Duration::from_secs(1);
/// Account that is called; another one's callers stop reading; and the first that does not exist yet.
const CALLED: usize = 1;
const STOPPED: usize = 2;
const WATCHED: usize = 3;
const SCRIPTED: usize = ACCOUNTS;
/// The call that is measured.
const CALL: &str = "/api/v1/namespaces/default";

/// What a caller of an account, and the account's programs, see. Times are in milliseconds.
#[derive(Debug, Clone, Copy)]
struct Seen {
    /// Median and 99th percentile.
    get: [f64; 2],
    direct: f64,
    /// The longest time between two heartbeats of a session.
    heartbeat: f64,
    /// From an `AddAccounts` until its answer.
    answer: f64,
    new_account: f64,
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
    let cluster = ScriptedCluster::start(world.direct(None)?).await?;
    world.create_accounts(SCRIPTED..SCRIPTED + 1, &cluster.kubeconfig).await?;
    world.active(SCRIPTED..SCRIPTED + 1).await.map_err(|reason| running.explain(&reason))?;
    let sessions = Sessions::start(running).await?;
    beside_streams(options, running, &sessions, &cluster.door, report).await?;
    sessions.end(running).await?;
    let flooded = flood(options, running, report).await;
    drop(cluster);
    flooded
}

/// Memory of hub and agent in MB, and what they reach until it is asked.
struct Memory {
    before: [f64; 2],
    peaks: AbortOnDropHandle<()>,
    greatest: Arc<Mutex<[f64; 2]>>,
}

impl Memory {
    fn of(running: &Running<'_>) -> Result<Self, String> {
        let programs = [running.operators[1].id(), running.agent.id()];
        let before = [proportional(programs[0])?, proportional(programs[1])?];
        let greatest = Arc::new(Mutex::new(before));
        let seen = Arc::clone(&greatest);
        let peaks = tokio::spawn(async move {
            loop {
                for (index, program) in programs.iter().enumerate() {
                    if let Ok(now) = proportional(*program) {
                        let mut greatest = seen.lock();
                        greatest[index] = greatest[index].max(now);
                    }
                }
                tokio::time::sleep(MEMORY_INTERVAL).await;
            }
        });
        Ok(Self { before, peaks: AbortOnDropHandle::new(peaks), greatest })
    }

    /// Growth of each, in MiB.
    fn growth(self) -> [f64; 2] {
        drop(self.peaks);
        let greatest = *self.greatest.lock();
        [greatest[0] - self.before[0], greatest[1] - self.before[1]]
    }
}

async fn beside_streams(
    options: &Options,
    running: &Running<'_>,
    sessions: &Sessions,
    cluster: &Door,
    report: &mut Report,
) -> Result<(), String> {
    let world = running.world;
    // The first calls fill caches.
    gets(options.calls / 5, running, &mut Latencies::default()).await?;
    let first = SCRIPTED + 1;
    let idle = seen(options.calls, running, sessions, first).await?;
    let memory = Memory::of(running)?;
    let list = lists::prepare(world).await?.below(&world.account_path(STOPPED));
    let mut stopped = Vec::new();
    for _ in 0..STOPPED_READERS {
        let mut caller = Caller::connect(&running.gateway(1)).await?;
        let answer = caller.begin(&list).await.map_err(|reason| running.explain(&reason))?;
        stopped.push((caller, answer));
    }
    let watched = format!("/api/v1/namespaces/{}/configmaps?watch=true", world.objects.name());
    let path = format!("{}{watched}", world.account_path(WATCHED));
    // Clusters watch some by themselves.
    let others = watches(&mut Caller::connect(&running.world.direct(None)?).await?).await?;
    let watchers = Watchers::start(running.gateway(1), path, WATCHES).await?;
    until_watches(running, |count| count >= others + WATCHES, Duration::from_secs(30)).await?;
    let log = format!("{}{}", world.account_path(SCRIPTED), log_path());
    let reader = LogReader::start(running.gateway(1), log).await?;
    let beside = seen(options.calls, running, sessions, first + NEW_ACCOUNTS).await?;
    let rate = reader.rate()?;
    drop(reader);
    let growth = memory.growth();
    // The same log, past kubesvc: what the machine has left for others then.
    let reader = LogReader::start(cluster.clone(), log_path().to_owned()).await?;
    let beside_direct = seen(options.calls, running, sessions, first + 2 * NEW_ACCOUNTS).await?;
    let direct_rate = reader.rate()?;
    drop(reader);
    drop(stopped);
    watchers.process.kill();
    let killed = Instant::now();
    let left = until_watches(running, |count| count <= others, Duration::from_secs(1)).await;
    let ended = killed.elapsed();

    let mut add = |what: &str, value: f64, wanted: Wanted| {
        report.add(Row::series("neighbours", what, &Series::from_iter([value]), wanted));
    };
    let beside_what = "beside 8 stopped readers, a log of 1 GB and 200 watches";
    add("GET of another account, idle, p99, ms", idle.get[1], Wanted::Nothing);
    add(&format!("the same {beside_what}, p99, ms"), beside.get[1], Wanted::Nothing);
    add("times idle", beside.get[1] / idle.get[1], Wanted::AtMost(2.0));
    add("the same made directly, times idle", beside.direct / idle.direct, Wanted::Nothing);
    add("longest time between two heartbeats of a session, idle, ms", idle.heartbeat, Wanted::Nothing);
    add(&format!("the same {beside_what}, ms"), beside.heartbeat, Wanted::Nothing);
    add("heartbeats, times idle", beside.heartbeat / idle.heartbeat, Wanted::AtMost(1.2));
    add("AddAccounts until the agent's answer, idle, p50, ms", idle.answer, Wanted::Nothing);
    add(&format!("the same {beside_what}, p50, ms"), beside.answer, Wanted::Nothing);
    add("AddAccounts, p50, times idle", beside.answer / idle.answer, Wanted::Nothing);
    add(
        "the same while the log is read directly, times idle",
        beside_direct.answer / idle.answer,
        Wanted::Nothing,
    );
    add("the first of these, times the second", beside.answer / beside_direct.answer, Wanted::AtMost(1.2));
    let times = beside.new_account / idle.new_account;
    add("a new account until it is ACTIVE, idle, p50, ms", idle.new_account, Wanted::Nothing);
    add("a new account until it is ACTIVE, times idle, p50", times, Wanted::Nothing);
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    let allowed = 64.0 + WATCHES as f64 * 32.0 / 1024.0;
    add("the log, MB/s", rate, Wanted::Nothing);
    add("the log read directly, MB/s", direct_rate, Wanted::Nothing);
    add("growth of the operator's memory, MiB", growth[0], Wanted::AtMost(allowed));
    add("growth of the agent's memory, MiB", growth[1], Wanted::AtMost(allowed));
    let (left, wait) = (left.err().unwrap_or_default(), shown(ended.as_secs_f64() * 1000.0));
    say(&format!("neighbours: watches of killed clients: ended after {wait} ms {left}"));
    add(
        "200 clients killed: ms until none of their watches is left at the API server",
        ended.as_secs_f64() * 1000.0,
        Wanted::AtMost(1000.0),
    );
    Ok(())
}

/// Measures what others see, with new accounts from this number on.
async fn seen(
    calls: usize,
    running: &Running<'_>,
    sessions: &Sessions,
    first_account: usize,
) -> Result<Seen, String> {
    let (world, begun) = (running.world, Instant::now());
    let get = Call::get(CALL);
    let mut direct = Caller::connect(&world.direct(None)?).await?;
    let mut through = Caller::connect(&running.gateway(1)).await?;
    let through_get = get.clone().below(&world.account_path(CALLED));
    let (mut direct_times, mut times) = (Latencies::default(), Latencies::default());
    for _ in 0..calls {
        direct_times.add(direct.timed(&get).await?.0);
        times.add(through.timed(&through_get).await.map_err(|reason| running.explain(&reason))?.0);
    }
    let [answer, new_account] = new_accounts(running, sessions, first_account).await?;
    let heartbeat = sessions.longest_gap(begun).await.map_err(|reason| running.explain(&reason))?;
    let heartbeat = heartbeat.as_secs_f64() * 1000.0;
    let get = [times.quantile(0.5), times.quantile(0.99)];
    let seen = Seen { get, direct: direct_times.quantile(0.99), heartbeat, answer, new_account };
    say(&format!("neighbours: {seen:?}"));
    Ok(seen)
}

/// Median times of new accounts, in milliseconds: from the frame that sends one to the agent until its answer, and from its
/// creation until it is ACTIVE.
async fn new_accounts(running: &Running<'_>, sessions: &Sessions, first: usize) -> Result<[f64; 2], String> {
    let kubeconfig = running.world.target.admin_kubeconfig();
    let (mut answers, mut times) = (Latencies::default(), Latencies::default());
    for number in first..first + NEW_ACCOUNTS {
        let begun = Instant::now();
        running.world.create_accounts(number..number + 1, &kubeconfig).await?;
        running.world.one_active(number).await.map_err(|reason| running.explain(&reason))?;
        times.add(begun.elapsed());
        answers.add(sessions.answered(&objects::name(number))?);
    }
    Ok([answers.quantile(0.5), times.quantile(0.5)])
}

/// Waits for a number of watches of `ConfigMaps` at the accounts' API server.
async fn until_watches(
    running: &Running<'_>,
    is_wanted: impl Fn(usize) -> bool,
    max_wait: Duration,
) -> Result<(), String> {
    let mut caller = Caller::connect(&running.world.direct(None)?).await?;
    let begun = Instant::now();
    loop {
        let count = watches(&mut caller).await?;
        if is_wanted(count) {
            return Ok(());
        }
        if begun.elapsed() > max_wait {
            return Err(format!("({count} were left then)"));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Number of watches of ConfigMaps at the accounts' API server.
async fn watches(caller: &mut Caller) -> Result<usize, String> {
    let (_, text) = caller.call(&Call::get("/metrics")).await?;
    let text = String::from_utf8_lossy(&text);
    let of_watches = text.lines().filter(|line| {
        line.starts_with("apiserver_longrunning_requests{")
            && line.contains("resource=\"configmaps\"")
            && line.contains("scope=\"namespace\"")
            && line.contains("verb=\"WATCH\"")
    });
    Ok(of_watches.filter_map(|line| line.rsplit(' ').next()?.parse::<usize>().ok()).sum())
}

/// A flood of calls to a slow cluster, and one of fast calls.
async fn flood(options: &Options, running: &Running<'_>, report: &mut Report) -> Result<(), String> {
    let world = running.world;
    // The first calls to an agent that has moved fill caches.
    gets(options.calls / 5, running, &mut Latencies::default()).await?;
    let mut doors = Vec::new();
    for name in FLOOD_CALLERS {
        let door = Door { token: world.token(name).await?, ..running.gateway(1) };
        running.answers(&door, SCRIPTED).await?;
        doors.push(door);
    }
    let slow = Call::get(slow_path()).below(&world.account_path(SCRIPTED));
    let (fast, door) = (Call::get(CALL), [running.gateway(1)]);
    let through = fast.clone().below(&world.account_path(STOPPED));
    let [mut idle, mut beside_slow, mut beside_fast, mut beside_direct] =
        std::array::from_fn(|_| Latencies::default());
    let (mut refused, mut seconds) = (0, 0.0);
    for _ in 0..options.rounds {
        gets(options.calls, running, &mut idle).await?;
        let flooding = Flood::start(&doors, &slow, FLOOD);
        // By then all callers have begun, and one refused has called again.
        tokio::time::sleep(RETRY_AFTER + SLOW).await;
        let (begun, before) = (Instant::now(), flooding.refused());
        gets(options.calls, running, &mut beside_slow).await?;
        refused += flooding.refused() - before;
        seconds += begun.elapsed().as_secs_f64();
        drop(flooding);
        let flooding = Flood::start(&door, &through, 16);
        gets(options.calls, running, &mut beside_fast).await?;
        drop(flooding);
        let flooding = Flood::start(&[world.direct(None)?], &fast, 16);
        gets(options.calls, running, &mut beside_direct).await?;
        drop(flooding);
    }
    let p99 = |times: &Latencies| times.quantile(0.99);
    let [idle, beside_slow, beside_fast, beside_direct] =
        [p99(&idle), p99(&beside_slow), p99(&beside_fast), p99(&beside_direct)];
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    let refused = refused as f64 / seconds;
    let mut add = |what: &str, value: f64, wanted: Wanted| {
        report.add(Row::series("neighbours", what, &Series::from_iter([value]), wanted));
    };
    add("GET beside 400 callers of a slow account, p99, times idle", beside_slow / idle, Wanted::AtMost(2.0));
    add("calls of theirs that are refused with 429, a second", refused, Wanted::AtLeast(1.0));
    add(
        "GET beside 16 callers of an account without a pause, p99, times idle",
        beside_fast / idle,
        Wanted::Nothing,
    );
    add(
        "GET beside 16 direct callers of the cluster without a pause, p99, times idle",
        beside_direct / idle,
        Wanted::Nothing,
    );
    add("the first of these, times the second", beside_fast / beside_direct, Wanted::AtMost(2.0));
    Ok(())
}

/// Times so many GETs.
async fn gets(calls: usize, running: &Running<'_>, times: &mut Latencies) -> Result<(), String> {
    let call = Call::get(CALL).below(&running.world.account_path(CALLED));
    let mut caller = Caller::connect(&running.gateway(1)).await?;
    for _ in 0..calls {
        times.add(caller.timed(&call).await.map_err(|reason| running.explain(&reason))?.0);
    }
    Ok(())
}

/// Calls without a pause, until it is dropped.
struct Flood {
    refused: Arc<AtomicUsize>,
    _callers: Vec<AbortOnDropHandle<()>>,
}

impl Flood {
    /// Starts so many callers, at these doors in turn. They begin one after the other within a second. One that is
    /// refused is counted, and calls again after as long as the refusal says, a second, as client-go does.
    fn start(doors: &[Door], call: &Call, callers: u32) -> Self {
        let refused = Arc::new(AtomicUsize::new(0));
        let one = |(number, door): (u32, &Door)| {
            let (door, call, refused) = (door.clone(), call.clone(), Arc::clone(&refused));
            AbortOnDropHandle::new(tokio::spawn(async move {
                tokio::time::sleep(RETRY_AFTER * number / callers).await;
                while let Ok(mut caller) = Caller::connect(&door).await {
                    while let Ok((status, _)) = caller.call(&call).await {
                        if status == StatusCode::TOO_MANY_REQUESTS {
                            refused.fetch_add(1, Ordering::SeqCst);
                        }
                        if !status.is_success() {
                            tokio::time::sleep(RETRY_AFTER).await;
                        }
                    }
                }
            }))
        };
        let started = (0..callers).zip(doors.iter().cycle()).map(one).collect();
        Self { refused, _callers: started }
    }

    /// Calls refused so far, with status 429.
    fn refused(&self) -> usize {
        self.refused.load(Ordering::SeqCst)
    }
}
