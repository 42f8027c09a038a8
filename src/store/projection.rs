//! Keeps the rows of `kubesvc_accounts` in step with the objects.
//!
//! Callers say what a row shall be; one task writes. It takes everything that waits, the newest row of each account,
//! and commits it in one transaction; what comes meanwhile is the next transaction. So a lone row is written at once,
//! and under load many share a commit, without a timer. In memory it keeps what the database is known to hold, so a
//! row that is the same costs nothing.
//!
//! While the database cannot be used everything waits, at most one row for each account, and is written when it is
//! back; before that the table is read again, for a commit whose answer was lost may be in it or not.
//!
//! With several replicas only the leader writes, under a [term](crate::store::Term) that it begins before its first
//! row. A replica that led, slept and goes on finds at its next transaction that a later term has begun: nothing of it
//! is written, and its lead is over.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBuilder};
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::sync::{Notify, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::{AssignmentChanges, Changes, Store, StoreError, Term};
use crate::account::lifecycle::RowFact;
use crate::account::row::AccountRow;
use crate::crash;
use office::Office;
use state::{Kind, State, Task, Want};

#[cfg(test)]
mod fake;
#[cfg(test)]
mod leading;
mod office;
#[cfg(test)]
mod properties;
mod state;
#[cfg(test)]
mod tests;

pub use office::{Confirm, Lead};

/// How many rows one transaction takes at most; the rest is the next one.
const MOST_ROWS: usize = 2_048;
/// How often an idle database is asked whether it is still there.
const PING_EVERY: Duration = Duration::from_secs(15);
/// How long the last rows may take when the program ends.
const LAST_ROWS: Duration = Duration::from_secs(5);
/// How long the database may take to begin a term; after that the leader goes on without rows.
const TERM_WAIT: Duration = Duration::from_secs(5);
/// The longest wait between two tries, before the jitter that at most doubles it.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// What a [`Projection::repair`] found and set right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repair {
    /// Rows that were missing.
    pub inserted: usize,
    /// Rows that differed.
    pub updated: usize,
    /// Rows of ours that no object has.
    pub deleted: usize,
    /// Rows among these that the database refuses; each is named in the log.
    pub refused: usize,
}

impl Repair {
    /// Whether the rows were as they should be.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

/// Counts of what was written, for `/metrics`.
#[derive(Debug, Default)]
pub struct Counters {
    /// Transactions that were committed.
    pub commits: Counter,
    /// Rows that were inserted, updated or deleted.
    pub rows: Counter,
    /// Rows that the database refused.
    pub refused: Counter,
    /// Accounts whose row waits to be written.
    pub pending: Gauge,
    /// Writes that came too late: another replica leads by now.
    pub late: Counter,
}

/// The rows of `kubesvc_accounts`, as the objects call for them. [`Projection::run`] is the task that writes.
pub struct Projection {
    store: Arc<dyn Store>,
    state: Mutex<State>,
    office: Mutex<Office>,
    /// Held while the table is read or written, so that what is known of it is never older than what was read.
    table: tokio::sync::Mutex<()>,
    wake: Notify,
    trouble: watch::Sender<Option<String>>,
    counters: Counters,
}

impl Projection {
    /// A projection into this database. It knows nothing until [`Projection::load`] or [`Projection::run`] has read
    /// the table.
    pub fn new(store: Arc<dyn Store>) -> Arc<Self> {
        let (trouble, _) = watch::channel(Some("the database has not been read yet".to_owned()));
        Arc::new(Self {
            store,
            state: Mutex::new(State::default()),
            office: Mutex::default(),
            table: tokio::sync::Mutex::new(()),
            wake: Notify::new(),
            trouble,
            counters: Counters::default(),
        })
    }

    /// Writes what waits until `stop`, then what still waits, for at most five seconds. While the database cannot be
    /// used it tries for ever, from 100 ms up to 10 s apart. To be run once; afterwards nothing is written any more.
    pub async fn run(&self, stop: CancellationToken) {
        let overdue = async {
            stop.cancelled().await;
            tokio::time::sleep(LAST_ROWS).await;
        };
        tokio::select! {
            () = self.write(&stop) => {}
            () = overdue => {}
        }
        // This is no news, so nothing is logged.
        let stopping = StoreError::unavailable("kubesvc is stopping");
        self.trouble.send_replace(Some(stopping.in_full()));
        self.state.lock().fail(&stopping);
    }

