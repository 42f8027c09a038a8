//! Starts and stops the readers of the accounts whose objects are streamed, as the table of accounts says.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures::SinkExt as _;
use futures::channel::mpsc as account_inputs;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use tokio_util::task::{AbortOnDropHandle, TaskTracker};
use tracing::Instrument as _;

use crate::account_runtimes::scope_readers::{AccountState, ReadersInput, ScopeReaders};
use crate::account_runtimes::start_groups::StartGroups;
use crate::account_table::{self, AccountTable};
use crate::activation::Definition;
use crate::caching::{SharedStream, StreamNotice};
use crate::command_executor::Activators;
use crate::metrics::CachedObjectMetrics;
use crate::scrub::{BodyEncoder, BodyLimits, CompressorError};
use crate::settings::{ListBudgets, ReadingSettings};
use crate::watch::{LargePieces, ListBudget, ReaderContext, ScopeTiming};
use crate::watch_registry::WatchRegistry;
use kubesvc_core::wire::MAX_MESSAGE_BYTES;
use kubesvc_core::wire::common::{Failure, Fence};
use kubesvc_runtime::shutdown::spawn_named;
use kubesvc_runtime::waits::at;

/// Maximum number of inputs that wait for an account, which never waits for anything else while it takes them.
const MAX_WAITING_INPUTS: usize = 64;

/// Runs the accounts whose objects are streamed.
#[derive(Debug)]
pub struct CachingSupervisor {
    table: Arc<Mutex<AccountTable>>,
    /// Notified when the table may say something else.
    wake: Arc<Notify>,
    activators: Activators,
    shared: Arc<SharedStream>,
    notices: mpsc::Receiver<StreamNotice>,
    context: ReaderContext,
    lists_per_account: usize,
    groups: StartGroups,
    /// When an account that waits for others, or for its group, may start.
    next_group: Option<Instant>,
    parts: ReadingParts,
    running: HashMap<String, RunningAccount>,
}

/// What those who read accounts tell others.
#[derive(Clone, Debug)]
pub struct ReadingParts {
    /// What reads each account.
    pub readers: ReaderTrackers,
    /// Accounts that cannot be held any longer.
    pub losses: mpsc::Sender<LostAccount>,
    /// Accounts whose credential the cluster refuses.
    pub credentials: CredentialVerdicts,
    pub watches: WatchRegistry,
    pub metrics: CachedObjectMetrics,
}

#[derive(Debug)]
struct RunningAccount {
    fence: Fence,
    account: account_table::CachedAccount,
    inputs: account_inputs::Sender<ReadersInput>,
    /// Nothing of it is read any more, until its definition is another one.
    is_lost: Arc<AtomicBool>,
    _task: AbortOnDropHandle<()>,
}

impl CachingSupervisor {
    /// Runs the accounts that `table` names; `notices` come from the driver of the stream.
    pub fn new(
        (table, wake): (Arc<Mutex<AccountTable>>, Arc<Notify>),
        activators: Activators,
        (shared, notices): (Arc<SharedStream>, mpsc::Receiver<StreamNotice>),
        (ReadingSettings { group_size, group_delay }, budgets, parts): (
            ReadingSettings,
            ListBudgets,
            ReadingParts,
        ),
    ) -> Result<Self, CompressorError> {
        let encoder = BodyEncoder::new(BodyLimits::for_messages(MAX_MESSAGE_BYTES, true))?;
        let ListBudgets { lists, lists_per_account } = budgets;
        let context = ReaderContext {
            encoder: Arc::new(Mutex::new(encoder)),
            budget: ListBudget::new(lists, lists_per_account),
            large_pieces: LargePieces::default(),
        };
        Ok(Self {
            table,
            wake,
            activators,
            shared,
            notices,
            context,
            lists_per_account,
            groups: StartGroups::new(group_size, group_delay),
            next_group: None,
            parts,
            running: HashMap::new(),
        })
    }

    /// Runs the accounts, for ever.
    pub async fn run(mut self) {
        let mut must_reconcile = true;
        loop {
            if must_reconcile {
                self.reconcile().await;
            }
            must_reconcile = tokio::select! {
                () = self.wake.notified() => true,
                () = at(self.next_group) => true,
                notice = self.notices.recv() => match notice {
                    Some(notice) => self.take(notice).await,
                    // The driver is gone: the agent is stopping, and ends this task too.
                    None => return std::future::pending().await,
                },
            };
        }
    }

