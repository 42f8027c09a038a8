//! The accounts of one Caching stream: finds the account that a frame or an answer concerns. Pure.

use std::collections::HashMap;
use std::sync::Arc;

use kubesvc_core::CachingEpoch;
use kubesvc_core::wire::common::Fence;
use kubesvc_core::wire::events::cache_down::Frame;
use kubesvc_core::wire::events::revoked::Reason;
use kubesvc_core::wire::events::{Batch, Begin, End, Revoked};
use kubesvc_store::{FenceCheck, StoredProgress};

use super::account_delivery::{AccountDelivery, Assignment, DeliveryError, DeliveryState, Effect};
use super::transaction_batching::LaneId;

/// Maximum number of accounts on one stream.
pub(crate) const MAX_ACCOUNTS: usize = 10_000;
/// Maximum number of scopes on one stream.
const MAX_SCOPES: usize = 200_000;
/// Maximum length of an account's uid, in bytes.
const MAX_UID_BYTES: usize = 64;

/// Effects that concern one account.
pub(crate) type AccountEffects = (Arc<str>, Vec<Effect>);

/// The accounts of one stream, by uid.
#[derive(Debug, Default)]
pub(crate) struct StreamDelivery {
    accounts: HashMap<Arc<str>, AccountDelivery>,
    /// Upper bound on the number of declared scopes, corrected when it reaches the maximum.
    scopes: usize,
}

