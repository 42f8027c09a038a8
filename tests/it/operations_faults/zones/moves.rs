//! A grant moves to and fro, is revoked, and is made anew under the same name, while reads, watches and writes run.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::future::join_all;
use jiff::Timestamp;
use kubesvc_core::{GrantPhase, State};
use parking_lot::Mutex;
use serde_json::json;

use super::Zones;
use crate::operations_faults::creates_map as creates;
use crate::operations_faults::scene::ACCOUNT;
use crate::world::MAX_WAIT;
use kubesvc_testkit::must;
use kubesvc_testkit::wait::eventually;

/// Number of callers that write, and of those that read.
const CALLERS: usize = 4;
/// Number of writes, and of reads, that must be done between two changes.
const USES: usize = 4;
/// Clocks and looks may differ by this much.
const BLUR: jiff::SignedDuration = jiff::SignedDuration::from_millis(150);
/// Time of an operation and of its wait, and a slow machine.
const ANSWER_WITHIN: Duration = Duration::from_secs(25);

/// Pause of a caller between two requests.
const PAUSE: Duration = Duration::from_millis(20);

/// The zone that has the account at a time; `None`: no zone.
type Look = (Timestamp, Option<String>);

/// What callers saw.
#[derive(Default)]
struct Seen {
    /// Names of objects, and the statuses of the operations that made them.
    writes: Mutex<Vec<(String, u64, String)>>,
    reads: AtomicUsize,
    whole_watches: AtomicUsize,
    late: AtomicUsize,
}

impl Seen {
    /// Writes and reads that were done.
    fn done(&self) -> [usize; 2] {
        let writes = self.writes.lock().iter().filter(|(_, status, _)| *status == 201).count();
        [writes, self.reads.load(Ordering::Relaxed)]
    }

    /// Waits until some more writes and reads are done, however slow the machine is.
    async fn until_used(&self) {
        let before = self.done();
        eventually("writes and reads in the zone", MAX_WAIT, async || {
            let done = self.done();
            let is_used = done.iter().zip(before).all(|(now, before)| *now >= before + USES);
            if is_used { Ok(()) } else { Err(format!("{done:?} writes and reads after {before:?}")) }
        })
        .await;
    }
}

