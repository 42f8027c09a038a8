//! P1: activations per second, compared with raw status writes per second on the same API server.

use std::time::Duration;

use futures::future::try_join_all;

use crate::{
    follow::{Follow, max_wait},
    objects::{self, Form},
    operator::{Database, Site, introductions},
    options::Options,
    processes::{Cpu, Programs, peak_resident},
    progress::say,
    raw::{self, Raw},
    report::{Report, Row, Wanted},
    requests::{AccountWrites, Requests},
    statistics::{Series, shown},
};
use kubesvc_testkit::{controlplane::ControlPlane, databases::Kind};

/// Longer than any step here, so that no account is considered orphaned.
const GRACE: Duration = Duration::from_secs(30);

/// Variants measured in each round besides the raw writes. The database servers are compared with the first one and
/// come right after it, so that other activity on the machine affects them alike.
const VARIANTS: [Variant; 5] = [
    Variant { name: "applied", form: Form::Applied, agents: 1, database: Database::Sqlite },
    Variant {
        name: "applied, MariaDB",
        form: Form::Applied,
        agents: 1,
        database: Database::Server(Kind::MariaDb),
    },
    Variant {
        name: "applied, PostgreSQL",
        form: Form::Applied,
        agents: 1,
        database: Database::Server(Kind::PostgreSql),
    },
    Variant { name: "rest-made", form: Form::RestMade, agents: 1, database: Database::Sqlite },
    Variant { name: "applied, 4 agents", form: Form::Applied, agents: 4, database: Database::Sqlite },
];

#[derive(Debug, Clone, Copy)]
struct Variant {
    name: &'static str,
    form: Form,
    agents: usize,
    database: Database,
}

#[derive(Debug)]
struct Activation {
    per_second: f64,
    seconds: f64,
    cpu: Cpu,
    writes: AccountWrites,
    other_writes: u64,
    peak: f64,
}

/// Runs the benchmark and adds its results to the report.
///
/// # Errors
///
/// The benchmark could not run.
pub(crate) async fn run(options: &Options, kubeconfig: &str, report: &mut Report) -> Result<(), String> {
    let plane = crate::control_plane().await?;
    let mut raws = vec![raw_round(&plane, options, kubeconfig).await?];
    let mut activations: [Vec<Activation>; 5] = Default::default();
    for round in 1..=options.rounds {
        for (variant, results) in VARIANTS.iter().zip(&mut activations) {
            let activation = activate(&plane, options, *variant, kubeconfig).await?;
            say(&format!(
                "P1 {round}/{}: {}: {} accounts/s, {} writes, {} conflicts",
                options.rounds,
                variant.name,
                shown(activation.per_second),
                activation.writes.done,
                activation.writes.conflicts
            ));
            results.push(activation);
        }
        raws.push(raw_round(&plane, options, kubeconfig).await?);
    }
    tell(options, &raws, &activations, report);
    Ok(())
}

async fn raw_round(plane: &ControlPlane, options: &Options, kubeconfig: &str) -> Result<Raw, String> {
    let namespace = plane.namespace().await;
    objects::create(&plane.client().await, namespace.name(), options.accounts, Form::Applied, kubeconfig)
        .await?;
    let _follow = Follow::start(plane.client().await, namespace.name()).await?;
    let programs = Programs::new(&crate::servers(plane)?);
    // With a new client, connections are opened while the clock runs, as in the operator.
    let raw =
        raw::status_writes(&plane.client().await, namespace.name(), options.accounts, &programs).await?;
    say(&format!("P1: raw: {} status writes/s", shown(raw.per_second)));
    Ok(raw)
}