    /// Passes a notice on. Returns whether the table says something else since. Commands are many: an account has some for
    /// each kind, and to compare all accounts with the table for each would be their square.
    async fn take(&mut self, notice: StreamNotice) -> bool {
        match notice {
            StreamNotice::Command(command) => {
                if let Some(running) = self.running.get_mut(&command.account_uid) {
                    // Fails if it has ended, and is removed then.
                    let _ = running.inputs.send(ReadersInput::Command(command.command)).await;
                }
                false
            }
            StreamNotice::Revoked(fence) => {
                self.table.lock().revoke_caching(&fence);
                true
            }
        }
    }

    /// Starts, changes and stops accounts.
    async fn reconcile(&mut self) {
        let (wanted, counts) = {
            let table = self.table.lock();
            (table.cached(), table.counts())
        };
        let now = tokio::time::Instant::now().into_std();
        self.groups.activating(now, counts.starting > 0);
        let mut wanted: HashMap<_, _> =
            wanted.into_iter().map(|account| (account.account.uid.clone(), account)).collect();
        let ended: Vec<_> = self
            .running
            .iter()
            .filter(|(uid, running)| {
                wanted.get(*uid).is_none_or(|account| {
                    let starts_anew =
                        running.is_lost.load(Ordering::Relaxed) && is_changed(&running.account, account);
                    account.epoch != running.fence.caching_epoch || starts_anew
                })
            })
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in ended {
            if let Some(running) = self.running.remove(&uid) {
                self.shared.change(|stream, now| stream.unassign(&running.fence, now));
            }
        }
        self.next_group = None;
        for (uid, account) in wanted.drain() {
            match self.running.get_mut(&uid) {
                None => match self.groups.start(now) {
                    Ok(()) => self.start(account),
                    Err(next_group) => self.next_group = Some(next_group),
                },
                Some(running) if is_changed(&running.account, &account) => {
                    running.account = account.clone();
                    let _ = running.inputs.send(ReadersInput::Changed(account)).await;
                }
                Some(_) => {}
            }
        }
    }

    fn start(&mut self, account: account_table::CachedAccount) {
        let uid = account.account.uid.clone();
        let fence = Fence { account_uid: uid.clone(), caching_epoch: account.epoch };
        let max_age: Duration = ScopeTiming::from(&*account.rules).max_resumable_age;
        self.shared.change(|stream, now| stream.assign(fence.clone(), max_age, now));
        let name = &account.account.name;
        let origin = self.activators.origin(name, account.definition.spec().credential.as_ref());
        let activator = self.activators.activator(name, origin);
        let (inputs, receiver) = account_inputs::channel(MAX_WAITING_INPUTS);
        let (tracker, is_lost) = (self.parts.readers.tracker(&uid), Arc::new(AtomicBool::new(false)));
        let cached = ScopeReaders {
            account: account.clone(),
            activator: (activator, origin),
            shared: Arc::clone(&self.shared),
            context: ReaderContext {
                budget: self.context.budget.for_account(self.lists_per_account),
                ..self.context.clone()
            },
            inputs: receiver,
            parts: self.parts.clone(),
            tracker: tracker.clone(),
            is_lost: Arc::clone(&is_lost),
            state: AccountState::default(),
        };
        let span = tracing::info_span!("caching", account = %name, uid = %uid, epoch = account.epoch);
        tracing::info!(parent: &span, "streaming the objects of the account");
        let reading = tracker.track_future(cached.run().instrument(span));
        let task = spawn_named("cached account", reading);
        self.running.insert(uid, RunningAccount { fence, account, inputs, is_lost, _task: task });
    }
}

/// Whether what runs for an account must be told of another definition or credential, or of other rules.
fn is_changed(before: &account_table::CachedAccount, now: &account_table::CachedAccount) -> bool {
    !Arc::ptr_eq(&before.definition, &now.definition)
        || before.rules != now.rules
        || before.cluster != now.cluster
        || before.files != now.files
}

/// An account that cannot be held any longer.
#[derive(Debug)]
pub struct LostAccount {
    pub uid: String,
    /// The definition with which it failed.
    pub definition: Arc<Definition>,
    pub failure: Failure,
}

/// Writes down in the table whether the cluster of a held account accepts its credential. Clones share it.
#[derive(Clone, Debug)]
pub struct CredentialVerdicts {
    pub table: Arc<Mutex<AccountTable>>,
    /// Notified when the hub is to be told of a verdict.
    pub changed: Arc<Notify>,
}

