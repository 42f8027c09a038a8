//! Creates and updates the objects of one list, and retries, for as long as session and list last.

use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, stream};
use tokio::sync::mpsc;
use tracing::{info, warn};

use crate::hub::agent_status::summaries;
use crate::hub::sessions::events::SessionEvent;
use crate::hub::sessions::session::Session;
use crate::hub::static_accounts::judge::{ListingDecision, another_lists, is_same_source, judge};
use crate::hub::static_accounts::listing::{ListedEntry, Listing, ValidEntry};
use crate::hub::static_accounts::{LIST_REFUSED, ListProblem, StaticAccounts, refusal};
use kubesvc_core::wire::common::failure::Class;
use kubesvc_core::wire::ops::StaticAnswer;
use kubesvc_core::{KubesvcAccount, KubesvcAgentStatus, not_watched};
use kubesvc_runtime::kube_access::{ErrorClass, KubeError};
use kubesvc_runtime::telemetry::errors::chain;
use kubesvc_runtime::telemetry::outages::warn_unless_away;

/// Maximum number of concurrent writes.
const MAX_CONCURRENT_WRITES: usize = 8;
/// Maximum number of decisions about one object in one pass, after conflicts.
const MAX_CONFLICT_RETRIES: usize = 4;
/// Delays between attempts; the last one repeats.
const RETRY_DELAYS: [Duration; 5] = [
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(5),
    Duration::from_secs(10),
    Duration::from_secs(30),
];
/// Interval between checks of a name that another account has.
const CONFLICT_RETRY_DELAY: Duration = Duration::from_secs(60);

/// Interval between checks of objects that are as listed, and delay of the check after a change: a person may have
/// deleted or changed one.
const RECHECK_INTERVAL: Duration = Duration::from_secs(60);
const CHANGE_RECHECK_DELAY: Duration = Duration::from_secs(2);

/// Result for one account.
enum SyncOutcome {
    /// Its object is as listed.
    Kept,
    /// The API server refuses it permanently.
    Refused(StaticAnswer),
    /// Another account has the name.
    Taken(StaticAnswer),
    Later,
}

/// An account that is not as listed yet.
struct PendingAccount {
    listed: ValidEntry,
    /// The last answer sent to the agent.
    answered: Option<StaticAnswer>,
}

pub(super) struct StaticAccountReconciler {
    parts: Arc<StaticAccounts>,
    session: Arc<Session>,
    answers: mpsc::Sender<StaticAnswer>,
}

impl StaticAccountReconciler {
    pub(crate) fn new(
        parts: Arc<StaticAccounts>,
        session: Arc<Session>,
        answers: mpsc::Sender<StaticAnswer>,
    ) -> Self {
        Self { parts, session, answers }
    }

    /// Runs until another list replaces this one, the session ends, or no account is left.
    pub(crate) async fn run(self, entries: Vec<ListedEntry>) {
        let count = entries.len();
        let (mut open, mut kept, mut refused) = (Vec::new(), Vec::new(), Vec::new());
        for entry in entries {
            match entry {
                Ok(listed) => open.push(PendingAccount { listed, answered: None }),
                Err(answer) => {
                    self.answer(&answer).await;
                    refused.push(answer);
                }
            }
        }
        self.session.until_approved().await;
        self.parts.context.accounts.synced().await;
        self.until_list_is_recorded().await;
        let mut tries: usize = 0;
        loop {
            self.session.until_approved().await;
            let later = self.try_all(&mut open, &mut kept, &mut refused).await;
            self.update_problem(count, &refused, &open);
            // Ends the task, because most agents list nothing and a task costs memory.
            if open.is_empty() && kept.is_empty() {
                return;
            }
            tries = if later { tries + 1 } else { 0 };
            match tries.checked_sub(1) {
                Some(tries) => tokio::time::sleep(RETRY_DELAYS[tries.min(RETRY_DELAYS.len() - 1)]).await,
                None => self.until_recheck(open.is_empty()).await,
            }
            let (lost, stays) = kept.into_iter().partition(|listed| self.is_lost(listed));
            kept = stays;
            let lost: Vec<ValidEntry> = lost;
            open.extend(lost.into_iter().map(|listed| PendingAccount { listed, answered: None }));
        }
    }