async fn activate(
    plane: &ControlPlane,
    options: &Options,
    variant: Variant,
    kubeconfig: &str,
) -> Result<Activation, String> {
    let client = plane.client().await;
    let namespace = plane.namespace().await;
    objects::create(&client, namespace.name(), options.accounts, variant.form, kubeconfig).await?;
    let mut follow = Follow::start(client.clone(), namespace.name()).await?;
    let before = Requests::now(&client).await?;
    let site = Site::on(variant.database, plane, namespace.name(), GRACE).await?;
    let operator = site.start()?;
    let mut programs = vec![("operator", operator.id())];
    programs.extend(crate::servers(plane)?);
    programs.extend(site.database_server());
    let programs = Programs::new(&programs);

    let introductions = introductions(variant.agents);
    let agents = try_join_all(introductions.iter().map(|introduction| operator.connect(introduction)));
    let max_wait = max_wait(options.accounts);
    let clock = async {
        let first = follow.first(max_wait).await?;
        let cpu = programs.cpu()?;
        let last = follow.active(options.accounts, max_wait).await?;
        Ok((last - first, programs.cpu()?.since(&cpu)))
    };
    let (agents, clock) = tokio::join!(agents, clock);
    let (agents, (time, cpu)) = (agents?, clock.map_err(|reason: String| operator.explain(&reason))?);

    let requests = Requests::since(&before, &client).await?;
    let writes = requests.account_writes();
    let peak = peak_resident(operator.id())?;
    operator.stop().await?;
    drop(agents);
    let expected = variant.form.writes() * options.accounts as u64;
    if writes != (AccountWrites { done: expected, conflicts: 0, refused: 0 }) {
        say(&format!("P1: {}: {expected} writes of accounts expected: {}", variant.name, requests.shown()));
    }
    let seconds = time.as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    let per_second = options.accounts as f64 / seconds;
    Ok(Activation { per_second, seconds, cpu, writes, other_writes: requests.other_writes(), peak })
}

fn tell(options: &Options, raws: &[Raw], activations: &[Vec<Activation>; 5], report: &mut Report) {
    let raw: Series = raws.iter().map(|raw| raw.per_second).collect();
    report.add(Row::series("P1", "raw status writes a second (R)", &raw, Wanted::Nothing));
    report.cpu("raw status writes", raws.iter().map(|raw| (raw.seconds, &raw.cpu)));
    for (variant, results) in VARIANTS.iter().zip(activations) {
        let Variant { name, form, database, .. } = *variant;
        let rate: Series = results.iter().map(|one| one.per_second).collect();
        report.add(Row::series("P1", &format!("{name}: accounts ACTIVE a second"), &rate, Wanted::Nothing));
        #[expect(clippy::cast_precision_loss, reason = "2 or 3")]
        let ceiling = raw.median() / form.writes() as f64;
        let ratio = Series::from_iter([rate.median() / ceiling]);
        let what = format!("{name}: of the ceiling R/{}", form.writes());
        report.add(Row::series("P1", &what, &ratio, Wanted::AtLeast(0.6)));
        if database != Database::Sqlite {
            let pairs = results.iter().zip(&activations[0]);
            let ratio: Series = pairs.map(|(one, sqlite)| one.per_second / sqlite.per_second).collect();
            report.add(Row::series("P1", &format!("{name}: of SQLite's"), &ratio, Wanted::AtLeast(0.9)));
        }
        let expected = form.writes() * options.accounts as u64;
        report.add(Row::exact(
            "P1",
            &format!("{name}: writes of accounts"),
            results.iter().map(|one| one.writes.done),
            expected,
        ));
        let wasted = results.iter().map(|one| one.writes.conflicts + one.writes.refused);
        report.add(Row::exact("P1", &format!("{name}: of them refused or in conflict"), wasted, 0));
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        let others: Series = results.iter().map(|one| one.other_writes as f64).collect();
        report.add(Row::series(
            "P1",
            &format!("{name}: writes of Events and KubesvcAgents"),
            &others,
            Wanted::Nothing,
        ));
        let peak: Series = results.iter().map(|one| one.peak).collect();
        report.add(Row::series(
            "P1",
            &format!("{name}: peak memory of the operator, MB"),
            &peak,
            Wanted::AtMost(150.0),
        ));
        report.cpu(&format!("{name}, P1"), results.iter().map(|one| (one.seconds, &one.cpu)));
    }
}
