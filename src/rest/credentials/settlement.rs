//! Intents whose write has no known end: after a crash, a lost answer, or an account here that could not follow. The leader
//! reads the credentials sources, and lets the account follow what they have, whichever answer was lost.
//!
//! What shows that a write was carried out settles it. What shows that it was not settles it only once the write can
//! come no more: some time after it was sent, and a poll after Clouddriver has answered another call since. A Clouddriver
//! that was suspended carries out late what it was sent, beside what it is asked then.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::{Map, Value};
use tokio::sync::OnceCell;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::AccountManagement;
use super::followed::{Followed, WrittenAccount};
use crate::access::AccessResource;
use crate::access::audit::{AuditEvent, AuditLine};
use crate::clouddriver::StoredAccount;
use crate::leases::{Mandate, Replicas};
use crate::rest::RestState;
use kubesvc_clouddriver::interception::{AccountPresence, WriteVerb, is_carried_out};
use kubesvc_clouddriver::registration::FailureKind;
use kubesvc_clouddriver::sources::{MergedSources, NameLookup};
use kubesvc_core::ReplicaId;
use kubesvc_core::lifecycle::Fact;
use kubesvc_runtime::background_tasks::{AttemptOutcome, TaskSpec};
use kubesvc_runtime::crash_points;
use kubesvc_runtime::telemetry::errors::chain;
use kubesvc_store::IntentRow;

/// Interval between two reads of the table.
const READ_INTERVAL: Duration = Duration::from_secs(2);
/// Time limit for reading the credentials sources.
const SOURCES_TIMEOUT: Duration = Duration::from_secs(20);
/// Age at which the replica of an intent is no longer at it, in milliseconds: longer than all its time limits.
const MAX_UNDER_WAY_MS: i64 = 180_000;
/// Age of an intent after which its call can come no more, in seconds: longer than Clouddriver is waited for.
const QUIET_SECONDS: u64 = 90;
/// Age of an intent after which Clouddriver need not have answered since, in milliseconds.
const MAX_SILENCE_MS: i64 = 600_000;
/// Age of an intent that is told of, in milliseconds.
const OLD_MS: i64 = 24 * 3_600_000;
/// Age of what was read at which nothing follows from it any more: longer than all its time limits.
const MAX_READ_AGE: Duration = Duration::from_secs(150);
/// Interval between two warnings about old intents.
const WARNING_INTERVAL: Duration = Duration::from_secs(3600);
/// First and longest delay between two looks at an intent.
const LOOK_DELAYS: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(300)];

/// Settles intents while this replica leads.
pub struct IntentSettlement {
    state: RestState,
    credentials: Arc<AccountManagement>,
    replicas: Arc<Replicas>,
    quiet_ms: i64,
}

/// What one leadership knows.
#[derive(Default)]
struct Looks {
    /// By name and start of the intent.
    intents: HashMap<(String, i64), Look>,
    warned: Option<Instant>,
}

/// What is known of one intent.
#[derive(Clone, Copy, Default)]
struct Look {
    count: u32,
    next: Option<Instant>,
    /// When Clouddriver answered after the time in which the write could come.
    answered: Option<Instant>,
    /// When Clouddriver's list was last read for it, and whether it had the name.
    listed: Option<(Instant, AccountPresence)>,
}

/// One look at all intents.
struct Round<'r> {
    mandate: &'r Mandate,
    sources: MergedSources,
    /// When the sources began to be read.
    began: Instant,
    /// When Clouddriver listed its accounts, and their names; or why it did not. Read once an intent needs it.
    list: OnceCell<Result<(Instant, HashSet<String>), String>>,
    /// Whether Clouddriver did not answer for one account, and is not asked for others.
    is_over: AtomicBool,
}

impl Round<'_> {
    /// Whether accounts may still follow what was read.
    fn is_current(&self) -> bool {
        self.mandate.holds() && self.began.elapsed() < MAX_READ_AGE
    }
}

