//! What holds from the first moment of the programs, and what a start waits for.

use std::time::Duration;

use kubesvc_core::State;

use crate::world::{MAX_WAIT, Operator, World, connect};
use kubesvc_testkit::databases::{self, Kind};
use kubesvc_testkit::{must, wait::eventually};

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn neither_program_may_write_a_core_dump() {
    let world = World::start().await;
    let agent = world.agent("agent-1").start().await;
    for (program, pid) in [("kubesvc-operator", world.operator().id()), ("kubesvc-agent", agent.process_id())]
    {
        let file = format!("/proc/{pid}/limits");
        let limits = must(std::fs::read_to_string(&file).map_err(|error| format!("{file}: {error}")));
        let line = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap_or_default();
        let bounds: Vec<_> = line.split_whitespace().filter(|word| word.parse::<u64>().is_ok()).collect();
        assert_eq!(bounds, ["0", "0"], "{program}: {line}");
    }
}

/// Waits until a starting operator reports that it waits for its database, and returns the reason.
async fn until_it_waits(operator: &Operator) -> String {
    eventually("an operator that waits for its database", MAX_WAIT, async || {
        operator.check_running()?;
        let answer = operator.get("/health/readiness").await?;
        let missing = &answer.json["missing"][0];
        let why = missing["why"].as_str().unwrap_or_default();
        let waits =
            answer.status == 503 && missing["what"] == "database" && why.contains("cannot be used now");
        if waits { Ok(why.to_owned()) } else { Err(answer.to_string()) }
    })
    .await
}

/// Starts an operator without its database, then makes the database available.
async fn is_waited_for(world: &World, part: &str, come: impl AsyncFnOnce()) {
    let operator = world.operator();
    operator.launch_with(&[]);
    let why = until_it_waits(operator).await;
    assert!(why.contains(part), "{why}");
    assert!(!why.contains("p@ss") && !why.contains("p%40ss"), "{why}");
    // Not ready for agents either, but alive.
    for (path, status) in
        [("/health/liveness", 200), ("/health/readiness?exclude=database", 503), ("/armory/accounts", 503)]
    {
        assert_eq!(must(operator.get(path).await).status, status, "{path}");
    }
    world.account("later").inactive().create().await;
    let process = operator.id();
    come().await;
    operator.ready().await;
    assert_eq!(operator.id(), process);
    world.until_row("later", &State::Inactive.to_string()).await;
}

async fn a_server_is_waited_for(kind: Kind) {
    let server = must(databases::own(kind).await);
    let url = server.fresh_database().await;
    must(server.stop().await);
    let world = World::prepare().without_operator().database_url(&url).start().await;
    is_waited_for(&world, "no connection to the database", async || must(server.start().await)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn operator_start_waits_for_mariadb() {
    a_server_is_waited_for(Kind::MariaDb).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn operator_start_waits_for_postgresql() {
    a_server_is_waited_for(Kind::PostgreSql).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn operator_start_waits_for_a_locked_sqlite_file() {
    let world = World::prepare().without_operator().start().await;
    let mut other = must(connect(world.database_url()).await.map_err(|error| error.to_string()));
    must(other.execute("CREATE TABLE theirs (id int)").await.map_err(|error| error.to_string()));
    must(other.execute("BEGIN EXCLUSIVE").await.map_err(|error| error.to_string()));
    is_waited_for(&world, "locked", async || {
        must(other.execute("ROLLBACK").await.map(drop).map_err(|error| error.to_string()));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn operator_waiting_for_its_database_exits_at_sigterm() {
    let server = must(databases::own(Kind::PostgreSql).await);
    let url = server.fresh_database().await;
    must(server.stop().await);
    let world = World::prepare().without_operator().database_url(&url).start().await;
    world.operator().launch_with(&[]);
    until_it_waits(world.operator()).await;
    assert_eq!(world.operator().terminate().await.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_login_or_database_fails_the_start_at_once() {
    for kind in [Kind::MariaDb, Kind::PostgreSql] {
        let url = databases::shared(kind).await.fresh_database().await;
        let (front, name) = url.rsplit_once('/').expect("a name");
        for (wrong, part) in [
            (url.replace("p%40ss%2Fword", "hunter2"), "check user and password"),
            (format!("{front}/{name}_elsewhere"), "CREATE DATABASE"),
        ] {
            let world = World::prepare().without_operator().database_url(&wrong).start().await;
            world.operator().launch_with(&[]);
            let ended = must(world.operator().ended(Duration::from_secs(30)).await);
            let log = world.operator().log_text();
            assert_eq!(ended.code(), Some(1), "{log}");
            assert!(log.contains(part) && !log.contains("hunter2"), "{log}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn check_ends_well_once_the_operator_is_ready_and_says_why_if_it_is_not() {
    let world = World::prepare().without_operator().start().await;
    let url = format!("http://127.0.0.1:{}/health/readiness", world.operator().rest_port());
    let check = |timeout: &str| {
        let ran = std::process::Command::new(env!("CARGO_BIN_EXE_kubesvc-operator"))
            .args(["check", &url, "--timeout", timeout])
            .output();
        let ran = must(ran.map_err(|error| error.to_string()));
        (ran.status.code(), String::from_utf8_lossy(&[ran.stdout, ran.stderr].concat()).into_owned())
    };
    let (code, said) = tokio::task::block_in_place(|| check("0"));
    assert!(code == Some(1) && said.contains("is not healthy after 0 s"), "{said}");
    world.operator().launch_with(&[]);
    let (code, said) = tokio::task::block_in_place(|| check("45"));
    assert!(code == Some(0) && said.contains("\"status\":\"UP\""), "{said}");
}
