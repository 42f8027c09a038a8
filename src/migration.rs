//! Runs migrations: takes accounts over from Clouddriver's credentials sources, in waves. Only the leader does; the next
//! write of each migration is decided in [`kubesvc_clouddriver::migration`].
//!
//! | module | owns |
//! |---|---|
//! | `facts` | what is known of the accounts |
//! | `running` | one migration: its spec, plan and progress |
//! | `watch` | the KubesvcMigrations of the operator's namespace |
//! | `writes` | carries out an action, one write for each account |
//!
//! Nothing but the objects remembers what was done: an account carries the name of its migration and a digest of the spec
//! that the migration wrote. A leader that dies between two writes leaves whole accounts, and the next one goes on.

mod facts;
mod metrics;
mod running;
mod watch;
mod writes;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::connected_agents::LeaderClock;
use crate::informers::{AccountIndex, AccountKey};
use crate::leases::Mandate;
use crate::source_accounts::{ReadDeclined, SourceAccounts};
use facts::FactIndex;
use kubesvc_clouddriver::migration::{MigrationRules, MigrationSelection, SelectionError, scanner_rules};
use kubesvc_core::KubesvcMigration;
use kubesvc_core::lifecycle::Tick;
use kubesvc_runtime::background_tasks::{AttemptOutcome, TaskRegistry, TaskSpec};
use kubesvc_runtime::kube_access::{KubeAccess, KubeError, KubeObjects};
use kubesvc_runtime::telemetry::errors::chain;
use kubesvc_runtime::work_queue::WorkQueue;
pub use metrics::MigrationMetrics;
use running::{MigrationOrigin, RunningMigration};

/// Name of the migration that the documented settings describe. No object can have it.
const SCANNER: &str = "settings/scanner";
/// Maximum number of actions of one migration before the others get their turn.
const MAX_ACTIONS: usize = 8;
/// Maximum number of accounts whose Secrets are looked for in one round.
const MAX_LOOKED_FOR: usize = 32;
/// Maximum number of accounts let go in one round whose migrations do not exist any more.
const MAX_RELEASED: usize = 64;
/// Time, in ticks, for the list of migrations. If it may not be read, deletions do not wait for ever.
const MAX_LIST_WAIT: Tick = 60;
/// Interval, in ticks, between two looks at those Secrets and at the declined accounts, which people may edit.
const LOOK_INTERVAL: Tick = 30;

/// What the documented settings take over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScannerSettings {
    /// `namePatterns`: of sources of type `sql`.
    pub sql_patterns: Vec<String>,
    /// `credentialScanNamePatterns`: of all other sources.
    pub other_patterns: Vec<String>,
    /// Names of the sources of type `sql`.
    pub sql_sources: Vec<String>,
    /// Accounts taken over at once.
    pub batch_size: usize,
    /// Interval between two scans.
    pub interval: Duration,
}

/// What migrations work with.
#[derive(Clone)]
pub struct MigrationPorts {
    /// Access to the operator's own API server.
    pub kube: KubeAccess,
    /// Namespace of the operator, in which migrations take effect.
    pub namespace: String,
    /// Index of the accounts as last seen.
    pub accounts: Arc<AccountIndex>,
    /// Accounts that the sources describe.
    pub source_accounts: Arc<SourceAccounts>,
    /// The leader's clock.
    pub ticks: Arc<LeaderClock>,
    /// Registry of the leader's tasks.
    pub tasks: TaskRegistry,
    /// Metrics.
    pub metrics: MigrationMetrics,
}

/// Runs migrations while this replica leads.
pub struct Migrator {
    scanner: Option<Scanner>,
    ports: MigrationPorts,
}

/// The migration of the documented settings.
#[derive(Clone)]
struct Scanner {
    selection: MigrationSelection,
    rules: MigrationRules,
    interval: Tick,
}

/// The migrations of one leadership.
struct LeaderMigrations<'m> {
    ports: &'m MigrationPorts,
    objects: KubeObjects<KubesvcMigration>,
    mandate: Mandate,
    changed: Arc<WorkQueue<AccountKey>>,
    /// When it began.
    began: Tick,
    /// Whether all objects were listed.
    is_listed: AtomicBool,
    /// The objects by name, as last seen.
    seen: Mutex<BTreeMap<String, Arc<KubesvcMigration>>>,
    state: tokio::sync::Mutex<LeaderState>,
}

/// What the task of a leadership knows.
#[derive(Default)]
struct LeaderState {
    facts: FactIndex,
    migrations: BTreeMap<MigrationOrigin, RunningMigration>,
    declined: Option<ReadDeclined>,
    /// When Secrets of accounts and declined accounts were last looked for.
    looked_at: Tick,
}

impl Migrator {
    /// A migrator that does nothing until it is run.
    ///
    /// # Errors
    /// A pattern of the settings does not compile.
    pub fn new(scanner: Option<&ScannerSettings>, ports: MigrationPorts) -> Result<Self, SelectionError> {
        let scanner = match scanner {
            Some(settings) => {
                let is_sql = |name: &&str| settings.sql_sources.iter().any(|sql| sql == name);
                let (sql, other) = ports.source_accounts.sources.names().partition::<Vec<&str>, _>(is_sql);
                let own = |names: Vec<&str>| names.into_iter().map(str::to_owned).collect();
                let lists = [
                    ("kubesvc.dynamicAccounts.namePatterns", &*settings.sql_patterns, own(sql)),
                    (
                        "kubesvc.dynamicAccounts.credentialScanNamePatterns",
                        &*settings.other_patterns,
                        own(other),
                    ),
                ];
                Some(Scanner {
                    selection: MigrationSelection::of_settings(&lists)?,
                    rules: scanner_rules(settings.batch_size),
                    interval: settings.interval.as_secs().max(1),
                })
            }
            None => None,
        };
        Ok(Self { scanner, ports })
    }

