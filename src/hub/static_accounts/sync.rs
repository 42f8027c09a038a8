//! The accounts of the agent's own file: receives the list in the session loop, and reconciles the objects in a task
//! beside it, because the loop must not wait for the API server.

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::hub::sessions::events::SessionEvent;
use crate::hub::sessions::session::Session;
use crate::hub::static_accounts::reconciler::StaticAccountReconciler;
use crate::hub::static_accounts::{self, FrameOutcome, IncomingList, Listing, StaticAccounts};
use crate::wire::common::failure::Class;
use crate::wire::{MAX_ACCOUNTS_IN_BATCH, ops};

/// Maximum number of answers that wait for the stream; the reconciler waits when it is full.
const MAX_WAITING_ANSWERS: usize = 64;

/// Reason in the condition if the list is refused as a whole.
pub(super) const LIST_REFUSED: &str = "ListRefused";

/// Problem of an agent's own accounts, for its conditions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::hub) struct ListProblem {
    /// Reason in CamelCase.
    pub(in crate::hub) reason: &'static str,
    pub(in crate::hub) message: String,
}

/// The last complete list of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::hub) struct ReportedList {
    /// The list; absent until one was complete.
    pub(in crate::hub) listing: Option<Arc<Listing>>,
    pub(in crate::hub) problem: Option<ListProblem>,
}

/// Answers from the reconcilers. The channel is created with the first list: most agents never send one, and an empty
/// channel takes 3 KiB.
#[derive(Default)]
struct Answers(Option<(mpsc::Sender<ops::StaticAnswer>, mpsc::Receiver<ops::StaticAnswer>)>);

impl Answers {
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

pub(in crate::hub) struct StaticAccountSync {
    parts: Arc<StaticAccounts>,
    session: Arc<Session>,
    incoming: IncomingList,
    /// Answer to a list that is refused as a whole.
    refusal: Option<ops::StaticAnswer>,
    answers: Answers,
    /// Cancels the reconciler of the previous list.
    running: CancellationToken,
}

impl StaticAccountSync {
    pub(in crate::hub) fn new(parts: Arc<StaticAccounts>, session: Arc<Session>) -> Self {
        let running = session.ended.child_token();
        Self {
            parts,
            session,
            incoming: IncomingList::default(),
            refusal: None,
            answers: Answers::default(),
            running,
        }
    }

    /// Handles a frame of a list.
    pub(in crate::hub) fn take_in(&mut self, frame: ops::StaticAccounts) {
        match self.incoming.take(frame) {
            FrameOutcome::More => {}
            FrameOutcome::Refused(why) => self.refuse(why),
            FrameOutcome::Complete(accounts) => self.keep(accounts),
        }
    }

    /// Waits for up to 50 answers to send to the agent.
    pub(in crate::hub) async fn answers(&mut self) -> Vec<ops::StaticAnswer> {
        if let Some(refusal) = self.refusal.take() {
            return vec![refusal];
        }
        self.answers.next().await
    }

    /// Refuses a list; the previous one stays in force.
    fn refuse(&mut self, why: String) {
        warn!(agentId = self.session.agent.id, why, "the agent's list of its own accounts is refused");
        self.parts.context.metrics.ignore("static_list");
        self.refusal = Some(static_accounts::refusal("", Class::TooLarge, why.clone()));
        self.session.own.list.lock().problem = Some(ListProblem { reason: LIST_REFUSED, message: why });
        self.parts.sessions.publish(&self.session, SessionEvent::ProblemsChanged);
    }

    fn keep(&mut self, accounts: Vec<ops::AccountSpec>) {
        let listing = Arc::new(Listing::of(&accounts));
        info!(
            agentId = self.session.agent.id,
            accounts = listing.len(),
            "the agent has listed its own accounts"
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
        let entries = static_accounts::read(accounts, &self.session.agent.zone);
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

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn without_a_list_there_is_no_channel_and_with_one_fifty_answers_come_at_once() {
        let mut answers = Answers::default();
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
