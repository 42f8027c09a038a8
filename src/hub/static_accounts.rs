//! Accounts of an agent's own file: from the frames that list them to their KubesvcAccounts.
//!
//! | step | where |
//! |---|---|
//! | collect frames into a list within its bounds, convert its entries into specs, index it; pure | [`listing`] |
//! | compare a spec with the existing objects: a write or a refusal; pure | [`judge`] |
//! | receive lists in a session, and send the answers | [`StaticAccountSync`] |
//! | write the objects of one list, in a task beside the session | [`reconciler`] |
//!
//! A session loop must not wait for the API server, so it receives the list, and a task beside it reconciles the objects.

mod judge;
mod listing;
mod reconciler;

pub(crate) use listing::Listing;

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::hub::AccountObjects;
use crate::hub::agent_status::AgentStatusWriter;
use crate::hub::context::HubContext;
use crate::hub::sessions::Sessions;
use crate::hub::sessions::events::SessionEvent;
use crate::hub::sessions::session::Session;
use kubesvc_core::lifecycle::Fact;
use kubesvc_core::wire::common::failure::Class;
use kubesvc_core::wire::{MAX_ACCOUNTS_IN_BATCH, common, ops};
use kubesvc_core::{KubesvcAccount, object_names};
use listing::{IncomingList, ListingStep, ValidEntry};
use reconciler::StaticAccountReconciler;

/// The value of the label `kubesvc.io/origin` of an account that an agent listed.
pub(super) const ORIGIN: &str = "agent";
/// Maximum number of characters of a name in an answer.
const MAX_NAME_CHARS_SHOWN: usize = 255;
/// Maximum number of answers that wait for the stream; the reconciler waits when it is full.
const MAX_WAITING_ANSWERS: usize = 64;
/// Maximum number of accounts whose being kept from an agent is told.
const MAX_KEPT_ACCOUNTS: usize = 100;
/// Reason in the condition if the list is refused as a whole.
const LIST_REFUSED: &str = "ListRefused";

/// Creates and updates KubesvcAccounts for the lists of agents.
pub(super) struct StaticAccounts {
    pub(super) context: Arc<HubContext>,
    pub(super) sessions: Arc<Sessions>,
    pub(super) agent_status: Arc<AgentStatusWriter>,
    /// Reads and writes accounts at the API server.
    pub(super) objects: Arc<dyn AccountObjects>,
}

/// Refusal of an entry, or of the whole list if the name is empty.
pub(super) fn refusal(name: &str, class: Class, message: String) -> ops::StaticAnswer {
    let name = name.chars().filter(|character| !character.is_control()).take(MAX_NAME_CHARS_SHOWN).collect();
    let retryable = class == Class::Conflict;
    let mut message = message;
    kubesvc_core::failure::truncate(&mut message, 1024);
    let failure =
        common::Failure { class: class.into(), retryable, message, before_send: true, ..Default::default() };
    ops::StaticAnswer { name, failure: Some(failure) }
}

/// Problem of an agent's own accounts, for its conditions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ListProblem {
    /// Reason in CamelCase.
    pub(super) reason: &'static str,
    pub(super) message: String,
}

/// The last complete list of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ReportedList {
    /// The list; absent until one was complete.
    pub(super) listing: Option<Arc<Listing>>,
    pub(super) problem: Option<ListProblem>,
}

/// Answers from the reconcilers. The channel is created with the first list: most agents never send one, and an empty
/// channel takes 3 KiB.
#[derive(Default)]
struct ReconcilerAnswers(Option<(mpsc::Sender<ops::StaticAnswer>, mpsc::Receiver<ops::StaticAnswer>)>);

impl ReconcilerAnswers {
    /// Returns a sender for a reconciler.
    fn sender(&mut self) -> mpsc::Sender<ops::StaticAnswer> {
        self.0.get_or_insert_with(|| mpsc::channel(MAX_WAITING_ANSWERS)).0.clone()
    }

    /// Waits for up to 50 answers. Without a channel it waits forever; the loop calls it again after creating one.
    async fn next(&mut self) -> Vec<ops::StaticAnswer> {
        let Some((_, waiting)) = &mut self.0 else { return std::future::pending().await };
        let mut answers = Vec::new();
        // The sender lives as long as self, so this returns at least one answer.
        answers.extend(waiting.recv().await);
        while answers.len() < MAX_ACCOUNTS_IN_BATCH
            && let Ok(answer) = waiting.try_recv()
        {
            answers.push(answer);
        }
        answers
    }
}

pub(super) struct StaticAccountSync {
    parts: Arc<StaticAccounts>,
    session: Arc<Session>,
    incoming: IncomingList,
    /// Answer to a list that is refused as a whole.
    refusal: Option<ops::StaticAnswer>,
    answers: ReconcilerAnswers,
    /// Cancels the reconciler of the previous list.
    running: CancellationToken,
}

impl StaticAccountSync {
    pub(super) fn new(parts: Arc<StaticAccounts>, session: Arc<Session>) -> Self {
        let running = session.ended.child_token();
        Self {
            parts,
            session,
            incoming: IncomingList::default(),
            refusal: None,
            answers: ReconcilerAnswers::default(),
            running,
        }
    }

    /// Handles a frame of a list.
    pub(super) fn take_in(&mut self, frame: ops::StaticAccounts) {
        match self.incoming.take(frame) {
            ListingStep::More => {}
            ListingStep::Refused(why) => self.refuse(why.to_string()),
            ListingStep::Complete(accounts) if !accounts.is_empty() && !self.may_list() => {
                self.refuse(
                    "the agent's KubesvcIdentity takes no accounts of its own file: set spec.allow.staticAccounts there, or remove \
                     kubernetes.accounts from the agent's file"
                        .to_owned(),
                );
            }
            ListingStep::Complete(accounts) => self.keep(accounts),
        }
    }

