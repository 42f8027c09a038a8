//! P3: rows that the hub commits in a second, fed with recorded batches over its real port, compared with a bare loop that
//! runs the same statement on the same table; and bursts of changes of the same objects.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use crate::{
    feeder::Feeder,
    operator::{Database, Operator, Site},
    options::Options,
    processes::{Cpu, Programs, peak_resident},
    progress::say,
    recorded::{BODY_BYTES, Recorded},
    report::{Report, Row, Wanted},
    statistics::{Series, shown},
    tables::{self, BATCH, Tables},
    world::World,
};

/// Number of accounts that the feeder streams: a hash decides which writer of the hub has an account, and so many are
/// spread over them about evenly.
const ACCOUNTS: usize = 16;
/// Updates of each object in a burst.
const UPDATES: u64 = 5;
/// Objects that change together in a burst, such as the replica sets and pods of a rollout; fewer where an account does
/// not have as many.
const TOGETHER: usize = 50;

/// Share of the bare loop's rows that is wanted.
fn wanted(database: Database) -> f64 {
    match database {
        Database::Server(kubesvc_testkit::databases::Kind::PostgreSql) => 0.9,
        _ => 0.75,
    }
}

/// Rates of one round, in rows a second.
struct Round {
    insert: [f64; 2],
    update: [f64; 2],
    seconds: f64,
    cpu: Cpu,
    /// Share of the events of a burst that became rows.
    burst: f64,
    burst_events: f64,
}

/// Runs the benchmark and adds its results to the report.
///
/// # Errors
///
/// The benchmark could not run, or a row is not as it was sent.
pub(crate) async fn run(options: &Options, world: &World, report: &mut Report) -> Result<(), String> {
    for (name, database) in Database::ALL {
        let (namespace, site) = world.site(database, "{}").await?;
        world.accounts(&namespace, ACCOUNTS).await?;
        let operator = site.start()?;
        operator.ready().await?;
        let bare = world.fresh(database).await;
        tables::create(&bare).await?;
        let bare = Tables::connect(&bare).await?;
        let mut pair =
            Pair { site: &site, operator: &operator, bare, feeder: feeder(&operator, &site).await? };
        let mut rounds = Vec::new();
        for number in 1..=options.rounds {
            let round =
                pair.round(number, options.objects).await.map_err(|reason| operator.explain(&reason))?;
            say(&format!(
                "P3 {name} {number}/{}: insert {} of {} rows/s, update {} of {}, burst {}",
                options.rounds,
                shown(round.insert[1]),
                shown(round.insert[0]),
                shown(round.update[1]),
                shown(round.update[0]),
                shown(round.burst),
            ));
            rounds.push(round);
        }
        let peak = peak_resident(operator.id())?;
        drop(pair);
        operator.stop().await?;
        tell(name, database, &rounds, peak, report);
    }
    Ok(())
}

async fn feeder(operator: &Operator<'_>, site: &Site) -> Result<Feeder, String> {
    Feeder::connect(operator, &site.hub(), ACCOUNTS).await.map_err(|reason| operator.explain(&reason))
}

/// The hub and the bare loop, on one kind of database.
struct Pair<'a> {
    site: &'a Site,
    operator: &'a Operator<'a>,
    bare: Tables,
    feeder: Feeder,
}

