//! What runs when a zone loses an account: reads and streams are cut within a second, a write is awaited for five.

use std::time::{Duration, Instant};

use kubesvc_core::GrantPhase;

use super::Zones;
use crate::operations_faults::creates_map as creates;
use crate::operations_faults::gate::Hold;
use crate::operations_faults::scene::ACCOUNT;
use crate::world::MAX_WAIT;
use kubesvc_testkit::must;
use kubesvc_testkit::wait::eventually;

/// Time for a machine that has other things to do.
const SLACK: Duration = Duration::from_millis(1_500);
/// Time in which reads and streams end.
const READS: Duration = Duration::from_secs(1);
/// Time in which writes end.
const WRITES: Duration = Duration::from_secs(5);

async fn until_held(zones: &Zones, names: &[&str]) {
    eventually("requests at the gate", MAX_WAIT, async || {
        let held = zones.gate.held();
        if names.iter().all(|name| held.contains(*name)) { Ok(()) } else { Err(format!("{held:?}")) }
    })
    .await;
}

/// Asks for another zone, and returns when the grant is being revoked.
async fn take(zones: &Zones, zone: &str) -> Instant {
    zones.ask_for(zone).await;
    let is_taken = |account: &kubesvc_core::KubesvcAccount| {
        let status = account.status_or_default();
        status.phase() != GrantPhase::Open || super::is_active_in(account, zone)
    };
    zones.world.until_account(ACCOUNT, "loses its zone", is_taken).await;
    Instant::now()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_runs_in_a_zone_that_loses_the_account_is_answered_or_cut_in_time() {
    let zones = Zones::start().await;
    let (world, alice) = (&zones.world, &zones.alice);
    let namespace = world.namespace();

    // A read without an answer, and a watch.
    let mut watch = must(zones.door.get(&zones.path("configmaps?watch=true")).await);
    assert_eq!(watch.status, 200);
    zones.gate.set(Hold::Reads);
    let path = zones.path("configmaps/cell-read");
    let read = async {
        let answer = zones.door.get(&path).await;
        (Instant::now(), answer.map(|reading| reading.status.as_u16()))
    };
    let watched = async {
        let ended = watch.end().await;
        (Instant::now(), ended)
    };
    let taking = async {
        until_held(&zones, &["cell-read"]).await;
        take(&zones, "west").await
    };
    let all = async { tokio::join!(read, watched, taking) };
    let (read, watched, taken) = tokio::time::timeout(MAX_WAIT, all).await.expect("all end");
    zones.gate.set(Hold::Nothing);
    assert!(matches!(read.1, Ok(503 | 504) | Err(_)), "{read:?}");
    assert!(watched.1.is_err(), "a watch that is cut does not end as if it were whole");
    for (what, at) in [("the read", read.0), ("the watch", watched.0)] {
        let took = at.saturating_duration_since(taken);
        assert!(took <= READS + SLACK, "{what} ended {took:?} after the zone lost the account");
    }
    zones.until_active_in("west").await;

    // Writes whose answer does not come: unknown, and done at most once.
    zones.gate.set(Hold::Answers);
    let unanswered = async {
        let answer = alice.run(world.operator(), "?wait=20s", &creates(namespace, "cell-unanswered")).await;
        (Instant::now(), answer)
    };
    let taking = async {
        until_held(&zones, &["cell-unanswered"]).await;
        take(&zones, "east").await
    };
    let ((at, answer), taken) = tokio::join!(unanswered, taking);
    zones.gate.set(Hold::Nothing);
    assert_eq!((answer.status, &answer.json["status"]), (200, &504.into()), "{answer}");
    assert_eq!(answer.json["failure"]["class"], "OUTCOME_UNKNOWN", "{answer}");
    let took = at.saturating_duration_since(taken);
    assert!(took <= WRITES + SLACK, "the write ended {took:?} after the zone lost the account");
    assert_eq!(zones.received("cell-unanswered"), 1);
    zones.until_active_in("east").await;

    // A write whose answer comes in time has it.
    zones.gate.set(Hold::Answers);
    let create = creates(namespace, "cell-answered");
    let answered = alice.run(world.operator(), "?wait=20s", &create);
    let taking = async {
        until_held(&zones, &["cell-answered"]).await;
        take(&zones, "west").await;
        zones.gate.set(Hold::Nothing);
    };
    let (answer, ()) = tokio::join!(answered, taking);
    assert_eq!((answer.status, &answer.json["status"]), (200, &201.into()), "{answer}");
    assert_eq!(zones.received("cell-answered"), 1);
    zones.until_active_in("west").await;

    // What was not sent is not sent into the former zone: it is done in the next, once.
    zones.gate.set(Hold::Handshakes);
    zones.gate.cut_idle();
    let create = creates(namespace, "cell-waiting");
    let waiting = alice.run(world.operator(), "?wait=20s", &create);
    let taking = async {
        eventually("a request without a connection", MAX_WAIT, async || {
            let listed = zones.west.try_get("/operations").await?;
            if listed.json["total"].as_u64() > Some(0) { Ok(()) } else { Err(listed.to_string()) }
        })
        .await;
        take(&zones, "east").await;
    };
    let (answer, ()) = tokio::join!(waiting, taking);
    zones.gate.set(Hold::Nothing);
    let status = answer.json["status"].as_u64();
    assert!(matches!(status, Some(201 | 409 | 503 | 504)), "{answer}");
    assert_eq!(zones.received("cell-waiting"), usize::from(status == Some(201)), "{answer}");
    zones.until_active_in("east").await;
    assert!(zones.east.exited().is_none() && zones.west.exited().is_none());
}
