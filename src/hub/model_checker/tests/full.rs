//! The larger scenarios, each searched to its end: `make model`.

use std::fmt::Write;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::hub::model_checker::scenario::{EAST, Faults, PersonAction, Scenario, WEST};
use crate::hub::model_checker::search::search;
use crate::hub::model_checker::world::{ModelWorld, Rules};

/// As many as fit in memory with room to spare.
const MOST: usize = 5_000_000;
/// How many are searched at a time.
const AT_A_TIME: usize = 2;

const LAG: Faults = Faults { lag: 1, ..Faults::NONE };
const CUT: Faults = Faults { cuts: 1, ..LAG };
const RESTART: Faults = Faults { restarts: 1, ..LAG };
const TAKEOVER: Faults = Faults { takeovers: 1, late: 2, ..LAG };
const CRASH: Faults = Faults { crashes: 1, ..LAG };
const FAILURE: Faults = Faults { failures: 1, delays: 1, ..LAG };

const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "zone move, lag",
        agents: &[EAST, WEST],
        script: &[PersonAction::OtherZone],
        faults: LAG,
    },
    Scenario {
        name: "zone move and INACTIVE, lag",
        agents: &[EAST, WEST],
        script: &[PersonAction::OtherZone, PersonAction::OtherState],
        faults: LAG,
    },
    Scenario {
        name: "zone move, a duplicate id, lag",
        agents: &[EAST, EAST, WEST],
        script: &[PersonAction::OtherZone],
        faults: LAG,
    },
    Scenario {
        name: "zone move, a cut, lag",
        agents: &[EAST, WEST],
        script: &[PersonAction::OtherZone],
        faults: CUT,
    },
    Scenario {
        name: "zone move, a restart, lag",
        agents: &[EAST, WEST],
        script: &[PersonAction::OtherZone],
        faults: RESTART,
    },
    Scenario {
        name: "zone move, a takeover, lag",
        agents: &[EAST, WEST],
        script: &[PersonAction::OtherZone],
        faults: TAKEOVER,
    },
    Scenario {
        name: "zone move, a failure and a delay, lag",
        agents: &[EAST, WEST],
        script: &[PersonAction::OtherZone],
        faults: FAILURE,
    },
    Scenario {
        name: "deleted and made anew, a cut, two zones, lag",
        agents: &[EAST, WEST],
        script: &[PersonAction::Delete, PersonAction::Recreate],
        faults: CUT,
    },
    Scenario {
        name: "deleted, made anew and INACTIVE, a cut, lag",
        agents: &[EAST],
        script: &[PersonAction::Delete, PersonAction::Recreate, PersonAction::OtherState],
        faults: CUT,
    },
    Scenario {
        name: "deleted, made anew and INACTIVE, a restart, lag",
        agents: &[EAST],
        script: &[PersonAction::Delete, PersonAction::Recreate, PersonAction::OtherState],
        faults: RESTART,
    },
    Scenario {
        name: "deleted, made anew and INACTIVE, a takeover, lag",
        agents: &[EAST],
        script: &[PersonAction::Delete, PersonAction::Recreate, PersonAction::OtherState],
        faults: TAKEOVER,
    },
    Scenario {
        name: "deleted, a takeover while the leader sleeps",
        agents: &[EAST],
        script: &[PersonAction::Delete],
        faults: Faults { takeovers: 1, sleeps: 1, ..Faults::NONE },
    },
    Scenario {
        name: "INACTIVE, two cuts, lag",
        agents: &[EAST],
        script: &[PersonAction::OtherState],
        faults: Faults { cuts: 2, ..LAG },
    },
    Scenario {
        name: "zone move, approval withdrawn, lag",
        agents: &[EAST, WEST],
        script: &[PersonAction::Disapprove, PersonAction::OtherZone],
        faults: LAG,
    },
    Scenario {
        name: "INACTIVE, approval withdrawn, a cut, lag",
        agents: &[EAST],
        script: &[PersonAction::Disapprove, PersonAction::OtherState],
        faults: CUT,
    },
    Scenario {
        name: "zone move, a replica dies, lag",
        agents: &[EAST, WEST],
        script: &[PersonAction::OtherZone],
        faults: CRASH,
    },
    Scenario {
        name: "INACTIVE, a replica dies and a cut, lag",
        agents: &[EAST],
        script: &[PersonAction::OtherState],
        faults: Faults { cuts: 1, ..CRASH },
    },
    Scenario {
        name: "INACTIVE, a duplicate id and a cut, lag",
        agents: &[EAST, EAST],
        script: &[PersonAction::OtherState],
        faults: CUT,
    },
    Scenario {
        name: "INACTIVE, a restart and a takeover, lag",
        agents: &[EAST],
        script: &[PersonAction::OtherState],
        faults: Faults { restarts: 1, ..TAKEOVER },
    },
    Scenario {
        name: "INACTIVE, a cut and a takeover, lag",
        agents: &[EAST],
        script: &[PersonAction::OtherState],
        faults: Faults { cuts: 1, ..TAKEOVER },
    },
];

/// The lines of a table about one scenario.
fn line(scenario: &Scenario) -> Result<String, String> {
    let begin = ModelWorld::new(scenario, Rules::ALL);
    let seen = search(begin, MOST).map_err(|broken| format!("{}: {}", scenario.name, broken.story))?;
    if !seen.is_complete {
        return Err(format!("{}: not all was seen: {seen:?}", scenario.name));
    }
    let (states, transitions, depth) = (seen.states, seen.transitions, seen.depth);
    let mut line = format!("{:<52}", scenario.name);
    let _ = write!(line, "{states:>12}{transitions:>13}{depth:>7}{:>9.1}", seen.took.as_secs_f64());
    Ok(line)
}

#[test]
#[ignore = "takes minutes; make model"]
fn all_that_the_full_scenarios_allow_holds() {
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    println!("{:<52}{:>12}{:>13}{:>7}{:>9}", "scenario", "states", "transitions", "depth", "seconds");
    std::thread::scope(|threads| {
        for _ in 0..AT_A_TIME {
            threads.spawn(|| {
                while let Some(scenario) = SCENARIOS.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match line(scenario) {
                        Ok(line) => println!("{line}"),
                        Err(broken) => {
                            println!("{}: FAILED, as told below", scenario.name);
                            failed.lock().push(broken);
                        }
                    }
                }
            });
        }
    });
    let failed = failed.into_inner();
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
}
