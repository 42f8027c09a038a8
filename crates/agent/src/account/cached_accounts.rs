//! The accounts whose objects are streamed: starts and stops what runs for each, as the table of accounts says.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument as _;

use crate::account::cached_account::{AccountInput, AccountState, CachedAccount};
use crate::account_table::{self, AccountTable};
use crate::accounts::Activators;
use crate::caching::{SharedStream, StreamNotice};
use crate::scrub::{BodyEncoder, BodyLimits, CompressorError};
use crate::watch::{ListBudget, ReaderContext, ScopeTiming};
use kubesvc_core::wire::MAX_MESSAGE_BYTES;
use kubesvc_core::wire::common::Fence;
use kubesvc_runtime::shutdown::spawn_named;

/// Lists that run at once in the agent, and in each account.
const LISTS_AT_ONCE: (usize, usize) = (16, 4);
/// Maximum number of inputs that wait for an account, which never waits for anything else while it takes them.
const MAX_WAITING_INPUTS: usize = 64;

/// Runs the accounts whose objects are streamed.
#[derive(Debug)]
pub struct CachedAccounts {
    table: Arc<Mutex<AccountTable>>,
    /// Notified when the table may say something else.
    wake: Arc<Notify>,
    activators: Activators,
    shared: Arc<SharedStream>,
    notices: mpsc::Receiver<StreamNotice>,
    context: ReaderContext,
    running: HashMap<String, RunningAccount>,
}

#[derive(Debug)]
struct RunningAccount {
    fence: Fence,
    account: account_table::CachedAccount,
    inputs: mpsc::Sender<AccountInput>,
    _task: AbortOnDropHandle<()>,
}

impl CachedAccounts {
    /// Runs the accounts that `table` names; `notices` come from the driver of the stream.
    ///
    /// # Errors
    ///
    /// [`CompressorError`] if there is no memory.
    pub fn new(
        (table, wake): (Arc<Mutex<AccountTable>>, Arc<Notify>),
        activators: Activators,
        (shared, notices): (Arc<SharedStream>, mpsc::Receiver<StreamNotice>),
    ) -> Result<Self, CompressorError> {
        let encoder = BodyEncoder::new(BodyLimits::for_messages(MAX_MESSAGE_BYTES, true))?;
        let (in_agent, in_account) = LISTS_AT_ONCE;
        let context = ReaderContext {
            encoder: Arc::new(Mutex::new(encoder)),
            budget: ListBudget::new(in_agent, in_account),
        };
        Ok(Self { table, wake, activators, shared, notices, context, running: HashMap::new() })
    }

    /// Runs the accounts, for ever.
    pub async fn run(mut self) {
        loop {
            self.reconcile().await;
            tokio::select! {
                () = self.wake.notified() => {}
                notice = self.notices.recv() => match notice {
                    Some(notice) => self.take(notice).await,
                    // The driver is gone: the agent is stopping, and ends this task too.
                    None => return std::future::pending().await,
                },
            }
        }
    }

    async fn take(&mut self, notice: StreamNotice) {
        match notice {
            StreamNotice::Command(command) => {
                if let Some(running) = self.running.get(&command.account_uid) {
                    // Fails if it has ended, and is removed then.
                    let _ = running.inputs.send(AccountInput::Command(command.command)).await;
                }
            }
            StreamNotice::Revoked(fence) => self.table.lock().revoke_caching(&fence),
        }
    }

    /// Starts, changes and stops accounts.
    async fn reconcile(&mut self) {
        let wanted = self.table.lock().cached();
        let mut wanted: HashMap<_, _> =
            wanted.into_iter().map(|account| (account.account.uid.clone(), account)).collect();
        let ended: Vec<_> = self
            .running
            .iter()
            .filter(|(uid, running)| {
                wanted.get(*uid).is_none_or(|account| account.epoch != running.fence.caching_epoch)
            })
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in ended {
            if let Some(running) = self.running.remove(&uid) {
                self.shared.change(|stream, now| stream.unassign(&running.fence, now));
            }
        }
        for (uid, account) in wanted.drain() {
            match self.running.get_mut(&uid) {
                None => self.start(account),
                Some(running) if is_changed(&running.account, &account) => {
                    running.account = account.clone();
                    let _ = running.inputs.send(AccountInput::Changed(account)).await;
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
        let (inputs, receiver) = mpsc::channel(MAX_WAITING_INPUTS);
        let (_, in_account) = LISTS_AT_ONCE;
        let cached = CachedAccount {
            account: account.clone(),
            activator: (activator, origin),
            shared: Arc::clone(&self.shared),
            context: ReaderContext {
                budget: self.context.budget.for_account(in_account),
                ..self.context.clone()
            },
            inputs: receiver,
            state: AccountState::default(),
        };
        let span = tracing::info_span!("caching", account = %name, uid = %uid, epoch = account.epoch);
        tracing::info!(parent: &span, "streaming the objects of the account");
        let task = spawn_named("cached account", cached.run().instrument(span));
        self.running.insert(uid, RunningAccount { fence, account, inputs, _task: task });
    }
}

/// Whether what runs for an account must be told of another definition, or of other rules.
fn is_changed(before: &account_table::CachedAccount, now: &account_table::CachedAccount) -> bool {
    !Arc::ptr_eq(&before.definition, &now.definition)
        || before.rules != now.rules
        || before.cluster_uid != now.cluster_uid
}