    async fn write(&self, stop: &CancellationToken) {
        let mut waits = backoff();
        let mut ping = false;
        while !stop.is_cancelled() {
            match self.round(ping).await {
                Ok(()) => {
                    waits = backoff();
                    self.recover();
                }
                Err(error) => {
                    self.fail(&error);
                    let wait = waits.next().unwrap_or(LONGEST_WAIT);
                    tokio::select! {
                        () = stop.cancelled() => return,
                        () = tokio::time::sleep(wait) => continue,
                    }
                }
            }
            ping = false;
            if self.state.lock().has_waiting() {
                continue;
            }
            tokio::select! {
                () = stop.cancelled() => {}
                () = self.wake.notified() => {}
                () = tokio::time::sleep(PING_EVERY) => ping = true,
            }
        }
        while self.state.lock().has_waiting() && self.round(false).await.is_ok() {}
    }

    /// Writes nothing until this replica [leads](Projection::lead): there are others. What waits is forgotten.
    pub fn follow(&self) {
        *self.office.lock() = Office::Follows;
        self.drop_waiting();
        self.count_pending();
    }

    /// This replica leads. A term is begun and confirmed at once if the database allows, and else before the first row;
    /// what the table holds is read anew. It goes on until [`Projection::follow`], or until `over` is cancelled.
    pub async fn lead(&self, lead: Lead) {
        let _table = self.table.lock().await;
        self.drop_waiting();
        *self.state.lock() = State::default();
        *self.office.lock() = Office::Elected(lead);
        let begin = async {
            self.take_office().await?;
            self.read().await
        };
        let begun = tokio::time::timeout(TERM_WAIT, begin).await;
        match begun.unwrap_or_else(|_| Err(StoreError::unavailable("the database does not answer in time"))) {
            Ok(()) => self.recover(),
            Err(error) => self.fail(&error),
        }
        self.wake.notify_one();
    }

    /// The term that rows are written under; absent while there is none, and where there is only this process.
    pub fn term(&self) -> Option<Term> {
        self.office.lock().term()
    }

    /// Writes assignments for a replica that is gone, under the leader's term.
    pub async fn write_assignments(
        &self,
        replica_id: &str,
        mut changes: AssignmentChanges,
    ) -> Result<(), StoreError> {
        changes.term = self.may_write()?;
        self.judged(self.store.write_assignments(replica_id, &changes).await)
    }

    /// Reads what the database holds now. On an error nothing is known any more, and [`Projection::run`] tries again.
    pub async fn load(&self) -> Result<(), StoreError> {
        let _table = self.table.lock().await;
        self.read().await.inspect_err(|error| self.fail(error))?;
        self.recover();
        Ok(())
    }

    /// Whether the account with this uid has a row, or somebody else's row has its name, from memory. Unavailable until
    /// the table was read, and while the database cannot be used.
    ///
    /// Somebody else's row is known once the table was read or a row was refused; that it is gone, with the next repair.
    pub fn fact(&self, uid: &str, account_name: &str) -> RowFact {
        if self.trouble.borrow().is_some() || !self.office.lock().writes() {
            return RowFact::Unavailable;
        }
        let state = self.state.lock();
        if state.is_stale() {
            RowFact::Unavailable
        } else if state.has_row(uid) {
            RowFact::Present
        } else if state.is_foreign(account_name) {
            RowFact::Foreign
        } else {
            RowFact::Absent
        }
    }

    /// The names of somebody else's rows, as known now; see [`Projection::fact`].
    pub fn foreign(&self) -> BTreeSet<String> {
        self.state.lock().foreign().cloned().collect()
    }

    /// Writes a row, and returns when it is committed; callers at the same time share a commit.
    ///
    /// [`StoreError::Refused`]: it is not written, or the account is deleted. [`StoreError::Unavailable`] and
    /// [`StoreError::Unfit`]: it is not known to be written; it waits as after [`Projection::say`].
    pub async fn insert(&self, row: AccountRow) -> Result<(), StoreError> {
        self.may_write()?;
        let (done, wait) = oneshot::channel();
        self.state.lock().insert(row, done)?;
        self.written(wait).await
    }

    /// As [`Projection::insert`], in place of a row of that name that is not ours, wherever it stands; see
    /// [`Changes::adopts`].
    pub async fn adopt(&self, row: AccountRow) -> Result<(), StoreError> {
        self.may_write()?;
        let (done, wait) = oneshot::channel();
        self.state.lock().adopt(row, done)?;
        self.written(wait).await
    }

    /// Says what a row shall be, and goes on: the newest word of each account is written. Nothing happens if the
    /// database holds just that, if it has refused just that since the last repair, or if the account was deleted.
    pub fn say(&self, row: AccountRow) {
        if self.may_write().is_ok() && self.state.lock().say(row) {
            self.changed();
        }
    }