    fn may_list(&self) -> bool {
        self.session.identity.has(|rights| rights.static_accounts, true)
    }

    /// Waits for up to 50 answers to send to the agent.
    pub(super) async fn answers(&mut self) -> Vec<ops::StaticAnswer> {
        if let Some(refusal) = self.refusal.take() {
            return vec![refusal];
        }
        self.answers.next().await
    }

    /// Refuses a list; the previous one stays in force.
    fn refuse(&mut self, why: String) {
        warn!(agentId = self.session.agent.id.as_str(), why, "refused the agent's list of its own accounts");
        self.parts.context.metrics.ignore("static_list");
        self.refusal = Some(refusal("", Class::TooLarge, why.clone()));
        self.session.own.list.lock().problem = Some(ListProblem { reason: LIST_REFUSED, message: why });
        self.parts.sessions.publish(&self.session, SessionEvent::ProblemsChanged);
    }

    fn keep(&mut self, accounts: Vec<ops::AccountSpec>) {
        let listing = Arc::new(Listing::of(&accounts));
        info!(
            agentId = self.session.agent.id.as_str(),
            accounts = listing.len(),
            "the agent listed its own accounts"
        );
        let before = {
            let mut list = self.session.own.list.lock();
            let now = ReportedList { listing: Some(Arc::clone(&listing)), problem: None };
            std::mem::replace(&mut *list, now).listing
        };
        if before == Some(listing) {
            self.parts.sessions.publish(&self.session, SessionEvent::ProblemsChanged);
        } else {
            self.parts.sessions.listed(&self.session);
        }
        let namespace = &self.parts.context.settings.static_accounts.namespace;
        let allowed = |listed: ValidEntry| {
            let object = object_names::object_name(&listed.name);
            if self.session.identity.may_hold(namespace, &object) {
                return Ok(listed);
            }
            let why = format!(
                "the agent's KubesvcIdentity does not allow account {namespace}/{object} of its own file"
            );
            Err(refusal(&listed.name, Class::Forbidden, why))
        };
        let entries = listing::read(accounts, &self.session.agent.zone);
        let entries = entries.into_iter().map(|entry| entry.and_then(allowed)).collect();
        self.running.cancel();
        self.running = self.session.ended.child_token();
        let reconciler = StaticAccountReconciler::new(
            Arc::clone(&self.parts),
            Arc::clone(&self.session),
            self.answers.sender(),
        );
        let running = self.running.clone();
        self.parts.context.tasks.spawn(async move {
            running.run_until_cancelled(reconciler.run(entries)).await;
        });
    }
}

/// What is said about the accounts of one agent.
#[derive(Default)]
pub(super) struct OwnAccounts {
    /// The accounts of the agent's own file.
    pub(super) list: Mutex<ReportedList>,
    /// An account that may be one of its own has changed or is gone.
    pub(super) changed: Notify,
    /// Accounts that are kept from the agent because they are bound to another cluster, and why; the first 100.
    kept_from: Mutex<BTreeMap<String, String>>,
}

impl Session {
    /// The last complete list; absent until there is one.
    pub(super) fn listing(&self) -> Option<Arc<Listing>> {
        self.own.list.lock().listing.clone()
    }

    /// Whether the agent's own file has an account, by its name and with its source, as far as it has said.
    pub(super) fn lists(&self, account: &KubesvcAccount) -> Fact<bool> {
        if !self.identity.has(|rights| rights.static_accounts, true) {
            return Fact::Known(false);
        }
        match &self.own.list.lock().listing {
            None => Fact::Unknown,
            Some(listing) => Fact::Known(listing.has(account)),
        }
    }

    /// What is wrong with the agent's own accounts.
    pub(super) fn list_problem(&self) -> Option<ListProblem> {
        self.own.list.lock().problem.clone()
    }

    /// An account is kept from the agent because of the cluster that it is in or has reached, and why; absent: no longer.
    /// Answers whether that is new.
    pub(super) fn keep_from(&self, uid: &str, why: Option<String>) -> bool {
        let mut kept = self.own.kept_from.lock();
        match why {
            None => kept.remove(uid).is_some(),
            Some(why) if kept.get(uid) == Some(&why) => false,
            Some(_) if kept.len() >= MAX_KEPT_ACCOUNTS && !kept.contains_key(uid) => false,
            Some(why) => {
                kept.insert(uid.to_owned(), why);
                true
            }
        }
    }

    /// Why an account is kept from the agent, if it is.
    fn is_kept_from(&self, uid: &str) -> Option<String> {
        self.own.kept_from.lock().get(uid).cloned()
    }

    /// Of the accounts that are kept from the agent, how many there are and why the first is.
    pub(super) fn all_kept_from(&self) -> Option<(usize, String)> {
        let kept = self.own.kept_from.lock();
        kept.values().next().map(|first| (kept.len(), first.clone()))
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn without_a_list_there_is_no_channel_and_with_one_fifty_answers_come_at_once() {
        let mut answers = ReconcilerAnswers::default();
        assert!(answers.next().now_or_never().is_none());
        assert!(answers.0.is_none(), "waiting makes none");
        let task = answers.sender();
        for _ in 0..60 {
            task.try_send(ops::StaticAnswer::default()).expect("there is room");
        }
        assert_eq!((answers.next().await.len(), answers.next().await.len()), (50, 10));
        drop(task);
        assert!(answers.next().now_or_never().is_none(), "no task is left, and another may come");
    }
}
