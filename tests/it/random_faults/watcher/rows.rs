//! The rows, polled on a connection of its own.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use super::Watcher;
use crate::random_faults::fault_log::Target;
use crate::random_faults::scene::Scene;
use crate::world::{Connection, connect};

/// Polling interval.
const POLL: Duration = Duration::from_millis(250);
/// Timeout for an answer, and for the state of an object to be seen here.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// Name, uid, status, generation and observed generation.
pub(in crate::random_faults) type Row = (String, Option<String>, String, i64, i64);

/// What was read so far.
#[derive(Debug, Default)]
struct RowHistory {
    rows: BTreeMap<String, Row>,
    /// The greatest generations shown in rows of each uid.
    newest: HashMap<String, (i64, i64)>,
    /// Rows that show a state that no version of their object had, and since when.
    unknown_states: HashMap<String, (String, Instant)>,
    /// Uids whose rows still existed when their objects were gone.
    outlived: HashSet<String>,
    term: i64,
}

impl RowHistory {
    /// What is wrong with a row, by itself and compared to earlier rows. Each problem is reported once.
    fn faults(&mut self, row: &Row, gone: &HashSet<String>) -> Vec<String> {
        let (name, uid, _, generation, observed) = row;
        let Some(uid) = uid else { return vec![format!("a row without a uid: {row:?}")] };
        let mut faults = Vec::new();
        if gone.contains(uid) && self.outlived.insert(uid.clone()) {
            faults.push(format!("{name} has a row of an object that is gone: {}", describe(row)));
        }
        let before = self.newest.entry(uid.clone()).or_insert((*generation, *observed));
        if *generation < before.0 || *observed < before.1 {
            faults.push(format!("its row goes back from generation {before:?}: {}", describe(row)));
        }
        *before = (*generation, *observed);
        faults
    }
}

impl Watcher {
    pub(super) async fn watch_rows(&self, scene: &Scene) {
        let (mut read, mut connection) = (RowHistory::default(), None);
        loop {
            tokio::time::sleep(POLL).await;
            // Objects known to be gone before the rows are read must not have any.
            let gone = self.gone();
            let answer =
                tokio::time::timeout(MAX_WAIT, poll(&mut connection, scene.world.database_url())).await;
            match answer {
                Ok(Ok((rows, term))) => self.rows_are(scene, &mut read, rows, term, &gone),
                // The database is away or paused.
                _ => connection = None,
            }
        }
    }

    /// Uids of objects that went away through their finalizer. A DELETE that the API server began to process
    /// before the finalizer existed removes the object even if the finalizer exists by then; its row is
    /// removed as soon as the leader notices, and is gone at the end of the round.
    fn gone(&self) -> HashSet<String> {
        let objects = self.objects.lock();
        let gone = objects.accounts.iter().filter(|(_, known)| known.gone && known.last.is_deleted);
        gone.map(|(uid, _)| uid.clone()).collect()
    }

    fn rows_are(
        &self,
        scene: &Scene,
        read: &mut RowHistory,
        rows: Vec<Row>,
        term: i64,
        gone: &HashSet<String>,
    ) {
        if term < read.term {
            scene.event_log.violation(None, format!("the term falls from {} to {term}", read.term));
        }
        read.term = term;
        let rows: BTreeMap<_, _> = rows.into_iter().map(|row| (row.0.clone(), row)).collect();
        for (name, row) in &rows {
            self.row_is(scene, read, row, gone);
            if read.rows.get(name) != Some(row) {
                scene.event_log.count("also:rows that changed");
                scene.event_log.of_account(name, describe(row));
            }
        }
        for name in read.rows.keys().filter(|name| !rows.contains_key(*name)) {
            scene.event_log.of_account(name, "row is gone");
        }
        read.rows = rows;
    }

    fn row_is(&self, scene: &Scene, read: &mut RowHistory, row: &Row, gone: &HashSet<String>) {
        for fault in read.faults(row, gone) {
            scene.event_log.violation(Some(&row.0), fault);
        }
        if let Some(uid) = &row.1 {
            self.is_known(scene, read, &row.0, uid, &row.2);
        }
    }

    /// Checks that the row shows a state that its object had. The object's versions may be seen here later
    /// than the row.
    fn is_known(&self, scene: &Scene, read: &mut RowHistory, name: &str, uid: &str, status: &str) {
        let objects = self.objects.lock();
        let shown = objects.accounts.get(uid).is_some_and(|known| known.shown.contains(status));
        let away = scene.fault_log.was_hit(Target::ApiServer, MAX_WAIT);
        if shown || away || objects.may_have_missed() {
            read.unknown_states.remove(uid);
            return;
        }
        let now = (status.to_owned(), Instant::now());
        let since = read.unknown_states.entry(uid.to_owned()).or_insert_with(|| now.clone());
        if since.0 != status {
            *since = now;
        } else if since.1.elapsed() > MAX_WAIT {
            since.1 = Instant::now() + Duration::from_secs(600);
            scene.event_log.violation(Some(name), format!("its row shows {status}, its object never did"));
        }
    }
}

fn describe((_, uid, status, generation, observed): &Row) -> String {
    let uid = uid.as_deref().and_then(|uid| uid.get(..8)).unwrap_or_default();
    format!("row {uid} generation {observed}/{generation} {status}")
}

/// Reads all rows, and the term of the leader.
async fn poll(connection: &mut Option<Connection>, url: &str) -> sqlx::Result<(Vec<Row>, i64)> {
    if connection.is_none() {
        *connection = Some(connect(url).await?);
    }
    let connection = connection.as_mut().expect("it was just opened");
    let rows = connection
        .five("SELECT name, uid, status, generation, observed_generation FROM kubesvc_accounts")
        .await?;
    Ok((rows, connection.number("SELECT token FROM kubesvc_locks WHERE name = 'leader'").await?))
}

#[cfg(test)]
mod tests {
    use super::{HashSet, Row, RowHistory};

    fn row(uid: Option<&str>, generation: i64, observed: i64) -> Row {
        ("one".into(), uid.map(str::to_owned), "ACTIVE".into(), generation, observed)
    }

    #[test]
    fn each_rule_of_rows_can_be_broken() {
        let (mut read, nobody) = (RowHistory::default(), HashSet::new());
        for good in [row(Some("a"), 1, -1), row(Some("a"), 2, 1), row(Some("a"), 2, 2), row(Some("b"), 1, -1)]
        {
            assert!(read.faults(&good, &nobody).is_empty(), "{good:?}");
        }
        for bad in [row(None, 1, 1), row(Some("a"), 1, 2), row(Some("a"), 2, 1)] {
            assert_eq!(read.faults(&bad, &nobody).len(), 1, "{bad:?}");
        }
        let gone = HashSet::from(["b".to_owned()]);
        assert_eq!(read.faults(&row(Some("b"), 1, 1), &gone).len(), 1);
        assert!(read.faults(&row(Some("b"), 1, 1), &gone).is_empty(), "it is told once");
    }
}
