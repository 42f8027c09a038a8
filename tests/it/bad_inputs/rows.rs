//! Edits of the row of a healthy account with SQL. Rows are a projection: each edit is undone, no decision
//! depends on it, and rows of others are left alone.

use kubesvc_core::State;
use serde_json::json;

use crate::world::row::Row;
use crate::world::{MAX_WAIT, World};
use kubesvc_testkit::wait::eventually;

/// Name of the case, and a statement. SQLite accepts all of them.
const EDITS: &[(&str, &str)] = &[
    (
        "a row of a status that there is not",
        "UPDATE kubesvc_accounts SET status = 'SLEEPING' WHERE name = 'NAME'",
    ),
    ("a row of an empty status", "UPDATE kubesvc_accounts SET status = '' WHERE name = 'NAME'"),
    ("a row of another zone", "UPDATE kubesvc_accounts SET zone_id = 'west' WHERE name = 'NAME'"),
    (
        "a row of a definition that is not JSON",
        "UPDATE kubesvc_accounts SET definition = '{not json' WHERE name = 'NAME'",
    ),
    (
        "a row of props that are not JSON",
        "UPDATE kubesvc_accounts SET props = '\u{1b}[2J' WHERE name = 'NAME'",
    ),
    (
        "a row of another uid",
        "UPDATE kubesvc_accounts SET uid = '00000000-0000-4000-8000-000000000000' WHERE name = 'NAME'",
    ),
    ("a row of a count below nothing", "UPDATE kubesvc_accounts SET failed_count = -5 WHERE name = 'NAME'"),
    (
        "a row of a generation past all",
        "UPDATE kubesvc_accounts SET generation = 9223372036854775807 WHERE name = 'NAME'",
    ),
    (
        "a row of a count past 32 bits",
        "UPDATE kubesvc_accounts SET failed_count = 9223372036854775807 WHERE name = 'NAME'",
    ),
    ("a row under another name", "UPDATE kubesvc_accounts SET name = 'other' WHERE name = 'NAME'"),
    ("a row that is gone", "DELETE FROM kubesvc_accounts WHERE name = 'NAME'"),
];

const BY_CASE: &str = "a row of somebody else that differs in case alone";
const ASSIGNMENT: &str = "an assignment of nobody";

pub(super) fn names() -> Vec<&'static str> {
    EDITS.iter().map(|(name, _)| *name).chain([BY_CASE, ASSIGNMENT]).collect()
}

/// Each edit has an account of its own.
fn account(index: usize) -> String {
    format!("edited-{index}")
}

pub(super) async fn try_all(world: &World) {
    let writes = world.writes_to("good").len();
    let by_secret = json!({"secretRef": {"name": "good"}});
    for index in 0..EDITS.len() {
        world.account(&account(index)).zone("east").spec("kubeconfig", by_secret.clone()).create().await;
    }
    let mut before = Vec::new();
    for index in 0..EDITS.len() {
        world.until(&account(index), State::Active).await;
        let whole = eventually("a row with its namespaces and its connection", MAX_WAIT, async || {
            let row = world.until_row(&account(index), "ACTIVE").await;
            if row.namespaces.is_some() && row.connections == 1 { Ok(row) } else { Err(format!("{row:?}")) }
        });
        before.push(whole.await);
    }
    // Rows are read at startup, and once a minute.
    world.operator().kill();
    for (index, (_, statement)) in EDITS.iter().enumerate() {
        world.execute(&statement.replace("NAME", &account(index))).await;
    }
    world.execute("INSERT INTO kubesvc_accounts (name, status) VALUES ('GOOD', 'ACTIVE')").await;
    world
        .execute(
            "INSERT INTO kubesvc_assignments (account_name, agent_id, cd_id, connections, caching, reachable, \
             last_updated) SELECT 'nobody', 'nobody', cd_id, -1, 7, 9, 0 FROM kubesvc_assignments LIMIT 1",
        )
        .await;
    world.operator().start().await;
    for (before, (case, _)) in before.iter().zip(EDITS) {
        eventually(&format!("the row as it was, after {case}"), MAX_WAIT, async || {
            let rows = world.try_rows().await?;
            let rows: Vec<_> =
                rows.iter().filter(|row| row.uid == before.uid || row.name == before.name).collect();
            match rows.as_slice() {
                [row] if told(row) == told(before) => Ok(()),
                _ => Err(format!("{rows:?} and not {before:?}")),
            }
        })
        .await;
        assert_eq!(world.state(&before.name).await, Some(State::Active), "{case}");
    }
    eventually(
        &format!("only assignments of accounts that are held, after {ASSIGNMENT}"),
        MAX_WAIT,
        async || {
            let told = world.try_assignments().await?;
            if !told.is_empty() && told.iter().all(|(account, _)| account != "nobody") {
                Ok(())
            } else {
                Err(format!("{told:?}"))
            }
        },
    )
    .await;
    world.until_row("good", "ACTIVE").await;
    let other = world.row("GOOD").await.expect("it is not ours");
    assert_eq!((other.uid, other.status.as_str()), (None, "ACTIVE"), "{BY_CASE}");
    assert_eq!(world.writes_to("good").len(), writes, "nothing is decided from rows");
    assert!(!world.operator().log_text().contains("panicked"));
}

/// A row without its namespaces, which come from an agent.
fn told(row: &Row) -> String {
    format!("{:?}", Row { namespaces: None, ..row.clone() })
}