async fn write(zones: &Zones, seen: &Seen, stop: &AtomicBool, caller: usize) {
    let namespace = zones.world.namespace();
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        let (name, began) = (format!("cell-{caller}-{number}"), Instant::now());
        let answer =
            zones.alice.try_run(zones.world.operator(), "?wait=20s", &creates(namespace, &name)).await;
        seen.late.fetch_add(usize::from(began.elapsed() > ANSWER_WITHIN), Ordering::Relaxed);
        match answer {
            Ok(answer) if answer.status == 200 => {
                let text = |key: &str| answer.json[key].as_str().unwrap_or_default().to_owned();
                let status = answer.json["status"].as_u64().unwrap_or_default();
                seen.writes.lock().push((name, status, text("operationId")));
            }
            // The account is not usable now.
            Ok(answer) => {
                assert!(matches!(answer.status, 404 | 409 | 503), "{answer}");
            }
            Err(why) => must(Err(why)),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn read(zones: &Zones, seen: &Seen, stop: &AtomicBool, is_http2: bool) {
    let path = zones.path("configmaps?limit=1");
    while !stop.load(Ordering::Relaxed) {
        let began = Instant::now();
        // Without an account the answer is 503; a read that is cut has no whole body.
        if let Ok(mut reading) = zones.door.by_http2(is_http2).get(&path).await
            && reading.end().await.is_ok()
        {
            assert!(
                matches!(reading.status.as_u16(), 200 | 503 | 504),
                "{} {}",
                reading.status,
                reading.text()
            );
            seen.reads.fetch_add(usize::from(reading.status == 200), Ordering::Relaxed);
        }
        seen.late.fetch_add(usize::from(began.elapsed() > ANSWER_WITHIN), Ordering::Relaxed);
        tokio::time::sleep(PAUSE).await;
    }
}

async fn watch(zones: &Zones, seen: &Seen, stop: &AtomicBool) {
    let path = zones.path("configmaps?watch=true");
    while !stop.load(Ordering::Relaxed) {
        tokio::time::sleep(PAUSE).await;
        let Ok(mut reading) = zones.door.get(&path).await else { continue };
        let ended = tokio::time::timeout(Duration::from_secs(60), reading.end()).await;
        if reading.status == 200 && matches!(ended, Ok(Ok(()))) {
            seen.whole_watches.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Looks at the grant again and again.
async fn look(zones: &Zones, stop: &AtomicBool, looks: &Mutex<Vec<Look>>) {
    while !stop.load(Ordering::Relaxed) {
        let Ok(account) = zones.world.try_object(ACCOUNT).await else { continue };
        let zone = account.and_then(|account| {
            let status = account.status_or_default();
            (status.phase() != GrantPhase::None).then(|| status.granted_zone().map(ToString::to_string))
        });
        looks.lock().push((Timestamp::now(), zone.flatten()));
        tokio::time::sleep(PAUSE / 2).await;
    }
}

async fn change(zones: &Zones, seen: &Seen) {
    let world = &zones.world;
    seen.until_used().await;
    for zone in ["west", "east", "west"] {
        zones.ask_for(zone).await;
        zones.until_active_in(zone).await;
        seen.until_used().await;
    }
    world.patch(ACCOUNT, json!({"spec": {"state": "INACTIVE"}})).await;
    world.until(ACCOUNT, State::Inactive).await;
    world.patch(ACCOUNT, json!({"spec": {"state": "ACTIVE"}})).await;
    zones.until_active_in("west").await;
    seen.until_used().await;
    // The same name, another account, another zone.
    for zone in ["east", "west"] {
        world.delete(ACCOUNT).await;
        world.until_gone(ACCOUNT).await;
        zones.create(zone).await;
        seen.until_used().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_sent_into_a_zone_that_has_not_the_account() {
    let zones = Zones::start().await;
    let (seen, stop, looks) = (Seen::default(), AtomicBool::new(false), Mutex::default());
    let changing = async {
        change(&zones, &seen).await;
        stop.store(true, Ordering::Relaxed);
        // Ends the watches.
        zones.ask_for("east").await;
    };
    let writing = join_all((0..CALLERS).map(|caller| write(&zones, &seen, &stop, caller)));
    let reading = join_all((0..CALLERS).map(|caller| read(&zones, &seen, &stop, caller % 2 == 0)));
    let watching = watch(&zones, &seen, &stop);
    tokio::join!(changing, writing, reading, watching, look(&zones, &stop, &looks));

    let looks = looks.into_inner();
    let writes = seen.writes.into_inner();
    let audited = zones.world.control_plane().writes();
    let user = format!("system:serviceaccount:{}:spinnaker", zones.world.namespace());
    let (mut done, mut unknown) = (0, 0);
    for (name, status, id) in &writes {
        let of_it: Vec<_> =
            audited.iter().filter(|write| write.user == user && write.name == *name).collect();
        assert!(of_it.len() <= 1, "{name} was written {} times", of_it.len());
        done += usize::from(*status == 201);
        unknown += usize::from(*status == 504);
        assert!(*status != 201 || of_it.len() == 1, "{name} was not written, and its caller has a 201");
        let Some(write) = of_it.first() else { continue };
        let path = format!("/armory/agent/operations/{id}");
        let record = zones.alice.get(zones.world.operator(), &path).await;
        let agent = record.json["opSentToAgent"]["agentId"].as_str().unwrap_or_default().to_owned();
        let zone = if agent == "agent-1" { "east" } else { "west" };
        let at: Timestamp = write.received.parse().expect("a time");
        // The grant as it was seen before and after.
        let near = |(time, _): &&Look| *time >= at - BLUR && *time <= at + BLUR;
        let before = looks.iter().rfind(|(time, _)| *time <= at);
        let after = looks.iter().find(|(time, _)| *time >= at);
        let mut around = looks.iter().filter(near).chain(before).chain(after);
        assert!(
            around.any(|(_, has)| has.as_deref() == Some(zone)),
            "{name} was sent into {zone} by {agent} at {at}, which had not the account: {record}"
        );
    }
    assert_eq!(
        seen.whole_watches.load(Ordering::Relaxed),
        0,
        "watches that were cut ended as if they were whole"
    );
    assert_eq!(seen.late.load(Ordering::Relaxed), 0, "some waited too long");
    eprintln!("{} writes: {done} done, {unknown} unknown; {:?} reads", writes.len(), seen.reads);
}