    /// Deletes all rows of an account, and returns when that is committed. What waits for this uid is dropped, and
    /// what is said of it later is ignored. On an error the deletion waits, as [`Projection::insert`] does.
    pub async fn delete(&self, uid: &str) -> Result<(), StoreError> {
        self.may_write()?;
        let (done, wait) = oneshot::channel();
        self.state.lock().delete(uid, done);
        self.written(wait).await
    }

    /// Reads the table anew and makes it what the objects call for: rows that were edited, removed or added under a
    /// uid by hand. A row without a uid is not ours and stays. Rows that were refused are tried again.
    ///
    /// `expected` is called while nothing is being written, and gives the rows of **all** objects as they are then;
    /// what is said or inserted after that call wins. It needs [`Projection::run`].
    pub async fn repair(
        &self,
        expected: impl FnOnce() -> Vec<AccountRow> + Send,
    ) -> Result<Repair, StoreError> {
        let tasks = {
            let _table = self.table.lock().await;
            self.take_office().await.inspect_err(|error| self.fail(error))?;
            self.may_write()?;
            let expected = expected();
            self.read().await.inspect_err(|error| self.fail(error))?;
            self.state.lock().repair(expected)
        };
        self.changed();
        let mut repair = Repair::default();
        for (kind, wait) in tasks {
            match wait.await {
                Ok(Ok(())) => match kind {
                    Kind::Insert | Kind::Adopt => repair.inserted += 1,
                    Kind::Update => repair.updated += 1,
                    Kind::Delete => repair.deleted += 1,
                },
                Ok(Err(StoreError::Refused { .. })) => repair.refused += 1,
                Ok(Err(error)) => return Err(error),
                Err(_) => return Err(StoreError::unavailable("nothing writes any more")),
            }
        }
        Ok(repair)
    }

    /// Why the database cannot be used now; absent if it can.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.borrow().clone()
    }

    /// Follows [`Projection::trouble`]: changes when the database fails and when it is back.
    pub fn watch(&self) -> watch::Receiver<Option<String>> {
        self.trouble.subscribe()
    }

    /// What was written so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Puts the counters into a registry.
    pub fn register(&self, registry: &mut Registry) {
        let Counters { commits, rows, refused, pending, late } = &self.counters;
        registry.register("kubesvc_store_commits", "Transactions committed", commits.clone());
        registry.register("kubesvc_store_rows_written", "Account rows written or deleted", rows.clone());
        registry.register("kubesvc_store_rows_refused", "Account rows the database refused", refused.clone());
        registry.register(
            "kubesvc_store_late_writes",
            "Writes refused because another replica leads",
            late.clone(),
        );
        registry.register("kubesvc_store_pending", "Account rows that wait to be written", pending.clone());
    }

    async fn written(&self, wait: oneshot::Receiver<Result<(), StoreError>>) -> Result<(), StoreError> {
        self.changed();
        if let Some(why) = self.trouble() {
            return Err(StoreError::unavailable(why));
        }
        wait.await.unwrap_or_else(|_| Err(StoreError::unavailable("nothing writes any more")))
    }

    fn changed(&self) {
        self.count_pending();
        self.wake.notify_one();
    }

    fn count_pending(&self) {
        let waiting = self.state.lock().waiting();
        self.counters.pending.set(i64::try_from(waiting).unwrap_or(i64::MAX));
    }

    /// Writes what waits, in one transaction if nothing in it is refused.
    async fn round(&self, ping: bool) -> Result<(), StoreError> {
        let _table = self.table.lock().await;
        self.take_office().await?;
        if !self.office.lock().writes() {
            self.drop_waiting();
            return self.store.ping().await;
        }
        if self.state.lock().is_stale() {
            self.read().await?;
        } else if ping {
            self.store.ping().await?;
        }
        // A refused part is halved until the row at fault stands alone. The earlier half is on top.
        let mut parts = vec![self.state.lock().take(MOST_ROWS)];
        while let Some(mut part) = parts.pop() {
            match self.commit(&part).await {
                Ok(()) => self.state.lock().landed(part),
                Err(StoreError::Refused { .. }) if part.len() > 1 => {
                    let later = part.split_off(part.len() / 2);
                    parts.extend([later, part]);
                }
                Err(StoreError::Deposed) => {
                    // Nobody hears of what was to be written: the leader's work is over.
                    drop((part, parts));
                    self.drop_waiting();
                    break;
                }
                Err(error @ StoreError::Refused { .. }) => {
                    tracing::warn!(error = error.in_full(), "a row is left as it is");
                    self.counters.refused.inc();
                    // Before anybody hears of it: they ask why.
                    if let Ok(foreign) = self.store.foreign().await {
                        self.state.lock().saw_foreign(foreign);
                    }
                    self.state.lock().refuse(part, &error);
                }
                Err(error) => {
                    parts.push(part);
                    self.state.lock().give_back(parts.into_iter().rev().flatten().collect());
                    return Err(error);
                }
            }
        }
        self.count_pending();
        Ok(())
    }

