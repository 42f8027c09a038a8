//! Accounts of one Caching stream: dispatches frames and answers to their account. Pure.

use std::collections::HashMap;
use std::sync::Arc;

use kubesvc_core::CachingEpoch;
use kubesvc_core::wire::MAX_UNCOMMITTED_EVENTS;
use kubesvc_core::wire::common::Fence;
use kubesvc_core::wire::events::cache_down::Frame;
use kubesvc_core::wire::events::revoked::Reason;
use kubesvc_core::wire::events::{Batch, Begin, End, Revoked, Unread};
use kubesvc_store::{FenceCheck, StoredProgress};

use super::account_receiver::{
    AccountReceiver, AssignmentState, DeliveryState, ReceiverEffect, ReceiverError,
};
use super::transaction_batching::LaneId;

/// Maximum number of accounts on one stream.
pub(crate) const MAX_ACCOUNTS: usize = 10_000;
/// Maximum number of scopes on one stream.
const MAX_SCOPES: usize = 200_000;
/// Maximum length of an account's uid, in bytes.
const MAX_UID_BYTES: usize = 64;

/// Effects that concern one account.
pub(crate) type AccountEffects = (Arc<str>, Vec<ReceiverEffect>);

/// The accounts of one stream, by uid.
#[derive(Clone, Debug, Default)]
pub(crate) struct StreamDelivery {
    accounts: HashMap<Arc<str>, AccountReceiver>,
    /// Upper bound of the number of declared scopes, recounted when it reaches the maximum.
    scopes: usize,
    /// Number of uncommitted events of all accounts.
    uncommitted_events: usize,
}

impl StreamDelivery {
    /// Handles Begin. `lane` becomes the account's lane if the frame is the first one.
    pub(crate) fn begin(&mut self, mut begin: Begin, lane: LaneId) -> Result<AccountEffects, ReceiverError> {
        let (uid, epoch) = account_of(begin.fence.take(), "Begin")?;
        let mut effects = Vec::new();
        let is_new = match self.accounts.get_mut(&uid) {
            Some(known) if known.epoch() > epoch => {
                // The agent itself has begun under a later epoch.
                let fence = Fence { account_uid: uid.to_string(), caching_epoch: epoch.to_wire() };
                let revoked = Revoked { fence: Some(fence), reason: Reason::Reelected.into() };
                let effects =
                    if begin.last { vec![ReceiverEffect::Send(Frame::Revoked(revoked))] } else { Vec::new() };
                return Ok((uid, effects));
            }
            Some(known) if known.epoch() < epoch => {
                self.uncommitted_events -= known.uncommitted_events();
                effects = known.abandon();
                true
            }
            Some(_) => false,
            None => {
                self.make_room()?;
                true
            }
        };
        if is_new {
            self.accounts.insert(Arc::clone(&uid), AccountReceiver::new(Arc::clone(&uid), epoch, lane));
        }
        let declared = begin.scopes.len();
        let account = self.accounts.get_mut(&uid).expect("it was just found or added");
        self.uncommitted_events -= account.uncommitted_events();
        effects.extend(account.begin(begin, lane)?);
        self.bound_scopes(declared)?;
        Ok((uid, effects))
    }

    /// Handles Unread. `lane` becomes the account's lane if there is none yet. The reason waits for the account's
    /// assignment, as Begin does: after a reconnect, the agent is faster than the fence.
    pub(crate) fn unread(&mut self, unread: Unread, lane: LaneId) -> Result<AccountEffects, ReceiverError> {
        let (uid, epoch) = account_of(unread.fence, "Unread")?;
        let mut effects = Vec::new();
        let is_new = match self.accounts.get_mut(&uid) {
            Some(known) if known.epoch() > epoch => return Ok((uid, effects)),
            Some(known) if known.epoch() < epoch => {
                self.uncommitted_events -= known.uncommitted_events();
                effects = known.abandon();
                true
            }
            Some(_) => false,
            None => {
                self.make_room()?;
                true
            }
        };
        if is_new {
            self.accounts.insert(Arc::clone(&uid), AccountReceiver::new(Arc::clone(&uid), epoch, lane));
        }
        let account = self.accounts.get_mut(&uid).expect("it was just found or added");
        account.unread(unread.failure.unwrap_or_default());
        Ok((uid, effects))
    }