impl Pair<'_> {
    async fn round(&mut self, number: usize, objects: usize) -> Result<Round, String> {
        let set = format!("round{number}");
        let of_version =
            |version| (0..objects).map(|number| Recorded::new(&set, number, version)).collect::<Vec<_>>();
        let (first, second) = (of_version(1), of_version(2));
        let mut programs = vec![("operator", self.operator.id())];
        programs.extend(self.site.database_server());
        let programs = Programs::new(&programs);
        // Each side is first in every other round.
        let (mut insert, mut update) = ([0.0; 2], [0.0; 2]);
        let (mut seconds, mut cpu) = (0.0, None);
        for side in if number.is_multiple_of(2) { [0, 1] } else { [1, 0] } {
            if side == 0 {
                insert[0] = self.of_bare(&first).await?;
                update[0] = self.of_bare(&second).await?;
            } else {
                let (before, begun) = (programs.cpu()?, Instant::now());
                insert[1] = self.of_hub(&first).await?;
                update[1] = self.of_hub(&second).await?;
                seconds = begun.elapsed().as_secs_f64();
                cpu = Some(programs.cpu()?.since(&before));
            }
        }
        let mut stored = Tables::connect(self.site.database()).await?;
        check("the hub's", &stored.rows(&set).await?, &second)?;
        check("the bare loop's", &self.bare.rows(&set).await?, &second)?;
        let (burst, burst_events) = self.burst(&set, objects).await?;
        let cpu = cpu.ok_or("the hub was not measured")?;
        Ok(Round { insert, update, seconds, cpu, burst, burst_events })
    }

    /// Writes the rows of the same objects in the same order as the hub.
    async fn of_bare(&mut self, objects: &[Recorded]) -> Result<f64, String> {
        let rows = self.feeder.account_objects(self.feeder.spread(objects));
        let begun = Instant::now();
        for batch in rows.chunks(BATCH) {
            self.bare.write(batch).await?;
        }
        Ok(rate(objects.len(), begun.elapsed()))
    }

    async fn of_hub(&mut self, objects: &[Recorded]) -> Result<f64, String> {
        let recorded = self.feeder.record(self.feeder.spread(objects));
        let begun = Instant::now();
        self.feeder.feed(recorded).await?;
        Ok(rate(objects.len(), begun.elapsed()))
    }

    /// Feeds [`UPDATES`] further versions of the first objects, [`TOGETHER`] of one account at a time. Returns the share
    /// of the events that became rows, and events a second.
    async fn burst(&mut self, set: &str, objects: usize) -> Result<(f64, f64), String> {
        let accounts = self.feeder.accounts();
        let together = TOGETHER.min(objects / accounts);
        let turns = (objects / 5 / (together * accounts)).max(1);
        let mut versions = Vec::new();
        for group in 0..turns * accounts {
            for version in 0..UPDATES {
                for one in 0..together {
                    // Object number `n` belongs to account `n % accounts`.
                    let (account, turn) = (group % accounts, group / accounts);
                    let number = (turn * together + one) * accounts + account;
                    versions.push((account, Recorded::new(set, number, 3 + version)));
                }
            }
        }
        let recorded = self.feeder.record(versions.iter().map(|(account, object)| (*account, object)));
        let written = || self.operator.counter("kubesvc_cache_rows_written_total");
        let (before, begun) = (written().await?, Instant::now());
        self.feeder.feed(recorded).await?;
        let took = begun.elapsed();
        let rows = self.operator.counter("kubesvc_cache_rows_written_total").await? - before;
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        let events = versions.len() as f64;
        Ok((rows / events, events / took.as_secs_f64()))
    }
}

/// Checks that the rows are these objects, each with its own body and hash.
fn check(whose: &str, stored: &[tables::Stored], objects: &[Recorded]) -> Result<(), String> {
    let expected: HashMap<&str, &Recorded> =
        objects.iter().map(|object| (object.name.as_str(), object)).collect();
    let is_right = |row: &&tables::Stored| {
        expected
            .get(row.name.as_str())
            .is_some_and(|object| hex::encode(object.hash) == row.hash && object.body == row.body)
    };
    let right = stored.iter().filter(is_right).count();
    if (right, stored.len()) == (objects.len(), objects.len()) {
        return Ok(());
    }
    Err(format!(
        "{whose} rows: {right} of {} are as they were sent, and there are {}",
        objects.len(),
        stored.len()
    ))
}

fn rate(rows: usize, took: Duration) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    let rows = rows as f64;
    rows / took.as_secs_f64()
}

fn tell(name: &str, database: Database, rounds: &[Round], peak: f64, report: &mut Report) {
    let mut add = |what: &str, of: &dyn Fn(&Round) -> f64, wanted: Wanted| {
        let series: Series = rounds.iter().map(of).collect();
        report.add(Row::series("P3", &format!("{name}: {what}"), &series, wanted));
    };
    let share = Wanted::AtLeast(wanted(database));
    add("insert: bare loop, rows a second", &|round| round.insert[0], Wanted::Nothing);
    add("insert: hub, rows a second", &|round| round.insert[1], Wanted::Nothing);
    add("insert: of the bare loop", &|round| round.insert[1] / round.insert[0], share);
    add("update: bare loop, rows a second", &|round| round.update[0], Wanted::Nothing);
    add("update: hub, rows a second", &|round| round.update[1], Wanted::Nothing);
    add("update: of the bare loop", &|round| round.update[1] / round.update[0], share);
    add("burst of five updates an object: rows for each event", &|round| round.burst, Wanted::AtMost(0.4));
    add("burst: events a second", &|round| round.burst_events, Wanted::Nothing);
    add("peak memory of the operator, MB", &|_| peak, Wanted::Nothing);
    let what = format!("hub, {name}: insert and update, bodies of {BODY_BYTES} bytes");
    report.cpu(&what, rounds.iter().map(|round| (round.seconds, &round.cpu)));
}