    async fn commit(&self, part: &[Task]) -> Result<(), StoreError> {
        if part.is_empty() {
            return Ok(());
        }
        let mut changes = Changes { term: self.may_write()?, ..Changes::default() };
        let mut kinds = [false; 4];
        for task in part {
            kinds[task.kind as usize] = true;
            match &task.job.want {
                Want::Row(row) => changes.puts.push(Arc::clone(row)),
                Want::Adopt(row) => changes.adopts.push(Arc::clone(row)),
                Want::Gone => changes.deletes.push(task.uid.clone()),
            }
        }
        let pass = |points: [&'static str; 4]| {
            for (point, _) in points.into_iter().zip(kinds).filter(|(_, there)| *there) {
                crash::point(point);
            }
        };
        pass(["row-insert:before", "row-update:before", "row-delete:before", "row-adopt:before"]);
        self.judged(self.store.write(&changes).await)?;
        pass(["row-insert:after", "row-update:after", "row-delete:after", "row-adopt:after"]);
        self.counters.commits.inc();
        self.counters.rows.inc_by(part.len() as u64);
        Ok(())
    }

    /// Begins a term if this replica was elected and has none. The caller holds the table.
    async fn take_office(&self) -> Result<(), StoreError> {
        let Office::Elected(lead) = self.office.lock().clone() else { return Ok(()) };
        if lead.over.is_cancelled() {
            return Ok(());
        }
        crash::point("term:before");
        let term = self.store.begin_term(&lead.replica_id).await?;
        crash::point("term:after");
        let confirmed = (lead.confirm)().await && !lead.over.is_cancelled();
        let mut office = self.office.lock();
        // It may have been ended meanwhile, by whoever knows.
        if matches!(&*office, Office::Elected(_)) {
            if confirmed {
                tracing::info!(term = term.number(), "rows are written under this term");
                *office = Office::Leads(lead, term);
            } else {
                lead.over.cancel();
                *office = Office::Follows;
            }
        }
        Ok(())
    }

    /// The term to write under; an error if another replica writes.
    fn may_write(&self) -> Result<Option<Term>, StoreError> {
        let office = self.office.lock();
        if office.writes() { Ok(office.term()) } else { Err(StoreError::Deposed) }
    }

    /// Ends the lead if the database knows a later term.
    fn judged<T>(&self, answer: Result<T, StoreError>) -> Result<T, StoreError> {
        if matches!(answer, Err(StoreError::Deposed)) {
            self.counters.late.inc();
            let mut office = self.office.lock();
            if let Office::Leads(lead, term) = &*office {
                tracing::warn!(
                    term = term.number(),
                    "a late write was refused: another replica leads, and a later term has begun"
                );
                lead.over.cancel();
                *office = Office::Follows;
            }
        }
        answer
    }

    /// What waits is not written any more; whoever waits for it hears so.
    fn drop_waiting(&self) {
        self.state.lock().forget_waiting(&StoreError::Deposed);
    }

    async fn read(&self) -> Result<(), StoreError> {
        let accounts = self.store.accounts().await?;
        for malformed in &accounts.malformed {
            tracing::warn!(%malformed, "a row was edited by hand; it is written anew if an object has it");
        }
        let foreign = self.store.foreign().await?;
        let mut state = self.state.lock();
        state.loaded(accounts);
        state.saw_foreign(foreign);
        Ok(())
    }

    /// Only after what waited is written: a full disk can be read.
    fn recover(&self) {
        if self.trouble.send_if_modified(|trouble| trouble.take().is_some()) {
            tracing::info!("the database can be used");
        }
    }

    fn fail(&self, error: &StoreError) {
        let why = error.in_full();
        self.trouble.send_if_modified(|trouble| {
            if trouble.as_ref() == Some(&why) {
                return false;
            }
            tracing::warn!(error = why, "the database cannot be used; what is to be written waits");
            *trouble = Some(why);
            true
        });
        self.state.lock().fail(error);
    }
}

fn backoff() -> impl Iterator<Item = Duration> {
    ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(100))
        .with_max_delay(LONGEST_WAIT)
        .without_max_times()
        .with_jitter()
        .build()
}
