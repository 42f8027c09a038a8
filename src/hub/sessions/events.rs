//! What happens to sessions, published in one place to those who react to it.
//!
//! A subscriber marks what is to be looked at again, in a bounded set of its own, and looks at it in a task of its own. It
//! is called under the locks of a session: it is told a number and uids, and must not look at the session itself.

use std::collections::HashSet;
use std::sync::Arc;

use crate::hub::zone_probes::offers::OfferChange;
use crate::wake_set::WakeSet;

/// What happened to one session.
#[derive(Clone, Copy, Debug)]
pub(in crate::hub) enum SessionEvent<'e> {
    /// It stands, or the approval of its agent has changed.
    Stood {
        /// Accounts of its zone, and those that it has to do with; none if its agent was never approved.
        accounts: &'e HashSet<String>,
        /// Accounts without a zone, where it is the first of its zone that could take one.
        unplaced: &'e [String],
    },
    /// It has ended.
    Ended {
        /// Accounts that it had to do with; none if its agent was never approved.
        accounts: &'e [String],
        /// Accounts of its zone, and those without a zone where its zone has no other session.
        affected: &'e [String],
    },
    /// Its report about an account has changed, or what it owes.
    AnswerChanged(&'e str),
    /// It has nothing to do with an account any more.
    Released(&'e str),
    /// Its agent has listed other accounts of its own; these are the static accounts of its zone.
    Listed(&'e [String]),
    /// What is wrong with the accounts of its agent has changed.
    ProblemsChanged,
    /// What it or its zone offers an account has changed.
    OfferChanged(&'e str, OfferChange),
}

/// Reacts to events.
pub(in crate::hub) trait SessionSubscriber: Send + Sync {
    /// Something happened to the session of this serial.
    fn session_event(&self, serial: u64, event: SessionEvent<'_>);

    /// The object of an account has changed; these sessions have to do with it.
    fn account_changed(&self, _uid: &str, _serials: &[u64]) {}

    /// No session has to do with an account any more.
    fn account_orphaned(&self, _uid: &str) {}
}

/// All subscribers, in the order in which they are told: the leader is the last, so that whatever it looks at is marked.
pub(in crate::hub) struct SessionEvents(Vec<Arc<dyn SessionSubscriber>>);

impl SessionEvents {
    pub(in crate::hub) fn new(subscribers: Vec<Arc<dyn SessionSubscriber>>) -> Self {
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

/// The leader of this process: it decides anew about these accounts.
pub(in crate::hub) struct LeaderWakes(pub(in crate::hub) Arc<WakeSet<String>>);

impl SessionSubscriber for LeaderWakes {
    fn session_event(&self, _serial: u64, event: SessionEvent<'_>) {
        match event {
            SessionEvent::Stood { accounts, unplaced } => {
                self.0.wake_all(unplaced.iter().chain(accounts).cloned());
            }
            SessionEvent::Ended { accounts, affected } => {
                self.0.wake_all(accounts.iter().chain(affected).cloned());
            }
            SessionEvent::AnswerChanged(uid) => self.0.wake(uid.to_owned()),
            SessionEvent::Listed(accounts) => self.0.wake_all(accounts.iter().cloned()),
            SessionEvent::OfferChanged(uid, change) if change.matters => self.0.wake(uid.to_owned()),
            SessionEvent::Released(_) | SessionEvent::ProblemsChanged | SessionEvent::OfferChanged(..) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;

    /// Writes down what it is told, under its name.
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
    fn each_subscriber_is_told_of_each_event_in_its_turn() {
        let told = Arc::new(Mutex::default());
        let recorder = |name| Arc::new(Recorder(name, Arc::clone(&told))) as Arc<dyn SessionSubscriber>;
        let events = SessionEvents::new(vec![recorder("first"), recorder("last")]);
        events.publish(7, SessionEvent::AnswerChanged("u"));
        events.publish_account_changed("u", &[7]);
        let expected =
            ["first 7 AnswerChanged(\"u\")", "last 7 AnswerChanged(\"u\")", "first u [7]", "last u [7]"];
        assert_eq!(*told.lock(), expected);
    }

    #[test]
    fn the_leader_looks_at_what_an_event_may_change_and_at_nothing_else() {
        let leader = Arc::new(WakeSet::default());
        let wakes = LeaderWakes(Arc::clone(&leader));
        let looks = |event| {
            wakes.session_event(7, event);
            leader.try_take(9)
        };
        let (zone, unplaced) = (HashSet::from(["of-zone".to_owned()]), ["anywhere".to_owned()]);
        let stood = SessionEvent::Stood { accounts: &zone, unplaced: &unplaced };
        assert_eq!(looks(stood), ["anywhere", "of-zone"]);
        let had = ["had".to_owned()];
        assert_eq!(looks(SessionEvent::Ended { accounts: &had, affected: &unplaced }), ["had", "anywhere"]);
        assert_eq!(looks(SessionEvent::AnswerChanged("u")), ["u"]);
        assert_eq!(looks(SessionEvent::Listed(&had)), ["had"]);
        let offers = |matters| SessionEvent::OfferChanged("u", OfferChange { matters, speaker: None });
        assert_eq!(looks(offers(true)), ["u"]);
        for event in [offers(false), SessionEvent::Released("u"), SessionEvent::ProblemsChanged] {
            assert!(looks(event).is_empty(), "{event:?}");
        }
    }
}