    /// Handles a batch of `bytes` bytes.
    pub(crate) fn batch(&mut self, mut batch: Batch, bytes: u64) -> Result<AccountEffects, ReceiverError> {
        let (uid, epoch) = account_of(batch.fence.take(), "Batch")?;
        let (declared, events) = (batch.added.len(), batch.events.len());
        let effects = match self.accounts.get_mut(&uid) {
            Some(account) if account.epoch() == epoch => {
                let before = account.uncommitted_events();
                // Credit counts bytes on the wire, but an event takes some 400 bytes more: without this limit, a stream
                // of deletes would take ten times its credit in memory.
                let has_room = self.uncommitted_events + events <= MAX_UNCOMMITTED_EVENTS;
                let effects =
                    if has_room { account.batch(batch, bytes)? } else { account.refuse_batch(bytes) };
                self.uncommitted_events += account.uncommitted_events();
                self.uncommitted_events -= before;
                effects
            }
            // The agent has since begun under a later epoch.
            Some(account) if account.epoch() > epoch => vec![ReceiverEffect::Release(bytes)],
            _ => return Err(not_begun("Batch", &uid, epoch)),
        };
        self.bound_scopes(declared)?;
        Ok((uid, effects))
    }

    pub(crate) fn end(&mut self, end: End) -> Result<AccountEffects, ReceiverError> {
        let (uid, epoch) = account_of(end.fence, "End")?;
        let account = self.accounts.get_mut(&uid).filter(|account| account.epoch() == epoch);
        let effects = account.map(AccountReceiver::end).unwrap_or_default();
        self.forget_finished(&uid);
        Ok((uid, effects))
    }

    /// Handles the result of the fence check for the batches of a lane up to `seq`.
    pub(crate) fn outcome(
        &mut self,
        uid: &str,
        lane: LaneId,
        seq: i64,
        check: FenceCheck,
        superseded: Reason,
    ) -> Vec<ReceiverEffect> {
        let Some(account) = self.on_lane(uid, lane) else { return Vec::new() };
        let before = account.uncommitted_events();
        let effects = account.outcome(seq, check, superseded);
        let after = account.uncommitted_events();
        self.uncommitted_events -= before - after;
        self.forget_finished(uid);
        effects
    }

    /// Handles the stored progress of a lane.
    pub(crate) fn progress(
        &mut self,
        (uid, lane): (&str, LaneId),
        added: Option<&[u32]>,
        stored: &StoredProgress,
        now_ms: i64,
        superseded: Reason,
    ) -> Vec<ReceiverEffect> {
        let account = self.on_lane(uid, lane);
        account.map(|account| account.progress(added, stored, now_ms, superseded)).unwrap_or_default()
    }

    /// Checks the assignment of each account that waits for it again.
    pub(crate) fn check_assignments(
        &mut self,
        mut assignment: impl FnMut(&str, CachingEpoch) -> AssignmentState,
    ) -> Vec<AccountEffects> {
        let waiting = self.accounts.iter_mut().filter(|(_, account)| account.awaits_fence());
        let checked = waiting.map(|(uid, account)| {
            let assignment = assignment(uid, account.epoch());
            (Arc::clone(uid), account.assigned(assignment))
        });
        checked.filter(|(_, effects)| !effects.is_empty()).collect()
    }

    /// Returns an account, if `lane` is its current lane.
    pub(crate) fn on_lane(&mut self, uid: &str, lane: LaneId) -> Option<&mut AccountReceiver> {
        self.accounts.get_mut(uid).filter(|account| account.lane() == lane)
    }

    pub(crate) fn awaits_fence(&self, uid: &str) -> bool {
        self.accounts.get(uid).is_some_and(AccountReceiver::awaits_fence)
    }

    pub(crate) fn count(&self, state: DeliveryState) -> usize {
        self.accounts.values().filter(|account| account.state() == Some(state)).count()
    }

    fn forget_finished(&mut self, uid: &str) {
        if self.accounts.get(uid).is_some_and(AccountReceiver::is_finished) {
            self.accounts.remove(uid);
        }
    }

    fn bound_scopes(&mut self, declared: usize) -> Result<(), ReceiverError> {
        self.scopes += declared;
        if self.scopes > MAX_SCOPES {
            self.scopes = self.accounts.values().map(AccountReceiver::scope_count).sum();
        }
        if self.scopes <= MAX_SCOPES { Ok(()) } else { Err(ReceiverError::TooManyScopes(MAX_SCOPES)) }
    }

