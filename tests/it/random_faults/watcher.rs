//! Watches from outside, all the time, and says what must never be. It takes nothing from kubesvc but what anybody may
//! read: objects from the API server, rows by SQL, and of agents what they answer and log.
//!
//! | file | what it reads |
//! |---|---|
//! | `objects.rs` | every version of every account, by a watch of its own |
//! | `rows.rs` | the rows, again and again, on a connection of its own |
//! | `agents.rs` | whether agents are connected, and to whom |
//! | `commands.rs` | what agents were told, from their logs |

mod agents;
mod commands;
mod objects;
mod rows;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use self::agents::Links;
use super::rules::Seen;
use super::scene::Scene;

/// How long after versions may have been missed a row may still show one of those.
const MISSED: Duration = Duration::from_secs(60);

/// What was seen so far.
#[derive(Debug, Default)]
pub(super) struct Watcher {
    objects: Mutex<Objects>,
    links: Mutex<Links>,
    /// The accounts whose deletion was asked for, by uid.
    asked_to_go: Mutex<HashSet<String>>,
    /// Since when nobody touches those that are left alone.
    settled: Mutex<Option<Instant>>,
}

#[derive(Debug, Default)]
struct Objects {
    accounts: HashMap<String, Known>,
    /// Which zone had which epoch.
    granted: HashMap<(String, i64), String>,
    /// When versions may have been missed last.
    missed: Option<Instant>,
}

/// What is known of one uid.
#[derive(Debug)]
struct Known {
    last: Seen,
    /// Everything that a row may have shown.
    shown: BTreeSet<String>,
    gone: bool,
}

impl Watcher {
    /// Its deletion is about to be asked for.
    pub(super) fn asked_to_go(&self, uid: &str) {
        self.asked_to_go.lock().insert(uid.to_owned());
    }

    /// From now on the accounts that nobody touches have no reason to leave ACTIVE.
    pub(super) fn all_is_settled(&self) {
        *self.settled.lock() = Some(Instant::now());
    }

    /// Watches, for as long as the run goes on.
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