    async fn until_recheck(&self, all_kept: bool) {
        let wait = if all_kept { RECHECK_INTERVAL } else { CONFLICT_RETRY_DELAY };
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            // Changes come in bursts.
            () = self.session.own.changed.notified() => tokio::time::sleep(CHANGE_RECHECK_DELAY).await,
        }
    }

    /// Whether an object that was as listed differs now, by the index. If several agents list an account, each leaves
    /// alone what another one has written: their files may never agree.
    fn is_lost(&self, listed: &ValidEntry) -> bool {
        match self.judge(listed, None) {
            ListingDecision::Keep => self.is_kept_from(listed).is_some(),
            ListingDecision::Update(_) => !self.is_listed_by_others(&listed.name),
            ListingDecision::Create(_) | ListingDecision::Wait | ListingDecision::Conflict(_) => true,
        }
    }

    fn is_listed_by_others(&self, name: &str) -> bool {
        let digest = kubesvc_core::object_names::digest(name);
        self.do_others(
            |listing| listing.has_name(name),
            |status| status.static_accounts.as_ref().is_some_and(|listed| listed.contains(&digest)),
        )
    }

    /// Whether another connected agent of the zone lists this account with its current source.
    fn is_of_others(&self, account: &KubesvcAccount) -> bool {
        self.do_others(|listing| listing.has(account), |status| status.lists(account) == Some(true))
    }

    /// Whether another approved agent of the zone that lists the account is connected, here or at another replica.
    fn do_others(
        &self,
        here: impl Fn(&Listing) -> bool,
        elsewhere: impl Fn(&KubesvcAgentStatus) -> bool,
    ) -> bool {
        let connected = self.parts.sessions.registry.connected();
        let listed_here = connected.iter().any(|other| {
            other.agent.zone == self.session.agent.zone
                && other.serial != self.session.serial
                && other.is_approved()
                && other.listing().is_some_and(|listing| here(&listing))
        });
        listed_here
            || self.parts.context.agent_index.all().iter().any(|agent| {
                let status = agent.status.as_ref().filter(|status| status.connected);
                agent.spec.zone_id == self.session.agent.zone
                    && agent.spec.agent_id != self.session.agent.id
                    && agent.is_approved()
                    && status.is_some_and(&elsewhere)
            })
    }

    /// Returns why the account with a listed name is kept from this agent, if it is.
    fn is_kept_from(&self, listed: &ValidEntry) -> Option<String> {
        let known = self.parts.context.accounts.by_account_name(&listed.name);
        known
            .iter()
            .filter(|account| account.is_static())
            .find_map(|account| self.session.is_kept_from(account.uid()))
    }

    /// Waits until the agent's KubesvcAgent records the list. A leader in another replica knows the list from there
    /// only, and would delete an account that is not listed.
    async fn until_list_is_recorded(&self) {
        let mut waits =
            RETRY_DELAYS.into_iter().chain(std::iter::repeat(RETRY_DELAYS[RETRY_DELAYS.len() - 1]));
        while !self.parts.context.is_leading()
            && !summaries::write_now(&self.parts.agent_status, &self.session).await
        {
            tokio::time::sleep(waits.next().unwrap_or_default()).await;
        }
    }

    /// Makes one attempt for each open account. Returns whether some must be retried.
    async fn try_all(
        &self,
        open: &mut Vec<PendingAccount>,
        kept: &mut Vec<ValidEntry>,
        refused: &mut Vec<StaticAnswer>,
    ) -> bool {
        let tried = stream::iter(std::mem::take(open)).map(|one| async {
            let outcome = self.put(&one.listed).await;
            (one, outcome)
        });
        let mut tried = tried.buffer_unordered(MAX_CONCURRENT_WRITES);
        let mut later = false;
        while let Some((mut one, outcome)) = tried.next().await {
            match outcome {
                SyncOutcome::Kept => kept.push(one.listed),
                SyncOutcome::Refused(answer) => {
                    self.answer(&answer).await;
                    refused.push(answer);
                }
                SyncOutcome::Taken(answer) => {
                    if one.answered.as_ref() != Some(&answer) {
                        self.answer(&answer).await;
                        one.answered = Some(answer);
                    }
                    open.push(one);
                }
                SyncOutcome::Later => {
                    later = true;
                    open.push(one);
                }
            }
        }
        later
    }

    /// Updates the problem in the agent's conditions.
    fn update_problem(&self, count: usize, refused: &[StaticAnswer], open: &[PendingAccount]) {
        let taken = open.iter().filter_map(|one| one.answered.as_ref());
        let answered: Vec<_> = refused.iter().chain(taken).collect();
        let problem = answered.first().map(|first| {
            let why = first.failure.as_ref().map(|failure| failure.message.as_str()).unwrap_or_default();
            let message = format!(
                "{} of {count} accounts are not taken; account {:?}: {why}",
                answered.len(),
                first.name
            );
            ListProblem { reason: "AccountsRefused", message }
        });
        {
            let mut list = self.session.own.list.lock();
            // A refused list is the more severe problem.
            if list.problem.as_ref().is_none_or(|before| before.reason != LIST_REFUSED) {
                list.problem = problem;
            }
        }
        self.parts.sessions.publish(&self.session, SessionEvent::ProblemsChanged);
    }

    async fn answer(&self, answer: &StaticAnswer) {
        let why = answer.failure.as_ref().map(|failure| failure.message.as_str()).unwrap_or_default();
        if self.parts.context.may_log("static_accounts", self.session.agent.peer) {
            warn!(
                agentId = self.session.agent.id.as_str(),
                account = answer.name,
                why,
                "refused an account of the agent's file"
            );
        }
        self.parts.context.metrics.ignore("static_account");
        // Fails only if the session has ended.
        let _ = self.answers.send(answer.clone()).await;
    }

    /// Brings one object in step with its entry.
    async fn put(&self, listed: &ValidEntry) -> SyncOutcome {
        let settings = &self.parts.context.settings;
        let taken = |why: String| SyncOutcome::Taken(refusal(&listed.name, Class::Conflict, why));
        if !settings.static_accounts.watched {
            return taken(not_watched(&settings.static_accounts.namespace));
        }
        let mut asked = None;
        for _ in 0..MAX_CONFLICT_RETRIES {
            let (written, object) = match self.judge(listed, asked.as_ref()) {
                ListingDecision::Keep => return self.is_kept_from(listed).map_or(SyncOutcome::Kept, taken),
                ListingDecision::Wait => return SyncOutcome::Later,
                ListingDecision::Conflict(why) => return taken(why),
                ListingDecision::Create(object) => (self.create(&object).await, object),
                ListingDecision::Update(object) => (self.update(&object).await, object),
            };
            match written {
                Ok(()) => return SyncOutcome::Kept,
                Err(error) if error.is_stale() => {}
                Err(error) => match error.status().filter(|_| error.class() == ErrorClass::Invalid) {
                    Some(status) => {
                        let why = status.message.clone();
                        return SyncOutcome::Refused(refusal(&listed.name, Class::BadReference, why));
                    }
                    None => return self.unavailable(&error),
                },
            }
            match self.ask(&object).await {
                Ok(found) => asked = found,
                Err(error) => return self.unavailable(&error),
            }
        }
        SyncOutcome::Later
    }

    /// Judges by the index and by an object read from the API server, which is newer.
    fn judge(&self, listed: &ValidEntry, asked: Option<&KubesvcAccount>) -> ListingDecision {
        let known = self.parts.context.accounts.by_account_name(&listed.name);
        let is_asked = |account: &KubesvcAccount| {
            asked.is_some_and(|asked| {
                asked.metadata.name == account.metadata.name
                    && asked.metadata.namespace == account.metadata.namespace
            })
        };
        let found: Vec<_> =
            known.iter().map(Arc::as_ref).filter(|account| !is_asked(account)).chain(asked).collect();
        let (namespace, precedence) = (
            &self.parts.context.settings.static_accounts.namespace,
            self.parts.context.accounts.precedence(),
        );
        let verdict = judge(listed, &self.session.agent.zone, namespace, &found, precedence);
        match &verdict {
            // A file of one agent is never read by another agent; the first one stands.
            ListingDecision::Update(update) => {
                let before = found.iter().find(|one| one.metadata.uid == update.metadata.uid);
                match before.filter(|before| !is_same_source(before, update) && self.is_of_others(before)) {
                    Some(before) => {
                        ListingDecision::Conflict(another_lists(&self.session.agent.zone, before))
                    }
                    None => verdict,
                }
            }
            _ => verdict,
        }
    }

    async fn create(&self, object: &KubesvcAccount) -> Result<(), KubeError> {
        self.parts.objects.create(object).await?;
        info!(
            agentId = self.session.agent.id.as_str(),
            account = object.account_name(),
            "created the object of an account of the agent's file"
        );
        Ok(())
    }

    async fn update(&self, object: &KubesvcAccount) -> Result<(), KubeError> {
        let replaced = object.metadata.resource_version.clone().unwrap_or_default();
        let written = self.parts.objects.replace(object).await?;
        info!(
            agentId = self.session.agent.id.as_str(),
            account = object.account_name(),
            "updated the object of an account of the agent's file"
        );
        self.parts.context.accounts.written(written, &replaced);
        Ok(())
    }

    /// Reads the object whose write failed.
    async fn ask(&self, object: &KubesvcAccount) -> Result<Option<KubesvcAccount>, KubeError> {
        let namespace = object.metadata.namespace.as_deref().unwrap_or_default();
        let name = object.metadata.name.as_deref().unwrap_or_default();
        self.parts.objects.get(namespace, name).await
    }

    fn unavailable(&self, error: &KubeError) -> SyncOutcome {
        let why = chain(error);
        if self.parts.context.may_log("static_unavailable", self.session.agent.peer) {
            warn_unless_away!(
                agentId = self.session.agent.id.as_str(),
                why,
                "cannot write accounts of the agent's file; retrying"
            );
        }
        SyncOutcome::Later
    }
}
