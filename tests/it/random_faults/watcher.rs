//! Watches from outside all the time, and reports violations of invariants. Uses only what anyone can read:
//! objects from the API server, rows through SQL, and the responses and logs of agents.
//!
//! | file | what it reads |
//! |---|---|
//! | `objects.rs` | every version of every account, through a watch of its own |
//! | `rows.rs` | the rows, repeatedly, on a connection of its own |
//! | `agents.rs` | whether agents are connected, and to which session |
//! | `commands.rs` | the commands that agents received, from their logs |

mod agents;
mod commands;
mod objects;
mod rows;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use self::agents::Links;
use super::rules::ObservedAccount;
use super::scene::Scene;

/// Time after possibly missed versions in which a row may still show one of them.
const MISSED: Duration = Duration::from_secs(60);

/// Everything observed so far.
#[derive(Debug, Default)]
pub(super) struct Watcher {
    objects: Mutex<Objects>,
    links: Mutex<Links>,
    /// Uids of the accounts whose deletion was requested.
    deletion_requested: Mutex<HashSet<String>>,
    /// Time since which the accounts that are left alone must stay ACTIVE.
    settled: Mutex<Option<Instant>>,
}

#[derive(Debug, Default)]
struct Objects {
    accounts: HashMap<String, AccountHistory>,
    /// The zone that had each epoch.
    granted: HashMap<(String, i64), String>,
    /// Last time that versions may have been missed.
    missed: Option<Instant>,
}

/// What is known about one uid.
#[derive(Debug)]
struct AccountHistory {
    last: ObservedAccount,
    /// All states that a row may have shown.
    shown: BTreeSet<String>,
    gone: bool,
}

impl Watcher {
    /// Records that the deletion of this uid is about to be requested.
    pub(super) fn deletion_requested(&self, uid: &str) {
        self.deletion_requested.lock().insert(uid.to_owned());
    }

    /// Records that the accounts that are left alone have no reason to leave ACTIVE from now on.
    pub(super) fn mark_settled(&self) {
        *self.settled.lock() = Some(Instant::now());
    }

    /// Watches for as long as the run lasts.
    pub(super) async fn watch(&self, scene: &Scene) {
        futures::join!(
            self.watch_objects(scene),
            self.watch_rows(scene),
            self.watch_agents(scene),
            self.watch_commands(scene),
        );
    }
}

impl Objects {
    fn may_have_missed(&self) -> bool {
        self.missed.is_some_and(|missed| missed.elapsed() < MISSED)
    }
}