    fn make_room(&mut self) -> Result<(), ReceiverError> {
        if self.accounts.len() >= MAX_ACCOUNTS {
            self.accounts.retain(|_, account| !account.is_revoked());
        }
        if self.accounts.len() < MAX_ACCOUNTS {
            Ok(())
        } else {
            Err(ReceiverError::TooManyAccounts(MAX_ACCOUNTS))
        }
    }
}

fn account_of(fence: Option<Fence>, what: &'static str) -> Result<(Arc<str>, CachingEpoch), ReceiverError> {
    let fence =
        fence.filter(|fence| !fence.account_uid.is_empty() && fence.account_uid.len() <= MAX_UID_BYTES);
    let fence = fence.ok_or(ReceiverError::NoFence(what))?;
    let epoch = CachingEpoch::from_wire(fence.caching_epoch).filter(|epoch| !epoch.is_none());
    let epoch = epoch.ok_or(ReceiverError::NoFence(what))?;
    Ok((fence.account_uid.into(), epoch))
}

fn not_begun(what: &'static str, uid: &str, epoch: CachingEpoch) -> ReceiverError {
    ReceiverError::NotBegun { what, uid: uid.to_owned(), epoch: epoch.to_wire() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kubesvc_core::wire::common::failure::Class;
    use kubesvc_core::wire::common::{Failure, Scope};
    use kubesvc_core::wire::events::event::Operation;
    use kubesvc_core::wire::events::{Event, Rewind, ScopeDeclaration};

    fn fence(uid: &str, caching_epoch: u64) -> Option<Fence> {
        Some(Fence { account_uid: uid.into(), caching_epoch })
    }

    fn begin(uid: &str, epoch: u64) -> Begin {
        let scope = Some(Scope { kind: "Pod".into(), ..Scope::default() });
        let scope = ScopeDeclaration { scope_id: 1, scope, shape: "s".into(), filter: String::new() };
        Begin { fence: fence(uid, epoch), scopes: vec![scope], last: true, ..Begin::default() }
    }

    fn flowing(uid: &str, epoch: u64) -> StreamDelivery {
        let mut stream = StreamDelivery::default();
        stream.begin(begin(uid, epoch), 1).expect("it is well-formed");
        let asked = stream.check_assignments(|_, _| AssignmentState::Stands("one".into()));
        assert_eq!(asked[0].1, [ReceiverEffect::ReadProgress { lane: 1, added: None }]);
        let stored = StoredProgress::Stands { committed: 0, scopes: Vec::new() };
        assert!(!stream.progress((uid, 1), None, &stored, 0, Reason::Superseded).is_empty());
        stream
    }

    fn batch(uid: &str, epoch: u64) -> Batch {
        Batch { fence: fence(uid, epoch), seq: 1, ..Batch::default() }
    }

    #[test]
    fn a_frame_without_account_or_epoch_is_refused() {
        let mut stream = StreamDelivery::default();
        for fence in [None, fence("", 1), fence("u", 0), fence("u", u64::MAX), fence(&"u".repeat(65), 1)] {
            let error = stream.begin(Begin { fence: fence.clone(), ..begin("u", 1) }, 1);
            assert_eq!(error, Err(ReceiverError::NoFence("Begin")));
            assert_eq!(
                stream.batch(Batch { fence: fence.clone(), ..batch("u", 1) }, 1),
                Err(ReceiverError::NoFence("Batch"))
            );
            assert_eq!(stream.end(End { fence }), Err(ReceiverError::NoFence("End")));
        }
    }

    #[test]
    fn a_batch_of_an_account_or_epoch_that_was_not_begun_is_refused() {
        let mut stream = flowing("u", 2);
        for (uid, epoch) in [("other", 2), ("u", 3)] {
            let error = stream.batch(batch(uid, epoch), 1).expect_err("it was not begun");
            let expected = format!("a Batch of account {uid} under epoch {epoch} came without Begin");
            assert_eq!(error.to_string(), expected);
        }
        assert!(stream.batch(batch("u", 2), 1).is_ok());
    }

    #[test]
    fn a_batch_of_an_earlier_epoch_is_ignored_and_its_credit_returned() {
        let mut stream = flowing("u", 2);
        assert_eq!(stream.batch(batch("u", 1), 7), Ok(("u".into(), vec![ReceiverEffect::Release(7)])));
    }

    #[test]
    fn events_that_are_not_committed_are_bounded() {
        let mut stream = flowing("u", 2);
        let gone = |nth: usize| Event {
            scope_id: 1,
            op: Operation::Delete.into(),
            name: format!("pod-{nth}"),
            ..Event::default()
        };
        let full = |number: u64| Batch {
            prev: number - 1,
            seq: number,
            events: (0..256).map(gone).collect(),
            ..batch("u", 2)
        };
        let batches = u64::try_from(MAX_UNCOMMITTED_EVENTS / 256).expect("a small number");
        for number in 1..=batches {
            let (_, effects) = stream.batch(full(number), 100).expect("it is well-formed");
            assert!(matches!(effects[..], [ReceiverEffect::Queue(_)]), "{number}");
        }
        let (_, effects) = stream.batch(full(batches + 1), 100).expect("it is well-formed");
        assert_eq!(effects[..2], [ReceiverEffect::Release(100), ReceiverEffect::Release(100 * batches)]);
        let rewind = Rewind { fence: fence("u", 2), committed_seq: 0 };
        assert_eq!(effects.last(), Some(&ReceiverEffect::Send(Frame::Rewind(rewind))));
        assert_eq!(stream.uncommitted_events, 0);
        assert_eq!(stream.batch(full(batches + 2), 7), Ok(("u".into(), vec![ReceiverEffect::Release(7)])));

        let mut stream = flowing("u", 2);
        for number in 1..=3 {
            stream.batch(full(number), 100).expect("it is taken");
        }
        stream.outcome("u", 1, 2, FenceCheck::Passed, Reason::Superseded);
        assert_eq!(stream.uncommitted_events, 256);
        stream.begin(begin("u", 2), 2).expect("it is well-formed");
        assert_eq!(stream.uncommitted_events, 0);
    }

    #[test]
    fn begin_under_a_later_epoch_takes_the_place_of_the_earlier_one() {
        let mut stream = flowing("u", 2);
        stream.batch(batch("u", 2), 100).expect("it is taken");
        let (_, effects) = stream.begin(begin("u", 3), 9).expect("it is well-formed");
        assert_eq!(effects, [ReceiverEffect::Release(100), ReceiverEffect::CloseLane(1)]);
        let late = stream.outcome("u", 1, 1, FenceCheck::Passed, Reason::Superseded);
        assert_eq!(late, [], "it is not of this lane");
        assert!(stream.on_lane("u", 9).is_some() && stream.awaits_fence("u"));
        let (_, effects) = stream.begin(begin("u", 2), 10).expect("it is well-formed");
        let revoked = Revoked { fence: fence("u", 2), reason: Reason::Reelected.into() };
        assert_eq!(effects, [ReceiverEffect::Send(Frame::Revoked(revoked))]);
    }

    fn unread(epoch: u64, message: &str) -> Unread {
        let class = Class::Unreachable.into();
        let failure = Failure { class, message: message.into(), ..Failure::default() };
        Unread { fence: fence("u", epoch), failure: Some(failure) }
    }

    #[test]
    fn agent_that_never_reached_the_cluster_reads_nothing_until_it_begins() {
        let mut stream = StreamDelivery::default();
        assert_eq!(stream.unread(unread(2, ""), 2), Ok(("u".into(), Vec::new())));
        let told = stream.check_assignments(|_, _| AssignmentState::Stands("one".into()));
        let [ReceiverEffect::Report(report)] = &told[0].1[..] else { unreachable!("{told:?}") };
        assert!(report.is_unreadable && report.epoch == CachingEpoch(2));
        assert_eq!(report.left_out.as_deref(), Some("all kinds: the cluster cannot be reached"));
        assert_eq!(
            stream.end(End { fence: fence("u", 2) }),
            Ok(("u".into(), vec![ReceiverEffect::CloseLane(2)]))
        );
        assert!(stream.accounts.is_empty());

        let mut stream = flowing("u", 2);
        assert_eq!(stream.unread(unread(2, ""), 3), Ok(("u".into(), Vec::new())));
        assert!(!stream.awaits_fence("u"), "batches say more");
        assert_eq!(stream.unread(unread(3, ""), 4), Ok(("u".into(), vec![ReceiverEffect::CloseLane(1)])));
        stream.begin(begin("u", 3), 5).expect("it is well-formed");
        let begun = stream.check_assignments(|_, _| AssignmentState::Stands("one".into()));
        assert_eq!(begun[0].1, [ReceiverEffect::ReadProgress { lane: 4, added: None }], "Begin says more");
        let error = stream.unread(Unread { fence: None, ..unread(3, "") }, 6);
        assert_eq!(error, Err(ReceiverError::NoFence("Unread")));
    }

    #[test]
    fn unread_waits_for_the_assignment_and_the_last_reason_is_told_once() {
        let mut stream = StreamDelivery::default();
        stream.unread(unread(2, "first"), 1).expect("it is well-formed");
        assert_eq!(stream.check_assignments(|_, _| AssignmentState::Pending), []);
        let denied = Failure { class: Class::Forbidden.into(), ..Failure::default() };
        let last = Unread { failure: Some(denied), ..unread(2, "") };
        stream.unread(last, 2).expect("it is well-formed");
        let told = stream.check_assignments(|_, _| AssignmentState::Stands("one".into()));
        let [(_, effects)] = &told[..] else { unreachable!("{told:?}") };
        assert!(
            matches!(&effects[..], [ReceiverEffect::Report(report)] if !report.is_unreadable),
            "{effects:?}"
        );
        assert_eq!(stream.check_assignments(|_, _| AssignmentState::Stands("one".into())), []);
    }

    #[test]
    fn unread_of_an_account_that_is_not_assigned_is_revoked_and_ends_with_the_account() {
        let mut stream = StreamDelivery::default();
        stream.unread(unread(2, ""), 1).expect("it is well-formed");
        let effects = stream.check_assignments(|_, _| AssignmentState::Revoked(Reason::Superseded));
        let revoked = Revoked { fence: fence("u", 2), reason: Reason::Superseded.into() };
        assert_eq!(
            effects[0].1,
            [ReceiverEffect::CloseLane(1), ReceiverEffect::Send(Frame::Revoked(revoked))]
        );
        stream.unread(unread(2, ""), 2).expect("it is well-formed");
        assert!(!stream.awaits_fence("u"), "it is revoked");

        let mut stream = StreamDelivery::default();
        stream.unread(unread(2, ""), 1).expect("it is well-formed");
        stream.end(End { fence: fence("u", 2) }).expect("it is well-formed");
        assert_eq!(stream.check_assignments(|_, _| AssignmentState::Stands("one".into())), []);
    }

    #[test]
    fn a_revoked_account_is_remembered_so_that_late_batches_do_no_harm() {
        let mut stream = flowing("u", 2);
        stream.batch(batch("u", 2), 1).expect("it is taken");
        assert!(!stream.outcome("u", 1, 1, FenceCheck::Gone, Reason::Superseded).is_empty());
        assert_eq!(stream.batch(batch("u", 2), 5), Ok(("u".into(), vec![ReceiverEffect::Release(5)])));
        assert_eq!(stream.count(DeliveryState::Listing), 0);
    }

    #[test]
    fn an_ended_account_is_forgotten_with_its_last_commit() {
        let mut stream = flowing("u", 2);
        assert_eq!(stream.count(DeliveryState::Listing), 1);
        stream.batch(batch("u", 2), 1).expect("it is taken");
        assert_eq!(stream.end(End { fence: fence("u", 2) }), Ok(("u".into(), Vec::new())));
        assert!(stream.on_lane("u", 1).is_some(), "a batch is not committed yet");
        let effects = stream.outcome("u", 1, 1, FenceCheck::Passed, Reason::Superseded);
        assert_eq!(effects.last(), Some(&ReceiverEffect::CloseLane(1)));
        assert!(stream.on_lane("u", 1).is_none());
        assert_eq!(stream.end(End { fence: fence("u", 2) }), Ok(("u".into(), Vec::new())), "it is no more");
    }

    #[test]
    fn accounts_are_bounded_and_revoked_ones_make_room() {
        let mut stream = StreamDelivery::default();
        for uid in 0..MAX_ACCOUNTS {
            stream.begin(begin(&uid.to_string(), 1), 1).expect("there is room");
        }
        let error = stream.begin(begin("more", 1), 1);
        assert_eq!(error, Err(ReceiverError::TooManyAccounts(MAX_ACCOUNTS)));
        let revoked = stream.check_assignments(|uid, _| match uid {
            "7" => AssignmentState::Revoked(Reason::AccountGone),
            _ => AssignmentState::Pending,
        });
        assert_eq!(revoked.len(), 1);
        assert!(stream.begin(begin("more", 1), 1).is_ok());
    }
}