/// What Clouddriver has, as far as it can be known.
enum Seen<'s> {
    Known(AccountPresence, Option<(Map<String, Value>, &'s str)>),
    /// Not yet, for this reason.
    NotYet(String),
}

impl IntentSettlement {
    /// A settlement that does nothing until it is run; `None`: nothing is passed on to Clouddriver.
    pub fn new(state: &RestState, replicas: &Arc<Replicas>) -> Option<Self> {
        let credentials = state.credentials.clone()?;
        let seconds = crash_points::seconds("KUBESVC_INTENT_QUIET_SECONDS", QUIET_SECONDS);
        let quiet_ms = i64::try_from(seconds * 1000).unwrap_or(i64::MAX);
        Some(Self { state: state.clone(), credentials, replicas: Arc::clone(replicas), quiet_ms })
    }

    /// Settles intents until `stop`. A caller that loses the lead drops the call.
    pub async fn run(&self, mandate: &Mandate, stop: &CancellationToken) {
        let looks = Mutex::<Looks>::default();
        let what = "Settles writes through /credentials whose end is not known";
        let task = TaskSpec::<()>::new("intents of writes to Clouddriver", what).every(READ_INTERVAL);
        let task = task.at_start().without_deadline();
        let task = task.log_failure(|error| warn!(error, "cannot read the intents of writes to Clouddriver"));
        let settle = |_: Vec<()>| async {
            if !mandate.holds() {
                return AttemptOutcome::Unchanged;
            }
            match self.state.store.intents().await {
                Ok(rows) => {
                    self.settle_all(mandate, rows, &looks).await;
                    AttemptOutcome::Done
                }
                Err(error) => AttemptOutcome::failed(chain(&error)),
            }
        };
        self.state.tasks.drive(task, stop, settle).await;
        self.show(&[], &looks);
    }

    async fn settle_all(&self, mandate: &Mandate, mut rows: Vec<IntentRow>, looks: &Mutex<Looks>) {
        rows.retain(|row| self.is_left(row));
        self.show(&rows, looks);
        let now = Instant::now();
        {
            let known = &mut looks.lock().intents;
            let open: HashSet<(&str, i64)> =
                rows.iter().map(|row| (row.name.as_str(), row.started_at)).collect();
            known.retain(|(name, started_at), _| open.contains(&(name.as_str(), *started_at)));
            rows.retain(|row| {
                let look = known.entry((row.name.clone(), row.started_at)).or_default();
                look.next.is_none_or(|next| next <= now)
            });
        }
        if rows.is_empty() || !self.state.accounts.is_synced() {
            return;
        }
        let sources = self.state.source_accounts.sources.read_now(SOURCES_TIMEOUT).await;
        let (list, is_over) = (OnceCell::new(), AtomicBool::new(false));
        let round = Round { mandate, sources, began: now, list, is_over };
        for row in rows {
            if round.is_over.load(Ordering::Relaxed) || !round.is_current() {
                break;
            }
            let key = (row.name.clone(), row.started_at);
            let mut look = looks.lock().intents.get(&key).copied().unwrap_or_default();
            if Box::pin(self.settle(&row, &round, &mut look)).await {
                looks.lock().intents.remove(&key);
                continue;
            }
            let delay = LOOK_DELAYS[0].saturating_mul(1 << look.count.min(8)).min(LOOK_DELAYS[1]);
            look.count += 1;
            look.next = Some(Instant::now() + delay);
            looks.lock().intents.insert(key, look);
        }
    }

    /// Whether the replica of an intent is no longer at it.
    fn is_left(&self, row: &IntentRow) -> bool {
        let replica = ReplicaId::from(row.replica_id.as_str());
        let own = replica == *self.replicas.id();
        let under_way = self.credentials.under_way.lock().contains(&(row.name.clone(), row.started_at));
        row.tries > 0
            || (own && !under_way)
            || (!own && self.replicas.is_alive(&replica) == Fact::Known(false))
            || age_ms(row) > MAX_UNDER_WAY_MS
    }

    /// Publishes how many intents there are, and warns of old ones.
    fn show(&self, rows: &[IntentRow], looks: &Mutex<Looks>) {
        let oldest = rows.iter().max_by_key(|row| age_ms(row));
        let age = oldest.map_or(0, age_ms).max(0);
        self.credentials.metrics.intents.set(i64::try_from(rows.len()).unwrap_or(i64::MAX));
        self.credentials.metrics.oldest.set(age / 1000);
        let Some(oldest) = oldest.filter(|_| age > OLD_MS) else { return };
        let mut looks = looks.lock();
        if looks.warned.is_none_or(|warned| warned.elapsed() > WARNING_INTERVAL) {
            looks.warned = Some(Instant::now());
            let (account, hours) = (&oldest.name, age / 3_600_000);
            warn!(
                account,
                hours,
                "a write of an account of Clouddriver cannot be settled: check the credentials sources and Clouddriver"
            );
        }
    }

    /// Lets the account follow what Clouddriver has. Returns whether the intent is settled.
    async fn settle(&self, row: &IntentRow, round: &Round<'_>, look: &mut Look) -> bool {
        let Some(verb) = WriteVerb::parse(&row.verb) else {
            warn!(account = row.name, verb = row.verb, "an intent has no such verb, and is dropped");
            return self.end(row).await;
        };
        let followed = match self.seen(row, verb, round, look).await {
            Seen::NotYet(why) => Followed::Pending(why),
            Seen::Known(presence, definition) => {
                let found = row.found_account();
                let can_come =
                    !is_carried_out(verb, presence, found) && !self.is_quiet(row, round, look).await;
                if can_come && verb != WriteVerb::Put {
                    Followed::Pending("the write may still be carried out".to_owned())
                } else if !round.is_current() {
                    Followed::Pending("what was read of Clouddriver is old by now".to_owned())
                } else {
                    let source = definition.as_ref().map_or("Clouddriver", |(_, source)| *source);
                    let written = WrittenAccount {
                        intent: row,
                        verb,
                        was_there: found,
                        source,
                        definition: definition.as_ref().map(|(definition, _)| definition.clone()),
                    };
                    let followed = self.state.follow(presence, &written).await;
                    match followed {
                        Followed::Pending(why) => Followed::Pending(why),
                        _ if can_come => Followed::Pending("the write may still be carried out".to_owned()),
                        followed => followed,
                    }
                }
            }
        };
        if let Followed::Pending(why) = &followed {
            if look.count == 0 {
                info!(
                    account = row.name,
                    verb = row.verb,
                    why,
                    "a write of an account of Clouddriver is not settled yet"
                );
            }
            // Tells how often, and that its replica is no longer at it.
            if let Err(error) = self.state.store.count_intent_tries(std::slice::from_ref(row)).await {
                warn!(account = row.name, error = %chain(&error), "cannot count a look at an intent");
            }
            return false;
        }
        self.credentials.metrics.results.get_or_create(&[("result", followed.word())]).inc();
        if let Some(verb) = followed.right() {
            // Who wrote is in the line of the call, by the account.
            self.state.callers.audit.write(&AuditLine {
                account: &row.name,
                verb,
                resource: &AccessResource::Accounts.name(),
                reason: "it followed a write of Clouddriver's account whose answer was lost",
                ..AuditLine::new(AuditEvent::Write, "")
            });
        }
        info!(account = row.name, verb = row.verb, %followed, "a write of an account of Clouddriver is settled");
        self.end(row).await
    }

    async fn end(&self, row: &IntentRow) -> bool {
        let ending = self.state.store.end_intents(std::slice::from_ref(row));
        match crash_points::around(Some("intent-end"), ending).await {
            Ok(()) => true,
            Err(error) => {
                warn!(account = row.name, error = %chain(&error), "cannot end an intent; retrying");
                false
            }
        }
    }

    /// Whether a write that a look since `began` has not seen can come no more.
    async fn is_quiet(&self, row: &IntentRow, round: &Round<'_>, look: &mut Look) -> bool {
        let age = age_ms(row);
        if age <= self.quiet_ms {
            return false;
        }
        if look.answered.is_none()
            && let Ok((at, _)) = self.list(round).await
            && age_ms(row) - millis(at.elapsed()) > self.quiet_ms
        {
            look.answered = Some(*at);
        }
        let wait = self.credentials.ports.poll.max(READ_INTERVAL);
        age > MAX_SILENCE_MS || look.answered.is_some_and(|answered| round.began >= answered + wait)
    }

    fn is_table(&self, source: &str) -> bool {
        self.state.source_accounts.sources.is_table(source)
    }

    /// Clouddriver's list of accounts, the same for all of a round.
    async fn list<'r>(&self, round: &'r Round<'_>) -> &'r Result<(Instant, HashSet<String>), String> {
        let read = async || {
            let listed = self.credentials.ports.accounts.loaded().await;
            listed.map(|names| (Instant::now(), names)).map_err(|failure| failure.message)
        };
        round.list.get_or_init(read).await
    }

    /// What Clouddriver has, from the sources; or, if those cannot tell, from two of its lists, a poll apart.
    async fn seen<'s>(
        &self,
        row: &IntentRow,
        verb: WriteVerb,
        round: &'s Round<'_>,
        look: &mut Look,
    ) -> Seen<'s> {
        let (name, sources) = (&row.name, &round.sources);
        if !sources.snapshots().is_empty() {
            match sources.lookup(name) {
                NameLookup::Found(entry) => {
                    return Seen::Known(
                        AccountPresence::Present,
                        Some((entry.definition.clone(), &*entry.source)),
                    );
                }
                NameLookup::Broken { .. } => return Seen::Known(AccountPresence::Present, None),
                // Other sources lack what is written at `/credentials`, whether Clouddriver has it or not.
                NameLookup::Absent if sources.snapshots().iter().any(|read| self.is_table(&read.source)) => {
                    return Seen::Known(AccountPresence::Absent, None);
                }
                NameLookup::Absent | NameLookup::Unknown { .. } => {}
            }
        }
        let (now, listed) = match self.list(round).await {
            Ok((at, names)) if names.contains(name) => (*at, AccountPresence::Present),
            Ok((at, _)) => (*at, AccountPresence::Absent),
            Err(why) => return Seen::NotYet(why.clone()),
        };
        match look.listed {
            Some((at, before)) if before == listed => {
                if now - at < self.credentials.ports.poll {
                    return Seen::NotYet("one list of Clouddriver's accounts was read".to_owned());
                }
            }
            _ => {
                look.listed = Some((now, listed));
                return Seen::NotYet("no two lists of Clouddriver's accounts agree yet".to_owned());
            }
        }
        if listed == AccountPresence::Absent || verb == WriteVerb::Delete {
            return Seen::Known(listed, None);
        }
        // Only Clouddriver itself has the definition.
        match self.credentials.ports.accounts.stored(name).await {
            Ok(Some(StoredAccount::Definition(definition))) => {
                Seen::Known(listed, Some((definition, "Clouddriver")))
            }
            Err(failure) if failure.kind == FailureKind::Unreachable => {
                round.is_over.store(true, Ordering::Relaxed);
                Seen::NotYet(failure.message)
            }
            Ok(_) | Err(_) => Seen::Known(listed, None),
        }
    }
}

/// Age of an intent in milliseconds, by the clocks of two replicas.
fn age_ms(row: &IntentRow) -> i64 {
    Timestamp::now().as_millisecond() - row.started_at
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}
