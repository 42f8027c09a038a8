//! The wall clock of the agent, then of the operator, jumps while the program runs: an hour ahead of the true time, an hour
//! behind it, and back to it. Each time, the agent also starts anew, and goes on at versions that are of another time.

use std::convert::Infallible;
use std::time::Duration;

use jiff::Timestamp;
use kubesvc_core::State;

use super::load::{ACCOUNT, RowsMay, create_account, filled, prepare, settled, under_load};
use crate::faults::hold;
use crate::world::{Database, MAX_WAIT, World};
use kubesvc_testkit::wall_clock::WallClock;
use kubesvc_testkit::{must, wait::eventually};

/// The rows follow, within the usual time.
const FOLLOW: (RowsMay, Duration) = (RowsMay::OnlyFollow, MAX_WAIT);
/// Where a clock jumps to, in seconds after the true time.
const JUMPS: [i64; 3] = [3600, -3600, 0];
/// Seconds by which the last line of a log may differ from the clock: the time since it was written.
const MAX_DIFFERENCE: i64 = 600;
/// Time under load before and after the start of the agent, at each time of a clock.
const A_WHILE: Duration = Duration::from_secs(1);
/// Time in seconds within which a restarted agent is back.
const GRACE: u64 = 60;
/// Interval between two looks at the account.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Seconds by which the last line of a log is ahead of the true time.
fn ahead(log: &str) -> Option<i64> {
    let told = log.lines().rev().find_map(|line| line.split(' ').next()?.parse::<Timestamp>().ok())?;
    Some(told.as_second() - Timestamp::now().as_second())
}

/// Looks at the account, which must be ACTIVE in its zone, for ever.
async fn stays_active(world: &World) -> Infallible {
    loop {
        let account = world.object(ACCOUNT).await.expect("nobody deletes it");
        let status = account.status_or_default();
        assert_eq!(status.state(), State::Active, "{status:#?}");
        assert_eq!(status.granted_zone(), Some(&"east".into()), "{status:#?}");
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

async fn clocks_jump(database: Database) {
    let (agents_clock, operators_clock) = (must(WallClock::new()), must(WallClock::new()));
    let mut options =
        prepare().database(database).setting("kubesvc.dynamicAccounts.orphanGraceSeconds", GRACE);
    for (name, value) in operators_clock.environment() {
        options = options.operator_env(name, &value);
    }
    let world = options.start().await;
    let writer = filled(&world, 22, 0).await;
    let mut agent = world.agent("agent-1");
    for (name, value) in agents_clock.environment() {
        agent = agent.env(name, &value);
    }
    let agent = agent.start().await;
    create_account(&world, None).await;
    settled(&world).await;
    let (agents_log, operators_log) = (|| agent.log_text(), || world.operator().log_text());
    let clocks: [(&WallClock, &dyn Fn() -> String); 2] =
        [(&agents_clock, &agents_log), (&operators_clock, &operators_log)];
    under_load(&world, writer, FOLLOW, async {
        let jumps = async {
            for (clock, log) in clocks {
                for seconds in JUMPS {
                    must(clock.jump_to(seconds));
                    hold(A_WHILE).await;
                    agent.kill();
                    agent.launch();
                    eventually(&format!("a program that is {seconds} s ahead"), MAX_WAIT, async || {
                        let told = ahead(&log());
                        let is_there = told.is_some_and(|told| (told - seconds).abs() < MAX_DIFFERENCE);
                        if is_there { Ok(()) } else { Err(format!("it is {told:?} s ahead")) }
                    })
                    .await;
                    world.until_connected(&agent, true).await;
                    hold(A_WHILE).await;
                }
            }
        };
        tokio::select! {
            () = jumps => {}
            never = stays_active(&world) => match never {},
        }
    })
    .await;
    assert!(world.operator().is_running() && agent.exited().is_none(), "a program ended");
}

#[tokio::test(flavor = "multi_thread")]
async fn clocks_that_jump_by_an_hour_change_no_row_and_no_account() {
    clocks_jump(Database::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a minute each: make faults"]
async fn clocks_that_jump_by_an_hour_change_no_row_and_no_account_on_any_database() {
    for database in [Database::Sqlite, Database::MariaDb, Database::Postgres] {
        clocks_jump(database).await;
    }
}