impl CredentialVerdicts {
    pub(super) fn is_refused(&self, uid: &str) -> bool {
        self.table.lock().is_refused(uid)
    }

    /// Records that the cluster refuses the credential of this definition, and why, or that it accepts it.
    pub(super) fn record(&self, uid: &str, definition: &Arc<Definition>, refused: Option<Failure>) {
        if self.table.lock().judge_credential(uid, definition, refused) {
            self.changed.notify_one();
        }
    }
}

/// Trackers of the readers of all accounts. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct ReaderTrackers {
    /// By uid. A tracker is closed from the beginning, so it has ended as soon as nothing of the account runs.
    running: Arc<Mutex<HashMap<String, TaskTracker>>>,
}

impl ReaderTrackers {
    /// The tracker for all that reads an account from now on.
    pub(crate) fn tracker(&self, uid: &str) -> TaskTracker {
        let mut running = self.running.lock();
        running.retain(|_, tracker| !tracker.is_empty());
        let tracker = running.entry(uid.to_owned()).or_default();
        tracker.close();
        tracker.clone()
    }

    /// Waits until nothing reads the account any more; `None` if nothing does.
    pub fn ended(&self, uid: &str) -> Option<impl Future<Output = ()> + Send + 'static> {
        let tracker = self.running.lock().get(uid).filter(|tracker| !tracker.is_empty()).cloned()?;
        Some(async move { tracker.wait().await })
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::account_table::Effect;
    use crate::activation::{ActivatedAccount, Activator, Definition};
    use crate::static_accounts::StaticAccountFile;
    use kubesvc_core::wire::common::AccountRef;
    use kubesvc_core::wire::ops::{AccountSpec, CachingRules, ClusterIdentity};

    /// Adds an account; returns what ends its activation.
    fn add(table: &Mutex<AccountTable>, uid: &str) -> impl FnOnce(&Mutex<AccountTable>) + use<> {
        let account = AccountRef { uid: uid.to_owned(), name: uid.to_owned(), ..AccountRef::default() };
        let (_, definition) = Definition::split(AccountSpec::default());
        let effects = table.lock().add(account, definition);
        let [Effect::Start { attempt, .. }] = effects[..] else { unreachable!("it is new") };
        let uid = uid.to_owned();
        move |table| {
            let (identity, at) = (ClusterIdentity::default(), Timestamp::UNIX_EPOCH);
            let reached = ActivatedAccount { identity, files: Vec::new(), at };
            table.lock().finished(&uid, attempt, Ok(reached));
        }
    }

    #[tokio::test]
    async fn objects_are_read_once_no_other_account_is_being_activated() {
        let table = Arc::new(Mutex::new(AccountTable::default()));
        let (credentials_changed, (losses, _lost)) = (Arc::new(Notify::new()), mpsc::channel(1));
        let parts = ReadingParts {
            readers: ReaderTrackers::default(),
            losses,
            credentials: CredentialVerdicts { table: Arc::clone(&table), changed: credentials_changed },
            watches: WatchRegistry::default(),
            metrics: CachedObjectMetrics::default(),
        };
        let groups = ReadingSettings { group_size: 0, group_delay: Duration::ZERO };
        let budgets = ListBudgets { lists: 1, lists_per_account: 1 };
        let own = StaticAccountFile::new(Vec::new());
        let activators = Activators { all: Activator::new(Vec::new(), 1), own };
        let (_notices, noticed) = mpsc::channel(1);
        let shared = Arc::new(SharedStream::new(crate::caching::QueueMemory::default()));
        let wake = (Arc::clone(&table), Arc::new(Notify::new()));
        let mut accounts =
            CachingSupervisor::new(wake, activators, (shared, noticed), (groups, budgets, parts))
                .expect("memory");
        let (hold_first, hold_second) = (add(&table, "first"), add(&table, "second"));
        hold_first(&table);
        let fence = Fence { account_uid: "first".to_owned(), caching_epoch: 1 };
        table.lock().cache(&fence, true, Some(CachingRules::default()));
        accounts.reconcile().await;
        assert_eq!((accounts.running.len(), accounts.next_group.is_some()), (0, true));
        hold_second(&table);
        accounts.reconcile().await;
        assert_eq!((accounts.running.len(), accounts.next_group.is_some()), (1, false));
    }
}
