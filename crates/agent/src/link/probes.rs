//! The probes of one stream, with limits on running and waiting ones. No probe outlives its stream.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, Id, JoinSet};
use tracing::Instrument as _;

use crate::activation::DefinitionOrigin;
use crate::command_executor::CommandExecutor;
use crate::wire_failure::{after_send, before_send};
use kubesvc_core::wire::common::failure::Class;
use kubesvc_core::wire::common::{AccountRef, Failure};
use kubesvc_core::wire::ops::account_spec::Credential;
use kubesvc_core::wire::ops::probe::Target;
use kubesvc_core::wire::ops::{Probe, ProbeResult};

/// Maximum number of probes that run at once.
const MAX_CONCURRENT_PROBES: usize = 16;
/// Maximum number of waiting probes; further ones are refused.
const MAX_WAITING_PROBES: usize = 1000;

/// Running probes, and results that wait to be sent.
#[derive(Debug)]
pub(super) struct Probes {
    permits: Arc<Semaphore>,
    running: JoinSet<Result<(), Failure>>,
    of_task: HashMap<Id, Probe>,
    /// Handles by uid: only the newest probe of an account counts.
    handles: HashMap<String, AbortHandle>,
    answers: VecDeque<ProbeResult>,
}

impl Probes {
    pub(super) fn new() -> Self {
        Self {
            permits: Arc::new(Semaphore::new(MAX_CONCURRENT_PROBES)),
            running: JoinSet::new(),
            of_task: HashMap::new(),
            handles: HashMap::new(),
            answers: VecDeque::new(),
        }
    }

    /// Starts a probe. A probe identical to a running one is answered only once.
    pub(super) fn ask(&mut self, probe: Probe, accounts: &CommandExecutor) {
        let Some(account) = &probe.account else {
            return tracing::warn!("ignored a probe without an account from the hub");
        };
        if let Some(handle) = self.handles.get(&account.uid) {
            if self.of_task.get(&handle.id()) == Some(&probe) {
                return;
            }
            handle.abort();
        }
        match self.objection(&probe, accounts) {
            Err(failure) => self.answer(probe, Err(failure), accounts),
            Ok((target, origin)) => {
                let own = accounts.activators().own.current();
                let context = own.find(&account.name).filter(|_| origin == DefinitionOrigin::OwnFile);
                let context = context.map(|own| own.context.clone()).filter(|context| !context.is_empty());
                let (activator, permits, uid) = (
                    accounts.activators().activator(&account.name, origin),
                    self.permits.clone(),
                    account.uid.clone(),
                );
                let span = tracing::info_span!("probe", account = %account.name, uid = %account.uid);
                let probing = async move {
                    let Ok(_permit) = permits.acquire().await else {
                        return Err(after_send(Class::Internal, "the agent is stopping"));
                    };
                    activator.probe(&target, context.as_deref(), origin).await
                };
                let handle = self.running.spawn(probing.instrument(span));
                self.of_task.insert(handle.id(), probe);
                self.handles.insert(uid, handle);
            }
        }
    }

    /// Returns the target of a probe and the origin of its definition, or the reason why it is refused.
    fn objection(
        &self,
        probe: &Probe,
        accounts: &CommandExecutor,
    ) -> Result<(Target, DefinitionOrigin), Failure> {
        let name = probe.account.as_ref().map(|account| account.name.as_str()).unwrap_or_default();
        let Some(target) = probe.target.clone() else {
            let why = "the probe asks for something that this version of the agent does not know";
            return Err(before_send(Class::Unimplemented, why));
        };
        let credential = match &target {
            Target::Cluster(_) => None,
            Target::File(path) => Some(Credential::File(path.clone())),
            Target::ServiceAccount(yes) => Some(Credential::ServiceAccount(*yes)),
        };
        if let Some(failure) = accounts.objection(name, credential.as_ref()) {
            return Err(failure);
        }
        if self.running.len() >= MAX_CONCURRENT_PROBES + MAX_WAITING_PROBES {
            let why = format!("the agent is busy: {MAX_WAITING_PROBES} probes wait already");
            return Err(Failure { retryable: true, ..before_send(Class::Unreachable, why) });
        }
        let origin = accounts.activators().origin(name, credential.as_ref());
        Ok((target, origin))
    }

    /// Waits until a probe ends; the result goes to [`Probes::take`]. Pending while no probe is running.
    pub(super) async fn ended(&mut self) -> (Id, Result<(), Failure>) {
        loop {
            match self.running.join_next_with_id().await {
                None => std::future::pending().await,
                Some(Ok(ended)) => return ended,
                Some(Err(error)) if error.is_cancelled() => {
                    self.of_task.remove(&error.id());
                }
                Some(Err(error)) => {
                    let why = "the agent failed while it probed the cluster; see the agent's log";
                    return (error.id(), Err(after_send(Class::Internal, why)));
                }
            }
        }
    }

    /// Processes the end of a probe.
    pub(super) fn take(&mut self, task: Id, result: Result<(), Failure>, accounts: &CommandExecutor) {
        let Some(probe) = self.of_task.remove(&task) else { return };
        let uid = probe.account.as_ref().map(|account| account.uid.as_str()).unwrap_or_default();
        // An older probe of the account that ended before it was cancelled; its result does not count.
        if self.handles.get(uid).is_none_or(|handle| handle.id() != task) {
            return;
        }
        self.handles.remove(uid);
        self.answer(probe, result, accounts);
    }

    fn answer(&mut self, probe: Probe, result: Result<(), Failure>, accounts: &CommandExecutor) {
        accounts.metrics().probed(&result);
        let AccountRef { name, .. } = probe.account.clone().unwrap_or_default();
        match &result {
            Ok(()) => tracing::debug!(account = %name, "the account's cluster is reachable"),
            Err(failure) => tracing::debug!(
                account = %name,
                class = %failure.class().as_str_name(),
                "the account's cluster is unreachable: {}",
                failure.message
            ),
        }
        let (ok, failure) = (result.is_ok(), result.err());
        self.answers.push_back(ProbeResult { account: probe.account, ok, failure });
    }

    /// Number of results that wait to be sent.
    pub(super) fn waiting_answers(&self) -> usize {
        self.answers.len()
    }

    /// The next result to send.
    pub(super) fn next_answer(&mut self) -> Option<ProbeResult> {
        self.answers.pop_front()
    }
}