impl StreamDelivery {
    /// Handles Begin. `lane` is the account's lane from now on, if the frame is the first one.
    pub(crate) fn begin(&mut self, mut begin: Begin, lane: LaneId) -> Result<AccountEffects, DeliveryError> {
        let (uid, epoch) = account_of(begin.fence.take(), "Begin")?;
        let mut effects = Vec::new();
        let is_new = match self.accounts.get_mut(&uid) {
            Some(known) if known.epoch() > epoch => {
                // The agent has begun under a later epoch itself.
                let fence = Fence { account_uid: uid.to_string(), caching_epoch: epoch.to_wire() };
                let revoked = Revoked { fence: Some(fence), reason: Reason::Reelected.into() };
                let effects =
                    if begin.last { vec![Effect::Send(Frame::Revoked(revoked))] } else { Vec::new() };
                return Ok((uid, effects));
            }
            Some(known) if known.epoch() < epoch => {
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
            self.accounts.insert(Arc::clone(&uid), AccountDelivery::new(Arc::clone(&uid), epoch, lane));
        }
        let declared = begin.scopes.len();
        let account = self.accounts.get_mut(&uid).expect("it was just found or added");
        effects.extend(account.begin(begin, lane)?);
        self.bound_scopes(declared)?;
        Ok((uid, effects))
    }

    /// Handles a batch of `bytes` bytes.
    pub(crate) fn batch(&mut self, mut batch: Batch, bytes: u64) -> Result<AccountEffects, DeliveryError> {
        let (uid, epoch) = account_of(batch.fence.take(), "Batch")?;
        let declared = batch.added.len();
        let effects = match self.accounts.get_mut(&uid) {
            Some(account) if account.epoch() == epoch => account.batch(batch, bytes)?,
            // The agent has begun under a later epoch since.
            Some(account) if account.epoch() > epoch => vec![Effect::Release(bytes)],
            _ => return Err(not_begun("Batch", &uid, epoch)),
        };
        self.bound_scopes(declared)?;
        Ok((uid, effects))
    }

    /// Handles End.
    pub(crate) fn end(&mut self, end: End) -> Result<AccountEffects, DeliveryError> {
        let (uid, epoch) = account_of(end.fence, "End")?;
        let account = self.accounts.get_mut(&uid).filter(|account| account.epoch() == epoch);
        let effects = account.map(AccountDelivery::end).unwrap_or_default();
        self.forget_finished(&uid);
        Ok((uid, effects))
    }

    /// Handles what the fence said to the batches of a lane up to `seq`.
    pub(crate) fn outcome(
        &mut self,
        uid: &str,
        lane: LaneId,
        seq: i64,
        check: FenceCheck,
        superseded: Reason,
    ) -> Vec<Effect> {
        let effects = self.on_lane(uid, lane).map(|account| account.outcome(seq, check, superseded));
        self.forget_finished(uid);
        effects.unwrap_or_default()
    }

    /// Handles the progress that was read for a lane.
    pub(crate) fn progress(
        &mut self,
        (uid, lane): (&str, LaneId),
        added: Option<&[u32]>,
        stored: &StoredProgress,
        now_ms: i64,
        superseded: Reason,
    ) -> Vec<Effect> {
        let account = self.on_lane(uid, lane);
        account.map(|account| account.progress(added, stored, now_ms, superseded)).unwrap_or_default()
    }

    /// Asks again for the assignment of each account that waits for it.
    pub(crate) fn check_assignments(
        &mut self,
        mut assignment: impl FnMut(&str, CachingEpoch) -> Assignment,
    ) -> Vec<AccountEffects> {
        let waiting = self.accounts.iter_mut().filter(|(_, account)| account.awaits_fence());
        let checked = waiting.map(|(uid, account)| {
            let assignment = assignment(uid, account.epoch());
            (Arc::clone(uid), account.assigned(assignment))
        });
        checked.filter(|(_, effects)| !effects.is_empty()).collect()
    }

    /// Returns an account, if this is its current lane.
    pub(crate) fn on_lane(&mut self, uid: &str, lane: LaneId) -> Option<&mut AccountDelivery> {
        self.accounts.get_mut(uid).filter(|account| account.lane() == lane)
    }

    /// Whether an account waits for its fence.
    pub(crate) fn awaits_fence(&self, uid: &str) -> bool {
        self.accounts.get(uid).is_some_and(AccountDelivery::awaits_fence)
    }

    /// Number of accounts in a state.
    pub(crate) fn count(&self, state: DeliveryState) -> usize {
        self.accounts.values().filter(|account| account.state() == Some(state)).count()
    }

    fn forget_finished(&mut self, uid: &str) {
        if self.accounts.get(uid).is_some_and(AccountDelivery::is_finished) {
            self.accounts.remove(uid);
        }
    }

    fn bound_scopes(&mut self, declared: usize) -> Result<(), DeliveryError> {
        self.scopes += declared;
        if self.scopes > MAX_SCOPES {
            self.scopes = self.accounts.values().map(AccountDelivery::scope_count).sum();
        }
        if self.scopes <= MAX_SCOPES { Ok(()) } else { Err(DeliveryError::TooManyScopes(MAX_SCOPES)) }
    }

    fn make_room(&mut self) -> Result<(), DeliveryError> {
        if self.accounts.len() >= MAX_ACCOUNTS {
            self.accounts.retain(|_, account| !account.is_revoked());
        }
        if self.accounts.len() < MAX_ACCOUNTS {
            Ok(())
        } else {
            Err(DeliveryError::TooManyAccounts(MAX_ACCOUNTS))
        }
    }
}

fn account_of(fence: Option<Fence>, what: &'static str) -> Result<(Arc<str>, CachingEpoch), DeliveryError> {
    let fence =
        fence.filter(|fence| !fence.account_uid.is_empty() && fence.account_uid.len() <= MAX_UID_BYTES);
    let fence = fence.ok_or(DeliveryError::NoFence(what))?;
    let epoch = CachingEpoch::from_wire(fence.caching_epoch).filter(|epoch| !epoch.is_none());
    let epoch = epoch.ok_or(DeliveryError::NoFence(what))?;
    Ok((fence.account_uid.into(), epoch))
}

fn not_begun(what: &'static str, uid: &str, epoch: CachingEpoch) -> DeliveryError {
    DeliveryError::NotBegun { what, uid: uid.to_owned(), epoch: epoch.to_wire() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kubesvc_core::wire::common::Scope;
    use kubesvc_core::wire::events::ScopeDeclaration;

    fn fence(uid: &str, caching_epoch: u64) -> Option<Fence> {
        Some(Fence { account_uid: uid.into(), caching_epoch })
    }

    fn begin(uid: &str, epoch: u64) -> Begin {
        let scope = Some(Scope { kind: "Pod".into(), ..Scope::default() });
        let scope = ScopeDeclaration { scope_id: 1, scope, shape: "s".into(), filter: String::new() };
        Begin { fence: fence(uid, epoch), scopes: vec![scope], last: true }
    }

    fn flowing(uid: &str, epoch: u64) -> StreamDelivery {
        let mut stream = StreamDelivery::default();
        stream.begin(begin(uid, epoch), 1).expect("it is well-formed");
        let asked = stream.check_assignments(|_, _| Assignment::Stands("one".into()));
        assert_eq!(asked[0].1, [Effect::ReadProgress { lane: 1, added: None }]);
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
            assert_eq!(error, Err(DeliveryError::NoFence("Begin")));
            assert_eq!(
                stream.batch(Batch { fence: fence.clone(), ..batch("u", 1) }, 1),
                Err(DeliveryError::NoFence("Batch"))
            );
            assert_eq!(stream.end(End { fence }), Err(DeliveryError::NoFence("End")));
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
        assert_eq!(stream.batch(batch("u", 1), 7), Ok(("u".into(), vec![Effect::Release(7)])));
    }

    #[test]
    fn begin_under_a_later_epoch_takes_the_place_of_the_earlier_one() {
        let mut stream = flowing("u", 2);
        stream.batch(batch("u", 2), 100).expect("it is taken");
        let (_, effects) = stream.begin(begin("u", 3), 9).expect("it is well-formed");
        assert_eq!(effects, [Effect::Release(100), Effect::CloseLane(1)]);
        let late = stream.outcome("u", 1, 1, FenceCheck::Passed, Reason::Superseded);
        assert_eq!(late, [], "it is not of this lane");
        assert!(stream.on_lane("u", 9).is_some() && stream.awaits_fence("u"));
        let (_, effects) = stream.begin(begin("u", 2), 10).expect("it is well-formed");
        let revoked = Revoked { fence: fence("u", 2), reason: Reason::Reelected.into() };
        assert_eq!(effects, [Effect::Send(Frame::Revoked(revoked))]);
    }

    #[test]
    fn a_revoked_account_is_remembered_so_that_late_batches_do_no_harm() {
        let mut stream = flowing("u", 2);
        stream.batch(batch("u", 2), 1).expect("it is taken");
        assert!(!stream.outcome("u", 1, 1, FenceCheck::Gone, Reason::Superseded).is_empty());
        assert_eq!(stream.batch(batch("u", 2), 5), Ok(("u".into(), vec![Effect::Release(5)])));
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
        assert_eq!(effects.last(), Some(&Effect::CloseLane(1)));
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
        assert_eq!(error, Err(DeliveryError::TooManyAccounts(MAX_ACCOUNTS)));
        let revoked = stream.check_assignments(|uid, _| match uid {
            "7" => Assignment::Revoked(Reason::AccountGone),
            _ => Assignment::Pending,
        });
        assert_eq!(revoked.len(), 1);
        assert!(stream.begin(begin("more", 1), 1).is_ok());
    }
}