    /// Runs migrations until `stop`. A caller that loses the lead drops the call.
    pub async fn run(&self, mandate: &Mandate, stop: &CancellationToken) {
        let ports = &self.ports;
        if stop.run_until_cancelled(ports.accounts.synced()).await.is_none() {
            return;
        }
        let term = LeaderMigrations {
            ports,
            objects: ports.kube.namespaced(&ports.namespace),
            mandate: mandate.clone(),
            changed: ports.accounts.follow(),
            began: ports.ticks.now(),
            is_listed: AtomicBool::new(false),
            seen: Mutex::default(),
            state: tokio::sync::Mutex::default(),
        };
        if let Some(scanner) = &self.scanner {
            let running = RunningMigration::of_settings(SCANNER, scanner, &ports.source_accounts);
            term.state.lock().await.migrations.insert(MigrationOrigin::Settings, running);
        }
        tokio::join!(term.watch(stop), term.work(stop));
    }
}

impl LeaderMigrations<'_> {
    /// Decides and acts once a second, and at once while there is something to do.
    async fn work(&self, stop: &CancellationToken) {
        // Sources are read while a migration needs them.
        let mut needed = None;
        let task = TaskSpec::new("migrations", "Takes accounts over from Clouddriver's credentials sources");
        // Each request has a time limit.
        let task = task.every(Duration::from_secs(1)).at_start().without_deadline();
        let task = task.log_failure(|error| warn!(error, "cannot go on with a migration; retrying"));
        let needs = Mutex::new(&mut needed);
        let round = |_: Vec<()>| async {
            let mut state = self.state.lock().await;
            self.take_objects(&mut state);
            state.facts.take(&self.ports.accounts, &self.changed);
            if let Err(error) = self.release_others(&mut state).await {
                return AttemptOutcome::failed(chain(&error));
            }
            if state.migrations.is_empty() {
                **needs.lock() = None;
                return AttemptOutcome::Unchanged;
            }
            needs.lock().get_or_insert_with(|| self.ports.source_accounts.sources.need());
            match self.round(&mut state).await {
                Ok(()) => AttemptOutcome::Done,
                Err(error) => AttemptOutcome::failed(chain(&error)),
            }
        };
        self.ports.tasks.drive(task, stop, round).await;
    }

    /// Takes in which migrations there are.
    fn take_objects(&self, state: &mut LeaderState) {
        let (seen, accounts) = (self.seen.lock(), &self.ports.source_accounts);
        state.migrations.retain(|origin, _| match origin {
            MigrationOrigin::Settings => true,
            MigrationOrigin::Object(name) => seen.contains_key(name),
        });
        for (name, object) in seen.iter() {
            let origin = MigrationOrigin::Object(name.clone());
            let running = state
                .migrations
                .entry(origin)
                .or_insert_with(|| RunningMigration::of_object(name, object, accounts));
            running.take_object(object, accounts);
        }
    }

    /// Lets accounts go that are being deleted and whose migrations do not exist any more.
    async fn release_others(&self, state: &mut LeaderState) -> Result<(), KubeError> {
        let is_late = self.ports.ticks.now() >= self.began + MAX_LIST_WAIT;
        if !self.mandate.holds() || !(self.is_listed.load(Ordering::Relaxed) || is_late) {
            return Ok(());
        }
        let LeaderState { facts, migrations, .. } = state;
        let runs = |name: &str| migrations.values().any(|running| running.name() == name);
        let names = facts.held_by_others(runs, MAX_RELEASED);
        self.release(&names).await
    }

    /// Lets each migration make some steps.
    async fn round(&self, state: &mut LeaderState) -> Result<(), KubeError> {
        let LeaderState { facts, migrations, declined, looked_at } = state;
        let now = self.ports.ticks.now();
        if declined.is_none() {
            *declined = Some(self.ports.source_accounts.declined.read().await?);
        }
        let Some(declined) = declined else { return Ok(()) };
        if now >= *looked_at + LOOK_INTERVAL {
            *looked_at = now;
            *declined = self.ports.source_accounts.declined.read().await?;
            self.look_for_secrets(facts).await?;
        }
        let mut failed = None;
        for running in migrations.values_mut() {
            if let Err(error) = self.advance(running, facts, declined).await {
                failed = failed.or(Some(error));
            }
            self.ports.metrics.show(running.name(), running.status());
        }
        self.ports.metrics.keep(migrations.values().map(RunningMigration::name));
        failed.map_or(Ok(()), Err)
    }

    /// Lets one migration make some steps.
    async fn advance(
        &self,
        running: &mut RunningMigration,
        facts: &mut FactIndex,
        declined: &mut ReadDeclined,
    ) -> Result<(), KubeError> {
        for _ in 0..MAX_ACTIONS {
            facts.take(&self.ports.accounts, &self.changed);
            let now = self.ports.ticks.now();
            running.take_sources(&self.ports.source_accounts, declined, facts, now).await;
            let Some(action) = running.decide(facts, declined, self.ports.ticks.now()) else { break };
            if !self.mandate.holds() || !self.act(running, facts, declined, action).await? {
                break;
            }
        }
        Ok(())
    }

    /// Whether an object of a migration still has the spec that was decided by.
    fn is_current(&self, running: &RunningMigration) -> bool {
        match running.object() {
            None => true,
            Some(object) => {
                let seen = self.seen.lock();
                let now = seen.get(running.name());
                now.is_some_and(|now| now.metadata.generation == object.metadata.generation)
            }
        }
    }
}
