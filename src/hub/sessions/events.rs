//! Session events: published by sessions, consumed by agent status, tables and the leader.
//!
//! A subscriber adds keys to its own bounded dirty set and processes them in its own task. It is called while locks of the
//! session are held: it receives the serial and uids only, and must neither block nor access the session.

use std::collections::HashSet;
use std::sync::Arc;

use crate::hub::zone_probes::OfferChange;
use kubesvc_runtime::work_queue::WorkQueue;

/// A change of one session.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SessionEvent<'e> {
    /// The session is connected, or the approval of its agent changed.
    Stood {
        /// Accounts of its zone and those in its ledger; empty if its agent was never approved.
        accounts: &'e HashSet<String>,
        /// Accounts without a zone, if this is the first approved session of its zone.
        unplaced: &'e [String],
    },
    /// The session has ended.
    Ended {
        /// Accounts in its ledger; empty if its agent was never approved.
        accounts: &'e [String],
        /// Accounts of its zone, and accounts without a zone if the zone has no other session.
        affected: &'e [String],
    },
    /// The session's report about an account, or its outstanding answer, changed.
    AnswerChanged(&'e str),
    /// The account left the session's ledger.
    Released(&'e str),
    /// What the session says of the objects that it streams of an account changed.
    CachingReportChanged(&'e str),
    /// The session's agent was told that the account is gone, because its fence has no row.
    FenceLost(&'e str),
    /// Namespaces of the account that the session streams were written, or how they are written changed.
    NamespacesWritten(&'e str),
    /// The agent's stream of requests was opened or has ended. Carries the accounts in its ledger.
    ReachableChanged(&'e [String]),
    /// The agent sent a different list of its own accounts. Carries the static accounts of its zone.
    Listed(&'e [String]),
    /// The problems reported in the agent's conditions may have changed.
    ProblemsChanged,
    /// The answer of the session, or of its zone, to a zone probe changed.
    OfferChanged(&'e str, OfferChange),
}

/// A consumer of session events.
pub(crate) trait SessionSubscriber: Send + Sync {
    /// Handles an event of the session with this serial.
    fn session_event(&self, serial: u64, event: SessionEvent<'_>);

    /// Handles a change of an account's object. `serials` are the sessions that have the account in their ledger.
    fn account_changed(&self, _uid: &str, _serials: &[u64]) {}

    /// Handles that no session has the account in its ledger any more.
    fn account_orphaned(&self, _uid: &str) {}
}

/// The subscribers, in the order of notification. The leader comes last, after every dirty set is marked.
pub(crate) struct SessionEvents(Vec<Arc<dyn SessionSubscriber>>);

impl SessionEvents {
    pub(crate) fn new(subscribers: Vec<Arc<dyn SessionSubscriber>>) -> Self {
        Self(subscribers)
    }

    pub(super) fn publish(&self, serial: u64, event: SessionEvent<'_>) {
        self.0.iter().for_each(|subscriber| subscriber.session_event(serial, event));
    }

    pub(super) fn publish_account_changed(&self, uid: &str, serials: &[u64]) {
        self.0.iter().for_each(|subscriber| subscriber.account_changed(uid, serials));
    }

    pub(super) fn publish_orphaned(&self, uid: &str) {
        self.0.iter().for_each(|subscriber| subscriber.account_orphaned(uid));
    }
}

/// Wakes the leader of this process for the accounts of an event.
pub(crate) struct LeaderWakes(pub(crate) Arc<WorkQueue<String>>);

impl SessionSubscriber for LeaderWakes {
    fn session_event(&self, _serial: u64, event: SessionEvent<'_>) {
        match event {
            SessionEvent::Stood { accounts, unplaced } => {
                self.0.wake_all(unplaced.iter().chain(accounts).cloned());
            }
            SessionEvent::Ended { accounts, affected } => {
                self.0.wake_all(accounts.iter().chain(affected).cloned());
            }
            SessionEvent::AnswerChanged(uid) | SessionEvent::CachingReportChanged(uid) => {
                self.0.wake(uid.to_owned());
            }
            SessionEvent::Listed(accounts) => self.0.wake_all(accounts.iter().cloned()),
            SessionEvent::OfferChanged(uid, change) if change.matters => self.0.wake(uid.to_owned()),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;

    /// Records its calls under a name.
    struct Recorder(&'static str, Arc<Mutex<Vec<String>>>);

    impl SessionSubscriber for Recorder {
        fn session_event(&self, serial: u64, event: SessionEvent<'_>) {
            self.1.lock().push(format!("{} {serial} {event:?}", self.0));
        }

        fn account_changed(&self, uid: &str, serials: &[u64]) {
            self.1.lock().push(format!("{} {uid} {serials:?}", self.0));
        }
    }

    #[test]
    fn each_subscriber_gets_each_event_in_order() {
        let published = Arc::new(Mutex::default());
        let recorder = |name| Arc::new(Recorder(name, Arc::clone(&published))) as Arc<dyn SessionSubscriber>;
        let events = SessionEvents::new(vec![recorder("first"), recorder("last")]);
        events.publish(7, SessionEvent::AnswerChanged("u"));
        events.publish_account_changed("u", &[7]);
        let expected =
            ["first 7 AnswerChanged(\"u\")", "last 7 AnswerChanged(\"u\")", "first u [7]", "last u [7]"];
        assert_eq!(*published.lock(), expected);
    }

    #[test]
    fn leader_wakes_exactly_the_accounts_that_an_event_may_change() {
        let leader = Arc::new(WorkQueue::default());
        let wakes = LeaderWakes(Arc::clone(&leader));
        let woken = |event| {
            wakes.session_event(7, event);
            leader.try_take(9)
        };
        let (zone, unplaced) = (HashSet::from(["of-zone".to_owned()]), ["anywhere".to_owned()]);
        let stood = SessionEvent::Stood { accounts: &zone, unplaced: &unplaced };
        assert_eq!(woken(stood), ["anywhere", "of-zone"]);
        let had = ["had".to_owned()];
        assert_eq!(woken(SessionEvent::Ended { accounts: &had, affected: &unplaced }), ["had", "anywhere"]);
        assert_eq!(woken(SessionEvent::AnswerChanged("u")), ["u"]);
        assert_eq!(woken(SessionEvent::CachingReportChanged("u")), ["u"]);
        assert!(woken(SessionEvent::NamespacesWritten("u")).is_empty());
        assert_eq!(woken(SessionEvent::Listed(&had)), ["had"]);
        let offers = |matters| SessionEvent::OfferChanged("u", OfferChange { matters, speaker: None });
        assert_eq!(woken(offers(true)), ["u"]);
        for event in [offers(false), SessionEvent::Released("u"), SessionEvent::ProblemsChanged] {
            assert!(woken(event).is_empty(), "{event:?}");
        }
    }
}
